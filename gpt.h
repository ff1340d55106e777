/*
gpt.h: the model. chunk_forward and chunk_backward are the forward and backward pass of one chunk, the blocks that a
rank holds, on one micro-batch, on CPU cores or a GPU. The kernels are in kernels/, the communication between tensor
ranks in parallel/tensor.h, the buffers in parallel/stage.h.

Notation: B sequences of T tokens in a micro-batch, N = B T rows; C channels, F of the mlp, NH query and NKV key/value
heads of HS channels, V the vocabulary size. NH, NKV, F and V of a layout are this rank's. R rows of the residual
stream: N, or N / t with --sequence-parallel.
*/
#ifndef GPT_H
#define GPT_H

#include "kernels/kernels.h"
#include "model.h"
#include "parallel/stage.h"
#include "parallel/tensor.h"

// ----------------------------------------------------------------------------------------------------------------
// Forward

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

// middle = x[layer] + Wo attention + b, and its norm, norm2.
static void attention_proj_forward(const Stage* stage, const Activations* acts, int layer) {
    const LayerActivations* y = layer_acts(acts, layer);
    row_parallel_forward(stage, acts, stage->branch, y->attention, layer, ATTN_PROJ_W, attn_out_size(stage));
    residual_norm_forward(stage, norm2_of(stage, acts, layer), y->middle, residual_stream(acts, layer), stage->branch,
                          weight(stage, layer, ATTN_PROJ_B), acts->R);
}

// act = activation(Wfc norm2 + b): this rank's channels of the mlp.
static void fc_forward(const Stage* stage, const Activations* acts, int layer) {
    column_parallel_act_forward(stage, acts, layer_acts(acts, layer), layer);
}

// x[layer + 1] = middle + Wproj act + b, and the norm that reads it.
static void mlp_proj_forward(const Stage* stage, const Activations* acts, int layer) {
    const LayerActivations* y = layer_acts(acts, layer);
    row_parallel_forward(stage, acts, stage->branch, y->act, layer, MLP_PROJ_W, stage->layout.F);
    residual_norm_forward(stage, next_norm(stage, acts, layer), residual_stream(acts, layer + 1), y->middle,
                          stage->branch, weight(stage, layer, MLP_PROJ_B), acts->R);
}

// One transformer block; norm1 is already computed. This rank computes its heads and its mlp channels; the two
// row-parallel products (proj) end in the only collectives of the block.
//
//     middle     = x[layer] + Wo attention(rope(Wqkv norm1(x[layer]) + b)) + b
//     x[layer+1] = middle + Wproj activation(Wfc norm2(middle) + b) + b
static void block_forward(const Stage* stage, const Activations* acts, int layer) {
    qkv_forward(stage, acts, layer);
    rope_and_attention_forward(stage, acts, layer);
    attention_proj_forward(stage, acts, layer);
    fc_forward(stage, acts, layer);
    mlp_proj_forward(stage, acts, layer);
}

static void layers_forward(const Stage* stage, const Activations* acts) {
    norm_forward(stage, norm1_of(stage, acts, acts->chunk->begin), acts->x[0], acts->R);
    for (int l = 0; l < acts->chunk->layers; l++) block_forward(stage, acts, acts->chunk->begin + l);
}

// logits = final norm W^T: this rank's slice of the vocabulary.
static void head_forward(const Stage* stage, const Activations* acts) {
    column_parallel_forward(stage, acts, acts->head->logits, acts->head->final_norm, -1, lm_head_kind(stage), NO_TENSOR,
                            stage->layout.V);
}

// The forward pass of one chunk. The first one starts from acts->inputs, any other one from acts->x[0]. After the last
// one the head's losses, -log p(target) of every token, are on each of its tensor ranks.
static void chunk_forward(const Stage* stage, Activations* acts) {
    if (acts->chunk->first) vocab_parallel_embedding_forward(stage, acts, 0, acts->T);
    layers_forward(stage, acts);
    if (!acts->chunk->last) return;
    head_forward(stage, acts);
    vocab_parallel_cross_entropy(stage, acts);
}

// ----------------------------------------------------------------------------------------------------------------
// Backward. A pass has two parts, DGRAD and WGRAD (parallel/stage.h). Done together, WGRAD computes while the
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

