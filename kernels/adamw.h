/*
adamw.h: Adam with decoupled weight decay (Kingma and Ba 2014; Loshchilov and Hutter 2017), as PyTorch's AdamW; float32,
also where floatX is bf16.

    g' = grad_scale g                               clipping
    m = beta1 m + (1 - beta1) g'                    running mean of the gradient
    v = beta2 v + (1 - beta2) g'^2                  and of its square
    mhat = m / (1 - beta1^step),   vhat = v / (1 - beta2^step)
    p = (1 - lr weight_decay) p - lr mhat / (sqrt(vhat) + eps)

m and v start from 0, so after `step` steps their weights add up to 1 - beta^step, and the hats divide by that. The code
computes each correction as one number, in float64: lr / (1 - beta1^step) and 1 / sqrt(1 - beta2^step).

Elements are independent, so any slice may be updated alone (as in ZeRO), with the same bits.

bf16 parameters are a rounded copy of the float32 master weights, `master`: a step of 10^-4 of a parameter is less than
half the distance of bf16 numbers (2^-8), and would be lost, step after step. Rounding is stochastic: to one of the two
neighbours, the nearer one more often, so that the mean is the number itself, and the parameters follow the master
weights without bias. The random bits of element i are word (first + i) mod 4 of Philox with key `key` and counter
(step, (first + i) / 4): they depend on the key, the step and the place in the slice, not on how the slice is sharded,
and are those of a GPU (adamw.cuh).
*/
#pragma once

#include "fast_math.h"
#include "floatx.h"
#include "tensor_ranges.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

enum { UPDATE_BLOCK = 1 << 8 }; // elements that a thread updates, and rounds while a cache has them

#ifdef PRECISION_BF16
// x, rounded to a neighbour: the lower 16 bits become 0 after as many random bits were added. bf16 numbers are
// unchanged, and finite numbers stay finite.
static inline floatX round_randomly(float x, uint32_t random) {
    const uint32_t bits = bits_of_float(x), exponent = 0x7f800000u, largest = 0x7f7fu;
    const uint32_t lifted = ((bits & 0x7fffffffu) + (random & 0xffffu)) >> 16;
    const uint32_t size = lifted > largest ? largest : lifted, sign = bits >> 16 & 0x8000u;
    const floatX rounded = {(uint16_t)(sign | size)}, nearest = to_floatX(x);
    return (bits & exponent) == exponent ? nearest : rounded;
}

// Philox of several counters at a time, one in each lane of 64 bits, of which the lower 32 count: a product fits, and
// its upper half is what a shift leaves.
#if defined(__AVX512F__)
enum { PHILOX_LANES = 8 };
#elif defined(__AVX2__)
enum { PHILOX_LANES = 4 };
#else
enum { PHILOX_LANES = 2 };
#endif
typedef uint64_t PhiloxLanes __attribute__((vector_size(8 * PHILOX_LANES)));

static inline PhiloxLanes philox_product(PhiloxLanes a, uint64_t b) {
#if defined(__AVX512F__)
    return (PhiloxLanes)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64((int64_t)b));
#elif defined(__AVX2__)
    return (PhiloxLanes)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x((int64_t)b));
#else
    return (a & 0xffffffffu) * b;
#endif
}

// random (4 PHILOX_LANES) = the lower 16 bits of the words that philox gives for the counters (step, group), (step,
// group + 1), ...
static inline void philox_lanes(uint16_t* random, uint64_t key, uint64_t step, uint64_t group) {
    PhiloxLanes lane = {0}, c2 = lane + step, c3 = c2 >> 32;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < PHILOX_LANES; i++) lane[i] = (uint64_t)i;
    PhiloxLanes c0 = lane + group, c1 = c0 >> 32;
    UNROLL(10) for (int round = 0; round < 10; round++) {
        const PhiloxLanes p0 = philox_product(c0, 0xD2511F53u), p1 = philox_product(c2, 0xCD9E8D57u);
        c0 = (p1 >> 32) ^ c1 ^ k0;
        c2 = (p0 >> 32) ^ c3 ^ k1;
        c1 = p1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const PhiloxLanes words = (c0 & 0xffffu) | (c1 & 0xffffu) << 16 | (c2 & 0xffffu) << 32 | c3 << 48;
    memcpy(random, &words, sizeof words);
}

// p (n) = w, rounded by (key, step, place); n <= UPDATE_BLOCK; first: the place of p[0]. ahead: NULL, or four arrays
// whose next UPDATE_BLOCK elements the caller reads: prefetched, 16 at a time, while random bits are made.
static inline void round_block(floatX* RESTRICT p, const float* RESTRICT w, int n, int64_t step, uint64_t key,
                               uint64_t first, const float* const* ahead) {
    uint16_t random[UPDATE_BLOCK + 4 * PHILOX_LANES];
    const int skipped = (int)(first % 4), lines = ahead ? (int)max_i64(4, PHILOX_LANES) : 0;
    for (int i = 0; i < skipped + n; i += 4 * PHILOX_LANES) {
        philox_lanes(random + i, key, (uint64_t)step, (first + (uint64_t)i) / 4);
        for (int j = 0; j < lines; j++) __builtin_prefetch(ahead[j % 4] + i + j / 4 * 16, 0, 2);
    }
#pragma omp simd
    for (int i = 0; i < n; i++) p[i] = round_randomly(w[i], random[skipped + i]);
}
#else
static inline void round_block(floatX* p, const float* w, int n, int64_t step, uint64_t key, uint64_t first,
                               const float* const* ahead) {
    (void)p, (void)w, (void)n, (void)step, (void)key, (void)first, (void)ahead;
}
#endif

