/*
calibrate.h: corrects a measured machine (measured_device.h) by a trace of the trainer (train_gpt --trace).

    calibrate_by_trace    compares the steps of a trace with the predicted step of the same run; the correction is a
                          line of the machine's file, as "correct 4 1.04": a step of 4 ranks took 1.04 times as long as
                          predicted

A trace of another mesh, schedule or number of micro-batches is refused. A trace does not name its model, so the caller
has to give the setup of the run.

Theory: rates of single kernels omit effects of a whole step: caches that other operations have evicted, ranks that wait
for each other, the system's own work. There is one factor for each number of ranks and not one for each kind of work:
where ranks share cores, a forward pass may be slow because others computed meanwhile, so factors by kind differ by half
between meshes, while the factor of the whole step hardly differs. The median over all steps but the first is compared.
Factors multiply the file's former ones. One run shows the effect of one mesh; dev/bench/planner.py takes medians of
several.
*/
#pragma once

#include "../dev/plot/trace_run.h"
#include "measured_device.h"
#include "step_sim.h"

// Median over the steps but the first.
static inline double seconds_of_run(const MeasuredRun* run) {
    Sample sample = {0, 0, NULL};
    for (int n = 1; n < run->n; n++) sample_add(&sample, run->step[n].times.length);
    const double seconds = sample_take_median(&sample);
    free(sample.values);
    return seconds;
}

// Whether the trace is one of this setup.
static inline bool trace_fits(const RunTrace* run, const StepSetup* s, Error* error) {
    const PipelineConfig plan = step_pipeline(s), *have = &run->plan;
    const Mesh* mesh = &s->mesh;
    if (run->t != mesh->t || run->d != mesh->d)
        return fail(error, "%s: a run with --tp %d --dp %d, but the options say %d and %d", run->path, run->t, run->d,
                    mesh->t, mesh->d);
    if (have->kind != plan.kind || have->p != plan.p || have->v != plan.v || have->m != plan.m)
        return fail(error, "%s: a run of %s, %d stages of %d chunks, %d micro-batches; the options say %s, %d, %d, %d",
                    run->path, schedule_name(have->kind), have->p, have->v, have->m, schedule_name(plan.kind), plan.p,
                    plan.v, plan.m);
    if (have->tied != plan.tied || have->reduce_every != plan.reduce_every)
        return fail(error, "%s: a run with another --zero or architecture than the options say", run->path);
    return true;
}

// Compares the text of a trace with the setup's prediction, which has to be made with m, and multiplies m's correction
// for this number of ranks by the ratio. `path` names the text in errors. Prints nothing.
static inline bool calibrate_by_text(Measured* m, const StepSetup* s, const char* path, const void* text, size_t size,
                                     Error* error) {
    RunTrace trace;
    MeasuredRun run;
    if (!run_trace_read(&trace, path, text, size, error)) return false;
    bool ok = trace_fits(&trace, s, error);
    if (ok) {
        StepCost cost = step_cost_with(s, true);
        measured_run_begin(&run, cost.tables);
        ok = measure(&run, &trace, error);
        if (ok) {
            const double seconds = seconds_of_run(&run);
            const int ranks = mesh_size(&s->mesh);
            m->correction[measured_place_of_ranks(ranks)] = measured_corrected(m, ranks) * seconds / cost.seconds;
        }
        measured_run_free(&run);
        step_cost_free(&cost);
    }
    run_trace_free(&trace);
    return ok;
}

// The same for a file.
static inline bool calibrate_by_trace(Measured* m, const StepSetup* s, const char* path, Error* error) {
    MappedFile file;
    if (!file_map(&file, path, error)) return false;
    const bool ok = calibrate_by_text(m, s, path, file.data, file.size, error);
    file_unmap(&file);
    return ok;
}
