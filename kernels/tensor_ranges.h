/*
tensor_ranges.h: parts of tensors that one call of an optimizer, or of the gradient's norm, works on. A model has
hundreds of tensors, most of them small; on a GPU one launch takes RANGES_PER_LAUNCH of them (as NVIDIA Apex's
multi-tensor apply), and each of its blocks finds its own.
*/
#pragma once

#include "../util/base.h"
#ifdef USE_CUDA
#include "cuda_utils.cuh"
#endif

// n elements of a tensor: at `from` in the parameters, at `at` in gradients, moments and master weights.
typedef struct {
    int64_t from, at, n;
    uint64_t first; // place of the first one in the slice
    uint64_t key;   // for the stochastic rounding of 16-bit parameters (adamw.h), with `first`
    int index;      // the tensor's place among sums
    bool decays;    // whether weight decay applies
} TensorRange;

// An array as one tensor.
static inline TensorRange whole_range(int64_t n) {
    const TensorRange range = {0, 0, n, 0, 0, 0, true};
    return range;
}

// One step of an optimizer, counted from 1. SGD's momentum is beta1.
typedef struct {
    float lr, beta1, beta2, eps, weight_decay;
    int64_t step;
    float grad_scale; // multiplies the gradient
} OptimizerStep;

enum { RANGES_PER_LAUNCH = 32 }; // a power of two; arguments of a kernel, 4 KB at most

#ifdef USE_CUDA
// The argument of a kernel: range i has the blocks [block[i], block[i + 1]).
struct RangeList {
    int count, block[RANGES_PER_LAUNCH + 1];
    TensorRange range[RANGES_PER_LAUNCH];
};

// As many of `count` ranges as a launch takes; blocks(range): of each.
template <class F>
static inline RangeList range_list(const TensorRange* ranges, int count, const F& blocks) {
    RangeList list = {};
    list.count = (int)min_i64(count, RANGES_PER_LAUNCH);
    for (int i = 0; i < RANGES_PER_LAUNCH; i++) {
        if (i < list.count) list.range[i] = ranges[i];
        list.block[i + 1] = list.block[i] + (i < list.count ? blocks(ranges[i]) : 0);
    }
    return list;
}

// The range of this block: the last that does not begin after it, which is not empty.
__device__ __forceinline__ int range_of_block(const RangeList& list) {
    int i = 0;
#pragma unroll
    for (int step = RANGES_PER_LAUNCH / 2; step > 0; step /= 2) {
        if ((int)blockIdx.x >= list.block[i + step]) i += step;
    }
    return i;
}
#endif
