/*
test_token_files.c: dataloader/token_format.h and token_files.h against a second reader: streams against a
plain concatenation, documents against marks, every kind of damaged file, every
changed byte of an index against index_is_true().
*/
#include "token_fixture.h"

// ---- Streams and sequences --------------------------------------------------------------------------------------

static bool is_sequence(const int32_t* inputs, const int32_t* targets, int T, const uint32_t* stream) {
    for (int t = 0; t < T; t++)
        if ((uint32_t)inputs[t] != stream[t] || (uint32_t)targets[t] != stream[t + 1]) return false;
    return true;
}

// How many of the sequences of this loader differ from the stream's tokens, laid out plainly; each must come once an
// epoch.
static int wrong_sequences(const DataLoader* loader, const uint32_t* stream, uint64_t epoch) {
    int32_t inputs[128], targets[128];
    int wrong = 0;
    Error error;
    unsigned char* seen = (unsigned char*)checked_calloc((size_t)loader->count, 1, "flags");
    for (int64_t i = 0; i < loader->count; i++) {
        uint64_t n = epoch * (uint64_t)loader->count + (uint64_t)i;
        if (!dataloader_sequence(inputs, targets, loader, n, &error)) {
            wrong++;
            continue;
        }
        // Shuffled, which one it is is not asked of the loader: one that fits and was not there yet.
        int64_t k = loader->shuffle ? 0 : i, last = loader->shuffle ? loader->count - 1 : i;
        while (k <= last &&
               (seen[k] || !is_sequence(inputs, targets, loader->T, stream + loader->first + k * loader->T)))
            k++;
        if (k > last)
            wrong++;
        else
            seen[k] = 1;
    }
    free(seen);
    return wrong;
}

// Files of odd sizes, some smaller than a sequence, some of one token: in every format and T like one plain array.
static void test_streams(TokenFormat format) {
    const int64_t sizes[] = {1, 57, 1, 2, 301, 64, 128, 3, 1, 1, 1000, 7};
    enum { FILES = sizeof sizes / sizeof sizes[0], TOKENS = 1566 };
    const bool wide = format == TOKENS_LLAMA3_SHARD || format == TOKENS_MEGATRON;
    const uint32_t vocab = wide ? 128256 : 50257;
    uint32_t stream[TOKENS];
    char paths[FILES][PATH_BYTES];
    const char* list[FILES];
    int64_t n = 0;
    for (int f = 0; f < FILES; f++) {
        char name[64];
        snprintf(name, sizeof name, "stream%d_%02d", (int)format, f);
        for (int64_t i = 0; i < sizes[f]; i++, n++) {
            stream[n] = some_token((uint64_t)n, vocab);
            if (format == TOKENS_TEXT) stream[n] = 32 + stream[n] % 90;
        }
        snprintf(paths[f], PATH_BYTES, "%s", write_tokens(name, format, stream + n - sizes[f], sizes[f]));
        list[f] = paths[f];
    }
    char globs[PATH_BYTES];
    snprintf(globs, sizeof globs, "stream%d_*[!x]", (int)format);
    TokenFiles files = open_or_die(globs);
    check(n == TOKENS && files.tokens == TOKENS && files.files == FILES && files.format == format, "streams, %s",
          token_formats[format].name);

    int wrong = 0, loaders = 0;
    Error error = {""};
    for (int T = 1; T <= 128; T += T < 9 ? 1 : 17)
        for (int part = 0; part < (T < 78 ? 3 : 2); part++) // a twentieth of it is 78 tokens
            for (int shuffle = 0; shuffle < 2; shuffle++) {
                const int64_t first[] = {0, 0, TOKENS - 78}, end[] = {TOKENS, TOKENS - 78, TOKENS};
                DataLoader loader;
                if (!dataloader_init(&loader, &files, (Part)part, 1, T, (int)vocab, 7, shuffle, &error))
                    die("%s", error.text);
                wrong += loader.count != (end[part] - first[part] - 1) / T;
                wrong += wrong_sequences(&loader, stream, 0) + wrong_sequences(&loader, stream, 3);
                loaders++;
            }
    check(wrong == 0, "    %d loaders over parts of it: %d sequences differ from a plain array", loaders, wrong);
    tokens_close(&files);

    bool opened = tokens_open_list(&files, list, FILES, &error);
    int32_t all[TOKENS] = {0};
    bool read = opened && tokens_read(all, &files, 0, TOKENS, (int)vocab, &error);
    int differ = 0;
    for (int i = 0; i < TOKENS; i++) differ += (uint32_t)all[i] != stream[i];
    check(read && differ == 0, "    the same from a list of paths, in one read");
    tokens_close(&files);
    tokens_close(&files); // twice does no harm
    check(!is_mapped("/stream"), "    closed: none of them is mapped any more");
}

