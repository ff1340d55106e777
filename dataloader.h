/*
dataloader.h: from files of tokens to the sequences a model is trained on.

    TokenFiles  files, memory-mapped and laid end to end: one long stream of tokens.
    DataLoader  a range of that stream, cut into sequences of T tokens, in an order that is a formula.

Formats. The content of a file decides, never its name. In this order:
    1. llm.c shard. The file begins with 256 int32: a magic number, a version, the number of tokens. GPT-2: magic
       20240520, version 1, tokens are uint16. Llama-3: magic 20240801, version 7, uint32. The count has to agree with
       the size of the file.
    2. Text. In the first, middle and last 64 KB there is no NUL byte, and at most one byte in 256 is a control
       character that text does not use. Each byte is a token: a vocabulary of 256 whatever the language or encoding.
    3. Something else that is well known (gzip, zip, Parquet, NumPy, llm.c's weights, ...): refused by its name.
    4. Raw uint16 without a header, like nanoGPT's train.bin: any other file of an even size. (It has NUL bytes, since
       the commonest tokens of a vocabulary, punctuation and single letters, are below 256 and their high byte is 0.)
    5. Anything else is refused.
All numbers are little-endian. All files of a stream have the same format. An empty file is text without characters:
no harm among other text, refused beside shards (there it is a broken download) and refused alone.

The position is one number: n, the sequences consumed since the run began. There is no state to save but n, and none to
pass around: any rank computes sequence n without having seen the ones before it. With count sequences in the range,

    epoch = n / count        k = permutation(seed, epoch)(n mod count)        tokens [k T, k T + T] of the range:
                                                                             T inputs, and the T targets one later

The permutation may not cost memory (FineWeb has 10^8 sequences) nor time to set up. So it is a cipher on the numbers
[0, count): a block cipher with a secret key is, after all, a permutation picked by the key.
    Feistel network   Split x in a left and a right half of h bits and repeat: (L, R) <- (R, L xor F(R)). A round is
                      undone by (L, R) <- (R xor F(L), L), whatever F is, so rounds permute the 2^2h numbers. Four
                      rounds of a random F look random to any observer who asks for fewer than about 2^(h/2) images
                      (Luby and Rackoff 1988). That says little when h is small, so we counted: over 100,000 epochs 8
                      rounds spread pairs of neighbours unevenly for 5 and 6 sequences, 10 or more do not. Here are
                      twelve. F is Philox, keyed by seed and epoch.
    cycle walking     2^2h is the first such power that is not below count. A result outside [0, count) is encrypted
                      again until it falls inside (Black and Rogaway 2002). It must, since the cycle it walks on leads
                      back to the start, which is inside; and two starts cannot meet, since a permutation's cycles are
                      disjoint. As 2^2h < 4 count, fewer than 4 encryptions are expected.

A file must not shrink while it is mapped: that kills the process with SIGBUS, as in every program that maps files.
*/
#ifndef DATALOADER_H
#define DATALOADER_H

#include "base.h"
#include <glob.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the token files are little-endian, and are used as they lie in memory"
#endif

// ----------------------------------------------------------------------------------------------------------------
// What a file holds

typedef enum { TOKENS_TEXT, TOKENS_GPT2_SHARD, TOKENS_LLAMA3_SHARD, TOKENS_RAW_UINT16, TOKEN_FORMATS } TokenFormat;

typedef struct {
    const char* name;
    int width; // bytes per token
    int vocab; // the vocabulary it was made with, 0 where the file cannot tell
    int magic, version;
} TokenFormatFacts;

static const TokenFormatFacts token_formats[TOKEN_FORMATS] = {
    {"text as bytes", 1, 256, 0, 0},
    {"GPT-2 tokens (llm.c shard)", 2, 50257, 20240520, 1},
    {"Llama-3 tokens (llm.c shard)", 4, 128256, 20240801, 7},
    {"raw uint16 tokens", 2, 0, 0, 0},
};

static const size_t shard_header_bytes = 256 * 4, text_window_bytes = 64 * 1024, text_bytes_per_control = 256;

// Binary files that people pass by mistake. Without this, half of them would be read as uint16.
typedef struct {
    const char* magic;
    int bytes;
    const char* what;
} ForeignFormat;

