/*
trainer/replica_check.h: do ranks that hold the same parameters still hold the same bits?

    replicas_differ    compares the parameters of a site's ranks, or of all ranks; names the tensors and ranks

Theory: replicas of parameters stay identical without being compared, as every all-reduce gives each rank the same bits,
and each rank computes the same update from them. Different bits mean silent data corruption (Dixit et al. 2021, "Silent
data corruptions at scale"). Every --check-replicas-every steps, and before a checkpoint, each rank takes a checksum of
each of its slices (util/base.h) in the device's memory, and sends it to the others. A tensor's have to be equal on

    REPLICATED_OVER_DP      a cut of a matrix: the data ranks of the same (t, p)
    REPLICATED_OVER_HEADS   a key/value head: also the tensor ranks that share it
    REPLICATED_OVER_TP      norms, positions, biases after sums: all data and tensor ranks of a stage
    REPLICATED_OVER_ENDS    a tied embedding: the first and the last stage

A rank is named if it differs from the majority; without a majority all are. With d = 1 only the other three are
covered. The optimizer's moments are not compared: a wrong moment makes a wrong update, which is detected; but with ZeRO
one rank updates a weight for all, and all others copy its error.
*/
#pragma once

#include "../parallel/process_groups.h"
#include "../kernels/kernels.h"
#include "../model.h"
#include "../parallel.h"

typedef enum { REPLICATED_OVER_DP, REPLICATED_OVER_HEADS, REPLICATED_OVER_TP, REPLICATED_OVER_ENDS } ReplicaGroup;

// Tensor ranks that hold the same key/value head.
static inline int ranks_per_kv_head(const ParallelConfig* parallel, int NKV) {
    return tp_cuts(parallel) > NKV ? tp_cuts(parallel) / NKV : 1;
}

static inline ReplicaGroup replica_group_of(const Tensor* tensor, const ParallelConfig* parallel,
                                            const ModelConfig* m) {
    if (tensor->kind == WTE && m->tied && parallel->mesh.p > 1 && !parallel->folded) return REPLICATED_OVER_ENDS;
    if (tensor->parallel == REPLICATED) return REPLICATED_OVER_TP;
    return is_key_or_value(tensor) && ranks_per_kv_head(parallel, m->NKV) > 1 ? REPLICATED_OVER_HEADS
                                                                              : REPLICATED_OVER_DP;
}

// A number below t p that is the same on all ranks with replicas of the same slices of a group.
static inline int replica_group_color(ReplicaGroup group, const Mesh* at, int ranks_per_head) {
    const int stage = group == REPLICATED_OVER_ENDS && at->pipeline == at->p - 1 ? 0 : at->pipeline;
    int tensor = at->tensor;
    if (group == REPLICATED_OVER_TP) tensor = 0;
    if (group == REPLICATED_OVER_HEADS) tensor = at->tensor / ranks_per_head;
    return tensor + at->t * stage;
}

// Marks, of n ranks that should have the same number (number[rank stride]), the ranks whose number is not the most
// frequent one; all of them if there is a tie.
static inline void differ_from_majority(bool* wrong, const int64_t* number, int stride, const int* rank, int n) {
    int64_t most = 0;
    int votes = 0;
    bool majority = false; // no other number has as many votes
    for (int i = 0; i < n; i++) {
        const int64_t mine = number[(int64_t)rank[i] * stride];
        int same = 0;
        for (int j = 0; j < n; j++) same += number[(int64_t)rank[j] * stride] == mine;
        if (same == votes && mine != most) majority = false;
        if (same > votes) {
            most = mine;
            votes = same;
            majority = true;
        }
    }
    for (int i = 0; i < n; i++) wrong[rank[i]] = !majority || number[(int64_t)rank[i] * stride] != most;
}

// Whether the numbers of a group, number[rank stride], differ between ranks that should have the same. If so, wrong
// (ranks) marks the ranks that differ among the first such replicas, and *copies is the number of these replicas.
static inline bool group_differs(bool* wrong, int* copies, const int64_t* number, int stride, ReplicaGroup group,
                                 const Mesh* mesh, int ranks_per_head) {
    const int ranks = mesh_size(mesh), colors = mesh->t * mesh->p;
    int* first = (int*)checked_malloc((size_t)(colors + ranks) * sizeof(int), "the ranks");
    int* same = first + colors;
    int found = -1, n = 0;
    for (int i = 0; i < colors; i++) first[i] = -1;
    for (int rank = 0; rank < ranks && found < 0; rank++) {
        const Mesh at = mesh_at(mesh, rank);
        const int color = replica_group_color(group, &at, ranks_per_head);
        if (first[color] < 0) first[color] = rank;
        if (number[(int64_t)rank * stride] != number[(int64_t)first[color] * stride]) found = color;
    }
    for (int rank = 0; rank < ranks; rank++) {
        const Mesh at = mesh_at(mesh, rank);
        wrong[rank] = false;
        if (replica_group_color(group, &at, ranks_per_head) == found) same[n++] = rank;
    }
    if (found >= 0) differ_from_majority(wrong, number, stride, same, n);
    *copies = n;
    free(first);
    return found >= 0;
}

// The checksums of this rank's slices (layout.n). Word numbers of different streams are disjoint, so that a tensor's
// sum differs where two are swapped. device: device memory for as many numbers.
static inline void slice_checksums(uint64_t* sums, uint64_t* device, const Layout* layout, const floatX* params) {
    const size_t bytes = (size_t)layout->n * sizeof *sums;
    device_zero(device, bytes);
    for (int i = 0; i < layout->n; i++) {
        const Slice* s = &layout->slices[i];
        const int64_t first = (int64_t)s->stream << 36; // a slice: < 2^36 words
        checksum_add(device + i, params + s->offset, slice_elements(s) * (int64_t)sizeof(floatX), first);
    }
    device_to_host(sums, device, bytes);
}

