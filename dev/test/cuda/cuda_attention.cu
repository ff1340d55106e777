/*
Tests of kernels/attention.cuh and attention_hopper.cuh against kernels/attention.h, on the same rounded inputs. A
process tests one family of kernels, so that a fault of one leaves the others' results: the family that the environment
variable ATTENTION names, in the cases that it is made for; without it mma where there is that, else plain. LONG=1:
larger cases on the emulator.

Bounds, as relative norms. Everything that both sides compute in float32 differs by about

    E = 2^-24 (2 s + sqrt(T) + 8),   s = max |q| max |k| / sqrt(HS) >= any score

(see test_attention.c: a score's error, absolute, is a relative error of p, which has it twice, in the score and in
lse). The rest is rounding to floatX, each time by at most U, of random sign, so k roundings of the terms of a sum and
of the sum itself make up sqrt(k) U:

    out: p, out          dV: p, dV          dQ: dS, dQ          dK: p, dS, dK

(p and dS are only rounded for tensor cores.) In bf16 the CPU rounds p, for out and dV, and dS, too. Let numbers be h
apart, at most 2 U |x|. A rounding that only one side does is an error of variance h^2 / 12 <= (U |x|)^2 / 3, two that
do not know of each other make up twice that; but where both sides round numbers that differ by t < h, these become
different ones, h apart, with probability t / h: a variance of h t <= 2 U |x| t. So roundings of both, of numbers with
errors of float32, make up sqrt(2 U E), a hundredth of U, and not U.

dS = p (dP - D) may cancel, altogether for the first query: so dQ and dK, and they alone, are allowed E times the size
of what cancels, p |dO| |V| |K| / sqrt(HS) with p <= 1, per element. The largest error, relative to the largest entry,
is that of k roundings, taken as 5 standard deviations of uniform errors: one number of bf16 may become the next.
*/
#include "cuda_compare.h"
#include "../../../kernels/attention.cuh"
namespace reference {
#include "../../../kernels/fast_math.h"
#include "../../../kernels/attention.h"
} // namespace reference

#include <algorithm>
#include <sys/wait.h>

struct Case {
    int B, T, NH, NKV, HS;
    int shift;  // elements that arrays are moved off their alignment: not for tensor cores, if not a multiple of 8
    float size; // of q and k
};

static int64_t rows_of(const Case* c) { return (int64_t)c->B * c->T; }
static int64_t row_size(const Case* c) { return (int64_t)(c->NH + 2 * c->NKV) * c->HS; }
static int64_t qkv_size(const Case* c) { return rows_of(c) * row_size(c); }
static int64_t out_size(const Case* c) { return rows_of(c) * c->NH * c->HS; }
static int64_t lse_size(const Case* c) { return rows_of(c) * c->NH; }
static bool is_flash(const Case* c) {
    return sizeof(floatX) == 2 && (c->HS == 64 || c->HS == 128) && c->shift % 8 == 0;
}

// The case's family; false if this process has none for it.
static int family = ANY_FAMILY;
static const char* family_name = "";
static bool has_family(const Case* c) {
    static const char* const names[] = {"", "plain", "mma", "wgmma"};
    family = *attention_asked();
    if (family >= MMA_FAMILY && !is_flash(c)) return false;
    if (family == ANY_FAMILY) family = is_flash(c) ? default_tensor_family() : PLAIN_FAMILY;
    family_name = names[family];
    return true;
}

// Values below 1; query and key heads below c->size.
static ShardedBuffer random_qkv(const Case* c) {
    ShardedBuffer x = random_of<floatX>(qkv_size(c), 1);
    for (int64_t i = 0; i < qkv_size(c); i++) {
        if (i % row_size(c) < (int64_t)(c->NH + c->NKV) * c->HS) x[(size_t)i] = (floatX)(c->size * (float)x[(size_t)i]);
    }
    return x;
}

// Heads [first, end) of every row.
static Floats heads(const Floats& x, const Case* c, int first, int end) {
    Floats y;
    for (int64_t n = 0; n < rows_of(c); n++) {
        const auto row = x.begin() + n * row_size(c);
        y.insert(y.end(), row + first * c->HS, row + end * c->HS);
    }
    return y;
}

