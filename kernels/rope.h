/*
rope.h: rotary position embedding (Su et al. 2021), as in Llama; floatX, in place.

Element i < HS/2 of a head and element i + HS/2 are a point of the plane (the pairing of Hugging Face's weights; the
paper pairs neighbours). At position t the point is rotated by the angle a = t theta^(-2i/HS):

    y_i = x_i cos a - x_{i + HS/2} sin a,     y_{i + HS/2} = x_{i + HS/2} cos a + x_i sin a

so that the product of a query at t and a key at s depends on t - s only. A rotation is orthogonal: the gradient at x is
the gradient at y, rotated back by the same angle.

HS is even. The table (T, HS) holds, for each t, HS/2 cosines and then HS/2 sines.
*/
#pragma once

#include "floatx.h"
#include "../util/rope_table.h"

// table (T, HS), in device memory, which is host memory here.
static inline void rope_table(float* table, int T, int HS, double theta, const RopeScaling* scaling) {
    rope_table_fill(table, T, HS, theta, scaling);
}

// One head, x and y its halves. Inlined: with a constant `half` of 8 the loop is one vector, not a remainder.
__attribute__((always_inline)) static inline void rope_rotate_head(floatX* RESTRICT x, floatX* RESTRICT y,
                                                                   const float* cosine, const float* sine,
                                                                   float direction, int half) {
#pragma omp simd
    for (int i = 0; i < half; i++) {
        const float s = direction * sine[i], x0 = to_float(x[i]), y0 = to_float(y[i]);
        x[i] = to_floatX(x0 * cosine[i] - y0 * s);
        y[i] = to_floatX(y0 * cosine[i] + x0 * s);
    }
}

// Rotates the first `heads` heads of HS in each of the B T rows (`stride` numbers apart) by `direction` (1 or -1) times
// a.
static inline void rope_rotate(floatX* RESTRICT qkv, const float* RESTRICT cos_sin, float direction, int B, int T,
                               int heads, int HS, int stride) {
    const int half = HS / 2;
    const int64_t N = (int64_t)B * T;
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < N; n++) {
        const float *cosine = cos_sin + n % T * HS, *sine = cosine + half;
        for (int h = 0; h < heads; h++) {
            floatX *x = qkv + n * stride + (int64_t)h * HS, *y = x + half;
            if (half == 8)
                rope_rotate_head(x, y, cosine, sine, direction, 8);
            else
                rope_rotate_head(x, y, cosine, sine, direction, half);
        }
    }
}

// qkv (B T, stride): the first `heads` heads of HS of each row (queries, then keys) are rotated in place.
static inline void rope_forward(floatX* qkv, const float* cos_sin, int B, int T, int heads, int HS, int stride) {
    rope_rotate(qkv, cos_sin, 1.0f, B, T, heads, HS, stride);
}

// dqkv (B T, stride): turns the gradient of the rotated heads into the gradient of the heads, in place.
static inline void rope_backward(floatX* dqkv, const float* cos_sin, int B, int T, int heads, int HS, int stride) {
    rope_rotate(dqkv, cos_sin, -1.0f, B, T, heads, HS, stride);
}
