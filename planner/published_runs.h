/*
published_runs.h: published training times with their settings, as data; published.h compares them with step_sim.h.

A source (PublishedSource) is a publication's runs on one machine by one software; a row (Published) is one run. Marks:
confirmed (the paper, its scripts or its data were read), repository (a project's own page), third party (quoted by
someone else), memory (not looked up again). Rows marked outside ran on engines that are not modelled, DeepSpeed's
pipeline and ZeRO-3, or on a network of which nothing is known (30B on 256 GPUs of Hagemann et al.). A source marked
sweep has many layouts of one model on one machine.

Settings that are not published are in the source's name as "assumed". Where neither micro-batch nor v is known, they
are those that are fastest here, among those that fit. run_table_1.sh of Narayanan et al. 2021 has --DDP-impl torch
(sums under the backward pass) up to 18.4B and local (not) from 39.1B on; CONFIG.sh has fp16 without float32 sums. The
software features of the other rows are from their authors' descriptions. Table 2 has v = 1 because its times are linear
in the micro-batches with the intercept of the plain schedule. Llama 3 and Nemotron's v follow from their numbers of
layers. The 136 rows of Hagemann et al. 2023 (2311.05610) are the authors' data, all runs that did not end for lack of
memory.
*/
#pragma once

#include "ops.h"

typedef enum { MARK_CONFIRMED, MARK_REPOSITORY, MARK_THIRD_PARTY, MARK_MEMORY } PublishedMark;
typedef enum {
    UNIT_TFLOPS,        // a device, by equation 3: four passes
    UNIT_TFLOPS_CAUSAL, // a device, three passes, attention causal
    UNIT_SECONDS,       // of a step
    UNIT_MFU,           // %, three passes, attention in full
    UNIT_TOKENS,        // thousand a second and device
    UNIT_TFLOPS_MODEL,  // a device, three passes, attention in full
    UNIT_SAMPLES        // a second and device
} PublishedUnit;

static const char* const published_marks[] = {"confirmed", "repository", "third party", "memory"};
static const char* const published_units[] = {"TFLOP/s", "TFLOP/s", "s", "% MFU", "k tok/s", "TFLOP/s", "seq/s"};

enum { OUTSIDE = 1, SWEEP = 2 }; // SWEEP: layouts of one model on one machine, which are ranked

// The runs of one source on one machine, which differ in model and mesh.
typedef struct {
    const char *name, *software, *cluster;
    int zero;
    PublishedUnit unit;
    PublishedMark mark;
    int flags; // bits: OUTSIDE, SWEEP
} PublishedSource;

static const PublishedSource table1_ddp = {
    "Narayanan et al. 2021, table 1", "megatron-2021-ddp", "selene", 0, UNIT_TFLOPS, MARK_CONFIRMED, 0};
static const PublishedSource table1 = {
    "Narayanan et al. 2021, table 1", "megatron-2021", "selene", 0, UNIT_TFLOPS, MARK_CONFIRMED, 0};
static const PublishedSource korthikanti = {
    "Korthikanti et al. 2022", "megatron-2022", "selene", 0, UNIT_SECONDS, MARK_MEMORY, 0};
static const PublishedSource korthikanti_run = {
    "Korthikanti et al. 2022", "megatron-2022", "selene", 0, UNIT_MFU, MARK_CONFIRMED, 0};
static const PublishedSource table2 = {
    "Narayanan et al. 2021, table 2", "megatron-2021", "selene", 0, UNIT_TFLOPS, MARK_THIRD_PARTY, 0};
static const PublishedSource table2_memory = {
    "Narayanan et al. 2021, table 2", "megatron-2021", "selene", 0, UNIT_TFLOPS, MARK_MEMORY, 0};
static const PublishedSource gpt3_days = {
    "Narayanan et al. 2021, 34 days for GPT-3", "megatron-2021", "selene", 0, UNIT_TFLOPS, MARK_CONFIRMED, 0};
static const PublishedSource mt_nlg = {
    "MT-NLG, DeepSpeed's pipeline", "megatron-2021", "selene", 0, UNIT_SECONDS, MARK_THIRD_PARTY, OUTSIDE};
static const PublishedSource llama3_run = {"Llama 3 2024",     "llama3",         "dgx-h100", 1,
                                           UNIT_TFLOPS_CAUSAL, MARK_THIRD_PARTY, 0};
static const PublishedSource nemotron_recipe = {
    "Nemotron-4, NeMo's recipe", "megatron-core", "dgx-h100", 1, UNIT_SECONDS, MARK_THIRD_PARTY, 0};
static const PublishedSource nemotron_run = {"Nemotron-4, the run", "megatron-core",  "dgx-h100", 1,
                                             UNIT_SECONDS,          MARK_THIRD_PARTY, 0};
static const PublishedSource foundry_a100 = {
    "llm-foundry, FSDP as ZeRO-1", "llm-foundry", "dgx-a100", 1, UNIT_MFU, MARK_REPOSITORY, OUTSIDE};
static const PublishedSource foundry_h100 = {
    "llm-foundry, FSDP as ZeRO-1", "llm-foundry", "dgx-h100", 1, UNIT_MFU, MARK_REPOSITORY, OUTSIDE};
