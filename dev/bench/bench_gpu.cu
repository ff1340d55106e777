/*
bench_gpu.cu: how fast the CUDA kernels are on this GPU, beside a large copy and a large product.

    build/cuda/bf16/bench_gpu [--only attention,products,beside,memory] [--model NAME] [--json FILE] [--tiny]

First the two ceilings, measured: a large copy (bytes read and written a second) and a large matrix product. Then the
operations of a training step of six models, in their shapes, named as in ./plan --operations, and attention at 1024,
2048 and 4096 tokens with heads of 64 and 128. A line has the time, and TFLOP/s and the share of the product, or GB/s
and the share of the copy.

--json: the same, a line each, numbers in full; dev/bench/roofline.py --measured FILE sets it beside floors and goals.
--only: what is measured behind the ceilings; beside: products while another kernel holds 16 multiprocessors. --tiny:
two small models, each operation twice, to see that all of it works; the emulator runs that too (its times mean
nothing).

Times are medians of 20 runs between events on the device, after 3 that do not count; nothing is waited for between
them. Before each run 256 MB are set to zero, outside of the events: no input is left in the cache (L2: 50 to 60 MB), as
in a training step it mostly is not. Inputs are random: a GPU that multiplies zeros uses less power and looks 10 %
faster. Arrays are as long as in the step (AdamW and its like: 2^30 parameters at most). FLOP of causal
attention count the lower half only: 2 B NH T^2 HS forward, 2.5 times that backward (Dao 2023), whatever a kernel makes.
ATTENTION=mma or wgmma chooses the family of its kernels; a run measures one of them.
*/
#include "../../kernels/kernels.h"
#include "../../model.h"
#include "../../util/median.h"
#include "../../util/options.h"

static const double MOST_PARAMETERS = 1 << 30;

// The models of roofline.py, with sequences at once that fit an H200.
static const struct {
    const char* model;
    int B, T;
} cases[] = {{"gpt2-124M", 64, 1024},  {"gpt2-350M", 32, 1024},  {"gpt2-774M", 32, 1024},
             {"gpt2-1558M", 32, 1024}, {"llama-1.1B", 16, 2048}, {"llama-7B", 2, 2048}};

static struct {
    bool tiny, help;
    const char *only, *model, *json_path; // NULL: all; none
    FILE* json;
    double product, copy; // the ceilings: FLOP and bytes a second
    int lines;
} bench;

enum { RUNS = 20, WARM_UP = 3, FLUSH = 256 << 20 };
enum { DIFFERENT = (1 << 20) - 3 }; // random numbers: a prime, so that no two rows of a matrix are equal

// The same random numbers for all arrays, uniform in (-1, 1); each array begins at another one, and repeats them.
static inline const float* random_numbers(void) {
    static float* numbers = NULL;
    if (numbers) return numbers;
    numbers = (float*)checked_malloc(DIFFERENT * sizeof(float), "bench");
    for (int i = 0; i < DIFFERENT; i++) numbers[i] = 2 * random_uniform(1, 1, (uint64_t)i) - 1;
    return numbers;
}

// n of them in device memory, to be freed with device_free.
template <class T>
static T* random_array(int64_t n) {
    static int64_t first = 0;
    const int64_t few = min_i64(n, DIFFERENT);
    const float* numbers = random_numbers();
    T* host = (T*)checked_malloc((size_t)max_i64(few, 1) * sizeof(T), "bench");
    for (int64_t i = 0; i < few; i++) host[i] = (T)numbers[(first + i) % DIFFERENT];
    first += 12345;
    T* device = (T*)device_malloc((size_t)max_i64(n, 1) * sizeof(T), "bench");
    device_from_host(device, host, (size_t)few * sizeof(T));
    for (int64_t at = few; at < n; at *= 2) device_copy(device + at, device, (size_t)min_i64(at, n - at) * sizeof(T));
    free(host);
    return device;
}

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

typedef void (*Work1)(const Arrays*);

