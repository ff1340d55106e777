/*
Time of the kernels that are not matrix products, at the shapes of GPT-2 124M (or, for Llama's, llama-130M) with N = B T
= 1024 rows; build/bf16/bench_kernels: of bf16. The peer is memcpy by all threads: for each kernel, a copy that moves as
many bytes (read and written), so that it finds them in the same cache. Each line is the median of 9 rounds in which
kernel and copy take turns.

Then attention, which counts the operations of the causal half only: forward 2 products of 2 T T / 2 HS operations for
every query head, backward 2.5 times that (5 products, one of them S again), beside the peak of the build's type
(kernels/mfu.h), with which it takes turns.
*/
#include "../../kernels/adamw.h"
#include "../../kernels/attention.h"
#include "../../kernels/checksum.h"
#include "../../kernels/crossentropy.h"
#include "../../kernels/device.h"
#include "../../kernels/embedding.h"
#include "../../kernels/gelu.h"
#include "../../kernels/layernorm.h"
#include "../../kernels/global_norm.h"
#include "../../kernels/mfu.h"
#include "../../kernels/residual.h"
#include "../../kernels/rope.h"
#include "../../kernels/swiglu.h"
#include "../../util/median.h"

enum { B = 4, T = 256, N = B * T, C = 768, NH = 12, HS = 64, F = 4 * C, V = 50257, P = 32 << 20, ROUNDS = 9 };

// Memory that the cases share: four large arrays of activations, small vectors, tokens; gradients, moments and master
// weights.
typedef struct {
    floatX *x, *y, *z, *u, *w, *b;
    float *grad, *moment1, *moment2, *master, *dw, *db, *mean, *rstd;
    int32_t* tokens;
    double sink;
    Norm norm;
    Targets targets;
} Buffers;

static void run_embedding_forward(Buffers* f) { embedding_forward(f->x, f->tokens, f->y, N, C, 0, V); }
static void run_embedding_backward(Buffers* f) { embedding_backward(f->grad, f->x, f->tokens, N, C, 0, V); }
static void run_position_forward(Buffers* f) { position_forward(f->x, f->y, 0, B * T, T, C); }
static void run_position_backward(Buffers* f) { position_backward(f->grad, f->x, 0, B * T, T, C); }
static void run_layernorm_forward(Buffers* f) { layernorm_forward(&f->norm, N, C, 1e-5f); }
static void run_layernorm_backward(Buffers* f) {
    const NormGradients d = {f->dw, f->db, NULL, NULL};
    layernorm_backward(&f->norm, f->z, d, f->y, N, C);
}
static void run_rmsnorm_forward(Buffers* f) { rmsnorm_forward(&f->norm, N, C, 1e-5f); }
static void run_rmsnorm_backward(Buffers* f) {
    const NormGradients d = {f->dw, NULL, NULL, NULL};
    rmsnorm_backward(&f->norm, f->z, d, f->y, N, C);
}
static void run_rope(Buffers* f) { rope_forward(f->x, f->grad, B, T, 2 * NH, HS, 3 * C); }
static void run_gelu_forward(Buffers* f) { gelu_forward(f->y, f->x, N, F); }
static void run_gelu_backward(Buffers* f) { gelu_backward(f->z, f->y, f->x, N, F); }
static void run_swiglu_forward(Buffers* f) { swiglu_forward(f->y, f->x, N, F); }
static void run_swiglu_backward(Buffers* f) { swiglu_backward(f->z, f->y, f->x, N, F); }
static void run_residual(Buffers* f) { residual_forward(f->z, f->x, f->y, f->b, N, C); }
static const VocabSlice vocabulary = {0, V, V};
static void run_max(Buffers* f) { crossentropy_max(f->mean, f->x, N, vocabulary); }
static void run_sum(Buffers* f) { crossentropy_sum(f->rstd, f->db, f->x, f->mean, f->targets, N, vocabulary); }
static void run_crossentropy_backward(Buffers* f) {
    crossentropy_backward(f->x, f->mean, f->rstd, f->targets, N, vocabulary);
}
static void run_crossentropy_fused(Buffers* f) { crossentropy_fused(f->mean, f->x, f->targets, N, vocabulary); }
static void run_adamw(Buffers* f) {
    const TensorRange whole = whole_range(P);
    const OptimizerStep step = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 10, 1};
    adamw_update(f->x, f->master, f->grad, f->moment1, f->moment2, &whole, 1, &step);
}
static void run_grad_norm(Buffers* f) {
    double sum = 0;
    const TensorRange whole = whole_range(P);
    sum_of_squares(&sum, f->grad, &whole, 1);
    f->sink += sum;
}

