/*
Tests of kernels/vec.h against the C library's exp and tanh in double, whose own error (below 2^-52) does not show at
float precision. By default every 97th of the 2^32 floats (97 is prime, so all exponents and all kinds of significand are met),
plus all floats around the places where something changes; with the argument "all", every float.
*/
#include "test.h"
#include "../../kernels/vec.h"

typedef float (*FloatFunction)(float);
typedef double (*DoubleFunction)(double);

// The distance of got from the exact value, in units in the last place of a float of that size.
static double ulp_error(float got, double exact) {
    if (isnan(exact)) return isnan(got) ? 0 : INFINITY;
    if ((float)exact == got) return fabs(exact) <= 0x1.fffffep127 ? fabs((double)got - exact) /
        ldexp(1, (exact == 0 || fabs(exact) < 0x1p-126 ? -126 : ilogb(exact)) - 23) : 0; // also: both infinite
    if (isinf(got)) got = copysignf(0x1p127f, got), exact -= copysign(0x1p127, exact); // as if the next float was 2^128
    const int exponent = fabs(exact) < 0x1p-126 ? -126 : ilogb(exact);
    return fabs((double)got - exact) / ldexp(1, exponent - 23);
}
