/*
layernorm.h: normalisation of the rows of x (N, C), forward and backward; floatX, statistics and gradients of parameters
in float32. LayerNorm (Ba, Kiros and Hinton 2016):

    mean = sum_c x / C,   rstd = 1 / sqrt(sum_c (x - mean)^2 / C + eps),   xhat = (x - mean) rstd,   out = xhat w + b

RMSNorm (Zhang and Sennrich 2019), as in Llama, is not centered: its mean is 0, and it has no b.

Backward. dw = sum_n dout xhat and db = sum_n dout. With g = dout w, the gradient at xhat: mean and rstd depend on all
of x, and d xhat_i / d x_j = rstd ((i = j) - 1/C - xhat_i xhat_j / C), hence

    dx = rstd (g - mean_c(g) - xhat mean_c(g xhat)),

in RMSNorm without the terms 1/C and mean_c(g). The variance takes a second pass, of x - mean: E[x^2] - mean^2 would
lose all digits where |mean| is large.

Threads own rows of out and dx, and columns of all sums, to which rows are added in order. So the results do not depend
on the number of threads, nor on how a batch is cut into micro-batches. norm_row is compiled for each `centered`.
*/
#pragma once

#include "matmul.h"
#include "residual.h"
#include "row_sum.h"

// The norm of rows x (N, C): its outputs and its parameters. RMSNorm uses no mean, and has no b: NULL.
typedef struct {
    floatX *x, *out;     // (N, C)
    float *mean, *rstd;  // (N): for the backward pass
    const floatX *w, *b; // (C)
} Norm;

// What a backward pass adds to. w, b: the gradients of w and b. before, after: the sums of the rows of dx as it comes
// in, and as it goes out; they are gradients of two biases (gpt.h). Both, or both NULL.
typedef struct {
    float *w, *b, *before, *after; // (C)
} NormGradients;

static inline float term_squared_deviation(RowArgs row, int c) { // k: the mean
    const float d = to_float(row.x[c]) - row.k;
    return d * d;
}
static inline float term_product(RowArgs row, int c) { return to_float(row.x[c]) * to_float(row.y[c]); }
static inline float term_product_deviation(RowArgs row, int c) {
    return to_float(row.x[c]) * to_float(row.y[c]) * (to_float(row.z[c]) - row.k);
}

__attribute__((always_inline)) static inline void norm_row(const Norm* norm, bool centered, int n, int C, float eps) {
    RowArgs row = {norm->x + (int64_t)n * C, NULL, NULL, 0};
    const floatX *RESTRICT w = norm->w, *RESTRICT b = norm->b;
    const float m = centered ? row_sum(term_x, row, C) / (float)C : 0;
    row.k = m;
    const float r = 1.0f / sqrtf(row_sum(term_squared_deviation, row, C) / (float)C + eps);
    floatX* RESTRICT o = norm->out + (int64_t)n * C;
#pragma omp simd
    for (int c = 0; c < C; c++) {
        const float y = (to_float(row.x[c]) - m) * r * to_float(w[c]);
        o[c] = to_floatX(centered ? y + to_float(b[c]) : y);
    }
    if (centered) norm->mean[n] = m;
    norm->rstd[n] = r;
}

// Makes out, mean and rstd.
static inline void norm_forward(const Norm* norm, bool centered, int N, int C, float eps) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        if (centered)
            norm_row(norm, true, n, C, eps);
        else
            norm_row(norm, false, n, C, eps);
    }
}

static inline void layernorm_forward(const Norm* n, int N, int C, float eps) { norm_forward(n, true, N, C, eps); }
static inline void rmsnorm_forward(const Norm* n, int N, int C, float eps) { norm_forward(n, false, N, C, eps); }

