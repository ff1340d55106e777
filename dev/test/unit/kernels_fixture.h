/*
kernels_fixture.h: arrays and comparisons of the kernels' tests (test_kernels.c, test_kernels_update.c,
test_kernels_bits.c).

Theory: errors are counted in roundings. A result that is a sum of rounded terms may be off by k u S to first order,
where u = 2^-24, S is the sum of the absolute values of the terms, and k is the number of roundings that a term passes
through. Each test computes S beside the wanted value and derives k; printed is the largest |got - wanted| / (u S), and
k as the bound.

Arrays of floatX are `values`. In bf16 their numbers are rounded before a formula reads them, and a result is computed
in float32 and rounded once: k u S, and then 2^-8 of the result more, half of the distance of two neighbours. Printed is
the largest error in units of that sum, and the bound is 1.
*/
#pragma once

#include "test.h"
#include "../../../kernels/floatx.h"

#ifdef _OPENMP
#include <omp.h>
#endif

static const double U = 0x1p-24;
static const double TINY = 0x1p-120 / 0x1p-24; // what numbers below 2^-126 are off by, in units of u
enum { EXP_K = 3, SUM_K = 6 };                 // roundings of fast_exp (below 1.5 ulp); of the tree that ends a row_sum

// ----------------------------------------------------------------------------------------------------------------
// Memory of a test: arrays are remembered, so that a test can free them all, or compare them all with those of another
// run.

enum { MAX_ARRAYS = 32 };
typedef struct {
    void *data[MAX_ARRAYS], *block[MAX_ARRAYS];
    size_t size[MAX_ARRAYS];
    int count;
} Memory;
static Memory memory;
static int shift = 0; // elements by which arrays are moved against the alignment of malloc

static inline void* array_new(size_t count, size_t size) {
    if (memory.count == MAX_ARRAYS) die("test_kernels: more than %d arrays", MAX_ARRAYS);
    const int i = memory.count++;
    memory.size[i] = count * size;
    memory.block[i] = checked_calloc(1, (count + (size_t)shift) * size, "test array");
    memory.data[i] = (char*)memory.block[i] + (size_t)shift * size;
    return memory.data[i];
}
static inline void release(Memory* m) {
    for (int i = 0; i < m->count; i++) free(m->block[i]);
    m->count = 0;
}
static inline double* doubles(int64_t n) { return (double*)array_new((size_t)n, sizeof(double)); }

// Uniform in (-size, size), with all bits of the significand in use, so that sums of them are not exact; each array
// gets other numbers, the same in every run.
static inline float* floats(int64_t n, float size) {
    const uint64_t stream = (uint64_t)memory.count;
    float* x = (float*)array_new((size_t)n, sizeof(float));
    for (int64_t i = 0; i < n; i++) x[i] = size * (0.98765432f * (2 * random_uniform(1, stream, (uint64_t)i) - 1));
    return x;
}
static inline float* poisoned(int64_t n) {
    float* x = (float*)array_new((size_t)n, sizeof(float));
    for (int64_t i = 0; i < n; i++) x[i] = NAN;
    return x;
}
static inline float* copied(const float* from, int64_t n) {
    float* x = (float*)array_new((size_t)n, sizeof(float));
    memcpy(x, from, (size_t)n * sizeof(float));
    return x;
}

// The same of floatX: the numbers of floats(), rounded.
static inline floatX* values(int64_t n, float size) {
    const uint64_t stream = (uint64_t)memory.count;
    floatX* x = (floatX*)array_new((size_t)n, sizeof(floatX));
    for (int64_t i = 0; i < n; i++) {
        x[i] = to_floatX(size * (0.98765432f * (2 * random_uniform(1, stream, (uint64_t)i) - 1)));
    }
    return x;
}
static inline floatX* poisoned_values(int64_t n) {
    floatX* x = (floatX*)array_new((size_t)n, sizeof(floatX));
    for (int64_t i = 0; i < n; i++) x[i] = to_floatX(NAN);
    return x;
}
static inline floatX* copied_values(const floatX* from, int64_t n) {
    floatX* x = (floatX*)array_new((size_t)n, sizeof(floatX));
    memcpy(x, from, (size_t)n * sizeof(floatX));
    return x;
}
static inline double* widened(const floatX* x, int64_t n) {
    double* wide = doubles(n);
    for (int64_t i = 0; i < n; i++) wide[i] = to_float(x[i]);
    return wide;
}
static inline int32_t* integers(int n, int first, int end) {
    const uint64_t stream = (uint64_t)memory.count;
    int32_t* x = (int32_t*)array_new((size_t)n, sizeof(int32_t));
    for (int i = 0; i < n; i++) x[i] = first + (int)(random_uniform(1, stream, (uint64_t)i) * (float)(end - first));
    return x;
}

