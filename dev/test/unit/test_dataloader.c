/*
test_dataloader.c: dataloader/token_files.h and dataloader.h against brute force: permutations and blends counted out, streams against a
plain concatenation, every kind of damaged file against the message it has to give, every flipped bit of an index against a
second reader.
*/
#include "../../../dataloader.h"
#include "../../../dataloader/jsonl.h"
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
    snprintf(path, PATH_BYTES, "%s/%.63s", folder, name);
    return path;
}

static const char* write_bytes(const char* name, const void* data, size_t size) {
    const char* path = in_folder(name);
    FILE* f = fopen(path, "wb");
    if (!f || (size && fwrite(data, 1, size, f) != size) || fclose(f) != 0) die("cannot write %s", path);
    return path;
}

static const char* generate_tokens(const char* name, const char* text) { return write_bytes(name, text, strlen(text)); }

static const int64_t width_of[TOKENS_JSONL] = {1, 2, 4, 2, 4}; // bytes

// A file of this format with these tokens; a shard's header says `count_in_header` tokens and `version`.
static const char* write_tokens_with_header(const char* name, TokenFormat format, const uint32_t* tokens, int64_t n,
                                            int32_t magic, int32_t version, int32_t count_in_header) {
    const char* path = in_folder(name);
    FILE* f = fopen(path, "wb");
    if (!f) die("cannot write %s", path);
    int32_t header[256] = {magic, version, count_in_header};
    if (magic && fwrite(header, sizeof header, 1, f) != 1) die("cannot write %s", path);
    for (int64_t i = 0; i < n; i++) // little-endian: the low bytes come first
        if (fwrite(&tokens[i], (size_t)width_of[format], 1, f) != 1) die("cannot write %s", path);
    if (fclose(f) != 0) die("cannot write %s", path);
    return path;
}

// The index of a Megatron data set, as bytes; the caller frees them.
typedef struct {
    unsigned char* bytes;
    size_t size;
} IndexBytes;

static void put(IndexBytes* to, int64_t value, int width) { // little-endian
    for (int i = 0; i < width; i++) to->bytes[to->size++] = (unsigned char)((uint64_t)value >> 8 * i);
}

// Of S sequences, of which documents end behind `ends` (D of them).
static IndexBytes index_bytes(int code, int width, const int32_t* sizes, int64_t S, const int64_t* ends, int64_t D) {
    IndexBytes index = {(unsigned char*)checked_calloc((size_t)(64 + 13 * S + 8 * D), 1, "an index"), 0};
    int64_t begin = 0;
    memcpy(index.bytes, "MMIDIDX", 7);
    index.size = 9;
    put(&index, 1, 8);
    put(&index, code, 1);
    put(&index, S, 8);
    put(&index, D + 1, 8);
    for (int64_t i = 0; i < S; i++) put(&index, sizes[i], 4);
    for (int64_t i = 0; i < S; begin += sizes[i++] * width) put(&index, begin, 8);
    put(&index, 0, 8);
    for (int64_t d = 0; d < D; d++) put(&index, ends[d], 8);
    return index;
}

// NAME.bin and NAME.idx with these tokens in sequences of up to 7 tokens, some of them empty, three a document.
static void write_megatron(const char* name, int code, int width, const int64_t* tokens, int64_t n) {
    char file[256];
    IndexBytes bin = {(unsigned char*)checked_calloc((size_t)(n * width + 1), 1, "tokens"), 0};
    int32_t* sizes = (int32_t*)checked_calloc((size_t)n + 1, sizeof(int32_t), "sizes");
    int64_t* ends = (int64_t*)checked_calloc((size_t)n + 1, sizeof(int64_t), "ends");
    int64_t S = 0, D = 0, left = n;
    for (int64_t i = 0; i < n; i++) put(&bin, tokens[i], width);
    for (; left > 0; left -= sizes[S++]) { // never two empty ones in a row
        sizes[S] = (int32_t)min_i64(left, S % 5 == 4 ? 0 : 1 + philox(4, 1, (uint64_t)S).word[0] % 7);
        if (S % 3 == 2) ends[D++] = S + 1;
    }
    if (D == 0 || ends[D - 1] < S) ends[D++] = S;
    IndexBytes index = index_bytes(code, width, sizes, S, ends, D);
    snprintf(file, sizeof file, "%s.bin", name);
    write_bytes(file, bin.bytes, bin.size);
    snprintf(file, sizeof file, "%s.idx", name);
    write_bytes(file, index.bytes, index.size);
    free(bin.bytes), free(index.bytes), free(sizes), free(ends);
}

