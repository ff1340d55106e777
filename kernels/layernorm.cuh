/*
layernorm.cuh: layernorm.h on a GPU; parameters and activations are floatX, statistics and sums float32.

Forward. A row is in the registers of one warp (C up to 1024) or of several, so it is read once, although mean, variance
and output need it one after the other: 2 reads and writes of C numbers a row. With the residual connection before it,
sum = residual + (branch + bias) is fused: 4 instead of 5. The statistics are those of the rounded sum, which the
backward pass reads.

Backward. One pass over dout and x makes dx and the sums of dw and db: 3 reads and 1 write. A thread owns columns, and
keeps their dw and db in registers while its block goes through its rows; while it reduces one, cp.async brings the next
into shared memory, as registers are scarce. There are as many blocks as the GPU holds at a time, and each writes one
row of dw and one of db, which are added in order: about 1 % more traffic for many rows. A row wider than the registers
of a block is cut into slabs, and the blocks of each slab read all of it for the two means.
*/
#pragma once

#include "row_sum.cuh"

// ADD: x is the residual stream, and sum = x + (branch + bias) is stored and normalised instead of x.
template <int W, bool ADD>
__global__ static void __launch_bounds__(ROW_THREADS)
    layernorm_forward_kernel(floatX* sum, floatX* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd,
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
            for (int i = 0; i < W; i++) total += (float)v[k][i];
            row[c / W] = v[k];
        }
    }
    const float m = block_sum(total) * inverse_C;
    float squares = 0;
    for (int c = first; c < C; c += step) {
        const Packed<floatX, W> v = row[c / W];
        for (int i = 0; i < W; i++) squares += ((float)v[i] - m) * ((float)v[i] - m);
    }
    const float r = rsqrtf(block_sum(squares) * inverse_C + eps);
    for (int c = first; c < C; c += step) {
        const Packed<floatX, W> v = row[c / W], scale = load<W>(w + c), shift = load<W>(b + c);
        Packed<floatX, W> o;
        for (int i = 0; i < W; i++) o[i] = (floatX)(((float)v[i] - m) * r * (float)scale[i] + (float)shift[i]);
        store(out + at + c, o);
        if (ADD) store(sum + at + c, v);
    }
    if (threadIdx.x == 0) {
        mean[n] = m;
        rstd[n] = r;
    }
}

static inline void layernorm_forward(floatX* out, float* mean, float* rstd, const floatX* x, const floatX* w,
                                     const floatX* b, int N, int C, float eps) {
    const bool packed = can_pack(out, C) && can_pack(x, C) && can_pack(w, C) && can_pack(b, C);
    const auto kernel = packed ? layernorm_forward_kernel<widest<floatX>, false> : layernorm_forward_kernel<1, false>;
    const floatX* none = NULL;
    launch(row_launch(N, C), kernel, (floatX*)NULL, out, mean, rstd, x, none, none, w, b, N, C, eps);
}

static inline void residual_layernorm_forward(floatX* sum, floatX* out, float* mean, float* rstd,
                                              const floatX* residual, const floatX* branch, const floatX* bias,
                                              const floatX* w, const floatX* b, int N, int C, float eps) {
    const bool packed = can_pack(sum, C) && can_pack(out, C) && can_pack(residual, C) && can_pack(branch, C) &&
                        can_pack(bias, C) && can_pack(w, C) && can_pack(b, C);
    const auto kernel = packed ? layernorm_forward_kernel<widest<floatX>, true> : layernorm_forward_kernel<1, true>;
    launch(row_launch(N, C), kernel, sum, out, mean, rstd, residual, branch, bias, w, b, N, C, eps);
}

// ---- Backward ---------------------------------------------------------------------------------------------------

