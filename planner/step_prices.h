/*
step_prices.h: the cost of every action of a training step. op_cost.h prices lists of operations; here these become
prices of the actions in the tables of parallel/schedule.h, which step_sim.h runs.

    step_check                refuses a StepSetup (ops.h) that the trainer could not run
    step_prices               the prices; free them with step_prices_free

Theory: a block costs the same on every stage, so it is priced once. A chunk is its blocks, with the embedding on the
first and the head on the last chunk; the imbalance of stages follows from that. A backward pass is cut into segments,
at whose ends buckets of gradients are complete (parallel.h) and their sums over the data group can start. ZeRO-1 and 2
scatter the gradients and gather the parameters after the update; ZeRO-2 sums in every micro-batch. Between sites the
ranks of a site share its links (comm_cost.h); their bytes are the trainer's, bucket by bucket.
*/
#pragma once

#include "op_cost.h"

#include "../parallel/schedule_time.h"

static inline int64_t step_microbatches(const StepSetup* x) { return x->batch / ((int64_t)x->parallel.mesh.d * x->B); }

static inline PipelineConfig step_pipeline(const StepSetup* x) {
    const ParallelConfig* m = &x->parallel;
    const PipelineConfig plan = {x->schedule, m->mesh.p, m->v, (int)step_microbatches(x), m->zero == 2, x->model.tied};
    return plan;
}

// ---- Replicas ---------------------------------------------------------------------------------------------------

// The algorithm by which replicas of a site sum, or (inter_site) one of each site; NULL: a library's
// (trainer/plan_rank.h).
static inline const char* replicas_algorithm(const StepSetup* s, bool inter_site) {
    const Mesh* mesh = &s->parallel.mesh;
    const char* named = s->methods.allreduce;
    if (named && inter_site == (mesh->sites > 1 && mesh_site_size(mesh) == 1))
        return strcmp(named, "native") ? named : NULL;
    return inter_site && async_schedule_is_local(&s->methods.async) ? algorithm_usual(mesh->sites) : NULL;
}

// A collective of the replicas of a site, or (inter_site) of one replica of each site, without its price: sharing > 0
// where it uses the links of the cluster's sites, 0 on the fabric of one.
static inline LinkKept replicas_link(const StepSetup* s, bool inter_site, PlanKind kind, const char* algorithm) {
    const Mesh* mesh = &s->parallel.mesh;
    const int site = mesh_site_size(mesh);
    const int ranks = inter_site ? mesh->sites : site, stride = mesh->t * (inter_site ? site : 1);
    const bool wan = inter_site && cluster_sites_of(s->cluster, mesh_size(mesh)) > 1;
    const LinkKept x = {kind, ranks, stride, wan ? mesh->t * mesh->p * site : 0, {0, 0}, algorithm};
    return x;
}

// Its price by its algorithm's plan, into x->cost. False, with the reason, if the trainer refuses it.
static inline bool replicas_plan(const StepSetup* s, const Cluster* c, LinkKept* x, Error* error) {
    const int which = c != s->cluster;
    const char* topology = x->algorithm == s->methods.allreduce ? s->methods.topology : NULL;
    PlanCosts* known = topology ? NULL : s->plan_costs;
    if (known && link_known(known->kept[which], known->n[which], x)) return true;
    if (!replicas_plan_cost(c, x->algorithm, topology, x->kind, x->ranks, x->stride, x->sharing, &x->cost, error))
        return false;
    if (!known) return true;
    if (known->n[which] == known->room[which])
        known->kept[which] =
            (LinkKept*)checked_grow(known->kept[which], &known->room[which], 64, sizeof *x, "prices of plans");
    known->kept[which][known->n[which]++] = *x;
    return true;
}

// Seconds of a collective of replicas, `bytes` a rank.
static inline double replicas_seconds(Rates* r, const StepSetup* s, bool inter_site, PlanKind kind, double bytes) {
    LinkKept x = replicas_link(s, inter_site, kind, replicas_algorithm(s, inter_site));
    const bool wan = x.sharing > 0;
    Error error;
    if (x.ranks == 1 || bytes <= 0) return 0;
    if (wan && !x.algorithm) return link_seconds(site_cost(s->cluster, kind, x.ranks, x.sharing), bytes);
    if (!wan && x.algorithm != s->methods.allreduce) x.algorithm = NULL;
    if (!x.algorithm) return collective_seconds(r, kind, bytes, x.ranks, x.stride);
    if (link_known(r->links.kept, r->links.n, &x)) return link_seconds(x.cost, bytes);
    if (!replicas_plan(s, r->cluster, &x, &error)) // as the trainer, for lack of a plan
        x.cost = wan ? site_cost(s->cluster, kind, x.ranks, x.sharing)
                     : link_cost(&r->links, r->cluster, kind, x.ranks, x.stride);
    return link_seconds(link_keep(&r->links, &x), bytes);
}

