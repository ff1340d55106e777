/*
parallel/tensor.h: tensor parallelism (Shoeybi et al. 2019; sequence parallelism: Korthikanti et al. 2022).

A column-parallel matrix has its rows cut over the t ranks of the tensor group, so each rank makes its heads or its mlp
channels of all rows. The row-parallel matrix behind it has its columns cut: each rank makes a partial sum of the whole
output. Two operators stand around such a pair,

                                 forward                                    backward
    gather_from_sequence_region  nothing (all ranks have all rows);         reduce_from_tensor_region of the input's gradient
                                 sequence parallel: all-gather of rows
    reduce_from_tensor_region    all-reduce of partial sums;                gather_from_sequence_region of the output's
                                 sequence parallel: reduce-scatter of rows  gradient

so the same two functions serve both directions. With sequence parallelism rank r has rows [r N / t, (r + 1) N / t) of the
N = B T rows of a micro-batch, between the pairs, where all work is row by row.

The vocabulary is cut as well: each rank has V / t rows of the embedding and columns of the logits. Three numbers a row go
between the ranks for the cross entropy; the logits never do.
*/
#ifndef TENSOR_H
#define TENSOR_H

#include "../methods/caat.h"
#include "stage.h"

// all (n) from this rank's rows; where rows are not split they are all there, and all may be mine.
static inline void gather_from_sequence_region(ProcessGroups* g, bool split, floatX* all, const floatX* mine, int64_t n) {
    if (split)
        comm_all_gather(&g->tensor, all, mine, n / g->tensor.size, COMM_FLOATX);
    else if (all != mine)
        device_copy(all, mine, (size_t)n * sizeof(floatX));
}

// mine: this rank's rows of the sum over the ranks of partial (n). Where rows are not split mine is partial itself.
static inline CommRequest reduce_from_tensor_region_start(ProcessGroups* g, bool split, floatX* mine, floatX* partial, int64_t n) {
    if (split) return comm_reduce_scatter_start(&g->tensor, mine, partial, n / g->tensor.size, COMM_FLOATX);
    return comm_all_reduce_start(&g->tensor, partial, n, COMM_FLOATX, COMM_SUM);
}

static inline void reduce_from_tensor_region(ProcessGroups* g, bool split, floatX* mine, floatX* partial, int64_t n) {
    if (split)
        comm_reduce_scatter(&g->tensor, mine, partial, n / g->tensor.size, COMM_FLOATX);
    else
        comm_all_reduce(&g->tensor, partial, n, COMM_FLOATX, COMM_SUM);
}

// While a step is repeated: looks at what this rank has made itself at a place of the computation (trainer/health.h), before it is added
// to what others have. layer: of this rank, if the place is in a block.
static inline void nan_probe(const Stage* s, const Activations* a, StepPlace place, int layer, const floatX* x, int64_t n) {
    if (!s->probe) return;
    probe_values(s->probe, place_on_way(s->probe, place, a->chunk->first_layer + layer - a->chunk->begin), x, n);
}

// Where a partial sum of all rows is computed before reduce_from_tensor_region puts this rank's rows of the sum into mine.
static inline floatX* tp_partial_buffer(const Stage* s, const Activations* a, floatX* mine) { return a->split ? s->partial : mine; }

// All rows of mine.
static const floatX* tp_gather_input(const Stage* s, const Activations* a, const floatX* mine) {
    if (!a->split) return mine;
    gather_from_sequence_region(s->groups, true, s->gathered, mine, (int64_t)a->N * s->model.C);
    return s->gathered;
}

// out (N, OC) = x W^T + bias, state by state.
static inline void tp_linear_forward(const Stage* s, const Activations* a, floatX* out, const floatX* x, int layer, TensorKind w,
                   TensorKind bias, int C, int OC) {
    for (int i = 0; i < s->layout.states; i++) {
        const int64_t row = (int64_t)i * a->tokens;
        linear_forward(out + row * OC, x + row * C, weight_of(s, layer, w, i),
                       bias == NO_TENSOR ? NULL : weight_of(s, layer, bias, i), a->tokens, C, OC);
    }
}

