/*
step_sim.h: how long one training step of a model takes on a mesh of a cluster, and what it is spent on. ops.h prices what
a stage computes, parallel/schedule.h has the tables that say in which order; here they run against each other as events.

    prices    a block costs the same everywhere, so it is priced once; a chunk is its blocks, the first one's embedding,
              the last one's head. So stages differ, and their imbalance shows up by itself
    events    every stage works through its real table (schedule_build). Its actions start when parallel/schedule.h's
              action_ready says so: when their message is there and what they fill is free. A stage that waits is looked
              at again when the other end of a transfer moves, so all takes O(actions)
    messages  run under computing; or (send_overlap false) a stage stands still while its own leave
    sums      of gradients over the data group go over a link of their own, a bucket after another (parallel.h), each as
              soon as the last backward pass has made it; what is not done when the stage comes to REDUCE is waited for.
              While a sum runs beside it, computing is slower by overlap_cost. ZeRO-1 and 2 scatter, and gather
              parameters after the update; ZeRO-2 sums every micro-batch and has two buffers to wait for. Where a
              software does not overlap them, REDUCE takes as long as the whole sum
    end       TIE, NORM and UPDATE as in the tables

A step's seconds are divided into parts, means over the stages; per stage they add up to its seconds, as everything that
a stage does, or waits for, is counted once:

    product, attention, memory    computing: matrix products; the attention core; other kernels
    tensor                        sums over the tensor group, as far as they are not hidden
    pipeline                      messages: standing still; waiting, for as long as the message that comes then was on
                                  its way
    data                          waiting for sums of gradients; what computing lost by sums beside it; gathering of
                                  parameters
    optimizer                     setting gradients to zero, their norm, the update
    bubble                        waiting for anything else, which is for other stages

Two conventions for a rate, both printed where papers are compared:

    TFLOP/s of a device   Narayanan et al. 2021, equation 3: what the hardware does in four passes (full recomputation)
                          and attention in full: 96 B T L C^2 (1 + T/(6C) + V/(16 L C)), whether it recomputes or not
    MFU                   of the peak, what the model needs: 6 N + 6 L C T FLOP a token (model.h); other papers count
                          attention in full, 12 L C T (flops_of_model)

Times of a machine with fewer cores than processes: speed[k] is the speed of each stage that computes while k of the p
do.
*/
#ifndef STEP_SIM_H
#define STEP_SIM_H

#include "ops.h"

#include "../parallel/schedule.h"

typedef struct {
    ModelConfig model;
    Mesh mesh;
    int B, T;      // of a micro-batch
    int64_t batch; // sequences of a step
    bool clip;     // the update waits for the norm of the gradient
    const Software* software;
    const Cluster* cluster;
    int threads, busy;   // of a measured machine (ops.h)
    const double* speed; // (p + 1); NULL: always 1
} StepSetup;

static inline StepSetup step_setup(const ModelConfig* model, const Mesh* mesh, int B, int T, int64_t batch,
                                   const Software* software, const Cluster* cluster) {
    StepSetup x;
    memset(&x, 0, sizeof x);
    x.model = *model, x.mesh = *mesh, x.B = B, x.T = T, x.batch = batch, x.clip = true;
    x.software = software, x.cluster = cluster, x.threads = x.busy = 1;
    return x;
}

static inline int64_t step_microbatches(const StepSetup* x) { return x->batch / ((int64_t)x->mesh.d * x->B); }

static inline Pipeline step_pipeline(const StepSetup* x) {
    const Mesh* m = &x->mesh;
    const Pipeline plan = {m->schedule, m->p, m->v, (int)step_microbatches(x), m->zero == 2, x->model.tied, x->clip};
    return plan;
}

// Refuses, by options' names, what the trainer could not run.
static inline bool step_check(const StepSetup* x, Error* error) {
    const Mesh* m = &x->mesh;
    if (x->B < 1 || x->batch < 1 || x->batch % ((int64_t)m->d * x->B) != 0)
        return fail(error, "--global-batch %lld is not a multiple of --dp %d x --micro-batch %d", (long long)x->batch,
                    m->d, x->B);
    if (m->d % m->sites != 0) return fail(error, "--sites %d does not divide --dp %d", m->sites, m->d);
    if (m->sites > 1 && (m->zero == 2 || (m->zero && m->sites < m->d)))
        return fail(error, "--zero %d does not go with --sites %d of %d replicas", m->zero, m->sites, m->d);
    if (step_microbatches(x) > SCHEDULE_LARGEST)
        return fail(error, "%lld micro-batches are more than %d", (long long)step_microbatches(x), SCHEDULE_LARGEST);
    const Pipeline plan = step_pipeline(x);
    const int64_t gpus = cluster_gpus(x->cluster);
    if (gpus && mesh_size(m) > gpus)
        return fail(error, "%d ranks on a cluster %s of %lld", mesh_size(m), x->cluster->name, (long long)gpus);
    const char* lacks = software_lacks(x->software, m);
    if (device_peak(&x->cluster->device, x->software->value_bytes) <= 0 && !x->cluster->measured)
        return fail(error, "cluster %s has no line peak_fp32, which --software %s needs", x->cluster->name,
                    x->software->name);
    if (lacks) return fail(error, "--software %s has no %s", x->software->name, lacks);
    return model_check(&x->model, error) && mesh_check(m, &x->model, x->T, error) && pipeline_check(&plan, error);
}

// ----------------------------------------------------------------------------------------------------------------
// FLOPs, parameters, memory and days by published formulas

// Narayanan et al. 2021, equation 3: four passes, attention in full.
static inline double flops_hardware(const ModelConfig* m, int T, double batch) {
    const double L = m->L, C = m->C;
    return 96.0 * batch * T * L * C * C * (1 + T / (6 * C) + m->V / (16 * L * C));
}

