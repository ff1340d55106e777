/*
util/checksum.h: a checksum that is a sum over words. Bytes are words of 32 bits (the last one padded with zeros), and
each word gives a number that depends on its place:

    checksum = sum over i of mix(i golden + word[i])      modulo 2^64

mix is a bijection of 64-bit numbers that scatters them (splitmix64: Steele, Lea, Flood 2014, "Fast splittable
pseudorandom number generators", figure 16), golden 2^64 / 1.618..., odd. Hence

    one word that is wrong    always changes the checksum: mix is a bijection
    any other error           stays undetected with probability 2^-64, unless it is deliberate: this is no signature
    order does not matter     so each rank that writes part of a file sums its words, in any order, and the sum over the
                              ranks is the checksum of the file (checkpoint/checkpoint.h); GPU blocks do the same
    a place matters           words that have changed places, or files, are detected

Replicas of a tensor are compared by it, too (trainer/replica_check.h): equal bits, equal checksums.
*/
#pragma once

#include "base.h"

// The summand of word number i.
HOST_DEVICE static inline uint64_t checksum_of_word(uint64_t i, uint32_t word) {
    uint64_t z = i * 0x9E3779B97F4A7C15ull + word;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

// The sum over `bytes` bytes whose first word is number `first`; data may be unaligned.
static inline uint64_t checksum_of(const void* data, int64_t bytes, int64_t first) {
    const unsigned char* at = (const unsigned char*)data;
    const int64_t words = bytes / 4;
    uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < words; i++) {
        uint32_t word;
        memcpy(&word, at + 4 * i, 4);
        sum += checksum_of_word((uint64_t)(first + i), word);
    }
    uint32_t last = 0;
    memcpy(&last, at + 4 * words, (size_t)(bytes % 4));
    return bytes % 4 ? sum + checksum_of_word((uint64_t)(first + words), last) : sum;
}
