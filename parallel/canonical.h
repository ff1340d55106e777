/*
parallel/canonical.h: the same bits for every number of replicas (--canonical N).

A sum of floating-point numbers depends on its order: (a + b) + c rounds other numbers than a + (b + c). Ordinarily the
order depends on d: micro-batches of a replica, then replicas. Here it belongs to the batch, which has N leaves, a power
of two: a leaf's gradient is the sum over its micro-batches in their order, and leaves are added in one binary tree:

    leaf             0   1   2   3   4   5   6   7        d = 2: a rank has four leaves, and adds them as it goes.
                      \ /     \ /     \ /     \ /         It keeps one sum of each size (level), as a binary
    level 1           sum     sum     sum     sum         counter does, so log2(N / d) buffers are enough:
                        \     /         \     /           leaf 2, say, is kept, and leaf 3 then becomes leaves 2
    level 2              sum             sum              and 3, then 0 to 3
    level 3 ..............  \           /  .............  the two ranks' sums: halving-doubling between ranks at
                                 sum                      distance 1, 2, 4, ... (comm/collectives/ring.h)

As a + b = b + a it does not matter which rank adds. ZeRO 2 sums a micro-batch over the ranks before the next one, so
there a rank's leaves are d apart: then ranks add the lower levels of the tree, and the counter, on shards, the upper.

What else is added over replicas: the loss, of which each leaf has a sum of its own, and the squares of the gradient,
of each N-th part of a bucket; both are added in order (canonical_sums). The two gradients of a tied embedding on one
rank go through trees of their own, as on two stages, and are added at the end: so the bits do not depend on p either.

The tensor ranks' parts of a gradient (bucket_sum_partial) are summed leaf by leaf; for each t their sums are others.
(TBIK, arXiv 2511.17826, has one tree for every t, in inference.)
*/
#pragma once

#include "process_groups.h"
#include "../kernels/kernels.h"

enum { LEAF_LEVELS = 10 }; // N is up to 2^LEAF_LEVELS

// The gradients that wait for others of their size.
typedef struct {
    float* level[LEAF_LEVELS]; // sums of 2^i leaves: as long as all gradients, or with ZeRO 2 as their shards
    int leaves;                // this rank has these; 0: all micro-batches are added in their order
    int* added;                // (buckets): leaves so far
} LeafTree;

static inline int leaves_of_rank(const ParallelConfig* parallel) { return parallel->canonical / parallel->mesh.d; }

// Refuses what has no such order. m: micro-batches of a replica in a step.
static inline bool canonical_check(const ParallelConfig* parallel, int m, bool sync, const char* allreduce,
                                   Error* error) {
    const int N = parallel->canonical, d = parallel->mesh.d;
    if (N == 0) return true;
    if (N & (N - 1) || d & (d - 1) || N < d || N > 1 << LEAF_LEVELS)
        return fail(error,
                    "--canonical %d and --dp %d have to be powers of two, --dp not the larger, --canonical at most %d",
                    N, d, 1 << LEAF_LEVELS);
    if (m * d % N || (parallel->zero == 2 && m * d != N))
        return fail(error,
                    "--canonical %d: there are %d micro-batches in a step; --zero 2 needs as many, else a multiple", N,
                    m * d);
    if (parallel->caat.ranks || parallel->mesh.sites > 1 || !sync)
        return fail(error,
                    "--canonical adds one gradient of all ranks: drop it, or --caat-fraction, --sites, --dp-mode");
    return !allreduce || strcmp(allreduce, "halving-doubling") == 0 ||
           fail(error, "--canonical adds in a tree, which --allreduce %s does not; drop one of the two", allreduce);
}

// Whether a rank's micro-batches are d apart.
static inline bool parallel_deals_in_turn(const ParallelConfig* parallel) {
    return parallel->canonical && parallel->zero == 2;
}

