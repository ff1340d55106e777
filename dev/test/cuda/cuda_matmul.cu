/*
cuda_matmul.cu: the linear layers of kernels/matmul.cuh against those of kernels/matmul.h: by nvcc against cuBLASLt; by
g++, where the reference's products stand in; and by g++ with -DUSE_CUBLASLT -Idev/test/fake, against a model of it
(fake/cublasLt.h): layouts, transposes, epilogues, the choice of algorithms, what is remembered.

Bounds. u = 2^-24. A sum of K random products, added up one by one, walks at random: its error is about 0.2 sqrt(K) u of
its size, which is sqrt(K) times that of a product. The bound for two such sums that are compared is sqrt(K) u; for a
GPU twice that, whose tensor cores cut digits off instead of rounding. A result that becomes floatX is off by U more.
Errors are measured against the typical size of a sum, or the result's own if that is larger: the few numbers of a small
matrix may be small by chance. In bf16 cuda_compare.h compares, with three of these bounds (standard deviations).
*/
#ifndef USE_CUDA
#define USE_CUDA // device.h: on a GPU, or an emulated one
#endif
#include "cuda_compare.h"
namespace reference {
#include "../../../kernels/gelu.h"
#include "../../../kernels/matmul.h"
} // namespace reference
#include "../../../kernels/matmul.cuh"
#if !defined(CUDA_ON_CPU) || defined(USE_CUBLASLT)
#define TEST_CUBLASLT
#endif

// ---- Errors over many cases: the worst of them, in units of its bound, is what is printed. ----------------------

typedef struct {
    int cases;
    double ratio; // the relative norm of an error, or the largest error, in units of its bound
    char where[64];
    Rounded rounded; // in bf16
    char rounded_where[64];
} Worst;

// Of a sum, in sqrt(K) u; and of gelu, in u: kernels of our own are good for 8 u, the library's tanh for 2^-11.
// rounds_first: before it adds a bias, where a row or an array is not aligned to 16 bytes.
#ifdef CUDA_ON_CPU
static const double WALK = 1, GELU = 8;
static const bool rounds_first = false;
#else
static const double WALK = 2, GELU = 0x1p13;
static const bool rounds_first = sizeof(floatX) == 2;
#endif

// got and want are sums of `terms` products of size `typical`, rounded `roundings` times to numbers of unit roundoff
// unit; less than two: once, and what is more is an error of float32.
static void compare(Worst* worst, const Floats& got, const Floats& want, double terms, double typical, double roundings,
                    double unit, const char* where) {
    const double size = sqrt(terms) * typical, bound = roundings * unit + WALK * sqrt(terms) * U32;
    if (BOTH_ROUND && unit == U && roundings < 2) {
        Floats error(want.size());
        for (size_t i = 0; i < error.size(); i++)
            error[i] = (float)(3 * (bound - unit) * fmax(size, fabs((double)want[i])));
        if (add_rounded(&worst->rounded, got, want, error) == worst->rounded.worst)
            snprintf(worst->rounded_where, sizeof worst->rounded_where, "%s", where);
        return;
    }
    double difference = 0, own = 0, largest = 0, largest_own = 3 * size;
    for (size_t i = 0; i < want.size(); i++) {
        const double d = fabs((double)got[i] - (double)want[i]), w = fabs((double)want[i]);
        difference += d * d;
        own += w * w;
        if (!(d <= largest)) largest = d == d ? d : INFINITY;
        largest_own = fmax(largest_own, w);
    }
    if (got.size() != want.size() || !(difference < INFINITY)) difference = largest = INFINITY;
    const double norm = sqrt(difference / fmax(own, (double)want.size() * size * size));
    const double ratio = fmax(norm, largest / largest_own) / bound;
    if (worst->cases++ > 0 && ratio <= worst->ratio) return;
    worst->ratio = ratio;
    snprintf(worst->where, sizeof worst->where, "%s", where);
}

static void check_worst(const char* what, const Worst* w) {
    if (w->rounded.elements > 0) {
        const double most = most_different(&w->rounded);
        check(w->rounded.worst <= 1 && w->rounded.different <= most,
              "%-5s %-60s %.2f of the bound at %s; %.0f of %.0f differ, bound %.0f", floatX_name, what,
              w->rounded.worst, w->rounded_where, w->rounded.different, w->rounded.elements, most);
    }
    if (w->cases > 0 || w->rounded.elements == 0)
        check(w->cases > 0 && w->ratio <= 1, "%-5s %-60s %.2f of the bound at %s", floatX_name, what, w->ratio,
              w->where);
}

// ---- One case: all functions for one shape ----------------------------------------------------------------------

enum { FORWARD, FORWARD_PLAIN, INPUT, WEIGHT, BIAS, GELU_FC, GELU_ACT, GELU_INPUT, FUNCTIONS };
static const char* const FUNCTION_NAMES[FUNCTIONS] = {
    "linear_forward",       "linear_forward, no bias", "linear_backward_input",    "linear_backward_weight",
    "linear_backward_bias", "linear_gelu_forward: fc", "linear_gelu_forward: act", "linear_gelu_backward_input"};

