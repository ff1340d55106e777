/*
parallel/optimizer.h: the update of this rank's parameters (AdamW: Loshchilov and Hutter 2019; SGD with momentum), with
clipping by the gradient's norm. With ZeRO a rank updates its shard of every bucket, whose gradients, moments and master
weights it has, and then all ranks gather the parameters (parallel/data.h).

Everything is float32 but the parameters on a GPU, which are rounded from the master weights, at random, by a counter-based
generator keyed by the tensor's name, the place in the slice and the step: copies of a tensor on other ranks get the same bits.
*/
#ifndef OPTIMIZER_H
#define OPTIMIZER_H

#include "stage.h"
#include "../methods/async_dp.h"
#include "../trainer/settings.h"

// The part [*from, *to) of a slice that this rank updates: all of it, or with ZeRO what lies in its share of the bucket.
static inline void owned_range(const Stage* stage, const Slice* slice, int64_t* from, int64_t* to) {
    const Layout* layout = &stage->layout;
    *from = slice->offset, *to = slice->offset + slice_elements(slice);
    if (!layout->mesh.zero) return;
    const int64_t n = bucket_shard_size(layout, slice->bucket);
    const int64_t begin = layout->bucket[slice->bucket].offset + layout->mesh.data * n;
    *from = max_i64(*from, begin), *to = min_i64(*to, begin + n);
}

// Where element `at` of the parameters is found in gradients and moments: at the same place, or in a share.
static inline int64_t shard_offset(const Stage* stage, const Slice* slice, int64_t at) {
    const Layout* layout = &stage->layout;
    if (!layout->mesh.zero) return at;
    const int b = slice->bucket;
    return bucket_shard_offset(layout, b) + at -
           (layout->bucket[b].offset + layout->mesh.data * bucket_shard_size(layout, b));
}

// The weights that an update changes, in float32: parameter number `from`, which lies at `at` where shares do.
static inline float* fp32_weights(const Stage* stage, int64_t from, int64_t at) {
    return HAS_MASTER_WEIGHTS ? stage->master + at : (float*)stage->params + from;
}

// The way from where a gradient was computed to where it is used: `to` minus `from`, of n parameters; to = NULL: none. Of
// dc-s3gd from a site's own weights to the common point, of a late gradient from the weights before the last update.
typedef struct {
    const float *from, *to;
} WeightDelta;

static inline WeightDelta weight_delta_of_gradient(const Stage* stage, int64_t from, int64_t at) {
    WeightDelta way = {NULL, NULL};
    if (stage->rounds.compensation == 0) return way;
    if (stage->rounds.mode == DP_DC_S3GD) way.from = stage->sites.own + from, way.to = stage->sites.base + from;
    if (stage->before) way.from = stage->before + at, way.to = fp32_weights(stage, from, at);
    return way;
}

// Sum of squares of the gradient of each tensor in a bucket, and of its delay compensation with lambda = 1, into s->sums:
// this rank's contribution, such that the sum over all ranks of a site counts every parameter once (with ZeRO: that over all
// ranks).
static inline void gradient_squares(const Stage* stage, int bucket) {
    const Mesh* mesh = &stage->layout.mesh;
    const Bucket* b = &stage->layout.bucket[bucket];
    for (int i = b->first; i < b->first + b->slices; i++) {
        const Slice* slice = &stage->layout.slices[i];
        int64_t from, to;
        owned_range(stage, slice, &from, &to);
        if (!slice_is_owned(slice, &stage->layout) || (!mesh->zero && mesh_rank_in_site(mesh) > 0) || from >= to)
            continue;
        const int64_t at = shard_offset(stage, slice, from);
        const WeightDelta way = weight_delta_of_gradient(stage, from, at);
        sum_of_squares(stage->sums + slice->index, grads_for_update(&stage->grads) + at, to - from);
        if (way.to)
            delay_squares(stage->sums + stage->layout.tensors + 1 + slice->index, grads_for_update(&stage->grads) + at,
                          way.to, way.from, to - from);
    }
}

// Euclidean norm of the whole gradient from the squares summed over all ranks, added in the model's order, so that it does
// not depend on p. *not_finite: the number of a tensor whose gradient is not finite, -1 if all are.
static inline double gradient_norm(const double* squares, int tensors, int* not_finite) {
    double total = 0;
    *not_finite = -1;
    for (int i = tensors - 1; i >= 0; i--) {
        if (!isfinite(squares[i])) *not_finite = i;
    }
    for (int i = 0; i < tensors; i++) total += squares[i];
    return sqrt(total);
}