static double norm(const Floats& x) {
    double sum = 0;
    for (const float v : x) sum += (double)v * (double)v;
    return sqrt(sum);
}
static double rms(const Floats& x) { return norm(x) / sqrt((double)x.size()); }

static double largest(const Floats& x) {
    double most = 0;
    for (const float v : x) most = fmax(most, fabs((double)v));
    return most;
}

// The norm of the longest head.
static double longest(const Floats& x, int HS) {
    double most = 0;
    for (size_t i = 0; i < x.size(); i += (size_t)HS) {
        most = fmax(most, norm(Floats(x.begin() + (int64_t)i, x.begin() + (int64_t)i + HS)));
    }
    return most;
}

// The norm of an error that was `error` in float32, after roundings to floatX, one letter each: by the device (D), by
// the CPU (C), if it computes in bf16, or by both (B). Relative to the result.
static double error_after(double error, const char* roundings) {
    double d = error, device = 0;
    for (; *roundings; roundings++) {
        const double one = U * U / 3;
        d = sqrt(d * d + (*roundings == 'B' ? fmin(2 * U * d, 2 * one) : one));
        device += *roundings != 'C';
    }
    return BOTH_ROUND ? d : sqrt(device) * U + error;
}
static double largest_after(double error, const char* roundings) {
    double device = 0;
    for (; *roundings; roundings++) device += *roundings != 'C';
    return sqrt(device) * U + error;
}

// The error per element against error_after(relative error) * (size of an element) + absolute; and for the largest of
// all, which may be rounded to another number.
static void compare_after(const char* what, const Case* c, const Floats& got, const Floats& want, double relative,
                          double absolute, const char* roundings) {
    double sum = 0, worst = 0;
    for (size_t i = 0; i < want.size(); i++) {
        const double error = fabs((double)got[i] - (double)want[i]);
        sum += error * error;
        if (!(error <= worst)) worst = error == error ? error : INFINITY;
    }
    const double error = sqrt(sum / (double)want.size()), size = rms(want);
    const double bound = size > 0 ? error_after(relative + absolute / size, roundings) * size : absolute;
    const double worst_bound = 5 / sqrt(3) * (largest_after(relative, roundings) * largest(want) + absolute);
    check(error <= bound && worst <= worst_bound,
          "%s %-6s B %d T %3d heads %2d/%d x %3d %-5s size %-4g error %.1e  bound %.1e  largest %.1e  bound %.1e",
          floatX_name, what, c->B, c->T, c->NH, c->NKV, c->HS, family_name, (double)c->size, error, bound, worst,
          worst_bound);
}

static double float32_error(const Case* c, const Floats& x) {
    const double s = longest(heads(x, c, 0, c->NH), c->HS) * longest(heads(x, c, c->NH, c->NH + c->NKV), c->HS);
    return U32 * (2 * s / sqrt(c->HS) + sqrt(c->T) + 8);
}

// ---- Whole sequences --------------------------------------------------------------------------------------------

typedef struct {
    ShardedBuffer out, dqkv;
    Floats lse;
} Results;

static void run_forward(Results* r, const Case* c, const ShardedBuffer& qkv) {
    Device<floatX> d_qkv(qkv, c->shift), d_out(out_size(c), c->shift);
    Device<float> d_lse(lse_size(c));
    attention_forward(d_out.p, d_lse.p, d_qkv.p, {c->B, c->T, c->NH, c->NKV, c->HS});
    r->out = d_out.get();
    r->lse = d_lse.get();
}

// From r->out and r->lse.
static void run_backward(Results* r, const Case* c, const ShardedBuffer& qkv, const ShardedBuffer& dout) {
    Device<floatX> d_qkv(qkv, c->shift), d_out(r->out, c->shift), d_dout(dout, c->shift), d_dqkv(qkv_size(c), c->shift);
    Device<float> d_lse(r->lse);
    attention_backward(d_dqkv.p, d_dout.p, d_qkv.p, d_out.p, d_lse.p, {c->B, c->T, c->NH, c->NKV, c->HS});
    r->dqkv = d_dqkv.get();
}

