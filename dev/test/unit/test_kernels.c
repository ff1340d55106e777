/*
Tests of the element-wise and row-wise kernels. Each is compared with its formula, written again here in float64; each
backward formula is compared with central differences of the forward one.

Errors are counted in roundings: a result that is a sum of rounded terms may be off by k u S to first order, where u =
2^-24, S is the sum of the absolute values of the terms, and k is the number of roundings that a term passes through.
Each test computes S beside the wanted value and derives k; printed is the largest |got - wanted| / (u S), and k as the
bound.
*/
#include "test.h"
#include "../../../kernels/adamw.h"
#include "../../../kernels/crossentropy.h"
#include "../../../kernels/embedding.h"
#include "../../../kernels/gelu.h"
#include "../../../kernels/layernorm.h"
#include "../../../kernels/global_norm.h"
#include "../../../kernels/async_dp.h"
#include "../../../kernels/residual.h"
#include "../../../kernels/rmsnorm.h"
#include "../../../kernels/rope.h"
#include "../../../kernels/sgd.h"
#include "../../../kernels/swiglu.h"
#include "../../../kernels/caat.h"

#ifdef _OPENMP
#include <omp.h>
#endif

static const double U = 0x1p-24;
enum { EXP_K = 3, SUM_K = 6 }; // roundings of fast_exp (below 1.5 ulp); of the tree that ends a row_sum

// ----------------------------------------------------------------------------------------------------------------
// Memory of a test: arrays are remembered, so that a test can free them all, or compare them all with those of another
// run.

enum { MAX_ARRAYS = 32 };
typedef struct {
    void *data[MAX_ARRAYS], *block[MAX_ARRAYS];
    size_t size[MAX_ARRAYS];
    int count;
} Memory;
static Memory memory;
static int shift = 0; // floats by which arrays are moved against the alignment of malloc

static void* array_new(size_t count, size_t size) {
    if (memory.count == MAX_ARRAYS) die("test_kernels: more than %d arrays", MAX_ARRAYS);
    const int i = memory.count++;
    memory.size[i] = count * size;
    memory.block[i] = checked_calloc(1, count * size + (size_t)shift * sizeof(float), "test array");
    memory.data[i] = (char*)memory.block[i] + (size_t)shift * sizeof(float);
    return memory.data[i];
}
static void release(Memory* m) {
    for (int i = 0; i < m->count; i++) free(m->block[i]);
    m->count = 0;
}
static double* doubles(int64_t n) { return (double*)array_new((size_t)n, sizeof(double)); }

// Uniform in (-size, size), with all bits of the significand in use, so that sums of them are not exact; each array
// gets other numbers, the same in every run.
static float* floats(int64_t n, float size) {
    const uint64_t stream = (uint64_t)memory.count;
    float* x = (float*)array_new((size_t)n, sizeof(float));
    for (int64_t i = 0; i < n; i++) x[i] = size * (0.98765432f * (2 * random_uniform(1, stream, (uint64_t)i) - 1));
    return x;
}
static float* poisoned(int64_t n) {
    float* x = (float*)array_new((size_t)n, sizeof(float));
    for (int64_t i = 0; i < n; i++) x[i] = NAN;
    return x;
}
static float* copied(const float* from, int64_t n) {
    float* x = (float*)array_new((size_t)n, sizeof(float));
    memcpy(x, from, (size_t)n * sizeof(float));
    return x;
}
static int32_t* integers(int n, int first, int end) {
    const uint64_t stream = (uint64_t)memory.count;
    int32_t* x = (int32_t*)array_new((size_t)n, sizeof(int32_t));
    for (int i = 0; i < n; i++) x[i] = first + (int)(random_uniform(1, stream, (uint64_t)i) * (float)(end - first));
    return x;
}

// ----------------------------------------------------------------------------------------------------------------
// Comparison

// What a kernel should have written: value and S of each element.
typedef struct {
    double *value, *size;
    int64_t n;
} Wanted;

static Wanted wanted_new(int64_t n) {
    Wanted w = {doubles(n), doubles(n), n};
    return w;
}
static void want(Wanted* w, int64_t i, double value, double size) {
    w->value[i] = value;
    w->size[i] = size;
}

// max |got - value| / (u size), NaN counting as infinite; at size = 0 the two must be equal.
static double roundings(const float* got, const Wanted* w) {
    double worst = 0;
    for (int64_t i = 0; i < w->n; i++) {
        const double difference = fabs((double)got[i] - w->value[i]);
        const double error = difference == 0 ? 0 : difference / (U * w->size[i]);
        if (!(error <= worst)) worst = error == error ? error : INFINITY;
    }
    return worst;
}
static void check_roundings(const char* what, int N, int C, const float* got, const Wanted* w, double k) {
    char line[128];
    snprintf(line, sizeof line, "%s, %d x %d: roundings", what, N, C);
    check_error(line, roundings(got, w), k);
}
static bool same(const void* a, const void* b, int64_t floats_count) {
    return memcmp(a, b, (size_t)floats_count * sizeof(float)) == 0;
}

// The largest |analytic_i - (f(x + h e_i) - f(x - h e_i)) / 2h| relative to the largest analytic_i. With h = 1e-5 and f
// of order 1: truncation h^2 f''' / 6 ~ 1e-10, cancellation 2^-53 |f| / h ~ 1e-11; with |f| up to 1e3 and a margin:
// 1e-7.
static const double DIFFERENCES_BOUND = 1e-7;
typedef double (*Loss)(const void* context, const double* x);
static void check_differences(const char* what, Loss loss, const void* context, double* x, const double* analytic,
                              int64_t n) {
    const double h = 1e-5;
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < n; i++) {
        const double saved = x[i];
        x[i] = saved + h;
        const double up = loss(context, x);
        x[i] = saved - h;
        const double down = loss(context, x);
        x[i] = saved;
        worst = fmax(worst, fabs((up - down) / (2 * h) - analytic[i]));
        scale = fmax(scale, fabs(analytic[i]));
    }
    check_error(what, worst / scale, DIFFERENCES_BOUND);
}

// ----------------------------------------------------------------------------------------------------------------
// Embedding: plain loops in the promised order give the same bits.

static void test_embedding(int N, int C, int V) {
    const int first = V / 3, slice = V - first - V / 4; // rows [first, first + slice) of the vocabulary, some missing
    float *wte = floats((int64_t)slice * C, 1), *out = poisoned((int64_t)N * C);
    int32_t* tokens = integers(N, 0, V);
    tokens[0] = V - 1;
    tokens[N - 1] = first;
    tokens[N / 2] = first + slice - 1;
    if (N > 4) tokens[1] = first - 1, tokens[2] = first + slice, tokens[3] = -2147483647 - 1;
    embedding_forward(out, tokens, wte, N, C, first, slice);
    bool right = true;
    for (int n = 0; n < N; n++) {
        const bool here = tokens[n] >= first && tokens[n] < first + slice;
        for (int c = 0; c < C; c++) {
            right &= out[(int64_t)n * C + c] == (here ? wte[((int64_t)tokens[n] - first) * C + c] : 0);
        }
    }
    check(right, "embedding_forward, %d x %d, V = %d: rows of this slice, zeros for others", N, C, V);

    float *dout = floats((int64_t)N * C, 1), *dwte = floats((int64_t)slice * C, 1);
    float* plain = copied(dwte, (int64_t)slice * C);
    embedding_backward(dwte, dout, tokens, N, C, first, slice);
    for (int n = 0; n < N; n++) {
        if (tokens[n] < first || tokens[n] >= first + slice) continue;
        for (int c = 0; c < C; c++) plain[(int64_t)(tokens[n] - first) * C + c] += dout[(int64_t)n * C + c];
    }
    check(same(dwte, plain, (int64_t)slice * C), "embedding_backward, %d x %d, V = %d: adds in the order of tokens", N,
          C, V);
    release(&memory);
}

// The B T rows cut over `parts` ranks, cuts in the middle of sequences included; first_row is counted on from `origin`. packed:
// rows are at positions of their own, as if documents began anywhere; origin is 0.
static void test_position(int B, int T, int C, int parts, int64_t origin, bool packed) {
    const int N = B * T;
    const int64_t table = (int64_t)T * C, n = (int64_t)N * C;
    float *x = floats(n, 1), *wpe = floats(table, 1), *dwpe = floats(table, 1), *dout = floats(n, 1);
    float *plain_x = copied(x, n), *plain_d = copied(dwpe, table);
    float *alone = floats(table, 0), *sum = floats(table, 0);
    int32_t* positions = packed ? integers(N, 0, T) : NULL;
    Wanted wanted = wanted_new(table);
    for (int64_t i = 0; i < n; i++) {
        const int64_t w = (packed ? positions[i / C] : (origin + i / C) % T) * C + i % C;
        plain_x[i] += wpe[w];
        plain_d[w] += dout[i];
        want(&wanted, w, wanted.value[w] + dout[i], wanted.size[w] + fabs(dout[i]));
    }
    for (int r = 0; r < parts; r++) {
        const int begin = (int)((int64_t)N * r / parts), end = (int)((int64_t)N * (r + 1) / parts);
        const float* d = dout + (int64_t)begin * C;
        position_forward(x + (int64_t)begin * C, wpe, positions, origin + begin, end - begin, T, C);
        position_backward(dwpe, d, positions, origin + begin, end - begin, T, C); // one after the other, onto one table
        memset(alone, 0, (size_t)table * sizeof(float));
        position_backward(alone, d, positions, origin + begin, end - begin, T, C); // each on its own, then summed
        for (int64_t w = 0; w < table; w++) sum[w] += alone[w];
    }
    char line[96];
    snprintf(line, sizeof line, "%d ranks, rows %lld .. + %d, T = %d, C = %d%s", parts, (long long)origin, N, T, C,
             packed ? ", documents" : "");
    check(same(x, plain_x, n), "position_forward, %s: adds", line);
    check(same(dwpe, plain_d, table), "position_backward, %s: adds in the order of rows", line);
    // A term passes at most B additions on its rank and `parts` in the sum over the ranks.
    check_roundings("position_backward: sum over ranks", T, C, sum, &wanted, (packed ? N : B) + parts);
    release(&memory);
}

