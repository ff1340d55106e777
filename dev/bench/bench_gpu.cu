/*
bench_gpu.cu: how fast the CUDA kernels are on this GPU, beside what it can do at all.

    build/cuda/bf16/bench_gpu [--only attention,products,memory] [--model NAME] [--json FILE] [--tiny]

First the two ceilings, measured: a large copy (bytes read and written a second) and a large matrix product. Then every
operation of a training step of the six models of roofline.h, in their shapes, and attention at 1024, 2048 and 4096
tokens with heads of 64 and 128; which operations there are, with how many FLOP and bytes, roofline.h says, so nothing
is listed here. A line has

    the time, its floor (by the two ceilings of this very run) and the share of it;
    TFLOP/s and the share of the product, or GB/s and the share of the copy; how much of our goal that is

--json: the same, a line each, numbers in full. --only: what is measured behind the ceilings. --tiny: two small models,
each operation twice, to see that all of it works; the emulator runs that too (its times mean nothing).

How, says measure_gpu.h. Arrays are as long as in the step (AdamW and its like: 2^30 parameters at most). FLOP of causal
attention count the lower half only: 2 B NH T^2 HS forward, 2.5 times that backward (Dao 2023), whatever a kernel makes.
ATTENTION=mma or wgmma chooses the family of its kernels; a run measures one of them.
*/
#include "../../util/options.h"
#include "measure_gpu.h"
#include "roofline.h"

static const double MOST_PARAMETERS = 1 << 30;

static struct {
    bool tiny, help;
    const char *only, *model, *json_path; // NULL: all; none
    FILE* json;
    Ceilings ceilings;
    int rows;
} bench;

// ---- Arrays and times -------------------------------------------------------------------------------------------

// Tokens below V: some are much more frequent than others, as in texts.
static int32_t* random_tokens(int N, int V) {
    int32_t* host = (int32_t*)checked_malloc((size_t)N * sizeof(int32_t), "bench");
    for (int i = 0; i < N; i++) {
        const double u = random_uniform(3, 1, (uint64_t)i);
        host[i] = (int32_t)(V * u * u * u * u);
    }
    int32_t* device = (int32_t*)device_malloc((size_t)N * sizeof(int32_t), "bench");
    device_from_host(device, host, (size_t)N * sizeof(int32_t));
    free(host);
    return device;
}

// What an operation works on; what it does not need is NULL. N rows; IN and OUT channels of a product, or rows of C.
typedef struct {
    int B, T, NH, NKV, HS, N, C, V, IN, OUT;
    int64_t n; // numbers, where it does not know of rows
    floatX *x, *y, *z, *w, *bias, *out;
    float *f, *g, *m, *v, *table; // float32
    int32_t* tokens;
    double* sum;
} Arrays;

static void arrays_free(Arrays* a) {
    void* all[] = {a->x, a->y, a->z, a->w, a->bias, a->out, a->f, a->g, a->m, a->v, a->table, a->tokens, a->sum};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) device_free(all[i], 0);
}

// Random arrays of n numbers: of floatX those of x, y, z, w, b (bias), o (out) that `names` has, of float f, g, m, v.
static void arrays_take(Arrays* a, const char* names, int64_t n) {
    floatX** const values[] = {&a->x, &a->y, &a->z, &a->w, &a->bias, &a->out};
    float** const floats[] = {&a->f, &a->g, &a->m, &a->v};
    for (int i = 0; i < 6; i++) {
        if (strchr(names, "xyzwbo"[i])) *values[i] = random_array<floatX>(n);
    }
    for (int i = 0; i < 4; i++) {
        if (strchr(names, "fgmv"[i])) *floats[i] = random_array<float>(n);
    }
}

static Arrays arrays_of(const Roofline* r) {
    Arrays a = {};
    a.B = r->B;
    a.T = r->T;
    a.N = r->B * r->T;
    a.NH = r->model.NH;
    a.NKV = r->model.NKV;
    a.HS = model_head_size(&r->model);
    a.C = r->model.C;
    a.V = r->model.V;
    return a;
}

