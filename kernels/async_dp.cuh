/*
async_dp.cuh: async_dp.h on a GPU, with the same bits: every product is rounded separately, and only delay_squares
reduces. Arrays are read and written once; a thread has four elements, in accesses of 16 bytes where all arrays are
aligned to that.
*/
#pragma once

#include "global_norm.cuh"

// a b, rounded to float32, never part of a fused multiply-add, as its bits are used in between.
__device__ __forceinline__ float rounded_product(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else // the emulator
    volatile float y = a * b;
    return y;
#endif
}

// ----------------------------------------------------------------------------------------------------------------
// Element by element: each(n, f, arrays...) calls f(an element of each array) for n elements. Changes are written back
// to arrays of float, not to arrays of const float.

template <int W>
__device__ __forceinline__ void put_back(float* to, const Packed<float, W>& x) {
    store(to, x);
}
template <int W>
__device__ __forceinline__ void put_back(const float*, const Packed<float, W>&) {}

// W elements of each.
template <int W, class F, class... P>
__device__ __forceinline__ void each_pack(const F& f, const P&... at) {
    const auto apply = [&](auto... x) {
        for (int k = 0; k < W; k++) f(x[k]...);
        (put_back(at, x), ...);
    };
    apply(load<W>(at)...);
}

template <int W, class F, class... P>
__global__ static void __launch_bounds__(256) each_kernel(int64_t n, F f, P... arrays) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i + W <= n) {
        each_pack<W>(f, arrays + i...);
    } else {
        for (int64_t j = i; j < n; j++) each_pack<1>(f, arrays + j...);
    }
}

template <class F, class... P>
static inline void each(int64_t n, const F& f, P... arrays) {
    const bool packed = (((uintptr_t)arrays % 16 == 0) && ...);
    launch(launch_shape(blocks_for(n, packed ? 4 * 256 : 256), 256),
           packed ? each_kernel<4, F, P...> : each_kernel<1, F, P...>, n, f, arrays...);
}

// ---- Sums and differences ---------------------------------------------------------------------------------------

struct Difference {
    __device__ void operator()(float& out, float a, float b) const { out = a - b; }
};
static inline void difference(float* out, const float* a, const float* b, int64_t n) {
    each(n, Difference(), out, a, b);
}

struct AddScaled {
    float factor;
    __device__ void operator()(float& out, float x) const { out += rounded_product(factor, x); }
};
static inline void add_scaled(float* out, const float* x, float factor, int64_t n) {
    const AddScaled f = {factor};
    each(n, f, out, x);
}

// ---- Delay compensation -----------------------------------------------------------------------------------------

// (g g (to - from))^2, in float64
__device__ __forceinline__ double delay_square(float g, float to, float from) {
    const double d = (double)g * (double)g * ((double)to - (double)from);
    return d * d;
}

// partial[block] = the sum over its groups of four (compare squares_kernel). W: 4, or 1 where the arrays are not
// aligned; in both cases a thread has the same elements, and sums have the same bits.
template <int W>
__global__ static void __launch_bounds__(SQUARES_THREADS)
    delay_squares_kernel(double* __restrict__ partial, const float* __restrict__ g, const float* __restrict__ to,
                         const float* __restrict__ from, int64_t n) {
    constexpr int STEP = 4 * SQUARES_THREADS;
    const int64_t first = ((int64_t)blockIdx.x * SQUARES_GROUPS * SQUARES_THREADS + threadIdx.x) * 4;
    double sum[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (int k = 0; k < SQUARES_GROUPS; k++) {
        const int64_t i = first + k * STEP;
        if (W == 4 && i + 4 <= n) {
            const Packed<float, 4> a = load<4>(g + i), b = load<4>(to + i), c = load<4>(from + i);
            for (int j = 0; j < 4; j++) sum[j] += delay_square(a[j], b[j], c[j]);
        } else {
            for (int j = 0; j < 4; j++) {
                if (i + j < n) sum[j] += delay_square(g[i + j], to[i + j], from[i + j]);
            }
        }
    }
    const double total = block_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

// *sum += sum of (g g (to - from))^2 (n each)
static inline void delay_squares(double* sum, const float* g, const float* to, const float* from, int64_t n) {
    const bool packed = (uintptr_t)g % 16 == 0 && (uintptr_t)to % 16 == 0 && (uintptr_t)from % 16 == 0;
    const int blocks = blocks_for(n, SQUARES_BLOCK);
    const TensorRange whole = whole_range(n);
    const RangeList list = range_list(&whole, 1, [&](const TensorRange&) { return blocks; });
    double* partial = (double*)device_scratch(((size_t)blocks + 1) * sizeof(double));
    launch(launch_shape(blocks, SQUARES_THREADS), packed ? delay_squares_kernel<4> : delay_squares_kernel<1>, partial,
           g, to, from, n);
    launch(launch_shape(1, SQUARES_ADD_THREADS), squares_add_kernel, sum, partial, list);
}

struct DelayCompensate {
    float lambda;
    __device__ void operator()(float& g, float to, float from) const {
        g += rounded_product(rounded_product(lambda, g), rounded_product(g, to - from));
    }
};
static inline void delay_compensate(float* g, const float* to, const float* from, float lambda, int64_t n) {
    const DelayCompensate f = {lambda};
    each(n, f, g, to, from);
}

// ---- Outer steps ------------------------------------------------------------------------------------------------

struct Outer {
    float factor, lr, momentum;
    __device__ void operator()(float& base, float& velocity, float sum) const {
        const float D = rounded_product(factor, sum);
        velocity = rounded_product(momentum, velocity) + D;
        base -= rounded_product(lr, D + rounded_product(momentum, velocity));
    }
};
static inline void outer_update(float* base, float* velocity, const float* sum, float factor, float lr, float momentum,
                                int64_t n) {
    const Outer f = {factor, lr, momentum};
    each(n, f, base, velocity, sum);
}
