/*
bench_gpu.cu: how fast the CUDA kernels are on this GPU, beside what it can do at all.

    build/cuda/bf16/bench_gpu [--tiny]      --tiny: small shapes, to see that it works (the emulator runs that too)

First the two ceilings, measured: a large copy (bytes read and written a second) and a large matrix product. Then every
kernel at the shapes of GPT-2 and Llama: memory-bound ones as a share of the copy, attention and products as TFLOP/s. Times are
medians of 20 runs between events on the device, after 3 that do not count. All inputs are random: a GPU that multiplies zeros
uses less power and looks 10 % faster. What is read is larger than the cache (L2: 50 to 60 MB) or written in between.
FLOP of causal attention count the lower half only: 2 B NH T^2 HS forward, 2.5 times that backward (Dao 2023).
*/
#include "../../kernels/kernels.h"

enum { RUNS = 20, WARM_UP = 3 };

// Random values in device memory: uniform in (-size, size), 2^20 different ones, repeated.
static floatX* random_values(int64_t n, float size) {
    const int64_t few = min_i64(n, 1 << 20);
    float* host = (float*)checked_malloc((size_t)few * sizeof(float), "bench");
    for (int64_t i = 0; i < few; i++) host[i] = size * (2 * random_uniform(1, (uint64_t)n, (uint64_t)i) - 1);
    floatX* device = (floatX*)device_malloc((size_t)n * sizeof(floatX), "bench");
    device_from_floats(device, host, few);
    for (int64_t at = few; at < n; at += few)
        device_copy(device + at, device, (size_t)min_i64(few, n - at) * sizeof(floatX));
    free(host);
    return device;
}

static float* random_floats(int64_t n, float size) {
    const int64_t few = min_i64(n, 1 << 20);
    float* host = (float*)checked_malloc((size_t)few * sizeof(float), "bench");
    for (int64_t i = 0; i < few; i++) host[i] = size * (2 * random_uniform(2, (uint64_t)n, (uint64_t)i) - 1);
    float* device = (float*)device_malloc((size_t)n * sizeof(float), "bench");
    for (int64_t at = 0; at < n; at += few)
        device_from_host(device + at, host, (size_t)min_i64(few, n - at) * sizeof(float));
    free(host);
    return device;
}

static int by_size(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return x < y ? -1 : x > y;
}

// What is measured: a function of one structure that holds all the arrays.
typedef struct {
    int B, T, NH, NKV, HS, N, C, F, V;
    int OC, K; // of a product
    floatX *x, *y, *z, *w, *bias, *out;
    float *mean, *rstd, *grad, *m, *v, *master, *row;
    int32_t* tokens;
    double* sum;
    int64_t n;
} Arrays;

// Median milliseconds of f.
static double milliseconds(void (*f)(const Arrays*), const Arrays* a) {
    cudaEvent_t begin, end;
    cuda_check(cudaEventCreate(&begin), "cudaEventCreate");
    cuda_check(cudaEventCreate(&end), "cudaEventCreate");
    double times[RUNS];
    for (int i = -WARM_UP; i < RUNS; i++) {
        float ms = 0;
        cuda_check(cudaEventRecord(begin, 0), "cudaEventRecord");
        f(a);
        cuda_check(cudaEventRecord(end, 0), "cudaEventRecord");
        cuda_check(cudaEventSynchronize(end), "a kernel");
        cuda_check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
        if (i >= 0) times[i] = ms;
    }
    cuda_check(cudaEventDestroy(begin), "cudaEventDestroy");
    cuda_check(cudaEventDestroy(end), "cudaEventDestroy");
    qsort(times, RUNS, sizeof times[0], by_size);
    return times[RUNS / 2];
}

static double copy_rate, product_rate; // the ceilings: bytes a second, FLOP a second

static void memory_row(const char* name, double ms, double bytes) {
    const double rate = bytes / ms * 1e3;
    printf("%-46s %9.3f ms %9.0f GB/s    %5.1f %% of the copy\n", name, ms, rate / 1e9, 100 * rate / copy_rate);
    fflush(stdout);
}

static void flop_row(const char* name, double ms, double flop) {
    const double rate = flop / ms * 1e3;
    printf("%-46s %9.3f ms %9.1f TFLOP/s %5.1f %% of the product\n", name, ms, rate / 1e12, 100 * rate / product_rate);
    fflush(stdout);
}

