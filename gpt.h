/*
gpt.h: the model. chunk_forward and chunk_backward are the forward and backward pass of one chunk, consecutive blocks
that a rank holds, on one micro-batch, on CPU cores or a GPU. The kernels are in kernels/, the communication between
tensor ranks in parallel/tensor.h and parallel/vocab.h, the buffers in parallel/stage.h.

A micro-batch is computed as one part, or with --tp-comm-overlap as two halves in turn. Functions with a `pass` compute
one part; those with `part`, an array, compute all, by each_part (parallel/halves.h) or branch_steps.

Notation: as in parallel/stage.h. Blocks are numbered over a stage; layer -1 is outside of them, before or after.
*/
#pragma once

#include "kernels/kernels.h"
#include "model.h"
#include "parallel/halves.h"
#include "parallel/stage.h"
#include "parallel/tensor.h"
#include "parallel/vocab.h"

// ---- Forward ----------------------------------------------------------------------------------------------------

// Announces out = x + branch + bias: the tensor ranks may still be adding up the branch. The norm that reads out, or
// the end of the chunk, awaits the branch and adds: one kernel does sum and norm. The other half fills the wait.
static void announce_sum(const Pass* pass, floatX* out, const floatX* x, int layer, TensorKind bias) {
    const ResidualSum sum = {out, x, pass->acts->branch, weight(pass->stage, layer, bias)};
    if (pass->acts->pending.out) die("internal error: block %d: a sum is pending, and another one begins", layer);
    pass->acts->pending = sum;
}

// Waits for the branch of the announced sum, which the caller then computes; out = NULL: there is none, x is complete.
static ResidualSum await_branch(const Pass* pass, const floatX* x) {
    Activations* acts = pass->acts;
    const ResidualSum sum = acts->pending, none = {NULL, NULL, NULL, NULL};
    if (sum.out && sum.out != x) die("internal error: the sum that is pending is not the one that is read");
    if (sum.out) row_parallel_finish(pass);
    acts->pending = none;
    return sum;
}

// A norm of the residual stream. w: NORM1_W or NORM2_W, of a block, or FINAL_NORM_W.
static Norm norm_of(const Pass* pass, int layer, TensorKind w) {
    const Stage* stage = pass->stage;
    const Activations* acts = pass->acts;
    const floatX* weights = weight(stage, layer, w);
    if (w == FINAL_NORM_W) {
        const HeadActivations* h = acts->head;
        const Norm last = {chunk_output(acts), h->final_norm, h->final_mean,
                           h->final_rstd,      weights,       weight(stage, layer, FINAL_NORM_B)};
        return last;
    }
    const LayerActivations* y = layer_acts(acts, layer);
    const Norm norm1 = {residual_stream(acts, layer), y->norm1, y->mean1, y->rstd1, weights,
                        weight(stage, layer, NORM1_B)};
    const Norm norm2 = {y->middle, y->norm2, y->mean2, y->rstd2, weights, weight(stage, layer, NORM2_B)};
    return w == NORM1_W ? norm1 : norm2;
}

// The norm of x, by the table of kernels/norms.h. Where x is the sum that is pending, one kernel computes both.
static void await_sum_and_norm(const Pass* pass, int layer, TensorKind w) {
    const ModelConfig* m = &pass->stage->model;
    const int R = pass->acts->R;
    const Norm n = norm_of(pass, layer, w);
    const ResidualSum sum = await_branch(pass, n.x);
    if (sum.out)
        norms[m->norm].residual_forward(&n, sum.x, sum.branch, sum.bias, R, m->C, (float)m->eps);
    else
        norms[m->norm].forward(&n, R, m->C, (float)m->eps);
}

// A block, in two branches. This rank computes its heads and its mlp channels.
//
//     1. norm1  = norm(x[layer])             6. norm2 = norm(middle)
//     2. qkv    = rope(Wqkv norm1 + b)       7. fc    = Wfc norm2 + b
//     3. att    = attention(qkv)             8. act   = activation(fc)
//     4. branch = Wo att                     9. branch = Wproj act
//     5. middle = x[layer] + branch + b     10. x[layer + 1] = middle + branch + b
//
// 4 and 9 sum over the tensor ranks. With two halves the sum of one is in flight while the other is computed; the next
// norm (6 or 1) awaits it. Sequence parallel: 4 and 9 scatter rows, 2 and 7 gather them.

