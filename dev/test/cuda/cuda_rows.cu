/*
cuda_rows.cu: the kernels that work on rows and elements (normalisation, residual, sums over streams, GELU, SwiGLU,
embedding, RoPE) against their references in C; and the peaks of GPUs that MFU is a share of.

Bounds: see cuda_compare.h. Where nothing but the last rounding can differ, results are compared as they are.
*/
#include "cuda_compare.h"

#include "../../../util/rope_table.h"
#include "../../../kernels/activations.h"
#include "../../../kernels/embedding.cuh"
#include "../../../kernels/norms.h"
#include "../../../kernels/residual.cuh"
#include "../../../kernels/rope.cuh"
#include "../../../kernels/caat.cuh"
#include "../../../kernels/mfu.cuh"

#define REFERENCE_KERNELS // on the CPU
#undef ACTIVATIONS_H
#undef NORMS_H
namespace reference {
#include "../../../kernels/activations.h"
#include "../../../kernels/embedding.h"
#include "../../../kernels/norms.h"
#include "../../../kernels/residual.h"
#include "../../../kernels/rope.h"
#include "../../../kernels/caat.h"
} // namespace reference

static bool is_short; // with a sanitizer: fewer and smaller cases

// True if of N rows of C only row n has a NaN, and that has nothing else (or at least one).
static bool only_row(const Floats& x, int C, int n, bool all) {
    bool right = true, found = false;
    for (size_t i = 0; i < x.size(); i++) {
        const bool here = (int)(i / (size_t)C) == n, nan = x[i] != x[i];
        right &= here ? nan || !all : !nan;
        found |= nan;
    }
    return right && found;
}

// ---- Normalisation ----------------------------------------------------------------------------------------------

// LayerNorm (layer = true) or RMSNorm; rows with mean `offset` and values to +-2 around it.
typedef struct {
    bool layer;
    int N, C, moved;
    float offset;
} NormCase;
static const float EPS = 1e-5f;

static ShardedBuffer norm_input(const NormCase& t) {
    ShardedBuffer x = random_of<floatX>((int64_t)t.N * t.C, 2);
    for (floatX& v : x) v = (floatX)((float)v + t.offset);
    return x;
}

// Sums: in a thread at most 32 additions (rows to 16384), in a warp 5, in a block 5; in the reference C / 64 + 6. To
// the mean a division, to the variance a difference and a square, to the output a difference, 2 products and a sum: 8.
// x - mean is off by the mean's error: of the size of |x|, which is `spread` times that of x - mean.
static double norm_error_bound(const NormCase& t) {
    const double spread = t.layer ? 1 + fabs(t.offset) / (4 / sqrt(12)) : 1, thread = fmin(t.C, fmax(32, t.C / 512.0));
    return sqrt(thread + 10 + t.C / 64.0 + 6 + 8) * spread * U32;
}

// The output's: of xhat w, of xhat by the mean's error, times w, and of the sum with b. RMSNorm has only products.
static Floats norm_output_errors(const NormCase& t, const Floats& out, const Floats& w, const Floats& b) {
    Floats errors(out.size());
    const double error = norm_error_bound(t);
    for (size_t i = 0; i < out.size(); i++) {
        const double wc = w[i % (size_t)t.C], bc = b[i % (size_t)t.C];
        errors[i] = (float)(error * (t.layer ? fabs(wc) + fabs(out[i] - bc) + fabs(bc) : fabs(out[i])));
    }
    return errors;
}

static void test_norm_forward(const NormCase& t, bool add, bool bias, bool in_place) {
    const int N = t.N, C = t.C, m = t.moved;
    const int64_t n = (int64_t)N * C;
    const ShardedBuffer hx = norm_input(t), hbranch = random_of<floatX>(n, 1), hbias = random_of<floatX>(C, 1);
    const ShardedBuffer hw = random_of<floatX>(C, 1), hb = random_of<floatX>(C, 1);
    Device<floatX> x(hx, bit(m, 0)), w(hw, bit(m, 1)), b(hb, bit(m, 2)), out(n, bit(m, 3)), sum(n, bit(m, 4)),
        branch(hbranch, bit(m, 5)), biases(hbias, bit(m, 6));
    Device<float> mean(N), rstd(N);
    floatX *to = in_place ? x.p : sum.p, *bias_or_none = bias ? biases.p : NULL;
    begin_case(N, C, m);
    const Norm norm = {add ? to : x.p, out.p, mean.p, rstd.p, w.p, b.p};
    if (add)
        norms[!t.layer].residual_forward(&norm, x.p, branch.p, bias_or_none, N, C, EPS);
    else
        norms[!t.layer].forward(&norm, N, C, EPS);

    HostBuffer fw = on_host(hw), fb = on_host(hb), fbranch = on_host(hbranch), fbias = on_host(hbias);
    HostBuffer fx = on_host(hx), want((size_t)n);
    Floats want_mean((size_t)N), want_rstd((size_t)N);
    if (add) { // the statistics are those of the rounded sum
        reference::residual_forward(fx.data(), fx.data(), fbranch.data(), bias ? fbias.data() : NULL, N, C);
        fx = rounded(fx);
        compare_same(t.layer ? "residual_layernorm_forward: sum" : "residual_rmsnorm_forward: sum",
                     floats_of(in_place ? x.get() : sum.get()), floats_of(fx));
    }
    const reference::Norm right = {fx.data(), want.data(), want_mean.data(), want_rstd.data(), fw.data(), fb.data()};
    reference::norms[!t.layer].forward(&right, N, C, EPS);
    const double error = norm_error_bound(t);
    const char* name = t.layer ? "layernorm_forward" : "rmsnorm_forward";
    if (add) name = t.layer ? "residual_layernorm_forward" : "residual_rmsnorm_forward";
    compare(name, floats_of(out.get()), floats_of(want), true,
            norm_output_errors(t, floats_of(want), floats_of(hw), floats_of(hb)));
    compare(t.layer ? "layernorm_forward: rstd" : "rmsnorm_forward: rstd", rstd.get(), want_rstd, false, error);
    if (t.layer) compare("layernorm_forward: mean", mean.get(), want_mean, false, error);
}

