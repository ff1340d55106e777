/*
bench_collective.c: all-reduces by plan (comm/collectives/collectives.h, comm/comm_planned.h) beside the one of the MPI
library, on the ranks that mpirun starts. Algorithms take turns; a time is the longest of all ranks', and the median
over the rounds. Every result is compared with the sum that it has to be, and its bits with rank 0's.

    scripts/mpirun.sh -np 4 build/bench_collective --algorithms native,ring,multitree --topology full:4 --kib 64,1024

native is MPI_Allreduce; native-start MPI_Iallreduce, which the trainer uses where it overlaps (Open MPI 4 has no good
algorithm for it where the result takes the place of the operand).

"bus" is what a link has to carry at least, 2 (N - 1) / N times the vector, over the time: comparable between numbers of
ranks (NCCL's tests call it that too). The machine's memory is the network here, unless ranks are on several machines or
in namespaces (dev/experiments/net.py).
*/
#include "../../comm/collectives/collectives.h"
#include "../../comm.h"
#include "../../util/options.h"
#include "../../planner/median.h"

enum { MOST = 16, ROUNDS = 101 };

typedef struct {
    const char *algorithms, *topology, *kib;
    int64_t rounds, nap;
    bool bf16, one_clock, help;
} BenchSettings;

typedef struct {
    char name[64];
    Comm group;
    double times[ROUNDS];
} Rival;

// Small whole numbers, so that every order of additions gives the same sum, in 8 bits too.
static float value_of(int rank, int64_t i) { return (float)((rank * 7 + i * 13) % 5); }

static void fill(void* x, int64_t n, int rank, bool bf16) {
    for (int64_t i = 0; i < n; i++) {
        if (bf16)
            ((uint16_t*)x)[i] = f32_to_bf16(value_of(rank, i));
        else
            ((float*)x)[i] = value_of(rank, i);
    }
}

static void check_sum(const Rival* rival, const void* x, int64_t n, bool bf16) {
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int r = 0; r < rival->group.size; r++) sum += value_of(r, i);
        const float have = bf16 ? bf16_to_f32(((const uint16_t*)x)[i]) : ((const float*)x)[i];
        if (have != sum)
            die("%s: element %lld of %lld is %g, the sum is %g", rival->name, (long long)i, (long long)n, have, sum);
    }
}

// All ranks return at about the same time. Behind a barrier they do not: its last messages may stand in a queue. On one
// machine there is one clock.
static void begin_together(Comm* world, bool one_clock) {
    double at = seconds_now() + 0.05;
    if (!one_clock) {
        comm_barrier(world);
        return;
    }
    comm_all_reduce(world, &at, 1, COMM_DOUBLE, COMM_MAX);
    while (seconds_now() < at) usleep(100);
}

// native: MPI's blocking call. Others wait with naps, where more ranks than cores would take the cores from each other.
static void all_reduce(Rival* rival, void* x, int64_t n, CommType type, int nap) {
    Comm* c = &rival->group;
    if (nap == 0 || strcmp(rival->name, "native") == 0) {
        comm_all_reduce(c, x, n, type, COMM_SUM);
        return;
    }
    CommRequest r = comm_all_reduce_start(c, x, n, type, COMM_SUM);
    while (!comm_is_done(&r)) usleep((useconds_t)nap);
    comm_wait(&r);
}

