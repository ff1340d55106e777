/*
Rung 6 of the kernel ladder: warps with roles, and blocks that stay. (Rung 5 explains wgmma, TMA and the ring.)

    nvcc -std=c++17 -O3 -arch=sm_90a docs/ladder/kernels/6_specialised.cu -o 6_specialised   # on Hopper; or emulated:
    g++ -std=gnu++17 -O2 -pthread -x c++ docs/ladder/kernels/6_specialised.cu -o 6_specialised -ldl

New: a block is three warpgroups of two kinds (warp specialisation).
    producer     One thread of the first warpgroup fills the ring. It waits for empty stages; consumers
                 wait for data only.
    consumers    Two warpgroups multiply, and know of copies only by the barriers.
    blocks       As many as the GPU has multiprocessors. Block i computes the tiles i, i + blocks, i + 2 blocks ... of C
                 (persistent blocks). The ring goes on from tile to tile: a step's number counts all steps of the block,
                 so its stage and parity do, too; and while consumers store their sums, the next tile's first stages are
                 on their way.
    registers    Each thread starts with 168 of the multiprocessor's 65,536 (384 threads). The producer needs few:
                 setmaxnreg leaves it 40 (registers_release), and a consumer takes 232 (registers_claim); 128 x 40 +
                 256 x 232 = 384 x 168. There is room for two products: a consumer has 128 x 128 sums, 128 floats a
                 thread, and the block 256 x 128.

The count: tiles of 256 x 128: 2 M N K (1 / 256 + 1 / 128) bytes from memory or L2, 85 FLOP a byte in place of 64. A
consumer's two products of 64 x 128 still read 64 + 128 rows each from shared memory. Tiles that are neighbours in a
column of C run at the same time, and share B's tile in the L2 cache.

What limits it: the tensor cores, if the tiles divide evenly among the multiprocessors: with T tiles and b blocks the
rounds are ceil(T / b), and the last one may be nearly empty. Next in this direction: clusters of two blocks that share
loads (multicast), stores by TMA through shared memory, and an order of tiles that keeps rows and columns in L2.

Source: CUTLASS, "Efficient GEMM in CUDA", section "Warp Specialization", and its sm90 persistent kernels; PTX ISA,
"setmaxnreg"; P. Shankhdhar, "Outperforming cuBLAS on H100: a Worklog", 2024 (pranjalssh/fast.cu). In threefold:
kernels/attention_hopper.cuh has the same roles; the ladder goes on with attention, 7_scores.cu.
*/
#include "gpu.cuh"

enum { ROWS = 256, COLUMNS = 128, DEPTH = 64, THREADS = 384 }; // a tile of C; its k in a step
enum { GROUP_ROWS = 128, STAGES = 4 };                         // a consumer's part of it; of the ring
static const double UNIT = 0x1p-22;                            // tensor cores cut off

// ---- The kernel ------------------------------------------------------------------------------------------------

struct Stage {
    bf16 a[ROWS * DEPTH], b[COLUMNS * DEPTH];
};
struct Shared {
    Stage stage[STAGES];
    Barrier full[STAGES], empty[STAGES];
};

// One thread starts to copy the tiles of a step, to a stage that is empty. m, n: where the tile of C begins
__device__ __forceinline__ void load_stage(Shared& shared, int step, const TensorMap& a, const TensorMap& b, int m,
                                           int n, int k) {
    Stage& stage = shared.stage[step % STAGES];
    Barrier& full = shared.full[step % STAGES];
    shared.empty[step % STAGES].wait(step / STAGES % 2 ^ 1);
    full.arrive_expect(sizeof stage);
    tensor_load(stage.a, a, k, m, 0, full);
    tensor_load(stage.b, b, k, n, 0, full);
}

// A consumer has read the stage of a step.
__device__ __forceinline__ void release(Shared& shared, int step) {
    if (threadIdx.x % 128 == 0) shared.empty[step % STAGES].arrive();
}