// Backward. dx: a mean of products (3 roundings each) as above, times xhat and rstd, 3 differences; of the size of 1
// and of rstd times g, its mean, and xhat. dw: N additions in a thread at most, some among blocks, and 4 roundings in a
// term, in both of those that are compared.
static void test_norm_backward(const NormCase& t) {
    const int N = t.N, C = t.C, m = t.moved;
    const int64_t n = (int64_t)N * C;
    const ShardedBuffer hx = norm_input(t), hw = random_of<floatX>(C, 1), hdout = random_of<floatX>(n, 1);
    const ShardedBuffer hdx = random_of<floatX>(n, 1);
    const Floats hdw = random_of<float>(C, 1), hdb = random_of<float>(C, 1), hsum = random_of<float>(2 * C, 1);
    const bool sums = t.N % 3 != 0; // of the rows of dx, before and after
    HostBuffer fx = on_host(hx), fw = on_host(hw), fdout = on_host(hdout), fdx = on_host(hdx), fout((size_t)n);
    Floats fdw = hdw, fdb = hdb, fmean((size_t)N), frstd((size_t)N);
    const reference::Norm right = {fx.data(), fout.data(), fmean.data(), frstd.data(), fw.data(), fw.data()};
    reference::norms[!t.layer].forward(&right, N, C, EPS);
    Device<floatX> x(hx, bit(m, 0)), w(hw, bit(m, 1)), dout(hdout, bit(m, 2)), dx(hdx, bit(m, 3));
    Device<float> mean(fmean), rstd(frstd), dw(hdw, bit(m, 4)), db(hdb, bit(m, 5)), sum(hsum, bit(m, 0));
    const Norm norm = {x.p, NULL, mean.p, rstd.p, w.p, NULL};
    begin_case(N, C, m);
    Floats first_dw, first_db, first_sum, fsum = hsum, error_sum((size_t)(2 * C));
    for (int run = 0; run < 2; run++) { // twice: the same bits
        dx.set(hdx), dw.set(hdw), db.set(hdb), sum.set(hsum);
        norms[!t.layer].backward(&norm, dx.p, {dw.p, db.p, sums ? sum.p : NULL, sums ? sum.p + C : NULL}, dout.p, N, C);
        if (run == 0) first_dw = dw.get(), first_db = db.get(), first_sum = sum.get();
    }
    const Floats before = floats_of(hdx), after = floats_of(dx.get()); // as the kernel has rounded it
    for (int64_t i = 0; i < n && sums; i++) {
        fsum[(size_t)(i % C)] += before[(size_t)i], fsum[(size_t)(C + i % C)] += after[(size_t)i];
    }
    reference::norms[!t.layer].backward(&right, fdx.data(), {fdw.data(), fdb.data(), NULL, NULL}, fdout.data(), N, C);
    const double error = norm_error_bound(t), columns = 2 * sqrt(N + 4.0) * U32;
    Floats error_dx((size_t)n);
    for (int64_t i = 0; i < n; i++) error_dx[(size_t)i] = (float)(error * (1 + 3 * frstd[(size_t)(i / C)]));
    compare(t.layer ? "layernorm_backward" : "rmsnorm_backward", floats_of(dx.get()), floats_of(fdx), true, error_dx);
    compare(t.layer ? "layernorm_backward: dw" : "rmsnorm_backward: dw", dw.get(), fdw, false, columns);
    compare_same(t.layer ? "layernorm_backward: dw again" : "rmsnorm_backward: dw again", dw.get(), first_dw);
    compare("norm backward: sums of dx", sum.get(), fsum, false, columns);
    compare_same("norm backward: sums of dx again", sum.get(), first_sum);
    if (!t.layer) return;
    compare("layernorm_backward: db", db.get(), fdb, false, columns);
    compare_same("layernorm_backward: db again", db.get(), first_db);
}

