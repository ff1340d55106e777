/*
matmul.h: the matrix product on CPU cores, of float32 or bf16 numbers, and the linear layers made of it.

    matmul()                C = A B + bias, rounded to floatX
    linear_forward()             out = x w^T + bias
    linear_backward_input()      dx  = dout w
    linear_backward_weight()     dw = dout^T x, or dw += dout^T x; float32
    linear_backward_bias()       db += the sum of dout over rows

Theory: nearly all the time of training a GPT goes into these products, and the textbook's three loops reach a few
percent of a core's peak, as it waits for loads: a core can start one or two vector multiply-adds a cycle. The remedy is
Goto's (Goto and van de Geijn 2008, "Anatomy of high-performance matrix multiplication"; Van Zee and van de Geijn 2015,
"BLIS"): at every level of the memory, take a block that fits, and use it many times before it is evicted.

    registers   A micro-kernel holds one tile of C, mr x nr (8 x 48 with AVX-512: 24 vectors), and for every k adds the
                outer product of a column of A and a row of B: mr + nr floats loaded for mr * nr multiply-adds. With 24
                independent sums, the latency of a multiply-add (4 cycles) is hidden.
    L1          mr rows of A, kc deep (25 KB), serve the tiles of a few panels of B.
    L2          These panels, each nr columns wide and kc deep (147 KB), serve all the tiles below one another in C.
    L3          A block of A, mc x kc (3 MB), serves all the panels of B.
                (These are AVX-512's numbers. Each kernel's row below has its own, chosen by measurement.)
    packing     Both are first copied into the order in which the micro-kernel reads them, so that loads are
                consecutive, whatever the strides of A and B are. This also handles transposes. Packing costs O(MK + KN)
                moves next to O(MNK) multiply-adds. Rows of A that are contiguous along k are read where they are.

                 N                                 nr
          +-------------+          K            +------+
          |             |      +-------+        |      |   a thread, for each rectangle of C:
        M |   |tile|.|..|  +=  | mr, kc|   x    | kc   |      for every m0 (step mc) and k0 (step kc): pack a block of A
          |             |      +-------+        |      |         for every few panels of B: pack them
          |             |      |  ...  |        +------+            for every mr rows of A
          +-------------+      +-------+                               for every panel: the micro-kernel

bf16. Two neighbours along k are a pair, a word of 32 bits, and packing moves words as it moves floats. Sums are
float32.

    AMX            tiles of 16 x 16 sums, 32 numbers of k a step (amx.h); C in tiles of 32 x 32; eight panels
                   of B (786 KB) serve 32 rows of A (98 KB: beyond L1, so the next rows are prefetched)
    AVX-512 BF16   VDPBF16PS adds a pair to each of 16 sums: twice the speed of float32 on AMD, half of it on Intel
    neither        packing widens pairs to two floats, for the kernels of float32

The bits depend neither on blocks, edges and the number of threads, nor on where a product is cut in two along k (a
batch cut into micro-batches, dw +=), because the tile is loaded from C before a block of k and stored after it, never
summed separately. CONTRACT: every element of C is one chain,

    s = c (dw +=) | bias | 0;   for k = 0 ... K-1: s = fma(a[k], b[k], s);   c = s, rounded to floatX

in bf16 by pairs, the odd element first: k = 1, 0, 3, 2, ... (so VDPBF16PS does it), or with AMX by steps of 32, as
amx.h says; numbers beyond K are 0. So in bf16 cuts along k keep the bits only at even k, with AMX at multiples of 32.
Denormal numbers count as 0 in the instructions for bf16, and everywhere in a trainer (device_flush_denormals). An
exception: in float32 a machine without fused multiply-add rounds twice (the portable kernel still gives the same bits
for every blocking, thread count and cut).
*/
#pragma once

#include "matmul_tile.h"
#ifdef PRECISION_BF16
#include "matmul_bf16.h"
#endif

// ----------------------------------------------------------------------------------------------------------------
// Micro-kernels: one (mr, nr) tile of C, `depth` rows of packed words, the tile in registers throughout.
//     tile = from; for each k: tile[i][j] = fma(a[i*across + k*along], b[k*nr + j], tile[i][j]); to = tile
// `from` is `to` itself, or a row of start values (from_row = 0). At the right edge of C only `columns` are needed; a
// kernel of several vectors leaves out the others. Meanwhile the next tile is prefetched by rows: a core would wait for
// all at once. The x86 kernels are compiled whatever -march is and chosen at run time, for use elsewhere.

