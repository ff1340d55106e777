/*
test_matmul.c: kernels/matmul.h against its contract, bit for bit: every element is the chain s = fmaf(a[k], b[k], s) in
the order of k. Every micro-kernel this machine runs, sizes that are multiples of nothing, any strides, 1 to 5 threads,
blocks cut anywhere. Matrices end at a page that cannot be touched; what no matrix owns is NaN in the inputs and must
be unchanged in the output. Sums in float64 with the textbook's bound guard against an error shared with the chain.
*/
#include "test.h"

#include "../../../kernels/matmul.h"

// ----------------------------------------------------------------------------------------------------------------
// Fenced memory: n floats whose end is the end of what may be touched.

enum { FENCED = 64 << 20 };
typedef struct {
    float* end;
} Fence;

static Fence fence_open(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = round_up(FENCED, page);
    char* p = (char*)mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) die("cannot map %zu bytes", bytes + page);
    if (mprotect(p + bytes, page, PROT_NONE) != 0) die("cannot protect a page");
    Fence f = {(float*)(void*)(p + bytes)};
    return f;
}

static float* fence_floats(Fence f, int64_t n) {
    if (n * (int64_t)sizeof(float) > FENCED)
        die("the test asks for %lld floats, more than a fence holds", (long long)n);
    return f.end - n;
}

static uint64_t draws = 0;
static float draw(void) { return 2 * random_uniform(1, 2, draws++) - 1; }
static int draw_int(int low, int high) { return low + (int)(random_uniform(1, 3, draws++) * (float)(high - low + 1)); }

// ----------------------------------------------------------------------------------------------------------------
// A problem: C(M, N) (+)= A(M, K) B(K, N) in fenced memory

enum { GUARD = 64 }; // floats before C that must stay as they are
static const float UNTOUCHED = -12345.0f;

typedef struct {
    int M, N, K;
    bool accumulate;
    MatmulOperand a, b;
    float *c, *c_start; // c_start: what C and all around it held before
    const float* bias;
    int64_t c_row, c_all; // c_all: GUARD, then all from the first to the last element of C
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
    int64_t n = count > 0 && depth > 0 ? (count - 1) * x.across + (depth - 1) * x.along + 1 : 0;
    float* p = fence_floats(fence, n);
    for (int64_t i = 0; i < n; i++) p[i] = NAN;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t k = 0; k < depth; k++) p[i * x.across + k * x.along] = draw();
    }
    x.data = p;
    return x;
}

static Problem draw_problem(int M, int N, int K) {
    Problem p;
    p.M = M;
    p.N = N;
    p.K = K;
    p.accumulate = draw_int(0, 1);
    p.a = draw_operand(fence_a, M, K, draw_int(0, 3));
    p.b = draw_operand(fence_b, N, K, draw_int(0, 3));
    p.c_row = N + draw_int(0, 5);
    p.c_all = GUARD + (int64_t)(M - 1) * p.c_row + N;
    p.c = fence_floats(fence_c, p.c_all) + GUARD;
    p.c_start = fence_floats(fence_start, p.c_all) + GUARD;
    for (int64_t i = -GUARD; i < p.c_all - GUARD; i++) p.c_start[i] = UNTOUCHED;
    for (int64_t i = 0; i < M; i++) {
        for (int64_t j = 0; j < N; j++)
            p.c_start[i * p.c_row + j] = p.accumulate ? draw() : NAN; // NaN: must not be read
    }
    float* bias = fence_floats(fence_bias, N);
    for (int j = 0; j < N; j++) bias[j] = draw();
    p.bias = draw_int(0, 1) ? bias : NULL;
    return p;
}

static void run_problem(const Problem* p, const MatmulKernel* kernel, int threads) {
    memcpy(p->c - GUARD, p->c_start - GUARD, (size_t)p->c_all * sizeof(float));
#ifdef _OPENMP
    omp_set_num_threads(threads);
#endif
    (void)threads;
    matmul_with(kernel, p->c, p->c_row, p->a, p->b, p->bias, p->M, p->N, p->K, p->accumulate);
}

