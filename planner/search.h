/*
search.h: finds the fastest meshes for n ranks that train a model.

    search                the fastest choices of a Question; values that it fixes are kept
    answer_recommended    the row with the least memory of those about as fast as the first

Theory: a choice is a mesh (t, p, d, v), a schedule, a micro-batch, sequence parallelism, ZeRO, recomputation, and one
of the question's methods (ops.h). For a trillion parameters on 3,072 GPUs the trainer would accept some thirty
thousand. The event simulation of step_sim.h would take hours for all; but each has a cheap lower bound, step_bound: the
work of its busiest stage, and the time until the pipeline is full. So, best bound first:

    leave out what has no room even by memory_floor (memory.h)
    take the choice with the lowest bound among those left
    if its bound is above the time of the worst wanted row: no remaining choice can be better; done
    plan its memory, exactly; if it does not fit, skip it
    simulate it

The result is the same as that of simulating all of them, as a test shows; unless the time limit of the question ends
the search first, nine tenths of it for the bounds: the answer is then the best found so far, and says so.
*/
#pragma once

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
    bool any_memory; // any_memory: also choices that do not fit
    bool whole;      // messages between stages are whole: no scatter/gather
    int t, p, d, v, B;
    int schedule, zero, recompute, sequence_parallel;
    // Methods of which one is chosen (NULL: none); the mesh's sites, where they are settled (0: those of the cluster).
    const StepMethods* methods;
    int methods_count, sites;
    PlanCosts* plan_costs; // search() fills it
    int rows;              // that are wanted
    double seconds;        // that the search may take; 0: any
    FILE* progress;        // a line every few seconds; NULL: none
} Question;

typedef struct {
    StepSetup setup;
    double bound;       // cost.seconds is not less
    StageMemory memory; // the largest rank's
    StepCost cost;
} Choice;

typedef struct {
    int64_t considered, refused; // choices; those that a rule of the trainer refuses
    bool open;                   // why blames a size of the mesh that the question leaves open
    int64_t too_large;           // evaluated ones that do not fit into memory
    int64_t simulated;
    double least_memory; // bytes, over choices that do not fit; only if none does
    bool stopped;        // by the time limit
    Error why;           // one of them was refused
    int n;
    Choice* row; // (n) the fastest, best first
} Answer;

static inline void answer_free(Answer* a) {
    free(a->row);
    memset(a, 0, sizeof *a);
}

// ---- All choices ------------------------------------------------------------------------------------------------

// A choice not yet evaluated.
typedef struct {
    ParallelConfig parallel;
    ScheduleKind schedule;
    int B, methods; // methods: of the question's, by number
    double bound;   // INFINITY: has no room
    double floor;   // its largest rank has at least these bytes
} Bounded;

typedef struct {
    const Question* q;
    Answer* answer;
    int room, n;
    Bounded* list;
    double parameters, begun, said; // of the model; times: the search, its last progress line
    int64_t last;                   // considered choices after which those of this mesh, which is refused, are skipped
} Choices;

// Whether the time is over, of which `part` may have been taken; reports the progress.
static inline bool search_is_over(Choices* x, double part) {
    enum { EVERY = 3 }; // seconds
    const Answer* a = x->answer;
    const double now = seconds_now();
    if (x->q->progress && now >= x->said + EVERY) {
        x->said = now;
        fprintf(x->q->progress, "plan: %.0f s: %lld choices, %lld do not fit, %lld simulated", now - x->begun,
                (long long)a->considered, (long long)a->too_large, (long long)a->simulated);
        if (a->n > 0) fprintf(x->q->progress, "; best step so far %.4g s", a->row[0].cost.seconds);
        fprintf(x->q->progress, "\n");
    }
    const bool over = x->q->seconds > 0 && now > x->begun + part * x->q->seconds;
    x->answer->stopped = x->answer->stopped || over;
    return over;
}

