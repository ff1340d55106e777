/*
test_gpt.c: tests of the model.

    against PyTorch      logits, loss, every gradient, ten AdamW steps of small models: numbers made in float64 by
                         dev/test/reference/make_reference.py, so that what is measured is our own rounding
    heads of 64, 128     attention on a GPU's tensor cores, by ATTENTION=mma or wgmma, else the default, beside plain

Run from the project's folder:

    build/test_gpt                      all of it; --heads: the last part
    build/test_gpt --write FILE MODEL   one step of a model, as such numbers: build/bf16/test_gpt's for a build in bf16
    ./test_gpt --compare FILE...        the same step by this build, a row for every tensor (make compare)

CAAT-Nets' gradients by finite differences: dev/test/unit/test_caat.c. The trainer's runs: dev/test/unit/test_trainer.c.
*/
#define LONG_WAITS_END // kernels/hopper.cuh
#include "dev/test/unit/one_rank.h"
#include "dev/test/unit/reference_file.h"

// ---- Against PyTorch --------------------------------------------------------------------------------------------

typedef struct {
    SafeTensorsModel file;
    ModelConfig model;
    Settings settings; // of the optimizer
    CaatConfig sync;
    int B, T, steps;
    bool in_bf16; // written by a build in bf16
} Reference;

// The value of this key in "__metadata__", or NULL.
static const char* metadata(const Reference* r, const char* key) {
    const JsonNode* all = json_get(r->file.files[0].header.nodes, "__metadata__");
    const JsonNode* value = all ? json_get(all, key) : NULL;
    return value ? value->value.string : NULL;
}

static double metadata_number(const Reference* r, const char* key) {
    const char* text = metadata(r, key);
    if (!text) die("%s has no %s: make it again with dev/test/reference/make_reference.py", r->file.path, key);
    return atof(text);
}

static void reference_open(Reference* r, const char* path) {
    Error error;
    memset(r, 0, sizeof *r);
    if (!safetensors_model_open(&r->file, path, &error))
        die("%s; make it with dev/test/reference/make_reference.py", error.text);
    const char* arch = metadata(r, "arch");
    ModelConfig* m = &r->model;
    m->name = path;
    model_set_arch(m, arch && strcmp(arch, "llama") == 0 ? ARCH_LLAMA : ARCH_GPT2);
    Settings* o = &r->settings;
    const struct {
        const char* key;
        int* number;
    } integers[] = {{"layers", &m->L}, {"hidden", &m->C},   {"heads", &m->NH}, {"kv_heads", &m->NKV},
                    {"ffn", &m->F},    {"seq", &m->T},      {"vocab", &m->V},  {"B", &r->B},
                    {"T", &r->T},      {"steps", &r->steps}};
    const struct {
        const char* key;
        double* number;
    } reals[] = {
        {"eps", &m->eps},     {"theta", &m->rope_theta}, {"lr", &o->lr},     {"beta1", &o->beta1},
        {"beta2", &o->beta2}, {"eps_adam", &o->eps},     {"clip", &o->clip}, {"weight_decay", &o->weight_decay}};
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++)
        *integers[i].number = (int)metadata_number(r, integers[i].key);
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) *reals[i].number = metadata_number(r, reals[i].key);
    o->min_lr = o->lr;
    m->tied = metadata_number(r, "tied") != 0;
    r->in_bf16 = metadata(r, "precision") && strcmp(metadata(r, "precision"), "bf16") == 0;
    if (r->in_bf16 && strcmp(FLOATX_NAME, "bf16") != 0)
        die("%s was written in bf16, and this program computes in %s; write it by build/test_gpt", path, FLOATX_NAME);
    if (!metadata(r, "sync")) return;
    r->sync.ranks = (int)metadata_number(r, "sync_ranks");
    r->sync.fraction = metadata_number(r, "sync");
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
        if (!(difference <= worst)) {
            worst = difference;
            *worst_name = slice->tensor.name;
        }
        free(expected);
    }
    return worst;
}

