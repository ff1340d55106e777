/*
measured_device.h: rates of a measured device: seconds of a matrix product, a kernel, a sum over ranks. A processor's
rates depend on caches and on the other cores, not only on a data sheet. So planner/calibrate.c measures the trainer's
own kernels on a grid of sizes, and this file interpolates.

    machines_open            a cluster by its name or from a file, with its measured rates
    measured_seconds         seconds of an operation (ops.h)
    measured_share_cores     the speed of ranks that share cores

Theory: a measured machine is a list of lines, here with an example of each, numbers in seconds, bytes and FLOP/s:

    peak 0.22 TFLOP/s, memory 16 GB                 (two lines) of the machine, as in cluster.h
    cores 2                                         of the machine; ranks share them (comm/cpu_affinity.h, cluster.h)
    tile 8 48                                       of the matrix product's micro-kernel (kernels/matmul.h)
    resident 2.1e7 B                                of a rank after MPI_Init, without a model
    product one forward 256 512 128 6.1e10 FLOP/s   m, n, k as in ops.h; forward, input or weight (gradient)
    kernel one activation 65536 4.1e-10 s           kernel, elements, seconds for ONE element
    attention one backward 128 64 2.3e10 FLOP/s     T, head size; FLOPs counted causally
    collective started all-reduce 4 65536 8.1e-05 s ranks, bytes of the whole vector; waited: MPI's blocking call
    message 8 65536 2.0e-05 s                       ranks of the machine, bytes; from one rank to the next; with more
                                                    ranks than cores, others compute
    speed 8 2 0.93                                  ranks of the machine, how many of them compute

"one" is one rank of several, which computes with one thread while the other cores compute too; "all" a single rank that
computes with every core. Two processes on one physical core, or on one memory, slow each other down, so rates of an
idle machine do not apply to a step: "one" was measured while every core had a rank that did the same.

    speed    a computing rank's speed, relative to "one", when k of n ranks compute and the others wait for messages.
             With k = cores it is near 1; above, ranks share cores, and it falls as cores / k and a little more, since
             they evict each other's caches; below, idle cores raise it above 1, unless waiting ranks keep them busy. A
             collective of more ranks than cores is priced as if each rank had a core, times speed n n: its ranks, like
             all computing ones, then have the current speed

Between the points rates are interpolated in logarithms of sizes and rates (a power law goes through exactly); beyond
the ends the rate is constant. A product's rate counts whole tiles: matmul computes ceil(m / 8) 8 x ceil(n / 48) 48 of C
(on each thread's part), which explains the jumps with m and n; the remaining rate is smooth and is interpolated.
*/
#pragma once

#include "../util/options.h"
#include "op_cost.h"
#include "median.h"

#include <limits.h>

// ---- Lines ------------------------------------------------------------------------------------------------------

typedef enum {
    MEASURED_PRODUCT,
    MEASURED_MEMORY,
    MEASURED_ATTENTION,
    MEASURED_COLLECTIVE,
    MEASURED_MESSAGE,
    MEASURED_SPEED,
    MEASURED_TABLES
} MeasuredTable;

typedef enum { THREADS_ONE, THREADS_ALL } MeasuredThreads;
typedef enum { COLLECTIVE_WAITED, COLLECTIVE_STARTED } MeasuredCall; // MPI's blocking calls; its non-blocking ones

enum { MEASURED_AXES = 3, MEASURED_VARIANTS = 64 };

// The format of a table's lines: two words that choose a variant, numbers on the axes, the value and its unit.
typedef struct {
    const char *name, *first, *second;
    int axes;
    const char *axis[MEASURED_AXES], *unit;
} MeasuredFormat;

// Kinds of Kernel (ops.h) that have their own rates on a processor.
typedef enum {
    KERNEL_RMS_NORM = KERNELS, // NORM of llama
    KERNEL_RESIDUAL_RMS_NORM,
    KERNEL_RMS_NORM_BACKWARD,
    KERNEL_SWIGLU, // ACTIVATION of llama
    KERNEL_SWIGLU_BACKWARD,
    KERNEL_CLASSIFIER_PARTS, // CLASSIFIER where the vocabulary is divided over ranks
    MEASURED_KERNELS
} MeasuredKernel;

