/*
trainer/setup.h: the decisions of a run before it begins, without computing, and without the memory of a stage. In the
order in which trainer_init.h calls them:

    the command line    checked to be the same on all ranks; --config, --help
    texts               data, vocabulary, model, evaluations: opened, checked to be the same on all ranks
    the schedule        of training steps and of forward passes: built, and checked together with the other stages'
    sums                --allreduce on --topology: collectives as plans, checked too
    memory and folder   whether there is room, and whether --out is this run's

An error ends the run here, on all ranks, with one line.
*/
#pragma once

#include "../comm/check_same.h"
#include "../comm/collectives/collectives.h"
#include "../checkpoint/pretrained.h"
#include "../dataloader/text.h"
#include "../parallel/schedule_check.h"
#include "batch.h"
#include "logger.h"
#include "trainer.h"
#include <sys/file.h>

// ---- The command line -------------------------------------------------------------------------------------------

// Ends ranks that were not started in the same way: they would wait for each other for ever.
static inline void check_same_launch(Trainer* t, int argc, char** argv) {
    size_t length = 1;
    for (int i = 1; i < argc; i++) length += strlen(argv[i]) + 1;
    char *arguments = (char*)checked_calloc(length, 1, "the arguments"), build[128];
    for (int i = 1; i < argc; i++) strcat(strcat(arguments, i > 1 ? " " : ""), argv[i]);
    comm_check_same(&t->world, "arguments", arguments, "start all ranks with the same");
    free(arguments);
    comm_build_text(build, sizeof build);
    comm_check_same(&t->world, "executable", build, "copy one build to all machines");
}

// Reads a file of options on rank 0 and broadcasts it. t->config keeps the text, which holds the values of strings.
// option: for messages.
static inline void read_config(Trainer* t, Option* table, int n, const char* path, const char* option) {
    MappedFile file = {NULL, 0};
    Error error, why;
    bool ok = !is_main(t) || file_map(&file, path, &why) || fail(&error, "%s%.900s", option, why.text);
    if (ok && (file.size > 1 << 20 || (file.size && memchr(file.data, 0, file.size))))
        ok = fail(&error, "%s%.900s: not a file of options, one --name value a line", option, path);
    check_all_ranks_status(t, ok ? 0 : EXIT_ARGUMENTS, &error);
    int64_t size = (int64_t)file.size;
    comm_broadcast(&t->world, &size, 1, COMM_INT64, 0);
    char* text = (char*)checked_calloc((size_t)size + 1, 1, "a file of options");
    if (size && is_main(t)) memcpy(text, file.data, (size_t)size);
    file_unmap(&file);
    comm_broadcast(&t->world, text, size, COMM_BYTE, 0);
    t->config = text;
    if (!options_read(table, n, text, path, &error)) die_usage("%s", error.text);
}

// Reads the options that a run has left in --out, where the command line does not give others. A mesh on the command
// line replaces the run's as a whole: the other options of that group, --micro-batch, --allreduce and --topology have
// their defaults then, and so has --sites, unless the sites are asynchronous. --allreduce replaces --topology, too.
// Rank 0 decides whether there is a file.
static inline void read_run_options(Trainer* t, Option* table, int n) {
    static const char* const of_mesh[] = {"micro-batch", "allreduce", "topology"};
    char path[CHECKPOINT_PATH];
    bool held[MAX_OPTIONS] = {false};
    Error error;
    int32_t found = checkpoint_path(path, &error, "%s/options.txt", t->settings.out) && access(path, F_OK) == 0;
    comm_broadcast(&t->world, &found, 1, COMM_INT32, 0);
    if (!found) return;
    const bool mesh = option_given(table, n, "tp") || option_given(table, n, "pp") || option_given(table, n, "dp");
    if (is_main(t))
        print_line("options   %s: what the command line does not say%s", path, mesh ? "; without its mesh" : "");
    held[option_find(table, n, "topology") - table] = option_given(table, n, "allreduce");
    Option* sites = option_find(table, n, "sites");
    const bool order = mesh && !sites->given; // of a sum, where sites are not asynchronous
    if (mesh) {
        for (Option* row = option_find(table, n, "tp"); row->type != OPTION_HEADING; row++) held[row - table] = true;
        for (int i = 0; i < 3; i++) held[option_find(table, n, of_mesh[i]) - table] = true;
    }
    for (int i = 0; i < n; i++) {
        held[i] = held[i] && !table[i].given;
        table[i].given |= held[i];
    }
    read_config(t, table, n, path, "");
    for (int i = 0; i < n; i++) table[i].given &= !held[i];
    if (order && t->settings.dp_mode == DP_SYNC) t->settings.sites = sites->given = false;
}