// Median milliseconds of the work. --tiny: it is done twice, to see that it works.
static double milliseconds_of(Work1 work, const Arrays* a) {
    const int runs = bench.tiny ? 1 : RUNS, warm_up = bench.tiny ? 1 : WARM_UP;
    const size_t flush_bytes = bench.tiny ? 256 : (size_t)FLUSH;
    void* flush = device_malloc(flush_bytes, "bench");
    cudaEvent_t begin[RUNS], end[RUNS];
    double times[RUNS];
    for (int i = 0; i < runs; i++) {
        cuda_check(cudaEventCreate(&begin[i]), "cudaEventCreate");
        cuda_check(cudaEventCreate(&end[i]), "cudaEventCreate");
    }
    for (int i = -warm_up; i < runs; i++) {
        device_zero(flush, flush_bytes);
        if (i >= 0) cuda_check(cudaEventRecord(begin[i], 0), "cudaEventRecord");
        work(a);
        if (i >= 0) cuda_check(cudaEventRecord(end[i], 0), "cudaEventRecord");
    }
    device_synchronize();
    for (int i = 0; i < runs; i++) {
        float ms = 0;
        cuda_check(cudaEventElapsedTime(&ms, begin[i], end[i]), "cudaEventElapsedTime");
        times[i] = ms;
        cuda_check(cudaEventDestroy(begin[i]), "cudaEventDestroy");
        cuda_check(cudaEventDestroy(end[i]), "cudaEventDestroy");
    }
    device_free(flush, 0);
    return median_of(times, runs);
}

// ---- Lines ------------------------------------------------------------------------------------------------------

static const char* attention_family_name(void) {
    const char* chosen = getenv("ATTENTION");
    if (chosen && *chosen) return chosen;
    return default_tensor_family() == WGMMA_FAMILY ? "wgmma" : "mma";
}

