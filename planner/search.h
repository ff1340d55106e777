/*
search.h: finds the fastest meshes for n ranks that train a model.

    search                the fastest choices of a Question; values that it fixes are kept
    answer_recommended    the row with the least memory of those about as fast as the first

Theory: a choice is a mesh (t, p, d, v), a schedule, a micro-batch, sequence parallelism, ZeRO and recomputation. For a
trillion parameters on 3,072 GPUs the trainer would accept some thirty thousand. The event simulation of step_sim.h
would take hours for all; but each has a cheap lower bound, step_bound: the work of its busiest stage, and the time
until the pipeline is full. So, best bound first:

    take the choice with the lowest bound among those left
    if its bound is above the time of the worst wanted row: no remaining choice can be better; done
    plan its memory, exactly; if it does not fit, skip it
    simulate it

The result is the same as that of simulating all of them, as a test shows.
*/
#ifndef SEARCH_H
#define SEARCH_H

#include "measured_device.h"
#include "memory.h"
#include "step_sim.h"

// A question. Fixed values are not searched: 0 (ANY for values that count from 0) leaves a value open.
enum { ANY = -1 };

enum { LARGEST_MICRO_BATCH = 1 << 20, MOST_CHUNKS = 1000 }; // limits of the trainer's options (trainer/settings.h)

typedef struct {
    ModelConfig model;
    int T;
    int64_t batch; // sequences in one update
    int ranks;
    const Cluster* cluster;
    const Software* software;
    bool clip, any_memory; // any_memory: also choices that do not fit
    int t, p, d, v, B;
    int schedule, zero, recompute, sequence_parallel;
    int rows; // that are wanted
} Question;

typedef struct {
    StepSetup setup;
    double bound;       // of cost.seconds
    StageMemory memory; // of the largest rank
    StepCost cost;
} Choice;

typedef struct {
    int64_t considered, refused; // choices; those that a rule of the trainer refuses
    int64_t too_large;           // evaluated ones that do not fit into memory
    int64_t simulated;
    double least_memory; // bytes, over choices that do not fit
    Error why;           // one of them was refused
    int n;
    Choice* row; // (n) the fastest, best first
} Answer;

static inline void answer_free(Answer* a) {
    free(a->row);
    memset(a, 0, sizeof *a);
}

// ----------------------------------------------------------------------------------------------------------------
// All choices

// A choice not yet evaluated.
typedef struct {
    Mesh mesh;
    ScheduleKind schedule;
    int B;
    double bound;
} Bounded;

typedef struct {
    const Question* q;
    Answer* answer;
    int room, n;
    Bounded* list;
} Choices;

static inline StepSetup question_setup(const Question* q, const Mesh* mesh, ScheduleKind schedule, int B) {
    StepSetup setup = step_setup(&q->model, mesh, B, q->T, q->batch, q->software, q->cluster);
    setup.schedule = schedule;
    setup.clip = q->clip;
    return setup;
}

// On a machine with shared cores: ranks' threads, and the speed of stages while others compute. speed: (p + 1).
static inline void setup_share_cores(StepSetup* s, double* speed) {
    const Cluster* c = s->cluster;
    const int ranks = mesh_size(&s->mesh), p = s->mesh.p;
    if (!c->cores) return;
    s->busy = ranks;
    if (c->measured) measured_share_cores(c->measured, &s->threads, speed, ranks, p);
    if (!c->measured) {
        speed[0] = 1;
        for (int k = 1; k <= p; k++) speed[k] = fmin(1, (double)c->cores * p / ((double)k * ranks));
    }
    s->speed = ranks > 1 ? speed : NULL;
}

static inline double* speed_room(const Mesh* mesh) {
    return (double*)checked_malloc((size_t)(mesh->p + 1) * sizeof(double), "the speeds of stages");
}