typedef void (*Work1)(const Arrays*);

static double milliseconds_of(Work1 f, const Arrays* a) {
    return milliseconds(bench.tiny, [&] { f(a); });
}

// ---- Lines ------------------------------------------------------------------------------------------------------

static const char* attention_family_name(void) {
    const char* chosen = getenv("ATTENTION");
    if (chosen && *chosen) return chosen;
    return default_tensor_family() == WGMMA_FAMILY ? "wgmma" : "mma";
}

// A row of the roofline that took so long; behind that its shape, as printf() takes it.
__attribute__((format(printf, 4, 5))) static void print_line(const char* model, const RooflineRow* row, double ms,
                                                             const char* format, ...) {
    char shape[64];
    va_list values;
    va_start(values, format);
    vsnprintf(shape, sizeof shape, format, values);
    va_end(values);
    const Ceilings* c = &bench.ceilings;
    const bool product = row->flops > 0;
    const double amount = product ? row->flops : row->bytes, rate = amount / ms * 1e3;
    const double ceiling = product ? c->product : c->copy, floor = 1e3 * row_floor(row, c, NULL);
    const double goal = 1e3 * row_seconds(row, c, row->goal);
    printf("%-12s %-26s %-32s %9.3f ms  floor %8.3f, %3.0f %%  %7.1f %s, %3.0f %% of the %-7s  goal %8.3f, %3.0f %%\n",
           model, row->name, shape, ms, floor, 100 * floor / ms, rate / (product ? 1e12 : 1e9),
           product ? "TFLOP/s" : "GB/s   ", 100 * rate / ceiling, product ? "product" : "copy", goal, 100 * goal / ms);
    fflush(stdout);
    bench.rows++;
    if (!bench.json) return;
    fprintf(bench.json,
            "{\"model\":\"%s\",\"operation\":\"%s\",\"shape\":\"%s\",\"count\":%d,\"ms\":%.6g,"
            "\"floor_ms\":%.6g,\"goal_ms\":%.6g,\"flop\":%.6g,\"bytes\":%.6g,\"exponentials\":%.6g,"
            "\"rate\":%.6g,\"ceiling\":%.6g,\"attention\":\"%s\"}\n",
            model, row->name, shape, row->count, ms, floor, goal, row->flops, row->bytes, row->exps, rate, ceiling,
            row->op.kind == OP_ATTENTION ? attention_family_name() : "");
    fflush(bench.json);
}

// ---- Products ---------------------------------------------------------------------------------------------------

static void product(const Arrays* a) { linear_forward(a->out, a->x, a->w, NULL, a->N, a->IN, a->OUT); }
static void product_bias(const Arrays* a) { linear_forward(a->out, a->x, a->w, a->bias, a->N, a->IN, a->OUT); }
static void product_gelu(const Arrays* a) {
    linear_gelu_forward(a->y, a->out, a->x, a->w, a->bias, a->N, a->IN, a->OUT);
}
static void product_input(const Arrays* a) { linear_backward_input(a->x, a->out, a->w, a->N, a->IN, a->OUT); }
static void product_input_gelu(const Arrays* a) { // IN: of the mlp; y: before GELU
    linear_gelu_backward_input(a->x, a->z, a->out, a->w, a->y, a->N, a->IN, a->OUT);
}
static void product_weight(const Arrays* a) { linear_backward_weight(a->g, a->out, a->x, a->N, a->IN, a->OUT); }

// As train_gpt.cu calls them: only GPT-2's matrices of blocks have biases; those of row-parallel layers are added by
// the norm behind them.
static Work1 work_of_product(const Roofline* r, const RooflineRow* row) {
    const bool biases = r->model.biases && strncmp(row->op.name, "head", 4) != 0;
    if (row->op.transposed == 1) return row->gelu ? product_input_gelu : product_input;
    if (row->op.transposed == 2) return product_weight;
    if (row->gelu) return product_gelu;
    return biases && strcmp(row->name, "qkv") == 0 ? product_bias : product;
}

