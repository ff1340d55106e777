/*
mfu.h: the peak FLOP/s of this machine's cores, the reference for matrix products: of float32, or of bf16 by the
instructions that matmul.h uses. Every thread repeats x = x / 2 + 1 on vectors that stay in registers, where no number
becomes denormal, as these are slow; a fused multiply-add is two operations. A core starts 1 or 2 such vectors a cycle,
and each takes 4 or 5 cycles, so 10 independent chains keep it busy: 12 here, and with the two constants they fit in 16
registers. VDPBF16PS and tiles of AMX add products of bf16 to float32 sums in the same way (matmul_bf16.h).
*/
#pragma once

#include "device.h"
#include "matmul.h"
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

enum { FMA_CHAINS = 12, FMA_REPEATS = 30000 };
static const float FMA_MEAN = 0.5f / FMA_CHAINS; // makes 1 of the sum of all x

// Each runs FMA_CHAINS * FMA_REPEATS vector multiply-adds and returns the operations done. sink: 16 floats, 1.
typedef double (*FmaLoop)(float* sink);

#if defined(__x86_64__) || defined(__i386__)
__attribute__((target("avx512f"))) static inline double fma_loop_avx512(float* sink) {
    __m512 x[FMA_CHAINS], m = _mm512_set1_ps(0.5f), b = _mm512_loadu_ps(sink);
    for (int i = 0; i < FMA_CHAINS; i++) x[i] = _mm512_set1_ps((float)i);
    for (int r = 0; r < FMA_REPEATS; r++) {
        for (int i = 0; i < FMA_CHAINS; i++) x[i] = _mm512_fmadd_ps(x[i], m, b);
    }
    for (int i = 1; i < FMA_CHAINS; i++) x[0] = _mm512_add_ps(x[0], x[i]);
    _mm512_storeu_ps(sink, _mm512_mul_ps(x[0], _mm512_set1_ps(FMA_MEAN)));
    return 2.0 * 16 * FMA_CHAINS * FMA_REPEATS;
}

__attribute__((target("avx2,fma"))) static inline double fma_loop_avx2(float* sink) {
    __m256 x[FMA_CHAINS], m = _mm256_set1_ps(0.5f), b = _mm256_loadu_ps(sink);
    for (int i = 0; i < FMA_CHAINS; i++) x[i] = _mm256_set1_ps((float)i);
    for (int r = 0; r < FMA_REPEATS; r++) {
        for (int i = 0; i < FMA_CHAINS; i++) x[i] = _mm256_fmadd_ps(x[i], m, b);
    }
    for (int i = 1; i < FMA_CHAINS; i++) x[0] = _mm256_add_ps(x[0], x[i]);
    _mm256_storeu_ps(sink, _mm256_mul_ps(x[0], _mm256_set1_ps(FMA_MEAN)));
    return 2.0 * 8 * FMA_CHAINS * FMA_REPEATS;
}
#endif

static inline double fma_loop_portable(float* sink) {
    typedef float V4 __attribute__((vector_size(16)));
    V4 x[FMA_CHAINS], m = {0.5f, 0.5f, 0.5f, 0.5f}, b;
    memcpy(&b, sink, sizeof b);
    for (int i = 0; i < FMA_CHAINS; i++) x[i] = b + (float)i;
    for (int r = 0; r < FMA_REPEATS; r++) {
        for (int i = 0; i < FMA_CHAINS; i++) x[i] = x[i] * m + b;
    }
    for (int i = 1; i < FMA_CHAINS; i++) x[0] += x[i];
    x[0] *= FMA_MEAN;
    memcpy(sink, x, sizeof b);
    return 2.0 * 4 * FMA_CHAINS * FMA_REPEATS;
}

static inline FmaLoop fma_best_loop(void) {
#ifdef AMX_COMPILED
    if (matmul_best_kernel()->layout == MATMUL_TILES) return fma_loop_amx;
#endif
#ifdef MATMUL_AVX512_BF16
    if (matmul_best_kernel()->layout == MATMUL_PAIRS) return fma_loop_avx512_bf16;
#endif
#if defined(__x86_64__) || defined(__i386__)
    if (__builtin_cpu_supports("avx512f")) return fma_loop_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return fma_loop_avx2;
#endif
    return fma_loop_portable;
}

// Seconds for which the calling thread has had a core.
static inline double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Operations a second of `threads` threads together in one trial, each running for `seconds` of its own CPU time: time
// that other programs take does not lower the peak.
static inline double fma_trial(FmaLoop loop, int threads, double seconds) {
    double total = 0;
    (void)threads;
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
        float sink[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
        double done = 0, start, elapsed;
        loop(sink); // wakes the vector units
#pragma omp barrier
        start = thread_seconds();
        do {
            done += loop(sink);
            elapsed = thread_seconds() - start;
        } while (elapsed < seconds);
        total += done / elapsed;
    }
    return total;
}

// The best of five trials that share `seconds`: a core that is just waking up, or interrupted, is not at its peak.
static inline double fma_peak_flops(int threads, double seconds) {
    const FmaLoop loop = fma_best_loop();
    double best = 0;
    for (int trial = 0; trial < 5; trial++) best = fmax(best, fma_trial(loop, threads, seconds / 5));
    return best;
}

// A rank's part of the peak of the cores, which `sharing` ranks have: of its threads one per core counts at most.
static inline double device_peak_flops(int cores_here, int sharing) {
    const int threads = openmp_threads();
    return fma_peak_flops(threads, 0.05) * fmin(1, (double)cores_here / ((double)threads * sharing));
}

// "measured peak 290 GFLOP/s", in bf16 "... by AVX-512 BF16", of all ranks together; written to text.
static inline const char* device_peak_text(char* text, size_t size, double flops) {
    const char* unit = sizeof(floatX) < sizeof(float) ? matmul_best_kernel()->name : "";
    snprintf(text, size, "measured peak %.0f GFLOP/s%s%s", flops / 1e9, *unit ? " by " : "", unit);
    return text;
}
