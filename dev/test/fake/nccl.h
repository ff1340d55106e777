/*
nccl.h: a model of the part of NVIDIA's NCCL that comm_nccl.h and comm_planned_nccl.h use, for tests without a GPU:
with the emulated CUDA of dev/emulator/cuda_emulator.h, found by -Idev/test/fake. Names and numbers are those of the
real header; what the calls do is taken from NCCL's user guide (2.28: "Creating a Communicator", "CUDA Stream
Semantics", "Point-to-point communication", "Fault Tolerance", "Environment Variables") and, where it is silent, from
its source (connections, aborts); nothing here depends on comm.h.

Ranks are processes. A communicator is a folder (in $FAKE_NCCL_DIR, /dev/shm or /tmp) whose name is the unique id; a
message is a file in it, "p2p.FROM.TO.NUMBER", which its receiver removes. A collective is a message of every rank to
every other one; each adds in the order of the ranks. A rank holds a lock on a file while it lives.

Where the documentation leaves a choice, the strictest or latest is taken: what may go wrong with NCCL does so here:

    operations      begin and end in the order of their stream, when somebody waits or asks. What is going to be
                    overwritten is 0xff in every byte from beginning to end
    groups          the calls of one (messages only here, on one stream) begin together and end together
    a send          ends when its receiver has taken the message: none is kept in flight
    matching        by the order of the calls, for each communicator and pair of ranks. Lengths, types, operations or
                    roots that do not fit end the process with a message (the real one: wrong numbers, or nothing)
    connections     the first message between two ranks in a direction, and the first collective unless
                    NCCL_RUNTIME_CONNECT was 0, hold up the HOST until the other rank comes to its half
    aborts          hold up the host until no kernel runs on the GPU and all ranks have aborted or are gone; those of a
                    group tell all kernels to end before they wait. FAKE_NCCL_ABORT_HANGS=1: they never end
    waiting         for more than $FAKE_NCCL_SECONDS (20) is taken for a deadlock, and ends the process with a message
    a dead rank     is noticed: operations that wait for it end, and ncclCommGetAsyncError says ncclRemoteError
    GPUs            two ranks on one GPU are refused, unless NCCL_HOSTID makes them look like two machines or
                    NCCL_MULTI_RANK_GPU_ENABLE is 1
*/
#pragma once

#include "../../../kernels/cuda_utils.cuh"
#include <dirent.h>
#include <limits.h>
#include <sys/file.h>

#include <string>
#include <vector>

#define NCCL_VERSION(X, Y, Z) ((X)*10000 + (Y)*100 + (Z))
#define NCCL_VERSION_CODE NCCL_VERSION(2, 28, 9)
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_UNIQUE_ID_BYTES 128

typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

enum ncclResult_t {
    ncclSuccess = 0,
    ncclSystemError = 2,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
};
enum ncclRedOp_t { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 };
enum ncclDataType_t { ncclUint8 = 1, ncclInt32 = 2, ncclInt64 = 4, ncclFloat32 = 7, ncclFloat64 = 8, ncclBfloat16 = 9 };
struct ncclConfig_t {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char* netName;
    int splitShare;
};
#define NCCL_CONFIG_INITIALIZER                                                                                        \
    {                                                                                                                  \
        sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,             \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NULL, NCCL_CONFIG_UNDEF_INT                                  \
    }

struct ncclComm {
    bool open, aborted;
    int max_ctas;   // of its configuration
    size_t buffers; // bytes of device memory: 64 KiB for each CTA
    std::string folder;
    int rank, size, lock;                 // lock: of the file "rank.RANK"
    ncclResult_t error;                   // that has happened on the way
    int pending;                          // operations begun and not ended
    int64_t collectives, splits;          // so far
    std::vector<int64_t> sent, received;  // messages to and from each rank
    std::vector<char> sending, receiving; // connections to and from each rank that are there, ...
    bool connected;                       // ... and those for collectives
};
typedef ncclComm* ncclComm_t;

