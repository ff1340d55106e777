/*
dataloader/token_files.h: files of tokens, memory-mapped and laid end to end: one long stream.

Formats. The content of a file decides; its name only says whether a text is JSON lines. In this order:
    1. Megatron's data set: two files, NAME.bin with the tokens and NAME.idx with what they are. Either may be named,
       or NAME alone. The index, in the layout of Megatron-LM's indexed_dataset.py (version 1):
           9 bytes   "MMIDIDX", 0, 0
           uint64    version 1
           uint8     type of the tokens: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16 (6, 7: floating point)
           uint64    S, sequences (sentences or whole documents, as the preprocessing cut them)
           uint64    D, one more than documents
           int32     size of each sequence, in tokens             (S)
           int64     where each begins in NAME.bin, in bytes      (S)
           int64     0, then where each document ends: before which sequence (D)
       All of it is checked: sizes add up to where the sequences begin and to the size of NAME.bin, documents go from
       the first sequence to the last. (A further byte a sequence says what it holds where that is not only text:
       refused.)
    2. llm.c shard. The file begins with 256 int32: a magic number, a version, the number of tokens. Magic 20240520,
       version 1: tokens are uint16, GPT-2's unless a vocabulary beside the shard says otherwise. Magic 20240801, version 7:
       uint32, Llama-3's likewise. The count has to agree with the size of the file.
    3. Text. In the first, middle and last 64 KB there is no NUL byte, and at most one byte in 256 is a control
       character that text does not use. Each byte is a token: a vocabulary of 256 whatever the language or encoding.
       In NAME.jsonl every line is a JSON object with a text, which dataloader/jsonl.h makes tokens of.
    4. Something else that is well known (gzip, zip, Parquet, ELF, llm.c's weights, ...): refused by its name.
    5. Raw uint16 without a header, like nanoGPT's train.bin: any other file of an even size. (It has NUL bytes, since
       the commonest tokens of a vocabulary, punctuation and single letters, are below 256 and their high byte is 0.)
       Not so integers of 32 or 64 bits, nor bytes without any order: refused by what the middle of the file shows.
    6. Anything else is refused.
A folder stands for the texts and the .bin files in it and below.
Documents. A stream is one after the other, and a run may want to know where each begins (--documents). In Megatron's data
sets the index says it. In text every file is a document, in JSON lines every line. Shards and raw tokens
have a token that stands before each
(end of text; where it stands behind each, as in nanoGPT's files, it is counted to the next one), and documents may go on
from one file to the next.

All numbers are little-endian. All files of a stream have the same format. An empty file is text without characters:
no harm among other text, refused beside shards (there it is a broken download) and refused alone.

A file must not shrink while it is mapped: that kills the process with SIGBUS, as in every program that maps files.
*/
#ifndef TOKEN_FILES_H
#define TOKEN_FILES_H

#include "../util/base.h"
#include <dirent.h>
#include <fnmatch.h>
#include <glob.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the token files are little-endian, and are used as they lie in memory"
#endif

// ----------------------------------------------------------------------------------------------------------------
// What a file holds

typedef enum {
    TOKENS_TEXT,
    TOKENS_GPT2_SHARD,
    TOKENS_LLAMA3_SHARD,
    TOKENS_RAW_UINT16,
    TOKENS_MEGATRON,
    TOKENS_JSONL,
    TOKEN_FORMATS
} TokenFormat;

// How a number is written. The codes are Megatron's, which has none for uint32, and two for floating point.
typedef enum {
    TOKEN_UINT8 = 1,
    TOKEN_INT8,
    TOKEN_INT16,
    TOKEN_INT32,
    TOKEN_INT64,
    TOKEN_FLOAT64,
    TOKEN_FLOAT32,
    TOKEN_UINT16,
    TOKEN_UINT32,
    TOKEN_TYPES
} TokenType;

typedef struct {
    const char* name;
    TokenType type;
    int vocab; // the vocabulary it was made with, or most likely was; 0 where the file cannot say
    int magic, version;
    int document;          // the token that stands before a document, -1 where none does or the file cannot tell
    const char* condition; // of the vocabulary
} TokenFormatFacts;

static const TokenFormatFacts token_formats[TOKEN_FORMATS] = {
    {"text as bytes", TOKEN_UINT8, 256, 0, 0, -1, ""},
    {"uint16 tokens (llm.c shard)", TOKEN_UINT16, 50257, 20240520, 1, 50256, ", if they are GPT-2's"},
    {"uint32 tokens (llm.c shard)", TOKEN_UINT32, 128256, 20240801, 7, 128000, ", if they are Llama-3's"},
    {"raw uint16 tokens", TOKEN_UINT16, 0, 0, 0, -1, ""},
    {"tokens of a Megatron data set", TOKEN_INT32, 0, 0, 0, -1, ""}, // the type: each file's index has its own
    {"JSON lines", TOKEN_UINT8, 0, 0, 0, -1, ""}, // bytes of JSON, until dataloader/jsonl.h has made tokens of them
};