static float start_of(const Problem* p, int64_t i, int64_t j) {
    if (p->accumulate) return p->c_start[i * p->c_row + j];
    return p->bias ? p->bias[j] : 0;
}

// One step of the chain; a volatile product cannot be fused.
static float step(bool fused, float a, float b, float s) {
    if (fused) return fmaf(a, b, s);
    volatile float product = a * b;
    return s + product;
}

static bool same_bits(float a, float b) { return memcmp(&a, &b, sizeof a) == 0; }

// How many floats of C and its surroundings are not what the contract says.
static int64_t count_wrong(const Problem* p, bool fused) {
    int64_t wrong = 0;
    for (int64_t at = -GUARD; at < p->c_all - GUARD; at++) {
        int64_t i = at < 0 ? 0 : at / p->c_row, j = at < 0 ? -1 : at % p->c_row;
        float expected = UNTOUCHED;
        if (j >= 0 && j < p->N) {
            expected = start_of(p, i, j);
            const float *a = p->a.data + i * p->a.across, *b = p->b.data + j * p->b.across;
            for (int k = 0; k < p->K; k++) expected = step(fused, a[k * p->a.along], b[k * p->b.along], expected);
        }
        wrong += !same_bits(p->c[at], expected);
    }
    return wrong;
}

// The largest error over its bound. A chain of K fused steps is off by at most K u (|start| + sum |a b|), u = 2^-24 (to
// first order; Higham 2002, section 3.1); a step of two roundings by twice that. The sums here are in float64.
static double error_over_bound(const Problem* p, bool fused) {
    double worst = 0;
    for (int64_t i = 0; i < p->M; i++) {
        for (int64_t j = 0; j < p->N; j++) {
            const float *a = p->a.data + i * p->a.across, *b = p->b.data + j * p->b.across;
            double sum = start_of(p, i, j), size = fabs(sum);
            for (int k = 0; k < p->K; k++) {
                double product = (double)a[k * p->a.along] * (double)b[k * p->b.along];
                sum += product;
                size += fabs(product);
            }
            double bound = (fused ? 1 : 2) * (p->K + 1) * 0x1p-24 * size;
            double error = fabs((double)p->c[i * p->c_row + j] - sum);
            if (error <= worst * bound) continue;
            if (bound > 0)
                worst = error / bound;
            else if (error != 0)
                worst = INFINITY;
        }
    }
    return worst;
}

// Does the kernel fuse? (1 + e)^2 - (1 + 2e) is e^2 with one rounding, 0 with two.
static bool kernel_fuses(const MatmulKernel* kernel) {
    float e = 0x1p-12f, x = 1 + e, c = -(1 + 2 * e);
    MatmulOperand a = {&x, 1, 1};
    matmul_with(kernel, &c, 1, a, a, NULL, 1, 1, 1, true);
    return c != 0;
}

// ----------------------------------------------------------------------------------------------------------------

static void test_sizes(const MatmulKernel* kernel, bool fused) {
    int64_t wrong = 0;
    double worst = 0;
    enum { CASES = 2500 };
    for (int i = 0; i < CASES; i++) {
        Problem p = draw_problem(draw_int(1, 70), draw_int(1, 110), draw_int(0, 70));
        run_problem(&p, kernel, draw_int(1, 5));
        wrong += count_wrong(&p, fused);
        worst = fmax(worst, error_over_bound(&p, fused));
    }
    check(wrong == 0, "%s: %d small products, any strides: %lld floats differ from the chain", kernel->name, CASES,
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
            Problem p = draw_problem(sizes[s][0], sizes[s][1], sizes[s][2]);
            run_problem(&p, kernel, 1);
            wrong += count_wrong(&p, fused);
            worst = fmax(worst, error_over_bound(&p, fused));
            float* one = (float*)checked_malloc((size_t)p.c_all * sizeof(float), "a copy of C");
            memcpy(one, p.c - GUARD, (size_t)p.c_all * sizeof(float));
            for (int threads = 2; threads <= 5; threads++, runs++) {
                run_problem(&p, kernel, threads);
                wrong += memcmp(one, p.c - GUARD, (size_t)p.c_all * sizeof(float)) != 0;
            }
            free(one);
        }
    }
    check(wrong == 0 && runs > 0, "%s: products of several blocks, 1 to 5 threads: %lld differences", kernel->name,
          (long long)wrong);
    check_error("  error over (K + 1) u (|start| + sum |ab|)", worst, 1);
}

