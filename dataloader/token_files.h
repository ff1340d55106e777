/*
dataloader/token_files.h: files of tokens, memory-mapped and laid end to end: one long stream.

    tokens_open         opens files and patterns as one stream
    tokens_read         reads tokens of the stream, as int32

All files of a stream have the same format (dataloader/token_format.h). An empty file is text without characters: it is
accepted beside other text, refused beside shards (there it is a broken download) and refused alone.

A file must not shrink while it is mapped: that kills the process with SIGBUS, as in every program that maps files.
*/
#pragma once

#include "token_format.h"
#include <glob.h>

// The name of the index beside a file of Megatron's, NAME.idx for NAME.bin; NULL if path does not end with .bin.
static inline char* index_name(const char* path) {
    if (!name_ends_with(path, ".bin")) return NULL;
    char* name = checked_strdup(path, "a file's name");
    memcpy(name + strlen(path) - 4, ".idx", 4);
    return name;
}

// ---- Files as one stream ----------------------------------------------------------------------------------------

typedef struct {
    char* path;
    MappedFile map;
    TokenType type;
    const unsigned char* data; // the first token
    int64_t first, count;      // the file has tokens [first, first + count) of the stream
    unsigned char* memory;     // the tokens of a text that was tokenized
} TokenFile;

typedef struct {
    TokenFile* file; // in the order of the stream
    int files;
    TokenFormat format;
    int64_t tokens; // in all files together
} TokenFiles;

// Unmaps and frees everything; *files may be reused. Does nothing to a struct of zeros.
static inline void tokens_close(TokenFiles* files) {
    for (int i = 0; i < files->files; i++) {
        file_unmap(&files->file[i].map);
        free(files->file[i].memory);
        free(files->file[i].path);
    }
    free(files->file);
    memset(files, 0, sizeof *files);
}

// Maps a file of tokens, and its *index if it is Megatron's. No madvise: by default a shuffled read brings in 128 KB
// around its sequence, so that the whole file is soon in memory.
static inline bool token_file_map(TokenFile* file, MappedFile* index, const char* path, Error* error) {
    struct stat st; // before opening, as opening a FIFO waits for its writer
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return fail(error, "%s: %s", path, S_ISDIR(st.st_mode) ? "a directory; name the files in it" : "not a file");
    if (!file_map(&file->map, path, error)) return false;
    file->path = checked_strdup(path, "a file's name");
    char* idx = index_name(path);
    bool ok = true;
    if (idx && stat(idx, &st) == 0 && S_ISREG(st.st_mode)) {
        ok = file_map(index, idx, error);
        if (ok && !is_megatron_index(index->data, index->size)) file_unmap(index);
    }
    free(idx);
    return ok;
}

// Recognises the format of a mapped file, and finds its tokens.
static inline bool token_file_recognise(TokenFile* file, TokenFormat* format, const MappedFile* index, Error* error) {
    const unsigned char* bytes = file->map.data ? file->map.data : (const unsigned char*)""; // NULL for an empty file
    int64_t offset = 0;
    bool ok;
    if (index->data) {
        char* idx = index_name(file->path);
        ok = index_read(&file->type, &file->count, index->data, index->size, (int64_t)file->map.size, idx, error);
        free(idx);
        *format = TOKENS_MEGATRON;
    } else {
        ok = tokens_recognise(format, &offset, &file->count, bytes, file->map.size, file->path, error);
        file->type = token_formats[*format].type;
    }
    file->data = bytes + offset;
    return ok;
}

// Maps one file, recognises its format and appends it to the stream. files->file has room for it.
static inline bool tokens_append_file(TokenFiles* files, const char* path, Error* error) {
    TokenFile* file = &files->file[files->files++]; // on failure tokens_close() frees it
    TokenFormat format = TOKENS_TEXT;
    MappedFile index = {NULL, 0};
    const bool ok = token_file_map(file, &index, path, error) && token_file_recognise(file, &format, &index, error);
    file_unmap(&index);
    if (!ok) return false;
    const TokenFile* head = &files->file[0];
    if (file == head) files->format = format;
    if (format != files->format)
        return fail(error, "%s holds %s, but %s holds %s: files of one list must be of one kind", head->path,
                    head->count ? token_formats[files->format].name : "nothing", path,
                    file->count ? token_formats[format].name : "nothing");
    file->first = files->tokens;
    files->tokens += file->count;
    return true;
}

