/*
comm.h: groups of ranks, and what they say to each other. A rank is one process of the job. It belongs to several groups
at once: all ranks (the world), those that split a layer with it (tensor), those that hold the same weights (data), ...
Every group is a communicator of its own, so messages of two groups never mix.

Start and wait. Every operation is started, which returns a request, and later waited for. In between the rank computes,
and the buffers belong to the operation: not to be written, nor results to be read, before the wait. One pair of
functions for two kinds of memory:

    host memory, MPI        start: MPI_Iallreduce and its like.
                            wait:  MPI_Wait; the process blocks.
    device memory, NCCL     Each group has a stream of its own.
                            start: the group's stream waits for an event of the compute stream (the data are ready), the
                                   operation is enqueued, an event is recorded behind it.
                            wait:  the compute stream waits for that event. The host never blocks.

All members of a group start its operations in the same order. Messages between two ranks are matched by their tag, but
are also to be received in the order in which they are sent: NCCL has no tags. MPI moves large messages only while the
program is inside of it, so a rank that computes for long calls comm_progress now and then. The forms without _start do
it all at once, by MPI's blocking calls, whose algorithms are better.

A group of one never calls MPI: nothing is sent, results are copied. A process that no launcher has started is the only
rank, and so is every process of a program built without MPI (USE_MPI).

Bytes. What a rank has sent is counted by what an algorithm of least traffic makes it send (Thakur, Rabenseifner, Gropp
2005, "Optimization of collective communication operations in MPICH", section 4; NCCL's "bus bandwidth" has the same
factors). In a group of s ranks, with a vector of n bytes in all:

    all-reduce 2 n (s - 1) / s      reduce-scatter, all-gather, broadcast n (s - 1) / s      send n

These are fractions. What is added up is s times as much, which is an integer; comm_bytes divides.

Also here: what has to be settled before ranks can work together. Were all started alike (comm_check_same), how do all
of them end (process.stop, comm_die_together), which cores of the machine are whose (comm_share_cores).
*/
#ifndef COMM_H
#define COMM_H

#include "base.h"
#include "trace.h"
#ifdef __linux__
#include <sched.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef USE_MPI
#define OMPI_SKIP_MPICXX // C++ compilers: the C interface is enough
#define MPICH_SKIP_MPICXX
#include <mpi.h>
#endif

typedef enum { COMM_FLOAT, COMM_DOUBLE, COMM_INT32, COMM_INT64, COMM_BYTE } CommType;
typedef enum { COMM_SUM, COMM_MAX, COMM_MIN } CommOp;
typedef enum {
    COMM_ALL_REDUCE,
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_BROADCAST,
    COMM_SEND,
    COMM_RECEIVE,
    COMM_BARRIER
} CommKind;

// MPI counts in int: longer vectors go in pieces of this many bytes.
#define COMM_PIECE ((int64_t)1 << 30)
// Shorter waits are left out of the trace, in seconds.
#define COMM_SHORT_WAIT 20e-6
// So many seconds a rank that ends for wrong arguments gives the others to do the same.
#define COMM_TOGETHER 5

// A group, as one of its ranks sees it.
typedef struct {
    const char* name;   // "world", "tensor", ...: in messages and the trace
    int rank, size;     // this process's place in the group
    int64_t size_bytes; // size times the bytes that this rank has sent in this group: see comm_bytes
    double waited;      // seconds that this rank has spent waiting in this group
    int64_t piece;      // COMM_PIECE; the same on all ranks
    Trace* trace;       // or NULL
#ifdef USE_MPI
    MPI_Comm mpi; // MPI_COMM_NULL for a group of one
#endif
} Comm;

// An operation, from its start to its wait. All zero: none, and waiting for it does nothing.
typedef struct {
    Comm* comm;
    CommKind kind;
    void* out;
    const void* in;
    int64_t n; // elements of the whole vector, all ranks' parts together
    CommType type;
    CommOp op;
    int peer;   // the rank that sends, receives or is the root of a broadcast
    int number; // micro-batch, bucket, ...: shown in the trace, -1: none. The tag of a message
    bool active, blocking;
    double started, finished; // seconds_now(); finished: 0 until comm_progress has seen it
    int pieces;
#ifdef USE_MPI
    MPI_Request* mpi; // (pieces)
    int* counts;      // (pieces, 2, size): elements of every rank in a piece, and where they begin in it
#endif
} CommRequest;

