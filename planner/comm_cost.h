/*
comm_cost.h: the cost of collectives and messages on a cluster (cluster.h). Each `node_gpus` consecutive ranks share a
node. A group has `ranks` ranks, `stride` apart, and all such groups of the machine are busy at once.

    link_cost              of a collective: a latency and seconds a byte
    message_cost           of a message
    site_cost              of a collective between sites
    replicas_plan_cost     of replicas' sums by --allreduce

Theory:

    within a node    a ring over NVLink: bandwidth b = nvlink x its fraction, s = nvlink_step a step:
                     a pass (reduce-scatter or all-gather; an all-reduce is two) of n ranks and D bytes takes
                     (n - 1) s + D (n - 1) / (n b)
                     All groups are inside nodes only if they divide a node: of groups of 6 in nodes of 8 some span two
                     nodes, and all wait for these
    over nodes       a group has i ranks in a node. The groups of a node share its adapters: each has i / node_gpus of
                     their rate, and b is the lower one of this and NVLink. Libraries use rings for bandwidth, trees for
                     latency: with N nodes (i - 1) + min(N - 1, 2 log2 N) steps of nic_step
    fabric           in a fat tree whose upper links are o times narrower, the flows that leave a leaf of k nodes share
                     these: of nodes S apart the part min(1, S / k). On a torus ring neighbours that are h apart in a
                     dimension take h links, and h flows share each

    between sites    every two are joined by a link of site_rate, which all ranks of a site share, and each delay counts

That is the default. A cluster with an "algorithm" has its groups built as a network of comm/collectives/topology.h,
ranks and switches, with the same rates and latencies, and the plan of that name (comm/collectives/collectives.h) is
priced on it by plan_cost, which is linear in the bytes: two prices determine it. A ring's plan has n - 1 steps where
the default has a tree's, so on one node both are equal, and over several nodes the plan costs the further steps
(test_planner_cluster.c shows both). Groups of more than LINKS_LARGEST ranks, and those that the algorithm does not
support, have the default's price.
*/
#pragma once

#include "cluster.h"
#include "plan_cost.h"

#include "../comm/collectives/collectives.h"

enum { LINKS_LARGEST = 64 };

// Seconds = latency + bytes x per_byte; bytes: of the whole vector.
typedef struct {
    double latency, per_byte;
} LinkCost;

static inline double link_seconds(LinkCost cost, double bytes) { return cost.latency + bytes * cost.per_byte; }

// A group's ring: ranks in a node, nodes, bytes/s from one rank to the next, seconds a step.
typedef struct {
    int inside, nodes;
    double bandwidth, step;
} LinkGroup;

// Nodes from one rank of a group to the next.
static inline int link_node_stride(const Cluster* c, int stride) { return (int)max_i64(1, stride / c->node_gpus); }

static inline bool fabric_is_torus(const Cluster* c) { return c->torus[0] > 0; }

// On a torus: links to the node that is `nodes` further, in total and in the worst dimension.
static inline void torus_shift(const Cluster* c, int nodes, int* hops, int* worst) {
    *hops = *worst = 0;
    for (int i = FABRIC_DIMENSIONS - 1; i >= 0; i--) {
        const int side = c->torus[i], at = nodes % side, way = at < side - at ? at : side - at;
        *hops += way;
        *worst = way > *worst ? way : *worst;
        nodes /= side;
    }
    *hops = *hops < 1 ? 1 : *hops;
    *worst = *worst < 1 ? 1 : *worst;
}

// Bytes/s of a node's flows to nodes `nodes` away, all nodes sending at once; seconds of a step.
static inline double fabric_rate(const Cluster* c, int nodes, double* step) {
    *step = c->nic_step;
    if (fabric_is_torus(c)) {
        int hops, worst;
        torus_shift(c, nodes, &hops, &worst);
        *step = c->nic_step * hops;
        return c->nic * c->nic_fraction / worst;
    }
    const double leaving = fmin(1, (double)nodes / c->leaf_nodes);
    return c->nic * c->nics * c->nic_fraction / fmax(1, c->oversubscription * leaving);
}

static inline LinkGroup link_group(const Cluster* c, int ranks, int stride) {
    LinkGroup g = {ranks, 1, c->nvlink * c->nvlink_fraction, c->nvlink_step};
    if (c->nodes == 1 || c->node_gpus % ((int64_t)ranks * stride) == 0) return g;
    g.inside = (int)max_i64(1, min_i64(ranks, c->node_gpus / stride));
    if (g.inside >= ranks) g.inside = (int)max_i64(1, ranks / 2); // some group spans two nodes
    g.nodes = (ranks + g.inside - 1) / g.inside;
    const double share = fabric_rate(c, link_node_stride(c, stride), &g.step) * g.inside / c->node_gpus;
    g.bandwidth = g.inside > 1 ? fmin(g.bandwidth, share) : share;
    return g;
}

