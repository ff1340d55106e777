/*
dataloader/token_format.h: recognises the format of a file of tokens by its content; the name only decides whether a
text is JSON lines.

    tokens_recognise    the format of a file, and where its tokens are; or why it has none
    index_read          the index of a Megatron data set, checked

Theory: the formats, in the order in which they are tried. All numbers are little-endian.
    1. Megatron's data set: two files, NAME.bin with the tokens and NAME.idx, their index. The index, in the layout of
       Megatron-LM's indexed_dataset.py (version 1):
           9 bytes   "MMIDIDX", 0, 0
           uint64    version 1
           uint8     type of the tokens: 4 int32, 8 uint16
           uint64    S, sequences (sentences or whole documents, as the preprocessing cut them)
           uint64    D, one more than documents
           int32     size of each sequence, in tokens             (S)
           int64     where each begins in NAME.bin, in bytes      (S)
           int64     0, then for each document the sequence before which it ends (D)
       Sizes have to add up to where the sequences begin and to the size of NAME.bin; the list of documents is not read.
       (A further byte per sequence, for data that is not only text, is refused.)
    2. llm.c shard. The file begins with 256 int32: a magic number, a version, the number of tokens. Magic 20240520,
       version 1: tokens are uint16, GPT-2's unless there is another vocabulary beside the shard. Magic 20240801,
       version 7: uint32, Llama-3's likewise. The count has to agree with the size of the file.
    3. Text. In the first, middle and last 64 KB there is no NUL byte, and at most one byte in 256 is a control
       character that text does not use. Each byte is a token: a vocabulary of 256 whatever the language or encoding.
       In NAME.jsonl every line is a JSON object with a text, which dataloader/text.h tokenizes.
    4. Anything else is refused.
*/
#pragma once

#include "../util/base.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the token files are little-endian, and are used as they lie in memory"
#endif

// ---- The formats ------------------------------------------------------------------------------------------------

typedef enum {
    TOKENS_TEXT,
    TOKENS_GPT2_SHARD,
    TOKENS_LLAMA3_SHARD,
    TOKENS_MEGATRON,
    TOKENS_JSONL,
    TOKENS_TOKENIZED_TEXT,
    TOKEN_FORMATS
} TokenFormat;

// The type of a token in a file. The codes are Megatron's, which has none for uint32.
typedef enum { TOKEN_UINT8 = 1, TOKEN_INT32 = 4, TOKEN_UINT16 = 8, TOKEN_UINT32, TOKEN_TYPES } TokenType;

typedef struct {
    const char* name;
    TokenType type;
    int vocab; // the vocabulary of the tokenizer that made it, certainly or most likely; 0: not named
    int magic, version;
    int document;          // the token before a document; -1: there is none or the file does not name it
    const char* condition; // what the vocabulary has to be
} TokenFormatFacts;

static const TokenFormatFacts token_formats[TOKEN_FORMATS] = {
    {"text as bytes", TOKEN_UINT8, 256, 0, 0, -1, ""},
    {"uint16 tokens (llm.c shard)", TOKEN_UINT16, 50257, 20240520, 1, 50256, ", if they are GPT-2's"},
    {"uint32 tokens (llm.c shard)", TOKEN_UINT32, 128256, 20240801, 7, 128000, ", if they are Llama-3's"},
    {"tokens of a Megatron data set", TOKEN_INT32, 0, 0, 0, -1, ""}, // each file's index has its own type
    {"JSON lines", TOKEN_UINT8, 0, 0, 0, -1, ""},     // bytes of JSON, until dataloader/text.h has tokenized them
    {"tokenized text", TOKEN_UINT8, 0, 0, 0, -1, ""}, // made by dataloader/text.h; the type depends on the vocabulary
};

// Whether the tokens of a format are made when a run starts, or are bytes.
static inline bool format_is_text(TokenFormat format) {
    return format == TOKENS_TEXT || format == TOKENS_JSONL || format == TOKENS_TOKENIZED_TEXT;
}

static const int token_type_bytes[TOKEN_TYPES] = {0, 1, 0, 0, 4, 0, 0, 0, 2, 4};

static const size_t shard_header_bytes = 256 * 4, text_window_bytes = 64 * 1024, text_bytes_per_control = 256;

// Texts that are probably not meant to be learned from: after white space they begin with one character, and have a
// word in their first 4 KB.
static const struct {
    char begins;
    const char *has, *what;
} suspicious_texts[] = {
    {'{', "\"added_tokens\"", "a vocabulary, which is for --tokenizer"},
    {'{', "\":", "JSON (JSON lines are in NAME.jsonl)"},
    {'<', "<svg", "an SVG picture"},
    {'<', "<html", "a web page"},
};

// What a text is that is probably not meant, or NULL.
static inline const char* suspicious_text(const unsigned char* data, size_t size) {
    char head[4097];
    const size_t n = size < sizeof head ? size : sizeof head - 1;
    memcpy(head, n ? data : (const unsigned char*)"", n);
    head[n] = 0;
    const char* begin = head + strspn(head, " \t\r\n");
    for (size_t i = 0; i < sizeof suspicious_texts / sizeof suspicious_texts[0]; i++)
        if (*begin == suspicious_texts[i].begins && strcasestr(begin, suspicious_texts[i].has))
            return suspicious_texts[i].what;
    return NULL;
}