static inline const char* comm_kind_name(CommKind kind) {
    switch (kind) {
    case COMM_ALL_REDUCE: return "all-reduce";
    case COMM_REDUCE_SCATTER: return "reduce-scatter";
    case COMM_ALL_GATHER: return "all-gather";
    case COMM_BROADCAST: return "broadcast";
    case COMM_SEND: return "send";
    case COMM_RECEIVE: return "receive";
    case COMM_BARRIER: break;
    }
    return "barrier";
}

static inline int64_t comm_type_bytes(CommType type) {
    switch (type) {
    case COMM_FLOAT:
    case COMM_INT32: return 4;
    case COMM_DOUBLE:
    case COMM_INT64: return 8;
    case COMM_BYTE: break;
    }
    return 1;
}

// Bytes that this rank has sent in this group: exact up to the rounding of this one division.
static inline double comm_bytes(const Comm* c) { return (double)c->size_bytes / c->size; }

// What comm_bytes counts for an operation, times the size of the group.
static inline int64_t comm_size_bytes(const CommRequest* r) {
    const int64_t bytes = r->n * comm_type_bytes(r->type), size = r->comm->size;
    switch (r->kind) {
    case COMM_ALL_REDUCE: return 2 * bytes * (size - 1);
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_GATHER:
    case COMM_BROADCAST: return bytes * (size - 1);
    case COMM_SEND: return r->peer == r->comm->rank ? 0 : bytes * size; // to oneself: a copy
    case COMM_RECEIVE:
    case COMM_BARRIER: break;
    }
    return 0;
}

// ----------------------------------------------------------------------------------------------------------------
// MPI: the only functions that call it are here, in the next section, and in comm_split_machine.

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
    switch (type) {
    case COMM_FLOAT: return MPI_FLOAT;
    case COMM_DOUBLE: return MPI_DOUBLE;
    case COMM_INT32: return MPI_INT32_T;
    case COMM_INT64: return MPI_INT64_T;
    case COMM_BYTE: break;
    }
    return MPI_BYTE;
}

static inline MPI_Op comm_mpi_op(CommOp op) { return op == COMM_SUM ? MPI_SUM : op == COMM_MAX ? MPI_MAX : MPI_MIN; }

// A vector is cut into pieces [first, first + count) of elements, whatever part of it belongs to whom.
static inline int64_t comm_piece_elements(const CommRequest* r) {
    return max_i64(1, r->comm->piece / comm_type_bytes(r->type));
}

// How many elements of piece i, [first, first + count), belong to each rank (size), and where they begin in it (size).
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
    const MPI_Op op = comm_mpi_op(r->op);
    MPI_Request* q = r->blocking ? NULL : &r->mpi[i];
    const int64_t first = i * comm_piece_elements(r);
    const int count = (int)min_i64(comm_piece_elements(r), r->n - first);
    const void* in = comm_at(r->in, first, r->type);
    void* out = comm_at(r->out, first, r->type);
    const int *counts = NULL, *starts = NULL;
    const int64_t part = r->n / c->size;
    int64_t in_part = 0; // where this rank's elements of the piece begin in its part
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
    case COMM_BARRIER: code = MPI_Barrier(c->mpi); break;
    }
    comm_mpi_check(code, c, comm_kind_name(r->kind));
}

static inline void comm_mpi_start(CommRequest* r) {
    const int64_t per = comm_piece_elements(r);
    r->pieces = (int)max_i64(1, (r->n + per - 1) / per); // an empty message is a message
    if (!r->blocking) r->mpi = (MPI_Request*)checked_malloc((size_t)r->pieces * sizeof *r->mpi, "MPI requests");
    if (r->kind == COMM_REDUCE_SCATTER || r->kind == COMM_ALL_GATHER)
        r->counts = (int*)checked_malloc((size_t)r->pieces * 2 * (size_t)r->comm->size * sizeof(int), "MPI counts");
    for (int i = 0; i < r->pieces; i++) comm_mpi_issue(r, i);
}

