/*
Rung 7 of the kernel ladder: attention in three passes, with the scores in memory. (Rungs 1 to 6 build a matrix product;
7 to 10 build on them.)

    nvcc -std=c++17 -O3 -arch=sm_90a docs/ladder/kernels/7_scores.cu -o 7_scores       # on a GPU; or emulated:
    g++ -std=gnu++17 -O2 -pthread -x c++ docs/ladder/kernels/7_scores.cu -o 7_scores -ldl

For each head, a query's row of Q, with a row of K and of V for each key:

    S = Q K^T / sqrt(HS),   P_ij = e^S_ij / sum_k e^S_ik over the keys k <= i (causal),   O = P V
    lse_i = log sum_k e^S_ik, for the backward pass, which makes P again from S

Each line is a kernel: the scores, a thread each; the softmax, a warp a row; and O, a thread a number of it. The softmax
subtracts the row's largest score, which changes nothing in P, so that no exponential overflows. Here and in all rungs
S is in units of log2 e, as the GPU's exponential is 2^x: one factor, log2 e / sqrt(HS), makes both.

The count, for each of the T (T + 1) / 2 scores of a head: 4 HS = 256 FLOP, half of them for S, half for O. A score is a
float that is written, read three times by the softmax, replaced by its P, and read again: 6 x 4 = 24 bytes. That is 11
FLOP for each byte, where a GPU has tens to hundreds of FLOP for a byte of its memory. Q, K, V and O have 4 x 128 bytes a
row, which for T >> 1 is nothing beside the 12 T bytes of the row's scores; and their memory grows with T squared.

What limits it: the memory's bandwidth. The next rung never writes a score.

Source: Vaswani et al. 2017, arXiv 1706.03762, equation 1. In threefold: kernels/attention.h, which does this a row at a
time, on the CPU.
*/
#include "gpu.cuh"

struct Shape {
    int B, T, NH; // sequences, rows in each, heads
};
enum { HS = 64, THREADS = 128 };     // numbers of a head's row; threads of a block
static const double P_ERROR = 0x0p0; // P stays float
static const float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
static const float SCALE = LOG2_E / 8; // log2 e / sqrt(HS)

// Q, K, V and O are (B, T, NH, HS): where a head begins, and the distance of its rows. head: of all B * NH
__device__ __forceinline__ int64_t head_begin(Shape s, int head) {
    return ((int64_t)(head / s.NH) * s.T * s.NH + head % s.NH) * HS;
}
__device__ __forceinline__ int row_stride(Shape s) { return s.NH * HS; }

// ---- The kernels -----------------------------------------------------------------------------------------------

// scores (B * NH, T, T) = S; a thread a score. Keys after their query have none.
__global__ static void scores_kernel(float* scores, const bf16* q, const bf16* k, Shape s) {
    const int j = (int)(blockIdx.x * blockDim.x + threadIdx.x), i = (int)blockIdx.y, head = (int)blockIdx.z;
    if (j > i) return;
    const bf16* query = q + head_begin(s, head) + (int64_t)i * row_stride(s);
    const bf16* key = k + head_begin(s, head) + (int64_t)j * row_stride(s);
    float sum = 0.0f;
    for (int d = 0; d < HS; d++) sum += (float)query[d] * (float)key[d];
    scores[((int64_t)head * s.T + i) * s.T + j] = sum * SCALE;
}

// Rows of S become rows of P; a warp a row.
__global__ static void softmax_kernel(float* scores, float* lse, Shape s) {
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x) / 32, lane = (int)threadIdx.x % 32, head = (int)blockIdx.y;
    if (i >= s.T) return;
    float *row = scores + ((int64_t)head * s.T + i) * s.T, top = -FLT_MAX, sum = 0.0f;
    for (int j = lane; j <= i; j += 32) top = fmaxf(top, row[j]);
    top = lanes_max(top);
    for (int j = lane; j <= i; j += 32) sum += exp2_fast(row[j] - top);
    sum = lanes_sum(sum);
    for (int j = lane; j <= i; j += 32) row[j] = exp2_fast(row[j] - top) / sum;
    if (lane == 0) lse[(int64_t)head * s.T + i] = LN_2 * (top + log2f(sum));
}

// O = P V; a thread a number of O.
__global__ static void values_kernel(bf16* o, const float* p, const bf16* v, Shape s) {
    const int d = (int)threadIdx.x, i = (int)blockIdx.x, head = (int)blockIdx.y;
    const float* row = p + ((int64_t)head * s.T + i) * s.T;
    const bf16* value = v + head_begin(s, head) + d;
    float sum = 0.0f;
    for (int j = 0; j <= i; j++) sum += row[j] * (float)value[(int64_t)j * row_stride(s)];
    o[head_begin(s, head) + (int64_t)i * row_stride(s) + d] = (bf16)sum;
}

// o (B, T, NH, HS), lse (B, NH, T)
static void attention(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v, Shape s) {
    const unsigned heads = (unsigned)(s.B * s.NH), T = (unsigned)s.T;
    float* scores = NULL;
    cuda_check(cudaMallocAsync(&scores, sizeof(float) * heads * T * T, 0), "memory for the scores");
    launch(dim3((T + THREADS - 1) / THREADS, T, heads), THREADS, 0, scores_kernel, scores, q, k, s);
    launch(dim3((T * 32 + THREADS - 1) / THREADS, heads), THREADS, 0, softmax_kernel, scores, lse, s);
    launch(dim3(T, heads), HS, 0, values_kernel, o, scores, v, s);
    cuda_check(cudaFreeAsync(scores, 0), "freeing the scores");
}

