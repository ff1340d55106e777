/*
attention_hopper.cuh: the tensor core kernels of attention.cuh for Hopper GPUs: the same numbers from the same arrays by
wgmma and TMA (hopper.cuh), as in FlashAttention-3 (Shah et al. 2024). Heads of 64 or 128 of 16-bit floats.

Through mma.sync, which attention.cuh uses, a Hopper GPU reaches about 60 % of its tensor cores' peak, and its warps
spend their time on copies, addresses and fragments. Here a warpgroup, four warps, starts a product of 64 x 128 numbers
and continues, and a copy engine brings the tiles. A block is three warpgroups. One copies, which takes one thread, and
hands its registers over to the two that compute; each of these owns 64 of the block's 128 rows. Each multiprocessor has
one block, which does one piece of work after the other, the largest first: while the rows of one piece are finished and
written, the next tiles are in flight. The two roles communicate only through a ring of tiles (TileRing). Blocks take
pieces from a counter (next_piece): one that starts late, as its multiprocessor carries a message, takes fewer of them.
The bits of a piece do not depend on the block that computes it.

Forward. In heads of 64 a tile, 64 queries and 128 keys, takes equal time on tensor cores and exponential units. So both
have to be busy all the time:

    within a warpgroup    S of the next keys is started before the softmax of the current ones. A step: start S_j = Q
                          K_j^T and O += P V of the former keys; when S_j is done, its softmax runs beside P V; then
                          scale O, round P
    between warpgroups    They take turns, by a named barrier for each: one may start its products when the other has
                          started its own, so that one's softmax overlaps the other's products

Keys run backwards from the diagonal. Only the first tile of a piece is masked, and it has a key for each query, so
later tiles start from a finite maximum.

Backward. Two kernels and 7 products, for the reasons of attention.cuh: all sums in registers, no atomics, the same bits
each time. (FlashAttention-3 and ThunderKittens add up dQ in memory in any order. In a fixed order, from partial sums,
that would be (T / 128 + 1) / 2 float arrays as large as Q, written and read: 1.8 GB or 0.4 ms for one layer of GPT-2
124M and 64 x 1024 tokens. The two further products are 103 GFLOP: 0.2 ms at 500 TFLOP/s.)

    queries    own Q and dO: S = Q K^T, dP = dO V^T; dS, in registers, is the left operand of dQ += dS K. dP is computed
               during the exponentials, dQ during the exponentials of the next keys
    keys       own K and V: S^T = K Q^T and dP^T = V dO^T, of 64 queries at a time, since registers also hold dK and dV,
               and in heads of 64 K and V: these products read half as much shared memory, where the next piece's K and
               V arrive meanwhile. P^T and dS^T are left operands of dV += P^T dO and dK += dS^T Q. lse and D belong to
               columns here: two more warps of the first warpgroup put them beside the tiles
*/
#pragma once

#include "attention_common.cuh"
#include "hopper.cuh"
#include "row_sum.cuh" // gpu_properties

enum {
    PIECE = 128,          // rows of a piece of work, and of its tiles except the queries in kernels that own keys
    PART = 64,            // a warpgroup's part of these
    HOPPER_THREADS = 384, // a warpgroup that copies, two that compute
    COPY_REGISTERS = 40,  // 128 * 40 + 256 * 232 = 384 * 168, which the block starts with
    COMPUTE_REGISTERS = 232,
    KEYS_COPY_REGISTERS = 24, // the same for the kernel that owns keys, whose two sums need more
    KEYS_COMPUTE_REGISTERS = 240,
    TURN = 1, // named barriers: a warpgroup's turn to start products; and its own threads
    TEAM = 3,
};

// ---- Pieces of work, and tiles in flight ------------------------------------------------------------------------

// The pieces of a launch are dealt by a counter. Each of its blocks asks until there is none left. After one question
// for each piece and one for each block the counter is 0 again, for the stream's next kernel.
struct Pieces {
    int count;
    unsigned last; // the last of these questions
};
static __device__ unsigned pieces_taken;
// The next piece that no block has; from pieces.count on there is none.
__device__ __forceinline__ int next_piece(Pieces pieces) { return (int)atomicInc(&pieces_taken, pieces.last); }

// A value that is the same in all lanes, in a form that the compiler recognises.
__device__ __forceinline__ int warp_uniform(int v) { return __shfl_sync(0xffffffffu, v, 0); }