// A message has to be as long as the receiver expects: if not, the two ranks are at different places of the program.
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
    for (int i = 0; !r->blocking && i < r->pieces; i++) {
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
    for (int i = 0; !r->blocking && i < r->pieces && done; i++)
        comm_mpi_check(MPI_Request_get_status(r->mpi[i], &done, MPI_STATUS_IGNORE), r->comm, comm_kind_name(r->kind));
    return done;
}
#endif

// ----------------------------------------------------------------------------------------------------------------
// The job: begin, end, groups

static inline bool comm_any_set(const char* const* names) {
    for (; *names; names++) {
        if (getenv(*names)) return true;
    }
    return false;
}

// True if a launcher (mpirun, mpiexec, srun, flux, aprun) has started this process, as the environment tells.
static inline bool comm_is_launched(void) {
    static const char* const names[] = {"OMPI_COMM_WORLD_SIZE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "PMI_FD",
                                        "PMIX_RANK",
                                        "MPI_LOCALNRANKS",
                                        "PALS_RANKID",
                                        "FLUX_TASK_RANK",
                                        "MV2_COMM_WORLD_SIZE",
                                        NULL};
    return comm_any_set(names);
}

// How many processes the launcher says it has started together; 1 if it does not say. mpirun inside of a Slurm job
// passes Slurm's variables on, so these count only where no other is set.
static inline int comm_launched_size(void) {
    static const char* const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE",
                                        "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (getenv(names[i])) return atoi(getenv(names[i]));
    }
    return 1;
}

#ifdef USE_MPI
// True if all ranks come here, within COMM_TOGETHER seconds.
static inline bool comm_all_come(void) {
    MPI_Request request;
    int all = 0;
    if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS) return false;
    for (const double end = seconds_now() + COMM_TOGETHER; !all && seconds_now() < end; usleep(1000))
        MPI_Test(&request, &all, MPI_STATUS_IGNORE);
    return all;
}

// process.stop: a rank that dies ends all ranks, which would wait for it for ever. Wrong arguments (die_usage) are
// found by all alike, and rank 0 speaks for them: they end in peace, unless this rank turns out to be the only one.
static inline void comm_stop(int status) {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized) return;
    if (status == EXIT_ARGUMENTS && comm_all_come()) {
        MPI_Finalize();
        return;
    }
    if (status == EXIT_ARGUMENTS)
        fprintf(stderr, "%s: rank %d: wrong arguments or files, which other ranks do not have: start all ranks alike\n",
                process.name, process.rank);
    usleep(200000); // MPICH's mpirun drops what it has not yet read of this rank's last words when the job is aborted
    MPI_Abort(MPI_COMM_WORLD, status);
}
#endif

// Ends. All ranks call it.
static inline void comm_close(Comm* world) {
#ifdef USE_MPI
    if (process.stop == comm_stop) MPI_Finalize();
    process.stop = NULL;
    world->mpi = MPI_COMM_NULL;
#endif
    world->size = 1;
    world->rank = 0;
}

// An error that all ranks find alike, such as a wrong option: rank 0 says it, once, and all end with this status.
__attribute__((noreturn)) static inline void comm_die_together(Comm* world, int status, const char* text) {
    fflush(stdout);
    if (world->rank == 0) fprintf(stderr, "%s: %s\n", process.name, text);
    comm_close(world); // nobody is gone before rank 0 has spoken: launchers end the job with its first failure
    exit(status);
}

// The classic mistake: mpirun of one MPI, a program of another. N processes would each train alone, on the same files.
static inline void comm_check_launcher(Comm* world) {
    const int started = comm_launched_size();
    if (world->size > 1 || started <= 1) return;
    char text[512];
#ifdef USE_MPI
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(library, &length);
    library[strcspn(library, ",\n")] = 0; // "Open MPI v4.1.4, package ...", "MPICH Version:\t4.0.2\n..."
    if (strchr(library, '\t')) *strchr(library, '\t') = ' ';
    snprintf(text, sizeof text,
             "%d processes were started together but do not find each other: this program is built with %.80s; use the "
             "mpirun (srun: the --mpi=...) that belongs to it",
             started, library);
#else
    snprintf(
        text, sizeof text,
        "%d processes were started together, but this program is built without MPI: run it alone, or install MPI and "
        "build again",
        started);
#endif
    comm_die_together(world, EXIT_RUN, text); // each is alone: each says it
}

