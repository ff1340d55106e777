/*
matmul.cuh: the linear layers on a GPU. The products are NVIDIA's cuBLASLt's, bias gradients our own kernels'.
Counterpart of the last section of matmul.h: x, w, bias, out, dout, dx are floatX, gradients of parameters float32.

    linear_forward()                    out = x w^T + bias
    linear_backward_input()             dx  = dout w
    linear_backward_weight()            dw = dout^T x, or dw += dout^T x
    linear_backward_bias()              db += the sum of dout over rows
    linear_gelu_forward()               fc  = x w^T + bias, act = gelu(fc)
    linear_gelu_backward_input()        dfc = (dout w) gelu'(fc)

Rows and columns. cuBLASLt reads matrices column by column: D (m, n) = op(A) (m, k) op(B) (k, n), and the leading
dimension is the distance between columns. Our arrays are row by row, so our x (N, C) is its matrix (C, N) with leading
dimension C, the transpose. We compute the transpose of every result, so no matrix is ever transposed in memory:

                               m    n    k     A   op    B     op    D
    linear_forward             OC   N    C     w   T     x     N     out
    linear_backward_input      C    N    OC    w   N     dout  N     dx
    linear_backward_weight     C    OC   N     x   N     dout  T     dw: float32; adding in place, beta = 1

Epilogues are cuBLASLt's operations on D while it is still in registers. Each saves passes over memory, in numbers of
floatX:

    BIAS             adds a vector of m to every column: our bias
    GELU_AUX_BIAS    D = gelu(D + bias), and D + bias goes to a second matrix, AUX: our fc. Saves reading fc, N F
    DGELU            D = D gelu'(AUX). Saves writing and reading dact, 2 N F

gelu is the tanh form, as in gelu.h. An epilogue is not always faster: in bf16, GELU's are slower than a separate kernel
on Ampere and Ada, and a little faster on Hopper (llm.c, pull requests 338 and 653). BGRADB, which sums dout with the
product that makes dw, was slower than a kernel of our own in all of 36 measurements of GPT-2's shapes on an H100. AUX
needs a leading dimension that is a multiple of 8 and an address that is a multiple of 16: other shapes take two steps.
A bias that is not at a multiple of 16 bytes is copied to one: kernels rely on it, though the heuristic does not check
it.

Choices. When a shape is first seen, cuBLASLt's heuristic proposes up to 32 algorithms, and each is timed: the first is
not always the best. Then the product with an epilogue is timed against two steps. Trials read noise, not the operands:
the trainer's first products are of zeros, which take less power, so a GPU's clock is higher and other algorithms win.
They accumulate on temporary memory, so results are unchanged. Where D is 16 bits, partial sums along k (split-K) have
to be kept in float32. Where a row or an array is not aligned to 16 bytes, BIAS adds to what is already rounded to 16
bits (seen on an H100, CUDA 13.0): one more rounding.

Time. A shape takes at most 96 products: 32 to warm up, 32 timed once, and 2 x 2 of each of the 8 fastest. Before each
the workspace is cleared, by which the host gets ahead of the GPU. GPT-2 124M with 64 x 1024 tokens has 17 products, 28
ms in all at 660 TFLOP/s: 3 s of trials if all algorithms are as fast as the best, 6 s if the others are thrice as slow.

Fallbacks. Where cuBLASLt has no algorithm, a bias is added by a kernel of its own, and the product is one of our own,
on CUDA cores: correct, and slow. Rank 0 says so on stderr, once for each shape.

Reproducibility. One process always makes the same choice for a shape, so it repeats its results bit by bit. Two
processes may choose differently where times are close; results then differ in the last bit. A GELU of an epilogue has
other bits than gelu_forward(), by which activations are computed again (--recompute). Environment variables:

    MATMUL_TIMING=0      no timing: cuBLASLt's first algorithm, no epilogue but BIAS. The same GPU and version
                         of CUDA give the same bits in every run
    MATMUL_EPILOGUE=0    no epilogue but BIAS         MATMUL_EPILOGUE=1    epilogues wherever cuBLASLt has them
    MATMUL_LIST=1        rank 0 prints its choices to stderr, in lines that begin with "matmul: "
    COLLECTIVE_CTAS=16   NCCL's sums of wide groups take 16 multiprocessors at most, and a product that starts while
                         a sum is in flight is planned for the rest: planned for all, its last blocks would wait until
                         the sum ends. Bits then depend on what is in flight, so --canonical ignores it

Float32 builds serve comparisons with the reference: they multiply in float32, not in TF32, and use no epilogue but BIAS
unless MATMUL_EPILOGUE=1, because the exactness of the library's tanh is not documented. Without a GPU (cuda_emulator.h)
the reference's products replace cuBLASLt; -DUSE_CUBLASLT: they do not, and a model of cuBLASLt has to be found (-I).

Sources: cublasLt.h, and "cublasLtMatmul()" in the documentation of cuBLAS, CUDA 13.0.
*/
#pragma once

#include "device.h"

#if defined(CUDA_ON_CPU) && !defined(USE_CUBLASLT)
#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif
namespace reference {
#include "matmul.h"
}
#else
#include <cublasLt.h>
#endif

#include "gelu.cuh"
#include "row_sum.cuh"