static void copy(const Arrays* a) { device_copy(a->y, a->x, (size_t)a->n * sizeof(floatX)); }
static void product(const Arrays* a) { linear_forward(a->out, a->x, a->w, NULL, a->N, a->K, a->OC); }
static void product_input(const Arrays* a) { linear_backward_input(a->out, a->x, a->w, a->N, a->K, a->OC); }
static void product_weight(const Arrays* a) { linear_backward_weight(a->grad, a->x, a->y, a->N, a->K, a->OC); }
static void fc(const Arrays* a) { linear_gelu_forward(a->y, a->out, a->x, a->w, a->bias, a->N, a->K, a->OC); }
static void fc_backward(const Arrays* a) {
    linear_gelu_backward_input(a->out, a->z, a->x, a->w, a->y, a->N, a->OC, a->K);
}
static void attention(const Arrays* a) {
    attention_forward(a->out, a->row, a->x, NULL, a->B, a->T, a->NH, a->NKV, a->HS);
}
static void attention_back(const Arrays* a) {
    attention_backward(a->y, a->z, a->x, a->out, a->row, NULL, a->B, a->T, a->NH, a->NKV, a->HS);
}
static void norm(const Arrays* a) {
    layernorm_forward(a->out, a->mean, a->rstd, a->x, a->w, a->bias, a->N, a->C, 1e-5f);
}
static void residual_norm(const Arrays* a) {
    residual_layernorm_forward(a->y, a->out, a->mean, a->rstd, a->x, a->z, a->bias, a->w, a->bias, a->N, a->C, 1e-5f);
}
static void norm_back(const Arrays* a) {
    layernorm_backward(a->out, a->grad, a->m, a->z, a->x, a->w, a->mean, a->rstd, a->N, a->C);
}
static void rms(const Arrays* a) { rmsnorm_forward(a->out, a->rstd, a->x, a->w, a->N, a->C, 1e-5f); }
static void rms_back(const Arrays* a) { rmsnorm_backward(a->out, a->grad, a->z, a->x, a->w, a->rstd, a->N, a->C); }
static void bias_gradient(const Arrays* a) { linear_backward_bias(a->grad, a->x, a->N, a->C); }
static void gelu(const Arrays* a) { gelu_forward(a->out, a->x, a->n); }
static void gelu_back(const Arrays* a) { gelu_backward(a->out, a->z, a->x, a->n); }
static void swiglu(const Arrays* a) { swiglu_forward(a->out, a->x, a->N, a->F); }
static void swiglu_back(const Arrays* a) { swiglu_backward(a->y, a->z, a->x, a->N, a->F); }
static void pack(const Arrays* a) { sync_pack(a->z, a->x, 1, a->N, a->C, a->C / 2); }
static void unpack(const Arrays* a) { sync_unpack(a->out, a->z, a->x, 2.0f, 1, a->N, a->C, a->C / 2); }
static void classifier(const Arrays* a) { crossentropy_fused(a->row, a->x, a->tokens, 1e-5f, a->N, a->V - 47, a->V); }
static void embedding(const Arrays* a) { embedding_forward(a->out, a->tokens, a->x, a->N, a->C, 0, a->V); }
static void embedding_back(const Arrays* a) { embedding_backward(a->grad, a->z, a->tokens, a->N, a->C, 0, a->V); }
static void adamw(const Arrays* a) {
    adamw_update(a->x, HAS_MASTERS ? a->master : NULL, a->grad, a->m, a->v, a->n, 1e-6f, 0.9f, 0.95f, 1e-8f, 0.1f, 3,
                 1.0f, 1, 0);
}
static void squares(const Arrays* a) { sum_of_squares(a->sum, a->grad, a->n); }

static const double X = sizeof(floatX);

static void bench_ceilings(bool tiny) {
    Arrays a;
    memset(&a, 0, sizeof a);
    a.n = tiny ? 1 << 16 : (int64_t)1 << 29;
    a.x = random_values(a.n, 1), a.y = random_values(a.n, 1);
    double ms = milliseconds(copy, &a);
    copy_rate = 2 * X * (double)a.n / ms * 1e3;
    memory_row("copy", ms, 2 * X * (double)a.n);
    device_free(a.x, 0), device_free(a.y, 0);
    a.N = a.OC = a.K = tiny ? 64 : 8192;
    const int64_t n = (int64_t)a.N * a.N;
    a.x = random_values(n, 1), a.w = random_values(n, 1), a.out = random_values(n, 1);
    ms = milliseconds(product, &a);
    product_rate = 2.0 * (double)n * a.N / ms * 1e3;
    flop_row(tiny ? "product 64 x 64 x 64" : "product 8192 x 8192 x 8192", ms, 2.0 * (double)n * a.N);
    device_free(a.x, 0), device_free(a.w, 0), device_free(a.out, 0);
}

