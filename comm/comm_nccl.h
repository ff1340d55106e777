/*
comm_nccl.h: operations on device memory by NCCL, whose kernels run beside the computation: communicators, each with its
own stream, and the backend for comm.h.

Streams. Computation runs on the default stream, the compute stream. An operation of a group runs on the group's stream,
between two events:

    nccl_begin    the group's stream waits for all earlier work of the compute stream: the data are ready, and no
                  earlier work still reads the destination
    nccl_end      an event after the operation. All users of the result wait for it.

The host only enqueues all this and continues. There is one exception: for the first message between two ranks NCCL
makes a connection, and the host waits until the other rank is at the same point of the program; nccl_lane_connect
sends that message when a lane is opened. A communicator also connects in its first collective, which would block the
host in the same way; NCCL_RUNTIME_CONNECT=0 (nccl_prepare) connects it when it is opened, which costs memory if it is
never used. The setting does not affect messages.

Memory. A communicator takes buffers for each of its channels, and has as many channels as CTAs (NCCL's issue 864: 1.6
GB for one, 6 GB for several). Only wide groups have NCCL's own number, or COLLECTIVE_CTAS of the environment; narrow
ones, the world and lanes have few.

Lanes. NCCL has no tags: the messages of one rank to another are matched in their order. And a receive is a kernel that
waits on the GPU until its message arrives; everything after it on its stream waits with it. A rank of a pipeline posts
receives long before they are due, from several neighbours, so on one stream the ranks would soon deadlock. Therefore
each lane, a two-rank communicator per sender, receiver and direction (forward or backward), has its own stream. Then a
message waits for nothing but its sender and its receiver. schedule_check (parallel/schedule.h) assumes that when it
proves that no schedule deadlocks, and that the messages of each lane are received in the order in which they are sent.
That kernels of different communicators progress independently is an assumption: NCCL's user guide ("Using multiple NCCL
communicators concurrently") warns of deadlocks. gpu_check.sh tries a folded schedule of four stages on one GPU.

A kernel that waits occupies a multiprocessor for each of its CTAs, and a message is as fast as its CTAs together: a
lane has few (NCCL_LANE_CTAS).

While a kernel waits for its message the host must not call functions that wait for all kernels: cudaDeviceSynchronize,
cudaFree, often cudaMalloc, and the first launch of a kernel, which loads it (all are loaded at the start instead). And
a waiting kernel needs its own hardware queue: streams that share one wait for each other. Both are settings of the
driver: nccl_prepare.

Errors. NCCL reports asynchronous errors (a network that breaks, a rank that dies) when it is queried: nccl_find_error
queries all communicators.

End. ncclCommAbort frees memory, which waits for all kernels of the GPU: an abort that comes alone can wait for a kernel
of the next communicator, which only its own abort would end (NCCL's issue 1013). In a group of calls all kernels
end before any memory is freed: nccl_abort_all. It needs the aborts of the other ranks too, so a process that fails does
not abort: MPI_Abort ends it, and the driver ends its kernels.

Shared GPUs. NCCL needs one GPU per rank: two ranks of a communicator on one GPU would wait for each other's kernels. So
all ranks exchange a card with their machine and the address of their GPU, and if two are equal, device memory goes
through the host, in all groups (comm_staged.h). To make NCCL accept shared GPUs, for tests, set
NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30) or a different NCCL_HOSTID for every rank (any NCCL; then also
NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket). Instances of one GPU (MIG) have its address, too, so they count as shared.
*/
#pragma once

#include "comm_mpi.h"
#include "comm_staged.h"
#include "comm_types.h"

#ifndef USE_CUDA
#error "USE_NCCL needs USE_CUDA: NCCL moves what lies in the memory of GPUs"
#endif
#include <nccl.h>
#include <sys/statvfs.h>
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 22, 3)
#error "this NCCL is too old: aborts of several communicators together came with 2.22.3"
#endif

enum {                    // CTAs, each a multiprocessor and a channel. NCCL_MAX_CTAS overrides them
    NCCL_LANE_CTAS = 2,   // which a lane occupies also while it waits
    NCCL_NARROW_CTAS = 4, // a narrow group has these
    NCCL_LANES = 8,       // a rank has these: to and from two neighbours, forward and backward
};

