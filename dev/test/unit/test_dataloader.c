/*
test_dataloader.c: dataloader.h against brute force: permutations counted out, pinned orders against those of a separate
implementation in Python, what is held out against marks, tokens that are too large, files beyond 32 bits.
*/
#include "token_fixture.h"

// ---- The permutation --------------------------------------------------------------------------------------------

static bool is_bijection(uint64_t count, uint64_t key, unsigned char* seen) {
    memset(seen, 0, count);
    for (uint64_t x = 0; x < count; x++) {
        uint64_t y = permute(x, count, key);
        if (y >= count || seen[y]) return false;
        seen[y] = 1;
    }
    return true;
}

static void test_bijection(void) {
    static unsigned char seen[1 << 20];
    int bad = 0;
    for (uint64_t count = 1; count <= 2000; count++)
        for (uint64_t epoch = 0; epoch < 2; epoch++) bad += !is_bijection(count, epoch_key(1337, epoch), seen);
    check(bad == 0, "permutation: a bijection for every count 1..2000, 2 epochs (%d are not)", bad);
    const uint64_t larger[] = {4096, 4097, 65535, 65536, 65537, 99991, 262144, 262145, 1000003, 1 << 20};
    for (size_t i = 0; i < sizeof larger / sizeof larger[0]; i++) bad += !is_bijection(larger[i], 42, seen);
    check(bad == 0, "permutation: a bijection for some up to 2^20");
}

// The order is part of what a checkpoint means, so it may never change. The numbers are from a separate
// implementation in Python, checked against the known answers of Philox.
static void test_pinned_order(void) {
    typedef struct {
        uint64_t seed, epoch, count, image[5];
    } Pin;
    const Pin pins[] = {{1337, 0, 1000ull, {849ull, 640ull, 766ull, 611ull, 987ull}},
                        {1337, 1, 1000ull, {549ull, 143ull, 521ull, 244ull, 860ull}},
                        {0xdeadbeefcafef00dull, 7, 5ull, {1ull, 3ull, 4ull, 0ull, 2ull}},
                        {1,
                         1ull << 40,
                         1000000000039ull,
                         {648353481114ull, 623890340369ull, 771733843438ull, 577389468373ull, 506860441230ull}}};
    for (size_t i = 0; i < sizeof pins / sizeof pins[0]; i++) {
        const Pin* pin = &pins[i];
        bool same = true;
        for (uint64_t x = 0; x < 5; x++)
            same = same && permute(x, pin->count, epoch_key(pin->seed, pin->epoch)) == pin->image[x];
        check(same, "permutation: seed %llu, epoch %lld, count %lld as pinned", (unsigned long long)pin->seed,
              (long long)pin->epoch, (long long)pin->count);
    }
}

// Counts far beyond what can be counted out: images stay inside and differ, and none takes long.
static void test_permutation_large(void) {
    const uint64_t counts[] = {(1ull << 32) - 1, (1ull << 32) + 1, 1000000000039ull, (1ull << 62) + 1, UINT64_MAX};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        enum { N = 500 };
        uint64_t image[N];
        int bad = 0;
        double mean = 0;
        for (uint64_t x = 0; x < N; x++) {
            image[x] = permute(counts[c] - 1 - x, counts[c], 7);
            bad += image[x] >= counts[c];
            mean += (double)image[x] / (double)counts[c] / N;
            for (uint64_t y = 0; y < x; y++) bad += image[y] == image[x];
        }
        // the mean of N uniform numbers: 1/2, deviation 1/sqrt(12 N)
        check(bad == 0, "permutation: count %.3g, %d images inside and distinct", (double)counts[c], (int)N);
        check_error("    their mean is a half, in standard deviations", fabs(mean - 0.5) * sqrt(12.0 * N), 5);
    }
}

// ---- Two streams ------------------------------------------------------------------------------------------------