// The last step of dw and db, with more partial sums than the emulator's few blocks leave: count / 32 additions in a
// thread, 5 among threads, 1 to what is there; the reference adds all in float64.
static void test_add_columns(int count, int columns, int vectors) {
    const int all = vectors * columns;
    const Floats hpartial = random_of<float>((int64_t)count * all, 1), hsum = random_of<float>(4 * columns, 1);
    Floats want = hsum;
    for (int c = 0; c < all; c++) {
        double sum = hsum[(size_t)c];
        for (int i = 0; i < count; i++) sum += hpartial[(size_t)(i * all + c)];
        want[(size_t)c] = (float)sum;
    }
    Device<float> partial(hpartial), sum(hsum);
    begin_case(count, columns, 0);
    add_columns({{sum.p, sum.p + columns, sum.p + 2 * columns, sum.p + 3 * columns}, vectors}, partial.p, count,
                columns);
    compare("add_columns", sum.get(), want, false, (count / 32 + 7) * U32);
}

static void test_norm_nan(bool layer) {
    const int N = 5, C = 64;
    ShardedBuffer hx = random_of<floatX>(N * C, 2);
    hx[2 * C + 7] = (floatX)NAN;
    const ShardedBuffer ones(C, (floatX)1.0f), zeros((size_t)N * C, (floatX)0.0f), hdout = random_of<floatX>(N * C, 1);
    Device<floatX> x(hx), w(ones), b(ones), out(N * C), dx(zeros), dout(hdout);
    Device<float> mean(N), rstd(N), dw(Floats(C, 0.0f)), db(Floats(C, 0.0f));
    const Norm norm = {x.p, out.p, mean.p, rstd.p, w.p, b.p};
    norms[!layer].forward(&norm, N, C, EPS);
    norms[!layer].backward(&norm, dx.p, {dw.p, db.p, NULL, NULL}, dout.p, N, C);
    check(only_row(floats_of(out.get()), C, 2, true) && only_row(floats_of(dx.get()), C, 2, true) &&
              only_row(dw.get(), C, 0, true),
          "%-5s %s: a NaN spoils its row, and dw", floatX_name, layer ? "layernorm" : "rmsnorm");
}

static void test_norms() {
    for (int layer = 0; layer < 2; layer++) {
        const bool l = layer;
        // narrow rows, a warp to a row; several warps; rows that are not multiples of a pack
        const int sizes[][2] = {{1, 1}, {7, 33}, {131, 64}, {5, 768}, {13, 1031}, {6, 2056}};
        for (int i = 0; i < (is_short ? 4 : 6); i++) {
            const NormCase t = {l, sizes[i][0], sizes[i][1], 0, i % 2 ? 1.0f : 0.0f};
            test_norm_forward(t, false, false, false);
            test_norm_forward(t, true, true, i % 2 == 0);
            test_norm_backward(t);
        }
        test_norm_forward({l, 9, 200, 0, 1}, true, false, true);
        test_norm_forward({l, 9, 200, 0, 100}, false, false, false); // mean far above the deviation
        test_norm_backward({l, 211, 136, 0, 0});                     // several rows for each team of each block
        test_norm_backward({l, is_short ? 17 : 67, 840, 0, 0});      // the same with two warps a row
        for (int i = 0; i < 7 && !is_short; i++) test_norm_forward({l, 3, 72, 1 << i, 1}, true, true, false);
        for (int i = 0; i < (is_short ? 4 : 6); i++) test_norm_backward({l, 2, 40, 1 << i, 0});
        if (!is_short) {
            test_norm_forward({l, 2, 20008, 0, 0}, true, true, false); // more than 32 elements a thread
            test_norm_backward({l, 9, 1201, 0, 0});                    // two slabs of single elements
            test_norm_backward({l, 3, 9232, 0, 0});                    // two slabs of packs
        }
        test_norm_nan(l);
    }
    test_add_columns(1, 1, 1);
    test_add_columns(70, 45, 4);
    test_add_columns(300, 33, 2);
    const Norm none = {};
    layernorm_forward(&none, 0, 8, EPS); // no rows
    Device<float> dw(Floats(8, 1.0f)), db(Floats(8, 1.0f));
    for (const NormKernels& kernels : norms) kernels.backward(&none, NULL, {dw.p, db.p, NULL, NULL}, NULL, 0, 8);
    begin_case(0, 8, 0);
    compare_same("norms without a row: dw stays", dw.get(), Floats(8, 1.0f));
}

// ---- Residual: the same two additions, and one rounding. --------------------------------------------------------