static void measure(Comm* world, Rival* rivals, int n_rivals, int64_t bytes, const BenchSettings* o) {
    const CommType type = o->bf16 ? COMM_BF16 : COMM_FLOAT;
    const int64_t n = bytes / comm_type_bytes(type);
    void* x = checked_malloc((size_t)bytes, "a vector");
    int rounds = (int)o->rounds;
    for (int round = -1; round < rounds; round++) {
        for (int k = 0; k < n_rivals; k++) {
            fill(x, n, world->rank, o->bf16);
            begin_together(world, o->one_clock);
            double seconds = seconds_now();
            all_reduce(&rivals[k], x, n, type, (int)o->nap);
            seconds = seconds_now() - seconds;
            comm_all_reduce(world, &seconds, 1, COMM_DOUBLE, COMM_MAX);
            if (round < 0) check_sum(&rivals[k], x, n, o->bf16);
            if (round >= 0) rivals[k].times[round] = seconds;
        }
    }
    free(x);
    if (world->rank != 0) return;
    for (int k = 0; k < n_rivals; k++) {
        const double t = median_of(rivals[k].times, rounds), N = world->size;
        printf("%8lld KiB  %-20s %10.3f ms  %8.1f MB/s  bus %8.1f MB/s  %6.2f x %s\n", (long long)(bytes >> 10),
               rivals[k].name, t * 1e3, (double)bytes / t / 1e6, 2 * (N - 1) / N * (double)bytes / t / 1e6,
               median_of(rivals[0].times, rounds) / t, rivals[0].name);
    }
    fflush(stdout);
}

static int open_rivals(Comm* world, Rival* rivals, const BenchSettings* o, const Network* net) {
    char* list = strdup(o->algorithms);
    char* save = NULL;
    int n = 0;
    Error error;
    for (char* name = strtok_r(list, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
        if (n == MOST) die_usage("--algorithms: more than %d", MOST);
        Rival* r = &rivals[n++];
        snprintf(r->name, sizeof r->name, "%s", name);
        r->group = comm_split(world, 0, world->rank, r->name);
        if (strcmp(name, "native") == 0 || strcmp(name, "native-start") == 0) continue;
        Plan plan;
        if (!collective_build(&plan, r->name, PLAN_ALL_REDUCE, net, &error) || !plan_check(&plan, net, &error))
            die_usage("%s", error.text);
        comm_use_plan(&r->group, &plan);
        plan_free(&plan);
    }
    free(list);
    return n;
}

int main(int argc, char** argv) {
    process.name = "bench_collective";
    static Rival rivals[MOST];
    char usual[32];
    Comm world;
    comm_open(&world);
    static BenchSettings o;
    o.algorithms = "native,ring,halving-doubling,double-tree,multitree";
    o.kib = "64,1024,16384";
    o.rounds = 11;
    Option table[] = {
        option_string("algorithms", &o.algorithms, "A,B,...", "native, native-start, or as --allreduce"),
        option_string("topology", &o.topology, "NAME", "network that plans are made for [full:N]"),
        option_string("kib", &o.kib, "N,M,...", "sizes of the vector"),
        option_int("rounds", &o.rounds, 1, ROUNDS - 1, "of which the median is taken"),
        option_int("nap", &o.nap, 0, 10000, "microseconds that a rank sleeps when it waits; 0: as MPI likes"),
        option_flag("one-clock", &o.one_clock, "all ranks are on one machine: begin by its clock"),
        option_flag("bf16", &o.bf16, "sums of bf16, not of float"),
        option_flag("help", &o.help, "this list")};
    const int rows = (int)(sizeof table / sizeof *table);
    Error error;
    Network net;
    if (!options_parse(table, rows, argc, argv, &error)) die_usage("%s", error.text);
    if (o.help) {
        if (world.rank == 0) options_help(table, rows, stdout);
        comm_close(&world);
        return 0;
    }
    snprintf(usual, sizeof usual, "full:%d", world.size);
    if (!network_build(&net, o.topology ? o.topology : usual, &error)) die_usage("%s", error.text);
    if (net.ranks != world.size)
        die_usage("--topology %s has %d ranks, but %d were started", net.name, net.ranks, world.size);
    const int n = open_rivals(&world, rivals, &o, &net);
    char* sizes = strdup(o.kib);
    char* save = NULL;
    for (char* size = strtok_r(sizes, ",", &save); size; size = strtok_r(NULL, ",", &save)) {
        const long long kib = atoll(size);
        if (kib < 1 || kib > 1 << 24) die_usage("--kib %s: numbers from 1 to %d", o.kib, 1 << 24);
        measure(&world, rivals, n, kib << 10, &o);
    }
    free(sizes);
    for (int k = 0; k < n; k++) comm_free(&rivals[k].group);
    network_free(&net);
    comm_close(&world);
    return 0;
}
