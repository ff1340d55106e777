/*
comm.h: groups of ranks, and their collectives and messages. A rank is one process of the job. It belongs to several
groups at once: all ranks (the world), the ranks that split a layer with it (tensor), the ranks that hold the same
weights (data), ... Every group is a separate communicator, so messages of two groups never mix.

Start and wait. Every operation is started, which returns a request, and later waited for. In between the rank computes,
and the buffers belong to the operation: they must not be written, nor results be read, before the wait. The addresses
of the buffers tell host from device memory, which decides the backend (comm_backends):

    host memory      MPI. start: MPI_Iallreduce and the like. wait: MPI_Wait; the process blocks. In a group with
                     plans, as replicas have by default, a sum is many messages (comm/comm_planned.h). In a group with
                     a thread, both are started and waited for by it (comm/comm_progress_thread.h).
    device memory    NCCL, which is ordered with the compute stream (comm/comm_nccl.h). start: after all earlier work of
                     the compute stream. wait: before all its later work. The host never blocks: where it needs a result
                     itself it calls comm_synchronize.
                     Without NCCL, or where ranks share a GPU, which NCCL refuses: MPI, staged through host memory.
                     start: copies the buffer to the host. wait: copies the result back. Slow, but always possible.

All members of a group start its operations in the same order. A message has a tag, whose lowest bit is its direction (0
forward, 1 backward). MPI matches messages by their tags, but since NCCL has none, the messages of one rank to another
in one direction must also be received in the order in which they are sent. Messages between neighbours in the ring of
ranks never block each other if comm_open_lanes was called for their group; other messages of device memory do.

MPI moves large messages only inside its calls, so a rank that computes for long calls comm_progress now and then; or
its group has a progress thread (comm_open_thread, comm/comm_progress_thread.h). The forms without _start complete at
once, by MPI's blocking calls, whose algorithms are better (in a group with a thread, they use the thread, too).

A group of one sends nothing; results are copied. A process that no launcher has started is the only rank, and so is
every process of a program built without MPI (USE_MPI).

Bytes. A rank's traffic is counted as that of an algorithm of least traffic (Thakur, Rabenseifner, Gropp 2005,
"Optimization of collective communication operations in MPICH", section 4; NCCL's "bus bandwidth" has the same
factors). In a group of s ranks, with a vector of n bytes in all:

    all-reduce 2 n (s - 1) / s      reduce-scatter, all-gather, broadcast n (s - 1) / s      send n

These are fractions. The counter accumulates s times as much, which is an integer; comm_bytes divides.

Times. `waited` and the spans in the trace are measured on the host. With NCCL the host hardly waits, and the end of an
operation is seen only when it is queried: the times then mean little.

Also here: begin and end of a job of many ranks (comm_open, comm_close, comm_abort_all). comm/check_same.h checks that
all ranks were started the same way, comm/cpu_affinity.h assigns a machine's cores. comm/ has the backends, and
comm_types.h, the types of groups, operations and backends.
*/
#pragma once

#include "comm/comm_mpi.h"
#include "comm/comm_planned.h"
#include "comm/comm_progress_thread.h"
#include "comm/comm_types.h"
#ifdef USE_CUDA
#include "comm/comm_staged.h"
#endif
#ifdef USE_NCCL
#include "comm/comm_nccl.h"
#include "comm/comm_planned_nccl.h"
#endif

// ---- Descriptions of operations ---------------------------------------------------------------------------------

// A description of an operation, not started.
static inline CommRequest comm_request(Comm* c, CommKind kind, void* out, const void* in, int64_t n, CommType type) {
    CommRequest r = {};
    r.comm = c;
    r.kind = kind;
    r.out = out;
    r.in = in;
    r.n = n;
    r.type = type;
    r.number = -1;
    r.mpi = MPI_REQUEST_NULL;
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
    CommRequest r = comm_request(c, COMM_ALL_REDUCE, buffer, buffer, n, type);
    r.op = op;
    return r;
}