// --help, --version: prints them, and returns whether one was asked for.
static inline bool print_help(const Trainer* t) {
    const Settings* o = &t->settings;
    Settings defaults = settings_default();
    Option rows[MAX_OPTIONS];
    const int n = settings_table(rows, &defaults);
    if (!o->help && !o->version) return false;
    if (!is_main(t)) return true;
    if (o->version) {
        printf("train_gpt %s, %s", process.version, FLOATX_NAME);
#ifndef USE_CUDA
        printf(", by %s", matmul_best_kernel()->name);
#endif
        printf("\n");
        return true;
    }
    printf("train_gpt trains a GPT; without options a small one, on text that is always there.\n"
           "scripts/mpirun.sh -np N ./train_gpt does it on N ranks.\n");
    options_help(rows, n, stdout);
    return true;
}

// Keeps stdout for generated text: returns it, and sends everything else that is printed there to stderr.
static inline FILE* split_stdout(void) {
    const int fd = dup(STDOUT_FILENO);
    FILE* text = fd >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0 ? fdopen(fd, "w") : NULL;
    if (!text) die("stdout: %s", strerror(errno));
    return text;
}

// ---- Texts ------------------------------------------------------------------------------------------------------

// Warns of the first file whose text is probably not meant.
static inline void warn_of_texts(const Trainer* t, const TokenFiles* files) {
    const char* what = NULL;
    for (int i = 0; i < files->files && !what && files->format == TOKENS_TEXT && is_main(t); i++) {
        const TokenFile* file = &files->file[i];
        what = suspicious_text(file->map.data, file->map.size);
        if (!what) continue;
        Error warning;
        (void)fail(&warning, "%s is %s: read as text", file->path, what);
        fprintf(stderr, "%s: warning: %s\n", process.name, warning.text);
    }
}

// Appends the files that match a pattern to the list and returns their size in bytes; no match is no error.
static inline int64_t add_files(PathList* list, const char* pattern) {
    int64_t bytes = 0;
    glob_t found;
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            struct stat st;
            if (stat(found.gl_pathv[i], &st) != 0 || !S_ISREG(st.st_mode)) continue;
            path_list_append(list, found.gl_pathv[i]);
            bytes += st.st_size;
        }
    }
    globfree(&found);
    return bytes;
}

// The default text: two megabytes of the system's C headers.
static inline PathList default_data(void) {
    static const char* headers[] = {"/usr/include/*.h", "/usr/include/linux/*.h", "/usr/include/*/bits/*.h", NULL};
    PathList list = {NULL, 0, 0};
    int64_t bytes = 0;
    for (int i = 0; headers[i] && bytes < 2000000; i++) bytes += add_files(&list, headers[i]);
    return list;
}

// Opens the texts to train and to validate on, --data and --val, or the default. All ranks must have the same.
static inline void open_files(Trainer* t) {
    const Settings* o = &t->settings;
    Error error;
    bool ok;
    if (o->data) {
        ok = tokens_open(&t->train_files, o->data, &error);
    } else {
        PathList list = default_data();
        if (!list.count) die_usage("there are no C headers in /usr/include to train on: give --data");
        ok = tokens_open_list(&t->train_files, (const char* const*)list.path, list.count, &error);
        path_list_free(&list);
    }
    if (ok && o->val) ok = tokens_open(&t->val_files, o->val, &error);
    check_all_ranks(t, ok, &error);
    warn_of_texts(t, &t->train_files);
    warn_of_texts(t, &t->val_files);
    char text[256];
    t->data_checksum = tokens_checksum(&t->train_files);
    snprintf(text, sizeof text, "%lld tokens to train on, checksum %016llx; %lld to validate on, checksum %016llx",
             (long long)t->train_files.tokens, (unsigned long long)t->data_checksum, (long long)t->val_files.tokens,
             (unsigned long long)tokens_checksum(&t->val_files));
    comm_check_same(&t->world, "data", text, "give all ranks the same files");
}

