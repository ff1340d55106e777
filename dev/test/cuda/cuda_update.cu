/*
cuda_update.cu: the kernels of the loss (cross-entropy, whole and in slices), of the update (norm of the gradient, AdamW
and SGD with stochastic rounding), the checksum of parameters, and of replicas that do not wait, against their
references in C. Bounds: see cuda_compare.h.
*/
#include "cuda_compare.h"

#include "../../../kernels/checksum.cuh"
#include "../../../kernels/crossentropy.cuh"
#include "../../../kernels/global_norm.cuh"
#include "../../../kernels/async_dp.cuh"
#include "../../../kernels/optimizers.h"

#define REFERENCE_KERNELS // on the CPU
#undef OPTIMIZERS_H
namespace reference {
#include "../../../kernels/checksum.h"
#include "../../../kernels/crossentropy.h"
#include "../../../kernels/global_norm.h"
#include "../../../kernels/async_dp.h"
#include "../../../kernels/optimizers.h"
} // namespace reference

typedef std::vector<int32_t> Integers;

// ----------------------------------------------------------------------------------------------------------------
// Cross-entropy. e^(x - max) has 4 roundings and, |x - max|-fold, 2: of the argument, and of its product with log2 e. A
// sum of V: in a thread V / 512 additions, 10 between threads; in the reference 2048 / 64 + 6. `distance` is the mean
// of |x - max|, weighted with the terms of the sum.

typedef struct {
    int N, V, stride, moved;
    float size; // of logits
} Loss;

typedef struct {
    ShardedBuffer logits; // (N, stride), NaN behind V
    Integers targets;
} LossInput;

static LossInput loss_input(const Loss& t) {
    LossInput in;
    in.logits = random_of<floatX>((int64_t)t.N * t.stride, t.size);
    for (int n = 0; n < t.N; n++) {
        in.targets.push_back((int32_t)(random_uniform(3, (uint64_t)t.V, (uint64_t)n) * (float)t.V));
        for (int c = t.V; c < t.stride; c++) in.logits[(size_t)n * t.stride + c] = (floatX)NAN;
    }
    in.targets[0] = t.V - 1;
    in.targets[(size_t)t.N - 1] = 0;
    if (t.N > 2) in.targets[2] = -1;
    return in;
}

// What the loss of each row, its sum, and the gradient of each logit may be off by in float32: of the kernel and the
// reference together.
static void loss_errors(const Loss& t, const Floats& logits, const Integers& targets, float scale, Floats* sum,
                        Floats* loss, Floats* gradient) {
    const double k = 2 * 4 + sqrt(t.V / 512.0 + 10) + sqrt(fmin(t.V, 2048) / 64 + 6);
    sum->assign((size_t)t.N, 0), loss->assign((size_t)t.N, 0), gradient->assign((size_t)t.N * t.stride, 0);
    for (int n = 0; n < t.N; n++) {
        const float* x = &logits[(size_t)n * t.stride];
        double max = -INFINITY, total = 0, distance = 0;
        for (int v = 0; v < t.V; v++) max = fmax(max, x[v]);
        for (int v = 0; v < t.V; v++) {
            total += exp(x[v] - max);
            distance += exp(x[v] - max) * (max - x[v]);
        }
        if (targets[(size_t)n] < 0) continue;
        distance /= total;
        const double error = k * U32 * (1 + distance), target = max - x[targets[(size_t)n]];
        (*sum)[(size_t)n] = (float)(error * total);
        (*loss)[(size_t)n] = (float)(error + 4 * U32 * (log(total) + target));
        for (int v = 0; v < t.V; v++) {
            const double p = exp(x[v] - max) / total, hit = v == targets[(size_t)n] ? U32 : 0;
            (*gradient)[(size_t)n * t.stride + v] = (float)(scale * (p * (error + 4 * U32 * (max - x[v])) + hit));
        }
    }
}

