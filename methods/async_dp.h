/*
methods/async_dp.h: asynchronous data parallelism, in hooks of the step: the values that each site keeps, its messages
to other sites, and how it merges theirs. methods/async_schedule.h has the schedule of the messages. stage->async is
NULL in synchronous training.

    async_dp_plan, async_dp_allocate, async_dp_free     memory, as stage_plan, stage_allocate and stage_free
    async_dp_init                                       the initial weights are the global parameters
    async_dp_step_begin, async_dp_step_end              around a step
    async_dp_finish_grad_sync                           a chunk's gradients are summed over the site
    async_dp_set_compensation                           the norm is known
    async_dp_before_update, async_dp_after_update       around the optimizer's step on a chunk
    async_dp_load_global, async_dp_restore_local        around validation and samples
    async_dp_drain, async_dp_gather_values              before a checkpoint

Theory: S sites, each with

    local     the local parameters: the site's weights or master weights, float32
    global    the global parameters: where all sites would be if all messages had arrived. The same bits everywhere but
              in eager mode, below
    sum       the sum in flight between sites: in, this site's change; out, the sum over all S sites

delayed: the update of a step uses the gradients of the step before, which are summed between sites meanwhile. With
--dc-lambda they are compensated for the delay as below; D is the last update.

dc-s3gd, in each step, with the gradient g of its own sequences at its own weights:

    global += sum / S                    wait for the sum of the step before: the mean of all changes
    D = global - local                   how far the others moved meanwhile: the mean change minus the local one
    g += lambda g g D                    delay compensation: lambda = lambda0 |g| / |g g D|
    local = update(global, g)            the optimizer's step, from the global parameters
    sum = local - global                 is sent

so from the first merge on the weights of two sites never differ by more than one update each, the sum over the sites
of D is 0, and a single site has D = 0: the plain optimizer. Since global accumulates sums, which are the same bits
everywhere, sites do not drift apart by rounding.

diloco, for a fragment, H steps after its last outer step:

    sum = global - local                 is sent: the outer gradient
    v = b v + sum / S                    and merged, at once or some steps later: Nesterov's momentum
    global -= eta (sum / S + b v)
    local = mix local + (1 - mix) global

Delayed by a whole period it is merged when the next one is sent, and local becomes global. eager: global and v differ a
little between sites: see eager_update in kernels/async_dp.h. The global parameters are their mean, computed where it is
needed.

In a site all ranks of a data group hold the same numbers. Each exchanges one site shard with other sites, and gathers
the others' sums. With fewer bits, or only the largest numbers, every site sends its compressed shard to all others, and
each adds them in float32. Numbers share a scale or a chunk only within their slice: norms and biases, of which tensor
ranks hold copies, are stored between slices of matrices, which differ by rank, and would be rounded differently on
each.
*/
#pragma once

#include "../parallel/optimizer.h"
#include "async_schedule.h"

typedef struct AsyncDp {
    AsyncConfig config;
    // dc-s3gd and diloco
    int* fragment;                             // (buckets)
    float *local_params, *global_params, *sum; // (layout.elements) each
    float* velocity;                           // diloco
    float* old;                                // eager: the last sum sent
    float* residue;                            // compressed: what was not sent yet
    uint8_t *packed, *arrived;                 // one site shard of each bucket, compressed; the shards of all sites
    int64_t* packed_at;                        // (buckets + 1): where a bucket's shard begins in packed, bytes
    CommRequest* request;                      // (buckets)
    bool* in_flight;                           // (buckets): sent, not yet waited for
    // delayed: the buffers of grads of the step before
    GradBucket* last_bucket; // (buckets)
    float* last_all;
    bool has_last; // not in the first step of a run
    float* before; // like moment1: weights before the last update, for the compensation
    // the compensation
    double* corrections; // (tensors): squares of g g D in this step
    float* lambda;       // (tensors), host
} AsyncDp;

static inline bool async_dp_is_local(const Stage* stage) { return async_schedule_are_local(&stage->async->config); }
static inline bool async_dp_compresses(const Stage* stage) { return async_schedule_compresses(&stage->async->config); }

// ---- Memory -----------------------------------------------------------------------------------------------------

