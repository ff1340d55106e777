/*
muon.cuh: muon.h on a GPU, elementwise; a thread an element.
*/
#pragma once

#include "adamw.cuh"

__global__ static void __launch_bounds__(256)
    muon_momentum_kernel(float* __restrict__ grad, float* __restrict__ moment1, const RangeList list, float beta,
                         float grad_scale) {
    const int own = range_of_block(list);
    const TensorRange& range = list.range[own];
    const int64_t i = (int64_t)(blockIdx.x - list.block[own]) * blockDim.x + threadIdx.x, at = range.at + i;
    if (i >= range.n) return;
    const float fresh = 1.0f - beta, g = grad_scale * grad[at], m = beta * moment1[at] + fresh * g;
    moment1[at] = m;
    grad[at] = fresh * g + beta * m;
}

static inline void muon_momentum(float* grad, float* moment1, const TensorRange* ranges, int count, float beta,
                                 float grad_scale) {
    for (int i = 0; i < count; i += RANGES_PER_LAUNCH) {
        const RangeList list =
            range_list(ranges + i, count - i, [](const TensorRange& range) { return blocks_for(range.n, 256); });
        launch(launch_shape(list.block[RANGES_PER_LAUNCH], 256), muon_momentum_kernel, grad, moment1, list, beta,
               grad_scale);
    }
}

__global__ static void __launch_bounds__(256)
    muon_normalize_kernel(floatX* __restrict__ out, const float* __restrict__ gathered,
                          const double* __restrict__ squares, CutMatrix matrix) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, rows = piece_rows(&matrix),
                  cols = piece_cols(&matrix), row = i / cols;
    if (row >= matrix.pieces * rows) return;
    const int piece = (int)(row / rows);
    const float scale = *squares > 0 ? (float)(1.0 / sqrt(*squares)) : 0;
    int64_t stride;
    const int64_t to = place_in_matrix(&matrix, piece, row % rows, i % cols, &stride);
    out[to] = (floatX)(scale * gathered[(piece * matrix.copies * rows + row % rows) * cols + i % cols]);
}

static inline void muon_normalize(floatX* out, const float* gathered, const double* squares, CutMatrix matrix) {
    launch(launch_shape(blocks_for(matrix.rows * matrix.cols, 256), 256), muon_normalize_kernel, out, gathered, squares,
           matrix);
}

__global__ static void __launch_bounds__(256)
    muon_polynomial_kernel(floatX* __restrict__ square, const floatX* __restrict__ gram, int n) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (int64_t)n * n) return;
    const float a = 3.4445f, b = -4.7750f, c = 2.0315f;
    square[i] = (floatX)((i / n == i % n ? a : 0.0f) + (b * (float)gram[i] + c * (float)square[i]));
}

static inline void muon_polynomial(floatX* square, const floatX* gram, int n) {
    launch(launch_shape(blocks_for((int64_t)n * n, 256), 256), muon_polynomial_kernel, square, gram, n);
}

__global__ static void __launch_bounds__(256)
    muon_update_kernel(floatX* __restrict__ p, float* __restrict__ master, const floatX* __restrict__ ortho,
                       CutMatrix matrix, int piece, int64_t begin, TensorRange range, float step_size, float decay,
                       int64_t step) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, cols = piece_cols(&matrix);
    if (i >= range.n) return;
    int64_t stride;
    const int64_t from = place_in_matrix(&matrix, piece, (begin + i) / cols, (begin + i) % cols, &stride);
    float* w = sizeof(floatX) < sizeof(float) ? master + range.at : (float*)(void*)(p + range.from);
    w[i] = decay * w[i] - step_size * (float)ortho[from];
    if (sizeof(floatX) == sizeof(float)) return;
    const uint64_t place = range.first + (uint64_t)i;
    const Random4 random = philox(range.key, (uint64_t)step, place / 4);
    p[range.from + i] = round_randomly<floatX>(w[i], random_word(random, place));
}

static inline void muon_update(floatX* params, float* master, const floatX* ortho, CutMatrix matrix, int piece,
                               int64_t begin, const TensorRange* range, const OptimizerStep* s) {
    const float step_size = s->lr * (0.2f * sqrtf((float)max_i64(matrix.rows, matrix.cols)));
    const float decay = (float)(1.0 - (double)s->lr * s->weight_decay);
    if (range->n == 0) return;
    launch(launch_shape(blocks_for(range->n, 256), 256), muon_update_kernel, params, master, ortho, matrix, piece,
           begin, *range, step_size, decay, s->step);
}
