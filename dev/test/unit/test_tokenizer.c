/*
test_tokenizer.c: dataloader/tokenizer.h beside the public packages (dev/test/reference/tokenizer_*, made by
make_tokenizer.py), beside plain programs that do the same by definition, and with files that are wrong.
*/
#include "../../../dataloader/tokenizer.h"
#include "../../../dataloader/tokenizer/cut.h"
#include "test.h"

#define REFERENCE "dev/test/reference/"

static Tokenizer open_or_die(const char* path) {
    Tokenizer t;
    Error error;
    if (!tokenizer_open(&t, path, &error)) die("%s", error.text);
    return t;
}

// Random numbers below n.
typedef struct {
    uint64_t at;
} Draw;
static uint32_t draw(Draw* d, uint32_t n) { return philox(7, 11, d->at++).word[0] % n; }

// A text of pieces that the splits tell apart, and of any bytes.
static size_t draw_text(Draw* d, unsigned char* s, size_t most) {
    // clang-format off
    static const char* const pieces[] = {" ", " ", "\n", "\r\n", "\t", "a", "the", "S", "'s", "'LL", "'", "\xC5\xBF",
        "\xC3\xA9", "\xE4\xB8\xAD", "\xCC\x81", "1", "2024", "\xD9\xA3", "\xC2\xA0", "\xE2\x80\xA8",
        "\xE3\x80\x80", ".", "!=", "\xF0\x9F\x98\x80", "<|endoftext|>", "\xE4\xB8", "\xFF", "\xC0", "\x80", "aaaa",
        "   ", "\n\n"};
    // clang-format on
    size_t n = 0;
    for (;;) {
        char byte[2] = {(char)draw(d, 256), 0};
        const bool any = draw(d, 8) == 0;
        const char* piece = any ? byte : pieces[draw(d, sizeof pieces / sizeof pieces[0])];
        const size_t bytes = any ? 1 : strlen(piece);
        if (n + bytes > most) return n;
        memcpy(s + n, piece, bytes);
        n += bytes;
    }
}

// Tokens by an encoder that has met no word before.
static void encode(TokenList* list, const Tokenizer* t, const unsigned char* s, size_t n, bool special) {
    Encoder e;
    encoder_open(&e);
    list->count = 0;
    tokenizer_encode(t, &e, list, s, n, special);
    encoder_close(&e);
}

static bool same_tokens(const TokenList* a, const TokenList* b) {
    return a->count == b->count && (a->count == 0 || memcmp(a->token, b->token, a->count * sizeof *a->token) == 0);
}

// True if the tokens stand for these bytes.
static bool decodes_to(const Tokenizer* t, const TokenList* list, const unsigned char* s, size_t n) {
    size_t at = 0;
    for (size_t i = 0; i < list->count; i++) {
        size_t bytes;
        const unsigned char* b = tokenizer_decode(t, list->token[i], &bytes);
        if (bytes == 0 || at + bytes > n || memcmp(b, s + at, bytes) != 0) return false;
        at += bytes;
    }
    return at == n;
}

static bool same_tokenizer(const Tokenizer* a, const Tokenizer* b) {
    if (a->vocab != b->vocab || a->split != b->split || a->merge_count != b->merge_count ||
        a->whole_words != b->whole_words || a->added_count != b->added_count || a->document != b->document)
        return false;
    for (uint32_t i = 0; i < (uint32_t)a->vocab; i++) {
        const uint32_t n = token_bytes(a, i);
        if (n != token_bytes(b, i) || memcmp(a->bytes + a->begin[i], b->bytes + b->begin[i], n) != 0) return false;
        if (tokenizer_find(a, a->bytes + a->begin[i], n) != tokenizer_find(b, a->bytes + a->begin[i], n)) return false;
    }
    for (uint64_t i = 0; i <= a->merge_mask; i++) {
        const Merge* m = &a->merges[i];
        if (m->pair == NO_PAIR) continue;
        const Merge* other = merge_slot(b, (uint32_t)(m->pair >> 32), (uint32_t)m->pair);
        if (other->pair != m->pair || other->rank != m->rank || other->token != m->token) return false;
    }
    return true;
}

// ---- Characters -------------------------------------------------------------------------------------------------

