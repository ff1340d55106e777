/*
util/sha256.h: the hash SHA-256, and HMAC, a keyed hash made of it. Only a process that knows the key can make and check
the HMAC of a text, and the HMAC does not reveal a key that cannot be guessed. The rendezvous uses it to check that the
other side knows the run's secret (rendezvous.h).

Theory: FIPS 180-4 (Secure Hash Standard), sections 4.1.2, 5.1.1 and 6.2; RFC 2104 (HMAC), section 2.
*/
#pragma once

#include "base.h"

enum { SHA256_BYTES = 32, SHA256_BLOCK = 64 };

typedef struct {
    uint32_t h[8];
    uint64_t length; // bytes so far
    unsigned char block[SHA256_BLOCK];
} Sha256;

static inline uint32_t sha256_rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

// The first 32 bits of the fractions of the cube roots of the first 64 primes.
static const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline void sha256_compress(uint32_t h[8], const unsigned char block[SHA256_BLOCK]) {
    uint32_t w[64], s[8];
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 | (uint32_t)block[4 * t + 2] << 8 |
               block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        const uint32_t a = w[t - 15], b = w[t - 2];
        w[t] = w[t - 16] + (sha256_rotate(a, 7) ^ sha256_rotate(a, 18) ^ a >> 3) + w[t - 7] +
               (sha256_rotate(b, 17) ^ sha256_rotate(b, 19) ^ b >> 10);
    }
    memcpy(s, h, sizeof s);
    for (int t = 0; t < 64; t++) { // s: the standard's a to h
        const uint32_t upper = sha256_rotate(s[4], 6) ^ sha256_rotate(s[4], 11) ^ sha256_rotate(s[4], 25);
        const uint32_t lower = sha256_rotate(s[0], 2) ^ sha256_rotate(s[0], 13) ^ sha256_rotate(s[0], 22);
        const uint32_t t1 = s[7] + upper + ((s[4] & s[5]) ^ (~s[4] & s[6])) + sha256_k[t] + w[t];
        const uint32_t t2 = lower + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += s[i];
}

static inline void sha256_begin(Sha256* hash) {
    static const uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memset(hash, 0, sizeof *hash);
    memcpy(hash->h, h, sizeof h);
}

static inline void sha256_add(Sha256* hash, const void* bytes, size_t n) {
    const unsigned char* from = (const unsigned char*)bytes;
    while (n > 0) {
        const size_t used = (size_t)(hash->length % SHA256_BLOCK), room = SHA256_BLOCK - used;
        const size_t part = n < room ? n : room;
        memcpy(hash->block + used, from, part);
        from += part;
        n -= part;
        hash->length += part;
        if (part == room) sha256_compress(hash->h, hash->block);
    }
}

static inline void sha256_end(Sha256* hash, unsigned char digest[SHA256_BYTES]) {
    static const unsigned char padding[SHA256_BLOCK] = {0x80};
    const uint64_t bits = 8 * hash->length;
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i));
    const size_t used = (size_t)(hash->length % SHA256_BLOCK);
    sha256_add(hash, padding, used < 56 ? 56 - used : 120 - used);
    sha256_add(hash, length, sizeof length);
    for (int i = 0; i < SHA256_BYTES; i++) digest[i] = (unsigned char)(hash->h[i / 4] >> (24 - 8 * (i % 4)));
}

static inline void sha256(unsigned char digest[SHA256_BYTES], const void* bytes, size_t n) {
    Sha256 hash;
    sha256_begin(&hash);
    sha256_add(&hash, bytes, n);
    sha256_end(&hash, digest);
}

// H(key ^ opad, H(key ^ ipad, bytes)); a key that is longer than a block is hashed first.
static inline void hmac_sha256(unsigned char mac[SHA256_BYTES], const void* key, size_t key_bytes, const void* bytes,
                               size_t n) {
    unsigned char inner[SHA256_BLOCK] = {0}, outer[SHA256_BLOCK];
    Sha256 hash;
    if (key_bytes > SHA256_BLOCK)
        sha256(inner, key, key_bytes);
    else
        memcpy(inner, key, key_bytes);
    for (int i = 0; i < SHA256_BLOCK; i++) {
        outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    sha256_begin(&hash);
    sha256_add(&hash, inner, sizeof inner);
    sha256_add(&hash, bytes, n);
    sha256_end(&hash, mac);
    sha256_begin(&hash);
    sha256_add(&hash, outer, sizeof outer);
    sha256_add(&hash, mac, SHA256_BYTES);
    sha256_end(&hash, mac);
}

// Compares two digests in constant time, so that the time reveals nothing of the right one.
static inline bool sha256_equal(const unsigned char a[SHA256_BYTES], const unsigned char b[SHA256_BYTES]) {
    unsigned char difference = 0;
    for (int i = 0; i < SHA256_BYTES; i++) difference |= a[i] ^ b[i];
    return difference == 0;
}
