/*
test_equivalence.c: every mesh trains the same model. Runs the trainer's own step (this file includes train_gpt.cu) on
every (t, p, d) with t p d <= 8 and compares it, after 3 or (--full, --mesh) 20 steps, with one rank:

    losses and gradient norms of all steps, parameters at the end, validation loss, logits of a text that is decoded
        token by token, the bytes sent (against the formulas of parallel/traffic.h, which must fit exactly)
    bit for bit where t = d = 1: any p, any schedule, any recomputation, any cut of the batch into micro-batches
    elsewhere, and on a GPU, whose kernels cut their sums by the shape of a micro-batch, within 1e-5, relative to the
        largest entry of a tensor: the order of additions is another one. A build for GPUs has to be one in fp32
    --tp-comm-overlap: bit for bit the run without it, of micro-batches of half the size where a rank has several states
    of a CAAT-Net; for t of 2, 4, 8, as the order of other sums depends on their length
    copies of a parameter on several ranks are the same bits at the end; so are the shared channels of a CAAT-Net, in
        all its streams and after every block. Such a model is compared with all of its streams on one rank

Bound. A float32 sum of n terms in another order differs by about sqrt(n) 2^-24 of its size (Higham 2002, section 4.5),
here 1e-6 for n up to 300; errors of 20 steps add up: 1e-5 leaves a factor of a few. AdamW divides a gradient by its own
size, which would blow up the rounding of gradients that are zero but for rounding; so eps = 1e-3 here, where such
gradients stay as small as they are.

In bf16 (build/bf16/test_equivalence) ranks round what they add, and the bound is larger. Through L layers a number
passes 8 L + 4 roundings by at most u = 2^-8, of random sign, and its gradient as many on the way back; so it does in
the other run: sqrt(2 (2 (8 L + 4))) u = 6.4e-2. A loss is a mean over at least 168 tokens: a twelfth of that. eps = 1
and a larger learning rate make an update as large as its gradient, not as this divided by its own size. Where bits
have to be the same, a micro-batch is a multiple of 32 tokens, the depth of AMX's tiles: for a t that 3 does not divide.

    mpirun -np 8 build/test_equivalence [--full | --short | --mesh t p d [--only TEXT] [kept]]

Without --full every mesh, architecture and tying runs with one choice of the other settings (they take turns, so that
all pairs of settings are met), every other schedule than 1F1B with one choice of all of that, and one CAAT-Net; --full
runs all combinations with 1F1B, twelve choices with every other schedule, and twelve CAAT-Nets. --short: only meshes
of 1 or 2 an axis. --mesh: all settings of one mesh; --only: those whose printed line contains TEXT; kept: against the
references of an earlier run.

ranks: 8
ranks sanitized: 4
*/
#define TRAIN_GPT_NO_MAIN
#pragma GCC diagnostic ignored "-Wunused-function" // of the trainer's functions this file uses most, not all
#include "../../../train_gpt.cu"

#include "test.h"

enum { STEPS = 20, DECODED = 9, TEXT_ROWS = DECODED + 1, V_TEST = 97, LAYERS = 8 };
enum { MODELS = 2 * ARCHS, MOST_CASES = 38 * MODELS * 52 };

// ---- Cases ------------------------------------------------------------------------------------------------------

typedef struct {
    Arch arch;
    bool tied;
    int family; // which sizes: see case_model
} ModelChoice;

typedef struct {
    ModelChoice model;
    ParallelConfig parallel; // coordinates do not matter
    int B, G;                // micro-batch; global batch
    int steps;
    bool clip;
    ScheduleKind schedule;
} Case;

// Sizes that t divides. Vocabulary 97: padded for every t > 1. Key/value heads of llama: for t = 3 and 6 they are 3,
// for 5 and 7 one, else 4: divided, one each, and shared by two, four or all ranks.
static ModelConfig case_model(const ModelChoice* c) {
    const int NH = c->family == 1 ? 35 : 24, C = 2 * NH, F = c->family == 1 ? 140 : 96;
    static const int key_value_heads[] = {4, 1, 3}; // by family
    const int NKV = architectures[c->arch].hub == HUB_GPT2 ? NH : key_value_heads[c->family];
    static const int lengths[] = {HAS_MASTER_WEIGHTS ? 32 : 24, 35, 24};
    const int T = lengths[c->family];
    ModelConfig m = model_of(c->arch, LAYERS, C, NH, NKV, F, T, V_TEST);
    m.tied = c->tied;
    return m;
}