// ----------------------------------------------------------------------------------------------------------------
// Normalisation

// The statistics of a row in float64; RMSNorm is the case mean = 0.
typedef struct {
    double mean, rstd, mean_abs;
} Statistics;
typedef struct {
    const double *w, *b, *dout; // b: NULL for RMSNorm
    int C;
    double eps;
} NormContext;

static Statistics statistics(const double* x, int C, bool centered, double eps) {
    Statistics s = {0, 0, 0};
    double squares = 0;
    for (int c = 0; c < C; c++) s.mean += x[c] / C, s.mean_abs += fabs(x[c]) / C;
    if (!centered) s.mean = 0;
    for (int c = 0; c < C; c++) squares += (x[c] - s.mean) * (x[c] - s.mean);
    s.rstd = 1 / sqrt(squares / C + eps);
    return s;
}

// sum_c dout_c out_c of one row: its gradient is what the backward pass returns.
static double norm_loss(const void* context, const double* x) {
    const NormContext* n = (const NormContext*)context;
    const Statistics s = statistics(x, n->C, n->b != NULL, n->eps);
    double loss = 0;
    for (int c = 0; c < n->C; c++) loss += n->dout[c] * ((x[c] - s.mean) * s.rstd * n->w[c] + (n->b ? n->b[c] : 0));
    return loss;
}

// dx of one row, and S: dx is a sum of three terms, of which the two means are sums themselves; where (x - mean)
// enters, its rounding is of the size of x, not of the difference.
static void norm_gradient(double* dx, double* size, const NormContext* n, const double* x) {
    const Statistics s = statistics(x, n->C, n->b != NULL, n->eps);
    const double spread = fabs(s.mean) * s.rstd;
    double g_mean = 0, g_xhat_mean = 0, g_abs = 0, g_xhat_abs = 0;
    for (int c = 0; c < n->C; c++) {
        const double g = n->dout[c] * n->w[c], xhat = (x[c] - s.mean) * s.rstd;
        g_mean += g / n->C;
        g_xhat_mean += g * xhat / n->C;
        g_abs += fabs(g) / n->C;
        g_xhat_abs += fabs(g * xhat) / n->C;
    }
    for (int c = 0; c < n->C; c++) {
        const double g = n->dout[c] * n->w[c], xhat = (x[c] - s.mean) * s.rstd;
        dx[c] = s.rstd * (g - (n->b ? g_mean : 0) - xhat * g_xhat_mean);
        size[c] =
            s.rstd * (fabs(g) + (n->b ? g_abs : 0) + fabs(xhat) * (g_xhat_abs + spread * g_abs) + spread * g_xhat_abs);
    }
}

static double* widened(const float* x, int64_t n) {
    double* wide = doubles(n);
    for (int64_t i = 0; i < n; i++) wide[i] = x[i];
    return wide;
}

// LayerNorm (layer = true) or RMSNorm of N rows around `offset`.
static void test_norm(bool layer, int N, int C, float offset) {
    const char *forward = layer ? "layernorm_forward" : "rmsnorm_forward", *name = layer ? "layernorm" : "rmsnorm";
    const float eps = 1e-5f;
    const int64_t n_all = (int64_t)N * C;
    float *x = floats(n_all, 2), *w = floats(C, 1), *b = floats(C, 1), *dout = floats(n_all, 1);
    for (int64_t i = 0; i < n_all; i++) x[i] += offset;
    for (int c = 0; c < C; c++) x[c] = 0.3f; // a constant row: variance 0
    double *wide_x = widened(x, n_all), *wide_w = widened(w, C), *wide_b = widened(b, C),
           *wide_dout = widened(dout, n_all);

    // Forward. A row sum costs C/64 + 6 roundings and the division one more: the mean is off by that many, of the size
    // of the mean of |x|, and this comes back in each x - mean. rstd: half of the (sum + square 3 + eps 1), and sqrt,
    // 1/: 2. Then difference, two products, sum: 4. For the whole: C/64 + 6 + 8.
    const double k_sum = C / SUM_LANES + SUM_K;
    float *out = poisoned(n_all), *mean = poisoned(N), *rstd = poisoned(N);
    if (layer)
        layernorm_forward(out, mean, rstd, x, w, b, N, C, eps);
    else
        rmsnorm_forward(out, rstd, x, w, N, C, eps);
    Wanted wanted = wanted_new(n_all), wanted_mean = wanted_new(N), wanted_rstd = wanted_new(N);
    for (int n = 0; n < N; n++) {
        const Statistics s = statistics(wide_x + (int64_t)n * C, C, layer, eps);
        const double spread = layer ? s.mean_abs * s.rstd : 0;
        for (int c = 0; c < C; c++) {
            const int64_t i = (int64_t)n * C + c;
            const double xhat = (x[i] - s.mean) * s.rstd;
            want(&wanted, i, xhat * w[c] + (layer ? b[c] : 0),
                 (fabs(xhat) + spread) * fabs(w[c]) + (layer ? fabs(b[c]) : 0));
        }
        want(&wanted_mean, n, s.mean, s.mean_abs);
        // The error d of the mean adds d^2 to the variance: second order, but here x may be constant.
        want(&wanted_rstd, n, s.rstd, s.rstd * (1 + k_sum * k_sum * U * spread * spread));
    }
    check_roundings(forward, N, C, out, &wanted, k_sum + 8);
    if (layer) check_roundings("layernorm_forward: mean", N, C, mean, &wanted_mean, k_sum + 1);
    check_roundings(layer ? "layernorm_forward: rstd" : "rmsnorm_forward: rstd", N, C, rstd, &wanted_rstd,
                    k_sum / 2 + 5);

    // Backward, from exact statistics rounded once, so that its own error is seen. dx: a mean of products of three
    // rounded factors: C/64 + 6 + 6; times xhat, 4; times rstd, 2; differences and the final addition, 3; the roundings
    // of mean and rstd themselves, 3. dw, row after row: N additions, and 5 in the term; db: N.
    for (int n = 0; n < N; n++) {
        const Statistics s = statistics(wide_x + (int64_t)n * C, C, layer, eps);
        mean[n] = (float)s.mean;
        rstd[n] = (float)s.rstd;
    }
    float *dx = floats(n_all, 1), *dw = floats(C, 1), *db = floats(C, 1);
    Wanted wanted_dx = wanted_new(n_all), wanted_dw = wanted_new(C), wanted_db = wanted_new(C);
    for (int c = 0; c < C; c++) {
        want(&wanted_dw, c, dw[c], fabs(dw[c]));
        want(&wanted_db, c, db[c], fabs(db[c]));
    }
    for (int n = 0; n < N; n++) {
        const int64_t at = (int64_t)n * C;
        const NormContext context = {wide_w, layer ? wide_b : NULL, wide_dout + at, C, eps};
        const Statistics s = statistics(wide_x + at, C, layer, eps);
        norm_gradient(wanted_dx.value + at, wanted_dx.size + at, &context, wide_x + at);
        if (n == 1 && C > 1 && C < 100 && offset == 0) {
            char line[96];
            snprintf(line, sizeof line, "%s: gradient formula against differences, C = %d", name, C);
            check_differences(line, norm_loss, &context, wide_x + at, wanted_dx.value + at, C);
        }
        for (int c = 0; c < C; c++) {
            wanted_dx.value[at + c] += dx[at + c];
            wanted_dx.size[at + c] += fabs(dx[at + c]);
            wanted_dw.value[c] += (double)dout[at + c] * (x[at + c] - s.mean) * s.rstd;
            wanted_dw.size[c] += fabs(dout[at + c]) * (fabs(x[at + c] - s.mean) + fabs(s.mean)) * s.rstd;
            wanted_db.value[c] += dout[at + c];
            wanted_db.size[c] += fabs(dout[at + c]);
        }
    }
    if (layer)
        layernorm_backward(dx, dw, db, dout, x, w, mean, rstd, N, C);
    else
        rmsnorm_backward(dx, dw, dout, x, w, rstd, N, C);
    check_roundings(layer ? "layernorm_backward: dx" : "rmsnorm_backward: dx", N, C, dx, &wanted_dx, k_sum + 18);
    check_roundings(layer ? "layernorm_backward: dw" : "rmsnorm_backward: dw", N, C, dw, &wanted_dw, N + 5);
    if (layer) check_roundings("layernorm_backward: db", N, C, db, &wanted_db, N);
    release(&memory);
}

// ----------------------------------------------------------------------------------------------------------------
// RoPE: x cos + rotate_half(x) sin, rotate_half(x) = (-second half, first half). A table entry is rounded once, a
// product and a sum once each: k = 3 of |x cos| + |y sin|.