static const MeasuredFormat measured_formats[MEASURED_TABLES] = {
    {"product", "one|all", "forward|input|weight", 3, {"m", "n", "k"}, "FLOP/s"},
    {"kernel",
     "one|all",
     "norm|residual-norm|residual|norm-backward|activation|activation-backward|rope|rope-backward|embedding|"
     "embedding-backward|classifier|add|bias|copy|zero|squares|optimizer|other|rms-norm|residual-rms-norm|"
     "rms-norm-backward|swiglu|swiglu-backward|classifier-parts",
     1,
     {"elements", NULL, NULL},
     "s"},
    {"attention", "one|all", "forward|backward", 2, {"T", "head size", NULL}, "FLOP/s"},
    {"collective", "waited|started", "all-reduce|reduce-scatter|all-gather", 2, {"ranks", "bytes", NULL}, "s"},
    {"message", NULL, NULL, 2, {"ranks", "bytes", NULL}, "s"},
    {"speed", NULL, NULL, 2, {"ranks", "computing", NULL}, ""},
};

static inline int choice_count(const char* choices) {
    int n = choices != NULL;
    for (; choices && *choices; choices++) n += *choices == '|';
    return n;
}

typedef struct {
    MeasuredTable table;
    int first, second; // words; 0: none
    double at[MEASURED_AXES];
    double value;
} MeasuredPoint;

// The values of one variant of a table at every combination of numbers on its axes; the last axis runs fastest.
typedef struct {
    int axes, n[MEASURED_AXES];
    double* axis[MEASURED_AXES]; // ascending
    double* value;
} MeasuredGrid;

enum { CORRECTED = 12 }; // corrections: up to 2,048 ranks on a machine

typedef struct Measured {
    int cores, tile_rows, tile_columns; // cores = 0: nothing was measured
    double resident;                    // bytes
    // For runs with 2^i ranks, and others with more than half as many: the factor from traces (calibrate.h); 0: there
    // was no trace of such a run.
    double correction[CORRECTED];
    int points, room;
    MeasuredPoint* point; // in the order of the file
    MeasuredGrid grid[MEASURED_TABLES][MEASURED_VARIANTS];
} Measured;

static inline void measured_init(Measured* m) { memset(m, 0, sizeof *m); }

static inline void measured_free(Measured* m) {
    for (int i = 0; i < MEASURED_TABLES * MEASURED_VARIANTS; i++) {
        MeasuredGrid* g = &m->grid[i / MEASURED_VARIANTS][i % MEASURED_VARIANTS];
        for (int a = 0; a < g->axes; a++) free(g->axis[a]);
        free(g->value);
    }
    free(m->point);
    memset(m, 0, sizeof *m);
}

static inline void measured_add(Measured* m, MeasuredPoint point) {
    if (m->points == m->room)
        m->point = (MeasuredPoint*)checked_grow(m->point, &m->room, 256, sizeof *m->point, "measured rates");
    m->point[m->points++] = point;
}

static inline MeasuredPoint measured_point(MeasuredTable table, int first, int second, double a, double b, double c,
                                           double value) {
    const MeasuredPoint p = {table, first, second, {a, b, c}, value};
    return p;
}

// ---- Reading and writing ----------------------------------------------------------------------------------------

// Bounds of any rate or size. Times are quotients of such numbers: with 1e-308 FLOP/s one would be infinite, and its
// step would never end.
static const double measured_least = 1e-20, measured_most = 1e20;

// A number in decimal digits, in this range.
static inline bool measured_number(const char* word, double* value) {
    char* end;
    *value = strtod(word, &end);
    return *word && *end == 0 && strspn(word, "0123456789.eE+-") == strlen(word) && *value >= measured_least &&
           *value <= measured_most;
}

// The shortest text that reads back as the same number.
static inline void measured_number_text(char text[32], double value) {
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, value);
        if (strtod(text, NULL) == value) return;
    }
}

