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

The local parameters (own) then become the global ones, or a mix of both if the sum was delayed and they have changed
since.

Eager updates (Kale et al. 2025, arXiv 2502.12996) do not wait for the sum: a site combines the others' last
pseudo-gradients with its own new one: D = factor ((sum - old) + fresh), where `old` is its own part of the last sum.

Quantised differences. A pseudo-gradient of 8 or 4 bits a number is four or eight times shorter: q = x / scale, rounded,
with a scale for each block of 64. The rounding error is kept in `residue` and added to the next x (error feedback,
Seide et al. 2014; Karimireddy et al. 2019, arXiv 1901.09847). So after any number of outer steps, the sum of the sent
values plus the residue is the exact sum, and errors do not add up.

All replicas have to get the same bits from the same numbers, on any kind of machine. A compiler may or may not fuse a
product and a sum into one multiply-add, which rounds once instead of twice; so every product below is rounded
separately (rounded_product), except in delay_squares.
*/
#ifndef KERNELS_ASYNC_DP_H
#define KERNELS_ASYNC_DP_H

#include "../util/base.h"

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

// ----------------------------------------------------------------------------------------------------------------
// Sums and differences

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

// x *= factor (n)
static inline void scale_by(float* x, float factor, int64_t n) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

// own = share own + (1 - share) base (n). own: the local parameters, base: the global ones. share = 0 copies, whatever
// own was.
static inline void mix(float* RESTRICT own, const float* RESTRICT base, float share, int64_t n) {
    const float rest = 1.0f - share;
    const uint32_t zero = hidden_zero();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const float mixed = rounded_product(share, own[i], zero) + rounded_product(rest, base[i], zero);
        own[i] = share == 0 ? base[i] : mixed;
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Delay compensation

// g g (to - from), in float64: usually only the last product is rounded.
static inline double delay_term(float g, float to, float from) { return (double)g * g * ((double)to - (double)from); }

// Sum of the squares of n such terms; lane j takes elements j, j + 16, ...
static inline double delay_squares_block(const float* g, const float* to, const float* from, int n) {
    enum { LANES = 16 };
    double lane[LANES] = {0}, sum = 0;
    int begin = 0;
    for (; begin + LANES <= n; begin += LANES) {
        for (int j = 0; j < LANES; j++) {
            const double d = delay_term(g[begin + j], to[begin + j], from[begin + j]);
            lane[j] += d * d;
        }
    }
    for (int j = 0; begin + j < n; j++) {
        const double d = delay_term(g[begin + j], to[begin + j], from[begin + j]);
        lane[j] += d * d;
    }
    for (int j = 0; j < LANES; j++) sum += lane[j];
    return sum;
}

// *sum += sum of (g g (to - from))^2 (n each), in float64; by blocks of fixed size, which are added in order (compare
// global_norm.h).
static inline void delay_squares(double* sum, const float* g, const float* to, const float* from, int64_t n) {
    enum { BLOCK = 1 << 14, ROUND = 1024 };
    double total = 0;
    for (int64_t start = 0; start < n; start += (int64_t)BLOCK * ROUND) {
        double part[ROUND];
        const int blocks = (int)min_i64(ROUND, (n - start + BLOCK - 1) / BLOCK);
#pragma omp parallel for schedule(static)
        for (int i = 0; i < blocks; i++) {
            const int64_t at = start + (int64_t)i * BLOCK;
            part[i] = delay_squares_block(g + at, to + at, from + at, (int)min_i64(BLOCK, n - at));
        }
        for (int i = 0; i < blocks; i++) total += part[i];
    }
    *sum += total;
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

// ----------------------------------------------------------------------------------------------------------------
// Outer steps

// One element of Nesterov's step, with D = factor sum.
static inline void outer_element(float* base, float* velocity, float sum, float factor, float lr, float momentum,
                                 uint32_t zero) {
    const float D = rounded_product(factor, sum, zero), v = rounded_product(momentum, *velocity, zero) + D;
    *velocity = v;
    *base -= rounded_product(lr, D + rounded_product(momentum, v, zero), zero);
}

// base, velocity (n) from sum (n), the sum of all sites' pseudo-gradients.
static inline void outer_update(float* RESTRICT base, float* RESTRICT velocity, const float* RESTRICT sum, float factor,
                                float lr, float momentum, int64_t n) {
    const uint32_t zero = hidden_zero();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) outer_element(base + i, velocity + i, sum[i], factor, lr, momentum, zero);
}

// The same with this site's new pseudo-gradient `fresh` in place of `old`. For a single site (sum is old) the sum is
// exactly fresh.
static inline void eager_update(float* RESTRICT base, float* RESTRICT velocity, const float* sum, const float* old,
                                const float* fresh, float factor, float lr, float momentum, int64_t n) {
    const uint32_t zero = hidden_zero();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++)
        outer_element(base + i, velocity + i, (sum[i] - old[i]) + fresh[i], factor, lr, momentum, zero);
}

