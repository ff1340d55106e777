/*
test_comm_progress_thread.c: comm/comm_progress_thread.h: a group with a thread gives, bit for bit, what one without
gives: every operation, with plans and without, many at once, while its rank talks in other groups. And its operations
continue while all ranks compute and call nothing.

    ranks: 1 4
    ranks sanitized: 2
*/
#include "../../../comm/collectives/collectives.h"
#include "comm_test.h"

// ---- Groups -----------------------------------------------------------------------------------------------------

static bool has_thread(const Comm* group) {
    (void)group;
#ifdef USE_MPI
    return group->thread != NULL;
#else
    return false;
#endif
}

static void plan_for(Comm* group, const char* algorithm) {
    Network net;
    Plan plan;
    Error error;
    char network[32];
    snprintf(network, sizeof network, "full:%d", world.size);
    if (!network_build(&net, network, &error)) die("%s", error.text);
    for (int kind = 0; kind < PLAN_KINDS; kind++) {
        if (!collective_build(&plan, algorithm, (PlanKind)kind, &net, &error)) continue;
        comm_use_plan(group, &plan);
        plan_free(&plan);
    }
    network_free(&net);
}

// All ranks, by a plan (or NULL), which the group is given before its thread or after it.
static Comm group_open(const char* name, const char* algorithm, bool thread, bool plan_first) {
    Comm group = comm_split(&world, 0, world.rank, name, COMM_WIDE);
    if (algorithm && plan_first) plan_for(&group, algorithm);
    if (thread) comm_open_thread(&group, plan_first);
    if (algorithm && !plan_first) plan_for(&group, algorithm);
    if (has_thread(&group) != (thread && world.size > 1)) die("group %s: a thread?", name);
    return group;
}

// ---- Operations: what is computed depends on (rank, salt) only --------------------------------------------------

typedef struct {
    CommKind kind;
    CommType type;
    CommOp op;
    int64_t n; // of a part
    bool blocking;
    int salt;
} Job;

typedef struct {
    Job job;
    CommRequest request, other; // other: of a message, the send
    char *in, *out;
    size_t bytes; // of in, and of out
} Doing;

// Element i of rank's vector: numbers whose sum depends on the order of additions; or whole ones.
static void job_fill(char* x, int64_t n, const Job* job, int rank) {
    const bool floats = job->type == COMM_FLOAT || job->type == COMM_BF16;
    float* values = (float*)checked_malloc((size_t)(n + 1) * sizeof(float), "a vector");
    random_normals(values, n, 91 + (uint64_t)job->salt, (uint64_t)rank, 0);
    for (int64_t i = 0; i < n; i++) {
        const float v = floats ? values[i] : (float)(int)(values[i] * 10);
        switch (job->type) {
        case COMM_FLOAT: ((float*)x)[i] = v; break;
        case COMM_DOUBLE: ((double*)x)[i] = v; break;
        case COMM_INT32: ((int32_t*)x)[i] = (int32_t)v; break;
        case COMM_INT64: ((int64_t*)x)[i] = (int64_t)v; break;
        case COMM_BF16: ((uint16_t*)x)[i] = f32_to_bf16(v); break;
        case COMM_BYTE: x[i] = (char)(int)v; break;
        }
    }
    free(values);
}