// Tiles are used in the order in which they arrive. Number n is in slot n % SLOTS; full: it has arrived; empty: all 8
// computing warps are done with it. `own`: the rows that a piece owns, outside the ring. `given`: `piece` is known.
template <int SLOTS>
struct TileRing {
    Barrier given, own_full, own_empty, full[SLOTS], empty[SLOTS];
    int piece;

    // stats_warps: further warps that fill a slot, each lane a part of it, and read `piece`
    __device__ __forceinline__ void start(int stats_warps) {
        if (threadIdx.x == 0) {
            given.init(1), own_full.init(1), own_empty.init(8 + stats_warps);
            for (int i = 0; i < SLOTS; i++) full[i].init(1 + 32 * stats_warps), empty[i].init(8);
            barriers_fence();
        }
        __syncthreads();
    }
    // The copying thread passes its next piece on when all others have read `piece`, and its rows are not needed.
    __device__ __forceinline__ void give(int next, int round, CALLER_LINE) {
        own_empty.wait(round % 2 ^ 1, at);
        piece = next;
        given.arrive();
    }
    __device__ __forceinline__ int await_piece(int round, CALLER_LINE) {
        given.wait(round % 2, at);
        return piece;
    }
    __device__ __forceinline__ void await_room(int n, CALLER_LINE) { empty[n % SLOTS].wait(n / SLOTS % 2 ^ 1, at); }
    __device__ __forceinline__ void await_tile(int n, CALLER_LINE) { full[n % SLOTS].wait(n / SLOTS % 2, at); }
    // By a warp whose lanes have all finished reading.
    __device__ __forceinline__ void release(int n) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) empty[n % SLOTS].arrive();
    }
    __device__ __forceinline__ void release_own() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) own_empty.arrive();
    }
};

// A kernel's shared memory. ROWS of a head are HS / 64 tiles of 64 columns, one after the other.
template <int HS>
struct ForwardShared {
    static constexpr int SLOTS = HS == 64 ? 8 : 4;
    floatX q[PIECE * HS], out[2][PART * HS], tiles[SLOTS][PIECE * HS];
    TileRing<SLOTS> ring;
};
template <int HS>
struct QueriesShared {
    static constexpr int SLOTS = HS == 64 ? 8 : 4;
    floatX q[PIECE * HS], dout[PIECE * HS], dq[2][PART * HS], tiles[SLOTS][PIECE * HS];
    TileRing<SLOTS> ring;
};
template <int HS>
struct KeysShared {
    static constexpr int SLOTS = HS == 64 ? 5 : 3;
    floatX k[PIECE * HS], v[PIECE * HS], dk[2][PART * HS], dv[2][PART * HS];
    struct {
        floatX q[PART * HS], dout[PART * HS];
    } tiles[SLOTS];
    float lse2[SLOTS][PART], D[SLOTS][PART]; // lse * log2 e
    TileRing<SLOTS> ring;
};

// The kernel's dynamic shared memory; a size that is too large is an error at compile time, not at launch.
template <class Shared>
__device__ __forceinline__ Shared& block_shared() {
    static_assert(sizeof(Shared) <= 227 << 10, "shared memory of a block");
    return *dynamic_shared<Shared>();
}

// Columns of a row of qkv at which a piece's heads begin, and its sequence.
struct Columns {
    int q, k, v, batch;
};
__device__ __forceinline__ Columns columns_of(Attention s, Block block) {
    const int kv = s.NH + block.h / (s.NH / s.NKV);
    return {block.h * s.HS, kv * s.HS, (kv + s.NKV) * s.HS, block.b};
}

// Loads ROWS of a head from `row` on, by one thread; rows beyond the sequence are zeros.
template <int HS, int ROWS>
__device__ __forceinline__ void load_head(floatX* tiles, const TensorMap& map, int column, int row, int batch,
                                          Barrier& barrier) {
#pragma unroll
    for (int c = 0; c < HS; c += 64) {
#pragma unroll
        for (int r = 0; r < ROWS; r += PART)
            tensor_load(tiles + c * ROWS + r * 64, map, column + c, row + r, batch, barrier);
    }
}

// The thread's accumulators c, seen as attention_common.cuh sees them: [n][4], four numbers of the 8 columns from 8 n
// on. They stay in the same registers; only the type of the array changes.
template <int N>
__device__ __forceinline__ float (&by_columns(float (&c)[N]))[N / 4][4] {
    return reinterpret_cast<float(&)[N / 4][4]>(c);
}

