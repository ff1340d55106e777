/*
test_async_dp.c: does data parallelism that does not wait keep its promises? Runs the trainer's own step (this file
includes train_gpt.cu) on a tiny model, in every mode, for 7 steps, and after every step looks at what sites have:

    members     of a site have the same bits of everything, and so have ranks that hold the same slice
    common      the global parameters have the same bits on all sites
    drift       dc-s3gd: no site is further from where it began the step than one update of AdamW goes, and the sum
                of all D = global - local is 0, both up to rounding
    lambda      the correction of a gradient is lambda0 times as long as the gradient, for every tensor, and along
                g g D; g is the gradient of the same step without compensation, from the same checkpoint
    undisturbed validating, sampling (async_dp_load_global) and saving after every step changes no bit of later steps
    resumed     from its checkpoint after any of the steps, in a new trainer, a run ends with the bits of the whole one
    bytes       as many as async_schedule_traffic says, to the byte, in the whole run and in a resumed one

and modes that have to be the same are: one site of dc-s3gd and the plain optimizer; outer steps of plain SGD after
every step and synchronous training, ... A run with another plan refuses a checkpoint, another mesh with the same sites
resumes from it.

Bounds. u = 2^-24. A sum of M numbers in float32 is off by (M - 1) u times the sum of their sizes; D is made of two
differences, such a sum, a product and an addition to c. AdamW: |m| <= 1.165 sqrt(v) with beta1 = 0.9, beta2 = 0.95, by
Cauchy and Schwarz, and the corrections of the first steps add a factor of 2.24 at most: an update is below 2.61 lr, and
lr times the weight decay. "error / bound" has to be below 1.

With --short, or without LONG=1 in the environment, every few of the cases; --only TEXT: those whose line has it.

ranks: 1 2 4
ranks sanitized: 1 2
*/
#define TRAIN_GPT_NO_MAIN
#pragma GCC diagnostic ignored "-Wunused-function" // of the trainer's functions this file uses most, not all
#include "../../../train_gpt.cu"

#include "test.h"
#include <setjmp.h>

enum { STEPS = 7 };

static const double unit = 5.9604644775390625e-08; // of rounding: u
static const char* tokens_path = "build/test_async_dp.bin";
static char folder[64]; // for checkpoints: in memory where that can be, as each is flushed to its disk
static const char* usual_line =
    "--layers 4 --hidden 16 --heads 2 --seq 8 --vocab 97 --steps 7 --warmup 2 --lr 4e-3 --min-lr 1e-3 --micro-batch 1 "
    "--global-batch 4 --eval-sequences 4 --beta1 0.9 --beta2 0.95 --eps 1e-6 --data build/test_async_dp.bin";
#include "trainer_fixture.h"

// ---- What a run leaves, as bits ---------------------------------------------------------------------------------

static uint64_t hash_floats(uint64_t hash, const float* x, int64_t n) {
    for (int64_t i = 0; i < (x ? n : 0); i++) hash = (hash ^ bits_of_float(x[i])) * 0x100000001B3u;
    return hash ^ hash >> 29;
}

static uint64_t hash_double(uint64_t hash, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (hash ^ bits) * 0x100000001B3u;
}

// What the stage has for its mode; of synchronous training nothing.
static const AsyncDp* async_of(const Stage* s) {
    static AsyncDp none;
    none.config.mode = DP_SYNC;
    none.config.sites = s->layout.parallel.mesh.sites;
    none.config.period = 1;
    return s->async ? s->async : &none;
}

static void drain(Stage* s) {
    if (s->async) async_dp_drain(s);
}

static uint64_t hash_of_params(const Stage* s) {
    const float* all[] = {(const float*)s->params, s->moment1, s->moment2};
    uint64_t hash = 1;
    for (int i = 0; i < 3; i++) hash = hash_floats(hash, all[i], s->layout.elements);
    return hash;
}

// What this rank computes with, and the last step's loss and norm. No message is in flight.
static uint64_t hash_of_step(const Trainer* t) {
    return hash_double(hash_double(hash_of_params(&t->stage), t->loss), t->grad_norm);
}

