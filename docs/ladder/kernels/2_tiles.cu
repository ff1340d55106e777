/*
Rung 2 of the kernel ladder: tiles in shared memory. (Rung 1 explains threads, warps and blocks.)

    nvcc -std=c++17 -O3 -arch=sm_90a docs/ladder/kernels/2_tiles.cu -o 2_tiles       # on a GPU; or emulated:
    g++ -std=gnu++17 -O2 -pthread -x c++ docs/ladder/kernels/2_tiles.cu -o 2_tiles -ldl

New: a block's 32 x 32 elements of C use the same 32 rows of A and of B. So the block brings 32 columns of these rows at
a time, a tile of A and one of B, to shared memory, where all its threads read them. Shared memory is a part of the
multiprocessor; it lives as long as the block. Each thread loads one number of each tile, and a warp loads a row: 64
bytes, two whole sectors. __syncthreads() is a barrier of the block: nobody reads a tile before all have written it, and
nobody writes the next one before all have read this one. Numbers beyond the edges are 0 and add nothing.

Banks. Shared memory has 32 banks of 4 bytes; a load is fast if the lanes of a warp need different banks, or the same
word. Lane x reads row x of B's tile. Rows of 64 bytes would begin in 2 banks only, and 16 lanes wait for each other; so
a row has two numbers more, 68 bytes, and 32 rows begin in 32 banks. All lanes read the same number of A.

The count: A is read by the N / 32 blocks of its rows, B by M / 32: 4 M N K / 32 bytes from memory or the L2 cache, 16
FLOP for each byte in place of 1/2. From shared memory it is still 4 bytes a multiply-add.

What limits it: still two load instructions for one multiply-add, now from shared memory. In the next rung a thread has
8 x 8 elements, for which 8 + 8 numbers in registers are enough.

Source: CUDA C++ Programming Guide, "Shared Memory"; CUDA C++ Best Practices Guide, "Shared Memory in Matrix
Multiplication (C = AA^T)"; Boehm 2022, kernel 3.
*/
#include "gpu.cuh"

enum { SIDE = 32, PITCH = SIDE + 2 }; // of a block's square of C, and of tiles; a row of B's tile in shared memory
static const double UNIT = 0x1p-24;   // rounding of a float addition

// ---- The kernel ------------------------------------------------------------------------------------------------

// Element (row, k) of x (rows, K), or 0 beyond it.
__device__ __forceinline__ bf16 element(const bf16* x, int row, int k, int rows, int K) {
    return row < rows && k < K ? x[(int64_t)row * K + k] : (bf16)0.0f;
}

__global__ static void __launch_bounds__(SIDE* SIDE) product_kernel(float* c, const bf16* a, const bf16* b, Shape s) {
    __shared__ bf16 a_tile[SIDE][SIDE], b_tile[SIDE][PITCH];
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    const int m = (int)blockIdx.y * SIDE, n = (int)blockIdx.x * SIDE; // the first of the block
    float sum = 0.0f;
    for (int k = 0; k < s.K; k += SIDE) {
        a_tile[y][x] = element(a, m + y, k + x, s.M, s.K);
        b_tile[y][x] = element(b, n + y, k + x, s.N, s.K);
        __syncthreads(); // the tiles are complete
        for (int i = 0; i < SIDE; i++) sum += (float)a_tile[y][i] * (float)b_tile[x][i];
        __syncthreads(); // all threads have read them
    }
    if (m + y < s.M && n + x < s.N) c[(int64_t)(m + y) * s.N + n + x] = sum;
}

// C = A B^T
static const char* product(float* c, const bf16* a, const bf16* b, Shape s) {
    const dim3 blocks((unsigned)(s.N + SIDE - 1) / SIDE, (unsigned)(s.M + SIDE - 1) / SIDE);
    launch(blocks, dim3(SIDE, SIDE), 0, product_kernel, c, a, b, s);
    return NULL;
}

int main() {
    Results results = {0, 0};
    check_product(&results, {128, 128, 640}, UNIT, product);
    check_product(&results, {512, 256, 320}, UNIT, product);
    check_product(&results, {201, 131, 51}, UNIT, product);
    measure_product({4096, 4096, 4096}, product);
    return finish(&results);
}