static void test_rope(int B, int T, int heads, int HS, int stride, double theta) {
    const int N = B * T;
    const int64_t n_all = (int64_t)N * stride;
    float *table = poisoned((int64_t)T * HS), *qkv = floats(n_all, 2), *original = copied(qkv, n_all);
    rope_table(table, T, HS, theta, NULL);
    rope_forward(qkv, table, B, T, heads, HS, stride);
    Wanted forward = wanted_new(n_all), backward = wanted_new(n_all);
    for (int64_t i = 0; i < n_all; i++) {
        const int t = (int)(i / stride % T), h = (int)(i % stride / HS), c = (int)(i % stride % HS);
        const double x = original[i];
        want(&forward, i, x, 0); // what is not rotated is not touched
        want(&backward, i, x, 0);
        if (h >= heads) continue;
        const double a = t * exp(-log(theta) * 2 * (c % (HS / 2)) / HS), sine = c < HS / 2 ? -sin(a) : sin(a);
        const double y = original[c < HS / 2 ? i + HS / 2 : i - HS / 2], size = fabs(x * cos(a)) + fabs(y * sine);
        want(&forward, i, x * cos(a) + y * sine, size);
        want(&backward, i, x * cos(a) - y * sine, size); // the transpose
    }
    check_roundings("rope_forward", N, stride, qkv, &forward, 3);
    float* gradient = copied(original, n_all);
    rope_backward(gradient, table, B, T, heads, HS, stride);
    check_roundings("rope_backward: the transposed rotation", N, stride, gradient, &backward, 3);
    bool moved = false;
    for (int64_t i = stride; T > 1 && i < (int64_t)stride + HS; i++) moved |= qkv[i] != original[i];
    check(moved == (T > 1 && heads > 0), "rope_forward: position 1 is rotated, if there is one");
    release(&memory);
}

// ----------------------------------------------------------------------------------------------------------------
// GELU and SwiGLU. The gate is s(v) = 1 / (1 + e^-v), with v = x for SwiGLU. A rounding of v changes e^-v by |v|
// roundings, and changes of e^-v by one change s by 1 - s and 1 - s by s. With kv roundings in v: s is off by (1 -
// s)(kv |v| + EXP_K) + 2. Below 2^-126 there is less precision; TINY (in units of u) stands for that.

static const double TINY = 0x1p-120 / 0x1p-24;

static double gelu_u(double x) { return 0.79788456080286535588 * (x + 0.044715 * x * x * x); }
static double gate64(double v) { return 1 / (1 + exp(-v)); }
static double gelu64(double x) { return x * gate64(2 * gelu_u(x)); } // (1 + tanh u) / 2 loses its digits for negative u

// Numbers of all sizes and signs: a grid, and extremes.
static float* activations(int64_t n, float size) {
    float* x = floats(n, size);
    const float extremes[] = {0.0f, -0.0f, 1e-30f, -1e-30f, 1e4f, -1e4f, 17, -17, 88, -88, 90, -90, 5.5f, -5.5f};
    for (int64_t i = 0; i < n && i < 14; i++) x[n - 1 - i] = extremes[i];
    return x;
}

static void test_gelu(int64_t n) {
    float *x = activations(n, 12), *dout = floats(n, 1), *out = poisoned(n), *dx = poisoned(n);
    Wanted forward = wanted_new(n), backward = wanted_new(n);
    gelu_forward(out, x, n);
    gelu_backward(dx, dout, x, n);
    double worst_slope = 0, worst_tanh = 0;
    for (int64_t i = 0; i < n; i++) {
        const double y = x[i], v = 2 * gelu_u(y), s = gate64(v), rest = gate64(-v);
        const double dv = 2 * 0.79788456080286535588 * (1 + 3 * 0.044715 * y * y), slope = s + y * dv * s * rest;
        want(&forward, i, gelu64(y), fabs(y) * s * (1 + fabs(v) * rest) + TINY);
        want(&backward, i, dout[i] * slope,
             fabs(dout[i]) * (s * (1 + fabs(v) * rest) + (fabs(y * dv) * (s * rest * (1 + fabs(v)) + TINY)) + TINY));
        const double h = 1e-5, difference = (gelu64(y + h) - gelu64(y - h)) / (2 * h);
        worst_slope = fmax(worst_slope, fabs(difference - slope) / (1 + fabs(y)));
        worst_tanh = fmax(worst_tanh, fabs(y * s - 0.5 * y * (1 + tanh(gelu_u(y)))) / (1 + fabs(y)));
    }
    // v: two products with constants, a square, a sum, a product: 6 with the constants'. out: EXP_K, a sum, a division.
    // Gradient: s and e s^2 take EXP_K, v and 2 each, twice; x dv 6, the products and the sum 3.
    check_roundings("gelu_forward", 1, (int)n, out, &forward, 6 + EXP_K + 2);
    check_roundings("gelu_backward", 1, (int)n, dx, &backward, 2 * (6 + EXP_K + 2) + 9);
    check_error("gelu: x s against x (1 + tanh u) / 2, in float64", worst_tanh, 8 * 0x1p-53);
    check_error("gelu: slope formula against differences", worst_slope, DIFFERENCES_BOUND);
    release(&memory);
}

static void test_swiglu(int N, int F) {
    const int64_t n_all = (int64_t)N * F;
    float *gate_up = activations(2 * n_all, 20), *dout = floats(n_all, 1), *out = poisoned(n_all),
          *d = poisoned(2 * n_all);
    Wanted forward = wanted_new(n_all), backward = wanted_new(2 * n_all);
    swiglu_forward(out, gate_up, N, F);
    swiglu_backward(d, dout, gate_up, N, F);
    double worst = 0;
    for (int n = 0; n < N; n++) {
        for (int f = 0; f < F; f++) {
            const int64_t i = (int64_t)n * F + f, at_g = (int64_t)n * 2 * F + f, at_u = at_g + F;
            const double g = gate_up[at_g], u = gate_up[at_u], o = dout[i], s = gate64(g), rest = gate64(-g);
            const double s_size = s * (1 + fabs(g) * rest), tiny = TINY * (1 + fabs(g)) * (1 + fabs(u));
            want(&forward, i, g * s * u, fabs(g * u) * s_size + tiny);
            want(&backward, at_u, o * g * s, fabs(o * g) * s_size + tiny);
            const double slope = s + g * s * rest;
            want(&backward, at_g, o * u * slope, fabs(o * u) * (s_size + fabs(g) * s * rest * (1 + fabs(g))) + tiny);
            const double h = 1e-5, up = (g + h) * gate64(g + h), down = (g - h) * gate64(g - h);
            worst = fmax(worst, fabs((up - down) / (2 * h) - slope) / (1 + fabs(g)));
        }
    }
    // s: EXP_K + 2; then division or product, product: 2. Gradient of the gate: s twice and e^-v, and 5 more.
    check_roundings("swiglu_forward", N, F, out, &forward, EXP_K + 4);
    check_roundings("swiglu_backward", N, 2 * F, d, &backward, 2 * (EXP_K + 2) + EXP_K + 5);
    check_error("swiglu: slope formula against differences", worst, DIFFERENCES_BOUND);
    release(&memory);
}

// ----------------------------------------------------------------------------------------------------------------
// Residual: two float32 additions, to the bit, in place or not.

static void test_residual(int N, int C) {
    const int64_t n_all = (int64_t)N * C;
    float *x = floats(n_all, 1), *branch = floats(n_all, 1), *bias = floats(C, 1);
    float *plain = poisoned(n_all), *plain_no_bias = poisoned(n_all), *out = poisoned(n_all);
    for (int64_t i = 0; i < n_all; i++) {
        const float sum = branch[i] + bias[i % C];
        plain[i] = x[i] + sum;
        plain_no_bias[i] = x[i] + branch[i];
    }
    residual_forward(out, x, branch, bias, N, C);
    bool right = same(out, plain, n_all);
    residual_forward(out, x, branch, NULL, N, C);
    right &= same(out, plain_no_bias, n_all);
    float *in_place = copied(x, n_all), *in_branch = copied(branch, n_all);
    residual_forward(in_place, in_place, branch, bias, N, C);
    residual_forward(in_branch, x, in_branch, bias, N, C);
    right &= same(in_place, plain, n_all) && same(in_branch, plain, n_all);
    check(right, "residual_forward, %d x %d: with and without bias, out of place and in place", N, C);
    float *more = floats(n_all, 1), *sum = copied(more, n_all);
    accumulate(sum, x, n_all);
    right = true;
    for (int64_t i = 0; i < n_all; i++) right &= sum[i] == more[i] + x[i];
    check(right, "accumulate, %lld numbers", (long long)n_all);
    float *highest = copied(more, n_all), *other = copied(x, n_all);
    highest[0] = -INFINITY, other[n_all - 1] = -INFINITY; // of states without a token
    if (n_all > 2) highest[1] = other[1] = -INFINITY;
    float* largest = copied(highest, n_all);
    accumulate_max(largest, other, n_all);
    right = true;
    for (int64_t i = 0; i < n_all; i++) {
        right &=
            largest[i] >= highest[i] && largest[i] >= other[i] && (largest[i] == highest[i] || largest[i] == other[i]);
    }
    check(right, "accumulate_max, %lld numbers", (long long)n_all);
    release(&memory);
}

// CAAT-Net's sums over states: float32 additions in the order of the states, copies and one product, to the bit, in place or
// not. Memory behind what is written stays.
static void test_sync(int states, int N, int C, int S) {
    const float factor = 1.7f;
    const int64_t n_all = (int64_t)states * N * C, n_shared = (int64_t)N * S;
    float *x = floats(n_all, 1), *shared = poisoned(n_shared + 1), *other = floats(n_shared + 1, 1);
    float *sum = poisoned(n_shared + 1), *plain = poisoned(n_all), *z = poisoned(n_all + 1);
    for (int64_t i = 0; i < n_all; i++) {
        const int64_t state = i / ((int64_t)N * C), n = i / C % N, c = i % C;
        plain[i] = c < S ? other[n * S + c] : factor * x[i];
        if (c < S) sum[n * S + c] = state == 0 ? x[i] : sum[n * S + c] + x[i];
    }
    caat_pack(shared, x, states, N, C, S);
    check(same(shared, sum, n_shared) && isnan(shared[n_shared]),
          "caat_pack, %d states, %d x %d, %d shared: sums in the order of the states", states, N, C, S);
    caat_unpack(z, other, S == C ? NULL : x, factor, states, N, C, S);
    const bool right = same(z, plain, n_all) && isnan(z[n_all]);
    caat_unpack(x, other, x, factor, states, N, C, S);
    check(right && same(x, plain, n_all), "caat_unpack, %d states, %d x %d, %d shared: out of place and in place",
          states, N, C, S);
    release(&memory);
}

