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

static Norm norm1_of(const Stage* s, const Activations* a, int layer) {
    const LayerActivations* y = layer_acts(a, layer);
    const Norm n = {y->norm1, y->mean1, y->rstd1, weight(s, layer, NORM1_W), weight(s, layer, NORM1_B)};
    return n;
}

static Norm norm2_of(const Stage* s, const Activations* a, int layer) {
    const LayerActivations* y = layer_acts(a, layer);
    const Norm n = {y->norm2, y->mean2, y->rstd2, weight(s, layer, NORM2_W), weight(s, layer, NORM2_B)};
    return n;
}

// The norm that reads the residual stream behind a block: the next block's first one, the final one, or none where the
// stream goes on to another chunk.
static Norm next_norm(const Stage* s, const Activations* a, int layer) {
    const Norm none = {NULL, NULL, NULL, NULL, NULL};
    if (layer + 1 < a->chunk->begin + a->chunk->layers) return norm1_of(s, a, layer + 1);
    if (!a->chunk->last) return none;
    const HeadActivations* h = a->head;
    const Norm n = {h->final_norm, h->final_mean, h->final_rstd, weight(s, -1, FINAL_NORM_W),
                    weight(s, -1, FINAL_NORM_B)};
    return n;
}

static void norm_forward(const Stage* s, Norm n, const floatX* x, int R) {
    const int C = s->model.C;
    const float eps = (float)s->model.eps;
    if (s->model.arch == ARCH_GPT2)
        layernorm_forward(n.out, n.mean, n.rstd, x, n.w, n.b, R, C, eps);
    else
        rmsnorm_forward(n.out, n.rstd, x, n.w, R, C, eps);
}

// sum = x + branch + bias, and the norm of the sum.
static void residual_norm_forward(const Stage* s, Norm n, floatX* sum, const floatX* x, const floatX* branch,
                                  const floatX* bias, int R) {
    const int C = s->model.C;
    const float eps = (float)s->model.eps;
    if (!n.out)
        residual_forward(sum, x, branch, bias, R, C);
    else if (s->model.arch == ARCH_GPT2)
        residual_layernorm_forward(sum, n.out, n.mean, n.rstd, x, branch, bias, n.w, n.b, R, C, eps);
    else
        residual_rmsnorm_forward(sum, n.out, n.rstd, x, branch, bias, n.w, R, C, eps);
}

static void activation_forward(const Stage* s, Activations* a, int layer) {
    const LayerActivations* y = layer_acts(a, layer);
    const int F = s->layout.F;
    if (s->model.arch == ARCH_GPT2)
        gelu_forward(y->act, y->fc, (int64_t)a->N * F);
    else
        swiglu_forward(y->act, y->fc, a->N, F);
}

// Attention of whole sequences. Documents are the same in all states, so where there are any these take turns.
static void attention_streams_forward(const Stage* s, const Activations* a, const LayerActivations* y) {
    const int NH = s->layout.NH, NKV = s->layout.NKV, HS = model_head_size(&s->model);
    const int turns = a->positions ? s->layout.states : 1, N = a->N / turns;
    for (int i = 0; i < turns; i++) {
        const int64_t row = (int64_t)i * N;
        attention_forward(y->attention + row * NH * HS, y->lse + row * NH, y->qkv + row * qkv_size(s), a->positions,
                          a->B / turns, a->T, NH, NKV, HS);
    }
}

