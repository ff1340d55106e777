/*
fuzz_tokenizer.c: no bytes in a vocabulary's file may crash dataloader/tokenizer/vocab_files.h; what it reads encodes
any bytes, and gives them back.

    ./fuzz_tokenizer SECONDS SEED      mutates inputs of its own; reproducible but for the number of them
    ./fuzz_tokenizer FILE              runs one file, which a crash has left behind

A file is a small vocabulary of one of the formats, of which some bytes were changed, removed, doubled or swapped with
others.
*/
#include "../../../dataloader/tokenizer.h"
#include "../unit/test.h"

enum { MOST = 1 << 16 };

#define REQUIRE(condition)                                                                                             \
    if (!(condition)) {                                                                                                \
        fprintf(stderr, "fuzz_tokenizer: line %d: %s\n", __LINE__, #condition);                                        \
        abort();                                                                                                       \
    }

static uint64_t drawn, seed;
static uint32_t draw(uint32_t n) { return philox(seed, 5, drawn++).word[0] % n; }

static void put(const char* path, const unsigned char* s, size_t n) {
    FILE* f = fopen(path, "wb");
    if (!f || fwrite(s, 1, n, f) != n || fclose(f) != 0) die("cannot write %s", path);
}

// A vocabulary that was read: any text comes back, and it is the same when it was written and read again.
static void check_vocabulary(const Tokenizer* t, const char* saved) {
    Encoder e;
    TokenList list = {NULL, 0, 0};
    encoder_open(&e);
    for (int round = 0; round < 4; round++) {
        unsigned char s[200];
        const size_t n = draw(sizeof s);
        for (size_t i = 0; i < n; i++) s[i] = draw(3) ? (unsigned char)draw(256) : (unsigned char)" \n'aso1<|"[draw(9)];
        list.count = 0;
        tokenizer_encode(t, &e, &list, s, n, round & 1);
        size_t at = 0;
        for (size_t i = 0; i < list.count; i++) {
            size_t bytes;
            const unsigned char* b = tokenizer_decode(t, list.token[i], &bytes);
            REQUIRE(list.token[i] >= 0 && list.token[i] < t->vocab && bytes > 0 && at + bytes <= n);
            REQUIRE(memcmp(b, s + at, bytes) == 0);
            at += bytes;
        }
        REQUIRE(at == n);
    }
    encoder_close(&e);
    token_list_free(&list);
    Error error = {""};
    Tokenizer again;
    REQUIRE(tokenizer_save(t, saved, &error));
    const bool opened = tokenizer_open(&again, saved, -1, &error);
    if (opened) {
        REQUIRE(again.vocab == t->vocab && again.merge_count == t->merge_count);
        tokenizer_free(&again);
    } else {
        REQUIRE(*error.text); // such as an added token that a JSON file has no name for
    }
}

static bool run_file(const char* path, const char* saved) {
    Error error = {""};
    Tokenizer t;
    const bool opened = tokenizer_open(&t, path, draw(4) ? -1 : (int)(SPLIT_GPT2 + draw(SPLIT_KINDS - 1)), &error);
    if (opened) {
        check_vocabulary(&t, saved);
        tokenizer_free(&t);
    } else {
        REQUIRE(*error.text);
    }
    return opened;
}

// Some small damage, or none.
static size_t damage(unsigned char* s, size_t n) {
    for (uint32_t k = draw(4); k > 0 && n > 16; k--) {
        const size_t at = draw((uint32_t)n - 8), bytes = 1 + draw(8), other = draw((uint32_t)n - 8);
        switch (draw(6)) {
        case 0: s[at] = (unsigned char)draw(256); break;
        case 1: s[at] = (unsigned char)"\"{}[]:, \\0123456789-"[draw(20)]; break;
        case 2: memmove(s + at, s + at + bytes, n - at - bytes), n -= bytes; break;
        case 3: memmove(s + at, s + other, bytes); break;
        case 4:
            if (n + bytes > MOST) break;
            memmove(s + at + bytes, s + at, n - at), n += bytes;
            break;
        case 5:
            if (draw(4) == 0) n = at;
            break;
        }
    }
    return n;
}

int main(int argc, char** argv) {
    static const char* const sources[] = {"dev/test/reference/tokenizer_gpt2.json",
                                          "dev/test/reference/tokenizer_llama3.json",
                                          "dev/test/reference/tokenizer.tiktoken"};
    char vocabulary[300], saved[320];
    make_temporary(vocabulary, sizeof vocabulary, "fuzz_tokenizer");
    snprintf(saved, sizeof saved, "%s.json", vocabulary);
    if (argc == 2) {
        run_file(argv[1], saved);
        unlink(saved);
        unlink(vocabulary);
        return 0;
    }
    if (argc != 3) die_usage("fuzz_tokenizer SECONDS SEED, or FILE");
    const double end = seconds_now() + atof(argv[1]);
    seed = (uint64_t)atoll(argv[2]);
    int files = 0, read = 0;
    static unsigned char s[MOST + 16];
    while (seconds_now() < end) {
        MappedFile file;
        Error error;
        if (!file_map(&file, sources[files % 3], &error)) die("%s", error.text);
        memcpy(s, file.data, file.size);
        put(vocabulary, s, damage(s, file.size));
        file_unmap(&file);
        read += run_file(vocabulary, saved);
        files++;
    }
    unlink(vocabulary);
    unlink(saved);
    check(files > 20 && read > 0 && read < files, "%d files, of which %d could be read", files, read);
    return test_end();
}