// ----------------------------------------------------------------------------------------------------------------
// The sum of rows: the traffic is one read of dout (N, OC). Rows are cut into slices, so that there are enough blocks
// for any GPU; a block adds up the columns of its slice, 8 warps taking rows in turn, with four loads of 16 bytes in
// flight in each thread, and writes one row of partial sums (about 1 % of dout). A second kernel adds these up. The
// cuts depend on the shape alone, so every GPU adds in the same order.

enum { BIAS_WARPS = 8, BIAS_BLOCKS = 1024, BIAS_ROWS = 4 * BIAS_WARPS, BIAS_SUM_WARPS = 16 };

// partial (slices, OC): row blockIdx.y is the sum of rows [blockIdx.y rows, ...) of dout. A lane has W columns.
template <int W>
__global__ static void __launch_bounds__(32 * BIAS_WARPS)
    bias_partial_kernel(float* __restrict__ partial, const floatX* __restrict__ dout, int N, int OC, int rows) {
    __shared__ float sums[BIAS_WARPS][32 * W];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t first = (int64_t)blockIdx.x * (32 * W), column = first + lane * W;
    const int64_t begin = (int64_t)blockIdx.y * rows, end = min(begin + rows, (int64_t)N);
    float sum[W] = {};
    if (column < OC) { // W divides OC
#pragma unroll 4
        for (int64_t n = begin + warp; n < end; n += BIAS_WARPS) {
            const Packed<floatX, W> d = load<W>(dout + n * OC + column);
            for (int i = 0; i < W; i++) sum[i] += (float)d[i];
        }
    }
    for (int i = 0; i < W; i++) sums[warp][lane * W + i] = sum[i];
    __syncthreads();
    for (int c = (int)threadIdx.x; c < 32 * W && first + c < OC; c += 32 * BIAS_WARPS) {
        float total = 0;
        for (int w = 0; w < BIAS_WARPS; w++) total += sums[w][c];
        partial[(int64_t)blockIdx.y * OC + first + c] = total;
    }
}

