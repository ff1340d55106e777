/*
swiglu.cuh: swiglu.h on a GPU: forward 3, backward 5 numbers of memory an output, one pack of 16 bytes of each a thread.
Exponential and division are the fast ones, as in gelu.cuh.
*/
#pragma once

#include "cuda_utils.cuh"

template <int W>
__global__ static void __launch_bounds__(256)
    swiglu_forward_kernel(floatX* __restrict__ out, const floatX* __restrict__ gate_up, int64_t n, int F) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= n) return;
    const int64_t at = i + i / F * F; // row i / F of gate_up has 2F
    const Packed<floatX, W> gate = load<W>(gate_up + at), up = load<W>(gate_up + at + F);
    Packed<floatX, W> o;
    for (int k = 0; k < W; k++) {
        const float g = (float)gate[k];
        o[k] = (floatX)(__fdividef(g, 1.0f + __expf(-g)) * (float)up[k]);
    }
    store(out + i, o);
}

static inline void swiglu_forward(floatX* out, const floatX* gate_up, int N, int F) {
    const bool packed = can_pack(out, F) && can_pack(gate_up, F);
    const int64_t n = (int64_t)N * F;
    launch(launch_shape(blocks_for(n, packed ? 256 * widest<floatX> : 256), 256),
           packed ? swiglu_forward_kernel<widest<floatX>> : swiglu_forward_kernel<1>, out, gate_up, n, F);
}

template <int W>
__global__ static void __launch_bounds__(256)
    swiglu_backward_kernel(floatX* __restrict__ dgate_up, const floatX* __restrict__ dout,
                           const floatX* __restrict__ gate_up, int64_t n, int F) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= n) return;
    const int64_t at = i + i / F * F;
    const Packed<floatX, W> gate = load<W>(gate_up + at), up = load<W>(gate_up + at + F), d = load<W>(dout + i);
    Packed<floatX, W> dgate, dup;
    for (int k = 0; k < W; k++) {
        const float g = (float)gate[k];
        float e = __expf(-g);
        e = e > 0x1p126f ? 0x1p126f : e; // infinity times s = 0 would be a NaN
        const float s = __fdividef(1.0f, 1.0f + e);
        dup[k] = (floatX)((float)d[k] * (g * s));
        dgate[k] = (floatX)((float)d[k] * (float)up[k] * (s + g * (s * (e * s))));
    }
    store_global(dgate_up + at, dgate);
    store_global(dgate_up + at + F, dup);
}

static inline void swiglu_backward(floatX* dgate_up, const floatX* dout, const floatX* gate_up, int N, int F) {
    const bool packed = can_pack(dgate_up, F) && can_pack(dout, F) && can_pack(gate_up, F);
    const int64_t n = (int64_t)N * F;
    launch(launch_shape(blocks_for(n, packed ? 256 * widest<floatX> : 256), 256),
           packed ? swiglu_backward_kernel<widest<floatX>> : swiglu_backward_kernel<1>, dgate_up, dout, gate_up, n, F);
}