static void bench_attention(int B, int T, int NH, int NKV, int HS) {
    Arrays a;
    memset(&a, 0, sizeof a);
    a.B = B, a.T = T, a.NH = NH, a.NKV = NKV, a.HS = HS;
    const int64_t N = (int64_t)B * T, qkv = N * (NH + 2 * NKV) * HS, o = N * NH * HS;
    a.x = random_values(qkv, 1), a.y = random_values(qkv, 1), a.out = random_values(o, 1), a.z = random_values(o, 1);
    a.row = random_floats(N * NH, 1);
    const double flop = 2.0 * B * NH * (double)T * T * HS;
    char name[128];
    snprintf(name, sizeof name, "attention forward   B %d T %d heads %d/%d x %d", B, T, NH, NKV, HS);
    flop_row(name, milliseconds(attention, &a), flop);
    snprintf(name, sizeof name, "attention backward  B %d T %d heads %d/%d x %d", B, T, NH, NKV, HS);
    flop_row(name, milliseconds(attention_back, &a), 2.5 * flop);
    device_free(a.x, 0), device_free(a.y, 0), device_free(a.out, 0), device_free(a.z, 0), device_free(a.row, 0);
}

// The five products of a linear layer: forward, forward with GELU, both gradients, the input's with GELU's.
static void bench_linear(const char* what, int N, int C, int OC, bool with_gelu) {
    Arrays a;
    memset(&a, 0, sizeof a);
    a.N = N, a.K = C, a.OC = OC;
    const int64_t in = (int64_t)N * C, out = (int64_t)N * OC, w = (int64_t)C * OC, most = max_i64(in, out);
    a.x = random_values(most, 1), a.y = random_values(most, 1), a.z = random_values(most, 1),
    a.out = random_values(most, 1);
    a.w = random_values(w, 1), a.bias = random_values(OC, 1), a.grad = random_floats(w, 1);
    const double flop = 2.0 * N * (double)C * OC;
    char name[128];
    snprintf(name, sizeof name, "%s %d x %d x %d forward", what, N, OC, C);
    flop_row(name, milliseconds(product, &a), flop);
    snprintf(name, sizeof name, "%s %d x %d x %d input", what, N, C, OC);
    flop_row(name, milliseconds(product_input, &a), flop);
    snprintf(name, sizeof name, "%s %d x %d x %d weight", what, OC, C, N);
    flop_row(name, milliseconds(product_weight, &a), flop);
    if (with_gelu) {
        snprintf(name, sizeof name, "%s %d x %d x %d forward, GELU", what, N, OC, C);
        flop_row(name, milliseconds(fc, &a), flop);
        snprintf(name, sizeof name, "%s %d x %d x %d input, GELU", what, N, OC, C);
        flop_row(name, milliseconds(fc_backward, &a), flop);
    }
    floatX* all[] = {a.x, a.y, a.z, a.out, a.w, a.bias};
    for (int i = 0; i < 6; i++) device_free(all[i], 0);
    device_free(a.grad, 0);
}

