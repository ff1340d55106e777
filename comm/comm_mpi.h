/*
comm_mpi.h: operations on host memory by MPI: blocking and nonblocking calls. (Plans call MPI in comm_planned.h, a
group's thread in comm_progress_thread.h.)

MPI counts in int, so a vector is sent in pieces of comm->piece bytes, regardless of which rank owns which part. MPI has
no 16-bit floats: they are sent as uint16_t, and added by functions defined here.
*/
#pragma once

#include "comm_types.h"

#ifdef USE_MPI
#include <pthread.h>

// Ends the run if an MPI call has failed (its communicators return errors instead of aborting).
static inline void comm_mpi_check(int code, const Comm* c, const char* what) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    die("%s in group \"%s\" (rank %d of %d) failed: %s", what, c->name, c->rank, c->size, text);
}

static inline MPI_Datatype comm_mpi_type(CommType type) {
    const MPI_Datatype types[] = {MPI_FLOAT, MPI_DOUBLE, MPI_INT32_T, MPI_INT64_T, MPI_BYTE, MPI_UINT16_T};
    return types[type];
}

// sum += in (n) of bf16, computed in float32 and rounded to nearest after every step.
static inline void comm_add_sixteen(const uint16_t* in, uint16_t* sum, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] = f32_to_bf16(bf16_to_f32(in[i]) + bf16_to_f32(sum[i]));
}
static inline void comm_add_bf16(void* in, void* sum, int* n, MPI_Datatype* type) {
    (void)type;
    comm_add_sixteen((const uint16_t*)in, (uint16_t*)sum, *n);
}

static inline MPI_Op comm_mpi_op(const CommRequest* r) {
    if (r->type == COMM_BF16 && r->op != COMM_SUM) die("internal error: the maximum or minimum of bf16");
    if (r->type == COMM_BF16) return r->comm->job->add_bf16;
    if (r->op == COMM_SUM) return MPI_SUM;
    return r->op == COMM_MAX ? MPI_MAX : MPI_MIN;
}

// A vector is cut into pieces [first, first + count) of elements, regardless of which rank owns which part.
static inline int64_t comm_piece_elements(const CommRequest* r) {
    return max_i64(1, r->comm->piece / comm_type_bytes(r->type));
}

// The elements of piece i, [first, first + count), that belong to each rank (size), and their offsets in it (size).
static inline const int* comm_mpi_counts(CommRequest* r, int i, int64_t first, int count) {
    const int size = r->comm->size;
    const int64_t part = r->n / size;
    int* counts = r->counts + (int64_t)i * 2 * size;
    for (int rank = 0; rank < size; rank++) {
        const int64_t begin = min_i64(max_i64(rank * part, first), first + count);
        counts[rank] = (int)(max_i64(min_i64((rank + 1) * part, first + count), begin) - begin);
        counts[size + rank] = (int)(begin - first);
    }
    return counts;
}

// buffer + index elements; buffer may be NULL where there are no elements.
static inline char* comm_at(const void* buffer, int64_t index, CommType type) {
    return buffer ? (char*)(uintptr_t)buffer + index * comm_type_bytes(type) : NULL;
}

