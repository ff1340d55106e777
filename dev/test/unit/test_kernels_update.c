/*
Tests of the values of the kernels of the update: optimizers and their stochastic rounding, the norm of the gradient,
asynchronous data parallelism. Each is compared with its formula, written again here in float64.
*/
#include "kernels_fixture.h"
#include "../../../kernels/adamw.h"
#include "../../../kernels/async_dp.h"
#include "../../../kernels/checksum.h"
#include "../../../kernels/global_norm.h"

// Parameters, and their float32 values: the master weights or, without these, the parameters themselves.
typedef struct {
    floatX* params;
    float *master, *values;
} Weights;
static const bool has_master = sizeof(floatX) < sizeof(float);

static Weights weights_new(int64_t n) {
    float* all = floats(n, 1);
    const Weights w = {has_master ? poisoned_values(n) : (floatX*)(void*)all, has_master ? all : NULL, all};
    return w;
}

// bf16 parameters are what adamw_round makes of the master weights; float32 ones adamw_round leaves as they are.
static void check_rounded(const char* what, const Weights* w, int64_t n, int64_t step, const TensorRange* range) {
    floatX* again = has_master ? poisoned_values(n) : copied_values(w->params, n);
    adamw_round(again, w->values, n, step, range->key, range->first);
    check(same_values(again, w->params, n), "%s, 1 x %lld: the parameters are those of adamw_round", what,
          (long long)n);
}

// ----------------------------------------------------------------------------------------------------------------
// AdamW: ten steps beside PyTorch's formula in float64. S grows step by step: m and v as sums of absolute terms with 3
// and 4 roundings a step (at most `steps` times); p with 2 roundings of |p| and, of the step, m's and half of v's, and
// 6 more.

static void test_adamw(int64_t n, float weight_decay, float grad_scale, int64_t first_step) {
    enum { STEPS = 10 };
    const float lr = 1e-2f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    const Weights w = weights_new(n);
    const TensorRange range = {0, 0, n, 5, 17, 0, true};
    float *p = w.values, *m = floats(n, 0), *v = floats(n, 0), *g = floats(n, 0);
    double *m_abs = doubles(n), *m64 = doubles(n);
    Wanted wp = wanted_new(n), wm = wanted_new(n), wv = wanted_new(n);
    for (int64_t i = 0; i < n; i++) want(&wp, i, p[i], 0);
    for (int64_t step = first_step; step < first_step + STEPS; step++) {
        for (int64_t i = 0; i < n; i++) {
            g[i] = 2 * random_uniform(2, (uint64_t)step, (uint64_t)i) - 1;
            if (i % 5 == 3) g[i] *= 1e-6f;
            if (i % 7 == 6) g[i] = 0; // never a gradient: only decay
        }
        const double c1 = 1 - pow(beta1, (double)step), c2 = 1 - pow(beta2, (double)step);
        for (int64_t i = 0; i < n; i++) {
            const double gi = (double)grad_scale * g[i];
            m64[i] = beta1 * m64[i] + (1 - (double)beta1) * gi;
            m_abs[i] = beta1 * m_abs[i] + (1 - (double)beta1) * fabs(gi);
            const double vi = beta2 * wv.value[i] + (1 - (double)beta2) * gi * gi, denominator = sqrt(vi / c2) + eps;
            const double decayed = wp.value[i] * (1 - (double)lr * weight_decay),
                         move = lr * (m64[i] / c1) / denominator;
            want(&wm, i, m64[i], m_abs[i]);
            want(&wv, i, vi, vi + TINY);
            want(&wp, i, decayed - move,
                 wp.size[i] + (2 * fabs(decayed) + (5 * STEPS + 6) * lr * m_abs[i] / c1 / denominator));
        }
        const OptimizerStep s = {lr, beta1, beta2, eps, weight_decay, step, grad_scale};
        adamw_update(w.params, w.master, g, m, v, &range, 1, &s);
    }
    check_rounded("adamw_update", &w, n, first_step + STEPS - 1, &range);
    check_roundings("adamw_update: p after ten steps", 1, (int)n, p, &wp, 1);
    check_roundings("adamw_update: m", 1, (int)n, m, &wm, 3 * STEPS);
    check_roundings("adamw_update: v", 1, (int)n, v, &wv, 4 * STEPS);
    release(&memory);
}

