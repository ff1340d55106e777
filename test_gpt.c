/*
test_gpt.c: tests of the whole model, on the trainer's own code (this file includes train_gpt.cu).

    against PyTorch      logits, loss, every gradient, ten AdamW steps of six small models, of which two are CAAT-Nets: numbers
                         made in float64 by dev/test/reference/make_reference.py, so that what is measured is our own rounding
    finite differences   the gradient of every tensor of CAAT-Nets with 1, 2, 4 states and any part of the channels shared
    against itself       the same bits for any number of threads, any cut of a batch into micro-batches, both halves of
                         the backward pass together or apart, and a run that was stopped and taken up again

Run from the project's folder:

    build/test_gpt                      all of it
    build/test_gpt --write FILE MODEL   one step of a model, as such numbers
    ./test_gpt --compare FILE...        the same step by this build, a row for every tensor (make compare)
*/
#define TRAIN_GPT_NO_MAIN
#pragma GCC diagnostic ignored "-Wunused-function" // of the trainer's functions this file uses most, not all
#include "train_gpt.cu"

#include "dev/test/unit/test.h"

// ----------------------------------------------------------------------------------------------------------------
// Against PyTorch

typedef struct {
    SafeTensorsModel file;
    ModelConfig model;
    Settings settings; // of the optimizer
    CaatConfig sync;
    int B, T, steps;
    int document; // the token that begins one; -1: a sequence is one
} Reference;

static double metadata_number(const Reference* r, const char* key) {
    const char* text = safetensors_metadata(&r->file.files[0], key);
    if (!text) die("%s has no %s: make it again with dev/test/reference/make_reference.py", r->file.path, key);
    return atof(text);
}

static void reference_open(Reference* r, const char* path) {
    Error error;
    memset(r, 0, sizeof *r);
    if (!safetensors_model_open(&r->file, path, &error)) die("%s; make it with dev/test/reference/make_reference.py", error.text);
    const char* arch = safetensors_metadata(&r->file.files[0], "arch");
    ModelConfig* m = &r->model;
    m->name = path;
    m->arch = arch && strcmp(arch, "llama") == 0 ? ARCH_LLAMA : ARCH_GPT2;
    m->L = (int)metadata_number(r, "layers"), m->C = (int)metadata_number(r, "hidden");
    m->NH = (int)metadata_number(r, "heads"), m->NKV = (int)metadata_number(r, "kv_heads");
    m->F = (int)metadata_number(r, "ffn"), m->T = (int)metadata_number(r, "seq"),
    m->V = (int)metadata_number(r, "vocab");
    m->tied = metadata_number(r, "tied") != 0;
    m->eps = metadata_number(r, "eps"), m->rope_theta = metadata_number(r, "theta");
    r->B = (int)metadata_number(r, "B"), r->T = (int)metadata_number(r, "T"),
    r->steps = (int)metadata_number(r, "steps");
    Settings* o = &r->settings;
    o->lr = o->min_lr = metadata_number(r, "lr");
    o->beta1 = metadata_number(r, "beta1"), o->beta2 = metadata_number(r, "beta2");
    o->eps = metadata_number(r, "eps_adam"), o->weight_decay = metadata_number(r, "weight_decay");
    o->clip = metadata_number(r, "clip");
    r->document = safetensors_metadata(&r->file.files[0], "document") ? (int)metadata_number(r, "document") : -1;
    if (!safetensors_metadata(&r->file.files[0], "sync")) return;
    r->sync.ranks = (int)metadata_number(r, "sync_ranks"), r->sync.share = metadata_number(r, "sync");
}

// Element i of one of the file's tensors, as a number (float32 weights, float64 losses, int32 tokens).
static double* reference_numbers(const Reference* r, const char* name, int64_t expected) {
    const SafeTensors* st;
    const SafeTensor* tensor = safetensors_model_find(&r->file, name, &st);
    if (!tensor) die("%s: %s is missing", r->file.path, name);
    const int64_t n = tensor->elements;
    if (n != expected)
        die("%s: %s has %lld elements, expected %lld", r->file.path, name, (long long)n, (long long)expected);
    double* out = (double*)checked_malloc((size_t)n * sizeof(double), name);
    const unsigned char* data = st->file.data + tensor->offset;
    for (int64_t i = 0; i < n; i++) {
        float f;
        int32_t k;
        switch (tensor->dtype) {
        case SAFE_F64: memcpy(&out[i], data + 8 * i, 8); break;
        case SAFE_I32: memcpy(&k, data + 4 * i, 4), out[i] = k; break;
        default: memcpy(&f, data + 4 * i, 4), out[i] = (double)f;
        }
    }
    return out;
}

// Unit roundoff of floatX.
static const double u = sizeof(floatX) == sizeof(float) ? 0x1p-24 : NEEDS_LOSS_SCALE ? 0x1p-11 : 0x1p-8;

// n floats of device memory, and n floatX, in new host memory.
static float* host_floats(const float* device, int64_t n) {
    float* host = (float*)checked_malloc((size_t)n * sizeof(float), "test");
    device_to_host(host, device, (size_t)n * sizeof(float));
    return host;
}
static float* host_values(const floatX* device, int64_t n) {
    float* host = (float*)checked_malloc((size_t)n * sizeof(float), "test");
    device_to_floats(host, device, n);
    return host;
}

// One of the three values of all parameters, without ZeRO.
static float* host_state(const Stage* s, int what) { return host_floats(stage_values(s, what).at, s->layout.elements); }

// Whether all parameters of two stages, as they are computed with and as they are kept, and their moments are the same.
static bool same_state(const Stage* a, const Stage* b) {
    const size_t n = (size_t)a->layout.elements;
    float *x = host_values(a->params, (int64_t)n), *y = host_values(b->params, (int64_t)n);
    bool same = memcmp(x, y, n * sizeof(float)) == 0;
    for (int what = 0; what < CHECKPOINT_VALUES; what++) {
        free(x), free(y);
        x = host_state(a, what), y = host_state(b, what);
        same = same && memcmp(x, y, n * sizeof(float)) == 0;
    }
    free(x), free(y);
    return same;
}

// The file's tensor PREFIX + name of a slice, as it lies in memory.
static double* reference_slice(const Reference* r, const Slice* slice, const char* prefix) {
    const int64_t n = slice->rows * slice->cols;
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix, slice->tensor.name);
    float* values = (float*)checked_calloc((size_t)n, sizeof(float), "test");
    double* out = (double*)checked_malloc((size_t)n * sizeof(double), "test");
    Error error;
    if (!slice_read(values, &r->file, name, slice, &error)) die("%s", error.text);
    for (int64_t e = 0; e < n; e++) out[e] = (double)values[e];
    free(values);
    return out;
}

// Compares a buffer laid out like the parameters with the file's tensors PREFIX + name; returns the worst error of a
// tensor, relative to the tensor's largest entry.
static double compare_all(const Reference* r, const Stage* s, const float* buffer, const char* prefix,
                          const char** worst_name) {
    double worst = 0;
    *worst_name = "";
    for (int i = 0; i < s->layout.n; i++) {
        const Slice* slice = &s->layout.slices[i];
        double* expected = reference_slice(r, slice, prefix);
        const double difference = relative_error(buffer + slice->offset, expected, slice->rows * slice->cols);
        if (!(difference <= worst)) worst = difference, *worst_name = slice->tensor.name;
        free(expected);
    }
    return worst;
}