// A product over K is the product over the first k, and the rest added, for any cut.
static void test_cuts(const MatmulKernel* kernel) {
    int64_t wrong = 0;
    enum { CASES = 40 };
    for (int i = 0; i < CASES; i++) {
        Problem p = draw_problem(draw_int(1, 60), draw_int(1, 60), draw_int(1, 1700));
        run_problem(&p, kernel, 2);
        float* whole = (float*)checked_malloc((size_t)p.c_all * sizeof(float), "a copy of C");
        memcpy(whole, p.c - GUARD, (size_t)p.c_all * sizeof(float));
        Problem first = p;
        first.K = draw_int(0, p.K);
        run_problem(&first, kernel, 3);
        MatmulOperand a = p.a, b = p.b;
        a.data += first.K < p.K ? first.K * a.along : 0;
        b.data += first.K < p.K ? first.K * b.along : 0;
        matmul_with(kernel, p.c, p.c_row, a, b, NULL, p.M, p.N, p.K - first.K, true);
        wrong += memcmp(whole, p.c - GUARD, (size_t)p.c_all * sizeof(float)) != 0;
        free(whole);
    }
    check(wrong == 0, "%s: %d products cut in two along k: %lld differ", kernel->name, CASES, (long long)wrong);
}

// A (rows, wide) lies in rows `far` floats apart, so that offsets pass 2^31; A A^T beside it, in rows as far apart, and
// A^T A are known integers: A[i][k] = (i % 7 + 1) (k % 3 + 1).
static void test_far(const MatmulKernel* kernel, int rows, int wide, int64_t far) {
    size_t bytes = (size_t)(rows * far) * sizeof(float);
    float* p = (float*)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        printf("skip  %s: offsets beyond 2^31: no address space\n", kernel->name);
        return;
    }
    int reduce_from_tensor_region = 0, sum_wide = 0;
    for (int i = 0; i < rows; i++) {
        for (int k = 0; k < wide; k++) p[i * far + k] = (float)((i % 7 + 1) * (k % 3 + 1));
        reduce_from_tensor_region += (i % 7 + 1) * (i % 7 + 1);
    }
    for (int k = 0; k < wide; k++) sum_wide += (k % 3 + 1) * (k % 3 + 1);
    bool right = true;
    float *c = p + wide, *small = (float*)checked_malloc((size_t)wide * (size_t)wide * sizeof(float), "A^T A");
    MatmulOperand across = {p, far, 1}, along = {p, 1, far};
    matmul_with(kernel, c, far, across, across, NULL, rows, rows, wide, false);
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < rows; j++) {
            right = right && c[i * far + j] == (float)(sum_wide * (i % 7 + 1) * (j % 7 + 1));
        }
    }
    matmul_with(kernel, small, wide, along, along, NULL, wide, wide, rows, false);
    for (int i = 0; i < wide; i++) {
        for (int j = 0; j < wide; j++) {
            right = right && small[i * wide + j] == (float)(reduce_from_tensor_region * (i % 3 + 1) * (j % 3 + 1));
        }
    }
    check(right, "%s: %d rows, %lld floats apart", kernel->name, rows, (long long)far);
    free(small);
    munmap(p, bytes);
}

static void test_empty(const MatmulKernel* kernel) {
    MatmulOperand none = {NULL, 3, 1};
    float c[6] = {1, 2, 3, 4, 5, 6};
    matmul_with(kernel, NULL, 0, none, none, NULL, 0, 3, 2, false);
    matmul_with(kernel, c, 3, none, none, NULL, 2, 0, 2, false);
    matmul_with(kernel, c, 3, none, none, NULL, 2, 3, 0, true);
    bool same = c[0] == 1 && c[5] == 6;
    matmul_with(kernel, c, 3, none, none, NULL, 2, 2, 0, false);
    bool zero = c[0] == 0 && c[1] == 0 && c[2] == 3 && c[3] == 0 && c[4] == 0 && c[5] == 6;
    check(same && zero, "%s: empty products", kernel->name);
}

