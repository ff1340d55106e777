/*
residual.h: adds a branch, and the bias of its last linear layer, to the residual stream; floatX.

    out = residual + (branch + bias)

The bias comes here and not with the matrix product because, when that product's sum is split over tensor-parallel
ranks, the bias must be added once, after their sum. Backward is the identity: every input's gradient is dout, the
bias's the sum of its rows, which norm2's backward pass makes (layernorm.h). accumulate and accumulate_max are for any
float32 arrays.
*/
#pragma once

#include "floatx.h"

// out (N, C) may be residual or branch itself; bias (C) or NULL.
static inline void residual_forward(floatX* out, const floatX* residual, const floatX* branch, const floatX* bias,
                                    int N, int C) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const int64_t at = (int64_t)n * C;
        if (bias) {
#pragma omp simd
            for (int c = 0; c < C; c++) {
                const float add = to_float(branch[at + c]) + to_float(bias[c]);
                out[at + c] = to_floatX(to_float(residual[at + c]) + add);
            }
        } else {
#pragma omp simd
            for (int c = 0; c < C; c++) out[at + c] = to_floatX(to_float(residual[at + c]) + to_float(branch[at + c]));
        }
    }
}

// largest (n) = the larger of largest and x, -infinity where both are. A NaN may be kept or lost: sums of e^x show it.
static inline void accumulate_max(float* RESTRICT largest, const float* RESTRICT x, int64_t n) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) largest[i] = x[i] > largest[i] ? x[i] : largest[i];
}

// sum (n) += x.
static inline void accumulate(float* RESTRICT sum, const float* RESTRICT x, int64_t n) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) sum[i] += x[i];
}
