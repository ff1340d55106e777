/*
test_planner_search.c: planner/search.h and flags.h. The search beside brute force: every choice that the trainer
accepts is simulated and planned here, without bounds, and the best of each row has to be what the search has found.
Then what is asked and refused, and ./plan --flags: the trainer has to make the same mesh of its
options.
*/
#include "../../../planner/flags.h"
#include "../../../trainer/derived.h"
#include "../../../parallel/stage.h"
#include "planner_fixture.h"

static bool chance(int one_in) { return draw(1, one_in) == 1; }

static ModelConfig small_model(void) {
    static const int heads[] = {2, 4, 4, 6, 8};
    const bool llama = chance(2);
    const int NH = heads[draw(0, 4)], C = 16 * NH * draw(1, 3), L = draw(1, 8);
    const ModelConfig m =
        model_of(llama ? ARCH_LLAMA : ARCH_GPT2, L, C, NH, llama && chance(2) ? NH / 2 : NH, 4 * C, 64, 256);
    return m;
}

static Question question(const ModelConfig* model, int ranks, int64_t batch, const Cluster* cluster,
                         const char* software) {
    Question q = {};
    q.model = *model;
    q.T = model->T;
    q.batch = batch;
    q.ranks = ranks;
    q.cluster = cluster;
    q.software = software_find(software);
    q.rows = 10;
    q.schedule = q.zero = q.recompute = q.sequence_parallel = ANY;
    return q;
}

// ---- Options that a question leaves open ------------------------------------------------------------------------

// Their values that mean so; from which to which one of them is drawn, d up to all ranks; of t and p the power of two.
static const struct {
    const char* name;
    size_t at;
    int open, low, high;
} open_options[] = {
    {"t", offsetof(Question, t), 0, 0, 2},
    {"p", offsetof(Question, p), 0, 0, 2},
    {"d", offsetof(Question, d), 0, 1, 0},
    {"v", offsetof(Question, v), 0, 1, 3},
    {"B", offsetof(Question, B), 0, 1, 4},
    {"schedule", offsetof(Question, schedule), ANY, 0, SCHEDULE_KINDS - 1},
    {"zero", offsetof(Question, zero), ANY, 0, 2},
    {"recompute", offsetof(Question, recompute), ANY, 0, 2},
    {"sequence", offsetof(Question, sequence_parallel), ANY, 0, 1},
};
enum { OPEN_OPTIONS = sizeof open_options / sizeof *open_options };

static int* option_of(const Question* q, int i) { return (int*)(void*)((char*)q + open_options[i].at); }

static bool open_or(int asked, int open, int value) { return asked == open || asked == value; }

// With some chance each option is settled, to what may or may not be possible.
static void settle_some(Question* q, int one_in) {
    for (int i = 0; i < OPEN_OPTIONS; i++) {
        const int high = open_options[i].high ? open_options[i].high : q->ranks,
                  drawn = draw(open_options[i].low, high);
        if (chance(one_in)) *option_of(q, i) = i < 2 ? 1 << drawn : drawn;
    }
}

// Options and values, "t 2 schedule zb-v".
static void settle(Question* q, const char* text) {
    char name[16], value[16];
    for (int n; sscanf(text, "%15s %15s%n", name, value, &n) == 2; text += n) {
        int number = atoi(value);
        for (int kind = 0; kind < SCHEDULE_KINDS; kind++)
            number = strcmp(value, schedule_name((ScheduleKind)kind)) == 0 ? kind : number;
        for (int i = 0; i < OPEN_OPTIONS; i++) {
            if (strcmp(name, open_options[i].name) == 0) *option_of(q, i) = number;
        }
    }
}

static bool is_settled(const Question* q, const Choice* c) {
    const ParallelConfig* m = &c->setup.parallel;
    const int is[OPEN_OPTIONS] = {m->mesh.t, m->mesh.p,         m->mesh.d,
                                  m->v,      c->setup.B,        (int)c->setup.schedule,
                                  m->zero,   (int)m->recompute, m->sequence_parallel};
    bool ok = true;
    for (int i = 0; i < OPEN_OPTIONS; i++) ok = ok && open_or(*option_of(q, i), open_options[i].open, is[i]);
    return ok;
}

// ---- Brute force ------------------------------------------------------------------------------------------------

typedef struct {
    ParallelConfig parallel;
    ScheduleKind schedule;
    double seconds, bytes;
    bool tie; // another choice of the row takes as long, up to rounding
} Row;

