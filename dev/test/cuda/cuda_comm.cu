/*
cuda_comm.cu: comm.h where there is a device: every operation on device memory and on host memory, whoever carries it;
messages on lanes in adverse orders, and whole schedules; how it all ends when something goes wrong.
dev/test/cuda/cuda_comm.sh builds it twice, and starts it with 1 to 4 ranks:

    without NCCL      device memory goes through the host
    with NCCL         NCCL carries device memory, MPI host memory; or, where ranks share a GPU, as before

NCCL is that of dev/test/fake on the emulator, and the real one on GPUs. Every rank counts its own checks; rank 0 prints
all of its own, the others what failed.

--short: 700 operations on 40 communicators, for three ranks that share a GPU, where an operation may take 10 ms.
--seconds N: a limit; each rank that is not done by then says so.

Exit status: 0 all right; 1 a check failed, or a rank ended with an error; 2 wrong arguments; 124 not done in time. One
rank out of time can make the others fail: the largest status of all ranks says what happened.

With one of the words of comm_modes.h as argument it does one thing that ends the program.
*/
#include "../../../comm/check_same.h"
#include "../../../comm/collectives/collectives.h"
#include "../../../comm.h"
#include "../../../comm/cpu_affinity.h"
#include "../../../parallel/schedule_check.h"
#include "comm_buffers.h"
#include "comm_modes.h"
#include "cuda_test.h"

static Comm world;
static bool brief; // --short

__attribute__((format(printf, 2, 3))) static void check_here(bool ok, const char* format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (process.rank <= 0) {
        check(ok, "%s", text);
        return;
    }
    *(ok ? &test_count.passed : &test_count.failed) += 1;
    if (!ok) printf("FAIL  rank %d: %s\n", process.rank, text);
    fflush(stdout);
}

// ---- Every operation against its definition, and what it counts -------------------------------------------------

// Waits for what was started in a way that depends on `how`: at once, after some calls of comm_progress, ...
static void finish(CommRequest* r, int how) {
    for (int i = 0; i < 10 * (how % 3); i++) comm_progress(r, 1);
    if (how % 2) comm_synchronize(&world); // not needed, and does no harm
    comm_wait(r);
}

// n: of a part. how: 0 blocks, as a broadcast always does, which comes from rank how % size. in_place: of an all-gather
static bool test_operation(Comm* c, bool device, CommKind kind, int64_t n, CommType type, CommOp op, int how,
                           bool in_place) {
    const int root = how % c->size;
    const int64_t ins = kind == COMM_REDUCE_SCATTER ? n * c->size : n, outs = kind == COMM_ALL_GATHER ? n * c->size : n;
    const int64_t counted = c->size_bytes, at = in_place ? n * c->rank : 0;
    const bool same = in_place || kind == COMM_ALL_REDUCE || kind == COMM_BROADCAST; // one buffer for in and out
    Buffer apart = buffer_new(device, same ? 0 : ins, type), out = buffer_new(device, outs, type);
    Buffer* in = same ? &out : &apart;
    const char* from = in->p + at * comm_type_bytes(type);
    buffer_fill(in, at, ins, c->rank, 0);
    CommRequest r = {};
    if (kind == COMM_BROADCAST) comm_broadcast(c, out.p, n, type, root);
    if (kind == COMM_ALL_REDUCE && how == 0) comm_all_reduce(c, out.p, n, type, op);
    if (kind == COMM_ALL_REDUCE && how > 0) r = comm_all_reduce_start(c, out.p, n, type, op);
    if (kind == COMM_REDUCE_SCATTER && how == 0) comm_reduce_scatter(c, out.p, from, n, type);
    if (kind == COMM_REDUCE_SCATTER && how > 0) r = comm_reduce_scatter_start(c, out.p, from, n, type);
    if (kind == COMM_ALL_GATHER && how == 0) comm_all_gather(c, out.p, from, n, type);
    if (kind == COMM_ALL_GATHER && how > 0)
        r = comm_start(comm_request(c, COMM_ALL_GATHER, out.p, from, n * c->size, type));
    if (how > 0) finish(&r, how);
    buffer_get(&out), buffer_get(&apart);
    bool ok = buffer_is_whole(&out) && buffer_is_whole(&apart);
    if (kind == COMM_ALL_REDUCE && !c->plans)
        ok = ok && c->size_bytes - counted == 2 * n * comm_type_bytes(type) * (c->size - 1);
    for (int64_t i = 0; i < outs; i++) {
        int64_t expected = value(root, i, type);
        if (kind == COMM_ALL_REDUCE) expected = reduced(c->size, i, type, op);
        if (kind == COMM_REDUCE_SCATTER) expected = reduced(c->size, c->rank * n + i, type, COMM_SUM);
        if (kind == COMM_ALL_GATHER) expected = value((int)(i / n), i % n, type);
        ok = ok && is(out.copy, i, type, expected);
    }
    for (int64_t i = 0; i < apart.n; i++) ok = ok && is(in->copy, i, type, value(c->rank, i, type));
    buffer_free(&apart), buffer_free(&out);
    return ok;
}