static int family_of(Arch arch, int t) {
    if (t == 5 || t == 7) return 1;
    return (architectures[arch].hub == HUB_LLAMA || HAS_MASTER_WEIGHTS) && t % 3 == 0 ? 2 : 0;
}

// Sequences in an update: d divides them and, if it can be, p the share of each replica.
static int global_batch_of(int p, int d) {
    if (p == 5 || d == 5) return 10;
    if (p == 7 || d == 7) return 14;
    return p % 3 == 0 || d % 3 == 0 ? 12 : 8;
}

// Cases of one mesh: all settings, or (turn >= 0) one choice of them for each model.
static int cases_of_mesh(Case* list, int t, int p, int d, int* turn) {
    int n = 0;
    for (int model = 0; model < MODELS; model++) {
        const Arch arch = (Arch)(model / 2);
        for (int setting = 0; setting < 18; setting++) {
            const bool sequence = setting % 2 == 1;
            const int zero = setting / 2 % 3, recompute = setting / 6;
            if ((sequence && t == 1) || (zero > 0 && d == 1)) continue;
            Case c = {{arch, model % 2 == 0, family_of(arch, t)},
                      parallel_of_rank(0, t, p, d),
                      1,
                      global_batch_of(p, d),
                      STEPS,
                      true,
                      ONE_F_ONE_B};
            c.parallel.sequence_parallel = sequence;
            c.parallel.zero = zero;
            c.parallel.recompute = (Recompute)recompute;
            c.parallel.scatter = (setting + model + p) % 3 != 0;
            c.B = c.G / d % 2 == 0 && (setting + model) % 2 == 0 ? 2 : 1;
            list[n++] = c;
        }
    }
    if (!turn) return n;
    const int settings = n / MODELS;
    for (int model = 0; model < MODELS;
         model++) { // a stride that is prime to 2, 3, 6, 9, 18 visits all settings in turn
        list[model] = list[model * settings + (*turn)++ * 5 % settings];
    }
    return MODELS;
}

// One choice of model and settings, for a schedule; those that the schedule does without are replaced.
static Case schedule_case(int t, int p, int d, ScheduleKind kind, int v, int choice) {
    const Arch arch = (Arch)(choice % ARCHS);
    const bool splits = schedule_splits_backward(kind);
    const int zero = choice / 2 % 3, recompute = choice / 3 % 3;
    Case c = {{arch, choice / 3 % 2 == 0, family_of(arch, t)},
              parallel_of_rank(0, t, p, d),
              1,
              global_batch_of(p, d),
              STEPS,
              choice % 3 > 0,
              kind};
    parallel_set_schedule(&c.parallel, kind, v);
    c.parallel.sequence_parallel = t > 1 && choice / 2 % 2;
    c.parallel.scatter = choice % 5 > 0;
    c.parallel.zero = splits && zero == 2 ? 1 : zero;
    if (d == 1) c.parallel.zero = 0;
    c.parallel.recompute = splits && recompute == 2 ? RECOMPUTE_SELECTIVE : (Recompute)recompute;
    if (c.G / d % (2 * p) == 0 && choice % 4 == 0) c.B = 2;
    return c;
}

// Every schedule but 1F1B, with `choices` choices of the rest.
static int cases_of_schedules(Case* list, int t, int p, int d, int choices, int* turn) {
    int n = 0;
    if (p == 1) return 0;
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        const int usual = schedules[kind].chunks, most = schedules[kind].grouped ? 4 : usual;
        if (kind == ONE_F_ONE_B) continue;
        for (int v = usual; v <= most && p * v <= LAYERS; v++) {
            for (int choice = 0; choice < choices; choice++)
                list[n++] = schedule_case(t, p, d, (ScheduleKind)kind, v, turn ? (*turn)++ : choice);
        }
    }
    return n;
}