static void load_reference_batch(const Stage* s, Activations* a, TokenBatch* batch, const double* tokens, int step,
                                 const Reference* r) {
    const int B = r->B, T = r->T;
    activations_bind(a, s, 0, 0, B, T, -1);
    batch_reserve(batch, (int64_t)B * T);
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++) {
            const double* at = tokens + ((int64_t)step * B + b) * (T + 1) + t;
            batch->host[b * T + t] = (int32_t)at[0], batch->host[(B + b) * T + t] = (int32_t)at[1];
            int32_t* position = &batch->host[(2 * B + b) * T + t];
            *position = t == 0 || (int)at[0] == r->document ? 0 : position[-1] + 1;
        }
    }
    device_from_host(batch->device, batch->host, 3 * (size_t)B * T * sizeof(int32_t));
    a->inputs = batch->device, a->targets = batch->device + (int64_t)B * T;
    if (r->document >= 0) a->positions = batch->device + (int64_t)2 * B * T;
}

// The logits (N, V) of the whole vocabulary; a CAAT-Net's lie state by state, padded.
static float* host_logits(const Stage* s, const Activations* a) {
    const Layout* layout = &s->layout;
    float* by_state = host_values(a->head->logits, (int64_t)a->N * layout->V);
    float* logits = (float*)checked_malloc((size_t)a->tokens * (size_t)s->model.V * sizeof(float), "test");
    for (int i = 0; i < layout->states; i++) {
        for (int n = 0; n < a->tokens; n++)
            memcpy(logits + (int64_t)n * s->model.V + layout_vocab_offset(layout, i),
                   by_state + ((int64_t)i * a->tokens + n) * layout->V,
                   (size_t)layout_tokens(layout, i) * sizeof(float));
    }
    free(by_state);
    return logits;
}

// Groups of one rank.
static ProcessGroups groups_alone(Comm* world, const Stage* s) {
    ProcessGroups groups;
    comm_open(world);
    process_groups_init(&groups, world, &s->layout, &s->model);
    return groups;
}

// A stage of one rank, with one micro-batch. Its weights are not set.
typedef struct {
    Stage stage;
    Schedule schedule;
    Comm world;
    ProcessGroups groups;
    TokenBatch batch;
} Alone;

static void alone_plan(Alone* x, const ModelConfig* m, CaatConfig sync, int B, int T) {
    memset(x, 0, sizeof *x);
    const PipelineConfig plan = {ONE_F_ONE_B, 1, 1, 1, false, m->tied, true};
    Mesh mesh = mesh_of_rank(0, 1, 1, 1);
    Error error;
    mesh.sync = sync;
    x->schedule = schedule_build(&plan, 0);
    if (!stage_plan(&x->stage, m, mesh, B, T, &x->schedule, NULL, native_dtype(), &error)) die("%s", error.text);
    stage_allocate(&x->stage);
    x->groups = groups_alone(&x->world, &x->stage);
    x->stage.groups = &x->groups;
}

static void alone_close(Alone* x) {
    batch_free(&x->batch);
    groups_close(&x->groups);
    stage_free(&x->stage);
    schedule_free(&x->schedule);
}

static void reference_weights(Alone* x, const Reference* r) {
    const Stage* s = &x->stage;
    Error error;
    float* weights = weights_begin(s);
    for (int i = 0; i < s->layout.n; i++) {
        const Slice* slice = &s->layout.slices[i];
        char name[128];
        snprintf(name, sizeof name, "init.%s", slice->tensor.name);
        if (!slice_read(weights + slice->offset, &r->file, name, slice, &error)) die("%s", error.text);
    }
    weights_end(s, weights);
}

// What one step computes. Only where it is asked for (keep) all but loss and norm; the caller frees it.
typedef struct {
    double loss, norm;
    float *logits, *grads; // (N, V), layout.elements
    float** x;             // layers + 1 of (R, C)
} ReferenceStep;

static ReferenceStep reference_step(Alone* run, const Reference* r, const double* tokens, int step, bool keep) {
    Stage* s = &run->stage;
    Activations* a = &s->activations[0];
    ReferenceStep got;
    memset(&got, 0, sizeof got);
    load_reference_batch(s, a, &run->batch, tokens, step, r);
    const int N = r->B * r->T;
    stage_begin_gradients(s);
    device_zero(s->sums, (size_t)(s->layout.tensors + 1) * sizeof(double));
    a->scale = 0; // logits stay
    chunk_forward(s, a);
    if (keep) {
        got.logits = host_logits(s, a);
        got.x = (float**)checked_malloc((size_t)(r->model.L + 1) * sizeof(float*), "test");
        for (int l = 0; l <= r->model.L; l++) got.x[l] = host_values(a->x[l], (int64_t)a->R * r->model.C);
    }
    a->scale = (float)(NEEDS_LOSS_SCALE ? 1 : 1.0 / N); // and now become their gradient
    chunk_forward(s, a);
    losses_add(s->sums + s->layout.tensors, a->head->losses, N);
    const Backward backward = {s, a, &s->gradients[0][0], BOTH_HALVES, true};
    chunk_backward(&backward);
    for (int b = 0; b < s->layout.buckets; b++) gradient_squares(s, b);
    double* sums = (double*)checked_malloc((size_t)(s->layout.tensors + 1) * sizeof(double), "test");
    device_to_host(sums, s->sums, (size_t)(s->layout.tensors + 1) * sizeof(double));
    const double factor = NEEDS_LOSS_SCALE ? N : 1;
    int not_finite;
    got.loss = sums[s->layout.tensors] / N;
    got.norm = gradient_norm(sums, s->layout.tensors, &not_finite) / factor;
    free(sums);
    if (keep) {
        got.grads = host_floats(s->grads.all, s->layout.elements);
        for (int64_t e = 0; e < s->layout.elements; e++) got.grads[e] /= (float)factor;
    }
    const double clip = r->settings.clip > 0 && got.norm > r->settings.clip ? r->settings.clip / (got.norm + 1e-6) : 1;
    chunk_optimizer_step(s, 0, &r->settings, step + 1, r->settings.lr, clip / factor);
    return got;
}

static void reference_step_free(ReferenceStep* got, const Reference* r) {
    for (int l = 0; l <= r->model.L && got->x; l++) free(got->x[l]);
    free(got->x), free(got->logits), free(got->grads);
}

// The bound of a result that `stages` kernels in a row have made. Each rounds what it writes to floatX, an error of u, and
// has summed K products in float32, an error of sqrt(K) 2^-24 (Higham 2002, section 4.5: errors of random sign); so has
// the reference, if it is the CPU's. Errors of different kernels are independent: sqrt(stages) of them add up. Five: the
// largest of a million normally distributed numbers is five standard deviations.
static double bound_of(const Reference* r, double stages) {
    const int N = r->B * r->T, F = r->model.F, V = r->model.V, C = r->model.C;
    const double K = (double)max_i64(max_i64(N, F), max_i64(V, C));
    return 5 * sqrt(stages) * ((HAS_MASTER_WEIGHTS ? u : 0) + 2 * sqrt(K) * 0x1p-24);
}

// The kernels of a forward pass up to layer l (8 a block), and of both passes back to layer l.
static double stages_to(int l) { return 8.0 * l + 4; }
static double stages_back_to(const Reference* r, int l) { return stages_to(r->model.L) + stages_to(r->model.L - l); }

static void compare_forward(const Reference* r, const ReferenceStep* got, const double* logits, int64_t N) {
    char what[128];
    for (int l = 0; l <= r->model.L; l++) {
        const SafeTensors* st;
        snprintf(what, sizeof what, "x.%d", l);
        if (!safetensors_model_find(&r->file, what, &st)) break; // PyTorch's references have none
        double* expected = reference_numbers(r, what, N * r->model.C);
        snprintf(what, sizeof what, "forward   x before block %d", l);
        if (l == r->model.L) snprintf(what, sizeof what, "forward   x after the last block");
        check_error(what, relative_error(got->x[l], expected, N * r->model.C), bound_of(r, stages_to(l)));
        free(expected);
    }
    check_error("forward   logits", relative_error(got->logits, logits, N * r->model.V),
                bound_of(r, stages_to(r->model.L)));
}

