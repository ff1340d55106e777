/*
embedding.h: tokens to vectors, and for GPT-2 a learned vector per position; forward and backward; floatX,
gradients of the tables in float32.

    out[n] = wte[token n] + wpe[t]          n = b T + t,  out (N, C),  wte (V, C),  wpe (T, C)

out is linear in both tables, so the gradient of a table's row is the sum of dout over all n that read it:

    dwte[v] = sum over n with token n = v of dout[n],     dwpe[t] = sum over b of dout[b T + t].

The vocabulary may be cut into slices over ranks (Shoeybi et al. 2019, section 3): a rank holds rows vocab_offset ..
vocab_offset + V_local - 1 of wte, writes zeros for tokens of other slices, and the sum over the ranks is the embedding.

With sequence parallelism (Korthikanti et al. 2022, "Reducing activation recomputation...", section 4.2.2) a rank holds
only rows first_row .. first_row + N - 1 of the B T rows of out. So positions are added to such a range, which may begin
and end inside a sequence; the whole is first_row = 0, N = B T. Each rank's dwpe has the terms of its own rows, and the
sum over the ranks is the gradient.

The backward pass adds to dwte and dwpe in the order of n, each element by one thread. So the sums do not depend on the
number of threads, nor on how a batch is cut into micro-batches.
*/
#pragma once

#include "floatx.h"

// out (N, C) = rows of wte (V_local, C); zeros where the token is not in this slice of the vocabulary.
static inline void embedding_forward(floatX* RESTRICT out, const int32_t* tokens, const floatX* wte, int N, int C,
                                     int vocab_offset, int V_local) {
    const size_t bytes = (size_t)C * sizeof(floatX);
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const int64_t row = (int64_t)tokens[n] - vocab_offset;
        floatX* o = out + (int64_t)n * C;
        if (row >= 0 && row < V_local)
            memcpy(o, wte + row * C, bytes);
        else
            memset(o, 0, bytes);
    }
}

// out (N, C) += rows of wpe (T, C). Row i of out is row n = first_row + i of the B T rows, at position n mod T.
static inline void position_forward(floatX* RESTRICT out, const floatX* RESTRICT wpe, int64_t first_row, int N, int T,
                                    int C) {
#pragma omp parallel for schedule(static)
    for (int i = 0; i < N; i++) {
        floatX* o = out + (int64_t)i * C;
        const floatX* w = wpe + (first_row + i) % T * C;
#pragma omp simd
        for (int c = 0; c < C; c++) o[c] = to_floatX(to_float(o[c]) + to_float(w[c]));
    }
}

// dwte (V_local, C) += dout (N, C), row by row. Two tokens may be the same, so threads own columns.
static inline void embedding_backward(float* RESTRICT dwte, const floatX* RESTRICT dout, const int32_t* tokens, int N,
                                      int C, int vocab_offset, int V_local) {
    enum { COLUMNS = 128 };
#pragma omp parallel for schedule(static)
    for (int begin = 0; begin < C; begin += COLUMNS) {
        const int end = (int)min_i64((int64_t)begin + COLUMNS, C);
        for (int n = 0; n < N; n++) {
            const int64_t row = (int64_t)tokens[n] - vocab_offset;
            if (row < 0 || row >= V_local) continue;
            float* dw = dwte + row * C;
            const floatX* d = dout + (int64_t)n * C;
#pragma omp simd
            for (int c = begin; c < end; c++) dw[c] += to_float(d[c]);
        }
    }
}

// dwpe (T, C) += dout (N, C), whose row i is row n = first_row + i of the B T rows, at position n mod T.
// Threads own positions: rows first, first + T, ... of dout share one.
static inline void position_backward(float* RESTRICT dwpe, const floatX* RESTRICT dout, int64_t first_row, int N, int T,
                                     int C) {
    const int owned = N < T ? N : T;
#pragma omp parallel for schedule(static)
    for (int first = 0; first < owned; first++) {
        float* dw = dwpe + (first_row + first) % T * C;
        for (int64_t i = first; i < N; i += T) {
            const floatX* d = dout + i * C;
#pragma omp simd
            for (int c = 0; c < C; c++) dw[c] += to_float(d[c]);
        }
    }
}
