/*
trainer/checkpointing.h: saves and loads the run (Megatron: checkpointing.py). Every rank writes its slices of the one
logical model. Data ranks hold the same slices and take buckets in turn; with ZeRO they first gather their shards of the
moments.

    save_checkpoint     of all ranks; training waits
    init_weights        from the newest valid checkpoint of --out (--resume), from --init, or random
    export_weights      the weights alone, as transformers loads them (--export)
*/
#pragma once

#include "open_data.h"
#include "plan_rank.h"
#include "trainer.h"
#include "../checkpoint/pretrained.h"
#include "../parallel/optimizer.h"

// Ends the job for an error that all ranks of a scope find; a site's first rank speaks, and ends before the others do.
static inline void die_together(Trainer* t, Scope scope, const char* text) {
    const Mesh* mesh = &t->stage.layout.parallel.mesh;
    if (scope == SCOPE_WORLD) comm_abort_all(&t->world, EXIT_RUN, text);
    if (!mesh_rank_in_site(mesh) && !mesh->tensor && !mesh->pipeline) die("site %d: %s", mesh_site(mesh), text);
    sleep(COMM_TOGETHER);
    if (process.stop) process.stop(EXIT_RUN);
    exit(EXIT_RUN);
}

// Ends the run where replicas of a parameter on ranks of the scope have different bits (trainer/replica_check.h).
static inline void check_replicas(Trainer* t, Scope scope) {
    Stage* stage = &t->stage;
    char what[1024], text[1536];
    if (!replicas_differ(what, sizeof what, &t->groups, &stage->layout, &stage->model, stage->params, stage->checksums,
                         scope == SCOPE_WORLD))
        return;
    snprintf(
        text, sizeof text,
        "step %lld: silent data corruption: %s. Continue from the last checkpoint with --resume; if it is the same "
        "rank again, leave its machine out; if every run has it from its first steps on, the program has a fault",
        (long long)t->step, what);
    die_together(t, scope, text);
}

// ---- Save -------------------------------------------------------------------------------------------------------

// Between these two the parameters are the global ones, the same on all sites: validation and samples use them.
static inline void load_global_weights(Trainer* t) {
    if (t->stage.async) async_dp_load_global(&t->stage, t->settings.seed, t->step);
}
static inline void restore_local_weights(Trainer* t) {
    if (t->stage.async) async_dp_restore_local(&t->stage, t->settings.seed, t->step);
}

// The position of the run, and the settings that a resumed run must share.
static inline CheckpointState checkpoint_state(const Trainer* t) {
    const Settings* o = &t->settings;
    CheckpointState state = {t->step, t->sequences, o->seed,     o->global_batch,  t->stage.T, t->train_files.tokens,
                             "",      "",           t->val_loss, t->data_checksum, t->held_out};
    if (t->stage.async) async_schedule_text(state.async_plan, sizeof state.async_plan, &t->stage.async->config);
    snprintf(state.optimizer, sizeof state.optimizer, "%s", optimizers[o->optimizer].name);
    return state;
}

// Saves the run. A failed save does not end it.
static inline void save_checkpoint(Trainer* t) {
    const double started = seconds_now();
    Stage* stage = &t->stage;
    enter_phase(t, PHASE_SAVING);
    const CheckpointState state = checkpoint_state(t);
    if (stage->async) async_dp_drain(stage);
    if (t->settings.check_replicas_every) check_replicas(t, stage->grads.scope);
    Comm *data = &t->groups.data, *inter_site = &t->groups.inter_site;
    const int64_t counted[2] = {data->size_bytes, inter_site->size_bytes}; // the gather is no part of training
    t->unsaved = !stage_save(&t->saver, &t->world, &state);
    data->size_bytes = counted[0];
    inter_site->size_bytes = counted[1];
    if (t->unsaved || !is_main(t)) return;
    end_line();
    print_line("saved     %s/step_%08lld in %.1f ms", t->settings.out, (long long)t->step,
               1e3 * (seconds_now() - started));
}

// --export: writes the weights alone.
static inline void export_weights(Trainer* t) {
    Export* x = &t->export_to;
    const Stage* stage = &t->stage;
    Error error;
    enter_phase(t, PHASE_SAVING);
    check_all_ranks(t, !is_main(t) || export_begin(x, &stage->model, &error), &error);
    const bool wrote = export_write(x, stage, watchdog_row(&t->watch), &error);
    if (first_failing_rank(t, wrote, &error) >= 0) {
        if (is_main(t)) export_abandon(x);
        comm_abort_all(&t->world, EXIT_RUN, error.text);
    }
    check_all_ranks(
        t, !is_main(t) || export_publish(x, &stage->model, &stage->layout.parallel.caat, &t->hub_files, &error),
        &error);
    if (is_main(t)) print_line("exported  %s", x->path);
}

// ---- Load -------------------------------------------------------------------------------------------------------

