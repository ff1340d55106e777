/*
parallel/data.h: data parallelism. Every replica computes gradients of its own micro-batches; the update needs their
sum.

Gradients are stored in buckets (parallel.h), one a block; the backward pass completes them from the last to the first.
A bucket's sum starts as soon as its last gradient is known, while the backward pass works on the block before:

    grad_bucket_reset     before anything is added to a bucket
    start_grad_sync       its gradients are complete: all-reduce, or with ZeRO reduce-scatter (Rajbhandari et al. 2020)
    finish_grad_sync      waits; then this rank has the sum, or its shard of it
    all_gather_params     ZeRO, after the update: every rank gets the parameters that the other ranks have updated

ZeRO 0: every rank has all gradients, moments and master weights. ZeRO 1: moments, master weights and summed gradients
are sharded, each rank updates its shard of every bucket. ZeRO 2: gradients are sharded too: buckets take turns in
memory for two, and only this rank's shard of each sum is kept. grad_buckets_take lays out all three.
*/
#pragma once

#include "canonical.h"

// The most sums in flight: ZeRO 2 has memory for two buckets, and on a CPU each sum needs memory for messages.
enum { MAX_INFLIGHT_REDUCTIONS = 2 };

// The memory of a bucket, from its first gradient to the sum over the data group.
typedef struct {
    float* gradient;     // (elements of the bucket): computed here
    float* sum;          // this rank's part of the sum arrives here: `gradient`, which gets all of it, or a shard
    CommRequest request; // the sum in flight; with sites, after it, the sum between them (sites.h)
} BucketMemory;

// The gradients of one stage, in float32.
typedef struct {
    Scope scope;                            // the replicas whose gradients are summed
    BucketMemory* bucket;                   // (buckets of the layout), or with ZeRO 2 two, which these use in turn
    float* all;                             // (layout.elements): all buckets', over micro-batches; NULL with ZeRO 2
    float* shards;                          // this rank's shards of the sums: (layout.elements / d) with ZeRO; sites.h
    float* update;                          // what the update reads: shards with ZeRO, else all
    int in_flight[MAX_INFLIGHT_REDUCTIONS]; // the buckets whose sums were started last, or -1
    int next;                               // the place of in_flight to use next; ZeRO 2: also the bucket memory in use
    bool hierarchical;                      // sums continue between sites (sites.h)
    LeafTree tree;                          // leaves' sums that are not yet summed over the ranks
} GradientBuckets;

// ZeRO 2: all buckets share the memory of two, which they use in turn.
static inline bool buckets_share_memory(const Layout* layout) { return layout->parallel.zero == 2; }

static inline int grad_buckets(const Layout* layout) {
    return buckets_share_memory(layout) ? MAX_INFLIGHT_REDUCTIONS : layout->buckets;
}

// Takes the memory of the buckets. Runs twice, as everything that takes from an arena.
static inline void grad_buckets_take(GradientBuckets* grads, const Layout* layout, Arena* arena) {
    const int zero = layout->parallel.zero, replicas = mesh_site_size(&layout->parallel.mesh);
    const bool sharded = zero || (grads->hierarchical && replicas > 1);
    if (zero < 2) grads->all = arena_floats(arena, layout->elements);
    if (sharded) grads->shards = arena_floats(arena, layout->elements / replicas);
    grads->update = zero ? grads->shards : grads->all;
    leaf_tree_take(&grads->tree, &layout->parallel, layout->elements / (zero < 2 ? 1 : replicas), arena);
    for (int i = 0; i < grad_buckets(layout); i++) {
        BucketMemory* bucket = &grads->bucket[i];
        const int64_t largest = largest_bucket(layout);
        bucket->gradient = zero < 2 ? floats_from(grads->all, layout->bucket[i].offset) : arena_floats(arena, largest);
        bucket->sum = sharded ? floats_from(grads->shards, bucket_shard_offset(layout, i)) : bucket->gradient;
        if (zero == 2) bucket->sum = arena_floats(arena, largest / replicas);
    }
}

// The memory of bucket b. ZeRO 2: of the bucket in hand, from grad_bucket_reset to start_grad_sync.
static inline BucketMemory* grad_bucket(const GradientBuckets* grads, const Layout* layout, int b) {
    return &grads->bucket[buckets_share_memory(layout) ? grads->next : b];
}

