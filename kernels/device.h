/*
device.h: the seam between the trainer and the machine it computes on. The trainer never touches parameters or
activations except through the kernels and these functions, so the same source runs on

    CPU cores       device memory is host memory and a copy is a memcpy                      (kernels/NAME.h)
    a GPU           USE_CUDA, compiled by nvcc: cudaMalloc, cudaMemcpy                        (kernels/NAME.cuh)
    an emulated GPU USE_CUDA, compiled by g++: the same through dev/emulator/cuda_emulator.h

    floatX          the type of parameters and activations: bf16 or float32
    Arena           one block of device memory per purpose, whose size is planned before it is allocated

Work on a GPU is asynchronous: kernels run one after the other on one stream, and the host continues. device_to_host and
device_synchronize wait for all work started before.
*/
#pragma once

#include "../util/base.h"

#include <sys/resource.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#ifdef USE_CUDA
#include "cuda_utils.cuh"
#else
#include "floatx.h"
#endif

enum {
#ifdef USE_CUDA
    DEVICE_IS_HOST = 0, // device memory cannot be read by the host
#else
    DEVICE_IS_HOST = 1,
#endif
    HAS_MASTER_WEIGHTS = sizeof(floatX) < sizeof(float) // the optimizer keeps the parameters in float32, too
};

#if defined(PRECISION_BF16)
#define FLOATX_NAME "bf16"
#else
#define FLOATX_NAME "fp32"
#endif

// ---- Memory -----------------------------------------------------------------------------------------------------

#ifndef USE_CUDA // on a GPU: cuda_utils.cuh
// Zeroed memory, on huge pages where the system has them: access to a matrix of 150 MB on 4 KB pages is dominated by
// page tables. To be freed by device_free.
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
#pragma omp parallel for schedule(static) if (n > 1)
    for (int64_t i = 0; i < n; i++) memset((char*)p + i * chunk, 0, (size_t)min_i64(chunk, (int64_t)bytes - i * chunk));
}

static inline bool device_holds(const void* p) {
    (void)p;
    return false; // all memory is the host's
}

static inline void device_synchronize(void) {}
#endif

// n floats of the host become floatX, rounded to nearest; and back.
static inline void device_from_floats(floatX* device, const float* host, int64_t n) {
    if (sizeof(floatX) == sizeof(float)) {
        device_from_host(device, host, (size_t)n * sizeof(float));
        return;
    }
    floatX* rounded = (floatX*)checked_malloc((size_t)n * sizeof(floatX), "a copy in " FLOATX_NAME);
    for (int64_t i = 0; i < n; i++) rounded[i] = to_floatX(host[i]);
    device_from_host(device, rounded, (size_t)n * sizeof(floatX));
    free(rounded);
}

static inline void device_to_floats(float* host, const floatX* device, int64_t n) {
    if (sizeof(floatX) == sizeof(float)) {
        device_to_host(host, device, (size_t)n * sizeof(float));
        return;
    }
    floatX* rounded = (floatX*)checked_malloc((size_t)n * sizeof(floatX), "a copy of " FLOATX_NAME);
    device_to_host(rounded, device, (size_t)n * sizeof(floatX));
    for (int64_t i = 0; i < n; i++) host[i] = to_float(rounded[i]);
    free(rounded);
}

// An arena hands out pieces of one block. Before arena_allocate it only adds up the requested sizes and returns NULL,
// so the code that takes the pieces runs twice: to measure, then to allocate.
typedef struct {
    const char* what;
    char* base;
    size_t size, used;
} Arena;

static inline void* arena_take(Arena* arena, int64_t bytes) {
    const size_t offset = arena->used;
    arena->used += round_up((size_t)bytes, 256); // a cache line, the widest vector, a GPU's fastest copies
    if (!arena->base) return NULL;
    if (arena->used > arena->size)
        die("internal error: the arena for %s is %zu bytes too small", arena->what, arena->used - arena->size);
    return arena->base + offset;
}

static inline float* arena_floats(Arena* arena, int64_t n) {
    return (float*)arena_take(arena, n * (int64_t)sizeof(float));
}

// x + n elements, of a buffer that may not be there.
static inline float* floats_from(float* x, int64_t n) { return x ? x + n : NULL; }

static inline void arena_allocate(Arena* arena) {
    arena->size = arena->used;
    arena->used = 0;
    arena->base = (char*)device_malloc(arena->size, arena->what);
}

static inline void arena_free(Arena* arena) {
    device_free(arena->base, arena->size);
    memset(arena, 0, sizeof *arena);
}

// ---- Properties of the device -----------------------------------------------------------------------------------

// Sets how many threads the kernels use from now on.
static inline void device_set_threads(int threads) {
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
}

// To be called first in main. gcc's OpenMP lets a thread that waits spin for milliseconds before it sleeps. Where other
// programs use the cores too, the spinning takes the core that the awaited thread needs, and a step of a small model
// takes three times as long; spinning for some 20 microseconds is nearly as fast on a quiet machine (docs/usage.md).
// libgomp reads the setting before main begins, and libc drops what a function in .preinit_array has put into the
// environment; so the program restarts itself. By its path, as ps would show a link's name. Not under valgrind, which
// does not follow. A setting by the user is kept.
static inline void device_limit_thread_spin(char** argv) {
    char path[4096];
    const char* preloaded = getenv("LD_PRELOAD");
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || (preloaded && strstr(preloaded, "vgpreload"))) return;
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0 || setenv("GOMP_SPINCOUNT", "2000", 1) != 0) return;
    path[length] = 0;
    execv(path, argv); // if it fails, the run is only slower
}

// To be called before the first allocation. For each sum MPI allocates memory as large as its vector. Once such a block
// was freed, glibc would put later ones into its heap, which does not shrink while a small block follows them, and
// whose holes do not fit them. From now on freed blocks of 2 MB and more return to the system at once.
static inline void device_trim_malloc(void) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 2 << 20);
    mallopt(M_TRIM_THRESHOLD, 4 << 20);
#endif
}

// From here on, in this thread and in all that it starts, the processor flushes numbers below 1e-38 to 0. Each of them
// takes some hundred cycles otherwise, and most probabilities of a peaked attention are such numbers: a step then takes
// ten times as long.
static inline void device_flush_denormals(void) {
#if defined(__SSE__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() |
                           0x8040); // results (flush to zero) and operands (denormals are zeros)
#elif defined(__aarch64__)
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    __asm__ volatile("msr fpcr, %0" : : "r"(control | 1 << 24));
#endif
}

#ifndef USE_CUDA
// To be called before anything else on the device.
static inline void device_open(int rank_here) { (void)rank_here; }

// Bytes of memory that a run may take: all that the machine or its container has, as the system makes room.
static inline double device_free_bytes(void) {
    return fmin((double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE),
                container_limit("/sys/fs/cgroup/memory.max"));
}

// The peak memory of this process in bytes.
static inline int64_t device_peak_bytes(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
}

static inline int device_ranks_sharing(int ranks_here) { return ranks_here; }

// "AMD EPYC, 2 threads": the processor's name by the system.
static inline void device_name(char* name, size_t size) {
    char line[256], model[128] = "CPU";
    FILE* f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) == 0 && sscanf(line, "%*[^:]: %127[^\n]", model) == 1) break;
    }
    if (f) fclose(f);
    const int threads = openmp_threads();
    snprintf(name, size, "%s, %d thread%s", model, threads, plural(threads));
}

#endif