// Stages that compute while others wait can be faster than measured beside others. Reduced by the possible rounding
// error of a sum in another order.
static inline double setup_bound(StepSetup s) {
    double *speed = speed_room(&s.mesh), fastest = 1;
    setup_share_cores(&s, speed);
    if (s.speed) {
        for (int k = 1; k <= s.mesh.p; k++) fastest = fmax(fastest, speed[k]);
    }
    const double bound = step_bound(&s) / fastest * (1 - 1e-12);
    free(speed);
    return bound;
}

// keep: also the tables and the timeline.
static inline StepCost setup_cost(StepSetup s, bool keep) {
    double* speed = speed_room(&s.mesh);
    setup_share_cores(&s, speed);
    StepCost cost = step_cost_with(&s, keep);
    free(speed);
    return cost;
}

// The memory that a rank may use: of a GPU, or its part of a machine without GPUs.
static inline double setup_room(const StepSetup* s) {
    const Cluster* c = s->cluster;
    if (c->device.memory <= 0) return INFINITY;
    return c->cores ? c->device.memory / mesh_size(&s->mesh) : c->device.memory * c->device.memory_fraction;
}

static inline bool is_wanted(int asked, int value) { return asked <= 0 || asked == value; }
static inline bool is_chosen(int asked, int value) { return asked == ANY || asked == value; }

// Adds a choice, if the trainer accepts it.
static inline void choices_add(Choices* x, const StepSetup* setup) {
    Error error;
    x->answer->considered++;
    if (!step_check(setup, &error)) {
        if (x->answer->refused++ == 0) x->answer->why = error;
        return;
    }
    const double bound = setup_bound(*setup);
    if (!isfinite(bound)) {
        fail(&error, "cluster %s does not say what all operations take: its peak, hbm or measured lines are missing",
             setup->cluster->name);
        if (x->answer->refused++ == 0) x->answer->why = error;
        return;
    }
    if (x->n == x->room) x->list = (Bounded*)checked_grow(x->list, &x->room, 1024, sizeof(Bounded), "the choices");
    Bounded* c = &x->list[x->n++];
    c->mesh = setup->mesh;
    c->schedule = setup->schedule;
    c->B = setup->B;
    c->bound = bound;
}

// The remaining choices on a mesh with a schedule and a micro-batch, without those that need more ranks of a kind than
// there are.
static inline void choices_of_memory(Choices* x, StepSetup setup) {
    const Question* q = x->q;
    Mesh* mesh = &setup.mesh;
    for (int sequence = 0; sequence <= (mesh->t > 1); sequence++) {
        for (int zero = 0; zero <= (mesh->d > 1 ? 2 : 0); zero++) {
            for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++) {
                if (!is_chosen(q->sequence_parallel, sequence) || !is_chosen(q->recompute, recompute)) continue;
                if (mesh->d > 1 && !is_chosen(q->zero, zero)) continue;
                mesh->sequence_parallel = sequence;
                mesh->zero = zero;
                mesh->recompute = (Recompute)recompute;
                choices_add(x, &setup);
            }
        }
    }
}

// Micro-batches divide a replica's part of the batch.
static inline void choices_of_batch(Choices* x, StepSetup setup) {
    const int64_t replica = x->q->batch / setup.mesh.d;
    for (int64_t i = 1; i * i <= replica; i++) {
        const int64_t pair[2] = {i, replica / i};
        for (int k = 0; replica % i == 0 && k <= (i < pair[1]); k++) {
            if (pair[k] > LARGEST_MICRO_BATCH || !is_wanted(x->q->B, (int)pair[k])) continue;
            setup.B = (int)pair[k];
            choices_of_memory(x, setup);
        }
    }
}