static void test_residual(int N, int C, int moved) {
    const int64_t n = (int64_t)N * C;
    const ShardedBuffer hx = random_of<floatX>(n, 1), hbranch = random_of<floatX>(n, 1),
                        hbias = random_of<floatX>(C, 1);
    const HostBuffer fx = on_host(hx), fbranch = on_host(hbranch), fbias = on_host(hbias);
    HostBuffer want((size_t)n), plain((size_t)n);
    reference::residual_forward(want.data(), fx.data(), fbranch.data(), fbias.data(), N, C);
    reference::residual_forward(plain.data(), fx.data(), fbranch.data(), NULL, N, C);
    Device<floatX> x(hx, bit(moved, 0)), branch(hbranch, bit(moved, 1)), bias(hbias, bit(moved, 2)),
        out(n, bit(moved, 3));
    begin_case(N, C, moved);
    residual_forward(out.p, x.p, branch.p, bias.p, N, C);
    compare_same("residual_forward", floats_of(out.get()), floats_of(rounded(want)));
    residual_forward(out.p, x.p, branch.p, NULL, N, C);
    compare_same("residual_forward, no bias", floats_of(out.get()), floats_of(rounded(plain)));
    residual_forward(branch.p, x.p, branch.p, bias.p, N, C);
    compare_same("residual_forward, onto branch", floats_of(branch.get()), floats_of(rounded(want)));
    branch.set(hbranch);
    residual_forward(x.p, x.p, branch.p, bias.p, N, C);
    compare_same("residual_forward, onto residual", floats_of(x.get()), floats_of(rounded(want)));
}

static void test_accumulate(int n, int moved) {
    Floats want = random_of<float>(n, 1);
    const Floats hx = random_of<float>(n, 1);
    Device<float> sum(want, bit(moved, 0)), x(hx, bit(moved, 1));
    begin_case(1, n, moved);
    accumulate(sum.p, x.p, n);
    reference::accumulate(want.data(), hx.data(), n);
    compare_same("accumulate", sum.get(), want);
    Floats highest = random_of<float>(n, 1);
    highest[0] = -INFINITY; // of a state without a token
    sum.set(highest);
    accumulate_max(sum.p, x.p, n);
    reference::accumulate_max(highest.data(), hx.data(), n);
    compare_same("accumulate_max", sum.get(), highest);
}

// ----------------------------------------------------------------------------------------------------------------
// CAAT-Net's sums over streams. In float32, in the order of the streams, and rounded once, to T; copies and one
// product, rounded once too: so nothing but that rounding differs from the reference.

typedef struct {
    int streams, N, C, S, moved;
} CaatCase;

// The reference's sums, of T: floatX or float32.
static void host_pack(HostBuffer& sum, const HostBuffer& x, const CaatCase& t) {
    reference::caat_pack(sum.data(), x.data(), t.streams, t.N, t.C, t.S);
}
static void host_unpack(HostBuffer& z, const HostBuffer& shared, const HostBuffer& x, float factor, const CaatCase& t) {
    reference::caat_unpack(z.data(), shared.data(), x.data(), factor, t.streams, t.N, t.C, t.S);
}
#ifdef PRECISION_BF16
static void host_pack(Floats& sum, const HostBuffer& x, const CaatCase& t) {
    reference::caat_pack_floats(sum.data(), x.data(), t.streams, t.N, t.C, t.S);
}
static void host_unpack(HostBuffer& z, const Floats& shared, const HostBuffer& x, float factor, const CaatCase& t) {
    reference::caat_unpack_floats(z.data(), shared.data(), x.data(), factor, t.streams, t.N, t.C, t.S);
}
#endif
static HostBuffer shared_on_host(const std::vector<floatX>& x) { return on_host(x); }
#ifndef PRECISION_FP32
static Floats shared_on_host(const Floats& x) { return x; }
#endif

template <class T>
static void test_sync(const CaatCase& t, const char* pack, const char* unpack, const char* in_place) {
    const float factor = 1.7f;
    const int64_t n = (int64_t)t.streams * t.N * t.C, n_shared = (int64_t)t.N * t.S;
    const ShardedBuffer hx = random_of<floatX>(n, 1);
    const std::vector<T> hshared = random_of<T>(n_shared, 1);
    const HostBuffer fx = on_host(hx);
    auto fshared = shared_on_host(hshared), sum = fshared;
    HostBuffer want((size_t)n);
    fshared.resize((size_t)n_shared + 1), sum.resize((size_t)n_shared + 1); // where nothing is shared, too
    host_pack(sum, fx, t);
    host_unpack(want, fshared, fx, factor, t);
    sum.resize((size_t)n_shared);
    Floats want_sum = floats_of(sum);
    for (float& v : want_sum) v = (float)(T)v;
    Device<floatX> x(hx, bit(t.moved, 0)), z(n, bit(t.moved, 2));
    Device<T> shared(n_shared, bit(t.moved, 1));
    begin_case(t.streams * t.N, t.C, t.moved);
    caat_pack(shared.p, x.p, t.streams, t.N, t.C, t.S);
    compare_same(pack, floats_of(shared.get()), want_sum);
    shared.set(hshared);
    caat_unpack(z.p, shared.p, t.S == t.C ? NULL : x.p, factor, t.streams, t.N, t.C, t.S);
    compare_same(unpack, floats_of(z.get()), floats_of(rounded(want)));
    caat_unpack(x.p, shared.p, x.p, factor, t.streams, t.N, t.C, t.S);
    compare_same(in_place, floats_of(x.get()), floats_of(rounded(want)));
}

