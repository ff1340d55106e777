/*
gpt.h: the model. chunk_forward and chunk_backward are the forward and backward pass of one chunk, the blocks that a
rank holds, on one micro-batch, on CPU cores or a GPU. The kernels are in kernels/, the communication between tensor
ranks in parallel/tensor.h, the buffers in parallel/stage.h.

Notation: B sequences of T tokens in a micro-batch, N = B T rows; C channels, F of the mlp, NH query and NKV key/value
heads of HS channels, V the vocabulary size. NH, NKV, F and V of a layout are this rank's. R rows of the residual
stream: N, or N / t with --sequence-parallel.
*/
#pragma once

#include "kernels/kernels.h"
#include "model.h"
#include "parallel/stage.h"
#include "parallel/tensor.h"

// ---- Forward ----------------------------------------------------------------------------------------------------

// One of the model's norms, LayerNorm or RMSNorm: its outputs and its weights. out = NULL: there is no norm.
typedef struct {
    floatX* out;
    float *mean, *rstd;
    const floatX *w, *b;
} Norm;

static Norm norm1_of(const Stage* stage, const Activations* acts, int layer) {
    const LayerActivations* y = layer_acts(acts, layer);
    const Norm n = {y->norm1, y->mean1, y->rstd1, weight(stage, layer, NORM1_W), weight(stage, layer, NORM1_B)};
    return n;
}

static Norm norm2_of(const Stage* stage, const Activations* acts, int layer) {
    const LayerActivations* y = layer_acts(acts, layer);
    const Norm n = {y->norm2, y->mean2, y->rstd2, weight(stage, layer, NORM2_W), weight(stage, layer, NORM2_B)};
    return n;
}

// The norm that reads the residual stream after a block: the next block's first one, the final one, or none where the
// stream continues in another chunk.
static Norm next_norm(const Stage* stage, const Activations* acts, int layer) {
    const Norm none = {NULL, NULL, NULL, NULL, NULL};
    if (layer + 1 < acts->chunk->begin + acts->chunk->layers) return norm1_of(stage, acts, layer + 1);
    if (!acts->chunk->last) return none;
    const HeadActivations* h = acts->head;
    const Norm n = {h->final_norm, h->final_mean, h->final_rstd, weight(stage, -1, FINAL_NORM_W),
                    weight(stage, -1, FINAL_NORM_B)};
    return n;
}

static void norm_forward(const Stage* stage, Norm n, const floatX* x, int R) {
    const int C = stage->model.C;
    const float eps = (float)stage->model.eps;
    if (stage->model.norm == NORM_LAYERNORM)
        layernorm_forward(n.out, n.mean, n.rstd, x, n.w, n.b, R, C, eps);
    else
        rmsnorm_forward(n.out, n.rstd, x, n.w, R, C, eps);
}

// sum = x + branch + bias, and the norm of the sum.
static void residual_norm_forward(const Stage* stage, Norm n, floatX* sum, const floatX* x, const floatX* branch,
                                  const floatX* bias, int R) {
    const int C = stage->model.C;
    const float eps = (float)stage->model.eps;
    if (!n.out)
        residual_forward(sum, x, branch, bias, R, C);
    else if (stage->model.norm == NORM_LAYERNORM)
        residual_layernorm_forward(sum, n.out, n.mean, n.rstd, x, branch, bias, n.w, n.b, R, C, eps);
    else
        residual_rmsnorm_forward(sum, n.out, n.rstd, x, branch, bias, n.w, R, C, eps);
}

// qkv = Wqkv norm1 + b: this rank's heads of queries, keys and values.
static void qkv_forward(const Stage* stage, const Activations* acts, int layer) {
    const LayerActivations* y = layer_acts(acts, layer);
    column_parallel_forward(stage, acts, y->qkv, y->norm1, layer, QKV_W, QKV_B, qkv_size(stage));
}

// Rotary positions, then attention.
static void rope_and_attention_forward(const Stage* stage, const Activations* acts, int layer) {
    const int NH = stage->layout.NH, NKV = stage->layout.NKV, HS = model_head_size(&stage->model);
    const LayerActivations* y = layer_acts(acts, layer);
    if (stage->rope) rope_forward(y->qkv, stage->rope, acts->B, acts->T, NH + NKV, HS, qkv_size(stage));
    if (acts->keeps_kv) kv_cache_fill(stage, acts, layer);
    attention_forward(y->attention, y->lse, y->qkv, acts->positions, acts->B, acts->T, NH, NKV, HS);
}

