/*
sgd.cuh: sgd.h on a GPU, elementwise: as adamw.cuh, with another rule and without v. 16-bit parameters are a copy of the
master weights `master`, rounded stochastically by (key, step, place); adamw_round recomputes the same copy. 22 bytes of
memory an element, 20 in float32.
*/
#pragma once

#include "adamw.cuh"

struct SGD {
    static constexpr bool HAS_V = false;
    static constexpr float NO_DECAY = 0;
    float lr, momentum, decay, grad_scale;
};

__device__ __forceinline__ void update_element(float& p, float& m, float&, float g, const SGD& s) {
    m = fmaf(s.momentum, m, fmaf(s.grad_scale, g, s.decay * p));
    p = fmaf(-s.lr, m, p);
}

static inline void sgd_update(floatX* params, float* master, const float* grad, float* moment1, float* moment2,
                              const TensorRange* ranges, int count, const OptimizerStep* s) {
    const SGD rule = {s->lr, s->beta1, s->weight_decay, s->grad_scale};
    launch_update(params, master, grad, moment1, moment2, ranges, count, rule, s->step);
}
