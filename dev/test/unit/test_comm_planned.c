/*
test_comm_planned.c: comm/comm_planned.h: operations that follow a plan give, bit for bit, what the plan says when one
process carries it out for all ranks, step by step; whatever the order in which messages come.

    ranks: 1 2 3 4 6 8
    ranks sanitized: 4
*/
#include "../../../comm/collectives/collectives.h"
#include "../../../planner/plan_cost.h"
#include "comm_test.h"

// ---- What has to come out ---------------------------------------------------------------------------------------

static void put(char* x, int64_t i, CommType type, float v) {
    if (type == COMM_FLOAT)
        ((float*)x)[i] = v;
    else
        ((uint16_t*)x)[i] = f32_to_bf16(v);
}

static float get(const char* x, int64_t i, CommType type) {
    if (type == COMM_FLOAT) return ((const float*)x)[i];
    return bf16_to_f32(((const uint16_t*)x)[i]);
}

// Elements [from, to) of a rank's vector: sums of these are rounded, so another order of additions gives other bits.
static void fill(char* x, int64_t from, int64_t to, CommType type, int rank, int salt) {
    float* values = (float*)checked_malloc((size_t)(to - from) * sizeof(float), "a vector");
    random_normals(values, to - from, 77 + (uint64_t)salt, (uint64_t)rank, (uint64_t)from);
    for (int64_t i = from; i < to; i++) put(x, i, type, values[i - from]);
    free(values);
}

// all (ranks, n): every rank's vector; afterwards what the plan has made of it.
static void carry_out(const Plan* plan, char* all, int64_t n, CommType type) {
    const int64_t element = comm_type_bytes(type), bytes = n * element;
    char* sent = (char*)checked_malloc((size_t)(bytes * plan->ranks), "a plan's vectors");
    for (int64_t i = 0, end; i < plan->n; i = end) {
        for (end = i; end < plan->n && plan->transfers[end].step == plan->transfers[i].step; end++) {
            const Transfer* t = &plan->transfers[end]; // a step sends what was there when it began
            const int64_t from = t->from * bytes + element * plan_chunk_start(plan, n, t->chunk);
            memcpy(sent + from, all + from, (size_t)(element * transfer_elements(plan, t, n)));
        }
        for (end = i; end < plan->n && plan->transfers[end].step == plan->transfers[i].step; end++) {
            const Transfer* t = &plan->transfers[end];
            const int64_t from = plan_chunk_start(plan, n, t->chunk),
                          to = plan_chunk_start(plan, n, t->chunk + t->chunks);
            char* there = all + t->to * bytes;
            const char* here = sent + t->from * bytes;
            for (int64_t k = from; k < to; k++)
                put(there, k, type, t->add ? get(there, k, type) + get(here, k, type) : get(here, k, type));
        }
    }
    free(sent);
}

// One operation of a group, and what has to come of it.
typedef struct {
    CommRequest request;
    char *in, *out, *expected; // of this rank: what comes in, the place of the result and the result itself
    int64_t bytes;             // of the result
    bool kept;                 // what comes in is not to be changed
    char* copy;
} Operation;

static void operation_free(Operation* o) {
    if (o->in != o->out) free(o->in);
    free(o->out);
    free(o->expected);
    free(o->copy);
}

