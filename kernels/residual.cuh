/*
residual.cuh: residual.h on a GPU: adds a branch and its bias to the residual stream, and sums of gradients. 3 numbers
of memory an element, one pack of 16 bytes a thread. (Before a norm, layernorm.cuh does the addition.)
*/
#pragma once

#include "cuda_utils.cuh"

template <int W>
__global__ static void __launch_bounds__(256) residual_kernel(floatX* out, const floatX* residual, const floatX* branch,
                                                              const floatX* __restrict__ bias, int64_t n, int C) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= n) return;
    Packed<floatX, W> r = load<W>(residual + i), add = {};
    const Packed<floatX, W> b = load<W>(branch + i);
    if (bias) add = load<W>(bias + i % C);
    for (int k = 0; k < W; k++) r[k] = (floatX)((float)r[k] + ((float)b[k] + (float)add[k]));
    store(out + i, r);
}

// out (N, C) = residual + (branch + bias); out may be residual or branch itself; bias (C) or NULL.
static inline void residual_forward(floatX* out, const floatX* residual, const floatX* branch, const floatX* bias,
                                    int N, int C) {
    const bool packed = can_pack(out, C) && can_pack(residual, C) && can_pack(branch, C) && can_pack(bias, C);
    const int W = packed ? widest<floatX> : 1;
    const int64_t n = (int64_t)N * C;
    launch(launch_shape(blocks_for(n, 256 * W), 256), packed ? residual_kernel<widest<floatX>> : residual_kernel<1>,
           out, residual, branch, bias, n, C);
}

template <int W>
__global__ static void __launch_bounds__(256)
    accumulate_kernel(float* __restrict__ sum, const float* __restrict__ x, int64_t n) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= n) return;
    Packed<float, W> s = load<W>(sum + i);
    const Packed<float, W> v = load<W>(x + i);
    for (int k = 0; k < W; k++) s[k] += v[k];
    store(sum + i, s);
}

static inline void accumulate(float* sum, const float* x, int64_t n) {
    const bool packed = can_pack(sum, n) && can_pack(x, n);
    launch(launch_shape(blocks_for(n, packed ? 1024 : 256), 256), packed ? accumulate_kernel<4> : accumulate_kernel<1>,
           sum, x, n);
}

__global__ static void __launch_bounds__(256)
    accumulate_max_kernel(float* __restrict__ largest, const float* __restrict__ x, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) largest[i] = fmaxf(largest[i], x[i]);
}

static inline void accumulate_max(float* largest, const float* x, int64_t n) {
    launch(launch_shape(blocks_for(n, 256), 256), accumulate_max_kernel, largest, x, n);
}
