/*
Rung 10 of the kernel ladder: attention on a Hopper GPU, as in FlashAttention-3. (Rung 9 has the layout of scores in
registers and the softmax, rungs 5 and 6 wgmma, TMA, the ring of barriers, and roles of warps.)

    nvcc -std=c++17 -O3 -arch=sm_90a docs/ladder/kernels/10_hopper.cu -o 10_hopper       # on Hopper; or emulated:
    g++ -std=gnu++17 -O2 -pthread -x c++ docs/ladder/kernels/10_hopper.cu -o 10_hopper -ldl

New: tasks that a warp of rung 9 does one after the other run at the same time. A block is three warpgroups of four
warps. The first, of which one thread starts TMA's copies, gives registers to the two that compute, each 64 of the
block's 128 queries. These start a product of 64 x 128 numbers and continue while tensor cores work on it. By its
specification an H100's multiprocessor has 4096 FLOP of bf16 a clock on tensor cores, and 16 exponentials. Scores of 64
queries and 128 keys keep either busy for 64 x 128 x 256 / 4096 = 64 x 128 / 16 = 512 clocks. So both have to be busy
all the time:

    within a warpgroup    P V of the former keys runs beside the softmax of the next: start S_j = Q K_j^T, then O +=
                          P V of j + 1 (keys run backwards); when S_j is done, its softmax runs beside P V; then scale
                          O, round P
    between warpgroups    They take turns: a warpgroup starts its products when the other has started its own, so that
                          one's softmax overlaps the other's products. A turn is a named barrier of 256 threads, at
                          which the one warpgroup waits (barrier_sync) and the other only arrives (barrier_arrive)

Keys run backwards from the diagonal, so only the first tile is masked, and it has a key for each query. The ring brings
K_n; K_n-1, V_n; ... K_0, V_1; V_0: the order of use. Tile number t is in slot t % SLOTS for the t / SLOTS-th time; the
parities of its barriers are rung 5's.

The count: 128 queries share a tile, so 128 FLOP for a byte from the L2 cache, in place of 64. wgmma reads K and V from
shared memory once for 64 queries, where mma.sync read them once for 16.

What limits it: the two kinds of units, if they overlap; at its beginning and end a block uses neither. The trainer's
kernel (kernels/attention_hopper.cuh) keeps its blocks, which load the next piece's tiles while they write this one's
result, and has heads of 128, shared key heads and the backward pass.

Source: Shah et al. 2024, arXiv 2407.08608 (FlashAttention-3), section 3.
*/
#include "gpu.cuh"

enum { QUERIES = 128, KEYS = 128, THREADS = 384 }; // a block's queries; a tile's keys
enum { PART = 64, SLOTS = 4, TURN = 1 }; // a warpgroup's queries; tiles of the ring; the first of two named barriers
static const double P_ERROR = 0x1p-8;    // P is rounded to bf16
static const float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
static const float SCALE = LOG2_E / 8; // log2 e / sqrt(HS)

// Where a head begins in Q, K, V and O, and the distance of its rows. head: of all B * NH
__device__ __forceinline__ int64_t head_begin(Heads s, int head) {
    return ((int64_t)(head / s.NH) * s.T * s.NH + head % s.NH) * HS;
}
__device__ __forceinline__ int row_stride(Heads s) { return s.NH * HS; }

// ---- The kernel ------------------------------------------------------------------------------------------------

struct Shared {
    bf16 q[QUERIES * HS], tiles[SLOTS][KEYS * HS];
    Barrier q_full, full[SLOTS], empty[SLOTS]; // full: the tile has arrived; empty: all 8 computing warps have read it
};

// Starts to copy tile n of the ring: rows of a head, beyond the sequence zeros.
__device__ __forceinline__ void load_tile(Shared& shared, int n, const TensorMap& map, int column, int row, int batch) {
    Barrier& full = shared.full[n % SLOTS];
    shared.empty[n % SLOTS].wait(n / SLOTS % 2 ^ 1); // in the ring's first round at once
    full.arrive_expect(sizeof shared.tiles[0]);
    tensor_load(shared.tiles[n % SLOTS], map, column, row, batch, full);
}

__device__ __forceinline__ const bf16* await_tile(Shared& shared, int n) {
    shared.full[n % SLOTS].wait(n / SLOTS % 2);
    return shared.tiles[n % SLOTS];
}

