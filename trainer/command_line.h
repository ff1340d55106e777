/*
trainer/command_line.h: the command line, the same on all ranks; --config, the options that a run has left in --out,
--help; and the folder --out, which one run at a time may write to.

An error ends the run here, on all ranks, with one line.
*/
#pragma once

#include "../comm/check_same.h"
#include "trainer.h"
#include <sys/file.h>

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
// line replaces the run's as a whole: the other options of that group, --allreduce and --topology have their defaults
// then; so have --micro-batch, unless sums are canonical, and --sites, unless they are asynchronous. --allreduce
// replaces --topology, too. Rank 0 decides whether there is a file.
static inline void read_run_options(Trainer* t, Option* table, int n) {
    static const char* const of_mesh[] = {"allreduce", "topology"};
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
    Option *sites = option_find(table, n, "sites"), *batch = option_find(table, n, "micro-batch");
    const bool order = mesh && !sites->given, cut = mesh && !batch->given; // --sites, --micro-batch: see above
    if (mesh) {
        for (Option* row = option_find(table, n, "tp"); row->type != OPTION_HEADING; row++) held[row - table] = true;
        for (int i = 0; i < 2; i++) held[option_find(table, n, of_mesh[i]) - table] = true;
        held[option_find(table, n, "canonical") - table] = false;
    }
    for (int i = 0; i < n; i++) {
        held[i] = held[i] && !table[i].given;
        table[i].given |= held[i];
    }
    read_config(t, table, n, path, "");
    for (int i = 0; i < n; i++) table[i].given &= !held[i];
    if (order && t->settings.dp_mode == DP_SYNC) t->settings.sites = sites->given = false;
    if (cut && !t->settings.canonical) t->settings.micro_batch = batch->given = false;
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

// ---- The folder of the run ----------------------------------------------------------------------------------------

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
    if (!folder_lock(fd)) {
        fail(error, "--out %s: another run is writing there; stop it, or choose another folder", o->out);
        return EXIT_RUN;
    }
    if (o->resume || faccessat(fd, "log.jsonl", F_OK, 0) != 0) return 0;
    fail(error, "--out %s holds a run already; add --resume to continue it, or choose another folder", o->out);
    return EXIT_ARGUMENTS;
}