static void compare_gradients(const Reference* r, const Stage* s, const float* grads) {
    for (int i = 0; i < s->layout.n; i++) {
        const Slice* slice = &s->layout.slices[i];
        double* expected = reference_slice(r, slice, "grad.");
        char what[128];
        snprintf(what, sizeof what, "gradient  %s", slice->tensor.name);
        check_error(what, relative_error(grads + slice->offset, expected, slice->rows * slice->cols),
                    bound_of(r, stages_back_to(r, (int)max_i64(slice->tensor.layer, 0))));
        free(expected);
    }
}

// What the updates have changed, relative to the tensor's largest change. AdamW divides the gradient g, which clipping
// has multiplied by `factor`, by |g| + eps: an error of g, bound_of() times the largest, moves a parameter by at most
// lr / eps times it a step, and by 2 lr if it turns g's sign. Then the sum is rounded to float32.
static void compare_update(const Reference* r, const Stage* s, const float* params, double factor) {
    for (int i = 0; i < s->layout.n; i++) {
        const Slice* slice = &s->layout.slices[i];
        const int64_t n = slice->rows * slice->cols;
        double *before = reference_slice(r, slice, "init."), *after = reference_slice(r, slice, "final.");
        double* grad = reference_slice(r, slice, "grad.");
        double error = 0, change = 0, largest = 0, steepest = 0;
        for (int64_t e = 0; e < n; e++) {
            const double difference = fabs((double)params[slice->offset + e] - after[e]);
            if (!(difference <= error)) error = isnan(difference) ? INFINITY : difference;
            change = fmax(change, fabs(after[e] - before[e]));
            largest = fmax(largest, fabs(after[e]));
            steepest = fmax(steepest, factor * fabs(grad[e]));
        }
        const double relative = bound_of(r, stages_back_to(r, (int)max_i64(slice->tensor.layer, 0)));
        const double moved = r->settings.lr * fmin(2, relative * steepest / r->settings.eps);
        char what[128];
        snprintf(what, sizeof what, "update    %s", slice->tensor.name);
        check_error(what, error / change, r->steps * (moved + largest * 0x1p-23) / change);
        free(before), free(after), free(grad);
    }
}

// Beside a file of numbers (dev/test/reference/make_reference.py). rows: each tensor by itself.
static void test_reference(const char* path, bool rows) {
    Reference reference;
    Reference* r = &reference;
    reference_open(r, path);
    const int N = r->B * r->T;
    printf("-- %s: %d sequences of %d tokens, here in %s\n", path, r->B, r->T, FLOATX_NAME);
    Alone run;
    alone_plan(&run, &r->model, r->sync, r->B, r->T);
    reference_weights(&run, r);
    Stage* s = &run.stage;
    double* tokens = reference_numbers(r, "tokens", (int64_t)r->steps * r->B * (r->T + 1));
    double* logits = reference_numbers(r, "logits", (int64_t)N * r->model.V);
    double* losses = reference_numbers(r, "losses", r->steps);
    double* norms = reference_numbers(r, "grad_norms", r->steps);
    const double backward_bound = bound_of(r, stages_back_to(r, 0));
    const char* worst;
    char what[128];
    double loss_error = 0, norm_error = 0, factor = 0;
    for (int step = 0; step < r->steps; step++) {
        ReferenceStep got = reference_step(&run, r, tokens, step, step == 0);
        loss_error = fmax(loss_error, fabs(got.loss - losses[step]) / losses[step]);
        norm_error = fmax(norm_error, fabs(got.norm - norms[step]) / norms[step]);
        factor = fmax(factor, r->settings.clip > 0 ? fmin(1, r->settings.clip / norms[step]) : 1);
        if (step == 0 && rows) {
            compare_forward(r, &got, logits, N);
            check_error("forward   loss", loss_error, bound_of(r, stages_to(r->model.L)));
            compare_gradients(r, s, got.grads);
        } else if (step == 0) {
            const double difference = relative_error(got.logits, logits, (int64_t)N * r->model.V);
            check_error("logits", difference, bound_of(r, stages_to(r->model.L)));
            const double error = compare_all(r, s, got.grads, "grad.", &worst);
            snprintf(what, sizeof what, "gradients, worst of %d tensors: %s", s->layout.n, worst);
            check_error(what, error, backward_bound);
        }
        reference_step_free(&got, r);
    }
    snprintf(what, sizeof what, "gradient norm%s of %d step%s", r->steps > 1 ? "s" : "", r->steps,
             r->steps > 1 ? "s" : "");
    if (!rows || r->steps > 1) check_error("losses of all steps", loss_error, backward_bound);
    check_error(what, norm_error, 2 * backward_bound);
    float* got = host_state(s, 0);
    if (rows) {
        compare_update(r, s, got, factor);
    } else {
        // A parameter moves by lr a step times the relative error of its gradient. The bound above is relative to a
        // tensor's largest entry; a smaller one has a larger relative error, but these models are made with eps = 1e-3,
        // which damps the small. Ten stands for what is left. (Any setting of the optimizer that is off by 1 % moves
        // parameters by 3e-4 and more.)
        const double error = compare_all(r, s, got, "final.", &worst);
        snprintf(what, sizeof what, "parameters after %d AdamW steps, worst: %s", r->steps, worst);
        check_error(what, error, r->steps * r->settings.lr * 10 * backward_bound);
    }
    free(got), free(tokens), free(logits), free(losses), free(norms);
    alone_close(&run);
    safetensors_model_close(&r->file);
}

// ----------------------------------------------------------------------------------------------------------------
// What this build computes as such a file, for another one to be compared with

typedef struct {
    SafeTensor* tensor;
    void** data; // of each, freed at the end
    int n;
} ReferenceFile;

static void file_add(ReferenceFile* f, const char* prefix, const char* name, SafeDtype dtype, int ndim,
                     const int64_t* shape, void* data) {
    f->tensor = (SafeTensor*)realloc(f->tensor, (size_t)(f->n + 1) * sizeof *f->tensor);
    f->data = (void**)realloc(f->data, (size_t)(f->n + 1) * sizeof *f->data);
    char* whole = (char*)checked_malloc(strlen(prefix) + strlen(name) + 1, "test");
    if (!f->tensor || !f->data) die("out of memory");
    strcat(strcpy(whole, prefix), name);
    SafeTensor* t = &f->tensor[f->n];
    memset(t, 0, sizeof *t);
    t->name = whole, t->dtype = dtype, t->ndim = ndim;
    memcpy(t->shape, shape, (size_t)ndim * sizeof *shape);
    f->data[f->n++] = data;
}

// All tensors of a buffer laid out like the parameters, as files have them.
static void file_add_all(ReferenceFile* f, const Stage* s, const char* prefix, const float* buffer) {
    for (int i = 0; i < s->layout.n; i++) {
        const Slice* slice = &s->layout.slices[i];
        int64_t shape[2];
        const int ndim = tensor_file_shape(shape, &slice->tensor);
        float* out = (float*)checked_malloc((size_t)(shape[0] * (ndim > 1 ? shape[1] : 1)) * sizeof(float), "test");
        for (int64_t k = 0; k < slice_runs(slice); k++) {
            const Run run = slice_run(slice, k);
            for (int64_t j = 0; j < run.count; j++)
                out[run.file + j] = buffer[slice->offset + run.local + j * run.stride];
        }
        file_add(f, prefix, slice->tensor.name, SAFE_F32, ndim, shape, out);
    }
}

