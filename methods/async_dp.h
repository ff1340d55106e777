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
    async_dp_drain                                      before a checkpoint

Theory: S sites, each with

    local     the local parameters: the site's weights or master weights, float32
    global    the global parameters: where all sites would be if all messages had arrived. The same bits everywhere
    sum       the sum in flight between sites: in, this site's change; out, the sum over all S sites

dc-s3gd, in each step, with the gradient g of its own sequences at its own weights:

    global += sum / S                    wait for the sum of the step before: the mean of all changes
    D = global - local                   how far the others moved meanwhile: the mean change minus the local one
    g += lambda g g D                    delay compensation, tensor by tensor: lambda = lambda0 |g| / |g g D|
    local = update(global, g)            the optimizer's step, from the global parameters
    sum = local - global                 is sent

so from the first merge on the weights of two sites never differ by more than one update each, the sum over the sites
of D is 0, and a single site has D = 0: the plain optimizer. Since global accumulates sums, which are the same bits
everywhere, sites do not drift apart by rounding.

diloco, every H steps:

    sum = global - local                 is sent: the outer gradient
    v = b v + sum / S                    and merged: Nesterov's momentum
    global -= eta (sum / S + b v)
    local = global

In a site all ranks of a data group hold the same numbers. Each exchanges one site shard with other sites, and gathers
the others' sums.
*/
#pragma once

#include "../parallel/optimizer.h"
#include "async_schedule.h"

typedef struct AsyncDp {
    AsyncConfig config;
    float *local_params, *global_params, *sum; // (layout.elements) each
    float* velocity;                           // (layout.elements): diloco
    CommRequest* request;                      // (buckets)
    bool* in_flight;                           // (buckets): sent, not yet waited for
    double* corrections;                       // (tensors): squares of g g D in this step; with a compensation
    float* lambda;                             // (tensors), host
} AsyncDp;

// ---- Memory -----------------------------------------------------------------------------------------------------

// Takes the memory, and lists the values of a site that checkpoints hold beside the global parameters. Runs twice,
// after stage_plan and after stage_allocate, as everything that takes from an arena.
static inline void async_dp_allocate(Stage* stage) {
    AsyncDp* async = stage->async;
    Arena* arena = &stage->memory[ARENA_OPTIMIZER];
    const int64_t n = stage->layout.elements;
    async->local_params = stage->type.masters ? stage->master : (float*)stage->params;
    async->global_params = arena_floats(arena, n);
    async->sum = arena_floats(arena, n);
    if (async->config.mode == DP_DILOCO) async->velocity = arena_floats(arena, n);
    if (async->config.compensation > 0)
        async->corrections = (double*)arena_take(arena, stage->layout.tensors * (int64_t)sizeof(double));
    const MethodValues all[METHOD_VALUES] = {{"weight", async->local_params},
                                             {"exp_avg", stage->moment1},
                                             {"exp_avg_sq", stage->moment2},
                                             {"velocity", async->velocity}};
    stage->checkpoint_weights = async->global_params;
    stage->kept_values = 0;
    for (int i = 0; i < METHOD_VALUES; i++) {
        if (all[i].at) stage->kept[stage->kept_values++] = all[i];
    }
}

// Makes a planned stage asynchronous, if the config is.
static inline void async_dp_plan(Stage* stage, const AsyncConfig* config) {
    const Layout* layout = &stage->layout;
    const size_t buckets = (size_t)layout->buckets;
    if (!async_schedule_is_local(config)) return;
    AsyncDp* async = (AsyncDp*)checked_calloc(1, sizeof *async, "asynchronous sites");
    stage->async = async;
    async->config = *config;
    async->request = (CommRequest*)checked_calloc(buckets, sizeof(CommRequest), "asynchronous sites");
    async->in_flight = (bool*)checked_calloc(buckets, sizeof(bool), "asynchronous sites");
    async->lambda = (float*)checked_calloc((size_t)layout->tensors, sizeof(float), "asynchronous sites");
    async_dp_allocate(stage);
}

static inline void async_dp_free(Stage* stage) {
    AsyncDp* async = stage->async;
    if (!async) return;
    free(async->request);
    free(async->in_flight);
    free(async->lambda);
    free(async);
    stage->async = NULL;
}

// ---- Sums between sites, bucket by bucket -----------------------------------------------------------------------