static Operation operation_start(Comm* group, const Plan* plan, int64_t n, CommType type, int salt) {
    const int64_t element = comm_type_bytes(type), whole = n * element, part = whole / plan->ranks;
    const bool scatters = plan->kind == PLAN_REDUCE_SCATTER, gathers = plan->kind == PLAN_ALL_GATHER;
    Operation o = {};
    char* all = (char*)checked_calloc((size_t)plan->ranks, (size_t)whole, "a plan's vectors");
    for (int rank = 0; rank < plan->ranks; rank++) {
        const int64_t from = gathers ? rank * (n / plan->ranks) : 0, to = gathers ? from + n / plan->ranks : n;
        fill(all + rank * whole, from, to, type, rank, salt);
    }
    const char* mine = all + group->rank * whole;
    o.bytes = scatters ? part : whole;
    o.out = (char*)checked_calloc(1, (size_t)whole, "a vector");
    o.in = plan->kind == PLAN_ALL_REDUCE || (gathers && salt % 2) ? o.out
                                                                  : (char*)checked_calloc(1, (size_t)whole, "a vector");
    o.expected = (char*)checked_malloc((size_t)whole, "a vector");
    o.kept = o.in != o.out;
    if (gathers) // in place, or from elsewhere
        memcpy(o.kept ? o.in : o.out + group->rank * part, mine + group->rank * part, (size_t)part);
    else
        memcpy(o.in, mine, (size_t)whole);
    o.copy = (char*)checked_malloc((size_t)whole, "a vector");
    memcpy(o.copy, o.in, (size_t)whole);
    carry_out(plan, all, n, type);
    memcpy(o.expected, all + group->rank * whole + (scatters ? group->rank * part : 0), (size_t)o.bytes);
    free(all);
    const int64_t before = group->size_bytes;
    if (scatters)
        o.request = comm_reduce_scatter_start(group, o.out, o.in, n / plan->ranks, type);
    else if (gathers)
        o.request = comm_start(comm_request(group, COMM_ALL_GATHER, o.out, o.kept ? o.in : o.out + group->rank * part,
                                            (n / plan->ranks) * group->size, type));
    else
        o.request = comm_all_reduce_start(group, o.out, n, type, COMM_SUM);
    int64_t sent = 0;
    for (int64_t i = 0; i < plan->n; i++) {
        if (plan->transfers[i].from == group->rank) sent += transfer_elements(plan, &plan->transfers[i], n);
    }
    if (group->size > 1 && group->size_bytes - before != sent * element * group->size)
        die("%s: %lld bytes were counted", plan->name, (long long)(group->size_bytes - before));
    return o;
}

static bool operation_is_right(const Operation* o) {
    return memcmp(o->out, o->expected, (size_t)o->bytes) == 0 &&
           (!o->kept || memcmp(o->in, o->copy, (size_t)o->bytes) == 0);
}

// ---- Tests ------------------------------------------------------------------------------------------------------

typedef struct {
    Comm group;
    Plan plans[PLAN_KINDS];
    int kinds[PLAN_KINDS], n;
} Planned;

static Planned planned_open(const char* algorithm, const char* network) {
    Planned p = {};
    Network net;
    Error error;
    p.group = comm_split(&world, 0, world.rank, "planned", COMM_WIDE);
    if (!network_build(&net, network, &error)) die("%s", error.text);
    for (int kind = 0; kind < PLAN_KINDS; kind++) {
        if (!collective_build(&p.plans[kind], algorithm, (PlanKind)kind, &net, &error)) continue;
        if (!plan_check(&p.plans[kind], &net, &error)) die("%s", error.text);
        comm_use_plan(&p.group, &p.plans[kind]);
        p.kinds[p.n++] = kind;
    }
    network_free(&net);
    return p;
}

static void planned_close(Planned* p) {
    for (int kind = 0; kind < PLAN_KINDS; kind++) plan_free(&p->plans[kind]);
    comm_free(&p->group);
}

static void test_algorithm(const char* algorithm, const char* network, bool brief) {
    Planned p = planned_open(algorithm, network);
    const int64_t sizes[] = {1, 3, 64, 1000, 150001}; // the last in several slabs
    const CommType types[] = {COMM_FLOAT, COMM_BF16};
    bool right = true;
    int salt = 0;
    for (int k = 0; k < p.n; k++) {
        for (int s = 0; s < (brief ? 4 : 5); s++) {
            for (int t = 0; t < (s == 4 ? 1 : 2); t++, salt++) {
                const Plan* plan = &p.plans[p.kinds[k]];
                const int64_t n = plan->kind == PLAN_ALL_REDUCE ? sizes[s] : sizes[s] * world.size;
                Operation o = operation_start(&p.group, plan, n, types[t], salt);
                if (salt % 3) comm_progress(&o.request, 1);
                comm_wait(&o.request);
                right = operation_is_right(&o) && right;
                operation_free(&o);
            }
        }
    }
    check_all(right, "%s on %s: %d kinds: the same bits as its plan carried out by one process; bytes", algorithm,
              network, p.n);
    planned_close(&p);
}

