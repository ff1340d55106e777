/*
methods/caat.h: CAAT-Net (partially synchronised activations). The ranks of a tensor group sum only a fraction of the
channels of a row-parallel layer's output; each keeps its own value of the others, so that the residual stream is one of
its own on every rank. A rank may hold several such streams (parallel.h), which lie one behind the other.
*/
#ifndef CAAT_H
#define CAAT_H

#include "../parallel/stage.h"

// CAAT-Net: z (N, C) = the sum of x over all states, on all ranks, where channels are shared, and each state's own x, scaled,
// where they are not. The same on both ways; on the way back in float32, if not told otherwise, because what is summed there
// is not a branch but the whole gradient of the residual stream, once for each branch. z may be x.
static inline void caat_reduce(const Stage* s, const Activations* a, floatX* z, const floatX* x, bool back) {
    const CaatConfig* sync = &s->layout.mesh.sync;
    const int states = s->layout.states, C = s->model.C, S = s->layout.shared;
    const float factor = (float)sync_factor(sync);
    const int64_t n = (int64_t)a->tokens * S;
    if (back && !sync->narrow) {
        caat_pack(s->shared, x, states, a->tokens, C, S);
        comm_all_reduce(&s->groups->tensor, s->shared, n, COMM_FLOAT, COMM_SUM);
        caat_unpack(z, s->shared, x, factor, states, a->tokens, C, S);
    } else {
        floatX* shared = (floatX*)s->shared;
        caat_pack(shared, x, states, a->tokens, C, S);
        comm_all_reduce(&s->groups->tensor, shared, n, COMM_FLOATX, COMM_SUM);
        caat_unpack(z, shared, x, factor, states, a->tokens, C, S);
    }
}

// The bias of a row-parallel layer. That of a CAAT-Net is added to every state, behind the sums: its gradient is the sum of
// those of all states, and is taken where these are at hand.
static inline TensorKind caat_skip_bias(const Stage* s, TensorKind bias) { return is_caat(s) ? NO_TENSOR : bias; }

static inline void caat_bias_grad(const Stage* s, const Activations* a, int layer, TensorKind bias, const floatX* dx) {
    if (is_caat(s) && s->model.arch == ARCH_GPT2) linear_backward_bias(gradient(s, layer, bias), dx, a->N, s->model.C);
}

// CAAT-Net: all states began with the same numbers, so the gradient of these is the sum of theirs, of all channels and over
// all ranks: (tokens, C), in scratch memory.
static const floatX* caat_reduce_streams(const Stage* s, const Activations* a, const floatX* dx) {
    const int states = s->layout.states, C = s->model.C;
    const int64_t n = (int64_t)a->tokens * C;
    floatX* narrow = s->branch;
    if (s->layout.mesh.sync.narrow) {
        caat_pack(narrow, dx, states, a->tokens, C, C);
        comm_all_reduce(&s->groups->tensor, narrow, n, COMM_FLOATX, COMM_SUM);
    } else {
        caat_pack(s->shared, dx, states, a->tokens, C, C);
        comm_all_reduce(&s->groups->tensor, s->shared, n, COMM_FLOAT, COMM_SUM);
        caat_unpack(narrow, s->shared, narrow, 1.0f, 1, a->tokens, C, C);
    }
    return narrow;
}

#endif
