/*
swiglu.h: the gated unit of Llama's feed-forward layer (Shazeer 2020, "GLU variants improve transformer"); float32.

    out = silu(g) u,     silu(g) = g s,     s = 1 / (1 + e^-g)

g (gate) and u (up) are the halves of a row of gate_up (N, 2F), so that one matrix product makes both. As s' = s (1 -
s):

    du = dout g s,     dg = dout u (s + g s (1 - s)),     1 - s = e^-g s, which does not cancel where s is near 1.
*/
#ifndef SWIGLU_H
#define SWIGLU_H

#include "../util/base.h"
#include "fast_math.h"

// out (N, F) from gate_up (N, 2F).
static inline void swiglu_forward(float* RESTRICT out, const float* RESTRICT gate_up, int N, int F) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const float *gate = gate_up + (int64_t)n * 2 * F, *up = gate + F;
        float* o = out + (int64_t)n * F;
#pragma omp simd
        for (int f = 0; f < F; f++) o[f] = gate[f] / (1.0f + fast_exp(-gate[f])) * up[f];
    }
}

// dgate_up (N, 2F), overwritten, from dout (N, F).
static inline void swiglu_backward(float* RESTRICT dgate_up, const float* RESTRICT dout, const float* RESTRICT gate_up,
                                   int N, int F) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const float *gate = gate_up + (int64_t)n * 2 * F, *up = gate + F, *d = dout + (int64_t)n * F;
        float *dgate = dgate_up + (int64_t)n * 2 * F, *dup = dgate + F;
#pragma omp simd
        for (int f = 0; f < F; f++) {
            float e = fast_exp(-gate[f]);
            e = e > 0x1p126f ? 0x1p126f : e; // infinity times s = 0 would be a NaN
            const float s = 1.0f / (1.0f + e);
            dup[f] = d[f] * (gate[f] * s);
            dgate[f] = d[f] * up[f] * (s + gate[f] * (s * (e * s)));
        }
    }
}

#endif
