/*
Tests of kernels/fast_math.h against the C library's exp in double, whose own error (below 2^-51) does not show in units
in the last place (ulp) of a float. By default every 97th of the 2^32 floats (97 is odd, so every exponent and every low
bit is met) and all floats around the points where something changes; with the argument "all", every float.
*/
#include "test.h"
#include "../../../kernels/fast_math.h"

// Measured over all floats, rounded up: exp rounds 1 + q (1/2), r and q (1/4 each, twice that where 1 + q < 1, of the
// smaller unit).
#define ULP_EXP 1.04

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
    if (error <= w->worst) return;
    w->worst = error;
    w->at = x;
}

// The loop that is to be vectorised: gcc -fopt-info-vec names it.
static void exp_all(float* RESTRICT y, const float* RESTRICT x, int n) {
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = fast_exp(x[i]);
}
// CHUNK floats whose bits are first, first + step, ...
static void test_chunk(uint32_t first, uint32_t step, Worst* worst) {
    static float x[CHUNK], y[CHUNK];
    for (uint32_t i = 0; i < CHUNK; i++) x[i] = float_of_bits(first + i * step);
    exp_all(y, x, CHUNK);
    for (int i = 0; i < CHUNK; i++) take_worst(worst, x[i], y[i], exp((double)x[i]));
}

// A vector has to give what a single element gives: the end of a loop may be done one by one.
static void test_same_bits(void) {
    float x[97], y[97];
    bool same = true;
    for (int i = 0; i < 97; i++) x[i] = 8.0f * (random_uniform(1, 2, (uint64_t)i) - 0.5f);
    exp_all(y, x, 97);
    for (int i = 0; i < 97; i++) {
        float e;
        exp_all(&e, x + i, 1);
        same &= bits_of_float(e) == bits_of_float(y[i]);
    }
    check(same, "one element and 97 in a loop give the same bits");
}

int main(int argc, char** argv) {
    const uint32_t step = argc > 1 && strcmp(argv[1], "all") == 0 ? 1 : 97;
    Worst worst = {0, 0};
    for (uint64_t first = 0; first < (uint64_t)1 << 32; first += (uint64_t)CHUNK * step) {
        test_chunk((uint32_t)first, step, &worst);
    }
    // 0, the ends of the clamped ranges, the first and last finite and normal results, multiples of ln 2 / 2.
    const float points[] = {0,    1e-4f,     1,         88.72284f, 89,       -87.33654f, -103.9f,
                            -104, 0.346574f, 0.173287f, 0.5199f,   INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
        test_chunk(bits_of_float(points[i]) - CHUNK / 2, 1, &worst);
        test_chunk(bits_of_float(-points[i]) - CHUNK / 2, 1, &worst);
    }
    printf("worst at fast_exp(%a)\n", (double)worst.at);
    check_error("fast_exp, ulp", worst.worst, ULP_EXP);
    check(fast_exp(-INFINITY) == 0 && fast_exp(INFINITY) == INFINITY && fast_exp(0) == 1, "exp: exact limits");
    check(isnan(fast_exp(NAN)) && isnan(fast_exp(-NAN)), "NaN stays NaN");
    test_same_bits();
    return test_end();
}
