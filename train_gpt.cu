/*
train_gpt.cu: trains a GPT in tensor, pipeline and data parallel. The file to read first, from top to bottom:

    1. main, the training loop, a step, which executes a schedule
    2. the actions   of which a schedule is made: forward, backward, the wait for gradients' sums, norm, update
    3. around them   validation, evaluation, inference

A process is one rank of a mesh of t tensor, d data and p pipeline ranks; a process started alone is the mesh 1 x 1 x 1.
parallel.h assigns slices of tensors to ranks, parallel/schedule.h orders the work of a rank. gpt.h is the model;
parallel/tensor.h, parallel/pipeline.h and parallel/data.h are the three kinds of parallelism, parallel/optimizer.h is
the update. trainer/ has everything around: options, data, checkpoints, log, watchdog.

The same code runs on CPU cores and on GPUs: kernels/kernels.h has the kernels, kernels/device.h the memory. Parameters
and activations are floatX, bf16 or float32 (make PRECISION=...); gradients of parameters, optimizer
state, row statistics and losses are float32 everywhere. The host reads a kernel's output only after device_to_host.
*/
#include "gpt.h"
#include "parallel/optimizer.h"
#include "parallel/pipeline.h"
#include "trainer/batch.h"
#include "trainer/begin_end.h"
#include "trainer/checkpointing.h"
#include "trainer/explain.h"
#include "trainer/generate.h"
#include "trainer/step_stats.h"
#include "trainer/trainer_init.h"

// A run of a schedule: what it hands from one action to the next. Sums over the micro-batches are in stage.sums.
typedef struct {
    double started, waited; // when it began, and how long the rank had waited for other stages by then
    double grad_scale;      // factor on the gradient in the update: clipping
} StepProgress;

static int train(Trainer* t);
static void train_step(Trainer* t);
static void run_schedule(Trainer* t, const StepInput* input);
static void run_action(Trainer* t, const StepInput* input, Action action, StepProgress* progress);
static void run_forward(Trainer* t, const StepInput* input, Action action);
static void run_backward(Trainer* t, Action action);
static void run_reduce(Trainer* t, Action action);
static void run_grad_norm(Trainer* t, Action action, StepProgress* progress);
static void run_update(Trainer* t, Action action, double grad_scale);
static void validate_if_due(Trainer* t);
static void save_if_due(Trainer* t);
static void sample_if_due(Trainer* t);
static int run_inference(Trainer* t);

// ================================================================================================================
// 1. main, the training loop, a step

#ifndef TRAIN_GPT_NO_MAIN // tests include this file and have a main of their own

int main(int argc, char** argv) {
    static Trainer trainer;
    Trainer* t = &trainer;
    int status = 0;
    if (!trainer_init(t, argc, argv)) return 0; // --help
    if (is_main(t) && t->settings.explain)
        explain(t);
    else if (is_main(t))
        print_plan(t);
    if (!t->settings.dry_run) {
        trainer_allocate(t);
        status = settings_is_training(&t->settings) ? train(t) : run_inference(t);
    }
    return trainer_free(t, status);
}

#endif

// The training loop. Returns the exit status.
static int train(Trainer* t) {
    begin_training(t);
    while (t->step < t->settings.steps) {
        const double started = seconds_now();
        train_step(t);
        const double seconds = seconds_now() - started;
        if (is_due(t->step, t->settings.check_replicas_every)) check_replicas(t, t->stats_scope);
        validate_if_due(t);
        report_step(t, seconds);
        save_if_due(t);
        sample_if_due(t);
        if (t->stops) break;
    }
    return end_training(t);
}

// One update on the next global batch: the sequences [t->sequences, t->sequences + batch). StepInput: trainer/batch.h.
static void train_step(Trainer* t) {
    StepInput input = {};
    input.schedule = &t->schedule;
    input.loader = &t->train;
    input.first = t->sequences, input.end = t->sequences + t->settings.global_batch;
    input.trains = true;
    const Bytes before = bytes_sent(t);
    const double started = seconds_now();
    heartbeat_phase(watchdog_row(&t->watch), PHASE_TRAINING, t->step + 1);
    if (t->stage.async) async_dp_step_begin(&t->stage);
    zero_gradients(&t->stage);
    trace_span(t->world.trace, "compute", "zero gradients", -1, started, seconds_now());
    run_schedule(t, &input);
    trace_span(t->world.trace, "step", "step", (int)t->step + 1, started, seconds_now());
    t->step++;
    t->sequences = input.end;
    if (t->skipped_in_row) recast_parameters(&t->stage, t->settings.seed, t->step); // rounds as a run resumed here
    const int64_t merged = t->stage.async ? async_dp_step_end(&t->stage, t->settings.seed, t->step) : 0;
    double asked = (double)stop_signals; // signals (trainer/graceful_stop.h), which the next line sums over the ranks
    t->bytes = bytes_all_ranks(t, before, t->stats_scope, &asked);
    t->stops = stop_agreed(&t->stop, &t->groups.inter_site, t->stats_scope, t->step, merged, asked > 0);
}