// Starts branch = Wo attention: partial sums, which the tensor ranks add; row_parallel_finish waits for their sum.
static void attention_proj_forward(const Stage* stage, Activations* acts, int layer) {
    row_parallel_forward(stage, acts, layer_acts(acts, layer)->attention, layer, ATTN_PROJ_W, attn_out_size(stage));
}

// middle = x[layer] + Wo attention + b, and its norm, norm2.
static void attention_residual_forward(const Stage* stage, Activations* acts, int layer) {
    const LayerActivations* y = layer_acts(acts, layer);
    const floatX* branch = row_parallel_finish(stage, acts);
    residual_norm_forward(stage, norm2_of(stage, acts, layer), y->middle, residual_stream(acts, layer), branch,
                          weight(stage, layer, ATTN_PROJ_B), acts->R);
}

// act = activation(Wfc norm2 + b): this rank's channels of the mlp.
static void fc_forward(const Stage* stage, const Activations* acts, int layer) {
    column_parallel_act_forward(stage, acts, layer_acts(acts, layer), layer);
}

// Starts branch = Wproj act, in the same way.
static void mlp_proj_forward(const Stage* stage, Activations* acts, int layer) {
    row_parallel_forward(stage, acts, layer_acts(acts, layer)->act, layer, MLP_PROJ_W, stage->layout.F);
}

// x[layer + 1] = middle + Wproj act + b, and the norm that reads it.
static void mlp_residual_forward(const Stage* stage, Activations* acts, int layer) {
    const LayerActivations* y = layer_acts(acts, layer);
    const floatX* branch = row_parallel_finish(stage, acts);
    residual_norm_forward(stage, next_norm(stage, acts, layer), residual_stream(acts, layer + 1), y->middle, branch,
                          weight(stage, layer, MLP_PROJ_B), acts->R);
}

// Completes x[layer] and norm1, which block `layer` reads.
static void block_input_forward(const Stage* stage, Activations* acts, int layer) {
    if (layer > acts->chunk->begin)
        mlp_residual_forward(stage, acts, layer - 1);
    else
        norm_forward(stage, norm1_of(stage, acts, layer), acts->x[0], acts->R);
}

// Block `layer`, shifted by one sum: it begins with the end of block layer - 1, whose last sum is awaited there, and
// ends where its own last sum is started; layers_finish ends the last block. This rank computes its heads and its mlp
// channels; the two row-parallel products (proj) have the only collectives. Where the micro-batch is computed in two
// parts, the sum of one is in flight while the other is computed.
//
//     middle     = x[layer] + Wo attention(rope(Wqkv norm1(x[layer]) + b)) + b
//     x[layer+1] = middle + Wproj activation(Wfc norm2(middle) + b) + b
static void block_forward(const Stage* stage, Activations* part, int layer) {
    const int parts = part->parts;
    for (int i = 0; i < parts; i++) {
        block_input_forward(stage, &part[i], layer);
        qkv_forward(stage, &part[i], layer);
        rope_and_attention_forward(stage, &part[i], layer);
        attention_proj_forward(stage, &part[i], layer);
    }
    for (int i = 0; i < parts; i++) {
        attention_residual_forward(stage, &part[i], layer);
        fc_forward(stage, &part[i], layer);
        mlp_proj_forward(stage, &part[i], layer);
    }
}

// All blocks of the chunk, until the start of the last sum.
static void layers_forward(const Stage* stage, Activations* part) {
    const Chunk* chunk = part->chunk;
    for (int l = 0; l < chunk->layers; l++) block_forward(stage, part, chunk->begin + l);
}

// Completes the chunk's output, and its norm where the head follows.
static void layers_finish(const Stage* stage, Activations* acts) {
    mlp_residual_forward(stage, acts, acts->chunk->begin + acts->chunk->layers - 1);
}

// logits = final norm W^T: this rank's slice of the vocabulary.
static void head_forward(const Stage* stage, const Activations* acts) {
    column_parallel_forward(stage, acts, acts->head->logits, acts->head->final_norm, -1, lm_head_kind(stage), NO_TENSOR,
                            stage->layout.V);
}

