/*
planner/plan_cost.h: what the planner needs of networks and plans beyond the trainer: routes, the cost of a plan by
links alone, and plans that are cut finer or run by several groups at once, for the simulator.

Routes. A message between two ranks without a link takes a fixed shortest way: on grids one dimension after another, the
last one first; elsewhere, if several next vertices are equally near, the number of the destination selects one of them,
which spreads the traffic over the upper switches of a fat tree.
*/
#pragma once

#include "../comm/collectives/plan.h"

// Elements that a transfer carries.
static inline int64_t transfer_elements(const Plan* plan, const Transfer* t, int64_t n) {
    return plan_chunk_start(plan, n, t->chunk + t->chunks) - plan_chunk_start(plan, n, t->chunk);
}

// ---- Routes -----------------------------------------------------------------------------------------------------

// Gives all links the same speed.
static inline void network_set_links(Network* net, double bandwidth, double latency) {
    for (int i = 0; i < net->links; i++) {
        net->link[i].bandwidth = bandwidth;
        net->link[i].latency = latency;
    }
}

// Fixed ways. next (vertices, ranks): the link that a message at v for rank r takes, -1 at its end. It takes v r ints.
typedef struct {
    int ranks;
    int* next;
} Routes;

static inline int network_grid_next(const Network* net, int v, int to) {
    for (int i = net->dimensions - 1; i >= 0; i--) {
        const int side = net->sides[i], by = network_coordinate(net, to, i) - network_coordinate(net, v, i);
        if (by == 0) continue;
        const bool around = net->wraps && side > 2 && 2 * abs(by) > side;
        return network_link(net, v, network_along(net, v, i, (by > 0) != around ? 1 : -1));
    }
    return -1;
}

// hops (vertices): to the rank `to`.
static inline int network_nearest_next(const Network* net, const int* hops, int v, int to) {
    int near = 0;
    if (hops[v] <= 0) return -1;
    for (int i = net->first[v]; i < net->first[v + 1]; i++) near += hops[net->link[i].to] == hops[v] - 1;
    int turn = to % near;
    for (int i = net->first[v]; i < net->first[v + 1]; i++) {
        if (hops[net->link[i].to] == hops[v] - 1 && turn-- == 0) return i;
    }
    return -1;
}

static inline Routes network_routes(const Network* net) {
    Routes routes = {net->ranks,
                     (int*)checked_malloc((size_t)net->vertices * (size_t)net->ranks * sizeof(int), "routes")};
    int* hops = (int*)checked_malloc((size_t)net->vertices * 2 * sizeof(int), "routes");
    for (int to = 0; to < net->ranks; to++) {
        if (!net->dimensions) network_hops(net, to, hops, hops + net->vertices);
        for (int v = 0; v < net->vertices; v++) {
            int* next = &routes.next[(size_t)v * (size_t)net->ranks + (size_t)to];
            *next = net->dimensions ? network_grid_next(net, v, to) : network_nearest_next(net, hops, v, to);
        }
    }
    free(hops);
    return routes;
}

static inline int routes_next(const Routes* routes, int v, int to) {
    return routes->next[(size_t)v * (size_t)routes->ranks + (size_t)to];
}

static inline void routes_free(Routes* routes) {
    free(routes->next);
    routes->next = NULL;
}

// The links of transfer i: writes at most `most` of them (a way never has more than the network has vertices), returns
// their number.
static inline int plan_way(const Plan* plan, const Network* net, const Routes* routes, int64_t i, int* links) {
    int n = 0;
    if (plan->way) {
        for (int64_t k = plan->way[i]; k < plan->way[i + 1]; k++) links[n++] = plan->link[k];
        return n;
    }
    const Transfer* t = &plan->transfers[i];
    links[0] = network_link(net, t->from, t->to);
    if (links[0] >= 0) return 1;
    for (int v = t->from; v != t->to; v = net->link[links[n - 1]].to) links[n++] = routes_next(routes, v, t->to);
    return n;
}

// ---- Cost -------------------------------------------------------------------------------------------------------

// Seconds, if all ranks begin every step together: a step lasts as long as its busiest link's load and its longest
// way's latency. bytes: of the whole vector. network_sim.h is more accurate.
static inline double plan_cost(const Plan* plan, const Network* net, const Routes* routes, double bytes) {
    double* busy = (double*)checked_calloc((size_t)net->links + 1, sizeof(double), "the cost of a plan");
    int* links = (int*)checked_malloc((size_t)net->vertices * sizeof(int), "the cost of a plan");
    double seconds = 0, longest = 0, most = 0;
    int64_t from = 0;
    for (int64_t i = 0; i <= plan->n; i++) {
        if (i == plan->n || plan->transfers[i].step != plan->transfers[from].step) {
            seconds += most + longest;
            for (; from < i; from++) {
                for (int k = plan_way(plan, net, routes, from, links) - 1; k >= 0; k--) busy[links[k]] = 0;
            }
            longest = most = 0;
        }
        if (i == plan->n) break;
        double latency = 0;
        for (int k = plan_way(plan, net, routes, i, links) - 1; k >= 0; k--) {
            const Link* link = &net->link[links[k]];
            busy[links[k]] += plan->transfers[i].chunks * bytes / plan->chunks / link->bandwidth;
            most = fmax(most, busy[links[k]]);
            latency += link->latency;
        }
        longest = fmax(longest, latency);
    }
    free(busy);
    free(links);
    return seconds;
}

// ---- Plans of the simulator -------------------------------------------------------------------------------------

// The plan as executed with `slabs`: chunk c becomes the chunks c slabs, c slabs + 1, ... Each of its transfers carries
// one chunk.
static inline void plan_cut(Plan* plan, int slabs) {
    if (slabs == 1) return;
    Plan fine = *plan;
    fine.transfers = NULL;
    fine.n = fine.capacity = 0;
    fine.chunks = plan->chunks * slabs;
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer* t = &plan->transfers[i];
        for (int k = 0; k < slabs; k++)
            plan_add(&fine, t->step, t->from, t->to, t->chunk * slabs + k, t->chunks, t->add);
    }
    if (plan->way) {
        const int64_t length = plan->way[plan->n];
        fine.way = (int64_t*)checked_malloc((size_t)(fine.n + 1) * sizeof(int64_t), "a plan");
        fine.link = (int32_t*)checked_malloc((size_t)length * (size_t)slabs * sizeof(int32_t), "a plan");
        fine.way[0] = 0;
        for (int64_t i = 0; i < fine.n; i++) {
            const int64_t from = plan->way[i / slabs], links = plan->way[i / slabs + 1] - from;
            memcpy(fine.link + fine.way[i], plan->link + from, (size_t)links * sizeof(int32_t));
            fine.way[i + 1] = fine.way[i] + links;
        }
    }
    plan_free(plan);
    *plan = fine;
}

// Several groups run the plan at the same time, on vectors of their own, one after another in memory: rank r of group g
// becomes rank r groups + g. The plan has no ways of its own.
static inline void plan_groups(Plan* plan, int groups) {
    Plan all;
    plan_init(&all, "", plan->kind, plan->ranks * groups, plan->chunks * groups);
    memcpy(all.name, plan->name, sizeof all.name);
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer* t = &plan->transfers[i];
        for (int g = 0; g < groups; g++)
            plan_add(&all, t->step, t->from * groups + g, t->to * groups + g, g * plan->chunks + t->chunk, t->chunks,
                     t->add);
    }
    plan_free(plan);
    *plan = all;
}
