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
    const char* path = path_of("tokenizer.json");
    Error error = {""};
    Tokenizer t;
    write_bytes(path, data, size);
    const bool opened = tokenizer_open(&t, path, &error);
    REQUIRE(opened || *error.text);
    if (opened) {
        check_vocabulary(&t);
        tokenizer_free(&t);
    }
    return opened;
}

static size_t make_input(unsigned char* data, uint64_t i) {
    static const char* const sources[] = {"dev/test/reference/tokenizer_gpt2.json",
                                          "dev/test/reference/tokenizer_llama3.json"};
    MappedFile file;
    Error error;
    if (!file_map(&file, sources[i % 2], &error)) die("%s", error.text);
    memcpy(data, file.data, file.size);
    size_t size = file.size;
    file_unmap(&file);
    for (uint32_t changes = draw(4); changes > 0; changes--) size = damage(data, size, MOST, data, size);
    return size;
}

static const Fuzzer fuzzer = {MOST, make_input, fuzz_one, 1};
FUZZ_MAIN(fuzzer, "fuzz_tokenizer")