// With a norm behind it: the same bits as one after the other.
static void test_residual_norm(bool layer, int N, int C, bool has_bias) {
    const int64_t n_all = (int64_t)N * C;
    float *x = floats(n_all, 1), *branch = floats(n_all, 1), *w = floats(C, 1), *b = floats(C, 1);
    float *bias = has_bias ? floats(C, 1) : NULL, *sum = poisoned(n_all), *plain_sum = poisoned(n_all);
    float *out = poisoned(n_all), *plain = poisoned(n_all), *mean = poisoned(N), *plain_mean = poisoned(N);
    float *rstd = poisoned(N), *plain_rstd = poisoned(N);
    residual_forward(plain_sum, x, branch, bias, N, C);
    if (layer) {
        layernorm_forward(plain, plain_mean, plain_rstd, plain_sum, w, b, N, C, 1e-5f);
        residual_layernorm_forward(sum, out, mean, rstd, x, branch, bias, w, b, N, C, 1e-5f);
        residual_layernorm_forward(x, poisoned(n_all), mean, rstd, x, branch, bias, w, b, N, C, 1e-5f);
    } else {
        rmsnorm_forward(plain, plain_rstd, plain_sum, w, N, C, 1e-5f);
        residual_rmsnorm_forward(sum, out, rstd, x, branch, bias, w, N, C, 1e-5f);
        residual_rmsnorm_forward(x, poisoned(n_all), rstd, x, branch, bias, w, N, C, 1e-5f);
    }
    check(same(sum, plain_sum, n_all) && same(x, plain_sum, n_all) && same(out, plain, n_all) &&
              same(rstd, plain_rstd, N) && (!layer || same(mean, plain_mean, N)),
          "residual_%s_forward, %d x %d%s: the bits of both, in place too", layer ? "layernorm" : "rmsnorm", N, C,
          has_bias ? ", bias" : "");
    release(&memory);
}

// ----------------------------------------------------------------------------------------------------------------
// Cross-entropy

typedef struct {
    int V, target;
} LossContext;

static double crossentropy64(const void* context, const double* x) {
    const LossContext* l = (const LossContext*)context;
    double max = -INFINITY, sum = 0;
    for (int v = 0; v < l->V; v++) max = fmax(max, x[v]);
    for (int v = 0; v < l->V; v++) sum += exp(x[v] - max);
    return log(sum) + max - x[l->target];
}

// One rank's share of a cross-entropy: its slice of the logits, and what it passes to the others.
typedef struct {
    float *logits, *row_max, *row_sum, *target_logit;
    int first, V_local, stride;
} Slice;

static Slice slice_new(const float* logits, int N, int V, int first, int end, int padding) {
    const int V_local = end - first, stride = V_local + padding;
    Slice s = {poisoned((int64_t)N * stride), poisoned(N), poisoned(N), poisoned(N), first, V_local, stride};
    for (int n = 0; n < N; n++) {
        memcpy(s.logits + (int64_t)n * stride, logits + (int64_t)n * V + first, (size_t)V_local * sizeof(float));
    }
    return s;
}

// The vocabulary in `count` slices, combined as ranks would; gradients are left in each slice's logits.
static void vocab_parallel_cross_entropy(Slice* s, int count, float* losses, const int32_t* targets, float scale, int N) {
    for (int i = 0; i < count; i++) crossentropy_max(s[i].row_max, s[i].logits, N, s[i].V_local, s[i].stride);
    for (int i = 1; i < count; i++) {
        for (int n = 0; n < N; n++) s[0].row_max[n] = fmaxf(s[0].row_max[n], s[i].row_max[n]);
    }
    for (int i = 0; i < count; i++) {
        crossentropy_sum(s[i].row_sum, s[i].target_logit, s[i].logits, s[0].row_max, targets, N, s[i].V_local,
                         s[i].stride, s[i].first);
    }
    for (int i = 1; i < count; i++) {
        for (int n = 0; n < N; n++) {
            s[0].row_sum[n] += s[i].row_sum[n];
            s[0].target_logit[n] += s[i].target_logit[n];
        }
    }
    crossentropy_loss(losses, s[0].row_sum, s[0].target_logit, N);
    for (int i = 0; i < count; i++) {
        crossentropy_backward(s[i].logits, s[0].row_max, s[0].row_sum, targets, scale, N, s[i].V_local, s[i].stride,
                              s[i].first);
    }
}

// k: a block of 2048 is 2048/64 terms a lane and the tree, 38; e^(x - max): EXP_K, and the rounding of x - max itself,
// which counts |x - max|-fold (in S); blocks and slices 3, the logarithm 1. In the gradient scale / sum, product and
// difference: 3 more.
static void test_crossentropy(int N, int V, int count, float size) {
    const double k_sum = 2048 / SUM_LANES + SUM_K + EXP_K + 4, k_gradient = k_sum + EXP_K + 4;
    const float scale = 0.37f;
    const int padding = count == 3 ? 0 : 5;
    float *logits = floats((int64_t)N * V, size), *losses = poisoned(N);
    int32_t* targets = integers(N, 0, V);
    targets[0] = V - 1;
    targets[N - 1] = 0;
    if (N > 2) targets[2] = -1;
    Slice s[3];
    const int cut[4] = {0, count == 1 ? V : V / 4, count == 2 ? V : V / 4 + V / 2, V};
    if (count > 1 && N > 1) targets[1] = cut[1]; // the first token of a slice
    for (int i = 0; i < count; i++) s[i] = slice_new(logits, N, V, cut[i], cut[i + 1], padding);
    if (count == 1) {
        Slice one = slice_new(logits, N, V, 0, V, padding);
        float* one_losses = poisoned(N);
        crossentropy_fused(one_losses, one.logits, targets, scale, N, V, one.stride);
        vocab_parallel_cross_entropy(s, count, losses, targets, scale, N);
        check(same(one_losses, losses, N) && same(one.logits, s[0].logits, (int64_t)N * one.stride),
              "crossentropy_fused, %d x %d: the bits of the four functions", N, V);
    } else {
        vocab_parallel_cross_entropy(s, count, losses, targets, scale, N);
    }

    Wanted wanted_loss = wanted_new(N), wanted_gradient = wanted_new((int64_t)N * V);
    float* gradient = poisoned((int64_t)N * V);
    double* x = doubles(V);
    bool zeros = true, maxima = true;
    for (int n = 0; n < N; n++) {
        for (int i = 0; i < count; i++) {
            const float* row = s[i].logits + (int64_t)n * s[i].stride;
            memcpy(gradient + (int64_t)n * V + s[i].first, row, (size_t)s[i].V_local * sizeof(float));
            for (int v = 0; v < padding; v++) zeros &= row[s[i].V_local + v] == 0;
        }
        for (int v = 0; v < V; v++) {
            x[v] = logits[(int64_t)n * V + v];
            want(&wanted_gradient, (int64_t)n * V + v, 0, 0);
        }
        want(&wanted_loss, n, 0, 0);
        if (targets[n] < 0) continue;
        const LossContext context = {V, targets[n]};
        double max = -INFINITY, sum = 0, distance = 0;
        for (int v = 0; v < V; v++) max = fmax(max, x[v]);
        for (int v = 0; v < V; v++) sum += exp(x[v] - max), distance += exp(x[v] - max) * (max - x[v]);
        maxima &= s[0].row_max[n] == (float)max;
        distance /= sum; // the mean of |x - max|: by how much the roundings of x - max move the sum
        want(&wanted_loss, n, crossentropy64(&context, x), 1 + distance + log(sum) + (max - x[targets[n]]));
        double* value = wanted_gradient.value + (int64_t)n * V;
        for (int v = 0; v < V; v++) {
            const double p = exp(x[v] - max) / sum, hit = v == targets[n];
            want(&wanted_gradient, (int64_t)n * V + v, scale * (p - hit),
                 scale * (p * (1 + (max - x[v]) + distance) + hit) + TINY);
        }
        if (n == 1 && V > 1 && V < 300 && size < 100) {
            for (int v = 0; v < V; v++) value[v] /= scale;
            check_differences("cross-entropy: gradient formula against differences", crossentropy64, &context, x, value,
                              V);
            for (int v = 0; v < V; v++) value[v] *= scale;
        }
    }
    char line[96];
    snprintf(line, sizeof line, "crossentropy loss, %d slices, logits to %g", count, (double)size);
    check_roundings(line, N, V, losses, &wanted_loss, k_sum);
    snprintf(line, sizeof line, "crossentropy gradient, %d slices, logits to %g", count, (double)size);
    check_roundings(line, N, V, gradient, &wanted_gradient, k_gradient);
    check(zeros && maxima, "crossentropy: row_max is the largest logit; padding is 0 in the gradient");
    release(&memory);
}