// db += the sum of the rows of partial (R, OC). A block has 32 columns; its warps take rows in turn.
__global__ static void __launch_bounds__(32 * BIAS_SUM_WARPS)
    bias_sum_kernel(float* __restrict__ db, const float* __restrict__ partial, int R, int OC) {
    __shared__ float sums[BIAS_SUM_WARPS][32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t column = (int64_t)blockIdx.x * 32 + lane;
    float sum = 0;
    if (column < OC) {
#pragma unroll 4
        for (int r = warp; r < R; r += BIAS_SUM_WARPS) sum += partial[(int64_t)r * OC + column];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= OC) return;
    float total = 0;
    for (int w = 0; w < BIAS_SUM_WARPS; w++) total += sums[w][lane];
    db[column] += total;
}

// db (OC) += the sum of the rows of dout (N, OC).
static inline void linear_backward_bias(float* db, const floatX* dout, int N, int OC) {
    if (N == 0) return;
    const bool packed = can_pack(dout, OC);
    const int columns = packed ? 32 * widest<floatX> : 32, wide = blocks_for(OC, columns);
    const int wanted = (int)max_i64(1, min_i64(BIAS_BLOCKS / wide, blocks_for(N, BIAS_ROWS)));
    const int rows = blocks_for(N, wanted), slices = blocks_for(N, rows);
    float* partial = (float*)device_scratch((size_t)slices * (size_t)OC * sizeof(float));
    const Launch shape = launch_shape(dim3((unsigned)wide, (unsigned)slices), 32 * BIAS_WARPS);
    if (packed)
        launch(shape, bias_partial_kernel<widest<floatX>>, partial, dout, N, OC, rows);
    else
        launch(shape, bias_partial_kernel<1>, partial, dout, N, OC, rows);
    launch(launch_shape(blocks_for(OC, 32), 32 * BIAS_SUM_WARPS), bias_sum_kernel, db, partial, slices, OC);
}

#if defined(CUDA_ON_CPU) && !defined(USE_CUBLASLT)
// ---- Without a GPU: one CUDA thread calls the reference, of bf16. ---------

static inline reference::floatX* matmul_numbers(const floatX* x, int64_t n) {
    reference::floatX* y = (reference::floatX*)checked_malloc((size_t)n * sizeof *y, "a product");
    if (!x) return y;
    for (int64_t i = 0; i < n; i++) y[i] = reference::to_floatX((float)x[i]);
    return y;
}

static inline void matmul_round(floatX* out, reference::floatX* y, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = (floatX)reference::to_float(y[i]);
    free(y);
}

__global__ static void linear_forward_kernel(floatX* out, const floatX* x, const floatX* w, const floatX* bias, int N,
                                             int C, int OC) {
    const int64_t NC = (int64_t)N * C, CO = (int64_t)C * OC, NO = (int64_t)N * OC;
    reference::floatX *fx = matmul_numbers(x, NC), *fw = matmul_numbers(w, CO), *fb = matmul_numbers(bias, OC);
    reference::floatX* result = matmul_numbers(NULL, NO);
    reference::linear_forward(result, fx, fw, bias ? fb : NULL, N, C, OC);
    matmul_round(out, result, NO);
    free(fx), free(fw), free(fb);
}

__global__ static void linear_backward_input_kernel(floatX* dx, const floatX* dout, const floatX* w, int N, int C,
                                                    int OC) {
    const int64_t NC = (int64_t)N * C, CO = (int64_t)C * OC, NO = (int64_t)N * OC;
    reference::floatX *fd = matmul_numbers(dout, NO), *fw = matmul_numbers(w, CO), *result = matmul_numbers(NULL, NC);
    reference::linear_backward_input(result, fd, fw, N, C, OC);
    matmul_round(dx, result, NC);
    free(fd), free(fw);
}

__global__ static void linear_backward_weight_kernel(float* dw, const floatX* dout, const floatX* x, int N, int C,
                                                     int OC, bool accumulate) {
    reference::floatX *fd = matmul_numbers(dout, (int64_t)N * OC), *fx = matmul_numbers(x, (int64_t)N * C);
    reference::linear_backward_weight(dw, fd, fx, N, C, OC, accumulate);
    free(fd), free(fx);
}

static inline void linear_forward(floatX* out, const floatX* x, const floatX* w, const floatX* bias, int N, int C,
                                  int OC) {
    if (N > 0) launch(launch_shape(1, 1), linear_forward_kernel, out, x, w, bias, N, C, OC);
}

static inline void linear_backward_input(floatX* dx, const floatX* dout, const floatX* w, int N, int C, int OC) {
    if (N > 0) launch(launch_shape(1, 1), linear_backward_input_kernel, dx, dout, w, N, C, OC);
}

static inline void linear_backward_weight(float* dw, const floatX* dout, const floatX* x, int N, int C, int OC,
                                          bool accumulate) {
    if (N > 0) launch(launch_shape(1, 1), linear_backward_weight_kernel, dw, dout, x, N, C, OC, accumulate);
}

static inline void linear_gelu_forward(floatX* act, floatX* fc, const floatX* x, const floatX* w, const floatX* bias,
                                       int N, int C, int F) {
    linear_forward(fc, x, w, bias, N, C, F);
    gelu_forward(act, fc, N, F);
}

static inline void linear_gelu_backward_input(floatX* dfc, floatX* dact, const floatX* dout, const floatX* w,
                                              const floatX* fc, int N, int F, int C) {
    linear_backward_input(dact, dout, w, N, F, C);
    gelu_backward(dfc, dact, fc, N, F);
}

#else
// ---- Products by cuBLASLt: descriptions and plans ---------------------------------------------------------------

#if defined(PRECISION_FP32)
static const cudaDataType MATMUL_TYPE = CUDA_R_32F;
#else
static const cudaDataType MATMUL_TYPE = CUDA_R_16BF;
#endif

enum {
    MATMUL_SPARE = 512 << 20,    // bytes of memory that trials leave
    MATMUL_WORKSPACE = 32 << 20, // bytes, as NVIDIA advises for Hopper; for older GPUs 4 MB are enough
    MATMUL_ALGORITHMS = 32,      // that are timed
    MATMUL_FINALISTS = 8,        // that are timed more than once
    MATMUL_ROUNDS = 4,           // trials: the first warms up, the second chooses the finalists
    MATMUL_RUNS = 2              // that are timed together, of a finalist
};

// Of D (m, n) = op(A) op(B). All members are ints, as it is compared byte by byte.
typedef struct {
    int m, n, k;
    int transpose_a, transpose_b;  // op
    int float_d;                   // D is float32, else floatX
    int epilogue;                  // cublasLtEpilogue_t
    int align_a, align_b, align_d; // alignment of the addresses, up to 16 bytes: more does not help
    int leaves;                    // multiprocessors that it leaves to sums between ranks
} MatmulShape;

typedef struct {
    const char* name; // for messages
    MatmulShape shape;
    bool accumulate;       // D += op(A) op(B), by the same plan
    const void *a, *b, *c; // c: the matrix to accumulate on
    void* d;
    const void *bias, *aux; // the epilogue's; GELU_AUX writes to aux
} MatmulProduct;

enum { WAY_FUSED, WAY_SEPARATE, WAY_UNKNOWN };

// The chosen algorithms for products of one shape. Made when the shape is first seen, and kept.
typedef struct MatmulPlan {
    MatmulShape shape;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    int algorithms; // that cuBLASLt has proposed; 0: it cannot do this product
    cublasLtMatmulAlgo_t algorithm;
    int way; // for a product with an epilogue: whether it is faster than two steps
    struct MatmulPlan* next;
} MatmulPlan;

static struct {
    cublasLtHandle_t handle; // NULL until the first product
    void* workspace;
    cudaEvent_t begin, end;
    MatmulPlan* plans;
    int timing, epilogue, list; // MATMUL_TIMING, _EPILOGUE (2: by time), _LIST
} matmul_state;

static inline int matmul_setting(const char* name, int otherwise) {
    const char* s = getenv(name);
    if (!s || !*s) return otherwise;
    if (strcmp(s, "0") != 0 && strcmp(s, "1") != 0) die("the environment variable %s is %s; it can be 0 or 1", name, s);
    return *s - '0';
}

static inline const char* matmul_epilogue_name(int epilogue) {
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_BIAS: return "BIAS";
    case CUBLASLT_EPILOGUE_GELU_AUX: return "GELU_AUX";
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: return "GELU_AUX_BIAS";
    case CUBLASLT_EPILOGUE_DGELU: return "DGELU";
    default: return "none";
    }
}