static void attention_branch_forward(const Pass* pass, int layer) {
    const Stage* stage = pass->stage;
    const Activations* acts = pass->acts;
    const LayerActivations* y = layer_acts(acts, layer);
    const Heads h = heads_of(pass);

    // 1. norm, of the sum that the block before has started
    await_sum_and_norm(pass, layer, NORM1_W);
    // 2. qkv
    column_parallel_forward(pass, y->qkv, NULL, y->norm1, layer, QKV_W);
    if (stage->rope)
        rope_forward(y->qkv, stage->rope + (int64_t)acts->first * h.HS, h.B, h.T, h.NH + h.NKV, h.HS, qkv_size(stage));
    // 3. attention; of a text that is generated, with its keys and values
    if (acts->keeps_kv) kv_cache_fill(pass, layer);
    if (acts->decodes)
        kv_cache_attend(pass, layer);
    else
        attention_forward(y->attention, y->lse, y->qkv, h);
    // 4. proj
    row_parallel_forward(pass, y->attention, layer, ATTN_PROJ_W);
    // 5. sum
    announce_sum(pass, y->middle, residual_stream(acts, layer), layer, ATTN_PROJ_B);
}

static void mlp_branch_forward(const Pass* pass, int layer) {
    const LayerActivations* y = layer_acts(pass->acts, layer);

    // 6. norm, of attention's sum
    await_sum_and_norm(pass, layer, NORM2_W);
    // 7. fc and 8. act, which may be one kernel
    column_parallel_forward(pass, y->fc, y->act, y->norm2, layer, FC_W);
    if (pass->computes) return; // a backward pass, which computes the block again, needs no more of it
    // 9. proj
    row_parallel_forward(pass, y->act, layer, MLP_PROJ_W);
    // 10. sum
    announce_sum(pass, residual_stream(pass->acts, layer + 1), y->middle, layer, MLP_PROJ_B);
}

static void block_forward(const Pass* part, int layer) {
    each_part(part, layer, attention_branch_forward);
    each_part(part, layer, mlp_branch_forward);
}

// The end of a chunk: its output, which the last block's sum completes, and after the last chunk logits, this rank's
// slice of the vocabulary, and losses. A text that is generated has logits of the token that is decoded, no losses.
static void head_forward(const Pass* pass, int layer) {
    const Activations* acts = pass->acts;
    const HeadActivations* h = acts->head;
    if (!h) {
        const ResidualSum sum = await_branch(pass, chunk_output(acts));
        residual_forward(sum.out, sum.x, sum.branch, sum.bias, acts->R, pass->stage->model.C);
        return;
    }
    await_sum_and_norm(pass, layer, FINAL_NORM_W);
    if (acts->keeps_kv) return;
    column_parallel_forward(pass, h->logits, NULL, h->final_norm, layer, lm_head_kind(pass->stage));
    if (!acts->decodes) vocab_parallel_cross_entropy(pass);
}

// The forward pass of one chunk. The first one starts from acts->inputs, any other one from acts->x[0]. After the last
// one the head's losses, -log p(target) of every token, are on each of its tensor ranks.
static void chunk_forward(Stage* stage, Activations* acts) {
    const Chunk* chunk = acts->chunk;
    const Pass pass = {stage, acts, NULL, 0, false, false}; // forward: no gradients
    Pass part[HALVES];                                      // the micro-batch's halves, or it alone
    pass_parts(part, &pass);
    if (chunk->first) each_part(part, -1, vocab_parallel_embedding_forward);
    for (int l = 0; l < chunk->layers; l++) block_forward(part, chunk->begin + l);
    each_part(part, -1, head_forward);
}

// ----------------------------------------------------------------------------------------------------------------
// Backward. A pass computes DGRAD, WGRAD (parallel/stage.h) or both: then WGRAD is computed while DGRAD's sum over
// the tensor ranks is in flight. g->dx (R, C), the gradient of the residual stream, goes down through the
// branches: each adds its share,
//
//     dx += norm'(f'(dx W2) W1)      of a branch f(norm(x) W1^T) W2^T.