static void load_reference_batch(const Stage* s, Activations* a, TokenBatch* batch, const double* tokens, int step,
                                 const Reference* r) {
    const int B = r->B, T = r->T;
    activations_bind(a, s, 0, 0, B, T, false);
    batch_reserve(batch, (int64_t)B * T);
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++) {
            const double* at = tokens + ((int64_t)step * B + b) * (T + 1) + t;
            batch->host[b * T + t] = (int32_t)at[0];
            batch->host[(B + b) * T + t] = (int32_t)at[1];
        }
    }
    device_from_host(batch->device, batch->host, batch_bytes(batch));
    a->inputs = batch->device;
    a->targets.token = batch->device + (int64_t)B * T;
}

// The logits (N, V) of the whole vocabulary; a CAAT-Net's lie state by state, padded.
static float* host_logits(const Stage* s, const Activations* a) {
    const Layout* layout = &s->layout;
    float* by_state = host_values(a->head->logits, (int64_t)a->N * layout->V);
    float* logits = (float*)checked_malloc((size_t)a->tokens * (size_t)s->model.V * sizeof(float), "test");
    for (int i = 0; i < layout->streams; i++) {
        for (int n = 0; n < a->tokens; n++)
            memcpy(logits + (int64_t)n * s->model.V + layout_vocab_offset(layout, i),
                   by_state + ((int64_t)i * a->tokens + n) * layout->V,
                   (size_t)layout_vocab_used(layout, i) * sizeof(float));
    }
    free(by_state);
    return logits;
}

static void reference_weights(Alone* x, const Reference* r) {
    const Stage* s = &x->stage;
    Error error;
    float* weights = zero_weights(s);
    for (int i = 0; i < s->layout.n; i++) {
        const Slice* slice = &s->layout.slices[i];
        char name[128];
        snprintf(name, sizeof name, "init.%s", slice->tensor.name);
        if (!slice_read(weights + slice->offset, &r->file, name, slice, &error)) die("%s", error.text);
    }
    give_weights(s, weights);
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
    ReferenceStep got = {};
    load_reference_batch(s, a, &run->batch, tokens, step, r);
    const int N = r->B * r->T;
    zero_gradients(s);
    device_zero(s->sums, (size_t)(s->layout.tensors + 1) * sizeof(double));
    a->targets.scale = 0; // logits stay
    chunk_forward(s, a);
    if (keep) {
        got.logits = host_logits(s, a);
        got.x = (float**)checked_malloc((size_t)(r->model.L + 1) * sizeof(float*), "test");
        for (int l = 0; l <= r->model.L; l++) got.x[l] = host_values(a->x[l], (int64_t)a->R * r->model.C);
    }
    a->targets.scale = (float)(1.0 / N); // and now become their gradient
    chunk_forward(s, a);
    losses_add(s->sums + s->layout.tensors, a->head->losses, N);
    const Pass backward = {s, a, &s->gradients[0][0], BOTH_GRADS, true};
    chunk_backward(&backward);
    gradient_squares(s, 0);
    double* sums = (double*)checked_malloc((size_t)(s->layout.tensors + 1) * sizeof(double), "test");
    device_to_host(sums, s->sums, (size_t)(s->layout.tensors + 1) * sizeof(double));
    int not_finite;
    got.loss = sums[s->layout.tensors] / N;
    got.norm = gradient_norm(sums, s->layout.tensors, &not_finite);
    free(sums);
    if (keep) got.grads = host_floats(s->grads.all, s->layout.elements);
    const double clip = r->settings.clip > 0 && got.norm > r->settings.clip ? r->settings.clip / (got.norm + 1e-6) : 1;
    const OptimizerConfig optimizer = settings_optimizer(&r->settings);
    chunk_optimizer_step(s, 0, &optimizer, step + 1, r->settings.lr, clip);
    return got;
}

static void reference_step_free(ReferenceStep* got, const Reference* r) {
    for (int l = 0; l <= (got->x ? r->model.L : -1); l++) free(got->x[l]);
    free(got->x);
    free(got->logits);
    free(got->grads);
}