// All that the next step depends on. Waits for messages in flight.
static uint64_t hash_of_end(Trainer* t) {
    Stage* s = &t->stage;
    const AsyncDp* sites = async_of(s);
    const int64_t n = s->layout.elements;
    drain(s);
    return hash_floats(hash_floats(hash_of_params(s), sites->global_params, n), sites->velocity, n);
}

typedef struct {
    uint64_t step[STEPS + 1], end; // after each step, from 1
    double loss[STEPS + 1], norm[STEPS + 1], validation[STEPS + 1];
    double bytes_error; // largest, of what was counted and the formulas
} Record;

// Takes a run to its end.
static void record_run(Trainer* t, Record* record) {
    const int64_t first = t->step;
    const Bytes sent = bytes_sent(t);
    memset(record, 0, sizeof *record);
    while (t->step < STEPS) {
        train_step(t);
        record->step[t->step] = hash_of_step(t);
        record->loss[t->step] = t->loss;
        record->norm[t->step] = t->grad_norm;
    }
    stop_settle(&t->stop);
    record->end = hash_of_end(t);
    if (t->step == first) return;
    SiteTraffic formula;
    double none[2] = {0, 0};
    const Bytes all = bytes_all_ranks(t, sent, SCOPE_WORLD, none);
    const Traffic step = traffic_of_mesh(t, &formula, first);
    record->bytes_error = fmax(
        fmax(fabs(all.data - all.inter_site - formula.intra_site), fabs(all.inter_site - formula.inter_site)),
        fmax(fabs(t->bytes.tensor - step.layers - step.ends), fabs(t->bytes.pipeline - step.pipeline - step.tied)));
}

static void run_line(const Comm* world, const char* line, Record* record, float** params) {
    static Trainer t;
    trainer_open(&t, world, line, NULL, false);
    record_run(&t, record);
    if (params) {
        *params = (float*)checked_malloc((size_t)t.stage.layout.elements * sizeof(float), "test");
        memcpy(*params, t.stage.params, (size_t)t.stage.layout.elements * sizeof(float));
    }
    trainer_close(&t);
}

// ---- What has to hold after a step ------------------------------------------------------------------------------

typedef struct {
    double members, common, zero, drift;     // bits that differ; errors, each divided by its bound
    double undisturbed, resumed, validation; // steps after which bits differ
    double lambda, direction, uncompensated; // errors of the correction; tensors that should have none
    double corrected;                        // tensors that had one
    double bytes, bytes_resumed;
} Found;

static void worsen(double* worst, double error) { *worst = fmax(*worst, isnan(error) ? INFINITY : error); }

// Numbers whose bits are not those of the group's first rank.
static double differing(Comm* c, const float* x, int64_t n) {
    double count = 0;
    if (c->size == 1 || !x || n == 0) return 0;
    float* first = (float*)checked_malloc((size_t)n * sizeof(float), "test");
    memcpy(first, x, (size_t)n * sizeof(float));
    comm_broadcast(c, first, n, COMM_FLOAT, 0);
    for (int64_t i = 0; i < n; i++) count += bits_of_float(first[i]) != bits_of_float(x[i]);
    free(first);
    return count;
}

// The same between ranks that hold copies of a slice: over the tensor group, and of the embedding's two.
static double differing_copies(Trainer* t, const float* x) {
    double count = 0;
    for (int i = 0; i < t->stage.layout.n; i++) {
        const Slice* slice = &t->stage.layout.slices[i];
        if (slice->copies == t->groups.tensor.size)
            count += differing(&t->groups.tensor, x + slice->offset, slice_elements(slice));
        else if (slice->copies > 1)
            count += differing(&t->groups.kv_heads, x + slice->offset, slice_elements(slice));
        if (slice->tensor.kind == WTE)
            count += differing(&t->groups.embedding, x + slice->offset, slice_elements(slice));
    }
    return count;
}

// Sums over all sites, to be freed.
static double* sum_of_sites(Trainer* t, const double* x, int64_t n) {
    double* sum = (double*)checked_malloc((size_t)n * sizeof(double), "test");
    memcpy(sum, x, (size_t)n * sizeof(double));
    comm_all_reduce(&t->groups.inter_site, sum, n, COMM_DOUBLE, COMM_SUM);
    return sum;
}

