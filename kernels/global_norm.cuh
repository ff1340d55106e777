/*
global_norm.cuh: global_norm.h on a GPU: the sum of squares of a gradient, in float64. Every number is read once, 4
bytes each. The array is cut into blocks of fixed size, and the sums of the blocks are added in order: the bits do not
depend on the GPU.
*/
#pragma once

#include "row_sum.cuh"
#include "tensor_ranges.h"

enum { SQUARES_THREADS = 256, SQUARES_GROUPS = 16 }; // groups of four floats that a thread takes

enum { SQUARES_BLOCK = 4 * SQUARES_GROUPS * SQUARES_THREADS };

// By how many elements the first group begins before g.
__host__ __device__ static inline int squares_head(const float* g) { return (int)((uintptr_t)g % 16 / sizeof(float)); }

// partial[block] = the sum of squares of its groups. Group j of a range begins at g[4 j - head], which is aligned to 16
// bytes; groups at the ends of the range may be cut.
__global__ static void __launch_bounds__(SQUARES_THREADS)
    squares_kernel(double* __restrict__ partial, const float* __restrict__ g, const RangeList list) {
    constexpr int STEP = 4 * SQUARES_THREADS, BLOCK = SQUARES_BLOCK;
    const int own = range_of_block(list);
    const int64_t n = list.range[own].n;
    g += list.range[own].at;
    const int64_t begin = (int64_t)(blockIdx.x - list.block[own]) * BLOCK - squares_head(g);
    const int64_t first = begin + 4 * threadIdx.x;
    double sum[4] = {0, 0, 0, 0};
    if (begin >= 0 && begin + BLOCK <= n) {
        Packed<float, 4> v[SQUARES_GROUPS];
#pragma unroll
        for (int k = 0; k < SQUARES_GROUPS; k++) v[k] = load<4>(g + first + k * STEP);
#pragma unroll
        for (int k = 0; k < SQUARES_GROUPS; k++) {
            for (int j = 0; j < 4; j++) sum[j] += (double)v[k][j] * (double)v[k][j];
        }
    } else {
        for (int64_t i = first; i < min(begin + BLOCK, n); i += STEP) {
            for (int j = 0; j < 4; j++) {
                if (i + j >= 0 && i + j < n) sum[j] += (double)g[i + j] * (double)g[i + j];
            }
        }
    }
    const double total = block_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

// A block of SQUARES_ADD_THREADS: with a constant step nvcc loads eight numbers before it adds the first.
enum { SQUARES_ADD_THREADS = 1024 };
__global__ static void __launch_bounds__(SQUARES_ADD_THREADS)
    squares_add_kernel(double* sums, const double* __restrict__ partial, const RangeList list) {
    const int index = list.range[blockIdx.x].index;
    for (int k = 0; k < list.count; k++) {
        if (list.range[k].index != index) continue;
        if (k < (int)blockIdx.x) return; // the block of a tensor's first range adds all of them, in order
        const int end = list.block[k + 1];
        double mine = 0;
#pragma unroll 8
        for (int i = list.block[k] + (int)threadIdx.x; i < end; i += SQUARES_ADD_THREADS) mine += partial[i];
        mine = block_sum(mine);
        if (threadIdx.x == 0) sums[index] += mine;
    }
}

static inline void sum_of_squares(double* sums, const float* grad, const TensorRange* ranges, int count) {
    const auto blocks = [&](const TensorRange& range) {
        return range.n > 0 ? blocks_for(range.n + squares_head(grad + range.at), SQUARES_BLOCK) : 0;
    };
    for (int i = 0; i < count; i += RANGES_PER_LAUNCH) {
        const RangeList list = range_list(ranges + i, count - i, blocks);
        const int all = list.block[RANGES_PER_LAUNCH];
        double* partial = (double*)device_scratch(((size_t)all + 1) * sizeof(double));
        launch(launch_shape(all, SQUARES_THREADS), squares_kernel, partial, grad, list);
        launch(launch_shape(list.count, SQUARES_ADD_THREADS), squares_add_kernel, sums, partial, list);
    }
}