static Results run(const Case* c, const ShardedBuffer& qkv, const ShardedBuffer& dout) {
    Results r;
    run_forward(&r, c, qkv);
    run_backward(&r, c, qkv, dout);
    return r;
}

static void test_backward(Results* r, const Case* c, const ShardedBuffer& qkv, const ShardedBuffer& dout, double E) {
    run_backward(r, c, qkv, dout);
    const Floats got = floats_of(r->dqkv), x = floats_of(qkv), y = floats_of(dout);
    HostBuffer host((size_t)qkv_size(c), reference::to_floatX(NAN));
    reference::attention_backward(host.data(), on_host(dout).data(), on_host(qkv).data(), on_host(r->out).data(),
                                  r->lse.data(), {c->B, c->T, c->NH, c->NKV, c->HS});
    const Floats want = floats_of(host);
    const int k = c->NH, v = k + c->NKV, end = v + c->NKV;
    const bool plain = family == PLAIN_FAMILY;
    const double cancels = rms(y) * rms(heads(x, c, v, end)) * E;
    compare_after("dQ", c, heads(got, c, 0, k), heads(want, c, 0, k), E, cancels * rms(heads(x, c, k, v)),
                  plain ? "CB" : "BB");
    compare_after("dK", c, heads(got, c, k, v), heads(want, c, k, v), E, cancels * rms(heads(x, c, 0, k)),
                  plain ? "CB" : "DBB");
    compare_after("dV", c, heads(got, c, v, end), heads(want, c, v, end), E, 0, plain ? "CB" : "BB");
}

static void test_case(const Case* c) {
    const ShardedBuffer qkv = random_qkv(c), dout = random_of<floatX>(out_size(c), 1);
    const Floats x = floats_of(qkv);
    const double E = float32_error(c, x);
    Results r;
    run_forward(&r, c, qkv);
    HostBuffer host((size_t)out_size(c), reference::to_floatX(NAN));
    Floats lse((size_t)lse_size(c), NAN);
    reference::attention_forward(host.data(), lse.data(), on_host(qkv).data(), {c->B, c->T, c->NH, c->NKV, c->HS});
    const Floats out = floats_of(host);
    // wgmma's tiles are wider than the CPU's, so with a second one p has another largest score when it is rounded.
    const char* roundings = family == PLAIN_FAMILY ? "CB" : "BB";
    if (family == WGMMA_FAMILY && c->T > 64) roundings = "DCB";
    compare_after("out", c, floats_of(r.out), out, E, 0, roundings);
    compare_after("lse", c, r.lse, lse, 0, E, "");
    test_backward(&r, c, qkv, dout, E); // of what the device's forward pass left, and of the reference's
    for (size_t i = 0; i < out.size(); i++) r.out[i] = (floatX)out[i];
    r.lse = lse;
    test_backward(&r, c, qkv, dout, E);
}

// Scores so large that float32 knows only the largest of a row: nothing may overflow. lse is that score. Its error is E
// of float32_error(), above 1, so p of its key is not 1 but e^error; this cancels in p / sum p, but for tensor cores p
// is rounded before (u), and out after (U). Products and the division by the sum: four roundings of float32.
static void test_huge_scores(const Case* c) {
    const ShardedBuffer qkv = random_qkv(c), dout = random_of<floatX>(out_size(c), 1);
    const Results r = run(c, qkv, dout);
    HostBuffer out((size_t)out_size(c));
    Floats lse((size_t)lse_size(c));
    reference::attention_forward(out.data(), lse.data(), on_host(qkv).data(), {c->B, c->T, c->NH, c->NKV, c->HS});
    const double sum = U32 * (sqrt(c->HS) + 8); // of HS terms of random sign
    check_close("huge scores: lse", r.lse, lse, sum, sum);
    const double u = family == PLAIN_FAMILY ? 0 : U;
    check_close("huge scores: out", floats_of(r.out), floats_of(out), sqrt(U * U + u * u) + 4 * U32, U + u + 4 * U32);
    bool finite = true;
    for (const float v : floats_of(r.dqkv)) finite = finite && fabsf(v) < INFINITY;
    check(finite, "%-5s huge scores: gradients are finite", floatX_name);
}