// Elements of this rank's part of a bucket's sum.
static inline int64_t grad_sum_elements(const BucketMemory* of, const Layout* layout, int b) {
    return of->sum == of->gradient ? layout->bucket[b].elements : bucket_shard_size(layout, b);
}

// ZeRO 2: waits for the sum that is in flight from memory i and accumulates this rank's shard.
static inline void grad_bucket_collect(GradientBuckets* grads, const Layout* layout, int i) {
    const int b = grads->in_flight[i];
    if (b < 0) return;
    float* sum = grads->bucket[i].sum;
    const int64_t at = bucket_shard_offset(layout, b), n = bucket_shard_size(layout, b);
    comm_wait(&grads->bucket[i].request);
    if (!layout->parallel.canonical || leaf_tree_add(&grads->tree, b, sum, at, n))
        accumulate(grads->shards + at, sum, n);
    grads->in_flight[i] = -1;
}

// Called before gradients are added to a bucket. ZeRO 2: waits for the sum in flight from its memory, then zeroes the
// gradients.
static inline void grad_bucket_reset(GradientBuckets* grads, const Layout* layout, int b) {
    if (!buckets_share_memory(layout)) return;
    grad_bucket_collect(grads, layout, grads->next);
    device_zero(grad_bucket(grads, layout, b)->gradient, (size_t)layout->bucket[b].elements * sizeof(float));
}

// Waits for the sum started MAX_INFLIGHT_REDUCTIONS sums ago; not with sites, whose slow sums stay in flight (sites.h).
// Else a replica that is ahead would have all buckets in flight, with messages as large as all gradients. The waits
// cannot form a cycle: a sum needs of other ranks only what they do before this rank's place in the schedule.
static inline void limit_inflight_reductions(GradientBuckets* grads) {
    const int before = grads->in_flight[grads->next]; // ZeRO 2: -1, as grad_bucket_reset has waited
    if (DEVICE_IS_HOST && !grads->hierarchical && before >= 0) comm_wait(&grads->bucket[before].request);
}

// To be called when a bucket's gradients are complete: starts their sum over the data group. With --canonical: when a
// leaf's are complete (canonical.h); this rank's last leaf starts the sum.
static inline void start_grad_sync(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int b) {
    BucketMemory* bucket = grad_bucket(grads, layout, b);
    const int64_t n = grad_sum_elements(bucket, layout, b);
    bucket_sum_partial(g, layout, b, bucket->gradient);
    if (layout->parallel.canonical && !buckets_share_memory(layout) &&
        !leaf_tree_add(&grads->tree, b, bucket->gradient, layout->bucket[b].offset, layout->bucket[b].elements))
        return;
    limit_inflight_reductions(grads);
    if (bucket->sum == bucket->gradient)
        bucket->request = comm_all_reduce_start(&g->data, bucket->sum, n, COMM_FLOAT, COMM_SUM);
    else
        bucket->request = comm_reduce_scatter_start(&g->data, bucket->sum, bucket->gradient, n, COMM_FLOAT);
    grads->in_flight[grads->next] = b;
    grads->next = (grads->next + 1) % MAX_INFLIGHT_REDUCTIONS;
}

// Lets the sums in flight make progress.
static inline void buckets_progress(BucketMemory* buckets, int n) {
    for (int i = 0; i < n; i++) comm_poll(&buckets[i].request);
    comm_check_errors();
}

// Waits for the sums of a chunk's gradients (ZeRO 2: for all sums in flight). Chunk -1 is the tied embedding's bucket,
// which sum_tied_embedding_grads sums further.
static inline void finish_grad_sync(GradientBuckets* grads, const Layout* layout, int chunk) {
    for (int i = 0; i < grad_buckets(layout); i++) {
        if (buckets_share_memory(layout))
            grad_bucket_collect(grads, layout, i);
        else if (layout->bucket[i].chunk == chunk)
            comm_wait(&grads->bucket[i].request);
    }
}

// ZeRO: every data rank has updated its shard of each bucket of a chunk (-1: see Bucket); now all ranks gather all.
static inline void all_gather_params(floatX* params, ProcessGroups* g, const Layout* layout, int chunk) {
    for (int b = 0; b < layout->buckets; b++) {
        floatX* bucket = params + layout->bucket[b].offset;
        const int64_t n = bucket_shard_size(layout, b);
        if (layout->bucket[b].chunk != chunk) continue;
        comm_all_gather(&g->data, bucket, bucket + layout->parallel.mesh.data * n, n, COMM_FLOATX);
    }
}
