/*
parallel/exchange.h: what the ranks of a mesh say to each other during a step. parallel.h says who holds what, parallel/schedule.h when;
here are the messages, over the groups of comm.h.

Tensor group (Shoeybi et al. 2019; Korthikanti et al. 2022 for the sequence-parallel forms). A pair of column- and row-
parallel matrices stands between two operators:

                     way in                                     way back
    gather_from_sequence_region      all ranks have all rows: nothing;          the gradient of its input is a partial sum: reduce_from_tensor_region
                     sequence parallel: all-gather of rows
    reduce_from_tensor_region         partial sums of all rows -> their sum:     every rank needs the gradient of all rows: gather_from_sequence_region
                     all-reduce; sequence parallel:
                     reduce-scatter, each rank keeps its rows

so the same two functions serve both directions. Sequence parallel, rank r has rows [r N / t, (r + 1) N / t) of the
N = B T rows of a micro-batch; everything that works on one row at a time (norms, residual, dropout) needs no more.

Pipeline group. What goes to the next stage is the residual stream (N, C), what comes back its gradient. The tensor ranks
of a stage hold the same numbers, so each sends 1/t of them and the receivers gather (Narayanan et al. 2021, section 4.1).

Data group: the replicas of a site. A bucket of gradients is summed as soon as its last gradient is known, while the
backward pass goes on with the block before. With ZeRO the sum goes to the data rank that owns that part of the bucket
(reduce-scatter), and the updated parameters come back (all-gather); where every replica is a site, in the far group.

Far group: the replicas at the same place of all sites (methods/async_schedule.h). What sites sum is divided over the members of a site, so
that all its ranks carry the same part of what goes far: gradients by a reduce-scatter inside, an all-reduce of each part
between sites, and an all-gather inside. Where gradients are used a step late the second is on its way during the next step.

Heads group: ranks that hold the same key/value heads. Embedding group: the ranks of the embedding and of the head, where
these are one matrix on two of them.
*/
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include "../comm.h"
#include "../kernels/kernels.h"
#include "../parallel.h"

typedef struct {
    Comm* world;
    Comm tensor, data, far, pipeline, heads, embedding;
} ProcessGroups;

enum { GROUPS = 6 };

static inline void groups_list(ProcessGroups* g, Comm* list[GROUPS]) {
    Comm* all[GROUPS] = {&g->tensor, &g->data, &g->far, &g->pipeline, &g->heads, &g->embedding};
    memcpy(list, all, sizeof all);
}

// Splits world, which has as many ranks as the mesh, into the groups of this rank. Every rank has to call it.
static inline void process_groups_init(ProcessGroups* g, Comm* world, const Layout* layout, const ModelConfig* m) {
    const Mesh* mesh = &layout->mesh;
    const int t = mesh->t, replica = mesh->tensor + t * mesh->data, sharing = t > m->NKV ? t / m->NKV : 1;
    const bool tied = embedding_is_split(layout, m);
    g->world = world;
    g->tensor = comm_split(world, mesh->data + mesh->d * mesh->pipeline, mesh->tensor, "tensor");
    const int stage = mesh->tensor + t * mesh->pipeline, stages = t * mesh->p, place = mesh_rank_in_site(mesh);
    g->data = comm_split(world, stage + stages * mesh_site(mesh), place, "data");
    g->far = comm_split(world, stage + stages * place, mesh_site(mesh), "far");
    g->pipeline = comm_split(world, replica, mesh->pipeline, "pipeline");
    comm_open_lanes(&g->pipeline, schedule_is_folded(mesh->schedule));
    g->heads = comm_split(world, mesh_rank(mesh) / sharing, mesh->tensor, "heads");
    g->embedding = comm_split(world, tied ? replica : mesh_size(mesh) + mesh_rank(mesh), mesh->pipeline, "embedding");
}

static inline void groups_close(ProcessGroups* g) {
    Comm* list[GROUPS];
    groups_list(g, list);
    for (int i = 0; i < GROUPS; i++) comm_free(list[i]);
}

// Control messages, which are not counted as the step's traffic: x (n) = the sum over a group.
static inline void sum_over(Comm* c, double* x, int64_t n) {
    const int64_t counted = c->size_bytes;
    comm_all_reduce(c, x, n, COMM_DOUBLE, COMM_SUM);
    c->size_bytes = counted;
}

