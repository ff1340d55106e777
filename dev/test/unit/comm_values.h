/*
comm_values.h: the values of test_comm.c and cuda_comm.cu. Element i of rank r is a whole number in [-100, 100] ([0,
250] for bytes, [-30, 30] for 16-bit floats), whose sums every type holds exactly.
*/
#pragma once

#include "../../../comm.h"

enum { GUARD = 8 }; // elements behind a buffer that no operation may write

static inline bool is_sixteen(CommType type) { return type == COMM_BF16; }

static inline int64_t value(int rank, int64_t i, CommType type) {
    const uint64_t x = ((uint64_t)rank * 1000003 + (uint64_t)i + 17) * 0x9E3779B97F4A7C15ull;
    if (type == COMM_BYTE) return (int64_t)((x >> 32) % 251);
    return is_sixteen(type) ? (int64_t)((x >> 32) % 61) - 30 : (int64_t)((x >> 32) % 201) - 100;
}

static inline void put(void* buffer, int64_t i, CommType type, int64_t x) {
    switch (type) {
    case COMM_FLOAT: ((float*)buffer)[i] = (float)x; break;
    case COMM_DOUBLE: ((double*)buffer)[i] = (double)x; break;
    case COMM_INT32: ((int32_t*)buffer)[i] = (int32_t)x; break;
    case COMM_INT64: ((int64_t*)buffer)[i] = x; break;
    case COMM_BF16: ((uint16_t*)buffer)[i] = f32_to_bf16((float)x); break;
    case COMM_BYTE: ((unsigned char*)buffer)[i] = (unsigned char)x; break;
    }
}

static inline bool is(const void* buffer, int64_t i, CommType type, int64_t x) {
    unsigned char wanted[8] = {0};
    const int64_t bytes = comm_type_bytes(type);
    put(wanted, 0, type, x);
    return memcmp(wanted, (const char*)buffer + i * bytes, (size_t)bytes) == 0;
}

static inline int64_t reduced(int size, int64_t i, CommType type, CommOp op) {
    int64_t result = value(0, i, type);
    for (int rank = 1; rank < size; rank++) {
        const int64_t x = value(rank, i, type);
        if (op == COMM_SUM)
            result += x;
        else
            result = op == COMM_MAX ? max_i64(result, x) : min_i64(result, x);
    }
    return result;
}