typedef struct {
    std::vector<floatX> x, w, bias, dout, fc;
    std::vector<float> dw, db;
} Inputs;

// x (N, C), w (OC, C), bias (OC), dout (N, OC); fc (N, C): backwards, x is the result of a GELU.
static Inputs draw_inputs(int N, int C, int OC) {
    Inputs in = {random_of<floatX>((int64_t)N * C, 1),
                 random_of<floatX>((int64_t)OC * C, 1),
                 random_of<floatX>(OC, 1),
                 random_of<floatX>((int64_t)N * OC, 1),
                 random_of<floatX>((int64_t)N * C, 3),
                 random_of<float>((int64_t)OC * C, 1),
                 random_of<float>(OC, 1)};
    return in;
}

// What the functions return, on the device or by the reference.
typedef Floats Results[FUNCTIONS];

static void run_reference(Results& r, const Inputs& in, int N, int C, int OC, bool with_bias) {
    const HostBuffer x = on_host(in.x), w = on_host(in.w), bias = on_host(in.bias), dout = on_host(in.dout),
                     fc = on_host(in.fc);
    const size_t NC = (size_t)N * C, NO = (size_t)N * OC;
    HostBuffer forward(NO), plain(NO), gelu_fc(NO), act(NO), input(NC), dfc(NC);
    r[WEIGHT] = in.dw;
    r[BIAS] = in.db;
    reference::linear_forward(forward.data(), x.data(), w.data(), bias.data(), N, C, OC);
    reference::linear_forward(plain.data(), x.data(), w.data(), NULL, N, C, OC);
    reference::linear_backward_input(input.data(), dout.data(), w.data(), N, C, OC);
    reference::linear_backward_weight(r[WEIGHT].data(), dout.data(), x.data(), N, C, OC, with_bias);
    reference::linear_backward_bias(r[BIAS].data(), dout.data(), N, OC);
    reference::linear_forward(gelu_fc.data(), x.data(), w.data(), with_bias ? bias.data() : NULL, N, C, OC);
    reference::gelu_forward(act.data(), gelu_fc.data(), N, OC);
    reference::gelu_backward(dfc.data(), input.data(), fc.data(), N, C);
    r[FORWARD] = floats_of(forward);
    r[FORWARD_PLAIN] = floats_of(plain);
    r[INPUT] = floats_of(input);
    r[GELU_FC] = floats_of(gelu_fc);
    r[GELU_ACT] = floats_of(act);
    r[GELU_INPUT] = floats_of(dfc);
}

// Elements by which arrays are moved off their alignment.
typedef struct {
    int x, w, bias, dout, out, fc, dw, db;
} Shifts;

static void run_device(Results& r, const Inputs& in, int N, int C, int OC, Shifts s, bool with_bias) {
    const int64_t NC = (int64_t)N * C, NO = (int64_t)N * OC;
    const Device<floatX> x(in.x, s.x), w(in.w, s.w), bias(in.bias, s.bias), dout(in.dout, s.dout), fc(in.fc, s.fc);
    const floatX* b = with_bias ? bias.p : NULL;
    Device<floatX> forward(NO, s.out), plain(NO, s.out), input(NC, s.out), gelu_fc(NO, s.fc), act(NO, s.out);
    Device<floatX> dfc(NC, s.out), dact(NC, s.out);
    Device<float> dw(in.dw, s.dw), db(in.db, s.db);
    linear_forward(forward.p, x.p, w.p, bias.p, N, C, OC);
    linear_forward(plain.p, x.p, w.p, NULL, N, C, OC);
    linear_backward_input(input.p, dout.p, w.p, N, C, OC);
    linear_backward_weight(dw.p, dout.p, x.p, N, C, OC, with_bias); // each of both
    linear_backward_bias(db.p, dout.p, N, OC);
    linear_gelu_forward(act.p, gelu_fc.p, x.p, w.p, b, N, C, OC);
    linear_gelu_backward_input(dfc.p, dact.p, dout.p, w.p, fc.p, N, C, OC);
    r[FORWARD] = floats_of(forward.get());
    r[FORWARD_PLAIN] = floats_of(plain.get());
    r[INPUT] = floats_of(input.get());
    r[WEIGHT] = dw.get();
    r[BIAS] = db.get();
    r[GELU_FC] = floats_of(gelu_fc.get());
    r[GELU_ACT] = floats_of(act.get());
    r[GELU_INPUT] = floats_of(dfc.get());
}