// Whether gradients are scattered in a site of several replicas, and gathered after the sum between sites
// (parallel/data.h).
static inline bool sums_by_shards(const StepSetup* s) {
    const Mesh* mesh = &s->parallel.mesh;
    return mesh_site_size(mesh) > 1 && mesh->sites > 1 && !async_schedule_is_local(&s->methods.async);
}

// Refuses --allreduce where the trainer has no plan for a sum of the step.
static inline bool replicas_check(const StepSetup* s, Error* error) {
    const Mesh* mesh = &s->parallel.mesh;
    const char* name = s->methods.allreduce;
    const bool inter_site = mesh->sites > 1 && mesh_site_size(mesh) == 1,
               halves = s->parallel.zero || sums_by_shards(s);
    LinkKept x = replicas_link(s, inter_site, PLAN_ALL_REDUCE, name);
    if (mesh->d == 1) return fail(error, "--allreduce %s: there is one replica (--dp 1), and nothing to sum", name);
    if (mesh->d % mesh->sites || strcmp(name, "native") == 0) return true;
    if (!halves) return replicas_plan(s, s->cluster, &x, error);
    x.kind = PLAN_REDUCE_SCATTER;
    if (!replicas_plan(s, s->cluster, &x, error)) return false;
    x.kind = PLAN_ALL_GATHER;
    return replicas_plan(s, s->cluster, &x, error);
}

// Refuses methods that the trainer, or a published software, does not combine with the mesh.
static inline bool step_check_methods(const StepSetup* x, Error* error) {
    const ParallelConfig* m = &x->parallel;
    const AsyncConfig* async = &x->methods.async;
    const int sites = cluster_sites_of(x->cluster, mesh_size(&m->mesh));
    if (sites > 1 && m->mesh.sites != sites)
        return fail(error, "--sites %d, but %d ranks of cluster %s are on %d sites", m->mesh.sites, mesh_size(&m->mesh),
                    x->cluster->name, sites);
    const bool any = async_schedule_is_local(async) || m->caat.ranks || m->tp_overlap || x->methods.allreduce;
    if (any && !x->software->ours)
        return fail(error, "--software %s has no --dp-mode, --caat-fraction, --tp-comm-overlap and --allreduce",
                    x->software->name);
    return parallel_check_sites(m, async->mode == DP_SYNC, error) &&
           parallel_check_halves(m->tp_overlap, x->B, error) &&
           (!x->methods.allreduce || replicas_check(x, error)); // it builds plans: the last
}

// Refuses setups that the trainer could not run, naming the options.
static inline bool step_check(const StepSetup* x, Error* error) {
    const ParallelConfig* m = &x->parallel;
    if (x->B < 1 || x->batch < 1 || x->batch % ((int64_t)m->mesh.d * x->B) != 0)
        return fail(error, "--global-batch %lld is not a multiple of --dp %d x --micro-batch %d", (long long)x->batch,
                    m->mesh.d, x->B);
    if (step_microbatches(x) > SCHEDULE_LARGEST)
        return fail(error, "%lld micro-batches are more than %d", (long long)step_microbatches(x), SCHEDULE_LARGEST);
    const PipelineConfig plan = step_pipeline(x);
    const int64_t gpus = cluster_gpus(x->cluster);
    if (gpus && mesh_size(&m->mesh) > gpus)
        return fail(error, "%d ranks on a cluster %s of %lld", mesh_size(&m->mesh), x->cluster->name, (long long)gpus);
    const char* lacks = software_lacks(x->software, m, schedule_splits_backward(x->schedule));
    if (device_peak(&x->cluster->device, x->software->value_bytes) <= 0)
        return fail(error, "cluster %s has no line peak_fp32, which --software %s needs", x->cluster->name,
                    x->software->name);
    if (lacks) return fail(error, "--software %s has no %s", x->software->name, lacks);
    return model_check(&x->model, error) && (!x->software->ours || model_check_trained(&x->model, error)) &&
           parallel_check(m, &x->model, x->T, error) && pipeline_config_check(&plan, m->recompute, error) &&
           step_check_methods(x, error);
}