static inline int measured_table_of(const char* word) {
    for (int t = 0; t < MEASURED_TABLES; t++) {
        if (strcmp(measured_formats[t].name, word) == 0) return t;
    }
    return -1;
}

static inline bool measured_read_whole(const char* word, int most, int* value) {
    double x;
    if (!measured_number(word, &x) || x != floor(x) || x > most) return false;
    *value = (int)x;
    return true;
}

static inline bool measured_read_point(Measured* m, MeasuredTable table, int n, char** words, Error* error) {
    const MeasuredFormat* f = &measured_formats[table];
    const char* choices[2] = {f->first, f->second};
    MeasuredPoint p = measured_point(table, 0, 0, 0, 0, 0, 0);
    int at = 1;
    for (int i = 0; i < 2; i++) {
        if (!choices[i]) continue;
        int* choice = i == 0 ? &p.first : &p.second;
        *choice = at < n ? choice_index(choices[i], words[at]) : -1;
        if (*choice < 0)
            return fail(error, "%s: %s is none of %s", f->name, at < n ? words[at] : "nothing", choices[i]);
        at++;
    }
    for (int i = 0; i < f->axes; i++, at++) {
        if (at >= n || !measured_number(words[at], &p.at[i]))
            return fail(error, "%s: %s has to be a number from 1e-20 to 1e20, not %s", f->name, f->axis[i],
                        at < n ? words[at] : "nothing");
    }
    if (at >= n || !measured_number(words[at], &p.value))
        return fail(error, "%s: the value has to be a number from 1e-20 to 1e20, not %s", f->name,
                    at < n ? words[at] : "nothing");
    at++;
    if (*f->unit && (at >= n || strcmp(words[at], f->unit) != 0))
        return fail(error, "%s: behind the value stands its unit, %s", f->name, f->unit);
    at += *f->unit != 0;
    if (at != n) return fail(error, "%s: %s is too much", f->name, words[at]);
    if (table == MEASURED_SPEED && p.at[1] > p.at[0])
        return fail(error, "speed: %g of %g ranks compute", p.at[1], p.at[0]);
    measured_add(m, p);
    return true;
}

// The index of the correction for a number of ranks.
static inline int measured_place_of_ranks(int ranks) {
    int place = 0;
    while (place < CORRECTED - 1 && 1 << place < ranks) place++;
    return place;
}

static inline bool measured_read_correction(Measured* m, int n, char** words, Error* error) {
    int ranks = 0;
    double factor;
    if (n != 3 || !measured_read_whole(words[1], 1 << (CORRECTED - 1), &ranks) || !measured_number(words[2], &factor))
        return fail(error, "correct: a number of ranks and a factor have to follow, and nothing else");
    m->correction[measured_place_of_ranks(ranks)] = factor;
    return true;
}

// ClusterOther of cluster.h: reads the lines of a measured machine.
static inline bool measured_line(void* context, char** words, int n, bool* known, Error* error) {
    Measured* m = (Measured*)context;
    const int table = measured_table_of(words[0]);
    *known = true;
    if (table >= 0) return measured_read_point(m, (MeasuredTable)table, n, words, error);
    if (strcmp(words[0], "correct") == 0) return measured_read_correction(m, n, words, error);
    if (strcmp(words[0], "tile") == 0)
        return (n == 3 && measured_read_whole(words[1], 4096, &m->tile_rows) &&
                measured_read_whole(words[2], 4096, &m->tile_columns)) ||
               fail(error, "tile: rows and columns have to follow, and nothing else");
    if (strcmp(words[0], "resident") == 0)
        return (n == 3 && measured_number(words[1], &m->resident) && strcmp(words[2], "B") == 0) ||
               fail(error, "resident: a number and B have to follow, and nothing else");
    *known = false;
    return true;
}

