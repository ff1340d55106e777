/*
attention.cuh: causal attention on the GPU, forward, backward and token by token, with grouped key/value heads.
attention.h has the formulas and the layout:

    S = Q K^T / sqrt(HS),   P = softmax of S over the keys j <= i,   O = P V,   lse = log sum_j e^S_ij
    dV = P^T dO,   dP = dO V^T,   D = rowsum(O dO),   dS = P (dP - D),   dQ = dS K / sqrt(HS),   dK = dS^T Q / sqrt(HS)

There are three families of kernels, none of which ever has a T x T matrix in memory:

    mma     16-bit floats in heads of 64 or 128 go through tensor cores, as in FlashAttention-2 (Dao 2023). This file
    plain   All else (float32, other heads up to 256, heads of 128 where a block has less than 102 KB, arrays that are
            not aligned to 16 bytes) runs on ordinary cores, simpler and many times slower: attention_plain.cuh
    wgmma   The same as mma, with instructions of Hopper GPUs: attention_hopper.cuh

The environment variable ATTENTION=plain, mma or wgmma selects one of them, and ends the run where that is impossible.
By default it is the first of wgmma, mma and plain that is possible; on the emulator, mma or plain.

Forward. A block has 128 queries of one head, 32 to each of its 4 warps, and loops over keys and values in tiles of 64.
Scores and probabilities never leave registers: the accumulators of S = Q K^T have the layout of the left operand of P V
(drawn below). Limits, and the measures against them:

    memory          A tile is 256 HS bytes for 2 * 2 * 128 * 64 HS operations: 128 a byte. An H200 needs 184 (790
                    TFLOP/s, 4.3 TB/s). So tiles have to come from L2: blocks of a few heads, whose keys and values fit
                    there, run at about the same time (block_of).
    shared memory   128 bytes a clock. A warp has 32 queries, not 16, so a fragment of K or V feeds 4 mma: 4 clocks of
                    loading for 8 (A100) or about 6 (H100) of computing. Padded rows: no bank conflicts, few addresses.
    exponentials    16 a clock, one for each 256 operations at HS = 64. 1/sqrt(HS) and log2 e are one factor: an FFMA
                    and an ex2 for each score. Only tiles that the diagonal crosses are masked.
    waiting         V is copied during Q K^T, and the next K during the softmax and P V. Two blocks share a
                    multiprocessor: one computes while the other waits. The largest start first.

Backward. dK and dV are sums over queries, dQ is one over keys; registers have room for only one of them. Adding up dQ
in memory by atomics gives other bits each time. Adding it up in order takes float32 partial sums, one for each tile of
keys: for one layer of GPT-2 124M and 64 x 1024 tokens 1.8 GB or 0.4 ms, and four times that with 4096 tokens in a
sequence. So there are two kernels, and both make S and dP: 7 products instead of 5. In return all sums stay in
registers, in a fixed order, and no matrix is transposed through memory: one kernel owns queries and makes S and dP, for
dS K; the other owns keys and makes S^T and dP^T, whose accumulators are left operands of P^T dO and dS^T Q. The first
also makes D, for the second to read.

Bytes: forward reads qkv and writes out; backward reads qkv and dout twice and out once, and writes dqkv. lse and D are
small. Rounding: P and dS are rounded to 16 bits for the second product; all else is float32.
*/
#pragma once

#include "attention_common.cuh"
#include "attention_hopper.cuh"
#include "attention_plain.cuh"

// ---- Tensor cores: tiles and fragments --------------------------------------------------------------------------
// mma_m16n8k16 adds the product of A (16, 16) and B (16, 8) to d (16, 8). A matrix is cut into squares of 8 x 8, and of
// each square every lane of the warp holds two neighbours in a row: lane 4 g + t has row g, columns 2t and 2t + 1.
//
//     columns    0  1    2  3    4  5    6  7
//     row 0     lane 0  lane 1  lane 2  lane 3            A   a[0] | a[2]     B   b[0]      d   d[0] d[1]
//     row 1     lane 4  lane 5  lane 6  lane 7                -----+-----         ----          ---------
//     ...                                                     a[1] | a[3]         b[1]          d[2] d[3]
//     row 7     lane 28 lane 29 lane 30 lane 31
//
// 16-bit neighbours share a register, a[i] or b[i]. B is stored by columns: row g above is its column g. Hence:
// - Two d side by side, rounded in pairs, are an A: a[0], a[1] from the left one, a[2], a[3] from the right one. So P,
//   whose columns are keys, is the A of P V, and P^T, whose columns are queries, the A of P^T dO.
// - ldmatrix loads four squares; lane i gives the address of row i % 8 of square i / 8. A tile whose rows are columns
//   of B, as K is for Q K^T, is loaded directly; one whose rows are rows of B, as V is for P V, by the transposing
//   variant.
// - A row of d is spread over 4 lanes: maxima and sums of rows take two shuffles.