// Whether two streams may have the same vocabulary: with bytes for tokens of text, and without.
static void test_streams_agree(void) {
    uint32_t tokens[200];
    some_tokens(tokens, 200, 50257);
    write_text("s.txt", "text");
    write_text("s.jsonl", "{\"text\":\"text\"}");
    write_tokens("s_gpt2.bin", TOKENS_GPT2_SHARD, tokens, 200);
    write_tokens("s_llama.bin", TOKENS_LLAMA3_SHARD, tokens, 200);
    write_tokens("s_mega.bin", TOKENS_MEGATRON, tokens, 200);
    enum { STREAMS = 5 };
    static const char* const names[STREAMS] = {"s.txt", "s.jsonl", "s_mega.bin", "s_gpt2.bin", "s_llama.bin"};
    int wrong = 0;
    for (int i = 0; i < STREAMS; i++)
        for (int k = 0; k < STREAMS; k++) {
            TokenFiles a = open_or_die(names[i]), b = open_or_die(names[k]);
            Error error = {""};
            const bool texts = i < 2 && k < 2, mixed = (i < 2) != (k < 2), two = i + k == 7 && i != k && i > 2 && k > 2;
            wrong += streams_agree(&a, &b, false, &error) == two;
            wrong += streams_agree(&a, &b, true, &error) == (mixed || two);
            wrong += !texts && mixed != (strstr(error.text, "--tokenizer") != NULL);
            tokens_close(&a), tokens_close(&b);
        }
    check(wrong == 0, "texts agree with each other, and with tokens unless they are bytes: %d wrong", wrong);
}

// ---- What is held out -------------------------------------------------------------------------------------------

// One part of a text whose tokens are all different: marks in `used` (N) which of them its sequences read, epoch by
// epoch. Whether each epoch reads each sequence once, and the first one reads `first_of` blocks in the first sequences.
static bool part_reads(unsigned char* used, const TokenFiles* files, Part part, int most, int T, bool shuffle,
                       DataLoader* loader) {
    int32_t inputs[64], targets[64];
    Error error = {""};
    if (!dataloader_init(loader, files, part, most, T, 1 << 30, 5, shuffle, &error)) return false;
    unsigned char* seen = (unsigned char*)checked_calloc((size_t)files->tokens, 1, "test");
    bool ok = true;
    for (int64_t n = 0; n < 2 * loader->count && ok; n++) {
        ok =
            dataloader_sequence(inputs, targets, loader, (uint64_t)n, &error) && seen[inputs[0]]++ == n / loader->count;
        for (int i = 0; i < T; i++) {
            ok = ok && targets[i] == inputs[0] + i + 1 && (i == 0 || inputs[i] == targets[i - 1]);
            used[inputs[i]] = used[targets[i]] = 1;
        }
    }
    free(seen);
    return ok;
}

// What is held out: no token of it is trained on, it is spread over the text, and little of the text is in neither
// part.
static void test_held_out(void) {
    enum { N = 40000 };
    static uint32_t tokens[N];
    static unsigned char trained[N], held[N];
    for (uint32_t i = 0; i < N; i++) tokens[i] = i;
    const int64_t sizes[] = {220, 1600, 3340, 3359, 12345, N};
    const int Ts[] = {1, 2, 10, 33, 64};
    int cases = 0, wrong = 0, most_blocks = 0;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const int64_t n = sizes[s];
        TokenFiles files = open_or_die(write_tokens("held.bin", TOKENS_LLAMA3_SHARD, tokens, n));
        for (size_t i = 0; i < sizeof Ts / sizeof Ts[0]; i++) {
            const int T = Ts[i];
            DataLoader train = {}, val;
            memset(&val, 0, sizeof val);
            memset(trained, 0, sizeof trained);
            memset(held, 0, sizeof held);
            if (n / 20 <= T) continue;
            const bool ok = part_reads(trained, &files, PART_TRAINED, HELD_OUT_BLOCKS, T, true, &train) &&
                            part_reads(held, &files, PART_HELD_OUT, HELD_OUT_BLOCKS, T, false, &val);
            int64_t both = 0, neither = 0, blocks = 0;
            for (int64_t t = 0; t < n; t++) {
                both += trained[t] && held[t];
                neither += !trained[t] && !held[t];
                blocks += held[t] && (t == 0 || !held[t - 1]);
            }
            const int64_t block = val.end - val.first;
            wrong += !ok || both != 0 || blocks != val.blocks || train.blocks != val.blocks;
            wrong += neither > (2 * T + 1) * blocks || (blocks > 1 && block < 8 * T + 1) ||
                     (blocks < HELD_OUT_BLOCKS && n / (2 * blocks) / 20 >= 8 * T + 1);
            bool near[64] = {false}; // the first sequences are in different blocks, a few of them in different quarters
            for (int64_t k = 0; k < blocks; k++) near[dataloader_begin(&val, (uint64_t)k) / val.stride % 64] = true;
            for (int64_t k = 0; k < blocks; k++) wrong += !near[k];
            const int quarters = blocks == 64 ? 4 : 0;
            for (int quarter = 0; quarter < quarters; quarter++) {
                bool in = false;
                for (uint64_t k = 0; k < 8; k++) in = in || dataloader_begin(&val, k) / val.stride / 16 == quarter;
                wrong += !in;
            }
            most_blocks = blocks > most_blocks ? (int)blocks : most_blocks;
            cases++;
        }
        tokens_close(&files);
    }
    check(wrong == 0 && cases > 20 && most_blocks == HELD_OUT_BLOCKS,
          "held out: %d texts, in up to %d blocks, of which nothing is trained on: %d wrong", cases, most_blocks,
          wrong);
    // The split is part of what a checkpoint means: that of one block is older than the others.
    TokenFiles files = open_or_die("held.bin");
    DataLoader a, b;
    Error error;
    check(dataloader_init(&a, &files, PART_TRAINED, 1, 10, N, 5, true, &error) && a.first == 0 && a.end == 38000 &&
              a.count == 3799 && dataloader_init(&b, &files, PART_HELD_OUT, 1, 10, N, 0, false, &error) &&
              b.first == 38000 && b.end == N && dataloader_begin(&b, 3) == 38030,
          "one block: the last 5 %%");
    check(dataloader_init(&a, &files, PART_ALL, 64, 10, N, 5, true, &error) && a.first == 0 && a.count == 3999 &&
              a.blocks == 1,
          "all of it");
    check(dataloader_init(&a, &files, PART_HELD_OUT, 64, 2, N, 0, false, &error) && a.stride == 625 && a.first == 594 &&
              a.end == 625 && a.count == 64 * 15 && dataloader_begin(&a, 1) == 594 + 39 * 625 &&
              dataloader_begin(&a, 66) == 594 + 14 * 625 + 2,
          "64 blocks, as pinned");
    tokens_close(&files);
}