static void bench_product(const Roofline* r, const RooflineRow* row) {
    const Op* op = &row->op;
    const double channels[3] = {op->n, op->k, op->m}; // of the output, by op->transposed
    Arrays a = {};
    a.N = (int)(op->transposed == 2 ? op->k : op->m);
    a.IN = (int)(op->transposed == 0 ? op->k : op->n);
    a.OUT = (int)channels[op->transposed];
    const int64_t in = (int64_t)a.N * a.IN, out = (int64_t)a.N * a.OUT, w = (int64_t)a.IN * a.OUT;
    arrays_take(&a, "x", in);
    arrays_take(&a, "o", out);
    arrays_take(&a, op->transposed == 2 ? "g" : "w", w);
    arrays_take(&a, "b", a.OUT);
    if (row->gelu) arrays_take(&a, op->transposed ? "yz" : "y", op->transposed ? in : out);
    const double ms = milliseconds_of(work_of_product(r, row), &a);
    print_line(r->model.name, row, ms, "%.0f x %.0f, sums of %.0f", op->m, op->n, op->k);
    arrays_free(&a);
}

// ---- Attention --------------------------------------------------------------------------------------------------

static void attention(const Arrays* a) { attention_forward(a->out, a->f, a->x, a->B, a->T, a->NH, a->NKV, a->HS); }
static void attention_back(const Arrays* a) {
    attention_backward(a->y, a->z, a->x, a->out, a->f, a->B, a->T, a->NH, a->NKV, a->HS);
}

static void bench_attention(const Roofline* r, const RooflineRow* row) {
    const bool backward = row->op.backward;
    Arrays a = arrays_of(r);
    arrays_take(&a, backward ? "xy" : "x", (int64_t)a.N * (a.NH + 2 * a.NKV) * a.HS);
    arrays_take(&a, backward ? "zo" : "o", (int64_t)a.N * a.NH * a.HS);
    arrays_take(&a, "f", (int64_t)a.N * a.NH);
    if (backward) attention(&a); // what backward finds
    const double ms = milliseconds_of(backward ? attention_back : attention, &a);
    print_line(r->model.name, row, ms, "%d x %d, heads %d/%d x %d, %s", a.B, a.T, a.NH, a.NKV, a.HS,
               attention_family_name());
    arrays_free(&a);
}

// ---- What moves memory and computes little ----------------------------------------------------------------------

