/*
test_matmul.c: kernels/matmul.h against its contract, bit for bit: every element is the chain s = fmaf(a[k], b[k], s) in
the order of k; in bf16 (build/bf16/test_matmul) of pairs, or by the steps of 32 of AMX, which run in C where there is
no AMX. Every micro-kernel this machine runs, any sizes and strides, 1 to 5 threads, blocks cut anywhere. Matrices end
at a page that cannot be touched, or a number before it; what no matrix owns is NaN in the inputs and must be unchanged
in the output. Sums in float64 with the textbook's bound guard against an error shared with the chain.
*/
#include "test.h"

#include "../../../kernels/matmul.h"

// ---- Fenced memory, whose end is the end of what may be touched. ------------------------------------------------

enum { FENCED = 64 << 20 };
typedef struct {
    char* end;
} Fence;

static Fence fence_open(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = round_up(FENCED, page);
    char* p = (char*)mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) die("cannot map %zu bytes", bytes + page);
    if (mprotect(p + bytes, page, PROT_NONE) != 0) die("cannot protect a page");
    Fence f = {p + bytes};
    return f;
}

static void* fence_take(Fence f, int64_t bytes) {
    if (bytes > FENCED) die("the test asks for %lld bytes, more than a fence holds", (long long)bytes);
    return f.end - bytes;
}
static floatX* fence_numbers(Fence f, int64_t n) { return (floatX*)fence_take(f, n * (int64_t)sizeof(floatX)); }

static uint64_t draws = 0;
static float draw(void) { return 2 * random_uniform(1, 2, draws++) - 1; }
static int draw_int(int low, int high) { return low + (int)(random_uniform(1, 3, draws++) * (float)(high - low + 1)); }

// ---- A problem: C(M, N) (+)= A(M, K) B(K, N) in fenced memory ---------------------------------------------------

enum { GUARD = 64 };                      // numbers before C that must stay as they are
static const float UNTOUCHED = -12352.0f; // a bf16 number

typedef struct {
    int M, N, K;
    bool accumulate;
    MatmulOperand a, b;
    bool rounded;   // C is floatX, not float
    char* c;        // GUARD numbers, then all from the first to the last element of C
    float* c_start; // what they held before
    const floatX* bias;
    int64_t c_row, c_all, c_bytes; // c_all: of them
} Problem;

static Fence fence_a, fence_b, fence_c, fence_start, fence_bias;

// count x depth random numbers at one of four kinds of strides, NaN in between.
static MatmulOperand draw_operand(Fence fence, int count, int depth, int kind) {
    int64_t gap = draw_int(0, 5);
    MatmulOperand x = {NULL, 0, 0};
    if (kind == 0) { // vectors lie along memory
        x.along = 1;
        x.across = depth + gap;
    }
    if (kind == 1) { // vectors lie side by side
        x.across = 1;
        x.along = count + gap;
    }
    if (kind == 2) {
        x.along = 2 + gap;
        x.across = x.along * (depth + 1) + 1;
    }
    if (kind == 3) {
        x.across = 2 + gap;
        x.along = x.across * (count + 1) + 1;
    }
    int64_t n = count > 0 && depth > 0 ? (count - 1) * x.across + (depth - 1) * x.along + draw_int(1, 2) : 0;
    floatX* p = fence_numbers(fence, n);
    for (int64_t i = 0; i < n; i++) p[i] = to_floatX(NAN);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t k = 0; k < depth; k++) p[i * x.across + k * x.along] = to_floatX(draw());
    }
    x.data = p;
    return x;
}

