/*
Tests of kernels/fast_math.h against the C library's exp and tanh in double, whose own error (below 2^-51) does not show
in units in the last place (ulp) of a float. By default every 97th of the 2^32 floats (97 is odd, so every exponent and
every low bit is met) and all floats around the points where something changes; with the argument "all", every float.
*/
#include "test.h"
#include "../../../kernels/fast_math.h"

// Measured over all floats, rounded up. What explains them: exp rounds 1 + q (1/2), r and q (1/4 each, twice that where
// 1 + q < 1, of the smaller unit); tanh rounds m about three times, m + 2 and the quotient, near the bottom of a
// binade.
#define ULP_EXP 1.04
#define ULP_TANH 2.7

enum { CHUNK = 4096 };

typedef struct {
    double worst; // in ulp
    float at;
} Worst;

// |got - exact| in ulp of a float of that size. A NaN or an infinity has to be met exactly.
static double ulp_error(float got, double exact) {
    if (isnan(exact)) return isnan(got) ? 0 : INFINITY;
    if (isnan(got)) return INFINITY;
    if (isinf((float)exact) || isinf(got)) return (float)exact == got ? 0 : INFINITY;
    const int exponent = fabs(exact) < 0x1p-126 ? -126 : ilogb(exact);
    return fabs((double)got - exact) / ldexp(1, exponent - 23);
}

static void take_worst(Worst* w, float x, float got, double exact) {
    const double error = ulp_error(got, exact);
    if (error > w->worst) w->worst = error, w->at = x;
}

// The loops that are to be vectorised: gcc -fopt-info-vec names them.
static void exp_all(float* RESTRICT y, const float* RESTRICT x, int n) {
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = fast_exp(x[i]);
}
static void tanh_all(float* RESTRICT y, const float* RESTRICT x, int n) {
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = fast_tanh(x[i]);
}

// CHUNK floats whose bits are first, first + step, ...
static void test_chunk(uint32_t first, uint32_t step, Worst* e, Worst* t) {
    static float x[CHUNK], y[CHUNK], z[CHUNK];
    for (uint32_t i = 0; i < CHUNK; i++) x[i] = float_of_bits(first + i * step);
    exp_all(y, x, CHUNK);
    tanh_all(z, x, CHUNK);
    for (int i = 0; i < CHUNK; i++) {
        take_worst(e, x[i], y[i], exp((double)x[i]));
        take_worst(t, x[i], z[i], tanh((double)x[i]));
    }
}

// A vector has to give what a single element gives: the end of a loop may be done one by one.
static void test_same_bits(void) {
    float x[97], y[97], z[97];
    bool same = true;
    for (int i = 0; i < 97; i++) x[i] = 8.0f * (random_uniform(1, 2, (uint64_t)i) - 0.5f);
    exp_all(y, x, 97);
    tanh_all(z, x, 97);
    for (int i = 0; i < 97; i++) {
        float e, t;
        exp_all(&e, x + i, 1);
        tanh_all(&t, x + i, 1);
        same &= bits_of_float(e) == bits_of_float(y[i]) && bits_of_float(t) == bits_of_float(z[i]);
    }
    check(same, "one element and 97 in a loop give the same bits");
}

static void expf_all(float* RESTRICT y, const float* RESTRICT x, int n) {
    for (int i = 0; i < n; i++) y[i] = expf(x[i]);
}

// Nanoseconds an element: the best of some runs.
static double cost(void (*function)(float* RESTRICT y, const float* RESTRICT x, int n)) {
    static float x[CHUNK], y[CHUNK];
    void (*volatile call)(float* RESTRICT, const float* RESTRICT, int) = function; // not to be optimised away
    double best = INFINITY;
    for (int i = 0; i < CHUNK; i++) x[i] = 20.0f * (random_uniform(1, 1, (uint64_t)i) - 0.5f);
    for (int repeat = 0; repeat < 100; repeat++) {
        const double start = seconds_now();
        call(y, x, CHUNK);
        best = fmin(best, seconds_now() - start);
    }
    return best / CHUNK * 1e9;
}

int main(int argc, char** argv) {
    const uint32_t step = argc > 1 && strcmp(argv[1], "all") == 0 ? 1 : 97;
    Worst e = {0, 0}, t = {0, 0};
    for (uint64_t first = 0; first < (uint64_t)1 << 32; first += (uint64_t)CHUNK * step) {
        test_chunk((uint32_t)first, step, &e, &t);
    }
    // 0, the ends of the clamped ranges, the first and last finite and normal results, multiples of ln 2 / 2.
    const float points[] = {0,       1e-4f, 1,         10,        9.0109f, 88.72284f, 89,       -87.33654f,
                            -103.9f, -104,  0.346574f, 0.173287f, 0.5199f, INFINITY,  -INFINITY};
    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
        test_chunk(bits_of_float(points[i]) - CHUNK / 2, 1, &e, &t);
        test_chunk(bits_of_float(-points[i]) - CHUNK / 2, 1, &e, &t);
    }
    printf("worst at fast_exp(%a), fast_tanh(%a)\n", (double)e.at, (double)t.at);
    check_error("fast_exp, ulp", e.worst, ULP_EXP);
    check_error("fast_tanh, ulp", t.worst, ULP_TANH);
    check(fast_exp(-INFINITY) == 0 && fast_exp(INFINITY) == INFINITY && fast_exp(0) == 1, "exp: exact limits");
    check(fast_tanh(-INFINITY) == -1 && fast_tanh(INFINITY) == 1, "tanh: exact limits");
    check(isnan(fast_exp(NAN)) && isnan(fast_tanh(NAN)) && isnan(fast_exp(-NAN)), "NaN stays NaN");
    check(bits_of_float(fast_tanh(-0.0f)) == bits_of_float(-0.0f), "tanh -0 is -0");
    test_same_bits();
    printf("cost an element: fast_exp %.2f ns, fast_tanh %.2f ns, the C library's expf %.2f ns\n", cost(exp_all),
           cost(tanh_all), cost(expf_all));
    return test_end();
}