#ifdef MATMUL_X86
// 24 sums, 3 vectors of B and 1 broadcast of A: 28 of the 32 registers. Inlined, so that vectors is a constant.
__attribute__((always_inline, target("avx512f"))) static inline void
matmul_vectors_avx512(int vectors, int depth, const MatmulRows* a, const MatmulWord* b, const TileSums* c) {
    MatmulRows x = *a;
    const TileSums s = *c;
    __m512 tile[8][3], bk[3];
    MATMUL_UNROLL for (int i = 0; i < 8; i++) {
        MATMUL_UNROLL for (int j = 0; j < vectors; j++) tile[i][j] = _mm512_loadu_ps(s.from + i * s.from_row + 16 * j);
    }
    for (int row = 0, k = 0; row < 8; row++) {
        MATMUL_UNROLL for (int j = 0; j < vectors; j++) __builtin_prefetch(s.next + row * s.next_row + 64 * j);
        for (const int end = depth * (row + 1) / 8; k < end; k++, x.data += x.along, b += 48) {
            MATMUL_UNROLL for (int j = 0; j < vectors; j++) bk[j] = _mm512_loadu_ps(b + 16 * j);
            MATMUL_UNROLL for (int i = 0; i < 8; i++) {
                __m512 ai = _mm512_set1_ps(float_of_bits(x.data[i * x.across]));
                MATMUL_UNROLL for (int j = 0; j < vectors; j++) tile[i][j] = _mm512_fmadd_ps(ai, bk[j], tile[i][j]);
            }
        }
    }
    MATMUL_UNROLL for (int i = 0; i < 8; i++) {
        MATMUL_UNROLL for (int j = 0; j < vectors; j++) _mm512_storeu_ps(s.to + i * s.to_row + 16 * j, tile[i][j]);
    }
}

__attribute__((target("avx512f"))) static inline void
matmul_tile_avx512(int depth, const MatmulRows* a, const MatmulWord* b, int columns, const TileSums* c) {
    if (columns > 32) matmul_vectors_avx512(3, depth, a, b, c);
    if (columns > 16 && columns <= 32) matmul_vectors_avx512(2, depth, a, b, c);
    if (columns <= 16) matmul_vectors_avx512(1, depth, a, b, c);
}

// 12 sums, 2 vectors of B and 1 broadcast of A: 15 of the 16 registers.
__attribute__((target("avx2,fma"))) static inline void
matmul_tile_avx2(int depth, const MatmulRows* a, const MatmulWord* b, int columns, const TileSums* c) {
    MatmulRows x = *a;
    const TileSums s = *c;
    __m256 tile[6][2];
    (void)columns;
    MATMUL_UNROLL for (int i = 0; i < 6; i++) {
        MATMUL_UNROLL for (int j = 0; j < 2; j++) tile[i][j] = _mm256_loadu_ps(s.from + i * s.from_row + 8 * j);
    }
    for (int row = 0, k = 0; row < 6; row++) {
        __builtin_prefetch(s.next + row * s.next_row);
        for (const int end = depth * (row + 1) / 6; k < end; k++, x.data += x.along, b += 16) {
            __m256 b0 = _mm256_loadu_ps((const float*)b), b1 = _mm256_loadu_ps((const float*)b + 8);
            MATMUL_UNROLL for (int i = 0; i < 6; i++) {
                __m256 ai = _mm256_set1_ps(float_of_bits(x.data[i * x.across]));
                tile[i][0] = _mm256_fmadd_ps(ai, b0, tile[i][0]);
                tile[i][1] = _mm256_fmadd_ps(ai, b1, tile[i][1]);
            }
        }
    }
    MATMUL_UNROLL for (int i = 0; i < 6; i++) {
        MATMUL_UNROLL for (int j = 0; j < 2; j++) _mm256_storeu_ps(s.to + i * s.to_row + 8 * j, tile[i][j]);
    }
}
#endif