static void file_write(ReferenceFile* f, const char* path, const Reference* r) {
    const ModelConfig* m = &r->model;
    const Settings* o = &r->settings;
    static const char* const keys[] = {"arch",  "layers", "hidden", "heads", "kv_heads", "ffn",         "vocab",
                                       "seq",   "tied",   "B",      "T",     "steps",    "eps",         "theta",
                                       "beta1", "beta2",  "lr",     "clip",  "eps_adam", "weight_decay"};
    const int sizes[] = {m->L, m->C, m->NH, m->NKV, m->F, m->V, m->T, m->tied, r->B, r->T, r->steps};
    const double reals[] = {m->eps, m->rope_theta, o->beta1, o->beta2, o->lr, o->clip, o->eps, o->weight_decay};
    enum { KEYS = sizeof keys / sizeof *keys, SIZES = sizeof sizes / sizeof *sizes };
    SafeMetadata metadata[KEYS];
    char text[KEYS][32];
    for (int i = 0; i < KEYS; i++) {
        snprintf(text[i], sizeof text[i], "%s", m->arch == ARCH_LLAMA ? "llama" : "gpt2");
        if (i > 0) snprintf(text[i], sizeof text[i], "%.17g", i <= SIZES ? sizes[i - 1] : reals[i - 1 - SIZES]);
        metadata[i].key = keys[i], metadata[i].value = text[i];
    }
    SafeTensorsLayout plan;
    SafeTensorsFile file;
    Error error;
    if (!safetensors_layout(&plan, f->tensor, f->n, metadata, KEYS, &error) ||
        !safetensors_create(&file, path, &plan, &error))
        die("%s", error.text);
    for (int i = 0; i < f->n; i++) {
        if (!safetensors_write_at(&file, f->tensor[i].offset, f->data[i], f->tensor[i].bytes, &error))
            die("%s", error.text);
        free((void*)f->tensor[i].name), free(f->data[i]);
    }
    if (!safetensors_finish(&file, &error)) die("%s", error.text);
    safetensors_layout_free(&plan);
    free(f->tensor), free(f->data);
}

// Weights as large as those of a trained model, so that attention is far from uniform and every gradient stands far
// above rounding; all are bf16 numbers, which every build holds exactly.
static void draw_reference_weights(float* weights, const Layout* layout) {
    layout_initialize(weights, layout, 4);
    for (int i = 0; i < layout->n; i++) {
        const Slice* slice = &layout->slices[i];
        const float size = slice->tensor.vector ? 0.3f : (float)sqrt(12.0 / (double)slice->cols);
        for (int64_t k = 0; k < slice->rows_used * slice->cols; k++) {
            float* w = &weights[slice->offset + k];
            *w = bf16_to_f32(f32_to_bf16(*w + size * (random_uniform((uint64_t)i, 5, (uint64_t)k) - 0.5f)));
        }
    }
}

// `name` is a preset or one of two small models. One step, of four sequences of 64 tokens.
static Reference reference_of(const char* name) {
    const ModelConfig gpt2 = model_gpt2(2, 128, 2, 64, 1000), llama = model_llama(2, 128, 2, 1, 352, 64, 1000);
    const ModelConfig* m = model_find_preset(name);
    if (strcmp(name, "gpt2") == 0) m = &gpt2;
    if (strcmp(name, "llama") == 0) m = &llama;
    if (!m) die_usage("--write FILE %s: there is no such model; gpt2, llama, or one of train_gpt --model", name);
    Reference r;
    memset(&r, 0, sizeof r);
    r.model = *m, r.model.T = 64;
    r.B = 4, r.T = 64, r.steps = 1, r.document = -1;
    Settings* o = &r.settings;
    o->lr = o->min_lr = 0.1, o->beta1 = 0.9, o->beta2 = 0.95, o->weight_decay = 0.1, o->clip = 1;
    o->eps = 0.1; // as large as gradients are: see compare_update
    return r;
}

static void write_reference(const char* path, const char* name) {
    const Reference r = reference_of(name);
    Alone run;
    alone_plan(&run, &r.model, r.sync, r.B, r.T);
    const Stage* s = &run.stage;
    float* weights = weights_begin(s);
    draw_reference_weights(weights, &s->layout);
    ReferenceFile f = {NULL, NULL, 0};
    file_add_all(&f, s, "init.", weights);
    weights_end(s, weights);
    const int64_t V = r.model.V, tokens[] = {1, r.B, r.T + 1}, logits[] = {r.B * r.T, V}, x[] = {r.B * r.T, r.model.C},
                  one[] = {1};
    const int n = r.B * (r.T + 1);
    int32_t* token = (int32_t*)checked_malloc((size_t)n * sizeof *token, "test");
    double* number = (double*)checked_malloc((size_t)n * sizeof *number, "test");
    for (int i = 0; i < n; i++) number[i] = token[i] = (int32_t)(random_uniform(3, 3, (uint64_t)i) * (float)V);
    file_add(&f, "", "tokens", SAFE_I32, 3, tokens, token);
    const ReferenceStep got = reference_step(&run, &r, number, 0, true);
    file_add(&f, "", "logits", SAFE_F32, 2, logits, got.logits);
    for (int l = 0; l <= r.model.L; l++) {
        char what[16];
        snprintf(what, sizeof what, "x.%d", l);
        file_add(&f, "", what, SAFE_F32, 2, x, got.x[l]);
    }
    number[0] = got.loss;
    file_add(&f, "", "losses", SAFE_F64, 1, one, number);
    number = (double*)checked_malloc(sizeof *number, "test");
    *number = got.norm;
    file_add(&f, "", "grad_norms", SAFE_F64, 1, one, number);
    file_add_all(&f, s, "grad.", got.grads);
    float* after = host_state(s, 0);
    file_add_all(&f, s, "final.", after);
    free(after), free(got.grads), free(got.x);
    file_write(&f, path, &r);
    alone_close(&run);
}

// ----------------------------------------------------------------------------------------------------------------
// Finite differences

// With random tokens.
static void alone_open(Alone* x, const ModelConfig* m, CaatConfig sync, int B) {
    alone_plan(x, m, sync, B, m->T);
    Activations* a = &x->stage.activations[0];
    activations_bind(a, &x->stage, 0, 0, B, m->T, -1);
    batch_reserve(&x->batch, a->tokens);
    for (int i = 0; i < 2 * a->tokens; i++)
        x->batch.host[i] = (int32_t)(random_uniform(3, 3, (uint64_t)i) * (float)m->V);
    device_from_host(x->batch.device, x->batch.host, 2 * (size_t)a->tokens * sizeof(int32_t));
    a->inputs = x->batch.device, a->targets = x->batch.device + a->tokens;
}

// The mean loss with other parameters: those of x plus h times direction (layout.elements each).
static double loss_at(Alone* x, const float* params, const float* direction, double h) {
    Stage* s = &x->stage;
    Activations* a = &s->activations[0];
    const int64_t n = s->layout.elements;
    float* moved = (float*)checked_malloc((size_t)n * sizeof(float), "test");
    for (int64_t i = 0; i < n; i++) moved[i] = (float)((double)params[i] + h * (double)direction[i]);
    device_from_floats(s->params, moved, n);
    free(moved);
    a->scale = 0;
    chunk_forward(s, a);
    float* losses = host_floats(a->head->losses, a->tokens);
    double sum = 0;
    for (int i = 0; i < a->tokens; i++) sum += (double)losses[i];
    free(losses);
    return sum / a->tokens;
}