// Over all ranks of this one's site, in an order that does not depend on p: the tensor group, the data group, the pipeline.
static inline void sum_over_site(ProcessGroups* g, double* x, int64_t n) {
    sum_over(&g->tensor, x, n);
    sum_over(&g->data, x, n);
    sum_over(&g->pipeline, x, n);
}

// Over all ranks.
static inline void sum_over_mesh(ProcessGroups* g, double* x, int64_t n) {
    sum_over_site(g, x, n);
    sum_over(&g->far, x, n);
}

// Control messages too: all = every rank's mine (n), in the order of ranks: of this rank's site, or (far) of all. all has room
// for them.
static inline void gather_over_mesh(ProcessGroups* g, int64_t* all, const int64_t* mine, int64_t n, bool far) {
    Comm* axes[4] = {&g->tensor, &g->data, far ? &g->far : NULL, &g->pipeline};
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

// What is waited for where nothing was started.
static inline CommRequest no_request(void) {
    CommRequest none;
    memset(&none, 0, sizeof none);
    return none;
}

// ----------------------------------------------------------------------------------------------------------------
// Tensor group. split: the rows are split over the ranks (sequence parallel). n: elements of all rows.

// all (n) from this rank's rows; where rows are not split they are all there, and all may be mine.
static inline void gather_from_sequence_region(ProcessGroups* g, bool split, floatX* all, const floatX* mine, int64_t n) {
    if (split)
        comm_all_gather(&g->tensor, all, mine, n / g->tensor.size, COMM_FLOATX);
    else if (all != mine)
        device_copy(all, mine, (size_t)n * sizeof(floatX));
}

// mine: this rank's rows of the sum over the ranks of partial (n). Where rows are not split mine is partial itself.
static inline CommRequest reduce_from_tensor_region_start(ProcessGroups* g, bool split, floatX* mine, floatX* partial, int64_t n) {
    if (split) return comm_reduce_scatter_start(&g->tensor, mine, partial, n / g->tensor.size, COMM_FLOATX);
    return comm_all_reduce_start(&g->tensor, partial, n, COMM_FLOATX, COMM_SUM);
}

static inline void reduce_from_tensor_region(ProcessGroups* g, bool split, floatX* mine, floatX* partial, int64_t n) {
    if (split)
        comm_reduce_scatter(&g->tensor, mine, partial, n / g->tensor.size, COMM_FLOATX);
    else
        comm_all_reduce(&g->tensor, partial, n, COMM_FLOATX, COMM_SUM);
}

// ----------------------------------------------------------------------------------------------------------------
// Pipeline group

// What one rank sends of a boundary: n elements are alike on all tensor ranks, or (split) this rank has n / t of them.
static inline int64_t boundary_elements(const Mesh* mesh, int64_t n) {
    return mesh->sequence_parallel || mesh->scatter ? n / mesh->t : n;
}

// Where in x, which holds what this rank has of the boundary, its message begins.
static inline int64_t boundary_offset(const Mesh* mesh, int64_t n) {
    return mesh->sequence_parallel || !mesh->scatter ? 0 : mesh->tensor * (n / mesh->t);
}

// x: what this rank needs of the boundary, from the message it received.
static inline void boundary_unpack(ProcessGroups* g, const Mesh* mesh, floatX* x, const floatX* message, int64_t n) {
    gather_from_sequence_region(g, mesh->scatter && !mesh->sequence_parallel && mesh->t > 1, x, message,
                mesh->sequence_parallel ? n / mesh->t : n);
}

// ----------------------------------------------------------------------------------------------------------------
// Data group: gradients on their way

enum { ZERO2_BUFFERS = 2 };
enum { MAX_INFLIGHT_REDUCTIONS = 2 }; // ZeRO 0, 1, on a CPU: MPI takes memory of its own, as large as the bucket, for each sum

// The gradients of one stage, in float32. ZeRO 0 and 1: all (the layout's elements) adds up over micro-batches. ZeRO 2: a bucket is
// computed in one of two buffers, summed over the data group, and only this rank's part is added up, in shares.
//
// What is summed between sites goes on from there, from `all` or, of more replicas in a site, from this rank's part of each
// bucket. Where it is used a step late there are two of both: one is computed while the other one arrives, and
// swap_grad_buffers exchanges them.
typedef struct {
    float* all;    // (layout.elements), or NULL with ZeRO 2
    float* shares; // (layout.elements / d): this rank's parts of the sums, with ZeRO
    float* parts;  // (layout.elements / replicas of a site): its parts of the site's sums, on their way to the others
    CommRequest* far;           // of each bucket, between sites
    bool across, late;          // gradients are summed between sites; and used a step late
    float *due_all, *due_parts; // what this step's update uses, and how it comes: late, else the same
    CommRequest* due_far;
    bool due; // there is something: not in the first step of a run whose gradients are late
    float *buffer[ZERO2_BUFFERS], *arriving[ZERO2_BUFFERS]; // ZeRO 2: (largest bucket), (its share)
    int bucket_in[ZERO2_BUFFERS];                           // whose gradient is on its way from there, or -1
    int next;                                               // buffer, or place in recent
    int recent[MAX_INFLIGHT_REDUCTIONS];                               // ZeRO 0, 1: buckets whose sums were started last, or -1
    float** of_bucket;                                      // where each bucket's gradients are computed now
    CommRequest* request;                                   // of each bucket (ZeRO 2: of each buffer)
} GradientBuckets;

static inline int64_t largest_bucket(const Layout* layout) {
    int64_t largest = 0;
    for (int b = 0; b < layout->buckets; b++) largest = max_i64(largest, layout->bucket[b].elements);
    return largest;
}

// ZeRO 2: waits for the sum that is on its way from buffer i and adds this rank's part to what is there.
static inline void buckets_collect(GradientBuckets* grads, const Layout* layout, int i) {
    const int b = grads->bucket_in[i];
    if (b < 0) return;
    comm_wait(&grads->request[i]);
    accumulate(grads->shares + bucket_shard_offset(layout, b), grads->arriving[i], bucket_shard_size(layout, b));
    grads->bucket_in[i] = -1;
}

// What this step's update uses.
static inline float* grads_for_update(const GradientBuckets* grads) {
    if (grads->shares) return grads->shares; // late ones are sent when the update has used those before
    return grads->late ? grads->due_all : grads->all;
}

// At the begin of a step, where gradients are used late: those of the step before become due.
static inline void swap_grad_buffers(GradientBuckets* grads, const Layout* layout) {
    float *all = grads->all, *parts = grads->parts;
    CommRequest* far = grads->far;
    if (!grads->late) return;
    grads->all = grads->due_all, grads->parts = grads->due_parts;
    grads->due_all = all, grads->due_parts = parts;
    grads->far = grads->due_far, grads->due_far = far;
    for (int b = 0; b < layout->buckets; b++) grads->of_bucket[b] = grads->all + layout->bucket[b].offset;
}

// Where the part of a bucket's sum that this rank carries between sites lies: in parts, or in `all` itself.
static inline float* inter_site_shard(const GradientBuckets* grads, const Layout* layout, int b) {
    return grads->parts ? grads->parts + layout->bucket[b].offset / mesh_site_size(&layout->mesh)
                        : grads->all + layout->bucket[b].offset;
}

// To be called before gradients are added to a bucket.
static inline void grad_bucket_reset(GradientBuckets* grads, const Layout* layout, int b) {
    if (layout->mesh.zero < 2) return;
    const int i = grads->next;
    buckets_collect(grads, layout, i);
    device_zero(grads->buffer[i], (size_t)layout->bucket[b].elements * sizeof(float));
    grads->of_bucket[b] = grads->buffer[i];
}

// Gradients that several tensor ranks hold in part: their sum.
static inline void bucket_sum_partial(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int b) {
    const Bucket* bucket = &layout->bucket[b];
    for (int i = bucket->first; i < bucket->first + bucket->slices; i++) {
        const Slice* s = &layout->slices[i];
        if (!needs_tp_grad_reduce(s, &layout->mesh)) continue;
        Comm* copies = s->copies == g->tensor.size ? &g->tensor : &g->heads;
        comm_all_reduce(copies, grads->of_bucket[b] + (s->offset - bucket->offset), slice_elements(s), COMM_FLOAT,
                        COMM_SUM);
    }
}

// Starts the sum between sites of a bucket, once: it is waited for by finish_inter_site_sync, in this step or a later one.
static inline void start_inter_site_sync(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int b) {
    float* part = inter_site_shard(grads, layout, b);
    if (grads->far[b].comm) return;
    grads->far[b] = layout->mesh.zero
                        ? comm_reduce_scatter_start(&g->far, grads->shares + bucket_shard_offset(layout, b), part,
                                                    bucket_shard_size(layout, b), COMM_FLOAT)
                        : comm_all_reduce_start(&g->far, part, bucket_site_shard_size(layout, b), COMM_FLOAT, COMM_SUM);
}

// Waits for the sum that was started MAX_INFLIGHT_REDUCTIONS sums ago, as ZeRO 2 does for its buffers. Where replicas are apart, all
// buckets of one would else be on their way to another, and MPI would hold as much memory as all gradients have. Nobody
// waits in a circle: a sum needs of others only what they do before this rank's place in the schedule.
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
    if (grads->across) {
        if (grads->parts)
            grads->request[b] = comm_reduce_scatter_start(&g->data, inter_site_shard(grads, layout, b),
                                                          grads->of_bucket[b], bucket_site_shard_size(layout, b), COMM_FLOAT);
        else if (!grads->late && bucket->chunk >= 0) // of a tied matrix there is more to add up first
            start_inter_site_sync(grads, g, layout, b);
    } else if (layout->mesh.zero == 0) {
        limit_inflight_reductions(grads, b);
        grads->request[b] =
            comm_all_reduce_start(&g->data, grads->of_bucket[b], bucket->elements, COMM_FLOAT, COMM_SUM);
    } else if (layout->mesh.zero == 1) {
        limit_inflight_reductions(grads, b);
        grads->request[b] = comm_reduce_scatter_start(&g->data, grads->shares + bucket_shard_offset(layout, b),
                                                      grads->of_bucket[b], bucket_shard_size(layout, b), COMM_FLOAT);
    } else {
        const int i = grads->next;
        grads->request[i] = comm_reduce_scatter_start(&g->data, grads->arriving[i], grads->buffer[i],
                                                      bucket_shard_size(layout, b), COMM_FLOAT);
        grads->bucket_in[i] = b;
        grads->next = (i + 1) % ZERO2_BUFFERS;
    }
}