// Any machine, with the compiler's vectors of 4: 24 sums for the 32 registers of ARM, POWER and RISC-V. The compiler
// makes fused multiply-adds of the products and sums where there are any (-ffp-contract, on in gnu11).
static inline void matmul_tile_portable(int depth, const MatmulRows* a, const MatmulWord* b, int columns,
                                        const TileSums* c) {
    MatmulRows x = *a;
    const TileSums s = *c;
    Float4 tile[8][3], bk[3];
    (void)columns;
    MATMUL_UNROLL for (int i = 0; i < 8; i++) {
        MATMUL_UNROLL for (int j = 0; j < 3; j++) memcpy(&tile[i][j], s.from + i * s.from_row + 4 * j, sizeof(Float4));
    }
    for (int k = 0; k < depth; k++, x.data += x.along, b += 12) {
        MATMUL_UNROLL for (int j = 0; j < 3; j++) memcpy(&bk[j], b + 4 * j, sizeof(Float4));
        MATMUL_UNROLL for (int i = 0; i < 8; i++) {
            MATMUL_UNROLL for (int j = 0; j < 3; j++) tile[i][j] += float_of_bits(x.data[i * x.across]) * bk[j];
        }
    }
    MATMUL_UNROLL for (int i = 0; i < 8; i++) {
        MATMUL_UNROLL for (int j = 0; j < 3; j++) memcpy(s.to + i * s.to_row + 4 * j, &tile[i][j], sizeof(Float4));
    }
}

// Kernel `index` of MATMUL_KERNELS, best first; NULL where this machine or build has no such kernel. The portable one
// runs everywhere; the last is for tests.
enum { MATMUL_PORTABLE = 4, MATMUL_KERNELS = 6 };
static inline const MatmulKernel* matmul_kernel(int index) {
#ifdef AMX_COMPILED
    static const MatmulKernel amx = {"AMX", 32, 32, 32, 768, 8, MATMUL_TILES, matmul_tile_amx, amx_begin, amx_end};
    if (index == 0) return amx_is_here() ? &amx : NULL;
#endif
#ifdef MATMUL_AVX512_BF16
    static const MatmulKernel avx512_bf16 = {"AVX-512 BF16",          8,    48,  16, 768, 4, MATMUL_PAIRS,
                                             matmul_tile_avx512_bf16, NULL, NULL};
    if (index == 1) return __builtin_cpu_supports("avx512bf16") ? &avx512_bf16 : NULL;
#endif
#ifdef MATMUL_X86
    static const MatmulKernel avx512 = {"AVX-512", 8, 48, 16, 768, 4, MATMUL_FLOATS, matmul_tile_avx512, NULL, NULL};
    static const MatmulKernel avx2 = {"AVX2", 6, 16, 16, 512, 8, MATMUL_FLOATS, matmul_tile_avx2, NULL, NULL};
    if (index == 2) return __builtin_cpu_supports("avx512f") ? &avx512 : NULL;
    if (index == 3) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &avx2 : NULL;
#endif
#ifdef PRECISION_BF16
    static const MatmulKernel simulated = {"AMX in C", 32,  32, 32, 768, 8, MATMUL_TILES, matmul_tile_simulated,
                                           NULL,       NULL};
    if (index == 5) return &simulated;
#endif
    static const MatmulKernel portable = {"portable",           8,    12,  12, 768, 4, MATMUL_FLOATS,
                                          matmul_tile_portable, NULL, NULL};
    return index == MATMUL_PORTABLE ? &portable : NULL;
}

// The kernel for this machine. Intel's cores do four multiply-adds of float32 vectors in the time of one VDPBF16PS, so
// that without AMX bf16 is widened there (measured on Emerald Rapids, docs/precision.md). The bits are the same.
static inline const MatmulKernel* matmul_best_kernel(void) {
    int index = 0;
#if defined(MATMUL_AVX512_BF16)
    if (!matmul_kernel(0) && __builtin_cpu_is("intel")) index = 2;
#endif
    while (!matmul_kernel(index)) index++;
    return matmul_kernel(index);
}

// ---- Packing ----------------------------------------------------------------------------------------------------

static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A matrix as vectors along k, whatever its layout: element (i, k) is data[i*across + k*along]. For A, i is
// the row; for B, the column.
typedef struct {
    const floatX* data;
    int64_t across, along;
} MatmulOperand;

// One whole panel of vectors that are contiguous along k (along = 1), up to `wide` of them and `depth` words, both
// multiples of 4. In runs of k: the part of the panel being written stays in L1.
static inline void matmul_pack_transposed(MatmulWord* panel, int width, const floatX* from, int64_t across, int wide,
                                          int depth) {
    enum { RUN = 128 };
    for (int run = 0; run < depth; run += RUN) {
        for (int i = 0; i < wide; i += 4) {
            for (int k = run; k < min_int(run + RUN, depth); k += 4)
                matmul_transpose4(panel + k * width + i, width, from + i * across + k * WORD_NUMBERS,
                                  across * (int64_t)sizeof(floatX));
        }
    }
}

