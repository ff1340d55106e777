/*
Rung 8 of the kernel ladder: attention in one pass, by the online softmax. (Rung 7 has the formulas.)

    nvcc -std=c++17 -O3 -arch=sm_90a docs/ladder/kernels/8_online.cu -o 8_online       # on a GPU; or emulated:
    g++ -std=gnu++17 -O2 -pthread -x c++ docs/ladder/kernels/8_online.cu -o 8_online -ldl

New: no score is ever in memory. A thread has a query, its row of Q and its row of O in registers, and goes through the
keys tile by tile. The softmax seems to need the whole row twice, for its maximum and for its sum. But both can be kept
up to date. With the maximum m and the sum l of the keys so far, and O not yet divided by l, a tile of scores S does

    m' = max(m, max_j S_j),   factor = e^(m - m'),   P_j = e^(S_j - m')
    l  = factor l + sum_j P_j,   O = factor O + sum_j P_j V_j,   m = m'

and at the end O / l is the result, lse = m + log l. The factor is what rows lose when a larger score comes: all earlier
terms were relative to the old maximum. It is 1 for as long as the maximum stays.

A block has 64 queries of one head. It loads a tile of 32 keys and values into shared memory, which all its threads read
at the same places, one after the other: one read of shared memory serves the 32 lanes of a warp. The loop ends at the
block's last query; only tiles that reach beyond a query are masked. Blocks with the last queries have the most keys,
and start first.

The count: for a tile, 2 x 32 rows of 128 bytes from global memory for 64 x 32 scores of 256 FLOP: 64 FLOP for each
byte, in place of 11, and these rows come from the L2 cache for all blocks of a head but one. The FLOP are the same; one
multiplication of O for each tile comes in.

What limits it: ordinary cores, with one multiply-add for each 2 FLOP, and a conversion from bf16 for each number. And
registers: the rows of Q and O and the tile's scores are 64 + 64 + 32 floats, and with these about 255 registers a
thread, so that 65,536 registers hold 8 warps. The next rung gives both products to tensor cores.

Sources: Milakov and Gimelshein 2018, arXiv 1805.02867 (the online softmax); Dao et al. 2022, arXiv 2205.14135
(FlashAttention). In threefold: kernels/attention_plain.cuh.
*/
#include "gpu.cuh"

struct Shape {
    int B, T, NH; // sequences, rows in each, heads
};
enum { HS = 64, QUERIES = 64, KEYS = 32, THREADS = 64 }; // numbers of a head's row; a block's queries; a tile's keys
static const double P_ERROR = 0x0p0;                     // P stays float
static const float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
static const float SCALE = LOG2_E / 8; // log2 e / sqrt(HS)

// Q, K, V and O are (B, T, NH, HS): where a head begins, and the distance of its rows. head: of all B * NH
__device__ __forceinline__ int64_t head_begin(Shape s, int head) {
    return ((int64_t)(head / s.NH) * s.T * s.NH + head % s.NH) * HS;
}
__device__ __forceinline__ int row_stride(Shape s) { return s.NH * HS; }

// ---- The kernel ------------------------------------------------------------------------------------------------

struct Shared {
    bf16 k[KEYS * HS], v[KEYS * HS];
};

// Copies rows [first, first + ROWS) of a head; rows beyond the sequence repeat its last row.
template <int ROWS>
__device__ __forceinline__ void load_tile(bf16* tile, const bf16* head, int first, Shape s) {
    for (int i = (int)threadIdx.x; i < ROWS * HS / 8; i += THREADS) {
        const int row = i / (HS / 8), column = i % (HS / 8) * 8, from = min(first + row, s.T - 1);
        store(tile + row * HS + column, load<8>(head + (int64_t)from * row_stride(s) + column));
    }
}

// Scores of the next keys become P, not yet divided by the sum of its row. top: the largest score so far; sum: of P,
// relative to it. Returns the factor by which the caller has to scale P V.
__device__ __forceinline__ float softmax_row(float (&p)[KEYS], float* top, float* sum) {
    float largest = *top;
    for (int j = 0; j < KEYS; j++) largest = fmaxf(largest, p[j]);
    const float factor = exp2_fast(*top - largest);
    *top = largest;
    *sum *= factor; // 0 for the first tile
    for (int j = 0; j < KEYS; j++) {
        p[j] = exp2_fast(p[j] - largest);
        *sum += p[j];
    }
    return factor;
}

__global__ static void __launch_bounds__(THREADS)
    attention_kernel(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v, Shape s) {
    Shared& shared = *dynamic_shared<Shared>();
    const int first = (int)(gridDim.x - 1 - blockIdx.x) * QUERIES, head = (int)blockIdx.y;
    const int i = first + (int)threadIdx.x, end = min(first + QUERIES, s.T);
    const int64_t at = head_begin(s, head);
    float query[HS], out[HS] = {}, top = -FLT_MAX, sum = 0.0f;
    for (int d = 0; d < HS; d++) query[d] = (float)q[at + (int64_t)min(i, s.T - 1) * row_stride(s) + d] * SCALE;

    for (int key = 0; key < end; key += KEYS) {
        __syncthreads(); // all threads are done with the former tiles
        load_tile<KEYS>(shared.k, k + at, key, s);
        load_tile<KEYS>(shared.v, v + at, key, s);
        __syncthreads();
        float p[KEYS] = {};
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
#pragma unroll
            for (int d = 0; d < HS; d++) p[j] += query[d] * (float)shared.k[j * HS + d];
            if (key + j > i) p[j] = -INFINITY;
        }
        const float factor = softmax_row(p, &top, &sum);
#pragma unroll
        for (int d = 0; d < HS; d++) out[d] *= factor;
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
#pragma unroll
            for (int d = 0; d < HS; d++) out[d] += p[j] * (float)shared.v[j * HS + d];
        }
    }

    if (i >= s.T) return;
    for (int d = 0; d < HS; d++) o[at + (int64_t)i * row_stride(s) + d] = (bf16)(out[d] / sum);
    lse[(int64_t)head * s.T + i] = LN_2 * (top + log2f(sum));
}

// o (B, T, NH, HS), lse (B, NH, T)
static void attention(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v, Shape s) {
    const dim3 blocks((unsigned)(s.T + QUERIES - 1) / QUERIES, (unsigned)(s.B * s.NH));
    launch(blocks, THREADS, sizeof(Shared), attention_kernel, o, lse, q, k, v, s);
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