// Opens a vocabulary, and remembers its file: checkpoints get a copy. If it cannot be read, an optional one (needed =
// false) is skipped with a message.
static inline void load_tokenizer(Trainer* t, const char* path, bool needed) {
    struct stat st;
    Error error;
    const bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    if (!folder || !tokenizer_in_folder(t->vocabulary, sizeof t->vocabulary, path))
        snprintf(t->vocabulary, sizeof t->vocabulary, "%s", path);
    const bool ok = tokenizer_open(&t->tokenizer, path, &error);
    check_all_ranks(t, ok || !needed, &error);
    if (ok) return;
    memset(&t->tokenizer, 0, sizeof t->tokenizer);
    if (is_main(t)) fprintf(stderr, "%s: samples are numbers, not text: %s\n", process.name, error.text);
}

// The folder of --init, or of its file.
static inline void init_folder(char* folder, size_t size, const char* init) {
    struct stat st;
    if (stat(init, &st) == 0 && S_ISDIR(st.st_mode))
        snprintf(folder, size, "%s", init);
    else
        beside(folder, size, init, ".");
}

// Finds the vocabulary that build/tokenize has copied beside the first shard (beside a text it may be anything's), or
// the one beside the weights: in the newest checkpoint, in the folder of --init. False: none.
static inline bool find_vocabulary(const Trainer* t, char* path, size_t size) {
    const Settings* o = &t->settings;
    const TokenFiles* files = &t->train_files;
    char folder[4096];
    if (files->files && files->format != TOKENS_TEXT) {
        beside(folder, sizeof folder, files->file[0].path, ".");
        if (tokenizer_in_folder(path, size, folder)) return true;
    }
    if (o->resume && checkpoint_newest(folder, sizeof folder, o->out) && tokenizer_in_folder(path, size, folder))
        return true;
    if (!o->init) return false;
    init_folder(folder, sizeof folder, o->init);
    return tokenizer_in_folder(path, size, folder);
}

// Tokenizes the texts to train and to validate on with the run's vocabulary.
static inline void encode_texts(Trainer* t) {
    Error error;
    const bool bytes = t->tokenizer.split == SPLIT_BYTES, val = t->val_files.files > 0;
    bool ok = !val || streams_agree(&t->train_files, &t->val_files, bytes, &error);
    ok = ok && text_encode(&t->train_files, &t->tokenizer, &error) &&
         (!val || text_encode(&t->val_files, &t->tokenizer, &error));
    check_all_ranks(t, ok, &error);
}

// Opens the vocabulary that makes tokens of text, and text of tokens: --tokenizer, or the one that is found. If there
// is none, a text is bytes, and tokens stay numbers.
static inline void open_tokenizer(Trainer* t) {
    char path[4096];
    const Settings* o = &t->settings;
    const bool data = t->train_files.files > 0, text = data && format_is_text(t->train_files.format);
    const bool found = !o->tokenizer && find_vocabulary(t, path, sizeof path);
    comm_check_same(&t->world, "the vocabulary's place", found ? path : "none", "give all ranks the same files");
    if (o->tokenizer || found)
        load_tokenizer(t, found ? path : o->tokenizer, o->tokenizer || text || o->generate);
    else if (text)
        tokenizer_bytes(&t->tokenizer);
    comm_check_same(&t->world, "vocabulary", tokenizer_checksum(&t->tokenizer).text,
                    "give all ranks the same --tokenizer");
    if (data) encode_texts(t);
}

// The vocabulary size of the data, or of bytes where there is none; 0: not known.
static inline int vocabulary_size(const Trainer* t) {
    if (t->tokenizer.vocab) return t->tokenizer.vocab;
    if (t->train_files.files) return token_formats[t->train_files.format].vocab;
    return settings_is_training(&t->settings) ? 0 : 256;
}

// Takes bytes as tokens of the prompt where no vocabulary was found.
static inline void fallback_to_bytes(Trainer* t, int V) {
    if (t->tokenizer.vocab || !t->settings.generate) return;
    if (V < 256)
        die_usage("--generate: the model has %d tokens, and there is no vocabulary that says which: give --tokenizer",
                  V);
    if (V > 256 && is_main(t))
        fprintf(stderr,
                "%s: no vocabulary was found for the model's %d tokens: text is taken as bytes; --tokenizer gives it "
                "another\n",
                process.name, V);
    tokenizer_bytes(&t->tokenizer);
}

