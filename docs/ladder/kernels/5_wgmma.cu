/*
Rung 5 of the kernel ladder: wgmma, TMA and a ring of barriers. (Rung 4 explains fragments and the swizzle.)

    nvcc -std=c++17 -O3 -arch=sm_90a docs/ladder/kernels/5_wgmma.cu -o 5_wgmma       # on a Hopper GPU; or emulated:
    g++ -std=gnu++17 -O2 -pthread -x c++ docs/ladder/kernels/5_wgmma.cu -o 5_wgmma -ldl

New: instructions of Hopper GPUs that start work and return.
    wgmma      Four warps, a warpgroup, multiply 64 x 16 by 16 x 128. A and B are read from swizzled tiles in shared
               memory; D is in registers, 64 floats a thread: warp w has rows 16 w to 16 w + 15, in mma.sync's layout.
               warpgroup_fence() comes before a group of products: earlier writes to D are done; warpgroup_commit()
               after it; warpgroup_wait<n>() waits for all groups but the last n. Until then nobody may touch D or
               overwrite the tiles.
    TMA        One thread starts the copy of a whole tile, with a description of the matrix that the host made
               (tensor_map): no addresses in the kernel, and 0 beyond the edges. So K is any multiple of 8 (16 bytes).
    mbarrier   TMA's copies are waited for at a barrier in shared memory. A phase of it is over when `count` threads and
               all announced bytes have arrived; wait(parity) returns when the phase of that parity is over.

The ring. Four stages in place of two; step i uses stage i % 4 for the (i / 4)-th time. Each has two barriers:
    full     one arrival, which announces 32 KB of TMA's. Readers wait for parity i / 4 % 2.
    empty    an arrival of each of the two warpgroups, when its products of the stage are done. The writer waits for the
             phase before, parity i / 4 % 2 ^ 1; on a new barrier that returns at once: all stages begin empty.
A warpgroup starts the products of step i, then waits for those of step i - 1 and releases their stage; thread 0 fills
it again, with step i + 3. So a warpgroup's next products wait behind its current ones, and copies are three steps
ahead.

The count: a warpgroup reads 64 + 128 rows of 16 numbers, 6144 bytes, for 262,144 FLOP: 43 FLOP a byte of shared
memory, in place of 21, and no register holds operands. From memory or L2 as before.

What limits it: thread 0 is a warp's lane that also multiplies. While it waits for the other warpgroup to release a
stage, its own has one group of products in flight and starts no other. And between two blocks, or while the sums are
stored, the tensor cores idle: 128 KB of stages leave no room for a second block. The next rung gives copies to warps of
their own and keeps its blocks.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions", "mbarrier", "Tensor copy";
CUTLASS, "CUTLASS 3.0 GEMM Backwards Compatibility" and its sm90 TMA mainloop without specialisation. In threefold:
kernels/hopper.cuh has all rules.
*/
#include "gpu.cuh"

enum { ROWS = 128, COLUMNS = 128, DEPTH = 64, THREADS = 256 }; // a block's part of C; k of a tile
enum { GROUP_ROWS = 64, STAGES = 4 };                          // a warpgroup's part of it; of the ring
static const double UNIT = 0x1p-22;                            // tensor cores cut off

// ---- The kernel ------------------------------------------------------------------------------------------------

struct Stage {
    bf16 a[ROWS * DEPTH], b[COLUMNS * DEPTH];
};
struct Shared {
    Stage stage[STAGES];
    Barrier full[STAGES], empty[STAGES];
};

// One thread starts to copy the tiles of a step, to a stage that is empty. m, n: where the block's part of C begins
__device__ __forceinline__ void load_stage(Shared& shared, int step, const TensorMap& a, const TensorMap& b, int m,
                                           int n, int k) {
    Stage& stage = shared.stage[step % STAGES];
    Barrier& full = shared.full[step % STAGES];
    shared.empty[step % STAGES].wait(step / STAGES % 2 ^ 1);
    full.arrive_expect(sizeof stage);
    tensor_load(stage.a, a, k, m, 0, full);
    tensor_load(stage.b, b, k, n, 0, full);
}

// A warpgroup has read the stage of a step.
__device__ __forceinline__ void release(Shared& shared, int step) {
    if (threadIdx.x % 128 == 0) shared.empty[step % STAGES].arrive();
}

// Starts: the warpgroup's sums += those of a step.
__device__ __forceinline__ void multiply(float (&sum)[64], Shared& shared, int step) {
    const Stage& stage = shared.stage[step % STAGES];
    const bf16* left = stage.a + (int)threadIdx.x / 128 * GROUP_ROWS * DEPTH;
    shared.full[step % STAGES].wait(step / STAGES % 2);
    warpgroup_fence(sum);
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++)
        wgmma<bf16>(sum, tile_k_major(left).step(k), tile_k_major(stage.b).step(k), true);
    warpgroup_commit();
}

// m, n: where the block's part of C begins
__device__ __forceinline__ void store_sums(float* c, const float (&sum)[64], int m, int n, Shape s) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    m += warp * 16 + lane / 4;
    n += lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 32; i++) { // two columns at a time
        const int row = m + i % 2 * 8, column = n + i / 2 * 8;
        if (row < s.M && column < s.N)
            store(c + (int64_t)row * s.N + column, Packed<float, 2>{{sum[2 * i], sum[2 * i + 1]}});
    }
}

__global__ static void __launch_bounds__(THREADS, 1)
    product_kernel(float* c, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, Shape s) {
    Shared& shared = *dynamic_shared<Shared>();
    const int m = (int)blockIdx.y * ROWS, n = (int)blockIdx.x * COLUMNS, steps = (s.K + DEPTH - 1) / DEPTH;
    float sum[64] = {};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            shared.full[i].init(1);
            shared.empty[i].init(2);
        }
        barriers_fence();
        for (int step = 0; step < min(STAGES - 1, steps); step++) load_stage(shared, step, a, b, m, n, step * DEPTH);
    }
    __syncthreads();
    for (int step = 0; step < steps; step++) {
        multiply(sum, shared, step);
        warpgroup_wait<1>(); // all groups but the last: the products of the step before
        if (step > 0) release(shared, step - 1);
        const int next = step + STAGES - 1;
        if (threadIdx.x == 0 && next < steps) load_stage(shared, next, a, b, m, n, next * DEPTH);
        __syncwarp(); // a product needs whole warps
    }
    warpgroup_wait<0>(sum);
    store_sums(c, sum, m, n, s);
}

// C = A B^T
static const char* product(float* c, const bf16* a, const bf16* b, Shape s) {
    if (s.K % 8 || s.N % 2) return "K has to be a multiple of 8, and N of 2";
    const dim3 blocks((unsigned)(s.N + COLUMNS - 1) / COLUMNS, (unsigned)(s.M + ROWS - 1) / ROWS);
    const TensorMap a_map = tensor_map(a, s.K, s.M, 1, s.K, (int64_t)s.M * s.K, ROWS);
    const TensorMap b_map = tensor_map(b, s.K, s.N, 1, s.K, (int64_t)s.N * s.K, COLUMNS);
    launch(blocks, THREADS, sizeof(Shared), product_kernel, c, a_map, b_map, s);
    return NULL;
}

int main() {
    Results results = {0, 0};
    check_product(&results, {128, 128, 640}, UNIT, product);
    check_product(&results, {512, 256, 320}, UNIT, product);
    check_product(&results, {201, 130, 200}, UNIT, product);
    check_refusal(&results, {128, 128, 20}, product);
    measure_product({4096, 4096, 4096}, product);
    return finish(&results);
}