static const ForeignFormat foreign_formats[] = {
    {"\xc6\xd7\x34\x01", 4, "weights of llm.c, not tokens"},
    {"\xc8\xd7\x34\x01", 4, "a tokenizer of llm.c, not tokens"},
    {"\x8a\xd8\x34\x01", 4, "a multiple-choice evaluation of llm.c, not a stream of tokens"},
    {"\x8f\xd8\x34\x01", 4, "a trainer state of llm.c, not tokens"},
    {"MMIDIDX\0", 8, "the index of a Megatron data set; name the .bin beside it, if its tokens are uint16"},
    {"\x1f\x8b\x08", 3, "compressed with gzip; unpack it first"},
    {"BZh", 3, "compressed with bzip2; unpack it first"},
    {"\xfd"
     "7zXZ\0",
     6, "compressed with xz; unpack it first"},
    {"\x28\xb5\x2f\xfd", 4, "compressed with zstd; unpack it first"},
    {"PK\x03\x04", 4, "a zip archive; unpack it first"},
    {"PAR1", 4, "a Parquet table; tokenize it first"},
    {"ARROW1", 6, "an Arrow table; tokenize it first"},
    {"\x93NUMPY", 6, "a NumPy array; write it as uint16 with .tofile() first"},
    {"\xff\xfe", 2, "text in UTF-16; convert it to UTF-8 first"},
};

// True where this stretch of bytes could be text in any ASCII-based encoding (UTF-8, Latin-1, KOI8, Shift-JIS, ...).
static inline bool bytes_look_like_text(const unsigned char* data, size_t size) {
    size_t control = 0;
    for (size_t i = 0; i < size; i++) {
        unsigned char c = data[i];
        if (c == 0) return false;
        bool used_by_text = c >= 32 || (c >= '\b' && c <= '\r') || c == 27; // 27 = escape, as in logs of terminals
        control += !used_by_text || c == 127;
    }
    return control <= size / text_bytes_per_control;
}

static inline bool file_looks_like_text(const unsigned char* data, size_t size) {
    size_t window = size < text_window_bytes ? size : text_window_bytes;
    return bytes_look_like_text(data, window) && bytes_look_like_text(data + (size - window) / 2, window) &&
           bytes_look_like_text(data + (size - window), window);
}

static inline int32_t shard_header_word(const unsigned char* data, int word) {
    int32_t value;
    memcpy(&value, data + 4 * word, sizeof value);
    return value;
}

// A file that begins with the magic number of a shard: where its tokens are, or why they cannot be.
static inline bool shard_recognise(int64_t* offset, int64_t* count, TokenFormat format, const unsigned char* data,
                                   size_t size, const char* path, Error* error) {
    const TokenFormatFacts* facts = &token_formats[format];
    if (size < shard_header_bytes)
        return fail(error, "%s: a shard that ends within its header, %zu bytes of %zu; download or make it again", path,
                    size, shard_header_bytes);
    int32_t version = shard_header_word(data, 1), tokens = shard_header_word(data, 2);
    if (version != facts->version)
        return fail(error, "%s: %s of version %d, this program reads version %d; make it again with the current llm.c",
                    path, facts->name, version, facts->version);
    if (tokens <= 0) return fail(error, "%s: the header says %d tokens; download or make it again", path, tokens);
    int64_t expected = (int64_t)shard_header_bytes + (int64_t)tokens * facts->width;
    if ((int64_t)size != expected)
        return fail(error,
                    "%s: the header says %d tokens, which makes %lld bytes, but the file has %lld; "
                    "download or make it again",
                    path, tokens, (long long)expected, (long long)size);
    *offset = (int64_t)shard_header_bytes;
    *count = tokens;
    return true;
}

// The format of a file with these bytes, by the rules at the top: its tokens are `count` numbers from byte `offset` on.
// False, and the reason in *error, for what is damaged or nothing we know.
static inline bool tokens_recognise(TokenFormat* format, int64_t* offset, int64_t* count, const unsigned char* data,
                                    size_t size, const char* path, Error* error) {
    for (int f = 0; f < TOKEN_FORMATS; f++)
        if (token_formats[f].magic && size >= 4 && shard_header_word(data, 0) == token_formats[f].magic) {
            *format = (TokenFormat)f;
            return shard_recognise(offset, count, *format, data, size, path, error);
        }
    *offset = 0;
    if (file_looks_like_text(data, size)) {
        *format = TOKENS_TEXT;
        *count = (int64_t)size;
        return true;
    }
    for (size_t i = 0; i < sizeof foreign_formats / sizeof foreign_formats[0]; i++) {
        const ForeignFormat* foreign = &foreign_formats[i];
        if (size >= (size_t)foreign->bytes && memcmp(data, foreign->magic, (size_t)foreign->bytes) == 0)
            return fail(error, "%s: %s", path, foreign->what);
    }
    if (size % 2 != 0)
        return fail(error,
                    "%s: neither an llm.c shard nor text, and its odd size of %lld bytes cannot be uint16 tokens; "
                    "name a file of tokens or text",
                    path, (long long)size);
    *format = TOKENS_RAW_UINT16;
    *count = (int64_t)(size / 2);
    return true;
}