static void run_checksum(Buffers* f) {
    uint64_t sum = 0;
    checksum_add(&sum, f->grad, P * (int64_t)sizeof(float), 0);
    f->sink += (double)(sum & 1);
}

// elements: what the kernel works on, for Gelem/s; bytes: read and written at least once (a += is both); calls in a
// step.
typedef struct {
    const char* name;
    void (*run)(Buffers*);
    double elements, bytes, calls;
} Case;

static void parallel_copy(char* to, const char* from, int64_t bytes) {
    enum { PIECE = 1 << 16 };
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < bytes; i += PIECE) memcpy(to + i, from + i, (size_t)min_i64(PIECE, bytes - i));
}

// Seconds of one run, or one copy: the mean of `repeats`.
static double time_of(const Case* c, Buffers* f, int repeats) {
    const double start = seconds_now();
    for (int r = 0; r < repeats; r++) c->run(f);
    return (seconds_now() - start) / repeats;
}

static double time_of_copy(char* to, const char* from, int64_t bytes, int repeats) {
    const double start = seconds_now();
    for (int r = 0; r < repeats; r++) parallel_copy(to, from, bytes);
    return (seconds_now() - start) / repeats;
}

static float* filled(int64_t n, float size, uint64_t stream) {
    float* x = (float*)checked_malloc((size_t)n * sizeof(float), "benchmark");
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) x[i] = size * (2 * random_uniform(1, stream, (uint64_t)i % 100003) - 1);
    return x;
}

static floatX* filled_numbers(int64_t n, float size, uint64_t stream) {
    float* from = filled(n, size, stream);
    floatX* x = (floatX*)checked_malloc((size_t)n * sizeof(floatX), "benchmark");
    device_from_floats(x, from, n);
    free(from);
    return x;
}

static Buffers fill_buffers(int64_t large) {
    Buffers f = {};
    floatX** const numbers[] = {&f.x, &f.y, &f.z, &f.u, &f.w, &f.b};
    float** const floats[] = {&f.grad, &f.moment1, &f.moment2, &f.master, &f.dw, &f.db, &f.mean, &f.rstd};
    const int64_t of_numbers[] = {large, large, P, P, F, F},
                  of_floats[] = {max_i64((int64_t)V * C, P), P, P, P, F, F, N, N};
    for (int i = 0; i < 6; i++) *numbers[i] = filled_numbers(of_numbers[i], i < 3 ? 3 : 1, (uint64_t)i);
    for (int i = 0; i < 8; i++) *floats[i] = filled(of_floats[i], i < 2 ? 3 : 1, (uint64_t)(6 + i));
    f.tokens = (int32_t*)checked_malloc(N * sizeof(int32_t), "tokens");
    const Norm norm = {f.x, f.y, f.mean, f.rstd, f.w, f.b};
    const Targets targets = {f.tokens, 1e-3f};
    f.norm = norm;
    f.targets = targets;
    for (int n = 0; n < N; n++) f.tokens[n] = (int32_t)(random_uniform(1, 8, (uint64_t)n) * V);
    for (int64_t i = 0; i < P; i++) f.moment2[i] = fabsf(f.moment2[i]); // AdamW's v
    return f;
}

static void bench_attention(Buffers* f, int batch, int tokens, int heads, int key_heads, int size, int threads) {
    const double operations = 2.0 * batch * heads * (double)tokens * tokens * size;
    const Heads h = {batch, tokens, heads, key_heads, size};
    double seconds[2][ROUNDS], part[2][ROUNDS];
    for (int round = -1; round < ROUNDS; round++) {
        const int i = round < 0 ? 0 : round;
        const double peak = fma_peak_flops(threads, 0.02), start = seconds_now();
        attention_forward(f->y, f->master, f->x, h);
        const double middle = seconds_now();
        attention_backward(f->z, f->u, f->x, f->y, f->master, h);
        seconds[0][i] = middle - start;
        seconds[1][i] = seconds_now() - middle;
        part[0][i] = operations / seconds[0][i] / peak;
        part[1][i] = 2.5 * operations / seconds[1][i] / peak;
    }
    printf("attention %d x %4d, %2d heads, %2d of keys, %3d", batch, tokens, heads, key_heads, size);
    for (int k = 0; k < 2; k++) {
        const double t = median_of(seconds[k], ROUNDS), done = (k ? 2.5 : 1) * operations / t;
        printf("  %s %8.2f ms %6.0f GFLOP/s %3.0f %% of the peak", k ? "backward" : "forward", t * 1e3, done * 1e-9,
               100 * median_of(part[k], ROUNDS));
    }
    printf("\n");
}

