/*
test_planner_memory.c: is what parallel/stage.h and planner/memory.h say of memory right?

    published     activations a block: Korthikanti et al. 2022
    formulas      planner/memory.h beside the stage that the trainer plans, of every rank of meshes of every kind
    any rank      the largest of three stages is the largest of all ranks, by looking at all of them
    refused       shapes that do not fit are refused by an Error
*/
#include "../../../planner/formulas.h"
#include "../../../methods/async_dp.h"
#include "../../../planner/memory.h"
#include "planner_fixture.h"

static const DtypeInfo fp32 = {4, false, 2}, bf16 = {2, true, 2};

static ModelConfig test_model(Arch arch, int L, int C, int NH, int NKV, int T, int V) {
    const ModelConfig m = model_of(arch, L, C, NH, NKV, architectures[arch].biases ? 4 * C : 3 * C, T, V);
    return m;
}

static ScheduleKind schedule_of_mesh; // of the one that config_of made last

static ParallelConfig config_of(int t, int p, int d, int v, ScheduleKind schedule) {
    ParallelConfig parallel = parallel_of_rank(0, t, p, d);
    schedule_of_mesh = schedule;
    parallel_set_schedule(&parallel, schedule, v);
    return parallel;
}

static PipelineConfig pipeline_of(const ModelConfig* m, const ParallelConfig* parallel, int micro_batches) {
    const PipelineConfig plan = {schedule_of_mesh, parallel->mesh.p,    parallel->v,
                                 micro_batches,    parallel->zero == 2, m->tied};
    return plan;
}

// The stage of the rank at mesh's coordinates, as the trainer plans it. async NULL: synchronous.
static bool plan_stage(Stage* s, const ModelConfig* m, const ParallelConfig* parallel, int B, int T,
                       const PipelineConfig* plan, const AsyncConfig* async, DtypeInfo type, Error* error) {
    Schedule schedule = schedule_build(plan, parallel->mesh.pipeline);
    const Scope scope = async ? async_schedule_scope(async) : SCOPE_WORLD;
    const bool ok = stage_plan(s, m, *parallel, B, T, &schedule, scope, type, error);
    schedule_free(&schedule);
    if (ok && async) async_dp_plan(s, async);
    return ok;
}

static int compared, differ; // ranks whose formulas were compared with the trainer's plan; those that differ

// The memory of one rank, by the trainer's own plan; memory_of_stage has the same.
static StageMemory memory_of(const ModelConfig* m, ParallelConfig parallel, int rank, int B, const PipelineConfig* plan,
                             const AsyncConfig* async, DtypeInfo type) {
    Stage s;
    Error error;
    StageMemory memory = {};
    parallel = parallel_at(&parallel, rank);
    if (!plan_stage(&s, m, &parallel, B, m->T, plan, async, type, &error)) die("%s", error.text);
    for (int i = 0; i < ARENAS; i++) memory.arena[i] = (double)s.memory[i].used;
    memory.bytes = stage_bytes(&s);
    memory.pipeline = parallel.mesh.pipeline;
    Schedule schedule = schedule_build(plan, parallel.mesh.pipeline);
    const StageMemory formulas = memory_of_stage(&s.layout, m, B, m->T, &schedule, async, type);
    schedule_free(&schedule);
    compared++;
    differ += memcmp(&memory, &formulas, sizeof memory) != 0;
    if (s.layout.first_stage || s.layout.last_stage) memory.bytes += 8.0 * plan->m * B * m->T; // tokens, by plan_memory
    async_dp_free(&s);
    stage_free(&s);
    return memory;
}

static StageMemory memory_of_rank(const ModelConfig* m, ParallelConfig parallel, int rank, int B, int micro_batches,
                                  DtypeInfo type) {
    const PipelineConfig plan = pipeline_of(m, &parallel, micro_batches);
    return memory_of(m, parallel, rank, B, &plan, NULL, type);
}

// ---- Published --------------------------------------------------------------------------------------------------

// What one more block adds to one micro-batch, in bytes a row and channel, without the rows' statistics. (s b h in the
// paper's words, whose model has F = 4 C and biases as ours.)
static double bytes_of_block(int t, bool sequence, Recompute recompute) {
    enum { C = 1024, T = 256, B = 2 };
    const ModelConfig small = test_model(ARCH_GPT2, 2, C, 16, 16, T, 512),
                      large = test_model(ARCH_GPT2, 3, C, 16, 16, T, 512);
    ParallelConfig parallel = config_of(t, 1, 1, 1, ONE_F_ONE_B);
    parallel.sequence_parallel = sequence;
    parallel.recompute = recompute;
    const double more = memory_of_rank(&large, parallel, 0, B, 1, bf16).arena[3] -
                        memory_of_rank(&small, parallel, 0, B, 1, bf16).arena[3];
    const double rows = B * T, mine = sequence ? rows / t : rows;
    const double statistics = recompute == RECOMPUTE_FULL ? 0 : 4 * (4 * mine + rows * 16 / t); // norms; attention
    return (more - statistics) / (rows * C);
}