// Rows whose result is known.
static void test_crossentropy_special(void) {
    enum { N = 7, V = 130 };
    float *logits = floats((int64_t)N * V, 0), *losses = poisoned(N);
    int32_t* targets = integers(N, 0, 1);
    logits[0 * V + 0] = 1e4f, logits[0 * V + 1] = -1e4f;                   // certain and right
    logits[1 * V + 0] = -1e4f, logits[1 * V + 1] = 1e4f;                   // certain and wrong
    logits[3 * V + 100] = NAN;                                             // must not stay hidden
    for (int v = 0; v < V; v++) logits[4 * V + v] = v < 2 ? 0 : -INFINITY; // masked logits
    logits[5 * V + 7] = NAN;
    targets[5] = -1;
    for (int v = 0; v < V; v++) logits[6 * V + v] = -2e4f; // far below zero
    Slice s = slice_new(logits, N, V, 0, V, 0);
    vocab_parallel_cross_entropy(&s, 1, losses, targets, 1, N);
    check(losses[0] == 0, "crossentropy: logit 1e4 over 0 at the target: loss %g", losses[0]);
    check(losses[1] == 2e4f && s.logits[V] == -1 && s.logits[V + 1] == 1, "crossentropy: 2e4 off the target: loss %g",
          losses[1]);
    check_error("crossentropy: equal logits: loss - log V", fabs(losses[2] - log(1.0 * V)), 4 * U * log(1.0 * V));
    check_error("crossentropy: equal logits of -2e4: loss - log V", fabs(losses[6] - log(1.0 * V)),
                4 * U * log(1.0 * V));
    check(isnan(losses[3]), "crossentropy: a NaN logit gives a NaN loss");
    check_error("crossentropy: masked logits: loss - log 2", fabs(losses[4] - log(2)), 4 * U);
    check(s.logits[4 * V] == -0.5f && s.logits[4 * V + 1] == 0.5f && s.logits[4 * V + 2] == 0,
          "crossentropy: masked gradient");
    bool zeros = losses[5] == 0;
    for (int v = 0; v < V; v++) zeros &= s.logits[5 * V + v] == 0;
    check(zeros, "crossentropy: target -1: loss and gradient 0 whatever the logits");
    Slice fused = slice_new(logits, N, V, 0, V, 0);
    float* fused_losses = poisoned(N);
    crossentropy_fused(fused_losses, fused.logits, targets, 1, N, V, V);
    check(same(fused_losses, losses, N) && same(fused.logits, s.logits, N * V),
          "crossentropy_fused: the same bits in all of these rows");
    release(&memory);
}

static void test_losses_add(int N) {
    float* losses = floats(N, 8);
    double sum = 3.25, plain = sum;
    for (int n = 0; n < N; n++) plain += losses[n];
    losses_add(&sum, losses, N);
    check(sum == plain, "losses_add, %d losses: one after the other, in float64", N);
    release(&memory);
}

// ----------------------------------------------------------------------------------------------------------------
// AdamW: ten steps beside PyTorch's formula in float64. S grows step by step: m and v as sums of absolute terms with 3
// and 4 roundings a step (at most `steps` times); p with 2 roundings of |p| and, of the step, m's and half of v's, and
// 6 more.

static void test_adamw(int64_t n, float weight_decay, float grad_scale, int64_t first_step) {
    enum { STEPS = 10 };
    const float lr = 1e-2f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    float *p = floats(n, 1), *m = floats(n, 0), *v = floats(n, 0), *g = floats(n, 0);
    double *m_abs = doubles(n), *m64 = doubles(n);
    Wanted wp = wanted_new(n), wm = wanted_new(n), wv = wanted_new(n);
    for (int64_t i = 0; i < n; i++) want(&wp, i, p[i], 0);
    for (int64_t step = first_step; step < first_step + STEPS; step++) {
        for (int64_t i = 0; i < n; i++) {
            g[i] = 2 * random_uniform(2, (uint64_t)step, (uint64_t)i) - 1;
            if (i % 5 == 3) g[i] *= 1e-6f;
            if (i % 7 == 6) g[i] = 0; // never a gradient: only decay
        }
        const double c1 = 1 - pow(beta1, (double)step), c2 = 1 - pow(beta2, (double)step);
        for (int64_t i = 0; i < n; i++) {
            const double gi = (double)grad_scale * g[i];
            m64[i] = beta1 * m64[i] + (1 - (double)beta1) * gi;
            m_abs[i] = beta1 * m_abs[i] + (1 - (double)beta1) * fabs(gi);
            const double vi = beta2 * wv.value[i] + (1 - (double)beta2) * gi * gi, denominator = sqrt(vi / c2) + eps;
            const double decayed = wp.value[i] * (1 - (double)lr * weight_decay),
                         move = lr * (m64[i] / c1) / denominator;
            want(&wm, i, m64[i], m_abs[i]);
            want(&wv, i, vi, vi + TINY);
            want(&wp, i, decayed - move,
                 wp.size[i] + (2 * fabs(decayed) + (5 * STEPS + 6) * lr * m_abs[i] / c1 / denominator));
        }
        adamw_update(p, NULL, g, m, v, n, lr, beta1, beta2, eps, weight_decay, step, grad_scale, 0, 0);
    }
    check_roundings("adamw_update: p after ten steps", 1, (int)n, p, &wp, 1);
    check_roundings("adamw_update: m", 1, (int)n, m, &wm, 3 * STEPS);
    check_roundings("adamw_update: v", 1, (int)n, v, &wv, 4 * STEPS);
    release(&memory);
}

// ----------------------------------------------------------------------------------------------------------------
// Norm

static void test_sum_of_squares(int64_t n) {
    float* g = floats(n, 1);
    long double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (long double)g[i] * g[i];
    // A term passes 2^14 / 16 + 16 additions in its block and then one for each block after it.
    const double k = (1 << 14) / 16 + 16 + (double)n / (1 << 14);
    char line[96];
    snprintf(line, sizeof line, "sum_of_squares, n = %lld: roundings of float64", (long long)n);
    double got = 0;
    sum_of_squares(&got, g, n);
    const double error = (double)fabsl(got - sum) / 0x1p-53;
    check_error(line, n > 0 ? error / (double)sum : error, k);
    for (int64_t i = 0; i < n; i++) g[i] = (float)(i % 7) * 0x1p40f; // whole numbers: the sum is exact in any order
    int64_t whole = 0;
    for (int64_t i = 0; i < n; i++) whole += (i % 7) * (i % 7);
    got = 3 * 0x1p80;
    sum_of_squares(&got, g, n);
    check(got == (double)(whole + 3) * 0x1p80, "sum_of_squares, n = %lld: every element once, added", (long long)n);
    release(&memory);
}

// ----------------------------------------------------------------------------------------------------------------
// SGD, and the kernels of replicas that do not wait. Here S is the error itself in units of u, to first order, carried from step
// to step; so k is 1.

static void test_sgd(int64_t n, float weight_decay, float grad_scale) {
    enum { STEPS = 10 };
    const float lr = 1e-2f, momentum = 0.9f;
    float *p = floats(n, 1), *m = floats(n, 0), *g = floats(n, 0);
    Wanted wp = wanted_new(n), wm = wanted_new(n);
    for (int64_t i = 0; i < n; i++) want(&wp, i, p[i], 0);
    for (int64_t step = 1; step <= STEPS; step++) {
        for (int64_t i = 0; i < n; i++) {
            g[i] = i % 7 == 6 ? 0 : 2 * random_uniform(2, (uint64_t)step, (uint64_t)i) - 1;
            const double kept = (double)momentum * wm.value[i], own = (double)grad_scale * g[i];
            const double decay = (double)weight_decay * wp.value[i], mi = kept + (own + decay),
                         pi = wp.value[i] - lr * mi;
            const double m_error = momentum * wm.size[i] + weight_decay * wp.size[i] + fabs(kept) + fabs(own) +
                                   fabs(decay) + fabs(own + decay) + fabs(mi);
            want(&wm, i, mi, m_error);
            want(&wp, i, pi, wp.size[i] + lr * (m_error + fabs(mi)) + fabs(pi));
        }
        sgd_update(p, NULL, g, m, n, lr, momentum, weight_decay, step, grad_scale, 0, 0);
    }
    check_roundings("sgd_update: p after ten steps", 1, (int)n, p, &wp, 1);
    check_roundings("sgd_update: m", 1, (int)n, m, &wm, 1);
    release(&memory);
}

static void test_sums(int n) {
    float *a = floats(n, 1), *b = floats(n, 1), *out = poisoned(n), *own = copied(a, n);
    Wanted w = wanted_new(n);
    for (int i = 0; i < n; i++) want(&w, i, (double)a[i] - b[i], fabs((double)a[i] - b[i]));
    difference(out, a, b, n);
    check_roundings("difference", 1, n, out, &w, 1);
    float *left = copied(a, n), *right = copied(b, n);
    difference(left, left, b, n);
    difference(right, a, right, n);
    check(same(left, out, n) && same(right, out, n), "difference, 1 x %d: in place", n);

    for (int i = 0; i < n; i++) {
        const double x = (double)0.37f * b[i];
        want(&w, i, a[i] + x, fabs(x) + fabs(a[i] + x));
    }
    add_scaled(own, b, 0.37f, n);
    check_roundings("add_scaled", 1, n, own, &w, 1);
    for (int i = 0; i < n; i++) want(&w, i, (double)0.37f * a[i], fabs((double)0.37f * a[i]));
    memcpy(own, a, (size_t)n * sizeof *own);
    scale_by(own, 0.37f, n);
    check_roundings("scale_by", 1, n, own, &w, 1);

    for (int i = 0; i < n; i++) {
        const double x = (double)0.3f * a[i], y = (1 - (double)0.3f) * b[i];
        want(&w, i, x + y, fabs(x) + 2 * fabs(y) + fabs(x + y));
    }
    memcpy(own, a, (size_t)n * sizeof *own);
    mix(own, b, 0.3f, n);
    check_roundings("mix", 1, n, own, &w, 1);
    for (int i = 0; i < n; i++) own[i] = i % 2 ? NAN : INFINITY, b[i] = i % 3 ? b[i] : -0.0f;
    mix(own, b, 0, n);
    check(same(own, b, n), "mix, 1 x %d: with share 0 a copy, bit for bit", n);
    release(&memory);
}

