/*
bench_attention.c: kernels/attention.h, forward and backward, at the shapes of GPT-2 124M and some with other heads.

Operations are those of the causal half only: the forward pass has 2 products of 2 * T * T / 2 * HS operations for every
query head, the backward pass counts 2.5 times that (5 products, one of them S again). The peak of the build's type
(kernels/mfu.h), the forward and the backward pass take turns; each number is the median over the rounds, percentages
taken round by round, so that they mean something on a busy machine, too.
*/
#include "../../kernels/attention.h"
#include "../../kernels/mfu.h"
#include "../../planner/median.h"

enum { ROUNDS = 15 };

typedef struct {
    int B, T, NH, NKV, HS;
} Shape;

static floatX* random_numbers(size_t n, uint64_t stream) {
    float* x = (float*)checked_malloc(n * sizeof(float), "a benchmark");
    floatX* y = (floatX*)checked_malloc(n * sizeof(floatX), "a benchmark");
    random_normals(x, (int64_t)n, 1, stream, 0);
    for (size_t i = 0; i < n; i++) y[i] = to_floatX(x[i]);
    free(x);
    return y;
}

static void bench(Shape s, int threads) {
    const size_t tokens = (size_t)s.B * (size_t)s.T, width = (size_t)s.NH * (size_t)s.HS;
    const size_t qkv_size = tokens * (size_t)(s.NH + 2 * s.NKV) * (size_t)s.HS;
    floatX *qkv = random_numbers(qkv_size, 1), *dqkv = random_numbers(qkv_size, 2);
    floatX *out = random_numbers(tokens * width, 3), *dout = random_numbers(tokens * width, 4);
    float* lse = (float*)checked_malloc(tokens * (size_t)s.NH * sizeof(float), "a benchmark");
    const double operations = 2.0 * s.B * s.NH * (double)s.T * s.T * s.HS;
    double forward[ROUNDS], backward[ROUNDS], forward_part[ROUNDS], backward_part[ROUNDS];
    for (int round = -2; round < ROUNDS; round++) { // two to warm up
        const int i = round < 0 ? 0 : round;
        const double peak = fma_peak_flops(threads, 0.02), start = seconds_now();
        attention_forward(out, lse, qkv, s.B, s.T, s.NH, s.NKV, s.HS);
        const double middle = seconds_now();
        attention_backward(dqkv, dout, qkv, out, lse, s.B, s.T, s.NH, s.NKV, s.HS);
        forward[i] = middle - start;
        backward[i] = seconds_now() - middle;
        forward_part[i] = operations / forward[i] / peak;
        backward_part[i] = 2.5 * operations / backward[i] / peak;
    }
    const double f = median_of(forward, ROUNDS), b = median_of(backward, ROUNDS);
    printf("%3d %5d %4d %4d %4d  %9.2f %9.0f %6.0f %%  %9.2f %9.0f %6.0f %%\n", s.B, s.T, s.NH, s.NKV, s.HS, f * 1e3,
           operations / f * 1e-9, 100 * median_of(forward_part, ROUNDS), b * 1e3, 2.5 * operations / b * 1e-9,
           100 * median_of(backward_part, ROUNDS));
    free(qkv), free(dqkv), free(out), free(dout), free(lse);
}

int main(void) {
    const int threads = openmp_threads();
    const Shape shapes[] = {{4, 64, 12, 12, 64},  {4, 256, 12, 12, 64}, {1, 1024, 12, 12, 64}, {1, 1024, 12, 4, 64},
                            {1, 1024, 12, 1, 64}, {1, 1024, 8, 8, 128}, {1, 1024, 16, 16, 32}};
    printf("attention in %s, %d threads, peak %.0f GFLOP/s\n", sizeof(floatX) == 2 ? "bf16" : "float32", threads,
           fma_peak_flops(threads, 0.2) * 1e-9);
    printf("  B     T   NH  NKV   HS  forward ms   GFLOP/s  of peak   back. ms   GFLOP/s  of peak\n");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) bench(shapes[i], threads);
    return 0;
}
