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

// The part of a slice that this rank updates: all of it, or with ZeRO its overlap with the bucket's shard.
typedef struct {
    int64_t from, n; // parameters; n = 0: none
    int64_t at;      // where gradients, moments and master weights have them: at from, or with ZeRO in their shards
} OwnedRange;

static inline OwnedRange owned_range(const Stage* stage, const Slice* slice) {
    const Layout* layout = &stage->layout;
    const OwnedRange whole = {slice->offset, slice_elements(slice), slice->offset};
    if (!layout->mesh.zero) return whole;
    const int64_t size = bucket_shard_size(layout, slice->bucket);
    const int64_t shard = layout->bucket[slice->bucket].offset + layout->mesh.data * size;
    const int64_t from = min_i64(max_i64(whole.from, shard), shard + size);
    const int64_t end = min_i64(whole.from + whole.n, shard + size);
    const OwnedRange range = {from, max_i64(0, end - from), bucket_shard_offset(layout, slice->bucket) + from - shard};
    return range;
}

// The float32 weights that an update changes.
static inline float* fp32_weights(const Stage* stage, OwnedRange range) {
    return HAS_MASTER_WEIGHTS ? stage->master + range.at : (float*)stage->params + range.from;
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
        const OwnedRange range = owned_range(stage, slice);
        if (!counts_slice(stage, slice) || range.n == 0) continue;
        sum_of_squares(stage->sums + slice->index, stage->grads.update + range.at, range.n);
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

// One step of the optimizer (kernels/optimizers.h) on a part of a slice.
static inline void optimizer_step(const Stage* stage, const Slice* slice, OwnedRange range,
                                  const OptimizerConfig* config, int64_t step, double lr, double grad_scale) {
    const float decay = slice->tensor.vector ? 0 : (float)config->weight_decay;
    float* master = HAS_MASTER_WEIGHTS ? stage->master + range.at : NULL;
    float* moment2 = stage->moment2 ? stage->moment2 + range.at : NULL;
    const uint64_t key = rounding_key(slice, config->seed), first = (uint64_t)(range.from - slice->offset);
    const OptimizerStep s = {
        (float)lr, (float)config->beta1, (float)config->beta2, (float)config->eps, decay, step, (float)grad_scale, key,
        first};
    optimizers[config->kind].update(stage->params + range.from, master, stage->grads.update + range.at,
                                    stage->moment1 + range.at, moment2, range.n, &s);
}

// Updates this rank's part of a chunk (-1: see Bucket); step counts from 1; grad_scale multiplies the gradient.
static inline void chunk_optimizer_step(Stage* stage, int chunk, const OptimizerConfig* config, int64_t step, double lr,
                                        double grad_scale) {
    const Layout* layout = &stage->layout;
    for (int i = 0; i < layout->n; i++) {
        const Slice* slice = &layout->slices[i];
        const OwnedRange range = owned_range(stage, slice);
        if (range.n == 0 || layout->bucket[slice->bucket].chunk != chunk) continue;
        optimizer_step(stage, slice, range, config, step, lr, grad_scale);
    }
    if (layout->mesh.zero) all_gather_params(stage->params, stage->groups, layout, chunk);
}

// Rounds the parameters of this step's update again from their float32 values, so that a resumed run continues with the
// same bits. changed (buckets): only where it is true; NULL: everywhere. values: float32 values in the layout of
// stage->master.
static inline void cast_to_floatx(const Stage* stage, const float* values, int64_t seed, int64_t step,
                                  const bool* changed) {
    const int slices = HAS_MASTER_WEIGHTS ? stage->layout.n : 0;
    for (int i = 0; i < slices; i++) {
        const Slice* slice = &stage->layout.slices[i];
        const OwnedRange range = owned_range(stage, slice);
        if (range.n == 0 || (changed && !changed[slice->bucket])) continue;
        adamw_round(stage->params + range.from, values + range.at, range.n, step, rounding_key(slice, seed),
                    (uint64_t)(range.from - slice->offset));
    }
}

static inline void recast_parameters(const Stage* stage, int64_t seed, int64_t step) {
    if (step == 0 || !HAS_MASTER_WEIGHTS) return; // step 0: no update yet
    cast_to_floatx(stage, stage->master, seed, step, NULL);
    if (!stage->layout.mesh.zero) return;
    for (int chunk = -1; chunk < stage->layout.mesh.v; chunk++)
        all_gather_params(stage->params, stage->groups, &stage->layout, chunk);
}

// At the beginning of a step: zeroes the buffers that gradients are added to.
static inline void zero_gradients(const Stage* stage) {
    const Layout* layout = &stage->layout;
    const size_t bytes = (size_t)layout->elements * sizeof(float);
    if (layout->mesh.zero < 2)
        device_zero(stage->grads.all, bytes);
    else
        device_zero(stage->grads.shards, bytes / (size_t)layout->mesh.d);
    if (stage->grad_embedding)
        device_zero(stage->grad_embedding,
                    (size_t)layout_embedding_rows(layout) * (size_t)stage->model.C * sizeof(float));
}

#endif
