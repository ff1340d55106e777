/*
forest.h: all-reduce over spanning trees that share the links of a network as evenly as possible, in pieces that follow
each other. Not from one paper: packings of spanning trees are Nash-Williams' and Tutte's (1961); Blink (Wang et al.
2020, arXiv 1910.04940), ForestColl (Zhao et al. 2024, arXiv 2402.06787) and TTO (Laskar et al. 2024, HPCA) send
gradients over them.

MultiTree sums everything before it gathers anything, and all its trees end in corners that have few links: on a mesh
most links are idle most of the time. Here one tree serves both directions. Its part of the vector is summed up to its
root and comes back down, and while the root sends out the first piece, the leaves send up the next ones: a link is used
upwards in one direction, downwards in the other. K trees that use no link more than c times give K / c times the
bandwidth of one link, and no set of trees more than the minimum of

    (links that lead between the parts of the network) / (parts - 1), over all its partitions     (Nash-Williams, Tutte)

which for 8 x 8 is 112 / 63 = 1.78 on a mesh, where MultiTree has N / 2 T = 1, and 128 / 63 = 2.03 on a torus, where it
has 1.88. And every rank has to send its vector at least once, so no algorithm does better where that bound is reached.

Packing. One tree after the other; each takes the links that are used least so far, and of these prefers ranks near its
root (Prim's algorithm). Then each is rebuilt around the others, a few times, and at last its middle becomes its root. 8
trees reach 1.6 on the mesh and 2 on the torus, 32 reach 1.68 and 2.

Steps. Piece after piece, tree after tree, every transfer takes the first step after its dependencies in which its link
has room. Later pieces fill the gaps that earlier ones left.
*/
#pragma once

#include "plan.h"

enum { FOREST_ROUNDS = 4 }; // how often each tree is rebuilt around the others

// Spanning trees. order (trees, ranks): the root, then every rank after its parent; parent (trees, ranks): of a rank.
typedef struct {
    int ranks, trees;
    int *order, *parent;
} Forest;

static inline void forest_free(Forest* f) {
    free(f->order);
    free(f->parent);
}

// A tree from `root` over the least used links (used / bandwidth, the same both ways), near ranks first. depth (ranks):
// scratch.
static inline void forest_tree(const Network* net, const double* used, int root, int* order, int* parent, int* depth) {
    const int N = net->ranks;
    int n = 0;
    for (int r = 0; r < N; r++) depth[r] = -1;
    order[n++] = root;
    parent[root] = -1;
    depth[root] = 0;
    while (n < N) {
        int best = -1;
        for (int i = 0; i < n; i++) {
            for (int l = net->first[order[i]]; l < net->first[order[i] + 1]; l++) {
                if (depth[net->link[l].to] >= 0) continue;
                if (best >= 0 &&
                    (used[l] > used[best] || (used[l] == used[best] && depth[order[i]] >= depth[net->link[best].from])))
                    continue;
                best = l;
            }
        }
        const int child = net->link[best].to;
        parent[child] = net->link[best].from;
        depth[child] = depth[parent[child]] + 1;
        order[n++] = child;
    }
}

// The same tree with another root; ranks nearer to it come first in order.
static inline void forest_reroot(int N, int root, int* order, int* parent, int* depth) {
    for (int at = root, before = -1; at >= 0;) {
        const int next = parent[at];
        parent[at] = before;
        before = at;
        at = next;
    }
    int n = 0;
    for (int r = 0; r < N; r++) {
        depth[r] = 0;
        for (int at = r; parent[at] >= 0; at = parent[at]) depth[r]++;
    }
    for (int d = 0; n < N; d++) {
        for (int r = 0; r < N; r++) {
            if (depth[r] == d) order[n++] = r;
        }
    }
}

// Centers a tree: the rank half way between the two that are farthest apart becomes its root.
static inline void forest_center(int N, int* order, int* parent, int* depth) {
    forest_reroot(N, order[N - 1], order, parent, depth); // one end
    int at = order[N - 1];                                // the other one
    for (int up = depth[at] / 2; up > 0; up--) at = parent[at];
    forest_reroot(N, at, order, parent, depth);
}

// Counts a tree's links, both ways, as used once more (by: 1) or once less (-1).
static inline void forest_use(const Network* net, const int* parent, double* used, int by) {
    for (int l = 0; l < net->links; l++) {
        const Link* link = &net->link[l];
        if (parent[link->from] == link->to || parent[link->to] == link->from) used[l] += by / link->bandwidth;
    }
}

