/*
test_dataloader.c: dataloader.h against brute force: permutations counted out, streams against a plain concatenation,
every kind of damaged file against the message it has to give.
*/
#include "../../dataloader.h"
#include "test.h"

// ----------------------------------------------------------------------------------------------------------------
// Files to read

enum { PATH_BYTES = 512 };
static char folder[PATH_BYTES - 64];

// The path of a file in the test's folder; of the last eight asked for, all stay valid.
static const char* in_folder(const char* name) {
    static char paths[8][PATH_BYTES];
    static int next = 0;
    char* path = paths[next++ % 8];
    snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    return path;
}

static const char* write_bytes(const char* name, const void* data, size_t size) {
    const char* path = in_folder(name);
    FILE* f = fopen(path, "wb");
    if (!f || (size && fwrite(data, 1, size, f) != size) || fclose(f) != 0) die("cannot write %s", path);
    return path;
}

static const char* write_text(const char* name, const char* text) { return write_bytes(name, text, strlen(text)); }

// A file of this format with these tokens; a shard's header says `count_in_header` tokens and `version`.
static const char* write_tokens_with_header(const char* name, TokenFormat format, const uint32_t* tokens, int64_t n,
                                            int32_t magic, int32_t version, int32_t count_in_header) {
    const char* path = in_folder(name);
    FILE* f = fopen(path, "wb");
    if (!f) die("cannot write %s", path);
    int32_t header[256] = {magic, version, count_in_header};
    if (magic && fwrite(header, sizeof header, 1, f) != 1) die("cannot write %s", path);
    for (int64_t i = 0; i < n; i++) // little-endian: the low bytes come first
        if (fwrite(&tokens[i], (size_t)token_formats[format].width, 1, f) != 1) die("cannot write %s", path);
    if (fclose(f) != 0) die("cannot write %s", path);
    return path;
}

static const char* write_tokens(const char* name, TokenFormat format, const uint32_t* tokens, int64_t n) {
    static const int32_t magic[] = {0, 20240520, 20240801, 0}, version[] = {0, 1, 7, 0}; // formats.md, not the header
    return write_tokens_with_header(name, format, tokens, n, magic[format], version[format], (int32_t)n);
}

// A file of `size` bytes, zeros without a place on the disk, and this stretch of bytes in it.
static const char* write_sparse(const char* name, int64_t size, const void* head, size_t head_size, int64_t at,
                                const void* data, size_t data_size) {
    const char* path = write_bytes(name, head, head_size);
    int fd = open(path, O_WRONLY);
    if (fd < 0 || ftruncate(fd, size) != 0 || pwrite(fd, data, data_size, at) != (ssize_t)data_size || close(fd) != 0)
        die("cannot write %s", path);
    return path;
}

// Tokens that are told apart from their neighbours, and from text: some below 256, some above.
static uint32_t some_token(uint64_t i, uint32_t vocab) { return philox(99, 0, i).word[0] % vocab; }

// ----------------------------------------------------------------------------------------------------------------
// The permutation

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
    for (size_t i = 0; i < sizeof larger / sizeof larger[0]; i++)
        check(is_bijection(larger[i], 42, seen), "permutation: a bijection for %lld", (long long)larger[i]);
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