// ---- Stochastic rounding, of bf16 -------------------------------------------------------------------------------

// The neighbours of x in bf16, |low| <= |x| <= |high|, and how far x is from the lower one to the higher.
typedef struct {
    double low, high, fraction;
} Neighbours;
static Neighbours neighbours(float x) {
    int e;
    frexp((double)x, &e);
    const double step = ldexp(1, e - 8 > -133 ? e - 8 : -133), low = step * trunc((double)x / step);
    const Neighbours near = {low, low + copysign(step, (double)x), fabs((double)x - low) / step};
    return near;
}

// To a neighbour: to the higher one if the fraction and the random bits of the element carry.
static void test_rounding(int n, float size, uint64_t first, uint64_t key, int64_t step) {
    const float* x = floats(n, size);
    floatX* p = poisoned_values(n);
    adamw_round(p, x, n, step, key, first);
    int wrong = 0;
    double bias = 0;
    for (int i = 0; i < n; i++) {
        const Neighbours near = neighbours(x[i]);
        const uint64_t at = first + (uint64_t)i;
        const uint32_t random = philox(key, (uint64_t)step, at / 4).word[at % 4] & 0xffffu;
        const bool up = near.fraction + random * 0x1p-16 >= 1;
        wrong += (double)to_float(p[i]) != (up ? near.high : near.low);
        bias += (up ? 1 : 0) - near.fraction;
    }
    check(wrong == 0, "adamw_round: numbers to %g go to a neighbour by the bits of their element: %d do not",
          (double)size, wrong);
    // A fraction f has the variance f (1 - f), 1/6 in the mean over f.
    check_error("  the mean is the number itself: bias in steps", fabs(bias / n), 4 / sqrt(6.0 * n));
    release(&memory);
}

// Of n draws, one number goes up as often as it should: the deviation is sqrt(n f (1 - f)), of which 4 are allowed.
static void test_rounding_mean(float x, int n) {
    float* numbers = floats(n, 0);
    floatX* p = poisoned_values(n);
    const Neighbours near = neighbours(x);
    double ups = 0;
    bool neighbour = true;
    for (int i = 0; i < n; i++) numbers[i] = x;
    adamw_round(p, numbers, n, 9, 4, 3);
    for (int i = 0; i < n; i++) {
        const bool up = (double)to_float(p[i]) == near.high;
        neighbour = neighbour && (up || (double)to_float(p[i]) == near.low);
        ups += up ? 1 : 0;
    }
    char line[96];
    snprintf(line, sizeof line, "adamw_round: %g goes up in %.4f of %d draws", (double)x, ups / n, n);
    check_error(line, fabs(ups / n - near.fraction), 4 * sqrt(near.fraction * (1 - near.fraction) / n));
    check(neighbour, "adamw_round: %g goes to its two neighbours only", (double)x);
    release(&memory);
}

