/*
kernels.h: all kernels, for the device that this program is built for. Every operation has two files with the same
function names and arguments: NAME.h for CPU cores, in C, which is also the reference, and NAME.cuh for GPUs.
*/
#pragma once

#include "activations.h"
#include "device.h"
#include "norms.h"
#include "optimizers.h"
#ifdef USE_CUDA
#include "attention.cuh"
#include "checksum.cuh"
#include "crossentropy.cuh"
#include "embedding.cuh"
#include "global_norm.cuh"
#include "mfu.cuh"
#include "async_dp.cuh"
#include "residual.cuh"
#include "rope.cuh"
#include "caat.cuh"
#else
#include "attention.h"
#include "checksum.h"
#include "crossentropy.h"
#include "embedding.h"
#include "global_norm.h"
#include "async_dp.h"
#include "matmul.h"
#include "mfu.h"
#include "residual.h"
#include "rope.h"
#include "caat.h"
#endif
