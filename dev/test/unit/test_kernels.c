/*
Tests of the values of the element-wise and row-wise kernels. Each is compared with its formula, written again here in
float64; each backward formula is compared with central differences of the forward one. In float32, and in bf16
(build/bf16/test_kernels).
*/
#include "kernels_fixture.h"
#include "../../../kernels/caat.h"
#include "../../../kernels/crossentropy.h"
#include "../../../kernels/embedding.h"
#include "../../../kernels/gelu.h"
#include "../../../kernels/norms.h"
#include "../../../kernels/residual.h"
#include "../../../kernels/rope.h"
#include "../../../kernels/swiglu.h"

// ----------------------------------------------------------------------------------------------------------------
// Conversions. Every number of bf16 comes back; in float32, a number beside it goes to the nearer neighbour, and one
// in the middle to the even one, which is infinity above the largest. NaN is NaN, whatever its bits.

static void test_floatx(void) {
    int wrong = 0;
    if (sizeof(floatX) == sizeof(float)) return;
    for (uint32_t low = 0; low < 0x7f80; low++) {
        const float x = float_of_bits(low << 16), y = float_of_bits((low + 1) << 16);
        const float middle = float_of_bits(low << 16 | 0x8000), even = low % 2 ? y : x;
        wrong += to_float(to_floatX(x)) != x || to_float(to_floatX(-x)) != -x;
        wrong += to_float(to_floatX(middle)) != even || to_float(to_floatX(-middle)) != -even;
        wrong += to_float(to_floatX(float_of_bits(low << 16 | 0x7fff))) != x;
        wrong += to_float(to_floatX(float_of_bits(low << 16 | 0x8001))) != y;
    }
    for (uint32_t bit = 1; bit < 0x800000; bit *= 2)
        wrong += !isnan(to_float(to_floatX(float_of_bits(0x7f800000 | bit))));
    check(wrong == 0, "to_floatX: to the nearest number of bf16, of two the even one: %d are wrong", wrong);
}

// ---- Embedding: plain loops in the promised order give the same bits. -------------------------------------------

static void test_embedding(int N, int C, int V) {
    const int first = V / 3, slice = V - first - V / 4; // rows [first, first + slice) of the vocabulary, some missing
    floatX *wte = values((int64_t)slice * C, 1), *out = poisoned_values((int64_t)N * C);
    int32_t* tokens = integers(N, 0, V);
    tokens[0] = V - 1;
    tokens[N - 1] = first;
    tokens[N / 2] = first + slice - 1;
    if (N > 4) {
        tokens[1] = first - 1;
        tokens[2] = first + slice;
        tokens[3] = -2147483647 - 1;
    }
    embedding_forward(out, tokens, wte, N, C, first, slice);
    bool right = true;
    for (int n = 0; n < N; n++) {
        const bool here = tokens[n] >= first && tokens[n] < first + slice;
        for (int c = 0; c < C; c++) {
            const float wanted = here ? to_float(wte[((int64_t)tokens[n] - first) * C + c]) : 0;
            right &= to_float(out[(int64_t)n * C + c]) == wanted;
        }
    }
    check(right, "embedding_forward, %d x %d, V = %d: rows of this slice, zeros for others", N, C, V);

    const floatX* dout = values((int64_t)N * C, 1);
    float* dwte = floats((int64_t)slice * C, 1);
    float* plain = copied(dwte, (int64_t)slice * C);
    embedding_backward(dwte, dout, tokens, N, C, first, slice);
    for (int n = 0; n < N; n++) {
        if (tokens[n] < first || tokens[n] >= first + slice) continue;
        for (int c = 0; c < C; c++) plain[(int64_t)(tokens[n] - first) * C + c] += to_float(dout[(int64_t)n * C + c]);
    }
    check(same(dwte, plain, (int64_t)slice * C), "embedding_backward, %d x %d, V = %d: adds in the order of tokens", N,
          C, V);
    release(&memory);
}

