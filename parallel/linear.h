/*
parallel/linear.h: a linear layer of a block, or the head, on one rank, with its slice of the matrix. The sums over
ranks are in tensor.h.

    out (tokens, OC) = x (tokens, IC) W^T + bias        dx = dout W       dW (+)= dout^T x, dbias += sum of rows of dout

Each stream of a CAAT-Net has its own slice and its own rows, one stream after the other; any other model has one
stream. The mlp's activation function follows fc and precedes proj: it is computed with fc's product forward and with
proj's backward, in one kernel where its table has one (kernels/activations.h).
*/
#pragma once

#include "stage.h"

typedef struct {
    int layer;
    TensorKind w, bias; // NO_TENSOR: none here; a projection's is added to the residual stream (gpt.h)
    int IC, OC;
} Linear;

// w: a matrix of a block, or the head's.
static inline Linear linear_of(const Stage* stage, int layer, TensorKind w) {
    const int C = stage->model.C;
    const Linear qkv = {layer, QKV_W, QKV_B, C, qkv_size(stage)};
    const Linear attn_proj = {layer, ATTN_PROJ_W, NO_TENSOR, attn_out_size(stage), C};
    const Linear fc = {layer, FC_W, FC_B, C, fc_size(stage)};
    const Linear mlp_proj = {layer, MLP_PROJ_W, NO_TENSOR, stage->layout.F, C};
    const Linear head = {layer, w, NO_TENSOR, C, stage->layout.V};
    if (w == QKV_W) return qkv;
    if (w == ATTN_PROJ_W) return attn_proj;
    if (w == FC_W) return fc;
    return w == MLP_PROJ_W ? mlp_proj : head;
}

// out = x W^T + bias. With act (else NULL): act (N, F) = activation(out).
static inline void local_linear_forward(const Pass* pass, floatX* out, floatX* act, const floatX* x, Linear m) {
    const Stage* stage = pass->stage;
    const Activation* activation = &activations[stage->model.activation];
    const bool fused = act && activation->linear_forward; // NULL if gated: a fused act has as many columns as out, OC
    const int tokens = pass->acts->tokens;
    for (int i = 0; i < stage->layout.streams; i++) {
        const int64_t row = (int64_t)i * tokens;
        const floatX* w = weight_of(stage, m.layer, m.w, i);
        const floatX* bias = m.bias == NO_TENSOR ? NULL : weight_of(stage, m.layer, m.bias, i);
        if (fused)
            activation->linear_forward(act + row * m.OC, out + row * m.OC, x + row * m.IC, w, bias, tokens, m.IC, m.OC);
        else
            linear_forward(out + row * m.OC, x + row * m.IC, w, bias, tokens, m.IC, m.OC);
    }
    if (act && !fused) activation->forward(act, out, pass->acts->N, stage->layout.F);
}

// dx = dout W. With pre (else NULL): x was activation(pre), and dx becomes the gradient of pre.
static inline void local_linear_backward_input(const Pass* pass, floatX* dx, const floatX* pre, const floatX* dout,
                                               Linear m) {
    const Stage* stage = pass->stage;
    const Activation* activation = &activations[stage->model.activation];
    const bool fused = pre && activation->linear_backward_input;
    const int tokens = pass->acts->tokens;
    floatX* product = pre ? stage->dact : dx;
    for (int i = 0; i < stage->layout.streams; i++) {
        const int64_t row = (int64_t)i * tokens, in = row * m.IC;
        const floatX *dout_i = dout + row * m.OC, *w = weight_of(stage, m.layer, m.w, i);
        if (fused)
            activation->linear_backward_input(dx + in, product + in, dout_i, w, pre + in, tokens, m.IC, m.OC);
        else
            linear_backward_input(product + in, dout_i, w, tokens, m.IC, m.OC);
    }
    if (pre && !fused) activation->backward(dx, product, pre, pass->acts->N, m.IC);
}

// dW = dout^T x, or += where the pass accumulates; where there is a bias, dbias += the sum of the rows of dout.
static inline void local_linear_backward_weight(const Pass* pass, const floatX* dout, const floatX* x, Linear m) {
    const Stage* stage = pass->stage;
    const int tokens = pass->acts->tokens;
    const bool biased = stage->model.biases && m.bias != NO_TENSOR;
    for (int i = 0; i < stage->layout.streams; i++) {
        const int64_t row = (int64_t)i * tokens;
        const floatX* dout_i = dout + row * m.OC;
        linear_backward_weight(gradient_of(stage, m.layer, m.w, i), dout_i, x + row * m.IC, tokens, m.IC, m.OC,
                               pass->accumulates);
        if (biased) linear_backward_bias(gradient_of(stage, m.layer, m.bias, i), dout_i, tokens, m.OC);
    }
}
