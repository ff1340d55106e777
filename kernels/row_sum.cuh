/*
row_sum.cuh: sums over the threads of a row, and sums of columns, in a fixed order: the same input gives the same bits
(compare row_sum.h).

A row of a matrix belongs to a warp of a block (threadIdx.y says which), or, if it is wide, to all warps. Each thread
adds its own elements; lanes are combined by a butterfly of shuffles (lane l and l ^ 16, then l ^ 8 ...: all get the
same bits), warps in shared memory. An element that passes k additions in its thread passes k + 5 in all, or k + 10 with
several warps.

Sums over rows (the gradients of weights) are taken by blocks that own rows: every thread adds up its columns over the
rows of its block, and column_partials() and add_columns() combine the blocks in order.
*/
#pragma once

#include "cuda_utils.cuh"

// The GPU's properties, queried once, as a query takes milliseconds.
static inline const cudaDeviceProp* gpu_properties(void) {
    static cudaDeviceProp properties;
    int device = 0;
    if (properties.multiProcessorCount > 0) return &properties;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    return &properties;
}

// Adds each of K values over the threads of the row; all threads get the sums.
template <class T, int K>
__device__ __forceinline__ void block_sums(T (&v)[K]) {
    __shared__ T warps[K][32];
    const int lane = threadIdx.x % 32;
    for (int k = 0; k < K; k++) {
        for (int i = 16; i > 0; i /= 2) v[k] += __shfl_xor_sync(0xffffffffu, v[k], i);
        if (blockDim.x > 32 && lane == 0) warps[k][threadIdx.x / 32] = v[k];
    }
    if (blockDim.x == 32) return;
    __syncthreads();
    for (int k = 0; k < K; k++) {
        v[k] = lane < blockDim.x / 32 ? warps[k][lane] : 0;
        for (int i = 16; i > 0; i /= 2) v[k] += __shfl_xor_sync(0xffffffffu, v[k], i);
    }
    __syncthreads(); // before the next call writes
}
template <class T>
__device__ __forceinline__ T block_sum(T v) {
    T sum[1] = {v};
    block_sums(sum);
    return sum[0];
}

// The largest over the threads of the row. NaNs are ignored.
__device__ __forceinline__ float block_max(float v) {
    __shared__ float warps[32];
    const int lane = threadIdx.x % 32;
    v = warp_max(v);
    if (blockDim.x == 32) return v;
    if (lane == 0) warps[threadIdx.x / 32] = v;
    __syncthreads();
    v = warp_max(lane < blockDim.x / 32 ? warps[lane] : -INFINITY);
    __syncthreads();
    return v;
}

// Four packs of a row of n elements, `step` elements apart, so that all loads are in flight before the first is used. A
// pack past the row is the first one again, which no other thread writes.
template <int W, class T>
__device__ __forceinline__ void load_four(Packed<T, W> (&v)[4], const T* row, int begin, int step, int n) {
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = load<W>(row + (begin + k * step < n ? begin + k * step : begin));
}

enum { ROW_THREADS = 512 };

// For rows that are read once and kept in shared memory: a warp to a row of up to 1024 elements and four such rows to a
// block, else a block to a row. Each thread has up to 32 elements, and more only if a row has more than 16384.
static inline Launch row_launch(int N, int C) {
    const int warps = (int)min_i64(ROW_THREADS / 32, blocks_for(C, 1024)), rows = warps == 1 ? 4 : 1;
    return launch_shape(blocks_for(N, rows), dim3(32 * warps, rows), (size_t)rows * C * sizeof(floatX));
}

// ---- Sums of columns --------------------------------------------------------------------------------------------

enum {
    COLUMN_PACKS = 3,     // packs of a row that a thread owns
    COLUMN_ARRAYS = 4,    // arrays of which it has these packs in shared memory
    COLUMN_THREADS = 384, // a block has these at most: 168 registers for each
    COLUMN_TEAMS = 4,     // rows that a block works on at the same time, if one warp holds a row
    COLUMN_ROWS = 8       // minimum that a block adds up before it writes their sums
};

// Blocks (x: rows, y: slabs of columns) for rows of C elements in packs of W: as many as the GPU holds at a time. So
// the order of a sum depends on the GPU: tensor ranks, which have the same vectors, need GPUs of one kind.
static inline Launch column_launch(int N, int C, int W) {
    const int per_warp = 32 * COLUMN_PACKS * W, warps = (int)min_i64(COLUMN_THREADS / 32, blocks_for(C, per_warp));
    const int teams = warps == 1 ? COLUMN_TEAMS : 1, slabs = blocks_for(C, warps * per_warp);
    const int resident = gpu_properties()->multiProcessorCount * (COLUMN_THREADS / (32 * warps * teams));
    const int64_t blocks = min_i64(max_i64(1, resident / slabs), blocks_for(N, COLUMN_ROWS));
    return launch_shape(dim3((unsigned)blocks, slabs), dim3(32 * warps, teams),
                        (size_t)COLUMN_ARRAYS * COLUMN_PACKS * W * 32 * warps * teams * sizeof(floatX));
}