// n words of numbers that are side by side: in bf16 of a row and the next one, `along` later.
static inline void matmul_join(MatmulWord* RESTRICT to, const floatX* from, int64_t along, int n) {
#ifdef PRECISION_BF16
    for (int i = 0; i < n; i++) to[i] = from[i].bits | (uint32_t)from[along + i].bits << 16;
#else
    (void)along;
    memcpy(to, from, (size_t)n * sizeof *to);
#endif
}

// Whole panels of vectors that are side by side (across = 1), row after row of memory; `panel` words from one panel to
// the next.
static inline void matmul_pack_rows(MatmulWord* panels, int width, int64_t panel, const floatX* from, int64_t along,
                                    int count, int depth) {
    enum { AHEAD = 16, LINE = 64 / sizeof(floatX) };
    for (int k = 0; k < depth; k++, from += along * WORD_NUMBERS, panels += width) {
        for (int i = 0; i < count + LINE - 1; i += LINE) {
            for (int j = 0; j < WORD_NUMBERS; j++)
                __builtin_prefetch(from + min_int(i, count - 1) + (AHEAD + j) * along);
        }
        MatmulWord* to = panels;
        for (int i = 0; i < count; i += width, to += panel) {
            switch (width) { // constants, which the compiler wants
            case 6: matmul_join(to, from + i, along, 6); break;
            case 8: matmul_join(to, from + i, along, 8); break;
            case 16: matmul_join(to, from + i, along, 16); break;
            default: matmul_join(to, from + i, along, width);
            }
        }
    }
}

// Word `row` of a vector: one or two numbers, of which those beyond depth are 0.
static inline MatmulWord matmul_word(const floatX* vector, int64_t along, int row, int depth) {
    floatX number[WORD_NUMBERS];
    MatmulWord word;
    for (int j = 0; j < WORD_NUMBERS; j++) {
        const int k = row * WORD_NUMBERS + j;
        number[j] = k < depth ? vector[k * along] : to_floatX(0);
    }
    memcpy(&word, number, sizeof word);
    return word;
}

// Packs vectors first ... first + count - 1 of x, k0 ... k0 + depth - 1, as panels of `width`, each `panel` words after
// the last: word k of vector i of a panel is at [k*width + i]. Zeros follow up to `padded` vectors and `rows` words.
static inline void matmul_pack_words(MatmulWord* panels, int width, int64_t panel, MatmulOperand x, int64_t first,
                                     int count, int padded, int64_t k0, int depth, int rows) {
    if (depth == 0) return;
    const floatX* data = x.data + first * x.across + k0 * x.along;
    int whole = x.across == 1 ? count / width * width : 0, few = width * (64 / width > 1 ? 64 / width : 1);
    for (int i = 0; i < whole; i += few) { // more panels at a time would conflict in L1, as they are 2^n apart
        matmul_pack_rows(panels + i / width * panel, width, panel, data + i, x.along, min_int(few, whole - i),
                         depth / WORD_NUMBERS);
    }
    for (int i = 0; i < padded; i += width) {
        MatmulWord* to = panels + i / width * panel;
        const floatX* from = data + i * x.across;
        int wide = min_int(width, count - i), done_wide = 0, done_rows = 0;
        if (i < whole) {
            done_wide = width;
            done_rows = depth / WORD_NUMBERS;
        } else if (x.along == 1 && wide > 0) {
            done_wide = wide / 4 * 4;
            done_rows = depth / WORD_NUMBERS / 4 * 4;
            matmul_pack_transposed(to, width, from, x.across, done_wide, done_rows);
        }
        if (done_wide == width && done_rows == rows) continue;
        for (int k = 0; k < rows; k++, to += width) { // rests of less than 4, and strides other than 1
            int j = k < done_rows ? done_wide : 0;
            for (; j < wide; j++) to[j] = matmul_word(from + j * x.across, x.along, k, depth);
            for (; j < width; j++) to[j] = 0;
        }
    }
}