static const char* write_tokens(const char* name, TokenFormat format, const uint32_t* tokens, int64_t n) {
    static const int32_t magic[] = {0, 20240520, 20240801, 0}, version[] = {0, 1, 7, 0}; // formats.md, not the header
    if (format == TOKENS_MEGATRON) {
        char stem[48], file[64];
        snprintf(stem, sizeof stem, "%.*s", (int)(strlen(name) - (strstr(name, ".bin") ? 4 : 0)), name);
        int64_t* wide = (int64_t*)checked_calloc((size_t)n + 1, sizeof(int64_t), "tokens");
        for (int64_t i = 0; i < n; i++) wide[i] = tokens[i];
        write_megatron(stem, 4 + (int)(n % 2), n % 2 ? 8 : 4, wide, n); // int32 and int64 side by side
        free(wide);
        snprintf(file, sizeof file, "%s.%s", stem, n % 3 ? "bin" : "idx"); // either names both
        return in_folder(file);
    }
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
    const bool wide = format == TOKENS_LLAMA3_SHARD || format == TOKENS_MEGATRON;
    const uint32_t vocab = format == TOKENS_TEXT ? 256 : wide ? 128256 : 50257;
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

// ----------------------------------------------------------------------------------------------------------------
// Documents

// A stream as it is written to files, and where its documents begin.
typedef struct {
    uint32_t token[4000];
    bool begins[4000];
    int64_t n;
    int files;
} Packed;

enum { DOCUMENT_TOKEN = 300 };

// Appends a file: of Megatron's sequences and documents of random length, some empty, or of tokens of which some begin a
// document, or of text, which does.
static void write_packed(Packed* p, const char* stem, TokenFormat format, int64_t n) {
    char name[64];
    uint32_t* token = p->token + p->n;
    bool* begins = p->begins + p->n;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t some = some_token((uint64_t)(p->n + i), 250);
        token[i] = format == TOKENS_TEXT ? 32 + some % 90 : some;
        begins[i] = format == TOKENS_TEXT && i == 0;
        if (format == TOKENS_TEXT || format == TOKENS_MEGATRON || some_token((uint64_t)(p->n + i) + 9999, 30)) continue;
        token[i] = DOCUMENT_TOKEN, begins[i] = true;
    }
    snprintf(name, sizeof name, "%s_%d", stem, p->files);
    if (format == TOKENS_MEGATRON) {
        int32_t sizes[1000];
        int64_t ends[1000], S = 0, D = 0, at = 0;
        IndexBytes bin = {(unsigned char*)checked_calloc((size_t)(4 * n), 1, "tokens"), 0};
        for (int64_t i = 0; i < n; i++) put(&bin, token[i], p->files % 2 ? 4 : 2);
        while (at < n || D == 0 || ends[D - 1] < S) {
            const uint32_t dice = some_token((uint64_t)(p->n + at) * 7 + (uint64_t)(S + D), 20);
            if (dice < 3) { // the end of a document, which may be empty
                ends[D++] = S;
            } else {
                sizes[S] = (int32_t)min_i64(n - at, dice < 5 ? 0 : dice);
                at += sizes[S++];
            }
        }
        for (int64_t d = 0, s = 0, from = 0; d < D; d++) {
            int64_t size = 0;
            for (; s < ends[d]; s++) size += sizes[s];
            if (size > 0) begins[from] = true;
            from += size;
        }
        IndexBytes index = index_bytes(p->files % 2 ? 4 : 8, p->files % 2 ? 4 : 2, sizes, S, ends, D);
        char file[80];
        snprintf(file, sizeof file, "%s.bin", name);
        write_bytes(file, bin.bytes, bin.size);
        snprintf(file, sizeof file, "%s.idx", name);
        write_bytes(file, index.bytes, index.size);
        free(bin.bytes), free(index.bytes);
    } else {
        write_tokens(name, format, token, n);
    }
    p->n += n, p->files++;
}

// Sequences of a loader whose positions are not those that the marks say: how far back the last mark is, or the begin.
static int wrong_positions(const DataLoader* loader, const Packed* p, int* inside) {
    int wrong = 0;
    for (int64_t n = 0; n < 2 * loader->count; n++) {
        int32_t inputs[128], targets[128], positions[128];
        Error error;
        for (int t = 0; t < 128; t++) positions[t] = -1;
        if (!dataloader_sequence(inputs, targets, loader, (uint64_t)n, &error)) die("%s", error.text);
        dataloader_positions(positions, inputs, loader, (uint64_t)n);
        bool found = false;
        for (int64_t k = 0; k < loader->count && !found; k++) {
            const int64_t begin = loader->first + k * loader->T;
            if (!is_sequence(inputs, targets, loader->T, p->token + begin)) continue;
            found = true;
            for (int t = 0; t < loader->T; t++) {
                int back = 0;
                while (back < t && !p->begins[begin + t - back]) back++;
                found = found && positions[t] == back;
                *inside += t > 0 && back == 0;
            }
        }
        wrong += !found || (loader->T < 128 && positions[loader->T] != -1);
    }
    return wrong;
}

// Files of every kind, small and large, so that sequences go over the ends of several, documents over those of shards.
static void test_documents(TokenFormat format) {
    const int64_t sizes[] = {150, 1, 600, 2, 333, 64, 64, 1, 400};
    static Packed p;
    char stem[32], globs[PATH_BYTES], text[64];
    memset(&p, 0, sizeof p);
    snprintf(stem, sizeof stem, "documents%d", (int)format);
    for (int f = 0; f < 9; f++) write_packed(&p, stem, format, sizes[f] + (format == TOKENS_RAW_UINT16 ? 3 : 0));
    snprintf(globs, sizeof globs, "%s/%s_*%s", folder, stem, format == TOKENS_MEGATRON ? ".idx" : "");
    TokenFiles files = open_or_die(globs);
    documents_begin_at(&files, DOCUMENT_TOKEN);
    int wrong = 0, inside = 0, loaders = 0, marks = 0;
    for (int64_t i = 0; i < p.n; i++) marks += p.begins[i];
    for (int T = 2; T <= 128; T = T < 8 ? 2 * T : T + 40)
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            DataLoader loader;
            Error error;
            if (!dataloader_init(&loader, &files, 7 * shuffle, p.n - shuffle, T, 50257, 3, shuffle, &error))
                die("%s", error.text);
            wrong += wrong_positions(&loader, &p, &inside);
            loaders++;
        }
    documents_describe(text, sizeof text, &files);
    check(files.tokens == p.n && files.format == format && marks > 8 && inside > 100 && wrong == 0,
          "documents, %s: %d in %lld tokens, %d begin within sequences of %d loaders; %d sequences are wrong; \"%s\"",
          token_formats[format].name, marks, (long long)p.n, inside, loaders, wrong, text);
    tokens_close(&files);
}

// By hand: documents of a Megatron data set, of which the second and the last two are empty, and the third begins with an empty
// sequence. Nothing is written beside the positions that were asked for.
static void test_documents_by_hand(void) {
    const int32_t sizes[] = {2, 3, 0, 4};
    const int64_t ends[] = {2, 2, 4, 4, 4};
    IndexBytes index = index_bytes(8, 2, sizes, 4, ends, 5);
    write_bytes("hand.idx", index.bytes, index.size);
    write_bytes("hand.bin", "1\0002\0003\0004\0005\0006\0007\0008\0009\000", 18);
    TokenFiles files = open_or_die(in_folder("hand"));
    const int32_t want[] = {0, 1, 2, 3, 4, 0, 1, 2, 3};
    int wrong = 0;
    for (int begin = 0; begin < 9; begin++)
        for (int n = 1; begin + n <= 9; n++) {
            int32_t room[40], *positions = room + 16;
            for (int i = 0; i < 40; i++) room[i] = -7;
            tokens_positions(positions, &files, NULL, begin, n);
            for (int i = -16; i < 24; i++) {
                const int64_t inside = i < 0 ? 0 : min_i64(i, want[min_i64(begin + i, 8)]);
                wrong += positions[i] != (i < 0 || i >= n ? -7 : inside);
            }
        }
    check(wrong == 0, "documents of an index by hand, from everywhere to everywhere: %d positions are wrong", wrong);
    tokens_close(&files);
    free(index.bytes);
}