static void layer_norm(const Arrays* a) {
    layernorm_forward(a->out, a->f, a->m, a->x, a->w, a->bias, a->N, a->C, 1e-5f);
}
static void residual_norm(const Arrays* a) {
    residual_layernorm_forward(a->y, a->out, a->f, a->m, a->x, a->z, a->bias, a->w, a->bias, a->N, a->C, 1e-5f);
}
static void norm_back(const Arrays* a) {
    layernorm_backward(a->out, a->g, a->v, a->z, a->x, a->w, a->f, a->m, a->N, a->C);
}
static void rms(const Arrays* a) { rmsnorm_forward(a->out, a->m, a->x, a->w, a->N, a->C, 1e-5f); }
static void residual_rms(const Arrays* a) {
    residual_rmsnorm_forward(a->y, a->out, a->m, a->x, a->z, NULL, a->w, a->N, a->C, 1e-5f);
}
static void rms_back(const Arrays* a) { rmsnorm_backward(a->out, a->g, a->z, a->x, a->w, a->m, a->N, a->C); }
static void residual(const Arrays* a) { residual_forward(a->y, a->x, a->z, a->bias, a->N, a->C); }
static void gelu(const Arrays* a) { gelu_forward(a->out, a->x, a->n); }
static void gelu_back(const Arrays* a) { gelu_backward(a->out, a->z, a->x, a->n); }
static void swiglu(const Arrays* a) { swiglu_forward(a->out, a->x, a->N, a->C); }
static void swiglu_back(const Arrays* a) { swiglu_backward(a->y, a->out, a->x, a->N, a->C); }
static void rope(const Arrays* a) {
    rope_forward(a->x, a->table, a->B, a->T, a->NH + a->NKV, a->HS, (a->NH + 2 * a->NKV) * a->HS);
}
static void rope_back(const Arrays* a) {
    rope_backward(a->x, a->table, a->B, a->T, a->NH + a->NKV, a->HS, (a->NH + 2 * a->NKV) * a->HS);
}
static void embedding(const Arrays* a) { embedding_forward(a->out, a->tokens, a->x, a->N, a->C, 0, a->V); }
static void embedding_position(const Arrays* a) {
    embedding(a);
    position_forward(a->out, a->w, 0, a->N, a->T, a->C);
}
static void embedding_back(const Arrays* a) { embedding_backward(a->g, a->out, a->tokens, a->N, a->C, 0, a->V); }
static void embedding_position_back(const Arrays* a) {
    position_backward(a->f, a->out, 0, a->N, a->T, a->C);
    embedding_back(a);
}
// The logits become their gradients, and those of the next run: other numbers, the same work.
static void classifier(const Arrays* a) { crossentropy_fused(a->f, a->x, a->tokens, 1e-5f, a->N, a->V, a->C); }
static void add(const Arrays* a) { accumulate(a->f, a->g, a->n); }
static void bias_gradient(const Arrays* a) { linear_backward_bias(a->g, a->x, a->N, a->C); }
static void copy(const Arrays* a) { device_copy(a->y, a->x, (size_t)a->n * sizeof(floatX)); }
static void zero(const Arrays* a) { device_zero(a->y, (size_t)a->n * sizeof(floatX)); }
static void squares(const Arrays* a) {
    const TensorRange whole = whole_range(a->n);
    sum_of_squares(a->sum, a->g, &whole, 1);
}
static void adamw(const Arrays* a) {
    const TensorRange whole = whole_range(a->n);
    const OptimizerStep step = {1e-6f, 0.9f, 0.95f, 1e-8f, 0.1f, 3, 1};
    adamw_update(a->x, HAS_MASTER_WEIGHTS ? a->f : NULL, a->g, a->m, a->v, &whole, 1, &step);
}
static void pack(const Arrays* a) { caat_pack(a->z, a->x, 1, a->N, a->C, a->C / 2); }
static void unpack(const Arrays* a) { caat_unpack(a->out, a->z, a->x, 2.0f, 1, a->N, a->C, a->C / 2); }

// Norms and what stands beside them: rows of C, weights, statistics of rows, gradients of weights.
static Work1 take_rows(Arrays* a, const Roofline* r, Kernel kernel) {
    const bool gpt2 = r->model.norm == NORM_LAYERNORM;
    arrays_take(a, "xyzo", (int64_t)a->N * a->C);
    arrays_take(a, "wb", a->C);
    arrays_take(a, "fgmv", max_i64(a->N, a->C));
    switch (kernel) {
    case KERNEL_NORM: return gpt2 ? layer_norm : rms;
    case KERNEL_RESIDUAL_NORM: return gpt2 ? residual_norm : residual_rms;
    case KERNEL_RESIDUAL: return residual;
    default: return gpt2 ? norm_back : rms_back;
    }
}

static Work1 take_activation(Arrays* a, const Roofline* r, bool backward) {
    const bool gated = model_is_gated(&r->model);
    a->C = r->model.F;
    a->n = (int64_t)a->N * a->C;
    arrays_take(a, gated ? "o" : "xzo", a->n);
    if (gated) arrays_take(a, "xy", 2 * a->n);
    if (gated) return backward ? swiglu_back : swiglu;
    return backward ? gelu_back : gelu;
}

static Work1 take_rope(Arrays* a, const Roofline* r, bool backward) {
    arrays_take(a, "x", (int64_t)a->N * (a->NH + 2 * a->NKV) * a->HS);
    a->table = (float*)device_malloc((size_t)a->T * (size_t)a->HS * sizeof(float), "bench");
    rope_table(a->table, a->T, a->HS, r->model.rope_theta, &r->model.rope_scaling);
    return backward ? rope_back : rope;
}