// Words along k of a packed vector.
static inline int matmul_words(const MatmulKernel* kernel, int64_t depth) {
    const int64_t words = div_up(depth, WORD_NUMBERS);
    if (kernel->layout == MATMUL_TILES) return (int)div_up(words, 16) * 16;
    return (int)(kernel->layout == MATMUL_FLOATS ? words * WORD_NUMBERS : words);
}

// Whether a kernel can read rows of A in place: words along k that lie side by side; for tiles, whole steps of 32.
static inline bool matmul_reads_in_place(const MatmulKernel* kernel, MatmulOperand a, int depth) {
    const int step = kernel->layout == MATMUL_TILES ? 32 : WORD_NUMBERS;
    return (kernel->layout == MATMUL_FLOATS) == (WORD_NUMBERS == 1) && a.along == 1 && a.across % WORD_NUMBERS == 0 &&
           depth % step == 0 && (uintptr_t)a.data % sizeof(MatmulWord) == 0;
}

// Packs a part of A or B for a kernel, in panels of mr or nr vectors, the last one filled up with zeros.
static inline void matmul_pack(const MatmulKernel* kernel, MatmulWord* panels, bool is_a, MatmulOperand x,
                               int64_t first, int count, int64_t k0, int depth) {
    const int width = is_a ? kernel->mr : kernel->nr;
    const int rows = matmul_words(kernel, depth), padded = (int)div_up(count, width) * width;
    const int64_t panel = (int64_t)width * rows;
    const bool widened = kernel->layout == MATMUL_FLOATS && WORD_NUMBERS > 1;
    matmul_pack_words(panels + (widened ? panel / 2 : 0), width, panel, x, first, count, padded, k0, depth,
                      widened ? rows / 2 : rows);
#ifdef PRECISION_BF16
    const int64_t words = padded * (int64_t)rows;
    for (int64_t i = 0; i < (widened ? words : 0); i += panel) matmul_widen((float*)(void*)(panels + i), width, panel);
    if (kernel->layout == MATMUL_TILES && is_a) matmul_turn_tiles(panels, words);
#endif
}

// The packed panels of a product: one block for each calling thread, which grows and is kept, because fresh pages from
// the kernel cost more than packing does. Large pages save the TLB. Each thread of the team has a part of its caller's.
typedef struct {
    MatmulWord* data;
    size_t count;
} MatmulWorkspace;
static __thread MatmulWorkspace matmul_workspace = {NULL, 0};

static inline MatmulWord* matmul_reserve(size_t count) {
    MatmulWorkspace* w = &matmul_workspace;
    if (w->count < count) {
        size_t page = (size_t)2 << 20, bytes = round_up(count * sizeof(MatmulWord), page);
        free(w->data);
        w->data = (MatmulWord*)aligned_alloc(page, bytes);
        if (!w->data) die("out of memory: %.1f MB for packed matrices", (double)bytes / 1e6);
        madvise(w->data, bytes, MADV_HUGEPAGE); // only a hint: small pages work, too
        w->count = bytes / sizeof(MatmulWord);
    }
    return w->data;
}

// ---- The product ------------------------------------------------------------------------------------------------

// C cut into rectangles: one for each thread, or, where A is read in place, up to four, which threads take as they
// become free: a core may be busy with other programs, or of a slower kind. A thread packs what it needs itself, even
// where a neighbour packs the same. Packing together would save work, but then threads read lines that another core
// has just written, and wait at barriers: with two cores that costs a tenth of the peak, packing twice a few percent.
typedef struct {
    int rows, columns;     // the grid has these
    int64_t height, width; // a rectangle's, multiples of mr and nr; the last ones are shorter, or empty
} MatmulGrid;

// The grid that takes the least time, or 1 % more with smaller rectangles: multiply-adds, and packing B and, unless it
// is read in place, A, where moving a float takes as long as PACK multiply-adds.
static inline MatmulGrid matmul_grid(const MatmulKernel* kernel, int M, int N, int threads, bool packs_a) {
    const double PACK = 16;
    MatmulGrid best = {0, 0, 0, 0};
    double least = INFINITY;
    for (int each = packs_a || threads == 1 ? 1 : 4; each >= 1; each--) { // rectangles of a thread
        for (int rows = 1; rows <= threads; rows++) {
            MatmulGrid g = {rows, threads / rows * each, 0, 0};
            g.height = div_up(div_up(M, g.rows), kernel->mr) * kernel->mr;
            g.width = div_up(div_up(N, g.columns), kernel->nr) * kernel->nr;
            const double moves = (double)(g.width + (packs_a ? g.height : 0));
            const double cost = each * ((double)g.height * (double)g.width + PACK * moves) * (each > 1 ? 0.99 : 1);
            if (cost >= least || (each > 1 && g.width < kernel->group * kernel->nr)) continue;
            least = cost;
            best = g;
        }
    }
    return best;
}