// What took so long: FLOP, or bytes that were moved. elements: as ./plan --operations has them, 0 for products.
static void print_line(const char* model, const char* name, const char* shape, double ms, double flops, double bytes,
                       double elements) {
    const double rate = (flops > 0 ? flops : bytes) / ms * 1e3, ceiling = flops > 0 ? bench.product : bench.copy;
    printf("%-12s %-26s %-32s %9.3f ms  %7.1f %s, %3.0f %% of the %s\n", model, name, shape, ms,
           rate / (flops > 0 ? 1e12 : 1e9), flops > 0 ? "TFLOP/s" : "GB/s   ", ceiling > 0 ? 100 * rate / ceiling : 100,
           flops > 0 ? "product" : "copy");
    fflush(stdout);
    bench.lines++;
    if (!bench.json) return;
    fprintf(bench.json,
            "{\"model\":\"%s\",\"operation\":\"%s\",\"shape\":\"%s\",\"elements\":%.0f,\"ms\":%.6g,\"rate\":%.6g,"
            "\"attention\":\"%s\"}\n",
            model, name, shape, elements, ms, rate, attention_family_name());
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
static void product_weight(const Arrays* a) { linear_backward_weight(a->g, a->out, a->x, a->N, a->IN, a->OUT, true); }

// One product: rows N, channels IN and OUT.
static double bench_product(const char* model, const char* name, Work1 work, int N, int IN, int OUT) {
    Arrays a = {};
    char shape[64];
    a.N = N;
    a.IN = IN;
    a.OUT = OUT;
    arrays_take(&a, "xyz", (int64_t)N * max_i64(IN, OUT));
    arrays_take(&a, "o", (int64_t)N * OUT);
    arrays_take(&a, "gw", (int64_t)IN * OUT);
    arrays_take(&a, "b", OUT);
    const double flops = 2.0 * N * IN * OUT, ms = milliseconds_of(work, &a);
    snprintf(shape, sizeof shape, "%d rows, %d to %d", N, IN, OUT);
    print_line(model, name, shape, ms, flops, 0, 0);
    arrays_free(&a);
    return flops / ms * 1e3;
}

#ifdef __CUDACC__
// Two variants that the trainer does not use by default: fc's bias gradient in cuBLASLt's epilogue behind GELU's, and
// products while 16 multiprocessors are held, as NCCL would hold them.
static void product_input_gelu_bias(const Arrays* a) { // names as in product_input_gelu
    MatmulProduct p = matmul_product("dGELU and bias", a->IN, a->N, a->OUT, a->w, false, a->out, false, a->x);
    p.shape.epilogue = CUBLASLT_EPILOGUE_DGELU_BGRAD;
    p.aux = a->y;
    p.bias = a->z; // the sums, of D's type
    matmul_do(&p);
}

static struct {
    Work1 work;
    int runs;
} held;

__global__ static void hold_kernel() { // for 0.4 s: longer than all runs of a product together
    for (const long long begin = clock64(); clock64() - begin < 700000000;) continue;
}

static void beside_held(const Arrays* a) {
    static cudaStream_t stream = NULL;
    const int room = (int)gpu_properties()->sharedMemPerBlockOptin; // so that no other block fits in
    if (!stream) {
        cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
        cuda_check(cudaFuncSetAttribute(hold_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room), "its memory");
    }
    if (held.runs++ == 1) hold_kernel<<<16, 1, room, stream>>>(); // the first run has made the plan
    held.work(a);
}

// The product once more, planned for all multiprocessors, and for those that a sum leaves.
static double bench_beside(const char* model, const char* name, Work1 work, int N, int IN, int OUT) {
    char line[96];
    setenv("COLLECTIVE_CTAS", "16", 1);
    for (int planned = 0; planned < 2; planned++) {
        *collectives_in_flight() = planned;
        held.work = work;
        held.runs = 0;
        snprintf(line, sizeof line, "%s, %s", name, planned ? "planned for it" : "beside a sum");
        bench_product(model, line, beside_held, N, IN, OUT);
    }
    *collectives_in_flight() = 0;
    return 0;
}
#endif

// The layers of a block and the head, as train_gpt.cu calls them: only GPT-2's matrices of blocks have biases; those of
// row-parallel layers are added by the norm behind them.
static void bench_products(const ModelConfig* m, int N,
                           double (*bench_one)(const char*, const char*, Work1, int, int, int)) {
    const struct {
        const char *name, *forward, *input;
        int in, out;
        Work1 run, back;
    } layers[] = {
        {"qkv", "", "", m->C, model_qkv_size(m), m->biases ? product_bias : product, product_input},
        {"projection", "", "", m->C, m->C, product, product_input},
        {"fc", ", GELU", "", m->C, model_fc_size(m), m->biases ? product_gelu : product, product_input},
        {"mlp projection", "", ", dGELU", m->F, m->C, product, m->biases ? product_input_gelu : product_input},
        {"head", "", "", m->C, m->V, product, product_input},
    };
    char name[64];
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        const bool gelu = m->biases;
        snprintf(name, sizeof name, "%s%s", layers[i].name, gelu ? layers[i].forward : "");
        bench_one(m->name, name, layers[i].run, N, layers[i].in, layers[i].out);
        snprintf(name, sizeof name, "%s dX%s", layers[i].name, gelu ? layers[i].input : "");
        bench_one(m->name, name, layers[i].back, N, layers[i].in, layers[i].out);
        snprintf(name, sizeof name, "%s dW", layers[i].name);
        bench_one(m->name, name, product_weight, N, layers[i].in, layers[i].out);
    }
}

// ---- Attention --------------------------------------------------------------------------------------------------

static void attention(const Arrays* a) { attention_forward(a->out, a->f, a->x, {a->B, a->T, a->NH, a->NKV, a->HS}); }
static void attention_back(const Arrays* a) {
    attention_backward(a->y, a->z, a->x, a->out, a->f, {a->B, a->T, a->NH, a->NKV, a->HS});
}

