/*
fuzz_dataloader.c: no bytes in a token file or in the index beside it, no JSON lines, and no list of names,
may crash dataloader/token_files.h, dataloader/text.h and dataloader.h or make them hand out a token that is not there.

An input is 32 bytes of choices (how many files, what header is put before each, T, the vocabulary, the part, the
pattern that names the files) and then the bytes of the files. What the loader hands out is compared with the bytes.
*/
#include "../../../dataloader.h"
#include "../../../dataloader/text.h"
#include "fuzz.h"

enum { MAX_FILES = 3, CHOICES = 32, INPUT_MOST = CHOICES + 4096, MAX_T = 64 };

typedef struct {
    unsigned char bytes[1024 + INPUT_MOST], index[1024 + 32 * INPUT_MOST];
    size_t size, index_size; // index_size: 0 where there is none
    int type;                // of a file with an index: Megatron's code
} FileBytes;

static const size_t megatron_width[] = {0, 1, 1, 2, 4, 8, 8, 4, 2}; // two of these types are read

// What an input writes: for the list of names, names of one letter are all there is in the folder.
static const char *const bins[MAX_FILES] = {"0.bin", "1.bin", "2.bin"}, *const idxs[MAX_FILES] = {"0.idx", "1.idx",
                                                                                                  "2.idx"};

static void put(FileBytes* file, int64_t value, size_t width) {
    memcpy(file->index + file->index_size, &value, width);
    file->index_size += width;
}

// An index of the file: sequences of up to 8 tokens, two a document; a flaw cuts it or flips one bit.
static void build_index(FileBytes* file, unsigned char kind, unsigned char flaw) {
    int32_t size[INPUT_MOST];
    int64_t S = 0, begin = 0;
    file->type = 1 + kind / 8 % 8;
    const int64_t width = (int64_t)megatron_width[file->type], tokens = (int64_t)file->size / width;
    file->size = (size_t)(tokens * width);
    for (int64_t left = tokens; left > 0; left -= size[S++]) size[S] = (int32_t)min_i64(left, 1 + (S + kind) % 8);
    memcpy(file->index, "MMIDIDX\0", 9);
    file->index_size = 9;
    put(file, 1, 8);
    put(file, file->type, 1);
    put(file, S, 8);
    put(file, (S + 1) / 2 + 1, 8);
    for (int64_t i = 0; i < S; i++) put(file, size[i], 4);
    for (int64_t i = 0; i < S; begin += size[i++] * width) put(file, begin, 8);
    for (int64_t d = 0; d < S + 2; d += 2) put(file, min_i64(d, S), 8);
    if (flaw >= 240) file->index[(size_t)flaw * 131 % file->index_size] ^= (unsigned char)(1u << flaw % 8);
    if (flaw >= 192 && flaw < 208) file->index_size = file->index_size * flaw % 1024 % file->index_size;
}

// The bytes of one file: those of the input, behind a header that is right or wrong in one word, or beside an index.
static void build_file(FileBytes* file, const unsigned char* data, size_t size, unsigned char kind,
                       unsigned char flaw) {
    file->size = file->index_size = 0;
    if (kind % 4 < 2) {
        int width = kind % 4 ? 4 : 2;
        int32_t header[256] = {width == 2 ? 20240520 : 20240801, width == 2 ? 1 : 7, (int32_t)(size / (size_t)width)};
        size -= size % (size_t)width;
        if (flaw >= 224) header[flaw % 3] ^= (int32_t)(1u << (flaw % 32));
        memcpy(file->bytes, header, sizeof header);
        file->size = sizeof header;
    }
    memcpy(file->bytes + file->size, data, size);
    const size_t letters = kind % 4 == 2 && flaw < 128 ? size : 0; // text, but for what the flaw lets through
    for (size_t i = 0; i < letters; i++) file->bytes[i] |= 32;
    file->size += size;
    if (kind % 8 == 7) build_index(file, kind, flaw);
}