static double* new_doubles(int64_t n) { return (double*)checked_calloc((size_t)n, sizeof(double), "test"); }

// Members of a site, and ranks with the same slices. No message is in flight.
static void check_members(Trainer* t, Found* found) {
    const Stage* s = &t->stage;
    const int64_t n = s->layout.elements;
    const float* all[] = {
        (const float*)s->params,      async_of(s)->global_params,
        async_of(s)->velocity,        s->async ? s->moment1 : NULL,
        s->async ? s->moment2 : NULL, async_of(s)->config.mode == DP_DILOCO ? async_of(s)->sum : NULL};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!all[i]) continue;
        worsen(&found->members, differing(&t->groups.data, all[i], n));
        worsen(&found->members, differing_copies(t, all[i]));
    }
    if (!s->async) worsen(&found->common, differing(&t->groups.inter_site, (const float*)s->params, n));
}

// The global parameters, which the parameters are now.
static void check_common(Trainer* t, Found* found) {
    const Stage* s = &t->stage;
    const int64_t n = s->layout.elements;
    worsen(&found->common, differing(&t->groups.inter_site, (const float*)s->params, n));
    worsen(&found->common, differing(&t->groups.data, (const float*)s->params, n));
    for (int64_t i = 0; i < (s->async ? n : 0); i++)
        worsen(&found->common,
               bits_of_float(s->async->global_params[i]) != bits_of_float(((const float*)s->params)[i]));
}

// dc-s3gd, no message in flight: the global parameters and the sites around them.
static void check_drift(Trainer* t, const float* base_before, Found* found) {
    const Stage* s = &t->stage;
    const int64_t n = s->layout.elements;
    const int M = async_of(s)->config.sites;
    const double lr = learning_rate(&t->settings, t->step - 1);
    double *D = new_doubles(n), *size = new_doubles(n);
    for (int64_t i = 0; i < n; i++) {
        const double own = (double)async_of(s)->local_params[i], before = (double)base_before[i],
                     base = (double)async_of(s)->global_params[i];
        D[i] = base - own;
        size[i] = fabs(own - before);
        if (t->settings.optimizer == OPTIMIZER_ADAMW && size[i] > 0)
            worsen(&found->drift,
                   size[i] / (2.61 * lr + lr * t->settings.weight_decay * fabs(before) + 2 * unit * fabs(before)));
    }
    double *sum = sum_of_sites(t, D, n), *moved = sum_of_sites(t, size, n);
    for (int64_t i = 0; i < n; i++) {
        const double bound = unit * (M * fabs((double)async_of(s)->global_params[i]) + (2 * M + 2) * moved[i]);
        if (sum[i] != 0) worsen(&found->zero, fabs(sum[i]) / bound);
    }
    free(D);
    free(size);
    free(sum);
    free(moved);
}

// ----------------------------------------------------------------------------------------------------------------
// A run that is disturbed after every step by a validation and a checkpoint, and the runs resumed from these

static void folder_of_step(char path[256], int64_t step) { snprintf(path, 256, "%s/%lld", folder, (long long)step); }

static void make_folders(Comm* world) {
    char path[256];
    snprintf(folder, sizeof folder, "/dev/shm/test_async_dp.%d", (int)getpid());
    if (world->rank == 0 && mkdir(folder, 0777) != 0) {
        snprintf(folder, sizeof folder, "build/test_async_dp.%d", (int)getpid());
        if (mkdir(folder, 0777) != 0) die("%s: cannot make the folder", folder);
    }
    comm_broadcast(world, folder, sizeof folder, COMM_BYTE, 0);
    if (world->rank > 0) return;
    for (int64_t step = 1; step <= STEPS; step++) {
        folder_of_step(path, step);
        if (mkdir(path, 0777) != 0) die("%s: cannot make the folder", path);
    }
}

static void remove_folders(void) {
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", folder);
    if (system(command) != 0) die("%s failed", command);
}

static void save_here(Trainer* t) {
    char path[256];
    folder_of_step(path, t->step);
    trainer_save(t, path);
}