namespace fake_nccl {

inline std::string last_error;
inline auto& all = *new std::vector<ncclComm*>; // none is ever freed: one that was destroyed is recognised

__attribute__((format(printf, 2, 3))) inline ncclResult_t fail(ncclResult_t code, const char* format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    last_error = text;
    return code;
}

// What NCCL would not say, and the program must not do.
__attribute__((noreturn, format(printf, 2, 3))) inline void stop(const ncclComm* c, const char* format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "fake NCCL: rank %d of %d of %s: %s\n", c->rank, c->size, c->folder.c_str(), text);
    _exit(70);
}

inline double patience() { return getenv("FAKE_NCCL_SECONDS") ? atof(getenv("FAKE_NCCL_SECONDS")) : 20; }

// ---- Files ------------------------------------------------------------------------------------------------------

inline std::string path(const ncclComm* c, const std::string& name) { return c->folder + "/" + name; }

inline bool exists(const ncclComm* c, const std::string& name) { return access(path(c, name).c_str(), F_OK) == 0; }

// Appears at once, as a whole.
inline void write_file(const ncclComm* c, const std::string& name, const std::string& bytes) {
    const std::string temporary = path(c, "." + name + "." + std::to_string(c->rank));
    FILE* f = fopen(temporary.c_str(), "wb");
    if (!f || fwrite(bytes.data(), 1, bytes.size(), f) != bytes.size() || fclose(f) != 0 ||
        rename(temporary.c_str(), path(c, name).c_str()) != 0)
        stop(c, "cannot write %s: %s", name.c_str(), strerror(errno));
}

inline bool read_file(const ncclComm* c, const std::string& name, std::string* bytes) {
    FILE* f = fopen(path(c, name).c_str(), "rb");
    if (!f) return false;
    fseek(f, 0, SEEK_END);
    bytes->resize((size_t)ftell(f));
    rewind(f);
    const bool ok = fread(&(*bytes)[0], 1, bytes->size(), f) == bytes->size();
    fclose(f);
    return ok;
}

// The rank has begun, and its process has ended or has let go of the communicator.
inline bool gone(const ncclComm* c, int rank) {
    if (exists(c, "gone." + std::to_string(rank))) return true;
    const int fd = open(path(c, "rank." + std::to_string(rank)).c_str(), O_RDONLY);
    if (fd < 0) return false;
    const bool free = flock(fd, LOCK_SH | LOCK_NB) == 0;
    close(fd);
    return free;
}

// The last one who leaves removes what is left.
inline void leave(ncclComm* c) {
    bool last = true;
    write_file(c, "gone." + std::to_string(c->rank), "");
    close(c->lock);
    cuda_on_cpu::memory.bytes -= c->buffers;
    for (int rank = 0; rank < c->size; rank++) last = last && gone(c, rank);
    DIR* folder = last ? opendir(c->folder.c_str()) : NULL;
    if (folder) {
        for (struct dirent* e; (e = readdir(folder));) unlink(path(c, e->d_name).c_str());
        closedir(folder);
    }
    if (last) rmdir(c->folder.c_str());
}

// ---- Waiting ----------------------------------------------------------------------------------------------------

// For one thing; asks now and then whether one of the ranks that it depends on is gone (-1: any).
struct Wait {
    double since, asked;
    Wait() : since(seconds_now()), asked(since) {}
    bool lost(ncclComm* c, int rank, const char* what) { // has to be given up
        const double now = seconds_now();
        if (c->aborted) return true;
        if (now - asked > 0.02) {
            asked = now;
            for (int r = 0; r < c->size; r++) {
                if (r == c->rank || (rank >= 0 && r != rank) || !gone(c, r)) continue;
                c->error = fail(ncclRemoteError, "rank %d is gone, and %s waits for it", r, what);
                return true;
            }
        }
        if (now - since > patience()) stop(c, "%s waits for more than %g s: a deadlock", what, patience());
        return false;
    }
};

// The host waits for a file, while its streams go on. False: the rank that should make it is gone.
inline bool host_waits(ncclComm* c, const std::string& name, int rank, const char* what) {
    Wait wait;
    while (!exists(c, name)) {
        if (wait.lost(c, rank, what) && !exists(c, name)) return false;
        cuda_on_cpu::progress();
        usleep(50);
    }
    return true;
}

// ---- Types and reductions ---------------------------------------------------------------------------------------

