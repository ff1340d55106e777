/*
parallel/tensor.h: tensor parallelism (Shoeybi et al. 2019; sequence parallelism: Korthikanti et al. 2022).

A column-parallel matrix has its rows cut over the t ranks of the tensor group, so each rank computes its heads or its
mlp channels of all rows. The row-parallel matrix after it has its columns cut: each rank computes a partial sum of the
whole output. Two operators enclose such a pair,

                                 forward                                    backward
    gather_from_sequence_region  nothing (all ranks have all rows);         reduce_from_tensor_region of the input's
                                 sequence parallel: all-gather of rows      gradient
    reduce_from_tensor_region    all-reduce of partial sums;                gather_from_sequence_region of the output's
                                 sequence parallel: reduce-scatter of rows  gradient

so the same two functions serve both directions. With sequence parallelism rank r has rows [r N / t, (r + 1) N / t) of
the N = B T rows of a micro-batch, between the pairs, where all work is row by row.

The vocabulary is cut as well: each rank has V / t rows of the embedding and columns of the logits. For the cross
entropy the ranks exchange three numbers a row, never the logits.

Sums in flight. A branch's sum goes from row_parallel_forward to row_parallel_finish, a gradient's from
column_parallel_backward_input, or in a CAAT-Net row_parallel_output_grad_start, to the wait for acts->sum. With
--tp-comm-overlap (Wang et al. 2024, "Domino", arXiv 2409.15241) gpt.h computes the other half of the micro-batch
meanwhile; tensor_overlap_open prepares the group.
*/
#pragma once

#ifdef METHODS_NO
#include "../methods/none.h"
#else
#include "../methods/caat.h"
#endif
#include "../comm/collectives/collectives.h"
#include "stage.h"

// For --tp-comm-overlap on CPU cores, with nothing in flight: a thread that moves messages while the rank computes, and
// a plan, since Open MPI's non-blocking all-reduces in place are trees: up, then down, a link's directions in turn.
// Halving and doubling adds in the same order in every part of a vector: the bits do not depend on how a sum is cut.
static inline void tensor_overlap_open(Stage* stage) {
    Comm* tensor = &stage->groups->tensor;
    char name[32];
    Network net;
    Plan plan;
    Error error;
    if (!stage->layout.mesh.tp_overlap || !DEVICE_IS_HOST) return;
    snprintf(name, sizeof name, "full:%d", tensor->size);
    if (!network_build(&net, name, &error) ||
        !collective_build(&plan, algorithm_usual(tensor->size), PLAN_ALL_REDUCE, &net, &error))
        die("%s", error.text);
    comm_open_thread(tensor, true);
    comm_use_plan(tensor, &plan);
    plan_free(&plan);
    network_free(&net);
}

// all (n) = the rows of all tensor ranks, of which `mine` has this rank's n / t. split = false: `mine` has all n; it is
// copied, or is `all` itself.
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

// ----------------------------------------------------------------------------------------------------------------
// A linear layer on this rank. Each stream of a CAAT-Net has its own slice of the matrix, and its own rows.

// out (N, OC) = x W^T + bias. bias: NO_TENSOR if there is none.
static inline void tp_linear_forward(const Stage* stage, const Activations* acts, floatX* out, const floatX* x,
                                     int layer, TensorKind w, TensorKind bias, int C, int OC) {
    for (int i = 0; i < stage->layout.streams; i++) {
        const int64_t row = (int64_t)i * acts->tokens;
        const floatX* b = bias == NO_TENSOR ? NULL : weight_of(stage, layer, bias, i);
        linear_forward(out + row * OC, x + row * C, weight_of(stage, layer, w, i), b, acts->tokens, C, OC);
    }
}

// dx (N, C) = dout W.
static inline void tp_linear_backward_input(const Stage* stage, const Activations* acts, floatX* dx, const floatX* dout,
                                            int layer, TensorKind w, int C, int OC) {
    for (int i = 0; i < stage->layout.streams; i++) {
        const int64_t row = (int64_t)i * acts->tokens;
        linear_backward_input(dx + row * C, dout + row * OC, weight_of(stage, layer, w, i), acts->tokens, C, OC);
    }
}

