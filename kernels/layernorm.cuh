/*
layernorm.cuh: layernorm.h on a GPU: LayerNorm, and without CENTERED RMSNorm, which has no mean, no shift b and no db.
Parameters and activations are floatX, statistics and sums float32.

Forward. A warp (C up to 1024) or several keep their row in shared memory, so it is read once for mean, variance and
output: 2 reads and writes of C numbers a row. With the residual connection before it, sum = residual + (branch + bias)
is fused: 4 instead of 5. The statistics are those of the rounded sum, which the backward pass reads.

Backward. One pass over dout, x and dx updates dx and sums dw and db, and for norm2 the rows of dx before and after: 3
reads and 1 write. A thread owns columns, and keeps their sums in registers while its block goes through its rows; while
it reduces one, cp.async brings the next into shared memory, as registers are scarce. There are as many blocks as the
GPU holds at a time, and each writes one row of each sum, which are added in order: some percent more traffic, most of
it within L2. A row wider than the registers of a block is cut into slabs, and the blocks of each slab read all of it
for the two means.
*/
#pragma once

#include "row_sum.cuh"

// As in layernorm.h.
typedef struct {
    floatX *x, *out;     // (N, C)
    float *mean, *rstd;  // (N): for the backward pass
    const floatX *w, *b; // (C)
} Norm;
typedef struct {
    float *w, *b, *before, *after; // (C)
} NormGradients;

// ADD: x is the residual stream, and sum = x + (branch + bias) is stored and normalised instead of x.
template <int W, bool ADD, bool CENTERED>
__global__ static void __launch_bounds__(ROW_THREADS)
    norm_forward_kernel(floatX* sum, floatX* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd,
                        const floatX* x, const floatX* __restrict__ branch, const floatX* __restrict__ bias,
                        const floatX* __restrict__ w, const floatX* __restrict__ b, int N, int C, float eps) {
    const int64_t n = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, at = n * C;
    const int first = threadIdx.x * W, step = blockDim.x * W;
    Packed<floatX, W>* row = dynamic_shared<Packed<floatX, W>>() + threadIdx.y * (C / W); // each thread its own packs
    if (n >= N) return;
    const float inverse_C = 1.0f / C;
    float total = 0;
    for (int begin = first; begin < C; begin += 4 * step) {
        Packed<floatX, W> v[4], u[4];
        load_four(v, x + at, begin, step, C);
        if (ADD) load_four(u, branch + at, begin, step, C);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int c = begin + k * step;
            if (c >= C) continue;
            if (ADD) {
                Packed<floatX, W> add = {};
                if (bias) add = load<W>(bias + c);
                for (int i = 0; i < W; i++) v[k][i] = (floatX)((float)v[k][i] + ((float)u[k][i] + (float)add[i]));
            }
            for (int i = 0; i < W; i++) total += CENTERED ? (float)v[k][i] : (float)v[k][i] * (float)v[k][i];
            row[c / W] = v[k];
        }
    }
    total = block_sum(total);
    float m = 0, variance = total / C;
    if (CENTERED) {
        float squares = 0;
        m = total * inverse_C;
        for (int c = first; c < C; c += step) {
            const Packed<floatX, W> v = row[c / W];
            for (int i = 0; i < W; i++) squares += ((float)v[i] - m) * ((float)v[i] - m);
        }
        variance = block_sum(squares) * inverse_C;
    }
    const float r = rsqrtf(variance + eps);
    for (int c = first; c < C; c += step) {
        const Packed<floatX, W> v = row[c / W], scale = load<W>(w + c);
        Packed<floatX, W> o, shift = {};
        if (CENTERED) shift = load<W>(b + c);
        for (int i = 0; i < W; i++) {
            const float y = ((float)v[i] - m) * r * (float)scale[i];
            o[i] = (floatX)(CENTERED ? y + (float)shift[i] : y);
        }
        store(out + at + c, o);
        if (ADD) store(sum + at + c, v);
    }
    if (threadIdx.x > 0) return;
    if (CENTERED) mean[n] = m;
    rstd[n] = r;
}

