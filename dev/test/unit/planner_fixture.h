/*
planner_fixture.h: the scaffolding of the planner's tests: relative errors, numbers at random, clusters by name, lines
of options, bytes of a step by other means, a measured machine.
*/
#pragma once

#include "../../../planner/methods_search.h"
#include "test.h"

static inline bool cluster_find(Cluster* c, const char* name) {
    char path[PATH_MAX];
    Error error;
    return cluster_path(path, name) && cluster_read(c, path, &error);
}

// Whole numbers at random: from low to high.
static inline int draw(int low, int high) {
    static uint64_t drawn = 0;
    return low + (int)(random_uniform(11, 0, drawn++) * (float)(high - low + 1)) % (high - low + 1);
}

static inline double relative(double a, double b) { return fabs(a - b) / fmax(fabs(b), 1e-300); }

static inline Cluster cluster_named(const char* name) {
    Cluster c;
    if (!cluster_find(&c, name)) die("no cluster %s", name);
    return c;
}

static inline ModelConfig gpt(int L, int C, int NH) { return model_of(ARCH_GPT2, L, C, NH, NH, 4 * C, 2048, 51200); }

static inline double seconds_of(const StepSetup* s) {
    StepCost cost = step_cost(s);
    const double seconds = cost.seconds;
    step_cost_free(&cost);
    return seconds;
}

// Takes the options of a line, whose words stay where they are.
static inline bool parse_line(char* line, Option* table, int n, Error* error) {
    static char program[] = "test";
    char* word[64] = {program};
    int words = 1;
    for (char* at = strtok(line, " \n"); at && words < 64; at = strtok(NULL, " \n")) word[words++] = at;
    return options_parse(table, n, words, word, error);
}

// The methods of a command line of ./plan, to be freed; search: of --search. False, with the reason, if refused.
static inline bool methods_of_line(Methods* methods, const char* line, const char* search, Error* error) {
    static char text[256];
    Settings settings = settings_default();
    Option table[METHOD_OPTIONS];
    OptionTable list = {table, 0, METHOD_OPTIONS};
    memset(methods, 0, sizeof *methods);
    methods_table(&list, &settings);
    snprintf(text, sizeof text, "%s", line);
    return parse_line(text, table, list.n, error) && methods_read(methods, &settings, table, list.n, search, error);
}

// The only ones of a line.
static inline StepMethods methods_named(const char* line) {
    Methods methods;
    Error error;
    if (!methods_of_line(&methods, line, NULL, &error)) die("%s: %s", line, error.text);
    const StepMethods first = methods.list[0];
    free(methods.list);
    return first;
}

// Bytes that a rank of the mean stage sends to other sites in the steps first + 1 to last, by the trainer's formula.
static inline double sent_by_formula(const StepSetup* s, int64_t first, int64_t last) {
    const AsyncConfig* a = &s->methods.async;
    double inter_site = 0;
    for (int r = 0; r < s->parallel.mesh.p; r++) {
        ParallelConfig parallel = s->parallel;
        Layout layout;
        Error error;
        parallel.mesh.pipeline = r;
        if (!layout_build(&layout, &s->model, parallel, s->T, &error)) die("%s", error.text);
        inter_site += async_schedule_traffic(a, &layout, first, last).inter_site;
        layout_free(&layout);
    }
    return inter_site / s->parallel.mesh.p;
}

// Bytes that a rank sends to its tensor group for the collectives of a list.
static inline double work_sent(const Work* w) {
    double bytes = 0;
    for (int i = 0; i < w->n; i++) {
        const Op* op = &w->op[i];
        if (op->kind == OP_COLLECTIVE) bytes += plan_passes(op->collective) * (op->ranks - 1.0) / op->ranks * op->bytes;
    }
    return bytes;
}

// A machine of cores that ranks share; peak: FLOP/s of all cores that compute, memory: bytes of the machine.
static inline Cluster cores_cluster(int cores, double peak, double memory, int ranks) {
    const double rate = 5e9;
    Cluster c = cluster_named("dgx-a100");
    c.cores = cores;
    c.node_gpus = ranks;
    c.nics = 1;
    c.device.sms = 0;
    c.device.peak = c.device.peak_fp32 = peak / fmin(cores, ranks);
    c.device.memory = memory;
    c.device.hbm = c.nvlink = c.nic = rate;
    c.device.gemm_fraction = 0.75;
    c.device.sustained = c.device.hbm_fraction = c.nvlink_fraction = c.nic_fraction = c.overlap_cost = 1;
    c.device.launch = c.device.tile_overhead = 1e-6;
    c.nvlink_step = 20e-6;
    c.nic_step = 50e-6;
    for (int i = 0; i < 4; i++) c.device.attention[i / 2][i % 2] = 0.4;
    return c;
}