// The distinct numbers of a variant's points on one axis, ascending. Returns how many.
static inline int measured_axis(const Measured* m, const MeasuredPoint* like, int a, double* axis) {
    int n = 0, kept = 0;
    for (int i = 0; i < m->points; i++) {
        const MeasuredPoint* p = &m->point[i];
        if (p->table == like->table && p->first == like->first && p->second == like->second) axis[n++] = p->at[a];
    }
    qsort(axis, (size_t)n, sizeof *axis, compare_doubles);
    for (int i = 0; i < n; i++) {
        if (kept == 0 || axis[i] != axis[kept - 1]) axis[kept++] = axis[i];
    }
    return kept;
}

static inline MeasuredGrid* measured_grid_of(Measured* m, MeasuredTable table, int first, int second) {
    return &m->grid[table][first * choice_count(measured_formats[table].second) + second];
}

// "product one forward 128 256 512", for messages.
static inline void measured_place_text(char* text, size_t size, const MeasuredPoint* p) {
    const MeasuredFormat* f = &measured_formats[p->table];
    const char* choices[2] = {f->first, f->second};
    const int chosen[2] = {p->first, p->second};
    size_t at = (size_t)snprintf(text, size, "%s", f->name);
    for (int i = 0; i < 2; i++) {
        char word[32];
        if (!choices[i]) continue;
        choice_word(word, sizeof word, choices[i], chosen[i]);
        at += (size_t)snprintf(text + at, size - at, " %s", word);
    }
    for (int i = 0; i < f->axes; i++) at += (size_t)snprintf(text + at, size - at, " %.17g", p->at[i]);
}

static inline int64_t measured_cell(const MeasuredGrid* g, const MeasuredPoint* p) {
    int64_t cell = 0;
    for (int a = 0; a < g->axes; a++) {
        int i = 0;
        while (g->axis[a][i] != p->at[a]) i++;
        cell = cell * g->n[a] + i;
    }
    return cell;
}

// Puts the points of one variant into a grid; every combination has to be there once. speed: half of the combinations
// make no sense.
static inline bool measured_fill(const Measured* m, MeasuredGrid* g, const MeasuredPoint* like, Error* error) {
    int64_t cells = 1;
    char place[256];
    g->axes = measured_formats[like->table].axes;
    for (int a = 0; a < g->axes; a++) {
        g->axis[a] = (double*)checked_malloc((size_t)m->points * sizeof(double), "measured rates");
        g->n[a] = measured_axis(m, like, a, g->axis[a]);
        cells *= g->n[a]; // at most 4 points^2 here, as the check is before the next factor
        if (cells > 4 * (int64_t)m->points)
            return fail(error, "%s: points are missing", measured_formats[like->table].name);
    }
    g->value = (double*)checked_calloc((size_t)cells, sizeof(double), "measured rates");
    for (int i = 0; i < m->points; i++) {
        const MeasuredPoint* p = &m->point[i];
        if (p->table != like->table || p->first != like->first || p->second != like->second) continue;
        double* value = &g->value[measured_cell(g, p)];
        measured_place_text(place, sizeof place, p);
        if (*value != 0) return fail(error, "%s is there twice", place);
        *value = p->value;
    }
    for (int64_t c = 0; c < cells; c++) {
        MeasuredPoint p = *like;
        int64_t rest = c;
        for (int a = g->axes - 1; a >= 0; rest /= g->n[a], a--) p.at[a] = g->axis[a][rest % g->n[a]];
        measured_place_text(place, sizeof place, &p);
        if (g->value[c] == 0 && !(p.table == MEASURED_SPEED && p.at[1] > p.at[0]))
            return fail(error, "%s is missing", place);
    }
    return true;
}

// After the last line: makes grids of the points. All rates that pricing needs have to be there.
static inline bool measured_complete(Measured* m, Error* error) {
    if (m->tile_rows == 0) return fail(error, "tile is missing");
    for (int i = 0; i < m->points; i++) {
        const MeasuredPoint* p = &m->point[i];
        MeasuredGrid* g = measured_grid_of(m, p->table, p->first, p->second);
        if (!g->value && !measured_fill(m, g, p, error)) return false;
    }
    return true;
}

static inline void measured_write_point(FILE* out, const MeasuredPoint* p) {
    char text[256], value[32];
    const char* unit = measured_formats[p->table].unit;
    measured_place_text(text, sizeof text, p);
    measured_number_text(value, p->value);
    fprintf(out, "%s %s%s%s\n", text, value, *unit ? " " : "", unit);
}