// The vocabulary in `count` slices, each with what the reference of all slices has found.
static void test_crossentropy(const Loss& t, int count) {
    const float scale = 0.37f;
    const LossInput in = loss_input(t);
    const int N = t.N;
    Floats sum_error, loss_error, gradient_error;
    loss_errors(t, floats_of(in.logits), in.targets, scale, &sum_error, &loss_error, &gradient_error);
    const HostBuffer all = on_host(in.logits);
    const Targets host_targets = {in.targets.data(), scale};
    HostBuffer packed((size_t)N * t.V);
    Floats want_max((size_t)N), want_sum((size_t)N), want_target((size_t)N);
    for (int n = 0; n < N; n++) {
        for (int v = 0; v < t.V; v++) packed[(size_t)n * t.V + v] = all[(size_t)n * t.stride + v];
    }
    reference::crossentropy_max(want_max.data(), packed.data(), N, {0, t.V, t.V});
    reference::crossentropy_sum(want_sum.data(), want_target.data(), packed.data(), want_max.data(), host_targets, N,
                                {0, t.V, t.V});
    for (int i = 0; i < count; i++) {
        const int first = (int)((int64_t)t.V * i / count), V = (int)((int64_t)t.V * (i + 1) / count) - first;
        const int stride = V + t.stride - t.V;
        const VocabSlice part = {first, V, stride};
        ShardedBuffer slice((size_t)N * stride, (floatX)NAN);
        Floats error((size_t)N * stride, 0.0f);
        for (int n = 0; n < N; n++) {
            for (int v = 0; v < V; v++) {
                slice[(size_t)n * stride + v] = in.logits[(size_t)n * t.stride + first + v];
                error[(size_t)n * stride + v] = gradient_error[(size_t)n * t.stride + first + v];
            }
        }
        HostBuffer logits = on_host(slice);
        Floats max((size_t)N), sum((size_t)N), target((size_t)N), losses((size_t)N);
        Device<floatX> device(slice, t.moved);
        Device<int32_t> targets(in.targets);
        Device<float> dmax(N), dsum(N), dtarget(N), dlosses(N);
        begin_case(N, t.V, t.moved);
        reference::crossentropy_max(max.data(), logits.data(), N, part);
        crossentropy_max(dmax.p, device.p, N, part);
        compare_same("crossentropy_max", dmax.get(), max);
        dmax.set(want_max);
        reference::crossentropy_sum(sum.data(), target.data(), logits.data(), want_max.data(), host_targets, N, part);
        crossentropy_sum(dsum.p, dtarget.p, device.p, dmax.p, {targets.p, scale}, N, part);
        compare("crossentropy_sum", dsum.get(), sum, false, sum_error);
        compare_same("crossentropy_sum: target_logit", dtarget.get(), target);
        dsum.set(want_sum), dtarget.set(want_target);
        reference::crossentropy_loss(losses.data(), want_sum.data(), want_target.data(), N);
        crossentropy_loss(dlosses.p, dsum.p, dtarget.p, N);
        compare("crossentropy_loss", dlosses.get(), losses, false, loss_error);
        reference::crossentropy_backward(logits.data(), want_max.data(), want_sum.data(), host_targets, N, part);
        crossentropy_backward(device.p, dmax.p, dsum.p, {targets.p, scale}, N, part);
        compare("crossentropy_backward", floats_of(device.get()), floats_of(logits), true, error);
    }
}

static void test_crossentropy_fused(const Loss& t) {
    const float scale = 0.37f;
    const LossInput in = loss_input(t);
    HostBuffer logits = on_host(in.logits);
    Floats losses((size_t)t.N), sum_error, loss_error, gradient_error;
    loss_errors(t, floats_of(in.logits), in.targets, scale, &sum_error, &loss_error, &gradient_error);
    reference::crossentropy_fused(losses.data(), logits.data(), {in.targets.data(), scale}, t.N, {0, t.V, t.stride});
    Device<floatX> device(in.logits, t.moved);
    Device<int32_t> targets(in.targets);
    Device<float> dlosses(t.N);
    begin_case(t.N, t.V, t.moved);
    crossentropy_fused(dlosses.p, device.p, {targets.p, scale}, t.N, {0, t.V, t.stride});
    compare("crossentropy_fused: losses", dlosses.get(), losses, false, loss_error);
    compare("crossentropy_fused: gradient", floats_of(device.get()), floats_of(logits), true, gradient_error);
}