// C (M, N) = A B + bias, or, accumulating, C += A B.
typedef struct {
    float* sums;     // C in float32, or NULL:
    floatX* out;     // C is rounded, and does not accumulate
    bool accumulate; // then there is no bias
    int64_t row;     // numbers from one row of C to the next
    MatmulOperand a, b;
    const floatX* bias; // (N), or NULL: 0
    int64_t M, N, K;
} MatmulProduct;

// A strip of C: `rows` x `columns`, the tiles of one panel of B below one another. Sums go from `from` to `to`, whose
// last tiles reach beyond C where they are our own memory (`padded`), or are rounded to `out`.
typedef struct {
    const float* from;
    float* to;
    floatX* out; // or NULL
    int64_t from_row, to_row, out_row;
    int rows, columns;
    bool padded;
} MatmulStrip;

// The tile whose first row is i: at the edges of C, or rounded, through a scratch tile.
static inline void matmul_tile(const MatmulKernel* kernel, int depth, const MatmulRows* a, const MatmulWord* b,
                               const MatmulStrip* s, int i, const char* next, int64_t next_row) {
    const int rows = min_int(kernel->mr, s->rows - i), nr = kernel->nr;
    const bool whole = s->padded || (rows == kernel->mr && s->columns % kernel->vector == 0);
    float scratch[MATMUL_MAX_MR * MATMUL_MAX_NR];
    TileSums c = {s->from + i * s->from_row, s->to + i * s->to_row, s->from_row, s->to_row, next, next_row};
    if (!whole) {
        memset(scratch, 0, sizeof *scratch * (size_t)(kernel->mr * nr));
        for (int r = 0; r < rows; r++)
            memcpy(scratch + r * nr, c.from + r * c.from_row, (size_t)s->columns * sizeof *scratch);
        c.from = scratch;
        c.from_row = nr;
    }
    if (!whole || s->out) {
        c.to = scratch;
        c.to_row = nr;
    }
    kernel->tile(depth, a, b, s->columns, &c);
    if (whole && !s->out) return;
    for (int r = 0; r < rows; r++) {
        if (s->out) {
            floatX* out = s->out + (i + r) * s->out_row;
            for (int j = 0; j < s->columns; j++) out[j] = to_floatX(scratch[r * nr + j]);
        } else {
            memcpy(s->to + (i + r) * s->to_row, scratch + r * nr, (size_t)s->columns * sizeof *scratch);
        }
    }
}

// How a rectangle of `height` rows is cut: blocks of A of mc rows (a multiple of mr) and kc steps of k. Equal blocks,
// so that none is a small remainder.
typedef struct {
    int64_t mc, kc;
} MatmulBlocks;

// In words, whole large pages a thread: its packed block of A, at most MATMUL_BLOCK and a last row of tiles; panels of
// B; and sums that are kept between blocks of k.
enum {
    MATMUL_KC = 768, // any kernel takes these at most
    MATMUL_BLOCK = 1024 * MATMUL_KC,
    MATMUL_PANEL_B = MATMUL_BLOCK + MATMUL_MAX_MR * MATMUL_KC, // where the panels of B begin
    MATMUL_PANELS = 1 << 20,
    MATMUL_KEPT = sizeof(floatX) < sizeof(float) ? 1 << 19 : 0,
    MATMUL_KEPT_ROWS = 512,
    MATMUL_SLOT = MATMUL_PANELS + MATMUL_KEPT
};

static inline MatmulBlocks matmul_blocks(const MatmulKernel* kernel, int64_t height, int64_t K) {
    const int64_t step = WORD_NUMBERS > 1 ? 32 : 1; // pairs and tiles are not cut
    const int64_t kc = kernel->layout == MATMUL_FLOATS ? kernel->kc : kernel->kc * WORD_NUMBERS;
    MatmulBlocks b;
    b.kc = max_i64(1, div_up(div_up(K, max_i64(1, div_up(K, kc))), step)) * step;
    b.mc = div_up(div_up(height, div_up(height * matmul_words(kernel, b.kc), MATMUL_BLOCK)), kernel->mr) * kernel->mr;
    return b;
}

