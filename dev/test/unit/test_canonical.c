/*
test_canonical.c: the sums of --canonical against their definitions: the counter of leaves against the tree by
recursion, bit for bit; the places of ranks by the leaves that they hold; the pieces whose squares are added, which have
to be the same for every number of replicas.
*/
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../../../parallel/optimizer.h"
#include "test.h"

enum { WIDTH = 5, MOST = 64 };

static float tree_of(const float* leaf, int n, int column) { // n leaves from leaf[0] on
    const float* half = leaf + n / 2 * WIDTH;
    return n == 1 ? leaf[column] : tree_of(leaf, n / 2, column) + tree_of(half, n / 2, column);
}

static void test_counter(int leaves) {
    float data[MOST * WIDTH], sum[WIDTH], memory[LEAF_LEVELS][2 * WIDTH] = {{0}};
    int added[2] = {0}, done = 0, wrong = 0;
    LeafTree tree = {{NULL}, leaves, added};
    for (int i = 0; i < LEAF_LEVELS; i++) tree.level[i] = memory[i];
    for (int step = 0; step < 2; step++) { // what the first step leaves does no harm
        random_normals(data, leaves * WIDTH, (uint64_t)leaves, 1, (uint64_t)step * MOST * WIDTH);
        for (int i = 0; i < leaves; i++) {
            memcpy(sum, data + i * WIDTH, sizeof sum);
            done += leaf_tree_add(&tree, 1, sum, WIDTH, WIDTH);
            for (int c = 0; i < leaves - 1 && c < WIDTH; c++) wrong += sum[c] != 0;
        }
        for (int c = 0; c < WIDTH; c++) wrong += sum[c] != tree_of(data, leaves, c);
    }
    check(done == 2 && wrong == 0 && added[0] == 0, "%d leaves: the tree's bits, and zeros between them", leaves);
}

static ParallelConfig replica(int rank, int d, int zero, int N) {
    ParallelConfig parallel = parallel_of_rank(rank, 1, 1, d);
    parallel.zero = zero;
    parallel.canonical = N;
    return parallel;
}

// Halving between the ranks joins neighbouring leaves: with ZeRO the farthest ranks first, else the nearest. ZeRO 2:
// the lowest level of the tree is between ranks.
static void test_places(int d, int zero, int N) {
    int holder[MOST], m = 2 * N / d;
    bool ok = true;
    if (zero == 2) m = N / d;
    for (int r = 0; r < d; r++) {
        const ParallelConfig parallel = replica(r, d, zero, N);
        for (int k = 0; k < m; k++) {
            const int leaf = leaf_of_microbatch(&parallel, k, m);
            ok = ok && ends_leaf(&parallel, k, m) == (k == m - 1 || leaf_of_microbatch(&parallel, k + 1, m) != leaf);
            holder[leaf] = r;
        }
    }
    for (int level = 1, apart = zero ? d / 2 : 1; level < d; level *= 2) { // of ranks
        for (int leaf = 0; leaf < N; leaf++) {
            const int size = zero == 2 ? level : N / d * level; // leaves under one node of a rank's half
            ok = ok && holder[leaf] == (holder[leaf ^ size] ^ apart);
        }
        apart = zero ? apart / 2 : apart * 2;
    }
    check(ok, "%d replicas, ZeRO %d, %d leaves: the exchanges between ranks join neighbours", d, zero, N);
}

typedef struct {
    int64_t index, from, n;
} Piece;
static int compare_pieces(const void* a, const void* b) {
    const Piece *x = (const Piece*)a, *y = (const Piece*)b;
    return x->from < y->from ? -1 : x->from > y->from;
}

// The pieces of all ranks that count them, in the order of memory.
static int pieces_of(Piece* pieces, const ModelConfig* m, int d, int zero, int N) {
    int n = 0;
    for (int r = 0; r < (zero ? d : 1); r++) {
        Stage stage = {};
        Error error;
        if (!layout_build(&stage.layout, m, replica(r, d, zero, N), m->T, &error)) die("%s", error.text);
        for (int chunk = -1; chunk < 1; chunk++) {
            int count;
            TensorRange* ranges = cut_by_rows(chunk_ranges(&stage, chunk, 0, true, &count), &count, &stage.layout);
            for (int i = 0; i < count; i++) {
                const Piece piece = {ranges[i].index, ranges[i].from, ranges[i].n};
                pieces[n++] = piece;
            }
            free(ranges);
        }
        layout_free(&stage.layout);
    }
    qsort(pieces, (size_t)n, sizeof *pieces, compare_pieces);
    return n;
}

static void test_pieces(const ModelConfig* m, int N) {
    static Piece one[100000], other[100000];
    const int n = pieces_of(one, m, 1, 0, N);
    bool ok = true, used[MOST] = {false};
    int64_t total = 0;
    int tensors = model_tensors(NULL, m);
    for (int i = 0; i < n; i++) {
        total += one[i].n;
        used[one[i].index / tensors] = true;
    }
    for (int row = 0; row < N; row++) ok = ok && used[row];
    check(ok && total == model_parameters(m), "%s, %d leaves: %d pieces, every parameter once, in all rows", m->name, N,
          n);
    for (int d = 1; d <= N && d <= 8; d *= 2) {
        for (int zero = 0; zero < 3; zero++) {
            if (zero && d == 1) continue;
            const int count = pieces_of(other, m, d, zero, N);
            check(count == n && memcmp(one, other, (size_t)n * sizeof *one) == 0,
                  "%s, %d leaves: %d replicas, ZeRO %d have the same pieces", m->name, N, d, zero);
        }
    }
}

int main(void) {
    Error error;
    const ParallelConfig most = replica(0, 2, 0, 1024), more = replica(0, 2, 0, 2048); // the tree has ten levels
    check(canonical_check(&most, 512, true, NULL, &error), "--canonical 1024 is the largest");
    check(!canonical_check(&more, 1024, true, NULL, &error), "2048 is refused: %s", error.text);
    for (int leaves = 1; leaves <= MOST; leaves *= 2) test_counter(leaves);
    for (int N = 2; N <= 32; N *= 2) {
        for (int d = 2; d <= N && d <= 16; d *= 2) {
            for (int zero = 0; zero < 3; zero++) test_places(d, zero, N);
        }
    }
    ModelConfig gpt2 = *model_find_preset("gpt2-124M"), tiny = gpt2;
    gpt2.L = 2;
    tiny.L = 3, tiny.C = 48, tiny.NH = tiny.NKV = 3, tiny.F = 100, tiny.V = 261, tiny.T = 17;
    tiny.name = "small";
    for (int N = 4; N <= 32; N *= 2) {
        test_pieces(&gpt2, N);
        test_pieces(&tiny, N);
    }
    return test_end();
}
