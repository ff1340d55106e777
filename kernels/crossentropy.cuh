/*
crossentropy.cuh: crossentropy.h on a GPU: logits (N, stride) are floatX, losses and the numbers exchanged between ranks
float32. One block a row.

crossentropy_fused reads a row of logits from memory once and writes it once. It computes maximum and sum together while
the row comes in (online softmax, Milakov and Gimelshein 2018: when the maximum grows by d, the sum shrinks by e^-d),
and keeps the row in shared memory for the second pass: 100 KB for 50304 16-bit logits, of which an H200 holds two per
multiprocessor, so one row is loaded while another is computed. The part that does not fit (V > 115 200, or an older
GPU) is read again.

The four functions for a vocabulary in slices read the logits three times and write them once.

e^x is exp_fast: relative error 2^-22 and, from the rounding of its argument, |x| 2^-24; as much as x - max has anyway.

An H200 has time for some 28 instructions for each 16-bit logit, read and written once, before arithmetic, not memory,
is the limit. So the rare cases, the row's end and its target, are branches per pack, not per logit.
*/
#pragma once

#include "row_sum.cuh"
#include "targets.h"

// Threads for a row of n logits; n is 0 where a slice of the vocabulary is all padding.
static inline int row_threads(int n, int W, int most) {
    return (int)min_i64(most, 32 * max_i64(1, blocks_for(n, 32 * W)));
}

// In four packs, as load_four loads them, numbers after the last of n logits become -infinity.
template <int W>
__device__ __forceinline__ void mask_four(Packed<floatX, W> (&v)[4], int begin, int step, int n) {
    if (begin + 3 * step + W <= n) return; // true except at the end of a row
#pragma unroll
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < W; i++) {
            if (begin + k * step + i >= n) v[k][i] = (floatX)-INFINITY;
        }
    }
}

template <int W>
__global__ static void __launch_bounds__(512)
    crossentropy_max_kernel(float* __restrict__ row_max, const floatX* __restrict__ logits, int V_local, int stride) {
    const floatX* __restrict__ x = logits + (int64_t)blockIdx.x * stride;
    const int step = blockDim.x * W;
    float largest = -INFINITY;
    for (int begin = threadIdx.x * W; begin < V_local; begin += 4 * step) {
        Packed<floatX, W> v[4];
        load_four(v, x, begin, step, stride);
        mask_four(v, begin, step, V_local);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            for (int i = 0; i < W; i++) largest = fmaxf(largest, (float)v[k][i]);
        }
    }
    largest = block_max(largest);
    if (threadIdx.x == 0) row_max[blockIdx.x] = largest;
}

// row_max (N): the largest logit of each row, -infinity if there is none. NaNs are ignored here; they show in the sum.
static inline void crossentropy_max(float* row_max, const floatX* logits, int N, VocabSlice slice) {
    const bool packed = can_pack(logits, slice.stride);
    const int W = packed ? widest<floatX> : 1;
    launch(launch_shape(N, row_threads(slice.used, W, 512)),
           packed ? crossentropy_max_kernel<widest<floatX>> : crossentropy_max_kernel<1>, row_max, logits, slice.used,
           slice.stride);
}

template <int W>
__global__ static void __launch_bounds__(512)
    crossentropy_sum_kernel(float* __restrict__ row_sum, float* __restrict__ target_logit,
                            const floatX* __restrict__ logits, const float* __restrict__ row_max,
                            const int32_t* __restrict__ targets, int V_local, int stride, int vocab_offset) {
    const int n = blockIdx.x, used = targets[n] >= 0 ? V_local : 0, step = blockDim.x * W;
    const floatX* __restrict__ x = logits + (int64_t)n * stride;
    const float max = row_max[n];
    float sum = 0;
    for (int begin = threadIdx.x * W; begin < used; begin += 4 * step) {
        Packed<floatX, W> v[4];
        load_four(v, x, begin, step, stride);
        mask_four(v, begin, step, used);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            for (int i = 0; i < W; i++) sum += exp_fast((float)v[k][i] - max);
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x > 0) return;
    const int64_t target = (int64_t)targets[n] - vocab_offset;
    row_sum[n] = sum;
    target_logit[n] = target >= 0 && target < used ? (float)x[target] - max : 0;
}

