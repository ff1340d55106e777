/*
kernels.h: all kernels, for the device that this program is built for. Every operation has two files with the same
function names and arguments: NAME.h for CPU cores, in C, which is also the reference, and NAME.cuh for GPUs.
*/
#pragma once

#include "activations.h"
#include "device.h"
#include "optimizers.h"
#ifdef USE_CUDA
#include "adamw.cuh"
#include "attention.cuh"
#include "checksum.cuh"
#include "crossentropy.cuh"
#include "embedding.cuh"
#include "gelu.cuh"
#include "layernorm.cuh"
#include "matmul.cuh"
#include "global_norm.cuh"
#include "mfu.cuh"
#include "muon.cuh"
#include "async_dp.cuh"
#include "residual.cuh"
#include "rmsnorm.cuh"
#include "rope.cuh"
#include "sgd.cuh"
#include "caat.cuh"
#include "swiglu.cuh"
#else
#include "adamw.h"
#include "attention.h"
#include "checksum.h"
#include "crossentropy.h"
#include "embedding.h"
#include "gelu.h"
#include "layernorm.h"
#include "matmul.h"
#include "global_norm.h"
#include "async_dp.h"
#include "mfu.h"
#include "muon.h"
#include "residual.h"
#include "rmsnorm.h"
#include "rope.h"
#include "sgd.h"
#include "caat.h"
#include "swiglu.h"
#endif