enum { FLASH_THREADS = 128, FLASH_QUERIES = 128, FLASH_KEYS = 64 };

// Rows of a tile in shared memory are padded by 16 bytes. So the 16-byte pieces of 8 rows that ldmatrix reads together
// are in different banks; and all pieces of a tile are at constant distances, so one register addresses them all. (A
// swizzle saves the padding, but costs an XOR and a register for each piece of a row.)
template <int HS>
constexpr int flash_row = HS + 8;

// Starts to copy rows [first, first + ROWS) of a head; rows beyond the sequence repeat its last row.
template <int HS, int ROWS>
__device__ __forceinline__ void load_tile(floatX* tile, const floatX* head, int stride, int first, int T) {
    const unsigned piece = threadIdx.x % (HS / 8) * 8, row = threadIdx.x / (HS / 8);
#pragma unroll
    for (int i = 0; i < ROWS; i += FLASH_THREADS / (HS / 8)) {
        const int from = min(first + (int)row + i, T - 1);
        copy_async16(tile + (row + i) * flash_row<HS> + piece, head + (int64_t)from * stride + piece);
    }
    copy_async_commit();
}

// Waits until all tiles have arrived, for all threads, and all threads are done with the former tiles.
__device__ __forceinline__ void await_tiles() {
    copy_async_wait<0>();
    __syncthreads();
}

// Columns [column, column + 16) of 32 rows of a tile, as two A.
template <int HS>
__device__ __forceinline__ void load_left(unsigned (&a)[2][4], const floatX* rows, int column) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; m++) ldmatrix_x4(a[m], rows + (m * 16 + lane % 16) * flash_row<HS> + column + lane / 16 * 8);
}

// 32 rows that are the left operand of several products: in registers for heads of 64; for heads of 128 there is no
// room, and they are loaded again each time.
template <int HS>
struct Left {
    const floatX* rows;
    unsigned kept[HS == 64 ? HS / 16 : 1][2][4];
};
template <int HS>
__device__ __forceinline__ Left<HS> left_operand(const floatX* rows) {
    Left<HS> left;
    left.rows = rows;
    if constexpr (HS == 64) {
#pragma unroll
        for (int k = 0; k < HS / 16; k++) load_left<HS>(left.kept[k], rows, k * 16);
    }
    return left;
}

// c (32, N) += A B^T; B: N rows of a tile
template <int HS, int N>
__device__ __forceinline__ void multiply_rows(float (&c)[2][N / 8][4], const Left<HS>& left, const floatX* right) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll(HS == 64 ? 4 : 2)
    for (int k = 0; k < HS / 16; k++) {
        unsigned a[2][4];
        if constexpr (HS == 64)
            memcpy(a, left.kept[k], sizeof a);
        else
            load_left<HS>(a, left.rows, k * 16);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            unsigned b[4];
            ldmatrix_x4(b, right + (n * 16 + lane / 16 * 8 + lane % 8) * flash_row<HS> + k * 16 + lane / 8 % 2 * 8);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                mma_m16n8k16(c[m][2 * n], a[m], {b[0], b[1]});
                mma_m16n8k16(c[m][2 * n + 1], a[m], {b[2], b[3]});
            }
        }
    }
}

// c (32, HS) += A B; A (32, N), B: N rows of a tile
template <int HS, int N>
__device__ __forceinline__ void multiply_columns(float (&c)[2][HS / 8][4], const unsigned (&a)[N / 16][2][4],
                                                 const floatX* right) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
#pragma unroll
        for (int n = 0; n < HS / 16; n++) {
            unsigned b[4];
            ldmatrix_x4_trans(b, right + (k * 16 + lane % 16) * flash_row<HS> + n * 16 + lane / 16 * 8);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                mma_m16n8k16(c[m][2 * n], a[k][m], {b[0], b[1]});
                mma_m16n8k16(c[m][2 * n + 1], a[k][m], {b[2], b[3]});
            }
        }
    }
}

// Accumulators, rounded to floatX, become a left operand.
template <int N>
__device__ __forceinline__ void round_to_left(unsigned (&a)[N / 16][2][4], const float (&c)[2][N / 8][4]) {
#pragma unroll
    for (int i = 0; i < N / 8; i++) round_to_left<N>(a[i / 2][i % 2], c[i % 2], i / 2);
}

