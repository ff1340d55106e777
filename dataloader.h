/*
dataloader.h: from streams of tokens (dataloader/token_files.h) to the sequences that a model is trained on.

    DataLoader  a part of a stream, cut into sequences of T tokens, in an order that is a formula (dataloader_sequence)
    Sources     several streams, each with a weight: "0.7:a*.bin,0.3:b*.bin" (sources_open)
    DataMix     a DataLoader for each source, and the formula for the source of a sequence (mix_sequence)

Theory. The position is one number: n, the sequences consumed since the run began. There is no other state to save or to
exchange: any rank computes sequence n without the ones before it. With count sequences in the range,

    epoch = n / count        k = permutation(seed, epoch)(n mod count)        tokens [k T, k T + T] of the range:
                                                                             T inputs, and the T targets one later

The held-out part, for validation, has to resemble the rest. The end of a text does not: files are in the order of
their names, books have an index. So a stream is cut into up to 64 stretches of the same length, and the last twentieth
of each is held out: no sequence of either part reaches into the other. A text too short for 8 sequences in each of
these blocks has fewer of them, down to one at its end. Sequence k is number k / blocks in block 39 k mod blocks (39 is
about 64 golden sections, so that the first few sequences are spread over the whole text, too). This follows from the
text's length and T alone: it is the same on every mesh and in a resumed run.

The permutation must not cost memory (FineWeb has 10^8 sequences) nor time to set up. So it is a cipher on the numbers
[0, count): a block cipher with a secret key is a permutation chosen by the key.
    Feistel network   Split x in a left and a right half of h bits and repeat: (L, R) <- (R, L xor F(R)). A round is
                      undone by (L, R) <- (R xor F(L), L), whatever F is, so rounds permute the 2^2h numbers. Four
                      rounds of a random F look random to any observer who asks for fewer than about 2^(h/2) images
                      (Luby and Rackoff 1988). That says little when h is small; by counting over 100,000 epochs,
                      8 rounds spread pairs of neighbours unevenly for 5 and 6 sequences, 10 or more do not. This
                      one has twelve. F is Philox, keyed by seed and epoch.
    cycle walking     2^2h is the first such power that is not below count. A result outside [0, count) is encrypted
                      again until it is inside (Black and Rogaway 2002). It must be once, since the cycle it walks leads
                      back to the start, which is inside; and two starts cannot meet, since a permutation's cycles are
                      disjoint. As 2^2h < 4 count, fewer than 4 encryptions are expected.

Several sources. Sequence n of the run is sequence m of source i, and both have to follow from n alone, with the shares
of all sources met as closely as possible in every window. (Megatron's loader takes the source that lags most, step by
step from 0: O(n).) With two sources of weights a and b of w = a + b this is rounding: of the first n sequences

    share(n) = round(n a / w)

are the first source's, n - share(n) the other's. Both are off the ideal n a / w by at most 1/2; sequence n is the first
source's if share(n + 1) > share(n), and then its number there is share(n). More sources are a tree of such pairs: the
root shares n among two groups, each group its own count among its two halves, down to a source:

                      10              n = 9:   root: share(9) = round(9 * 4/10) = 4, share(10) = 4: right, number 5
                    /    \                      right: share(5) = round(5 * 3/6) = 3, share(6) = 3: right, number 2
                   4      6
                  / \    / \          Rounding errors add up on the way down, each time multiplied by the half's part of
                 2   2  3   3         its group: at source i to at most 1/2 sum of w_i / w_g over i and the groups that
                                      it is in, without the root.

The tree is Huffman's (1952), which joins the two lightest nodes repeatedly. There the sibling of a node is not lighter
than the node's own halves, so on the way up from i weights grow at least like Fibonacci's numbers, 1 1 2 3 5 8 ..., and
the sum stays below their reciprocals' sum, 3.36: no source is ever 1.68 sequences off, however many there are. (No
order can guarantee less than 1 - 1/(2k - 2) for k sources: Tijdeman 1980, "The chairman assignment problem".) Weights
are integers, so that every rank and machine rounds in the same way: decimals are counted in units of the last digit,
and divided by their greatest common divisor.
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

// ---- The loader of one stream -----------------------------------------------------------------------------------

typedef struct {
    const TokenFiles* files;
    int64_t first, end;     // the range of the stream: [first, end)
    int64_t blocks, stride; // the number of such ranges, a power of two; one begins every `stride` tokens
    int64_t count;          // sequences in an epoch, as many in each block
    int T, vocab;
    uint64_t seed;
    bool shuffle; // false: the order of the files
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

// Sets positions (T) of the inputs of sequence n, each counted in its document from its first token in the sequence on
// (tokens_positions).
static inline void dataloader_positions(int32_t* positions, const int32_t* inputs, const DataLoader* loader,
                                        uint64_t n) {
    tokens_positions(positions, loader->files, inputs, dataloader_begin(loader, n), loader->T);
}

// Makes a loader of sequences of T tokens from tokens [first, end) of the files, which stay open as long as it is used.
// The order follows from seed; without shuffle it is the files' own. vocab is the model's: a token that is not below it
// is an error, here if it is near the beginning of the range, else when its sequence is read. False, *error filled, if
// the range is not in the files or has fewer than T + 1 tokens.
static inline bool dataloader_init(DataLoader* loader, const TokenFiles* files, int64_t first, int64_t end, int T,
                                   int vocab, uint64_t seed, bool shuffle, Error* error) {
    memset(loader, 0, sizeof *loader);
    const char* name = files->file[0].path;
    if (first < 0 || end > files->tokens || first > end)
        return fail(error, "%s: asked for tokens %lld to %lld of %lld", name, (long long)first, (long long)end,
                    (long long)files->tokens);
    if (T < 1 || vocab < 1) return fail(error, "%s: sequences of %d tokens, vocabulary of %d", name, T, vocab);
    if (end - first < (int64_t)T + 1)
        return fail(error,
                    "%s%s: %lld tokens, but one sequence with its targets takes %lld; use more data or a smaller --seq",
                    name, files->files > 1 ? " and the other files" : "", (long long)(end - first), (long long)T + 1);
    loader->files = files;
    loader->first = first;
    loader->end = end;
    loader->blocks = 1;
    loader->count = (end - first - 1) / T;
    loader->T = T;
    loader->vocab = vocab;
    loader->seed = seed;
    loader->shuffle = shuffle;

    int32_t tokens[4096]; // finds a wrong vocabulary now, not at the first validation
    return tokens_read(tokens, files, first, min_i64(4096, end - first), vocab, error);
}

// ---- The source of a sequence -----------------------------------------------------------------------------------

enum { MAX_SOURCES = 256 };

// The tree of Theory. Nodes 0 .. sources - 1 are the sources, the last node is the root.
typedef struct {
    int sources;
    int64_t weight[2 * MAX_SOURCES]; // of a group: the sum of its two; the root's is below 2^31
    int parent[2 * MAX_SOURCES], half[2 * MAX_SOURCES][2];
} Blend;

static const int64_t blend_largest = INT32_MAX; // sum of the weights: products with a remainder fit into 64 bits

// The lightest of nodes [0, nodes) without a parent, except `other`; the first of equals.
static inline int blend_lightest(const Blend* blend, int nodes, int other) {
    int lightest = -1;
    for (int i = 0; i < nodes; i++)
        if (i != other && blend->parent[i] < 0 && (lightest < 0 || blend->weight[i] < blend->weight[lightest]))
            lightest = i;
    return lightest;
}

// Builds the tree of 1 to MAX_SOURCES sources. Weights are positive; their sum is at most blend_largest.
static inline void blend_build(Blend* blend, const int64_t* weight, int sources) {
    memset(blend, 0, sizeof *blend);
    blend->sources = sources;
    for (int i = 0; i < 2 * MAX_SOURCES; i++) blend->parent[i] = -1;
    for (int i = 0; i < sources; i++) blend->weight[i] = weight[i];
    for (int node = sources; node < 2 * sources - 1; node++) {
        const int a = blend_lightest(blend, node, -1), b = blend_lightest(blend, node, a);
        blend->half[node][0] = a;
        blend->half[node][1] = b;
        blend->parent[a] = blend->parent[b] = node;
        blend->weight[node] = blend->weight[a] + blend->weight[b];
    }
}

// How many of the first n sequences of a group belong to its first half: n a / w, rounded to nearest, ties up. *taken:
// whether sequence n does, too. The order repeats every w sequences, so that only the remainder has to be multiplied.
static inline uint64_t blend_share(const Blend* blend, int node, uint64_t n, bool* taken) {
    const uint64_t w = (uint64_t)blend->weight[node], a = (uint64_t)blend->weight[blend->half[node][0]];
    const uint64_t twice = 2 * (n % w) * a + w;
    *taken = twice % (2 * w) + 2 * a >= 2 * w;
    return n / w * a + twice / (2 * w);
}

// The source of sequence n; *number: its number among that source's own sequences.
static inline int blend_source(const Blend* blend, uint64_t n, uint64_t* number) {
    int node = 2 * blend->sources - 2;
    while (node >= blend->sources) {
        bool first;
        const uint64_t share = blend_share(blend, node, n, &first);
        n = first ? share : n - share;
        node = blend->half[node][!first];
    }
    *number = n;
    return node;
}

// How many of the first n sequences belong to a source (or a group).
static inline uint64_t blend_count(const Blend* blend, int node, uint64_t n) {
    const int parent = blend->parent[node];
    bool taken;
    if (parent < 0) return n;
    const uint64_t of_parent = blend_count(blend, parent, n), share = blend_share(blend, parent, of_parent, &taken);
    return blend->half[parent][0] == node ? share : of_parent - share;
}

// The largest number of sequences, up to `most`, of which at most `limit` are this source's.
static inline uint64_t blend_reach(const Blend* blend, int source, uint64_t limit, uint64_t most) {
    uint64_t low = 0, high = most; // blend_count grows with n
    while (low < high) {
        const uint64_t middle = high - (high - low) / 2;
        if (blend_count(blend, source, middle) <= limit)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// ---- Sources: streams with weights ------------------------------------------------------------------------------

typedef struct {
    TokenFiles files;
    int64_t weight;
    double fraction; // weight / sum of all weights
} Source;

typedef struct {
    Source* source; // in the order in which they were named
    int count;
} Sources;

// Closes all sources; does nothing to a struct of zeros.
static inline void sources_close(Sources* sources) {
    for (int i = 0; i < sources->count; i++) tokens_close(&sources->source[i].files);
    free(sources->source);
    memset(sources, 0, sizeof *sources);
}

// The length of a weight, "0.7:", at the beginning of a name; 0: there is none.
static inline size_t weight_length(const char* name) {
    const size_t whole = strspn(name, "0123456789"), point = name[whole] == '.';
    const size_t part = point ? strspn(name + whole + 1, "0123456789") : 0, length = whole + point + part;
    return whole + part > 0 && name[length] == ':' ? length + 1 : 0;
}

// The digits of a weight as a number, without zeros at the end; *decimals of them are after the point. More than
// blend_largest if it is too large.
static inline int64_t weight_digits(const char* weight, int* decimals) {
    const size_t whole = strspn(weight, "0123456789");
    size_t end = weight_length(weight) - 1;
    while (end > whole && strchr("0.", weight[end - 1])) end--;
    int64_t digits = 0;
    for (size_t i = 0; i < end; i++)
        if (weight[i] != '.') digits = min_i64(10 * digits + (weight[i] - '0'), blend_largest + 1);
    *decimals = end > whole ? (int)(end - whole - 1) : 0;
    return digits;
}

static inline int64_t greatest_divisor(int64_t a, int64_t b) { return b ? greatest_divisor(b, a % b) : a; }

// Reads the weights of the sources of a list, as integers without a common divisor: 0.7 and 0.3 are 7 and 3.
static inline bool weights_read(int64_t* weight, char* const* name, int count, Error* error) {
    int decimals[MAX_SOURCES], most = 0;
    int64_t sum = 0, divisor = 0;
    for (int i = 0; i < count; i++) {
        weight[i] = weight_digits(name[i], &decimals[i]);
        most = decimals[i] > most ? decimals[i] : most;
    }
    for (int i = 0; i < count; i++) {
        for (int d = decimals[i]; d < most; d++) weight[i] = min_i64(10 * weight[i], blend_largest + 1);
        if (weight[i] == 0) return fail(error, "\"%s\": a source without weight; drop it", name[i]);
        sum = min_i64(sum + weight[i], blend_largest + 1);
        divisor = greatest_divisor(weight[i], divisor);
    }
    if (sum > blend_largest)
        return fail(error,
                    "\"%s\" and the other sources: weights in units of their last digit have to add up to less than "
                    "2^31; round them",
                    name[0]);
    for (int i = 0; i < count; i++) weight[i] /= divisor;
    return true;
}

// Whether tokens of two streams may have the same vocabulary; if not, *error says why. The run tokenizes text with its
// vocabulary, which is that of the other data, or it has none (bytes), and a text's tokens are bytes. Some formats do
// not name the vocabulary of their tokens.
static inline bool streams_agree(const TokenFiles* a, const TokenFiles* b, bool bytes, Error* error) {
    const TokenFormatFacts *of_a = &token_formats[a->format], *of_b = &token_formats[b->format];
    const bool text_a = format_is_text(a->format), text_b = format_is_text(b->format), text = text_a || text_b;
    if (text ? !bytes || text_a == text_b : of_a->vocab == of_b->vocab || !of_a->vocab || !of_b->vocab) return true;
    return fail(error, "%s holds %s, but %s holds %s: their tokens do not mean the same%s", a->file[0].path, of_a->name,
                b->file[0].path, of_b->name, text ? "; --tokenizer gives the text the vocabulary of the tokens" : "");
}

// streams_agree for each source of one list and each of the other.
static inline bool sources_agree(const Sources* one, const Sources* other, bool bytes, Error* error) {
    bool agree = true;
    for (int i = 0; i < one->count; i++)
        for (int k = 0; k < other->count && agree; k++)
            agree = streams_agree(&one->source[i].files, &other->source[k].files, bytes, error);
    return agree;
}

// Opens one source of these files.
static inline bool sources_open_list(Sources* sources, const char* const* paths, int count, Error* error) {
    sources->source = (Source*)checked_calloc(1, sizeof(Source), "the list of sources");
    sources->count = 1;
    sources->source[0].weight = 1;
    sources->source[0].fraction = 1;
    if (tokens_open_list(&sources->source[0].files, paths, count, error)) return true;
    sources_close(sources);
    return false;
}

// Opens a source for each name; all names begin with a weight.
static inline bool sources_open_weighted(Sources* sources, const PathList* names, Error* error) {
    int64_t weight[MAX_SOURCES], sum = 0;
    if (names->count > MAX_SOURCES)
        return fail(error, "%d sources; this program mixes up to %d", names->count, (int)MAX_SOURCES);
    if (!weights_read(weight, names->path, names->count, error)) return false;
    for (int i = 0; i < names->count; i++) sum += weight[i];
    sources->source = (Source*)checked_calloc((size_t)names->count, sizeof(Source), "the list of sources");
    sources->count = names->count;
    for (int i = 0; i < names->count; i++) {
        Source* source = &sources->source[i];
        source->weight = weight[i];
        source->fraction = (double)weight[i] / (double)sum;
        if (!tokens_open(&source->files, names->path[i] + weight_length(names->path[i]), error)) return false;
    }
    return sources_agree(sources, sources, false, error);
}

// Opens the files of a comma-separated list: as one source, or, where each has a weight, as one source each,
// "0.7:a*.bin,0.3:b*.bin" (a file of such a name is "./0.7:a"). False, *error filled, *sources closed, if something
// cannot be read, or the vocabularies differ.
static inline bool sources_open(Sources* sources, const char* list, Error* error) {
    PathList names = names_between_commas(list);
    int weighted = 0;
    for (int i = 0; i < names.count; i++) weighted += weight_length(names.path[i]) > 0;
    bool ok;
    memset(sources, 0, sizeof *sources);
    if (weighted == 0) {
        PathList files = {NULL, 0, 0};
        ok = path_list_append_globs(&files, list, error) &&
             sources_open_list(sources, (const char* const*)files.path, files.count, error);
        path_list_free(&files);
    } else if (weighted < names.count) {
        ok = fail(error, "\"%s\": some names have a weight and some have none; give one to all, or to none", list);
    } else {
        ok = sources_open_weighted(sources, &names, error);
    }
    path_list_free(&names);
    if (!ok) sources_close(sources);
    return ok;
}

// Sets the token that documents begin with, where the format marks no documents: `chosen` (-1: not given), or the
// vocabulary's token for that (-1: none or not known), or the format's default. False, *error filled, if there is no
// such token or it is not in the data.
static inline bool documents_settle(TokenFiles* files, int chosen, int of_vocabulary, Error* error) {
    const TokenFormatFacts* facts = &token_formats[files->format];
    const int usual = of_vocabulary >= 0 ? of_vocabulary : facts->document, token = chosen >= 0 ? chosen : usual;
    if (format_has_documents(files->format)) return true;
    if (token < 0)
        return fail(error, "%s holds %s, which do not mark where documents begin; give --document-token-id",
                    files->file[0].path, facts->name);
    files->document = token;
    if (documents_are_seen(files)) return true;
    return fail(error,
                "%s: no document begins with token %d in the first four million tokens; give --document-token-id",
                files->file[0].path, token);
}

// documents_settle for all sources.
static inline bool sources_documents(Sources* sources, int chosen, int of_vocabulary, Error* error) {
    for (int i = 0; i < sources->count; i++) {
        if (!documents_settle(&sources->source[i].files, chosen, of_vocabulary, error)) return false;
    }
    return true;
}

// Whether the formats of all sources mark documents; true if there are no sources.
static inline bool sources_have_documents(const Sources* sources) {
    bool have = true;
    for (int i = 0; i < sources->count; i++) have = have && format_has_documents(sources->source[i].files.format);
    return have;
}

static inline int64_t sources_tokens(const Sources* sources) {
    int64_t tokens = 0;
    for (int i = 0; i < sources->count; i++) tokens += sources->source[i].files.tokens;
    return tokens;
}

// The vocabulary that the tokens were made with; 0: no source names it.
static inline int sources_vocab(const Sources* sources) {
    int vocab = 0;
    for (int i = 0; i < sources->count && !vocab; i++) vocab = token_formats[sources->source[i].files.format].vocab;
    return vocab;
}

// A hash of files and weights, see tokens_checksum().
static inline uint64_t sources_checksum(const Sources* sources) {
    uint64_t h = 0;
    for (int i = 0; i < sources->count; i++) {
        const uint64_t weight = sources->count > 1 ? (uint64_t)sources->source[i].weight : 0;
        h = hash_value(h, weight) ^ tokens_checksum(&sources->source[i].files);
    }
    return h;
}

// A hash of the weights and sizes of all sources, which has to be the same in a resumed run; 0 for one source.
static inline int64_t sources_mix(const Sources* sources) {
    uint64_t h = FNV_OFFSET_BASIS;
    for (int i = 0; i < sources->count; i++) {
        h = hash_value(h, (uint64_t)sources->source[i].weight);
        h = hash_value(h, (uint64_t)sources->source[i].files.tokens);
    }
    return sources->count > 1 ? (int64_t)(h >> 1) : 0;
}

// ---- The loader of all sources ----------------------------------------------------------------------------------

typedef struct {
    Blend blend;
    DataLoader loader[MAX_SOURCES];
    int64_t count; // sequences until a source begins again
} DataMix;

typedef enum { PART_ALL, PART_TRAINED, PART_HELD_OUT } Part; // the last two: see Theory

enum { HELD_OUT_BLOCKS = 64, HELD_OUT_SEQUENCES = 8, HELD_OUT_OF = 20 };

// Makes a loader of a part of a stream, of which up to `most` blocks are held out.
static inline bool part_init(DataLoader* loader, const TokenFiles* files, Part part, int most, int T, int vocab,
                             uint64_t seed, bool shuffle, Error* error) {
    const int64_t all = files->tokens, least = HELD_OUT_SEQUENCES * (int64_t)T + 1;
    int64_t blocks = 1;
    if (part == PART_ALL) return dataloader_init(loader, files, 0, all, T, vocab, seed, shuffle, error);
    while (2 * blocks <= most && all / (2 * blocks) / HELD_OUT_OF >= least) blocks *= 2;
    const int64_t stretch = all / blocks, trained = stretch - stretch / HELD_OUT_OF;
    const bool held = part == PART_HELD_OUT;
    if (!dataloader_init(loader, files, held ? trained : 0, held ? stretch : trained, T, vocab, seed, shuffle, error))
        return false;
    loader->blocks = blocks;
    loader->stride = stretch;
    loader->count *= blocks;
    return true;
}

// Makes loaders of the same part of every source, as dataloader_init(); the sources stay open as long as the loaders
// are used. The first source has the order of seed, each other source an order of its own.
static inline bool mix_init(DataMix* mix, const Sources* sources, Part part, int blocks, int T, int vocab,
                            uint64_t seed, bool shuffle, Error* error) {
    int64_t weight[MAX_SOURCES];
    memset(mix, 0, sizeof *mix);
    for (int i = 0; i < sources->count; i++) {
        const uint64_t own_seed = seed + (uint64_t)i * 0x9E3779B97F4A7C15ull;
        const TokenFiles* files = &sources->source[i].files;
        if (!part_init(&mix->loader[i], files, part, blocks, T, vocab, own_seed, shuffle, error)) return false;
        weight[i] = sources->source[i].weight;
        mix->count += mix->loader[i].count;
    }
    blend_build(&mix->blend, weight, sources->count);
    for (int i = 0; i < sources->count; i++)
        mix->count = (int64_t)blend_reach(&mix->blend, i, (uint64_t)mix->loader[i].count, (uint64_t)mix->count);
    return true;
}

// Reads sequence n of the run, as dataloader_sequence().
static inline bool mix_sequence(int32_t* inputs, int32_t* targets, const DataMix* mix, uint64_t n, Error* error) {
    uint64_t number;
    const int source = blend_source(&mix->blend, n, &number);
    return dataloader_sequence(inputs, targets, &mix->loader[source], number, error);
}

// Sets the positions of its inputs, as dataloader_positions().
static inline void mix_positions(int32_t* positions, const int32_t* inputs, const DataMix* mix, uint64_t n) {
    uint64_t number;
    const int source = blend_source(&mix->blend, n, &number);
    dataloader_positions(positions, inputs, &mix->loader[source], number);
}

// How many epochs of a source the first n sequences are.
static inline double mix_epochs(const DataMix* mix, int source, uint64_t n) {
    return (double)blend_count(&mix->blend, source, n) / (double)mix->loader[source].count;
}