// A pipeline's schedules. GPipe is 1F1B with more memory, so it is considered only on request.
static inline void choices_of_schedule(Choices* x, StepSetup setup) {
    const Question* q = x->q;
    Mesh* mesh = &setup.mesh;
    const int most = (int)min_i64(MOST_CHUNKS, q->model.L / mesh->p); // chunks of a stage
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        if (!is_chosen(q->schedule, kind) || (q->schedule == ANY && kind == GPIPE)) continue;
        if (mesh->p == 1 && kind != ONE_F_ONE_B) continue;
        const int first = schedule_usual_chunks((ScheduleKind)kind);
        for (int v = first; v <= (schedules[kind].grouped ? most : first); v++) {
            // Chunks of equal length, as otherwise every in-flight micro-batch takes the memory of the longest one.
            if (!is_wanted(q->v, v) || (v > first && q->v <= 0 && q->model.L % (mesh->p * v) != 0)) continue;
            setup.schedule = (ScheduleKind)kind;
            mesh_set_schedule(mesh, setup.schedule, v);
            choices_of_batch(x, setup);
        }
    }
}

// The number of sites of the ranks: the fewest with enough nodes; all if the number of nodes is not known.
static inline int question_sites(const Question* q) {
    const int64_t site = cluster_gpus(q->cluster) / q->cluster->sites;
    return site ? (int)min_i64(q->cluster->sites, (q->ranks + site - 1) / site) : q->cluster->sites;
}

