/*
gpt.h: the model. chunk_forward and chunk_backward are the forward and backward pass of one chunk, the blocks that a rank
holds of one micro-batch, on CPU cores or a GPU: the kernels are in kernels/, what goes between tensor ranks in
parallel/tensor.h, the buffers in parallel/stage.h.

Notation: B sequences of T tokens in a micro-batch, N = B T rows; C channels, F of the mlp, NH and NKV heads of HS channels,
V the vocabulary. NH, NKV, F and V of a layout are this rank's. R rows of the residual stream: N, or N / t with
--sequence-parallel.
*/
#ifndef GPT_H
#define GPT_H

#include "kernels/kernels.h"
#include "model.h"
#include "parallel/stage.h"
#include "parallel/tensor.h"

// ----------------------------------------------------------------------------------------------------------------
// Forward

// One of the model's norms, LayerNorm or RMSNorm: where its results go, and its weights. out = NULL: none.
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

// The norm that reads the residual stream behind a block: the next block's first one, the final one, or none where the
// stream goes on to another chunk.
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

static void activation_forward(const Stage* stage, Activations* acts, int layer) {
    const LayerActivations* y = layer_acts(acts, layer);
    activations[stage->model.activation].forward(y->act, y->fc, acts->N, stage->layout.F);
}

// Attention of whole sequences. Documents are the same in all states, so where there are any these take turns.
static void attention_streams_forward(const Stage* stage, const Activations* acts, const LayerActivations* y) {
    const int NH = stage->layout.NH, NKV = stage->layout.NKV, HS = model_head_size(&stage->model);
    const int turns = acts->positions ? stage->layout.states : 1, N = acts->N / turns;
    for (int i = 0; i < turns; i++) {
        const int64_t row = (int64_t)i * N;
        attention_forward(y->attention + row * NH * HS, y->lse + row * NH, y->qkv + row * qkv_size(stage),
                          acts->positions, acts->B / turns, acts->T, NH, NKV, HS);
    }
}

// Rotary positions, then attention: of whole sequences, or of one new token to those in the cache.
static void attention_block_core(const Stage* stage, Activations* acts, int layer) {
    const int NH = stage->layout.NH, NKV = stage->layout.NKV, HS = model_head_size(&stage->model);
    const LayerActivations* y = layer_acts(acts, layer);
    const bool decodes = acts->position >= 0;
    if (stage->rope) {
        const float* table = stage->rope + (decodes ? (int64_t)acts->position * HS : 0);
        rope_forward(y->qkv, table, acts->B, acts->T, NH + NKV, HS, qkv_size(stage));
    }
    for (int i = 0; i < stage->layout.states && (decodes || acts->remembers); i++) {
        floatX* cache = stage->cache + ((int64_t)layer * stage->layout.states + i) * kv_cache_layer_elements(stage);
        const floatX* qkv = y->qkv + (int64_t)i * acts->tokens * qkv_size(stage);
        if (decodes)
            attention_decode(y->attention + (int64_t)i * NH * HS, cache, qkv, acts->position, NH, NKV, HS);
        else
            attention_remember(cache, qkv, acts->T, NH, NKV, HS);
    }
    if (!decodes) attention_streams_forward(stage, acts, y);
}

// fc = W norm2 + bias, and its activation function.
static void fc_forward(const Stage* stage, Activations* acts, int layer) {
    const LayerActivations* y = layer_acts(acts, layer);
    const floatX* x = tp_gather_input(stage, acts, y->norm2);
    const Activation* activation = &activations[stage->model.activation];
    const int C = stage->model.C, F = stage->layout.F;
    if (!activation->linear_forward) {
        tp_linear_forward(stage, acts, y->fc, x, layer, FC_W, FC_B, C, fc_size(stage));
        activation_forward(stage, acts, layer);
        return;
    }
    for (int i = 0; i < stage->layout.states; i++) {
        const int64_t row = (int64_t)i * acts->tokens;
        activation->linear_forward(y->act + row * F, y->fc + row * F, x + row * C, weight_of(stage, layer, FC_W, i),
                                   weight_of(stage, layer, FC_B, i), acts->tokens, C, F);
    }
}

