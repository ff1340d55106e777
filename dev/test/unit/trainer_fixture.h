/*
trainer_fixture.h: what the tests share that make trainers as main does, on ranks that are there already. Included
behind train_gpt.cu, by a test that has

    tokens_path     where it puts a text of its own
    usual_line      options that a trainer has unless its command line says otherwise, --data tokens_path among them
*/
#pragma once

// The ranks and their devices; the second is the program's exit status.
static Comm world_open(const char* name) {
    Comm world;
    process.name = name;
    comm_open(&world);
    device_open(world.rank);
    comm_open_device(&world);
    device_set_threads(1);
    return world;
}

static int world_close(Comm* world) {
    const int status = world->rank == 0 ? test_end() : 0;
    comm_close(world);
    return status;
}

// A trainer as main makes it, on all ranks of world, from a command line to which usual_line is added; out: its folder,
// or NULL; resume: takes up its newest checkpoint.
static void trainer_open(Trainer* t, const Comm* world, const char* line, const char* out, bool resume) {
    char words[2048], usual[2048];
    char* argv[96] = {(char*)"train_gpt"};
    int argc = 1;
    memset(t, 0, sizeof *t);
    t->world = *world;
    snprintf(words, sizeof words, "%s", line);
    for (char* word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    const int given = argc;
    snprintf(usual, sizeof usual, "%s", usual_line);
    for (char *word = strtok(usual, " "), *value = strtok(NULL, " "); word;
         word = strtok(NULL, " "), value = strtok(NULL, " ")) {
        int i = 1;
        if (strstr(line, "sgd") && (strcmp(word, "--eps") == 0 || strcmp(word, "--beta2") == 0)) continue;
        while (i < given && strcmp(argv[i], word) != 0) i++;
        if (i != given) continue;
        argv[argc++] = word;
        argv[argc++] = value;
    }
    t->settings = settings_default();
    Settings* o = &t->settings;
    Option table[MAX_OPTIONS];
    const int n = settings_table(table, o);
    Error error;
    if (!options_parse(table, n, argc, argv, &error)) die_usage("%s", error.text);
    o->out = out;
    o->resume = resume;
    check_settings(o);
    settings_schedule(o, option_given(table, n, "schedule"));
    const ParallelConfig parallel = settings_parallel(o, t->world.rank, t->world.size);
    settings_batch(o);
    open_files(t);
    const ModelConfig m = settings_model(o, table, n, 0);
    settings_rates(o, &m);
    const int T = (int)o->seq;
    if (!plan_this_rank(t, &m, &parallel, T, native_dtype(), &error)) die("%s", error.text);
    open_loaders(t, held_out_blocks(&t->settings));
    allocate_this_rank(t);
    open_groups(t);
    const Quiet quiet = quiet_begin(false); // "resume ...", many times
    const bool resumed = init_weights(t);
    quiet_end(&quiet, words, sizeof words);
    if (resume && !resumed) die("there is no checkpoint in %s", out);
}

// A checkpoint of the run as it is now.
static void trainer_save(Trainer* t, const char* out) {
    const Saver saver = {&t->stage, out, t->world.rank, 0, &t->hub_files, NULL};
    t->saver = saver;
    save_checkpoint(t);
    if (t->unsaved) die("%s: the checkpoint was not saved", out);
}

static void trainer_close(Trainer* t) {
    stop_settle(&t->stop);
    groups_close(&t->groups);
    batch_free(&t->batch);
    free_this_rank(t);
    for (int kind = 0; kind < PLAN_KINDS; kind++)
        plan_free(&t->data_plans[kind]), plan_free(&t->inter_site_plans[kind]);
    tokens_close(&t->train_files);
}