// The bound of a result that `stages` kernels in a row have made. Each rounds what it writes to floatX, an error of u,
// and has summed K products in float32, an error of sqrt(K) 2^-24 (Higham 2002, section 4.5: errors of random sign); so
// has the reference, if it is the CPU's. Errors of different kernels are independent: sqrt(stages) of them add up.
// Five: the largest of a million normally distributed numbers is five standard deviations.
static double longest_sum(const Reference* r) {
    return (double)max_i64(max_i64(r->B * r->T, r->model.F), max_i64(r->model.V, r->model.C));
}
static double bound_of(const Reference* r, double stages) {
    return 5 * sqrt(stages) * ((HAS_MASTER_WEIGHTS ? unit_roundoff() : 0) + 2 * sqrt(longest_sum(r)) * 0x1p-24);
}

// The bound of the relative norm of the error where the reference was written in bf16, so that both sides round what a
// kernel writes. Before that, its results differ by d: what its inputs differ by, and its own sums. Numbers of bf16 are
// h <= 2 u |x| apart. Two numbers that differ by t become different ones with probability t / h: rounding adds a
// variance of h t <= 2 u d, and, once the sides know nothing of each other any more, of 2 h^2 / 12 <= 2 u^2 / 3. That
// is so after a few kernels: an error of 1e-6 becomes 1e-4, 1e-3, 3e-3. It stays small in the tests of single kernels
// (dev/test/cuda).
static double norm_bound_of(const Reference* r, double stages) {
    const double u = unit_roundoff(), sums = 2 * sqrt(longest_sum(r)) * 0x1p-24;
    double variance = 0;
    for (int i = 0; i < (int)stages; i++) {
        const double d = sqrt(variance + sums * sums);
        variance = d * d + fmin(2 * u * d, 2 * u * u / 3);
    }
    return sqrt(variance);
}

// A row of the table: the error relative to the largest entry, and where both round the norm of it, too.
static void check_row(const Reference* r, const char* what, const float* got, const double* want, int64_t n,
                      double stages) {
    const double error = relative_error(got, want, n), bound = bound_of(r, stages);
    if (!r->in_bf16) {
        check_error(what, error, bound);
        return;
    }
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    const double norm = size > 0 ? sqrt(difference / size) : sqrt(difference), norm_bound = norm_bound_of(r, stages);
    check(error <= bound && norm <= norm_bound, "%-64s error %.2e  bound %.2e  norm %.2e  bound %.2e", what, error,
          bound, norm, norm_bound);
}

// The kernels of a forward pass up to layer l (8 a block), and of both passes back to layer l.
static double stages_to(int l) { return 8.0 * l + 4; }
static double stages_back_to(const Reference* r, int l) { return stages_to(r->model.L) + stages_to(r->model.L - l); }
// Those of a tensor's gradient. Where q and k are tensors of their own, two more results of the forward pass are in
// theirs, k or q and v, each with its error: dQ = P (dO V^T - D) K.
static double stages_of_gradient(const Reference* r, const Slice* slice) {
    const int l = (int)max_i64(slice->tensor.layer, 0);
    const bool is_query_or_key = strstr(slice->tensor.name, "q_proj") || strstr(slice->tensor.name, "k_proj");
    return stages_back_to(r, l) + (is_query_or_key ? 2 * stages_to(l) : 0);
}

static void compare_forward(const Reference* r, const ReferenceStep* got, const double* logits, int64_t N) {
    char what[128];
    for (int l = 0; l <= r->model.L; l++) {
        const SafeTensors* st;
        snprintf(what, sizeof what, "x.%d", l);
        if (!safetensors_model_find(&r->file, what, &st)) break; // PyTorch's references have none
        double* expected = reference_numbers(r, what, N * r->model.C);
        snprintf(what, sizeof what, "forward   x before block %d", l);
        if (l == r->model.L) snprintf(what, sizeof what, "forward   x after the last block");
        // In bf16 the embedding has the same bits: copies, and one sum that is rounded.
        check_row(r, what, got->x[l], expected, N * r->model.C, r->in_bf16 ? 8.0 * l : stages_to(l));
        free(expected);
    }
    check_row(r, "forward   logits", got->logits, logits, N * r->model.V, stages_to(r->model.L));
}

