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

    char text[1024];
    size_t word = 0, before = 0; // the first word that differs, and the one before it: an option, a file's name
    for (size_t i = 0; mine[i] && mine[i] == theirs[i]; i++) {
        if (mine[i] != ' ' && mine[i] != '\n') continue;
        before = mine[i] == ' ' ? word : i + 1;
        word = i + 1;
    }
    const char *a = theirs + before, *b = mine + before;
    snprintf(text, sizeof text, "rank %d (host %s) differs from rank 0 in %s: \"%.*s\" instead of \"%.*s\"; %s", other,
             host, what, (int)min_i64(200, (int64_t)strcspn(a, "\n")), a, (int)min_i64(200, (int64_t)strcspn(b, "\n")),
             b, advice);
    free(theirs);
    comm_abort_all(world, EXIT_ARGUMENTS, text);
}