template <class T>
static bool same_bits(const std::vector<T>& a, const std::vector<T>& b, int64_t from, int64_t end) {
    return memcmp(a.data() + from, b.data() + from, (size_t)(end - from) * sizeof(T)) == 0;
}

// The gradients of heads [first, end) in the rows from `from` to `to`.
static bool same_gradients(const Results* a, const Results* b, const Case* c, int first, int end, int from, int to) {
    bool same = true;
    for (int64_t t = from; t < to; t++) {
        same = same && same_bits(a->dqkv, b->dqkv, t * row_size(c) + first * c->HS, t * row_size(c) + end * c->HS);
    }
    return same;
}

// One sequence whose tokens from t on change: nothing before t may depend on them, nor dK and dV on queries before.
static void test_causality(const Case* c, int t) {
    ShardedBuffer qkv = random_qkv(c), dout = random_of<floatX>(out_size(c), 1);
    const int64_t width = (int64_t)c->NH * c->HS;
    const Results a = run(c, qkv, dout), again = run(c, qkv, dout);
    check(same_bits(a.out, again.out, 0, out_size(c)) && same_bits(a.lse, again.lse, 0, lse_size(c)) &&
              same_bits(a.dqkv, again.dqkv, 0, qkv_size(c)),
          "%-5s T %d x %d: a second run gives the same bits", floatX_name, c->T, c->HS);

    const ShardedBuffer other_qkv = random_qkv(c), other_dout = random_of<floatX>(out_size(c), 1);
    ShardedBuffer later = qkv, later_dout = dout;
    std::copy(other_qkv.begin() + t * row_size(c), other_qkv.end(), later.begin() + t * row_size(c));
    std::copy(other_dout.begin() + t * width, other_dout.end(), later_dout.begin() + t * width);
    Results b = run(c, later, later_dout);
    bool same = same_bits(a.out, b.out, 0, t * width) && same_gradients(&a, &b, c, 0, c->NH, 0, t);
    for (int h = 0; h < c->NH; h++) same = same && same_bits(a.lse, b.lse, h * c->T, h * c->T + t);
    check(same && !same_bits(a.out, b.out, t * width, out_size(c)),
          "%-5s T %d x %d: out, lse, dQ before token %d do not depend on tokens from there on", floatX_name, c->T,
          c->HS, t);

    ShardedBuffer early_dout = dout;
    std::copy(other_dout.begin(), other_dout.begin() + t * width, early_dout.begin());
    b = run(c, qkv, early_dout);
    check(same_gradients(&a, &b, c, 0, c->NH + 2 * c->NKV, t, c->T) && !same_gradients(&a, &b, c, 0, c->NH, 0, t),
          "%-5s T %d x %d: gradients from token %d on do not depend on dout before it", floatX_name, c->T, c->HS, t);
}

// ---- Token by token: each position against the reference, and the cache, bit by bit. ----------------------------