static void test_operations(Comm* c, const char* label, int64_t n) {
    for (int i = 0; i < 8; i++) {
        static const CommKind kinds[] = {COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER, COMM_BROADCAST};
        const CommKind kind = kinds[i / 2];
        const bool device = i % 2, sums = kind == COMM_ALL_REDUCE || kind == COMM_REDUCE_SCATTER;
        bool ok = true;
        for (int k = 0; k < 6 * 4 * 3; k++) {
            const CommType type = (CommType)(k % 6);
            const int how = k / 6 % 4, last = k / 24; // which sum; or whether in place
            if ((brief && how != type % 4) || (sums && type == COMM_BYTE)) continue;
            if (kind == COMM_ALL_REDUCE ? last > 0 && is_sixteen(type) : last > (kind == COMM_ALL_GATHER)) continue;
            const CommOp op = kind == COMM_ALL_REDUCE ? (CommOp)last : COMM_SUM;
            ok = ok && test_operation(c, device, kind, n, type, op, how, kind == COMM_ALL_GATHER && last == 1);
        }
        check_here(ok, "%s, %s memory: %s of %lld, every type; bytes", label, device ? "device" : "host",
                   comm_kind_name(kind), (long long)n);
    }
}

// The same operations by plan; and several in flight at once.
static void test_layout(const char* network, const char* algorithm, int64_t n) {
    Comm group = comm_split(&world, 0, world.rank, "planned", COMM_WIDE);
    Network net;
    Error error;
    char label[128];
    int plans = 0;
    if (!network_build(&net, network, &error)) die("%s", error.text);
    for (int kind = 0; kind < PLAN_KINDS; kind++) {
        Plan plan;
        if (!collective_build(&plan, algorithm, (PlanKind)kind, &net, &error)) continue;
        if (!plan_check(&plan, &net, &error)) die("%s", error.text);
        comm_use_plan(&group, &plan);
        plan_free(&plan);
        plans++;
    }
    snprintf(label, sizeof label, "%s on %s (%d plans)", algorithm, network, plans);
    test_operations(&group, label, n);
    enum { AT_ONCE = 20 };
    Buffer x[AT_ONCE];
    CommRequest r[AT_ONCE];
    bool ok = true;
    for (int i = 0; i < AT_ONCE; i++) {
        x[i] = buffer_new(i % 2, n + i, COMM_FLOAT);
        buffer_fill(&x[i], 0, n + i, world.rank, i);
    }
    for (int i = 0; i < AT_ONCE; i++) r[i] = comm_all_reduce_start(&group, x[i].p, n + i, COMM_FLOAT, COMM_SUM);
    for (int i = 0; i < AT_ONCE; i++) comm_progress(r, AT_ONCE), comm_wait(&r[i * 7 % AT_ONCE]);
    for (int i = 0; i < AT_ONCE; i++) {
        buffer_get(&x[i]);
        ok = ok && buffer_is_whole(&x[i]);
        for (int64_t k = 0; k < n + i; k++)
            ok = ok && is(x[i].copy, k, COMM_FLOAT, reduced(world.size, k + i, COMM_FLOAT, COMM_SUM));
        buffer_free(&x[i]);
    }
    check_here(ok, "%s: %d all-reduces of %lld at once", label, (int)AT_ONCE, (long long)n);
    network_free(&net);
    comm_free(&group);
}

static void test_plans(void) {
    static const char* const algorithms[] = {"ring", "halving-doubling", "double-tree", "multitree"};
    char full[32];
    snprintf(full, sizeof full, "full:%d", world.size);
    for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms; i++) {
        if (!brief || i == 3) test_layout(full, algorithms[i], i % 2 ? 1001 : 3);
    }
    if (world.size == 4) test_layout("torus:2x2", "2d-ring", 999);
    if (world.size == 4) test_layout("mesh:2x2", "torus-ring", 7);
}

