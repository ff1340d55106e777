/*
published.h: published training times with their settings, as far as known, beside the times of step_sim.h.

    published_results    the rows
    published_error      our value and its relative error
    published_print      all rows, and the mean errors (./plan --published)

Marks: confirmed (the paper, or its scripts, were read), repository (a project's own page), third party (quoted by
someone else), memory (not looked up again). Rows marked outside ran on engines that are not modelled: DeepSpeed's
pipeline and ZeRO-3.

Theory: independence of the other rows. Nothing in the model of time was fitted to single rows. Table 1 is a fit in the
sense that `sustained`, `overlap_cost`, a tile's overhead and Software.kernels = 0.75 were added, each with the value of
its source, because ten rows were all 15 % too fast; one set of constants serves all ten. run_table_1.sh has --DDP-impl
torch (sums under the backward pass) up to 18.4B and local (not) from 39.1B on; CONFIG.sh has fp16 without float32 sums.
The software features of the other rows are from their authors' descriptions. Table 2 has v = 1 because its times are
linear in the micro-batches with the intercept of the plain schedule. Llama 3 and Nemotron's v follow from their numbers
of layers.

Known misses. Thousands of H100s are predicted 9 to 11 % too fast: the model has no slowest GPU of thousands, no
contention, no real data (Selene shows no such loss up to 2,240 GPUs). A step on more than 1,000 such GPUs should be
read as a range. Exposed messages without scatter/gather and tensor parallelism across nodes are too cheap: Megatron
2021 synchronised the device after every exchange, which is not modelled.
*/
#ifndef PUBLISHED_H
#define PUBLISHED_H

#include "step_sim.h"

typedef enum { MARK_CONFIRMED, MARK_REPOSITORY, MARK_THIRD_PARTY, MARK_MEMORY } PublishedMark;
typedef enum {
    UNIT_TFLOPS,        // a device, by equation 3: four passes
    UNIT_TFLOPS_CAUSAL, // a device, three passes, attention causal
    UNIT_SECONDS,       // of a step
    UNIT_MFU,           // %, three passes, attention in full
    UNIT_TOKENS         // thousand a second and device
} PublishedUnit;

static const char* const published_marks[] = {"confirmed", "repository", "third party", "memory"};
static const char* const published_units[] = {"TFLOP/s", "TFLOP/s", "s", "% MFU", "k tok/s"};

// The runs of one source on one machine, which differ in model and mesh.
typedef struct {
    const char *name, *software, *cluster;
    int zero;
    PublishedUnit unit;
    PublishedMark mark;
    bool outside;
} PublishedSource;

static const PublishedSource table1_ddp = {
    "Narayanan et al. 2021, table 1", "megatron-2021-ddp", "selene", 0, UNIT_TFLOPS, MARK_CONFIRMED, false};
static const PublishedSource table1 = {
    "Narayanan et al. 2021, table 1", "megatron-2021", "selene", 0, UNIT_TFLOPS, MARK_CONFIRMED, false};
static const PublishedSource korthikanti = {
    "Korthikanti et al. 2022", "megatron-2022", "selene", 0, UNIT_SECONDS, MARK_MEMORY, false};
static const PublishedSource korthikanti_run = {
    "Korthikanti et al. 2022", "megatron-2022", "selene", 0, UNIT_MFU, MARK_CONFIRMED, false};
static const PublishedSource table2 = {
    "Narayanan et al. 2021, table 2", "megatron-2021", "selene", 0, UNIT_TFLOPS, MARK_THIRD_PARTY, false};
static const PublishedSource table2_memory = {
    "Narayanan et al. 2021, table 2", "megatron-2021", "selene", 0, UNIT_TFLOPS, MARK_MEMORY, false};
static const PublishedSource gpt3_days = {
    "Narayanan et al. 2021, 34 days for GPT-3", "megatron-2021", "selene", 0, UNIT_TFLOPS, MARK_CONFIRMED, false};
static const PublishedSource mt_nlg = {
    "MT-NLG, DeepSpeed's pipeline", "megatron-2021", "selene", 0, UNIT_SECONDS, MARK_THIRD_PARTY, true};
static const PublishedSource llama3_run = {"Llama 3 2024",     "llama3",         "dgx-h100", 1,
                                           UNIT_TFLOPS_CAUSAL, MARK_THIRD_PARTY, false};
static const PublishedSource nemotron_recipe = {
    "Nemotron-4, NeMo's recipe", "modern", "dgx-h100", 1, UNIT_SECONDS, MARK_THIRD_PARTY, false};
