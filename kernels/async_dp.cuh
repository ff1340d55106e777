/*
async_dp.cuh: async_dp.h on a GPU, with the same bits: every product is rounded separately, and only delay_squares
reduces. Arrays are read and written once; a thread has four elements, in accesses of 16 bytes where all arrays are
aligned to that.
*/
#pragma once

#include "global_norm.cuh"
#include "outer_format.h"

#include <type_traits>

__device__ __forceinline__ float rounded_product(float a, float b) { return rounded_product(a, b, 0); }

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

struct ScaleBy {
    float factor;
    __device__ void operator()(float& x) const { x *= factor; }
};
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
static inline void mix(float* own, const float* base, float share, int64_t n) {
    const Mix f = {share, 1.0f - share};
    each(n, f, own, base);
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
    __device__ void operator()(float& base, float& velocity, float sum, float old, float fresh) const {
        (*this)(base, velocity, (sum - old) + fresh);
    }
};
static inline void outer_update(float* base, float* velocity, const float* sum, float factor, float lr, float momentum,
                                int64_t n) {
    const Outer f = {factor, lr, momentum};
    each(n, f, base, velocity, sum);
}

static inline void eager_update(float* base, float* velocity, const float* sum, const float* old, const float* fresh,
                                float factor, float lr, float momentum, int64_t n) {
    const Outer f = {factor, lr, momentum};
    each(n, f, base, velocity, sum, old, fresh);
}

// ----------------------------------------------------------------------------------------------------------------
// Quantised differences: a thread has four numbers, sixteen threads a block of 64. In packed form four numbers are 4
// bytes, 2 or 1, and packed data begins at a multiple of 4 bytes.

template <int BITS>
using FourOf = std::conditional_t<BITS == 8, uint32_t, std::conditional_t<BITS == 4, uint16_t, uint8_t>>;

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

// Over the lanes of an aligned group of a warp.
template <int LANES, class T>
__device__ __forceinline__ T lanes_sum(T v) {
    for (int l = LANES / 2; l > 0; l /= 2) v += __shfl_xor_sync(0xffffffffu, v, l);
    return v;
}

// quant_head of n numbers: number(j) is this lane's j-th of `mine`.
template <int BITS, int LANES, class F>
__device__ __forceinline__ uint32_t quant_head(const F& number, int mine, int n) {
    uint32_t top = 0;
    for (int j = 0; j < mine; j++) top = max(top, __float_as_uint(number(j)) & 0x7fffffffu);
    for (int l = LANES / 2; l > 0; l /= 2) top = max(top, __shfl_xor_sync(0xffffffffu, top, l));
    const float largest = __uint_as_float(top);
    const bool finite = top < 0x7f800000u, usable = finite && largest > 0;
    if (BITS > 2) return finite ? __float_as_uint(largest / (float)((1u << (BITS - 1)) - 1)) : 0x7fc00000u;
    uint64_t all = 0, upper = 0, above = 0;
    if (!usable) mine = 0;
    for (int j = 0; j < mine; j++) all += quant_units(number(j), largest);
    all = lanes_sum<LANES>(all);
    for (int j = 0; j < mine; j++) {
        const uint64_t units = quant_units(number(j), largest), is_above = units * (uint64_t)n > all;
        upper += is_above * units;
        above += is_above;
    }
    upper = lanes_sum<LANES>(upper);
    above = lanes_sum<LANES>(above);
    if (!usable) return finite ? 0 : 0x7fc07fc0u;
    const uint32_t low = quant_level(all - upper, (uint64_t)n - above, largest);
    return low | (above ? quant_level(upper, above, largest) : low) << 16;
}

template <int BITS, int W>
__global__ static void __launch_bounds__(256) quantize_kernel(uint8_t* __restrict__ packed, float* __restrict__ residue,
                                                              float* __restrict__ value, int64_t n, float decay) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4, begin = i / QUANT_BLOCK * QUANT_BLOCK;
    Packed<float, 4> x = load_some<W>(value, i, n), rest = load_some<W>(residue, i, n);
    for (int k = 0; k < 4; k++) x[k] += rounded_product(decay, rest[k]);
    const int mine = (int)min(max(n - i, (int64_t)0), (int64_t)4),
              size = (int)min(max(n - begin, (int64_t)0), (int64_t)QUANT_BLOCK);
    const uint32_t head = quant_head<BITS, QUANT_BLOCK / 4>([&](int k) { return x[k]; }, mine, size);
    if (begin >= n) return;
    uint8_t* block = packed + begin / QUANT_BLOCK * quant_bytes(1, BITS);
    uint32_t word = 0;
    for (int k = 0; k < 4; k++) {
        const uint32_t code = quant_code(x[k], head, BITS);
        const float sent = quant_value(code, head, BITS, 0);
        word |= code << (BITS * k);
        rest[k] = x[k] - sent;
        x[k] = sent;
    }
    const int lane = threadIdx.x % (QUANT_BLOCK / 4);
    reinterpret_cast<FourOf<BITS>*>(block + sizeof(head))[lane] = (FourOf<BITS>)word;
    if (lane == 0) *reinterpret_cast<uint32_t*>(block) = head;
    store_some<W>(value, x, i, n);
    store_some<W>(residue, rest, i, n);
}