// Nothing at all, also where a rank has no buffer for it.
static void test_nothing(bool device) {
    Buffer b = buffer_new(device, 1, COMM_FLOAT);
    void* p = world.rank % 2 ? NULL : b.p;
    comm_all_reduce(&world, p, 0, COMM_FLOAT, COMM_SUM);
    CommRequest r = comm_start(comm_request(&world, COMM_ALL_GATHER, p, p, 0, COMM_BF16));
    comm_wait(&r);
    comm_broadcast(&world, p, 0, COMM_INT64, 0);
    comm_barrier(&world);
    check_here(!r.active, "%s: nothing is no trouble", device ? "device memory" : "host memory");
    buffer_free(&b);
}

// More than the device has at hand for the host.
static void test_much(bool device) {
    check_here(test_operation(&world, device, COMM_ALL_REDUCE, 300000, COMM_DOUBLE, COMM_SUM, 0, false),
               "%s: all-reduce of 2.4 MB", device ? "device memory" : "host memory");
}

// Sums of bf16: of two ranks the exact sum, rounded to nearest, ties to even; of more within their roundings.
static void test_rounding(void) {
    enum { N = 5000 };
    const double u = 0x1p-8, tiny = 0x1p-133;
    double worst = 0;
    bool exact = true;
    for (int device = 0; device < 2; device++) {
        Buffer b = buffer_new(device, N, COMM_BF16);
        uint16_t mine[4][N];
        for (int rank = 0; rank < world.size; rank++) {
            for (int i = 0; i < N; i++) {
                const float x = ldexpf(2 * random_uniform(5, (uint64_t)rank, (uint64_t)i) - 1, i % 29 - 20);
                mine[rank][i] = f32_to_bf16(x);
            }
        }
        memcpy(b.copy, mine[world.rank], sizeof mine[0]);
        buffer_set(&b);
        comm_all_reduce(&world, b.p, N, COMM_BF16, COMM_SUM);
        buffer_get(&b);
        for (int i = 0; i < N; i++) {
            double sum = 0, size = 0;
            uint16_t got;
            memcpy(&got, b.copy + 2 * i, 2);
            for (int rank = 0; rank < world.size; rank++) {
                const double x = bf16_to_f32(mine[rank][i]);
                sum = rank == 0 ? x : sum + x;
                size += fabs(x);
            }
            const double y = bf16_to_f32(got);
            const float rounded = (float)sum; // exact for two 16-bit floats of these sizes
            exact = exact && got == f32_to_bf16(rounded);
            worst = fmax(worst, fabs(y - sum) / (u * size + tiny));
        }
        buffer_free(&b);
    }
    if (world.size <= 2) check_here(exact, "bf16: the sum of two is rounded to nearest");
    check_here(worst <= world.size - 1, "bf16: sums in units of the roundoff: %.2f <= %d", worst, world.size - 1);
}

// ---- Order: with the compute stream, and not before the wait ----------------------------------------------------

__global__ static void __launch_bounds__(128) add_kernel(float* x, int n, float what) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i] = x[i] + what;
}

static void add(Buffer* x, float what) {
    launch(launch_shape(dim3((unsigned)blocks_for(x->n, 128)), dim3(128)), add_kernel, (float*)x->p, (int)x->n, what);
}

// Kernel, sum, kernel, sum, ... and the host looks once, at the end.
static void test_order_of_streams(void) {
    enum { N = 1000, ROUNDS = 5 };
    Buffer x = buffer_new(true, N, COMM_FLOAT);
    buffer_fill(&x, 0, N, world.rank, 0);
    for (int k = 0; k < ROUNDS; k++) {
        add(&x, (float)(world.rank + k));
        CommRequest r = comm_all_reduce_start(&world, x.p, N, COMM_FLOAT, COMM_MAX);
        comm_wait(&r);
    }
    comm_synchronize(&world);
    buffer_get(&x);
    int added =
        world.size - 1; // in the first round the largest is not that of the last rank; in the others all are the same
    for (int k = 1; k < ROUNDS; k++) added += world.size - 1 + k;
    bool ok = buffer_is_whole(&x);
    for (int64_t i = 0; i < N; i++) {
        int largest = -1000;
        for (int rank = 0; rank < world.size; rank++)
            largest = (int)max_i64(largest, value(rank, i, COMM_FLOAT) + rank - (world.size - 1));
        ok = ok && is(x.copy, i, COMM_FLOAT, largest + added);
    }
    check_here(ok, "kernels and operations in their order, without the host");
    buffer_free(&x);
}

