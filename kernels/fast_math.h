/*
fast_math.h: a fused multiply-add, and an exp that vectorises. A loop that calls expf() of the C library runs one
element at a time; this one is a dozen multiply-adds without a branch, so a loop over it, plain or under `omp simd`,
runs a whole vector at a time with gcc and clang, without -ffast-math.

Theory: x = n ln 2 + r with a whole n and |r| <= ln 2 / 2; q = e^r - 1 from a polynomial (minimax of degree 6, relative
error 3e-9); e^x = 2^n (1 + q) from the bits of 2^n (Cody and Waite 1980, chapter 6). Largest error over all 2^32 floats
(dev/test/unit/test_fast_math.c): 1.03 units in the last place.
*/
#pragma once

#include "../util/base.h"

// a b + c, rounded once where the processor can. (Of a sum of two products gcc may fuse either, by an element's place.)
static inline float fast_fmaf(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// 2^n for -126 <= n <= 127; any other n gives some float, never a trap.
static inline float power_of_two(int32_t n) { return float_of_bits((uint32_t)(n + 127) << 23); }

// e^x. Beyond the float range: 0 and infinity; results below 2^-126 are correctly rounded; NaN stays NaN.
static inline float fast_exp(float x) {
    x = x < -104.0f ? -104.0f : x; // e^-104 rounds to 0 and e^89 to infinity; a comparison with NaN is false
    x = x > 89.0f ? 89.0f : x;
    // Adding 1.5 * 2^23 leaves no bit for a fraction: the sum's low bits are x / ln 2, rounded to nearest.
    const float shifter = 0x1.8p23f, shifted = x * 0x1.715476p0f + shifter, k = shifted - shifter;
    const int32_t n = (int32_t)(bits_of_float(shifted) - bits_of_float(shifter));
    // ln 2 in two parts, the first of 9 bits, so that k times it is exact with or without fused multiply-add.
    const float r = (x - k * 0x1.63p-1f) - k * -0x1.bd0106p-13f;
    float p = 0x1.6a23cep-10f;
    p = p * r + 0x1.123a2p-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    const float q = p * r * r + r;
    const int32_t half = n >> 1; // 2^n in two factors, as it leaves the float range before e^x does
    return (1.0f + q) * power_of_two(half) * power_of_two(n - half);
}