// Rotary positions, then attention: of whole sequences, or of one new token to those in the cache.
static void attention_block_core(const Stage* s, Activations* a, int layer) {
    const int NH = s->layout.NH, NKV = s->layout.NKV, HS = model_head_size(&s->model);
    const LayerActivations* y = layer_acts(a, layer);
    const bool decodes = a->position >= 0;
    if (s->rope) {
        const float* table = s->rope + (decodes ? (int64_t)a->position * HS : 0);
        rope_forward(y->qkv, table, a->B, a->T, NH + NKV, HS, qkv_size(s));
    }
    for (int i = 0; i < s->layout.states && (decodes || a->remembers); i++) {
        floatX* cache = s->cache + ((int64_t)layer * s->layout.states + i) * kv_cache_layer_elements(s);
        const floatX* qkv = y->qkv + (int64_t)i * a->tokens * qkv_size(s);
        if (decodes)
            attention_decode(y->attention + (int64_t)i * NH * HS, cache, qkv, a->position, NH, NKV, HS);
        else
            attention_remember(cache, qkv, a->T, NH, NKV, HS);
    }
    if (!decodes) attention_streams_forward(s, a, y);
}

// fc = W norm2 + bias, and its activation function.
static void fc_forward(const Stage* s, Activations* a, int layer) {
    const LayerActivations* y = layer_acts(a, layer);
    const floatX* x = tp_gather_input(s, a, y->norm2);
    const int C = s->model.C, F = s->layout.F, states = s->layout.states;
    for (int i = 0; i < states && s->model.arch == ARCH_GPT2; i++) {
        const int64_t row = (int64_t)i * a->tokens;
        linear_gelu_forward(y->act + row * F, y->fc + row * F, x + row * C, weight_of(s, layer, FC_W, i),
                            weight_of(s, layer, FC_B, i), a->tokens, C, F);
    }
    if (s->model.arch == ARCH_GPT2) return;
    tp_linear_forward(s, a, y->fc, x, layer, FC_W, FC_B, C, fc_size(s));
    activation_forward(s, a, layer);
}

// middle = x[layer] + attention(norm1), norm1 being there; then fc = W norm2(middle) and its activation function:
// everything that the backward pass of a block needs.
static void block_forward_until_fc(const Stage* s, Activations* a, int layer) {
    const int C = s->model.C;
    const LayerActivations* y = layer_acts(a, layer);
    floatX* partial = tp_partial_buffer(s, a, s->branch);

    tp_linear_forward(s, a, y->qkv, tp_gather_input(s, a, y->norm1), layer, QKV_W, QKV_B, C, qkv_size(s));
    attention_block_core(s, a, layer);
    tp_linear_forward(s, a, partial, y->attention, layer, ATTN_PROJ_W, NO_TENSOR, attn_out_size(s), C);
    nan_probe(s, a, PROBE_ATTENTION, layer, partial, (int64_t)a->N * C);
    tp_reduce_output(s, a, s->branch, partial);
    residual_norm_forward(s, norm2_of(s, a, layer), y->middle, residual_stream(a, layer), s->branch,
                          weight(s, layer, ATTN_PROJ_B), a->R);
    fc_forward(s, a, layer);
}

// x[layer + 1] = middle + mlp(norm2(middle)), and the norm that reads it.
static void block_forward(const Stage* s, Activations* a, int layer) {
    const int C = s->model.C;
    const LayerActivations* y = layer_acts(a, layer);
    floatX* partial = tp_partial_buffer(s, a, s->branch);
    block_forward_until_fc(s, a, layer);
    tp_linear_forward(s, a, partial, y->act, layer, MLP_PROJ_W, NO_TENSOR, s->layout.F, C);
    nan_probe(s, a, PROBE_MLP, layer, partial, (int64_t)a->N * C);
    tp_reduce_output(s, a, s->branch, partial);
    residual_norm_forward(s, next_norm(s, a, layer), residual_stream(a, layer + 1), y->middle, s->branch,
                          weight(s, layer, MLP_PROJ_B), a->R);
}