static inline void quantize(uint8_t* packed, float* residue, float* value, int64_t n, int bits, float decay) {
    const bool wide = (uintptr_t)residue % 16 == 0 && (uintptr_t)value % 16 == 0;
    auto kernel = wide ? quantize_kernel<4, 4> : quantize_kernel<4, 1>;
    if (bits == 8) kernel = wide ? quantize_kernel<8, 4> : quantize_kernel<8, 1>;
    if (bits == 2) kernel = wide ? quantize_kernel<2, 4> : quantize_kernel<2, 1>;
    launch(launch_shape(blocks_for(n, 4 * 256), 256), kernel, packed, residue, value, n, decay);
}

template <int BITS, int W>
__global__ static void __launch_bounds__(256)
    dequantize_kernel(float* __restrict__ out, const uint8_t* __restrict__ packed, int64_t n) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= n) return;
    const uint8_t* block = packed + i / QUANT_BLOCK * quant_bytes(1, BITS);
    const uint32_t head = *reinterpret_cast<const uint32_t*>(block);
    const uint32_t word = reinterpret_cast<const FourOf<BITS>*>(block + sizeof(head))[threadIdx.x % (QUANT_BLOCK / 4)];
    Packed<float, 4> x = load_some<W>(out, i, n);
    for (int k = 0; k < 4; k++) x[k] += quant_value(word >> (BITS * k) & ((1u << BITS) - 1), head, BITS, 0);
    store_some<W>(out, x, i, n);
}

static inline void dequantize_add(float* out, const uint8_t* packed, int64_t n, int bits) {
    const bool wide = (uintptr_t)out % 16 == 0;
    auto kernel = wide ? dequantize_kernel<4, 4> : dequantize_kernel<4, 1>;
    if (bits == 8) kernel = wide ? dequantize_kernel<8, 4> : dequantize_kernel<8, 1>;
    if (bits == 2) kernel = wide ? dequantize_kernel<2, 4> : dequantize_kernel<2, 1>;
    launch(launch_shape(blocks_for(n, 4 * 256), 256), kernel, out, packed, n);
}

// ----------------------------------------------------------------------------------------------------------------
// Sparse differences: a warp has a chunk of 4096 numbers, a lane 128 in a row of them. Number i is at i + i / 128 in
// shared memory, so that the lanes' numbers are in different banks.

enum { LANE_NUMBERS = SPARSE_CHUNK / 32 };

// The sum over the lanes before this one.
__device__ __forceinline__ int lanes_before(int v) {
    const int lane = threadIdx.x % 32;
    int sum = v;
    for (int l = 1; l < 32; l *= 2) {
        const int other = __shfl_sync(0xffffffffu, sum, max(lane - l, 0));
        if (lane >= l) sum += other;
    }
    return sum - v;
}

// Writes the indices of the count largest |x|, in order; of equal ones the first are taken. own: this lane's numbers,
// begin to end.
__device__ __forceinline__ void sparse_select(uint32_t* index, const float* own, int begin, int end, int count) {
    const auto size = [&](int i) { return __float_as_uint(own[i]) & 0x7fffffffu; };
    uint32_t threshold = 0;
    for (int bit = 30; bit >= 0; bit--) {
        const uint32_t next = threshold | 1u << bit;
        int reach = 0;
        for (int i = begin; i < end; i++) reach += size(i) >= next;
        if (lanes_sum<32>(reach) >= count) threshold = next;
    }
    int above = 0, equal = 0;
    for (int i = begin; i < end; i++) {
        above += size(i) > threshold;
        equal += size(i) == threshold;
    }
    const int ties = count - lanes_sum<32>(above);
    int take = min(max(ties - lanes_before(equal), 0), equal);
    int at = lanes_before(above + take);
    for (int i = begin; i < end; i++) {
        const bool tied = size(i) == threshold && take > 0;
        take -= tied;
        if (tied || size(i) > threshold) index[at++] = (uint32_t)i;
    }
}