// Token i of the files laid end to end, read byte by byte. The type of a file with an index is the one that it was
// accepted with.
static uint32_t expected_token(const TokenFiles* read, const FileBytes* files, TokenFormat format, int64_t i) {
    const size_t header = format == TOKENS_GPT2_SHARD || format == TOKENS_LLAMA3_SHARD ? 1024 : 0;
    size_t width = (size_t)token_type_bytes[token_formats[format].type];
    const TokenFile* file = read->file;
    for (;; i -= (int64_t)((files++->size - header) / width), file++) {
        if (format == TOKENS_MEGATRON) width = megatron_width[file->type];
        if (i < (int64_t)((files->size - header) / width)) break;
    }
    uint64_t token = 0;
    for (size_t b = width; b-- > 0;) token = token << 8 | files->bytes[header + (size_t)i * width + b];
    return (uint32_t)token;
}

// A loader over some part, and some of its sequences.
static void check_loader(const TokenFiles* files, const FileBytes* bytes, const unsigned char* choice) {
    DataLoader loader;
    Error error = {""};
    int32_t inputs[MAX_T + 1], targets[MAX_T + 1];
    int T = 1 + choice[0] % MAX_T, vocab = 1 << choice[1] % 20; // up to 524,288: above uint16, below uint32
    const Part part = (Part)(choice[3] % 3);
    if (!dataloader_init(&loader, files, part, choice[4] % 128, T, vocab, choice[5], choice[6] & 1, &error)) {
        REQUIRE(*error.text);
        return;
    }
    REQUIRE(loader.count > 0);
    inputs[T] = targets[T] = -12345;
    for (uint64_t n = 0; n < 8; n++) {
        uint64_t at = n * (choice[7] + 1ull) << choice[8] % 56;
        bool ok = dataloader_sequence(inputs, targets, &loader, at, &error);
        const int64_t begin = dataloader_begin(&loader, at);
        REQUIRE(begin >= 0 && begin + T < files->tokens);
        bool fits = true;
        for (int t = 0; t <= T; t++) {
            uint32_t token = expected_token(files, bytes, files->format, begin + t);
            fits = fits && token < (uint32_t)vocab;
            if (ok && t < T) REQUIRE((uint32_t)inputs[t] == token);
            if (ok && t > 0) REQUIRE((uint32_t)targets[t - 1] == token);
        }
        REQUIRE(ok == fits);
        REQUIRE(inputs[T] == -12345 && targets[T] == -12345);
    }
}

// A text as its pieces become it in JSON: what of the input is a quote, a backslash or a control character is left out.
static size_t put_text(unsigned char* out, const unsigned char* data, size_t size, bool json) {
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = data[i] & 127;
        if (c < 32 || c == '"' || c == '\\' || c == 127) continue;
        if (json && c == 'u')
            n += (size_t)sprintf((char*)out + n, "\\u%04x", 'u');
        else
            out[n++] = c;
    }
    return n;
}

// Lines of JSON, one flaw in some: they become the texts that were written, a document each, or are refused.
static void fuzz_lines(const unsigned char* choice, const unsigned char* data, size_t size) {
    static unsigned char json[8 * INPUT_MOST + 4096], expected[2 * INPUT_MOST + 64];
    static int32_t tokens[2 * INPUT_MOST + 64];
    const size_t lines = 1 + choice[26] % 16;
    size_t n = 0, m = 0, documents = 0;
    for (size_t i = 0; i < lines; i++) {
        const size_t begin = size * i / lines, end = size * (i + 1) / lines;
        n += (size_t)sprintf((char*)json + n, i % 3 == 2 ? " {\"n\":[%d],\"text\":\"" : "{\"text\":\"", (int)i);
        n += put_text(json + n, data + begin, end - begin, true);
        n += (size_t)sprintf((char*)json + n, i % 5 == 4 ? "\", \"more\": null}\n\n" : "\"}\n");
        const size_t text = put_text(expected + m, data + begin, end - begin, false);
        if (text == 0) continue;
        m += text;
        documents++;
        expected[m++] = '\n';
    }
    const bool flaw = choice[27] >= 128;
    if (flaw) json[(size_t)choice[28] * 251 % n] ^= (unsigned char)(1u << choice[29] % 8);
    if (choice[27] >= 224) n = n * choice[30] / 256;
    write_bytes("x.jsonl", json, n);
    const char* name = "x.jsonl";
    static Tokenizer bytes;
    TokenFiles files;
    Error error = {""};
    if (!bytes.vocab) tokenizer_bytes(&bytes);
    if (!tokens_open_list(&files, &name, 1, &error)) {
        REQUIRE(flaw && *error.text);
    } else if (files.format != TOKENS_JSONL || !text_encode(&files, &bytes, &error)) {
        REQUIRE(flaw || documents == 0);
    } else {
        REQUIRE(files.tokens > 0 && files.tokens <= (int64_t)(sizeof tokens / sizeof *tokens));
        REQUIRE(tokens_read(tokens, &files, 0, files.tokens, 256, &error));
        REQUIRE(flaw || files.tokens == (int64_t)m);
        for (int64_t i = 0; i < files.tokens; i++) REQUIRE(flaw || tokens[i] == expected[i]);
    }
    tokens_close(&files);
}