static const PublishedSource nemotron_run = {"Nemotron-4, the run", "modern",         "dgx-h100", 1,
                                             UNIT_SECONDS,          MARK_THIRD_PARTY, false};
static const PublishedSource foundry_a100 = {
    "llm-foundry, FSDP as ZeRO-1", "llm-foundry", "dgx-a100", 1, UNIT_MFU, MARK_REPOSITORY, true};
static const PublishedSource foundry_h100 = {
    "llm-foundry, FSDP as ZeRO-1", "llm-foundry", "dgx-h100", 1, UNIT_MFU, MARK_REPOSITORY, true};
static const PublishedSource llmc_h100 = {"llm.c", "llm.c", "dgx-h100", 1, UNIT_TOKENS, MARK_REPOSITORY, false};
static const PublishedSource llmc_a100 = {"llm.c", "llm.c", "dgx-a100", 1, UNIT_TOKENS, MARK_REPOSITORY, false};
static const PublishedSource llmq = {"llmq", "llm.c", "dgx-h100", 0, UNIT_TOKENS, MARK_REPOSITORY, false};

typedef struct {
    Arch arch;
    int L, C, NH, NKV, F, T, V;
    bool tied;
} PublishedShape;

typedef struct {
    const PublishedSource* source;
    const char* name;
    PublishedShape shape;
    int t, p, d, v, B;
    int64_t batch; // sequences
    Recompute recompute;
    bool sequence_parallel;
    double value;
} Published;

#define GPT(L, C, NH)                                                                                                  \
    { ARCH_GPT2, L, C, NH, NH, 4 * (C), 2048, 51200, true }
#define MPT(L, C, NH)                                                                                                  \
    { ARCH_GPT2, L, C, NH, NH, 4 * (C), 2048, 50368, true }
#define GPT2(L, C, NH)                                                                                                 \
    { ARCH_GPT2, L, C, NH, NH, 4 * (C), 1024, 50304, true }
#define QWEN(L, C, NH, NKV, F, tied)                                                                                   \
    { ARCH_LLAMA, L, C, NH, NKV, F, 1024, 151936, tied }
#define LLAMA3                                                                                                         \
    { ARCH_LLAMA, 126, 16384, 128, 8, 53248, 8192, 128256, false }
#define NEMOTRON                                                                                                       \
    { ARCH_GPT2, 96, 18432, 96, 8, 73728, 4096, 256000, false }
#define FULL RECOMPUTE_FULL, false
#define SELECTIVE RECOMPUTE_SELECTIVE, true
#define NONE RECOMPUTE_NONE, false
#define SP RECOMPUTE_NONE, true