// ----------------------------------------------------------------------------------------------------------------
// Files as one stream

typedef struct {
    char* path;
    MappedFile map;
    const unsigned char* data; // its first token
    int64_t first, count;      // it holds the tokens [first, first + count) of the stream
} TokenFile;

typedef struct {
    TokenFile* file; // in the order of the stream
    int files;
    TokenFormat format;
    int64_t tokens; // in all files together
} TokenFiles;

// Unmaps and frees everything; *files may be opened again. Nothing happens to one that is all zeros.
static inline void tokens_close(TokenFiles* files) {
    for (int i = 0; i < files->files; i++) {
        file_unmap(&files->file[i].map);
        free(files->file[i].path);
    }
    free(files->file);
    memset(files, 0, sizeof *files);
}

// Maps one file, tells its format and appends it to the stream. files->file has room for it.
// No madvise: a shuffled read then brings in 128 KB around its sequence, which soon has all of the file in memory.
// Measured, 20,000 shuffled sequences of 1,024 tokens from a cold file of 600 MB: 19 us each; with MADV_RANDOM, 72 us.
static inline bool tokens_append_file(TokenFiles* files, const char* path, Error* error) {
    struct stat st; // before opening: to open a FIFO is to wait for its writer
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return fail(error, "%s: %s", path, S_ISDIR(st.st_mode) ? "a directory; name the files in it" : "not a file");
    TokenFile* file = &files->file[files->files];
    if (!file_map(&file->map, path, error)) return false;
    file->path = strdup(path);
    if (!file->path) die("out of memory for the name %s", path);
    files->files++; // from here on tokens_close() takes care of it

    TokenFormat format = TOKENS_TEXT;
    int64_t offset = 0;
    const unsigned char* bytes = file->map.data ? file->map.data : (const unsigned char*)""; // an empty file's is NULL
    if (!tokens_recognise(&format, &offset, &file->count, bytes, file->map.size, path, error)) return false;
    const TokenFile* head = &files->file[0];
    if (file == head) files->format = format;
    if (format != files->format)
        return fail(error, "%s holds %s, but %s holds %s: the files of one run must be of one kind", head->path,
                    head->count ? token_formats[files->format].name : "nothing", path,
                    file->count ? token_formats[format].name : "nothing");
    file->data = bytes + offset;
    file->first = files->tokens;
    files->tokens += file->count;
    return true;
}

// Opens `count` files as one stream, in the order given. On failure *files is closed again and *error names the file.
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
    int count;
} PathList;

static inline void path_list_append(PathList* list, const char* path) {
    char** longer = (char**)realloc(list->path, ((size_t)list->count + 1) * sizeof(char*));
    char* copy = strdup(path);
    if (!longer || !copy) die("out of memory for the list of token files");
    list->path = longer;
    list->path[list->count++] = copy;
}

static inline void path_list_free(PathList* list) {
    for (int i = 0; i < list->count; i++) free(list->path[i]);
    free(list->path);
}

static inline int compare_paths(const void* a, const void* b) {
    return strcmp(*(char* const*)a, *(char* const*)b); // bytes, not the locale: the same order on every machine
}

// The files that one pattern names, in the order of their bytes, so shard_10 comes before shard_2 but after shard_02.
static inline bool path_list_append_glob(PathList* list, const char* pattern, Error* error) {
    if (access(pattern, F_OK) == 0) { // a name as it stands, even one with a * in it
        path_list_append(list, pattern);
        return true;
    }
    glob_t found;
    errno = 0;
    int status = glob(pattern, GLOB_NOSORT | GLOB_ERR, NULL, &found);
    if (status == 0) {
        qsort(found.gl_pathv, found.gl_pathc, sizeof(char*), compare_paths);
        for (size_t i = 0; i < found.gl_pathc; i++) path_list_append(list, found.gl_pathv[i]);
    }
    int reason = errno;
    globfree(&found);
    if (status == GLOB_NOMATCH || (status == GLOB_ABORTED && reason == ENOENT))
        return fail(error, "no file is named \"%s\", nor matches it as a pattern", pattern);
    if (status != 0) return fail(error, "\"%s\": cannot read a directory on the way: %s", pattern, strerror(reason));
    return true;
}

