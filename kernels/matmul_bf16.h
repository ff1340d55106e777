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