// ---- Sizes and tokens that are refused --------------------------------------------------------------------------

static void test_refused_sizes(void) {
    TokenFiles files = open_or_die(write_text("ten.txt", "0123456789"));
    static const struct {
        Part part;
        int T, vocab;
    } cases[] = {{PART_ALL, 10, 256}, {PART_ALL, INT32_MAX, 256}, {PART_HELD_OUT, 1, 256}, {PART_ALL, 3, 57}};
    DataLoader loader;
    Error error;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool refused = !dataloader_init(&loader, &files, cases[i].part, HELD_OUT_BLOCKS, cases[i].T,
                                              cases[i].vocab, 0, false, &error);
        check(refused, "refused: %s", error.text);
    }
    check(dataloader_init(&loader, &files, PART_ALL, 0, 9, 58, 0, false, &error) && loader.count == 1,
          "10 tokens are just enough for T = 9, and a vocabulary of 58 for '9'");
    tokens_close(&files);
}

// Each place where a token can be too large: named with file, place in that file, token and vocabulary.
static void test_vocabulary(TokenFormat format, uint32_t large) {
    enum { HALF = 5000, T = 100 };
    static uint32_t tokens[2 * HALF];
    some_tokens(tokens, 2 * HALF, 200);
    const int64_t places[] = {4950, 5000, 5049, 9801, 9900, 2 * HALF - 1}; // beyond the 4096 that init looks at
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        const uint32_t kept = tokens[places[p]];
        tokens[places[p]] = large;
        write_tokens("vocab_0.bin", format, tokens, HALF);
        write_tokens("vocab_1.bin", format, tokens + HALF, HALF);
        tokens[places[p]] = kept;
        TokenFiles files = open_or_die("vocab_*.bin");
        DataLoader loader;
        Error error = {""}, unused;
        bool ok = dataloader_init(&loader, &files, PART_ALL, 0, T, 200, 0, false, &error);
        int32_t inputs[T], targets[T];
        int failed = 0, expected = 0;
        for (int64_t k = 0; ok && k < loader.count; k++) {
            bool has_it = large >= 200 && places[p] >= k * T && places[p] <= (k + 1) * T;
            bool failing = !dataloader_sequence(inputs, targets, &loader, (uint64_t)k, failed ? &unused : &error);
            expected += has_it;
            failed += failing;
            ok = ok && failing == has_it;
        }
        char part[256];
        snprintf(part, sizeof part, "vocab_%d.bin: token %lld is %u,", (int)(places[p] / HALF),
                 (long long)(places[p] % HALF), large);
        const bool named = expected == 0 ? !*error.text : strstr(error.text, part) != NULL;
        check(ok && named, "token %u at %lld: %d sequences fail. %s", large, (long long)places[p], failed, error.text);
        tokens_close(&files);
    }
}