// By a warp whose lanes have all finished reading tile n.
__device__ __forceinline__ void release(Shared& shared, int n) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared.empty[n % SLOTS].arrive();
}

// Scores of keys that come after their query become -infinity. row, column: where c begins in the sequence
__device__ __forceinline__ void mask_scores(float (&c)[KEYS / 2], int row, int column) {
    const int lane = (int)threadIdx.x % 32, y = row + lane / 4, x = column + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        if (x + i / 4 * 8 + i % 2 > y + i / 2 % 2 * 8) c[i] = -INFINITY;
    }
}

// Scores of the next keys become P, not yet divided by the sum of its row. For rows g and g + 8, top: the largest score
// so far; sum: of this lane's P, relative to it. The caller has to scale P V by `factor`.
__device__ __forceinline__ void softmax_rows(float (&p)[KEYS / 2], float (&factor)[2], float (&top)[2],
                                             float (&sum)[2]) {
    float largest[2] = {-FLT_MAX, -FLT_MAX};
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], p[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        largest[r] = fmaxf(top[r], lanes_max(largest[r], 4) * SCALE);
        factor[r] = exp2_fast(top[r] - largest[r]);
        top[r] = largest[r];
        sum[r] *= factor[r]; // 0 for the first tile
    }
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        p[i] = exp2_fast(p[i] * SCALE - top[i / 2 % 2]);
        sum[i / 2 % 2] += p[i];
    }
}

// Row g of c, and row g + 8, times a factor of its own.
__device__ __forceinline__ void scale_rows(float (&c)[HS / 2], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < HS / 2; i++) c[i] *= factor[i / 2 % 2];
}

// Accumulators, rounded to bf16 in pairs, become a left operand.
__device__ __forceinline__ void round_all(unsigned (&a)[KEYS / 16][4], const float (&c)[KEYS / 2]) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
        const Packed<bf16, 2> pair = {{(bf16)c[2 * i], (bf16)c[2 * i + 1]}};
        memcpy(&a[i / 4][i % 4], &pair, sizeof pair);
    }
}

// Starts c = A B^T; A: the warpgroup's 64 rows of Q, B: a tile of K
__device__ __forceinline__ void start_rows(float (&c)[KEYS / 2], const bf16* rows, const bf16* tile) {
#pragma unroll
    for (int k = 0; k < HS / 16; k++) wgmma<bf16>(c, tile_k_major(rows).step(k), tile_k_major(tile).step(k), k > 0);
    warpgroup_commit();
}

// Starts c += A B; A: P, B: a tile of V
__device__ __forceinline__ void start_columns(float (&c)[HS / 2], const unsigned (&a)[KEYS / 16][4], const bf16* tile) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) wgmma<bf16>(c, a[k], tile_mn_major(tile, KEYS).step(k), true);
    warpgroup_commit();
}

// Writes 16 rows of O, from `row` on, divided by their sums, and their lse.
__device__ __forceinline__ void store_rows(bf16* o, float* lse, const float (&c)[HS / 2], const float (&top)[2],
                                           const float (&sum)[2], int row, int head, Heads s) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int t = row + r * 8 + lane / 4;
        const float l = lanes_sum(sum[r], 4), inverse = 1.0f / l;
        if (t >= s.T) continue;
        bf16* to = o + head_begin(s, head) + (int64_t)t * row_stride(s) + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < HS / 8; n++) {
            const Packed<bf16, 2> pair = {{(bf16)(c[4 * n + 2 * r] * inverse), (bf16)(c[4 * n + 2 * r + 1] * inverse)}};
            store(to + n * 8, pair);
        }
        if (lane % 4 == 0) lse[(int64_t)head * s.T + t] = LN_2 * (top[r] + log2f(l));
    }
}

// One thread: Q, and K_n; K_n-1, V_n; ... K_0, V_1; V_0.
__device__ __forceinline__ void copies(Shared& shared, const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                       int first, int head, Heads s) {
    const int column = head % s.NH * HS, batch = head / s.NH;
    shared.q_full.arrive_expect(sizeof shared.q);
    tensor_load(shared.q, q, column, first, batch, shared.q_full);
    load_tile(shared, 0, k, column, first, batch);
    int n = 1;
    for (int key = first - KEYS; key >= 0; key -= KEYS) {
        load_tile(shared, n++, k, column, key, batch);
        load_tile(shared, n++, v, column, key + KEYS, batch);
    }
    load_tile(shared, n, v, column, 0, batch);
}

