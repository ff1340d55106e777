/*
Tests of the bits of the kernels: the same with any number of threads, at any alignment, and in two calls as in one.
*/
#include "kernels_fixture.h"
#include "../../../kernels/activations.h"
#include "../../../kernels/async_dp.h"
#include "../../../kernels/caat.h"
#include "../../../kernels/crossentropy.h"
#include "../../../kernels/embedding.h"
#include "../../../kernels/global_norm.h"
#include "../../../kernels/layernorm.h"
#include "../../../kernels/optimizers.h"
#include "../../../kernels/residual.h"
#include "../../../kernels/rope.h"

// ----------------------------------------------------------------------------------------------------------------
// Bits. Each kernel runs with 1 to 4 threads, with arrays moved against their alignment, and with its rows (or
// elements) in two calls: all memory has to come out the same.

enum { BITS_B = 3, BITS_T = 67, BITS_N = BITS_B * BITS_T, BITS_C = 333 };

// Runs a kernel on units [begin, end) of its arrays: rows, or sequences, or elements.
typedef struct {
    floatX* x[4];
    float* f[6];
    int32_t* tokens;
} Arrays;
typedef void (*BitsKernel)(const Arrays* m, int begin, int end);
enum { BITS_ROW = BITS_C, BITS_SEQUENCE = BITS_T * BITS_C, BITS_ELEMENTS = 2 * BITS_N * BITS_C };