// The column that pack k of this thread begins at.
template <int W>
__device__ __forceinline__ int column_of(int k) {
    return ((blockIdx.y * COLUMN_PACKS + k) * blockDim.x + threadIdx.x) * W;
}

// Shared memory for the packs that a thread owns of COLUMN_ARRAYS arrays, a block of threads apart. The first ones are
// those of w, the others are 0.
template <int W>
__device__ __forceinline__ Packed<floatX, W>* column_slots(const floatX* w, int C) {
    const int threads = blockDim.x * blockDim.y;
    Packed<floatX, W>* slots = dynamic_shared<Packed<floatX, W>>() + threadIdx.y * blockDim.x + threadIdx.x;
    for (int k = 0; k < COLUMN_ARRAYS * COLUMN_PACKS; k++) slots[k * threads] = Packed<floatX, W>();
    for (int k = 0; k < COLUMN_PACKS; k++) {
        if (column_of<W>(k) < C) slots[k * threads] = load<W>(w + column_of<W>(k));
    }
    return slots;
}

// Copies the packs that this thread owns of three rows to its slots, but not those past the rows: asynchronously, where
// they have 16 bytes.
template <int W>
__device__ __forceinline__ void fetch_columns(Packed<floatX, W>* slots, const floatX* x, const floatX* y,
                                              const floatX* z, int C) {
    const floatX* rows[3] = {x, y, z};
#pragma unroll
    for (int k = 0; k < 3 * COLUMN_PACKS; k++) {
        const int c = column_of<W>(k % COLUMN_PACKS);
        if (c >= C) continue;
        if constexpr (sizeof(Packed<floatX, W>) == 16)
            copy_async16(&slots[k * blockDim.x * blockDim.y], rows[k / COLUMN_PACKS] + c);
        else
            slots[k * blockDim.x * blockDim.y] = load<W>(rows[k / COLUMN_PACKS] + c);
    }
    copy_async_commit();
}

// to (C) = the sums of the block: its teams' (threadIdx.y) sums, added in order.
template <int W>
__device__ __forceinline__ void column_partials(float* to, Packed<float, W> (&sum)[COLUMN_PACKS], int C) {
    __shared__ float teams[COLUMN_TEAMS - 1][COLUMN_PACKS * W][32];
    for (int j = 0; j < COLUMN_PACKS * W; j++) {
        if (threadIdx.y > 0) teams[threadIdx.y - 1][j][threadIdx.x] = sum[j / W][j % W];
    }
    __syncthreads();
    for (int k = 0; k < COLUMN_PACKS; k++) {
        if (threadIdx.y > 0 || column_of<W>(k) >= C) continue;
#pragma unroll 1
        for (int team = 1; team < blockDim.y; team++) {
            for (int i = 0; i < W; i++) sum[k][i] += teams[team - 1][k * W + i][threadIdx.x];
        }
        store(to + column_of<W>(k), sum[k]);
    }
    __syncthreads(); // before the next call writes
}

// Up to four vectors, to each of which a sum of columns is added.
typedef struct {
    float* to[4];
    int n;
} ColumnSums;

// The n vectors (columns each) += the sum over i of partial (count, n, columns). 32 columns a block, for each 32
// threads that take every 32nd row; then warp y adds up column y.
__global__ static void __launch_bounds__(1024)
    add_columns_kernel(ColumnSums sums, const float* __restrict__ partial, int count, int columns) {
    __shared__ float tile[32][33]; // 33: columns are spread over the banks
    const int all = sums.n * columns, mine = blockIdx.x * 32 + threadIdx.x, c = blockIdx.x * 32 + threadIdx.y;
    float sum = 0;
    if (mine < all) {
#pragma unroll 8
        for (int i = threadIdx.y; i < count; i += 32) sum += partial[(int64_t)i * all + mine];
    }
    tile[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = warp_sum(tile[threadIdx.x][threadIdx.y]);
    float* to = sums.to[0];
#pragma unroll
    for (int k = 1; k < 4; k++) to = c >= k * columns ? sums.to[k] : to; // an index would copy them to the stack
    if (threadIdx.x == 0 && c < all) to[c % columns] += sum;
}
static inline void add_columns(ColumnSums sums, const float* partial, int count, int columns) {
    launch(launch_shape(blocks_for(sums.n * columns, 32), dim3(32, 32)), add_columns_kernel, sums, partial, count,
           columns);
}
