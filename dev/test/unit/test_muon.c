/*
Tests of Muon: its kernels beside their formulas in float64, on matrices that tensor ranks hold in pieces, and the
orthogonalisation of matrices whose singular values and vectors are known.
*/
#include "kernels_fixture.h"
#include "../../../kernels/kernels.h"

static bool is_off, all_off; // autotuning: now; for all products so far
static void noted_no_autotune(bool on) { is_off = on; }
static void noted_forward(floatX* out, const floatX* x, const floatX* w, const floatX* bias, int N, int C, int OC) {
    all_off &= is_off;
    linear_forward(out, x, w, bias, N, C, OC);
}
#define linear_no_autotune noted_no_autotune
#define linear_forward noted_forward
#include "../../../parallel/muon.h"
#undef linear_no_autotune
#undef linear_forward

static const double poly[3] = {3.4445, -4.7750, 2.0315};

// A matrix, its pieces as tensor ranks gather them, and the place in it of each element of a piece.
static const CutMatrix shapes[] = {{12, 20, 1, 1, true}, {20, 12, 1, 1, false}, {12, 20, 3, 1, true},
                                   {12, 20, 4, 2, true}, {36, 8, 2, 1, false},  {8, 36, 4, 1, false},
                                   {1, 33, 1, 1, true},  {33, 1, 3, 2, true},   {7, 7, 1, 1, true}};

// Where element (row, col) of the whole matrix is in memory: along the longer side.
static int64_t place(const CutMatrix* m, int64_t row, int64_t col) {
    return m->rows > m->cols ? col * m->rows + row : row * m->cols + col;
}

static void test_normalize(CutMatrix m) {
    const int64_t n = m.rows * m.cols, piece = n / m.pieces, height = m.by_rows ? m.rows / m.pieces : m.rows;
    const int64_t width = piece / height;
    float* gathered = floats(n * m.copies, 1);
    floatX* out = poisoned_values(n);
    double squares = 0;
    Wanted w = wanted_new(n);
    for (int p = 0; p < m.pieces; p++) {
        for (int64_t i = 0; i < piece; i++) squares += pow(gathered[p * m.copies * piece + i], 2);
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t p = i / piece, row = i % piece / width, col = i % width;
        const double x = gathered[p * m.copies * piece + i % piece] / sqrt(squares);
        want(&w, place(&m, m.by_rows ? p * height + row : row, m.by_rows ? col : p * width + col), x, fabs(x));
    }
    muon_normalize(out, gathered, &squares, m);
    check_values("muon_normalize", (int)m.rows, (int)m.cols, out, &w, 2);
    squares = 0;
    memset(gathered, 0, (size_t)(n * m.copies) * sizeof(float));
    muon_normalize(out, gathered, &squares, m);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += fabs(to_float(out[i]));
    check(sum == 0, "muon_normalize, %d x %d: zeros stay zeros", (int)m.rows, (int)m.cols);
    release(&memory);
}

static void test_polynomial(int n) {
    const floatX *gram = values((int64_t)n * n, 1), *before = values((int64_t)n * n, 1);
    floatX* square = copied_values(before, (int64_t)n * n);
    Wanted w = wanted_new((int64_t)n * n);
    for (int64_t i = 0; i < (int64_t)n * n; i++) {
        const double a = i / n == i % n ? poly[0] : 0, b = poly[1] * to_float(gram[i]),
                     c = poly[2] * to_float(before[i]);
        want(&w, i, a + b + c, fabs(a) + fabs(b) + fabs(c));
    }
    muon_polynomial(square, gram, n);
    check_values("muon_polynomial", n, n, square, &w, 4);
    release(&memory);
}

// Ten steps, by Nesterov's rule as PyTorch writes it, in two ranges with a gap that stays as it is. m has 3 roundings a
// step, and u 3 more.
static void test_momentum(int64_t n) {
    enum { STEPS = 10, GAP = 3 };
    const float beta = 0.95f, scale = 0.7f;
    const int64_t cut = n / 3;
    TensorRange ranges[2] = {whole_range(cut), whole_range(n - cut)};
    float *m = floats(n + GAP, 0), *g = floats(n + GAP, 1), *gap = copied(g + cut, GAP);
    double* m_abs = doubles(n);
    Wanted wm = wanted_new(n), wu = wanted_new(n);
    ranges[1].at = cut + GAP;
    for (int step = 0; step < STEPS; step++) {
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = i < cut ? i : i + GAP;
            g[at] = 2 * random_uniform(2, (uint64_t)step, (uint64_t)i) - 1;
            const double gi = (double)scale * g[at], mi = beta * wm.value[i] + (1 - (double)beta) * gi;
            m_abs[i] = beta * m_abs[i] + (1 - (double)beta) * fabs(gi);
            const double u = (1 - (double)beta) * gi + beta * mi;
            want(&wm, i, mi, m_abs[i]);
            want(&wu, i, u, (1 - (double)beta) * fabs(gi) + beta * m_abs[i]);
        }
        muon_momentum(g, m, ranges, 2, beta, scale);
    }
    check(same(g + cut, gap, GAP), "muon_momentum: what is between ranges stays");
    memmove(g + cut, g + cut + GAP, (size_t)(n - cut) * sizeof *g);
    memmove(m + cut, m + cut + GAP, (size_t)(n - cut) * sizeof *m);
    check_roundings("muon_momentum: m", 1, (int)n, m, &wm, 4 * STEPS);
    check_roundings("muon_momentum: U", 1, (int)n, g, &wu, 4 * STEPS + 4);
    release(&memory);
}