// What matmul_grid() promises to matmul_with(), at sizes that no test could compute: rectangles that cover C, no more
// of them than threads, and for a large square as much work for each as for any other.
static void test_grid(const MatmulKernel* kernel) {
    static const int sizes[] = {1, 2, 7, 48, 49, 768, 769, 4097, 50304, 1 << 20, INT32_MAX - 1, INT32_MAX};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    int64_t wrong = 0, cases = 0;
    double worst = 0;
    for (int i = 0; i < SIZES * SIZES * 64; i++, cases++) {
        const int M = sizes[i % SIZES], N = sizes[i / SIZES % SIZES], threads = 1 + i / SIZES / SIZES;
        const MatmulGrid g = matmul_grid(kernel, M, N, threads);
        wrong += g.rows < 1 || g.columns < 1 || g.rows * g.columns > threads || g.height * g.rows < M ||
                 g.width * g.columns < N || g.height % kernel->mr != 0 || g.width % kernel->nr != 0;
        const MatmulBlocks b = matmul_blocks(kernel, g.height, sizes[(i + 5) % SIZES]);
        wrong += b.kc < 1 || b.kc > MATMUL_KC || b.mc < 1 || b.mc % kernel->mr != 0 || b.mc * b.kc > MATMUL_PANEL_B ||
                 MATMUL_PANEL_B + kernel->nr * b.kc > MATMUL_SLOT;
        const bool power = (threads & (threads - 1)) == 0;
        if (power && M >= 50304 && N >= 50304) worst = fmax(worst, (double)g.height * g.width * threads / M / N);
    }
    check(wrong == 0, "%s: grids and blocks of %lld shapes up to 2^31", kernel->name, (long long)cases);
    check(worst < 1.02, "%s: 1, 2, 4 ... 64 threads share a large product evenly: %.3f", kernel->name, worst);
}

// ----------------------------------------------------------------------------------------------------------------
// The public functions

static void fill(float* x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = draw();
}

// max |x - r| over max |r|; the float64 sums r = s + sum over k of a[i*ai + k*ak] b[j*bj + k*bk], M x N of them.
static double product_error(const float* x, const float* start, int64_t start_row, const float* a, int64_t ai,
                            int64_t ak, const float* b, int64_t bj, int64_t bk, int M, int N, int K) {
    double* r = (double*)checked_malloc((size_t)M * (size_t)N * sizeof(double), "a reference");
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            double sum = start ? start[i * start_row + j] : 0;
            for (int k = 0; k < K; k++) sum += (double)a[i * ai + k * ak] * (double)b[j * bj + k * bk];
            r[(int64_t)i * N + j] = sum;
        }
    }
    double error = relative_error(x, r, (int64_t)M * N);
    free(r);
    return error;
}

// |a|, |b|, |start| < 1, so the bound above is (K + 1) (K + 1) u over max |r|; and max |r| is at least the typical size
// sqrt(K) / 3 of a sum of K products of variance 1/9.
static double sum_bound(int K) { return 3 * 0x1p-24 * (K + 1.0) * (K + 1.0) / sqrt((double)K); }