// Rows [first, first + 32) of a head = scale * c, through `rows` of shared memory, which only this warp uses, so that
// 16 bytes at a time and whole cache lines are written.
template <int HS>
__device__ __forceinline__ void store_rows(floatX* head, int stride, int first, int T, const float (&c)[2][HS / 8][4],
                                           float scale, floatX* rows) {
    const unsigned lane = threadIdx.x % 32, piece = lane % (HS / 8) * 8, row = lane / (HS / 8);
    __syncwarp(); // all lanes have read them
#pragma unroll
    for (int i = 0; i < HS / 2; i++) {
        const int m = i % 2, r = i / 2 % 2, n = i / 4;
        store(rows + (m * 16 + r * 8 + lane / 4) * flash_row<HS> + n * 8 + lane % 4 * 2,
              round_pair(scale * c[m][n][2 * r], scale * c[m][n][2 * r + 1]));
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < 32; i += 32 / (HS / 8)) {
        const int to = first + (int)row + i;
        if (to < T) store(head + (int64_t)to * stride + piece, load<8>(rows + (row + i) * flash_row<HS> + piece));
    }
}

// ---- Tensor cores: forward --------------------------------------------------------------------------------------

template <int HS>
__global__ static void __launch_bounds__(FLASH_THREADS, 2)
    flash_forward_kernel(floatX* __restrict__ out, float* __restrict__ lse, const floatX* __restrict__ qkv,
                         Attention s) {
    constexpr int QUERIES = FLASH_QUERIES, KEYS = FLASH_KEYS, ROW = flash_row<HS>;
    const Block block = block_of<false>(s, QUERIES, (int)blockIdx.x);
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int end = min(block.first + QUERIES, s.T), row = block.first + (int)warp * 32,
              stride = (s.NH + 2 * s.NKV) * HS;
    floatX *q = dynamic_shared<floatX>(), *k = q + QUERIES * ROW, *v = k + KEYS * ROW, *rows = q + warp * 32 * ROW;

    load_tile<HS, QUERIES>(q, qkv + block.q, stride, block.first, s.T);
    load_tile<HS, KEYS>(k, qkv + block.k, stride, 0, s.T);
    await_tiles();
    const Left<HS> left = left_operand<HS>(rows);
    float o[2][HS / 8][4] = {}, top[2][2], sum[2][2] = {};
    for (int i = 0; i < 4; i++) top[i / 2][i % 2] = -FLT_MAX;
    for (int key = 0; key < end; key += KEYS) {
        await_tiles(); // k is here, and v is free
        load_tile<HS, KEYS>(v, qkv + block.v, stride, key, s.T);
        const bool seen = key < row + 32; // by one of the warp's queries
        float p[2][KEYS / 8][4] = {};
        if (seen) multiply_rows<HS, KEYS>(p, left, k);
        await_tiles(); // v is here, and k is free
        if (key + KEYS < end) load_tile<HS, KEYS>(k, qkv + block.k, stride, key + KEYS, s.T);
        if (!seen) continue;
#pragma unroll
        for (int m = 0; m < 2; m++) {
            float factor[2];
            if (key + KEYS - 1 > row) mask_scores<KEYS, false>(p[m], row + m * 16, key);
            softmax_rows<KEYS>(p[m], factor, top[m], sum[m], s.scale);
            scale_rows<HS>(o[m], factor);
        }
        unsigned a[KEYS / 16][2][4];
        round_to_left<KEYS>(a, p);
        __syncwarp(); // for the compiler: frees the scores' registers before v is loaded into others
        multiply_columns<HS, KEYS>(o, a, v);
    }

#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int m = i / 2, r = i % 2, t = row + m * 16 + r * 8 + (int)(lane / 4);
        const float l = quad_sum(sum[m][r]), inverse = 1.0f / l;
#pragma unroll
        for (int n = 0; n < HS / 8; n++) {
            o[m][n][2 * r] *= inverse;
            o[m][n][2 * r + 1] *= inverse;
        }
        if (lane % 4 == 0 && t < s.T) lse[block.stats + t] = LN_2 * (top[m][r] * s.scale + log2f(l));
    }
    store_rows<HS>(out + block.out, s.NH * HS, row, s.T, o, 1.0f, rows);
}

// ---- Tensor cores: backward -------------------------------------------------------------------------------------

// Dot products of the warp's rows of two tiles, 32 each. Four lanes share a row, as they do in accumulators.
template <int HS>
__device__ __forceinline__ void row_products(float (&dot)[2][2], const floatX* rows, const floatX* others) {
    for (int i = 0; i < 4; i++) dot[i / 2][i % 2] = 0.0f;
    for (int k = 0; k < HS / 16; k++) {
        unsigned x[2][4], y[2][4];
        load_left<HS>(x, rows, k * 16);
        load_left<HS>(y, others, k * 16);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const Pair u = pair_of_bits(x[i / 4][i % 4]), w = pair_of_bits(y[i / 4][i % 4]);
            dot[i / 4][i % 2] += (float)u[0] * (float)w[0] + (float)u[1] * (float)w[1];
        }
    }
    for (int i = 0; i < 4; i++) dot[i / 2][i % 2] = quad_sum(dot[i / 2][i % 2]);
}

