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

// The software of the rows, as named in ops.h.
enum { RAN_2021, RAN_2021_TORCH, RAN_2022, RAN_MODERN, RAN_LLAMA3, RAN_FOUNDRY, RAN_LLMC };
static const char* const published_softwares[] = {"megatron-2021", "megatron-2021-ddp", "megatron-2022", "modern",
                                                  "llama3",        "llm-foundry",       "llm.c"};

typedef struct {
    Arch arch;
    int L, C, NH, NKV, F, T, V;
    bool tied;
} PublishedShape;

typedef struct {
    const char *source, *name;
    PublishedShape shape;
    int t, p, d, v, B;
    int64_t batch; // sequences
    Recompute recompute;
    bool sequence_parallel;
    int zero, software;
    const char* cluster;
    PublishedUnit unit;
    double value;
    PublishedMark mark;
    bool outside;
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
#define TABLE1 "Narayanan et al. 2021, table 1"
#define TABLE2 "the same, table 2"
#define KORTHIKANTI "Korthikanti et al. 2022"
#define MTNLG "MT-NLG, DeepSpeed's pipeline"
#define FOUNDRY "llm-foundry, FSDP as ZeRO-1"

static const Published published_results[] = {
    {TABLE1, "1.7B", GPT(24, 2304, 24), 1, 1, 32, 1, 16, 512, FULL, 0, RAN_2021_TORCH, "selene", UNIT_TFLOPS, 137,
     MARK_CONFIRMED, false},
    {TABLE1, "3.6B", GPT(30, 3072, 32), 2, 1, 32, 1, 16, 512, FULL, 0, RAN_2021_TORCH, "selene", UNIT_TFLOPS, 138,
     MARK_CONFIRMED, false},
    {TABLE1, "7.5B", GPT(36, 4096, 32), 4, 1, 32, 1, 16, 512, FULL, 0, RAN_2021_TORCH, "selene", UNIT_TFLOPS, 142,
     MARK_CONFIRMED, false},
    {TABLE1, "18.4B", GPT(40, 6144, 48), 8, 1, 32, 1, 8, 1024, FULL, 0, RAN_2021_TORCH, "selene", UNIT_TFLOPS, 135,
     MARK_CONFIRMED, false},
    {TABLE1, "39.1B", GPT(48, 8192, 64), 8, 2, 32, 1, 4, 1536, FULL, 0, RAN_2021, "selene", UNIT_TFLOPS, 138,
     MARK_CONFIRMED, false},
    {TABLE1, "76.1B", GPT(60, 10240, 80), 8, 4, 32, 3, 2, 1792, FULL, 0, RAN_2021, "selene", UNIT_TFLOPS, 140,
     MARK_CONFIRMED, false},
    {TABLE1, "145.6B", GPT(80, 12288, 96), 8, 8, 24, 2, 2, 2304, FULL, 0, RAN_2021, "selene", UNIT_TFLOPS, 148,
     MARK_CONFIRMED, false},
    {TABLE1, "310.1B", GPT(96, 16384, 128), 8, 16, 15, 2, 1, 2160, FULL, 0, RAN_2021, "selene", UNIT_TFLOPS, 155,
     MARK_CONFIRMED, false},
    {TABLE1, "529.6B", GPT(105, 20480, 128), 8, 35, 9, 3, 1, 2520, FULL, 0, RAN_2021, "selene", UNIT_TFLOPS, 163,
     MARK_CONFIRMED, false},
    {TABLE1, "1008.0B", GPT(128, 25600, 160), 8, 64, 6, 1, 1, 3072, FULL, 0, RAN_2021, "selene", UNIT_TFLOPS, 163,
     MARK_CONFIRMED, false},
    {KORTHIKANTI, "22B, full recomputation", GPT(48, 6144, 64), 8, 1, 1, 1, 4, 4, FULL, 0, RAN_2022, "selene",
     UNIT_SECONDS, 1.42, MARK_MEMORY, false},
    {KORTHIKANTI, "22B, sequence parallel, selective", GPT(48, 6144, 64), 8, 1, 1, 1, 4, 4, SELECTIVE, 0, RAN_2022,
     "selene", UNIT_SECONDS, 1.10, MARK_MEMORY, false},
    {KORTHIKANTI, "175B, full recomputation", GPT(96, 12288, 96), 8, 8, 1, 3, 1, 64, FULL, 0, RAN_2022, "selene",
     UNIT_SECONDS, 18.13, MARK_MEMORY, false},
    {KORTHIKANTI, "175B, sequence parallel, selective", GPT(96, 12288, 96), 8, 8, 1, 3, 1, 64, SELECTIVE, 0, RAN_2022,
     "selene", UNIT_SECONDS, 13.75, MARK_MEMORY, false},
    {KORTHIKANTI, "530B, full recomputation", GPT(105, 20480, 128), 8, 35, 1, 3, 1, 280, FULL, 0, RAN_2022, "selene",
     UNIT_SECONDS, 49.05, MARK_MEMORY, false},
    {KORTHIKANTI, "530B, sequence parallel, selective", GPT(105, 20480, 128), 8, 35, 1, 3, 1, 280, SELECTIVE, 0,
     RAN_2022, "selene", UNIT_SECONDS, 37.83, MARK_MEMORY, false},
    {KORTHIKANTI, "1T, full recomputation", GPT(128, 25600, 160), 8, 64, 1, 1, 1, 512, FULL, 0, RAN_2022, "selene",
     UNIT_SECONDS, 94.42, MARK_MEMORY, false},
    {KORTHIKANTI, "1T, sequence parallel, selective", GPT(128, 25600, 160), 8, 64, 1, 1, 1, 512, SELECTIVE, 0, RAN_2022,
     "selene", UNIT_SECONDS, 71.49, MARK_MEMORY, false},
    {KORTHIKANTI, "530B on 2,240, full recomputation", GPT(105, 20480, 128), 8, 35, 8, 3, 1, 2240, FULL, 0, RAN_2022,
     "selene", UNIT_MFU, 42.1, MARK_CONFIRMED, false},
    {KORTHIKANTI, "530B on 2,240, sequence parallel, selective", GPT(105, 20480, 128), 8, 35, 8, 3, 1, 2240, SELECTIVE,
     0, RAN_2022, "selene", UNIT_MFU, 54.2, MARK_CONFIRMED, false},
    {TABLE2, "175B on 384", GPT(96, 12288, 96), 8, 12, 4, 1, 1, 1536, FULL, 0, RAN_2021, "selene", UNIT_TFLOPS, 153,
     MARK_THIRD_PARTY, false},
    {TABLE2, "175B on 768", GPT(96, 12288, 96), 8, 12, 8, 1, 1, 1536, FULL, 0, RAN_2021, "selene", UNIT_TFLOPS, 149,
     MARK_MEMORY, false},
    {TABLE2, "175B on 1,536", GPT(96, 12288, 96), 8, 12, 16, 1, 1, 1536, FULL, 0, RAN_2021, "selene", UNIT_TFLOPS, 141,
     MARK_THIRD_PARTY, false},
    {TABLE2, "530B on 560", GPT(105, 20480, 128), 8, 35, 2, 1, 1, 2240, FULL, 0, RAN_2021, "selene", UNIT_TFLOPS, 171,
     MARK_THIRD_PARTY, false},
    {TABLE2, "530B on 1,120", GPT(105, 20480, 128), 8, 35, 4, 1, 1, 2240, FULL, 0, RAN_2021, "selene", UNIT_TFLOPS, 167,
     MARK_MEMORY, false},
    {TABLE2, "530B on 2,240", GPT(105, 20480, 128), 8, 35, 8, 1, 1, 2240, FULL, 0, RAN_2021, "selene", UNIT_TFLOPS, 159,
     MARK_THIRD_PARTY, false},
    {"the same, 34 days for GPT-3", "175B on 1,024, t p v assumed", GPT(96, 12288, 96), 8, 16, 8, 2, 1, 1536, FULL, 0,
     RAN_2021, "selene", UNIT_TFLOPS, 140, MARK_CONFIRMED, false},
    {MTNLG, "530B on 2,240", GPT(105, 20480, 128), 8, 35, 8, 1, 1, 1920, FULL, 0, RAN_2021, "selene", UNIT_SECONDS,
     60.1, MARK_THIRD_PARTY, true},
    {MTNLG, "530B on 2,800", GPT(105, 20480, 128), 8, 35, 10, 1, 1, 1920, FULL, 0, RAN_2021, "selene", UNIT_SECONDS,
     50.2, MARK_THIRD_PARTY, true},
    {MTNLG, "530B on 3,360", GPT(105, 20480, 128), 8, 35, 12, 1, 1, 1920, FULL, 0, RAN_2021, "selene", UNIT_SECONDS,
     44.4, MARK_THIRD_PARTY, true},
    {"Llama 3 2024", "405B on 8,192", LLAMA3, 8, 16, 64, 8, 1, 2048, SP, 1, RAN_LLAMA3, "dgx-h100", UNIT_TFLOPS_CAUSAL,
     430, MARK_THIRD_PARTY, false},
    {"Llama 3 2024", "405B on 16,384", LLAMA3, 8, 16, 128, 8, 1, 2048, SP, 1, RAN_LLAMA3, "dgx-h100",
     UNIT_TFLOPS_CAUSAL, 400, MARK_THIRD_PARTY, false},
    {"Nemotron-4, NeMo's recipe", "340B on 128", NEMOTRON, 8, 8, 2, 12, 1, 32, SP, 1, RAN_MODERN, "dgx-h100",
     UNIT_SECONDS, 4.77, MARK_THIRD_PARTY, false},
    {"Nemotron-4, the run", "340B on 6,144, v assumed", NEMOTRON, 8, 12, 64, 8, 1, 2304, SP, 1, RAN_MODERN, "dgx-h100",
     UNIT_SECONDS, 8.0, MARK_THIRD_PARTY, false},
    {FOUNDRY, "1B, 8 A100", MPT(24, 2048, 16), 1, 1, 8, 1, 14, 448, NONE, 1, RAN_FOUNDRY, "dgx-a100", UNIT_MFU, 59.86,
     MARK_REPOSITORY, true},
    {FOUNDRY, "7B, 8 A100", MPT(32, 4096, 32), 1, 1, 8, 1, 6, 96, NONE, 1, RAN_FOUNDRY, "dgx-a100", UNIT_MFU, 64.23,
     MARK_REPOSITORY, true},
    {FOUNDRY, "13B, 8 A100", MPT(40, 5120, 40), 1, 1, 8, 1, 2, 48, NONE, 1, RAN_FOUNDRY, "dgx-a100", UNIT_MFU, 59.57,
     MARK_REPOSITORY, true},
    {FOUNDRY, "30B, 8 A100, recomputing", MPT(48, 7168, 56), 1, 1, 8, 1, 3, 504, FULL, 1, RAN_FOUNDRY, "dgx-a100",
     UNIT_MFU, 55.3, MARK_REPOSITORY, true},
    {FOUNDRY, "1B, 8 H100", MPT(24, 2048, 16), 1, 1, 8, 1, 14, 112, NONE, 1, RAN_FOUNDRY, "dgx-h100", UNIT_MFU, 41.82,
     MARK_REPOSITORY, true},
    {FOUNDRY, "7B, 8 H100", MPT(32, 4096, 32), 1, 1, 8, 1, 6, 48, NONE, 1, RAN_FOUNDRY, "dgx-h100", UNIT_MFU, 46.44,
     MARK_REPOSITORY, true},
    {"llm.c", "GPT-2 124M, 8 H100", GPT2(12, 768, 12), 1, 1, 8, 1, 64, 512, NONE, 1, RAN_LLMC, "dgx-h100", UNIT_TOKENS,
     468, MARK_REPOSITORY, false},
    {"llm.c", "GPT-2 124M, 8 A100", GPT2(12, 768, 12), 1, 1, 8, 1, 64, 512, NONE, 1, RAN_LLMC, "dgx-a100", UNIT_TOKENS,
     225, MARK_REPOSITORY, false},
    {"llm.c", "GPT-2 1558M, 8 H100", GPT2(48, 1600, 25), 1, 1, 8, 1, 16, 1024, NONE, 1, RAN_LLMC, "dgx-h100",
     UNIT_TOKENS, 47.6, MARK_REPOSITORY, false},
    {"llmq", "Qwen2.5 0.5B, an H100", QWEN(24, 896, 14, 2, 4864, true), 1, 1, 1, 1, 32, 512, NONE, 0, RAN_LLMC,
     "dgx-h100", UNIT_TOKENS, 149.5, MARK_REPOSITORY, false},
    {"llmq", "Qwen2.5 1.5B, an H100", QWEN(28, 1536, 12, 2, 8960, true), 1, 1, 1, 1, 32, 512, NONE, 0, RAN_LLMC,
     "dgx-h100", UNIT_TOKENS, 58.9, MARK_REPOSITORY, false},
    {"llmq", "Qwen2.5 7B, an H100", QWEN(28, 3584, 28, 4, 18944, false), 1, 1, 1, 1, 8, 512, NONE, 0, RAN_LLMC,
     "dgx-h100", UNIT_TOKENS, 13.86, MARK_REPOSITORY, false},
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
#undef TABLE1
#undef TABLE2
#undef KORTHIKANTI
#undef MTNLG
#undef FOUNDRY

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
    if (!cluster_find(cluster, x->cluster)) die("published.h: there is no cluster %s", x->cluster);
    mesh.v = x->v;
    mesh.zero = x->zero;
    mesh.recompute = x->recompute;
    mesh.sequence_parallel = x->sequence_parallel;
    return step_setup(&model, &mesh, x->B, model.T, x->batch, software_find(published_softwares[x->software]), cluster);
}

// Our value in the row's unit, from the seconds of a step.
static inline double published_ours(const Published* x, const StepSetup* s, double seconds) {
    const double devices = mesh_size(&s->mesh), batch = (double)s->batch, each = 1 / seconds / devices;
    switch (x->unit) {
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
    e->mean = (e->mean * e->n + fabs(error)) / (e->n + 1), e->n++;
    e->worst = fmax(e->worst, fabs(error));
}

// Every row, ours beside the published value; and the errors of Table 1, of the other rows, and of rows outside the
// model.
static inline void published_print(FILE* out) {
    PublishedErrors errors[3];
    static const char* const names[3] = {"table 1", "not used for any constant", "outside what is modelled"};
    const char* source = "";
    memset(errors, 0, sizeof errors);
    for (int i = 0; i < PUBLISHED_RESULTS; i++) {
        const Published* x = &published_results[i];
        double ours;
        const double error = published_error(x, &ours);
        if (strcmp(source, x->source) != 0) fprintf(out, "%s\n", x->source);
        source = x->source;
        fprintf(out, "    %-46s t%-2d p%-2d d%-3d v%-2d  %8.4g  published %8.4g %-8s %+6.1f %%  %s%s\n", x->name, x->t,
                x->p, x->d, x->v, ours, x->value, published_units[x->unit], 100 * error, published_marks[x->mark],
                x->outside ? "; outside" : "");
        published_count(&errors[x->outside ? 2 : i >= PUBLISHED_TABLE1], error);
    }
    for (int k = 0; k < 3; k++)
        fprintf(out, "%-26s %2d results, mean error %.1f %%, largest %.1f %%\n", names[k], errors[k].n,
                100 * errors[k].mean, 100 * errors[k].worst);
}

#endif