// Only a token that stands in the first four million is taken for one that documents begin with.
static void test_documents_seen(void) {
    enum { MOST = 1 << 22 };
    static uint32_t tokens[MOST + 5];
    for (int i = 0; i < 3; i++) {
        const int64_t at = i == 0 ? MOST - 1 : i == 1 ? MOST : 1000;
        memset(tokens, 0, sizeof tokens);
        tokens[at] = 7;
        TokenFiles files = open_or_die(write_tokens("seen", TOKENS_RAW_UINT16, tokens, i == 2 ? 1001 : MOST + 5));
        documents_begin_at(&files, 7);
        check(documents_are_seen(&files) == (i != 1), "a document that begins at %lld of %lld is %sseen", (long long)at,
              (long long)files.tokens, i == 1 ? "not " : "");
        tokens_close(&files);
    }
}

// Which token it is that documents begin with: what was chosen, the vocabulary's, the format's.
static void test_document_token(void) {
    const uint32_t tokens[] = {1, 2, 3, 300, 0, 7, 9, 50256, 5}, llama[] = {5, 128000};
    write_tokens("which_gpt2", TOKENS_GPT2_SHARD, tokens, 9);
    write_tokens("which_llama", TOKENS_LLAMA3_SHARD, llama, 2);
    write_tokens("which_raw", TOKENS_RAW_UINT16, tokens, 9);
    write_tokens("which_mega", TOKENS_MEGATRON, tokens, 9);
    generate_tokens("which_text", "text");
    const struct {
        const char* name;
        int chosen, vocabulary, want; // -1: refused; -2: does not matter; -3: refused, not there
    } cases[] = {{"which_gpt2", -1, -1, 50256},   {"which_gpt2", -1, 7, 7},        {"which_gpt2", 9, 7, 9},
                 {"which_gpt2", 0, -1, 0},        {"which_llama", -1, -1, 128000}, {"which_raw", -1, 0, 0},
                 {"which_raw", 50256, -1, 50256}, {"which_raw", -1, -1, -1},       {"which_text", -1, -1, -2},
                 {"which_mega", -1, -1, -2},      {"which_gpt2", 8, -1, -3},       {"which_llama", 50256, -1, -3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Sources sources;
        Error error = {""};
        if (!sources_open(&sources, in_folder(cases[i].name), &error)) die("%s", error.text);
        const bool ok = sources_documents(&sources, cases[i].chosen, cases[i].vocabulary, &error);
        const int token = sources.source[0].files.document;
        const bool right = cases[i].want == -1   ? !ok && strstr(error.text, "which_raw holds raw uint16 tokens")
                           : cases[i].want == -3 ? !ok && strstr(error.text, "no document begins with token")
                           : cases[i].want == -2 ? ok && sources_have_documents(&sources)
                                                 : ok && token == cases[i].want && !sources_have_documents(&sources);
        check(right, "documents of %s, %d chosen, %d of the vocabulary: %d. %s", cases[i].name, cases[i].chosen,
              cases[i].vocabulary, token, ok ? "" : error.text);
        sources_close(&sources);
    }
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
    generate_tokens("glob_b.txt", "bb");
    generate_tokens("glob_a.txt", "a");
    generate_tokens("glob_10.txt", "ten");
    generate_tokens("glob_2.txt", "two");
    generate_tokens("glob_[x]*.txt", "literal");
    generate_tokens("glob_empty.txt", "");
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
                                           count == (int64_t)k->size / width_of[format];
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

// What a file of no format looks like: tokens of 16 bits, or not.
static void test_not_tokens(void) {
    enum { N = 5000 };
    static unsigned char bytes[4 * N];
    typedef struct {
        const char* what;
        uint32_t vocab;
        int width;      // bytes
        const char* no; // why not; NULL: they are tokens
    } Case;
    const Case cases[] = {
        {"uint16 below 50257", 50257, 2, NULL},           {"uint16 below 65, characters", 65, 2, NULL},
        {"uint16 below 40, characters", 40, 2, NULL},     {"uint16 below 300", 300, 2, NULL},
        {"int32 below 50257", 50257, 4, "32 or 64 bits"}, {"int32 below 128256", 128256, 4, "32 or 64 bits"},
        {"int32 below 65", 65, 4, "32 or 64 bits"},       {"int64 below 50257", 50257, 8, "32 or 64 bits"},
        {"random bytes", 65536, 2, "without any order"}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const Case* k = &cases[c];
        const size_t n = 4 * N / (size_t)k->width;
        int wrong = 0;
        memset(bytes, 0, sizeof bytes);
        for (size_t i = 0; i < n; i++) {
            const uint32_t token = some_token(i, k->vocab);
            memcpy(bytes + i * (size_t)k->width, &token, k->width < 4 ? 2 : 4);
        }
        for (size_t size = k->vocab < 65536 ? 128 : 4096; size <= sizeof bytes; size += 1000) {
            TokenFormat format = TOKEN_FORMATS;
            int64_t offset, count;
            Error error = {""};
            const bool ok = tokens_recognise(&format, &offset, &count, bytes, size, "file", &error);
            wrong += k->no ? ok || !strstr(error.text, k->no) : !ok || format != TOKENS_RAW_UINT16;
        }
        check(wrong == 0, "%s: %s, in all sizes", k->what, k->no ? k->no : "raw uint16");
    }
    check_refused(write_bytes("a.out",
                              "\x7f"
                              "ELF\2\1\1\0\0\0",
                              10),
                  "a.out", "a program");
    check_refused(write_bytes("a.jsonl", "\x89PNG\0\1", 6), "a.jsonl", "a PNG picture");
}

// Folders, and patterns with "**": which files they name.
static void test_folders(void) {
    static const char* const files[] = {"tree/b.txt",          "tree/a/deep/er/c.txt", "tree/a/d.md",
                                        "tree/a/.hidden.txt",  "tree/.git/e.txt",      "tree/a.txt",
                                        "tree/tokenizer.json", "tree/a/b/f.txt"};
    if (chdir(folder) != 0) die("cannot enter %s", folder);
    if (system(
            "mkdir -p tree/a/deep/er tree/a/b tree/.git shards/more && ln -s .. tree/a/back && ln -s nowhere tree/z") !=
        0)
        die("cannot make folders");
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        FILE* f = fopen(files[i], "w");
        if (!f || fprintf(f, "%s;", files[i]) < 0 || fclose(f) != 0) die("cannot write %s", files[i]);
    }
    write_bytes("tree/a/x.png", "\x89PNG\0\1", 6);
    write_bytes("tree/a/b/empty", "", 0);
    const char* expected[][2] = {
        {"tree", "tree/a.txt;tree/a/b/f.txt;tree/a/d.md;tree/a/deep/er/c.txt;tree/b.txt;"},
        {"tree/", "tree/a.txt;tree/a/b/f.txt;tree/a/d.md;tree/a/deep/er/c.txt;tree/b.txt;"},
        {"tree/**/*.txt", "tree/a.txt;tree/a/b/f.txt;tree/a/deep/er/c.txt;tree/b.txt;"},
        {"**/d.md", "tree/a/d.md;"},
        {"tr*/**/**/[c-f].*", "tree/a/b/f.txt;tree/a/d.md;tree/a/deep/er/c.txt;"},
        {"tree/a/**/?/*.txt,tree/a.txt", "tree/a/b/f.txt;tree/a.txt;"},
        {"tree/a/deep/**", "tree/a/deep/er/c.txt;"},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        TokenFiles opened = open_or_die(expected[i][0]);
        int32_t tokens[512];
        char text[513] = "";
        Error error;
        const bool ok = opened.tokens <= 512 && tokens_read(tokens, &opened, 0, opened.tokens, 256, &error);
        for (int64_t k = 0; ok && k < opened.tokens; k++) text[k] = (char)tokens[k], text[k + 1] = 0;
        check(strcmp(text, expected[i][1]) == 0, "\"%s\": %s", expected[i][0], text);
        tokens_close(&opened);
    }
    check_refused("tree/**/*.jpg", "tree/**/*.jpg", "no file matches");
    check_refused("nowhere/**", "nowhere/**", "no file matches");
    check_refused("tree/**/deep", "tree/**/deep", "no file matches"); // a folder
    check_refused("tree/a/b/**/empty", "empty", "empty");
    check_refused("shards", "shards", "without text");
    uint32_t tokens[300];
    for (uint64_t i = 0; i < 300; i++) tokens[i] = some_token(i, 50257);
    write_tokens("shards/train_000000.bin", TOKENS_GPT2_SHARD, tokens, 300);
    generate_tokens("shards/tokenizer.json", "{}");
    TokenFiles opened = open_or_die("shards");
    check(opened.files == 1 && opened.format == TOKENS_GPT2_SHARD, "a folder of shards, without the vocabulary in it");
    tokens_close(&opened);
    write_tokens("shards/more/val_000000.bin", TOKENS_GPT2_SHARD, tokens, 300);
    check_refused("shards", "to validate on", "--val \"shards/val_*.bin\"");
    if (chdir("/") != 0) die("cannot leave %s", folder);
}

// JSON lines become bytes, a document each, in one file or several; what is wrong is said with its line.
static void test_jsonl(void) {
    Tokenizer bytes;
    Error error = {""};
    tokenizer_bytes(&bytes);
    generate_tokens("l_0.jsonl", "{\"text\":\"one\\n\"}\n\n{\"id\":3,\"text\":\"\"}\n{\"text\":\"tw\\u00e9\"}");
    generate_tokens("l_1.jsonl", "");
    generate_tokens("l_2.jsonl", "  {\"more\":[{\"text\":1}], \"text\":\"three\"}\n");
    TokenFiles files = open_or_die(in_folder("l_*.jsonl"));
    const int64_t before = files.tokens;
    check(files.format == TOKENS_JSONL && before > 0 && jsonl_encode(&files, &bytes, &error), "%s", error.text);
    static const char expected[] = "one\ntw\303\251\nthree\n";
    enum { N = sizeof expected - 1 };
    int32_t tokens[N], positions[N];
    char text[256];
    int wrong = files.tokens != N || files.documents != 3 || !tokens_read(tokens, &files, 0, N, 256, &error);
    for (int i = 0; i < N && wrong == 0; i++) wrong += tokens[i] != (unsigned char)expected[i];
    tokens_positions(positions, &files, tokens, 0, N);
    for (int i = 0; i < N && wrong == 0; i++) wrong += positions[i] != (i < 4 ? i : i < 9 ? i - 4 : i - 9);
    tokens_describe(text, sizeof text, &files);
    check(wrong == 0 && strstr(text, "3 documents, 15 tokens"), "JSON lines: %s", text + strlen(folder));
    tokens_close(&files);
    check(!is_mapped("/l_"), "    closed: none of them is mapped any more");

    static const char* const refused[][2] = {{"{\"text\":\"a\"}\n{\"txt\":\"b\"}\n", ":2:1: \"text\" is missing"},
                                             {"{\"text\":\"a\"}\n\n{\"text\":\"b\n", ":3:"},
                                             {"{\"text\":3}", "\"text\""},
                                             {"[\"text\"]\n", ":1:"},
                                             {"plain text\n", ":1:"},
                                             {"{\"text\":\"\"}\n", "no text in it"}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        files = open_or_die(generate_tokens("bad.jsonl", refused[i][0]));
        check(!jsonl_encode(&files, &bytes, &error) && strstr(error.text, "bad.jsonl") &&
                  strstr(error.text, refused[i][1]),
              "refused: %s", error.text);
        tokens_close(&files);
    }
    files = open_or_die(in_folder("l_0.jsonl"));
    files.tokens = jsonl_most + 1;
    check(!jsonl_encode(&files, &bytes, &error) && strstr(error.text, "build/tokenize"), "refused: %s", error.text);
    tokens_close(&files);
    tokenizer_free(&bytes);
}

// ----------------------------------------------------------------------------------------------------------------
// Megatron's data sets

// Every type, by every name that the two files have: the same tokens; and what is no token is named.
static void test_megatron(void) {
    enum { N = 1000 };
    const int codes[] = {1, 2, 3, 4, 5, 8}, widths[] = {1, 1, 2, 4, 8, 2};
    const int64_t top[] = {255, 127, 32767, 500000, 500000, 65535};
    const int64_t bad[] = {0, -1, -1, -1, (int64_t)1 << 32, 0}; // as 8, 16, 32 bits without sign: a token
    if (chdir(folder) != 0) die("cannot enter %s", folder);
    for (int c = 0; c < 6; c++) {
        int64_t tokens[N];
        for (int i = 0; i < N; i++) tokens[i] = i == 5 ? top[c] : some_token((uint64_t)i, (uint32_t)top[c]);
        write_megatron("mega_type", codes[c], widths[c], tokens, N);
        const char* names[] = {"mega_type.bin", "mega_type.idx", "mega_type", "mega_t*e", "mega_type.*", "mega_*.bin"};
        int wrong = 0;
        for (int name = 0; name < 6; name++) {
            TokenFiles files = open_or_die(names[name]);
            Error error;
            int32_t read[N];
            wrong += files.files != 1 || files.tokens != N || files.format != TOKENS_MEGATRON;
            wrong += !tokens_read(read, &files, 0, N, 600000, &error);
            for (int i = 0; i < N; i++) wrong += read[i] != tokens[i];
            tokens_close(&files);
        }
        check(wrong == 0, "Megatron, type %d: the same tokens by six names", codes[c]);
        if (!bad[c]) continue;
        tokens[700] = bad[c];
        write_megatron("mega_type", codes[c], widths[c], tokens, N);
        TokenFiles files = open_or_die("mega_type");
        char part[80];
        int32_t read[N];
        Error error = {""};
        snprintf(part, sizeof part, "mega_type.bin: token 700 is %lld,", (long long)bad[c]);
        check(!tokens_read(read, &files, 0, N, 600000, &error) && strstr(error.text, part), "refused: %s", error.text);
        tokens_close(&files);
    }
    // A list with both halves of two sets, one of which has another file of the same beginning.
    const int64_t few[] = {1, 2, 300};
    write_megatron("pair_a", 8, 2, few, 3);
    write_megatron("pair_a.more", 8, 2, few, 2);
    TokenFiles files = open_or_die("pair_*");
    char text[256];
    tokens_describe(text, sizeof text, &files);
    check(files.files == 2 && files.tokens == 5 && files.documents == 2 && strstr(text, "2 documents, 5 tokens"), "%s",
          text);
    tokens_close(&files);
    check(!is_mapped("/pair_a"), "    closed: neither tokens nor index are mapped any more");
    if (chdir("/") != 0) die("cannot leave %s", folder);
}

static int64_t number_at(const IndexBytes* index, size_t at, int width) {
    uint64_t value = 0;
    for (int i = width - 1; i >= 0; i--) value = value << 8 | index->bytes[at + (size_t)i];
    return width == 4 ? (int32_t)value : (int64_t)value;
}

// A second reader, which knows that the first wrote 12 uint16: whether an index is one of a .bin of 24 bytes.
static bool index_is_true(const IndexBytes* index, int64_t S, int64_t D) {
    const size_t sizes = 34, begins = sizes + 4 * (size_t)S, ends = begins + 8 * (size_t)S;
    const int widths[] = {0, 1, 1, 2, 4, 8, 0, 0, 2};
    if (index->size != ends + 8 * (size_t)D || memcmp(index->bytes, "MMIDIDX\0\0\1\0\0\0\0\0\0\0", 17) != 0)
        return false;
    if (index->bytes[17] > 8 || !widths[index->bytes[17]]) return false;
    if (number_at(index, 18, 8) != S || number_at(index, 26, 8) != D) return false;
    int64_t sum = 0, before = 0;
    for (int64_t i = 0; i < S; i++) {
        const int64_t size = number_at(index, sizes + 4 * (size_t)i, 4);
        if (size < 0 || number_at(index, begins + 8 * (size_t)i, 8) != sum * widths[index->bytes[17]]) return false;
        sum += size;
    }
    for (int64_t d = 0; d < D; d++) {
        const int64_t end = number_at(index, ends + 8 * (size_t)d, 8);
        if (end < before || (d == 0 && end != 0)) return false;
        before = end;
    }
    return before == S && sum * widths[index->bytes[17]] == 24;
}

// True if index_read() does what the second reader does; *accepted counts.
static bool readers_agree(const IndexBytes* index, int64_t S, int64_t D, int* accepted) {
    MegatronIndex read;
    Error error = {""};
    unsigned char* exact = (unsigned char*)checked_malloc(index->size, "an index"); // the sanitizer sees its end
    memcpy(exact, index->bytes, index->size);
    const bool ok = index_read(&read, exact, index->size, 24, "lie.idx", &error);
    free(exact);
    *accepted += ok;
    return ok == index_is_true(index, S, D) && (ok || (strstr(error.text, "lie.idx: ") && !strchr(error.text, '\n')));
}

static void test_megatron_lies(void) {
    const int32_t sizes[] = {3, 0, 4, 5};
    const int64_t ends[] = {1, 3, 4};
    enum { S = 4, D = 4 };
    IndexBytes index = index_bytes(8, 2, sizes, S, ends, D - 1);
    int wrong = 0, accepted = 0, changes = 0;
    check(readers_agree(&index, S, D, &accepted) && accepted == 1, "an index that tells the truth");
    accepted = 0;
    for (size_t byte = 9; byte < index.size; byte++) // without its magic number it is none
        for (int value = 0; value < 256; value++) {
            const unsigned char kept = index.bytes[byte];
            if (value == kept) continue;
            index.bytes[byte] = (unsigned char)value;
            wrong += !readers_agree(&index, S, D, &accepted);
            index.bytes[byte] = kept;
            changes++;
        }
    // what may change: the type to int16, and where the first two documents end (0..3 and 1..4, less as it was)
    check(wrong == 0 && accepted == 1 + 3 + 3, "of %d changes of a byte %d are accepted, %d by one reader alone",
          changes, accepted, wrong);
    accepted = 0;
    const size_t whole = index.size;
    for (index.size = 9; index.size < whole + 20; index.size++)
        if (index.size != whole) wrong += !readers_agree(&index, S, D, &accepted);
    check(wrong == 0 && accepted == 0, "an index that is cut or too long anywhere is refused");
    index.size = whole;
    const int64_t extremes[] = {-1, 0, 1, INT64_MAX, INT64_MIN, (int64_t)1 << 61, (int64_t)1 << 60, (int64_t)1 << 32};
    for (int a = 0; a < 8; a++)
        for (int b = 0; b < 8; b++) {
            IndexBytes lie = {index.bytes, 18};
            put(&lie, extremes[a], 8);
            put(&lie, extremes[b], 8);
            lie.size = whole;
            wrong += !readers_agree(&lie, S, D, &accepted);
        }
    const int64_t wraps[2][2] = {{S + ((int64_t)1 << 62), D},
                                 {S, D + ((int64_t)1 << 61)}}; // the right size, in 64 bits
    for (int w = 0; w < 2; w++) {
        IndexBytes lie = {index.bytes, 18};
        put(&lie, wraps[w][0], 8);
        put(&lie, wraps[w][1], 8);
        lie.size = whole;
        MegatronIndex read;
        Error error = {""};
        wrong += !readers_agree(&lie, S, D, &accepted);
        wrong += index_read(&read, lie.bytes, lie.size, 24, "lie.idx", &error) || !strstr(error.text, "do not make an");
    }
    check(wrong == 0 && accepted == 0, "and one with absurd numbers of sequences and documents");
    free(index.bytes);

    index = index_bytes(8, 2, sizes, S, ends, -1); // no list of documents, not even a 0
    index.size -= 8;
    wrong += !readers_agree(&index, S, 0, &accepted);
    free(index.bytes);
    const int32_t back[] = {8, -3, 7};
    const int64_t end[] = {3};
    index = index_bytes(8, 2, back, 3, end, 1);
    wrong += !readers_agree(&index, 3, 2, &accepted);
    free(index.bytes);
    check(wrong == 0 && accepted == 0, "one without documents, and one whose sequences go back");
}

static void check_refused(const char* globs, const char* part, const char* other_part);

static void test_megatron_refused(void) {
    const int64_t tokens[] = {5, 6, 7};
    const int32_t sizes[] = {3};
    const int64_t ends[] = {1};
    const char* floats[] = {"floating point (type 6)", "floating point (type 7)"};
    for (int code = 6; code < 8; code++) {
        write_megatron("float", code, code == 6 ? 8 : 4, tokens, 3);
        check_refused(in_folder("float.bin"), "float.idx", floats[code - 6]);
    }
    write_megatron("unknown", 9, 2, tokens, 3);
    check_refused(in_folder("unknown"), "unknown.idx", "of type 9");
    write_megatron("typeless", 0, 2, tokens, 3);
    check_refused(in_folder("typeless"), "typeless.idx", "of type 0");
    write_megatron("none", 8, 2, tokens, 0);
    check_refused(in_folder("none"), "none.idx", "an index of 0 sequences");

    IndexBytes index = index_bytes(8, 2, sizes, 1, ends, 1);
    put(&index, 0, 1);
    write_megatron("modes", 8, 2, tokens, 3);
    write_bytes("modes.idx", index.bytes, index.size);
    check_refused(in_folder("modes"), "modes.idx", "more than text");
    index.size -= 1;
    index.bytes[9] = 2;
    write_megatron("version2", 8, 2, tokens, 3);
    write_bytes("version2.idx", index.bytes, index.size);
    check_refused(in_folder("version2.bin"), "version2.idx", "version 2");
    index.bytes[9] = 1;
    write_bytes("alone.idx", index.bytes, index.size);
    check_refused(in_folder("alone.idx"), "alone.idx: the index", "alone.bin: cannot open: No such file");
    write_bytes("no_idx", index.bytes, index.size);
    check_refused(in_folder("no_idx"), "no_idx: the index", "NAME.idx beside NAME.bin");
    write_megatron("longer", 8, 2, tokens, 3);
    write_bytes("longer.bin", "\5\0\6\0\7\0\0", 7);
    check_refused(in_folder("longer"), "longer.idx: 3 tokens of 2 bytes", "has 7 bytes");
    write_bytes("longer.bin", "\5\0\6\0\7", 5);
    check_refused(in_folder("longer"), "longer.idx: at least 3 tokens of 2 bytes", "has 5 bytes");
    write_bytes("longer.bin", "", 0);
    check_refused(in_folder("longer.bin"), "longer.idx", "has 0 bytes");
    free(index.bytes);
    write_bytes("old.bin", "\5\0\6\0", 4);
    write_bytes("old.idx", "TNTIDX\0\0\1\0\0\0\0\0\0\0", 16);
    check_refused(in_folder("old.bin"), "old.idx", "old Megatron or fairseq");
    check_refused(in_folder("old.idx"), "old.idx", "old Megatron or fairseq");
    generate_tokens("other.idx", "an index of something else");
    TokenFiles files = open_or_die(write_bytes("other.bin", "\5\0\6\0", 4));
    check(files.format == TOKENS_RAW_UINT16 && files.tokens == 2, "a .bin beside the index of something else is raw");
    tokens_close(&files);
}

// ----------------------------------------------------------------------------------------------------------------
// Blends of sources

// A number of sources and weights of all kinds: equal, random, doubling, one large among small, and those with which the
// second source comes close to the bound (each group as light as it can be: Fibonacci's numbers).
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
        weight[i] = weight[k], weight[k] = kept;
    }
    return sources;
}