// x, w, dout are uniform in (-1, 1): a product of two is of size 1/3. |gelu'| < 1.13. One rounding to floatX each. fc
// and dact may be rounded in between: without epilogues they are, as in the reference. A bias that is not part of the
// product is added to a rounded number, and rounded again.
#ifdef TEST_CUBLASLT
static const double BETWEEN = 1.13;
#else
static const double BETWEEN = BOTH_ROUND ? 0 : 1.13;
#endif
static double bias_roundings = 1;
static void compare_all(Worst worst[FUNCTIONS], const Results& got, const Results& want, int N, int C, int OC,
                        const char* where) {
    const double third = 1 / 3.0, gelu = GELU * U32 / U;
    compare(&worst[FORWARD], got[FORWARD], want[FORWARD], C + 1, third, bias_roundings, U, where);
    compare(&worst[FORWARD_PLAIN], got[FORWARD_PLAIN], want[FORWARD_PLAIN], C, third, 1, U, where);
    compare(&worst[INPUT], got[INPUT], want[INPUT], OC, third, 1, U, where);
    compare(&worst[WEIGHT], got[WEIGHT], want[WEIGHT], N + 1, third, 1, U32, where);
    compare(&worst[BIAS], got[BIAS], want[BIAS], N + 1, sqrt(third), 1, U32, where);
    compare(&worst[GELU_FC], got[GELU_FC], want[GELU_FC], C + 1, third, bias_roundings, U, where);
    compare(&worst[GELU_ACT], got[GELU_ACT], want[GELU_ACT], C + 1, third, BETWEEN * bias_roundings + 1 + gelu, U,
            where);
    compare(&worst[GELU_INPUT], got[GELU_INPUT], want[GELU_INPUT], OC, third, BETWEEN + 1 + gelu, U, where);
}

struct Size {
    int N, C, OC;
};
static bool test_short = false;
static std::vector<Size> sizes() {
    if (test_short) return {{1, 1, 1}, {7, 33, 3}, {17, 8, 24}, {40, 16, 8}};
    return {{1, 1, 1},    {7, 33, 1},   {1, 128, 65}, {33, 7, 128},   {65, 128, 33},
            {64, 64, 64}, {96, 48, 80}, {128, 1, 7},  {129, 130, 72}, {200, 24, 16}};
}

// Prints functions `first` to `last`.
static void test_shapes(const char* what, int first, int last, bool with_bias) {
    static const Shifts shifts[] = {{0, 0, 0, 0, 0, 0, 0, 0}, {1, 0, 0, 0, 0, 0, 0, 0}, {0, 1, 0, 0, 0, 0, 0, 0},
                                    {0, 0, 1, 1, 0, 0, 0, 0}, {0, 0, 0, 0, 1, 0, 1, 0}, {0, 0, 0, 0, 0, 1, 0, 1},
                                    {2, 4, 6, 2, 4, 2, 2, 3}, {8, 8, 8, 8, 8, 8, 4, 4}};
    Worst worst[2][FUNCTIONS] = {};
    const double usual = bias_roundings;
    for (size_t i = 0; i < sizes().size(); i++) {
        const auto [N, C, OC] = sizes()[i];
        const Inputs in = draw_inputs(N, C, OC);
        Results want, got;
        run_reference(want, in, N, C, OC, with_bias); // of the functions with a GELU
        // Every way of being misaligned, for two of the shapes; for the others one.
        for (size_t k = 0; k < sizeof shifts / sizeof *shifts; k++) {
            if (k > 0 && k != 1 + i % 7 && (N != 64 || test_short) && N != 17) continue;
            char where[64];
            snprintf(where, sizeof where, "N %d C %d OC %d, shifts %zu", N, C, OC, k);
#ifdef USE_CUBLASLT
            for (int a = 0; a < FAKE_ALGORITHMS; a++)
                fake_cublaslt.milliseconds[a] = (double)((a + i) % FAKE_ALGORITHMS);
#endif
            run_device(got, in, N, C, OC, shifts[k], with_bias);
            const Shifts& s = shifts[k];
            bias_roundings = rounds_first && (C | OC | s.x | s.w | s.out | s.fc) % 8 != 0 ? 2 : usual;
            compare_all(worst[k > 0], got, want, N, C, OC, where);
        }
    }
    bias_roundings = usual;
    for (int k = 0; k < 2; k++) {
        for (int f = first; f <= last; f++) {
            char name[128];
            snprintf(name, sizeof name, "%s%s%s", FUNCTION_NAMES[f], k ? ", misaligned" : "", what);
            check_worst(name, &worst[k][f]);
        }
    }
}

// ----------------------------------------------------------------------------------------------------------------

// More rows and columns than a block has, slices that are not equal; the same bits every time.
static void test_bias() {
    static const int sizes[][2] = {{1, 1},     {2, 3000}, {31, 8},    {33, 264},  {1000, 33},
                                   {5000, 64}, {257, 40}, {999, 520}, {300, 257}, {2049, 1}};
    Worst worst = {};
    int different = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int N = test_short ? (sizes[i][0] + 9) / 10 : sizes[i][0],
                  OC = test_short ? (sizes[i][1] + 3) / 4 : sizes[i][1];
        const std::vector<floatX> dout = random_of<floatX>((int64_t)N * OC, 1);
        const std::vector<float> start = random_of<float>(OC, 1);
        Floats want = start;
        reference::linear_backward_bias(want.data(), on_host(dout).data(), N, OC);
        for (int shift = 0; shift < 2; shift++) {
            Device<floatX> on_device(dout, shift);
            Device<float> db(start, shift);
            char where[64];
            snprintf(where, sizeof where, "N %d OC %d shift %d", N, OC, shift);
            linear_backward_bias(db.p, on_device.p, N, OC);
            const Floats first = db.get();
            compare(&worst, first, want, N + 1, sqrt(1 / 3.0), 1, U32, where);
            db.set(start);
            linear_backward_bias(db.p, on_device.p, N, OC);
            different += db.get() != first;
        }
    }
    check_worst("linear_backward_bias, many rows", &worst);
    check(different == 0, "%-5s linear_backward_bias: the same bits when repeated, %d differences", floatX_name,
          different);
}

