/*
matmul_tile.h: what a micro-kernel of matmul.h and matmul_bf16.h is given, its description in the table of kernels, and
vectors of four, which any machine has.
*/
#pragma once

#include "floatx.h"
#if defined(__x86_64__) || defined(__i386__)
#define MATMUL_X86
#include <immintrin.h>
#endif

// 32 bits of a packed matrix: a float, or a pair of bf16, of which the lower half is the first.
typedef uint32_t MatmulWord __attribute__((may_alias));
enum { WORD_NUMBERS = sizeof(MatmulWord) / sizeof(floatX) };

// How a kernel wants words: of bf16 as floats, a word for each k; a word for each pair; or pairs in tiles of AMX.
typedef enum { MATMUL_FLOATS, MATMUL_PAIRS, MATMUL_TILES } MatmulLayout;

// Rows of A: word k of row i is at data[i*across + k*along]; for tiles k is a multiple of 16, and 15 words follow it.
// next: the first of next_rows rows further down, which a kernel of tiles prefetches.
typedef struct {
    const MatmulWord* data;
    int64_t across, along;
    const MatmulWord* next;
    int next_rows;
} MatmulRows;

// A tile of C: where its sums come from and go to, in rows of floats; and the tile of C that will be needed next, in
// rows of next_row bytes, or NULL.
typedef struct {
    const float* from;
    float* to;
    int64_t from_row, to_row;
    const char* next;
    int64_t next_row;
} TileSums;

typedef struct {
    const char* name;
    int mr, nr, vector; // columns of a tile are left out by whole vectors
    int kc, group;      // steps of k in a block, in words; panels of B that are packed together
    MatmulLayout layout;
    void (*tile)(int depth, const MatmulRows* a, const MatmulWord* b, int columns, const TileSums* c);
    void (*begin)(void), (*end)(void); // called by a thread before the first tile and after the last, or NULL
} MatmulKernel;
enum { MATMUL_MAX_MR = 32, MATMUL_MAX_NR = 48, MATMUL_MAX_GROUP = 8 };

// The loops over a tile must unroll completely, as registers cannot be indexed.
#define MATMUL_UNROLL UNROLL(8)

typedef float Float4 __attribute__((vector_size(16)));
#if defined(__clang__) || __GNUC__ >= 12
#define MATMUL_SHUFFLE(x, y, i, j, k, l) __builtin_shufflevector(x, y, i, j, k, l)
#else
typedef int Int4 __attribute__((vector_size(16)));
#define MATMUL_SHUFFLE(x, y, i, j, k, l) __builtin_shuffle(x, y, __extension__(Int4){i, j, k, l})
#endif

// Transposes 4 x 4 words: to[k*width + i] is word k of row i, and rows are `across` bytes apart.
static inline void matmul_transpose4(MatmulWord* to, int width, const void* from, int64_t across) {
    Float4 x[4];
    for (int i = 0; i < 4; i++) memcpy(&x[i], (const char*)from + i * across, sizeof x[i]);
    Float4 low01 = MATMUL_SHUFFLE(x[0], x[1], 0, 4, 1, 5), high01 = MATMUL_SHUFFLE(x[0], x[1], 2, 6, 3, 7);
    Float4 low23 = MATMUL_SHUFFLE(x[2], x[3], 0, 4, 1, 5), high23 = MATMUL_SHUFFLE(x[2], x[3], 2, 6, 3, 7);
    x[0] = MATMUL_SHUFFLE(low01, low23, 0, 1, 4, 5);
    x[1] = MATMUL_SHUFFLE(low01, low23, 2, 3, 6, 7);
    x[2] = MATMUL_SHUFFLE(high01, high23, 0, 1, 4, 5);
    x[3] = MATMUL_SHUFFLE(high01, high23, 2, 3, 6, 7);
    for (int k = 0; k < 4; k++) memcpy(to + k * width, &x[k], sizeof x[k]);
}
