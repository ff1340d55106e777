/*
train_gpt.cu: trains a GPT in tensor, pipeline and data parallel. The file to read first, from top to bottom:

    1. a stage       the part of the model that this process holds: forward and backward pass, update
    2. the step      the schedule's actions, executed
    3. around it     validation, sampling, what people and programs read, checkpoints
    4. main

A process is one rank of a mesh t x p x d. parallel.h says which slices of which tensors it holds, schedule.h in which
order it works, stage.h which memory it has for that, exchange.h what it says to the others, sites.h what sites do that do
not wait for each other; a process started alone is the mesh 1 x 1 x 1.

The same text runs on CPU cores and on GPUs. kernels/kernels.h brings the kernels, device.h memory. Parameters and
activations are floatX, float32 on the CPU and by default bf16 on a GPU; gradients of parameters, the optimizer's memory,
statistics of rows and losses are float32 everywhere. What a kernel makes is read by the host only after device_to_host.

Notation: B sequences of T tokens in a micro-batch, N = B T rows; C, F, NH, NKV, HS, V as in model.h. NH, NKV, F and V of
a layout are this rank's share. R rows of the residual stream: N, or N / t with --sequence-parallel.

A rank of a CAAT-Net (--sync) may hold several states (parallel.h), each with a residual stream and a share of every matrix of
its own. They lie one behind the other, so for all that works on rows, heads or numbers they are more sequences: B counts
those of all states, N their rows. Only what multiplies by a matrix, and what meets tokens, goes state by state.
*/
#include "alike.h"
#include "base.h"
#include "checkpoint.h"
#include "collective.h"
#include "comm.h"
#include "cores.h"
#include "dataloader.h"
#include "exchange.h"
#include "json.h"
#include "kernels/kernels.h"
#include "model.h"
#include "parallel.h"
#include "rounds.h"
#include "schedule.h"
#include "settings.h"
#include "sites.h"
#include "stage.h"
#include "tokenizer.h"
#include "trace.h"

// ================================================================================================================
// 1. A stage: the blocks that this process holds. What memory it has, Stage and all that is in it, is in stage.h.

// ----------------------------------------------------------------------------------------------------------------
// Forward. What stands between two lines of sum_rows and gather_rows is one rank's share of a block.

// Says what a holds from now on: micro-batch k in a chunk, B sequences of T tokens in each state, or (position >= 0) one
// token at that position.
static void activations_shape(Activations* a, const Stage* s, int chunk, int k, int B, int T, int position) {
    a->chunk = &s->layout.chunk[chunk];
    a->head = a->chunk->last ? &s->head[k % s->heads] : NULL;
    a->B = s->layout.states * B, a->T = T, a->N = a->B * T, a->tokens = B * T, a->position = position;
    a->split = splits_rows(s) && position < 0;
    a->R = a->split ? a->N / s->layout.mesh.t : a->N;
}

// What the forward pass keeps of a block, and the residual stream before it; layers are numbered over all chunks of the
// stage. After the last block of the chunk it is the stream at its number + 1.
static LayerActivations* kept(const Activations* a, int layer) { return &a->layers[layer - a->chunk->begin]; }

static floatX* stream(const Activations* a, int layer) { return a->x[layer - a->chunk->begin]; }

static floatX* chunk_output(const Activations* a) { return a->x[a->chunk->layers]; }

// Where a partial sum of all rows is computed before sum_rows puts this rank's rows of the sum into mine.
static floatX* partial_rows(const Stage* s, const Activations* a, floatX* mine) { return a->split ? s->partial : mine; }

// All rows of mine.
static const floatX* all_rows(const Stage* s, const Activations* a, const floatX* mine) {
    if (!a->split) return mine;
    gather_rows(s->groups, true, s->gathered, mine, (int64_t)a->N * s->model.C);
    return s->gathered;
}

// out (N, OC) = x W^T + bias, state by state.
static void linear(const Stage* s, const Activations* a, floatX* out, const floatX* x, int layer, TensorKind w,
                   TensorKind bias, int C, int OC) {
    for (int i = 0; i < s->layout.states; i++) {
        const int64_t row = (int64_t)i * a->tokens;
        linear_forward(out + row * OC, x + row * C, weight_of(s, layer, w, i),
                       bias == NO_TENSOR ? NULL : weight_of(s, layer, bias, i), a->tokens, C, OC);
    }
}

// CAAT-Net: z (N, C) = the sum of x over all states, on all ranks, where channels are shared, and each state's own x, scaled,
// where they are not. The same on both ways; on the way back in float32, if not told otherwise, because what is summed there
// is not a branch but the whole gradient of the residual stream, once for each branch. z may be x.
static void sum_shared(const Stage* s, const Activations* a, floatX* z, const floatX* x, bool back) {
    const Sync* sync = &s->layout.mesh.sync;
    const int states = s->layout.states, C = s->model.C, S = s->layout.shared;
    const float factor = (float)sync_factor(sync);
    const int64_t n = (int64_t)a->tokens * S;
    if (back && !sync->narrow) {
        sync_pack(s->shared, x, states, a->tokens, C, S);
        comm_all_reduce(&s->groups->tensor, s->shared, n, COMM_FLOAT, COMM_SUM);
        sync_unpack(z, s->shared, x, factor, states, a->tokens, C, S);
    } else {
        floatX* shared = (floatX*)s->shared;
        sync_pack(shared, x, states, a->tokens, C, S);
        comm_all_reduce(&s->groups->tensor, shared, n, COMM_FLOATX, COMM_SUM);
        sync_unpack(z, shared, x, factor, states, a->tokens, C, S);
    }
}

// What a row-parallel layer adds to the residual stream, from this rank's part of it: the sum over the ranks, or of what
// is shared. mine may be partial.
static void sum_branch(const Stage* s, const Activations* a, floatX* mine, floatX* partial) {
    if (is_caat(s))
        sum_shared(s, a, mine, partial, false);
    else
        sum_rows(s->groups, a->split, mine, partial, (int64_t)a->N * s->model.C);
}

// Its gradient, of all rows, from that of the residual stream.
static void branch_gradient(const Stage* s, const Activations* a, floatX* all, const floatX* dx) {
    if (is_caat(s))
        sum_shared(s, a, all, dx, true);
    else
        gather_rows(s->groups, a->split, all, dx, (int64_t)a->N * s->model.C);
}

// The gradient of a column-parallel layer's input, from this rank's part of it: the sum over the ranks; every state of a
// CAAT-Net has an input of its own.
static CommRequest sum_input_start(const Stage* s, const Activations* a, floatX* mine, floatX* partial) {
    if (is_caat(s)) return no_request();
    return sum_rows_start(s->groups, a->split, mine, partial, (int64_t)a->N * s->model.C);
}

// One of the model's norms, LayerNorm or RMSNorm: where its results go, and its weights. out = NULL: none.
typedef struct {
    floatX* out;
    float *mean, *rstd;
    const floatX *w, *b;
} Norm;

static Norm norm1_of(const Stage* s, const Activations* a, int layer) {
    const LayerActivations* y = kept(a, layer);
    const Norm n = {y->norm1, y->mean1, y->rstd1, weight(s, layer, NORM1_W), weight(s, layer, NORM1_B)};
    return n;
}

static Norm norm2_of(const Stage* s, const Activations* a, int layer) {
    const LayerActivations* y = kept(a, layer);
    const Norm n = {y->norm2, y->mean2, y->rstd2, weight(s, layer, NORM2_W), weight(s, layer, NORM2_B)};
    return n;
}

// The norm that reads the residual stream behind a block: the next block's first one, the final one, or none where the
// stream goes on to another chunk.
static Norm norm_behind(const Stage* s, const Activations* a, int layer) {
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
    const LayerActivations* y = kept(a, layer);
    const int F = s->layout.F;
    if (s->model.arch == ARCH_GPT2)
        gelu_forward(y->act, y->fc, (int64_t)a->N * F);
    else
        swiglu_forward(y->act, y->fc, a->N, F);
}

// Rotary positions, then attention: of whole sequences, or of one new token to those in the cache.
static void attention_of_heads(const Stage* s, Activations* a, int layer) {
    const int NH = s->layout.NH, NKV = s->layout.NKV, HS = model_head_size(&s->model);
    const LayerActivations* y = kept(a, layer);
    const bool decodes = a->position >= 0;
    if (s->rope) {
        const float* table = s->rope + (decodes ? (int64_t)a->position * HS : 0);
        rope_forward(y->qkv, table, a->B, a->T, NH + NKV, HS, qkv_size(s));
    }
    for (int i = 0; i < s->layout.states && decodes; i++)
        attention_decode(y->attention + (int64_t)i * NH * HS,
                         s->cache + ((int64_t)layer * s->layout.states + i) * cache_size(s),
                         y->qkv + (int64_t)i * qkv_size(s), a->position, NH, NKV, HS);
    if (!decodes) attention_forward(y->attention, y->lse, y->qkv, a->B, a->T, NH, NKV, HS);
}

// fc = W norm2 + bias, and its activation function.
static void fc_forward(const Stage* s, Activations* a, int layer) {
    const LayerActivations* y = kept(a, layer);
    const floatX* x = all_rows(s, a, y->norm2);
    const int C = s->model.C, F = s->layout.F, states = s->layout.states;
    for (int i = 0; i < states && s->model.arch == ARCH_GPT2; i++) {
        const int64_t row = (int64_t)i * a->tokens;
        linear_gelu_forward(y->act + row * F, y->fc + row * F, x + row * C, weight_of(s, layer, FC_W, i),
                            weight_of(s, layer, FC_B, i), a->tokens, C, F);
    }
    if (s->model.arch == ARCH_GPT2) return;
    linear(s, a, y->fc, x, layer, FC_W, FC_B, C, fc_size(s));
    activation_forward(s, a, layer);
}

// middle = x[layer] + attention(norm1), norm1 being there; then fc = W norm2(middle) and its activation function:
// everything that the backward pass of a block needs.
static void block_forward_inner(const Stage* s, Activations* a, int layer) {
    const int C = s->model.C;
    const LayerActivations* y = kept(a, layer);
    floatX* partial = partial_rows(s, a, s->branch);

    linear(s, a, y->qkv, all_rows(s, a, y->norm1), layer, QKV_W, QKV_B, C, qkv_size(s));
    attention_of_heads(s, a, layer);
    linear(s, a, partial, y->attention, layer, ATTN_PROJ_W, NO_TENSOR, heads_size(s), C);
    sum_branch(s, a, s->branch, partial);
    residual_norm_forward(s, norm2_of(s, a, layer), y->middle, stream(a, layer), s->branch,
                          weight(s, layer, ATTN_PROJ_B), a->R);
    fc_forward(s, a, layer);
}

// x[layer + 1] = middle + mlp(norm2(middle)), and the norm that reads it.
static void block_forward(const Stage* s, Activations* a, int layer) {
    const int C = s->model.C;
    const LayerActivations* y = kept(a, layer);
    floatX* partial = partial_rows(s, a, s->branch);
    block_forward_inner(s, a, layer);
    linear(s, a, partial, y->act, layer, MLP_PROJ_W, NO_TENSOR, s->layout.F, C);
    sum_branch(s, a, s->branch, partial);
    residual_norm_forward(s, norm_behind(s, a, layer), stream(a, layer + 1), y->middle, s->branch,
                          weight(s, layer, MLP_PROJ_B), a->R);
}

// A rank has the rows of its tokens and zeros for the others': the sum over the ranks is the embedding. All states begin
// with it.
static void embed(const Stage* s, Activations* a) {
    const int C = s->model.C, states = s->layout.states, N = a->tokens;
    floatX *partial = partial_rows(s, a, a->x[0]), *x = a->x[0];
    if (states > 1) partial = x = s->branch;
    embedding_forward(partial, a->inputs, weight(s, -1, WTE), N, C, s->layout.first_token, states * s->layout.V);
    sum_rows(s->groups, a->split, x, partial, (int64_t)N * C);
    if (s->model.arch == ARCH_GPT2) {
        const int64_t first = a->position >= 0 ? a->position : a->split ? (int64_t)s->layout.mesh.tensor * a->R : 0;
        position_forward(x, weight(s, -1, WPE), first, a->R / states, a->position >= 0 ? s->T : a->T, C);
    }
    if (states > 1) sync_unpack(a->x[0], x, x, 1.0f, states, N, C, C);
}

// Where a state's logits begin.
static floatX* logits_of(const Stage* s, const Activations* a, int state) {
    return a->head->logits + (int64_t)state * a->tokens * s->layout.V;
}

// logits = final norm W^T: this rank's share of the vocabulary; every state makes its own, from its own stream.
static void head_forward(const Stage* s, Activations* a) {
    const HeadActivations* h = a->head;
    linear(s, a, h->logits, all_rows(s, a, h->final_norm), -1, head_kind(s), NO_TENSOR, s->model.C, s->layout.V);
}

// Where one rank has the whole vocabulary in one piece and a gradient is wanted, the logits become it at once.
static bool makes_gradient_of_logits(const Stage* s, const Activations* a) {
    return mesh_cuts(&s->layout.mesh) == 1 && a->scale != 0;
}

// Vocabulary parallel: three numbers a row go between the ranks, the logits never do. The states of a rank first put theirs
// together, in the memory of the first.
static void crossentropy(const Stage* s, Activations* a) {
    const int N = a->tokens, V = s->layout.V;
    const Layout* layout = &s->layout;
    Comm* tensor = &s->groups->tensor;
    HeadActivations* h = a->head;
    if (makes_gradient_of_logits(s, a)) {
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
                         layout_first_token(layout, i));
        if (i > 0) accumulate(h->row_sum, sum, 2 * (int64_t)N);
    }
    comm_all_reduce(tensor, h->row_sum, 2 * (int64_t)N, COMM_FLOAT, COMM_SUM);
    h->target_logit = h->row_sum + N;
    crossentropy_loss(h->losses, h->row_sum, h->target_logit, N);
}

static void blocks_forward(const Stage* s, Activations* a) {
    norm_forward(s, norm1_of(s, a, a->chunk->begin), a->x[0], a->R);
    for (int l = 0; l < a->chunk->layers; l++) block_forward(s, a, a->chunk->begin + l);
}

// The forward pass of one chunk. The first one starts from a->inputs, any other one from a->x[0]; after the last one
// the head's losses are -log p(target) of every token, on each of its tensor ranks.
static void chunk_forward(const Stage* s, Activations* a) {
    if (a->chunk->first) embed(s, a);
    blocks_forward(s, a);
    if (!a->chunk->last) return;
    head_forward(s, a);
    crossentropy(s, a);
}

// ----------------------------------------------------------------------------------------------------------------
// Backward. The input half carries the gradient through the stage, block by block; the weight half turns the gradients
// of the linear layers' outputs, kept in g, into gradients of their weights, which add up over micro-batches. Done
// together, the weight half works while the input half's sum over the tensor ranks is on its way.

enum { INPUT_HALF = 1, WEIGHT_HALF = 2, BOTH_HALVES = 3 };

typedef struct {
    Stage* s;
    Activations* a;
    Gradients* g;
    int halves;
    bool reduce; // the gradients are complete after this pass: buckets go to the data group as they get ready
} Backward;

// Buckets of gradients (exchange.h): begin before something is added, end when nothing more will be.
static void gradients_begin(const Backward* w, int layer, TensorKind kind) {
    bucket_begin(&w->s->grads, &w->s->layout, layout_slice(&w->s->layout, layer, kind)->bucket);
}