// The sites of the mesh: as asked, or those of the cluster that the ranks are on; 0: neither says any.
static inline int question_sites(const Question* q) {
    const int sites = cluster_sites_of(q->cluster, q->ranks);
    if (q->sites) return q->sites;
    return sites > 1 ? sites : 0;
}

static inline StepSetup question_setup(const Question* q, const ParallelConfig* parallel, ScheduleKind schedule, int B,
                                       int methods) {
    const StepMethods none = step_methods_none();
    StepSetup setup = step_setup(&q->model, parallel, B, q->T, q->batch, q->software, q->cluster);
    setup.schedule = schedule;
    setup.plan_costs = q->plan_costs;
    step_set_methods(&setup, q->methods ? &q->methods[methods] : &none, question_sites(q));
    return setup;
}

// On a machine with shared cores: ranks' threads, and the speed of stages while others compute. speed: (p + 1).
static inline void setup_share_cores(StepSetup* s, double* speed) {
    const Cluster* c = s->cluster;
    const int ranks = mesh_size(&s->parallel.mesh), p = s->parallel.mesh.p;
    if (!c->cores) return;
    s->threads = (int)max_i64(1, c->cores / ranks);
    speed[0] = 1;
    for (int k = 1; k <= p; k++) speed[k] = fmin(1, (double)c->cores * p / ((double)k * ranks));
    s->speed = ranks > 1 ? speed : NULL;
}

static inline double* speed_room(const Mesh* mesh) {
    return (double*)checked_malloc((size_t)(mesh->p + 1) * sizeof(double), "the speeds of stages");
}

// Reduced by the possible rounding error of a sum in another order.
static inline double setup_bound(StepSetup s) {
    double* speed = speed_room(&s.parallel.mesh);
    setup_share_cores(&s, speed);
    const double bound = step_bound(&s) * (1 - 1e-12);
    free(speed);
    return bound;
}

// keep: also the tables and the timeline.
static inline StepCost setup_cost(StepSetup s, bool keep) {
    double* speed = speed_room(&s.parallel.mesh);
    setup_share_cores(&s, speed);
    StepCost cost = step_cost_with(&s, keep);
    free(speed);
    return cost;
}

// The memory that a rank may use: of a GPU, or its part of a machine without GPUs.
static inline double setup_room(const StepSetup* s) {
    const Cluster* c = s->cluster;
    if (c->device.memory <= 0) return INFINITY;
    return c->cores ? c->device.memory / mesh_size(&s->parallel.mesh) : c->device.memory * c->device.memory_fraction;
}

// The types of a software's values.
static inline DtypeInfo software_dtype(const Software* software) {
    const DtypeInfo type = {software->value_bytes, software->value_bytes < (int)sizeof(float), 2};
    return type;
}

// Parameters, gradients and optimizer by formula; parameters: of the model.
static inline double setup_formula_state(const StepSetup* s, double parameters) {
    const double divided = s->software->divided / (s->parallel.zero ? (double)s->parallel.mesh.d : 1);
    return parameters / s->parallel.mesh.t / s->parallel.mesh.p * (s->software->kept + divided);
}

// A lower bound of the bytes of a choice's largest rank; parameters: of the model.
static inline double setup_floor(const StepSetup* s, double parameters) {
    if (s->software->ours) return memory_floor(parameters, &s->parallel, software_dtype(s->software));
    return setup_formula_state(s, parameters);
}

static inline bool is_wanted(int asked, int value) { return asked <= 0 || asked == value; }
static inline bool is_chosen(int asked, int value) { return asked == ANY || asked == value; }

// Keeps the reason of a refusal. One that blames a size of the mesh which the question leaves open says little: any
// other one is better.
static inline void answer_refuse(Answer* a, const Question* q, const Error* error) {
    if (a->refused++ > 0 && !a->open) return;
    a->open = (q->t <= 0 && strncmp(error->text, "--tp ", 5) == 0) ||
              (q->p <= 0 && strncmp(error->text, "--pp ", 5) == 0) || (q->v <= 0 && strstr(error->text, " --vpp "));
    if (a->refused == 1 || !a->open) a->why = *error;
}