// Finds the newest checkpoint of a run whose config.json is valid.
static inline bool newest_model(char path[CHECKPOINT_PATH], const char* out) {
    int64_t* steps = NULL;
    Error error;
    const int n = checkpoint_steps(&steps, out);
    bool found = false;
    for (int i = 0; i < n && !found; i++)
        found = checkpoint_path(path, &error, "%s/step_%08lld", out, (long long)steps[i]) &&
                checkpoint_config_is_sound(path);
    free(steps);
    return found;
}

// newest_model on rank 0, broadcast to all ranks.
static inline bool find_model(Trainer* t, char path[CHECKPOINT_PATH]) {
    int32_t found = is_main(t) && newest_model(path, t->settings.out);
    comm_broadcast(&t->world, &found, 1, COMM_INT32, 0);
    comm_broadcast(&t->world, path, CHECKPOINT_PATH, COMM_BYTE, 0);
    return found;
}

// The model: the one of the checkpoint to resume or of the initial weights (a folder of Hugging
// Face's), else the one of --model and the sizes. data_vocab: the vocabulary of the data; 0: not known.
static inline ModelConfig resolve_model(Trainer* t, Option* table, int n, int data_vocab) {
    const Settings* o = &t->settings;
    char newest[CHECKPOINT_PATH] = "";
    const bool resumes = o->resume && find_model(t, newest);
    const char* path = resumes ? newest : o->init;
    ModelConfig stored = model_gpt2(1, 1, 1, 1, 1);
    bool named = false; // whether the weights name their model
    Error error;
    if (o->init && !resumes) check_all_ranks(t, checkpoint_find_weights(o->init, !o->dry_run, &error), &error);
    check_all_ranks(t, !path || checkpoint_model(&stored, &named, path, &error), &error);
    char text[CONFIG_TEXT] = "no config.json"; // ranks with different models would wait for ever
    if (named) config_write(text, &stored, "");
    if (path) comm_check_same(&t->world, "the model of the weights", text, "give all ranks the same files");
    if (named) return settings_model_of(o, table, n, &stored, path);
    if (!data_vocab && !o->vocab && !option_given(table, n, "model")) {
        die_usage("%s holds %s, which do not say of which vocabulary: give --vocab", o->data,
                  token_formats[t->train_files.format].name);
    }
    const ModelConfig model = settings_model(o, table, n, data_vocab);
    if (!model_check_trained(&model, &error)) die_usage("%s", error.text);
    return model;
}

// Warns of a large vocabulary for bytes: the text was probably meant to be tokenized.
static inline void warn_of_bytes(const Trainer* t, int V) {
    if (!is_main(t) || t->tokenizer.vocab != 256 || t->tokenizer.split != SPLIT_BYTES || V < 4 * 256) return;
    fprintf(
        stderr,
        "%s: warning: the model has a vocabulary of %d, but the data are bytes, which use 256 of it; --vocab 256 makes "
        "a model of bytes, build/tokenize makes tokens of a text\n",
        process.name, V);
}

// Finds the folder of the initial weights: the newest checkpoint, or the folder of --init. False: there is none.
static inline bool find_weights(const Settings* o, char* folder, size_t size) {
    if (o->resume && newest_model(folder, o->out)) return true;
    if (!o->init) return false;
    init_folder(folder, size, o->init);
    return true;
}

// Says which tokens begin and end a text: as the initial weights do, else the token before the data's documents.
static inline bool choose_ends(char text[CONFIG_ENDS_TEXT], const Trainer* t, int V, const char* weights,
                               Error* error) {
    char config[CHECKPOINT_PATH], number[16] = "null";
    if (!checkpoint_path(config, error, "%s/config.json", weights)) return false;
    if (weights[0] && access(config, F_OK) == 0) return config_read_ends(text, config, error);
    const int of_format = t->train_files.files ? token_formats[t->train_files.format].document : -1;
    const int token = t->tokenizer.vocab ? t->tokenizer.document : of_format;
    if (token >= 0 && token < V) snprintf(number, sizeof number, "%d", token);
    snprintf(text, CONFIG_ENDS_TEXT, ",\n  \"bos_token_id\": %s,\n  \"eos_token_id\": %s", number, number);
    return true;
}

