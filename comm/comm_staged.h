/*
comm_staged.h: operations on device memory through host memory, where there is no NCCL, and where ranks share a GPU. At
the start device buffers are copied to the host, so that a backend of host memory works on the copies; the wait copies
results back. A copy from the device waits for the work that writes its source, and a copy to it comes after all earlier
reads of its destination.
*/
#pragma once

#include "comm_types.h"

// Whether the buffers of an operation are in device memory; false if it has none.
static inline bool comm_is_on_device(const CommRequest* r) {
    if (r->n == 0) return false;
    const bool out = device_holds(r->out), in = device_holds(r->in);
    if (r->out && r->in && out != in)
        die("internal error: %s in group \"%s\": one buffer is in host memory and one is not", comm_kind_name(r->kind),
            r->comm->name);
    return out || in;
}

// Bytes of this rank's in and out.
static inline size_t comm_in_bytes(const CommRequest* r) {
    const size_t whole = (size_t)(r->n * comm_type_bytes(r->type));
    if (r->kind == COMM_RECEIVE || (r->kind == COMM_BROADCAST && r->peer != r->comm->rank)) return 0;
    return r->kind == COMM_ALL_GATHER ? whole / (size_t)r->comm->size : whole;
}
static inline size_t comm_out_bytes(const CommRequest* r) {
    const size_t whole = (size_t)(r->n * comm_type_bytes(r->type));
    if (r->kind == COMM_SEND) return 0;
    return r->kind == COMM_REDUCE_SCATTER ? whole / (size_t)r->comm->size : whole;
}

// Offsets in the staged block: in lies where it belongs in out (an all-gather's: at this rank's part), but the out of a
// reduce-scatter follows its in.
static inline size_t comm_staged_in(const CommRequest* r) {
    return r->kind == COMM_ALL_GATHER ? (size_t)r->comm->rank * comm_in_bytes(r) : 0;
}
static inline size_t comm_staged_out(const CommRequest* r) {
    return r->kind == COMM_REDUCE_SCATTER ? comm_in_bytes(r) : 0;
}
static inline size_t comm_staged_bytes(const CommRequest* r) {
    const size_t in = comm_staged_in(r) + comm_in_bytes(r), out = comm_staged_out(r) + comm_out_bytes(r);
    return in > out ? in : out;
}

// The operation becomes one on a copy in host memory.
static inline void comm_stage_to_host(CommRequest* r) {
    char* block = (char*)checked_malloc(comm_staged_bytes(r), "messages of the GPU");
    if (comm_in_bytes(r) > 0) device_to_host(block + comm_staged_in(r), r->in, comm_in_bytes(r));
    r->staged = block;
    r->deliver = r->out;
    r->in = block + comm_staged_in(r);
    r->out = block + comm_staged_out(r);
    r->on_device = false;
}

// After its end: the result goes to device memory.
static inline void comm_deliver(CommRequest* r) {
    if (comm_out_bytes(r) > 0) device_from_host(r->deliver, r->out, comm_out_bytes(r));
    free(r->staged);
    r->staged = NULL;
}
