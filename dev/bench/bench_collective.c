/*
bench_collective.c: all-reduces by plan (comm/collectives/collectives.h, comm/comm_planned.h) beside the one of the MPI
library, on the ranks that mpirun starts on one machine. Algorithms take turns; a time is the longest of all ranks', and
the median over the rounds. Every result is compared with the sum that it has to be.

    scripts/mpirun.sh -np 4 build/bench_collective --algorithms native,ring,multitree --topology full:4 --kib 64,1024

native is MPI_Allreduce; native-start MPI_Iallreduce, which the trainer uses where it overlaps (Open MPI 4 has no good
algorithm for it where the result takes the place of the operand).

"bus" is what a link has to carry at least, 2 (N - 1) / N times the vector, over the time: comparable between numbers of
ranks (NCCL's tests call it that too). The machine's memory is the network here, unless ranks are in namespaces
(dev/experiments/net.py).
*/
#include "../../comm/collectives/collectives.h"
#include "../../comm.h"
#include "../../util/options.h"
#include "../../util/median.h"

enum { MOST = 16, ROUNDS = 101 };

typedef struct {
    const char *algorithms, *topology, *kib;
    int64_t rounds, nap;
    bool help;
} BenchSettings;

typedef struct {
    char name[64];
    Comm group;
    double times[ROUNDS];
} Rival;

// Small whole numbers, so that every order of additions gives the same sum.
static float value_of(int rank, int64_t i) { return (float)((rank * 7 + i * 13) % 5); }

static void check_sum(const Rival* rival, const float* x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int r = 0; r < rival->group.size; r++) sum += value_of(r, i);
        if (x[i] != sum) die("%s: element %lld is %g, the sum is %g", rival->name, (long long)i, x[i], sum);
    }
}

// All ranks return at about the same time, by the machine's clock. Behind a barrier they do not: its last messages may
// stand in a queue.
static void begin_together(Comm* world) {
    double at = seconds_now() + 0.05;
    comm_all_reduce(world, &at, 1, COMM_DOUBLE, COMM_MAX);
    while (seconds_now() < at) usleep(100);
}

// native: MPI's blocking call. Others wait with naps, where more ranks than cores would take the cores from each other.
static void all_reduce(Rival* rival, float* x, int64_t n, int nap) {
    if (nap == 0 || strcmp(rival->name, "native") == 0) {
        comm_all_reduce(&rival->group, x, n, COMM_FLOAT, COMM_SUM);
        return;
    }
    CommRequest r = comm_all_reduce_start(&rival->group, x, n, COMM_FLOAT, COMM_SUM);
    while (!comm_is_done(&r)) usleep((useconds_t)nap);
    comm_wait(&r);
}

static void measure(Comm* world, Rival* rivals, int n_rivals, int64_t kib, const BenchSettings* o) {
    const int64_t n = (kib << 10) / (int64_t)sizeof(float);
    const double bytes = (double)(kib << 10), N = world->size;
    float* x = (float*)checked_malloc((size_t)n * sizeof(float), "a vector");
    for (int round = -1; round < (int)o->rounds; round++) {
        for (int k = 0; k < n_rivals; k++) {
            for (int64_t i = 0; i < n; i++) x[i] = value_of(world->rank, i);
            begin_together(world);
            double seconds = seconds_now();
            all_reduce(&rivals[k], x, n, (int)o->nap);
            seconds = seconds_now() - seconds;
            comm_all_reduce(world, &seconds, 1, COMM_DOUBLE, COMM_MAX);
            if (round < 0) check_sum(&rivals[k], x, n);
            if (round >= 0) rivals[k].times[round] = seconds;
        }
    }
    free(x);
    double first = 0;
    for (int k = 0; k < n_rivals && world->rank == 0; k++) {
        const double t = median_of(rivals[k].times, (int)o->rounds);
        if (k == 0) first = t;
        printf("%8lld KiB  %-20s %10.3f ms  %8.1f MB/s  bus %8.1f MB/s  %6.2f x %s\n", (long long)kib, rivals[k].name,
               t * 1e3, bytes / t / 1e6, 2 * (N - 1) / N * bytes / t / 1e6, first / t, rivals[0].name);
    }
    fflush(stdout);
}

static int open_rivals(Comm* world, Rival* rivals, const BenchSettings* o, const Network* net) {
    char *list = strdup(o->algorithms), *save = NULL;
    int n = 0;
    Error error;
    for (char* name = strtok_r(list, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
        if (n == MOST) die_usage("--algorithms: more than %d", MOST);
        Rival* r = &rivals[n++];
        snprintf(r->name, sizeof r->name, "%s", name);
        r->group = comm_split(world, 0, world->rank, r->name, COMM_WIDE);
        if (strncmp(name, "native", 6) == 0) continue;
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
    char usual[32], *save = NULL;
    Comm world;
    comm_open(&world);
    BenchSettings o = {"native,ring,halving-doubling,double-tree,multitree", NULL, "64,1024,16384", 11, 0, false};
    Option table[] = {
        option_string("algorithms", &o.algorithms, "A,B,...", "native, native-start, or as --allreduce"),
        option_string("topology", &o.topology, "NAME", "network that plans are made for [full:N]"),
        option_string("kib", &o.kib, "N,M,...", "sizes of the vector"),
        option_int("rounds", &o.rounds, 1, ROUNDS - 1, "of which the median is taken"),
        option_int("nap", &o.nap, 0, 10000, "microseconds that a rank sleeps when it waits; 0: as MPI likes"),
        option_flag("help", &o.help, "this list")};
    Error error;
    Network net;
    options_of_program(table, (int)(sizeof table / sizeof *table), argc, argv, &o.help,
                       "bench_collective: all-reduces by plan beside the MPI library's");
    snprintf(usual, sizeof usual, "full:%d", world.size);
    if (!network_build(&net, o.topology ? o.topology : usual, &error)) die_usage("%s", error.text);
    if (net.ranks != world.size)
        die_usage("--topology %s has %d ranks, but %d were started", net.name, net.ranks, world.size);
    const int n = open_rivals(&world, rivals, &o, &net);
    char* sizes = strdup(o.kib);
    for (char* size = strtok_r(sizes, ",", &save); size; size = strtok_r(NULL, ",", &save)) {
        const int64_t kib = atoll(size);
        if (kib < 1 || kib > 1 << 24) die_usage("--kib %s: numbers from 1 to %d", o.kib, 1 << 24);
        measure(&world, rivals, n, kib, &o);
    }
    free(sizes);
    for (int k = 0; k < n; k++) comm_free(&rivals[k].group);
    network_free(&net);
    comm_close(&world);
    return 0;
}