// dQ, and D for the next kernel. As in the forward pass a warp owns 32 queries. Keys and values come in a ring of two
// steps of 8 KB tiles: one arrives while the other is used.
template <int HS>
__global__ static void __launch_bounds__(FLASH_THREADS, 2)
    flash_backward_queries(floatX* __restrict__ dqkv, float* __restrict__ D, const floatX* __restrict__ dout,
                           const floatX* __restrict__ qkv, const floatX* __restrict__ out,
                           const float* __restrict__ lse, Attention s) {
    constexpr int QUERIES = FLASH_QUERIES, KEYS = 4096 / HS, ROW = flash_row<HS>;
    constexpr int PART = 32; // of a step's keys, for whose S and dP there are registers
    const Block block = block_of<false>(s, QUERIES, (int)blockIdx.x);
    const int steps = (min(block.first + QUERIES, s.T) + KEYS - 1) / KEYS, stride = (s.NH + 2 * s.NKV) * HS;
    const unsigned lane = threadIdx.x % 32, own = threadIdx.x / 32 * 32;
    const int row = block.first + (int)own;
    floatX *q = dynamic_shared<floatX>(), *d = q + QUERIES * ROW, *ring = d + QUERIES * ROW;

    load_tile<HS, QUERIES>(q, qkv + block.q, stride, block.first, s.T);
    load_tile<HS, QUERIES>(d, dout + block.out, s.NH * HS, block.first, s.T);
    load_tile<HS, QUERIES>(ring, out + block.out, s.NH * HS, block.first, s.T); // until the first keys arrive
    await_tiles();
    const Left<HS> left_q = left_operand<HS>(q + own * ROW), left_d = left_operand<HS>(d + own * ROW);
    float dot[2][2], lse2[2][2]; // D, lse * log2 e
    row_products<HS>(dot, d + own * ROW, ring + own * ROW);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int m = i / 2, r = i % 2, t = row + m * 16 + r * 8 + (int)(lane / 4);
        if (lane % 4 == 0 && t < s.T) D[block.stats + t] = dot[m][r];
        lse2[m][r] = LOG2_E * lse[block.stats + min(t, s.T - 1)];
    }

    float dq[2][HS / 8][4] = {};
    for (int step = 0; step <= steps; step++) { // copies keys and values of this step, uses the former step's
        await_tiles();
        if (step < steps) {
            floatX* to = ring + step % 2 * 2 * KEYS * ROW;
            load_tile<HS, KEYS>(to, qkv + block.k, stride, step * KEYS, s.T);
            load_tile<HS, KEYS>(to + KEYS * ROW, qkv + block.v, stride, step * KEYS, s.T);
        }
        if (step == 0) continue;
        for (int part = 0; part < KEYS; part += PART) {
            const int key = (step - 1) * KEYS + part;
            if (key >= row + 32) break; // seen by none of the warp's queries
            const floatX *k = ring + ((step + 1) % 2 * 2 * KEYS + part) * ROW, *v = k + KEYS * ROW;
            float p[2][PART / 8][4] = {}, ds[2][PART / 8][4];
            multiply_rows<HS, PART>(p, left_q, k);
#pragma unroll
            for (int i = 0; i < PART; i++) ds[i / 16][i / 4 % 4][i % 4] = -dot[i / 16][i / 2 % 2];
            multiply_rows<HS, PART>(ds, left_d, v); // dP - D
#pragma unroll
            for (int m = 0; m < 2; m++) {
                if (key + PART - 1 > row) mask_scores<PART, false>(p[m], row + m * 16, key);
            }
#pragma unroll
            for (int i = 0; i < PART; i++) {
                const int m = i / 16, n = i / 4 % 4, e = i % 4;
                ds[m][n][e] *= exp2_fast(p[m][n][e] * s.scale - lse2[m][e / 2]);
            }
            unsigned a[PART / 16][2][4];
            round_to_left<PART>(a, ds);
            multiply_columns<HS, PART>(dq, a, k);
        }
    }
    store_rows<HS>(dqkv + block.q, stride, row, s.T, dq, s.scale * LN_2, q + own * ROW);
}