// A rank has the rows of its tokens and zeros for the others': the sum over the ranks is the embedding. All states begin
// with it.
static void embedding_forward_tp(const Stage* s, Activations* a) {
    const int C = s->model.C, states = s->layout.states, N = a->tokens;
    floatX *partial = tp_partial_buffer(s, a, a->x[0]), *x = a->x[0];
    if (states > 1) partial = x = s->branch;
    embedding_forward(partial, a->inputs, weight(s, -1, WTE), N, C, s->layout.vocab_offset, states * s->layout.V);
    nan_probe(s, a, PROBE_EMBEDDING, 0, partial, (int64_t)N * C);
    reduce_from_tensor_region(s->groups, a->split, x, partial, (int64_t)N * C);
    if (s->model.arch == ARCH_GPT2) {
        const int64_t first = a->position >= 0 ? a->position : a->split ? (int64_t)s->layout.mesh.tensor * a->R : 0;
        position_forward(x, weight(s, -1, WPE), a->positions, first, a->R / states, a->position >= 0 ? s->T : a->T, C);
    }
    if (states > 1) caat_unpack(a->x[0], x, x, 1.0f, states, N, C, C);
}

// logits = final norm W^T: this rank's share of the vocabulary; every state makes its own, from its own stream.
static void head_forward(const Stage* s, Activations* a) {
    const HeadActivations* h = a->head;
    tp_linear_forward(s, a, h->logits, tp_gather_input(s, a, h->final_norm), -1, lm_head_kind(s), NO_TENSOR, s->model.C, s->layout.V);
}

static void layers_forward(const Stage* s, Activations* a) {
    norm_forward(s, norm1_of(s, a, a->chunk->begin), a->x[0], a->R);
    for (int l = 0; l < a->chunk->layers; l++) block_forward(s, a, a->chunk->begin + l);
    nan_probe(s, a, PROBE_STREAM, a->chunk->begin + a->chunk->layers - 1, chunk_output(a), (int64_t)a->R * s->model.C);
}

// The forward pass of one chunk. The first one starts from a->inputs, any other one from a->x[0]; after the last one
// the head's losses are -log p(target) of every token, on each of its tensor ranks.
static void chunk_forward(const Stage* s, Activations* a) {
    if (a->chunk->first) embedding_forward_tp(s, a);
    layers_forward(s, a);
    if (!a->chunk->last) return;
    head_forward(s, a);
    nan_probe(s, a, PROBE_LOGITS, 0, a->head->logits, (int64_t)a->N * s->layout.V);
    vocab_parallel_cross_entropy(s, a);
    if (s->probe) probe_device_floats(s->probe, place_on_way(s->probe, PROBE_LOSS, 0), a->head->losses, a->tokens);
}

// ----------------------------------------------------------------------------------------------------------------
// Backward. The input half carries the gradient through the stage, block by block; the weight half turns the gradients
// of the linear layers' outputs into gradients of their weights, which add up over micro-batches. Done together, the weight
// half works while the sum of the input half over the tensor ranks is in flight.

enum { INPUT_HALF = 1, WEIGHT_HALF = 2, BOTH_HALVES = 3 };

typedef struct {
    Stage* s;
    Activations* a;
    Gradients* g;
    int halves;
    bool reduce; // the gradients are complete after this pass: buckets go to the data group as they get ready
} Backward;

// The gradient of a branch, of all rows, from that of the residual stream, dx: in `all`, which the weights' half of the backward
// pass reads later; or dx itself, where its rows are all here and both halves are one, so that norm_backward changes it
// behind them.
static const floatX* output_grad(const Backward* w, floatX* all) {
    const Stage* s = w->s;
    const Activations* a = w->a;
    if (w->halves == BOTH_HALVES && !is_caat(s) && !a->split) return w->g->dx;
    if (w->halves & INPUT_HALF) {
        if (is_caat(s))
            caat_reduce(s, a, all, w->g->dx, true);
        else
            gather_from_sequence_region(s->groups, a->split, all, w->g->dx, (int64_t)a->N * s->model.C);
    }
    return all;
}

// Buckets of gradients (parallel/data.h): reset before something is added, ready when nothing more will be.
static void grad_bucket_begin(const Backward* w, int layer, TensorKind kind) {
    grad_bucket_reset(&w->s->grads, &w->s->layout, layout_slice(&w->s->layout, layer, kind)->bucket);
}

