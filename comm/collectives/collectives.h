/*
comm/collectives/collectives.h: collectives as plans. How N ranks sum a vector, or gather one, is decided here before anything runs, for the
network that joins them; the result is a table (comm/collectives/plan.h) that is checked, priced, drawn, simulated (dev/plan/)
and run (comm/comm_planned.h).

    comm/collectives/topology.h    networks: torus, mesh, fat tree, ..., or from a file
    comm/collectives/plan.h       the table, its proof, its cost
    comm/collectives/ring.h      ring, ring-both, 2d-ring, torus-ring, halving-doubling, double-tree
    comm/collectives/multitree.h  multitree
    comm/collectives/forest.h     forest

                        all-reduce   reduce-scatter, all-gather   networks
    ring, ring-both     yes          yes                          any
    2d-ring, torus-ring yes          no                           mesh, torus
    halving-doubling    yes          where N is a power of two    any
    double-tree:P       yes          no                           any; P pieces, 8 if not said
    multitree:K         yes          yes                          any; K trees a rank, 1 if not said (the paper's)
    forest:K,P          yes          by multitree:4               links that lead both ways alike, no switches; K trees, 8 if
                                                                  not said, of P pieces, 32 if not said
*/
#ifndef COLLECTIVES_H
#define COLLECTIVES_H

#include "forest.h"
#include "multitree.h"
#include "topology.h"
#include "plan.h"
#include "ring.h"

typedef enum {
    RING,
    RING_BOTH,
    RING_2D,
    TORUS_RING,
    HALVING_DOUBLING,
    DOUBLE_TREE,
    MULTITREE,
    FOREST,
    ALGORITHMS
} Algorithm;

static inline const char* algorithm_name(int algorithm) {
    static const char* const names[] = {"ring",        "ring-both", "2d-ring", "torus-ring", "halving-doubling",
                                        "double-tree", "multitree", "forest"};
    return names[algorithm];
}

// For messages.
static inline const char* algorithm_names(void) {
    return "ring, ring-both, 2d-ring, torus-ring, halving-doubling, double-tree[:P], multitree[:K], forest[:K[,P]]";
}

// "multitree:2": an algorithm and its numbers (0 where they are not said).
typedef struct {
    Algorithm algorithm;
    int numbers[3];
} AlgorithmChoice;

static inline bool algorithm_parse(const char* text, AlgorithmChoice* choice, Error* error) {
    const char* colon = strchr(text, ':');
    const size_t length = colon ? (size_t)(colon - text) : strlen(text);
    memset(choice, 0, sizeof *choice);
    for (int a = 0; a < ALGORITHMS; a++) {
        if (strlen(algorithm_name(a)) != length || strncmp(algorithm_name(a), text, length) != 0) continue;
        const int most = a == FOREST ? 2 : a == MULTITREE || a == DOUBLE_TREE ? 1 : 0;
        const int n = colon ? network_numbers(colon + 1, ',', choice->numbers) : 0;
        choice->algorithm = (Algorithm)a;
        for (int i = 0; i < n; i++) {
            if (choice->numbers[i] > 1024) return fail(error, "%s: a number above 1024", text);
        }
        if (!colon || (n > 0 && n <= most)) return true;
        return fail(error, most ? "%s: \"%s:\" takes %d whole number%s" : "%s: \"%s\" takes no numbers", text,
                    algorithm_name(a), most, most == 1 ? "" : "s");
    }
    return fail(error, "%s is no algorithm; there are %s", text, algorithm_names());
}

// Why an algorithm cannot do this on this network, or NULL.
static inline const char* algorithm_refuses(Algorithm a, PlanKind kind, const Network* net) {
    const bool parts = kind != PLAN_ALL_REDUCE;
    if ((a == RING_2D || a == TORUS_RING) && net->dimensions < 2) return "needs a mesh or torus";
    if ((a == RING_2D || a == TORUS_RING || a == DOUBLE_TREE) && parts)
        return "sums to all ranks, without the reduce-scatter and all-gather that --zero and --sites of several "
               "replicas need";
    if (a == HALVING_DOUBLING && parts && (net->ranks & (net->ranks - 1)) != 0)
        return "can scatter and gather between 2, 4, 8, ... ranks only";
    if (a == FOREST && network_has_switches(net)) return "is for networks without switches; take multitree";
    if (a == FOREST && !network_is_symmetric(net)) return "needs links that lead both ways alike; take multitree";
    return NULL;
}

// Builds a plan, which is free of errors as far as plan_check knows (the tests prove all that are here). algorithm: as in
// algorithm_parse.
static inline bool collective_build(Plan* plan, const char* algorithm, PlanKind kind, const Network* net,
                                    Error* error) {
    AlgorithmChoice choice;
    memset(plan, 0, sizeof *plan);
    if (!algorithm_parse(algorithm, &choice, error)) return false;
    const char* why = algorithm_refuses(choice.algorithm, kind, net);
    if (why) return fail(error, "%s on %s, %s: it %s", algorithm, net->name, plan_kind_name(kind), why);
    const int a = choice.numbers[0], b = choice.numbers[1];
    switch (choice.algorithm) {
    case RING: plan_ring(plan, kind, net, 1); break;
    case RING_BOTH: plan_ring(plan, kind, net, 2); break;
    case RING_2D: plan_2d_ring(plan, net); break;
    case TORUS_RING: plan_torus_ring(plan, net); break;
    case HALVING_DOUBLING: plan_halving_doubling(plan, kind, net->ranks); break;
    case DOUBLE_TREE: plan_double_tree(plan, net->ranks, a ? a : 8); break;
    case FOREST:
        if (kind == PLAN_ALL_REDUCE) {
            plan_forest(plan, net, a ? a : 8, b ? b : 32);
            break;
        }
        plan_multitree(plan, kind, net, 4);
        break;
    default: plan_multitree(plan, kind, net, a ? a : 1); break;
    }
    snprintf(plan->name, sizeof plan->name, "%s", algorithm);
    return true;
}

#endif