// 16-bit parameters are rounded at random. Copies of a tensor on other ranks are rounded alike: by the tensor's name, the
// place in the slice, and the step.
static inline uint64_t rounding_key(const Slice* slice, const Settings* o) {
    return (uint64_t)o->seed ^ hash_string(slice->tensor.name);
}

// One step of the optimizer (kernels/optimizers.h) on n parameters of a slice, number `from` on, whose gradients and
// moments lie at `at`.
static inline void optimizer_step(const Stage* stage, const Slice* slice, int64_t from, int64_t at, int64_t n,
                                  const Settings* o, int64_t step, double lr, double grad_scale) {
    const float decay = slice->tensor.vector ? 0 : (float)o->weight_decay;
    const float* g = grads_for_update(&stage->grads) + at;
    float* master = HAS_MASTER_WEIGHTS ? stage->master + at : NULL;
    const uint64_t key = rounding_key(slice, o), first = (uint64_t)(from - slice->offset);
    const OptimizerStep s = {
        (float)lr, (float)o->beta1, (float)o->beta2, (float)o->eps, decay, step, (float)grad_scale, key, first};
    float* moment2 = stage->moment2 ? stage->moment2 + at : NULL;
    optimizers[o->optimizer].update(stage->params + from, master, g, stage->moment1 + at, moment2, n, &s);
}

// The update of what this rank updates of a chunk (-1: see Bucket); step counts from 1; grad_scale multiplies the gradient.
// First the gradient is compensated for its way to where it is used, where that is asked for; a site of dc-s3gd then goes
// on from the common point, and sends how far it goes.
static inline void chunk_optimizer_step(Stage* stage, int chunk, const Settings* o, int64_t step, double lr,
                                        double grad_scale) {
    const Layout* layout = &stage->layout;
    for (int i = 0; i < layout->n; i++) {
        const Slice* slice = &layout->slices[i];
        int64_t from, to;
        owned_range(stage, slice, &from, &to);
        if (from >= to || layout->bucket[slice->bucket].chunk != chunk) continue;
        const int64_t at = shard_offset(stage, slice, from), n = to - from;
        const WeightDelta way = weight_delta_of_gradient(stage, from, at);
        const float lambda = stage->lambda[slice->index];
        if (way.to && lambda > 0) delay_compensate(grads_for_update(&stage->grads) + at, way.to, way.from, lambda, n);
        float* weights = fp32_weights(stage, from, at);
        if (stage->before) device_copy(stage->before + at, weights, (size_t)n * sizeof(float));
        if (stage->rounds.mode == DP_DC_S3GD) device_copy(weights, stage->sites.base + from, (size_t)n * sizeof(float));
        optimizer_step(stage, slice, from, at, n, o, step, lr, grad_scale);
    }
    if (layout->mesh.zero) all_gather_params(stage->params, stage->groups, layout, chunk);
    for (int b = 0; b < layout->buckets && stage->rounds.mode == DP_DC_S3GD; b++) {
        if (layout->bucket[b].chunk == chunk) async_dp_send_change(&stage->sites, b);
    }
}

// The rounded parameters that the update of this step left, again from their float32 values: so a run that is taken up
// again goes on with the same bits. changed (buckets): only where it is true; NULL: everywhere. values: float32 values that lie
// as s->master does.
static inline void cast_to_floatx(const Stage* stage, const float* values, const Settings* o, int64_t step,
                                  const bool* changed) {
    for (int i = 0; i < stage->layout.n && HAS_MASTER_WEIGHTS; i++) {
        const Slice* slice = &stage->layout.slices[i];
        int64_t from, to;
        owned_range(stage, slice, &from, &to);
        if (from >= to || (changed && !changed[slice->bucket])) continue;
        adamw_round(stage->params + from, values + shard_offset(stage, slice, from), to - from, step,
                    rounding_key(slice, o), (uint64_t)(from - slice->offset));
    }
}

static inline void recast_parameters(const Stage* stage, const Settings* o, int64_t step) {
    if (step == 0) return; // no update has been yet
    cast_to_floatx(stage, stage->master, o, step, NULL);
    for (int chunk = -1; chunk < stage->layout.mesh.v && HAS_MASTER_WEIGHTS && stage->layout.mesh.zero; chunk++)
        all_gather_params(stage->params, stage->groups, &stage->layout, chunk);
}