template <int BITS>
__global__ static void __launch_bounds__(32)
    sparsify_kernel(uint8_t* __restrict__ packed, float* __restrict__ residue, float* __restrict__ value, int64_t n,
                    int top_k, float decay) {
    __shared__ float x[SPARSE_CHUNK + 32];
    __shared__ uint32_t field[SPARSE_CHUNK];
    const int lane = threadIdx.x, size = (int)min(n - (int64_t)blockIdx.x * SPARSE_CHUNK, (int64_t)SPARSE_CHUNK);
    const int count = sparse_count(size, top_k), width = sparse_width(BITS);
    const auto number = [&](int i) -> float& { return x[i + i / LANE_NUMBERS]; };
    value += (int64_t)blockIdx.x * SPARSE_CHUNK;
    residue += (int64_t)blockIdx.x * SPARSE_CHUNK;
    uint32_t* words = reinterpret_cast<uint32_t*>(packed + blockIdx.x * sparse_bytes(SPARSE_CHUNK, BITS, top_k));
    for (int i = lane; i < size; i += 32) {
        number(i) = value[i] + rounded_product(decay, residue[i]);
        residue[i] = number(i);
        value[i] = 0;
    }
    __syncwarp();
    sparse_select(field, x + lane, lane * LANE_NUMBERS, min((lane + 1) * LANE_NUMBERS, size), count);
    __syncwarp();
    const int mine = lane < count ? (count - lane + 31) / 32 : 0;
    uint32_t head = 0;
    if (BITS < 32) head = quant_head<BITS, 32>([&](int j) { return number((int)field[j * 32 + lane]); }, mine, count);
    for (int j = lane; j < count; j += 32) {
        const int i = (int)field[j];
        float sent = number(i);
        if (BITS < 32) {
            const uint32_t code = quant_code(sent, head, BITS);
            sent = quant_value(code, head, BITS, 0);
            field[j] |= code << SPARSE_INDEX_BITS;
        } else {
            words[j] = __float_as_uint(sent);
        }
        value[i] = sent;
        residue[i] = number(i) - sent;
    }
    __syncwarp();
    if (BITS < 32 && lane == 0) words[0] = head;
    words += BITS < 32 ? 1 : count;
    for (int w = lane; w * 32 < count * width; w += 32) {
        uint32_t word = 0;
        for (int j = w * 32 / width; j < count && j * width < (w + 1) * 32; j++) {
            const int shift = j * width - w * 32;
            word |= shift < 0 ? field[j] >> -shift : field[j] << shift;
        }
        words[w] = word;
    }
}

// packed (sparse_bytes(n, bits, top_k)) = the top_k of each 4096 numbers of x = value + decay residue (n each); value
// becomes what was sent, residue the rest.
static inline void sparsify(uint8_t* packed, float* residue, float* value, int64_t n, int bits, int top_k,
                            float decay) {
    auto kernel = bits == 32 ? sparsify_kernel<32> : sparsify_kernel<8>;
    if (bits < 8) kernel = bits == 4 ? sparsify_kernel<4> : sparsify_kernel<2>;
    launch(launch_shape(blocks_for(n, SPARSE_CHUNK), 32), kernel, packed, residue, value, n, top_k, decay);
}

__global__ static void __launch_bounds__(128)
    sparse_add_kernel(float* __restrict__ out, const uint8_t* __restrict__ packed, int64_t n, int bits, int top_k) {
    const int64_t first = (int64_t)blockIdx.x * SPARSE_CHUNK;
    const uint32_t* head =
        reinterpret_cast<const uint32_t*>(packed + blockIdx.x * sparse_bytes(SPARSE_CHUNK, bits, top_k));
    const int count = sparse_count(min(n - first, (int64_t)SPARSE_CHUNK), top_k), width = sparse_width(bits);
    const uint32_t* fields = head + (bits < 32 ? 1 : count);
    for (int j = threadIdx.x; j < count; j += 128) {
        const uint32_t field = get_field(fields, (int64_t)j * width, width);
        const float sent =
            bits < 32 ? quant_value(field >> SPARSE_INDEX_BITS, *head, bits, 0) : __uint_as_float(head[j]);
        out[first + (field & (SPARSE_CHUNK - 1))] += sent;
    }
}

static inline void sparse_add(float* out, const uint8_t* packed, int64_t n, int bits, int top_k) {
    launch(launch_shape(blocks_for(n, SPARSE_CHUNK), 128), sparse_add_kernel, out, packed, n, bits, top_k);
}
