/*
matmul_tile.h: what a micro-kernel of matmul.h is given, and its description in the table of kernels.
*/
#pragma once

#include "floatx.h"

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
