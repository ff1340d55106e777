/*
gelu.cuh: gelu.h on a GPU, elementwise: forward 2, backward 3 numbers of memory an element, one pack of 16 bytes a
thread.

For 16-bit numbers an H200 has time for some 27 instructions an element of the forward pass before arithmetic, not
memory, is the limit. So e^x is __expf (relative error 2^-22 and, from the rounding of its argument, |x| 2^-24), and
division is __fdividef (2 units in the last place; 0 where the divisor is above 2^126).
*/
#pragma once

#include "cuda_utils.cuh"

constexpr float GELU_SCALE = 1.5957691216f, GELU_CUBIC = 0.044715f; // 2 sqrt(2/pi)

// e^(-2u): from 0 to infinity.
__device__ __forceinline__ float gelu_exp(float x) { return __expf(-GELU_SCALE * x * (1.0f + GELU_CUBIC * (x * x))); }
__device__ __forceinline__ float gelu_of(float x) { return __fdividef(x, 1.0f + gelu_exp(x)); }
__device__ __forceinline__ float gelu_slope(float x) {
    float e = gelu_exp(x);
    e = e > 0x1p126f ? 0x1p126f : e; // infinity times s = 0 would be a NaN
    const float s = __fdividef(1.0f, 1.0f + e), slope = GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * (x * x));
    return s + x * slope * (s * (e * s));
}

template <int W>
__global__ static void __launch_bounds__(256)
    gelu_forward_kernel(floatX* __restrict__ out, const floatX* __restrict__ x, int64_t n) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= n) return;
    Packed<floatX, W> v = load<W>(x + i);
    for (int k = 0; k < W; k++) v[k] = (floatX)gelu_of((float)v[k]);
    store(out + i, v);
}

static inline void gelu_forward(floatX* out, const floatX* x, int N, int F) {
    const int64_t n = (int64_t)N * F;
    const bool packed = can_pack(out, n) && can_pack(x, n);
    launch(launch_shape(blocks_for(n, packed ? 256 * widest<floatX> : 256), 256),
           packed ? gelu_forward_kernel<widest<floatX>> : gelu_forward_kernel<1>, out, x, n);
}

template <int W>
__global__ static void __launch_bounds__(256)
    gelu_backward_kernel(floatX* dx, const floatX* dout, const floatX* __restrict__ x, int64_t n) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= n) return;
    const Packed<floatX, W> v = load<W>(x + i);
    Packed<floatX, W> d = load<W>(dout + i);
    for (int k = 0; k < W; k++) d[k] = (floatX)((float)d[k] * gelu_slope((float)v[k]));
    store(dx + i, d);
}

// dx may be dout itself.
static inline void gelu_backward(floatX* dx, const floatX* dout, const floatX* x, int N, int F) {
    const int64_t n = (int64_t)N * F;
    const bool packed = can_pack(dx, n) && can_pack(dout, n) && can_pack(x, n);
    launch(launch_shape(blocks_for(n, packed ? 256 * widest<floatX> : 256), 256),
           packed ? gelu_backward_kernel<widest<floatX>> : gelu_backward_kernel<1>, dx, dout, x, n);
}