static void disturbed_run(const Comm* world, const char* line, const Record* whole, Record* record, Found* found) {
    static Trainer t;
    trainer_open(&t, world, line, NULL, false);
    Stage* s = &t.stage;
    const AsyncConfig* r = &async_of(s)->config;
    const int64_t n = s->layout.elements;
    float* base_before = (float*)checked_malloc((size_t)n * sizeof(float), "test"); // dc-s3gd: at the step's beginning
    memset(record, 0, sizeof *record);
    const float* begins = r->mode == DP_DC_S3GD ? async_of(s)->global_params : (const float*)s->params;
    memcpy(base_before, begins, (size_t)n * sizeof(float));
    while (t.step < STEPS) {
        train_step(&t);
        record->step[t.step] = hash_of_step(&t);
        if (t.step % 2 == 0) save_here(&t);
        load_global_weights(&t);
        check_common(&t, found);
        record->validation[t.step] = validate(&t);
        restore_local_weights(&t);
        if (t.step % 2 == 1) save_here(&t);
        check_members(&t, found);
        if (r->mode == DP_DC_S3GD) check_drift(&t, base_before, found);
        memcpy(base_before, begins, (size_t)n * sizeof(float));
        found->undisturbed += record->step[t.step] != whole->step[t.step];
    }
    record->end = hash_of_end(&t);
    found->undisturbed += record->end != whole->end;
    free(base_before);
    trainer_close(&t);
}

// Continues from step `from`, and compares with the whole run.
static void resumed_run(const Comm* world, const char* line, int64_t from, const Record* whole, const Record* disturbed,
                        Found* found) {
    static Trainer t;
    Record record;
    char path[256];
    folder_of_step(path, from);
    trainer_open(&t, world, line, path, true);
    found->resumed += t.step != from;
    load_global_weights(&t);
    found->validation += validate(&t) != disturbed->validation[from];
    restore_local_weights(&t);
    record_run(&t, &record);
    for (int64_t step = from + 1; step <= STEPS; step++) found->resumed += record.step[step] != whole->step[step];
    found->resumed += record.end != whole->end;
    worsen(&found->bytes_resumed, record.bytes_error);
    trainer_close(&t);
}

// ---- Compensation -----------------------------------------------------------------------------------------------

// Where step from + 1 of a run finds its gradients, and along which way they are compensated: D, to be freed.
static float* way_of_step(const Stage* s) {
    const int64_t n = s->layout.elements;
    float* D = (float*)checked_malloc((size_t)n * sizeof(float), "test");
    for (int64_t i = 0; i < n; i++) D[i] = s->async->global_params[i] - s->async->local_params[i];
    return D;
}

// The gradient that the step after `from` uses, with the compensation that is asked for or without; D as above or NULL.
static float* gradient_of_step(const Comm* world, const char* line, int64_t from, bool compensated, float** D) {
    static Trainer t;
    char path[256];
    folder_of_step(path, from);
    trainer_open(&t, world, line, path, true);
    if (D) *D = way_of_step(&t.stage);
    if (!compensated) t.stage.async->config.compensation = 0;
    train_step(&t);
    const size_t bytes = (size_t)t.stage.layout.elements * sizeof(float);
    float* g = (float*)checked_malloc(bytes, "test");
    memcpy(g, t.stage.grads.update, bytes);
    drain(&t.stage);
    trainer_close(&t);
    return g;
}