template <class T>
void reduce_as(char* to, const char* from, size_t n, ncclRedOp_t op) {
    for (size_t i = 0; i < n; i++) {
        T a, b;
        memcpy(&a, to + i * sizeof(T), sizeof(T)), memcpy(&b, from + i * sizeof(T), sizeof(T));
        T c = (op == ncclMax ? a > b : a < b) ? a : b;
        if (op == ncclSum) c = T(a + b);
        memcpy(to + i * sizeof(T), &c, sizeof(T));
    }
}

struct Type {
    ncclDataType_t name;
    size_t bytes;
    void (*reduce)(char* to, const char* from, size_t n, ncclRedOp_t op);
};
inline const Type types[] = {{ncclUint8, 1, reduce_as<uint8_t>},  {ncclInt32, 4, reduce_as<int32_t>},
                             {ncclInt64, 8, reduce_as<int64_t>},  {ncclFloat32, 4, reduce_as<float>},
                             {ncclFloat64, 8, reduce_as<double>}, {ncclBfloat16, 2, reduce_as<bf16>}};

inline const Type* type_of(int name) {
    for (const Type& t : types)
        if (t.name == name) return &t;
    return nullptr;
}

// ---- Operations -------------------------------------------------------------------------------------------------

enum Kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECEIVE };
inline const char* const kind_names[] = {"all-reduce", "reduce-scatter", "all-gather",
                                         "broadcast",  "message",        "message"};

// What has to be the same on all sides.
struct Header {
    int32_t kind, type, op, root; // SEND and RECEIVE are both SEND here
    int64_t count;
};

struct Operation {
    ncclComm* c;
    Kind kind;
    Header header;
    const char* in;
    char* out;
    size_t in_bytes, out_bytes;
    int peer;
    int64_t number;
    bool begun;
    std::vector<std::string> arrived; // (size) of a collective: what each rank has
    std::shared_ptr<Wait> wait;       // from the beginning on
};

inline std::string describe(const Operation& o) {
    char text[160], peer[32] = "";
    if (o.kind >= SEND) snprintf(peer, sizeof peer, " %s rank %d", o.kind == SEND ? "to" : "from", o.peer);
    snprintf(text, sizeof text, "%s number %lld%s, of %lld elements,", kind_names[o.kind], (long long)o.number, peer,
             (long long)o.header.count);
    return text;
}

inline std::string file_of(const Operation& o, int from, int to) {
    return (o.kind >= SEND ? "p2p." : "all.") + std::to_string(from) + "." + std::to_string(to) + "." +
           std::to_string(o.number);
}

inline std::string message_of(const Operation& o) {
    return std::string((const char*)&o.header, sizeof o.header) + std::string(o.in, o.in_bytes);
}

// Cuts the header off after a look at it.
inline void check_header(const Operation& o, std::string* message, int from) {
    Header h;
    memcpy(&h, message->data(), sizeof h);
    const Header& mine = o.header;
    if (h.kind != mine.kind || h.type != mine.type || h.op != mine.op || h.root != mine.root || h.count != mine.count)
        stop(o.c,
             "%s of type %d, operation %d, root %d; but rank %d: %s of %lld elements of type %d, operation %d, root %d",
             describe(o).c_str(), mine.type, mine.op, mine.root, from, kind_names[h.kind], (long long)h.count, h.type,
             h.op, h.root);
    message->erase(0, sizeof h);
}

// Makes the result of a collective of what all ranks had.
inline void complete(const Operation& o) {
    const Type* type = type_of(o.header.type);
    std::string result;
    for (int rank = 0; rank < o.c->size; rank++) {
        const std::string& x = o.arrived[rank];
        const size_t first = o.kind == REDUCE_SCATTER ? (size_t)o.c->rank * o.out_bytes : 0;
        if (o.kind == ALL_GATHER) result += x;
        if (o.kind == BROADCAST && rank == o.header.root) result = x;
        if (o.kind != ALL_REDUCE && o.kind != REDUCE_SCATTER) continue;
        if (rank == 0)
            result = x.substr(first, o.out_bytes);
        else
            type->reduce(&result[0], x.data() + first, o.out_bytes / type->bytes, (ncclRedOp_t)o.header.op);
    }
    memcpy(o.out, result.data(), o.out_bytes);
}