// The mesh of this rank's site alone. Rank i of it is rank site_rank(mesh, i) of the whole mesh.
static inline Mesh mesh_of_site(const Mesh* mesh) {
    Mesh site = *mesh;
    site.d = mesh_site_size(mesh);
    site.data = mesh_rank_in_site(mesh);
    site.sites = 1;
    return site;
}

static inline int site_rank(const Mesh* mesh, int i) {
    const Mesh site = mesh_of_site(mesh);
    Mesh at = mesh_at(&site, i);
    at.d = mesh->d;
    at.data += site.d * mesh_site(mesh);
    return mesh_rank(&at);
}

// Writes which tensor differs on which ranks of the mesh (all_sites), or of this rank's site: "rank 5 (t 1, p 0, d 1)
// has other bits of ...", "ranks 0 (...), 5 (...) and 3 more have ...". others: how many further tensors differ.
static inline void replica_error_text(char* text, size_t size, const Tensor* tensor, const bool* wrong, int copies,
                                      int others, const Mesh* mesh, bool all_sites) {
    enum { NAMED = 4 };
    const int ranks = mesh_size(mesh) / (all_sites ? 1 : mesh->sites);
    int n = 0, named = 0;
    for (int i = 0; i < ranks; i++) n += wrong[i];
    snprintf(text, size, "rank%s", plural(n));
    for (int i = 0; i < ranks && named < NAMED; i++) {
        const int rank = all_sites ? i : site_rank(mesh, i);
        const Mesh at = mesh_at(mesh, rank);
        if (!wrong[i]) continue;
        if (named > 0) append_text(text, size, named + 1 == n ? " and" : ",");
        append_text(text, size, " %d (t %d, p %d, d %d)", rank, at.tensor, at.pipeline, at.data);
        named++;
    }
    if (n > NAMED) append_text(text, size, " and %d more", n - NAMED);
    append_text(text, size, " %s other bits of %s than ", n == 1 ? "has" : "have", tensor->name);
    const int same = copies - n;
    if (same > 0)
        append_text(text, size, "%d other%s that hold%s the same", same, plural(same), same == 1 ? "s" : "");
    else
        append_text(text, size, "each other, and there is no majority");
    if (others > 0)
        append_text(text, size, "; %d more tensor%s differ%s", others, plural(others), others == 1 ? "s" : "");
}

// all (ranks, n) = every rank's mine (n), in the order of ranks: of this rank's site, or (inter_site) of all.
static inline void gather_over_mesh(ProcessGroups* g, int64_t* all, const int64_t* mine, int64_t n, bool inter_site) {
    Comm* axes[4] = {&g->tensor, &g->data, inter_site ? &g->inter_site : NULL, &g->pipeline};
    memmove(all, mine, (size_t)n * sizeof *all);
    for (int i = 0; i < 4; i++) {
        Comm* c = axes[i];
        if (!c || c->size == 1) continue;
        const int64_t counted = c->size_bytes;
        if (c->rank > 0) memcpy(all + c->rank * n, all, (size_t)n * sizeof *all);
        comm_all_gather(c, all, all + c->rank * n, n, COMM_INT64);
        c->size_bytes = counted;
        n *= c->size;
    }
}

// Whether the ranks of this rank's site, or of all sites, hold different bits of the same parameters; text names the
// tensors and ranks. All these ranks call it and get the same text; each sends a number for each tensor.
static inline bool replicas_differ(char* text, size_t size, ProcessGroups* groups, const Layout* layout,
                                   const ModelConfig* m, const floatX* params, uint64_t* device, bool all_sites) {
    const Mesh site = mesh_of_site(&layout->parallel.mesh);
    const Mesh* mesh = all_sites ? &layout->parallel.mesh : &site;
    const int tensors = layout->tensors, ranks_per_head = ranks_per_kv_head(&layout->parallel, m->NKV);
    const size_t ranks = (size_t)mesh_size(mesh), n = (size_t)tensors;
    uint64_t* sums = (uint64_t*)checked_malloc((size_t)layout->n * sizeof *sums, "the checksums");
    int64_t* mine = (int64_t*)checked_calloc(n, sizeof *mine, "the checksums of tensors"); // 0: of other ranks
    int64_t* all = (int64_t*)checked_malloc(ranks * n * sizeof *all, "the checksums of all ranks");
    Tensor* list = (Tensor*)checked_malloc(n * sizeof(Tensor), "the list of tensors");
    bool* wrong = (bool*)checked_malloc(ranks * sizeof *wrong, "the ranks");
    int copies, found = 0;
    slice_checksums(sums, device, layout, params);
    for (int i = 0; i < layout->n; i++) {
        int64_t* sum = &mine[layout->slices[i].index];
        *sum = (int64_t)((uint64_t)*sum + sums[i]);
    }
    gather_over_mesh(groups, all, mine, tensors, all_sites);
    model_tensors(list, m);
    for (int i = tensors - 1; i >= 0; i--) { // the first tensor last: the text names its ranks
        const ReplicaGroup group = replica_group_of(&list[i], &layout->parallel, m);
        if (!group_differs(wrong, &copies, all + i, tensors, group, mesh, ranks_per_head)) continue;
        replica_error_text(text, size, &list[i], wrong, copies, found, &layout->parallel.mesh, all_sites);
        found++;
    }
    free(sums);
    free(mine);
    free(all);
    free(list);
    free(wrong);
    return found > 0;
}