static void grad_bucket_ready(const Backward* w, int layer, TensorKind kind) {
    GradientBuckets* grads = &w->s->grads;
    const Layout* layout = &w->s->layout;
    if (!w->reduce) return;
    if (w->s->probe) { // these are for nothing else
        const int b = layout_slice(layout, layer, kind)->bucket;
        probe_bucket(w->s->probe, layout, b, grads->of_bucket[b]);
        return;
    }
    start_grad_sync(grads, w->s->groups, layout, layout_slice(layout, layer, kind)->bucket);
    buckets_progress(grads, layout);
}

static void norm_backward(const Stage* s, floatX* dx, const floatX* dout, const floatX* x, const float* mean,
                          const float* rstd, int layer, TensorKind w, TensorKind b, int R) {
    const int C = s->model.C;
    if (s->model.arch == ARCH_GPT2) {
        layernorm_backward(dx, gradient(s, layer, w), gradient(s, layer, b), dout, x, weight(s, layer, w), mean, rstd,
                           R, C);
    } else {
        rmsnorm_backward(dx, gradient(s, layer, w), dout, x, weight(s, layer, w), rstd, R, C);
    }
}

// dfc, the gradient before the activation function, from dout, that of the mlp's result.
static void activation_backward(const Stage* s, const Activations* a, floatX* dfc, const floatX* dout,
                                const LayerActivations* y, int layer) {
    const int C = s->model.C, F = s->layout.F, states = s->layout.states;
    for (int i = 0; i < states && s->model.arch == ARCH_GPT2; i++) {
        const int64_t row = (int64_t)i * a->tokens;
        linear_gelu_backward_input(dfc + row * F, s->dact + row * F, dout + row * C, weight_of(s, layer, MLP_PROJ_W, i),
                                   y->fc + row * F, a->tokens, F, C);
    }
    if (s->model.arch == ARCH_GPT2) return;
    tp_linear_backward_input(s, a, s->dact, dout, layer, MLP_PROJ_W, F, C);
    swiglu_backward(dfc, s->dact, y->fc, a->N, F);
}

// dqkv, from s->dact.
static void attention_of_sequences_backward(const Stage* s, const Activations* a, const LayerActivations* y,
                                            floatX* dqkv) {
    const int NH = s->layout.NH, NKV = s->layout.NKV, HS = model_head_size(&s->model);
    const int turns = a->positions ? s->layout.states : 1, N = a->N / turns;
    for (int i = 0; i < turns; i++) {
        const int64_t row = (int64_t)i * N, out = row * NH * HS, qkv = row * qkv_size(s);
        attention_backward(dqkv + qkv, s->dact + out, y->qkv + qkv, y->attention + out, y->lse + row * NH, a->positions,
                           a->B / turns, a->T, NH, NKV, HS);
    }
}

static void mlp_backward(const Backward* w, int layer) {
    const Stage* s = w->s;
    const Activations* a = w->a;
    const int C = s->model.C;
    const LayerActivations* y = layer_acts(a, layer);
    LayerGradients* d = &w->g->layers[layer - a->chunk->begin];
    const floatX* dout = output_grad(w, d->dout);
    CommRequest sum = no_request();
    if (w->halves & INPUT_HALF) {
        floatX* partial = tp_partial_buffer(s, a, s->dnorm);
        caat_bias_grad(s, a, layer, MLP_PROJ_B, w->g->dx);
        activation_backward(s, a, d->dfc, dout, y, layer);
        tp_linear_backward_input(s, a, partial, d->dfc, layer, FC_W, C, fc_size(s));
        nan_probe(s, a, PROBE_MLP, layer, partial, (int64_t)a->N * C);
        sum = tp_reduce_input_grad_start(s, a, s->dnorm, partial);
    }
    if (w->halves & WEIGHT_HALF) {
        tp_linear_backward_weight(s, a, layer, MLP_PROJ_W, caat_skip_bias(s, MLP_PROJ_B), dout, y->act, s->layout.F, C);
        tp_linear_backward_weight(s, a, layer, FC_W, FC_B, d->dfc, tp_gather_input(s, a, y->norm2), C, fc_size(s));
    }
    if (w->halves & INPUT_HALF) {
        comm_wait(&sum);
        norm_backward(s, w->g->dx, s->dnorm, y->middle, y->mean2, y->rstd2, layer, NORM2_W, NORM2_B, w->a->R);
    }
}

