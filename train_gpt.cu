/*
train_gpt.cu: trains a GPT in tensor, pipeline and data parallel. The file to read first, from top to bottom:

    1. the step      the actions of a schedule, executed: forward, backward, all-reduce of gradients, update
    2. around it     validation, evaluation
    3. main          warm-up, the training loop, the end of a run; inference

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
#include "trainer/checkpointing.h"
#include "trainer/explain.h"
#include "trainer/generate.h"
#include "trainer/setup.h"
#include "trainer/logger.h"
#include "trainer/trainer_init.h"

// ================================================================================================================
// 1. The step

// What a pass through a schedule has found so far; its sums are in stage.sums.
typedef struct {
    double started, waited; // when it began; seconds spent waiting for other stages
    double grad_scale;      // factor on the gradient in the update: clipping
} StepProgress;

// Whether the host's clock measures the work. The host runs ahead of a GPU and waits for it only where a trace is
// wanted, as that costs time.
static bool measures_time(const Trainer* t) { return DEVICE_IS_HOST || t->tracing; }

// The time at which all work that was started is done.
static double time_of_work(const Trainer* t) {
    if (measures_time(t)) device_synchronize();
    return seconds_now();
}

// Records an action, from the arrival of its message on. Waiting inside the action (for the tensor and data groups, for
// other stages at TIE and NORM) is part of it.
static void trace_action(Trainer* t, Action action, double started) {
    char name[TRACE_NAME_BYTES];
    if (!t->tracing) return;
    device_synchronize();
    if (action.chunk >= 0 && t->schedule.config.v > 1)
        snprintf(name, sizeof name, "chunk %d %s", action.chunk, action_name(action.kind));
    else
        snprintf(name, sizeof name, "%s", action_name(action.kind));
    trace_span(t->tracing, "compute", name, action.microbatch, started, seconds_now());
}

// The forward pass of one chunk over a micro-batch, once its input has arrived.
static void run_forward(Trainer* t, const StepInput* input, Action action) {
    Stage* stage = &t->stage;
    Activations* acts = &stage->activations[action.slot];
    const int k = action.microbatch, buffer = k % PIPELINE_BUFFERS_PER_DIRECTION;
    PipelineBuffers* boundary = &stage->boundary[action.chunk];
    comm_wait(&stage->send_forward[action.slot]); // of the micro-batch that used this slot before
    bind_microbatch(t, acts, input, action.chunk, k);
    comm_wait(&boundary->receive_forward[buffer]);
    const double started = time_of_work(t);
    if (!acts->chunk->first)
        boundary_unpack(&t->groups, &stage->layout.mesh, acts->x[0], boundary->input[buffer],
                        (int64_t)acts->N * stage->model.C);
    chunk_forward(stage, acts);
    if (acts->chunk->last) losses_add(stage->sums + stage->layout.tensors, acts->head->losses, acts->tokens);
    if (acts->chunk->last && input->losses)
        device_copy(input->losses + (int64_t)k * stage->B * stage->T, acts->head->losses,
                    (size_t)acts->tokens * sizeof(float));
    trace_action(t, action, started);
}

static void run_backward(Trainer* t, Action action) {
    Stage* stage = &t->stage;
    Activations* acts = &stage->activations[action.slot];
    const int k = action.microbatch, buffer = k % PIPELINE_BUFFERS_PER_DIRECTION;
    Gradients* g = &stage->gradients[action.chunk][k % stage->pending[action.chunk]];
    PipelineBuffers* boundary = &stage->boundary[action.chunk];
    const int64_t n = (int64_t)acts->N * stage->model.C;
    const bool input = action_makes_input_gradient(action.kind), weights = action_adds_weight_gradients(action.kind);
    if (input) comm_wait(&boundary->receive_backward[buffer]);
    if (input) comm_wait(&boundary->send_backward[buffer]); // of micro-batch k - PIPELINE_BUFFERS_PER_DIRECTION
    const double started = time_of_work(t);
    if (input && !acts->chunk->last)
        boundary_unpack(&t->groups, &stage->layout.mesh, g->dx, boundary->gradient[buffer], n);
    const Pass backward = {stage, acts, g, (input ? DGRAD : 0) | (weights ? WGRAD : 0), action.reduce};
    chunk_backward(&backward);
    if (input && !acts->chunk->first)
        device_copy(boundary->gradient_out[buffer], g->dx + boundary_offset(&stage->layout.mesh, n),
                    (size_t)boundary_elements(&stage->layout.mesh, n) * sizeof(floatX));
    trace_action(t, action, started);
}

// Completes the all-reduce of a chunk's gradients over the data ranks (TIE: of the tied embedding also over its two
// stages) and adds up their squares.
static void run_reduce(Trainer* t, Action action) {
    Stage* stage = &t->stage;
    const Layout* layout = &stage->layout;
    const double started = seconds_now();
    finish_grad_sync(&stage->grads, layout, action.chunk);
    if (action.kind == TIE) all_reduce_tied_embedding_grad(&stage->grads, &t->groups, layout);
    if (stage->async) {
        async_dp_finish_grad_sync(stage, action.chunk);
    } else {
        start_inter_site_syncs(&stage->grads, &t->groups, layout, action.chunk);
        finish_inter_site_syncs(&stage->grads, &t->groups, layout, action.chunk);
    }
    gradient_squares(stage, action.chunk);
    trace_action(t, action, started);
}

// A loss or a gradient is not finite: ends the run, or skips the update. All ranks decide the same.
static void handle_nonfinite_step(Trainer* t, int not_finite) {
    const int tensors = t->stage.layout.tensors;
    const bool skips = t->settings.on_nan == ON_NAN_SKIP;
    Tensor* list = (Tensor*)checked_malloc((size_t)tensors * sizeof(Tensor), "the list of tensors");
    model_tensors(list, &t->stage.model);
    char text[1024];
    snprintf(text, sizeof text, "step %lld: the loss is %g, ", (long long)t->step + 1, t->loss);
    if (not_finite >= 0)
        append_text(text, sizeof text, "the gradient of %s is not finite; ", list[not_finite].name);
    else
        append_text(text, sizeof text, "all gradients are finite; ");
    append_text(text, sizeof text, "nothing was updated");
    free(list);
    t->skipped = skips;
    t->skipped_in_row++;
    if (skips && t->skipped_in_row < MAX_SKIPPED_IN_ROW) {
        if (!is_main(t)) return;
        end_line();
        printf("skipped   %s\n", text);
        return;
    }
    if (skips) append_text(text, sizeof text, ". It is number %d in a row", MAX_SKIPPED_IN_ROW);
    append_text(text, sizeof text, ". Try a smaller --lr, a longer --warmup or a --clip");
    const Scope scope = not_finite >= 0 ? t->stage.grads.scope : t->stats_scope;
    if (scope == SCOPE_WORLD) comm_abort_all(&t->world, EXIT_RUN, text);
    die_as_site(t, text);
}

// Sums the statistics of a step, squares (tensors), loss, seconds, over a site; then the loss over the sites, where
// stats_scope is all ranks.
static void reduce_step_stats(Trainer* t, double* sums) {
    const int tensors = t->stage.layout.tensors;
    sum_over_site(&t->groups, sums, tensors + 2);
    if (t->stats_scope == SCOPE_WORLD) sum_over(&t->groups.inter_site, sums + tensors, 1);
}

// Idle time / computing time of a site's ranks in this step; NaN where the host's clock does not measure the work.
// computed: the seconds in which they computed, of all together.
static double step_bubble(const Trainer* t, double started, double computed) {
    const Mesh* mesh = &t->stage.layout.mesh;
    if (mesh->p == 1) return 0;
    if (!measures_time(t)) return (double)NAN;
    const double ranks = mesh_size(mesh) / mesh->sites;
    return fmax(0, (seconds_now() - started) * ranks / computed - 1);
}

// Whether this rank counts the losses of its replica: one rank does.
static bool counts_losses(const Stage* stage) { return stage->layout.last_stage && stage->layout.mesh.tensor == 0; }

// Meeting point of a site's ranks: they agree on the loss, the gradient norm, whether both are finite, the clipping
// factor, and the bubble.
static void run_grad_norm(Trainer* t, Action action, StepProgress* progress) {
    const Settings* o = &t->settings;
    Stage* stage = &t->stage;
    const Layout* layout = &stage->layout;
    const int tensors = layout->tensors;
    const double started = seconds_now();
    double* sums = (double*)checked_calloc((size_t)tensors + 2, sizeof(double), "the gradient's norm");
    comm_synchronize(&t->world);
    device_to_host(sums, stage->sums, (size_t)(tensors + 1) * sizeof(double));
    if (!counts_losses(stage)) sums[tensors] = 0;
    sums[tensors + 1] = started - progress->started - progress->waited;
    reduce_step_stats(t, sums);
    int not_finite;
    t->loss = sums[tensors] / step_tokens(t, t->stats_scope);
    t->grad_norm = gradient_norm(sums, tensors, &not_finite);
    if (stage->async) async_dp_set_compensation(stage, sums);
    t->bubble = step_bubble(t, progress->started, sums[tensors + 1]);
    free(sums);
    progress->grad_scale = o->clip > 0 && t->grad_norm > o->clip ? o->clip / (t->grad_norm + 1e-6) : 1;
    t->skipped = false;
    if (not_finite >= 0 || !isfinite(t->loss))
        handle_nonfinite_step(t, not_finite);
    else
        t->skipped_in_row = 0;
    trace_action(t, action, started);
}

static void run_update(Trainer* t, Action action, double grad_scale) {
    const double started = seconds_now();
    Stage* stage = &t->stage;
    if (t->skipped) return;
    const OptimizerConfig optimizer = settings_optimizer(&t->settings);
    if (stage->async) async_dp_before_update(stage, action.chunk);
    chunk_optimizer_step(stage, action.chunk, &optimizer, t->step + 1, rate_of_step(t, t->step), grad_scale);
    if (stage->async) async_dp_after_update(stage, action.chunk);
    trace_action(t, action, started);
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

// Executes a schedule. The last of stage.sums is the sum of this rank's losses.
static void run_schedule(Trainer* t, const StepInput* input) {
    Stage* stage = &t->stage;
    const Comm *pipeline = &t->groups.pipeline, *embedding = &t->groups.embedding;
    const double waited = pipeline->waited + embedding->waited;
    StepProgress progress = {seconds_now(), 0, 1};
    device_zero(stage->sums, (size_t)(stage->layout.tensors + 1) * sizeof(double));
    load_batch(t, input);
    for (int i = 0; i < input->schedule->n; i++) {
        const Action action = input->schedule->actions[i];
        progress.waited = pipeline->waited + embedding->waited - waited;
        heartbeat_action(watchdog_row(&t->watch), action.kind, action.chunk, action.microbatch);
        run_action(t, input, action, &progress);
        buckets_progress(stage->grads.bucket, grad_buckets(&stage->layout));
        if (stage->async) async_dp_progress(stage);
    }
    for (int i = 0; i < stage->slots; i++) comm_wait(&stage->send_forward[i]);
    for (int c = 0; c < stage->layout.mesh.v; c++) {
        for (int i = 0; i < PIPELINE_BUFFERS_PER_DIRECTION; i++) comm_wait(&stage->boundary[c].send_backward[i]);
    }
}

// The bytes that this rank has sent so far.
static Bytes bytes_sent(const Trainer* t) {
    const ProcessGroups* g = &t->groups;
    const Bytes bytes = {comm_bytes(&g->tensor) + comm_bytes(&g->kv_heads),
                         comm_bytes(&g->pipeline) + comm_bytes(&g->embedding),
                         comm_bytes(&g->data) + comm_bytes(&g->inter_site), comm_bytes(&g->inter_site)};
    return bytes;
}

// The bytes that the ranks of the scope have sent since `before`, and, in place, the sum of their flags to stop: one
// exchange for both. In the scope of a site the bytes are this site's times the sites, which is exact where
// all sites have the same plan.
static Bytes bytes_all_ranks(Trainer* t, Bytes before, Scope scope, double* stop) {
    const Bytes now = bytes_sent(t);
    const double sites = scope == SCOPE_WORLD ? 1 : t->stage.layout.mesh.sites;
    double sums[5] = {now.tensor - before.tensor, now.pipeline - before.pipeline, now.data - before.data,
                      now.inter_site - before.inter_site, *stop};
    sum_over_site(&t->groups, sums, 5);
    if (scope == SCOPE_WORLD) sum_over(&t->groups.inter_site, sums, 5);
    *stop = sums[4];
    const Bytes bytes = {sites * sums[0], sites * sums[1], sites * sums[2], sites * sums[3]};
    return bytes;
}

// One update on the next global batch.
static void train_step(Trainer* t) {
    const int64_t batch = t->settings.global_batch;
    const StepInput input = {&t->schedule, &t->train, t->sequences, t->sequences + batch, true, NULL, NULL};
    const Bytes before = bytes_sent(t);
    const double started = seconds_now();
    heartbeat_phase(watchdog_row(&t->watch), PHASE_TRAINING, t->step + 1);
    if (t->stage.async) async_dp_step_begin(&t->stage);
    zero_gradients(&t->stage);
    trace_span(t->tracing, "compute", "zero gradients", -1, started, seconds_now());
    run_schedule(t, &input);
    trace_span(t->tracing, "step", "step", (int)t->step + 1, started, seconds_now());
    t->step++;
    t->sequences += batch;
    if (t->skipped) recast_parameters(&t->stage, t->settings.seed, t->step);
    const int64_t merged = t->stage.async ? async_dp_step_end(&t->stage, t->settings.seed, t->step) : 0;
    double stop = (double)stop_signals;
    t->bytes = bytes_all_ranks(t, before, t->stats_scope, &stop);
    t->stops = stop_agreed(&t->stop, &t->groups.inter_site, t->stats_scope, t->step, merged, stop > 0);
}

// ================================================================================================================
// 2. Around the step: validation, evaluation

// The forward passes of a window of sequences. Returns how many micro-batches of it were this rank's.
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
        const StepInput input = {NULL, &t->val, first, min_i64(count, first + window), false, NULL, NULL};
        run_window(t, input);
        device_to_host(&part, stage->sums + stage->layout.tensors, sizeof part);
        sum += part;
    }
    if (!counts_losses(stage)) sum = 0;
    sum_over_mesh(&t->groups, &sum, 1);
    return sum / ((double)count * stage->T);
}

// Adds the losses of a window's rows, in m micro-batches, to the evaluation's sums.
static void add_up_rows(const Trainer* t, const StepInput* input, int m, float* losses, double* sums) {
    const int64_t row = (int64_t)t->stage.T, group = t->stage.B * row;
    if (!DEVICE_IS_HOST) device_to_host(losses, input->losses, (size_t)(m * group) * sizeof(float));
    for (int k = 0; k < m; k++) {
        for (int b = 0; b < microbatch_sequences(t, input, k); b++) {
            double* sum = sums + microbatch_first(t, input, k) + b;
            for (int64_t i = 0; i < row; i++) *sum += losses[k * group + b * row + i];
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
        const int64_t end = min_i64(e->rows, first + window);
        const StepInput input = {NULL, NULL, first, end, false, e, losses};
        const int m = run_window(t, input);
        if (mine) add_up_rows(t, &input, m, host, e->sums);
        if (is_main(t)) printed = print_progress(e, end, started, printed);
    }
    sum_over_mesh(&t->groups, e->sums, e->rows);
    if (host != losses) free(host);
    device_free(losses, head ? bytes : 0);
}

// The largest device_peak_bytes of the ranks in stats_scope.
static int64_t peak_bytes(Trainer* t) {
    int64_t bytes = device_peak_bytes();
    Comm* axes[4] = {&t->groups.tensor, &t->groups.data, &t->groups.pipeline, &t->groups.inter_site};
    for (int i = 0; i < (t->stats_scope == SCOPE_SITE ? 3 : 4); i++) {
        const int64_t counted = axes[i]->size_bytes;
        comm_all_reduce(axes[i], &bytes, 1, COMM_INT64, COMM_MAX);
        axes[i]->size_bytes = counted;
    }
    return bytes;
}

// All of --evaluate, with the global parameters.
static void evaluate_all(Trainer* t) {
    for (int i = 0; i < t->evaluations.count; i++) evaluate(t, &t->evaluations.item[i]);
}

// ================================================================================================================
// 3. main

// A GPU's first step takes memory, loads kernels and tunes matrix products. All of this blocks until receives in flight
// complete, whose sender may wait for this rank: a deadlock. So each chunk runs on a micro-batch before there are any
// messages, and before there are weights; the gradients of this run are zeroed.
static void warm_up(Trainer* t) {
    Stage* stage = &t->stage;
    Activations* acts = &stage->activations[0];
    if (DEVICE_IS_HOST) return;
    reserve_microbatches(t, 1);
    device_zero(t->batch.device, batch_bytes(&t->batch));
    for (int c = 0; c < stage->layout.mesh.v; c++) {
        activations_bind(acts, stage, c, 0, stage->B, stage->T, false);
        acts->inputs = t->batch.device;
        acts->targets = t->batch.device + t->batch.tokens;
        acts->scale = stage->trains;
        chunk_forward(stage, acts);
        if (!stage->trains) continue;
        const Pass backward = {stage, acts, &stage->gradients[c][0], BOTH_GRADS, false};
        chunk_backward(&backward);
    }
    if (stage->trains) device_zero(stage->memory[ARENA_GRADIENTS].base, stage->memory[ARENA_GRADIENTS].size);
    comm_synchronize(&t->world);
}

static bool is_due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

static bool is_last_step(const Trainer* t) { return t->step == t->settings.steps; }

// All ranks are ready to compute: the time of a trace begins, and rank 0 says how long the start took.
static void report_startup(Trainer* t) {
    comm_barrier(&t->world);
    if (t->settings.trace) t->trace.zero = seconds_now();
    if (is_main(t)) printf("startup   %.2f s\n", seconds_now() - t->started);
}

// Everything between setup and the first step: weights, logs.
static void begin_training(Trainer* t) {
    const Settings* o = &t->settings;
    enter_phase(t, PHASE_LOADING);
    warm_up(t);
    const bool resumed = init_weights(t);
    t->ended = t->step >= o->steps;
    if (o->out && is_main(t)) {
        log_open(&t->log, o->out, resumed, t->step);
        if (!t->ended) write_options(t, t->options, t->option_count);
    }
    report_startup(t);
    t->first_step = t->step;
    t->first_bytes = bytes_sent(t);
    t->loop_started = seconds_now();
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

static void report_step(Trainer* t, double seconds) {
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

static void save_if_due(Trainer* t) {
    const bool ends = is_last_step(t) || t->stops;
    if (t->settings.out && (ends || is_due(t->step, t->settings.save_every))) save_checkpoint(t);
}

static void sample_if_due(Trainer* t) {
    const Settings* o = &t->settings;
    if (!is_due(t->step, o->sample_every) || is_last_step(t) || t->stops) return;
    load_global_weights(t);
    sample(t, o->max_new_tokens ? (int)o->max_new_tokens : 256);
    restore_local_weights(t);
}

static void print_end(const Trainer* t) {
    const Settings* o = &t->settings;
    char duration[32];
    write_duration(duration, sizeof duration, seconds_now() - t->loop_started);
    end_line();
    if (!is_main(t)) return;
    if (t->ended)
        printf("done      nothing to train: step %lld is reached, and --steps is %lld; more --steps continue the run\n",
               (long long)t->step, (long long)o->steps);
    else
        printf("done      %lld steps in %s\n", (long long)(t->step - t->first_step), duration);
    if (t->step >= o->steps) return;
    const char* saved = t->unsaved ? "not saved; the same command with --resume resumes from the checkpoint before"
                                   : "saved: the same command with --resume goes on";
    printf("stopped   after step %lld of %lld, as a signal has asked; %s\n", (long long)t->step, (long long)o->steps,
           o->out ? saved : "without --out nothing is saved");
}

// Ends a run: traffic, trace, exported weights, a last sample. Returns the exit status: not 0 if the last checkpoint or
// a log could not be written (which was reported), or if a signal has ended the run before its last step.
static int end_training(Trainer* t) {
    const Settings* o = &t->settings;
    const bool whole = t->step >= o->steps;
    double none = 0;
    print_end(t);
    if (t->stage.async) async_dp_drain(&t->stage);
    stop_settle(&t->stop);
    const Bytes all = bytes_all_ranks(t, t->first_bytes, SCOPE_WORLD, &none);
    if (is_main(t) && t->step > t->first_step) print_traffic(t, all, t->first_step);
    if (o->trace) write_trace(t);
    if (o->export_to && whole) export_weights(t);
    if (o->sample_every && whole) {
        load_global_weights(t);
        sample(t, o->max_new_tokens ? (int)o->max_new_tokens : 512);
    }
    if (!log_close(&t->log) || t->unsaved) return EXIT_RUN;
    return whole ? 0 : EXIT_REQUEUE;
}

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

#ifndef TRAIN_GPT_NO_MAIN // tests include this file and have a main of their own

int main(int argc, char** argv) {
    static Trainer trainer;
    Trainer* t = &trainer;
    int status = 0;
    if (!trainer_init(t, argc, argv)) return 0; // --help
    if (is_main(t) && t->settings.explain)
        explain(t);
    else if (is_main(t))
        print_plan(t, t->peak_flops);
    if (!t->settings.dry_run) {
        trainer_allocate(t);
        status = settings_is_training(&t->settings) ? train(t) : run_inference(t);
    }
    return trainer_free(t, status);
}

#endif
