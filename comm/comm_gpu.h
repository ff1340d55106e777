/*
comm_gpu.h: operations on device memory. comm.h has the table of backends.

Staged through host memory. Device buffers are copied to the host, MPI works on the copies, results are copied back. A
copy from the device waits for the work that writes its source, and a copy to it comes after all earlier reads of its
destination.

NCCL, on the group's stream; a message on its lane (comm_nccl.h).

Shared GPUs. NCCL needs one GPU per rank: two ranks of a communicator on one GPU would wait for each other's kernels. So
all ranks exchange a card with their machine and the address of their GPU, and if two are equal, device memory goes
through the host, in all groups. To make NCCL accept shared GPUs, for tests, set
NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30) or a different NCCL_HOSTID for every rank (any NCCL; then also
NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket).
*/
#pragma once

#include "comm_types.h"

#include <signal.h>

// ---- Staging ----------------------------------------------------------------------------------------------------

// Whether the buffers of an operation are in device memory; false if it has none.
static inline bool comm_is_on_device(const CommRequest* r) {
    if (r->n == 0) return false;
    const bool out = device_holds(r->out), in = device_holds(r->in);
    if (r->out && r->in && out != in)
        die("internal error: %s in group \"%s\": one buffer is in host memory and one is not", comm_kind_name(r->kind),
            r->comm->name);
    return out || in;
}

#ifdef USE_CUDA
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

// Offsets of the staged copies of in and out: equal, except for a reduce-scatter, whose out follows its in.
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

// Copies device memory to the host, after the work that writes it; MPI works on the copy.
static inline void comm_stage_to_host(CommRequest* r) {
    char* block = (char*)checked_malloc(comm_staged_bytes(r), "messages of the GPU");
    if (comm_in_bytes(r) > 0) device_to_host(block + comm_staged_in(r), r->in, comm_in_bytes(r));
    r->staged = block;
    r->deliver = r->out;
    r->in = block + comm_staged_in(r);
    r->out = block + comm_staged_out(r);
}

static inline void comm_deliver(CommRequest* r) {
    if (comm_out_bytes(r) > 0) device_from_host(r->deliver, r->out, comm_out_bytes(r));
    free(r->staged);
    r->staged = NULL;
}
#endif

// ---- NCCL -------------------------------------------------------------------------------------------------------

#ifdef USE_NCCL
// Ends the run if NCCL reports an error.
static inline void comm_look(CommJob* job) {
    ncclResult_t code;
    const NcclGroup* broken = nccl_find_error(job->open, &code);
    if (!broken) return;
    usleep((useconds_t)(COMM_FIRST_WORD * 1e6)); // mpirun may end this rank meanwhile
    nccl_fail(code, broken, "an operation");
}

// The host waits for a stream, but not for ever if a rank has died.
static inline void comm_wait_for_stream(CommJob* job, cudaStream_t stream) {
    for (int looks = 0; !nccl_stream_is_done(stream); looks++) {
        comm_look(job);
        if (looks >= 100) usleep(20); // the first polls do not sleep: the work may be nearly done
    }
}

static inline ncclDataType_t comm_nccl_type(CommType type) {
    static const ncclDataType_t types[] = {ncclFloat32, ncclFloat64,  ncclInt32,  ncclInt64,
                                           ncclUint8,   ncclBfloat16, ncclFloat16};
    return types[type];
}

// Enqueues the operation on the stream of g: of its group, or of a lane, in which this rank's partner is the other one.
static inline void comm_nccl_issue(const CommRequest* r, const NcclGroup* g) {
    const ncclDataType_t type = comm_nccl_type(r->type);
    static const ncclRedOp_t ops[] = {ncclSum, ncclMax, ncclMin}; // by CommOp
    const ncclRedOp_t op = ops[r->op];
    const size_t n = (size_t)r->n, part = n / (size_t)g->size;
    const int peer = g == r->comm->nccl ? r->peer : 1 - g->rank;
    void* scratch = r->comm->job->scratch;
    ncclResult_t code = ncclSuccess;
    switch (r->kind) {
    case COMM_ALL_REDUCE: code = ncclAllReduce(r->in, r->out, n, type, op, g->comm, g->stream); break;
    case COMM_REDUCE_SCATTER: code = ncclReduceScatter(r->in, r->out, part, type, op, g->comm, g->stream); break;
    case COMM_ALL_GATHER: code = ncclAllGather(r->in, r->out, part, type, g->comm, g->stream); break;
    case COMM_BROADCAST: code = ncclBroadcast(r->in, r->out, n, type, peer, g->comm, g->stream); break;
    case COMM_SEND: code = ncclSend(r->in, n, type, peer, g->comm, g->stream); break;
    case COMM_RECEIVE: code = ncclRecv(r->out, n, type, peer, g->comm, g->stream); break;
    case COMM_BARRIER: code = ncclAllReduce(scratch, scratch, 1, ncclInt32, ncclMax, g->comm, g->stream); break;
    case COMM_ON_DEVICE: break;
    }
    nccl_check(code, g, comm_kind_name(r->kind));
}

