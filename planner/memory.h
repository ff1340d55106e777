/*
memory.h: the memory of a run that has not been started, by formulas that give the trainer's arenas to the byte
(test_planner_memory.c compares them with parallel/stage.h and methods/async_dp.h on many meshes).

    memory_of_stage   bytes of a stage's five arenas
    plan_memory       of the largest rank of a mesh, with a step's tokens
    memory_floor      a lower bound of it, without a plan

On a GPU the driver's context, the kernels' code and cuBLAS's workspace come on top of the arenas; on cores packed
matrices, MPI's buffers and the text.

Theory: with N = B T rows of C channels over all streams, of which R = N / t with sequence parallelism, q, k and v of
this rank's heads A, and F channels inside the mlp (F' of its first matrix), values of e bytes:

    block, kept     R (4 x 4 + e C) + N e (A + NH HS + F') + 4 N NH; and R e 2 C + N e F, cheap to compute again
    slot            l blocks between l + 1 streams of R e C, for each of the micro-batches in flight (schedule.h)
    head            R (e C + 8) + N (e V + 16), for each in flight on the last stage
    parameters      n e; optimizer: 4 n for each moment, and for master weights; with ZeRO n / d. gradients: 4 n, with
                    ZeRO-1 and 4 n / d, with ZeRO-2 two buckets and 4 n / d
    scratch         a block's gradients and temporaries; where B and W are apart a set for each micro-batch between them

Every buffer begins at a multiple of 256 bytes. Not every rank has to be planned:

    tensor, data    Ranks of a stage have slices of the same shapes: matrices are cut in equal parts (parallel_check),
                    vocabulary in parts that are padded to be equal, buckets in shards to whose number they are padded.
    pipeline        Memory grows with the blocks of a chunk, the in-flight micro-batches, the micro-batches between
                    their B and W passes, and with an embedding or a head. Between the first and the last stage none has
                    more blocks than the second (earlier ones get the remainder); and in gpipe, 1f1b and interleaved
                    none has more in-flight micro-batches, since these return later to earlier stages. So three stages
                    are planned: the first, the second, the last. With the zb-* schedules later stages keep more between
                    B and W: there all are planned.
    floor           The largest rank has at least the mean of the stages: N / (t p) of the model's parameters, with
                    their gradients and their share of the optimizer. A search of large models refuses most meshes by
                    that alone. Nor are further stages planned after one that has no room.
*/
#pragma once

#include "../methods/async_schedule.h"
#include "../parallel/schedule.h"

// Bytes of one rank.
typedef struct {
    double arena[ARENAS]; // in the order of arena_names
    double bytes;         // together
    int pipeline;         // the stage
} StageMemory;

// What the formulas are made of: rows, channels of this rank, bytes of a value.
typedef struct {
    double N, R, C, qkv, attention, fc, F, V, e;
    int NH;
} StageShape;

// A buffer in an arena.
static inline double taken(double bytes) { return ceil(bytes / 256) * 256; }

// A block's: what recomputation does not make again; what it does.
static inline double block_kept(const StageShape* x) {
    return 4 * taken(4 * x->R) + taken(x->N * x->e * x->qkv) + taken(x->N * x->e * x->attention) +
           taken(4 * x->N * x->NH) + taken(x->R * x->e * x->C) + taken(x->N * x->e * x->fc);
}

static inline double block_cheap(const StageShape* x) {
    return 2 * taken(x->R * x->e * x->C) + taken(x->N * x->e * x->F);
}

static inline double block_gradients(const StageShape* x) {
    return taken(x->N * x->e * x->qkv) + taken(x->N * x->e * x->fc) + 2 * taken(x->N * x->e * x->C);
}