static Problem draw_problem(int M, int N, int K, bool accumulate) {
    Problem p;
    p.M = M;
    p.N = N;
    p.K = K;
    p.accumulate = accumulate;
    p.rounded = !accumulate && sizeof(floatX) < sizeof(float);
    p.a = draw_operand(fence_a, M, K, draw_int(0, 3));
    p.b = draw_operand(fence_b, N, K, draw_int(0, 3));
    p.c_row = N + draw_int(0, 5);
    p.c_all = GUARD + (int64_t)(M - 1) * p.c_row + N;
    p.c_bytes = p.c_all * (int64_t)(p.rounded ? sizeof(floatX) : sizeof(float));
    p.c = (char*)fence_take(fence_c, p.c_bytes);
    p.c_start = (float*)fence_take(fence_start, p.c_all * (int64_t)sizeof(float));
    for (int64_t i = 0; i < p.c_all; i++) p.c_start[i] = UNTOUCHED;
    for (int64_t i = 0; i < M; i++) {
        for (int64_t j = 0; j < N; j++)
            p.c_start[GUARD + i * p.c_row + j] = p.accumulate ? draw() : NAN; // NaN: must not be read
    }
    floatX* bias = fence_numbers(fence_bias, N);
    for (int j = 0; j < N; j++) bias[j] = to_floatX(draw());
    p.bias = !accumulate && draw_int(0, 1) ? bias : NULL;
    return p;
}

static void run_product(const Problem* p, const MatmulKernel* kernel, MatmulOperand a, MatmulOperand b, int K,
                        bool accumulate) {
    float* sums = p->rounded ? NULL : (float*)(void*)p->c + GUARD;
    floatX* out = p->rounded ? (floatX*)(void*)p->c + GUARD : NULL;
    const MatmulProduct product = {sums, out, accumulate, p->c_row, a, b, accumulate ? NULL : p->bias, p->M, p->N, K};
    matmul_with(kernel, &product);
}

static void run_problem(const Problem* p, const MatmulKernel* kernel, int threads) {
    for (int64_t i = 0; i < p->c_all; i++) {
        if (p->rounded)
            ((floatX*)(void*)p->c)[i] = to_floatX(p->c_start[i]);
        else
            ((float*)(void*)p->c)[i] = p->c_start[i];
    }
#ifdef _OPENMP
    omp_set_num_threads(threads);
#endif
    (void)threads;
    run_product(p, kernel, p->a, p->b, p->K, p->accumulate);
}

// Number `at` of C and its surroundings.
static float number_of(const Problem* p, int64_t at) {
    return p->rounded ? to_float(((const floatX*)(void*)p->c)[at]) : ((const float*)(void*)p->c)[at];
}

static float start_of(const Problem* p, int64_t i, int64_t j) {
    if (p->accumulate) return p->c_start[GUARD + i * p->c_row + j];
    return p->bias ? to_float(p->bias[j]) : 0;
}

// Number k of vector i, 0 beyond K.
static float number_at(MatmulOperand x, int64_t i, int k, int K) {
    return k < K ? to_float(x.data[i * x.across + k * x.along]) : 0;
}

// One step of the chain; a volatile product cannot be fused.
static float step(bool fused, float a, float b, float s) {
    if (fused) return fmaf(a, b, s);
    volatile float product = a * b;
    return s + product;
}

static bool same_bits(float a, float b) { return memcmp(&a, &b, sizeof a) == 0; }

// What the contract says of C[i][j], before it is rounded.
static float chain(const Problem* p, const MatmulKernel* kernel, bool fused, int64_t i, int64_t j) {
    const int K = p->K, depth = kernel->layout == MATMUL_TILES ? 32 : (int)WORD_NUMBERS;
    float s = start_of(p, i, j);
    for (int k0 = 0; k0 < K; k0 += depth) {
        float sums[2] = {0, 0}; // AMX: of even and of odd numbers
        for (int n = 0; n < depth; n++) {
            const int k = k0 + (kernel->layout == MATMUL_TILES ? n : depth - 1 - n);
            float* sum = kernel->layout == MATMUL_TILES ? &sums[n % 2] : &s;
            *sum = step(fused, number_at(p->a, i, k, K), number_at(p->b, j, k, K), *sum);
        }
        if (kernel->layout == MATMUL_TILES) s += sums[0] + sums[1];
    }
    return s;
}

