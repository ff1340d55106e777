/*
activations.h: the table of the mlp's activation functions, for the device that this program is built for. To add one,
write a pair of kernels (as gelu.h and gelu.cuh) and a row here.

    activations[kind].forward(out, fc, N, F)            out (N, F) from fc (N, F), or from (N, 2 F) where it is gated
    activations[kind].backward(dfc, dout, fc, N, F)     dfc, of fc's shape, from dout (N, F)

A device that lacks the kernels has a row whose forward is NULL: the trainer refuses the model there.

linear_forward and linear_backward_input, an optimisation, are matrix products fused with them; NULL: not fused.
*/
#ifndef ACTIVATIONS_H // not #pragma once: tests of kernels include this file for both devices (REFERENCE_KERNELS)
#define ACTIVATIONS_H

#include "device.h"
#if defined(USE_CUDA) && !defined(REFERENCE_KERNELS)
#include "gelu.cuh"
#include "matmul.cuh"
#include "swiglu.cuh"
#else
#include "gelu.h"
#include "swiglu.h"
#endif

typedef struct {
    const char* name;
    bool gated; // fc is the gate and the up projection, side by side
    void (*forward)(floatX* out, const floatX* fc, int N, int F);
    void (*backward)(floatX* dfc, const floatX* dout, const floatX* fc, int N, int F);
    // fc = x w^T + bias and out; x (N, C), w (F, C), bias (F) or NULL.
    void (*linear_forward)(floatX* out, floatX* fc, const floatX* x, const floatX* w, const floatX* bias, int N, int C,
                           int F);
    // dfc from dout (N, C) of the next product, w (C, F); dact (N, F) is scratch.
    void (*linear_backward_input)(floatX* dfc, floatX* dact, const floatX* dout, const floatX* w, const floatX* fc,
                                  int N, int F, int C);
} Activation;

// In the order of ActivationKind (model.h).
static const Activation activations[] = {
#if defined(USE_CUDA) && !defined(REFERENCE_KERNELS)
    {"gelu", false, gelu_forward, gelu_backward, linear_gelu_forward, linear_gelu_backward_input},
#else
    {"gelu", false, gelu_forward, gelu_backward, NULL, NULL},
#endif
    {"swiglu", true, swiglu_forward, swiglu_backward, NULL, NULL},
};
enum { ACTIVATIONS = sizeof activations / sizeof activations[0] };

#endif