// Hands piece i to MPI. Blocking calls return when it is done.
static inline void comm_mpi_issue(CommRequest* r, int i) {
    Comm* c = r->comm;
    const MPI_Datatype type = comm_mpi_type(r->type);
    const MPI_Op op = comm_mpi_op(r);
    MPI_Request* q = r->blocking ? NULL : &r->mpi[i];
    const int64_t first = i * comm_piece_elements(r);
    const int count = (int)min_i64(comm_piece_elements(r), r->n - first);
    const void* in = comm_at(r->in, first, r->type);
    void* out = comm_at(r->out, first, r->type);
    const int *counts = NULL, *starts = NULL;
    const int64_t part = r->n / c->size;
    int64_t in_part = 0; // offset of this rank's elements of the piece in its part
    if (r->counts) {
        counts = comm_mpi_counts(r, i, first, count);
        starts = counts + c->size;
        in_part = min_i64(max_i64(first + starts[c->rank] - part * c->rank, 0), part); // 0, part: it has none
    }
    int code = MPI_SUCCESS;
    switch (r->kind) {
    case COMM_ALL_REDUCE:
        code = q ? MPI_Iallreduce(MPI_IN_PLACE, out, count, type, op, c->mpi, q)
                 : MPI_Allreduce(MPI_IN_PLACE, out, count, type, op, c->mpi);
        break;
    case COMM_REDUCE_SCATTER:
        out = comm_at(r->out, in_part, r->type);
        code = q ? MPI_Ireduce_scatter(in, out, counts, type, op, c->mpi, q)
                 : MPI_Reduce_scatter(in, out, counts, type, op, c->mpi);
        break;
    case COMM_ALL_GATHER:
        in = r->in == comm_at(r->out, part * c->rank, r->type) ? MPI_IN_PLACE : comm_at(r->in, in_part, r->type);
        code = q ? MPI_Iallgatherv(in, counts[c->rank], type, out, counts, starts, type, c->mpi, q)
                 : MPI_Allgatherv(in, counts[c->rank], type, out, counts, starts, type, c->mpi);
        break;
    case COMM_BROADCAST:
        code = q ? MPI_Ibcast(out, count, type, r->peer, c->mpi, q) : MPI_Bcast(out, count, type, r->peer, c->mpi);
        break;
    case COMM_SEND: code = MPI_Isend(in, count, type, r->peer, r->number, c->mpi, q); break;
    case COMM_RECEIVE: code = MPI_Irecv(out, count, type, r->peer, r->number, c->mpi, q); break;
    case COMM_BARRIER: code = q ? MPI_Ibarrier(c->mpi, q) : MPI_Barrier(c->mpi); break;
    case COMM_ON_DEVICE: break;
    }
    comm_mpi_check(code, c, comm_kind_name(r->kind));
}

static inline bool comm_mpi_takes(const CommRequest* r) { return !r->on_device; }

static inline void comm_mpi_start(CommRequest* r) {
    const int64_t per = comm_piece_elements(r);
    r->pieces = (int)max_i64(1, (r->n + per - 1) / per); // an empty message is sent too
    if (!r->blocking) r->mpi = (MPI_Request*)checked_malloc((size_t)r->pieces * sizeof *r->mpi, "MPI requests");
    if (r->kind == COMM_REDUCE_SCATTER || r->kind == COMM_ALL_GATHER)
        r->counts = (int*)checked_malloc((size_t)r->pieces * 2 * (size_t)r->comm->size * sizeof(int), "MPI counts");
    for (int i = 0; i < r->pieces; i++) comm_mpi_issue(r, i);
    if (r->blocking) r->pieces = 0; // nothing is in flight
}

// A message must be as long as the receiver expects: if not, the two ranks are at different points of the program.
static inline void comm_mpi_check_length(const CommRequest* r, int i, int code, const MPI_Status* status) {
    int error_class = MPI_SUCCESS, came = 0;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &error_class);
    if (error_class != MPI_SUCCESS && error_class != MPI_ERR_TRUNCATE) return; // not about the length
    const int64_t first = i * comm_piece_elements(r), bytes = comm_type_bytes(r->type);
    const int64_t expected = bytes * min_i64(comm_piece_elements(r), r->n - first);
    MPI_Get_count(status, MPI_BYTE, &came);
    if (error_class == MPI_SUCCESS && came == expected) return;
    char length[64];
    if (error_class == MPI_SUCCESS || came > expected)
        snprintf(length, sizeof length, "%d", came);
    else
        snprintf(length, sizeof length, "more"); // MPI does not say
    die("receive in group \"%s\": the message of rank %d with tag %d has %s bytes, rank %d expects %lld", r->comm->name,
        r->peer, r->number, length, r->comm->rank, (long long)expected);
}

static inline void comm_mpi_wait(CommRequest* r) {
    for (int i = 0; i < r->pieces; i++) {
        MPI_Status status;
        const int code = MPI_Wait(&r->mpi[i], &status);
        if (r->kind == COMM_RECEIVE) comm_mpi_check_length(r, i, code, &status);
        comm_mpi_check(code, r->comm, comm_kind_name(r->kind));
    }
    free(r->mpi);
    free(r->counts);
    r->mpi = NULL;
    r->counts = NULL;
}

