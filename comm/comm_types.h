/*
comm_types.h: the types of groups, operations and backends, for comm.h, which explains them, and for the backends.
*/
#pragma once

#include "../util/base.h"
#include "../kernels/device.h"
#include "../util/trace.h"
#include "../util/heartbeat.h"

#ifdef USE_MPI
#define OMPI_SKIP_MPICXX // C++ compilers: the C interface is enough
#define MPICH_SKIP_MPICXX
#include <mpi.h>
#else // one process, which has no backend
#undef USE_NCCL
typedef int MPI_Comm, MPI_Request, MPI_Op;
#define MPI_COMM_NULL 0
#define MPI_REQUEST_NULL 0
#endif

// Tables have the order of these constants.
typedef enum { COMM_FLOAT, COMM_DOUBLE, COMM_INT32, COMM_INT64, COMM_BYTE, COMM_BF16 } CommType;
// The type of parameters and activations: floatX.
#if defined(PRECISION_BF16)
#define COMM_FLOATX COMM_BF16
#else
#define COMM_FLOATX COMM_FLOAT
#endif
typedef enum { COMM_SUM, COMM_MAX, COMM_MIN } CommOp;
typedef enum {
    COMM_ALL_REDUCE,
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_BROADCAST,
    COMM_SEND,
    COMM_RECEIVE,
    COMM_BARRIER,
    COMM_ON_DEVICE // no operation: the device's earlier work (comm_synchronize)
} CommKind;

// A group on GPUs has NCCL's own number of channels, or few, for sums that are small or seldom (comm_nccl.h).
typedef enum { COMM_WIDE, COMM_NARROW } CommWidth;

// Shorter waits are omitted from the trace, in seconds.
#define COMM_SHORT_WAIT 20e-6
// Seconds for which a rank that ends because of wrong arguments waits for the others to do the same.
#define COMM_TOGETHER 5
// Seconds for which a rank waits for the end of NCCL, when all have nothing left to do.
#define COMM_LAST_WORDS 10
// Seconds for which a rank that sees an NCCL error waits for the failing rank to report why.
#define COMM_FIRST_WORD 2.0

// The state that all groups of this process share.
typedef struct {
    char device_text[128];     // the backend of device memory
    int users_connections;     // CUDA_DEVICE_MAX_CONNECTIONS of the user, which it replaces; 0: none
    MPI_Op add_bf16;           // MPI has no bf16
    bool planned;              // some groups have plans
    struct PlanRun* runs;      // unfinished operations by plan (comm_planned.h)
    bool threads;              // several threads may call MPI at once
    struct CommThread* thread; // list of the groups' threads (comm_progress_thread.h)
    struct NcclGroup* open;    // all of NCCL's communicators
    void* scratch;             // a few bytes of device memory
    int ranks_on_gpu;          // ranks that have this rank's GPU; 0: not known
} CommJob;

static CommJob* comm_job; // for functions that are given no group: process.stop, comm_check_errors

// A group, as one of its ranks sees it.
typedef struct {
    const char* name;   // "world", "tensor", ...: in messages and the trace
    int rank, size;     // this process's rank in the group
    int64_t size_bytes; // size times the bytes that this rank has sent in this group: see comm_bytes
    double waited;      // seconds that this rank has spent waiting in this group
    Trace* trace;       // or NULL
    HeartbeatRow* row;  // this rank's heartbeat slot (util/heartbeat.h), or NULL, ...
    int row_group;      // ... and the group's number there; -1: none
    CommJob* job;       // NULL for a process that no launcher has started
    // What the backends have of a group of several ranks.
    MPI_Comm mpi;
    struct CommPlans* plans;   // for its operations (comm_planned.h), or NULL
    struct CommThread* thread; // that runs its operations (comm_progress_thread.h), or NULL
    struct NcclGroup* nccl;    // NULL if device memory is staged through the host
    struct NcclLanes* lanes;   // or NULL
} Comm;

// An operation, from its start to its wait. All zero: none, and waiting for it does nothing.
typedef struct {
    Comm* comm;
    CommKind kind;
    void* out; // out and in as the backend sees them
    const void* in;
    int64_t n; // elements of the whole vector, all ranks' parts together
    CommType type;
    CommOp op;
    int peer;       // the rank that sends, receives or is the root of a broadcast
    int number;     // the tag of a message, which the trace shows; -1: none
    bool on_device; // in and out are in device memory
    bool active, blocking;
    double started, finished;          // seconds_now(); finished: 0 until it was seen
    const struct CommBackend* backend; // that executes it, ...
    // ... and what the backends have of it
    MPI_Request mpi;
    int* counts;            // (size): for MPI's reduce-scatter, the elements of every rank
    struct PlanRun* run;    // by plan
    struct CommTask* task;  // what the group's thread has to do
    void *staged, *deliver; // the host's copy of device memory, or NULL, and where the result in it belongs
    void* done;             // NCCL: the event after the operation on its stream, or NULL
} CommRequest;

