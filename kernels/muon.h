/*
muon.h: the steps of Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) beside its matrix products, which
parallel/muon.h makes with matmul.h; float32, and floatX inside the products.

    muon_momentum      M = beta M + (1 - beta) g,   U = (1 - beta) g + beta M      Nesterov's; g becomes U
    muon_normalize     X = U / |U|, a whole matrix of the pieces that tensor ranks hold; 0 where U is 0
    muon_polynomial    a I + b A + c A^2, of A = X X^T
    muon_update        w = (1 - lr weight_decay) w - lr 0.2 sqrt(max(rows, cols)) O, of a range of a piece

Theory: an update U = P S Q^T (SVD) is replaced by O, close to P Q^T, so that all directions are learned as fast. The
iteration X <- (a I + b A + c A^2) X keeps P and Q and maps each singular value by a s + b s^3 + c s^5; with a = 3.4445,
b = -4.7750, c = 2.0315, five times, it takes s in [0.002, 1] to [0.68, 1.21]: it need not converge to 1. |U|,
Frobenius' norm, is at least the largest. O has min(rows, cols) singular values of about 1, so elements of about
1 / sqrt(max(rows, cols)); the factor 0.2 sqrt(max(...)) makes them 0.2, as large as AdamW's usually are (Liu et al.
2025, arXiv 2502.16982, section 2.2), so that its learning rate and weight decay serve both.
*/
#pragma once

#include "adamw.h"

// The ranges of grad and moment1.
static inline void muon_momentum(float* grad, float* moment1, const TensorRange* ranges, int count, float beta,
                                 float grad_scale) {
    const float fresh = 1.0f - beta;
    for (const TensorRange* range = ranges; range < ranges + count; range++) {
        float *RESTRICT m = moment1 + range->at, *RESTRICT g = grad + range->at;
#pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < range->n; i++) {
            const float gi = grad_scale * g[i], mi = beta * m[i] + fresh * gi;
            m[i] = mi;
            g[i] = fresh * gi + beta * mi;
        }
    }
}

// out (the whole matrix) from gathered, the pieces of all tensor ranks one after the other. *squares: the sum of the
// squares of the matrix.
static inline void muon_normalize(floatX* out, const float* gathered, const double* squares, CutMatrix matrix) {
    const int64_t rows = piece_rows(&matrix), cols = piece_cols(&matrix);
    const float scale = *squares > 0 ? (float)(1.0 / sqrt(*squares)) : 0;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < matrix.pieces * rows; r++) {
        const int piece = (int)(r / rows);
        const float* in = gathered + (piece * matrix.copies * rows + r % rows) * cols;
        int64_t stride;
        floatX* to = out + place_in_matrix(&matrix, piece, r % rows, 0, &stride);
        for (int64_t j = 0; j < cols; j++) to[j * stride] = to_floatX(scale * in[j]);
    }
}

// square (n, n), A^2, becomes the polynomial; gram (n, n) is A.
static inline void muon_polynomial(floatX* square, const floatX* gram, int n) {
    const float a = 3.4445f, b = -4.7750f, c = 2.0315f;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < n; i++) {
        floatX* out = square + (int64_t)i * n;
        const floatX* in = gram + (int64_t)i * n;
        for (int j = 0; j < n; j++)
            out[j] = to_floatX((i == j ? a : 0.0f) + (b * to_float(in[j]) + c * to_float(out[j])));
    }
}

// Updates a range whose first element is number `begin` of a piece; ortho: the whole matrix. Where floatX is float,
// master is NULL.
static inline void muon_update(floatX* params, float* master, const floatX* ortho, CutMatrix matrix, int piece,
                               int64_t begin, const TensorRange* range, const OptimizerStep* s) {
    const int64_t cols = piece_cols(&matrix);
    const float step_size = s->lr * (0.2f * sqrtf((float)max_i64(matrix.rows, matrix.cols)));
    const float decay = (float)(1.0 - (double)s->lr * s->weight_decay);
    float* weights = range_weights(params, master, range);
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < range->n; first += UPDATE_BLOCK) {
        const int64_t end = min_i64(first + UPDATE_BLOCK, range->n);
        for (int64_t i = first; i < end;) {
            const int64_t row = (begin + i) / cols, col = (begin + i) % cols, run = min_i64(cols - col, end - i);
            int64_t stride;
            const floatX* from = ortho + place_in_matrix(&matrix, piece, row, col, &stride);
            float* w = weights + i;
            for (int64_t j = 0; j < run; j++) w[j] = decay * w[j] - step_size * to_float(from[j * stride]);
            i += run;
        }
        round_block(params + range->from + first, weights + first, (int)(end - first), s->step, range->key,
                    range->first + (uint64_t)first, NULL);
    }
}
