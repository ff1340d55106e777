/*
comm/collectives/collectives.h: collectives as plans. The algorithm by which N ranks sum a vector, or gather one, is
planned before the run, for the network that joins them; the result is a table (plan.h) that is checked, priced, drawn,
simulated (planner/) and executed (comm/comm_planned.h).

    algorithms          the table of algorithms; names, messages, planner and tests iterate it
    algorithm_find      an algorithm, by its name
    algorithm_usual     the algorithm of groups for which none is asked for
    collective_build    the plan of an algorithm on a network, or the reason why there is none

    topology.h    networks: torus, mesh, fat tree, ..., or from a file
    plan.h        the table of transfers, its proof, its cost
    ring.h        ring, 2d-ring, torus-ring, halving-doubling, double-tree
    multitree.h   multitree

Theory: an all-reduce is a reduce-scatter and an all-gather; ZeRO and sites of several replicas need the two parts by
themselves.

                        all-reduce   the two parts                networks
    ring                yes          yes                          any
    2d-ring, torus-ring yes          no                           mesh, torus
    halving-doubling    yes          where N is a power of two    any
    double-tree         yes          no                           any
    multitree           yes          yes                          any
*/
#pragma once

#include "multitree.h"
#include "topology.h"
#include "plan.h"
#include "ring.h"

// Indices into `algorithms`, in its order.
typedef enum { RING, RING_2D, TORUS_RING, HALVING_DOUBLING, DOUBLE_TREE, MULTITREE, ALGORITHMS } Algorithm;

// What an algorithm needs and the network lacks, or NULL.
static inline const char* needs_grid(const Network* net) {
    return net->dimensions < 2 ? "needs a mesh or torus" : NULL;
}

// Why reduce-scatter and all-gather are not possible on their own, or NULL.
static inline const char* parts_never(const Network* net) {
    (void)net;
    return "sums to all ranks, without the reduce-scatter and all-gather that --zero and --sites of several replicas "
           "need";
}

static inline const char* parts_of_powers(const Network* net) {
    return (net->ranks & (net->ranks - 1)) != 0 ? "can scatter and gather between 2, 4, 8, ... ranks only" : NULL;
}

// One row per algorithm. A new one is a constant of Algorithm, a function that builds its plan and a row here.
typedef struct {
    const char* name;
    const char* (*needs)(const Network*); // NULL: any network
    const char* (*parts)(const Network*); // what reduce-scatter and all-gather need; NULL: any network
    void (*build)(Plan*, PlanKind, const Network*);
} AlgorithmRow;

static const AlgorithmRow algorithms[ALGORITHMS] = {
    {"ring", NULL, NULL, plan_ring},
    {"2d-ring", needs_grid, parts_never, plan_2d_ring},
    {"torus-ring", needs_grid, parts_never, plan_torus_ring},
    {"halving-doubling", NULL, parts_of_powers, plan_halving_doubling},
    {"double-tree", NULL, parts_never, plan_double_tree},
    {"multitree", NULL, NULL, plan_multitree},
};

// Returns "ring, 2d-ring, ...", for messages and help.
static inline const char* algorithm_names(void) {
    static char text[160];
    if (text[0]) return text;
    for (int a = 0; a < ALGORITHMS; a++) append_text(text, sizeof text, "%s%s", a ? ", " : "", algorithms[a].name);
    return text;
}

// NULL: no algorithm has this name.
static inline const AlgorithmRow* algorithm_find(const char* name, Error* error) {
    for (int a = 0; a < ALGORITHMS; a++) {
        if (strcmp(algorithms[a].name, name) == 0) return &algorithms[a];
    }
    fail(error, "%s is no algorithm; there are %s", name, algorithm_names());
    return NULL;
}

// The algorithm of a group for which none is asked for, and whose links are unknown. Of both the bytes are the least
// possible; halving-doubling has fewer steps, and adds in the same order in every part of a vector.
static inline const char* algorithm_usual(int ranks) {
    return algorithms[(ranks & (ranks - 1)) == 0 ? HALVING_DOUBLING : RING].name;
}

// The network that replicas' sums are planned for: a topology, or all to all; part: they are those of one site.
static inline bool replicas_network(Network* net, const char* topology, int replicas, bool part, Error* error) {
    char usual[32];
    snprintf(usual, sizeof usual, "full:%d", replicas);
    if (!network_build(net, topology ? topology : usual, error)) return false;
    if (net->ranks == replicas) return true;
    fail(error, "--topology %s joins %d ranks, but there are %d replicas%s whose gradients are summed over it",
         net->name, net->ranks, replicas, part ? " in a site" : " (--dp)");
    network_free(net);
    return false;
}

// Why an algorithm cannot plan this collective on this network, or NULL.
static inline const char* algorithm_refuses(const AlgorithmRow* row, PlanKind kind, const Network* net) {
    const char* why = row->needs ? row->needs(net) : NULL;
    if (!why && row->parts && kind != PLAN_ALL_REDUCE) why = row->parts(net);
    return why;
}

// Builds a plan that passes plan_check (the tests check all algorithms). Returns false with the
// reason if there is no such plan.
static inline bool collective_build(Plan* plan, const char* algorithm, PlanKind kind, const Network* net,
                                    Error* error) {
    const AlgorithmRow* row = algorithm_find(algorithm, error);
    memset(plan, 0, sizeof *plan);
    if (!row) return false;
    const char* why = algorithm_refuses(row, kind, net);
    if (why) return fail(error, "%s on %s, %s: it %s", algorithm, net->name, plan_kind_name(kind), why);
    row->build(plan, kind, net);
    return true;
}