// CAAT-Nets, as many as are wanted: of t, 2 t or 4 t states where the model's heads can be cut so often, with shares
// and settings that take turns; p = 1 is there too, of which the reference is an ordinary model.
static int cases_of_caat(Case* list, int t, int p, int d, int choices, int* turn) {
    static const double shares[] = {0.5, 0.25, 1, 0, 0.7};
    static const ScheduleKind kinds[] = {ONE_F_ONE_B, ZB_V, INTERLEAVED, ONE_F_ONE_B, ZB_H1};
    int n = 0;
    for (int i = 0; i < choices; i++) {
        const int choice = (*turn)++;
        const ScheduleKind kind = p > 1 ? kinds[choice % 5] : ONE_F_ONE_B;
        const int v = schedules[kind].chunks;
        Case c = schedule_case(t, p, d, p * v <= LAYERS ? kind : ONE_F_ONE_B, p * v <= LAYERS ? v : 1, choice);
        ModelConfig m = case_model(&c.model);
        if (t > m.NKV) { // the reference holds all states on one rank, and they share no key/value head
            c.model.arch = ARCH_GPT2;
            c.model.family = family_of(ARCH_GPT2, t);
            m = case_model(&c.model);
        }
        int states = t << (choice / 2 % 3);
        while (states > t && (m.NH % states != 0 || states > m.NKV)) states /= 2;
        const CaatConfig sync = {states, shares[choice % 5], choice % 4 == 1};
        c.parallel.caat = sync;
        c.parallel.sequence_parallel = false;
        list[n++] = c;
    }
    return n;
}

// Micro-batches of two, computed as two halves in turn: of ordinary models and of CAAT-Nets.
static int cases_of_overlap(Case* list, int t, int p, int d, int choices, int* turn) {
    static const ScheduleKind kinds[] = {INTERLEAVED, ZB_H1, ONE_F_ONE_B, ZB_V, GPIPE};
    int n = 0;
    if (t == 1) return 0;
    for (int i = 0; i < choices; i++) {
        const int choice = (*turn)++;
        int setting = choice / 2 * 5 % 18; // all architectures, recomputations and ZeRO stages in six
        const ScheduleKind kind = p > 1 && 2 * p <= LAYERS ? kinds[choice % 5] : ONE_F_ONE_B;
        Case c = schedule_case(t, p, d, kind, schedules[kind].chunks, setting);
        if (choice % 2 == 1) cases_of_caat(&c, t, p, d, 1, &setting);
        c.parallel.sequence_parallel = false;
        c.parallel.tp_overlap = true;
        c.B = HALVES;
        if (c.parallel.caat.ranks > t && c.parallel.zero == 2) c.parallel.zero = 1; // which adds up by micro-batches
        const int replica = c.G / d / c.B;                                          // micro-batches
        if (replica * c.B * d == c.G && (!schedules[c.schedule].grouped || replica % p == 0)) list[n++] = c;
    }
    return n;
}

// What a case is called in its line.
static void case_name(char name[256], const Case* c) {
    static const char* recompute[] = {"", " selective", " full"};
    const ParallelConfig* parallel = &c->parallel;
    char schedule[32] = "", sync[64] = "";
    if (parallel->caat.ranks)
        snprintf(sync, sizeof sync, " sync %g of %d", parallel->caat.fraction, parallel->caat.ranks);
    if (c->schedule != ONE_F_ONE_B)
        snprintf(schedule, sizeof schedule, "%s/%d ", schedule_name(c->schedule), parallel->v);
    snprintf(name, 256, "t=%d p=%d d=%d %s%s%s%s%s%s zero %d%s%s B=%d of %d%s", parallel->mesh.t, parallel->mesh.p,
             parallel->mesh.d, schedule, model_arch_name(c->model.arch), c->model.tied ? " tied" : "", sync,
             parallel->sequence_parallel ? " sequence" : "", parallel->tp_overlap ? " overlap" : "", parallel->zero,
             recompute[parallel->recompute], parallel->scatter ? "" : " whole", c->B, c->G,
             c->clip ? "" : " unclipped");
}

// Keeps the cases whose name contains text; returns how many these are.
static int keep_named(Case* list, int n, const char* text) {
    int kept = 0;
    for (int i = 0; i < n; i++) {
        char name[256];
        case_name(name, &list[i]);
        if (strstr(name, text)) list[kept++] = list[i];
    }
    return kept;
}

// ---- A run ------------------------------------------------------------------------------------------------------

typedef struct {
    double loss[STEPS], norm[STEPS], validation;
    float logits[TEXT_ROWS * V_TEST];
    bool shared_agree;
} Outcome;

static const char* tokens_path = "build/test_equivalence_" FLOATX_NAME ".bin";