static bool all_nan(const Floats& x) {
    for (const float v : x)
        if (v == v) return false;
    return true;
}

static void test_nothing() {
    const int C = 8, OC = 16;
    const Inputs in = draw_inputs(1, C, OC);
    const Device<floatX> x(in.x), w(in.w), bias(in.bias), dout(in.dout), fc(in.fc);
    Device<floatX> out(OC), act(OC), dx(C), dact(C);
    Device<float> dw(in.dw), db(in.db);
    linear_forward(out.p, x.p, w.p, bias.p, 0, C, OC);
    linear_backward_input(dx.p, dout.p, w.p, 0, C, OC);
    linear_backward_weight(dw.p, dout.p, x.p, 0, C, OC, true);
    linear_backward_bias(db.p, dout.p, 0, OC);
    linear_gelu_forward(act.p, out.p, x.p, w.p, bias.p, 0, C, OC);
    linear_gelu_backward_input(dx.p, dact.p, dout.p, w.p, fc.p, 0, C, OC);
    check(all_nan(floats_of(out.get())) && all_nan(floats_of(act.get())) && all_nan(floats_of(dx.get())) &&
              dw.get() == in.dw && db.get() == in.db,
          "%-5s no rows: nothing is written", floatX_name);
}

#ifdef TEST_CUBLASLT
// ---- cuBLASLt, or its model -------------------------------------------------------------------------------------

// Forgets all plans. epilogue: 0 never, 1 always, 2 by time.
static void start_again(int timing, int epilogue) {
    const Device<floatX> one(random_of<floatX>(1, 1));
    Device<floatX> out(1);
    static std::vector<MatmulPlan*>* forgotten = new std::vector<MatmulPlan*>; // what the leak checker must find
    linear_forward(out.p, one.p, one.p, NULL, 1, 1, 1); // opens cuBLASLt, which reads the environment
    forgotten->push_back(matmul_state.plans);
    matmul_state.plans = NULL;
    matmul_state.timing = timing;
    matmul_state.epilogue = epilogue;
}

// Uniform in (-1, 1): mean 0 and mean square 1/3, whose deviations for n numbers are sqrt(1/3n) and sqrt(4/45n).
static void test_noise_kernel() {
    const int n = 10000;
    Device<floatX> noise(n);
    launch(launch_shape(blocks_for(n, 256), 256), matmul_noise_kernel, noise.p, (int64_t)n);
    double mean = 0, square = 0, largest = 0;
    for (const float v : floats_of(noise.get())) {
        mean += (double)v / n;
        square += (double)v * v / n;
        largest = fmax(largest, fabs(v));
    }
    const double bounds[2] = {4 * sqrt(1 / 3.0 / n), 4 * sqrt(4 / 45.0 / n) + U};
    check(fabs(mean) < bounds[0] && fabs(square - 1 / 3.0) < bounds[1] && largest <= 1,
          "%-5s noise: mean %.4f, bound %.4f; mean square - 1/3: %.4f, bound %.4f; largest %.4f", floatX_name, mean,
          bounds[0], square - 1 / 3.0, bounds[1], largest);
}

// Where cuBLASLt has no algorithm for BIAS, or none at all: algorithms are struck from the plans.
static void test_fallbacks(bool all) {
    static const Shifts shifts[] = {{0, 0, 0, 0, 0, 0, 0, 0}, {1, 1, 1, 1, 1, 1, 1, 1}};
    Worst worst[FUNCTIONS] = {};
    int different = 0, forgotten = 0;
    bias_roundings = 2;
    for (size_t i = 0; i < 2 * sizes().size(); i++) {
        const auto [N, C, OC] = sizes()[i / 2];
        const Inputs in = draw_inputs(N, C, OC);
        Results want, got, again;
        char where[64];
        snprintf(where, sizeof where, "N %d C %d OC %d, shifts %zu", N, C, OC, i % 2);
        start_again(0, 0);
        run_device(got, in, N, C, OC, shifts[i % 2], true);
        MatmulPlan** end = &matmul_state.plans;
        for (; *end; end = &(*end)->next)
            if (all || (*end)->shape.epilogue != CUBLASLT_EPILOGUE_DEFAULT) (*end)->algorithms = 0;
        run_reference(want, in, N, C, OC, true);
        run_device(got, in, N, C, OC, shifts[i % 2], true);
        run_device(again, in, N, C, OC, shifts[i % 2], true);
        compare_all(worst, got, want, N, C, OC, where);
        for (int f = 0; f < FUNCTIONS; f++) different += got[f] != again[f];
        forgotten += *end != NULL;
    }
    bias_roundings = 1;
    for (int f = 0; f < FUNCTIONS; f++) {
        char name[128];
        snprintf(name, sizeof name, "%s, %s", FUNCTION_NAMES[f], all ? "our own" : "bias apart");
        check_worst(name, &worst[f]);
    }
    check(different == 0 && forgotten == 0, "the same bits when repeated: %d differences, %d other plans", different,
          forgotten);
    start_again(1, 2);
}
#endif