static void test_delay(int n) {
    const float lambda = 0.7f;
    float *g = floats(n, 1), *to = floats(n, 1), *from = floats(n, 1);
    Wanted w = wanted_new(n);
    long double sum = 0;
    for (int i = 0; i < n; i++) {
        const double d = (double)g[i] * g[i] * ((double)to[i] - from[i]), term = lambda * d;
        sum += (long double)d * d;
        want(&w, i, g[i] + term, 4 * fabs(term) + fabs(g[i] + term));
    }
    // In float64: a term has up to 5 roundings, and additions as in sum_of_squares.
    double got = 0;
    char line[96];
    snprintf(line, sizeof line, "delay_squares, n = %d: roundings of float64", n);
    delay_squares(&got, g, to, from, n);
    const double error = (double)fabsl(got - sum) / 0x1p-53;
    check_error(line, n > 0 ? error / (double)sum : error, 5 + (1 << 14) / 16 + 16 + (double)n / (1 << 14));
    delay_compensate(g, to, from, lambda, n);
    check_roundings("delay_compensate", 1, n, g, &w, 1);
    int64_t whole = 3;
    for (int i = 0; i < n; i++) { // whole numbers: the sum is exact in any order
        g[i] = (float)(i % 7), to[i] = (float)(i % 5), from[i] = (float)(i % 11);
        const int64_t d = (int64_t)(i % 7) * (i % 7) * (i % 5 - i % 11);
        whole += d * d;
    }
    got = 3;
    delay_squares(&got, g, to, from, n);
    check(got == (double)whole, "delay_squares, n = %d: every element once, added", n);
    release(&memory);
}

// Wanted of an outer step with a sum of `sum`, which is off by `error` u.
static void want_outer(Wanted* base, Wanted* velocity, int64_t i, double sum, double error, float factor, float lr,
                       float momentum) {
    const double D = factor * sum, D_error = fabs(factor * error) + fabs(D), kept = momentum * velocity->value[i];
    const double v = kept + D, v_error = momentum * velocity->size[i] + fabs(kept) + D_error + fabs(v);
    const double ahead = momentum * v, step = D + ahead, b = base->value[i] - lr * step;
    const double step_error = D_error + momentum * v_error + fabs(ahead) + 2 * fabs(step);
    want(velocity, i, v, v_error);
    want(base, i, b, base->size[i] + lr * step_error + fabs(b));
}

static void test_outer(int n) {
    enum { STEPS = 5 };
    const float factor = 1.0f / 3, lr = 0.7f, momentum = 0.9f;
    float *base = floats(n, 1), *velocity = floats(n, 0), *sum = floats(n, 0);
    Wanted wb = wanted_new(n), wv = wanted_new(n);
    for (int i = 0; i < n; i++) want(&wb, i, base[i], 0);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < n; i++) {
            sum[i] = 2 * random_uniform(3, (uint64_t)step, (uint64_t)i) - 1;
            want_outer(&wb, &wv, i, sum[i], 0, factor, lr, momentum);
        }
        outer_update(base, velocity, sum, factor, lr, momentum, n);
    }
    check_roundings("outer_update: base after five steps", 1, n, base, &wb, 1);
    check_roundings("outer_update: velocity", 1, n, velocity, &wv, 1);

    float *old = floats(n, 1), *fresh = floats(n, 1);
    for (int i = 0; i < n; i++) {
        const double rest = (double)sum[i] - old[i], all = rest + fresh[i];
        want(&wb, i, base[i], 0);
        want(&wv, i, velocity[i], 0);
        want_outer(&wb, &wv, i, all, fabs(rest) + fabs(all), factor, lr, momentum);
    }
    float *base_of = copied(base, n), *velocity_of = copied(velocity, n);
    eager_update(base, velocity, sum, old, fresh, factor, lr, momentum, n);
    check_roundings("eager_update: base", 1, n, base, &wb, 1);
    check_roundings("eager_update: velocity", 1, n, velocity, &wv, 1);

    float *alone = copied(base_of, n), *alone_velocity = copied(velocity_of, n);
    outer_update(base_of, velocity_of, fresh, 1, lr, momentum, n);
    eager_update(alone, alone_velocity, old, old, fresh, 1, lr, momentum, n);
    check(same(base_of, alone, n) && same(velocity_of, alone_velocity, n),
          "eager_update, 1 x %d: alone, the bits of outer_update", n);
    release(&memory);
}

static int largest_of(int bits) { return bits == 8 ? 127 : 7; }
static float packed_scale(const uint8_t* packed, int i, int bits) {
    float scale;
    memcpy(&scale, packed + i / QUANT_BLOCK * quant_bytes(1, bits), sizeof scale);
    return scale;
}
static int packed_number(const uint8_t* packed, int i, int bits) {
    const uint8_t* q = packed + i / QUANT_BLOCK * quant_bytes(1, bits) + sizeof(float);
    const int j = i % QUANT_BLOCK, x = bits == 8 ? q[j] : j % 2 ? q[j / 2] >> 4 : q[j / 2] & 15;
    return x < 1 << (bits - 1) ? x : x - (1 << bits);
}

// Numbers of several sizes, and a block of zeros: the second.
static void quantize_input(float* x, int n, int round) {
    for (int i = 0; i < n; i++) {
        const int block = i / QUANT_BLOCK;
        const float size = block == 1 ? 0 : powf(10, (float)(-(block % 7)));
        x[i] = size * (2 * random_uniform(4, (uint64_t)round, (uint64_t)i) - 1);
    }
}

static void test_quantize(int n, int bits) {
    enum { ROUNDS = 20, CANARY = 8 };
    const int largest = largest_of(bits), blocks = (n + QUANT_BLOCK - 1) / QUANT_BLOCK;
    const int64_t bytes = quant_bytes(n, bits);
    uint8_t* packed = (uint8_t*)array_new((size_t)bytes + CANARY, 1);
    float *value = floats(n, 0), *residue = floats(n, 0), *x = floats(n, 0), *out = floats(n, 1),
          *sent = copied(out, n);
    double *inputs = doubles(n), *outputs = doubles(n), *error = doubles(n);
    double worst_residue = 0, worst_sum = 0;
    bool scales = true, numbers = true, values = true, exact = true, added = true, tail = true, canary = true;
    for (int round = 0; round < ROUNDS; round++) {
        quantize_input(value, n, round);
        for (int i = 0; i < n; i++) inputs[i] += value[i], x[i] = value[i] + residue[i], error[i] += U * fabs(x[i]);
        memset(packed, 0xA5, (size_t)bytes + CANARY);
        quantize(packed, residue, value, n, bits);
        for (int b = 0; b < blocks; b++) {
            const int begin = b * QUANT_BLOCK, end = (int)min_i64(n, begin + QUANT_BLOCK);
            const float scale = packed_scale(packed, begin, bits);
            float top = 0;
            for (int i = begin; i < end; i++) top = fmaxf(top, fabsf(x[i]));
            scales &= scale == top / (float)largest;
            for (int i = begin; i < end; i++) {
                const int q = packed_number(packed, i, bits);
                numbers &= q == (scale > 0 ? (int)nearbyint((double)(x[i] / scale)) : 0);
                values &= value[i] == (float)((double)q * scale);
                exact &= (double)value[i] + residue[i] == x[i];
                if (scale > 0) worst_residue = fmax(worst_residue, fabs((double)residue[i]) / scale);
                outputs[i] += value[i];
            }
            for (int i = end; i < begin + QUANT_BLOCK; i++) tail &= packed_number(packed, i, bits) == 0;
        }
        for (int i = 0; i < CANARY; i++) canary &= packed[bytes + i] == 0xA5;
        for (int i = 0; i < n; i++) sent[i] += value[i];
        dequantize_add(out, packed, n, bits);
        added &= same(out, sent, n);
    }
    for (int i = 0; i < n; i++) {
        const double off = fabs(outputs[i] + residue[i] - inputs[i]);
        worst_sum = fmax(worst_sum, off == 0 ? 0 : off / error[i]);
    }
    char line[96];
    check(bytes == blocks * (4 + 8 * (int64_t)bits) && bytes % 4 == 0, "quantize, %d bits, n = %d: %lld bytes", bits, n,
          (long long)bytes);
    check(scales && numbers, "quantize, %d bits, n = %d: scales, and the nearest numbers", bits, n);
    check(values && exact, "quantize, %d bits, n = %d: value is what was sent, and residue the rest, exactly", bits, n);
    check(tail && canary, "quantize, %d bits, n = %d: zeros to the end of the block, nothing behind it", bits, n);
    check(added, "dequantize_add, %d bits, n = %d: adds what quantize says, bit for bit", bits, n);
    // x / scale is rounded before it is rounded to q, and q scale after that: each u of at most 127.
    snprintf(line, sizeof line, "quantize, %d bits, n = %d: residue / scale, less 1/2", bits, n);
    check_error(line, worst_residue - 0.5, 2 * U * largest);
    snprintf(line, sizeof line, "quantize, %d bits, n = %d: all inputs less all sent and the residue", bits, n);
    check_error(line, worst_sum, 1);
    release(&memory);
}