// What is shared as it is in memory, and in float32.
static void test_sync_types(const CaatCase& t) {
    test_sync<floatX>(t, "caat_pack", "caat_unpack", "caat_unpack, in place");
    test_sync<float>(t, "caat_pack to float32", "caat_unpack from float32", "caat_unpack from float32, in place");
}

static void test_syncs() {
    for (int streams = 1; streams <= 4; streams++) {
        // packs; several blocks of them; packs of fp32 alone; odd ones; nothing and everything shared
        const int sizes[][3] = {{5, 72, 24}, {67, 136, 64}, {7, 60, 20}, {7, 333, 101}, {6, 64, 63},
                                {3, 64, 0},  {3, 33, 0},    {3, 64, 64}, {3, 33, 33},   {1, 1, 1}};
        for (int i = 0; i < 10; i++) test_sync_types({streams, sizes[i][0], sizes[i][1], sizes[i][2], 0});
        for (int i = 0; i < 3; i++) test_sync_types({streams, 5, 72, 24, 1 << i});
    }
}

// ----------------------------------------------------------------------------------------------------------------
// GELU and SwiGLU. With v = 2u for GELU, v = x for SwiGLU, the gate is s = 1 / (1 + e^-v). Roundings of v change e^-v
// |v|-fold, and changes of e^-v change s by its 1 - s. In s: e^-v (4 roundings, and 1 |v|), 1 + e (1), the division
// (4); v (6, |v|-fold). So the size of s is s (1 + |v| (1 - s)), with 10 roundings, and as many in the reference.
// Slopes have s twice, e once, and 5 more: 30.

static const double GATE = 20 * U32, SLOPE = 60 * U32, TINY = 0x1p-100;

// Up to +-12, so that norms see those near 0; two numbers in 64 are extreme.
static ShardedBuffer inputs_of_all_sizes(int64_t n) {
    ShardedBuffer x = random_of<floatX>(n, 12);
    const float extremes[] = {0.0f, -0.0f, 1e4f, -1e4f, 17, -17, 88, -88, 90, -90, 5.5f, -5.5f};
    for (int64_t i = 0; i < n / 32; i++) x[(size_t)(32 * i + i % 32)] = (floatX)extremes[i % 12];
    return x;
}
static double gate(double v) { return 1 / (1 + exp(-v)); }

// Errors that gelu and its derivative may have in float32, times `factor`.
static void gelu_errors(const Floats& x, const Floats& factor, Floats* forward, Floats* backward) {
    forward->resize(x.size()), backward->resize(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        const double y = x[i], v = 2 * 0.7978845608 * (y + 0.044715 * y * y * y), s = gate(v), rest = gate(-v);
        const double dv = 2 * 0.7978845608 * (1 + 3 * 0.044715 * y * y), size = s * (1 + fabs(v) * rest);
        (*forward)[i] = (float)(GATE * (fabs(y) * size + TINY));
        (*backward)[i] = (float)(SLOPE * fabs(factor[i]) * (size + fabs(y * dv) * s * rest * (1 + fabs(v)) + TINY));
    }
}

static void test_gelu(int n, int moved) {
    const ShardedBuffer hx = inputs_of_all_sizes(n), hdout = random_of<floatX>(n, 1);
    const Floats fx = floats_of(hx), fdout = floats_of(hdout);
    HostBuffer want((size_t)n), want_dx((size_t)n);
    Floats error, error_dx;
    reference::gelu_forward(want.data(), on_host(hx).data(), 1, n);
    reference::gelu_backward(want_dx.data(), on_host(hdout).data(), on_host(hx).data(), 1, n);
    gelu_errors(fx, fdout, &error, &error_dx);
    Device<floatX> x(hx, bit(moved, 0)), out(n, bit(moved, 1)), dout(hdout, bit(moved, 2)), dx(n, bit(moved, 3));
    begin_case(1, n, moved);
    gelu_forward(out.p, x.p, 1, n);
    gelu_backward(dx.p, dout.p, x.p, 1, n);
    compare("gelu_forward", floats_of(out.get()), floats_of(want), true, error);
    compare("gelu_backward", floats_of(dx.get()), floats_of(want_dx), true, error_dx);
    const Floats first = floats_of(dx.get());
    gelu_backward(dout.p, dout.p, x.p, 1, n);
    compare_same("gelu_backward, in place", floats_of(dout.get()), first);
}

