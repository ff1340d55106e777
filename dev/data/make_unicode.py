#!/usr/bin/env python3
"""
make_unicode.py: writes dataloader/tokenizer/unicode.h, the classes of characters that cut a text into words.

    python3 dev/data/make_unicode.py > dataloader/tokenizer/unicode.h

Letters are the general categories L*, numbers N*; white space is Unicode's property White_Space, which Python does not
have: Zs, Zl, Zp and six control characters. The header names the version of Unicode, that of pip install unicodedata2.
"""
import sys

import unicodedata2 as unicodedata

OTHER, LETTER, NUMBER, SPACE = range(4)
PAGE = 256  # characters

TEXT = '''/*
dataloader/tokenizer/unicode.h: whether a character is a letter, a number, white space or another one. Made by
dev/data/make_unicode.py from Unicode {version}; not by hand.

A page is {page} characters, two bits each; equal pages are stored once. After U+{last:04X} all characters are others.

Programs with another version of Unicode cut new letters differently: tiktoken 0.14 and tokenizers 0.23 have the
letters, numbers and white space of Unicode 16.0 (compared over all characters), and so does this table.
*/
#ifndef UNICODE_H
#define UNICODE_H

#include <stdint.h>

#define UNICODE_VERSION "{version}"

typedef enum {{ CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE }} CharClass;

enum {{ UNICODE_END = 0x{end:X} }}; // characters from here on are CHAR_OTHER

// clang-format off
static const uint8_t unicode_page[UNICODE_END / {page}] = {{
{pages}
}};

static const uint8_t unicode_bits[{distinct}][{bytes}] = {{
{bits}
}};
// clang-format on

// The class of a code point.
static inline CharClass unicode_class(uint32_t c) {{
    if (c >= UNICODE_END) return CHAR_OTHER;
    return (CharClass)(unicode_bits[unicode_page[c / {page}]][c % {page} / 4] >> c % 4 * 2 & 3);
}}

#endif
'''


def class_of(code):
    category = unicodedata.category(chr(code))
    if category in ("Zs", "Zl", "Zp") or code in (9, 10, 11, 12, 13, 0x85):
        return SPACE
    return {"L": LETTER, "N": NUMBER}.get(category[0], OTHER)


def rows(numbers, width):
    return "\n".join("    " + "".join(f"{n}," for n in numbers[i:i + width]) for i in range(0, len(numbers), width))


def main():
    classes = [class_of(code) for code in range(sys.maxunicode + 1)]
    last = max(code for code, c in enumerate(classes) if c != OTHER)
    end = (last // PAGE + 1) * PAGE
    distinct, pages = [], []
    for first in range(0, end, PAGE):
        page = [sum(classes[code + k] << 2 * k for k in range(4)) for code in range(first, first + PAGE, 4)]
        if page not in distinct:
            distinct.append(page)
        pages.append(distinct.index(page))
    if len(distinct) > 256:
        sys.exit("more than 256 different pages: make them smaller")
    bits = "\n".join("    {" + ",".join(map(str, page)) + "}," for page in distinct)
    sys.stdout.write(TEXT.format(version=unicodedata.unidata_version, page=PAGE, last=last, end=end,
                                 pages=rows(pages, 36),
                                 distinct=len(distinct), bytes=PAGE // 4, bits=bits))


if __name__ == "__main__":
    main()