// Seconds that this rank has waited for messages of other stages.
static double stages_waited(const Trainer* t) { return t->groups.pipeline.waited + t->groups.embedding.waited; }

// Executes a schedule. At its end stage.sums has squares of gradients, then this rank's losses (parallel/canonical.h).
static void run_schedule(Trainer* t, const StepInput* input) {
    Stage* stage = &t->stage;
    StepProgress progress = {seconds_now(), stages_waited(t), 1};
    device_zero(stage->sums, (size_t)sums_of_step(&stage->layout) * sizeof(double));
    load_batch(t, input);
    for (int i = 0; i < input->schedule->n; i++) {
        const Action action = input->schedule->actions[i];
        heartbeat_action(watchdog_row(&t->watch), action.kind, action.chunk, action.microbatch);
        run_action(t, input, action, &progress);
        buckets_progress(stage->grads.bucket, grad_buckets(&stage->layout)); // MPI moves data only in its calls
        if (stage->async) async_dp_progress(stage);
    }
    for (int i = 0; i < stage->slots; i++) comm_wait(&stage->send_forward[i]);
    for (int c = 0; c < stage->layout.parallel.v; c++) {
        for (int k = 0; k < PIPELINE_BUFFERS_PER_DIRECTION; k++) comm_wait(&boundary_of(stage, c, k)->send_backward);
    }
}

static void run_action(Trainer* t, const StepInput* input, Action action, StepProgress* progress) {
    switch (action.kind) {
    case RECEIVE_FORWARD:
    case RECEIVE_BACKWARD:
        start_receive(&t->stage, input->schedule, action, message_elements(t, input, action.microbatch));
        break;
    case SEND_FORWARD:
    case SEND_BACKWARD:
        start_send(&t->stage, input->schedule, action, message_elements(t, input, action.microbatch));
        break;
    case FORWARD: run_forward(t, input, action); break;
    case BACKWARD:
    case BACKWARD_INPUT:
    case BACKWARD_WEIGHT: run_backward(t, action); break;
    case REDUCE:
    case TIE: run_reduce(t, action); break;
    case NORM: run_grad_norm(t, action, progress); break;
    case UPDATE:
    case UPDATE_TIED: run_update(t, action, progress->grad_scale); break;
    case ACTION_KINDS: break;
    }
}

// ================================================================================================================
// 2. The actions. A leaf: a part of the batch whose gradient is summed by itself (--canonical, parallel/canonical.h)

// The forward pass of one chunk over a micro-batch, once its input has arrived.
static void run_forward(Trainer* t, const StepInput* input, Action action) {
    Stage* stage = &t->stage;
    Activations* acts = &stage->activations[action.slot];
    const int k = action.microbatch;
    PipelineBuffers* boundary = boundary_of(stage, action.chunk, k);
    comm_wait(&stage->send_forward[action.slot]); // the micro-batch that used this slot before has left it
    bind_microbatch(t, acts, input, action.chunk, k);
    comm_wait(&boundary->receive_forward);
    const double started = time_of_work(t); // the device's time only where a trace is wanted: it waits for the device
    if (!acts->chunk->first)
        boundary_unpack(&t->groups, &stage->layout.parallel, acts->x[0], boundary->input,
                        (int64_t)acts->N * stage->model.C);
    chunk_forward(stage, acts);
    if (acts->chunk->last) losses_add(loss_of_microbatch(stage, input, k), acts->head->losses, acts->tokens);
    if (acts->chunk->last && input->losses)
        device_copy(input->losses + (int64_t)k * stage->B * stage->T, acts->head->losses,
                    (size_t)acts->tokens * sizeof(float));
    trace_action(t, action, started);
}

