/*
test_caat.c: tests of CAAT-Nets.

    finite differences   the gradient of every tensor with 1, 2, 4 streams and any part of the channels shared
    initial weights      private channels are as large as shared ones
    large logits         of any stream have a finite loss

test_gpt.c compares CAAT-Nets with PyTorch.
*/
#include "one_rank.h"

// The derivative of the loss along a direction, by the four-point formula: its error is h^4 / 30 of the fifth
// derivative.
static double slope_at(Alone* x, const float* params, const float* direction) {
    const double h = 0.01;
    const double near = loss_at(x, params, direction, h) - loss_at(x, params, direction, -h);
    const double far = loss_at(x, params, direction, 2 * h) - loss_at(x, params, direction, -2 * h);
    return (8 * near - far) / (12 * h);
}

// Every tensor, along its gradient and along a random direction of length 1. The loss, some 5, is known to about 1e-7
// (roundings are random, and those of 32 tokens are averaged), which makes 1e-5 of a slope. The fifth derivative's part
// grows with slopes, of 0.02 to 2. So errors are relative to 0.1 + the gradient's length: 5e-5 here, and 1.8e-4 in a
// block that normalises queries and keys.
static void test_slopes(Arch arch, int ranks, double share) {
    ModelConfig m = model_of(arch, 2, 32, 4, 4, 44, 16, 61);
    const CaatConfig sync = {ranks, share, false};
    Alone alone;
    alone_open(&alone, &m, sync, 2);
    Stage* s = &alone.stage;
    Activations* a = &s->activations[0];
    const int64_t n = s->layout.elements;
    float* params = (float*)checked_calloc((size_t)n, sizeof(float), "test");
    layout_initialize(params, &s->layout, 4);
    for (int i = 0; i < s->layout.n; i++) { // larger, and no zeros: every gradient stands far above rounding
        const Slice* slice = &s->layout.slices[i];
        for (int64_t k = 0; k < slice->rows_used * slice->cols; k++)
            params[slice->offset + k] += 0.3f * (random_uniform((uint64_t)i, 5, (uint64_t)k) - 0.5f);
    }
    device_from_floats(s->params, params, n);
    zero_gradients(s);
    a->targets.scale = 1.0f / (float)a->tokens;
    chunk_forward(s, a);
    const Pass backward = {s, a, &s->act_grads[0][0], BOTH_GRADS, true, false};
    chunk_backward(&backward);
    float* gradient = host_floats(s->grads.all, n);
    float* direction = (float*)checked_malloc((size_t)n * sizeof(float), "test");
    double worst = 0, steepest = 0;
    const char* where = "";
    for (int tensor = 0; tensor < s->layout.tensors; tensor++) {
        const char* name = "";
        for (int random = 0; random < 2; random++) {
            double length = 0, expected = 0;
            memset(direction, 0, (size_t)n * sizeof(float));
            for (int i = 0; i < s->layout.n; i++) {
                const Slice* slice = &s->layout.slices[i];
                if (slice->index != tensor) continue;
                name = slice->tensor.name;
                for (int64_t k = slice->offset; k < slice->offset + slice->rows_used * slice->cols; k++) {
                    direction[k] = random ? random_uniform(9, 9, (uint64_t)k) - 0.5f : gradient[k];
                    length += (double)direction[k] * (double)direction[k];
                }
            }
            length = sqrt(length);
            if (!random) steepest = length;
            if (length < 1e-6) continue; // gpt2's key biases have no gradient
            for (int64_t k = 0; k < n; k++) {
                direction[k] = (float)((double)direction[k] / length);
                expected += (double)direction[k] * (double)gradient[k];
            }
            const double error = fabs(slope_at(&alone, params, direction) - expected) / (0.1 + steepest);
            if (!(error <= worst)) {
                worst = error;
                where = name;
            }
        }
    }
    char what[160];
    snprintf(what, sizeof what, "%s, %d states, p = %g: slopes of the loss, worst of %d tensors: %s",
             model_arch_name(arch), ranks, share, s->layout.tensors, where);
    check_error(what, worst, 4e-4);
    free(params), free(gradient), free(direction);
    alone_close(&alone);
}

// At the initial weights private channels are as large as shared ones, which are sums of N independent parts: with
// either scale; without, they are sqrt(N) times smaller. 8192 numbers each, of some 50 independent ones: a standard
// deviation to 10 %.
static void test_private_channels(void) {
    const ModelConfig m = model_of(ARCH_LLAMA, 2, 128, 4, 4, 256, 64, 61);
    const CaatConfig sync = {4, 0.5, false};
    Alone alone;
    alone_open(&alone, &m, sync, 2);
    Stage* s = &alone.stage;
    Activations* a = &s->activations[0];
    draw_weights(s);
    chunk_forward(s, a);
    float *before = host_values(a->x[0], (int64_t)a->N * m.C), *after = host_values(a->x[1], (int64_t)a->N * m.C);
    double squares[2] = {0, 0};
    bool same = true;
    for (int64_t i = 0; i < (int64_t)a->N * m.C; i++) {
        const double added = (double)after[i] - (double)before[i];
        const bool shared = i % m.C < s->layout.shared;
        squares[shared] += added * added;
        if (shared) same = same && after[i] == after[i % ((int64_t)a->tokens * m.C)];
    }
    const double ratio = sqrt(squares[0] / squares[1]);
    check(fabs(ratio - 1) < 0.1, "what a block adds to private channels is %.3f times as large as to shared ones",
          ratio);
    check(same, "and shared channels are the same bits in all states");
    free(before), free(after);
    alone_close(&alone);
}

// A logit of some hundreds, in any of the states: e to its power is more than float32 holds, and the loss is a number
// all the same. (The maximum of the other states would do for smaller ones.)
static void test_large_logits(int state) {
    const ModelConfig m = model_of(ARCH_LLAMA, 1, 32, 4, 4, 44, 16, 61);
    const CaatConfig sync = {4, 0.5, false};
    Alone alone;
    alone_open(&alone, &m, sync, 2);
    Stage* s = &alone.stage;
    const int64_t n = s->layout.elements;
    float* params = (float*)checked_calloc((size_t)n, sizeof(float), "test");
    layout_initialize(params, &s->layout, 4);
    float* row = params + layout_slice_of_stream(&s->layout, -1, HEAD_W, state)->offset;
    row[0] = 300;
    row[m.C] = -300; // of two tokens: one has a large logit, whatever the channel's sign
    const double loss = loss_at(&alone, params, params, 0);
    check(isfinite(loss) && loss > 88, "a large logit of state %d: the loss is %.1f", state, loss);
    free(params);
    alone_close(&alone);
}

// brief, and on what emulates a GPU: every fifth of the models, which are of each kind all the same.
static void test_caat(bool brief) {
    for (int state = 0; state < 4; state++) test_large_logits(state);
    static const double shares[] = {0, 0.25, 0.5, 1};
    for (int i = 0; i < 12 * ARCHS && sizeof(floatX) == sizeof(float); i += brief || !DEVICE_IS_HOST ? 5 : 1)
        test_slopes((Arch)(i % ARCHS), 1 << i / ARCHS % 3, shares[i / ARCHS / 3]);
    test_private_channels();
}

int main(int argc, char** argv) {
    device_open(0);
    test_caat(argc > 1 && strcmp(argv[1], "--short") == 0);
    return test_end();
}
