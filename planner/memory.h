/*
memory.h: the memory of a run that has not been started.

    plan_memory    bytes of the largest rank of a mesh: the arenas of parallel/stage.h, exactly
    memory_floor   a lower bound of it, without a plan

On a GPU the driver's context, the kernels' code and cuBLAS's workspace come on top of the arenas; on cores packed
matrices, MPI's buffers and the text.

Theory: not every rank has to be planned.

    tensor, data    Ranks of a stage have slices of the same shapes: matrices are cut in equal parts (mesh_check), the
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

#include "../methods/async_dp.h"

// Bytes of one rank.
typedef struct {
    double arena[ARENAS]; // in the order of arena_names
    double bytes;         // together
    double unused;        // of scratch: keys and values for generating text, which training does not touch
    int pipeline;         // the stage
} StageMemory;

// The memory of a planned stage.
static inline StageMemory memory_of_stage(Stage* s) {
    StageMemory memory;
    for (int i = 0; i < ARENAS; i++) memory.arena[i] = (double)s->memory[i].used;
    memory.bytes = stage_bytes(s);
    memory.unused = (double)(kv_cache_elements(s) * s->type.bytes);
    memory.pipeline = s->layout.mesh.pipeline;
    return memory;
}

// The stage of the rank at mesh's coordinates, to be freed by plan_stage_free. async NULL: synchronous.
static inline bool plan_stage(Stage* s, const ModelConfig* m, const Mesh* mesh, int B, int T,
                              const PipelineConfig* plan, const AsyncConfig* async, DtypeInfo type, Error* error) {
    Schedule schedule = schedule_build(plan, mesh->pipeline);
    const Scope scope = async ? async_schedule_scope(async) : SCOPE_WORLD;
    const bool ok = stage_plan(s, m, *mesh, B, T, &schedule, scope, type, error);
    schedule_free(&schedule);
    if (ok && async) async_dp_plan(s, async);
    return ok;
}

static inline void plan_stage_free(Stage* s) {
    async_dp_free(s);
    stage_free(s);
}

// The next stage after `stage` that may be the largest of a mesh.
static inline int next_distinct_stage(const PipelineConfig* plan, int stage) {
    if (schedule_splits_backward(plan->kind)) return stage + 1;
    return stage == 1 ? (int)max_i64(2, plan->p - 1) : stage + 1;
}

// ----------------------------------------------------------------------------------------------------------------
// The largest rank of a mesh, whose coordinates do not matter here. plan: its schedule and micro-batches of B sequences
// of T tokens. An inconsistent shape is refused, in terms of the trainer's options.

// room: stages after one with more bytes are not planned.
static inline bool plan_memory_within(StageMemory* largest, double room, const ModelConfig* m, const Mesh* mesh, int B,
                                      int T, const PipelineConfig* plan, const AsyncConfig* async, DtypeInfo type,
                                      Error* error) {
    Mesh at = *mesh;
    memset(largest, 0, sizeof *largest);
    at.tensor = at.data = at.pipeline = 0;
    if (!pipeline_config_check(plan, mesh->recompute, error)) return false; // the mesh is checked by stage_plan
    for (; at.pipeline < plan->p && largest->bytes <= room; at.pipeline = next_distinct_stage(plan, at.pipeline)) {
        Stage s;
        if (!plan_stage(&s, m, &at, B, T, plan, async, type, error)) return false;
        const StageMemory x = memory_of_stage(&s);
        if (x.bytes > largest->bytes) *largest = x;
        plan_stage_free(&s);
    }
    return true;
}

static inline bool plan_memory(StageMemory* largest, const ModelConfig* m, const Mesh* mesh, int B, int T,
                               const PipelineConfig* plan, DtypeInfo type, Error* error) {
    return plan_memory_within(largest, INFINITY, m, mesh, B, T, plan, NULL, type, error);
}

// parameters: of the whole model.
static inline double memory_floor(double parameters, const Mesh* mesh, DtypeInfo type) {
    const double shards = mesh->zero ? mesh->d : 1, gradients = mesh->zero < 2 ? 4 : 0;
    const double owned = (mesh->zero ? 4 : 0) + 4.0 * (type.moments + type.masters);
    return parameters / mesh->t / mesh->p * (type.bytes + gradients + owned / shards);
}