static void bench_attention(const char* model, int B, int T, int NH, int NKV, int HS) {
    for (int backward = 0; backward < 2; backward++) {
        Arrays a = {};
        char shape[64];
        a.B = B;
        a.T = T;
        a.NH = NH;
        a.NKV = NKV;
        a.HS = HS;
        a.N = B * T;
        arrays_take(&a, backward ? "xy" : "x", (int64_t)a.N * (NH + 2 * NKV) * HS);
        arrays_take(&a, backward ? "zo" : "o", (int64_t)a.N * NH * HS);
        arrays_take(&a, "f", (int64_t)a.N * NH);
        if (backward) attention(&a); // what backward finds
        const double ms = milliseconds_of(backward ? attention_back : attention, &a);
        snprintf(shape, sizeof shape, "%d x %d, heads %d/%d x %d, %s", B, T, NH, NKV, HS, attention_family_name());
        print_line(model, backward ? "attention backward" : "attention", shape, ms,
                   2.0 * B * NH * (double)T * T * HS * (backward ? 2.5 : 1), 0, T);
        arrays_free(&a);
    }
}

// ---- What moves memory and computes little ----------------------------------------------------------------------

// LayerNorm where there is an array for its mean, else RMSNorm.
static const NormKernels* norm_of(Norm* n, const Arrays* a, floatX* x) {
    *n = {x, a->out, a->f, a->m, a->w, a->bias};
    return &norms[a->f ? NORM_LAYERNORM : NORM_RMSNORM];
}
static void norm(const Arrays* a) {
    Norm n;
    norm_of(&n, a, a->x)->forward(&n, a->N, a->C, 1e-5f);
}
static void residual_norm(const Arrays* a) {
    Norm n;
    norm_of(&n, a, a->y)->residual_forward(&n, a->x, a->z, a->bias, a->N, a->C, 1e-5f);
}
static void norm_back(const Arrays* a) {
    Norm n;
    norm_of(&n, a, a->x)->backward(&n, a->out, {a->g, a->v, NULL, NULL}, a->z, a->N, a->C);
}
static void norm_and_biases_back(const Arrays* a) { // as norm2's: with the gradients of two biases
    Norm n;
    norm_of(&n, a, a->x)->backward(&n, a->out, {a->g, a->v, a->g, a->v}, a->z, a->N, a->C);
}
static void residual(const Arrays* a) { residual_forward(a->y, a->x, a->z, a->bias, a->N, a->C); }
static void gelu(const Arrays* a) { gelu_forward(a->out, a->x, a->N, a->C); }
static void gelu_back(const Arrays* a) { gelu_backward(a->out, a->z, a->x, a->N, a->C); }
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
static void classifier(const Arrays* a) { crossentropy_fused(a->f, a->x, {a->tokens, 1e-5f}, a->N, {0, a->V, a->C}); }
static void add(const Arrays* a) { accumulate(a->f, a->g, a->n); }
static void bias_gradient(const Arrays* a) { linear_backward_bias(a->g, a->x, a->N, a->C); }
static void copy(const Arrays* a) { device_copy(a->y, a->x, (size_t)a->n * sizeof(floatX)); }
static void zero(const Arrays* a) { device_zero(a->y, (size_t)a->n * sizeof(floatX)); }
static void zero_floats(const Arrays* a) { device_zero(a->g, (size_t)a->n * sizeof(float)); }
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

// What is measured: rows of `width`, `count` numbers of `each` bytes, read and written; arrays: names of Arrays, and
// their size: # count, W width, N rows, Q of q, k and v, 2 twice the count, V a row for each token of the vocabulary,
// P for each position.
typedef struct {
    const char* name;
    Work1 run;
    double width, count, each;
    const char* arrays;
} Row;

