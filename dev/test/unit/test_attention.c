/*
Tests of kernels/attention.h against brute force in float64, which itself is tested against finite differences.

Bound of an error. The reference gives beside every number its magnitude M, the same sum with the absolute values of all
its terms. Rounding errs by u = 2^-24 of every partial sum, in a random direction. A sum of n terms of one sign has
partial sums up to M and errs by about sqrt(n) u M; one of random signs has partial sums of M / sqrt(n) and errs by u M.
A score has random signs and magnitude at most s_max = max sum_d |q_d k_d| / sqrt(HS), and its absolute error is a
relative error of p, which has it twice, in the score and in lse; l is a sum of one sign over up to T keys; O, dP, D and
the gradients are sums of random signs. With a few single roundings,

    |error| <= 4 u M (2 s_max + sqrt(T) + 8)

where 4 is for the tail of the distribution over all elements.

In bf16, v = 2^-8 bounds the relative error of a rounding, and to first order each adds v M at most. O = P V: P is
rounded, and O: 2 v M; the same for dV = P^T dO. lse, summed before P is rounded: nothing. D, of the O that was rounded:
2 v M; dS: that, and its own rounding; dQ and dK: these and their own, 4 v M. A few v^2 M: covered by a factor 1 + 4 v.

attention_decode has the same sums in another order, and rounds only O. attention_forward and attention_decode, each
within its bound of the exact result, are within the sum of their bounds of each other.
*/
#include "test.h"
#include "../../../kernels/attention.h"

static int row_heads(const Heads* s) { return s->NH + 2 * s->NKV; }
static int64_t out_size(const Heads* s) { return (int64_t)s->B * s->T * s->NH * s->HS; }
static int64_t lse_size(const Heads* s) { return (int64_t)s->B * s->T * s->NH; }
static int64_t qkv_size(const Heads* s) { return (int64_t)s->B * s->T * row_heads(s) * s->HS; }

static float* floats(int64_t n) { return (float*)checked_malloc((size_t)n * sizeof(float), "a test"); }
static double* doubles(int64_t n) { return (double*)checked_calloc((size_t)n, sizeof(double), "a test"); }

static floatX* values(int64_t n) { return (floatX*)checked_malloc((size_t)n * sizeof(floatX), "a test"); }

static floatX* random_values(int64_t n, uint64_t stream) {
    float* x = floats(n);
    floatX* y = values(n);
    random_normals(x, n, 7, stream, 0);
    for (int64_t i = 0; i < n; i++) y[i] = to_floatX(x[i]);
    free(x);
    return y;
}

static double* to_double(const floatX* x, int64_t n) {
    double* y = doubles(n);
    for (int64_t i = 0; i < n; i++) y[i] = (double)to_float(x[i]);
    return y;
}

static void fill_with_nan(floatX* x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = to_floatX(NAN);
}

static floatX linear(floatX x, float factor, float shift) { return to_floatX(factor * to_float(x) + shift); }

// ---- The reference: each formula of attention.h as it stands, with the T x T matrices. --------------------------

typedef struct {
    double *out, *lse, *dqkv;      // the results
    double *m_out, *m_dqkv, s_max; // their magnitudes
} Reference;