inline void begin(Operation& o) {
    const int rank = o.c->rank;
    o.begun = true;
    o.wait = std::make_shared<Wait>();
    if (o.kind == SEND) write_file(o.c, file_of(o, rank, o.peer), message_of(o));
    if (o.kind < SEND) {
        const bool silent = o.kind == BROADCAST && rank != o.header.root;
        if (silent) o.in_bytes = 0;
        for (int to = 0; to < o.c->size; to++) {
            if (to != rank) write_file(o.c, file_of(o, rank, to), message_of(o));
        }
        o.arrived.resize((size_t)o.c->size);
        o.arrived[rank] = std::string(o.in, o.in_bytes);
    }
    if (o.out_bytes) memset(o.out, 0xff, o.out_bytes);
}

// True when it has ended.
inline bool proceed(Operation& o, std::vector<char>& here) {
    ncclComm* c = o.c;
    if (c->aborted) return true;
    if (!o.begun) begin(o), here.assign((size_t)c->size, false), here[c->rank] = true;
    if (o.kind == SEND) return !exists(c, file_of(o, c->rank, o.peer)) || o.wait->lost(c, o.peer, describe(o).c_str());
    if (o.kind == RECEIVE) {
        std::string message;
        if (!read_file(c, file_of(o, o.peer, c->rank), &message)) return o.wait->lost(c, o.peer, describe(o).c_str());
        check_header(o, &message, o.peer);
        memcpy(o.out, message.data(), o.out_bytes);
        unlink(path(c, file_of(o, o.peer, c->rank)).c_str());
        return true;
    }
    for (int from = 0; from < c->size; from++) {
        std::string& message = o.arrived[from];
        if (here[from]) continue;
        if (!read_file(c, file_of(o, from, c->rank), &message)) return o.wait->lost(c, from, describe(o).c_str());
        check_header(o, &message, from);
        unlink(path(c, file_of(o, from, c->rank)).c_str());
        here[from] = true;
    }
    complete(o);
    return true;
}

// The first time, the host says that it has come, ...
inline void announce(const Operation& o) {
    ncclComm* c = o.c;
    const std::string me = std::to_string(c->rank), other = std::to_string(o.peer);
    if (o.kind < SEND && !c->connected) write_file(c, "connect." + me, "");
    if (o.kind == SEND && !c->sending[o.peer]) write_file(c, "sender." + me + "." + other, "");
    if (o.kind == RECEIVE && !c->receiving[o.peer]) write_file(c, "receiver." + me + "." + other, "");
}

// ... and waits for the others.
inline bool connect(const Operation& o) {
    ncclComm* c = o.c;
    const std::string me = std::to_string(c->rank), what = "the connection for " + describe(o);
    if (o.kind < SEND) {
        for (int rank = 0; rank < c->size && !c->connected; rank++) {
            if (!host_waits(c, "connect." + std::to_string(rank), rank, what.c_str())) return false;
        }
        return c->connected = true;
    }
    char* there = o.kind == SEND ? &c->sending[o.peer] : &c->receiving[o.peer];
    const std::string other = std::to_string(o.peer);
    const std::string wanted = (o.kind == SEND ? "receiver." : "sender.") + other + "." + me;
    if (*there) return true;
    *there = host_waits(c, wanted, o.peer, what.c_str());
    return *there;
}

inline bool overlap(const Operation& o) {
    if (!o.in_bytes || !o.out_bytes || o.in + o.in_bytes <= o.out || o.out + o.out_bytes <= o.in) return false;
    const size_t rank = (size_t)o.c->rank;
    if (o.kind == REDUCE_SCATTER) return o.out != o.in + rank * o.out_bytes;
    return o.in != o.out + (o.kind == ALL_GATHER ? rank * o.in_bytes : 0);
}

// Calls between ncclGroupStart and ncclGroupEnd begin together; they end when the last one does.
struct GroupedCall {
    Operation o;
    cudaStream_t stream;
};
inline int grouped; // groups that are open
inline auto& grouped_calls = *new std::vector<GroupedCall>;
inline auto& grouped_aborts = *new std::vector<ncclComm*>;

