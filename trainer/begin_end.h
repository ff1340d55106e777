/*
trainer/begin_end.h: what comes before the first step (a GPU's warm-up, weights, the log), after each (its line), and
after the last (traffic, trace, exported weights, a last sample, the exit status).
*/
#pragma once

#include "checkpointing.h"
#include "generate.h"
#include "step_stats.h"
#include "../gpt.h"

// A GPU's first step takes memory, loads kernels and tunes matrix products. All of this blocks until receives in flight
// complete, whose sender may wait for this rank: a deadlock. So each chunk runs on a micro-batch before there are any
// messages, and before there are weights; the gradients of this run are zeroed.
static inline void warm_up(Trainer* t) {
    Stage* stage = &t->stage;
    Activations* acts = &stage->activations[0];
    if (DEVICE_IS_HOST) return;
    reserve_microbatches(t, 1);
    device_zero(t->batch.device, batch_bytes(&t->batch));
    for (int c = 0; c < stage->layout.parallel.v; c++) {
        activations_bind(acts, stage, c, 0, stage->B, stage->T, false);
        acts->inputs = t->batch.device;
        acts->targets.token = t->batch.device + t->batch.tokens;
        acts->targets.scale = stage->trains;
        chunk_forward(stage, acts);
        if (!stage->trains) continue;
        const Pass backward = {stage, acts, &stage->act_grads[c][0], BOTH_GRADS, false, false};
        chunk_backward(&backward);
    }
    if (stage->trains) device_zero(stage->memory[ARENA_GRADIENTS].base, stage->memory[ARENA_GRADIENTS].size);
    comm_synchronize(&t->world);
}

// All ranks are ready to compute: the time of a trace begins, and rank 0 says how long the start took.
static inline void report_startup(Trainer* t) {
    comm_barrier(&t->world);
    if (t->settings.trace) t->trace.zero = seconds_now();
    if (is_main(t)) printf("startup   %.2f s\n", seconds_now() - t->started);
}

// Everything between setup and the first step: weights, logs.
static inline void begin_training(Trainer* t) {
    const Settings* o = &t->settings;
    enter_phase(t, PHASE_LOADING);
    warm_up(t);
    const bool resumed = init_weights(t);
    if (o->out && is_main(t)) {
        log_open(&t->log, o->out, resumed, t->step);
        if (t->step < o->steps) write_options(t);
    }
    report_startup(t);
    t->first_step = t->step;
    t->first_bytes = bytes_sent(t);
    t->loop_started = seconds_now();
}

// Prints and logs the step that was made, which took `seconds`.
static inline void report_step(Trainer* t, double seconds) {
    const Settings* o = &t->settings;
    const double flops = model_flops_per_token(&t->stage.model, t->stage.T) * (double)o->global_batch * t->stage.T;
    const double mfu = t->peak_flops > 0 ? flops / seconds / t->peak_flops : 0;
    const double per_step = (seconds_now() - t->loop_started) / (double)(t->step - t->first_step);
    enter_phase(t, PHASE_REPORTING);
    const int64_t most = o->out ? peak_bytes(t) : 0;
    if (!is_main(t)) return;
    print_step(t, seconds, mfu, per_step * (double)(o->steps - t->step));
    if (t->evaluated) print_evaluations(t);
    if (o->out) log_step(t, seconds, mfu, most);
}

static inline void print_end(const Trainer* t) {
    const Settings* o = &t->settings;
    char duration[32];
    write_duration(duration, sizeof duration, seconds_now() - t->loop_started);
    end_line();
    if (!is_main(t)) return;
    if (t->step == t->first_step) // resumed after the last step, whose work is repeated
        printf("done      nothing to train: step %lld is reached, and --steps is %lld; more --steps continue the run\n",
               (long long)t->step, (long long)o->steps);
    else
        printf("done      %lld step%s in %s\n", (long long)(t->step - t->first_step), plural(t->step - t->first_step),
               duration);
    if (t->step >= o->steps) return;
    const char* saved = t->unsaved ? "not saved; the same command with --resume resumes from the checkpoint before"
                                   : "saved: the same command with --resume goes on";
    printf("stopped   after step %lld of %lld, as a signal has asked; %s\n", (long long)t->step, (long long)o->steps,
           o->out ? saved : "without --out nothing is saved");
}

// Ends a run: traffic, trace, exported weights, a last sample. Returns the exit status: not 0 if the last checkpoint or
// a log could not be written (which was reported), or if a signal has ended the run before its last step.
static inline int end_training(Trainer* t) {
    const Settings* o = &t->settings;
    const bool whole = t->step >= o->steps;
    double none = 0;
    print_end(t);
    if (t->stage.async) async_dp_drain(&t->stage);
    stop_settle(&t->stop);
    const Bytes all = bytes_all_ranks(t, t->first_bytes, SCOPE_WORLD, &none);
    if (is_main(t) && t->step > t->first_step) print_traffic(t, all);
    if (o->trace) write_trace(t);
    if (o->export_to && whole) export_weights(t);
    if (o->sample_every && whole) {
        load_global_weights(t);
        sample(t, 512);
    }
    if (!log_close(&t->log) || t->unsaved) return EXIT_RUN;
    return whole ? 0 : EXIT_REQUEUE;
}