// ---- Formats and lists of files ---------------------------------------------------------------------------------

// What is text and what is not, byte by byte.
static void test_recognition(void) {
    static unsigned char bytes[400000];
    typedef struct {
        const char* what;
        int base, every, odd_one; // bytes `base`, and at every `every`-th place `odd_one`
        size_t size;
        bool text; // else refused
    } Case;
    const Case cases[] = {
        {"ASCII", 'x', 0, 0, 1000, true},
        {"one byte", 'x', 0, 0, 1, true},
        {"UTF-8 or any other 8-bit text", 0xC3, 2, 0xA4, 1001, true},
        {"with tabs, newlines, form feeds", 'x', 3, '\f', 3000, true},
        {"one control byte in 256", 'x', 256, 1, 2560, true},
        {"one control byte in 255", 'x', 255, 1, 2550, false},
        {"one NUL", 'x', 2000, 0, 2000, false},
        {"NULs every 64 KB", 'x', 65536, 0, 400000, false},
        {"a zero", 0, 0, 0, 1, false},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const Case* k = &cases[c];
        memset(bytes, k->base, k->size);
        const size_t every = k->every ? (size_t)k->every : k->size;
        for (size_t i = k->every ? 0 : k->size; i < k->size; i += every) bytes[i] = (unsigned char)k->odd_one;
        TokenFormat format = TOKEN_FORMATS;
        int64_t offset = -1, count = -1;
        Error error = {""};
        bool ok = tokens_recognise(&format, &offset, &count, bytes, k->size, "file", &error);
        check(ok == k->text && (!ok || (format == TOKENS_TEXT && offset == 0 && count == (int64_t)k->size)),
              "recognised: %s, %lld bytes: %s", k->what, (long long)k->size, ok ? "text" : error.text);
    }
    // One NUL in a large file: seen at the very end and in the middle 64 KB, not between them.
    const int nul[] = {0, 65535, 65536, 167232 - 1, 167232, 167232 + 65535, 167232 + 65536, 334463, 334464, 399999};
    for (size_t i = 0; i < sizeof nul / sizeof nul[0]; i++) {
        memset(bytes, 'x', 400000);
        bytes[nul[i]] = 0;
        TokenFormat format = TOKEN_FORMATS;
        int64_t offset, count;
        Error error;
        bool seen = i % 4 < 2; // pairs of places, inside and outside in turn
        bool ok = tokens_recognise(&format, &offset, &count, bytes, 400000, "file", &error);
        check(ok == !seen, "recognised: 400,000 letters with a NUL at %d: %s", nul[i], ok ? "text" : error.text);
    }
}

// Reads all of a list of texts.
static void check_reads(const char* list, const char* expected) {
    TokenFiles files = open_or_die(list);
    int32_t tokens[512];
    char text[513] = "";
    Error error;
    const bool ok = files.tokens <= 512 && tokens_read(tokens, &files, 0, files.tokens, 256, &error);
    const int64_t n = ok ? files.tokens : 0;
    for (int64_t i = 0; i < n; i++) {
        text[i] = (char)tokens[i];
        text[i + 1] = 0;
    }
    check(ok && strcmp(text, expected) == 0, "\"%s\" reads %s", list, text);
    tokens_close(&files);
}

// Lists and patterns: which files they name, in which order.
static void test_lists(void) {
    static const char* const texts[][2] = {{"glob_b.txt", "bb"},  {"glob_a.txt", "a"},          {"glob_10.txt", "ten"},
                                           {"glob_2.txt", "two"}, {"glob_[x]*.txt", "literal"}, {"glob_empty.txt", ""}};
    static const char* const reads[][2] = {
        {"glob_[ab].txt", "abb"},        {"glob_b.txt,glob_a.txt", "bba"},
        {"glob_a.txt,glob_a.txt", "aa"}, {"glob_*.txt", "tentwoliteralabb"},
        {"glob_[x]*.txt", "literal"},    {"glob_a.txt,glob_empty.txt,glob_[ab].txt", "aabb"}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) write_text(texts[i][0], texts[i][1]);
    for (size_t i = 0; i < sizeof reads / sizeof reads[0]; i++) check_reads(reads[i][0], reads[i][1]);
    if (mkdir("nothing", 0777) != 0) die("cannot make a folder");
    check_refused("nothing|nothing/*|nowhere*");
}

