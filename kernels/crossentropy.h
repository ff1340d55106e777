/*
crossentropy.h: softmax and cross-entropy over the vocabulary, which may be cut into slices on several ranks (vocabulary
parallel; Shoeybi et al. 2019, section 3); logits are floatX, all else float32.

    loss = log(sum) - (x_target - max),     sum = sum_v e^(x_v - max),     max = max_v x_v          for each row x
    d loss / dx_v = e^(x_v - max) / sum - (v = target)

A rank has a slice of the vocabulary, and the columns of the logits that belong to it. Ranks exchange three numbers a
row, never the logits:

    crossentropy_max        row_max                            then, between ranks: the maximum
    crossentropy_sum        row_sum, target_logit (- max)      then, between ranks: the sum of both
    crossentropy_loss       losses
    crossentropy_backward   logits become their gradient

Where one rank has the whole vocabulary, crossentropy_fused does all four, a row at a time.

An ignored row (targets.h) has a row_sum of 0, which no other row has, as the largest logit of a row gives e^0 = 1.
*/
#pragma once

#include "fast_math.h"
#include "row_sum.h"
#include "targets.h"

static inline float larger(float x, float y) { return x > y ? x : y; }

// The largest of n logits, -infinity if there is none. NaNs are ignored here; they show in the sum.
static inline float row_largest(const floatX* x, int n) {
    enum { LANES = SUM_LANES };
    float lane[LANES];
    for (int j = 0; j < LANES; j++) lane[j] = -INFINITY;
    int begin = 0;
    for (; begin + LANES <= n; begin += LANES) {
        for (int j = 0; j < LANES; j++) lane[j] = larger(to_float(x[begin + j]), lane[j]);
    }
    for (int j = 0; begin + j < n; j++) lane[j] = larger(to_float(x[begin + j]), lane[j]);
    float largest = -INFINITY;
    for (int j = 0; j < LANES; j++) largest = larger(lane[j], largest);
    return largest;
}

static inline float term_exp(RowArgs row, int c) { return fast_exp(to_float(row.x[c]) - row.k); }

// The sum of e^(x - max) over n logits.
static inline float row_sum_exp(const floatX* x, float max, int n) {
    enum { BLOCK = 2048 }; // blocks keep the float32 sums short
    double sum = 0;
    for (int begin = 0; begin < n; begin += BLOCK) {
        const RowArgs row = {x + begin, NULL, NULL, max};
        sum += row_sum(term_exp, row, (int)min_i64(BLOCK, n - begin));
    }
    return (float)sum;
}

// In nats. A sum of 0 marks an ignored row.
static inline float row_loss(float sum, float target_logit) {
    return sum == 0 ? 0 : (float)(log((double)sum) - target_logit);
}

// The n logits of a row become scale times the gradient of its loss, the padding 0. `target` may be in another slice.
static inline void row_gradient(floatX* x, float max, float sum, int64_t target, float scale, int n, int stride) {
    enum { BLOCK = 512 }; // in float32 until the target is done, so that all are rounded once
    const float factor = scale / sum;
    float gradient[BLOCK];
    for (int begin = 0; begin < n; begin += BLOCK) {
        const int count = (int)min_i64(BLOCK, n - begin);
#pragma omp simd
        for (int v = 0; v < count; v++) gradient[v] = fast_exp(to_float(x[begin + v]) - max) * factor;
        if (target >= begin && target < begin + count) gradient[target - begin] -= scale;
#pragma omp simd
        for (int v = 0; v < count; v++) x[begin + v] = to_floatX(gradient[v]);
    }
    memset(x + n, 0, (size_t)(stride - n) * sizeof(floatX));
}

// row_max (N): the largest logit of each row, -infinity if there is none.
static inline void crossentropy_max(float* RESTRICT row_max, const floatX* RESTRICT logits, int N, VocabSlice slice) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) row_max[n] = row_largest(logits + (int64_t)n * slice.stride, slice.used);
}

// row_sum (N): sum over this slice of e^(logit - row_max). target_logit (N): target's logit - row_max; 0 if elsewhere.
static inline void crossentropy_sum(float* RESTRICT row_sum, float* RESTRICT target_logit,
                                    const floatX* RESTRICT logits, const float* RESTRICT row_max, Targets targets,
                                    int N, VocabSlice slice) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const floatX* x = logits + (int64_t)n * slice.stride;
        const int used = targets.token[n] >= 0 ? slice.used : 0;
        const int64_t target = (int64_t)targets.token[n] - slice.first;
        row_sum[n] = row_sum_exp(x, row_max[n], used);
        target_logit[n] = target >= 0 && target < used ? to_float(x[target]) - row_max[n] : 0;
    }
}

// losses (N), in nats.
static inline void crossentropy_loss(float* RESTRICT losses, const float* RESTRICT row_sum,
                                     const float* RESTRICT target_logit, int N) {
    for (int n = 0; n < N; n++) losses[n] = row_loss(row_sum[n], target_logit[n]);
}

// logits (N, stride) = scale times the gradient of the losses; 0 in ignored rows, and in the padding.
static inline void crossentropy_backward(floatX* RESTRICT logits, const float* RESTRICT row_max,
                                         const float* RESTRICT row_sum, Targets targets, int N, VocabSlice slice) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        row_gradient(logits + (int64_t)n * slice.stride, row_max[n], row_sum[n],
                     (int64_t)targets.token[n] - slice.first, targets.scale, targets.token[n] >= 0 ? slice.used : 0,
                     slice.stride);
    }
}

// All of the above for a vocabulary that is not cut, with the same bits: losses (N) in nats, and logits (N, stride)
// become scale times their gradient.
static inline void crossentropy_fused(float* RESTRICT losses, floatX* RESTRICT logits, Targets targets, int N,
                                      VocabSlice whole) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        floatX* x = logits + (int64_t)n * whole.stride;
        const int target = targets.token[n], used = target >= 0 ? whole.used : 0;
        const float max = row_largest(x, used), sum = row_sum_exp(x, max, used);
        losses[n] = row_loss(sum, target >= 0 && target < used ? to_float(x[target]) - max : 0);
        row_gradient(x, max, sum, target, targets.scale, used, whole.stride);
    }
}

// *sum += losses (N), one after the other.
static inline void losses_add(double* sum, const float* losses, int N) {
    for (int n = 0; n < N; n++) *sum += losses[n];
}