// A warpgroup writes its 64 rows of a head, rounded, through `tiles`; its first thread continues when TMA has begun.
template <int HS>
__device__ __forceinline__ void store_head(const TensorMap& map, int column, int row, int batch, floatX* tiles,
                                           float (&c)[HS / 2], int part) {
    const int thread = (int)threadIdx.x % 128, row_of_lane = thread / 32 * 16 + thread % 16,
              to_right = thread / 16 % 2 * 8;
    if (thread == 0) tensor_store_wait_read<0>(); // the former piece has left
    barrier_sync(TEAM + part, 128);
#pragma unroll
    for (int k = 0; k < HS / 16; k++) {
        unsigned a[4];
        round_to_left<HS>(a, by_columns(c), k);
        store_matrix_x4(tiles + k / 4 * PART * 64 + tile_place(row_of_lane, k % 4 * 16 + to_right), a);
    }
    shared_fence();
    barrier_sync(TEAM + part, 128);
    if (thread == 0) {
#pragma unroll
        for (int at = 0; at < HS; at += 64) tensor_store(map, tiles + at * PART, column + at, row, batch);
        tensor_store_commit();
    }
}

// ---- Products, started: 64 rows of a warpgroup ------------------------------------------------------------------

// The left operand of start_rows(), 16 columns a step: 64 of PIECE rows, from `part` * 64 on. In shared memory:
template <int HS>
__device__ __forceinline__ void own_rows(Tile<K_MAJOR> (&a)[HS / 16], const floatX* rows, int part) {
#pragma unroll
    for (int k = 0; k < HS / 16; k++) a[k] = tile_k_major(rows + part * PART * 64).step(k % 4, k / 4 * PIECE);
}
// In registers, so that a product reads half as much shared memory:
template <int HS>
__device__ __forceinline__ void own_rows(unsigned (&a)[HS / 16][4], const floatX* rows, int part) {
    const int thread = (int)threadIdx.x % 128, row = part * PART + thread / 32 * 16 + thread % 16;
#pragma unroll
    for (int k = 0; k < HS / 16; k++)
        ldmatrix_x4(a[k], rows + k / 4 * PIECE * 64 + tile_place(row, k % 4 * 16 + thread / 16 % 2 * 8));
}

// c = A B^T. A: (64, HS), by own_rows(); B: N rows of a head
template <int HS, int N, class A>
__device__ __forceinline__ void start_rows(float (&c)[N / 2], A (&a)[HS / 16], const floatX* b) {
    warpgroup_fence(c, a);
#pragma unroll
    for (int k = 0; k < HS / 16; k++) wgmma<floatX>(c, a[k], tile_k_major(b).step(k % 4, k / 4 * N), k > 0);
    warpgroup_commit();
}

// c += A B. A: (64, N) in registers; B: N rows of a head
template <int HS, int N>
__device__ __forceinline__ void start_columns(float (&c)[HS / 2], unsigned (&a)[N / 16][4], const floatX* b) {
    const Tile<MN_MAJOR> right = tile_mn_major(b, N);
    warpgroup_fence(c, a);
#pragma unroll
    for (int k = 0; k < N / 16; k++) wgmma<floatX>(c, a[k], right.step(k), true);
    warpgroup_commit();
}

// Accumulators, rounded, as left operand.
template <int N>
__device__ __forceinline__ void round_all(unsigned (&a)[N / 16][4], float (&c)[N / 2]) {
#pragma unroll
    for (int k = 0; k < N / 16; k++) round_to_left<N>(a[k], by_columns(c), k);
}

// ---- Copies, by one thread --------------------------------------------------------------------------------------

// Passes each piece on to the other warps and calls load(block, columns), which fills own_full and the piece's tiles.
template <bool KEYS, int SLOTS, class Load>
__device__ __forceinline__ void copy_pieces(TileRing<SLOTS>& ring, Attention s, Pieces pieces, Load load) {
    int round = 0, piece;
    for (; (piece = next_piece(pieces)) < pieces.count; round++) {
        const Block block = block_of<KEYS>(s, PIECE, piece);
        ring.give(piece, round);
        load(block, columns_of(s, block));
    }
    ring.give(piece, round); // no more
}

// The next tile of the ring: 128 rows of a head.
template <int HS, int SLOTS>
__device__ __forceinline__ void load_tile(TileRing<SLOTS>& ring, floatX (&tiles)[SLOTS][PIECE * HS], int n,
                                          const TensorMap& map, int column, int row, int batch) {
    ring.await_room(n);
    ring.full[n % SLOTS].arrive_expect(sizeof tiles[0]);
    load_head<HS, PIECE>(tiles[n % SLOTS], map, column, row, batch, ring.full[n % SLOTS]);
}

