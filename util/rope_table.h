/*
util/rope_table.h: the angles of kernels/rope.h, computed on the host for both CPU and GPU: the same bits.

Models extended from short to long texts reduce their low frequencies. In Llama 3.1 (2024) a frequency f stays where a
period is less than original / high positions; it becomes f / factor where it is more than original / low; between the
two r f + (1 - r) f / factor, where r falls from 1 to 0 with the periods in `original` positions:
r = (original f / 2 pi - low) / (high - low).
*/
#pragma once

#include "base.h"

// All 0: no scaling.
typedef struct {
    double factor, low, high, original;
} RopeScaling;

static inline double rope_scaled(double frequency, const RopeScaling* r) {
    if (r->factor == 0) return frequency;
    const double turns = r->original * frequency / (2 * 3.14159265358979323846);
    const double keep = fmin(1, fmax(0, (turns - r->low) / (r->high - r->low)));
    return keep * frequency + (1 - keep) * frequency / r->factor;
}

// table (T, HS): for each position t, HS/2 cosines of t theta^(-2i/HS), scaled (NULL: not), and then HS/2 sines; in
// float64, rounded once.
static inline void rope_table_fill(float* table, int T, int HS, double theta, const RopeScaling* scaling) {
    const int half = HS / 2;
    for (int i = 0; i < half; i++) {
        const double plain = pow(theta, -2.0 * i / HS), frequency = scaling ? rope_scaled(plain, scaling) : plain;
        for (int t = 0; t < T; t++) {
            table[(int64_t)t * HS + i] = (float)cos(t * frequency);
            table[(int64_t)t * HS + half + i] = (float)sin(t * frequency);
        }
    }
}
