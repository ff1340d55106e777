/*
row_sum.h: sums of floatX over a row, in float32 and in a fixed order: the same bits for any vector width, any alignment
and any number of threads.

A plain loop adds one element after the other: slow, since each addition waits for the last one, and inexact, since the
error grows with n. A compiler that is allowed to reorder the sum is fast, but in an unknown order. Here term c is added
to lane c mod 64, and in the end the lanes are added as a tree (0 + 32, 1 + 33, ...; then 0 + 16, ...). 64 lanes are
four AVX-512 registers, enough to hide the latency of an addition. Each term passes n / 64 + 6 additions:

    |error| <= (n / 64 + 6) 2^-24 sum |terms|       (Higham 2002, "Accuracy and stability...", chapter 4)
*/
#pragma once

#include "floatx.h"

enum { SUM_LANES = 64 };

// The inputs of a sum's terms: rows indexed by c, and a constant. Unused rows may be NULL.
typedef struct {
    const floatX *x, *y, *z;
    float k;
} RowArgs;
typedef float (*SumTerm)(RowArgs row, int c);

static inline float term_x(RowArgs row, int c) { return to_float(row.x[c]); }

// sum over c < n of term(row, c). `term` must be named in the call, so that the compiler can put its body into the
// loop.
__attribute__((always_inline)) static inline float row_sum(SumTerm term, RowArgs row, int n) {
    float lane[SUM_LANES] = {0};
    int begin = 0;
    for (; begin + SUM_LANES <= n; begin += SUM_LANES) {
        for (int j = 0; j < SUM_LANES; j++) lane[j] += term(row, begin + j);
    }
    for (int j = 0; begin + j < n; j++) lane[j] += term(row, begin + j);
    UNROLL(6) for (int width = SUM_LANES / 2; width > 0; width /= 2) {
        for (int j = 0; j < width; j++) lane[j] += lane[j + width];
    }
    return lane[0];
}