static inline void comm_nccl_start(CommRequest* r) {
    const bool message = r->kind == COMM_SEND || r->kind == COMM_RECEIVE, sends = r->kind == COMM_SEND;
    const NcclGroup* g = r->comm->nccl;
    if (message && r->peer == g->rank) {
        if (!r->comm->lanes)
            die("internal error: a message to oneself in group \"%s\", which has no lanes", r->comm->name);
        r->self = &r->comm->lanes->self[r->number & 1];
        r->message = nccl_to_oneself(r->self, sends, sends ? (void*)(uintptr_t)r->in : r->out,
                                     sends ? comm_in_bytes(r) : comm_out_bytes(r), r->number);
        return;
    }
    if (message) {
        const NcclGroup* lane =
            nccl_lane(r->comm->lanes, sends ? g->rank : r->peer, sends ? r->peer : g->rank, r->number & 1);
        if (lane) g = lane;
    }
    nccl_begin(g);
    comm_nccl_issue(r, g);
    r->done = nccl_end(g);
}

static inline bool comm_nccl_is_done(const CommRequest* r) {
    if (r->self) return nccl_self_is_done(r->self, r->message);
    return !r->done || nccl_is_done(r->done);
}

static inline void comm_nccl_wait(CommRequest* r) {
    if (r->self && !nccl_self_is_done(r->self, r->message))
        die("internal error: %s in group \"%s\": the other half of a message to oneself has not been started",
            comm_kind_name(r->kind), r->comm->name);
    if (r->done) nccl_wait(r->done);
    r->done = NULL;
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
    char gpu[32], host[64];
    int32_t may_share;
} CommCard;

// The address of this rank's GPU on its machine.
static inline void comm_gpu(char address[32]) {
    int number = 0;
    cuda_check(cudaGetDevice(&number), "the GPU's number");
    cuda_check(cudaDeviceGetPCIBusId(address, 32, number), "the GPU's address");
}

// Whether the user makes NCCL accept ranks that share a GPU.
static inline bool comm_may_share(void) {
    const char *host = getenv("NCCL_HOSTID"), *enable = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return (host && *host) || (enable && atoi(enable) != 0);
}

static inline CommCard comm_card(const Comm* world) {
    CommCard card;
    memset(&card, 0, sizeof card); // also its padding, as its bytes are sent
    if (world->rank == 0 && ncclGetUniqueId(&card.id) != ncclSuccess)
        die("NCCL does not begin: %s; NCCL_DEBUG=WARN prints details", ncclGetLastError(NULL));
    card.machine = comm_machine();
    card.may_share = comm_may_share();
    gethostname(card.host, sizeof card.host - 1);
    comm_gpu(card.gpu);
    return card;
}

// Two ranks that share a GPU: a < b. False if there are none.
static inline bool comm_find_sharing(const CommCard* cards, int size, int* a, int* b) {
    for (*b = 1; *b < size; ++*b) {
        for (*a = 0; *a < *b; ++*a) {
            if (cards[*a].machine == cards[*b].machine && strcmp(cards[*a].gpu, cards[*b].gpu) == 0) return true;
        }
    }
    return false;
}

// Decides from the cards of all ranks (size) which backend has device memory, and opens the world's communicator.
// False: NCCL cannot, as ranks a and b share a GPU.
static inline bool comm_open_nccl(Comm* world, const CommCard* cards, int* a, int* b) {
    CommJob* job = world->job;
    int version = 0;
    bool may_share = true;
    for (int rank = 0; rank < world->size; rank++) may_share = may_share && cards[rank].may_share;
    const bool shared = comm_find_sharing(cards, world->size, a, b);
    if (shared && !may_share) return false;
    cuda_check(cudaMalloc(&job->scratch, 256), "cudaMalloc");
    world->nccl = nccl_open(&job->open, world->name, world->rank, world->size, cards[0].id);
    nccl_check(ncclGetVersion(&version), world->nccl, "the version");
    snprintf(job->device_text, sizeof job->device_text, "NCCL %d.%d.%d%s", version / 10000, version / 100 % 100,
             version % 100, shared ? ", ranks share a GPU" : "");
    return true;
}

// Ends a process whose communicators do not close in time. All its work is done, and the driver ends the kernels.
static char comm_end_late_text[256];
static void comm_end_late(int signal) {
    (void)signal;
    (void)!write(STDERR_FILENO, comm_end_late_text, strlen(comm_end_late_text));
    _exit(EXIT_RUN);
}

// Closes all of NCCL's communicators, also of groups that were not freed. All ranks call it.
static inline void comm_nccl_end(Comm* world) {
    CommJob* job = world->job;
    if (!world->nccl) return;
    fflush(stdout);
    snprintf(comm_end_late_text, sizeof comm_end_late_text,
             "%s: rank %d: NCCL did not close its communicators within %d s; all work was done before that\n",
             process.name, world->rank, COMM_LAST_WORDS);
    void (*const before)(int) = signal(SIGALRM, comm_end_late);
    const unsigned limit = alarm(COMM_LAST_WORDS);
    nccl_abort_all(&job->open);
    alarm(limit);
    signal(SIGALRM, before);
    cuda_check(cudaFree(job->scratch), "cudaFree");
    world->nccl = NULL;
}

static inline void comm_nccl_free(Comm* c) {
    if (!c->nccl) return;
    const int lanes = c->lanes ? c->lanes->n : 0;
    for (int i = 0; i < lanes; i++) comm_wait_for_stream(c->job, c->lanes->lane[i].group->stream);
    comm_wait_for_stream(c->job, c->nccl->stream);
    nccl_lanes_close(&c->job->open, c->lanes);
    nccl_close(&c->job->open, c->nccl);
    c->lanes = NULL;
    c->nccl = NULL;
}
#endif
