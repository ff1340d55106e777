/*
attention_product.h: the product of blocks of 64 rows in scratch memory, C = A B or C += A B, of which attention.h has
seven kinds. Rows of C and B are whole vectors; A is read one operand at a time, by rows or by columns.

An operand is a float; in bf16, where the compiler's target multiplies such (faster than floats: without
-DATTENTION_FLOATS), a word of two numbers that are neighbours along k, the first in the low half. Rows of B are then
pairs of k, and K counts pairs. What multiplies bf16:

    AVX-512 BF16   words: VDPBF16PS adds the two products of a word to each of 16 sums
    AMX            words: tiles of 16 x 16 sums and 16 words (amx.h), where the processor has them
    neither        floats, as in float32

Order of sums. An element of C is one chain, c or 0, then k = 0, 1, 2, ...; in bf16 k = 1, 0, 3, 2, ..., as VDPBF16PS
adds, so that both have the same bits (products of bf16 are exact); by AMX a step of 32 is summed as amx.h says, and
then added. Numbers that are known to be 0, beyond the diagonal, may be left out.
*/
#pragma once

#include "../util/base.h"
#include "matmul.h"

// The widest vectors of the machine, and how many rows of two vectors a tile may have to leave registers for operands.
#if defined(__AVX512F__)
enum { ATT_LANES = 16, ATT_ROWS = 8 };
#elif defined(__AVX__)
enum { ATT_LANES = 8, ATT_ROWS = 4 };
#else
enum { ATT_LANES = 4, ATT_ROWS = 4 };
#endif
enum { ATT_WIDTH = 2 * ATT_LANES }; // a tile is ATT_ROWS x ATT_WIDTH
enum { ATT_BLOCK = 64 };            // queries, and keys, in a block

typedef float AttVector __attribute__((vector_size(4 * ATT_LANES), may_alias));

enum { IN_BF16 = sizeof(floatX) == 2 };

// An operand, ATT_PACK numbers. The columns at which C may begin in a block on the diagonal are multiples of ATT_STEP.
// Groups of ATT_TURN operands are added last one first. att_number rounds; att_load is of what has been rounded before.
#if defined(PRECISION_BF16) && !defined(ATTENTION_FLOATS) &&                                                           \
    (defined(__AVX512BF16__) || defined(__AMX_BF16__) || defined(ATTENTION_WORDS))
#define ATT_IN_WORDS // -DATTENTION_WORDS: for tests on other machines
enum { ATT_PACK = 2, ATT_STEP = TILE_DEPTH, ATT_TURN = 1 };
typedef uint32_t AttOperand __attribute__((may_alias));
typedef floatX AttNumber;
typedef uint32_t AttWords __attribute__((vector_size(4 * ATT_LANES), may_alias));

static inline AttNumber att_number(float x) { return to_floatX(x); }
static inline AttNumber att_load(floatX x, float scale) {
    (void)scale; // 1
    return x;
}

static inline AttVector add_words_by_fma(AttVector sum, AttOperand a, const AttOperand* b) {
    const AttWords x = a - (AttWords){0}, y = *(const AttWords*)b;
    sum += (AttVector)(x & 0xffff0000u) * (AttVector)(y & 0xffff0000u);
    sum += (AttVector)(x << 16) * (AttVector)(y << 16);
    return sum;
}

// sum + a * b, b a vector of operands.
static inline AttVector multiply_add(AttVector sum, AttOperand a, const AttOperand* b) {
#ifdef __AVX512BF16__
    return (AttVector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)a), *(const __m512bh*)b);
#else
    return add_words_by_fma(sum, a, b);
#endif
}
#else
enum { ATT_PACK = 1, ATT_STEP = ATT_WIDTH, ATT_TURN = IN_BF16 ? 2 : 1 };
typedef float AttOperand;
typedef float AttNumber;

static inline AttNumber att_number(float x) { return to_float(to_floatX(x)); }
static inline AttNumber att_load(floatX x, float scale) { return scale * to_float(x); }

static inline AttVector multiply_add(AttVector sum, AttOperand a, const AttOperand* b) {
    return sum + a * *(const AttVector*)b;
}
#endif
enum { IN_WORDS = ATT_PACK == 2 };

// The structure of A and C when the block is on the diagonal.
typedef enum {
    WHOLE,        // nothing
    UPPER_RESULT, // only C[i][j] with j >= i are needed; j < column_begin(i) are not written
    UPPER_FACTOR, // A[i][k] = 0 for k < i
    LOWER_FACTOR, // A[i][k] = 0 for k > i
} AttPart;

// The first column that UPPER_RESULT computes in a row: a whole tile at a time.
static inline int column_begin(int row) { return row / ATT_STEP * ATT_STEP; }