static inline void measured_write_corrections(const Measured* m, FILE* out) {
    char value[32];
    for (int place = 0; place < CORRECTED; place++) {
        measured_number_text(value, m->correction[place]);
        if (m->correction[place] > 0) fprintf(out, "correct %d %s\n", 1 << place, value);
    }
}

// Writes the lines of a measured machine. Returns false if writing has failed.
static inline bool measured_write(const Measured* m, FILE* out) {
    char value[32];
    fprintf(out, "cores %d\ntile %d %d\n", m->cores, m->tile_rows, m->tile_columns);
    measured_number_text(value, m->resident);
    if (m->resident > 0) fprintf(out, "resident %s B\n", value);
    measured_write_corrections(m, out);
    for (int i = 0; i < m->points; i++) measured_write_point(out, &m->point[i]);
    return !ferror(out);
}

// ---- Between the points -----------------------------------------------------------------------------------------

// The place of x on an axis: below point i + 1, at `part` of the way from i in logarithms; clamped to the ends.
static inline int measured_locate(const double* axis, int n, double x, double* part) {
    int i = 0;
    *part = 0;
    if (n == 1 || x <= axis[0]) return 0;
    while (i < n - 2 && x >= axis[i + 1]) i++;
    *part = x >= axis[i + 1] ? 1 : log(x / axis[i]) / log(axis[i + 1] / axis[i]);
    return i;
}

// The value at `at`, linear in logarithms on every axis. On a grid point it is exactly the point's. NAN: nothing was
// measured.
static inline double measured_between(const MeasuredGrid* g, const double* at) {
    double part[MEASURED_AXES], sum = 0;
    int low[MEASURED_AXES];
    if (!g->value) return NAN;
    for (int a = 0; a < g->axes; a++) low[a] = measured_locate(g->axis[a], g->n[a], at[a], &part[a]);
    for (int corner = 0; corner < 1 << g->axes; corner++) {
        double weight = 1;
        int64_t cell = 0;
        for (int a = 0; a < g->axes; a++) {
            const int high = corner >> a & 1;
            weight *= high ? part[a] : 1 - part[a];
            cell = cell * g->n[a] + (high ? min_i64(low[a] + 1, g->n[a] - 1) : low[a]);
        }
        if (weight == 1) return g->value[cell];
        if (weight > 0) sum += weight * log(g->value[cell]);
    }
    return exp(sum);
}

static inline const MeasuredGrid* measured_find(const Measured* m, MeasuredTable table, int first, int second) {
    return measured_grid_of((Measured*)(uintptr_t)m, table, first, second);
}

// The kind of rates for a rank with a number of threads. Between one and all cores: "one" times the threads.
static inline MeasuredThreads measured_threads(const Measured* m, int threads) {
    return threads > 1 && threads >= m->cores && measured_find(m, MEASURED_PRODUCT, THREADS_ALL, 0)->value
               ? THREADS_ALL
               : THREADS_ONE;
}

static inline double measured_share(MeasuredThreads which, int threads) { return which == THREADS_ALL ? 1 : threads; }

// Elements of C that matmul's tiles cover, on the thread with the most, times threads: as by matmul_grid, A packed.
static inline double measured_padded(const Measured* m, double rows, double columns, int threads) {
    const double mr = m->tile_rows, nr = m->tile_columns;
    double least = INFINITY, best = 0;
    for (int down = 1; down <= threads; down++) {
        const int across = threads / down;
        const double height = ceil(ceil(rows / down) / mr) * mr, width = ceil(ceil(columns / across) / nr) * nr;
        const double cost = height * width + 16 * (height + width);
        if (cost < least) {
            least = cost;
            best = height * width * threads;
        }
    }
    return best;
}