// An operation in a group of one: its part is the whole.
static inline void comm_start_alone(const CommRequest* r) {
    const size_t bytes = (size_t)(r->n * comm_type_bytes(r->type));
    if (r->kind == COMM_SEND || r->kind == COMM_RECEIVE)
        die("internal error: %s in group \"%s\", which has one rank", comm_kind_name(r->kind), r->comm->name);
    if (bytes == 0 || r->in == r->out) return;
    if (comm_is_on_device(r))
        device_copy(r->out, r->in, bytes);
    else
        memcpy(r->out, r->in, bytes);
}

// Counts what this rank sends.
static inline void comm_count(const CommRequest* r) {
    const CommPlan* plan = comm_plan_of(r);
    r->comm->size_bytes += plan ? comm_plan_size_bytes(r, plan) : comm_size_bytes(r);
}

// Records that the rank waits for an operation from now on (util/heartbeat.h).
static inline void comm_wait_begins(const CommRequest* r) {
    const bool message = r->kind == COMM_SEND || r->kind == COMM_RECEIVE;
    heartbeat_wait(r->comm->row, (int)r->kind, r->comm->row_group, message ? r->peer : -1);
}

// Records its end. Two spans in the trace: the operation's duration, on the group's track, and the time spent in the
// wait, on the track "wait".
static inline void comm_wait_ends(CommRequest* r, double from) {
    Comm* c = r->comm;
    heartbeat_resume(c->row);
    const double now = seconds_now();
    if (r->finished == 0) r->finished = now;
    c->waited += now - from;
    trace_span(c->trace, c->name, comm_kind_name(r->kind), r->number, r->started, r->finished);
    if (now - from >= COMM_SHORT_WAIT) trace_span(c->trace, "wait", comm_kind_name(r->kind), r->number, from, now);
}

// ---- Start, wait ------------------------------------------------------------------------------------------------

// An operation of several ranks is executed by the first backend that takes it. Columns: CommBackend.
static const CommBackend comm_backends[] = {
#ifdef USE_NCCL
    {"NCCL, by plan", comm_plan_nccl_takes, comm_plan_nccl_start, comm_nccl_is_done, comm_nccl_wait},
    {"NCCL", comm_nccl_takes, comm_nccl_start, comm_nccl_is_done, comm_nccl_wait},
#endif
#ifdef USE_MPI
    {"MPI, in a thread", comm_thread_takes, comm_thread_start, comm_thread_is_done, comm_thread_wait},
    {"MPI, by plan", comm_plan_takes, comm_plan_start, comm_plan_is_done, comm_plan_wait},
    {"MPI", comm_mpi_takes, comm_mpi_start_beside_plans, comm_mpi_is_done, comm_mpi_wait_beside_plans},
#endif
    {NULL, NULL, NULL, NULL, NULL},
};

static inline const CommBackend* comm_backend_of(const CommRequest* r) {
    const CommBackend* backend = comm_backends;
    while (!backend->takes(r)) backend++;
    return backend;
}

static inline CommRequest comm_start(CommRequest r) {
    if (r.comm->size == 1) {
        comm_start_alone(&r);
        return r;
    }
    r.active = true;
    r.started = seconds_now();
    if (r.blocking) comm_wait_begins(&r);
    comm_count(&r);
    r.on_device = comm_is_on_device(&r);
    if (r.on_device && !r.comm->nccl) comm_stage_to_host(&r);
    r.backend = comm_backend_of(&r);
    r.backend->start(&r);
    return r;
}

// Waits for the end of an operation; does nothing if it is not active.
static inline void comm_wait(CommRequest* r) {
    if (!r->active) return;
    const double from = r->blocking ? r->started : seconds_now();
    comm_wait_begins(r);
    r->backend->wait(r);
    if (r->staged) comm_deliver(r);
    r->active = false;
    comm_wait_ends(r, from);
}

// Whether an operation is over, except for its delivery.
static inline bool comm_is_done(CommRequest* r) { return !r->active || r->backend->is_done(r); }