static const int token_type_bytes[TOKEN_TYPES] = {0, 1, 1, 2, 4, 8, 8, 4, 2, 4};

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
    {"\x8a\xd8\x34\x01", 4, "a multiple-choice evaluation of llm.c, not a stream of tokens; it is for --evaluate"},
    {"\x8f\xd8\x34\x01", 4, "a trainer state of llm.c, not tokens"},
    {"TNTIDX\0\0", 8, "the index of an old Megatron or fairseq data set; preprocess it again with --dataset-impl mmap"},
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
    {"\x7f"
     "ELF",
     4, "a program or library (ELF), not text"},
    {"\x89PNG", 4, "a PNG picture, not text"},
    {"\xff\xd8\xff", 3, "a JPEG picture, not text"},
    {"%PDF", 4, "a PDF document; convert it to text first"},
    {"GGUF", 4, "weights in GGUF, not tokens"},
    {"SQLite format 3", 15, "an SQLite database; export its text first"},
};

// What a file with these bytes is, if it is one of them; else NULL.
static inline const char* foreign_format(const unsigned char* data, size_t size) {
    for (size_t i = 0; i < sizeof foreign_formats / sizeof foreign_formats[0]; i++) {
        const ForeignFormat* foreign = &foreign_formats[i];
        if (size >= (size_t)foreign->bytes && memcmp(data, foreign->magic, (size_t)foreign->bytes) == 0)
            return foreign->what;
    }
    return NULL;
}

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

static inline bool name_ends_with(const char* path, const char* end) {
    const size_t n = strlen(path), k = strlen(end);
    return n >= k && strcmp(path + n - k, end) == 0;
}

// Why the numbers of a file that would be raw uint16 are none, as its middle shows; NULL where they may be.
//     Wider integers    Every second number is next to nothing: the high half of a token. (Tokens of a tiny vocabulary are
//                       small in all places.)
//     No order at all   Compressed or encrypted bytes take all 256 values of a number's high half alike. Chi-square over them has
//                       the mean 255 and the deviation 22.6; of tokens of a text it is hundreds of times as much, and even of
//                       numbers drawn evenly below 50257 it is 880 for 2048 of them.
static inline const char* not_uint16_tokens(const unsigned char* data, size_t size) {
    enum { FEWEST_FOR_WIDTH = 32, FEWEST_FOR_ORDER = 2048, HIGH_HALF_MOST = 64, LOW_HALF_LEAST = 1024 };
    const size_t window = size < text_window_bytes ? size : text_window_bytes, numbers = window / 4 * 2;
    const unsigned char* middle = data + (size - window) / 8 * 4;
    int64_t count[256] = {0};
    int largest[2] = {0, 0};
    for (size_t i = 0; i < numbers; i++) {
        const int number = middle[2 * i] | middle[2 * i + 1] << 8;
        count[number >> 8]++;
        if (number > largest[i % 2]) largest[i % 2] = number;
    }
    const bool wider = largest[1] == 0 || (largest[1] < HIGH_HALF_MOST && largest[0] >= LOW_HALF_LEAST);
    if (numbers >= FEWEST_FOR_WIDTH && largest[0] > 0 && wider)
        return "integers of 32 or 64 bits, and tokens without a header are read as uint16; write them as uint16, put "
               "the .idx of a Megatron data set beside them, or make shards with build/tokenize";
    const double mean = (double)numbers / 256;
    double chi_square = 0;
    for (int i = 0; i < 256 && numbers > 0; i++) {
        chi_square += ((double)count[i] - mean) * ((double)count[i] - mean) / mean;
    }
    if (numbers >= FEWEST_FOR_ORDER && chi_square < 255 + 10 * 22.6)
        return "neither text nor tokens but bytes without any order, as in a compressed or encrypted file; name a file "
               "of "
               "tokens or text";
    return NULL;
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
    int64_t expected = (int64_t)shard_header_bytes + (int64_t)tokens * token_type_bytes[facts->type];
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
        *format = name_ends_with(path, ".jsonl") ? TOKENS_JSONL : TOKENS_TEXT;
        *count = (int64_t)size;
        return true;
    }
    if (foreign_format(data, size)) return fail(error, "%s: %s", path, foreign_format(data, size));
    if (size % 2 != 0)
        return fail(error,
                    "%s: neither an llm.c shard nor text, and its odd size of %lld bytes cannot be uint16 tokens; "
                    "name a file of tokens or text",
                    path, (long long)size);
    if (not_uint16_tokens(data, size)) return fail(error, "%s: %s", path, not_uint16_tokens(data, size));
    *format = TOKENS_RAW_UINT16;
    *count = (int64_t)(size / 2);
    return true;
}