static Doing job_start(Comm* c, const Job* job) {
    Doing d = {};
    const int64_t n = job->n;
    d.job = *job;
    d.bytes = (size_t)(n * c->size * comm_type_bytes(job->type));
    d.in = (char*)checked_calloc(1, d.bytes + 1, "a vector");
    d.out = (char*)checked_calloc(1, d.bytes + 1, "a vector");
    job_fill(d.in, n * c->size, job, c->rank);
    job_fill(d.out, n * c->size, job, c->rank);
    const int next = (c->rank + 1) % c->size, before = (c->rank + c->size - 1) % c->size, root = job->salt % c->size;
    switch (job->kind) {
    case COMM_ALL_REDUCE:
        if (job->blocking)
            comm_all_reduce(c, d.out, n, job->type, job->op);
        else
            d.request = comm_all_reduce_start(c, d.out, n, job->type, job->op);
        break;
    case COMM_REDUCE_SCATTER:
        if (job->blocking)
            comm_reduce_scatter(c, d.out, d.in, n, job->type);
        else
            d.request = comm_reduce_scatter_start(c, d.out, d.in, n, job->type);
        break;
    case COMM_ALL_GATHER:
        if (job->blocking)
            comm_all_gather(c, d.out, d.in, n, job->type);
        else
            d.request = comm_start(comm_request(c, COMM_ALL_GATHER, d.out, d.in, n * c->size, job->type));
        break;
    case COMM_BROADCAST: comm_broadcast(c, d.out, n, job->type, root); break;
    case COMM_SEND: // round the ring
    case COMM_RECEIVE:
        if (c->size == 1) break;
        d.request = comm_receive_start(c, d.out, n, job->type, before, job->salt);
        d.other = comm_send_start(c, d.in, n, job->type, next, job->salt);
        break;
    case COMM_BARRIER: comm_barrier(c); break;
    case COMM_ON_DEVICE: break;
    }
    return d;
}

static void job_wait(Doing* d) {
    comm_wait(&d->other);
    comm_wait(&d->request);
}

static void job_free(Doing* d) {
    free(d->in);
    free(d->out);
}

static bool job_same(const Doing* a, const Doing* b) {
    return a->bytes == b->bytes && memcmp(a->out, b->out, a->bytes) == 0 && memcmp(a->in, b->in, a->bytes) == 0;
}

// Job number i of an endless list: all kinds, types, sizes. Sums of what rounds are compared where both groups use the
// same algorithm, that is, with operations that were started.
static Job job_number(int i, bool blocking) {
    static const CommKind kinds[] = {COMM_ALL_REDUCE, COMM_SEND,       COMM_REDUCE_SCATTER, COMM_ALL_REDUCE,
                                     COMM_ALL_GATHER, COMM_ALL_REDUCE, COMM_BROADCAST};
    static const CommType types[] = {COMM_FLOAT, COMM_INT32, COMM_BF16, COMM_FLOAT, COMM_DOUBLE,
                                     COMM_BF16,  COMM_INT64, COMM_BYTE, COMM_FLOAT};
    static const int64_t sizes[] = {1, 1000, 0, 17, 5, 20011, 64, 333, 3, 4096, 2};
    static const CommOp ops[] = {COMM_SUM, COMM_SUM, COMM_MAX, COMM_SUM, COMM_MIN};
    Job job = {kinds[i % 7], types[i % 9], ops[i % 5], sizes[i % 11], blocking, i};
    if (job.type == COMM_BYTE && (job.kind == COMM_ALL_REDUCE || job.kind == COMM_REDUCE_SCATTER))
        job.type = COMM_INT64; // MPI adds no bytes
    if (job.type == COMM_BF16) job.op = COMM_SUM;
    if (blocking && job.op == COMM_SUM && i % 2) job.type = i % 4 == 1 ? COMM_INT32 : COMM_INT64;
    return job;
}

// ---- Tests ------------------------------------------------------------------------------------------------------

