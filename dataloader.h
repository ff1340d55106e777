/*
dataloader.h: from streams of tokens (dataloader/token_files.h) to the sequences that a model is trained on.

    dataloader_init      a part of a stream, cut into sequences of T tokens: all of it, the held-out part, or the rest
    dataloader_sequence  number n of the run, in an order that is a formula

Theory. The position is one number: n, the sequences consumed since the run began. There is no other state to save or to
exchange: any rank computes sequence n without the ones before it. With count sequences in the range,

    epoch = n / count        k = permutation(seed, epoch)(n mod count)        tokens [k T, k T + T] of the range:
                                                                             T inputs, and the T targets one later

The held-out part, for validation, has to resemble the rest. The end of a text does not: files are in the order of
their names, books have an index. So a stream is cut into up to 64 blocks of the same length, and the last twentieth of
each is held out: no sequence of either part reaches into the other. A block holds out at least 8 sequences: a shorter
text has fewer blocks, down to one. Sequence k of a part is number k / blocks in block 39 k mod blocks (39 is about 64
golden sections: the first sequences are spread over the text, too). This follows from the text's length and T alone, on
every mesh and in a resumed run.

The permutation must not cost memory (FineWeb has 10^8 sequences) nor time to set up. So it is a cipher on the numbers
[0, count): a block cipher with a secret key is a permutation chosen by the key.
    Feistel network   Split x in a left and a right half of h bits and repeat: (L, R) <- (R, L xor F(R)). A round is
                      undone by (L, R) <- (R xor F(L), L), whatever F is, so rounds permute the 2^2h numbers. Four
                      rounds of a random F look random to any observer who asks for fewer than about 2^(h/2) images
                      (Luby and Rackoff 1988). That says little when h is small; by counting over 100,000 epochs,
                      8 rounds spread pairs of neighbours unevenly for 5 and 6 sequences, 10 or more do not. This
                      one has twelve. F is Philox, keyed by seed and epoch.
    cycle walking     2^2h is the first such power that is not below count. A result outside [0, count) is encrypted
                      again until it is inside (Black and Rogaway 2002). Some result is, since the cycle it walks leads
                      back to the start, which is inside; and two starts cannot meet, since a permutation's cycles are
                      disjoint. As 2^2h <= 4 count, at most 4 encryptions are expected.
*/
#pragma once

#include "dataloader/token_files.h"

// ---- The order of the sequences ---------------------------------------------------------------------------------

enum { FEISTEL_ROUNDS = 12 };

// The image of x < count under the permutation of [0, count) with this key.
static inline uint64_t permute(uint64_t x, uint64_t count, uint64_t key) {
    int half = 1; // bits
    while (half < 32 && (count - 1) >> (2 * half)) half++;
    uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
            uint64_t next = left ^ (philox(key, round, right).word[0] & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= count);
    return x;
}

// The key of an epoch's permutation.
static inline uint64_t epoch_key(uint64_t seed, uint64_t epoch) {
    Random4 random = philox(seed, hash_string("order of the sequences"), epoch);
    return (uint64_t)random.word[1] << 32 | random.word[0];
}

// ---- The loader -------------------------------------------------------------------------------------------------

typedef struct {
    const TokenFiles* files;
    int64_t first, end;     // a range of the stream: [first, end)
    int64_t blocks, stride; // the number of such ranges, a power of two; one begins every `stride` tokens
    int64_t count;          // sequences in an epoch, as many in each block
    int T, vocab;
    uint64_t seed;
    bool shuffle; // false: sequence n is number n mod count, block by block in turn (Theory)
} DataLoader;

// The position in the stream at which sequence n of the run begins.
static inline int64_t dataloader_begin(const DataLoader* loader, uint64_t n) {
    uint64_t count = (uint64_t)loader->count, k = n % count;
    if (loader->shuffle) k = permute(k, count, epoch_key(loader->seed, n / count));
    const uint64_t blocks = (uint64_t)loader->blocks, block = k % blocks * 39 % blocks;
    return loader->first + (int64_t)block * loader->stride + (int64_t)(k / blocks) * loader->T;
}

// Reads sequence n of the run, n = 0, 1, ... without end: inputs (T), and targets (T) one token later. It reads and
// writes no state, so any thread or rank may ask for any n. False, *error filled, if a token is not below the
// vocabulary; inputs and targets are undefined then.
static inline bool dataloader_sequence(int32_t* inputs, int32_t* targets, const DataLoader* loader, uint64_t n,
                                       Error* error) {
    const int64_t T = loader->T, begin = dataloader_begin(loader, n);
    if (!tokens_read(inputs, loader->files, begin, T, loader->vocab, error)) return false;
    if (!tokens_read(targets + T - 1, loader->files, begin + T, 1, loader->vocab, error)) return false;
    memcpy(targets, inputs + 1, (size_t)(T - 1) * sizeof *targets);
    return true;
}

typedef enum { PART_ALL, PART_TRAINED, PART_HELD_OUT } Part; // the last two: see Theory

enum { HELD_OUT_BLOCKS = 64, HELD_OUT_SEQUENCES = 8, HELD_OUT_OF = 20 };

// Makes a loader of sequences of T tokens from a part of the files, which stay open as long as it is used; up to `most`
// blocks are held out. The order follows from seed; without shuffle blocks take turns. vocab is the model's: a token
// that is not below it is an error, here if it is near the beginning of the part, else when its sequence is read.
// False, *error filled, if the part, or a block of it, has fewer than T + 1 tokens.
static inline bool dataloader_init(DataLoader* loader, const TokenFiles* files, Part part, int most, int T, int vocab,
                                   uint64_t seed, bool shuffle, Error* error) {
    const int64_t least = HELD_OUT_SEQUENCES * (int64_t)T + 1;
    int64_t blocks = 1;
    while (part != PART_ALL && 2 * blocks <= most && files->tokens / (2 * blocks) / HELD_OUT_OF >= least) blocks *= 2;
    const int64_t stretch = files->tokens / blocks, held = part == PART_ALL ? 0 : stretch / HELD_OUT_OF;
    const int64_t first = part == PART_HELD_OUT ? stretch - held : 0;
    const int64_t end = part == PART_HELD_OUT ? stretch : stretch - held;
    const DataLoader made = {files, first, end,  blocks, stretch, (end - first - 1) / T * blocks,
                             T,     vocab, seed, shuffle};
    *loader = made;
    if (end - first < (int64_t)T + 1)
        return fail(error,
                    "%s%s: %lld tokens, but one sequence with its targets takes %lld; use more data or a smaller --seq",
                    files->file[0].path, files->files > 1 ? " and the other files" : "", (long long)(end - first),
                    (long long)T + 1);

    int32_t tokens[4096]; // finds a wrong vocabulary now, not at the first validation
    return tokens_read(tokens, files, first, min_i64(4096, end - first), vocab, error);
}