// ---- A rank's elements of each bucket, as by layout_build, but without the list of the whole model --------------

enum { HELD_BLOCK, HELD_WTE, HELD_WPE, HELD_NORM, HELD_HEAD, HELD_BUCKETS };

typedef struct {
    double elements[HELD_BUCKETS];
    double partial[HELD_BUCKETS]; // seconds of the tensor ranks' sums of partial gradients, before the data group's sum
} Held;

static inline int held_bucket(const Tensor* tensor) {
    switch (tensor->kind) {
    case WTE: return HELD_WTE;
    case WPE: return HELD_WPE;
    case FINAL_NORM_W:
    case FINAL_NORM_B: return HELD_NORM;
    case HEAD_W: return HELD_HEAD;
    default: return HELD_BLOCK;
    }
}

static inline Held held_by_rank(const ModelConfig* model, const ParallelConfig* parallel, Rates* rates) {
    enum { MOST = 3 + 16 };
    const size_t multiple = 16 * (size_t)parallel->mesh.d;
    ModelConfig one = *model;
    Tensor list[MOST];
    Held held = {};
    double run = 0; // bytes that are summed together: neighbours of a bucket (bucket_sum_partial)
    int copies = 0; // of those
    one.L = 1;
    const int n = model_tensors(list, &one);
    for (int i = 0; i < n; i++) {
        const int bucket = held_bucket(&list[i]);
        Slice s = {};
        s.tensor = list[i];
        slice_cut(&s, parallel, model);
        held.elements[bucket] += (double)slice_elements(&s);
        const double before = i > 0 && bucket == held_bucket(&list[i - 1]) && s.copies == copies ? run : 0;
        copies = s.copies;
        run =
            rates->software->ours && needs_tp_grad_reduce(&s, parallel) ? before + 4.0 * (double)slice_elements(&s) : 0;
        if (run > 0) held.partial[bucket] += collective_seconds(rates, PLAN_ALL_REDUCE, run, s.copies, 1);
        if (run > 0 && before > 0)
            held.partial[bucket] -= collective_seconds(rates, PLAN_ALL_REDUCE, before, s.copies, 1);
    }
    for (int i = 0; i < HELD_BUCKETS; i++) held.elements[i] = (double)round_up((size_t)held.elements[i], multiple);
    return held;
}

// Gradients that a rank zeroes before a step, of its `elements`. In this trainer the first product of a step overwrites
// a matrix's; the embeddings' are left, a tied one's of that use (and vectors', which do not count).
static inline double step_zeroed(const StepSetup* s, const Held* held, double elements, bool first) {
    const int zero = s->parallel.zero;
    if (s->software->ours && zero < 2) return first ? held->elements[HELD_WTE] + held->elements[HELD_WPE] : 0;
    return (zero < 2 ? elements : 0) + (zero > 0 ? elements / s->parallel.mesh.d : 0);
}

// ---- Prices of a step -------------------------------------------------------------------------------------------

// A segment of a chunk's backward pass, at whose end a bucket of gradients is complete (elements 0: none is).
typedef struct {
    double share[2];      // its part of the seconds of the whole pass; of the W pass alone
    double elements, sum; // the bucket's; seconds of its sum over the data group
    double partial;       // before it, over tensor ranks, while the stage waits
    bool tied;            // it is the tied embedding, summed by TIE
} Segment;

typedef struct {
    WorkPrice forward, backward;
    double elements, tied; // its buckets' together; of these, in the tied embedding
    int segments, first;   // in StepPrices.segment
} ChunkPrice;

// What sites exchange at once.
typedef struct {
    AsyncConfig config;
    double bytes, seconds; // that a rank sends, the mean of the stages; in flight between sites
    double merge;          // diloco: seconds in the site after that, which nothing hides
    double tail;           // dc-s3gd: seconds from the end of a step, when it is sent, back to where a sum is needed
} Exchange;

