/*
rope.cuh: rope.h on a GPU, in place: every rotated number is read and written once, and the table's row of a position,
shared by all heads, comes from the cache. A thread rotates a pack of points: W neighbours of the first half of a head
and their partners of the second half; threads run along a head, then over heads, then over rows.
*/
#pragma once

#include "cuda_utils.cuh"
#include "../util/rope_table.h"

// table (T, HS) in device memory.
static inline void rope_table(float* table, int T, int HS, double theta, const RopeScaling* scaling) {
    const size_t bytes = (size_t)T * HS * sizeof(float);
    float* host = (float*)checked_malloc(bytes, "the table of rotations");
    rope_table_fill(host, T, HS, theta, scaling);
    cuda_check(cudaMemcpy(table, host, bytes, cudaMemcpyHostToDevice), "a copy to the GPU");
    free(host);
}

// By `direction` (1 or -1) times the angle. points: B T heads HS/2.
template <int W>
__global__ static void __launch_bounds__(256)
    rope_kernel(floatX* __restrict__ qkv, const float* __restrict__ cos_sin, float direction, int64_t points, int T,
                int heads, int half, int stride) {
    const int64_t j = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (j >= points) return;
    const int64_t n = j / (heads * half);
    const int in_row = (int)(j - n * (heads * half)), h = in_row / half, i = in_row - h * half;
    floatX* p = qkv + n * stride + h * 2 * half + i;
    const float* table = cos_sin + n % T * (2 * half) + i;
    const Packed<float, W> cosine = load<W>(table), sine = load<W>(table + half);
    Packed<floatX, W> x = load<W>(p), y = load<W>(p + half);
    for (int k = 0; k < W; k++) {
        const float s = direction * sine[k], x0 = (float)x[k], y0 = (float)y[k];
        x[k] = (floatX)(x0 * cosine[k] - y0 * s);
        y[k] = (floatX)(y0 * cosine[k] + x0 * s);
    }
    store(p, x);
    store(p + half, y);
}

static inline void rope_rotate(floatX* qkv, const float* cos_sin, float direction, int B, int T, int heads, int HS,
                               int stride) {
    const int W = widest<floatX>;
    const bool packed = can_pack(qkv, stride) && HS / 2 % W == 0 && (uintptr_t)cos_sin % (W * sizeof(float)) == 0;
    const int64_t points = (int64_t)B * T * heads * (HS / 2);
    launch(launch_shape(blocks_for(points, packed ? 256 * W : 256), 256), packed ? rope_kernel<W> : rope_kernel<1>, qkv,
           cos_sin, direction, points, T, heads, HS / 2, stride);
}

static inline void rope_forward(floatX* qkv, const float* cos_sin, int B, int T, int heads, int HS, int stride) {
    rope_rotate(qkv, cos_sin, 1.0f, B, T, heads, HS, stride);
}

// dqkv (B T, stride): from the gradient of the rotated heads to that of the heads, in place.
static inline void rope_backward(floatX* dqkv, const float* cos_sin, int B, int T, int heads, int HS, int stride) {
    rope_rotate(dqkv, cos_sin, -1.0f, B, T, heads, HS, stride);
}