// Begins: joins the ranks that were launched together. A process started by hand never touches MPI: it starts at once.
static inline void comm_open(Comm* world) {
    memset(world, 0, sizeof *world);
    world->name = "world";
    world->size = 1;
    world->piece = COMM_PIECE;
#ifdef USE_MPI
    world->mpi = MPI_COMM_NULL;
    if (comm_is_launched()) {
        int provided = 0; // funneled: threads compute, the main thread alone talks
        comm_mpi_check(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), world, "MPI_Init");
        process.stop = comm_stop;
        comm_mpi_check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), world, "begin");
        comm_mpi_check(MPI_Comm_rank(MPI_COMM_WORLD, &world->rank), world, "begin");
        comm_mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &world->size), world, "begin");
        if (world->size > 1) process.rank = world->rank;
        if (world->size > 1) world->mpi = MPI_COMM_WORLD;
        if (provided < MPI_THREAD_FUNNELED)
            die("this MPI does not allow threads at all: use one that has MPI_THREAD_FUNNELED");
    }
#endif
    comm_check_launcher(world);
}

// A group with its parent's members, trace and pieces, but no history.
static inline Comm comm_child(const Comm* parent, const char* name) {
    Comm child = *parent;
    child.name = name;
    child.size_bytes = 0;
    child.waited = 0;
    return child;
}

#ifdef USE_MPI
// Fills in a group from the communicator made for it, which inherits that errors are returned. A group of one needs
// none.
static inline void comm_adopt(Comm* c, MPI_Comm mpi) {
    c->mpi = mpi;
    comm_mpi_check(MPI_Comm_rank(mpi, &c->rank), c, "split");
    comm_mpi_check(MPI_Comm_size(mpi, &c->size), c, "split");
    if (c->size == 1) comm_mpi_check(MPI_Comm_free(&c->mpi), c, "split"); // sets MPI_COMM_NULL
}
#endif

// The group of all ranks of parent that gave the same color (>= 0), ordered by key. All of parent's ranks call it.
static inline Comm comm_split(Comm* parent, int color, int key, const char* name) {
    Comm child = comm_child(parent, name);
    (void)color, (void)key; // of one rank
#ifdef USE_MPI
    if (parent->size > 1) {
        MPI_Comm mpi;
        comm_mpi_check(MPI_Comm_split(parent->mpi, color, key, &mpi), parent, "split");
        comm_adopt(&child, mpi);
    }
#endif
    return child;
}

// The group of the ranks on this machine, those that can share memory.
static inline Comm comm_split_machine(Comm* world) {
    Comm child = comm_child(world, "machine");
#ifdef USE_MPI
    if (world->size > 1) {
        MPI_Comm mpi;
        const int code = MPI_Comm_split_type(world->mpi, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &mpi);
        comm_mpi_check(code, world, "split");
        comm_adopt(&child, mpi);
    }
#endif
    return child;
}

// All members call it, with nothing in flight.
static inline void comm_free(Comm* c) {
#ifdef USE_MPI
    if (c->mpi != MPI_COMM_NULL) comm_mpi_check(MPI_Comm_free(&c->mpi), c, "free");
#endif
    c->size = 1;
    c->rank = 0;
}

// ----------------------------------------------------------------------------------------------------------------
// Start, wait

// A description of an operation, not started.
static inline CommRequest comm_describe(Comm* c, CommKind kind, void* out, const void* in, int64_t n, CommType type) {
    CommRequest r;
    memset(&r, 0, sizeof r);
    r.comm = c;
    r.kind = kind;
    r.out = out;
    r.in = in;
    r.n = n;
    r.type = type;
    r.number = -1;
    return r;
}

static inline CommRequest comm_describe_peer(CommRequest r, int peer, int number) {
    if (peer < 0 || peer >= r.comm->size)
        die("internal error: %s in group \"%s\": there is no rank %d of %d", comm_kind_name(r.kind), r.comm->name, peer,
            r.comm->size);
    r.peer = peer;
    r.number = number;
    return r;
}