static void bench_row(const ModelConfig* m, int B, int T, const Row* row) {
    Arrays a = {};
    char shape[64], names[16];
    a.B = B;
    a.T = T;
    a.N = B * T;
    a.NH = m->NH;
    a.NKV = m->NKV;
    a.HS = model_head_size(m);
    a.V = m->V;
    a.C = (int)row->width;
    a.n = (int64_t)(row->width > 0 ? row->count : fmin(row->count, MOST_PARAMETERS));
    for (const char* at = row->arrays; *at;) {
        const size_t n = strcspn(at, "#WNQ2VP");
        const int64_t sizes[] = {
            a.n, a.C, a.N, (int64_t)a.N * model_qkv_size(m), 2 * a.n, (int64_t)m->V * m->C, (int64_t)T * m->C};
        snprintf(names, sizeof names, "%.*s", (int)n, at);
        arrays_take(&a, names, sizes[strchr("#WNQ2VP", at[n]) - "#WNQ2VP"]);
        at += n + 1;
    }
    a.tokens = random_tokens(a.N, a.V);
    a.sum = (double*)device_malloc(sizeof(double), "bench");
    a.table = (float*)device_malloc((size_t)T * (size_t)a.HS * sizeof(float), "bench");
    rope_table(a.table, T, a.HS, m->rope_theta, &m->rope_scaling);
    const double ms = milliseconds_of(row->run, &a);
    if (row->width > 0)
        snprintf(shape, sizeof shape, "%d x %d", a.N, a.C);
    else
        snprintf(shape, sizeof shape, "%.1f M", (double)a.n / 1e6);
    print_line(m->name, row->name, shape, ms, 0, (double)a.n * row->each, (double)a.n);
    arrays_free(&a);
}

static void bench_memory(const ModelConfig* m, int B, int T) {
    const double e = sizeof(floatX), N = (double)B * T, C = m->C, F = m->F, qkv = model_qkv_size(m), V = m->V;
    const double n = N * C, P = (double)model_parameters(m), wte = V * C,
                 wpe = m->position == POSITION_LEARNED ? m->T * C : 0, master = HAS_MASTER_WEIGHTS ? e : 0;
    const double rotated = N * (m->NH + m->NKV) * model_head_size(m);
    const Row shared[] = {
        {"residual", residual, C, n, 3 * e, "xyz#bW"},
        {"classifier", classifier, V, N * V, 2 * e, "x#fN"},
        {"zero", zero, C, n, e, "y#"},
        {"zero gradients", zero_floats, 0, wte + wpe, 4, "g#"},
        {"add the two gradients", add, 0, m->tied ? wte : 0, 12, "fg#"},
        {"squares of gradients", squares, 0, P, 4, "g#"},
        {"optimizer", adamw, 0, P, 28 + master, HAS_MASTER_WEIGHTS ? "xfgmv#" : "xgmv#"},
        {"caat_pack", pack, C, n, 2, "xz#"}, // half of the channels: caat.cuh
        {"caat_unpack", unpack, C, n, 4, "xzo#"},
    };
    const Row gpt2[] = {
        {"embedding", embedding_position, C, n, 5 * e, "o#xVwP"},
        {"norm", norm, C, n, 2 * e, "xo#wbWfmN"},
        {"residual and norm", residual_norm, C, n, 4 * e, "xyzo#wbWfmN"},
        {"norm backward", norm_back, C, n, 4 * e, "xzo#wWgvWfmN"},
        {"norm and biases backward", norm_and_biases_back, C, n, 4 * e, "xzo#wWgvWfmN"},
        {"activation", gelu, F, N * F, 2 * e, "xo#"}, // where it is no epilogue
        {"activation backward", gelu_back, F, N * F, 3 * e, "xzo#"},
        {"bias gradient", bias_gradient, qkv, N * qkv, e, "x#gW"},
        {"bias gradient", bias_gradient, F, N * F, e, "x#gW"},
        {"embedding backward", embedding_position_back, C, n, 2 * e + 8, "o#gVfP"},
    };
    const Row llama[] = {
        {"embedding", embedding, C, n, 2 * e, "o#xV"},
        {"norm", norm, C, n, 2 * e, "xo#wWmN"},
        {"residual and norm", residual_norm, C, n, 4 * e, "xyzo#wWmN"},
        {"norm backward", norm_back, C, n, 4 * e, "xzo#wWgWmN"},
        {"activation", swiglu, F, N * F, 3 * e, "o#x2"},
        {"activation backward", swiglu_back, F, N * F, 5 * e, "o#xy2"},
        {"rope", rope, C, rotated, 2 * e, "xQ"},
        {"rope backward", rope_back, C, rotated, 2 * e, "xQ"},
        {"embedding backward", embedding_back, C, n, e + 8, "o#gV"},
    };
    const bool learned = m->position == POSITION_LEARNED;
    const Row* own = learned ? gpt2 : llama;
    const size_t owned = learned ? sizeof gpt2 / sizeof *gpt2 : sizeof llama / sizeof *llama;
    for (size_t i = 0; i < owned; i++) bench_row(m, B, T, &own[i]);
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        if (shared[i].count > 0) bench_row(m, B, T, &shared[i]);
    }
}

