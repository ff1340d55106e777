/*
published.h: the model of time (step_sim.h) beside published runs (published_runs.h).

    published_error      our value and its relative error
    published_judged     whether a row judges; the other half may choose constants
    published_print      all rows, each with its command, the errors of both halves, and the sweeps (./plan --published)

Theory: a model that is fitted to the rows it is judged by looks better than it is. So the rows of each software on each
machine are drawn, by a hash of their settings and a seed that was fixed before any constant was changed, to two halves:
one for choosing constants, one only for judging. Table 1 of Narayanan et al. 2021 is apart: `sustained`,
`overlap_cost`, a tile's overhead and Software.kernels = 0.75 were added because its ten rows were all 15 % too fast,
each with the value of its source; one set of constants serves all ten. Errors are of speed: +5 % is a prediction that
is 5 % too fast.
A sweep asks another question: of the layouts that its authors ran, is the one that we find fastest within 5 % of the
one that was?
*/
#pragma once

#include "flags.h"
#include "published_runs.h"

#include "../util/base.h"
#include "median.h"

static inline ModelConfig published_model(const Published* x) {
    const PublishedShape* y = &x->shape;
    ModelConfig m = model_of(y->arch, y->L, y->C, y->NH, y->NKV, y->F, y->T, y->V);
    m.tied = y->tied;
    return m;
}

// What may be unknown of a run: sequences of a micro-batch, chunks of a stage.
typedef struct {
    int B, v;
} PublishedLayout;

// The run as a step. cluster is filled from its name.
static inline StepSetup published_setup_of(const Published* x, PublishedLayout y, Cluster* cluster) {
    const ModelConfig model = published_model(x);
    Mesh mesh = mesh_of_rank(0, x->t, x->p, x->d);
    if (!cluster_find(cluster, x->source->cluster)) die("published.h: there is no cluster %s", x->source->cluster);
    mesh.v = y.v;
    mesh.zero = x->d > 1 ? x->source->zero : 0;
    mesh.recompute = x->recompute;
    mesh.sequence_parallel = x->sequence_parallel && x->t > 1;
    return step_setup(&model, &mesh, y.B, model.T, x->batch, software_find(x->source->software), cluster);
}

// Whether the layout fits into the memory of a GPU, by the formulas of search.h.
static inline bool published_fits(const StepSetup* s) {
    Choice c = {};
    Error error;
    const Device* d = &s->cluster->device;
    c.setup = *s;
    return choice_memory(&c, INFINITY, &error) && c.memory.bytes <= d->memory * d->memory_fraction;
}

// What was published, and for what was not, the fastest here that fits.
static inline PublishedLayout published_layout(const Published* x) {
    PublishedLayout best = {x->B, x->v};
    double fastest = INFINITY;
    for (int B = x->B ? x->B : 1; B <= (x->B ? x->B : x->batch / x->d); B++) {
        for (int v = x->v ? x->v : 1; v <= (x->v ? x->v : x->shape.L / x->p); v++) {
            const PublishedLayout y = {B, v};
            Cluster cluster;
            if (x->B && x->v) return best;
            if (x->batch / x->d % B != 0 || x->shape.L % (x->p * v) != 0) continue;
            const StepSetup s = published_setup_of(x, y, &cluster);
            if (!published_fits(&s)) continue;
            StepCost cost = step_cost(&s);
            if (cost.seconds < fastest) best = y;
            fastest = fmin(fastest, cost.seconds);
            step_cost_free(&cost);
        }
    }
    if (!best.B || !best.v) die("published.h: no layout of %s, %s fits", x->source->name, x->name);
    return best;
}

static inline StepSetup published_setup(const Published* x, Cluster* cluster) {
    return published_setup_of(x, published_layout(x), cluster);
}

// Our value in the row's unit, from the seconds of a step.
static inline double published_value(const Published* x, const StepSetup* s, double seconds) {
    const double devices = mesh_size(&s->mesh), batch = (double)s->batch, each = 1 / seconds / devices;
    switch (x->source->unit) {
    case UNIT_TFLOPS: return flops_hardware(&s->model, s->T, batch) * each / 1e12;
    case UNIT_TFLOPS_CAUSAL: return flops_of_model(&s->model, s->T, batch, true) * each / 1e12;
    case UNIT_MFU: return 100 * flops_of_model(&s->model, s->T, batch, false) * each / s->cluster->device.peak;
    case UNIT_TOKENS: return batch * s->T * each / 1e3;
    case UNIT_TFLOPS_MODEL: return flops_of_model(&s->model, s->T, batch, false) * each / 1e12;
    case UNIT_SAMPLES: return batch * each;
    default: return seconds;
    }
}

// ours / published - 1.
static inline double published_error(const Published* x, double* ours) {
    Cluster cluster;
    const StepSetup s = published_setup(x, &cluster);
    StepCost cost = step_cost(&s);
    *ours = published_value(x, &s, cost.seconds);
    step_cost_free(&cost);
    return *ours / x->value - 1;
}

// The error of our speed: above 0 if we are too fast.
static inline double published_speed_error(const Published* x, double ours) {
    return x->source->unit == UNIT_SECONDS ? x->value / ours - 1 : ours / x->value - 1;
}