// Adds a choice, if the trainer accepts it.
static inline void choices_add(Choices* x, const StepSetup* setup, int methods) {
    Error error;
    if (search_is_over(x, 0.9)) return;
    x->answer->considered++;
    if (!step_check(setup, &error)) {
        answer_refuse(x->answer, x->q, &error);
        return;
    }
    const double floor = setup_floor(setup, x->parameters);
    const bool fits = x->q->any_memory || floor <= setup_room(setup);
    const double bound = fits ? setup_bound(*setup) : INFINITY;
    if (!fits) x->answer->too_large++;
    if (fits && !isfinite(bound)) {
        fail(&error, "cluster %s does not say what all operations take: its peak or hbm is missing",
             setup->cluster->name);
        answer_refuse(x->answer, x->q, &error);
        return;
    }
    if (x->n == x->room) x->list = (Bounded*)checked_grow(x->list, &x->room, 1024, sizeof(Bounded), "the choices");
    Bounded* c = &x->list[x->n++];
    c->parallel = setup->parallel;
    c->schedule = setup->schedule;
    c->B = setup->B;
    c->methods = methods;
    c->bound = bound;
    c->floor = floor;
}

// One for each of the question's methods.
static inline void choices_of_methods(Choices* x, const StepSetup* setup) {
    const Question* q = x->q;
    for (int i = 0; i < (q->methods ? q->methods_count : 1); i++) {
        const StepSetup with = question_setup(q, &setup->parallel, setup->schedule, setup->B, i);
        choices_add(x, &with, i);
    }
}

// The remaining choices on a mesh with a schedule and a micro-batch, without those that need more ranks of a kind than
// there are.
static inline void choices_of_memory(Choices* x, StepSetup setup) {
    const Question* q = x->q;
    ParallelConfig* parallel = &setup.parallel;
    for (int sequence = 0; sequence <= (parallel->mesh.t > 1); sequence++) {
        for (int zero = 0; zero <= (parallel->mesh.d > 1 ? 2 : 0); zero++) {
            for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++) {
                if (!is_chosen(q->sequence_parallel, sequence) || !is_chosen(q->recompute, recompute)) continue;
                if (!is_chosen(q->zero, zero) || x->answer->considered > x->last) continue;
                parallel->sequence_parallel = sequence;
                parallel->zero = zero;
                parallel->recompute = (Recompute)recompute;
                choices_of_methods(x, &setup);
            }
        }
    }
}

// Micro-batches divide a replica's part of the batch.
static inline void choices_of_batch(Choices* x, StepSetup setup) {
    const int64_t replica = x->q->batch / setup.parallel.mesh.d;
    for (int64_t i = 1; i * i <= replica; i++) {
        const int64_t pair[2] = {i, replica / i};
        for (int k = 0; replica % i == 0 && k <= (i < pair[1]); k++) {
            if (pair[k] > LARGEST_MICRO_BATCH || !is_wanted(x->q->B, (int)pair[k])) continue;
            if (x->answer->considered > x->last) return;
            setup.B = (int)pair[k];
            choices_of_memory(x, setup);
        }
    }
}

// Whether the chunks have equally many blocks; ends: 2 if embedding and head count as one each (parallel_count_ends).
static inline bool chunks_are_even(int L, int ends, int chunks) { return L % chunks == 0 || (L + ends) % chunks == 0; }