static const Published published_results[] = {
    {&table1_ddp, "1.7B", GPT(24, 2304, 24), 1, 1, 32, 1, 16, 512, FULL, 137},
    {&table1_ddp, "3.6B", GPT(30, 3072, 32), 2, 1, 32, 1, 16, 512, FULL, 138},
    {&table1_ddp, "7.5B", GPT(36, 4096, 32), 4, 1, 32, 1, 16, 512, FULL, 142},
    {&table1_ddp, "18.4B", GPT(40, 6144, 48), 8, 1, 32, 1, 8, 1024, FULL, 135},
    {&table1, "39.1B", GPT(48, 8192, 64), 8, 2, 32, 1, 4, 1536, FULL, 138},
    {&table1, "76.1B", GPT(60, 10240, 80), 8, 4, 32, 3, 2, 1792, FULL, 140},
    {&table1, "145.6B", GPT(80, 12288, 96), 8, 8, 24, 2, 2, 2304, FULL, 148},
    {&table1, "310.1B", GPT(96, 16384, 128), 8, 16, 15, 2, 1, 2160, FULL, 155},
    {&table1, "529.6B", GPT(105, 20480, 128), 8, 35, 9, 3, 1, 2520, FULL, 163},
    {&table1, "1008.0B", GPT(128, 25600, 160), 8, 64, 6, 1, 1, 3072, FULL, 163},
    {&korthikanti, "22B, full recomputation", GPT(48, 6144, 64), 8, 1, 1, 1, 4, 4, FULL, 1.42},
    {&korthikanti, "22B, sequence parallel, selective", GPT(48, 6144, 64), 8, 1, 1, 1, 4, 4, SELECTIVE, 1.10},
    {&korthikanti, "175B, full recomputation", GPT(96, 12288, 96), 8, 8, 1, 3, 1, 64, FULL, 18.13},
    {&korthikanti, "175B, sequence parallel, selective", GPT(96, 12288, 96), 8, 8, 1, 3, 1, 64, SELECTIVE, 13.75},
    {&korthikanti, "530B, full recomputation", GPT(105, 20480, 128), 8, 35, 1, 3, 1, 280, FULL, 49.05},
    {&korthikanti, "530B, sequence parallel, selective", GPT(105, 20480, 128), 8, 35, 1, 3, 1, 280, SELECTIVE, 37.83},
    {&korthikanti, "1T, full recomputation", GPT(128, 25600, 160), 8, 64, 1, 1, 1, 512, FULL, 94.42},
    {&korthikanti, "1T, sequence parallel, selective", GPT(128, 25600, 160), 8, 64, 1, 1, 1, 512, SELECTIVE, 71.49},
    {&korthikanti_run, "530B on 2,240, full recomputation", GPT(105, 20480, 128), 8, 35, 8, 3, 1, 2240, FULL, 42.1},
    {&korthikanti_run, "530B on 2,240, sequence parallel, selective", GPT(105, 20480, 128), 8, 35, 8, 3, 1, 2240,
     SELECTIVE, 54.2},
    {&table2, "175B on 384", GPT(96, 12288, 96), 8, 12, 4, 1, 1, 1536, FULL, 153},
    {&table2_memory, "175B on 768", GPT(96, 12288, 96), 8, 12, 8, 1, 1, 1536, FULL, 149},
    {&table2, "175B on 1,536", GPT(96, 12288, 96), 8, 12, 16, 1, 1, 1536, FULL, 141},
    {&table2, "530B on 560", GPT(105, 20480, 128), 8, 35, 2, 1, 1, 2240, FULL, 171},
    {&table2_memory, "530B on 1,120", GPT(105, 20480, 128), 8, 35, 4, 1, 1, 2240, FULL, 167},
    {&table2, "530B on 2,240", GPT(105, 20480, 128), 8, 35, 8, 1, 1, 2240, FULL, 159},
    {&gpt3_days, "175B on 1,024, t p v assumed", GPT(96, 12288, 96), 8, 16, 8, 2, 1, 1536, FULL, 140},
    {&mt_nlg, "530B on 2,240", GPT(105, 20480, 128), 8, 35, 8, 1, 1, 1920, FULL, 60.1},
    {&mt_nlg, "530B on 2,800", GPT(105, 20480, 128), 8, 35, 10, 1, 1, 1920, FULL, 50.2},
    {&mt_nlg, "530B on 3,360", GPT(105, 20480, 128), 8, 35, 12, 1, 1, 1920, FULL, 44.4},
    {&llama3_run, "405B on 8,192", LLAMA3, 8, 16, 64, 8, 1, 2048, SP, 430},
    {&llama3_run, "405B on 16,384", LLAMA3, 8, 16, 128, 8, 1, 2048, SP, 400},
    {&nemotron_recipe, "340B on 128", NEMOTRON, 8, 8, 2, 12, 1, 32, SP, 4.77},
    {&nemotron_run, "340B on 6,144, v assumed", NEMOTRON, 8, 12, 64, 8, 1, 2304, SP, 8.0},
    {&foundry_a100, "1B, 8 A100", MPT(24, 2048, 16), 1, 1, 8, 1, 14, 448, NONE, 59.86},
    {&foundry_a100, "7B, 8 A100", MPT(32, 4096, 32), 1, 1, 8, 1, 6, 96, NONE, 64.23},
    {&foundry_a100, "13B, 8 A100", MPT(40, 5120, 40), 1, 1, 8, 1, 2, 48, NONE, 59.57},
    {&foundry_a100, "30B, 8 A100, recomputing", MPT(48, 7168, 56), 1, 1, 8, 1, 3, 504, FULL, 55.3},
    {&foundry_h100, "1B, 8 H100", MPT(24, 2048, 16), 1, 1, 8, 1, 14, 112, NONE, 41.82},
    {&foundry_h100, "7B, 8 H100", MPT(32, 4096, 32), 1, 1, 8, 1, 6, 48, NONE, 46.44},
    {&llmc_h100, "GPT-2 124M, 8 H100", GPT2(12, 768, 12), 1, 1, 8, 1, 64, 512, NONE, 468},
    {&llmc_a100, "GPT-2 124M, 8 A100", GPT2(12, 768, 12), 1, 1, 8, 1, 64, 512, NONE, 225},
    {&llmc_h100, "GPT-2 1558M, 8 H100", GPT2(48, 1600, 25), 1, 1, 8, 1, 16, 1024, NONE, 47.6},
    {&llmq, "Qwen2.5 0.5B, an H100", QWEN(24, 896, 14, 2, 4864, true), 1, 1, 1, 1, 32, 512, NONE, 149.5},
    {&llmq, "Qwen2.5 1.5B, an H100", QWEN(28, 1536, 12, 2, 8960, true), 1, 1, 1, 1, 32, 512, NONE, 58.9},
    {&llmq, "Qwen2.5 7B, an H100", QWEN(28, 3584, 28, 4, 18944, false), 1, 1, 1, 1, 8, 512, NONE, 13.86},
};
enum { PUBLISHED_RESULTS = sizeof published_results / sizeof published_results[0], PUBLISHED_TABLE1 = 10 };
#undef GPT
#undef MPT
#undef GPT2
#undef QWEN
#undef LLAMA3
#undef NEMOTRON
#undef FULL
#undef SELECTIVE
#undef NONE
#undef SP