static inline void async_dp_keep(Stage* stage, const char* name, float* at, bool sharded) {
    const MethodValues values = {name, at, sharded};
    stage->kept[stage->kept_values++] = values;
}

// Lists the values that checkpoints hold beside weights and moments.
static inline void async_dp_list_values(Stage* stage) {
    const AsyncDp* async = stage->async;
    const AsyncConfig* config = &async->config;
    const GradientBuckets* grads = &stage->grads;
    const bool zero = stage->layout.mesh.zero > 0;
    stage->kept_values = 0;
    if (config->mode == DP_DELAYED) {
        async_dp_keep(stage, "gradient", zero ? grads->shards : grads->all, zero);
        if (config->compensation > 0) async_dp_keep(stage, "before", async->before, zero);
        return;
    }
    stage->checkpoint_weights = config->eager ? grads->all : async->global_params;
    async_dp_keep(stage, "weight", async->local_params, false);
    async_dp_keep(stage, "exp_avg", stage->moment1, false);
    if (stage->type.moments > 1) async_dp_keep(stage, "exp_avg_sq", stage->moment2, false);
    if (config->mode == DP_DILOCO) async_dp_keep(stage, "velocity", async->velocity, false);
    if (config->mode == DP_DILOCO && config->delay > 0) async_dp_keep(stage, "sum", async->sum, false);
    if (config->eager) async_dp_keep(stage, "old", async->old, false);
    if (config->eager) async_dp_keep(stage, "base", async->global_params, false);
    if (async_dp_compresses(stage)) async_dp_keep(stage, "residue", async->residue, false);
}

static inline void async_dp_take_delayed(Stage* stage) {
    AsyncDp* async = stage->async;
    const Mesh* mesh = &stage->layout.mesh;
    const int64_t n = stage->layout.elements;
    Arena* arena = &stage->memory_grads;
    async->last_all = arena_floats(arena, n);
    site_buckets_take(async->last_bucket, async->last_all, &stage->layout, arena);
    if (mesh->sites == 1) site_buckets_take(stage->grads.bucket, stage->grads.all, &stage->layout, arena);
    if (async->config.compensation > 0)
        async->before = arena_floats(&stage->memory_optimizer, mesh->zero ? n / mesh->d : n);
}

static inline void async_dp_take_local(Stage* stage) {
    AsyncDp* async = stage->async;
    Arena* arena = &stage->memory_optimizer;
    const int64_t n = stage->layout.elements;
    async->local_params = stage->type.masters ? stage->master : (float*)stage->params;
    async->global_params = arena_floats(arena, n);
    async->sum = arena_floats(arena, n);
    if (async->config.mode == DP_DILOCO) async->velocity = arena_floats(arena, n);
    if (async->config.eager) async->old = arena_floats(arena, n);
    if (!async_dp_compresses(stage)) return;
    const int64_t bytes = async->packed_at[stage->layout.buckets];
    async->residue = arena_floats(arena, n);
    async->packed = (uint8_t*)arena_take(arena, bytes);
    async->arrived = (uint8_t*)arena_take(arena, async->config.sites * bytes);
}

// Runs twice, after stage_plan and after stage_allocate, as everything that takes from an arena.
static inline void async_dp_allocate(Stage* stage) {
    AsyncDp* async = stage->async;
    if (async_dp_is_local(stage))
        async_dp_take_local(stage);
    else
        async_dp_take_delayed(stage);
    if (async->config.compensation > 0)
        async->corrections =
            (double*)arena_take(&stage->memory_optimizer, stage->layout.tensors * (int64_t)sizeof(double));
    async_dp_list_values(stage);
}