// Whether no kernel runs, and all ranks of what is aborted have come to that or are gone. The last one removes the
// folder.
inline bool aborts_are_done() {
    if (getenv("FAKE_NCCL_ABORT_HANGS")) return false;
    for (const ncclComm* c : all) {
        if (c->pending > 0) return false;
    }
    for (const ncclComm* c : grouped_aborts) {
        for (int rank = 0; rank < c->size; rank++) {
            if (exists(c, "") && !gone(c, rank)) return false;
        }
    }
    return true;
}

inline void finish_aborts() {
    const double since = seconds_now();
    while (!grouped_aborts.empty() && !aborts_are_done()) {
        if (seconds_now() - since > patience())
            stop(grouped_aborts[0], "an abort waits for more than %g s for kernels or other ranks: a deadlock",
                 patience());
        cuda_on_cpu::progress();
        usleep(50);
    }
    grouped_aborts.clear();
}

inline ncclResult_t start_grouped() {
    std::vector<GroupedCall> calls;
    calls.swap(grouped_calls);
    std::vector<Operation> together;
    for (const GroupedCall& call : calls) announce(call.o);
    for (const GroupedCall& call : calls) {
        if (!connect(call.o)) return ncclRemoteError;
        if (call.stream != calls[0].stream)
            return fail(ncclInvalidUsage, "this model has one stream for a group of calls");
        call.o.c->pending++;
        together.push_back(call.o);
    }
    if (calls.empty()) return ncclSuccess;
    std::vector<std::vector<char>> here(together.size());
    std::vector<char> ended(together.size());
    cuda_on_cpu::stream_push(calls[0].stream, [together, here, ended]() mutable {
        bool all_ended = true;
        for (size_t i = 0; i < together.size(); i++) {
            if (!ended[i] && (ended[i] = proceed(together[i], here[i]))) together[i].c->pending--;
            all_ended = all_ended && ended[i];
        }
        return all_ended;
    });
    return ncclSuccess;
}

inline ncclResult_t start(ncclComm* c, Kind kind, const void* in, size_t in_count, void* out, size_t out_count,
                          ncclDataType_t type, ncclRedOp_t op, int peer, cudaStream_t stream) {
    if (!c || std::find(all.begin(), all.end(), c) == all.end() || !c->open)
        return fail(ncclInvalidArgument, "the communicator does not exist, or has been destroyed");
    if (!type_of(type)) return fail(ncclInvalidArgument, "there is no type %d", (int)type);
    if (peer < 0 || peer >= c->size) return fail(ncclInvalidArgument, "there is no rank %d of %d", peer, c->size);
    if (kind >= SEND && peer == c->rank)
        return fail(ncclInvalidUsage, "a message to oneself without the other half in the same group of calls");
    if (!cuda_on_cpu::valid(stream)) return fail(ncclInvalidArgument, "the stream does not exist");
    if (c->error != ncclSuccess) return fail(c->error, "the communicator is broken since an earlier error");
    Operation o = {};
    o.c = c;
    o.kind = kind;
    o.header = {kind == RECEIVE ? SEND : kind, type, op, kind == BROADCAST ? peer : -1, 0};
    o.in = (const char*)in;
    o.out = (char*)out;
    o.in_bytes = in_count * type_of(type)->bytes;
    o.out_bytes = out_count * type_of(type)->bytes;
    o.peer = peer;
    o.header.count = (int64_t)(kind == SEND || kind == ALL_GATHER ? in_count : out_count);
    const bool reads = kind != BROADCAST || peer == c->rank;
    if (reads && o.in_bytes && !cuda_on_cpu::memory.has(in, o.in_bytes))
        return fail(ncclInvalidArgument, "what is sent, %zu bytes at %p, is not device memory", o.in_bytes, in);
    if (o.out_bytes && !cuda_on_cpu::memory.has(out, o.out_bytes))
        return fail(ncclInvalidArgument, "what is received, %zu bytes at %p, is not device memory", o.out_bytes, out);
    if (reads && overlap(o))
        return fail(ncclInvalidArgument, "the two buffers overlap, and not as in-place operations do");
    int64_t* number = &c->collectives;
    if (kind == SEND) number = &c->sent[peer];
    if (kind == RECEIVE) number = &c->received[peer];
    o.number = (*number)++;
    if (grouped > 0 && kind < SEND) return fail(ncclInvalidUsage, "this model has no collectives in groups of calls");
    grouped_calls.push_back({o, stream});
    return grouped > 0 ? ncclSuccess : start_grouped();
}

