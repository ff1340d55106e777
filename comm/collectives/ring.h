/*
ring.h: the algorithms of most libraries: rings, halving and doubling, double binary trees. N ranks, a vector of D
bytes, a seconds a message, B bytes/s a link:

    ring              N parts, passed around a ring and summed, then passed around once more (Patarasuk, Yuan 2009,
                      "Bandwidth optimal all-reduce algorithms for clusters of workstations"):
                      2 (N - 1) (a + D / (N B))
    2d-ring           a ring all-reduce in every row of a grid, then one in every column; a quarter of the vector begins
                      in rows to the right, one in rows to the left, two in columns (Ying et al. 2018, "Image
                      classification at supercomputer scale"; as the authors of MultiTree compare with it):
                      4 (k - 1) (a + D / (4 k B)) on a torus of k x k, twice the necessary bytes. Three dimensions: six
                      parts
    torus-ring        the same with a reduce-scatter in rows, then columns, and all-gathers back: a column sums only
                      the part that its rows left (Jain, Sabharwal 2010, "Optimal bucket algorithms for large MPI
                      collectives on torus interconnects"): as few bytes as a ring, over all links;
                      4 (k - 1) a + 2 D (k^2 - 1) / (4 k^2 B)
    halving-doubling  exchange half of the vector with the adjacent rank, a quarter with the one two away, ...; then
                      back (Rabenseifner 2004; Thakur et al. 2005, "Optimization of collective communication operations
                      in MPICH"): 2 log2(N) a + 2 D (N - 1) / (N B) without contention. N not a power of two: each rank
                      above the power sends its vector to a rank below and receives the result
    double-tree       two binary trees, each for half the vector; an inner rank of one is a leaf of the other (Sanders,
                      Speck, Traff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"; NCCL's
                      tree). Cut into pieces that follow each other: about 2 (log2 N + pieces) a + 2 D / B
*/
#pragma once

#include "plan.h"

// ---- The order in which a ring visits the ranks -----------------------------------------------------------------

// A path through all but the last dimension of a grid, each rank adjacent to the one before: writes the number of the
// i-th place, counted in ranks whose last coordinate is 0.
static inline void ring_snake(const Network* net, int dimensions, int* order) {
    int n = 1;
    order[0] = 0;
    for (int i = dimensions - 1; i >= 0; i--) {
        int stride = 1; // what dimension i counts for in the rank's number
        for (int k = net->dimensions - 1; k > i; k--) stride *= net->sides[k];
        for (int at = 1; at < net->sides[i]; at++) { // forth and back through the path so far
            for (int k = 0; k < n; k++) order[at * n + k] = order[(at - 1) * n + n - 1 - k] + stride;
        }
        n *= net->sides[i];
    }
}

// A closed way through a grid of A x B, each place adjacent to the one before, if A or B is even and both are above 1;
// else one with a longer last step. place: a * B + b of each.
static inline void ring_cycle(int A, int B, int* place) {
    const bool turned = A % 2 != 0 && B % 2 == 0;
    const int rows = turned ? B : A, columns = turned ? A : B, from = rows % 2 == 0 && columns > 1;
    int n = 0;
    for (int i = 0; i < rows; i++) { // forth and back without column 0, ...
        for (int k = from; k < columns; k++) {
            const int column = i % 2 == 0 ? k : columns - 1 + from - k;
            place[n++] = turned ? column * B + i : i * B + column;
        }
    }
    if (!from) return;
    for (int i = rows - 1; i >= 0; i--) place[n++] = turned ? i : i * B; // ... which leads home
}

// An order of all ranks in which consecutive ones are near (on grids with an even side and a last side above 1:
// neighbours).
static inline void ring_order(const Network* net, int* order) {
    const int N = net->ranks;
    if (net->dimensions > 1) {
        const int B = net->sides[net->dimensions - 1], A = N / B;
        int* snake = (int*)checked_malloc((size_t)A * sizeof(int), "a ring");
        ring_snake(net, net->dimensions - 1, snake);
        ring_cycle(A, B, order);
        for (int i = 0; i < N; i++) order[i] = snake[order[i] / B] + order[i] % B;
        free(snake);
        return;
    }
    int* hops = (int*)checked_malloc((size_t)net->vertices * 2 * sizeof(int), "a ring");
    bool* taken = (bool*)checked_calloc((size_t)N, sizeof(bool), "a ring");
    for (int i = 0, at = 0; i < N; i++) { // the nearest rank not yet visited
        order[i] = at;
        taken[at] = true;
        network_hops(net, at, hops, hops + net->vertices);
        int nearest = -1;
        for (int r = 0; r < N; r++) {
            if (!taken[r] && (nearest < 0 || hops[r] < hops[nearest])) nearest = r;
        }
        at = nearest;
    }
    free(hops);
    free(taken);
}