// One tile of C = A B (+ C if add), K operands. vectors: 1 or 2, the width of this tile. Inlined, so that vectors is a
// constant, the loops over it and over rows unroll, and the sums stay in registers.
__attribute__((always_inline)) static inline void vector_tile(float* c, int ldc, const AttOperand* a, int a_row,
                                                              int a_col, const AttOperand* b, int ldb, int K, bool add,
                                                              int vectors) {
    AttVector sum[ATT_ROWS][2];
    UNROLL(8) for (int i = 0; i < ATT_ROWS; i++) {
        UNROLL(2) for (int v = 0; v < vectors; v++) {
            const AttVector zero = {0};
            sum[i][v] = add ? *(const AttVector*)(c + i * ldc + v * ATT_LANES) : zero;
        }
    }
    for (int k = 0; k < K; k += ATT_TURN, a += ATT_TURN * a_col, b += ATT_TURN * ldb) {
        UNROLL(2) for (int turn = ATT_TURN - 1; turn >= 0; turn--) {
            UNROLL(8) for (int i = 0; i < ATT_ROWS; i++) {
                UNROLL(2) for (int v = 0; v < vectors; v++) {
                    sum[i][v] = multiply_add(sum[i][v], a[i * a_row + turn * a_col], b + turn * ldb + v * ATT_LANES);
                }
            }
        }
    }
    UNROLL(8) for (int i = 0; i < ATT_ROWS; i++) {
        UNROLL(2) for (int v = 0; v < vectors; v++) * (AttVector*)(c + i * ldc + v * ATT_LANES) = sum[i][v];
    }
}

// to (columns, rows) = the transpose of from (rows, columns); both are multiples of 4. columns may be any number where
// rows of `from` and room in `to` are.
static inline void transpose(AttOperand* to, const AttOperand* from, int from_row, int rows, int columns) {
    for (int j = 0; j < columns; j += 4) {
        for (int i = 0; i < rows; i += 4)
            matmul_transpose4((MatmulWord*)to + j * rows + i, rows, from + i * from_row + j,
                              from_row * (int64_t)sizeof *from);
    }
}

// What multiplies: tiles, where the processor has them, else vectors; tests also choose tiles in C.
typedef enum { ATT_ANY, ATT_TILES, ATT_VECTORS, ATT_TILES_IN_C } AttUnit;
static AttUnit attention_unit = ATT_ANY;

#ifdef ATT_IN_WORDS
// Before the threads start; and what each does before its first product and after the last.
static inline void attention_choose_unit(void) {
    if (attention_unit == ATT_ANY) attention_unit = amx_is_here() ? ATT_TILES : ATT_VECTORS;
}
static inline void attention_begin(void) {
    if (attention_unit == ATT_TILES) amx_begin();
}
static inline void attention_end(void) {
    if (attention_unit == ATT_TILES) amx_end();
}
#else
static inline void attention_choose_unit(void) { attention_unit = ATT_VECTORS; }
static inline void attention_begin(void) {}
static inline void attention_end(void) {}
#endif

// C (ATT_BLOCK, N) = A (ATT_BLOCK, K) B (K, N), + C if add. A[i][k] = a[i * a_row + k * a_col]; rows of C and B are ldc
// and ldb apart; K counts operands. N, ldc and ldb are multiples of ATT_LANES; of words N of 32 and K of 16; in bf16 K
// of 2. b and c are aligned to vectors.
static inline void block_product(float* c, int ldc, const AttOperand* a, int a_row, int a_col, const AttOperand* b,
                                 int ldb, int N, int K, bool add, AttPart part) {
#ifdef ATT_IN_WORDS
    if (attention_unit != ATT_VECTORS) {
        const WordsProduct x = {c,
                                ldc,
                                a,
                                a_row,
                                a_col,
                                b,
                                ldb,
                                ATT_BLOCK,
                                N,
                                K,
                                add,
                                part == UPPER_RESULT,
                                part == UPPER_FACTOR,
                                part == LOWER_FACTOR};
        words_product(attention_unit == ATT_TILES, &x);
        return;
    }
#endif
    for (int j = 0; j < N; j += ATT_WIDTH) {
        for (int i = 0; i < ATT_BLOCK; i += ATT_ROWS) {
            if (part == UPPER_RESULT && j < column_begin(i)) break;
            const int begin = part == UPPER_FACTOR ? i / ATT_PACK : 0;
            const int end = part == LOWER_FACTOR ? (i + ATT_ROWS) / ATT_PACK : K;
            float* tile = c + i * ldc + j;
            const AttOperand *rows = a + i * a_row + begin * a_col, *columns = b + begin * ldb + j;
            if (j + ATT_WIDTH <= N)
                vector_tile(tile, ldc, rows, a_row, a_col, columns, ldb, end - begin, add, 2);
            else
                vector_tile(tile, ldc, rows, a_row, a_col, columns, ldb, end - begin, add, 1);
        }
    }
}