// A list of signs that mean something to glob, and the names there are; no way out of the folder.
static void fuzz_list(const unsigned char* choice) {
    static const char* const pieces[] = {"0", "1",  "2", "0.bin", "1.idx", ",", "*", "?",   "[",  "]",   "!",
                                         "-", "\\", "d", "{}",    "x",     ".", ":", "0*,", "**", "**/", "/"};
    char list[160] = "", text[256];
    for (int i = 0; i < choice[19] % 12; i++) strcat(list, pieces[choice[20 + i] % (sizeof pieces / sizeof pieces[0])]);
    if (strstr(list, "..")) return; // the folder above would be read, whatever is in it
    TokenFiles files;
    Error error = {""};
    if (!tokens_open(&files, list, &error)) {
        REQUIRE(*error.text && !files.file && !files.files);
        return;
    }
    REQUIRE(files.files > 0 && files.tokens > 0);
    tokens_describe(text, sizeof text, &files);
    tokens_close(&files);
}

// One input. True if the files were accepted.
static bool fuzz_one(const unsigned char* data, size_t size) {
    if (size < CHOICES || size > INPUT_MOST) return false;
    if (chdir(own_folder) != 0 || (mkdir("d", 0777) != 0 && errno != EEXIST)) die("cannot work in %s", own_folder);
    const unsigned char *choice = data, *rest = data + CHOICES;
    size_t left = size - CHOICES;
    int count = 1 + choice[9] % MAX_FILES;
    static FileBytes bytes[MAX_FILES];
    for (int f = 0; f < count; f++) {
        size_t take = f == count - 1 ? left : left * choice[10 + f] / 256;
        build_file(&bytes[f], rest, take, choice[13] < 240 ? choice[14] : choice[14 + f], choice[17 + f]);
        write_bytes(bins[f], bytes[f].bytes, bytes[f].size);
        if (bytes[f].index_size) write_bytes(idxs[f], bytes[f].index, bytes[f].index_size);
        rest += take;
        left -= take;
    }

    TokenFiles files;
    Error error = {""};
    char text[256];
    bool opened = tokens_open_list(&files, bins, count, &error);
    REQUIRE(opened || (*error.text && !files.file && !files.files));
    if (opened) {
        REQUIRE(files.files == count && files.tokens > 0);
        tokens_describe(text, sizeof text, &files);
        check_loader(&files, bytes, choice);
    }
    tokens_close(&files);

    fuzz_list(choice);
    if (choice[31] % 8 == 0) fuzz_lines(choice, data + CHOICES, size - CHOICES); // slow: an encoder's memory
    for (int f = 0; f < count; f++) unlink(bins[f]), unlink(idxs[f]);
    return opened;
}

// Input number i of this seed: random bytes, from few different values to all, of which some are then repeated.
static size_t make_input(unsigned char* data, uint64_t i) {
    Random4 r = philox(fuzz_seed, 1, i);
    size_t size = CHOICES + (r.word[0] % 4 ? r.word[1] % 300 : r.word[1] % (INPUT_MOST - CHOICES + 1));
    uint32_t values = 1u << r.word[2] % 9;
    unsigned char base = (unsigned char)r.word[3];
    for (size_t b = 0; b < size; b += 16) {
        Random4 random = philox(fuzz_seed, 2 + i, b);
        size_t n = size - b < 16 ? size - b : 16;
        memcpy(data + b, random.word, n);
        for (size_t c = 0; c < n; c++)
            if (b >= CHOICES) data[b + c] = (unsigned char)(base + data[b + c] % values);
    }
    return size;
}

static const Fuzzer fuzzer = {INPUT_MOST, make_input, fuzz_one, 1};
FUZZ_MAIN(fuzzer, "fuzz_dataloader")
