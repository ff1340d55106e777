/*
norms.h: the table of norms, for the device that this program is built for. To add one, write a pair of kernels (as
layernorm.h and layernorm.cuh) and a row here.

    norms[kind].forward(&n, N, C, eps)                                 out = norm(x)
    norms[kind].residual_forward(&n, residual, branch, bias, ...)      x = residual + (branch + bias), out = norm(x)
    norms[kind].backward(&n, dx, d, dout, N, C)                        dx += the gradient of x; d.w, d.b += theirs;
                                                                       d.before, d.after += the sums of dx's rows
*/
#ifndef NORMS_H // not #pragma once: tests of kernels include this file for both devices (REFERENCE_KERNELS)
#define NORMS_H

#include "device.h"
#if defined(USE_CUDA) && !defined(REFERENCE_KERNELS)
#include "layernorm.cuh"
#else
#include "layernorm.h"
#endif

typedef struct {
    void (*forward)(const Norm* n, int N, int C, float eps);
    void (*residual_forward)(const Norm* n, const floatX* residual, const floatX* branch, const floatX* bias, int N,
                             int C, float eps);
    void (*backward)(const Norm* n, floatX* dx, NormGradients d, const floatX* dout, int N, int C);
} NormKernels;

// By NormKind (model.h).
static const NormKernels norms[] = {
    {layernorm_forward, residual_layernorm_forward, layernorm_backward},
    {rmsnorm_forward, residual_rmsnorm_forward, rmsnorm_backward},
};

#endif