typedef struct {
    PipelineConfig plan;
    ChunkPrice* chunk; // (virtual stages)
    int segments;
    Segment* segment;
    Costs costs;    // the actions', as parallel/schedule_time.h has them
    double* gather; // (virtual stages): the part of UPDATE's cost that gathers parameters; then (p): of UPDATE_TIED's
    double *zero,
        *whole_sum; // (p) seconds at the start of a step; (virtual stages) of all sums together, if not overlapped
    double* after;  // (virtual stages): of sums that begin when those of the backward pass have ended; NULL: none
    Exchange exchange;
    double overlap_cost, deferred; // deferred: REDUCE's cost of the last virtual stage, for the head's weight gradients
    bool standing;                 // a stage is blocked while its messages leave
} StepPrices;

static inline void step_prices_free(StepPrices* x) {
    free(x->chunk), free(x->segment), free(x->gather), free(x->zero), free(x->whole_sum), free(x->after);
    costs_free(&x->costs);
    memset(x, 0, sizeof *x);
}

// Prices of the lists that all chunks are made from.
typedef struct {
    WorkPrice block[2], block_last[2], embedding[2], head[2]; // forward, backward
    WorkPrice chunk[2][2][2];                                 // by whether chunks receive, and send
} ListPrices;

static inline ListPrices list_prices(Rates* r, const StepSetup* s) {
    ListPrices x;
    for (int b = 0; b < 2; b++) {
        enum { LISTS = 8 };
        Work lists[LISTS];
        memset(lists, 0, sizeof lists);
        work_block(&lists[0], s, b, false), work_block(&lists[1], s, b, true);
        work_embedding(&lists[2], s, b), work_head(&lists[3], s, b);
        for (int i = 0; i < 4; i++) work_chunk(&lists[4 + i], s, b, i / 2, i % 2);
        WorkPrice* to[LISTS] = {&x.block[b],       &x.block_last[b],  &x.embedding[b],   &x.head[b],
                                &x.chunk[b][0][0], &x.chunk[b][0][1], &x.chunk[b][1][0], &x.chunk[b][1][1]};
        for (int i = 0; i < LISTS; i++) *to[i] = work_price(r, &lists[i]), work_free(&lists[i]);
    }
    return x;
}

// A virtual stage's two passes.
static inline void chunk_price(ChunkPrice* c, const ListPrices* lists, int layers, bool first, bool last) {
    memset(c, 0, sizeof *c);
    price_add(&c->forward, &lists->chunk[0][!first][!last], 1);
    price_add(&c->backward, &lists->chunk[1][!last][!first], 1);
    if (layers > 0) {
        price_add(&c->forward, &lists->block[0], layers - 1);
        price_add(&c->forward, last ? &lists->block[0] : &lists->block_last[0], 1);
        price_add(&c->backward, &lists->block[1], layers);
    }
    if (first) price_add(&c->forward, &lists->embedding[0], 1), price_add(&c->backward, &lists->embedding[1], 1);
    if (last) price_add(&c->forward, &lists->head[0], 1), price_add(&c->backward, &lists->head[1], 1);
}

// Sums of gradients that start in the backward pass: over all replicas, or those of a site; between sites where each is
// one replica.
static inline double sum_seconds(Rates* r, const StepSetup* s, double bytes) {
    const Mesh* mesh = &s->parallel.mesh;
    const int site = mesh_site_size(mesh);
    const PlanKind kind = s->parallel.zero || sums_by_shards(s) ? PLAN_REDUCE_SCATTER : PLAN_ALL_REDUCE;
    if (mesh->d == 1 || bytes <= 0) return 0;
    if (site > 1 || mesh->sites == 1) return replicas_seconds(r, s, false, kind, bytes);
    return async_schedule_is_local(&s->methods.async) ? 0 : replicas_seconds(r, s, true, kind, bytes);
}

// What follows them: the sum between sites of several replicas that wait for it; the gathering in a site, of gradients
// or, dc-s3gd, of the weights' changes.
static inline double after_seconds(Rates* r, const StepSetup* s, double bytes) {
    const Mesh* mesh = &s->parallel.mesh;
    const int site = mesh_site_size(mesh);
    double seconds = 0;
    if (bytes <= 0 || site == 1) return 0;
    if (sums_by_shards(s)) seconds = replicas_seconds(r, s, true, PLAN_ALL_REDUCE, bytes / site);
    if (sums_by_shards(s) || s->methods.async.mode == DP_DC_S3GD)
        seconds += replicas_seconds(r, s, false, PLAN_ALL_GATHER, bytes);
    return seconds;
}

