/*
parallel/halves.h: a micro-batch, computed as two halves of its sequences in turn (--tp-comm-overlap; Wang et al. 2024,
"Domino", arXiv 2409.15241): while one half is computed, a sum of the other over the tensor ranks is in flight.

    pass_parts            the parts of a pass, which gpt.h computes: its two halves, or itself
    each_part             a step of the model on each part in turn
    tensor_overlap_open   the tensor group moves messages while the rank computes

A half is a view: Activations and ActivationGrads whose pointers point to its rows of the same buffers. So nothing is
copied, and a micro-batch of one part costs nothing. The rows of a half are consecutive, and it has all of the rank's
streams, one after the other.
*/
#pragma once

#include "../comm/collectives/collectives.h"
#include "stage.h"

// ---- Halves: they never come with sequence parallelism (parallel_check), so R = N -----------------------------------

static inline const int32_t* tokens_from(const int32_t* x, int64_t n) { return x ? x + n : NULL; }

// `half` gets the buffers of `whole` from a row on.
static inline void rows_from(void* half, const void* whole, RowBuffers list, int64_t row) {
    for (int i = 0; i < list.n; i++) {
        char* buffer = row_buffer(whole, list.buffer[i]);
        set_row_buffer(half, list.buffer[i], buffer ? buffer + row * list.buffer[i].bytes : NULL);
    }
}

static inline void activations_half(Activations* half, const Stage* stage, const Activations* acts, int i) {
    floatX** const x = half->x; // its own lists, of pointers into the whole
    LayerActivations* const layers = half->layers;
    const int64_t C = stage->model.C, row = (int64_t)i * acts->N / HALVES, token = (int64_t)i * acts->tokens / HALVES;
    *half = *acts;
    half->x = x;
    half->layers = layers;
    half->B /= HALVES;
    half->N /= HALVES;
    half->R /= HALVES;
    half->tokens /= HALVES;
    half->inputs = tokens_from(acts->inputs, token);
    half->targets.token = tokens_from(acts->targets.token, token);
    half->branch = acts->branch + row * C;
    if (stage->trains) half->dnorm = acts->dnorm + row * C;
    half->shared = floats_from(acts->shared, token * C);
    for (int l = 0; l <= acts->chunk->layers; l++) x[l] = acts->x[l] + row * C;
    for (int l = 0; l < acts->chunk->layers; l++) rows_from(&layers[l], &acts->layers[l], layer_buffers(stage), row);
    if (!acts->head) return;
    half->head = &stage->head[stage->head_slots + i];
    rows_from(half->head, acts->head, head_buffers(stage), row);
    half->head->losses = acts->head->losses + token; // the halves' losses stand one after the other
}

static inline void gradients_half(ActivationGrads* half, const Stage* stage, const ActivationGrads* g,
                                  const Activations* acts, int i) {
    const int64_t row = (int64_t)i * acts->N / HALVES;
    half->dx = g->dx + row * stage->model.C;
    half->vectors = g->vectors;
    for (int l = 0; l < acts->chunk->layers; l++)
        rows_from(&half->layers[l], &g->layers[l], gradient_buffers(stage), row);
}

// ---- Parts ------------------------------------------------------------------------------------------------------

// Fills `part`, pass->acts->parts of them: two halves, or the pass itself.
static inline void pass_parts(Pass part[HALVES], const Pass* pass) {
    const Stage* stage = pass->stage;
    part[0] = *pass;
    if (pass->acts->parts == 1) return;
    for (int i = 0; i < HALVES; i++) {
        part[i] = *pass;
        part[i].accumulates = pass->accumulates || i > 0;
        part[i].acts = &stage->activations[stage->slots + i];
        activations_half(part[i].acts, stage, pass->acts, i);
        if (!pass->g) continue;
        part[i].g = &stage->act_grads[stage->layout.parallel.v][i];
        gradients_half(part[i].g, stage, pass->g, pass->acts, i);
    }
}

// One step of a pass, for one part. Only sums of row_parallel_forward and row_parallel_output_grad_start outlive it.
typedef void PassFunction(const Pass* pass, int layer);

static inline void each_part(const Pass* part, int layer, PassFunction* function) {
    const int parts = part->acts->parts;
    for (int i = 0; i < parts; i++) function(&part[i], layer);
}

// ---- The group --------------------------------------------------------------------------------------------------

// To be called with nothing in flight. On CPU cores the group gets a thread that moves messages while the rank
// computes, and a plan: Open MPI's non-blocking all-reduce is a tree, in which the two directions of a link take turns.
// Where t is a power of two the plan is halving-doubling, which adds in the same order in every part of a vector: the
// bits do not depend on how a sum is cut.
static inline void tensor_overlap_open(Stage* stage) {
    Comm* tensor = &stage->groups->tensor;
    char name[32];
    Network net;
    Plan plan;
    Error error;
    if (!stage->layout.parallel.tp_overlap || !DEVICE_IS_HOST) return;
    snprintf(name, sizeof name, "full:%d", tensor->size);
    if (!network_build(&net, name, &error) ||
        !collective_build(&plan, algorithm_usual(tensor->size), PLAN_ALL_REDUCE, &net, &error))
        die("%s", error.text);
    comm_open_thread(tensor, true);
    comm_use_plan(tensor, &plan);
    plan_free(&plan);
    network_free(&net);
}