// Makes a planned stage asynchronous, if the config is.
static inline void async_dp_plan(Stage* stage, const AsyncConfig* config) {
    const Layout* layout = &stage->layout;
    const size_t buckets = (size_t)layout->buckets;
    if (!async_schedule_are_late(config)) return;
    AsyncDp* async = (AsyncDp*)checked_calloc(1, sizeof *async, "asynchronous sites");
    stage->async = async;
    async->config = *config;
    async->fragment = (int*)checked_calloc(buckets, sizeof(int), "asynchronous sites");
    async->request = (CommRequest*)checked_calloc(buckets, sizeof(CommRequest), "asynchronous sites");
    async->last_bucket = (GradBucket*)checked_calloc(buckets, sizeof(GradBucket), "asynchronous sites");
    async->in_flight = (bool*)checked_calloc(buckets, sizeof(bool), "asynchronous sites");
    async->packed_at = (int64_t*)checked_calloc(buckets + 1, sizeof(int64_t), "asynchronous sites");
    async->lambda = (float*)checked_calloc((size_t)layout->tensors, sizeof(float), "asynchronous sites");
    for (int b = 0; b < layout->buckets; b++) {
        const int64_t bytes = async_schedule_compresses(config) ? (int64_t)compressed_bytes(config, layout, b) : 0;
        async->fragment[b] =
            async_schedule_fragment(config, &layout->slices[layout->bucket[b].first].tensor, stage->model.L);
        async->packed_at[b + 1] = async->packed_at[b] + bytes;
    }
    if (config->mode == DP_DELAYED) stage->grads.hierarchical = stage->grads.defers = true;
    async_dp_allocate(stage);
}

// The same for the plan of another rank's stage.
static inline void async_dp_plan_as(Stage* stage, const Stage* mine) {
    if (mine->async) async_dp_plan(stage, &mine->async->config);
}

static inline void async_dp_free(Stage* stage) {
    AsyncDp* async = stage->async;
    if (!async) return;
    free(async->fragment);
    free(async->request);
    free(async->last_bucket);
    free(async->in_flight);
    free(async->packed_at);
    free(async->lambda);
    free(async);
    stage->async = NULL;
}

// ---- Sums between sites, bucket by bucket -----------------------------------------------------------------------

// Compresses this rank's site shard of `sum` of a bucket, slice by slice.
static inline void async_dp_pack(const Stage* stage, int b) {
    const AsyncDp* async = stage->async;
    const Layout* layout = &stage->layout;
    const int bits = async->config.bits, top_k = async->config.top_k;
    const float decay = (float)async->config.error_decay;
    const int64_t end = bucket_site_shard_begin(layout, b) + bucket_site_shard_size(layout, b);
    uint8_t* packed = async->packed + async->packed_at[b];
    for (int64_t at = bucket_site_shard_begin(layout, b), next; at < end; at = next) {
        next = bucket_next_slice(layout, b, at, end);
        const int64_t n = async_schedule_numbers(layout, b, at, next);
        if (top_k)
            sparsify(packed, async->residue + at, async->sum + at, n, bits, top_k, decay);
        else
            quantize(packed, async->residue + at, async->sum + at, n, bits, decay);
        packed += packed_bytes(n, bits, top_k);
    }
}

// Adds up the compressed shards of all sites, in the order of the sites.
static inline void async_dp_unpack(const Stage* stage, int b) {
    const AsyncDp* async = stage->async;
    const Layout* layout = &stage->layout;
    const int bits = async->config.bits, top_k = async->config.top_k;
    const int64_t first = bucket_site_shard_begin(layout, b), end = first + bucket_site_shard_size(layout, b);
    const uint8_t* arrived = async->arrived + async->config.sites * async->packed_at[b];
    device_zero(async->sum + first, (size_t)(end - first) * sizeof(float));
    for (int i = 0; i < async->config.sites; i++) {
        for (int64_t at = first, next; at < end; at = next) {
            next = bucket_next_slice(layout, b, at, end);
            const int64_t n = async_schedule_numbers(layout, b, at, next);
            if (top_k)
                sparse_add(async->sum + at, arrived, n, bits, top_k);
            else
                dequantize_add(async->sum + at, arrived, n, bits);
            arrived += packed_bytes(n, bits, top_k);
        }
    }
}