static inline void choices_of_mesh(Choices* x) {
    const Question* q = x->q;
    for (int t = 1; t <= q->ranks; t++) {
        for (int p = 1; q->ranks % t == 0 && p <= q->ranks / t; p++) {
            const int d = q->ranks / t / p;
            if (t * p * d != q->ranks || q->batch % d != 0) continue;
            if (!is_wanted(q->t, t) || !is_wanted(q->p, p) || !is_wanted(q->d, d)) continue;
            Mesh mesh = mesh_of_rank(0, t, p, d);
            mesh.sites = question_sites(q);
            choices_of_schedule(x, question_setup(q, &mesh, ONE_F_ONE_B, 1));
        }
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Best first

static inline int compare_bounds(const void* a, const void* b) {
    const double x = ((const Bounded*)a)->bound, y = ((const Bounded*)b)->bound;
    return x < y ? -1 : x > y;
}

// Rows of the answer differ in mesh or schedule: of equal ones that differ in chunks, micro-batches, ZeRO, ..., only
// the best is shown.
static inline bool same_row(const Choice* a, const Choice* b) {
    const Mesh *x = &a->setup.mesh, *y = &b->setup.mesh;
    return x->t == y->t && x->p == y->p && a->setup.schedule == b->setup.schedule;
}

static inline bool choice_is_better(const Choice* a, const Choice* b) {
    if (a->cost.seconds != b->cost.seconds) return a->cost.seconds < b->cost.seconds;
    return a->memory.bytes < b->memory.bytes;
}

// The row that a choice would have to beat; -1: there is room for one more row.
static inline int answer_rival(const Answer* a, const Choice* c, int rows) {
    for (int i = 0; i < a->n; i++) {
        if (same_row(&a->row[i], c)) return i;
    }
    return a->n < rows ? -1 : a->n - 1;
}

// Inserts a simulated choice in order, in place of its rival.
static inline void answer_insert(Answer* a, const Choice* c, int rival) {
    int at = rival >= 0 ? rival : a->n++;
    for (; at > 0 && choice_is_better(c, &a->row[at - 1]); at--) a->row[at] = a->row[at - 1];
    a->row[at] = *c;
}

// Activations by formula, without scores where fused attention keeps none.
static inline double setup_formula_activations(const StepSetup* s) {
    Mesh mesh = s->mesh;
    if (s->software->flash && mesh.recompute == RECOMPUTE_NONE) mesh.recompute = RECOMPUTE_SELECTIVE;
    return formula_activation_bytes(&s->model, s->B, s->T, &mesh);
}

static inline double setup_formula_optimizer(const StepSetup* s) {
    const double parameters = (double)model_parameters(&s->model) / s->mesh.t / s->mesh.p;
    return formula_optimizer_bytes(parameters, s->software->gradient_bytes == 2, s->mesh.zero > 0, s->mesh.d);
}

// The types of a software's values.
static inline DtypeInfo software_dtype(const Software* software) {
    const DtypeInfo type = {software->value_bytes, software->value_bytes < (int)sizeof(float), 2};
    return type;
}

// The memory of a choice's largest rank: exact for our own trainer, by the papers' formulas for others (step_sim.h).
static inline bool choice_memory(Choice* c, Error* error) {
    const StepSetup* s = &c->setup;
    const Mesh* mesh = &s->mesh;
    const PipelineConfig plan = step_pipeline(s);
    const DtypeInfo type = software_dtype(s->software);
    if (s->software->ours) return plan_memory(&c->memory, &s->model, mesh, s->B, s->T, &plan, type, error);
    memset(&c->memory, 0, sizeof c->memory);
    c->memory.arena[ARENA_OPTIMIZER] = setup_formula_optimizer(s);
    c->memory.arena[ARENA_ACTIVATIONS] = setup_formula_activations(s);
    c->memory.bytes = c->memory.arena[ARENA_OPTIMIZER] + c->memory.arena[ARENA_ACTIVATIONS];
    return true;
}

// Evaluates one choice. Returns false when neither it nor any later one can be in the answer.
static inline bool search_look(Answer* a, const Question* q, const Bounded* bounded) {
    Choice c;
    Error error;
    memset(&c, 0, sizeof c);
    c.setup = question_setup(q, &bounded->mesh, bounded->schedule, bounded->B);
    c.bound = bounded->bound;
    if (a->n == q->rows && c.bound > a->row[q->rows - 1].cost.seconds) return false;
    const int rival = answer_rival(a, &c, q->rows);
    if (rival >= 0 && c.bound > a->row[rival].cost.seconds) return true;
    if (!choice_memory(&c, &error)) {
        a->refused++, a->why = error;
        return true;
    }
    if (c.memory.bytes > setup_room(&c.setup) && !q->any_memory) {
        if (a->too_large++ == 0 || c.memory.bytes < a->least_memory) a->least_memory = c.memory.bytes;
        return true;
    }
    a->simulated++;
    c.cost = setup_cost(c.setup, false);
    if (rival < 0 || choice_is_better(&c, &a->row[rival])) answer_insert(a, &c, rival);
    return true;
}

// The best q->rows choices, by their simulated time; answer->n is 0 if none fits. Refuses questions without any choice;
// the answer is then empty.
static inline bool search(Answer* answer, const Question* q, Error* error) {
    AlgorithmChoice sums;
    memset(answer, 0, sizeof *answer);
    if (*q->cluster->algorithm && !algorithm_parse(q->cluster->algorithm, &sums, error)) return false;
    answer->row = (Choice*)checked_calloc((size_t)q->rows, sizeof(Choice), "the answer");
    Choices all = {q, answer, 0, 0, NULL};
    choices_of_mesh(&all);
    if (all.n > 0) qsort(all.list, (size_t)all.n, sizeof *all.list, compare_bounds);
    for (int i = 0; i < all.n && search_look(answer, q, &all.list[i]); i++) {}
    free(all.list);
    if (answer->n > 0 || answer->too_large > 0) return true;
    const Error why = answer->why;
    const bool refused = answer->refused > 0;
    answer_free(answer);
    if (refused) return fail(error, "no mesh of %d ranks can train this: %.900s", q->ranks, why.text);
    return fail(error, "no mesh of %d ranks has what is settled already and shares --global-batch %lld evenly",
                q->ranks, (long long)q->batch);
}

// The recommended row: the one with the least memory of those within a thousandth of the first row's time.
static inline const Choice* answer_recommended(const Answer* a) {
    const Choice* best = &a->row[0];
    for (int i = 1; i < a->n && a->row[i].cost.seconds <= 1.001 * a->row[0].cost.seconds; i++) {
        if (a->row[i].memory.bytes < best->memory.bytes) best = &a->row[i];
    }
    return best;
}

#endif