// A way to execute operations. All members of a group have the same one for an operation.
typedef struct CommBackend {
    const char* name; // for tests and debuggers
    bool (*takes)(const CommRequest* r);
    void (*start)(CommRequest* r);
    bool (*is_done)(CommRequest* r); // makes progress and does not block
    void (*wait)(CommRequest* r);    // blocks until it is over (NCCL: the compute stream), and frees what start took
} CommBackend;

static inline const char* comm_kind_name(CommKind kind) {
    static const char* const names[] = {"all-reduce", "reduce-scatter", "all-gather", "broadcast",
                                        "send",       "receive",        "barrier",    "the device"};
    return names[kind];
}

static inline int64_t comm_type_bytes(CommType type) {
    static const int64_t bytes[] = {4, 8, 4, 8, 1, 2};
    return bytes[type];
}

// Bytes that this rank has sent in this group: exact up to the rounding of this one division.
static inline double comm_bytes(const Comm* c) { return (double)c->size_bytes / c->size; }

// The bytes that comm_bytes counts for an operation, times the size of the group.
static inline int64_t comm_size_bytes(const CommRequest* r) {
    const int64_t bytes = r->n * comm_type_bytes(r->type), size = r->comm->size;
    switch (r->kind) {
    case COMM_ALL_REDUCE: return 2 * bytes * (size - 1);
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_GATHER:
    case COMM_BROADCAST: return bytes * (size - 1);
    case COMM_SEND: return bytes * size;
    case COMM_RECEIVE:
    case COMM_ON_DEVICE:
    case COMM_BARRIER: break;
    }
    return 0;
}

// ---- The job ----------------------------------------------------------------------------------------------------

static inline bool comm_any_set(const char* const* names) {
    for (; *names; names++) {
        if (getenv(*names)) return true;
    }
    return false;
}

// Whether a launcher (mpirun, mpiexec, srun, flux, aprun) has started this process, by its environment.
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

// The number of processes that the launcher has started together, by its environment, else 1. mpirun inside a Slurm job
// passes Slurm's variables on, so these count only where no other is set.
static inline int comm_launched_size(void) {
    static const char* const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE",
                                        "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (getenv(names[i])) return atoi(getenv(names[i]));
    }
    return getenv("RANK") && getenv("WORLD_SIZE") ? atoi(getenv("WORLD_SIZE")) : 1; // torchrun
}

// ----------------------------------------------------------------------------------------------------------------
/*
These stand for the backends that a build does not have. Without MPI a process is the only rank. Without NCCL the
groups' nccl stays NULL: device memory goes through the host. Without GPUs all memory is the host's.
*/

#ifndef USE_MPI
#define comm_mpi_open(world, stop) ((void)(world))
#define comm_mpi_end(world) ((void)(world))
#define comm_mpi_library(name, size) ((void)(name), (void)(size), false)
#define comm_mpi_split(child, parent, color, key) ((void)(color), (void)(key))
#define comm_mpi_split_machine(child, world) ((void)(world))
#define comm_mpi_free(c) ((void)(c))
#define comm_plan_adopt(c, plan) ((void)(plan))
#define comm_free_plans(c) ((void)(c))
#define comm_open_thread(c, urgent) ((void)(c))
#define comm_can_thread(c) ((void)(c), false)
#define comm_free_thread(c) ((void)(c))
#define comm_free_threads(job) ((void)(job))
#endif

#ifndef USE_CUDA
#define comm_is_on_device(request) false
#define comm_stage_to_host(request) ((void)(request))
#define comm_deliver(request) ((void)(request))
#endif

#ifndef USE_NCCL
#define nccl_prepare() 0
#define comm_nccl_split(child, parent, color, width) ((void)(child), (void)(width))
#define comm_nccl_open_lanes(c, folded) ((void)(c), (void)(folded))
#define comm_nccl_free(c) ((void)(c))
#define comm_nccl_end(world) ((void)(world))
#define comm_check_errors() ((void)0)
#define comm_wait_for_device(world) device_synchronize()

static inline void comm_nccl_open(Comm* world) {
    if (!DEVICE_IS_HOST)
        snprintf(world->job->device_text, sizeof world->job->device_text, "through host memory (built without NCCL)");
}
#endif