// ---- Comparison -------------------------------------------------------------------------------------------------

// What a kernel should have written: value and S of each element.
typedef struct {
    double *value, *size;
    int64_t n;
} Wanted;

static inline Wanted wanted_new(int64_t n) {
    Wanted w = {doubles(n), doubles(n), n};
    return w;
}
static inline void want(Wanted* w, int64_t i, double value, double size) {
    w->value[i] = value;
    w->size[i] = size;
}

// max |got - value| / (u size), NaN counting as infinite; at size = 0 the two must be equal.
static inline double roundings(const float* got, const Wanted* w) {
    double worst = 0;
    for (int64_t i = 0; i < w->n; i++) {
        const double difference = fabs((double)got[i] - w->value[i]);
        const double error = difference == 0 ? 0 : difference / (U * w->size[i]);
        if (!(error <= worst)) worst = error == error ? error : INFINITY;
    }
    return worst;
}
static inline void check_roundings(const char* what, int N, int C, const float* got, const Wanted* w, double k) {
    char line[128];
    snprintf(line, sizeof line, "%s, %d x %d: roundings", what, N, C);
    check_error(line, roundings(got, w), k);
}

// A result that was rounded to floatX. In bf16 printed in units of the bound, with 2^-8 (k u S) and what numbers below
// 2^-126 are off by.
static inline void check_values(const char* what, int N, int C, const floatX* got, const Wanted* w, double k) {
#ifdef PRECISION_BF16
    char line[160];
    double worst = 0;
    for (int64_t i = 0; i < w->n; i++) {
        const double difference = fabs((double)to_float(got[i]) - w->value[i]);
        const double bound = 0x1p-8 * fabs(w->value[i]) + (1 + 0x1p-8) * k * U * w->size[i] + 0x1p-134;
        double error = difference == 0 ? 0 : difference / bound;
        if (difference != 0 && w->size[i] == 0) error = INFINITY;
        if (!(error <= worst)) worst = error == error ? error : INFINITY;
    }
    snprintf(line, sizeof line, "%s, %d x %d: of 2^-8 and %g roundings", what, N, C, k);
    check_error(line, worst, 1);
#else
    check_roundings(what, N, C, got, w, k);
#endif
}

static inline bool same(const float* a, const float* b, int64_t n) {
    return memcmp(a, b, (size_t)n * sizeof(float)) == 0;
}
static inline bool same_values(const floatX* a, const floatX* b, int64_t n) {
    return memcmp(a, b, (size_t)n * sizeof(floatX)) == 0;
}

// The largest |analytic_i - (f(x + h e_i) - f(x - h e_i)) / 2h| relative to the largest analytic_i. With h = 1e-5 and f
// of order 1: truncation h^2 f''' / 6 ~ 1e-10, cancellation 2^-53 |f| / h ~ 1e-11; with |f| up to 1e3 and a margin:
// 1e-7.
static const double DIFFERENCES_BOUND = 1e-7;
typedef double (*Loss)(const void* context, const double* x);
static inline void check_differences(const char* what, Loss loss, const void* context, double* x,
                                     const double* analytic, int64_t n) {
    const double h = 1e-5;
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < n; i++) {
        const double saved = x[i];
        x[i] = saved + h;
        const double up = loss(context, x);
        x[i] = saved - h;
        const double down = loss(context, x);
        x[i] = saved;
        worst = fmax(worst, fabs((up - down) / (2 * h) - analytic[i]));
        scale = fmax(scale, fabs(analytic[i]));
    }
    check_error(what, worst / scale, DIFFERENCES_BOUND);
}