static inline int plan_passes(PlanKind kind) { return kind == PLAN_ALL_REDUCE ? 2 : 1; }

// The default's cost.
static inline LinkCost library_cost(const Cluster* c, PlanKind kind, int ranks, int stride) {
    const LinkGroup g = link_group(c, ranks, stride);
    const double passes = plan_passes(kind);
    const double steps = g.nodes == 1 ? ranks - 1 : g.inside - 1 + fmin(g.nodes - 1, 2 * log2(g.nodes));
    const LinkCost cost = {c->device.launch + passes * steps * g.step,
                           passes * (ranks - 1) / ((double)ranks * g.bandwidth)};
    return cost;
}

// A message from one stage of a pipeline to another, `stride` ranks each: over the network unless both are in a node.
static inline LinkCost message_cost(const Cluster* c, int stride, int from, int to) {
    LinkCost cost = {2 * c->nvlink_step, 1 / (c->nvlink * c->nvlink_fraction)};
    const int64_t first = min_i64(from, to), last = max_i64(from, to);
    if (first * stride / c->node_gpus == ((last + 1) * stride - 1) / c->node_gpus) return cost;
    double step;
    const double rate = fabric_rate(c, link_node_stride(c, stride), &step) / c->node_gpus;
    cost.latency = 2 * step;
    cost.per_byte = 1 / rate;
    return cost;
}

// Between sites: `ranks` ranks of a site share its links, each to its peers in the other sites; D bytes a rank. An
// all-reduce is a reduce-scatter and an all-gather with each other site directly: one delay each.
static inline LinkCost site_cost(const Cluster* c, PlanKind kind, int sites, int ranks) {
    const double passes = plan_passes(kind), rate = c->site_rate / ranks; // the link to each other site has it
    const LinkCost cost = {c->device.launch + passes * c->site_delay, passes / (sites * rate)};
    return cost;
}

// ---- Costs by plans ---------------------------------------------------------------------------------------------

// If a group's nodes, one rank each, fill a torus in some of its dimensions, writes these; returns how many, or 0.
static inline int link_sub_torus(const Cluster* c, const LinkGroup* g, int stride, int sides[FABRIC_DIMENSIONS]) {
    const int apart = link_node_stride(c, stride);
    if (!fabric_is_torus(c) || g->inside > 1 || g->nodes == 1) return 0;
    for (int last = FABRIC_DIMENSIONS - 1, below = 1; last >= 0; below *= c->torus[last--]) {
        int64_t nodes = 1;
        if (below != apart) continue;
        for (int first = last; first >= 0; first--) {
            nodes *= c->torus[first];
            if (nodes != g->nodes) continue;
            int n = 0;
            for (int i = first; i <= last; i++) {
                if (c->torus[i] > 1) sides[n++] = c->torus[i];
            }
            return n;
        }
    }
    return 0;
}

// The group as a network. One switch in each node, one between them; or a torus.
static inline bool link_network(Network* net, const Cluster* c, int ranks, int stride, Error* error) {
    const LinkGroup g = link_group(c, ranks, stride);
    const double nvlink = c->nvlink * c->nvlink_fraction;
    int sides[FABRIC_DIMENSIONS] = {1, 1, 1};
    const int dimensions = link_sub_torus(c, &g, stride, sides);
    char name[40];
    if (dimensions > 0) {
        snprintf(name, sizeof name, "%s:%d", dimensions == 1 ? "ring" : "torus", sides[0]);
        for (int i = 1; i < dimensions; i++) append_text(name, sizeof name, "x%d", sides[i]);
        if (!network_build(net, name, error)) return false;
        network_set_links(net, c->nic * c->nic_fraction / c->node_gpus, c->nic_step);
        return true;
    }
    memset(net, 0, sizeof *net);
    snprintf(net->name, sizeof net->name, "%d nodes of %d ranks", g.nodes, g.inside);
    if (!network_size(net, ranks, g.nodes + (g.nodes > 1), error)) return false;
    const int middle = ranks + g.nodes;
    const double own = g.nodes > 1 && g.inside == 1 ? g.bandwidth : nvlink;
    const double half = g.nodes == 1 ? g.step / 2 : fmin(c->nvlink_step, g.step) / 2; // of a step, to a node's switch
    for (int r = 0; r < ranks; r++) {
        network_add(net, r, ranks + r / g.inside, own, half);
        network_add(net, ranks + r / g.inside, r, own, half);
    }
    const int joined = g.nodes > 1 ? g.nodes : 0;
    for (int n = 0; n < joined; n++) {
        network_add(net, ranks + n, middle, g.bandwidth, g.step / 2 - half);
        network_add(net, middle, ranks + n, g.bandwidth, g.step / 2 - half);
    }
    network_sort(net);
    return true;
}

