/*
util/median.h: the median of values, for the planner and the benchmarks.
*/
#pragma once

#include "base.h"

// For qsort: ascending.
static inline int compare_doubles(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// The median of n values; sorts them.
static inline double median_of(double* x, int n) {
    qsort(x, (size_t)n, sizeof *x, compare_doubles);
    return 0.5 * (x[(n - 1) / 2] + x[n / 2]);
}