// ----------------------------------------------------------------------------------------------------------------
// Megatron's index

static const char index_magic[] = "MMIDIDX\0"; // 9 bytes, with the NUL that C adds
static const int64_t index_header_bytes = 9 + 8 + 1 + 8 + 8;

// What an index says, found in a mapped file. The arrays lie at any address, so that they are read by index_size() and
// index_int64().
typedef struct {
    TokenType type;
    int64_t sequences, documents, tokens;
    const unsigned char *sizes, *begins, *ends; // (sequences), (sequences), (documents + 1)
} MegatronIndex;

static inline bool is_megatron_index(const unsigned char* data, size_t size) {
    return size >= sizeof index_magic && memcmp(data, index_magic, sizeof index_magic) == 0;
}

static inline int32_t index_size(const unsigned char* sizes, int64_t i) {
    int32_t value;
    memcpy(&value, sizes + 4 * i, sizeof value);
    return value;
}

static inline int64_t index_int64(const unsigned char* list, int64_t i) {
    int64_t value;
    memcpy(&value, list + 8 * i, sizeof value);
    return value;
}

// The header: the type of the tokens, and where the three lists are.
static inline bool index_read_header(MegatronIndex* index, const unsigned char* data, size_t size, const char* path,
                                     Error* error) {
    const int64_t bytes = (int64_t)size, version = bytes < index_header_bytes ? 0 : index_int64(data + 9, 0);
    if (bytes < index_header_bytes)
        return fail(error, "%s: an index that ends within its header, %lld bytes of %lld; copy or make it again", path,
                    (long long)bytes, (long long)index_header_bytes);
    if (version != 1)
        return fail(error, "%s: an index of version %lld, this program reads version 1", path, (long long)version);
    const int code = data[17];
    if (code == TOKEN_FLOAT64 || code == TOKEN_FLOAT32)
        return fail(error, "%s: its numbers are floating point (type %d), not tokens", path, code);
    if (code < TOKEN_UINT8 || code > TOKEN_UINT16)
        return fail(error, "%s: tokens of type %d, which Megatron does not have; copy or make it again", path, code);
    const int64_t S = index_int64(data + 18, 0), D = index_int64(data + 26, 0);
    if (S < 1 || D < 2)
        return fail(error, "%s: an index of %lld sequences with a list of %lld documents; copy or make it again", path,
                    (long long)S, (long long)D);
    const int64_t room = bytes - index_header_bytes; // what S and D need may be beyond 64 bits
    const bool fits = S <= room / 12 && D <= (room - 12 * S) / 8;
    if (fits && 12 * S + 8 * D + S == room)
        return fail(error, "%s: the data set holds more than text (its index has a mode for each sequence)", path);
    if (!fits || 12 * S + 8 * D != room)
        return fail(error,
                    "%s: %lld sequences and a list of %lld documents do not make an index of %lld bytes; copy or make "
                    "it again",
                    path, (long long)S, (long long)D, (long long)bytes);
    index->type = (TokenType)code;
    index->sequences = S;
    index->documents = D - 1;
    index->sizes = data + index_header_bytes;
    index->begins = index->sizes + 4 * S;
    index->ends = index->begins + 8 * S;
    return true;
}

// The sequences follow each other without holes and fill the file of tokens, which has tokens_bytes; documents
// go from the first to the last.
static inline bool index_check_lists(MegatronIndex* index, int64_t tokens_bytes, const char* path, Error* error) {
    const int64_t width = token_type_bytes[index->type];
    index->tokens = 0;
    for (int64_t i = 0; i < index->sequences; i++) { // below 2^31 tokens each, so that no sum overflows
        const int64_t size = index_size(index->sizes, i), begin = index_int64(index->begins, i);
        if (size < 0 || begin != index->tokens * width)
            return fail(error,
                        "%s: sequence %lld has %lld tokens from byte %lld on, but %lld tokens of %lld bytes stand "
                        "before it; copy or make it again",
                        path, (long long)i, (long long)size, (long long)begin, (long long)index->tokens,
                        (long long)width);
        index->tokens += size;
        if (index->tokens * width > tokens_bytes) break;
    }
    if (index->tokens * width != tokens_bytes)
        return fail(error,
                    "%s: %s%lld tokens of %lld bytes, but the .bin beside it has %lld bytes; copy or make both again",
                    path, index->tokens * width > tokens_bytes ? "at least " : "", (long long)index->tokens,
                    (long long)width, (long long)tokens_bytes);
    for (int64_t d = 0, before = 0; d <= index->documents; d++) {
        const int64_t end = index_int64(index->ends, d);
        if (end < before || (d == 0 && end != 0) || (d == index->documents && end != index->sequences))
            return fail(error, "%s: document %lld ends at sequence %lld of %lld, after %lld; copy or make it again",
                        path, (long long)d - 1, (long long)end, (long long)index->sequences, (long long)before);
        before = end;
    }
    return true;
}