static inline void crossentropy_sum(float* row_sum, float* target_logit, const floatX* logits, const float* row_max,
                                    Targets targets, int N, VocabSlice slice) {
    const bool packed = can_pack(logits, slice.stride);
    const int W = packed ? widest<floatX> : 1;
    launch(launch_shape(N, row_threads(slice.used, W, 512)),
           packed ? crossentropy_sum_kernel<widest<floatX>> : crossentropy_sum_kernel<1>, row_sum, target_logit, logits,
           row_max, targets.token, slice.used, slice.stride, slice.first);
}

__global__ static void __launch_bounds__(256)
    crossentropy_loss_kernel(float* __restrict__ losses, const float* __restrict__ row_sum,
                             const float* __restrict__ target_logit, int N) {
    const int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n < N) losses[n] = row_sum[n] == 0 ? 0 : logf(row_sum[n]) - target_logit[n];
}

static inline void crossentropy_loss(float* losses, const float* row_sum, const float* target_logit, int N) {
    launch(launch_shape(blocks_for(N, 256), 256), crossentropy_loss_kernel, losses, row_sum, target_logit, N);
}

// The gradient of the logits of a pack, which begins at column c of a row; `target`: the target's column in this slice.
template <int W>
__device__ __forceinline__ Packed<floatX, W> logits_gradient(const Packed<floatX, W>& v, int c, int used, float max,
                                                             float factor, int target, float scale) {
    Packed<floatX, W> d;
    for (int i = 0; i < W; i++) d[i] = (floatX)(exp_fast((float)v[i] - max) * factor);
    if (c + W <= used && (target < c || target >= c + W)) return d;
    for (int i = 0; i < W; i++) {
        if (c + i == target) d[i] = (floatX)(exp_fast((float)v[i] - max) * factor - scale);
        if (c + i >= used) d[i] = (floatX)0.0f;
    }
    return d;
}

template <int W>
__global__ static void __launch_bounds__(512)
    crossentropy_backward_kernel(floatX* logits, const float* __restrict__ row_max, const float* __restrict__ row_sum,
                                 const int32_t* __restrict__ targets, float scale, int V_local, int stride,
                                 int vocab_offset) {
    const int n = blockIdx.x, used = targets[n] >= 0 ? V_local : 0, target = targets[n] - vocab_offset;
    const int step = blockDim.x * W;
    const float max = row_max[n], factor = scale / row_sum[n];
    floatX* x = logits + (int64_t)n * stride;
    for (int begin = threadIdx.x * W; begin < stride; begin += 4 * step) {
        Packed<floatX, W> v[4];
        load_four(v, x, begin, step, stride);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int c = begin + k * step;
            if (c < stride) store(x + c, logits_gradient(v[k], c, used, max, factor, target, scale));
        }
    }
}

static inline void crossentropy_backward(floatX* logits, const float* row_max, const float* row_sum, Targets targets,
                                         int N, VocabSlice slice) {
    const bool packed = can_pack(logits, slice.stride);
    const int W = packed ? widest<floatX> : 1;
    launch(launch_shape(N, row_threads(slice.stride, W, 512)),
           packed ? crossentropy_backward_kernel<widest<floatX>> : crossentropy_backward_kernel<1>, logits, row_max,
           row_sum, targets.token, targets.scale, slice.used, slice.stride, slice.first);
}

// ---- All at once ------------------------------------------------------------------------------------------------

