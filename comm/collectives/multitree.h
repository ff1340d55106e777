/*
multitree.h: MultiTree (Huang, Majumder, Kim, Muzahid, Yum, Kim 2021, "Communication algorithm-architecture co-design
for distributed deep learning", ISCA): spanning trees made for a network.

There is a tree for every rank, rooted there: the root's part of the vector is gathered from the root down, and summed
up to it. Every rank sends as little as in a ring, but over all of its links and in fewer, shorter steps. The trees grow
together, from their roots, a step at a time: in step t a tree may add ranks that are one free link away from its ranks
at the beginning of the step; every link is free once a step (a link k times as fast as the slowest, k times). The trees
take turns, one rank each, until none can grow any more. So the trees and the conflict-free use of links in each step
are found together:

    all-gather       step t: the parent sends the part to the child that joined in step t
    reduce-scatter   step T - 1 - t: the child sends its sum of the part to the parent
    all-reduce       one after the other, 2 T steps

A child joins later than its parent, so it sends upwards earlier, and has all its own children's sums by then. Links
lead both ways, so the same trees serve both.

A torus of 8 x 8 needs 17 steps a phase where a ring needs 63; the lower bound is max(diameter, (N - 1) / in-degree of a
rank, N (N - 1) / links). A step ends when a whole round of turns has added nothing (the authors' first simulator
checked only the last tree, and took a step or two more on a mesh).

Switches. An edge of a tree may lead over one or more of them: to the nearest free rank, looking first, for all parents,
over one switch, then two, ..., at most net->reach. It uses every link of its way in that step.

The search. A parent that finds no child in a step will not find one later in that step, since links only get fewer and
members more; and one whose neighbours are all members never will. So each tree keeps its position in a list of parents
that still have neighbours outside the tree, which makes the search fast: seconds for 1,024 ranks.
*/
#pragma once

#include "plan.h"

// An edge of a tree, and the links from parent to child: way .. way + length - 1 of the trees' list.
typedef struct {
    int32_t step, parent, child, tree;
    int64_t way;
    int length;
} TreeEdge;

// Growing trees.
typedef struct {
    const Network* net;
    int64_t n;
    TreeEdge* edges; // (n) of ranks (ranks - 1), in the order in which they were added
    int64_t ways, way_capacity;
    int32_t* way; // links
    int steps;
    // While they grow:
    uint64_t* inside; // (ranks, words): the set of members
    int words;
    int32_t** parents;        // (ranks): members that may have children, as they joined
    int *count, *room;        // (ranks): their number, and the capacity
    int* members;             // (ranks)
    int *old, *place;         // (ranks): parents from before this step; the first of them that may still find a child
    int* reach;               // (ranks): switches tried in this step
    int *left, *full;         // (links): how often each is still free in this step, and at its start
    int *from, *seen, *queue; // (vertices): the search over switches
    int search;
} Trees;

static inline bool tree_has(const Trees* trees, int tree, int rank) {
    return trees->inside[(size_t)tree * (size_t)trees->words + (size_t)(rank / 64)] >> (rank % 64) & 1;
}

static inline void tree_join(Trees* trees, int tree, int rank) {
    trees->inside[(size_t)tree * (size_t)trees->words + (size_t)(rank / 64)] |= (uint64_t)1 << (rank % 64);
    trees->members[tree]++;
    if (trees->count[tree] == trees->room[tree])
        trees->parents[tree] =
            (int32_t*)checked_grow(trees->parents[tree], &trees->room[tree], 8, sizeof(int32_t), "a tree");
    trees->parents[tree][trees->count[tree]++] = rank;
}