// A trainer on one rank of a case's mesh; world has as many ranks.
static void trainer_open(Trainer* t, const Comm* world, const Case* c) {
    memset(t, 0, sizeof *t);
    t->settings = settings_default();
    Settings* o = &t->settings;
    o->data = tokens_path;
    o->micro_batch = c->B;
    o->global_batch = c->G;
    o->steps = STEPS;
    o->warmup = 3;
    o->lr = HAS_MASTER_WEIGHTS ? 0.1 : 2e-4;
    o->min_lr = o->lr / 10;
    o->eps = HAS_MASTER_WEIGHTS ? 1 : 1e-3;
    o->eval_sequences = 7;
    o->clip = c->clip ? 0.5 : 0;
    o->schedule = (int)c->schedule;
    t->world = *world;
    ParallelConfig parallel = parallel_at(&c->parallel, world->rank);
    const ModelConfig m = case_model(&c->model);
    Error error;
    if (!tokens_open(&t->train_files, tokens_path, &error)) die("%s", error.text);
    if (!plan_schedule(t, &m, &parallel, &error) ||
        !stage_plan(&t->stage, &m, parallel, c->B, m.T, &t->schedule, SCOPE_WORLD, native_dtype(), &error))
        die("%s", error.text);
    if (!dataloader_init(&t->train, &t->train_files, PART_TRAINED, HELD_OUT_BLOCKS, m.T, m.V, 1, true, &error) ||
        !dataloader_init(&t->val, &t->train_files, PART_HELD_OUT, HELD_OUT_BLOCKS, m.T, m.V, 0, false, &error))
        die("%s", error.text);
    stage_allocate(&t->stage);
    random_init_weights(&t->stage, 1);
    process_groups_init(&t->groups, &t->world, &t->stage.layout, &m);
    t->stage.groups = &t->groups;
    tensor_overlap_open(&t->stage);
}

static void trainer_close(Trainer* t) {
    groups_close(&t->groups);
    batch_free(&t->batch);
    stage_free(&t->stage);
    schedule_free(&t->schedule);
    tokens_close(&t->train_files);
}

// Logits after each of some tokens, on every rank of the first replica; and in one more row those after the last one
// again, once all is forgotten and the others were read at once.
static void decode_text(Trainer* t, float* logits) {
    Stage* s = &t->stage;
    const int whole = s->layout.V * tp_cuts(&s->layout.parallel);
    float* all = (float*)checked_calloc((size_t)whole, sizeof(float), "test");
    int32_t text[DECODED];
    for (int i = 0; i < DECODED; i++) text[i] = (i * 31 + 7) % V_TEST;
    for (int i = 0; i < TEXT_ROWS; i++) {
        const int at = i < DECODED ? i : DECODED - 1;
        if (i == DECODED) device_zero(s->cache, (size_t)kv_cache_elements(s) * sizeof(floatX));
        if (i == DECODED) prefill(t, text, at);
        decode_token(t, text[at], at);
        if (s->layout.last_stage) gather_logits(t, all);
        comm_broadcast(&t->groups.pipeline, all, whole, COMM_FLOAT, lm_head_rank(t));
        memcpy(logits + (size_t)i * V_TEST, all, V_TEST * sizeof(float));
    }
    free(all);
}

// The shared channels of the micro-batch that is in memory: the same bits in all states of all tensor ranks, before
// every block and behind the last one. Each part of it has its states one after the other.
static bool shared_agree(Trainer* t) {
    const Stage* s = &t->stage;
    const Activations* a = &s->activations[0];
    const int C = s->model.C, S = s->layout.shared;
    const int64_t n = (int64_t)a->N * C;
    bool same = true;
    if (!is_caat(s) || !a->chunk) return true;
    const int rows = a->N / a->parts, tokens = a->tokens / a->parts;
    float *mine = (float*)checked_malloc((size_t)n * sizeof(float), "test"), *first;
    first = (float*)checked_malloc((size_t)a->tokens * (size_t)C * sizeof(float), "test");
    for (int l = 0; l <= a->chunk->layers; l++) {
        device_to_floats(mine, a->x[l], n);
        for (int row = 0; row < a->tokens; row++)
            memcpy(first + (int64_t)row * C, mine + (int64_t)(row / tokens * rows + row % tokens) * C,
                   (size_t)C * sizeof(float));
        comm_broadcast(&t->groups.tensor, first, (int64_t)a->tokens * C, COMM_FLOAT, 0);
        for (int row = 0; row < a->N; row++)
            same = same && memcmp(mine + (int64_t)row * C, first + (int64_t)(row / rows * tokens + row % tokens) * C,
                                  (size_t)S * sizeof(float)) == 0;
    }
    free(mine), free(first);
    return same;
}