// A piece is updated in ranges of 1, 7, 49, ... elements, in a buffer that has others before it.
static void test_update(CutMatrix m, int piece) {
    enum { BEFORE = 5 };
    const int64_t n = m.rows * m.cols / m.pieces, height = m.by_rows ? m.rows / m.pieces : m.rows, width = n / height;
    const OptimizerStep s = {1e-2f, 0, 0, 0, 0.1f, 7, 1};
    const bool masters = sizeof(floatX) < sizeof(float);
    float* weights = floats(n + BEFORE, 1);
    floatX* params = masters ? poisoned_values(n + BEFORE) : (floatX*)(void*)weights;
    const floatX* ortho = values(m.rows * m.cols, 1);
    floatX* again = poisoned_values(n);
    Wanted w = wanted_new(n);
    const double rate = (double)s.lr * 0.2 * sqrt((double)max_i64(m.rows, m.cols));
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = i / width, col = i % width,
                      at = place(&m, m.by_rows ? piece * height + row : row, m.by_rows ? col : piece * width + col);
        const double kept = weights[BEFORE + i] * (1 - (double)s.lr * s.weight_decay),
                     move = rate * to_float(ortho[at]);
        want(&w, i, kept - move, 2 * fabs(kept) + 4 * fabs(move) + fabs(kept - move));
    }
    for (int64_t begin = 0, size = 1; begin < n; begin += size, size *= 7) {
        TensorRange range = whole_range(min_i64(size, n - begin));
        range.from = range.at = BEFORE + begin;
        range.first = 1000 + (uint64_t)begin;
        range.key = 17;
        muon_update(params, masters ? weights : NULL, ortho, m, piece, begin, &range, &s);
    }
    check_roundings("muon_update", (int)m.rows, (int)m.cols, weights + BEFORE, &w, 1);
    if (masters) adamw_round(again, weights + BEFORE, n, s.step, 17, 1000);
    check(!masters || same_values(again, params + BEFORE, n), "muon_update: rounded as by adamw_round");
    release(&memory);
}

// ---- Orthogonalisation ------------------------------------------------------------------------------------------

static MuonBuffers buffers_new(int64_t rows, int64_t cols) {
    const int64_t n = rows * cols, r = min_i64(rows, cols);
    const MuonBuffers b = {NULL,
                           {poisoned_values(n), poisoned_values(n)},
                           poisoned_values(r * r),
                           poisoned_values(r * r),
                           (double*)array_new(1, sizeof(double))};
    return b;
}

// q (n, r): orthonormal columns, by Gram and Schmidt, twice.
static double* orthonormal(int64_t n, int64_t r, uint64_t stream) {
    double* q = doubles(n * r);
    for (int64_t i = 0; i < n * r; i++) q[i] = random_uniform(9, stream, (uint64_t)i) - 0.5;
    for (int64_t j = 0; j < r; j++) {
        for (int64_t k = 0; k < 2 * j; k++) {
            double dot = 0;
            for (int64_t i = 0; i < n; i++) dot += q[i * r + j] * q[i * r + k % j];
            for (int64_t i = 0; i < n; i++) q[i * r + j] -= dot * q[i * r + k % j];
        }
        double size = 0;
        for (int64_t i = 0; i < n; i++) size += q[i * r + j] * q[i * r + j];
        for (int64_t i = 0; i < n; i++) q[i * r + j] /= sqrt(size);
    }
    return q;
}

// A singular value after the five steps.
static double mapped(double s) {
    for (int i = 0; i < 5; i++) s = s * (poly[0] + s * s * (poly[1] + s * s * poly[2]));
    return s;
}