// ZeRO: the updated parameters come back.
static inline double gather_seconds(Rates* r, const StepSetup* s, double bytes) {
    const ParallelConfig* parallel = &s->parallel;
    if (!parallel->zero || parallel->mesh.d == 1 || bytes <= 0) return 0;
    return replicas_seconds(r, s, false, PLAN_ALL_GATHER, bytes);
}

static inline double parts_of_half(const WorkPrice* w, int half) {
    return half ? parts_sum(w->half[1]) : parts_sum(w->whole);
}

static inline Segment* segment_add(StepPrices* x, ChunkPrice* c, const WorkPrice* price, double elements, double sum) {
    Segment* s = &x->segment[x->segments++];
    memset(s, 0, sizeof *s);
    for (int h = 0; h < 2; h++) {
        const double all = parts_of_half(&c->backward, h);
        s->share[h] = price && all > 0 ? parts_of_half(price, h) / all : 0;
    }
    s->elements = elements;
    s->sum = sum;
    c->segments++;
    return s;
}

typedef struct {
    const StepSetup* setup;
    Cluster cluster; // with the nodes that the ranks fill
    Rates rates;
    Held held;
    ListPrices lists;
} StepPricing;

// A segment with one of the rank's buckets.
static inline Segment* segment_of(StepPrices* x, StepPricing* g, ChunkPrice* c, const WorkPrice* price, int bucket) {
    const double elements = g->held.elements[bucket], bytes = elements * g->setup->software->gradient_bytes;
    Segment* s = segment_add(x, c, price, elements, sum_seconds(&g->rates, g->setup, bytes));
    s->partial = g->held.partial[bucket];
    c->elements += elements;
    return s;
}

// Segments in the order in which a backward pass completes them: head, blocks, embedding. A tied embedding is complete
// with the embedding; with ZeRO-2 each use is summed separately.
static inline void chunk_segments(StepPrices* x, StepPricing* g, ChunkPrice* c, int layers, bool first, bool last) {
    const StepSetup* s = g->setup;
    const double wte = g->held.elements[HELD_WTE];
    const bool one_rank = pipeline_holder(&x->plan, 0) == pipeline_holder(&x->plan, pipeline_last(&x->plan));
    const bool apart = s->model.tied && !one_rank;
    c->first = x->segments;
    if (last && s->model.tied && one_rank) {
        const double bytes = s->parallel.zero == 2 ? wte * s->software->gradient_bytes : 0;
        segment_add(x, c, &g->lists.head[1], bytes > 0 ? wte : 0, sum_seconds(&g->rates, s, bytes));
    } else if (last) {
        segment_of(x, g, c, &g->lists.head[1], apart ? HELD_WTE : HELD_HEAD)->tied = apart;
        c->tied += apart ? wte : 0;
    }
    if (last) segment_of(x, g, c, NULL, HELD_NORM);
    if (layers > 0) {
        const Segment one = *segment_of(x, g, c, &g->lists.block[1], HELD_BLOCK);
        for (int i = 1; i < layers; i++, c->segments++, c->elements += one.elements) x->segment[x->segments++] = one;
    }
    if (first && g->held.elements[HELD_WPE] > 0) segment_of(x, g, c, NULL, HELD_WPE);
    if (!first) return;
    segment_of(x, g, c, &g->lists.embedding[1], HELD_WTE)->tied = apart;
    c->tied += apart ? wte : 0;
}

// ZeRO-2: in every micro-batch a bucket's buffer is set to zero, and this rank's shard of its sum is accumulated.
static inline void chunk_add_zero2(StepPricing* g, ChunkPrice* c) {
    Work w = {0, 0, NULL};
    const ParallelConfig* parallel = &g->setup->parallel;
    if (parallel->zero == 2) {
        work_memory(&w, "zero", c->elements, 4)->weight = true;
        work_memory(&w, "add", c->elements / parallel->mesh.d, 12)->weight = true;
        const WorkPrice price = work_price(&g->rates, &w);
        price_add(&c->backward, &price, 1);
        work_free(&w);
    }
}

static inline double list_seconds(StepPricing* g, void (*list)(Work*, const StepSetup*, double), double elements) {
    Work w = {0, 0, NULL};
    list(&w, g->setup, elements);
    const WorkPrice price = work_price(&g->rates, &w);
    work_free(&w);
    return parts_sum(price.whole);
}

