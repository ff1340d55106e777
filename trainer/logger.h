/*
trainer/logger.h: the reports of a run while it trains.

    for people      print_step: a line a step; print_evaluations
    for programs    log_step: OUT/log.jsonl, an object a step; write_options: OUT/options.txt; write_trace: --trace

Rank 0 calls them, and every rank log_close and those of the trace; nothing here changes the run.
*/
#pragma once

#include "../util/json.h"
#include "print_plan.h"
#include "trainer.h"

// ---- A line a step, for people ----------------------------------------------------------------------------------

// Whether the output goes to a terminal. mpirun gives its ranks a terminal as stdout even where its own stdout is a
// file, but never as stdin.
static bool is_watched(void) {
    const char* terminal = getenv("TERM");
    return isatty(STDOUT_FILENO) && isatty(STDIN_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
}

// "1:02:03", "4:05", "12 s"
static void write_duration(char* text, size_t size, double seconds) {
    const long total = (long)(seconds + 0.5);
    if (total >= 3600)
        snprintf(text, size, "%ld:%02ld:%02ld", total / 3600, total / 60 % 60, total % 60);
    else if (total >= 60)
        snprintf(text, size, "%ld:%02ld", total / 60, total % 60);
    else
        snprintf(text, size, "%ld s", total);
}

// A part of a line; parts of the largest ranks are dropped first.
typedef struct {
    int rank;
    char text[48];
} LinePart;

// Joins the parts up to a rank by " | "; tight: without the blanks that align the numbers of successive lines.
static void join_parts(char* line, size_t size, const LinePart* parts, int n, int rank, bool tight) {
    line[0] = 0;
    for (int i = 0; i < n; i++) {
        const char* text = parts[i].text + (tight ? strspn(parts[i].text, " ") : 0);
        if (*text && parts[i].rank <= rank) append_text(line, size, "%s%s", line[0] ? " | " : "", text);
    }
}

// Writes the line of a step, without newline, in at most `columns` columns; loss, speed and time left are dropped last.
static void step_text(char* line, size_t size, const Trainer* t, double seconds, double mfu, double seconds_left,
                      int columns) {
    enum { STEP, LOSS, VAL, NORM, RATE, TIME, SPEED, MFU, LEFT, PARTS };
    LinePart part[PARTS] = {{1, ""}, {0, ""}, {2, ""}, {4, ""}, {5, ""}, {6, ""}, {0, ""}, {3, ""}, {0, ""}};
    const double tokens = (double)t->settings.global_batch * t->stage.T;
    const size_t room = sizeof part[0].text;
    char left[32];
    write_duration(left, sizeof left, seconds_left);
    snprintf(part[STEP].text, room, "step %5lld/%lld", (long long)t->step, (long long)t->settings.steps);
    snprintf(part[LOSS].text, room, "loss %.4f", t->loss);
    if (!isnan(t->val_loss)) snprintf(part[VAL].text, room, "val %.4f", t->val_loss);
    snprintf(part[NORM].text, room, isnan(t->grad_norm) ? "norm    - " : "norm %.3f", t->grad_norm);
    snprintf(part[RATE].text, room, "lr %.2e", learning_rate(&t->settings, t->step - 1));
    snprintf(part[TIME].text, room, "%7.1f ms", 1e3 * seconds);
    snprintf(part[SPEED].text, room, "%8.0f tok/s", tokens / seconds);
    if (mfu > 0) snprintf(part[MFU].text, room, "mfu %2.0f %%", 100 * mfu);
    snprintf(part[LEFT].text, room, "%s left", left);
    join_parts(line, size, part, PARTS, PARTS, false);
    for (int rank = PARTS; rank >= 0 && strlen(line) > (size_t)columns; rank--)
        join_parts(line, size, part, PARTS, rank, true);
    if (strlen(line) > (size_t)columns) line[columns] = 0;
}

// Prints a line for every --log-every'th step, the last one, and steps with a validation. In a terminal it fits the
// width and the next line overwrites it (with blanks where that is shorter, as some terminals have no escape
// sequences); lines of validations and twenty others stay, so that the screen shows the whole run. In a file, a pipe or
// under mpirun every line stays.
static void print_step(const Trainer* t, double seconds, double mfu, double seconds_left) {
    const int64_t steps = t->settings.steps;
    const bool watched = is_watched(), marks = !isnan(t->val_loss) || t->step == steps;
    const bool stays = !watched || marks || t->step % max_i64(1, steps / 20) == 0;
    if (!marks && t->step % t->settings.log_every != 0) return;
    const int columns = terminal_columns();
    char line[512];
    step_text(line, sizeof line, t, seconds, mfu, seconds_left, columns);
    const int length = (int)strlen(line), before = process.within_line < columns ? process.within_line : columns;
    printf("%s%s%*s%s", process.within_line ? "\r" : "", line, before > length ? before - length : 0, "",
           stays ? "\n" : "");
    process.within_line = stays ? 0 : length;
    fflush(stdout);
}

// Prints the progress of an evaluation, `done` of its rows, every ten seconds. last: the time of the last report.
// Returns the time of the latest one.
static double print_progress(const Evaluation* evaluation, int64_t done, double started, double last) {
    enum { EVERY = 10 }; // seconds
    const double now = seconds_now(), rows = (double)evaluation->rows;
    char left[32];
    if (now - last < EVERY || done == evaluation->rows) return last;
    write_duration(left, sizeof left, (now - started) / (double)done * (rows - (double)done));
    end_line();
    print_line("evaluate  %s: %.0f %%, %s left", evaluation->path, 100 * (double)done / rows, left);
    return now;
}

// Prints the table of the scores of --evaluate.
static void print_evaluations(const Trainer* t) {
    char heading[48];
    int width = snprintf(heading, sizeof heading, t->stage.trains ? "evaluated after step %lld" : "evaluated",
                         (long long)t->step);
    for (int i = 0; i < t->evaluations.count; i++)
        width = (int)max_i64(width, 2 + (int64_t)strlen(t->evaluations.item[i].path));
    end_line();
    printf("%-*s    examples     acc  acc_norm\n", width, heading);
    for (int i = 0; i < t->evaluations.count; i++) {
        const Evaluation* e = &t->evaluations.item[i];
        print_line("  %-*s %11d %7.4f %9.4f", width - 2, e->path, e->examples, evaluation_score(e, false),
                   evaluation_score(e, true));
    }
}

// ---- For programs -----------------------------------------------------------------------------------------------

// Writes the lines that wait in memory, at once. 0, or an errno: the disk did not take all, and they keep waiting. The
// next call writes over the part that it took.
static int log_write(Log* log) {
    if (fflush(log->lines) != 0) die("out of memory: a line of %s", log->path);
    const ssize_t n = pwrite(log->fd, log->text, log->size, (off_t)log->at);
    if (n != (ssize_t)log->size) return n < 0 ? errno : ENOSPC;
    log->at += n;
    rewind(log->lines);
    return 0;
}

// Writes a member with a number of `digits` digits, or null: JSON has no infinity and no NaN.
static void log_number(FILE* log, const char* name, double x, int digits) {
    fprintf(log, ",\"%s\":", name);
    if (isfinite(x))
        fprintf(log, "%.*g", digits, x);
    else
        fprintf(log, "null");
}

// Writes the scores of --evaluate as a member of the step's object.
static void log_evaluations(FILE* log, const Trainer* t) {
    fprintf(log, ",\"evaluations\":[");
    for (int i = 0; i < t->evaluations.count; i++) {
        const Evaluation* e = &t->evaluations.item[i];
        fprintf(log, "%s{\"file\":", i ? "," : "");
        json_write_string(log, e->path);
        fprintf(log, ",\"examples\":%d,\"acc\":%.9g,\"acc_norm\":%.9g}", e->examples, evaluation_score(e, false),
                evaluation_score(e, true));
    }
    fprintf(log, "]");
}

// Appends a step to log.jsonl.
static void log_step(Trainer* t, double seconds, double mfu, int64_t peak) {
    FILE* log = t->log.lines;
    const double tokens = (double)t->settings.global_batch * t->stage.T;
    fprintf(log, "{\"step\":%lld", (long long)t->step);
    log_number(log, "loss", t->loss, 9);
    log_number(log, "val_loss", t->val_loss, 9);
    log_number(log, "grad_norm", t->grad_norm, 9);
    fprintf(log, ",\"lr\":%.9g,\"tokens\":%.0f,\"step_ms\":%.3f,\"tokens_per_s\":%.1f",
            learning_rate(&t->settings, t->step - 1), tokens, 1e3 * seconds, tokens / seconds);
    log_number(log, "mfu", mfu > 0 ? mfu : (double)NAN, 4);
    fprintf(log, ",\"comm_bytes\":{\"tp\":%.0f,\"pp\":%.0f,\"dp\":%.0f", t->bytes.tensor, t->bytes.pipeline,
            t->bytes.data);
    if (t->stage.layout.parallel.mesh.sites > 1) fprintf(log, ",\"dp_inter_site\":%.0f", t->bytes.inter_site);
    fprintf(log, "}");
    log_number(log, "bubble", t->bubble, 4);
    fprintf(log, ",\"peak_mem_bytes\":%lld", (long long)peak);
    if (t->skipped_in_row) fprintf(log, ",\"skipped\":true");
    if (t->evaluated) log_evaluations(log, t);
    fprintf(log, "}\n");
    const int why = log_write(&t->log);
    if (why && !t->log.waits)
        print_message("%s: cannot write: %s; training goes on, its lines wait in memory", t->log.path, strerror(why));
    t->log.waits = why != 0;
}

// The bytes of a log, if there is one, up to its last whole line of a step that is not after `step`.
static int64_t log_bytes_until(const char* path, int64_t step) {
    FILE* log = fopen(path, "r");
    if (!log && errno == ENOENT) return 0;
    if (!log) die("%s: cannot read: %s", path, strerror(errno));
    char* line = NULL;
    size_t room = 0;
    int64_t at = 0, kept = 0;
    long long logged;
    for (ssize_t n = getline(&line, &room, log); n > 0; n = getline(&line, &room, log)) {
        at += n;
        if (line[n - 1] == '\n' && sscanf(line, "{\"step\":%lld,", &logged) == 1 && logged <= step) kept = at;
    }
    free(line);
    if (ferror(log)) die("%s: cannot read: %s", path, strerror(errno));
    fclose(log);
    return kept;
}

// Opens OUT/log.jsonl. A new run starts an empty one; a resumed one cuts off the lines after the
// checkpoint's step, which will be written again, and the part of a line that a kill has left.
static void log_open(Log* log, const char* out, bool resumed, int64_t step) {
    Error error;
    if (!checkpoint_path(log->path, &error, "%s/log.jsonl", out)) die("%s", error.text);
    log->at = resumed ? log_bytes_until(log->path, step) : 0;
    log->fd = open(log->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (log->fd < 0) die("%s: cannot write: %s; choose another --out", log->path, strerror(errno));
    if (ftruncate(log->fd, (off_t)log->at) != 0) die("%s: cannot shorten: %s", log->path, strerror(errno));
    log->lines = open_memstream(&log->text, &log->size);
    if (!log->lines) die("out of memory: the lines of %s", log->path);
}

// Closes a log. False, after a message, if not all lines could be written. A log that was never opened is no error.
static bool log_close(Log* log) {
    if (!log->lines) return true;
    const int why = log_write(log);
    if (why) print_message("%s: cannot write: %s; its last lines are missing", log->path, strerror(why));
    fclose(log->lines);
    free(log->text);
    close(log->fd);
    log->lines = NULL;
    return why == 0;
}

// Writes DIR/options.txt, for --config and for readers, atomically.
static void write_options(const Trainer* t) {
    const ModelConfig* model = &t->stage.model;
    const char* out = t->settings.out;
    char path[4096], temporary[4096], device[256], when[64];
    const time_t now = time(NULL);
    struct tm utc;
    device_name(device, sizeof device);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &utc));
    snprintf(path, sizeof path, "%s/options.txt", out);
    snprintf(temporary, sizeof temporary, "%s/options.txt.tmp", out);
    FILE* f = fopen(temporary, "w");
    if (!f) die("%s: cannot write: %s", temporary, strerror(errno));
    fprintf(f, "# The options of this run. train_gpt --config FILE reads them; the command line wins.\n"
               "# Lines that begin with # follow from them, or are the defaults of the others.\n\n");
    fprintf(f, "# version: %s\n# started: %s\n# ranks: %d on %d machine%s\n# device: %s, %s\n", process.version, when,
            t->world.size, t->place.machines, plural(t->place.machines), device, FLOATX_NAME);
    fprintf(f, "# model: %s: %s, %d layers, %d channels, %d heads, vocabulary %d; %.0f parameters\n", model->name,
            model_arch_name(model->arch), model->L, model->C, model->NH, model->V, (double)model_parameters(model));
    options_write(t->options, t->option_count, f);
    const bool ok = !ferror(f);
    if (fclose(f) == 0 && ok && rename(temporary, path) == 0) return;
    const int why = errno;
    unlink(temporary);
    die("%s: cannot write: %s", path, strerror(why));
}

