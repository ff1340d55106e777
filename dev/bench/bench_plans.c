/*
bench_plans.c: how long plans of collectives take to build, on one core, and how good they are: steps times the size of
a chunk, which is the time of a large all-reduce (of D bytes, over links of B bytes/s, in D / B); and the same beside
the least that any algorithm of these links can need, max(1 / slowest corner, 2 (N - 1) / links).
*/
#include "../../comm/collectives/collectives.h"

// No rank can send or receive its vector faster than over all its links; and every vector has to be sent 2 (N - 1) / N
// times.
static double least(const Network* net) {
    int fewest = net->links;
    for (int r = 0; r < net->ranks; r++) {
        const int ports = net->first[r + 1] - net->first[r];
        if (ports < fewest) fewest = ports;
    }
    return fmax(1.0 / fewest, 2.0 * (net->ranks - 1) / net->links);
}

static void bench(const char* network, const char* algorithm) {
    Network net;
    Plan plan;
    Error error;
    if (!network_build(&net, network, &error)) die("%s", error.text);
    const double start = seconds_now();
    if (!collective_build(&plan, algorithm, PLAN_ALL_REDUCE, &net, &error)) die("%s", error.text);
    const double built = seconds_now() - start;
    const double factor = plan.exclusive ? (double)plan.steps / plan.chunks : NAN;
    printf("%-12s %-14s %6d steps %6d chunks %10lld rows  %6.4f D/B  least %6.4f  built in %7.3f s\n", network,
           algorithm, plan.steps, plan.chunks, (long long)plan.n, factor, least(&net), built);
    fflush(stdout);
    plan_free(&plan);
    network_free(&net);
}

int main(void) {
    process.name = "bench_plans";
    static const char* const networks[] = {"torus:4x4",   "torus:8x8", "torus:16x16", "torus:32x32",
                                           "torus:4x4x4", "mesh:4x4",  "mesh:8x8"};
    for (size_t i = 0; i < sizeof networks / sizeof *networks; i++) bench(networks[i], "multitree");
    bench("torus:64x64", "multitree");
    bench("fattree:8,2", "multitree");
    bench("bigraph:4x16", "multitree");
    return 0;
}