// Rows whose result is known. Whole, and as one slice.
static void test_crossentropy_special() {
    enum { N = 6, V = 130, STRIDE = 136 };
    for (int fused = 0; fused < 2; fused++) {
        ShardedBuffer logits((size_t)N * STRIDE, (floatX)0.0f);
        Integers htargets(N, 0);
        logits[0 * STRIDE + 0] = (floatX)1e4f; // certain and right
        logits[0 * STRIDE + 1] = (floatX)-1e4f;
        logits[1 * STRIDE + 0] = (floatX)-1e4f; // certain and wrong
        logits[1 * STRIDE + 1] = (floatX)1e4f;
        logits[3 * STRIDE + 100] = (floatX)NAN;                                 // must not stay hidden
        for (int v = 2; v < V; v++) logits[4 * STRIDE + v] = (floatX)-INFINITY; // masked logits
        logits[5 * STRIDE + 7] = (floatX)NAN;
        htargets[5] = -1;
        Device<floatX> x(logits);
        Device<int32_t> targets(htargets);
        Device<float> dlosses(N), max(N), sum(N), target(N);
        if (fused) {
            crossentropy_fused(dlosses.p, x.p, {targets.p, 1}, N, {0, V, STRIDE});
        } else {
            crossentropy_max(max.p, x.p, N, {0, V, STRIDE});
            crossentropy_sum(sum.p, target.p, x.p, max.p, {targets.p, 1}, N, {0, V, STRIDE});
            crossentropy_loss(dlosses.p, sum.p, target.p, N);
            crossentropy_backward(x.p, max.p, sum.p, {targets.p, 1}, N, {0, V, STRIDE});
        }
        const Floats loss = dlosses.get(), g = floats_of(x.get());
        const float wrong = (float)(floatX)1e4f * 2, *certain = &g[STRIDE], *masked = &g[4 * STRIDE];
        bool zeros = loss[5] == 0, nan = loss[3] != loss[3], padding = true;
        for (int v = 0; v < STRIDE; v++) {
            zeros &= g[(size_t)(5 * STRIDE + v)] == 0;
            nan &= v >= V || g[(size_t)(3 * STRIDE + v)] != g[(size_t)(3 * STRIDE + v)];
            for (int n = 0; n < N; n++) padding &= v < V || g[(size_t)(n * STRIDE + v)] == 0;
        }
        const char* name = fused ? "crossentropy_fused" : "crossentropy in slices";
        check(loss[0] == 0 && g[0] == 0, "%-5s %s: a large logit at the target: loss %g", floatX_name, name, loss[0]);
        check(loss[1] == wrong && certain[0] == -1 && certain[1] == 1, "%-5s %s: %g off the target: loss %g",
              floatX_name, name, wrong, loss[1]);
        check_error("  equal logits: loss - log V", fabs(loss[2] - log(1.0 * V)), 8 * U32 * log(1.0 * V));
        check(nan, "%-5s %s: a NaN logit gives a NaN loss and gradient", floatX_name, name);
        check_error("  masked logits: loss - log 2", fabs(loss[4] - log(2)), 4 * U32);
        check(masked[0] == -0.5f && masked[1] == 0.5f && masked[2] == 0, "%-5s %s: masked gradient", floatX_name, name);
        check(zeros && padding, "%-5s %s: target -1, and padding: 0 whatever the logits", floatX_name, name);
    }
}

// Equal logits far below zero, in rows of several warps: nothing else may count.
static void test_crossentropy_low() {
    enum { N = 5, V = 1031 };
    ShardedBuffer logits((size_t)N * V, (floatX)-2e4f);
    Device<floatX> x(logits);
    Device<int32_t> targets(Integers(N, 3));
    Device<float> losses(N), max(N);
    crossentropy_max(max.p, x.p, N, {0, V, V});
    crossentropy_fused(losses.p, x.p, {targets.p, 1}, N, {0, V, V});
    begin_case(N, V, 0);
    compare_same("crossentropy_max", max.get(), Floats(N, (float)logits[0]));
    compare("crossentropy_fused: losses", losses.get(), Floats(N, logf(V)), false, 8 * U32);
}

// In float64: N / 1024 additions in a thread, 10 between threads; in the reference N.
static void test_losses_add(int N) {
    const Floats hlosses = random_of<float>(N, 8);
    double want = 3.25;
    Device<float> losses(hlosses);
    Device<double> sum(std::vector<double>(1, want));
    losses_add(sum.p, losses.p, N);
    reference::losses_add(&want, hlosses.data(), N);
    begin_case(N, 1, 0);
    add_result("losses_add", fabs(sum.get()[0] - want) / ((sqrt(N) * 8 + 8) * sqrt(N + 11) * 0x1p-53), 0, 1);
}

static void test_crossentropies(bool is_short) {
    const int vocabularies[][2] = {{1, 1}, {3, 8}, {257, 264}, {1031, 1031}, {5000, 5008}};
    for (int i = 0; i < (is_short ? 3 : 5); i++) {
        for (int moved = 0; moved < 2; moved++) {
            const Loss t = {7, vocabularies[i][0], vocabularies[i][1], moved, 4};
            test_crossentropy(t, 1);
            if (t.V > 2) test_crossentropy(t, 3);
            test_crossentropy_fused(t);
        }
    }
    test_crossentropy({5, 700, 704, 0, 1e4f}, 2);
    test_crossentropy({7, 1000, 1024, 0, 3}, 1); // the block is just as wide as a row
    test_crossentropy({5, 3, 8, 0, 3}, 4);       // a slice of padding alone
    test_crossentropy_fused({5, 700, 704, 0, 1e4f});
    if (!is_short) test_crossentropy_fused({2, 50257, 50304, 0, 4});
    if (!is_short) test_crossentropy_fused({2, 120011, 120016, 0, 4}); // more than shared memory holds
    test_crossentropy_special();
    test_crossentropy_low();
    test_losses_add(1);
    test_losses_add(2500);
}

// ----------------------------------------------------------------------------------------------------------------
// The optimizers, each row of the table. On both sides AdamW's m, v and masters have 3, 4 and 12 roundings of terms in
// (-1, 1); SGD's m has 5, its masters 2 more.