static void test_quantize_special(int bits) {
    enum { BLOCKS = 9, N = BLOCKS * QUANT_BLOCK };
    const int largest = largest_of(bits);
    const float top = (float)largest, ties[] = {0.5f, -0.5f, 1.5f, -1.5f, 2.5f, -2.5f, 0.49f, 0.51f};
    const int nearest[] = {0, 0, 2, -2, 2, -2, 0, 1};
    float *value = floats(N, 1), *residue = floats(N, 0), *out = floats(N, 0);
    uint8_t* packed = (uint8_t*)array_new((size_t)quant_bytes(N, bits), 1);
    for (int i = 0; i < QUANT_BLOCK; i++) {
        value[i] = i < 8 ? ties[i] : i == 8 ? top - 0.5f : i == 9 ? -top : 0;
        value[QUANT_BLOCK + i] = 0;
        value[6 * QUANT_BLOCK + i] = 0x1p-149f * (float)(i % 3); // too small for a scale
    }
    const int units = largest + largest / 2; // of 2^-149: the scale is one such unit, and q is cut
    value[8 * QUANT_BLOCK] = 0x1p-149f * (float)units;
    for (int i = 1; i < QUANT_BLOCK; i++) value[8 * QUANT_BLOCK + i] = 0;
    value[2 * QUANT_BLOCK + 5] = NAN;
    value[3 * QUANT_BLOCK + 63] = -INFINITY;
    value[4 * QUANT_BLOCK] = residue[4 * QUANT_BLOCK] = 3e38f; // their sum is infinite
    value[5 * QUANT_BLOCK + 1] = 3e38f;
    quantize(packed, residue, value, N, bits);
    dequantize_add(out, packed, N, bits);
    bool tied = packed_scale(packed, 0, bits) == 1, zero = packed_scale(packed, QUANT_BLOCK, bits) == 0, nan = true;
    bool tiny = true, rest = true;
    for (int i = 0; i < 8; i++) tied &= packed_number(packed, i, bits) == nearest[i];
    tied &= packed_number(packed, 8, bits) == (largest - 1) && packed_number(packed, 9, bits) == -largest;
    for (int i = 0; i < QUANT_BLOCK; i++) {
        zero &= packed_number(packed, QUANT_BLOCK + i, bits) == 0 && value[QUANT_BLOCK + i] == 0;
        for (int b = 2; b < 5; b++) {
            const int at = b * QUANT_BLOCK + i;
            nan &= value[at] != value[at] && out[at] != out[at] && packed_number(packed, at, bits) == 0;
        }
        tiny &= value[6 * QUANT_BLOCK + i] == 0 && residue[6 * QUANT_BLOCK + i] == 0x1p-149f * (float)(i % 3);
        rest &= fabsf(out[5 * QUANT_BLOCK + i]) <= 3.1e38f && fabsf(out[7 * QUANT_BLOCK + i]) <= 1.01f;
    }
    check(tied, "quantize, %d bits: ties to even, and both ends", bits);
    check(zero, "quantize, %d bits: a block of zeros has scale 0", bits);
    check(nan, "quantize, %d bits: a block with a NaN, an infinity or a sum too large becomes NaN", bits);
    check(tiny, "quantize, %d bits: what is too small for a scale stays in the residue", bits);
    check(packed_number(packed, 8 * QUANT_BLOCK, bits) == largest &&
              residue[8 * QUANT_BLOCK] == 0x1p-149f * (float)(units - largest),
          "quantize, %d bits: where the scale is too small, q is cut", bits);
    check(rest, "quantize, %d bits: other blocks are not touched by that", bits);
    release(&memory);
}

// ----------------------------------------------------------------------------------------------------------------
// Bits. Each kernel runs with 1 to 4 threads, with arrays moved against their alignment, and with its rows (or
// elements) in two calls: all memory has to come out the same.

enum { BITS_B = 3, BITS_T = 67, BITS_N = BITS_B * BITS_T, BITS_C = 333 };

// Runs a kernel on units [begin, end) of its arrays: rows, or sequences, or elements.
typedef struct {
    float* a[6];
    int32_t* tokens;
} Arrays;
typedef void (*Kernel)(const Arrays* m, int begin, int end);
enum { BITS_ROW = BITS_C, BITS_SEQUENCE = BITS_T * BITS_C, BITS_ELEMENTS = 2 * BITS_N * BITS_C };

static void bits_embedding_forward(const Arrays* m, int begin, int end) {
    embedding_forward(m->a[0] + begin * BITS_ROW, m->tokens + begin, m->a[1], end - begin, BITS_C, 0, BITS_C);
}
static void bits_embedding_backward(const Arrays* m, int begin, int end) {
    embedding_backward(m->a[1], m->a[0] + begin * BITS_ROW, m->tokens + begin, end - begin, BITS_C, 0, BITS_C);
}
static void bits_position_forward(const Arrays* m, int begin, int end) {
    position_forward(m->a[0] + begin * BITS_ROW, m->a[1], NULL, begin, end - begin, BITS_T, BITS_C);
}
static void bits_position_backward(const Arrays* m, int begin, int end) {
    position_backward(m->a[1], m->a[0] + begin * BITS_ROW, NULL, begin, end - begin, BITS_T, BITS_C);
}
static void bits_layernorm(const Arrays* m, int begin, int end) {
    const int at = begin * BITS_ROW;
    float *mean = m->a[4] + begin, *rstd = m->a[5] + begin, *dw = m->a[4] + BITS_N, *db = m->a[5] + BITS_N;
    layernorm_forward(m->a[1] + at, mean, rstd, m->a[0] + at, m->a[2], m->a[3], end - begin, BITS_C, 1e-5f);
    layernorm_backward(m->a[2] + BITS_C + at, dw, db, m->a[1] + at, m->a[0] + at, m->a[3], mean, rstd, end - begin,
                       BITS_C);
}
static void bits_rmsnorm(const Arrays* m, int begin, int end) {
    const int at = begin * BITS_ROW;
    float *rstd = m->a[5] + begin, *dw = m->a[4];
    rmsnorm_forward(m->a[1] + at, rstd, m->a[0] + at, m->a[3], end - begin, BITS_C, 1e-5f);
    rmsnorm_backward(m->a[2] + at, dw, m->a[1] + at, m->a[0] + at, m->a[3], rstd, end - begin, BITS_C);
}
static void bits_rope(const Arrays* m, int begin, int end) {
    enum { HS = 22, HEADS = 13 };
    rope_table(m->a[1], BITS_T, HS, 1e4, NULL);
    rope_forward(m->a[0] + begin * BITS_SEQUENCE, m->a[1], end - begin, BITS_T, HEADS, HS, BITS_C);
    rope_backward(m->a[2] + begin * BITS_SEQUENCE, m->a[1], end - begin, BITS_T, HEADS, HS, BITS_C);
}
static void bits_gelu(const Arrays* m, int begin, int end) {
    gelu_forward(m->a[1] + begin, m->a[0] + begin, end - begin);
    gelu_backward(m->a[2] + begin, m->a[1] + begin, m->a[0] + begin, end - begin);
}
static void bits_swiglu(const Arrays* m, int begin, int end) {
    const int at = begin * BITS_ROW;
    swiglu_forward(m->a[1] + at, m->a[0] + 2 * at, end - begin, BITS_C);
    swiglu_backward(m->a[2] + 2 * at, m->a[1] + at, m->a[0] + 2 * at, end - begin, BITS_C);
}
static void bits_residual(const Arrays* m, int begin, int end) {
    const int at = begin * BITS_ROW;
    residual_forward(m->a[2] + at, m->a[0] + at, m->a[1] + at, m->a[3], end - begin, BITS_C);
    residual_forward(m->a[1] + at, m->a[1] + at, m->a[0] + at, NULL, end - begin, BITS_C);
}
static void bits_crossentropy(const Arrays* m, int begin, int end) {
    const int N = end - begin;
    const int32_t* targets = m->tokens + begin;
    float *logits = m->a[0] + 2 * begin * BITS_ROW, *row_max = m->a[1] + begin, *row_sum = m->a[2] + begin;
    float *target = m->a[3] + begin, *losses = m->a[4] + begin;
    crossentropy_max(row_max, logits, N, 2 * BITS_C, 2 * BITS_C);
    crossentropy_sum(row_sum, target, logits, row_max, targets, N, 2 * BITS_C, 2 * BITS_C, 0);
    crossentropy_loss(losses, row_sum, target, N);
    crossentropy_backward(logits, row_max, row_sum, targets, 0.1f, N, 2 * BITS_C, 2 * BITS_C, 0);
}
static void bits_crossentropy_fused(const Arrays* m, int begin, int end) {
    crossentropy_fused(m->a[4] + begin, m->a[0] + 2 * begin * BITS_ROW, m->tokens + begin, 0.1f, end - begin,
                       2 * BITS_C, 2 * BITS_C);
}
static void bits_accumulate(const Arrays* m, int begin, int end) {
    accumulate(m->a[0] + begin, m->a[1] + begin, end - begin);
}
static void bits_accumulate_max(const Arrays* m, int begin, int end) {
    accumulate_max(m->a[0] + begin, m->a[1] + begin, end - begin);
}
enum { BITS_SHARED = 101 };
static void bits_sync(const Arrays* m, int begin, int end) { // one state, whose rows can be cut
    const int at = begin * BITS_ROW, n = end - begin;
    float* shared = m->a[2] + begin * BITS_SHARED;
    caat_pack(shared, m->a[0] + at, 1, n, BITS_C, BITS_SHARED);
    caat_unpack(m->a[1] + at, shared, m->a[0] + at, 1.7f, 1, n, BITS_C, BITS_SHARED);
    caat_unpack(m->a[0] + at, m->a[4] + begin * BITS_SHARED, m->a[0] + at, 1.7f, 1, n, BITS_C, BITS_SHARED);
}
static void bits_sync_states(const Arrays* m, int begin, int end) { // one unit: three states of all rows
    enum { STATES = 3, N = BITS_ELEMENTS / BITS_C / STATES };
    if (begin == end) return;
    caat_pack(m->a[2], m->a[0], STATES, N, BITS_C, BITS_SHARED);
    caat_unpack(m->a[0], m->a[2], m->a[0], 1.7f, STATES, N, BITS_C, BITS_SHARED);
}
static void bits_adamw(const Arrays* m, int begin, int end) {
    adamw_update(m->a[0] + begin, NULL, m->a[1] + begin, m->a[2] + begin, m->a[3] + begin, end - begin, 1e-2f, 0.9f,
                 0.95f, 1e-8f, 0.1f, 3, 0.7f, 0, (uint64_t)begin);
}
static void bits_sum_of_squares(const Arrays* m, int begin, int end) { // one unit: the whole
    double sum = 0;
    sum_of_squares(&sum, m->a[0], BITS_ELEMENTS);
    if (begin < end) memcpy(m->a[1], &sum, sizeof sum);
}
static void bits_sgd(const Arrays* m, int begin, int end) {
    sgd_update(m->a[0] + begin, NULL, m->a[1] + begin, m->a[2] + begin, end - begin, 1e-2f, 0.9f, 0.1f, 3, 0.7f, 0,
               (uint64_t)begin);
}
static void bits_replicas(const Arrays* m, int begin, int end) {
    float *a = m->a[0] + begin, *b = m->a[1] + begin, *c = m->a[2] + begin, *d = m->a[3] + begin, *e = m->a[4] + begin;
    const int n = end - begin;
    difference(m->a[5] + begin, a, b, n);
    add_scaled(a, b, 0.37f, n);
    scale_by(b, 1.1f, n);
    mix(c, d, 0.3f, n);
    delay_compensate(d, a, b, 0.7f, n);
    outer_update(a, b, c, 0.5f, 0.7f, 0.9f, n);
    eager_update(a, b, c, d, e, 0.5f, 0.7f, 0.9f, n);
}
static void bits_delay_squares(const Arrays* m, int begin, int end) { // one unit: the whole
    double sum = 0;
    delay_squares(&sum, m->a[0], m->a[1], m->a[2], BITS_ELEMENTS);
    if (begin < end) memcpy(m->a[3], &sum, sizeof sum);
}
enum { BITS_BLOCKS = (BITS_ELEMENTS + QUANT_BLOCK - 1) / QUANT_BLOCK };
static void bits_quantize(const Arrays* m, int begin, int end) { // blocks, the last of which is not full
    const int at = begin * QUANT_BLOCK, n = (int)min_i64(BITS_ELEMENTS, (int64_t)end * QUANT_BLOCK) - at;
    for (int bits = 4; bits <= 8; bits += 4) {
        uint8_t* packed = (uint8_t*)m->a[bits / 4] + quant_bytes(at, bits);
        quantize(packed, m->a[3] + at, m->a[4] + at, n, bits);
        dequantize_add(m->a[5] + at, packed, n, bits);
    }
}