// The float32 weights of a range.
static inline float* range_weights(floatX* params, float* master, const TensorRange* range) {
    return sizeof(floatX) < sizeof(float) ? master + range->at : (float*)(void*)(params + range->from);
}

// `count` ranges of params, master, moment1 and moment2 are updated from grad. Where floatX is float, master is NULL.
static inline void adamw_update(floatX* params, float* master, const float* grad, float* moment1, float* moment2,
                                const TensorRange* ranges, int count, const OptimizerStep* s) {
    const float beta1 = s->beta1, beta2 = s->beta2, eps = s->eps, grad_scale = s->grad_scale;
    const float step_size = (float)(s->lr / (1.0 - pow(beta1, (double)s->step)));
    const float v_correction = (float)(1.0 / sqrt(1.0 - pow(beta2, (double)s->step)));
    const float new1 = 1.0f - beta1, new2 = 1.0f - beta2;
    for (const TensorRange* range = ranges; range < ranges + count; range++) {
        float* weights = range_weights(params, master, range);
        const float decay = (float)(1.0 - (double)s->lr * (range->decays ? s->weight_decay : 0));
#pragma omp parallel for schedule(static)
        for (int64_t begin = 0; begin < range->n; begin += UPDATE_BLOCK) {
            const int n = (int)min_i64(UPDATE_BLOCK, range->n - begin);
            float *RESTRICT m = moment1 + range->at + begin, *RESTRICT v = moment2 + range->at + begin;
            float* RESTRICT w = weights + begin;
            const float* RESTRICT g = grad + range->at + begin;
#pragma omp simd
            for (int i = 0; i < n; i++) {
                const float gi = grad_scale * g[i], mi = fast_fmaf(beta1, m[i], new1 * gi);
                const float vi = fast_fmaf(beta2, v[i], new2 * (gi * gi));
                m[i] = mi;
                v[i] = vi;
                w[i] = fast_fmaf(decay, w[i], -step_size * (mi / fast_fmaf(sqrtf(vi), v_correction, eps)));
            }
            const float* const ahead[] = {w + n, g + n, m + n, v + n};
            round_block(params + range->from + begin, w, n, s->step, range->key, range->first + (uint64_t)begin, ahead);
        }
    }
}

// Recomputes bf16 parameters as the update of `step` left them, from their float32 values.
static inline void adamw_round(floatX* p, const float* master, int64_t n, int64_t step, uint64_t key, uint64_t first) {
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < n; begin += UPDATE_BLOCK) {
        round_block(p + begin, master + begin, (int)min_i64(UPDATE_BLOCK, n - begin), step, key,
                    first + (uint64_t)begin, NULL);
    }
}

// ----------------------------------------------------------------------------------------------------------------
/*
SGD: stochastic gradient descent with momentum (Polyak 1964; Sutskever et al. 2013) and weight decay, as PyTorch's; in
float32, and rounded as above where floatX is bf16.

    m = momentum m + (grad_scale g + weight_decay p)      the velocity: a sum of decaying gradients
    p = p - lr m

A gradient that stays the same adds up to g / (1 - momentum), so with momentum 0.9 a step is ten times lr g. Weight
decay is part of the gradient here, and so of m (in AdamW it is decoupled). One array of state; there is no second
moment.

Elements are independent, so any slice may be updated alone (as in ZeRO), with the same bits.
*/

// `count` ranges of params, master and moment1 are updated from grad; moment2 is NULL. Where floatX is float, master is
// NULL.
static inline void sgd_update(floatX* params, float* master, const float* grad, float* moment1, float* moment2,
                              const TensorRange* ranges, int count, const OptimizerStep* s) {
    (void)moment2;
    const float lr = s->lr, momentum = s->beta1, grad_scale = s->grad_scale;
    for (const TensorRange* range = ranges; range < ranges + count; range++) {
        float* weights = range_weights(params, master, range);
        const float weight_decay = range->decays ? s->weight_decay : 0;
#pragma omp parallel for schedule(static)
        for (int64_t begin = 0; begin < range->n; begin += UPDATE_BLOCK) {
            const int n = (int)min_i64(UPDATE_BLOCK, range->n - begin);
            float *RESTRICT w = weights + begin, *RESTRICT m = moment1 + range->at + begin;
            const float* RESTRICT g = grad + range->at + begin;
#pragma omp simd
            for (int i = 0; i < n; i++) {
                const float mi = fast_fmaf(momentum, m[i], fast_fmaf(grad_scale, g[i], weight_decay * w[i]));
                m[i] = mi;
                w[i] = fast_fmaf(-lr, mi, w[i]);
            }
            round_block(params + range->from + begin, w, n, s->step, range->key, range->first + (uint64_t)begin, NULL);
        }
    }
}