static void run_case(Trainer* t, int steps, Outcome* outcome) {
    memset(outcome, 0, sizeof *outcome);
    const Arena* old = &t->stage.memory[ARENA_GRADIENTS];
    for (int step = 0; step < steps; step++) {
        if (DEVICE_IS_HOST) memset(old->base, 0xff, old->used); // NaN: no step reads another one's gradients
        train_step(t);
        outcome->loss[step] = t->loss;
        outcome->norm[step] = t->grad_norm;
    }
    outcome->shared_agree = shared_agree(t);
    outcome->validation = validate(t);
    if (t->stage.layout.parallel.mesh.data == 0) decode_text(t, outcome->logits);
    comm_broadcast(&t->groups.data, outcome->logits, TEXT_ROWS * V_TEST, COMM_FLOAT, 0);
    comm_broadcast(&t->groups.inter_site, outcome->logits, TEXT_ROWS * V_TEST, COMM_FLOAT, 0);
    outcome->shared_agree = shared_agree(t) && outcome->shared_agree;
}

// ---- One rank alone: every rank makes some of the references and writes them to files that all read. ------------

// With all channels shared a CAAT-Net is an ordinary model.
static bool is_ordinary(const CaatConfig* sync) { return sync->ranks == 0 || sync->fraction == 1; }

static void reference_path(char path[128], const Case* c) {
    const CaatConfig* sync = &c->parallel.caat;
    const int states = is_ordinary(sync) ? 0 : sync->ranks;
    snprintf(path, 128, "build/test_equivalence_" FLOATX_NAME "_%d%d%d%d_%d_%d_%g.ref", c->model.arch, c->model.tied,
             c->model.family, c->clip, c->G, states, states ? sync->fraction : 1);
}

// The case that one rank runs: the whole batch as micro-batches of two.
static Case reference_case(const Case* c) {
    Case one = {c->model, parallel_of_rank(0, 1, 1, 1), 2, c->G, c->steps, c->clip, ONE_F_ONE_B};
    if (!is_ordinary(&c->parallel.caat)) one.parallel.caat = c->parallel.caat;
    return one;
}

// The layout of whole tensors.
static Layout whole_layout(const Case* c) {
    const ModelConfig m = case_model(&c->model);
    Layout whole;
    Error error;
    if (!layout_build(&whole, &m, parallel_of_rank(0, 1, 1, 1), m.T, &error)) die("%s", error.text);
    return whole;
}

// The slice of a whole tensor in that layout.
static const Slice* whole_slice(const Layout* whole, const Slice* part) {
    const Slice* s = whole->slices;
    while (strcmp(s->tensor.name, part->tensor.name) != 0) s++;
    return s;
}

// The parameters of one rank with one or more states as whole tensors, to be freed.
static float* whole_params(const Stage* s, const Layout* whole) {
    float* params = (float*)checked_malloc((size_t)s->layout.elements * sizeof(float), "test");
    float* out = (float*)checked_calloc((size_t)whole->elements, sizeof(float), "test");
    device_to_floats(params, s->params, s->layout.elements);
    for (int i = 0; i < s->layout.n; i++) {
        const Slice *part = &s->layout.slices[i], *to = whole_slice(whole, part);
        for (int64_t r = 0; r < part->rows_used; r++)
            memcpy(out + to->offset + slice_logical_row(part, r) * to->cols + slice_logical_col(part),
                   params + part->offset + r * part->cols, (size_t)part->cols * sizeof(float));
    }
    free(params);
    return out;
}

static void make_reference(const Comm* alone, const Case* c) {
    const Case one = reference_case(c);
    Trainer t;
    Outcome outcome;
    char path[128];
    reference_path(path, c);
    trainer_open(&t, alone, &one);
    run_case(&t, c->steps, &outcome);
    FILE* f = fopen(path, "wb");
    Layout whole = whole_layout(&one);
    const size_t n = (size_t)whole.elements;
    float* params = whole_params(&t.stage, &whole);
    if (!f || fwrite(&outcome, sizeof outcome, 1, f) != 1 || fwrite(params, sizeof(float), n, f) != n || fclose(f) != 0)
        die("%s: cannot write", path);
    free(params);
    layout_free(&whole);
    trainer_close(&t);
}