// ---- Forward ----------------------------------------------------------------------------------------------------

// Loads Q of each piece, and K_n; K_n-1, V_n; ... K_0, V_1; V_0 of its n + 1 tiles of keys.
template <int HS>
__device__ __forceinline__ void forward_copies(ForwardShared<HS>& shared, const TensorMap& qkv, Attention s,
                                               Pieces pieces) {
    auto& ring = shared.ring;
    int n = 0;
    copy_pieces<false>(ring, s, pieces, [&](Block block, Columns at) {
        ring.own_full.arrive_expect(sizeof shared.q);
        load_head<HS, PIECE>(shared.q, qkv, at.q, block.first, at.batch, ring.own_full);
        for (int key = block.first; key >= -PIECE; key -= PIECE) {
            if (key >= 0) load_tile<HS>(ring, shared.tiles, n++, qkv, at.k, key, at.batch);
            if (key < block.first) load_tile<HS>(ring, shared.tiles, n++, qkv, at.v, key + PIECE, at.batch);
        }
    });
}

template <int HS>
__device__ __forceinline__ void forward_products(ForwardShared<HS>& shared, const TensorMap& out,
                                                 float* __restrict__ lse, Attention s, Pieces pieces, int part) {
    constexpr int KEYS = PIECE, SLOTS = ForwardShared<HS>::SLOTS;
    auto& ring = shared.ring;
    const int lane = (int)threadIdx.x % 32;
    Tile<K_MAJOR> q[HS / 16];
    own_rows<HS>(q, shared.q, part);
    if (part == 1) barrier_arrive(TURN + 0, 256); // part 0 begins
    for (int round = 0, n = 0, piece; (piece = ring.await_piece(round)) < pieces.count; round++) {
        const Block block = block_of<false>(s, PIECE, piece);
        const int row = block.first + part * PART + (int)threadIdx.x / 32 % 4 * 16; // of the warp
        float o[HS / 2] = {}, p[KEYS / 2], top[2] = {-FLT_MAX, -FLT_MAX}, sum[2] = {}, factor[2];
        unsigned a[KEYS / 16][4];

        ring.own_full.wait(round % 2);
        ring.await_tile(n);
        start_rows<HS, KEYS>(p, q, shared.tiles[n % SLOTS]);
        warpgroup_wait<0>(p);
        ring.release(n++);
        mask_scores<KEYS, false>(by_columns(p), row, block.first);
        softmax_rows<KEYS>(by_columns(p), factor, top, sum, s.scale);
        round_all<KEYS>(a, p);
        for (int key = block.first - KEYS; key >= 0; key -= KEYS) {
            ring.await_tile(n);
            barrier_sync(TURN + part, 256);
            start_rows<HS, KEYS>(p, q, shared.tiles[n % SLOTS]);
            ring.await_tile(n + 1);
            start_columns<HS, KEYS>(o, a, shared.tiles[(n + 1) % SLOTS]);
            barrier_arrive(TURN + 1 - part, 256);
            warpgroup_wait<1>(p);
            ring.release(n++);
            softmax_rows<KEYS>(by_columns(p), factor, top, sum, s.scale);
            finish_before_wait(sum);
            warpgroup_wait<0>(o, a);
            ring.release(n++);
            scale_rows<HS>(by_columns(o), factor);
            round_all<KEYS>(a, p);
        }
        ring.release_own();
        ring.await_tile(n);
        start_columns<HS, KEYS>(o, a, shared.tiles[n % SLOTS]);
        warpgroup_wait<0>(o, a);
        ring.release(n++);

#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int t = row + r * 8 + lane / 4;
            const float l = quad_sum(sum[r]);
            factor[r] = 1.0f / l;
            if (lane % 4 == 0 && t < s.T) lse[block.stats + t] = LN_2 * (top[r] * s.scale + log2f(l));
        }
        scale_rows<HS>(by_columns(o), factor);
        const Columns at = columns_of(s, block);
        store_head<HS>(out, at.q, block.first + part * PART, at.batch, shared.out[part], o, part);
    }
    if (part == 0) barrier_sync(TURN + 0, 256); // consumes the last turn that part 1 passed on
    tensor_store_wait_read<0>();
}