// The forward pass of one chunk. The first one starts from acts->inputs, any other one from acts->x[0]. After the last
// one the head's losses, -log p(target) of every token, are on each of its tensor ranks.
static void chunk_forward(const Stage* stage, Activations* acts) {
    Activations* part = activations_parts(stage, acts);
    const int parts = acts->parts;
    if (acts->chunk->first) {
        for (int i = 0; i < parts; i++) vocab_parallel_embedding_forward(stage, &part[i], 0, acts->T);
    }
    layers_forward(stage, part);
    for (int i = 0; i < parts; i++) {
        layers_finish(stage, &part[i]);
        if (!acts->chunk->last) continue;
        head_forward(stage, &part[i]);
        vocab_parallel_cross_entropy(stage, &part[i]);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Backward. A pass computes two gradients, DGRAD and WGRAD (parallel/stage.h). Done together, WGRAD computes while the
// all-reduce of DGRAD over the tensor ranks is in flight.

static void norm_backward(const Stage* stage, floatX* dx, const floatX* dout, const floatX* x, const float* mean,
                          const float* rstd, int layer, TensorKind w, TensorKind b, int R) {
    const int C = stage->model.C;
    float* dw = gradient(stage, layer, w);
    if (stage->model.norm == NORM_LAYERNORM)
        layernorm_backward(dx, dw, gradient(stage, layer, b), dout, x, weight(stage, layer, w), mean, rstd, R, C);
    else
        rmsnorm_backward(dx, dw, dout, x, weight(stage, layer, w), rstd, R, C);
}

static LayerGradients* layer_gradients(const BackwardPass* pass, int layer) {
    return &pass->g->layers[layer - pass->acts->chunk->begin];
}

// DGRAD of the mlp, until its sum over the tensor ranks is in flight.
static void mlp_backward_input(const BackwardPass* pass, int layer) {
    const Stage* stage = pass->stage;
    Activations* acts = pass->acts;
    LayerGradients* d = layer_gradients(pass, layer);
    row_parallel_output_grad_finish(pass, d->dout, layer, MLP_PROJ_B);
    row_parallel_act_backward_input(stage, acts, d->dfc, row_parallel_output_grad(pass, d->dout),
                                    layer_acts(acts, layer), layer);
    acts->sum = column_parallel_backward_input(stage, acts, acts->dnorm, d->dfc, layer, FC_W, fc_size(stage));
}

static void mlp_backward_weight(const BackwardPass* pass, int layer) {
    const Stage* stage = pass->stage;
    const Activations* acts = pass->acts;
    const LayerActivations* y = layer_acts(acts, layer);
    const LayerGradients* d = layer_gradients(pass, layer);
    row_parallel_backward_weight(stage, acts, layer, MLP_PROJ_W, MLP_PROJ_B, row_parallel_output_grad(pass, d->dout),
                                 y->act, stage->layout.F);
    column_parallel_backward_weight(stage, acts, layer, FC_W, FC_B, d->dfc, y->norm2, fc_size(stage));
}

// The gradient of the residual stream before the mlp.
static void mlp_backward_norm(const BackwardPass* pass, int layer) {
    const LayerActivations* y = layer_acts(pass->acts, layer);
    comm_wait(&pass->acts->sum);
    norm_backward(pass->stage, pass->g->dx, pass->acts->dnorm, y->middle, y->mean2, y->rstd2, layer, NORM2_W, NORM2_B,
                  pass->acts->R);
    row_parallel_output_grad_start(pass);
}

// The same for attention.
static void attention_block_backward_input(const BackwardPass* pass, int layer) {
    const Stage* stage = pass->stage;
    Activations* acts = pass->acts;
    const int QKV = qkv_size(stage), HS = model_head_size(&stage->model);
    const int NH = stage->layout.NH, NKV = stage->layout.NKV;
    const LayerActivations* y = layer_acts(acts, layer);
    LayerGradients* d = layer_gradients(pass, layer);
    row_parallel_output_grad_finish(pass, d->dmiddle, layer, ATTN_PROJ_B);
    tp_linear_backward_input(stage, acts, stage->dact, row_parallel_output_grad(pass, d->dmiddle), layer, ATTN_PROJ_W,
                             attn_out_size(stage), stage->model.C);
    attention_backward(d->dqkv, stage->dact, y->qkv, y->attention, y->lse, acts->positions, acts->B, acts->T, NH, NKV,
                       HS);
    if (stage->rope) rope_backward(d->dqkv, stage->rope, acts->B, acts->T, NH + NKV, HS, QKV);
    acts->sum = column_parallel_backward_input(stage, acts, acts->dnorm, d->dqkv, layer, QKV_W, QKV);
}

static void attention_block_backward_weight(const BackwardPass* pass, int layer) {
    const Stage* stage = pass->stage;
    const Activations* acts = pass->acts;
    const LayerActivations* y = layer_acts(acts, layer);
    const LayerGradients* d = layer_gradients(pass, layer);
    row_parallel_backward_weight(stage, acts, layer, ATTN_PROJ_W, ATTN_PROJ_B,
                                 row_parallel_output_grad(pass, d->dmiddle), y->attention, attn_out_size(stage));
    column_parallel_backward_weight(stage, acts, layer, QKV_W, QKV_B, d->dqkv, y->norm1, qkv_size(stage));
}

static void attention_block_backward_norm(const BackwardPass* pass, int layer) {
    const Activations* acts = pass->acts;
    const LayerActivations* y = layer_acts(acts, layer);
    comm_wait(&pass->acts->sum);
    norm_backward(pass->stage, pass->g->dx, acts->dnorm, residual_stream(acts, layer), y->mean1, y->rstd1, layer,
                  NORM1_W, NORM1_B, acts->R);
    if (layer > acts->chunk->begin) row_parallel_output_grad_start(pass);
}

// Runs the three steps of the mlp or of attention on all parts. A sum over the tensor ranks is in flight during the
// steps of the other part and WGRAD: `input` starts it or, in a CAAT-Net (sums_residual_grad), `norm`.
static void branch_backward(const BackwardPass* part, int layer, void (*input)(const BackwardPass*, int),
                            void (*weights)(const BackwardPass*, int), void (*norm)(const BackwardPass*, int)) {
    const int parts = part->acts->parts;
    const bool norm_first = sums_residual_grad(part->stage);
    if (part->gradients & DGRAD) {
        for (int i = 0; i < parts; i++) {
            input(&part[i], layer);
            if (norm_first) norm(&part[i], layer);
        }
    }
    if (part->gradients & WGRAD) {
        for (int i = 0; i < parts; i++) weights(&part[i], layer);
    }
    if ((part->gradients & DGRAD) && !norm_first) {
        for (int i = 0; i < parts; i++) norm(&part[i], layer);
    }
}

// Recomputes the activations that the forward pass did not keep, by the same operations: the bits are the same.
static void block_recompute(const BackwardPass* part, int layer) {
    const Stage* stage = part->stage;
    const Recompute recompute = stage->layout.mesh.recompute;
    const int parts = part->acts->parts;
    if (recompute == RECOMPUTE_FULL) {
        for (int i = 0; i < parts; i++) {
            Activations* acts = part[i].acts;
            // the gradient's sum uses acts->sum and acts->shared, which the products below need
            row_parallel_output_grad_finish(&part[i], layer_gradients(&part[i], layer)->dout, layer, MLP_PROJ_B);
            norm_forward(stage, norm1_of(stage, acts, layer), residual_stream(acts, layer), acts->R);
            qkv_forward(stage, acts, layer);
            rope_and_attention_forward(stage, acts, layer);
            attention_proj_forward(stage, acts, layer);
        }
        for (int i = 0; i < parts; i++) {
            attention_residual_forward(stage, part[i].acts, layer);
            fc_forward(stage, part[i].acts, layer);
        }
    }
    if (recompute == RECOMPUTE_SELECTIVE && (part->gradients & WGRAD)) { // the matrices' inputs, which wgrad needs
        for (int i = 0; i < parts; i++) {
            const Activations* acts = part[i].acts;
            const LayerActivations* y = layer_acts(acts, layer);
            norm_forward(stage, norm1_of(stage, acts, layer), residual_stream(acts, layer), acts->R);
            norm_forward(stage, norm2_of(stage, acts, layer), y->middle, acts->R);
            activation_forward(stage, acts, y);
        }
    }
}

static void block_backward(const BackwardPass* part, int layer) {
    grad_bucket_begin(part, layer, NORM1_W);
    block_recompute(part, layer);
    branch_backward(part, layer, mlp_backward_input, mlp_backward_weight, mlp_backward_norm);
    branch_backward(part, layer, attention_block_backward_input, attention_block_backward_weight,
                    attention_block_backward_norm);
    if (part->gradients & WGRAD) grad_bucket_ready(part, layer, NORM1_W);
}

// Starts the gradient: dx becomes the gradient of the last block's output.
static void head_backward(const BackwardPass* part) {
    const Stage* stage = part->stage;
    const int parts = part->acts->parts, V = stage->layout.V;
    const TensorKind head = lm_head_kind(stage);
    if (part->gradients & DGRAD) {
        for (int i = 0; i < parts; i++) {
            Activations* acts = part[i].acts;
            vocab_parallel_cross_entropy_backward(stage, acts);
            acts->sum = column_parallel_backward_input(stage, acts, acts->dnorm, acts->head->logits, -1, head, V);
        }
    }
    if (part->gradients & WGRAD) {
        grad_bucket_begin(part, -1, head);
        for (int i = 0; i < parts; i++) {
            const HeadActivations* h = part[i].acts->head;
            column_parallel_backward_weight(stage, part[i].acts, -1, head, NO_TENSOR, h->logits, h->final_norm, V);
        }
        if (!has_split_embedding_grad(stage)) grad_bucket_ready(part, -1, head);
    }
    if (part->gradients & DGRAD) {
        grad_bucket_begin(part, -1, FINAL_NORM_W);
        for (int i = 0; i < parts; i++) {
            Activations* acts = part[i].acts;
            const HeadActivations* h = acts->head;
            comm_wait(&acts->sum);
            device_zero(part[i].g->dx, (size_t)acts->R * stage->model.C * sizeof(floatX));
            norm_backward(stage, part[i].g->dx, acts->dnorm, chunk_output(acts), h->final_mean, h->final_rstd, -1,
                          FINAL_NORM_W, FINAL_NORM_B, acts->R);
        }
    }
    if (part->gradients & WGRAD) grad_bucket_ready(part, -1, FINAL_NORM_W);
}

// The gradients of the embeddings. A tied embedding has two gradients, which are accumulated over the micro-batches in
// separate buffers and added when both are complete: here, or, where the two uses are on two stages, between them
// (all_reduce_tied_embedding_grad). So every pipeline adds in the same order.
static void embedding_block_backward(const BackwardPass* part) {
    const Stage* stage = part->stage;
    const Layout* layout = &stage->layout;
    const int parts = part->acts->parts, C = stage->model.C, V = layout_embedding_rows(layout);
    const floatX* dx[HALVES];
    for (int i = 0; i < parts; i++) dx[i] = vocab_parallel_embedding_grad(&part[i]);
    if (stage->model.position == POSITION_LEARNED) {
        grad_bucket_begin(part, -1, WPE);
        for (int i = 0; i < parts; i++) {
            const Activations* acts = part[i].acts;
            const int rows = acts->split ? acts->tokens / layout->mesh.t : acts->tokens; // of one residual stream
            const int64_t first = acts->split ? (int64_t)layout->mesh.tensor * rows : 0;
            position_backward(gradient(stage, -1, WPE), dx[i], acts->positions, first, rows, acts->T, C);
        }
        grad_bucket_ready(part, -1, WPE);
    }
    grad_bucket_begin(part, -1, WTE);
    float* dwte = gradient(stage, -1, WTE);
    float* sum = has_split_embedding_grad(stage) ? stage->grad_embedding : dwte;
    for (int i = 0; i < parts; i++) {
        const Activations* acts = part[i].acts;
        embedding_backward(sum, tp_gather_input(stage, acts, dx[i]), acts->inputs, acts->tokens, C,
                           layout->vocab_offset, V);
    }
    if (has_split_embedding_grad(stage) && part->reduce) accumulate(dwte, stage->grad_embedding, (int64_t)V * C);
    grad_bucket_ready(part, -1, WTE);
}

// The backward pass of one chunk: both gradients or one of them. The last chunk of the model starts from the losses,
// any other one from g->dx, the gradient of its output; at the end g->dx is the gradient of its input.
static void chunk_backward(const BackwardPass* pass) {
    const Chunk* chunk = pass->acts->chunk;
    BackwardPass part[HALVES]; // of the micro-batch
    backward_parts(part, pass);
    if (chunk->last) head_backward(part);
    if (pass->gradients & DGRAD) {
        for (int i = 0; i < pass->acts->parts; i++) row_parallel_output_grad_start(&part[i]);
    }
    for (int l = chunk->layers - 1; l >= 0; l--) block_backward(part, chunk->begin + l);
    if (chunk->first && (pass->gradients & WGRAD)) embedding_block_backward(part);
}