// How many numbers of C and its surroundings are not what the contract says.
static int64_t count_wrong(const Problem* p, const MatmulKernel* kernel, bool fused) {
    int64_t wrong = 0;
    for (int64_t at = 0; at < p->c_all; at++) {
        const int64_t i = at < GUARD ? 0 : (at - GUARD) / p->c_row, j = at < GUARD ? -1 : (at - GUARD) % p->c_row;
        float expected = UNTOUCHED;
        if (j >= 0 && j < p->N) expected = chain(p, kernel, fused, i, j);
        if (p->rounded) expected = to_float(to_floatX(expected));
        wrong += !same_bits(number_of(p, at), expected);
    }
    return wrong;
}

// The largest error over its bound. A chain of K fused steps is off by at most K u (|start| + sum |a b|), u = 2^-24 (to
// first order; Higham 2002, section 3.1); a step of two roundings by twice that. A result in bf16 is off by 2^-8 of
// itself, too. The sums here are in float64.
static double error_over_bound(const Problem* p, bool fused) {
    double worst = 0;
    for (int64_t i = 0; i < p->M; i++) {
        for (int64_t j = 0; j < p->N; j++) {
            double sum = (double)start_of(p, i, j), size = fabs(sum);
            for (int k = 0; k < p->K; k++) {
                const double product = (double)number_at(p->a, i, k, p->K) * (double)number_at(p->b, j, k, p->K);
                sum += product;
                size += fabs(product);
            }
            double bound = (fused ? 1 : 2) * (p->K + 1) * 0x1p-24 * size;
            if (p->rounded) bound += 0x1p-8 * (fabs(sum) + bound);
            double error = fabs((double)number_of(p, GUARD + i * p->c_row + j) - sum);
            if (error <= worst * bound) continue;
            if (bound > 0)
                worst = error / bound;
            else if (error != 0)
                worst = INFINITY;
        }
    }
    return worst;
}

// Does the kernel fuse? (1 + e)^2 - (1 + 2e) is e^2 with one rounding, 0 with two. A product of bf16 numbers is exact.
static bool kernel_fuses(const MatmulKernel* kernel) {
    const float e = 0x1p-12f;
    if (sizeof(floatX) < sizeof(float)) return true;
    const floatX x = to_floatX(1 + e);
    float c = -(1 + 2 * e);
    const MatmulOperand a = {&x, 1, 1};
    const MatmulProduct product = {&c, NULL, true, 1, a, a, NULL, 1, 1, 1};
    matmul_with(kernel, &product);
    return c != 0;
}

// ----------------------------------------------------------------------------------------------------------------

// Tiles of AMX in C are slow.
static bool is_slow(const MatmulKernel* kernel) { return kernel->layout == MATMUL_TILES && !kernel->begin; }

static void test_sizes(const MatmulKernel* kernel, bool fused) {
    int64_t wrong = 0;
    double worst = 0;
    const int cases = is_slow(kernel) ? 250 : 2500;
    for (int i = 0; i < cases; i++) {
        Problem p = draw_problem(draw_int(1, 70), draw_int(1, 110), draw_int(0, 70), draw_int(0, 1));
        run_problem(&p, kernel, draw_int(1, 5));
        wrong += count_wrong(&p, kernel, fused);
        worst = fmax(worst, error_over_bound(&p, fused));
    }
    check(wrong == 0, "%s: %d small products, any strides: %lld numbers differ from the chain", kernel->name, cases,
          (long long)wrong);
    check_error("  error over (K + 1) u (|start| + sum |ab|)", worst, 1);
}