// Counted out from 0: the source's own numbers go up by one, blend_count() is the count, the shares of no source are off
// by more than the bound of its place in the tree, which is below 1.68; and a whole period has the weights exactly.
static void test_blend(void) {
    static Blend blend;
    int64_t weight[MAX_SOURCES], taken[MAX_SOURCES], periods = 0;
    int wrong = 0, trials = 600;
    double worst = 0, worst_bound = 0, beyond = 0;
    for (int trial = 0; trial < trials; trial++) {
        const int sources = some_weights(weight, (uint64_t)trial);
        double bound[MAX_SOURCES];
        int64_t sum = 0;
        for (int i = 0; i < sources; i++) sum += weight[i], taken[i] = 0;
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

// Where nobody counts: around 2^63 and at the end, steps of one, and the sum of all; two sources against the formula in
// 128 bits.
static void test_blend_far(void) {
    static Blend blend;
    int64_t weight[MAX_SOURCES];
    int wrong = 0;
    for (int trial = 0; trial < 200; trial++) {
        const int sources = some_weights(weight, (uint64_t)trial);
        if (trial == 7) weight[0] = blend_largest - 1, weight[1] = 1;
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

// ----------------------------------------------------------------------------------------------------------------
// Lists of sources

static Sources sources_or_die(const char* list) {
    Sources sources;
    Error error;
    if (!sources_open(&sources, list, &error)) die("%s", error.text);
    return sources;
}

static void test_weights(void) {
    if (chdir(folder) != 0) die("cannot enter %s", folder);
    generate_tokens("w_a.txt", "aaaa");
    generate_tokens("w_b.txt", "bb");
    generate_tokens("0.5:w_c.txt", "ccc");
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
    if (chdir("/") != 0) die("cannot leave %s", folder);
}

static void check_sources_refused(const char* list, const char* part, const char* other_part) {
    Sources sources;
    Error error = {""};
    const bool refused = !sources_open(&sources, list, &error);
    check(refused && strstr(error.text, part) && strstr(error.text, other_part) && !strchr(error.text, '\n') &&
              sources.source == NULL && sources.count == 0,
          "refused: %s", refused ? error.text : list);
    sources_close(&sources);
}

static void test_refused_sources(void) {
    uint32_t tokens[200];
    for (int i = 0; i < 200; i++) tokens[i] = some_token((uint64_t)i, 50257);
    if (chdir(folder) != 0) die("cannot enter %s", folder);
    generate_tokens("s.txt", "text");
    write_tokens("s_gpt2.bin", TOKENS_GPT2_SHARD, tokens, 200);
    write_tokens("s_llama.bin", TOKENS_LLAMA3_SHARD, tokens, 200);
    write_tokens("s_raw.bin", TOKENS_RAW_UINT16, tokens, 200);
    write_tokens("s_mega.bin", TOKENS_MEGATRON, tokens, 200);
    check_sources_refused("1:s.txt,s.txt", "1:s.txt,s.txt", "some have none");
    check_sources_refused("s.txt,1:s.txt", "some names have a weight", "to none");
    check_sources_refused("0:s.txt", "0:s.txt", "without weight");
    check_sources_refused("1:s.txt,0.000:s.txt", "0.000:s.txt", "without weight");
    check_sources_refused("2147483647:s.txt,1:s.txt", "add up to less than 2^31", "round");
    check_sources_refused("99999999999999999999:s.txt,1:s.txt", "add up to less than 2^31", "round");
    check_sources_refused("18446744073709551617:s.txt,1:s.txt", "add up to less than 2^31", "round"); // 1, in 64 bits
    check_sources_refused("0.0000000001:s.txt,1:s.txt", "add up to less than 2^31", "round");
    check_sources_refused("1:,1:s.txt", "empty name", "");
    check_sources_refused("1:s.txt,1:nowhere.txt", "nowhere.txt", "no file is named");
    check_sources_refused("-1:s.txt", "-1:s.txt", "no file is named");
    check_sources_refused("1e3:s.txt", "1e3:s.txt", "no file is named");
    check_sources_refused(".:s.txt", ".:s.txt", "no file is named");
    check_sources_refused("1:s.txt,1:s_gpt2.bin", "s.txt holds text", "s_gpt2.bin holds uint16 tokens");
    check_sources_refused("1:s_gpt2.bin,1:s_llama.bin", "s_gpt2.bin holds uint16", "s_llama.bin holds uint32");
    check_sources_refused("1:s_raw.bin,1:s.txt", "s_raw.bin holds raw uint16", "s.txt holds text");
    check_sources_refused("1:s_gpt2.bin,1:s_raw.bin,1:s_llama.bin", "s_gpt2.bin holds", "do not mean the same");
    check_sources_refused("", "empty name", "");
    check_sources_refused("s_gpt2.bin,s_raw.bin", "s_gpt2.bin holds", "of one kind");
    const char* fine[] = {"1:s_gpt2.bin,1:s_raw.bin", "1:s_mega.idx,1:s_gpt2.bin", "1:s_llama.bin,1:s_mega",
                          "1:s_raw.bin,1:s_mega.bin"};
    const int vocab[] = {50257, 50257, 128256, 0};
    for (int i = 0; i < 4; i++) {
        Sources sources = sources_or_die(fine[i]);
        check(sources.count == 2 && sources_vocab(&sources) == vocab[i], "%s: vocabulary %d", fine[i], vocab[i]);
        sources_close(&sources);
    }
    char many[MAX_SOURCES * 8 + 16] = "1:s.txt";
    for (int i = 0; i < MAX_SOURCES; i++) memcpy(many + 7 + 8 * i, ",1:s.txt", 9);
    check_sources_refused(many, "257 sources", "up to 256");
    many[7 + 8 * (MAX_SOURCES - 1)] = 0;
    Sources sources = sources_or_die(many);
    check(sources.count == MAX_SOURCES, "%d sources", sources.count);
    sources_close(&sources);
    check(!is_mapped("/s_"), "refused sources are not left mapped");
    if (chdir("/") != 0) die("cannot leave %s", folder);
}

// Three sources, told apart by their letters: every sequence is one of the right source, at the place that the count of
// those before gives, each source goes through all of its own before one comes again, and the held-out part is no part of
// what is trained on.
static void test_mix(void) {
    static const int64_t sizes[] = {3000, 1001, 220};
    static char text[3][3000];
    static DataMix mix, held, all;
    if (chdir(folder) != 0) die("cannot enter %s", folder);
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
    check(!mix_init(&held, &sources, PART_HELD_OUT, 64, 11, 256, 0, false, &error) && strstr(error.text, "mix3_2"),
          "refused: %s", error.text);
    sources_close(&sources);
    if (chdir("/") != 0) die("cannot leave %s", folder);
}

// One part of a text whose tokens are all different: marks in `used` (N) which of them its sequences read, epoch by epoch.
// Whether each epoch reads each sequence once, and the first one reads `first_of` blocks in the first sequences.
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

// What is held out: no token of it is trained on, it is spread over the text, and little of the text is in neither part.
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
            DataLoader train, val;
            memset(trained, 0, sizeof trained), memset(held, 0, sizeof held);
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
            for (int quarter = 0; quarter < 4 && blocks == 64; quarter++) {
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
    TokenFiles files = open_or_die(in_folder("held.bin"));
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

// ----------------------------------------------------------------------------------------------------------------
// What is refused

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
    snprintf(globs, sizeof globs, "%s,", generate_tokens("fine.txt", "fine"));
    check_refused(globs, "empty name", "fine.txt,");
    snprintf(globs, sizeof globs, "%s,%s", in_folder("fine.txt"), in_folder("missing.bin"));
    check_refused(globs, "missing.bin", "no file");

    if (mkdir(in_folder("a_folder"), 0777) != 0 || mkfifo(in_folder("a_fifo"), 0666) != 0) die("cannot make a folder");
    check_refused(in_folder("a_folder"), "a_folder", "without text");
    check_refused(in_folder("a_fifo"), "a_fifo", "not a file"); // and does not wait for a writer
    check_refused("/dev/null", "/dev/null", "not a file");

    write_bytes("locked.bin", "\5\0\6\0", 4);
    generate_tokens("locked.idx", "MMIDIDX");
    if (chmod(in_folder("locked.idx"), 0) != 0) die("chmod");
    generate_tokens("unreadable.txt", "text");
    if (mkdir(in_folder("unreadable"), 0) != 0) die("cannot make a folder");
    if (chmod(in_folder("unreadable.txt"), 0) != 0 || chmod(folder, 0755) != 0) die("chmod");
    if (chdir(folder) != 0) die("cannot enter %s", folder); // the way to it may be closed to nobody
    uid_t me = geteuid();
    if (me == 0 && seteuid(65534) != 0) die("cannot act as nobody");
    check_refused(in_folder("unreadable.txt"), "unreadable.txt", "Permission denied");
    check_refused(in_folder("unreadable/*.txt"), "unreadable/*.txt", "Permission denied");
    check_refused("locked.bin", "locked.idx", "Permission denied"); // not taken for raw uint16
    if (chdir("/") != 0) die("cannot leave %s", folder);
    if (seteuid(me) != 0) die("cannot act as myself again");

    check_refused(generate_tokens("empty.txt", ""), "empty.txt", "empty");
    generate_tokens("empty2.txt", "");
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
    check_refused(write_bytes("text.gz", "\x1f\x8b\x08\0\0\0\0\0\0\x03", 10), "text.gz", "gzip");

    // Kinds that do not go together: both files are named.
    write_tokens("mix_1.bin", gpt2, tokens, 200);
    generate_tokens("mix_2.txt", "text");
    check_refused(in_folder("mix_*"), "mix_1.bin holds uint16 tokens", "mix_2.txt holds text");
    generate_tokens("mix_2.txt", "");
    check_refused(in_folder("mix_*"), "mix_1.bin holds uint16 tokens", "mix_2.txt holds nothing");
    write_tokens("mix_2.txt", llama, tokens, 200);
    check_refused(in_folder("mix_*"), "mix_1.bin holds uint16 tokens", "mix_2.txt holds uint32 tokens");
    generate_tokens("mix_0.txt", "");
    check_refused(in_folder("mix_*"), "mix_0.txt holds nothing", "mix_1.bin holds uint16 tokens");

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
    TokenFiles files = open_or_die(generate_tokens("ten.txt", "0123456789"));
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

// --short: without the statistics of the permutation, which are most of the work.
int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    alarm(120); // a hang is a failure
    const char* tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/test_dataloader_XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) die("cannot make a folder in %s", tmp ? tmp : "/tmp");

    test_pinned_order();
    test_permutation_large();
    if (!brief) {
        test_bijection();
        test_permutation_mixes();
        test_positions_uniform();
        test_orders();
    }
    for (int format = 0; format < TOKENS_JSONL; format++) test_streams((TokenFormat)format);
    for (int format = 0; format < TOKENS_JSONL; format++) test_documents((TokenFormat)format);
    test_documents_by_hand();
    test_document_token();
    test_documents_seen();
    test_resume();
    test_globs();
    test_megatron();
    test_megatron_lies();
    test_megatron_refused();
    test_blend();
    test_blend_far();
    test_blend_pinned();
    test_weights();
    test_refused_sources();
    test_mix();
    test_held_out();
    test_recognition();
    test_not_tokens();
    test_folders();
    test_jsonl();
    test_refused_files();
    test_refused_ranges();
    test_vocabulary(TOKENS_GPT2_SHARD, 200, "--vocab 50257");
    test_vocabulary(TOKENS_LLAMA3_SHARD, UINT32_MAX, "--vocab 128256");
    test_vocabulary(TOKENS_RAW_UINT16, 65535, "the --vocab that the file was made for");
    test_vocabulary(TOKENS_RAW_UINT16, 199, "");
    test_vocabulary(TOKENS_MEGATRON, 200, "the --vocab that the file was made for");
    test_huge();

    char command[PATH_BYTES + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) die("cannot remove %s", folder);
    return test_end();
}
