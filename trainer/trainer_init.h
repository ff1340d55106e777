/*
trainer/trainer_init.h: from the command line to a trainer that is ready, in order, and back.

    trainer_init       options, data, vocabulary, model, mesh and schedule: all that can be refused before allocation
    trainer_allocate   memory, process groups, the folder of the run
    trainer_free       releases all of it; returns the process's exit status
*/
#pragma once

#include "command_line.h"
#include "generate.h"
#include "logger.h"
#include "open_data.h"
#include "plan_rank.h"
#include <signal.h>

// Sets up the process, and its rank among the others.
static inline void open_process(Trainer* t, int argc, char** argv) {
    open_standard_files();
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); // a crash loses no line, whatever reads them
    device_limit_thread_spin(argv);
    signal(SIGXFSZ, SIG_IGN); // above the limit of a file's size write() fails, not the run
    signal(SIGPIPE, SIG_IGN); // nor does the end of the reader of stdout end the run
    device_trim_malloc();
    device_flush_denormals();
    t->started = seconds_now();
    process.name = "train_gpt";
#ifdef VERSION
    process.version = VERSION;
#endif
    comm_open(&t->world);
    check_same_launch(t, argc, argv);
    comm_share_cores(&t->world, &t->place);
    device_set_threads(t->place.threads);
}

// Reads the command line, over --config or the options of the resumed run. False: --help was printed.
static inline bool parse_command_line(Trainer* t, int argc, char** argv) {
    Settings* o = &t->settings;
    Error error;
    *o = settings_default();
    t->option_count = settings_table(t->options, o);
    if (!options_parse(t->options, t->option_count, argc, argv, &error)) die_usage("%s", error.text);
    if (print_help(t)) return false;
    const bool only_use = settings_only_use(o, t->options, t->option_count);
    if (o->config)
        read_config(t, t->options, t->option_count, o->config, "--config ");
    else if (o->resume && o->out && !only_use)
        read_run_options(t, t->options, t->option_count);
    if (only_use) o->steps = 0;
    o->dry_run |= o->explain;
    const bool trains = settings_is_training(o);
    if (o->generate && !trains && !o->dry_run) t->text = split_stdout();
    if (o->out && trains && !options_check_file(t->options, t->option_count, &error)) die_usage("%s", error.text);
    check_settings(o);
    return true;
}

static inline void open_device(Trainer* t) {
    if (t->settings.dry_run) return;
    watchdog_open(&t->watch, &t->world, (double)t->settings.watchdog);
    if (settings_is_training(&t->settings)) stop_listen(); // else there is nothing to save
    device_open(t->place.rank_here);
    if (t->settings.canonical) setenv("MATMUL_TIMING", "0", 0); // a choice by time is each process's own
    if (t->settings.canonical) unsetenv("COLLECTIVE_CTAS");     // a choice by what is in flight, the mesh's
    comm_open_device(&t->world);
    const CommJob* job = t->world.job; // knows more than the number of GPUs: a rank may see its own alone
    t->sharing = job && job->ranks_on_gpu ? job->ranks_on_gpu : device_ranks_sharing(t->place.ranks_here);
}

// Opens the data and its vocabulary, and returns the model, of the options, of --init or of a checkpoint.
static inline ModelConfig open_data_and_model(Trainer* t) {
    Settings* o = &t->settings;
    const bool trains = settings_is_training(o);
    if (trains || o->data) open_files(t);
    open_tokenizer(t);
    const ModelConfig model = resolve_model(t, t->options, t->option_count, vocabulary_size(t));
    settings_rates(o, &model);
    fallback_to_bytes(t, model.V);
    warn_of_bytes(t, model.V);
    if (!o->dry_run && (o->export_to || (o->out && trains))) gather_hub_files(t, &model);
    return model;
}

// Says which of the given options have no effect.
static inline void print_without_effect(Trainer* t, const ParallelConfig* parallel) {
    const Mesh* mesh = &parallel->mesh;
    const Settings* o = &t->settings;
    const struct {
        const char* option;
        bool none;
        const char* why;
    } rows[] = {
        {"zero", o->zero && mesh->d == 1, "there is one replica, which has nothing to divide (--dp 2 or more)"},
        {"caat-fraction", parallel->caat.ranks == 1, "one rank has all channels (--tp or --caat-ranks 2 or more)"},
        {"no-scatter-gather", mesh->t == 1 || mesh->p == 1, "it is for --tp and --pp 2 or more"},
        {"eval-sequences", !o->eval_every, "--eval-every 0 never validates"},
    };
    if (!settings_is_training(o) || !is_main(t)) return;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].none && option_given(t->options, t->option_count, rows[i].option))
            print_line("options   --%s has no effect: %s", rows[i].option, rows[i].why);
}

// Refuses what this device has no kernel for: rows of tables without one.
static inline bool check_kernels(const Optimizer* optimizer, const Activation* activation, Error* error) {
    const char* device = DEVICE_IS_HOST ? "CPU cores" : "GPUs";
    if (!optimizer->update)
        return fail(error, "--optimizer %s has no kernel for %s (kernels/optimizers.h); choose another",
                    optimizer->name, device);
    return activation->forward ||
           fail(error, "the activation %s has no kernel for %s (kernels/activations.h)", activation->name, device);
}

