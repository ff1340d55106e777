/*
layernorm.h: layer normalisation (Ba, Kiros and Hinton 2016) of the rows of x (N, C), forward and backward; floatX,
statistics and gradients of parameters in float32.

    mean = sum_c x / C,   rstd = 1 / sqrt(sum_c (x - mean)^2 / C + eps),   xhat = (x - mean) rstd,   out = xhat w + b

Backward. dw = sum_n dout xhat and db = sum_n dout. With g = dout w, the gradient at xhat: mean and rstd depend on all
of x, and d xhat_i / d x_j = rstd ((i = j) - 1/C - xhat_i xhat_j / C), hence

    dx = rstd (g - mean_c(g) - xhat mean_c(g xhat)).

The variance takes a second pass over the row, of x - mean: E[x^2] - mean^2 would lose all digits where |mean| is large.

Threads own rows of out and dx, and columns of dw and db, to which rows are added in order. So the results do not depend
on the number of threads, nor on how a batch is cut into micro-batches.
*/
#pragma once

#include "residual.h"
#include "row_sum.h"

static inline float term_squared_deviation(RowArgs row, int c) { // k: the mean
    const float d = to_float(row.x[c]) - row.k;
    return d * d;
}
static inline float term_product(RowArgs row, int c) { return to_float(row.x[c]) * to_float(row.y[c]); }
static inline float term_product_deviation(RowArgs row, int c) {
    return to_float(row.x[c]) * to_float(row.y[c]) * (to_float(row.z[c]) - row.k);
}

// out (N, C); mean (N) and rstd (N) are kept for the backward pass.
static inline void layernorm_forward(floatX* RESTRICT out, float* RESTRICT mean, float* RESTRICT rstd,
                                     const floatX* RESTRICT x, const floatX* RESTRICT w, const floatX* RESTRICT b,
                                     int N, int C, float eps) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        RowArgs row = {x + (int64_t)n * C, NULL, NULL, 0};
        const float m = row_sum(term_x, row, C) / (float)C;
        row.k = m;
        const float r = 1.0f / sqrtf(row_sum(term_squared_deviation, row, C) / (float)C + eps);
        floatX* o = out + (int64_t)n * C;
#pragma omp simd
        for (int c = 0; c < C; c++) o[c] = to_floatX((to_float(row.x[c]) - m) * r * to_float(w[c]) + to_float(b[c]));
        mean[n] = m;
        rstd[n] = r;
    }
}

// sum = residual + (branch + bias), out = layernorm(sum), all (N, C); sum may be residual itself, bias may be NULL.
static inline void residual_layernorm_forward(floatX* sum, floatX* out, float* mean, float* rstd,
                                              const floatX* residual, const floatX* branch, const floatX* bias,
                                              const floatX* w, const floatX* b, int N, int C, float eps) {
    residual_forward(sum, residual, branch, bias, N, C);
    layernorm_forward(out, mean, rstd, sum, w, b, N, C, eps);
}

// The gradient of one row: d (C) += dx.
static inline void layernorm_backward_row(floatX* RESTRICT d, const floatX* dout, const floatX* x, const floatX* w,
                                          float mean, float rstd, int C) {
    const RowArgs row = {dout, w, x, mean};
    const float g_mean = row_sum(term_product, row, C) / (float)C;
    const float g_xhat_mean = row_sum(term_product_deviation, row, C) * rstd / (float)C;
#pragma omp simd
    for (int c = 0; c < C; c++) {
        d[c] = to_floatX(to_float(d[c]) + rstd * (to_float(dout[c]) * to_float(w[c]) - g_mean -
                                                  (to_float(x[c]) - mean) * rstd * g_xhat_mean));
    }
}

// dx (N, C), dw (C) and db (C) are all added to.
static inline void layernorm_backward(floatX* RESTRICT dx, float* RESTRICT dw, float* RESTRICT db,
                                      const floatX* RESTRICT dout, const floatX* RESTRICT x, const floatX* RESTRICT w,
                                      const float* RESTRICT mean, const float* RESTRICT rstd, int N, int C) {
    enum { ROWS = 64, COLUMNS = 128 }; // rows that a cache holds until they were read by rows and by columns
#pragma omp parallel
    for (int first = 0; first < N; first += ROWS) {
        const int last = (int)min_i64((int64_t)first + ROWS, N);
#pragma omp for schedule(static) nowait
        for (int n = first; n < last; n++) {
            const int64_t at = (int64_t)n * C;
            layernorm_backward_row(dx + at, dout + at, x + at, w, mean[n], rstd[n], C);
        }
        // No barrier: a static schedule gives a thread the same columns in every iteration.
#pragma omp for schedule(static) nowait
        for (int begin = 0; begin < C; begin += COLUMNS) {
            const int end = (int)min_i64((int64_t)begin + COLUMNS, C);
            for (int n = first; n < last; n++) {
                const floatX *d = dout + (int64_t)n * C, *row = x + (int64_t)n * C;
                const float m = mean[n], r = rstd[n];
#pragma omp simd
                for (int c = begin; c < end; c++) {
                    dw[c] += to_float(d[c]) * ((to_float(row[c]) - m) * r);
                    db[c] += to_float(d[c]);
                }
            }
        }
    }
}