static void mlp_backward(const BackwardPass* pass, int layer) {
    const Stage* stage = pass->stage;
    const Activations* acts = pass->acts;
    const LayerActivations* y = layer_acts(acts, layer);
    LayerGradients* d = &pass->g->layers[layer - acts->chunk->begin];
    const floatX* dout = row_parallel_output_grad(pass, d->dout, layer, MLP_PROJ_B);
    CommRequest sum = no_request();
    if (pass->parts & DGRAD) {
        row_parallel_act_backward_input(stage, acts, d->dfc, dout, y, layer);
        sum = column_parallel_backward_input(stage, acts, stage->dnorm, d->dfc, layer, FC_W, fc_size(stage));
    }
    if (pass->parts & WGRAD) {
        row_parallel_backward_weight(stage, acts, layer, MLP_PROJ_W, MLP_PROJ_B, dout, y->act, stage->layout.F);
        column_parallel_backward_weight(stage, acts, layer, FC_W, FC_B, d->dfc, y->norm2, fc_size(stage));
    }
    if (pass->parts & DGRAD) {
        comm_wait(&sum);
        norm_backward(stage, pass->g->dx, stage->dnorm, y->middle, y->mean2, y->rstd2, layer, NORM2_W, NORM2_B,
                      acts->R);
    }
}

static void attention_block_backward(const BackwardPass* pass, int layer) {
    const Stage* stage = pass->stage;
    const Activations* acts = pass->acts;
    const int HEADS = attn_out_size(stage), QKV = qkv_size(stage), HS = model_head_size(&stage->model);
    const int NH = stage->layout.NH, NKV = stage->layout.NKV;
    const LayerActivations* y = layer_acts(acts, layer);
    LayerGradients* d = &pass->g->layers[layer - acts->chunk->begin];
    const floatX* dmiddle = row_parallel_output_grad(pass, d->dmiddle, layer, ATTN_PROJ_B);
    CommRequest sum = no_request();
    if (pass->parts & DGRAD) {
        tp_linear_backward_input(stage, acts, stage->dact, dmiddle, layer, ATTN_PROJ_W, HEADS, stage->model.C);
        attention_backward(d->dqkv, stage->dact, y->qkv, y->attention, y->lse, acts->positions, acts->B, acts->T, NH,
                           NKV, HS);
        if (stage->rope) rope_backward(d->dqkv, stage->rope, acts->B, acts->T, NH + NKV, HS, QKV);
        sum = column_parallel_backward_input(stage, acts, stage->dnorm, d->dqkv, layer, QKV_W, QKV);
    }
    if (pass->parts & WGRAD) {
        row_parallel_backward_weight(stage, acts, layer, ATTN_PROJ_W, ATTN_PROJ_B, dmiddle, y->attention, HEADS);
        column_parallel_backward_weight(stage, acts, layer, QKV_W, QKV_B, d->dqkv, y->norm1, QKV);
    }
    if (pass->parts & DGRAD) {
        comm_wait(&sum);
        norm_backward(stage, pass->g->dx, stage->dnorm, residual_stream(acts, layer), y->mean1, y->rstd1, layer,
                      NORM1_W, NORM1_B, acts->R);
    }
}

// Recomputes the activations that the forward pass did not keep, by the same operations: the bits are the same.
static void block_recompute(const BackwardPass* pass, int layer) {
    const Stage* stage = pass->stage;
    const Activations* acts = pass->acts;
    const LayerActivations* y = layer_acts(acts, layer);
    const Recompute recompute = stage->layout.mesh.recompute;
    if (recompute == RECOMPUTE_FULL) {
        norm_forward(stage, norm1_of(stage, acts, layer), residual_stream(acts, layer), acts->R);
        qkv_forward(stage, acts, layer);
        rope_and_attention_forward(stage, acts, layer);
        attention_proj_forward(stage, acts, layer);
        fc_forward(stage, acts, layer);
    }
    if (recompute == RECOMPUTE_SELECTIVE && (pass->parts & WGRAD)) { // the matrices' inputs, which wgrad needs
        norm_forward(stage, norm1_of(stage, acts, layer), residual_stream(acts, layer), acts->R);
        norm_forward(stage, norm2_of(stage, acts, layer), y->middle, acts->R);
        activation_forward(stage, acts, y);
    }
}

