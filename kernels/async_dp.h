/*
async_dp.h: the arithmetic of asynchronous data parallelism on weights and gradients; float32, element by element. A
replica (or a site of several) has local parameters, and sends its progress to the others now and then.

Delay compensation (DC-ASGD, Zheng et al. 2017, arXiv 1609.08326). A delayed gradient, in flight for a step, belongs to
the weights `from`, and is used at the weights `to`, a distance D = to - from away. A Taylor series gives its value
there:

    g(from + D) ~ g(from) + H D,      and the Hessian H ~ lambda diag(g g^T):      g += lambda g g D

The square of a gradient stands for the curvature, as in Adam and in Fisher's information, and costs nothing.
delay_squares serves to choose lambda such that the correction is a fixed part of the gradient, lambda = lambda0 |g| /
|g g D|.

Outer steps (DiLoCo, Douillard et al. 2023, arXiv 2311.08105). M sites train on their own for H steps. A site's
pseudo-gradient is global minus local parameters; their mean, D = factor sum with factor = 1 / M, makes one step of
Nesterov's momentum on the global parameters (base):

    v = momentum v + D,      base -= lr (D + momentum v)

The local parameters then become the global ones.

All replicas have to get the same bits from the same numbers, on any kind of machine. A compiler may or may not fuse a
product and a sum into one multiply-add, which rounds once instead of twice; so every product below is rounded
separately (rounded_product), except in delay_squares.
*/
#pragma once

#include "global_norm.h"

// A zero that compilers cannot know to be zero.
static inline uint32_t hidden_zero(void) {
    static volatile uint32_t zero = 0;
    return zero;
}

// a b, rounded to float32, never part of a fused multiply-add, as its bits are used in between. zero: hidden_zero(), to
// be read before a loop, so that the loop becomes vector code.
static inline float rounded_product(float a, float b, uint32_t zero) {
    return float_of_bits(bits_of_float(a * b) | zero);
}

// ---- Sums and differences ---------------------------------------------------------------------------------------

// out = a - b (n). out may be a or b.
static inline void difference(float* out, const float* a, const float* b, int64_t n) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) out[i] = a[i] - b[i];
}

// out += factor x (n)
static inline void add_scaled(float* RESTRICT out, const float* RESTRICT x, float factor, int64_t n) {
    const uint32_t zero = hidden_zero();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) out[i] += rounded_product(factor, x[i], zero);
}

// ---- Delay compensation -----------------------------------------------------------------------------------------

// (g g (to - from))^2, in float64: usually only the last product is rounded.
static inline double square_of_correction(SumArrays a, int64_t i) {
    const double d = (double)a.x[i] * a.x[i] * ((double)a.y[i] - (double)a.z[i]);
    return d * d;
}
static inline double block_corrections(SumArrays a, int64_t at, int n) {
    return block_sum(square_of_correction, a, at, n);
}

// *sum += sum of (g g (to - from))^2 (n each), in float64.
static inline void delay_squares(double* sum, const float* g, const float* to, const float* from, int64_t n) {
    const SumArrays a = {g, to, from};
    *sum += sum_of_blocks(block_corrections, a, n);
}

// g += lambda g g (to - from) (n each)
static inline void delay_compensate(float* RESTRICT g, const float* RESTRICT to, const float* RESTRICT from,
                                    float lambda, int64_t n) {
    const uint32_t zero = hidden_zero();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++)
        g[i] +=
            rounded_product(rounded_product(lambda, g[i], zero), rounded_product(g[i], to[i] - from[i], zero), zero);
}

// ---- Outer steps ------------------------------------------------------------------------------------------------

// Nesterov's step of base and velocity (n) with D = factor sum (n); sum: of all sites' pseudo-gradients.
static inline void outer_update(float* RESTRICT base, float* RESTRICT velocity, const float* RESTRICT sum, float factor,
                                float lr, float momentum, int64_t n) {
    const uint32_t zero = hidden_zero();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const float D = rounded_product(factor, sum[i], zero), v = rounded_product(momentum, velocity[i], zero) + D;
        velocity[i] = v;
        base[i] -= rounded_product(lr, D + rounded_product(momentum, v, zero), zero);
    }
}
