/*
matmul.h: the float32 matrix product on CPU cores, and the linear layers made of it.

    matmul()                C (+)= A B
    linear_forward()             out = x w^T + bias
    linear_backward_input()      dx  = dout w
    linear_backward_weight()     dw += dout^T x
    linear_backward_bias()       db += the sum of dout over rows
    linear_gelu_forward(), linear_gelu_backward_input(), linear_backward_weight_and_bias(): two steps, fused on a GPU

Theory: nearly all the time of training a GPT goes into these products, and the textbook's three loops reach a few
percent of a core's peak, as it waits for loads: a core can start one or two vector multiply-adds a cycle. The remedy is
Goto's (Goto and van de Geijn 2008, "Anatomy of high-performance matrix multiplication"; Van Zee and van de Geijn 2015,
"BLIS"): at every level of the memory, take a block that fits, and use it many times before it is evicted.

    registers   A micro-kernel holds one tile of C, mr x nr (8 x 48 with AVX-512: 24 vectors), and for every k adds the
                outer product of a column of A and a row of B: mr + nr floats loaded for mr * nr multiply-adds. With 24
                independent sums, the latency of a multiply-add (4 cycles) is hidden.
    L2          A panel of B, nr columns wide and kc deep (147 KB), serves all the tiles below one another in C.
    L3          A block of A, mc x kc (3 MB), serves all the panels of B; each tile reads mr rows of it.
    packing     Both are first copied into the order in which the micro-kernel reads them, so that loads are
                consecutive, whatever the strides of A and B are. This also handles transposes. Packing costs O(MK + KN)
                moves next to O(MNK) multiply-adds.

                 N                                 nr
          +-------------+          K            +------+
          |    | n |    |      +-------+        |      |
        M |    |tile    |  +=  | mr, kc|   x    | kc   |   each thread, for its rectangle of C:
          |    | . |    |      +-------+        |      |      for every m0 (step mc) and k0 (step kc): pack a block of A
          |    | . |    |      |  ...  |        +------+         for every n (step nr): pack a panel of B
          +-------------+      +-------+                            for every tile below one another: the micro-kernel

The bits do not depend on any of this. CONTRACT: every element of C is one chain of fused multiply-adds,

    s = c (accumulate) | bias | 0;  for k = 0 ... K-1: s = fma(a[k], b[k], s)

because the tile is loaded from C before a block of k and stored after it, never summed separately. So blocks, edges,
the number of threads, the instruction set, and a product cut in two along k (a batch cut into micro-batches, dw +=) all
give the same bits. Two exceptions: a machine without fused multiply-add rounds twice (the portable kernel still gives
the same bits for every blocking, thread count and cut); and -DUSE_OPENBLAS hands the products to cblas_sgemm, which
promises nothing.
*/
#ifndef MATMUL_H
#define MATMUL_H

#include "gelu.h"
#if defined(__x86_64__) || defined(__i386__)
#define MATMUL_X86
#include <immintrin.h>
#endif
#ifdef USE_OPENBLAS
#include <cblas.h>
#endif

// ----------------------------------------------------------------------------------------------------------------
// Micro-kernels: one (mr, nr) tile of C, `depth` steps of k, the tile in registers throughout.
//     tile = from; for each k: tile[i][j] = fma(a[k*mr + i], b[k*nr + j], tile[i][j]); c = tile
// `from` is c itself, or the row of start values with from_row = 0. The x86 kernels are compiled whatever -march is,
// and chosen at run time: a binary made on one machine is fast on another.

typedef struct {
    const char* name;
    int mr, nr;
    void (*tile)(int depth, const float* a, const float* b, const float* from, int64_t from_row, float* c,
                 int64_t c_row);
} MatmulKernel;
enum { MATMUL_MAX_MR = 8, MATMUL_MAX_NR = 48 };

// The loops over a tile must unroll completely, as registers cannot be indexed.
#define MATMUL_UNROLL UNROLL(8)

