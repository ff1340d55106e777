/*
crossentropy.h: softmax and cross-entropy over the vocabulary, which may be cut into slices on several ranks (vocabulary
parallel; Shoeybi et al. 2019, section 3); logits are floatX, all else float32.

    loss = log(sum) - (x_target - max),     sum = sum_v e^(x_v - max),     max = max_v x_v          for each row x
    d loss / dx_v = e^(x_v - max) / sum - (v = target)

A rank has V_local columns of the logits, of tokens vocab_offset .. vocab_offset + V_local - 1. Ranks exchange three
numbers a row, never the logits:

    crossentropy_max        row_max                            then, between ranks: the maximum
    crossentropy_sum        row_sum, target_logit (- max)      then, between ranks: the sum of both
    crossentropy_loss       losses
    crossentropy_backward   logits become their gradient

Where one rank has the whole vocabulary, crossentropy_fused does all four, a row at a time.

A target of -1 marks an ignored row: loss 0, gradient 0. Its row_sum is set to 0, which no other row has, as the largest
logit of a row gives e^0 = 1.

logits (N, stride): a row is `stride` numbers, of which the first V_local count; the rest is padding.
*/
#pragma once

#include "row_sum.h"
#include "fast_math.h"

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

// The n logits of a row become scale times the gradient of its loss; the padding becomes 0. `target` may be in another
// slice.
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
static inline void crossentropy_max(float* RESTRICT row_max, const floatX* RESTRICT logits, int N, int V_local,
                                    int stride) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) row_max[n] = row_largest(logits + (int64_t)n * stride, V_local);
}

// row_sum (N): sum over this slice of e^(logit - row_max). target_logit (N): target's logit - row_max; 0 if elsewhere.
static inline void crossentropy_sum(float* RESTRICT row_sum, float* RESTRICT target_logit,
                                    const floatX* RESTRICT logits, const float* RESTRICT row_max,
                                    const int32_t* targets, int N, int V_local, int stride, int vocab_offset) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const floatX* x = logits + (int64_t)n * stride;
        const int64_t target = (int64_t)targets[n] - vocab_offset;
        row_sum[n] = targets[n] >= 0 ? row_sum_exp(x, row_max[n], V_local) : 0;
        target_logit[n] = targets[n] >= 0 && target >= 0 && target < V_local ? to_float(x[target]) - row_max[n] : 0;
    }
}

// losses (N), in nats.
static inline void crossentropy_loss(float* RESTRICT losses, const float* RESTRICT row_sum,
                                     const float* RESTRICT target_logit, int N) {
    for (int n = 0; n < N; n++) losses[n] = row_loss(row_sum[n], target_logit[n]);
}

// logits (N, stride) = scale times the gradient of the losses; 0 in rows whose target is -1, and in the padding.
static inline void crossentropy_backward(floatX* RESTRICT logits, const float* RESTRICT row_max,
                                         const float* RESTRICT row_sum, const int32_t* targets, float scale, int N,
                                         int V_local, int stride, int vocab_offset) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        row_gradient(logits + (int64_t)n * stride, row_max[n], row_sum[n], (int64_t)targets[n] - vocab_offset, scale,
                     targets[n] >= 0 ? V_local : 0, stride);
    }
}

// All of the above for a vocabulary of V that is not cut, with the same bits: losses (N) in nats, and logits (N,
// stride) become scale times their gradient.
static inline void crossentropy_fused(float* RESTRICT losses, floatX* RESTRICT logits, const int32_t* targets,
                                      float scale, int N, int V, int stride) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        floatX* x = logits + (int64_t)n * stride;
        const int used = targets[n] >= 0 ? V : 0;
        const float max = row_largest(x, used), sum = row_sum_exp(x, max, used);
        losses[n] = row_loss(sum, targets[n] >= 0 && targets[n] < V ? to_float(x[targets[n]]) - max : 0);
        row_gradient(x, max, sum, targets[n], scale, used, stride);
    }
}

// *sum += losses (N), one after the other.
static inline void losses_add(double* sum, const float* losses, int N) {
    for (int n = 0; n < N; n++) *sum += losses[n];
}
