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

A block has 64 queries of one head. It loads a tile of 32 keys and values into shared memory, whose numbers all its
threads read in the same order: one read of shared memory serves the 32 lanes of a warp. The loop ends at the
block's last query. Blocks with the last queries have the most keys, and start first.

The count: for a tile, 2 x 32 rows of 128 bytes from global memory for 64 x 32 scores of 256 FLOP: 64 FLOP for each byte
of K and V, and no byte of scores; these rows come from the L2 cache for all blocks of a head but the first. The FLOP
are the same; one multiplication of O for each tile comes in.

What limits it: ordinary cores, 64 FLOP an instruction of a warp, and a conversion from bf16 for each multiply-add. And
registers: the rows of Q and O and the tile's scores are 64 + 64 + 32 floats, and with these about 255 registers a
thread, so that 65,536 registers hold 8 warps. The next rung gives both products to tensor cores.

Sources: Milakov and Gimelshein 2018, arXiv 1805.02867 (the online softmax); Dao et al. 2022, arXiv 2205.14135
(FlashAttention). In threefold: kernels/attention_plain.cuh.
*/
#include "gpu.cuh"

enum { QUERIES = 64, KEYS = 32, THREADS = 64 }; // a block's queries; a tile's keys
static const double P_ERROR = 0x0p0;            // P stays float
static const float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
static const float SCALE = LOG2_E / 8; // log2 e / sqrt(HS)

// Where a head begins in Q, K, V and O, and the distance of its rows. head: of all B * NH
__device__ __forceinline__ int64_t head_begin(Heads s, int head) {
    return ((int64_t)(head / s.NH) * s.T * s.NH + head % s.NH) * HS;
}
__device__ __forceinline__ int row_stride(Heads s) { return s.NH * HS; }

// ---- The kernel ------------------------------------------------------------------------------------------------

struct Shared {
    bf16 k[KEYS * HS], v[KEYS * HS];
};

// Copies rows [first, first + ROWS) of a head; rows beyond the sequence repeat its last row.
template <int ROWS>
__device__ __forceinline__ void load_tile(bf16* tile, const bf16* head, int first, Heads s) {
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
    attention_kernel(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v, Heads s) {
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
static void attention(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v, Heads s) {
    const dim3 blocks((unsigned)(s.T + QUERIES - 1) / QUERIES, (unsigned)(s.B * s.NH));
    launch(blocks, THREADS, sizeof(Shared), attention_kernel, o, lse, q, k, v, s);
}

int main() {
    Results results = {0, 0};
    check_attention(&results, {1, 1, 1}, 0.0f, P_ERROR, attention);
    check_attention(&results, {2, 200, 2}, 0.0f, P_ERROR, attention);
    check_attention(&results, {1, 520, 1}, 20.0f, P_ERROR, attention);
    check_attention(&results, {1, 300, 1}, -20.0f, P_ERROR, attention);
    measure_attention({8, 1024, 12}, attention);
    return finish(&results);
}
