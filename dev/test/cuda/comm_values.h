/*
comm_values.h: the values of cuda_comm.cu. Element i of rank r is a whole number in [-30, 30] ([0, 250] for bytes):
every type holds their sums exactly.
*/
#pragma once

#include "../../../comm.h"
#include "cuda_test.h"

static int value(int rank, int64_t i, CommType type) {
    const uint64_t x = ((uint64_t)rank * 1000003 + (uint64_t)i + 17) * 0x9E3779B97F4A7C15ull;
    return type == COMM_BYTE ? (int)((x >> 32) % 251) : (int)((x >> 32) % 61) - 30;
}

static void put(void* buffer, int64_t i, CommType type, int x) {
    switch (type) {
    case COMM_FLOAT: ((float*)buffer)[i] = (float)x; break;
    case COMM_DOUBLE: ((double*)buffer)[i] = x; break;
    case COMM_INT32: ((int32_t*)buffer)[i] = x; break;
    case COMM_INT64: ((int64_t*)buffer)[i] = x; break;
    case COMM_BF16: ((uint16_t*)buffer)[i] = f32_to_bf16((float)x); break;
    case COMM_FP16: ((uint16_t*)buffer)[i] = f32_to_f16((float)x); break;
    case COMM_BYTE: ((unsigned char*)buffer)[i] = (unsigned char)x; break;
    }
}

static bool is(const void* buffer, int64_t i, CommType type, int x) {
    unsigned char wanted[8] = {0};
    const int64_t bytes = comm_type_bytes(type);
    put(wanted, 0, type, x);
    return memcmp(wanted, (const char*)buffer + i * bytes, (size_t)bytes) == 0;
}

// A buffer in device or host memory, with some elements behind it that no rank may write, and a copy of it to look at.
enum { GUARD = 8 };
typedef struct {
    bool device;
    int64_t n;
    CommType type;
    char *p, *copy;
} Buffer;

static size_t buffer_bytes(const Buffer* b) { return (size_t)((b->n + GUARD) * comm_type_bytes(b->type)); }

static void buffer_set(Buffer* b) { // from the copy
    if (b->device)
        device_from_host(b->p, b->copy, buffer_bytes(b));
    else
        memcpy(b->p, b->copy, buffer_bytes(b));
}

static Buffer buffer_new(bool device, int64_t n, CommType type) {
    Buffer b = {device, n, type, NULL, NULL};
    b.copy = (char*)checked_calloc(buffer_bytes(&b), 1, "a test buffer");
    b.p = device ? (char*)device_malloc(buffer_bytes(&b), "a test buffer")
                 : (char*)checked_calloc(buffer_bytes(&b), 1, "a test buffer");
    for (int64_t i = 0; i < n + GUARD; i++) put(b.copy, i, type, 99);
    buffer_set(&b);
    return b;
}

static void buffer_free(Buffer* b) {
    free(b->copy);
    if (b->device)
        device_free(b->p, buffer_bytes(b));
    else
        free(b->p);
}

static void buffer_get(Buffer* b) { // to the copy, as the compute stream sees it
    if (b->device)
        device_to_host(b->copy, b->p, buffer_bytes(b));
    else
        memcpy(b->copy, b->p, buffer_bytes(b));
}

static void buffer_fill(Buffer* b, int64_t from, int64_t n, int rank, int64_t first) {
    for (int64_t i = 0; i < n; i++) put(b->copy, from + i, b->type, value(rank, first + i, b->type));
    buffer_set(b);
}

static bool buffer_is_whole(const Buffer* b) {
    bool ok = true;
    for (int64_t i = b->n; i < b->n + GUARD; i++) ok = ok && is(b->copy, i, b->type, 99);
    return ok;
}

static int reduced(int size, int64_t i, CommType type, CommOp op) {
    int result = value(0, i, type);
    for (int rank = 1; rank < size; rank++) {
        const int x = value(rank, i, type);
        if (op == COMM_SUM)
            result += x;
        else if (op == COMM_MAX ? x > result : x < result)
            result = x;
    }
    return result;
}
