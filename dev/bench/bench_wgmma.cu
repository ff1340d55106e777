/*
bench_wgmma.cu: how fast the matrix product of wgmma_product.cuh is on this GPU (compute capability 9.0), beside
cuBLASLt's.

    build/cuda/bf16/bench_wgmma [--tiny]      --tiny: a small product, to see that it works (the emulator runs that too)

How is said in measure_gpu.h. Before, the two products are compared.
*/
#include "measure_gpu.h"
#include "wgmma_product.cuh"

#ifdef PRECISION_FP32
int main(void) {
    printf("bench_wgmma: products of 16-bit numbers: build it with bf16 or fp16\n");
    return 0;
}
#else

#ifdef PRECISION_FP16
static const double ROUNDOFF = 0x1p-11;
#else
static const double ROUNDOFF = 0x1p-8;
#endif

typedef struct {
    floatX *d, *a, *b;
    int M, N, K, blocks;
} Product;

static void ours(const Product* p) { wgmma_product::product(p->d, p->a, p->b, p->M, p->N, p->K, p->blocks); }
static void library(const Product* p) { linear_forward(p->d, p->a, p->b, NULL, p->M, p->K, p->N); }

// |ours - library's| / |library's|, of the first and the last four million results, or of all.
static double difference(const Product* p) {
    const int64_t all = (int64_t)p->M * p->N, n = min_i64(all, 1 << 22), from[2] = {0, all - n};
    float* value[2][2]; // of whom, where
    void (*const multiply[2])(const Product*) = {ours, library};
    for (int who = 0; who < 2; who++) {
        cuda_check(cudaMemset(p->d, 0xff, (size_t)all * sizeof(floatX)), "cudaMemset"); // NaN
        multiply[who](p);
        for (int part = 0; part < 2; part++) {
            value[who][part] = (float*)checked_malloc((size_t)n * sizeof(float), "bench");
            device_to_floats(value[who][part], p->d + from[part], n);
        }
    }
    double error = 0, size = 0;
    for (int part = 0; part < 2; part++)
        for (int64_t i = 0; i < n; i++) {
            const double want = (double)value[1][part][i], e = (double)value[0][part][i] - want;
            error += e * e, size += want * want;
        }
    for (int i = 0; i < 4; i++) free(value[i / 2][i % 2]);
    return sqrt(error / size);
}

static bool bench(int M, int N, int K, int blocks, bool tiny) {
    Product p = {(floatX*)device_malloc((size_t)M * N * sizeof(floatX), "bench"),
                 random_array<floatX>((int64_t)M * K),
                 random_array<floatX>((int64_t)N * K),
                 M,
                 N,
                 K,
                 blocks};
    const double apart = difference(&p), bound = 2 * ROUNDOFF;
    const double flop = 2.0 * M * N * K, own = milliseconds(tiny, [&] { ours(&p); }),
                 lt = milliseconds(tiny, [&] { library(&p); });
    printf("%6d x %6d x %6d %9.3f ms %8.1f TFLOP/s   cuBLASLt %9.3f ms %8.1f TFLOP/s   %5.1f %%   apart by %.1e%s\n", M,
           N, K, own, flop / own / 1e9, lt, flop / lt / 1e9, 100 * lt / own, apart, apart <= bound ? "" : "  WRONG");
    device_free(p.d, 0), device_free(p.a, 0), device_free(p.b, 0);
    return apart <= bound; // a NaN is no number below it
}

int main(int argc, char** argv) {
    const bool tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    process.name = "bench_wgmma";
    device_open(0);
    if (!is_hopper()) {
        printf("bench_wgmma: this GPU has no wgmma: nothing to measure\n");
        return 0;
    }
    int blocks = 4;
#ifdef __CUDACC__
    cuda_check(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
#endif
    if (tiny) return bench(200, 264, 136, blocks, true) ? 0 : 1;
    const int shapes[][3] = {{4096, 4096, 4096},   {8192, 8192, 8192},  {65536, 2304, 768},  {65536, 768, 768},
                             {65536, 3072, 768},   {65536, 768, 3072},  {65536, 50304, 768}, {16384, 4096, 4096},
                             {16384, 22016, 4096}, {16384, 4096, 11008}};
    bool right = true;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        right = bench(shapes[i][0], shapes[i][1], shapes[i][2], blocks, false) && right;
    return right ? 0 : 1;
}

#endif
