/*
Rung 9 of the kernel ladder: attention on tensor cores, as in FlashAttention-2. (Rung 8 has the online softmax, rung 4
tensor cores, ldmatrix and the order of a tile in shared memory.)

    nvcc -std=c++17 -O3 -arch=sm_90a docs/ladder/kernels/9_flash2.cu -o 9_flash2       # on a GPU; or emulated:
    g++ -std=gnu++17 -O2 -pthread -x c++ docs/ladder/kernels/9_flash2.cu -o 9_flash2 -ldl

New: a warp has 16 queries, and both products are those of a warp, 16 x 8 x 16 at a time (mma.sync). Of 16 rows in the
layout of mma's result, lane l, with g = l / 4 and t = 2 (l % 4), has two neighbouring columns, t and t + 1 of each 8,
of row g in c[0] and c[1], and of row g + 8 in c[2] and c[3]. So

    - a row belongs to four lanes: its maximum and its sum take two shuffles;
    - rounded to bf16 in pairs, a result has the layout of a left operand. P never leaves its lanes: what Q K^T has left
      in registers, P V takes as its left operand. That is why a warp owns whole rows of S, and not a part of the keys;
    - a tile of K is the right operand of Q K^T as it lies in memory; of P V it is the tile of V transposed (.trans).

Also new: cp.async copies the next tile while the current one is multiplied: V during Q K^T, the next K during the
softmax and P V. Rounding P to bf16 adds an error of 2^-8 of each term at most, which the bound takes into account.

The count: FLOP and bytes are those of rung 8, but tensor cores do 16 x 8 x 16 x 2 = 4096 FLOP for each instruction of a
warp, where ordinary cores do 64. Tiles of 64 keys for 64 queries are 64 x 64 x 256 FLOP for 2 x 64 x 128 bytes, again
64 a byte, from the L2 cache. A fragment of K or V, 512 bytes of shared memory, feeds two mma, which are 8192 FLOP.

What limits it: shared memory, as each of the four warps reads the whole tile, 16 FLOP for a byte; and the warps' time:
the same warps copy, multiply and take exponentials, one after the other. The next rung divides these tasks among warps.

Source: Dao 2023, arXiv 2307.08691 (FlashAttention-2). In threefold: kernels/attention.cuh, whose warps have 32 queries,
so that a fragment feeds four mma.
*/
#include "gpu.cuh"

enum { QUERIES = 64, KEYS = 64, THREADS = 128 }; // a block's queries; a tile's keys
static const double P_ERROR = 0x1p-8;            // P is rounded to bf16
static const float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
static const float SCALE = LOG2_E / 8; // log2 e / sqrt(HS)

// Where a head begins in Q, K, V and O, and the distance of its rows. head: of all B * NH
__device__ __forceinline__ int64_t head_begin(Heads s, int head) {
    return ((int64_t)(head / s.NH) * s.T * s.NH + head % s.NH) * HS;
}
__device__ __forceinline__ int row_stride(Heads s) { return s.NH * HS; }

// ---- The kernel ------------------------------------------------------------------------------------------------

struct Shared {
    bf16 q[QUERIES * HS], k[KEYS * HS], v[KEYS * HS];
};

// Starts to copy rows [first, first + ROWS) of a head; rows beyond the sequence repeat its last row.
template <int ROWS>
__device__ __forceinline__ void load_tile(bf16* tile, const bf16* head, int first, Heads s) {
    for (int i = (int)threadIdx.x; i < ROWS * HS / 8; i += THREADS) {
        const int row = i / (HS / 8), column = i % (HS / 8) * 8, from = min(first + row, s.T - 1);
        copy_async16(tile + tile_place(row, column), head + (int64_t)from * row_stride(s) + column);
    }
    copy_async_commit();
}

// Waits until all tiles have arrived, for all threads, and all threads are done with the former tiles.
__device__ __forceinline__ void await_tiles() {
    copy_async_wait<0>();
    __syncthreads();
}

// Scores of keys that come after their query become -infinity. row, column: where c begins in the sequence
__device__ __forceinline__ void mask_scores(float (&c)[KEYS / 2], int row, int column) {
    const int lane = (int)threadIdx.x % 32, y = row + lane / 4, x = column + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        if (x + i / 4 * 8 + i % 2 > y + i / 2 % 2 * 8) c[i] = -INFINITY;
    }
}

// Scores of the next keys become P, not yet divided by the sum of its row. For rows g and g + 8, top: the largest score
// so far; sum: of this lane's P, relative to it. The caller has to scale P V by `factor`.
__device__ __forceinline__ void softmax_rows(float (&p)[KEYS / 2], float (&factor)[2], float (&top)[2],
                                             float (&sum)[2]) {
    float largest[2] = {-FLT_MAX, -FLT_MAX};
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], p[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        largest[r] = fmaxf(top[r], lanes_max(largest[r], 4) * SCALE);
        factor[r] = exp2_fast(top[r] - largest[r]);
        top[r] = largest[r];
        sum[r] *= factor[r]; // 0 for the first tile
    }
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        p[i] = exp2_fast(p[i] * SCALE - top[i / 2 % 2]);
        sum[i / 2 % 2] += p[i];
    }
}

