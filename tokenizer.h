/*
tokenizer.h: from tokens back to text that a terminal can show. Tokens are bytes: 256 of them, no vocabulary to load.

A model that is still learning writes bytes that are not text: control characters, halves of characters. TextWriter puts
bytes together to characters of UTF-8 and shows '?' for what is none.
*/
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "base.h"

typedef struct {
    FILE* out;
    char bytes[4]; // of a character that is not complete yet
    int count, length;
} TextWriter;

// Length of the UTF-8 character that begins with this byte; 0: none does.
static inline int utf8_length(int byte) {
    return byte < 0x80 ? 1 : byte < 0xC2 ? 0 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF5 ? 4 : 0;
}

// What is left of a character that was broken off is shown as '?'.
static inline void text_writer_end(TextWriter* w) {
    if (w->count) fputc('?', w->out);
    w->count = 0;
    fflush(w->out);
}

// Writes one byte: at once if it is a character, else when the character is complete. What is no byte is shown as '?'.
static inline void text_writer_put(TextWriter* w, int byte) {
    const bool continues = (byte & 0xC0) == 0x80;
    if (w->count && !continues) text_writer_end(w);
    if (w->count == 0) w->length = utf8_length(byte);
    const bool control = byte < 32 ? byte != '\n' && byte != '\t' : byte == 127 || byte > 255;
    if (w->length == 0 || control) {
        fputc('?', w->out);
        return;
    }
    w->bytes[w->count++] = (char)byte;
    if (w->count < w->length) return;
    fwrite(w->bytes, 1, (size_t)w->count, w->out);
    w->count = 0;
    fflush(w->out);
}

#endif
