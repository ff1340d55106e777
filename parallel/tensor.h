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
static inline void gather_from_sequence_region(ProcessGroups* g, bool split, floatX* all, const floatX* mine,
                                               int64_t n) {
    if (split)
        comm_all_gather(&g->tensor, all, mine, n / g->tensor.size, COMM_FLOATX);
    else if (all != mine)
        device_copy(all, mine, (size_t)n * sizeof(floatX));
}

// mine: this rank's rows of the sum over the ranks of partial (n). Where rows are not split mine is partial itself.
static inline CommRequest reduce_from_tensor_region_start(ProcessGroups* g, bool split, floatX* mine, floatX* partial,
                                                          int64_t n) {
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
static inline void nan_probe(const Stage* stage, const Activations* acts, StepPlace place, int layer, const floatX* x,
                             int64_t n) {
    if (!stage->probe) return;
    probe_values(stage->probe, place_on_way(stage->probe, place, acts->chunk->first_layer + layer - acts->chunk->begin),
                 x, n);
}

// Where a partial sum of all rows is computed before reduce_from_tensor_region puts this rank's rows of the sum into mine.
static inline floatX* tp_partial_buffer(const Stage* stage, const Activations* acts, floatX* mine) {
    return acts->split ? stage->partial : mine;
}

// All rows of mine.
static const floatX* tp_gather_input(const Stage* stage, const Activations* acts, const floatX* mine) {
    if (!acts->split) return mine;
    gather_from_sequence_region(stage->groups, true, stage->gathered, mine, (int64_t)acts->N * stage->model.C);
    return stage->gathered;
}

// out (N, OC) = x W^T + bias, state by state.
static inline void tp_linear_forward(const Stage* stage, const Activations* acts, floatX* out, const floatX* x,
                                     int layer, TensorKind w, TensorKind bias, int C, int OC) {
    for (int i = 0; i < stage->layout.states; i++) {
        const int64_t row = (int64_t)i * acts->tokens;
        linear_forward(out + row * OC, x + row * C, weight_of(stage, layer, w, i),
                       bias == NO_TENSOR ? NULL : weight_of(stage, layer, bias, i), acts->tokens, C, OC);
    }
}

// The gradients of a linear layer, state by state: dx (N, C) = dout W.
static inline void tp_linear_backward_input(const Stage* stage, const Activations* acts, floatX* dx, const floatX* dout,
                                            int layer, TensorKind w, int C, int OC) {
    for (int i = 0; i < stage->layout.states; i++) {
        const int64_t row = (int64_t)i * acts->tokens;
        linear_backward_input(dx + row * C, dout + row * OC, weight_of(stage, layer, w, i), acts->tokens, C, OC);
    }
}

// dW += dout^T x and, where there is a bias, db += sum of the rows of dout.
static inline void tp_linear_backward_weight(const Stage* stage, const Activations* acts, int layer, TensorKind w,
                                             TensorKind b, const floatX* dout, const floatX* x, int C, int OC) {
    const int N = acts->tokens;
    for (int i = 0; i < stage->layout.states; i++) {
        const floatX *dout_i = dout + (int64_t)i * N * OC, *x_i = x + (int64_t)i * N * C;
        if (stage->model.biases && b != NO_TENSOR)
            linear_backward_weight_and_bias(gradient_of(stage, layer, w, i), gradient_of(stage, layer, b, i), dout_i,
                                            x_i, N, C, OC);
        else
            linear_backward_weight(gradient_of(stage, layer, w, i), dout_i, x_i, N, C, OC);
    }
}

// What a row-parallel layer adds to the residual stream, from this rank's part of it: the sum over the ranks, or of what
// is shared. mine may be partial.
static inline void tp_reduce_output(const Stage* stage, const Activations* acts, floatX* mine, floatX* partial) {
    if (is_caat(stage))
        caat_reduce(stage, acts, mine, partial, false);
    else
        reduce_from_tensor_region(stage->groups, acts->split, mine, partial, (int64_t)acts->N * stage->model.C);
}

// The gradient of a column-parallel layer's input, from this rank's part of it: the sum over the ranks; every state of a
// CAAT-Net has an input of its own.
static inline CommRequest tp_reduce_input_grad_start(const Stage* stage, const Activations* acts, floatX* mine,
                                                     floatX* partial) {
    if (is_caat(stage)) return no_request();
    return reduce_from_tensor_region_start(stage->groups, acts->split, mine, partial,
                                           (int64_t)acts->N * stage->model.C);
}

// ----------------------------------------------------------------------------------------------------------------
// Vocabulary parallel

// Where a state's logits begin.
static inline floatX* logits_of(const Stage* stage, const Activations* acts, int state) {
    return acts->head->logits + (int64_t)state * acts->tokens * stage->layout.V;
}

// Where one rank has the whole vocabulary in one piece and a gradient is wanted, the logits become it at once.
static inline bool uses_fused_classifier(const Stage* stage, const Activations* acts) {
    return mesh_tp_cuts(&stage->layout.mesh) == 1 && acts->scale != 0;
}

// Vocabulary parallel: three numbers a row go between the ranks, the logits never do. The states of a rank first put theirs
// together, in the memory of the first.
static inline void vocab_parallel_cross_entropy(const Stage* stage, Activations* acts) {
    const int N = acts->tokens, V = stage->layout.V;
    const Layout* layout = &stage->layout;
    Comm* tensor = &stage->groups->tensor;
    HeadActivations* h = acts->head;
    if (uses_fused_classifier(stage, acts)) {
        crossentropy_fused(h->losses, h->logits, acts->targets, acts->scale, N, layout_tokens(layout, 0), V);
        return;
    }
    for (int i = 0; i < layout->states; i++) {
        float* largest = h->row_max + (int64_t)i * N;
        crossentropy_max(largest, logits_of(stage, acts, i), N, layout_tokens(layout, i), V);
        if (i > 0) accumulate_max(h->row_max, largest, N);
    }
    comm_all_reduce(tensor, h->row_max, N, COMM_FLOAT, COMM_MAX);
    for (int i = 0; i < layout->states; i++) {
        float* sum = h->row_sum + 2 * (int64_t)i * N;
        crossentropy_sum(sum, sum + N, logits_of(stage, acts, i), h->row_max, acts->targets, N,
                         layout_tokens(layout, i), V, layout_vocab_offset(layout, i));
        if (i > 0) accumulate(h->row_sum, sum, 2 * (int64_t)N);
    }
    comm_all_reduce(tensor, h->row_sum, 2 * (int64_t)N, COMM_FLOAT, COMM_SUM);
    h->target_logit = h->row_sum + N;
    crossentropy_loss(h->losses, h->row_sum, h->target_logit, N);
}

#endif