// A pipeline's schedules. GPipe is 1F1B with more memory, so it is considered only on request.
static inline void choices_of_schedule(Choices* x, StepSetup setup) {
    const Question* q = x->q;
    ParallelConfig* parallel = &setup.parallel;
    const int ends = q->software->ours ? 0 : 2;                                         // parallel_count_ends
    const int most = (int)min_i64(MOST_CHUNKS, (q->model.L + ends) / parallel->mesh.p); // chunks of a stage
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        if (!is_chosen(q->schedule, kind) || (q->schedule == ANY && kind == GPIPE)) continue;
        if (parallel->mesh.p == 1 && kind != ONE_F_ONE_B) continue;
        const int first = schedule_usual_chunks((ScheduleKind)kind);
        for (int v = first; v <= (schedules[kind].grouped ? most : first); v++) {
            // Chunks of equal length, as otherwise every in-flight micro-batch takes the memory of the longest one.
            if (!is_wanted(q->v, v) ||
                (v > first && q->v <= 0 && !chunks_are_even(q->model.L, ends, parallel->mesh.p * v)))
                continue;
            setup.schedule = (ScheduleKind)kind;
            parallel_set_schedule(parallel, setup.schedule, v);
            choices_of_batch(x, setup);
        }
    }
}

// The divisors of n, in ascending order; returns how many. No int has more than DIVISORS.
enum { DIVISORS = 1536 };
static inline int divisors(int n, int list[DIVISORS]) {
    int count = 0, low;
    for (int i = 1; (int64_t)i * i <= n; i++) {
        if (n % i == 0) list[count++] = i;
    }
    low = count;
    for (int i = low - 1; i >= 0; i--) {
        if (n / list[i] > list[low - 1]) list[count++] = n / list[i];
    }
    return count;
}

// Meshes (t, p, d) of all ranks.
static inline void choices_of_mesh(Choices* x) {
    const Question* q = x->q;
    int list[DIVISORS];
    const int n = divisors(q->ranks, list);
    for (int i = 0; i < n * n; i++) {
        const int t = list[i / n], p = list[i % n], d = q->ranks / t / p;
        Error error;
        if (q->ranks / t % p != 0 || q->batch % d != 0) continue;
        if (!is_wanted(q->t, t) || !is_wanted(q->p, p) || !is_wanted(q->d, d)) continue;
        ParallelConfig parallel = parallel_of_rank(0, t, p, d);
        parallel.scatter = !q->whole;
        if (!q->software->ours) parallel_count_ends(&parallel, q->model.L);
        x->last = parallel_check(&parallel, &q->model, q->T, &error) ? INT64_MAX : x->answer->considered;
        choices_of_schedule(x, question_setup(q, &parallel, ONE_F_ONE_B, 1, 0));
    }
}

// ---- Best first -------------------------------------------------------------------------------------------------

static inline int compare_bounds(const void* a, const void* b) {
    const double x = ((const Bounded*)a)->bound, y = ((const Bounded*)b)->bound;
    return x < y ? -1 : x > y;
}

