/*
runs.h: files of runs with their published speeds (published.tsv, figures.tsv), our value beside each.

    runs_print    each line of a file with our value before the options (./plan --runs FILE)
    runs_band     how far speeds of such software on such GPUs were predicted wrongly

A line is: source, use, run, unit, published value or -, options that leave one choice. judge.py adds such lines up.
*/
#pragma once

#include "../util/median.h"
#include "search.h"

enum { RUN_COLUMNS = 6, RUNS_MOST = 1000 };
typedef enum { RUN_SOURCE, RUN_USE, RUN_NAME, RUN_UNIT, RUN_PUBLISHED, RUN_OPTIONS } RunColumn;

// The run of some options. Its cluster stays there until the next call.
typedef Choice (*RunPrice)(char* options);

// Our value in the run's unit (published.tsv says what each counts); NAN: there is no such unit.
static inline double run_value(const char* unit, const Choice* run) {
    const StepSetup* s = &run->setup;
    const double seconds = run->cost.seconds, batch = (double)s->batch,
                 each = 1 / seconds / mesh_size(&s->parallel.mesh);
    const double whole = flops_of_model(&s->model, s->T, batch, false) * each;
    if (strcmp(unit, "s") == 0) return seconds;
    if (strcmp(unit, "TFLOP/s") == 0) return flops_hardware(&s->model, s->T, batch) * each / 1e12;
    if (strcmp(unit, "TFLOP/s causal") == 0) return flops_of_model(&s->model, s->T, batch, true) * each / 1e12;
    if (strcmp(unit, "TFLOP/s model") == 0) return whole / 1e12;
    if (strcmp(unit, "% MFU") == 0) return 100 * whole / s->cluster->device.peak;
    if (strcmp(unit, "k tok/s") == 0) return batch * s->T * each / 1e3;
    if (strcmp(unit, "seq/s") == 0) return batch * each;
    return strcmp(unit, "seq/s of all") == 0 ? batch / seconds : NAN;
}

// Cuts a line at its tabs. False: it is a comment.
static inline bool run_columns(char* line, const char* path, int number, char* column[RUN_COLUMNS]) {
    line[strcspn(line, "\n")] = 0;
    if (line[0] == '#') return false;
    for (int i = 0; i < RUN_COLUMNS; i++) {
        column[i] = line ? strsep(&line, "\t") : NULL;
        if (!column[i]) die("%s:%d: %d columns and not %d", path, number, i, RUN_COLUMNS);
    }
    return true;
}

// Prints each run of a file with our value, and the part of the room that its memory takes. Ends the program at a line
// or a unit that is wrong, with its number.
static inline void runs_print(FILE* out, const char* path, RunPrice price) {
    FILE* file = fopen(path, "r");
    if (!file) die_usage("--runs %s: cannot open: %s", path, strerror(errno));
    char line[2048], *column[RUN_COLUMNS], options[2048];
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        if (!run_columns(line, path, number, column)) continue;
        snprintf(options, sizeof options, "%s", column[RUN_OPTIONS]);
        const Choice run = price(column[RUN_OPTIONS]);
        const double ours = run_value(column[RUN_UNIT], &run);
        if (!isfinite(ours)) die("%s:%d: no unit \"%s\"", path, number, column[RUN_UNIT]);
        for (int i = 0; i < RUN_OPTIONS; i++) fprintf(out, "%s\t", column[i]);
        fprintf(out, "%.6g\t%.4g\t%s\n", ours, run.memory.bytes / setup_room(&run.setup), options);
    }
    fclose(file);
}

// The speed errors of 18 of every 20 judging runs, without the lowest and the highest.
typedef struct {
    int n;
    double low, high;
} RunsBand;

// Of the judging runs of this software, or for our own of Megatron's family, on GPUs with the cluster's peak.
static inline RunsBand runs_band(const char* path, const Cluster* cluster, const Software* software, RunPrice price) {
    double errors[RUNS_MOST];
    RunsBand band = {0, 0, 0};
    FILE* file = fopen(path, "r");
    char line[2048], *column[RUN_COLUMNS];
    if (!file) return band;
    for (int number = 1; band.n < RUNS_MOST && fgets(line, sizeof line, file); number++) {
        if (!run_columns(line, path, number, column) || strcmp(column[RUN_USE], "judging") != 0) continue;
        const Choice run = price(column[RUN_OPTIONS]);
        const double ours = run_value(column[RUN_UNIT], &run);
        const double published = strtod(column[RUN_PUBLISHED], NULL);
        if (run.setup.cluster->device.peak != cluster->device.peak) continue;
        const Software* theirs = run.setup.software;
        if (software->ours ? strncmp(theirs->name, "megatron", 8) != 0 : theirs != software) continue;
        errors[band.n++] = strcmp(column[RUN_UNIT], "s") == 0 ? published / ours - 1 : ours / published - 1;
    }
    fclose(file);
    if (!band.n) return band;
    qsort(errors, (size_t)band.n, sizeof *errors, compare_doubles);
    band.low = errors[band.n / 20];
    band.high = errors[band.n - 1 - band.n / 20];
    return band;
}
