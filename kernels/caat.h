/*
caat.h: the partial sums of CAAT-Net (Lamprecht et al. 2025, arXiv 2506.19645), on one device; float32. x (streams, N,
C) holds one or more residual streams, one after the other, or a row-parallel layer's addends to them. Of the C channels
of a row the first S are shared by all streams of all ranks, the others belong to each stream alone:

    z[c] = the sum of x[c] over all streams      c < S
    z[c] = factor * x[c]                        c >= S

The map is its own transpose, so gradients use it, too. Both passes are: caat_pack, an all-reduce of shared (N, S) over
the ranks, caat_unpack. With S = C, caat_pack is the sum of all streams (at the end of the backward pass), and
caat_unpack alone copies one stream to all (at the embedding).
*/
#ifndef KERNELS_CAAT_H
#define KERNELS_CAAT_H

#include "../util/base.h"

// shared (N, S) = the sum over the streams of the first S channels of x (streams, N, C); streams are added in their
// order.
static inline void caat_pack(float* RESTRICT shared, const float* RESTRICT x, int streams, int N, int C, int S) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        float* out = shared + (int64_t)n * S;
        memcpy(out, x + (int64_t)n * C, (size_t)S * sizeof *out);
        for (int stream = 1; stream < streams; stream++) {
            const float* in = x + ((int64_t)stream * N + n) * C;
#pragma omp simd
            for (int c = 0; c < S; c++) out[c] += in[c];
        }
    }
}

// z (streams, N, C): the shared channels from shared (N, S), the others factor * x. z may be x; x is not read where S =
// C.
static inline void caat_unpack(float* z, const float* RESTRICT shared, const float* x, float factor, int streams, int N,
                               int C, int S) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < (int64_t)streams * N; row++) {
        float* out = z + row * C;
        memcpy(out, shared + row % N * S, (size_t)S * sizeof *out);
        for (int c = S; c < C; c++) out[c] = factor * x[row * C + c];
    }
}

#endif
