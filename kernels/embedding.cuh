/*
embedding.cuh: embedding.h on a GPU. Forward: 2 numbers of memory an element (3 with positions), a pack of 16 bytes a
thread.

The gradient of a token's row is a sum over all places n of this token: few places for most tokens, 5 % of all N for
some. Float atomics would be simple, but add in a different order every time. Instead places are sorted by token, and
sums taken in the order of n, by warps that each own 32 packs of columns:

    count      how often each token occurs, and for each n an index among the places of its token, in any order (integer
               atomics)
    allocate   each token that occurs takes a range of the list of places, anywhere in it
    place      n goes to its token's range
    order      and is sorted there by comparing it with the k places of the range: sum k^2 comparisons in all,
               each a read from L1 that a warp shares; 10^7, about 20 us, for a token that is 5 % of N = 65536, and
               0.5 ms if all tokens are the same
    sum        the first SEGMENT places of a token are added in order to the table, each further SEGMENT of them to a
               row of scratch
    add        tokens with such rows add them, in order

So the order of additions is fixed (for up to SEGMENT places it is that of embedding.h, with its bits), and no warp has
a long sum alone. Traffic: C numbers of dout for each n, a row of the table read and written for each token that occurs,
1/SEGMENT more for the rows of scratch, and some 40 N bytes of lists.
*/
#pragma once

#include "cuda_utils.cuh"

template <int W>
__global__ static void __launch_bounds__(256)
    embedding_forward_kernel(floatX* __restrict__ out, const int32_t* __restrict__ tokens,
                             const floatX* __restrict__ wte, int64_t n, int C, int vocab_offset, int V_local) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= n) return;
    const int64_t row = (int64_t)tokens[i / C] - vocab_offset;
    Packed<floatX, W> v;
    for (int k = 0; k < W; k++) v[k] = (floatX)0.0f;
    if (row >= 0 && row < V_local) v = load<W>(wte + row * C + i % C);
    store(out + i, v);
}

static inline void embedding_forward(floatX* out, const int32_t* tokens, const floatX* wte, int N, int C,
                                     int vocab_offset, int V_local) {
    const bool packed = can_pack(out, C) && can_pack(wte, C);
    const int64_t n = (int64_t)N * C;
    launch(launch_shape(blocks_for(n, packed ? 256 * widest<floatX> : 256), 256),
           packed ? embedding_forward_kernel<widest<floatX>> : embedding_forward_kernel<1>, out, tokens, wte, n, C,
           vocab_offset, V_local);
}

template <int W>
__global__ static void __launch_bounds__(256)
    position_forward_kernel(floatX* __restrict__ out, const floatX* __restrict__ wpe, int64_t first_row, int64_t n,
                            int T, int C) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= n) return;
    Packed<floatX, W> v = load<W>(out + i);
    const Packed<floatX, W> w = load<W>(wpe + (first_row + i / C) % T * C + i % C);
    for (int k = 0; k < W; k++) v[k] = (floatX)((float)v[k] + (float)w[k]);
    store(out + i, v);
}

static inline void position_forward(floatX* out, const floatX* wpe, int64_t first_row, int N, int T, int C) {
    const bool packed = can_pack(out, C) && can_pack(wpe, C);
    const int64_t n = (int64_t)N * C;
    launch(launch_shape(blocks_for(n, packed ? 256 * widest<floatX> : 256), 256),
           packed ? position_forward_kernel<widest<floatX>> : position_forward_kernel<1>, out, wpe, first_row, n, T, C);
}

// ---- Backward ---------------------------------------------------------------------------------------------------

enum { SEGMENT = 64 }; // places

// The places of tokens, in scratch memory.
typedef struct {
    int *count, *start; // (V_local) per token; start is set where count > 0
    int* total;         // places of tokens of this slice, which have a range
    int *number, *list; // (N) index of place n among its token's, -1: other slice; the ranges, not yet sorted
    int2* place;        // (N) x: the ranges in order; y: places in the segment that begins here, negative if it is not
                        // the first of its token, 0 if none begins
    float* partial; // (N / SEGMENT + 1, C): row s / SEGMENT is the sum of a segment, not the first, that begins at s
} Places;

__global__ static void __launch_bounds__(256)
    places_count_kernel(Places p, const int32_t* __restrict__ tokens, int N, int vocab_offset, int V_local) {
    const int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= N) return;
    const int64_t row = (int64_t)tokens[n] - vocab_offset;
    p.number[n] = row >= 0 && row < V_local ? atomicAdd(&p.count[row], 1) : -1;
}

__global__ static void __launch_bounds__(256)
    places_allocate_kernel(Places p, const int32_t* __restrict__ tokens, int N, int vocab_offset) {
    const int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= N || p.number[n] != 0) return;
    const int row = tokens[n] - vocab_offset;
    p.start[row] = atomicAdd(p.total, p.count[row]);
}

__global__ static void __launch_bounds__(256)
    places_place_kernel(Places p, const int32_t* __restrict__ tokens, int N, int vocab_offset) {
    const int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n < N && p.number[n] >= 0) p.list[p.start[tokens[n] - vocab_offset] + p.number[n]] = n;
}

// Threads follow the list, so most threads of a warp compare with the same places.
__global__ static void __launch_bounds__(256)
    places_order_kernel(Places p, const int32_t* __restrict__ tokens, int vocab_offset) {
    const int s = blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= *p.total) return;
    const int n = p.list[s], row = tokens[n] - vocab_offset, k = p.count[row];
    const int* __restrict__ range = p.list + p.start[row];
    int rank = 0;
#pragma unroll 8
    for (int i = 0; i < k; i++) rank += range[i] < n;
    int length = 0;
    if (rank % SEGMENT == 0) length = rank == 0 ? min(k, (int)SEGMENT) : -min(k - rank, (int)SEGMENT);
    p.place[p.start[row] + rank] = make_int2(n, length);
}