static void test_blocks(const MatmulKernel* kernel, bool fused) {
    // More than one block along k (769, 1600, 2305), along m (1100 rows of 768, 3000 of 300), strips (few panels).
    static const int sizes[][3] = {{37, 53, 769},    {131, 97, 1600}, {9, 200, 2305}, {1100, 19, 768}, {3000, 13, 300},
                                   {1031, 50, 1025}, {600, 47, 50},   {513, 1, 700},  {1, 513, 700},   {257, 769, 31}};
    int64_t wrong = 0;
    double worst = 0;
    int runs = 0;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int repeat = 0; repeat < 2; repeat++) {
            Problem p = draw_problem(sizes[s][0], sizes[s][1], sizes[s][2], repeat);
            run_problem(&p, kernel, 1);
            wrong += count_wrong(&p, kernel, fused);
            worst = fmax(worst, error_over_bound(&p, fused));
            char* one = (char*)checked_malloc((size_t)p.c_bytes, "a copy of C");
            memcpy(one, p.c, (size_t)p.c_bytes);
            for (int threads = 2; threads <= (is_slow(kernel) ? 2 : 5); threads++, runs++) {
                run_problem(&p, kernel, threads);
                wrong += memcmp(one, p.c, (size_t)p.c_bytes) != 0;
            }
            free(one);
        }
    }
    check(wrong == 0 && runs > 0, "%s: products of several blocks, 1 to 5 threads: %lld differences", kernel->name,
          (long long)wrong);
    check_error("  error over (K + 1) u (|start| + sum |ab|)", worst, 1);
}

// Several blocks of k, and rectangles of two threads so wide that their sums are kept in parts: the bits of four, whose
// rectangles are narrower.
static void test_wide(const MatmulKernel* kernel) {
    if (is_slow(kernel)) return;
    Problem p = draw_problem(1024, 1100, 1602, false);
    run_problem(&p, kernel, 4);
    char* narrow = (char*)checked_malloc((size_t)p.c_bytes, "a copy of C");
    memcpy(narrow, p.c, (size_t)p.c_bytes);
    run_problem(&p, kernel, 2);
    check(memcmp(narrow, p.c, (size_t)p.c_bytes) == 0, "%s: 1024 x 1100 of 1602, two threads and four", kernel->name);
    free(narrow);
}

// A product over K is the product over the first k, and the rest added, for any cut between pairs, or steps of AMX.
static void test_cuts(const MatmulKernel* kernel) {
    int64_t wrong = 0;
    enum { CASES = 40 };
    const int unit = kernel->layout == MATMUL_TILES ? 32 : (int)WORD_NUMBERS;
    for (int i = 0; i < CASES; i++) {
        const bool accumulate = sizeof(floatX) < sizeof(float) || draw_int(0, 1);
        Problem p = draw_problem(draw_int(1, 60), draw_int(1, 60), draw_int(1, 1700), accumulate);
        run_problem(&p, kernel, 2);
        char* whole = (char*)checked_malloc((size_t)p.c_bytes, "a copy of C");
        memcpy(whole, p.c, (size_t)p.c_bytes);
        Problem first = p;
        first.K = draw_int(0, p.K / unit) * unit;
        run_problem(&first, kernel, 3);
        MatmulOperand a = p.a, b = p.b;
        a.data += first.K < p.K ? first.K * a.along : 0;
        b.data += first.K < p.K ? first.K * b.along : 0;
        run_product(&p, kernel, a, b, p.K - first.K, true);
        wrong += memcmp(whole, p.c, (size_t)p.c_bytes) != 0;
        free(whole);
    }
    check(wrong == 0, "%s: %d products cut in two along k: %lld differ", kernel->name, CASES, (long long)wrong);
}

// c (rows of `row`) = A B by a kernel, rounded.
static void multiply(const MatmulKernel* kernel, floatX* c, int64_t row, MatmulOperand a, MatmulOperand b, int M, int N,
                     int K) {
    const bool rounds = sizeof(floatX) < sizeof(float);
    const MatmulProduct p = {rounds ? NULL : (float*)(void*)c, rounds ? c : NULL, false, row, a, b, NULL, M, N, K};
    matmul_with(kernel, &p);
}