// This thread's number of lse * log2 e of QUERIES queries from `first` on, and of their D behind it. head: where those
// of its head begin
template <int QUERIES>
__device__ __forceinline__ float stat_of_query(const float* __restrict__ lse, const float* __restrict__ D, int64_t head,
                                               int first, int T) {
    const int thread = (int)threadIdx.x, t = first + thread % QUERIES;
    if (thread < QUERIES) return t < T ? LOG2_E * lse[head + t] : INFINITY; // p = 0 beyond the sequence
    return thread < 2 * QUERIES && t < T ? D[head + t] : 0.0f;
}

// P^T, rounded, from one warp to another, through this lane's place in shared memory: c *= P^T there.
template <int QUERIES>
__device__ __forceinline__ void pass_on(unsigned* exchange, const unsigned (&p)[QUERIES / 16][2][4]) {
#pragma unroll
    for (int i = 0; i < QUERIES / 8; i++) {
        const unsigned(&from)[4] = p[i / 2][i % 2];
        store(exchange + i * 128, Packed<unsigned, 4>{{from[0], from[1], from[2], from[3]}});
    }
}
template <int QUERIES>
__device__ __forceinline__ void multiply_passed_on(float (&c)[2][QUERIES / 8][4], const unsigned* exchange) {
#pragma unroll
    for (int i = 0; i < QUERIES / 8; i++) {
        const Packed<unsigned, 4> p = load<4>(exchange + i * 128);
#pragma unroll
        for (int j = 0; j < 8; j++) c[i % 2][i / 2 * 2 + j / 4][j % 4] *= (float)pair_of_bits(p[j / 2])[j % 2];
    }
}

// dK and dV of 64 keys. Two warps share 32 keys, since both sums do not fit into one warp's registers: warp 0 or 1
// makes S^T, P^T and dV, warp 2 or 3 dP^T, dS^T and dK. In between, the first passes P^T to the second, rounded. They
// run the same code, as they make the same products: of K with Q and then dO, or of V with dO and then Q.
template <int HS>
__global__ static void __launch_bounds__(FLASH_THREADS, 2)
    flash_backward_keys(floatX* __restrict__ dqkv, const floatX* __restrict__ dout, const floatX* __restrict__ qkv,
                        const float* __restrict__ lse, const float* __restrict__ D, Attention s) {
    constexpr int KEYS = FLASH_KEYS, QUERIES = 4096 / HS, ROW = flash_row<HS>;
    const Block block = block_of<true>(s, KEYS, (int)blockIdx.x);
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool makes_dk = warp >= 2;
    const int row = block.first + (int)(warp % 2) * 32, stride = (s.NH + 2 * s.NKV) * HS, thread = (int)threadIdx.x;
    floatX *k = dynamic_shared<floatX>(), *v = k + KEYS * ROW, *ring = v + KEYS * ROW, *end = ring + 4 * QUERIES * ROW;
    unsigned* exchange = reinterpret_cast<unsigned*>(end) + (warp % 2 * QUERIES * 16 + lane * 4);
    float* stats = reinterpret_cast<float*>(end + KEYS * QUERIES); // (2 steps; lse * log2 e, D; QUERIES)

    load_tile<HS, KEYS>(k, qkv + block.k, stride, block.first, s.T);
    load_tile<HS, KEYS>(v, qkv + block.v, stride, block.first, s.T);
    await_tiles();
    floatX* rows = (makes_dk ? v : k) + warp % 2 * 32 * ROW;
    const Left<HS> left = left_operand<HS>(rows);
    float sum[2][HS / 8][4] = {};
    int h = 0, query = block.first, before = 0; // head in the group, first query; the last step's first query
    for (int step = 0; h <= s.NH / s.NKV; step++) {
        await_tiles();
        const bool more = h < s.NH / s.NKV;
        float stat = 0.0f;
        if (more) {
            floatX* to = ring + step % 2 * 2 * QUERIES * ROW;
            load_tile<HS, QUERIES>(to, qkv + block.q + h * HS, stride, query, s.T);
            load_tile<HS, QUERIES>(to + QUERIES * ROW, dout + block.out + h * HS, s.NH * HS, query, s.T);
            stat = stat_of_query<QUERIES>(lse, D, block.stats + (int64_t)h * s.T, query, s.T);
        }
        if (step > 0) {
            const floatX *q = ring + (step + 1) % 2 * 2 * QUERIES * ROW, *d = q + QUERIES * ROW;
            const float *lse2 = stats + (step + 1) % 2 * 2 * QUERIES, *dots = lse2 + QUERIES; // dots: D
            float c[2][QUERIES / 8][4];                                                       // S^T or dP^T - D
            unsigned a[QUERIES / 16][2][4];
#pragma unroll
            for (int n = 0; n < QUERIES / 8; n++) {
                const Packed<float, 2> dot = load<2>(dots + n * 8 + lane % 4 * 2);
#pragma unroll
                for (int i = 0; i < 8; i++) c[i / 4][n][i % 4] = makes_dk ? -dot[i % 2] : 0.0f;
            }
            multiply_rows<HS, QUERIES>(c, left, makes_dk ? d : q);
            if (!makes_dk) {
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    if (row + 31 > before) mask_scores<QUERIES, true>(c[m], row + m * 16, before);
                    exp_columns<QUERIES>(c[m], lse2, s.scale);
                }
                round_to_left<QUERIES>(a, c);
                pass_on<QUERIES>(exchange, a);
            }
            __syncthreads();
            if (makes_dk) {
                multiply_passed_on<QUERIES>(c, exchange);
                round_to_left<QUERIES>(a, c);
            }
            multiply_columns<HS, QUERIES>(sum, a, makes_dk ? q : d);
        }
        if (thread < 2 * QUERIES) stats[step % 2 * 2 * QUERIES + thread] = stat;
        before = query;
        query += QUERIES;
        if (query >= s.T || !more) query = block.first, h++;
    }
    store_rows<HS>(dqkv + (makes_dk ? block.k : block.v), stride, row, s.T, sum, makes_dk ? s.scale * LN_2 : 1.0f,
                   rows);
}