// Gathers the files that rank 0 writes beside the model.
static inline void gather_hub_files(Trainer* t, const ModelConfig* model) {
    char weights[CHECKPOINT_PATH] = "";
    Error error;
    bool ok = true;
    if (is_main(t)) {
        if (!find_weights(&t->settings, weights, sizeof weights)) weights[0] = 0;
        HubSources sources = {&t->tokenizer, t->vocabulary, weights, model->T};
        ok = choose_ends(t->hub_files.config, t, model->V, weights, &error) &&
             hub_files_gather(&t->hub_files, &sources, &error);
    }
    check_all_ranks(t, ok, &error);
}

// How many blocks of the data a new run holds out to validate on; none with --val.
static inline int held_out_blocks(const Settings* o) { return o->val || !o->eval_every ? 0 : HELD_OUT_BLOCKS; }

// Opens the loader of training, without the held-out blocks, and of validation: these blocks, or --val.
static inline void open_loaders(Trainer* t, int blocks) {
    const Settings* o = &t->settings;
    const int T = t->stage.T, V = t->stage.model.V;
    const TokenFiles* val = o->val ? &t->val_files : &t->train_files;
    const Part part = blocks ? PART_TRAINED : PART_ALL, held_out = o->val ? PART_ALL : PART_HELD_OUT;
    Error error, why;
    t->held_out = blocks;
    bool ok = dataloader_init(&t->train, &t->train_files, part, blocks, T, V, (uint64_t)o->seed, true, &error);
    if (ok && o->eval_every && !dataloader_init(&t->val, val, held_out, blocks, T, V, 0, false, &why)) {
        ok = fail(&error, "validation: %.900s; or give --val, or --eval-every 0", why.text);
    }
    check_all_ranks(t, ok, &error);
}

// --evaluate: opens the files, checks that they fit the model.
static inline void open_evaluations(Trainer* t) {
    const char* names = t->settings.evaluate;
    Error error, why;
    if (!names) return;
    bool ok = evaluations_open(&t->evaluations, names, &error);
    uint64_t checksum = 0;
    for (int i = 0; i < t->evaluations.count && ok; i++) {
        Evaluation* e = &t->evaluations.item[i];
        ok = evaluation_fit(e, t->stage.T, t->stage.model.V, &error);
        checksum = 31 * checksum + hash_bytes(e->map.data, e->map.size);
    }
    if (!ok) ok = fail(&why, "--evaluate: %.1000s", error.text);
    check_all_ranks(t, ok, &why);
    char text[64];
    snprintf(text, sizeof text, "checksum %016llx", (unsigned long long)checksum);
    comm_check_same(&t->world, "files to evaluate", text, "give all ranks the same files");
}

// ---- The schedule -----------------------------------------------------------------------------------------------

static inline void check_schedule_or_die(const Schedule* stages, int p) {
    Error wrong;
    if (!schedule_check(stages, p, &wrong)) die("internal error: the schedule is wrong: %s", wrong.text);
}

// The schedules of all stages: of training steps, or without training of forward passes.
static inline Schedule* stages_build(const Trainer* t, const PipelineConfig* config) {
    if (settings_is_training(&t->settings)) return schedules_build(config);
    Schedule* stages = (Schedule*)checked_malloc((size_t)config->p * sizeof(Schedule), "the schedule");
    for (int i = 0; i < config->p; i++) stages[i] = schedule_build_untrained(config, i);
    return stages;
}

// Builds the schedule of this rank, checked together with the schedules of the other stages. Returns false if there is
// none for this number of micro-batches.
static inline bool plan_schedule(Trainer* t, const ModelConfig* model, const Mesh* mesh, Error* error) {
    const Settings* o = &t->settings;
    const int m = (int)(o->global_batch / mesh->d / o->micro_batch);
    const PipelineConfig config = {(ScheduleKind)o->schedule, mesh->p, mesh->v, m, mesh->zero == 2, model->tied};
    if (!pipeline_config_check(&config, mesh->recompute, error)) {
        const int group = schedule_group(config.kind, config.p);
        const Error why = *error;
        return m % group && fail(error, "%.800s; give --global-batch %lld", why.text,
                                 (long long)(m / group + 1) * group * o->micro_batch * mesh->d);
    }
    const bool trains = settings_is_training(o);
    Schedule* stages = stages_build(t, &config);
    check_schedule_or_die(stages, mesh->p);
    schedules_free(stages, mesh->p);
    t->schedule = trains ? schedule_build(&config, mesh->pipeline) : schedule_build_untrained(&config, mesh->pipeline);
    return true;
}