// What moves memory and computes little. Bytes: each array once.
static void bench_rows(int N, int C, int V) {
    Arrays a;
    memset(&a, 0, sizeof a);
    a.N = N, a.C = C, a.F = 4 * C, a.V = V;
    const int64_t nc = (int64_t)N * C, wide = 8 * nc;
    a.n = 4 * nc;
    a.x = random_values(wide, 1), a.y = random_values(wide, 1), a.z = random_values(4 * nc, 1);
    a.out = random_values(4 * nc, 1), a.w = random_values(C, 1), a.bias = random_values(C, 1);
    a.mean = random_floats(N, 1), a.rstd = random_floats(N, 1);
    a.grad = random_floats(C, 1), a.m = random_floats(C, 1);
    const double row = X * (double)nc;
    char name[128];
#define ROW(f, bytes)                                                                                                  \
    snprintf(name, sizeof name, "%s %d x %d", #f, N, C);                                                               \
    memory_row(name, milliseconds(f, &a), bytes)
    ROW(norm, 2 * row);
    ROW(residual_norm, 4 * row);
    ROW(norm_back, 4 * row);
    ROW(rms, 2 * row);
    ROW(rms_back, 4 * row);
    ROW(bias_gradient, row);
    ROW(gelu, 8 * row);
    ROW(gelu_back, 12 * row);
    ROW(swiglu, 12 * row);
    ROW(swiglu_back, 20 * row);
    ROW(pack, row); // of half of the channels: see sync.cuh
    ROW(unpack, 2 * row);
#undef ROW
    floatX* all[] = {a.x, a.y, a.z, a.out, a.w, a.bias};
    for (int i = 0; i < 6; i++) device_free(all[i], 0);
    float* floats[] = {a.mean, a.rstd, a.grad, a.m};
    for (int i = 0; i < 4; i++) device_free(floats[i], 0);
}

static void bench_ends(int N, int C, int V) {
    Arrays a;
    memset(&a, 0, sizeof a);
    a.N = N, a.C = C, a.V = V;
    a.x = random_values((int64_t)V * max_i64(N, C), 1), a.z = random_values((int64_t)N * C, 1),
    a.out = random_values((int64_t)N * C, 1);
    a.row = random_floats(N, 1), a.grad = random_floats((int64_t)V * C, 1);
    int32_t* tokens = (int32_t*)checked_malloc((size_t)N * sizeof(int32_t), "bench");
    for (int i = 0; i < N; i++) { // some tokens are much more frequent than others, as in texts
        const double u = random_uniform(3, 1, (uint64_t)i);
        tokens[i] = (int32_t)((V - 48) * u * u * u * u);
    }
    a.tokens = (int32_t*)device_malloc((size_t)N * sizeof(int32_t), "bench");
    device_from_host(a.tokens, tokens, (size_t)N * sizeof(int32_t));
    char name[128];
    snprintf(name, sizeof name, "classifier %d x %d", N, V);
    memory_row(name, milliseconds(classifier, &a), 2 * X * N * V);
    snprintf(name, sizeof name, "embedding %d x %d", N, C);
    memory_row(name, milliseconds(embedding, &a), 2 * X * N * C);
    snprintf(name, sizeof name, "embedding backward %d x %d", N, C);
    memory_row(name, milliseconds(embedding_back, &a), (X + 4) * N * C);
    free(tokens);
    device_free(a.x, 0), device_free(a.z, 0), device_free(a.out, 0), device_free(a.row, 0), device_free(a.grad, 0);
    device_free(a.tokens, 0);
}

static void bench_update(int64_t n) {
    Arrays a;
    memset(&a, 0, sizeof a);
    a.n = n;
    a.x = random_values(n, 1), a.grad = random_floats(n, 1), a.m = random_floats(n, 1), a.v = random_floats(n, 1);
    a.master = random_floats(n, 1), a.sum = (double*)device_malloc(sizeof(double), "bench");
    char name[128];
    snprintf(name, sizeof name, "AdamW, %.0f M parameters", (double)n / 1e6);
    memory_row(name, milliseconds(adamw, &a), (double)n * (HAS_MASTERS ? 28 + X : 28));
    snprintf(name, sizeof name, "sum of squares, %.0f M", (double)n / 1e6);
    memory_row(name, milliseconds(squares, &a), 4.0 * (double)n);
    device_free(a.x, 0), device_free(a.grad, 0), device_free(a.m, 0), device_free(a.v, 0), device_free(a.master, 0);
    device_free(a.sum, 0);
}

int main(int argc, char** argv) {
    const bool tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    char name[256];
    process.name = "bench_gpu";
    device_open(0);
    device_name(name, sizeof name);
    printf("%s, %s\n", name, FLOATX_NAME);
    bench_ceilings(tiny);
    if (tiny) {
        bench_attention(1, 70, 2, 1, 64);
        bench_linear("fc", 40, 48, 64, true);
        bench_rows(20, 64, 96);
        bench_ends(20, 64, 96);
        bench_update(1000);
        return 0;
    }
    const struct {
        int B, T, NH, NKV, HS;
    } attentions[] = {{64, 1024, 12, 12, 64}, {8, 2048, 32, 32, 64},  {4, 4096, 32, 32, 64}, {16, 1024, 16, 16, 128},
                      {8, 2048, 16, 16, 128}, {4, 4096, 16, 16, 128}, {4, 4096, 32, 8, 128}};
    for (size_t i = 0; i < sizeof attentions / sizeof *attentions; i++)
        bench_attention(attentions[i].B, attentions[i].T, attentions[i].NH, attentions[i].NKV, attentions[i].HS);
    const int N = 64 * 1024, C = 768;
    bench_linear("124M qkv", N, C, 3 * C, false);
    bench_linear("124M proj", N, C, C, false);
    bench_linear("124M fc", N, C, 4 * C, true);
    bench_linear("124M fcproj", N, 4 * C, C, false);
    bench_linear("124M head", N, C, 50304, false);
    bench_linear("7B fc", 16384, 4096, 22016, false);
    bench_rows(N, C, 50304);
    bench_ends(N, C, 50304);
    bench_update(124475904);
    return 0;
}