// Compilers may round the same sum differently where it stands twice.
static bool same_number(double a, double b) { return relative(a, b) < 1e-12; }

typedef struct {
    const Question* q;
    int64_t legal, fitting;
    double least;        // bytes of a legal choice
    double fastest;      // seconds of a legal choice that does not fit
    double bound_excess; // largest bound / seconds - 1
    double floor_excess; // largest floor / bytes - 1
    int n;
    Row row[200];
} Brute;

// Seconds, by step_sim.h alone.
static double brute_seconds(StepSetup s) {
    const Cluster* c = s.cluster;
    const int ranks = mesh_size(&s.parallel.mesh), p = s.parallel.mesh.p;
    double* speed = (double*)checked_calloc((size_t)p + 1, sizeof(double), "speeds");
    const int stages = c->cores ? p : 0; // each computing rank has one core at most
    for (int k = 1; k <= stages; k++) speed[k] = fmin(1, c->cores / ((double)k * (ranks / p)));
    if (c->cores > ranks) s.threads = c->cores / ranks;
    s.speed = c->cores && ranks > 1 ? speed : NULL;
    StepCost cost = step_cost(&s);
    free(speed);
    return cost.seconds;
}

// Bytes that a rank may have.
static double brute_room(const Question* q) {
    const Device* d = &q->cluster->device;
    return q->cluster->cores ? d->memory / q->ranks : d->memory * d->memory_fraction;
}

// Bytes of the largest rank; infinite where there is no such stage.
static double brute_bytes(const StepSetup* s) {
    const ParallelConfig* m = &s->parallel;
    const PipelineConfig plan = {s->schedule,  m->mesh.p,    m->v, (int)(s->batch / m->mesh.d / s->B),
                                 m->zero == 2, s->model.tied};
    const DtypeInfo type = {s->software->value_bytes, s->software->value_bytes < 4, 2};
    const double parameters = (double)model_parameters(&s->model) / m->mesh.t / m->mesh.p, d = m->zero ? m->mesh.d : 1;
    StageMemory memory;
    Error error;
    if (s->software->ours)
        return plan_memory(&memory, INFINITY, &s->model, m, s->B, s->T, &plan, &s->methods.async, type, &error)
                   ? memory.bytes
                   : INFINITY;
    return parameters * (s->software->kept + s->software->divided / d) +
           formula_activation_bytes(&s->model, s->B, s->T, m, &plan, s->software->flash);
}

static void brute_keep(Brute* x, const ParallelConfig* m, ScheduleKind schedule, double seconds, double bytes) {
    int i = 0;
    for (; i < x->n; i++) {
        const Mesh* o = &x->row[i].parallel.mesh;
        if (o->t == m->mesh.t && o->p == m->mesh.p && x->row[i].schedule == schedule) break;
    }
    if (i == 200) die("test_planner_search: more than 200 rows");
    const Row now = {*m, schedule, seconds, bytes, false};
    Row* row = &x->row[i];
    if (i == x->n) {
        x->n++, *row = now;
    } else if (same_number(seconds, row->seconds)) {
        row->tie = true;
    } else if (seconds < row->seconds) {
        *row = now;
    }
}

// methods: of the question's, by number; late ones without sites have each replica as one.
static void brute_look(Brute* x, const ParallelConfig* parallel, ScheduleKind schedule, int B, int methods) {
    const Question* q = x->q;
    StepSetup s = step_setup(&q->model, parallel, B, q->T, q->batch, q->software, q->cluster);
    Error error;
    int sites = q->sites;
    if (!sites && q->cluster->sites > 1) sites = q->cluster->sites;
    s.schedule = schedule;
    s.parallel.mesh.sites = sites ? sites : 1;
    if (q->methods) step_set_methods(&s, &q->methods[methods], sites);
    if (!step_check(&s, &error)) return;
    const double bytes = brute_bytes(&s), room = brute_room(q);
    if (bytes == INFINITY) return;
    const double seconds = brute_seconds(s);
    x->legal++;
    x->least = fmin(x->least, bytes);
    x->bound_excess = fmax(x->bound_excess, setup_bound(s) / seconds - 1);
    x->floor_excess = fmax(x->floor_excess, setup_floor(&s, (double)model_parameters(&s.model)) / bytes - 1);
    if (room > 0 && bytes > room) {
        x->fastest = fmin(x->fastest, seconds);
        return;
    }
    x->fitting++;
    brute_keep(x, &s.parallel, schedule, seconds, bytes);
}

