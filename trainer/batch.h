/*
trainer/batch.h: the tokens of a step: which sequences each micro-batch of a pass through a schedule has, how they reach
the device, and what memory they take there.
*/
#pragma once

#include "trainer.h"

// The sequences of one execution of a schedule: micro-batch k of data rank r has the B sequences from first + (r m + k)
// B on (training), or first + (k d + r) B (validation; ZeRO 2 canonical), and none from `end` on. With --canonical and
// ZeRO r is place_among_leaves (parallel/canonical.h).
typedef struct {
    const Schedule* schedule; // NULL: run_window builds one
    const DataLoader* loader;
    int64_t first, end;
    bool trains;
    const Evaluation* evaluation; // NULL: none
    float* losses;                // an evaluation's: (m, B, T), on the device of the rank with the head; else NULL
} StepInput;

static inline int64_t microbatch_first(const Trainer* t, const StepInput* input, int k) {
    const ParallelConfig* parallel = &t->stage.layout.parallel;
    const int64_t d = parallel->mesh.d, place = input->trains ? place_among_leaves(parallel) : parallel->mesh.data;
    const bool in_turn = !input->trains || parallel_deals_in_turn(parallel);
    return input->first + (in_turn ? k * d + place : place * input->schedule->config.m + k) * t->stage.B;
}

static inline int microbatch_sequences(const Trainer* t, const StepInput* input, int k) {
    return (int)min_i64(t->stage.B, input->end - microbatch_first(t, input, k));
}

static inline int64_t validation_sequences(const Trainer* t) {
    return min_i64(t->settings.eval_sequences, t->val.count);
}

// Data ranks take groups of B of these sequences in turn, so some may have one micro-batch less.
static inline int microbatches_in_turn(const Trainer* t, int64_t sequences) {
    const Mesh* mesh = &t->stage.layout.parallel.mesh;
    const int64_t groups = (sequences + t->stage.B - 1) / t->stage.B;
    return (int)((groups - mesh->data + mesh->d - 1) / mesh->d);
}

// Micro-batches of a replica in one window of a validation or evaluation, and the sequences of all replicas: enough
// that filling the pipeline costs little, few enough that their tokens take little memory.
static inline int forward_window(const Trainer* t) { return 32 * t->stage.layout.parallel.mesh.p; }
static inline int64_t window_sequences(const Trainer* t) {
    return (int64_t)forward_window(t) * t->stage.B * t->stage.layout.parallel.mesh.d;
}

// The most micro-batches of a replica whose tokens are loaded at once: a step's, or a window's.
static inline int most_loaded(const Trainer* t) {
    const Settings* o = &t->settings;
    const bool trains = settings_is_training(o);
    const int64_t sequences = (int64_t)t->stage.B * t->stage.layout.parallel.mesh.d;
    int64_t window = trains && o->eval_every ? (o->eval_sequences + sequences - 1) / sequences : 1;
    window = o->evaluate ? forward_window(t) : min_i64(window, forward_window(t));
    return (int)max_i64(window, trains ? t->schedule.config.m : 1);
}

// A batch has two numbers for every token: input and target.
static inline size_t batch_bytes(const TokenBatch* batch) { return (size_t)(2 * batch->tokens) * sizeof(int32_t); }
// Bytes of the losses of a window's tokens, which the rank with the head keeps while it evaluates.
static inline size_t evaluation_bytes(const Trainer* t) {
    return (size_t)forward_window(t) * (size_t)t->stage.B * (size_t)t->stage.T * sizeof(float);
}

// Bytes that tokens and an evaluation's losses take on the device of a rank with this layout. arena_bytes: an arena's,
// where scratch includes these; rank_bytes: all arenas'.
static inline double loaded_bytes(const Trainer* t, const Layout* layout) {
    const TokenBatch batch = {NULL, NULL, (int64_t)most_loaded(t) * t->stage.B * t->stage.T};
    const bool loads = layout->first_stage || layout->last_stage;
    const bool evaluates = t->settings.evaluate && layout->last_stage;
    return (loads ? (double)batch_bytes(&batch) : 0) + (evaluates ? (double)evaluation_bytes(t) : 0);
}
static inline double arena_bytes(const Trainer* t, const Stage* stage, int arena) {
    return (double)stage->memory[arena].used + (arena == ARENA_SCRATCH ? loaded_bytes(t, &stage->layout) : 0);
}
static inline double rank_bytes(const Trainer* t, Stage* stage) {
    return stage_bytes(stage) + loaded_bytes(t, &stage->layout);
}

