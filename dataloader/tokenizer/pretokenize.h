/*
dataloader/tokenizer/pretokenize.h: splits a text into words before it is tokenized.

    split_word    the end of the word that begins at a place

Theory. No token crosses a cut between words, which keeps "dog", "dog." and "dog!" from becoming three entries of a
vocabulary (Radford et al. 2019, section 2.2), and lets words be encoded one by one. Each family of vocabularies
publishes its split as a regular expression; the words are its matches, one after the other:

    gpt2      's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    llama3    (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
              \s*[\r\n]+|\s+(?!\S)|\s+
    qwen2     the same with \p{N} for \p{N}{1,3}

\p{L} are letters, \p{N} numbers, \s white space (unicode.h). (?i:s) is s, S, and the long s of old prints.

Here these expressions are scanners that read each character about once and never go back, as a character's class
decides which alternative matches. An alternative ends where the class changes; and "\s+(?!\S)", white space before
white space or the end, is a run of white space without its last character, or the whole run at the end of the text.

A byte that is not UTF-8 is a character of its own, and neither letter, number nor space. So any bytes can be split, as
the expressions would with symbols in place of such bytes.
*/
#pragma once

#include "../../util/json.h"
#include "unicode.h"

typedef enum { SPLIT_BYTES, SPLIT_GPT2, SPLIT_LLAMA3, SPLIT_QWEN2, SPLIT_KINDS } SplitKind;

// ---- Characters -------------------------------------------------------------------------------------------------

static inline uint32_t utf8_code(const unsigned char* text, size_t bytes) {
    if (bytes == 1) return text[0];
    uint32_t code = text[0] & (0x7Fu >> bytes);
    for (size_t i = 1; i < bytes; i++) code = code << 6 | (text[i] & 0x3F);
    return code;
}

// The class of the character at the beginning of n > 0 bytes; *bytes: its length.
static inline CharClass char_class(const unsigned char* text, size_t n, size_t* bytes) {
    *bytes = 1;
    if (text[0] < 0x80) return unicode_class(text[0]);
    const size_t valid = json_utf8_bytes(text, n);
    if (valid == 0) return CHAR_OTHER;
    *bytes = valid;
    return unicode_class(utf8_code(text, valid));
}

// The end of the characters of this class from `at` on.
static inline size_t skip_class(const unsigned char* text, size_t n, size_t at, CharClass wanted) {
    for (size_t bytes; at < n && char_class(text + at, n - at, &bytes) == wanted;) at += bytes;
    return at;
}

static inline bool is_newline(int c) { return c == '\n' || c == '\r'; }

// ---- Words ------------------------------------------------------------------------------------------------------

// The length of 's 't 'm 'd 're 've or 'll at the apostrophe text[0]; 0: it is none of them.
static inline size_t ending_bytes(const unsigned char* text, size_t n, bool any_case) {
    const int fold = any_case ? 32 : 0; // the bit by which capitals differ
    if (n < 2) return 0;
    const int c = text[1] | fold, d = n > 2 ? text[2] | fold : 0;
    if (c == 's' || c == 't' || c == 'm' || c == 'd') return 2;
    if ((c == 'r' && d == 'e') || (c == 'v' && d == 'e') || (c == 'l' && d == 'l')) return 3;
    return any_case && n > 2 && text[1] == 0xC5 && text[2] == 0xBF ? 3 : 0; // U+017F
}

// The end of a word of white space that begins at `at`: the alternatives from \s on.
static inline size_t split_space(SplitKind kind, const unsigned char* text, size_t n, size_t at) {
    size_t end = at, last = at, newline = 0; // of the run: its end, its last character's begin, its last new line's end
    for (size_t bytes; end < n && char_class(text + end, n - end, &bytes) == CHAR_SPACE; end += bytes) {
        last = end;
        if (is_newline(text[end])) newline = end + 1;
    }
    if (newline && kind != SPLIT_GPT2) return newline;
    return end == n || last == at ? end : last;
}

static inline size_t split_gpt2(const unsigned char* text, size_t n, size_t at) {
    const size_t ending = text[at] == '\'' ? ending_bytes(text + at, n - at, false) : 0;
    if (ending) return at + ending;
    const size_t word = at + (text[at] == ' ' && at + 1 < n);
    size_t bytes;
    const CharClass found = char_class(text + word, n - word, &bytes);
    return found == CHAR_SPACE ? split_space(SPLIT_GPT2, text, n, at) : skip_class(text, n, word + bytes, found);
}

// The end of up to `most` numbers.
static inline size_t split_numbers(const unsigned char* text, size_t n, size_t at, int most) {
    size_t bytes;
    for (int i = 0; i < most && at < n && char_class(text + at, n - at, &bytes) == CHAR_NUMBER; i++) at += bytes;
    return at;
}

static inline size_t split_llama3(SplitKind kind, const unsigned char* text, size_t n, size_t at) {
    const size_t ending = text[at] == '\'' ? ending_bytes(text + at, n - at, true) : 0;
    if (ending) return at + ending;
    size_t bytes, more = 0;
    const CharClass first = char_class(text + at, n - at, &bytes);
    if (first == CHAR_LETTER) return skip_class(text, n, at + bytes, CHAR_LETTER);
    if (first == CHAR_NUMBER) return split_numbers(text, n, at, kind == SPLIT_QWEN2 ? 1 : 3);
    const size_t next = at + bytes;
    const CharClass second = next < n ? char_class(text + next, n - next, &more) : CHAR_SPACE;
    if (second == CHAR_LETTER && !is_newline(text[at])) return skip_class(text, n, next + more, CHAR_LETTER);
    if (first == CHAR_SPACE && !(text[at] == ' ' && second == CHAR_OTHER)) return split_space(kind, text, n, at);
    size_t end = skip_class(text, n, next, CHAR_OTHER);
    while (end < n && is_newline(text[end])) end++;
    return end;
}

// The end of the word that begins at text[at], at < n; it is above `at`.
static inline size_t split_word(SplitKind kind, const unsigned char* text, size_t n, size_t at) {
    if (kind == SPLIT_BYTES) return at + 1;
    return kind == SPLIT_GPT2 ? split_gpt2(text, n, at) : split_llama3(kind, text, n, at);
}