// The derivative of the loss along a direction, by the four-point formula: its error is h^4 / 30 of the fifth derivative.
static double slope_at(Alone* x, const float* params, const float* direction) {
    const double h = 0.01;
    const double near = loss_at(x, params, direction, h) - loss_at(x, params, direction, -h);
    const double far = loss_at(x, params, direction, 2 * h) - loss_at(x, params, direction, -2 * h);
    return (8 * near - far) / (12 * h);
}

// Every tensor, along its gradient and along a random direction of length 1. The loss, some 5, is known to about 1e-7 (its
// roundings are random, and those of 32 tokens are averaged), which makes 1e-5 of a slope; slopes are 0.02 to 2. A bound of 1e-4
// leaves room for the fifth derivative: h = 0.02, where its part is 16 times as large, made 4e-4 of the worst 2e-5.
static void test_slopes(Arch arch, int ranks, double share) {
    const bool gpt = arch == ARCH_GPT2;
    ModelConfig m = model_of(arch, 2, 32, 4, 4, 44, 16, 61);
    m.tied = gpt;
    const CaatConfig sync = {ranks, share, SYNC_RUNTIME, false};
    Alone alone;
    alone_open(&alone, &m, sync, 2);
    Stage* s = &alone.stage;
    Activations* a = &s->activations[0];
    const int64_t n = s->layout.elements;
    float* params = (float*)checked_calloc((size_t)n, sizeof(float), "test");
    layout_initialize(params, &s->layout, 4);
    for (int i = 0; i < s->layout.n; i++) { // larger, and no zeros: every gradient stands far above rounding
        const Slice* slice = &s->layout.slices[i];
        for (int64_t k = 0; k < slice->rows_used * slice->cols; k++)
            params[slice->offset + k] += 0.3f * (random_uniform((uint64_t)i, 5, (uint64_t)k) - 0.5f);
    }
    device_from_floats(s->params, params, n);
    stage_begin_gradients(s);
    a->scale = 1.0f / (float)a->tokens;
    chunk_forward(s, a);
    const Backward backward = {s, a, &s->gradients[0][0], BOTH_HALVES, true};
    chunk_backward(&backward);
    float* gradient = host_floats(s->grads.all, n);
    float* direction = (float*)checked_malloc((size_t)n * sizeof(float), "test");
    double worst = 0;
    const char* where = "";
    for (int tensor = 0; tensor < s->layout.tensors; tensor++) {
        const char* name = "";
        for (int random = 0; random < 2; random++) {
            double length = 0, expected = 0;
            memset(direction, 0, (size_t)n * sizeof(float));
            for (int i = 0; i < s->layout.n; i++) {
                const Slice* slice = &s->layout.slices[i];
                if (slice->index != tensor) continue;
                name = slice->tensor.name;
                for (int64_t k = slice->offset; k < slice->offset + slice->rows_used * slice->cols; k++) {
                    direction[k] = random ? random_uniform(9, 9, (uint64_t)k) - 0.5f : gradient[k];
                    length += (double)direction[k] * (double)direction[k];
                }
            }
            length = sqrt(length);
            if (length < 1e-6) continue; // gpt2's key biases have no gradient
            for (int64_t k = 0; k < n; k++) {
                direction[k] = (float)((double)direction[k] / length);
                expected += (double)direction[k] * (double)gradient[k];
            }
            const double error = fabs(slope_at(&alone, params, direction) - expected);
            if (!(error <= worst)) worst = error, where = name;
        }
    }
    char what[160];
    snprintf(what, sizeof what, "%s, %d states, p = %g: slopes of the loss, worst of %d tensors: %s",
             gpt ? "gpt2" : "llama", ranks, share, s->layout.tensors, where);
    check_error(what, worst, 1e-4);
    free(params), free(gradient), free(direction);
    alone_close(&alone);
}

// At the initial weights private channels are as large as shared ones, which are sums of N independent parts: with either
// scale; without, they are sqrt(N) times smaller. 8192 numbers each, alike in some 50 ways: a standard deviation to 10 %.
static void test_private_channels(SyncScale scale, double expected) {
    const ModelConfig m = model_llama(2, 128, 4, 4, 256, 64, 61);
    const CaatConfig sync = {4, 0.5, scale, false};
    Alone alone;
    alone_open(&alone, &m, sync, 2);
    Stage* s = &alone.stage;
    Activations* a = &s->activations[0];
    random_init_weights(s, 1);
    chunk_forward(s, a);
    float *before = host_values(a->x[0], (int64_t)a->N * m.C), *after = host_values(a->x[1], (int64_t)a->N * m.C);
    double squares[2] = {0, 0};
    bool alike = true;
    for (int64_t i = 0; i < (int64_t)a->N * m.C; i++) {
        const double added = (double)after[i] - (double)before[i];
        const bool shared = i % m.C < s->layout.shared;
        squares[shared] += added * added;
        if (shared) alike = alike && after[i] == after[i % ((int64_t)a->tokens * m.C)];
    }
    const double ratio = sqrt(squares[0] / squares[1]);
    check(fabs(ratio / expected - 1) < 0.1,
          "scale %s: what a block adds to private channels is %.3f times as large as to shared "
          "ones, expected %.1f",
          sync_scale_names[scale], ratio, expected);
    check(alike, "and shared channels are the same bits in all states");
    free(before), free(after);
    alone_close(&alone);
}

// A logit of some hundreds, in any of the states: e to its power is more than float32 holds, and the loss is a number all the
// same. (The maximum of the other states would do for smaller ones.)
static void test_large_logits(int state) {
    const ModelConfig m = model_llama(1, 32, 4, 4, 44, 16, 61);
    const CaatConfig sync = {4, 0.5, SYNC_RUNTIME, false};
    Alone alone;
    alone_open(&alone, &m, sync, 2);
    Stage* s = &alone.stage;
    const int64_t n = s->layout.elements;
    float* params = (float*)checked_calloc((size_t)n, sizeof(float), "test");
    layout_initialize(params, &s->layout, 4);
    float* row = params + layout_slice_of_state(&s->layout, -1, HEAD_W, state)->offset;
    row[0] = 300, row[m.C] = -300; // of two tokens: one has a large logit, whatever the channel's sign
    const double loss = loss_at(&alone, params, params, 0);
    check(isfinite(loss) && loss > 88, "a large logit of state %d: the loss is %.1f", state, loss);
    free(params);
    alone_close(&alone);
}

// brief, and on what emulates a GPU: every fifth of the models, which are of each kind all the same.
static void test_caat(bool brief) {
    for (int state = 0; state < 4; state++) test_large_logits(state);
    static const double shares[] = {0, 0.25, 0.5, 1};
    for (int i = 0; i < 24 && sizeof(floatX) == sizeof(float); i += brief || !DEVICE_IS_HOST ? 5 : 1)
        test_slopes(i % 2 ? ARCH_LLAMA : ARCH_GPT2, 1 << i / 2 % 3, shares[i / 6]);
    test_private_channels(SYNC_RUNTIME, 1);
    test_private_channels(SYNC_INIT, 1);
    test_private_channels(SYNC_NONE, 0.5);
}

// ----------------------------------------------------------------------------------------------------------------
// Against itself: whole runs of the trainer's step on a small text

static const char* text_path = "build/test_gpt_" FLOATX_NAME ".txt";

static void write_data_file(void) {
    FILE* f = fopen(text_path, "w");
    if (!f) die("%s: cannot write; run from the project's folder", text_path);
    for (int i = 0; i < 6000; i++) fputc('a' + (int)(random_uniform(5, 5, (uint64_t)i) * 26), f);
    if (fclose(f) != 0) die("%s: cannot write", text_path);
}

