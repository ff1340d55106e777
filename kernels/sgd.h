/*
sgd.h: stochastic gradient descent with momentum (Polyak 1964; Sutskever et al. 2013) and weight decay, as PyTorch's
SGD; float32, and rounded as by adamw.h where floatX is bf16.

    m = momentum m + (grad_scale g + weight_decay p)      the velocity: a sum of decaying gradients
    p = p - lr m

A gradient that stays the same adds up to g / (1 - momentum), so with momentum 0.9 a step is ten times lr g. Weight
decay is part of the gradient here, and so of m (in adamw.h it is decoupled). One array of state; there is no second
moment.

Elements are independent, so any slice may be updated alone (as in ZeRO), with the same bits.
*/
#pragma once

#include "adamw.h"

// `count` ranges of params, master and moment1 are updated from grad; moment2 is NULL. Where floatX is float, master is
// NULL.
static inline void sgd_update(floatX* params, float* master, const float* grad, float* moment1, float* moment2,
                              const TensorRange* ranges, int count, const OptimizerStep* s) {
    (void)moment2;
    const float lr = s->lr, momentum = s->beta1, grad_scale = s->grad_scale;
    for (const TensorRange* range = ranges; range < ranges + count; range++) {
        float* weights = range_weights(params, master, range);
        const float weight_decay = range->decays ? s->weight_decay : 0;
#pragma omp parallel for schedule(static)
        for (int64_t begin = 0; begin < range->n; begin += UPDATE_BLOCK) {
            const int n = (int)min_i64(UPDATE_BLOCK, range->n - begin);
            float *RESTRICT w = weights + begin, *RESTRICT m = moment1 + range->at + begin;
            const float* RESTRICT g = grad + range->at + begin;
#pragma omp simd
            for (int i = 0; i < n; i++) {
                const float mi = momentum * m[i] + (grad_scale * g[i] + weight_decay * w[i]);
                m[i] = mi;
                w[i] -= lr * mi;
            }
            round_block(params + range->from + begin, w, n, s->step, range->key, range->first + (uint64_t)begin, NULL);
        }
    }
}
