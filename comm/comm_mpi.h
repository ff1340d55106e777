/*
comm_mpi.h: operations on host memory by MPI: blocking and nonblocking calls. (Plans call MPI in comm_planned.h, a
group's thread in comm_progress_thread.h.)

MPI has no 16-bit floats: they are sent as uint16_t, and added by functions defined here.
*/
#pragma once

#include "comm_types.h"

#ifdef USE_MPI

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

static inline bool comm_mpi_takes(const CommRequest* r) { return !r->on_device; }

// Hands the operation to MPI. Blocking calls return when it is done, and leave no request.
static inline void comm_mpi_start(CommRequest* r) {
    const Comm* c = r->comm;
    const MPI_Datatype type = comm_mpi_type(r->type);
    const MPI_Op op = comm_mpi_op(r);
    MPI_Request* q = r->blocking ? NULL : &r->mpi;
    const int n = (int)r->n, part = n / c->size;
    const void* in = r->in;
    void* out = r->out;
    int code = MPI_SUCCESS;
    if (r->n > INT32_MAX)
        die("%s of %lld elements in group \"%s\": MPI counts to 2^31; cut --micro-batch or the model into more ranks",
            comm_kind_name(r->kind), (long long)r->n, c->name);
    switch (r->kind) {
    case COMM_ALL_REDUCE:
        code = q ? MPI_Iallreduce(MPI_IN_PLACE, out, n, type, op, c->mpi, q)
                 : MPI_Allreduce(MPI_IN_PLACE, out, n, type, op, c->mpi);
        break;
    case COMM_REDUCE_SCATTER:
        r->counts = (int*)checked_malloc((size_t)c->size * sizeof(int), "MPI counts");
        for (int rank = 0; rank < c->size; rank++) r->counts[rank] = part;
        code = q ? MPI_Ireduce_scatter(in, out, r->counts, type, op, c->mpi, q)
                 : MPI_Reduce_scatter(in, out, r->counts, type, op, c->mpi);
        break;
    case COMM_ALL_GATHER:
        if (in == (char*)out + c->rank * part * comm_type_bytes(r->type)) in = MPI_IN_PLACE;
        code = q ? MPI_Iallgather(in, part, type, out, part, type, c->mpi, q)
                 : MPI_Allgather(in, part, type, out, part, type, c->mpi);
        break;
    case COMM_BROADCAST:
        code = q ? MPI_Ibcast(out, n, type, r->peer, c->mpi, q) : MPI_Bcast(out, n, type, r->peer, c->mpi);
        break;
    case COMM_SEND: code = MPI_Isend(in, n, type, r->peer, r->number, c->mpi, q); break;
    case COMM_RECEIVE: code = MPI_Irecv(out, n, type, r->peer, r->number, c->mpi, q); break;
    case COMM_BARRIER: code = q ? MPI_Ibarrier(c->mpi, q) : MPI_Barrier(c->mpi); break;
    case COMM_ON_DEVICE: break;
    }
    comm_mpi_check(code, c, comm_kind_name(r->kind));
}

static inline void comm_mpi_wait(CommRequest* r) {
    MPI_Status status;
    int came = 0;
    const bool receives = r->kind == COMM_RECEIVE && r->mpi != MPI_REQUEST_NULL;
    comm_mpi_check(MPI_Wait(&r->mpi, &status), r->comm, comm_kind_name(r->kind));
    if (receives) MPI_Get_count(&status, comm_mpi_type(r->type), &came);
    if (receives && came != r->n) // the two ranks are at different points of the program
        die("receive in group \"%s\": the message of rank %d with tag %d has %d elements, rank %d expects %lld",
            r->comm->name, r->peer, r->number, came, r->comm->rank, (long long)r->n);
    free(r->counts);
    r->counts = NULL;
}

// True if it is done; MPI makes progress meanwhile.
static inline bool comm_mpi_is_done(CommRequest* r) {
    int done = 0;
    comm_mpi_check(MPI_Request_get_status(r->mpi, &done, MPI_STATUS_IGNORE), r->comm, comm_kind_name(r->kind));
    return done;
}

// ---- The job: begin and end; groups -----------------------------------------------------------------------------

// stop: the new process.stop.
static inline void comm_mpi_open(Comm* world, void (*stop)(int status)) {
    int provided = 0; // multiple: group threads call MPI too (comm_progress_thread.h)
    comm_mpi_check(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided), world, "MPI_Init");
    world->job = comm_job = (CommJob*)checked_calloc(1, sizeof(CommJob), "the job");
    world->job->threads = provided >= MPI_THREAD_MULTIPLE;
    process.stop = stop;
    comm_mpi_check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), world, "begin");
    comm_mpi_check(MPI_Comm_rank(MPI_COMM_WORLD, &world->rank), world, "begin");
    comm_mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &world->size), world, "begin");
    if (world->size > 1) process.rank = world->rank;
    if (world->size > 1) world->mpi = MPI_COMM_WORLD;
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
    if (!world->job) return;
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