// The cost there of an algorithm's plan that is made for the network `planned`. False, with the reason, if there is
// none.
static inline bool network_plan_cost(const Cluster* c, const char* algorithm, PlanKind kind, const Network* planned,
                                     const Network* net, LinkCost* cost, Error* error) {
    const double bytes = 1e9;
    Plan plan;
    memset(cost, 0, sizeof *cost);
    if (!collective_build(&plan, algorithm, kind, planned, error)) return false;
    if (net != planned) { // the plan's ways are those of the other network
        free(plan.way);
        plan.way = NULL;
    }
    Routes routes = network_routes(net);
    const double none = plan_cost(&plan, net, &routes, 0);
    cost->latency = c->device.launch + none;
    cost->per_byte = (plan_cost(&plan, net, &routes, bytes) - none) / bytes;
    routes_free(&routes);
    plan_free(&plan);
    return true;
}

static inline bool link_plan_cost(const Cluster* c, const char* algorithm, PlanKind kind, int ranks, int stride,
                                  LinkCost* cost, Error* error) {
    Network net;
    memset(cost, 0, sizeof *cost);
    if (!link_network(&net, c, ranks, stride, error)) return false;
    const bool ok = network_plan_cost(c, algorithm, kind, &net, &net, cost, error);
    network_free(&net);
    return ok;
}

// The cost of the plan that the trainer makes for replicas' sums on a topology (NULL: all to all), on the links that
// they have here: `stride` ranks apart, or (sharing > 0) in different sites, in each of which `sharing` ranks share the
// links. False, with the reason, if the trainer refuses it.
static inline bool replicas_plan_cost(const Cluster* c, const char* algorithm, const char* topology, PlanKind kind,
                                      int replicas, int stride, int sharing, LinkCost* cost, Error* error) {
    Network planned, net;
    if (replicas > LINKS_LARGEST)
        return fail(error, "--allreduce %s: plans of more than %d replicas, here %d, are not priced", algorithm,
                    (int)LINKS_LARGEST, replicas);
    if (!replicas_network(&planned, topology, replicas, false, error)) return false;
    bool ok =
        sharing ? replicas_network(&net, NULL, replicas, false, error) : link_network(&net, c, replicas, stride, error);
    if (ok && sharing) network_set_links(&net, c->site_rate / sharing, c->site_delay);
    if (ok) {
        ok = network_plan_cost(c, algorithm, kind, &planned, &net, cost, error);
        network_free(&net);
    }
    network_free(&planned);
    return ok;
}

// A cache of prices.
enum { LINKS_KEPT = 32 };
typedef struct {
    PlanKind kind;
    int ranks, stride, sharing;
    LinkCost cost;
    const char* algorithm; // NULL: the cluster's
} LinkKept;
typedef struct {
    int n;
    LinkKept kept[LINKS_KEPT];
} LinkCosts;

// Prices of plans that a search has built, on its cluster as it is and as its software changes it.
typedef struct {
    int n[2], room[2];
    LinkKept* kept[2];
} PlanCosts;

static inline bool link_known(const LinkKept* kept, int n, LinkKept* x) {
    for (int i = 0; i < n; i++) {
        const LinkKept* k = &kept[i];
        if (k->kind != x->kind || k->ranks != x->ranks || k->stride != x->stride) continue;
        if (k->sharing != x->sharing || k->algorithm != x->algorithm) continue;
        x->cost = k->cost;
        return true;
    }
    return false;
}

static inline LinkCost link_keep(LinkCosts* known, const LinkKept* x) {
    if (known->n < LINKS_KEPT) known->kept[known->n++] = *x;
    return x->cost;
}

static inline LinkCost link_cost(LinkCosts* known, const Cluster* c, PlanKind kind, int ranks, int stride) {
    LinkKept x = {kind, ranks, stride, 0, {0, 0}, NULL};
    Error error;
    if (ranks == 1) return x.cost;
    if (!*c->algorithm || ranks > LINKS_LARGEST) return library_cost(c, kind, ranks, stride);
    if (link_known(known->kept, known->n, &x)) return x.cost;
    if (!link_plan_cost(c, c->algorithm, kind, ranks, stride, &x.cost, &error))
        x.cost = library_cost(c, kind, ranks, stride);
    return link_keep(known, &x);
}