// Whether one rank uses the tied embedding as embedding and head, for which this trainer keeps two gradients.
static inline bool step_has_two_gradients(const StepPrices* x, const StepSetup* s) {
    const bool one_rank = pipeline_holder(&x->plan, 0) == pipeline_holder(&x->plan, pipeline_last(&x->plan));
    return s->model.tied && one_rank && s->software->ours && s->parallel.zero < 2;
}

// The actions once a step on a virtual stage: REDUCE's squares, TIE, UPDATE.
static inline void step_end_prices(StepPrices* x, StepPricing* g, int i) {
    const StepSetup* s = g->setup;
    const Mesh* mesh = &s->parallel.mesh;
    const ChunkPrice* c = &x->chunk[i];
    const double share = s->parallel.zero ? mesh->d : 1, bytes = s->software->value_bytes;
    const double elements[2] = {c->elements - c->tied, c->tied};
    *cost_of(&x->costs, REDUCE, i) = list_seconds(g, work_squares, elements[0] / share);
    if (i == 0 && step_has_two_gradients(x, s)) { // added once a step
        const Op add = op_memory("add", g->held.elements[HELD_WTE], 12);
        *cost_of(&x->costs, REDUCE, i) += op_seconds(&g->rates, &add);
    }
    const int holder =
        pipeline_holder(&x->plan, i); // TIE and UPDATE_TIED, without a chunk, have the number of its first chunk
    for (int k = 0; k < 2; k++) {
        double gather = gather_seconds(&g->rates, s, elements[k] * bytes);
        if (s->software->gather_overlap) // under the forward pass, which it slows down by overlap_cost of its time
            gather -= (1 - x->overlap_cost) * fmin(gather, parts_sum(c->forward.whole));
        if (k == 1 && c->tied == 0) break;
        x->gather[k ? pipeline_last(&x->plan) + 1 + holder : i] = gather;
        *cost_of(&x->costs, k ? UPDATE_TIED : UPDATE, k ? holder : i) =
            list_seconds(g, work_optimizer, elements[k] / share) + list_seconds(g, work_merge, elements[k] / share) +
            gather;
    }
    x->after[i] = after_seconds(&g->rates, s, elements[0] * s->software->gradient_bytes);
    if (c->tied > 0) {
        const double all = c->tied * s->software->gradient_bytes;
        const double vector = sums_by_shards(s) ? all / mesh_site_size(mesh) : all / share;
        *cost_of(&x->costs, TIE, holder) =
            collective_seconds(&g->rates, PLAN_ALL_REDUCE, vector, 2, mesh->t * mesh->d * (mesh->p - 1)) +
            after_seconds(&g->rates, s, all) + list_seconds(g, work_squares, c->tied / share);
    }
}

// NORM: this trainer sums every tensor's squares over its three groups in turn; others sum one or two numbers. Sites
// that wait for each other also sum their losses and counts, with ZeRO the squares: each time a message of a few bytes.
static inline double norm_seconds(StepPricing* g) {
    const StepSetup* s = g->setup;
    const Mesh* mesh = &s->parallel.mesh;
    const int groups[3][2] = {{mesh->t, 1}, {mesh_site_size(mesh), mesh->t}, {mesh->p, mesh->t * mesh->d}};
    const double bytes = 8.0 * (model_tensors(NULL, &s->model) + 2);
    double seconds = 0;
    if (!s->software->ours) return 4 * collective_seconds(&g->rates, PLAN_ALL_REDUCE, 8, mesh->t * mesh->p, 1);
    for (int k = 0; k < 3; k++)
        seconds += collective_seconds(&g->rates, PLAN_ALL_REDUCE, bytes, groups[k][0], groups[k][1]);
    if (async_schedule_is_local(&s->methods.async)) return seconds;
    return seconds + 2 * replicas_seconds(&g->rates, s, true, PLAN_ALL_REDUCE, bytes);
}