// With NCCL a started operation has not touched its result before a rank waits (on the emulator, which is as late as
// may be).
static void test_not_before_the_wait(void) {
#if defined USE_NCCL && !defined __CUDACC__
    enum { N = 300 };
    if (!world.nccl) return;
    Buffer x = buffer_new(true, N, COMM_FLOAT), y = buffer_new(true, N, COMM_FLOAT);
    buffer_fill(&x, 0, N, world.rank, 0), buffer_fill(&y, 0, N, world.rank, 1);
    CommRequest first = comm_all_reduce_start(&world, x.p, N, COMM_FLOAT, COMM_SUM);
    check_here(strcmp(first.backend->name, "NCCL") == 0, "device memory goes through NCCL");
    CommRequest second = comm_all_reduce_start(&world, y.p, N, COMM_FLOAT, COMM_SUM);
    buffer_get(&x);
    bool before = true, after = true;
    for (int64_t i = 0; i < N; i++) before = before && is(x.copy, i, COMM_FLOAT, value(world.rank, i, COMM_FLOAT));
    check_here(cuda_on_cpu::deferring() || (before && first.active),
               "NCCL: the host goes on, and the result is not there yet");
    comm_wait(&second);
    comm_wait(&first);
    buffer_get(&x), buffer_get(&y);
    for (int64_t i = 0; i < N; i++) {
        after = after && is(x.copy, i, COMM_FLOAT, reduced(world.size, i, COMM_FLOAT, COMM_SUM));
        after = after && is(y.copy, i, COMM_FLOAT, reduced(world.size, i + 1, COMM_FLOAT, COMM_SUM));
    }
    check_here(after, "NCCL: after the wait it is, of operations waited for in another order too");
    buffer_free(&x), buffer_free(&y);
#endif
}

// The first all-reduce of a group does not hold up rank 0's host: the others start theirs after a broadcast that rank 0
// starts then.
static void test_first_operation(void) {
    Comm group = comm_split(&world, 0, world.rank, "first", COMM_WIDE);
    Buffer x = buffer_new(true, 100, COMM_FLOAT), token = buffer_new(false, 1, COMM_INT32);
    buffer_fill(&x, 0, x.n, group.rank, 0);
    CommRequest r;
    if (world.rank == 0) r = comm_all_reduce_start(&group, x.p, x.n, COMM_FLOAT, COMM_SUM);
    comm_broadcast(&world, token.p, 1, COMM_INT32, 0);
    if (world.rank > 0) r = comm_all_reduce_start(&group, x.p, x.n, COMM_FLOAT, COMM_SUM);
    comm_wait(&r);
    buffer_get(&x);
    bool ok = buffer_is_whole(&x);
    for (int64_t i = 0; i < x.n; i++) ok = ok && is(x.copy, i, COMM_FLOAT, reduced(group.size, i, x.type, COMM_SUM));
    check_here(ok, "the first operation of a group does not hold up the host");
    buffer_free(&x), buffer_free(&token);
    comm_free(&group);
}

// comm_progress sees the end of an operation, and the wait counts from then.
static void test_progress(void) {
    Buffer x = buffer_new(true, 100, COMM_FLOAT);
    Trace trace;
    trace_init(&trace, 100);
    world.trace = &trace;
    CommRequest r = comm_all_reduce_start(&world, x.p, 100, COMM_FLOAT, COMM_SUM);
    r.number = 42;
    const double limit = seconds_now() + 20;
    while (r.active && r.finished == 0 && seconds_now() < limit) comm_progress(&r, 1);
    const double finished = r.finished;
    comm_wait(&r);
    world.trace = NULL;
    const bool alone = world.size == 1;
    check_here(alone || (finished > r.started && r.finished == finished && !r.active && trace.n >= 1 &&
                         trace.spans[0].number == 42 && trace.spans[0].end == finished),
               "progress: the end of an operation is seen, and is in the trace");
    trace_free(&trace);
    buffer_free(&x);
}

// ---- Groups -----------------------------------------------------------------------------------------------------