// One query head of one sequence; adds to dqkv and m_dqkv.
static void reference_head(Reference* r, const double* qkv, const double* dout, const Heads* s, int b, int h) {
    const int T = s->T, HS = s->HS, row = row_heads(s) * HS, kv = h / (s->NH / s->NKV);
    const int at_q = h * HS, at_k = (s->NH + kv) * HS, at_v = (s->NH + s->NKV + kv) * HS;
    const double scale = 1 / sqrt((double)HS);
    const double* x = qkv + (int64_t)b * T * row;
    double *dx = r->dqkv + (int64_t)b * T * row, *mx = r->m_dqkv + (int64_t)b * T * row, *p = doubles(T);
    for (int i = 0; i < T; i++) {
        double max = -INFINITY, l = 0, D = 0, m_D = 0;
        for (int j = 0; j <= i; j++) {
            double magnitude = 0;
            p[j] = 0;
            for (int d = 0; d < HS; d++) {
                const double term = x[i * row + at_q + d] * x[j * row + at_k + d] * scale;
                p[j] += term;
                magnitude += fabs(term);
            }
            max = fmax(max, p[j]);
            r->s_max = fmax(r->s_max, magnitude);
        }
        for (int j = 0; j <= i; j++) l += p[j] = exp(p[j] - max);
        r->lse[((int64_t)b * s->NH + h) * T + i] = max + log(l);
        const int64_t at_out = (((int64_t)b * T + i) * s->NH + h) * HS;
        for (int d = 0; d < HS; d++) {
            double o = 0, magnitude = 0;
            for (int j = 0; j <= i; j++) {
                o += p[j] / l * x[j * row + at_v + d];
                magnitude += p[j] / l * fabs(x[j * row + at_v + d]);
            }
            r->out[at_out + d] = o;
            r->m_out[at_out + d] = magnitude;
            D += dout[at_out + d] * o;
            m_D += fabs(dout[at_out + d]) * magnitude;
        }
        for (int j = 0; j <= i; j++) {
            double dp = 0, m_dp = 0;
            for (int d = 0; d < HS; d++) {
                const double term = dout[at_out + d] * x[j * row + at_v + d];
                dp += term;
                m_dp += fabs(term);
                dx[j * row + at_v + d] += p[j] / l * dout[at_out + d];
                mx[j * row + at_v + d] += p[j] / l * fabs(dout[at_out + d]);
            }
            const double ds = p[j] / l * (dp - D) * scale, m_ds = p[j] / l * (m_dp + m_D) * scale;
            for (int d = 0; d < HS; d++) {
                dx[i * row + at_q + d] += ds * x[j * row + at_k + d];
                dx[j * row + at_k + d] += ds * x[i * row + at_q + d];
                mx[i * row + at_q + d] += m_ds * fabs(x[j * row + at_k + d]);
                mx[j * row + at_k + d] += m_ds * fabs(x[i * row + at_q + d]);
            }
        }
    }
    free(p);
}

static Reference reference(const double* qkv, const double* dout, const Heads* s) {
    Reference r = {doubles(out_size(s)), doubles(lse_size(s)), doubles(qkv_size(s)),
                   doubles(out_size(s)), doubles(qkv_size(s)), 0};
    for (int b = 0; b < s->B; b++) {
        for (int h = 0; h < s->NH; h++) reference_head(&r, qkv, dout, s, b, h);
    }
    return r;
}

static void reference_free(Reference* r) { free(r->out), free(r->lse), free(r->dqkv), free(r->m_out), free(r->m_dqkv); }

static double reference_loss(const double* qkv, const double* dout, const Heads* s) {
    Reference r = reference(qkv, dout, s);
    double loss = 0;
    for (int64_t i = 0; i < out_size(s); i++) loss += r.out[i] * dout[i];
    reference_free(&r);
    return loss;
}

// Central differences of loss = sum out * dout. With step h the error is h^2 / 6 times a third derivative (about 1
// here, so 2e-11) and 2^-53 * |loss| / h (about 1e-11 * 20).
static void test_reference(void) {
    const Heads s = {2, 7, 6, 2, 3};
    const double h = 1e-5;
    floatX *x = random_values(qkv_size(&s), 1), *y = random_values(out_size(&s), 2);
    double *qkv = to_double(x, qkv_size(&s)), *dout = to_double(y, out_size(&s)), worst = 0;
    Reference r = reference(qkv, dout, &s);
    for (int64_t i = 0; i < qkv_size(&s); i++) {
        const double value = qkv[i];
        qkv[i] = value + h;
        const double above = reference_loss(qkv, dout, &s);
        qkv[i] = value - h;
        const double below = reference_loss(qkv, dout, &s);
        qkv[i] = value;
        worst = fmax(worst, fabs((above - below) / (2 * h) - r.dqkv[i]));
    }
    check_error("reference gradients against finite differences, absolute", worst, 1e-8);
    reference_free(&r);
    free(x), free(y), free(qkv), free(dout);
}