// As "linear_forward: 8192 x 2304, sums of 768, bf16, epilogue BIAS, aligned to 16, 16, 16 bytes".
typedef struct {
    char text[192];
} MatmulName;
static inline MatmulName matmul_name(const MatmulProduct* p) {
    MatmulName name;
    const MatmulShape* s = &p->shape;
    snprintf(name.text, sizeof name.text, "%s: %d x %d, sums of %d, %s%s, epilogue %s, aligned to %d, %d, %d bytes%s",
             p->name, s->n, s->m, s->k, FLOATX_NAME, s->float_d ? " to float32" : "", matmul_epilogue_name(s->epilogue),
             s->align_a, s->align_b, s->align_d, s->leaves ? ", beside a sum" : "");
    return name;
}

static inline void matmul_check(cublasStatus_t status, const char* call, const MatmulProduct* p) {
    if (status != CUBLAS_STATUS_SUCCESS)
        die("cuBLASLt: %s failed: %s (%s)", call, cublasLtGetStatusString(status), matmul_name(p).text);
}

static inline void matmul_open(const MatmulProduct* p) {
    if (matmul_state.handle) return;
    matmul_check(cublasLtCreate(&matmul_state.handle), "cublasLtCreate", p);
    const cudaError_t e = cudaMalloc(&matmul_state.workspace, MATMUL_WORKSPACE);
    if (e == cudaErrorMemoryAllocation)
        die("out of GPU memory: %.1f MB for matrix products; use a smaller --micro-batch or model",
            MATMUL_WORKSPACE / 1e6);
    cuda_check(e, "cudaMalloc");
    cuda_check(cudaEventCreate(&matmul_state.begin), "cudaEventCreate");
    cuda_check(cudaEventCreate(&matmul_state.end), "cudaEventCreate");
    matmul_state.timing = matmul_setting("MATMUL_TIMING", 1);
    const bool by_time = matmul_state.timing && MATMUL_TYPE != CUDA_R_32F;
    matmul_state.epilogue = matmul_setting("MATMUL_EPILOGUE", by_time ? 2 : 0);
    matmul_state.list = matmul_setting("MATMUL_LIST", 0) && process.rank <= 0;
}

static inline int matmul_alignment(const void* p) {
    int bytes = 16;
    while ((uintptr_t)p % (uintptr_t)bytes) bytes /= 2;
    return bytes;
}

// D (m, n) = op(A) (m, k) op(B) (k, n).
static inline MatmulProduct matmul_product(const char* name, int m, int n, int k, const floatX* a, bool transpose_a,
                                           const floatX* b, bool transpose_b, void* d) {
    MatmulProduct p = {};
    p.name = name;
    p.shape.m = m;
    p.shape.n = n;
    p.shape.k = k;
    p.shape.transpose_a = transpose_a;
    p.shape.transpose_b = transpose_b;
    p.shape.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    p.shape.align_a = matmul_alignment(a);
    p.shape.align_b = matmul_alignment(b);
    p.shape.align_d = matmul_alignment(d);
    p.shape.leaves = *collectives_in_flight() > 0 ? collective_ctas() : 0;
    p.a = a;
    p.b = b;
    p.c = d;
    p.d = d;
    return p;
}

// ----------------------------------------------------------------------------------------------------------------
// What cuBLASLt has no algorithm for: a product on CUDA cores. A block makes 64 x 64 numbers of D, a thread 4 x 4 of
// them, 16 apart. Every sum is in the order of k, so it repeats its bits.

enum { TILE = 64, TILE_DEPTH = 16, TILE_SIDE = 16, TILE_THREADS = TILE_SIDE * TILE_SIDE, TILE_EACH = TILE / TILE_SIDE };

// tile[l][i] = op(X) at line + i, along k at depth + l; 0 outside. A line is a row of op(A) or a column of op(B);
// k_is_first: numbers along k are neighbours in memory, else lines are. Neighbours are read by neighbouring threads.
__device__ static void matmul_load_tile(float tile[TILE_DEPTH][TILE + 1], const floatX* x, int64_t line, int64_t lines,
                                        int64_t depth, int64_t depths, bool k_is_first) {
    for (int t = (int)threadIdx.x; t < TILE * TILE_DEPTH; t += TILE_THREADS) {
        const int i = k_is_first ? t / TILE_DEPTH : t % TILE, l = k_is_first ? t % TILE_DEPTH : t / TILE;
        const int64_t at = k_is_first ? (line + i) * depths + depth + l : (depth + l) * lines + line + i;
        tile[l][i] = line + i < lines && depth + l < depths ? (float)x[at] : 0.0f;
    }
}

