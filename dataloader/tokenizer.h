/*
dataloader/tokenizer.h: text to tokens, and back to text that a terminal can show.

    tokenizer/unicode.h        which characters are letters, numbers, white space (generated)
    tokenizer/pretokenize.h    splits a text into words
    tokenizer/bpe.h            encodes words as tokens, by the merges of a vocabulary, and decodes tokens
    tokenizer/vocab_files.h    vocabularies on disk: tokenizer.json, GPT-2's vocab.json and merges.txt

Without a vocabulary the tokens are the 256 bytes. Decoded tokens need not be text: an untrained model generates control
characters and incomplete characters. TextWriter joins bytes to UTF-8 characters and writes '?' for bytes that form
none.
*/
#pragma once

#include "../util/base.h"
#include "tokenizer/vocab_files.h"

typedef struct {
    FILE* out;
    char bytes[4]; // of an incomplete character
    int count, length;
} TextWriter;

// Length of the UTF-8 character that begins with this byte; 0: it begins none.
static inline int utf8_length(int byte) {
    if (byte < 0x80) return 1;
    if (byte < 0xC2 || byte >= 0xF5) return 0;
    return 2 + (byte >= 0xE0) + (byte >= 0xF0);
}

// Writes '?' for an incomplete character.
static inline void text_writer_end(TextWriter* writer) {
    if (writer->count) fputc('?', writer->out);
    writer->count = 0;
    fflush(writer->out);
}

// Writes one byte: at once if it is a character, else once the character is complete; '?' if it is above 255.
static inline void text_writer_put(TextWriter* writer, int byte) {
    const bool continues = (byte & 0xC0) == 0x80;
    if (writer->count && !continues) text_writer_end(writer);
    if (writer->count == 0) writer->length = utf8_length(byte);
    const bool control = byte < 32 ? byte != '\n' && byte != '\t' : byte == 127 || byte > 255;
    if (writer->length == 0 || control) {
        fputc('?', writer->out);
        return;
    }
    writer->bytes[writer->count++] = (char)byte;
    if (writer->count < writer->length) return;
    const bool obeyed =
        (unsigned char)writer->bytes[0] == 0xC2 && (unsigned char)writer->bytes[1] < 0xA0; // U+0080 to U+009F
    // overlong, a surrogate, beyond Unicode; or a control character of two bytes
    if (obeyed || !json_utf8_bytes((const unsigned char*)writer->bytes, (size_t)writer->count)) {
        text_writer_end(writer);
        return;
    }
    fwrite(writer->bytes, 1, (size_t)writer->count, writer->out);
    writer->count = 0;
    fflush(writer->out);
}

// Writes the bytes of one token.
static inline void text_writer_put_token(TextWriter* writer, const Tokenizer* tokenizer, int64_t token) {
    size_t n;
    const unsigned char* bytes = tokenizer_decode(tokenizer, token, &n);
    for (size_t i = 0; i < n; i++) text_writer_put(writer, bytes[i]);
    if (n == 0) text_writer_put(writer, 256); // no token of this vocabulary: '?'
}