// ---- Generating text --------------------------------------------------------------------------------------------

enum { DECODE_THREADS = 256 };

// One query head. `lanes` lanes share a key: each has every lanes-th piece of W numbers, 8 numbers in all, of the
// query, the keys, the values and their sum. There are `groups` such groups, each with its own softmax over every
// groups-th key. The token's own key and value are read from qkv, since another block may still be writing them into
// the cache.
template <int W>
__global__ static void __launch_bounds__(DECODE_THREADS)
    decode_kernel(floatX* __restrict__ out, floatX* cache, const floatX* __restrict__ qkv, int position, int lanes,
                  Attention s) {
    const int thread = (int)threadIdx.x, group = thread / lanes, groups = DECODE_THREADS / lanes, HS = s.HS;
    const int h = (int)blockIdx.x, kv = h / (s.NH / s.NKV), at = thread % lanes * W, step = lanes * W;
    const int64_t stride = (int64_t)2 * s.NKV * HS, to_value = (int64_t)s.NKV * HS;
    const floatX* own = qkv + (s.NH + kv) * HS;
    floatX* row = cache + kv * HS;
    float *parts = dynamic_shared<float>(), *tops = parts + 8 * DECODE_THREADS, *sums = tops + DECODE_THREADS;
    float q[8 / W][W], o[8 / W][W] = {}, top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < 8; i++) {
        const int d = at + i / W * step + i % W;
        q[i / W][i % W] = d < HS ? s.scale * (float)qkv[h * HS + d] : 0.0f;
    }
    for (int d = thread; d < HS && h % (s.NH / s.NKV) == 0; d += DECODE_THREADS) {
        row[position * stride + d] = own[d];
        row[position * stride + to_value + d] = own[to_value + d];
    }
    for (int first = 0; first <= position; first += groups) {
        const int j = first + group;
        const floatX* key = (j < position ? row + j * stride : own) + at;
        Packed<floatX, W> k[8 / W], v[8 / W];
        float score = 0.0f;
        for (int i = 0; i < 8 / W && at + i * step < HS; i++) {
            k[i] = load<W>(key + i * step);
            v[i] = load<W>(key + to_value + i * step);
            for (int w = 0; w < W; w++) score += q[i][w] * (float)k[i][w];
        }
        for (int i = lanes / 2; i > 0; i /= 2) score += __shfl_xor_sync(0xffffffffu, score, i);
        if (j > position) continue;
        const float largest = fmaxf(top, score), factor = exp2f(top - largest), p = exp2f(score - largest);
        top = largest;
        sum = sum * factor + p;
        for (int i = 0; i < 8 / W && at + i * step < HS; i++) {
            for (int w = 0; w < W; w++) o[i][w] = o[i][w] * factor + p * (float)v[i][w];
        }
    }
    for (int i = 0; i < 8 / W && at + i * step < HS; i++) {
        for (int w = 0; w < W; w++) parts[group * HS + at + i * step + w] = o[i][w];
    }
    if (at == 0) {
        tops[group] = top;
        sums[group] = sum;
    }
    __syncthreads();
    for (int d = thread; d < HS; d += DECODE_THREADS) {
        float largest = -INFINITY, l = 0.0f, total = 0.0f;
        for (int i = 0; i < groups; i++) largest = fmaxf(largest, tops[i]);
        for (int i = 0; i < groups; i++) {
            const float factor = exp2f(tops[i] - largest); // 0 for a group that had no key
            l += factor * sums[i];
            total += factor * parts[i * HS + d];
        }
        out[h * HS + d] = (floatX)(total / l);
    }
}

