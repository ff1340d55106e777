/*
base.h: what every other file stands on. Nothing here knows about GPT, MPI or CUDA.

    errors      die() ends the program with one line: what, where, which rank, what to do.
                A function that reads foreign input (files, text) returns false and fills an Error instead, so that its
                caller, or a fuzzer, decides what happens.
    memory      checked allocation; an Arena is one block per purpose, sized before it is taken.
    random      counter-based: a number is a pure function of (seed, stream, index). No state, no order: any rank can
                make any slice of any tensor, and every mesh starts from the same weights.
    files       memory-mapped reading; time.

C11, in the common subset with C++ (casts on every allocation, no designated initialisers), like all files but kernels.
*/
#ifndef BASE_H
#define BASE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE // mmap, clock_gettime, pwrite
#endif

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
#define RESTRICT __restrict__
#else
#define RESTRICT restrict
#endif

// ----------------------------------------------------------------------------------------------------------------
// Errors

enum { EXIT_RUN = 1, EXIT_ARGUMENTS = 2 }; // exit status: the run failed; the arguments were wrong

// What the process is called in error lines, and its rank (-1: alone, no rank is printed).
typedef struct {
    const char* name;
    int rank;
} Process;
static Process process = {"threefold", -1};

__attribute__((format(printf, 2, 0))) static inline void die_v(int status, const char* format, va_list args) {
    fflush(stdout);
    if (process.rank >= 0) fprintf(stderr, "%s: rank %d: ", process.name, process.rank);
    else fprintf(stderr, "%s: ", process.name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    exit(status);
}

// The run cannot go on. Says what, where and what to do; exit status 1.
__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char* format, ...) {
    va_list args;
    va_start(args, format);
    die_v(EXIT_RUN, format, args);
    va_end(args);
    abort();
}

// The arguments make no sense; exit status 2.
__attribute__((noreturn, format(printf, 1, 2))) static inline void die_usage(const char* format, ...) {
    va_list args;
    va_start(args, format);
    die_v(EXIT_ARGUMENTS, format, args);
    va_end(args);
    abort();
}

// The reason why a function that returned false did so: one line, ready to be shown.
typedef struct {
    char text[1024];
} Error;

// Fills *error; always returns false, so that callers can write: return fail(error, "...", ...).
__attribute__((format(printf, 2, 3))) static inline bool fail(Error* error, const char* format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    return false;
}

// ----------------------------------------------------------------------------------------------------------------
// Memory

static inline size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

static inline void* checked_malloc(size_t bytes, const char* what) {
    void* p = malloc(bytes ? bytes : 1);
    if (!p) die("out of memory: %.1f MB for %s", (double)bytes / 1e6, what);
    return p;
}

static inline void* checked_calloc(size_t count, size_t size, const char* what) {
    void* p = calloc(count ? count : 1, size);
    if (!p) die("out of memory: %.1f MB for %s", (double)count * (double)size / 1e6, what);
    return p;
}

// ----------------------------------------------------------------------------------------------------------------
// Random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
// Ten rounds of multiply and xor turn (key, counter) into 128 random bits.

typedef struct {
    uint32_t word[4];
} Random4;

static inline Random4 philox(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    Random4 r = {{c0, c1, c2, c3}};
    return r;
}

// Uniform in [0, 1): number `index` of stream `stream`. 24 bits, so exact in float32.
static inline float random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return (float)(philox(seed, stream, index >> 2).word[index & 3] >> 8) * 0x1p-24f;
}

// Standard normal by Box and Muller: number `index` of stream `stream`. Computed in double, rounded once.
static inline float random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    Random4 r = philox(seed, stream, index >> 1);
    double u = ((double)r.word[0] + 0.5) * 0x1p-32, angle = 6.283185307179586 * (double)r.word[1] * 0x1p-32;
    double radius = sqrt(-2.0 * log(u));
    return (float)(radius * ((index & 1) ? sin(angle) : cos(angle)));
}

// FNV-1a: turns a tensor's logical name into its random stream.
static inline uint64_t hash_string(const char* s) {
    uint64_t h = 14695981039346656037ull;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 1099511628211ull;
    return h;
}

// ----------------------------------------------------------------------------------------------------------------
// Files and time

// A whole file, mapped read-only. An empty file has data = NULL and size = 0.
typedef struct {
    const unsigned char* data;
    size_t size;
} MappedFile;

static inline bool file_map(MappedFile* file, const char* path, Error* error) {
    memset(file, 0, sizeof *file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(error, "%s: cannot open: %s", path, strerror(errno));
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return fail(error, "%s: not a regular file", path);
    }
    if (st.st_size > 0) {
        void* p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            close(fd);
            return fail(error, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size, strerror(errno));
        }
        file->data = (const unsigned char*)p;
        file->size = (size_t)st.st_size;
    }
    close(fd);
    return true;
}

static inline void file_unmap(MappedFile* file) {
    if (file->data) munmap((void*)(uintptr_t)file->data, file->size);
    memset(file, 0, sizeof *file);
}

// Seconds since some fixed moment, never going back.
static inline double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