// The B T rows cut over `parts` ranks, cuts in the middle of sequences included; first_row is counted on from `origin`.
static void test_position(int B, int T, int C, int parts, int64_t origin) {
    const int N = B * T;
    const int64_t table = (int64_t)T * C, n = (int64_t)N * C;
    floatX *x = values(n, 1), *wpe = values(table, 1), *dout = values(n, 1), *plain_x = copied_values(x, n);
    float *dwpe = floats(table, 1), *plain_d = copied(dwpe, table);
    float *alone = floats(table, 0), *sum = floats(table, 0);
    Wanted wanted = wanted_new(table);
    for (int64_t i = 0; i < n; i++) {
        const int64_t w = (origin + i / C) % T * C + i % C;
        const float d = to_float(dout[i]);
        plain_x[i] = to_floatX(to_float(plain_x[i]) + to_float(wpe[w]));
        plain_d[w] += d;
        want(&wanted, w, wanted.value[w] + d, wanted.size[w] + fabs(d));
    }
    for (int r = 0; r < parts; r++) {
        const int begin = (int)((int64_t)N * r / parts), end = (int)((int64_t)N * (r + 1) / parts);
        const floatX* d = dout + (int64_t)begin * C;
        position_forward(x + (int64_t)begin * C, wpe, origin + begin, end - begin, T, C);
        position_backward(dwpe, d, origin + begin, end - begin, T, C); // one after the other, onto one table
        memset(alone, 0, (size_t)table * sizeof(float));
        position_backward(alone, d, origin + begin, end - begin, T, C); // each on its own, then summed
        for (int64_t w = 0; w < table; w++) sum[w] += alone[w];
    }
    char line[96];
    snprintf(line, sizeof line, "%d ranks, rows %lld .. + %d, T = %d, C = %d", parts, (long long)origin, N, T, C);
    check(same_values(x, plain_x, n), "position_forward, %s: adds", line);
    check(same(dwpe, plain_d, table), "position_backward, %s: adds in the order of rows", line);
    // A term passes at most B additions on its rank and `parts` in the sum over the ranks.
    check_roundings("position_backward: sum over ranks", T, C, sum, &wanted, B + parts);
    release(&memory);
}

// ---- Normalisation ----------------------------------------------------------------------------------------------

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
    for (int c = 0; c < C; c++) {
        s.mean += x[c] / C;
        s.mean_abs += fabs(x[c]) / C;
    }
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

static void want_more(Wanted* wanted, int64_t i, double term, double size) {
    wanted->value[i] += term;
    wanted->size[i] += size;
}