// A communicator, as one of its ranks sees it.
typedef struct NcclGroup {
    char name[64];
    int rank, size;
    ncclComm_t comm;
    cudaStream_t stream;
    cudaEvent_t ready;      // on the compute stream, when an operation starts
    struct NcclGroup* next; // in the list of all that are open
} NcclGroup;

// Settings of the driver and of NCCL, which read them at their first call. The user's own are kept, except how kernels
// are loaded (many images set LAZY: the first launch of a kernel then waits for messages that wait for it) and the
// number of hardware queues: Megatron-LM's users set 1, with which the messages of a pipeline wait for each other.
// Returns the user's number, if it is another one; else 0.
static inline int nccl_prepare(void) {
    const char* text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const int users = text && atoi(text) != 32 ? atoi(text) : 0;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1); // the most there can be
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    return users;
}

// ---- Errors -----------------------------------------------------------------------------------------------------

__attribute__((noreturn)) static inline void nccl_fail(ncclResult_t code, const NcclGroup* g, const char* what) {
    char last[512];
    const char* more = ncclGetLastError(g->comm);
    snprintf(last, sizeof last, "%s", more ? more : "");
    last[strcspn(last, "\n")] = 0;
    struct statvfs shared;
    char hint[160] = "; NCCL_DEBUG=WARN prints details";
    if (code == ncclRemoteError) snprintf(hint, sizeof hint, "; look for the rank that ended first");
    if (code == ncclSystemError && statvfs("/dev/shm", &shared) == 0) // a container's usual 64 MB are too few
        snprintf(hint, sizeof hint, "; /dev/shm has %.0f MB left; docker --shm-size=1g gives it more",
                 (double)shared.f_bavail * (double)shared.f_frsize / 1e6);
    die("%s in group \"%s\" (rank %d of %d) failed: NCCL: %s%s%s%s", what, g->name, g->rank, g->size,
        ncclGetErrorString(code), *last ? ": " : "", last, hint);
}

static inline void nccl_check(ncclResult_t code, const NcclGroup* g, const char* what) {
    if (code != ncclSuccess) nccl_fail(code, g, what);
}

// An asynchronous error in any open communicator; NULL: none.
static inline const NcclGroup* nccl_find_error(const NcclGroup* list, ncclResult_t* code) {
    for (const NcclGroup* g = list; g; g = g->next) {
        *code = ncclSuccess;
        nccl_check(ncclCommGetAsyncError(g->comm, code), g, "the query of errors");
        if (*code != ncclSuccess && *code != ncclInProgress) return g;
    }
    return NULL;
}

// ---- Begin, end -------------------------------------------------------------------------------------------------

// Wraps a new communicator; NULL: this rank is alone in it, and has none.
static inline NcclGroup* nccl_adopt(NcclGroup** list, const NcclGroup* made, ncclComm_t comm) {
    if (!comm) return NULL;
    NcclGroup* g = (NcclGroup*)checked_malloc(sizeof *g, "a group");
    *g = *made;
    g->comm = comm;
    cuda_check(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), "a stream for messages");
    cuda_check(cudaEventCreateWithFlags(&g->ready, cudaEventDisableTiming), "an event for messages");
    g->next = *list;
    *list = g;
    return g;
}

static inline NcclGroup nccl_describe(const char* name, int rank, int size) {
    NcclGroup g = {};
    snprintf(g.name, sizeof g.name, "%s", name);
    g.rank = rank;
    g.size = size;
    return g;
}

// A communicator's configuration. ctas: the most multiprocessors that it may use, 0: NCCL's default.
static inline ncclConfig_t nccl_config(int ctas) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (ctas > 0) config.maxCTAs = ctas;
    return config;
}