// The last step of a branch: norm' gets acts->dnorm, once the tensor ranks have summed it. norm2's also makes the
// gradients of the projections' biases. A bias is added to every row of the stream, so its gradient is the sum of the
// rows of dx: the mlp's of dx before norm2's share, attention's of dx after it, the gradient of middle.
static void await_sum_and_norm_backward(const Pass* pass, int layer, TensorKind w, TensorKind b) {
    const Stage* stage = pass->stage;
    Activations* acts = pass->acts;
    const Norm n = norm_of(pass, layer, w);
    NormGradients d = {vector_gradient(pass, layer, w), vector_gradient(pass, layer, b), NULL, NULL};
    if (w == NORM2_W) d.before = vector_gradient(pass, layer, MLP_PROJ_B);
    if (w == NORM2_W) d.after = vector_gradient(pass, layer, ATTN_PROJ_B);
    comm_wait(&acts->sum);
    norms[stage->model.norm].backward(&n, pass->g->dx, d, acts->dnorm, acts->R, stage->model.C);
}

// A branch's backward pass: computes those of its gradients that are in the set `steps`.
typedef void Branch(const Pass* pass, int layer, int steps);

static void mlp_branch_backward(const Pass* pass, int layer, int steps) {
    const LayerActivations* y = layer_acts(pass->acts, layer);
    const LayerGradients* d = layer_grads(pass, layer);
    if (steps & DGRAD_BRANCH) {
        row_parallel_backward_input(pass, d->dfc, y->fc, d->dout, layer, MLP_PROJ_W); // proj and act
        column_parallel_backward_input(pass, d->dfc, layer, FC_W);
    }
    if (steps & WGRAD) {
        row_parallel_backward_weight(pass, d->dout, y->act, layer, MLP_PROJ_W);
        column_parallel_backward_weight(pass, d->dfc, y->norm2, layer, FC_W);
    }
    if (steps & DGRAD_NORM) {
        await_sum_and_norm_backward(pass, layer, NORM2_W, NORM2_B);
        row_parallel_output_grad_start(pass, layer); // for attention, the branch below
    }
}

static void attention_branch_backward(const Pass* pass, int layer, int steps) {
    const Stage* stage = pass->stage;
    const LayerActivations* y = layer_acts(pass->acts, layer);
    const LayerGradients* d = layer_grads(pass, layer);
    const Heads h = heads_of(pass);
    if (steps & DGRAD_BRANCH) {
        row_parallel_backward_input(pass, stage->dact, NULL, d->dmiddle, layer, ATTN_PROJ_W);
        attention_backward(d->dqkv, stage->dact, y->qkv, y->attention, y->lse, h);
        if (stage->rope) rope_backward(d->dqkv, stage->rope, h.B, h.T, h.NH + h.NKV, h.HS, qkv_size(stage));
        column_parallel_backward_input(pass, d->dqkv, layer, QKV_W);
    }
    if (steps & WGRAD) {
        row_parallel_backward_weight(pass, d->dmiddle, y->attention, layer, ATTN_PROJ_W);
        column_parallel_backward_weight(pass, d->dqkv, y->norm1, layer, QKV_W);
    }
    if (steps & DGRAD_NORM) {
        await_sum_and_norm_backward(pass, layer, NORM1_W, NORM1_B);
        row_parallel_output_grad_start(pass, layer - 1); // for the mlp of the block below
    }
}

// dx begins here: it becomes the gradient of the last block's output.
static void head_branch_backward(const Pass* pass, int layer, int steps) {
    const HeadActivations* h = pass->acts->head;
    const TensorKind head = lm_head_kind(pass->stage);
    if (steps & DGRAD_BRANCH) {
        vocab_parallel_cross_entropy_backward(pass);
        column_parallel_backward_input(pass, h->logits, layer, head);
    }
    if (steps & WGRAD) column_parallel_backward_weight(pass, h->logits, h->final_norm, layer, head);
    if (steps & DGRAD_NORM) {
        device_zero(pass->g->dx, (size_t)pass->acts->R * pass->stage->model.C * sizeof(floatX));
        await_sum_and_norm_backward(pass, layer, FINAL_NORM_W, FINAL_NORM_B);
    }
}

