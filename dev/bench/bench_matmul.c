/*
bench_matmul.c: kernels/matmul.h at the shapes of GPT-2 124M: qkv, attention projection, the two of the feed-forward
block, and the unembedding; forward, gradient of the input, gradient of the weight; 256 and 1024 tokens.

    build/bench_matmul [rounds [threads ...]]         defaults: 5 rounds; 1 thread, then all
    build/bf16/bench_matmul                           of bf16 numbers

Beside it run the machine's own peak (kernels/mfu.h), and for float32 OpenBLAS and oneDNN where their shared libraries
are found when the program starts (for bf16: peer_pytorch.py). In every round each takes its turn, in rotating order; a
row shows medians over the rounds. Between turns all sleep, until the threads of the last one have stopped spinning:
each library has its own. One thread is timed by its CPU time, so that other programs disturb little; several by the
clock on the wall. Memory is on huge pages, as in the trainer.
*/
#include "../../kernels/matmul.h"
#include "../../kernels/mfu.h"
#include "../../util/median.h"

#include <dlfcn.h>
#include <limits.h>

enum { FORWARD, INPUT, WEIGHT, KINDS };
enum { OURS, OPENBLAS, ONEDNN, CONTESTANTS };
enum { PEAK = CONTESTANTS, COLUMNS, MAX_ROUNDS = 101 };
static const char* const kind_name[KINDS] = {"forward", "d input", "d weight"};
static const char* const contestant_name[CONTESTANTS] = {"matmul.h", "OpenBLAS", "oneDNN"};

// The parts of the two C interfaces that are called, so that neither header is needed.
enum { CBLAS_ROW_MAJOR = 101, CBLAS_AS_IT_IS = 111, CBLAS_TRANSPOSED = 112 };
typedef void (*CblasSgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                           const float* a, int a_row, const float* b, int b_row, float beta, float* c, int c_row);
typedef int (*DnnlSgemm)(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                         const float* a, int64_t a_row, const float* b, int64_t b_row, float beta, float* c,
                         int64_t c_row);
typedef void (*SetThreads)(int threads);
typedef struct {
    CblasSgemm openblas;
    SetThreads openblas_threads;
    DnnlSgemm onednn;
} Peers;