// The strip of C at row m0 and column n, for `depth` steps of k from k0 on. start: nr floats; kept: the strip's sums.
static inline MatmulStrip matmul_strip(const MatmulKernel* kernel, const MatmulProduct* p, float* start, float* kept,
                                       int64_t m0, int rows, int64_t n, int columns, int64_t k0, int depth) {
    const int64_t at = m0 * p->row + n;
    MatmulStrip s = {start, kept, NULL, 0, kernel->nr, p->row, rows, columns, !p->sums};
    if (p->sums) {
        s.to = p->sums + at;
        s.to_row = p->row;
    }
    if (k0 > 0 || p->accumulate) {
        s.from = s.to;
        s.from_row = s.to_row;
    }
    for (int j = 0; j < kernel->nr; j++) start[j] = p->bias && j < columns ? to_float(p->bias[n + j]) : 0;
    if (p->out && k0 + depth == p->K) s.out = p->out + at;
    return s;
}

// `rows` rows of C from m0 on, columns [n0, n1), `depth` steps of k from k0 on: a block of A, of which whole tiles are
// read in place where they can be, against the panels of B, packed a few at a time. Sums are kept by strips.
static inline void matmul_block(const MatmulKernel* kernel, const MatmulProduct* p, MatmulWord* packed, int64_t m0,
                                int rows, int64_t n0, int64_t n1, int64_t k0, int depth) {
    const int mr = kernel->mr, nr = kernel->nr, words = matmul_words(kernel, depth);
    const int in_place = matmul_reads_in_place(kernel, p->a, depth) ? rows / mr * mr : 0; // rows of A
    const MatmulWord* memory = (const MatmulWord*)(const void*)(p->a.data + m0 * p->a.across + k0 * p->a.along);
    matmul_pack(kernel, packed + (int64_t)in_place * words, true, p->a, m0 + in_place, rows - in_place, k0, depth);
    const int64_t size = p->out ? sizeof *p->out : sizeof *p->sums;
    const char* c = (p->out ? (const char*)p->out : (const char*)p->sums) + m0 * p->row * size;
    float* kept = (float*)(void*)(packed + MATMUL_PANELS);
    const int64_t strip = p->out && depth < p->K ? div_up(rows, mr) * mr * nr : 0;
    for (int64_t n = n0; n < n1; n += kernel->group * nr) {
        const int panels = (int)min_i64(kernel->group, div_up(n1 - n, nr));
        MatmulWord* b = packed + MATMUL_PANEL_B;
        float start[MATMUL_MAX_GROUP][MATMUL_MAX_NR];
        MatmulStrip s[MATMUL_MAX_GROUP];
        for (int j = 0; j < panels; j++, kept += strip) {
            const int columns = (int)min_i64(nr, n1 - n - j * nr);
            s[j] = matmul_strip(kernel, p, start[j], kept, m0, rows, n + j * nr, columns, k0, depth);
            matmul_pack(kernel, b + j * (int64_t)words * nr, false, p->b, n + j * nr, columns, k0, depth);
        }
        for (int i = 0; i < rows; i += mr) {
            const int64_t across = p->a.across / WORD_NUMBERS;
            const MatmulWord* packed_rows = packed + i * (int64_t)words;
            const MatmulRows packed_a = {packed_rows, kernel->layout == MATMUL_TILES ? 16 : 1, mr, NULL, 0},
                             a_in_place = {memory + i * across, across, 1, NULL, (int)div_up(mr, panels)};
            MatmulRows a = i < in_place ? a_in_place : packed_a;
            for (int j = 0; j < panels; j++) {
                a.next = a.data + (mr + j * a.next_rows) * a.across;
                const int64_t next = j + 1 < panels ? i * p->row + (j + 1) * nr : (i + mr) * p->row;
                matmul_tile(kernel, words, &a, b + j * (int64_t)words * nr, &s[j], i, c + (n + next) * size,
                            p->row * size);
            }
        }
    }
}