// ---- Entry points -----------------------------------------------------------------------------------------------

// The family that ATTENTION selects; ANY_FAMILY: none. Read once; tests write here.
enum { ANY_FAMILY, PLAIN_FAMILY, MMA_FAMILY, WGMMA_FAMILY };
static inline int* attention_asked(void) {
    static const char* const names[] = {"", "plain", "mma", "wgmma"};
    static int asked = -1;
    const char* name = getenv("ATTENTION");
    for (int i = 0; i < 4 && asked < 0; i++) {
        if (strcmp(name ? name : "", names[i]) == 0) asked = i;
    }
    if (asked < 0) die("ATTENTION=%s is not known: plain, mma or wgmma", name);
    return &asked;
}

// What is chosen for tensor cores where ATTENTION says nothing.
static inline int default_tensor_family(void) {
#ifdef CUDA_ON_CPU
    return MMA_FAMILY; // the emulator is faster with it
#else
    return has_hopper_code() ? WGMMA_FAMILY : MMA_FAMILY;
#endif
}

// The family for heads of HS numbers; packed: in arrays that are aligned to 16 bytes.
static inline int attention_family(int HS, bool packed) {
    const int asked = *attention_asked();
    const bool fits = HS == 64 || gpu_properties()->sharedMemPerBlockOptin >= 102 << 10; // flash_backward_queries<128>
    const bool for_tensor_cores = sizeof(floatX) == 2 && (HS == 64 || HS == 128) && packed && fits;
    const char* why = !packed ? ", not aligned" : fits ? "" : " on this GPU";
    if (asked >= MMA_FAMILY && !for_tensor_cores)
        die("ATTENTION=%s is for heads of 64 or 128 numbers of 16 bits in aligned arrays: not for %d of %d bits%s",
            asked == MMA_FAMILY ? "mma" : "wgmma", HS, 8 * (int)sizeof(floatX), why);
    if (asked == WGMMA_FAMILY && !has_hopper_code())
        die("ATTENTION=wgmma needs a GPU of compute capability 9.0, and a program that was made for it (GPU_ARCH=90a)");
    if (asked != ANY_FAMILY) return asked;
    return for_tensor_cores ? default_tensor_family() : (int)PLAIN_FAMILY;
}

// For kernels whose blocks own queries, or keys. The data that all blocks of a section read has to fit into a part of
// L2: keys and values of its heads, or the queries and dout of the group of each head.
static inline Attention attention_of(Heads size, bool of_keys) {
    const int B = size.B, T = size.T, NH = size.NH, NKV = size.NKV, HS = size.HS;
    if (HS > PLAIN_WIDEST) die("head size %d: attention on a GPU takes up to %d", HS, (int)PLAIN_WIDEST);
    const int64_t bytes = (int64_t)2 * T * HS * (int)sizeof(floatX) * (of_keys ? NH / NKV : 1);
    const int section = (int)min_i64(max_i64((16 << 20) / max_i64(bytes, 1), 1), (int64_t)B * NKV); // key/value heads
    Attention s = {T, NH, NKV, HS, B * NKV, section, LOG2_E / sqrtf((float)HS)};
    if (!of_keys) {
        s.heads = B * NH;
        s.section = section * (NH / NKV);
    }
    return s;
}

static inline Launch flash_launch(Attention s, int tile, size_t shared) {
    return launch_shape((unsigned)(s.heads * blocks_for(s.T, tile)), FLASH_THREADS, shared);
}
static inline Launch plain_launch(Attention s, int arrays) { // of PLAIN_ROWS rows
    const int shared = (arrays * PLAIN_ROWS * plain_row(s.HS) + 4 * PLAIN_THREADS) * (int)sizeof(float);
    const int most = (int)gpu_properties()->sharedMemPerBlockOptin;
    if (shared > most) die("heads of %d need %d bytes of shared memory, of which this GPU has %d", s.HS, shared, most);
    return launch_shape((unsigned)(s.heads * blocks_for(s.T, PLAIN_ROWS)), PLAIN_THREADS, (size_t)shared);
}

template <int HS>
static void flash_forward(floatX* out, float* lse, const floatX* qkv, Attention s) {
    const size_t shared = (FLASH_QUERIES + 2 * FLASH_KEYS) * flash_row<HS> * sizeof(floatX);
    launch(flash_launch(s, FLASH_QUERIES, shared), flash_forward_kernel<HS>, out, lse, qkv, s);
}
template <int W>
static void plain_forward(floatX* out, float* lse, const floatX* qkv, Attention s) {
    launch(plain_launch(s, 3), plain_forward_kernel<W>, out, lse, qkv, s);
}

