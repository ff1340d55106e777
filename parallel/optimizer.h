/*
parallel/optimizer.h: the update of this rank's parameters (AdamW: Loshchilov and Hutter 2017; SGD with momentum),
with clipping by the gradient's norm. With ZeRO a rank updates its shard of every bucket, for which it holds
gradients, moments and master weights, and then all ranks gather the parameters (parallel/data.h).

Everything is float32 except parameters of 16 bits, which are rounded stochastically from float32 master weights, by a
counter-based generator keyed by the tensor's name, the position in the slice and the step: copies of a tensor on other
ranks get the same bits.
*/
#pragma once

#include "stage.h"

// The part of a slice that this rank updates: all of it, or with ZeRO its overlap with the bucket's shard, which may be
// empty. Gradients, moments and master weights hold it at `at`: as the parameters, or with ZeRO in their shards.
static inline TensorRange owned_range(const Stage* stage, const Slice* slice) {
    const Layout* layout = &stage->layout;
    int64_t begin = 0, end = slice_elements(slice);
    if (layout->parallel.zero) { // counted from the slice's first
        const int64_t shard = bucket_shard_begin(layout, slice->bucket) - slice->offset;
        begin = min_i64(max_i64(0, shard), end);
        end = max_i64(begin, min_i64(end, shard + bucket_shard_size(layout, slice->bucket)));
    }
    TensorRange range = whole_range(end - begin);
    range.from = range.at = slice->offset + begin;
    range.index = slice->index;
    range.decays = !slice->tensor.vector;
    range.first = (uint64_t)begin;
    if (layout->parallel.zero)
        range.at += bucket_shard_offset(layout, slice->bucket) - bucket_shard_begin(layout, slice->bucket);
    return range;
}

// Whether this rank counts a slice in a sum over all ranks of a site, in which every parameter counts once.
static inline bool counts_slice(const Stage* stage, const Slice* slice) {
    const ParallelConfig* parallel = &stage->layout.parallel;
    return slice_is_owned(slice, &stage->layout) && (parallel->zero || mesh_rank_in_site(&parallel->mesh) == 0);
}

// The key of the stochastic rounding of a slice.
static inline uint64_t rounding_key(const Slice* slice, int64_t seed) {
    return (uint64_t)seed ^ hash_string(slice->tensor.name);
}

// The ranges of a chunk (-1: see Bucket) that this rank updates; counted: those of counts_slice only. To be freed.
static inline TensorRange* chunk_ranges(const Stage* stage, int chunk, int64_t seed, bool counted, int* count) {
    const Layout* layout = &stage->layout;
    TensorRange* ranges =
        (TensorRange*)checked_malloc((size_t)layout->n * sizeof(TensorRange), "the ranges of a chunk");
    *count = 0;
    for (int i = 0; i < layout->n; i++) {
        const Slice* slice = &layout->slices[i];
        TensorRange range = owned_range(stage, slice);
        if (range.n == 0 || layout->bucket[slice->bucket].chunk != chunk) continue;
        if (counted && !counts_slice(stage, slice)) continue;
        range.key = rounding_key(slice, seed);
        ranges[(*count)++] = range;
    }
    return ranges;
}

// This rank's part of a bucket's sum over the replicas; with several sites, over those of its own.
static inline float* summed_grad(const Stage* stage, int b) {
    const GradientBuckets* grads = &stage->grads;
    if (!buckets_share_memory(&stage->layout)) return grads->bucket[b].sum;
    return grads->shards + bucket_shard_offset(&stage->layout, b);
}

// Adds the gradients of the two uses of a tied embedding, once they are summed over the replicas: where they are on two
// ranks (chunk -1), or in two buckets (embedding_use_bucket).
static inline void sum_tied_embedding_grads(const Stage* stage, int chunk) {
    const Layout* layout = &stage->layout;
    const Slice* wte = layout_slice(layout, -1, WTE);
    if (!wte || layout->bucket[wte->bucket].chunk != chunk) return;
    const BucketMemory* bucket = grad_bucket(&stage->grads, layout, wte->bucket);
    const int64_t n = grad_sum_elements(bucket, layout, wte->bucket);
    float* sum = summed_grad(stage, wte->bucket);
    if (layout->embedding_bucket >= 0) accumulate(sum, summed_grad(stage, layout->embedding_bucket), n);
    if (chunk < 0) comm_all_reduce(&stage->groups->embedding, sum, n, COMM_FLOAT, COMM_SUM);
}

