/*
parallel/data.h: data parallelism. Every replica computes gradients of its own micro-batches; the update needs their
sum.

Gradients are stored in buckets (parallel.h), in the order in which the backward pass completes them. A bucket's sum
starts as soon as its last gradient is known, while the backward pass works on the block before:

    grad_bucket_reset     before anything is added to a bucket
    start_grad_sync       its gradients are complete: all-reduce, or with ZeRO reduce-scatter (Rajbhandari et al. 2020)
    finish_grad_sync      waits; then this rank has the sum, or its shard of it
    all_gather_params     ZeRO, after the update: every rank gets the parameters that the other ranks have updated

ZeRO 0: every rank has all gradients, moments and master weights. ZeRO 1: moments, master weights and summed gradients
are sharded, each rank updates its shard of every bucket. ZeRO 2: gradients are sharded too; a bucket is computed in one
of two buffers and only this rank's shard of its sum is kept.

Where the replicas are divided into sites (--sites) with slow messages between them, the all-reduce is hierarchical: a
reduce-scatter in the site, an all-reduce of this rank's site shard between sites, and an all-gather in the site.
*/
#pragma once

#include "process_groups.h"
#include "../kernels/kernels.h"

enum { ZERO2_BUFFERS = 2 };

enum { MAX_INFLIGHT_REDUCTIONS = 2 }; // ZeRO 0, 1, on a CPU: each takes memory for messages

// The gradients of one stage, in float32. ZeRO 0 and 1: all (the layout's elements) accumulates over micro-batches.
// ZeRO 2: a bucket is computed in one of two buffers, summed over the data group, and only this rank's shard is
// accumulated, in shards.
//
// A hierarchical all-reduce sums between sites from `all` or, with several replicas in a site, from site_shards.
typedef struct {
    Scope scope;        // the replicas whose gradients are summed
    float* all;         // (layout.elements), or NULL with ZeRO 2
    float* shards;      // (layout.elements / d): this rank's shards of the sums, with ZeRO
    float* update;      // the gradients that the update reads: shards with ZeRO, else all; NULL: there are none yet
    float* site_shards; // (layout.elements / replicas of a site): this rank's site shard of each bucket's sum
    CommRequest* inter_site_request; // of each bucket, between sites
    bool hierarchical, defers;       // sums continue between sites; the caller starts these (delayed)
    float *buffer[ZERO2_BUFFERS], *arriving[ZERO2_BUFFERS]; // ZeRO 2: (largest bucket), (its shard)
    int bucket_in[ZERO2_BUFFERS];                           // whose gradient is in flight from there, or -1
    int next;                                               // buffer, or place in recent
    int recent[MAX_INFLIGHT_REDUCTIONS];                    // ZeRO 0, 1: buckets whose sums were started last, or -1
    float** of_bucket;                                      // where each bucket's gradients are computed now
    CommRequest* request;                                   // of each bucket (ZeRO 2: of each buffer)
} GradientBuckets;

static inline int64_t largest_bucket(const Layout* layout) {
    int64_t largest = 0;
    for (int b = 0; b < layout->buckets; b++) largest = max_i64(largest, layout->bucket[b].elements);
    return largest;
}

// ZeRO 0 and 1: the gradients of every bucket are computed in `all`.
static inline void point_buckets_at_gradients(GradientBuckets* grads, const Layout* layout) {
    for (int b = 0; b < layout->buckets; b++) grads->of_bucket[b] = grads->all + layout->bucket[b].offset;
}

// ZeRO 2: waits for the sum that is in flight from buffer i and accumulates this rank's shard.
static inline void buckets_collect(GradientBuckets* grads, const Layout* layout, int i) {
    const int b = grads->bucket_in[i];
    if (b < 0) return;
    comm_wait(&grads->request[i]);
    accumulate(grads->shards + bucket_shard_offset(layout, b), grads->arriving[i], bucket_shard_size(layout, b));
    grads->bucket_in[i] = -1;
}

