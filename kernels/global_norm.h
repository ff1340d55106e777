/*
global_norm.h: the sum of squares of a gradient, for clipping by the global norm (Pascanu, Mikolov and Bengio 2013).

    norm = sqrt(sum over all tensors of sum g^2),     g is scaled by clip / (norm + 1e-6) where norm > clip

The square of a float32 is exact in float64, and sums are taken in float64: with 10^9 elements, a float32 sum would lose
small gradients. The array is cut into blocks of fixed size, threads sum blocks, and the sums of the blocks are added in
order; so the bits do not depend on the number of threads.
*/
#pragma once

#include "tensor_ranges.h"

// The arrays of a sum, of which some may be NULL.
typedef struct {
    const float *x, *y, *z;
} SumArrays;
typedef double (*ArraysTerm)(SumArrays a, int64_t i);       // a term, made of elements i
typedef double (*BlockSum)(SumArrays a, int64_t at, int n); // the sum of n terms from `at` on

// What a BlockSum does; lane j takes elements j, j + 16, ... `term` must be named in the call, as in row_sum.h.
__attribute__((always_inline)) static inline double block_sum(ArraysTerm term, SumArrays a, int64_t at, int n) {
    enum { LANES = 16 };
    double lane[LANES] = {0}, sum = 0;
    int begin = 0;
    for (; begin + LANES <= n; begin += LANES) {
        for (int j = 0; j < LANES; j++) lane[j] += term(a, at + begin + j);
    }
    for (int j = 0; begin + j < n; j++) lane[j] += term(a, at + begin + j);
    for (int j = 0; j < LANES; j++) sum += lane[j];
    return sum;
}

// n terms, by blocks. A round of them is summed at a time, so that no memory has to be allocated.
static inline double sum_of_blocks(BlockSum block, SumArrays a, int64_t n) {
    enum { BLOCK = 1 << 14, ROUND = 1024 };
    double total = 0;
    for (int64_t start = 0; start < n; start += (int64_t)BLOCK * ROUND) {
        double part[ROUND];
        const int blocks = (int)min_i64(ROUND, (n - start + BLOCK - 1) / BLOCK);
#pragma omp parallel for schedule(static)
        for (int i = 0; i < blocks; i++) {
            const int64_t at = start + (int64_t)i * BLOCK;
            part[i] = block(a, at, (int)min_i64(BLOCK, n - at));
        }
        for (int i = 0; i < blocks; i++) total += part[i];
    }
    return total;
}

static inline double square_of_x(SumArrays a, int64_t i) { return (double)a.x[i] * a.x[i]; }
static inline double block_squares(SumArrays a, int64_t at, int n) { return block_sum(square_of_x, a, at, n); }

static inline double sum_of_squares_range(const float* g, int64_t n) {
    const SumArrays a = {g, NULL, NULL};
    return sum_of_blocks(block_squares, a, n);
}

// sums[range.index] += sum of squares of grad, for each of `count` ranges.
static inline void sum_of_squares(double* sums, const float* grad, const TensorRange* ranges, int count) {
    for (int i = 0; i < count; i++) sums[ranges[i].index] += sum_of_squares_range(grad + ranges[i].at, ranges[i].n);
}
