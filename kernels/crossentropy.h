/*
crossentropy.h: softmax and cross-entropy over the vocabulary, cut so that the vocabulary may lie in slices on several
ranks (vocabulary parallel; Shoeybi et al. 2019, section 3); float32.

    loss = log(sum) - (x_target - max),     sum = sum_v e^(x_v - max),     max = max_v x_v          for each row x
    d loss / dx_v = e^(x_v - max) / sum - (v = target)

A rank has V_local columns of the logits, those of tokens first_token .. first_token + V_local - 1. Three numbers a row
go between the ranks, and the logits never do:

    crossentropy_max        row_max                            then, between ranks: the maximum
    crossentropy_sum        row_sum, target_logit (- max)      then, between ranks: the sum of both
    crossentropy_loss       losses
    crossentropy_backward   logits become their gradient

A target of -1 marks a row to leave out: loss 0, gradient 0. Its row_sum is set to 0, which no other row has: the
largest logit of a row gives e^0 = 1.

logits (N, stride): a row is `stride` floats, of which the first V_local count; the rest is padding.
*/
#ifndef CROSSENTROPY_H
#define CROSSENTROPY_H

#include "sum.h"
#include "vec.h"

// row_max (N): the largest logit of each row, -infinity if there is none. It passes over a NaN: the sum will not.
static inline void crossentropy_max(float* RESTRICT row_max, const float* RESTRICT logits, int N, int V_local,
                                    int stride) {
    enum { LANES = SUM_LANES };
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const float* x = logits + (int64_t)n * stride;
        float lane[LANES];
        for (int j = 0; j < LANES; j++) lane[j] = -INFINITY;
        int begin = 0;
        for (; begin + LANES <= V_local; begin += LANES) {
            for (int j = 0; j < LANES; j++) lane[j] = x[begin + j] > lane[j] ? x[begin + j] : lane[j];
        }
        for (int j = 0; begin + j < V_local; j++) lane[j] = x[begin + j] > lane[j] ? x[begin + j] : lane[j];
        float largest = -INFINITY;
        for (int j = 0; j < LANES; j++) largest = lane[j] > largest ? lane[j] : largest;
        row_max[n] = largest;
    }
}

static inline float term_exp(SumRow row, int c) { return fast_exp(row.x[c] - row.k); }

// row_sum (N): sum over this slice of e^(logit - row_max). target_logit (N): target's logit - row_max; 0 if elsewhere.
static inline void crossentropy_sum(float* RESTRICT row_sum, float* RESTRICT target_logit, const float* RESTRICT logits,
                                    const float* RESTRICT row_max, const int32_t* targets, int N, int V_local,
                                    int stride, int first_token) {
    enum { BLOCK = 2048 }; // blocks keep the float32 sums short
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const float* x = logits + (int64_t)n * stride;
        const int64_t target = (int64_t)targets[n] - first_token;
        double sum = 0;
        for (int begin = 0; targets[n] >= 0 && begin < V_local; begin += BLOCK) {
            const SumRow row = {x + begin, NULL, NULL, row_max[n]};
            sum += row_sum_of(term_exp, row, (int)min_i64(BLOCK, V_local - begin));
        }
        row_sum[n] = (float)sum;
        target_logit[n] = targets[n] >= 0 && target >= 0 && target < V_local ? x[target] - row_max[n] : 0;
    }
}

// losses (N), in nats.
static inline void crossentropy_loss(float* RESTRICT losses, const float* RESTRICT row_sum,
                                     const float* RESTRICT target_logit, int N) {
    for (int n = 0; n < N; n++) losses[n] = row_sum[n] == 0 ? 0 : (float)(log((double)row_sum[n]) - target_logit[n]);
}

// logits (N, stride) = scale times the gradient of the losses; 0 in rows whose target is -1, and in the padding.
static inline void crossentropy_backward(float* RESTRICT logits, const float* RESTRICT row_max,
                                         const float* RESTRICT row_sum, const int32_t* targets, float scale, int N,
                                         int V_local, int stride, int first_token) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        float* x = logits + (int64_t)n * stride;
        const int used = targets[n] >= 0 ? V_local : 0;
        const int64_t target = (int64_t)targets[n] - first_token;
        const float max = row_max[n], factor = scale / row_sum[n];
#pragma omp simd
        for (int v = 0; v < used; v++) x[v] = fast_exp(x[v] - max) * factor;
        if (target >= 0 && target < used) x[target] -= scale;
        memset(x + used, 0, (size_t)(stride - used) * sizeof(float));
    }
}

#endif