// Lets the sums that are on their way go on.
static inline void buckets_progress(GradientBuckets* grads, const Layout* layout) {
    comm_progress(grads->request, layout->mesh.zero == 2 ? ZERO2_BUFFERS : layout->buckets);
    if (grads->across) comm_progress(grads->due_far, layout->buckets);
}

// Waits for the sums of a chunk's gradients; -1: of those that all_reduce_tied_embedding_grad sums further. (ZeRO 2: of all on their way.)
static inline void finish_grad_sync(GradientBuckets* grads, const Layout* layout, int chunk) {
    if (layout->mesh.zero == 2) {
        for (int i = 0; i < ZERO2_BUFFERS; i++) buckets_collect(grads, layout, i);
        return;
    }
    for (int b = 0; b < layout->buckets; b++) {
        if (layout->bucket[b].chunk == chunk) comm_wait(&grads->request[b]);
    }
}

// Where one matrix is embedding and head and lies on two ranks: sums its two gradients.
static inline void all_reduce_tied_embedding_grad(GradientBuckets* grads, ProcessGroups* g, const Layout* layout) {
    const Slice* wte = layout_slice(layout, -1, WTE);
    if (g->embedding.size == 1 || !wte) return;
    const int b = wte->bucket;
    if (grads->across)
        comm_all_reduce(&g->embedding, inter_site_shard(grads, layout, b), bucket_site_shard_size(layout, b), COMM_FLOAT, COMM_SUM);
    else if (layout->mesh.zero)
        comm_all_reduce(&g->embedding, grads->shares + bucket_shard_offset(layout, b), bucket_shard_size(layout, b),
                        COMM_FLOAT, COMM_SUM);
    else
        comm_all_reduce(&g->embedding, grads->all + layout->bucket[b].offset, layout->bucket[b].elements, COMM_FLOAT,
                        COMM_SUM);
}