// Opens a library, and says which it is: where it lies, and what it says of itself.
static void* open_peer(const char* label, const char* const* names, int n) {
    void* library = NULL;
    for (int i = 0; i < n && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    char path[PATH_MAX] = "", real[PATH_MAX] = "";
    if (library && dlinfo(library, RTLD_DI_ORIGIN, path) == 0) realpath(path, real);
    printf("%-9s %s%s", label, library ? "in " : "not found: ", library ? real : names[0]);
    char* (*config)(void) = library ? (char* (*)(void))dlsym(library, "openblas_get_config") : NULL;
    char* (*core)(void) = library ? (char* (*)(void))dlsym(library, "openblas_get_corename") : NULL;
    if (config && core) printf(": %s; kernels of %s", config(), core());
    const int* (*version)(void) = library ? (const int* (*)(void))dlsym(library, "dnnl_version") : NULL;
    if (version) printf(": %d.%d.%d", version()[0], version()[1], version()[2]);
    printf("\n");
    return library;
}

static Peers find_peers(void) {
    static const char *const openblas[] = {"libopenblas.so.0"}, *const onednn[] = {"libdnnl.so.3", "libdnnl.so.2"};
    Peers peers = {NULL, NULL, NULL};
    if (sizeof(floatX) < sizeof(float)) return peers; // they have no such function of bf16
    void* library = open_peer("OpenBLAS", openblas, 1);
    if (library) {
        peers.openblas_threads = (SetThreads)dlsym(library, "openblas_set_num_threads");
        if (peers.openblas_threads) peers.openblas = (CblasSgemm)dlsym(library, "cblas_sgemm");
    }
    library = open_peer("oneDNN", onednn, 2);
    if (library) peers.onednn = (DnnlSgemm)dlsym(library, "dnnl_sgemm");
    return peers;
}

// One linear layer: x (N, C), w (OC, C), out (N, OC), gradients of x and out in the same places, and dw.
typedef struct {
    int N, C, OC;
    floatX *x, *w, *out;
    float* dw;
} Layer;

static double layer_flops(const Layer* l) { return 2.0 * l->N * l->C * l->OC; }

// The layer's product by a peer: c (m, n) = beta c + a (m, k) b (k, n)
static void run_peer(const Peers* peers, int contestant, int kind, const Layer* l) {
    float *x = (float*)(void*)l->x, *w = (float*)(void*)l->w, *out = (float*)(void*)l->out;
    const int m[KINDS] = {l->N, l->N, l->OC}, n[KINDS] = {l->OC, l->C, l->C}, k[KINDS] = {l->C, l->OC, l->N};
    const float *const a[KINDS] = {x, out, out}, *const b[KINDS] = {w, w, x};
    const int a_row[KINDS] = {l->C, l->OC, l->OC}, b_row[KINDS] = {l->C, l->C, l->C};
    float* const c[KINDS] = {out, x, l->dw};
    const float beta = kind == WEIGHT ? 1.0f : 0.0f;
    const bool a_transposed = kind == WEIGHT, b_transposed = kind == FORWARD;
    if (contestant == OPENBLAS) {
        peers->openblas(CBLAS_ROW_MAJOR, a_transposed ? CBLAS_TRANSPOSED : CBLAS_AS_IT_IS,
                        b_transposed ? CBLAS_TRANSPOSED : CBLAS_AS_IT_IS, m[kind], n[kind], k[kind], 1, a[kind],
                        a_row[kind], b[kind], b_row[kind], beta, c[kind], n[kind]);
    } else {
        peers->onednn(a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', m[kind], n[kind], k[kind], 1, a[kind],
                      a_row[kind], b[kind], b_row[kind], beta, c[kind], n[kind]);
    }
}

static void run(const Peers* peers, int contestant, int kind, const Layer* l) {
    if (contestant != OURS)
        run_peer(peers, contestant, kind, l);
    else if (kind == FORWARD)
        linear_forward(l->out, l->x, l->w, NULL, l->N, l->C, l->OC);
    else if (kind == INPUT)
        linear_backward_input(l->x, l->out, l->w, l->N, l->C, l->OC);
    else
        linear_backward_weight(l->dw, l->out, l->x, l->N, l->C, l->OC, true);
}

// Random data: a core may be faster on zeros. Small enough for the gradients to stay finite over all rounds.
static void fill(floatX* x, int64_t n, uint64_t stream) {
    for (int64_t i = 0; i < n; i++) x[i] = to_floatX(random_uniform(1, stream, (uint64_t)i) - 0.5f);
}

// Operations a second of one contestant in its turn: one call to wake its threads, then some 40 ms of calls.
static double take_turn(const Peers* peers, int contestant, int kind, const Layer* l, int threads) {
    enum { SLEEP_US = 40000 };
    if (threads > 1) usleep(SLEEP_US);
    if (contestant == PEAK) return fma_peak_flops(threads, 0.01);
    int calls = 1 + (int)(4e9 * threads / layer_flops(l));
    if (calls > 1) run(peers, contestant, kind, l);
    double start = threads > 1 ? seconds_now() : thread_seconds();
    for (int i = 0; i < calls; i++) run(peers, contestant, kind, l);
    return layer_flops(l) * calls / ((threads > 1 ? seconds_now() : thread_seconds()) - start);
}

static void bench_row(const Peers* peers, int kind, const Layer* l, int rounds, int threads) {
    static double speed[COLUMNS][MAX_ROUNDS];
    if (layer_flops(l) > 1e10 && rounds > 3) rounds = 3;
    fill(l->x, (int64_t)l->N * l->C, 1);
    for (int round = 0; round < rounds; round++) {
        for (int turn = 0; turn < COLUMNS; turn++) {
            int column = (turn + round) % COLUMNS;
            bool here = !(column == OPENBLAS && !peers->openblas) && !(column == ONEDNN && !peers->onednn);
            speed[column][round] = here ? take_turn(peers, column, kind, l, threads) : 0;
        }
    }
    double peak = median_of(speed[PEAK], rounds), ours = median_of(speed[OURS], rounds);
    printf("%5d %6d %5d  %-8s %7.1f  %7.1f %5.1f %%", l->N, l->OC, l->C, kind_name[kind], peak / 1e9, ours / 1e9,
           100 * ours / peak);
    for (int i = OURS + 1; i < CONTESTANTS; i++) {
        double peer = median_of(speed[i], rounds);
        if (peer > 0)
            printf("  %7.1f %5.1f %% %5.2fx", peer / 1e9, 100 * peer / peak, ours / peer);
        else
            printf("  %7s %7s %6s", "-", "-", "-");
    }
    printf("\n");
    fflush(stdout);
}

static void bench_threads(const Peers* peers, Layer l, int rounds, int threads) {
    static const int tokens[] = {256, 1024};
    static const int shapes[][2] = {{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}, {50304, 768}}; // OC, C
    device_set_threads(threads);
    if (peers->openblas) peers->openblas_threads(threads);
    printf("\n%d thread%s; GFLOP/s, %% of the peak, and matmul.h over the other\n", threads, threads > 1 ? "s" : "");
    printf("%5s %6s %5s  %-8s %7s", "N", "OC", "C", "what", "peak");
    for (int i = 0; i < CONTESTANTS; i++) printf(i == OURS ? "  %15s" : "  %22s", contestant_name[i]);
    printf("\n");
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            l.N = tokens[t];
            l.OC = shapes[s][0];
            l.C = shapes[s][1];
            for (int kind = 0; kind < KINDS; kind++) bench_row(peers, kind, &l, rounds, threads);
        }
    }
}

int main(int argc, char** argv) {
    enum { MAX_N = 1024, MAX_C = 3072, MAX_OC = 50304, MAX_W = MAX_OC * 768 };
    const int rounds = argc > 1 ? atoi(argv[1]) : 5, all = openmp_threads();
    if (rounds < 1 || rounds > MAX_ROUNDS) die_usage("rounds: 1 to %d", MAX_ROUNDS);
    Peers peers = find_peers();
    printf("kernel: %s, %d x %d\n", matmul_best_kernel()->name, matmul_best_kernel()->mr, matmul_best_kernel()->nr);
    Layer l = {0, 0, 0, NULL, NULL, NULL, NULL};
    l.x = (floatX*)device_malloc((size_t)MAX_N * MAX_C * sizeof(floatX), "x");
    l.w = (floatX*)device_malloc((size_t)MAX_W * sizeof(floatX), "w");
    l.out = (floatX*)device_malloc((size_t)MAX_N * MAX_OC * sizeof(floatX), "out");
    l.dw = (float*)device_malloc((size_t)MAX_W * sizeof(float), "dw");
    fill(l.w, MAX_W, 2);
    fill(l.out, (int64_t)MAX_N * MAX_OC, 3);
    for (int i = 2; i < argc; i++) {
        int threads = atoi(argv[i]);
        if (threads < 1 || threads > all) die_usage("threads: 1 to %d", all);
        bench_threads(&peers, l, rounds, threads);
    }
    if (argc <= 2) {
        bench_threads(&peers, l, rounds, 1);
        if (all > 1) bench_threads(&peers, l, rounds, all);
    }
    return 0;
}
