/*
floatx.h: floatX on CPU cores, the type of parameters and activations: float32, or bf16 (make PRECISION=bf16). As on a
GPU, 16-bit numbers are for memory: kernels convert them with to_float, compute in float32, and round once, to nearest,
with to_floatX. In a build for float32 both do nothing.
*/
#pragma once

#include "../util/base.h"

#ifdef PRECISION_BF16
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "bf16: pairs of numbers are taken for words of a little-endian processor; build with PRECISION=fp32"
#endif
typedef struct {
    uint16_t bits; // the upper half of a float32; a struct, which no expression takes for an integer
} floatX;
static inline float to_float(floatX x) { return bf16_to_f32(x.bits); }
static inline floatX to_floatX(float x) {
    const floatX rounded = {f32_to_bf16(x)};
    return rounded;
}
#else
typedef float floatX;
static inline float to_float(floatX x) { return x; }
static inline floatX to_floatX(float x) { return x; }
#endif
