/*
cuda_compare.h: errors over many cases of a function. Each case is compared element by element, and a line is printed
for each function: the largest error of all cases, in units of its bound, and the largest relative norm of an error.

Bounds, for each element on its own: where the result becomes floatX, U |wanted|; what else happens is float32, k
roundings of terms of a size S: k U32 S, or sqrt(k) U32 S where k is large and signs are random.
*/
#ifndef CUDA_COMPARE_H
#define CUDA_COMPARE_H

#include "cuda_test.h"

typedef std::vector<floatX> ShardedBuffer;

// What a reference gives, rounded as a kernel rounds it.
static inline Floats rounded(const Floats& x) {
    Floats y(x.size());
    for (size_t i = 0; i < x.size(); i++) y[i] = (float)(floatX)x[i];
    return y;
}

// What has been compared, by name.
typedef struct {
    const char* name;
    int cases;
    double worst, norm; // largest error in units of its bound; largest relative norm of a hundred elements or more
    char where[64];
} Result;
static std::vector<Result> results;
static char where[64]; // the case that is tested: sizes, arrays that are moved off their alignment (one bit each)

static inline void begin_case(int N, int C, int moved) {
    snprintf(where, sizeof where, "%d x %d, moved %x", N, C, moved);
}

static inline void add_result(const char* name, double worst, double norm, size_t n) {
    Result* r = NULL;
    for (Result& old : results) {
        if (strcmp(old.name, name) == 0) r = &old;
    }
    if (!r) results.push_back({name, 0, -1, 0, ""}), r = &results.back();
    r->cases++;
    if (norm > r->norm && n >= 100) r->norm = norm;
    if (worst > r->worst) r->worst = worst, memcpy(r->where, where, sizeof where);
}

static inline void print_results() {
    for (const Result& r : results)
        check(r.worst <= 1, "%-5s %-40s %3d cases: %.2f of the bound at %s; norm %.1e", floatX_name, r.name, r.cases,
              r.worst, r.where, r.norm);
}

// Element i may be off by U |want[i]| if it is `rounded`, and by error[i].
static inline void compare(const char* name, const Floats& got, const Floats& want, bool rounded, const Floats& error) {
    const double least = rounded && U == 0x1p-11 ? 0x1p-25 : 1e-37; // half the smallest number of fp16
    double worst = got.size() == want.size() ? 0 : INFINITY;
    for (size_t i = 0; i < want.size() && i < got.size(); i++) {
        const double bound = (rounded ? U : 0) * fabs((double)want[i]) + error[i] + least;
        const bool overflow = rounded && fabsf(got[i]) == INFINITY && got[i] == (float)(floatX)want[i];
        const double ratio = overflow ? 0 : fabs((double)got[i] - want[i]) / bound;
        if (!(ratio <= worst)) worst = ratio == ratio ? ratio : INFINITY;
    }
    add_result(name, worst, norm_error(got, want), want.size());
}
// The same with an error of `error` times the largest element, for all.
static inline void compare(const char* name, const Floats& got, const Floats& want, bool rounded, double error) {
    float largest = 0;
    for (float w : want) largest = fmaxf(largest, fabsf(w));
    compare(name, got, want, rounded, Floats(want.size(), (float)(error * largest)));
}
static inline void compare_same(const char* name, const Floats& got, const Floats& want) {
    bool same = got.size() == want.size();
    for (size_t i = 0; i < want.size() && same; i++) same = got[i] == want[i];
    add_result(name, same ? 0 : INFINITY, norm_error(got, want), want.size());
}

// 1 if array i is to be moved.
static inline int bit(int moved, int i) { return moved >> i & 1; }

#endif