// P S Q^T becomes P f(S / |S|) Q^T, of which the error is Frobenius' norm. Bound in float32: a step rounds its result
// by at most about sqrt(c) u |B X|, |B| <= 3.5, as sums of c terms have random signs, and later steps multiply an error
// by at most a each; the first, with a^4 to come, is most: 2 a^5 sqrt(c) u |X|, |X| = 1. In bf16 only the singular
// values are compared with the band.
static void test_newton_schulz(int64_t rows, int64_t cols, double least) {
    const int64_t r = min_i64(rows, cols), c = max_i64(rows, cols);
    const CutMatrix m = {rows, cols, 1, 1, true};
    const MuonBuffers b = buffers_new(rows, cols);
    const double *p = orthonormal(rows, r, 1), *q = orthonormal(cols, r, 2);
    double *s = doubles(r), norm = 0, error = 0, low = INFINITY, high = 0;
    float* u = floats(rows * cols, 0);
    for (int64_t k = 0; k < r; k++) {
        s[k] = r > 1 ? pow(least, (double)k / (double)(r - 1)) : 1;
        norm += s[k] * s[k];
    }
    for (int64_t i = 0; i < rows * cols; i++) {
        double x = 0;
        for (int64_t k = 0; k < r; k++) x += p[i / cols * r + k] * s[k] * q[i % cols * r + k];
        u[i] = (float)x;
    }
    muon_load(&b, u, m);
    all_off = true;
    const floatX* o = newton_schulz(&b, m);
    check(all_off && !is_off, "newton_schulz: no product is chosen by time, and later ones may be");
    for (int64_t i = 0; i < rows * cols; i++) {
        double x = 0;
        for (int64_t k = 0; k < r; k++) x += p[i / cols * r + k] * mapped(s[k] / sqrt(norm)) * q[i % cols * r + k];
        error += pow(x - to_float(o[place(&m, i / cols, i % cols)]), 2);
    }
    for (int64_t k = 0; k < r; k++) { // p_k^T O q_k, the singular value
        double x = 0;
        for (int64_t i = 0; i < rows * cols; i++)
            x += p[i / cols * r + k] * to_float(o[place(&m, i / cols, i % cols)]) * q[i % cols * r + k];
        low = fmin(low, x);
        high = fmax(high, x);
    }
    char line[96];
    snprintf(line, sizeof line, "newton_schulz, %lld x %lld", (long long)rows, (long long)cols);
    if (sizeof(floatX) == sizeof(float)) check_error(line, sqrt(error), 2 * pow(poly[0], 5) * sqrt((double)c) * U);
    const double slack = sizeof(floatX) == sizeof(float) ? 1e-3 : 0.1;
    check(low >= 0.675 - slack && high <= 1.21 + slack, "%s: singular values from %.3f to %.3f", line, low, high);
    release(&memory);
}

// Bits do not depend on a power of two, and zeros become zeros.
static void test_scales(int64_t rows, int64_t cols) {
    const CutMatrix m = {rows, cols, 1, 1, true};
    const MuonBuffers b = buffers_new(rows, cols);
    float* u = floats(rows * cols, 1);
    bool equal = true, zero = true;
    muon_load(&b, u, m);
    const floatX* first = copied_values(newton_schulz(&b, m), rows * cols);
    for (int power = -60; power <= 40; power += 50) {
        float* scaled = copied(u, rows * cols);
        for (int64_t i = 0; i < rows * cols; i++) scaled[i] = ldexpf(u[i], power);
        muon_load(&b, scaled, m);
        equal = equal && same_values(newton_schulz(&b, m), first, rows * cols);
    }
    check(equal, "newton_schulz, %lld x %lld: the scale does not matter", (long long)rows, (long long)cols);
    memset(u, 0, (size_t)(rows * cols) * sizeof *u);
    muon_load(&b, u, m);
    const floatX* o = newton_schulz(&b, m);
    for (int64_t i = 0; i < rows * cols; i++) zero = zero && to_float(o[i]) == 0;
    check(zero, "newton_schulz, %lld x %lld: zeros", (long long)rows, (long long)cols);
    release(&memory);
}

// f on [0.002, 1], which is what kernels/muon.h says.
static void test_band(void) {
    double low = INFINITY, high = 0;
    for (int i = 2000; i <= 1000000; i++) {
        low = fmin(low, mapped(i * 1e-6));
        high = fmax(high, mapped(i * 1e-6));
    }
    check(low > 0.675 && high < 1.21, "five steps take [0.002, 1] to [%.4f, %.4f]", low, high);
}

int main(void) {
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        test_normalize(shapes[i]);
        for (int piece = 0; piece < shapes[i].pieces; piece++) test_update(shapes[i], piece);
    }
    const CutMatrix large = {90, 130, 1, 1, true}; // more than a block of the update
    test_update(large, 0);
    for (int n = 1; n < 50; n += 16) test_polynomial(n);
    test_momentum(1000);
    test_band();
    const int64_t sizes[][2] = {{16, 16}, {8, 40}, {40, 8}, {1, 33}, {33, 1}, {64, 192}, {130, 70}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        test_newton_schulz(sizes[i][0], sizes[i][1], 0.05);
        test_newton_schulz(sizes[i][0], sizes[i][1], 1);
        test_scales(sizes[i][0], sizes[i][1]);
    }
    return test_end();
}