static void test_groups(int columns) {
    const int row = world.rank / columns, column = world.rank % columns, rows = world.size / columns;
    char label[64];
    setenv("COLLECTIVE_CTAS", columns % 2 ? "3" : "", 1);
    Comm in_row = comm_split(&world, row, column, "row", COMM_WIDE),
         in_column = comm_split(&world, column, -row, "column", COMM_NARROW);
    unsetenv("COLLECTIVE_CTAS");
#if defined USE_NCCL && !defined __CUDACC__
    check_here((!world.nccl || world.nccl->comm->max_ctas == NCCL_NARROW_CTAS) &&
                   (!in_row.nccl || in_row.nccl->comm->max_ctas == (columns % 2 ? 3 : NCCL_CONFIG_UNDEF_INT)) &&
                   (!in_column.nccl || in_column.nccl->comm->max_ctas == NCCL_NARROW_CTAS),
               "%d x %d: the world and narrow groups have few CTAs, others NCCL's or the user's number", rows, columns);
#endif
    check_here(in_row.rank == column && in_row.size == columns && in_column.rank == rows - 1 - row &&
                   in_column.size == rows,
               "%d x %d: ranks in rows and, the other way round, in columns", rows, columns);
    snprintf(label, sizeof label, "%d x %d, a row", rows, columns);
    test_operations(&in_row, label, 33);
    snprintf(label, sizeof label, "%d x %d, a column", rows, columns);
    test_operations(&in_column, label, 33);
    // Of three groups at the same time, waited for by every rank in an order of its own.
    enum { N = 500 };
    Buffer a = buffer_new(true, N, COMM_FLOAT), b = buffer_new(true, N, COMM_BF16), c = buffer_new(true, N, COMM_INT32);
    buffer_fill(&a, 0, N, in_row.rank, 0), buffer_fill(&b, 0, N, in_column.rank, 0),
        buffer_fill(&c, 0, N, world.rank, 0);
    CommRequest r[3];
    r[0] = comm_all_reduce_start(&in_row, a.p, N, COMM_FLOAT, COMM_SUM);
    r[1] = comm_all_reduce_start(&in_column, b.p, N, COMM_BF16, COMM_SUM);
    r[2] = comm_all_reduce_start(&world, c.p, N, COMM_INT32, COMM_MAX);
#ifdef USE_NCCL
    check_here(*collectives_in_flight() == !!in_row.nccl + !!in_column.nccl + !!world.nccl,
               "%d x %d: NCCL's sums in flight are counted: %d", rows, columns, *collectives_in_flight());
#endif
    for (int i = 0; i < 3; i++) comm_wait(&r[(i + world.rank) % 3]);
    check_here(*collectives_in_flight() == 0, "%d x %d: no sum of NCCL is in flight", rows, columns);
    buffer_get(&a), buffer_get(&b), buffer_get(&c);
    bool ok = true;
    for (int64_t i = 0; i < N; i++) {
        ok = ok && is(a.copy, i, COMM_FLOAT, reduced(columns, i, COMM_FLOAT, COMM_SUM));
        ok = ok && is(b.copy, i, COMM_BF16, reduced(rows, i, COMM_BF16, COMM_SUM));
        ok = ok && is(c.copy, i, COMM_INT32, reduced(world.size, i, COMM_INT32, COMM_MAX));
    }
    check_here(ok, "%d x %d: operations of three groups at the same time", rows, columns);
    buffer_free(&a), buffer_free(&b), buffer_free(&c);
    comm_free(&in_row), comm_free(&in_column);
    check_here(in_row.size == 1 && in_column.size == 1, "%d x %d: freed", rows, columns);
    // Equal keys keep the parent's order; a group splits into groups.
    Comm turned = comm_split(&world, 0, -world.rank, "turned", COMM_WIDE),
         same = comm_split(&turned, turned.rank / columns, 7, "same", COMM_WIDE);
    check_here(turned.rank == world.size - 1 - world.rank && same.rank == turned.rank % columns && same.size == columns,
               "%d x %d: equal keys keep the parent's order", rows, columns);
    test_operations(&same, "a group of a group", 11);
    comm_free(&same), comm_free(&turned);
}

static void test_group_of_one(void) {
    Comm alone = comm_split(&world, world.rank, 0, "alone", COMM_WIDE);
    check_here(alone.size == 1 && alone.rank == 0, "a group of one");
    test_operations(&alone, "a group of one", 20);
    comm_open_lanes(&alone, false);
    comm_barrier(&alone);
    check_here(alone.size_bytes == 0, "a group of one sends nothing");
#ifdef USE_NCCL
    check_here(!alone.nccl && !alone.lanes, "a group of one has no communicator");
#endif
    comm_free(&alone);
}

// ---- Messages on lanes ------------------------------------------------------------------------------------------

enum { MESSAGES = 12, LENGTH = 200 };

// Message number k of a rank, or about a micro-batch of a virtual stage, in a direction.
static void message_fill(Buffer* b, int from, int direction, int k) {
    buffer_fill(b, 0, LENGTH, from, 1000 * direction + 10 * k);
}
static bool message_is(Buffer* b, int from, int direction, int k) {
    buffer_get(b);
    bool ok = buffer_is_whole(b);
    for (int64_t i = 0; i < LENGTH; i++)
        ok = ok && is(b->copy, i, b->type, value(from, 1000 * direction + 10 * k + i, b->type));
    return ok;
}