// One thread's rectangle, rows [m0, m1) and columns [n0, n1) of C.
static inline void matmul_rectangle(const MatmulKernel* kernel, const MatmulProduct* p, MatmulBlocks blocks,
                                    MatmulWord* packed, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    const bool keeps = p->out && p->K > blocks.kc;
    const int64_t mc = keeps ? min_i64(blocks.mc, MATMUL_KEPT_ROWS / kernel->mr * kernel->mr) : blocks.mc;
    const int64_t nc = keeps ? MATMUL_KEPT / mc / kernel->nr * kernel->nr : max_i64(1, n1 - n0);
    for (int64_t m = m0; m < m1; m += mc) {
        const int rows = (int)min_i64(mc, m1 - m);
        for (int64_t n = n0; n < n1; n += nc) {
            for (int64_t k = 0; k == 0 || k < p->K; k += blocks.kc) {
                const int depth = (int)min_i64(blocks.kc, p->K - k);
                matmul_block(kernel, p, packed, m, rows, n, min_i64(n + nc, n1), k, depth);
            }
        }
    }
}

// A product by a given kernel.
static inline void matmul_with(const MatmulKernel* kernel, const MatmulProduct* p) {
    if (p->M <= 0 || p->N <= 0) return;
    // smaller products take less than waking the threads
    const int threads = (double)p->M * (double)p->N * (double)p->K > 3e5 ? openmp_threads() : 1;
    const bool packs_a = !matmul_reads_in_place(kernel, p->a, (int)p->K);
    const MatmulGrid grid = matmul_grid(kernel, (int)p->M, (int)p->N, threads, packs_a);
    const MatmulBlocks blocks = matmul_blocks(kernel, grid.height, p->K);
    MatmulWord* packed = matmul_reserve((size_t)threads * MATMUL_SLOT);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (int cell = 0; cell < grid.rows * grid.columns; cell++) {
        const int64_t m0 = cell / grid.columns * grid.height, n0 = cell % grid.columns * grid.width;
        if (kernel->begin) kernel->begin();
        matmul_rectangle(kernel, p, blocks, packed + (int64_t)openmp_thread() * MATMUL_SLOT, m0,
                         min_i64(m0 + grid.height, p->M), n0, min_i64(n0 + grid.width, p->N));
        if (kernel->end) kernel->end();
    }
}

// C(M, N) = A(M, K) B(K, N) + bias (N, or NULL for 0). Rows of C are c_row numbers apart. Sizes >= 0; with K = 0, C
// becomes the bias. C must not overlap A or B. May be called from inside a parallel region: then it runs on the calling
// thread alone.
static inline void matmul(floatX* c, int64_t c_row, MatmulOperand a, MatmulOperand b, const floatX* bias, int M, int N,
                          int K) {
    const bool rounds = sizeof(floatX) < sizeof(float);
    const MatmulProduct p = {rounds ? NULL : (float*)(void*)c, rounds ? c : NULL, false, c_row, a, b, bias, M, N, K};
    matmul_with(matmul_best_kernel(), &p);
}

// ----------------------------------------------------------------------------------------------------------------
// Linear layers. x (N, C), w (OC, C), bias (OC) or NULL, out (N, OC); N counts tokens, B*T. Gradients of parameters are
// accumulated, in the order of the tokens.

// out = x w^T + bias
static inline void linear_forward(floatX* out, const floatX* x, const floatX* w, const floatX* bias, int N, int C,
                                  int OC) {
    MatmulOperand a = {x, C, 1}, b = {w, C, 1};
    matmul(out, OC, a, b, bias, N, OC, C);
}

// dx = dout w
static inline void linear_backward_input(floatX* dx, const floatX* dout, const floatX* w, int N, int C, int OC) {
    MatmulOperand a = {dout, OC, 1}, b = {w, 1, C};
    matmul(dx, C, a, b, NULL, N, C, OC);
}

// dw = dout^T x; accumulate: dw += dout^T x
static inline void linear_backward_weight(float* dw, const floatX* dout, const floatX* x, int N, int C, int OC,
                                          bool accumulate) {
    const MatmulProduct p = {dw, NULL, accumulate, C, {dout, 1, OC}, {x, 1, C}, NULL, OC, C, N};
    matmul_with(matmul_best_kernel(), &p);
}

// db += the sum of the rows of dout, in order. Each thread owns columns.
static inline void linear_backward_bias(float* RESTRICT db, const floatX* RESTRICT dout, int N, int OC) {
    enum { COLUMNS = 128 };
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < OC; first += COLUMNS) {
        int64_t end = min_i64(first + COLUMNS, OC);
        for (int64_t n = 0; n < N; n++) {
            for (int64_t o = first; o < end; o++) db[o] += to_float(dout[n * OC + o]);
        }
    }
}