static const PublishedSource llmc_h100 = {"llm.c", "llm.c", "dgx-h100", 1, UNIT_TOKENS, MARK_REPOSITORY, 0};
static const PublishedSource llmc_a100 = {"llm.c", "llm.c", "dgx-a100", 1, UNIT_TOKENS, MARK_REPOSITORY, 0};
static const PublishedSource llmq = {"llmq", "llm.c", "dgx-h100", 0, UNIT_TOKENS, MARK_REPOSITORY, 0};
static const PublishedSource megatron_core = {
    "Megatron-Core r0.8.0, README", "megatron-core", "dgx-h100", 1, UNIT_TFLOPS_MODEL, MARK_REPOSITORY, 0};
static const PublishedSource megatron_core_scaling = {
    "Megatron-Core r0.8.0, strong scaling", "megatron-core", "dgx-h100", 1, UNIT_MFU, MARK_REPOSITORY, 0};
static const PublishedSource nemotron15 = {"Nemotron-4 15B", "megatron-core", "dgx-h100", 1,
                                           UNIT_SECONDS,     MARK_CONFIRMED,  0};
static const PublishedSource megascale = {
    "MegaScale's Megatron-LM, recomputation assumed", "megatron-2022", "dgx-a100", 0, UNIT_SECONDS, MARK_CONFIRMED, 0};
static const PublishedSource megascale530 = {
    "MegaScale's Megatron-LM, recomputation assumed", "megatron-2022", "dgx-a100", 0, UNIT_MFU, MARK_CONFIRMED, 0};
static const PublishedSource zero_bubble = {
    "Qi et al. 2024, zero bubble; vocabulary assumed", "megatron-2022", "dgx-a100", 0, UNIT_SAMPLES, MARK_CONFIRMED, 0};
static const PublishedSource bloom = {
    "BLOOM 176B, Megatron-DeepSpeed", "megatron-2021", "jean-zay", 0, UNIT_TFLOPS, MARK_MEMORY, 0};
static const PublishedSource neox = {"GPT-NeoX-20B", "megatron-2021", "dgx-a100-40", 0, UNIT_TFLOPS, MARK_MEMORY, 0};
static const PublishedSource glm = {"GLM-130B", "megatron-2021", "dgx-a100-40", 0, UNIT_MFU, MARK_MEMORY, 0};
static const PublishedSource megatron_readme = {
    "Megatron-LM's README", "megatron-2021", "selene", 0, UNIT_TFLOPS, MARK_REPOSITORY, 0};
// One table of Hagemann et al. 2023 for each model, length and number of GPUs.
#define HAGEMANN(what, flags)                                                                                          \
    { "Hagemann et al. 2023, " what, "llama3", "dgx-a100", 1, UNIT_SECONDS, MARK_CONFIRMED, flags }
static const PublishedSource hagemann_13b_2k_32 = HAGEMANN("13B, 2,048 tokens, 32 GPUs", SWEEP);
static const PublishedSource hagemann_13b_2k_64 = HAGEMANN("13B, 2,048 tokens, 64 GPUs", SWEEP);
static const PublishedSource hagemann_13b_8k_64 = HAGEMANN("13B, 8,192 tokens, 64 GPUs", SWEEP);
static const PublishedSource hagemann_13b_8k_128 = HAGEMANN("13B, 8,192 tokens, 128 GPUs", SWEEP);
static const PublishedSource hagemann_30b_2k_64 = HAGEMANN("30B, 2,048 tokens, 64 GPUs", SWEEP);
static const PublishedSource hagemann_30b_2k_256 = HAGEMANN("30B, 2,048 tokens, 256 GPUs", OUTSIDE | SWEEP);
static const PublishedSource hagemann_30b_8k_64 = HAGEMANN("30B, 8,192 tokens, 64 GPUs", SWEEP);
static const PublishedSource hagemann_30b_8k_128 = HAGEMANN("30B, 8,192 tokens, 128 GPUs", SWEEP);
static const PublishedSource hagemann_65b_2k_64 = HAGEMANN("65B, 2,048 tokens, 64 GPUs", SWEEP);
static const PublishedSource hagemann_65b_2k_128 = HAGEMANN("65B, 2,048 tokens, 128 GPUs", SWEEP);

typedef struct {
    Arch arch;
    int L, C, NH, NKV, F, T, V;
    bool tied;
} PublishedShape;

