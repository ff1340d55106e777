/*
fuzz_tokenizer.c: no bytes in a vocabulary's file may crash dataloader/tokenizer.h; what it reads encodes
any bytes, and gives them back.

A file is a small vocabulary, of which some bytes were changed, removed, doubled or swapped with
others.
*/
#include "../../../dataloader/tokenizer.h"
#include "fuzz.h"

enum { MOST = 1 << 16 };

// A vocabulary that was read: any text comes back.
static void check_vocabulary(const Tokenizer* t) {
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
}

static bool fuzz_one(const unsigned char* data, size_t size) {
    static const char path[] = "build/fuzz_tokenizer.input";
    Error error = {""};
    Tokenizer t;
    put_file(path, data, size);
    const bool opened = tokenizer_open(&t, path, &error);
    REQUIRE(opened || *error.text);
    if (opened) {
        check_vocabulary(&t);
        tokenizer_free(&t);
    }
    unlink(path);
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

static size_t make_input(unsigned char* data, uint64_t i) {
    static const char* const sources[] = {"dev/test/reference/tokenizer_gpt2.json",
                                          "dev/test/reference/tokenizer_llama3.json"};
    MappedFile file;
    Error error;
    if (!file_map(&file, sources[i % 2], &error)) die("%s", error.text);
    memcpy(data, file.data, file.size);
    const size_t size = damage(data, file.size);
    file_unmap(&file);
    return size;
}

static const Fuzzer fuzzer = {MOST, make_input, fuzz_one, 1};
FUZZ_MAIN(fuzzer, "fuzz_tokenizer")