// Weights of a block's products.
static inline double block_weights(const ModelConfig* m) {
    return (double)m->C * (2.0 * m->C + 2.0 * m->NKV * model_head_size(m)) + (double)m->C * (model_fc_size(m) + m->F);
}

// Three passes: 6 FLOP a token and weight of the products, and attention in full or its causal half.
static inline double flops_of_model(const ModelConfig* m, int T, double batch, bool causal) {
    const double weights = m->L * block_weights(m) + (double)m->V * m->C;
    return batch * T * (6 * weights + (causal ? 6.0 : 12.0) * m->L * m->C * T);
}

// Narayanan et al. 2021, equation 2: 12 L C^2 (1 + 13 / (12 C) + (V + T) / (12 L C)).
static inline double formula_parameters(const ModelConfig* m) {
    const double L = m->L, C = m->C;
    return 12 * L * C * C * (1 + 13 / (12 * C) + (m->V + (double)m->T) / (12 * L * C));
}

// Korthikanti et al. 2022, table 2: bytes that one block keeps of a micro-batch, 16-bit values and one byte a mask of
// dropout, scores in memory (no FlashAttention). full: its input, which sequence parallelism without more does not
// divide.
static inline double formula_block_bytes(const ModelConfig* m, int B, int T, int t, bool sequence_parallel,
                                         Recompute recompute) {
    const double x = (double)T * B * m->C, scores = recompute == RECOMPUTE_NONE ? 5.0 * m->NH * T / m->C : 0;
    if (recompute == RECOMPUTE_FULL) return 2 * x;
    return sequence_parallel ? x * (34 + scores) / t : x * (10 + (24 + scores) / t);
}

// The same of the first stage: p micro-batches are in flight there, so it holds as much as all L blocks of one,
// whatever p is; (1 + (p - 1) / (p v)) times that where chunks are interleaved.
static inline double formula_activation_bytes(const ModelConfig* m, int B, int T, const Mesh* mesh) {
    const double more = mesh->v > 1 ? 1 + (mesh->p - 1) / ((double)mesh->p * mesh->v) : 1;
    return m->L * more * formula_block_bytes(m, B, T, mesh->t, mesh->sequence_parallel, mesh->recompute);
}

// Parameter, gradient, float32 copy and two moments of Adam: 18 bytes where gradients are float32 or are summed in 16
// bits, 20 where both exist. ZeRO-1 (Megatron's distributed optimizer) divides the last 12 (or, with both, 16 of the
// 20).
static inline double formula_optimizer_bytes(double parameters, bool both_gradients, bool zero, int d) {
    const double divided = both_gradients ? 16 : 12, kept = both_gradients ? 4 : 6;
    return parameters * (kept + divided / (zero ? d : 1));
}

// Days to train P parameters on so many tokens by n devices of X FLOP/s each (four passes): 8 T P / (n X), Narayanan et
// al. 2021, equation 4.
static inline double formula_days(double tokens, double parameters, double n, double flops) {
    return 8 * tokens * parameters / (n * flops) / 86400;
}

// By our own: steps of so many seconds until all tokens were seen.
static inline double step_iterations(const StepSetup* x, double tokens) {
    return ceil(tokens / ((double)x->batch * x->T));
}
static inline double step_days(const StepSetup* x, double tokens, double seconds) {
    return step_iterations(x, tokens) * seconds / 86400;
}

// ----------------------------------------------------------------------------------------------------------------
// What a rank holds: elements of each bucket, as layout_build lays them out, without the list of the whole model

enum { HELD_BLOCK, HELD_WTE, HELD_WPE, HELD_NORM, HELD_HEAD, HELD_BUCKETS };