// Reads the index of a file with tokens_bytes bytes and checks all of it. It goes on using `data`.
static inline bool index_read(MegatronIndex* index, const unsigned char* data, size_t size, int64_t tokens_bytes,
                              const char* path, Error* error) {
    memset(index, 0, sizeof *index);
    return index_read_header(index, data, size, path, error) && index_check_lists(index, tokens_bytes, path, error);
}

// A copy of path with another ending of the same length, "a.bin" for "a.idx"; NULL where path does not end so.
static inline char* name_beside(const char* path, const char* ending, const char* other) {
    const size_t length = strlen(path), n = strlen(ending);
    if (length < n || strcmp(path + length - n, ending) != 0) return NULL;
    char* name = strdup(path);
    if (!name) die("out of memory for the name %s", path);
    memcpy(name + length - n, other, n);
    return name;
}

// ----------------------------------------------------------------------------------------------------------------
// Files as one stream

typedef struct {
    char* path;
    MappedFile map, index; // the second: Megatron's, else empty
    TokenType type;
    const unsigned char* data; // its first token
    int64_t first, count;      // it holds the tokens [first, first + count) of the stream
    MegatronIndex documents;   // of Megatron's, and of JSON lines that are tokens by now
    unsigned char* memory;     // of the latter: the tokens
    int64_t* lists;            // and what documents points to
} TokenFile;

typedef struct {
    TokenFile* file; // in the order of the stream
    int files;
    TokenFormat format;
    int64_t tokens, documents; // in all files together; documents: 0 where the format does not know them
    int document;              // the token that stands before one, where they are told by that; see documents_begin_at
} TokenFiles;

// Unmaps and frees everything; *files may be opened again. Nothing happens to one that is all zeros.
static inline void tokens_close(TokenFiles* files) {
    for (int i = 0; i < files->files; i++) {
        file_unmap(&files->file[i].map);
        file_unmap(&files->file[i].index);
        free(files->file[i].memory);
        free(files->file[i].lists);
        free(files->file[i].path);
    }
    free(files->file);
    memset(files, 0, sizeof *files);
}

// Maps a file of tokens, and the index that belongs to it if it is Megatron's; path may be that of the index, file->path
// becomes that of the tokens.
// No madvise: a shuffled read then brings in 128 KB around its sequence, which soon has all of the file in memory.
// Measured, 20,000 shuffled sequences of 1,024 tokens from a cold file of 600 MB: 19 us each; with MADV_RANDOM, 72 us.
static inline bool token_file_map(TokenFile* file, const char* path, Error* error) {
    struct stat st; // before opening: to open a FIFO is to wait for its writer
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return fail(error, "%s: %s", path, S_ISDIR(st.st_mode) ? "a directory; name the files in it" : "not a file");
    if (!file_map(&file->map, path, error)) return false;
    file->path = strdup(path);
    if (!file->path) die("out of memory for the name %s", path);
    if (is_megatron_index(file->map.data, file->map.size)) {
        char* bin = name_beside(path, ".idx", ".bin");
        if (!bin)
            return fail(error, "%s: the index of a Megatron data set; it has to be NAME.idx beside NAME.bin", path);
        free(file->path);
        file->path = bin;
        file->index = file->map;
        memset(&file->map, 0, sizeof file->map);
        Error why;
        if (file_map(&file->map, bin, &why)) return true;
        return fail(error, "%s: the index of a Megatron data set, without its tokens: %.900s", path, why.text);
    }
    char* idx = name_beside(path, ".bin", ".idx");
    bool ok = true;
    if (idx && stat(idx, &st) == 0 && S_ISREG(st.st_mode)) {
        ok = file_map(&file->index, idx, error);
        if (ok && foreign_format(file->index.data, file->index.size))
            ok = fail(error, "%s: %s", idx, foreign_format(file->index.data, file->index.size));
        if (ok && !is_megatron_index(file->index.data, file->index.size)) file_unmap(&file->index);
    }
    free(idx);
    return ok;
}

