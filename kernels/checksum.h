/*
checksum.h: the checksum of util/base.h for device memory. It is a sum, so threads add up their parts in any order.
*/
#pragma once

#include "../util/base.h"

// *sum += the sum of `bytes` bytes (an even number, at an even address) whose first word has number `first`.
static inline void checksum_add(uint64_t* sum, const void* data, int64_t bytes, int64_t first) {
    enum { BLOCK = 1 << 16 };
    const char* at = (const char*)data;
    uint64_t total = 0;
#pragma omp parallel for schedule(static) reduction(+ : total)
    for (int64_t i = 0; i < bytes; i += BLOCK) total += checksum_of(at + i, min_i64(BLOCK, bytes - i), first + i / 4);
    *sum += total;
}