static void make_references(Comm* world, const Case* list, int cases) {
    Comm alone = comm_split(world, world->rank, 0, "alone", COMM_WIDE);
    int n = 0;
    for (int i = 0; i < cases; i++) {
        char mine[128], other[128];
        reference_path(mine, &list[i]);
        int first = 0; // the first case with the same reference
        for (reference_path(other, &list[0]); strcmp(mine, other) != 0; first++)
            reference_path(other, &list[first + 1]);
        if (first == i && n++ % world->size == world->rank) make_reference(&alone, &list[i]);
    }
}

// ---- Comparing --------------------------------------------------------------------------------------------------

typedef struct {
    double loss, norm, params, validation, logits, bytes; // largest errors, all but bytes relative
    bool same_bits, same_copies, same_text, same_halves;
} MeshDifference;

static double relative(double a, double b) { return a == b ? 0 : fabs(a - b) / fabs(b); }

// This rank's slices against the same parts of the reference's parameters.
static void compare_params(const Stage* s, const Layout* whole, const float* expected, MeshDifference* d) {
    float* params = (float*)checked_malloc((size_t)s->layout.elements * sizeof(float), "test");
    device_to_floats(params, s->params, s->layout.elements);
    for (int i = 0; i < s->layout.n; i++) {
        const Slice *mine = &s->layout.slices[i], *reference = whole_slice(whole, mine);
        const float* from = expected + reference->offset;
        double largest = 0, worst = 0;
        for (int64_t e = 0; e < slice_elements(reference); e++) largest = fmax(largest, fabs((double)from[e]));
        for (int64_t r = 0; r < mine->rows; r++) {
            const float* row = params + mine->offset + r * mine->cols;
            const float* other = from + slice_logical_row(mine, r) * reference->cols + slice_logical_col(mine);
            for (int64_t c = 0; c < mine->cols; c++) {
                const double x = r < mine->rows_used ? (double)other[c] : 0;
                const double difference = fabs((double)row[c] - x);
                worst = difference <= worst ? worst : difference; // NaN counts
                d->same_bits = d->same_bits && (double)row[c] == x;
            }
        }
        d->params = fmax(d->params, isnan(worst) ? INFINITY : worst / largest);
    }
    free(params);
}

// Ranks that hold the same parameters: the data group all, the tensor and the heads group some, the ends of the
// pipeline the embedding.
static bool copies_agree(Trainer* t) {
    Stage* s = &t->stage;
    bool same = true;
    float* params = (float*)checked_malloc((size_t)s->layout.elements * sizeof(float), "test");
    float* copy = (float*)checked_malloc((size_t)s->layout.elements * sizeof(float), "test");
    device_to_floats(params, s->params, s->layout.elements);
    for (int i = 0; i < s->layout.n; i++) {
        const Slice* slice = &s->layout.slices[i];
        Comm* groups[3] = {&t->groups.data, &t->groups.kv_heads, &t->groups.embedding};
        if (slice->copies == t->groups.tensor.size) groups[1] = &t->groups.tensor;
        for (int g = 0; g < (slice->tensor.kind == WTE ? 3 : 2); g++) {
            if (groups[g]->size == 1 || (g == 1 && slice->copies == 1)) continue;
            const size_t bytes = (size_t)slice_elements(slice) * sizeof(float);
            memcpy(copy, params + slice->offset, bytes);
            comm_broadcast(groups[g], copy, slice_elements(slice), COMM_FLOAT, 0);
            same = same && memcmp(copy, params + slice->offset, bytes) == 0;
        }
    }
    free(params);
    free(copy);
    return same;
}

static double traffic_error(Trainer* t) {
    SiteTraffic sites;
    const Traffic sum = traffic_of_mesh(t, &sites, 0);
    return fmax(fabs(t->bytes.tensor - sum.layers - sum.ends),
                fmax(fabs(t->bytes.pipeline - sum.pipeline - sum.tied), fabs(t->bytes.data - sum.data)));
}

static const double bound = HAS_MASTER_WEIGHTS ? 6.4e-2 : 1e-5, loss_bound = HAS_MASTER_WEIGHTS ? 5.3e-3 : 1e-5;