// One of the trainer's three products (ops.h: which; m, n, k as there): seconds.
static inline double measured_product(const Measured* M, int threads, int which, double m, double n, double k) {
    const MeasuredThreads t = measured_threads(M, threads);
    const double at[MEASURED_AXES] = {m, n, k};
    const double padded = measured_padded(M, m, n, t == THREADS_ALL ? M->cores : 1);
    return 2 * padded * k / measured_between(measured_find(M, MEASURED_PRODUCT, t, which), at) /
           measured_share(t, threads);
}

static inline double measured_memory(const Measured* M, int threads, int kernel, double elements) {
    const MeasuredThreads t = measured_threads(M, threads);
    return elements * measured_between(measured_find(M, MEASURED_MEMORY, t, kernel), &elements) /
           measured_share(t, threads);
}

// flops: counted causally.
static inline double measured_attention(const Measured* M, int threads, bool backward, double T, double head,
                                        double flops) {
    const MeasuredThreads t = measured_threads(M, threads);
    const double at[MEASURED_AXES] = {T, head, 0};
    return flops / measured_between(measured_find(M, MEASURED_ATTENTION, t, backward), at) / measured_share(t, threads);
}

static inline double measured_message(const Measured* M, double ranks, double bytes) {
    const double at[MEASURED_AXES] = {ranks, bytes, 0};
    return measured_between(measured_find(M, MEASURED_MESSAGE, 0, 0), at);
}

// The speed of each of k computing ranks while `ranks` - k others wait, relative to "one". More ranks than measured: as
// the most measured, with as many computing per core.
static inline double measured_speed(const Measured* M, double ranks, double k) {
    const MeasuredGrid* g = measured_find(M, MEASURED_SPEED, 0, 0);
    if (!g->value) return fmin(1, M->cores / k);
    int r = 0;
    while (r < g->n[0] - 1 && g->axis[0][r] < ranks) r++;
    double part, shared = fmax(1, k / g->axis[0][r]);
    int i = measured_locate(g->axis[1], g->n[1], fmin(k, g->axis[0][r]), &part);
    const double* row = g->value + (int64_t)r * g->n[1];
    if (part == 0 || row[i + 1] == 0) return row[i] / shared;
    return exp(log(row[i]) * (1 - part) + log(row[i + 1]) * part) / shared;
}

// A collective, by a blocking or a non-blocking call: bytes of the whole vector; kind as PlanKind of
// comm/collectives/plan.h. Cores are shared as the ranks' speed describes; this is the collective's own part, its time
// if each of its ranks had a core.
static inline double measured_collective(const Measured* M, MeasuredCall call, int kind, double ranks, double bytes) {
    const double at[MEASURED_AXES] = {ranks, bytes, 0};
    if (ranks <= 1) return 0;
    return measured_between(measured_find(M, MEASURED_COLLECTIVE, call, kind), at) *
           fmin(1, measured_speed(M, ranks, ranks));
}

// ---- Operations of ops.h ----------------------------------------------------------------------------------------

// The measured kernel of an operation.
static inline int measured_kernel(const Op* op) {
    static const int others[][2] = {{KERNEL_NORM, KERNEL_RMS_NORM},
                                    {KERNEL_RESIDUAL_NORM, KERNEL_RESIDUAL_RMS_NORM},
                                    {KERNEL_NORM_BACKWARD, KERNEL_RMS_NORM_BACKWARD},
                                    {KERNEL_ACTIVATION, KERNEL_SWIGLU},
                                    {KERNEL_ACTIVATION_BACKWARD, KERNEL_SWIGLU_BACKWARD}};
    for (int i = 0; i < 5; i++) {
        const bool other = i < 3 ? !op->layernorm : op->gated;
        if (other && (int)op->kernel == others[i][0]) return others[i][1];
    }
    // Forward and backward in one pass read and write a logit once.
    if (op->kernel == KERNEL_CLASSIFIER && op->bytes / op->elements > 10) return KERNEL_CLASSIFIER_PARTS;
    return (int)op->kernel;
}