static bool is_rounded(floatX x, int value) { return to_float(x) == to_float(to_floatX((float)value)); }

// A (rows, wide) lies in rows `far` numbers apart, so that offsets pass 2^31; A A^T beside it, in rows as far apart,
// and A^T A are known integers: A[i][k] = (i % 7 + 1) (k % 3 + 1).
static void test_far(const MatmulKernel* kernel, int rows, int wide, int64_t far) {
    const size_t bytes = (size_t)(rows * far) * sizeof(floatX);
    floatX* p = (floatX*)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        printf("skip  %s: offsets beyond 2^31: no address space\n", kernel->name);
        return;
    }
    int sum_rows = 0, sum_wide = 0;
    for (int i = 0; i < rows; i++) {
        for (int k = 0; k < wide; k++) p[i * far + k] = to_floatX((float)((i % 7 + 1) * (k % 3 + 1)));
        sum_rows += (i % 7 + 1) * (i % 7 + 1);
    }
    for (int k = 0; k < wide; k++) sum_wide += (k % 3 + 1) * (k % 3 + 1);
    bool right = true;
    floatX *c = p + wide, *small = (floatX*)checked_malloc((size_t)wide * (size_t)wide * sizeof(floatX), "A^T A");
    MatmulOperand across = {p, far, 1}, along = {p, 1, far};
    multiply(kernel, c, far, across, across, rows, rows, wide);
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < rows; j++)
            right = right && is_rounded(c[i * far + j], sum_wide * (i % 7 + 1) * (j % 7 + 1));
    }
    multiply(kernel, small, wide, along, along, wide, wide, rows);
    for (int i = 0; i < wide; i++) {
        for (int j = 0; j < wide; j++)
            right = right && is_rounded(small[i * wide + j], sum_rows * (i % 3 + 1) * (j % 3 + 1));
    }
    check(right, "%s: %d rows, %lld numbers apart", kernel->name, rows, (long long)far);
    free(small);
    munmap(p, bytes);
}

static void test_empty(const MatmulKernel* kernel) {
    const MatmulOperand none = {NULL, 3, 1};
    floatX c[6];
    float sums[6] = {1, 2, 3, 4, 5, 6};
    for (int i = 0; i < 6; i++) c[i] = to_floatX(sums[i]);
    multiply(kernel, NULL, 0, none, none, 0, 3, 2);
    multiply(kernel, c, 3, none, none, 2, 0, 2);
    const MatmulProduct nothing = {sums, NULL, true, 3, none, none, NULL, 2, 3, 0};
    matmul_with(kernel, &nothing);
    const bool same = is_rounded(c[0], 1) && is_rounded(c[5], 6) && sums[0] == 1 && sums[5] == 6;
    multiply(kernel, c, 3, none, none, 2, 2, 0);
    static const int expected[6] = {0, 0, 3, 0, 0, 6};
    bool zero = true;
    for (int i = 0; i < 6; i++) zero = zero && is_rounded(c[i], expected[i]);
    check(same && zero, "%s: empty products", kernel->name);
}