static void test_characters(void) {
    int64_t count[4] = {0, 0, 0, 0};
    bool wide = true, letters = true;
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000) continue;
        char s[4];
        size_t bytes;
        const size_t n = (size_t)(json_utf8_write(s, c) - s);
        const CharClass found = char_class((unsigned char*)s, n, &bytes);
        count[found]++;
        wide = wide && bytes == n && found == unicode_class(c);
    }
    check(wide, "every character is read from UTF-8");
    check(count[CHAR_LETTER] == 141028 && count[CHAR_NUMBER] == 1911 && count[CHAR_SPACE] == 25,
          "Unicode 16.0 has 141028 letters, 1911 numbers and 25 kinds of white space: %lld, %lld, %lld",
          (long long)count[1], (long long)count[2], (long long)count[3]);
    const struct {
        uint32_t code;
        CharClass is;
    } known[] = {{'z', CHAR_LETTER},     {'{', CHAR_OTHER},     {'0', CHAR_NUMBER},     {' ', CHAR_SPACE},
                 {0x1C, CHAR_OTHER},     {0x85, CHAR_SPACE},    {0xA0, CHAR_SPACE},     {0xAA, CHAR_LETTER},
                 {0xBD, CHAR_NUMBER},    {0x301, CHAR_OTHER},   {0x200B, CHAR_OTHER},   {0x2167, CHAR_NUMBER},
                 {0x3000, CHAR_SPACE},   {0x3007, CHAR_NUMBER}, {0x4E2D, CHAR_LETTER},  {0xFEFF, CHAR_OTHER},
                 {0x10400, CHAR_LETTER}, {0x1F600, CHAR_OTHER}, {0x323AF, CHAR_LETTER}, {0x323B0, CHAR_OTHER},
                 {0x10FFFF, CHAR_OTHER}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        letters = letters && unicode_class(known[i].code) == known[i].is;
    check(letters, "characters whose class is known");
    bool once[324] = {false}, bijection = true;
    for (int b = 0; b < 256; b++) {
        const uint32_t c = byte_to_letter(b);
        bijection = bijection && c < 324 && !once[c] && letter_to_byte(c) == b;
        if (c < 324) once[c] = true;
    }
    for (uint32_t c = 0; c < 70000; c++) bijection = bijection && (letter_to_byte(c) >= 0) == (c < 324 && once[c]);
    check(bijection && byte_to_letter(' ') == 0x120 && byte_to_letter(173) == 0x143,
          "every byte has a letter of its own, a blank U+0120");
}

// ---- Beside the public packages ---------------------------------------------------------------------------------

enum { GPT2, LLAMA3, QWEN2, KINDS };
static const char* const kinds[] = {"gpt2", "llama3", "qwen2", "special"};

static int hex_digit(int c) { return c >= 'a' ? c - 'a' + 10 : c - '0'; }

// A line "NAME HEX NUMBER NUMBER ...".
typedef struct {
    int kind; // KINDS: "special"
    unsigned char text[4096];
    size_t n;
    int32_t number[4096];
    size_t numbers;
} Case;

static void read_case(Case* c, const unsigned char* line, size_t size) {
    char* copy = strndup((const char*)line, size);
    if (!copy) die("out of memory");
    char* at = strchr(copy, ' ');
    *at = 0;
    c->kind = 0;
    c->n = c->numbers = 0;
    while (strcmp(kinds[c->kind], copy) != 0) c->kind++; // one of them
    for (at++; *at != ' '; at += *at == '-' ? 1 : 2)
        if (*at != '-') c->text[c->n++] = (unsigned char)(hex_digit(at[0]) << 4 | hex_digit(at[1]));
    for (char* end; *at == ' ' && at[1]; at = end) c->number[c->numbers++] = (int32_t)strtol(at, &end, 10);
    free(copy);
}