// Opens `count` files as one stream, in the order given. On failure *files is closed and *error names the file.
static inline bool tokens_open_list(TokenFiles* files, const char* const* paths, int count, Error* error) {
    memset(files, 0, sizeof *files);
    if (count < 1) return fail(error, "no file of tokens was named");
    files->file = (TokenFile*)checked_calloc((size_t)count, sizeof(TokenFile), "the list of token files");
    for (int i = 0; i < count; i++)
        if (!tokens_append_file(files, paths[i], error)) {
            tokens_close(files);
            return false;
        }
    if (files->tokens == 0) {
        fail(error, "%s: empty%s", paths[0], count > 1 ? ", and so are all others" : "");
        tokens_close(files);
        return false;
    }
    return true;
}

typedef struct {
    char** path;
    int count, room;
} PathList;

static inline void path_list_append(PathList* list, const char* path) {
    if (list->count == list->room)
        list->path = (char**)checked_grow(list->path, &list->room, 16, sizeof(char*), "a list of files");
    list->path[list->count++] = checked_strdup(path, "a list of files");
}

static inline void path_list_free(PathList* list) {
    for (int i = 0; i < list->count; i++) free(list->path[i]);
    free(list->path);
}

static inline int compare_paths(const void* a, const void* b) {
    return strcmp(*(char* const*)a, *(char* const*)b); // by bytes, not by locale: the same on every machine
}

// Appends the files of one pattern: a name, or a pattern that files match, in the order of their names' bytes: shard_10
// comes before shard_2 but after shard_02.
static inline bool path_list_append_glob(PathList* list, const char* pattern, Error* error) {
    if (access(pattern, F_OK) == 0) { // an existing name, even with a * in it
        path_list_append(list, pattern);
        return true;
    }
    glob_t found;
    errno = 0;
    const int status = glob(pattern, GLOB_NOSORT | GLOB_ERR, NULL, &found), reason = errno;
    const size_t matches = status == 0 ? found.gl_pathc : 0;
    if (matches) qsort(found.gl_pathv, matches, sizeof(char*), compare_paths);
    for (size_t i = 0; i < matches; i++) path_list_append(list, found.gl_pathv[i]);
    globfree(&found);
    if (status == GLOB_NOMATCH || (status == GLOB_ABORTED && reason == ENOENT))
        return fail(error, "no file is named \"%s\", nor matches it as a pattern", pattern);
    return status == 0 || fail(error, "\"%s\": cannot read a directory on the way: %s", pattern, strerror(reason));
}

// Appends the files that a comma-separated list of names and glob(7) patterns stands for: those of each pattern sorted,
// the patterns in order. A file that is named twice is appended twice.
static inline bool path_list_append_names(PathList* names, const char* globs, Error* error) {
    for (const char *p = globs, *comma;; p = comma + 1) {
        comma = strchrnul(p, ',');
        char* pattern = checked_strndup(p, (size_t)(comma - p), "a list of files");
        const bool ok = *pattern ? path_list_append_glob(names, pattern, error)
                                 : fail(error, "\"%s\": an empty name in the list of files", globs);
        free(pattern);
        if (!ok || !*comma) return ok;
    }
}

// Opens the files of such a list as one stream, "shards/train_*.bin,more". On failure *files is closed and *error names
// the pattern or file.
static inline bool tokens_open(TokenFiles* files, const char* globs, Error* error) {
    PathList list = {NULL, 0, 0};
    memset(files, 0, sizeof *files);
    const bool ok = path_list_append_names(&list, globs, error) &&
                    tokens_open_list(files, (const char* const*)list.path, list.count, error);
    path_list_free(&list);
    return ok;
}

// Describes the stream in a line: "a.bin to c.bin (3 files): uint16 tokens (llm.c shard), 300 tokens".
static inline void tokens_describe(char* text, size_t size, const TokenFiles* files) {
    const char *first = files->file[0].path, *last = files->file[files->files - 1].path;
    const char* name = token_formats[files->format].name;
    char range[64] = "";
    if (files->files > 1) snprintf(range, sizeof range, " (%d files)", files->files);
    snprintf(text, size, "%s%s%s%s: %s, %lld tokens", first, files->files > 1 ? " to " : "",
             files->files > 1 ? last : "", range, name, (long long)files->tokens);
}

// A hash of the format, the sizes of the files, and 64 pieces of 4 KB of each, so that it is fast for files of
// gigabytes.
static inline uint64_t tokens_checksum(const TokenFiles* files) {
    enum { PIECES = 64, PIECE = 4096 };
    uint64_t h = FNV_OFFSET_BASIS;
    for (int i = 0; i < files->files; i++) {
        const TokenFile* file = &files->file[i];
        h = hash_value(h, (uint64_t)file->count);
        const size_t size = file->map.size, step = size / PIECES + 1;
        const size_t piece = (size_t)min_i64((int64_t)step, PIECE);
        for (size_t at = 0; at < size; at += step)
            h = hash_append(h, file->map.data + at, at + piece < size ? piece : size - at);
    }
    return hash_value(h, (uint64_t)files->format);
}