// ---- The check --------------------------------------------------------------------------------------------------
// The bound. u = 2^-8: a rounding to bf16. f = 2^-22: an operation in float, 2^-24, or an addition of a tensor core,
// which cuts off the last bits of the smaller number; or the exponential, 2 units in the last place. Let A be the
// largest sum of |q_d k_d| / sqrt(HS) of a row. A score's sum has HS = 64 terms: an error of 64 f A. The argument of an
// exponential, at most 2 A, is rounded up to four times: 8 f A. P may be a product of as many exponentials as there are
// tiles, at most T, and sums have at most T terms. Together, as a relative error of a term of a sum over keys,
//
//     E = f (72 A + 2 T + 4),     |error of lse| <= E + f |lse|
//     |error of O| <= u |O| + (2 E + P_ERROR) sum_j P_ij |v_j|        2 E, as O is a quotient of two such sums

struct Heads {
    std::vector<bf16> q, k, v;
};

// Numbers below 3 in Q and 1 in K and V; in the first column such that a row's scores rise by `rise` from the first key
// to the last, and so does their maximum, key by key. Or they fall.
static Heads random_heads(Shape s, float rise) {
    const size_t n = (size_t)s.B * s.T * s.NH * HS;
    Heads x = {std::vector<bf16>(n), std::vector<bf16>(n), std::vector<bf16>(n)};
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        const bool first = i % HS == 0;
        const float t = (float)(i / HS / s.NH % s.T) / (float)s.T;
        x.q[i] = (bf16)(first ? 8.0f : 3 * random_number(&state));
        x.k[i] = (bf16)(first ? rise * t : random_number(&state));
        x.v[i] = (bf16)random_number(&state);
    }
    return x;
}

// Row i of a head, which begins at `at`: its O and lse in float64, and their bounds.
static void reference_row(double* o, double* o_bound, double* lse, double* lse_bound, const Heads& x, size_t at, int i,
                          Shape s) {
    const double u = 0x1p-8, f = 0x1p-22;
    const size_t stride = (size_t)s.NH * HS;
    std::vector<double> p((size_t)i + 1);
    double A = 0.0, top = -INFINITY, sum = 0.0;
    for (size_t j = 0; j < p.size(); j++) {
        double score = 0.0, sizes = 0.0;
        for (size_t d = 0; d < HS; d++) {
            const double term = (double)(float)x.q[at + (size_t)i * stride + d] * (float)x.k[at + j * stride + d] / 8;
            score += term;
            sizes += fabs(term);
        }
        p[j] = score;
        top = fmax(top, score);
        A = fmax(A, sizes);
    }
    for (const double score : p) sum += exp(score - top);
    const double E = f * (72 * A + 2 * s.T + 4);
    *lse = top + log(sum);
    *lse_bound = E + f * fabs(*lse);
    for (size_t d = 0; d < HS; d++) {
        double sizes = 0.0;
        for (size_t j = 0; j < p.size(); j++) {
            const double term = exp(p[j] - *lse) * (float)x.v[at + j * stride + d];
            o[d] += term;
            sizes += fabs(term);
        }
        o_bound[d] = u * fabs(o[d]) + (2 * E + P_ERROR) * sizes;
    }
}

static void check(Results* results, Shape s, float rise) {
    const Heads x = random_heads(s, rise);
    const size_t n = x.q.size(), rows = n / HS;
    std::vector<double> o(n), o_bound(n), lse(rows), lse_bound(rows);
    for (size_t i = 0; i < rows; i++) { // of lse
        const size_t T = (size_t)s.T, NH = (size_t)s.NH, at = (i / T / NH * T * NH + i / T % NH) * HS;
        const size_t row = at + i % T * NH * HS;
        reference_row(&o[row], &o_bound[row], &lse[i], &lse_bound[i], x, at, (int)(i % T), s);
    }
    bf16 *q = device(x.q), *k = device(x.k), *v = device(x.v), *out = device(std::vector<bf16>(n, (bf16)NAN));
    float* stats = device(std::vector<float>(rows, NAN));
    attention(out, stats, q, k, v, s);
    char what[64];
    snprintf(what, sizeof what, "O   B %d T %d heads %d rise %g", s.B, s.T, s.NH, (double)rise);
    compare(results, what, host(out, n), o, o_bound);
    memcpy(what, "lse", 3);
    compare(results, what, host(stats, rows), lse, lse_bound);
    for (void* p : {(void*)q, (void*)k, (void*)v, (void*)out, (void*)stats}) cuda_check(cudaFree(p), "cudaFree");
}

static void measure(Shape s) {
    const size_t n = (size_t)s.B * s.T * s.NH * HS;
    bf16 *q = device(std::vector<bf16>(n)), *out = device(std::vector<bf16>(n));
    float* lse = device(std::vector<float>(n / HS));
    timed("attention", 2.0 * (double)n * (s.T + 1), 1e-12, "TFLOP/s", [&] { attention(out, lse, q, q, q, s); });
    for (void* p : {(void*)q, (void*)out, (void*)lse}) cuda_check(cudaFree(p), "cudaFree");
}

int main() {
    Results results = {0, 0};
    check(&results, {1, 1, 1}, 0.0f);
    check(&results, {2, 200, 2}, 0.0f);
    check(&results, {1, 300, 1}, 20.0f);
    check(&results, {1, 300, 1}, -20.0f);
    measure({8, 1024, 12});
    return finish(&results);
}