// The words of texts as tokenizers finds them.
static void test_words(void) {
    static const SplitKind splits[KINDS] = {SPLIT_GPT2, SPLIT_LLAMA3, SPLIT_QWEN2};
    static Case c;
    int counted[KINDS] = {0}, wrong[KINDS] = {0};
    MappedFile file;
    Error error;
    if (!file_map(&file, REFERENCE "tokenizer_words.txt", &error)) die("%s", error.text);
    for (size_t at = 0; at < file.size;) {
        const unsigned char* line;
        const size_t n = next_line(&line, file.data, file.size, &at);
        read_case(&c, line, n);
        size_t i = 0, word = 0;
        for (size_t end; word < c.n; word = end, i++) {
            end = split_word(splits[c.kind], c.text, c.n, word);
            if (i >= c.numbers || (size_t)c.number[i] != end - word) break;
        }
        counted[c.kind]++;
        wrong[c.kind] += word < c.n || i != c.numbers;
    }
    file_unmap(&file);
    for (int i = 0; i < KINDS; i++)
        check(counted[i] > 400 && wrong[i] == 0, "words, split %-8s %d texts, %d of them differ from tokenizers'",
              kinds[i], counted[i], wrong[i]);
}

static void test_reference(void) {
    // Qwen's split is that of the second file, said otherwise
    Tokenizer t[KINDS] = {open_or_die(REFERENCE "tokenizer_gpt2.json"), open_or_die(REFERENCE "tokenizer_llama3.json"),
                          open_or_die(REFERENCE "tokenizer_llama3.json")};
    check(t[GPT2].split == SPLIT_GPT2 && t[LLAMA3].split == SPLIT_LLAMA3, "a tokenizer.json says how a text is split");
    t[QWEN2].split = SPLIT_QWEN2;
    Encoder e[KINDS];
    for (int i = 0; i < KINDS; i++) encoder_open(&e[i]);
    static Case c;
    TokenList list = {NULL, 0, 0};
    int counted[KINDS + 1] = {0}, wrong[KINDS + 1] = {0}, broken = 0;
    MappedFile file;
    Error error;
    if (!file_map(&file, REFERENCE "tokenizer_cases.txt", &error)) die("%s", error.text);
    for (size_t at = 0; at < file.size;) {
        const unsigned char* line;
        const size_t n = next_line(&line, file.data, file.size, &at);
        read_case(&c, line, n);
        const int kind = c.kind == KINDS ? GPT2 : c.kind;
        list.count = 0;
        tokenizer_encode(&t[kind], &e[kind], &list, c.text, c.n, c.kind == KINDS);
        const TokenList wanted = {c.number, c.numbers, 0};
        counted[c.kind]++;
        wrong[c.kind] += !same_tokens(&list, &wanted);
        broken += !decodes_to(&t[kind], &list, c.text, c.n);
    }
    file_unmap(&file);
    for (int i = 0; i <= KINDS; i++)
        check(counted[i] > 100 && wrong[i] == 0, "%-8s %d texts, %d of them differ from the public packages'", kinds[i],
              counted[i], wrong[i]);
    check(broken == 0, "all of them come back byte by byte");
    token_list_free(&list);
    for (int i = 0; i < KINDS; i++) tokenizer_free(&t[i]), encoder_close(&e[i]);
}

// ---- Beside the definition --------------------------------------------------------------------------------------

// The merges of a word by definition: of all neighbours those of the lowest rank, leftmost first. Looks at the table
// alone.
static int merge_plainly(int32_t* token, const Tokenizer* t, const unsigned char* s, int n) {
    for (int i = 0; i < n; i++) token[i] = (int32_t)t->byte_token[s[i]];
    for (;;) {
        int best = -1;
        uint32_t rank = NO_RANK, made = 0;
        for (int i = 0; i + 1 < n; i++)
            for (uint64_t k = 0; k <= t->merge_mask; k++) {
                const Merge* m = &t->merges[k];
                if (m->pair != ((uint64_t)token[i] << 32 | (uint32_t)token[i + 1]) || m->rank >= rank) continue;
                best = i;
                rank = m->rank;
                made = m->token;
            }
        if (best < 0) return n;
        token[best] = (int32_t)made;
        memmove(token + best + 1, token + best + 2, (size_t)(n - best - 2) * sizeof *token);
        n--;
    }
}