static void block_backward(const BackwardPass* pass, int layer) {
    grad_bucket_begin(pass, layer, NORM1_W);
    block_recompute(pass, layer);
    mlp_backward(pass, layer);
    attention_block_backward(pass, layer);
    if (pass->parts & WGRAD) grad_bucket_ready(pass, layer, NORM1_W);
}

// Starts the gradient: dx becomes the gradient of the last block's output.
static void head_backward(const BackwardPass* pass) {
    const Stage* stage = pass->stage;
    const Activations* acts = pass->acts;
    const HeadActivations* h = acts->head;
    const int V = stage->layout.V;
    const TensorKind head = lm_head_kind(stage);
    CommRequest sum = no_request();
    if (pass->parts & DGRAD) {
        vocab_parallel_cross_entropy_backward(stage, acts);
        sum = column_parallel_backward_input(stage, acts, stage->dnorm, h->logits, -1, head, V);
    }
    if (pass->parts & WGRAD) {
        grad_bucket_begin(pass, -1, head);
        column_parallel_backward_weight(stage, acts, -1, head, NO_TENSOR, h->logits, h->final_norm, V);
        if (!has_split_embedding_grad(stage)) grad_bucket_ready(pass, -1, head);
    }
    if (pass->parts & DGRAD) {
        comm_wait(&sum);
        grad_bucket_begin(pass, -1, FINAL_NORM_W);
        device_zero(pass->g->dx, (size_t)acts->R * stage->model.C * sizeof(floatX));
        norm_backward(stage, pass->g->dx, stage->dnorm, chunk_output(acts), h->final_mean, h->final_rstd, -1,
                      FINAL_NORM_W, FINAL_NORM_B, acts->R);
    }
    if (pass->parts & WGRAD) grad_bucket_ready(pass, -1, FINAL_NORM_W);
}

// The gradients of the embeddings. A tied embedding has two gradients, which are accumulated over the micro-batches in
// separate buffers and added when both are complete: here, or, where the two uses are on two stages, between them
// (all_reduce_tied_embedding_grad). So every pipeline adds in the same order.
static void embedding_block_backward(const BackwardPass* pass) {
    const Stage* stage = pass->stage;
    const Activations* acts = pass->acts;
    const Layout* layout = &stage->layout;
    const int C = stage->model.C, V = layout_embedding_rows(layout);
    const int rows = acts->split ? acts->tokens / layout->mesh.t : acts->tokens; // rows of one residual stream
    const floatX* dx = vocab_parallel_embedding_grad(pass);
    if (stage->model.position == POSITION_LEARNED) {
        const int64_t first = acts->split ? (int64_t)layout->mesh.tensor * rows : 0;
        grad_bucket_begin(pass, -1, WPE);
        position_backward(gradient(stage, -1, WPE), dx, acts->positions, first, rows, acts->T, C);
        grad_bucket_ready(pass, -1, WPE);
    }
    grad_bucket_begin(pass, -1, WTE);
    float* dwte = gradient(stage, -1, WTE);
    float* sum = has_split_embedding_grad(stage) ? stage->grad_embedding : dwte;
    embedding_backward(sum, tp_gather_input(stage, acts, dx), acts->inputs, acts->tokens, C, layout->vocab_offset, V);
    if (has_split_embedding_grad(stage) && pass->reduce) accumulate(dwte, stage->grad_embedding, (int64_t)V * C);
    grad_bucket_ready(pass, -1, WTE);
}

// The backward pass of one chunk: both parts or one of them. The last chunk of the model starts from the losses, any
// other one from g->dx, the gradient of its output; at the end g->dx is the gradient of its input.
static void chunk_backward(const BackwardPass* pass) {
    const Chunk* chunk = pass->acts->chunk;
    if (chunk->last) head_backward(pass);
    for (int l = chunk->layers - 1; l >= 0; l--) block_backward(pass, chunk->begin + l);
    if (chunk->first && (pass->parts & WGRAD)) embedding_block_backward(pass);
}

#endif