// ---- The kernels ------------------------------------------------------------------------------------------------

typedef struct {
    floatX *qkv, *dout, *out;
    float* lse;
    floatX* dqkv;
} Run;

static void run_kernels(Run* r, const Heads* s) {
    fill_with_nan(r->out, out_size(s)); // everything has to be written
    fill_with_nan(r->dqkv, qkv_size(s));
    for (int64_t i = 0; i < lse_size(s); i++) r->lse[i] = NAN;
    attention_forward(r->out, r->lse, r->qkv, *s);
    attention_backward(r->dqkv, r->dout, r->qkv, r->out, r->lse, *s);
}

// q and k scaled so that scores are about `logits`.
static Run run_new(const Heads* s, float logits) {
    Run r = {random_values(qkv_size(s), 3), random_values(out_size(s), 4), values(out_size(s)), floats(lse_size(s)),
             values(qkv_size(s))};
    const int64_t row = (int64_t)row_heads(s) * s->HS;
    for (int64_t i = 0; i < qkv_size(s); i++) {
        if (i % row < (int64_t)(s->NH + s->NKV) * s->HS) r.qkv[i] = linear(r.qkv[i], sqrtf(logits), 0);
    }
    run_kernels(&r, s);
    return r;
}

static void run_free(Run* r) { free(r->qkv), free(r->dout), free(r->out), free(r->lse), free(r->dqkv); }

// max |got - exact| / magnitude. 1e-30 is for probabilities below 2^-126, which have fewer bits or none.
static double scaled_error(const floatX* got, const double* exact, const double* magnitude, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        const double error = fabs((double)to_float(got[i]) - exact[i]);
        if (error == 0) continue;
        const double e = error / (magnitude[i] + 1e-30);
        if (!(e <= worst)) worst = e == e ? e : INFINITY;
    }
    return worst;
}

// max |got - exact| / (1 + |exact|)
static double lse_error(const float* got, const double* exact, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        const double e = fabs((double)got[i] - exact[i]) / (1 + fabs(exact[i]));
        if (!(e <= worst)) worst = e == e ? e : INFINITY;
    }
    return worst;
}

// The bound of the header, where that many roundings to floatX are on the way.
static double bound_of(const Reference* r, const Heads* s, int roundings) {
    const double bound = 4 * 0x1p-24 * (2 * r->s_max + sqrt(s->T) + 8);
    return IN_BF16 ? (bound + roundings * 0x1p-8) * (1 + 4 * 0x1p-8) : bound;
}

// The gradients of heads [first, last) of the rows of dqkv.
static double gradient_error(const Run* run, const Reference* r, const Heads* s, int first, int last) {
    double worst = 0;
    for (int64_t row = 0; row < (int64_t)s->B * s->T; row++) {
        const int64_t at = (row * row_heads(s) + first) * s->HS, n = (int64_t)(last - first) * s->HS;
        worst = fmax(worst, scaled_error(run->dqkv + at, r->dqkv + at, r->m_dqkv + at, n));
    }
    return worst;
}

static void test_shape(Heads s, float logits) {
    Run run = run_new(&s, logits);
    double *qkv = to_double(run.qkv, qkv_size(&s)), *dout = to_double(run.dout, out_size(&s));
    Reference r = reference(qkv, dout, &s);
    const int q = s.NH, k = q + s.NKV, v = k + s.NKV;
    char what[5][128];
    for (int i = 0; i < 5; i++) {
        const char* names[] = {"out", "lse", "dq", "dk", "dv"};
        snprintf(what[i], sizeof what[i], "%s  B %d T %d NH %d NKV %d HS %d logits %g", names[i], s.B, s.T, s.NH, s.NKV,
                 s.HS, (double)logits);
    }
    check_error(what[0], scaled_error(run.out, r.out, r.m_out, out_size(&s)), bound_of(&r, &s, 2));
    check_error(what[1], lse_error(run.lse, r.lse, lse_size(&s)), bound_of(&r, &s, 0));
    check_error(what[2], gradient_error(&run, &r, &s, 0, q), bound_of(&r, &s, 4));
    check_error(what[3], gradient_error(&run, &r, &s, q, k), bound_of(&r, &s, 4));
    check_error(what[4], gradient_error(&run, &r, &s, k, v), bound_of(&r, &s, 2));
    reference_free(&r);
    run_free(&run);
    free(qkv), free(dout);
}