// First and second order, as sums over a permutation of n whose mean and variance are known for a uniform one.
// Displacement: sum |p(i) - i| has mean (n^2 - 1) / 3 and variance (n + 1)(2 n^2 + 7) / 45 (Spearman's footrule,
// Diaconis and Graham 1977). Neighbours that stay neighbours: about Poisson with mean 2. Places where two epochs
// agree: about Poisson with mean 1. P(Poisson(2) > 15) < 1e-8.
static void test_permutation_mixes(void) {
    const uint64_t counts[] = {64, 1000, 1025, 10007};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        uint64_t n = counts[c];
        double m = (double)n, worst = 0, sum = 0;
        int epochs = 30, neighbours = 0, agree = 0, neighbours_sum = 0, agree_sum = 0;
        for (int e = 0; e < epochs; e++) {
            uint64_t key = epoch_key(5, (uint64_t)e), next_key = epoch_key(5, (uint64_t)e + 1);
            double footrule = 0;
            int touching = 0, same = 0;
            uint64_t before = 0;
            for (uint64_t x = 0; x < n; x++) {
                uint64_t y = permute(x, n, key);
                footrule += fabs((double)y - (double)x);
                touching += x && (y == before + 1 || y + 1 == before);
                same += y == permute(x, n, next_key);
                before = y;
            }
            double z = (footrule - (m * m - 1) / 3) / sqrt((m + 1) * (2 * m * m + 7) / 45);
            sum += z / sqrt((double)epochs);
            worst = fmax(worst, fabs(z));
            neighbours = touching > neighbours ? touching : neighbours;
            agree = same > agree ? same : agree;
            neighbours_sum += touching;
            agree_sum += same;
        }
        printf("count %lld, %d epochs\n", (long long)n, epochs);
        check_error("    displacement, worst epoch, standard deviations", worst, 4.5);
        check_error("    displacement, all epochs, standard deviations", fabs(sum), 4);
        check_error("    neighbours that stay neighbours, worst epoch", neighbours, 15);
        check_error("    same, mean of the epochs, from 2", fabs(neighbours_sum / (double)epochs - 2),
                    4 * sqrt(2.0 / epochs) + 2 / m);
        check_error("    places where two epochs agree, worst epoch", agree, 12);
        check_error("    same, mean of the epochs, from 1", fabs(agree_sum / (double)epochs - 1),
                    4 * sqrt(1.0 / epochs));
    }
}

// (statistic - degrees of freedom) in standard deviations of the chi-square distribution.
static double chi_square_z(double statistic, double freedom) { return (statistic - freedom) / sqrt(2 * freedom); }

// Over many epochs every element lands everywhere equally often, and so does every pair of neighbours. The table of
// n x n counts has fixed row and column sums, so its statistic times (n - 1) / n is chi-square with (n - 1)^2 degrees
// of freedom; the n (n - 1) places of a pair have as many, less one.
static void test_positions_uniform(void) {
    for (int n = 3; n <= 40; n += n < 8 ? 1 : 8) {
        enum { EPOCHS = 10000 };
        static int hits[64][64], pairs[64][64];
        memset(hits, 0, sizeof hits);
        memset(pairs, 0, sizeof pairs);
        for (uint64_t e = 0; e < EPOCHS; e++) {
            int image[64];
            for (int x = 0; x < n; x++) hits[x][image[x] = (int)permute((uint64_t)x, (uint64_t)n, epoch_key(3, e))]++;
            pairs[image[n / 2 - 1]][image[n / 2]]++;
        }
        double expected = (double)EPOCHS / n, expected_pair = expected / (n - 1), single = 0, pair = 0;
        for (int x = 0; x < n; x++)
            for (int y = 0; y < n; y++) {
                single += (hits[x][y] - expected) * (hits[x][y] - expected) / expected;
                if (x != y) pair += (pairs[x][y] - expected_pair) * (pairs[x][y] - expected_pair) / expected_pair;
            }
        char what[80];
        snprintf(what, sizeof what, "places, count %d: chi-square in standard deviations", n);
        check_error(what, fabs(chi_square_z(single * (n - 1) / n, (n - 1.0) * (n - 1.0))), 4);
        snprintf(what, sizeof what, "places of pairs, count %d: the same", n);
        check_error(what, fabs(chi_square_z(pair, n * (n - 1.0) - 1)), 4);
    }
}

