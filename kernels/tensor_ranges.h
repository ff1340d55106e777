/*
tensor_ranges.h: parts of tensors that one call of an optimizer, or of the gradient's norm, works on. A model has
hundreds of tensors, most of them small; on a GPU one launch takes RANGES_PER_LAUNCH of them (as NVIDIA Apex's
multi-tensor apply), and each of its blocks finds its own.
*/
#pragma once

#include "../util/base.h"
#ifdef USE_CUDA
#include "cuda_utils.cuh"
#endif

// n elements of a tensor: at `from` in the parameters, at `at` in gradients, moments and master weights.
typedef struct {
    int64_t from, at, n;
    uint64_t first;    // place of the first one in the tensor
    uint64_t key;      // of the stochastic rounding of 16-bit parameters (adamw.cuh), with `first`
    int index;         // of the tensor, among sums
    bool decays;       // whether weight decay applies
    int64_t without_v; // elements before `at` that have no second moment: it is at - without_v there
} TensorRange;

// An array as one tensor.
static inline TensorRange whole_range(int64_t n) {
    const TensorRange range = {0, 0, n, 0, 0, 0, true, 0};
    return range;
}

// One step of an optimizer, counted from 1. SGD's momentum is beta1.
typedef struct {
    float lr, beta1, beta2, eps, weight_decay;
    int64_t step;
    float grad_scale; // multiplies the gradient
} OptimizerStep;

enum { RANGES_PER_LAUNCH = 32 }; // a power of two; arguments of a kernel, 4 KB at most

// A matrix that tensor ranks hold in `pieces` of rows, or of columns, each of them on `copies` ranks in a row. Muon
// (muon.h) works on the whole matrix, stored row by row or, if it has more rows than columns, column by column.
typedef struct {
    int64_t rows, cols;
    int pieces, copies;
    bool by_rows;
} CutMatrix;

// Rows and columns of a piece.
HOST_DEVICE static inline int64_t piece_rows(const CutMatrix* m) { return m->by_rows ? m->rows / m->pieces : m->rows; }
HOST_DEVICE static inline int64_t piece_cols(const CutMatrix* m) { return m->by_rows ? m->cols : m->cols / m->pieces; }

// Where element (row, col) of a piece is in the whole matrix; the next column is *stride further.
HOST_DEVICE static inline int64_t place_in_matrix(const CutMatrix* m, int piece, int64_t row, int64_t col,
                                                  int64_t* stride) {
    const bool tall = m->rows > m->cols;
    if (m->by_rows)
        row += piece * piece_rows(m);
    else
        col += piece * piece_cols(m);
    *stride = tall ? m->rows : 1;
    return tall ? col * m->rows + row : row * m->cols + col;
}

#ifdef USE_CUDA
// The argument of a kernel: range i has the blocks [block[i], block[i + 1]).
struct RangeList {
    int count, block[RANGES_PER_LAUNCH + 1];
    TensorRange range[RANGES_PER_LAUNCH];
};

// As many of `count` ranges as a launch takes; blocks(range): of each.
template <class F>
static inline RangeList range_list(const TensorRange* ranges, int count, const F& blocks) {
    RangeList list = {};
    list.count = (int)min_i64(count, RANGES_PER_LAUNCH);
    for (int i = 0; i < RANGES_PER_LAUNCH; i++) {
        if (i < list.count) list.range[i] = ranges[i];
        list.block[i + 1] = list.block[i] + (i < list.count ? blocks(ranges[i]) : 0);
    }
    return list;
}

// The range of this block: the last that does not begin after it, which is not empty.
__device__ __forceinline__ int range_of_block(const RangeList& list) {
    int i = 0;
#pragma unroll
    for (int step = RANGES_PER_LAUNCH / 2; step > 0; step /= 2) {
        if ((int)blockIdx.x >= list.block[i + step]) i += step;
    }
    return i;
}
#endif