// ----------------------------------------------------------------------------------------------------------------
/*
--trace. Every rank records spans of its work (util/trace.h); at the end rank 0 collects them and writes one file in
Chrome's trace format, which Perfetto opens.
*/

// Sends this rank's spans to rank 0.
static inline void trace_send(Comm* world, const Trace* trace) {
    CommRequest sends[2];
    sends[0] = comm_send_start(world, trace, sizeof *trace, COMM_BYTE, 0, 0);
    sends[1] = comm_send_start(world, trace->spans, trace->n * (int64_t)sizeof(TraceSpan), COMM_BYTE, 0, 1);
    for (int i = 0; i < 2; i++) comm_wait(&sends[i]);
}

// Receives the spans of a rank; the caller frees the trace.
static inline Trace trace_receive(Comm* world, int rank) {
    Trace trace;
    CommRequest request = comm_receive_start(world, &trace, sizeof trace, COMM_BYTE, rank, 0);
    comm_wait(&request);
    const int64_t bytes = trace.n * (int64_t)sizeof(TraceSpan);
    trace.spans = (TraceSpan*)checked_malloc((size_t)bytes, "the trace"); // its pointer was the other rank's
    request = comm_receive_start(world, trace.spans, bytes, COMM_BYTE, rank, 1);
    comm_wait(&request);
    return trace;
}