static void attention_block_backward(const Backward* w, int layer) {
    const Stage* s = w->s;
    const Activations* a = w->a;
    const int C = s->model.C, HS = model_head_size(&s->model);
    const int NH = s->layout.NH, NKV = s->layout.NKV, QKV = qkv_size(s);
    const LayerActivations* y = layer_acts(a, layer);
    LayerGradients* d = &w->g->layers[layer - a->chunk->begin];
    const floatX* dmiddle = output_grad(w, d->dmiddle);
    CommRequest sum = no_request();
    if (w->halves & INPUT_HALF) {
        floatX* partial = tp_partial_buffer(s, a, s->dnorm);
        caat_bias_grad(s, a, layer, ATTN_PROJ_B, w->g->dx);
        tp_linear_backward_input(s, a, s->dact, dmiddle, layer, ATTN_PROJ_W, attn_out_size(s), C);
        attention_of_sequences_backward(s, a, y, d->dqkv);
        if (s->rope) rope_backward(d->dqkv, s->rope, a->B, a->T, NH + NKV, HS, QKV);
        tp_linear_backward_input(s, a, partial, d->dqkv, layer, QKV_W, C, QKV);
        nan_probe(s, a, PROBE_ATTENTION, layer, partial, (int64_t)a->N * C);
        sum = tp_reduce_input_grad_start(s, a, s->dnorm, partial);
    }
    if (w->halves & WEIGHT_HALF) {
        tp_linear_backward_weight(s, a, layer, ATTN_PROJ_W, caat_skip_bias(s, ATTN_PROJ_B), dmiddle, y->attention,
                         attn_out_size(s), C);
        tp_linear_backward_weight(s, a, layer, QKV_W, QKV_B, d->dqkv, tp_gather_input(s, a, y->norm1), C, QKV);
    }
    if (w->halves & INPUT_HALF) {
        comm_wait(&sum);
        norm_backward(s, w->g->dx, s->dnorm, residual_stream(a, layer), y->mean1, y->rstd1, layer, NORM1_W, NORM1_B, a->R);
    }
}

// What the forward pass did not keep: the same operations on the same numbers, so the same bits.
static void block_recompute(const Stage* s, Activations* a, int layer, int halves) {
    const Recompute recompute = s->layout.mesh.recompute;
    const bool selective = recompute == RECOMPUTE_SELECTIVE && (halves & WEIGHT_HALF); // inputs of matrices
    if (!selective && recompute != RECOMPUTE_FULL) return;
    norm_forward(s, norm1_of(s, a, layer), residual_stream(a, layer), a->R);
    if (recompute == RECOMPUTE_FULL) {
        block_forward_until_fc(s, a, layer);
    } else {
        norm_forward(s, norm2_of(s, a, layer), layer_acts(a, layer)->middle, a->R);
        activation_forward(s, a, layer);
    }
}

static void block_backward(const Backward* w, int layer) {
    grad_bucket_begin(w, layer, NORM1_W);
    block_recompute(w->s, w->a, layer, w->halves);
    mlp_backward(w, layer);
    attention_block_backward(w, layer);
    if (w->halves & WEIGHT_HALF) grad_bucket_ready(w, layer, NORM1_W);
}