// Starts: the consumer's sums += those of a step, 64 rows each. left: where its rows begin in the stage's A
__device__ __forceinline__ void multiply(float (&sum)[2][64], Shared& shared, int step, int left) {
    const Stage& stage = shared.stage[step % STAGES];
    shared.full[step % STAGES].wait(step / STAGES % 2);
    warpgroup_fence(sum[0], sum[1]);
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            wgmma<bf16>(sum[i], tile_k_major(stage.a + (left + i * 64) * DEPTH).step(k), tile_k_major(stage.b).step(k),
                        true);
    }
    warpgroup_commit();
}

// m, n: where the 64 rows of sums begin in C
__device__ __forceinline__ void store_sums(float* c, const float (&sum)[64], int m, int n, Shape s) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4;
    m += warp * 16 + lane / 4;
    n += lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 32; i++) { // two columns at a time
        const int row = m + i % 2 * 8, column = n + i / 2 * 8;
        if (row < s.M && column < s.N)
            store(c + (int64_t)row * s.N + column, Packed<float, 2>{{sum[2 * i], sum[2 * i + 1]}});
    }
}

// One thread: all steps of all tiles of the block. tiles: of C, of which `down` are in a column
__device__ __forceinline__ void produce(Shared& shared, const TensorMap& a, const TensorMap& b, int tiles, int down,
                                        int steps) {
    int step = 0;
    for (int tile = (int)blockIdx.x; tile < tiles; tile += (int)gridDim.x)
        for (int i = 0; i < steps; i++, step++)
            load_stage(shared, step, a, b, tile % down * ROWS, tile / down * COLUMNS, i * DEPTH);
}

// A warpgroup, whose rows begin at `left` in a tile.
__device__ __forceinline__ void consume(float* c, Shared& shared, int tiles, int down, int steps, int left, Shape s) {
    int step = 0;
    for (int tile = (int)blockIdx.x; tile < tiles; tile += (int)gridDim.x) {
        const int m = tile % down * ROWS + left, n = tile / down * COLUMNS;
        float sum[2][64] = {};
        for (int i = 0; i < steps; i++, step++) {
            multiply(sum, shared, step, left);
            warpgroup_wait<1>(); // all groups but the last: the products of the step before
            if (i > 0) release(shared, step - 1);
        }
        warpgroup_wait<0>(sum[0], sum[1]);
        release(shared, step - 1);
        store_sums(c, sum[0], m, n, s);
        store_sums(c, sum[1], m + 64, n, s);
    }
}

__global__ static void __launch_bounds__(THREADS, 1)
    product_kernel(float* c, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, Shape s) {
    Shared& shared = *dynamic_shared<Shared>();
    const int down = (s.M + ROWS - 1) / ROWS, tiles = down * ((s.N + COLUMNS - 1) / COLUMNS);
    const int steps = (s.K + DEPTH - 1) / DEPTH;
    const int role = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0); // so the compiler knows: equal in the warp
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            shared.full[i].init(1);
            shared.empty[i].init(2);
        }
        barriers_fence();
    }
    __syncthreads();
    if (role == 0) {
        registers_release<40>();
        if (threadIdx.x == 0) produce(shared, a, b, tiles, down, steps);
    } else {
        registers_claim<232>();
        consume(c, shared, tiles, down, steps, (role - 1) * GROUP_ROWS, s);
    }
}

// C = A B^T
static const char* product(float* c, const bf16* a, const bf16* b, Shape s) {
    if (s.K % 8 || s.N % 2) return "K has to be a multiple of 8, and N of 2";
    cudaDeviceProp about;
    cuda_check(cudaGetDeviceProperties(&about, 0), "cudaGetDeviceProperties");
    const int blocks = about.multiProcessorCount; // more than tiles: some have nothing to do
    const TensorMap a_map = tensor_map(a, s.K, s.M, 1, s.K, (int64_t)s.M * s.K, ROWS);
    const TensorMap b_map = tensor_map(b, s.K, s.N, 1, s.K, (int64_t)s.N * s.K, COLUMNS);
    launch((unsigned)blocks, THREADS, sizeof(Shared), product_kernel, c, a_map, b_map, s);
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