typedef struct {
    const PublishedSource* source;
    const char* name;
    PublishedShape shape;
    int t, p, d, v, B; // v or B 0: not published; what is fastest here
    int64_t batch;     // sequences
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
#define CORE(L, C, NH)                                                                                                 \
    { ARCH_GPT2, L, C, NH, NH, 4 * (C), 4096, 131072, false }
#define NEMOTRON15                                                                                                     \
    { ARCH_GPT2, 32, 6144, 48, 8, 24576, 4096, 256000, false }
#define MEGASCALE(L, C, NH)                                                                                            \
    { ARCH_GPT2, L, C, NH, NH, 4 * (C), 2048, 64000, true }
#define ZB(L, C, NH)                                                                                                   \
    { ARCH_GPT2, L, C, NH, NH, 4 * (C), 1024, 50304, true }
#define HAGEMANN13(T)                                                                                                  \
    { ARCH_LLAMA, 40, 5120, 40, 40, 13824, T, 128000, false }
#define HAGEMANN30(T)                                                                                                  \
    { ARCH_LLAMA, 60, 6656, 52, 52, 17920, T, 128000, false }
#define HAGEMANN65(T)                                                                                                  \
    { ARCH_LLAMA, 80, 8192, 64, 64, 22016, T, 128000, false }
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
    {&megatron_core, "1.7B on 48", CORE(24, 2048, 16), 1, 1, 48, 1, 0, 192, NONE, 408.8},
    {&megatron_core, "7.1B on 96", CORE(30, 4096, 32), 2, 1, 48, 1, 0, 192, SP, 465.9},
    {&megatron_core, "16B on 192", CORE(32, 6144, 48), 4, 1, 48, 1, 0, 192, SP, 489.1},
    {&megatron_core, "32B on 384", CORE(48, 7168, 56), 8, 1, 48, 1, 0, 192, SP, 459.6},
    {&megatron_core, "70B on 768", CORE(84, 8192, 64), 8, 2, 48, 0, 0, 384, SP, 419.7},
    {&megatron_core, "119B on 1,536", CORE(92, 10240, 80), 8, 4, 48, 0, 0, 768, SP, 420.5},
    {&megatron_core, "177B on 2,304", CORE(96, 12288, 96), 8, 6, 48, 0, 0, 1152, SP, 432.8},
    {&megatron_core, "314B on 3,072", CORE(96, 16384, 128), 8, 8, 48, 0, 0, 1536, SP, 474.4},
    {&megatron_core, "462B on 6,144", CORE(112, 18432, 144), 8, 16, 48, 0, 0, 3072, SP, 459.9},
    {&megatron_core_scaling, "177B on 96", CORE(96, 12288, 96), 8, 6, 2, 0, 0, 1152, SP, 47},
    {&megatron_core_scaling, "177B on 4,608", CORE(96, 12288, 96), 8, 6, 96, 0, 0, 1152, SP, 42},
    {&nemotron15, "15B on 768", NEMOTRON15, 8, 1, 96, 1, 0, 384, SP, 0.57},
    {&nemotron15, "15B on 1,536", NEMOTRON15, 8, 1, 192, 1, 0, 768, SP, 0.58},
    {&nemotron15, "15B on 2,304", NEMOTRON15, 8, 1, 288, 1, 0, 1152, SP, 0.64},
    {&megascale, "175B on 256", MEGASCALE(96, 12288, 128), 8, 8, 4, 6, 1, 768, SELECTIVE, 40.0},
    {&megascale, "175B on 512", MEGASCALE(96, 12288, 128), 8, 8, 8, 6, 1, 768, SELECTIVE, 21.2},
    {&megascale, "175B on 768", MEGASCALE(96, 12288, 128), 8, 8, 12, 6, 1, 768, SELECTIVE, 15.2},
    {&megascale, "175B on 1,024", MEGASCALE(96, 12288, 128), 8, 8, 16, 6, 1, 768, SELECTIVE, 11.9},
    {&megascale, "175B on 3,072", MEGASCALE(96, 12288, 128), 8, 8, 48, 6, 1, 6144, SELECTIVE, 29.02},
    {&megascale, "175B on 6,144", MEGASCALE(96, 12288, 128), 8, 8, 96, 6, 1, 6144, SELECTIVE, 14.78},
    {&megascale, "175B on 8,192", MEGASCALE(96, 12288, 128), 8, 8, 128, 6, 1, 6144, SELECTIVE, 12.24},
    {&megascale, "175B on 12,288", MEGASCALE(96, 12288, 128), 8, 8, 192, 6, 1, 6144, SELECTIVE, 8.57},
    {&megascale530, "530B on 2,240", MEGASCALE(105, 20480, 160), 8, 35, 8, 3, 1, 2240, SELECTIVE, 49.2},
    {&megascale530, "530B on 4,480", MEGASCALE(105, 20480, 160), 8, 35, 16, 3, 1, 4480, SELECTIVE, 48.8},
    {&megascale530, "530B on 11,200", MEGASCALE(105, 20480, 160), 8, 35, 40, 3, 1, 11200, SELECTIVE, 48.2},
    {&zero_bubble, "1.5B, 24 micro-batches of 6", ZB(22, 2304, 24), 1, 8, 1, 1, 6, 144, NONE, 11.8},
    {&zero_bubble, "1.5B, 32 micro-batches of 6", ZB(22, 2304, 24), 1, 8, 1, 1, 6, 192, NONE, 12.5},
    {&zero_bubble, "1.5B, 64 micro-batches of 6", ZB(22, 2304, 24), 1, 8, 1, 1, 6, 384, NONE, 13.6},
    {&zero_bubble, "1.5B, 24 micro-batches of 6, interleaved", ZB(22, 2304, 24), 1, 8, 1, 3, 6, 144, NONE, 13.1},
    {&zero_bubble, "1.5B, 32 micro-batches of 6, interleaved", ZB(22, 2304, 24), 1, 8, 1, 3, 6, 192, NONE, 13.4},
    {&zero_bubble, "1.5B, 64 micro-batches of 6, interleaved", ZB(22, 2304, 24), 1, 8, 1, 3, 6, 384, NONE, 13.9},
    {&zero_bubble, "6.2B, 24 micro-batches of 3", ZB(30, 4096, 32), 1, 8, 1, 1, 3, 72, NONE, 3.5},
    {&zero_bubble, "6.2B, 32 micro-batches of 3", ZB(30, 4096, 32), 1, 8, 1, 1, 3, 96, NONE, 3.7},
    {&zero_bubble, "6.2B, 64 micro-batches of 3", ZB(30, 4096, 32), 1, 8, 1, 1, 3, 192, NONE, 4.03},
    {&zero_bubble, "6.2B, 24 micro-batches of 3, interleaved", ZB(30, 4096, 32), 1, 8, 1, 4, 3, 72, NONE, 4.01},
    {&zero_bubble, "6.2B, 32 micro-batches of 3, interleaved", ZB(30, 4096, 32), 1, 8, 1, 4, 3, 96, NONE, 4.08},
    {&zero_bubble, "6.2B, 64 micro-batches of 3, interleaved", ZB(30, 4096, 32), 1, 8, 1, 4, 3, 192, NONE, 4.19},
    {&zero_bubble, "14.6B, 48 micro-batches of 1", ZB(46, 5120, 40), 1, 16, 1, 1, 1, 48, NONE, 1.4},
    {&zero_bubble, "14.6B, 64 micro-batches of 1", ZB(46, 5120, 40), 1, 16, 1, 1, 1, 64, NONE, 1.49},
    {&zero_bubble, "14.6B, 128 micro-batches of 1", ZB(46, 5120, 40), 1, 16, 1, 1, 1, 128, NONE, 1.64},
    {&zero_bubble, "14.6B, 48 micro-batches of 1, interleaved", ZB(46, 5120, 40), 1, 16, 1, 3, 1, 48, NONE, 1.54},
    {&zero_bubble, "14.6B, 64 micro-batches of 1, interleaved", ZB(46, 5120, 40), 1, 16, 1, 3, 1, 64, NONE, 1.59},
    {&zero_bubble, "14.6B, 128 micro-batches of 1, interleaved", ZB(46, 5120, 40), 1, 16, 1, 3, 1, 128, NONE, 1.66},
    {&zero_bubble, "28.3B, 96 micro-batches of 1", ZB(62, 6144, 48), 1, 32, 1, 1, 1, 96, NONE, 0.76},
    {&zero_bubble, "28.3B, 128 micro-batches of 1", ZB(62, 6144, 48), 1, 32, 1, 1, 1, 128, NONE, 0.8},
    {&zero_bubble, "28.3B, 256 micro-batches of 1", ZB(62, 6144, 48), 1, 32, 1, 1, 1, 256, NONE, 0.88},
    {&zero_bubble, "28.3B, 96 micro-batches of 1, interleaved", ZB(62, 6144, 48), 1, 32, 1, 2, 1, 96, NONE, 0.82},
    {&zero_bubble, "28.3B, 128 micro-batches of 1, interleaved", ZB(62, 6144, 48), 1, 32, 1, 2, 1, 128, NONE, 0.85},
    {&zero_bubble, "28.3B, 256 micro-batches of 1, interleaved", ZB(62, 6144, 48), 1, 32, 1, 2, 1, 256, NONE, 0.9},
    {&bloom,
     "176B on 384",
     {ARCH_GPT2, 70, 14336, 112, 112, 57344, 2048, 250880, true},
     4,
     12,
     8,
     1,
     2,
     2048,
     FULL,
     150},
    {&neox, "20B on 96", {ARCH_GPT2, 44, 6144, 64, 64, 24576, 2048, 50688, false}, 2, 4, 12, 1, 4, 1536, FULL, 117},
    {&glm, "130B on 768", {ARCH_GPT2, 70, 12288, 96, 96, 32768, 2048, 150528, true}, 4, 8, 24, 1, 1, 4224, FULL, 32.5},
    {&megatron_readme, "175B on 1,024", GPT(96, 12288, 96), 8, 16, 8, 1, 1, 1536, FULL, 138},
    {&hagemann_13b_2k_32, "13B, micro-batch 1", HAGEMANN13(2048), 1, 1, 32, 1, 1, 2048, NONE, 53.806},
    {&hagemann_13b_2k_32, "13B, micro-batch 1, rows", HAGEMANN13(2048), 1, 1, 32, 1, 1, 2048, SP, 53.989},
    {&hagemann_13b_2k_32, "13B, micro-batch 1", HAGEMANN13(2048), 1, 2, 16, 1, 1, 2048, NONE, 58.621},
    {&hagemann_13b_2k_32, "13B, micro-batch 1, rows", HAGEMANN13(2048), 1, 2, 16, 1, 1, 2048, SP, 58.006},
    {&hagemann_13b_2k_32, "13B, micro-batch 2", HAGEMANN13(2048), 1, 2, 16, 1, 2, 2048, NONE, 60.229},
    {&hagemann_13b_2k_32, "13B, micro-batch 2, rows", HAGEMANN13(2048), 1, 2, 16, 1, 2, 2048, SP, 59.553},
    {&hagemann_13b_2k_32, "13B, micro-batch 1", HAGEMANN13(2048), 2, 1, 16, 1, 1, 2048, NONE, 62.09},
    {&hagemann_13b_2k_32, "13B, micro-batch 1, rows", HAGEMANN13(2048), 2, 1, 16, 1, 1, 2048, SP, 60.963},
    {&hagemann_13b_2k_32, "13B, micro-batch 2", HAGEMANN13(2048), 2, 1, 16, 1, 2, 2048, NONE, 57.606},
    {&hagemann_13b_2k_32, "13B, micro-batch 2, rows", HAGEMANN13(2048), 2, 1, 16, 1, 2, 2048, SP, 61.122},
    {&hagemann_13b_2k_32, "13B, micro-batch 1", HAGEMANN13(2048), 2, 2, 8, 1, 1, 2048, NONE, 67.937},
    {&hagemann_13b_2k_32, "13B, micro-batch 1, rows", HAGEMANN13(2048), 2, 2, 8, 1, 1, 2048, SP, 66.257},
    {&hagemann_13b_2k_32, "13B, micro-batch 2", HAGEMANN13(2048), 2, 2, 8, 1, 2, 2048, NONE, 66.126},
    {&hagemann_13b_2k_32, "13B, micro-batch 2, rows", HAGEMANN13(2048), 2, 2, 8, 1, 2, 2048, SP, 65.044},
    {&hagemann_13b_2k_32, "13B, micro-batch 4", HAGEMANN13(2048), 2, 2, 8, 1, 4, 2048, NONE, 68.485},
    {&hagemann_13b_2k_32, "13B, micro-batch 4, rows", HAGEMANN13(2048), 2, 2, 8, 1, 4, 2048, SP, 67.472},
    {&hagemann_13b_2k_64, "13B, micro-batch 1", HAGEMANN13(2048), 1, 1, 64, 1, 1, 2048, NONE, 26.54},
    {&hagemann_13b_2k_64, "13B, micro-batch 1", HAGEMANN13(2048), 1, 2, 32, 1, 1, 2048, NONE, 31.058},
    {&hagemann_13b_2k_64, "13B, micro-batch 2", HAGEMANN13(2048), 1, 2, 32, 1, 2, 2048, NONE, 33.11},
    {&hagemann_13b_2k_64, "13B, micro-batch 1", HAGEMANN13(2048), 2, 1, 32, 1, 1, 2048, NONE, 31.286},
    {&hagemann_13b_2k_64, "13B, micro-batch 2", HAGEMANN13(2048), 2, 1, 32, 1, 2, 2048, NONE, 29.704},
    {&hagemann_13b_2k_64, "13B, micro-batch 1", HAGEMANN13(2048), 2, 2, 16, 1, 1, 2048, NONE, 34.842},
    {&hagemann_13b_2k_64, "13B, micro-batch 2", HAGEMANN13(2048), 2, 2, 16, 1, 2, 2048, NONE, 35.047},
    {&hagemann_13b_2k_64, "13B, micro-batch 4", HAGEMANN13(2048), 2, 2, 16, 1, 4, 2048, NONE, 37.567},
    {&hagemann_13b_8k_64, "13B, micro-batch 1", HAGEMANN13(8192), 2, 2, 16, 1, 1, 512, NONE, 34.85},
    {&hagemann_13b_8k_64, "13B, micro-batch 1, rows", HAGEMANN13(8192), 2, 2, 16, 1, 1, 512, SP, 34.84},
    {&hagemann_13b_8k_64, "13B, micro-batch 1", HAGEMANN13(8192), 2, 4, 8, 1, 1, 512, NONE, 36.602},
    {&hagemann_13b_8k_64, "13B, micro-batch 1, rows", HAGEMANN13(8192), 2, 4, 8, 1, 1, 512, SP, 35.797},
    {&hagemann_13b_8k_64, "13B, micro-batch 1", HAGEMANN13(8192), 4, 1, 16, 1, 1, 512, NONE, 38.897},
    {&hagemann_13b_8k_64, "13B, micro-batch 1, rows", HAGEMANN13(8192), 4, 1, 16, 1, 1, 512, SP, 36.99},
    {&hagemann_13b_8k_64, "13B, micro-batch 1", HAGEMANN13(8192), 4, 2, 8, 1, 1, 512, NONE, 40.702},
    {&hagemann_13b_8k_64, "13B, micro-batch 1, rows", HAGEMANN13(8192), 4, 2, 8, 1, 1, 512, SP, 38.847},
    {&hagemann_13b_8k_64, "13B, micro-batch 1", HAGEMANN13(8192), 4, 4, 4, 1, 1, 512, NONE, 43.493},
    {&hagemann_13b_8k_64, "13B, micro-batch 1, rows", HAGEMANN13(8192), 4, 4, 4, 1, 1, 512, SP, 40.824},
    {&hagemann_13b_8k_64, "13B, micro-batch 2", HAGEMANN13(8192), 4, 4, 4, 1, 2, 512, NONE, 44.026},
    {&hagemann_13b_8k_64, "13B, micro-batch 2, rows", HAGEMANN13(8192), 4, 4, 4, 1, 2, 512, SP, 41.063},
    {&hagemann_13b_8k_64, "13B, micro-batch 1", HAGEMANN13(8192), 8, 1, 8, 1, 1, 512, NONE, 51.033},
    {&hagemann_13b_8k_64, "13B, micro-batch 1, rows", HAGEMANN13(8192), 8, 1, 8, 1, 1, 512, SP, 46.371},
    {&hagemann_13b_8k_64, "13B, micro-batch 1", HAGEMANN13(8192), 8, 2, 4, 1, 1, 512, NONE, 56.229},
    {&hagemann_13b_8k_64, "13B, micro-batch 1, rows", HAGEMANN13(8192), 8, 2, 4, 1, 1, 512, SP, 49.956},
    {&hagemann_13b_8k_64, "13B, micro-batch 2, rows", HAGEMANN13(8192), 8, 2, 4, 1, 2, 512, SP, 46.89},
    {&hagemann_13b_8k_64, "13B, micro-batch 1", HAGEMANN13(8192), 8, 4, 2, 1, 1, 512, NONE, 62.043},
    {&hagemann_13b_8k_64, "13B, micro-batch 1, rows", HAGEMANN13(8192), 8, 4, 2, 1, 1, 512, SP, 54.781},
    {&hagemann_13b_8k_64, "13B, micro-batch 2", HAGEMANN13(8192), 8, 4, 2, 1, 2, 512, NONE, 59.615},
    {&hagemann_13b_8k_64, "13B, micro-batch 2, rows", HAGEMANN13(8192), 8, 4, 2, 1, 2, 512, SP, 51.914},
    {&hagemann_13b_8k_128, "13B, micro-batch 1", HAGEMANN13(8192), 2, 2, 32, 1, 1, 512, NONE, 18.41},
    {&hagemann_13b_8k_128, "13B, micro-batch 1", HAGEMANN13(8192), 2, 4, 16, 1, 1, 512, NONE, 19.32},
    {&hagemann_13b_8k_128, "13B, micro-batch 1", HAGEMANN13(8192), 4, 1, 32, 1, 1, 512, NONE, 21.359},
    {&hagemann_13b_8k_128, "13B, micro-batch 1", HAGEMANN13(8192), 4, 2, 16, 1, 1, 512, NONE, 21.942},
    {&hagemann_13b_8k_128, "13B, micro-batch 1", HAGEMANN13(8192), 4, 4, 8, 1, 1, 512, NONE, 23.459},
    {&hagemann_13b_8k_128, "13B, micro-batch 2", HAGEMANN13(8192), 4, 4, 8, 1, 2, 512, NONE, 23.782},
    {&hagemann_30b_2k_64, "30B, micro-batch 1", HAGEMANN30(2048), 1, 4, 16, 1, 1, 2048, NONE, 71.995},
    {&hagemann_30b_2k_64, "30B, micro-batch 1, rows", HAGEMANN30(2048), 1, 4, 16, 1, 1, 2048, SP, 72.598},
    {&hagemann_30b_2k_64, "30B, micro-batch 1", HAGEMANN30(2048), 2, 2, 16, 1, 1, 2048, NONE, 80.174},
    {&hagemann_30b_2k_64, "30B, micro-batch 1, rows", HAGEMANN30(2048), 2, 2, 16, 1, 1, 2048, SP, 76.843},
    {&hagemann_30b_2k_64, "30B, micro-batch 1", HAGEMANN30(2048), 2, 4, 8, 1, 1, 2048, NONE, 78.434},
    {&hagemann_30b_2k_64, "30B, micro-batch 1, rows", HAGEMANN30(2048), 2, 4, 8, 1, 1, 2048, SP, 76.584},
    {&hagemann_30b_2k_64, "30B, micro-batch 2", HAGEMANN30(2048), 2, 4, 8, 1, 2, 2048, NONE, 74.855},
    {&hagemann_30b_2k_64, "30B, micro-batch 2, rows", HAGEMANN30(2048), 2, 4, 8, 1, 2, 2048, SP, 72.658},
    {&hagemann_30b_2k_64, "30B, micro-batch 1", HAGEMANN30(2048), 4, 1, 16, 1, 1, 2048, NONE, 94.115},
    {&hagemann_30b_2k_64, "30B, micro-batch 1, rows", HAGEMANN30(2048), 4, 1, 16, 1, 1, 2048, SP, 89.333},
    {&hagemann_30b_2k_64, "30B, micro-batch 2, rows", HAGEMANN30(2048), 4, 1, 16, 1, 2, 2048, SP, 85.212},
    {&hagemann_30b_2k_64, "30B, micro-batch 1", HAGEMANN30(2048), 4, 2, 8, 1, 1, 2048, NONE, 89.864},
    {&hagemann_30b_2k_64, "30B, micro-batch 1, rows", HAGEMANN30(2048), 4, 2, 8, 1, 1, 2048, SP, 85.47},
    {&hagemann_30b_2k_64, "30B, micro-batch 2", HAGEMANN30(2048), 4, 2, 8, 1, 2, 2048, NONE, 84.884},
    {&hagemann_30b_2k_64, "30B, micro-batch 2, rows", HAGEMANN30(2048), 4, 2, 8, 1, 2, 2048, SP, 81.061},
    {&hagemann_30b_2k_64, "30B, micro-batch 4, rows", HAGEMANN30(2048), 4, 2, 8, 1, 4, 2048, SP, 83.105},
    {&hagemann_30b_2k_64, "30B, micro-batch 4, rows", HAGEMANN30(2048), 4, 2, 8, 1, 4, 2048, SP, 83.76},
    {&hagemann_30b_2k_64, "30B, micro-batch 1", HAGEMANN30(2048), 4, 4, 4, 1, 1, 2048, NONE, 95.517},
    {&hagemann_30b_2k_64, "30B, micro-batch 1, rows", HAGEMANN30(2048), 4, 4, 4, 1, 1, 2048, SP, 87.684},
    {&hagemann_30b_2k_64, "30B, micro-batch 2", HAGEMANN30(2048), 4, 4, 4, 1, 2, 2048, NONE, 89.762},
    {&hagemann_30b_2k_64, "30B, micro-batch 2, rows", HAGEMANN30(2048), 4, 4, 4, 1, 2, 2048, SP, 82.219},
    {&hagemann_30b_2k_64, "30B, micro-batch 4", HAGEMANN30(2048), 4, 4, 4, 1, 4, 2048, NONE, 86.437},
    {&hagemann_30b_2k_64, "30B, micro-batch 4", HAGEMANN30(2048), 4, 4, 4, 1, 4, 2048, NONE, 86.667},
    {&hagemann_30b_2k_64, "30B, micro-batch 4, rows", HAGEMANN30(2048), 4, 4, 4, 1, 4, 2048, SP, 77.586},
    {&hagemann_30b_2k_256, "30B, micro-batch 1", HAGEMANN30(2048), 1, 4, 64, 1, 1, 2048, NONE, 23.995},
    {&hagemann_30b_2k_256, "30B, micro-batch 1", HAGEMANN30(2048), 2, 2, 64, 1, 1, 2048, NONE, 28.336},
    {&hagemann_30b_2k_256, "30B, micro-batch 1", HAGEMANN30(2048), 2, 4, 32, 1, 1, 2048, NONE, 22.667},
    {&hagemann_30b_2k_256, "30B, micro-batch 2", HAGEMANN30(2048), 2, 4, 32, 1, 2, 2048, NONE, 24.258},
    {&hagemann_30b_2k_256, "30B, micro-batch 1", HAGEMANN30(2048), 4, 1, 64, 1, 1, 2048, NONE, 31.77},
    {&hagemann_30b_2k_256, "30B, micro-batch 2", HAGEMANN30(2048), 4, 1, 64, 1, 2, 2048, NONE, 35.319},
    {&hagemann_30b_2k_256, "30B, micro-batch 1", HAGEMANN30(2048), 4, 2, 32, 1, 1, 2048, NONE, 26.935},
    {&hagemann_30b_2k_256, "30B, micro-batch 2", HAGEMANN30(2048), 4, 2, 32, 1, 2, 2048, NONE, 26.26},
    {&hagemann_30b_2k_256, "30B, micro-batch 1", HAGEMANN30(2048), 4, 4, 16, 1, 1, 2048, NONE, 26.279},
    {&hagemann_30b_2k_256, "30B, micro-batch 2", HAGEMANN30(2048), 4, 4, 16, 1, 2, 2048, NONE, 25.323},
    {&hagemann_30b_2k_256, "30B, micro-batch 4", HAGEMANN30(2048), 4, 4, 16, 1, 4, 2048, NONE, 25.05},
    {&hagemann_30b_8k_64, "30B, micro-batch 1, rows", HAGEMANN30(8192), 4, 2, 8, 1, 1, 512, SP, 84.367},
    {&hagemann_30b_8k_64, "30B, micro-batch 1", HAGEMANN30(8192), 4, 4, 4, 1, 1, 512, NONE, 93.837},
    {&hagemann_30b_8k_64, "30B, micro-batch 1, rows", HAGEMANN30(8192), 4, 4, 4, 1, 1, 512, SP, 85.686},
    {&hagemann_30b_8k_64, "30B, micro-batch 1", HAGEMANN30(8192), 4, 8, 2, 1, 1, 512, NONE, 96.699},
    {&hagemann_30b_8k_64, "30B, micro-batch 1, rows", HAGEMANN30(8192), 4, 8, 2, 1, 1, 512, SP, 86.167},
    {&hagemann_30b_8k_64, "30B, micro-batch 1", HAGEMANN30(8192), 4, 16, 1, 1, 1, 512, NONE, 98.368},
    {&hagemann_30b_8k_64, "30B, micro-batch 1, rows", HAGEMANN30(8192), 4, 16, 1, 1, 1, 512, SP, 86.155},
    {&hagemann_30b_8k_128, "30B, micro-batch 1", HAGEMANN30(8192), 4, 4, 8, 1, 1, 512, NONE, 49.435},
    {&hagemann_30b_8k_128, "30B, micro-batch 1", HAGEMANN30(8192), 4, 8, 4, 1, 1, 512, NONE, 50.233},
    {&hagemann_30b_8k_128, "30B, micro-batch 1", HAGEMANN30(8192), 4, 16, 2, 1, 1, 512, NONE, 54.785},
    {&hagemann_65b_2k_64, "65B, micro-batch 1, rows", HAGEMANN65(2048), 2, 4, 8, 1, 1, 2048, SP, 147.02},
    {&hagemann_65b_2k_64, "65B, micro-batch 1", HAGEMANN65(2048), 2, 8, 4, 1, 1, 2048, NONE, 152.65},
    {&hagemann_65b_2k_64, "65B, micro-batch 1, rows", HAGEMANN65(2048), 2, 8, 4, 1, 1, 2048, SP, 149.967},
    {&hagemann_65b_2k_64, "65B, micro-batch 1", HAGEMANN65(2048), 4, 2, 8, 1, 1, 2048, NONE, 169.388},
    {&hagemann_65b_2k_64, "65B, micro-batch 1, rows", HAGEMANN65(2048), 4, 2, 8, 1, 1, 2048, SP, 162.316},
    {&hagemann_65b_2k_64, "65B, micro-batch 1", HAGEMANN65(2048), 4, 4, 4, 1, 1, 2048, NONE, 172.114},
    {&hagemann_65b_2k_64, "65B, micro-batch 1, rows", HAGEMANN65(2048), 4, 4, 4, 1, 1, 2048, SP, 159.567},
    {&hagemann_65b_2k_64, "65B, micro-batch 2", HAGEMANN65(2048), 4, 4, 4, 1, 2, 2048, NONE, 158.736},
    {&hagemann_65b_2k_64, "65B, micro-batch 2, rows", HAGEMANN65(2048), 4, 4, 4, 1, 2, 2048, SP, 149.921},
    {&hagemann_65b_2k_64, "65B, micro-batch 1", HAGEMANN65(2048), 4, 8, 2, 1, 1, 2048, NONE, 179.778},
    {&hagemann_65b_2k_64, "65B, micro-batch 1, rows", HAGEMANN65(2048), 4, 8, 2, 1, 1, 2048, SP, 166.359},
    {&hagemann_65b_2k_64, "65B, micro-batch 2", HAGEMANN65(2048), 4, 8, 2, 1, 2, 2048, NONE, 168.704},
    {&hagemann_65b_2k_64, "65B, micro-batch 2, rows", HAGEMANN65(2048), 4, 8, 2, 1, 2, 2048, SP, 156.401},
    {&hagemann_65b_2k_64, "65B, micro-batch 1", HAGEMANN65(2048), 8, 2, 4, 1, 1, 2048, NONE, 207.262},
    {&hagemann_65b_2k_64, "65B, micro-batch 1, rows", HAGEMANN65(2048), 8, 2, 4, 1, 1, 2048, SP, 192.451},
    {&hagemann_65b_2k_64, "65B, micro-batch 2", HAGEMANN65(2048), 8, 2, 4, 1, 2, 2048, NONE, 193.688},
    {&hagemann_65b_2k_64, "65B, micro-batch 2, rows", HAGEMANN65(2048), 8, 2, 4, 1, 2, 2048, SP, 178.639},
    {&hagemann_65b_2k_64, "65B, micro-batch 1", HAGEMANN65(2048), 8, 4, 2, 1, 1, 2048, NONE, 220.273},
    {&hagemann_65b_2k_64, "65B, micro-batch 1, rows", HAGEMANN65(2048), 8, 4, 2, 1, 1, 2048, SP, 198.113},
    {&hagemann_65b_2k_64, "65B, micro-batch 2", HAGEMANN65(2048), 8, 4, 2, 1, 2, 2048, NONE, 202.203},
    {&hagemann_65b_2k_64, "65B, micro-batch 2, rows", HAGEMANN65(2048), 8, 4, 2, 1, 2, 2048, SP, 179.871},
    {&hagemann_65b_2k_64, "65B, micro-batch 4", HAGEMANN65(2048), 8, 4, 2, 1, 4, 2048, NONE, 166.494},
    {&hagemann_65b_2k_64, "65B, micro-batch 1", HAGEMANN65(2048), 8, 8, 1, 1, 1, 2048, NONE, 232.997},
    {&hagemann_65b_2k_64, "65B, micro-batch 1, rows", HAGEMANN65(2048), 8, 8, 1, 1, 1, 2048, SP, 201.435},
    {&hagemann_65b_2k_64, "65B, micro-batch 2", HAGEMANN65(2048), 8, 8, 1, 1, 2, 2048, NONE, 223.09},
    {&hagemann_65b_2k_64, "65B, micro-batch 2, rows", HAGEMANN65(2048), 8, 8, 1, 1, 2, 2048, SP, 186.537},
    {&hagemann_65b_2k_64, "65B, micro-batch 4", HAGEMANN65(2048), 8, 8, 1, 1, 4, 2048, NONE, 167.704},
    {&hagemann_65b_2k_128, "65B, micro-batch 1", HAGEMANN65(2048), 2, 4, 16, 1, 1, 2048, NONE, 79.307},
    {&hagemann_65b_2k_128, "65B, micro-batch 1", HAGEMANN65(2048), 2, 8, 8, 1, 1, 2048, NONE, 79.54},
    {&hagemann_65b_2k_128, "65B, micro-batch 1", HAGEMANN65(2048), 4, 2, 16, 1, 1, 2048, NONE, 87.144},
    {&hagemann_65b_2k_128, "65B, micro-batch 1", HAGEMANN65(2048), 4, 4, 8, 1, 1, 2048, NONE, 86.615},
    {&hagemann_65b_2k_128, "65B, micro-batch 2", HAGEMANN65(2048), 4, 4, 8, 1, 2, 2048, NONE, 82.882},
    {&hagemann_65b_2k_128, "65B, micro-batch 1", HAGEMANN65(2048), 4, 8, 4, 1, 1, 2048, NONE, 92.614},
    {&hagemann_65b_2k_128, "65B, micro-batch 2", HAGEMANN65(2048), 4, 8, 4, 1, 2, 2048, NONE, 86.554},
    {&hagemann_65b_2k_128, "65B, micro-batch 1", HAGEMANN65(2048), 8, 2, 8, 1, 1, 2048, NONE, 107.851},
    {&hagemann_65b_2k_128, "65B, micro-batch 2", HAGEMANN65(2048), 8, 2, 8, 1, 2, 2048, NONE, 101.28},
    {&hagemann_65b_2k_128, "65B, micro-batch 1", HAGEMANN65(2048), 8, 4, 4, 1, 1, 2048, NONE, 111.831},
    {&hagemann_65b_2k_128, "65B, micro-batch 2", HAGEMANN65(2048), 8, 4, 4, 1, 2, 2048, NONE, 103.17},
    {&hagemann_65b_2k_128, "65B, micro-batch 1", HAGEMANN65(2048), 8, 8, 2, 1, 1, 2048, NONE, 121.932},
    {&hagemann_65b_2k_128, "65B, micro-batch 2", HAGEMANN65(2048), 8, 8, 2, 1, 2, 2048, NONE, 115.581},
};
enum { PUBLISHED_RESULTS = sizeof published_results / sizeof published_results[0], PUBLISHED_TABLE1 = 10 };
#undef GPT
#undef MPT
#undef GPT2
#undef QWEN
#undef LLAMA3
#undef NEMOTRON
#undef CORE
#undef NEMOTRON15
#undef MEGASCALE
#undef ZB
#undef HAGEMANN13
#undef HAGEMANN30
#undef HAGEMANN65
#undef FULL
#undef SELECTIVE
#undef NONE
#undef SP