static inline Forest forest_pack(const Network* net, int trees) {
    const int N = net->ranks;
    const size_t n = (size_t)N * (size_t)trees;
    Forest f = {N, trees, (int*)checked_malloc(n * sizeof(int), "a forest"),
                (int*)checked_malloc(n * sizeof(int), "a forest")};
    double* used = (double*)checked_calloc((size_t)net->links + 1, sizeof(double), "a forest");
    int* depth = (int*)checked_malloc((size_t)N * sizeof(int), "a forest");
    for (int i = 0; i < FOREST_ROUNDS * trees; i++) {
        const int k = i % trees;
        int *order = f.order + (size_t)k * (size_t)N, *parent = f.parent + (size_t)k * (size_t)N;
        if (i >= trees) forest_use(net, parent, used, -1);
        forest_tree(net, used, (int)((int64_t)k * N / trees), order, parent, depth);
        forest_use(net, parent, used, 1);
    }
    for (int k = 0; k < trees; k++)
        forest_center(N, f.order + (size_t)k * (size_t)N, f.parent + (size_t)k * (size_t)N, depth);
    free(used);
    free(depth);
    return f;
}

// The steps of a link. room: transfers that one step has room for. next: the first step from this one on with room, as
// far as is known.
typedef struct {
    int next, used;
} LinkStep;

typedef struct {
    int n, room;
    LinkStep* steps; // (n)
} LinkSteps;

// Takes the first step with room from `step` on.
static inline int link_take_step(LinkSteps* l, int step) {
    for (;; step = l->steps[step].next) {
        while (step >= l->n) {
            const int n = l->n;
            l->steps = (LinkStep*)checked_grow(l->steps, &l->n, 64, sizeof(LinkStep), "the steps of a link");
            for (int s = n; s < l->n; s++) {
                l->steps[s].next = s;
                l->steps[s].used = 0;
            }
        }
        LinkStep* at = &l->steps[step];
        if (at->next == step) break;
        if (at->next < l->n) at->next = l->steps[at->next].next; // path halving
    }
    if (++l->steps[step].used == l->room) l->steps[step].next = step + 1;
    return step;
}

// Sends one piece of one tree's part up and down. ready (ranks): scratch.
static inline void forest_add_piece(Plan* plan, const Network* net, const Forest* f, int tree, int chunk,
                                    LinkSteps* steps, int* ready) {
    const int N = f->ranks;
    const int *order = f->order + (size_t)tree * (size_t)N, *parent = f->parent + (size_t)tree * (size_t)N;
    for (int r = 0; r < N; r++) ready[r] = 0;
    for (int i = N - 1; i > 0; i--) {
        const int child = order[i], up = parent[child];
        const int step = link_take_step(&steps[network_link(net, child, up)], ready[child]);
        plan_add(plan, step, child, up, chunk, 1, true);
        ready[up] = (int)max_i64(ready[up], step + 1);
    }
    for (int i = 1; i < N; i++) {
        const int child = order[i], up = parent[child];
        const int step = link_take_step(&steps[network_link(net, up, child)], ready[up]);
        plan_add(plan, step, up, child, chunk, 1, false);
        ready[child] = step + 1;
    }
}

static inline void plan_forest(Plan* plan, const Network* net, int trees, int pieces) {
    Forest f = forest_pack(net, trees);
    LinkSteps* steps = (LinkSteps*)checked_calloc((size_t)net->links + 1, sizeof(LinkSteps), "a forest's steps");
    int* ready = (int*)checked_malloc((size_t)net->ranks * sizeof(int), "a forest's steps");
    const double slowest = network_slowest(net);
    for (int l = 0; l < net->links; l++) steps[l].room = plan_room(&net->link[l], slowest);
    plan_init(plan, "forest", PLAN_ALL_REDUCE, net->ranks, trees * pieces);
    plan->exclusive = true;
    for (int piece = 0; piece < pieces && net->ranks > 1; piece++) {
        for (int tree = 0; tree < trees; tree++)
            forest_add_piece(plan, net, &f, tree, tree * pieces + piece, steps, ready);
    }
    for (int l = 0; l < net->links; l++) free(steps[l].steps);
    free(steps);
    free(ready);
    forest_free(&f);
    plan_sort(plan);
}
