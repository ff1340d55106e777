/*
parallel/optimizer.h: the update of this rank's parameters (AdamW: Loshchilov and Hutter 2019; SGD with momentum), with
clipping by the gradient's norm. With ZeRO a rank updates its shard of every bucket, for which it holds gradients,
moments and master weights, and then all ranks gather the parameters (parallel/data.h).

Everything is float32 except the parameters on a GPU, which are rounded stochastically from the master weights, by a
counter-based generator keyed by the tensor's name, the position in the slice and the step: copies of a tensor on other
ranks get the same bits.
*/
#ifndef OPTIMIZER_H
#define OPTIMIZER_H

#include "stage.h"

// The part [*from, *to) of a slice that this rank updates: all of it, or with ZeRO its overlap with the bucket's shard.
static inline void owned_range(const Stage* stage, const Slice* slice, int64_t* from, int64_t* to) {
    const Layout* layout = &stage->layout;
    *from = slice->offset, *to = slice->offset + slice_elements(slice);
    if (!layout->mesh.zero) return;
    const int64_t n = bucket_shard_size(layout, slice->bucket);
    const int64_t begin = layout->bucket[slice->bucket].offset + layout->mesh.data * n;
    *from = max_i64(*from, begin), *to = min_i64(*to, begin + n);
}

// The index of parameter number `at` in gradients and moments: the same index, or an index in shards.
static inline int64_t shard_offset(const Stage* stage, const Slice* slice, int64_t at) {
    const Layout* layout = &stage->layout;
    if (!layout->mesh.zero) return at;
    const int b = slice->bucket;
    return bucket_shard_offset(layout, b) + at -
           (layout->bucket[b].offset + layout->mesh.data * bucket_shard_size(layout, b));
}

// The float32 weights that an update changes, from parameter number `from` on, whose index in shards is `at`.
static inline float* fp32_weights(const Stage* stage, int64_t from, int64_t at) {
    return HAS_MASTER_WEIGHTS ? stage->master + at : (float*)stage->params + from;
}

// Whether this rank counts a slice when a number is summed over all ranks of a site (with ZeRO: over all ranks), such
// that every parameter counts once.
static inline bool counts_slice(const Stage* stage, const Slice* slice) {
    const Mesh* mesh = &stage->layout.mesh;
    return slice_is_owned(slice, &stage->layout) && (mesh->zero || mesh_rank_in_site(mesh) == 0);
}

// Sum of squares of the gradient of each tensor in a bucket into stage->sums: this rank's contribution.
static inline void gradient_squares(const Stage* stage, int bucket) {
    const Bucket* b = &stage->layout.bucket[bucket];
    for (int i = b->first; i < b->first + b->slices; i++) {
        const Slice* slice = &stage->layout.slices[i];
        int64_t from, to;
        owned_range(stage, slice, &from, &to);
        if (!counts_slice(stage, slice) || from >= to) continue;
        sum_of_squares(stage->sums + slice->index, stage->grads.update + shard_offset(stage, slice, from), to - from);
    }
}

// Euclidean norm of the whole gradient from the squares summed over all ranks, added in the model's order, so that it
// does not depend on p. *not_finite: the number of a tensor whose gradient is not finite, -1 if all are.
static inline double gradient_norm(const double* squares, int tensors, int* not_finite) {
    double total = 0;
    *not_finite = -1;
    for (int i = tensors - 1; i >= 0; i--) {
        if (!isfinite(squares[i])) *not_finite = i;
    }
    for (int i = 0; i < tensors; i++) total += squares[i];
    return sqrt(total);
}

// The key of the stochastic rounding of 16-bit parameters. Copies of a tensor on other ranks have the same key: the
// tensor's name, the position in the slice, and the step.
static inline uint64_t rounding_key(const Slice* slice, int64_t seed) {
    return (uint64_t)seed ^ hash_string(slice->tensor.name);
}

// One step of the optimizer (kernels/optimizers.h) on n parameters of a slice, from number `from` on, whose gradients
// and moments are at `at`.
static inline void optimizer_step(const Stage* stage, const Slice* slice, int64_t from, int64_t at, int64_t n,
                                  const OptimizerConfig* config, int64_t step, double lr, double grad_scale) {
    const float decay = slice->tensor.vector ? 0 : (float)config->weight_decay;
    const float* g = stage->grads.update + at;
    float* master = HAS_MASTER_WEIGHTS ? stage->master + at : NULL;
    const uint64_t key = rounding_key(slice, config->seed), first = (uint64_t)(from - slice->offset);
    const OptimizerStep s = {
        (float)lr, (float)config->beta1, (float)config->beta2, (float)config->eps, decay, step, (float)grad_scale, key,
        first};
    float* moment2 = stage->moment2 ? stage->moment2 + at : NULL;
    optimizers[config->kind].update(stage->params + from, master, g, stage->moment1 + at, moment2, n, &s);
}

// Updates this rank's part of a chunk (-1: see Bucket); step counts from 1; grad_scale multiplies the gradient.
static inline void chunk_optimizer_step(Stage* stage, int chunk, const OptimizerConfig* config, int64_t step, double lr,
                                        double grad_scale) {
    const Layout* layout = &stage->layout;
    for (int i = 0; i < layout->n; i++) {
        const Slice* slice = &layout->slices[i];
        int64_t from, to;
        owned_range(stage, slice, &from, &to);
        if (from >= to || layout->bucket[slice->bucket].chunk != chunk) continue;
        optimizer_step(stage, slice, from, shard_offset(stage, slice, from), to - from, config, step, lr, grad_scale);
    }
    if (layout->mesh.zero) all_gather_params(stage->params, stage->groups, layout, chunk);
}

// Rounds the parameters of this step's update again from their float32 values, so that a resumed run continues with the
// same bits. changed (buckets): only where it is true; NULL: everywhere. values: float32 values in the layout of
// stage->master.
static inline void cast_to_floatx(const Stage* stage, const float* values, int64_t seed, int64_t step,
                                  const bool* changed) {
    for (int i = 0; i < stage->layout.n && HAS_MASTER_WEIGHTS; i++) {
        const Slice* slice = &stage->layout.slices[i];
        int64_t from, to;
        owned_range(stage, slice, &from, &to);
        if (from >= to || (changed && !changed[slice->bucket])) continue;
        adamw_round(stage->params + from, values + shard_offset(stage, slice, from), to - from, step,
                    rounding_key(slice, seed), (uint64_t)(from - slice->offset));
    }
}

static inline void recast_parameters(const Stage* stage, int64_t seed, int64_t step) {
    if (step == 0) return; // no update yet
    cast_to_floatx(stage, stage->master, seed, step, NULL);
    for (int chunk = -1; chunk < stage->layout.mesh.v && HAS_MASTER_WEIGHTS && stage->layout.mesh.zero; chunk++)
        all_gather_params(stage->params, stage->groups, &stage->layout, chunk);
}

// At the beginning of a step: zeroes the buffers that gradients are added to.
static inline void zero_gradients(const Stage* stage) {
    const Layout* layout = &stage->layout;
    const size_t bytes = (size_t)layout->elements * sizeof(float);
    if (layout->mesh.zero < 2)
        device_zero(stage->grads.all, bytes);
    else
        device_zero(stage->grads.shares, bytes / (size_t)layout->mesh.d);
    if (stage->grad_embedding)
        device_zero(stage->grad_embedding,
                    (size_t)(layout->streams * layout->V) * (size_t)stage->model.C * sizeof(float));
}

#endif
