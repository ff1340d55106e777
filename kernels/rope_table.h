/*
rope_table.h: the angles of rope.h, computed on the host for CPU and GPU alike: the same bits on both.
*/
#ifndef ROPE_TABLE_H
#define ROPE_TABLE_H

#include "../base.h"

// table (T, HS): for each position t, HS/2 cosines of t theta^(-2i/HS) and then HS/2 sines; in float64, rounded once.
static inline void rope_table_fill(float* table, int T, int HS, double theta) {
    const int half = HS / 2;
    for (int i = 0; i < half; i++) {
        const double frequency = pow(theta, -2.0 * i / HS);
        for (int t = 0; t < T; t++) {
            table[(int64_t)t * HS + i] = (float)cos(t * frequency);
            table[(int64_t)t * HS + half + i] = (float)sin(t * frequency);
        }
    }
}

#endif