// Opens all files named by `globs`: names or glob(7) patterns between commas, "shards/train_*.bin,more.bin". The files
// of each pattern are sorted, the patterns kept in order; a file named twice is there twice. On failure *files is
// closed and *error names the pattern or file.
static inline bool tokens_open(TokenFiles* files, const char* globs, Error* error) {
    memset(files, 0, sizeof *files);
    PathList list = {NULL, 0};
    bool ok = true;
    for (const char *p = globs, *comma; ok; p = comma + 1) {
        comma = strchrnul(p, ',');
        char* pattern = strndup(p, (size_t)(comma - p));
        if (!pattern) die("out of memory for a file pattern");
        ok = *pattern ? path_list_append_glob(&list, pattern, error)
                      : fail(error, "\"%s\": an empty name in the list of files", globs);
        free(pattern);
        if (!*comma) break;
    }
    ok = ok && tokens_open_list(files, (const char* const*)list.path, list.count, error);
    path_list_free(&list);
    return ok;
}

// One line for people, what was recognised: "a.bin to c.bin (3 files): GPT-2 tokens (llm.c shard), 300 tokens".
static inline void tokens_describe(char* text, size_t size, const TokenFiles* files) {
    const char *first = files->file[0].path, *last = files->file[files->files - 1].path;
    const char* name = token_formats[files->format].name;
    if (files->files == 1)
        snprintf(text, size, "%s: %s, %lld tokens", first, name, (long long)files->tokens);
    else
        snprintf(text, size, "%s to %s (%d files): %s, %lld tokens", first, last, files->files, name,
                 (long long)files->tokens);
}

// A number that differs where files differ: of the kind and size of each file, and of 64 pieces of its tokens (4 KB each),
// so that it takes no time on files of gigabytes.
static inline uint64_t tokens_checksum(const TokenFiles* files) {
    enum { PIECES = 64, PIECE = 4096 };
    uint64_t h = 14695981039346656037ull;
    for (int i = 0; i < files->files; i++) {
        const TokenFile* f = &files->file[i];
        h = (h ^ (uint64_t)f->count) * 1099511628211ull;
        const size_t size = f->map.size, step = size / PIECES + 1;
        for (size_t at = 0; at < size; at += step) {
            const size_t end = at + PIECE < size ? at + PIECE : size;
            for (size_t b = at; b < end && b < at + step; b++) h = (h ^ f->map.data[b]) * 1099511628211ull;
        }
    }
    return (h ^ (uint64_t)files->format) * 1099511628211ull;
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

static inline uint32_t token_at(const unsigned char* data, int width, int64_t i) {
    if (width == 1) return data[i];
    if (width == 2) return ((const uint16_t*)(const void*)data)[i];
    return ((const uint32_t*)(const void*)data)[i];
}

// Widens n tokens to int32 and returns the largest. `width` is outside the loop, so that the loop is three vector loops.
static inline uint32_t tokens_widen(int32_t* RESTRICT out, const unsigned char* RESTRICT data, int width, int64_t n) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t token = token_at(data, width, i);
        out[i] = (int32_t)token;
        largest = token > largest ? token : largest;
    }
    return largest;
}

// Names the first of n tokens, from token `begin` of the file on, that is not below vocab.
static inline bool fail_vocab(const TokenFile* file, TokenFormat format, int64_t begin, int64_t n, int vocab,
                              Error* error) {
    const TokenFormatFacts* facts = &token_formats[format];
    int64_t i = begin;
    while (i < begin + n && token_at(file->data, facts->width, i) < (uint32_t)vocab) i++;
    uint32_t token = token_at(file->data, facts->width, i);
    if (facts->vocab > vocab)
        return fail(error, "%s: token %lld is %u, the model has a vocabulary of %d: %s need --vocab %d", file->path,
                    (long long)i, token, vocab, facts->name, facts->vocab);
    return fail(error,
                "%s: token %lld is %u, the model has a vocabulary of %d: "
                "use the --vocab that the file was made for, if it is %s at all",
                file->path, (long long)i, token, vocab, facts->name);
}