// Sends a minus b of a bucket: starts its sum over the sites. dc-s3gd: the change, local minus global parameters;
// diloco: the outer gradient, global minus local ones.
static inline void async_dp_send(const Stage* stage, int bucket, const float* a, const float* b) {
    AsyncDp* async = stage->async;
    const Layout* layout = &stage->layout;
    const int64_t at = layout->bucket[bucket].offset;
    difference(async->sum + at, a + at, b + at, layout->bucket[bucket].elements);
    async->in_flight[bucket] = true;
    async->request[bucket] =
        comm_all_reduce_start(&stage->groups->inter_site, async->sum + bucket_shard_begin(layout, bucket),
                              bucket_shard_size(layout, bucket), COMM_FLOAT, COMM_SUM);
}

// Waits for the sum of a bucket: afterwards all ranks have it.
static inline void async_dp_arrive(const Stage* stage, int bucket) {
    AsyncDp* async = stage->async;
    const Layout* layout = &stage->layout;
    async->in_flight[bucket] = false;
    comm_wait(&async->request[bucket]);
    if (mesh_site_size(&layout->parallel.mesh) > 1)
        comm_all_gather(&stage->groups->data, async->sum + layout->bucket[bucket].offset,
                        async->sum + bucket_shard_begin(layout, bucket), bucket_shard_size(layout, bucket), COMM_FLOAT);
}

// dc-s3gd: adds the mean of the changes that were sent in the step before to the global parameters of a bucket.
static inline void async_dp_advance(const Stage* stage, int bucket) {
    const AsyncDp* async = stage->async;
    const int64_t at = stage->layout.bucket[bucket].offset, n = stage->layout.bucket[bucket].elements;
    if (!async->in_flight[bucket]) return;
    async_dp_arrive(stage, bucket);
    if (async->config.sites == 1) // global + (local - global) is not always local, and the rest would be compensated
        device_copy(async->global_params + at, async->local_params + at, (size_t)n * sizeof(float));
    else
        add_scaled(async->global_params + at, async->sum + at, 1.0f / (float)async->config.sites, n);
}

// diloco: sends all buckets, and merges the sums as they arrive.
static inline void async_dp_outer_step(const Stage* stage) {
    const AsyncDp* async = stage->async;
    const AsyncConfig* config = &async->config;
    const Layout* layout = &stage->layout;
    for (int b = 0; b < layout->buckets; b++) async_dp_send(stage, b, async->global_params, async->local_params);
    for (int b = 0; b < layout->buckets; b++) {
        const int64_t at = layout->bucket[b].offset, n = layout->bucket[b].elements;
        async_dp_arrive(stage, b);
        outer_update(async->global_params + at, async->velocity + at, async->sum + at, 1.0f / (float)config->sites,
                     (float)config->outer_lr, (float)config->outer_momentum, n);
        device_copy(async->local_params + at, async->global_params + at, (size_t)n * sizeof(float));
    }
}

// ---- The step ---------------------------------------------------------------------------------------------------

// At the beginning of a run: the initial weights are the global parameters, without any history.
static inline void async_dp_init(const Stage* stage) {
    const AsyncDp* async = stage->async;
    device_copy(async->global_params, async->local_params, (size_t)stage->layout.elements * sizeof(float));
}

static inline void async_dp_step_begin(const Stage* stage) {
    const AsyncDp* async = stage->async;
    if (async->corrections) device_zero(async->corrections, (size_t)stage->layout.tensors * sizeof(double));
}

// Lets messages between sites make progress, unless a thread does.
static inline void async_dp_progress(const Stage* stage) {
    comm_progress(stage->async->request, stage->layout.buckets);
}

// After the sums of a chunk's gradients over the site (-1: see Bucket). dc-s3gd: finishes the sums of the changes, and
// adds up the squares of the corrections of each tensor with lambda = 1.
static inline void async_dp_finish_grad_sync(const Stage* stage, int chunk) {
    const AsyncDp* async = stage->async;
    const Layout* layout = &stage->layout;
    if (async->config.mode != DP_DC_S3GD) return;
    for (int b = 0; b < layout->buckets; b++) {
        if (layout->bucket[b].chunk == chunk) async_dp_advance(stage, b);
    }
    if (async->config.compensation == 0) return;
    for (int i = 0; i < layout->n; i++) {
        const Slice* slice = &layout->slices[i];
        const TensorRange range = owned_range(stage, slice);
        if (layout->bucket[slice->bucket].chunk != chunk || !counts_slice(stage, slice)) continue;
        delay_squares(async->corrections + slice->index, stage->grads.update + range.at,
                      async->global_params + range.at, async->local_params + range.at, range.n);
    }
}

