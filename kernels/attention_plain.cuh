/*
attention_plain.cuh: the attention of attention.cuh on ordinary cores: float32, any head up to 256, any alignment.
Simpler than the tensor cores' family, and many times slower.
*/
#pragma once

#include "attention_common.cuh"

// Ordinary cores
//
// A block is 8 warps with 4 rows each: of Q, or of K where dK and dV are made. It loops over the other side in tiles of
// 32 rows. For scores each lane has a row of the tile, for sums over the tile every 32nd column. Rows are in shared
// memory as floats, padded with zeros to an odd number of 16-byte pieces, so that 8 lanes reading a piece of 8 rows do
// so from different banks. Each number read there feeds 4 rows, so that reading takes little longer than computing.
// Global memory is not the limit here, and is read number by number: arrays may have any alignment.

enum { PLAIN_THREADS = 256, PLAIN_ROWS = 32, PLAIN_WIDEST = 256 };

// Floats from one row to the next.
HOST_DEVICE static inline int plain_row(int HS) { return ((HS + 3) / 4 | 1) * 4; }

// Rows [first, first + 32) of a head; zeros from row T and column HS on.
__device__ __forceinline__ void plain_load(float* rows, const floatX* head, int stride, int first, int T, int HS) {
    for (int i = (int)threadIdx.x / 32; i < PLAIN_ROWS; i += PLAIN_THREADS / 32) {
#pragma unroll 1
        for (int d = (int)threadIdx.x % 32; d < plain_row(HS); d += 32) {
            const bool inside = first + i < T && d < HS;
            rows[i * plain_row(HS) + d] = inside ? (float)head[(int64_t)(first + i) * stride + d] : 0.0f;
        }
    }
}

// c: products of the 4 rows at a with the row at b
__device__ __forceinline__ void plain_dots(float (&c)[4], const float* a, const float* b, int HS) {
    for (int r = 0; r < 4; r++) c[r] = 0.0f;
#pragma unroll 1
    for (int d = 0; d < HS; d += 4) {
        const Packed<float, 4> v = load<4>(b + d);
        for (int r = 0; r < 4; r++) {
            const Packed<float, 4> u = load<4>(a + r * plain_row(HS) + d);
            for (int i = 0; i < 4; i++) c[r] += u[i] * v[i];
        }
    }
}

// sum (4 rows, columns lane + 32 w) += C B, B: 32 rows. c is this lane's column of C (4, 32), which the warp exchanges.
template <int W>
__device__ __forceinline__ void plain_add(float (&sum)[4][W], const float (&c)[4], float* exchange, const float* b,
                                          int HS) {
    const int lane = (int)threadIdx.x % 32;
    __syncwarp(); // all lanes have finished reading
    store(exchange + lane * 4, Packed<float, 4>{{c[0], c[1], c[2], c[3]}});
    __syncwarp();
#pragma unroll 1
    for (int j = 0; j < PLAIN_ROWS; j++) {
        const Packed<float, 4> x = load<4>(exchange + j * 4);
#pragma unroll
        for (int w = 0; w < W; w++) {
            const float v = lane + w * 32 < HS ? b[j * plain_row(HS) + lane + w * 32] : 0.0f;
            for (int r = 0; r < 4; r++) sum[r][w] += x[r] * v;
        }
    }
}

// Rows [first, first + 4) of a head = scale * sum
template <int W>
__device__ __forceinline__ void plain_store(floatX* head, int stride, int first, int T, int HS,
                                            const float (&sum)[4][W], float scale) {
    const int lane = (int)threadIdx.x % 32;
    for (int r = 0; r < 4 && first + r < T; r++) {
        floatX* to = head + (int64_t)(first + r) * stride + lane;
        for (int w = 0; w < W; w++) {
            if (lane + w * 32 < HS) to[w * 32] = (floatX)(scale * sum[r][w]);
        }
    }
}

template <int W>
__global__ static void __launch_bounds__(PLAIN_THREADS, W == 8 ? 1 : 2)
    plain_forward_kernel(floatX* __restrict__ out, float* __restrict__ lse, const floatX* __restrict__ qkv,
                         Attention s) {
    const Block block = block_of<false>(s, PLAIN_ROWS, (int)blockIdx.x);
    const int T = s.T, HS = s.HS, stride = (s.NH + 2 * s.NKV) * HS, size = PLAIN_ROWS * plain_row(HS);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, row = block.first + warp * 4;
    float *q = dynamic_shared<float>(), *k = q + size, *v = k + size, *exchange = v + size + warp * 128;
    float o[4][W] = {}, top[4], sum[4] = {}, p[4];
    for (int r = 0; r < 4; r++) top[r] = -FLT_MAX; // see softmax_rows
    plain_load(q, qkv + block.q, stride, block.first, T, HS);
    for (int key = 0; key <= block.first; key += PLAIN_ROWS) {
        __syncthreads();
        plain_load(k, qkv + block.k, stride, key, T, HS);
        plain_load(v, qkv + block.v, stride, key, T, HS);
        __syncthreads();
        plain_dots(p, q + warp * 4 * plain_row(HS), k + lane * plain_row(HS), HS);
        for (int r = 0; r < 4; r++) {
            const float score = key + lane <= row + r ? p[r] * s.scale : -INFINITY;
            const float largest = fmaxf(top[r], warp_max(score)), factor = exp2f(top[r] - largest);
            top[r] = largest;
            p[r] = exp2f(score - largest);
            sum[r] = sum[r] * factor + p[r];
            for (int w = 0; w < W; w++) o[r][w] *= factor;
        }
        plain_add(o, p, exchange, v, HS);
    }
    for (int r = 0; r < 4; r++) {
        const float l = warp_sum(sum[r]), inverse = 1.0f / l;
        for (int w = 0; w < W; w++) o[r][w] *= inverse;
        if (lane == 0 && row + r < T) lse[block.stats + row + r] = LN_2 * (top[r] + log2f(l));
    }
    plain_store(out + block.out, s.NH * HS, row, T, HS, o, 1.0f);
}