// The gradients of a linear layer, state by state: dx (N, C) = dout W.
static inline void tp_linear_backward_input(const Stage* s, const Activations* a, floatX* dx, const floatX* dout, int layer, TensorKind w,
                         int C, int OC) {
    for (int i = 0; i < s->layout.states; i++) {
        const int64_t row = (int64_t)i * a->tokens;
        linear_backward_input(dx + row * C, dout + row * OC, weight_of(s, layer, w, i), a->tokens, C, OC);
    }
}

// dW += dout^T x and, where there is a bias, db += sum of the rows of dout.
static inline void tp_linear_backward_weight(const Stage* s, const Activations* a, int layer, TensorKind w, TensorKind b,
                             const floatX* dout, const floatX* x, int C, int OC) {
    const int N = a->tokens;
    for (int i = 0; i < s->layout.states; i++) {
        const floatX *dout_i = dout + (int64_t)i * N * OC, *x_i = x + (int64_t)i * N * C;
        if (s->model.arch == ARCH_GPT2 && b != NO_TENSOR)
            linear_backward_weight_and_bias(gradient_of(s, layer, w, i), gradient_of(s, layer, b, i), dout_i, x_i, N, C,
                                            OC);
        else
            linear_backward_weight(gradient_of(s, layer, w, i), dout_i, x_i, N, C, OC);
    }
}

// What a row-parallel layer adds to the residual stream, from this rank's part of it: the sum over the ranks, or of what
// is shared. mine may be partial.
static inline void tp_reduce_output(const Stage* s, const Activations* a, floatX* mine, floatX* partial) {
    if (is_caat(s))
        caat_reduce(s, a, mine, partial, false);
    else
        reduce_from_tensor_region(s->groups, a->split, mine, partial, (int64_t)a->N * s->model.C);
}

// The gradient of a column-parallel layer's input, from this rank's part of it: the sum over the ranks; every state of a
// CAAT-Net has an input of its own.
static inline CommRequest tp_reduce_input_grad_start(const Stage* s, const Activations* a, floatX* mine, floatX* partial) {
    if (is_caat(s)) return no_request();
    return reduce_from_tensor_region_start(s->groups, a->split, mine, partial, (int64_t)a->N * s->model.C);
}

// ----------------------------------------------------------------------------------------------------------------
// Vocabulary parallel

// Where a state's logits begin.
static inline floatX* logits_of(const Stage* s, const Activations* a, int state) {
    return a->head->logits + (int64_t)state * a->tokens * s->layout.V;
}

// Where one rank has the whole vocabulary in one piece and a gradient is wanted, the logits become it at once.
static inline bool uses_fused_classifier(const Stage* s, const Activations* a) {
    return mesh_tp_cuts(&s->layout.mesh) == 1 && a->scale != 0;
}

// Vocabulary parallel: three numbers a row go between the ranks, the logits never do. The states of a rank first put theirs
// together, in the memory of the first.
static inline void vocab_parallel_cross_entropy(const Stage* s, Activations* a) {
    const int N = a->tokens, V = s->layout.V;
    const Layout* layout = &s->layout;
    Comm* tensor = &s->groups->tensor;
    HeadActivations* h = a->head;
    if (uses_fused_classifier(s, a)) {
        crossentropy_fused(h->losses, h->logits, a->targets, a->scale, N, layout_tokens(layout, 0), V);
        return;
    }
    for (int i = 0; i < layout->states; i++) {
        float* largest = h->row_max + (int64_t)i * N;
        crossentropy_max(largest, logits_of(s, a, i), N, layout_tokens(layout, i), V);
        if (i > 0) accumulate_max(h->row_max, largest, N);
    }
    comm_all_reduce(tensor, h->row_max, N, COMM_FLOAT, COMM_MAX);
    for (int i = 0; i < layout->states; i++) {
        float* sum = h->row_sum + 2 * (int64_t)i * N;
        crossentropy_sum(sum, sum + N, logits_of(s, a, i), h->row_max, a->targets, N, layout_tokens(layout, i), V,
                         layout_vocab_offset(layout, i));
        if (i > 0) accumulate(h->row_sum, sum, 2 * (int64_t)N);
    }
    comm_all_reduce(tensor, h->row_sum, 2 * (int64_t)N, COMM_FLOAT, COMM_SUM);
    h->target_logit = h->row_sum + N;
    crossentropy_loss(h->losses, h->row_sum, h->target_logit, N);
}

#endif