// Starts the gradient: logits become d(sum of losses * scale) / d(logits), dx the gradient of the last block's output.
static void head_backward(const Backward* w) {
    const Stage* s = w->s;
    Activations* a = w->a;
    const HeadActivations* h = a->head;
    const int C = s->model.C, V = s->layout.V;
    CommRequest sum = no_request();
    if (w->halves & INPUT_HALF) {
        floatX* partial = tp_partial_buffer(s, a, s->dnorm);
        for (int i = 0; i < s->layout.states && !uses_fused_classifier(s, a); i++)
            crossentropy_backward(logits_of(s, a, i), h->row_max, h->row_sum, a->targets, a->scale, a->tokens,
                                  layout_tokens(&s->layout, i), V, layout_vocab_offset(&s->layout, i));
        tp_linear_backward_input(s, a, partial, h->logits, -1, lm_head_kind(s), C, V);
        nan_probe(s, a, PROBE_LOGITS, 0, partial, (int64_t)a->N * C);
        sum = tp_reduce_input_grad_start(s, a, s->dnorm, partial);
    }
    if (w->halves & WEIGHT_HALF) {
        grad_bucket_begin(w, -1, lm_head_kind(s));
        tp_linear_backward_weight(s, a, -1, lm_head_kind(s), NO_TENSOR, h->logits, tp_gather_input(s, a, h->final_norm), C, V);
        if (!has_split_embedding_grad(s)) grad_bucket_ready(w, -1, lm_head_kind(s));
    }
    if (w->halves & INPUT_HALF) {
        comm_wait(&sum);
        grad_bucket_begin(w, -1, FINAL_NORM_W);
        device_zero(w->g->dx, (size_t)a->R * C * sizeof(floatX));
        norm_backward(s, w->g->dx, s->dnorm, chunk_output(a), h->final_mean, h->final_rstd, -1, FINAL_NORM_W,
                      FINAL_NORM_B, a->R);
    }
    if (w->halves & WEIGHT_HALF) grad_bucket_ready(w, -1, FINAL_NORM_W);
}

// One matrix that is embedding and head has two gradients, which add up over the micro-batches in buffers of their own
// and are added when both are complete: here, or, where the two uses lie on two stages, between them (all_reduce_tied_embedding_grad). So
// every pipeline adds in the same order.
static void embed_backward(const Backward* w) {
    const Stage* s = w->s;
    const Activations* a = w->a;
    const int C = s->model.C, V = s->layout.states * s->layout.V;
    const floatX* dx = is_caat(s) ? caat_reduce_streams(s, a, w->g->dx) : w->g->dx;
    if (s->model.arch == ARCH_GPT2) {
        const int64_t first = a->split ? (int64_t)s->layout.mesh.tensor * a->R : 0;
        grad_bucket_begin(w, -1, WPE);
        position_backward(gradient(s, -1, WPE), dx, a->positions, first, a->R / s->layout.states, a->T, C);
        grad_bucket_ready(w, -1, WPE);
    }
    grad_bucket_begin(w, -1, WTE);
    float *dwte = gradient(s, -1, WTE), *sum = has_split_embedding_grad(s) ? s->grad_embedding : dwte;
    embedding_backward(sum, tp_gather_input(s, a, dx), a->inputs, a->tokens, C, s->layout.vocab_offset, V);
    if (has_split_embedding_grad(s) && w->reduce) accumulate(dwte, s->grad_embedding, (int64_t)V * C);
    grad_bucket_ready(w, -1, WTE);
}

// The backward pass of one chunk: both halves or one of them. The last chunk of the model starts from the losses, any
// other one from g->dx, the gradient of its output; afterwards g->dx is the gradient of its input.
static void chunk_backward(const Backward* w) {
    const Chunk* chunk = w->a->chunk;
    if (chunk->last) head_backward(w);
    for (int l = chunk->layers - 1; l >= 0; l--) block_backward(w, chunk->begin + l);
    if (w->halves & INPUT_HALF)
        nan_probe(w->s, w->a, PROBE_STREAM, chunk->begin - 1, w->g->dx, (int64_t)w->a->R * w->s->model.C);
    if (chunk->first && (w->halves & WEIGHT_HALF)) embed_backward(w);
}

#endif