// middle = x[layer] + attention(norm1), norm1 being there; then fc = W norm2(middle) and its activation function:
// everything that the backward pass of a block needs.
static void block_forward_until_fc(const Stage* stage, Activations* acts, int layer) {
    const int C = stage->model.C;
    const LayerActivations* y = layer_acts(acts, layer);
    floatX* partial = tp_partial_buffer(stage, acts, stage->branch);

    tp_linear_forward(stage, acts, y->qkv, tp_gather_input(stage, acts, y->norm1), layer, QKV_W, QKV_B, C,
                      qkv_size(stage));
    attention_block_core(stage, acts, layer);
    tp_linear_forward(stage, acts, partial, y->attention, layer, ATTN_PROJ_W, NO_TENSOR, attn_out_size(stage), C);
    nan_probe(stage, acts, PROBE_ATTENTION, layer, partial, (int64_t)acts->N * C);
    tp_reduce_output(stage, acts, stage->branch, partial);
    residual_norm_forward(stage, norm2_of(stage, acts, layer), y->middle, residual_stream(acts, layer), stage->branch,
                          weight(stage, layer, ATTN_PROJ_B), acts->R);
    fc_forward(stage, acts, layer);
}

// x[layer + 1] = middle + mlp(norm2(middle)), and the norm that reads it.
static void block_forward(const Stage* stage, Activations* acts, int layer) {
    const int C = stage->model.C;
    const LayerActivations* y = layer_acts(acts, layer);
    floatX* partial = tp_partial_buffer(stage, acts, stage->branch);
    block_forward_until_fc(stage, acts, layer);
    tp_linear_forward(stage, acts, partial, y->act, layer, MLP_PROJ_W, NO_TENSOR, stage->layout.F, C);
    nan_probe(stage, acts, PROBE_MLP, layer, partial, (int64_t)acts->N * C);
    tp_reduce_output(stage, acts, stage->branch, partial);
    residual_norm_forward(stage, next_norm(stage, acts, layer), residual_stream(acts, layer + 1), y->middle,
                          stage->branch, weight(stage, layer, MLP_PROJ_B), acts->R);
}

// A rank has the rows of its tokens and zeros for the others': the sum over the ranks is the embedding. All states begin
// with it.
static void embedding_forward_tp(const Stage* stage, Activations* acts) {
    const int C = stage->model.C, states = stage->layout.states, N = acts->tokens;
    floatX *partial = tp_partial_buffer(stage, acts, acts->x[0]), *x = acts->x[0];
    if (states > 1) partial = x = stage->branch;
    embedding_forward(partial, acts->inputs, weight(stage, -1, WTE), N, C, stage->layout.vocab_offset,
                      states * stage->layout.V);
    nan_probe(stage, acts, PROBE_EMBEDDING, 0, partial, (int64_t)N * C);
    reduce_from_tensor_region(stage->groups, acts->split, x, partial, (int64_t)N * C);
    if (stage->model.position == POSITION_LEARNED) {
        const int64_t first = acts->position >= 0 ? acts->position
                              : acts->split       ? (int64_t)stage->layout.mesh.tensor * acts->R
                                                  : 0;
        position_forward(x, weight(stage, -1, WPE), acts->positions, first, acts->R / states,
                         acts->position >= 0 ? stage->T : acts->T, C);
    }
    if (states > 1) caat_unpack(acts->x[0], x, x, 1.0f, states, N, C, C);
}

// logits = final norm W^T: this rank's share of the vocabulary; every state makes its own, from its own stream.
static void head_forward(const Stage* stage, Activations* acts) {
    const HeadActivations* h = acts->head;
    tp_linear_forward(stage, acts, h->logits, tp_gather_input(stage, acts, h->final_norm), -1, lm_head_kind(stage),
                      NO_TENSOR, stage->model.C, stage->layout.V);
}

