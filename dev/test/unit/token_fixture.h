/*
token_fixture.h: what test_token_files and test_dataloader share: a folder of their own, which they work in, files of
tokens of every format, and a check that lists of files are refused.
*/
#pragma once

#include "../../../dataloader.h"
#include "test.h"

enum { PATH_BYTES = 64 };

static const int64_t width_of[TOKENS_JSONL] = {1, 2, 4, 4}; // bytes
static const int32_t magic_of[TOKENS_JSONL] = {0, 20240520, 20240801}, version_of[TOKENS_JSONL] = {0, 1, 7};

// A file of this format with these tokens; a shard's header says `count_in_header` tokens and `version`.
static inline const char* write_tokens_with_header(const char* name, TokenFormat format, const uint32_t* tokens,
                                                   int64_t n, int32_t magic, int32_t version, int32_t count_in_header) {
    const char* path = name;
    FILE* f = fopen(path, "wb");
    if (!f) die("cannot write %s", path);
    int32_t header[256] = {magic, version, count_in_header};
    if (magic && fwrite(header, sizeof header, 1, f) != 1) die("cannot write %s", path);
    for (int64_t i = 0; i < n; i++) // little-endian: the low bytes come first
        if (fwrite(&tokens[i], (size_t)width_of[format], 1, f) != 1) die("cannot write %s", path);
    if (fclose(f) != 0) die("cannot write %s", path);
    return path;
}

// Bytes of a file, put together; the caller frees them.
typedef struct {
    unsigned char* bytes;
    size_t size;
} IndexBytes;

static inline void put(IndexBytes* to, int64_t value, int width) { // little-endian
    for (int i = 0; i < width; i++) to->bytes[to->size++] = (unsigned char)((uint64_t)value >> 8 * i);
}

// Of S sequences, of which documents end behind `ends` (D of them).
static inline IndexBytes index_bytes(int code, int width, const int32_t* sizes, int64_t S, const int64_t* ends,
                                     int64_t D) {
    IndexBytes index = {(unsigned char*)checked_calloc((size_t)(64 + 13 * S + 8 * D), 1, "an index"), 0};
    int64_t begin = 0;
    memcpy(index.bytes, "MMIDIDX", 7);
    index.size = 9;
    put(&index, 1, 8);
    put(&index, code, 1);
    put(&index, S, 8);
    put(&index, D + 1, 8);
    for (int64_t i = 0; i < S; i++) put(&index, sizes[i], 4);
    for (int64_t i = 0; i < S; begin += sizes[i++] * width) put(&index, begin, 8);
    put(&index, 0, 8);
    for (int64_t d = 0; d < D; d++) put(&index, ends[d], 8);
    return index;
}

// NAME.bin and NAME.idx with these tokens in sequences of up to 7 tokens, some of them empty, three a document.
static inline void write_megatron(const char* name, int code, int width, const int64_t* tokens, int64_t n) {
    char file[256];
    IndexBytes bin = {(unsigned char*)checked_calloc((size_t)(n * width + 1), 1, "tokens"), 0};
    int32_t* sizes = (int32_t*)checked_calloc((size_t)n + 1, sizeof(int32_t), "sizes");
    int64_t* ends = (int64_t*)checked_calloc((size_t)n + 1, sizeof(int64_t), "ends");
    int64_t S = 0, D = 0, left = n;
    for (int64_t i = 0; i < n; i++) put(&bin, tokens[i], width);
    for (; left > 0; left -= sizes[S++]) { // never two empty ones in a row
        sizes[S] = (int32_t)min_i64(left, S % 5 == 4 ? 0 : 1 + philox(4, 1, (uint64_t)S).word[0] % 7);
        if (S % 3 == 2) ends[D++] = S + 1;
    }
    if (D == 0 || ends[D - 1] < S) ends[D++] = S;
    IndexBytes index = index_bytes(code, width, sizes, S, ends, D);
    snprintf(file, sizeof file, "%s.bin", name);
    write_bytes(file, bin.bytes, bin.size);
    snprintf(file, sizeof file, "%s.idx", name);
    write_bytes(file, index.bytes, index.size);
    free(bin.bytes), free(index.bytes), free(sizes), free(ends);
}

static inline const char* write_tokens(const char* name, TokenFormat format, const uint32_t* tokens, int64_t n) {
    static char file[PATH_BYTES];
    if (format != TOKENS_MEGATRON)
        return write_tokens_with_header(name, format, tokens, n, magic_of[format], version_of[format], (int32_t)n);
    char stem[48];
    snprintf(stem, sizeof stem, "%.*s", (int)(strlen(name) - (strstr(name, ".bin") ? 4 : 0)), name);
    int64_t* wide = (int64_t*)checked_calloc((size_t)n + 1, sizeof(int64_t), "tokens");
    for (int64_t i = 0; i < n; i++) wide[i] = tokens[i];
    write_megatron(stem, 4, 4, wide, n);
    free(wide);
    snprintf(file, sizeof file, "%s.bin", stem);
    return file;
}

// Tokens that differ from their neighbours, and from text: some below 256, some above.
static inline uint32_t some_token(uint64_t i, uint32_t vocab) { return philox(99, 0, i).word[0] % vocab; }

static inline void some_tokens(uint32_t* tokens, int n, uint32_t vocab) {
    for (int i = 0; i < n; i++) tokens[i] = some_token((uint64_t)i, vocab);
}

// True while a file with this in its name is mapped (false where there is no /proc).
static inline bool is_mapped(const char* name) {
    FILE* maps = fopen("/proc/self/maps", "r");
    char line[1024];
    bool found = false;
    while (maps && fgets(line, sizeof line, maps)) found = found || strstr(line, name);
    if (maps) fclose(maps);
    return found;
}

static inline TokenFiles open_or_die(const char* globs) {
    TokenFiles files;
    Error error;
    if (!tokens_open(&files, globs, &error)) die("%s", error.text);
    return files;
}

// Lists of files, separated by |, that are refused with an error of one line; nothing stays open.
static inline void check_refused(const char* lists) {
    for (const char* at = lists; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        char list[128];
        TokenFiles files;
        Error error = {""};
        snprintf(list, sizeof list, "%.*s", (int)strcspn(at, "|"), at);
        const bool refused = !tokens_open(&files, list, &error);
        check(refused && error.text[0] && !strchr(error.text, '\n') && files.file == NULL && files.files == 0,
              "refused: %s", refused ? error.text : list);
        tokens_close(&files);
    }
}