static Work1 take_embedding(Arrays* a, const Roofline* r, bool backward) {
    const bool gpt2 = r->model.position == POSITION_LEARNED;
    a->tokens = random_tokens(a->N, a->V);
    arrays_take(a, "o", (int64_t)a->N * a->C);
    arrays_take(a, backward ? "g" : "x", (int64_t)a->V * a->C);
    arrays_take(a, backward ? "f" : "w", (int64_t)a->T * a->C);
    if (backward) return gpt2 ? embedding_position_back : embedding_back;
    return gpt2 ? embedding_position : embedding;
}

// What knows of numbers only: as many as the row has, up to a number that is enough to measure.
static Work1 take_numbers(Arrays* a, Kernel kernel, double elements) {
    a->n = (int64_t)elements;
    switch (kernel) {
    case KERNEL_ADD: arrays_take(a, "fg", a->n); return add;
    case KERNEL_COPY: arrays_take(a, "xy", a->n); return copy;
    case KERNEL_SQUARES:
        arrays_take(a, "g", a->n);
        a->sum = (double*)device_malloc(sizeof(double), "bench");
        return squares;
    default: arrays_take(a, HAS_MASTER_WEIGHTS ? "xfgmv" : "xgmv", a->n); return adamw;
    }
}

// The arrays of a row of the roofline, and what works on them.
static Work1 take_memory(Arrays* a, const Roofline* r, const RooflineRow* row) {
    const Kernel kernel = row->op.kernel;
    switch (kernel) {
    case KERNEL_NORM:
    case KERNEL_RESIDUAL_NORM:
    case KERNEL_RESIDUAL:
    case KERNEL_NORM_BACKWARD: return take_rows(a, r, kernel);
    case KERNEL_ACTIVATION:
    case KERNEL_ACTIVATION_BACKWARD: return take_activation(a, r, kernel == KERNEL_ACTIVATION_BACKWARD);
    case KERNEL_ROPE:
    case KERNEL_ROPE_BACKWARD: return take_rope(a, r, kernel == KERNEL_ROPE_BACKWARD);
    case KERNEL_EMBEDDING:
    case KERNEL_EMBEDDING_BACKWARD: return take_embedding(a, r, kernel == KERNEL_EMBEDDING_BACKWARD);
    case KERNEL_CLASSIFIER: // rows of the padded vocabulary
        a->C = a->V;
        a->tokens = random_tokens(a->N, a->V);
        arrays_take(a, "x", (int64_t)a->N * a->C);
        arrays_take(a, "f", a->N);
        return classifier;
    case KERNEL_BIAS:
        a->C = (int)(row->op.elements / a->N);
        arrays_take(a, "x", (int64_t)a->N * a->C);
        arrays_take(a, "g", a->C);
        return bias_gradient;
    case KERNEL_ZERO: // bytes are all that counts
        a->n = (int64_t)(row->bytes / sizeof(floatX));
        arrays_take(a, "y", a->n);
        return zero;
    case KERNEL_ADD:
    case KERNEL_COPY:
    case KERNEL_SQUARES:
    case KERNEL_OPTIMIZER: return take_numbers(a, kernel, row->op.elements);
    case KERNEL_OTHER:
    case KERNELS: break;
    }
    die("internal error: nothing measures %s", row->name);
    return NULL;
}

static void bench_memory(const Roofline* r, const RooflineRow* given) {
    RooflineRow row = *given;
    Arrays a = arrays_of(r);
    if (row.op.elements > MOST_PARAMETERS && row.op.kernel != KERNEL_CLASSIFIER) { // of parameters
        row.bytes *= MOST_PARAMETERS / row.op.elements;
        row.op.elements = MOST_PARAMETERS;
    }
    const Work1 work = take_memory(&a, r, &row);
    const double ms = milliseconds_of(work, &a);
    if (a.n)
        print_line(r->model.name, &row, ms, "%.1f M", row.op.elements / 1e6);
    else
        print_line(r->model.name, &row, ms, "%d x %d", a.N, a.C);
    arrays_free(&a);
}