// A message from virtual stage i to the one before it, or back.
static inline double step_message(StepPricing* g, const PipelineConfig* plan, int i) {
    const StepSetup* s = g->setup;
    const ParallelConfig* parallel = &s->parallel;
    const Mesh* mesh = &parallel->mesh;
    const double bytes = (double)s->software->value_bytes * s->B * s->T * s->model.C;
    const bool rows = parallel->sequence_parallel && mesh->t > 1, scatters = parallel_scatters(parallel);
    const int from = pipeline_holder(plan, i - 1), to = pipeline_holder(plan, i);
    if (from == to) return 0;
    const LinkCost cost = message_cost(&g->cluster, mesh->t * mesh->d, from, to);
    double seconds = link_seconds(cost, bytes / (rows || scatters ? mesh->t : 1));
    if (scatters && !s->software->ours) // ours gathers within the pass
        seconds += collective_seconds(&g->rates, PLAN_ALL_GATHER, bytes, mesh->t, 1);
    return seconds;
}

// All prices that depend on the number i of a virtual stage.
static inline void stage_prices(StepPrices* x, StepPricing* g, int i) {
    const StepSetup* s = g->setup;
    const int last = pipeline_last(&x->plan), holder = pipeline_holder(&x->plan, i);
    const int layers =
        stage_first_layer(&s->parallel, s->model.L, i + 1) - stage_first_layer(&s->parallel, s->model.L, i);
    ChunkPrice* c = &x->chunk[i];
    chunk_price(c, &g->lists, layers, i == 0, i == last);
    chunk_segments(x, g, c, layers, i == 0, i == last);
    chunk_add_zero2(g, c);
    if (i == last && s->software->defers_head && x->plan.p > 1) {
        const double* weight = g->lists.head[1].half[1];
        for (int k = 0; k < WORK_PARTS; k++) c->backward.half[1][k] -= weight[k], c->backward.whole[k] -= weight[k];
        x->deferred = x->plan.m * parts_sum(weight);
    }
    if (!s->software->data_overlap)
        x->whole_sum[i] = sum_seconds(&g->rates, s, c->elements * s->software->gradient_bytes);
    *cost_of(&x->costs, FORWARD, i) = parts_sum(c->forward.whole);
    *cost_of(&x->costs, BACKWARD, i) = parts_sum(c->backward.whole);
    *cost_of(&x->costs, BACKWARD_INPUT, i) = parts_sum(c->backward.half[0]);
    *cost_of(&x->costs, BACKWARD_WEIGHT, i) = parts_sum(c->backward.half[1]);
    if (i < last) *cost_of(&x->costs, SEND_FORWARD, i) = step_message(g, &x->plan, i + 1);
    if (i > 0) *cost_of(&x->costs, SEND_BACKWARD, i) = step_message(g, &x->plan, i);
    step_end_prices(x, g, i);
    if (i == last) *cost_of(&x->costs, REDUCE, i) += x->deferred;
    x->zero[holder] += list_seconds(g, work_zero, step_zeroed(s, &g->held, c->elements, i == 0));
}

// ---- The exchange between sites ---------------------------------------------------------------------------------

static inline double* step_numbers(int n) { return (double*)checked_calloc((size_t)n, sizeof(double), "prices"); }

// The bytes that a rank of each stage sends at once, (p): to other sites, and in its site. one: the layout of a model
// of one block; holder: the stages with the embedding, each block, and the head.
static inline void exchange_count(const StepSetup* s, const Layout* one, const int* holder, double* inter,
                                  double* intra) {
    const int L = s->model.L;
    for (int b = 0; b < one->buckets; b++) {
        const Tensor* tensor = &one->slices[one->bucket[b].first].tensor;
        const SiteTraffic once = async_schedule_sending(&s->parallel.mesh, (double)one->bucket[b].elements);
        const int from = tensor->layer > 0 ? L : tensor->layer, to = tensor->layer == 0 ? L - 1 : from;
        const bool twice = tensor->kind == WTE && s->model.tied && holder[0] != holder[L + 1];
        for (int layer = from; layer <= to; layer++) {
            for (int use = 0; use <= twice; use++) {
                inter[holder[use ? L + 1 : layer + 1]] += once.inter_site;
                intra[holder[use ? L + 1 : layer + 1]] += once.intra_site;
            }
        }
    }
}