static void test_decode(const Case* c) {
    const ShardedBuffer qkv = random_qkv(c);
    const int64_t width = (int64_t)c->NH * c->HS, stride = row_size(c) - width;
    Device<floatX> d_qkv(row_size(c), c->shift), d_out(width, c->shift), d_cache((c->T + 1) * stride, c->shift);
    const HostBuffer x = on_host(qkv);
    HostBuffer cache((size_t)((c->T + 1) * stride)), want((size_t)out_size(c));
    Floats got, lse((size_t)lse_size(c));
    for (int t = 0; t < c->T; t++) {
        d_qkv.set(ShardedBuffer(qkv.begin() + t * row_size(c), qkv.begin() + (t + 1) * row_size(c)));
        d_out.set(ShardedBuffer((size_t)width, (floatX)NAN));
        attention_decode(d_out.p, d_cache.p, d_qkv.p, t, {1, 1, c->NH, c->NKV, c->HS});
        const Floats row = floats_of(d_out.get());
        got.insert(got.end(), row.begin(), row.end());
        reference::attention_decode(want.data() + t * width, cache.data(), x.data() + t * row_size(c), t,
                                    {1, 1, c->NH, c->NKV, c->HS});
    }
    const double E = float32_error(c, floats_of(qkv));
    compare_after("decode", c, got, floats_of(want), E, 0, "B");
    reference::attention_forward(want.data(), lse.data(), x.data(), {1, c->T, c->NH, c->NKV, c->HS});
    compare_after("rows", c, got, floats_of(want), 2 * E, 0, "CB");
    const ShardedBuffer kept = d_cache.get();
    bool same = true;
    for (int64_t t = 0; t < c->T; t++) {
        same = same && memcmp(&kept[(size_t)(t * stride)], &qkv[(size_t)(t * row_size(c) + width)],
                              (size_t)stride * sizeof(floatX)) == 0;
    }
    for (int64_t i = 0; i < stride; i++) same = same && isnan((float)kept[(size_t)(c->T * stride + i)]);
    check(same, "%-5s decode: the cache has the keys and values of %d tokens, and no more", floatX_name, c->T);
    Device<floatX> d_all((int64_t)c->T * row_size(c), c->shift), d_again((c->T + 1) * stride, c->shift);
    d_all.set(ShardedBuffer(qkv.begin(), qkv.begin() + (int64_t)c->T * row_size(c)));
    attention_fill_cache(d_again.p, d_all.p, {1, c->T, c->NH, c->NKV, c->HS});
    const ShardedBuffer again = d_again.get();
    same = memcmp(again.data(), kept.data(), (size_t)(c->T * stride) * sizeof(floatX)) == 0;
    for (int64_t i = 0; i < stride; i++) same = same && isnan((float)again[(size_t)(c->T * stride + i)]);
    check(same, "%-5s remember: the same of all %d tokens at once", floatX_name, c->T);
}

// ---- Which block does what --------------------------------------------------------------------------------------

template <bool KEYS>
__global__ static void record_kernel(int64_t* to, Attention s, int tile) {
    const Block block = block_of<KEYS>(s, tile, (int)blockIdx.x);
    const int64_t all[8] = {block.first, block.h, block.q, block.k, block.v, block.out, block.stats, block.b};
    for (int i = 0; i < 8; i++) to[blockIdx.x * 8 + i] = all[i];
}

// B 3, T 70, heads 4/2 x 8; `section` of 12 or 6 heads at a time, tiles of 32: against three loops.
template <bool KEYS>
static void test_blocks(int section) {
    const int B = 3, T = 70, NH = 4, NKV = 2, HS = 8, tile = 32, tiles = 3, of_one = KEYS ? NKV : NH;
    const Attention s = {T, NH, NKV, HS, B * of_one, section, 1.0f};
    std::vector<int64_t> want;
    for (int first = 0; first < s.heads; first += section) {
        for (int i = 0; i < tiles; i++) {
            for (int head = first; head < first + section && head < s.heads; head++) {
                const int64_t b = head / of_one, h = KEYS ? head % NKV * (NH / NKV) : head % NH, kv = h / (NH / NKV);
                const int64_t row = b * T * (NH + 2 * NKV) * HS;
                const int64_t all[8] = {tile * (KEYS ? i : tiles - 1 - i),
                                        h,
                                        row + h * HS,
                                        row + (NH + kv) * HS,
                                        row + (NH + NKV + kv) * HS,
                                        (b * T * NH + h) * HS,
                                        (b * NH + h) * T,
                                        b};
                want.insert(want.end(), all, all + 8);
            }
        }
    }
    Device<int64_t> got((int64_t)want.size());
    launch(launch_shape((unsigned)(s.heads * tiles), 1), record_kernel<KEYS>, got.p, s, tile);
    check(got.get() == want, "blocks of %s in sections of %d heads: each once, most work first",
          KEYS ? "keys" : "queries", section);
}