// A row that is not in the list of a step.
static RooflineRow memory_row(const char* name, Kernel kernel, double elements, double bytes, double goal) {
    RooflineRow row = {};
    row.op = op_memory(name, kernel, elements, bytes);
    row.bytes = row.op.bytes;
    row.goal = goal;
    snprintf(row.name, sizeof row.name, "%s", name);
    return row;
}

// CAAT-Net's: half of the channels are put together, and taken apart. Their bytes: caat.cuh.
static void bench_sync(const Roofline* r) {
    Arrays a = arrays_of(r);
    const int64_t n = (int64_t)a.N * a.C;
    const RooflineRow packed = memory_row("caat_pack", KERNEL_OTHER, (double)n, 2, 0.92);
    const RooflineRow unpacked = memory_row("caat_unpack", KERNEL_OTHER, (double)n, 4, 0.92);
    arrays_take(&a, "xzo", n);
    print_line(r->model.name, &packed, milliseconds_of(pack, &a), "%d x %d", a.N, a.C);
    print_line(r->model.name, &unpacked, milliseconds_of(unpack, &a), "%d x %d", a.N, a.C);
    arrays_free(&a);
}

// ---- Ceilings, models -------------------------------------------------------------------------------------------

static void bench_ceilings(void) {
    bench.ceilings = ceilings_h200();
    const double values = bench.tiny ? 1 << 16 : 1 << 29;
    RooflineRow row = memory_row("large copy", KERNEL_COPY, values, 2 * sizeof(floatX), 1);
    Arrays a = {};
    const Work1 work = take_numbers(&a, KERNEL_COPY, values);
    double ms = milliseconds_of(work, &a);
    arrays_free(&a);
    bench.ceilings.copy = row.bytes / ms * 1e3;
    print_line("ceiling", &row, ms, "%s", "");
    const int N = bench.tiny ? 64 : 8192;
    row = {};
    row.flops = 2.0 * N * N * N;
    row.goal = 1;
    snprintf(row.name, sizeof row.name, "large product");
    a = {};
    a.N = N;
    a.IN = N;
    a.OUT = N;
    arrays_take(&a, "xwo", (int64_t)N * N);
    ms = milliseconds_of(product, &a);
    arrays_free(&a);
    bench.ceilings.product = row.flops / ms * 1e3;
    print_line("ceiling", &row, ms, "%d x %d, sums of %d", N, N, N);
    char name[256];
    device_name(name, sizeof name);
    if (gpu_peak_flops(name) > 0) bench.ceilings.peak = gpu_peak_flops(name);
}

static bool wants(const char* part) { return !bench.only || strstr(bench.only, part); }

static void bench_rows(const Roofline* r, bool separate_only) {
    for (int i = 0; i < r->n; i++) {
        const RooflineRow* row = &r->row[i];
        const Kernel k = row->op.kernel;
        const bool apart = row->op.kind == OP_MEMORY && (k == KERNEL_ACTIVATION || k == KERNEL_ACTIVATION_BACKWARD);
        if (separate_only && !apart) continue;
        if (row->op.kind == OP_PRODUCT && wants("products")) bench_product(r, row);
        if (row->op.kind == OP_ATTENTION && wants("attention")) bench_attention(r, row);
        if (row->op.kind == OP_MEMORY && wants("memory")) bench_memory(r, row);
    }
}

static void bench_model(Roofline* r, const ModelConfig* m, int B, int T) {
    if (bench.model && strcmp(bench.model, m->name) != 0) return;
    roofline_build(r, m, B, T, 1, 0, RECOMPUTE_NONE, false);
    bench_rows(r, false);
    if (m->norm != NORM_LAYERNORM || !wants("memory")) return;
    // GELU, where it is no epilogue
    roofline_build(r, m, B, T, 1, 0, RECOMPUTE_NONE, true);
    bench_rows(r, true);
    // behind the last block of a stage that does not end with the head
    const double values = (double)B * T * m->C;
    const RooflineRow row = memory_row("residual", KERNEL_RESIDUAL, values, 3.0 * sizeof(floatX), 0.92);
    bench_memory(r, &row);
    bench_sync(r);
}

