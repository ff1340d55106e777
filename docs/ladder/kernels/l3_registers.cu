/*
Rung l3 of the kernel ladder: LayerNorm, with the row in registers. (Rung l1 has the formulas, l2 the warp a row.)

    nvcc -std=c++17 -O3 -arch=sm_90a docs/ladder/kernels/l3_registers.cu -o l3_registers   # or emulated:
    g++ -std=gnu++17 -O2 -pthread -x c++ docs/ladder/kernels/l3_registers.cu -o l3_registers -ldl

New: a lane loads its part of the row once, 8 numbers or 16 bytes at a time, all loads before the first use, and keeps
them. Mean, variance and output then come from registers. Registers have no addresses: the part is an array whose size
and indices the compiler knows, PACKS packs of 8, and every loop over it is unrolled. So a row has up to 32 x 8 x PACKS
= 1024 numbers, C is a multiple of 8, and packs beyond C are zeros that take no part.

The count: 2 + 2 bytes a number, the least there is, and a 24th of l2's load instructions for x.
A warp has 512 bytes in flight for each pack.

What limits it: the memory's bandwidth; that is the end of this ladder. What is left to save is bytes of neighbouring
operations: the trainer (kernels/layernorm.cuh) adds the residual connection before it in the same kernel, and keeps
rows in shared memory, so that they may be of any size.

Source: CUDA C++ Programming Guide, "Device Memory Accesses" (16 bytes an instruction); Apex's and PyTorch's LayerNorm
keep small rows in registers, too.
*/
#include "gpu.cuh"

enum { THREADS = 128 }; // of a block
static const float EPSILON = 1e-5f;

struct Norm {
    bf16* out;             // (N, C)
    float *mean, *rstd;    // (N)
    const bf16 *x, *w, *b; // (N, C), (C), (C)
    int N, C;
};

// ---- The kernel ------------------------------------------------------------------------------------------------

enum { PACKS = 4 }; // of 8 numbers, of a lane
typedef Packed<bf16, 8> Pack;

__global__ static void __launch_bounds__(THREADS) layernorm_kernel(Norm a) {
    const int n = (int)(blockIdx.x * THREADS + threadIdx.x) / 32, lane = (int)threadIdx.x % 32;
    if (n >= a.N) return; // the whole warp
    const bf16* x = a.x + (int64_t)n * a.C;
    bf16* out = a.out + (int64_t)n * a.C;
    Pack row[PACKS] = {};
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * 32 + lane) * 8;
        if (c < a.C) row[p] = load<8>(x + c);
    }
#pragma unroll
    for (int i = 0; i < PACKS * 8; i++) sum += (float)row[i / 8][i % 8];
    const float m = lanes_sum(sum) / (float)a.C;
#pragma unroll
    for (int i = 0; i < PACKS * 8; i++) {
        const float d = (float)row[i / 8][i % 8] - m;
        if ((i / 8 * 32 + lane) * 8 < a.C) squares += d * d;
    }
    const float r = rsqrtf(lanes_sum(squares) / (float)a.C + EPSILON);
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * 32 + lane) * 8;
        if (c >= a.C) continue;
        const Pack w = load<8>(a.w + c), b = load<8>(a.b + c);
        Pack y;
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = (bf16)(((float)row[p][i] - m) * r * (float)w[i] + (float)b[i]);
        store(out + c, y);
    }
    if (lane > 0) return;
    a.mean[n] = m;
    a.rstd[n] = r;
}

static void layernorm(Norm a) {
    if (a.C % 8 != 0 || a.C > 32 * 8 * PACKS) {
        fprintf(stderr, "C is %d: it has to be a multiple of 8, up to %d\n", a.C, 32 * 8 * PACKS);
        exit(1);
    }
    launch((unsigned)(a.N * 32 + THREADS - 1) / THREADS, THREADS, 0, layernorm_kernel, a);
}