// One after the other. What was summed by blocking calls comes from another algorithm of MPI's without the thread:
// those are compared with a started one.
static void test_each(const char* algorithm, bool plan_first, int n) {
    Comm with = group_open("with", algorithm, true, plan_first),
         without = group_open("without", algorithm, false, true);
    bool same = true;
    for (int i = 0; i < n; i++) {
        Job job = job_number(i, i % 2 == 0);
        Doing a = job_start(&with, &job);
        if (i % 3 == 0) comm_progress(&a.request, 1);
        job_wait(&a);
        job.blocking = false;
        Doing b = job_start(&without, &job);
        job_wait(&b);
        if (!job_same(&a, &b)) printf("rank %d: job %d, kind %s: differs\n", world.rank, i, comm_kind_name(job.kind));
        same = same && job_same(&a, &b);
        job_free(&a);
        job_free(&b);
    }
    comm_barrier(&with);
    check_all(same && with.size_bytes == without.size_bytes,
              "%d operations, %s%s: the same bits and bytes with a thread", n, algorithm ? algorithm : "MPI",
              plan_first || !algorithm ? "" : " (plan after thread)");
    comm_free(&with);
    comm_free(&without);
}

// Many at once in two groups that have threads, while the rank talks in a third, and in one with plans and no thread;
// waited for in another order by every rank.
static void test_many(const char* algorithm, int rounds) {
    enum { MANY = 60 };
    static Doing a[MANY], b[MANY], c[MANY];
    Comm one = group_open("one", algorithm, true, true), two = group_open("two", NULL, true, true),
         plain = group_open("plain", algorithm, false, true);
    bool same = true;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < MANY; i++) {
            const Job job = job_number(round * MANY + i, false);
            a[i] = job_start(&one, &job);
            b[i] = job_start(&two, &job);
            if ((i + round) % 7 == world.rank) usleep(300);
            if (i % 6 == 0) { // MPI's own, and blocking
                double x = world.rank + i;
                comm_all_reduce(&world, &x, 1, COMM_DOUBLE, COMM_MAX);
                same = same && x == world.size - 1 + i;
            }
            if (i % 10 == 3) comm_barrier(&two);
            if (i % 8 == 5) comm_progress(&a[i / 2].request, 1);
        }
        for (int i = 0; i < MANY; i++) {
            const Job job = job_number(round * MANY + i, false);
            c[i] = job_start(&plain, &job);
        }
        for (int i = 0; i < MANY; i++) {
            const int which = (i * (world.rank % 2 ? 7 : 11) + world.rank) % MANY;
            job_wait(&a[which]);
            if (i % 2) job_wait(&c[which]);
            job_wait(&b[(which * 7 + 3) % MANY]);
        }
        for (int i = 0; i < MANY; i++) {
            job_wait(&c[i]);
            same = same && job_same(&a[i], &c[i]);
            same = same && (algorithm || job_same(&b[i], &c[i]));
            job_free(&a[i]);
            job_free(&b[i]);
            job_free(&c[i]);
        }
    }
    check_all(same, "%s: %d rounds of %d operations at once in each of two groups with threads, and one without",
              algorithm ? algorithm : "MPI", rounds, (int)MANY);
    comm_free(&two);
    comm_free(&plain);
    comm_free(&one);
}

static volatile double sink;

static void compute(double seconds) {
    for (const double end = seconds_now() + seconds; seconds_now() < end;) {
        for (int i = 0; i < 1000; i++) sink = sink + 1e-9 * i;
    }
}