static void test_swiglu(int N, int F, int moved) {
    const int64_t n = (int64_t)N * F;
    const ShardedBuffer hgate_up = inputs_of_all_sizes(2 * n), hdout = random_of<floatX>(n, 1);
    const Floats fgate_up = floats_of(hgate_up), fdout = floats_of(hdout);
    HostBuffer want((size_t)n), want_d(2 * (size_t)n);
    Floats error((size_t)n), error_d(2 * (size_t)n);
    reference::swiglu_forward(want.data(), on_host(hgate_up).data(), N, F);
    reference::swiglu_backward(want_d.data(), on_host(hdout).data(), on_host(hgate_up).data(), N, F);
    for (int64_t i = 0; i < n; i++) {
        const size_t at = (size_t)(i + i / F * F);
        const double g = fgate_up[at], u = fgate_up[at + F], s = gate(g), size = s * (1 + fabs(g) * gate(-g));
        const double slope = size + fabs(g) * s * gate(-g) * (1 + fabs(g)), d = fabs(fdout[(size_t)i]);
        error[(size_t)i] = (float)(GATE * (fabs(g * u) * size + TINY) + fabs(g * u) * 0x1p-126); // __fdividef: or 0
        error_d[at] = (float)(SLOPE * d * (fabs(u) * slope + TINY));
        error_d[at + F] = (float)(GATE * d * (fabs(g) * size + TINY));
    }
    Device<floatX> gate_up(hgate_up, bit(moved, 0)), out(n, bit(moved, 1)), dout(hdout, bit(moved, 2)),
        d(2 * n, bit(moved, 3));
    begin_case(N, F, moved);
    swiglu_forward(out.p, gate_up.p, N, F);
    swiglu_backward(d.p, dout.p, gate_up.p, N, F);
    compare("swiglu_forward", floats_of(out.get()), floats_of(want), true, error);
    compare("swiglu_backward", floats_of(d.get()), floats_of(want_d), true, error_d);
}

// Every row of the table beside its CPU twin. Errors are relative to the largest number.
static void test_activation(int kind, int N, int F) {
    const Activation* device = &activations[kind];
    const reference::Activation* host = &reference::activations[kind];
    const int width = device->gated ? 2 * F : F;
    const std::vector<floatX> fc = random_of<floatX>((int64_t)N * width, 4),
                              dout = random_of<floatX>((int64_t)N * F, 1);
    const HostBuffer ffc = on_host(fc), fdout = on_host(dout);
    HostBuffer want((size_t)N * F), want_d(ffc.size());
    char name[64];
    begin_case(N, F, 0);
    host->forward(want.data(), ffc.data(), N, F);
    host->backward(want_d.data(), fdout.data(), ffc.data(), N, F);
    Device<floatX> x(fc), d(dout), out((int64_t)N * F), dx((int64_t)N * width);
    device->forward(out.p, x.p, N, F);
    device->backward(dx.p, d.p, x.p, N, F);
    snprintf(name, sizeof name, "%s, row of the table", device->name);
    compare(name, floats_of(out.get()), floats_of(want), true, 16 * U32);
    snprintf(name, sizeof name, "%s backward, row of the table", device->name);
    compare(name, floats_of(dx.get()), floats_of(want_d), true, 16 * U32);
}

static void test_gates_nan() {
    const int n = 64;
    ShardedBuffer hx = random_of<floatX>(2 * n, 2);
    hx[5] = (floatX)NAN;
    const ShardedBuffer hones(n, (floatX)1.0f);
    Device<floatX> x(hx), ones(hones), out(n), dx(n), d(2 * n);
    gelu_forward(out.p, x.p, 1, n);
    gelu_backward(dx.p, ones.p, x.p, 1, n);
    bool right = only_row(floats_of(out.get()), 1, 5, true) && only_row(floats_of(dx.get()), 1, 5, true);
    swiglu_forward(out.p, x.p, 1, n);
    swiglu_backward(d.p, ones.p, x.p, 1, n);
    const Floats got = floats_of(d.get());
    right &= only_row(floats_of(out.get()), 1, 5, true) && got[5] != got[5] && got[n + 5] != got[n + 5];
    check(right, "%-5s gelu, swiglu: a NaN stays a NaN, and alone", floatX_name);
}

// ---- Embedding: copies, and sums in the order of n. -------------------------------------------------------------