typedef struct {
    Floats master, g, m, v;
} Moments;

static const OptimizerStep test_step = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 3, 0.7f};

static Moments moments(int64_t n) {
    Moments a = {random_of<float>(n, 1), random_of<float>(n, 1), random_of<float>(n, 0.1f), random_of<float>(n, 0.1f)};
    for (int64_t i = 0; i < n; i++) {
        a.v[(size_t)i] = fabsf(a.v[(size_t)i]) + 1e-3f;
        if (i % 5 == 3) a.g[(size_t)i] *= 1e-6f;
    }
    return a;
}

typedef struct {
    Floats p, master, m, v;
} Updated;
static bool same_bits(const Floats& a, const Floats& b) {
    return a.size() == b.size() && (a.empty() || memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}
static bool same_bits(const Updated& a, const Updated& b) {
    return same_bits(a.p, b.p) && same_bits(a.master, b.master) && same_bits(a.m, b.m) && same_bits(a.v, b.v);
}

// What is rounded stochastically has the bits that the reference rounds the same masters to; all NaNs are equal.
static void compare_rounding(const char* name, const Floats& p, const Floats& master, int64_t step, uint64_t key,
                             uint64_t first) {
    HostBuffer want(p.size());
    reference::adamw_round(want.data(), master.data(), (int64_t)p.size(), step, key, first);
    Floats numbers = p, wanted = floats_of(want);
    for (Floats* f : {&numbers, &wanted}) {
        for (float& x : *f) x = x == x ? x : 12345.0f;
    }
    add_result(name, same_bits(numbers, wanted) ? 0 : INFINITY, 0, 1);
}

static int kind; // of the optimizer that is tested, and its name with what is tested of it
static const char* named(const char* what) {
    static char name[96];
    snprintf(name, sizeof name, "%s_update: %s", optimizers[kind].name, what);
    return name;
}

// The reference's update of float32 weights, which are its masters, or its parameters where it has no masters, `gap`
// elements behind the first. Returns the parameters.
static HostBuffer update_on_host(Floats& weights, const Floats& grad, Floats& m, Floats& v, int gap,
                                 const std::vector<TensorRange>& ranges) {
    HostBuffer p((size_t)gap, reference::to_floatX(0));
    for (float w : weights) p.push_back(reference::to_floatX(w));
    reference::optimizers[kind].update(p.data(), BOTH_ROUND ? weights.data() : NULL, grad.data(), m.data(), v.data(),
                                       ranges.data(), (int)ranges.size(), &test_step);
    if (!BOTH_ROUND) {
        for (size_t i = 0; i < weights.size(); i++) weights[i] = reference::to_float(p[(size_t)gap + i]);
    }
    return p;
}

// An update in parts that begin at `cuts`, the last of which is the end, as slices that begin there.
static Updated updated(const Moments& a, const std::vector<int64_t>& cuts, int moved, uint64_t first, uint64_t key = 17,
                       const OptimizerStep& s = test_step) {
    ShardedBuffer start;
    for (float x : a.master) start.push_back((floatX)x);
    Device<floatX> p(start, bit(moved, 0));
    Device<float> master(a.master, bit(moved, 1)), g(a.g, bit(moved, 2)), m(a.m, bit(moved, 3)), v(a.v, bit(moved, 4));
    const bool second = optimizers[kind].moments > 1;
    for (size_t i = 0; i + 1 < cuts.size(); i++) {
        const TensorRange part = {cuts[i], cuts[i], cuts[i + 1] - cuts[i], first + (uint64_t)cuts[i], key, 0, true};
        optimizers[kind].update(p.p, sizeof(floatX) == 4 ? NULL : master.p, g.p, m.p, second ? v.p : NULL, &part, 1,
                                &s);
    }
    const Floats rounded = floats_of(p.get());
    if (sizeof(floatX) == 4) return {rounded, rounded, m.get(), v.get()};
    Device<floatX> again((int64_t)start.size(), bit(moved, 0)); // a master read from a file is rounded as it was
    adamw_round(again.p, master.p, (int64_t)start.size(), s.step, key, first);
    const Floats rounded_again = floats_of(again.get());
    begin_case(1, (int)start.size(), moved);
    const bool same = memcmp(rounded_again.data(), rounded.data(), rounded.size() * sizeof(float)) == 0;
    add_result(named("rounded as by adamw_round"), same ? 0 : INFINITY, 0, 1);
    if (BOTH_ROUND) compare_rounding(named("bits rounded as on the CPU"), rounded, master.get(), s.step, key, first);
    return {rounded, master.get(), m.get(), v.get()};
}

static void test_update(int n, int moved, uint64_t first) {
    const Moments a = moments(n);
    Floats want = a.master, want_m = a.m, want_v = a.v;
    update_on_host(want, a.g, want_m, want_v, 0, {whole_range(n)});
    const Updated got = updated(a, {0, n}, moved, first);
    const bool two = optimizers[kind].moments > 1;
    begin_case(1, n, moved);
    compare(named("master"), got.master, want, false, (two ? 12 : 4) * U32);
    compare(named("m"), got.m, want_m, false, (two ? 6 : 10) * U32);
    if (two) compare(named("v"), got.v, want_v, false, 8 * U32);
}

// The neighbours of x in floatX, |low| <= |x| <= |high|, and how far x is from the lower one to the higher.
typedef struct {
    float low, high;
    double fraction;
} Neighbours;
static Neighbours neighbours(float x) {
    int e;
    frexp(x, &e);
    const double step = ldexp(1, (int)fmax(e - 8, -133)), low = step * trunc((double)x / step);
    const double high = low + copysign(step, x);
    return {(float)low, (float)high, fabs((double)x - low) / step};
}

// Rounding: to a neighbour, up if the fraction and the random bits of the element carry.
static void test_rounding(int n, float size, uint64_t first, uint64_t key, int64_t step) {
    Moments a = moments(n);
    for (float& x : a.master) x *= size;
    OptimizerStep s = test_step;
    s.step = step, s.lr = 1e-3f;
    const Updated got = updated(a, {0, n}, 0, first, key, s);
    bool right = true;
    double bias = 0;
    for (int i = 0; i < n; i++) {
        const float x = got.master[(size_t)i], y = got.p[(size_t)i];
        const Neighbours near = neighbours(x);
        const uint64_t at = first + (uint64_t)i;
        const uint32_t random = philox(key, (uint64_t)step, at / 4).word[at % 4] & 0xffffu;
        const double carry = near.fraction + ldexp(random, -16);
        right &= y == (near.fraction > 0 && carry >= 1 ? near.high : near.low);
        bias += fabs((double)y - near.low) / fabs((double)near.high - near.low) - near.fraction;
    }
    check(right, "%-5s %s to %g", floatX_name, named("numbers are rounded by the bits of their element"), (double)size);
    // Of a fraction f, the variance is f (1 - f), 1/6 in the mean over f.
    check_error("  bias in steps", fabs(bias / n), 4 / sqrt(6.0 * n));
}

static void test_slices() {
    const int n = 1201;
    const Moments a = moments(n);
    const Updated whole = updated(a, {0, n}, 0, 4);
    bool same = true;
    for (int64_t cut = 1; cut < 9; cut++) same &= same_bits(whole, updated(a, {0, cut, 600 + cut, n}, 0, 4));
    for (int moved = 1; moved < 32; moved *= 2) same &= same_bits(whole, updated(a, {0, n}, moved, 4));
    check(same, "%-5s %s", floatX_name, named("the same bits in slices and at any alignment"));
    if (sizeof(floatX) == 4) return;
    OptimizerStep stays = test_step;
    stays.lr = 0;
    const Floats no_step = updated(a, {0, n}, 0, 4, 17, stays).p;
    stays.step++;
    const bool other = !same_bits(whole.p, updated(a, {0, n}, 0, 4, 17 + (1ull << 40)).p) &&
                       !same_bits(whole.p, updated(a, {0, n}, 0, 4 + (1ull << 40)).p) &&
                       !same_bits(no_step, updated(a, {0, n}, 0, 4, 17, stays).p);
    check(other, "%-5s %s", floatX_name, named("other bits for another key, place or step"));
}

// Without a step (lr = 0) the masters stay, and p is what they are rounded to.
static void test_rounding_special() {
    Moments a;
    for (uint32_t bits = 0; bits < 65536; bits += 7) { // a seventh of all numbers of floatX
        floatX x;
        const uint16_t half = (uint16_t)bits;
        memcpy((void*)&x, &half, 2);
        if (fabsf((float)x) < INFINITY) a.master.push_back((float)x);
    }
    const size_t exact = a.master.size();
    const float special[] = {INFINITY, -INFINITY, NAN,          0x1.fffffep127f, -0x1.fffffep127f,
                             -NAN,     0x1p-149f, -0x1.8p-133f, 0x1.234p-127f};
    for (int i = 0; i < 8; i++) a.master.insert(a.master.end(), special, special + 9);
    const float largest = 0x1.fep127f;
    const int n = (int)a.master.size();
    a.g.assign((size_t)n, 0), a.m = a.v = a.g;
    OptimizerStep s = test_step;
    s.lr = 0;
    const Updated got = updated(a, {0, n}, 0, 0, 5, s);
    bool same = true, finite = true, infinite = true;
    for (size_t i = 0; i < exact; i++) same &= bits_of_float(got.p[i]) == bits_of_float(a.master[i]);
    for (size_t i = exact; i < (size_t)n; i++) {
        const float x = a.master[i], y = got.p[i];
        if (fabsf(x) < INFINITY)
            finite &= fabsf(y) <= largest && (fabsf(x) < largest || y == copysignf(largest, x));
        else
            infinite &= x == x ? y == x : y != y;
    }
    check(same, "%-5s %s", floatX_name, named("numbers of floatX stay what they are, with their sign"));
    check(finite, "%-5s %s", floatX_name, named("finite numbers stay finite"));
    check(infinite, "%-5s %s", floatX_name, named("infinities and NaN stay"));
}

static void test_nan() {
    Moments a = moments(37);
    a.g[9] = NAN;
    const Updated got = updated(a, {0, 37}, 0, 0);
    bool right = true;
    for (size_t i = 0; i < 37; i++) {
        const bool here = i == 9, two = optimizers[kind].moments > 1;
        right &= isnan(got.p[i]) == here && isnan(got.m[i]) == here && isnan(got.v[i]) == (here && two);
    }
    check(right, "%-5s %s", floatX_name, named("a NaN in the gradient is seen, and alone"));
}

// Ranges of more tensors than two launches take, one after the other with gaps, empty ones too; those of the first
// launch are aligned. gap: where parameters are n elements behind all else. Tensors with the same index have one sum.
static std::vector<TensorRange> many_ranges(int64_t gap, int64_t* end) {
    const int64_t lengths[] = {0, 5, 1, 2049, 1024, 0, 3, 1023, 4, 33, 0, 0, 16389};
    std::vector<TensorRange> ranges;
    int64_t at = 0;
    for (int i = 0; i < 2 * RANGES_PER_LAUNCH + 5; i++) {
        const bool aligned = i < RANGES_PER_LAUNCH;
        const int64_t n = lengths[i % 13];
        const uint64_t first = aligned ? 8 : (uint64_t)i * 1000003;
        ranges.push_back({at + gap, at, n, first, 99 + (uint64_t)i, i * 7 % 23, i % 3 != 0});
        at = aligned ? (int64_t)round_up((size_t)(at + n), 4) + 4 : at + n + i % 3;
    }
    *end = at;
    return ranges;
}

// Every row of the table beside its CPU twin, and beside an update of each range alone. Errors are relative to the
// largest number.
static void test_ranges(int gap) {
    int64_t n;
    const std::vector<TensorRange> ranges = many_ranges(gap, &n);
    const int count = (int)ranges.size();
    const ShardedBuffer params = random_of<floatX>(n + gap, 1);
    const Floats start = floats_of(params), g = random_of<float>(n, 1), masters(start.begin() + gap, start.end());
    Floats weights = masters, m = random_of<float>(n, 1), v(g);
    for (float& x : v) x = x * x;
    Updated got[2]; // in one call, and one by one
    const bool two = optimizers[kind].moments > 1, has_master = sizeof(floatX) < sizeof(float);
    for (int alone = 0; alone < 2; alone++) {
        Device<floatX> dp(params);
        Device<float> master(masters), dg(g), dm(m), dv(v);
        for (int i = 0; i < (alone ? count : 1); i++)
            optimizers[kind].update(dp.p, has_master ? master.p : NULL, dg.p, dm.p, two ? dv.p : NULL,
                                    &ranges[(size_t)i], alone ? 1 : count, &test_step);
        got[alone] = {floats_of(dp.get()), master.get(), dm.get(), dv.get()};
    }
    const HostBuffer p = update_on_host(weights, g, m, v, gap, ranges);
    char name[64];
    snprintf(name, sizeof name, "%s, row of the table", optimizers[kind].name);
    const Floats got_p(got[0].p.begin() + gap, got[0].p.end()), all = floats_of(p), want(all.begin() + gap, all.end());
    check_close(name, has_master ? got[0].master : got_p, weights, 16 * U32, 16 * U32);
    snprintf(name, sizeof name, "%s, row of the table: parameters", optimizers[kind].name);
    begin_case(count, (int)n, 0);
    Floats error(weights.size());
    for (size_t i = 0; i < error.size(); i++)
        error[i] = (float)(16 * U32 * (fabs((double)weights[i]) + fabs((double)masters[i])));
    if (BOTH_ROUND) compare(name, got_p, want, true, error);
    check(same_bits(Floats(got[0].p.begin(), got[0].p.begin() + gap), Floats(start.begin(), start.begin() + gap)),
          "%-5s %s: parameters before all ranges stay", floatX_name, optimizers[kind].name);
    check_close("its first moment", got[0].m, m, 16 * U32, 16 * U32);
    check_close("its second moment", got[0].v, v, 16 * U32, 16 * U32);
    check(same_bits(got[0], got[1]), "%-5s %s: %d ranges of tensors at once, the bits of one by one", floatX_name,
          optimizers[kind].name, count);
}

// ---- Norm. In float64, at most 64 additions in a thread, 10 between threads and some among blocks. --------------

static void test_sum_of_squares(int64_t n, int shift) {
    Floats g = random_of<float>(n, 1);
    long double want = 0;
    for (float x : g) want += (long double)x * x;
    Device<float> device(g, shift);
    Device<double> sum(std::vector<double>(1, 0.0));
    const TensorRange range = whole_range(n);
    sum_of_squares(sum.p, device.p, &range, 1);
    const double error = fabs((double)(sum.get()[0] - want)) / (n > 0 ? (double)want : 1);
    for (int64_t i = 0; i < n; i++) g[(size_t)i] = (float)(i % 7 - 3) * 0x1p40f; // whole numbers: exact in any order
    int64_t whole = 0;
    for (int64_t i = 0; i < n; i++) whole += (i % 7 - 3) * (i % 7 - 3);
    device.set(g);
    sum.set(std::vector<double>(1, 3 * 0x1p80));
    sum_of_squares(sum.p, device.p, &range, 1);
    begin_case(1, (int)n, shift);
    add_result("sum_of_squares", error / (8 * 0x1p-53), error, (size_t)n);
    add_result("sum_of_squares: every element once, added", sum.get()[0] == (double)(whole + 3) * 0x1p80 ? 0 : INFINITY,
               0, 1);
}

static void test_squares_of_ranges(int shift) {
    int64_t n;
    const std::vector<TensorRange> ranges = many_ranges(0, &n);
    const Floats numbers = random_of<float>(n, 1);
    std::vector<double> want(23, 0.5);
    Device<float> g(numbers, shift);
    Device<double> at_once(want), alone(want);
    sum_of_squares(at_once.p, g.p, ranges.data(), (int)ranges.size());
    for (const TensorRange& range : ranges) sum_of_squares(alone.p, g.p, &range, 1);
    reference::sum_of_squares(want.data(), numbers.data(), ranges.data(), (int)ranges.size());
    const std::vector<double> got = at_once.get(), single = alone.get();
    double error = 0;
    for (size_t i = 0; i < want.size(); i++) error = fmax(error, fabs(got[i] - want[i]) / want[i]);
    // Additions that a term passes: in the reference 2^14 / 16 and 16, here 64 and 10; four of ranges on both sides.
    check_error("  sums of squares of 23 tensors, relative", error, (1024 + 16 + 64 + 10 + 8) * 0x1p-53);
    check(memcmp(got.data(), single.data(), sizeof(double) * 23) == 0,
          "%-5s sum_of_squares: %zu ranges of 23 tensors at once, the bits of one by one", floatX_name, ranges.size());
}

// ---- Checksums, of numbers of 16 bits, at any place; `first` beyond 32 bits. ------------------------------------

static void test_checksum(int64_t halves, int shift, int64_t first) {
    std::vector<uint16_t> x((size_t)halves);
    for (int64_t i = 0; i < halves; i++) x[(size_t)i] = (uint16_t)(random_uniform(9, 4, (uint64_t)i) * 65536);
    Device<uint16_t> device(x, shift);
    Device<uint64_t> sum(std::vector<uint64_t>(1, 77));
    uint64_t want = 77;
    reference::checksum_add(&want, x.data(), 2 * halves, first);
    checksum_add(sum.p, device.p, 2 * halves, first);
    begin_case(1, (int)halves, shift);
    add_result("checksum_add", sum.get()[0] == want ? 0 : INFINITY, 0, 1);
    if (halves == 0) return;
    x[(size_t)(halves / 2)] ^= 4;
    device.set(x);
    checksum_add(sum.p, device.p, 2 * halves, first);
    reference::checksum_add(&want, x.data(), 2 * halves, first);
    add_result("checksum_add: a bit flipped, added", sum.get()[0] == want ? 0 : INFINITY, 0, 1);
}

// ---- Replicas that do not wait: the bits of the reference, at any alignment. ------------------------------------

static void compare_bits(const char* name, const Device<float>& got, const Floats& want) {
    add_result(name, same_bits(got.get(), want) ? 0 : INFINITY, 0, want.size());
}

static void test_replicas(int n, int moved) {
    const float size = 0.98765432f; // so that sums are not exact
    const Floats ha = random_of<float>(n, size), hb = random_of<float>(n, size), hc = random_of<float>(n, size);
    Device<float> a(ha, bit(moved, 0)), b(hb, bit(moved, 1)), c(hc, bit(moved, 2)), out(n, bit(moved, 0));
    Floats want(ha), want_v(hb);
    begin_case(1, n, moved);
    reference::difference(want.data(), ha.data(), hb.data(), n);
    difference(out.p, a.p, b.p, n);
    compare_bits("difference", out, want);
    out.set(hb);
    difference(out.p, a.p, out.p, n);
    compare_bits("difference, in place", out, want);

    want = ha, out.set(ha);
    reference::add_scaled(want.data(), hb.data(), 0.37f, n);
    add_scaled(out.p, b.p, 0.37f, n);
    compare_bits("add_scaled", out, want);
    want = ha, out.set(ha);
    reference::delay_compensate(want.data(), hb.data(), hc.data(), 0.7f, n);
    delay_compensate(out.p, b.p, c.p, 0.7f, n);
    compare_bits("delay_compensate", out, want);

    const float factor = 1.0f / 3;
    want = ha, out.set(ha);
    reference::outer_update(want.data(), want_v.data(), hc.data(), factor, 0.7f, 0.9f, n);
    outer_update(out.p, b.p, c.p, factor, 0.7f, 0.9f, n);
    compare_bits("outer_update: base", out, want);
    compare_bits("outer_update: velocity", b, want_v);
    compare_bits("replicas: what is only read", c, hc);
}

// In float64: 5 roundings of a term, at most 64 additions in a thread, 10 between threads and some among blocks.
static void test_delay_squares(int64_t n, int moved) {
    Floats g = random_of<float>(n, 1), to = random_of<float>(n, 1), from = random_of<float>(n, 1);
    long double want = 0;
    for (size_t i = 0; i < (size_t)n; i++) {
        const long double d = (long double)g[i] * g[i] * ((long double)to[i] - from[i]);
        want += d * d;
    }
    Device<float> a(g, bit(moved, 0)), b(to, bit(moved, 1)), c(from, bit(moved, 2)), straight(g);
    Device<double> sum(std::vector<double>(1, 0.0)), other(std::vector<double>(1, 0.0));
    begin_case(1, (int)n, moved);
    delay_squares(sum.p, a.p, b.p, c.p, n);
    delay_squares(other.p, straight.p, b.p, c.p, n);
    const double error = fabs((double)(sum.get()[0] - want)) / (n > 0 ? (double)want : 1);
    add_result("delay_squares", error / (12 * 0x1p-53), error, (size_t)n);
    add_result("delay_squares: same bits at any alignment", sum.get()[0] == other.get()[0] ? 0 : INFINITY, 0, 1);
    int64_t whole = 3;
    for (int64_t i = 0; i < n; i++) { // whole numbers: exact in any order
        g[(size_t)i] = (float)(i % 7);
        to[(size_t)i] = (float)(i % 5);
        from[(size_t)i] = (float)(i % 11);
        whole += (i % 7) * (i % 7) * (i % 7) * (i % 7) * (i % 5 - i % 11) * (i % 5 - i % 11);
    }
    a.set(g), b.set(to), c.set(from), sum.set(std::vector<double>(1, 3));
    delay_squares(sum.p, a.p, b.p, c.p, n);
    add_result("delay_squares: every element once, added", sum.get()[0] == (double)whole ? 0 : INFINITY, 0, 1);
}

static void test_all_replicas(bool is_short) {
    const int lengths[] = {0, 1, 3, 63, 64, 65, 1030, 17003};
    for (int i = 0; i < (is_short ? 7 : 8); i++) {
        for (int moved = 0; moved < 8; moved = moved ? 2 * moved : 1) {
            test_replicas(lengths[i], moved);
            test_delay_squares(lengths[i], moved);
        }
    }
    test_delay_squares(40005, 0);
}

int main(int argc, char** argv) {
    const bool is_short = argc > 1 && strcmp(argv[1], "--short") == 0;
    test_crossentropies(is_short);
    for (kind = 0; kind < OPTIMIZERS; kind++) {
        for (int moved = 0; moved < 32; moved = moved ? 2 * moved : 1) test_update(1100, moved, 0);
        for (uint64_t first = 0; first < 6; first++) test_update(33, 0, first);
        test_update(1, 0, 5000000003ull);
        test_slices();
        test_nan();
        for (int gap : {4, 7}) test_ranges(gap);
        if (sizeof(floatX) == 4 || kind != OPTIMIZER_ADAMW) continue;
        test_rounding(20000, 1, 0, 17, 3);
        test_rounding(2001, 1e-5f, 3, 99, 123456);
        test_rounding(2001, 100, (1ull << 33) + 2, ~0ull, 1);
        test_rounding_special();
    }
    const int64_t counts[] = {0, 1, 3, 4, 33, 16384, 16389, 70001};
    for (int i = 0; i < (is_short ? 7 : 8); i++) {
        for (int shift = 0; shift < 4; shift++) test_sum_of_squares(counts[i], shift);
    }
    test_squares_of_ranges(0);
    test_squares_of_ranges(3);
    const int64_t halves[] = {0, 1, 2, 3, 511, 512, 513, 8191, 8192, 8193, 70001};
    for (int i = 0; i < (is_short ? 10 : 11); i++) {
        for (int shift = 0; shift < 4; shift++) test_checksum(halves[i], shift, shift * (((int64_t)5 << 36) + 3));
    }
    test_all_replicas(is_short);
    print_results();
    return test_end();
}