// How often each of the n! orders comes, for n small enough to count them. On D = 4 numbers all are equally likely. On
// D = 16 and more every round is an even permutation, the only flaw of the construction, and cycle walking passes on
// what is left of it: leaving out the m = D - n numbers outside, an even permutation becomes one with the sign
// (-1)^(m - c), c the cycles that lie wholly outside, and over random permutations the mean of (-1)^c is
// n (n - 1) / (D (D - 1)) (insert the outside numbers one by one: the i-th opens a cycle with probability 1 / (n + i)).
// For n = 5 odd orders are therefore 1/12 more frequent than the mean, even ones 1/12 less.
static void test_orders(void) {
    for (int n = 3; n <= 5; n++) {
        enum { EACH = 500 };
        int orders = n == 3 ? 6 : n == 4 ? 24 : 120, hits[120] = {0}, odd[120] = {0};
        double bias = n == 5 ? 1.0 / 12 : 0;
        for (uint64_t e = 0; e < (uint64_t)(EACH * orders); e++) {
            uint64_t p[5];
            int rank = 0, inversions = 0;
            for (int x = 0; x < n; x++) p[x] = permute((uint64_t)x, (uint64_t)n, epoch_key(11, e));
            for (int x = 0; x < n; x++) { // Lehmer code: how many later ones are smaller
                int smaller = 0;
                for (int y = x + 1; y < n; y++) smaller += p[y] < p[x];
                rank = rank * (n - x) + smaller;
                inversions += smaller;
            }
            hits[rank]++;
            odd[rank] = inversions % 2;
        }
        double statistic = 0;
        for (int i = 0; i < orders; i++) {
            double expected = EACH * (odd[i] ? 1 + bias : 1 - bias);
            statistic += (hits[i] - expected) * (hits[i] - expected) / expected;
        }
        char what[80];
        snprintf(what, sizeof what, "all %d orders of %d: chi-square in standard deviations", orders, n);
        check_error(what, fabs(chi_square_z(statistic, orders - 1.0)), 4);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Streams and sequences

// True while a file with this in its name is mapped (false where there is no /proc).
static bool is_mapped(const char* name) {
    FILE* maps = fopen("/proc/self/maps", "r");
    char line[1024];
    bool found = false;
    while (maps && fgets(line, sizeof line, maps)) found = found || strstr(line, name);
    if (maps) fclose(maps);
    return found;
}

static TokenFiles open_or_die(const char* globs) {
    TokenFiles files;
    Error error;
    if (!tokens_open(&files, globs, &error)) die("%s", error.text);
    return files;
}

static bool is_sequence(const int32_t* inputs, const int32_t* targets, int T, const uint32_t* stream) {
    for (int t = 0; t < T; t++)
        if ((uint32_t)inputs[t] != stream[t] || (uint32_t)targets[t] != stream[t + 1]) return false;
    return true;
}

// How many of the sequences of this loader differ from the stream's tokens, laid out plainly; each must come once an
// epoch.
static int wrong_sequences(const DataLoader* loader, const uint32_t* stream, uint64_t epoch) {
    int32_t inputs[128], targets[128];
    int wrong = 0;
    Error error;
    unsigned char* seen = (unsigned char*)checked_calloc((size_t)loader->count, 1, "flags");
    for (int64_t i = 0; i < loader->count; i++) {
        uint64_t n = epoch * (uint64_t)loader->count + (uint64_t)i;
        if (!dataloader_sequence(inputs, targets, loader, n, &error)) {
            wrong++;
            continue;
        }
        // Shuffled, which one it is is not asked of the loader: one that fits and was not there yet.
        int64_t k = loader->shuffle ? 0 : i, last = loader->shuffle ? loader->count - 1 : i;
        while (k <= last &&
               (seen[k] || !is_sequence(inputs, targets, loader->T, stream + loader->first + k * loader->T)))
            k++;
        if (k > last)
            wrong++;
        else
            seen[k] = 1;
    }
    free(seen);
    return wrong;
}

// Files of odd sizes, some smaller than a sequence, some of one token: in every format and T like one plain array.
static void test_streams(TokenFormat format) {
    const int64_t sizes[] = {1, 57, 1, 2, 301, 64, 128, 3, 1, 1, 1000, 7};
    enum { FILES = sizeof sizes / sizeof sizes[0], TOKENS = 1566 };
    const uint32_t vocab = format == TOKENS_TEXT ? 256 : format == TOKENS_LLAMA3_SHARD ? 128256 : 50257;
    uint32_t stream[TOKENS];
    char paths[FILES][PATH_BYTES];
    const char* list[FILES];
    int64_t n = 0;
    for (int f = 0; f < FILES; f++) {
        char name[64];
        snprintf(name, sizeof name, "stream%d_%02d", (int)format, f);
        for (int64_t i = 0; i < sizes[f]; i++, n++) {
            stream[n] = some_token((uint64_t)n, vocab);
            if (format == TOKENS_TEXT) stream[n] = 32 + stream[n] % 90;
            if (format == TOKENS_RAW_UINT16 && i == 0)
                stream[n] %= 256; // so that one token alone is not taken for text
        }
        snprintf(paths[f], PATH_BYTES, "%s", write_tokens(name, format, stream + n - sizes[f], sizes[f]));
        list[f] = paths[f];
    }
    char globs[PATH_BYTES], text[1024];
    snprintf(globs, sizeof globs, "%s/stream%d_*", folder, (int)format);
    TokenFiles files = open_or_die(globs);
    tokens_describe(text, sizeof text, &files);
    check(n == TOKENS && files.tokens == TOKENS && files.files == FILES && files.format == format &&
              strstr(text, token_formats[format].name) && strstr(text, "1566"),
          "%s", text + strlen(folder));

    int wrong = 0, loaders = 0;
    Error error = {""};
    for (int T = 1; T <= 128; T += T < 9 ? 1 : 17)
        for (int part = 0; part < 4; part++)
            for (int shuffle = 0; shuffle < 2; shuffle++) {
                const int64_t first[] = {0, 0, 1000, 58}, end[] = {TOKENS, 1000, TOKENS, 1559};
                DataLoader loader;
                if (!dataloader_init(&loader, &files, first[part], end[part], T, (int)vocab, 7, shuffle, &error))
                    die("%s", error.text);
                wrong += loader.count != (end[part] - first[part] - 1) / T;
                wrong += wrong_sequences(&loader, stream, 0) + wrong_sequences(&loader, stream, 3);
                loaders++;
            }
    check(wrong == 0, "    %d loaders over ranges of it: %d sequences differ from a plain array", loaders, wrong);
    tokens_close(&files);

    bool opened = tokens_open_list(&files, list, FILES, &error);
    int32_t all[TOKENS] = {0};
    bool read = opened && tokens_read(all, &files, 0, TOKENS, (int)vocab, &error);
    int differ = 0;
    for (int i = 0; i < TOKENS; i++) differ += (uint32_t)all[i] != stream[i];
    check(read && differ == 0, "    the same from a list of paths, in one read");
    tokens_close(&files);
    tokens_close(&files); // twice does no harm
    check(!is_mapped("/stream"), "    closed: none of them is mapped any more");
}

// The position is one number: a loader made anew gives at n what the first gave when it came by, in any order.
static void test_resume(void) {
    char text[5000];
    for (int i = 0; i < 5000; i++) text[i] = (char)(32 + some_token((uint64_t)i, 90));
    TokenFiles files = open_or_die(write_bytes("resume.txt", text, sizeof text));
    enum { T = 31, N = 700 }; // 161 sequences an epoch: more than four epochs
    static int32_t inputs[N][T], targets[N][T];
    DataLoader loader;
    Error error;
    bool ok = dataloader_init(&loader, &files, 0, files.tokens, T, 256, 1, true, &error);
    for (uint64_t n = 0; n < N; n++) ok = ok && dataloader_sequence(inputs[n], targets[n], &loader, n, &error);
    tokens_close(&files);

    files = open_or_die(in_folder("resume.txt"));
    ok = ok && dataloader_init(&loader, &files, 0, files.tokens, T, 256, 1, true, &error);
    int differ = 0, same_as_other_seed = 0, same_as_last_epoch = 0;
    for (uint64_t n = N; n-- > 0;) { // backwards
        int32_t a[T], b[T];
        ok = ok && dataloader_sequence(a, b, &loader, n, &error);
        differ += memcmp(a, inputs[n], sizeof a) != 0 || memcmp(b, targets[n], sizeof b) != 0;
        if (n >= 161) same_as_last_epoch += memcmp(a, inputs[n - 161], sizeof a) == 0;
    }
    loader.seed = 2;
    for (uint64_t n = 0; n < N; n++) {
        int32_t a[T], b[T];
        ok = ok && dataloader_sequence(a, b, &loader, n, &error);
        same_as_other_seed += memcmp(a, inputs[n], sizeof a) == 0;
    }
    check(ok && differ == 0, "resume: %d of %d sequences differ from the run that began at 0", differ, (int)N);
    // both: a chance of 1 in 161 for each of N or fewer, about Poisson with mean 4.3
    check_error("    sequences that another seed has at the same place", same_as_other_seed, 16);
    check_error("    sequences that the next epoch has at the same place", same_as_last_epoch, 16);
    int32_t a[T], b[T];
    check(dataloader_sequence(a, b, &loader, UINT64_MAX, &error), "    position 2^64 - 1");
    tokens_close(&files);
}

static void test_globs(void) {
    write_text("glob_b.txt", "bb");
    write_text("glob_a.txt", "a");
    write_text("glob_10.txt", "ten");
    write_text("glob_2.txt", "two");
    write_text("glob_[x]*.txt", "literal");
    write_text("glob_empty.txt", "");
    const char* expected[] = {"abb", "bba", "aa", "tentwoliteralabb", "literal", "aabb"};
    const char* globs[] = {"glob_[ab].txt", "glob_b.txt,glob_a.txt", "glob_a.txt,glob_a.txt",
                           "glob_*.txt",    "glob_[x]*.txt",         "glob_a.txt,glob_empty.txt,glob_[ab].txt"};
    if (chdir(folder) != 0) die("cannot enter %s", folder);
    for (int g = 0; g < 6; g++) {
        TokenFiles files = open_or_die(globs[g]);
        int32_t tokens[64] = {0};
        char text[64] = "";
        Error error;
        bool ok = files.tokens < 64 && tokens_read(tokens, &files, 0, files.tokens, 256, &error);
        for (int64_t i = 0; ok && i < files.tokens; i++) text[i] = (char)tokens[i];
        check(ok && strcmp(text, expected[g]) == 0, "\"%s\" reads %s", globs[g], text);
        tokens_close(&files);
    }
    if (chdir("/") != 0) die("cannot leave %s", folder);
}

// What is text and what is not, byte by byte.
static void test_recognition(void) {
    static unsigned char bytes[400001];
    typedef struct {
        const char* what;
        int base, every, odd_one; // bytes `base`, and at every `every`-th place `odd_one`
        size_t size;
        int expected; // a TokenFormat, or -1: refused
    } Case;
    const Case cases[] = {
        {"ASCII", 'x', 0, 0, 1000, TOKENS_TEXT},
        {"one byte", 'x', 0, 0, 1, TOKENS_TEXT},
        {"UTF-8 or any other 8-bit text", 0xC3, 2, 0xA4, 1001, TOKENS_TEXT},
        {"with tabs, newlines, form feeds", 'x', 3, '\f', 3000, TOKENS_TEXT},
        {"one control byte in 256", 'x', 256, 1, 2560, TOKENS_TEXT},
        {"one control byte in 255", 'x', 255, 1, 2550, TOKENS_RAW_UINT16},
        {"one NUL, even size", 'x', 2000, 0, 2000, TOKENS_RAW_UINT16},
        {"one NUL, odd size", 'x', 2001, 0, 2001, -1},
        {"NULs every 64 KB", 'x', 65536, 0, 400000, TOKENS_RAW_UINT16},
        {"NULs every 64 KB, odd size", 'x', 65536, 0, 400001, -1},
        {"zeros", 0, 0, 0, 2, TOKENS_RAW_UINT16},
        {"a zero", 0, 0, 0, 1, -1},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const Case* k = &cases[c];
        memset(bytes, k->base, k->size);
        for (size_t i = 0; k->every && i < k->size; i += (size_t)k->every) bytes[i] = (unsigned char)k->odd_one;
        TokenFormat format = TOKEN_FORMATS;
        int64_t offset = -1, count = -1;
        Error error = {""};
        bool ok = tokens_recognise(&format, &offset, &count, bytes, k->size, "file", &error);
        bool right = k->expected < 0 ? !ok && strstr(error.text, "file: ") && strstr(error.text, "odd size")
                                     : ok && (int)format == k->expected && offset == 0 &&
                                           count == (int64_t)(k->size / (size_t)token_formats[format].width);
        check(right, "recognised: %s, %lld bytes: %s", k->what, (long long)k->size,
              ok ? token_formats[format].name : error.text);
    }
    // One NUL in a large file: seen at the very end and in the middle 64 KB, not between them.
    const int nul[] = {0, 65535, 65536, 167232 - 1, 167232, 167232 + 65535, 167232 + 65536, 334463, 334464, 399999};
    for (size_t i = 0; i < sizeof nul / sizeof nul[0]; i++) {
        memset(bytes, 'x', 400000);
        bytes[nul[i]] = 0;
        TokenFormat format = TOKEN_FORMATS;
        int64_t offset, count;
        Error error;
        bool seen = i % 4 < 2; // pairs of places, inside and outside in turn
        bool ok = tokens_recognise(&format, &offset, &count, bytes, 400000, "file", &error);
        check(ok && format == (seen ? TOKENS_RAW_UINT16 : TOKENS_TEXT),
              "recognised: 400,000 letters with a NUL at %d: %s", nul[i], token_formats[format].name);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// What is refused

// The files are refused, and the message has these two parts.
static void check_refused(const char* globs, const char* part, const char* other_part) {
    TokenFiles files;
    Error error = {""};
    bool refused = !tokens_open(&files, globs, &error);
    check(refused && strstr(error.text, part) && strstr(error.text, other_part) && !strchr(error.text, '\n') &&
              files.file == NULL && files.files == 0,
          "refused: %s", refused ? error.text : globs);
    tokens_close(&files);
}

static void test_refused_files(void) {
    uint32_t tokens[200];
    for (int i = 0; i < 200; i++) tokens[i] = some_token((uint64_t)i, 50257);
    const TokenFormat gpt2 = TOKENS_GPT2_SHARD, llama = TOKENS_LLAMA3_SHARD;
    check_refused(in_folder("missing.bin"), "missing.bin", "no file");
    check_refused(in_folder("missing*.bin"), "missing*.bin", "no file");
    check_refused(in_folder("no_folder/*.bin"), "no_folder/*.bin", "no file");
    check_refused("", "empty name", "\"\"");
    check_refused(",", "empty name", "\",\"");
    char globs[2 * PATH_BYTES + 8];
    snprintf(globs, sizeof globs, "%s,", write_text("fine.txt", "fine"));
    check_refused(globs, "empty name", "fine.txt,");
    snprintf(globs, sizeof globs, "%s,%s", in_folder("fine.txt"), in_folder("missing.bin"));
    check_refused(globs, "missing.bin", "no file");

    if (mkdir(in_folder("a_folder"), 0777) != 0 || mkfifo(in_folder("a_fifo"), 0666) != 0) die("cannot make a folder");
    check_refused(in_folder("a_folder"), "a_folder", "a directory");
    check_refused(in_folder("a_fifo"), "a_fifo", "not a file"); // and does not wait for a writer
    check_refused("/dev/null", "/dev/null", "not a file");

    write_text("unreadable.txt", "text");
    if (mkdir(in_folder("unreadable"), 0) != 0) die("cannot make a folder");
    if (chmod(in_folder("unreadable.txt"), 0) != 0 || chmod(folder, 0755) != 0) die("chmod");
    uid_t me = geteuid();
    if (me == 0 && seteuid(65534) != 0) die("cannot act as nobody");
    check_refused(in_folder("unreadable.txt"), "unreadable.txt", "Permission denied");
    check_refused(in_folder("unreadable/*.txt"), "unreadable/*.txt", "Permission denied");
    if (seteuid(me) != 0) die("cannot act as myself again");

    check_refused(write_text("empty.txt", ""), "empty.txt", "empty");
    write_text("empty2.txt", "");
    check_refused(in_folder("empty*.txt"), "empty.txt", "and so are all others");
    check_refused(write_bytes("odd.bin", "a\0b", 3), "odd.bin", "odd size of 3 bytes");

    char shard[3000] = {0};
    const int32_t header[3] = {20240520, 1, 988};
    memcpy(shard, header, sizeof header);
    check_refused(write_bytes("cut_header.bin", shard, 1023), "cut_header.bin", "1023 bytes of 1024");
    check_refused(write_bytes("only_magic.bin", shard, 4), "only_magic.bin", "4 bytes of 1024");
    check_refused(write_bytes("cut.bin", shard, 2999), "988 tokens, which makes 3000 bytes", "has 2999");
    check_refused(write_bytes("no_tokens.bin", shard, 1024), "988 tokens, which makes 3000 bytes", "has 1024");
    check_refused(write_tokens_with_header("long.bin", gpt2, tokens, 200, 20240520, 1, 199),
                  "199 tokens, which makes 1422 bytes", "has 1424");
    check_refused(write_tokens_with_header("short.bin", llama, tokens, 200, 20240801, 7, 201),
                  "201 tokens, which makes 1828 bytes", "has 1824");
    check_refused(write_tokens_with_header("negative.bin", gpt2, tokens, 200, 20240520, 1, -200), "negative.bin",
                  "-200 tokens");
    check_refused(write_tokens_with_header("lowest.bin", llama, tokens, 0, 20240801, 7, INT32_MIN), "lowest.bin",
                  "-2147483648 tokens");
    check_refused(write_tokens_with_header("zero.bin", gpt2, tokens, 0, 20240520, 1, 0), "zero.bin", "0 tokens");
    check_refused(write_tokens_with_header("version.bin", gpt2, tokens, 200, 20240520, 7, 200), "version 7",
                  "reads version 1");
    check_refused(write_tokens_with_header("version.bin", llama, tokens, 200, 20240801, 1, 200), "version 1",
                  "reads version 7");
    check_refused(write_tokens_with_header("weights.bin", gpt2, tokens, 200, 20240326, 3, 1024), "weights.bin",
                  "weights of llm.c");
    check_refused(write_tokens_with_header("tokenizer.bin", gpt2, tokens, 200, 20240328, 2, 50257), "tokenizer.bin",
                  "a tokenizer");
    check_refused(write_tokens_with_header("eval.bin", gpt2, tokens, 200, 20240522, 1, 10042), "eval.bin",
                  "multiple-choice");
    check_refused(write_tokens_with_header("state.bin", gpt2, tokens, 200, 20240527, 1, 1), "state.bin",
                  "a trainer state");
    check_refused(write_bytes("megatron.idx", "MMIDIDX\0\0\1\0\0\0\0\0\0\0\10", 18), "megatron.idx", ".bin beside it");
    check_refused(write_bytes("text.gz", "\x1f\x8b\x08\0\0\0\0\0\0\x03", 10), "text.gz", "gzip");

    // Kinds that do not go together: both files are named.
    write_tokens("mix_1.bin", gpt2, tokens, 200);
    write_text("mix_2.txt", "text");
    check_refused(in_folder("mix_*"), "mix_1.bin holds GPT-2 tokens", "mix_2.txt holds text");
    write_text("mix_2.txt", "");
    check_refused(in_folder("mix_*"), "mix_1.bin holds GPT-2 tokens", "mix_2.txt holds nothing");
    write_tokens("mix_2.txt", llama, tokens, 200);
    check_refused(in_folder("mix_*"), "mix_1.bin holds GPT-2 tokens", "mix_2.txt holds Llama-3 tokens");
    write_text("mix_0.txt", "");
    check_refused(in_folder("mix_*"), "mix_0.txt holds nothing", "mix_1.bin holds GPT-2 tokens");

    check(!is_mapped("/mix_"), "refused files are not left mapped");
    TokenFiles files;
    Error error;
    check(!tokens_open_list(&files, NULL, 0, &error) && strstr(error.text, "no file"), "refused: %s", error.text);
}

static void check_range_refused(const TokenFiles* files, int64_t first, int64_t end, int T, int vocab, const char* part,
                                const char* other_part) {
    DataLoader loader;
    Error error = {""};
    bool refused = !dataloader_init(&loader, files, first, end, T, vocab, 0, false, &error);
    check(refused && strstr(error.text, part) && strstr(error.text, other_part), "refused: %s", error.text);
}

static void test_refused_ranges(void) {
    TokenFiles files = open_or_die(write_text("ten.txt", "0123456789"));
    check_range_refused(&files, 0, 10, 10, 256, "ten.txt: 10 tokens", "takes 11");
    check_range_refused(&files, 4, 4, 1, 256, "ten.txt: 0 tokens", "takes 2");
    check_range_refused(&files, 0, 10, INT32_MAX, 256, "10 tokens", "takes 2147483648");
    check_range_refused(&files, -1, 10, 3, 256, "tokens -1 to 10", "of 10");
    check_range_refused(&files, 0, 11, 3, 256, "tokens 0 to 11", "of 10");
    check_range_refused(&files, INT64_MIN, INT64_MAX, 3, 256, "ten.txt", "of 10");
    check_range_refused(&files, 9, 8, 3, 256, "tokens 9 to 8", "of 10");
    check_range_refused(&files, 0, 10, 0, 256, "ten.txt", "of 0 tokens");
    check_range_refused(&files, 0, 10, 3, 0, "ten.txt", "vocabulary of 0");
    check_range_refused(&files, 0, 10, 3, -5, "ten.txt", "vocabulary of -5");
    check_range_refused(&files, 0, 10, 3, 57, "token 9 is 57", "--vocab 256");
    DataLoader loader;
    Error error;
    check(dataloader_init(&loader, &files, 0, 10, 9, 58, 0, false, &error) && loader.count == 1,
          "10 tokens are just enough for T = 9, and a vocabulary of 58 for '9'");
    tokens_close(&files);
}

// Each place where a token can be too large: named with file, place in that file, token and vocabulary.
static void test_vocabulary(TokenFormat format, uint32_t large, const char* remedy) {
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
        TokenFiles files = open_or_die(in_folder("vocab_*.bin"));
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
        snprintf(part, sizeof part,
                 "vocab_%d.bin: token %lld is %u, the model has a vocabulary of 200: ", (int)(places[p] / HALF),
                 (long long)(places[p] % HALF), large);
        bool named = expected == 0 ? !*error.text : strstr(error.text, part) && strstr(error.text, remedy);
        check(ok && named, "token %u at %lld: %d sequences fail. %s", large, (long long)places[p], failed, error.text);
        tokens_close(&files);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Offsets beyond 32 bits: files with holes, so they need no space on the disk

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
        TokenFiles files = open_or_die(in_folder(cases[c].globs));
        DataLoader loader;
        Error error = {""};
        int32_t inputs[T], targets[T];
        bool ok = dataloader_init(&loader, &files, 0, files.tokens, T, 128256, 0, false, &error) &&
                  dataloader_sequence(inputs, targets, &loader, (uint64_t)cases[c].k, &error);
        int differ = 0;
        for (int i = 0; ok && i < T; i++)
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
    TokenFiles files = open_or_die(in_folder("huge_[01].bin"));
    int32_t token = -1;
    Error error = {""};
    check(tokens_read(&token, &files, most, 1, 128256, &error) && token == mark16[0], "token 2^31 - 1 of the stream");
    tokens_close(&files);
}

int main(void) {
    alarm(120); // a hang is a failure
    const char* tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/test_dataloader_XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) die("cannot make a folder in %s", tmp ? tmp : "/tmp");

    test_bijection();
    test_pinned_order();
    test_permutation_large();
    test_permutation_mixes();
    test_positions_uniform();
    test_orders();
    for (int format = 0; format < TOKEN_FORMATS; format++) test_streams((TokenFormat)format);
    test_resume();
    test_globs();
    test_recognition();
    test_refused_files();
    test_refused_ranges();
    test_vocabulary(TOKENS_GPT2_SHARD, 200, "--vocab 50257");
    test_vocabulary(TOKENS_LLAMA3_SHARD, UINT32_MAX, "--vocab 128256");
    test_vocabulary(TOKENS_RAW_UINT16, 65535, "the --vocab that the file was made for");
    test_vocabulary(TOKENS_RAW_UINT16, 199, "");
    test_huge();

    char command[PATH_BYTES + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) die("cannot remove %s", folder);
    return test_end();
}