template <int HS>
__global__ static void __launch_bounds__(HOPPER_THREADS, 1)
    hopper_forward_kernel(const __grid_constant__ TensorMap qkv, const __grid_constant__ TensorMap out,
                          float* __restrict__ lse, Attention s, Pieces pieces) {
    auto& shared = block_shared<ForwardShared<HS>>();
    shared.ring.start(0);
    const int role = warp_uniform((int)threadIdx.x / 128);
    if (role == 0) {
        registers_release<COPY_REGISTERS>();
        if (threadIdx.x == 0) forward_copies<HS>(shared, qkv, s, pieces);
    } else {
        registers_claim<COMPUTE_REGISTERS>();
        forward_products<HS>(shared, out, lse, s, pieces, role - 1);
    }
}

// ---- Backward, by queries: dQ, and D for the keys ---------------------------------------------------------------

// Loads Q and dO of each piece, and K and V of its tiles of keys.
template <int HS>
__device__ __forceinline__ void queries_copies(QueriesShared<HS>& shared, const TensorMap& qkv, const TensorMap& dout,
                                               Attention s, Pieces pieces) {
    auto& ring = shared.ring;
    int n = 0;
    copy_pieces<false>(ring, s, pieces, [&](Block block, Columns at) {
        ring.own_full.arrive_expect(2 * sizeof shared.q);
        load_head<HS, PIECE>(shared.q, qkv, at.q, block.first, at.batch, ring.own_full);
        load_head<HS, PIECE>(shared.dout, dout, at.q, block.first, at.batch, ring.own_full);
        for (int key = block.first; key >= 0; key -= PIECE) {
            load_tile<HS>(ring, shared.tiles, n++, qkv, at.k, key, at.batch);
            load_tile<HS>(ring, shared.tiles, n++, qkv, at.v, key, at.batch);
        }
    });
}

// Dot products of rows g and g + 8 of 16 rows of two heads. Four lanes share a row, as they do in accumulators.
template <int HS>
__device__ __forceinline__ void row_products(float (&dot)[2], const floatX* __restrict__ x,
                                             const floatX* __restrict__ y, int stride, int row, int T) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int64_t from = (int64_t)min(row + r * 8 + (int)threadIdx.x % 32 / 4, T - 1) * stride;
        dot[r] = 0.0f;
#pragma unroll
        for (int d = 0; d < HS; d += 32) {
            const int64_t at = from + d + threadIdx.x % 4 * 8;
            const Packed<floatX, 8> u = load<8>(x + at), w = load<8>(y + at);
            for (int i = 0; i < 8; i++) dot[r] += (float)u[i] * (float)w[i];
        }
        dot[r] = quad_sum(dot[r]);
    }
}

template <int HS>
__device__ __forceinline__ void queries_products(QueriesShared<HS>& shared, const TensorMap& dqkv,
                                                 float* __restrict__ D, const floatX* __restrict__ dout,
                                                 const floatX* __restrict__ out, const float* __restrict__ lse,
                                                 Attention s, Pieces pieces, int part) {
    constexpr int KEYS = PIECE, SLOTS = QueriesShared<HS>::SLOTS;
    auto& ring = shared.ring;
    const int lane = (int)threadIdx.x % 32;
    Tile<K_MAJOR> q[HS / 16], d[HS / 16]; // Q, dO
    own_rows<HS>(q, shared.q, part);
    own_rows<HS>(d, shared.dout, part);
    for (int round = 0, n = 0, piece; (piece = ring.await_piece(round)) < pieces.count; round++) {
        const Block block = block_of<false>(s, PIECE, piece);
        const int row = block.first + part * PART + (int)threadIdx.x / 32 % 4 * 16; // of the warp
        float dq[HS / 2] = {}, dot[2], lse2[2];                                     // D, lse * log2 e
        unsigned a[KEYS / 16][4];
        row_products<HS>(dot, dout + block.out, out + block.out, s.NH * HS, row, s.T);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int t = row + r * 8 + lane / 4;
            if (lane % 4 == 0 && t < s.T) D[block.stats + t] = dot[r];
            lse2[r] = LOG2_E * lse[block.stats + min(t, s.T - 1)];
        }
        ring.own_full.wait(round % 2);
        for (int key = block.first; key >= 0; key -= KEYS, n += 2) {
            const floatX *k = shared.tiles[n % SLOTS], *v = shared.tiles[(n + 1) % SLOTS];
            float p[KEYS / 2], ds[KEYS / 2]; // in here, so that nothing of the last step is kept
            ring.await_tile(n);
            start_rows<HS, KEYS>(p, q, k);
            ring.await_tile(n + 1);
            warpgroup_wait<1>(dq, a);
            // Tile n holds K, n + 1 holds V. The former step's K, tile n - 2, is also read by its dQ += dS K, which
            // only this wait ends; so it is released a step later than its V.
            if (key < block.first) ring.release(n - 2);
            start_rows<HS, KEYS>(ds, d, v); // dP
            warpgroup_wait<1>(p);
            if (key == block.first) {
                __syncwarp(); // for the compiler: a branch around these instructions, not a condition in each
                mask_scores<KEYS, false>(by_columns(p), row, key);
            }
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) p[i] = exp2_fast(p[i] * s.scale - lse2[i / 2 % 2]);
            finish_before_wait(p);
            warpgroup_wait<0>(ds);
            ring.release(n + 1);
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) ds[i] = p[i] * (ds[i] - dot[i / 2 % 2]);
            round_all<KEYS>(a, ds);
            start_columns<HS, KEYS>(dq, a, k);
        }
        ring.release_own();
        warpgroup_wait<0>(dq, a);
        ring.release(n - 2);
