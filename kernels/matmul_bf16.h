/*
matmul_bf16.h: the micro-kernels of matmul.h that multiply bf16, by pairs (AVX-512 BF16) and by tiles (AMX, also in C,
for tests), and how packed words become what they want.
*/
#pragma once

#include "amx.h"

#if defined(MATMUL_X86) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 10)
#define MATMUL_AVX512_BF16
// As matmul_vectors_avx512, of pairs.
__attribute__((always_inline, target("avx512f,avx512bf16"))) static inline void
matmul_vectors_avx512_bf16(int vectors, int depth, const MatmulRows* a, const MatmulWord* b, const TileSums* c) {
    MatmulRows x = *a;
    const TileSums s = *c;
    __m512 tile[8][3];
    MATMUL_UNROLL for (int i = 0; i < 8; i++) {
        MATMUL_UNROLL for (int j = 0; j < vectors; j++) tile[i][j] = _mm512_loadu_ps(s.from + i * s.from_row + 16 * j);
    }
    for (int row = 0, k = 0; row < 8; row++) {
        MATMUL_UNROLL for (int j = 0; j < vectors; j++) __builtin_prefetch(s.next + row * s.next_row + 64 * j);
        for (const int end = depth * (row + 1) / 8; k < end; k++, x.data += x.along, b += 48) {
            __m512bh bk[3];
            MATMUL_UNROLL for (int j = 0; j < vectors; j++) bk[j] = (__m512bh)_mm512_loadu_si512(b + 16 * j);
            MATMUL_UNROLL for (int i = 0; i < 8; i++) {
                __m512bh ai = (__m512bh)_mm512_set1_epi32((int)x.data[i * x.across]);
                MATMUL_UNROLL for (int j = 0; j < vectors; j++) tile[i][j] = _mm512_dpbf16_ps(tile[i][j], ai, bk[j]);
            }
        }
    }
    MATMUL_UNROLL for (int i = 0; i < 8; i++) {
        MATMUL_UNROLL for (int j = 0; j < vectors; j++) _mm512_storeu_ps(s.to + i * s.to_row + 16 * j, tile[i][j]);
    }
}

__attribute__((target("avx512f,avx512bf16"))) static inline void
matmul_tile_avx512_bf16(int depth, const MatmulRows* a, const MatmulWord* b, int columns, const TileSums* c) {
    if (columns > 32) matmul_vectors_avx512_bf16(3, depth, a, b, c);
    if (columns > 16 && columns <= 32) matmul_vectors_avx512_bf16(2, depth, a, b, c);
    if (columns <= 16) matmul_vectors_avx512_bf16(1, depth, a, b, c);
}
#endif

// 32 rows of A, or columns of B, in two tiles: words from one tile to the other, from row to row, and from k to k.
static inline TilePair matmul_tile_pair(const MatmulWord* data, int64_t next_tile, int64_t row, int64_t k) {
    const int64_t word = sizeof *data;
    const TilePair pair = {data, data + next_tile, row * word, TILE_WORDS * k * word};
    return pair;
}

// A tile of C by AMX or, simulated, in C.
__attribute__((always_inline)) static inline void matmul_by_tiles(Tile* simulated, int depth, const MatmulRows* a,
                                                                  const MatmulWord* b, const TileSums* c) {
    const TilePair a_tiles = matmul_tile_pair(a->data, TILE_ROWS * a->across, a->across, a->along);
    const TilePair b_tiles = matmul_tile_pair(b, TILE_WORDS, 2 * TILE_WORDS, 2 * TILE_WORDS);
    tiles_product(simulated, a_tiles, b_tiles, depth / TILE_WORDS, c, (const char*)a->next, a->next_rows);
}

#ifdef AMX_COMPILED
AMX_TARGET static inline void matmul_tile_amx(int depth, const MatmulRows* a, const MatmulWord* b, int columns,
                                              const TileSums* c) {
    (void)columns;
    matmul_by_tiles(NULL, depth, a, b, c);
}
#endif

static inline void matmul_tile_simulated(int depth, const MatmulRows* a, const MatmulWord* b, int columns,
                                         const TileSums* c) {
    Tile tiles[8];
    (void)columns;
    matmul_by_tiles(tiles, depth, a, b, c);
}

// C (M, N) = A (M, K) B (K, N), + C if add, of words in a cache: A[i][k] = a[i * a_row + k * a_col]; rows of C and B
// are ldc and ldb apart; M and N are multiples of 32, K of 16, at most 64 x 32. On the diagonal C[i][j] with j < i is
// left out (upper_result), or what is known to be 0 of A: A[i][k] with 2 k < i (upper_factor), with 2 k > i
// (lower_factor).
typedef struct {
    float* c;
    int ldc;
    const MatmulWord* a;
    int a_row, a_col;
    const MatmulWord* b;
    int ldb, M, N, K;
    bool add, upper_result, upper_factor, lower_factor;
} WordsProduct;