static void bits_embedding_forward(const Arrays* m, int begin, int end) {
    embedding_forward(m->x[0] + begin * BITS_ROW, m->tokens + begin, m->x[1], end - begin, BITS_C, 0, BITS_C);
}
static void bits_embedding_backward(const Arrays* m, int begin, int end) {
    embedding_backward(m->f[1], m->x[0] + begin * BITS_ROW, m->tokens + begin, end - begin, BITS_C, 0, BITS_C);
}
static void bits_position_forward(const Arrays* m, int begin, int end) {
    position_forward(m->x[0] + begin * BITS_ROW, m->x[1], begin, end - begin, BITS_T, BITS_C);
}
static void bits_position_backward(const Arrays* m, int begin, int end) {
    position_backward(m->f[1], m->x[0] + begin * BITS_ROW, begin, end - begin, BITS_T, BITS_C);
}
static void bits_layernorm(const Arrays* m, int begin, int end) {
    const int at = begin * BITS_ROW;
    float *mean = m->f[4] + begin, *rstd = m->f[5] + begin;
    const NormGradients d = {m->f[4] + BITS_N, m->f[5] + BITS_N, m->f[2], m->f[3]};
    const Norm forward = {m->x[0] + at, m->x[1] + at, mean, rstd, m->x[2], m->x[3]},
               backward = {m->x[0] + at, NULL, mean, rstd, m->x[3], NULL};
    layernorm_forward(&forward, end - begin, BITS_C, 1e-5f);
    layernorm_backward(&backward, m->x[2] + BITS_C + at, d, m->x[1] + at, end - begin, BITS_C);
}
static void bits_rmsnorm(const Arrays* m, int begin, int end) {
    const int at = begin * BITS_ROW;
    float* rstd = m->f[5] + begin;
    const NormGradients d = {m->f[4], NULL, NULL, NULL};
    const Norm norm = {m->x[0] + at, m->x[1] + at, NULL, rstd, m->x[3], NULL};
    rmsnorm_forward(&norm, end - begin, BITS_C, 1e-5f);
    rmsnorm_backward(&norm, m->x[2] + at, d, m->x[1] + at, end - begin, BITS_C);
}
static void bits_rope(const Arrays* m, int begin, int end) {
    enum { HS = 22, HEADS = 13 };
    rope_table(m->f[1], BITS_T, HS, 1e4, NULL);
    rope_forward(m->x[0] + begin * BITS_SEQUENCE, m->f[1], end - begin, BITS_T, HEADS, HS, BITS_C);
    rope_backward(m->x[2] + begin * BITS_SEQUENCE, m->f[1], end - begin, BITS_T, HEADS, HS, BITS_C);
}
static int row_of_table; // of activations, or of optimizers
static void bits_activation(const Arrays* m, int begin, int end) {
    const Activation* activation = &activations[row_of_table];
    const int at = begin * BITS_ROW, fc = activation->gated ? 2 * at : at;
    activation->forward(m->x[1] + at, m->x[0] + fc, end - begin, BITS_C);
    activation->backward(m->x[2] + fc, m->x[1] + at, m->x[0] + fc, end - begin, BITS_C);
}
static void bits_residual(const Arrays* m, int begin, int end) {
    const int at = begin * BITS_ROW;
    residual_forward(m->x[2] + at, m->x[0] + at, m->x[1] + at, m->x[3], end - begin, BITS_C);
    residual_forward(m->x[1] + at, m->x[1] + at, m->x[0] + at, NULL, end - begin, BITS_C);
}
static void bits_residual_norm(const Arrays* m, int begin, int end) {
    const int at = begin * BITS_ROW, n = end - begin;
    float *mean = m->f[4] + begin, *rstd = m->f[5] + begin;
    const Norm layer = {m->x[1] + at, m->x[2] + at, mean, rstd, m->x[3], m->x[3] + BITS_C},
               rms = {m->x[0] + at, m->x[2] + at, NULL, rstd, m->x[3] + BITS_C, NULL};
    residual_layernorm_forward(&layer, m->x[0] + at, m->x[1] + at, NULL, n, BITS_C, 1e-5f);
    residual_rmsnorm_forward(&rms, m->x[0] + at, m->x[2] + at, m->x[3], n, BITS_C, 1e-5f);
}
static const VocabSlice bits_slice = {0, 2 * BITS_C, 2 * BITS_C};
static void bits_crossentropy(const Arrays* m, int begin, int end) {
    const int N = end - begin;
    const Targets targets = {m->tokens + begin, 0.1f};
    floatX* logits = m->x[0] + 2 * begin * BITS_ROW;
    float *row_max = m->f[1] + begin, *row_sum = m->f[2] + begin;
    float *target = m->f[3] + begin, *losses = m->f[4] + begin;
    crossentropy_max(row_max, logits, N, bits_slice);
    crossentropy_sum(row_sum, target, logits, row_max, targets, N, bits_slice);
    crossentropy_loss(losses, row_sum, target, N);
    crossentropy_backward(logits, row_max, row_sum, targets, N, bits_slice);
}
static void bits_crossentropy_fused(const Arrays* m, int begin, int end) {
    const Targets targets = {m->tokens + begin, 0.1f};
    crossentropy_fused(m->f[4] + begin, m->x[0] + 2 * begin * BITS_ROW, targets, end - begin, bits_slice);
}
static void bits_accumulate(const Arrays* m, int begin, int end) {
    accumulate(m->f[0] + begin, m->f[1] + begin, end - begin);
}
static void bits_accumulate_max(const Arrays* m, int begin, int end) {
    accumulate_max(m->f[0] + begin, m->f[1] + begin, end - begin);
}
enum { BITS_SHARED = 101 };
static void bits_sync(const Arrays* m, int begin, int end) { // one state, whose rows can be cut
    const int at = begin * BITS_ROW, n = end - begin;
    floatX* shared = m->x[2] + begin * BITS_SHARED;
    caat_pack(shared, m->x[0] + at, 1, n, BITS_C, BITS_SHARED);
    caat_unpack(m->x[1] + at, shared, m->x[0] + at, 1.7f, 1, n, BITS_C, BITS_SHARED);
    caat_unpack(m->x[0] + at, m->x[3] + begin * BITS_SHARED, m->x[0] + at, 1.7f, 1, n, BITS_C, BITS_SHARED);
    caat_pack_floats(m->f[2] + begin * BITS_SHARED, m->x[0] + at, 1, n, BITS_C, BITS_SHARED);
    caat_unpack_floats(m->x[0] + at, m->f[3] + begin * BITS_SHARED, m->x[0] + at, 1.7f, 1, n, BITS_C, BITS_SHARED);
}
static void bits_sync_states(const Arrays* m, int begin, int end) { // one unit: three states of all rows
    enum { STATES = 3, N = BITS_ELEMENTS / BITS_C / STATES };
    if (begin == end) return;
    caat_pack(m->x[2], m->x[0], STATES, N, BITS_C, BITS_SHARED);
    caat_unpack(m->x[0], m->x[2], m->x[0], 1.7f, STATES, N, BITS_C, BITS_SHARED);
    caat_pack_floats(m->f[2], m->x[0], STATES, N, BITS_C, BITS_SHARED);
    caat_unpack_floats(m->x[0], m->f[2], m->x[0], 1.7f, STATES, N, BITS_C, BITS_SHARED);
}
static const uint64_t BITS_KEY = 99, BITS_FIRST = (1ULL << 33) + 2; // of the stochastic rounding
static void bits_optimizer(const Arrays* m, int begin, int end) {
    const OptimizerStep step = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 3, 0.7f};
    const Optimizer* optimizer = &optimizers[row_of_table];
    const TensorRange part = {begin, begin, end - begin, BITS_FIRST + (uint64_t)begin, BITS_KEY, 0, true};
    float* master = sizeof(floatX) < sizeof(float) ? m->f[0] : NULL;
    optimizer->update(m->x[0], master, m->f[1], m->f[2], optimizer->moments > 1 ? m->f[3] : NULL, &part, 1, &step);
}
static void bits_adamw_round(const Arrays* m, int begin, int end) {
    adamw_round(m->x[0] + begin, m->f[0] + begin, end - begin, 3, BITS_KEY, BITS_FIRST + (uint64_t)begin);
}
static void bits_sum_of_squares(const Arrays* m, int begin, int end) { // one unit: the whole
    double sum = 0;
    const TensorRange whole = whole_range(BITS_ELEMENTS);
    sum_of_squares(&sum, m->f[0], &whole, 1);
    if (begin < end) memcpy(m->f[1], &sum, sizeof sum);
}
static void bits_replicas(const Arrays* m, int begin, int end) {
    float *a = m->f[0] + begin, *b = m->f[1] + begin, *c = m->f[2] + begin, *d = m->f[3] + begin;
    const int n = end - begin;
    difference(m->f[5] + begin, a, b, n);
    add_scaled(a, b, 0.37f, n);
    delay_compensate(d, a, b, 0.7f, n);
    outer_update(a, b, c, 0.5f, 0.7f, 0.9f, n);
}
static void bits_delay_squares(const Arrays* m, int begin, int end) { // one unit: the whole
    double sum = 0;
    delay_squares(&sum, m->f[0], m->f[1], m->f[2], BITS_ELEMENTS);
    if (begin < end) memcpy(m->f[3], &sum, sizeof sum);
}
// All memory after a run.
static Memory bits_run(BitsKernel kernel, int units, int threads, int moved, int cut) {
    memory.count = 0;
    shift = moved;
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
    Arrays m;
    for (int i = 0; i < 4; i++) m.x[i] = values(BITS_ELEMENTS, 3);
    for (int i = 0; i < 6; i++) m.f[i] = floats(BITS_ELEMENTS, 3);
    for (int i = 0; i < BITS_ELEMENTS; i++) m.f[3][i] = fabsf(m.f[3][i]); // AdamW's mean of squares
    m.tokens = integers(BITS_N, 0, BITS_C);
    if (cut > 0) kernel(&m, 0, cut);
    if (cut < units) kernel(&m, cut, units);
    shift = 0;
    const Memory result = memory;
    memory.count = 0;
    return result;
}