// ---- Bits -------------------------------------------------------------------------------------------------------

static bool same_bits(const floatX* a, const floatX* b, int64_t n) {
    return memcmp(a, b, (size_t)n * sizeof(floatX)) == 0;
}
static bool same_floats(const float* a, const float* b, int64_t n) {
    return memcmp(a, b, (size_t)n * sizeof(float)) == 0;
}

static bool same_run(const Run* a, const Run* b, const Heads* s) {
    return same_bits(a->out, b->out, out_size(s)) && same_floats(a->lse, b->lse, lse_size(s)) &&
           same_bits(a->dqkv, b->dqkv, qkv_size(s));
}

#ifdef _OPENMP
static void test_threads(Heads s) {
    const int threads_before = omp_get_max_threads(), counts[] = {1, 2, 3, 7, 16};
    const AttShape shape = attention_shape(s);
    bool same = true, whole = false, split = false;
    omp_set_num_threads(1);
    Run one = run_new(&s, 1);
    for (int i = 0; i < 5; i++) {
        omp_set_num_threads(counts[i]);
        if (whole_heads(&shape, counts[i]))
            whole = true;
        else
            split = true;
        Run run = run_new(&s, 1);
        same = same && same_run(&one, &run, &s);
        run_free(&run);
    }
    omp_set_num_threads(threads_before);
    check(whole && split, "both ways to cut the backward pass were taken");
    check(same, "same bits with 1, 2, 3, 7, 16 threads  B %d T %d NH %d NKV %d HS %d", s.B, s.T, s.NH, s.NKV, s.HS);
    run_free(&one);
}
#endif

// Each sequence of a batch alone.
static void test_batch(Heads s) {
    Run all = run_new(&s, 1);
    Heads one = s;
    one.B = 1;
    bool same = true;
    for (int b = 0; b < s.B; b++) {
        Run part = run_new(&one, 1), view = {NULL, NULL, all.out + b * out_size(&one), all.lse + b * lse_size(&one),
                                             all.dqkv + b * qkv_size(&one)};
        memcpy(part.qkv, all.qkv + b * qkv_size(&one), (size_t)qkv_size(&one) * sizeof(floatX));
        memcpy(part.dout, all.dout + b * out_size(&one), (size_t)out_size(&one) * sizeof(floatX));
        run_kernels(&part, &one);
        same = same && same_run(&part, &view, &one);
        run_free(&part);
    }
    check(same, "same bits for a sequence alone and in a batch of %d  T %d HS %d", s.B, s.T, s.HS);
    run_free(&all);
}

// Whatever comes from token t on (other numbers, or no tokens at all) changes no bit of the outputs before, and with
// dout = 0 from t on it changes no gradient before.
static void test_causal(Heads s, int t) {
    const int64_t row = (int64_t)row_heads(&s) * s.HS, out_row = (int64_t)s.NH * s.HS;
    Run a = run_new(&s, 1), b = run_new(&s, 1);
    for (int64_t i = t * out_row; i < out_size(&s); i++) a.dout[i] = b.dout[i] = to_floatX(0);
    for (int64_t i = t * row; i < qkv_size(&s); i++) b.qkv[i] = linear(b.qkv[i], 50, 1);
    run_kernels(&a, &s);
    run_kernels(&b, &s);
    bool same = same_bits(a.out, b.out, t * out_row) && same_bits(a.dqkv, b.dqkv, t * row);
    for (int h = 0; h < s.NH; h++) same = same && same_floats(a.lse + h * s.T, b.lse + h * s.T, t);
    check(same, "tokens from %d on change no bit before them  T %d HS %d", t, s.T, s.HS);
    check(!same_bits(a.out + t * out_row, b.out + t * out_row, out_row), "but they do change token %d", t);
    Heads prefix = s;
    prefix.T = t;
    run_kernels(&b, &prefix); // b's first t tokens are a's
    same = same_bits(a.out, b.out, t * out_row) && same_bits(a.dqkv, b.dqkv, t * row);
    check(same, "the first %d tokens alone give the same bits", t);
    run_free(&a);
    run_free(&b);
}