static inline CommRequest comm_describe_all_reduce(Comm* c, void* buffer, int64_t n, CommType type, CommOp op) {
    CommRequest r = comm_describe(c, COMM_ALL_REDUCE, buffer, buffer, n, type);
    r.op = op;
    return r;
}

// What a group of one does: its part is the whole.
static inline void comm_start_alone(const CommRequest* r) {
    if (r->kind == COMM_SEND || r->kind == COMM_RECEIVE)
        die("internal error: %s in group \"%s\", which has one rank", comm_kind_name(r->kind), r->comm->name);
    if (r->n > 0 && r->in != r->out) memcpy(r->out, r->in, (size_t)(r->n * comm_type_bytes(r->type)));
}

static inline CommRequest comm_start(CommRequest r) {
    if (r.comm->size == 1) {
        comm_start_alone(&r);
        return r;
    }
    r.active = true;
    r.started = seconds_now();
    r.comm->size_bytes += comm_size_bytes(&r);
#ifdef USE_MPI
    comm_mpi_start(&r);
#endif
    return r;
}

// Waits for the end of an operation; does nothing if it is not active. Two spans in the trace: the operation's life, on
// the group's track, and the time spent here, on the track "wait".
static inline void comm_wait(CommRequest* r) {
    if (!r->active) return;
    Comm* c = r->comm;
    const double from = r->blocking ? r->started : seconds_now();
#ifdef USE_MPI
    comm_mpi_wait(r);
#endif
    const double now = seconds_now();
    r->active = false;
    if (r->finished == 0) r->finished = now;
    c->waited += now - from;
    trace_span(c->trace, c->name, comm_kind_name(r->kind), r->number, r->started, r->finished);
    if (now - from >= COMM_SHORT_WAIT) trace_span(c->trace, "wait", comm_kind_name(r->kind), r->number, from, now);
}

// Lets MPI go on with n requests while this process computes. Those that are done stay so until comm_wait.
static inline void comm_progress(CommRequest* r, int n) {
#ifdef USE_MPI
    for (int i = 0; i < n; i++) {
        if (r[i].active && r[i].finished == 0 && comm_mpi_is_done(&r[i])) r[i].finished = seconds_now();
    }
#else
    (void)r, (void)n;
#endif
}

static inline void comm_run(CommRequest r) {
    r.blocking = true;
    r = comm_start(r);
    comm_wait(&r);
}

// buffer (n) = sum (max, min) of all ranks' buffers, the same bits on every rank.
static inline CommRequest comm_all_reduce_start(Comm* c, void* buffer, int64_t n, CommType type, CommOp op) {
    return comm_start(comm_describe_all_reduce(c, buffer, n, type, op));
}

// out (n) = sum over the ranks of part `rank` of in (size, n). The two do not overlap.
static inline CommRequest comm_reduce_scatter_start(Comm* c, void* out, const void* in, int64_t n, CommType type) {
    return comm_start(comm_describe(c, COMM_REDUCE_SCATTER, out, in, n * c->size, type));
}

// out (size, n) = every rank's in (n). in may be out's own part.
static inline CommRequest comm_all_gather_start(Comm* c, void* out, const void* in, int64_t n, CommType type) {
    return comm_start(comm_describe(c, COMM_ALL_GATHER, out, in, n * c->size, type));
}

// buffer (n) = that of rank root.
static inline CommRequest comm_broadcast_start(Comm* c, void* buffer, int64_t n, CommType type, int root) {
    return comm_start(comm_describe_peer(comm_describe(c, COMM_BROADCAST, buffer, buffer, n, type), root, -1));
}

// A message of n elements to rank `to`, which has to receive as many, with the same tag (0 to 32767).
static inline CommRequest comm_send_start(Comm* c, const void* buffer, int64_t n, CommType type, int to, int tag) {
    return comm_start(comm_describe_peer(comm_describe(c, COMM_SEND, NULL, buffer, n, type), to, tag));
}