static bool is_encoded_plainly(const Tokenizer* t, const TokenList* list, const unsigned char* s, size_t n) {
    size_t i = 0;
    int32_t token[512];
    for (size_t at = 0, end; at < n; at = end) {
        end = split_word(t->split, s, n, at);
        const int64_t whole = t->whole_words ? tokenizer_find(t, s + at, end - at) : -1;
        int count = 1;
        token[0] = (int32_t)whole;
        if (whole < 0) count = merge_plainly(token, t, s + at, (int)(end - at));
        for (int k = 0; k < count; k++, i++)
            if (i >= list->count || list->token[i] != token[k]) return false;
    }
    return i == list->count;
}

// All that has to hold of a text's tokens, whatever the vocabulary.
static void test_properties(const char* what, const Tokenizer* t, int rounds) {
    Draw d = {0};
    Encoder warm; // has met all texts before
    encoder_open(&warm);
    int plain = 0, back = 0, cached = 0, cuts = 0, wrong_cuts = 0;
    for (int round = 0; round < rounds; round++) {
        unsigned char s[400];
        const size_t n = draw_text(&d, s, 1 + draw(&d, 399));
        TokenList list = {NULL, 0, 0}, other = {NULL, 0, 0};
        encode(&list, t, s, n, false);
        plain += is_encoded_plainly(t, &list, s, n);
        back += decodes_to(t, &list, s, n);
        for (int k = 0; k < 2; k++) {
            other.count = 0;
            tokenizer_encode(t, &warm, &other, s, n, false);
            cached += same_tokens(&other, &list);
        }
        for (size_t at = tokenizer_cut(t, s, n, 0, false); at < n; at = tokenizer_cut(t, s, n, at + 1, false), cuts++) {
            other.count = 0;
            tokenizer_encode(t, &warm, &other, s, at, false);
            tokenizer_encode(t, &warm, &other, s + at, n - at, false);
            wrong_cuts += !same_tokens(&other, &list);
        }
        token_list_free(&list);
        token_list_free(&other);
    }
    encoder_close(&warm);
    check(plain == rounds, "%s: %d of %d texts have the tokens that the definition gives them", what, plain, rounds);
    check(back == rounds, "%s: %d of %d texts of any bytes come back", what, back, rounds);
    check(cached == 2 * rounds, "%s: a cache of words changes nothing (%d of %d)", what, cached, 2 * rounds);
    check(cuts > rounds && wrong_cuts == 0, "%s: %d places to cut a text, of %d the tokens differ", what, cuts,
          wrong_cuts);
}

static void test_definition(bool brief) {
    Tokenizer t = open_or_die(REFERENCE "tokenizer_gpt2.json"), whole = open_or_die(REFERENCE "tokenizer_llama3.json"),
              bytes;
    tokenizer_bytes(&bytes);
    whole.whole_words = true;
    for (int split = SPLIT_GPT2; split < SPLIT_KINDS; split++) {
        char what[64];
        t.split = (SplitKind)split;
        snprintf(what, sizeof what, "merges, split %s", kinds[split - SPLIT_GPT2]);
        test_properties(what, &t, brief ? 30 : 200);
    }
    test_properties("whole words", &whole, brief ? 30 : 200);
    unsigned char s[256];
    TokenList list = {NULL, 0, 0};
    bool same = true;
    for (int i = 0; i < 256; i++) s[i] = (unsigned char)(255 - i);
    encode(&list, &bytes, s, sizeof s, true);
    for (int i = 0; i < 256; i++) same = same && list.token[i] == 255 - i;
    check(list.count == 256 && same, "without a vocabulary, a byte is its own token");
    token_list_free(&list);
    tokenizer_free(&t);
    tokenizer_free(&whole);
    tokenizer_free(&bytes);
}

// A vocabulary of the bytes and n more tokens, of which those from `apart` on are no results of merges.
static Tokenizer vocabulary_by_hand(const char* const* more, int n, int apart) {
    unsigned char all[256];
    TokenText text[300];
    Tokenizer t;
    Error error;
    for (int i = 0; i < 256 + n; i++) {
        if (i < 256) all[i] = (unsigned char)i;
        text[i].bytes = i < 256 ? &all[i] : (const unsigned char*)more[i - 256];
        text[i].n = i < 256 ? 1 : strlen(more[i - 256]);
        text[i].apart = i >= 256 + apart;
    }
    if (!tokenizer_begin(&t, text, 256 + n, SPLIT_GPT2, "by hand", &error)) die("%s", error.text);
    tokenizer_reserve(&t, n);
    return t;
}

