/*
calibrate.h: what the trainer's own trace says of a measured machine. Rates of single kernels (measured.h) leave out
what a whole step adds: caches that other operations have emptied, ranks that wait for each other, the system's own
work. A trace (train_gpt --trace) has the times of the step's actions; beside those that the planner says of the same
run they give a factor for each kind of work, which is written among the machine's lines:

    correct forward 4 1.04        forward passes took 1.04 times as long as predicted; the same of backward passes, of
                                the end of a step (REDUCE and UPDATE), and of messages (from the end of what makes one
                                to the begin of what uses it, where the receiver had nothing else to do)

Sums of the medians over all steps but the first, of all stages, are compared. Factors multiply those that the file had.
A trace of another mesh, another schedule or another number of micro-batches is refused; a model it does not name, so
whoever calls this has to say of which run it is.
*/
#ifndef CALIBRATE_H
#define CALIBRATE_H

#include "../draw/measured_run.h"
#include "measured.h"
#include "step.h"

// Seconds that the actions of each correction take in a step, all stages together; of CORRECT_MESSAGE those of one
// message.
typedef struct {
    double seconds[CORRECTIONS];
} ActionSeconds;

static inline int correction_of(ActionKind kind) {
    if (kind == FORWARD) return CORRECT_FORWARD;
    if (action_is_backward(kind)) return CORRECT_BACKWARD;
    return kind == REDUCE || kind == UPDATE || kind == UPDATE_TIED ? CORRECT_UPDATE : -1;
}

static inline ActionSeconds seconds_of_timeline(const Schedule* stages, const Timeline* t) {
    ActionSeconds x;
    memset(&x, 0, sizeof x);
    for (int r = 0; r < t->p; r++) {
        for (int i = 0; i < t->done[r]; i++) {
            const int which = correction_of(stages[r].actions[i].kind);
            if (which >= 0) x.seconds[which] += t->end[r][i] - t->start[r][i];
        }
    }
    return x;
}

// Medians over the steps but the first.
static inline ActionSeconds seconds_of_run(const MeasuredRun* run) {
    ActionSeconds x;
    Sample sample = {0, 0, NULL};
    for (int which = 0; which < CORRECT_MESSAGE; which++) {
        for (int n = 1; n < run->n; n++)
            sample_add(&sample, seconds_of_timeline(run->stages, &run->step[n].times).seconds[which]);
        x.seconds[which] = sample_take_median(&sample);
    }
    for (int n = 1; n < run->n; n++) {
        for (int r = 0; r < run->stages[0].plan.p; r++) add_transfers(&sample, run, &run->step[n], r);
    }
    x.seconds[CORRECT_MESSAGE] = sample_take_median(&sample);
    free(sample.values);
    return x;
}

// The trace is one of this setup.
static inline bool trace_fits(const RunTrace* run, const StepSetup* s, Error* error) {
    const Pipeline plan = step_pipeline(s), *have = &run->plan;
    if (have->kind != plan.kind || have->p != plan.p || have->v != plan.v || have->m != plan.m)
        return fail(error, "%s: a run of %s, %d stages of %d chunks, %d micro-batches; the options say %s, %d, %d, %d",
                    run->path, schedule_name(have->kind), have->p, have->v, have->m, schedule_name(plan.kind), plan.p,
                    plan.v, plan.m);
    if (have->clip != plan.clip || have->tied != plan.tied || have->reduce_every != plan.reduce_every)
        return fail(error, "%s: a run with another --clip, --zero or architecture than the options say", run->path);
    return true;
}

// t and d of the run.
static inline bool trace_fits_groups(const char* path, const void* text, size_t size, const Mesh* mesh, Error* error) {
    Json json;
    int64_t t = 0, d = 0;
    if (!json_parse(&json, path, text, size, error)) return false;
    const JsonNode* about = json_require(&json, json.nodes, "otherData", JSON_OBJECT, error);
    bool ok = about && json_get_integer(&t, &json, about, "t", 1, 1 << 20, error) &&
              json_get_integer(&d, &json, about, "d", 1, 1 << 20, error);
    if (ok && (t != mesh->t || d != mesh->d))
        ok = fail(error, "%s: a run with --tp %d --dp %d, but the options say %d and %d", path, (int)t, (int)d, mesh->t,
                  mesh->d);
    json_free(&json);
    return ok;
}

// What runs of so many ranks had is what is said of them from now on.
static inline void measured_correct(Measured* m, int ranks, const ActionSeconds* had, const ActionSeconds* said) {
    const int place = measured_place_of_ranks(ranks);
    for (int i = 0; i < CORRECTIONS; i++) {
        const double before = measured_corrected(m, (Correction)i, ranks);
        const bool known = had->seconds[i] > 0 && said->seconds[i] > 0;
        m->correction[i][place] = before * (known ? had->seconds[i] / said->seconds[i] : 1);
    }
    m->corrected[place] = true;
}

// Compares the text of a trace with the setup's prediction, which has to be one by m, and multiplies m's corrections by
// what is missing. `path` is what errors call the text. Prints nothing.
static inline bool calibrate_by_text(Measured* m, const StepSetup* s, const char* path, const void* text, size_t size,
                                     Error* error) {
    RunTrace trace;
    MeasuredRun run;
    if (!trace_fits_groups(path, text, size, &s->mesh, error) || !run_trace_read(&trace, path, text, size, error))
        return false;
    bool ok = trace_fits(&trace, s, error);
    if (ok) {
        StepCost cost = step_cost_with(s, true);
        measured_run_begin(&run, cost.tables);
        ok = measure(&run, &trace, error);
        if (ok) {
            ActionSeconds had = seconds_of_run(&run), said = seconds_of_timeline(cost.tables, &cost.timeline);
            StepPrices prices = step_prices(s);
            if (prices.plan.p > 1) said.seconds[CORRECT_MESSAGE] = *cost_of(&prices.costs, SEND_FORWARD, 0);
            measured_correct(m, mesh_size(&s->mesh), &had, &said);
            step_prices_free(&prices);
        }
        measured_run_free(&run);
        step_cost_free(&cost);
    }
    run_trace_free(&trace);
    return ok;
}

// The same of a file.
static inline bool calibrate_by_trace(Measured* m, const StepSetup* s, const char* path, Error* error) {
    MappedFile file;
    if (!file_map(&file, path, error)) return false;
    const bool ok = calibrate_by_text(m, s, path, file.data, file.size, error);
    file_unmap(&file);
    return ok;
}

#endif