// Chunks that are looked at: any number that divides a stage's blocks (for software of others with embedding and head
// as two more), and the usual one; a given one in any case.
static bool brute_chunks(const Question* q, int kind, int p, int v) {
    const int usual = schedules[kind].chunks;
    if (p == 1) return kind == ONE_F_ONE_B && v == 1 && open_or(q->v, 0, 1);
    if (!schedules[kind].grouped && v != usual) return false;
    const bool even = q->model.L % (p * v) == 0 || (!q->software->ours && (q->model.L + 2) % (p * v) == 0);
    return q->v ? q->v == v : v == usual || even;
}

static void brute_mesh(Brute* x, ParallelConfig parallel, ScheduleKind schedule) {
    const Question* q = x->q;
    for (int64_t i = 0; i < q->batch * 18; i++) {
        const int B = (int)(i / 18) + 1, sequence = (int)(i % 2), zero = (int)(i / 2 % 3), again = (int)(i / 6 % 3);
        if (!open_or(q->B, 0, B) || !open_or(q->recompute, ANY, again)) continue;
        if (!open_or(q->sequence_parallel, ANY, sequence) || (sequence && parallel.mesh.t == 1)) continue;
        if (!open_or(q->zero, ANY, zero) || (parallel.mesh.d == 1 && zero > 0)) continue;
        if (q->batch % ((int64_t)B * parallel.mesh.d)) continue;
        parallel.sequence_parallel = sequence;
        parallel.zero = zero;
        parallel.recompute = (Recompute)again;
        for (int k = 0; k < (q->methods ? q->methods_count : 1); k++) brute_look(x, &parallel, schedule, B, k);
    }
}