static inline double memory_of_gradients(const Layout* layout, const ModelConfig* m, Scope scope) {
    const ParallelConfig* parallel = &layout->parallel;
    const Mesh* mesh = &parallel->mesh;
    const double n = (double)layout->elements, largest = (double)largest_bucket(layout);
    const int replicas = mesh_site_size(mesh);
    double bytes = parallel->zero < 2 ? taken(4 * n) : 2 * (taken(4 * largest) + taken(4 * largest / mesh->d));
    if (parallel->zero) bytes += taken(4 * n / mesh->d);
    if (scope == SCOPE_WORLD && mesh->sites > 1 && replicas > 1) bytes += taken(4 * n / replicas);
    if (m->tied && layout->first_stage && layout->last_stage && parallel->zero < 2) // one for each use of the embedding
        bytes += taken(4.0 * layout_embedding_rows(layout) * m->C);
    return bytes;
}

static inline double memory_of_optimizer(const Layout* layout, const AsyncConfig* async, DtypeInfo type) {
    const double n = (double)layout->elements, share = layout->parallel.zero ? n / layout->parallel.mesh.d : n;
    double bytes = (type.moments + type.masters) * taken(4 * share);
    if (!async || !async_schedule_is_local(async)) return bytes;
    bytes += (async->mode == DP_DILOCO ? 3 : 2) * taken(4 * n); // global parameters, a sum, diloco's velocity
    return bytes + (async->compensation > 0 ? taken(8.0 * layout->tensors) : 0);
}

static inline double memory_of_activations(const Layout* layout, const StageShape* x, const Schedule* schedule) {
    const ParallelConfig* parallel = &layout->parallel;
    const double stream = taken(x->R * x->e * x->C);
    const double message = taken(x->e * (double)boundary_elements(parallel, (int64_t)(x->N * x->C)));
    double block = parallel->recompute == RECOMPUTE_FULL ? 0 : block_kept(x);
    int layers = 0, messages = 0;
    if (parallel->recompute == RECOMPUTE_NONE) block += block_cheap(x);
    for (int c = 0; c < parallel->v; c++) {
        layers = (int)max_i64(layers, layout->chunk[c].layers);
        messages += 2 * !layout->chunk[c].first + !layout->chunk[c].last; // input, its gradient; the output's gradient
    }
    const int heads = layout->last_stage ? schedule_in_flight(schedule, parallel->v - 1, FORWARD) : 0;
    return schedule->slots * ((layers + 1) * stream + layers * block) +
           heads * (stream + 2 * taken(4 * x->R) + taken(x->N * x->e * x->V) + 2 * taken(4 * x->N) + taken(8 * x->N)) +
           messages * PIPELINE_BUFFERS_PER_DIRECTION * message;
}

static inline double memory_of_scratch(const Layout* layout, const StageShape* x, const Schedule* schedule,
                                       const ModelConfig* m) {
    const ParallelConfig* parallel = &layout->parallel;
    const double stream = taken(x->R * x->e * x->C); // branch, dnorm, the gradient of a stream
    double bytes = 2 * stream + taken(x->N * x->e * fmax(x->F, x->attention));
    bytes += taken(8.0 * (layout->tensors + 1)) + taken(8.0 * layout->n); // sums, checksums
    if (parallel->recompute != RECOMPUTE_NONE) bytes += block_kept(x) + block_cheap(x);
    if (!schedule_splits_backward(schedule->config.kind)) {
        bytes += block_gradients(x) + stream;
    } else {
        for (int c = 0; c < parallel->v; c++)
            bytes += schedule_in_flight(schedule, c, BACKWARD_INPUT) *
                     (stream + layout->chunk[c].layers * block_gradients(x));
    }
    if (parallel->sequence_parallel) bytes += 2 * taken(x->N * x->e * x->C);
    if (parallel->caat.ranks) bytes += taken(4 * x->N / layout->streams * x->C);
    if (m->position == POSITION_ROPE) bytes += taken(4.0 * m->T * model_head_size(m));
    return bytes;
}