// D (m, n) = op(A) op(B), or D += op(A) op(B).
template <class D>
__global__ static void __launch_bounds__(TILE_THREADS)
    matmul_tiled_kernel(D* d, const floatX* __restrict__ a, const floatX* __restrict__ b, MatmulShape s,
                        bool accumulate) {
    __shared__ float a_tile[TILE_DEPTH][TILE + 1], b_tile[TILE_DEPTH][TILE + 1];
    const int x = (int)threadIdx.x % TILE_SIDE, y = (int)threadIdx.x / TILE_SIDE;
    const int64_t first_i = (int64_t)blockIdx.y * TILE, first_j = (int64_t)blockIdx.x * TILE;
    float sums[TILE_EACH][TILE_EACH] = {};
    for (int depth = 0; depth < s.k; depth += TILE_DEPTH) {
        matmul_load_tile(a_tile, a, first_i, s.m, depth, s.k, s.transpose_a);
        matmul_load_tile(b_tile, b, first_j, s.n, depth, s.k, !s.transpose_b);
        __syncthreads(); // the tiles are here
        for (int l = 0; l < TILE_DEPTH; l++) {
#pragma unroll
            for (int r = 0; r < TILE_EACH; r++)
                for (int c = 0; c < TILE_EACH; c++)
                    sums[r][c] += a_tile[l][x + r * TILE_SIDE] * b_tile[l][y + c * TILE_SIDE];
        }
        __syncthreads(); // before the next turn overwrites them
    }
#pragma unroll
    for (int r = 0; r < TILE_EACH; r++) {
        for (int c = 0; c < TILE_EACH; c++) {
            const int64_t i = first_i + x + r * TILE_SIDE, j = first_j + y + c * TILE_SIDE;
            if (i < s.m && j < s.n) d[j * s.m + i] = (D)(sums[r][c] + (accumulate ? (float)d[j * s.m + i] : 0.0f));
        }
    }
}

// Without the epilogue; accumulates in place.
static inline void matmul_tiled(const MatmulProduct* p) {
    const dim3 grid((unsigned)blocks_for(p->shape.n, TILE), (unsigned)blocks_for(p->shape.m, TILE));
    const Launch shape = launch_shape(grid, TILE_THREADS);
    const floatX *a = (const floatX*)p->a, *b = (const floatX*)p->b;
    if (p->shape.float_d)
        launch(shape, matmul_tiled_kernel<float>, (float*)p->d, a, b, p->shape, p->accumulate);
    else
        launch(shape, matmul_tiled_kernel<floatX>, (floatX*)p->d, a, b, p->shape, p->accumulate);
}

// out (N, OC) += bias, for each row.
__global__ static void bias_add_kernel(floatX* out, const floatX* __restrict__ bias, int64_t n, int OC) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (floatX)((float)out[i] + (float)bias[i % OC]);
}

// ---- Plans ------------------------------------------------------------------------------------------------------

static inline void matmul_set(MatmulPlan* plan, cublasLtMatmulDescAttributes_t attribute, const void* value,
                              size_t bytes, const MatmulProduct* p) {
    matmul_check(cublasLtMatmulDescSetAttribute(plan->operation, attribute, value, bytes),
                 "cublasLtMatmulDescSetAttribute", p);
}

static inline void matmul_set_pointers(MatmulPlan* plan, const MatmulProduct* p) {
    if (p->bias) matmul_set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias, p);
    if (p->aux) matmul_set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p->aux, sizeof p->aux, p);
}

static inline void matmul_describe(MatmulPlan* plan, const MatmulProduct* p) {
    const MatmulShape* s = &p->shape;
    const cudaDataType d_type = s->float_d ? CUDA_R_32F : MATMUL_TYPE;
    const int32_t op_a = s->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = s->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint32_t epilogue = (uint32_t)s->epilogue;
    const int64_t aux_ld = s->m;
    const int32_t target = (int32_t)max_i64(1, gpu_properties()->multiProcessorCount - s->leaves);
    // Rows and columns as in memory, before op; columns follow one another without a gap.
    const int a_rows = s->transpose_a ? s->k : s->m, a_columns = s->transpose_a ? s->m : s->k;
    const int b_rows = s->transpose_b ? s->n : s->k, b_columns = s->transpose_b ? s->k : s->n;
    matmul_check(cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate",
                 p);
    matmul_set(plan, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a, p);
    matmul_set(plan, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b, p);
    matmul_set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, p);
    if (p->aux) matmul_set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, sizeof aux_ld, p);
    if (s->leaves) matmul_set(plan, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &target, sizeof target, p);
    // The heuristic takes alignment from the pointer: it gets one that is a multiple of 16 but not of 32.
    MatmulProduct example = *p;
    if (p->bias) example.bias = (const char*)matmul_state.workspace + 16;
    if (p->aux) example.aux = (const char*)matmul_state.workspace + 16;
    matmul_set_pointers(plan, &example);
    matmul_check(cublasLtMatrixLayoutCreate(&plan->a, MATMUL_TYPE, (uint64_t)a_rows, (uint64_t)a_columns, a_rows),
                 "cublasLtMatrixLayoutCreate", p);
    matmul_check(cublasLtMatrixLayoutCreate(&plan->b, MATMUL_TYPE, (uint64_t)b_rows, (uint64_t)b_columns, b_rows),
                 "cublasLtMatrixLayoutCreate", p);
    matmul_check(cublasLtMatrixLayoutCreate(&plan->d, d_type, (uint64_t)s->m, (uint64_t)s->n, s->m),
                 "cublasLtMatrixLayoutCreate", p);
}

