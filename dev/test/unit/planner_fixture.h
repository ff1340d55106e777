/*
planner_fixture.h: the scaffolding of the planner's tests: relative errors, clusters by name, bytes of a step by other
means, a measured machine.
*/
#pragma once

#include "../../../planner/measured_device.h"
#include "../../../planner/methods_search.h"
#include "test.h"

static inline double relative(double a, double b) { return fabs(a - b) / fmax(fabs(b), 1e-300); }

static inline Cluster cluster_named(const char* name) {
    Cluster c;
    if (!cluster_find(&c, name)) die("no cluster %s", name);
    return c;
}

static inline ModelConfig gpt(int L, int C, int NH) { return model_gpt2(L, C, NH, 2048, 51200); }

static inline double seconds_of(const StepSetup* s) {
    StepCost cost = step_cost(s);
    const double seconds = cost.seconds;
    step_cost_free(&cost);
    return seconds;
}

// The methods of a command line of ./plan, to be freed; search: of --search. False, with the reason, if refused.
static inline bool methods_of_line(Methods* methods, const char* line, const char* search, Error* error) {
    static char text[256];
    Settings settings = settings_default();
    Option table[METHOD_OPTIONS];
    OptionTable list = {table, 0, METHOD_OPTIONS};
    char* word[24] = {text};
    int words = 1;
    memset(methods, 0, sizeof *methods);
    methods_table(&list, &settings);
    snprintf(text, sizeof text, "%s", line);
    for (char* at = strtok(text, " "); at && words < 24; at = strtok(NULL, " ")) word[words++] = at;
    return options_parse(table, list.n, words, word, error) &&
           methods_read(methods, &settings, table, list.n, search, error);
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
    for (int r = 0; r < s->mesh.p; r++) {
        Mesh mesh = s->mesh;
        Layout layout;
        Error error;
        mesh.pipeline = r;
        if (!layout_build(&layout, &s->model, mesh, s->T, &error)) die("%s", error.text);
        inter_site += async_schedule_traffic(a, &layout, first, last).inter_site;
        layout_free(&layout);
    }
    return inter_site / s->mesh.p;
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

// Two cores that multiply at `rate`, and whose other times are simple powers of sizes; a rank that computes alone is
// faster.
static inline void make_machine(Measured* m, double rate) {
    static const double sizes[] = {32, 128, 512}, elements[] = {1024, 65536, 1048576};
    measured_init(m);
    m->cores = 2;
    m->tile_rows = 8;
    m->tile_columns = 48;
    m->resident = 2e7;
    for (int i = 0; i < 2 * 3 * 27; i++) {
        const double a = sizes[i / 9 % 3], b = sizes[i / 3 % 3], c = sizes[i % 3];
        measured_add(m, measured_point(MEASURED_PRODUCT, i / 81, i / 27 % 3, a, b, c,
                                       rate * (i / 81 + 1) * pow(a * b * c, 0.1) / (i / 27 % 3 + 1)));
    }
    for (int i = 0; i < 2 * MEASURED_KERNELS * 3; i++)
        measured_add(m, measured_point(MEASURED_MEMORY, i / (3 * MEASURED_KERNELS), i / 3 % MEASURED_KERNELS,
                                       elements[i % 3], 0, 0, 1e-9 / (1 + i % 3)));
    for (int i = 0; i < 2 * 2 * 4; i++)
        measured_add(m, measured_point(MEASURED_ATTENTION, i / 8, i / 4 % 2, 64 << i / 2 % 2 * 2, 32 << i % 2, 0,
                                       1e10 * (1 + i % 4)));
    for (int i = 0; i < 2 * 3 * 9; i++)
        measured_add(m, measured_point(MEASURED_COLLECTIVE, i / 27, i / 9 % 3, 2 << i / 3 % 3, elements[i % 3], 0,
                                       1e-5 * (1 + i / 27) + 1e-9 * elements[i % 3] * (1 << i / 3 % 3)));
    for (int i = 0; i < 9; i++)
        measured_add(
            m, measured_point(MEASURED_MESSAGE, 0, 0, 2 << i / 3, elements[i % 3], 0, 1e-6 + 1e-9 * elements[i % 3]));
    for (int n = 2; n <= 8; n *= 2) {
        for (int k = 1; k <= n; k++)
            measured_add(m, measured_point(MEASURED_SPEED, 0, 0, n, k, 0, k == 1 ? 1.5 : 2.0 / k));
    }
}

// As a cluster's file. memory: bytes of the machine; 0: not known. Returns false if writing has failed.
static inline bool write_machine(const char* path, const Measured* m, double memory) {
    FILE* out = fopen(path, "w");
    if (!out) return false;
    const bool said = memory <= 0 || fprintf(out, "memory %.17g B\n", memory) > 0;
    const bool written = measured_write(m, out) && said;
    return fclose(out) == 0 && written;
}
