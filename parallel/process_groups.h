/*
parallel/process_groups.h: the groups to which a rank of a mesh (t, p, d) belongs, with a communicator each:

    tensor      the t ranks that hold slices of the same layers
    data        the replicas of its site: all d of them where there is one site
    inter_site  the replicas at the same position of all sites
    pipeline    the p stages of one replica
    kv_heads    tensor ranks that hold the same key/value heads
    embedding   the two ranks of a tied embedding: the embedding's and the head's

Ranks are numbered tensor first, then data, then pipeline. The sums of double here are control messages, which are not
counted as traffic of the step.
*/
#pragma once

#include "../comm.h"
#include "../parallel.h"

typedef struct {
    Comm tensor, data, inter_site, pipeline, kv_heads, embedding;
} ProcessGroups;

enum { GROUPS = 6 };

static inline void groups_list(ProcessGroups* g, Comm* list[GROUPS]) {
    Comm* all[GROUPS] = {&g->tensor, &g->data, &g->inter_site, &g->pipeline, &g->kv_heads, &g->embedding};
    memcpy(list, all, sizeof all);
}

// Splits world, of as many ranks as the mesh, into this rank's groups; every rank calls it. Ranks of one color form a
// group. replica, stage: those that differ in `pipeline` only, in `data` only. Untied, `embedding` is a rank alone.
static inline void process_groups_init(ProcessGroups* g, Comm* world, const Layout* layout, const ModelConfig* m) {
    const Mesh* mesh = &layout->parallel.mesh;
    const int t = mesh->t, replica = mesh->tensor + t * mesh->data, sharing = t > m->NKV ? t / m->NKV : 1;
    const bool tied = embedding_is_split(layout, m);
    g->tensor = comm_split(world, mesh->data + mesh->d * mesh->pipeline, mesh->tensor, "tensor", COMM_WIDE);
    const int stage = mesh->tensor + t * mesh->pipeline, stages = t * mesh->p, place = mesh_rank_in_site(mesh);
    g->data = comm_split(world, stage + stages * mesh_site(mesh), place, "data", COMM_WIDE);
    g->inter_site = comm_split(world, stage + stages * place, mesh_site(mesh), "inter_site", COMM_WIDE);
    g->pipeline = comm_split(world, replica, mesh->pipeline, "pipeline", COMM_NARROW);
    comm_open_lanes(&g->pipeline, layout->parallel.folded);
    g->kv_heads = comm_split(world, mesh_rank(mesh) / sharing, mesh->tensor, "kv_heads", COMM_NARROW);
    g->embedding =
        comm_split(world, tied ? replica : mesh_size(mesh) + mesh_rank(mesh), mesh->pipeline, "embedding", COMM_NARROW);
}

static inline void groups_close(ProcessGroups* g) {
    Comm* list[GROUPS];
    groups_list(g, list);
    for (int i = 0; i < GROUPS; i++) comm_free(list[i]);
}

// x (n) = the sum over a group.
static inline void sum_over(Comm* c, double* x, int64_t n) {
    const int64_t counted = c->size_bytes;
    comm_all_reduce(c, x, n, COMM_DOUBLE, COMM_SUM);
    c->size_bytes = counted;
}

// Sums over all ranks of this rank's site, in an order that does not depend on p: the tensor group, the data group, the
// pipeline.
static inline void sum_over_site(ProcessGroups* g, double* x, int64_t n) {
    sum_over(&g->tensor, x, n);
    sum_over(&g->data, x, n);
    sum_over(&g->pipeline, x, n);
}

// Sums over all ranks.
static inline void sum_over_mesh(ProcessGroups* g, double* x, int64_t n) {
    sum_over_site(g, x, n);
    sum_over(&g->inter_site, x, n);
}

// Sums the gradients of a bucket of which each tensor rank holds a part only. Slices that follow one another in memory,
// and are summed over the same ranks, are one all-reduce.
static inline void bucket_sum_partial(ProcessGroups* g, const Layout* layout, int b, float* gradient) {
    const Bucket* bucket = &layout->bucket[b];
    const Slice *slice = &layout->slices[bucket->first], *end = slice + bucket->slices;
    while (slice < end) {
        const Slice* first = slice++;
        int64_t n = slice_elements(first);
        if (!needs_tp_grad_reduce(first, &layout->parallel)) continue;
        for (; slice < end && slice->copies == first->copies && needs_tp_grad_reduce(slice, &layout->parallel); slice++)
            n += slice_elements(slice);
        Comm* copies = first->copies == g->tensor.size ? &g->tensor : &g->kv_heads;
        comm_all_reduce(copies, gradient + (first->offset - bucket->offset), n, COMM_FLOAT, COMM_SUM);
    }
}
