/*
comm_planned_nccl.h: executes collective plans on device memory (comm_planned.h), step after step on the group's stream:
the messages of a step in one NCCL group, then a kernel for each sum. The host only enqueues. In no plan does a rank
send a chunk and store another value in its place in one step (test_collective.c).
*/
#pragma once

#include "comm_nccl.h"
#include "comm_planned.h"

#include "../kernels/cuda_utils.cuh"

template <class T>
__global__ static void __launch_bounds__(256)
    plan_add_kernel(T* __restrict__ sum, const T* __restrict__ in, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] = (T)((float)sum[i] + (float)in[i]);
}

template <class T>
void plan_add_on(cudaStream_t stream, char* sum, const char* in, int64_t n) {
    Launch shape = launch_shape(blocks_for(n, 256), 256);
    shape.stream = stream;
    launch(shape, plan_add_kernel<T>, (T*)sum, (const T*)in, n);
}

static inline void plan_add_up_on(cudaStream_t stream, char* sum, const char* in, int64_t n, CommType type) {
    if (type == COMM_FLOAT) plan_add_on<float>(stream, sum, in, n);
    if (type == COMM_BF16) plan_add_on<bf16>(stream, sum, in, n);
}

// Rows [first, the result) are one step's.
static inline int comm_plan_step_end(const CommPlan* p, int first) {
    int end = first;
    while (end < p->rows && p->row[end].step == p->row[first].step) end++;
    return end;
}

// The slot of row i's sum in the block where the sums of a step wait, at *bytes, which advances past it.
static inline int64_t plan_take_room(const CommPlan* p, int i, int64_t n, int64_t element, int64_t* bytes) {
    int64_t start;
    const int64_t at = *bytes;
    if (plan_row_sums(&p->row[i]))
        *bytes += (int64_t)round_up((size_t)(element * comm_row_elements(p, &p->row[i], n, 0, 1, &start)), 256);
    return at;
}

// One step on the group's stream.
static inline void comm_plan_nccl_step(const CommPlan* p, const NcclGroup* g, int first, int end, char* vector,
                                       char* block, int64_t n, CommType type) {
    const int64_t element = comm_type_bytes(type);
    int64_t start, bytes = 0;
    nccl_check(ncclGroupStart(), g, "a planned step");
    for (int i = first; i < end; i++) {
        const CommRow* row = &p->row[i];
        const size_t count = (size_t)comm_row_elements(p, row, n, 0, 1, &start);
        char* place = vector + start * element;
        char* room = block + plan_take_room(p, i, n, element, &bytes);
        if (count == 0) continue;
        if (plan_row_sums(row)) place = room;
        nccl_check(row->send ? ncclSend(place, count, comm_nccl_type(type), row->peer, g->comm, g->stream)
                             : ncclRecv(place, count, comm_nccl_type(type), row->peer, g->comm, g->stream),
                   g, "a planned message");
    }
    nccl_check(ncclGroupEnd(), g, "a planned step");
    bytes = 0;
    for (int i = first; i < end; i++) {
        const int64_t count = comm_row_elements(p, &p->row[i], n, 0, 1, &start),
                      at = plan_take_room(p, i, n, element, &bytes);
        if (plan_row_sums(&p->row[i])) plan_add_up_on(g->stream, vector + start * element, block + at, count, type);
    }
}

static inline void comm_copy_on(const NcclGroup* g, void* to, const void* from, size_t bytes) {
    if (to != from)
        cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, g->stream), "a copy for a plan");
}

static inline bool comm_plan_nccl_takes(const CommRequest* r) { return comm_nccl_takes(r) && comm_plan_of(r); }

static inline void comm_plan_nccl_start(CommRequest* r) {
    const CommPlan* p = comm_plan_of(r);
    const NcclGroup* g = r->comm->nccl;
    const int64_t element = comm_type_bytes(r->type);
    const size_t whole = (size_t)(r->n * element), part = whole / (size_t)g->size, mine = (size_t)g->rank * part;
    const bool scatters = r->kind == COMM_REDUCE_SCATTER; // works on a copy
    int64_t most = 0;
    for (int i = 0, end; i < p->rows; i = end) {
        int64_t bytes = 0;
        end = comm_plan_step_end(p, i);
        for (int k = i; k < end; k++) plan_take_room(p, k, r->n, element, &bytes);
        most = max_i64(most, bytes);
    }
    char* block = NULL;
    const size_t needed = (size_t)most + (scatters ? whole : 0);
    if (needed > 0) cuda_check_memory(cudaMallocAsync(&block, needed, g->stream), needed, "an operation by plan");
    char* vector = scatters ? block + most : (char*)r->out;
    nccl_begin(g);
    if (scatters) comm_copy_on(g, vector, r->in, whole);
    if (r->kind == COMM_ALL_GATHER) comm_copy_on(g, vector + mine, r->in, part);
    for (int i = 0, end; i < p->rows; i = end) {
        end = comm_plan_step_end(p, i);
        comm_plan_nccl_step(p, g, i, end, vector, block, r->n, r->type);
    }
    if (scatters) comm_copy_on(g, r->out, vector + mine, part);
    if (block) cuda_check(cudaFreeAsync(block, g->stream), "cudaFreeAsync");
    r->done = nccl_end(g);
    comm_nccl_count(r, 1);
}