static void test_linear(void) {
    enum { N = 71, C = 53, OC = 119, CUT = 30 };
    static float x[N * C], w[OC * C], bias[OC], out[N * OC], dout[N * OC], dx[N * C], dw[OC * C], db[OC];
    static float dw0[OC * C], db0[OC], dw2[OC * C], db2[OC], c[N * OC];
    fill(x, N * C);
    fill(w, OC * C);
    fill(bias, OC);
    fill(dout, N * OC);
    fill(dw0, OC * C);
    fill(db0, OC);
    linear_forward(out, x, w, bias, N, C, OC);
    check_error("linear_forward, bias", product_error(out, bias, 0, x, C, 1, w, C, 1, N, OC, C), sum_bound(C));
    linear_forward(out, x, w, NULL, N, C, OC);
    check_error("linear_forward, no bias", product_error(out, NULL, 0, x, C, 1, w, C, 1, N, OC, C), sum_bound(C));
    matmul(c, OC, (MatmulOperand){x, C, 1}, (MatmulOperand){w, C, 1}, NULL, N, OC, C, false);
    check(memcmp(c, out, sizeof out) == 0, "matmul and linear_forward: the same bits");
    linear_backward_input(dx, dout, w, N, C, OC);
    check_error("linear_backward_input", product_error(dx, NULL, 0, dout, OC, 1, w, 1, C, N, C, OC), sum_bound(OC));
    memcpy(dw, dw0, sizeof dw);
    linear_backward_weight(dw, dout, x, N, C, OC);
    check_error("linear_backward_weight", product_error(dw, dw0, C, dout, 1, OC, x, 1, C, OC, C, N), sum_bound(N));
    memcpy(db, db0, sizeof db);
    linear_backward_bias(db, dout, N, OC);
    float one = 1;
    check_error("linear_backward_bias", product_error(db, db0, 0, &one, 0, 0, dout, 1, OC, 1, OC, N), sum_bound(N));

    memcpy(dw2, dw0, sizeof dw);
    linear_backward_weight(dw2, dout, x, CUT, C, OC);
    linear_backward_weight(dw2, dout + CUT * OC, x + CUT * C, N - CUT, C, OC);
    memcpy(db2, db0, sizeof db);
    linear_backward_bias(db2, dout, CUT, OC);
    linear_backward_bias(db2, dout + CUT * OC, N - CUT, OC);
#ifndef USE_OPENBLAS
    check(memcmp(dw, dw2, sizeof dw) == 0, "a batch in two micro-batches: the same bits of dw");
#endif
    check(memcmp(db, db2, sizeof db) == 0, "a batch in two micro-batches: the same bits of db");
    float chain = db0[OC - 1];
    for (int n = 0; n < N; n++) chain += dout[n * OC + OC - 1];
    check(same_bits(chain, db[OC - 1]), "db is summed in the order of the rows");
}

// Called from threads of a parallel region, each product is its thread's own.
static void test_nested(void) {
    enum { N = 90 };
    static float a[N * N], expected[N * N], c[4][N * N];
    fill(a, N * N);
    const MatmulOperand rows = {a, N, 1}, columns = {a, 1, N};
    matmul(expected, N, rows, columns, NULL, N, N, N, false);
    int wrong = 0;
#pragma omp parallel for num_threads(4) reduction(+ : wrong)
    for (int t = 0; t < 4; t++) {
        for (int repeat = 0; repeat < 20; repeat++) {
            matmul(c[t], N, rows, columns, NULL, N, N, N, false);
            wrong += memcmp(c[t], expected, sizeof expected) != 0;
        }
    }
    check(wrong == 0, "products inside a parallel region");
}

int main(void) {
    fence_a = fence_open();
    fence_b = fence_open();
    fence_c = fence_open();
    fence_start = fence_open();
    fence_bias = fence_open();
    for (int i = 0; i < MATMUL_KERNELS; i++) {
        const MatmulKernel* kernel = matmul_kernel(i);
        if (!kernel) continue;
        bool fused = kernel_fuses(kernel);
        printf("%s: %d x %d, %s\n", kernel->name, kernel->mr, kernel->nr, fused ? "fused" : "not fused");
        check(kernel->mr <= MATMUL_MAX_MR && kernel->nr <= MATMUL_MAX_NR, "%s: fits a scratch tile", kernel->name);
        test_sizes(kernel, fused);
        test_blocks(kernel, fused);
        test_cuts(kernel);
        test_far(kernel, 2, 50, (int64_t)3 << 30);     // one row
        test_far(kernel, 17, 5, (int64_t)1 << 28);     // from tile to tile
        test_far(kernel, 1100, 768, (int64_t)1 << 22); // from block to block
        test_empty(kernel);
        test_grid(kernel);
    }
    test_linear();
    test_nested();
    return test_end();
}