static bool bits_same(BitsKernel kernel, int units, int threads, int moved, int cut, const Memory* expected) {
    Memory m = bits_run(kernel, units, threads, moved, cut);
    bool equal = m.count == expected->count;
    for (int i = 0; equal && i < m.count; i++) equal = memcmp(m.data[i], expected->data[i], m.size[i]) == 0;
    release(&m);
    return equal;
}

static void test_bits(const char* name, BitsKernel kernel, int units) {
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
    for (row_of_table = 0; row_of_table < ACTIVATIONS; row_of_table++)
        test_bits(activations[row_of_table].name, bits_activation, BITS_N);
    for (row_of_table = 0; row_of_table < OPTIMIZERS; row_of_table++)
        test_bits(optimizers[row_of_table].name, bits_optimizer, BITS_ELEMENTS);
    test_bits("adamw_round", bits_adamw_round, BITS_ELEMENTS);
    test_bits("residual_norm", bits_residual_norm, BITS_N);
    test_bits("embedding_forward", bits_embedding_forward, BITS_N);
    test_bits("embedding_backward", bits_embedding_backward, BITS_N);
    test_bits("position_forward", bits_position_forward, BITS_N);
    test_bits("position_backward", bits_position_backward, BITS_N);
    test_bits("layernorm", bits_layernorm, BITS_N);
    test_bits("rmsnorm", bits_rmsnorm, BITS_N);
    test_bits("rope", bits_rope, BITS_B);
    test_bits("residual", bits_residual, BITS_N);
    test_bits("crossentropy", bits_crossentropy, BITS_N);
    test_bits("crossentropy_fused", bits_crossentropy_fused, BITS_N);
    test_bits("accumulate", bits_accumulate, BITS_ELEMENTS);
    test_bits("accumulate_max", bits_accumulate_max, BITS_ELEMENTS);
    test_bits("sync", bits_sync, BITS_N);
    test_bits("sync, three states", bits_sync_states, 1);
    test_bits("sum_of_squares", bits_sum_of_squares, 1);
    test_bits("replicas", bits_replicas, BITS_ELEMENTS);
    test_bits("delay_squares", bits_delay_squares, 1);
    return test_end();
}