static void test_published(void) {
    // The paper's include masks of dropout, one byte each behind attention and mlp, which are not here. Its 5 a s / h,
    // scores and their masks, is what this attention does not store; so its "selective" is what we have without
    // recomputation.
    for (int t = 1; t <= 8; t *= 2) {
        const double plain = bytes_of_block(t, false, RECOMPUTE_NONE), paper = 10 + 24.0 / t;
        check(plain == paper - 2, "t = %d: %g s b h a block; Korthikanti et al.: 10 + 24 / t = %g with masks", t, plain,
              paper);
        if (t == 1) continue;
        const double sequence = bytes_of_block(t, true, RECOMPUTE_NONE);
        check(fabs(sequence - (34.0 - 2) / t) < 1e-12, "t = %d, sequence parallel: %g s b h; 34 / t = %g with masks", t,
              sequence, 34.0 / t);
    }
    check(bytes_of_block(1, false, RECOMPUTE_FULL) == 2, "full recomputation: 2 s b h, the block's input");
    check(bytes_of_block(1, false, RECOMPUTE_SELECTIVE) == 32 - 4 - 8,
          "selective recomputation: two norms' outputs and the activation function less");
}

// Published formulas of memory, beside each other (Korthikanti et al. 2022).
static void test_formulas(void) {
    const ModelConfig m = model_of(ARCH_GPT2, 48, 6144, 64, 64, 24576, 2048, 51200);
    const double x = 2048.0 * 4 * 6144, scores = 5.0 * 64 * 2048 / 6144;
    check(relative(formula_block_bytes(&m, 4, 2048, 1, false, RECOMPUTE_NONE), x * (34 + scores)) < 1e-12 &&
              relative(formula_block_bytes(&m, 4, 2048, 8, true, RECOMPUTE_NONE), x * (34 + scores) / 8) < 1e-12 &&
              relative(formula_block_bytes(&m, 4, 2048, 8, false, RECOMPUTE_NONE), x * (10 + (24 + scores) / 8)) <
                  1e-12 &&
              relative(formula_block_bytes(&m, 4, 2048, 8, true, RECOMPUTE_SELECTIVE), x * 34 / 8) < 1e-12 &&
              relative(formula_block_bytes(&m, 4, 2048, 8, false, RECOMPUTE_FULL), 2 * x) < 1e-12,
          "bytes of a block: 34 s b h (1 + 5 a s / h), divided by t or not");
    ParallelConfig plain = config_of(8, 8, 1, 1, ONE_F_ONE_B), chunks = config_of(8, 8, 1, 3, INTERLEAVED);
    plain.recompute = chunks.recompute = RECOMPUTE_FULL;
    const PipelineConfig one = {ONE_F_ONE_B, 8, 1, 64, false, false}, three = {INTERLEAVED, 8, 3, 64, false, false};
    check(relative(formula_activation_bytes(&m, 4, 2048, &plain, &one, false), 48 * 2 * x) < 1e-12 &&
              relative(formula_activation_bytes(&m, 4, 2048, &chunks, &three, false), 48 * 2 * x * (1 + 7.0 / 24)) <
                  1e-12,
          "the first stage keeps L blocks' worth, interleaved 1 + (p - 1) / (p v) times that");
    const ModelConfig llama = model_of(ARCH_LLAMA, 80, 8192, 64, 8, 28672, 4096, 32000);
    ParallelConfig parallel = config_of(8, 1, 1, 1, ONE_F_ONE_B);
    const double rows = 2.0 * 4096 * 2, split = (8192 + 2 * 1024) + 8192 + 2 * 28672;
    const double apart = formula_fused_bytes(&llama, 2, 4096, &parallel);
    parallel.sequence_parallel = true;
    check(relative(apart, rows * (2 * 8192 + split / 8)) < 1e-12 &&
              relative(formula_fused_bytes(&llama, 2, 4096, &parallel), rows * (2 * 8192 + split) / 8) < 1e-12,
          "fused attention, grouped heads, a gate: norms' inputs, q, k, v, attention, two matrices");
    parallel.recompute = RECOMPUTE_FULL;
    check(formula_fused_bytes(&llama, 2, 4096, &parallel) == rows * 8192, "recomputed in full: the block's input");
}