// Opens --trace on rank 0; NULL on the others.
static inline FILE* open_trace(Trainer* t, const char* mode) {
    const char* path = t->settings.trace;
    FILE* out = is_main(t) ? fopen(path, mode) : NULL;
    Error error;
    check_all_ranks(t, out || !is_main(t) || fail(&error, "--trace %s: cannot write: %s", path, strerror(errno)),
                    &error);
    return out;
}

// Starts to record the work and messages of this rank. A file that cannot be written is refused now, not at the end.
static inline void start_tracing(Trainer* t) {
    const char* path = t->settings.trace;
    const bool new_file = is_main(t) && access(path, F_OK) != 0;
    FILE* out = open_trace(t, "a");
    if (out) fclose(out);
    if (new_file) unlink(path);
    Comm* list[GROUPS];
    groups_list(&t->groups, list);
    trace_init(&t->trace, 1 << 20);
    t->world.trace = &t->trace;
    for (int i = 0; i < GROUPS; i++) list[i]->trace = &t->trace;
}

// Writes the spans of all ranks to --trace, a file of rank 0; every rank calls it.
static inline void write_trace(Trainer* t) {
    const char* path = t->settings.trace;
    FILE* out = open_trace(t, "w");
    const PipelineConfig* config = &t->schedule.config;
    const ParallelConfig* parallel = &t->stage.layout.parallel;
    const Mesh* mesh = &parallel->mesh;
    t->world.trace = NULL; // messages of the trace are not traced
    if (!is_main(t)) {
        trace_send(&t->world, &t->trace);
        return;
    }
    trace_begin_file(out);
    for (int rank = 0; rank < t->world.size; rank++) {
        const Mesh at = mesh_at(mesh, rank);
        Trace theirs = rank > 0 ? trace_receive(&t->world, rank) : t->trace;
        char label[64];
        snprintf(label, sizeof label, "rank %d: t %d p %d d %d", rank, at.tensor, at.pipeline, at.data);
        trace_write_rank(out, rank, label, theirs.spans, theirs.n, theirs.dropped, theirs.zero);
        if (rank > 0) trace_free(&theirs);
    }
    char about[256]; // for dev/plot
    snprintf(about, sizeof about,
             "{\"schedule\":\"%s\",\"t\":%d,\"p\":%d,\"d\":%d,\"v\":%d,\"m\":%d,\"reduce_every\":%s,\"tied\":%s}",
             schedule_name(config->kind), mesh->t, mesh->p, mesh->d, parallel->v, config->m,
             config->reduce_every ? "true" : "false", config->tied ? "true" : "false");
    const bool ok = trace_end_file(out, about);
    if (fclose(out) != 0 || !ok) die("--trace %s: cannot write: %s", path, strerror(errno));
    print_line("trace     %s: open it in chrome://tracing or https://ui.perfetto.dev", path);
}
