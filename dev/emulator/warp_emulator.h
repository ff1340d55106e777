/*
warp_emulator.h: collectives of a warp (shuffles, matrix fragments) on the emulator, and their names in CUDA.
*/
#pragma once

namespace cuda_on_cpu {

inline unsigned lane_number() {
    Hidden hidden;
    return self->rank % 32;
}

inline void work_shuffle(Meeting& m, Warp& w, unsigned lanes) {
    for (unsigned l = 0; l < 32; l++)
        if (lanes >> l & 1) {
            const int from = w.lane[l].from;
            if (!(lanes >> from & 1)) fail(m.site, "%s: lane %u reads lane %d, which takes no part", m.what, l, from);
            memcpy(w.lane[l].out, w.lane[from].in, 8);
        }
}
template <class T>
T shuffle(unsigned mask, T value, int from, const char* what, Site at) {
    static_assert(sizeof(T) <= 8, "a shuffle moves up to 8 bytes");
    Hidden hidden;
    memcpy(self->lane->in, &value, sizeof(T));
    self->lane->from = from;
    memcpy((void*)&value, meet(mask, work_shuffle, false, what, at).out, sizeof(T));
    return value;
}

// mma.m16n8k16: lane l holds rows l / 4 and l / 4 + 8 of A (16 x 16), column l / 4 of B (16 x 8), rows l / 4 and l / 4
// + 8 of D (16 x 8); of these, columns (of B: rows) 2 (l % 4) and the next, for A and B also these plus 8. Sums are in
// float, in the order of k; a tensor core keeps fewer bits and has another order.
template <class T>
void work_mma(Meeting& m, Warp& w, unsigned lanes) {
    typedef float Row __attribute__((vector_size(32)));
    if (~lanes) fail(m.site, "mma: lanes %08x of the warp are missing", ~lanes);
    float a[16][16], b[16][8], d[16][8];
    for (int l = 0; l < 32; l++) {
        const int row = l / 4, column = l % 4 * 2;
        T x[12];
        memcpy((void*)x, w.lane[l].in, sizeof x);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) a[row + i / 2 % 2 * 8][column + i / 4 * 8 + i % 2] = (float)x[i];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) b[column + i / 2 * 8 + i % 2][row] = (float)x[8 + i];
        for (int i = 0; i < 2; i++) memcpy(&d[row + i * 8][column], w.lane[l].in + 24 + 8 * i, 8);
    }
    Row bk[16];
    memcpy(bk, b, sizeof bk);
    for (int i = 0; i < 16; i++) {
        Row sum;
        memcpy(&sum, d[i], sizeof sum);
#pragma GCC unroll 16
        for (int k = 0; k < 16; k++) sum += a[i][k] * bk[k];
        memcpy(d[i], &sum, sizeof sum);
    }
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 2; i++) memcpy(w.lane[l].out + 8 * i, &d[l / 4 + i * 8][l % 4 * 2], 8);
}
template <class T>
void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], Site at = Site::here()) {
    Hidden hidden;
    Lane& l = *self->lane;
    memcpy(l.in, a, 16);
    memcpy(l.in + 16, b, 8);
    memcpy(l.in + 24, d, 16);
    memcpy(d, meet(~0u, work_mma<T>, false, "mma", at).out, 16);
}

// ldmatrix.x4: lane l gives the address of row l % 8 of tile l / 8, eight 16-bit values; it gets, from each tile,
// elements 2 (l % 4) and the next of row l / 4, or, transposed, of column l / 4.
template <bool trans>
void work_ldmatrix(Meeting& m, Warp& w, unsigned lanes) {
    if (~lanes) fail(m.site, "ldmatrix: lanes %08x of the warp are missing", ~lanes);
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 8; i++) {
            const int tile = i / 2, x = l % 4 * 2 + i % 2, y = l / 4, row = trans ? x : y, column = trans ? y : x;
            memcpy(w.lane[l].out + 2 * i, w.lane[tile * 8 + row].in + 2 * column, 2);
        }
}
template <bool trans>
void ldmatrix(unsigned (&r)[4], const void* row, Site at = Site::here()) {
    check_aligned(row, 16, "ldmatrix", at);
    CUDA_ON_CPU_TSAN(__tsan_read_range((void*)row, 16);)
    Hidden hidden;
    memcpy(self->lane->in, row, 16);
    memcpy(r, meet(~0u, work_ldmatrix<trans>, false, "ldmatrix", at).out, 16);
}

} // namespace cuda_on_cpu

// ---- Their names in CUDA ----------------------------------------------------------------------------------------

#define CUDA_ON_CPU_SITE cuda_on_cpu::Site at = cuda_on_cpu::Site::here()
inline void __syncthreads(CUDA_ON_CPU_SITE) { cuda_on_cpu::barrier("__syncthreads", at); }
inline void __syncwarp(unsigned mask = ~0u, CUDA_ON_CPU_SITE) {
    cuda_on_cpu::Hidden hidden;
    cuda_on_cpu::meet(mask, nullptr, true, "__syncwarp", at);
}

template <class T>
T __shfl_sync(unsigned mask, T v, int from, CUDA_ON_CPU_SITE) {
    return cuda_on_cpu::shuffle(mask, v, from % 32, "__shfl_sync", at);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int by, CUDA_ON_CPU_SITE) {
    return cuda_on_cpu::shuffle(mask, v, (int)cuda_on_cpu::lane_number() ^ by, "__shfl_xor_sync", at);
}