// Row g of c, and row g + 8, times a factor of its own.
__device__ __forceinline__ void scale_rows(float (&c)[HS / 2], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < HS / 2; i++) c[i] *= factor[i / 2 % 2];
}

// Accumulators, rounded to bf16 in pairs, become a left operand.
__device__ __forceinline__ void round_all(unsigned (&a)[KEYS / 16][4], const float (&c)[KEYS / 2]) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
        const Packed<bf16, 2> pair = {{(bf16)c[2 * i], (bf16)c[2 * i + 1]}};
        memcpy(&a[i / 4][i % 4], &pair, sizeof pair);
    }
}

// Columns [8 n, 8 n + 8) of accumulators.
template <int N>
__device__ __forceinline__ float (&columns(float (&c)[N], int n))[4] {
    return reinterpret_cast<float(&)[4]>(c[4 * n]);
}

// c += A B^T; A: the warp's rows of Q, B: a tile of K
__device__ __forceinline__ void multiply_rows(float (&c)[KEYS / 2], const unsigned (&a)[HS / 16][4], const bf16* tile) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < HS / 16; k++) {
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            unsigned b[4];
            ldmatrix_x4(b, tile + tile_place(n * 16 + lane / 16 * 8 + lane % 8, k * 16 + lane / 8 % 2 * 8));
            mma_m16n8k16(columns(c, 2 * n), a[k], {b[0], b[1]});
            mma_m16n8k16(columns(c, 2 * n + 1), a[k], {b[2], b[3]});
        }
    }
}

// c += A B; A: P, B: a tile of V
__device__ __forceinline__ void multiply_columns(float (&c)[HS / 2], const unsigned (&a)[KEYS / 16][4],
                                                 const bf16* tile) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
#pragma unroll
        for (int n = 0; n < HS / 16; n++) {
            unsigned b[4];
            ldmatrix_x4_trans(b, tile + tile_place(k * 16 + lane % 16, n * 16 + lane / 16 * 8));
            mma_m16n8k16(columns(c, 2 * n), a[k], {b[0], b[1]});
            mma_m16n8k16(columns(c, 2 * n + 1), a[k], {b[2], b[3]});
        }
    }
}

// Writes 16 rows of O, from `row` on, divided by their sums, and their lse.
__device__ __forceinline__ void store_rows(bf16* o, float* lse, const float (&c)[HS / 2], const float (&top)[2],
                                           const float (&sum)[2], int row, int head, Heads s) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int t = row + r * 8 + lane / 4;
        const float l = lanes_sum(sum[r], 4), inverse = 1.0f / l;
        if (t >= s.T) continue;
        bf16* to = o + head_begin(s, head) + (int64_t)t * row_stride(s) + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < HS / 8; n++) {
            const Packed<bf16, 2> pair = {{(bf16)(c[4 * n + 2 * r] * inverse), (bf16)(c[4 * n + 2 * r + 1] * inverse)}};
            store(to + n * 8, pair);
        }
        if (lane % 4 == 0) lse[(int64_t)head * s.T + t] = LN_2 * (top[r] + log2f(l));
    }
}

__global__ static void __launch_bounds__(THREADS)
    attention_kernel(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v, Heads s) {
    Shared& shared = *dynamic_shared<Shared>();
    const int first = (int)(gridDim.x - 1 - blockIdx.x) * QUERIES, head = (int)blockIdx.y;
    const int lane = (int)threadIdx.x % 32, part = (int)threadIdx.x / 32 * 16; // the warp's rows of the block's
    const int row = first + part, end = min(first + QUERIES, s.T);
    const int64_t at = head_begin(s, head);
    unsigned query[HS / 16][4], a[KEYS / 16][4];
    float out[HS / 2] = {}, top[2] = {-FLT_MAX, -FLT_MAX}, sum[2] = {}, factor[2];

    load_tile<QUERIES>(shared.q, q + at, first, s);
    load_tile<KEYS>(shared.k, k + at, 0, s);
    await_tiles();
#pragma unroll
    for (int d = 0; d < HS; d += 16)
        ldmatrix_x4(query[d / 16], shared.q + tile_place(part + lane % 16, d + lane / 16 * 8));
    for (int key = 0; key < end; key += KEYS) {
        await_tiles(); // K is here, and V is free
        load_tile<KEYS>(shared.v, v + at, key, s);
        float p[KEYS / 2] = {};
        multiply_rows(p, query, shared.k);
        if (key + KEYS - 1 > row) mask_scores(p, row, key);
        await_tiles(); // V is here, and K is free
        if (key + KEYS < end) load_tile<KEYS>(shared.k, k + at, key + KEYS, s);
        softmax_rows(p, factor, top, sum);
        scale_rows(out, factor);
        round_all(a, p);
        multiply_columns(out, a, shared.v);
    }
    store_rows(o, lse, out, top, sum, row, head, s);
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