static MeshDifference compare(Trainer* t, const Case* c, const Outcome* outcome) {
    MeshDifference d = {0, 0, 0, 0, 0, 0, true, true, true, true};
    MappedFile file;
    Layout whole = whole_layout(c);
    Error error;
    char path[128];
    reference_path(path, c);
    if (!file_map(&file, path, &error)) die("%s", error.text);
    Outcome expected;
    memcpy(&expected, file.data, sizeof expected);
    for (int i = 0; i < c->steps; i++) {
        d.loss = fmax(d.loss, relative(outcome->loss[i], expected.loss[i]));
        d.norm = fmax(d.norm, relative(outcome->norm[i], expected.norm[i]));
    }
    d.validation = relative(outcome->validation, expected.validation);
    double logits[TEXT_ROWS * V_TEST];
    for (int i = 0; i < TEXT_ROWS * V_TEST; i++) logits[i] = (double)expected.logits[i];
    d.logits = relative_error(outcome->logits, logits, TEXT_ROWS * V_TEST);
    const double* one_by_one = logits + (size_t)(DECODED - 1) * V_TEST;
    d.same_text = relative_error(outcome->logits + (size_t)DECODED * V_TEST, one_by_one, V_TEST) <= bound;
    compare_params(&t->stage, &whole, (const float*)(file.data + sizeof expected), &d);
    d.same_bits = d.same_bits && d.loss == 0 && d.norm == 0 && d.validation == 0 && d.logits == 0;
    d.bytes = traffic_error(t);
    d.same_copies = copies_agree(t) && outcome->shared_agree;
    layout_free(&whole);
    file_unmap(&file);
    return d;
}

// ----------------------------------------------------------------------------------------------------------------

// Whether a run with --tp-comm-overlap has the bits of one without.
static bool same_as_whole(const Comm* world, const Trainer* t, const Case* c, const Outcome* outcome) {
    const int64_t n = t->stage.layout.elements;
    Case plain = *c;
    Trainer whole;
    Outcome expected;
    plain.parallel.tp_overlap = false;
    if (t->stage.layout.streams > 1) plain.B = c->B / HALVES;
    trainer_open(&whole, world, &plain);
    run_case(&whole, c->steps, &expected);
    float* params = (float*)checked_malloc((size_t)n * 2 * sizeof(float), "test");
    device_to_floats(params, t->stage.params, n);
    device_to_floats(params + n, whole.stage.params, n);
    const bool same =
        memcmp(params, params + n, (size_t)n * sizeof(float)) == 0 && memcmp(outcome, &expected, sizeof expected) == 0;
    free(params);
    trainer_close(&whole);
    return same;
}

// Runs a case on the ranks of world and returns the largest differences of all of them, on all of them.
static MeshDifference difference_of(const Comm* world, const Case* c) {
    Trainer t;
    Outcome outcome;
    trainer_open(&t, world, c);
    run_case(&t, c->steps, &outcome);
    MeshDifference d = compare(&t, c, &outcome);
    if (c->parallel.tp_overlap) d.same_halves = same_as_whole(world, &t, c, &outcome);
    double all[10] = {d.loss,
                      d.norm,
                      d.params,
                      d.validation,
                      d.logits,
                      d.bytes,
                      d.same_bits ? 0.0 : 1.0,
                      d.same_copies ? 0.0 : 1.0,
                      d.same_text ? 0.0 : 1.0,
                      d.same_halves ? 0.0 : 1.0};
    for (int i = 0; i < 6; i++) all[i] = isnan(all[i]) ? INFINITY : all[i];
    comm_all_reduce(&t.world, all, 10, COMM_DOUBLE, COMM_MAX);
    const MeshDifference most = {all[0], all[1],      all[2],      all[3],      all[4],
                                 all[5], all[6] == 0, all[7] == 0, all[8] == 0, all[9] == 0};
    trainer_close(&t);
    return most;
}