static void test_sections(void) {
    bool good = true;
    for (int T = 1; T <= 1 << 20; T *= 2) {
        for (int group = 1; group <= 4; group *= 2) {
            const Attention q = attention_of({3, T, 4, 4 / group, 128}, false);
            const Attention k = attention_of({3, T, 4, 4 / group, 128}, true);
            const int64_t head = (int64_t)2 * T * 128 * (int64_t)sizeof(floatX), size = 16 << 20;
            good = good && q.heads == 12 && k.heads == 12 / group && q.section % group == 0;
            good = good && q.section >= group && q.section <= 12 && k.section >= 1 && k.section <= k.heads;
            good = good && (q.section == group || q.section / group * head <= size);
            good = good && (k.section == 1 || k.section * group * head <= size);
            good = good && (q.section == 12 || (q.section / group + 1) * head > size);
            good = good && (k.section == k.heads || (k.section + 1) * group * head > size);
        }
    }
    check(good, "sections of heads: as many as L2 has room for, and at least one");
}

// Blocks take pieces of work as those of hopper_forward_kernel do. to (3, pieces): how often each was taken, how many
// computing warps have seen it, and its block.
__global__ static void __launch_bounds__(HOPPER_THREADS, 1) pieces_kernel(int* to, Pieces pieces) {
    auto& ring = *dynamic_shared<TileRing<4>>();
    ring.start(0);
    if (threadIdx.x == 0) {
        int round = 0, piece;
        for (; (piece = next_piece(pieces)) < pieces.count; round++) {
            atomicAdd(&to[piece], 1);
            to[2 * pieces.count + piece] = (int)blockIdx.x;
            ring.give(piece, round);
        }
        ring.give(piece, round);
    } else if (threadIdx.x >= 128) {
        for (int round = 0, piece; (piece = ring.await_piece(round)) < pieces.count; round++) {
            if (threadIdx.x % 32 == 0) atomicAdd(&to[pieces.count + piece], 1);
            ring.release_own();
        }
    }
}

// Each piece goes to one block, and to none that starts when others have taken all: on the emulator no more blocks run
// at a time than there are cores. Twice, as the counter has to be 0 again.
static void test_pieces(void) {
    const int count = 40, blocks = 12;
    bool once = true, seen = true;
    std::vector<bool> works;
    for (int i = 0; i < 2; i++) {
        Device<int> to(std::vector<int>((size_t)3 * count, 0));
        const Pieces pieces = {count, count + blocks - 1};
        launch(hopper_launch(pieces, sizeof(TileRing<4>)), pieces_kernel, to.p, pieces);
        const std::vector<int> got = to.get();
        works.assign((size_t)blocks, false);
        for (size_t n = 0; n < (size_t)count; n++) {
            once = once && got[n] == 1;
            seen = seen && got[(size_t)count + n] == 8;
            works[(size_t)got[(size_t)2 * count + n]] = true;
        }
    }
    const int64_t working = std::count(works.begin(), works.end(), true);
#ifdef __CUDACC__
    const int64_t most = blocks;
#else
    const int64_t most = cuda_on_cpu::core_count();
#endif
    check(once && seen, "each of %d pieces is taken once, and all computing warps see it", count);
    check(working <= most, "%d of %d blocks take them: those that start late take none", (int)working, blocks);
}

// The same bits from any number of blocks.
static void test_grids(const Case* c) {
    const ShardedBuffer qkv = random_qkv(c), dout = random_of<floatX>(out_size(c), 1);
    int* const multiprocessors = &const_cast<cudaDeviceProp*>(gpu_properties())->multiProcessorCount;
    const int all = *multiprocessors;
    *multiprocessors = 5;
    const Results want = run(c, qkv, dout);
    for (const int blocks : {1, 3, 100}) {
        *multiprocessors = blocks;
        const Results got = run(c, qkv, dout);
        check(same_bits(got.out, want.out, 0, out_size(c)) && same_bits(got.lse, want.lse, 0, lse_size(c)) &&
                  same_bits(got.dqkv, want.dqkv, 0, qkv_size(c)),
              "%-5s T %d x %d: the same bits from 5 blocks and from up to %d", floatX_name, c->T, c->HS, blocks);
    }
    *multiprocessors = all;
}