// All memory after a run.
static Memory bits_run(Kernel kernel, int units, int threads, int moved, int cut) {
    memory.count = 0;
    shift = moved;
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
    Arrays m;
    for (int i = 0; i < 6; i++) m.a[i] = floats(BITS_ELEMENTS, 3);
    for (int i = 0; i < BITS_ELEMENTS; i++) m.a[3][i] = fabsf(m.a[3][i]); // AdamW's mean of squares
    m.tokens = integers(BITS_N, 0, BITS_C);
    if (cut > 0) kernel(&m, 0, cut);
    if (cut < units) kernel(&m, cut, units);
    shift = 0;
    const Memory result = memory;
    memory.count = 0;
    return result;
}

static bool bits_same(Kernel kernel, int units, int threads, int moved, int cut, const Memory* expected) {
    Memory m = bits_run(kernel, units, threads, moved, cut);
    bool equal = m.count == expected->count;
    for (int i = 0; equal && i < m.count; i++) equal = memcmp(m.data[i], expected->data[i], m.size[i]) == 0;
    release(&m);
    return equal;
}

static void test_bits(const char* name, Kernel kernel, int units) {
    Memory expected = bits_run(kernel, units, 1, 0, units);
    bool threads = true, alignment = true, cuts = true;
    for (int t = 2; t <= 4; t++) threads &= bits_same(kernel, units, t, 0, units, &expected);
    for (int moved = 1; moved < 8; moved += 3) alignment &= bits_same(kernel, units, 1, moved, units, &expected);
    for (int i = 1; i < 4; i++) cuts &= bits_same(kernel, units, i, i, (int)((int64_t)units * i / 4), &expected);
    release(&expected);
    check(threads, "%s: same bits with 1 to 4 threads", name);
    check(alignment, "%s: same bits at any alignment", name);
    check(cuts, "%s: same bits in two parts", name);
}

int main(void) {
    const int sizes[4] = {1, 13, 65, 768};
    for (int i = 0; i < 4; i++) {
        const int C = sizes[i];
        test_embedding(7, C, 257);
        for (int parts = 1; parts <= 3; parts++) {
            test_position(3, 5, C, parts, 0, false);
            test_position(3, 5, C, parts, 0, true);
        }
        for (int layer = 0; layer < 2; layer++) {
            test_norm(layer, 7, C, 0);
            test_norm(layer, 131, C, 0);
            test_norm(layer, 7, C, 1000);
            test_residual_norm(layer, 7, C, i % 2 == 0);
        }
        test_residual(7, C);
        for (int states = 1; states <= 4; states++) {
            test_sync(states, 7, C, 0);
            test_sync(states, 7, C, C / 2);
            test_sync(states, 7, C, C - 1);
            test_sync(states, 7, C, C);
        }
        test_gelu(1001 * (i + 1));
        test_swiglu(7, C);
    }
    test_embedding(1, 65, 1);
    test_embedding(301, 333, 11);
    test_position(5, 7, 10, 3, 2, false);            // every cut inside a sequence
    test_position(1, 67, 10, 5, 0, false);           // less than a sequence on each rank
    test_position(3, 1, 10, 2, 0, false);            // sequences of one token
    test_position(2, 2, 10, 7, 1, false);            // ranks without a row
    test_position(4, 6, 10, 2, 5000000003LL, false); // rows beyond 32 bits
    test_sync(3, 1, 65, 31);
    test_sync(3, 301, 333, 101);
    test_rope(1, 1, 1, 2, 2, 1e4);
    test_rope(2, 7, 3, 10, 41, 1e4);
    test_rope(3, 129, 5, 64, 5 * 64, 5e5);
    test_rope(1, 2, 0, 4, 4, 1e4);
    const int vocabularies[4] = {1, 3, 257, 50257};
    for (int i = 0; i < 4; i++) {
        for (int count = 1; count <= 3; count++) {
            test_crossentropy(7, vocabularies[i], count, 4);
            test_crossentropy(4, vocabularies[i], count, 1e4f);
        }
    }
    test_crossentropy_special();
    test_losses_add(0);
    test_losses_add(1003);
    test_adamw(1003, 0.1f, 1, 1);
    test_adamw(17, 0, 0.25f, 1);
    test_adamw(1, 0.1f, 1, 1000000);
    const int64_t counts[5] = {0, 1, 33, (1 << 14) + 5, (1 << 24) + 12345};
    for (int i = 0; i < 5; i++) test_sum_of_squares(counts[i]);
    test_sgd(1003, 0.1f, 1);
    test_sgd(17, 0, 0.25f);
    const int lengths[6] = {0, 1, 63, 64, 65, 1000003};
    for (int i = 0; i < 6; i++) {
        test_sums(lengths[i]);
        test_delay(lengths[i]);
        test_outer(lengths[i]);
        test_quantize(lengths[i], 8);
        test_quantize(lengths[i], 4);
    }
    test_quantize_special(8);
    test_quantize_special(4);

    test_bits("embedding_forward", bits_embedding_forward, BITS_N);
    test_bits("embedding_backward", bits_embedding_backward, BITS_N);
    test_bits("position_forward", bits_position_forward, BITS_N);
    test_bits("position_backward", bits_position_backward, BITS_N);
    test_bits("layernorm", bits_layernorm, BITS_N);
    test_bits("rmsnorm", bits_rmsnorm, BITS_N);
    test_bits("rope", bits_rope, BITS_B);
    test_bits("gelu", bits_gelu, BITS_ELEMENTS);
    test_bits("swiglu", bits_swiglu, BITS_N);
    test_bits("residual", bits_residual, BITS_N);
    test_bits("crossentropy", bits_crossentropy, BITS_N);
    test_bits("crossentropy_fused", bits_crossentropy_fused, BITS_N);
    test_bits("accumulate", bits_accumulate, BITS_ELEMENTS);
    test_bits("accumulate_max", bits_accumulate_max, BITS_ELEMENTS);
    test_bits("sync", bits_sync, BITS_N);
    test_bits("sync, three states", bits_sync_states, 1);
    test_bits("adamw", bits_adamw, BITS_ELEMENTS);
    test_bits("sum_of_squares", bits_sum_of_squares, 1);
    test_bits("sgd", bits_sgd, BITS_ELEMENTS);
    test_bits("replicas", bits_replicas, BITS_ELEMENTS);
    test_bits("delay_squares", bits_delay_squares, 1);
    test_bits("quantize", bits_quantize, BITS_BLOCKS);
    return test_end();
}