// Starts the sums between sites of a chunk's gradients that start_grad_sync has not.
static inline void start_inter_site_syncs(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int chunk) {
    for (int b = 0; b < layout->buckets && grads->across; b++) {
        if (layout->bucket[b].chunk == chunk) start_inter_site_sync(grads, g, layout, b);
    }
}

// Waits for those that are due, and gives them to all replicas of the site.
static inline void finish_inter_site_sync(GradientBuckets* grads, ProcessGroups* g, const Layout* layout, int chunk) {
    for (int b = 0; b < layout->buckets && grads->across; b++) {
        const int64_t n = bucket_site_shard_size(layout, b);
        if (layout->bucket[b].chunk != chunk || !grads->due_far[b].comm) continue; // nothing was started, or it is here
        comm_wait(&grads->due_far[b]);
        grads->due_far[b] = no_request();
        if (grads->parts)
            comm_all_gather(&g->data, grads->due_all + layout->bucket[b].offset,
                            grads->due_parts + layout->bucket[b].offset / mesh_site_size(&layout->mesh), n, COMM_FLOAT);
    }
}

// The group over which ZeRO divides: all replicas, which are one site, or each one.
static inline Comm* zero_group(ProcessGroups* g) { return g->far.size > 1 ? &g->far : &g->data; }