// Many at once, of all kinds, more than there are ranges of tags; ranks come late, wait in different orders, and do
// other things between.
static void test_many(const char* algorithm, const char* network) {
    enum { MANY = 40 };
    Planned p = planned_open(algorithm, network);
    static Operation o[MANY];
    bool right = true;
    for (int i = 0; i < MANY; i++) {
        const Plan* plan = &p.plans[p.kinds[i % p.n]];
        o[i] = operation_start(&p.group, plan, (int64_t)world.size * (1 + i * 7 % 50), COMM_FLOAT, i);
        if (i % 5 == world.rank) usleep(500);
        if (i == MANY / 2) comm_barrier(&world); // MPI's own, while plans are in flight
    }
    for (int i = 0; i < MANY; i++) {
        const int which = (i * (world.rank % 2 ? 7 : 11) + world.rank) % MANY;
        comm_wait(&o[which].request);
    }
    for (int i = 0; i < MANY; i++) {
        right = operation_is_right(&o[i]) && right;
        operation_free(&o[i]);
    }
    check_all(right, "%s on %s: %d operations at once, waited for in another order by every rank", algorithm, network,
              (int)MANY);
    planned_close(&p);
}

// Rank 0 first waits for its plan and then sums by MPI; the others the other way round. All have to get through.
static void test_crossed(const char* algorithm, bool blocking) {
    char network[32];
    snprintf(network, sizeof network, "full:%d", world.size);
    Planned p = planned_open(algorithm, network);
    double one = 1;
    Operation o = operation_start(&p.group, &p.plans[PLAN_ALL_REDUCE], 100000, COMM_FLOAT, 5);
    if (world.rank == 0) comm_wait(&o.request);
    if (blocking) {
        comm_all_reduce(&world, &one, 1, COMM_DOUBLE, COMM_SUM);
    } else {
        CommRequest sum = comm_all_reduce_start(&world, &one, 1, COMM_DOUBLE, COMM_SUM);
        comm_wait(&sum);
    }
    comm_barrier(&world);
    if (world.rank > 0) comm_wait(&o.request);
    check_all(operation_is_right(&o) && one == world.size, "%s: waiting in opposite orders is no deadlock, %s",
              algorithm, blocking ? "nor is a blocking call" : "MPI's part started and waited for");
    operation_free(&o);
    planned_close(&p);
}

// What a plan is not for goes on as before: other operations than sums, other types, empty vectors.
static void test_others(void) {
    char network[32];
    snprintf(network, sizeof network, "full:%d", world.size);
    Planned p = planned_open("ring", network);
    double x[3] = {(double)world.rank, 1, (double)-world.rank};
    float y[2] = {(float)world.rank, (float)-world.rank};
    comm_all_reduce(&p.group, x, 3, COMM_DOUBLE, COMM_SUM);
    comm_all_reduce(&p.group, y, 2, COMM_FLOAT, COMM_MAX);
    comm_all_reduce(&p.group, y, 0, COMM_FLOAT, COMM_SUM);
    const int N = world.size;
    check_all(x[0] == N * (N - 1) / 2.0 && x[1] == N && y[0] == N - 1 && y[1] == 0,
              "doubles, maxima and nothing at all are left to MPI");
    planned_close(&p);
}

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    process.name = "test_comm_planned";
    char full[32], ring[32], grid[32];
    comm_open(&world);
    snprintf(full, sizeof full, "full:%d", world.size);
    snprintf(ring, sizeof ring, "ring:%d", world.size);
    snprintf(grid, sizeof grid, "mesh:2x%d", world.size / 2);
    for (int a = 0; a < ALGORITHMS; a++) {
        if (algorithms[a].needs != needs_grid) test_algorithm(algorithms[a].name, a % 2 ? ring : full, brief);
        if (world.size % 2 == 0) test_algorithm(algorithms[a].name, grid, brief);
    }
    test_many("ring", full);
    test_many("multitree", ring);
    test_crossed("ring", false);
    test_crossed("ring", true);
    test_crossed("halving-doubling", false);
    test_crossed("halving-doubling", true);
    test_others();
    comm_barrier(&world);
    const int rank = process.rank;
    comm_close(&world);
    return rank > 0 ? test_count.failed != 0 : test_end();
}