// partial (blocks, 2, C): the block's sums for dw and db.
template <int W>
__global__ static void __launch_bounds__(COLUMN_THREADS)
    layernorm_backward_kernel(floatX* __restrict__ dx, float* __restrict__ partial, const floatX* __restrict__ dout,
                              const floatX* __restrict__ x, const floatX* __restrict__ w,
                              const float* __restrict__ mean, const float* __restrict__ rstd, int N, int C) {
    constexpr int K = COLUMN_PACKS;
    const float inverse_C = 1.0f / C;
    const int threads = blockDim.x * blockDim.y, rows = gridDim.x * blockDim.y;
    Packed<floatX, W>*weight = column_slots<W>(w, C), *next = weight + K * threads; // next: rows of dout, x and dx
    Packed<float, W> dw[K] = {}, db[K] = {};
    float m_next = 0, r_next = 0;
    const auto fetch = [&](int64_t n) {
        if (n >= N) return;
        m_next = mean[n];
        r_next = rstd[n];
        fetch_columns(next, dout + n * C, x + n * C, dx + n * C, C);
    };
    int64_t n = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    for (fetch(n); n < N; n += rows) {
        const float m = m_next, r = r_next;
        Packed<floatX, W> o[K], v[K], d[K];
        Packed<float, W> g[K], xhat[K];
        float sum[2] = {0, 0}; // of g = dout w, and of g xhat
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
                g[k][i] = (float)o[k][i] * (float)u[i];
                xhat[k][i] = ((float)v[k][i] - m) * r;
                dw[k][i] += (float)o[k][i] * xhat[k][i];
                db[k][i] += (float)o[k][i];
                sum[0] += g[k][i];
                sum[1] += g[k][i] * xhat[k][i];
            }
        }
        const int slab = blockDim.x * K * W;
        if (gridDim.y > 1) { // columns of other blocks
#pragma unroll 1
            for (int c = threadIdx.x * W; c < C; c += blockDim.x * W) {
                if (c / slab == blockIdx.y) continue;
                const Packed<floatX, W> o = load<W>(dout + n * C + c), v = load<W>(x + n * C + c), u = load<W>(w + c);
                for (int i = 0; i < W; i++) {
                    sum[0] += (float)o[i] * (float)u[i];
                    sum[1] += (float)o[i] * (float)u[i] * (((float)v[i] - m) * r);
                }
            }
        }
        block_sums(sum);
        const float g_mean = sum[0] * inverse_C, g_xhat_mean = sum[1] * inverse_C;
#pragma unroll
        for (int k = 0; k < K; k++) {
            for (int i = 0; i < W; i++)
                d[k][i] = (floatX)((float)d[k][i] + r * (g[k][i] - g_mean - xhat[k][i] * g_xhat_mean));
            if (column_of<W>(k) < C) store(dx + n * C + column_of<W>(k), d[k]);
        }
    }
    float* to = partial + (int64_t)blockIdx.x * 2 * C;
    column_partials(to, dw, C);
    column_partials(to + C, db, C);
}

static inline void layernorm_backward(floatX* dx, float* dw, float* db, const floatX* dout, const floatX* x,
                                      const floatX* w, const float* mean, const float* rstd, int N, int C) {
    const bool packed = can_pack(dx, C) && can_pack(dout, C) && can_pack(x, C) && can_pack(w, C);
    const auto kernel = packed ? layernorm_backward_kernel<widest<floatX>> : layernorm_backward_kernel<1>;
    const Launch shape = column_launch(N, C, packed ? widest<floatX> : 1);
    float* partial = (float*)device_scratch((size_t)shape.grid.x * 2 * C * sizeof(float));
    launch(shape, kernel, dx, partial, dout, x, w, mean, rstd, N, C);
    add_columns(dw, db, partial, (int)shape.grid.x, C);
}

// ----------------------------------------------------------------------------------------------------------------
/*
RMSNorm; parameters and activations are floatX, statistics and sums float32. Threads own rows and columns as above:
forward, a row is read once and kept in shared memory (2 reads and writes of C numbers a row, 4 with the residual
connection); backward, one pass over dout and x makes dx and the sums of dw (3 reads and 1 write), and the next row is
fetched while one is reduced.
*/

// ADD: x is the residual stream, and sum = x + (branch + bias) is stored and normalised instead of x.
template <int W, bool ADD>
__global__ static void __launch_bounds__(ROW_THREADS)
    rmsnorm_forward_kernel(floatX* sum, floatX* __restrict__ out, float* __restrict__ rstd, const floatX* x,
                           const floatX* __restrict__ branch, const floatX* __restrict__ bias,
                           const floatX* __restrict__ w, int N, int C, float eps) {
    const int64_t n = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, at = n * C;
    const int first = threadIdx.x * W, step = blockDim.x * W;
    Packed<floatX, W>* row = dynamic_shared<Packed<floatX, W>>() + threadIdx.y * (C / W); // each thread its own packs
    if (n >= N) return;
    float squares = 0;
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
            for (int i = 0; i < W; i++) squares += (float)v[k][i] * (float)v[k][i];
            row[c / W] = v[k];
        }
    }
    const float r = rsqrtf(block_sum(squares) / C + eps);
    for (int c = first; c < C; c += step) {
        const Packed<floatX, W> v = row[c / W], scale = load<W>(w + c);
        Packed<floatX, W> o;
        for (int i = 0; i < W; i++) o[i] = (floatX)((float)v[i] * r * (float)scale[i]);
        store(out + at + c, o);
        if (ADD) store(sum + at + c, v);
    }
    if (threadIdx.x == 0) rstd[n] = r;
}