// Column c of a sum's pack in this thread; W columns.
template <int W>
__device__ __forceinline__ int place_column() {
    return (blockIdx.y * 32 + threadIdx.x) * W;
}

// A warp (threadIdx.y) takes a place; if a segment begins there, it sums the segment.
template <int W>
__global__ static void __launch_bounds__(256)
    places_sum_kernel(float* __restrict__ dwte, Places p, const floatX* __restrict__ dout,
                      const int32_t* __restrict__ tokens, int C, int vocab_offset) {
    const int s = blockIdx.x * blockDim.y + threadIdx.y, c = place_column<W>();
    if (s >= *p.total || c >= C) return;
    const int2 mine = p.place[s];
    const int rows = abs(mine.y);
    if (rows == 0) return;
    const bool first = mine.y > 0;
    const int64_t row = first ? tokens[mine.x] - vocab_offset : s / SEGMENT;
    float* to = (first ? dwte : p.partial) + row * C + c;
    Packed<float, W> sum = {};
    if (first) sum = load<W>(to);
#pragma unroll 4
    for (int i = 0; i < rows; i++) {
        const Packed<floatX, W> d = load<W>(dout + (int64_t)p.place[s + i].x * C + c);
        for (int k = 0; k < W; k++) sum[k] += (float)d[k];
    }
    store(to, sum);
}

template <int W>
__global__ static void __launch_bounds__(256)
    places_add_kernel(float* __restrict__ dwte, Places p, const int32_t* __restrict__ tokens, int C, int vocab_offset) {
    const int s = blockIdx.x * blockDim.y + threadIdx.y, c = place_column<W>();
    if (s >= *p.total || c >= C || p.place[s].y != SEGMENT) return;
    float* to = dwte + (int64_t)(tokens[p.place[s].x] - vocab_offset) * C + c;
    Packed<float, W> sum = load<W>(to);
    for (int t = s + SEGMENT; t < *p.total && p.place[t].y < 0; t += SEGMENT) {
        const Packed<float, W> more = load<W>(p.partial + (int64_t)(t / SEGMENT) * C + c);
        for (int k = 0; k < W; k++) sum[k] += more[k];
    }
    store(to, sum);
}

// dwte (V_local, C) += dout (N, C), row by row.
static inline void embedding_backward(float* dwte, const floatX* dout, const int32_t* tokens, int N, int C,
                                      int vocab_offset, int V_local) {
    if (N == 0) return;
    const size_t floats = ((size_t)N / SEGMENT + 1) * C, counts = 2 * (size_t)V_local + 2, places = 2 * (size_t)N;
    float* scratch = (float*)device_scratch(sizeof(float) * round_up(floats, 4) + sizeof(int) * (counts + 2 * places));
    Places p;
    p.partial = scratch;
    p.place = (int2*)(scratch + round_up(floats, 4));
    p.list = (int*)(p.place + N);
    p.number = p.list + N;
    p.total = p.number + N;
    p.count = p.total + 1;
    p.start = p.count + V_local;
    cuda_check(cudaMemsetAsync(p.total, 0, (1 + (size_t)V_local) * sizeof(int), 0), "zeroing memory");
    const Launch each = launch_shape(blocks_for(N, 256), 256);
    launch(each, places_count_kernel, p, tokens, N, vocab_offset, V_local);
    launch(each, places_allocate_kernel, p, tokens, N, vocab_offset);
    launch(each, places_place_kernel, p, tokens, N, vocab_offset);
    launch(each, places_order_kernel, p, tokens, vocab_offset);
    const int W = widest<floatX>;
    const bool packed = can_pack(dout, C) && C % W == 0 && (uintptr_t)dwte % (W * sizeof(float)) == 0;
    const Launch sums = launch_shape(dim3(blocks_for(N, 8), blocks_for(C, 32 * (packed ? W : 1))), dim3(32, 8));
    launch(sums, packed ? places_sum_kernel<W> : places_sum_kernel<1>, dwte, p, dout, tokens, C, vocab_offset);
    launch(sums, packed ? places_add_kernel<W> : places_add_kernel<1>, dwte, p, tokens, C, vocab_offset);
}

// A thread owns W columns of one position.
template <int W>
__global__ static void __launch_bounds__(256)
    position_backward_kernel(float* __restrict__ dwpe, const floatX* __restrict__ dout, int64_t first_row, int N,
                             int64_t elements, int T, int C) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= elements) return;
    const int first = (int)(i / C), c = (int)(i % C), rows = (N - first + T - 1) / T;
    float* to = dwpe + (first_row + first) % T * C + c;
    Packed<float, W> sum = load<W>(to);
#pragma unroll 8
    for (int b = 0; b < rows; b++) {
        const Packed<floatX, W> d = load<W>(dout + (first + (int64_t)b * T) * C + c);
        for (int k = 0; k < W; k++) sum[k] += (float)d[k];
    }
    store(to, sum);
}

// dwpe (T, C) += dout (N, C), whose row i is row n = first_row + i of the B T rows, at position n mod T: rows first,
// first + T, ... of dout share one.
static inline void position_backward(float* dwpe, const floatX* dout, int64_t first_row, int N, int T, int C) {
    const int W = widest<floatX>;
    const bool packed = can_pack(dout, C) && C % W == 0 && (uintptr_t)dwpe % (W * sizeof(float)) == 0;
    const int64_t elements = min_i64(N, T) * C;
    launch(launch_shape(blocks_for(elements, packed ? 256 * W : 256), 256),
           packed ? position_backward_kernel<W> : position_backward_kernel<1>, dwpe, dout, first_row, N, elements, T,
           C);
}