// wanted (C) += the sum of the rows of x (N, C).
static void add_rows(Wanted* wanted, const floatX* x, int N, int C) {
    for (int64_t i = 0; i < (int64_t)N * C; i++) want_more(wanted, i % C, to_float(x[i]), fabs(to_float(x[i])));
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

static const float NORM_EPS = 1e-5f;

// What the forward pass gives for x (N, C) with weights w and, for LayerNorm, b. k_sum: roundings of a row's sum.
static void want_norm(Wanted* out, Wanted* mean, Wanted* rstd, const double* x, const double* w, const double* b, int N,
                      int C, double k_sum) {
    for (int n = 0; n < N; n++) {
        const Statistics s = statistics(x + (int64_t)n * C, C, b != NULL, NORM_EPS);
        const double spread = b ? s.mean_abs * s.rstd : 0;
        for (int c = 0; c < C; c++) {
            const int64_t i = (int64_t)n * C + c;
            const double xhat = (x[i] - s.mean) * s.rstd;
            want(out, i, xhat * w[c] + (b ? b[c] : 0), (fabs(xhat) + spread) * fabs(w[c]) + (b ? fabs(b[c]) : 0));
        }
        want(mean, n, s.mean, s.mean_abs);
        // The error d of the mean adds d^2 to the variance: second order, but here x may be constant.
        want(rstd, n, s.rstd, s.rstd * (1 + k_sum * k_sum * U * spread * spread));
    }
}

static const char* const sum_name[2] = {"norm backward: sum of dx before", "norm backward: sum of dx after"};

// LayerNorm (layer = true) or RMSNorm of N rows around `offset`.
static void test_norm(bool layer, int N, int C, float offset) {
    const char *forward = layer ? "layernorm_forward" : "rmsnorm_forward", *name = layer ? "layernorm" : "rmsnorm";
    const int64_t n_all = (int64_t)N * C;
    floatX *x = values(n_all, 2), *w = values(C, 1), *b = values(C, 1), *dout = values(n_all, 1);
    for (int64_t i = 0; i < n_all; i++) x[i] = to_floatX(to_float(x[i]) + offset);
    for (int c = 0; c < C; c++) x[c] = to_floatX(0.3f); // a constant row: variance 0
    double *wide_x = widened(x, n_all), *wide_w = widened(w, C);
    double *wide_b = widened(b, C), *wide_dout = widened(dout, n_all);

    // Forward. A row sum costs C/64 + 6 roundings and the division one more: the mean is off by that many, of the size
    // of the mean of |x|, and this comes back in each x - mean. rstd: half of the (sum + square 3 + eps 1), and sqrt,
    // 1/: 2. Then difference, two products, sum: 4. For the whole: C/64 + 6 + 8.
    const double k_sum = C / SUM_LANES + SUM_K;
    floatX* out = poisoned_values(n_all);
    float *mean = poisoned(N), *rstd = poisoned(N);
    const Norm norm = {x, out, layer ? mean : NULL, rstd, w, layer ? b : NULL};
    norms[!layer].forward(&norm, N, C, NORM_EPS);
    Wanted wanted = wanted_new(n_all), wanted_mean = wanted_new(N), wanted_rstd = wanted_new(N);
    want_norm(&wanted, &wanted_mean, &wanted_rstd, wide_x, wide_w, layer ? wide_b : NULL, N, C, k_sum);
    check_values(forward, N, C, out, &wanted, k_sum + 8);
    if (layer) check_roundings("layernorm_forward: mean", N, C, mean, &wanted_mean, k_sum + 1);
    check_roundings(layer ? "layernorm_forward: rstd" : "rmsnorm_forward: rstd", N, C, rstd, &wanted_rstd,
                    k_sum / 2 + 5);

    // Backward, from exact statistics rounded once, so that its own error is seen. dx: a mean of products of three
    // rounded factors: C/64 + 6 + 6; times xhat, 4; times rstd, 2; differences and the final addition, 3; the roundings
    // of mean and rstd themselves, 3. dw, row after row: N additions, and 5 in the term; db: N.
    for (int n = 0; n < N; n++) {
        const Statistics s = statistics(wide_x + (int64_t)n * C, C, layer, NORM_EPS);
        mean[n] = (float)s.mean;
        rstd[n] = (float)s.rstd;
    }
    floatX* dx = values(n_all, 1);
    float *dw = floats(C, 1), *db = floats(C, 1), *sum[2] = {floats(C, 1), floats(C, 1)}; // dx's, before and after
    Wanted wanted_dx = wanted_new(n_all), wanted_dw = wanted_new(C), wanted_db = wanted_new(C),
           wanted_sum[2] = {wanted_new(C), wanted_new(C)};
    const NormGradients gradients = {dw, layer ? db : NULL, C % 2 ? NULL : sum[0], C % 2 ? NULL : sum[1]};
    for (int c = 0; c < C; c++) {
        want(&wanted_dw, c, dw[c], fabs(dw[c]));
        want(&wanted_db, c, db[c], fabs(db[c]));
        for (int i = 0; i < 2; i++) want(&wanted_sum[i], c, sum[i][c], fabs(sum[i][c]));
    }
    for (int n = 0; n < N; n++) {
        const int64_t at = (int64_t)n * C;
        const NormContext context = {wide_w, layer ? wide_b : NULL, wide_dout + at, C, NORM_EPS};
        const Statistics s = statistics(wide_x + at, C, layer, NORM_EPS);
        norm_gradient(wanted_dx.value + at, wanted_dx.size + at, &context, wide_x + at);
        if (n == 1 && C > 1 && C < 100 && offset == 0) {
            char line[96];
            snprintf(line, sizeof line, "%s: gradient formula against differences, C = %d", name, C);
            check_differences(line, norm_loss, &context, wide_x + at, wanted_dx.value + at, C);
        }
        for (int c = 0; c < C; c++) {
            const double d = wide_dout[at + c], deviation = wide_x[at + c] - s.mean;
            want_more(&wanted_dx, at + c, to_float(dx[at + c]), fabs(to_float(dx[at + c])));
            want_more(&wanted_dw, c, d * deviation * s.rstd, fabs(d) * (fabs(deviation) + fabs(s.mean)) * s.rstd);
            want_more(&wanted_db, c, d, fabs(d));
        }
    }
    add_rows(&wanted_sum[0], dx, N, C);
    norms[!layer].backward(&norm, dx, gradients, dout, N, C);
    add_rows(&wanted_sum[1], dx, N, C);
    check_values(layer ? "layernorm_backward: dx" : "rmsnorm_backward: dx", N, C, dx, &wanted_dx, k_sum + 18);
    check_roundings(layer ? "layernorm_backward: dw" : "rmsnorm_backward: dw", N, C, dw, &wanted_dw, N + 5);
    if (layer) check_roundings("layernorm_backward: db", N, C, db, &wanted_db, N);
    for (int i = 0; i < 2 && C % 2 == 0; i++) check_roundings(sum_name[i], N, C, sum[i], &wanted_sum[i], N);
    release(&memory);
}

// ----------------------------------------------------------------------------------------------------------------
// RoPE: x cos + rotate_half(x) sin, rotate_half(x) = (-second half, first half). A table entry is rounded once, a
// product and a sum once each: k = 3 of |x cos| + |y sin|.

static void test_rope(int B, int T, int heads, int HS, int stride, double theta) {
    const int N = B * T;
    const int64_t n_all = (int64_t)N * stride;
    float* table = poisoned((int64_t)T * HS);
    floatX *qkv = values(n_all, 2), *original = copied_values(qkv, n_all);
    rope_table(table, T, HS, theta, NULL);
    rope_forward(qkv, table, B, T, heads, HS, stride);
    Wanted forward = wanted_new(n_all), backward = wanted_new(n_all);
    for (int64_t i = 0; i < n_all; i++) {
        const int t = (int)(i / stride % T), h = (int)(i % stride / HS), c = (int)(i % stride % HS);
        const double x = to_float(original[i]);
        want(&forward, i, x, 0); // what is not rotated is not touched
        want(&backward, i, x, 0);
        if (h >= heads) continue;
        const double a = t * exp(-log(theta) * 2 * (c % (HS / 2)) / HS), sine = c < HS / 2 ? -sin(a) : sin(a);
        const double y = to_float(original[c < HS / 2 ? i + HS / 2 : i - HS / 2]);
        const double size = fabs(x * cos(a)) + fabs(y * sine);
        want(&forward, i, x * cos(a) + y * sine, size);
        want(&backward, i, x * cos(a) - y * sine, size); // the transpose
    }
    check_values("rope_forward", N, stride, qkv, &forward, 3);
    floatX* gradient = copied_values(original, n_all);
    rope_backward(gradient, table, B, T, heads, HS, stride);
    check_values("rope_backward: the transposed rotation", N, stride, gradient, &backward, 3);
    bool moved = false;
    for (int64_t i = stride; T > 1 && i < (int64_t)stride + HS; i++) moved |= !same_values(qkv + i, original + i, 1);
    check(moved == (T > 1 && heads > 0), "rope_forward: position 1 is rotated, if there is one");
    release(&memory);
}

// ----------------------------------------------------------------------------------------------------------------
// GELU and SwiGLU. The gate is s(v) = 1 / (1 + e^-v), with v = x for SwiGLU. A rounding of v changes e^-v by |v|
// roundings, and changes of e^-v by one change s by 1 - s and 1 - s by s. With kv roundings in v: s is off by (1 -
// s)(kv |v| + EXP_K) + 2. Below 2^-126 there is less precision; TINY (in units of u) stands for that.

static double gelu_u(double x) { return 0.79788456080286535588 * (x + 0.044715 * x * x * x); }
static double gate64(double v) { return 1 / (1 + exp(-v)); }
static double gelu64(double x) { return x * gate64(2 * gelu_u(x)); } // (1 + tanh u) / 2 loses its digits for negative u

// Numbers of all sizes and signs: a grid, and extremes.
static floatX* activations(int64_t n, float size) {
    floatX* x = values(n, size);
    const float extremes[] = {0.0f, -0.0f, 1e-30f, -1e-30f, 1e4f, -1e4f, 17, -17, 88, -88, 90, -90, 5.5f, -5.5f};
    for (int64_t i = 0; i < n && i < 14; i++) x[n - 1 - i] = to_floatX(extremes[i]);
    return x;
}

static void test_gelu(int64_t n) {
    floatX *x = activations(n, 12), *dout = values(n, 1), *out = poisoned_values(n), *dx = poisoned_values(n);
    Wanted forward = wanted_new(n), backward = wanted_new(n);
    gelu_forward(out, x, 1, (int)n);
    gelu_backward(dx, dout, x, 1, (int)n);
    double worst_slope = 0, worst_tanh = 0;
    for (int64_t i = 0; i < n; i++) {
        const double y = to_float(x[i]), d = to_float(dout[i]), v = 2 * gelu_u(y), s = gate64(v), rest = gate64(-v);
        const double dv = 2 * 0.79788456080286535588 * (1 + 3 * 0.044715 * y * y), slope = s + y * dv * s * rest;
        want(&forward, i, gelu64(y), fabs(y) * s * (1 + fabs(v) * rest) + TINY);
        want(&backward, i, d * slope,
             fabs(d) * (s * (1 + fabs(v) * rest) + (fabs(y * dv) * (s * rest * (1 + fabs(v)) + TINY)) + TINY));
        const double h = 1e-5, difference = (gelu64(y + h) - gelu64(y - h)) / (2 * h);
        worst_slope = fmax(worst_slope, fabs(difference - slope) / (1 + fabs(y)));
        worst_tanh = fmax(worst_tanh, fabs(y * s - 0.5 * y * (1 + tanh(gelu_u(y)))) / (1 + fabs(y)));
    }
    // v: two products with constants, a square, a sum, a product: 6 with the constants'. out: EXP_K, a sum, a division.
    // Gradient: s and e s^2 take EXP_K, v and 2 each, twice; x dv 6, the products and the sum 3.
    check_values("gelu_forward", 1, (int)n, out, &forward, 6 + EXP_K + 2);
    check_values("gelu_backward", 1, (int)n, dx, &backward, 2 * (6 + EXP_K + 2) + 9);
    check_error("gelu: x s against x (1 + tanh u) / 2, in float64", worst_tanh, 8 * 0x1p-53);
    check_error("gelu: slope formula against differences", worst_slope, DIFFERENCES_BOUND);
    release(&memory);
}

static void test_swiglu(int N, int F) {
    const int64_t n_all = (int64_t)N * F;
    floatX *gate_up = activations(2 * n_all, 20), *dout = values(n_all, 1), *out = poisoned_values(n_all),
           *d = poisoned_values(2 * n_all);
    Wanted forward = wanted_new(n_all), backward = wanted_new(2 * n_all);
    swiglu_forward(out, gate_up, N, F);
    swiglu_backward(d, dout, gate_up, N, F);
    double worst = 0;
    for (int n = 0; n < N; n++) {
        for (int f = 0; f < F; f++) {
            const int64_t i = (int64_t)n * F + f, at_g = (int64_t)n * 2 * F + f, at_u = at_g + F;
            const double g = to_float(gate_up[at_g]), u = to_float(gate_up[at_u]), o = to_float(dout[i]);
            const double s = gate64(g), rest = gate64(-g);
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
    check_values("swiglu_forward", N, F, out, &forward, EXP_K + 4);
    check_values("swiglu_backward", N, 2 * F, d, &backward, 2 * (EXP_K + 2) + EXP_K + 5);
    check_error("swiglu: slope formula against differences", worst, DIFFERENCES_BOUND);
    release(&memory);
}

// ---- Residual: two float32 additions, rounded once, to the bit, in place or not. --------------------------------

static void test_residual(int N, int C) {
    const int64_t n_all = (int64_t)N * C;
    floatX *x = values(n_all, 1), *branch = values(n_all, 1), *bias = values(C, 1);
    floatX *plain = poisoned_values(n_all), *plain_no_bias = poisoned_values(n_all), *out = poisoned_values(n_all);
    for (int64_t i = 0; i < n_all; i++) {
        const float sum = to_float(branch[i]) + to_float(bias[i % C]);
        plain[i] = to_floatX(to_float(x[i]) + sum);
        plain_no_bias[i] = to_floatX(to_float(x[i]) + to_float(branch[i]));
    }
    residual_forward(out, x, branch, bias, N, C);
    bool right = same_values(out, plain, n_all);
    residual_forward(out, x, branch, NULL, N, C);
    right &= same_values(out, plain_no_bias, n_all);
    floatX *in_place = copied_values(x, n_all), *in_branch = copied_values(branch, n_all);
    residual_forward(in_place, in_place, branch, bias, N, C);
    residual_forward(in_branch, x, in_branch, bias, N, C);
    right &= same_values(in_place, plain, n_all) && same_values(in_branch, plain, n_all);
    check(right, "residual_forward, %d x %d: with and without bias, out of place and in place", N, C);
    release(&memory);
}

static void test_accumulate(int N, int C) {
    const int64_t n_all = (int64_t)N * C;
    float *x = floats(n_all, 1), *more = floats(n_all, 1), *sum = copied(more, n_all);
    accumulate(sum, x, n_all);
    bool right = true;
    for (int64_t i = 0; i < n_all; i++) right &= sum[i] == more[i] + x[i];
    check(right, "accumulate, %lld numbers", (long long)n_all);
    float *highest = copied(more, n_all), *other = copied(x, n_all);
    highest[0] = -INFINITY; // of states without a token
    other[n_all - 1] = -INFINITY;
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

// CAAT-Net's sums over states: float32 additions in the order of the states, rounded once; copies and one product, to
// the bit, in place or not; and the same with shared numbers in float32. Memory behind what is written stays.
static void test_sync(int states, int N, int C, int S) {
    const float factor = 1.7f;
    const int64_t n_all = (int64_t)states * N * C, n_shared = (int64_t)N * S;
    floatX *x = values(n_all, 1), *shared = poisoned_values(n_shared + 1), *other = values(n_shared + 1, 1);
    floatX *rounded = poisoned_values(n_shared + 1), *plain = poisoned_values(n_all), *z = poisoned_values(n_all + 1);
    float *sum = poisoned(n_shared + 1), *floats_shared = poisoned(n_shared + 1), *floats_other = floats(n_shared, 0);
    for (int64_t i = 0; i < n_all; i++) {
        const int64_t state = i / ((int64_t)N * C), n = i / C % N, c = i % C;
        plain[i] = c < S ? other[n * S + c] : to_floatX(factor * to_float(x[i]));
        if (c < S) sum[n * S + c] = state == 0 ? to_float(x[i]) : sum[n * S + c] + to_float(x[i]);
    }
    for (int64_t i = 0; i < n_shared; i++) {
        rounded[i] = to_floatX(sum[i]);
        floats_other[i] = to_float(other[i]);
    }
    caat_pack(shared, x, states, N, C, S);
    caat_pack_floats(floats_shared, x, states, N, C, S);
    check(same_values(shared, rounded, n_shared) && isnan(to_float(shared[n_shared])) &&
              same(floats_shared, sum, n_shared) && isnan(floats_shared[n_shared]),
          "caat_pack, %d states, %d x %d, %d shared: sums in the order of the states", states, N, C, S);
    caat_unpack(z, other, S == C ? NULL : x, factor, states, N, C, S);
    bool right = same_values(z, plain, n_all) && isnan(to_float(z[n_all]));
    memset(z, 0, (size_t)n_all * sizeof *z);
    caat_unpack_floats(z, floats_other, x, factor, states, N, C, S);
    right &= same_values(z, plain, n_all) && isnan(to_float(z[n_all]));
    caat_unpack(x, other, x, factor, states, N, C, S);
    check(right && same_values(x, plain, n_all),
          "caat_unpack, %d states, %d x %d, %d shared: out of place and in place", states, N, C, S);
    release(&memory);
}

// With a norm behind it: the same bits as one after the other.
static void test_residual_norm(bool layer, int N, int C, bool has_bias) {
    const int64_t n_all = (int64_t)N * C;
    floatX *x = values(n_all, 1), *branch = values(n_all, 1), *w = values(C, 1), *b = values(C, 1);
    floatX *bias = has_bias ? values(C, 1) : NULL, *sum = poisoned_values(n_all), *plain_sum = poisoned_values(n_all);
    floatX *out = poisoned_values(n_all), *plain = poisoned_values(n_all);
    float *mean = poisoned(N), *plain_mean = poisoned(N);
    float *rstd = poisoned(N), *plain_rstd = poisoned(N);
    residual_forward(plain_sum, x, branch, bias, N, C);
    const Norm after = {plain_sum, plain, plain_mean, plain_rstd, w, b}, fused = {sum, out, mean, rstd, w, b},
               in_place = {x, poisoned_values(n_all), mean, rstd, w, b};
    norms[!layer].forward(&after, N, C, NORM_EPS);
    norms[!layer].residual_forward(&fused, x, branch, bias, N, C, NORM_EPS);
    norms[!layer].residual_forward(&in_place, x, branch, bias, N, C, NORM_EPS);
    check(same_values(sum, plain_sum, n_all) && same_values(x, plain_sum, n_all) && same_values(out, plain, n_all) &&
              same(rstd, plain_rstd, N) && (!layer || same(mean, plain_mean, N)),
          "residual_%s_forward, %d x %d%s: the bits of both, in place too", layer ? "layernorm" : "rmsnorm", N, C,
          has_bias ? ", bias" : "");
    release(&memory);
}

// ---- Cross-entropy ----------------------------------------------------------------------------------------------

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
    floatX* logits;
    float *row_max, *row_sum, *target_logit;
    VocabSlice slice;
} Slice;

static Slice slice_new(const floatX* logits, int N, int V, int first, int end, int padding) {
    const int V_local = end - first, stride = V_local + padding;
    Slice s = {poisoned_values((int64_t)N * stride), poisoned(N), poisoned(N), poisoned(N), {first, V_local, stride}};
    for (int n = 0; n < N; n++) {
        memcpy(s.logits + (int64_t)n * stride, logits + (int64_t)n * V + first, (size_t)V_local * sizeof(floatX));
    }
    return s;
}

// The vocabulary in `count` slices, combined as ranks would; gradients are left in each slice's logits.
static void vocab_parallel_cross_entropy(Slice* s, int count, float* losses, Targets targets, int N) {
    for (int i = 0; i < count; i++) crossentropy_max(s[i].row_max, s[i].logits, N, s[i].slice);
    for (int i = 1; i < count; i++) {
        for (int n = 0; n < N; n++) s[0].row_max[n] = fmaxf(s[0].row_max[n], s[i].row_max[n]);
    }
    for (int i = 0; i < count; i++) {
        crossentropy_sum(s[i].row_sum, s[i].target_logit, s[i].logits, s[0].row_max, targets, N, s[i].slice);
    }
    for (int i = 1; i < count; i++) {
        for (int n = 0; n < N; n++) {
            s[0].row_sum[n] += s[i].row_sum[n];
            s[0].target_logit[n] += s[i].target_logit[n];
        }
    }
    crossentropy_loss(losses, s[0].row_sum, s[0].target_logit, N);
    for (int i = 0; i < count; i++)
        crossentropy_backward(s[i].logits, s[0].row_max, s[0].row_sum, targets, N, s[i].slice);
}

// k: a block of 2048 is 2048/64 terms a lane and the tree, 38; e^(x - max): EXP_K, and the rounding of x - max itself,
// which counts |x - max|-fold (in S); blocks and slices 3, the logarithm 1. In the gradient scale / sum, product and
// difference: 3 more.
static void test_crossentropy(int N, int V, int count, float size) {
    const double k_sum = 2048 / SUM_LANES + SUM_K + EXP_K + 4, k_gradient = k_sum + EXP_K + 4;
    const float scale = 0.37f;
    const int padding = count == 3 ? 0 : 5;
    floatX* logits = values((int64_t)N * V, size);
    float* losses = poisoned(N);
    int32_t* targets = integers(N, 0, V);
    targets[0] = V - 1, targets[N - 1] = 0;
    if (N > 2) targets[2] = -1;
    Slice s[3];
    const int cut[4] = {0, count == 1 ? V : V / 4, count == 2 ? V : V / 4 + V / 2, V};
    if (count > 1 && N > 1) targets[1] = cut[1]; // the first token of a slice
    for (int i = 0; i < count; i++) s[i] = slice_new(logits, N, V, cut[i], cut[i + 1], padding);
    const Targets wanted = {targets, scale};
    vocab_parallel_cross_entropy(s, count, losses, wanted, N);
    if (count == 1) {
        Slice one = slice_new(logits, N, V, 0, V, padding);
        float* one_losses = poisoned(N);
        crossentropy_fused(one_losses, one.logits, wanted, N, one.slice);
        check(same(one_losses, losses, N) && same_values(one.logits, s[0].logits, (int64_t)N * one.slice.stride),
              "crossentropy_fused, %d x %d: the bits of the four functions", N, V);
    }

    Wanted wanted_loss = wanted_new(N), wanted_gradient = wanted_new((int64_t)N * V);
    floatX* gradient = poisoned_values((int64_t)N * V);
    double* x = doubles(V);
    bool zeros = true, maxima = true;
    for (int n = 0; n < N; n++) {
        for (int i = 0; i < count; i++) {
            const floatX* row = s[i].logits + (int64_t)n * s[i].slice.stride;
            memcpy(gradient + (int64_t)n * V + s[i].slice.first, row, (size_t)s[i].slice.used * sizeof(floatX));
            for (int v = 0; v < padding; v++) zeros &= to_float(row[s[i].slice.used + v]) == 0;
        }
        for (int v = 0; v < V; v++) {
            x[v] = to_float(logits[(int64_t)n * V + v]);
            want(&wanted_gradient, (int64_t)n * V + v, 0, 0);
        }
        want(&wanted_loss, n, 0, 0);
        if (targets[n] < 0) continue;
        const LossContext context = {V, targets[n]};
        double max = -INFINITY, sum = 0, distance = 0;
        for (int v = 0; v < V; v++) max = fmax(max, x[v]);
        for (int v = 0; v < V; v++) {
            sum += exp(x[v] - max);
            distance += exp(x[v] - max) * (max - x[v]);
        }
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
    check_values(line, N, V, gradient, &wanted_gradient, k_gradient);
    check(zeros && maxima, "crossentropy: row_max is the largest logit; padding is 0 in the gradient");
    release(&memory);
}

// Rows whose result is known.
static void test_crossentropy_special(void) {
    enum { N = 7, V = 130 };
    const floatX high = to_floatX(1e4f), low = to_floatX(-1e4f);
    floatX* logits = values((int64_t)N * V, 0);
    float* losses = poisoned(N);
    int32_t* targets = integers(N, 0, 1);
    logits[0 * V + 0] = high; // certain and right
    logits[0 * V + 1] = low;
    logits[1 * V + 0] = low; // certain and wrong
    logits[1 * V + 1] = high;
    logits[3 * V + 100] = to_floatX(NAN);                                             // must not stay hidden
    for (int v = 0; v < V; v++) logits[4 * V + v] = to_floatX(v < 2 ? 0 : -INFINITY); // masked logits
    logits[5 * V + 7] = to_floatX(NAN);
    targets[5] = -1;
    for (int v = 0; v < V; v++) logits[6 * V + v] = to_floatX(-2e4f); // far below zero
    Slice s = slice_new(logits, N, V, 0, V, 0);
    const Targets wanted = {targets, 1};
    vocab_parallel_cross_entropy(&s, 1, losses, wanted, N);
    check(losses[0] == 0, "crossentropy: logit 1e4 over 0 at the target: loss %g", losses[0]);
    check(losses[1] == 2 * to_float(high) && to_float(s.logits[V]) == -1 && to_float(s.logits[V + 1]) == 1,
          "crossentropy: 2e4 off the target: loss %g", losses[1]);
    check_error("crossentropy: equal logits: loss - log V", fabs(losses[2] - log(1.0 * V)), 4 * U * log(1.0 * V));
    check_error("crossentropy: equal logits of -2e4: loss - log V", fabs(losses[6] - log(1.0 * V)),
                4 * U * log(1.0 * V));
    check(isnan(losses[3]), "crossentropy: a NaN logit gives a NaN loss");
    check_error("crossentropy: masked logits: loss - log 2", fabs(losses[4] - log(2)), 4 * U);
    const floatX* masked = s.logits + 4 * V;
    check(to_float(masked[0]) == -0.5f && to_float(masked[1]) == 0.5f && to_float(masked[2]) == 0,
          "crossentropy: masked gradient");
    bool zeros = losses[5] == 0;
    for (int v = 0; v < V; v++) zeros &= to_float(s.logits[5 * V + v]) == 0;
    check(zeros, "crossentropy: target -1: loss and gradient 0 whatever the logits");
    Slice fused = slice_new(logits, N, V, 0, V, 0);
    float* fused_losses = poisoned(N);
    crossentropy_fused(fused_losses, fused.logits, wanted, N, fused.slice);
    check(same(fused_losses, losses, N) && same_values(fused.logits, s.logits, N * V),
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

int main(void) {
    const int sizes[4] = {1, 13, 65, 768};
    test_floatx();
    for (int i = 0; i < 4; i++) {
        const int C = sizes[i];
        test_embedding(7, C, 257);
        for (int parts = 1; parts <= 3; parts++) { test_position(3, 5, C, parts, 0); }
        for (int layer = 0; layer < 2; layer++) {
            test_norm(layer, 7, C, 0);
            test_norm(layer, 131, C, 0);
            test_norm(layer, 7, C, 1000);
            test_residual_norm(layer, 7, C, i % 2 == 0);
        }
        test_residual(7, C);
        test_accumulate(7, C);
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
    test_position(5, 7, 10, 3, 2);            // every cut inside a sequence
    test_position(1, 67, 10, 5, 0);           // less than a sequence on each rank
    test_position(3, 1, 10, 2, 0);            // sequences of one token
    test_position(2, 2, 10, 7, 1);            // ranks without a row
    test_position(4, 6, 10, 2, 5000000003LL); // rows beyond 32 bits
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
    return test_end();
}