// The bits of an element are those of its place in the tensor: any cut gives the same.
static void test_rounding_cuts(uint64_t first) {
    const int n = 2 * UPDATE_BLOCK + 1201;
    const float* x = floats(n, 1);
    floatX *whole = poisoned_values(n), *parts = poisoned_values(n), *other = poisoned_values(n);
    bool cuts = true;
    adamw_round(whole, x, n, 3, 17, first);
    for (int length = 1; length < 2 * UPDATE_BLOCK; length = 2 * length + length % 3) {
        for (int at = 0; at < n; at += length)
            adamw_round(parts + at, x + at, min_i64(length, n - at), 3, 17, first + (uint64_t)at);
        cuts = cuts && same_values(parts, whole, n);
        for (int i = 0; i < n; i++) parts[i] = to_floatX(NAN);
    }
    check(cuts, "adamw_round, from place %llu: the same bits in slices of any length", (unsigned long long)first);
    bool differ = true;
    adamw_round(other, x, n, 3, 17 + (1ULL << 40), first);
    differ = differ && !same_values(other, whole, n);
    adamw_round(other, x, n, 3, 17, first + (1ULL << 40));
    differ = differ && !same_values(other, whole, n);
    adamw_round(other, x, n, 4, 17, first);
    check(differ && !same_values(other, whole, n), "adamw_round: other bits for another key, place or step");
    release(&memory);
}

static void test_rounding_special(void) {
    enum { EXACT = 65536, N = EXACT + 60 };
    const float special[] = {INFINITY, -INFINITY, NAN, 0x1.fffffep127f, -0x1.fffffep127f, 0x1.fefffep127f};
    const float largest = 0x1.fep127f;
    float* x = floats(N, 0);
    floatX* p = poisoned_values(N);
    for (int i = 0; i < N; i++) x[i] = i < EXACT ? bf16_to_f32((uint16_t)i) : special[i % 6];
    adamw_round(p, x, N, 1, 5, 0);
    int changed = 0;
    bool finite = true, others = true;
    for (int i = 0; i < N; i++) {
        const float y = to_float(p[i]);
        if (!isfinite(x[i]))
            others = others && (isnan(x[i]) ? isnan(y) : y == x[i]);
        else if (i < EXACT)
            changed += bits_of_float(y) != bits_of_float(x[i]);
        else
            finite = finite && fabsf(y) <= largest && (fabsf(x[i]) < largest || y == copysignf(largest, x[i]));
    }
    check(changed == 0, "adamw_round: of all numbers of bf16, %d do not stay what they are, with their sign", changed);
    check(finite && others, "adamw_round: finite numbers stay finite, infinities infinite, and NaN is NaN");
    release(&memory);
}

static void test_all_rounding(void) {
    if (!has_master) return;
    test_rounding(200000, 1, 0, 17, 3);
    test_rounding(2001, 1e-5f, 3, 99, 123456);
    test_rounding(2001, 100, (1ULL << 33) + 2, ~0ULL, 1);
    test_rounding(2001, 1e-38f, 1, 1, 1); // below 2^-126, too
    test_rounding_mean(1.0f + 0x1p-9f, 1 << 20);
    test_rounding_mean(-3.0f * (1.0f + 0x1p-12f), 1 << 20);
    test_rounding_mean(1.0f + 0x1p-23f, 1 << 24); // one draw in 65536 goes up
    for (uint64_t first = 0; first < 5; first++) test_rounding_cuts(first + (first << 32));
    test_rounding_special();
}

// ---- Norm -------------------------------------------------------------------------------------------------------

static void test_sum_of_squares(int64_t n) {
    const TensorRange range = whole_range(n);
    float* g = floats(n, 1);
    long double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (long double)g[i] * g[i];
    // A term passes 2^14 / 16 + 16 additions in its block and then one for each block after it.
    const double k = (1 << 14) / 16 + 16 + (double)n / (1 << 14);
    char line[96];
    snprintf(line, sizeof line, "sum_of_squares, n = %lld: roundings of float64", (long long)n);
    double got = 0;
    sum_of_squares(&got, g, &range, 1);
    const double error = (double)fabsl(got - sum) / 0x1p-53;
    check_error(line, n > 0 ? error / (double)sum : error, k);
    for (int64_t i = 0; i < n; i++) g[i] = (float)(i % 7) * 0x1p40f; // whole numbers: the sum is exact in any order
    int64_t whole = 0;
    for (int64_t i = 0; i < n; i++) whole += (i % 7) * (i % 7);
    got = 3 * 0x1p80;
    sum_of_squares(&got, g, &range, 1);
    check(got == (double)(whole + 3) * 0x1p80, "sum_of_squares, n = %lld: every element once, added", (long long)n);
    release(&memory);
}