// Lets an operation make progress while this process computes. A completed request stays completed until comm_wait.
static inline void comm_poll(CommRequest* r) {
    if (!r->active || r->finished != 0 || !comm_is_done(r)) return;
    if (r->finished == 0) r->finished = seconds_now(); // else the group's thread has recorded the time
}

// The same for n operations, and checks NCCL for errors.
static inline void comm_progress(CommRequest* r, int n) {
    for (int i = 0; i < n; i++) comm_poll(&r[i]);
    comm_check_errors();
}

// The host waits for all earlier work of the compute stream: to be called where it needs the device's results. Not
// device_synchronize, which also waits for messages that are not due yet, and does not see when a rank dies.
static inline void comm_synchronize(Comm* world) {
    heartbeat_wait(world->row, COMM_ON_DEVICE, -1, -1);
    comm_wait_for_device(world);
    heartbeat_resume(world->row);
}

static inline void comm_run(CommRequest r) {
    r.blocking = true;
    r = comm_start(r);
    comm_wait(&r);
}

// ---- The operations ---------------------------------------------------------------------------------------------

// buffer (n) = sum (max, min) of all ranks' buffers, the same bits on every rank.
static inline CommRequest comm_all_reduce_start(Comm* c, void* buffer, int64_t n, CommType type, CommOp op) {
    return comm_start(comm_describe_all_reduce(c, buffer, n, type, op));
}

// out (n) = sum over the ranks of part `rank` of in (size, n). The two do not overlap.
static inline CommRequest comm_reduce_scatter_start(Comm* c, void* out, const void* in, int64_t n, CommType type) {
    return comm_start(comm_request(c, COMM_REDUCE_SCATTER, out, in, n * c->size, type));
}

// A message of n elements to rank `to`, which has to receive as many, with the same tag (0 to 32767).
static inline CommRequest comm_send_start(Comm* c, const void* buffer, int64_t n, CommType type, int to, int tag) {
    return comm_start(comm_describe_peer(comm_request(c, COMM_SEND, NULL, buffer, n, type), to, tag));
}

static inline CommRequest comm_receive_start(Comm* c, void* buffer, int64_t n, CommType type, int from, int tag) {
    return comm_start(comm_describe_peer(comm_request(c, COMM_RECEIVE, buffer, NULL, n, type), from, tag));
}

// The same, started and waited for.
static inline void comm_all_reduce(Comm* c, void* buffer, int64_t n, CommType type, CommOp op) {
    comm_run(comm_describe_all_reduce(c, buffer, n, type, op));
}

static inline void comm_reduce_scatter(Comm* c, void* out, const void* in, int64_t n, CommType type) {
    comm_run(comm_request(c, COMM_REDUCE_SCATTER, out, in, n * c->size, type));
}

// out (size, n) = every rank's in (n). in may be out's own part.
static inline void comm_all_gather(Comm* c, void* out, const void* in, int64_t n, CommType type) {
    comm_run(comm_request(c, COMM_ALL_GATHER, out, in, n * c->size, type));
}

// buffer (n) = rank root's buffer.
static inline void comm_broadcast(Comm* c, void* buffer, int64_t n, CommType type, int root) {
    comm_run(comm_describe_peer(comm_request(c, COMM_BROADCAST, buffer, buffer, n, type), root, -1));
}

// Returns when all ranks of the group have called it. Work of their devices may still be in progress.
static inline void comm_barrier(Comm* c) { comm_run(comm_request(c, COMM_BARRIER, NULL, NULL, 0, COMM_BYTE)); }

// ---- The job: begin and end -------------------------------------------------------------------------------------

// The name of the device backend, for people: "NCCL 2.28.9"; "" for one rank or a device without memory of its own.
static inline const char* comm_device_text(const Comm* world) { return world->job ? world->job->device_text : ""; }

// Ends the job's communication. All ranks call it.
static inline void comm_close(Comm* world) {
    if (world->nccl) comm_barrier(world); // no rank releases NCCL before all have arrived
    comm_nccl_end(world);
    if (world->job) comm_free_threads(world->job);
    comm_mpi_end(world);
    process.stop = NULL;
    free(world->job);
    world->job = comm_job = NULL;
    world->size = 1;
    world->rank = 0;
}