typedef struct {
    const ModelConfig* model;
    int micro_batch, global_batch, T, threads;
    ScheduleKind schedule;
    Recompute recompute;
} TestRun;

static void trainer_open(Trainer* t, const TestRun* run) {
    memset(t, 0, sizeof *t);
    t->settings = settings_default();
    Settings* o = &t->settings;
    o->data = text_path, o->micro_batch = run->micro_batch, o->global_batch = run->global_batch, o->steps = 6,
    o->warmup = 2;
    settings_rates(o, run->model);
    Error error;
    comm_open(&t->world);
    open_files(t);
    Mesh mesh = mesh_of_rank(0, 1, 1, 1);
    mesh.recompute = run->recompute, o->schedule = (int)run->schedule;
    if (!plan_schedule(t, run->model, &mesh, NULL, &error) ||
        !stage_plan(&t->stage, run->model, mesh, run->micro_batch, run->T, &t->schedule, NULL, native_dtype(), &error))
        die("%s", error.text);
    open_loaders(t, held_out_blocks(&t->settings));
    stage_allocate(&t->stage);
    process_groups_init(&t->groups, &t->world, &t->stage.layout, run->model);
    t->stage.groups = &t->groups;
    random_init_weights(&t->stage, 1);
}

static void trainer_close(Trainer* t) {
    groups_close(&t->groups);
    batch_free(&t->batch);
    stage_free(&t->stage);
    schedule_free(&t->schedule);
    sources_close(&t->train_files);
}

// Trains for t->settings.steps and returns a fingerprint of everything: losses, norms, parameters and moments.
static uint64_t fingerprint_of_run(const TestRun* run) {
    Trainer t;
#ifdef _OPENMP
    omp_set_num_threads(run->threads);
#endif
    trainer_open(&t, run);
    uint64_t h = 14695981039346656037ull;
    while (t.step < t.settings.steps) {
        train_step(&t);
        const double seen[2] = {t.loss, t.grad_norm};
        const unsigned char* bytes = (const unsigned char*)seen;
        for (size_t i = 0; i < sizeof seen; i++) h = (h ^ bytes[i]) * 1099511628211ull;
    }
    float* buffers[] = {host_values(t.stage.params, t.stage.layout.elements), host_state(&t.stage, 0),
                        host_state(&t.stage, 1), host_state(&t.stage, 2)};
    for (int b = 0; b < 4; b++) {
        const unsigned char* bytes = (const unsigned char*)buffers[b];
        for (size_t i = 0; i < (size_t)t.stage.layout.elements * sizeof(float); i++)
            h = (h ^ bytes[i]) * 1099511628211ull;
        free(buffers[b]);
    }
    trainer_close(&t);
    return h;
}

// On the CPU the order of all additions is fixed, whatever the cut into micro-batches; on a GPU the same kernels on the
// same shapes give the same bits.
static void test_same_bits(const ModelConfig* m) {
    const int T = 24;
    const Recompute none = RECOMPUTE_NONE;
    const TestRun plain = {m, 4, 8, T, 1, ONE_F_ONE_B, none};
    const uint64_t expected = fingerprint_of_run(&plain);
    const TestRun others[] = {{m, 4, 8, T, 2, ONE_F_ONE_B, none}, {m, 4, 8, T, 3, ONE_F_ONE_B, none},
                              {m, 1, 8, T, 2, ONE_F_ONE_B, none}, {m, 2, 8, T, 1, ONE_F_ONE_B, none},
                              {m, 8, 8, T, 2, ONE_F_ONE_B, none}, {m, 4, 8, T, 2, ONE_F_ONE_B, RECOMPUTE_SELECTIVE},
                              {m, 4, 8, T, 2, ZB_H1, none},       {m, 2, 8, T, 1, ONE_F_ONE_B, RECOMPUTE_FULL},
                              {m, 1, 8, T, 1, ZB_H1, none},       {m, 2, 8, T, 2, ZB_H1, RECOMPUTE_SELECTIVE},
                              {m, 2, 8, T, 2, GPIPE, none}};
    static const char* recomputed[] = {"", ", norms and activation functions computed again", ", all computed again"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const TestRun* r = &others[i];
        if (!DEVICE_IS_HOST && r->micro_batch != plain.micro_batch) continue;
        check(fingerprint_of_run(r) == expected,
              "%s: the same bits after 6 steps: %s, %d thread%s, micro-batches of %d%s", m->name,
              schedule_name(r->schedule), r->threads, r->threads == 1 ? "" : "s", r->micro_batch,
              recomputed[r->recompute]);
    }
    const TestRun other_batch = {m, 4, 12, T, 1, ONE_F_ONE_B, none}; // the fingerprint can tell runs apart
    check(fingerprint_of_run(&other_batch) != expected, "%s: other bits with another global batch", m->name);
}

// A checkpoint after three steps, loaded into a new process's memory, continues with the same bits.
static void test_resume_bits(const ModelConfig* m) {
    const TestRun run = {m, 4, 4, 24, 2, ONE_F_ONE_B, RECOMPUTE_NONE};
    Trainer a, b;
    trainer_open(&a, &run);
    char folder[] = "build/test_gpt_XXXXXX", path[4096];
    if (!mkdtemp(folder)) die("build: cannot make a folder");
    a.settings.out = folder;
    saver_open(&a.saver, &a.stage, folder, 0, 0, 1, NULL);
    for (int i = 0; i < 3; i++) train_step(&a);
    snprintf(path, sizeof path, "%s/step_00000009.tmp",
             folder); // as a save has left it that failed and could not be removed
    if (mkdir(path, 0777) != 0) die("%s: cannot make the folder", path);
    a.saver.left = 9;
    save_checkpoint(&a, false, false); // in the background, while a goes on
    check(access(path, F_OK) != 0 && a.saver.left < 0, "what a failed save has left goes before the next one");
    for (int i = 0; i < 3; i++) train_step(&a);
    finish_save(&a);
    check(!a.unsaved, "the checkpoint was saved");
    saver_free(&a.saver);

    trainer_open(&b, &run);
    b.settings.out = folder;
    b.settings.seed = a.settings.seed;
    check(checkpoint_newest(path, sizeof path, folder), "the checkpoint is found: %s", path);
    check(resume_checkpoint(&b) && b.step == 3, "it resumes at step 3");
    for (int i = 0; i < 3; i++) train_step(&b);
    check(a.sequences == 6 * 4 && b.sequences == 6 * 4, "six updates have consumed %lld and %lld sequences of 24",
          (long long)a.sequences, (long long)b.sequences);
    int32_t inputs[24], targets[24]; // the micro-batch in memory ends with the last sequence consumed
    Error error;
    const bool read = mix_sequence(inputs, targets, &b.train, 23, &error);
    const int32_t* last = b.batch.host + 3 * 24;
    check(read && memcmp(inputs, last, sizeof inputs) == 0 &&
              memcmp(targets, last + b.batch.tokens, sizeof targets) == 0,
          "the last of them is number 23 of the data");
    check(same_state(&a.stage, &b.stage) && a.loss == b.loss,
          "%s: the same bits after six steps and after three, a checkpoint and three more", m->name);
    trainer_close(&a);
    trainer_close(&b);
    char command[4200];
    snprintf(command, sizeof command, "rm -r %s", folder);
    if (system(command) != 0) die("%s failed", command);
}