// ----------------------------------------------------------------------------------------------------------------
// Quantised differences: blocks of 64 numbers, each a scale (float32) and 64 whole numbers of 8 or 4 bits, two's
// complement; of two in a byte the first is in the low bits. q goes from -127 to 127, or from -7 to 7. A partial last
// block takes the room of a full one, with zeros at its end.

enum { QUANT_BLOCK = 64 };

// Bytes of n numbers in packed form: a multiple of 4, as every block's are.
static inline int64_t quant_bytes(int64_t n, int bits) {
    return (n + QUANT_BLOCK - 1) / QUANT_BLOCK * ((int64_t)sizeof(float) + QUANT_BLOCK * bits / 8);
}

static inline void quantize_block(uint8_t* RESTRICT packed, float* RESTRICT residue, float* RESTRICT value, int n,
                                  int bits) {
    const int32_t largest = (1 << (bits - 1)) - 1;
    float x[QUANT_BLOCK] = {0}, scale;
    int32_t q[QUANT_BLOCK];
    const uint32_t zero = hidden_zero();
    uint32_t top = 0; // the bits of the largest |x|: these sort like the numbers, then infinity, then NaNs
    for (int i = 0; i < n; i++) x[i] = value[i] + residue[i];
    for (int i = 0; i < QUANT_BLOCK; i++) {
        const uint32_t size = bits_of_float(x[i]) & 0x7FFFFFFF;
        top = size > top ? size : top;
    }
    scale = top < 0x7F800000 ? float_of_bits(top) / (float)largest : float_of_bits(0x7FC00000);
    const bool usable = scale > 0; // not 0, and no NaN
    const float divisor = usable ? scale : 1;
    for (int i = 0; i < QUANT_BLOCK; i++) {
        // next to 1.5 2^23, float32 numbers are 1 apart, so that the addition rounds to the nearest whole number, ties
        // to even
        const int32_t nearest = (int32_t)(bits_of_float(x[i] / divisor + 0x1.8p23f) - 0x4B400000u);
        const int32_t raised = nearest < -largest ? -largest : nearest;
        q[i] = raised > largest ? largest : raised;
        if (!usable) q[i] = 0;
    }
    memcpy(packed, &scale, sizeof scale);
    packed += sizeof scale;
    if (bits == 8) {
        for (int i = 0; i < QUANT_BLOCK; i++) packed[i] = (uint8_t)q[i];
    } else {
        for (int i = 0; i < QUANT_BLOCK / 2; i++) packed[i] = (uint8_t)((q[2 * i] & 15) | (q[2 * i + 1] & 15) << 4);
    }
    for (int i = 0; i < n; i++) {
        value[i] = rounded_product((float)q[i], scale, zero);
        residue[i] = x[i] - value[i]; // exact: the two are 0 or within a factor of 2
    }
}

// packed (quant_bytes(n, bits)) = x = value + residue (n each), quantised; value becomes the dequantised x, and residue
// the exact rest. A block with a number that is not finite becomes NaN.
static inline void quantize(uint8_t* RESTRICT packed, float* RESTRICT residue, float* RESTRICT value, int64_t n,
                            int bits) {
    const int64_t blocks = (n + QUANT_BLOCK - 1) / QUANT_BLOCK, room = quant_bytes(1, bits);
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t at = b * QUANT_BLOCK;
        quantize_block(packed + b * room, residue + at, value + at, (int)min_i64(QUANT_BLOCK, n - at), bits);
    }
}

// out (n) += the dequantised numbers
static inline void dequantize_add(float* RESTRICT out, const uint8_t* RESTRICT packed, int64_t n, int bits) {
    const uint32_t zero = hidden_zero();
    const int64_t blocks = (n + QUANT_BLOCK - 1) / QUANT_BLOCK, room = quant_bytes(1, bits);
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        const uint8_t* block = packed + b * room;
        float* to = out + b * QUANT_BLOCK;
        const int count = (int)min_i64(QUANT_BLOCK, n - b * QUANT_BLOCK);
        float scale;
        memcpy(&scale, block, sizeof scale);
        block += sizeof scale;
        for (int i = 0; i < count; i++) {
            const int32_t q = bits == 8 ? (int8_t)block[i] : ((block[i / 2] >> (i % 2 * 4) & 15) ^ 8) - 8;
            to[i] += rounded_product((float)q, scale, zero);
        }
    }
}

#endif