static void layers_forward(const Stage* stage, Activations* acts) {
    norm_forward(stage, norm1_of(stage, acts, acts->chunk->begin), acts->x[0], acts->R);
    for (int l = 0; l < acts->chunk->layers; l++) block_forward(stage, acts, acts->chunk->begin + l);
    nan_probe(stage, acts, PROBE_STREAM, acts->chunk->begin + acts->chunk->layers - 1, chunk_output(acts),
              (int64_t)acts->R * stage->model.C);
}

// The forward pass of one chunk. The first one starts from a->inputs, any other one from a->x[0]; after the last one
// the head's losses are -log p(target) of every token, on each of its tensor ranks.
static void chunk_forward(const Stage* stage, Activations* acts) {
    if (acts->chunk->first) embedding_forward_tp(stage, acts);
    layers_forward(stage, acts);
    if (!acts->chunk->last) return;
    head_forward(stage, acts);
    nan_probe(stage, acts, PROBE_LOGITS, 0, acts->head->logits, (int64_t)acts->N * stage->layout.V);
    vocab_parallel_cross_entropy(stage, acts);
    if (stage->probe)
        probe_device_floats(stage->probe, place_on_way(stage->probe, PROBE_LOSS, 0), acts->head->losses, acts->tokens);
}

// ----------------------------------------------------------------------------------------------------------------
// Backward. The input half carries the gradient through the stage, block by block; the weight half turns the gradients
// of the linear layers' outputs into gradients of their weights, which add up over micro-batches. Done together, the weight
// half works while the sum of the input half over the tensor ranks is in flight.

enum { INPUT_HALF = 1, WEIGHT_HALF = 2, BOTH_HALVES = 3 };

typedef struct {
    Stage* stage;
    Activations* acts;
    Gradients* g;
    int halves;
    bool reduce; // the gradients are complete after this pass: buckets go to the data group as they get ready
} Backward;

// The gradient of a branch, of all rows, from that of the residual stream, dx: in `all`, which the weights' half of the backward
// pass reads later; or dx itself, where its rows are all here and both halves are one, so that norm_backward changes it
// behind them.
static const floatX* output_grad(const Backward* w, floatX* all) {
    const Stage* stage = w->stage;
    const Activations* acts = w->acts;
    if (w->halves == BOTH_HALVES && !is_caat(stage) && !acts->split) return w->g->dx;
    if (w->halves & INPUT_HALF) {
        if (is_caat(stage))
            caat_reduce(stage, acts, all, w->g->dx, true);
        else
            gather_from_sequence_region(stage->groups, acts->split, all, w->g->dx, (int64_t)acts->N * stage->model.C);
    }
    return all;
}

// Buckets of gradients (parallel/data.h): reset before something is added, ready when nothing more will be.
static void grad_bucket_begin(const Backward* w, int layer, TensorKind kind) {
    grad_bucket_reset(&w->stage->grads, &w->stage->layout, layout_slice(&w->stage->layout, layer, kind)->bucket);
}

static void grad_bucket_ready(const Backward* w, int layer, TensorKind kind) {
    GradientBuckets* grads = &w->stage->grads;
    const Layout* layout = &w->stage->layout;
    if (!w->reduce) return;
    if (w->stage->probe) { // these are for nothing else
        const int b = layout_slice(layout, layer, kind)->bucket;
        probe_bucket(w->stage->probe, layout, b, grads->of_bucket[b]);
        return;
    }
    start_grad_sync(grads, w->stage->groups, layout, layout_slice(layout, layer, kind)->bucket);
    buckets_progress(grads, layout);
}