// ---- Ceilings, models -------------------------------------------------------------------------------------------

static void bench_ceilings(void) {
    const int N = bench.tiny ? 64 : 8192;
    Arrays a = {};
    a.n = bench.tiny ? 1 << 16 : 1 << 29;
    arrays_take(&a, "xy", a.n);
    const double ms = milliseconds_of(copy, &a), bytes = 2.0 * sizeof(floatX) * (double)a.n;
    arrays_free(&a);
    bench.copy = bytes / ms * 1e3;
    print_line("ceiling", "large copy", "", ms, 0, bytes, 0);
    bench.product = bench_product("ceiling", "large product", product, N, N, N);
}

static bool wants(const char* part) { return !bench.only || strstr(bench.only, part); }

static void bench_model(const ModelConfig* model, int B, int T) {
    ModelConfig m = *model;
    if (bench.model && strcmp(bench.model, m.name) != 0) return;
    m.V = (int)round_up((size_t)m.V, 128);
    if (wants("products")) bench_products(&m, B * T, bench_product);
#ifdef __CUDACC__
    if (wants("beside")) bench_products(&m, B * T, bench_beside);
    if (wants("beside") && m.biases)
        bench_product(m.name, "mlp projection dX, dGELU, bias", product_input_gelu_bias, B * T, m.F, m.C);
#endif
    if (wants("attention")) bench_attention(m.name, B, T, m.NH, m.NKV, model_head_size(&m));
    if (wants("memory")) bench_memory(&m, B, T);
}

// Attention as papers have it: 16384 tokens, 2048 channels, heads of 64 and 128; and grouped keys.
static void bench_lengths(void) {
    if (!wants("attention") || bench.model) return;
    for (int i = 0; i < 7; i++) {
        const int doublings = i == 6 && !bench.tiny ? 2 : i % 3;
        const int HS = i < 3 ? 64 : 128, T = (bench.tiny ? 70 : 1024) << doublings;
        const int NH = (bench.tiny ? 256 : 2048) / HS, tokens = bench.tiny ? T : 16384;
        bench_attention("attention", tokens / T, T, NH, i == 6 ? (NH + 3) / 4 : NH, HS);
    }
}

static void bench_models(void) {
    if (bench.tiny) {
        ModelConfig tiny[] = {model_of(ARCH_GPT2, 2, 64, 1, 1, 256, 70, 300),
                              model_of(ARCH_LLAMA, 2, 128, 2, 1, 192, 70, 300)};
        tiny[0].name = "tiny-gpt2";
        tiny[1].name = "tiny-llama";
        for (int i = 0; i < 2; i++) bench_model(&tiny[i], 1, 70);
        return;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        bench_model(model_find_preset(cases[i].model), cases[i].B, cases[i].T);
}

static void read_options(int argc, char** argv) {
    Option table[] = {
        option_string("only", &bench.only, "PART,...", "attention, products, beside, memory [all]"),
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
    bench_ceilings();
    bench_lengths();
    bench_models();
    printf("%d lines in %.1f s\n", bench.lines, seconds_now() - started);
    if (bench.json && fclose(bench.json) != 0) die("--json: cannot write: %s", strerror(errno));
    return 0;
}