// Starts the sum over the sites of `sum` of a bucket.
static inline void async_dp_send(const Stage* stage, int b) {
    AsyncDp* async = stage->async;
    const Layout* layout = &stage->layout;
    const int64_t n = bucket_site_shard_size(layout, b), at = bucket_site_shard_begin(layout, b);
    Comm* inter_site = &stage->groups->inter_site;
    async->in_flight[b] = true;
    if (!async_dp_compresses(stage)) {
        async->request[b] = comm_all_reduce_start(inter_site, async->sum + at, n, COMM_FLOAT, COMM_SUM);
        return;
    }
    const int64_t bytes = async->packed_at[b + 1] - async->packed_at[b];
    uint8_t* packed = async->packed + async->packed_at[b];
    uint8_t* arrived = async->arrived + async->config.sites * async->packed_at[b];
    async_dp_pack(stage, b);
    async->request[b] = comm_all_gather_start(inter_site, arrived, packed, bytes, COMM_BYTE);
}

// Sends a minus b of a bucket: dc-s3gd the change, local minus global parameters; diloco the outer gradient, global
// minus local ones.
static inline void async_dp_send_difference(const Stage* stage, int bucket, const float* a, const float* b) {
    const int64_t at = stage->layout.bucket[bucket].offset, n = stage->layout.bucket[bucket].elements;
    difference(stage->async->sum + at, a + at, b + at, n);
    async_dp_send(stage, bucket);
}

// Gathers the site shards of a bucket's values on all members of a site.
static inline void async_dp_gather_parts(const Stage* stage, float* values, int b) {
    const Layout* layout = &stage->layout;
    if (mesh_site_size(&layout->mesh) > 1)
        comm_all_gather(&stage->groups->data, values + layout->bucket[b].offset,
                        values + bucket_site_shard_begin(layout, b), bucket_site_shard_size(layout, b), COMM_FLOAT);
}

// Waits for the sum of a bucket: afterwards all ranks have it.
static inline void async_dp_arrive(const Stage* stage, int b) {
    AsyncDp* async = stage->async;
    if (!async->in_flight[b]) return;
    async->in_flight[b] = false;
    comm_wait(&async->request[b]);
    if (async_dp_compresses(stage)) async_dp_unpack(stage, b);
    async_dp_gather_parts(stage, async->sum, b);
}

// ---- dc-s3gd ----------------------------------------------------------------------------------------------------

// Adds the mean of the changes that were sent in the step before to the global parameters of a bucket.
static inline void async_dp_advance(const Stage* stage, int b) {
    const AsyncDp* async = stage->async;
    const int64_t at = stage->layout.bucket[b].offset, n = stage->layout.bucket[b].elements;
    if (!async->in_flight[b]) return;
    async_dp_arrive(stage, b);
    if (async->config.sites == 1) // global + (local - global) is not always local, and the rest would be compensated
        device_copy(async->global_params + at, async->local_params + at, (size_t)n * sizeof(float));
    else
        add_scaled(async->global_params + at, async->sum + at, 1.0f / (float)async->config.sites, n);
}

// Without a delay: waits for the changes of this step's update at once; all sites continue from the same parameters.
// changed (buckets) is set where local parameters are new: everywhere.
static inline void async_dp_meet(const Stage* stage, bool* changed) {
    const AsyncDp* async = stage->async;
    for (int b = 0; b < stage->layout.buckets; b++) {
        const Bucket* bucket = &stage->layout.bucket[b];
        async_dp_advance(stage, b);
        mix(async->local_params + bucket->offset, async->global_params + bucket->offset, 0, bucket->elements);
        changed[b] = true;
    }
}

// ---- diloco -----------------------------------------------------------------------------------------------------

// Merges the sum of a bucket.
static inline void async_dp_merge(const Stage* stage, int b) {
    const AsyncDp* async = stage->async;
    const AsyncConfig* config = &async->config;
    const int64_t at = stage->layout.bucket[b].offset, n = stage->layout.bucket[b].elements;
    async_dp_arrive(stage, b);
    outer_update(async->global_params + at, async->velocity + at, async->sum + at, 1.0f / (float)config->sites,
                 (float)config->outer_lr, (float)config->outer_momentum, n);
    mix(async->local_params + at, async->global_params + at, (float)config->mix, n);
}

// With fewer bits the others add up the rounded sum, so this site keeps it in `old`.
static inline void async_dp_keep_sent(const Stage* stage, int b) {
    const AsyncDp* async = stage->async;
    const int64_t n = bucket_site_shard_size(&stage->layout, b), at = bucket_site_shard_begin(&stage->layout, b);
    device_copy(async->old + at, async->sum + at, (size_t)n * sizeof(float));
    async_dp_gather_parts(stage, async->old, b);
}

