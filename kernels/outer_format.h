/*
outer_format.h: how outer gradients of few bits look in a message, for kernels of both kinds and for the formula of
their bytes.

    packed_bytes                  of n numbers in packed form
    quant_code, quant_value       a number to its bits, and back
    sparse_count, get_field       what is sent of a chunk

Theory: kernels/async_dp.h.
*/
#pragma once

#include "../util/base.h"

// a b, rounded to float32, never part of a fused multiply-add, as its bits are used in between. zero: hidden_zero(), to
// be read before a loop, so that the loop becomes vector code.
HOST_DEVICE static inline float rounded_product(float a, float b, uint32_t zero) {
#if defined(__CUDA_ARCH__)
    (void)zero;
    return __fmul_rn(a, b);
#elif defined(USE_CUDA)
    volatile float y = a * b;
    (void)zero;
    return y;
#else
    return float_of_bits(bits_of_float(a * b) | zero);
#endif
}

// ----------------------------------------------------------------------------------------------------------------
// Quantised numbers. Those that share a head of 4 bytes have `bits` bits each. 8 or 4: two's complement, -127 to 127 or
// -7 to 7; the head is the scale (float32). 2: bit 0 says which level, bit 1 is the sign; the head has the upper halves
// of the two levels (float32), the lower level in its low half.

// |x| in units of largest / 2^20: whole numbers, whose sums are the same in any order.
HOST_DEVICE static inline uint32_t quant_units(float x, float largest) {
    return (uint32_t)(fabsf(x) / largest * 0x1p20f);
}

// The mean of n numbers from the sum of their units, cut to the upper half of a float32.
HOST_DEVICE static inline uint32_t quant_level(uint64_t sum, uint64_t n, float largest) {
    return bits_of_float((float)((double)sum / (double)n * 0x1p-20) * largest) >> 16;
}

// The bits of x.
HOST_DEVICE static inline uint32_t quant_code(float x, uint32_t head, int bits) {
    if (bits == 2) {
        const float low = float_of_bits(head << 16), high = float_of_bits(head & 0xFFFF0000);
        const uint32_t code = (uint32_t)(fabsf(x) > 0.5f * low + 0.5f * high) | (uint32_t)(x < 0) << 1;
        return low <= high ? code : 0;
    }
    const int32_t largest = (1 << (bits - 1)) - 1;
    const float scale = float_of_bits(head);
    const bool usable = scale > 0; // not 0, and no NaN
    // next to 1.5 2^23, float32 numbers are 1 apart, so that the addition rounds to the nearest whole number, ties to
    // even
    const int32_t nearest = (int32_t)(bits_of_float(x / (usable ? scale : 1) + 0x1.8p23f) - 0x4B400000u);
    const int32_t raised = nearest < -largest ? -largest : nearest;
    const int32_t q = raised > largest ? largest : raised;
    return usable ? (uint32_t)q & ((1u << bits) - 1) : 0;
}

// The number that its bits stand for.
HOST_DEVICE static inline float quant_value(uint32_t code, uint32_t head, int bits, uint32_t zero) {
    if (bits == 2) return float_of_bits((code & 1 ? head & 0xFFFF0000 : head << 16) ^ (code & 2) << 30);
    const int32_t half = 1 << (bits - 1);
    return rounded_product((float)(((int32_t)code ^ half) - half), float_of_bits(head), zero);
}

// ----------------------------------------------------------------------------------------------------------------
// Quantised differences: blocks of 64 numbers, each a head and the numbers; the first of a byte is in its low bits. A
// partial last block takes the room of a full one, with zeros at its end.

enum { QUANT_BLOCK = 64 };

// Bytes of n numbers in packed form: a multiple of 4, as every block's are.
HOST_DEVICE static inline int64_t quant_bytes(int64_t n, int bits) {
    return (n + QUANT_BLOCK - 1) / QUANT_BLOCK * ((int64_t)sizeof(float) + QUANT_BLOCK * bits / 8);
}

// ----------------------------------------------------------------------------------------------------------------
// Sparse differences: chunks of 4096 numbers. A chunk has a head, or with 32 bits the values (float32), then a field of
// 12 + bits bits for each value: its index in the chunk, which rises, and, in the upper bits, the quantised value. The
// first field is in the lowest bits of the first word of 32.

enum { SPARSE_CHUNK = 4096, SPARSE_INDEX_BITS = 12 };

// How many of the n numbers of a chunk are sent: the same part of a partial one.
HOST_DEVICE static inline int sparse_count(int64_t n, int top_k) {
    return (int)((n * top_k + SPARSE_CHUNK - 1) / SPARSE_CHUNK);
}
HOST_DEVICE static inline int sparse_width(int bits) { return SPARSE_INDEX_BITS + (bits < 32 ? bits : 0); }

// Bytes of n numbers in packed form: a multiple of 4, as every chunk's are.
HOST_DEVICE static inline int64_t sparse_bytes(int64_t n, int bits, int top_k) {
    const int64_t sizes[2] = {SPARSE_CHUNK, n % SPARSE_CHUNK}, chunks[2] = {n / SPARSE_CHUNK, sizes[1] > 0};
    int64_t words = 0;
    for (int i = 0; i < 2; i++) {
        const int64_t count = sparse_count(sizes[i], top_k);
        words += chunks[i] * ((bits < 32 ? 1 : count) + (count * sparse_width(bits) + 31) / 32);
    }
    return words * (int64_t)sizeof(uint32_t);
}

HOST_DEVICE static inline uint32_t get_field(const uint32_t* words, int64_t at, int width) {
    uint64_t both = words[at / 32];
    if (at % 32 + width > 32) both |= (uint64_t)words[at / 32 + 1] << 32;
    return (uint32_t)(both >> at % 32) & ((1u << width) - 1);
}

// Bytes of n numbers in a message; top_k = 0: of all of them.
static inline int64_t packed_bytes(int64_t n, int bits, int top_k) {
    return top_k ? sparse_bytes(n, bits, top_k) : quant_bytes(n, bits);
}