// Tokens of a vocabulary V, of which this slice has [first, first + slice); every `often`-th is the same one.
static void test_embedding(int N, int C, int V, int often, int moved) {
    const int first = V / 3, slice = V - first - V / 4;
    const int64_t n = (int64_t)N * C, table = (int64_t)slice * C;
    std::vector<int32_t> htokens((size_t)N);
    for (int i = 0; i < N; i++) {
        const int any = (int)(random_uniform(5, (uint64_t)N, (uint64_t)i) * (float)V);
        htokens[(size_t)i] = often > 0 && i % often == 0 ? first + slice / 2 : any;
    }
    htokens[(size_t)N - 1] = first;
    htokens[0] = first + slice - 1;
    if (N > 4) {
        htokens[1] = first - 1;
        htokens[2] = first + slice;
        htokens[3] = -2147483647 - 1;
    }
    const ShardedBuffer hwte = random_of<floatX>(table, 1), hdout = random_of<floatX>(n, 1);
    const HostBuffer fwte = on_host(hwte), fdout = on_host(hdout);
    const Floats hdwte = random_of<float>(table, 1);
    Device<int32_t> tokens(htokens);
    Device<floatX> wte(hwte, bit(moved, 0)), out(n, bit(moved, 1)), dout(hdout, bit(moved, 2));
    Device<float> dwte(hdwte, bit(moved, 3));
    HostBuffer want((size_t)n);
    Floats want_dwte = hdwte;
    begin_case(N, C, moved);
    embedding_forward(out.p, tokens.p, wte.p, N, C, first, slice);
    reference::embedding_forward(want.data(), htokens.data(), fwte.data(), N, C, first, slice);
    compare_same("embedding_forward", floats_of(out.get()), floats_of(want));

    Floats again;
    for (int run = 0; run < 2; run++) {
        dwte.set(hdwte);
        embedding_backward(dwte.p, dout.p, tokens.p, N, C, first, slice);
        if (run == 0) again = dwte.get();
    }
    reference::embedding_backward(want_dwte.data(), fdout.data(), htokens.data(), N, C, first, slice);
    compare_same("embedding_backward, again", dwte.get(), again);
    // Up to 64 of a token are added in the same order; of k, a partial sum of 64 goes to the rest: a walk of sqrt(k)
    // U32.
    std::vector<int> count((size_t)slice, 0);
    for (int32_t t : htokens) {
        if (t >= first && t < first + slice) count[(size_t)(t - first)]++;
    }
    Floats few, few_want, many, many_want;
    int most = 0;
    for (int64_t i = 0; i < table; i++) {
        const int k = count[(size_t)(i / C)];
        most = k > most ? k : most;
        (k <= 64 ? few : many).push_back(again[(size_t)i]);
        (k <= 64 ? few_want : many_want).push_back(want_dwte[(size_t)i]);
    }
    compare_same("embedding_backward, up to 64 of a token", few, few_want);
    if (!many.empty()) compare("embedding_backward, more", many, many_want, false, sqrt(most) * U32);
}

// Rows first_row ... of sequences of T.
static void test_position(int N, int T, int C, int64_t first_row, int moved) {
    const int64_t n = (int64_t)N * C, table = (int64_t)T * C;
    const ShardedBuffer hx = random_of<floatX>(n, 1), hwpe = random_of<floatX>(table, 1),
                        hdout = random_of<floatX>(n, 1);
    const HostBuffer fwpe = on_host(hwpe), fdout = on_host(hdout);
    HostBuffer fx = on_host(hx);
    Floats fdwpe = random_of<float>(table, 1);
    Device<floatX> x(hx, bit(moved, 0)), wpe(hwpe, bit(moved, 1)), dout(hdout, bit(moved, 2));
    Device<float> dwpe(fdwpe, bit(moved, 3));
    begin_case(N, C, moved);
    position_forward(x.p, wpe.p, first_row, N, T, C);
    position_backward(dwpe.p, dout.p, first_row, N, T, C);
    reference::position_forward(fx.data(), fwpe.data(), first_row, N, T, C);
    reference::position_backward(fdwpe.data(), fdout.data(), first_row, N, T, C);
    compare_same("position_forward", floats_of(x.get()), floats_of(rounded(fx)));
    compare_same("position_backward", dwpe.get(), fdwpe);
}

// ---- RoPE: two products and a sum. ------------------------------------------------------------------------------