// ----------------------------------------------------------------------------------------------------------------
/*
RMSNorm: root-mean-square normalisation (Zhang and Sennrich 2019) of the rows of x (N, C), as in Llama; floatX,
statistics and gradients of parameters in float32.

    rstd = 1 / sqrt(sum_c x^2 / C + eps),   xhat = x rstd,   out = xhat w

Backward. dw = sum_n dout xhat. With g = dout w, and d xhat_i / d x_j = rstd ((i = j) - xhat_i xhat_j / C):

    dx = rstd (g - xhat mean_c(g xhat)).

Threads own rows of out and dx, and columns of dw, to which rows are added in order, as above.
*/

static inline float term_square(RowArgs row, int c) { return to_float(row.x[c]) * to_float(row.x[c]); }
static inline float term_product3(RowArgs row, int c) {
    return to_float(row.x[c]) * to_float(row.y[c]) * to_float(row.z[c]);
}

// out (N, C); rstd (N) is kept for the backward pass.
static inline void rmsnorm_forward(floatX* RESTRICT out, float* RESTRICT rstd, const floatX* RESTRICT x,
                                   const floatX* RESTRICT w, int N, int C, float eps) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const RowArgs row = {x + (int64_t)n * C, NULL, NULL, 0};
        const float r = 1.0f / sqrtf(row_sum(term_square, row, C) / (float)C + eps);
        floatX* o = out + (int64_t)n * C;
#pragma omp simd
        for (int c = 0; c < C; c++) o[c] = to_floatX(to_float(row.x[c]) * r * to_float(w[c]));
        rstd[n] = r;
    }
}

// sum = residual + (branch + bias), out = rmsnorm(sum), all (N, C); sum may be residual itself, bias may be NULL.
static inline void residual_rmsnorm_forward(floatX* sum, floatX* out, float* rstd, const floatX* residual,
                                            const floatX* branch, const floatX* bias, const floatX* w, int N, int C,
                                            float eps) {
    residual_forward(sum, residual, branch, bias, N, C);
    rmsnorm_forward(out, rstd, sum, w, N, C, eps);
}

// The gradient of one row: d (C) += dx.
static inline void rmsnorm_backward_row(floatX* RESTRICT d, const floatX* dout, const floatX* x, const floatX* w,
                                        float rstd, int C) {
    const RowArgs row = {dout, w, x, 0};
    const float g_xhat_mean = row_sum(term_product3, row, C) * rstd / (float)C;
#pragma omp simd
    for (int c = 0; c < C; c++) {
        d[c] = to_floatX(to_float(d[c]) +
                         rstd * (to_float(dout[c]) * to_float(w[c]) - to_float(x[c]) * rstd * g_xhat_mean));
    }
}

// dx (N, C) and dw (C) are both added to.
static inline void rmsnorm_backward(floatX* RESTRICT dx, float* RESTRICT dw, const floatX* RESTRICT dout,
                                    const floatX* RESTRICT x, const floatX* RESTRICT w, const float* RESTRICT rstd,
                                    int N, int C) {
    enum { ROWS = 64, COLUMNS = 128 }; // rows that a cache holds until they were read by rows and by columns
#pragma omp parallel
    for (int first = 0; first < N; first += ROWS) {
        const int last = (int)min_i64((int64_t)first + ROWS, N);
#pragma omp for schedule(static) nowait
        for (int n = first; n < last; n++) {
            const int64_t at = (int64_t)n * C;
            rmsnorm_backward_row(dx + at, dout + at, x + at, w, rstd[n], C);
        }
        // No barrier: a static schedule gives a thread the same columns in every iteration.
#pragma omp for schedule(static) nowait
        for (int begin = 0; begin < C; begin += COLUMNS) {
            const int end = (int)min_i64((int64_t)begin + COLUMNS, C);
            for (int n = first; n < last; n++) {
                const floatX *d = dout + (int64_t)n * C, *row = x + (int64_t)n * C;
                const float r = rstd[n];
#pragma omp simd
                for (int c = begin; c < end; c++) dw[c] += to_float(d[c]) * (to_float(row[c]) * r);
            }
        }
    }
}