static inline Trees trees_new(const Network* net) {
    Trees t = {};
    t.net = net;
    t.words = (net->ranks + 63) / 64;
    const size_t n = (size_t)net->ranks, vertices = (size_t)net->vertices;
    t.inside = (uint64_t*)checked_calloc(n * (size_t)t.words, sizeof(uint64_t), "trees");
    t.edges = (TreeEdge*)checked_malloc(n * (size_t)(net->ranks - 1) * sizeof(TreeEdge), "trees");
    t.parents = (int32_t**)checked_calloc(n, sizeof(int32_t*), "trees");
    t.count = (int*)checked_calloc(6 * n, sizeof(int), "trees");
    t.room = t.count + n;
    t.members = t.room + n;
    t.old = t.members + n;
    t.place = t.old + n;
    t.reach = t.place + n;
    t.left = (int*)checked_calloc(2 * (size_t)net->links + 1, sizeof(int), "trees");
    t.full = t.left + net->links;
    t.from = (int*)checked_calloc(3 * vertices, sizeof(int), "trees");
    t.seen = t.from + vertices;
    t.queue = t.seen + vertices;
    const double slowest = network_slowest(net);
    for (int i = 0; i < net->links; i++) t.full[i] = plan_room(&net->link[i], slowest);
    for (int tree = 0; tree < net->ranks; tree++) tree_join(&t, tree, tree);
    return t;
}

static inline void trees_free(Trees* t) {
    for (int tree = 0; tree < t->net->ranks; tree++) free(t->parents[tree]);
    free(t->parents);
    free(t->inside);
    free(t->count);
    free(t->left);
    free(t->from);
    free(t->edges);
    free(t->way);
    memset(t, 0, sizeof *t);
}

// Reserves the links of the path that the search found (from) in this step. Returns their number.
static inline int trees_add_way(Trees* t, int parent, int child) {
    const Link* link = t->net->link;
    int length = 0;
    for (int at = child; at != parent; at = link[t->from[at]].from) length++;
    t->ways += length;
    t->way = (int32_t*)checked_reserve(t->way, &t->way_capacity, t->ways, sizeof(int32_t), "trees");
    for (int at = child, k = 1; at != parent; at = link[t->from[at]].from, k++) {
        t->way[t->ways - k] = t->from[at];
        t->left[t->from[at]]--;
    }
    return length;
}

static inline void trees_add_edge(Trees* t, int tree, int parent, int child, int length) {
    const TreeEdge edge = {t->steps, parent, child, tree, t->ways - length, length};
    t->edges[t->n++] = edge;
    tree_join(t, tree, child);
}

// Finds a child of this parent by one link.
static inline bool tree_grow_link(Trees* t, int tree, int parent) {
    const Network* net = t->net;
    for (int i = net->first[parent]; i < net->first[parent + 1]; i++) {
        if (t->left[i] == 0 || tree_has(t, tree, net->link[i].to)) continue;
        t->from[net->link[i].to] = i;
        trees_add_edge(t, tree, parent, net->link[i].to, trees_add_way(t, parent, net->link[i].to));
        return true;
    }
    return false;
}

// Finds a child of this parent over at most `reach` switches: breadth first.
static inline bool tree_grow_switched(Trees* t, int tree, int parent, int reach) {
    const Network* net = t->net;
    int head = 0, tail = 0, level_end = 1, switches = 0;
    t->search++;
    t->seen[parent] = t->search;
    t->queue[tail++] = parent;
    while (head < tail) {
        if (head == level_end) {
            level_end = tail;
            switches++; // the vertices from here on are one switch further away
        }
        const int v = t->queue[head++];
        for (int i = net->first[v]; i < net->first[v + 1]; i++) {
            const int to = net->link[i].to;
            if (t->left[i] == 0 || t->seen[to] == t->search) continue;
            if (to < net->ranks && tree_has(t, tree, to)) continue;
            if (to >= net->ranks && switches == reach) continue;
            t->seen[to] = t->search;
            t->from[to] = i;
            if (to >= net->ranks) {
                t->queue[tail++] = to;
                continue;
            }
            trees_add_edge(t, tree, parent, to, trees_add_way(t, parent, to));
            return true;
        }
    }
    return false;
}

// Adds one rank to a tree, if possible. Its turn ends with that.
static inline bool tree_turn(Trees* t, int tree) {
    const bool switched = network_has_switches(t->net);
    if (t->members[tree] == t->net->ranks) return false;
    for (; t->reach[tree] <= t->net->reach; t->reach[tree]++, t->place[tree] = 0) {
        for (; t->place[tree] < t->old[tree]; t->place[tree]++) {
            const int parent = t->parents[tree][t->place[tree]];
            if (switched ? tree_grow_switched(t, tree, parent, t->reach[tree]) : tree_grow_link(t, tree, parent))
                return true;
        }
        if (!switched) return false;
    }
    return false;
}

