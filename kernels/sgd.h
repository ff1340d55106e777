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

#include "../util/base.h"

// p, m (n) are updated from g (n). master, step, key and first are for parameters of 16 bits (sgd.cuh): here p is
// float32, master is NULL, and nothing is rounded.
static inline void sgd_update(float* RESTRICT p, float* master, const float* RESTRICT g, float* RESTRICT m, int64_t n,
                              float lr, float momentum, float weight_decay, int64_t step, float grad_scale,
                              uint64_t key, uint64_t first) {
    (void)master, (void)step, (void)key, (void)first;
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const float mi = momentum * m[i] + (grad_scale * g[i] + weight_decay * p[i]);
        m[i] = mi;
        p[i] -= lr * mi;
    }
}

#endif