// Words of few tokens that differ in one part only: more of them than the cache has slots, so that many meet in one.
static void test_crowded_cache(void) {
    enum { WORDS = 150000, CHANGES = 4 };
    static const char* const runs[] = {"aa", "aaaa", "aaaaaaaa", "aaaaaaaaaaaaaaaa"};
    Tokenizer t = vocabulary_by_hand(runs, 4, 4);
    for (uint32_t i = 0; i < 4; i++) tokenizer_merge(&t, i ? 255 + i : 'a', i ? 255 + i : 'a', i, 256 + i);
    for (int part = 0; part < 3; part++) {
        const size_t bytes = (size_t)part * 8 + CHANGES + 1, size = WORDS * bytes;
        unsigned char* s = (unsigned char*)checked_malloc(size, "many words");
        memset(s, 'a', size);
        for (size_t w = 0; w < WORDS; w++) {
            s[(w + 1) * bytes - 1] = '\n';
            for (size_t k = 0, left = w; k < CHANGES; k++, left /= 25)
                s[w * bytes + (size_t)part * 8 + k] = (unsigned char)('b' + left % 25);
        }
        TokenList list = {NULL, 0, 0};
        encode(&list, &t, s, size, false);
        check(list.count <= WORDS * CACHED_TOKENS && decodes_to(&t, &list, s, size),
              "%d words that differ from byte %d on", WORDS, part * 8);
        token_list_free(&list);
        free(s);
    }
    tokenizer_free(&t);
}

// True if these are the tokens of a text.
static bool encodes_to(const Tokenizer* t, const char* text, bool special, const char* tokens) {
    TokenList list = {NULL, 0, 0};
    char got[256] = "";
    encode(&list, t, (const unsigned char*)text, strlen(text), special);
    for (size_t i = 0; i < list.count; i++) snprintf(got + strlen(got), sizeof got - strlen(got), " %d", list.token[i]);
    token_list_free(&list);
    return check(strcmp(got, tokens) == 0, "%s has the tokens%s", text, got);
}

// A token that its merges do not make, and added tokens of which one begins with another: by hand.
static void test_made_by_hand(void) {
    static const char* const more[] = {"ab", "bc", "abc", "<x", "<xy", "<xyz", "<xyzs"};
    Tokenizer t = vocabulary_by_hand(more, 7, 3);
    tokenizer_merge(&t, 'b', 'c', 0, 257);
    tokenizer_merge(&t, 'a', 'b', 1, 256);
    tokenizer_merge(&t, 256, 'c', 2, 258);
    encodes_to(&t, "abc", false, " 97 257");
    t.whole_words = true;
    encodes_to(&t, "abc", false, " 258");
    encodes_to(&t, "abcabc", false, " 97 257 97 257");
    tokenizer_add(&t, 259, false);
    tokenizer_add(&t, 261, false);
    tokenizer_add(&t, 260, false);
    tokenizer_add(&t, 262, true);
    encodes_to(&t, "<x<xy<xyz<xyzs", false, " 259 260 261 261 115");
    encodes_to(&t, "<x<xy<xyz<xyzs", true, " 259 260 261 262");
    tokenizer_free(&t);
}

// A megabyte in one word: in the square of its length this would take hours.
static void test_long_words(void) {
    const size_t n = 1 << 20;
    unsigned char* s = (unsigned char*)checked_malloc(n, "a long word");
    Tokenizer t = open_or_die(REFERENCE "tokenizer_gpt2.json");
    TokenList list = {NULL, 0, 0};
    memset(s, 'a', n);
    encode(&list, &t, s, n, false);
    check(decodes_to(&t, &list, s, n), "a word of a megabyte comes back");
    token_list_free(&list);
    tokenizer_free(&t);
    free(s);
}

// ---- Files ------------------------------------------------------------------------------------------------------

// part: of the error, "" where it does not matter.
static void check_refused(const char* path, const char* what, const char* part) {
    Tokenizer t;
    Error error = {""};
    const bool opened = tokenizer_open(&t, path, &error);
    check(!opened && *error.text && strstr(error.text, part), "%s: %s", what, opened ? "is read" : error.text);
    if (opened) tokenizer_free(&t);
}

