/*
adamw.cuh: adamw.h on a GPU, elementwise. Traffic: 30 bytes an element (28 in float32); a thread has a group of four
elements, in accesses of 16 bytes. One number of Philox has the random bits of four elements (adamw.h), so groups begin
where first + i is a multiple of 4.
*/
#pragma once

#include "tensor_ranges.h"

// x, rounded to a neighbour: the last bits, which T cannot hold (bf16: 16), become 0 after a random number of
// as many bits was added. Numbers that T can hold are unchanged, and finite numbers stay finite.
template <class T>
__device__ __forceinline__ T round_randomly(float x, uint32_t random) {
    constexpr uint32_t mask = 0xffffu;
    const float size = fabsf(x);
    if (!(size < INFINITY)) return (T)x;
    const float y = __uint_as_float((__float_as_uint(size) + (random & mask)) & ~mask);
    return (T)copysignf(fminf(y, 0x1.fep127f), x);
}

// The rule of an optimizer: its parameters, whether it keeps a mean of squares v, the value of `decay` for tensors that
// do not decay, and update_element() for one element. It says fmaf() where a product and a sum are rounded together, as
// the compiler would otherwise choose anew in each of the loops of update_kernel(), and slices would get other bits.
struct AdamW {
    static constexpr bool HAS_V = true;
    static constexpr float NO_DECAY = 1;
    float decay, step_size, v_correction, beta1, beta2, eps, grad_scale;
};

__device__ __forceinline__ void update_element(float& p, float& m, float& v, float g, const AdamW& a) {
    g *= a.grad_scale;
    m = fmaf(a.beta1, m, (1.0f - a.beta1) * g);
    v = fmaf(a.beta2, v, (1.0f - a.beta2) * (g * g));
    p = fmaf(a.decay, p, -a.step_size * (m / fmaf(sqrtf(v), a.v_correction, a.eps)));
}

// W: 4, or 1 where the arrays differ in alignment. The rule is AdamW's or SGD's, which does not use v.
template <int W, class Rule>
__global__ static void __launch_bounds__(256)
    update_kernel(floatX* __restrict__ p, float* __restrict__ master, const float* __restrict__ g,
                  float* __restrict__ m, float* __restrict__ v, const RangeList list, Rule rule, int64_t step) {
    constexpr bool ROUNDED = sizeof(floatX) < sizeof(float);
    const int own = range_of_block(list);
    const TensorRange& range = list.range[own];
    const int64_t group = (int64_t)(blockIdx.x - list.block[own]) * blockDim.x + threadIdx.x, n = range.n;
    const int64_t i = 4 * group - (int)(range.first % 4);
    if (i >= n) return;
    p += range.from;
    g += range.at;
    m += range.at;
    master += ROUNDED ? range.at : range.from;
    if (Rule::HAS_V) v += range.at;
    if (!range.decays) rule.decay = Rule::NO_DECAY;
    Random4 random = {};
    if (ROUNDED) random = philox(range.key, (uint64_t)step, range.first / 4 + (uint64_t)group);
    if (W == 4 && i >= 0 && i + 4 <= n) {
        Packed<float, 4> w = load<4>(master + i), mean = load<4>(m + i), square = {};
        if (Rule::HAS_V) square = load<4>(v + i);
        const Packed<float, 4> gradient = load<4>(g + i);
        Packed<floatX, 4> rounded;
        for (int k = 0; k < 4; k++) {
            update_element(w[k], mean[k], square[k], gradient[k], rule);
            rounded[k] = round_randomly<floatX>(w[k], random.word[k]);
        }
        store(master + i, w), store(m + i, mean);
        if (Rule::HAS_V) store(v + i, square);
        if (ROUNDED) store(p + i, rounded);
        return;
    }
    for (int k = 0; k < 4; k++) {
        if (i + k < 0 || i + k >= n) continue;
        float none = 0;
        update_element(master[i + k], m[i + k], Rule::HAS_V ? v[i + k] : none, g[i + k], rule);
        if (ROUNDED) p[i + k] = round_randomly<floatX>(master[i + k], random.word[k]);
    }
}

// Whether groups of four elements, of which the first begins `head` elements before p, are aligned to their size.
template <class T>
static inline bool has_aligned_groups(const T* p, uint64_t head) {
    return ((uintptr_t)p - head * sizeof(T)) % (4 * sizeof(T)) == 0;
}

