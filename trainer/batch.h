/*
trainer/batch.h: the tokens of a step. A run through a schedule works on micro-batches; here is which sequences each has, and
how they reach the device.
*/
#ifndef BATCH_H
#define BATCH_H

#include "trainer.h"

// The sequences that a run through a schedule works on: micro-batch k of data rank r has the sequences from
// first + (r m + k) B on (training), or every d-th group of B (validation), but none from `end` on. They are those of
// loader, or the rows of an evaluation.
typedef struct {
    const Schedule* schedule;
    const DataMix* loader;
    int64_t first, end;
    bool trains;
    const Evaluation* evaluation; // NULL: none
    float* losses;                // (m, B, T), on the device: of an evaluation's tokens, where the head is
} StepInput;

static inline int64_t microbatch_first(const Trainer* t, const StepInput* pass, int k) {
    const Mesh* mesh = &t->stage.layout.mesh;
    const int m = pass->schedule->config.m;
    const int64_t number = pass->trains ? (int64_t)mesh->data * m + k : (int64_t)k * mesh->d + mesh->data;
    return pass->first + number * t->stage.B;
}

static inline int microbatch_sequences(const Trainer* t, const StepInput* pass, int k) {
    return (int)min_i64(t->stage.B, pass->end - microbatch_first(t, pass, k));
}

enum { BATCH_ARRAYS = 3 };

static inline size_t batch_bytes(int64_t tokens) { return BATCH_ARRAYS * (size_t)tokens * sizeof(int32_t); }

static inline void batch_reserve(TokenBatch* batch, int64_t tokens) {
    if (batch->tokens >= tokens) return;
    const size_t bytes = batch_bytes(tokens), before = batch_bytes(batch->tokens);
    if (!DEVICE_IS_HOST) free(batch->host);
    device_free(batch->device, before);
    batch->device = (int32_t*)device_malloc(bytes, "the tokens of a batch");
    batch->host = DEVICE_IS_HOST ? batch->device : (int32_t*)checked_malloc(bytes, "the tokens of a batch");
    batch->tokens = tokens;
}

static inline void batch_free(TokenBatch* batch) {
    if (!DEVICE_IS_HOST) free(batch->host);
    device_free(batch->device, batch_bytes(batch->tokens));
    memset(batch, 0, sizeof *batch);
}

// Loads the tokens of all micro-batches of a pass, where the stage has the embedding or the head; and where documents begin,
// which all stages have to know.
static inline void load_batch(Trainer* t, const StepInput* pass) {
    const Stage* stage = &t->stage;
    const int64_t room = (int64_t)pass->schedule->config.m * stage->B * stage->T;
    const Evaluation* e = pass->evaluation;
    const bool documents = t->settings.document_mask;
    Error error;
    if (!stage->layout.first_stage && !stage->layout.last_stage && !documents) return;
    batch_reserve(&t->batch, room);
    for (int k = 0; k < pass->schedule->config.m; k++) {
        for (int b = 0; b < microbatch_sequences(t, pass, k); b++) {
            int32_t* inputs = t->batch.host + ((int64_t)k * stage->B + b) * stage->T;
            int32_t *targets = inputs + t->batch.tokens, *positions = targets + t->batch.tokens;
            const int64_t sequence = microbatch_first(t, pass, k) + b;
            if (!(e ? evaluation_row(inputs, targets, e, stage->model.V, sequence, &error)
                    : mix_sequence(inputs, targets, pass->loader, (uint64_t)sequence, &error)))
                die("%s", error.text);
            if (documents && e) evaluation_positions(positions, inputs, e, sequence);
            if (documents && !e) mix_positions(positions, inputs, pass->loader, (uint64_t)sequence);
        }
    }
    for (int i = 0; i < (documents ? 3 : 2) && !DEVICE_IS_HOST; i++)
        device_from_host(t->batch.device + i * t->batch.tokens, t->batch.host + i * t->batch.tokens,
                         (size_t)room * sizeof(int32_t));
}

// The tokens over whose losses a step's loss, and its gradient, are the mean: all, or those of this site where sites go
// their own way.
static inline double step_tokens(const Trainer* t) {
    const double tokens = (double)t->settings.global_batch * t->stage.T;
    return async_schedule_are_local(&t->stage.rounds) ? tokens / t->stage.rounds.sites : tokens;
}

// A gradient in fp16 would vanish if it were that of the mean loss: there it is that of the sum, and the update divides.
static inline double gradient_factor(const Trainer* t) { return NEEDS_LOSS_SCALE ? step_tokens(t) : 1; }

// Shapes a for micro-batch k in a chunk.
static inline void bind_microbatch(const Trainer* t, Activations* acts, const StepInput* pass, int chunk, int k) {
    const Stage* stage = &t->stage;
    const int32_t* inputs = t->batch.device + (int64_t)k * stage->B * stage->T;
    activations_bind(acts, stage, chunk, k, microbatch_sequences(t, pass, k), stage->T, -1);
    if (acts->chunk->first || acts->chunk->last) acts->inputs = inputs, acts->targets = inputs + t->batch.tokens;
    if (t->settings.document_mask) acts->positions = inputs + 2 * t->batch.tokens;
    acts->scale =
        pass->trains ? (float)(gradient_factor(t) / step_tokens(t)) : 0; // the gradient is that of the mean loss
}

// The elements of one message about micro-batch k between two stages.
static inline int64_t message_elements(const Trainer* t, const StepInput* pass, int k) {
    const Stage* stage = &t->stage;
    const int64_t B = microbatch_sequences(t, pass, k);
    return boundary_elements(&stage->layout.mesh, stage->layout.states * B * stage->T * stage->model.C);
}

#endif