static void test_byte_file(void) {
    FILE* out = fopen("bytes.json", "w");
    if (!out) die("cannot write bytes.json");
    write_byte_tokenizer(out);
    fclose(out);
    Tokenizer bytes, again = open_or_die("bytes.json");
    tokenizer_bytes(&bytes);
    check(same_tokenizer(&bytes, &again) && again.split == SPLIT_BYTES, "the bytes, written and read again");
    tokenizer_free(&bytes);
    tokenizer_free(&again);
}

// vocab.json and merges.txt, written from a tokenizer.json: names and merges as they stand there.
static void write_two_files(const char* vocab_end, const char* merges_begin, const char* merges_end) {
    Json json;
    Error error;
    if (!json_open(&json, REFERENCE "tokenizer_gpt2.json", &error)) die("%s", error.text);
    const JsonNode* model = json_get(json.nodes, "model");
    FILE *v = fopen("vocab.json", "w"), *m = fopen("merges.txt", "w");
    if (!v || !m) die("cannot write");
    fputc('{', v);
    for (const JsonNode* n = json_first(json_get(model, "vocab")); n; n = json_next(n)) {
        json_write_string(v, n->name);
        fprintf(v, ": %lld, ", (long long)n->value.integer);
    }
    fprintf(v, "\"<|endoftext|>\": %u%s", json_get(model, "vocab")->count, vocab_end);
    fputs(merges_begin, m);
    for (const JsonNode* n = json_first(json_get(model, "merges")); n; n = json_next(n)) {
        const JsonNode* left = json_first(n);
        fprintf(m, "%s %s\n", left->value.string, json_next(left)->value.string);
    }
    fputs(merges_end, m);
    fclose(v);
    fclose(m);
    json_free(&json);
}

static void test_two_files(void) {
    Tokenizer t = open_or_die(REFERENCE "tokenizer_gpt2.json");
    write_two_files("}", "#version: 0.2\n", "");
    Tokenizer by_vocab = open_or_die("vocab.json"), by_folder = open_or_die(own_folder);
    // "<|endoftext|>" is a name among the others here, so that it is found by its bytes: the one difference
    check(by_vocab.vocab == t.vocab && by_vocab.merge_count == t.merge_count && by_vocab.document == t.document,
          "vocab.json and merges.txt");
    check(same_tokenizer(&by_vocab, &by_folder), "the file, or the folder, is named");
    test_properties("two files", &by_vocab, 20);
    tokenizer_free(&t);
    tokenizer_free(&by_vocab);
    tokenizer_free(&by_folder);
}

// ---- Files that are wrong ---------------------------------------------------------------------------------------

// The reference's tokenizer.json with one text replaced by another.
static void check_json(const char* from, const char* to, const char* part) {
    MappedFile file;
    Error error;
    if (!file_map(&file, REFERENCE "tokenizer_llama3.json", &error)) die("%s", error.text);
    const unsigned char* at = (const unsigned char*)memmem(file.data, file.size, from, strlen(from));
    if (!at) die("%s is not in " REFERENCE "tokenizer_llama3.json", from);
    FILE* f = fopen("wrong.json", "wb");
    if (!f) die("cannot write wrong.json");
    const unsigned char* behind = at + strlen(from);
    fprintf(f, "%.*s%s", (int)(at - file.data), file.data, to);
    fwrite(behind, 1, (size_t)(file.data + file.size - behind), f);
    fclose(f);
    file_unmap(&file);
    check_refused("wrong.json", to, part);
}