static inline ModelConfig published_model(const Published* x) {
    const PublishedShape* y = &x->shape;
    ModelConfig m = model_of(y->arch, y->L, y->C, y->NH, y->NKV, y->F, y->T, y->V);
    m.tied = y->tied;
    return m;
}

// The run as a step. cluster is filled from its name.
static inline StepSetup published_setup(const Published* x, Cluster* cluster) {
    const ModelConfig model = published_model(x);
    Mesh mesh = mesh_of_rank(0, x->t, x->p, x->d);
    if (!cluster_find(cluster, x->source->cluster)) die("published.h: there is no cluster %s", x->source->cluster);
    mesh.v = x->v;
    mesh.zero = x->source->zero;
    mesh.recompute = x->recompute;
    mesh.sequence_parallel = x->sequence_parallel;
    return step_setup(&model, &mesh, x->B, model.T, x->batch, software_find(x->source->software), cluster);
}

// Our value in the row's unit, from the seconds of a step.
static inline double published_ours(const Published* x, const StepSetup* s, double seconds) {
    const double devices = mesh_size(&s->mesh), batch = (double)s->batch, each = 1 / seconds / devices;
    switch (x->source->unit) {
    case UNIT_TFLOPS: return flops_hardware(&s->model, s->T, batch) * each / 1e12;
    case UNIT_TFLOPS_CAUSAL: return flops_of_model(&s->model, s->T, batch, true) * each / 1e12;
    case UNIT_MFU: return 100 * flops_of_model(&s->model, s->T, batch, false) * each / s->cluster->device.peak;
    case UNIT_TOKENS: return batch * s->T * each / 1e3;
    default: return seconds;
    }
}

// ours / published - 1.
static inline double published_error(const Published* x, double* ours) {
    Cluster cluster;
    const StepSetup s = published_setup(x, &cluster);
    StepCost cost = step_cost(&s);
    *ours = published_ours(x, &s, cost.seconds);
    step_cost_free(&cost);
    return *ours / x->value - 1;
}

// Mean and largest absolute error.
typedef struct {
    int n;
    double mean, worst;
} PublishedErrors;

static inline void published_count(PublishedErrors* e, double error) {
    e->mean = (e->mean * e->n + fabs(error)) / (e->n + 1);
    e->n++;
    e->worst = fmax(e->worst, fabs(error));
}

// Every row, ours beside the published value; and the errors of Table 1, of the other rows, and of rows outside the
// model.
static inline void published_print(FILE* out) {
    PublishedErrors errors[3];
    static const char* const names[3] = {"table 1", "not used for any constant", "outside what is modelled"};
    const char* printed = "";
    memset(errors, 0, sizeof errors);
    for (int i = 0; i < PUBLISHED_RESULTS; i++) {
        const Published* x = &published_results[i];
        const PublishedSource* source = x->source;
        double ours;
        const double error = published_error(x, &ours);
        if (strcmp(printed, source->name) != 0) fprintf(out, "%s\n", source->name);
        printed = source->name;
        fprintf(out, "    %-46s t%-2d p%-2d d%-3d v%-2d  %8.4g  published %8.4g %-8s %+6.1f %%  %s%s\n", x->name, x->t,
                x->p, x->d, x->v, ours, x->value, published_units[source->unit], 100 * error,
                published_marks[source->mark], source->outside ? "; outside" : "");
        published_count(&errors[source->outside ? 2 : i >= PUBLISHED_TABLE1], error);
    }
    for (int k = 0; k < 3; k++)
        fprintf(out, "%-26s %2d results, mean error %.1f %%, largest %.1f %%\n", names[k], errors[k].n,
                100 * errors[k].mean, 100 * errors[k].worst);
}

#endif