// Checks the schedule of m forward passes, of a validation or an evaluation.
static inline void check_forward_schedule(const Trainer* t, int m) {
    const PipelineConfig* plan = &t->schedule.config;
    if (m == 0) return;
    Schedule* stages = stages_build(t, plan);
    for (int i = 0; i < plan->p; i++) {
        const Schedule forward = schedule_build_forward(&stages[i], m);
        schedule_free(&stages[i]);
        stages[i] = forward;
    }
    check_schedule_or_die(stages, plan->p);
    schedules_free(stages, plan->p);
}

// Checks whole windows, and the last window of the validation and of each evaluation.
static inline void check_forward_schedules(const Trainer* t) {
    const int64_t window = window_sequences(t);
    const bool validates = settings_is_training(&t->settings) && t->settings.eval_every;
    const int64_t validated = validates ? validation_sequences(t) : 0;
    if (t->evaluations.count || validated >= window) check_forward_schedule(t, forward_window(t));
    check_forward_schedule(t, microbatches_in_turn(t, validated % window));
    for (int i = 0; i < t->evaluations.count; i++)
        check_forward_schedule(t, microbatches_in_turn(t, t->evaluations.item[i].rows % window));
}

// ---- Sums -------------------------------------------------------------------------------------------------------

// Whether the replicas of a site, or (inter_site) the sites, use a kind of collective in every step or outer step.
static inline bool needs_collective(const Stage* s, bool inter_site, PlanKind kind) {
    const Mesh* mesh = &s->layout.mesh;
    const bool halves = mesh->zero || (!inter_site && s->grads.hierarchical); // a reduce-scatter, then an all-gather
    if ((inter_site ? mesh->sites : mesh_site_size(mesh)) == 1) return false;
    return (kind == PLAN_ALL_REDUCE) != halves;
}

static inline bool build_sums(Plan plans[PLAN_KINDS], const Stage* s, bool inter_site, const char* name,
                              const Network* net, Error* error) {
    bool ok = true;
    for (int kind = 0; kind < PLAN_KINDS && ok; kind++) {
        if (!needs_collective(s, inter_site, (PlanKind)kind)) continue;
        ok = collective_build(&plans[kind], name, (PlanKind)kind, net, error) && plan_check(&plans[kind], net, error);
    }
    return ok;
}

// Builds the plans of the data group, or of the inter-site group, by an algorithm on a network.
static inline bool build_allreduce(Trainer* t, bool inter_site, const char* algorithm, const char* topology,
                                   Error* error) {
    const Mesh* mesh = &t->stage.layout.mesh;
    const int replicas = inter_site ? mesh->sites : mesh_site_size(mesh);
    Plan* plans = inter_site ? t->inter_site_plans : t->data_plans;
    Network net;
    if (!replicas_network(&net, topology, replicas, mesh->sites > 1 && !inter_site, error)) return false;
    const bool ok = build_sums(plans, &t->stage, inter_site, algorithm, &net, error);
    network_free(&net);
    return ok;
}

// The plans of the sums between replicas, and between sites (comm/collectives/collectives.h): --allreduce on --topology
// for the data group, or, where every replica is a site, for the inter-site group. Without it groups on processors have
// a plan too, and asynchronous sites anywhere: they would call MPI's non-blocking all-reduce in place, which in Open
// MPI is a tree, up and then down, whose root sends and receives log2(n) times the vector.
static inline bool build_allreduces(Trainer* t, const Mesh* mesh, Error* error) {
    enum { MOST_REPLICAS = 128 }; // the table of more is large, and only --dry-run has as many on processors
    const Settings* o = &t->settings;
    if (o->allreduce && mesh->d == 1)
        return fail(error, "--allreduce %s: there is one replica (--dp 1), and nothing to sum", o->allreduce);
    for (int inter_site = 0; inter_site < 2; inter_site++) {
        const int replicas = inter_site ? mesh->sites : mesh_site_size(mesh);
        const bool named = o->allreduce && inter_site == (mesh->sites > 1 && mesh_site_size(mesh) == 1);
        const bool planned = (DEVICE_IS_HOST && replicas <= MOST_REPLICAS) || (inter_site && t->stage.async);
        const char* algorithm = planned ? algorithm_usual(replicas) : NULL;
        if (named) algorithm = is_native(o->allreduce) ? NULL : o->allreduce;
        if (replicas > 1 && algorithm && !build_allreduce(t, inter_site, algorithm, named ? o->topology : NULL, error))
            return false;
    }
    return true;
}