// The algorithms that cuBLASLt proposes, in the order of its estimates.
static inline int matmul_ask(const MatmulPlan* plan, const MatmulProduct* p,
                             cublasLtMatmulAlgo_t algorithms[MATMUL_ALGORITHMS]) {
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found[MATMUL_ALGORITHMS];
    const uint64_t workspace = MATMUL_WORKSPACE;
    // Partial sums along k in float32; a mask of schemes besides none at all.
    const bool d_is_float = p->shape.float_d || MATMUL_TYPE == CUDA_R_32F;
    const uint32_t reduction = d_is_float ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t value;
    } wishes[] = {{CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)p->shape.align_a},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)p->shape.align_b},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)p->shape.align_d},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)p->shape.align_d}};
    matmul_check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate", p);
    matmul_check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                      sizeof workspace),
                 "cublasLtMatmulPreferenceSetAttribute", p);
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        matmul_check(cublasLtMatmulPreferenceSetAttribute(preference, wishes[i].attribute, &wishes[i].value,
                                                          sizeof wishes[i].value),
                     "cublasLtMatmulPreferenceSetAttribute", p);
    }
    int count = 0, usable = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(matmul_state.handle, plan->operation, plan->a, plan->b, plan->d, plan->d,
                                       preference, MATMUL_ALGORITHMS, found, &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED)
        count = 0;
    else
        matmul_check(status, "cublasLtMatmulAlgoGetHeuristic", p);
    for (int i = 0; i < count; i++) {
        if (found[i].state == CUBLAS_STATUS_SUCCESS) algorithms[usable++] = found[i].algo;
    }
    matmul_check(cublasLtMatmulPreferenceDestroy(preference), "cublasLtMatmulPreferenceDestroy", p);
    return usable;
}

static inline cublasStatus_t matmul_run(MatmulPlan* plan, const MatmulProduct* p, const cublasLtMatmulAlgo_t* algo) {
    const float alpha = 1, beta = p->accumulate ? 1 : 0;
    matmul_set_pointers(plan, p);
    return cublasLtMatmul(matmul_state.handle, plan->operation, &alpha, p->a, plan->a, p->b, plan->b, &beta, p->c,
                          plan->d, p->d, plan->d, algo, matmul_state.workspace, MATMUL_WORKSPACE, 0);
}

// Whether fewer than MATMUL_FINALISTS ways are faster than way i.
static inline bool matmul_is_finalist(const float milliseconds[], int count, int i) {
    int faster = 0;
    for (int k = 0; k < count; k++) faster += milliseconds[k] < milliseconds[i];
    return faster < MATMUL_FINALISTS;
}

// The fastest of `count` ways to the same result: run(i) starts the work, and returns false if it cannot. Ways take
// turns, so that a changing clock affects all; the shortest time counts, infinite for a way that failed.
template <class Run>
static int matmul_fastest(int count, float milliseconds[], Run run) {
    int best = 0;
    for (int i = 0; i < count; i++) milliseconds[i] = INFINITY;
    for (int round = 0; round < MATMUL_ROUNDS; round++) {
        const int runs = round < 2 ? 1 : MATMUL_RUNS;
        for (int i = 0; i < count; i++) {
            float t = 0;
            bool ok = true;
            if (round > 1 && !matmul_is_finalist(milliseconds, count, i)) continue;
            cuda_check(cudaMemsetAsync(matmul_state.workspace, 0, MATMUL_WORKSPACE, 0), "cudaMemsetAsync");
            cuda_check(cudaEventRecord(matmul_state.begin, 0), "cudaEventRecord");
            for (int r = 0; ok && r < runs; r++) ok = run(i);
            cuda_check(cudaEventRecord(matmul_state.end, 0), "cudaEventRecord");
            cuda_check(cudaEventSynchronize(matmul_state.end), "cudaEventSynchronize");
            cuda_check(cudaEventElapsedTime(&t, matmul_state.begin, matmul_state.end), "cudaEventElapsedTime");
            if (ok && round > 0 && t / (float)runs < milliseconds[i]) milliseconds[i] = t / (float)runs;
        }
    }
    for (int i = 1; i < count; i++) best = milliseconds[i] < milliseconds[best] ? i : best;
    return best;
}

// Noise, uniform in (-1, 1): a hash of the index (MurmurHash3's finalizer), the same in every run.
__global__ static void matmul_noise_kernel(floatX* out, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t h = (uint32_t)i;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    h ^= h >> 16;
    if (i < n) out[i] = (floatX)((float)(int32_t)h * 0x1p-31f);
}

// A product that is timed: it reads noise, or, where memory for noise is short, its real operands.
typedef struct {
    MatmulProduct product;
    void* blocks[4]; // that are borrowed
    int count;
    bool is_noise;    // all operands are
    bool is_possible; // else it would change the matrix that it accumulates on
} MatmulTrial;

