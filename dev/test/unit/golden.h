/*
golden.h: pictures beside files in dev/test/reference, whose numbers may differ by a rounding. A test that is started with
--write writes the files anew; look at them before they are committed.

    check_golden("golden_trees.svg", text, write);
*/
#ifndef GOLDEN_H
#define GOLDEN_H

#include "test.h"
#include <ctype.h>

// Whether two texts are equal, but for the last digits of numbers.
static inline bool golden_same(const char* a, const char* b) {
    while (*a && *b) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            char *end_a, *end_b;
            const double x = strtod(a, &end_a), y = strtod(b, &end_b);
            if (fabs(x - y) > 0.11 + 1e-4 * fabs(y)) return false;
            a = end_a;
            b = end_b;
        } else if (*a++ != *b++) {
            return false;
        }
    }
    return *a == *b;
}

static inline void check_golden(const char* name, const char* text, bool write) {
    char path[256];
    Error error = {""};
    MappedFile file = {NULL, 0};
    snprintf(path, sizeof path, "dev/test/reference/%s", name);
    if (write) {
        FILE* out = fopen(path, "w");
        if (!out || fputs(text, out) < 0 || fclose(out) != 0) die("cannot write %s", path);
    }
    const bool there = file_map(&file, path, &error);
    char* golden = strndup(there ? (const char*)file.data : "", file.size);
    check(there && golden_same(text, golden), "%s: %zu bytes as before %s", name, strlen(text), error.text);
    free(golden);
    file_unmap(&file);
}

#endif