static void norm_backward(const Stage* stage, floatX* dx, const floatX* dout, const floatX* x, const float* mean,
                          const float* rstd, int layer, TensorKind w, TensorKind b, int R) {
    const int C = stage->model.C;
    if (stage->model.norm == NORM_LAYERNORM) {
        layernorm_backward(dx, gradient(stage, layer, w), gradient(stage, layer, b), dout, x, weight(stage, layer, w),
                           mean, rstd, R, C);
    } else {
        rmsnorm_backward(dx, gradient(stage, layer, w), dout, x, weight(stage, layer, w), rstd, R, C);
    }
}

// dfc, the gradient before the activation function, from dout, that of the mlp's result.
static void activation_backward(const Stage* stage, const Activations* acts, floatX* dfc, const floatX* dout,
                                const LayerActivations* y, int layer) {
    const Activation* activation = &activations[stage->model.activation];
    const int C = stage->model.C, F = stage->layout.F;
    if (!activation->linear_backward_input) {
        tp_linear_backward_input(stage, acts, stage->dact, dout, layer, MLP_PROJ_W, F, C);
        activation->backward(dfc, stage->dact, y->fc, acts->N, F);
        return;
    }
    for (int i = 0; i < stage->layout.states; i++) {
        const int64_t row = (int64_t)i * acts->tokens;
        activation->linear_backward_input(dfc + row * F, stage->dact + row * F, dout + row * C,
                                          weight_of(stage, layer, MLP_PROJ_W, i), y->fc + row * F, acts->tokens, F, C);
    }
}

// dqkv, from s->dact.
static void attention_of_sequences_backward(const Stage* stage, const Activations* acts, const LayerActivations* y,
                                            floatX* dqkv) {
    const int NH = stage->layout.NH, NKV = stage->layout.NKV, HS = model_head_size(&stage->model);
    const int turns = acts->positions ? stage->layout.states : 1, N = acts->N / turns;
    for (int i = 0; i < turns; i++) {
        const int64_t row = (int64_t)i * N, out = row * NH * HS, qkv = row * qkv_size(stage);
        attention_backward(dqkv + qkv, stage->dact + out, y->qkv + qkv, y->attention + out, y->lse + row * NH,
                           acts->positions, acts->B / turns, acts->T, NH, NKV, HS);
    }
}

static void mlp_backward(const Backward* w, int layer) {
    const Stage* stage = w->stage;
    const Activations* acts = w->acts;
    const int C = stage->model.C;
    const LayerActivations* y = layer_acts(acts, layer);
    LayerGradients* d = &w->g->layers[layer - acts->chunk->begin];
    const floatX* dout = output_grad(w, d->dout);
    CommRequest sum = no_request();
    if (w->halves & INPUT_HALF) {
        floatX* partial = tp_partial_buffer(stage, acts, stage->dnorm);
        caat_bias_grad(stage, acts, layer, MLP_PROJ_B, w->g->dx);
        activation_backward(stage, acts, d->dfc, dout, y, layer);
        tp_linear_backward_input(stage, acts, partial, d->dfc, layer, FC_W, C, fc_size(stage));
        nan_probe(stage, acts, PROBE_MLP, layer, partial, (int64_t)acts->N * C);
        sum = tp_reduce_input_grad_start(stage, acts, stage->dnorm, partial);
    }
    if (w->halves & WEIGHT_HALF) {
        tp_linear_backward_weight(stage, acts, layer, MLP_PROJ_W, caat_skip_bias(stage, MLP_PROJ_B), dout, y->act,
                                  stage->layout.F, C);
        tp_linear_backward_weight(stage, acts, layer, FC_W, FC_B, d->dfc, tp_gather_input(stage, acts, y->norm2), C,
                                  fc_size(stage));
    }
    if (w->halves & INPUT_HALF) {
        comm_wait(&sum);
        norm_backward(stage, w->g->dx, stage->dnorm, y->middle, y->mean2, y->rstd2, layer, NORM2_W, NORM2_B,
                      w->acts->R);
    }
}