// A warpgroup: 64 queries from first + part * 64 on.
__device__ __forceinline__ void products(bf16* o, float* lse, Shared& shared, int part, int first, int head, Heads s) {
    const bf16* query = shared.q + part * PART * HS;
    const int row = first + part * PART + (int)threadIdx.x / 32 % 4 * 16; // of the warp
    float p[KEYS / 2], out[HS / 2] = {}, top[2] = {-FLT_MAX, -FLT_MAX}, sum[2] = {}, factor[2];
    unsigned a[KEYS / 16][4];
    int n = 0;

    if (part == 1) barrier_arrive(TURN + 0, 256); // part 0 begins
    shared.q_full.wait(0);
    const bf16* tile = await_tile(shared, n);
    warpgroup_fence(p);
    start_rows(p, query, tile);
    warpgroup_wait<0>(p);
    release(shared, n++);
    mask_scores(p, row, first);
    softmax_rows(p, factor, top, sum);
    round_all(a, p);
    for (int key = first - KEYS; key >= 0; key -= KEYS) {
        tile = await_tile(shared, n);
        barrier_sync(TURN + part, 256);
        warpgroup_fence(p);
        start_rows(p, query, tile);
        tile = await_tile(shared, n + 1);
        warpgroup_fence(out, a);
        start_columns(out, a, tile);
        barrier_arrive(TURN + 1 - part, 256);
        warpgroup_wait<1>(p); // all but the last product: S is done, P V may not be
        release(shared, n++);
        softmax_rows(p, factor, top, sum);
        finish_before_wait(sum);
        warpgroup_wait<0>(out, a);
        release(shared, n++);
        scale_rows(out, factor);
        round_all(a, p);
    }
    tile = await_tile(shared, n);
    warpgroup_fence(out, a);
    start_columns(out, a, tile);
    warpgroup_wait<0>(out, a);
    if (part == 0) barrier_sync(TURN + 0, 256); // the last turn that part 1 has passed on
    store_rows(o, lse, out, top, sum, row, head, s);
}

__global__ static void __launch_bounds__(THREADS, 1)
    attention_kernel(bf16* o, float* lse, const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                     const __grid_constant__ TensorMap v, Heads s) {
    Shared& shared = *dynamic_shared<Shared>();
    const int first = (int)(gridDim.x - 1 - blockIdx.x) * QUERIES, head = (int)blockIdx.y;
    const int role = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0); // so the compiler knows: equal in the warp
    if (threadIdx.x == 0) {
        shared.q_full.init(1);
        for (int i = 0; i < SLOTS; i++) {
            shared.full[i].init(1);
            shared.empty[i].init(8);
        }
        barriers_fence();
    }
    __syncthreads();
    if (role == 0) {
        registers_release<40>(); // 128 * 40 + 256 * 232 = 384 * 168, which the block starts with
        if (threadIdx.x == 0) copies(shared, q, k, v, first, head, s);
    } else {
        registers_claim<232>();
        products(o, lse, shared, role - 1, first, head, s);
    }
}

// Heads of (B, T, NH, HS), in tiles of 128 rows.
static TensorMap heads_map(const bf16* x, Heads s) {
    return tensor_map(x, s.NH * HS, s.T, s.B, s.NH * HS, (int64_t)s.T * s.NH * HS, KEYS);
}

// o (B, T, NH, HS), lse (B, NH, T)
static void attention(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v, Heads s) {
    const dim3 blocks((unsigned)(s.T + QUERIES - 1) / QUERIES, (unsigned)(s.B * s.NH));
    launch(blocks, THREADS, sizeof(Shared), attention_kernel, o, lse, heads_map(q, s), heads_map(k, s), heads_map(v, s),
           s);
}

int main() {
    Results results = {0, 0};
    check_attention(&results, {1, 1, 1}, 0.0f, P_ERROR, attention);
    check_attention(&results, {2, 200, 2}, 0.0f, P_ERROR, attention);
    check_attention(&results, {1, 520, 1}, 20.0f, P_ERROR, attention);
    check_attention(&results, {1, 300, 1}, -20.0f, P_ERROR, attention);
    measure_attention({8, 1024, 12}, attention);
    return finish(&results);
}