// Tokens [begin, begin + n) of the stream to out (n); files are crossed as needed. 0 <= begin, begin + n <= tokens.
// False, *error filled, where a token is not below vocab.
static inline bool tokens_read(int32_t* out, const TokenFiles* files, int64_t begin, int64_t n, int vocab,
                               Error* error) {
    int width = token_formats[files->format].width;
    for (const TokenFile* file = tokens_find(files, begin); n > 0; file++) {
        int64_t inside = begin - file->first, piece = min_i64(n, file->count - inside);
        uint32_t largest = tokens_widen(out, file->data + inside * width, width, piece);
        if (piece > 0 && largest >= (uint32_t)vocab)
            return fail_vocab(file, files->format, inside, piece, vocab, error);
        out += piece;
        begin += piece;
        n -= piece;
    }
    return true;
}

// ----------------------------------------------------------------------------------------------------------------
// The order of the sequences

enum { FEISTEL_ROUNDS = 12 };

// Where the permutation of [0, count) with this key takes x; x < count.
static inline uint64_t permute(uint64_t x, uint64_t count, uint64_t key) {
    int half = 1; // bits
    while (half < 32 && (count - 1) >> (2 * half)) half++;
    uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
            uint64_t next = left ^ (philox(key, round, right).word[0] & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= count);
    return x;
}

// The key of an epoch's permutation.
static inline uint64_t epoch_key(uint64_t seed, uint64_t epoch) {
    Random4 r = philox(seed, hash_string("order of the sequences"), epoch);
    return (uint64_t)r.word[1] << 32 | r.word[0];
}

// ----------------------------------------------------------------------------------------------------------------
// The loader

typedef struct {
    const TokenFiles* files;
    int64_t first, end; // the range of the stream that it serves: [first, end)
    int64_t count;      // sequences in an epoch
    int T, vocab;
    uint64_t seed;
    bool shuffle; // false: the order of the files
} DataLoader;

// Sequence n of the run, n = 0, 1, ... without end: inputs (T) and targets (T), the targets one token later.
// Reads no state and writes none, so any thread or rank may ask for any n. False, *error filled, if a token does not
// fit the vocabulary; inputs and targets are then undefined.
static inline bool dataloader_sequence(int32_t* inputs, int32_t* targets, const DataLoader* loader, uint64_t n,
                                       Error* error) {
    uint64_t count = (uint64_t)loader->count, k = n % count;
    if (loader->shuffle) k = permute(k, count, epoch_key(loader->seed, n / count));
    int64_t T = loader->T, begin = loader->first + (int64_t)k * T;
    if (!tokens_read(inputs, loader->files, begin, T, loader->vocab, error)) return false;
    if (!tokens_read(targets + T - 1, loader->files, begin + T, 1, loader->vocab, error)) return false;
    memcpy(targets, inputs + 1, (size_t)(T - 1) * sizeof *targets);
    return true;
}

// A loader of sequences of T tokens from tokens [first, end) of the files, which stay open as long as it is used. Say
// [0, 95 %) to train and [95 %, all) to validate. The order is fixed by seed; without shuffle it is the files' own.
// vocab is the model's: a token that is not below it is an error, here if it is near the start of the range, else when
// its sequence is asked for.
// False, *error filled, if the range is not in the files or has fewer than T + 1 tokens.
static inline bool dataloader_init(DataLoader* loader, const TokenFiles* files, int64_t first, int64_t end, int T,
                                   int vocab, uint64_t seed, bool shuffle, Error* error) {
    memset(loader, 0, sizeof *loader);
    const char* name = files->file[0].path;
    if (first < 0 || end > files->tokens || first > end)
        return fail(error, "%s: asked for tokens %lld to %lld of %lld", name, (long long)first, (long long)end,
                    (long long)files->tokens);
    if (T < 1 || vocab < 1) return fail(error, "%s: sequences of %d tokens, vocabulary of %d", name, T, vocab);
    if (end - first < (int64_t)T + 1)
        return fail(error,
                    "%s%s: %lld tokens, but one sequence with its targets takes %lld; use more data or a smaller --seq",
                    name, files->files > 1 ? " and the other files" : "", (long long)(end - first), (long long)T + 1);
    loader->files = files;
    loader->first = first;
    loader->end = end;
    loader->count = (end - first - 1) / T;
    loader->T = T;
    loader->vocab = vocab;
    loader->seed = seed;
    loader->shuffle = shuffle;

    int32_t tokens[4096]; // the wrong vocabulary shows at once; better now than at the first validation
    return tokens_read(tokens, files, first, min_i64(4096, end - first), vocab, error);
}

#endif