#ifdef USE_CUBLASLT
// How often cuBLASLt is asked and used by a call.
typedef struct {
    int heuristics, products, algorithm;
    uint32_t epilogue;
} Used;
template <class F>
static Used used_by(F call) {
    const FakeState before = fake_cublaslt;
    call();
    const Used u = {fake_cublaslt.heuristics - before.heuristics, fake_cublaslt.products - before.products,
                    fake_cublaslt.algorithm, fake_cublaslt.epilogue};
    return u;
}

static void slow_algorithms(double ms) {
    for (double& t : fake_cublaslt.milliseconds) t = ms;
}

// How many products it takes to choose from `count` algorithms, if all take the same time.
static int tried(int count) { return count * (2 + (MATMUL_ROUNDS - 2) * MATMUL_RUNS); }

static Inputs zero_inputs(int N, int C, int OC) {
    Inputs in = draw_inputs(N, C, OC);
    for (std::vector<floatX>* x : {&in.x, &in.w, &in.bias, &in.dout, &in.fc}) x->assign(x->size(), (floatX)0.0f);
    in.dw.assign(in.dw.size(), 0.0f);
    in.db.assign(in.db.size(), 0.0f);
    return in;
}

// A linear layer's arrays.
struct Layer {
    enum { N = 40, C = 24, OC = 16 };
    const Inputs in;
    Layer(bool zeros = false) : in(zeros ? zero_inputs(N, C, OC) : draw_inputs(N, C, OC)) {}
    const Device<floatX> x{in.x}, w{in.w}, bias{in.bias}, dout{in.dout}, fc{in.fc}, x1{in.x, 1}, bias1{in.bias, 1};
    Device<floatX> out{N * OC}, act{N * OC}, dfc{N * C}, dact{N * C}, out1{N * OC, 1};
    Device<float> dw{in.dw}, db{in.db};

    void forward() { linear_forward(out.p, x.p, w.p, bias.p, N, C, OC); }
    void input() { linear_backward_input(dfc.p, dout.p, w.p, N, C, OC); }
    void weight() { linear_backward_weight(dw.p, dout.p, x.p, N, C, OC, true); }
    void gelu(const floatX* b) { linear_gelu_forward(act.p, out.p, x.p, w.p, b, N, C, OC); }
    void gelu_back() { linear_gelu_backward_input(dfc.p, dact.p, dout.p, w.p, fc.p, N, C, OC); }
};

static void test_plans() {
    Layer l;
    const int N = l.N, C = l.C, OC = l.OC;
    const auto forward = [&] { l.forward(); };
    const auto weight = [&] { l.weight(); };
    // How many algorithms of the model are fit for a result in floatX, and how many of these at any address.
    const bool is_float = sizeof(floatX) == 4;
    const int offered = is_float ? 6 : 4, anywhere = is_float ? 4 : 2;

    start_again(1, 2);
    slow_algorithms(1);
    Used u = used_by(forward);
    check(u.heuristics == 1 && u.products == tried(offered) + 1, "first call: %d algorithms timed: %d products",
          offered, u.products);
    u = used_by(forward);
    check(u.heuristics == 0 && u.products == 1, "second call: nothing asked, %d product", u.products);
    u = used_by([&] { linear_forward(l.out.p, l.x.p, l.w.p, NULL, N, C, OC); });
    check(u.heuristics == 1, "another epilogue is another plan");
    u = used_by([&] { linear_forward(l.out.p, l.x1.p, l.w.p, l.bias.p, N, C, OC); });
    check(u.heuristics == 1 && u.products == tried(anywhere) + 1, "misaligned x: %d algorithms timed: %d products",
          anywhere, u.products);
    u = used_by([&] { linear_forward(l.out1.p, l.x.p, l.w.p, l.bias.p, N, C, OC); });
    check(u.heuristics == 1 && u.products == tried(anywhere) + 1, "misaligned out: %d algorithms timed: %d products",
          anywhere, u.products);
    u = used_by([&] { linear_forward(l.out.p, l.x.p, l.w.p, l.bias1.p, N, C, OC); });
    check(u.heuristics == 0 && u.products == 1, "a misaligned bias is copied: no other plan");
    u = used_by([&] { linear_forward(l.out.p, l.x.p, l.w.p, l.bias.p, N - 1, C, OC); });
    check(u.heuristics == 1, "another number of rows is another plan");
    fake_cublaslt.epilogue_milliseconds = 0.1; // two steps are taken, and tried before
    u = used_by([&] { linear_gelu_forward(l.act.p, l.out.p, l.x1.p, l.w.p, l.bias.p, N - 2, C, OC); });
    fake_cublaslt.epilogue_milliseconds = 0;
    check(u.heuristics == 2, "misaligned x: trials have the same alignment, %d plans", u.heuristics);

    for (const int fast : {FAKE_PACKED, FAKE_SPLIT, FAKE_SLOW, FAKE_SLOWEST}) {
        start_again(1, 2);
        slow_algorithms(2);
        fake_cublaslt.milliseconds[fast] = 1.9;
        used_by(forward), used_by(weight);
        const int a = used_by(forward).algorithm, b = used_by(weight).algorithm;
        check(a == fast && b == fast, "the fastest algorithm, %d, is taken: %d, accumulating %d", fast, a, b);
    }
    const int first = is_float ? (int)FAKE_OUTPUT : (int)FAKE_PACKED;
    start_again(0, 0);
    u = used_by(forward);
    check(u.heuristics == 1 && u.products == 1 && u.algorithm == first, "not timed: the first that works");
}

