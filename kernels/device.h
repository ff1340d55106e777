/*
device.h: the seam between the trainer and the machine it computes on. Here the device is the CPU: device memory is host
memory and a copy is a memcpy. The trainer never touches parameters or activations except through the kernels and these
functions, so the same text drives a GPU when another header stands in for this one.

    floatX      the type of parameters and activations: float32 here
    Arena       one block of device memory per purpose, sized by a plan before it is taken
*/
#ifndef DEVICE_H
#define DEVICE_H

#include "../base.h"
#ifdef _OPENMP
#include <omp.h>
#endif

typedef float floatX;

// ----------------------------------------------------------------------------------------------------------------
// Memory

// Zeroed memory, on huge pages where the system has them: a matrix of 150 MB on 4 KB pages spends its time on page
// tables. Freed by device_free.
static inline void* device_malloc(size_t bytes, const char* what) {
    const size_t huge = (size_t)2 << 20;
    void* p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        die("out of memory: %.1f MB for %s; use a smaller --micro-batch or model", (double)bytes / 1e6, what);
    if (bytes >= huge) madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static inline void device_free(void* p, size_t bytes) {
    if (p) munmap(p, bytes ? bytes : 1);
}

static inline void device_from_host(void* device, const void* host, size_t bytes) { memcpy(device, host, bytes); }
static inline void device_to_host(void* host, const void* device, size_t bytes) { memcpy(host, device, bytes); }
static inline void device_copy(void* to, const void* from, size_t bytes) { memcpy(to, from, bytes); }

static inline void device_zero(void* p, size_t bytes) {
    const int64_t chunk = 1 << 20, n = ((int64_t)bytes + chunk - 1) / chunk;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) memset((char*)p + i * chunk, 0, (size_t)min_i64(chunk, (int64_t)bytes - i * chunk));
}

// An arena hands out pieces of one block. Before arena_allocate it only adds up what is asked for and returns NULL, so
// the code that takes the pieces is run twice: once to measure, once for real.
typedef struct {
    const char* what;
    char* base;
    size_t size, used;
} Arena;

static inline void* arena_take(Arena* arena, int64_t bytes) {
    const size_t offset = arena->used;
    arena->used += round_up((size_t)bytes, 64); // a cache line, and the widest vector
    if (!arena->base) return NULL;
    if (arena->used > arena->size)
        die("internal error: the arena for %s is %zu bytes too small", arena->what, arena->used - arena->size);
    return arena->base + offset;
}

static inline floatX* arena_floats(Arena* arena, int64_t n) {
    return (floatX*)arena_take(arena, n * (int64_t)sizeof(floatX));
}

static inline void arena_allocate(Arena* arena) {
    arena->size = arena->used;
    arena->used = 0;
    arena->base = (char*)device_malloc(arena->size, arena->what);
}

static inline void arena_free(Arena* arena) {
    device_free(arena->base, arena->size);
    memset(arena, 0, sizeof *arena);
}

// ----------------------------------------------------------------------------------------------------------------
// What the device is

static inline int device_threads(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// How many threads the kernels use from now on.
static inline void device_set_threads(int threads) {
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
}

// To be called first in main. gcc's OpenMP lets a thread that waits spin for milliseconds before it sleeps. Where other
// programs want the cores too, that takes the very core that the awaited thread needs, and a step of a small model takes
// three times as long; spinning for some 100 microseconds is as fast on a quiet machine. libgomp reads the setting before
// main begins, so the program starts itself once more. A setting of the user's own is left alone.
static inline void device_tame_threads(char** argv) {
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    if (setenv("GOMP_SPINCOUNT", "10000", 1) == 0) execv("/proc/self/exe", argv); // if it fails, the run is only slower
}

// Bytes of memory that the device has in all.
static inline double device_bytes(void) { return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE); }

// "AMD EPYC, 2 threads": the processor's name as the system gives it.
static inline void device_name(char* name, size_t size) {
    char line[256], model[128] = "CPU";
    FILE* f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) == 0 && sscanf(line, "%*[^:]: %127[^\n]", model) == 1) break;
    }
    if (f) fclose(f);
    const int threads = device_threads();
    snprintf(name, size, "%s, %d thread%s", model, threads, threads == 1 ? "" : "s");
}

#endif