// ---- Generating text: the tokens of a sequence one after the other. ---------------------------------------------

enum { SPARE_ROWS = 2 }; // of the cache, beyond the sequence

// out (T, NH * HS) and cache, which begins as NaN, so that a row that is read before it is written shows.
static void decode_sequence(floatX* out, floatX* cache, const floatX* qkv, const Heads* s) {
    const int64_t row = (int64_t)row_heads(s) * s->HS, cache_row = (int64_t)2 * s->NKV * s->HS;
    fill_with_nan(cache, (s->T + SPARE_ROWS) * cache_row);
    fill_with_nan(out, out_size(s));
    for (int t = 0; t < s->T; t++) attention_decode(out + (int64_t)t * s->NH * s->HS, cache, qkv + t * row, t, *s);
}

// Rows 0 .. T - 1 of the cache are the keys and values of qkv, bit for bit; the others are still NaN.
static bool cache_is_right(const floatX* cache, const floatX* qkv, const Heads* s) {
    const int64_t row = (int64_t)row_heads(s) * s->HS, cache_row = (int64_t)2 * s->NKV * s->HS;
    bool right = true;
    for (int t = 0; t < s->T; t++)
        right = right && same_bits(cache + t * cache_row, qkv + t * row + (int64_t)s->NH * s->HS, cache_row);
    for (int64_t i = s->T * cache_row; i < (s->T + SPARE_ROWS) * cache_row; i++)
        right = right && isnan(to_float(cache[i]));
    return right;
}

static void test_decode(Heads s, float logits) {
    Run run = run_new(&s, logits);
    double *qkv = to_double(run.qkv, qkv_size(&s)), *dout = to_double(run.dout, out_size(&s));
    Reference r = reference(qkv, dout, &s);
    const double bound = bound_of(&r, &s, 1);
    const int64_t kv_cache_layer_elements = (int64_t)(s.T + SPARE_ROWS) * 2 * s.NKV * s.HS;
    floatX *out = values(out_size(&s)), *cache = values(kv_cache_layer_elements);
    decode_sequence(out, cache, run.qkv, &s);
    char what[96];
    snprintf(what, sizeof what, "T %d NH %d NKV %d HS %d logits %g", s.T, s.NH, s.NKV, s.HS, (double)logits);
    double *forward = to_double(run.out, out_size(&s)), error = scaled_error(out, r.out, r.m_out, out_size(&s));
    check(error <= bound, "decode  %-45s error %.2e  bound %.2e", what, error, bound);
    error = scaled_error(out, forward, r.m_out, out_size(&s));
    const double both = bound + bound_of(&r, &s, 2);
    check(error <= both, "decode against forward  %-29s error %.2e  bound %.2e", what, error, both);
    check(cache_is_right(cache, run.qkv, &s), "decode  %s: the cache has the keys and values, and nothing more", what);
    fill_with_nan(cache, kv_cache_layer_elements);
    attention_fill_cache(cache, run.qkv, s);
    check(cache_is_right(cache, run.qkv, &s), "remember  %s: the same of all tokens at once", what);
#ifdef _OPENMP
    floatX *out_n = values(out_size(&s)), *cache_n = values(kv_cache_layer_elements);
    const int threads_before = omp_get_max_threads();
    bool same = true;
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        decode_sequence(out_n, cache_n, run.qkv, &s);
        same = same && same_bits(out, out_n, out_size(&s)) && same_bits(cache, cache_n, kv_cache_layer_elements);
    }
    omp_set_num_threads(threads_before);
    check(same, "decode  %s: same bits with 1 to 3 threads", what);
    free(out_n), free(cache_n);