// Tells the format of a mapped file: where its tokens are, and how many.
static inline bool token_file_recognise(TokenFile* file, TokenFormat* format, int64_t* documents, Error* error) {
    const unsigned char* bytes = file->map.data ? file->map.data : (const unsigned char*)""; // an empty file's is NULL
    int64_t offset = 0;
    *documents = 0;
    if (file->index.data) {
        MegatronIndex index;
        char* idx = name_beside(file->path, ".bin", ".idx");
        const bool ok = index_read(&index, file->index.data, file->index.size, (int64_t)file->map.size, idx, error);
        free(idx);
        if (!ok) return false;
        *format = TOKENS_MEGATRON;
        file->type = index.type;
        file->count = index.tokens;
        *documents = index.documents;
        file->documents = index;
    } else {
        if (!tokens_recognise(format, &offset, &file->count, bytes, file->map.size, file->path, error)) return false;
        file->type = token_formats[*format].type;
    }
    file->data = bytes + offset;
    return true;
}

// Maps one file, tells its format and appends it to the stream. files->file has room for it.
static inline bool tokens_append_file(TokenFiles* files, const char* path, Error* error) {
    TokenFile* file = &files->file[files->files++]; // whatever becomes of it, tokens_close() takes care of it
    TokenFormat format = TOKENS_TEXT;
    int64_t documents;
    if (!token_file_map(file, path, error) || !token_file_recognise(file, &format, &documents, error)) return false;
    const TokenFile* head = &files->file[0];
    if (file == head) files->format = format;
    if (format != files->format)
        return fail(error, "%s holds %s, but %s holds %s: the files of one source must be of one kind", head->path,
                    head->count ? token_formats[files->format].name : "nothing", path,
                    file->count ? token_formats[format].name : "nothing");
    file->first = files->tokens;
    files->tokens += file->count;
    files->documents += documents;
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

// True for the index of a Megatron data set whose tokens are in this sorted list too: together they are one.
static inline bool is_second_half(char* const* paths, size_t count, char* path) {
    char* bin = name_beside(path, ".idx", ".bin");
    MappedFile file;
    Error unused;
    bool second = bin && bsearch(&bin, paths, count, sizeof(char*), compare_paths) && file_map(&file, path, &unused);
    if (second) {
        second = is_megatron_index(file.data, file.size);
        file_unmap(&file);
    }
    free(bin);
    return second;
}

// Appends what was found, in the order of its bytes, so shard_10 comes before shard_2 but after shard_02.
static inline void path_list_append_sorted(PathList* list, char** found, size_t count) {
    if (count) qsort(found, count, sizeof(char*), compare_paths);
    for (size_t i = 0; i < count; i++)
        if (!is_second_half(found, count, found[i])) path_list_append(list, found[i]);
}

// The files that match a pattern. 0, or glob's reason; errno says more where that is GLOB_ABORTED.
static inline int path_list_append_matches(PathList* list, const char* pattern) {
    glob_t found;
    errno = 0;
    int status = glob(pattern, GLOB_NOSORT | GLOB_ERR, NULL, &found);
    const int reason = errno;
    if (status == 0) path_list_append_sorted(list, found.gl_pathv, found.gl_pathc);
    globfree(&found);
    errno = reason;
    return status == GLOB_ABORTED && reason == ENOENT ? GLOB_NOMATCH : status;
}

// All files in a folder ("": the one that we are in) and below it, folder by folder in the order of their names. Hidden
// ones are left out, and links to folders, which may lead back here.
static inline bool path_list_append_below(PathList* list, const char* folder, Error* error) {
    DIR* open = opendir(*folder ? folder : ".");
    if (!open) return fail(error, "%s: cannot read the folder: %s", folder, strerror(errno));
    PathList names = {NULL, 0};
    for (const struct dirent* entry = readdir(open); entry; entry = readdir(open)) {
        if (entry->d_name[0] != '.') path_list_append(&names, entry->d_name);
    }
    closedir(open);
    if (names.count) qsort(names.path, (size_t)names.count, sizeof(char*), compare_paths);
    const char* between = *folder && !name_ends_with(folder, "/") ? "/" : "";
    bool ok = true;
    for (int i = 0; i < names.count && ok; i++) {
        char path[4096];
        struct stat link, file;
        if (snprintf(path, sizeof path, "%s%s%s", folder, between, names.path[i]) >= (int)sizeof path) {
            ok = fail(error, "%.200s...: the name is too long", path);
        } else if (lstat(path, &link) == 0 && S_ISDIR(link.st_mode)) {
            ok = path_list_append_below(list, path, error);
        } else if (stat(path, &file) == 0 && S_ISREG(file.st_mode)) {
            path_list_append(list, path);
        }
    }
    path_list_free(&names);
    return ok;
}

// Whether a path matches a pattern, part by part between slashes; a part "**" stands for any number of folders, at the end for
// all that is in them.
static inline bool path_matches(const char* pattern, const char* path) {
    if (strcmp(pattern, "**") == 0) return true;
    if (strncmp(pattern, "**/", 3) == 0) {
        while (strncmp(pattern + 3, "**/", 3) == 0) pattern += 3;
        for (; path; path = strchr(path, '/') ? strchr(path, '/') + 1 : NULL)
            if (path_matches(pattern + 3, path)) return true;
        return false;
    }
    const size_t p = (size_t)(strchrnul(pattern, '/') - pattern), q = (size_t)(strchrnul(path, '/') - path);
    char *wanted = strndup(pattern, p), *name = strndup(path, q);
    if (!wanted || !name) die("out of memory for a file pattern");
    const bool same = fnmatch(wanted, name, FNM_PERIOD) == 0 && !pattern[p] == !path[q];
    free(wanted), free(name);
    return same && (!pattern[p] || path_matches(pattern + p + 1, path + q + 1));
}

// The files that match a pattern with "**", which glob does not know.
static inline bool path_list_append_deep(PathList* list, const char* pattern, Error* error) {
    size_t base = strcspn(pattern, "*?[\\"); // the folder that the pattern begins with, with its slash
    while (base > 0 && pattern[base - 1] != '/') base--;
    char* folder = strndup(pattern, base);
    if (!folder) die("out of memory for a file pattern");
    PathList all = {NULL, 0}, found = {NULL, 0};
    const bool ok = access(*folder ? folder : ".", F_OK) != 0 || path_list_append_below(&all, folder, error);
    for (int i = 0; i < all.count; i++)
        if (path_matches(pattern + base, all.path[i] + base)) path_list_append(&found, all.path[i]);
    path_list_append_sorted(list, found.path, (size_t)found.count);
    const bool any = found.count > 0;
    path_list_free(&all);
    path_list_free(&found);
    free(folder);
    return ok && (any || fail(error, "no file matches the pattern \"%s\"", pattern));
}

// The files that one pattern names. What no file is named, nor matches, may be what the two files of a Megatron data
// set have in common.
static inline bool path_list_append_glob(PathList* list, const char* pattern, Error* error) {
    if (access(pattern, F_OK) == 0) { // a name as it stands, even one with a * in it
        path_list_append(list, pattern);
        return true;
    }
    if (strstr(pattern, "**")) return path_list_append_deep(list, pattern, error);
    char* both = NULL;
    int status = path_list_append_matches(list, pattern);
    if (status == GLOB_NOMATCH && asprintf(&both, "%s.idx", pattern) < 0) die("out of memory for a file pattern");
    if (both) status = path_list_append_matches(list, both);
    const int reason = errno;
    free(both);
    if (status == GLOB_NOMATCH) return fail(error, "no file is named \"%s\", nor matches it as a pattern", pattern);
    if (status != 0) return fail(error, "\"%s\": cannot read a directory on the way: %s", pattern, strerror(reason));
    return true;
}

// Whether a file of a folder that was named is data: text, or a .bin of tokens; not a vocabulary that lies beside it.
static inline bool file_is_data(bool* is, const char* path, Error* error) {
    const char* slash = strrchr(path, '/');
    MappedFile file;
    *is = name_ends_with(path, ".bin") || name_ends_with(path, ".idx");
    if (*is || strcmp(slash ? slash + 1 : path, "tokenizer.json") == 0) return true;
    if (!file_map(&file, path, error)) return false;
    *is = file.size > 0 && file_looks_like_text(file.data, file.size);
    file_unmap(&file);
    return true;
}

// Whether some file of a list is NAME_*.bin.
static inline bool has_shards(const PathList* list, const char* name) {
    bool has = false;
    for (int i = 0; i < list->count; i++) {
        const char* slash = strrchr(list->path[i], '/');
        has = has || (name_ends_with(list->path[i], ".bin") && slash && strncmp(slash + 1, name, strlen(name)) == 0);
    }
    return has;
}

// The data in a folder that was named, and below it.
static inline bool path_list_append_folder(PathList* list, const char* folder, Error* error) {
    PathList all = {NULL, 0}, data = {NULL, 0};
    bool ok = path_list_append_below(&all, folder, error), is;
    for (int i = 0; i < all.count && ok; i++) {
        ok = file_is_data(&is, all.path[i], error);
        if (ok && is) path_list_append(&data, all.path[i]);
    }
    if (ok && data.count == 0) ok = fail(error, "%s: a folder without text or .bin files", folder);
    if (ok && has_shards(&data, "train_") && has_shards(&data, "val_"))
        ok = fail(error,
                  "%s holds shards to train on and to validate on: name them apart, --data \"%s/train_*.bin\" --val "
                  "\"%s/val_*.bin\"",
                  folder, folder, folder);
    if (ok) path_list_append_sorted(list, data.path, (size_t)data.count);
    path_list_free(&all);
    path_list_free(&data);
    return ok;
}

// What stands between the commas of a list; an empty name where nothing does.
static inline PathList names_between_commas(const char* list) {
    PathList names = {NULL, 0};
    for (const char *p = list, *comma;; p = comma + 1) {
        comma = strchrnul(p, ',');
        char* name = strndup(p, (size_t)(comma - p));
        if (!name) die("out of memory for a list of files");
        path_list_append(&names, name);
        free(name);
        if (!*comma) return names;
    }
}

// The files of all `globs`, a list between commas of names, folders and glob(7) patterns, "shards/train_*.bin,more": those of
// each pattern sorted, the patterns in order. A file named twice is there twice.
static inline bool path_list_append_globs(PathList* files, const char* globs, Error* error) {
    PathList patterns = names_between_commas(globs), names = {NULL, 0};
    bool ok = true;
    for (int i = 0; i < patterns.count && ok; i++)
        ok = *patterns.path[i] ? path_list_append_glob(&names, patterns.path[i], error)
                               : fail(error, "\"%s\": an empty name in the list of files", globs);
    for (int i = 0; i < names.count && ok; i++) {
        struct stat st;
        if (stat(names.path[i], &st) == 0 && S_ISDIR(st.st_mode))
            ok = path_list_append_folder(files, names.path[i], error);
        else
            path_list_append(files, names.path[i]);
    }
    path_list_free(&patterns);
    path_list_free(&names);
    return ok;
}

// Opens all files named by `globs` as one stream. On failure *files is closed and *error names the pattern or file.
static inline bool tokens_open(TokenFiles* files, const char* globs, Error* error) {
    PathList list = {NULL, 0};
    memset(files, 0, sizeof *files);
    const bool ok = path_list_append_globs(&list, globs, error) &&
                    tokens_open_list(files, (const char* const*)list.path, list.count, error);
    path_list_free(&list);
    return ok;
}

// One line for people, what was recognised: "a.bin to c.bin (3 files): uint16 tokens (llm.c shard), 300 tokens".
static inline void tokens_describe(char* text, size_t size, const TokenFiles* files) {
    const char *first = files->file[0].path, *last = files->file[files->files - 1].path;
    const char* name = token_formats[files->format].name;
    char range[64] = "", documents[64] = "";
    if (files->files > 1) snprintf(range, sizeof range, " (%d files)", files->files);
    if (files->documents) snprintf(documents, sizeof documents, ", %lld documents", (long long)files->documents);
    snprintf(text, size, "%s%s%s%s: %s%s, %lld tokens", first, files->files > 1 ? " to " : "",
             files->files > 1 ? last : "", range, name, documents, (long long)files->tokens);
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

// Number i of a file.
static inline int64_t token_value(const unsigned char* data, TokenType type, int64_t i) {
    switch (type) {
    case TOKEN_UINT8: return data[i];
    case TOKEN_INT8: return ((const int8_t*)data)[i];
    case TOKEN_INT16: return ((const int16_t*)(const void*)data)[i];
    case TOKEN_INT32: return ((const int32_t*)(const void*)data)[i];
    case TOKEN_INT64: return ((const int64_t*)(const void*)data)[i];
    case TOKEN_UINT16: return ((const uint16_t*)(const void*)data)[i];
    default: return ((const uint32_t*)(const void*)data)[i];
    }
}

// Number i of a file as a token: what is negative, or too large for 32 bits, becomes 2^32 - 1, which no vocabulary has.
static inline uint32_t token_at(const unsigned char* data, TokenType type, int64_t i) {
    const int64_t value = token_value(data, type, i);
    return (uint64_t)value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
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

// Makes n tokens int32 and returns the largest. Each case is a vector loop of its own.
static inline uint32_t tokens_widen(int32_t* out, const unsigned char* data, TokenType type, int64_t n) {
    switch (type) {
    case TOKEN_UINT8: return tokens_widen_type(out, data, TOKEN_UINT8, n);
    case TOKEN_UINT16: return tokens_widen_type(out, data, TOKEN_UINT16, n);
    case TOKEN_UINT32: return tokens_widen_type(out, data, TOKEN_UINT32, n);
    case TOKEN_INT32: return tokens_widen_type(out, data, TOKEN_INT32, n);
    default: return tokens_widen_type(out, data, type, n);
    }
}

// Names the first of n tokens, from token `begin` of the file on, that is not below vocab.
static inline bool fail_vocab(const TokenFile* file, TokenFormat format, int64_t begin, int64_t n, int vocab,
                              Error* error) {
    const TokenFormatFacts* facts = &token_formats[format];
    int64_t i = begin;
    while (i < begin + n && token_at(file->data, file->type, i) < (uint32_t)vocab) i++;
    const long long token = token_value(file->data, file->type, i);
    if (facts->vocab > vocab)
        return fail(error, "%s: token %lld is %lld, the model has a vocabulary of %d: %s need --vocab %d%s", file->path,
                    (long long)i, token, vocab, facts->name, facts->vocab, facts->condition);
    return fail(
        error, "%s: token %lld is %lld, the model has a vocabulary of %d: use the --vocab that the file was made for%s",
        file->path, (long long)i, token, vocab,
        format == TOKENS_RAW_UINT16 ? ", if it is raw uint16 tokens at all" : "");
}

// Tokens [begin, begin + n) of the stream to out (n); files are crossed as needed. 0 <= begin, begin + n <= tokens.
// False, *error filled, where a token is not below vocab.
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

// ----------------------------------------------------------------------------------------------------------------
// Documents

// Whether files of a format say themselves where documents begin, without a token for that.
static inline bool format_has_documents(TokenFormat format) {
    return format == TOKENS_TEXT || format == TOKENS_MEGATRON || format == TOKENS_JSONL;
}

// Says at which token documents begin; it is not asked for where the format knows better.
static inline void documents_begin_at(TokenFiles* files, int token) { files->document = token; }

// Whether any begins at a token among the first four million: if not, it is most likely the wrong token.
static inline bool documents_are_seen(const TokenFiles* files) {
    enum { PIECE = 4096, PIECES = 1024 };
    int32_t tokens[PIECE];
    Error unused;
    for (int64_t piece = 0; piece < PIECES && piece * PIECE < files->tokens; piece++) {
        const int64_t n = min_i64(PIECE, files->tokens - piece * PIECE);
        if (!tokens_read(tokens, files, piece * PIECE, n, INT32_MAX, &unused)) return true; // told when it is its turn
        for (int64_t i = 0; i < n; i++)
            if (tokens[i] == files->document) return true;
    }
    return false;
}

// For people.
static inline void documents_describe(char* text, size_t size, const TokenFiles* files) {
    if (files->format == TOKENS_TEXT)
        snprintf(text, size, "every file is a document");
    else if (files->format == TOKENS_JSONL)
        snprintf(text, size, "every line is a document");
    else if (files->format == TOKENS_MEGATRON)
        snprintf(text, size, "documents by the index");
    else
        snprintf(text, size, "documents begin at token %d", files->document);
}

// The token of a file that document d of its index begins with: the next document's, or the end, if it is empty.
static inline int64_t index_document(const MegatronIndex* index, int64_t d) {
    const int64_t sequence = index_int64(index->ends, d);
    if (sequence == index->sequences) return index->tokens;
    return index_int64(index->begins, sequence) / token_type_bytes[index->type];
}

// The first document of an index that begins at token `at` of its file or later; the number of all if none does.
static inline int64_t index_document_from(const MegatronIndex* index, int64_t at) {
    int64_t low = 0, high = index->documents; // all before low begin before `at`, none from high on
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (index_document(index, middle) < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// positions[i] = 0 where a document begins at token begin + i of the stream, i < n, by what the files say.
static inline void documents_of_files(int32_t* positions, const TokenFiles* files, int64_t begin, int64_t n) {
    const TokenFile* behind = files->file + files->files;
    for (const TokenFile* file = tokens_find(files, begin); file < behind && file->first < begin + n; file++) {
        if (file->first >= begin) positions[file->first - begin] = 0;
        if (file->documents.documents == 0) continue;
        const MegatronIndex* index = &file->documents;
        for (int64_t d = index_document_from(index, begin - file->first); d < index->documents; d++) {
            const int64_t at = file->first + index_document(index, d) - begin;
            if (at >= n) break;
            positions[at] = 0;
        }
    }
}

// positions (n) of tokens [begin, begin + n) of the stream, each in its document; in one that began before them, from
// `begin` on. tokens (n): what tokens_read has given.
static inline void tokens_positions(int32_t* positions, const TokenFiles* files, const int32_t* tokens, int64_t begin,
                                    int64_t n) {
    const bool told = format_has_documents(files->format);
    for (int64_t i = 0; i < n; i++) positions[i] = told || tokens[i] != files->document;
    if (told) documents_of_files(positions, files, begin, n);
    positions[0] = 0;
    for (int64_t i = 1; i < n; i++) positions[i] = positions[i] ? positions[i - 1] + 1 : 0;
}

#endif