static void compare_gradients(const Reference* r, const Stage* s, const float* grads) {
    for (int i = 0; i < s->layout.n; i++) {
        const Slice* slice = &s->layout.slices[i];
        double* expected = reference_slice(r, slice, "grad.");
        char what[128];
        snprintf(what, sizeof what, "gradient  %s", slice->tensor.name);
        check_row(r, what, grads + slice->offset, expected, slice->rows * slice->cols, stages_of_gradient(r, slice));
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
        const double relative = bound_of(r, stages_of_gradient(r, slice));
        const double moved = r->settings.lr * fmin(2, relative * steepest / r->settings.eps);
        char what[128];
        snprintf(what, sizeof what, "update    %s", slice->tensor.name);
        check_error(what, error / change, r->steps * (moved + largest * 0x1p-23) / change);
        free(before);
        free(after);
        free(grad);
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
    // Of vectors whose difference has this norm; 2: and of what the bound of a tensor's largest entry leaves open.
    check_error(what, norm_error, r->in_bf16 ? norm_bound_of(r, stages_back_to(r, 0)) : 2 * backward_bound);
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
    free(got);
    free(tokens);
    free(logits);
    free(losses);
    free(norms);
    alone_close(&run);
    safetensors_model_close(&r->file);
}

// ---- What this build computes as such a file, for another one to be compared with -------------------------------

static void file_write(ReferenceFile* f, const char* path, const Reference* r) {
    const ModelConfig* m = &r->model;
    const Settings* o = &r->settings;
    static const char* const keys[] = {"arch",  "layers", "hidden", "heads", "kv_heads", "ffn",          "vocab",
                                       "seq",   "tied",   "B",      "T",     "steps",    "eps",          "theta",
                                       "beta1", "beta2",  "lr",     "clip",  "eps_adam", "weight_decay", "precision"};
    const int sizes[] = {m->L, m->C, m->NH, m->NKV, m->F, m->V, m->T, m->tied, r->B, r->T, r->steps};
    const double reals[] = {m->eps, m->rope_theta, o->beta1, o->beta2, o->lr, o->clip, o->eps, o->weight_decay};
    enum { KEYS = sizeof keys / sizeof *keys, SIZES = sizeof sizes / sizeof *sizes };
    SafeMetadata metadata[KEYS];
    char text[KEYS][32];
    for (int i = 0; i < KEYS; i++) {
        snprintf(text[i], sizeof text[i], "%s", i == 0 ? model_arch_name(m->arch) : FLOATX_NAME);
        if (i > 0 && i < KEYS - 1)
            snprintf(text[i], sizeof text[i], "%.17g", i <= SIZES ? sizes[i - 1] : reals[i - 1 - SIZES]);
        metadata[i].key = keys[i];
        metadata[i].value = text[i];
    }
    reference_file_write(f, path, metadata, KEYS);
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
    Reference r = {};
    r.model = *m;
    r.model.T = r.T = 64;
    r.B = 4;
    r.steps = 1;
    Settings* o = &r.settings;
    o->lr = o->min_lr = o->weight_decay = 0.1;
    o->beta1 = 0.9;
    o->beta2 = 0.95;
    o->clip = 1;
    o->eps = 0.1; // as large as gradients are: see compare_update
    return r;
}

static void write_reference(const char* path, const char* name) {
    const Reference r = reference_of(name);
    Alone run;
    alone_plan(&run, &r.model, r.sync, r.B, r.T);
    const Stage* s = &run.stage;
    float* weights = zero_weights(s);
    draw_reference_weights(weights, &s->layout);
    ReferenceFile f = {NULL, NULL, 0};
    file_add_all(&f, s, "init.", weights);
    give_weights(s, weights);
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
    free(after);
    free(got.grads);
    free(got.x);
    file_write(&f, path, &r);
    alone_close(&run);
}

#ifdef USE_CUDA
// ----------------------------------------------------------------------------------------------------------------
// Attention on tensor cores: a step of models whose heads these are for, beside the same step by plain kernels, which
// PyTorch's numbers above have tested. Both round as test_reference's bound allows.

static ReferenceStep step_by(int family, const Reference* r, const double* tokens, Alone* run) {
    *attention_asked() = family;
    alone_plan(run, &r->model, r->sync, r->B, r->T);
    float* weights = zero_weights(&run->stage);
    draw_reference_weights(weights, &run->stage.layout);
    give_weights(&run->stage, weights);
    return reference_step(run, r, tokens, 0, true);
}

// The largest error of logits, relative to the largest; and of the gradient of a tensor.
static double step_error(const Stage* s, const float* got, const float* want, const float* logits,
                         const float* want_logits, int N, double* logits_error, const char** where) {
    double worst = 0, *exact = (double*)checked_malloc((size_t)s->layout.elements * sizeof(double), "test");
    for (int64_t i = 0; i < s->layout.elements; i++) exact[i] = (double)want[i];
    for (int i = 0; i < s->layout.n; i++) {
        const Slice* slice = &s->layout.slices[i];
        const double error = relative_error(got + slice->offset, exact + slice->offset, slice->rows_used * slice->cols);
        if (error <= worst) continue;
        worst = error;
        *where = slice->tensor.name;
    }
    for (int i = 0; i < N; i++) exact[i] = (double)want_logits[i];
    *logits_error = relative_error(logits, exact, N);
    free(exact);
    return worst;
}

// Two sequences of 136 tokens, more than a tile.
static void test_heads(const char* name, const ModelConfig* m) {
    const int asked = *attention_asked();
    Reference r = reference_of("gpt2");
    r.model = *m;
    r.T = m->T;
    r.B = 2;
    const int n = r.B * (r.T + 1), logits = r.B * r.T * m->V;
    double* tokens = (double*)checked_malloc((size_t)n * sizeof *tokens, "test");
    for (int i = 0; i < n; i++) tokens[i] = (int)(random_uniform(3, 3, (uint64_t)i) * (float)m->V);
    Alone plain, fast;
    ReferenceStep want = step_by(PLAIN_FAMILY, &r, tokens, &plain);
    const int family = asked == ANY_FAMILY ? default_tensor_family() : asked;
    ReferenceStep got = step_by(family, &r, tokens, &fast);
    double logits_error;
    const char* where = "";
    const double bound = bound_of(&r, 2 * stages_back_to(&r, 0));
    const double error =
        step_error(&fast.stage, got.grads, want.grads, got.logits, want.logits, logits, &logits_error, &where);
    char what[160];
    snprintf(what, sizeof what, "%s, heads of %d by %s: logits", name, m->C / m->NH,
             family == WGMMA_FAMILY ? "wgmma" : "mma");
    check_error(what, logits_error, bound);
    check_error("    loss", fabs(got.loss - want.loss) / want.loss, bound);
    check_error(where, error, bound); // the worst gradient
    check(error > 0 && logits_error > 0, "    they are not those of the plain kernels");
    reference_step_free(&got, &r);
    reference_step_free(&want, &r);
    alone_close(&fast);
    alone_close(&plain);
    free(tokens);
    *attention_asked() = asked;
}

static void test_all_heads(void) {
    const ModelConfig gpt2 = model_gpt2(1, 128, 2, 136, 96), llama = model_llama(1, 256, 2, 1, 64, 136, 96);
    test_heads("gpt2", &gpt2);
    test_heads("llama", &llama);
}
#endif

int main(int argc, char** argv) {
    device_open(0);
    if (argc == 4 && strcmp(argv[1], "--write") == 0) {
        write_reference(argv[2], argv[3]);
        return 0;
    }
    if (argc > 2 && strcmp(argv[1], "--compare") == 0) {
        for (int i = 2; i < argc; i++) test_reference(argv[i], true);
        return test_end();
    }
#ifdef USE_CUDA
    if (sizeof(floatX) == 2) test_all_heads();
    if (argc > 1 && strcmp(argv[1], "--heads") == 0) return test_end();
    *attention_asked() = ANY_FAMILY; // other heads
#endif
    test_reference("dev/test/reference/gpt2_tied.safetensors", false);
    test_reference("dev/test/reference/gpt2_untied.safetensors", false);
    test_reference("dev/test/reference/llama_grouped.safetensors", false);
    test_reference("dev/test/reference/llama_tied.safetensors", false);
    test_reference("dev/test/reference/gpt2_caat.safetensors", false);
    test_reference("dev/test/reference/llama_caat.safetensors", false);
    return test_end();
}
