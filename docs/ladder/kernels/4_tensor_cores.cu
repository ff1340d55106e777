/*
Rung 4 of the kernel ladder: tensor cores. (Rung 3 explains stages and cp.async.)

    nvcc -std=c++17 -O3 -arch=sm_90a docs/ladder/kernels/4_tensor_cores.cu -o 4_tensor_cores   # on a GPU; or emulated:
    g++ -std=gnu++17 -O2 -pthread -x c++ docs/ladder/kernels/4_tensor_cores.cu -o 4_tensor_cores -ldl

New: a warp multiplies by one instruction, mma.sync: D (16 x 8, float) += A (16 x 16) B (16 x 8), both bf16. The
matrices are spread over the registers of its 32 lanes, a fragment each. Lane l, with g = l / 4 and t = 2 (l % 4):

    A, 4 registers of two numbers    rows g, g + 8, g, g + 8;  k = t, t + 1, and 8 more in the last two registers
    B, 2 registers                   column g;                 k = t, t + 1, and 8 more in the last one
    D, 4 floats                      rows g, g, g + 8, g + 8;  columns t, t + 1, t, t + 1

The block's 8 warps are 2 x 4, each with 64 x 32 elements of C: 4 x 4 of D, the same 64 sums a thread as in rung 3.

ldmatrix loads fragments: four squares of 8 x 8 numbers, of which lane i gives the address of row i % 8 of square i / 8,
16 bytes; lane l gets numbers t and t + 1 of row l / 4 of each. One makes an A, another the B of 16 columns.

Swizzle. The 8 rows of a square have to be in different banks. In place of rung 3's longer rows, chunk c of 16 bytes of
row r is stored at the place of chunk c ^ (r % 8) of its row (tile_place in gpu.cuh): 8 rows of a column are in 8
different places of 128 bytes. Rows stay 128 bytes, as the next rung's copies need it.

The count: a warp loads 64 + 32 rows of 16 numbers, 3072 bytes, for 16 mma of 4096 FLOP: 21 FLOP for each byte of shared
memory, in place of 4; from memory or L2 as before. Per warp and 16 k there are 6 ldmatrix and 16 mma.

What limits it: warps issue all of it and wait for it: copies, ldmatrix, then mma, whose operands take registers. The
next rung's instructions read both operands from shared memory and run while the warps go on.

Source: PTX ISA, "mma.m16n8k16", "ldmatrix"; CUTLASS, "Efficient GEMM in CUDA" (media/docs); Boehm 2022, kernel 10 (a
warp's tile). In threefold: kernels/attention.cuh, on GPUs other than Hopper.
*/
#include "gpu.cuh"

enum { ROWS = 128, COLUMNS = 128, DEPTH = 64, THREADS = 256 }; // a block's part of C; k of a tile
enum { WARP_ROWS = 64, WARP_COLUMNS = 32 };                    // a warp's part of it: 2 x 4 warps
static const double UNIT = 0x1p-22;                            // tensor cores cut off

// ---- The kernel ------------------------------------------------------------------------------------------------

struct Stage {
    bf16 a[ROWS * DEPTH], b[COLUMNS * DEPTH];
};

// Starts to copy a tile: ROWS rows of x (rows, K) from `first` on, of 64 k.
__device__ __forceinline__ void load_tile(bf16* tile, const bf16* x, int first, int k, int rows, int K) {
    static_assert(ROWS == COLUMNS, "tiles of A and B are alike");
    for (int i = (int)threadIdx.x; i < ROWS * (DEPTH / 8); i += THREADS) {
        const int row = i / (DEPTH / 8), column = i % (DEPTH / 8) * 8;
        copy_async16(tile + tile_place(row, column), x + (int64_t)min(first + row, rows - 1) * K + k + column);
    }
}

// The warp's sums += those of a stage; 16 i, 8 j: rows and columns of an mma.
__device__ __forceinline__ void multiply(float (&sum)[4][4][4], const Stage& stage) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int m = warp / 4 * WARP_ROWS + lane % 16, n = warp % 4 * WARP_COLUMNS + lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        unsigned left[4][4], right[2][4]; // right: 16 columns; registers 0, 1: first 8
#pragma unroll
        for (int i = 0; i < 4; i++) ldmatrix_x4(left[i], stage.a + tile_place(m + i * 16, k + lane / 16 * 8));
#pragma unroll
        for (int j = 0; j < 2; j++) ldmatrix_x4(right[j], stage.b + tile_place(n + j * 16, k + lane / 8 % 2 * 8));
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int j = i % 4;
            mma_m16n8k16(sum[i / 4][j], left[i / 4], {right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]});
        }
    }
}

// m, n: where the block's part of C begins
__device__ __forceinline__ void store_sums(float* c, const float (&sum)[4][4][4], int m, int n, Shape s) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    m += warp / 4 * WARP_ROWS + lane / 4;
    n += warp % 4 * WARP_COLUMNS + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 32; i++) { // two columns at a time
        const int row = m + i / 8 * 16 + i % 2 * 8, column = n + i / 2 % 4 * 8;
        const float* pair = &sum[i / 8][i / 2 % 4][i % 2 * 2];
        if (row < s.M && column < s.N) store(c + (int64_t)row * s.N + column, Packed<float, 2>{{pair[0], pair[1]}});
    }
}

__global__ static void __launch_bounds__(THREADS) product_kernel(float* c, const bf16* a, const bf16* b, Shape s) {
    Stage* stage = dynamic_shared<Stage>();
    const int m = (int)blockIdx.y * ROWS, n = (int)blockIdx.x * COLUMNS, steps = s.K / DEPTH;
    float sum[4][4][4] = {};
    load_tile(stage[0].a, a, m, 0, s.M, s.K);
    load_tile(stage[0].b, b, n, 0, s.N, s.K);
    copy_async_commit();
    for (int step = 0; step < steps; step++) {
        if (step + 1 < steps) {
            load_tile(stage[(step + 1) % 2].a, a, m, (step + 1) * DEPTH, s.M, s.K);
            load_tile(stage[(step + 1) % 2].b, b, n, (step + 1) * DEPTH, s.N, s.K);
        }
        copy_async_commit();  // in the last step of nothing
        copy_async_wait<1>(); // all but the newest group: this thread's copies of this step have arrived
        __syncthreads();      // and those of all threads
        multiply(sum, stage[step % 2]);
        __syncthreads(); // all threads have read the stage
    }
    store_sums(c, sum, m, n, s);
}

// C = A B^T
static const char* product(float* c, const bf16* a, const bf16* b, Shape s) {
    if (s.K % DEPTH || s.N % 2) return "K has to be a multiple of 64, and N of 2";
    const dim3 blocks((unsigned)(s.N + COLUMNS - 1) / COLUMNS, (unsigned)(s.M + ROWS - 1) / ROWS);
    launch(blocks, THREADS, 2 * sizeof(Stage), product_kernel, c, a, b, s);
    return NULL;
}

int main() {
    Results results = {0, 0};
    check_product(&results, {128, 128, 640}, UNIT, product);
    check_product(&results, {512, 256, 320}, UNIT, product);
    check_product(&results, {201, 130, 192}, UNIT, product);
    check_refusal(&results, {128, 128, 72}, product);
    measure_product({4096, 4096, 4096}, product);
    return finish(&results);
}
