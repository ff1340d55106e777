/*
dataloader/text.h: texts become tokens when a run starts. A text is a file as it is, or JSON lines, the format of most
text data sets, where every line is an object with a text in one field:

    {"text": "Once upon a time ...", "source": "a book"}
    {"text": "..."}

    text_encode    tokenizes such files in memory with the run's vocabulary, or as bytes
    jsonl_lines    passes the objects of a file of JSON lines to a function

A file or a line is a document: the vocabulary's document token precedes it. If tokens are bytes, a file is used as it
lies on the disk, and a new line ends the text of each JSON line. Empty texts are omitted. Every rank tokenizes for
itself, so this is for texts of some megabytes; build/tokenize tokenizes larger ones once, on all cores.
*/
#pragma once

#include "tokenizer.h"
#include "token_files.h"

static const int64_t text_most = 256 << 20; // bytes that are tokenized at the start of a run

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
    TokenList list;        // one text's
    int width;             // bytes of a token
    unsigned char* tokens; // (room) bytes, `used` of them in use
    int64_t used, room;
} TextTokens;

// Appends the tokens of a document of n > 0 bytes.
static inline void append_document(TextTokens* texts, const unsigned char* text, size_t n) {
    const Tokenizer* tokenizer = texts->tokenizer;
    TokenList* list = &texts->list;
    list->count = 0;
    token_list_reserve(list, 1);
    if (tokenizer->document >= 0) list->token[list->count++] = tokenizer->document;
    tokenizer_encode(tokenizer, &texts->encoder, list, text, n, false);
    token_list_reserve(list, 1);
    if (tokenizer->split == SPLIT_BYTES && text[n - 1] != '\n') list->token[list->count++] = '\n';
    const int64_t needed = texts->used + (int64_t)list->count * texts->width;
    texts->tokens = (unsigned char*)checked_reserve(texts->tokens, &texts->room, needed, 1, "the tokens of a text");
    for (size_t i = 0; i < list->count; i++, texts->used += texts->width)
        memcpy(texts->tokens + texts->used, &list->token[i], (size_t)texts->width); // little-endian: the low bytes
}

static inline bool take_line(void* context, const Json* line, size_t at, Error* error) {
    (void)at;
    const JsonNode* node = json_require(line, line->nodes, "text", JSON_STRING, error);
    if (node && node->count > 0)
        append_document((TextTokens*)context, (const unsigned char*)node->value.string, node->count);
    return node != NULL;
}

// Gives the tokens to the file.
static inline void text_tokens_to_file(TextTokens* texts, TokenFile* file) {
    static const TokenType types[] = {TOKEN_UINT8, TOKEN_UINT8, TOKEN_UINT16, TOKEN_UINT32, TOKEN_UINT32};
    file->type = types[texts->width];
    file->count = texts->used / texts->width;
    file->memory = texts->tokens;
    file->data = file->memory ? file->memory : (const unsigned char*)"";
    texts->tokens = NULL;
    texts->used = texts->room = 0;
}

// Tokenizes files of text or JSON lines, once; others, and text whose tokens are bytes, stay as they are. False: *error
// names the wrong line, or there is no vocabulary (tokenizer->vocab = 0), or the files are too large.
static inline bool text_encode(TokenFiles* files, const Tokenizer* tokenizer, Error* error) {
    const bool lines = files->format == TOKENS_JSONL;
    const char* name = files->file[0].path;
    TextTokens texts = {};
    if (!format_is_text(files->format)) return true;
    if (!tokenizer->vocab) return fail(error, "%s: a text needs a vocabulary: give --tokenizer", name);
    if (!lines && tokenizer->split == SPLIT_BYTES) return true;
    texts.tokenizer = tokenizer;
    texts.width = tokenizer->vocab <= 65536 ? 2 : 4;
    if (tokenizer->vocab <= 256) texts.width = 1;
    if (files->tokens > text_most)
        return fail(error,
                    "%s: %.1f MB of text are too much for the start of a run, which tokenizes up to %d MB; make shards "
                    "of it with build/tokenize",
                    name, (double)files->tokens / 1e6, (int)(text_most >> 20));
    encoder_open(&texts.encoder);
    bool ok = true;
    files->tokens = 0;
    if (!lines) files->format = TOKENS_TOKENIZED_TEXT;
    for (int i = 0; i < files->files && ok; i++) {
        TokenFile* file = &files->file[i];
        const MappedFile* map = &file->map;
        if (lines)
            ok = jsonl_lines(map->data, 0, map->size, file->path, take_line, &texts, error);
        else if (map->size > 0)
            append_document(&texts, map->data, map->size);
        if (!ok) break;
        text_tokens_to_file(&texts, file);
        file->first = files->tokens;
        files->tokens += file->count;
    }
    encoder_close(&texts.encoder);
    token_list_free(&texts.list);
    free(texts.tokens);
    return ok && (files->tokens > 0 || fail(error, "%s: no text in it", name));
}