// Reports an error that all ranks find, such as a wrong option: rank 0 prints it, once, and all end with this status.
__attribute__((noreturn)) static inline void comm_abort_all(Comm* world, int status, const char* text) {
    if (world->rank == 0) print_message("%s", text);
    comm_close(world); // no rank ends before rank 0's message: launchers end the job at its first failure
    exit(status);
}

// The classic mistake: mpirun of one MPI, a program of another. N processes would each train alone, on the same files.
static inline void comm_check_launcher(Comm* world) {
    const int started = comm_launched_size();
    if (world->size > 1 || started <= 1) return;
    char text[512], library[128];
    if (comm_mpi_library(library, sizeof library))
        snprintf(text, sizeof text,
                 "%d processes were started together but do not find each other: this program is built with %.80s; use "
                 "the mpirun (srun: the --mpi=...) that belongs to it",
                 started, library);
    else
        snprintf(text, sizeof text,
                 "%d processes were started together, but this program is built without MPI: run it alone, or install "
                 "MPI and build again",
                 started);
    comm_abort_all(world, EXIT_RUN, text); // each rank is alone and reports it
}

// Joins the ranks that were launched together. A process started by hand never touches MPI: it starts at once. To be
// called before the first call of CUDA.
static inline void comm_open(Comm* world) {
    memset(world, 0, sizeof *world);
    world->name = "world";
    world->size = 1;
    world->row_group = -1;
    world->mpi = MPI_COMM_NULL;
    if (comm_is_launched()) {
        const int users_connections = nccl_prepare();
        comm_mpi_open(world, comm_stop);
        world->job->users_connections = users_connections;
    }
    comm_check_launcher(world);
}

// Selects the backend of device memory for groups that are split afterwards. All ranks call it, each with its GPU open
// (device_open).
static inline void comm_open_device(Comm* world) {
    if (world->size > 1) comm_nccl_open(world);
}

// ---- Groups -----------------------------------------------------------------------------------------------------

// A group with its parent's members and trace, but no history and no backend.
static inline Comm comm_child(const Comm* parent, const char* name) {
    Comm child = *parent;
    child.name = name;
    child.size_bytes = 0;
    child.waited = 0;
    child.plans = NULL;
    child.row_group = -1;
    child.mpi = MPI_COMM_NULL;
    child.thread = NULL;
    child.nccl = NULL;
    child.lanes = NULL;
    return child;
}

// The group of all ranks of parent that gave the same color (>= 0), ordered by key. All of parent's ranks call it.
static inline Comm comm_split(Comm* parent, int color, int key, const char* name, CommWidth width) {
    Comm child = comm_child(parent, name);
    if (parent->size == 1) return child;
    comm_mpi_split(&child, parent, color, key);
    comm_nccl_split(&child, parent, color, width);
    return child;
}

// The group of the ranks on this machine, which can share memory.
static inline Comm comm_split_machine(Comm* world) {
    Comm child = comm_child(world, "machine");
    if (world->size > 1) comm_mpi_split_machine(&child, world);
    return child;
}

// From now on messages of device memory between neighbours in the ring of the group's ranks do not block each other.
// folded: messages of each direction go both ways; else forward ones go to the next rank and backward ones to the one
// before. All members call it.
static inline void comm_open_lanes(Comm* c, bool folded) { comm_nccl_open_lanes(c, folded); }

// From now on operations of this plan's kind follow it. All members call it, with the same plan, which has been
// checked. Of a job either every rank is in such a group or none: comm_plans_meet relies on it.
static inline void comm_use_plan(Comm* c, const Plan* plan) {
    if (c->size == 1) return;
    comm_plan_adopt(c, plan);
}

// All members call it, with nothing in flight.
static inline void comm_free(Comm* c) {
    comm_free_thread(c);
    comm_free_plans(c);
    comm_nccl_free(c);
    comm_mpi_free(c);
    c->size = 1;
    c->rank = 0;
}