int main(void) {
    const int64_t large = max_i64((int64_t)N * V, P);
    Buffers f = fill_buffers(large);
    char* copy = (char*)checked_malloc((size_t)large * sizeof(floatX), "copy");
    const double NC = (double)N * C, NF = (double)N * F, NV = (double)N * V, X = sizeof(floatX), f4 = 4;
    const Case cases[] = {
        {"embedding_forward", run_embedding_forward, NC, 2 * X * NC, 1},
        {"position_forward", run_position_forward, NC, 2 * X * NC + X * T * C, 1},
        {"layernorm_forward", run_layernorm_forward, NC, 2 * X * NC, 25},
        {"residual_forward", run_residual, NC, 3 * X * NC, 24},
        {"gelu_forward", run_gelu_forward, NF, 2 * X * NF, 12},
        {"crossentropy_max", run_max, NV, X * NV, 1},
        {"crossentropy_sum", run_sum, NV, X * NV, 1},
        {"crossentropy_backward", run_crossentropy_backward, NV, 2 * X * NV, 1},
        {"crossentropy_fused", run_crossentropy_fused, NV, 2 * X * NV, 0},
        {"gelu_backward", run_gelu_backward, NF, 3 * X * NF, 12},
        {"layernorm_backward", run_layernorm_backward, NC, 4 * X * NC, 25},
        {"embedding_backward", run_embedding_backward, NC, (X + 2 * f4) * NC, 1},
        {"position_backward", run_position_backward, NC, X * NC + 2 * f4 * T * C, 1},
        {"sum_of_squares", run_grad_norm, P, f4 * P, 124439808.0 / P},
        {"adamw_update", run_adamw, P, (7 * f4 + (X < f4 ? X : 0)) * P, 124439808.0 / P},
        {"checksum_add", run_checksum, P, f4 * P, 0}, // every --check-replicas-every steps
        {"rmsnorm_forward", run_rmsnorm_forward, NC, 2 * X * NC, 0},
        {"rmsnorm_backward", run_rmsnorm_backward, NC, 4 * X * NC, 0},
        {"rope_forward", run_rope, 2 * NC, 4 * X * NC + f4 * T * HS, 0},
        {"swiglu_forward", run_swiglu_forward, NF, 3 * X * NF, 0},
        {"swiglu_backward", run_swiglu_backward, NF, 5 * X * NF, 0},
    };
    const int threads = openmp_threads();
    printf("kernels of %s beside memcpy of as many bytes; N = %d, C = %d, F = %d, V = %d; %d threads\n", FLOATX_NAME, N,
           C, F, V, threads);
    printf("%-22s %9s %9s %8s %8s %8s %12s\n", "kernel", "ms", "Gelem/s", "GB/s", "memcpy", "ratio", "ms in a step");
    double step = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const Case* c = &cases[i];
        const int64_t half = min_i64((int64_t)(c->bytes / 2), large * (int64_t)sizeof(floatX));
        const double scale = c->bytes / (2.0 * (double)half);
        const int repeats = (int)max_i64(1, (int64_t)(1e8 / c->bytes));
        double own[ROUNDS], peer[ROUNDS];
        time_of(c, &f, 1);
        for (int r = 0; r < ROUNDS; r++) {
            own[r] = time_of(c, &f, repeats);
            peer[r] = time_of_copy(copy, (const char*)f.x, half, repeats) * scale;
        }
        const double t = median_of(own, ROUNDS), m = median_of(peer, ROUNDS);
        printf("%-22s %9.3f %9.2f %8.1f %8.1f %7.0f%% ", c->name, t * 1e3, c->elements / t * 1e-9, c->bytes / t * 1e-9,
               c->bytes / m * 1e-9, 100 * m / t);
        if (c->calls > 0)
            printf("%12.2f\n", t * c->calls * 1e3);
        else
            printf("%12s\n", "");
        step += t * c->calls;
    }
    printf("all of these in a step of GPT-2 124M: %.1f ms\n", step * 1e3);
    const int shapes[][5] = {{4, 64, 12, 12, 64},  {4, 256, 12, 12, 64}, {1, 1024, 12, 12, 64}, {1, 1024, 12, 4, 64},
                             {1, 1024, 12, 1, 64}, {1, 1024, 8, 8, 128}, {1, 1024, 16, 16, 32}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        bench_attention(&f, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], shapes[i][4], threads);
    return f.sink < 0; // uses the sums
}