// Rows of the answer differ in mesh or schedule: of equal ones that differ in chunks, micro-batches, ZeRO, ..., only
// the best is shown.
static inline bool same_row(const Choice* a, const Choice* b) {
    const Mesh *x = &a->setup.parallel.mesh, *y = &b->setup.parallel.mesh;
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

static inline double setup_formula_activations(const StepSetup* s) {
    const PipelineConfig plan = step_pipeline(s);
    return formula_activation_bytes(&s->model, s->B, s->T, &s->parallel, &plan, s->software->flash);
}

// The memory of a choice's largest rank: exact for our own trainer, by the papers' formulas for others (step_sim.h).
// Above room: of a rank that has none.
static inline bool choice_memory(Choice* c, double room, Error* error) {
    const StepSetup* s = &c->setup;
    const ParallelConfig* parallel = &s->parallel;
    const PipelineConfig plan = step_pipeline(s);
    const DtypeInfo type = software_dtype(s->software);
    if (s->software->ours)
        return plan_memory(&c->memory, room, &s->model, parallel, s->B, s->T, &plan, &s->methods.async, type, error);
    memset(&c->memory, 0, sizeof c->memory);
    c->memory.arena[ARENA_OPTIMIZER] = setup_formula_state(s, (double)model_parameters(&s->model));
    c->memory.arena[ARENA_ACTIVATIONS] = setup_formula_activations(s);
    c->memory.bytes = c->memory.arena[ARENA_OPTIMIZER] + c->memory.arena[ARENA_ACTIVATIONS];
    return true;
}

static inline Choice bounded_choice(const Question* q, const Bounded* bounded) {
    Choice c = {};
    c.setup = question_setup(q, &bounded->parallel, bounded->schedule, bounded->B, bounded->methods);
    c.bound = bounded->bound;
    return c;
}

// Evaluates one choice. Returns false when neither it nor any later one can be in the answer.
static inline bool search_look(Choices* x, Bounded* bounded) {
    Answer* a = x->answer;
    const Question* q = x->q;
    Choice c = bounded_choice(q, bounded);
    Error error;
    if (c.bound == INFINITY || search_is_over(x, 1)) return false;
    if (a->n == q->rows && c.bound > a->row[q->rows - 1].cost.seconds) return false;
    const int rival = answer_rival(a, &c, q->rows);
    if (rival >= 0 && c.bound > a->row[rival].cost.seconds) return true;
    const double room = q->any_memory ? INFINITY : setup_room(&c.setup);
    if (!choice_memory(&c, room, &error)) {
        a->refused++, a->why = error, a->open = false;
        bounded->floor = INFINITY;
        return true;
    }
    if (c.memory.bytes > room) {
        a->too_large++;
        bounded->floor = c.memory.bytes;
        return true;
    }
    a->simulated++;
    c.cost = setup_cost(c.setup, false);
    if (rival < 0 || choice_is_better(&c, &a->row[rival])) answer_insert(a, &c, rival);
    return true;
}

static inline int compare_floors(const void* a, const void* b) {
    const double x = ((const Bounded*)a)->floor, y = ((const Bounded*)b)->floor;
    return (x > y) - (x < y);
}

// Where nothing fits: the bytes of the choice that needs the least, lowest floor first. Choices without a stage that
// could be planned are refused after all.
static inline void search_least_memory(Choices* x) {
    Answer* a = x->answer;
    a->least_memory = INFINITY;
    qsort(x->list, (size_t)x->n, sizeof *x->list, compare_floors);
    for (int i = 0; i < x->n && x->list[i].floor < a->least_memory; i++) {
        Choice c = bounded_choice(x->q, &x->list[i]);
        Error error;
        if (search_is_over(x, 1)) return;
        if (choice_memory(&c, a->least_memory, &error)) {
            a->least_memory = fmin(a->least_memory, c.memory.bytes);
        } else {
            a->too_large--;
            a->refused++, a->why = error, a->open = false;
        }
    }
}

// Sizes of the mesh that are settled, as "--tp 2 x --pp 4", and their product.
static inline int64_t question_settled(const Question* q, char* text, size_t size) {
    const struct {
        const char* name;
        int value;
    } sizes[] = {{"tp", q->t}, {"pp", q->p}, {"dp", q->d}};
    int64_t product = 1;
    text[0] = 0;
    for (int i = 0; i < 3; i++) {
        if (sizes[i].value <= 0) continue;
        append_text(text, size, "%s--%s %d", *text ? " x " : "", sizes[i].name, sizes[i].value);
        product *= sizes[i].value;
    }
    return product;
}

// Why a question has no choice at all: the option at fault.
static inline bool question_fault(const Question* q, Error* error) {
    char sizes[96];
    const int64_t settled = question_settled(q, sizes, sizeof sizes);
    const bool all = q->t > 0 && q->p > 0 && q->d > 0;
    const int open = (int)max_i64(1, q->ranks / settled); // the most that an open size can be
    const int t = q->t > 0 ? q->t : open, p = q->p > 0 ? q->p : open, d = q->d > 0 ? q->d : open;
    const int64_t replica = q->batch / (q->d > 0 || (q->t > 0 && q->p > 0) ? d : 1); // sequences, at most
    const char* schedule = q->schedule == ANY ? "" : schedule_name((ScheduleKind)q->schedule);
    if (q->ranks % settled || (all && settled != q->ranks))
        return fail(error, "%s %s --gpus %d", sizes, all ? "is not" : "does not divide", q->ranks);
    if (replica < q->batch && q->batch % d)
        return fail(error, "--global-batch %lld is not a multiple of --dp %d", (long long)q->batch, d);
    if (q->B > 0 && replica % q->B)
        return fail(error, "--micro-batch %d does not divide the %lld sequences of a replica", q->B,
                    (long long)replica);
    if (q->zero > 0 && d == 1) return fail(error, "--zero %d shards over replicas: it needs --dp 2 or more", q->zero);
    if (q->sequence_parallel == 1 && t == 1) return fail(error, "--sequence-parallel yes needs --tp 2 or more");
    if (*schedule && q->schedule != ONE_F_ONE_B && p == 1)
        return fail(error, "--schedule %s needs --pp 2 or more", schedule);
    if (q->v > 0 && *schedule && !schedules[q->schedule].grouped)
        return fail(error, "--vpp %d: --schedule %s has %d", q->v, schedule, schedules[q->schedule].chunks);
    if (q->v > 0)
        return fail(error, "--vpp %d needs --pp 2 or more, and a block for each chunk: --layers %d are too few", q->v,
                    q->model.L);
    return fail(error, "--global-batch %lld does not go with what is settled", (long long)q->batch);
}

static inline bool is_prime(int n) {
    for (int i = 2; (int64_t)i * i <= n; i++) {
        if (n % i == 0) return false;
    }
    return n > 1;
}

// The best q->rows choices, by their simulated time; answer->n is 0 if none fits. Refuses questions without any choice;
// the answer is then empty.
static inline bool search(Answer* answer, const Question* q, Error* error) {
    memset(answer, 0, sizeof *answer);
    if (*q->cluster->algorithm && !algorithm_find(q->cluster->algorithm, error)) return false;
    answer->row = (Choice*)checked_calloc((size_t)q->rows, sizeof(Choice), "the answer");
    const double begun = seconds_now();
    PlanCosts plans = {};
    Question own = *q;
    own.plan_costs = &plans;
    Choices all = {&own, answer, 0, 0, NULL, (double)model_parameters(&q->model), begun, begun, 0};
    choices_of_mesh(&all);

    if (all.n > 0) qsort(all.list, (size_t)all.n, sizeof *all.list, compare_bounds);
    for (int i = 0; i < all.n && search_look(&all, &all.list[i]); i++) {}
    if (answer->n == 0 && all.n > 0 && !answer->stopped) search_least_memory(&all);
    free(all.list);
    for (int i = 0; i < answer->n; i++) answer->row[i].setup.plan_costs = NULL;
    for (int i = 0; i < 2; i++) free(plans.kept[i]);
    if (answer->n > 0 || answer->too_large > 0 || answer->stopped) return true;
    const Error why = answer->why;
    const bool refused = answer->refused > 0, open = answer->open;
    answer_free(answer);
    Error fault;
    if (!refused) question_fault(q, &fault);
    if (!refused) return fail(error, "no mesh of %d ranks: %.900s", q->ranks, fault.text);
    if (open)
        return fail(error,
                    "no mesh of %d ranks can train this: --gpus %d%s cannot be divided into --tp, --pp and --dp that "
                    "suit --heads %d, --layers %d and --global-batch %lld (%.500s)",
                    q->ranks, q->ranks, is_prime(q->ranks) ? ", a prime number," : "", q->model.NH, q->model.L,
                    (long long)q->batch, why.text);
    return fail(error, "no mesh of %d ranks can train this: %.900s", q->ranks, why.text);
}

// The recommended row: the one with the least memory of those within a thousandth of the first row's time.
static inline const Choice* answer_recommended(const Answer* a) {
    const Choice* best = &a->row[0];
    for (int i = 1; i < a->n && a->row[i].cost.seconds <= 1.001 * a->row[0].cost.seconds; i++) {
        if (a->row[i].memory.bytes < best->memory.bytes) best = &a->row[i];
    }
    return best;
}