// Beside a sum between ranks a product has a plan of its own, for the multiprocessors that the sum leaves.
static void test_beside_sums() {
    Layer l;
    const auto forward = [&] { l.forward(); };
    std::string seen;
    start_again(0, 0);
    for (const char* ctas : {"", "1"}) {
        setenv("COLLECTIVE_CTAS", ctas, 1);
        for (int sums : {0, 2, 1, 0}) {
            *collectives_in_flight() = sums;
            seen += " " + std::to_string(used_by(forward).heuristics);
            if (fake_cublaslt.multiprocessors > 0) seen += "*";
        }
    }
    *collectives_in_flight() = 1;
    forward();
    check(seen == " 1 0 0 0 0 1* 0* 0" &&
              fake_cublaslt.multiprocessors == fmax(1, gpu_properties()->multiProcessorCount - 1),
          "beside a sum: plans made%s; *: for fewer multiprocessors, %d", seen.c_str(), fake_cublaslt.multiprocessors);
    *collectives_in_flight() = 0;
    unsetenv("COLLECTIVE_CTAS");
}

// The epilogues of three products: GELU with and without a bias, and its backward pass.
typedef std::vector<uint32_t> Epilogues;
static const Epilogues FUSED = {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_DGELU};
static const Epilogues SEPARATE = {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DEFAULT};
static Epilogues epilogues_of(Layer& l) {
    return {used_by([&] { l.gelu(l.bias.p); }).epilogue, used_by([&] { l.gelu(NULL); }).epilogue,
            used_by([&] { l.gelu_back(); }).epilogue};
}

static void test_epilogues() {
    Layer l;
    slow_algorithms(2);
    for (const double extra : {-0.1, 0.1}) { // that a product takes longer with an epilogue
        start_again(0, 2);
        fake_cublaslt.epilogue_milliseconds = extra;
        epilogues_of(l);
        const Used again = used_by([&] {
            check(epilogues_of(l) == (extra < 0 ? FUSED : SEPARATE), "epilogues where they are faster, at %+g ms",
                  extra);
        });
        check(again.heuristics == 0 && again.products == 3, "and it is remembered: %d asked, %d products",
              again.heuristics, again.products);
    }
    for (int always = 0; always < 2; always++) { // not what is faster
        start_again(0, always);
        fake_cublaslt.epilogue_milliseconds = always ? 0.1 : -0.1;
        const Used used =
            used_by([&] { check(epilogues_of(l) == (always ? FUSED : SEPARATE), "MATMUL_EPILOGUE=%d", always); });
        check(used.heuristics == 3, "and nothing else is asked for: %d", used.heuristics);
    }
    slow_algorithms(0);
    fake_cublaslt.epilogue_milliseconds = 0;
    const size_t blocks = cuda_on_cpu::memory.blocks.size();
    start_again(1, 2);
    l.weight();
    check(cuda_on_cpu::memory.blocks.size() == blocks, "memory that is borrowed for timing is given back");
    start_again(1, 1);
    fake_cublaslt.no_epilogues = true;
    check(epilogues_of(l) == SEPARATE, "no algorithm for an epilogue: two steps");
    fake_cublaslt.no_epilogues = false;
    start_again(1, 2);
}

