/*
norms.h: the table of norms, for the device that this program is built for. To add one, write a pair of kernels (as
layernorm.h and layernorm.cuh), their functions of a Norm, and a row here.

    norms[kind].forward(&n, N, C, eps)                                 out = norm(x)
    norms[kind].residual_forward(&n, residual, branch, bias, ...)      x = residual + (branch + bias), out = norm(x)
    norms[kind].backward(&n, dx, dw, db, dout, N, C)                   dx += the gradient of x; dw, db (C) accumulate
*/
#pragma once

#include "device.h"
#ifdef USE_CUDA
#include "layernorm.cuh"
#else
#include "layernorm.h"
#endif

// The norm of rows x (N, C): its outputs and its parameters. RMSNorm uses no mean, and has no b: NULL.
typedef struct {
    floatX *x, *out;     // (N, C)
    float *mean, *rstd;  // (N): for the backward pass
    const floatX *w, *b; // (C)
} Norm;

typedef struct {
    void (*forward)(const Norm* n, int N, int C, float eps);
    void (*residual_forward)(const Norm* n, const floatX* residual, const floatX* branch, const floatX* bias, int N,
                             int C, float eps);
    void (*backward)(const Norm* n, floatX* dx, float* dw, float* db, const floatX* dout, int N, int C);
} NormKernels;

static inline void layernorm_rows(const Norm* n, int N, int C, float eps) {
    layernorm_forward(n->out, n->mean, n->rstd, n->x, n->w, n->b, N, C, eps);
}
static inline void layernorm_residual_rows(const Norm* n, const floatX* residual, const floatX* branch,
                                           const floatX* bias, int N, int C, float eps) {
    residual_layernorm_forward(n->x, n->out, n->mean, n->rstd, residual, branch, bias, n->w, n->b, N, C, eps);
}
static inline void layernorm_rows_backward(const Norm* n, floatX* dx, float* dw, float* db, const floatX* dout, int N,
                                           int C) {
    layernorm_backward(dx, dw, db, dout, n->x, n->w, n->mean, n->rstd, N, C);
}

static inline void rmsnorm_rows(const Norm* n, int N, int C, float eps) {
    rmsnorm_forward(n->out, n->rstd, n->x, n->w, N, C, eps);
}
static inline void rmsnorm_residual_rows(const Norm* n, const floatX* residual, const floatX* branch,
                                         const floatX* bias, int N, int C, float eps) {
    residual_rmsnorm_forward(n->x, n->out, n->rstd, residual, branch, bias, n->w, N, C, eps);
}
static inline void rmsnorm_rows_backward(const Norm* n, floatX* dx, float* dw, float* db, const floatX* dout, int N,
                                         int C) {
    (void)db;
    rmsnorm_backward(dx, dw, dout, n->x, n->w, n->rstd, N, C);
}

// By NormKind (model.h).
static const NormKernels norms[] = {
    {layernorm_rows, layernorm_residual_rows, layernorm_rows_backward},
    {rmsnorm_rows, rmsnorm_residual_rows, rmsnorm_rows_backward},
};