#endif
    reference_free(&r);
    run_free(&run);
    free(qkv), free(dout), free(out), free(cache), free(forward);
}

// What is known without a formula: one token gets its own value; equal keys give the mean of the values.
static void test_decode_known(void) {
    const Heads s = {1, 130, 4, 2, 7};
    const int64_t row = (int64_t)row_heads(&s) * s.HS, group = s.NH / s.NKV;
    floatX *qkv = random_values(qkv_size(&s), 5), *out = values(out_size(&s));
    floatX* cache = values((int64_t)(s.T + SPARE_ROWS) * 2 * s.NKV * s.HS);
    for (int t = 0; t < s.T; t++) {
        for (int i = 0; i < s.NKV * s.HS; i++) {
            qkv[t * row + s.NH * s.HS + i] = to_floatX(0.5f);                               // keys
            qkv[t * row + (s.NH + s.NKV) * s.HS + i] = to_floatX((float)(t * (i + 1) % 5)); // values
        }
    }
    decode_sequence(out, cache, qkv, &s);
    bool own = true;
    double worst = 0;
    for (int h = 0; h < s.NH; h++) {
        for (int d = 0; d < s.HS; d++) {
            const int i = (int)(h / group) * s.HS + d;
            double sum = 0;
            own = own && to_float(out[h * s.HS + d]) == to_float(qkv[(s.NH + s.NKV) * s.HS + i]);
            for (int t = 0; t < s.T; t++) sum += t * (i + 1) % 5;
            worst = fmax(worst, fabs(to_float(out[((int64_t)(s.T - 1) * s.NH + h) * s.HS + d]) - sum / s.T));
        }
    }
    check(own, "decode: the first token gets its own value");
    // Scores are equal to the bit, so every p is e^0 = 1 and the sums of whole numbers are exact: only 1 / 130 and the
    // product with it are rounded.
    check_error("decode: equal keys give the mean of values up to 4", worst,
                4 * (2 * 0x1p-24 + (IN_BF16 ? 0x1p-8 : 0)));
    free(qkv), free(out), free(cache);
}

// ---- Products of bf16, to the bit -------------------------------------------------------------------------------

#ifdef PRECISION_BF16
// Random numbers between 2^-9 and 2^8: their products are exact, and no sum is denormal.
static AttOperand* random_operands(int n, uint64_t stream) {
    AttOperand* operands = (AttOperand*)scratch_memory(round_up((size_t)n, 16));
    for (int i = 0; i < ATT_PACK * n; i++) {
        const double u = random_uniform(11, stream, (uint64_t)i), exponent = random_uniform(12, stream, (uint64_t)i);
        ((AttNumber*)operands)[i] = att_number((float)((2 * u - 1) * exp2(floor(17 * exponent) - 8)));
    }
    return operands;
}

// Number k of operands that are `step` apart.
static AttNumber* number(AttOperand* operands, int step, int k) {
    return (AttNumber*)(operands + k / ATT_PACK * step) + k % ATT_PACK;
}
static float value(AttOperand* operands, int step, int k) {
    const AttNumber* x = number(operands, step, k);
    return IN_WORDS ? bf16_to_f32(*(const uint16_t*)x) : *(const float*)x;
}

// One sum as attention_product.h says: pair by pair, the second first; by tiles 16 pairs' first and second ones apart.
static float chain(float sum, AttOperand* a, int a_col, AttOperand* b, int ldb, int K, bool tiles) {
    float even = 0, odd = 0;
    for (int k = 0; k < ATT_PACK * K; k += 2) {
        const float first = value(a, a_col, k) * value(b, ldb, k);
        const float second = value(a, a_col, k + 1) * value(b, ldb, k + 1);
        if (!tiles) {
            sum += second;
            sum += first;
            continue;
        }
        odd += second;
        even += first;
        if (k % 32 != 30) continue;
        sum += even + odd;
        even = odd = 0;
    }
    return sum;
}

