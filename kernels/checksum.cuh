/*
checksum.cuh: util/base.h on a GPU. Every word is read once. Blocks add up their parts by integer atomics, so the
order does not matter.
*/
#pragma once

#include "../util/base.h"
#include "row_sum.cuh"

enum { CHECKSUM_THREADS = 256, CHECKSUM_WORDS = 16 }; // words that a thread takes

// Word i of data, `halves` numbers of 16 bits; the last word may have only one. ALIGNED: to 4 bytes.
template <bool ALIGNED>
__device__ __forceinline__ uint32_t checksum_word(const uint16_t* data, int64_t i, int64_t halves) {
    if (2 * i + 1 == halves) return data[2 * i];
    if (ALIGNED) return *reinterpret_cast<const uint32_t*>(data + 2 * i);
    return data[2 * i] | (uint32_t)data[2 * i + 1] << 16;
}

template <bool ALIGNED>
__global__ static void __launch_bounds__(CHECKSUM_THREADS)
    checksum_kernel(unsigned long long* sum, const uint16_t* __restrict__ data, int64_t halves, int64_t first) {
    const int64_t begin = (int64_t)blockIdx.x * (CHECKSUM_THREADS * CHECKSUM_WORDS) + threadIdx.x;
    unsigned long long mine = 0;
#pragma unroll
    for (int k = 0; k < CHECKSUM_WORDS; k++) {
        const int64_t i = begin + k * CHECKSUM_THREADS;
        if (2 * i < halves) mine += checksum_of_word((uint64_t)(first + i), checksum_word<ALIGNED>(data, i, halves));
    }
    mine = block_sum(mine);
    if (threadIdx.x == 0) atomicAdd(sum, mine);
}

static inline void checksum_add(uint64_t* sum, const void* data, int64_t bytes, int64_t first) {
    const int64_t halves = bytes / 2;
    const Launch shape = launch_shape(blocks_for(halves, 2 * CHECKSUM_WORDS * CHECKSUM_THREADS), CHECKSUM_THREADS);
    launch(shape, (uintptr_t)data % 4 == 0 ? checksum_kernel<true> : checksum_kernel<false>, (unsigned long long*)sum,
           (const uint16_t*)data, halves, first);
}