// Merges and sends at once, where the merge is delayed by a period: the last period's sum, or in eager mode the others'
// part of it and the local part of this one. Meanwhile the local parameters, which are about to become the global
// ones, hold the new difference.
static inline void async_dp_merge_last_round(const Stage* stage, int b) {
    const AsyncDp* async = stage->async;
    const AsyncConfig* config = &async->config;
    const int64_t at = stage->layout.bucket[b].offset, n = stage->layout.bucket[b].elements;
    const size_t bytes = (size_t)n * sizeof(float);
    const float factor = 1.0f / (float)config->sites;
    const float lr = (float)config->outer_lr, momentum = (float)config->outer_momentum;
    float *fresh = async->local_params + at, *global = async->global_params + at;
    async_dp_arrive(stage, b);
    difference(fresh, global, fresh, n);
    if (config->eager)
        eager_update(global, async->velocity + at, async->sum + at, async->old + at, fresh, factor, lr, momentum, n);
    else
        outer_update(global, async->velocity + at, async->sum + at, factor, lr, momentum, n);
    device_copy(async->sum + at, fresh, bytes);
    if (config->eager) device_copy(async->old + at, fresh, bytes);
    async_dp_send(stage, b);
    if (config->eager && async_dp_compresses(stage)) async_dp_keep_sent(stage, b);
    device_copy(fresh, global, bytes);
}

// Merges and sends after the update of a step (from 1). changed (buckets) is set where local parameters are new.
static inline void async_dp_round(const Stage* stage, int64_t step, bool* changed) {
    const AsyncDp* async = stage->async;
    const AsyncConfig* config = &async->config;
    const bool round_late = config->delay == config->period;
    for (int b = 0; b < stage->layout.buckets; b++) {
        const bool merges = async_schedule_merges(config, async->fragment[b], step);
        const bool sends = async_schedule_sends(config, async->fragment[b], step);
        changed[b] = merges || (round_late && sends);
        if (round_late && sends) async_dp_merge_last_round(stage, b);
        if (round_late) continue;
        if (merges && config->delay > 0) async_dp_merge(stage, b);
        if (sends) async_dp_send_difference(stage, b, async->global_params, async->local_params);
    }
    if (config->delay > 0) return;
    for (int b = 0; b < stage->layout.buckets; b++) {
        if (changed[b]) async_dp_merge(stage, b);
    }
}

// ---- delayed ----------------------------------------------------------------------------------------------------

// Swaps the gradient buffers of this step and of the step before.
static inline void async_dp_swap_grads(const Stage* stage, GradientBuckets* grads) {
    AsyncDp* async = stage->async;
    GradBucket* bucket = grads->bucket;
    float* all = grads->all;
    grads->bucket = async->last_bucket;
    grads->all = async->last_all;
    async->last_bucket = bucket;
    async->last_all = all;
}

// With ZeRO, the norm and the gathering of parameters need the group between sites in this step, and the update reads
// the shards that the sums write: these start at the end of the step.
static inline bool async_dp_sums_after_update(const Stage* stage) {
    return stage->async->config.mode == DP_DELAYED && stage->layout.mesh.zero > 0;
}

// ---- The delay compensation -------------------------------------------------------------------------------------

// D, the path from where a gradient was computed to where it is used: `to` minus `from`; to = NULL: no delay. dc-s3gd:
// from the local to the global parameters. delayed: from the weights before the last update to the weights after it.
typedef struct {
    const float *from, *to;
} WeightDelta;

static inline WeightDelta async_dp_weight_delta(const Stage* stage, TensorRange range) {
    const AsyncDp* async = stage->async;
    WeightDelta delta = {NULL, NULL};
    if (async->config.compensation == 0) return delta;
    if (async->config.mode == DP_DC_S3GD) {
        delta.from = async->local_params + range.from;
        delta.to = async->global_params + range.from;
    } else {
        delta.from = async->before + range.at;
        delta.to = fp32_weights(stage, range);
    }
    return delta;
}

