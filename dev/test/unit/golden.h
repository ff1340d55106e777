/*
golden.h: texts and pictures beside files in dev/test/reference. A test that is started with --write writes the files
anew; look at them before they are committed.

    check_golden("golden_trees.svg", text, 0.11, write);      numbers may differ by 0.11, as a rounding does
*/
#pragma once

#include "test.h"
#include <ctype.h>

// Whether two texts are equal, but for numbers that differ by no more than `slack`.
static inline bool golden_same(const char* a, const char* b, double slack) {
    while (*a && *b) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            char *end_a, *end_b;
            const double x = strtod(a, &end_a), y = strtod(b, &end_b);
            if (fabs(x - y) > slack) return false;
            a = end_a;
            b = end_b;
        } else if (*a++ != *b++) {
            return false;
        }
    }
    return *a == *b;
}

typedef int (*DrawTool)(int argc, char** argv, FILE* out, Error* error); // returns an exit status

// Runs a drawing program; words are separated by spaces. Returns its text, to be freed.
static inline char* run_tool(DrawTool tool, const char* line, int* status, Error* error) {
    char words[1024], name[] = "tool", *argv[32] = {name}, *text = NULL;
    size_t size = 0;
    int argc = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char* word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    FILE* out = open_memstream(&text, &size);
    error->text[0] = 0;
    *status = tool(argc, argv, out, error);
    fclose(out);
    return text;
}

static inline void check_golden(const char* name, const char* text, double slack, bool write) {
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
    check(there && golden_same(text, golden, slack), "%s: %zu bytes as before %s", name, strlen(text), error.text);
    free(golden);
    file_unmap(&file);
}
