/*
Rung 3 of the kernel ladder: 8 x 8 sums in a thread's registers, 16 bytes a load, two stages of tiles. (Rung 2 explains
tiles, shared memory and its banks.)

    nvcc -std=c++17 -O3 -arch=sm_90a docs/ladder/kernels/3_registers.cu -o 3_registers       # on a GPU; or emulated:
    g++ -std=gnu++17 -O2 -pthread -x c++ docs/ladder/kernels/3_registers.cu -o 3_registers -ldl

New, three things that belong together:
    registers    A thread has 8 x 8 elements of C: 8 numbers of A and 8 of B give 64 multiply-adds. A block of 16 x 16
                 threads has 128 x 128 elements. A thread's rows are 16 apart, and so are its columns.
    16 bytes     The widest load, 8 numbers along k. A thread reads 8 rows of A and 8 of B, 8 k each: 16 loads for 512
                 multiply-adds, where rung 2 had 1024. Rows of a tile are 144 bytes: 128, and 16 so that 8 rows of a
                 column are in different banks (a load of 16 bytes takes the lanes 8 at a time).
    two stages   cp.async copies 16 bytes from memory to shared memory without a register in between, and the thread
                 continues (copy_async16). The copies before a copy_async_commit() are a group; copy_async_wait<n>()
                 waits for all groups but the last n. So step i + 1 is on its way while step i is multiplied.
Rows beyond the last one repeat it: nobody stores their sums. Beyond K there would have to be zeros; so K is a multiple
of 64, the depth of a tile. (cp.async can also fill up with zeros.)

The count: tiles of 128 rows: 4 M N K / 128 bytes from memory or L2, 64 FLOP a byte. From shared memory 16 x 16 bytes
for 1024 FLOP: 4 FLOP a byte in place of 1/2. 64 + 64 + 8 registers hold sums and operands.

What limits it: the FMA units, which do two FLOP for each lane of an instruction, and, beside them, the conversion of
bf16 to float, an instruction for 4 multiply-adds. The next rung multiplies by tensor cores: 4096 FLOP an instruction.

Source: PTX ISA, "cp.async"; CUDA C++ Programming Guide, "Asynchronous Data Copies"; Boehm 2022, kernels 5 and 6;
Volkov, "Better Performance at Lower Occupancy", GTC 2010.
*/
#include "gpu.cuh"

enum { ROWS = 128, COLUMNS = 128, DEPTH = 64, THREADS = 256 }; // a block's part of C; k of a tile
enum { PITCH = DEPTH + 8 };                                    // of a tile's rows in shared memory
static const double UNIT = 0x1p-24;                            // rounding of a float addition

// ---- The kernel ------------------------------------------------------------------------------------------------

struct Stage {
    bf16 a[ROWS * PITCH], b[COLUMNS * PITCH];
};

// Starts to copy a tile: ROWS rows of x (rows, K) from `first` on, of 64 k.
__device__ __forceinline__ void load_tile(bf16* tile, const bf16* x, int first, int k, int rows, int K) {
    static_assert(ROWS == COLUMNS, "tiles of A and B are alike");
    for (int i = (int)threadIdx.x; i < ROWS * (DEPTH / 8); i += THREADS) {
        const int row = i / (DEPTH / 8), column = i % (DEPTH / 8) * 8;
        copy_async16(tile + row * PITCH + column, x + (int64_t)min(first + row, rows - 1) * K + k + column);
    }
}

// The thread's sums += those of a stage: rows y + 16 i of A, rows x + 16 j of B.
__device__ __forceinline__ void multiply(float (&sum)[8][8], const Stage& stage) {
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    for (int k = 0; k < DEPTH; k += 8) {
        float right[8][8];
#pragma unroll
        for (int i = 0; i < 64; i++)
            right[i / 8][i % 8] = (float)load<8>(stage.b + (x + i / 8 * 16) * PITCH + k)[i % 8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const Packed<bf16, 8> left = load<8>(stage.a + (y + i * 16) * PITCH + k);
#pragma unroll
            for (int j = 0; j < 64; j++) sum[i][j / 8] += (float)left[j % 8] * right[j / 8][j % 8];
        }
    }
}

// m, n: where the block's part of C begins
__device__ __forceinline__ void store_sums(float* c, const float (&sum)[8][8], int m, int n, Shape s) {
    m += (int)threadIdx.x / 16;
    n += (int)threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const int row = m + i / 8 * 16, column = n + i % 8 * 16;
        if (row < s.M && column < s.N) c[(int64_t)row * s.N + column] = sum[i / 8][i % 8];
    }
}

__global__ static void __launch_bounds__(THREADS) product_kernel(float* c, const bf16* a, const bf16* b, Shape s) {
    Stage* stage = dynamic_shared<Stage>();
    const int m = (int)blockIdx.y * ROWS, n = (int)blockIdx.x * COLUMNS, steps = s.K / DEPTH;
    float sum[8][8] = {};
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
    if (s.K % DEPTH) return "K has to be a multiple of 64";
    const dim3 blocks((unsigned)(s.N + COLUMNS - 1) / COLUMNS, (unsigned)(s.M + ROWS - 1) / ROWS);
    launch(blocks, THREADS, 2 * sizeof(Stage), product_kernel, c, a, b, s);
    return NULL;
}

int main() {
    Results results = {0, 0};
    check_product(&results, {128, 128, 640}, UNIT, product);
    check_product(&results, {512, 256, 320}, UNIT, product);
    check_product(&results, {201, 131, 192}, UNIT, product);
    check_refusal(&results, {128, 128, 72}, product);
    measure_product({4096, 4096, 4096}, product);
    return finish(&results);
}