// A tokenizer.json with something else in place of a text.
static const char* const wrong_json[][2] = {
    {"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}"},
    {"\"type\":\"BPE\"", "\"type\":\"Unigram\""},
    {"\"byte_fallback\":false", "\"byte_fallback\":true"},
    {"\"dropout\":null", "\"dropout\":0.1"},
    {"\"continuing_subword_prefix\":null", "\"continuing_subword_prefix\":\"##\""},
    {"\"add_prefix_space\":false", "\"add_prefix_space\":true"},
    {"\"use_regex\":false", "\"use_regex\":true"},
    {"\\\\p{N}{1,3}", "\\\\p{N}{1,2}"},
    {"\"Isolated\"", "\"Removed\""},
    {"\"Sequence\"", "\"Whitespace\""},
    {"\"lstrip\":false", "\"lstrip\":true"},
    {"\"content\":\"<|endoftext|>\"", "\"content\":\"\""},
    {"\"id\":377", "\"id\":99999999"},
    {"\"!\":0", "\"!\":1"},
    {"\"!\":0", "\"!\":-1"},
    {"\"!\":0", "\"!\":1e3"},
    {"\"!\":0", "\"\xE4\xB8\xAD\":0"},
    {"\"!\":0,", ""},
    {"\"merges\":[[\"", "\"merges\":[[\"x"},
    {"\"merges\":[", "\"merges\":[[\"!\",\"!\"],"},
    {"\"merges\":[", "\"merges\":[7,"},
    {"\"merges\":[", "\"merges\":[\"a\","},
    {"\"merges\":[", "\"merges\":[[\"a\",\"b\",\"c\"],"},
    {"\"merges\":", "\"merge\":"},
    {"\"vocab\":{", "\"vocab\":{,"},
};

static void test_wrong_files(void) {
    check_refused("nothing", "a file that is not there", "");
    check_refused("dev/test", "a folder without one", "");
    check_refused(write_text("other", ""), "an empty file", "tokenizer.json");
    check_refused(write_text("other", "\n\x0e\n\x05<unk>"), "SentencePiece", "tokenizer.json");
    check_refused(write_text("other", "IQ== 0\nIg== 1\n"), "tiktoken", "tokenizer.json");
    for (size_t i = 0; i < sizeof wrong_json / sizeof wrong_json[0]; i++)
        check_json(wrong_json[i][0], wrong_json[i][1], "");
    check_json("\"id\":377", "\"id\":37", "another name");
    write_two_files("", "", "");
    check_refused("vocab.json", "vocab.json that is cut off", "");
    write_two_files("}", "#version: 0.2\n", "a b c\n");
    check_refused("vocab.json", "a merge of three", "");
    write_two_files("}", "#version: 0.2\n\n", "");
    check_refused("vocab.json", "an empty line", "");
    check_refused("merges.txt", "merges.txt, in place of vocab.json", "vocab.json");
    unlink("merges.txt");
    check_refused("vocab.json", "vocab.json alone", "");
}

// ---- What a terminal gets ---------------------------------------------------------------------------------------

static void test_writer(void) {
    Tokenizer t = open_or_die(REFERENCE "tokenizer_gpt2.json");
    const unsigned char text[] = "a\xE4\xB8\xAD\xC2\x9B\xC2\xA1\x01\xE4\xB8z\n\xFF\xF0\x9F\x98\x80\xF0\x8A\x84\x8E\xED"
                                 "\xA0\x80\xF4\x90\x80\x80<|endoftext|>";
    TokenList list = {NULL, 0, 0};
    encode(&list, &t, text, sizeof text - 1, true);
    char* got = NULL;
    size_t size = 0;
    TextWriter w = {open_memstream(&got, &size), "", 0, 0};
    if (!w.out) die("out of memory");
    for (size_t i = 0; i < list.count; i++) text_writer_put_token(&w, &t, list.token[i]);
    text_writer_put_token(&w, &t, t.vocab);
    text_writer_end(&w);
    fclose(w.out);
    check(strcmp(got, "a\xE4\xB8\xAD?\xC2\xA1??z\n?\xF0\x9F\x98\x80???"
                      "<|endoftext|>?") == 0,
          "a terminal gets characters, and '?' for what is none: %s", got);
    free(got);
    token_list_free(&list);
    tokenizer_free(&t);
}

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    char* dev = realpath("dev", NULL); // of the project: the references stay where their paths say
    folder_begin("test_tokenizer");
    if (!dev || symlink(dev, "dev") != 0) die("run from the project's folder");
    free(dev);
    test_characters();
    test_words();
    test_reference();
    test_definition(brief);
    test_crowded_cache();
    test_made_by_hand();
    test_long_words();
    test_byte_file();
    test_two_files();
    test_wrong_files();
    test_writer();
    return folder_end();
}