// Whether the files of a list match their checksums; each rank reads a part of them. ok: whether this rank has the
// list. *error: the reason of the first rank that has one.
static inline bool files_are_sound(Trainer* t, bool ok, const CheckpointList* list, const char* folder, Error* error) {
    enum { FILES = CHECKPOINT_TENSOR_FILES + 1 };
    uint64_t sums[FILES] = {0};
    int64_t halves[2 * FILES]; // 32 bits each, so that sums over ranks do not overflow
    const Comm* world = &t->world;
    ok = ok && checkpoint_add_up(sums, list, folder, world->rank, world->size, error);
    for (int i = 0; i < 2 * FILES; i++) halves[i] = (int64_t)(sums[i / 2] >> (i % 2 ? 32 : 0) & 0xffffffff);
    comm_all_reduce(&t->world, halves, 2 * FILES, COMM_INT64, COMM_SUM);
    for (int i = 0; i < FILES; i++) sums[i] = (uint64_t)halves[2 * i] + ((uint64_t)halves[2 * i + 1] << 32);
    ok = ok && checkpoint_compare(sums, list, folder, error);
    return first_failing_rank(t, ok, error) < 0;
}

// --init: weights of a checkpoint must match their checksums, and weights of any kind must be the same on all ranks.
static inline void check_initial_weights(Trainer* t, const char* path) {
    CheckpointList list;
    char file[CHECKPOINT_PATH], text[128];
    Error error, why;
    int32_t ours = checkpoint_path(file, &error, "%s/trainer.json", path) && access(file, F_OK) == 0;
    comm_all_reduce(&t->world, &ours, 1, COMM_INT32, COMM_MAX);
    if (ours && !files_are_sound(t, checkpoint_load_weights_list(&list, path, &why), &list, path, &why)) {
        fail(&error, "--init %.256s: %.600s; to start from it as it is, move its trainer.json away", path, why.text);
        comm_abort_all(&t->world, EXIT_RUN, error.text);
    }
    check_all_ranks(t, checkpoint_sample(text, sizeof text, path, &error), &error);
    comm_check_same(&t->world, "the weights of --init", text, "give all ranks the same files");
}

// Finds the newest valid checkpoint of --out, and reports invalid ones. False: there is no checkpoint. If all are
// invalid the run ends, as a new run would replace them.
static inline bool latest_valid_checkpoint(Trainer* t, char path[CHECKPOINT_PATH]) {
    const char* out = t->settings.out;
    int64_t* steps = NULL;
    char text[CHECKPOINT_PATH];
    bool found = false;
    if (is_main(t) && settings_is_training(&t->settings)) checkpoint_clean(out);
    int32_t n = is_main(t) ? checkpoint_steps(&steps, out) : 0;
    comm_broadcast(&t->world, &n, 1, COMM_INT32, 0);
    for (int i = 0; i < n && !found; i++) {
        CheckpointList list;
        Error error;
        int64_t step = is_main(t) ? steps[i] : 0;
        comm_broadcast(&t->world, &step, 1, COMM_INT64, 0);
        const bool ok = checkpoint_path(path, &error, "%s/step_%08lld", out, (long long)step) &&
                        checkpoint_load_list(&list, path, &error) && checkpoint_check_step(&list, path, step, &error);
        found = files_are_sound(t, ok, &list, path, &error);
        if (!found && is_main(t)) print_line("resume    not from step %lld: %s", (long long)step, error.text);
    }
    if (!found && n > 0) {
        snprintf(text, sizeof text, "--resume: none of the %d checkpoints in %s is sound; move them away to start anew",
                 n, out);
        comm_abort_all(&t->world, EXIT_RUN, text);
    }
    free(steps);
    return found;
}

// The data of a resumed run: held-out sequences stay held out, also where this run validates on other text.
static inline void resume_data(Trainer* t, const CheckpointState* state, const char* path) {
    const Settings* o = &t->settings;
    const int held_out = (int)state->held_out;
    if (state->data_checksum != t->data_checksum && is_main(t))
        print_message(
            "warning: --data has as many tokens as when %s was made, but other content; training continues on it",
            path);
    if (held_out == 0 && t->held_out > 0)
        die_usage(
            "%s was trained on all of --data, so that nothing is left to validate on: give --val, or --eval-every 0",
            path);
    if (held_out == t->held_out) return;
    open_loaders(t, held_out);
    if (o->eval_every) check_forward_schedules(t);
}

// Refuses to continue a run as another model. resolve_model read the model from a checkpoint; it can differ only if the
// run resumes from another one.
static inline void check_same_model(Trainer* t, const char* folder) {
    ModelConfig then;
    bool named;
    Error error;
    check_all_ranks(t, checkpoint_model(&then, &named, folder, &error), &error);
    if (named && !model_same(&t->stage.model, &then))
        die_usage("%s is another model than the newest checkpoint: move one of them away", folder);
}