// The first products of a run are of zeros, on which other algorithms are fast: what is fast on noise is taken.
static void test_noise() {
    Layer l(true);
    slow_algorithms(2);
    fake_cublaslt.milliseconds[FAKE_SLOW] = 1.9;
    fake_cublaslt.zeros_milliseconds = 4;
    for (const double extra : {-0.05, 0.05}) { // that a product takes longer with an epilogue
        start_again(1, 2);
        fake_cublaslt.epilogue_milliseconds = extra;
        const int forward = used_by([&] { l.forward(); }).algorithm, input = used_by([&] { l.input(); }).algorithm;
        const int weight = used_by([&] { l.weight(); }).algorithm;
        check(forward == FAKE_SLOW && input == FAKE_SLOW && weight == FAKE_SLOW,
              "zeros: algorithm %d is fast on noise: taken %d %d %d", FAKE_SLOW, forward, input, weight);
        check(epilogues_of(l) == (extra < 0 ? FUSED : SEPARATE), "zeros: epilogues where noise is faster, at %+g ms",
              extra);
    }
    fake_cublaslt.zeros_milliseconds = fake_cublaslt.epilogue_milliseconds = 0;
    slow_algorithms(0);
}

// Device memory is used up while one of these lives.
struct Shortage {
    const size_t bytes = cuda_on_cpu::physical_memory() - cuda_on_cpu::memory.bytes;
    Shortage() { cuda_on_cpu::memory.bytes += bytes; }
    ~Shortage() { cuda_on_cpu::memory.bytes -= bytes; }
};

static void test_shortage() {
    Layer l(true);
    slow_algorithms(2);
    fake_cublaslt.milliseconds[FAKE_SLOW] = 2.1;
    fake_cublaslt.zeros_milliseconds = 4;
    fake_cublaslt.epilogue_milliseconds = -0.1;
    start_again(1, 2);
    const Shortage shortage;
    const int forward = used_by([&] { l.forward(); }).algorithm;
    check(forward == FAKE_SLOW, "no memory for noise: algorithm %d is fast on zeros: taken %d", FAKE_SLOW, forward);
    const int weight = used_by([&] { l.weight(); }).products;
    check(weight == 1, "no memory for a matrix to accumulate on: nothing is timed, %d product", weight);
    fake_cublaslt.zeros_milliseconds = fake_cublaslt.epilogue_milliseconds = 0;
    slow_algorithms(0);
}

// Trials leave no trace: the same algorithms give the same bits with and without them.
static void test_trials() {
    const int N = 40, C = 24, OC = 16;
    const Inputs in = draw_inputs(N, C, OC);
    Layer l;
    slow_algorithms(1);
    for (int fused = 0; fused < 2; fused++) {
        Results results[2];
        fake_cublaslt.epilogue_milliseconds = fused ? -0.1 : 0.1;
        for (int timing = 0; timing < 2; timing++) {
            start_again(timing, timing ? 2 : fused);
            run_device(results[timing], in, N, C, OC, (Shifts){}, true);
        }
        int different = 0;
        for (int f = 0; f < FUNCTIONS; f++) different += results[0][f] != results[1][f];
        check(different == 0, "timed and not, %s: %d results differ", fused ? "fused" : "separate", different);
        l.input();
        epilogues_of(l);
        check(floats_of(l.x.get()) == floats_of(l.in.x) && floats_of(l.w.get()) == floats_of(l.in.w) &&
                  floats_of(l.dout.get()) == floats_of(l.in.dout) && floats_of(l.fc.get()) == floats_of(l.in.fc),
              "operands are what they were");
    }
    fake_cublaslt.epilogue_milliseconds = 0;
}

// 32 algorithms are asked for, of which 24 can be used: all are timed once, the 8 fastest again.
static void test_finalists() {
    enum { COPIES = 8 };
    Layer l;
    std::vector<double> ms;
    const int first = sizeof(floatX) == 4 ? FAKE_OUTPUT : FAKE_PACKED;
    start_again(1, 2);
    fake_cublaslt.copies = COPIES - 1;
    fake_cublaslt.copy_milliseconds = -0.3;
    for (int a = 0; a < FAKE_ALGORITHMS; a++) fake_cublaslt.milliseconds[a] = 4 + a;
    for (int i = 0; i < 3 * COPIES; i++) ms.push_back(4 + first + i / COPIES - 0.3 * (i % COPIES));
    std::sort(ms.begin(), ms.end());
    double wanted = ms[0], clock = fake_cublaslt.clock;
    for (size_t i = 0; i < ms.size(); i++) wanted += ms[i] * (i < MATMUL_FINALISTS ? 2 + 2 * MATMUL_RUNS : 2);
    const int products = used_by([&] { l.forward(); }).products;
    clock = fake_cublaslt.clock - clock;
    check(products == 2 * 3 * COPIES + 2 * MATMUL_RUNS * MATMUL_FINALISTS + 1 && fabs(clock - wanted) < 1e-9,
          "%d algorithms of 32: %d products, %.2f ms; wanted %.2f", 3 * COPIES, products, clock, wanted);
    fake_cublaslt.copies = 0;
    fake_cublaslt.copy_milliseconds = 0;
    slow_algorithms(0);
}

// ----------------------------------------------------------------------------------------------------------------
// What needs a process of its own: the environment, and errors that end the run. The program calls itself.

static const char* test_program = NULL;