static void attention_block_backward(const Backward* w, int layer) {
    const Stage* stage = w->stage;
    const Activations* acts = w->acts;
    const int C = stage->model.C, HS = model_head_size(&stage->model);
    const int NH = stage->layout.NH, NKV = stage->layout.NKV, QKV = qkv_size(stage);
    const LayerActivations* y = layer_acts(acts, layer);
    LayerGradients* d = &w->g->layers[layer - acts->chunk->begin];
    const floatX* dmiddle = output_grad(w, d->dmiddle);
    CommRequest sum = no_request();
    if (w->halves & INPUT_HALF) {
        floatX* partial = tp_partial_buffer(stage, acts, stage->dnorm);
        caat_bias_grad(stage, acts, layer, ATTN_PROJ_B, w->g->dx);
        tp_linear_backward_input(stage, acts, stage->dact, dmiddle, layer, ATTN_PROJ_W, attn_out_size(stage), C);
        attention_of_sequences_backward(stage, acts, y, d->dqkv);
        if (stage->rope) rope_backward(d->dqkv, stage->rope, acts->B, acts->T, NH + NKV, HS, QKV);
        tp_linear_backward_input(stage, acts, partial, d->dqkv, layer, QKV_W, C, QKV);
        nan_probe(stage, acts, PROBE_ATTENTION, layer, partial, (int64_t)acts->N * C);
        sum = tp_reduce_input_grad_start(stage, acts, stage->dnorm, partial);
    }
    if (w->halves & WEIGHT_HALF) {
        tp_linear_backward_weight(stage, acts, layer, ATTN_PROJ_W, caat_skip_bias(stage, ATTN_PROJ_B), dmiddle,
                                  y->attention, attn_out_size(stage), C);
        tp_linear_backward_weight(stage, acts, layer, QKV_W, QKV_B, d->dqkv, tp_gather_input(stage, acts, y->norm1), C,
                                  QKV);
    }
    if (w->halves & INPUT_HALF) {
        comm_wait(&sum);
        norm_backward(stage, w->g->dx, stage->dnorm, residual_stream(acts, layer), y->mean1, y->rstd1, layer, NORM1_W,
                      NORM1_B, acts->R);
    }
}

// What the forward pass did not keep: the same operations on the same numbers, so the same bits.
static void block_recompute(const Stage* stage, Activations* acts, int layer, int halves) {
    const Recompute recompute = stage->layout.mesh.recompute;
    const bool selective = recompute == RECOMPUTE_SELECTIVE && (halves & WEIGHT_HALF); // inputs of matrices
    if (!selective && recompute != RECOMPUTE_FULL) return;
    norm_forward(stage, norm1_of(stage, acts, layer), residual_stream(acts, layer), acts->R);
    if (recompute == RECOMPUTE_FULL) {
        block_forward_until_fc(stage, acts, layer);
    } else {
        norm_forward(stage, norm2_of(stage, acts, layer), layer_acts(acts, layer)->middle, acts->R);
        activation_forward(stage, acts, layer);
    }
}

static void block_backward(const Backward* w, int layer) {
    grad_bucket_begin(w, layer, NORM1_W);
    block_recompute(w->stage, w->acts, layer, w->halves);
    mlp_backward(w, layer);
    attention_block_backward(w, layer);
    if (w->halves & WEIGHT_HALF) grad_bucket_ready(w, layer, NORM1_W);
}