// Everybody posts all receives before any send, forward ones to the next rank and backward ones to the one before
// (folded: also the other way), and waits in the opposite order.
static void test_lanes(bool folded) {
    Comm ring = comm_split(&world, 0, (world.rank + 1) % world.size, "ring", COMM_WIDE); // not the world's order
    comm_open_lanes(&ring, folded);
#if defined USE_NCCL && !defined __CUDACC__
    const int lanes = ring.lanes ? ring.lanes->n : 0;
    for (int i = 0; i < lanes; i++)
        check_here(ring.lanes->lane[i].group->comm->max_ctas == NCCL_LANE_CTAS, "a lane has few CTAs");
#endif
    const int next = (ring.rank + 1) % ring.size, before = (ring.rank + ring.size - 1) % ring.size;
    enum { MOST = 4 * MESSAGES };
    Buffer in[MOST], out[MOST];
    CommRequest receive[MOST], send[MOST];
    bool ok = true;
    const int ways = folded && ring.size > 2 ? 4 : 2, all = ways * MESSAGES;
    for (int i = 0; i < all; i++) { // no memory is taken, or given back, while a receive waits
        in[i] = buffer_new(true, LENGTH, COMM_BF16);
        out[i] = buffer_new(true, LENGTH, COMM_BF16);
        message_fill(&out[i], ring.rank, i % ways % 2, i / ways);
    }
    // way 0: forward, 1: backward, 2 and 3: the same, to the other neighbour
    const auto forward = [ways](int i) { return i % ways == 0 || i % ways == 3; };
    const auto tag = [ways](int i) { return 2 * (i / ways) + i % ways % 2; };
    for (int i = 0; i < all; i++)
        receive[i] = comm_receive_start(&ring, in[i].p, LENGTH, COMM_BF16, forward(i) ? before : next, tag(i));
    for (int i = 0; i < all; i++)
        send[i] = comm_send_start(&ring, out[i].p, LENGTH, COMM_BF16, forward(i) ? next : before, tag(i));
    for (int i = 0; i < 20; i++) comm_progress(receive, all);
    for (int i = all - 1; i >= 0; i--) comm_wait(&receive[i]), comm_wait(&send[i]);
    for (int i = 0; i < all; i++) ok = ok && message_is(&in[i], forward(i) ? before : next, i % ways % 2, i / ways);
    for (int i = 0; i < all; i++) buffer_free(&in[i]), buffer_free(&out[i]);
    check_here(ok, "%d messages a lane, posted ahead%s", (int)MESSAGES, folded ? ", in both ways" : "");
    comm_free(&ring);
}

// Messages of host memory: one rank sends while the other receives.
static void test_host_messages(void) {
    Buffer x = buffer_new(false, LENGTH, COMM_DOUBLE);
    bool ok = true;
    for (int from = 0; from < world.size; from++) {
        for (int to = 0; to < world.size; to++) {
            if (from == to) continue;
            message_fill(&x, world.rank, 0, to);
            CommRequest r = {};
            if (world.rank == from) r = comm_send_start(&world, x.p, LENGTH, COMM_DOUBLE, to, 7);
            if (world.rank == to) r = comm_receive_start(&world, x.p, LENGTH, COMM_DOUBLE, from, 7);
            comm_wait(&r);
            if (world.rank == to) ok = ok && message_is(&x, from, 0, to);
        }
    }
    check_here(ok, "host memory: messages of every rank to every other one");
    buffer_free(&x);
}

// ----------------------------------------------------------------------------------------------------------------
// Whole schedules, executed as the trainer does: each message says whose it is, and is looked at when it is used

typedef struct {
    const Schedule* s;
    Comm* pipeline;
    Buffer *output, *input, *gradient, *gradient_out; // (slots); (v, PIPELINE_BUFFERS_PER_DIRECTION) each
    CommRequest *send_forward, *receive_forward, *receive_backward, *send_backward;
    int wrong;
} Run;

