/*
measure_gpu.h: what the benchmarks on a GPU share: random arrays, and how long something takes there.

Times are medians of 20 runs between events on the device, after 3 that do not count; nothing is waited for between
them. Before each run 256 MB are set to zero, outside of the events: no input is left in the cache (L2: 50 to 60 MB), as
in a training step it mostly is not. Inputs are random: a GPU that multiplies zeros uses less power and looks 10 %
faster.
*/
#pragma once

#include "../../kernels/kernels.h"
#include "../../planner/median.h"

enum { RUNS = 20, WARM_UP = 3, FLUSH = 256 << 20 };
enum { DIFFERENT = (1 << 20) - 3 }; // random numbers: a prime, so that no two rows of a matrix are equal

// The same random numbers for all arrays, uniform in (-1, 1); each array begins at another one, and repeats them.
static inline const float* random_numbers(void) {
    static float* numbers = NULL;
    if (numbers) return numbers;
    numbers = (float*)checked_malloc(DIFFERENT * sizeof(float), "bench");
    for (int i = 0; i < DIFFERENT; i++) numbers[i] = 2 * random_uniform(1, 1, (uint64_t)i) - 1;
    return numbers;
}

// n of them in device memory, to be freed with device_free.
template <class T>
static T* random_array(int64_t n) {
    static int64_t first = 0;
    const int64_t few = min_i64(n, DIFFERENT);
    const float* numbers = random_numbers();
    T* host = (T*)checked_malloc((size_t)max_i64(few, 1) * sizeof(T), "bench");
    for (int64_t i = 0; i < few; i++) host[i] = (T)numbers[(first + i) % DIFFERENT];
    first += 12345;
    T* device = (T*)device_malloc((size_t)max_i64(n, 1) * sizeof(T), "bench");
    device_from_host(device, host, (size_t)few * sizeof(T));
    for (int64_t at = few; at < n; at *= 2) device_copy(device + at, device, (size_t)min_i64(at, n - at) * sizeof(T));
    free(host);
    return device;
}

// Median milliseconds of run(). tiny: it is run twice, to see that it works.
template <class Run>
static double milliseconds(bool tiny, Run run) {
    const int runs = tiny ? 1 : RUNS, warm_up = tiny ? 1 : WARM_UP;
    const size_t flush_bytes = tiny ? 256 : (size_t)FLUSH;
    void* flush = device_malloc(flush_bytes, "bench");
    cudaEvent_t begin[RUNS], end[RUNS];
    double times[RUNS];
    for (int i = 0; i < runs; i++) {
        cuda_check(cudaEventCreate(&begin[i]), "cudaEventCreate");
        cuda_check(cudaEventCreate(&end[i]), "cudaEventCreate");
    }
    for (int i = -warm_up; i < runs; i++) {
        device_zero(flush, flush_bytes);
        if (i >= 0) cuda_check(cudaEventRecord(begin[i], 0), "cudaEventRecord");
        run();
        if (i >= 0) cuda_check(cudaEventRecord(end[i], 0), "cudaEventRecord");
    }
    device_synchronize();
    for (int i = 0; i < runs; i++) {
        float ms = 0;
        cuda_check(cudaEventElapsedTime(&ms, begin[i], end[i]), "cudaEventElapsedTime");
        times[i] = ms;
        cuda_check(cudaEventDestroy(begin[i]), "cudaEventDestroy");
        cuda_check(cudaEventDestroy(end[i]), "cudaEventDestroy");
    }
    device_free(flush, 0);
    return median_of(times, runs);
}