// At the begin of a step. Gradients that are used late are on their way: these are not touched.
static inline void stage_begin_gradients(Stage* stage) {
    if (!stage->grads.late) {
        device_zero(stage->memory_grads.base, stage->memory_grads.size);
        return;
    }
    swap_grad_buffers(&stage->grads, &stage->layout);
    device_zero(stage->grads.all, (size_t)stage->layout.elements * sizeof(float));
    if (stage->grad_embedding)
        device_zero(stage->grad_embedding,
                    (size_t)(stage->layout.states * stage->layout.V) * (size_t)stage->model.C * sizeof(float));
}

// ----------------------------------------------------------------------------------------------------------------
// Asynchronous data parallelism

// The factor of each tensor's delay compensation, from the squares of its gradient and of what it is multiplied by: such that
// the norm of the correction is `compensation` times that of the gradient (dc-s3gd.md of our reference calls this rule (17)).
static inline void set_delay_compensation(Stage* stage, const double* squares, const double* corrections) {
    for (int i = 0; i < stage->layout.tensors; i++) {
        const double lambda = stage->rounds.compensation * sqrt(squares[i]) / sqrt(corrections[i]);
        stage->lambda[i] = corrections[i] > 0 && lambda < FLT_MAX ? (float)lambda : 0;
    }
}

// Merges and sends what is due after the update of a step.
static inline void async_dp_step_end(Stage* stage, const Settings* o, int64_t step) {
    if (!async_schedule_are_local(&stage->rounds)) return;
    bool* changed = (bool*)checked_calloc((size_t)stage->layout.buckets, sizeof(bool), "a round");
    if (stage->rounds.mode == DP_DILOCO) async_dp_round(&stage->sites, step, changed);
    if (stage->rounds.mode == DP_DC_S3GD && stage->rounds.delay == 0) async_dp_meet(&stage->sites, changed);
    cast_to_floatx(stage, stage->master, o, step, changed);
    free(changed);
}

// At the begin of a run, with its initial weights: they are common, and none were before.
static inline void async_dp_init(const Stage* stage) {
    if (async_schedule_are_local(&stage->rounds)) async_dp_begin(&stage->sites);
    for (int i = 0; i < stage->layout.n && stage->before; i++) {
        const Slice* slice = &stage->layout.slices[i];
        int64_t from, to;
        owned_range(stage, slice, &from, &to);
        const int64_t at = shard_offset(stage, slice, from);
        if (from < to)
            device_copy(stage->before + at, fp32_weights(stage, from, at), (size_t)(to - from) * sizeof(float));
    }
}

// Waits for all that is on its way between sites.
static inline void async_dp_drain(Stage* stage) {
    GradientBuckets* grads = &stage->grads;
    if (async_schedule_are_local(&stage->rounds)) async_dp_settle(&stage->sites);
    if (!grads->late) return;
    swap_grad_buffers(grads, &stage->layout); // they are due in the next step, which begins with a turn: so turn back
    for (int chunk = -1; chunk < stage->layout.mesh.v; chunk++)
        finish_inter_site_sync(grads, stage->groups, &stage->layout, chunk);
    swap_grad_buffers(grads, &stage->layout);
}

// From here to async_dp_restore_local the parameters are those of the common point, for validation and samples. Own weights are
// kept where gradients are computed at other times.
static inline void async_dp_load_global(Stage* stage, const Settings* o, int64_t step) {
    if (!async_schedule_are_local(&stage->rounds)) return;
    const size_t bytes = (size_t)stage->layout.elements * sizeof(float);
    async_dp_settle(&stage->sites);
    if (!HAS_MASTER_WEIGHTS) device_copy(stage->grads.all, stage->sites.own, bytes);
    async_dp_common(&stage->sites, HAS_MASTER_WEIGHTS ? stage->grads.all : (float*)stage->params);
    cast_to_floatx(stage, stage->grads.all, o, step, NULL);
}

static inline void async_dp_restore_local(Stage* stage, const Settings* o, int64_t step) {
    if (!async_schedule_are_local(&stage->rounds)) return;
    if (!HAS_MASTER_WEIGHTS)
        device_copy(stage->sites.own, stage->grads.all, (size_t)stage->layout.elements * sizeof(float));
    cast_to_floatx(stage, stage->master, o, step, NULL);
}

// Late gradients with ZeRO: the norm and the gathering of parameters need the group between sites in this step. What is not
// needed before the next one is sent behind them.
static inline bool defers_inter_site_sync(const Stage* stage) {
    return stage->grads.late && stage->layout.mesh.zero > 0;
}

#endif