// ---- Rings ------------------------------------------------------------------------------------------------------

// n ranks in a ring, and the part of a vector that they share: piece i is `each` chunks from first[i], and belongs to
// ranks[i].
typedef struct {
    int n, each;
    int *ranks, *first;
} Ring;

static inline Ring ring_new(int most) {
    Ring ring = {0, 1, (int*)checked_malloc((size_t)most * 2 * sizeof(int), "a ring"), NULL};
    ring.first = ring.ranks + most;
    return ring;
}

// A reduce-scatter (add) or an all-gather, from `step` on; returns the step after it. by: 1 forwards, -1 backwards.
static inline int ring_pass(Plan* plan, const Ring* ring, int by, int step, bool add) {
    const int n = ring->n;
    for (int s = 0; s < n - 1; s++) {
        for (int i = 0; i < n; i++) {
            const int to = (i + by + n) % n, piece = ((i - by * (s + add)) % n + n) % n;
            plan_add(plan, step + s, ring->ranks[i], ring->ranks[to], ring->first[piece], ring->each, add);
        }
    }
    return step + n - 1;
}

static inline void plan_ring(Plan* plan, PlanKind kind, const Network* net) {
    const int N = net->ranks;
    int step = 0;
    Ring ring = ring_new(N);
    ring.n = N;
    ring_order(net, ring.ranks);
    memcpy(ring.first, ring.ranks, (size_t)N * sizeof(int));
    plan_init(plan, "ring", kind, N, N);
    if (kind != PLAN_ALL_GATHER) step = ring_pass(plan, &ring, 1, step, true);
    if (kind != PLAN_REDUCE_SCATTER) ring_pass(plan, &ring, 1, step, false);
    free(ring.ranks);
}

// The ranks of a line of a grid, r first: the ranks that differ from r in one dimension only.
static inline void ring_line(Ring* ring, const Network* net, int r, int dimension) {
    ring->n = net->sides[dimension];
    for (int i = 0; i < ring->n; i++) ring->ranks[i] = network_along(net, r, dimension, i);
}

// 2d-ring: part q's chunks are q N to (q + 1) N - 1; it begins in dimension q / 2.
static inline void plan_2d_ring(Plan* plan, PlanKind kind, const Network* net) {
    const int N = net->ranks, dimensions = net->dimensions;
    Ring ring = ring_new(N);
    plan_init(plan, "2d-ring", kind, N, 2 * dimensions * N);
    for (int q = 0; q < 2 * dimensions; q++) {
        for (int i = 0, step = 0; i < dimensions; i++) {
            const int dimension = (q / 2 + i) % dimensions, side = net->sides[dimension];
            ring.each = N / side;
            for (int k = 0; k < side; k++) ring.first[k] = q * N + k * ring.each;
            for (int r = 0; r < N; r++) {
                if (network_coordinate(net, r, dimension) > 0) continue;
                ring_line(&ring, net, r, dimension);
                ring_pass(plan, &ring, q % 2 ? -1 : 1, step, true);
                ring_pass(plan, &ring, q % 2 ? -1 : 1, step + side - 1, false);
            }
            step += 2 * (side - 1);
        }
    }
    free(ring.ranks);
    plan_sort(plan);
}

// torus-ring: in its i-th dimension a line shares the part that the dimensions before have left to it.
static inline void plan_torus_ring(Plan* plan, PlanKind kind, const Network* net) {
    const int N = net->ranks, dimensions = net->dimensions;
    Ring ring = ring_new(N);
    plan_init(plan, "torus-ring", kind, N, 2 * dimensions * N);
    for (int q = 0; q < 2 * dimensions; q++) {
        int step = 0;
        for (int phase = 0; phase < 2 * dimensions; phase++) { // into the last dimension, and back
            const int i = phase < dimensions ? phase : 2 * dimensions - 1 - phase, dimension = (q / 2 + i) % dimensions;
            for (int r = 0; r < N; r++) {
                if (network_coordinate(net, r, dimension) > 0) continue;
                int first = q * N, room = N;
                for (int k = 0; k < i; k++) {
                    room /= net->sides[(q / 2 + k) % dimensions];
                    first += room * network_coordinate(net, r, (q / 2 + k) % dimensions);
                }
                ring_line(&ring, net, r, dimension);
                ring.each = room / ring.n;
                for (int k = 0; k < ring.n; k++) ring.first[k] = first + k * ring.each;
                ring_pass(plan, &ring, q % 2 ? -1 : 1, step, phase < dimensions);
            }
            step += net->sides[dimension] - 1;
        }
    }
    free(ring.ranks);
    plan_sort(plan);
}