// ---- Choosing and judging ---------------------------------------------------------------------------------------

enum { PUBLISHED_SEED = 29 };
typedef enum { ROWS_CALIBRATION, ROWS_CHOOSING, ROWS_JUDGING, ROWS_OUTSIDE, PUBLISHED_HALVES } PublishedHalf;
static const char* const published_halves[] = {"calibration", "choosing", "judging", "outside"};

// A number drawn for a row by its settings.
static inline uint64_t published_lot(const Published* x) {
    const PublishedShape* y = &x->shape;
    const int64_t key[] = {
        y->L, y->C, y->T, x->t, x->p, x->d, x->v, x->B, x->batch, x->recompute, x->sequence_parallel};
    uint64_t h = PUBLISHED_SEED;
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++) h = checksum_of_word(h, (uint32_t)key[i]);
    return h;
}

// Of the rows of one software on one machine, in the order of their lots, every second one judges, the first included.
static inline bool published_judged(int row) {
    const Published* x = &published_results[row];
    const uint64_t lot = published_lot(x);
    int before = 0;
    for (int i = PUBLISHED_TABLE1; i < PUBLISHED_RESULTS; i++) {
        const Published* y = &published_results[i];
        if (y->source->software != x->source->software && strcmp(y->source->software, x->source->software) != 0)
            continue;
        if (strcmp(y->source->cluster, x->source->cluster) != 0) continue;
        const uint64_t other = published_lot(y);
        before += other < lot || (other == lot && i < row);
    }
    return before % 2 == 0;
}

static inline PublishedHalf published_half(int row) {
    const Published* x = &published_results[row];
    if (row < PUBLISHED_TABLE1) return ROWS_CALIBRATION;
    if (x->source->flags & OUTSIDE) return ROWS_OUTSIDE;
    return published_judged(row) ? ROWS_JUDGING : ROWS_CHOOSING;
}

// Mean absolute, mean signed and largest absolute error.
typedef struct {
    int n;
    double mean, signed_mean, worst;
} PublishedErrors;

static inline void published_count(PublishedErrors* e, double error) {
    e->mean = (e->mean * e->n + fabs(error)) / (e->n + 1);
    e->signed_mean = (e->signed_mean * e->n + error) / (e->n + 1);
    e->n++;
    e->worst = fmax(e->worst, fabs(error));
}

// "megatron": all software of that family.
static inline bool published_is(const PublishedSource* source, const char* software) {
    if (strcmp(software, "megatron") == 0) return strncmp(source->software, "megatron", 8) == 0;
    return strcmp(source->software, software) == 0;
}

// The speed errors of one half, of all rows or those of one software or cluster (NULL: any).
static inline PublishedErrors published_errors(const double* ours, PublishedHalf half, const char* software,
                                               const char* cluster) {
    PublishedErrors e = {0, 0, 0, 0};
    for (int i = 0; i < PUBLISHED_RESULTS; i++) {
        const Published* x = &published_results[i];
        if (published_half(i) != half || (software && !published_is(x->source, software)) ||
            (cluster && strcmp(x->source->cluster, cluster) != 0))
            continue;
        published_count(&e, published_speed_error(x, ours[i]));
    }
    return e;
}

// ---- Sweeps -----------------------------------------------------------------------------------------------------

typedef struct {
    int n;            // layouts
    int best, picked; // rows: the fastest as measured; the fastest as predicted
    double loss;      // how much slower the picked one is, as measured
} PublishedSweep;

// Of the rows from `from` on that have one source.
static inline PublishedSweep published_sweep(const double* ours, int from) {
    PublishedSweep s = {0, from, from, 0};
    for (int i = from; i < PUBLISHED_RESULTS && published_results[i].source == published_results[from].source; i++) {
        s.n++;
        if (published_results[i].value < published_results[s.best].value) s.best = i;
        if (ours[i] < ours[s.picked]) s.picked = i;
    }
    s.loss = published_results[s.picked].value / published_results[s.best].value - 1;
    return s;
}

static inline void published_print_sweeps(FILE* out, const double* ours) {
    fprintf(out, "\nlayouts of published sweeps\n");
    for (int i = 0; i < PUBLISHED_RESULTS; i++) {
        const PublishedSource* source = published_results[i].source;
        if (!(source->flags & SWEEP) || (i && published_results[i - 1].source == source)) continue;
        const PublishedSweep s = published_sweep(ours, i);
        const Published *x = &published_results[s.picked], *best = &published_results[s.best];
        fprintf(out, "    %-50s %2d, picked t%d p%d micro-batch %d: %+.1f %% beside the best, t%d p%d micro-batch %d\n",
                source->name, s.n, x->t, x->p, x->B, 100 * s.loss, best->t, best->p, best->B);
    }
}

// ---- All of it --------------------------------------------------------------------------------------------------

// The name of a model of these sizes; NULL: none.
static inline const char* published_preset(const ModelConfig* m) {
    int n;
    const ModelConfig* presets = model_presets(&n);
    for (int i = 0; i < n; i++) {
        if (model_same(&presets[i], m)) return presets[i].name;
    }
    return NULL;
}

