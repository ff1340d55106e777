/*
sgd.cuh: sgd.h on a GPU, elementwise: as adamw.cuh, with another rule and without v. 16-bit parameters are a copy of the
master weights `master`, rounded stochastically by (key, step, place); adamw_round recomputes the same copy. 22 bytes of
memory an element, 20 in float32.
*/
#ifndef SGD_CUH
#define SGD_CUH

#include "adamw.cuh"

struct SGD {
    static constexpr bool HAS_V = false;
    float lr, momentum, weight_decay, grad_scale;
};

__device__ __forceinline__ void update_element(float& p, float& m, float&, float g, const SGD& s) {
    m = s.momentum * m + (s.grad_scale * g + s.weight_decay * p);
    p -= s.lr * m;
}

// p, master, m (n) are updated from g (n). step counts from 1; first: the place of p[0] in its tensor. Where floatX is
// float, master is NULL.
static inline void sgd_update(floatX* p, float* master, const float* g, float* m, int64_t n, float lr, float momentum,
                              float weight_decay, int64_t step, float grad_scale, uint64_t key, uint64_t first) {
    const SGD s = {lr, momentum, weight_decay, grad_scale};
    launch_update(p, master, g, m, (float*)NULL, n, s, step, key, first);
}

#endif