// Borrowed memory with noise, to stand in for `real` at an address of the same alignment; `real` itself if there is no
// memory to spare. In the order of the stream, as device_scratch() does: shapes may first be seen while messages are in
// flight. Two numbers of 16 bits, read as a float32, are a finite one.
static inline void* matmul_stand_in(MatmulTrial* trial, const void* real, size_t bytes) {
    void* block = NULL;
    const int64_t n = (int64_t)((bytes + 16) / sizeof(floatX));
    size_t spare = 0, total = 0; // cuBLASLt's kernels and device_scratch() need some, too
    cuda_check(cudaMemGetInfo(&spare, &total), "the size of the GPU's memory");
    if (spare < bytes + MATMUL_SPARE || cudaMallocAsync(&block, bytes + 16, 0) != cudaSuccess) {
        (void)cudaGetLastError(); // clears the error, which is harmless
        trial->is_noise = false;
        return (void*)real;
    }
    trial->blocks[trial->count++] = block;
    launch(launch_shape(blocks_for(n, 256), 256), matmul_noise_kernel, (floatX*)block, n);
    return (char*)block + (uintptr_t)real % 16;
}

static inline MatmulTrial matmul_trial_begin(const MatmulProduct* p) {
    const size_t m = (size_t)p->shape.m, n = (size_t)p->shape.n, k = (size_t)p->shape.k;
    MatmulTrial trial = {*p, {NULL, NULL, NULL, NULL}, 0, true, true};
    MatmulProduct* t = &trial.product;
    if (p->shape.float_d) {
        t->c = t->d = matmul_stand_in(&trial, p->d, m * n * sizeof(float));
        trial.is_possible = t->d != p->d;
    }
    t->a = matmul_stand_in(&trial, p->a, m * k * sizeof(floatX));
    t->b = matmul_stand_in(&trial, p->b, k * n * sizeof(floatX));
    if (p->shape.epilogue == CUBLASLT_EPILOGUE_DGELU) t->aux = matmul_stand_in(&trial, p->aux, m * n * sizeof(floatX));
    return trial;
}

// Returns the memory to the device, which happens when it is waited for, before a smaller block can settle in it.
static inline void matmul_trial_end(const MatmulTrial* trial) {
    for (int i = 0; i < trial->count; i++) cuda_check(cudaFreeAsync(trial->blocks[i], 0), "cudaFreeAsync");
    cuda_check(cudaStreamSynchronize(0), "cudaStreamSynchronize");
}

// Chooses the plan's algorithm. If each of them fails there is none; without memory for trials it is the first.
static inline void matmul_tune(MatmulPlan* plan, const MatmulProduct* p,
                               const cublasLtMatmulAlgo_t algorithms[MATMUL_ALGORITHMS]) {
    float ms[MATMUL_ALGORITHMS];
    plan->algorithm = algorithms[0];
    if (plan->algorithms == 0 || !matmul_state.timing) return;
    const int count = plan->algorithms;
    const MatmulTrial trial = matmul_trial_begin(p);
    if (trial.is_possible) {
        const int best = matmul_fastest(count, ms, [&](int i) {
            return matmul_run(plan, &trial.product, &algorithms[i]) == CUBLAS_STATUS_SUCCESS;
        });
        plan->algorithm = algorithms[best];
        if (ms[best] == INFINITY) plan->algorithms = 0;
        if (matmul_state.list)
            fprintf(stderr, "matmul: %s: algorithm %d of %d, %.4f ms (the first %.4f), %.1f TFLOP/s%s\n",
                    matmul_name(p).text, best + 1, count, ms[best], ms[0],
                    2e-9 * p->shape.m * p->shape.n * p->shape.k / ms[best], trial.is_noise ? "" : ", on real operands");
    } else if (matmul_state.list) {
        fprintf(stderr, "matmul: %s: no memory for trials, the first of %d algorithms\n", matmul_name(p).text, count);
    }
    matmul_trial_end(&trial);
}

// The plan for a product. A list is enough, as a model has some 40 shapes.
static inline MatmulPlan* matmul_plan(const MatmulProduct* p) {
    matmul_open(p);
    MatmulPlan** end = &matmul_state.plans;
    for (; *end; end = &(*end)->next) {
        if (memcmp(&(*end)->shape, &p->shape, sizeof p->shape) == 0) return *end;
    }
    cublasLtMatmulAlgo_t algorithms[MATMUL_ALGORITHMS];
    MatmulPlan* plan = *end = (MatmulPlan*)checked_calloc(1, sizeof *plan, "the plan of a product");
    plan->shape = p->shape;
    plan->way = WAY_UNKNOWN;
    matmul_describe(plan, p);
    plan->algorithms = matmul_ask(plan, p, algorithms);
    matmul_tune(plan, p, algorithms);
    if (plan->algorithms == 0 && process.rank <= 0)
        fprintf(stderr, "matmul: %s: cuBLASLt has no algorithm that runs; %s\n", matmul_name(p).text,
                p->shape.epilogue == CUBLASLT_EPILOGUE_DEFAULT ? "our own product is used, which is slow"
                                                               : "a kernel of its own does what the epilogue would");
    return plan;
}