template <class Rule>
static inline void launch_update(floatX* p, float* master, const float* g, float* m, float* v,
                                 const TensorRange* ranges, int count, const Rule& rule, int64_t step) {
    constexpr bool ROUNDED = sizeof(floatX) < sizeof(float);
    if (!ROUNDED) master = (float*)(void*)p;
    for (int i = 0; i < count; i += RANGES_PER_LAUNCH) {
        bool aligned = true;
        const RangeList list = range_list(ranges + i, count - i, [&](const TensorRange& range) {
            const uint64_t head = range.first % 4;
            if (range.n == 0) return 0;
            aligned &= has_aligned_groups(p + range.from, head) && has_aligned_groups(g + range.at, head);
            aligned &= has_aligned_groups(master + (ROUNDED ? range.at : range.from), head);
            aligned &= has_aligned_groups(m + range.at, head);
            if (Rule::HAS_V) aligned &= has_aligned_groups(v + range.at, head);
            return blocks_for(range.n + (int64_t)head, 4 * 256);
        });
        launch(launch_shape(list.block[RANGES_PER_LAUNCH], 256),
               aligned ? update_kernel<4, Rule> : update_kernel<1, Rule>, p, master, g, m, v, list, rule, step);
    }
}

static inline void adamw_update(floatX* params, float* master, const float* grad, float* moment1, float* moment2,
                                const TensorRange* ranges, int count, const OptimizerStep* s) {
    AdamW a;
    a.decay = (float)(1.0 - (double)s->lr * s->weight_decay);
    a.step_size = (float)(s->lr / (1.0 - pow(s->beta1, (double)s->step)));
    a.v_correction = (float)(1.0 / sqrt(1.0 - pow(s->beta2, (double)s->step)));
    a.beta1 = s->beta1;
    a.beta2 = s->beta2;
    a.eps = s->eps;
    a.grad_scale = s->grad_scale;
    launch_update(params, master, grad, moment1, moment2, ranges, count, a, s->step);
}

// The word of an element: not word[place % 4], which would put the words into memory.
__device__ __forceinline__ uint32_t random_word(const Random4& random, uint64_t place) {
    uint32_t word = random.word[0];
#pragma unroll
    for (int k = 1; k < 4; k++) word = place % 4 == k ? random.word[k] : word;
    return word;
}

__global__ static void __launch_bounds__(256)
    adamw_round_kernel(floatX* __restrict__ p, const float* __restrict__ master, int64_t n, int64_t step, uint64_t key,
                       uint64_t first) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const uint64_t place = first + (uint64_t)i;
    p[i] = round_randomly<floatX>(master[i], random_word(philox(key, (uint64_t)step, place / 4), place));
}

// Recomputes the 16-bit parameters as the update of `step` left them, from their float32 values.
static inline void adamw_round(floatX* p, const float* master, int64_t n, int64_t step, uint64_t key, uint64_t first) {
    if (sizeof(floatX) == sizeof(float)) return;
    launch(launch_shape(blocks_for(n, 256), 256), adamw_round_kernel, p, master, n, step, key, first);
}

// ----------------------------------------------------------------------------------------------------------------
/*
SGD is elementwise as AdamW above, with another rule and without v. 16-bit parameters are a copy of the master weights
`master`, rounded stochastically by (key, step, place); adamw_round recomputes the same copy. 22 bytes of memory an
element, 20 in float32.
*/

struct SGD {
    static constexpr bool HAS_V = false;
    static constexpr float NO_DECAY = 0;
    float lr, momentum, decay, grad_scale;
};

__device__ __forceinline__ void update_element(float& p, float& m, float&, float g, const SGD& s) {
    m = fmaf(s.momentum, m, fmaf(s.grad_scale, g, s.decay * p));
    p = fmaf(-s.lr, m, p);
}

static inline void sgd_update(floatX* params, float* master, const float* grad, float* moment1, float* moment2,
                              const TensorRange* ranges, int count, const OptimizerStep* s) {
    const SGD rule = {s->lr, s->beta1, s->weight_decay, s->grad_scale};
    launch_update(params, master, grad, moment1, moment2, ranges, count, rule, s->step);
}
