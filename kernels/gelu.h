/*
gelu.h: the Gaussian error linear unit (Hendrycks and Gimpel 2016) in its tanh form, as in GPT-2; floatX, elementwise.

    out = x (1 + tanh u) / 2,     u = sqrt(2/pi) (x + 0.044715 x^3)

(1 + tanh u) / 2 is s = 1 / (1 + e) with e = e^(-2u). So one exponential is enough, without cancellation where tanh u is
near -1. With du/dx = sqrt(2/pi) (1 + 3 * 0.044715 x^2) and s' = s (1 - s) 2 du/dx:

    out = x s,     d out / dx = s + x s (1 - s) 2 du/dx,     1 - s = e s, which does not cancel where s is near 1.
*/
#pragma once

#include "fast_math.h"
#include "floatx.h"

static const float GELU_SCALE = 1.5957691216f; // 2 sqrt(2/pi)
static const float GELU_CUBIC = 0.044715f;

// e^(-2u): from 0 to infinity.
static inline float gelu_exp(float x) { return fast_exp(-GELU_SCALE * x * (1.0f + GELU_CUBIC * (x * x))); }

enum { GELU_BLOCK = 1 << 12 }; // elements that a thread takes at a time

// out (N, F) = gelu(x).
static inline void gelu_forward(floatX* RESTRICT out, const floatX* RESTRICT x, int N, int F) {
    const int64_t n = (int64_t)N * F;
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < n; begin += GELU_BLOCK) {
        const int64_t end = min_i64(begin + GELU_BLOCK, n);
#pragma omp simd
        for (int64_t i = begin; i < end; i++) {
            const float v = to_float(x[i]);
            out[i] = to_floatX(v / (1.0f + gelu_exp(v)));
        }
    }
}

// dx (N, F) = dout gelu'(x).
static inline void gelu_backward(floatX* RESTRICT dx, const floatX* RESTRICT dout, const floatX* RESTRICT x, int N,
                                 int F) {
    const int64_t n = (int64_t)N * F;
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < n; begin += GELU_BLOCK) {
        const int64_t end = min_i64(begin + GELU_BLOCK, n);
#pragma omp simd
        for (int64_t i = begin; i < end; i++) {
            const float v = to_float(x[i]);
            float e = gelu_exp(v);
            e = e > 0x1p126f ? 0x1p126f : e; // infinity times s = 0 would be a NaN
            const float s = 1.0f / (1.0f + e), slope = GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * (v * v));
            dx[i] = to_floatX(to_float(dout[i]) * (s + v * slope * (s * (e * s))));
        }
    }
}