// The slots of the formula are those of the schedule's own tables, on the stage that has the most.
static void test_slots(void) {
    static const int counts[] = {1, 2, 3, 4, 7, 8, 16, 40};
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        int plans = 0, wrong = 0;
        for (int p = 2; p <= 8; p *= 2) {
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
                const int v = kind == INTERLEAVED ? 3 : schedule_usual_chunks((ScheduleKind)kind), m = counts[i];
                const PipelineConfig plan = {(ScheduleKind)kind, p, v, m, false, false};
                Error error;
                if (!pipeline_config_check(&plan, RECOMPUTE_NONE, &error)) continue;
                int most = 0;
                for (int r = 0; r < p; r++) {
                    Schedule s = schedule_build(&plan, r);
                    most = (int)max_i64(most, s.slots);
                    schedule_free(&s);
                }
                plans++;
                wrong += formula_slots(&plan) != most;
            }
        }
        check(plans >= 9 && wrong == 0, "%s: slots of %d plans by formula, %d wrong", schedule_name((ScheduleKind)kind),
              plans, wrong);
    }
}

// ---- Any rank ---------------------------------------------------------------------------------------------------

// Compares plan_memory with all ranks of a mesh; counts the meshes that fit.
static void look_at_all(const ModelConfig* m, const ParallelConfig* parallel, int micro_batches, int* meshes,
                        int* wrong) {
    const PipelineConfig plan = pipeline_of(m, parallel, micro_batches);
    StageMemory largest;
    Error error;
    double most = 0;
    if (!plan_memory(&largest, INFINITY, m, parallel, 2, m->T, &plan, NULL, bf16, &error)) return;
    for (int rank = 0; rank < mesh_size(&parallel->mesh); rank++)
        most = fmax(most, memory_of_rank(m, *parallel, rank, 2, micro_batches, bf16).bytes);
    (*meshes)++;
    *wrong += most != largest.bytes;
}

static void test_any_rank(bool quick) {
    int meshes = 0, wrong = 0;
    for (int arch = 0; arch < ARCHS; arch++) {
        for (int L = 5; L <= 12; L += quick ? 7 : 1) {
            // A vocabulary that is large, and one that is small beside a block.
            for (int V = 61; V < 5000; V += 4099) {
                const ModelConfig m =
                    test_model((Arch)arch, L, 32, 4, architectures[arch].hub == HUB_LLAMA ? 2 : 4, 16, V);
                for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
                    for (int size = 0; size < 6 * 3 * 3; size++) {
                        ParallelConfig parallel =
                            config_of(1 << size / 6 % 3, 1 + size % 6, 1 + size / 18, 1, (ScheduleKind)kind);
                        parallel.v = kind == INTERLEAVED && L >= 3 * parallel.mesh.p
                                         ? 3
                                         : schedule_usual_chunks(schedule_of_mesh);
                        parallel.zero = size % 3;
                        parallel.recompute = (Recompute)((size + L) % 3);
                        for (int k = 1; k <= 3; k++)
                            look_at_all(&m, &parallel, k * parallel.mesh.p - (k == 1), &meshes, &wrong);
                    }
                }
            }
        }
    }
    check(wrong == 0 && meshes > 300,
          "%d meshes: the largest of the distinct stages is the largest of all ranks, %d not", meshes, wrong);
}

// ---- Refused ----------------------------------------------------------------------------------------------------

static void test_refused(void) {
    const ModelConfig* m = model_find_preset("gpt2-124M");
    static const struct {
        const char* word;
        int t, p, d, v, zero, B, T, micro_batches;
        ScheduleKind schedule;
    } rows[] = {{"--zero 2", 1, 2, 2, 1, 2, 1, 1024, 8, ZB_H1},
                {"--tp 5", 5, 1, 1, 1, 0, 1, 1024, 8, ONE_F_ONE_B},
                {"--pp", 1, 13, 1, 1, 0, 1, 1024, 13, ONE_F_ONE_B},
                {"multiple", 1, 4, 1, 2, 0, 1, 1024, 6, INTERLEAVED},
                {"2^31", 1, 1, 1, 1, 0, 1 << 20, 1 << 20, 1, ONE_F_ONE_B},
                {"micro-batch", 1, 1, 1, 1, 0, 1, 1024, 1 << 30, ONE_F_ONE_B}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ParallelConfig parallel = config_of(rows[i].t, rows[i].p, rows[i].d, rows[i].v, rows[i].schedule);
        parallel.zero = rows[i].zero;
        const PipelineConfig plan = pipeline_of(m, &parallel, rows[i].micro_batches);
        StageMemory memory;
        Error error = {""};
        const bool ok = plan_memory(&memory, INFINITY, m, &parallel, rows[i].B, rows[i].T, &plan, NULL, bf16, &error);
        check(!ok && strstr(error.text, rows[i].word), "refused: %s", ok ? "not at all" : error.text);
    }
}

