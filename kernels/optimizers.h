/*
optimizers.h: the table of optimizers, for the device that this program is built for. To add one, write a pair of
kernels (as adamw.h and adamw.cuh) and a row here.

    optimizers[kind].update(params, master, grad, m, v, ranges, count, &step)    ranges of tensors (tensor_ranges.h)

A device that lacks the kernel has a row whose update is NULL: the trainer refuses --optimizer NAME there.

m and v are the moments; moments that the optimizer does not have are NULL, and take neither memory nor
room in a checkpoint.
*/
#ifndef OPTIMIZERS_H // not #pragma once: tests of kernels include this file for both devices (REFERENCE_KERNELS)
#define OPTIMIZERS_H

#include "device.h"
#if defined(USE_CUDA) && !defined(REFERENCE_KERNELS)
#include "adamw.cuh"
#else
#include "adamw.h"
#endif

typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_SGD, OPTIMIZERS } OptimizerKind;

typedef struct {
    const char* name;
    bool beta2;  // whether --beta2 and --eps apply
    double lr;   // the default of --lr; 0: by the model's size
    int moments; // float32 arrays beside the parameters
    void (*update)(floatX* params, float* master, const float* grad, float* m, float* v, const TensorRange* ranges,
                   int count, const OptimizerStep* s);
} Optimizer;

static const Optimizer optimizers[OPTIMIZERS] = {
    {"adamw", true, 0, 2, adamw_update},
    {"sgd", false, 3e-3, 1, sgd_update},
};

#endif