// A message between two chunks of a stage: a copy, when it is sent.
static void run_copy(Run* x, Action a) {
    const int other = transfer_other_end(x->s, a.kind, a.chunk) / x->s->config.p, k = a.microbatch,
              buffer = k % PIPELINE_BUFFERS_PER_DIRECTION, from = a.chunk * PIPELINE_BUFFERS_PER_DIRECTION + buffer,
              to = other * PIPELINE_BUFFERS_PER_DIRECTION + buffer;
    if (a.kind == SEND_FORWARD) device_copy(x->input[to].p, x->output[a.slot].p, LENGTH * sizeof(uint16_t));
    if (a.kind == SEND_BACKWARD) device_copy(x->gradient[to].p, x->gradient_out[from].p, LENGTH * sizeof(uint16_t));
}

static void run_action(Run* x, Action a) {
    const Schedule* s = x->s;
    const int k = a.microbatch, i = a.chunk * PIPELINE_BUFFERS_PER_DIRECTION + k % PIPELINE_BUFFERS_PER_DIRECTION;
    const int here = a.chunk >= 0 ? schedule_virtual_stage(s, a.chunk) : -1, peer = schedule_peer(s, a.kind, a.chunk);
    const int tag = 2 * k; // tags do not name the chunk: order alone counts
    if (peer == s->stage) return run_copy(x, a);
    switch (a.kind) {
    case RECEIVE_FORWARD:
        x->receive_forward[i] = comm_receive_start(x->pipeline, x->input[i].p, LENGTH, COMM_BF16, peer, tag);
        break;
    case RECEIVE_BACKWARD:
        x->receive_backward[i] = comm_receive_start(x->pipeline, x->gradient[i].p, LENGTH, COMM_BF16, peer, tag + 1);
        break;
    case SEND_FORWARD:
        x->send_forward[a.slot] = comm_send_start(x->pipeline, x->output[a.slot].p, LENGTH, COMM_BF16, peer, tag);
        break;
    case SEND_BACKWARD:
        x->send_backward[i] = comm_send_start(x->pipeline, x->gradient_out[i].p, LENGTH, COMM_BF16, peer, tag + 1);
        break;
    case FORWARD:
        comm_wait(&x->send_forward[a.slot]);
        comm_wait(&x->receive_forward[i]);
        if (here > 0) x->wrong += !message_is(&x->input[i], here - 1, 0, k);
        message_fill(&x->output[a.slot], here, 0, k);
        break;
    case BACKWARD:
    case BACKWARD_INPUT:
        comm_wait(&x->receive_backward[i]);
        comm_wait(&x->send_backward[i]);
        if (here < pipeline_last(&s->config)) x->wrong += !message_is(&x->gradient[i], here + 1, 1, k);
        message_fill(&x->gradient_out[i], here, 1, k);
        break;
    default: break;
    }
}

static int run_schedule(Comm* pipeline, const Schedule* s) {
    const int buffers = s->config.v * PIPELINE_BUFFERS_PER_DIRECTION;
    Run x = {s, pipeline, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0};
    Buffer** lists[4] = {&x.output, &x.input, &x.gradient, &x.gradient_out};
    CommRequest** requests[4] = {&x.send_forward, &x.receive_forward, &x.receive_backward, &x.send_backward};
    for (int i = 0; i < 4; i++) {
        const int n = i == 0 ? s->slots : buffers;
        *lists[i] = (Buffer*)checked_calloc((size_t)n, sizeof(Buffer), "test");
        *requests[i] = (CommRequest*)checked_calloc((size_t)n, sizeof(CommRequest), "test");
        for (int j = 0; j < n; j++) (*lists[i])[j] = buffer_new(true, LENGTH, COMM_BF16);
    }
    for (int i = 0; i < s->n; i++) run_action(&x, s->actions[i]);
    for (int i = 0; i < s->slots; i++) comm_wait(&x.send_forward[i]);
    for (int i = 0; i < buffers; i++) comm_wait(&x.send_backward[i]);
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < (i == 0 ? s->slots : buffers); j++) buffer_free(&(*lists[i])[j]);
        free(*lists[i]), free(*requests[i]);
    }
    return x.wrong;
}

static void test_schedules(void) {
    const int most_v = brief ? 2 : 4;
    for (int kind = 0; kind < SCHEDULE_KINDS && world.size > 1; kind++) {
        if (brief && kind != INTERLEAVED && kind != ZB_V) continue;
        Comm pipeline = comm_split(&world, 0, world.rank, "pipeline", COMM_WIDE);
        int wrong = 0, run = 0;
        comm_open_lanes(&pipeline, schedule_is_folded((ScheduleKind)kind));
        for (int v = 1; v <= most_v; v++) {
            for (int m = brief ? 3 : 1; m <= (brief ? 3 : 9); m += v == 1 ? 1 : 2) {
                const int all = m * schedule_group((ScheduleKind)kind, world.size);
                const PipelineConfig plan = {(ScheduleKind)kind, world.size, v, all, false, false};
                Error error;
                if (!pipeline_config_check(&plan, RECOMPUTE_NONE, &error)) continue;
                Schedule s = schedule_build(&plan, world.rank), forward = schedule_build_forward(&s, m);
                wrong += run_schedule(&pipeline, &s) + run_schedule(&pipeline, &forward);
                run += 2;
                schedule_free(&forward), schedule_free(&s);
            }
        }
        check_here(wrong == 0 && run > 0, "%s: %d schedules of %d stages over lanes: %d messages wrong",
                   schedule_name((ScheduleKind)kind), run, world.size, wrong);
        comm_free(&pipeline);
    }
}

