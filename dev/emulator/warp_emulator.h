/*
warp_emulator.h: collectives of a warp (shuffles, votes, matrix fragments) on the emulator, and their names in CUDA.
*/
#ifndef WARP_EMULATOR_H
#define WARP_EMULATOR_H

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

struct Votes {
    unsigned yes, all; // lanes
};
inline void work_vote(Meeting&, Warp& w, unsigned lanes) {
    Votes v = {0, lanes};
    for (unsigned l = 0; l < 32; l++)
        if (lanes >> l & 1 && w.lane[l].from) v.yes |= 1u << l;
    for (unsigned l = 0; l < 32; l++)
        if (lanes >> l & 1) memcpy(w.lane[l].out, &v, sizeof v);
}
inline Votes vote(unsigned mask, int yes, const char* what, Site at) {
    Votes v;
    Hidden hidden;
    self->lane->from = yes;
    memcpy(&v, meet(mask, work_vote, false, what, at).out, sizeof v);
    return v;
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

// ----------------------------------------------------------------------------------------------------------------
// Their names in CUDA

#define CUDA_ON_CPU_SITE cuda_on_cpu::Site at = cuda_on_cpu::Site::here()
inline void __syncthreads(CUDA_ON_CPU_SITE) { cuda_on_cpu::barrier(0, 0, 0, "__syncthreads", at); }
inline int __syncthreads_count(int p, CUDA_ON_CPU_SITE) {
    return cuda_on_cpu::barrier(0, 0, p != 0, "__syncthreads_count", at);
}
inline int __syncthreads_or(int p, CUDA_ON_CPU_SITE) {
    return cuda_on_cpu::barrier(0, 0, p != 0, "__syncthreads_or", at) > 0;
}
inline int __syncthreads_and(int p, CUDA_ON_CPU_SITE) {
    return cuda_on_cpu::barrier(0, 0, p == 0, "__syncthreads_and", at) == 0;
}
inline void __syncwarp(unsigned mask = ~0u, CUDA_ON_CPU_SITE) {
    cuda_on_cpu::Hidden hidden;
    cuda_on_cpu::meet(mask, nullptr, true, "__syncwarp", at);
}

// Lane l reads lane `from` if it is inside l's segment of `width` lanes, else itself.
#define CUDA_ON_CPU_SHUFFLE(name, inside, from)                                                                        \
    template <class T>                                                                                                 \
    T name(unsigned mask, T v, int by, int width = 32, CUDA_ON_CPU_SITE) {                                             \
        if (width < 1 || width > 32 || width & (width - 1)) cuda_on_cpu::fail(at, #name ": width %d", width);          \
        const unsigned l = cuda_on_cpu::lane_number(), first = l & -(unsigned)width, end = first + (unsigned)width;    \
        return cuda_on_cpu::shuffle(mask, v, (int)((inside) ? (from) : l), #name, at);                                 \
    }
CUDA_ON_CPU_SHUFFLE(__shfl_sync, first < end, first | ((unsigned)by & ((unsigned)width - 1)))
CUDA_ON_CPU_SHUFFLE(__shfl_up_sync, (unsigned)by <= l - first && first < end, l - (unsigned)by)
CUDA_ON_CPU_SHUFFLE(__shfl_down_sync, (unsigned)by < end - l, l + (unsigned)by)
CUDA_ON_CPU_SHUFFLE(__shfl_xor_sync, (l ^ (unsigned)by) < end, l ^ (unsigned)by)

inline unsigned __ballot_sync(unsigned mask, int p, CUDA_ON_CPU_SITE) {
    return cuda_on_cpu::vote(mask, p, "__ballot_sync", at).yes;
}
inline int __any_sync(unsigned mask, int p, CUDA_ON_CPU_SITE) {
    return cuda_on_cpu::vote(mask, p, "__any_sync", at).yes != 0;
}
inline int __all_sync(unsigned mask, int p, CUDA_ON_CPU_SITE) {
    const cuda_on_cpu::Votes v = cuda_on_cpu::vote(mask, p, "__all_sync", at);
    return v.yes == v.all;
}

#endif
