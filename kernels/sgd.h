/*
sgd.h: stochastic gradient descent with momentum (Polyak 1964; Sutskever et al. 2013) and weight decay, as PyTorch's
SGD; float32.

    m = momentum m + (grad_scale g + weight_decay p)      the velocity: a sum of decaying gradients
    p = p - lr m

A gradient that stays the same adds up to g / (1 - momentum), so with momentum 0.9 a step is ten times lr g. Weight
decay is part of the gradient here, and so of m (in adamw.h it is decoupled). One array of state; there is no second
moment.

Elements are independent, so any slice may be updated alone (as in ZeRO), with the same bits.
*/
#ifndef SGD_H
#define SGD_H

#include "tensor_ranges.h"

// `count` ranges of params and of moment1 are updated from grad; moment2 is NULL. master is for parameters of 16 bits
// (sgd.cuh): here params are float32, master is NULL, and nothing is rounded.
static inline void sgd_update(float* params, float* master, const float* grad, float* moment1, float* moment2,
                              const TensorRange* ranges, int count, const OptimizerStep* s) {
    (void)master, (void)moment2;
    const float lr = s->lr, momentum = s->beta1, grad_scale = s->grad_scale;
    for (const TensorRange* range = ranges; range < ranges + count; range++) {
        float *RESTRICT p = params + range->from, *RESTRICT m = moment1 + range->at;
        const float* RESTRICT g = grad + range->at;
        const int64_t n = range->n;
        const float weight_decay = range->decays ? s->weight_decay : 0;
#pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < n; i++) {
            const float mi = momentum * m[i] + (grad_scale * g[i] + weight_decay * p[i]);
            m[i] = mi;
            p[i] -= lr * mi;
        }
    }
}

#endif
