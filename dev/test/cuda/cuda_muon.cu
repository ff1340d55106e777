/*
cuda_muon.cu: the kernels of Muon against their references in C, on matrices in pieces. Bounds: see cuda_compare.h.
*/
#include "cuda_compare.h"

#include "../../../kernels/muon.cuh"

#define REFERENCE_KERNELS // on the CPU
namespace reference {
#include "../../../kernels/muon.h"
} // namespace reference

static const OptimizerStep test_step = {1e-2f, 0, 0, 0, 0.1f, 3, 0.7f};

static HostBuffer host_of(const ShardedBuffer& x) {
    HostBuffer y;
    for (floatX v : x) y.push_back(reference::to_floatX((float)v));
    return y;
}

// A product, and what the matrix's norm is divided by: 2 roundings on both sides.
static void test_normalize(const CutMatrix& m) {
    const int64_t n = m.rows * m.cols;
    const Floats gathered = random_of<float>(n * m.copies, 1);
    const double squares = 0.3 * (double)n;
    HostBuffer want((size_t)n);
    Device<float> in(gathered, 0);
    Device<double> sum(std::vector<double>(1, squares), 0);
    Device<floatX> out(n, 0);
    reference::muon_normalize(want.data(), gathered.data(), &squares, m);
    muon_normalize(out.p, in.p, sum.p, m);
    begin_case((int)m.rows, (int)m.cols, 0);
    compare("muon_normalize", floats_of(out.get()), floats_of(want), true, 4 * U32);
}

static void test_polynomial(int n) {
    const ShardedBuffer gram = random_of<floatX>((int64_t)n * n, 1), square = random_of<floatX>((int64_t)n * n, 1);
    HostBuffer want = host_of(square);
    Device<floatX> a(gram, 0), b(square, 0);
    reference::muon_polynomial(want.data(), host_of(gram).data(), n);
    muon_polynomial(b.p, a.p, n);
    begin_case(n, n, 0);
    compare("muon_polynomial", floats_of(b.get()), floats_of(want), true, 8 * U32);
}

// More ranges than a launch takes, with gaps between them, which stay.
static void test_momentum() {
    std::vector<TensorRange> ranges;
    int64_t n = 0;
    for (int i = 0; i < RANGES_PER_LAUNCH + 5; i++) {
        ranges.push_back(whole_range(i * 37 % 300));
        ranges.back().at = n;
        n += ranges.back().n + i % 3;
    }
    Floats g = random_of<float>(n, 1), m = random_of<float>(n, 1);
    Device<float> device_g(g, 0), device_m(m, 0);
    reference::muon_momentum(g.data(), m.data(), ranges.data(), (int)ranges.size(), 0.95f, 0.7f);
    muon_momentum(device_g.p, device_m.p, ranges.data(), (int)ranges.size(), 0.95f, 0.7f);
    begin_case(1, (int)n, 0);
    compare("muon_momentum: U", device_g.get(), g, false, 6 * U32);
    compare("muon_momentum: m", device_m.get(), m, false, 6 * U32);
}

// A piece in two ranges, which do not begin where four random words do.
static void test_update(const CutMatrix& m, int piece) {
    const int64_t n = m.rows * m.cols / m.pieces;
    const Floats weights = random_of<float>(n, 1);
    const ShardedBuffer ortho = random_of<floatX>(m.rows * m.cols, 1);
    ShardedBuffer start;
    for (float w : weights) start.push_back((floatX)w);
    Device<floatX> p(start, 0), device_ortho(ortho, 0), again(n, 0);
    Device<float> master(weights, 0);
    const HostBuffer host_ortho = host_of(ortho);
    HostBuffer host = host_of(start);
    Floats want = weights;
    for (int i = 0; i < 2; i++) {
        TensorRange range = whole_range(i ? n - n / 3 : n / 3);
        range.from = range.at = i ? n / 3 : 0;
        range.first = 1001 + (uint64_t)range.at;
        range.key = 17;
        muon_update(p.p, sizeof(floatX) == 4 ? NULL : master.p, device_ortho.p, m, piece, range.at, &range, &test_step);
        reference::muon_update(host.data(), BOTH_ROUND ? want.data() : NULL, host_ortho.data(), m, piece, range.at,
                               &range, &test_step);
    }
    begin_case((int)m.rows, (int)m.cols, piece);
    const Floats got = floats_of(p.get());
    if (BOTH_ROUND || sizeof(floatX) == 4)
        compare("muon_update", sizeof(floatX) == 4 ? got : master.get(), BOTH_ROUND ? want : floats_of(host), false,
                6 * U32);
    if (sizeof(floatX) == 4) return;
    adamw_round(again.p, master.p, n, test_step.step, 17, 1001);
    compare_same("muon_update: rounded as by adamw_round", got, floats_of(again.get()));
}

int main() {
    const CutMatrix shapes[] = {{12, 20, 1, 1, true}, {20, 12, 1, 1, false}, {12, 20, 3, 1, true},
                                {12, 20, 4, 2, true}, {36, 8, 2, 1, false},  {8, 36, 4, 1, false},
                                {1, 33, 1, 1, true},  {33, 1, 3, 2, true},   {90, 130, 1, 1, true}};
    for (const CutMatrix& m : shapes) {
        test_normalize(m);
        for (int piece = 0; piece < m.pieces; piece++) test_update(m, piece);
    }
    for (int n = 1; n < 50; n += 16) test_polynomial(n);
    test_momentum();
    print_results();
    return test_end();
}