__attribute__((always_inline)) static inline void words_product_of_tiles(Tile* simulated, const WordsProduct* x) {
    enum { SIDE = 2 * TILE_ROWS, WORD = sizeof(MatmulWord) };
    static const float zeros[SIDE] = {0};
    MatmulWord a_rows[64 * 32];
    const bool by_rows = x->a_col == 1;
    const int a_row = by_rows ? x->a_row : x->K;
    for (int i = 0; i < (by_rows ? 0 : x->M); i += 4) {
        for (int k = 0; k < x->K; k += 4)
            matmul_transpose4(a_rows + i * x->K + k, x->K, x->a + k * x->a_col + i, x->a_col * (int64_t)WORD);
    }
    for (int i = 0; i < x->M; i += SIDE) {
        const int begin = x->upper_factor ? i / 2 : 0, end = x->lower_factor ? (i + SIDE) / 2 : x->K;
        const MatmulWord *above = (by_rows ? x->a : a_rows) + i * a_row + begin, *below = above + TILE_ROWS * a_row;
        const TilePair a = {above, below, a_row * WORD, TILE_WORDS * WORD};
        for (int j = x->upper_result ? i : 0; j < x->N; j += SIDE) {
            const MatmulWord* left = x->b + begin * x->ldb + j;
            const TilePair b = {left, left + TILE_WORDS, x->ldb * WORD, TILE_ROWS * x->ldb * WORD};
            float* tile = x->c + i * x->ldc + j;
            const TileSums c = {x->add ? tile : zeros, tile, x->add ? x->ldc : 0, x->ldc, NULL, 0};
            tiles_product(simulated, a, b, (end - begin) / TILE_WORDS, &c, NULL, 0);
        }
    }
}

#ifdef AMX_COMPILED
AMX_TARGET static void words_product_by_amx(const WordsProduct* x) { words_product_of_tiles(NULL, x); }
#endif

// By the processor's tiles, or (amx = false) by tiles in C.
static inline void words_product(bool amx, const WordsProduct* x) {
#ifdef AMX_COMPILED
    if (amx) {
        words_product_by_amx(x);
        return;
    }
#endif
    (void)amx;
    Tile tiles[8];
    words_product_of_tiles(tiles, x);
}

// Words become floats, two rows for each, the odd numbers first. The words are the second half of the panel of n.
static inline void matmul_widen(float* panel, int width, int64_t n) {
    const MatmulWord *words = (const MatmulWord*)panel + n / 2, *end = words + n / 2;
    for (; words < end; words += width, panel += 2 * width) {
#pragma omp simd
        for (int i = 0; i < width; i++) { // the last row takes the place of its words
            const uint32_t word = words[i];
            panel[i] = word_high(word);
            panel[width + i] = word_low(word);
        }
    }
}

// Panels of 32 rows of A, of whose words k each row holds all, become pairs of tiles, one after the other along k.
static inline void matmul_turn_tiles(MatmulWord* panel, int64_t words) {
    enum { ROWS = 2 * TILE_ROWS, PAIR = ROWS * TILE_WORDS };
    for (const MatmulWord* end = panel + words; panel < end; panel += PAIR) {
        MatmulWord pair[PAIR];
        memcpy(pair, panel, sizeof pair);
        for (int i = 0; i < ROWS; i += 4) {
            for (int k = 0; k < TILE_WORDS; k += 4)
                matmul_transpose4(panel + i * TILE_WORDS + k, TILE_WORDS, pair + k * ROWS + i,
                                  sizeof(MatmulWord[ROWS]));
        }
    }
}

// ---- The peak of these units, for mfu.h: products of registers, and how many operations they are. sink: 16 floats ---

enum { PEAK_REPEATS = 30000 };

#ifdef MATMUL_AVX512_BF16
__attribute__((target("avx512f,avx512bf16"))) static inline double fma_loop_avx512_bf16(float* sink) {
    enum { CHAINS = 12 };
    __m512 x[CHAINS];
    const __m512bh m = (__m512bh)_mm512_set1_epi32(0x3e803e80); // 0.25, 0.25
    for (int i = 0; i < CHAINS; i++) x[i] = _mm512_set1_ps((float)i);
    for (int r = 0; r < PEAK_REPEATS; r++) {
        for (int i = 0; i < CHAINS; i++) x[i] = _mm512_dpbf16_ps(x[i], m, m);
    }
    for (int i = 1; i < CHAINS; i++) x[0] = _mm512_add_ps(x[0], x[i]);
    _mm512_storeu_ps(sink, _mm512_mul_ps(x[0], _mm512_setzero_ps()));
    return 4.0 * 16 * CHAINS * PEAK_REPEATS;
}
#endif

#ifdef AMX_COMPILED
AMX_TARGET static inline double fma_loop_amx(float* sink) {
    float sums[4 * TILE_ROWS * TILE_WORDS] = {0};
    Tile operand; // not of zeros, on which a core may be faster
    memset(&operand, 0x3e, sizeof operand);
    const TilePair same = {&operand, &operand, sizeof operand.word[0], 0};
    amx_begin();
    const TileSums c = {sums, sums, 2 * TILE_WORDS, 2 * TILE_WORDS, NULL, 0};
    tiles_product(NULL, same, same, PEAK_REPEATS, &c, NULL, 0);
    amx_end();
    sink[0] = 0 * sums[0];
    return 2.0 * 4 * TILE_ROWS * TILE_WORDS * TILE_DEPTH * PEAK_REPEATS;
}
#endif