static inline void published_print_row(FILE* out, int row, double ours) {
    const Published* x = &published_results[row];
    Cluster cluster;
    const StepSetup s = published_setup(x, &cluster);
    fprintf(out, "    %-46s %8.4g  published %8.4g %-8s %+6.1f %%  %-11s ", x->name, ours, x->value,
            published_units[x->source->unit], 100 * (ours / x->value - 1), published_halves[published_half(row)]);
    const char* preset = published_preset(&s.model);
    if (preset) fprintf(out, " --model %s", preset);
    if (!preset) flags_print_shape(out, &s.model);
    flags_print_choice(out, &s);
    fprintf(out, "%s\n", s.mesh.zero == x->source->zero ? "" : " --zero 0");
}

static inline void published_print_source(FILE* out, const PublishedSource* source) {
    fprintf(out, "%s (%s): ./plan --cluster %s --software %s --zero %d --any-memory OPTIONS\n", source->name,
            published_marks[source->mark], source->cluster, source->software, source->zero);
}

// Of every 20 judging rows on GPUs of a generation, the speed errors of 18: without the lowest and the highest.
typedef struct {
    int n;
    double low, high;
} PublishedBand;

// Whether row i judges predictions on GPUs of a generation.
static inline bool published_judges(int i, ChipGeneration generation) {
    return published_half(i) == ROWS_JUDGING &&
           cluster_generation(published_results[i].source->cluster) == (int)generation;
}

static inline PublishedBand published_band(const double* ours, ChipGeneration generation) {
    double errors[PUBLISHED_RESULTS];
    PublishedBand band = {0, 0, 0};
    for (int i = 0; i < PUBLISHED_RESULTS; i++) {
        if (published_judges(i, generation)) errors[band.n++] = published_speed_error(&published_results[i], ours[i]);
    }
    if (!band.n) return band;
    qsort(errors, (size_t)band.n, sizeof *errors, compare_doubles);
    band.low = errors[band.n / 20];
    band.high = errors[band.n - 1 - band.n / 20];
    return band;
}

static inline void published_ours(double ours[PUBLISHED_RESULTS]) {
    for (int i = 0; i < PUBLISHED_RESULTS; i++) published_error(&published_results[i], &ours[i]);
}

// Whether rows are of GPUs with this cluster's peak.
static inline bool published_on(const char* name) {
    Cluster c, other;
    for (int i = 0; cluster_find(&c, name) && i < PUBLISHED_RESULTS; i++) {
        if (cluster_find(&other, published_results[i].source->cluster) && other.device.peak == c.device.peak)
            return true;
    }
    return false;
}

// One line about how far a prediction on this cluster can be trusted.
static inline void published_print_band(FILE* out, const char* cluster) {
    const int generation = cluster_generation(cluster);
    const ChipGeneration judged = generation < 0 ? GENERATION_HOPPER : (ChipGeneration)generation;
    double ours[PUBLISHED_RESULTS];
    for (int i = 0; i < PUBLISHED_RESULTS; i++) {
        if (published_judges(i, judged)) published_error(&published_results[i], &ours[i]);
    }
    const PublishedBand band = published_band(ours, judged);
    fprintf(out,
            "          by data sheets; %s%d published runs on %s: 9 of 10 speeds predicted %+.0f to %+.0f %%"
            " (--published)\n",
            generation < 0 || !published_on(cluster) ? "not validated on these; " : "", band.n,
            generation == GENERATION_AMPERE ? "A100s" : "H100s", 100 * band.low, 100 * band.high);
}

static inline void published_print_errors(FILE* out, const double* ours, const char* name, const char* software,
                                          const char* cluster) {
    for (int half = 0; half < PUBLISHED_HALVES; half++) {
        const PublishedErrors e = published_errors(ours, (PublishedHalf)half, software, cluster);
        if (e.n)
            fprintf(out, "    %-20s %-12s %3d runs, error %4.1f %%, signed %+5.1f %%, largest %4.1f %%\n", name,
                    published_halves[half], e.n, 100 * e.mean, 100 * e.signed_mean, 100 * e.worst);
    }
}

static inline void published_print(FILE* out) {
    double ours[PUBLISHED_RESULTS];
    published_ours(ours);
    for (int i = 0; i < PUBLISHED_RESULTS; i++) {
        const PublishedSource* source = published_results[i].source;
        if (i == 0 || source != published_results[i - 1].source) published_print_source(out, source);
        published_print_row(out, i, ours[i]);
    }
    published_print_sweeps(out, ours);
    fprintf(out, "\nerrors of speed; above 0: the prediction is too fast\n");
    published_print_errors(out, ours, "all", NULL, NULL);
    published_print_errors(out, ours, "megatron", "megatron", NULL);
    for (int i = 0; i < SOFTWARES; i++) published_print_errors(out, ours, softwares[i].name, softwares[i].name, NULL);
    for (int i = 0; i < KNOWN_CLUSTERS; i++)
        published_print_errors(out, ours, known_clusters[i].name, NULL, known_clusters[i].name);
}