static inline void rmsnorm_forward(floatX* out, float* rstd, const floatX* x, const floatX* w, int N, int C,
                                   float eps) {
    const bool packed = can_pack(out, C) && can_pack(x, C) && can_pack(w, C);
    const auto kernel = packed ? rmsnorm_forward_kernel<widest<floatX>, false> : rmsnorm_forward_kernel<1, false>;
    const floatX* none = NULL;
    launch(row_launch(N, C), kernel, (floatX*)NULL, out, rstd, x, none, none, w, N, C, eps);
}

static inline void residual_rmsnorm_forward(floatX* sum, floatX* out, float* rstd, const floatX* residual,
                                            const floatX* branch, const floatX* bias, const floatX* w, int N, int C,
                                            float eps) {
    const bool packed = can_pack(sum, C) && can_pack(out, C) && can_pack(residual, C) && can_pack(branch, C) &&
                        can_pack(bias, C) && can_pack(w, C);
    const auto kernel = packed ? rmsnorm_forward_kernel<widest<floatX>, true> : rmsnorm_forward_kernel<1, true>;
    launch(row_launch(N, C), kernel, sum, out, rstd, residual, branch, bias, w, N, C, eps);
}

// ---- Backward ---------------------------------------------------------------------------------------------------

// partial (blocks, C): the block's sums for dw.
template <int W>
__global__ static void __launch_bounds__(COLUMN_THREADS)
    rmsnorm_backward_kernel(floatX* __restrict__ dx, float* __restrict__ partial, const floatX* __restrict__ dout,
                            const floatX* __restrict__ x, const floatX* __restrict__ w, const float* __restrict__ rstd,
                            int N, int C) {
    constexpr int K = COLUMN_PACKS;
    const float inverse_C = 1.0f / C;
    const int threads = blockDim.x * blockDim.y, rows = gridDim.x * blockDim.y;
    Packed<floatX, W>*weight = column_slots<W>(w, C), *next = weight + K * threads; // next: rows of dout, x and dx
    Packed<float, W> dw[K] = {};
    float r_next = 0;
    const auto fetch = [&](int64_t n) {
        if (n >= N) return;
        r_next = rstd[n];
        fetch_columns(next, dout + n * C, x + n * C, dx + n * C, C);
    };
    int64_t n = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    for (fetch(n); n < N; n += rows) {
        const float r = r_next;
        Packed<floatX, W> o[K], v[K], d[K];
        Packed<float, W> g[K], xhat[K];
        float sum = 0;        // of g xhat, g = dout w
        copy_async_wait<0>(); // a thread reads only what it copied itself
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
                g[k][i] = (float)o[k][i] * (float)u[i];
                xhat[k][i] = (float)v[k][i] * r;
                dw[k][i] += (float)o[k][i] * xhat[k][i];
                sum += g[k][i] * xhat[k][i];
            }
        }
        const int slab = blockDim.x * K * W;
        if (gridDim.y > 1) { // columns of other blocks
#pragma unroll 1
            for (int c = threadIdx.x * W; c < C; c += blockDim.x * W) {
                if (c / slab == blockIdx.y) continue;
                const Packed<floatX, W> o = load<W>(dout + n * C + c), v = load<W>(x + n * C + c), u = load<W>(w + c);
                for (int i = 0; i < W; i++) sum += (float)o[i] * (float)u[i] * ((float)v[i] * r);
            }
        }
        const float g_xhat_mean = block_sum(sum) * inverse_C;
#pragma unroll
        for (int k = 0; k < K; k++) {
            for (int i = 0; i < W; i++) d[k][i] = (floatX)((float)d[k][i] + r * (g[k][i] - xhat[k][i] * g_xhat_mean));
            if (column_of<W>(k) < C) store(dx + n * C + column_of<W>(k), d[k]);
        }
    }
    column_partials(partial + (int64_t)blockIdx.x * C, dw, C);
}

static inline void rmsnorm_backward(floatX* dx, float* dw, const floatX* dout, const floatX* x, const floatX* w,
                                    const float* rstd, int N, int C) {
    const bool packed = can_pack(dx, C) && can_pack(dout, C) && can_pack(x, C) && can_pack(w, C);
    const auto kernel = packed ? rmsnorm_backward_kernel<widest<floatX>> : rmsnorm_backward_kernel<1>;
    const Launch shape = column_launch(N, C, packed ? widest<floatX> : 1);
    float* partial = (float*)device_scratch((size_t)shape.grid.x * C * sizeof(float));
    launch(shape, kernel, dx, partial, dout, x, w, rstd, N, C);
    add_columns(dw, NULL, partial, (int)shape.grid.x, C);
}
