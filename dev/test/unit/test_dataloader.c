/*
test_dataloader.c: dataloader.h against brute force: permutations and blends counted out, pinned orders against those of
a separate implementation in Python, what is held out against marks, tokens that are too large, files beyond 32 bits.
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

// ---- Blends of sources ------------------------------------------------------------------------------------------

// A number of sources and weights of all kinds: equal, random, doubling, one large among small, and those with which
// the second source comes close to the bound (each group as light as it can be: Fibonacci's numbers).
static int some_weights(int64_t* weight, uint64_t trial) {
    const Random4 r = philox(21, 0, trial);
    const int sources = 1 + (int)(r.word[0] % (trial % 8 == 7 ? MAX_SOURCES : 16));
    for (int i = 0; i < sources; i++) {
        const uint32_t random = philox(21, 1 + trial, (uint64_t)i).word[0];
        const int64_t start[] = {1, 1000, 1000, 1002}, last = i < 4 ? start[i] : weight[i - 1] + weight[i - 2];
        const int64_t fibonacci = i < 25 ? last : 1;
        const int64_t kinds[] = {1,         1 + random % 10,          1 + random % 1000000, (int64_t)1 << i % 24,
                                 fibonacci, i ? 1 : 1 + random % 5000};
        weight[i] = kinds[trial % 6];
    }
    for (int i = 0; i < sources && trial % 5; i++) { // in any order
        const int k = (int)(philox(21, 1 + trial, (uint64_t)i).word[1] % (uint32_t)sources);
        const int64_t kept = weight[i];
        weight[i] = weight[k];
        weight[k] = kept;
    }
    return sources;
}

// Counted out from 0: the source's own numbers go up by one, blend_count() is the count, the shares of no source are
// off by more than the bound of its place in the tree, which is below 1.68; and a whole period has the weights exactly.
static void test_blend(void) {
    static Blend blend;
    int64_t weight[MAX_SOURCES], taken[MAX_SOURCES], periods = 0;
    int wrong = 0, trials = 600;
    double worst = 0, worst_bound = 0, beyond = 0;
    for (int trial = 0; trial < trials; trial++) {
        const int sources = some_weights(weight, (uint64_t)trial);
        double bound[MAX_SOURCES];
        int64_t sum = 0;
        for (int i = 0; i < sources; i++) {
            sum += weight[i];
            taken[i] = 0;
        }
        blend_build(&blend, weight, sources);
        for (int i = 0; i < sources; i++) {
            bound[i] = 0;
            for (int g = i; blend.parent[g] >= 0; g = blend.parent[g])
                bound[i] += 0.5 * (double)weight[i] / (double)blend.weight[g];
            worst_bound = fmax(worst_bound, bound[i]);
        }
        const int64_t end = min_i64(sum + sum / 3 + 1, trial % 8 == 7 ? 400 : 2000);
        for (int64_t n = 0; n < end; n++) {
            uint64_t number;
            const int source = blend_source(&blend, (uint64_t)n, &number);
            wrong += source < 0 || source >= sources || number != (uint64_t)taken[source];
            taken[source]++;
            for (int i = 0; i < sources; i++) {
                const double off = fabs((double)taken[i] - (double)(n + 1) * (double)weight[i] / (double)sum);
                worst = fmax(worst, off);
                beyond = fmax(beyond, off - bound[i]);
                if (n % 7 == 0) wrong += blend_count(&blend, i, (uint64_t)n + 1) != (uint64_t)taken[i];
                if (n + 1 == sum) wrong += taken[i] != weight[i];
            }
            periods += n + 1 == sum;
        }
    }
    check(wrong == 0 && periods > 100, "blends: %d, %lld periods: %d numbers or counts differ from counting", trials,
          (long long)periods, wrong);
    check_error("    sequences that a source is off, beyond the bound of its place", beyond, 1e-9);
    check_error("    the largest such bound", worst_bound, 1.68);
    check(worst > 1.1 && worst_bound > 1.65, "    (the worst is off by %.3f, of at most %.3f)", worst, worst_bound);
}

// Far out, around 2^63 and at the end, steps of one, and the sum of all; two sources against the formula in
// 128 bits.
static void test_blend_far(void) {
    static Blend blend;
    int64_t weight[MAX_SOURCES];
    int wrong = 0;
    for (int trial = 0; trial < 200; trial++) {
        const int sources = some_weights(weight, (uint64_t)trial);
        if (trial == 7) {
            weight[0] = blend_largest - 1;
            weight[1] = 1;
        }
        blend_build(&blend, weight, trial == 7 ? 2 : sources);
        for (int k = 0; k < 20; k++) {
            const Random4 r = philox(22, (uint64_t)trial, (uint64_t)k);
            const uint64_t any = (uint64_t)r.word[0] << 32 | r.word[1], n = k ? any : UINT64_MAX - 1;
            uint64_t number, sum = 0;
            const int source = blend_source(&blend, n, &number);
            for (int i = 0; i < blend.sources; i++) {
                const uint64_t now = blend_count(&blend, i, n), next = blend_count(&blend, i, n + 1);
                wrong += next - now != (i == source) || (i == source && now != number);
                sum += now;
            }
            wrong += sum != n;
            const uint64_t a = (uint64_t)blend.weight[0], w = a + (uint64_t)blend.weight[1];
            __extension__ typedef unsigned __int128 Wide;
            const uint64_t share = (uint64_t)((2 * (Wide)n * a + w) / (2 * w));
            const int first = blend.sources == 2 ? blend.half[2][0] : -1;
            if (first == 0) wrong += blend_count(&blend, 0, n) != share;
            const uint64_t reach = blend_reach(&blend, source, number, UINT64_MAX);
            wrong += blend_count(&blend, source, reach) > number || reach < n;
            wrong += reach < UINT64_MAX && blend_count(&blend, source, reach + 1) <= number;
            if (k == 0) blend_source(&blend, UINT64_MAX, &number);
        }
    }
    check(wrong == 0, "blends far out: %d differ", wrong);
}

// The order is part of what a checkpoint means, as that of the sequences. From a separate implementation in Python, in
// fractions.
static void test_blend_pinned(void) {
    typedef struct {
        int64_t weight[6];
        const char* order;
    } Pin;
    const Pin pins[] = {{{7, 3}, "abaabaaabaabaabaaabaabaabaaabaabaabaaaba"},
                        {{5, 3, 2}, "abacabacababacabacababacabacababacabacab"},
                        {{1, 1, 1, 1}, "acbdacbdacbdacbdacbdacbdacbdacbdacbdacbd"},
                        {{50, 30, 10, 5, 4, 1}, "abacabadababacabaeababacabadababacabaeab"},
                        {{13, 1, 2, 3, 5, 8}, "dafaefacafeadafaefabaefadafeafacdafaefac"}};
    for (size_t p = 0; p < sizeof pins / sizeof pins[0]; p++) {
        static Blend blend;
        char order[64] = "";
        int sources = 0;
        while (sources < 6 && pins[p].weight[sources]) sources++;
        blend_build(&blend, pins[p].weight, sources);
        for (size_t n = 0; n < strlen(pins[p].order); n++) {
            uint64_t number;
            order[n] = (char)('a' + blend_source(&blend, n, &number));
        }
        check(strcmp(order, pins[p].order) == 0, "order of %d sources: %s", sources, order);
    }
}

// ---- Lists of sources -------------------------------------------------------------------------------------------

static void test_weights(void) {
    write_text("w_a.txt", "aaaa");
    write_text("w_b.txt", "bb");
    write_text("0.5:w_c.txt", "ccc");
    write_text(".:w_d.txt", "d");
    typedef struct {
        const char* list;
        int64_t weight[3];
    } Case;
    const Case cases[] = {{"0.7:w_a.txt,0.3:w_b.txt", {7, 3}},
                          {"70:w_a.txt,30:w_b.txt", {7, 3}},
                          {"0.70:w_a.txt,.3:w_b.txt", {7, 3}},
                          {"1:w_a.txt,2.:w_b.txt,0.125:w_a.txt", {8, 16, 1}},
                          {"0003.5:w_a.txt", {1}},
                          {"0.70000000000000000000:w_a.txt,0.3:w_b.txt", {7, 3}},
                          {"0.5:w_?.txt", {1}},
                          {"2147483646:w_a.txt,1:w_b.txt", {2147483646, 1}},
                          {"0.000000001:w_a.txt,1:w_b.txt", {1, 1000000000}},
                          {"w_a.txt,w_b.txt", {1}},
                          {"./0.5:w_c.txt", {1}},
                          {".:w_d.txt", {1}},
                          {"0.1:0.5:w_c.txt", {1}}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        Sources sources = sources_or_die(cases[c].list);
        int64_t sum = 0;
        bool same = true;
        for (int i = 0; i < 3; i++) sum += cases[c].weight[i];
        for (int i = 0; i < 3 && cases[c].weight[i]; i++)
            same = same && i < sources.count && sources.source[i].weight == cases[c].weight[i] &&
                   fabs(sources.source[i].fraction * (double)sum - (double)cases[c].weight[i]) < 1e-9 * (double)sum;
        check(same && (sources.count == 3 || !cases[c].weight[sources.count]), "weights of %s", cases[c].list);
        sources_close(&sources);
        sources_close(&sources);
    }
    Sources one = sources_or_die("w_a.txt"), two = sources_or_die("1:w_a.txt,1:w_b.txt"),
            three = sources_or_die("1:w_a.txt,2:w_b.txt"), swapped = sources_or_die("1:w_b.txt,1:w_a.txt");
    check(sources_mix(&one) == 0 && sources_mix(&two) > 0 && sources_mix(&three) > 0 &&
              sources_mix(&two) != sources_mix(&three) && sources_mix(&two) != sources_mix(&swapped) &&
              sources_checksum(&two) != sources_checksum(&three) &&
              sources_checksum(&two) != sources_checksum(&swapped) &&
              sources_checksum(&one) == tokens_checksum(&one.source[0].files) && sources_tokens(&two) == 6,
          "other weights, another order: another mix");
    sources_close(&one), sources_close(&two), sources_close(&three), sources_close(&swapped);
}

static void test_refused_sources(void) {
    uint32_t tokens[200];
    some_tokens(tokens, 200, 50257);
    write_text("s.txt", "text");
    write_tokens("s_gpt2.bin", TOKENS_GPT2_SHARD, tokens, 200);
    write_tokens("s_llama.bin", TOKENS_LLAMA3_SHARD, tokens, 200);
    write_tokens("s_raw.bin", TOKENS_RAW_UINT16, tokens, 200);
    write_tokens("s_mega.bin", TOKENS_MEGATRON, tokens, 200);
    char many[MAX_SOURCES * 8 + 16] = "1:s.txt";
    for (int i = 0; i < MAX_SOURCES; i++) memcpy(many + 7 + 8 * i, ",1:s.txt", 9);
    const char* const refused[] = {"1:s.txt,s.txt",
                                   "s.txt,1:s.txt",
                                   "0:s.txt",
                                   "1:s.txt,0.000:s.txt",
                                   "2147483647:s.txt,1:s.txt",
                                   "99999999999999999999:s.txt,1:s.txt",
                                   "18446744073709551617:s.txt,1:s.txt", // 1, in 64 bits
                                   "0.0000000001:s.txt,1:s.txt",
                                   "1:,1:s.txt",
                                   "1:s.txt,1:nowhere.txt",
                                   "-1:s.txt",
                                   "1e3:s.txt",
                                   ".:s.txt",
                                   "1:s_gpt2.bin,1:s_llama.bin",
                                   "1:s_gpt2.bin,1:s_raw.bin,1:s_llama.bin",
                                   "s_gpt2.bin,s_raw.bin",
                                   many};
    CHECK_REFUSED(refused);
    write_text("s.jsonl", "{\"text\":\"text\"}");
    static const char* const text[] = {"s.txt", "s.jsonl", "1:s.txt,1:s.jsonl"};
    static const char* const mixed[] = {"s_gpt2.bin", "1:s.txt,1:s_raw.bin", "1:s_mega.idx,1:s.jsonl"};
    int wrong = 0;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            Sources a = sources_or_die(text[i]), b = sources_or_die(text[k]), c = sources_or_die(mixed[k]);
            Error error = {""};
            wrong += !sources_agree(&a, &b, true, &error) || !sources_agree(&a, &b, false, &error);
            wrong += !sources_agree(&a, &c, false, &error) || !sources_agree(&c, &a, false, &error);
            wrong += sources_agree(&a, &c, true, &error) || !strstr(error.text, "--tokenizer");
            wrong += sources_agree(&c, &a, true, &error) || !strstr(error.text, "--tokenizer");
            sources_close(&a), sources_close(&b), sources_close(&c);
        }
    check(wrong == 0, "texts agree with each other, and with tokens unless they are bytes: %d wrong", wrong);
    Sources gpt2 = sources_or_die("s_gpt2.bin"), llama3 = sources_or_die("s_llama.bin");
    Error error = {""};
    check(!sources_agree(&gpt2, &llama3, true, &error) && !strstr(error.text, "--tokenizer"), "tokens of two: %s",
          error.text);
    sources_close(&gpt2), sources_close(&llama3);
    many[7 + 8 * (MAX_SOURCES - 1)] = 0;
    const struct {
        const char* list;
        int count, vocab;
    } fine[] = {{"1:s_gpt2.bin,1:s_raw.bin", 2, 50257},
                {"1:s_mega.idx,1:s_gpt2.bin", 2, 50257},
                {"1:s_llama.bin,1:s_mega", 2, 128256},
                {"1:s_raw.bin,1:s_mega.bin", 2, 0},
                {many, MAX_SOURCES, 256}};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        Sources sources = sources_or_die(fine[i].list);
        check(sources.count == fine[i].count && sources_vocab(&sources) == fine[i].vocab,
              "%.40s: %d sources, vocabulary %d", fine[i].list, fine[i].count, fine[i].vocab);
        sources_close(&sources);
    }
    check(!is_mapped("/s_"), "refused sources are not left mapped");
}

// Which token it is that documents begin with: what was chosen, the vocabulary's, the format's.
static void test_document_token(void) {
    const uint32_t tokens[] = {1, 2, 3, 300, 0, 7, 9, 50256, 5}, llama[] = {5, 128000};
    write_tokens("which_gpt2", TOKENS_GPT2_SHARD, tokens, 9);
    write_tokens("which_llama", TOKENS_LLAMA3_SHARD, llama, 2);
    write_tokens("which_raw", TOKENS_RAW_UINT16, tokens, 9);
    write_tokens("which_mega", TOKENS_MEGATRON, tokens, 9);
    write_text("which_text", "text");
    const struct {
        const char* name;
        int chosen, vocabulary, want; // -1: refused; -2: the format marks documents
    } cases[] = {{"which_gpt2", -1, -1, 50256},   {"which_gpt2", -1, 7, 7},        {"which_gpt2", 9, 7, 9},
                 {"which_gpt2", 0, -1, 0},        {"which_llama", -1, -1, 128000}, {"which_raw", -1, 0, 0},
                 {"which_raw", 50256, -1, 50256}, {"which_raw", -1, -1, -1},       {"which_text", -1, -1, -2},
                 {"which_mega", -1, -1, -2},      {"which_gpt2", 8, -1, -1},       {"which_llama", 50256, -1, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Sources sources;
        Error error = {""};
        if (!sources_open(&sources, cases[i].name, &error)) die("%s", error.text);
        const bool ok = sources_documents(&sources, cases[i].chosen, cases[i].vocabulary, &error);
        const int token = sources.source[0].files.document;
        const bool none = cases[i].want == -2;
        const bool right = cases[i].want == -1
                               ? !ok && !strstr(error.text, "-1") // it does not name a token that is none
                               : ok && (none || token == cases[i].want) && sources_have_documents(&sources) == none;
        check(right, "documents of %s, %d chosen, %d of the vocabulary: %d. %s", cases[i].name, cases[i].chosen,
              cases[i].vocabulary, token, ok ? "" : error.text);
        sources_close(&sources);
    }
}

// Three sources, told apart by their letters: every sequence is one of the right source, at the place that the count of
// those before gives, each source goes through all of its own before one comes again, and the held-out part is no part
// of what is trained on.
static void test_mix(void) {
    static const int64_t sizes[] = {3000, 1001, 220};
    static char text[3][3000];
    static DataMix mix, held, all;
    for (int i = 0; i < 3; i++) {
        char name[32];
        for (int64_t k = 0; k < sizes[i]; k++) // a third of the alphabet each
            text[i][k] = (char)(32 + 30 * i + some_token((uint64_t)(5000 * i + k), 30));
        snprintf(name, sizeof name, "mix3_%d", i);
        write_bytes(name, text[i], (size_t)sizes[i]);
    }
    Sources sources = sources_or_die("5:mix3_0,3:mix3_1,2:mix3_2");
    enum { T = 10, N = 2000 };
    Error error = {""};
    bool ok = mix_init(&mix, &sources, PART_TRAINED, 64, T, 256, 3, true, &error) &&
              mix_init(&held, &sources, PART_HELD_OUT, 64, T, 256, 0, false, &error) &&
              mix_init(&all, &sources, PART_ALL, 64, T, 256, 0, false, &error);
    const int64_t weight[] = {5, 3, 2}, trained[] = {2850, 951, 209};
    int64_t taken[3] = {0}, first_again = -1;
    int wrong = !ok, off = 0;
    static unsigned char seen[3][300];
    for (int64_t n = 0; ok && n < N; n++) {
        int32_t inputs[T], targets[T], again[T];
        ok = mix_sequence(inputs, targets, &mix, (uint64_t)n, &error) &&
             mix_sequence(again, targets, &mix, (uint64_t)n, &error);
        const int source = (inputs[0] - 32) / 30;
        const int64_t count = (trained[source] - 1) / T;
        int64_t k = 0; // which it is: its tokens say so
        while (k < count && memcmp(inputs, again, sizeof inputs) == 0) {
            bool same = true;
            for (int i = 0; i < T; i++)
                same = same && inputs[i] == text[source][k * T + i] && targets[i] == text[source][k * T + i + 1];
            if (same) break;
            k++;
        }
        const int64_t epoch = taken[source] / count;
        wrong += k == count || seen[source][k] != epoch % 256;
        if (k < count) seen[source][k]++;
        if (first_again < 0 && epoch > 0) first_again = n;
        taken[source]++;
        for (int i = 0; i < 3; i++) off += fabs((double)taken[i] - (double)((n + 1) * weight[i]) / 10) > 1.0;
    }
    check(ok && wrong == 0 && off == 0, "mix of three: %d of %d sequences are wrong %s", wrong, (int)N, error.text);
    check(first_again == mix.count, "    a source begins again at sequence %lld", (long long)mix.count);
    double differ = 0;
    for (int i = 0; i < 3; i++)
        differ += fabs(mix_epochs(&mix, i, N) - (double)taken[i] / (double)((trained[i] - 1) / T));
    check_error("    epochs of each, from counting", differ, 1e-12);
    check(mix.loader[0].seed == 3 && mix.loader[1].seed != 3 && mix.loader[2].seed != mix.loader[1].seed,
          "    each source has an order of its own");
    for (int i = 0; i < 3; i++)
        wrong += held.loader[i].first != trained[i] || held.loader[i].end != sizes[i] || mix.loader[i].first != 0 ||
                 mix.loader[i].end != trained[i] || all.loader[i].first != 0 || all.loader[i].end != sizes[i];
    check(wrong == 0, "    the last 5 %% of each are held out");
    check(!mix_init(&held, &sources, PART_HELD_OUT, 64, 11, 256, 0, false, &error), "refused: %s", error.text);
    sources_close(&sources);
}

// ---- What is held out -------------------------------------------------------------------------------------------

// One part of a text whose tokens are all different: marks in `used` (N) which of them its sequences read, epoch by
// epoch. Whether each epoch reads each sequence once, and the first one reads `first_of` blocks in the first sequences.
static bool part_reads(unsigned char* used, const TokenFiles* files, Part part, int most, int T, bool shuffle,
                       DataLoader* loader) {
    int32_t inputs[64], targets[64];
    Error error = {""};
    if (!part_init(loader, files, part, most, T, 1 << 30, 5, shuffle, &error)) return false;
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
    check(part_init(&a, &files, PART_TRAINED, 1, 10, N, 5, true, &error) && a.first == 0 && a.end == 38000 &&
              a.count == 3799 && part_init(&b, &files, PART_HELD_OUT, 1, 10, N, 0, false, &error) && b.first == 38000 &&
              b.end == N && dataloader_begin(&b, 3) == 38030,
          "one block: the last 5 %%");
    check(part_init(&a, &files, PART_HELD_OUT, 64, 2, N, 0, false, &error) && a.stride == 625 && a.first == 594 &&
              a.end == 625 && a.count == 64 * 15 && dataloader_begin(&a, 1) == 594 + 39 * 625 &&
              dataloader_begin(&a, 66) == 594 + 14 * 625 + 2,
          "64 blocks, as pinned");
    tokens_close(&files);
}

// ---- Ranges and tokens that are refused -------------------------------------------------------------------------

static void test_refused_ranges(void) {
    TokenFiles files = open_or_die(write_text("ten.txt", "0123456789"));
    static const struct {
        int64_t first, end;
        int T, vocab;
    } cases[] = {{0, 10, 10, 256}, {4, 4, 1, 256},  {0, 10, INT32_MAX, 256},
                 {-1, 10, 3, 256}, {0, 11, 3, 256}, {INT64_MIN, INT64_MAX, 3, 256},
                 {9, 8, 3, 256},   {0, 10, 0, 256}, {0, 10, 3, 0},
                 {0, 10, 3, -5},   {0, 10, 3, 57}};
    DataLoader loader;
    Error error;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool refused = !dataloader_init(&loader, &files, cases[i].first, cases[i].end, cases[i].T, cases[i].vocab,
                                              0, false, &error);
        check(refused, "refused: %s", error.text);
    }
    check(dataloader_init(&loader, &files, 0, 10, 9, 58, 0, false, &error) && loader.count == 1,
          "10 tokens are just enough for T = 9, and a vocabulary of 58 for '9'");
    tokens_close(&files);
}

// Each place where a token can be too large: named with file, place in that file, token and vocabulary.
static void test_vocabulary(TokenFormat format, uint32_t large) {
    enum { HALF = 5000, T = 100 };
    static uint32_t tokens[HALF];
    for (int i = 0; i < HALF; i++) tokens[i] = some_token((uint64_t)i, 200);
    const int64_t places[] = {4950, 5000, 5049, 9801, 9900, 2 * HALF - 1}; // beyond the 4096 that init looks at
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        const char* names[2] = {"vocab_0.bin", "vocab_1.bin"};
        for (int f = 0; f < 2; f++) {
            int64_t inside = places[p] - f * HALF;
            bool here = inside >= 0 && inside < HALF;
            uint32_t kept = here ? tokens[inside] : 0;
            if (here) tokens[inside] = large;
            write_tokens(names[f], format, tokens, HALF);
            if (here) tokens[inside] = kept;
        }
        TokenFiles files = open_or_die("vocab_*.bin");
        DataLoader loader;
        Error error = {""}, unused;
        bool ok = dataloader_init(&loader, &files, 0, 2 * HALF, T, 200, 0, false, &error);
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
    const int64_t raw = 3000000001; // tokens: 6 GB
    const int64_t kraw = (raw - 1) / T - 1;
    write_sparse("huge.raw", 2 * raw, "", 0, 2 * kraw * T, mark16, sizeof mark16);

    typedef struct {
        const char* globs;
        int64_t tokens, k;
        int marks; // of the T + 1 tokens, the marked ones; the others are 0
    } Case;
    const int64_t both = (most + (most - 1)) / T - 1; // two files: the first sequence of the second lies across
    const Case cases[] = {{"huge_0.bin", most, k16, T + 1},
                          {"huge_llama.bin", most, k32, T + 1},
                          {"huge.raw", raw, kraw, T + 1},
                          {"huge_[01].bin", 2 * most, k16, T + 1},
                          {"huge_[01].bin", 2 * most, both, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        TokenFiles files = open_or_die(cases[c].globs);
        DataLoader loader;
        Error error = {""};
        int32_t inputs[T] = {0}, targets[T] = {0};
        bool ok = dataloader_init(&loader, &files, 0, files.tokens, T, 128256, 0, false, &error) &&
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
    test_blend();
    test_blend_far();
    test_blend_pinned();
    test_weights();
    test_refused_sources();
    test_document_token();
    test_mix();
    test_held_out();
    test_refused_ranges();
    test_vocabulary(TOKENS_GPT2_SHARD, 200);
    test_vocabulary(TOKENS_LLAMA3_SHARD, UINT32_MAX);
    test_vocabulary(TOKENS_RAW_UINT16, 65535);
    test_vocabulary(TOKENS_RAW_UINT16, 199);
    test_vocabulary(TOKENS_MEGATRON, 200);
    test_huge();
    return folder_end();
}
