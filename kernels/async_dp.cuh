/*
async_dp.cuh: async_dp.h on a GPU, with the same bits: every product is rounded separately, and only delay_squares
reduces. Arrays are read and written once; a thread has four elements, in accesses of 16 bytes where all arrays are
aligned to that.
*/
#ifndef KERNELS_ASYNC_DP_CUH
#define KERNELS_ASYNC_DP_CUH

#include "global_norm.cuh"

// a b, rounded to float32, never part of a fused multiply-add.
__device__ __forceinline__ float rounded_product(float a, float b) {
#ifdef __CUDACC__
    return __fmul_rn(a, b);
#else
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

// ----------------------------------------------------------------------------------------------------------------
// Sums and differences

struct Difference {
    __device__ void operator()(float& out, float a, float b) const { out = a - b; }
};
// out = a - b (n). out may be a or b.
static inline void difference(float* out, const float* a, const float* b, int64_t n) {
    each(n, Difference(), out, a, b);
}

struct AddScaled {
    float factor;
    __device__ void operator()(float& out, float x) const { out += rounded_product(factor, x); }
};
// out += factor x (n)
static inline void add_scaled(float* out, const float* x, float factor, int64_t n) {
    const AddScaled f = {factor};
    each(n, f, out, x);
}

struct ScaleBy {
    float factor;
    __device__ void operator()(float& x) const { x *= factor; }
};
// x *= factor (n)
static inline void scale_by(float* x, float factor, int64_t n) {
    const ScaleBy f = {factor};
    each(n, f, x);
}

struct Mix {
    float share, rest;
    __device__ void operator()(float& own, float base) const {
        const float mixed = rounded_product(share, own) + rounded_product(rest, base);
        own = share == 0 ? base : mixed;
    }
};
// own = share own + (1 - share) base (n). own: the local parameters, base: the global ones. share = 0 copies, whatever
// own was.
static inline void mix(float* own, const float* base, float share, int64_t n) {
    const Mix f = {share, 1.0f - share};
    each(n, f, own, base);
}

// ----------------------------------------------------------------------------------------------------------------
// Delay compensation

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
// g += lambda g g (to - from) (n each)
static inline void delay_compensate(float* g, const float* to, const float* from, float lambda, int64_t n) {
    const DelayCompensate f = {lambda};
    each(n, f, g, to, from);
}

// ----------------------------------------------------------------------------------------------------------------
// Outer steps

struct Outer {
    float factor, lr, momentum;
    __device__ void operator()(float& base, float& velocity, float sum) const {
        const float D = rounded_product(factor, sum);
        velocity = rounded_product(momentum, velocity) + D;
        base -= rounded_product(lr, D + rounded_product(momentum, velocity));
    }
    __device__ void operator()(float& base, float& velocity, float sum, float old, float fresh) const {
        (*this)(base, velocity, (sum - old) + fresh);
    }
};
// base, velocity (n) from sum (n), the sum of all sites' pseudo-gradients.
static inline void outer_update(float* base, float* velocity, const float* sum, float factor, float lr, float momentum,
                                int64_t n) {
    const Outer f = {factor, lr, momentum};
    each(n, f, base, velocity, sum);
}

// The same with this site's new pseudo-gradient `fresh` in place of `old`. For a single site (sum is old) the sum is
// exactly fresh.
static inline void eager_update(float* base, float* velocity, const float* sum, const float* old, const float* fresh,
                                float factor, float lr, float momentum, int64_t n) {
    const Outer f = {factor, lr, momentum};
    each(n, f, base, velocity, sum, old, fresh);
}

// ----------------------------------------------------------------------------------------------------------------
// Quantised differences: a thread has four numbers, sixteen threads a block of 64. In packed form four numbers are 4
// bytes, or 2, and packed data begins at a multiple of 4 bytes.

enum { QUANT_BLOCK = 64 };

// Bytes of n numbers in packed form: a multiple of 4, as every block's are.
__host__ __device__ static inline int64_t quant_bytes(int64_t n, int bits) {
    return (n + QUANT_BLOCK - 1) / QUANT_BLOCK * ((int64_t)sizeof(float) + QUANT_BLOCK * bits / 8);
}

template <int BITS>
struct FourOf;
template <>
struct FourOf<8> {
    typedef uint32_t type;
};
template <>
struct FourOf<4> {
    typedef uint16_t type;
};

// Loads four floats from p[i], with 0 from element n on; and stores them.
template <int W>
__device__ __forceinline__ Packed<float, 4> load_some(const float* p, int64_t i, int64_t n) {
    if (W == 4 && i + 4 <= n) return load<4>(p + i);
    Packed<float, 4> x;
    for (int k = 0; k < 4; k++) x[k] = i + k < n ? p[i + k] : 0.0f;
    return x;
}
template <int W>
__device__ __forceinline__ void store_some(float* p, const Packed<float, 4>& x, int64_t i, int64_t n) {
    if (W == 4 && i + 4 <= n) {
        store(p + i, x);
        return;
    }
    for (int k = 0; k < 4; k++) {
        if (i + k < n) p[i + k] = x[k];
    }
}

template <int BITS, int W>
__global__ static void __launch_bounds__(256)
    quantize_kernel(uint8_t* __restrict__ packed, float* __restrict__ residue, float* __restrict__ value, int64_t n) {
    constexpr int32_t largest = (1 << (BITS - 1)) - 1;
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    Packed<float, 4> x = load_some<W>(value, i, n), rest = load_some<W>(residue, i, n);
    uint32_t top = 0; // the bits of the largest |x|: these sort like the numbers, then infinity, then NaNs
    for (int k = 0; k < 4; k++) {
        x[k] += rest[k];
        top = max(top, __float_as_uint(x[k]) & 0x7fffffffu);
    }
    for (int l = 8; l > 0; l /= 2) top = max(top, __shfl_xor_sync(0xffffffffu, top, l));
    uint8_t* block = packed + i / QUANT_BLOCK * quant_bytes(1, BITS);
    if (i / QUANT_BLOCK * QUANT_BLOCK >= n) return;
    const float scale = top < 0x7f800000u ? __uint_as_float(top) / (float)largest : __uint_as_float(0x7fc00000u);
    const bool usable = scale > 0; // not 0, and no NaN
    const float divisor = usable ? scale : 1.0f;
    uint32_t word = 0;
    for (int k = 0; k < 4; k++) {
        // next to 1.5 2^23, float32 numbers are 1 apart, so that the addition rounds to the nearest whole number
        const int32_t nearest = (int32_t)(__float_as_uint(x[k] / divisor + 0x1.8p23f) - 0x4b400000u);
        const int32_t q = usable ? min(max(nearest, -largest), largest) : 0;
        word |= ((uint32_t)q & ((1u << BITS) - 1)) << (BITS * k);
        const float sent = rounded_product((float)q, scale);
        rest[k] = x[k] - sent;
        x[k] = sent;
    }
    typedef typename FourOf<BITS>::type Four;
    const int lane = threadIdx.x % (QUANT_BLOCK / 4);
    reinterpret_cast<Four*>(block + sizeof(float))[lane] = (Four)word;
    if (lane == 0) *reinterpret_cast<float*>(block) = scale;
    store_some<W>(value, x, i, n);
    store_some<W>(residue, rest, i, n);
}

// packed (quant_bytes(n, bits)) = x = value + residue (n each), quantised; value becomes the dequantised x, and residue
// the exact rest. A block with a number that is not finite becomes NaN.
static inline void quantize(uint8_t* packed, float* residue, float* value, int64_t n, int bits) {
    const bool wide = (uintptr_t)residue % 16 == 0 && (uintptr_t)value % 16 == 0;
    auto kernel = wide ? quantize_kernel<4, 4> : quantize_kernel<4, 1>;
    if (bits == 8) kernel = wide ? quantize_kernel<8, 4> : quantize_kernel<8, 1>;
    launch(launch_shape(blocks_for(n, 4 * 256), 256), kernel, packed, residue, value, n);
}

template <int BITS, int W>
__global__ static void __launch_bounds__(256)
    dequantize_kernel(float* __restrict__ out, const uint8_t* __restrict__ packed, int64_t n) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= n) return;
    const uint8_t* block = packed + i / QUANT_BLOCK * quant_bytes(1, BITS);
    const float scale = *reinterpret_cast<const float*>(block);
    typedef typename FourOf<BITS>::type Four;
    const uint32_t word = reinterpret_cast<const Four*>(block + sizeof(float))[threadIdx.x % (QUANT_BLOCK / 4)];
    Packed<float, 4> x = load_some<W>(out, i, n);
    for (int k = 0; k < 4; k++) {
        const int32_t q = (int32_t)(word << (32 - BITS * (k + 1))) >> (32 - BITS); // with its sign
        x[k] += rounded_product((float)q, scale);
    }
    store_some<W>(out, x, i, n);
}

// out (n) += the dequantised numbers
static inline void dequantize_add(float* out, const uint8_t* packed, int64_t n, int bits) {
    const bool wide = (uintptr_t)out % 16 == 0;
    auto kernel = wide ? dequantize_kernel<4, 4> : dequantize_kernel<4, 1>;
    if (bits == 8) kernel = wide ? dequantize_kernel<8, 4> : dequantize_kernel<8, 1>;
    launch(launch_shape(blocks_for(n, 4 * 256), 256), kernel, out, packed, n);
}

#endif