static void run_backward(Trainer* t, Action action) {
    Stage* stage = &t->stage;
    Activations* acts = &stage->activations[action.slot];
    const int k = action.microbatch;
    const ParallelConfig* parallel = &stage->layout.parallel;
    ActivationGrads* g = &stage->act_grads[action.chunk][k % stage->gradient_slots[action.chunk]];
    PipelineBuffers* boundary = boundary_of(stage, action.chunk, k);
    const int64_t n = (int64_t)acts->N * stage->model.C;
    const bool dgrad = action_makes_input_gradient(action.kind), wgrad = action_adds_weight_gradients(action.kind);
    if (dgrad) comm_wait(&boundary->receive_backward);
    if (dgrad) comm_wait(&boundary->send_backward); // micro-batch k - PIPELINE_BUFFERS_PER_DIRECTION has left it
    const double started = time_of_work(t);
    if (dgrad && !acts->chunk->last) boundary_unpack(&t->groups, parallel, g->dx, boundary->gradient, n);
    const bool ends = parallel->canonical && wgrad && ends_leaf(parallel, k, t->schedule.config.m);
    const Pass backward = {stage, acts, g, (dgrad ? DGRAD : 0) | (wgrad ? WGRAD : 0), action.reduce || ends, k > 0};
    chunk_backward(&backward);
    if (dgrad && !acts->chunk->first)
        device_copy(boundary->gradient_out, g->dx + boundary_offset(&stage->layout.parallel, n),
                    (size_t)boundary_elements(&stage->layout.parallel, n) * sizeof(floatX));
    trace_action(t, action, started);
}

// Waits for the sums of a chunk's gradients over the data ranks, and adds up their squares. TIE: the same for the
// bucket with chunk -1, the tied embedding's, whose gradient is then also summed over its two stages.
static void run_reduce(Trainer* t, Action action) {
    Stage* stage = &t->stage;
    const Layout* layout = &stage->layout;
    const double started = seconds_now();
    finish_grad_sync(&stage->grads, layout, action.chunk);
    sum_tied_embedding_grads(stage, action.chunk);
    if (stage->async) async_dp_finish_grad_sync(stage, action.chunk);
    if (stage->grads.hierarchical) finish_inter_site_syncs(&stage->grads, &t->groups, layout, action.chunk);
    gradient_squares(stage, action.chunk);
    trace_action(t, action, started);
}

// All ranks (of a site, parallel/sites.h) meet: they agree on the loss, the gradient norm, whether both are finite, the
// clipping factor, and the bubble.
static void run_grad_norm(Trainer* t, Action action, StepProgress* progress) {
    const Settings* o = &t->settings;
    Stage* stage = &t->stage;
    const Layout* layout = &stage->layout;
    const int tensors = layout->tensors, n = sums_of_step(layout), loss = first_loss(layout);
    const double started = seconds_now();
    double* sums = (double*)checked_calloc((size_t)n + 1, sizeof(double), "the gradient's norm");
    comm_synchronize(&t->world);
    device_to_host(sums, stage->sums, (size_t)n * sizeof(double));
    if (!counts_losses(stage)) memset(sums + loss, 0, (size_t)(n - loss) * sizeof(double));
    sums[n] = started - progress->started - (stages_waited(t) - progress->waited); // seconds of work
    reduce_step_stats(t, sums); // now: the square of each tensor's gradient, the loss (sums[tensors]), seconds last
    int not_finite;
    t->loss = sums[tensors] / step_tokens(t, t->stats_scope);
    t->grad_norm = gradient_norm(sums, tensors, &not_finite);
    if (stage->async) async_dp_set_compensation(stage, sums);
    t->bubble = step_bubble(t, progress->started, sums[n]);
    free(sums);
    progress->grad_scale = o->clip > 0 && t->grad_norm > o->clip ? o->clip / (t->grad_norm + 1e-6) : 1;
    if (not_finite >= 0 || !isfinite(t->loss))
        handle_nonfinite_step(t, not_finite);
    else
        t->skipped_in_row = 0;
    trace_action(t, action, started);
}

static void run_update(Trainer* t, Action action, double grad_scale) {
    const double started = seconds_now();
    Stage* stage = &t->stage;
    if (t->skipped_in_row) return;
    const OptimizerConfig optimizer = settings_optimizer(&t->settings);
    if (stage->async) async_dp_before_update(stage, action.chunk);
    chunk_optimizer_step(stage, action.chunk, &optimizer, t->step + 1, learning_rate(&t->settings, t->step),
                         grad_scale);
    if (stage->async) async_dp_after_update(stage, action.chunk);
    trace_action(t, action, started);
}

// ================================================================================================================
// 3. Around them: validation, evaluation, inference

// The forward passes of a window, the sequences of [first, end). Returns this rank's number of micro-batches.
static int run_window(Trainer* t, StepInput input) {
    const int m = microbatches_in_turn(t, input.end - input.first);
    Schedule forward = schedule_build_forward(&t->schedule, m);
    input.schedule = &forward;
    run_schedule(t, &input);
    comm_synchronize(&t->world);
    schedule_free(&forward);
    return m;
}