// What another user cannot read.
static void test_unreadable(void) {
    write_bytes("locked.bin", "\5\0\6\0", 4);
    write_text("locked.idx", "MMIDIDX");
    write_text("unreadable.txt", "text");
    if (chmod("locked.idx", 0) != 0 || chmod("unreadable.txt", 0) != 0 || mkdir("unreadable", 0) != 0) die("chmod");
    const uid_t me = geteuid();
    if (me == 0 && seteuid(65534) != 0) die("cannot act as another user");
    check_refused("unreadable.txt|unreadable/*.txt|locked.bin");
    if (seteuid(me) != 0) die("cannot act as myself again");
}

static const struct {
    const char* name;
    TokenFormat format;
    int n, magic, version, count;
} headers[] = {{"long.bin", TOKENS_GPT2_SHARD, 200, 20240520, 1, 199},
               {"short.bin", TOKENS_LLAMA3_SHARD, 200, 20240801, 7, 201},
               {"negative.bin", TOKENS_GPT2_SHARD, 200, 20240520, 1, -200},
               {"lowest.bin", TOKENS_LLAMA3_SHARD, 0, 20240801, 7, INT32_MIN},
               {"zero.bin", TOKENS_GPT2_SHARD, 0, 20240520, 1, 0},
               {"version7.bin", TOKENS_GPT2_SHARD, 200, 20240520, 7, 200},
               {"version1.bin", TOKENS_LLAMA3_SHARD, 200, 20240801, 1, 200},
               {"weights.bin", TOKENS_GPT2_SHARD, 200, 20240326, 3, 1024},
               {"tokenizer.bin", TOKENS_GPT2_SHARD, 200, 20240328, 2, 50257},
               {"eval.bin", TOKENS_GPT2_SHARD, 200, 20240522, 1, 10042},
               {"state.bin", TOKENS_GPT2_SHARD, 200, 20240527, 1, 1}};

// (Opening a_fifo does not wait for a writer.)
static const char refused_files[] =
    "missing.bin|missing*.bin|no_folder/*.bin||,|fine.txt,|fine.txt,missing.bin|a_folder|a_fifo|/dev/null|empty.txt|"
    "empty*.txt|odd.bin|cut_header.bin|only_magic.bin|cut.bin|no_tokens.bin|text.gz|a.out|a.jsonl|"
    "kinds_1.bin,kinds_2.txt|kinds_1.bin,kinds_3.txt|kinds_1.bin,kinds_4.bin|kinds_3.txt,kinds_1.bin";

static void test_refused_files(void) {
    uint32_t tokens[200];
    some_tokens(tokens, 200, 50257);
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++)
        check_refused(write_tokens_with_header(headers[i].name, headers[i].format, tokens, headers[i].n,
                                               headers[i].magic, headers[i].version, headers[i].count));
    char shard[3000] = {0};
    const int32_t header[3] = {20240520, 1, 988};
    memcpy(shard, header, sizeof header);
    write_bytes("cut_header.bin", shard, 1023);
    write_bytes("only_magic.bin", shard, 4);
    write_bytes("cut.bin", shard, 2999);
    write_bytes("no_tokens.bin", shard, 1024);
    write_text("fine.txt", "fine");
    write_text("empty.txt", "");
    write_text("empty2.txt", "");
    write_bytes("odd.bin", "a\0b", 3);
    write_bytes("text.gz", "\x1f\x8b\x08\0\0\0\0\0\0\x03", 10);
    write_bytes("a.out", "\177ELF\2\1\1\0\0\0", 10);
    write_bytes("a.jsonl", "\x89PNG\0\1", 6);
    if (mkdir("a_folder", 0777) != 0 || mkfifo("a_fifo", 0666) != 0) die("cannot make a folder");
    // Kinds that do not go together: both files are named.
    write_tokens("kinds_1.bin", TOKENS_GPT2_SHARD, tokens, 200);
    write_tokens("kinds_4.bin", TOKENS_LLAMA3_SHARD, tokens, 200);
    write_text("kinds_2.txt", "text");
    write_text("kinds_3.txt", "");
    check_refused(refused_files);
    check(!is_mapped("/kinds_"), "refused files are not left mapped");
    TokenFiles files;
    Error error;
    check(!tokens_open_list(&files, NULL, 0, &error), "refused: %s", error.text);
}

// ---- Megatron's data sets ---------------------------------------------------------------------------------------