// The communicator of all ranks, which have the same id. It is narrow.
static inline NcclGroup* nccl_open(NcclGroup** list, const char* name, int rank, int size, ncclUniqueId id) {
    const NcclGroup g = nccl_describe(name, rank, size);
    ncclConfig_t config = nccl_config(NCCL_NARROW_CTAS);
    ncclComm_t comm = NULL;
    nccl_check(ncclCommInitRankConfig(&comm, size, id, rank, &config), &g, "begin");
    return nccl_adopt(list, &g, comm);
}

// The communicator of the parent's ranks that gave the same color: `size` ranks, of which this is number `rank`. All of
// the parent's ranks call it. NULL for a group of one. ctas: as in nccl_config. (Without a configuration the group
// would have its parent's.)
static inline NcclGroup* nccl_split(NcclGroup** list, const NcclGroup* parent, int color, int rank, int size, int ctas,
                                    const char* name) {
    const NcclGroup g = nccl_describe(name, rank, size);
    ncclConfig_t config = nccl_config(ctas);
    ncclComm_t comm = NULL;
    if (size == 1) color = NCCL_SPLIT_NOCOLOR;
    nccl_check(ncclCommSplit(parent->comm, color, rank, &comm, &config), parent, "split");
    return nccl_adopt(list, &g, comm);
}

static inline void nccl_forget(NcclGroup** list, NcclGroup* g) {
    while (*list && *list != g) list = &(*list)->next;
    if (*list) *list = g->next;
    free(g);
}

// All members call it, with nothing in flight.
static inline void nccl_close(NcclGroup** list, NcclGroup* g) {
    if (!g) return;
    cuda_check(cudaStreamSynchronize(g->stream), "the end of a group");
    nccl_check(ncclCommDestroy(g->comm), g, "end");
    cuda_check(cudaStreamDestroy(g->stream), "the end of a group");
    cuda_check(cudaEventDestroy(g->ready), "the end of a group");
    nccl_forget(list, g);
}

// Ends all communicators together, with what they have in flight, ignoring errors. All ranks call it.
static inline void nccl_abort_all(NcclGroup** list) {
    ncclGroupStart();
    for (const NcclGroup* g = *list; g; g = g->next) ncclCommAbort(g->comm);
    ncclGroupEnd();
    while (*list) {
        NcclGroup* g = *list;
        cudaStreamDestroy(g->stream);
        cudaEventDestroy(g->ready);
        nccl_forget(list, g);
    }
}

// ---- Operations -------------------------------------------------------------------------------------------------

static inline void nccl_begin(const NcclGroup* g) {
    cuda_check(cudaEventRecord(g->ready, 0), "the start of an operation");
    cuda_check(cudaStreamWaitEvent(g->stream, g->ready, 0), "the start of an operation");
}

static inline cudaEvent_t nccl_end(const NcclGroup* g) {
    cudaEvent_t done;
    cuda_check(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "an event for messages");
    cuda_check(cudaEventRecord(done, g->stream), "the end of an operation");
    return done;
}

// Later work of the compute stream comes after the operation.
static inline void nccl_wait(cudaEvent_t done) {
    cuda_check(cudaStreamWaitEvent(0, done, 0), "waiting for an operation");
    cuda_check(cudaEventDestroy(done), "waiting for an operation");
}

// Whether the work that a query was about is over; the host does not wait.
static inline bool nccl_is_over(cudaError_t e) {
    if (e != cudaErrorNotReady) cuda_check(e, "work on the GPU");
    if (e == cudaErrorNotReady) cudaGetLastError(); // not an error, but kept as the last one
    return e == cudaSuccess;
}

// ---- Lanes of a ring of ranks 0, 1, ..., size - 1, 0 ------------------------------------------------------------

typedef struct {
    int from, to, direction; // direction: 0 forward, 1 backward
    NcclGroup* group;
} NcclLane;

typedef struct NcclLanes {
    int n;
    NcclLane lane[NCCL_LANES];
} NcclLanes;

// NULL: there is no such lane.
static inline NcclGroup* nccl_lane(const NcclLanes* lanes, int from, int to, int direction) {
    for (int i = 0; lanes && i < lanes->n; i++) {
        const NcclLane* l = &lanes->lane[i];
        if (l->from == from && l->to == to && l->direction == direction) return l->group;
    }
    return NULL;
}