// ---- Begin ------------------------------------------------------------------------------------------------------

inline std::string machine() {
    char name[128] = "";
    gethostname(name, sizeof name - 1);
    return getenv("NCCL_HOSTID") ? getenv("NCCL_HOSTID") : name;
}

// The number of ranks, and the GPU, of one that has written its file.
inline ncclResult_t check_member(ncclComm* c, int rank, const std::string& mine) {
    std::string theirs;
    read_file(c, "rank." + std::to_string(rank), &theirs);
    const std::string size = mine.substr(0, mine.find('\n'));
    if (theirs.substr(0, theirs.find('\n')) != size)
        return fail(ncclInvalidUsage, "rank %d says that there are %d ranks, rank %d another number", c->rank, c->size,
                    rank);
    const char* share = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (rank != c->rank && theirs == mine && !(share && atoi(share) == 1))
        return fail(ncclInvalidUsage, "Duplicate GPU detected : rank %d and rank %d both on the same CUDA device",
                    c->rank, rank);
    return ncclSuccess;
}

inline ncclResult_t join(ncclComm_t* made, const std::string& folder, int size, int rank, const ncclConfig_t* config) {
    if (size < 1 || rank < 0 || rank >= size) return fail(ncclInvalidArgument, "rank %d of %d", rank, size);
    if (config->magic != 0xcafebeef || config->size != sizeof *config)
        return fail(ncclInvalidArgument, "the configuration has not been initialised");
    ncclComm* c = new ncclComm();
    all.push_back(c);
    c->folder = folder;
    c->rank = rank;
    c->size = size;
    c->open = true;
    c->max_ctas = config->maxCTAs;
    c->buffers = (size_t)(c->max_ctas == NCCL_CONFIG_UNDEF_INT ? 32 : c->max_ctas) << 16;
    cuda_on_cpu::memory.bytes += c->buffers;
    c->sent.resize((size_t)size), c->received.resize((size_t)size);
    c->sending.resize((size_t)size), c->receiving.resize((size_t)size);
    c->connected = getenv("NCCL_RUNTIME_CONNECT") && atoi(getenv("NCCL_RUNTIME_CONNECT")) == 0;
    mkdir(folder.c_str(), 0700);
    char gpu[32] = "";
    int device = 0;
    cudaGetDevice(&device);
    cudaDeviceGetPCIBusId(gpu, sizeof gpu, device);
    const std::string name = "rank." + std::to_string(rank),
                      mine = std::to_string(size) + "\n" + machine() + "\n" + gpu;
    if (exists(c, name)) return fail(ncclInvalidUsage, "there is a rank %d already", rank);
    // The lock comes before the name: who sees the file sees the lock.
    const std::string temporary = path(c, "." + name);
    c->lock = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (c->lock < 0 || flock(c->lock, LOCK_EX) != 0 ||
        write(c->lock, mine.data(), mine.size()) != (ssize_t)mine.size() ||
        rename(temporary.c_str(), path(c, name).c_str()) != 0)
        return fail(ncclSystemError, "%s: %s", temporary.c_str(), strerror(errno));
    for (int r = 0; r < size; r++) {
        if (!host_waits(c, "rank." + std::to_string(r), r, "the start of a communicator")) return ncclRemoteError;
        const ncclResult_t code = check_member(c, r, mine);
        if (code != ncclSuccess) return code;
    }
    *made = c;
    return ncclSuccess;
}

} // namespace fake_nccl

// ---- The interface ----------------------------------------------------------------------------------------------

inline const char* ncclGetErrorString(ncclResult_t code) { return code == ncclSuccess ? "no error" : "an error"; }
inline const char* ncclGetLastError(ncclComm_t) { return fake_nccl::last_error.c_str(); }
inline ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }

inline ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    static int made = 0;
    const char* folder = getenv("FAKE_NCCL_DIR");
    if (!folder) folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%.80s/fake_nccl.%d.%d", folder, (int)getpid(), made++);
    return ncclSuccess;
}

