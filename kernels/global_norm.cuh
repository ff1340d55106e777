/*
global_norm.cuh: global_norm.h on a GPU: the sum of squares of a gradient, in float64. Every number is read once, 4
bytes each. The array is cut into blocks of fixed size, and the sums of the blocks are added in order: the bits do not
depend on the GPU.
*/
#ifndef GLOBAL_NORM_CUH
#define GLOBAL_NORM_CUH

#include "row_sum.cuh"

enum { SQUARES_THREADS = 256, SQUARES_GROUPS = 16 }; // groups of four floats that a thread takes

// partial[block] = the sum of squares of its groups. Group j begins at g[4 j - head], which is aligned to 16 bytes;
// groups at the ends of g may be cut.
__global__ static void __launch_bounds__(SQUARES_THREADS)
    squares_kernel(double* __restrict__ partial, const float* __restrict__ g, int64_t n, int head) {
    constexpr int STEP = 4 * SQUARES_THREADS, BLOCK = SQUARES_GROUPS * STEP;
    const int64_t begin = (int64_t)blockIdx.x * BLOCK - head, first = begin + 4 * threadIdx.x;
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
    squares_add_kernel(double* sum, const double* __restrict__ partial, int count) {
    double mine = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < count; i += SQUARES_ADD_THREADS) mine += partial[i];
    mine = block_sum(mine);
    if (threadIdx.x == 0) *sum += mine;
}

// *sum += sum of squares of g (n).
static inline void sum_of_squares(double* sum, const float* g, int64_t n) {
    const int head = (int)((uintptr_t)g % 16 / sizeof(float));
    const int blocks = n > 0 ? blocks_for(n + head, 4 * SQUARES_GROUPS * SQUARES_THREADS) : 0;
    double* partial = (double*)device_scratch(((size_t)blocks + 1) * sizeof(double));
    launch(launch_shape(blocks, SQUARES_THREADS), squares_kernel, partial, g, n, head);
    launch(launch_shape(1, SQUARES_ADD_THREADS), squares_add_kernel, sum, partial, blocks);
}

#endif