// Lane number i of the neighbours a and b, the next one of a.
static inline NcclLane nccl_lane_between(int a, int b, int i) {
    const NcclLane all[4] = {{a, b, 0, NULL}, {b, a, 1, NULL}, {b, a, 0, NULL}, {a, b, 1, NULL}};
    return all[i];
}

// Sends a first message to make the connection, while no rank waits for anything else: later the host of a rank that
// posts a receive would have to wait for its sender.
static inline void nccl_lane_connect(const NcclGroup* g, bool sends, void* token) {
    nccl_check(sends ? ncclSend(token, 4, ncclUint8, 1 - g->rank, g->comm, g->stream)
                     : ncclRecv(token, 4, ncclUint8, 1 - g->rank, g->comm, g->stream),
               g, "the first message");
}

// All members of the group call it. folded: messages of each direction go both ways, not only forward ones to the next
// rank of the ring and backward ones to the one before. token: 4 bytes of unused device memory.
static inline NcclLanes* nccl_lanes_open(NcclGroup** list, const NcclGroup* g, bool folded, void* token) {
    NcclLanes* lanes = (NcclLanes*)checked_calloc(1, sizeof *lanes, "the lanes");
    const int pairs = g->size > 2 ? g->size : 1;     // neighbours; of two ranks each is both the next one ...
    const int each = folded || g->size == 2 ? 4 : 2; // ... and the one before
    for (int a = 0; a < pairs; a++) {
        const int b = (a + 1) % g->size, color = a == g->rank || b == g->rank ? 0 : -1;
        for (int i = 0; i < each; i++) {
            NcclLane lane = nccl_lane_between(a, b, i);
            const int other = lane.from == g->rank ? lane.to : lane.from;
            char name[64];
            snprintf(name, sizeof name, "%.24s %s from %d to %d", g->name, lane.direction ? "backward" : "forward",
                     lane.from, lane.to);
            lane.group = nccl_split(list, g, color, g->rank > other, color < 0 ? 1 : 2, NCCL_LANE_CTAS, name);
            if (!lane.group) continue;
            lanes->lane[lanes->n++] = lane;
            nccl_lane_connect(lane.group, lane.from == g->rank, token);
        }
    }
    return lanes;
}

static inline void nccl_lanes_close(NcclGroup** list, NcclLanes* lanes) {
    if (!lanes) return;
    for (int i = 0; i < lanes->n; i++) nccl_close(list, lanes->lane[i].group);
    free(lanes);
}

// ---- The backend: operations of comm.h ------------------------------------------------------------------------------

// Ends the run if NCCL reports an error.
static inline void comm_check_errors(void) {
    ncclResult_t code;
    const NcclGroup* broken = comm_job ? nccl_find_error(comm_job->open, &code) : NULL;
    if (!broken) return;
    usleep((useconds_t)(COMM_FIRST_WORD * 1e6)); // mpirun may end this rank meanwhile
    nccl_fail(code, broken, "an operation");
}

// The host waits for a stream, but not for ever if a rank has died.
static inline void comm_wait_for_stream(cudaStream_t stream) {
    for (int looks = 0; !nccl_is_over(cudaStreamQuery(stream)); looks++) {
        comm_check_errors();
        if (looks >= 100) usleep(20); // the first polls do not sleep: the work may be nearly done
    }
}

// The host waits for the compute stream.
static inline void comm_wait_for_device(const Comm* world) {
    if (world->nccl)
        comm_wait_for_stream(0);
    else
        device_synchronize();
}

static inline ncclDataType_t comm_nccl_type(CommType type) {
    static const ncclDataType_t types[] = {ncclFloat32, ncclFloat64, ncclInt32, ncclInt64, ncclUint8, ncclBfloat16};
    return types[type];
}

