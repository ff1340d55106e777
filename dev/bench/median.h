// median.h: what the benchmarks say of several measurements of the same thing.
#ifndef MEDIAN_H
#define MEDIAN_H

#include "../../util/base.h"

static inline int compare_doubles(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// Of n numbers, which it sorts; of an even number of them the upper one.
static inline double median(double* x, int n) {
    qsort(x, (size_t)n, sizeof *x, compare_doubles);
    return x[n / 2];
}

#endif