// Seconds of the exchange. All ranks of a site share its links, those of a stage that sends less leave
// more to the others: the mean counts. Inside a site the stage counts that sends the most.
static inline void exchange_price(StepPrices* x, StepPricing* g, const double* inter, const double* intra) {
    const StepSetup* s = g->setup;
    const Mesh* mesh = &s->parallel.mesh;
    const int S = mesh->sites, k = mesh_site_size(mesh), p = x->plan.p;
    const bool shared = cluster_sites_of(s->cluster, mesh_size(mesh)) > 1;
    const PlanKind kind = PLAN_ALL_REDUCE;
    double mean = 0, most = 0, inside = 0;
    for (int r = 0; r < p; r++) {
        mean += inter[r] / p;
        most = fmax(most, inter[r]);
        inside = fmax(inside, intra[r]);
    }
    x->exchange.bytes = mean;
    const double sent = shared ? mean : most;
    if (S > 1) // the bytes of the whole vector, from those that are sent
        x->exchange.seconds = replicas_seconds(&g->rates, s, true, kind, sent * S / (S - 1) / plan_passes(kind));
    if (k > 1 && s->methods.async.mode == DP_DILOCO)
        x->exchange.merge = replicas_seconds(&g->rates, s, false, PLAN_ALL_GATHER, inside * k / (k - 1));
}

static inline void exchange_prices(StepPrices* x, StepPricing* g) {
    const StepSetup* s = g->setup;
    const AsyncConfig* config = &s->methods.async;
    const int L = s->model.L, p = x->plan.p, stages = p * x->plan.v;
    Layout layout;
    ParallelConfig parallel = s->parallel;
    ModelConfig one = s->model;
    Error error;
    x->exchange.config = *config;
    if (!async_schedule_is_local(config) && parallel.mesh.sites == 1) return;
    parallel.mesh.p = parallel.v = one.L = 1;
    parallel.folded = parallel.light_ends = false;
    parallel.mesh.tensor = parallel.mesh.data = parallel.mesh.pipeline = 0;
    if (!layout_build(&layout, &one, parallel, s->T, &error)) die("%s", error.text);
    int* holder = (int*)checked_malloc((size_t)(L + 2) * sizeof(int), "prices");
    double* bytes = step_numbers(2 * p);
    holder[0] = pipeline_holder(&x->plan, 0);
    holder[L + 1] = pipeline_holder(&x->plan, stages - 1);
    for (int i = 0; i < stages; i++) {
        for (int l = stage_first_layer(&s->parallel, L, i); l < stage_first_layer(&s->parallel, L, i + 1); l++)
            holder[l + 1] = pipeline_holder(&x->plan, i);
    }
    exchange_count(s, &layout, holder, bytes, bytes + p);
    exchange_price(x, g, bytes, bytes + p);
    if (config->mode == DP_DC_S3GD) { // sent when the update is complete, and needed before the norm
        x->exchange.tail = *cost_of(&x->costs, NORM, 0);
        for (int i = 0; i < stages; i += p)
            x->exchange.tail += *cost_of(&x->costs, REDUCE, i) + *cost_of(&x->costs, UPDATE, i);
    }
    free(holder), free(bytes);
    layout_free(&layout);
}

static inline StepPrices step_prices(const StepSetup* s) {
    StepPrices x = {};
    StepPricing g = {};
    x.plan = step_pipeline(s);
    const int stages = x.plan.p * x.plan.v;
    x.overlap_cost = s->cluster->overlap_cost;
    x.standing = !s->software->send_overlap;
    x.chunk = (ChunkPrice*)checked_calloc((size_t)stages, sizeof(ChunkPrice), "prices");
    x.segment = (Segment*)checked_calloc((size_t)s->model.L + 4, sizeof(Segment), "prices");
    x.gather = step_numbers(stages + x.plan.p);
    x.whole_sum = step_numbers(stages);
    x.after = step_numbers(stages);
    x.zero = step_numbers(x.plan.p);
    x.costs = costs_equal(stages, 0, 0, 0, 0);
    g.setup = s;
    g.cluster = *s->cluster;
    g.cluster.nodes = (mesh_size(&s->parallel.mesh) + s->cluster->node_gpus - 1) / s->cluster->node_gpus;
    g.rates = rates_of(&g.cluster, s->software, s->threads);
    g.held = held_by_rank(&s->model, &s->parallel, &g.rates);
    g.lists = list_prices(&g.rates, s);
    const double norm = norm_seconds(&g);
    for (int i = 0; i < stages; i++) stage_prices(&x, &g, i), *cost_of(&x.costs, NORM, i) = norm;
    exchange_prices(&x, &g);
    return x;
}
