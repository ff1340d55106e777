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
the N = B T rows of a micro-batch, between the pairs, where all work is row by row. The vocabulary is cut in vocab.h.
*/
#pragma once

#include "caat.h"
#include "linear.h"

// all (n) = the rows of all tensor ranks, of which `mine` has this rank's n / t.
static inline void gather_from_sequence_region(ProcessGroups* g, floatX* all, const floatX* mine, int64_t n) {
    comm_all_gather(&g->tensor, all, mine, n / g->tensor.size, COMM_FLOATX);
}

// Sums partial (n) over the ranks: in place where mine is partial (all-reduce), else mine gets this rank's n / t of it.
static inline CommRequest reduce_from_tensor_region_start(ProcessGroups* g, floatX* mine, floatX* partial, int64_t n) {
    if (mine == partial) return comm_all_reduce_start(&g->tensor, partial, n, COMM_FLOATX, COMM_SUM);
    return comm_reduce_scatter_start(&g->tensor, mine, partial, n / g->tensor.size, COMM_FLOATX);
}

static inline void reduce_from_tensor_region(ProcessGroups* g, floatX* mine, floatX* partial, int64_t n) {
    if (mine == partial)
        comm_all_reduce(&g->tensor, partial, n, COMM_FLOATX, COMM_SUM);
    else
        comm_reduce_scatter(&g->tensor, mine, partial, n / g->tensor.size, COMM_FLOATX);
}

// ----------------------------------------------------------------------------------------------------------------
// Column parallel: out (N, OC) is this rank's heads, mlp channels or tokens of the vocabulary, for all rows. act, pre:
// the mlp's activation function, as in linear.h.

// All rows (N, C), from this rank's (R, C).
static inline const floatX* tp_gather_input(const Pass* pass, const floatX* mine) {
    const Stage* stage = pass->stage;
    if (!pass->acts->split) return mine;
    gather_from_sequence_region(stage->groups, stage->gathered, mine, (int64_t)pass->acts->N * stage->model.C);
    return stage->gathered;
}

// The buffer of a partial sum of all rows, before the reduction writes this rank's rows of it into mine.
static inline floatX* tp_partial_buffer(const Pass* pass, floatX* mine) {
    return pass->acts->split ? pass->stage->partial : mine;
}

static inline void column_parallel_forward(const Pass* pass, floatX* out, floatX* act, const floatX* x, int layer,
                                           TensorKind w) {
    local_linear_forward(pass, out, act, tp_gather_input(pass, x), linear_of(pass->stage, layer, w));
}

// Computes acts->dnorm (R, C), the gradient of the layer's input, and starts its sum over the ranks, which have other
// channels of dout; comm_wait(&acts->sum) ends it. Streams of a CAAT-Net have inputs of their own: nothing to sum.
static inline void column_parallel_backward_input(const Pass* pass, const floatX* dout, int layer, TensorKind w) {
    const Stage* stage = pass->stage;
    Activations* acts = pass->acts;
    const int64_t n = (int64_t)acts->N * stage->model.C;
    floatX* partial = tp_partial_buffer(pass, acts->dnorm);
    local_linear_backward_input(pass, partial, NULL, dout, linear_of(stage, layer, w));
    if (is_caat(stage)) return;
    acts->sum = reduce_from_tensor_region_start(stage->groups, acts->dnorm, partial, n);
}

// x (R, C): the layer's input in the forward pass.
static inline void column_parallel_backward_weight(const Pass* pass, const floatX* dout, const floatX* x, int layer,
                                                   TensorKind w) {
    local_linear_backward_weight(pass, dout, tp_gather_input(pass, x), linear_of(pass->stage, layer, w));
}

// ----------------------------------------------------------------------------------------------------------------
// Row parallel: acts->branch (R, C) is a branch of the residual stream, without its bias