// The validation loss is that of exactly the sequences asked for, however many fit a micro-batch: the same bits.
static void test_validation(const ModelConfig* m) {
    double losses[3];
    for (int i = 0; i < 3; i++) {
        const int micro_batch = i == 0 ? 4 : 1;
        const TestRun run = {m, micro_batch, 4, 24, 2, ONE_F_ONE_B, RECOMPUTE_NONE};
        Trainer t;
        trainer_open(&t, &run);
        t.settings.eval_sequences = i < 2 ? 6 : 7; // 4 + 2, or six times 1
        losses[i] = validate(&t);
        trainer_close(&t);
    }
    const double difference = fabs(losses[0] - losses[1]), bound = DEVICE_IS_HOST ? 0 : u * losses[0];
    check(difference <= bound && losses[0] != losses[2],
          "%s: validation on six sequences, in fours or one by one: %.9g", m->name, losses[0]);
}

// ----------------------------------------------------------------------------------------------------------------
// Documents: two sequences of 24 tokens, packed from documents of these lengths; no target of one is left out.

static const int packed_lengths[] = {7, 1, 16, 10, 2, 12}, packed_documents = 6;

// The loss of each token and the gradients of the mean loss of all 48, of rows [first, first + B T) of x's batch as B sequences
// of T; gradients add up. positions: on the device, or NULL.
static void documents_pass(Alone* x, float* losses, int first, int B, int T, const int32_t* positions, bool last) {
    Stage* s = &x->stage;
    Activations* a = &s->activations[0];
    activations_bind(a, s, 0, 0, B, T, -1);
    a->inputs = x->batch.device + first, a->targets = a->inputs + x->batch.tokens, a->positions = positions;
    a->scale = NEEDS_LOSS_SCALE ? 1 : 1.0f / (float)x->batch.tokens;
    chunk_forward(s, a);
    float* mine = host_floats(a->head->losses, B * T);
    memcpy(losses + first, mine, (size_t)(B * T) * sizeof(float));
    free(mine);
    const Backward backward = {s, a, &s->gradients[0][0], BOTH_HALVES, last};
    chunk_backward(&backward);
}

// The largest error of losses, relative to the largest; and of the gradient of a tensor.
static double documents_error(const Stage* s, const float* got, const float* want, const float* losses,
                              const float* want_losses, int N, double* loss_error, const char** where) {
    double worst = 0, *exact = (double*)checked_malloc((size_t)s->layout.elements * sizeof(double), "test");
    for (int64_t i = 0; i < s->layout.elements; i++) exact[i] = (double)want[i];
    for (int i = 0; i < s->layout.n; i++) {
        const Slice* slice = &s->layout.slices[i];
        const double error = relative_error(got + slice->offset, exact + slice->offset, slice->rows_used * slice->cols);
        if (!(error <= worst)) worst = error, *where = slice->tensor.name;
    }
    for (int i = 0; i < N; i++) exact[i] = (double)want_losses[i];
    *loss_error = relative_error(losses, exact, N);
    free(exact);
    return worst;
}

// Packed, they have the losses and gradients that they have each in a row of its own; the bound is that of test_reference
// for what is computed forth and back, twice. Packed without saying where they begin they have not.
static void test_documents(const ModelConfig* m, CaatConfig sync) {
    enum { ROWS = 2, T = 24, N = ROWS * T };
    Alone x;
    alone_open(&x, m, sync, ROWS);
    Stage* s = &x.stage;
    const double way = 8.0 * m->L + 4, bound = 16 * (HAS_MASTER_WEIGHTS ? sqrt(way) * u : way * sqrt(64.0) * u);
    float losses[3][N], *gradients[3];
    for (int i = 0; i < 2 * N; i++) x.batch.host[i] = x.batch.host[i] % m->V;
    int32_t* positions = x.batch.host + 2 * N;
    for (int d = 0, at = 0; d < packed_documents; d++) {
        for (int t = 0; t < packed_lengths[d]; t++) positions[at++] = t;
    }
    device_from_host(x.batch.device, x.batch.host, 3 * (size_t)N * sizeof(int32_t));
    random_init_weights(s, 1);
    for (int way_of = 0; way_of < 3; way_of++) { // packed, alone, without documents
        stage_begin_gradients(s);
        for (int d = 0, at = 0; way_of == 1 && d < packed_documents; at += packed_lengths[d++])
            documents_pass(&x, losses[1], at, 1, packed_lengths[d], NULL, d + 1 == packed_documents);
        if (way_of != 1)
            documents_pass(&x, losses[way_of], 0, ROWS, T, way_of == 0 ? x.batch.device + 2 * N : NULL, true);
        gradients[way_of] = host_floats(s->grads.all, s->layout.elements);
    }
    char what[160];
    const char *where = "", *unused;
    double loss_error, other_loss;
    const double error = documents_error(s, gradients[0], gradients[1], losses[0], losses[1], N, &loss_error, &where);
    const double other = documents_error(s, gradients[2], gradients[1], losses[2], losses[1], N, &other_loss, &unused);
    snprintf(what, sizeof what, "%s, %d states: losses of %d documents packed, and each alone", m->name,
             s->layout.states, packed_documents);
    check_error(what, loss_error, bound);
    snprintf(what, sizeof what, "    gradients, worst: %s", where);
    check_error(what, error, bound);
    check(other > bound && other > 50 * error && other_loss > 50 * loss_error,
          "    without documents they differ by %.1e, losses by %.1e", other, other_loss);
    for (int i = 0; i < 3; i++) free(gradients[i]);
    alone_close(&x);
}

// What the schedule's passes get: the positions of every micro-batch are those of its own inputs, in which token 7 begins a
// document; then a token that is decoded has none of them.
static void test_document_batches(const ModelConfig* m) {
    enum { TOKENS = 3000, T = 24, B = 2 };
    int32_t header[256] = {20240520, 1, TOKENS};
    uint16_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++) tokens[i] = (uint16_t)(random_uniform(5, 6, (uint64_t)i) * 40);
    FILE* f = fopen(text_path, "wb");
    if (!f || fwrite(header, sizeof header, 1, f) != 1 || fwrite(tokens, sizeof tokens, 1, f) != 1 || fclose(f) != 0)
        die("%s: cannot write", text_path);
    const TestRun run = {m, B, 8, T, 2, ONE_F_ONE_B, RECOMPUTE_NONE};
    Trainer t;
    trainer_open(&t, &run);
    t.settings.documents = true;
    documents_begin_at(&t.train_files.source[0].files, 7);
    Activations* a = &t.stage.activations[0];
    int wrong = 0, begins = 0;
    for (int step = 0; step < 3; step++) {
        const StepInput pass = {&t.schedule, &t.train, 8 * step, 8 * step + 8, true, NULL, NULL};
        load_batch(&t, &pass);
        for (int k = 0; k < 4; k++) {
            int32_t inputs[B * T], positions[B * T];
            bind_microbatch(&t, a, &pass, 0, k);
            device_to_host(inputs, a->inputs, sizeof inputs);
            device_to_host(positions, a->positions, sizeof positions);
            for (int i = 0; i < B * T; i++) {
                const bool begin = i % T == 0 || inputs[i] == 7;
                wrong += positions[i] != (begin ? 0 : positions[i - 1] + 1);
                begins += begin && i % T > 0;
            }
        }
    }
    activations_bind(a, &t.stage, 0, 0, 1, 1, 5);
    check(wrong == 0 && begins > 5 && !a->positions, "%s: documents of 12 micro-batches, %d begin within: %d are wrong",
          m->name, begins, wrong);
    trainer_close(&t);
    write_data_file();
}

