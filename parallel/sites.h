/*
parallel/sites.h: gradients of replicas that are divided into sites (--sites) with slow messages between them. The
all-reduce of data.h is then hierarchical; a bucket's request is first of the sum in its site, then of the one between
sites:

    start_grad_sync          a reduce-scatter in the site: this rank gets its site shard of the sum
    start_inter_site_syncs   an all-reduce of the site shard between sites
    finish_inter_site_syncs  waits; an all-gather in the site

Where a site has one replica the first and the last are nothing: the gradient itself is the site shard, and the sum
between sites starts under the backward pass.
*/
#pragma once

#include "data.h"

// Places buckets in `all` (layout.elements), and their site shards in memory of their own, or where a site has one
// replica in `all` too. Runs twice, as everything that takes from an arena.
static inline void site_buckets_take(BucketMemory* bucket, float* all, const Layout* layout, Arena* arena) {
    const int replicas = mesh_site_size(&layout->parallel.mesh);
    float* shards = replicas > 1 ? arena_floats(arena, layout->elements / replicas) : all;
    for (int b = 0; b < layout->buckets; b++) {
        bucket[b].gradient = floats_from(all, layout->bucket[b].offset);
        bucket[b].sum = floats_from(shards, layout->bucket[b].offset / replicas);
    }
}

// Whether the sum between sites was started and is not yet finished.
static inline bool is_between_sites(const BucketMemory* bucket, const ProcessGroups* g) {
    return bucket->request.comm == &g->inter_site;
}

// Starts the sum between sites of a bucket, once; finish_inter_site_syncs waits for it.
static inline void start_inter_site_sync(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int b) {
    BucketMemory* bucket = &grads->bucket[b];
    if (is_between_sites(bucket, g)) return;
    bucket->request =
        comm_all_reduce_start(&g->inter_site, bucket->sum, bucket_shard_size(layout, b), COMM_FLOAT, COMM_SUM);
}

// After start_grad_sync: where a site has one replica, its sum is there. A tied embedding has more to add first.
static inline void start_inter_site_sync_early(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int b) {
    const bool alone = mesh_site_size(&layout->parallel.mesh) == 1;
    if (alone && layout->bucket[b].chunk >= 0) start_inter_site_sync(grads, g, layout, b);
}

// Starts the sums between sites of a chunk's gradients that start_inter_site_sync_early has not.
static inline void start_inter_site_syncs(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int chunk) {
    for (int b = 0; b < layout->buckets; b++) {
        if (layout->bucket[b].chunk == chunk) start_inter_site_sync(grads, g, layout, b);
    }
}

// Waits for the sums that start_inter_site_sync started, and distributes them to all replicas of the site.
static inline void finish_inter_site_syncs(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int chunk) {
    for (int b = 0; b < layout->buckets; b++) {
        BucketMemory* bucket = &grads->bucket[b];
        if (layout->bucket[b].chunk != chunk || !is_between_sites(bucket, g)) continue;
        comm_wait(&bucket->request);
        memset(&bucket->request, 0, sizeof bucket->request);
        if (bucket->sum != bucket->gradient)
            comm_all_gather(&g->data, bucket->gradient, bucket->sum, bucket_shard_size(layout, b), COMM_FLOAT);
    }
}
