/*
one_rank.h: a stage of one rank with one micro-batch, whose weights and tokens a test sets, for tests of the model
without the trainer's loop: test_gpt.c, test_caat.c, test_trainer.c.
*/
#pragma once

#pragma GCC diagnostic ignored "-Wunused-function" // of the model's functions no test uses all
#include "../../../gpt.h"
#include "../../../parallel/optimizer.h"
#include "../../../checkpoint/save.h"
#include "../../../trainer/batch.h"
#include "test.h"

// Channels of a small model's mlp. Where rows are no multiples of 16 bytes, a GPU's kernels add in another order, and
// one that is fused with its neighbour sees other arrays.
enum { MLP_CHANNELS = DEVICE_IS_HOST ? 100 : 104 };

// Unit roundoff of floatX: fp32, which has no master weights, or bf16.
static inline double unit_roundoff(void) { return HAS_MASTER_WEIGHTS ? 0x1p-8 : 0x1p-24; }

// n floats of device memory, and n floatX, in new host memory.
static inline float* host_floats(const float* device, int64_t n) {
    float* host = (float*)checked_malloc((size_t)n * sizeof(float), "test");
    device_to_host(host, device, (size_t)n * sizeof(float));
    return host;
}
static inline float* host_values(const floatX* device, int64_t n) {
    float* host = (float*)checked_malloc((size_t)n * sizeof(float), "test");
    device_to_floats(host, device, n);
    return host;
}

// One of the three values of all parameters, without ZeRO.
static inline float* host_state(const Stage* s, int what) {
    return host_floats(stage_values(s, what).at, s->layout.elements);
}

// Whether all parameters of two stages, as they are computed with and as they are kept, and their moments are the same.
static inline bool same_state(const Stage* a, const Stage* b) {
    const size_t n = (size_t)a->layout.elements;
    float *x = host_values(a->params, (int64_t)n), *y = host_values(b->params, (int64_t)n);
    bool same = memcmp(x, y, n * sizeof(float)) == 0;
    for (int what = 0; what < CHECKPOINT_VALUES; what++) {
        free(x), free(y);
        x = host_state(a, what);
        y = host_state(b, what);
        same = same && memcmp(x, y, n * sizeof(float)) == 0;
    }
    free(x), free(y);
    return same;
}

// Gives a stage its weights: layout.elements, which are freed.
static inline void give_weights(const Stage* s, float* weights) {
    for (int b = 0; b < s->layout.buckets; b++) set_bucket_weights(s, b, weights + s->layout.bucket[b].offset);
    free(weights);
}

// Zeros, for weights that a test sets.
static inline float* zero_weights(const Stage* s) {
    return (float*)checked_calloc((size_t)s->layout.elements, sizeof(float), "test");
}

static inline void draw_weights(const Stage* s) {
    float* weights = zero_weights(s);
    layout_initialize(weights, &s->layout, 1);
    give_weights(s, weights);
}

// Groups of one rank.
static inline ProcessGroups groups_alone(Comm* world, const Stage* s) {
    ProcessGroups groups;
    comm_open(world);
    process_groups_init(&groups, world, &s->layout, &s->model);
    return groups;
}

// A stage of one rank, with one micro-batch. Its weights are not set.
typedef struct {
    Stage stage;
    Schedule schedule;
    Comm world;
    ProcessGroups groups;
    TokenBatch batch;
} Alone;

static inline void alone_plan(Alone* x, const ModelConfig* m, CaatConfig sync, int B, int T) {
    memset(x, 0, sizeof *x);
    const PipelineConfig plan = {ONE_F_ONE_B, 1, 1, 1, false, m->tied};
    ParallelConfig parallel = parallel_of_rank(0, 1, 1, 1);
    Error error;
    parallel.caat = sync;
    x->schedule = schedule_build(&plan, 0);
    if (!stage_plan(&x->stage, m, parallel, B, T, &x->schedule, SCOPE_WORLD, native_dtype(), &error))
        die("%s", error.text);
    stage_allocate(&x->stage);
    x->groups = groups_alone(&x->world, &x->stage);
    x->stage.groups = &x->groups;
}

static inline void alone_close(Alone* x) {
    batch_free(&x->batch);
    groups_close(&x->groups);
    stage_free(&x->stage);
    schedule_free(&x->schedule);
}

// With random tokens.
static inline void alone_open(Alone* x, const ModelConfig* m, CaatConfig sync, int B) {
    alone_plan(x, m, sync, B, m->T);
    Activations* a = &x->stage.activations[0];
    activations_bind(a, &x->stage, 0, 0, B, m->T, false);
    batch_reserve(&x->batch, a->tokens);
    for (int i = 0; i < 2 * a->tokens; i++)
        x->batch.host[i] = (int32_t)(random_uniform(3, 3, (uint64_t)i) * (float)m->V);
    device_from_host(x->batch.device, x->batch.host, 2 * (size_t)a->tokens * sizeof(int32_t));
    a->inputs = x->batch.device;
    a->targets.token = x->batch.device + a->tokens;
}

// The mean loss with other parameters: those of x plus h times direction (layout.elements each).
static inline double loss_at(Alone* x, const float* params, const float* direction, double h) {
    Stage* s = &x->stage;
    Activations* a = &s->activations[0];
    const int64_t n = s->layout.elements;
    float* moved = (float*)checked_malloc((size_t)n * sizeof(float), "test");
    for (int64_t i = 0; i < n; i++) moved[i] = (float)((double)params[i] + h * (double)direction[i]);
    device_from_floats(s->params, moved, n);
    free(moved);
    a->targets.scale = 0;
    chunk_forward(s, a);
    float* losses = host_floats(a->head->losses, a->tokens);
    double sum = 0;
    for (int i = 0; i < a->tokens; i++) sum += (double)losses[i];
    free(losses);
    return sum / a->tokens;
}
