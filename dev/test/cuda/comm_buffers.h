// comm_buffers.h: the buffers of cuda_comm.cu.
#pragma once

#include "../unit/comm_values.h"
#include "cuda_test.h"

// A buffer in device or host memory, with some elements behind it that no rank may write, and a copy of it to look at.
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