// What matmul_grid() promises to matmul_with(), at sizes that no test could compute: rectangles that cover C, one for
// each thread, or up to four if A is not packed, and for a large square as much work for each thread.
static void test_grid(const MatmulKernel* kernel) {
    static const int sizes[] = {1, 2, 7, 48, 49, 768, 769, 4097, 50304, 1 << 20, INT32_MAX - 1, INT32_MAX};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    int64_t wrong = 0, cases = 0;
    double worst = 0;
    for (int i = 0; i < SIZES * SIZES * 64 * 2; i++, cases++) {
        const int M = sizes[i % SIZES], N = sizes[i / SIZES % SIZES], threads = 1 + i / SIZES / SIZES / 2;
        const bool packs_a = i / SIZES / SIZES % 2 == 0;
        const MatmulGrid g = matmul_grid(kernel, M, N, threads, packs_a);
        const int64_t each = div_up((int64_t)g.rows * g.columns, threads);
        wrong += g.rows < 1 || g.columns < 1 || each > (packs_a || threads == 1 ? 1 : 4) || g.height * g.rows < M ||
                 g.width * g.columns < N || g.height % kernel->mr != 0 || g.width % kernel->nr != 0;
        const MatmulBlocks b = matmul_blocks(kernel, g.height, sizes[(i + 5) % SIZES]);
        const int64_t depth = matmul_words(kernel, b.kc);
        wrong += b.kc < 1 || b.kc % (kernel->layout == MATMUL_TILES ? 32 : (int)WORD_NUMBERS) != 0 ||
                 depth > kernel->kc || kernel->kc > MATMUL_KC || b.mc < 1 || b.mc % kernel->mr != 0 ||
                 b.mc * depth > MATMUL_PANEL_B || MATMUL_PANEL_B + kernel->group * kernel->nr * depth > MATMUL_PANELS;
        const bool power = (threads & (threads - 1)) == 0;
        if (power && M >= 50304 && N >= 50304) worst = fmax(worst, (double)g.height * g.width * each * threads / M / N);
    }
    check(wrong == 0, "%s: grids and blocks of %lld shapes up to 2^31", kernel->name, (long long)cases);
    check(worst < 1.02, "%s: 1, 2, 4 ... 64 threads share a large product evenly: %.3f", kernel->name, worst);
}

// ---- The public functions ---------------------------------------------------------------------------------------

static void fill(float* x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = to_float(to_floatX(draw()));
}

// The numbers of x, which floatX holds; to be freed.
static floatX* rounded(const float* x, int64_t n) {
    floatX* y = (floatX*)checked_malloc((size_t)n * sizeof(floatX), "numbers");
    for (int64_t i = 0; i < n; i++) y[i] = to_floatX(x[i]);
    return y;
}

// The float64 sums r = s + sum over k of a[i*ai + k*ak] b[j*bj + k*bk], M x N of them.
static double* exact_product(const float* start, int64_t start_row, const float* a, int64_t ai, int64_t ak,
                             const float* b, int64_t bj, int64_t bk, int M, int N, int K) {
    double* r = (double*)checked_malloc((size_t)M * (size_t)N * sizeof(double), "a reference");
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            double sum = start ? (double)start[i * start_row + j] : 0;
            for (int k = 0; k < K; k++) sum += (double)a[i * ai + k * ak] * (double)b[j * bj + k * bk];
            r[(int64_t)i * N + j] = sum;
        }
    }
    return r;
}

// |a|, |b|, |start| < 1, so the bound above is (K + 1) (K + 1) u over max |r|; and max |r| is at least the typical size
// sqrt(K) / 3 of a sum of K products of variance 1/9.
static double sum_bound(int K) { return 3 * 0x1p-24 * (K + 1.0) * (K + 1.0) / sqrt((double)K); }

// max |x - r| over max |r|, of float32 sums of K products, and of numbers that were rounded then; frees r.
static void check_sums(const char* what, const float* x, double* r, int64_t n, int K) {
    check_error(what, relative_error(x, r, n), sum_bound(K));
    free(r);
}
static void check_numbers(const char* what, const floatX* x, double* r, int64_t n, int K) {
    float* wide = (float*)checked_malloc((size_t)n * sizeof(float), "numbers");
    for (int64_t i = 0; i < n; i++) wide[i] = to_float(x[i]);
    check_error(what, relative_error(wide, r, n), sum_bound(K) + (sizeof(floatX) < sizeof(float) ? 0x1p-8 : 0));
    free(wide);
    free(r);
}