// Plans the slices of this rank, its order of work, and its memory.
static inline void plan_run(Trainer* t, const ModelConfig* model) {
    Settings* o = &t->settings;
    const bool trains = settings_is_training(o);
    const int T = o->seq ? (int)o->seq : model->T;
    Error error;
    DtypeInfo values = native_dtype();
    values.moments = optimizers[o->optimizer].moments;
    values.masters &= trains || o->export_to; // without updates and exports floatX suffices
    if (!check_kernels(&optimizers[o->optimizer], &activations[model->activation], &error)) die_usage("%s", error.text);
    settings_schedule(o, option_given(t->options, t->option_count, "schedule"));
    const ParallelConfig parallel = settings_parallel(o, t->world.rank, t->world.size);
    settings_batch(o);
    if (!plan_this_rank(t, model, &parallel, T, values, &error)) die_usage("%s", error.text);
    print_without_effect(t, &parallel);
}

// Opens the loaders, evaluations and the export, to refuse errors before the run.
static inline void open_loaders_and_exports(Trainer* t) {
    const Settings* o = &t->settings;
    Error error;
    if (settings_is_training(o)) open_loaders(t, held_out_blocks(o));
    open_evaluations(t);
    if (o->generate) { // all ranks refuse a text of another vocabulary
        TokenList prompt = encode_prompt(t);
        token_list_free(&prompt);
    }
    if (o->export_to) check_all_ranks(t, export_open(&t->export_to, o->export_to, &error), &error);
    check_forward_schedules(t);
}

// Opens the ranks, the options, the data and the model, and plans the run; whatever can be refused ends all ranks here.
// Returns false where only --help or --version was asked for.
static inline bool trainer_init(Trainer* t, int argc, char** argv) {
    open_process(t, argc, argv);
    if (!parse_command_line(t, argc, argv)) {
        comm_close(&t->world);
        return false;
    }
    open_device(t);
    const ModelConfig model = open_data_and_model(t);
    plan_run(t, &model);
    open_loaders_and_exports(t);
    if (!t->settings.dry_run && settings_is_training(&t->settings)) {
        comm_barrier(&t->world);
        t->peak_flops = device_peak_flops(t->place.cores_here, t->sharing);
        comm_all_reduce(&t->world, &t->peak_flops, 1, COMM_DOUBLE, COMM_SUM);
    }
    return true;
}

// Opens the groups of the mesh, with their plans, and with a thread for messages between asynchronous sites.
static inline void open_groups(Trainer* t) {
    Stage* stage = &t->stage;
    process_groups_init(&t->groups, &t->world, &stage->layout, &stage->model);
    stage->groups = &t->groups;
    Comm* list[GROUPS];
    groups_list(&t->groups, list);
    for (int i = 0; i < GROUPS; i++) watchdog_group(&t->watch, list[i]);
    if (t->stats_scope == SCOPE_SITE) comm_open_thread(&t->groups.inter_site, false); // it executes its plans
    tensor_overlap_open(stage);
    for (int kind = 0; kind < PLAN_KINDS; kind++) {
        if (t->data_plans[kind].n) comm_use_plan(&t->groups.data, &t->data_plans[kind]);
        if (t->inter_site_plans[kind].n) comm_use_plan(&t->groups.inter_site, &t->inter_site_plans[kind]);
    }
}

// Takes --out, the groups of the mesh, and the memory, whose size is checked when NCCL has taken its own.
static inline void trainer_allocate(Trainer* t) {
    const Settings* o = &t->settings;
    const bool saves = o->out && settings_is_training(o);
    Error error;
    check_all_ranks_status(t, saves && is_main(t) ? prepare_out_dir(o, &error) : 0, &error);
    const double free_bytes = device_free_bytes();
    open_groups(t);
    check_memory(t, free_bytes - device_free_bytes());
    allocate_this_rank(t);
    if (o->trace) start_tracing(t);
    if (saves) {
        const Saver saver = {&t->stage, o->out, t->world.rank, o->keep_last, &t->hub_files, watchdog_row(&t->watch)};
        t->saver = saver;
    }
}

// Returns the exit status of the process for that of the run: after a signal only rank 0 requests a requeue.
static inline int trainer_free(Trainer* t, int status) {
    if (!t->settings.dry_run) groups_close(&t->groups);
    batch_free(&t->batch);
    free_this_rank(t);
    for (int kind = 0; kind < PLAN_KINDS; kind++) {
        plan_free(&t->data_plans[kind]);
        plan_free(&t->inter_site_plans[kind]);
    }
    trace_free(&t->trace);
    free(t->config);
    tokens_close(&t->train_files);
    tokens_close(&t->val_files);
    evaluations_close(&t->evaluations);
    tokenizer_free(&t->tokenizer);
    hub_files_free(&t->hub_files);
    enter_phase(t, PHASE_ENDING);
    const bool main_rank = is_main(t);
    comm_close(&t->world);
    watchdog_close(&t->watch);
    if (status != EXIT_REQUEUE) return status;
    return main_rank ? stop_status() : 0;
}