// A long all-reduce, while all ranks compute and call nothing; rank 0 for `seconds`, the others longer. Then rank 0
// looks whether the sum is there; no other rank can have helped it.
static void test_alone(const char* algorithm, bool thread, double seconds) {
    const int64_t n = 4 << 20; // 16 MB
    Trace trace;
    trace_init(&trace, 1000);
    Comm group = group_open("alone", algorithm, thread, false);
    group.trace = &trace;
    float* x = (float*)checked_malloc((size_t)n * sizeof *x, "a vector");
    for (int64_t i = 0; i < n; i++) x[i] = (float)((world.rank * 7 + i * 13) % 5);
    comm_barrier(&group);
    trace.n = 0;
    const double waited = group.waited;
    CommRequest r = comm_all_reduce_start(&group, x, n, COMM_FLOAT, COMM_SUM);
    compute(seconds + (world.rank > 0 ? 0.5 : 0));
    const double looked = seconds_now();
    bool there = false;
    do {
        comm_progress(&r, 1);
        there = comm_is_done(&r);
    } while (!there && seconds_now() < looked + 0.1);
    comm_wait(&r);
    const char* backend = algorithm ? "MPI, by plan" : "MPI";
    if (thread) backend = "MPI, in a thread";
    check_all(world.size == 1 || strcmp(r.backend->name, backend) == 0, "by %s", backend);
    bool right = true;
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int rank = 0; rank < world.size; rank++) sum += (float)((rank * 7 + i * 13) % 5);
        right = right && x[i] == sum;
    }
    const char* what = algorithm ? algorithm : "MPI";
    if (world.size == 1) {
        check_all(right && there, "%s, alone: nothing to do", what);
    } else if (thread) {
        check_all(right && there && r.finished < looked - 0.1 && group.waited - waited < 0.25,
                  "%s: 16 MB are summed while all ranks compute for %.1f s; no rank waits", what, seconds);
        const TraceSpan* span = trace.spans;
        check_all(trace.n >= 1 && strcmp(span->track, "alone") == 0 && strcmp(span->name, "all-reduce") == 0 &&
                      span->start == r.started && span->end == r.finished,
                  "%s: the trace shows it as long as it took", what);
    } else if (algorithm) {
        check_all(right && (world.rank > 0 || !there), "%s: without the thread they are not", what);
    }
    comm_free(&group);
    free(x);
    trace_free(&trace);
}

// Which groups have threads.
static void test_groups(void) {
    Comm half = comm_split(&world, world.rank % 2, world.rank, "half", COMM_WIDE), child;
    comm_open_thread(&half, false);
    comm_open_thread(&half, false); // once is enough
    check_all(has_thread(&half) == (half.size > 1), "a group of one has no thread");
    child = comm_split(&half, 0, -half.rank, "child", COMM_WIDE);
    int32_t x[4] = {-1, -1, -1, -1}, mine = world.rank;
    comm_all_gather(&child, x, &mine, 1, COMM_INT32);
    check_all(!has_thread(&child) && x[child.rank] == world.rank && x[0] == world.rank + 2 * child.rank,
              "nor has a group that was split from one that has");
    comm_free(&child);
    comm_free(&half);
    Comm many[6];
    bool ok = true;
    for (int i = 0; i < 6; i++) many[i] = group_open("one of many", NULL, true, true);
    for (int i = 0; i < 6; i++) {
        int64_t y = i;
        comm_all_reduce(&many[i], &y, 1, COMM_INT64, COMM_SUM);
        ok = ok && y == i * world.size;
    }
    for (int i = 0; i < 6; i++) comm_free(&many[i * 5 % 6]);
    check_all(ok, "threads come and go");
}

int main(int argc, char** argv) {
    process.name = "test_comm_progress_thread";
    comm_open(&world);
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    static const char* const algorithms[] = {NULL, "ring", "halving-doubling", "multitree"};
    for (int i = 0; i < 4; i++) {
        test_each(algorithms[i], i % 2 == 0, brief ? 100 : 300);
        test_each(algorithms[i], i % 2 == 1, 100);
        test_many(algorithms[i], brief ? 2 : 5);
    }
    for (int i = brief; i < (brief ? 2 : 4); i++) {
        while (attempt()) test_alone(algorithms[i], true, 1);
        while (attempt()) test_alone(algorithms[i], false, i == 1 ? 1 : 0.5);
    }
    test_groups();
    comm_open_thread(&world, true); // comm_close ends it
    double one = 1;
    comm_all_reduce(&world, &one, 1, COMM_DOUBLE, COMM_SUM);
    check_all(one == world.size, "the world has a thread");
    comm_barrier(&world);
    const int rank = process.rank;
    comm_close(&world);
    return rank > 0 ? test_count.failed != 0 : test_end();
}