inline ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                           ncclConfig_t* config) {
    return fake_nccl::join(comm, id.internal, size, rank, config);
}

inline ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
    using namespace fake_nccl;
    if (!comm->open) return fail(ncclInvalidArgument, "the communicator has been destroyed");
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR) return fail(ncclInvalidArgument, "color %d", color);
    if (comm->pending) return fail(ncclInvalidUsage, "%d operations of the parent are outstanding", comm->pending);
    const std::string number = std::to_string(comm->splits++);
    const int mine[2] = {color, key};
    int rank = 0, size = 0;
    write_file(comm, "split." + number + "." + std::to_string(comm->rank), std::string((const char*)mine, sizeof mine));
    for (int r = 0; r < comm->size; r++) {
        const std::string name = "split." + number + "." + std::to_string(r);
        std::string theirs;
        int other[2];
        if (!host_waits(comm, name, r, "a split")) return ncclRemoteError;
        read_file(comm, name, &theirs);
        memcpy(other, theirs.data(), sizeof other);
        if (other[0] != color) continue;
        size++;
        rank += other[1] < key || (other[1] == key && r < comm->rank);
    }
    *made = NULL;
    if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
    return join(made, comm->folder + "-" + number + "-" + std::to_string(color), size, rank, config);
}

inline ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    if (!comm->open) return fake_nccl::fail(ncclInvalidArgument, "the communicator has been destroyed");
    return *error = comm->error, ncclSuccess;
}

// Waits for messages in flight.
inline ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (!comm->open) return fake_nccl::fail(ncclInvalidArgument, "the communicator has been destroyed already");
    cuda_on_cpu::progress_until([=] { return comm->pending == 0; });
    comm->open = false;
    fake_nccl::leave(comm);
    return ncclSuccess;
}

inline ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (!comm->open) return fake_nccl::fail(ncclInvalidArgument, "the communicator has been destroyed already");
    comm->aborted = true;
    comm->open = false;
    fake_nccl::leave(comm);
    fake_nccl::grouped_aborts.push_back(comm);
    if (fake_nccl::grouped == 0) fake_nccl::finish_aborts();
    return ncclSuccess;
}

inline ncclResult_t ncclGroupStart() { return fake_nccl::grouped++, ncclSuccess; }
inline ncclResult_t ncclGroupEnd() {
    if (fake_nccl::grouped == 0)
        return fake_nccl::fail(ncclInvalidUsage, "the end of a group of calls that was not begun");
    if (--fake_nccl::grouped > 0) return ncclSuccess;
    fake_nccl::finish_aborts();
    return fake_nccl::start_grouped();
}

inline ncclResult_t ncclAllReduce(const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                                  ncclComm_t comm, cudaStream_t stream) {
    return fake_nccl::start(comm, fake_nccl::ALL_REDUCE, in, n, out, n, type, op, 0, stream);
}
inline ncclResult_t ncclReduceScatter(const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                                      ncclComm_t comm, cudaStream_t stream) {
    return fake_nccl::start(comm, fake_nccl::REDUCE_SCATTER, in, n * (size_t)comm->size, out, n, type, op, 0, stream);
}
inline ncclResult_t ncclAllGather(const void* in, void* out, size_t n, ncclDataType_t type, ncclComm_t comm,
                                  cudaStream_t stream) {
    return fake_nccl::start(comm, fake_nccl::ALL_GATHER, in, n, out, n * (size_t)comm->size, type, ncclSum, 0, stream);
}
inline ncclResult_t ncclBroadcast(const void* in, void* out, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                                  cudaStream_t stream) {
    return fake_nccl::start(comm, fake_nccl::BROADCAST, in, n, out, n, type, ncclSum, root, stream);
}
inline ncclResult_t ncclSend(const void* in, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
    return fake_nccl::start(comm, fake_nccl::SEND, in, n, NULL, 0, type, ncclSum, peer, stream);
}
inline ncclResult_t ncclRecv(void* out, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return fake_nccl::start(comm, fake_nccl::RECEIVE, NULL, 0, out, n, type, ncclSum, peer, stream);
}