// Squares of the corrections of a chunk's gradients with lambda = 1, for each tensor.
static inline void async_dp_correction_squares(const Stage* stage, int chunk) {
    const Layout* layout = &stage->layout;
    for (int i = 0; i < layout->n; i++) {
        const Slice* slice = &layout->slices[i];
        const TensorRange range = owned_range(stage, slice);
        if (layout->bucket[slice->bucket].chunk != chunk || !counts_slice(stage, slice) || range.n == 0) continue;
        const WeightDelta delta = async_dp_weight_delta(stage, range);
        delay_squares(stage->async->corrections + slice->index, stage->grads.update + range.at, delta.to, delta.from,
                      range.n);
    }
}

// The factor of each tensor's compensation, from the squares of its gradient, summed over all ranks, and of its
// correction, such that the norm of the correction is `compensation` times the gradient's.
static inline void async_dp_set_compensation(Stage* stage, const double* squares) {
    AsyncDp* async = stage->async;
    const int tensors = stage->layout.tensors;
    if (async->config.compensation == 0) return;
    double* corrections = (double*)checked_calloc((size_t)tensors, sizeof(double), "the delay compensation");
    device_to_host(corrections, async->corrections, (size_t)tensors * sizeof(double));
    sum_over_site(stage->groups, corrections, tensors);
    if (stage->layout.mesh.zero) sum_over(&stage->groups->inter_site, corrections, tensors);
    for (int i = 0; i < tensors; i++)
        async->lambda[i] = compensation_lambda(async->config.compensation, squares[i], corrections[i]);
    free(corrections);
}

// ---- The step ---------------------------------------------------------------------------------------------------

// At the beginning of a run: the initial weights are the global parameters, without any history.
static inline void async_dp_init(const Stage* stage) {
    const AsyncDp* async = stage->async;
    if (async_dp_is_local(stage))
        device_copy(async->global_params, async->local_params, (size_t)stage->layout.elements * sizeof(float));
    if (!async->before) return;
    for (int i = 0; i < stage->layout.n; i++) {
        const TensorRange range = owned_range(stage, &stage->layout.slices[i]);
        device_copy(async->before + range.at, fp32_weights(stage, range), (size_t)range.n * sizeof(float));
    }
}

// Instead of async_dp_init after reading a checkpoint, which has the gradients that the next step uses.
static inline void async_dp_resume(Stage* stage) { stage->async->has_last = true; }

// The number of updates at the end of a step: the first delayed gradient is used in the second one.
static inline int64_t async_dp_updates(const Stage* stage, int64_t step) {
    return step - (stage->async->config.mode == DP_DELAYED && step > 0);
}

static inline void async_dp_step_begin(Stage* stage) {
    AsyncDp* async = stage->async;
    GradientBuckets* grads = &stage->grads;
    if (async->corrections) device_zero(async->corrections, (size_t)stage->layout.tensors * sizeof(double));
    if (async->config.mode != DP_DELAYED) return;
    async_dp_swap_grads(stage, grads);
    grads->update = grads->shards ? grads->shards : async->last_all;
    if (!async->has_last) grads->update = NULL;
}

// Lets messages between sites make progress, unless a thread does.
static inline void async_dp_progress(const Stage* stage) {
    comm_progress(stage->async->request, stage->layout.buckets);
    buckets_progress(stage->async->last_bucket, stage->layout.buckets);
}

// After the sums of a chunk's gradients over the site (-1: see Bucket). delayed: starts the sums between sites, and
// finishes the sums of the step before. dc-s3gd: finishes the sums of the changes.
static inline void async_dp_finish_grad_sync(Stage* stage, int chunk) {
    const Layout* layout = &stage->layout;
    GradientBuckets* grads = &stage->grads;
    if (stage->async->config.mode == DP_DELAYED) {
        if (!async_dp_sums_after_update(stage)) start_inter_site_syncs(grads, stage->groups, layout, chunk);
        async_dp_swap_grads(stage, grads);
        finish_inter_site_syncs(grads, stage->groups, layout, chunk);
        async_dp_swap_grads(stage, grads);
    }
    if (stage->async->config.mode == DP_DC_S3GD) {
        for (int b = 0; b < layout->buckets; b++) {
            if (layout->bucket[b].chunk == chunk) async_dp_advance(stage, b);
        }
    }
    if (stage->async->config.compensation > 0 && grads->update) async_dp_correction_squares(stage, chunk);
}