// Before a step: every link is free, and parents without neighbours outside the tree are removed.
static inline void trees_begin_step(Trees* t) {
    const Network* net = t->net;
    memcpy(t->left, t->full, (size_t)net->links * sizeof(int));
    for (int tree = 0; tree < net->ranks; tree++) {
        int kept = 0;
        for (int i = 0; i < t->count[tree]; i++) {
            const int parent = t->parents[tree][i];
            bool keep = network_has_switches(net);
            for (int k = net->first[parent]; k < net->first[parent + 1] && !keep; k++)
                keep = !tree_has(t, tree, net->link[k].to);
            if (keep) t->parents[tree][kept++] = parent;
        }
        t->count[tree] = t->old[tree] = kept;
        t->place[tree] = 0;
        t->reach[tree] = 1;
    }
}

// Grows a tree from every rank until they span the network, which has to be connected.
static inline Trees trees_grow(const Network* net) {
    Trees t = trees_new(net);
    for (int64_t all = (int64_t)net->ranks * (net->ranks - 1); t.n < all; t.steps++) {
        const int64_t before = t.n;
        trees_begin_step(&t);
        for (bool grown = true; grown;) {
            grown = false;
            for (int tree = 0; tree < net->ranks; tree++) grown |= tree_turn(&t, tree);
        }
        if (t.n == before) die("internal error: no tree grows on network %s", net->name);
    }
    return t;
}

// The link in the opposite direction: of equally fast parallel ones, the one with the same index among them.
static inline int network_link_back(const Network* net, int link) {
    const Link* l = &net->link[link];
    int place = 0;
    for (int i = net->first[l->from]; i < link; i++)
        place += net->link[i].to == l->to && net->link[i].bandwidth == l->bandwidth;
    for (int i = net->first[l->to]; i < net->first[l->to + 1]; i++) {
        if (net->link[i].to == l->from && net->link[i].bandwidth == l->bandwidth && place-- == 0) return i;
    }
    die("internal error: network %s has no link from %d to %d", net->name, l->to, l->from);
}

// The rows of a phase, in the order of steps.
static inline void trees_add_rows(Plan* plan, const Trees* t, bool up, int first_step) {
    for (int64_t i = 0; i < t->n; i++) {
        const int64_t at = up ? t->n - 1 - i : i;
        const TreeEdge* e = &t->edges[at];
        if (up)
            plan_add(plan, first_step + t->steps - 1 - e->step, e->child, e->parent, e->tree, 1, true);
        else
            plan_add(plan, first_step + e->step, e->parent, e->child, e->tree, 1, false);
        if (!plan->way) continue;
        for (int k = 0; k < e->length; k++) {
            const int link = t->way[e->way + (up ? e->length - 1 - k : k)];
            plan->link[plan->way[plan->n - 1] + k] = up ? network_link_back(t->net, link) : link;
        }
        plan->way[plan->n] = plan->way[plan->n - 1] + e->length;
    }
}

static inline void plan_multitree(Plan* plan, PlanKind kind, const Network* net) {
    const bool up = kind != PLAN_ALL_GATHER, down = kind != PLAN_REDUCE_SCATTER;
    Trees trees = trees_grow(net);
    plan_init(plan, "multitree", kind, net->ranks, net->ranks);
    plan->exclusive = true;
    if (network_has_switches(net) || network_has_parallel_links(net)) {
        plan->way = (int64_t*)checked_calloc((size_t)((up + down) * trees.n + 1), sizeof(int64_t), "a plan");
        plan->link = (int32_t*)checked_malloc((size_t)((up + down) * trees.ways) * sizeof(int32_t), "a plan");
    }
    if (up) trees_add_rows(plan, &trees, true, 0);
    if (down) trees_add_rows(plan, &trees, false, up ? trees.steps : 0);
    trees_free(&trees);
}