static int compare_rows(const void* a, const void* b) {
    const Row *x = (const Row*)a, *y = (const Row*)b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static void brute_force(Brute* x, const Question* q) {
    memset(x, 0, sizeof *x);
    x->q = q;
    x->least = x->fastest = INFINITY;
    x->bound_excess = x->floor_excess = -1;
    for (int t = 1; t <= q->ranks; t++) {
        for (int p = 1; p <= q->ranks; p++) {
            const int d = q->ranks / t / p;
            if (t * p * d != q->ranks || !open_or(q->t, 0, t) || !open_or(q->p, 0, p) || !open_or(q->d, 0, d)) continue;
            for (int i = 0; i < SCHEDULE_KINDS * 8; i++) {
                const int kind = i / 8, v = i % 8 + 1;
                if (q->schedule == ANY ? kind == GPIPE : kind != q->schedule) continue;
                if (!brute_chunks(q, kind, p, v)) continue;
                ParallelConfig parallel = parallel_of_rank(0, t, p, d);
                parallel_set_schedule(&parallel, (ScheduleKind)kind, v);
                brute_mesh(x, parallel, (ScheduleKind)kind);
            }
        }
    }
    qsort(x->row, (size_t)x->n, sizeof *x->row, compare_rows);
}

// ---- Questions --------------------------------------------------------------------------------------------------

// Some methods to choose from, on one site or two; methods: room for four.
static void ask_methods(Question* q, Cluster* cluster, StepMethods* methods) {
    static const char* const lines[] = {"",
                                        "--dp-mode dc-s3gd",
                                        "--dp-mode diloco --local-steps 4",
                                        "--caat-fraction 0.5 --caat-grad-dtype same",
                                        "--caat-fraction 0.25 --dp-mode dc-s3gd",
                                        "--tp-comm-overlap",
                                        "--tp-comm-overlap --caat-fraction 0.5",
                                        "--allreduce ring"};
    q->methods = methods;
    q->methods_count = draw(1, 4);
    for (int i = 0; i < q->methods_count; i++) methods[i] = methods_named(lines[draw(0, 7)]);
    if (!chance(3)) return;
    cluster->sites = 2;
    cluster->site_rate = 1e8 * draw(1, 100);
    cluster->site_delay = 1e-4;
}

// Properties of every answer: rows are legal, fit, are sorted and distinct, and their costs are those of the step.
static bool answer_is_sound(const Question* q, const Answer* a) {
    bool ok = a->n <= q->rows;
    for (int i = 0; i < a->n; i++) {
        const Choice* c = &a->row[i];
        const StepSetup* s = &c->setup;
        const double room = brute_room(q);
        Error error;
        ok = ok && step_check(s, &error) && is_settled(q, c) && mesh_size(&s->parallel.mesh) == q->ranks;
        ok = ok && s->batch == q->batch && s->T == q->T && s->software == q->software;
        ok = ok && (room <= 0 || c->memory.bytes <= room) && same_number(c->memory.bytes, brute_bytes(s));
        ok = ok && same_number(c->cost.seconds, brute_seconds(*s)) && c->bound <= c->cost.seconds;
        ok = ok && (i == 0 || !choice_is_better(c, c - 1));
        for (int k = 0; k < i; k++) ok = ok && !same_row(c, &a->row[k]);
    }
    return ok;
}

static bool same_answer(const Answer* a, const Brute* x, int rows) {
    const int n = x->n < rows ? x->n : rows;
    bool same = a->n == n && (n > 0 || x->legal == 0 || same_number(a->least_memory, x->least));
    for (int i = 0; i < n && same; i++) {
        const Row* r = &x->row[i];
        const bool tie = r->tie || (i > 0 && same_number(r->seconds, r[-1].seconds)) ||
                         (i + 1 < x->n && same_number(r->seconds, r[1].seconds));
        same =
            same_number(a->row[i].cost.seconds, r->seconds) && (tie || same_number(a->row[i].memory.bytes, r->bytes));
    }
    return same;
}

typedef struct {
    int questions, answers, nothing, refused, memory_matters;
    int wrong, unsound;
    int64_t legal, simulated;
    double bound_excess, floor_excess;
} Tally;

static void ask(Tally* x, const Question* q) {
    static Brute brute;
    Answer a;
    Error error = {""};
    brute_force(&brute, q);
    const bool found = search(&a, q, &error);
    x->questions++, x->legal += brute.legal, x->bound_excess = fmax(x->bound_excess, brute.bound_excess);
    x->floor_excess = x->questions == 1 ? brute.floor_excess : fmax(x->floor_excess, brute.floor_excess);
    x->refused += !found;
    x->nothing += found && a.n == 0;
    x->answers += found && a.n > 0;
    if (!found) {
        x->wrong += brute.legal > 0;
        return;
    }
    x->simulated += a.simulated;
    x->memory_matters += brute.n > 0 && brute.fastest < brute.row[0].seconds;
    x->wrong += !same_answer(&a, &brute, q->rows);
    x->unsound += !answer_is_sound(q, &a);
    answer_free(&a);
}

static void tell(const Tally* x, const char* what) {
    check(x->wrong == 0 && x->nothing > 0,
          "%s: %d questions, %d answered, %d have nothing that fits, %d refused; %d other than brute force", what,
          x->questions, x->answers, x->nothing, x->refused, x->wrong);
    check(x->unsound == 0, "  every row is legal, fits, is settled as asked, costs what it says; %d answers do not",
          x->unsound);
    check(x->bound_excess <= 0, "  bounds of all %lld choices are below their times (%.1e); %lld were simulated",
          (long long)x->legal, x->bound_excess, (long long)x->simulated);
    check(x->floor_excess <= 1e-12, "  floors of their memory are below it (%.1e)", x->floor_excess);
}

// ---- On GPUs, on cores ---------------------------------------------------------------------------------------------

// Memory somewhere between what the smallest choice needs and what anything would.
static double scarce_memory(const Question* q) {
    Question one = *q;
    Answer a;
    Error error;
    Cluster tiny = *q->cluster;
    tiny.device.memory = 1; // nothing fits: all are looked at
    one.cluster = &tiny;
    if (!search(&a, &one, &error)) return 0;
    const double least = a.least_memory;
    answer_free(&a);
    return least * (tiny.cores ? q->ranks : 1) * (1 + 0.1 * draw(-3, 12));
}

static void test_questions(bool cores, int questions) {
    static const char* const clusters[] = {"dgx-h100", "dgx-a100", "dgx-a100-40", "gb200"};
    static const char* const software[] = {"threefold", "threefold", "threefold", "megatron-core", "megatron-2021"};
    static const int ranks[] = {1, 2, 4, 4, 6, 8, 8, 12, 16};
    Tally tally = {};
    for (int i = 0; i < questions; i++) {
        ModelConfig model = small_model();
        int n = cores ? draw(1, 8) : ranks[draw(0, 8)];
        if (i < 2) model.L = 7, n = 2; // chunks of different length and GPipe, which have to be asked for
        Cluster cluster = cores ? cores_cluster(draw(1, 8), 1e10, 1e12, n) : cluster_named(clusters[draw(0, 3)]);
        if (!cores) cluster.node_gpus = 1 << draw(0, 3);
        Question q = question(&model, n, n * draw(1, 4), &cluster, cores ? "threefold-cpu" : software[draw(0, 4)]);
        q.rows = draw(1, 12);
        StepMethods methods[4];
        if (chance(2)) settle_some(&q, 5);
        if (i < 2) settle(&q, i ? "p 2 schedule gpipe" : "p 2 v 3");
        if (q.software->ours && chance(2)) ask_methods(&q, &cluster, methods);
        cluster.device.memory = chance(4) ? 0 : scarce_memory(&q); // 0: not known, and not limited
        ask(&tally, &q);
    }
    tell(&tally, cores ? "cores that ranks share" : "GPUs");
    if (cores) return;
    check(10 * tally.simulated < tally.legal, "  best bounds first: a tenth of all choices is simulated at most");
    check(tally.memory_matters > questions / 10, "  in %d of %d questions the fastest does not fit",
          tally.memory_matters, questions);
}

// ---- What search.h says of its choices --------------------------------------------------------------------------

// A thousandth, not more, may be given away for memory.
static void test_recommended(void) {
    static const double seconds[] = {1, 1.0002, 1.0009, 1.002}, bytes[] = {10, 12, 8, 1};
    Choice row[4];
    Answer a = {};
    memset(row, 0, sizeof row);
    a.row = row;
    for (int i = 0; i < 4; i++) {
        row[i].cost.seconds = seconds[i];
        row[i].memory.bytes = bytes[i];
    }
    for (a.n = 1; a.n <= 4; a.n++)
        check(answer_recommended(&a) == &row[a.n < 3 ? 0 : 2], "of %d rows number %d is recommended", a.n,
              (int)(answer_recommended(&a) - row) + 1);
}

// 1e14 parameters on 72,000 GPUs: once more than 300 s, as every mesh was planned in memory. A search that its time
// limit ends has only rows that are sound, or none.
static void test_time_limit(void) {
    const Cluster cluster = cluster_named("dgx-b200");
    const ModelConfig model = model_of(ARCH_GPT2, 480, 131072, 1024, 1024, 524288, 8192, 51200);
    Question q = question(&model, 72000, 7200, &cluster, "threefold");
    Answer a;
    Error error;
    q.t = 64;
    q.rows = 1;
    bool found = search(&a, &q, &error);
    check(found && a.n == 1 && !a.stopped && a.row[0].setup.parallel.mesh.p > 1,
          "1e14 parameters, --tp 64: %lld of %lld simulated", (long long)a.simulated, (long long)a.considered);
    check(3 * a.too_large > a.considered - a.refused, "  %lld of %lld legal choices have no room",
          (long long)a.too_large, (long long)(a.considered - a.refused));
    answer_free(&a);
    q.t = 0;
    q.seconds = 0.01;
    const double begun = seconds_now();
    found = search(&a, &q, &error);
    check(found && a.stopped && answer_is_sound(&q, &a), "a search of 0.01 s ends after %.2f s, %lld choices, %d rows",
          seconds_now() - begun, (long long)a.considered, a.n);
    answer_free(&a);
}

// ---- Refusals ---------------------------------------------------------------------------------------------------

static void test_refusals(void) {
    const Cluster h100 = cluster_named("dgx-h100"), selene = cluster_named("selene");
    Cluster unknown = h100, little = h100;
    unknown.device.hbm = 0; // kernels would take for ever
    little.device.memory = 1e5;
    const ModelConfig model = model_of(ARCH_GPT2, 4, 64, 4, 4, 256, 64, 256);
    const struct {
        const char* given;
        int ranks, T;
        int64_t batch;
        const Cluster* cluster;
        const char* reason; // NULL: nothing fits
    } rows[] = {{"t 8", 8, 64, 32, &h100, "--tp 8"},
                {"p 8", 8, 64, 32, &h100, "--pp"},
                {"d 8", 8, 64, 7, &h100, "--global-batch 7 is not a multiple of --dp 8"},
                {"B 5", 8, 64, 32, &h100, "--micro-batch 5 does not divide the 32 sequences"},
                {"t 3", 8, 64, 32, &h100, "--tp 3 does not divide --gpus 8"},
                {"t 2 p 2", 6, 64, 32, &h100, "--tp 2 x --pp 2 does not divide --gpus 6"},
                {"t 2 p 2 d 4", 8, 64, 32, &h100, "--tp 2 x --pp 2 x --dp 4 is not --gpus 8"},
                {"t 2 p 4 zero 1", 8, 64, 32, &h100, "--zero 1"},
                {"d 1 zero 2", 8, 64, 32, &h100, "--zero 2"},
                {"schedule gpipe", 1, 64, 32, &h100, "--schedule gpipe needs --pp 2"},
                {"t 2 p 1 v 2", 8, 64, 32, &h100, "--vpp 2 needs --pp 2"},
                {"t 1", 1009, 64, 32, &selene, "--gpus 1009, a prime number,"},
                {"", 22, 64, 5, &selene, "--gpus 22 cannot be divided"},
                {"t 1 sequence 1", 8, 64, 32, &h100, "--sequence-parallel yes needs --tp 2"},
                {"v 1 schedule zb-v", 8, 64, 32, &h100, "--vpp 1: --schedule zb-v has 2"},
                {"schedule zb-h1 recompute 2", 8, 64, 32, &h100, "--recompute full"},
                {"d 2 schedule zb-h1 zero 2", 8, 64, 32, &h100, "--zero 2"},
                {"v 3 schedule interleaved", 8, 64, 32, &h100, "--vpp 3 needs"},
                {"", 8192, 64, 8192, &selene, "of 4480"},
                {"B 128", 8, 1 << 24, 1024, &h100, "2^31 tokens"},
                {"p 4 v 1", 8, 64, 32, &unknown, "peak or hbm"},
                {"", 8, 64, 32, &little, NULL},
                {"B 1048576", 1, 64, 1 << 30, &h100, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Question q = question(&model, rows[i].ranks, rows[i].batch, rows[i].cluster, "threefold");
        Answer a;
        Error error = {""};
        settle(&q, rows[i].given);
        q.T = rows[i].T;
        const bool found = search(&a, &q, &error);
        if (rows[i].reason)
            check(!found && strstr(error.text, rows[i].reason) && a.row == NULL && a.n == 0, "refused: %s", error.text);
        else
            check(found && a.n == 0 && a.least_memory > 1e5 && a.too_large > 0 && a.simulated == 0,
                  "nothing fits: the smallest of %lld choices needs %.0f", (long long)a.too_large, a.least_memory);
        answer_free(&a);
    }
}

// ---- The trainer's options (flags.h) ----------------------------------------------------------------------------

static bool same_mesh(const ParallelConfig* a, const ParallelConfig* b) {
    return a->mesh.t == b->mesh.t && a->mesh.p == b->mesh.p && a->mesh.d == b->mesh.d && a->v == b->v &&
           a->folded == b->folded && a->zero == b->zero && a->recompute == b->recompute &&
           a->sequence_parallel == b->sequence_parallel && a->scatter == b->scatter && a->mesh.sites == b->mesh.sites &&
           a->light_ends == b->light_ends && a->caat.ranks == b->caat.ranks && a->caat.fraction == b->caat.fraction &&
           a->caat.narrow == b->caat.narrow && a->tp_overlap == b->tp_overlap;
}

static bool same_exchange(const AsyncConfig* a, const AsyncConfig* b) {
    return a->mode == b->mode && a->sites == b->sites && a->period == b->period && a->compensation == b->compensation;
}

// What the trainer's main makes of the options, on every rank; what it refuses there ends this program.
static bool is_accepted(Settings o, const ModelConfig* model, int T, const StepSetup* s, bool schedule_given) {
    const int ranks = mesh_size(&s->parallel.mesh);
    bool ok = true;
    Error error;
    settings_schedule(&o, schedule_given);
    for (int r = 0; r < ranks && ok; r++) {
        Settings own = o;
        Stage stage;
        const ParallelConfig parallel = settings_parallel(&own, r, ranks);
        AsyncConfig rounds;
        settings_batch(&own);
        const int m = (int)(own.global_batch / parallel.mesh.d / own.micro_batch);
        const PipelineConfig plan = {(ScheduleKind)own.schedule, parallel.mesh.p, parallel.v, m,
                                     parallel.zero == 2,         model->tied};
        ok = settings_async(&rounds, &own, parallel.mesh.sites, &error);
        ok = ok && same_mesh(&parallel, &s->parallel) && own.micro_batch == s->B && own.global_batch == s->batch;
        ok = ok && parallel_check(&parallel, model, T, &error);
        ok = ok && plan.kind == s->schedule;
        ok = ok && same_exchange(&rounds, &s->methods.async) && !own.allreduce == !s->methods.allreduce;
        if (!ok || !pipeline_config_check(&plan, parallel.recompute, &error)) return false;
        Schedule schedule = schedule_build(&plan, parallel.mesh.pipeline);
        ok = stage_plan(&stage, model, parallel, (int)own.micro_batch, T, &schedule, async_schedule_scope(&rounds),
                        native_dtype(), &error);
        if (ok) stage_free(&stage);
        schedule_free(&schedule);
    }
    return ok;
}

// given, n: the options that say which model is planned.
static bool flags_are_taken(const StepSetup* s, Option* given, int n) {
    char* line = NULL;
    size_t size = 0;
    FILE* out = open_memstream(&line, &size);
    if (!out) die("test_planner_search: out of memory");
    flags_print(out, s, given, n);
    fclose(out);
    Option table[MAX_OPTIONS];
    Settings o = settings_default();
    char* words = strdup(line);
    settings_table(table, &o);
    Error error;
    if (!parse_line(words, table, n, &error)) die("test_planner_search: %s", error.text);
    const ModelConfig model = settings_model(&o, table, n, 256);
    const int T = o.seq ? (int)o.seq : model.T;
    const bool taken =
        model_same(&model, &s->model) && T == s->T && is_accepted(o, &model, T, s, option_given(table, n, "schedule"));
    if (!taken) printf("not taken: %s", line);
    free(words);
    free(line);
    return taken;
}

static void test_flags(int lines) {
    static const int sizes[] = {1, 2, 3, 4, 4, 6, 8, 8, 12, 16};
    int printed = 0, wrong = 0;
    for (int i = 0; i < lines; i++) {
        Option given[MAX_OPTIONS];
        Settings said = settings_default();
        char preset[] = "--model tiny --heads 8 --seq 32";
        const int n = settings_table(given, &said), ranks = sizes[draw(0, 9)];
        const bool named = chance(4), gpus = chance(2);
        Error error;
        if (named && !parse_line(preset, given, n, &error)) die("test_planner_search: %s", error.text);
        ModelConfig model = named ? settings_model(&said, given, n, 256) : small_model();
        if (!named && chance(2)) model.tied = !model.tied;
        Cluster c = gpus ? cluster_named("dgx-h100") : cores_cluster(draw(1, 16), 1e11, 64e9, ranks);
        if (chance(3)) {
            c.sites = 2;
            c.site_rate = 1e10;
        }
        Question q = question(&model, ranks, ranks * draw(1, 4), &c, gpus ? "threefold" : "threefold-cpu");
        Answer a;
        q.rows = 2;
        q.T = named ? 32 : model.T;
        q.whole = chance(4);
        StepMethods methods[4];
        settle_some(&q, 4);
        if (chance(2)) ask_methods(&q, &c, methods);
        if (!search(&a, &q, &error)) continue;
        if (a.n > 0) {
            printed++;
            wrong += !flags_are_taken(&answer_recommended(&a)->setup, given, n);
        }
        answer_free(&a);
    }
    check(printed > lines / 5, "options for %d of %d questions", printed, lines);
    check(wrong == 0, "  every rank of the trainer makes the same mesh of them; %d are taken otherwise", wrong);
}

static void test_divisors(void) {
    bool ok = true;
    for (int n = 1; n <= 900; n++) {
        int list[DIVISORS], k = 0;
        const int count = divisors(n, list);
        for (int i = 1; i <= n; i++) {
            if (n % i == 0) ok = ok && k < count && list[k++] == i;
        }
        ok = ok && k == count;
    }
    check(ok, "divisors of 1 to 900, each once, in order");
}

int main(int argc, char** argv) {
    const bool short_run = (argc > 1 && strcmp(argv[1], "--short") == 0) || !getenv("LONG");
    const int part = short_run ? 2 : 1;
    process.name = "test_planner_search";
    test_questions(false, 64 / part);
    test_questions(true, 32 / part);
    test_recommended();
    test_divisors();
    test_time_limit();
    test_refusals();
    test_flags(short_run ? 120 : 400);
    return test_end();
}