typedef struct {
    double elements[HELD_BUCKETS];
    double partial[HELD_BUCKETS]; // seconds: sums of gradients that tensor ranks have in part, before the data group's
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

static inline Held held_by_rank(const ModelConfig* model, const Mesh* mesh, Rates* rates) {
    enum { MOST = 3 + 16 };
    const size_t multiple = 16 * (size_t)mesh->d;
    ModelConfig one = *model;
    Tensor list[MOST];
    Held held;
    memset(&held, 0, sizeof held);
    one.L = 1;
    const int n = model_tensors(list, &one);
    for (int i = 0; i < n; i++) {
        const int bucket = held_bucket(&list[i]);
        Slice s;
        memset(&s, 0, sizeof s);
        s.tensor = list[i];
        if (list[i].kind == QKV_B || (list[i].kind == QKV_W && list[i].parts == 3)) // Nemotron: gpt2, fewer k/v heads
            s.tensor.rows = model_qkv_size(model);
        slice_cut(&s, mesh, model);
        held.elements[bucket] += (double)slice_elements(&s);
        if (rates->software->ours && needs_tp_grad_reduce(&s, mesh))
            held.partial[bucket] +=
                collective_seconds(rates, PLAN_ALL_REDUCE, 4.0 * (double)slice_elements(&s), s.copies, 1);
    }
    for (int i = 0; i < HELD_BUCKETS; i++) held.elements[i] = (double)round_up((size_t)held.elements[i], multiple);
    return held;
}

// ----------------------------------------------------------------------------------------------------------------
// Prices of a step

// A piece of a chunk's backward pass, at whose end a bucket of gradients is complete (elements 0: none is).
typedef struct {
    double share[2];      // of the seconds of the whole pass; of those of the weight half alone
    double elements, sum; // of the bucket; seconds of its sum over the data group
    double partial;       // and before it, over tensor ranks, while the stage waits
    bool tied;            // it is the matrix of TIE
} Segment;

typedef struct {
    WorkPrice forward, backward;
    double elements, tied; // of its buckets; of these, in the matrix of TIE
    int segments, first;   // in StepPrices.segment
} ChunkPrice;

typedef struct {
    Pipeline plan;
    ChunkPrice* chunk; // (virtual stages)
    int segments;
    Segment* segment;
    Costs costs;    // of actions, as parallel/schedule.h has them
    double* gather; // (virtual stages): of the costs of UPDATE, what gathers parameters; then (p): of UPDATE_TIED
    double *zero,
        *whole_sum; // (p) seconds at the begin of a step; (virtual stages) of all sums at once, if not overlapped
    double overlap_cost;
    bool standing; // a stage stands still while its messages leave
} StepPrices;

static inline void step_prices_free(StepPrices* x) {
    free(x->chunk), free(x->segment), free(x->gather), free(x->zero), free(x->whole_sum);
    costs_free(&x->costs);
    memset(x, 0, sizeof *x);
}

// Prices of the lists that all chunks are made from.
typedef struct {
    WorkPrice block[2], block_last[2], embedding[2], head[2]; // forward, backward
    WorkPrice chunk[2][2][2];                                 // of these, of chunks that receive, that send
} ListPrices;

static inline ListPrices list_prices(Rates* r, const Job* job) {
    ListPrices x;
    for (int b = 0; b < 2; b++) {
        enum { LISTS = 8 };
        Work lists[LISTS];
        memset(lists, 0, sizeof lists);
        work_block(&lists[0], job, b, false), work_block(&lists[1], job, b, true);
        work_embedding(&lists[2], job, b), work_head(&lists[3], job, b);
        for (int i = 0; i < 4; i++) work_chunk(&lists[4 + i], job, b, i / 2, i % 2);
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

// Sums of gradients over the data group: inside a site, and between sites.
static inline double sum_seconds(Rates* r, const Mesh* mesh, double bytes) {
    const int site = mesh_site_size(mesh), ranks = mesh->t * mesh->p * site;
    const PlanKind kind = mesh->zero ? PLAN_REDUCE_SCATTER : PLAN_ALL_REDUCE;
    if (mesh->d == 1 || bytes <= 0) return 0;
    if (mesh->sites == 1) return collective_seconds(r, kind, bytes, mesh->d, mesh->t);
    double seconds = async_dp_seconds(r->cluster, kind, bytes / site, mesh->sites, ranks);
    if (site > 1)
        seconds += collective_seconds(r, PLAN_REDUCE_SCATTER, bytes, site, mesh->t) +
                   collective_seconds(r, PLAN_ALL_GATHER, bytes, site, mesh->t);
    return seconds;
}

// ZeRO: the updated parameters come back.
static inline double gather_seconds(Rates* r, const Mesh* mesh, double bytes) {
    if (!mesh->zero || mesh->d == 1 || bytes <= 0) return 0;
    if (mesh->sites == 1) return collective_seconds(r, PLAN_ALL_GATHER, bytes, mesh->d, mesh->t);
    return async_dp_seconds(r->cluster, PLAN_ALL_GATHER, bytes, mesh->sites, mesh->t * mesh->p * mesh_site_size(mesh));
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
    s->elements = elements, s->sum = sum;
    c->segments++;
    return s;
}

typedef struct {
    const StepSetup* setup;
    Cluster cluster; // of as many nodes as the ranks fill
    Job job;
    Rates rates;
    Held held;
    ListPrices lists;
} StepPricing;

// A segment with one of the rank's buckets.
static inline Segment* segment_of(StepPrices* x, StepPricing* g, ChunkPrice* c, const WorkPrice* price, int bucket) {
    const double elements = g->held.elements[bucket], bytes = elements * g->setup->software->gradient_bytes;
    Segment* s = segment_add(x, c, price, elements, sum_seconds(&g->rates, &g->setup->mesh, bytes));
    s->partial = g->held.partial[bucket];
    c->elements += elements;
    return s;
}

// In the order in which a backward pass completes them: head, blocks, embedding. A matrix that is both is complete with
// the embedding; with ZeRO-2 each use is summed by itself.
static inline void chunk_segments(StepPrices* x, StepPricing* g, ChunkPrice* c, int layers, bool first, bool last) {
    const StepSetup* s = g->setup;
    const double wte = g->held.elements[HELD_WTE];
    const bool one_rank = pipeline_holder(&x->plan, 0) == pipeline_holder(&x->plan, pipeline_last(&x->plan));
    const bool apart = s->model.tied && !one_rank;
    c->first = x->segments;
    if (last && s->model.tied && one_rank) {
        const double bytes = s->mesh.zero == 2 ? wte * s->software->gradient_bytes : 0;
        segment_add(x, c, &g->lists.head[1], bytes > 0 ? wte : 0, sum_seconds(&g->rates, &s->mesh, bytes));
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

// ZeRO-2: a bucket's buffer is set to zero, and this rank's part of its sum added up, in every micro-batch.
static inline void chunk_add_zero2(StepPricing* g, ChunkPrice* c) {
    Work w = {0, 0, NULL};
    const Mesh* mesh = &g->setup->mesh;
    if (mesh->zero == 2) {
        work_memory(&w, "zero", KERNEL_ZERO, c->elements, 4)->weight = true;
        work_memory(&w, "add", KERNEL_ADD, c->elements / mesh->d, 12)->weight = true;
        const WorkPrice price = work_price(&g->rates, &w);
        price_add(&c->backward, &price, 1);
        work_free(&w);
    }
}

static inline double list_seconds(StepPricing* g, void (*list)(Work*, const Job*, double), double elements) {
    Work w = {0, 0, NULL};
    list(&w, &g->job, elements);
    const WorkPrice price = work_price(&g->rates, &w);
    work_free(&w);
    return parts_sum(price.whole);
}

// One rank uses one matrix as embedding and as head, and this trainer keeps their gradients apart.
static inline bool step_has_two_gradients(const StepPrices* x, const StepSetup* s) {
    const bool one_rank = pipeline_holder(&x->plan, 0) == pipeline_holder(&x->plan, pipeline_last(&x->plan));
    return s->model.tied && one_rank && s->software->ours && s->mesh.zero < 2;
}

// What happens once a step on a virtual stage: REDUCE's squares, TIE, UPDATE.
static inline void step_end_prices(StepPrices* x, StepPricing* g, int i) {
    const StepSetup* s = g->setup;
    const Mesh* mesh = &s->mesh;
    const ChunkPrice* c = &x->chunk[i];
    const double share = mesh->zero ? mesh->d : 1, bytes = s->software->value_bytes;
    const double elements[2] = {c->elements - c->tied, c->tied};
    *cost_of(&x->costs, REDUCE, i) = list_seconds(g, work_squares, elements[0] / share);
    if (i == 0 && step_has_two_gradients(x, s)) { // added once a step
        const Op add = op_memory("add", KERNEL_ADD, g->held.elements[HELD_WTE], 12);
        *cost_of(&x->costs, REDUCE, i) += op_seconds(&g->rates, &add);
    }
    const int holder =
        pipeline_holder(&x->plan, i); // TIE and UPDATE_TIED, without a chunk, stand at its first one's number
    for (int k = 0; k < 2; k++) {
        double gather = gather_seconds(&g->rates, mesh, elements[k] * bytes);
        if (s->software->gather_overlap) // under the forward pass; it loses overlap_cost of that
            gather -= (1 - x->overlap_cost) * fmin(gather, parts_sum(c->forward.whole));
        if (k == 1 && c->tied == 0) break;
        x->gather[k ? pipeline_last(&x->plan) + 1 + holder : i] = gather;
        *cost_of(&x->costs, k ? UPDATE_TIED : UPDATE, k ? holder : i) =
            list_seconds(g, work_optimizer, elements[k] / share) + gather;
    }
    if (c->tied > 0) {
        const double vector = c->tied * s->software->gradient_bytes / share;
        *cost_of(&x->costs, TIE, holder) =
            collective_seconds(&g->rates, PLAN_ALL_REDUCE, vector, 2, mesh->t * mesh->d * (mesh->p - 1)) +
            list_seconds(g, work_squares, c->tied / share);
    }
}

// NORM: this trainer adds up the squares of every tensor over its three groups in turn; others do with a number or two.
static inline double norm_seconds(StepPricing* g) {
    const StepSetup* s = g->setup;
    const Mesh* mesh = &s->mesh;
    const int groups[3][2] = {{mesh->t, 1}, {mesh->d, mesh->t}, {mesh->p, mesh->t * mesh->d}};
    const double bytes = 8.0 * (2 * model_tensors(NULL, &s->model) + 2);
    double seconds = 0;
    if (!s->software->ours) return 4 * collective_seconds(&g->rates, PLAN_ALL_REDUCE, 8, mesh->t * mesh->p, 1);
    for (int k = 0; k < 3; k++)
        seconds += collective_seconds(&g->rates, PLAN_ALL_REDUCE, bytes, groups[k][0], groups[k][1]);
    return seconds;
}

// A message from virtual stage i to the next one, or back.
static inline double step_message(StepPricing* g, const Pipeline* plan) {
    const StepSetup* s = g->setup;
    const Mesh* mesh = &s->mesh;
    const double bytes = (double)s->software->value_bytes * s->B * s->T * s->model.C;
    const bool rows = mesh->sequence_parallel && mesh->t > 1, scatters = mesh->scatter && !rows && mesh->t > 1;
    if (plan->p == 1) return 0;
    double seconds = message_seconds(&g->rates, bytes / (rows || scatters ? mesh->t : 1), mesh->t * mesh->d, plan->p);
    if (scatters && !s->software->ours) // ours gathers in the pass itself
        seconds += collective_seconds(&g->rates, PLAN_ALL_GATHER, bytes, mesh->t, 1);
    return seconds;
}

// Everything that depends on the number i of a virtual stage.
static inline void stage_prices(StepPrices* x, StepPricing* g, int i, double message) {
    const StepSetup* s = g->setup;
    const int last = pipeline_last(&x->plan), holder = pipeline_holder(&x->plan, i);
    const int layers = stage_first_layer(&s->mesh, s->model.L, i + 1) - stage_first_layer(&s->mesh, s->model.L, i);
    ChunkPrice* c = &x->chunk[i];
    chunk_price(c, &g->lists, layers, i == 0, i == last);
    chunk_segments(x, g, c, layers, i == 0, i == last);
    chunk_add_zero2(g, c);
    if (!s->software->data_overlap)
        x->whole_sum[i] = sum_seconds(&g->rates, &s->mesh, c->elements * s->software->gradient_bytes);
    *cost_of(&x->costs, FORWARD, i) = parts_sum(c->forward.whole);
    *cost_of(&x->costs, BACKWARD, i) = parts_sum(c->backward.whole);
    *cost_of(&x->costs, BACKWARD_INPUT, i) = parts_sum(c->backward.half[0]);
    *cost_of(&x->costs, BACKWARD_WEIGHT, i) = parts_sum(c->backward.half[1]);
    if (i < last && pipeline_holder(&x->plan, i + 1) != holder) *cost_of(&x->costs, SEND_FORWARD, i) = message;
    if (i > 0 && pipeline_holder(&x->plan, i - 1) != holder) *cost_of(&x->costs, SEND_BACKWARD, i) = message;
    step_end_prices(x, g, i);
    const double all = s->mesh.zero == 2 ? 0 : c->elements, shares = s->mesh.zero ? c->elements / s->mesh.d : 0;
    const double second = i == 0 && step_has_two_gradients(x, s) ? g->held.elements[HELD_WTE] : 0;
    x->zero[holder] += list_seconds(g, work_zero, all + shares + second);
}

static inline double* step_numbers(int n) { return (double*)checked_calloc((size_t)n, sizeof(double), "prices"); }

static inline StepPrices step_prices(const StepSetup* s) {
    StepPrices x;
    StepPricing g;
    memset(&x, 0, sizeof x);
    memset(&g, 0, sizeof g);
    x.plan = step_pipeline(s);
    const int stages = x.plan.p * x.plan.v;
    x.overlap_cost = s->cluster->overlap_cost, x.standing = !s->software->send_overlap;
    x.chunk = (ChunkPrice*)checked_calloc((size_t)stages, sizeof(ChunkPrice), "prices");
    x.segment = (Segment*)checked_calloc((size_t)s->model.L + 4, sizeof(Segment), "prices");
    x.gather = step_numbers(stages + x.plan.p), x.whole_sum = step_numbers(stages), x.zero = step_numbers(x.plan.p);
    x.costs = costs_equal(stages, 0, 0, 0, 0);
    g.setup = s, g.cluster = *s->cluster;
    g.cluster.nodes = (mesh_size(&s->mesh) + s->cluster->node_gpus - 1) / s->cluster->node_gpus;
    g.rates = rates_of(&g.cluster, s->software);
    g.rates.threads = s->threads, g.rates.busy = s->busy;
    g.job.model = &s->model, g.job.mesh = &s->mesh, g.job.software = s->software, g.job.B = s->B, g.job.T = s->T;
    g.held = held_by_rank(&s->model, &s->mesh, &g.rates);
    g.lists = list_prices(&g.rates, &g.job);
    const double message = step_message(&g, &x.plan), norm = norm_seconds(&g);
    for (int i = 0; i < stages; i++) stage_prices(&x, &g, i, message), *cost_of(&x.costs, NORM, i) = norm;
    return x;
}

// ----------------------------------------------------------------------------------------------------------------
// Events

typedef enum {
    STEP_PRODUCT,
    STEP_ATTENTION,
    STEP_MEMORY,
    STEP_TENSOR,
    STEP_PIPELINE,
    STEP_DATA,
    STEP_OPTIMIZER,
    STEP_BUBBLE,
    STEP_PARTS
} StepPart;

static inline const char* step_part_name(int part) {
    static const char* const names[] = {"product",  "attention", "memory",    "tensor",
                                        "pipeline", "data",      "optimizer", "bubble"};
    return names[part];
}

// A stage while it works through its table.
typedef struct {
    int next;                 // action
    int waited;               // the action before which sums were waited for, + 1
    bool queued;              // to be looked at
    double spent[STEP_PARTS]; // seconds; STEP_PRODUCT: all computing; STEP_TENSOR: sums of partial gradients
    double link_free;         // when the sums that were started are done
    double buffer[2];         // ZeRO-2: the same of the last two buckets
    double* summed;           // (v) when each chunk's are
    double tied_summed;
    bool running; // with shared cores: it computes; what is left, and since when
    double left, started;
} StageRun;

typedef struct {
    const Schedule* tables;
    const StepPrices* prices;
    const double* speed; // (p + 1) or NULL
    Simulation sim;      // of parallel/schedule.h: messages, slots and meetings
    StageRun* stage;     // (p)
    int *queue, queued;  // stages to be looked at
    Timeline* timeline;  // NULL: not kept
    double length;
} StepRun;

static inline void run_wake(StepRun* x, int r) {
    if (r < 0 || x->stage[r].queued) return;
    x->stage[r].queued = true;
    x->queue[x->queued++] = r;
}

// Computing from `start` to `end` beside sums; those that it completes set out. Returns when it ends.
static inline double run_beside_sums(StepRun* x, int r, Action a, double start, double end) {
    const StepPrices* p = x->prices;
    StageRun* g = &x->stage[r];
    const bool splits = p->segment && a.reduce && !p->whole_sum[0];
    if (!splits && g->link_free <= start) return end;
    const int here = schedule_virtual_stage(&x->tables[r], a.chunk);
    const Segment whole = {{1, 1}, 0, 0, 0, false};
    const Segment* list = splits ? p->segment + p->chunk[here].first : &whole;
    const int n = splits ? p->chunk[here].segments : 1, half = a.kind == BACKWARD_WEIGHT;
    if (n == 0) return end; // a chunk without blocks
    // Ranks that share cores add up with what they have of these. The last sums come when all stages have some left.
    const double slow = x->speed ? x->speed[p->plan.p] : 1;
    double at = start, rest = 1;
    for (int i = 0; i < n; i++) { // what no segment has (a boundary's copies) belongs to the last one
        const double share = i == n - 1 ? rest : list[i].share[half], seconds = share * (end - start);
        rest -= share;
        if (p->plan.reduce_every && list[i].elements > 0 && g->buffer[0] > at) { // both buffers are on their way
            g->spent[STEP_DATA] += g->buffer[0] - at;
            at = g->buffer[0];
        }
        const double lost = p->overlap_cost * fmax(0, fmin(g->link_free, at + seconds) - at);
        g->spent[STEP_DATA] += lost;
        at += seconds + lost;
        if (list[i].elements <= 0) continue;
        g->spent[STEP_TENSOR] += list[i].partial;
        at += list[i].partial;
        g->link_free = fmax(g->link_free, at) + list[i].sum / slow;
        g->buffer[0] = g->buffer[1], g->buffer[1] = g->link_free;
        if (list[i].tied)
            g->tied_summed = g->link_free;
        else
            g->summed[a.chunk] = g->link_free;
    }
    return at;
}

// Where waiting from `now` to `start` comes from.
static inline void run_count_wait(StepRun* x, int r, Action a, double wait) {
    const Schedule* s = &x->tables[r];
    double message = 0;
    if (wait <= 0) return;
    if (action_computes(a.kind) && action_receive(s, a) != ACTION_KINDS) {
        const ActionKind send = a.kind == FORWARD ? SEND_FORWARD : SEND_BACKWARD;
        const int from = schedule_virtual_stage(s, a.chunk) + (a.kind == FORWARD ? -1 : 1);
        message = fmin(wait, *cost_of(x->sim.costs, send, from));
    }
    x->stage[r].spent[STEP_PIPELINE] += message;
    x->stage[r].spent[STEP_BUBBLE] += wait - message;
}

// What gathers parameters was counted as part of the update.
static inline void run_count_gather(StepRun* x, int r, Action a) {
    const StepPrices* p = x->prices;
    if (!p->gather || (a.kind != UPDATE && a.kind != UPDATE_TIED)) return;
    const int at = a.kind == UPDATE ? schedule_virtual_stage(&x->tables[r], a.chunk) : p->costs.stages + r;
    x->stage[r].spent[STEP_OPTIMIZER] -= p->gather[at];
    x->stage[r].spent[STEP_DATA] += p->gather[at];
}

// When what takes no computing, from `start` on, ends; and what its time is spent on.
static inline double run_ends(StepRun* x, int r, Action a, double start) {
    StageRun* g = &x->stage[r];
    const Schedule* s = &x->tables[r];
    const int here = schedule_virtual_stage(s, (int)max_i64(a.chunk, 0));
    const double cost = *cost_of(x->sim.costs, a.kind, here);
    if (action_transfers(a.kind)) {
        const bool send = a.kind == SEND_FORWARD || a.kind == SEND_BACKWARD;
        const double end = action_ends(&x->sim, r, a, start) + (send && x->prices->standing ? cost : 0);
        run_wake(x, schedule_peer(s, a.kind, a.chunk));
        g->spent[STEP_PIPELINE] += end - start;
        return end;
    }
    g->spent[a.kind == TIE ? STEP_DATA : STEP_OPTIMIZER] += cost;
    run_count_gather(x, r, a);
    return start + cost;
}

// Before REDUCE and TIE: the sums have to be done.
static inline void run_wait_sums(StepRun* x, int r, Action a) {
    StageRun* g = &x->stage[r];
    double* now = &x->sim.progress[r].now;
    if ((a.kind != REDUCE && a.kind != TIE) || g->waited > g->next) return;
    g->waited = g->next + 1;
    double done = a.kind == REDUCE ? g->summed[a.chunk] : g->tied_summed;
    if (a.kind == REDUCE && x->prices->whole_sum)
        done = fmax(done, *now + x->prices->whole_sum[schedule_virtual_stage(&x->tables[r], a.chunk)]);
    if (done > *now) g->spent[STEP_DATA] += done - *now, *now = done;
}

static inline void run_done(StepRun* x, int r, Action a, double start, double end) {
    StageRun* g = &x->stage[r];
    if (x->timeline) {
        x->timeline->start[r][g->next] = start, x->timeline->end[r][g->next] = end;
        x->timeline->done[r] = g->next + 1;
    }
    action_done(&x->sim.progress[r], a, end);
    x->length = fmax(x->length, end);
    g->next++;
    for (int k = 0; (a.kind == TIE || a.kind == NORM) && k < x->prices->plan.p; k++) run_wake(x, k);
}

// When the next action of stage r starts; INFINITY: not before another stage has moved.
static inline double run_start(StepRun* x, int r) {
    const Action a = x->tables[r].actions[x->stage[r].next];
    run_wait_sums(x, r, a);
    return action_ready(&x->sim, r, a);
}

// Goes on until stage r has to wait.
static inline void run_stage(StepRun* x, int r) {
    StageRun* g = &x->stage[r];
    const Schedule* s = &x->tables[r];
    while (g->next < s->n) {
        const Action a = s->actions[g->next];
        const double start = run_start(x, r);
        if (start == INFINITY) return;
        run_count_wait(x, r, a, start - x->sim.progress[r].now);
        double end;
        if (action_computes(a.kind)) {
            const double cost = *cost_of(x->sim.costs, a.kind, schedule_virtual_stage(s, a.chunk));
            g->spent[STEP_PRODUCT] += cost;
            end = run_beside_sums(x, r, a, start, start + cost);
        } else {
            end = run_ends(x, r, a, start);
        }
        run_done(x, r, a, start, end);
    }
}

// Shared cores: stages run side by side in time, each at speed[number of those that compute].
static inline bool action_takes_core(ActionKind kind) {
    return action_computes(kind) || kind == REDUCE || kind == UPDATE || kind == UPDATE_TIED;
}

// Stage r up to the next action that takes a core; *wake: when it can start, if that is later.
static inline void run_stage_shared(StepRun* x, int r, double now, double* wake) {
    StageRun* g = &x->stage[r];
    const Schedule* s = &x->tables[r];
    while (g->next < s->n && !g->running) {
        const Action a = s->actions[g->next];
        const double start = run_start(x, r);
        if (start == INFINITY) return;
        if (start > now) {
            *wake = fmin(*wake, start);
            return;
        }
        run_count_wait(x, r, a, start - x->sim.progress[r].now);
        if (action_takes_core(a.kind)) {
            g->running = true, g->started = start;
            g->left = *cost_of(x->sim.costs, a.kind, schedule_virtual_stage(s, (int)max_i64(a.chunk, 0)));
            return;
        }
        run_done(x, r, a, start, run_ends(x, r, a, start));
    }
}

static inline void run_finish_shared(StepRun* x, int r, double now) {
    StageRun* g = &x->stage[r];
    const Action a = x->tables[r].actions[g->next];
    double end = now;
    g->running = false;
    g->spent[action_computes(a.kind) ? STEP_PRODUCT : STEP_OPTIMIZER] += now - g->started;
    if (action_computes(a.kind)) end = run_beside_sums(x, r, a, g->started, now);
    run_count_gather(x, r, a);
    run_done(x, r, a, g->started, end);
}

static inline void run_shared(StepRun* x) {
    const int p = x->prices->plan.p;
    double now = 0;
    for (;;) {
        double wake = INFINITY, next = INFINITY;
        int busy = 0;
        for (bool moved = true; moved;) { // what one does may let another one go on at the same moment
            x->queued = 0, moved = false;
            for (int r = 0; r < p; r++) x->stage[r].queued = false;
            for (int r = 0; r < p; r++) {
                const int before = x->stage[r].next;
                run_stage_shared(x, r, now, &wake);
                moved = moved || x->stage[r].next > before;
            }
        }
        for (int r = 0; r < p; r++) busy += x->stage[r].running;
        const double speed = busy ? x->speed[busy] : 1;
        for (int r = 0; r < p; r++) {
            if (x->stage[r].running) next = fmin(next, now + x->stage[r].left / speed);
        }
        next = fmin(next, wake);
        if (next == INFINITY) return;
        for (int r = 0; r < p; r++) {
            StageRun* g = &x->stage[r];
            if (!g->running) continue;
            const bool ends = now + g->left / speed <= next;
            g->left -= (next - now) * speed;
            if (ends) run_finish_shared(x, r, next);
        }
        now = next;
    }
}

static inline void run_begin(StepRun* x, const Schedule* tables, const StepPrices* prices, Timeline* timeline) {
    const int p = prices->plan.p;
    memset(x, 0, sizeof *x);
    x->tables = tables, x->prices = prices, x->timeline = timeline;
    x->stage = (StageRun*)checked_calloc((size_t)p, sizeof(StageRun), "a step");
    x->queue = (int*)checked_calloc((size_t)p, sizeof(int), "a step");
    x->sim.stages = tables, x->sim.costs = &prices->costs;
    x->sim.progress = (StageProgress*)checked_calloc((size_t)p, sizeof(StageProgress), "a step");
    for (int r = 0; r < p; r++) {
        StageRun* g = &x->stage[r];
        stage_progress_begin(&x->sim.progress[r], &tables[r]);
        g->summed = (double*)checked_calloc((size_t)prices->plan.v, sizeof(double), "a step");
        x->sim.progress[r].now = g->spent[STEP_OPTIMIZER] = prices->zero ? prices->zero[r] : 0;
    }
}

static inline void run_free(StepRun* x) {
    for (int r = 0; r < x->prices->plan.p; r++) {
        StageProgress* g = &x->sim.progress[r];
        free(g->started), free(g->output), free(g->sending), free(x->stage[r].summed);
    }
    free(x->sim.progress), free(x->stage), free(x->queue);
}

// Runs the tables of all stages to their ends; x->length and x->stage[].spent are the results.
static inline void run_step(StepRun* x) {
    const int p = x->prices->plan.p;
    if (x->speed) {
        run_shared(x);
    } else {
        for (int r = p - 1; r >= 0; r--) run_wake(x, r);
        while (x->queued > 0) {
            const int r = x->queue[--x->queued];
            x->stage[r].queued = false;
            run_stage(x, r);
        }
    }
    for (int r = 0; r < p; r++) {
        if (x->stage[r].next < x->tables[r].n) die("the schedule of stage %d waits for ever: a deadlock", r);
        x->stage[r].spent[STEP_BUBBLE] += x->length - x->sim.progress[r].now;
        if (x->timeline) x->timeline->length = x->length;
    }
}

// ----------------------------------------------------------------------------------------------------------------
// The step

typedef struct {
    double seconds, parts[STEP_PARTS]; // means over the stages; they add up to seconds
    double bubble;                     // time that stages wait for messages and each other, relative to computing
    double flops;                      // a device, by equation 3; a machine without GPUs is one device
    double mfu;                        // of the peak, by model.h's count; 0 where that is not known
    double tokens_per_second;
    // On request (step_cost_with): what a picture is drawn from.
    Schedule* tables;
    Timeline timeline;
    int p;
} StepCost;

static inline void step_cost_free(StepCost* c) {
    if (c->tables) schedules_free(c->tables, c->p), timeline_free(&c->timeline);
    memset(c, 0, sizeof *c);
}

// Seconds of a micro-batch in a chunk by kind, as the table has it (in halves or whole).
static inline void chunk_parts(const StepPrices* x, int i, double parts[WORK_PARTS]) {
    const ChunkPrice* c = &x->chunk[i];
    const bool split = schedule_splits_backward(x->plan.kind) && x->plan.p > 0;
    parts_add(parts, c->forward.whole, 1);
    if (!split) parts_add(parts, c->backward.whole, 1);
    for (int h = 0; h < 2 && split; h++) parts_add(parts, c->backward.half[h], 1);
}

// Means over the stages. Computing is divided as its prices are.
static inline void step_parts(StepCost* cost, const StepRun* run) {
    const StepPrices* x = run->prices;
    const int p = x->plan.p;
    for (int r = 0; r < p; r++) {
        const double* spent = run->stage[r].spent;
        double parts[WORK_PARTS] = {0};
        for (int c = 0; c < x->plan.v; c++)
            chunk_parts(x, virtual_stage(p, schedule_is_folded(x->plan.kind), r, c), parts);
        const double computing = parts_sum(parts), scale = computing > 0 ? spent[STEP_PRODUCT] / computing : 0;
        for (int k = 0; k < WORK_PARTS; k++) cost->parts[k] += parts[k] * scale / p;
        cost->parts[STEP_TENSOR] += spent[STEP_TENSOR] / p;
        for (int k = WORK_PARTS; k < STEP_PARTS; k++) cost->parts[k] += spent[k] / p;
    }
}

static inline void step_rates(StepCost* cost, const StepSetup* s) {
    const double ranks = mesh_size(&s->mesh), tokens = (double)s->batch * s->T;
    const double devices = s->cluster->cores ? 1 : ranks; // a machine without GPUs is one
    const double computing = parts_sum(cost->parts);
    cost->bubble = computing > 0 ? (cost->parts[STEP_BUBBLE] + cost->parts[STEP_PIPELINE]) / computing : 0;
    cost->flops = flops_hardware(&s->model, s->T, (double)s->batch) / cost->seconds / devices;
    const double peak = device_peak(&s->cluster->device, s->software->value_bytes);
    cost->mfu = peak <= 0 ? 0 : tokens * model_flops_per_token(&s->model, s->T) / cost->seconds / devices / peak;
    cost->tokens_per_second = tokens / cost->seconds;
}

// keep: the tables and the timeline, too. The setup has passed step_check, or at least pipeline_check.
static inline StepCost step_cost_with(const StepSetup* s, bool keep) {
    StepCost cost;
    memset(&cost, 0, sizeof cost);
    StepPrices prices = step_prices(s);
    StepRun run;
    cost.p = prices.plan.p;
    Schedule* tables = schedules_build(&prices.plan);
    if (keep) cost.timeline = timeline_new(tables, cost.p);
    run_begin(&run, tables, &prices, keep ? &cost.timeline : NULL);
    run.speed = s->speed;
    run_step(&run);
    cost.seconds = run.length;
    step_parts(&cost, &run);
    step_rates(&cost, s);
    run_free(&run);
    if (keep)
        cost.tables = tables;
    else
        schedules_free(tables, cost.p);
    step_prices_free(&prices);
    return cost;
}

static inline StepCost step_cost(const StepSetup* s) { return step_cost_with(s, false); }

// ----------------------------------------------------------------------------------------------------------------
// A lower bound, without tables

// Of one stage: its first work comes when its first chunk's input has passed all stages before; then all its work has
// to be done; then its last gradient has to pass the same stages back, or (in halves, weight gradients may come last)
// not.
static inline double stage_bound(const StepPrices* x, int r) {
    const Pipeline* plan = &x->plan;
    const bool folded = schedule_is_folded(plan->kind), split = schedule_splits_backward(plan->kind);
    double fill = x->zero[0], drain = 0, work = 0, weights = 0, squares = 0, sums = 0;
    for (int i = 0; i < r; i++) {
        fill += *cost_of(&x->costs, FORWARD, i) + *cost_of(&x->costs, SEND_FORWARD, i);
        drain += *cost_of(&x->costs, SEND_BACKWARD, i + 1);
        drain += *cost_of(&x->costs, split ? BACKWARD_INPUT : BACKWARD, i);
    }
    for (int c = 0; c < plan->v; c++) {
        const int i = virtual_stage(plan->p, folded, r, c);
        const double both = *cost_of(&x->costs, BACKWARD_INPUT, i) + *cost_of(&x->costs, BACKWARD_WEIGHT, i);
        const double sends = *cost_of(&x->costs, SEND_FORWARD, i) + *cost_of(&x->costs, SEND_BACKWARD, i);
        work += plan->m * (*cost_of(&x->costs, FORWARD, i) + (split ? both : *cost_of(&x->costs, BACKWARD, i)));
        if (x->standing) work += (plan->m - 1) * sends; // the last one of a kind may be in fill or drain
        weights += split ? plan->m * *cost_of(&x->costs, BACKWARD_WEIGHT, i) : 0;
        squares += *cost_of(&x->costs, REDUCE, i), sums += x->whole_sum[i];
    }
    // The last thing computed is the end of the first chunk's backward pass, whose bucket nothing hides before NORM.
    const ChunkPrice* c = &x->chunk[r];
    if (plan->clip && !x->whole_sum[r] && c->segments > 0) sums = x->segment[c->first + c->segments - 1].sum;
    const double alone = fmax(fill, x->zero[r]) + work;
    return fmax(alone + squares + sums, alone - weights + drain);
}

// Never above the seconds of step_cost (test_planner_step.c), for a search that leaves out what cannot be the best. (Where
// cores are shared, stages are slower, never faster: it stays below.)
static inline double step_bound(const StepSetup* s) {
    StepPrices x = step_prices(s);
    double longest = 0, update = 0;
    for (int r = 0; r < x.plan.p; r++) {
        double own = 0;
        longest = fmax(longest, stage_bound(&x, r));
        for (int c = 0; c < x.plan.v; c++)
            own += *cost_of(&x.costs, UPDATE, virtual_stage(x.plan.p, schedule_is_folded(x.plan.kind), r, c));
        update = fmax(update, own);
    }
    longest += *cost_of(&x.costs, NORM, 0) + (x.plan.clip ? update : 0); // without clipping, inside the cool-down
    for (int i = 0; i < ACTION_KINDS * x.costs.stages; i++) { // fmax has left out what is not a number
        if (!isfinite(x.costs.seconds[i])) longest = INFINITY;
    }
    step_prices_free(&x);
    return longest;
}

// The bytes that a rank of a stage sends in a step, exactly (parallel.h). False, with the reason, where the mesh is
// wrong.
static inline bool step_traffic(const StepSetup* s, int stage, Traffic* traffic, Error* error) {
    Mesh mesh = s->mesh;
    Layout layout;
    mesh.pipeline = stage, mesh.tensor = mesh.data = 0;
    memset(traffic, 0, sizeof *traffic);
    if (!layout_build(&layout, &s->model, mesh, s->T, error)) return false;
    *traffic =
        traffic_of_step(&layout, &s->model, s->B, s->T, (int)step_microbatches(s), (size_t)s->software->value_bytes);
    layout_free(&layout);
    return true;
}

#endif