template <bool ADD, bool CENTERED>
static void norm_forward(const Norm* n, const floatX* residual, const floatX* branch, const floatX* bias, int N, int C,
                         float eps) {
    bool packed = true;
    for (const floatX* row : {(const floatX*)n->x, (const floatX*)n->out, residual, branch, bias, n->w, n->b})
        packed = packed && can_pack(row, C);
    const auto kernel =
        packed ? norm_forward_kernel<widest<floatX>, ADD, CENTERED> : norm_forward_kernel<1, ADD, CENTERED>;
    launch(row_launch(N, C), kernel, n->x, n->out, n->mean, n->rstd, ADD ? residual : n->x, branch, bias, n->w, n->b, N,
           C, eps);
}

static inline void layernorm_forward(const Norm* n, int N, int C, float eps) {
    norm_forward<false, true>(n, NULL, NULL, NULL, N, C, eps);
}

static inline void residual_layernorm_forward(const Norm* n, const floatX* residual, const floatX* branch,
                                              const floatX* bias, int N, int C, float eps) {
    norm_forward<true, true>(n, residual, branch, bias, N, C, eps);
}

static inline void rmsnorm_forward(const Norm* n, int N, int C, float eps) {
    norm_forward<false, false>(n, NULL, NULL, NULL, N, C, eps);
}

static inline void residual_rmsnorm_forward(const Norm* n, const floatX* residual, const floatX* branch,
                                            const floatX* bias, int N, int C, float eps) {
    norm_forward<true, false>(n, residual, branch, bias, N, C, eps);
}

// ---- Backward ---------------------------------------------------------------------------------------------------

// The compiler forgets the floats that it unpacked from v, and unpacks them again where they are read next: kept, they
// would take twice the registers.
template <class T, int W>
__device__ __forceinline__ void keep_packed(Packed<T, W>& v) {
    uint32_t u[4] = {};
    memcpy(u, &v, sizeof v);
    for (uint32_t& word : u) asm volatile("" : "+r"(word));
    memcpy(&v, u, sizeof v);
}

// Adds to sum the terms g = dout w, and g xhat, of the row's columns that blocks of other slabs own.
template <int W>
__device__ __forceinline__ void add_other_slabs(float (&sum)[2], const floatX* __restrict__ dout,
                                                const floatX* __restrict__ x, const floatX* __restrict__ w, float m,
                                                float r, int C) {
#pragma unroll 1
    for (int c = threadIdx.x * W; c < C; c += blockDim.x * W) {
        if (c / (int)(blockDim.x * COLUMN_PACKS * W) == blockIdx.y) continue;
        const Packed<floatX, W> o = load<W>(dout + c), v = load<W>(x + c), u = load<W>(w + c);
        for (int i = 0; i < W; i++) {
            sum[0] += (float)o[i] * (float)u[i];
            sum[1] += (float)o[i] * (float)u[i] * (((float)v[i] - m) * r);
        }
    }
}