// The stage at the mesh's coordinates, whose layout this is. async NULL: synchronous.
static inline StageMemory memory_of_stage(const Layout* layout, const ModelConfig* m, int B, int T,
                                          const Schedule* schedule, const AsyncConfig* async, DtypeInfo type) {
    const Mesh* mesh = &layout->parallel.mesh;
    const double N = (double)layout->streams * B * T, HS = model_head_size(m);
    const StageShape x = {N,
                          layout->parallel.sequence_parallel ? N / mesh->t : N,
                          (double)m->C,
                          (layout->NH + 2 * layout->NKV) * HS,
                          layout->NH * HS,
                          model_is_gated(m) ? 2.0 * layout->F : layout->F,
                          (double)layout->F,
                          (double)layout->V,
                          (double)type.bytes,
                          layout->NH};
    StageMemory memory = {};
    memory.arena[ARENA_PARAMETERS] = taken((double)layout->elements * type.bytes);
    memory.arena[ARENA_GRADIENTS] = memory_of_gradients(layout, m, async ? async_schedule_scope(async) : SCOPE_WORLD);
    memory.arena[ARENA_OPTIMIZER] = memory_of_optimizer(layout, async, type);
    memory.arena[ARENA_ACTIVATIONS] = memory_of_activations(layout, &x, schedule);
    memory.arena[ARENA_SCRATCH] = memory_of_scratch(layout, &x, schedule, m);
    if (mesh->data == 0) // keys and values of the texts that the first replica generates
        memory.arena[ARENA_SCRATCH] += taken(2 * x.e * layout->layers * layout->streams * T * layout->NKV * HS);
    for (int i = 0; i < ARENAS; i++) memory.bytes += memory.arena[i];
    memory.pipeline = mesh->pipeline;
    return memory;
}

// The next stage after `stage` that may be the largest of a mesh.
static inline int next_distinct_stage(const PipelineConfig* plan, int stage) {
    if (schedule_splits_backward(plan->kind)) return stage + 1;
    return stage == 1 ? (int)max_i64(2, plan->p - 1) : stage + 1;
}

// The largest rank of a mesh, whose coordinates do not matter here. plan: its schedule and micro-batches of B sequences
// of T tokens. room: stages after one with more bytes are not planned. An inconsistent shape is refused, in terms of
// the trainer's options.
static inline bool plan_memory(StageMemory* largest, double room, const ModelConfig* m, const ParallelConfig* parallel,
                               int B, int T, const PipelineConfig* plan, const AsyncConfig* async, DtypeInfo type,
                               Error* error) {
    ParallelConfig at = *parallel;
    memset(largest, 0, sizeof *largest);
    at.mesh.tensor = at.mesh.data = at.mesh.pipeline = 0;
    if (!pipeline_config_check(plan, parallel->recompute, error)) return false; // the mesh is checked by layout_build
    for (; at.mesh.pipeline < plan->p && largest->bytes <= room;
         at.mesh.pipeline = next_distinct_stage(plan, at.mesh.pipeline)) {
        Layout layout;
        if ((int64_t)B * T * streams_per_rank(parallel) > INT32_MAX)
            return fail(error, "--micro-batch %d of %d tokens is more than 2^31 tokens at once", B, T);
        if (!layout_build(&layout, m, at, T, error)) return false;
        Schedule schedule = schedule_build(plan, at.mesh.pipeline);
        StageMemory x = memory_of_stage(&layout, m, B, T, &schedule, async, type);
        const double tokens = layout.first_stage || layout.last_stage ? (double)plan->m * B * T : 0;
        x.arena[ARENA_SCRATCH] += 8 * tokens, x.bytes += 8 * tokens; // inputs and targets
        if (x.bytes > largest->bytes) *largest = x;
        schedule_free(&schedule);
        layout_free(&layout);
    }
    return true;
}

// parameters: of the whole model.
static inline double memory_floor(double parameters, const ParallelConfig* parallel, DtypeInfo type) {
    const Mesh* mesh = &parallel->mesh;
    const double shards = parallel->zero ? mesh->d : 1, gradients = parallel->zero < 2 ? 4 : 0;
    const double owned = (parallel->zero ? 4 : 0) + 4.0 * (type.moments + type.masters);
    return parameters / mesh->t / mesh->p * (type.bytes + gradients + owned / shards);
}
