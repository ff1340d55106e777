/*
network_fixture.h: what the tests of the network simulator share: a plan on a network, and the seconds that it takes.
*/
#pragma once

#include "../../../comm/collectives/collectives.h"
#include "../../../planner/network_sim.h"
#include "test.h"

static const double exact = 1e-12; // relative: some roundings

static void must(bool ok, const Error* error) {
    if (!ok) die("%s", error->text);
}

static double seconds_of(const Plan* plan, const Network* net, int64_t bytes, const SimSettings* set, SimResult* keep) {
    Error error = {""};
    SimResult result;
    Routes routes = network_routes(net);
    must(simulate(plan, net, &routes, bytes, set, &result, &error), &error);
    routes_free(&routes);
    const double seconds = result.seconds;
    if (keep)
        *keep = result;
    else
        sim_result_free(&result);
    return seconds;
}

static double off(double a, double b) { return fabs(a - b) / fabs(b); }

static void build(Network* net, Plan* plan, const char* network, const char* algorithm) {
    Error error = {""};
    must(network_build(net, network, &error), &error);
    must(collective_build(plan, algorithm, PLAN_ALL_REDUCE, net, &error), &error);
}

static void end(Network* net, Plan* plan) {
    network_free(net);
    plan_free(plan);
}

enum { M = 256 * 800 }; // bytes of a message
static const double B = NETWORK_BANDWIDTH, a = NETWORK_LATENCY;

// Seconds of n messages of M bytes, rows (step, from, to, chunk) of a plan. The last row has the last chunk.
static double seconds_of_rows(const char* network, const int rows[][4], int n, const SimSettings* set) {
    const int chunks = rows[n - 1][3] + 1;
    Network net;
    Plan plan;
    Error error = {""};
    must(network_build(&net, network, &error), &error);
    plan_init(&plan, "test", PLAN_ALL_REDUCE, net.ranks, chunks);
    for (int i = 0; i < n; i++) plan_add(&plan, rows[i][0], rows[i][1], rows[i][2], rows[i][3], 1, true);
    const double seconds = seconds_of(&plan, &net, chunks * (int64_t)M, set, NULL);
    end(&net, &plan);
    return seconds;
}
