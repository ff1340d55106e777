/*
methods_search.h: the methods of a question (ops.h: StepMethods), from the trainer's options.

    methods_table      the trainer's own rows of these options
    methods_read       what was given; for each name in --search, all values that are tried, in every combination that
                       the trainer accepts
    methods_options    a choice as options of the trainer
*/
#pragma once

#include "../trainer/derived.h"
#include "search.h"

// The options, and the values that --search tries; none: given, or the trainer's default.
static const struct {
    const char *name, *values[8];
} method_options[] = {
    {"dp-mode", {"sync", "dc-s3gd", "diloco"}},
    {"sites", {NULL}},
    {"local-steps", {"8", "32", "128", "512"}},
    {"allreduce", {"native", "ring", "halving-doubling", "double-tree", "multitree"}},
    {"topology", {NULL}},
    {"caat-fraction", {"1", "0.75", "0.5", "0.25"}},
    {"caat-grad-dtype", {"fp32", "same"}},
    {"tp-comm-overlap", {"no", NULL}}, // of a flag NULL sets it, as without a value on the command line
};
enum { METHOD_OPTIONS = sizeof method_options / sizeof method_options[0], MOST_METHODS = 1000 };

static inline void methods_table(OptionTable* table, Settings* s) {
    Option all[MAX_OPTIONS];
    const int n = settings_table(all, s);
    for (int i = 0; i < METHOD_OPTIONS; i++) options_add(table, option_find(all, n, method_options[i].name), 1);
}

// "--dp-mode diloco --local-steps 32 ...", with a blank before each; "" for none.
static inline void methods_options(char* text, size_t size, const StepMethods* x, int sites) {
    const AsyncConfig* a = &x->async;
    const bool local = async_schedule_is_local(a);
    text[0] = 0;
    if (local) append_text(text, size, " --dp-mode %s", dp_mode_names[a->mode]);
    if (local || sites > 1) append_text(text, size, " --sites %d", sites);
    if (a->mode == DP_DILOCO) append_text(text, size, " --local-steps %lld", (long long)a->period);
    if (x->allreduce) append_text(text, size, " --allreduce %s", x->allreduce);
    if (x->topology) append_text(text, size, " --topology %s", x->topology);
    if (x->caat.ranks) append_text(text, size, " --caat-fraction %g", x->caat.fraction);
    if (x->caat.ranks && x->caat.narrow) append_text(text, size, " --caat-grad-dtype same");
    if (x->tp_overlap) append_text(text, size, " --tp-comm-overlap");
}

// Of settings that the trainer accepts, on any mesh.
static inline bool methods_of(StepMethods* x, const Settings* s, Error* error) {
    memset(x, 0, sizeof *x);
    x->caat = settings_caat(s, 1);
    x->tp_overlap = s->tp_comm_overlap;
    x->allreduce = s->allreduce;
    x->topology = s->topology;
    return sum_options_check(s, error) && mode_options_check(s, error) && settings_async(&x->async, s, 1, error);
}

// Removes options that have no effect with a mode or model that the search has chosen.
static inline void methods_reduce(Settings* s) {
    if (s->dp_mode != DP_DILOCO) s->local_steps = 0;
    if (s->caat_fraction == 1) s->caat_grad_dtype = 0;
    if (s->allreduce && strcmp(s->allreduce, "native") == 0) s->allreduce = s->topology = NULL;
}

typedef struct {
    int n, room;
    StepMethods* list;
    Error why; // the last refusal
} Methods;

static inline void methods_add(Methods* m, const Settings* s) {
    StepMethods x;
    char text[400], other[400];
    if (!methods_of(&x, s, &m->why)) return;
    methods_options(text, sizeof text, &x, 1);
    for (int i = 0; i < m->n; i++) {
        methods_options(other, sizeof other, &m->list[i], 1);
        if (strcmp(text, other) == 0) return;
    }
    if (m->n == m->room) m->list = (StepMethods*)checked_grow(m->list, &m->room, 16, sizeof x, "the methods");
    m->list[m->n++] = x;
}

// All values of the options `names` from the i-th on; table: of options that set *s.
static inline bool methods_try(Methods* m, Settings* s, Option* table, int n, const char* names, Error* error) {
    const size_t length = strcspn(names, ",");
    const Settings before = *s;
    char name[32];
    int i = 0;
    if (m->n > MOST_METHODS)
        return fail(error, "--search: more than %d combinations; name fewer options", (int)MOST_METHODS);
    if (!*names) {
        methods_reduce(s);
        methods_add(m, s);
        *s = before;
        return true;
    }
    snprintf(name, sizeof name, "%.*s", (int)length, names);
    while (i < METHOD_OPTIONS && !(method_options[i].values[0] && strcmp(method_options[i].name, name) == 0)) i++;
    if (i == METHOD_OPTIONS) return fail(error, "--search %s: no values are tried of such an option", name);
    Option* option = option_find(table, n, name);
    const char* const* value = method_options[i].values;
    for (int k = 0; value[k] || (option->type == OPTION_FLAG && k < 2); k++) {
        if (!option_take(option, value[k], error)) return false;
        if (!methods_try(m, s, table, n, names + length + (names[length] == ','), error)) return false;
    }
    *s = before;
    return true;
}

// search: a list of names, or NULL. Refuses what leaves no methods.
static inline bool methods_read(Methods* m, Settings* s, Option* table, int n, const char* search, Error* error) {
    memset(m, 0, sizeof *m);
    s->steps = INT64_MAX / 4; // any run
    if (search && !methods_try(m, s, table, n, search, error)) return false;
    if (!search) methods_add(m, s);
    if (m->n == 0) *error = m->why;
    return m->n > 0;
}