// Steps of a branch on all parts in turn, those that the pass computes.
static void branch_steps(const Pass* part, int layer, Branch* branch, int steps) {
    const int parts = part->acts->parts, computed = steps & part->computes;
    for (int i = 0; i < parts; i++) branch(&part[i], layer, computed);
}

// WGRAD hides a sum over the tensor ranks, so it follows the step that starts it: DGRAD_BRANCH, or in a CAAT-Net, which
// sums the residual stream's gradient (row_parallel_output_grad_start), DGRAD_NORM.
static void branch_backward(const Pass* part, int layer, Branch* branch) {
    const int before = is_caat(part->stage) ? DGRAD : DGRAD_BRANCH;
    branch_steps(part, layer, branch, before);
    branch_steps(part, layer, branch, WGRAD);
    branch_steps(part, layer, branch, DGRAD & ~before);
}

// The head's backward pass, in the order of its buckets: the head's matrix, then the final norm.
static void head_backward(const Pass* part) {
    const TensorKind head = lm_head_kind(part->stage);
    branch_steps(part, -1, head_branch_backward, DGRAD_BRANCH);
    grad_bucket_begin(part, -1, head);
    branch_steps(part, -1, head_branch_backward, WGRAD);
    if (!has_two_embedding_grads(part->stage)) grad_bucket_ready(part, -1, head); // else the embedding's part follows
    grad_bucket_begin(part, -1, FINAL_NORM_W);
    branch_steps(part, -1, head_branch_backward, DGRAD_NORM);
    grad_bucket_ready(part, -1, FINAL_NORM_W);
}

// Recompute full: the forward pass again, by the same operations: the bits are the same.
static void attention_branch_recompute(const Pass* pass, int layer) {
    // a sum of the gradient uses acts->sum and acts->shared, which the forward pass needs
    row_parallel_output_grad_finish(pass, layer_grads(pass, layer)->dout);
    attention_branch_forward(pass, layer);
}

// Recompute selective: the outputs of the norms and of the activation, which only WGRAD reads; their inputs were kept.
static void norms_and_act_recompute(const Pass* pass, int layer) {
    const LayerActivations* y = layer_acts(pass->acts, layer);
    const Stage* stage = pass->stage;
    await_sum_and_norm(pass, layer, NORM1_W); // no sum is pending: the norm alone
    await_sum_and_norm(pass, layer, NORM2_W);
    activations[stage->model.activation].forward(y->act, y->fc, pass->acts->N, stage->layout.F);
}

// The backward pass of a block. First it computes again what the forward pass did not keep; full never comes with a
// schedule that separates DGRAD and WGRAD. NORM1_W stands for the bucket of all tensors of the block.
static void block_backward(const Pass* part, int layer) {
    const Recompute recompute = part->stage->layout.parallel.recompute;
    grad_bucket_begin(part, layer, NORM1_W);
    if (recompute == RECOMPUTE_FULL) {
        each_part(part, layer, attention_branch_recompute);
        each_part(part, layer, mlp_branch_forward);
    }
    if (recompute == RECOMPUTE_SELECTIVE && (part->computes & WGRAD)) each_part(part, layer, norms_and_act_recompute);
    branch_backward(part, layer, mlp_branch_backward);
    branch_backward(part, layer, attention_branch_backward);
    grad_bucket_ready(part, layer, NORM1_W);
}

// The backward pass of one chunk: both gradients or one of them. The last chunk of the model starts from the losses,
// any other one from g->dx, the gradient of its output; at the end g->dx is the gradient of its input.
static void chunk_backward(const Pass* pass) {
    const Chunk* chunk = pass->acts->chunk;
    const int end = chunk->begin + chunk->layers;
    Pass part[HALVES]; // the micro-batch's halves, or it alone
    pass_parts(part, pass);
    if (chunk->last) head_backward(part);
    if (pass->computes & DGRAD) each_part(part, end - 1, row_parallel_output_grad_start); // for the last mlp
    for (int l = end - 1; l >= chunk->begin; l--) block_backward(part, l);
    if (chunk->first && (pass->computes & WGRAD)) vocab_parallel_embedding_backward(part);
}