// Refuses a checkpoint of another run than this one, before its weights are read.
static inline void check_same_run(const CheckpointState* now, const CheckpointState* then, const char* path) {
    if (strcmp(now->optimizer, then->optimizer) != 0)
        die_usage(
            "--optimizer %s, but %s is of a run with --optimizer %s: give --optimizer %s, or begin a new run with "
            "--init %s",
            now->optimizer, path, then->optimizer, then->optimizer, path);
    if (strcmp(now->async_plan, then->async_plan) != 0)
        die_usage(
            "%s is of a run with %s, this is one with %s: a resumed run needs the same (a new one can --init from it)",
            path, then->async_plan[0] ? then->async_plan : "--dp-mode sync",
            now->async_plan[0] ? now->async_plan : "--dp-mode sync");
    const struct {
        const char* what;
        int64_t now, then;
    } same[] = {{"--seed is", now->seed, then->seed},
                {"--global-batch is", now->global_batch, then->global_batch},
                {"--seq is", now->seq, then->seq},
                {"--data has as many tokens as", now->data_tokens, then->data_tokens}};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        if (same[i].now != same[i].then) {
            die_usage("%s %lld, but %s was made with %lld: a resumed run needs the same (a new one can --init from it)",
                      same[i].what, (long long)same[i].now, path, (long long)same[i].then);
        }
    }
    // Any other position is damage: other data, or a number that overflows.
    if (then->sequences / then->global_batch != then->step || then->sequences % then->global_batch != 0)
        die_usage("%s: trainer.json says step %lld, %lld sequences a step and %lld in all, which do not fit; move the "
                  "folder away, and an older checkpoint is taken",
                  path, (long long)then->step, (long long)then->global_batch, (long long)then->sequences);
}

// Resumes from the newest valid checkpoint of --out; returns false if there is none.
static inline bool resume_checkpoint(Trainer* t) {
    const Settings* o = &t->settings;
    char path[CHECKPOINT_PATH] = "";
    if (!latest_valid_checkpoint(t, path)) {
        if (is_main(t)) print_line("resume    no checkpoint in %s: a new run", o->out);
        return false;
    }
    CheckpointReader reader;
    const CheckpointState now = checkpoint_state(t);
    CheckpointState state = now;
    const CheckpointSites sites = site_values(&t->stage).list;
    Error error;
    check_same_model(t, path);
    check_all_ranks(t, checkpoint_check_caat(path, &t->stage.layout.parallel.caat, &error), &error);
    check_all_ranks(t, checkpoint_open(&reader, path, &state, &sites, &error), &error);
    check_same_run(&now, &state, path);
    check_all_ranks(t, read_slices(&t->stage, &reader, watchdog_row(&t->watch), &error), &error);
    checkpoint_close(&reader);
    resume_data(t, &state, path);
    t->step = state.step;
    t->sequences = state.sequences;
    recast_parameters(&t->stage, o->seed, t->step);
    if (is_main(t)) print_line("resume    %s: step %lld", path, (long long)t->step);
    // The run may have been killed between its last save and the removal of old checkpoints.
    if (is_main(t) && !checkpoint_prune(o->out, o->keep_last, t->step, &error))
        print_message("--keep-last: %s", error.text);
    return true;
}

// Zeroed float32 host memory for the weights of the stage: the parameters themselves where these are such memory.
static inline float* weights_begin(const Stage* stage) {
    if (DEVICE_IS_HOST && !HAS_MASTER_WEIGHTS) return (float*)(void*)stage->params;
    return (float*)checked_calloc((size_t)stage->layout.elements, sizeof(float), "the initial weights");
}

// Copies the weights to the device.
static inline void weights_end(const Stage* stage, float* weights) {
    if (DEVICE_IS_HOST && !HAS_MASTER_WEIGHTS) return;
    for (int b = 0; b < stage->layout.buckets; b++)
        set_bucket_weights(stage, b, weights + stage->layout.bucket[b].offset);
    free(weights);
}

static inline void random_init_weights(const Stage* stage, int64_t seed) {
    float* weights = weights_begin(stage);
    layout_initialize(weights, &stage->layout, (uint64_t)seed);
    weights_end(stage, weights);
}

// Loads the weights of a file or folder, as --init names it.
static inline void load_weights(Trainer* t, const char* path) {
    const Stage* stage = &t->stage;
    Error error;
    float* weights = weights_begin(stage);
    check_all_ranks(t, checkpoint_check_caat(path, &stage->layout.parallel.caat, &error), &error);
    check_all_ranks(t, checkpoint_init(path, &stage->model, &stage->layout, weights, &error), &error);
    weights_end(stage, weights);
}

// Sets the initial weights: of the newest checkpoint, of --init, or random. Returns true if a run is resumed. Without
// training only the weights of a checkpoint are read.
static inline bool init_weights(Trainer* t) {
    const Settings* o = &t->settings;
    char path[CHECKPOINT_PATH];
    const char* from = o->init; // NULL: random
    const bool trains = settings_is_training(o);
    if (o->resume && trains && resume_checkpoint(t)) return true;
    if (o->resume && !trains && latest_valid_checkpoint(t, path))
        from = path;
    else if (o->resume && !trains && !o->init)
        die_usage("--resume: there is no checkpoint in %s", o->out);
    else if (o->init)
        check_initial_weights(t, o->init);
    if (from)
        load_weights(t, from);
    else
        random_init_weights(&t->stage, o->seed);
    if (t->stage.async) async_dp_init(&t->stage);
    if (is_main(t) && !trains) print_line("weights   %s", from ? from : "random: there is no --init or --resume");
    return false;
}
