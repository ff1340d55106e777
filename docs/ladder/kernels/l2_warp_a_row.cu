/*
Rung l2 of the kernel ladder: LayerNorm, a warp a row. (Rung l1 has the formulas.)

    nvcc -std=c++17 -O3 -arch=sm_90a docs/ladder/kernels/l2_warp_a_row.cu -o l2_warp_a_row   # or emulated:
    g++ -std=gnu++17 -O2 -pthread -x c++ docs/ladder/kernels/l2_warp_a_row.cu -o l2_warp_a_row -ldl

New: the 32 lanes of a warp take neighbouring numbers of one row, lane l the numbers l, l + 32, l + 64... One load of
the warp is 64 bytes side by side: two pieces of 32 bytes, of which all is used (coalesced). Each lane has the sum of
its numbers, and five shuffles add up the lanes': each time a lane adds the sum of the lane whose index differs in one
bit. All lanes then have the row's sum, in the same bits. There are 32 N threads in place of N.

The count: the same 6 + 2 bytes a number, but where a warp's row, 2 C bytes, stays in the cache for the second and third
pass, 2 + 2 of them come from memory.

What limits it: the number of requests. A load moves 2 bytes a lane, and a row is asked for three times, one pass after
the other, so a warp has few bytes in flight. The next rung asks once, for 16 bytes a lane.

Source: CUDA C++ Programming Guide, "Warp Shuffle Functions", whose reduction across a warp this is.
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
    const int n = (int)(blockIdx.x * THREADS + threadIdx.x) / 32, lane = (int)threadIdx.x % 32;
    if (n >= a.N) return; // the whole warp
    const bf16* x = a.x + (int64_t)n * a.C;
    bf16* out = a.out + (int64_t)n * a.C;
    float sum = 0.0f, squares = 0.0f;
    for (int c = lane; c < a.C; c += 32) sum += (float)x[c];
    const float m = lanes_sum(sum) / (float)a.C;
    for (int c = lane; c < a.C; c += 32) squares += ((float)x[c] - m) * ((float)x[c] - m);
    const float r = rsqrtf(lanes_sum(squares) / (float)a.C + EPSILON);
    for (int c = lane; c < a.C; c += 32) out[c] = (bf16)(((float)x[c] - m) * r * (float)a.w[c] + (float)a.b[c]);
    if (lane > 0) return;
    a.mean[n] = m;
    a.rstd[n] = r;
}

static void layernorm(Norm a) { launch((unsigned)(a.N * 32 + THREADS - 1) / THREADS, THREADS, 0, layernorm_kernel, a); }

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