// Meshes, models, methods and types drawn at random; the formulas agree with the trainer's plan of each rank.
static void test_random(int number) {
    int meshes = 0;
    compared = differ = 0;
    for (int i = 0; i < number; i++) {
        const int arch = draw(0, ARCHS - 1), L = 1 + draw(0, 11), T = 16 << draw(0, 2);
        ModelConfig m =
            test_model((Arch)arch, L, 64, 8, architectures[arch].hub == HUB_LLAMA ? 4 : 8, T, 50 + draw(0, 2999));
        m.tied = draw(0, 1);
        ParallelConfig parallel =
            config_of(1 << draw(0, 2), 1 + draw(0, 3), 1 << draw(0, 2), 1, (ScheduleKind)draw(0, SCHEDULE_KINDS - 1));
        AsyncConfig async = {};
        parallel_set_schedule(&parallel, schedule_of_mesh, schedule_usual_chunks(schedule_of_mesh) + draw(0, 1));
        parallel.zero = draw(0, 2);
        parallel.recompute = (Recompute)draw(0, 2);
        parallel.sequence_parallel = draw(0, 1) && parallel.mesh.t > 1;
        if (draw(0, 2) == 0 && parallel.mesh.t > 1)
            parallel.caat.ranks = parallel.mesh.t * (1 + draw(0, 1)), parallel.caat.fraction = 0.5;
        async.mode = (DpMode)draw(0, DP_MODES - 1);
        async.period = 4;
        parallel.mesh.sites = 1 << draw(0, 2);
        async.sites = parallel.mesh.sites;
        if (async.mode == DP_DC_S3GD) async.compensation = (float)draw(0, 1);
        Error error;
        if (!parallel_check_sites(&parallel, async.mode == DP_SYNC, &error)) continue;
        const PipelineConfig plan = pipeline_of(&m, &parallel, parallel.mesh.p * (1 + draw(0, 2)));
        const int B = 1 + draw(0, 3);
        Layout layout;
        if (!parallel_check(&parallel, &m, T, &error) || !pipeline_config_check(&plan, parallel.recompute, &error))
            continue;
        if (!layout_build(&layout, &m, parallel, T, &error)) continue;
        layout_free(&layout);
        meshes++;
        for (int rank = 0; rank < mesh_size(&parallel.mesh); rank++)
            memory_of(&m, parallel, rank, B, &plan, &async, draw(0, 1) ? bf16 : fp32);
    }
    check(meshes > number / 20 && compared > meshes && differ == 0,
          "%d ranks of %d meshes: the formulas are the trainer's plan in all arenas, for %d not", compared, meshes,
          differ);
}

// The floor is below what a mesh needs, and where parameters are nearly all of it, not far below.
static void test_floor(void) {
    const ModelConfig m = test_model(ARCH_GPT2, 8, 1024, 16, 16, 16, 64);
    const DtypeInfo bf16 = native_dtype();
    double least = INFINITY, most = 0;
    for (int i = 0; i < 36; i++) {
        ParallelConfig parallel = config_of(1 << i % 2, 1 << i / 2 % 3, 1 << i / 6 % 2, 1, ONE_F_ONE_B);
        StageMemory memory;
        Error error;
        parallel.zero = parallel.mesh.d > 1 ? i / 12 : 0;
        const PipelineConfig plan = pipeline_of(&m, &parallel, 4);
        if (!plan_memory(&memory, INFINITY, &m, &parallel, 1, 16, &plan, NULL, bf16, &error)) die("%s", error.text);
        const double part = memory_floor((double)model_parameters(&m), &parallel, bf16) / memory.bytes;
        least = fmin(least, part);
        most = fmax(most, part);
    }
    check(least > 0.5 && most <= 1, "floors of 36 meshes: %.2f to %.2f of what they need", least, most);
}

int main(int argc, char** argv) {
    process.name = "test_planner_memory";
    const bool quick = argc > 1 && strcmp(argv[1], "--short") == 0;
    test_published();
    test_formulas();
    test_slots();
    test_any_rank(quick);
    check(differ == 0, "%d ranks by formulas, %d are not the trainer's", compared, differ);
    test_random(quick ? 2000 : 20000);
    test_floor();
    test_refused();
    return test_end();
}