// The site shard of a bucket's sum, which this rank exchanges between sites: in site_shards, or in `all` itself.
static inline float* inter_site_shard(const GradientBuckets* grads, const Layout* layout, int b) {
    return grads->site_shards ? grads->site_shards + layout->bucket[b].offset / mesh_site_size(&layout->mesh)
                              : grads->all + layout->bucket[b].offset;
}

// Called before gradients are added to a bucket. ZeRO 2: takes the next of the two buffers, waits for the sum that is
// in flight from it, and zeroes it. Else the bucket has memory of its own.
static inline void grad_bucket_reset(GradientBuckets* grads, const Layout* layout, int b) {
    if (layout->mesh.zero < 2) return;
    const int i = grads->next;
    buckets_collect(grads, layout, i);
    device_zero(grads->buffer[i], (size_t)layout->bucket[b].elements * sizeof(float));
    grads->of_bucket[b] = grads->buffer[i];
}

// Sums the gradients of which several tensor ranks hold a part each.
static inline void bucket_sum_partial(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int b) {
    const Bucket* bucket = &layout->bucket[b];
    for (int i = bucket->first; i < bucket->first + bucket->slices; i++) {
        const Slice* slice = &layout->slices[i];
        if (!needs_tp_grad_reduce(slice, &layout->mesh)) continue;
        Comm* copies = slice->copies == g->tensor.size ? &g->tensor : &g->kv_heads;
        comm_all_reduce(copies, grads->of_bucket[b] + (slice->offset - bucket->offset), slice_elements(slice),
                        COMM_FLOAT, COMM_SUM);
    }
}

// Starts the sum between sites of a bucket, once; finish_inter_site_syncs waits for it.
static inline void start_inter_site_sync(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int b) {
    float* part = inter_site_shard(grads, layout, b);
    if (grads->inter_site_request[b].comm) return;
    grads->inter_site_request[b] =
        layout->mesh.zero
            ? comm_reduce_scatter_start(&g->inter_site, grads->shards + bucket_shard_offset(layout, b), part,
                                        bucket_shard_size(layout, b), COMM_FLOAT)
            : comm_all_reduce_start(&g->inter_site, part, bucket_site_shard_size(layout, b), COMM_FLOAT, COMM_SUM);
}

// Waits for the sum that was started MAX_INFLIGHT_REDUCTIONS sums ago, as ZeRO 2 does for its buffers. Otherwise a
// replica that is ahead would have all buckets in flight, and messages take as much memory as all gradients. The waits
// cannot form a cycle: a sum needs of other ranks only what they do before this rank's place in the schedule.
static inline void limit_inflight_reductions(GradientBuckets* grads, int b) {
    if (!DEVICE_IS_HOST) return;
    const int before = grads->recent[grads->next];
    if (before >= 0) comm_wait(&grads->request[before]);
    grads->recent[grads->next] = b;
    grads->next = (grads->next + 1) % MAX_INFLIGHT_REDUCTIONS;
}

// To be called when a bucket's gradients are complete: starts their sum over the data group.
static inline void start_grad_sync(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int b) {
    const Bucket* bucket = &layout->bucket[b];
    bucket_sum_partial(grads, g, layout, b);
    if (grads->hierarchical) {
        if (grads->site_shards)
            grads->request[b] =
                comm_reduce_scatter_start(&g->data, inter_site_shard(grads, layout, b), grads->of_bucket[b],
                                          bucket_site_shard_size(layout, b), COMM_FLOAT);
        else if (!grads->defers && bucket->chunk >= 0) // a tied embedding has more to add first
            start_inter_site_sync(grads, g, layout, b);
    } else if (layout->mesh.zero == 0) {
        limit_inflight_reductions(grads, b);
        grads->request[b] =
            comm_all_reduce_start(&g->data, grads->of_bucket[b], bucket->elements, COMM_FLOAT, COMM_SUM);
    } else if (layout->mesh.zero == 1) {
        limit_inflight_reductions(grads, b);
        grads->request[b] = comm_reduce_scatter_start(&g->data, grads->shards + bucket_shard_offset(layout, b),
                                                      grads->of_bucket[b], bucket_shard_size(layout, b), COMM_FLOAT);
    } else {
        const int i = grads->next;
        grads->request[i] = comm_reduce_scatter_start(&g->data, grads->arriving[i], grads->buffer[i],
                                                      bucket_shard_size(layout, b), COMM_FLOAT);
        grads->bucket_in[i] = b;
        grads->next = (i + 1) % ZERO2_BUFFERS;
    }
}