// ----------------------------------------------------------------------------------------------------------------
// SGD, and the kernels of replicas that do not wait. Here S is the error itself in units of u, to first order, carried
// from step to step; so k is 1.

static void test_sgd(int64_t n, float weight_decay, float grad_scale) {
    enum { STEPS = 10 };
    const float lr = 1e-2f, momentum = 0.9f;
    const Weights w = weights_new(n);
    const TensorRange range = {0, 0, n, 5, 17, 0, true};
    float *p = w.values, *m = floats(n, 0), *g = floats(n, 0);
    Wanted wp = wanted_new(n), wm = wanted_new(n);
    for (int64_t i = 0; i < n; i++) want(&wp, i, p[i], 0);
    for (int64_t step = 1; step <= STEPS; step++) {
        for (int64_t i = 0; i < n; i++) {
            g[i] = i % 7 == 6 ? 0 : 2 * random_uniform(2, (uint64_t)step, (uint64_t)i) - 1;
            const double kept = (double)momentum * wm.value[i], own = (double)grad_scale * g[i];
            const double decay = (double)weight_decay * wp.value[i], mi = kept + (own + decay),
                         pi = wp.value[i] - lr * mi;
            const double m_error = momentum * wm.size[i] + weight_decay * wp.size[i] + fabs(kept) + fabs(own) +
                                   fabs(decay) + fabs(own + decay) + fabs(mi);
            want(&wm, i, mi, m_error);
            want(&wp, i, pi, wp.size[i] + lr * (m_error + fabs(mi)) + fabs(pi));
        }
        const OptimizerStep s = {lr, momentum, 0, 0, weight_decay, step, grad_scale};
        sgd_update(w.params, w.master, g, m, NULL, &range, 1, &s);
    }
    check_rounded("sgd_update", &w, n, STEPS, &range);
    check_roundings("sgd_update: p after ten steps", 1, (int)n, p, &wp, 1);
    check_roundings("sgd_update: m", 1, (int)n, m, &wm, 1);
    release(&memory);
}

static void test_sums(int n) {
    float *a = floats(n, 1), *b = floats(n, 1), *out = poisoned(n), *own = copied(a, n);
    Wanted w = wanted_new(n);
    for (int i = 0; i < n; i++) want(&w, i, (double)a[i] - b[i], fabs((double)a[i] - b[i]));
    difference(out, a, b, n);
    check_roundings("difference", 1, n, out, &w, 1);
    float *left = copied(a, n), *right = copied(b, n);
    difference(left, left, b, n);
    difference(right, a, right, n);
    check(same(left, out, n) && same(right, out, n), "difference, 1 x %d: in place", n);

    for (int i = 0; i < n; i++) {
        const double x = (double)0.37f * b[i];
        want(&w, i, a[i] + x, fabs(x) + fabs(a[i] + x));
    }
    add_scaled(own, b, 0.37f, n);
    check_roundings("add_scaled", 1, n, own, &w, 1);
    release(&memory);
}