// The place of this rank among the leaves. A reduce-scatter by halving begins with the farthest rank (ring.h), so with
// ZeRO the bits of its number are reversed.
static inline int place_among_leaves(const ParallelConfig* parallel) {
    int place = parallel->mesh.data;
    if (!parallel->canonical || !parallel->zero) return place;
    place = 0;
    for (int bit = 1; bit < parallel->mesh.d; bit *= 2) place = 2 * place + (parallel->mesh.data / bit & 1);
    return place;
}

// The leaf of micro-batch k of this rank, of m.
static inline int leaf_of_microbatch(const ParallelConfig* parallel, int k, int m) {
    const int leaves = leaves_of_rank(parallel), place = place_among_leaves(parallel);
    if (leaves == 0) return 0;
    return parallel_deals_in_turn(parallel) ? k * parallel->mesh.d + place : place * leaves + k * leaves / m;
}

static inline bool ends_leaf(const ParallelConfig* parallel, int k, int m) {
    return (k + 1) % (m / leaves_of_rank(parallel)) == 0;
}

static inline void leaf_tree_take(LeafTree* tree, const ParallelConfig* parallel, int64_t elements, Arena* arena) {
    tree->leaves = leaves_of_rank(parallel);
    for (int i = 0; 2 << i <= tree->leaves; i++) tree->level[i] = arena_floats(arena, elements);
}

// Adds a leaf of bucket b, n numbers that begin at `at` of a level. Returns whether it was this rank's last one, and
// `leaf` has become the sum of all; else `leaf` is zeroed.
static inline bool leaf_tree_add(LeafTree* tree, int b, float* leaf, int64_t at, int64_t n) {
    const size_t bytes = (size_t)n * sizeof(float);
    int level = 0;
    for (int before = tree->added[b]++; before & 1; before /= 2) accumulate(leaf, tree->level[level++] + at, n);
    if (tree->added[b] == tree->leaves) {
        tree->added[b] = 0;
        return true;
    }
    device_copy(tree->level[level] + at, leaf, bytes);
    device_zero(leaf, bytes);
    return false;
}

// ---- Squares and losses: N rows of `tensors` squares, then N losses; 1 instead of N without --canonical -------------

static inline int rows_of_sums(const ParallelConfig* parallel) { return parallel->canonical ? parallel->canonical : 1; }
static inline int sums_of_step(const Layout* layout) { return rows_of_sums(&layout->parallel) * (layout->tensors + 1); }
static inline int first_loss(const Layout* layout) { return rows_of_sums(&layout->parallel) * layout->tensors; }

// Adds up the rows in their order: sums begins with the squares of all tensors, then the loss.
static inline void canonical_sums(double* sums, const Layout* layout) {
    const int rows = rows_of_sums(&layout->parallel), tensors = layout->tensors, loss = first_loss(layout);
    for (int row = 1; row < rows; row++) {
        for (int i = 0; i < tensors; i++) sums[i] += sums[row * tensors + i];
        sums[loss] += sums[loss + row];
    }
    sums[tensors] = sums[loss];
}

// Cuts ranges of slices at each N-th part of their bucket, whose number becomes the row of their sum. Frees `ranges`.
static inline TensorRange* cut_by_rows(TensorRange* ranges, int* count, const Layout* layout) {
    const int rows = rows_of_sums(&layout->parallel), n = *count;
    TensorRange* pieces =
        (TensorRange*)checked_malloc((size_t)(n + layout->buckets * rows) * sizeof *pieces, "the ranges of a chunk");
    *count = 0;
    for (int i = 0, b = 0; i < n; i++) { // both are in memory order
        const TensorRange* r = &ranges[i];
        while (r->from >= layout->bucket[b].offset + layout->bucket[b].elements) b++;
        const int64_t part = layout->bucket[b].elements / rows, place = r->from - layout->bucket[b].offset;
        for (int64_t begin = 0, end; begin < r->n; begin = end) {
            const int64_t row = (place + begin) / part;
            TensorRange piece = *r;
            end = min_i64(r->n, (row + 1) * part - place);
            piece.from += begin, piece.at += begin;
            piece.n = end - begin;
            piece.index += (int)row * layout->tensors;
            pieces[(*count)++] = piece;
        }
    }
    free(ranges);
    return pieces;
}
