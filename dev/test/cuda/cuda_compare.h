/*
cuda_compare.h: errors over many cases of a function. Each case is compared element by element, and a line is printed
for each function: the largest error of all cases, in units of its bound, and the largest relative norm of an error.

Theory. A case states e, by how much an element may be off in float32: k roundings of terms of a size S: k U32 S, or
sqrt(k) U32 S where k is large and signs are random. If the kernel alone rounds its result to floatX (bf16), that adds U
|wanted|, and hides whatever is smaller.

In bf16 the reference rounds, too. Let numbers of bf16 at an element be h apart. Two float32 numbers that differ by t <=
e are rounded to the same one, unless one of the borders between, h apart, lies between them: the probability is t / h,
and the distance of what they are rounded to is t in the mean, whatever t is, and less than t + h. So

    no element is off by more than h + e: by one number of bf16 where e < h;
    the number of those that differ, counted in units of max(h, e), has a mean of at most L = sum of min(1, e / h), and
    a variance of at most that: the bound is L + 6 sqrt(L) + 4, over all cases of a function.

With e of some U32, e / h is about 2^-13: one element in some thousand may differ, and by rounding something in between
to bf16, a fault that changes nothing but the last digit, a kernel changes one in four.
*/
#pragma once

#include "cuda_test.h"

typedef std::vector<floatX> ShardedBuffer;

// Whether the reference rounds to 16 bits, as the kernels do.
static const bool BOTH_ROUND = sizeof(reference::floatX) == 2;

// What a reference gives, rounded as a kernel rounds it.
static inline HostBuffer rounded(const HostBuffer& x) {
    HostBuffer y(x.size());
    for (size_t i = 0; i < x.size(); i++) y[i] = reference::to_floatX((float)(floatX)reference::to_float(x[i]));
    return y;
}

// What both sides have rounded, in all cases of a function.
typedef struct {
    double worst;               // largest error in units of h + e
    double elements, different; // elements; those that differ, in units of max(h, e)
    double expected;            // L
} Rounded;

// What has been compared, by name.
typedef struct {
    char name[64];
    int cases;
    double worst, norm; // largest error in units of its bound; largest relative norm of a hundred elements or more
    char where[64];
    Rounded rounded;
} Result;
static std::vector<Result> results;
static char where[64]; // the case that is tested: sizes, arrays that are moved off their alignment (one bit each)

static inline void begin_case(int N, int C, int moved) {
    snprintf(where, sizeof where, "%d x %d, moved %x", N, C, moved);
}

static inline Result* result_of(const char* name) {
    for (Result& old : results) {
        if (strcmp(old.name, name) == 0) return &old;
    }
    Result r = {};
    snprintf(r.name, sizeof r.name, "%s", name);
    r.norm = -1;
    results.push_back(r);
    return &results.back();
}

static inline void add_result(const char* name, double worst, double norm, size_t n) {
    Result* r = result_of(name);
    r->cases++;
    if (norm > r->norm && n >= 100) r->norm = norm;
    if (worst > r->worst) r->worst = worst, memcpy(r->where, where, sizeof where);
}

static inline double most_different(const Rounded* r) { return r->expected + 6 * sqrt(r->expected) + 4; }

static inline void print_results() {
    for (const Result& r : results) {
        const double most = most_different(&r.rounded);
        char differ[80] = "";
        if (r.rounded.elements > 0)
            snprintf(differ, sizeof differ, "; %.0f of %.0f differ, bound %.0f", r.rounded.different,
                     r.rounded.elements, most);
        check(r.worst <= 1 && r.rounded.different <= most, "%-5s %-40s %3d cases: %.2f of the bound at %s; norm %.1e%s",
              floatX_name, r.name, r.cases, r.worst, r.where, r.norm, differ);
    }
}

// How far numbers of bf16 are apart at x.
static inline double spacing(float x) {
    return fmax((double)float_of_bits(bits_of_float(x) & 0x7f800000u) * 0x1p-7, 0x1p-133);
}

// Both sides have rounded to bf16; before that, element i may be off by error[i]. Returns the largest error.
static inline double add_rounded(Rounded* r, const Floats& got, const Floats& want, const Floats& error) {
    double worst = got.size() == want.size() ? 0 : INFINITY;
    for (size_t i = 0; i < want.size() && i < got.size(); i++) {
        const double h = spacing(want[i]), e = error[i], off = fabs((double)got[i] - want[i]);
        r->expected += fmin(1, e / h);
        if (got[i] == want[i]) continue; // infinities, too
        r->different += off / fmax(h, e);
        if (!(off / (h + e) <= worst)) worst = off == off ? off / (h + e) : INFINITY;
    }
    r->elements += (double)want.size();
    r->worst = fmax(r->worst, worst);
    return worst;
}

// Element i may be off by error[i] in float32. `rounded`: then it becomes floatX.
static inline void compare(const char* name, const Floats& got, const Floats& want, bool rounded, const Floats& error) {
    if (rounded && BOTH_ROUND) {
        const double off = add_rounded(&result_of(name)->rounded, got, want, error);
        add_result(name, off, norm_error(got, want), want.size());
        return;
    }
    double worst = got.size() == want.size() ? 0 : INFINITY;
    for (size_t i = 0; i < want.size() && i < got.size(); i++) {
        const double bound = (rounded ? U : 0) * fabs((double)want[i]) + error[i] + 1e-37;
        const double ratio = fabs((double)got[i] - want[i]) / bound;
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