// True if it is done; MPI makes progress meanwhile.
static inline bool comm_mpi_is_done(CommRequest* r) {
    int done = 1;
    for (int i = 0; i < r->pieces && done; i++)
        comm_mpi_check(MPI_Request_get_status(r->mpi[i], &done, MPI_STATUS_IGNORE), r->comm, comm_kind_name(r->kind));
    return done;
}

// ---- The job: begin and end; groups -----------------------------------------------------------------------------

// True if all ranks call it, within COMM_TOGETHER seconds.
static inline bool comm_all_come(void) {
    MPI_Request request;
    int all = 0;
    if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS) return false;
    for (const double end = seconds_now() + COMM_TOGETHER; !all && seconds_now() < end; usleep(1000))
        MPI_Test(&request, &all, MPI_STATUS_IGNORE);
    return all;
}

// If several threads end the process one of them does, and the others wait here for good.
static pthread_mutex_t comm_ending = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static bool comm_mpi_has_begun;

// stop: the new process.stop.
static inline void comm_mpi_open(Comm* world, void (*stop)(int status)) {
    int provided = 0; // multiple: group threads call MPI too (comm_progress_thread.h); funneled: only the main thread
    comm_mpi_check(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided), world, "MPI_Init");
    world->job = comm_job_new();
    world->job->threads = provided >= MPI_THREAD_MULTIPLE;
    comm_mpi_has_begun = true;
    process.stop = stop;
    comm_mpi_check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), world, "begin");
    comm_mpi_check(MPI_Comm_rank(MPI_COMM_WORLD, &world->rank), world, "begin");
    comm_mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &world->size), world, "begin");
    if (world->size > 1) process.rank = world->rank;
    if (world->size > 1) world->mpi = MPI_COMM_WORLD;
    if (provided < MPI_THREAD_FUNNELED)
        die("this MPI does not allow threads at all: use one that has MPI_THREAD_FUNNELED");
    comm_mpi_check(MPI_Op_create(comm_add_bf16, true, &world->job->add_bf16), world, "begin");
}

// Initializes a group from its new communicator, which inherits that errors are returned. A group of one needs none.
static inline void comm_mpi_adopt(Comm* c, MPI_Comm mpi) {
    c->mpi = mpi;
    comm_mpi_check(MPI_Comm_rank(mpi, &c->rank), c, "split");
    comm_mpi_check(MPI_Comm_size(mpi, &c->size), c, "split");
    if (c->size == 1) comm_mpi_check(MPI_Comm_free(&c->mpi), c, "split"); // sets MPI_COMM_NULL
}

static inline void comm_mpi_end(Comm* world) {
    if (!comm_mpi_has_begun) return;
    comm_mpi_has_begun = false;
    MPI_Op_free(&world->job->add_bf16);
    MPI_Finalize();
    world->mpi = MPI_COMM_NULL;
}

// "Open MPI v4.1.4", "MPICH Version: 4.0.2"; false: there is no MPI.
static inline bool comm_mpi_library(char* name, size_t size) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(library, &length);
    library[strcspn(library, ",\n")] = 0; // "Open MPI v4.1.4, package ...", "MPICH Version:\t4.0.2\n..."
    if (strchr(library, '\t')) *strchr(library, '\t') = ' ';
    snprintf(name, size, "%.80s", library);
    return true;
}

static inline void comm_mpi_split(Comm* child, const Comm* parent, int color, int key) {
    MPI_Comm mpi;
    comm_mpi_check(MPI_Comm_split(parent->mpi, color, key, &mpi), parent, "split");
    comm_mpi_adopt(child, mpi);
}

static inline void comm_mpi_split_machine(Comm* child, const Comm* world) {
    MPI_Comm mpi;
    const int code = MPI_Comm_split_type(world->mpi, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &mpi);
    comm_mpi_check(code, world, "split");
    comm_mpi_adopt(child, mpi);
}

static inline void comm_mpi_free(Comm* c) {
    if (c->mpi != MPI_COMM_NULL) comm_mpi_check(MPI_Comm_free(&c->mpi), c, "free");
}
#endif