// The zeros of A that `part` promises.
static void zero_factor(AttOperand* a, int a_row, int a_col, int K, AttPart part) {
    for (int i = 0; i < ATT_BLOCK; i++) {
        for (int k = 0; k < ATT_PACK * K; k++) {
            const bool zero = (part == UPPER_FACTOR && k < i) || (part == LOWER_FACTOR && k > i);
            if (zero) *number(a + i * a_row, a_col, k) = att_number(0);
        }
    }
}

// numbers: k of A and B
static void test_product(AttUnit unit, int N, int numbers, bool by_columns, bool add, AttPart part) {
    const char *units[] = {"", "AMX", "vectors", "AMX in C"}, *parts[] = {"", ", result", ", upper", ", lower"};
    const int K = numbers / ATT_PACK, a_row = by_columns ? 1 : K, a_col = by_columns ? ATT_BLOCK : 1;
    AttOperand *a = random_operands(ATT_BLOCK * K, 1), *b = random_operands(K * N, 2);
    float *c = scratch_memory((size_t)(ATT_BLOCK * N)), *before = floats(ATT_BLOCK * N);
    for (int i = 0; i < ATT_BLOCK * N; i++) c[i] = before[i] = (float)(i % 1001) * 0.37f;
    zero_factor(a, a_row, a_col, K, part);
    attention_unit = unit;
    attention_begin();
    block_product(c, N, a, a_row, a_col, b, N, N, K, add, part);
    attention_end();
    attention_unit = ATT_ANY;
    int wrong = 0, written = 0;
    for (int i = 0; i < ATT_BLOCK; i++) {
        for (int j = 0; j < N; j++) {
            const int at = i * N + j;
            const float sum = chain(add ? before[at] : 0, a + i * a_row, a_col, b + j, N, K, unit != ATT_VECTORS);
            const bool needed = part != UPPER_RESULT || j >= column_begin(i);
            wrong += needed && c[at] != sum;
            written += !needed && c[at] != before[at];
        }
    }
    check(wrong == 0 && written == 0,
          "bits of a product by %s  N %d K %d%s%s%s: %d wrong, %d written below the diagonal", units[unit], N, numbers,
          by_columns ? ", columns" : "", add ? ", added" : "", parts[part], wrong, written);
    free(a), free(b), free(c), free(before);
}

static void test_products(AttUnit unit) {
    test_product(unit, 64, 32, false, false, WHOLE);
    test_product(unit, 64, 128, false, false, UPPER_RESULT);
    for (int width = 32; width <= 96; width += 64) {
        test_product(unit, width, ATT_BLOCK, false, true, WHOLE);
        test_product(unit, width, ATT_BLOCK, false, true, UPPER_FACTOR);
        test_product(unit, width, ATT_BLOCK, true, true, WHOLE);
        test_product(unit, width, ATT_BLOCK, true, true, LOWER_FACTOR);
    }
}

// P is rounded for P V, but not for its sum l: of two keys with scores -x, 0 and values 1, 0 O is known to the bit.
static void test_rounded_p(void) {
    const Heads s = {1, 2, 64, 64, 1};
    floatX *qkv = values(qkv_size(&s)), *out = values(out_size(&s));
    float* lse = floats(lse_size(&s));
    int wrong = 0, others = 0; // others: that differ where P is not rounded
    for (int64_t i = 0; i < qkv_size(&s); i++) {
        const int token = (int)(i / (3 * s.NH)), part = (int)(i / s.NH % 3), head = (int)(i % s.NH);
        const float key = token == 0 ? -(float)(head + 1) / 32 : 0;
        const float numbers[] = {1, key, 1 - (float)token}; // query, key, value
        qkv[i] = to_floatX(numbers[part]);
    }
    attention_forward(out, lse, qkv, s);
    for (int head = 0; head < s.NH; head++) {
        const float p = fast_exp(-(float)(head + 1) / 32), inverse = 1 / (p + 1), got = to_float(out[s.NH + head]);
        wrong += got != to_float(to_floatX(to_float(to_floatX(p)) * inverse));
        others += got != to_float(to_floatX(p * inverse));
    }
    check(wrong == 0 && others > 0, "P is rounded, its sum is not: %d of %d outputs wrong; %d where it matters", wrong,
          s.NH, others);
    free(qkv), free(out), free(lse);
}