// Attention as papers have it: 16384 tokens, 2048 channels, heads of 64 and 128; and grouped keys.
static void bench_lengths(Roofline* r) {
    if (!wants("attention") || bench.model) return;
    for (int i = 0; i < 7; i++) {
        const int doublings = i == 6 && !bench.tiny ? 2 : i % 3;
        const int HS = i < 3 ? 64 : 128, T = (bench.tiny ? 70 : 1024) << doublings;
        const int C = bench.tiny ? 256 : 2048, NH = C / HS, tokens = bench.tiny ? T : 16384;
        ModelConfig m = model_llama(1, C, NH, i == 6 ? (NH + 3) / 4 : NH, C, T, 128);
        m.name = "attention";
        m.tied = true;
        roofline_build(r, &m, tokens / T, T, 1, 0, RECOMPUTE_NONE, false);
        for (int k = 0; k < r->n; k++) {
            if (r->row[k].op.kind == OP_ATTENTION) bench_attention(r, &r->row[k]);
        }
    }
}

static void bench_models(Roofline* r) {
    if (bench.tiny) {
        ModelConfig tiny[] = {model_gpt2(2, 64, 1, 70, 300), model_llama(2, 128, 2, 1, 192, 70, 300)};
        tiny[0].name = "tiny-gpt2";
        tiny[1].name = "tiny-llama";
        for (int i = 0; i < 2; i++) bench_model(r, &tiny[i], 1, 70);
        return;
    }
    for (int i = 0; i < ROOFLINE_CASES; i++) {
        const RooflineCase* k = &roofline_cases[i];
        const ModelConfig* m = model_find_preset(k->model);
        bench_model(r, m, roofline_micro_batch(m, k->B, k->T, RECOMPUTE_NONE, 139 * 1073741824.0), k->T);
    }
}

static void read_options(int argc, char** argv) {
    Option table[] = {
        option_string("only", &bench.only, "PART,...", "attention, products, memory [all]"),
        option_string("model", &bench.model, "NAME", "one model [all]"),
        option_string("json", &bench.json_path, "FILE", "the same lines, numbers in full"),
        option_flag("tiny", &bench.tiny, "two small models, each operation twice"),
        option_flag("help", &bench.help, "this list"),
    };
    options_of_program(table, (int)(sizeof table / sizeof *table), argc, argv, &bench.help,
                       "bench_gpu measures the kernels on this GPU beside what it can do at all.");
    if (bench.only && !wants("attention") && !wants("products") && !wants("memory"))
        die_usage("--only %s: attention, products, memory", bench.only);
    if (bench.json_path) bench.json = fopen(bench.json_path, "w");
    if (bench.json_path && !bench.json) die("%s: cannot write: %s", bench.json_path, strerror(errno));
}

int main(int argc, char** argv) {
    char name[256];
    process.name = "bench_gpu";
    read_options(argc, argv);
    device_open(0);
    device_name(name, sizeof name);
    printf("%s, %s; attention by %s\n", name, FLOATX_NAME, attention_family_name());
    if (bench.json)
        fprintf(bench.json, "{\"device\":\"%s\",\"type\":\"%s\",\"attention\":\"%s\"}\n", name, FLOATX_NAME,
                attention_family_name());
    const double started = seconds_now();
    Roofline* r = (Roofline*)checked_malloc(sizeof *r, "the rows of a step");
    bench_ceilings();
    bench_lengths(r);
    bench_models(r);
    printf("%d lines in %.1f s\n", bench.rows, seconds_now() - started);
    free(r);
    if (bench.json && fclose(bench.json) != 0) die("--json: cannot write: %s", strerror(errno));
    return 0;
}