// dW += dout^T x and, where there is a bias, db += sum of the rows of dout.
static inline void tp_linear_backward_weight(const Stage* stage, const Activations* acts, int layer, TensorKind w,
                                             TensorKind bias, const floatX* dout, const floatX* x, int C, int OC) {
    const int N = acts->tokens;
    const bool biased = stage->model.biases && bias != NO_TENSOR;
    for (int i = 0; i < stage->layout.streams; i++) {
        const floatX* dout_i = dout + (int64_t)i * N * OC;
        const floatX* x_i = x + (int64_t)i * N * C;
        linear_backward_weight(gradient_of(stage, layer, w, i), dout_i, x_i, N, C, OC);
        if (biased) linear_backward_bias(gradient_of(stage, layer, bias, i), dout_i, N, OC);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Column parallel: out (N, OC) is this rank's heads, mlp channels or tokens of the vocabulary, for all rows

// The buffer of a partial sum of all rows, before the reduction writes this rank's rows of it into mine.
static inline floatX* tp_partial_buffer(const Stage* stage, const Activations* acts, floatX* mine) {
    return acts->split ? stage->partial : mine;
}

// Gathers all rows from this rank's (R, C).
static inline const floatX* tp_gather_input(const Stage* stage, const Activations* acts, const floatX* mine) {
    if (!acts->split) return mine;
    gather_from_sequence_region(stage->groups, true, stage->gathered, mine, (int64_t)acts->N * stage->model.C);
    return stage->gathered;
}

static inline void column_parallel_forward(const Stage* stage, const Activations* acts, floatX* out, const floatX* x,
                                           int layer, TensorKind w, TensorKind bias, int OC) {
    tp_linear_forward(stage, acts, out, tp_gather_input(stage, acts, x), layer, w, bias, stage->model.C, OC);
}

// Starts dx (R, C), the gradient of the layer's input: the sum over the ranks, each with its own channels. Each stream
// of a CAAT-Net has its own input, so there is nothing to sum.
static inline CommRequest column_parallel_backward_input(const Stage* stage, const Activations* acts, floatX* dx,
                                                         const floatX* dout, int layer, TensorKind w, int OC) {
    const int C = stage->model.C;
    const int64_t n = (int64_t)acts->N * C;
    floatX* partial = tp_partial_buffer(stage, acts, dx);
    tp_linear_backward_input(stage, acts, partial, dout, layer, w, C, OC);
    if (is_caat(stage)) return no_request();
    return reduce_from_tensor_region_start(stage->groups, acts->split, dx, partial, n);
}

// x (R, C): the layer's input in the forward pass.
static inline void column_parallel_backward_weight(const Stage* stage, const Activations* acts, int layer, TensorKind w,
                                                   TensorKind bias, const floatX* dout, const floatX* x, int OC) {
    const floatX* all = tp_gather_input(stage, acts, x);
    tp_linear_backward_weight(stage, acts, layer, w, bias, dout, all, stage->model.C, OC);
}

// ---- Row parallel: out (R, C) is a branch of the residual stream, without its bias ------------------------------

// Starts acts->branch = x W^T, x (N, IC): the sum over the ranks; in a CAAT-Net, of the shared channels only. Beside
// the sum of a whole micro-batch nothing is computed: it ends here, by MPI's blocking calls.
static inline void row_parallel_forward(const Stage* stage, Activations* acts, const floatX* x, int layer, TensorKind w,
                                        int IC) {
    const int C = stage->model.C;
    const int64_t n = (int64_t)acts->N * C;
    floatX* partial = tp_partial_buffer(stage, acts, acts->branch);
    tp_linear_forward(stage, acts, partial, x, layer, w, NO_TENSOR, IC, C);
    if (is_caat(stage))
        caat_reduce_start(stage, acts, partial, false);
    else if (acts->parts > 1)
        acts->sum = reduce_from_tensor_region_start(stage->groups, acts->split, acts->branch, partial, n);
    else
        reduce_from_tensor_region(stage->groups, acts->split, acts->branch, partial, n);
}

// Completes acts->branch (R, C), which it returns.
static inline const floatX* row_parallel_finish(const Stage* stage, Activations* acts) {
    if (is_caat(stage)) caat_reduce_finish(stage, acts, acts->branch, acts->branch, false);
    comm_wait(&acts->sum);
    return acts->branch;
}

// The gradient of the layer's output, of all rows, from pass->g->dx (R, C): in `all`, which WGRAD reads later; or dx
// itself, where it has all rows and both gradients are one pass, so that norm_backward changes it only after they have
// read it.
static inline const floatX* row_parallel_output_grad(const BackwardPass* pass, const floatX* all) {
    const bool itself = pass->gradients == BOTH_GRADS && !is_caat(pass->stage) && !pass->acts->split;
    return itself ? pass->g->dx : all;
}

// Starts that gradient, as soon as pass->g->dx is complete: in a CAAT-Net a sum, which is in flight while the rank
// computes other gradients.
static inline void row_parallel_output_grad_start(const BackwardPass* pass) {
    if (is_caat(pass->stage)) caat_reduce_start(pass->stage, pass->acts, pass->g->dx, true);
    pass->acts->grad_started = true;
}

// Completes it, at the first call after the start. A CAAT-Net adds the bias to every stream, after the sum: its
// gradient is computed here, from every stream's.
static inline void row_parallel_output_grad_finish(const BackwardPass* pass, floatX* all, int layer, TensorKind bias) {
    const Stage* stage = pass->stage;
    Activations* acts = pass->acts;
    const floatX* dx = pass->g->dx;
    if (!acts->grad_started) return;
    acts->grad_started = false;
    if (row_parallel_output_grad(pass, all) == dx) return;
    if (is_caat(stage)) {
        caat_reduce_finish(stage, acts, all, dx, true);
        caat_bias_grad(stage, acts, layer, bias, dx);
    } else {
        gather_from_sequence_region(stage->groups, acts->split, all, dx, (int64_t)acts->N * stage->model.C);
    }
}

static inline void row_parallel_backward_weight(const Stage* stage, const Activations* acts, int layer, TensorKind w,
                                                TensorKind bias, const floatX* dout, const floatX* x, int IC) {
    const TensorKind counted = is_caat(stage) ? NO_TENSOR : bias;
    tp_linear_backward_weight(stage, acts, layer, w, counted, dout, x, IC, stage->model.C);
}

// ----------------------------------------------------------------------------------------------------------------
// The mlp's activation function (kernels/activations.h) is between its two matrices, on this rank's channels. A product
// that is fused with it is used where there is one.

static inline void activation_forward(const Stage* stage, const Activations* acts, const LayerActivations* y) {
    activations[stage->model.activation].forward(y->act, y->fc, acts->N, stage->layout.F);
}

// act = activation(fc), fc (N, F or 2F) = norm2 W^T + bias.
static inline void column_parallel_act_forward(const Stage* stage, const Activations* acts, const LayerActivations* y,
                                               int layer) {
    const Activation* activation = &activations[stage->model.activation];
    const int C = stage->model.C, F = stage->layout.F;
    const floatX* x = tp_gather_input(stage, acts, y->norm2);
    if (!activation->linear_forward) {
        tp_linear_forward(stage, acts, y->fc, x, layer, FC_W, FC_B, C, fc_size(stage));
        activation_forward(stage, acts, y);
        return;
    }
    for (int i = 0; i < stage->layout.streams; i++) {
        const int64_t row = (int64_t)i * acts->tokens;
        activation->linear_forward(y->act + row * F, y->fc + row * F, x + row * C, weight_of(stage, layer, FC_W, i),
                                   weight_of(stage, layer, FC_B, i), acts->tokens, C, F);
    }
}

// dfc, the gradient before the activation function, from dout (N, C), the gradient of the mlp's output.
static inline void row_parallel_act_backward_input(const Stage* stage, const Activations* acts, floatX* dfc,
                                                   const floatX* dout, const LayerActivations* y, int layer) {
    const Activation* activation = &activations[stage->model.activation];
    const int C = stage->model.C, F = stage->layout.F;
    if (!activation->linear_backward_input) {
        tp_linear_backward_input(stage, acts, stage->dact, dout, layer, MLP_PROJ_W, F, C);
        activation->backward(dfc, stage->dact, y->fc, acts->N, F);
        return;
    }
    for (int i = 0; i < stage->layout.streams; i++) {
        const int64_t row = (int64_t)i * acts->tokens;
        activation->linear_backward_input(dfc + row * F, stage->dact + row * F, dout + row * C,
                                          weight_of(stage, layer, MLP_PROJ_W, i), y->fc + row * F, acts->tokens, F, C);
    }
}

// ---- Generation: keys and values of a text are cached, for each stream ------------------------------------------

static inline void kv_cache_fill(const Stage* stage, const Activations* acts, int layer) {
    const int NH = stage->layout.NH, NKV = stage->layout.NKV, HS = model_head_size(&stage->model);
    for (int i = 0; i < stage->layout.streams; i++) {
        const floatX* qkv = layer_acts(acts, layer)->qkv + (int64_t)i * acts->tokens * qkv_size(stage);
        attention_fill_cache(kv_cache(stage, layer, i), qkv, acts->T, NH, NKV, HS);
    }
}

// Attention of the one token at a position, to itself and to the tokens before it.
static inline void kv_cache_attend(const Stage* stage, const Activations* acts, int layer, int position) {
    const int NH = stage->layout.NH, NKV = stage->layout.NKV, HS = model_head_size(&stage->model);
    const LayerActivations* y = layer_acts(acts, layer);
    for (int i = 0; i < stage->layout.streams; i++) {
        const floatX* qkv = y->qkv + (int64_t)i * qkv_size(stage);
        attention_decode(y->attention + (int64_t)i * NH * HS, kv_cache(stage, layer, i), qkv, position, NH, NKV, HS);
    }
}

// ---- Vocabulary parallel ----------------------------------------------------------------------------------------

// x[0] (R, C): the embeddings of acts->inputs, and of their positions where these are learned. A rank has the rows of
// its tokens and zeros for other ranks' tokens: the sum over the ranks is the embedding, with which every stream
// begins. first: the position of the first token, in decoding; period: tokens of a sequence.
static inline void vocab_parallel_embedding_forward(const Stage* stage, Activations* acts, int first, int period) {
    const int C = stage->model.C, streams = stage->layout.streams, N = acts->tokens;
    const int rows = acts->R / streams;
    floatX* x = streams > 1 ? acts->branch : acts->x[0];
    floatX* partial = tp_partial_buffer(stage, acts, x);
    embedding_forward(partial, acts->inputs, weight(stage, -1, WTE), N, C, stage->layout.vocab_offset,
                      layout_embedding_rows(&stage->layout));
    reduce_from_tensor_region(stage->groups, acts->split, x, partial, (int64_t)N * C);
    if (stage->model.position == POSITION_LEARNED) {
        const int64_t row = acts->split ? (int64_t)stage->layout.mesh.tensor * rows : first;
        position_forward(x, weight(stage, -1, WPE), acts->positions, row, rows, period, C);
    }
    if (streams > 1) caat_copy_streams(stage, acts, acts->x[0], x);
}

// dx (R, C) of one stream: the gradient of the embeddings, from the gradient of the residual stream.
static inline const floatX* vocab_parallel_embedding_grad(const BackwardPass* pass) {
    return is_caat(pass->stage) ? caat_reduce_streams(pass->stage, pass->acts, pass->g->dx) : pass->g->dx;
}

// The logits of one stream: (tokens, V).
static inline floatX* logits_of(const Stage* stage, const Activations* acts, int stream) {
    return acts->head->logits + (int64_t)stream * acts->tokens * stage->layout.V;
}

// Whether a column-parallel matrix leaves the gradient of its input as it is, and the sum comes later, in
// row_parallel_output_grad_start. Then the norm before it needs no sum.
static inline bool sums_residual_grad(const Stage* stage) { return is_caat(stage); }

// Whether this rank has the whole vocabulary in one piece and needs a gradient: the logits then become it at once.
static inline bool uses_fused_classifier(const Stage* stage, const Activations* acts) {
    return mesh_tp_cuts(&stage->layout.mesh) == 1 && acts->scale != 0;
}

// losses (tokens) = -log softmax(logits)[target], on every rank. The ranks exchange three numbers a row, never the
// logits. The streams of a rank first combine theirs, in the memory of the first.
static inline void vocab_parallel_cross_entropy(const Stage* stage, Activations* acts) {
    const int N = acts->tokens, V = stage->layout.V;
    const Layout* layout = &stage->layout;
    Comm* tensor = &stage->groups->tensor;
    HeadActivations* h = acts->head;
    if (uses_fused_classifier(stage, acts)) {
        crossentropy_fused(h->losses, h->logits, acts->targets, acts->scale, N, layout_vocab_used(layout, 0), V);
    } else {
        for (int i = 0; i < layout->streams; i++) {
            float* largest = h->row_max + (int64_t)i * N;
            crossentropy_max(largest, logits_of(stage, acts, i), N, layout_vocab_used(layout, i), V);
            if (i > 0) accumulate_max(h->row_max, largest, N);
        }
        comm_all_reduce(tensor, h->row_max, N, COMM_FLOAT, COMM_MAX);
        for (int i = 0; i < layout->streams; i++) {
            float* sum = h->row_sum + 2 * (int64_t)i * N;
            crossentropy_sum(sum, sum + N, logits_of(stage, acts, i), h->row_max, acts->targets, N,
                             layout_vocab_used(layout, i), V, layout_vocab_offset(layout, i));
            if (i > 0) accumulate(h->row_sum, sum, 2 * (int64_t)N);
        }
        comm_all_reduce(tensor, h->row_sum, 2 * (int64_t)N, COMM_FLOAT, COMM_SUM);
        crossentropy_loss(h->losses, h->row_sum, h->row_sum + N, N);
    }
}

// The logits become their gradient, d(sum of losses * scale) / d(logits).
static inline void vocab_parallel_cross_entropy_backward(const Stage* stage, const Activations* acts) {
    const HeadActivations* h = acts->head;
    const Layout* layout = &stage->layout;
    if (uses_fused_classifier(stage, acts)) return;
    for (int i = 0; i < layout->streams; i++)
        crossentropy_backward(logits_of(stage, acts, i), h->row_max, h->row_sum, acts->targets, acts->scale,
                              acts->tokens, layout_vocab_used(layout, i), layout->V, layout_vocab_offset(layout, i));
}
