/*
amx.h: the tile registers of AMX (Intel, "Intel 64 and IA-32 architectures software developer's manual", volume 2,
TDPBF16PS), the fastest way of recent Xeons to multiply bf16; and a simulation of them in C, by which code that uses
tiles is tested on any machine. Both give the same bits, except for the payloads of NaNs.

A tile is 16 rows of 64 bytes; there are eight, t = 0 ... 7. TILE_PRODUCT(c, a, b) adds a product of depth 32:

    a: 16 rows of 32 bf16                    b: 16 rows of 16 pairs of bf16; row i of b has elements 2i, 2i + 1 of k
    even = 0, odd = 0;  for i = 0 ... 15:    even = fma(a[2i], b[2i], even),  odd = fma(a[2i+1], b[2i+1], odd)
    c += even + odd                          c: 16 x 16 float32

Every operation rounds to float32, to nearest, and takes denormals for 0. So the order of a long sum is fixed by where
its steps of 32 begin.

The macros take `simulated`: NULL for the tiles of the processor, or eight tiles in memory. They are macros because the
number of a tile is a part of the instruction.
*/
#pragma once

#include "matmul_tile.h"
#if defined(PRECISION_BF16) && defined(__x86_64__) && defined(__LP64__) && defined(__linux__) && !defined(NO_AMX) &&   \
    (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define AMX_COMPILED // bf16, and the compiler knows the instructions; -DNO_AMX: its assembler does not (dev/dev.mk)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

enum { TILE_ROWS = 16, TILE_WORDS = 16, TILE_DEPTH = 32 }; // rows; words of 32 bits in a row; bf16 in a row

typedef struct {
    uint32_t word[TILE_ROWS][TILE_WORDS];
} Tile;

// ---- In C -------------------------------------------------------------------------------------------------------

static inline void simulate_copy(char* to, int64_t to_stride, const char* from, int64_t from_stride) {
    for (int i = 0; i < TILE_ROWS; i++)
        memcpy(to + i * to_stride, from + i * from_stride, sizeof(uint32_t[TILE_WORDS]));
}

// A denormal number becomes 0.
static inline float flush_denormal(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

static inline float word_low(uint32_t word) { return float_of_bits(word << 16); }          // element 2i of a pair
static inline float word_high(uint32_t word) { return float_of_bits(word & 0xffff0000u); } // element 2i + 1

static inline void simulate_product(Tile* c, const Tile* a, const Tile* b) {
    for (int row = 0; row < TILE_ROWS; row++) {
        float even[TILE_WORDS] = {0}, odd[TILE_WORDS] = {0};
        for (int i = 0; i < TILE_DEPTH / 2; i++) {
            const float x0 = flush_denormal(word_low(a->word[row][i])), x1 = flush_denormal(word_high(a->word[row][i]));
            for (int n = 0; n < TILE_WORDS; n++) {
                const uint32_t y = b->word[i][n];
                even[n] = flush_denormal(fmaf(x0, flush_denormal(word_low(y)), even[n]));
                odd[n] = flush_denormal(fmaf(x1, flush_denormal(word_high(y)), odd[n]));
            }
        }
        for (int n = 0; n < TILE_WORDS; n++) {
            const float sum = flush_denormal(even[n] + odd[n]), before = float_of_bits(c->word[row][n]);
            c->word[row][n] = bits_of_float(flush_denormal(flush_denormal(before) + sum));
        }
    }
}

// ---- By the processor -------------------------------------------------------------------------------------------

#ifdef AMX_COMPILED
#define TILE_ASM(simulated, in_c, ...)                                                                                 \
    do {                                                                                                               \
        if (simulated)                                                                                                 \
            in_c;                                                                                                      \
        else                                                                                                           \
            __asm__ volatile(__VA_ARGS__);                                                                             \
    } while (0)
#define AMX_TARGET __attribute__((target("amx-tile,amx-bf16,avx512f"))) // of functions with simulated = NULL
#else
#define TILE_ASM(simulated, in_c, ...) in_c
#endif

// Tile t is read from memory, rows `stride` bytes apart; is written there; c += the product of a and b.
#define TILE_LOAD(simulated, t, from, stride)                                                                          \
    TILE_ASM(simulated,                                                                                                \
             simulate_copy((char*)((simulated) + (t)), sizeof(uint32_t[TILE_WORDS]), (const char*)(from), (stride)),   \
             "tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"((int64_t)(stride))                                       \
             : "memory")
#define TILE_STORE(simulated, t, to, stride)                                                                           \
    TILE_ASM(simulated,                                                                                                \
             simulate_copy((char*)(to), (stride), (const char*)((simulated) + (t)), sizeof(uint32_t[TILE_WORDS])),     \
             "tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"((int64_t)(stride))                                     \
             : "memory")
#define TILE_PRODUCT(simulated, c, a, b)                                                                               \
    TILE_ASM(simulated, simulate_product((simulated) + (c), (simulated) + (a), (simulated) + (b)),                     \
             "tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

// Two tiles of A, one below the other, or of B, side by side; bytes from row to row, and to the next 32 numbers of k.
typedef struct {
    const void *first, *second;
    int64_t row, step;
} TilePair;

// c->to = c->from + A B in `steps` steps of 32 numbers of k, by 2 x 2 tiles of sums, 2 of A and 2 of B. Steps
// prefetch c->next and next_rows rows of A from next_a on, a.row bytes apart, in parts. simulated: a constant.
__attribute__((always_inline)) static inline void tiles_product(Tile* simulated, TilePair a, TilePair b, int steps,
                                                                const TileSums* c, const char* next_a, int next_rows) {
    enum { W = TILE_WORDS };
    const char *a0 = (const char*)a.first, *a1 = (const char*)a.second;
    const char *b0 = (const char*)b.first, *b1 = (const char*)b.second;
    const float *from = c->from, *from1 = from + TILE_ROWS * c->from_row;
    float *to = c->to, *to1 = to + TILE_ROWS * c->to_row;
    const int64_t from_stride = c->from_row * (int64_t)sizeof *from, stride = c->to_row * (int64_t)sizeof *to;
    const int shift = c->next ? 5 : 0, lines = c->next ? 2 : 0; // a part of the steps for each row of c->next
    TILE_LOAD(simulated, 0, from, from_stride);
    TILE_LOAD(simulated, 1, from + W, from_stride);
    TILE_LOAD(simulated, 2, from1, from_stride);
    TILE_LOAD(simulated, 3, from1 + W, from_stride);
    for (int row = 0, k = 0; row < 1 << shift; row++) {
        for (int line = 0; line < lines; line++) __builtin_prefetch(c->next + row * c->next_row + 64 * line);
        for (const int end = steps * (row + 1) >> shift; k < end; k++) {
            for (int i = 0; i < next_rows; i++) __builtin_prefetch(next_a + i * a.row + 64 * k, 0, 2);
            TILE_LOAD(simulated, 4, a0 + k * a.step, a.row);
            TILE_LOAD(simulated, 6, b0 + k * b.step, b.row);
            TILE_PRODUCT(simulated, 0, 4, 6);
            TILE_LOAD(simulated, 7, b1 + k * b.step, b.row);
            TILE_PRODUCT(simulated, 1, 4, 7);
            TILE_LOAD(simulated, 5, a1 + k * a.step, a.row);
            TILE_PRODUCT(simulated, 2, 5, 6);
            TILE_PRODUCT(simulated, 3, 5, 7);
        }
    }
    TILE_STORE(simulated, 0, to, stride);
    TILE_STORE(simulated, 1, to + W, stride);
    TILE_STORE(simulated, 2, to1, stride);
    TILE_STORE(simulated, 3, to1 + W, stride);
}

// Whether this processor has tiles, and the system lets this process use them: their state is large, and Linux grants
// it to a process on request (arch_prctl, ARCH_REQ_XCOMP_PERM).
static inline bool amx_is_here(void) {
#ifdef AMX_COMPILED
    enum {
        BF16 = 1 << 22,
        TILES = 1 << 24,
        OSXSAVE = 1 << 27,
        TILE_STATE = 3 << 17,
        ASK_FOR_STATE = 0x1023,
        DATA = 18
    };
    static int known = -1; // threads that ask at the same time come to the same answer
    unsigned a, b, c, d, enabled;
    if (known >= 0) return known;
    bool here = __get_cpuid(1, &a, &b, &c, &d) && (c & OSXSAVE);
    here = here && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & BF16) && (d & TILES);
    if (here) {
        __asm__ volatile("xgetbv" : "=a"(enabled), "=d"(d) : "c"(0));
        here = (enabled & TILE_STATE) == TILE_STATE && syscall(SYS_arch_prctl, ASK_FOR_STATE, DATA) == 0;
    }
    known = here;
    return here;
#else
    return false;
#endif
}

// To be called by a thread before it uses tiles, and after: all eight have 16 rows of 64 bytes.
static inline void amx_begin(void) {
#ifdef AMX_COMPILED
    struct {
        uint8_t palette, start, unused[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int t = 0; t < 8; t++) {
        config.bytes[t] = sizeof(uint32_t[TILE_WORDS]);
        config.rows[t] = TILE_ROWS;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
#endif
}

static inline void amx_end(void) {
#ifdef AMX_COMPILED
    __asm__ volatile("tilerelease" ::);
#endif
}
