/*
caat.h: the partial sums of CAAT-Net (Lamprecht et al. 2025, arXiv 2506.19645), on one device; floatX. x (streams, N,
C) holds one or more residual streams, one after the other, or a row-parallel layer's addends to them. Of the C channels
of a row the first S are shared by all streams of all ranks, the others belong to each stream alone:

    z[c] = the sum of x[c] over all streams      c < S
    z[c] = factor * x[c]                        c >= S

The map is its own transpose, so gradients use it, too. Both passes are: caat_pack, an all-reduce of shared (N, S) over
the ranks, caat_unpack. With S = C, caat_pack is the sum of all streams (at the end of the backward pass), and
caat_unpack alone copies one stream to all (at the embedding).
*/
#pragma once

#include "floatx.h"

// sum (n), in float32, = the sum of n channels of a row over the streams, in their order; `next`: from one stream to
// the next.
static inline void caat_sum(float* RESTRICT sum, const floatX* RESTRICT x, int streams, int64_t next, int n) {
    for (int c = 0; c < n; c++) sum[c] = to_float(x[c]);
    for (int stream = 1; stream < streams; stream++) {
#pragma omp simd
        for (int c = 0; c < n; c++) sum[c] += to_float(x[stream * next + c]);
    }
}

// shared (N, S) = the sum over the streams of the first S channels of x (streams, N, C).
static inline void caat_pack(floatX* RESTRICT shared, const floatX* RESTRICT x, int streams, int N, int C, int S) {
    enum { CHANNELS = 256 };
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        float sum[CHANNELS];
        for (int first = 0; first < S; first += CHANNELS) {
            const int count = (int)min_i64(CHANNELS, S - first);
            floatX* out = shared + (int64_t)n * S + first;
            caat_sum(sum, x + (int64_t)n * C + first, streams, (int64_t)N * C, count);
#pragma omp simd
            for (int c = 0; c < count; c++) out[c] = to_floatX(sum[c]);
        }
    }
}

// The same in float32.
static inline void caat_pack_floats(float* RESTRICT shared, const floatX* RESTRICT x, int streams, int N, int C,
                                    int S) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) caat_sum(shared + (int64_t)n * S, x + (int64_t)n * C, streams, (int64_t)N * C, S);
}

// The private channels of a row: z = factor x.
static inline void caat_scale(floatX* z, const floatX* x, float factor, int C, int S) {
    for (int c = S; c < C; c++) z[c] = to_floatX(factor * to_float(x[c]));
}

// z (streams, N, C): the shared channels from shared (N, S), the others factor * x. z may be x; x is not read where S =
// C.
static inline void caat_unpack(floatX* z, const floatX* RESTRICT shared, const floatX* x, float factor, int streams,
                               int N, int C, int S) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < (int64_t)streams * N; row++) {
        memcpy(z + row * C, shared + row % N * S, (size_t)S * sizeof *z);
        caat_scale(z + row * C, x + row * C, factor, C, S);
    }
}

// The same from float32.
static inline void caat_unpack_floats(floatX* z, const float* RESTRICT shared, const floatX* x, float factor,
                                      int streams, int N, int C, int S) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < (int64_t)streams * N; row++) {
        const float* from = shared + row % N * S;
        for (int c = 0; c < S; c++) z[row * C + c] = to_floatX(from[c]);
        caat_scale(z + row * C, x + row * C, factor, C, S);
    }
}