// KEYS: dK and dV of 32 keys, else dQ and D of 32 queries. With the block's own rows A1 and A2 (K and V, or Q and dO)
// and the other side's B1 and B2 both cases are: p = A1 B1^T, ds = A2 B2^T, dV += p B2, and dK or dQ += ds B1.
template <int W, bool KEYS>
__global__ static void __launch_bounds__(PLAIN_THREADS, W == 8 ? 1 : 2)
    plain_backward_kernel(floatX* __restrict__ dqkv, float* __restrict__ D, const floatX* __restrict__ dout,
                          const floatX* __restrict__ qkv, const floatX* __restrict__ out, const float* __restrict__ lse,
                          Attention s) {
    const Block block = block_of<KEYS>(s, PLAIN_ROWS, (int)blockIdx.x);
    const int T = s.T, HS = s.HS, stride = (s.NH + 2 * s.NKV) * HS, out_stride = s.NH * HS, step = plain_row(HS);
    const int lane = (int)threadIdx.x % 32, own = (int)threadIdx.x / 32 * 4, row = block.first + own;
    float *a1 = dynamic_shared<float>(), *a2 = a1 + PLAIN_ROWS * step, *b1 = a2 + PLAIN_ROWS * step;
    float *b2 = b1 + PLAIN_ROWS * step, *exchange = b2 + PLAIN_ROWS * step + own * 32;
    float sum1[4][W] = {}, sum2[4][W] = {}, p[4], ds[4];
    float dot[4], lse2[4]; // D and lse * log2 e of 4 queries; KEYS: of this lane's
    const int begin = KEYS ? block.first : 0, end = KEYS ? T : block.first + PLAIN_ROWS; // of the others
    plain_load(a1, qkv + (KEYS ? block.k : block.q), stride, block.first, T, HS);
    plain_load(a2, KEYS ? qkv + block.v : dout + block.out, KEYS ? stride : out_stride, block.first, T, HS);
    if (!KEYS) plain_load(b2, out + block.out, out_stride, block.first, T, HS);
    __syncthreads();
    for (int r = 0; r < 4 && !KEYS; r++) {
        const int64_t at = block.stats + min(row + r, T - 1);
        float part = 0.0f;
        for (int d = lane; d < HS; d += 32) part += a2[(own + r) * step + d] * b2[(own + r) * step + d];
        dot[r] = warp_sum(part);
        lse2[r] = LOG2_E * lse[at];
        if (lane == 0 && row + r < T) D[at] = dot[r];
    }
    // The queries of the group's heads from this block on, or the keys of one head up to this block.
    for (int h = 0; h < (KEYS ? s.NH / s.NKV : 1); h++) {
        for (int from = begin; from < end; from += PLAIN_ROWS) {
            __syncthreads();
            plain_load(b1, qkv + (KEYS ? block.q + h * HS : block.k), stride, from, T, HS);
            plain_load(b2, KEYS ? dout + block.out + h * HS : qkv + block.v, KEYS ? out_stride : stride, from, T, HS);
            for (int r = 0; r < 4 && KEYS; r++) {
                const int64_t at = block.stats + (int64_t)h * T + min(from + lane, T - 1);
                dot[r] = D[at];
                lse2[r] = LOG2_E * lse[at];
            }
            __syncthreads();
            plain_dots(p, a1 + own * step, b1 + lane * step, HS);
            plain_dots(ds, a2 + own * step, b2 + lane * step, HS);
            for (int r = 0; r < 4; r++) {
                const int other = from + lane;
                const bool seen = KEYS ? row + r <= other && other < T : other <= row + r;
                p[r] = seen ? exp2f(p[r] * s.scale - lse2[r]) : 0.0f;
                ds[r] = p[r] * (ds[r] - dot[r]);
            }
            if (KEYS) plain_add(sum2, p, exchange, b2, HS);
            plain_add(sum1, ds, exchange, b1, HS);
        }
    }
    plain_store(dqkv + (KEYS ? block.k : block.q), stride, row, T, HS, sum1, s.scale * LN_2);
    if (KEYS) plain_store(dqkv + block.v, stride, row, T, HS, sum2, 1.0f);
}