// With ATTENTION=asked (NULL: not set), heads of HS end the program, and the message has `says`.
static void test_refusal(const char* asked, int HS, const char* says) {
    char text[512];
    int status = 0;
    const Quiet quiet = quiet_begin(true);
    const pid_t child = fork();
    if (child == 0) {
        asked ? setenv("ATTENTION", asked, 1) : unsetenv("ATTENTION");
        attention_forward(NULL, NULL, NULL, {1, 1, 1, 1, HS});
        _exit(0);
    }
    waitpid(child, &status, 0);
    quiet_end(&quiet, text, sizeof text);
    check(strstr(text, says) && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_RUN,
          "ATTENTION=%s, heads of %d are refused: %.*s", asked ? asked : "", HS, (int)strcspn(text, "\n"), text);
}

static void test_refusals(void) { // before anything asks for the variable
    test_refusal(NULL, 257, "head size 257");
    test_refusal("plain", 257, "head size 257");
    test_refusal("fast", 64, "ATTENTION=fast is not known");
    test_refusal("mma", 80, "ATTENTION=mma is for heads of 64 or 128");
    test_refusal("wgmma", 80, "ATTENTION=wgmma is for heads of 64 or 128");
    if (sizeof(floatX) == 4) test_refusal("wgmma", 64, "not for 64 of 32 bits");
}

// What runs where nothing is asked for.
static void test_choice(void) {
    const int asked = *attention_asked();
    *attention_asked() = ANY_FAMILY;
#ifdef CUDA_ON_CPU
    const int tensor_family = MMA_FAMILY;
#else
    const int tensor_family = is_hopper() ? WGMMA_FAMILY : MMA_FAMILY; // GPU_ARCH=90a is what gpu_check.sh builds for
#endif
    const int fast = sizeof(floatX) == 2 ? tensor_family : (int)PLAIN_FAMILY;
    check(attention_family(64, true) == fast && attention_family(128, true) == fast &&
              attention_family(64, false) == PLAIN_FAMILY && attention_family(80, true) == PLAIN_FAMILY,
          "%s kernels without ATTENTION: %s for 16 bits in heads of 64 and 128, else plain", floatX_name,
          tensor_family == WGMMA_FAMILY ? "wgmma" : "mma");
    cudaDeviceProp* gpu = const_cast<cudaDeviceProp*>(gpu_properties());
    const size_t shared = gpu->sharedMemPerBlockOptin;
    gpu->sharedMemPerBlockOptin = 99 << 10; // of compute capability 8.6, 8.9, 12.0
    check(attention_family(64, true) == fast && attention_family(128, true) == PLAIN_FAMILY,
          "%s kernels where a block has 99 KB of shared memory: plain for heads of 128", floatX_name);
    gpu->sharedMemPerBlockOptin = shared;
    *attention_asked() = asked;
}

// No sequences, or no tokens: no kernel is launched, and no memory is touched.
static void test_nothing(void) {
    const int HS = *attention_asked() >= MMA_FAMILY ? 128 : 33;
    attention_forward(NULL, NULL, NULL, {0, 5, 2, 1, 64});
    attention_forward(NULL, NULL, NULL, {2, 0, 2, 1, 64});
    attention_backward(NULL, NULL, NULL, NULL, NULL, {0, 5, 2, 1, HS});
    attention_backward(NULL, NULL, NULL, NULL, NULL, {2, 0, 2, 1, HS});
    check(true, "no sequences and no tokens are no work");
}

// A few cases for sanitizers, which are slow.
static const Case few_cases[] = {
    {1, 200, 2, 1, 64, 0, 1}, {1, 150, 1, 1, 128, 0, 1}, {2, 70, 2, 1, 33, 0, 1},
    {1, 130, 1, 1, 64, 1, 1}, {1, 40, 1, 1, 150, 0, 1},
};

static const Case special_cases[] = {
    // tensor cores: large scores
    {1, 200, 4, 2, 64, 0, 8},
    {1, 200, 2, 1, 64, 0, 60},
    {1, 200, 3, 1, 128, 0, 6},
    {1, 130, 2, 1, 128, 0, 60},
    {1, 1, 8, 4, 64, 0, 60},
    // ordinary cores: each width of a row, whole and not
    {1, 1, 1, 1, 1, 0, 1},
    {2, 33, 3, 1, 7, 0, 1},
    {2, 64, 4, 2, 16, 0, 1},
    {1, 65, 6, 3, 24, 0, 1},
    {3, 70, 4, 1, 33, 0, 1},
    {1, 130, 4, 2, 64, 1, 1},
    {1, 100, 4, 4, 80, 0, 1},
    {1, 95, 2, 1, 128, 3, 1},
    {1, 31, 2, 2, 129, 0, 1},
    {2, 70, 2, 1, 256, 0, 1},
    {1, 100, 2, 1, 24, 0, 60},
    {1, 1, 8, 4, 24, 0, 60}, // scores far below 0
};