#ifdef MATMUL_X86
// 24 sums, 3 vectors of B and 1 broadcast of A: 28 of the 32 registers.
__attribute__((target("avx512f"))) static inline void matmul_tile_avx512(int depth, const float* a, const float* b,
                                                                         const float* from, int64_t from_row, float* c,
                                                                         int64_t c_row) {
    __m512 tile[8][3];
    MATMUL_UNROLL for (int i = 0; i < 8; i++) {
        MATMUL_UNROLL for (int j = 0; j < 3; j++) tile[i][j] = _mm512_loadu_ps(from + i * from_row + 16 * j);
    }
    for (int k = 0; k < depth; k++, a += 8, b += 48) {
        __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16), b2 = _mm512_loadu_ps(b + 32);
        MATMUL_UNROLL for (int i = 0; i < 8; i++) {
            __m512 ai = _mm512_set1_ps(a[i]);
            tile[i][0] = _mm512_fmadd_ps(ai, b0, tile[i][0]);
            tile[i][1] = _mm512_fmadd_ps(ai, b1, tile[i][1]);
            tile[i][2] = _mm512_fmadd_ps(ai, b2, tile[i][2]);
        }
    }
    MATMUL_UNROLL for (int i = 0; i < 8; i++) {
        MATMUL_UNROLL for (int j = 0; j < 3; j++) _mm512_storeu_ps(c + i * c_row + 16 * j, tile[i][j]);
    }
}

// 12 sums, 2 vectors of B and 1 broadcast of A: 15 of the 16 registers.
__attribute__((target("avx2,fma"))) static inline void matmul_tile_avx2(int depth, const float* a, const float* b,
                                                                        const float* from, int64_t from_row, float* c,
                                                                        int64_t c_row) {
    __m256 tile[6][2];
    MATMUL_UNROLL for (int i = 0; i < 6; i++) {
        MATMUL_UNROLL for (int j = 0; j < 2; j++) tile[i][j] = _mm256_loadu_ps(from + i * from_row + 8 * j);
    }
    for (int k = 0; k < depth; k++, a += 6, b += 16) {
        __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
        MATMUL_UNROLL for (int i = 0; i < 6; i++) {
            __m256 ai = _mm256_set1_ps(a[i]);
            tile[i][0] = _mm256_fmadd_ps(ai, b0, tile[i][0]);
            tile[i][1] = _mm256_fmadd_ps(ai, b1, tile[i][1]);
        }
    }
    MATMUL_UNROLL for (int i = 0; i < 6; i++) {
        MATMUL_UNROLL for (int j = 0; j < 2; j++) _mm256_storeu_ps(c + i * c_row + 8 * j, tile[i][j]);
    }
}
#endif

// Any machine, with the compiler's vectors of 4: 24 sums for the 32 registers of ARM, POWER and RISC-V. The compiler
// makes fused multiply-adds of the products and sums where there are any (-ffp-contract, on in gnu11).
typedef float Float4 __attribute__((vector_size(16)));
static inline void matmul_tile_portable(int depth, const float* a, const float* b, const float* from, int64_t from_row,
                                        float* c, int64_t c_row) {
    Float4 tile[8][3], bk[3];
    MATMUL_UNROLL for (int i = 0; i < 8; i++) {
        MATMUL_UNROLL for (int j = 0; j < 3; j++) memcpy(&tile[i][j], from + i * from_row + 4 * j, sizeof(Float4));
    }
    for (int k = 0; k < depth; k++, a += 8, b += 12) {
        MATMUL_UNROLL for (int j = 0; j < 3; j++) memcpy(&bk[j], b + 4 * j, sizeof(Float4));
        MATMUL_UNROLL for (int i = 0; i < 8; i++) {
            MATMUL_UNROLL for (int j = 0; j < 3; j++) tile[i][j] += a[i] * bk[j];
        }
    }
    MATMUL_UNROLL for (int i = 0; i < 8; i++) {
        MATMUL_UNROLL for (int j = 0; j < 3; j++) memcpy(c + i * c_row + 4 * j, &tile[i][j], sizeof(Float4));
    }
}