static void test_delay(int n) {
    const float lambda = 0.7f;
    float *g = floats(n, 1), *to = floats(n, 1), *from = floats(n, 1);
    Wanted w = wanted_new(n);
    long double sum = 0;
    for (int i = 0; i < n; i++) {
        const double d = (double)g[i] * g[i] * ((double)to[i] - from[i]), term = lambda * d;
        sum += (long double)d * d;
        want(&w, i, g[i] + term, 4 * fabs(term) + fabs(g[i] + term));
    }
    // In float64: a term has up to 5 roundings, and additions as in sum_of_squares.
    double got = 0;
    char line[96];
    snprintf(line, sizeof line, "delay_squares, n = %d: roundings of float64", n);
    delay_squares(&got, g, to, from, n);
    const double error = (double)fabsl(got - sum) / 0x1p-53;
    check_error(line, n > 0 ? error / (double)sum : error, 5 + (1 << 14) / 16 + 16 + (double)n / (1 << 14));
    delay_compensate(g, to, from, lambda, n);
    check_roundings("delay_compensate", 1, n, g, &w, 1);
    int64_t whole = 3;
    for (int i = 0; i < n; i++) { // whole numbers: the sum is exact in any order
        g[i] = (float)(i % 7);
        to[i] = (float)(i % 5);
        from[i] = (float)(i % 11);
        const int64_t d = (int64_t)(i % 7) * (i % 7) * (i % 5 - i % 11);
        whole += d * d;
    }
    got = 3;
    delay_squares(&got, g, to, from, n);
    check(got == (double)whole, "delay_squares, n = %d: every element once, added", n);
    release(&memory);
}

// Wanted of an outer step.
static void want_outer(Wanted* base, Wanted* velocity, int64_t i, double sum, float factor, float lr, float momentum) {
    const double D = factor * sum, D_error = fabs(D), kept = momentum * velocity->value[i];
    const double v = kept + D, v_error = momentum * velocity->size[i] + fabs(kept) + D_error + fabs(v);
    const double ahead = momentum * v, step = D + ahead, b = base->value[i] - lr * step;
    const double step_error = D_error + momentum * v_error + fabs(ahead) + 2 * fabs(step);
    want(velocity, i, v, v_error);
    want(base, i, b, base->size[i] + lr * step_error + fabs(b));
}

static void test_outer(int n) {
    enum { STEPS = 5 };
    const float factor = 1.0f / 3, lr = 0.7f, momentum = 0.9f;
    float *base = floats(n, 1), *velocity = floats(n, 0), *sum = floats(n, 0);
    Wanted wb = wanted_new(n), wv = wanted_new(n);
    for (int i = 0; i < n; i++) want(&wb, i, base[i], 0);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < n; i++) {
            sum[i] = 2 * random_uniform(3, (uint64_t)step, (uint64_t)i) - 1;
            want_outer(&wb, &wv, i, sum[i], factor, lr, momentum);
        }
        outer_update(base, velocity, sum, factor, lr, momentum, n);
    }
    check_roundings("outer_update: base after five steps", 1, n, base, &wb, 1);
    check_roundings("outer_update: velocity", 1, n, velocity, &wv, 1);
    release(&memory);
}

// The parts of a buffer add up to the checksum of the whole, where they begin at a word of four bytes.
static void test_checksum(void) {
    enum { BYTES = 300004 };
    const float* x = floats(BYTES / 4, 1);
    int wrong = 0;
    for (int64_t cut = 0; cut <= BYTES; cut += 4 * 7501) {
        uint64_t sum = 7;
        checksum_add(&sum, x + cut / 4, BYTES - cut, 5 + cut / 4);
        checksum_add(&sum, x, cut, 5);
        wrong += sum != 7 + checksum_of(x, BYTES, 5);
    }
    check(wrong == 0, "checksum_add: %d of the sums of two parts are wrong", wrong);
    release(&memory);
}

int main(void) {
    test_checksum();
    test_adamw(1003, 0.1f, 1, 1);
    test_adamw(17, 0, 0.25f, 1);
    test_adamw(1, 0.1f, 1, 1000000);
    test_all_rounding();
    const int64_t counts[5] = {0, 1, 33, (1 << 14) + 5, (1 << 24) + 12345};
    for (int i = 0; i < 5; i++) test_sum_of_squares(counts[i]);
    test_sgd(1003, 0.1f, 1);
    test_sgd(17, 0, 0.25f);
    const int lengths[6] = {0, 1, 63, 64, 65, 1000003};
    for (int i = 0; i < 6; i++) {
        test_sums(lengths[i]);
        test_delay(lengths[i]);
        test_outer(lengths[i]);
    }
    return test_end();
}