// Lets the sums in flight make progress.
static inline void buckets_progress(GradientBuckets* grads, const Layout* layout) {
    comm_progress(grads->request, layout->mesh.zero == 2 ? ZERO2_BUFFERS : layout->buckets);
    if (grads->hierarchical) comm_progress(grads->inter_site_request, layout->buckets);
}

// Waits for the sums of a chunk's gradients; -1: of the tied embedding's, which all_reduce_tied_embedding_grad sums
// further. (ZeRO 2: of all in flight.)
static inline void finish_grad_sync(GradientBuckets* grads, const Layout* layout, int chunk) {
    if (layout->mesh.zero == 2) {
        for (int i = 0; i < ZERO2_BUFFERS; i++) buckets_collect(grads, layout, i);
        return;
    }
    for (int b = 0; b < layout->buckets; b++) {
        if (layout->bucket[b].chunk == chunk) comm_wait(&grads->request[b]);
    }
}

// Sums the two gradients of a tied embedding that is on two ranks.
static inline void all_reduce_tied_embedding_grad(GradientBuckets* grads, ProcessGroups* g, const Layout* layout) {
    const Slice* wte = layout_slice(layout, -1, WTE);
    if (g->embedding.size == 1 || !wte) return;
    const int b = wte->bucket;
    if (grads->hierarchical)
        comm_all_reduce(&g->embedding, inter_site_shard(grads, layout, b), bucket_site_shard_size(layout, b),
                        COMM_FLOAT, COMM_SUM);
    else if (layout->mesh.zero)
        comm_all_reduce(&g->embedding, grads->shards + bucket_shard_offset(layout, b), bucket_shard_size(layout, b),
                        COMM_FLOAT, COMM_SUM);
    else
        comm_all_reduce(&g->embedding, grads->all + layout->bucket[b].offset, layout->bucket[b].elements, COMM_FLOAT,
                        COMM_SUM);
}

// Starts the sums between sites of a chunk's gradients that start_grad_sync has not.
static inline void start_inter_site_syncs(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int chunk) {
    if (!grads->hierarchical) return;
    for (int b = 0; b < layout->buckets; b++) {
        if (layout->bucket[b].chunk == chunk) start_inter_site_sync(grads, g, layout, b);
    }
}

// Waits for the sums that start_inter_site_sync started, and distributes them to all replicas of the site.
static inline void finish_inter_site_syncs(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int chunk) {
    for (int b = 0; b < layout->buckets; b++) {
        if (layout->bucket[b].chunk != chunk || !grads->inter_site_request[b].comm) continue;
        comm_wait(&grads->inter_site_request[b]);
        grads->inter_site_request[b] = no_request();
        if (grads->site_shards)
            comm_all_gather(&g->data, grads->all + layout->bucket[b].offset, inter_site_shard(grads, layout, b),
                            bucket_site_shard_size(layout, b), COMM_FLOAT);
    }
}

// The group over which ZeRO shards: all replicas, which are one site, or one site each.
static inline Comm* zero_group(ProcessGroups* g) { return g->inter_site.size > 1 ? &g->inter_site : &g->data; }

// ZeRO: every data rank has updated its shard of each bucket of a chunk (-1: see Bucket); now all ranks gather all.
static inline void all_gather_params(floatX* params, ProcessGroups* g, const Layout* layout, int chunk) {
    for (int b = 0; b < layout->buckets; b++) {
        floatX* bucket = params + layout->bucket[b].offset;
        const int64_t n = bucket_shard_size(layout, b);
        if (layout->bucket[b].chunk != chunk) continue;
        comm_all_gather(zero_group(g), bucket, bucket + layout->mesh.data * n, n, COMM_FLOATX);
    }
}