#pragma unroll
        for (int i = 0; i < HS / 2; i++) dq[i] *= s.scale * LN_2;
        const Columns at = columns_of(s, block);
        store_head<HS>(dqkv, at.q, block.first + part * PART, at.batch, shared.dq[part], dq, part);
    }
    tensor_store_wait_read<0>();
}

template <int HS>
__global__ static void __launch_bounds__(HOPPER_THREADS, 1)
    hopper_backward_queries(const __grid_constant__ TensorMap dqkv_map, const __grid_constant__ TensorMap dout_map,
                            const __grid_constant__ TensorMap qkv_map, float* __restrict__ D,
                            const floatX* __restrict__ dout, const floatX* __restrict__ out,
                            const float* __restrict__ lse, Attention s, Pieces pieces) {
    auto& shared = block_shared<QueriesShared<HS>>();
    shared.ring.start(0);
    const int role = warp_uniform((int)threadIdx.x / 128);
    if (role == 0) {
        registers_release<COPY_REGISTERS>();
        if (threadIdx.x == 0) queries_copies<HS>(shared, qkv_map, dout_map, s, pieces);
    } else {
        registers_claim<COMPUTE_REGISTERS>();
        queries_products<HS>(shared, dqkv_map, D, dout, out, lse, s, pieces, role - 1);
    }
}

// ---- Backward, by keys: dK and dV -------------------------------------------------------------------------------

// Loads K and V of each piece, and Q and dO of its queries, 64 at a time, head by head of the group.
template <int HS>
__device__ __forceinline__ void keys_copies(KeysShared<HS>& shared, const TensorMap& qkv, const TensorMap& dout,
                                            Attention s, Pieces pieces) {
    constexpr int SLOTS = KeysShared<HS>::SLOTS;
    auto& ring = shared.ring;
    int n = 0;
    copy_pieces<true>(ring, s, pieces, [&](Block block, Columns at) {
        ring.own_full.arrive_expect(2 * sizeof shared.k);
        load_head<HS, PIECE>(shared.k, qkv, at.k, block.first, at.batch, ring.own_full);
        load_head<HS, PIECE>(shared.v, qkv, at.v, block.first, at.batch, ring.own_full);
        const int columns = s.NH / s.NKV * HS; // of the group's heads
        for (int column = at.q; column < at.q + columns; column += HS) {
            for (int query = block.first; query < s.T; query += PART, n++) {
                auto& tile = shared.tiles[n % SLOTS];
                Barrier& full = ring.full[n % SLOTS];
                ring.await_room(n);
                full.arrive_expect(sizeof tile);
                load_head<HS, PART>(tile.q, qkv, column, query, at.batch, full);
                load_head<HS, PART>(tile.dout, dout, column, query, at.batch, full);
            }
        }
    });
}