// Compensates a chunk's gradients for the delay; with dc-s3gd the step then begins at the global parameters.
static inline void async_dp_before_update(const Stage* stage, int chunk) {
    const AsyncDp* async = stage->async;
    const Layout* layout = &stage->layout;
    for (int i = 0; i < layout->n; i++) {
        const Slice* slice = &layout->slices[i];
        const TensorRange range = owned_range(stage, slice);
        if (range.n == 0 || layout->bucket[slice->bucket].chunk != chunk) continue;
        const WeightDelta delta = async_dp_weight_delta(stage, range);
        const float lambda = async->lambda[slice->index];
        const size_t bytes = (size_t)range.n * sizeof(float);
        float* weights = fp32_weights(stage, range);
        if (delta.to && lambda > 0)
            delay_compensate(stage->grads.update + range.at, delta.to, delta.from, lambda, range.n);
        if (async->before) device_copy(async->before + range.at, weights, bytes);
        if (async->config.mode == DP_DC_S3GD) device_copy(weights, async->global_params + range.from, bytes);
    }
}

static inline void async_dp_after_update(const Stage* stage, int chunk) {
    const AsyncDp* async = stage->async;
    if (async->config.mode != DP_DC_S3GD) return;
    for (int b = 0; b < stage->layout.buckets; b++) {
        if (stage->layout.bucket[b].chunk == chunk)
            async_dp_send_difference(stage, b, async->local_params, async->global_params);
    }
}

// Merges and sends what is due after the updates of a step (from 1). seed: of the rounding of 16-bit parameters.
// Returns the step in which the fragments sent now will have been merged by all sites; 0: nothing is sent.
static inline int64_t async_dp_step_end(Stage* stage, int64_t seed, int64_t step) {
    const Layout* layout = &stage->layout;
    const AsyncConfig* config = &stage->async->config;
    if (async_dp_sums_after_update(stage)) {
        for (int chunk = -1; chunk < layout->mesh.v; chunk++)
            start_inter_site_syncs(&stage->grads, stage->groups, layout, chunk);
    }
    stage->async->has_last = true;
    if (async_dp_is_local(stage)) {
        bool* changed = (bool*)checked_calloc((size_t)layout->buckets, sizeof(bool), "a round");
        if (config->mode == DP_DILOCO) async_dp_round(stage, step, changed);
        if (config->mode == DP_DC_S3GD && config->delay == 0) async_dp_meet(stage, changed);
        cast_to_floatx(stage, stage->master, seed, step, changed);
        free(changed);
    }
    for (int f = 0; f < config->fragments; f++) {
        if (async_schedule_sends(config, f, step)) return step + config->delay;
    }
    return 0;
}

// ---- The global parameters --------------------------------------------------------------------------------------

// Waits for all messages between sites. Sums that are merged in a later step stay unmerged; only dc-s3gd's global
// parameters are completed now.
static inline void async_dp_drain(Stage* stage) {
    if (stage->async->config.mode == DP_DELAYED) {
        for (int chunk = -1; chunk < stage->layout.mesh.v; chunk++)
            finish_inter_site_syncs(&stage->grads, stage->groups, &stage->layout, chunk);
        return;
    }
    for (int b = 0; b < stage->layout.buckets; b++) {
        if (stage->async->config.mode == DP_DC_S3GD)
            async_dp_advance(stage, b);
        else
            async_dp_arrive(stage, b);
    }
}

// Writes the global parameters into `point` (layout.elements). All ranks call it; no message is in flight.
static inline void async_dp_common(const Stage* stage, float* point) {
    const AsyncDp* async = stage->async;
    Comm* inter_site = &stage->groups->inter_site;
    const int64_t n = stage->layout.elements;
    device_copy(point, async->global_params, (size_t)n * sizeof(float));
    if (!async->config.eager || async->config.sites == 1) return;
    const int64_t counted = inter_site->size_bytes; // not traffic of training
    comm_all_reduce(inter_site, point, n, COMM_FLOAT, COMM_SUM);
    inter_site->size_bytes = counted;
    scale_by(point, 1.0f / (float)async->config.sites, n);
}

