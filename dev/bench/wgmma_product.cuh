/*
wgmma_product.cuh: a matrix product with Hopper's instructions (kernels/hopper.cuh), to read, to test them, and to see
what they give: D = A B^T, of 16-bit numbers with float sums. A is M x K, B is N x K, D is M x N, all of them by rows.

    block         384 threads: a warpgroup that copies, two that multiply. As many blocks as there are multiprocessors; each
                  takes tile after tile of D, 128 x 256
    copies        One thread starts them: 64 columns of A (128 rows) and of B (256 rows) are a stage, 48 KB; four stages are a
                  ring. It waits until a stage is empty, says how many bytes will come, and goes on to the next one.
    products      Each of the two warpgroups has 64 x 256 sums, 128 registers a thread. It waits until a stage is full, starts
                  four products, 16 of its columns each, and lets them run while it waits for the next stage. When those of
                  the stage before are over, that stage is empty.
    results       go as 16-bit numbers to shared memory, 64 x 64 at a time, and from there to D by TMA, while the other warps
                  copy and multiply what comes next.
    registers     Who copies needs few: the block begins with 168 for each thread, and goes on with 24 and 240.
    order         Tiles that run at the same time share rows of A and of B in the L2 cache: bands of eight tiles in height.

Nothing has to be a multiple of the tile: TMA reads zeros outside of a matrix, and writes nothing there. Rows have to be
multiples of 16 bytes: K and N of 8. In the sm_90a code, 13.0's ptxas shows no spills and no products that wait for each
other.
*/
#ifndef WGMMA_PRODUCT_CUH
#define WGMMA_PRODUCT_CUH

#include "../../kernels/hopper.cuh"

namespace wgmma_product {

constexpr int ROWS = 128, COLUMNS = 256, STAGES = 4, BAND = 8;

template <class T>
struct Stage {
    T a[ROWS * tile_columns], b[COLUMNS * tile_columns];
};
template <class T>
struct Shared {
    Stage<T> stage[STAGES];
    T out[2][2][64 * tile_columns]; // of each warpgroup, two tiles in turn
};

struct Place {
    int row, column; // of D
};
__device__ __forceinline__ Place tile_number(int t, int tiles_down, int tiles_across) {
    const int band = t / (BAND * tiles_across), rest = t % (BAND * tiles_across);
    const int height = min(BAND, tiles_down - band * BAND);
    return {(band * BAND + rest % height) * ROWS, rest / height * COLUMNS};
}

// Stages are used in turn, and their barriers' phases with them.
struct Ring {
    int stage, parity;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// A warpgroup's 64 x 64 sums as a tile of 16-bit numbers.
template <class T, int half_n>
__device__ __forceinline__ void store_sums(T* tile, const float (&d)[half_n], int first, int thread) {
    const int row = thread / 32 * 16 + thread % 16, column = thread % 32 / 16 * 8;
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const float* v = &d[first + 8 * q];
        const unsigned r[4] = {pack_pair<T>(v[0], v[1]), pack_pair<T>(v[2], v[3]), pack_pair<T>(v[4], v[5]),
                               pack_pair<T>(v[6], v[7])};
        store_matrix_x4(tile + tile_place(row, 16 * q + column), r);
    }
}

template <class T>
__global__ void __launch_bounds__(384, 1)
    product_kernel(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                   const __grid_constant__ TensorMap d, int M, int N, int K) {
    __shared__ Barrier full[STAGES], empty[STAGES];
    Shared<T>& s = *dynamic_shared<Shared<T>>();
    const int tiles_down = (M + ROWS - 1) / ROWS, tiles_across = (N + COLUMNS - 1) / COLUMNS;
    const int tiles = tiles_down * tiles_across, steps = (K + tile_columns - 1) / tile_columns;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) full[i].init(1), empty[i].init(2);
        barriers_fence();
    }
    __syncthreads();

    const int group = threadIdx.x / 128 - 1, thread = threadIdx.x % 128; // group -1 copies
    Ring ring = {0, 0};
    if (group < 0) {
        registers_release<24>();
        if (thread == 0) {
            for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
                const Place place = tile_number(t, tiles_down, tiles_across);
                for (int k = 0; k < steps; k++, ring.advance()) {
                    empty[ring.stage].wait(ring.parity ^ 1);
                    full[ring.stage].arrive_expect((int)sizeof(Stage<T>));
                    tensor_load(s.stage[ring.stage].a, a, k * tile_columns, place.row, 0, full[ring.stage]);
                    tensor_load(s.stage[ring.stage].b, b, k * tile_columns, place.column, 0, full[ring.stage]);
                }
            }
        }
    } else {
        registers_claim<240>();
        float sums[COLUMNS / 2];
        for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
            const Place place = tile_number(t, tiles_down, tiles_across);
            for (int k = 0; k < steps; k++, ring.advance()) {
                full[ring.stage].wait(ring.parity);
                const Tile<K_MAJOR> rows = tile_k_major(s.stage[ring.stage].a + group * 64 * tile_columns);
                const Tile<K_MAJOR> columns = tile_k_major(s.stage[ring.stage].b);
                warpgroup_fence(sums);
#pragma unroll
                for (int i = 0; i < 4; i++) wgmma<T>(sums, rows.step(i), columns.step(i), k > 0 || i > 0);
                warpgroup_commit();
                if (k > 0) {
                    warpgroup_wait<1>();
                    if (thread == 0) empty[(ring.stage + STAGES - 1) % STAGES].arrive();
                }
            }
            warpgroup_wait<0>(sums);
            if (thread == 0) empty[(ring.stage + STAGES - 1) % STAGES].arrive();
#pragma unroll
            for (int j = 0; j < COLUMNS / 64; j++) {
                T* out = s.out[group][j % 2];
                if (thread == 0) tensor_store_wait_read<1>(); // the tile before the last one
                barrier_sync(1 + group, 128);
                store_sums(out, sums, 32 * j, thread);
                shared_fence();
                barrier_sync(1 + group, 128);
                if (thread == 0) {
                    tensor_store(d, out, place.column + 64 * j, place.row + 64 * group, 0);
                    tensor_store_commit();
                }
            }
        }
        if (thread == 0) tensor_store_wait_read<0>();
    }
}

// D = A B^T on the compute stream, with `blocks` blocks: as many as there are multiprocessors.
template <class T>
void product(T* D, const T* A, const T* B, int M, int N, int K, int blocks) {
    const int tiles = ((M + ROWS - 1) / ROWS) * ((N + COLUMNS - 1) / COLUMNS);
    launch(launch_shape(tiles < blocks ? tiles : blocks, 384, sizeof(Shared<T>)), product_kernel<T>,
           tensor_map(A, K, M, 1, K, (int64_t)M * K, ROWS), tensor_map(B, K, N, 1, K, (int64_t)N * K, COLUMNS),
           tensor_map((const T*)D, N, M, 1, N, (int64_t)M * N, 64), M, N, K);
}

} // namespace wgmma_product

#endif