static inline void batch_free(TokenBatch* batch) {
    if (!DEVICE_IS_HOST) free(batch->host);
    device_free(batch->device, batch_bytes(batch));
    memset(batch, 0, sizeof *batch);
}

// Makes room for `tokens` tokens, on host and device. The old content is lost.
static inline void batch_reserve(TokenBatch* batch, int64_t tokens) {
    if (batch->tokens >= tokens) return;
    batch_free(batch);
    batch->tokens = tokens;
    batch->device = (int32_t*)device_malloc(batch_bytes(batch), "the tokens of a batch");
    batch->host =
        DEVICE_IS_HOST ? batch->device : (int32_t*)checked_malloc(batch_bytes(batch), "the tokens of a batch");
}

// The same for micro-batches of a run: at the first call for all that it loads at once.
static inline void reserve_microbatches(Trainer* t, int microbatches) {
    batch_reserve(&t->batch, max_i64(microbatches, most_loaded(t)) * t->stage.B * t->stage.T);
}

// Where the inputs and the targets of micro-batch k begin, in host or device memory of the batch.
static inline int32_t* batch_inputs(const Trainer* t, int32_t* memory, int k) {
    return memory + (int64_t)k * t->stage.B * t->stage.T;
}
static inline int32_t* batch_targets(const Trainer* t, int32_t* memory, int k) {
    return batch_inputs(t, memory, k) + t->batch.tokens;
}

// Loads one micro-batch of training, validation, or an evaluation.
static inline void load_microbatch(Trainer* t, const StepInput* input, int k) {
    const int T = t->stage.T, n = microbatch_sequences(t, input, k);
    const Evaluation* e = input->evaluation;
    Error error;
    for (int b = 0; b < n; b++) {
        int32_t* inputs = batch_inputs(t, t->batch.host, k) + b * T;
        int32_t* targets = batch_targets(t, t->batch.host, k) + b * T;
        const int64_t sequence = microbatch_first(t, input, k) + b;
        if (e)
            evaluation_row(inputs, targets, e, sequence);
        else if (!dataloader_sequence(inputs, targets, input->loader, (uint64_t)sequence, &error))
            die("%s", error.text);
    }
}

// Loads the tokens of all micro-batches of a pass, where the stage has the embedding or the head.
static inline void load_batch(Trainer* t, const StepInput* input) {
    const Stage* stage = &t->stage;
    const int m = input->schedule->config.m;
    if (!stage->layout.first_stage && !stage->layout.last_stage) return;
    reserve_microbatches(t, m);
    for (int k = 0; k < m; k++) load_microbatch(t, input, k);
    if (DEVICE_IS_HOST) return;
    const TokenBatch* batch = &t->batch;
    const size_t size =
        (size_t)m * (size_t)stage->B * (size_t)stage->T * sizeof(int32_t); // the inputs', and the targets'
    device_from_host(batch->device, batch->host, size);
    device_from_host(batch->device + batch->tokens, batch->host + batch->tokens, size);
}

// Where the losses of micro-batch k are added up: in training, its leaf's sum.
static inline double* loss_of_microbatch(const Stage* stage, const StepInput* input, int k) {
    const int leaf = input->trains ? leaf_of_microbatch(&stage->layout.parallel, k, input->schedule->config.m) : 0;
    return stage->sums + first_loss(&stage->layout) + leaf;
}

// The tokens of a step that the ranks of a scope train on.
static inline double step_tokens(const Trainer* t, Scope scope) {
    const double tokens = (double)t->settings.global_batch * t->stage.T;
    return scope == SCOPE_SITE ? tokens / t->stage.layout.parallel.mesh.sites : tokens;
}

// Binds activations to micro-batch k in a chunk.
static inline void bind_microbatch(const Trainer* t, Activations* acts, const StepInput* input, int chunk, int k) {
    const Stage* stage = &t->stage;
    activations_bind(acts, stage, chunk, k, microbatch_sequences(t, input, k), stage->T, false);
    if (acts->chunk->first || acts->chunk->last) { // elsewhere no tokens were loaded
        acts->inputs = batch_inputs(t, t->batch.device, k);
        acts->targets.token = batch_targets(t, t->batch.device, k);
    }
    acts->targets.scale = input->trains ? (float)(1 / step_tokens(t, stage->grads.scope)) : 0; // the mean loss
}

// The elements of one message about micro-batch k between two stages.
static inline int64_t message_elements(const Trainer* t, const StepInput* input, int k) {
    const Stage* stage = &t->stage;
    const int64_t B = microbatch_sequences(t, input, k);
    return boundary_elements(&stage->layout.parallel, stage->layout.streams * B * stage->T * stage->model.C);
}