static inline double measured_uncorrected(const Measured* m, const Op* op, int threads) {
    switch (op->kind) {
    case OP_PRODUCT: return fmax(1, op->batch) * measured_product(m, threads, op->transposed, op->m, op->n, op->k);
    case OP_MEMORY: return measured_memory(m, threads, measured_kernel(op), op->elements);
    case OP_ATTENTION: return measured_attention(m, threads, op->backward, op->seq, op->head, op->flops);
    case OP_COLLECTIVE:
        return measured_collective(m, op->under >= 0 ? COLLECTIVE_STARTED : COLLECTIVE_WAITED, op->collective,
                                   op->ranks, op->bytes);
    case OP_MESSAGE: return measured_message(m, op->stride * op->ranks, op->bytes);
    }
    return -1;
}

// The correction for the nearest number of ranks that has a trace; 1 if there is none.
static inline double measured_corrected(const Measured* m, int ranks) {
    const int place = measured_place_of_ranks(ranks);
    for (int far = 0; far < CORRECTED; far++) {
        if (place + far < CORRECTED && m->correction[place + far] > 0) return m->correction[place + far];
        if (place - far >= 0 && m->correction[place - far] > 0) return m->correction[place - far];
    }
    return 1;
}

// Seconds of an operation on a rank with `threads` threads while every core has a rank that computes (threads = cores:
// while this one is alone); -1 where nothing was measured. The caller accounts for shared cores (measured_speed). A
// collective's ranks compute, so it is priced as their work. busy: ranks of the run.
static inline double measured_seconds(const Measured* m, const Op* op, int threads, int busy) {
    const double seconds = measured_uncorrected(m, op, threads);
    return isnan(seconds) ? -1 : measured_corrected(m, busy) * seconds;
}

// How `ranks` ranks in p stages share the machine: the threads of each (comm/cpu_affinity.h), and in speed (p + 1) the
// speed of each stage while k of the p compute.
static inline void measured_share_cores(const Measured* m, int* threads, double* speed, int ranks, int p) {
    *threads = (int)max_i64(1, m->cores / ranks);
    speed[0] = 1;
    for (int k = 1; k <= p; k++) speed[k] = ranks == 1 ? 1 : measured_speed(m, ranks, (double)k * ranks / p);
}

// ----------------------------------------------------------------------------------------------------------------
// Cluster files: a measured machine is a cluster of one node, with its lines among those of cluster.h. A GPU may have
// lines of its products, kernels and attention ("one"), which take precedence over data sheets; all else is as without
// them.

// Reads a cluster file that may have lines of a measured machine: then c->measured is m, which must not move, and no
// communication is hidden under computing, as a processor that sends does not compute. m is always to be freed.
static inline bool measured_read_cluster(Cluster* c, Measured* m, const char* path, Error* error) {
    Error why;
    measured_init(m);
    if (!cluster_read(c, path, measured_line, m, error)) return false;
    if (m->points == 0) return true;
    m->cores = c->cores;
    if (!c->cores) { // GPUs: ranks share nothing, and tiles are part of the rates
        for (int i = 0; i < m->points; i++) {
            if (m->point[i].table > MEASURED_ATTENTION)
                return fail(error,
                            "%s: %s: of GPUs products, kernels and attention can be measured; links have lines of "
                            "their own",
                            path, measured_formats[m->point[i].table].name);
        }
        m->cores = INT_MAX;
        if (!m->tile_rows) m->tile_rows = m->tile_columns = 1;
    }
    if (!measured_complete(m, &why)) return fail(error, "%s: %.900s", path, why.text);
    c->measured = m;
    c->measured_seconds = measured_seconds;
    if (c->cores) c->overlap_cost = 1;
    return true;
}

// A cluster and its measured rates, to which the cluster points: they must not be copied.
typedef struct {
    Cluster cluster;
    Measured measured;
} Machines;

// what: a known cluster's name, or a cluster file. x->measured is always to be freed.
static inline bool machines_open(Machines* x, const char* what, Error* error) {
    char names[400];
    measured_init(&x->measured);
    if (cluster_find(&x->cluster, what)) return true;
    if (!strchr(what, '/') && access(what, F_OK) != 0)
        return fail(error, "--cluster %s is neither a file nor one of %s", what, cluster_names(names, sizeof names));
    return measured_read_cluster(&x->cluster, &x->measured, what, error);
}