// Mean loss over the first sequences of the validation text, the same ones every time.
static double validate(Trainer* t) {
    Stage* stage = &t->stage;
    const int64_t count = validation_sequences(t), window = window_sequences(t);
    double sum = 0, part;
    enter_phase(t, PHASE_VALIDATING);
    for (int64_t first = 0; first < count; first += window) {
        StepInput input = {};
        input.loader = &t->val;
        input.first = first, input.end = min_i64(count, first + window);
        run_window(t, input);
        device_to_host(&part, stage->sums + first_loss(&stage->layout), sizeof part);
        sum += part;
    }
    if (!counts_losses(stage)) sum = 0;
    sum_over_mesh(&t->groups, &sum, 1);
    return sum / ((double)count * stage->T);
}

// Adds the losses of a window's rows, in m micro-batches, to the evaluation's sums.
static void add_up_rows(const Trainer* t, const StepInput* input, int m, float* losses, double* sums) {
    const int64_t T = t->stage.T, group = t->stage.B * T;
    if (!DEVICE_IS_HOST) device_to_host(losses, input->losses, (size_t)(m * group) * sizeof(float));
    for (int k = 0; k < m; k++) {
        for (int b = 0; b < microbatch_sequences(t, input, k); b++) {
            double* sum = sums + microbatch_first(t, input, k) + b;
            for (int64_t i = 0; i < T; i++) *sum += losses[k * group + b * T + i];
        }
    }
}

// Fills the sums of an evaluation, on all ranks. One rank computes a row and the others add zero to it, so that the
// sums do not depend on d.
static void evaluate(Trainer* t, Evaluation* e) {
    const Stage* stage = &t->stage;
    const int64_t window = window_sequences(t);
    const bool head = stage->layout.last_stage, mine = counts_losses(stage);
    const size_t bytes = evaluation_bytes(t);
    float* losses = head ? (float*)device_malloc(bytes, "the losses of an evaluation") : NULL;
    float* host = losses;
    if (mine && !DEVICE_IS_HOST) host = (float*)checked_malloc(bytes, "the losses of an evaluation");
    const double started = seconds_now();
    double printed = started;
    enter_phase(t, PHASE_EVALUATING);
    memset(e->sums, 0, (size_t)e->rows * sizeof(double));
    for (int64_t first = 0; first < e->rows; first += window) {
        StepInput input = {};
        input.evaluation = e;
        input.first = first, input.end = min_i64(e->rows, first + window);
        input.losses = losses;
        const int m = run_window(t, input);
        if (mine) add_up_rows(t, &input, m, host, e->sums);
        if (is_main(t)) printed = print_progress(e, input.end, started, printed);
    }
    sum_over_mesh(&t->groups, e->sums, e->rows);
    if (host != losses) free(host);
    device_free(losses, head ? bytes : 0);
}

// All of --evaluate, with the parameters that are loaded (of asynchronous sites the global ones, methods/async_dp.h).
static void evaluate_all(Trainer* t) {
    for (int i = 0; i < t->evaluations.count; i++) evaluate(t, &t->evaluations.item[i]);
}

static void validate_if_due(Trainer* t) {
    const Settings* o = &t->settings;
    const bool now = is_last_step(t) || is_due(t->step, o->eval_every), due = now && o->eval_every > 0;
    t->evaluated = now && t->evaluations.count > 0;
    t->val_loss = (double)NAN;
    if (!due && !t->evaluated) return;
    load_global_weights(t);
    if (due) t->val_loss = validate(t);
    if (t->evaluated) evaluate_all(t);
    restore_local_weights(t);
}

static void save_if_due(Trainer* t) {
    const bool ends = is_last_step(t) || t->stops;
    if (t->settings.out && (ends || is_due(t->step, t->settings.save_every))) save_checkpoint(t);
}

static void sample_if_due(Trainer* t) {
    const Settings* o = &t->settings;
    if (!is_due(t->step, o->sample_every) || is_last_step(t) || t->stops) return;
    load_global_weights(t);
    sample(t, 256);
    restore_local_weights(t);
}

// Evaluates, generates and exports without training. Returns the exit status.
static int run_inference(Trainer* t) {
    enter_phase(t, PHASE_LOADING);
    warm_up(t);
    init_weights(t);
    report_startup(t);
    end_line();
    evaluate_all(t);
    if (is_main(t) && t->evaluations.count) print_evaluations(t);
    if (t->settings.generate) generate(t);
    if (t->settings.trace) write_trace(t);
    if (t->settings.export_to) export_weights(t);
    return 0;
}