static void test_rope(int B, int T, int heads, int HS, int stride, int moved) {
    const int64_t n = (int64_t)B * T * stride;
    const ShardedBuffer hqkv = random_of<floatX>(n, 2);
    HostBuffer forward = on_host(hqkv), backward = forward;
    Floats want_table((size_t)T * HS);
    Device<float> table((int64_t)T * HS, bit(moved, 1));
    Device<floatX> qkv(hqkv, bit(moved, 0));
    begin_case(B * T, stride, moved);
    rope_table(table.p, T, HS, 1e4, NULL);
    reference::rope_table(want_table.data(), T, HS, 1e4, NULL);
    compare_same("rope_table", table.get(), want_table);
    rope_forward(qkv.p, table.p, B, T, heads, HS, stride);
    reference::rope_forward(forward.data(), want_table.data(), B, T, heads, HS, stride);
    compare("rope_forward", floats_of(qkv.get()), floats_of(forward), true, 2 * U32);
    qkv.set(hqkv);
    rope_backward(qkv.p, table.p, B, T, heads, HS, stride);
    reference::rope_backward(backward.data(), want_table.data(), B, T, heads, HS, stride);
    compare("rope_backward", floats_of(qkv.get()), floats_of(backward), true, 2 * U32);
    Floats beside, untouched;
    const Floats got = floats_of(qkv.get()), original = floats_of(hqkv);
    for (size_t i = 0; i < got.size(); i++) {
        if ((int)(i % (size_t)stride) < heads * HS) continue;
        beside.push_back(got[i]), untouched.push_back(original[i]);
    }
    compare_same("rope: what is not rotated", beside, untouched);
}

// ---- Peaks ------------------------------------------------------------------------------------------------------

static void test_peaks() {
    const bool is_float = sizeof(floatX) == 4;
    struct {
        const char* name;
        double peak16, peak32;
    } known[] = {{"NVIDIA H100 80GB HBM3", 989.4, 66.9},
                 {"NVIDIA H100 PCIe", 756, 51.2},
                 {"NVIDIA H100 NVL", 835.5, 60},
                 {"NVIDIA H200", 989.4, 66.9},
                 {"NVIDIA H200 NVL", 835.5, 60},
                 {"NVIDIA GH200 480GB", 989.4, 66.9},
                 {"NVIDIA B200", 2250, 75},
                 {"NVIDIA A100-SXM4-80GB", 312, 19.5},
                 {"NVIDIA A100 80GB PCIe", 312, 19.5},
                 {"NVIDIA A100-PCIE-40GB", 312, 19.5},
                 {"NVIDIA L4", 121, 30.3},
                 {"NVIDIA L40S", 362.1, 91.6},
                 {"NVIDIA GeForce RTX 4090", 165.2, 82.6}};
    int wrong = 0;
    for (const auto& gpu : known) wrong += gpu_peak_flops(gpu.name) != 1e12 * (is_float ? gpu.peak32 : gpu.peak16);
    for (const char* unknown : {"NVIDIA A100-SXM4-40GB MIG 3g.20gb", "NVIDIA A1000", "NVIDIA L40", "NVIDIA H100",
                                "NVIDIA H2000", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", ""})
        wrong += gpu_peak_flops(unknown) != 0;
    check(wrong == 0, "%-5s gpu_peak_flops: %d names with a wrong peak", floatX_name, wrong);
}

int main(int argc, char** argv) {
    is_short = argc > 1 && strcmp(argv[1], "--short") == 0;
    test_peaks();
    test_norms();
    for (int i = 0; i < 5; i++) test_residual(3, 72, i == 0 ? 0 : 1 << (i - 1));
    test_residual(1, 1, 0);
    test_residual(7, 333, 0);
    for (int i = 0; i < 3; i++) test_accumulate(1032, i);
    test_accumulate(1027, 0);
    test_syncs();
    for (int i = 0; i < 5; i++) test_gelu(4104, i == 0 ? 0 : 1 << (i - 1));
    test_gelu(1, 0);
    test_gelu(4099, 0);
    for (int i = 0; i < 5; i++) test_swiglu(5, 264, i == 0 ? 0 : 1 << (i - 1));
    test_swiglu(3, 77, 0);
    for (int kind = 0; kind < ACTIVATIONS; kind++) {
        test_activation(kind, 5, 264);
        test_activation(kind, 3, 77);
    }
    test_gates_nan();
    for (int i = 0; i < 5; i++) test_embedding(37, 72, 30, 0, i == 0 ? 0 : 1 << (i - 1));
    test_embedding(1, 33, 4, 0, 0);
    test_embedding(300, 264, 11, 0, 0);                   // about 27 of each
    test_embedding(is_short ? 400 : 1500, 40, 500, 2, 0); // one token has half of all
    test_embedding(is_short ? 300 : 1000, 35, 5, 0, 0);   // several with some hundred each
    for (int i = 0; i < 5; i++) test_position(14, 5, 72, 3, i == 0 ? 0 : 1 << (i - 1));
    test_position(3, 7, 33, 5, 0);              // less than a sequence, over its end
    test_position(100, 3, 40, 5000000003LL, 0); // rows beyond 32 bits
    test_position(1, 1, 1, 0, 0);
    for (int i = 0; i < 3; i++) test_rope(2, 5, 3, 16, 64, i);
    test_rope(1, 3, 2, 10, 24, 0);
    test_rope(2, 67, 3, 64, 5 * 64, 0);
    test_rope(1, 2, 0, 4, 4, 0);
    print_results();
    return test_end();
}