static inline CommRequest comm_receive_start(Comm* c, void* buffer, int64_t n, CommType type, int from, int tag) {
    return comm_start(comm_describe_peer(comm_describe(c, COMM_RECEIVE, buffer, NULL, n, type), from, tag));
}

// The same, begun and ended.
static inline void comm_all_reduce(Comm* c, void* buffer, int64_t n, CommType type, CommOp op) {
    comm_run(comm_describe_all_reduce(c, buffer, n, type, op));
}

static inline void comm_reduce_scatter(Comm* c, void* out, const void* in, int64_t n, CommType type) {
    comm_run(comm_describe(c, COMM_REDUCE_SCATTER, out, in, n * c->size, type));
}

static inline void comm_all_gather(Comm* c, void* out, const void* in, int64_t n, CommType type) {
    comm_run(comm_describe(c, COMM_ALL_GATHER, out, in, n * c->size, type));
}

static inline void comm_broadcast(Comm* c, void* buffer, int64_t n, CommType type, int root) {
    comm_run(comm_describe_peer(comm_describe(c, COMM_BROADCAST, buffer, buffer, n, type), root, -1));
}

// Returns when all ranks of the group have called it.
static inline void comm_barrier(Comm* c) { comm_run(comm_describe(c, COMM_BARRIER, NULL, NULL, 0, COMM_BYTE)); }

// ----------------------------------------------------------------------------------------------------------------
// Are all ranks alike? A rank with other options, another build or other data would make the rest wait for ever, or
// train something that nobody asked for.

static inline uint64_t comm_hash(const void* bytes, size_t n) { // FNV-1a, like hash_string
    uint64_t h = 14695981039346656037ull;
    for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char*)bytes)[i]) * 1099511628211ull;
    return h;
}

// "1234567 bytes, checksum 0123456789abcdef": the program that is running.
static inline void comm_build_text(char* text, size_t size) {
    MappedFile file;
    Error error;
    if (file_map(&file, "/proc/self/exe", &error))
        snprintf(text, size, "%zu bytes, checksum %016llx", file.size,
                 (unsigned long long)comm_hash(file.data, file.size));
    else
        snprintf(text, size, "unknown"); // not Linux
    file_unmap(&file);
}

// Where two texts begin to differ, moved back to the word before (the option of a value, the name of a file), if near.
static inline size_t comm_difference(const char* a, const char* b) {
    enum { NEAR = 80 };
    size_t i = 0;
    while (a[i] && a[i] == b[i]) i++;
    size_t begin = i, back = i;
    for (int words = 0; back > 0 && i - back < NEAR && words < 2; back--) {
        if (a[back - 1] != ' ' && a[back - 1] != '\n') continue;
        begin = back;
        words++;
    }
    return back == 0 ? 0 : begin;
}

// text from `first` on, on one line, cut to 200 characters.
static inline void comm_excerpt(char out[204], const char* text, size_t first) {
    snprintf(out, 201, "%s", text + first);
    if (strlen(text + first) > 200) strcpy(out + 200, "...");
    for (char* c = out; *c; c++) {
        if ((unsigned char)*c < ' ') *c = ' ';
    }
}

// Every rank passes a text: its arguments, its build, its files and their sizes. If one differs from rank 0's, the job
// ends with one line, from rank 0, and exit status 2:
//     rank 3 (host b) differs from rank 0 in WHAT: "--steps 30" instead of "--steps 20"; ADVICE
static inline void comm_check_same(Comm* world, const char* what, const char* mine, const char* advice) {
    const uint64_t hash = comm_hash(mine, strlen(mine));
    uint64_t root_hash = hash;
    comm_broadcast(world, &root_hash, 8, COMM_BYTE, 0);
    int32_t other = hash == root_hash ? world->size : world->rank; // the first rank that differs
    comm_all_reduce(world, &other, 1, COMM_INT32, COMM_MIN);
    if (other == world->size) return;

    char host[64] = "";
    gethostname(host, sizeof host - 1);
    int64_t length = (int64_t)strlen(mine);
    comm_broadcast(world, host, sizeof host, COMM_BYTE, other);
    comm_broadcast(world, &length, 1, COMM_INT64, other);
    char* theirs = (char*)checked_calloc((size_t)length + 1, 1, what);
    if (world->rank == other) memcpy(theirs, mine, (size_t)length);
    comm_broadcast(world, theirs, length, COMM_BYTE, other);

    char text[1024], a[204], b[204];
    const size_t first = comm_difference(theirs, mine);
    comm_excerpt(a, theirs, first);
    comm_excerpt(b, mine, first);
    snprintf(text, sizeof text, "rank %d (host %s) differs from rank 0 in %s: \"%s\" instead of \"%s\"; %s", other,
             host, what, a, b, advice);
    free(theirs);
    comm_die_together(world, EXIT_ARGUMENTS, text);
}

