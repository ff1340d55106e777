/*
attention_common.cuh: common parts of the attention kernels that multiply by mma.sync (attention.cuh) or by wgmma
(attention_hopper.cuh): the rows and heads of a block, and the work on scores in registers: mask, online softmax,
rounding.

Both kinds of tensor core instructions have the same layout of a matrix in registers. 16 rows belong to a warp, c[N /
8][4] in every lane: of columns 8 n .. 8 n + 7 lane 4 g + t has columns 2t and 2t + 1, of row g in c[n][0], c[n][1], and
of row g + 8 in c[n][2], c[n][3]. Rounded in pairs, two neighbours c[n], c[n + 1] are 16 columns of a left operand.
*/
#pragma once

#include "cuda_utils.cuh"

static const float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

// ---- The work of a block ----------------------------------------------------------------------------------------

// As in attention.h.
typedef struct {
    int B, T, NH, NKV, HS;
} Heads;

typedef struct {
    int T, NH, NKV, HS;
    int heads;   // all sequences together: query heads, or key/value heads for the kernels that own keys
    int section; // heads whose blocks run at about the same time
    float scale; // log2 e / sqrt(HS)
} Attention;

typedef struct {
    int first, h, b; // the first row of its tile; its query head, or the first that reads its keys; sequence
    int64_t q, k, v, out, stats; // where its heads begin in qkv, in out, and in lse and D (B, NH, T)
} Block;

// Blocks start in the order of their numbers: section by section, and in a section the tiles with the most work first,
// that is the last queries or the first keys.
template <bool KEYS>
__device__ __forceinline__ Block block_of(Attention s, int tile, int number) {
    const int tiles = (s.T + tile - 1) / tile, group = s.NH / s.NKV;
    const int before = number / (s.section * tiles) * s.section, heads = min(s.section, s.heads - before);
    const int index = number - before * tiles, head = before + index % heads, b = head / (KEYS ? s.NKV : s.NH);
    const int h = KEYS ? head % s.NKV * group : head % s.NH, i = KEYS ? index / heads : tiles - 1 - index / heads;
    const int64_t row = (int64_t)b * s.T, q = (row * (s.NH + 2 * s.NKV) + h) * s.HS;
    const int64_t k = q + (int64_t)(s.NH + h / group - h) * s.HS, v = k + (int64_t)s.NKV * s.HS;
    const Block block = {i * tile, h, b, q, k, v, (row * s.NH + h) * s.HS, row * s.NH + (int64_t)h * s.T};
    return block;
}

// ---- 16 rows of a matrix in a warp's registers ------------------------------------------------------------------

typedef Packed<floatX, 2> Pair;
__device__ __forceinline__ Pair round_pair(float first, float second) {
    const Pair pair = {{(floatX)first, (floatX)second}};
    return pair;
}
__device__ __forceinline__ Pair pair_of_bits(unsigned bits) {
    Pair pair;
    memcpy(&pair, &bits, sizeof pair);
    return pair;
}

// Columns [16 k, 16 k + 16), rounded to floatX, become a left operand.
template <int N>
__device__ __forceinline__ void round_to_left(unsigned (&a)[4], const float (&c)[N / 8][4], int k) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const Pair pair = round_pair(c[2 * k + j / 2][j % 2 * 2], c[2 * k + j / 2][j % 2 * 2 + 1]);
        memcpy(&a[j], &pair, sizeof pair);
    }
}

// Scores of keys that come after their query become -infinity. row, column: where c begins in the sequence
template <int N, bool ROWS_ARE_KEYS>
__device__ __forceinline__ void mask_scores(float (&c)[N / 8][4], int row, int column) {
    row += (int)(threadIdx.x % 32 / 4);
    column += (int)(threadIdx.x % 4 * 2);
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const int n = i / 4, e = i % 4, y = row + e / 2 * 8, x = column + n * 8 + e % 2;
        if (ROWS_ARE_KEYS ? y > x : x > y) c[n][e] = -INFINITY;
    }
}

// The sum over the 4 lanes that share a row.
__device__ __forceinline__ float quad_sum(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}
__device__ __forceinline__ float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

// Scores s of the next KEYS keys become P, not yet divided by the sum of its row. top: the largest score of each row so
// far, -FLT_MAX where there was none; sum: of this lane's columns. It is scaled to the new top by `factor`, by which
// the caller has to scale P V.
template <int KEYS>
__device__ __forceinline__ void softmax_rows(float (&s)[KEYS / 8][4], float (&factor)[2], float (&top)[2],
                                             float (&sum)[2], float scale) {
#pragma unroll
    for (int r = 0; r < 2; r++) { // rows g and g + 8 of 16
        float largest = top[r];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) largest = fmaxf(largest, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        largest = quad_max(largest);
        const float shift = largest * scale;
        factor[r] = exp2_fast((top[r] - largest) * scale);
        top[r] = largest;
        sum[r] *= factor[r]; // 0 for the first tile
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                s[n][i] = exp2_fast(s[n][i] * scale - shift);
                sum[r] += s[n][i];
            }
        }
    }
}

// Scores whose columns are queries become P^T. lse2: lse * log2 e of these queries
template <int QUERIES>
__device__ __forceinline__ void exp_columns(float (&s)[QUERIES / 8][4], const float* lse2, float scale) {
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        const Packed<float, 2> l = load<2>(lse2 + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = exp2_fast(s[n][i] * scale - l[i % 2]);
    }
}

// Row g of c, and row g + 8, times a factor of its own.
template <int N>
__device__ __forceinline__ void scale_rows(float (&c)[N / 8][4], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) c[i / 4][i % 4] *= factor[i / 2 % 2];
}