// The file that holds token `position` of the stream: the last one that does not begin after it.
static inline const TokenFile* tokens_find(const TokenFiles* files, int64_t position) {
    int low = 0, high = files->files; // file[low].first <= position < file[high].first
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (files->file[middle].first <= position)
            low = middle;
        else
            high = middle;
    }
    return &files->file[low];
}

// Number i of a file as a token: a negative number becomes one above 2^31, which no vocabulary has.
static inline uint32_t token_at(const unsigned char* data, TokenType type, int64_t i) {
    switch (type) {
    case TOKEN_UINT8: return data[i];
    case TOKEN_UINT16: return ((const uint16_t*)(const void*)data)[i];
    default: return ((const uint32_t*)(const void*)data)[i];
    }
}

static inline uint32_t tokens_widen_type(int32_t* RESTRICT out, const unsigned char* RESTRICT data, TokenType type,
                                         int64_t n) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t token = token_at(data, type, i);
        out[i] = (int32_t)token;
        largest = token > largest ? token : largest;
    }
    return largest;
}

// Converts n tokens to int32 and returns the largest. Each case is a vector loop of its own.
static inline uint32_t tokens_widen(int32_t* out, const unsigned char* data, TokenType type, int64_t n) {
    switch (type) {
    case TOKEN_UINT8: return tokens_widen_type(out, data, TOKEN_UINT8, n);
    case TOKEN_UINT16: return tokens_widen_type(out, data, TOKEN_UINT16, n);
    default: return tokens_widen_type(out, data, TOKEN_UINT32, n);
    }
}

// Fails with the first of n tokens, from token `begin` of the file on, that is not below vocab.
static inline bool fail_vocab(const TokenFile* file, TokenFormat format, int64_t begin, int64_t n, int vocab,
                              Error* error) {
    const TokenFormatFacts* facts = &token_formats[format];
    int64_t i = begin;
    while (i < begin + n && token_at(file->data, file->type, i) < (uint32_t)vocab) i++;
    const long long token = token_at(file->data, file->type, i);
    if (facts->vocab > vocab)
        return fail(error, "%s: token %lld is %lld, the model has a vocabulary of %d: %s need --vocab %d%s", file->path,
                    (long long)i, token, vocab, facts->name, facts->vocab, facts->condition);
    return fail(error, "%s: token %lld is %lld, the model has a vocabulary of %d: use the --vocab of its tokenizer",
                file->path, (long long)i, token, vocab);
}

// Reads tokens [begin, begin + n) of the stream, perhaps from several files, to out (n). 0 <= begin, begin + n <=
// tokens. False, *error filled, if a token is not below vocab.
static inline bool tokens_read(int32_t* out, const TokenFiles* files, int64_t begin, int64_t n, int vocab,
                               Error* error) {
    for (const TokenFile* file = tokens_find(files, begin); n > 0; file++) {
        int64_t inside = begin - file->first, piece = min_i64(n, file->count - inside);
        const unsigned char* data = file->data + inside * token_type_bytes[file->type];
        uint32_t largest = tokens_widen(out, data, file->type, piece);
        if (piece > 0 && largest >= (uint32_t)vocab)
            return fail_vocab(file, files->format, inside, piece, vocab, error);
        out += piece;
        begin += piece;
        n -= piece;
    }
    return true;
}

// Whether two streams may have tokens of one vocabulary; if not, *error says why. bytes: the run has no vocabulary, so
// a text's tokens are bytes; else texts are tokenized with the other stream's. A format that names no vocabulary agrees
// with all.
static inline bool streams_agree(const TokenFiles* a, const TokenFiles* b, bool bytes, Error* error) {
    const TokenFormatFacts *of_a = &token_formats[a->format], *of_b = &token_formats[b->format];
    const bool text_a = format_is_text(a->format), text_b = format_is_text(b->format), text = text_a || text_b;
    if (text ? !bytes || text_a == text_b : of_a->vocab == of_b->vocab || !of_a->vocab || !of_b->vocab) return true;
    return fail(error, "%s holds %s, but %s holds %s: their tokens do not mean the same%s", a->file[0].path, of_a->name,
                b->file[0].path, of_b->name, text ? "; --tokenizer gives the text the vocabulary of the tokens" : "");
}