#ifdef ATT_IN_WORDS
// The portable multiply-add of words has the bits of the processor's instruction, where there is one.
static void test_words(void) {
    enum { N = 4096 };
    AttOperand *a = random_operands(N, 4), *b = random_operands(N + ATT_LANES, 5);
    AttVector sum = {0}, portable = {0};
    bool same = true;
    for (int i = 0; i < N; i++) {
        const AttOperand* y = b + i / ATT_LANES * ATT_LANES;
        sum = multiply_add(sum, a[i], y);
        portable = add_words_by_fma(portable, a[i], y);
        same = same && memcmp(&sum, &portable, sizeof sum) == 0;
    }
    check(same, "same bits of %d words by multiply_add and by FMA", N);
    free(a), free(b);
}
// The whole of attention by every unit of this machine, and by AMX in C.
static void test_unit(AttUnit unit) {
    const Heads shapes[] = {{1, 65, 4, 2, 16}, {1, 130, 2, 1, 64}, {2, 100, 3, 1, 7}, {1, 70, 2, 2, 80}};
    attention_unit = unit;
    for (int i = 0; i < 4; i++) test_shape(shapes[i], 1);
#ifdef _OPENMP
    const Heads few = {1, 300, 4, 2, 48};
    test_threads(few);
#endif
    attention_unit = ATT_ANY;
}
#endif
#endif

int main(void) {
    test_reference();

    const int lengths[] = {1, 2, 31, 65, 130}, sizes[] = {1, 5, 16, 64, 80};
    for (int t = 0; t < 5; t++) {
        for (int i = 0; i < 5; i++) {
            const int group = 1 + (t + i) % 3, kv_heads = 1 + (t + 2 * i) % 2;
            const Heads s = {1 + (t + i) % 2, lengths[t], group * kv_heads, kv_heads, sizes[i]};
            test_shape(s, 1);
        }
    }
    const Heads blocks[] = {{1, 64, 2, 2, 32},   {1, 256, 2, 1, 64}, {1, 193, 3, 1, 128},
                            {2, 100, 6, 2, 200}, {2, 300, 2, 2, 7},  {1, 600, 6, 3, 17}};
    for (int i = 0; i < 6; i++) test_shape(blocks[i], 1);
    const Heads large = {1, 150, 4, 2, 64};
    test_shape(large, 30); // scores to about +-100
    test_shape(large, 1000);

    const Heads batch = {3, 77, 4, 2, 24}, causal = {1, 150, 4, 2, 20};
    test_batch(batch);
    test_causal(causal, 149);
    test_causal(causal, 64);
    test_causal(causal, 37);
    const Heads sequences[] = {{1, 1, 1, 1, 1},   {1, 1, 6, 3, 5},   {1, 2, 4, 4, 16},   {1, 64, 4, 1, 33},
                               {1, 65, 6, 2, 80}, {1, 130, 3, 3, 7}, {1, 193, 5, 1, 64}, {1, 300, 6, 2, 20}};
    for (int i = 0; i < 8; i++) test_decode(sequences[i], 1);
    test_decode(large, 30);
    test_decode(large, 1000);
    test_decode_known();
#ifdef _OPENMP
    const Heads few = {1, 300, 4, 2, 48}, many = {2, 131, 6, 3, 33};
    test_threads(few);
    test_threads(many);
#endif
#ifdef PRECISION_BF16
    test_rounded_p();
#endif
#ifdef ATT_IN_WORDS
    test_words();
    for (int unit = amx_is_here() ? ATT_TILES : ATT_VECTORS; unit <= ATT_TILES_IN_C; unit++) {
        test_products((AttUnit)unit);
        test_unit((AttUnit)unit);
    }
#elif defined(PRECISION_BF16)
    test_products(ATT_VECTORS);
#endif
    return test_end();
}