// ---- The check --------------------------------------------------------------------------------------------------
// The bound. u = 2^-8: a rounding to bf16. A sum of C numbers in float has a relative error of C 2^-24 of the sum of
// their sizes; E = (C + 8) 2^-24 has room for the operations around it, too. With A = sum |x| / C and d = x - m:
//
//     mean: E A,   d: E A + E |d|,   sum d^2: C E^2 A^2 + 2 E sum d^2, as the d add up to 0, so r: E^2 A^2 r^3 + E r
//     out:  u |out| + E (|w| r (A + 2 |d|) + E A^2 |w| r^3 |d| + |b|)

// Rows of numbers that are below 1 + n % 3 from `offset`, in row n.
static void check(Results* results, int N, int C, float offset) {
    const size_t size = (size_t)N * C, rows = (size_t)N, columns = (size_t)C;
    std::vector<bf16> x(size), w(columns), b(columns);
    std::vector<double> out(size), out_bound(size), mean(rows), mean_bound(rows), rstd(rows), rstd_bound(rows);
    uint64_t state = 1;
    for (size_t i = 0; i < size; i++) x[i] = (bf16)(offset + (float)(1 + i / columns % 3) * random_number(&state));
    for (bf16& v : w) v = (bf16)(1.5f + random_number(&state));
    for (bf16& v : b) v = (bf16)random_number(&state);
    const double u = 0x1p-8, E = (C + 8) * 0x1p-24;
    for (size_t n = 0; n < rows; n++) {
        const bf16* row = &x[n * columns];
        double sum = 0.0, sizes = 0.0, squares = 0.0;
        for (size_t c = 0; c < columns; c++) {
            sum += (float)row[c];
            sizes += fabs((float)row[c]);
        }
        const double m = sum / C, A = sizes / C;
        for (size_t c = 0; c < columns; c++) squares += ((float)row[c] - m) * ((float)row[c] - m);
        const double r = 1 / sqrt(squares / C + EPSILON), r_error = E * E * A * A * r * r * r;
        mean[n] = m;
        mean_bound[n] = E * A;
        rstd[n] = r;
        rstd_bound[n] = r_error + E * r;
        for (size_t c = 0; c < columns; c++) {
            const double d = (float)row[c] - m, scale = (float)w[c], shift = (float)b[c];
            out[n * columns + c] = d * r * scale + shift;
            out_bound[n * columns + c] = u * fabs(out[n * columns + c]) + scale * (E * r * (A + 2 * fabs(d))) +
                                         scale * r_error * fabs(d) + E * fabs(shift);
        }
    }
    bf16* y = device(std::vector<bf16>(size, (bf16)NAN));
    float *means = device(std::vector<float>(rows, NAN)), *rstds = device(std::vector<float>(rows, NAN));
    layernorm({y, means, rstds, device(x), device(w), device(b), N, C});
    char what[64];
    snprintf(what, sizeof what, "out  N %d C %d offset %g", N, C, (double)offset);
    compare(results, what, host(y, size), out, out_bound);
    memcpy(what, "mean", 4);
    compare(results, what, host(means, rows), mean, mean_bound);
    memcpy(what, "rstd", 4);
    compare(results, what, host(rstds, rows), rstd, rstd_bound);
}

static void measure(int N, int C) {
    const size_t size = (size_t)N * C;
    const Norm a = {device(std::vector<bf16>(size)),
                    device(std::vector<float>((size_t)N)),
                    device(std::vector<float>((size_t)N)),
                    device(std::vector<bf16>(size)),
                    device(std::vector<bf16>((size_t)C)),
                    device(std::vector<bf16>((size_t)C)),
                    N,
                    C};
    timed("layernorm", 4.0 * (double)size, 1e-9, "GB/s", [&] { layernorm(a); });
}

int main() {
    Results results = {0, 0};
    check(&results, 70, 768, 0.0f);
    check(&results, 5, 1000, 100.0f);
    check(&results, 33, 8, -3.0f);
    measure(32768, 768);
    return finish(&results);
}