// ---- Begin ------------------------------------------------------------------------------------------------------

// Who shares a GPU: on the same machine the same address.
static void test_cards(void) {
#ifdef USE_NCCL
    static CommCard cards[4]; // machine, address
    const int machines[4] = {1, 1, 2, 2}, gpus[4] = {7, 8, 7, 8};
    for (int i = 0; i < 4; i++) {
        cards[i].machine = (uint64_t)machines[i];
        snprintf(cards[i].gpu, sizeof cards[i].gpu, "0000:0%d:00.0", gpus[i]);
    }
    const int alone = comm_ranks_on_gpu(cards, 4, &cards[1]);
    cards[3] = cards[1];
    check_here(alone == 1 && comm_ranks_on_gpu(cards, 4, &cards[1]) == 2, "cards: who shares a GPU");
    check_here(world.size == 1 || world.job->ranks_on_gpu == world.size, "the ranks here share the emulated GPU");
    check_here(world.size == 1 || strcmp(getenv("CUDA_MODULE_LOADING"), "EAGER") == 0,
               "kernels are loaded at the start, also for LAZY");
    check_here(comm_machine() == comm_machine() && comm_machine() != hash_string(""), "the machine has a number");
#endif
}

static void test_begin(const RankPlacement* place) {
    const char* text = comm_device_text(&world);
    const bool alone = world.size == 1;
    check_here(world.rank >= 0 && world.rank < world.size && process.rank == (alone ? -1 : world.rank), "%d ranks",
               world.size);
    check_here(alone == (*text == 0), "device memory is carried: \"%s\"", text);
#ifdef USE_NCCL
    check_here(alone || (world.nccl != NULL) == (strncmp(text, "NCCL ", 5) == 0), "and that is so");
    check_here(alone || (getenv("CUDA_MODULE_LOADING") && getenv("CUDA_DEVICE_MAX_CONNECTIONS") &&
                         getenv("NCCL_RUNTIME_CONNECT")),
               "settings of CUDA and NCCL");
#endif
    check_here(place->machines == 1 && place->ranks_here == world.size && place->rank_here == world.rank,
               "all ranks are on this machine");
    Comm machine = comm_split_machine(&world);
    check_here(machine.size == world.size && machine.rank == world.rank, "the group of this machine");
    comm_free(&machine);
    comm_check_same(&world, "arguments", "the same", "");
}

int main(int argc, char** argv) {
    process.name = "cuda_comm";
    const char* mode = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--short") == 0)
            brief = true;
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            limit_time(atoi(argv[++i]));
        else
            mode = argv[i];
    }
    comm_open(&world);
    RankPlacement place;
    comm_share_cores(&world, &place);
    device_open(place.rank_here);
    comm_open_device(&world);
    if (mode) return run_mode(&world, mode);
    test_begin(&place);
    test_cards();
    const int64_t sizes[] = {7, 1000, 1, 30011};
    for (int i = 0; i < (brief ? 2 : 4); i++) test_operations(&world, "world", sizes[i]);
    test_plans();
    test_nothing(true), test_nothing(false);
    test_much(true), test_much(false);
    test_rounding();
    test_order_of_streams();
    test_not_before_the_wait();
    test_first_operation();
    test_progress();
    test_group_of_one();
    for (int columns = 1; columns <= world.size; columns++) {
        if (world.size % columns == 0 && (!brief || 2 * columns >= world.size)) test_groups(columns);
    }
    test_host_messages();
    if (world.size > 1) {
        if (!brief) test_lanes(false);
        test_lanes(true);
    }
    test_schedules();
    comm_barrier(&world);
    const bool launched = process.rank >= 0;
    comm_close(&world);
    check_here(world.size == 1 && process.stop == NULL, "closed");
    if (launched && process.rank > 0) return test_count.failed != 0;
    return test_end();
}