static void check_lambda(const Comm* world, const char* line, int64_t from, Found* found) {
    static Trainer t;
    float* D;
    float* with = gradient_of_step(world, line, from, true, &D);
    float* without = gradient_of_step(world, line, from, false, NULL);
    trainer_open(&t, world, line, NULL, false); // for its layout and groups
    const Layout* layout = &t.stage.layout;
    enum { G, CORRECTION, TERM, ALONG, SUMS };
    double* sums = new_doubles(SUMS * layout->tensors);
    for (int i = 0; i < layout->n; i++) {
        const Slice* slice = &layout->slices[i];
        double* sum = sums + SUMS * slice->index;
        if (!slice_is_owned(slice, layout) || mesh_rank_in_site(&layout->parallel.mesh) > 0) continue;
        for (int64_t j = slice->offset; j < slice->offset + slice_elements(slice); j++) {
            const double g = (double)without[j], c = (double)with[j] - g, term = g * g * (double)D[j];
            sum[G] += g * g;
            sum[CORRECTION] += c * c;
            sum[TERM] += term * term;
            sum[ALONG] += c * term;
        }
    }
    sum_over_site(&t.groups, sums, SUMS * layout->tensors);
    for (int i = 0; i < layout->tensors; i++) {
        const double* sum = sums + SUMS * i;
        if (sum[TERM] == 0) {
            found->uncompensated += sum[CORRECTION] != 0;
            continue;
        }
        found->corrected++;
        worsen(&found->lambda, fabs(sqrt(sum[CORRECTION] / sum[G]) / async_of(&t.stage)->config.compensation - 1));
        worsen(&found->direction, 1 - sum[ALONG] / sqrt(sum[CORRECTION] * sum[TERM]));
    }
    free(sums);
    free(D);
    free(with);
    free(without);
    trainer_close(&t);
}

// ---- Cases ------------------------------------------------------------------------------------------------------

static const struct {
    int ranks;
    bool few; // also under sanitizers
    const char* line;
} cases[] = {
    {1, true, "--dp-mode dc-s3gd"},
    {1, true, "--dp-mode diloco --local-steps 2"},
    {2, false, "--dp-mode sync"},
    {2, false, "--dp-mode sync --sites 2 --arch llama"},
    {2, true, "--dp-mode dc-s3gd --clip 0.5"},
    {2, false, "--dp-mode dc-s3gd --dc-lambda 0 --arch llama"},
    {2, false, "--dp-mode dc-s3gd --optimizer sgd --lr 1e-2"},
    {2, false, "--dp-mode dc-s3gd --sites 1"},
    {2, true, "--dp-mode diloco --local-steps 2"},
    {2, false, "--dp-mode diloco --local-steps 3 --optimizer sgd --outer-lr 1 --arch llama"},
    {2, false, "--dp-mode diloco --local-steps 3 --sites 1"},
    {4, false, "--dp-mode sync --sites 2"},
    {4, false, "--dp-mode dc-s3gd"},
    {4, false, "--dp-mode dc-s3gd --sites 2"},
    {4, false, "--dp-mode dc-s3gd --tp 2 --arch llama"},
    {4, false, "--dp-mode dc-s3gd --pp 2 --clip 0.5"},
    {4, false, "--dp-mode diloco --local-steps 2"},
    {4, false, "--dp-mode diloco --local-steps 3 --sites 2 --outer-momentum 0"},
    {4, false, "--dp-mode diloco --local-steps 3 --tp 2"},
    {4, false, "--dp-mode diloco --local-steps 3 --pp 2 --arch llama"},
};

// The largest of all ranks, on all of them.
static void gather_found(const Comm* world, Found* found) {
    Comm all = *world;
    double* x = (double*)found;
    for (size_t i = 0; i < sizeof *found / sizeof(double); i++) x[i] = isnan(x[i]) ? INFINITY : x[i];
    comm_all_reduce(&all, x, (int64_t)(sizeof *found / sizeof(double)), COMM_DOUBLE, COMM_MAX);
}

static void report(const Found* f, const char* line) {
    check(f->members == 0 && f->common == 0, "%s: bits that differ: %g of members and copies, %g of the common point",
          line, f->members, f->common);
    check(f->zero <= 1 && f->drift <= 1, "    error / bound: sum of D %.2f, drift %.2f", f->zero, f->drift);
    check(f->undisturbed == 0 && f->resumed == 0 && f->validation == 0,
          "    steps that differ: %g of a run looked at and saved, %g of resumed ones; %g validations", f->undisturbed,
          f->resumed, f->validation);
    check(f->bytes < 0.5 && f->bytes_resumed < 0.5,
          "    bytes beside the formulas: %.1f too many or few; resumed: %.1f", f->bytes, f->bytes_resumed);
}

