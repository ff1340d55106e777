/*
Rung l1 of the kernel ladder: LayerNorm, a thread a row.

    nvcc -std=c++17 -O3 -arch=sm_90a docs/ladder/kernels/l1_thread_a_row.cu -o l1_thread_a_row   # or emulated:
    g++ -std=gnu++17 -O2 -pthread -x c++ docs/ladder/kernels/l1_thread_a_row.cu -o l1_thread_a_row -ldl

For each of N rows of C numbers:

    m = sum_c x_c / C,   r = 1 / sqrt(sum_c (x_c - m)^2 / C + eps),   out_c = (x_c - m) r w_c + b_c

x, out, w and b are bf16, all sums float32; m and r are kept for the backward pass. A thread does all this for its row,
as a loop on a CPU would, in three passes over x: the mean, the variance, the output. (One pass for both statistics,
by the mean of the squares less the square of the mean, cancels where the mean is large beside the deviation.)

The count: some 8 FLOP a number, and at least 4 bytes, 2 read and 2 written: 2 FLOP a byte, where a GPU has tens. So
LayerNorm is all about memory. Here a row is read three times: 6 bytes and 2 written.

What limits it: how the bytes are asked for. The 32 lanes of a warp are in 32 rows, so one load touches 32 pieces of
memory of 32 bytes, the least that is moved, and needs 2 of each. The other 30 are for the next 15 loads, if they stay
in the cache until then: with 2,048 threads on a multiprocessor these pieces take 64 KB. And there are only N threads.
In the next rung lanes stand side by side in one row.

Source: Ba et al. 2016, arXiv 1607.06450; CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory". In
threefold: kernels/layernorm.h is this loop for the CPU.
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

__global__ static void __launch_bounds__(THREADS) layernorm_kernel(Norm a) {
    const int n = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (n >= a.N) return;
    const bf16* x = a.x + (int64_t)n * a.C;
    bf16* out = a.out + (int64_t)n * a.C;
    float sum = 0.0f, squares = 0.0f;
    for (int c = 0; c < a.C; c++) sum += (float)x[c];
    const float m = sum / (float)a.C;
    for (int c = 0; c < a.C; c++) squares += ((float)x[c] - m) * ((float)x[c] - m);
    const float r = rsqrtf(squares / (float)a.C + EPSILON);
    for (int c = 0; c < a.C; c++) out[c] = (bf16)(((float)x[c] - m) * r * (float)a.w[c] + (float)a.b[c]);
    a.mean[n] = m;
    a.rstd[n] = r;
}

static void layernorm(Norm a) { launch((unsigned)(a.N + THREADS - 1) / THREADS, THREADS, 0, layernorm_kernel, a); }

// ---- The check --------------------------------------------------------------------------------------------------
// The bound. u = 2^-8: a rounding to bf16. A sum of C numbers in float has a relative error of C 2^-24 of the sum of
// their sizes; E = (C + 8) 2^-24 has room for the operations around it, too. With A = sum |x| / C and d = x - m:
//
//     mean: E A,   d: E A + E |d|,   sum d^2: C E^2 A^2 + 2 E sum d^2, as the d add up to 0, so r: E^2 A^2 r^3 + E r
//     out:  u |out| + E (|w| r (A + 2 |d|) + E A^2 |w| r^3 |d| + |b|)

// Row n has numbers within 1 + n % 3 of `offset`.
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