// Loads lse * log2 e, or D, of these queries, by a warp each. Queries beyond the sequence, whose dO is zero, add
// nothing to dK and dV as long as p is finite.
template <int HS>
__device__ __forceinline__ void keys_stats(TileRing<KeysShared<HS>::SLOTS>& ring,
                                           float (&stats)[KeysShared<HS>::SLOTS][PART],
                                           const float* __restrict__ numbers, float scale, Attention s, Pieces pieces) {
    constexpr int SLOTS = KeysShared<HS>::SLOTS;
    for (int round = 0, n = 0, piece; (piece = ring.await_piece(round)) < pieces.count; round++) {
        ring.release_own(); // `piece` has been read
        const Block block = block_of<true>(s, PIECE, piece);
        const float* head = numbers + block.stats;
        for (int h = 0; h < s.NH / s.NKV; h++, head += s.T) {
            for (int query = block.first; query < s.T; query += PART, n++) {
                ring.await_room(n);
#pragma unroll 1
                for (int i = (int)threadIdx.x % 32; i < PART; i += 32)
                    stats[n % SLOTS][i] = query + i < s.T ? scale * head[query + i] : 0.0f;
                ring.full[n % SLOTS].arrive();
            }
        }
    }
}

// Number i after round_all(). It is read while the product dV += P^T dO reads it, too (hopper.cuh, Asynchronous).
template <int K>
__device__ __forceinline__ float p_of(const unsigned (&a)[K][4], int i) {
    return (float)pair_of_bits(a[i / 8][i % 8 / 2])[i % 2];
}

template <int HS>
__device__ __forceinline__ void keys_products(KeysShared<HS>& shared, const TensorMap& dqkv, Attention s, Pieces pieces,
                                              int part) {
    constexpr int QUERIES = PART, SLOTS = KeysShared<HS>::SLOTS;
    auto& ring = shared.ring;
    const int lane = (int)threadIdx.x % 32;
    constexpr bool KEPT = HS == 64; // K and V, in registers; heads of 128 have no room for them
    std::conditional_t<KEPT, unsigned[4], Tile<K_MAJOR>> k[HS / 16], v[HS / 16];
    for (int round = 0, n = 0, piece; (piece = ring.await_piece(round)) < pieces.count; round++) {
        const Block block = block_of<true>(s, PIECE, piece);
        const int own = block.first + part * PART, row = own + (int)threadIdx.x / 32 % 4 * 16; // of the warp
        float dk[HS / 2] = {}, dv[HS / 2] = {};
        unsigned a[QUERIES / 16][4], b[QUERIES / 16][4]; // P^T and dS^T
        // The tile that dV and dK in flight read, to be released when the next step's wait has ended them; -1: none. It
        // need not be n - 1: tiles before the keys are released at once, and start no product.
        int used = -1;
        ring.own_full.wait(round % 2);
        own_rows<HS>(k, shared.k, part);
        own_rows<HS>(v, shared.v, part);
        if (KEPT) ring.release_own();
        for (int h = 0; h < s.NH / s.NKV; h++) {
            for (int query = block.first; query < s.T; query += QUERIES, n++) {
                ring.await_tile(n);
                if (query < own) { // all of these are before the keys
                    ring.release(n);
                    continue;
                }
                const auto& tile = shared.tiles[n % SLOTS];
                const float* D_of = shared.D[n % SLOTS];
                float p[QUERIES / 2], ds[QUERIES / 2]; // in here, so that nothing of the last step is kept
                start_rows<HS, QUERIES>(p, k, tile.q); // S^T
                warpgroup_wait<1>(dv, dk, a, b);
                if (used >= 0) ring.release(used);
                start_rows<HS, QUERIES>(ds, v, tile.dout); // dP^T
                warpgroup_wait<1>(p, k);
                if (query == own) {
                    __syncwarp(); // as in queries_products
                    mask_scores<QUERIES, true>(by_columns(p), row, query);
                }
                exp_columns<QUERIES>(by_columns(p), shared.lse2[n % SLOTS], s.scale);
                round_all<QUERIES>(a, p);
                start_columns<HS, QUERIES>(dv, a, tile.dout);
                warpgroup_wait<1>(ds, v);
#pragma unroll
                for (int i = 0; i < QUERIES / 2; i += 4) {
                    const Packed<float, 2> dot = load<2>(D_of + i * 2 + lane % 4 * 2);
#pragma unroll
                    for (int j = 0; j < 4; j++) ds[i + j] = p_of(a, i + j) * (ds[i + j] - dot[j % 2]);
                }
                round_all<QUERIES>(b, ds);
                start_columns<HS, QUERIES>(dk, b, tile.q);
                used = n;
            }
        }
        if (!KEPT) ring.release_own();
        warpgroup_wait<0>(dv, dk, a, b);
        if (used >= 0) ring.release(used);
#pragma unroll
        for (int i = 0; i < HS / 2; i++) dk[i] *= s.scale * LN_2;
        const Columns at = columns_of(s, block);
        store_head<HS>(dqkv, at.k, own, at.batch, shared.dk[part], dk, part);
        store_head<HS>(dqkv, at.v, own, at.batch, shared.dv[part], dv, part);
    }
    tensor_store_wait_read<0>();
}