// Both types; and what is no token is named.
static void test_megatron(void) {
    enum { N = 1000 };
    const int codes[] = {4, 8}, widths[] = {4, 2};
    const int64_t top[] = {500000, 65535};
    for (int c = 0; c < 2; c++) {
        int64_t tokens[N];
        for (int i = 0; i < N; i++) tokens[i] = i == 5 ? top[c] : some_token((uint64_t)i, (uint32_t)top[c]);
        write_megatron("mega_type", codes[c], widths[c], tokens, N);
        TokenFiles files = open_or_die("mega_*.bin");
        Error error = {""};
        int32_t read[N];
        int wrong = files.files != 1 || files.tokens != N || files.format != TOKENS_MEGATRON;
        wrong += !tokens_read(read, &files, 0, N, 600000, &error);
        for (int i = 0; i < N; i++) wrong += read[i] != tokens[i];
        tokens_close(&files);
        check(wrong == 0, "Megatron, type %d: the same tokens", codes[c]);
        if (codes[c] != 4) continue;
        tokens[700] = -1;
        write_megatron("mega_type", codes[c], widths[c], tokens, N);
        files = open_or_die("mega_type.bin");
        check(!tokens_read(read, &files, 0, N, 600000, &error) && strstr(error.text, "700"), "refused: %s", error.text);
        tokens_close(&files);
    }
    check(!is_mapped("/mega_type"), "    closed: neither tokens nor index are mapped any more");
}

static int64_t number_at(const IndexBytes* index, size_t at, int width) {
    uint64_t value = 0;
    for (int i = width - 1; i >= 0; i--) value = value << 8 | index->bytes[at + (size_t)i];
    return width == 4 ? (int32_t)value : (int64_t)value;
}

// A second reader, which knows that the first wrote 12 uint16: whether an index is one of a .bin of 24 bytes.
static bool index_is_true(const IndexBytes* index, int64_t S, int64_t D) {
    const size_t sizes = 34, begins = sizes + 4 * (size_t)S;
    const int widths[] = {0, 0, 0, 0, 4, 0, 0, 0, 2};
    if (index->size != begins + 8 * (size_t)(S + D) || memcmp(index->bytes, "MMIDIDX\0\0\1\0\0\0\0\0\0\0", 17) != 0)
        return false;
    if (index->bytes[17] > 8 || !widths[index->bytes[17]]) return false;
    if (number_at(index, 18, 8) != S || number_at(index, 26, 8) != D || D < 2) return false;
    int64_t sum = 0;
    for (int64_t i = 0; i < S; i++) {
        const int64_t size = number_at(index, sizes + 4 * (size_t)i, 4);
        if (size < 0 || number_at(index, begins + 8 * (size_t)i, 8) != sum * widths[index->bytes[17]]) return false;
        sum += size;
    }
    return sum * widths[index->bytes[17]] == 24;
}

// True if index_read() does what the second reader does; *accepted counts.
static bool readers_agree(const IndexBytes* index, int64_t S, int64_t D, int* accepted) {
    TokenType type = TOKEN_UINT8;
    int64_t tokens;
    Error error = {""};
    unsigned char* exact = (unsigned char*)checked_malloc(index->size, "an index"); // the sanitizer sees its end
    memcpy(exact, index->bytes, index->size);
    const bool ok = index_read(&type, &tokens, exact, index->size, 24, "lie.idx", &error);
    free(exact);
    *accepted += ok;
    return ok == index_is_true(index, S, D) && (ok || (strstr(error.text, "lie.idx: ") && !strchr(error.text, '\n')));
}