// A product with its epilogue: without one, BIAS, or what matmul_way() has found to be faster than two steps.
static inline void matmul_do(const MatmulProduct* p) {
    MatmulPlan* plan = matmul_plan(p);
    const int64_t n = (int64_t)p->shape.n * p->shape.m;
    if (plan->algorithms > 0) return matmul_check(matmul_run(plan, p, &plan->algorithm), "cublasLtMatmul", p);
    if (p->shape.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return matmul_tiled(p);
    MatmulProduct plain = *p; // of linear_forward()
    plain.shape.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    plain.bias = NULL;
    matmul_do(&plain);
    launch(launch_shape(blocks_for(n, 256), 256), bias_add_kernel, (floatX*)p->d, (const floatX*)p->bias, n,
           p->shape.m);
}

// Whether the product p, with its epilogue, is faster than two steps, measured when the shape is first seen:
// run(way, q) does the work one way or the other with the operands of q, which is p or a trial.
template <class Run>
static int matmul_way(const MatmulProduct* p, Run run) {
    matmul_open(p);
    if (matmul_state.epilogue == 0) return WAY_SEPARATE;
    MatmulPlan* plan = matmul_plan(p);
    if (plan->way != WAY_UNKNOWN) return plan->way;
    plan->way = plan->algorithms > 0 ? WAY_FUSED : WAY_SEPARATE;
    if (plan->way == WAY_SEPARATE || matmul_state.epilogue == 1) return plan->way;
    const MatmulTrial trial = matmul_trial_begin(p);
    float ms[2];
    plan->way = matmul_fastest(2, ms, [&](int way) {
        run(way, trial.product);
        return true;
    });
    if (matmul_state.list)
        fprintf(stderr, "matmul: %s: fused %.4f ms, separate %.4f ms\n", matmul_name(p).text, ms[WAY_FUSED],
                ms[WAY_SEPARATE]);
    matmul_trial_end(&trial);
    return plan->way;
}

// ---- Linear layers. x (N, C), w (OC, C), bias (OC) or NULL, out (N, OC). ----------------------------------------

// The bias, or a copy of it, at an address that is a multiple of 16.
static inline const floatX* matmul_aligned(const floatX* bias, int n) {
    if ((uintptr_t)bias % 16 == 0) return bias;
    void* copy = device_scratch((size_t)n * sizeof(floatX));
    cuda_check(cudaMemcpyAsync(copy, bias, (size_t)n * sizeof(floatX), cudaMemcpyDeviceToDevice, 0),
               "a copy of a bias");
    return (const floatX*)copy;
}

static inline void linear_forward(floatX* out, const floatX* x, const floatX* w, const floatX* bias, int N, int C,
                                  int OC) {
    if (N == 0) return;
    MatmulProduct p = matmul_product("linear_forward", OC, N, C, w, true, x, false, out);
    p.bias = matmul_aligned(bias, OC);
    if (bias) p.shape.epilogue = CUBLASLT_EPILOGUE_BIAS;
    matmul_do(&p);
}

static inline void linear_backward_input(floatX* dx, const floatX* dout, const floatX* w, int N, int C, int OC) {
    if (N == 0) return;
    const MatmulProduct p = matmul_product("linear_backward_input", C, N, OC, w, false, dout, false, dx);
    matmul_do(&p);
}

static inline void linear_backward_weight(float* dw, const floatX* dout, const floatX* x, int N, int C, int OC,
                                          bool accumulate) {
    if (N == 0) return;
    MatmulProduct p = matmul_product("linear_backward_weight", C, OC, N, x, false, dout, true, dw);
    p.shape.float_d = 1;
    p.accumulate = accumulate;
    matmul_do(&p);
}

// Whether a matrix of rows of F numbers can be AUX.
static inline bool matmul_can_be_aux(const floatX* fc, int F) { return F % 8 == 0 && (uintptr_t)fc % 16 == 0; }

// fc = x w^T + bias, act = gelu(fc). w (F, C); fc, act (N, F). No two of the arrays overlap.
static inline void linear_gelu_forward(floatX* act, floatX* fc, const floatX* x, const floatX* w, const floatX* bias,
                                       int N, int C, int F) {
    if (N == 0) return;
    MatmulProduct fused = matmul_product("linear_gelu_forward", F, N, C, w, true, x, false, act);
    fused.shape.epilogue = bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    fused.bias = matmul_aligned(bias, F);
    fused.aux = fc;
    const auto run = [&](int way, const MatmulProduct& q) {
        if (way == WAY_FUSED) return matmul_do(&q);
        linear_forward(fc, (const floatX*)q.b, (const floatX*)q.a, bias, N, C, F);
        gelu_forward(act, fc, N, F);
    };
    run(matmul_can_be_aux(fc, F) ? matmul_way(&fused, run) : (int)WAY_SEPARATE, fused);
}

// dfc = (dout w) gelu'(fc). dout (N, C), w (C, F); fc, dfc (N, F); dact (N, F) may be used for dout w. No two overlap.
static inline void linear_gelu_backward_input(floatX* dfc, floatX* dact, const floatX* dout, const floatX* w,
                                              const floatX* fc, int N, int F, int C) {
    if (N == 0) return;
    MatmulProduct fused = matmul_product("linear_gelu_backward_input", F, N, C, w, false, dout, false, dfc);
    fused.shape.epilogue = CUBLASLT_EPILOGUE_DGELU;
    fused.aux = fc;
    const auto run = [&](int way, const MatmulProduct& q) {
        if (way == WAY_FUSED) return matmul_do(&q);
        linear_backward_input(dact, (const floatX*)q.b, (const floatX*)q.a, N, F, C);
        gelu_backward(dfc, dact, (const floatX*)q.aux, N, F);
    };
    run(matmul_can_be_aux(fc, F) ? matmul_way(&fused, run) : (int)WAY_SEPARATE, fused);
}

#endif
