/*
parallel/caat.h: CAAT-Net (partially synchronised activations). The ranks of a tensor group sum only a fraction of the
channels of a row-parallel layer's output; each keeps its own value of the others, so that every rank has its own
residual stream. A rank may hold several such streams (parallel.h), one after the other.
*/
#pragma once

#include "stage.h"

// z (N, C) = the sum of x over all streams, on all ranks, for shared channels, and each stream's own x, scaled, for
// private ones. The same forward and backward; backward in float32 by default, because that sum is not of a branch but
// of the whole gradient of the residual stream, once for each branch. acts->sum is in flight from start to finish; on
// CPU cores only where another half is computed meanwhile, as MPI's blocking calls are faster. z may be x.
static inline void caat_reduce_start(const Stage* stage, Activations* acts, const floatX* x, bool back) {
    const int streams = stage->layout.streams, C = stage->model.C, S = stage->layout.shared;
    const int64_t n = (int64_t)acts->tokens * S;
    const bool floats = back && !stage->layout.parallel.caat.narrow;
    Comm* tensor = &stage->groups->tensor;
    if (floats)
        caat_pack_floats(acts->shared, x, streams, acts->tokens, C, S);
    else
        caat_pack((floatX*)acts->shared, x, streams, acts->tokens, C, S);
    const CommType type = floats ? COMM_FLOAT : COMM_FLOATX;
    if (acts->parts > 1 || !DEVICE_IS_HOST)
        acts->sum = comm_all_reduce_start(tensor, acts->shared, n, type, COMM_SUM);
    else
        comm_all_reduce(tensor, acts->shared, n, type, COMM_SUM);
}

static inline void caat_reduce_finish(const Stage* stage, Activations* acts, floatX* z, const floatX* x, bool back) {
    const CaatConfig* caat = &stage->layout.parallel.caat;
    const int streams = stage->layout.streams, C = stage->model.C, S = stage->layout.shared;
    const float factor = (float)sqrt(caat->ranks); // gives private channels the size of shared ones
    comm_wait(&acts->sum);
    if (back && !caat->narrow)
        caat_unpack_floats(z, acts->shared, x, factor, streams, acts->tokens, C, S);
    else
        caat_unpack(z, (floatX*)acts->shared, x, factor, streams, acts->tokens, C, S);
}

// All streams began with the same embeddings, whose gradient is the sum of theirs, of all channels and over all ranks:
// acts->branch (tokens, C).
static inline void caat_reduce_streams(const Stage* stage, const Activations* acts, const floatX* dx) {
    const int streams = stage->layout.streams, C = stage->model.C;
    const int64_t n = (int64_t)acts->tokens * C;
    floatX* sum = acts->branch;
    if (stage->layout.parallel.caat.narrow) {
        caat_pack(sum, dx, streams, acts->tokens, C, C);
        comm_all_reduce(&stage->groups->tensor, sum, n, COMM_FLOATX, COMM_SUM);
    } else {
        caat_pack_floats(acts->shared, dx, streams, acts->tokens, C, C);
        comm_all_reduce(&stage->groups->tensor, acts->shared, n, COMM_FLOAT, COMM_SUM);
        caat_unpack_floats(sum, acts->shared, sum, 1.0f, 1, acts->tokens, C, C);
    }
}