// Of three cases one is resumed after every step, the others after every second.
static void run_case(const Comm* world, const char* line, int number, bool few) {
    Record whole, disturbed;
    Found found = {};
    run_line(world, line, &whole, NULL);
    found.bytes = whole.bytes_error;
    disturbed_run(world, line, &whole, &disturbed, &found);
    const bool every = number % 3 == 0;
    const int64_t first = few || every ? 1 : 1 + number % 2;
    int64_t stride = every ? 1 : 2;
    if (few) stride = 3;
    for (int64_t from = first; from <= STEPS; from += stride)
        resumed_run(world, line, from, &whole, &disturbed, &found);
    const bool compensated = strstr(line, "dc-s3gd") && !strstr(line, "dc-lambda");
    const bool ways = world->size > 1 && !strstr(line, "--sites 1");
    if (compensated) check_lambda(world, line, 2, &found);
    if (compensated) check_lambda(world, line, 4, &found);
    gather_found(world, &found);
    if (world->rank > 0) return;
    report(&found, line);
    if (compensated)
        check(found.lambda <= 1e-6 && found.direction <= 1e-6 && found.uncompensated == 0 &&
                  (found.corrected > 0) == ways,
              "    compensation of %g tensors: length %.1e, direction %.1e off, bound 1e-06; %g have one without a way",
              found.corrected, found.lambda, found.direction, found.uncompensated);
}

// ---- Runs that have to be the same ------------------------------------------------------------------------------

static const struct {
    int ranks; // 0: any
    const char *a, *b;
    bool bits; // the same bits; else the same up to rounding
} pairs[] = {
    {0, "--dp-mode dc-s3gd --sites 1", "--dp-mode sync", true},
    {0, "--dp-mode dc-s3gd --sites 1 --arch llama", "--dp-mode sync --arch llama", true},
    {0, "--dp-mode dc-s3gd --sites 1 --optimizer sgd --clip 0.5", "--dp-mode sync --optimizer sgd --clip 0.5", true},
    {0, "--dp-mode dc-s3gd --sites 1 --dc-lambda 0", "--dp-mode dc-s3gd --sites 1", true},
    {2, "--dp-mode sync --sites 2 --arch llama", "--dp-mode sync --arch llama", true},
    {0, "--dp-mode diloco --local-steps 100 --steps 200", "--dp-mode diloco --local-steps 50 --steps 200 --outer-lr 1",
     true}, // nothing is sent
    {0, "--dp-mode diloco --local-steps 1 --outer-lr 1 --outer-momentum 0 --optimizer sgd --lr 1e-2 --clip 0",
     "--dp-mode sync --optimizer sgd --lr 1e-2 --clip 0", false},
    {4, "--dp-mode sync --sites 2", "--dp-mode sync", false},
    {4, "--dp-mode sync --sites 4", "--dp-mode sync --sites 2", false},
};

static void run_pair(const Comm* world, const char* a, const char* b, bool bits) {
    Record one, other;
    float *x, *y;
    run_line(world, a, &one, &x);
    run_line(world, b, &other, &y);
    static Trainer t;
    trainer_open(&t, world, a, NULL, false);
    const Layout* layout = &t.stage.layout;
    double result[2] = {0, 0};
    for (int step = 1; step <= STEPS; step++) result[0] += one.step[step] != other.step[step];
    for (int i = 0; i < layout->n; i++) { // relative to the largest weight of a tensor
        double largest = 0, worst = 0;
        for (int64_t j = layout->slices[i].offset; j < layout->slices[i].offset + slice_elements(&layout->slices[i]);
             j++) {
            largest = fmax(largest, fabs((double)y[j]));
            worsen(&worst, fabs((double)x[j] - (double)y[j]));
        }
        if (worst > 0) worsen(&result[1], worst / largest);
    }
    comm_all_reduce(&t.world, result, 2, COMM_DOUBLE, COMM_MAX);
    trainer_close(&t);
    free(x);
    free(y);
    if (world->rank > 0) return;
    check(bits ? result[0] == 0 && result[1] == 0 : result[1] <= 1e-5,
          "%s is %s: %g steps differ, weights %.1e, bound %s", a, b, result[0], result[1],
          bits ? "same bits" : "1e-05");
}

// ---- Checkpoints of other runs ----------------------------------------------------------------------------------

