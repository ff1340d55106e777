/*
adamw.h: Adam with decoupled weight decay (Kingma and Ba 2014; Loshchilov and Hutter 2017), as PyTorch's AdamW; float32.

    g' = grad_scale g                               clipping, and the mean over micro-batches
    m = beta1 m + (1 - beta1) g'                    running mean of the gradient
    v = beta2 v + (1 - beta2) g'^2                  and of its square
    mhat = m / (1 - beta1^step),   vhat = v / (1 - beta2^step)
    p = (1 - lr weight_decay) p - lr mhat / (sqrt(vhat) + eps)

m and v start from 0, so after `step` steps their weights add up to 1 - beta^step, and the hats divide by that. The code
computes each correction as one number, in float64: lr / (1 - beta1^step) and 1 / sqrt(1 - beta2^step).

Elements are independent, so any slice may be updated alone (as in ZeRO), with the same bits.
*/
#ifndef ADAMW_H
#define ADAMW_H

#include "tensor_ranges.h"

// `count` ranges of params and of moment1 and moment2 are updated from grad. master is for parameters of 16 bits
// (adamw.cuh): here params are float32, master is NULL, and nothing is rounded.
static inline void adamw_update(float* params, float* master, const float* grad, float* moment1, float* moment2,
                                const TensorRange* ranges, int count, const OptimizerStep* s) {
    (void)master;
    const float beta1 = s->beta1, beta2 = s->beta2, eps = s->eps, grad_scale = s->grad_scale;
    const float step_size = (float)(s->lr / (1.0 - pow(beta1, (double)s->step)));
    const float v_correction = (float)(1.0 / sqrt(1.0 - pow(beta2, (double)s->step)));
    const float new1 = 1.0f - beta1, new2 = 1.0f - beta2;
    for (const TensorRange* range = ranges; range < ranges + count; range++) {
        float *RESTRICT p = params + range->from, *RESTRICT m = moment1 + range->at, *RESTRICT v = moment2 + range->at;
        const float* RESTRICT g = grad + range->at;
        const int64_t n = range->n;
        const float decay = (float)(1.0 - (double)s->lr * (range->decays ? s->weight_decay : 0));
#pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < n; i++) {
            const float gi = grad_scale * g[i], mi = beta1 * m[i] + new1 * gi, vi = beta2 * v[i] + new2 * (gi * gi);
            m[i] = mi;
            v[i] = vi;
            p[i] = decay * p[i] - step_size * (mi / (sqrtf(vi) * v_correction + eps));
        }
    }
}

// Does nothing, as there are no 16-bit parameters here (adamw.cuh).
static inline void adamw_round(float* p, const float* master, int64_t n, int64_t step, uint64_t key, uint64_t first) {
    (void)p, (void)master, (void)n, (void)step, (void)key, (void)first;
}

#endif
