/*
dataloader/tokenizer/cut.h: where a text can be cut into parts that are encoded apart from each other (build/tokenize).

    tokenizer_cut   a place where a text can be cut without changing its tokens
*/
#pragma once

#include "bpe.h"

// Whether the character that ends before text[at] is a letter or a number.
static inline bool ends_in_word(const unsigned char* text, size_t at) {
    size_t begin = at - 1, bytes;
    while (begin > 0 && at - begin < 4 && (text[begin] & 0xC0) == 0x80) begin--;
    const CharClass found = char_class(text + begin, at - begin, &bytes);
    return begin + bytes == at && (found == CHAR_LETTER || found == CHAR_NUMBER);
}

// The first place from `at` on where a text can be cut into two parts with the same words: between a letter or number
// and a blank or new line, as no alternative has white space after a letter or number, and none looks back. n: there is
// no such place.
static inline size_t split_cut(const unsigned char* text, size_t n, size_t at) {
    for (at = at ? at : 1; at < n; at++)
        if ((text[at] == ' ' || text[at] == '\n') && ends_in_word(text, at)) return at;
    return n;
}

// The first place from `at` on where a text may be cut so that the parts have the tokens of the whole; n: there is
// none. Such a place is before a blank or a new line, unless an added token to be found contains one.
static inline size_t tokenizer_cut(const Tokenizer* tokenizer, const unsigned char* text, size_t n, size_t at,
                                   bool special) {
    for (int i = 0; i < tokenizer->added_count; i++) {
        const uint32_t token = tokenizer->added[i].token;
        const unsigned char* bytes = tokenizer->bytes + tokenizer->begin[token];
        const size_t count = token_bytes(tokenizer, token);
        if ((special || !tokenizer->added[i].special) && (memchr(bytes, ' ', count) || memchr(bytes, '\n', count)))
            return n;
    }
    return split_cut(text, n, at);
}