// ZeRO: every data rank has updated its part of each bucket of a chunk (-1: see Bucket); now all get all.
static inline void all_gather_params(floatX* params, ProcessGroups* g, const Layout* layout, int chunk) {
    for (int b = 0; b < layout->buckets; b++) {
        floatX* bucket = params + layout->bucket[b].offset;
        const int64_t n = bucket_shard_size(layout, b);
        if (layout->bucket[b].chunk != chunk) continue;
        comm_all_gather(zero_group(g), bucket, bucket + layout->mesh.data * n, n, COMM_FLOATX);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// The trace of all ranks

// Sends this rank's spans to rank 0.
static inline void trace_send(Comm* world, const Trace* trace) {
    int64_t counts[2] = {trace->n, trace->dropped};
    CommRequest sends[3];
    sends[0] = comm_send_start(world, counts, 2, COMM_INT64, 0, 0);
    sends[1] = comm_send_start(world, &trace->zero, 1, COMM_DOUBLE, 0, 1);
    sends[2] = comm_send_start(world, trace->spans, counts[0] * (int64_t)sizeof(TraceSpan), COMM_BYTE, 0, 2);
    for (int i = 0; i < 3; i++) comm_wait(&sends[i]);
}

// The other way round: a trace to be freed.
static inline Trace trace_receive(Comm* world, int rank) {
    int64_t counts[2];
    CommRequest request = comm_receive_start(world, counts, 2, COMM_INT64, rank, 0);
    comm_wait(&request);
    Trace trace;
    trace_init(&trace, counts[0]);
    trace.n = counts[0], trace.dropped = counts[1];
    request = comm_receive_start(world, &trace.zero, 1, COMM_DOUBLE, rank, 1);
    comm_wait(&request);
    request = comm_receive_start(world, trace.spans, trace.n * (int64_t)sizeof(TraceSpan), COMM_BYTE, rank, 2);
    comm_wait(&request);
    return trace;
}

// Rank 0 writes what all ranks recorded to a file; every rank calls it. about: see trace_end_file. Returns false, on rank
// 0, if that failed.
static inline bool trace_gather(FILE* out, Comm* world, const Mesh* mesh, const char* about, Trace* trace) {
    Trace* recording = world->trace;
    world->trace = NULL; // this is not part of it
    bool ok = world->rank > 0 || trace_begin_file(out);
    if (world->rank > 0) trace_send(world, trace);
    for (int rank = 0; rank < world->size && world->rank == 0; rank++) {
        const Mesh at = mesh_of_rank(rank, mesh->t, mesh->p, mesh->d);
        Trace theirs = rank > 0 ? trace_receive(world, rank) : *trace;
        char label[64];
        snprintf(label, sizeof label, "rank %d: t %d p %d d %d", rank, at.tensor, at.pipeline, at.data);
        ok = ok && trace_write_rank(out, rank, label, theirs.spans, theirs.n, theirs.dropped, theirs.zero);
        if (rank > 0) trace_free(&theirs);
    }
    world->trace = recording;
    return ok && (world->rank > 0 || trace_end_file(out, about));
}

#endif