// Plans the schedule, the stage and the all-reduces of this rank.
static inline bool plan_this_rank(Trainer* t, const ModelConfig* model, const Mesh* mesh, int T, DtypeInfo type,
                                  Error* error) {
    const Settings* o = &t->settings;
    const AsyncConfig async = settings_async(o, mesh);
    if (!mesh_check(mesh, model, T, error) || !plan_schedule(t, model, mesh, error) ||
        !stage_plan(&t->stage, model, *mesh, (int)o->micro_batch, T, &t->schedule, async_schedule_scope(&async), type,
                    error))
        return false;
    async_dp_plan(&t->stage, &async);
    t->stats_scope = t->stage.async ? SCOPE_SITE : SCOPE_WORLD;
    return !settings_is_training(o) || build_allreduces(t, mesh, error);
}

// Takes the memory of the stage.
static inline void allocate_this_rank(Trainer* t) {
    stage_allocate(&t->stage);
    if (t->stage.async) async_dp_allocate(&t->stage);
}

static inline void free_this_rank(Trainer* t) {
    async_dp_free(&t->stage);
    stage_free(&t->stage);
    schedule_free(&t->schedule);
}

// ---- Memory and folder ------------------------------------------------------------------------------------------

// Refuses a run that does not fit into the machine's memory, before any is allocated.
static inline void check_memory(Trainer* t) {
    double bytes = rank_bytes(t, &t->stage);
    comm_all_reduce(&t->world, &bytes, 1, COMM_DOUBLE, COMM_MAX);
    const double there = device_bytes(), needed = bytes * device_ranks_sharing(t->place.ranks_here);
    const ByteUnit unit = byte_unit(needed, true);
    Error error;
    check_all_ranks(t,
                    needed <= there ||
                        fail(&error,
                             "the run needs %.1f %s of memory, there are %.1f GB; use a smaller --micro-batch, "
                             "--seq or model, --recompute, or more ranks on more machines",
                             needed / unit.bytes, unit.name, there / 1e9),
                    &error);
}

// Whether a new run may begin in --out: returns the exit status, or 0.
static inline int refuse_old_run(const Settings* o, Error* error) {
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/log.jsonl", o->out);
    if (o->resume || stat(path, &st) != 0) return 0;
    fail(error, "--out %s holds a run already; add --resume to continue it, or choose another folder", o->out);
    return EXIT_ARGUMENTS;
}

// Whether no other run writes in a folder: rank 0 of each holds a lock on it, which the system releases when the
// process ends. Waits for the rank of a killed mpirun. A file system without locks has none.
static inline bool folder_lock(int fd) {
    enum { MOST_SECONDS = 10 };
    const double end = seconds_now() + MOST_SECONDS;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        if (seconds_now() > end) return false;
        usleep(20000);
    }
    return true;
}

// Rank 0: makes --out and reserves it for this run. Refuses a folder that cannot be written, or that holds another run:
// returns the exit status, or 0.
static inline int prepare_out_dir(const Settings* o, Error* error) {
    const bool made = mkdir(o->out, 0777) == 0 || errno == EEXIST;
    const int fd = made ? open(o->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1; // until the process ends
    if (fd < 0 || access(o->out, W_OK | X_OK) != 0) {
        fail(error, "--out %s: cannot be made, or written to: %s", o->out, strerror(errno));
        return EXIT_RUN;
    }
    if (folder_lock(fd)) return refuse_old_run(o, error);
    fail(error, "--out %s: another run is writing there; stop it, or choose another folder", o->out);
    return EXIT_RUN;
}
