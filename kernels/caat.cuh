/*
caat.cuh: caat.h on a GPU; x and z are floatX, shared is floatX or float32: sums over streams are taken in float32 and
rounded once. caat_pack reads S channels of each stream and writes their sum once, caat_unpack reads and writes all
channels: one pack of up to 16 bytes a thread, where C and S allow it.
*/
#pragma once

#include "cuda_utils.cuh"

// A thread has W channels of a row of shared.
template <int W, class T>
__global__ static void __launch_bounds__(256)
    caat_pack_kernel(T* __restrict__ shared, const floatX* __restrict__ x, int streams, int N, int C, int S) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= (int64_t)N * S) return;
    const int64_t n = i / S, c = i % S;
    float sum[W] = {};
    for (int stream = 0; stream < streams; stream++) {
        const Packed<floatX, W> v = load<W>(x + (stream * (int64_t)N + n) * C + c);
        for (int k = 0; k < W; k++) sum[k] = stream == 0 ? (float)v[k] : sum[k] + (float)v[k];
    }
    Packed<T, W> out;
    for (int k = 0; k < W; k++) out[k] = (T)sum[k];
    store(shared + i, out);
}

// W numbers of either type in at most 16 bytes.
template <class T>
constexpr int caat_width = sizeof(T) > sizeof(floatX) ? widest<T> : widest<floatX>;

template <class T>
static inline bool caat_can_pack(const T* shared, const floatX* x, int C, int S) {
    const int bytes = 16;
    return (uintptr_t)shared % bytes == 0 && (uintptr_t)x % bytes == 0 && C % widest<floatX> == 0 &&
           S % widest<floatX> == 0;
}

// shared (N, S), floatX or float, = the sum over the streams of the first S channels of x (streams, N, C).
template <class T>
static inline void caat_pack(T* shared, const floatX* x, int streams, int N, int C, int S) {
    const bool packed = caat_can_pack(shared, x, C, S);
    const int64_t n = (int64_t)N * S;
    launch(launch_shape(blocks_for(n, packed ? 256 * caat_width<T> : 256), 256),
           packed ? caat_pack_kernel<caat_width<T>, T> : caat_pack_kernel<1, T>, shared, x, streams, N, C, S);
}

// A thread has W channels of a row of z, all of them shared or none.
template <int W, class T>
__global__ static void __launch_bounds__(256)
    caat_unpack_kernel(floatX* z, const T* __restrict__ shared, const floatX* x, float factor, int64_t rows, int N,
                       int C, int S) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= rows * C) return;
    const int64_t row = i / C, c = i % C;
    Packed<floatX, W> out;
    if (c < S) {
        const Packed<T, W> v = load<W>(shared + row % N * S + c);
        for (int k = 0; k < W; k++) out[k] = (floatX)(float)v[k];
    } else {
        const Packed<floatX, W> v = load<W>(x + i);
        for (int k = 0; k < W; k++) out[k] = (floatX)(factor * (float)v[k]);
    }
    store(z + i, out);
}

// z (streams, N, C): the shared channels from shared (N, S), the others factor * x. z may be x; x is not read where S =
// C.
template <class T>
static inline void caat_unpack(floatX* z, const T* shared, const floatX* x, float factor, int streams, int N, int C,
                               int S) {
    const bool packed = caat_can_pack(shared, x, C, S) && (uintptr_t)z % 16 == 0;
    const int64_t rows = (int64_t)streams * N, n = rows * C;
    launch(launch_shape(blocks_for(n, packed ? 256 * caat_width<T> : 256), 256),
           packed ? caat_unpack_kernel<caat_width<T>, T> : caat_unpack_kernel<1, T>, z, shared, x, factor, rows, N, C,
           S);
}

// From and to float32, as on the CPU.
static inline void caat_pack_floats(float* shared, const floatX* x, int streams, int N, int C, int S) {
    caat_pack(shared, x, streams, N, C, S);
}
static inline void caat_unpack_floats(floatX* z, const float* shared, const floatX* x, float factor, int streams, int N,
                                      int C, int S) {
    caat_unpack(z, shared, x, factor, streams, N, C, S);
}