static jmp_buf back;
static void jump_back(int status) { longjmp(back, status); }

// Tries to resume from the checkpoint after step 2. Returns the exit status, 0 if it was resumed.
static int try_resume(const Comm* world, const char* line) {
    static Trainer t;
    char path[256];
    folder_of_step(path, 2);
    const Quiet quiet = quiet_begin(true);
    void (*stop)(int) = process.stop;
    process.stop = jump_back;
    const int status = setjmp(back);
    if (status == 0) trainer_open(&t, world, line, path, true);
    process.stop = stop;
    quiet_end(&quiet, path, sizeof path);
    trainer_close(&t);
    return status;
}

static void save_line(const Comm* world, const char* line) {
    static Trainer t;
    trainer_open(&t, world, line, NULL, false);
    train_step(&t);
    train_step(&t);
    save_here(&t);
    trainer_close(&t);
}

// Another plan; test_async_schedule compares the texts of plans that differ in one field.
static void test_refusals(const Comm* world) {
    static const char* const modes[] = {"--dp-mode sync", "--dp-mode dc-s3gd", "--dp-mode dc-s3gd --dc-lambda 0.3",
                                        "--dp-mode diloco --local-steps 2"};
    for (int saved = 0; saved < 4; saved++) {
        save_line(world, modes[saved]);
        for (int resumed = 0; resumed < 4; resumed++) {
            if (resumed == saved) continue;
            const int status = try_resume(world, modes[resumed]);
            if (world->rank == 0)
                check(status == EXIT_ARGUMENTS, "%s, resumed with %s: exit status %d", modes[saved], modes[resumed],
                      status);
        }
    }
}

// A checkpoint resumed on another mesh with the same sites: norms of the gradient and losses are the same but for
// rounding.
static void test_other_meshes(const Comm* world, bool few) {
    static const char* modes[] = {"--dp-mode dc-s3gd --sites 2", "--dp-mode diloco --local-steps 3 --sites 2"};
    static const char* meshes[] = {"--tp 2", "--pp 2"};
    static Trainer t;
    for (int i = 0; i < (few ? 1 : 2); i++) {
        Record whole, other;
        run_line(world, modes[i], &whole, NULL);
        save_line(world, modes[i]);
        for (int mesh = 0; mesh < 2; mesh++) {
            char line[256], path[256];
            double worst = 0;
            snprintf(line, sizeof line, "%s %s", modes[i], meshes[mesh]);
            folder_of_step(path, 2);
            trainer_open(&t, world, line, path, true);
            record_run(&t, &other);
            for (int step = 3; step <= STEPS; step++) {
                worsen(&worst, fabs(other.norm[step] / whole.norm[step] - 1));
                worsen(&worst, fabs(other.loss[step] / whole.loss[step] - 1));
            }
            trainer_close(&t);
            if (world->rank == 0) check_error(line, worst, 1e-5);
        }
    }
}

int main(int argc, char** argv) {
    const bool few = (argc > 1 && strcmp(argv[1], "--short") == 0) || !getenv("LONG");
    const char* only =
        argc > 2 && strcmp(argv[argc - 2], "--only") == 0 ? argv[argc - 1] : NULL; // lines with this text
    Comm world = world_open("test_async_dp");
    if (world.rank == 0) write_random_tokens(tokens_path, 3000, 97);
    make_folders(&world);
    comm_barrier(&world);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].ranks != world.size || (only ? !strstr(cases[i].line, only) : few && !cases[i].few)) continue;
        run_case(&world, cases[i].line, (int)i, few);
    }
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if ((pairs[i].ranks && pairs[i].ranks != world.size) || (only ? !strstr(pairs[i].a, only) : few && i % 4 != 0))
            continue;
        run_pair(&world, pairs[i].a, pairs[i].b, pairs[i].bits);
    }
    if (world.size == 2 && (only ? strcmp(only, "refusals") == 0 : !few)) test_refusals(&world);
    if (world.size == 4 && (!only || strcmp(only, "meshes") == 0)) test_other_meshes(&world, few);
    if (world.rank == 0) remove_folders();
    return world_close(&world);
}