template <int HS>
__global__ static void __launch_bounds__(HOPPER_THREADS, 1)
    hopper_backward_keys(const __grid_constant__ TensorMap dqkv_map, const __grid_constant__ TensorMap dout_map,
                         const __grid_constant__ TensorMap qkv_map, const float* __restrict__ lse,
                         const float* __restrict__ D, Attention s, Pieces pieces) {
    auto& shared = block_shared<KeysShared<HS>>();
    shared.ring.start(2);
    const int role = warp_uniform((int)threadIdx.x / 128);
    if (role == 0) {
        registers_release<KEYS_COPY_REGISTERS>();
        const int warp = warp_uniform((int)threadIdx.x / 32);
        if (warp == 1 || warp == 2)
            keys_stats<HS>(shared.ring, warp == 1 ? shared.lse2 : shared.D, warp == 1 ? lse : D,
                           warp == 1 ? LOG2_E : 1.0f, s, pieces);
        if (threadIdx.x == 0) keys_copies<HS>(shared, qkv_map, dout_map, s, pieces);
    } else {
        registers_claim<KEYS_COMPUTE_REGISTERS>();
        keys_products<HS>(shared, dqkv_map, s, pieces, role - 1);
    }
}

// ---- Called by attention.cuh ------------------------------------------------------------------------------------

// This kernel has shared memory only when compiled for Hopper's own target: so the host can detect whether the program
// has such code for the GPU.
#ifdef __CUDACC__
__global__ static void hopper_code_kernel() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ volatile int present;
    present = 1;
#endif
}
#endif
static inline bool has_hopper_code(void) {
#ifdef __CUDACC__
    static int found = -1;
    if (found < 0) {
        cudaFuncAttributes about;
        const cudaError_t e = cudaFuncGetAttributes(&about, hopper_code_kernel);
        if (e != cudaSuccess) (void)cudaGetLastError(); // the program has no code for this GPU
        found = e == cudaSuccess && about.sharedSizeBytes > 0 && is_hopper();
    }
    return found;
#else
    return true;
#endif
}

// (B, T, columns), in boxes of 64 rows.
template <class T>
static TensorMap sequences_map(const T* x, Attention s, int B, int columns) {
    return tensor_map(x, columns, s.T, B, columns, (int64_t)s.T * columns, PART);
}

static inline Launch hopper_launch(Pieces pieces, size_t shared) {
    const unsigned blocks = pieces.last + 1 - (unsigned)pieces.count;
    return launch_shape(blocks, HOPPER_THREADS, shared);
}
static inline Pieces pieces_of(Attention s) {
    const int count = s.heads * blocks_for(s.T, PIECE), blocks = min(count, gpu_properties()->multiProcessorCount);
    return {count, (unsigned)(count + blocks - 1)};
}

template <int HS>
static void hopper_forward(floatX* out, float* lse, const floatX* qkv, Attention s) {
    const int B = s.heads / s.NH;
    const Pieces pieces = pieces_of(s);
    if (pieces.count == 0) return;
    const TensorMap from = sequences_map(qkv, s, B, (s.NH + 2 * s.NKV) * HS), to = sequences_map(out, s, B, s.NH * HS);
    launch(hopper_launch(pieces, sizeof(ForwardShared<HS>)), hopper_forward_kernel<HS>, from, to, lse, s, pieces);
}

template <int HS>
static void hopper_backward(floatX* dqkv, float* D, const floatX* dout, const floatX* qkv, const floatX* out,
                            const float* lse, Attention s, Attention k) {
    const int B = s.heads / s.NH, columns = (s.NH + 2 * s.NKV) * HS;
    const Pieces of_queries = pieces_of(s), of_keys = pieces_of(k);
    if (of_queries.count == 0) return;
    const TensorMap from = sequences_map(qkv, s, B, columns), given = sequences_map(dout, s, B, s.NH * HS);
    const TensorMap to = sequences_map(dqkv, s, B, columns);
    launch(hopper_launch(of_queries, sizeof(QueriesShared<HS>)), hopper_backward_queries<HS>, to, given, from, D, dout,
           out, lse, s, of_queries);
    launch(hopper_launch(of_keys, sizeof(KeysShared<HS>)), hopper_backward_keys<HS>, to, given, from, lse, D, k,
           of_keys);
}