// Kernel `index` of MATMUL_KERNELS, best first; NULL where this machine cannot run it. The last runs everywhere.
enum { MATMUL_KERNELS = 3 };
static inline const MatmulKernel* matmul_kernel(int index) {
#ifdef MATMUL_X86
    static const MatmulKernel avx512 = {"avx512", 8, 48, matmul_tile_avx512};
    static const MatmulKernel avx2 = {"avx2", 6, 16, matmul_tile_avx2};
    if (index == 0) return __builtin_cpu_supports("avx512f") ? &avx512 : NULL;
    if (index == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &avx2 : NULL;
#endif
    static const MatmulKernel portable = {"portable", 8, 12, matmul_tile_portable};
    return index == 2 ? &portable : NULL;
}

static inline const MatmulKernel* matmul_best_kernel(void) {
    int index = 0;
    while (!matmul_kernel(index)) index++;
    return matmul_kernel(index);
}

// `rows` x `columns` of a tile: in place where it is whole, through a scratch tile at the edges of C.
static inline void matmul_tile(const MatmulKernel* kernel, int depth, const float* a, const float* b, const float* from,
                               int64_t from_row, float* c, int64_t c_row, int rows, int columns) {
    if (rows == kernel->mr && columns == kernel->nr) {
        kernel->tile(depth, a, b, from, from_row, c, c_row);
        return;
    }
    float scratch[MATMUL_MAX_MR * MATMUL_MAX_NR] = {0};
    size_t bytes = (size_t)columns * sizeof(float);
    for (int i = 0; i < rows; i++) memcpy(scratch + i * kernel->nr, from + i * from_row, bytes);
    kernel->tile(depth, a, b, scratch, kernel->nr, scratch, kernel->nr);
    for (int i = 0; i < rows; i++) memcpy(c + i * c_row, scratch + i * kernel->nr, bytes);
}

// ----------------------------------------------------------------------------------------------------------------
// Packing

static inline int min_int(int a, int b) { return a < b ? a : b; }

// A matrix as vectors along k, whatever its layout: element (i, k) is data[i*across + k*along]. For A, i is
// the row; for B, the column.
typedef struct {
    const float* data;
    int64_t across, along;
} MatmulOperand;

#if defined(__clang__) || __GNUC__ >= 12
#define MATMUL_SHUFFLE(x, y, i, j, k, l) __builtin_shufflevector(x, y, i, j, k, l)
#else
typedef int Int4 __attribute__((vector_size(16)));
#define MATMUL_SHUFFLE(x, y, i, j, k, l) __builtin_shuffle(x, y, __extension__(Int4){i, j, k, l})
#endif

// Transposes 4 x 4 floats: to[k*width + i] = from[i*across + k].
static inline void matmul_transpose4(float* to, int width, const float* from, int64_t across) {
    Float4 x[4];
    for (int i = 0; i < 4; i++) memcpy(&x[i], from + i * across, sizeof x[i]);
    Float4 low01 = MATMUL_SHUFFLE(x[0], x[1], 0, 4, 1, 5), high01 = MATMUL_SHUFFLE(x[0], x[1], 2, 6, 3, 7);
    Float4 low23 = MATMUL_SHUFFLE(x[2], x[3], 0, 4, 1, 5), high23 = MATMUL_SHUFFLE(x[2], x[3], 2, 6, 3, 7);
    x[0] = MATMUL_SHUFFLE(low01, low23, 0, 1, 4, 5);
    x[1] = MATMUL_SHUFFLE(low01, low23, 2, 3, 6, 7);
    x[2] = MATMUL_SHUFFLE(high01, high23, 0, 1, 4, 5);
    x[3] = MATMUL_SHUFFLE(high01, high23, 2, 3, 6, 7);
    for (int k = 0; k < 4; k++) memcpy(to + k * width, &x[k], sizeof x[k]);
}

// One whole panel of vectors that are contiguous along k (along = 1), up to `wide` and `depth`, both multiples of 4. In
// runs of k: the part of the panel being written stays in L1, and the next run of each vector is prefetched.
static inline void matmul_pack_transposed(float* panel, int width, const float* from, int64_t across, int wide,
                                          int depth) {
    enum { RUN = 128, LINE = 16 };
    for (int run = 0; run < depth; run += RUN) {
        int end = min_int(run + RUN, depth);
        for (int i = 0; i < wide; i += 4) {
            for (int k = run; k < end; k += 4) {
                for (int j = 0; k % LINE == 0 && j < 4; j++) __builtin_prefetch(from + (i + j) * across + k + RUN);
                matmul_transpose4(panel + k * width + i, width, from + i * across + k, across);
            }
        }
    }
}

// Whole panels of vectors that are side by side (across = 1), row after row of memory.
static inline void matmul_pack_rows(float* panels, int width, const float* from, int64_t along, int count, int depth) {
    enum { AHEAD = 16, LINE = 16 };
    for (int k = 0; k < depth; k++, from += along, panels += width) {
        for (int i = 0; i < count + LINE - 1; i += LINE) {
            __builtin_prefetch(from + min_int(i, count - 1) + AHEAD * along);
        }
        for (int i = 0; i < count; i += width) {
            float* to = panels + (int64_t)i * depth;
            int j = 0;
            for (; j + 8 <= width; j += 8) memcpy(to + j, from + i + j, 8 * sizeof(float));
            for (; j < width; j++) to[j] = from[i + j];
        }
    }
}

// Packs vectors first ... first + count - 1 of x, k0 ... k0 + depth - 1, as ceil(count / width) panels one after the
// other: panel p holds element (first + p*width + i, k0 + k) at [k*width + i], and zeros beyond count.
static inline void matmul_pack(float* panels, int width, MatmulOperand x, int64_t first, int count, int64_t k0,
                               int depth) {
    if (depth == 0) return;
    const float* data = x.data + first * x.across + k0 * x.along;
    int whole = x.across == 1 ? count / width * width : 0, few = width * (64 / width > 1 ? 64 / width : 1);
    for (int i = 0; i < whole; i += few) { // more panels at a time would conflict in L1, as they are 2^n apart
        matmul_pack_rows(panels + (int64_t)i * depth, width, data + i, x.along, min_int(few, whole - i), depth);
    }
    for (int i = whole; i < count; i += width) {
        float* panel = panels + (int64_t)i * depth;
        const float* from = data + i * x.across;
        int wide = min_int(width, count - i), wide4 = wide / 4 * 4, depth4 = x.along == 1 ? depth / 4 * 4 : 0;
        matmul_pack_transposed(panel, width, from, x.across, wide4, depth4);
        if (wide4 == width && depth4 == depth) continue;
        for (int k = 0; k < depth; k++, panel += width) { // rests of less than 4, and strides other than 1
            int j = k < depth4 ? wide4 : 0;
            for (; j < wide; j++) panel[j] = from[j * x.across + k * x.along];
            for (; j < width; j++) panel[j] = 0;
        }
    }
}

// The packed panels of a product: one block for each calling thread, which grows and is kept, because fresh pages from
// the kernel cost more than packing does. Large pages save the TLB. Each thread of the team has a part of its caller's.
typedef struct {
    float* data;
    size_t count;
} MatmulWorkspace;
static __thread MatmulWorkspace matmul_workspace = {NULL, 0};

static inline float* matmul_reserve(size_t count) {
    MatmulWorkspace* w = &matmul_workspace;
    if (w->count < count) {
        size_t page = (size_t)2 << 20, bytes = round_up(count * sizeof(float), page);
        free(w->data);
        w->data = (float*)aligned_alloc(page, bytes);
        if (!w->data) die("out of memory: %.1f MB for packed matrices", (double)bytes / 1e6);
        madvise(w->data, bytes, MADV_HUGEPAGE); // only a hint: small pages work, too
        w->count = bytes / sizeof(float);
    }
    return w->data;
}

// ----------------------------------------------------------------------------------------------------------------
// The product

static inline int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// C cut into rectangles, one for each thread. A thread computes its rectangle as if it were alone: it packs the rows of
// A and the columns of B that it needs itself, even where a neighbour packs the same ones. Packing together would save
// work, but then threads read lines that another core has just written, overwrite lines that another has just read, and
// wait at barriers: with two cores that costs a tenth of the peak, packing twice a few percent.
typedef struct {
    int rows, columns;     // of the grid; rows * columns <= threads
    int64_t height, width; // of a rectangle, multiples of mr and nr; the last ones are shorter, or empty
} MatmulGrid;

// The grid whose rectangle takes the least time: its multiply-adds, and packing, where moving a float takes as long as
// PACK multiply-adds.
static inline MatmulGrid matmul_grid(const MatmulKernel* kernel, int M, int N, int threads) {
    const double PACK = 16;
    MatmulGrid best = {0, 0, 0, 0};
    double least = INFINITY;
    for (int rows = 1; rows <= threads; rows++) {
        MatmulGrid g = {rows, threads / rows, 0, 0};
        g.height = div_up(div_up(M, g.rows), kernel->mr) * kernel->mr;
        g.width = div_up(div_up(N, g.columns), kernel->nr) * kernel->nr;
        const double cost = (double)g.height * (double)g.width + PACK * (double)(g.height + g.width);
        if (cost < least) {
            least = cost;
            best = g;
        }
    }
    return best;
}

// A strip of C: `rows` x `columns`, the tiles of one panel of B below one another.
static inline void matmul_strip(const MatmulKernel* kernel, int depth, const float* a, const float* b,
                                const float* from, int64_t from_row, float* c, int64_t c_row, int rows, int columns) {
    enum { LINE = 16 };
    for (int i = 0; i < rows; i += kernel->mr) {
        for (int next = i + kernel->mr; next < min_int(i + 2 * kernel->mr, rows); next++) {
            for (int j = 0; j < columns + LINE - 1; j += LINE) {
                __builtin_prefetch(c + next * c_row + min_int(j, columns - 1), 1);
            }
        }
        matmul_tile(kernel, depth, a + (int64_t)i * depth, b, from + i * from_row, from_row, c + i * c_row, c_row,
                    min_int(kernel->mr, rows - i), columns);
    }
}

typedef struct {
    float* c;
    int64_t c_row;
    MatmulOperand a, b;
    const float* bias;
    bool accumulate;
    int64_t M, N, K;
} MatmulProduct;

// `rows` rows of C from m0 on, columns [n0, n1), `depth` steps of k from k0 on: one packed block of A against the
// panels of B, each packed as it is needed.
static inline void matmul_block(const MatmulKernel* kernel, const MatmulProduct* p, const float* packed_a,
                                float* packed_b, int64_t m0, int rows, int64_t n0, int64_t n1, int64_t k0, int depth) {
    static const float zeros[MATMUL_MAX_NR] = {0};
    const bool resume = k0 > 0 || p->accumulate;
    for (int64_t n = n0; n < n1; n += kernel->nr) {
        const int columns = (int)min_i64(kernel->nr, n1 - n);
        float* tiles = p->c + m0 * p->c_row + n;
        const float* from = p->bias ? p->bias + n : zeros;
        if (resume) from = tiles;
        matmul_pack(packed_b, kernel->nr, p->b, n, columns, k0, depth);
        matmul_strip(kernel, depth, packed_a, packed_b, from, resume ? p->c_row : 0, tiles, p->c_row, rows, columns);
    }
}

// How a rectangle of `height` rows is cut: blocks of A of mc rows (a multiple of mr) and kc steps of k. Equal blocks,
// so that none is a small remainder.
typedef struct {
    int64_t mc, kc;
} MatmulBlocks;

// A thread's packed block of A, at most MATMUL_BLOCK floats and a last row of tiles, followed by a panel of B. All in
// floats; a slot is a whole number of large pages.
enum {
    MATMUL_KC = 768,
    MATMUL_BLOCK = 1024 * MATMUL_KC,
    MATMUL_PANEL_B = MATMUL_BLOCK + MATMUL_MAX_MR * MATMUL_KC, // where the panel begins
    MATMUL_SLOT = 1 << 20
};

static inline MatmulBlocks matmul_blocks(const MatmulKernel* kernel, int64_t height, int64_t K) {
    MatmulBlocks b;
    b.kc = max_i64(1, div_up(K, max_i64(1, div_up(K, MATMUL_KC))));
    b.mc = div_up(div_up(height, div_up(height * b.kc, MATMUL_BLOCK)), kernel->mr) * kernel->mr;
    return b;
}

// One thread's rectangle, rows [m0, m1) and columns [n0, n1) of C.
static inline void matmul_rectangle(const MatmulKernel* kernel, const MatmulProduct* p, MatmulBlocks blocks,
                                    float* packed, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    if (n0 >= n1) return;
    for (int64_t m = m0; m < m1; m += blocks.mc) {
        const int rows = (int)min_i64(blocks.mc, m1 - m);
        for (int64_t k = 0; k == 0 || k < p->K; k += blocks.kc) {
            const int depth = (int)min_i64(blocks.kc, p->K - k);
            matmul_pack(packed, kernel->mr, p->a, m, rows, k, depth);
            matmul_block(kernel, p, packed, packed + MATMUL_PANEL_B, m, rows, n0, n1, k, depth);
        }
    }
}

// matmul() by a given kernel.
static inline void matmul_with(const MatmulKernel* kernel, float* c, int64_t c_row, MatmulOperand a, MatmulOperand b,
                               const float* bias, int M, int N, int K, bool accumulate) {
    if (M <= 0 || N <= 0) return;
    const MatmulProduct p = {c, c_row, a, b, bias, accumulate, M, N, K};
    // smaller products take less than waking the threads
    const int threads = (double)M * N * K > 3e5 ? openmp_threads() : 1;
    const MatmulGrid grid = matmul_grid(kernel, M, N, threads);
    const MatmulBlocks blocks = matmul_blocks(kernel, grid.height, K);
    float* packed = matmul_reserve((size_t)grid.rows * (size_t)grid.columns * MATMUL_SLOT);
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
    for (int cell = 0; cell < grid.rows * grid.columns; cell++) {
        const int64_t m0 = cell / grid.columns * grid.height, n0 = cell % grid.columns * grid.width;
        matmul_rectangle(kernel, &p, blocks, packed + (int64_t)cell * MATMUL_SLOT, m0, min_i64(m0 + grid.height, M), n0,
                         min_i64(n0 + grid.width, N));
    }
}

#ifdef USE_OPENBLAS
static inline bool matmul_is_plain(MatmulOperand x, int count, int depth) {
    return (x.along == 1 && x.across >= max_i64(1, depth)) || (x.across == 1 && x.along >= max_i64(1, count));
}

// matmul() by cblas_sgemm; false, without any work, where it cannot express the strides.
static inline bool matmul_openblas(float* c, int64_t c_row, MatmulOperand a, MatmulOperand b, const float* bias, int M,
                                   int N, int K, bool accumulate) {
    if (M <= 0 || N <= 0 || K <= 0 || !matmul_is_plain(a, M, K) || !matmul_is_plain(b, N, K)) return false;
    if (bias && !accumulate) {
        for (int64_t i = 0; i < M; i++) memcpy(c + i * c_row, bias, (size_t)N * sizeof(float));
    }
    bool a_rows = a.along == 1 && a.across >= K, b_rows = b.across == 1 && b.along >= N;
    cblas_sgemm(CblasRowMajor, a_rows ? CblasNoTrans : CblasTrans, b_rows ? CblasNoTrans : CblasTrans, M, N, K, 1.0f,
                a.data, (int)(a_rows ? a.across : a.along), b.data, (int)(b_rows ? b.along : b.across),
                bias || accumulate ? 1.0f : 0.0f, c, (int)c_row);
    return true;
}
#endif

// C(M, N) = A(M, K) B(K, N) + bias (N, or NULL for 0), or, accumulating, C += A B. Rows of C are c_row floats apart.
// Sizes >= 0; with K = 0, C becomes the bias or is unchanged. C must not overlap A or B. May be called from inside a
// parallel region: then it runs on the calling thread alone.
static inline void matmul(float* c, int64_t c_row, MatmulOperand a, MatmulOperand b, const float* bias, int M, int N,
                          int K, bool accumulate) {
#ifdef USE_OPENBLAS
    if (matmul_openblas(c, c_row, a, b, bias, M, N, K, accumulate)) return;
#endif
    matmul_with(matmul_best_kernel(), c, c_row, a, b, bias, M, N, K, accumulate);
}

// ----------------------------------------------------------------------------------------------------------------
#ifdef PRECISION_BF16 // SLOW, for now
static inline float* widen(const floatX* x, int64_t n) {
    float* y = (float*)malloc((size_t)(n ? n : 1) * sizeof(float));
    for (int64_t i = 0; x && i < n; i++) y[i] = to_float(x[i]);
    return y;
}
static inline void narrow(floatX* out, float* x, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = to_floatX(x[i]);
    free(x);
}
static inline void unwiden(float* x) { free(x); }
#else
static inline float* widen(const floatX* x, int64_t n) {
    return x ? (float*)x : (float*)malloc((size_t)(n ? n : 1) * sizeof(float));
}
static inline void narrow(floatX* out, float* x, int64_t n) {
    memcpy(out, x, (size_t)n * sizeof(float));
    free(x);
}
static inline void unwiden(float* x) { (void)x; }
#endif

// Linear layers. x (N, C), w (OC, C), bias (OC) or NULL, out (N, OC); N counts tokens, B*T. Gradients of parameters are
// accumulated, in the order of the tokens.

// out = x w^T + bias
static inline void linear_forward(floatX* out, const floatX* x, const floatX* w, const floatX* bias, int N, int C,
                                  int OC) {
    float *fx = widen(x, (int64_t)N * C), *fw = widen(w, (int64_t)OC * C), *fb = bias ? widen(bias, OC) : NULL,
          *fo = widen(NULL, (int64_t)N * OC);
    MatmulOperand a = {fx, C, 1}, b = {fw, C, 1};
    matmul(fo, OC, a, b, fb, N, OC, C, false);
    narrow(out, fo, (int64_t)N * OC);
    unwiden(fx), unwiden(fw), unwiden(fb);
}

// dx = dout w
static inline void linear_backward_input(floatX* dx, const floatX* dout, const floatX* w, int N, int C, int OC) {
    float *fd = widen(dout, (int64_t)N * OC), *fw = widen(w, (int64_t)OC * C), *fo = widen(NULL, (int64_t)N * C);
    MatmulOperand a = {fd, OC, 1}, b = {fw, 1, C};
    matmul(fo, C, a, b, NULL, N, C, OC, false);
    narrow(dx, fo, (int64_t)N * C);
    unwiden(fd), unwiden(fw);
}

// dw += dout^T x
static inline void linear_backward_weight(float* dw, const floatX* dout, const floatX* x, int N, int C, int OC) {
    float *fd = widen(dout, (int64_t)N * OC), *fx = widen(x, (int64_t)N * C);
    MatmulOperand a = {fd, 1, OC}, b = {fx, 1, C};
    matmul(dw, C, a, b, NULL, OC, C, N, true);
    unwiden(fd), unwiden(fx);
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

// fc = x w^T + bias, act = gelu(fc). x (N, C), w (F, C), bias (F) or NULL, fc and act (N, F).
static inline void linear_gelu_forward(floatX* act, floatX* fc, const floatX* x, const floatX* w, const floatX* bias,
                                       int N, int C, int F) {
    linear_forward(fc, x, w, bias, N, C, F);
    gelu_forward(act, fc, (int64_t)N * F);
}

// dfc = (dout w) gelu'(fc): the layer after a GELU, backwards through both. dout (N, C), w (C, F); fc, dfc (N, F). dact
// (N, F) is scratch for dout w; its contents afterwards are undefined.
static inline void linear_gelu_backward_input(floatX* dfc, floatX* dact, const floatX* dout, const floatX* w,
                                              const floatX* fc, int N, int F, int C) {
    linear_backward_input(dact, dout, w, N, F, C);
    gelu_backward(dfc, dact, fc, (int64_t)N * F);
}

// dw += dout^T x, db += the sum of the rows of dout.
static inline void linear_backward_weight_and_bias(float* dw, float* db, const floatX* dout, const floatX* x, int N,
                                                   int C, int OC) {
    linear_backward_weight(dw, dout, x, N, C, OC);
    linear_backward_bias(db, dout, N, OC);
}

#endif