// Starts the gradient: logits become d(sum of losses * scale) / d(logits), dx the gradient of the last block's output.
static void head_backward(const Backward* w) {
    const Stage* stage = w->stage;
    Activations* acts = w->acts;
    const HeadActivations* h = acts->head;
    const int C = stage->model.C, V = stage->layout.V;
    CommRequest sum = no_request();
    if (w->halves & INPUT_HALF) {
        floatX* partial = tp_partial_buffer(stage, acts, stage->dnorm);
        for (int i = 0; i < stage->layout.states && !uses_fused_classifier(stage, acts); i++)
            crossentropy_backward(logits_of(stage, acts, i), h->row_max, h->row_sum, acts->targets, acts->scale,
                                  acts->tokens, layout_tokens(&stage->layout, i), V,
                                  layout_vocab_offset(&stage->layout, i));
        tp_linear_backward_input(stage, acts, partial, h->logits, -1, lm_head_kind(stage), C, V);
        nan_probe(stage, acts, PROBE_LOGITS, 0, partial, (int64_t)acts->N * C);
        sum = tp_reduce_input_grad_start(stage, acts, stage->dnorm, partial);
    }
    if (w->halves & WEIGHT_HALF) {
        grad_bucket_begin(w, -1, lm_head_kind(stage));
        tp_linear_backward_weight(stage, acts, -1, lm_head_kind(stage), NO_TENSOR, h->logits,
                                  tp_gather_input(stage, acts, h->final_norm), C, V);
        if (!has_split_embedding_grad(stage)) grad_bucket_ready(w, -1, lm_head_kind(stage));
    }
    if (w->halves & INPUT_HALF) {
        comm_wait(&sum);
        grad_bucket_begin(w, -1, FINAL_NORM_W);
        device_zero(w->g->dx, (size_t)acts->R * C * sizeof(floatX));
        norm_backward(stage, w->g->dx, stage->dnorm, chunk_output(acts), h->final_mean, h->final_rstd, -1, FINAL_NORM_W,
                      FINAL_NORM_B, acts->R);
    }
    if (w->halves & WEIGHT_HALF) grad_bucket_ready(w, -1, FINAL_NORM_W);
}

// One matrix that is embedding and head has two gradients, which add up over the micro-batches in buffers of their own
// and are added when both are complete: here, or, where the two uses lie on two stages, between them (all_reduce_tied_embedding_grad). So
// every pipeline adds in the same order.
static void embed_backward(const Backward* w) {
    const Stage* stage = w->stage;
    const Activations* acts = w->acts;
    const int C = stage->model.C, V = stage->layout.states * stage->layout.V;
    const floatX* dx = is_caat(stage) ? caat_reduce_streams(stage, acts, w->g->dx) : w->g->dx;
    if (stage->model.position == POSITION_LEARNED) {
        const int64_t first = acts->split ? (int64_t)stage->layout.mesh.tensor * acts->R : 0;
        grad_bucket_begin(w, -1, WPE);
        position_backward(gradient(stage, -1, WPE), dx, acts->positions, first, acts->R / stage->layout.states, acts->T,
                          C);
        grad_bucket_ready(w, -1, WPE);
    }
    grad_bucket_begin(w, -1, WTE);
    float *dwte = gradient(stage, -1, WTE), *sum = has_split_embedding_grad(stage) ? stage->grad_embedding : dwte;
    embedding_backward(sum, tp_gather_input(stage, acts, dx), acts->inputs, acts->tokens, C, stage->layout.vocab_offset,
                       V);
    if (has_split_embedding_grad(stage) && w->reduce) accumulate(dwte, stage->grad_embedding, (int64_t)V * C);
    grad_bucket_ready(w, -1, WTE);
}

// The backward pass of one chunk: both halves or one of them. The last chunk of the model starts from the losses, any
// other one from g->dx, the gradient of its output; afterwards g->dx is the gradient of its input.
static void chunk_backward(const Backward* w) {
    const Chunk* chunk = w->acts->chunk;
    if (chunk->last) head_backward(w);
    for (int l = chunk->layers - 1; l >= 0; l--) block_backward(w, chunk->begin + l);
    if (w->halves & INPUT_HALF)
        nan_probe(w->stage, w->acts, PROBE_STREAM, chunk->begin - 1, w->g->dx, (int64_t)w->acts->R * w->stage->model.C);
    if (chunk->first && (w->halves & WEIGHT_HALF)) embed_backward(w);
}

#endif