// Whether these bytes could be text in any ASCII-based encoding (UTF-8, Latin-1, KOI8, Shift-JIS, ...).
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

// Checks a file that begins with a shard's magic number, and finds its tokens.
static inline bool shard_recognise(int64_t* offset, int64_t* count, TokenFormat format, const unsigned char* data,
                                   size_t size, const char* path, Error* error) {
    const TokenFormatFacts* facts = &token_formats[format];
    const bool whole = size >= shard_header_bytes;
    const int32_t version = whole ? shard_header_word(data, 1) : 0, tokens = whole ? shard_header_word(data, 2) : 0;
    if (version != facts->version)
        return fail(error, "%s: %s, cut off or of version %d; this program reads version %d", path, facts->name,
                    version, facts->version);
    const int64_t expected = (int64_t)shard_header_bytes + (int64_t)tokens * token_type_bytes[facts->type];
    if (tokens <= 0 || (int64_t)size != expected)
        return fail(error,
                    "%s: the header says %d tokens, which makes %lld bytes, but the file has %lld; "
                    "download or make it again",
                    path, tokens, (long long)expected, (long long)size);
    *offset = (int64_t)shard_header_bytes;
    *count = tokens;
    return true;
}

// Recognises the format of a file by the rules at the top: its tokens are `count` numbers from byte `offset` on. False,
// with the reason in *error, if the file is damaged or of no known format.
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
    return fail(error,
                "%s: neither text nor tokens of llm.c or Megatron; no other format is read; of Megatron's two files "
                "name the .bin",
                path);
}

// ---- Megatron's index -------------------------------------------------------------------------------------------

static const char index_magic[] = "MMIDIDX\0"; // 9 bytes, with the NUL that C adds
static const int64_t index_header_bytes = 9 + 8 + 1 + 8 + 8;

static inline bool is_megatron_index(const unsigned char* data, size_t size) {
    return size >= sizeof index_magic && memcmp(data, index_magic, sizeof index_magic) == 0;
}

// The lists of an index are not aligned.
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

// Reads the header: the type of the tokens and the number of sequences, whose sizes and places follow it.
static inline bool index_read_header(TokenType* type, int64_t* sequences, const unsigned char* data, size_t size,
                                     const char* path, Error* error) {
    const int64_t bytes = (int64_t)size, version = bytes < index_header_bytes ? 0 : index_int64(data + 9, 0);
    if (version != 1)
        return fail(error, "%s: an index that is cut off or of version %lld, not 1", path, (long long)version);
    const int code = data[17];
    if (code != TOKEN_INT32 && code != TOKEN_UINT16)
        return fail(error, "%s: tokens of type %d; Megatron's are of type %d (int32) or %d (uint16)", path, code,
                    TOKEN_INT32, TOKEN_UINT16);
    const int64_t S = index_int64(data + 18, 0), D = index_int64(data + 26, 0);
    const int64_t room = bytes - index_header_bytes; // the size in bytes of S and D may exceed 64 bits
    const bool fits = S >= 1 && S <= room / 12 && D >= 2 && D <= (room - 12 * S) / 8;
    if (!fits || 12 * S + 8 * D != room)
        return fail(error,
                    "%s: %lld sequences and a list of %lld documents do not make an index of %lld bytes; copy or make "
                    "it again",
                    path, (long long)S, (long long)D, (long long)bytes);
    *type = (TokenType)code;
    *sequences = S;
    return true;
}

// Reads the index of a file of tokens with tokens_bytes bytes: the type and the number of its tokens. The sequences
// have to follow each other without holes and to fill the file.
static inline bool index_read(TokenType* type, int64_t* tokens, const unsigned char* data, size_t size,
                              int64_t tokens_bytes, const char* path, Error* error) {
    int64_t sequences = 0;
    if (!index_read_header(type, &sequences, data, size, path, error)) return false;
    const unsigned char *sizes = data + index_header_bytes, *begins = sizes + 4 * sequences;
    const int64_t width = token_type_bytes[*type];
    int64_t n = 0;
    for (int64_t i = 0; i < sequences && n * width <= tokens_bytes; i++) { // below 2^31 each, so no sum overflows
        const int64_t count = index_size(sizes, i), begin = index_int64(begins, i);
        if (count < 0 || begin != n * width)
            return fail(error,
                        "%s: sequence %lld has %lld tokens from byte %lld on, but %lld tokens of %lld bytes stand "
                        "before it; copy or make it again",
                        path, (long long)i, (long long)count, (long long)begin, (long long)n, (long long)width);
        n += count;
    }
    *tokens = n;
    if (n * width == tokens_bytes) return true;
    return fail(error,
                "%s: %s%lld tokens of %lld bytes, but the .bin beside it has %lld bytes; copy or make both again", path,
                n * width > tokens_bytes ? "at least " : "", (long long)n, (long long)width, (long long)tokens_bytes);
}