// Enqueues the operation on the stream of g: of its group, or of a lane, in which this rank's partner is the other one.
static inline void comm_nccl_issue(const CommRequest* r, const NcclGroup* g) {
    const ncclDataType_t type = comm_nccl_type(r->type);
    static const ncclRedOp_t ops[] = {ncclSum, ncclMax, ncclMin}; // by CommOp
    const ncclRedOp_t op = ops[r->op];
    const size_t n = (size_t)r->n, part = n / (size_t)g->size;
    const int peer = g == r->comm->nccl ? r->peer : 1 - g->rank;
    ncclResult_t code = ncclSuccess;
    switch (r->kind) {
    case COMM_ALL_REDUCE: code = ncclAllReduce(r->in, r->out, n, type, op, g->comm, g->stream); break;
    case COMM_REDUCE_SCATTER: code = ncclReduceScatter(r->in, r->out, part, type, op, g->comm, g->stream); break;
    case COMM_ALL_GATHER: code = ncclAllGather(r->in, r->out, part, type, g->comm, g->stream); break;
    case COMM_BROADCAST: code = ncclBroadcast(r->in, r->out, n, type, peer, g->comm, g->stream); break;
    case COMM_SEND: code = ncclSend(r->in, n, type, peer, g->comm, g->stream); break;
    case COMM_RECEIVE: code = ncclRecv(r->out, n, type, peer, g->comm, g->stream); break;
    case COMM_BARRIER: // between hosts: MPI's
    case COMM_ON_DEVICE: break;
    }
    nccl_check(code, g, comm_kind_name(r->kind));
}

// Counts the sums and gathers, of whichever group, between their start (1) and their wait (-1): a product that starts
// meanwhile leaves multiprocessors to them (matmul.cuh). Messages take few, and are not counted.
static inline void comm_nccl_count(const CommRequest* r, int n) {
    if (r->kind != COMM_SEND && r->kind != COMM_RECEIVE) *collectives_in_flight() += n;
}

static inline bool comm_nccl_takes(const CommRequest* r) { return r->on_device && r->comm->nccl; }

static inline void comm_nccl_start(CommRequest* r) {
    const bool message = r->kind == COMM_SEND || r->kind == COMM_RECEIVE, sends = r->kind == COMM_SEND;
    const NcclGroup* g = r->comm->nccl;
    if (message) {
        const NcclGroup* lane =
            nccl_lane(r->comm->lanes, sends ? g->rank : r->peer, sends ? r->peer : g->rank, r->number & 1);
        if (lane) g = lane;
    }
    nccl_begin(g);
    comm_nccl_issue(r, g);
    r->done = nccl_end(g);
    comm_nccl_count(r, 1);
}

static inline bool comm_nccl_is_done(CommRequest* r) {
    return !r->done || nccl_is_over(cudaEventQuery((cudaEvent_t)r->done));
}

static inline void comm_nccl_wait(CommRequest* r) {
    if (!r->done) return;
    nccl_wait((cudaEvent_t)r->done);
    r->done = NULL;
    comm_nccl_count(r, -1);
}

// ---- Begin: which rank has which GPU ----------------------------------------------------------------------------

// An identifier of this machine: its name, and a number that Linux draws when it boots.
static inline uint64_t comm_machine(void) {
    char text[256] = "";
    gethostname(text, 128);
    FILE* f = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (f && fgets(text + strlen(text), 100, f)) text[sizeof text - 1] = 0;
    if (f) fclose(f);
    return hash_string(text);
}

// A rank's card: with all of them, every rank knows which ranks share a GPU.
typedef struct {
    ncclUniqueId id; // rank 0's is the world's
    uint64_t machine;
    char gpu[32]; // its address on the machine
    int32_t may_share;
} CommCard;

// Whether the user makes NCCL accept ranks that share a GPU.
static inline bool comm_may_share(void) {
    const char *host = getenv("NCCL_HOSTID"), *enable = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return (host && *host) || (enable && atoi(enable) != 0);
}

static inline CommCard comm_card(const Comm* world) {
    CommCard card;
    int number = 0;
    memset(&card, 0, sizeof card); // also its padding, as its bytes are sent
    if (world->rank == 0 && ncclGetUniqueId(&card.id) != ncclSuccess)
        die("NCCL does not begin: %s; NCCL_DEBUG=WARN prints details", ncclGetLastError(NULL));
    card.machine = comm_machine();
    card.may_share = comm_may_share();
    cuda_check(cudaGetDevice(&number), "the GPU's number");
    cuda_check(cudaDeviceGetPCIBusId(card.gpu, sizeof card.gpu, number), "the GPU's address");
    return card;
}