static void gradients_end(const Backward* w, int layer, TensorKind kind) {
    GradientBuckets* grads = &w->s->grads;
    const Layout* layout = &w->s->layout;
    if (!w->reduce) return;
    bucket_end(grads, w->s->groups, layout, layout_slice(layout, layer, kind)->bucket);
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

// The gradients of a linear layer, state by state: dx (N, C) = dout W.
static void linear_input(const Stage* s, const Activations* a, floatX* dx, const floatX* dout, int layer, TensorKind w,
                         int C, int OC) {
    for (int i = 0; i < s->layout.states; i++) {
        const int64_t row = (int64_t)i * a->tokens;
        linear_backward_input(dx + row * C, dout + row * OC, weight_of(s, layer, w, i), a->tokens, C, OC);
    }
}

// dW += dout^T x and, where there is a bias, db += sum of the rows of dout.
static void weight_gradients(const Stage* s, const Activations* a, int layer, TensorKind w, TensorKind b,
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

// The bias of a row-parallel layer. That of a CAAT-Net is added to every state, behind the sums: its gradient is the sum of
// those of all states, and is taken where these are at hand.
static TensorKind bias_behind_sum(const Stage* s, TensorKind bias) { return is_caat(s) ? NO_TENSOR : bias; }

static void bias_of_states(const Stage* s, const Activations* a, int layer, TensorKind bias, const floatX* dx) {
    if (is_caat(s) && s->model.arch == ARCH_GPT2) linear_backward_bias(gradient(s, layer, bias), dx, a->N, s->model.C);
}

// dfc, the gradient before the activation function, from dout, that of the mlp's result.
static void activation_backward(const Stage* s, const Activations* a, LayerGradients* d, const LayerActivations* y,
                                int layer) {
    const int C = s->model.C, F = s->layout.F, states = s->layout.states;
    for (int i = 0; i < states && s->model.arch == ARCH_GPT2; i++) {
        const int64_t row = (int64_t)i * a->tokens;
        linear_gelu_backward_input(d->dfc + row * F, s->dact + row * F, d->dout + row * C,
                                   weight_of(s, layer, MLP_PROJ_W, i), y->fc + row * F, a->tokens, F, C);
    }
    if (s->model.arch == ARCH_GPT2) return;
    linear_input(s, a, s->dact, d->dout, layer, MLP_PROJ_W, F, C);
    swiglu_backward(d->dfc, s->dact, y->fc, a->N, F);
}

static void mlp_backward(const Backward* w, int layer) {
    const Stage* s = w->s;
    const Activations* a = w->a;
    const int C = s->model.C;
    const LayerActivations* y = kept(a, layer);
    LayerGradients* d = &w->g->layers[layer - a->chunk->begin];
    CommRequest sum = no_request();
    if (w->halves & INPUT_HALF) {
        floatX* partial = partial_rows(s, a, s->dnorm);
        branch_gradient(s, a, d->dout, w->g->dx);
        bias_of_states(s, a, layer, MLP_PROJ_B, w->g->dx);
        activation_backward(s, a, d, y, layer);
        linear_input(s, a, partial, d->dfc, layer, FC_W, C, fc_size(s));
        sum = sum_input_start(s, a, s->dnorm, partial);
    }
    if (w->halves & WEIGHT_HALF) {
        weight_gradients(s, a, layer, MLP_PROJ_W, bias_behind_sum(s, MLP_PROJ_B), d->dout, y->act, s->layout.F, C);
        weight_gradients(s, a, layer, FC_W, FC_B, d->dfc, all_rows(s, a, y->norm2), C, fc_size(s));
    }
    if (w->halves & INPUT_HALF) {
        comm_wait(&sum);
        norm_backward(s, w->g->dx, s->dnorm, y->middle, y->mean2, y->rstd2, layer, NORM2_W, NORM2_B, w->a->R);
    }
}

static void attention_block_backward(const Backward* w, int layer) {
    const Stage* s = w->s;
    const Activations* a = w->a;
    const int C = s->model.C, HS = model_head_size(&s->model), B = a->B, T = a->T;
    const int NH = s->layout.NH, NKV = s->layout.NKV, QKV = qkv_size(s);
    const LayerActivations* y = kept(a, layer);
    LayerGradients* d = &w->g->layers[layer - a->chunk->begin];
    CommRequest sum = no_request();
    if (w->halves & INPUT_HALF) {
        floatX* partial = partial_rows(s, a, s->dnorm);
        branch_gradient(s, a, d->dmiddle, w->g->dx);
        bias_of_states(s, a, layer, ATTN_PROJ_B, w->g->dx);
        linear_input(s, a, s->dact, d->dmiddle, layer, ATTN_PROJ_W, heads_size(s), C);
        attention_backward(d->dqkv, s->dact, y->qkv, y->attention, y->lse, B, T, NH, NKV, HS);
        if (s->rope) rope_backward(d->dqkv, s->rope, B, T, NH + NKV, HS, QKV);
        linear_input(s, a, partial, d->dqkv, layer, QKV_W, C, QKV);
        sum = sum_input_start(s, a, s->dnorm, partial);
    }
    if (w->halves & WEIGHT_HALF) {
        weight_gradients(s, a, layer, ATTN_PROJ_W, bias_behind_sum(s, ATTN_PROJ_B), d->dmiddle, y->attention,
                         heads_size(s), C);
        weight_gradients(s, a, layer, QKV_W, QKV_B, d->dqkv, all_rows(s, a, y->norm1), C, QKV);
    }
    if (w->halves & INPUT_HALF) {
        comm_wait(&sum);
        norm_backward(s, w->g->dx, s->dnorm, stream(a, layer), y->mean1, y->rstd1, layer, NORM1_W, NORM1_B, a->R);
    }
}

// What the forward pass did not keep: the same operations on the same numbers, so the same bits.
static void block_recompute(const Stage* s, Activations* a, int layer, int halves) {
    const Recompute recompute = s->layout.mesh.recompute;
    const bool selective = recompute == RECOMPUTE_SELECTIVE && (halves & WEIGHT_HALF); // inputs of matrices
    if (!selective && recompute != RECOMPUTE_FULL) return;
    norm_forward(s, norm1_of(s, a, layer), stream(a, layer), a->R);
    if (recompute == RECOMPUTE_FULL) {
        block_forward_inner(s, a, layer);
    } else {
        norm_forward(s, norm2_of(s, a, layer), kept(a, layer)->middle, a->R);
        activation_forward(s, a, layer);
    }
}

static void block_backward(const Backward* w, int layer) {
    gradients_begin(w, layer, NORM1_W);
    block_recompute(w->s, w->a, layer, w->halves);
    mlp_backward(w, layer);
    attention_block_backward(w, layer);
    if (w->halves & WEIGHT_HALF) gradients_end(w, layer, NORM1_W);
}

// Starts the gradient: logits become d(sum of losses * scale) / d(logits), dx the gradient of the last block's output.
static void head_backward(const Backward* w) {
    const Stage* s = w->s;
    Activations* a = w->a;
    const HeadActivations* h = a->head;
    const int C = s->model.C, V = s->layout.V;
    CommRequest sum = no_request();
    if (w->halves & INPUT_HALF) {
        floatX* partial = partial_rows(s, a, s->dnorm);
        for (int i = 0; i < s->layout.states && !makes_gradient_of_logits(s, a); i++)
            crossentropy_backward(logits_of(s, a, i), h->row_max, h->row_sum, a->targets, a->scale, a->tokens,
                                  layout_tokens(&s->layout, i), V, layout_first_token(&s->layout, i));
        linear_input(s, a, partial, h->logits, -1, head_kind(s), C, V);
        sum = sum_input_start(s, a, s->dnorm, partial);
    }
    if (w->halves & WEIGHT_HALF) {
        gradients_begin(w, -1, head_kind(s));
        weight_gradients(s, a, -1, head_kind(s), NO_TENSOR, h->logits, all_rows(s, a, h->final_norm), C, V);
        if (!has_two_gradients(s)) gradients_end(w, -1, head_kind(s));
    }
    if (w->halves & INPUT_HALF) {
        comm_wait(&sum);
        gradients_begin(w, -1, FINAL_NORM_W);
        device_zero(w->g->dx, (size_t)a->R * C * sizeof(floatX));
        norm_backward(s, w->g->dx, s->dnorm, chunk_output(a), h->final_mean, h->final_rstd, -1, FINAL_NORM_W,
                      FINAL_NORM_B, a->R);
    }
    if (w->halves & WEIGHT_HALF) gradients_end(w, -1, FINAL_NORM_W);
}

// CAAT-Net: all states began with the same numbers, so the gradient of these is the sum of theirs, of all channels and over
// all ranks: (tokens, C), in scratch memory.
static const floatX* sum_states(const Stage* s, const Activations* a, const floatX* dx) {
    const int states = s->layout.states, C = s->model.C;
    const int64_t n = (int64_t)a->tokens * C;
    floatX* narrow = s->branch;
    if (s->layout.mesh.sync.narrow) {
        sync_pack(narrow, dx, states, a->tokens, C, C);
        comm_all_reduce(&s->groups->tensor, narrow, n, COMM_FLOATX, COMM_SUM);
    } else {
        sync_pack(s->shared, dx, states, a->tokens, C, C);
        comm_all_reduce(&s->groups->tensor, s->shared, n, COMM_FLOAT, COMM_SUM);
        sync_unpack(narrow, s->shared, narrow, 1.0f, 1, a->tokens, C, C);
    }
    return narrow;
}

// One matrix that is embedding and head has two gradients, which add up over the micro-batches in buffers of their own
// and are added when both are complete: here, or, where the two uses lie on two stages, between them (buckets_tie). So
// every pipeline adds in the same order.
static void embed_backward(const Backward* w) {
    const Stage* s = w->s;
    const Activations* a = w->a;
    const int C = s->model.C, V = s->layout.states * s->layout.V;
    const floatX* dx = is_caat(s) ? sum_states(s, a, w->g->dx) : w->g->dx;
    if (s->model.arch == ARCH_GPT2) {
        const int64_t first = a->split ? (int64_t)s->layout.mesh.tensor * a->R : 0;
        gradients_begin(w, -1, WPE);
        position_backward(gradient(s, -1, WPE), dx, first, a->R / s->layout.states, a->T, C);
        gradients_end(w, -1, WPE);
    }
    gradients_begin(w, -1, WTE);
    float *dwte = gradient(s, -1, WTE), *sum = has_two_gradients(s) ? s->grad_embedding : dwte;
    embedding_backward(sum, all_rows(s, a, dx), a->inputs, a->tokens, C, s->layout.first_token, V);
    if (has_two_gradients(s) && w->reduce) accumulate(dwte, s->grad_embedding, (int64_t)V * C);
    gradients_end(w, -1, WTE);
}

// The backward pass of one chunk: both halves or one of them. The last chunk of the model starts from the losses, any
// other one from g->dx, the gradient of its output; afterwards g->dx is the gradient of its input.
static void chunk_backward(const Backward* w) {
    const Chunk* chunk = w->a->chunk;
    if (chunk->last) head_backward(w);
    for (int l = chunk->layers - 1; l >= 0; l--) block_backward(w, chunk->begin + l);
    if (chunk->first && (w->halves & WEIGHT_HALF)) embed_backward(w);
}

// ----------------------------------------------------------------------------------------------------------------
// Update

// The part [*from, *to) of a slice that this rank updates: all of it, or with ZeRO what lies in its share of the bucket.
static void updated_part(const Stage* s, const Slice* slice, int64_t* from, int64_t* to) {
    const Layout* layout = &s->layout;
    *from = slice->offset, *to = slice->offset + slice_elements(slice);
    if (!layout->mesh.zero) return;
    const int64_t n = bucket_share(layout, slice->bucket);
    const int64_t begin = layout->bucket[slice->bucket].offset + layout->mesh.data * n;
    *from = max_i64(*from, begin), *to = min_i64(*to, begin + n);
}

// Where element `at` of the parameters is found in gradients and moments: at the same place, or in a share.
static int64_t updated_place(const Stage* s, const Slice* slice, int64_t at) {
    const Layout* layout = &s->layout;
    if (!layout->mesh.zero) return at;
    const int b = slice->bucket;
    return bucket_share_offset(layout, b) + at -
           (layout->bucket[b].offset + layout->mesh.data * bucket_share(layout, b));
}

// The weights that an update changes, in float32: parameter number `from`, which lies at `at` where shares do.
static float* updated_weights(const Stage* s, int64_t from, int64_t at) {
    return HAS_MASTERS ? s->master + at : (float*)s->params + from;
}

// The way from where a gradient was computed to where it is used: `to` minus `from`, of n parameters; to = NULL: none. Of
// dc-s3gd from a site's own weights to the common point, of a late gradient from the weights before the last update.
typedef struct {
    const float *from, *to;
} Way;

static Way way_of_gradient(const Stage* s, int64_t from, int64_t at) {
    Way way = {NULL, NULL};
    if (s->rounds.compensation == 0) return way;
    if (s->rounds.mode == DP_DC_S3GD) way.from = s->sites.own + from, way.to = s->sites.base + from;
    if (s->before) way.from = s->before + at, way.to = updated_weights(s, from, at);
    return way;
}

// Sum of squares of the gradient of each tensor in a bucket, and of its delay compensation with lambda = 1, into s->sums:
// this rank's contribution, such that the sum over all ranks of a site counts every parameter once (with ZeRO: that over all
// ranks).
static void gradient_squares(const Stage* s, int bucket) {
    const Mesh* mesh = &s->layout.mesh;
    const Bucket* b = &s->layout.bucket[bucket];
    for (int i = b->first; i < b->first + b->slices; i++) {
        const Slice* slice = &s->layout.slices[i];
        int64_t from, to;
        updated_part(s, slice, &from, &to);
        if (!slice_is_owned(slice, &s->layout) || (!mesh->zero && mesh_site_place(mesh) > 0) || from >= to) continue;
        const int64_t at = updated_place(s, slice, from);
        const Way way = way_of_gradient(s, from, at);
        sum_of_squares(s->sums + slice->index, buckets_due(&s->grads) + at, to - from);
        if (way.to)
            delay_squares(s->sums + s->layout.tensors + 1 + slice->index, buckets_due(&s->grads) + at, way.to, way.from,
                          to - from);
    }
}

// Euclidean norm of the whole gradient from the squares summed over all ranks, added in the model's order, so that it does
// not depend on p. *not_finite: the number of a tensor whose gradient is not finite, -1 if all are.
static double gradient_norm(const double* squares, int tensors, int* not_finite) {
    double total = 0;
    *not_finite = -1;
    for (int i = tensors - 1; i >= 0; i--) {
        if (!isfinite(squares[i])) *not_finite = i;
    }
    for (int i = 0; i < tensors; i++) total += squares[i];
    return sqrt(total);
}

// 16-bit parameters are rounded at random. Copies of a tensor on other ranks are rounded alike: by the tensor's name, the
// place in the slice, and the step.
static uint64_t rounding_key(const Slice* slice, const Settings* o) {
    return (uint64_t)o->seed ^ hash_string(slice->tensor.name);
}

// One step of the optimizer (AdamW, Loshchilov and Hutter 2019; or SGD with momentum) on n parameters of a slice, number
// `from` on, whose gradients and moments lie at `at`.
static void optimizer_step(const Stage* s, const Slice* slice, int64_t from, int64_t at, int64_t n, const Settings* o,
                           int64_t step, double lr, double grad_scale) {
    const float decay = slice->tensor.vector ? 0 : (float)o->weight_decay;
    const float* g = buckets_due(&s->grads) + at;
    float* master = HAS_MASTERS ? s->master + at : NULL;
    const uint64_t key = rounding_key(slice, o), first = (uint64_t)(from - slice->offset);
    if (o->optimizer == OPTIMIZER_SGD)
        sgd_update(s->params + from, master, g, s->moment1 + at, n, (float)lr, (float)o->beta1, decay, step,
                   (float)grad_scale, key, first);
    else
        adamw_update(s->params + from, master, g, s->moment1 + at, s->moment2 + at, n, (float)lr, (float)o->beta1,
                     (float)o->beta2, (float)o->eps, decay, step, (float)grad_scale, key, first);
}

// The update of what this rank updates of a chunk (-1: see Bucket); step counts from 1; grad_scale multiplies the gradient.
// First the gradient is compensated for its way to where it is used, where that is asked for; a site of dc-s3gd then goes
// on from the common point, and sends how far it goes.
static void chunk_update(Stage* s, int chunk, const Settings* o, int64_t step, double lr, double grad_scale) {
    const Layout* layout = &s->layout;
    for (int i = 0; i < layout->n; i++) {
        const Slice* slice = &layout->slices[i];
        int64_t from, to;
        updated_part(s, slice, &from, &to);
        if (from >= to || layout->bucket[slice->bucket].chunk != chunk) continue;
        const int64_t at = updated_place(s, slice, from), n = to - from;
        const Way way = way_of_gradient(s, from, at);
        const float lambda = s->lambda[slice->index];
        if (way.to && lambda > 0) delay_compensate(buckets_due(&s->grads) + at, way.to, way.from, lambda, n);
        float* weights = updated_weights(s, from, at);
        if (s->before) device_copy(s->before + at, weights, (size_t)n * sizeof(float));
        if (s->rounds.mode == DP_DC_S3GD) device_copy(weights, s->sites.base + from, (size_t)n * sizeof(float));
        optimizer_step(s, slice, from, at, n, o, step, lr, grad_scale);
    }
    if (layout->mesh.zero) buckets_gather(s->params, s->groups, layout, chunk);
    for (int b = 0; b < layout->buckets && s->rounds.mode == DP_DC_S3GD; b++) {
        if (layout->bucket[b].chunk == chunk) sites_send_change(&s->sites, b);
    }
}

// The rounded parameters that the update of this step left, again from their float32 values: so a run that is taken up
// again goes on with the same bits. changed (buckets): only where it is true; NULL: everywhere. values: float32 values that lie
// as s->master does.
static void round_values(const Stage* s, const float* values, const Settings* o, int64_t step, const bool* changed) {
    for (int i = 0; i < s->layout.n && HAS_MASTERS; i++) {
        const Slice* slice = &s->layout.slices[i];
        int64_t from, to;
        updated_part(s, slice, &from, &to);
        if (from >= to || (changed && !changed[slice->bucket])) continue;
        adamw_round(s->params + from, values + updated_place(s, slice, from), to - from, step, rounding_key(slice, o),
                    (uint64_t)(from - slice->offset));
    }
}

static void round_parameters(const Stage* s, const Settings* o, int64_t step) {
    if (step == 0) return; // no update has been yet
    round_values(s, s->master, o, step, NULL);
    for (int chunk = -1; chunk < s->layout.mesh.v && HAS_MASTERS && s->layout.mesh.zero; chunk++)
        buckets_gather(s->params, s->groups, &s->layout, chunk);
}

// At the begin of a step. Gradients that are used late are on their way: these are not touched.
static void stage_begin_gradients(Stage* s) {
    if (!s->grads.late) {
        device_zero(s->memory_grads.base, s->memory_grads.size);
        return;
    }
    buckets_turn(&s->grads, &s->layout);
    device_zero(s->grads.all, (size_t)s->layout.elements * sizeof(float));
    if (s->grad_embedding)
        device_zero(s->grad_embedding, (size_t)(s->layout.states * s->layout.V) * (size_t)s->model.C * sizeof(float));
}

// ----------------------------------------------------------------------------------------------------------------
// Where sites have weights of their own: after an update, and what is common

// Merges and sends what is due after the update of a step.
static void stage_round(Stage* s, const Settings* o, int64_t step) {
    if (!rounds_are_local(&s->rounds)) return;
    bool* changed = (bool*)checked_calloc((size_t)s->layout.buckets, sizeof(bool), "a round");
    if (s->rounds.mode == DP_DILOCO) sites_round(&s->sites, step, changed);
    if (s->rounds.mode == DP_DC_S3GD && s->rounds.delay == 0) sites_meet(&s->sites, changed);
    round_values(s, s->master, o, step, changed);
    free(changed);
}

// At the begin of a run, with its initial weights: they are common, and none were before.
static void stage_begin(const Stage* s) {
    if (rounds_are_local(&s->rounds)) sites_begin(&s->sites);
    for (int i = 0; i < s->layout.n && s->before; i++) {
        const Slice* slice = &s->layout.slices[i];
        int64_t from, to;
        updated_part(s, slice, &from, &to);
        const int64_t at = updated_place(s, slice, from);
        if (from < to) device_copy(s->before + at, updated_weights(s, from, at), (size_t)(to - from) * sizeof(float));
    }
}

// Waits for all that is on its way between sites.
static void stage_settle(Stage* s) {
    GradientBuckets* grads = &s->grads;
    if (rounds_are_local(&s->rounds)) sites_settle(&s->sites);
    if (!grads->late) return;
    buckets_turn(grads, &s->layout); // they are due in the next step, which begins with a turn: so turn back
    for (int chunk = -1; chunk < s->layout.mesh.v; chunk++) buckets_arrive(grads, s->groups, &s->layout, chunk);
    buckets_turn(grads, &s->layout);
}

// From here to stage_leave_common the parameters are those of the common point, for validation and samples. Own weights are
// kept where gradients are computed at other times.
static void stage_enter_common(Stage* s, const Settings* o, int64_t step) {
    if (!rounds_are_local(&s->rounds)) return;
    const size_t bytes = (size_t)s->layout.elements * sizeof(float);
    sites_settle(&s->sites);
    if (!HAS_MASTERS) device_copy(s->grads.all, s->sites.own, bytes);
    sites_common(&s->sites, HAS_MASTERS ? s->grads.all : (float*)s->params);
    round_values(s, s->grads.all, o, step, NULL);
}

static void stage_leave_common(Stage* s, const Settings* o, int64_t step) {
    if (!rounds_are_local(&s->rounds)) return;
    if (!HAS_MASTERS) device_copy(s->sites.own, s->grads.all, (size_t)s->layout.elements * sizeof(float));
    round_values(s, s->master, o, step, NULL);
}

// ================================================================================================================
// 2. The step

typedef struct {
    double tensor, pipeline, data; // bytes sent in a step, by all ranks together
    double far;                    // those of data that went to other sites
} Bytes;

// The tokens of the micro-batches of one run through a schedule: inputs of all, then targets of all.
typedef struct {
    int32_t *host, *device;
    int64_t tokens; // that there is room for, of either
} TokenBatch;

typedef struct {
    Settings settings;
    Comm world;
    Groups groups;
    CommPlace place;
    Stage stage;
    Schedule schedule;
    Plan sums[PLAN_KINDS];     // how the data group sums gradients and gathers parameters, where --allreduce says so
    Plan far_sums[PLAN_KINDS]; // the same of the far group
    TokenFiles train_files, val_files;
    DataLoader train, val;
    TokenBatch batch;
    Trace trace, *tracing;            // the second is NULL where nothing is recorded
    int64_t step;                     // updates done
    int64_t sequences;                // consumed: the position in the data
    double loss, grad_norm, val_loss; // of the last step; val_loss is NaN unless the step was validated
    double bubble; // of the last step: time without work / time with work, mean of all ranks; NaN where not measured
    Bytes bytes;   // of the last step
} Trainer;

// The sequences that a run through a schedule works on: micro-batch k of data rank r has the sequences from
// first + (r m + k) B on (training), or every d-th group of B (validation), but none from `end` on.
typedef struct {
    const Schedule* schedule;
    const DataLoader* loader;
    int64_t first, end;
    bool trains;
} Pass;

// A run through a schedule. What it adds up is in stage.sums.
typedef struct {
    double started, waited; // when it began; seconds spent waiting for other stages
    double grad_scale;      // of the update: clipping
} Progress;

static int64_t microbatch_first(const Trainer* t, const Pass* pass, int k) {
    const Mesh* mesh = &t->stage.layout.mesh;
    const int m = pass->schedule->plan.m;
    const int64_t number = pass->trains ? (int64_t)mesh->data * m + k : (int64_t)k * mesh->d + mesh->data;
    return pass->first + number * t->stage.B;
}

static int microbatch_sequences(const Trainer* t, const Pass* pass, int k) {
    return (int)min_i64(t->stage.B, pass->end - microbatch_first(t, pass, k));
}

static void batch_reserve(TokenBatch* batch, int64_t tokens) {
    if (batch->tokens >= tokens) return;
    const size_t bytes = 2 * (size_t)tokens * sizeof(int32_t), before = 2 * (size_t)batch->tokens * sizeof(int32_t);
    if (!DEVICE_IS_HOST) free(batch->host);
    device_free(batch->device, before);
    batch->device = (int32_t*)device_malloc(bytes, "the tokens of a batch");
    batch->host = DEVICE_IS_HOST ? batch->device : (int32_t*)checked_malloc(bytes, "the tokens of a batch");
    batch->tokens = tokens;
}

static void batch_free(TokenBatch* batch) {
    if (!DEVICE_IS_HOST) free(batch->host);
    device_free(batch->device, 2 * (size_t)batch->tokens * sizeof(int32_t));
    memset(batch, 0, sizeof *batch);
}

// Loads the tokens of all micro-batches of a pass, where the stage has the embedding or the head.
static void load_batch(Trainer* t, const Pass* pass) {
    const Stage* s = &t->stage;
    const int64_t room = (int64_t)pass->schedule->plan.m * s->B * s->T;
    Error error;
    if (!s->layout.first_stage && !s->layout.last_stage) return;
    batch_reserve(&t->batch, room);
    for (int k = 0; k < pass->schedule->plan.m; k++) {
        for (int b = 0; b < microbatch_sequences(t, pass, k); b++) {
            int32_t* inputs = t->batch.host + ((int64_t)k * s->B + b) * s->T;
            const uint64_t sequence = (uint64_t)(microbatch_first(t, pass, k) + b);
            if (!dataloader_sequence(inputs, inputs + t->batch.tokens, pass->loader, sequence, &error))
                die("%s", error.text);
        }
    }
    if (DEVICE_IS_HOST) return;
    device_from_host(t->batch.device, t->batch.host, (size_t)room * sizeof(int32_t));
    device_from_host(t->batch.device + t->batch.tokens, t->batch.host + t->batch.tokens,
                     (size_t)room * sizeof(int32_t));
}

// The tokens over whose losses a step's loss, and its gradient, are the mean: all, or those of this site where sites go
// their own way.
static double step_tokens(const Trainer* t) {
    const double tokens = (double)t->settings.global_batch * t->stage.T;
    return rounds_are_local(&t->stage.rounds) ? tokens / t->stage.rounds.sites : tokens;
}

// A gradient in fp16 would vanish if it were that of the mean loss: there it is that of the sum, and the update divides.
static double gradient_factor(const Trainer* t) { return NARROW_RANGE ? step_tokens(t) : 1; }

// Shapes a for micro-batch k in a chunk.
static void shape_microbatch(const Trainer* t, Activations* a, const Pass* pass, int chunk, int k) {
    const Stage* s = &t->stage;
    const int32_t* inputs = t->batch.device + (int64_t)k * s->B * s->T;
    activations_shape(a, s, chunk, k, microbatch_sequences(t, pass, k), s->T, -1);
    if (a->chunk->first || a->chunk->last) a->inputs = inputs, a->targets = inputs + t->batch.tokens;
    a->scale = pass->trains ? (float)(gradient_factor(t) / step_tokens(t)) : 0; // the gradient is that of the mean loss
}

// Messages of the pipeline. A message about micro-batch k has a tag that tells apart the boundaries between parts of the
// model, the directions, and enough micro-batches; MPI promises tags up to 32767.
enum { TAG_FORWARD = 0, TAG_BACKWARD = 1 };

static int message_tag(const Schedule* schedule, int chunk, int k, int direction) {
    return (k * schedule->plan.v + chunk) % 8192 * 2 + direction;
}

static int64_t message_elements(const Trainer* t, const Pass* pass, int k) {
    const Stage* s = &t->stage;
    const int64_t B = microbatch_sequences(t, pass, k);
    return boundary_elements(&s->layout.mesh, s->layout.states * B * s->T * s->model.C);
}

// The two ends of a boundary count its messages by the chunk that receives them.
static void start_receive(Trainer* t, const Pass* pass, Action action) {
    const int k = action.microbatch, i = k % SCHEDULE_BUFFERS, forward = action.kind == RECEIVE_FORWARD;
    Boundary* x = &t->stage.boundary[action.chunk];
    *(forward ? &x->receive_forward[i] : &x->receive_backward[i]) =
        comm_receive_start(&t->groups.pipeline, forward ? x->input[i] : x->gradient[i], message_elements(t, pass, k),
                           COMM_FLOATX, schedule_peer(pass->schedule, action.kind, action.chunk),
                           message_tag(pass->schedule, action.chunk, k, forward ? TAG_FORWARD : TAG_BACKWARD));
}

static void start_send(Trainer* t, const Pass* pass, Action action) {
    Stage* s = &t->stage;
    const int k = action.microbatch, i = k % SCHEDULE_BUFFERS, forward = action.kind == SEND_FORWARD;
    const int64_t n = message_elements(t, pass, k);
    const Activations* a = forward ? &s->activations[action.slot] : NULL;
    const floatX* from = forward ? chunk_output(a) + boundary_offset(&s->layout.mesh, (int64_t)a->N * s->model.C)
                                 : s->boundary[action.chunk].gradient_out[i];
    const int receiver = transfer_other_end(pass->schedule, action.kind, action.chunk) / s->layout.mesh.p;
    *(forward ? &s->send_forward[action.slot] : &s->boundary[action.chunk].send_backward[i]) = comm_send_start(
        &t->groups.pipeline, from, n, COMM_FLOATX, schedule_peer(pass->schedule, action.kind, action.chunk),
        message_tag(pass->schedule, receiver, k, forward ? TAG_FORWARD : TAG_BACKWARD));
}

// Whether times that the host measures say something about the work. A GPU works while the host goes on, so it is waited
// for where a trace is wanted; elsewhere that would only cost time.
static bool measures_time(const Trainer* t) { return DEVICE_IS_HOST || t->tracing; }

// The time, once all that was started is done.
static double time_of_work(const Trainer* t) {
    if (measures_time(t)) device_synchronize();
    return seconds_now();
}

// Records an action, from when its message was there. What it waits for inside (tensor and data group, other stages at TIE
// and NORM) is part of it.
static void trace_action(Trainer* t, Action action, double started) {
    char name[TRACE_NAME_BYTES];
    if (!t->tracing) return;
    device_synchronize();
    if (action.chunk >= 0 && t->schedule.plan.v > 1)
        snprintf(name, sizeof name, "chunk %d %s", action.chunk, action_name(action.kind));
    else
        snprintf(name, sizeof name, "%s", action_name(action.kind));
    trace_span(t->tracing, "compute", name, action.microbatch, started, seconds_now());
}

// A chunk's share of one pass over a micro-batch, once its input is there.
static void run_forward(Trainer* t, const Pass* pass, Action action) {
    Stage* s = &t->stage;
    Activations* a = &s->activations[action.slot];
    const int k = action.microbatch, i = k % SCHEDULE_BUFFERS;
    Boundary* x = &s->boundary[action.chunk];
    comm_wait(&s->send_forward[action.slot]); // of the micro-batch that used this slot before
    shape_microbatch(t, a, pass, action.chunk, k);
    comm_wait(&x->receive_forward[i]);
    const double started = time_of_work(t);
    if (!a->chunk->first)
        boundary_unpack(&t->groups, &s->layout.mesh, a->x[0], x->input[i], (int64_t)a->N * s->model.C);
    chunk_forward(s, a);
    if (a->chunk->last) losses_add(s->sums + s->layout.tensors, a->head->losses, a->tokens);
    trace_action(t, action, started);
}

static void run_backward(Trainer* t, Action action) {
    Stage* s = &t->stage;
    Activations* a = &s->activations[action.slot];
    const int k = action.microbatch, i = k % SCHEDULE_BUFFERS;
    Gradients* g = &s->gradients[action.chunk][k % s->pending[action.chunk]];
    Boundary* x = &s->boundary[action.chunk];
    const int64_t n = (int64_t)a->N * s->model.C;
    const bool input = action_makes_input_gradient(action.kind), weights = action_adds_weight_gradients(action.kind);
    if (input) comm_wait(&x->receive_backward[i]);
    if (input) comm_wait(&x->send_backward[i]); // of micro-batch k - SCHEDULE_BUFFERS
    const double started = time_of_work(t);
    if (input && !a->chunk->last) boundary_unpack(&t->groups, &s->layout.mesh, g->dx, x->gradient[i], n);
    const Backward w = {s, a, g, (input ? INPUT_HALF : 0) | (weights ? WEIGHT_HALF : 0), action.reduce};
    chunk_backward(&w);
    if (input && !a->chunk->first)
        device_copy(x->gradient_out[i], g->dx + boundary_offset(&s->layout.mesh, n),
                    (size_t)boundary_elements(&s->layout.mesh, n) * sizeof(floatX));
    trace_action(t, action, started);
}

// Late gradients with ZeRO: the norm and the gathering of parameters need the group between sites in this step. What is not
// needed before the next one is sent behind them.
static bool sends_behind_update(const Stage* s) { return s->grads.late && s->layout.mesh.zero > 0; }

// Completes the sums of a chunk's gradients over the data ranks (TIE: of the matrix that two stages hold, over these too)
// and squares them.
static void run_reduce(Trainer* t, Action action) {
    Stage* s = &t->stage;
    const Layout* layout = &s->layout;
    const double started = seconds_now();
    buckets_finish(&s->grads, layout, action.chunk);
    if (action.kind == TIE) buckets_tie(&s->grads, &t->groups, layout);
    if (!sends_behind_update(s)) buckets_send(&s->grads, &t->groups, layout, action.chunk);
    buckets_arrive(&s->grads, &t->groups, layout, action.chunk);
    for (int b = 0; b < layout->buckets && s->grads.due; b++) {
        if (layout->bucket[b].chunk != action.chunk) continue;
        if (s->rounds.mode == DP_DC_S3GD) sites_advance(&s->sites, b);
        gradient_squares(s, b);
    }
    trace_action(t, action, started);
}

// An error that the ranks of a site find alike, and other sites not at all: its first rank says it, before any of them ends
// the job.
static void die_as_site(Trainer* t, const char* text) {
    const Mesh* mesh = &t->stage.layout.mesh;
    double meet = 0;
    fflush(stdout);
    if (mesh_site_place(mesh) == 0 && mesh->tensor == 0 && mesh->pipeline == 0)
        fprintf(stderr, "%s: site %d: %s\n", process.name, mesh_site(mesh), text);
    sum_over_site(&t->groups, &meet, 1);
    if (process.stop) process.stop(EXIT_RUN);
    exit(EXIT_RUN);
}

// Ends the run: a loss or a gradient is not a number.
static void refuse_step(Trainer* t, int not_finite) {
    const int tensors = t->stage.layout.tensors;
    Tensor* list = (Tensor*)checked_malloc((size_t)tensors * sizeof(Tensor), "the list of tensors");
    model_tensors(list, &t->stage.model);
    char text[512];
    snprintf(
        text, sizeof text,
        "step %lld: the loss is %g and the gradient of %s is not finite; %s. Try a smaller --lr, a longer --warmup or "
        "a --clip",
        (long long)t->step + 1, t->loss, not_finite >= 0 ? list[not_finite].name : "no tensor",
        t->schedule.plan.clip ? "nothing was updated" : "checkpoints are from before it");
    const bool alike = !rounds_are_late(&t->stage.rounds) || (t->stage.rounds.mode == DP_DELAYED && not_finite >= 0);
    if (alike) comm_die_together(&t->world, EXIT_RUN, text);
    die_as_site(t, text);
}

// The factor of each tensor's delay compensation, from the squares of its gradient and of what it is multiplied by: such that
// the norm of the correction is `compensation` times that of the gradient (dc-s3gd.md of our reference calls this rule (17)).
static void find_lambda(Stage* s, const double* squares, const double* corrections) {
    for (int i = 0; i < s->layout.tensors; i++) {
        const double lambda = s->rounds.compensation * sqrt(squares[i]) / sqrt(corrections[i]);
        s->lambda[i] = corrections[i] > 0 && lambda < FLT_MAX ? (float)lambda : 0;
    }
}

// Adds up what the ranks have found: squares (tensors), loss, corrections (tensors), seconds. Sites that do not wait for each
// other do not do so here: the loss is this site's, and squares are alike on all, or its own. Only ZeRO's shares lie on all.
static void sum_of_step(Trainer* t, double* sums) {
    const Rounds* r = &t->stage.rounds;
    const int tensors = t->stage.layout.tensors;
    double* loss = sums + tensors;
    sum_over_site(&t->groups, sums, 2 * tensors + 2);
    if (t->stage.layout.mesh.zero) {
        sum_over(&t->groups.far, sums, tensors);
        sum_over(&t->groups.far, loss + 1, tensors);
    }
    if (!rounds_are_late(r)) sum_over(&t->groups.far, loss, 1);
}

// All ranks of a site meet: the loss, the norm of the gradient, that both are numbers, how to scale the gradient; and the time
// that they have worked.
static void run_norm(Trainer* t, Action action, Progress* progress) {
    const Settings* o = &t->settings;
    Stage* s = &t->stage;
    const Layout* layout = &s->layout;
    const int tensors = layout->tensors;
    const double started = seconds_now();
    double* sums = (double*)checked_calloc(2 * (size_t)tensors + 2, sizeof(double), "the gradient's norm");
    comm_synchronize(&t->world);
    device_to_host(sums, s->sums, (size_t)(2 * tensors + 1) * sizeof(double));
    if (!layout->last_stage || layout->mesh.tensor > 0) sums[tensors] = 0;
    sums[2 * tensors + 1] = started - progress->started - progress->waited;
    sum_of_step(t, sums);
    int not_finite;
    const double sites = rounds_are_late(&s->rounds) ? s->rounds.sites : 1; // that have a loss of their own
    t->loss = sums[tensors] / ((double)o->global_batch * s->T / sites);
    t->grad_norm = gradient_norm(sums, tensors, &not_finite) / gradient_factor(t);
    if (!s->grads.due) t->grad_norm = (double)NAN; // nothing has come yet
    find_lambda(s, sums, sums + tensors + 1);
    const double ranks = mesh_size(&layout->mesh) / layout->mesh.sites;
    const double rank_seconds = (seconds_now() - progress->started) * ranks;
    t->bubble = layout->mesh.p == 1 ? 0
                : measures_time(t)  ? fmax(0, rank_seconds / sums[2 * tensors + 1] - 1)
                                    : (double)NAN;
    free(sums);
    if (not_finite >= 0 || !isfinite(t->loss)) refuse_step(t, not_finite);
    progress->grad_scale = o->clip > 0 && t->grad_norm > o->clip ? o->clip / (t->grad_norm + 1e-6) : 1;
    progress->grad_scale /= gradient_factor(t);
    trace_action(t, action, started);
}

// Updates that have been made by the end of a step. The first gradient that is used late is used in the second.
static int64_t updates_at(const Trainer* t, int64_t step) { return step - (t->stage.grads.late && step > 0); }

static void run_update(Trainer* t, Action action, double grad_scale) {
    const double started = seconds_now();
    if (t->stage.grads.due)
        chunk_update(&t->stage, action.chunk, &t->settings, updates_at(t, t->step + 1),
                     learning_rate(&t->settings, t->step), grad_scale);
    trace_action(t, action, started);
}

static void run_action(Trainer* t, const Pass* pass, Action action, Progress* progress) {
    switch (action.kind) {
    case RECEIVE_FORWARD:
    case RECEIVE_BACKWARD: start_receive(t, pass, action); break;
    case SEND_FORWARD:
    case SEND_BACKWARD: start_send(t, pass, action); break;
    case FORWARD: run_forward(t, pass, action); break;
    case BACKWARD:
    case BACKWARD_INPUT:
    case BACKWARD_WEIGHT: run_backward(t, action); break;
    case REDUCE:
    case TIE: run_reduce(t, action); break;
    case NORM: run_norm(t, action, progress); break;
    case UPDATE:
    case UPDATE_TIED: run_update(t, action, progress->grad_scale); break;
    case ACTION_KINDS: break;
    }
}

// Executes a schedule. The sum of the losses that this rank has seen is the last of stage.sums.
static void run_schedule(Trainer* t, const Pass* pass) {
    Stage* s = &t->stage;
    const Comm *pipeline = &t->groups.pipeline, *embedding = &t->groups.embedding;
    const double waited = pipeline->waited + embedding->waited;
    Progress progress = {seconds_now(), 0, 1};
    device_zero(s->sums, (size_t)(2 * s->layout.tensors + 1) * sizeof(double));
    load_batch(t, pass);
    for (int i = 0; i < pass->schedule->n; i++) {
        progress.waited = pipeline->waited + embedding->waited - waited;
        run_action(t, pass, pass->schedule->actions[i], &progress);
        buckets_progress(&s->grads, &s->layout);
        if (rounds_are_local(&s->rounds)) sites_progress(&s->sites);
    }
    for (int i = 0; i < s->slots; i++) comm_wait(&s->send_forward[i]);
    for (int i = 0; i < s->layout.mesh.v * SCHEDULE_BUFFERS; i++)
        comm_wait(&s->boundary[i / SCHEDULE_BUFFERS].send_backward[i % SCHEDULE_BUFFERS]);
}

// The bytes that this rank has sent so far.
static Bytes bytes_sent(const Trainer* t) {
    const Groups* g = &t->groups;
    const Bytes bytes = {comm_bytes(&g->tensor) + comm_bytes(&g->heads),
                         comm_bytes(&g->pipeline) + comm_bytes(&g->embedding),
                         comm_bytes(&g->data) + comm_bytes(&g->far), comm_bytes(&g->far)};
    return bytes;
}

// What all ranks have sent since `before`. Sites that do not wait for each other do not meet for that (meets = false): it is
// what this one has sent, as often as there are sites, which is exact where the plan between them is the same for all.
static Bytes bytes_of_all(Trainer* t, Bytes before, bool meets) {
    const Bytes now = bytes_sent(t);
    const double sites = meets ? 1 : t->stage.rounds.sites;
    double sums[4] = {now.tensor - before.tensor, now.pipeline - before.pipeline, now.data - before.data,
                      now.far - before.far};
    sum_over_site(&t->groups, sums, 4);
    if (meets) sum_over(&t->groups.far, sums, 4);
    const Bytes bytes = {sites * sums[0], sites * sums[1], sites * sums[2], sites * sums[3]};
    return bytes;
}

// One update on the next global batch.
static void train_step(Trainer* t) {
    const int64_t batch = t->settings.global_batch;
    const Pass pass = {&t->schedule, &t->train, t->sequences, t->sequences + batch, true};
    const Bytes before = bytes_sent(t);
    const double started = seconds_now();
    stage_begin_gradients(&t->stage);
    trace_span(t->tracing, "compute", "zero gradients", -1, started, seconds_now());
    run_schedule(t, &pass);
    for (int chunk = -1; chunk < t->stage.layout.mesh.v && sends_behind_update(&t->stage); chunk++)
        buckets_send(&t->stage.grads, &t->groups, &t->stage.layout, chunk);
    trace_span(t->tracing, "step", "step", (int)t->step + 1, started, seconds_now());
    t->step++;
    t->sequences += batch;
    t->stage.grads.due = true;
    stage_round(&t->stage, &t->settings, t->step);
    t->bytes = bytes_of_all(t, before, !rounds_are_late(&t->stage.rounds));
}

// ================================================================================================================
// 3. Around the step: validation, sampling, what people and programs read, checkpoints

static int64_t validation_sequences(const Trainer* t) { return min_i64(t->settings.eval_sequences, t->val.count); }

// Data ranks take groups of B in turn, so some may have one less.
static int validation_microbatches(const Trainer* t) {
    const Mesh* mesh = &t->stage.layout.mesh;
    const int64_t groups = (validation_sequences(t) + t->stage.B - 1) / t->stage.B;
    return (int)((groups - mesh->data + mesh->d - 1) / mesh->d);
}

// Mean loss over the first sequences of the validation text, the same ones every time.
static double validate(Trainer* t) {
    Stage* s = &t->stage;
    const Mesh* mesh = &s->layout.mesh;
    const int64_t count = validation_sequences(t);
    Schedule forward = schedule_build_forward(&t->schedule, validation_microbatches(t));
    const Pass pass = {&forward, &t->val, 0, count, false};
    double sum;
    run_schedule(t, &pass);
    schedule_free(&forward);
    comm_synchronize(&t->world);
    device_to_host(&sum, s->sums + s->layout.tensors, sizeof sum);
    if (!s->layout.last_stage || mesh->tensor > 0) sum = 0;
    sum_over_mesh(&t->groups, &sum, 1);
    return sum / ((double)count * s->T);
}

// Draws from softmax(logits / temperature): the first index where the running sum passes u in [0, 1).
static int sample_softmax(const float* logits, int V, double temperature, double u) {
    double top = logits[0], sum = 0, running = 0;
    for (int i = 1; i < V; i++) top = fmax(top, (double)logits[i]);
    for (int i = 0; i < V; i++) sum += exp(((double)logits[i] - top) / temperature);
    for (int i = 0; i < V; i++) {
        running += exp(((double)logits[i] - top) / temperature);
        if (running > u * sum) return i;
    }
    return V - 1;
}

// A text that the model writes: what is needed to find the next token.
typedef struct {
    float* logits; // (t V): of the whole vocabulary
    double temperature, deadline;
    uint64_t seed, stream;
} Sampler;

// Hands one token's channels on to the next part of the model, or takes them from the one before; a chunk of the same
// rank finds them where the other one left them.
static void decode_pass(Trainer* t, floatX* x, ActionKind kind, int chunk) {
    Comm* pipeline = &t->groups.pipeline;
    const int peer = schedule_peer(&t->schedule, kind, chunk);
    const int64_t n = (int64_t)t->stage.layout.states * t->stage.model.C;
    if (peer < 0 || peer == pipeline->rank) return;
    CommRequest message = kind == SEND_FORWARD ? comm_send_start(pipeline, x, n, COMM_FLOATX, peer, TAG_FORWARD)
                                               : comm_receive_start(pipeline, x, n, COMM_FLOATX, peer, TAG_FORWARD);
    comm_wait(&message);
}

// Feeds one token at a position of the sequence through the whole model; its keys and values go into the cache. On the
// last stage the head's logits are those of the token after it.
static void decode(Trainer* t, int32_t token, int position) {
    Stage* s = &t->stage;
    Activations* a = &s->activations[0];
    batch_reserve(&t->batch, 1);
    device_from_host(t->batch.device, &token, sizeof token);
    for (int c = 0; c < s->layout.mesh.v; c++) {
        const floatX* before = c > 0 ? chunk_output(a) : NULL;
        activations_shape(a, s, c, 0, 1, 1, position);
        a->inputs = t->batch.device;
        if (before && schedule_peer(&t->schedule, RECEIVE_FORWARD, c) == s->layout.mesh.pipeline)
            device_copy(a->x[0], before, (size_t)(s->layout.states * s->model.C) * sizeof(floatX));
        decode_pass(t, a->x[0], RECEIVE_FORWARD, c);
        if (a->chunk->first) embed(s, a);
        blocks_forward(s, a);
        if (a->chunk->last) head_forward(s, a);
        decode_pass(t, chunk_output(a), SEND_FORWARD, c);
    }
}

// The pipeline rank that has the head.
static int head_holder(const Trainer* t) {
    return pipeline_holder(&t->schedule.plan, pipeline_last(&t->schedule.plan));
}

// Logits of the token after the one that was decoded last, (t V) of the whole vocabulary, on the ranks of the last stage.
static void whole_logits(Trainer* t, float* logits) {
    const Stage* s = &t->stage;
    const int64_t n = (int64_t)s->layout.states * s->layout.V;
    float* mine = logits + s->layout.mesh.tensor * n;
    device_to_floats(mine, s->head[0].logits, n);
    comm_all_gather(&t->groups.tensor, logits, mine, n, COMM_FLOAT);
}

// Draws token number i on the last stage and tells it to all; -1 when the time is over.
static int32_t next_token(Trainer* t, const Sampler* sampler, int i) {
    Stage* s = &t->stage;
    int32_t next = 0;
    if (s->layout.last_stage) {
        whole_logits(t, sampler->logits);
        if (s->layout.mesh.tensor == 0) {
            const double u = random_uniform(sampler->seed, sampler->stream, (uint64_t)i);
            next = seconds_now() > sampler->deadline
                       ? -1
                       : sample_softmax(sampler->logits, s->model.V, sampler->temperature, u);
        }
        comm_broadcast(&t->groups.tensor, &next, 1, COMM_INT32, 0);
    }
    comm_broadcast(&t->groups.pipeline, &next, 1, COMM_INT32, head_holder(t));
    return next;
}

static bool is_main(const Trainer* t) { return t->world.rank == 0; }

// Writes `count` tokens of the model's own: as text where tokens are bytes, as numbers otherwise. The first data replica
// writes, the others go on to where they wait for it. Keys and values of past tokens are kept; when T tokens are there,
// the last half of them becomes the beginning of a new sequence. A large model is stopped after twenty seconds.
static void sample(Trainer* t, int count) {
    Stage* s = &t->stage;
    if (s->layout.mesh.data > 0) return;
    const bool text = t->train_files.format == TOKENS_TEXT;
    const int V = s->model.V;
    if (is_main(t)) printf("The model writes:\n\n");
    int32_t* tokens = (int32_t*)checked_malloc((size_t)(count + 1) * sizeof(int32_t), "a sample");
    float* logits =
        (float*)checked_malloc((size_t)s->layout.V * mesh_cuts(&s->layout.mesh) * sizeof(float), "a sample");
    const Sampler sampler = {logits, 0.8, seconds_now() + 20, (uint64_t)t->settings.seed,
                             hash_string("sample") + (uint64_t)t->step};
    TextWriter writer = {stdout, "", 0, 0};
    tokens[0] = text ? '\n' : V > 50256 ? 50256 : 0; // a new line, or GPT-2's end of text
    int begin = 0;                                   // the token at position 0
    for (int i = 0; i < count; i++) {
        if (i - begin == s->T) {
            begin = i - s->T / 2;
            for (int j = begin; j < i; j++) decode(t, tokens[j], j - begin);
        }
        decode(t, tokens[i], i - begin);
        tokens[i + 1] = next_token(t, &sampler, i);
        if (tokens[i + 1] < 0) break;
        if (!is_main(t)) continue;
        if (text)
            text_writer_put(&writer, tokens[i + 1]);
        else
            printf("%d ", tokens[i + 1]);
    }
    if (is_main(t)) {
        text_writer_end(&writer);
        printf("\n\n");
    }
    free(tokens);
    free(logits);
}

// Most memory that a rank ever held, in bytes; of this site, where sites do not wait for each other.
static int64_t peak_bytes(Trainer* t) {
    int64_t bytes = device_peak_bytes();
    Comm* axes[4] = {&t->groups.tensor, &t->groups.data, &t->groups.pipeline, &t->groups.far};
    for (int i = 0; i < (rounds_are_late(&t->stage.rounds) ? 3 : 4); i++) {
        const int64_t counted = axes[i]->size_bytes;
        comm_all_reduce(axes[i], &bytes, 1, COMM_INT64, COMM_MAX);
        axes[i]->size_bytes = counted;
    }
    return bytes;
}

// "1:02:03", "4:05", "12 s"
static void write_duration(char* text, size_t size, double seconds) {
    const long total = (long)(seconds + 0.5);
    if (total >= 3600)
        snprintf(text, size, "%ld:%02ld:%02ld", total / 3600, total / 60 % 60, total % 60);
    else if (total >= 60)
        snprintf(text, size, "%ld:%02ld", total / 60, total % 60);
    else
        snprintf(text, size, "%ld s", total);
}

// One line for people.
static void print_step(const Trainer* t, double seconds, double mfu, double seconds_left) {
    char left[32], val[32] = "", utilization[32] = "", norm[32] = "   - ";
    write_duration(left, sizeof left, seconds_left);
    if (!isnan(t->val_loss)) snprintf(val, sizeof val, " | val %.4f", t->val_loss);
    if (mfu > 0) snprintf(utilization, sizeof utilization, " | mfu %2.0f %%", 100 * mfu);
    if (!isnan(t->grad_norm)) snprintf(norm, sizeof norm, "%.3f", t->grad_norm);
    const double tokens = (double)t->settings.global_batch * t->stage.T;
    printf("step %5lld/%lld | loss %.4f%s | norm %s | lr %.2e | %7.1f ms | %8.0f tok/s%s | %s left\n",
           (long long)t->step, (long long)t->settings.steps, t->loss, val, norm,
           learning_rate(&t->settings, t->step - 1), 1e3 * seconds, tokens / seconds, utilization, left);
    fflush(stdout);
}

// One JSON object for programs.
static void log_step(FILE* log, const Trainer* t, double seconds, double mfu, int64_t peak) {
    const double tokens = (double)t->settings.global_batch * t->stage.T;
    fprintf(log, "{\"step\":%lld,\"loss\":%.9g,\"val_loss\":", (long long)t->step, t->loss);
    if (isnan(t->val_loss))
        fprintf(log, "null");
    else
        fprintf(log, "%.9g", t->val_loss);
    fprintf(log, ",\"grad_norm\":");
    if (isnan(t->grad_norm))
        fprintf(log, "null");
    else
        fprintf(log, "%.9g", t->grad_norm);
    fprintf(log, ",\"lr\":%.9g,\"tokens\":%.0f,\"ms\":%.3f,\"tokens_per_s\":%.1f,\"mfu\":",
            learning_rate(&t->settings, t->step - 1), tokens, 1e3 * seconds, tokens / seconds);
    if (mfu > 0)
        fprintf(log, "%.4f", mfu);
    else
        fprintf(log, "null");
    fprintf(log, ",\"bytes\":{\"tp\":%.0f,\"pp\":%.0f,\"dp\":%.0f", t->bytes.tensor, t->bytes.pipeline, t->bytes.data);
    if (t->stage.layout.mesh.sites > 1) fprintf(log, ",\"wan\":%.0f", t->bytes.far);
    fprintf(log, "},\"bubble\":");
    if (isnan(t->bubble))
        fprintf(log, "null");
    else
        fprintf(log, "%.4f", t->bubble);
    fprintf(log, ",\"peak_bytes\":%lld}\n", (long long)peak);
    if (fflush(log) != 0 || ferror(log)) die("%s/log.jsonl: cannot write: %s", t->settings.out, strerror(errno));
}

// Opens DIR/log.jsonl. A new run starts an empty log; a resumed one drops the lines after the checkpoint's step, which
// are about to be written again.
static FILE* log_open(const char* out, bool resumed, int64_t step) {
    char path[4096], line[4096];
    snprintf(path, sizeof path, "%s/log.jsonl", out);
    FILE* log = fopen(path, resumed ? "a+" : "w");
    if (!log) die("%s: cannot write: %s; choose another --out", path, strerror(errno));
    if (!resumed) return log;
    long keep = 0, logged;
    rewind(log);
    while (fgets(line, sizeof line, log) && sscanf(line, "{\"step\":%ld", &logged) == 1 && logged <= step &&
           strchr(line, '\n')) {
        keep = ftell(log);
    }
    if (ftruncate(fileno(log), keep) != 0) die("%s: cannot shorten: %s", path, strerror(errno));
    return log;
}

// Where some ranks may have failed: goes on if none has, else the run ends, everywhere, with the message of the first that
// did. status: 0, or the exit status.
static void agree_on(Trainer* t, int status, const Error* error) {
    int32_t first = status == 0 ? INT32_MAX : t->world.rank;
    comm_all_reduce(&t->world, &first, 1, COMM_INT32, COMM_MIN);
    if (first == INT32_MAX) return;
    char text[sizeof error->text + 32] = "";
    if (first == t->world.rank) {
        if (first > 0)
            snprintf(text, sizeof text, "rank %d: %s", first, error->text);
        else
            snprintf(text, sizeof text, "%s", error->text);
    }
    comm_broadcast(&t->world, text, sizeof text, COMM_BYTE, first);
    int32_t told = status;
    comm_broadcast(&t->world, &told, 1, COMM_INT32, first);
    comm_die_together(&t->world, told, text);
}

static void agree(Trainer* t, bool ok, const Error* error) { agree_on(t, ok ? 0 : EXIT_RUN, error); }

// Opens the texts to train and to validate on, --data and --val, or the default. All ranks have to see the same.
static void open_files(Trainer* t) {
    const Settings* o = &t->settings;
    Error error;
    bool ok;
    if (o->data) {
        ok = tokens_open(&t->train_files, o->data, &error);
    } else {
        PathList list = default_data();
        ok = tokens_open_list(&t->train_files, (const char* const*)list.path, list.count, &error);
        path_list_free(&list);
    }
    if (ok && o->val) ok = tokens_open(&t->val_files, o->val, &error);
    agree(t, ok, &error);
    char text[256];
    snprintf(text, sizeof text, "%lld tokens to train on, checksum %016llx; %lld to validate on, checksum %016llx",
             (long long)t->train_files.tokens, (unsigned long long)tokens_checksum(&t->train_files),
             (long long)t->val_files.tokens, (unsigned long long)tokens_checksum(&t->val_files));
    comm_check_same(&t->world, "data", text, "give all ranks the same files");
}

// Without --val the last 5 % of the training text are held out.
static void open_loaders(Trainer* t) {
    const Settings* o = &t->settings;
    const int T = t->stage.T, V = t->stage.model.V;
    const int64_t total = t->train_files.tokens, end = o->val || !o->eval_every ? total : total - total / 20;
    const TokenFiles* val = o->val ? &t->val_files : &t->train_files;
    Error error, why;
    bool ok = dataloader_init(&t->train, &t->train_files, 0, end, T, V, (uint64_t)o->seed, true, &error);
    if (ok && o->eval_every && !dataloader_init(&t->val, val, o->val ? 0 : end, val->tokens, T, V, 0, false, &why)) {
        ok = fail(&error, "validation: %.900s; or give --val, or --eval-every 0", why.text);
    }
    agree(t, ok, &error);
}

// ----------------------------------------------------------------------------------------------------------------
// The plan, for people

// What a rank sends in a step of m micro-batches, by formula; layout: that of the rank. Where gradients go between sites, ranks
// that share an embedding sum its gradient part by part.
static Traffic traffic_of_stage(const Stage* s, const Layout* layout, int m) {
    Traffic traffic = traffic_of_step(layout, &s->model, s->B, s->T, m, sizeof(floatX));
    if (s->grads.across && traffic.tied > 0)
        traffic.tied = sizeof(float) * (double)bucket_part(layout, layout_slice(layout, -1, WTE)->bucket);
    return traffic;
}

// One line: what a rank holds and, in MB a step, what it sends.
static void print_rank(Stage* s, int last_alike, int m) {
    const Mesh* mesh = &s->layout.mesh;
    const Rounds* r = &s->rounds;
    const Traffic traffic = traffic_of_stage(s, &s->layout, m);
    const SiteTraffic round =
        rounds_traffic(r, &s->layout, s->model.L, sizeof(floatX), r->period, 2 * r->period); // some round
    const bool sites = mesh->sites > 1 || rounds_are_late(r);
    const double data = sites ? (round.near + round.far) / (double)r->period : traffic.data;
    const int rank = mesh_rank(mesh);
    char ranks[32];
    if (last_alike > rank)
        snprintf(ranks, sizeof ranks, "%d..%d", rank, last_alike);
    else
        snprintf(ranks, sizeof ranks, "%d", rank);
    printf("  %-11s %3d %3d %3d   ", ranks, mesh->tensor, mesh->pipeline, mesh->data);
    for (int c = 0; c < mesh->v; c++) { // of many chunks the first and the last
        const Chunk* chunk = &s->layout.chunk[c];
        if (mesh->v <= 3 || c % (mesh->v - 1) == 0)
            printf("%4d..%-4d", chunk->first_layer, chunk->first_layer + chunk->layers - 1);
        else if (c == 1)
            printf("   ...    ");
    }
    Arena* arenas[ARENAS];
    stage_arenas(s, arenas);
    for (int i = 0; i < ARENAS; i++) printf(" %10.1f", (double)arenas[i]->used / 1e6);
    printf(" %10.1f   %9.2f %9.2f %9.2f\n", stage_bytes(s) / 1e6, (traffic.layers + traffic.ends) / 1e6,
           (traffic.pipeline + traffic.tied) / 1e6, data / 1e6);
}

// A line for every rank, or, of many, for the first of each stage.
static void print_ranks(const Trainer* t) {
    const Stage* mine = &t->stage;
    const Mesh* mesh = &mine->layout.mesh;
    const int n = mesh_size(mesh), step = n <= 16 ? 1 : mesh->t * mesh->d;
    printf("\n  rank          t   p   d    layers %*s   MB: params      grads  optimizer activation    scratch   "
           "together   "
           "sends:  tp        pp        dp\n",
           10 * ((int)min_i64(mesh->v, 3) - 1), "");
    for (int rank = 0; rank < n; rank += step) {
        Mesh other = *mesh;
        other.tensor = rank % mesh->t, other.data = rank / mesh->t % mesh->d;
        other.pipeline = rank / (mesh->t * mesh->d);
        Stage s;
        Error error;
        Schedule schedule = schedule_build(&t->schedule.plan, other.pipeline);
        if (!stage_plan(&s, &mine->model, other, mine->B, mine->T, &schedule, &mine->rounds, mine->type, &error))
            die("%s", error.text);
        print_rank(&s, rank + step - 1, schedule.plan.m);
        stage_free(&s);
        schedule_free(&schedule);
    }
    printf("\n");
}

// How many micro-batches stages hold in memory at once; of many stages the first and the last.
static void print_slots(const Schedule* stages, const Mesh* mesh) {
    printf("slots     ");
    for (int i = 0; i < mesh->p; i++) {
        if (mesh->p <= 16 || i < 4 || i >= mesh->p - 4) printf("%d ", stages[i].slots);
        if (mesh->p > 16 && i == 4) printf("... ");
    }
    printf("micro-batches%s in memory at most, by stage\n", mesh->v > 1 ? " of a chunk" : "");
}

static void print_sync(const Stage* s) {
    const Sync* sync = &s->layout.mesh.sync;
    static const char* scale[] = {"times sqrt(states)", "with initial weights times sqrt(states)", "as they are"};
    if (!is_caat(s)) return;
    printf("sync      %d of %d channels shared by %d states, %d a rank; private ones %s; gradients summed in %s\n",
           s->layout.shared, s->model.C, sync->ranks, s->layout.states, scale[sync->scale],
           sync->narrow ? FLOATX_NAME : "fp32");
}

// The plans of sums: of --allreduce, and between sites.
static void print_sums(const Trainer* t) {
    const Settings* o = &t->settings;
    const Mesh* mesh = &t->stage.layout.mesh;
    for (int far = 0; far < 2; far++) {
        const bool named = o->topology && far == (mesh->sites > 1 && mesh_site_size(mesh) == 1); // see plan_sums
        int n = 0;
        for (int kind = 0; kind < PLAN_KINDS; kind++) {
            const Plan* plan = far ? &t->far_sums[kind] : &t->sums[kind];
            if (!plan->n) continue;
            if (n++ == 0)
                printf("sums      %sby %s on %s:",
                       mesh->sites == 1 ? ""
                       : far            ? "between sites "
                                        : "in a site ",
                       plan->name, named ? o->topology : "full, all to all");
            printf("%s %s in %d step%s, in chunks of 1/%d", n == 1 ? "" : ",", plan_kind_name(plan->kind), plan->steps,
                   plan->steps == 1 ? "" : "s", plan->chunks);
        }
        if (n > 0) printf("\n");
    }
}

// The sites and their plan in words; "" where all wait for all. A resumed run needs the same.
static void rounds_text(char* text, size_t size, const Rounds* r) {
    char of[32] = "", every[80] = "", bits[32] = "", compensated[48] = "", outer[96] = "";
    text[0] = 0;
    if (!rounds_are_late(r)) return;
    if (r->mode == DP_DILOCO) {
        snprintf(every, sizeof every, " in %d fragment%s every %lld steps", r->fragments, r->fragments == 1 ? "" : "s",
                 (long long)r->period);
        snprintf(outer, sizeof outer, ", outer rate %g, momentum %g, mix %g", r->outer_lr, r->outer_momentum, r->mix);
    }
    if (r->bits < 32) snprintf(bits, sizeof bits, ", %d bits a number", r->bits);
    if (r->compensation > 0) snprintf(compensated, sizeof compensated, ", compensation %g", r->compensation);
    // A late gradient is alike on all sites, as many as there are.
    if (rounds_are_local(r)) snprintf(of, sizeof of, " of %d site%s", r->sites, r->sites == 1 ? "" : "s");
    snprintf(text, size, "%s%s%s, merged %s%lld step%s later%s%s%s", dp_mode_names[r->mode], of, every,
             r->eager ? "eagerly " : "", (long long)r->delay, r->delay == 1 ? "" : "s", compensated, outer, bits);
}

// The plan of the sites.
static void print_rounds(const Trainer* t) {
    const Rounds* r = &t->stage.rounds;
    const int replicas = mesh_site_size(&t->stage.layout.mesh);
    char text[CHECKPOINT_PLAN_TEXT];
    rounds_text(text, sizeof text, r);
    if (r->sites == 1 && !text[0]) return;
    if (!text[0]) snprintf(text, sizeof text, "sync, gradients summed over all in every step");
    if (!rounds_are_local(r))
        printf("sites     %s; %d site%s of %d replica%s\n", text, r->sites, r->sites == 1 ? "" : "s", replicas,
               replicas == 1 ? "" : "s");
    else
        printf("sites     %s; %d replica%s each\n", text, replicas, replicas == 1 ? "" : "s");
    if (!rounds_are_late(r)) return;
    rounds_draw(r, stdout);
    printf("          loss and norm of a step are those of the first site; validation is at the common point\n");
    const int64_t lost = t->settings.steps - rounds_learned(r, t->settings.steps);
    if (r->mode == DP_DILOCO && lost > 0)
        printf("          the last %lld of %lld steps come too late for the common point, which is what is saved\n",
               (long long)lost, (long long)t->settings.steps);
    if (r->sites > 1 && DEVICE_IS_HOST && t->world.size > 1 && !comm_can_thread(&t->world))
        printf("          this MPI lets one thread in at a time: messages between sites move while a rank calls it "
               "only\n");
}

static void print_mesh(const Trainer* t) {
    const Stage* s = &t->stage;
    const Mesh* mesh = &s->layout.mesh;
    static const char* recompute[] = {"nothing", "norms and activation functions", "all but the blocks' inputs"};
    printf("mesh      %d rank%s: tensor %d%s, pipeline %d, data %d%s; recomputed: %s\n", mesh_size(mesh),
           mesh_size(mesh) == 1 ? "" : "s", mesh->t, mesh->sequence_parallel ? " with sequence parallelism" : "",
           mesh->p, mesh->d,
           mesh->zero == 0   ? ""
           : mesh->zero == 1 ? " with ZeRO-1"
                             : " with ZeRO-2",
           recompute[mesh->recompute]);
    print_sync(s);
    print_rounds(t);
    print_sums(t);
    printf("schedule  ");
    const Pipeline* plan = &t->schedule.plan;
    Schedule* stages = schedules_build(plan);
    if (mesh->p > 1) {
        printf("%s", schedule_name(plan->kind));
        if (mesh->v > 1) printf(" with %d chunks a stage", mesh->v);
        printf(", by formula a bubble of %.3f of the work at equal stages\n", pipeline_bubble(plan));
    }
    schedule_draw(stages, mesh->p, stdout);
    if (mesh->p > 1) print_slots(stages, mesh);
    schedules_free(stages, mesh->p);
}

static void print_plan(Trainer* t, double peak) {
    Stage* s = &t->stage;
    const ModelConfig* m = &s->model;
    const Settings* o = &t->settings;
    char device[256], data[512], text[128];
    device_name(device, sizeof device);
    tokens_describe(data, sizeof data, &t->train_files);
    const double parameters = (double)model_parameters(m);
    printf("model     %s: %s, %d layers, %d channels, %d heads, vocabulary %d; %.0f parameters\n", m->name,
           m->arch == ARCH_GPT2 ? "gpt2" : "llama", m->L, m->C, m->NH, m->V, parameters);
    printf("data      %s\n", data);
    printf("batch     %lld sequences of %d tokens in %d micro-batch%s of %d", (long long)o->global_batch, s->T,
           t->schedule.plan.m, t->schedule.plan.m == 1 ? "" : "es", s->B);
    printf(s->layout.mesh.d > 1 ? " on each of %d replicas\n" : "\n", s->layout.mesh.d);
    printf("device    %s", device);
    if (t->world.size > 1) {
        printf(" a rank, %d rank%s here, %d machine%s", t->place.ranks_here, t->place.ranks_here == 1 ? "" : "s",
               t->place.machines, t->place.machines == 1 ? "" : "s");
        const char* carrier = comm_device_text(&t->world);
        if (carrier[0]) printf(", %s", carrier);
    }
    if (!DEVICE_IS_HOST) printf(", %s", FLOATX_NAME);
    if (peak > 0)
        printf("; %s. mfu = (6 parameters + 6 L C T) tokens/s / peak", device_peak_text(text, sizeof text, peak));
    printf("\n");
    print_mesh(t);
    if (mesh_size(&s->layout.mesh) > 1) {
        print_ranks(t);
    } else {
        Arena* arenas[ARENAS];
        stage_arenas(s, arenas);
        printf("memory   ");
        for (int i = 0; i < ARENAS; i++) printf(" %s %.1f MB,", arenas[i]->what, (double)arenas[i]->used / 1e6);
        printf(" together %.1f MB\n", stage_bytes(s) / 1e6);
    }
    fflush(stdout);
}

// What all ranks send in a step, by formula; and in the steps after `first`, as replicas. sites may be NULL.
static Traffic traffic_of_mesh(const Trainer* t, SiteTraffic* sites, int64_t first) {
    const Stage* mine = &t->stage;
    Traffic sum = {0, 0, 0, 0, 0};
    if (sites) sites->near = sites->far = 0;
    for (int rank = 0; rank < mesh_size(&mine->layout.mesh); rank++) {
        Mesh mesh = mine->layout.mesh;
        mesh.tensor = rank % mesh.t, mesh.data = rank / mesh.t % mesh.d, mesh.pipeline = rank / (mesh.t * mesh.d);
        Layout layout;
        Error error;
        if (!layout_build(&layout, &mine->model, mesh, mine->T, &error)) die("%s", error.text);
        const Traffic one = traffic_of_stage(mine, &layout, t->schedule.plan.m);
        sum.layers += one.layers, sum.ends += one.ends, sum.pipeline += one.pipeline;
        sum.tied += one.tied, sum.data += one.data;
        if (sites) {
            const SiteTraffic of =
                rounds_traffic(&mine->rounds, &layout, mine->model.L, sizeof(floatX), first, t->step);
            sites->near += of.near, sites->far += of.far;
        }
        layout_free(&layout);
    }
    return sum;
}

// How much more than the least an algorithm sends in all (2d-ring does).
static double sums_factor(const Plan* plan) {
    double vectors = 0;
    for (int64_t i = 0; i < plan->n; i++) vectors += (double)plan->transfers[i].chunks / plan->chunks;
    return plan->n ? vectors / (2 * (plan->ranks - 1)) : 1;
}

static void print_traffic_row(const char* group, const char* what, const char* counted, double formula) {
    printf("  %-9s %-36s %12s %12.3f\n", group, what, counted, formula / 1e6);
}

// What replicas have sent since step `first`, in the mean of a step.
static void print_site_traffic(const Trainer* t, Bytes all, SiteTraffic formula, int64_t first) {
    const double steps = (double)(t->step - first);
    const double near = sums_factor(&t->sums[PLAN_ALL_REDUCE]), far = sums_factor(&t->far_sums[PLAN_ALL_REDUCE]);
    char counted[2][32];
    snprintf(counted[0], sizeof counted[0], "%.3f", (all.data - all.far) / steps / 1e6);
    snprintf(counted[1], sizeof counted[1], "%.3f", all.far / steps / 1e6);
    print_traffic_row("data", "inside of sites, mean of all steps", counted[0], near * formula.near / steps);
    print_traffic_row("", "between sites, mean of all steps", counted[1], far * formula.far / steps);
}

// Counted bytes of the last step beside the formulas; all: those since step `first`.
static void print_traffic(const Trainer* t, Bytes all, int64_t first) {
    const Mesh* mesh = &t->stage.layout.mesh;
    if (mesh_size(mesh) == 1) return;
    SiteTraffic sites;
    const Traffic sum = traffic_of_mesh(t, &sites, first);
    const bool more = mesh->sequence_parallel || mesh->recompute == RECOMPUTE_FULL; // see traffic_of_step
    const bool divided = mesh->t > 1 && (mesh->scatter || mesh->sequence_parallel);
    char counted[3][32];
    const double bytes[3] = {t->bytes.tensor, t->bytes.pipeline, t->bytes.data};
    for (int i = 0; i < 3; i++) snprintf(counted[i], sizeof counted[i], "%.3f", bytes[i] / 1e6);
    printf("traffic of a step, MB, all ranks together              counted      formula\n");
    print_traffic_row("tensor",
                      is_caat(&t->stage) ? "8 b s h (t-1)/t a layer, shared"
                      : more             ? "8 b s h (t-1)/t a layer, and more"
                                         : "8 b s h (t-1)/t a layer",
                      "", sum.layers);
    print_traffic_row("", "embedding, head, norms, boundary", "", sum.ends);
    print_traffic_row("", "together", counted[0], sum.layers + sum.ends);
    print_traffic_row("pipeline", divided ? "b s h / t a boundary and direction" : "b s h a boundary and direction",
                      counted[1], sum.pipeline + sum.tied);
    const double factor = sums_factor(&t->sums[PLAN_ALL_REDUCE]);
    if (mesh->sites > 1 || rounds_are_late(&t->stage.rounds))
        print_site_traffic(t, all, sites, first);
    else
        print_traffic_row("data", factor > 1 ? "2 (d-1)/d of the parameters, and more" : "2 (d-1)/d of the parameters",
                          counted[2], factor * sum.data);
}

// ----------------------------------------------------------------------------------------------------------------
// Checkpoints: every rank writes its slices of the one logical model. Data ranks hold the same slices and take buckets in
// turn; with ZeRO they first put their shares of the moments together.

// Where the run stands, and what a resumed run has to have in common with it.
static CheckpointState checkpoint_state(const Trainer* t) {
    const Settings* o = &t->settings;
    CheckpointState state = {t->step, t->sequences, o->seed, o->global_batch, t->stage.T, t->train_files.tokens, ""};
    rounds_text(state.rounds, sizeof state.rounds, &t->stage.rounds);
    if (o->optimizer == OPTIMIZER_SGD) {
        const size_t used = strlen(state.rounds);
        snprintf(state.rounds + used, sizeof state.rounds - used, "%ssgd", used ? ", " : "--dp-mode sync, ");
    }
    return state;
}

// A value of the parameters, as it lies on this rank: float32, layout.elements of them, or, with ZeRO, shares of the buckets.
typedef struct {
    float* at;
    bool share;
} Values;

// Weights, first and second moments. With ZeRO moments are shares, and so are the weights where they are kept in float32
// beside the rounded ones. The weights of sites that go their own way are the common point.
static Values stage_values(const Stage* s, int what) {
    float* weights = HAS_MASTERS ? s->master : (float*)s->params;
    if (rounds_are_local(&s->rounds)) weights = s->rounds.eager ? s->grads.all : s->sites.base;
    const Values values = {what == 0   ? weights
                           : what == 1 ? s->moment1
                                       : s->moment2,
                           s->layout.mesh.zero && (what > 0 || HAS_MASTERS)};
    return values;
}

// What sites have beside them, and where it lies.
typedef struct {
    CheckpointSites list;
    Values of[CHECKPOINT_KINDS];
} SiteValues;

static void add_site_values(SiteValues* v, const char* kind, float* at, bool share) {
    const Values values = {at, share};
    v->of[v->list.kinds] = values;
    v->list.kind[v->list.kinds++] = kind;
}

static SiteValues site_values(const Stage* s) {
    const Rounds* r = &s->rounds;
    const Sites* sites = &s->sites;
    const bool zero = s->layout.mesh.zero > 0, local = rounds_are_local(r), diloco = r->mode == DP_DILOCO;
    SiteValues v;
    memset(&v, 0, sizeof v);
    v.list.copies = local ? r->sites : 1;
    if (s->grads.late) add_site_values(&v, "gradient", zero ? s->grads.shares : s->grads.all, zero); // alike on all
    if (s->before) add_site_values(&v, "before", s->before, zero);
    if (local) add_site_values(&v, "weight", sites->own, false);
    if (local) add_site_values(&v, "exp_avg", s->moment1, false);
    if (local) add_site_values(&v, "exp_avg_sq", s->moment2, false);
    if (diloco) add_site_values(&v, "velocity", sites->velocity, false);
    if (diloco && r->delay > 0) add_site_values(&v, "sum", sites->sum, false);
    if (r->eager) add_site_values(&v, "old", sites->old, false);
    if (r->eager) add_site_values(&v, "base", sites->base, false);
    if (r->bits < 32) add_site_values(&v, "residue", sites->residue, false);
    return v;
}

// Brings together what checkpoints hold, once nothing is on its way: what eager sites have in common is formed, and every
// member of a site gets what each has lost by rounding.
static void settle_values(Stage* s) {
    const Layout* layout = &s->layout;
    if (s->rounds.eager) sites_common(&s->sites, s->grads.all);
    for (int b = 0; b < layout->buckets && s->sites.residue && mesh_site_size(&layout->mesh) > 1; b++)
        comm_all_gather(&s->groups->data, s->sites.residue + layout->bucket[b].offset,
                        s->sites.residue + bucket_part_offset(layout, b), bucket_part(layout, b), COMM_FLOAT);
}

// One bucket's values, whole, in host memory: where they are, or put together in copy (largest bucket).
static const float* whole_values(const Stage* s, int b, Values values, float* copy) {
    const Layout* layout = &s->layout;
    const int64_t n = bucket_share(layout, b);
    if (values.share) {
        float* mine = copy + layout->mesh.data * n;
        device_to_host(mine, values.at + bucket_share_offset(layout, b), (size_t)n * sizeof(float));
        comm_all_gather(zero_group(s->groups), copy, mine, n, COMM_FLOAT);
        return copy;
    }
    if (DEVICE_IS_HOST) return values.at + layout->bucket[b].offset;
    device_to_host(copy, values.at + layout->bucket[b].offset, (size_t)layout->bucket[b].elements * sizeof(float));
    return copy;
}

// Whether this data rank writes a value of a bucket that all sites have alike (site = -1), or that one of them has.
static bool writes_bucket(const Mesh* mesh, int b, int site) {
    if (site < 0) return b % mesh->d == mesh->data;
    return site == mesh_site(mesh) && b % mesh_site_size(mesh) == mesh_site_place(mesh);
}

// Writes what this rank has to write. After a failure it goes on with what the others wait for.
static bool write_slices(const Stage* s, CheckpointWriter* writer, Error* error) {
    const Layout* layout = &s->layout;
    const Mesh* mesh = &layout->mesh;
    const SiteValues sites = site_values(s);
    const bool local = rounds_are_local(&s->rounds);
    float* copy = (float*)checked_malloc((size_t)largest_bucket(layout) * sizeof(float), "the values of a bucket");
    bool ok = true;
    for (int b = 0; b < layout->buckets; b++) {
        for (int what = 0; what < CHECKPOINT_VALUES; what++) { // moments that are not alike: those of the first site
            const float* whole = whole_values(s, b, stage_values(s, what), copy);
            if (ok && writes_bucket(mesh, b, local && what > 0 ? 0 : -1))
                ok = checkpoint_write_value(writer, layout, b, what, whole, error);
        }
        for (int kind = 0; kind < sites.list.kinds; kind++) {
            const float* whole = whole_values(s, b, sites.of[kind], copy);
            const int copy_of = local ? mesh_site(mesh) : 0;
            if (ok && writes_bucket(mesh, b, local ? copy_of : -1))
                ok = checkpoint_write_value(writer, layout, b, checkpoint_value_of_site(&sites.list, kind, copy_of),
                                            whole, error);
        }
    }
    free(copy);
    return ok;
}

// A gradient that the next step uses is in the checkpoint, which has to be one that a run can go on from.
static void check_late_gradient(Trainer* t) {
    Stage* s = &t->stage;
    const GradientBuckets* grads = &s->grads;
    const int64_t n = s->layout.elements;
    double squares;
    char text[256];
    device_zero(s->sums, sizeof(double));
    sum_of_squares(s->sums, grads->shares ? grads->shares : grads->all, grads->shares ? n / s->layout.mesh.d : n);
    device_to_host(&squares, s->sums, sizeof squares);
    comm_all_reduce(&t->world, &squares, 1, COMM_DOUBLE, COMM_SUM);
    if (isfinite(squares)) return;
    snprintf(
        text, sizeof text,
        "step %lld: its gradient, which the next step would use, is not finite; it is not saved, checkpoints are from "
        "before it. Try a smaller --lr, a longer --warmup or a --clip",
        (long long)t->step);
    comm_die_together(&t->world, EXIT_RUN, text);
}

// The main rank makes the files, all join and write, and when all of it is on the disk the main rank gives it its name.
static void save_checkpoint(Trainer* t) {
    const char* out = t->settings.out;
    const CheckpointState state = checkpoint_state(t);
    Stage* s = &t->stage;
    const ModelConfig* m = &s->model;
    stage_settle(s);
    if (s->grads.late) check_late_gradient(t);
    Comm *data = &t->groups.data, *far = &t->groups.far;
    const int64_t counted[2] = {data->size_bytes, far->size_bytes}; // what follows is no part of training
    settle_values(s);
    const CheckpointSites sites = site_values(s).list;
    Error error, late; // what went wrong first is what is told
    CheckpointWriter writer;
    agree(t, !is_main(t) || checkpoint_begin(out, &state, m, &s->layout.mesh.sync, &sites, &error), &error);
    bool ok = checkpoint_join(&writer, out, state.step, m, &sites, &error);
    int32_t joined = ok;
    comm_all_reduce(&t->world, &joined, 1, COMM_INT32, COMM_MIN);
    if (joined) ok = write_slices(s, &writer, &error);
    data->size_bytes = counted[0], far->size_bytes = counted[1];
    const bool left = checkpoint_leave(&writer, ok, ok ? &error : &late);
    ok = ok && left;
    int64_t written = ok ? writer.elements : -1;
    comm_all_reduce(&t->world, &written, 1, COMM_INT64, COMM_MIN);
    if (written < 0 && is_main(t)) checkpoint_abandon(out, state.step);
    agree(t, ok, &error);
    written = writer.elements;
    comm_all_reduce(&t->world, &written, 1, COMM_INT64, COMM_SUM);
    if (written != checkpoint_values(&sites) * model_parameters(m)) die("internal error: a checkpoint with holes");
    agree(t, !is_main(t) || checkpoint_publish(out, state.step, &error), &error);
}

// Sets values of a bucket from `whole` (the bucket's elements, host memory).
static void set_values(const Stage* s, int b, Values values, const float* whole) {
    const Layout* layout = &s->layout;
    const int64_t at = layout->bucket[b].offset, n = layout->bucket[b].elements, share = bucket_share(layout, b);
    if (values.share)
        device_from_host(values.at + bucket_share_offset(layout, b), whole + layout->mesh.data * share,
                         (size_t)share * sizeof(float));
    else
        device_from_host(values.at + at, whole, (size_t)n * sizeof(float));
}

// The weights that are computed with: rounded, and in float32 where they are kept so.
static void set_bucket_weights(const Stage* s, int b, const float* whole) {
    const Values masters = {s->master, s->layout.mesh.zero > 0};
    device_from_floats(s->params + s->layout.bucket[b].offset, whole, s->layout.bucket[b].elements);
    if (HAS_MASTERS) set_values(s, b, masters, whole);
}

// Reads what this rank needs: of sites that go their own way, weights are the common point; then come its own.
static bool read_slices(Trainer* t, const CheckpointReader* reader, Error* error) {
    const Stage* s = &t->stage;
    const Layout* layout = &s->layout;
    const SiteValues sites = site_values(s);
    const bool local = rounds_are_local(&s->rounds);
    const int copy = local ? mesh_site(&layout->mesh) : 0;
    float* whole = (float*)checked_malloc((size_t)largest_bucket(layout) * sizeof(float), "the values of a bucket");
    bool ok = true;
    for (int b = 0; b < layout->buckets && ok; b++) {
        for (int what = 0; what < CHECKPOINT_VALUES && ok; what++) {
            ok = checkpoint_read_bucket(reader, layout, b, what, whole, error);
            if (ok && what == 0) set_bucket_weights(s, b, whole);
            if (ok && (what > 0 || local)) set_values(s, b, stage_values(s, what), whole);
        }
        for (int kind = 0; kind < sites.list.kinds && ok; kind++) {
            ok = checkpoint_read_bucket(reader, layout, b, checkpoint_value_of_site(&sites.list, kind, copy), whole,
                                        error);
            if (ok) set_values(s, b, sites.of[kind], whole);
        }
    }
    free(whole);
    return ok;
}

// Takes up the newest checkpoint of --out; returns false if there is none.
static bool resume_checkpoint(Trainer* t) {
    const Settings* o = &t->settings;
    char path[4096] = "";
    if (is_main(t) && !checkpoint_newest(path, sizeof path, o->out)) path[0] = 0;
    comm_broadcast(&t->world, path, sizeof path, COMM_BYTE, 0);
    if (!path[0]) {
        if (is_main(t)) printf("resume    no checkpoint in %s: a new run\n", o->out);
        return false;
    }
    CheckpointReader reader;
    const CheckpointState now = checkpoint_state(t);
    CheckpointState state = now;
    const CheckpointSites sites = site_values(&t->stage).list;
    Error error;
    agree(t, checkpoint_check_sync(path, &t->stage.layout.mesh.sync, &error), &error);
    agree(t, checkpoint_open(&reader, path, &state, &sites, &error), &error);
    if (strcmp(now.rounds, state.rounds) != 0)
        die_usage(
            "%s is of a run with %s, this is one with %s: a resumed run needs the same (a new one can --init from it)",
            path, state.rounds[0] ? state.rounds : "--dp-mode sync", now.rounds[0] ? now.rounds : "--dp-mode sync");
    agree(t, read_slices(t, &reader, &error), &error);
    checkpoint_close(&reader);
    const struct {
        const char* what;
        int64_t now, then;
    } same[] = {{"--seed is", now.seed, state.seed},
                {"--global-batch is", now.global_batch, state.global_batch},
                {"--seq is", now.seq, state.seq},
                {"--data has as many tokens as", now.data_tokens, state.data_tokens}};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        if (same[i].now != same[i].then) {
            die_usage("%s %lld, but %s was made with %lld: a resumed run needs the same (a new one can --init from it)",
                      same[i].what, (long long)same[i].now, path, (long long)same[i].then);
        }
    }
    t->step = state.step, t->sequences = state.sequences;
    round_parameters(&t->stage, o, updates_at(t, t->step));
    t->stage.grads.due = true; // what is due in the next step was read
    if (is_main(t)) printf("resume    %s: step %lld\n", path, (long long)t->step);
    return true;
}

// Writes what all ranks recorded to --trace.
static void write_trace(Trainer* t) {
    const char* path = t->settings.trace;
    FILE* out = is_main(t) ? fopen(path, "w") : NULL;
    Error error;
    agree(t, out || !is_main(t) || fail(&error, "--trace %s: cannot write: %s", path, strerror(errno)), &error);
    const Pipeline* plan = &t->schedule.plan;
    const Mesh* mesh = &t->stage.layout.mesh;
    char about[256]; // what dev/draw needs to know
    snprintf(about, sizeof about,
             "{\"schedule\":\"%s\",\"t\":%d,\"p\":%d,\"d\":%d,\"v\":%d,\"m\":%d,\"reduce_every\":%s,\"tied\":%s,"
             "\"clip\":%s}",
             schedule_name(plan->kind), mesh->t, mesh->p, mesh->d, mesh->v, plan->m,
             plan->reduce_every ? "true" : "false", plan->tied ? "true" : "false", plan->clip ? "true" : "false");
    const bool ok = trace_gather(out, &t->world, mesh, about, &t->trace);
    if (!is_main(t)) return;
    if (fclose(out) != 0 || !ok) die("--trace %s: cannot write: %s", path, strerror(errno));
    printf("trace     %s: open it in chrome://tracing or https://ui.perfetto.dev\n", path);
}

// Opens the groups of the mesh, gives them their plans, and what sites say to each other a thread.
static void open_groups(Trainer* t) {
    Stage* s = &t->stage;
    groups_open(&t->groups, &t->world, &s->layout, &s->model);
    s->groups = s->sites.groups = &t->groups;
    if (rounds_are_late(&s->rounds)) comm_open_thread(&t->groups.far); // before its plans: it looks after them
    for (int kind = 0; kind < PLAN_KINDS; kind++) {
        if (t->sums[kind].n) comm_use_plan(&t->groups.data, &t->sums[kind]);
        if (t->far_sums[kind].n) comm_use_plan(&t->groups.far, &t->far_sums[kind]);
    }
}

// ================================================================================================================
// 4. main

// A GPU's first step would take memory, load kernels and try out products: all of that waits for messages that are
// expected, while their sender may wait for this rank. So each chunk passes over a micro-batch before there are any messages,
// and before there are weights: of the gradients that this leaves nothing may be taken for one of the run.
static void warm_up(Trainer* t) {
    Stage* s = &t->stage;
    Activations* a = &s->activations[0];
    if (DEVICE_IS_HOST) return;
    batch_reserve(&t->batch, most_tokens(s));
    device_zero(t->batch.device, 2 * (size_t)t->batch.tokens * sizeof(int32_t));
    for (int c = 0; c < s->layout.mesh.v; c++) {
        activations_shape(a, s, c, 0, s->B, s->T, -1);
        a->inputs = t->batch.device, a->targets = t->batch.device + t->batch.tokens;
        a->scale = 1;
        chunk_forward(s, a);
        const Backward w = {s, a, &s->gradients[c][0], BOTH_HALVES, false};
        chunk_backward(&w);
    }
    device_zero(s->memory_grads.base, s->memory_grads.size);
    comm_synchronize(&t->world);
}

static bool is_due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

// Host memory for the weights of the stage in float32, zeroed: the parameters themselves where they are that.
static float* weights_begin(const Stage* s) {
    if (DEVICE_IS_HOST) return (float*)s->params;
    return (float*)checked_calloc((size_t)s->layout.elements, sizeof(float), "the initial weights");
}

// Gives them to the device.
static void weights_end(const Stage* s, float* weights) {
    if (DEVICE_IS_HOST) return;
    for (int b = 0; b < s->layout.buckets; b++) set_bucket_weights(s, b, weights + s->layout.bucket[b].offset);
    free(weights);
}

static void draw_weights(const Stage* s, int64_t seed) {
    float* weights = weights_begin(s);
    layout_initialize(weights, &s->layout, (uint64_t)seed);
    weights_end(s, weights);
}

// Initial weights: from the newest checkpoint, from --init, or drawn. Returns true if a run is resumed.
static bool set_weights(Trainer* t) {
    const Stage* s = &t->stage;
    const Settings* o = &t->settings;
    Error error;
    if (o->resume && resume_checkpoint(t)) return true;
    if (o->init) {
        float* weights = weights_begin(s);
        agree(t, checkpoint_check_sync(o->init, &s->layout.mesh.sync, &error), &error);
        agree(t, checkpoint_init(o->init, &s->model, &s->layout, weights, &error), &error);
        weights_end(s, weights);
    } else {
        draw_weights(s, o->seed);
    }
    return false;
}

// Refuses a folder that cannot be written, or that holds another run: returns the exit status, or 0.
static int prepare_out(const Settings* o, Error* error) {
    char path[4096];
    struct stat st;
    bool ok = true;
    if (mkdir(o->out, 0777) != 0 && errno != EEXIST)
        ok = fail(error, "--out %s: cannot make the folder: %s", o->out, strerror(errno));
    else if (stat(o->out, &st) != 0 || !S_ISDIR(st.st_mode))
        ok = fail(error, "--out %s is not a folder", o->out);
    else if (access(o->out, W_OK | X_OK) != 0)
        ok = fail(error, "--out %s: cannot write there: %s", o->out, strerror(errno));
    if (!ok) return EXIT_RUN;
    snprintf(path, sizeof path, "%s/log.jsonl", o->out);
    if (o->resume || stat(path, &st) != 0) return 0;
    fail(error, "--out %s holds a run already; add --resume to go on with it, or choose another folder", o->out);
    return EXIT_ARGUMENTS;
}

static void train(Trainer* t, double peak, double started) {
    const Settings* o = &t->settings;
    warm_up(t);
    const bool resumed = set_weights(t);
    if (!resumed) stage_begin(&t->stage);
    FILE* log = o->out && is_main(t) ? log_open(o->out, resumed, t->step) : NULL;
    const double flops = model_flops_per_token(&t->stage.model, t->stage.T) * (double)o->global_batch * t->stage.T;
    comm_barrier(&t->world);
    if (o->trace) t->trace.zero = seconds_now();
    if (is_main(t)) printf("ready     %.2f s after the start\n", seconds_now() - started);
    const int64_t first = t->step;
    const Bytes sent = bytes_sent(t);
    const double loop_started = seconds_now();
    while (t->step < o->steps) {
        const double before = seconds_now();
        train_step(t);
        const double seconds = seconds_now() - before, mfu = peak > 0 ? flops / seconds / peak : 0;
        const bool last = t->step == o->steps;
        const bool evaluates = o->eval_every && (last || is_due(t->step, o->eval_every));
        const bool samples = is_due(t->step, o->sample_every) && !last;
        if (evaluates) stage_enter_common(&t->stage, o, t->step);
        t->val_loss = evaluates ? validate(t) : (double)NAN;
        if (evaluates) stage_leave_common(&t->stage, o, t->step);
        const double per_step = (seconds_now() - loop_started) / (double)(t->step - first);
        if (is_main(t)) print_step(t, seconds, mfu, per_step * (double)(o->steps - t->step));
        if (o->out) {
            const int64_t most = peak_bytes(t);
            if (log) log_step(log, t, seconds, mfu, most);
        }
        if (o->out && (last || is_due(t->step, o->save_every))) save_checkpoint(t);
        if (samples) stage_enter_common(&t->stage, o, t->step);
        if (samples) sample(t, 256);
        if (samples) stage_leave_common(&t->stage, o, t->step);
    }
    if (log && fclose(log) != 0) die("%s/log.jsonl: cannot write: %s", o->out, strerror(errno));
    char duration[32];
    write_duration(duration, sizeof duration, seconds_now() - loop_started);
    if (is_main(t)) printf("done      %lld steps in %s\n", (long long)(t->step - first), duration);
    stage_settle(&t->stage);
    const Bytes all = bytes_of_all(t, sent, true);
    if (is_main(t) && t->step > first) print_traffic(t, all, first);
    if (o->trace) write_trace(t);
    if (o->sample_every) stage_enter_common(&t->stage, o, t->step);
    if (o->sample_every) sample(t, 512);
}

// From here on what this rank does and says is recorded. A file that cannot be written is refused now, not at the end.
static void start_tracing(Trainer* t) {
    const char* path = t->settings.trace;
    struct stat st;
    Error error;
    const bool new_file = is_main(t) && stat(path, &st) != 0;
    FILE* out = is_main(t) ? fopen(path, "a") : NULL;
    agree(t, out || !is_main(t) || fail(&error, "--trace %s: cannot write: %s", path, strerror(errno)), &error);
    if (out) fclose(out);
    if (new_file) unlink(path);
    Comm* list[GROUPS];
    groups_list(&t->groups, list);
    trace_init(&t->trace, 1 << 20);
    t->tracing = t->world.trace = &t->trace;
    for (int i = 0; i < GROUPS; i++) list[i]->trace = &t->trace;
}

static void prove(const Schedule* stages, int p) {
    Error wrong;
    if (!schedule_check(stages, p, &wrong)) die("internal error: the schedule is wrong: %s", wrong.text);
}

// The schedule of this rank (rounds = NULL: sync), proved together with those of the other stages. Returns false if there is none for so many
// micro-batches.
static bool plan_schedule(Trainer* t, const ModelConfig* model, const Mesh* mesh, const Rounds* rounds, Error* error) {
    const Settings* o = &t->settings;
    const int m = (int)(o->global_batch / mesh->d / o->micro_batch);
    const bool norm_first = o->clip > 0 || (rounds && rounds->compensation > 0); // which the update needs
    const Pipeline plan = {mesh->schedule, mesh->p, mesh->v, m, mesh->zero == 2, model->tied, norm_first};
    if (!pipeline_check(&plan, error)) {
        char nearest[64];
        if (plan.kind != INTERLEAVED || plan.m % plan.p == 0) return false;
        const Error why = *error;
        return fail(error, "%.800s, that is --global-batch %s", why.text,
                    pipeline_nearest(nearest, &plan, o->micro_batch * mesh->d));
    }
    Schedule* stages = schedules_build(&plan);
    prove(stages, mesh->p);
    schedules_free(stages, mesh->p);
    t->schedule = schedule_build(&plan, mesh->pipeline);
    return true;
}

// The same of the forward passes of a validation.
static void prove_validation(const Trainer* t) {
    const Pipeline* plan = &t->schedule.plan;
    const int64_t at_once = (int64_t)t->stage.B * t->stage.layout.mesh.d;
    const int64_t most = (validation_sequences(t) + at_once - 1) / at_once; // micro-batches of a replica
    if (most * plan->p * plan->v > SCHEDULE_LARGEST)
        die_usage("--eval-sequences %lld: %lld micro-batches are more than a schedule takes; use fewer sequences, or a "
                  "larger "
                  "--micro-batch",
                  (long long)t->settings.eval_sequences, (long long)most);
    const int p = plan->p, m = validation_microbatches(t);
    if (m == 0) return;
    Schedule* stages = schedules_build(plan);
    for (int i = 0; i < p; i++) {
        const Schedule forward = schedule_build_forward(&stages[i], m);
        schedule_free(&stages[i]);
        stages[i] = forward;
    }
    prove(stages, p);
    schedules_free(stages, p);
}

// Refuses a run that the machine's memory cannot hold, before any of it is taken.
static void check_memory(Trainer* t) {
    double needed = stage_bytes(&t->stage);
    comm_all_reduce(&t->world, &needed, 1, COMM_DOUBLE, COMM_MAX);
    needed *= device_ranks_sharing(t->place.ranks_here);
    const double there = device_bytes();
    Error error;
    agree(t,
          needed <= there || fail(&error,
                                  "the run needs %.1f GB of memory, there are %.1f; use a smaller --micro-batch, "
                                  "--seq or model, --recompute, or more ranks on more machines",
                                  needed / 1e9, there / 1e9),
          &error);
}

// Whether a kind of operation is one that the replicas of a site (far = false), or sites, do in every step or round.
static bool sums_need(const Stage* s, bool far, PlanKind kind) {
    const Mesh* mesh = &s->layout.mesh;
    const bool halves = mesh->zero > 0 || (!far && s->grads.across); // a reduce-scatter, then an all-gather
    if ((far ? mesh->sites : mesh_site_size(mesh)) == 1) return false;
    if (far && s->rounds.bits < 32) return kind == PLAN_ALL_GATHER;
    return (kind == PLAN_ALL_REDUCE) != halves;
}

static bool build_sums(Plan plans[PLAN_KINDS], const Stage* s, bool far, const char* name, const Network* net,
                       Error* error) {
    bool ok = true;
    for (int kind = 0; kind < PLAN_KINDS && ok; kind++) {
        if (!sums_need(s, far, (PlanKind)kind)) continue;
        ok = collective_build(&plans[kind], name, (PlanKind)kind, net, error) && plan_check(&plans[kind], net, error);
    }
    return ok;
}

// Of --allreduce on --topology, which joins the replicas of a site, or, where each is one, the sites.
static bool plan_named_sums(Trainer* t, const Mesh* mesh, bool far, Error* error) {
    const Settings* o = &t->settings;
    const int replicas = far ? mesh->sites : mesh_site_size(mesh);
    char usual[32];
    Network net;
    bool ok = true;
    snprintf(usual, sizeof usual, "full:%d", replicas);
    if (!network_build(&net, o->topology ? o->topology : usual, error)) return false;
    if (net.ranks != replicas)
        ok = fail(error, "--topology %s joins %d ranks, but there are %d replicas%s whose gradients are summed over it",
                  o->topology, net.ranks, replicas, mesh->sites > 1 && !far ? " in a site" : " (--dp)");
    ok = ok && build_sums(far ? t->far_sums : t->sums, &t->stage, far, o->allreduce, &net, error);
    network_free(&net);
    return ok;
}

// --allreduce and --topology: the plans of the data group, or, where every replica is a site, of the far group
// (collective.h). Sites that do not wait for each other have a plan in any case, a ring where none is named: what a thread
// carries are MPI's calls that do not block, and those of Open MPI take a tree that sends four times as much.
static bool plan_sums(Trainer* t, const Mesh* mesh, Error* error) {
    const Settings* o = &t->settings;
    const bool far = mesh->sites > 1 && mesh_site_size(mesh) == 1;
    char usual[32];
    Network net;
    if (o->allreduce && mesh->d == 1)
        return fail(error, "--allreduce %s: there is one replica (--dp 1), and nothing to sum", o->allreduce);
    if (o->allreduce && !plan_named_sums(t, mesh, far, error)) return false;
    if (mesh->sites == 1 || (o->allreduce && far) || !rounds_are_late(&t->stage.rounds)) return true;
    snprintf(usual, sizeof usual, "full:%d", mesh->sites);
    if (!network_build(&net, usual, error)) return false;
    const bool ok = build_sums(t->far_sums, &t->stage, true, "ring", &net, error);
    network_free(&net);
    return ok;
}

#ifndef TRAIN_GPT_NO_MAIN // test_gpt.c includes this file and has a main of its own

// Ranks that were not started alike would wait for each other for ever.
static void check_ranks(Trainer* t, int argc, char** argv) {
    size_t length = 1;
    for (int i = 1; i < argc; i++) length += strlen(argv[i]) + 1;
    char *arguments = (char*)checked_calloc(length, 1, "the arguments"), build[128];
    for (int i = 1; i < argc; i++) strcat(strcat(arguments, i > 1 ? " " : ""), argv[i]);
    comm_check_same(&t->world, "arguments", arguments, "start all ranks with the same");
    free(arguments);
    comm_build_text(build, sizeof build);
    comm_check_same(&t->world, "executable", build, "copy one build to all machines");
}

int main(int argc, char** argv) {
    device_tame_threads(argv);
    device_return_memory();
    device_flush_tiny();
    const double started = seconds_now();
    process.name = "train_gpt";
    static Trainer trainer;
    Trainer* t = &trainer;
    comm_open(&t->world);
    check_ranks(t, argc, argv);
    comm_share_cores(&t->world, &t->place);
    device_set_threads(t->place.threads);

    t->settings = settings_default();
    Settings* o = &t->settings;
    Option table[MAX_OPTIONS];
    const int n = settings_table(table, o);
    Error error;
    if (!options_parse(table, n, argc, argv, &error)) die_usage("%s", error.text);
    if (o->help) {
        Settings defaults = settings_default();
        Option rows[MAX_OPTIONS];
        if (is_main(t)) {
            printf("train_gpt trains a GPT; without options a small one, on text that is always there.\n"
                   "mpirun -np N train_gpt does it on N ranks.\n");
            options_help(rows, settings_table(rows, &defaults), stdout);
        }
        comm_close(&t->world);
        return 0;
    }
    check_settings(o);
    if (!o->dry_run) {
        device_open(t->place.rank_here);
        comm_open_device(&t->world);
    }
    settings_schedule(o, option_given(table, n, "schedule"));
    const Mesh mesh = settings_mesh(o, t->world.rank, t->world.size);
    const Rounds rounds = settings_rounds(o, &mesh);
    settings_batch(o);
    open_files(t);
    const int data_vocab = token_formats[t->train_files.format].vocab;
    if (!data_vocab && !o->vocab && !option_given(table, n, "model")) {
        die_usage("%s holds raw uint16 tokens, which do not say of which vocabulary: give --vocab", o->data);
    }
    const ModelConfig model = settings_model(o, table, n, data_vocab);
    const int T = o->seq ? (int)o->seq : model.T;
    if (!mesh_check(&mesh, &model, T, &error) || !rounds_fit(&rounds, model.L, &error) ||
        !plan_schedule(t, &model, &mesh, &rounds, &error) ||
        !stage_plan(&t->stage, &model, mesh, (int)o->micro_batch, T, &t->schedule, &rounds, values_here(), &error) ||
        !plan_sums(t, &mesh, &error)) {
        die_usage("%s", error.text);
    }
    open_loaders(t);
    if (o->eval_every) prove_validation(t);
    double peak = 0;
    if (!o->dry_run) {
        comm_barrier(&t->world);
        peak = device_peak_flops(t->place.cores_here, t->place.ranks_here);
        comm_all_reduce(&t->world, &peak, 1, COMM_DOUBLE, COMM_SUM);
    }
    if (is_main(t)) print_plan(t, peak);
    if (!o->dry_run) {
        if (o->out) agree_on(t, is_main(t) ? prepare_out(o, &error) : 0, &error);
        check_memory(t);
        stage_allocate(&t->stage);
        open_groups(t);
        if (o->trace) start_tracing(t);
        train(t, peak, started);
        groups_close(&t->groups);
    }
    batch_free(&t->batch);
    stage_free(&t->stage);
    schedule_free(&t->schedule);
    for (int kind = 0; kind < PLAN_KINDS; kind++) plan_free(&t->sums[kind]), plan_free(&t->far_sums[kind]);
    trace_free(&t->trace);
    tokens_close(&t->train_files);
    tokens_close(&t->val_files);
    comm_close(&t->world);
    return 0;
}
#endif