// Sum of squares (kernels/global_norm.h) of the gradient of each tensor in a chunk into stage->sums: this rank's part.
static inline void gradient_squares(const Stage* stage, int chunk) {
    int count;
    TensorRange* ranges = chunk_ranges(stage, chunk, 0, true, &count);
    if (stage->layout.parallel.canonical) ranges = cut_by_rows(ranges, &count, &stage->layout);
    sum_of_squares(stage->sums, stage->grads.update, ranges, count);
    free(ranges);
}

// Euclidean norm of the whole gradient from the squares summed over all ranks, added in the model's order, so that it
// does not depend on p. *not_finite: the number of the first tensor whose gradient is not finite; -1: there is none.
static inline double gradient_norm(const double* squares, int tensors, int* not_finite) {
    double total = 0;
    *not_finite = -1;
    for (int i = tensors - 1; i >= 0; i--) {
        if (!isfinite(squares[i])) *not_finite = i;
    }
    for (int i = 0; i < tensors; i++) total += squares[i];
    return sqrt(total);
}

// Updates this rank's part of a chunk; step counts from 1; grad_scale multiplies the gradient.
static inline void chunk_optimizer_step(Stage* stage, int chunk, const OptimizerConfig* config, int64_t step, double lr,
                                        double grad_scale) {
    const OptimizerStep s = {(float)lr,          (float)config->beta1,        (float)config->beta2,
                             (float)config->eps, (float)config->weight_decay, step,
                             (float)grad_scale};
    int count;
    TensorRange* ranges = chunk_ranges(stage, chunk, config->seed, false, &count);
    optimizers[config->kind].update(stage->params, stage->master, stage->grads.update, stage->moment1, stage->moment2,
                                    ranges, count, &s);
    free(ranges);
    if (stage->layout.parallel.zero) all_gather_params(stage->params, stage->groups, &stage->layout, chunk);
}

// Rounds the parameters of this step's update again from their float32 values, so that a resumed run continues with the
// same bits. values: float32 values in the layout of stage->master.
static inline void cast_to_floatx(const Stage* stage, const float* values, int64_t seed, int64_t step) {
    const int slices = HAS_MASTER_WEIGHTS ? stage->layout.n : 0;
    for (int i = 0; i < slices; i++) {
        const Slice* slice = &stage->layout.slices[i];
        const TensorRange range = owned_range(stage, slice);
        if (range.n == 0) continue;
        adamw_round(stage->params + range.from, values + range.at, range.n, step, rounding_key(slice, seed),
                    range.first);
    }
}

static inline void recast_parameters(const Stage* stage, int64_t seed, int64_t step) {
    if (step == 0 || !HAS_MASTER_WEIGHTS) return; // step 0: no update yet
    cast_to_floatx(stage, stage->master, seed, step);
    if (!stage->layout.parallel.zero) return;
    for (int chunk = -1; chunk < stage->layout.parallel.v; chunk++)
        all_gather_params(stage->params, stage->groups, &stage->layout, chunk);
}

// At the beginning of a step: zeroes the buffers that gradients are added to (ZeRO 1's shards are written): all between
// matrices, whose first product overwrites (Pass.accumulates); the token embedding is one where it is the head.
static inline void zero_gradients(const Stage* stage) {
    const Layout* layout = &stage->layout;
    const bool is_head = stage->model.tied && layout->last_stage;
    float* all = stage->grads.all;
    int64_t begin = 0;
    for (int i = 0; i < layout->n && all; i++) {
        const Slice* slice = &layout->slices[i];
        const TensorKind kind = slice->tensor.kind;
        if (slice->tensor.vector || kind == WPE || (kind == WTE && !is_head)) continue;
        device_zero(all + begin, (size_t)(slice->offset - begin) * sizeof(float));
        begin = slice->offset + slice_elements(slice);
    }
    if (all)
        device_zero(all + begin, (size_t)(layout->elements - begin) * sizeof(float));
    else
        device_zero(stage->grads.shards, (size_t)layout->elements / (size_t)layout->parallel.mesh.d * sizeof(float));
    if (stage->grad_embedding)
        device_zero(stage->grad_embedding,
                    (size_t)layout_embedding_rows(layout) * (size_t)stage->model.C * sizeof(float));
}