// ----------------------------------------------------------------------------------------------------------------
// The machine: which ranks share it, and which cores are whose. A core is what the system schedules threads on.

typedef struct {
    int machines;              // of the job
    int ranks_here, rank_here; // of the job's ranks on this machine
    int cores_here;            // that they may use together
    int threads;               // that this rank should compute with: for omp_set_num_threads
    char host[64];
} CommPlace;

// True if Open MPI has tied this process to a core or socket although nobody asked for it: it does so by default, with
// one core for a rank where there are two ranks or fewer. mpirun passes what it was asked for on in these variables.
static inline bool comm_is_bound_by_default(void) {
    static const char* const asked[] = {"OMPI_MCA_hwloc_base_binding_policy", // --bind-to
                                        "OMPI_MCA_hwloc_base_bind_to_core",   // --bind-to-core
                                        "OMPI_MCA_hwloc_base_cpu_set",        // --cpu-set
                                        "OMPI_MCA_hwloc_base_cpu_list",       // --cpu-list
                                        "OMPI_MCA_rmaps_base_cpus_per_rank",  // --cpus-per-rank
                                        "OMPI_MCA_rmaps_rank_file_path",      // --rankfile
                                        "OMPI_MCA_orte_rankfile",             // --rankfile
                                        NULL};
    const char* map = getenv("OMPI_MCA_rmaps_base_mapping_policy"); // --map-by socket:PE=4
    return getenv("OMPI_MCA_orte_bound_at_launch") && !comm_any_set(asked) &&
           !(map && (strstr(map, "PE=") || strstr(map, "pe=")));
}

// True if the user has settled himself how many threads there are, or where.
static inline bool comm_threads_are_settled(void) {
    static const char* const names[] = {"OMP_NUM_THREADS",   "OMP_PROC_BIND", "OMP_PLACES",
                                        "GOMP_CPU_AFFINITY", "KMP_AFFINITY",  NULL};
    return comm_any_set(names);
}

static inline int comm_openmp_threads(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// Part [first, return value) of n cores for rank_here of ranks_here: sizes differ by one at most.
static inline int comm_core_part(int n, int rank_here, int ranks_here, int* first) {
    *first = (int)((int64_t)n * rank_here / ranks_here);
    return (int)((int64_t)n * (rank_here + 1) / ranks_here);
}

enum { COMM_MAX_CORES = 1024 }; // CPU_SETSIZE; on a larger machine nobody is tied to cores

#ifdef __linux__
// A number from a file such as /sys/devices/system/cpu/cpu3/topology/physical_package_id; of a list "3,11", the first.
static inline int64_t comm_topology(int core, const char* what, int64_t if_missing) {
    char path[128];
    long long value;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", core, what);
    FILE* f = fopen(path, "r");
    if (!f) return if_missing;
    const bool found = fscanf(f, "%lld", &value) == 1;
    fclose(f);
    return found ? value : if_missing;
}

static inline int comm_compare_keys(const void* a, const void* b) {
    const int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
    return x < y ? -1 : x > y;
}

// The place of a core in an order where hyperthreads of one physical core stand side by side, and sockets one after the
// other (systems number cores in other ways): so that a contiguous part is close together.
static inline int64_t comm_core_key(int64_t socket, int64_t first_sibling, int core) {
    return (socket << 40) + (first_sibling << 20) + core;
}

static inline int comm_core_of_key(int64_t key) { return (int)(key & 0xfffff); }

// The cores that some rank may use, in that order. Returns how many.
static inline int comm_order_cores(int cores[COMM_MAX_CORES], const int32_t holders[COMM_MAX_CORES]) {
    int64_t key[COMM_MAX_CORES];
    int n = 0;
    for (int core = 0; core < COMM_MAX_CORES; core++) {
        if (holders[core] == 0) continue;
        const int64_t socket = comm_topology(core, "physical_package_id", 0);
        key[n++] = comm_core_key(socket, comm_topology(core, "thread_siblings_list", core), core);
    }
    qsort(key, (size_t)n, sizeof key[0], comm_compare_keys);
    for (int i = 0; i < n; i++) cores[i] = comm_core_of_key(key[i]);
    return n;
}

// holders[core] = 1 for every core that this process may use; all 0 if the system does not tell.
static inline void comm_own_cores(int32_t holders[COMM_MAX_CORES]) {
    cpu_set_t set;
    CPU_ZERO(&set);
    const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
    for (int core = 0; core < COMM_MAX_CORES; core++) holders[core] = known && CPU_ISSET(core, &set);
}

// Ties the process, and the threads that it will make, to n cores. If the system refuses, the run is only slower.
static inline void comm_tie_to_cores(const int* cores, int n) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < n; i++) CPU_SET(cores[i], &set);
    sched_setaffinity(0, sizeof set, &set);
}

