/*
dataloader/jsonl.h: JSON lines, the format of most text data sets. Every line is an object with a text in one field:

    {"text": "Once upon a time ...", "source": "a book"}
    {"text": "..."}

    jsonl_lines     passes the objects of a file to a function
    jsonl_encode    tokenizes such files (TOKENS_JSONL, dataloader/token_format.h) in memory with the run's vocabulary,
                    or as bytes

A line is a document: the vocabulary's document token precedes it; if tokens are bytes, a new line ends it instead.
Empty texts are omitted. Every rank tokenizes for itself when it starts, so this is for texts of some megabytes;
build/tokenize tokenizes larger ones once, on all cores.
*/
#pragma once

#include "tokenizer.h"
#include "token_files.h"

static const int64_t jsonl_most = 256 << 20; // bytes that are tokenized at the start of a run

// Takes a line that begins at byte `at` of the file. False: *error has the reason.
typedef bool (*TakeLine)(void* context, const Json* line, size_t at, Error* error);

static inline bool is_blank(int c) { return c == ' ' || (c >= 9 && c <= 13); }

// Fails with an error in a line, perhaps ":1:column: ...", with the file's name and the line's number.
static inline bool jsonl_fail(const unsigned char* text, size_t at, const char* path, const Error* found,
                              Error* error) {
    long long line = 1;
    for (size_t i = 0; i < at; i++) line += text[i] == '\n';
    const bool column = strncmp(found->text, ":1:", 3) == 0;
    return fail(error, "%.400s:%lld:%s%.500s", path, line, column ? "" : " ", found->text + (column ? 3 : 0));
}

// Passes bytes [begin, end) of a file, which are whole lines, to `take`; blank lines are omitted. False: *error names
// the first line that is not JSON, or not what `take` expects.
static inline bool jsonl_lines(const unsigned char* text, size_t begin, size_t end, const char* path, TakeLine take,
                               void* context, Error* error) {
    for (size_t at = begin, next; at < end; at = next) {
        const unsigned char* found = (const unsigned char*)memchr(text + at, '\n', end - at);
        const size_t stop = found ? (size_t)(found - text) : end;
        next = found ? stop + 1 : stop;
        size_t first = at;
        while (first < stop && is_blank(text[first])) first++;
        if (first == stop) continue;
        Json json;
        Error why;
        if (!json_parse(&json, "", text + at, stop - at, &why)) return jsonl_fail(text, at, path, &why, error);
        const bool ok = take(context, &json, at, &why);
        json_free(&json);
        if (!ok) return jsonl_fail(text, at, path, &why, error);
    }
    return true;
}

// ---- A stream in memory -----------------------------------------------------------------------------------------

typedef struct {
    const Tokenizer* tokenizer;
    Encoder encoder;
    TokenList list;        // of one text
    int width;             // bytes of a token
    unsigned char* tokens; // (room) bytes, `used` of them in use
    int64_t used, room;
    int64_t* begins; // (begins_room) where each document begins, in bytes
    int documents, begins_room;
} LineTokens;

static inline bool take_line(void* context, const Json* line, size_t at, Error* error) {
    LineTokens* lines = (LineTokens*)context;
    const Tokenizer* tokenizer = lines->tokenizer;
    TokenList* list = &lines->list;
    (void)at;
    const JsonNode* node = json_require(line, line->nodes, "text", JSON_STRING, error);
    if (!node || node->count == 0) return node != NULL;
    const unsigned char* text = (const unsigned char*)node->value.string;
    const size_t n = node->count;
    list->count = 0;
    token_list_reserve(list, 1);
    if (tokenizer->document >= 0) list->token[list->count++] = tokenizer->document;
    tokenizer_encode(tokenizer, &lines->encoder, list, text, n, false);
    token_list_reserve(list, 1);
    if (tokenizer->split == SPLIT_BYTES && text[n - 1] != '\n') list->token[list->count++] = '\n';
    if (lines->documents == lines->begins_room)
        lines->begins = (int64_t*)checked_grow(lines->begins, &lines->begins_room, 1024, sizeof(int64_t), "documents");
    lines->begins[lines->documents++] = lines->used;
    const int64_t needed = lines->used + (int64_t)list->count * lines->width;
    lines->tokens = (unsigned char*)checked_reserve(lines->tokens, &lines->room, needed, 1, "the tokens of JSON lines");
    for (size_t i = 0; i < list->count; i++, lines->used += lines->width)
        memcpy(lines->tokens + lines->used, &list->token[i], (size_t)lines->width); // little-endian: the low bytes
    return true;
}

// Gives the tokens of the lines to the file, as a Megatron data set with one sequence for each document.
static inline void line_tokens_to_file(LineTokens* lines, TokenFile* file) {
    const int64_t D = lines->documents;
    int64_t* lists = (int64_t*)checked_calloc((size_t)(2 * D + 1), sizeof *lists, "documents");
    for (int64_t d = 0; d < D; d++) lists[d] = lines->begins[d];
    for (int64_t d = 0; d <= D; d++) lists[D + d] = d;
    static const TokenType types[] = {TOKEN_UINT8, TOKEN_UINT8, TOKEN_UINT16, TOKEN_UINT32, TOKEN_UINT32};
    file->type = types[lines->width];
    file->count = lines->used / lines->width;
    file->memory = lines->tokens;
    file->lists = lists;
    file->data = file->memory ? file->memory : (const unsigned char*)"";
    memset(&file->documents, 0, sizeof file->documents);
    file->documents.type = file->type;
    file->documents.sequences = file->documents.documents = D;
    file->documents.tokens = file->count;
    file->documents.begins = (const unsigned char*)lists;
    file->documents.ends = (const unsigned char*)(lists + D);
    lines->tokens = NULL;
    lines->used = lines->room = lines->documents = 0;
}

// Tokenizes files of JSON lines, once. False: *error names the wrong line, or the files are too large.
static inline bool jsonl_encode(TokenFiles* files, const Tokenizer* tokenizer, Error* error) {
    LineTokens lines = {};
    lines.tokenizer = tokenizer;
    lines.width = tokenizer->vocab <= 65536 ? 2 : 4;
    if (tokenizer->vocab <= 256) lines.width = 1;
    if (files->tokens > jsonl_most)
        return fail(
            error,
            "%s: %.1f MB of JSON lines are too much for the start of a run, which takes up to %d MB; make shards "
            "of them with build/tokenize",
            files->file[0].path, (double)files->tokens / 1e6, (int)(jsonl_most >> 20));
    encoder_open(&lines.encoder);
    bool ok = true;
    files->tokens = 0;
    for (int i = 0; i < files->files && ok; i++) {
        TokenFile* file = &files->file[i];
        ok = jsonl_lines(file->map.data, 0, file->map.size, file->path, take_line, &lines, error);
        if (!ok) break;
        line_tokens_to_file(&lines, file);
        file->first = files->tokens;
        files->tokens += file->count;
        files->documents += file->documents.documents;
    }
    encoder_close(&lines.encoder);
    token_list_free(&lines.list);
    free(lines.tokens);
    free(lines.begins);
    return ok && (files->tokens > 0 || fail(error, "%s: no text in it", files->file[0].path));
}