// x = residual + (branch + bias), and the norm of x; x may be residual itself, bias may be NULL.
static inline void residual_layernorm_forward(const Norm* n, const floatX* residual, const floatX* branch,
                                              const floatX* bias, int N, int C, float eps) {
    residual_forward(n->x, residual, branch, bias, N, C);
    norm_forward(n, true, N, C, eps);
}
static inline void residual_rmsnorm_forward(const Norm* n, const floatX* residual, const floatX* branch,
                                            const floatX* bias, int N, int C, float eps) {
    residual_forward(n->x, residual, branch, bias, N, C);
    norm_forward(n, false, N, C, eps);
}

// ---- Backward ---------------------------------------------------------------------------------------------------

// The gradient of row n: d (C) += dx. dout: of the row.
__attribute__((always_inline)) static inline void norm_row_backward(const Norm* norm, bool centered, floatX* RESTRICT d,
                                                                    const floatX* dout, int n, int C) {
    const floatX *x = norm->x + (int64_t)n * C, *w = norm->w;
    const float mean = centered ? norm->mean[n] : 0, rstd = norm->rstd[n];
    const RowArgs row = {dout, w, x, mean};
    const float g_mean = centered ? row_sum(term_product, row, C) / (float)C : 0;
    const float g_xhat_mean = row_sum(term_product_deviation, row, C) * rstd / (float)C;
#pragma omp simd
    for (int c = 0; c < C; c++) {
        d[c] = to_floatX(to_float(d[c]) + rstd * (to_float(dout[c]) * to_float(w[c]) - g_mean -
                                                  (to_float(x[c]) - mean) * rstd * g_xhat_mean));
    }
}

// Columns [begin, end) of row n are added to dw and db. dout: of the row.
__attribute__((always_inline)) static inline void norm_columns_backward(const Norm* norm, bool centered,
                                                                        float* RESTRICT dw, float* RESTRICT db,
                                                                        const floatX* RESTRICT dout, int n, int C,
                                                                        int begin, int end) {
    const floatX* RESTRICT x = norm->x + (int64_t)n * C;
    const float m = centered ? norm->mean[n] : 0, r = norm->rstd[n];
#pragma omp simd
    for (int c = begin; c < end; c++) {
        dw[c] += to_float(dout[c]) * ((to_float(x[c]) - m) * r);
        if (centered) db[c] += to_float(dout[c]);
    }
}

// dx (N, C) and d are added to; without centered there is no d.b.
static inline void norm_backward(const Norm* norm, bool centered, floatX* dx, NormGradients d, const floatX* dout,
                                 int N, int C) {
    enum { ROWS = 64, COLUMNS = 128 }; // rows that a cache holds until they were read by rows and by columns
    if (d.before) linear_backward_bias(d.before, dx, N, C);
#pragma omp parallel
    for (int first = 0; first < N; first += ROWS) {
        const int last = (int)min_i64((int64_t)first + ROWS, N);
#pragma omp for schedule(static) nowait
        for (int n = first; n < last; n++) {
            const int64_t at = (int64_t)n * C;
            if (centered)
                norm_row_backward(norm, true, dx + at, dout + at, n, C);
            else
                norm_row_backward(norm, false, dx + at, dout + at, n, C);
        }
        // No barrier: a static schedule gives a thread the same columns in every iteration.
#pragma omp for schedule(static) nowait
        for (int begin = 0; begin < C; begin += COLUMNS) {
            const int end = (int)min_i64((int64_t)begin + COLUMNS, C);
            for (int n = first; n < last; n++) {
                if (centered)
                    norm_columns_backward(norm, true, d.w, d.b, dout + (int64_t)n * C, n, C, begin, end);
                else
                    norm_columns_backward(norm, false, d.w, d.b, dout + (int64_t)n * C, n, C, begin, end);
            }
        }
    }
    if (d.after) linear_backward_bias(d.after, dx, N, C);
}

static inline void layernorm_backward(const Norm* n, floatX* dx, NormGradients d, const floatX* dout, int N, int C) {
    norm_backward(n, true, dx, d, dout, N, C);
}
static inline void rmsnorm_backward(const Norm* n, floatX* dx, NormGradients d, const floatX* dout, int N, int C) {
    norm_backward(n, false, dx, d, dout, N, C);
}
