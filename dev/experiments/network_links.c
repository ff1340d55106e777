/*
network_links.c: prints the links and the routes of a network of comm/collectives/topology.h, from which
dev/experiments/net.py builds the same network in Linux.

    network_links NAME|FILE [MBIT]     "nodes N"; each link: "A B MBIT MICROSECONDS"; each pair: "route FROM TO NEXT"

Links must be bidirectional with equal speeds, at most one between two nodes. MBIT: the speed of named networks, which
define none; 20 by default.
*/
#include "../../planner/plan_cost.h"

// Prints a link for every joined pair of vertices.
static void print_links(const Network* net, double mbit) {
    printf("nodes %d\n", net->vertices);
    for (int i = 0; i < net->links; i++) {
        const Link* l = &net->link[i];
        if (l->from > l->to) continue;
        const bool own = l->bandwidth != NETWORK_BANDWIDTH || l->latency != NETWORK_LATENCY;
        printf("%d %d %g %g\n", l->from, l->to, own ? l->bandwidth * 8e-6 : mbit, own ? l->latency * 1e6 : 0);
    }
    Routes routes = network_routes(net);
    for (int from = 0; from < net->vertices; from++) {
        for (int to = 0; to < net->ranks; to++) {
            const int link = routes_next(&routes, from, to);
            if (link >= 0) printf("route %d %d %d\n", from, to, net->link[link].to);
        }
    }
    routes_free(&routes);
}

int main(int argc, char** argv) {
    Network net;
    Error error;
    process.name = "network_links";
    char* end = NULL;
    const double mbit = argc > 2 ? strtod(argv[2], &end) : 20;
    if (argc < 2 || argc > 3 || (end && (*end || !(mbit > 0)))) die_usage("network_links NAME|FILE [MBIT]");
    if (!network_build(&net, argv[1], &error)) die_usage("%s", error.text);
    if (network_has_parallel_links(&net))
        die_usage("network %s: two nodes are joined by one link in each direction at most", net.name);
    print_links(&net, mbit);
    network_free(&net);
    return 0;
}