// What the other ranks need to know to report a case.
static void report(const Case* c, const MeshDifference* d) {
    char name[256];
    case_name(name, c);
    // A rank adds up gradients of its states state by state, so with several the cut into micro-batches changes the
    // order.
    const bool same_order =
        c->parallel.caat.ranks <= 1 || (!is_ordinary(&c->parallel.caat) && c->B == reference_case(c).B);
    const bool exact = DEVICE_IS_HOST && c->parallel.mesh.t == 1 && c->parallel.mesh.d == 1 && same_order;
    const bool halves = d->same_halves || !DEVICE_IS_HOST || (c->parallel.mesh.t & (c->parallel.mesh.t - 1)) != 0;
    char limit[32] = "same bits";
    if (!exact) snprintf(limit, sizeof limit, "%.1e", bound);
    const bool near = fmax(d->loss, d->validation) <= loss_bound && fmax(d->norm, fmax(d->params, d->logits)) <= bound;
    check((exact ? d->same_bits : near) && d->same_copies && d->same_text && halves && d->bytes < 0.5,
          "%-58s loss %.1e norm %.1e params %.1e val %.1e decoded %.1e %s bound %s%s%s%s%s", name, d->loss, d->norm,
          d->params, d->validation, d->logits, d->same_bits ? "same bits" : "", limit,
          d->same_copies ? "" : ", COPIES DIFFER", d->same_text ? "" : ", A TEXT READ AT ONCE DIFFERS",
          halves ? "" : ", HALVES DIFFER FROM THE WHOLE", d->bytes < 0.5 ? "" : ", BYTES DIFFER");
}

// All cases of n ranks, as many of them at a time as there is room for in the world; rank 0 reports after each round.
static void run_cases(Comm* world, const Case* list, int cases, int n) {
    const int at_once = world->size / n, team = world->rank / n;
    Comm ranks = comm_split(world, team, world->rank, "world", COMM_WIDE);
    for (int first = 0; first < cases; first += at_once) {
        MeshDifference mine = {};
        if (team < at_once && first + team < cases) mine = difference_of(&ranks, &list[first + team]);
        for (int i = first; i < first + at_once && i < cases; i++) {
            MeshDifference result = mine;
            comm_broadcast(world, &result, (int64_t)sizeof result, COMM_BYTE, (i - first) * n);
            if (world->rank == 0) report(&list[i], &result);
        }
    }
    comm_free(&ranks);
}

int main(int argc, char** argv) {
    const bool full = argc > 1 && strcmp(argv[1], "--full") == 0, one = argc >= 5 && strcmp(argv[1], "--mesh") == 0;
    const bool few = argc > 1 && strcmp(argv[1], "--short") == 0;
    const char* only = one && argc >= 7 && strcmp(argv[5], "--only") == 0 ? argv[6] : "";
    const bool kept = one && (argc == 6 || argc == 8);
    Comm world;
    process.name = "test_equivalence";
    comm_open(&world);
    device_open(world.rank);
    comm_open_device(&world);
    device_set_threads(1);
    if (world.rank == 0) {
        (void)mkdir("build", 0777); // it may be there
        write_random_tokens(tokens_path, 20000, V_TEST);
    }
    comm_barrier(&world);
    Case* list = (Case*)checked_calloc(MOST_CASES, sizeof(Case), "test");
    int cases = 0, turn = 0, schedule_turn = 0, caat_turn = 0, overlap_turn = 0;
    int end[9] = {0}; // the cases of n ranks end at end[n]
    for (int n = 1; n <= world.size && n <= 8; n++) {
        for (int t = 1; t <= n; t++) {
            for (int p = 1; p <= n / t; p++) {
                const int d = n / (t * p);
                if (n % (t * p) != 0 || (few && n > 2)) continue;
                if (one && (atoi(argv[2]) != t || atoi(argv[3]) != p || atoi(argv[4]) != d)) continue;
                int more = cases_of_mesh(list + cases, t, p, d, full || one ? NULL : &turn);
                if (few) { // gpt2 tied, llama untied
                    list[cases + 1] = list[cases + 3];
                    more = 2;
                }
                more += cases_of_schedules(list + cases + more, t, p, d, full || one ? 12 : 1,
                                           full || one ? NULL : &schedule_turn);
                more += cases_of_caat(list + cases + more, t, p, d, full || one ? 12 : 1, &caat_turn);
                more += cases_of_overlap(list + cases + more, t, p, d, full || one ? 12 : 2, &overlap_turn);
                for (int i = cases; i < cases + more && !full && !one; i++) list[i].steps = few ? 2 : 3;
                cases += more;
            }
        }
        end[n] = cases = end[n - 1] + keep_named(list + end[n - 1], cases - end[n - 1], only);
    }
    if (!kept) make_references(&world, list, cases);
    comm_barrier(&world);
    for (int n = 1; n <= world.size && n <= 8; n++) run_cases(&world, list + end[n - 1], end[n] - end[n - 1], n);
    free(list);
    const int status = world.rank == 0 ? test_end() : 0;
    comm_close(&world);
    return status;
}