static void test_megatron_lies(void) {
    const int32_t sizes[] = {3, 0, 4, 5};
    const int64_t ends[] = {1, 3, 4};
    enum { S = 4, D = 4 };
    IndexBytes index = index_bytes(8, 2, sizes, S, ends, D - 1);
    int wrong = 0, accepted = 0, changes = 0;
    check(readers_agree(&index, S, D, &accepted) && accepted == 1, "an index that tells the truth");
    accepted = 0;
    for (size_t byte = 9; byte < index.size; byte++) // without its magic number it is none
        for (int value = 0; value < 256; value++) {
            const unsigned char kept = index.bytes[byte];
            if (value == kept) continue;
            index.bytes[byte] = (unsigned char)value;
            wrong += !readers_agree(&index, S, D, &accepted);
            index.bytes[byte] = kept;
            changes++;
        }
    // what may change: the list of documents, which is not read
    check(wrong == 0 && accepted == 8 * D * 255, "of %d changes of a byte %d are accepted, %d by one reader alone",
          changes, accepted, wrong);
    accepted = 0;
    const size_t whole = index.size;
    for (index.size = 9; index.size < whole + 20; index.size++)
        if (index.size != whole) wrong += !readers_agree(&index, S, D, &accepted);
    check(wrong == 0 && accepted == 0, "an index that is cut or too long anywhere is refused");
    index.size = whole;
    const int64_t extremes[] = {-1, 0, 1, INT64_MAX, INT64_MIN, (int64_t)1 << 61, (int64_t)1 << 60, (int64_t)1 << 32};
    const int64_t wraps[2][2] = {{S + ((int64_t)1 << 62), D},
                                 {S, D + ((int64_t)1 << 61)}}; // the right size, in 64 bits
    for (int i = 0; i < 8 * 8 + 2; i++) {
        const int w = i - 64;
        IndexBytes lie = {index.bytes, 18};
        put(&lie, w < 0 ? extremes[i / 8] : wraps[w][0], 8);
        put(&lie, w < 0 ? extremes[i % 8] : wraps[w][1], 8);
        lie.size = whole;
        wrong += !readers_agree(&lie, S, D, &accepted);
        if (w < 0) continue;
        TokenType type = TOKEN_UINT8;
        int64_t tokens;
        Error error = {""};
        char number[32];
        snprintf(number, sizeof number, "%lld", (long long)wraps[w][w]);
        wrong += index_read(&type, &tokens, lie.bytes, lie.size, 24, "lie.idx", &error) || !strstr(error.text, number);
    }
    check(wrong == 0 && accepted == 0, "and one with absurd numbers of sequences and documents");
    free(index.bytes);

    index = index_bytes(8, 2, sizes, S, ends, -1); // no list of documents, not even a 0
    index.size -= 8;
    wrong += !readers_agree(&index, S, 0, &accepted);
    free(index.bytes);
    const int32_t back[] = {8, -3, 7};
    const int64_t end[] = {3};
    index = index_bytes(8, 2, back, 3, end, 1);
    wrong += !readers_agree(&index, 3, 2, &accepted);
    free(index.bytes);
    check(wrong == 0 && accepted == 0, "one without documents, and one whose sequences go back");
}

static void test_megatron_refused(void) {
    const int64_t tokens[] = {5, 6, 7};
    const int32_t sizes[] = {3};
    const int64_t ends[] = {1};
    static const struct {
        const char* name;
        int code, width, n;
    } sets[] = {{"float6", 6, 8, 3},  {"float7", 7, 4, 3}, {"unknown", 9, 2, 3},  {"typeless", 0, 2, 3},
                {"none", 8, 2, 0},    {"modes", 8, 2, 3},  {"version2", 8, 2, 3}, {"longer", 8, 2, 3},
                {"shorter", 8, 2, 3}, {"gone", 8, 2, 3}};
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        write_megatron(sets[i].name, sets[i].code, sets[i].width, tokens, sets[i].n);
    IndexBytes index = index_bytes(8, 2, sizes, 1, ends, 1);
    write_bytes("alone.idx", index.bytes, index.size);
    write_bytes("no_idx", index.bytes, index.size);
    put(&index, 0, 1);
    write_bytes("modes.idx", index.bytes, index.size--);
    index.bytes[9] = 2;
    write_bytes("version2.idx", index.bytes, index.size);
    free(index.bytes);
    write_bytes("longer.bin", "\5\0\6\0\7\0\0", 7);
    write_bytes("shorter.bin", "\5\0\6\0\7", 5);
    write_bytes("gone.bin", "", 0);
    write_bytes("old.bin", "\5\0\6\0", 4);
    write_bytes("old.idx", "TNTIDX\0\0\1\0\0\0\0\0\0", 16);
    check_refused("float6.bin|float7.bin|unknown.bin|typeless.bin|none.bin|modes.bin|version2.bin|alone.idx|no_idx|"
                  "longer.bin|none|shorter.bin|gone.bin|old.bin|old.idx");
    // The rule that refuses is seen by a number or a word of its error.
    static const char* const rules[][2] = {
        {"typeless.bin", "type 0"}, {"unknown.bin", "type 9"}, {"none.bin", "0 sequences"}};
    for (int i = 0; i < 3; i++) {
        TokenFiles unread;
        Error error = {""};
        check(!tokens_open(&unread, rules[i][0], &error) && strstr(error.text, rules[i][1]), "refused: %s", error.text);
    }
    write_text("other.idx", "an index of something else");
    TokenFiles files = open_or_die(write_text("other.bin", "text"));
    check(files.format == TOKENS_TEXT && files.tokens == 4, "a .bin beside the index of something else is by itself");
    tokens_close(&files);
}

int main(void) {
    alarm(120); // a hang is a failure
    folder_begin("test_token_files");
    for (int format = 0; format < TOKENS_JSONL; format++) test_streams((TokenFormat)format);
    test_recognition();
    test_lists();
    test_unreadable();
    test_refused_files();
    test_megatron();
    test_megatron_lies();
    test_megatron_refused();
    return folder_end();
}