// out (B*T, NH*HS) and lse (B, NH, T) from qkv (B*T, (NH + 2 NKV) * HS).
static inline void attention_forward(floatX* out, float* lse, const floatX* qkv, Heads size) {
    const Attention s = attention_of(size, false);
    const int HS = s.HS, family = attention_family(HS, can_pack(out, HS) && can_pack(qkv, HS));
    auto forward = HS <= 128 ? plain_forward<4> : plain_forward<8>;
    if (HS <= 64) forward = plain_forward<2>;
    if constexpr (sizeof(floatX) == 2) {
        if (family == MMA_FAMILY) forward = HS == 64 ? flash_forward<64> : flash_forward<128>;
        if (family == WGMMA_FAMILY) forward = HS == 64 ? hopper_forward<64> : hopper_forward<128>;
    }
    forward(out, lse, qkv, s);
}

template <int HS>
static void flash_backward(floatX* dqkv, float* D, const floatX* dout, const floatX* qkv, const floatX* out,
                           const float* lse, Attention s, Attention k) {
    const size_t row = flash_row<HS> * sizeof(floatX), step = 4096 / HS;
    const size_t own = FLASH_KEYS * step * sizeof(floatX) + 4 * step * sizeof(float); // owners of keys: exchange, stats
    launch(flash_launch(s, FLASH_QUERIES, (2 * FLASH_QUERIES + 4 * step) * row), flash_backward_queries<HS>, dqkv, D,
           dout, qkv, out, lse, s);
    launch(flash_launch(k, FLASH_KEYS, (2 * FLASH_KEYS + 4 * step) * row + own), flash_backward_keys<HS>, dqkv, dout,
           qkv, lse, D, k);
}

template <int W>
static void plain_backward(floatX* dqkv, float* D, const floatX* dout, const floatX* qkv, const floatX* out,
                           const float* lse, Attention s, Attention k) {
    launch(plain_launch(s, 4), plain_backward_kernel<W, false>, dqkv, D, dout, qkv, out, lse, s);
    launch(plain_launch(k, 4), plain_backward_kernel<W, true>, dqkv, D, dout, qkv, out, lse, k);
}

// dqkv, overwritten, from dout and the inputs and outputs of attention_forward.
static inline void attention_backward(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out,
                                      const float* lse, Heads size) {
    const Attention s = attention_of(size, false), k = attention_of(size, true);
    const int HS = s.HS;
    const bool packed = can_pack(dqkv, HS) && can_pack(dout, HS) && can_pack(qkv, HS) && can_pack(out, HS);
    const int family = attention_family(HS, packed);
    auto backward = HS <= 128 ? plain_backward<4> : plain_backward<8>;
    if (HS <= 64) backward = plain_backward<2>;
    if constexpr (sizeof(floatX) == 2) {
        if (family == MMA_FAMILY) backward = HS == 64 ? flash_backward<64> : flash_backward<128>;
        if (family == WGMMA_FAMILY) backward = HS == 64 ? hopper_backward<64> : hopper_backward<128>;
    }
    float* D = (float*)device_scratch((size_t)s.heads * (size_t)s.T * sizeof(float));
    backward(dqkv, D, dout, qkv, out, lse, s, k);
}

// out (NH * HS) of the token at `position` of one sequence, from its row of qkv and the rows of cache
// (T_max, 2 NKV * HS) before it; its own row is written.
static inline void attention_decode(floatX* out, floatX* cache, const floatX* qkv, int position, Heads size) {
    const Attention s = attention_of(size, false);
    const int HS = s.HS;
    const bool packed = can_pack(qkv, HS) && can_pack(cache, HS);
    const auto kernel = packed ? decode_kernel<widest<floatX>> : decode_kernel<1>;
    const int W = packed ? widest<floatX> : 1;
    int lanes = 1;
    while (lanes < 32 && lanes * W < HS) lanes *= 2;
    launch(launch_shape((unsigned)s.NH, DECODE_THREADS, 10 * DECODE_THREADS * sizeof(float)), kernel, out, cache, qkv,
           position, lanes, s);
}

// A thread has one number of the cache.
__global__ static void __launch_bounds__(256)
    remember_kernel(floatX* cache, const floatX* __restrict__ qkv, int64_t n, int stride, int queries) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) cache[i] = qkv[i / stride * (queries + stride) + queries + i % stride];
}

static inline void attention_fill_cache(floatX* cache, const floatX* qkv, Heads size) {
    const int stride = 2 * size.NKV * size.HS;
    const int64_t n = (int64_t)size.T * stride;
    launch(launch_shape(blocks_for(n, 256), 256), remember_kernel, cache, qkv, n, stride, size.NH * size.HS);
}
