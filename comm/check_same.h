/*
comm/check_same.h: checks that all ranks run the same. A rank with other options, another build or other data would make
the rest wait for ever, or train a different model.

    comm_check_same     all ranks pass a text: their arguments, their build, their files. If one differs, the job ends
*/
#pragma once

#include "../comm.h"

// Writes "1234567 bytes, checksum 0123456789abcdef" of the program that is running.
static inline void comm_build_text(char* text, size_t size) {
    MappedFile file;
    Error error;
    if (file_map(&file, "/proc/self/exe", &error))
        snprintf(text, size, "%zu bytes, checksum %016llx", file.size,
                 (unsigned long long)hash_bytes(file.data, file.size));
    else
        snprintf(text, size, "unknown"); // not Linux
    file_unmap(&file);
}

// Where two texts begin to differ, moved back to the word before (the option of a value, the name of a file), if near.
static inline size_t comm_difference(const char* a, const char* b) {
    enum { NEAR = 80 };
    size_t i = 0;
    while (a[i] && a[i] == b[i]) i++;
    size_t begin = i, back = i;
    for (int words = 0; back > 0 && i - back < NEAR && words < 2; back--) {
        if (a[back - 1] != ' ' && a[back - 1] != '\n') continue;
        begin = back;
        words++;
    }
    return back == 0 ? 0 : begin;
}

// The text from `first` on, on one line, cut to 200 characters.
static inline void comm_excerpt(char out[204], const char* text, size_t first) {
    snprintf(out, 201, "%s", text + first);
    if (strlen(text + first) > 200) strcpy(out + 200, "...");
    for (char* c = out; *c; c++) {
        if ((unsigned char)*c < ' ') *c = ' ';
    }
}

// Every rank passes a text: its arguments, its build, its files and their sizes. If one differs from rank 0's, the job
// ends with one line, from rank 0, and exit status 2:
//     rank 3 (host b) differs from rank 0 in WHAT: "--steps 30" instead of "--steps 20"; ADVICE
static inline void comm_check_same(Comm* world, const char* what, const char* mine, const char* advice) {
    const uint64_t hash = hash_string(mine);
    uint64_t root_hash = hash;
    comm_broadcast(world, &root_hash, 8, COMM_BYTE, 0);
    int32_t other = hash == root_hash ? world->size : world->rank; // the first rank that differs
    comm_all_reduce(world, &other, 1, COMM_INT32, COMM_MIN);
    if (other == world->size) return;

    char host[64] = "";
    gethostname(host, sizeof host - 1);
    int64_t length = (int64_t)strlen(mine);
    comm_broadcast(world, host, sizeof host, COMM_BYTE, other);
    comm_broadcast(world, &length, 1, COMM_INT64, other);
    char* theirs = (char*)checked_calloc((size_t)length + 1, 1, what);
    if (world->rank == other) memcpy(theirs, mine, (size_t)length);
    comm_broadcast(world, theirs, length, COMM_BYTE, other);

    char text[1024], a[204], b[204];
    const size_t first = comm_difference(theirs, mine);
    comm_excerpt(a, theirs, first);
    comm_excerpt(b, mine, first);
    snprintf(text, sizeof text, "rank %d (host %s) differs from rank 0 in %s: \"%s\" instead of \"%s\"; %s", other,
             host, what, a, b, advice);
    free(theirs);
    comm_abort_all(world, EXIT_ARGUMENTS, text);
}
