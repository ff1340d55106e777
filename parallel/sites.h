/*
parallel/sites.h: gradients of replicas that are divided into sites (--sites) with slow messages between them. The
all-reduce of data.h is then hierarchical; a bucket's request is first of the sum in its site, then of the one between
sites:

    start_grad_sync          a reduce-scatter in the site: this rank gets its site shard of the sum
    start_inter_site_sync    an all-reduce of the site shard between sites
    finish_inter_site_syncs  waits; an all-gather in the site

Where a site has one replica the first and the last are nothing: the gradient itself is the site shard, and the sum
between sites starts under the backward pass.
*/
#pragma once

#include "data.h"

// Starts the sum between sites of a bucket, unless it was started.
static inline void start_inter_site_sync(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int b) {
    BucketMemory* bucket = &grads->bucket[b];
    if (bucket->request.comm == &g->inter_site) return;
    bucket->request =
        comm_all_reduce_start(&g->inter_site, bucket->sum, bucket_shard_size(layout, b), COMM_FLOAT, COMM_SUM);
}

// After start_grad_sync: where a site has one replica, its sum is there. A tied embedding has more to add first.
static inline void start_inter_site_sync_early(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int b) {
    const bool alone = mesh_site_size(&layout->parallel.mesh) == 1;
    if (alone && layout->bucket[b].chunk >= 0) start_inter_site_sync(grads, g, layout, b);
}

// Starts the other sums between sites of a chunk's gradients, waits for all, and distributes them in the site.
static inline void finish_inter_site_syncs(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int chunk) {
    for (int b = 0; b < layout->buckets; b++) {
        if (layout->bucket[b].chunk == chunk) start_inter_site_sync(grads, g, layout, b);
    }
    for (int b = 0; b < layout->buckets; b++) {
        BucketMemory* bucket = &grads->bucket[b];
        if (layout->bucket[b].chunk != chunk) continue;
        comm_wait(&bucket->request);
        if (bucket->sum != bucket->gradient)
            comm_all_gather(&g->data, bucket->gradient, bucket->sum, bucket_shard_size(layout, b), COMM_FLOAT);
    }
}