// To all cores: the system keeps to those that the container or the batch system has given to the job.
static inline void comm_untie(void) {
    cpu_set_t set;
    memset(&set, 0xff, sizeof set);
    sched_setaffinity(0, sizeof set, &set);
}
#else
static inline int comm_order_cores(int cores[COMM_MAX_CORES], const int32_t holders[COMM_MAX_CORES]) {
    (void)cores, (void)holders;
    return 0;
}
static inline void comm_own_cores(int32_t holders[COMM_MAX_CORES]) {
    memset(holders, 0, COMM_MAX_CORES * sizeof *holders);
}
static inline void comm_tie_to_cores(const int* cores, int n) { (void)cores, (void)n; }
static inline void comm_untie(void) {}
#endif

// The union of the local ranks' cores is cut into one part for each of them; this rank is tied to its part. Returns the
// size of the part: with so many threads it computes. No rank is tied where the launcher has already given each rank
// cores of its own, nor where there are fewer cores than ranks: one thread each, which the system distributes.
static inline int comm_take_cores(const CommPlace* place, const int* cores, const int32_t holders[COMM_MAX_CORES],
                                  int own) {
    bool shared = false;
    for (int core = 0; core < COMM_MAX_CORES; core++) shared = shared || holders[core] > 1;
    if (!shared && own > 0) return own;
    int first;
    const int end = comm_core_part(place->cores_here, place->rank_here, place->ranks_here, &first);
    if (place->cores_here < place->ranks_here) return 1;
    if (own > 0) comm_tie_to_cores(cores + first, end - first);
    return end - first;
}

// All ranks call it, before the first parallel region: threads that exist already keep to their cores.
static inline void comm_share_cores(Comm* world, CommPlace* place) {
    memset(place, 0, sizeof *place);
    gethostname(place->host, sizeof place->host - 1);
    Comm machine = comm_split_machine(world);
    place->ranks_here = machine.size;
    place->rank_here = machine.rank;
    int32_t machines = machine.rank == 0;
    comm_all_reduce(world, &machines, 1, COMM_INT32, COMM_SUM);
    place->machines = machines;

    if (comm_is_bound_by_default()) comm_untie();
    int32_t holders[COMM_MAX_CORES]; // how many of the ranks here may use the core
    int cores[COMM_MAX_CORES], own = 0;
    comm_own_cores(holders);
    for (int core = 0; core < COMM_MAX_CORES; core++) own += holders[core];
    comm_all_reduce(&machine, holders, COMM_MAX_CORES, COMM_INT32, COMM_SUM);
    comm_free(&machine);
    place->cores_here = comm_order_cores(cores, holders);
    if (place->cores_here == 0) place->cores_here = (int)max_i64(1, sysconf(_SC_NPROCESSORS_ONLN));

    if (!comm_is_launched() || comm_threads_are_settled())
        place->threads = comm_openmp_threads();
    else
        place->threads = comm_take_cores(place, cores, holders, own);
}

#endif