// `kept`: columns of the row that stay in shared memory.
template <int W>
__global__ static void __launch_bounds__(1024)
    crossentropy_fused_kernel(float* __restrict__ losses, floatX* logits, const int32_t* __restrict__ targets,
                              float scale, int V, int stride, int kept) {
    Packed<floatX, W>* const row = dynamic_shared<Packed<floatX, W>>() + threadIdx.x; // each thread its own packs
    const int n = blockIdx.x, target = targets[n], used = target >= 0 ? V : 0;
    const int first = threadIdx.x * W, step = blockDim.x * W;
    floatX* x = logits + (int64_t)n * stride;
    float max = -0x1.fffffep127f, sum = 0; // finite, as max - max must be 0
    Packed<floatX, W>* to = row;
    for (int begin = first; begin < used; begin += 4 * step, to += 4 * blockDim.x) {
        Packed<floatX, W> v[4];
        float f[4][W], largest = max;
        load_four(v, x, begin, step, stride);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (begin + k * step < kept) to[k * blockDim.x] = v[k];
        }
        mask_four(v, begin, step, V);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            for (int i = 0; i < W; i++) {
                f[k][i] = (float)v[k][i];
                largest = fmaxf(largest, f[k][i]);
            }
        }
        sum *= exp_fast(max - largest);
        max = largest;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            for (int i = 0; i < W; i++) sum += exp_fast(f[k][i] - max);
        }
    }
    const float row_max = block_max(max);
    sum = block_sum(sum * exp_fast(max - row_max));
    const float factor = scale / sum;
    const Packed<floatX, W>* from = row;
    for (int c = first; c < stride; c += step, from += blockDim.x) {
        const Packed<floatX, W> v = c < kept ? *from : load<W>(x + c); // undefined from `used` on
        if (target >= c && target < c + W) {                           // by the thread that has x[target]
            float logit = 0;
            for (int i = 0; i < W; i++) logit = c + i == target ? (float)v[i] : logit;
            losses[n] = logf(sum) - (logit - row_max);
        }
        store(x + c, logits_gradient(v, c, used, row_max, factor, target, scale));
    }
    if (threadIdx.x == 0 && target < 0) losses[n] = 0;
}

// For a vocabulary that is not cut, with targets in it: losses (N) in nats, and logits (N, stride) become scale times
// their gradient.
static inline void crossentropy_fused(float* losses, floatX* logits, Targets targets, int N, VocabSlice whole) {
    const bool packed = can_pack(logits, whole.stride);
    const int W = packed ? widest<floatX> : 1;
    const size_t all = gpu_properties()->sharedMemPerBlockOptin - 2048; // minus the part of block_max and block_sum
    const int kept = (int)min_i64(whole.stride, (int64_t)(all / sizeof(floatX)) / W * W);
    const size_t bytes = (size_t)kept * sizeof(floatX);
    const int most = 2 * bytes > all ? 1024 : 512; // one block on a multiprocessor, or at least two
    launch(launch_shape(N, row_threads(whole.stride, W, most), bytes),
           packed ? crossentropy_fused_kernel<widest<floatX>> : crossentropy_fused_kernel<1>, losses, logits,
           targets.token, targets.scale, whole.used, whole.stride, kept);
}

// ---- The loss of a micro-batch ----------------------------------------------------------------------------------

// A block of LOSS_THREADS: with a constant step nvcc loads eight losses before it adds the first.
enum { LOSS_THREADS = 1024 };
__global__ static void __launch_bounds__(LOSS_THREADS)
    losses_add_kernel(double* sum, const float* __restrict__ losses, int N) {
    double mine = 0;
#pragma unroll 8
    for (int n = threadIdx.x; n < N; n += LOSS_THREADS) mine += losses[n];
    mine = block_sum(mine);
    if (threadIdx.x == 0) *sum += mine;
}

// *sum += losses (N), by one block in a fixed order.
static inline void losses_add(double* sum, const float* losses, int N) {
    if (N > 0) launch(launch_shape(1, LOSS_THREADS), losses_add_kernel, sum, losses, N);
}
