/*
Rung 1 of the kernel ladder: a matrix product, one thread an element.

    nvcc -std=c++17 -O3 -arch=sm_90a docs/ladder/kernels/1_threads.cu -o 1_threads       # on a GPU; or emulated:
    g++ -std=gnu++17 -O2 -pthread -x c++ docs/ladder/kernels/1_threads.cu -o 1_threads -ldl

    C (M, N) = A (M, K) B (N, K)^T:   C_mn = sum_k A_mk B_nk

A and B are bf16 (a float's upper 16 bits), C and all sums are float. Both operands are read along rows, as a linear
layer reads its activations and weights. Rungs 1 to 6 compute the same and are checked by the same bound (gpu.cuh,
check_product).

A kernel runs in many threads. 32 threads, a warp, execute each instruction together; some warps, here 8, are a block,
which runs on one of the GPU's multiprocessors; the blocks are a grid. Here a thread has one element of C, a block 16 x
16 of them, and the grid all. Threads beyond the edge of C return at once.

The count: 2 M N K FLOP, in M N K multiply-adds. Each of them loads two numbers of 2 bytes: 4 M N K bytes, half a FLOP
for each byte. A and B have only 2 (M + N) K bytes: each number is read N or M times, and it depends on the caches how
many of these reads reach memory. Neighbouring threads of a warp read rows of B that are 2 K bytes apart, so one load
instruction needs 16 pieces of 32 bytes (a sector, the least that a cache brings), of which it uses 2 bytes each.

What limits it: loads. There are two load instructions for one multiply-add, and each load of B takes 16 sectors. The
next rung brings a tile of A and B to shared memory, by loads of whole sectors, and all its threads read it from there.

Source: CUDA C++ Programming Guide, "Thread Hierarchy"; S. Boehm, "How to Optimize a CUDA Matmul Kernel for cuBLAS-like
Performance", 2022, kernels 1 and 2. In threefold: kernels/matmul.h multiplies on the CPU.
*/
#include "gpu.cuh"

enum { SIDE = 16 };                 // of a block's square of C
static const double UNIT = 0x1p-24; // rounding of a float addition

// ---- The kernel ------------------------------------------------------------------------------------------------

__global__ static void product_kernel(float* c, const bf16* a, const bf16* b, Shape s) {
    const int m = (int)(blockIdx.y * SIDE + threadIdx.y), n = (int)(blockIdx.x * SIDE + threadIdx.x);
    if (m >= s.M || n >= s.N) return;
    float sum = 0.0f;
    for (int k = 0; k < s.K; k++) sum += (float)a[(int64_t)m * s.K + k] * (float)b[(int64_t)n * s.K + k];
    c[(int64_t)m * s.N + n] = sum;
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
