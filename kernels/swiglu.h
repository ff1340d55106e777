/*
swiglu.h: the gated unit of Llama's feed-forward layer (Shazeer 2020, "GLU variants improve transformer"); floatX.

    out = silu(g) u,     silu(g) = g s,     s = 1 / (1 + e^-g)

g (gate) and u (up) are the halves of a row of gate_up (N, 2F), so that one matrix product makes both. As s' = s (1 -
s):

    du = dout g s,     dg = dout u (s + g s (1 - s)),     1 - s = e^-g s, which does not cancel where s is near 1.
*/
#pragma once

#include "fast_math.h"
#include "floatx.h"

// out (N, F) from gate_up (N, 2F).
static inline void swiglu_forward(floatX* RESTRICT out, const floatX* RESTRICT gate_up, int N, int F) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const floatX *gate = gate_up + (int64_t)n * 2 * F, *up = gate + F;
        floatX* o = out + (int64_t)n * F;
#pragma omp simd
        for (int f = 0; f < F; f++) {
            const float g = to_float(gate[f]);
            o[f] = to_floatX(g / (1.0f + fast_exp(-g)) * to_float(up[f]));
        }
    }
}

// dgate_up (N, 2F), overwritten, from dout (N, F).
static inline void swiglu_backward(floatX* RESTRICT dgate_up, const floatX* RESTRICT dout,
                                   const floatX* RESTRICT gate_up, int N, int F) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const floatX *gate = gate_up + (int64_t)n * 2 * F, *up = gate + F, *d = dout + (int64_t)n * F;
        floatX *dgate = dgate_up + (int64_t)n * 2 * F, *dup = dgate + F;
#pragma omp simd
        for (int f = 0; f < F; f++) {
            const float g = to_float(gate[f]), df = to_float(d[f]);
            float e = fast_exp(-g);
            e = e > 0x1p126f ? 0x1p126f : e; // infinity times s = 0 would be a NaN
            const float s = 1.0f / (1.0f + e);
            dup[f] = to_floatX(df * (g * s));
            dgate[f] = to_floatX(df * to_float(up[f]) * (s + g * (s * (e * s))));
        }
    }
}