static int run_child(const char* what) {
    const int N = 3, C = 8, OC = 16;
    const Inputs in = draw_inputs(N, C, OC);
    const Device<floatX> x(in.x), w(in.w), bias(in.bias);
    Device<floatX> out(N * OC), act(N * OC);
    printf("start\n");
    fflush(stdout);
    fake_cublaslt.no_algorithms = strncmp(what, "none", 4) == 0;
    fake_cublaslt.no_products = strcmp(what, "failing") == 0;
    if (strcmp(what, "none, rank 1") == 0) process.rank = 1;
    if (strcmp(what, "beside a sum") == 0) *collectives_in_flight() = 1;
    linear_forward(out.p, x.p, w.p, bias.p, N, C, OC);
    if (strcmp(what, "shortage") == 0) {
        const Shortage shortage;
        linear_forward(out.p, x.p, w.p, bias.p, N - 1, C, OC);
    }
    const int products = fake_cublaslt.products;
    linear_gelu_forward(act.p, out.p, x.p, w.p, bias.p, N, C, OC);
    const int once = fake_cublaslt.products;
    linear_gelu_forward(act.p, out.p, x.p, w.p, bias.p, N, C, OC);
    printf("handles %d, products %d %d, epilogue %u\n", fake_cublaslt.handles, products, fake_cublaslt.products - once,
           fake_cublaslt.epilogue);
    return 0;
}

// Begins, and says so many lines of products, and what is expected.
static void check_child(const char* environment, const char* argument, int lines, const char* expected) {
    char command[512], text[4096] = "";
    snprintf(command, sizeof command, "%s %s --child '%s' 2>&1", environment, test_program, argument);
    FILE* f = popen(command, "r");
    if (!f) die("cannot run %s", command);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    pclose(f);
    for (const char* line = text; (line = strstr(line, "\nmatmul: ")); line++) lines--;
    const bool ok = strncmp(text, "start\n", 6) == 0 && lines == 0 && strstr(text, expected);
    check(ok, "%s --child %s: %s", environment, argument, ok ? expected : text);
}

static void test_environment() {
    const bool is_float = sizeof(floatX) == 4;
    char timed[2][128];
    for (int epilogue = 0; epilogue < 2; epilogue++) {
        snprintf(timed[epilogue], sizeof timed[epilogue], "handles 1, products %d 1, epilogue %d",
                 tried(is_float ? 6 : 4) + 1, epilogue ? 164 : 4);
    }
    check_child("MATMUL_TIMING=0", "environment", 0, "handles 1, products 1 1, epilogue 4");
    check_child("MATMUL_TIMING=0 MATMUL_EPILOGUE=1", "environment", 0, "handles 1, products 1 1, epilogue 164");
    check_child("MATMUL_EPILOGUE=0", "environment", 0, timed[0]);
    check_child("MATMUL_EPILOGUE=1", "environment", 0, timed[1]);
    check_child("MATMUL_LIST=0", "environment", 0, "handles 1");
    check_child("MATMUL_TIMING=yes", "environment", 0, "MATMUL_TIMING is yes");
    check_child("COLLECTIVE_CTAS=yes", "beside a sum", 0, "COLLECTIVE_CTAS is yes; it can be 1 to 64");
    check_child("COLLECTIVE_CTAS=16x", "beside a sum", 0, "COLLECTIVE_CTAS is 16x; it can be 1 to 64");
    check_child("MATMUL_LIST=1", "environment", is_float ? 1 : 3, " (the first 0.0000), ");
    check_child("MATMUL_LIST=1", "shortage", is_float ? 2 : 4, "TFLOP/s, on real operands\n");
    // what cuBLASLt cannot do is said, of each shape once, by rank 0
    check_child("", "none", is_float ? 2 : 3, "handles 1, products 0 0");
    check_child("", "failing", is_float ? 2 : 3, "handles 1, products 0 0");
    check_child("", "none, rank 1", 0, "handles 1, products 0 0");
}
#endif

int main(int argc, char** argv) {
    test_short = argc > 1 && strcmp(argv[1], "--short") == 0;
#ifdef USE_CUBLASLT
    test_program = argv[0];
    if (argc > 2 && strcmp(argv[1], "--child") == 0) return run_child(argv[2]);
    test_environment();
#endif
    test_shapes("", 0, FUNCTIONS - 1, true);
#ifdef TEST_CUBLASLT
    for (int epilogue = 0; epilogue < 2; epilogue++) {
        start_again(0, epilogue);
        test_shapes(epilogue ? ", fused" : ", separate", GELU_FC, FUNCTIONS - 1, true);
        test_shapes(epilogue ? ", fused, no bias" : ", separate, no bias", GELU_FC, GELU_ACT, false);
    }
    start_again(1, 2);
    test_noise_kernel();
    for (const bool all : {false, true}) test_fallbacks(all);
#else
    test_shapes(", no bias", GELU_FC, GELU_ACT, false);
#endif
    test_bias();
    test_nothing();
#ifdef USE_CUBLASLT
    test_plans();
    test_beside_sums();
    test_epilogues();
    test_noise();
    test_shortage();
    test_trials();
    test_finalists();
#endif
    return test_end();
}