// From here to async_dp_restore_local the parameters are the global ones, for validation and samples. The local ones
// are saved in the gradients' memory.
static inline void async_dp_load_global(Stage* stage, int64_t seed, int64_t step) {
    float* all = stage->grads.all;
    if (!async_dp_is_local(stage)) return;
    async_dp_drain(stage);
    if (!HAS_MASTER_WEIGHTS)
        device_copy(all, stage->async->local_params, (size_t)stage->layout.elements * sizeof(float));
    async_dp_common(stage, HAS_MASTER_WEIGHTS ? all : (float*)stage->params);
    cast_to_floatx(stage, all, seed, step, NULL);
}

static inline void async_dp_restore_local(Stage* stage, int64_t seed, int64_t step) {
    const float* all = stage->grads.all;
    if (!async_dp_is_local(stage)) return;
    if (!HAS_MASTER_WEIGHTS)
        device_copy(stage->async->local_params, all, (size_t)stage->layout.elements * sizeof(float));
    cast_to_floatx(stage, stage->master, seed, step, NULL);
}

// Gathers the values of a checkpoint, when no message is in flight: computes the mean of eager sites' global parameters
// and v, and gives every member of a site the rounding errors of all.
static inline void async_dp_gather_values(Stage* stage) {
    async_dp_list_values(stage);
    if (stage->async->config.eager) async_dp_common(stage, stage->grads.all);
    if (!stage->async->residue) return;
    for (int b = 0; b < stage->layout.buckets; b++) async_dp_gather_parts(stage, stage->async->residue, b);
}

// Whether the gradient that the next step uses, and that a checkpoint would hold, is finite: on all ranks.
static inline bool async_dp_last_grad_is_finite(Stage* stage) {
    const GradientBuckets* grads = &stage->grads;
    const int64_t n = stage->layout.elements;
    double squares;
    if (stage->async->config.mode != DP_DELAYED) return true;
    device_zero(stage->sums, sizeof(double));
    const TensorRange whole = whole_range(grads->shards ? n / stage->layout.mesh.d : n);
    sum_of_squares(stage->sums, grads->shards ? grads->shards : grads->all, &whole, 1);
    device_to_host(&squares, stage->sums, sizeof squares);
    comm_all_reduce(stage->groups->world, &squares, 1, COMM_DOUBLE, COMM_SUM);
    return isfinite(squares);
}

// ---- The printed plan -------------------------------------------------------------------------------------------

static inline int64_t async_dp_period(const Stage* stage) { return stage->async->config.period; }

// Bytes that a rank with a layout sends in the steps first + 1 to last.
static inline SiteTraffic async_dp_traffic(const Stage* stage, const Layout* layout, int64_t first, int64_t last) {
    return async_schedule_traffic(&stage->async->config, layout, stage->model.L, sizeof(floatX), first, last);
}

// The plan as text, which a resumed run must share.
static inline void async_dp_text(char* text, size_t size, const Stage* stage) {
    async_schedule_text(text, size, &stage->async->config);
}

static inline void async_dp_print(const Stage* stage, int64_t steps) {
    const AsyncConfig* config = &stage->async->config;
    const int replicas = mesh_site_size(&stage->layout.mesh);
    char text[512];
    async_schedule_text(text, sizeof text, config);
    append_text(text, sizeof text, "; ");
    if (!async_dp_is_local(stage))
        append_text(text, sizeof text, "%d site%s of ", config->sites, config->sites == 1 ? "" : "s");
    print_line("sites     %s%d replica%s%s", text, replicas, replicas == 1 ? "" : "s",
               async_dp_is_local(stage) ? " each" : "");
    async_schedule_draw(config, stdout);
    print_line("          loss and norm of a step are those of the first site; validation is at the common point");
    const int64_t lost = steps - async_schedule_learned(config, steps);
    if (config->mode == DP_DILOCO && lost > 0)
        print_line("          the last %lld of %lld steps come too late for the common point, which is what is saved",
                   (long long)lost, (long long)steps);
}