static void test_linear(void) {
    enum { N = 71, C = 53, OC = 119, CUT = 30 };
    static float x[N * C], w[OC * C], bias[OC], dout[N * OC], dw[OC * C], db[OC];
    static float db0[OC], dw2[OC * C], db2[OC];
    static floatX out[N * OC], dx[N * C], c[N * OC];
    fill(x, N * C);
    fill(w, OC * C);
    fill(bias, OC);
    fill(dout, N * OC);
    fill(db0, OC);
    floatX *x16 = rounded(x, N * C), *w16 = rounded(w, OC * C), *dout16 = rounded(dout, N * OC);
    floatX* bias16 = rounded(bias, OC);
    linear_forward(out, x16, w16, bias16, N, C, OC);
    check_numbers("linear_forward, bias", out, exact_product(bias, 0, x, C, 1, w, C, 1, N, OC, C), N * OC, C);
    linear_forward(out, x16, w16, NULL, N, C, OC);
    check_numbers("linear_forward, no bias", out, exact_product(NULL, 0, x, C, 1, w, C, 1, N, OC, C), N * OC, C);
    matmul(c, OC, (MatmulOperand){x16, C, 1}, (MatmulOperand){w16, C, 1}, NULL, N, OC, C);
    check(memcmp(c, out, sizeof out) == 0, "matmul and linear_forward: the same bits");
    linear_backward_input(dx, dout16, w16, N, C, OC);
    check_numbers("linear_backward_input", dx, exact_product(NULL, 0, dout, OC, 1, w, 1, C, N, C, OC), N * C, OC);
    for (int i = 0; i < OC * C; i++) dw[i] = dw2[i] = NAN; // must not be read
    linear_backward_weight(dw, dout16, x16, N, C, OC, false);
    check_sums("linear_backward_weight", dw, exact_product(NULL, 0, dout, 1, OC, x, 1, C, OC, C, N), OC * C, N);
    memcpy(db, db0, sizeof db);
    linear_backward_bias(db, dout16, N, OC);
    float one = 1;
    check_sums("linear_backward_bias", db, exact_product(db0, 0, &one, 0, 0, dout, 1, OC, 1, OC, N), OC, N);

    const int cut = matmul_best_kernel()->layout == MATMUL_TILES ? 32 : CUT;
    linear_backward_weight(dw2, dout16, x16, cut, C, OC, false);
    linear_backward_weight(dw2, dout16 + cut * OC, x16 + cut * C, N - cut, C, OC, true);
    memcpy(db2, db0, sizeof db);
    linear_backward_bias(db2, dout16, CUT, OC);
    linear_backward_bias(db2, dout16 + CUT * OC, N - CUT, OC);
    check(memcmp(dw, dw2, sizeof dw) == 0, "a batch in two micro-batches: the same bits of dw");
    check(memcmp(db, db2, sizeof db) == 0, "a batch in two micro-batches: the same bits of db");
    float chain = db0[OC - 1];
    for (int n = 0; n < N; n++) chain += dout[n * OC + OC - 1];
    check(same_bits(chain, db[OC - 1]), "db is summed in the order of the rows");
    free(x16), free(w16), free(dout16), free(bias16);
}

// Called from threads of a parallel region, each product is its thread's own.
static void test_nested(void) {
    enum { N = 90 };
    static float a[N * N];
    static floatX expected[N * N], c[4][N * N];
    fill(a, N * N);
    floatX* data = rounded(a, N * N);
    const MatmulOperand rows = {data, N, 1}, columns = {data, 1, N};
    matmul(expected, N, rows, columns, NULL, N, N, N);
    int wrong = 0;
#pragma omp parallel for num_threads(4) reduction(+ : wrong)
    for (int t = 0; t < 4; t++) {
        for (int repeat = 0; repeat < 20; repeat++) {
            matmul(c[t], N, rows, columns, NULL, N, N, N);
            wrong += memcmp(c[t], expected, sizeof expected) != 0;
        }
    }
    check(wrong == 0, "products inside a parallel region");
    free(data);
}

#ifdef AMX_COMPILED
// Random words: bits of `keep` are drawn, those of `set` are 1.
static void draw_words(MatmulWord* words, int n, uint32_t keep, uint32_t set) {
    for (int i = 0; i < n; i++, draws++) words[i] = (philox(1, 4, draws).word[0] & keep) | set;
}