// How many ranks have the GPU of this card.
static inline int comm_ranks_on_gpu(const CommCard* cards, int size, const CommCard* of) {
    int n = 0;
    for (int i = 0; i < size; i++) n += cards[i].machine == of->machine && strcmp(cards[i].gpu, of->gpu) == 0;
    return n;
}

// Decides which backend has device memory, from the cards of all ranks, and opens the world's communicator. All ranks
// call it, each with its GPU open.
static inline void comm_nccl_open(Comm* world) {
    CommJob* job = world->job;
    int version = 0;
    bool may_share = true, shared = false;
    const CommCard mine = comm_card(world);
    CommCard* cards = (CommCard*)checked_calloc((size_t)world->size, sizeof(CommCard), "the ranks");
    comm_mpi_check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, cards, sizeof mine, MPI_BYTE, world->mpi), world,
                   "begin");
    for (int rank = 0; rank < world->size; rank++) {
        may_share = may_share && cards[rank].may_share;
        shared = shared || comm_ranks_on_gpu(cards, world->size, &cards[rank]) > 1;
    }
    job->ranks_on_gpu = comm_ranks_on_gpu(cards, world->size, &mine);
    const ncclUniqueId id = cards[0].id;
    free(cards);
    if (shared && !may_share) {
        snprintf(job->device_text, sizeof job->device_text, "through host memory (ranks share a GPU)");
        return;
    }
    cuda_check(cudaMalloc(&job->scratch, 256), "cudaMalloc");
    world->nccl = nccl_open(&job->open, world->name, world->rank, world->size, id);
    nccl_check(ncclGetVersion(&version), world->nccl, "the version");
    if (version < NCCL_VERSION(2, 22, 3))
        die("NCCL %d.%d is too old: it has to be 2.22.3 or later", version / 10000, version / 100 % 100);
    snprintf(job->device_text, sizeof job->device_text, "NCCL %d.%d.%d%s", version / 10000, version / 100 % 100,
             version % 100, shared ? ", ranks share a GPU" : "");
    if (job->users_connections)
        append_text(job->device_text, sizeof job->device_text, ", CUDA_DEVICE_MAX_CONNECTIONS 32 instead of %d",
                    job->users_connections);
}

static inline void comm_nccl_split(Comm* child, const Comm* parent, int color, CommWidth width) {
    if (parent->nccl)
        child->nccl = nccl_split(&parent->job->open, parent->nccl, color, child->rank, child->size,
                                 width == COMM_NARROW ? NCCL_NARROW_CTAS : collective_ctas(), child->name);
}

static inline void comm_nccl_open_lanes(Comm* c, bool folded) {
    if (c->nccl) c->lanes = nccl_lanes_open(&c->job->open, c->nccl, folded, c->job->scratch);
}

// Closes all of NCCL's communicators, also of groups that were not freed. All ranks call it.
static inline void comm_nccl_end(Comm* world) {
    CommJob* job = world->job;
    if (!world->nccl) return;
    fflush(stdout);
    const unsigned limit = alarm(COMM_LAST_WORDS); // whose signal ends this process if NCCL does not come to an end
    nccl_abort_all(&job->open);
    alarm(limit);
    cuda_check(cudaFree(job->scratch), "cudaFree");
    world->nccl = NULL;
}

static inline void comm_nccl_free(Comm* c) {
    if (!c->nccl) return;
    const int lanes = c->lanes ? c->lanes->n : 0;
    for (int i = 0; i < lanes; i++) comm_wait_for_stream(c->lanes->lane[i].group->stream);
    comm_wait_for_stream(c->nccl->stream);
    nccl_lanes_close(&c->job->open, c->lanes);
    nccl_close(&c->job->open, c->nccl);
    c->lanes = NULL;
    c->nccl = NULL;
}
