/*
fast_math.h: exp and tanh that vectorise. A loop that calls expf() or tanhf() of the C library runs one element at a
time; these functions are a dozen multiply-adds without a branch, so a loop over them, plain or under `omp simd`, runs a
whole vector at a time with gcc and clang, without -ffast-math.

Both write x = n ln 2 + r with a whole n and |r| <= ln 2 / 2, take q = e^r - 1 from a polynomial (minimax of degree 6,
relative error 3e-9), and put e^x = 2^n (1 + q) together from the bits of 2^n (Cody and Waite 1980, chapters 6 and 7).

Largest error over all 2^32 floats (dev/test/unit/test_fast_math.c): fast_exp 1.03, fast_tanh 2.62 units in the last
place.
*/
#ifndef FAST_MATH_H
#define FAST_MATH_H

#include "../util/base.h"

// 2^n for -126 <= n <= 127; any other n gives some float, never a trap.
static inline float power_of_two(int32_t n) { return float_of_bits((uint32_t)(n + 127) << 23); }

// For |x| <= 150 ln 2: *n and the returned q with e^x = 2^n (1 + q), |q| < 0.42. A NaN gives a NaN.
static inline float exp_split(float x, int32_t* n) {
    // Adding 1.5 * 2^23 leaves no bit for a fraction: the sum's low bits are x / ln 2, rounded to nearest.
    const float shifter = 0x1.8p23f, shifted = x * 0x1.715476p0f + shifter, k = shifted - shifter;
    *n = (int32_t)(bits_of_float(shifted) - bits_of_float(shifter));
    // ln 2 in two parts, the first of 9 bits, so that k times it is exact with or without fused multiply-add.
    const float r = (x - k * 0x1.63p-1f) - k * -0x1.bd0106p-13f;
    float p = 0x1.6a23cep-10f;
    p = p * r + 0x1.123a2p-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    return p * r * r + r;
}

// e^x. Beyond the float range: 0 and infinity; results below 2^-126 are correctly rounded; NaN stays NaN.
static inline float fast_exp(float x) {
    x = x < -104.0f ? -104.0f : x; // e^-104 rounds to 0 and e^89 to infinity; a comparison with NaN is false
    x = x > 89.0f ? 89.0f : x;
    int32_t n;
    const float q = exp_split(x, &n);
    const int32_t half = n >> 1; // 2^n in two factors, as it leaves the float range before e^x does
    return (1.0f + q) * power_of_two(half) * power_of_two(n - half);
}

// tanh x = (e^2x - 1) / (e^2x + 1), through e^2|x| - 1 = 2^n q + (2^n - 1), which keeps small x exact.
static inline float fast_tanh(float x) {
    float a = fabsf(x);
    a = a > 10.0f ? 10.0f : a; // tanh 10 rounds to 1
    int32_t n;
    const float q = exp_split(a + a, &n), scale = power_of_two(n), m = scale * q + (scale - 1.0f);
    return copysignf(m / (m + 2.0f), x);
}

#endif