// Two steps of products by the processor's tiles beside those in C: the same bits, but for the payloads of NaNs.
static void test_tiles(void) {
    static const struct {
        const char* what;
        uint32_t keep[3], set[3]; // of A and B, pairs of bf16; of the start, floats
    } kinds[] = {
        {"any bits", {~0u, ~0u, ~0u}, {0, 0, 0}},
        {"numbers near 1", {0x807f807f, 0x807f807f, 0x807fffff}, {0x3f003f00, 0x3f003f00, 0x3f000000}},
        {"products that underflow", {0x9fff9fff, 0x9fff9fff, 0x81ffffff}, {0, 0x20002000, 0}},
        {"denormal numbers", {0x83ff83ff, 0x83ff83ff, 0x807fffff}, {0, 0, 0}},
    };
    enum { DEPTH = 2 * TILE_WORDS, WORDS = 32 * DEPTH };
    static MatmulWord a[WORDS], b[WORDS], start[32 * 32], found[32 * 32], expected[32 * 32];
    const MatmulRows rows = {a, 16, 32, a, 4};
    const TileSums by_tiles = {(const float*)start, (float*)found, 32, 32, (const char*)start, 0};
    const TileSums in_c = {(const float*)start, (float*)expected, 32, 32, (const char*)start, 0};
    for (int kind = 0; kind < 4; kind++) {
        const uint32_t *keep = kinds[kind].keep, *set = kinds[kind].set;
        int wrong = 0;
        for (int repeat = 0; repeat < 50; repeat++) {
            draw_words(a, WORDS, keep[0], set[0]);
            draw_words(b, WORDS, keep[1], set[1]);
            draw_words(start, 32 * 32, keep[2], set[2]);
            amx_begin();
            matmul_tile_amx(DEPTH, &rows, b, 32, &by_tiles);
            amx_end();
            matmul_tile_simulated(DEPTH, &rows, b, 32, &in_c);
            for (int k = 0; k < 32 * 32; k++) {
                const bool nan = isnan(float_of_bits(found[k])) && isnan(float_of_bits(expected[k]));
                wrong += found[k] != expected[k] && !nan;
            }
        }
        check(wrong == 0, "AMX, %s: %d of %d numbers differ from C", kinds[kind].what, wrong, 50 * 32 * 32);
    }
}
#endif

// test_matmul [KERNEL]: only the micro-kernel of this name
int main(int argc, char** argv) {
    fence_a = fence_open();
    fence_b = fence_open();
    fence_c = fence_open();
    fence_start = fence_open();
    fence_bias = fence_open();
    for (int i = 0; i < MATMUL_KERNELS; i++) {
        const MatmulKernel* kernel = matmul_kernel(i);
        if (!kernel || (argc > 1 && strcmp(argv[1], kernel->name) != 0)) continue;
        bool fused = kernel_fuses(kernel);
        printf("%s: %d x %d, %s\n", kernel->name, kernel->mr, kernel->nr, fused ? "fused" : "not fused");
        check(kernel->mr <= MATMUL_MAX_MR && kernel->nr <= MATMUL_MAX_NR, "%s: fits a scratch tile", kernel->name);
        test_sizes(kernel, fused);
        test_blocks(kernel, fused);
        test_wide(kernel);
        test_cuts(kernel);
        test_far(kernel, 2, 50, (int64_t)3 << 30);                           // one row
        test_far(kernel, 17, 5, (int64_t)1 << 28);                           // from tile to tile
        if (!is_slow(kernel)) test_far(kernel, 1100, 768, (int64_t)1 << 22); // from block to block
        test_empty(kernel);
        test_grid(kernel);
    }
#ifdef AMX_COMPILED
    if (amx_is_here()) test_tiles();
#endif
    test_linear();
    test_nested();
    return test_end();
}