// The factor of each tensor's compensation, from the squares of its gradient, summed over the site, and of its
// correction, such that the norm of the correction is `compensation` times the gradient's.
static inline void async_dp_set_compensation(Stage* stage, const double* squares) {
    AsyncDp* async = stage->async;
    const int tensors = stage->layout.tensors;
    if (async->config.compensation == 0) return;
    double* corrections = (double*)checked_calloc((size_t)tensors, sizeof(double), "the delay compensation");
    device_to_host(corrections, async->corrections, (size_t)tensors * sizeof(double));
    sum_over_site(stage->groups, corrections, tensors);
    for (int i = 0; i < tensors; i++)
        async->lambda[i] = compensation_lambda(async->config.compensation, squares[i], corrections[i]);
    free(corrections);
}

// dc-s3gd: compensates a chunk's gradients for the delay; the step then begins at the global parameters.
static inline void async_dp_before_update(const Stage* stage, int chunk) {
    const AsyncDp* async = stage->async;
    const Layout* layout = &stage->layout;
    if (async->config.mode != DP_DC_S3GD) return;
    for (int i = 0; i < layout->n; i++) {
        const Slice* slice = &layout->slices[i];
        const TensorRange range = owned_range(stage, slice);
        const float lambda = async->lambda[slice->index];
        float *local = async->local_params + range.at, *global = async->global_params + range.at;
        if (layout->bucket[slice->bucket].chunk != chunk) continue;
        if (lambda > 0) delay_compensate(stage->grads.update + range.at, global, local, lambda, range.n);
        device_copy(local, global, (size_t)range.n * sizeof(float));
    }
}

static inline void async_dp_after_update(const Stage* stage, int chunk) {
    const AsyncDp* async = stage->async;
    if (async->config.mode != DP_DC_S3GD) return;
    for (int b = 0; b < stage->layout.buckets; b++) {
        if (stage->layout.bucket[b].chunk == chunk) async_dp_send(stage, b, async->local_params, async->global_params);
    }
}

// diloco: the outer step, after the updates of a step (from 1). seed: of the rounding of 16-bit parameters. Returns the
// step in which all sites will have merged what is sent in this one; 0: nothing is sent.
static inline int64_t async_dp_step_end(Stage* stage, int64_t seed, int64_t step) {
    const AsyncConfig* config = &stage->async->config;
    if (!async_schedule_sends(config, step)) return 0;
    if (config->mode == DP_DILOCO) {
        async_dp_outer_step(stage);
        cast_to_floatx(stage, stage->master, seed, step);
    }
    return step + async_schedule_delay(config);
}

// ---- The global parameters --------------------------------------------------------------------------------------

// Waits for all messages between sites, and completes the global parameters.
static inline void async_dp_drain(const Stage* stage) {
    for (int b = 0; b < stage->layout.buckets; b++) async_dp_advance(stage, b);
}

// From here to async_dp_restore_local the parameters are the global ones, for validation and samples. The local ones
// are saved in the gradients' memory.
static inline void async_dp_load_global(Stage* stage, int64_t seed, int64_t step) {
    const AsyncDp* async = stage->async;
    const size_t bytes = (size_t)stage->layout.elements * sizeof(float);
    async_dp_drain(stage);
    if (!HAS_MASTER_WEIGHTS) device_copy(stage->grads.all, async->local_params, bytes);
    if (!HAS_MASTER_WEIGHTS) device_copy(async->local_params, async->global_params, bytes);
    cast_to_floatx(stage, async->global_params, seed, step);
}

static inline void async_dp_restore_local(Stage* stage, int64_t seed, int64_t step) {
    const size_t bytes = (size_t)stage->layout.elements * sizeof(float);
    if (!HAS_MASTER_WEIGHTS) device_copy(stage->async->local_params, stage->grads.all, bytes);
    cast_to_floatx(stage, stage->master, seed, step);
}

// ---- The printed plan -------------------------------------------------------------------------------------------

static inline void async_dp_print(const Stage* stage, int64_t steps) {
    const AsyncConfig* config = &stage->async->config;
    const int replicas = mesh_site_size(&stage->layout.parallel.mesh);
    const int64_t lost = steps - async_schedule_learned(config, steps);
    char text[256];
    async_schedule_text(text, sizeof text, config);
    print_line("sites     %s; %d replica%s each", text, replicas, plural(replicas));
    print_line("          loss and norm of a step are those of the first site; validation is at the common point");
    if (lost > 0)
        print_line("          the last %lld of %lld steps come too late for the common point, which is what is saved",
                   (long long)lost, (long long)steps);
}