// More pieces of work than a GPU has multiprocessors, twice and more: long on the emulator, whose GPU is small.
static const Case long_cases[] = {
    {6, 390, 16, 8, 64, 0, 1}, {6, 390, 8, 8, 128, 0, 1}, {5, 390, 16, 4, 64, 0, 1}, {5, 270, 18, 9, 128, 0, 1}};

static const Case decode_cases[] = {
    {1, 70, 2, 1, 64, 0, 1}, {1, 20, 4, 1, 33, 0, 1},  {1, 9, 4, 2, 64, 0, 1},   {1, 40, 3, 3, 128, 0, 6},
    {1, 300, 2, 1, 8, 0, 1}, {1, 12, 2, 1, 256, 0, 1}, {1, 12, 2, 1, 256, 1, 1}, {1, 40, 2, 2, 80, 0, 1},
};

static void test_cases(void) {
    std::vector<Case> all(special_cases, special_cases + sizeof special_cases / sizeof(Case));
    // tensor cores: sequences that end within, at and behind tiles of 32, 64 and 128
    static const int lengths[] = {1, 5, 31, 63, 64, 65, 97, 127, 130, 200, 257};
    static const int heads[][2] = {{1, 1}, {4, 2}, {4, 1}, {6, 3}, {2, 2}};
    for (int i = 0; i < 22; i++)
        all.push_back(
            {1 + i % 3, lengths[i / 2], heads[i % 5][0], heads[i % 5][1], 64 << i % 2, i % 4 == 3 ? 8 : 0, 1});
#ifdef __CUDACC__
    const bool is_long = true;
#else
    const bool is_long = getenv("LONG") != NULL;
#endif
    if (is_long && sizeof(floatX) == 2) all.insert(all.end(), long_cases, long_cases + 4);
    for (const Case& c : all) {
        if (has_family(&c)) test_case(&c);
    }
}

// What holds for bits, and scores as large as they can be.
static void test_properties(Case c) {
    if (!has_family(&c)) return;
    c.size = 1;
    test_causality(&c, 70);
    test_causality(&c, 64);
    c.size = 3000;
    test_huge_scores(&c);
}

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    test_refusals();
    const int asked = *attention_asked(), used = asked == ANY_FAMILY ? default_tensor_family() : asked;
    if (asked >= MMA_FAMILY && (sizeof(floatX) == 4 || (asked == WGMMA_FAMILY && !has_hopper_code()))) {
        printf("left out: ATTENTION=%s has no kernels for this device and %s\n", getenv("ATTENTION"), floatX_name);
        return test_end();
    }
    test_choice();
    test_nothing();
    if (used == WGMMA_FAMILY && sizeof(floatX) == 2) {
        test_pieces();
        const Case grids = {2, 260, 2, 1, 64, 0, 1};
        if (has_family(&grids)) test_grids(&grids);
    }
    test_sections();
    for (int section = 1; section <= 12; section += section < 4 ? 2 : 7) { // 1, 3, 5, 12
        test_blocks<false>(section);
        test_blocks<true>(section <= 6 ? section : 6);
    }
    if (brief) {
        for (const Case& c : few_cases) {
            if (has_family(&c)) test_case(&c);
        }
        for (int i = 0; i < 2; i++) test_decode(&decode_cases[i]);
        return test_end();
    }
    test_cases();
    test_properties({1, 150, 4, 2, 64, 0, 1});
    test_properties({1, 140, 2, 1, 128, 0, 1});
    test_properties({1, 75, 4, 2, 40, 0, 1});
    for (const Case& c : decode_cases) test_decode(&c);
    return test_end();
}