// Computes acts->branch = x W^T, x (N, IC), and sums it over the ranks; in a CAAT-Net, the shared channels only. Of two
// parts it only starts the sum; of one it ends it, as there is nothing to compute meanwhile.
static inline void row_parallel_forward(const Pass* pass, const floatX* x, int layer, TensorKind w) {
    const Stage* stage = pass->stage;
    Activations* acts = pass->acts;
    const int64_t n = (int64_t)acts->N * stage->model.C;
    floatX* partial = tp_partial_buffer(pass, acts->branch);
    local_linear_forward(pass, partial, NULL, x, linear_of(stage, layer, w));
    if (is_caat(stage))
        caat_reduce_start(stage, acts, partial, false);
    else if (acts->parts > 1)
        acts->sum = reduce_from_tensor_region_start(stage->groups, acts->branch, partial, n);
    else
        reduce_from_tensor_region(stage->groups, acts->branch, partial, n);
}

// Awaits acts->branch.
static inline void row_parallel_finish(const Pass* pass) {
    Activations* acts = pass->acts;
    if (is_caat(pass->stage)) caat_reduce_finish(pass->stage, acts, acts->branch, acts->branch, false);
    comm_wait(&acts->sum);
}

// dout (N, C), the gradient of the layer's output, has all rows of g->dx (R, C), the gradient of the residual stream.
// In time, from the branch above in the model to this one:
//
//     norm of the branch above         dx is complete
//     row_parallel_output_grad_start   a CAAT-Net starts to sum dx over the ranks, its shared channels
//     WGRAD of the branch above, or DGRAD of the other half, is computed meanwhile
//     row_parallel_output_grad_finish  completes dout: a CAAT-Net awaits the sum; sequence parallel: a gather of rows;
//                                      WGRAD in a later pass: a copy of dx; else nothing, as dout is dx itself
//     row_parallel_backward_input      calls _finish, then reads dout; row_parallel_backward_weight reads it later
//     norm of this branch              adds to dx

static inline void row_parallel_output_grad_start(const Pass* pass, int layer) {
    if (layer < pass->acts->chunk->begin) return; // the stream comes from another chunk
    if (is_caat(pass->stage)) caat_reduce_start(pass->stage, pass->acts, pass->g->dx, true);
    pass->acts->grad_started = true;
}

// Where dout is: in `buffer`, or it is dx itself.
static inline const floatX* row_parallel_output_grad(const Pass* pass, const floatX* buffer) {
    const bool itself = pass->computes == BOTH_GRADS && !is_caat(pass->stage) && !pass->acts->split;
    return itself ? pass->g->dx : buffer;
}

// Completes dout in `buffer`, once.
static inline void row_parallel_output_grad_finish(const Pass* pass, floatX* buffer) {
    const Stage* stage = pass->stage;
    Activations* acts = pass->acts;
    const floatX* dx = pass->g->dx;
    const int64_t n = (int64_t)acts->N * stage->model.C;
    if (!acts->grad_started) return;
    acts->grad_started = false;
    if (row_parallel_output_grad(pass, buffer) == dx) return;
    if (is_caat(stage)) {
        caat_reduce_finish(stage, acts, buffer, dx, true);
    } else if (acts->split) {
        gather_from_sequence_region(stage->groups, buffer, dx, n);
    } else {
        device_copy(buffer, dx, (size_t)n * sizeof(floatX));
    }
}

// Completes dout in `buffer` (N, C); dx (N, IC) becomes the gradient of the layer's input.
static inline void row_parallel_backward_input(const Pass* pass, floatX* dx, const floatX* pre, floatX* buffer,
                                               int layer, TensorKind w) {
    row_parallel_output_grad_finish(pass, buffer);
    local_linear_backward_input(pass, dx, pre, row_parallel_output_grad(pass, buffer),
                                linear_of(pass->stage, layer, w));
}

// x (N, IC): the layer's input in the forward pass.
static inline void row_parallel_backward_weight(const Pass* pass, const floatX* buffer, const floatX* x, int layer,
                                                TensorKind w) {
    local_linear_backward_weight(pass, row_parallel_output_grad(pass, buffer), x, linear_of(pass->stage, layer, w));
}