// ---- Offsets beyond 32 bits: files with holes, so they need no space on the disk --------------------------------

// A file of `size` bytes, zeros without a place on the disk, and this stretch of bytes in it.
static const char* write_sparse(const char* name, int64_t size, const void* head, size_t head_size, int64_t at,
                                const void* data, size_t data_size) {
    const char* path = write_bytes(name, head, head_size);
    int fd = open(path, O_WRONLY);
    if (fd < 0 || ftruncate(fd, size) != 0 || pwrite(fd, data, data_size, at) != (ssize_t)data_size || close(fd) != 0)
        die("cannot write %s", path);
    return path;
}

static void test_huge(void) {
    enum { T = 100 };
    uint16_t mark16[T + 1];
    uint32_t mark32[T + 1];
    for (int i = 0; i <= T; i++) {
        mark16[i] = (uint16_t)(1 + some_token((uint64_t)i, 50000));
        mark32[i] = 1 + some_token((uint64_t)i, 128000);
    }
    const int32_t gpt2[256] = {20240520, 1, INT32_MAX}, llama3[256] = {20240801, 7, INT32_MAX};
    const int64_t most = INT32_MAX, k16 = (most - 1) / T - 1, k32 = k16; // the last whole sequence of each
    write_sparse("huge_0.bin", 1024 + 2 * most, gpt2, 1024, 1024 + 2 * k16 * T, mark16, sizeof mark16);
    write_sparse("huge_llama.bin", 1024 + 4 * most, llama3, 1024, 1024 + 4 * k32 * T, mark32, sizeof mark32);
    write_sparse("huge_1.bin", 1024 + 2 * most, gpt2, 1024, 1024, mark16, 2);

    typedef struct {
        const char* globs;
        int64_t tokens, k;
        int marks; // of the T + 1 tokens, the marked ones; the others are 0
    } Case;
    const int64_t both = (most + (most - 1)) / T - 1; // two files: the first sequence of the second lies across
    const Case cases[] = {{"huge_0.bin", most, k16, T + 1},
                          {"huge_llama.bin", most, k32, T + 1},
                          {"huge_[01].bin", 2 * most, k16, T + 1},
                          {"huge_[01].bin", 2 * most, both, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        TokenFiles files = open_or_die(cases[c].globs);
        DataLoader loader;
        Error error = {""};
        int32_t inputs[T] = {0}, targets[T] = {0};
        bool ok = dataloader_init(&loader, &files, PART_ALL, 0, T, 128256, 0, false, &error) &&
                  dataloader_sequence(inputs, targets, &loader, (uint64_t)cases[c].k, &error);
        int differ = 0;
        for (int i = 0; i < T; i++)
            for (int side = 0; side < 2; side++) {
                int32_t mark = files.format == TOKENS_LLAMA3_SHARD ? (int32_t)mark32[i + side] : mark16[i + side];
                differ += (side ? targets : inputs)[i] != (cases[c].marks ? mark : 0);
            }
        check(ok && files.tokens == cases[c].tokens && differ == 0,
              "%s: %lld tokens, sequence %lld of %lld: %d differ%s", cases[c].globs, (long long)files.tokens,
              (long long)cases[c].k, (long long)loader.count, differ, error.text);
        tokens_close(&files);
    }
    // The first token of the second file, where the stream's position is 2^31 - 1.
    TokenFiles files = open_or_die("huge_[01].bin");
    int32_t token = -1;
    Error error = {""};
    check(tokens_read(&token, &files, most, 1, 128256, &error) && token == mark16[0], "token 2^31 - 1 of the stream");
    tokens_close(&files);
}

// --short: without counting out permutations, which is most of the work.
int main(int argc, char** argv) {
    alarm(120); // a hang is a failure
    folder_begin("test_dataloader");
    test_pinned_order();
    test_permutation_large();
    if (argc < 2 || strcmp(argv[1], "--short") != 0) test_bijection();
    test_streams_agree();
    test_held_out();
    test_refused_sizes();
    test_vocabulary(TOKENS_GPT2_SHARD, 200);
    test_vocabulary(TOKENS_LLAMA3_SHARD, UINT32_MAX);
    test_vocabulary(TOKENS_GPT2_SHARD, 199);
    test_vocabulary(TOKENS_MEGATRON, 200);
    test_huge();
    return folder_end();
}