// ---- Halving and doubling ---------------------------------------------------------------------------------------

// The chunks that rank r is left with after `rounds` exchanges: a half of a half of ... An all-reduce begins with the
// nearest rank, since the first message is the largest. Otherwise it has to end with chunk r: the farthest comes first.
static inline void halving_range(PlanKind kind, int bits, int r, int rounds, int* first, int* chunks) {
    *first = 0;
    *chunks = 1 << bits;
    for (int i = 0; i < rounds; i++) {
        *chunks /= 2;
        if (r >> (kind == PLAN_ALL_REDUCE ? i : bits - 1 - i) & 1) *first += *chunks;
    }
}

static inline void plan_halving_doubling(Plan* plan, PlanKind kind, const Network* net) {
    const int N = net->ranks;
    int bits = 0, first, chunks, step = 0;
    while (2 << bits <= N) bits++;
    const int inside = 1 << bits; // the others are idle meanwhile
    plan_init(plan, "halving-doubling", kind, N, inside);
    for (int r = inside; r < N; r++) plan_add(plan, step, r, r - inside, 0, inside, true);
    step += inside < N;
    for (int phase = 0; phase < 2; phase++) {
        if (kind == (phase == 0 ? PLAN_ALL_GATHER : PLAN_REDUCE_SCATTER)) continue;
        for (int k = 0; k < bits; k++, step++) {
            const int round = phase == 0 ? k : bits - 1 - k;
            const int partner = 1 << (kind == PLAN_ALL_REDUCE ? round : bits - 1 - round);
            for (int r = 0; r < inside; r++) { // to halve, send the partner's chunks; to double, the own ones
                halving_range(kind, bits, phase == 0 ? r ^ partner : r, round + 1, &first, &chunks);
                plan_add(plan, step, r, r ^ partner, first, chunks, phase == 0);
            }
        }
    }
    for (int r = inside; r < N; r++) plan_add(plan, step, r - inside, r, 0, inside, false);
    plan_sort(plan);
}

// ---- Double binary tree -----------------------------------------------------------------------------------------

// The parent of place i of 0 .. N - 1 in a binary tree whose leaves are the odd places; -1: place 0 is the root, with
// one child. A place whose lowest set bit is b is b away from its parent, whose lowest set bit is higher.
static inline int double_tree_parent(int i, int N) {
    const int bit = i & -i, up = (i ^ bit) | 2 * bit;
    if (i == 0) return -1;
    return up < N ? up : i ^ bit;
}

// The rank at a place of tree 0 or 1: an inner rank of one is, for even N, a leaf of the other.
static inline int double_tree_rank(int tree, int place, int N) {
    if (tree == 0) return place;
    return N % 2 == 0 ? N - 1 - place : (place + 1) % N;
}

// Every half of the vector goes up and down its tree in pieces, one step and level after each other.
static inline void plan_double_tree(Plan* plan, PlanKind kind, const Network* net) {
    enum { PIECES = 8 };
    const int N = net->ranks;
    int* depth = (int*)checked_calloc((size_t)N, sizeof(int), "a tree");
    int height = 0;
    for (int i = 1; i < N; i++) {
        for (int at = i; at > 0; at = double_tree_parent(at, N)) depth[i]++;
        if (depth[i] > height) height = depth[i];
    }
    plan_init(plan, "double-tree", kind, N, 2 * PIECES);
    for (int tree = 0; tree < 2; tree++) {
        for (int piece = 0; piece < PIECES; piece++) {
            for (int i = 1; i < N; i++) {
                const int rank = double_tree_rank(tree, i, N), chunk = tree * PIECES + piece;
                const int parent = double_tree_rank(tree, double_tree_parent(i, N), N);
                plan_add(plan, piece + height - depth[i], rank, parent, chunk, 1, true);
                plan_add(plan, piece + height + depth[i] - 1, parent, rank, chunk, 1, false);
            }
        }
    }
    free(depth);
    plan_sort(plan);
}