// partial (blocks, sums, C): the block's sums for dw, db (CENTERED), and the rows of dx before and after (SUMS).
template <int W, bool CENTERED, bool SUMS>
__global__ static void __launch_bounds__(COLUMN_THREADS)
    norm_backward_kernel(floatX* __restrict__ dx, float* __restrict__ partial, const floatX* __restrict__ dout,
                         const floatX* __restrict__ x, const floatX* __restrict__ w, const float* __restrict__ mean,
                         const float* __restrict__ rstd, int N, int C) {
    constexpr int K = COLUMN_PACKS;
    const float inverse_C = 1.0f / C;
    const int threads = blockDim.x * blockDim.y, rows = gridDim.x * blockDim.y;
    Packed<floatX, W>*weight = column_slots<W>(w, C), *next = weight + K * threads; // next: rows of dout, x and dx
    Packed<float, W> dw[K] = {}, db[K] = {}, before[K] = {}, after[K] = {};
    float m_next = 0, r_next = 0;
    const auto fetch = [&](int64_t n) {
        if (n >= N) return;
        if (CENTERED) m_next = mean[n];
        r_next = rstd[n];
        fetch_columns(next, dout + n * C, x + n * C, dx + n * C, C);
    };
    int64_t n = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    for (fetch(n); n < N; n += rows) {
        const float m = m_next, r = r_next;
        Packed<floatX, W> o[K], v[K], d[K];
        float sum[2] = {0, 0}; // sums of g = dout w, and of g xhat
        copy_async_wait<0>();  // a thread reads only what it copied itself
#pragma unroll
        for (int k = 0; k < K; k++) {
            o[k] = next[k * threads];
            v[k] = next[(K + k) * threads];
            d[k] = next[(2 * K + k) * threads];
        }
        fetch(n + rows);
#pragma unroll
        for (int k = 0; k < K; k++) {
            const Packed<floatX, W> u = weight[k * threads];
            for (int i = 0; i < W; i++) {
                const float g = (float)o[k][i] * (float)u[i], xhat = ((float)v[k][i] - m) * r;
                dw[k][i] += (float)o[k][i] * xhat;
                db[k][i] += (float)o[k][i];
                sum[0] += g;
                sum[1] += g * xhat;
            }
        }
        if (gridDim.y > 1) add_other_slabs<W>(sum, dout + n * C, x + n * C, w, m, r, C);
        if (CENTERED)
            block_sums(sum);
        else
            sum[1] = block_sum(sum[1]);
        const float g_mean = CENTERED ? sum[0] * inverse_C : 0, g_xhat_mean = sum[1] * inverse_C;
#pragma unroll
        for (int k = 0; k < K; k++) keep_packed(o[k]), keep_packed(v[k]), keep_packed(d[k]);
#pragma unroll
        for (int k = 0; k < K; k++) {
            const Packed<floatX, W> u = weight[k * threads];
            for (int i = 0; i < W; i++) {
                const float g = (float)o[k][i] * (float)u[i], xhat = ((float)v[k][i] - m) * r;
                if (SUMS) before[k][i] += (float)d[k][i];
                d[k][i] = (floatX)((float)d[k][i] + r * (g - g_mean - xhat * g_xhat_mean));
                if (SUMS) after[k][i] += (float)d[k][i];
            }
            if (column_of<W>(k) < C) store(dx + n * C + column_of<W>(k), d[k]);
        }
    }
    float* to = partial + (int64_t)blockIdx.x * ((CENTERED ? 2 : 1) + (SUMS ? 2 : 0)) * C;
    column_partials(to, dw, C);
    if (CENTERED) column_partials(to += C, db, C);
    if (SUMS) column_partials(to += C, before, C);
    if (SUMS) column_partials(to += C, after, C);
}

template <bool CENTERED, bool SUMS>
static void norm_backward(const Norm* n, floatX* dx, NormGradients d, const floatX* dout, int N, int C) {
    const bool packed = can_pack(dx, C) && can_pack(dout, C) && can_pack(n->x, C) && can_pack(n->w, C);
    const auto kernel =
        packed ? norm_backward_kernel<widest<floatX>, CENTERED, SUMS> : norm_backward_kernel<1, CENTERED, SUMS>;
    const Launch shape = column_launch(N, C, packed ? widest<floatX> : 1);
    ColumnSums sums = {{d.w, d.b}, CENTERED ? 2 : 1};
    if (SUMS) sums.to[sums.n++] = d.before;
    if (SUMS) sums.to[sums.n++] = d.after;
    float* partial = (float*)device_scratch((size_t)shape.grid.x * sums.n * C * sizeof(float));
    launch(shape, kernel, dx, partial, dout, n->x, n->w, n->mean, n->rstd, N, C);
    add_columns(sums, partial, (int)shape.grid.x, C);
}

static inline void layernorm_backward(const Norm* n, floatX* dx, NormGradients d, const floatX* dout, int N, int C) {
    d.before ? norm_backward<true, true>(n, dx, d, dout, N, C) : norm_backward<true, false>(n, dx, d, dout, N, C);
}
static inline void rmsnorm_backward(const Norm* n, floatX* dx, NormGradients d, const floatX* dout, int N, int C) {
    d.before ? norm_backward<false, true>(n, dx, d, dout, N, C) : norm_backward<false, false>(n, dx, d, dout, N, C);
}