// The learning rate at its corners: start, end of the warm-up, middle, last step, and after it.
static void test_learning_rate(void) {
    Settings o = settings_default();
    o.lr = 1, o.min_lr = 0.1, o.warmup = 10, o.steps = 111; // 100 steps of decay between updates 10 and 110
    const double middle[] = {0.55, 0.55, 1}, late[] = {0.1 + 0.45 * (1 + cos(3.141592653589793 * 0.9)), 0.19, 0.55};
    static const char* names[] = {"cosine", "linear", "wsd"};
    for (int decay = 0; decay < 3; decay++) {
        o.decay = decay;
        const double got[] = {learning_rate(&o, 0),   learning_rate(&o, 4),  learning_rate(&o, 9),
                              learning_rate(&o, 10),  learning_rate(&o, 60), learning_rate(&o, 100),
                              learning_rate(&o, 110), learning_rate(&o, 500)};
        const double expected[] = {0.1, 0.5, 1, 1, middle[decay], late[decay], 0.1, 0.1};
        double worst = 0;
        for (int i = 0; i < 8; i++) worst = fmax(worst, fabs(got[i] - expected[i]));
        char what[64];
        snprintf(what, sizeof what, "learning rate, %s", names[decay]);
        check_error(what, worst, 1e-12);
    }
}

// A checkpoint of more than the writer's buffer, with rows that do not divide it, comes back bit for bit; the text that
// the model writes is the same before and after.
static void test_large_checkpoint(void) {
    ModelConfig m = model_gpt2(2, 250, 2, 24, 256);
    m.name = "gpt2, 1.6M";
    const TestRun run = {&m, 1, 1, 24, 2, ONE_F_ONE_B, RECOMPUTE_NONE};
    Trainer a, b;
    trainer_open(&a, &run);
    char folder[] = "build/test_gpt_XXXXXX";
    if (!mkdtemp(folder)) die("build: cannot make a folder");
    a.settings.out = folder;
    saver_open(&a.saver, &a.stage, folder, 0, 0, 1, NULL);
    train_step(&a);
    save_checkpoint(&a, true, false);
    saver_free(&a.saver);
    trainer_open(&b, &run);
    b.settings.out = folder, b.settings.seed = a.settings.seed;
    check(resume_checkpoint(&b) && same_state(&a.stage, &b.stage),
          "%s: %lld parameters and their moments come back bit for bit", m.name, (long long)a.stage.layout.elements);
    trainer_close(&a);
    trainer_close(&b);
    char command[4200];
    snprintf(command, sizeof command, "rm -r %s", folder);
    if (system(command) != 0) die("%s failed", command);
}

// Tokens fed one by one, with keys and values from the cache, have the logits of the whole sequence at once; also where the first
// ones were read at once. Bound: as in test_reference, 4 way sqrt(K) u, for the forward pass alone.
static void test_decode(const ModelConfig* m) {
    const TestRun run = {m, 1, 1, 24, 2, ONE_F_ONE_B, RECOMPUTE_NONE};
    Trainer t;
    trainer_open(&t, &run);
    for (int i = 0; i < 3; i++) train_step(&t);
    Stage* s = &t.stage;
    Activations* a = &s->activations[0];
    const StepInput pass = {&t.schedule, &t.train, 5, 6, true, NULL, NULL};
    load_batch(&t, &pass);
    bind_microbatch(&t, a, &pass, 0, 0);
    a->scale = 0; // logits stay
    int32_t tokens[24];
    memcpy(tokens, t.batch.host, sizeof tokens);
    chunk_forward(s, a);
    float* logits = host_values(a->head->logits, 24 * m->V);
    double* expected = (double*)checked_malloc((size_t)24 * m->V * sizeof(double), "test");
    for (int i = 0; i < 24 * m->V; i++) expected[i] = (double)logits[i];
    double worst = 0;
    for (int read = 0; read <= 13; read += 13) {
        if (read) feed(&t, tokens, read, -1);
        for (int i = read; i < 24; i++) {
            feed(&t, tokens + i, 1, i);
            gather_logits(&t, logits);
            worst = fmax(worst, relative_error(logits, expected + (size_t)i * m->V, m->V));
        }
    }
    free(logits);
    char what[64];
    snprintf(what, sizeof what, "%s: 24 tokens decoded one by one", m->name);
    const double way = 8.0 * m->L + 4;
    check_error(what, worst, 4 * (HAS_MASTER_WEIGHTS ? sqrt(way) * u : way * sqrt(100.0) * u));
    free(expected);
    trainer_close(&t);
}

// The model learns a text of period 3: the loss falls far below that of guessing.
static void test_learns(const ModelConfig* m) {
    FILE* f = fopen(text_path, "w");
    if (!f) die("%s: cannot write", text_path);
    for (int i = 0; i < 6000; i++) fputc("abc"[i % 3], f);
    fclose(f);
    const TestRun run = {m, 4, 4, 24, 2, ONE_F_ONE_B, RECOMPUTE_NONE};
    Trainer t;
    trainer_open(&t, &run);
    t.settings.lr = 1e-2, t.settings.min_lr = 1e-3, t.settings.steps = 40;
    train_step(&t);
    const double first = t.loss;
    while (t.step < 40) train_step(&t);
    check(first > 5 && t.loss < 0.1, "%s: the loss on abcabc... falls from %.3f to %.4f in 40 steps", m->name, first,
          t.loss);
    trainer_close(&t);
}

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    device_open(0);
    if (argc == 4 && strcmp(argv[1], "--write") == 0) {
        write_reference(argv[2], argv[3]);
        return 0;
    }
    if (argc > 2 && strcmp(argv[1], "--compare") == 0) {
        for (int i = 2; i < argc; i++) test_reference(argv[i], true);
        return test_end();
    }
    test_reference("dev/test/reference/gpt2_tied.safetensors", false);
    test_reference("dev/test/reference/gpt2_untied.safetensors", false);
    test_reference("dev/test/reference/llama_grouped.safetensors", false);
    test_reference("dev/test/reference/llama_tied.safetensors", false);
    test_reference("dev/test/reference/gpt2_caat.safetensors", false);
    test_reference("dev/test/reference/llama_caat.safetensors", false);
    test_reference("dev/test/reference/gpt2_documents.safetensors", false);
    test_reference("dev/test/reference/llama_documents.safetensors", false);
    test_caat(brief);
    // Where rows are no multiples of 16 bytes, a GPU's kernels add in another order, and one that is fused with its
    // neighbour sees other arrays.
    const int F = DEVICE_IS_HOST ? 100 : 104;
    ModelConfig gpt2 = model_of(ARCH_GPT2, 2, 48, 3, 3, F, 24, 256);
    ModelConfig llama = model_llama(2, 48, 6, 2, 72, 24, 256);
    gpt2.name = "gpt2";
    llama.name = "llama";
    write_data_file();
    test_same_bits(&gpt2);
    test_same_bits(&llama);
    const CaatConfig ordinary = {0, 0, SYNC_RUNTIME, false}, two = {2, 0.5, SYNC_RUNTIME, false};
    ModelConfig pair = model_llama(2, 48, 4, 4, 72, 24, 100);
    ModelConfig gpt_pair = model_of(ARCH_GPT2, 2, 48, 4, 4, F, 24, 100);
    pair.name = "llama";
    gpt_pair.name = "gpt2";
    test_documents(&gpt2, ordinary);
    test_documents(&llama, ordinary);
    test_documents(&gpt_pair, two);
    test_documents(&pair, two);
    test_document_batches(&gpt2);
    test_resume_bits(&gpt2);
    test_resume_bits(&llama);
    test_large_checkpoint();
    test_decode(&gpt2);
    test_decode(&llama);
    test_validation(&gpt2);
    test_learning_rate();
    test_learns(&gpt2);
    test_learns(&llama);
    remove(text_path);
    return test_end();
}
