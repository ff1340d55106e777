/*
train_gpt.cu: trains a GPT in tensor, pipeline and data parallel. The file to read first, from top to bottom:

    1. a stage       the part of the model that this process holds: forward and backward pass, update
    2. the step      the schedule's actions, executed
    3. around it     validation, sampling, checkpoints
    4. main

A process is one rank of a mesh t x p x d. parallel.h says which slices of which tensors it holds, parallel/schedule.h in which
order it works, parallel/stage.h which memory it has for that, parallel/exchange.h what it says to the others, methods/async_dp.h what sites do that do
not wait for each other; a process started alone is the mesh 1 x 1 x 1. What it holds is in trainer/trainer.h, what it opens and plans
before it begins in trainer/setup.h, what it says in trainer/logger.h; checkpoint/async_save.h, trainer/health.h, trainer/watchdog.h and trainer/graceful_stop.h look after long runs.

The same text runs on CPU cores and on GPUs. kernels/kernels.h brings the kernels, device.h memory. Parameters and
activations are floatX, float32 on the CPU and by default bf16 on a GPU; gradients of parameters, the optimizer's memory,
statistics of rows and losses are float32 everywhere. What a kernel makes is read by the host only after device_to_host.

Notation: B sequences of T tokens in a micro-batch, N = B T rows; C, F, NH, NKV, HS, V as in model.h. NH, NKV, F and V of
a layout are this rank's share. R rows of the residual stream: N, or N / t with --sequence-parallel.

A rank of a CAAT-Net (--sync) may hold several states (parallel.h), each with a residual stream and a share of every matrix of
its own. They lie one behind the other, so for all that works on rows, heads or numbers they are more sequences: B counts
those of all states, N their rows. Only what multiplies by a matrix, and what meets tokens, goes state by state.
*/
#include "comm/check_same.h"
#include "util/base.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/pretrained.h"
#include "comm/collectives/collectives.h"
#include "comm.h"
#include "comm/cpu_affinity.h"
#include "dataloader.h"
#include "planner/flags.h"
#include "dataloader/eval_loader.h"
#include "parallel/exchange.h"
#include "checkpoint/export.h"
#include "trainer/health.h"
#include "util/json.h"
#include "kernels/kernels.h"
#include "util/append_log.h"
#include "model.h"
#include "parallel.h"
#include "methods/async_schedule.h"
#include "trainer/sampler.h"
#include "checkpoint/async_save.h"
#include "parallel/schedule.h"
#include "trainer/settings.h"
#include "trainer/setup.h"
#include "methods/async_dp.h"
#include "parallel/stage.h"
#include "trainer/graceful_stop.h"
#include "trainer/logger.h"
#include "dataloader/tokenizer.h"
#include "util/trace.h"
#include "trainer/watchdog.h"
#include <signal.h>

// ================================================================================================================
// 1. A stage: the blocks that this process holds. What memory it has, Stage and all that is in it, is in parallel/stage.h.

// ----------------------------------------------------------------------------------------------------------------
// Forward. What stands between two lines of reduce_from_tensor_region and gather_from_sequence_region is one rank's share of a block.

// Says what a holds from now on: micro-batch k in a chunk, B sequences of T tokens in each state, or (position >= 0) one
// token at that position.
static void activations_bind(Activations* a, const Stage* s, int chunk, int k, int B, int T, int position) {
    a->chunk = &s->layout.chunk[chunk];
    a->head = a->chunk->last ? &s->head[k % s->heads] : NULL;
    a->B = s->layout.states * B, a->T = T, a->N = a->B * T, a->tokens = B * T, a->position = position;
    a->remembers = false;
    a->split = splits_rows(s) && position < 0;
    a->R = a->split ? a->N / s->layout.mesh.t : a->N;
    a->positions = NULL;
}

// What the forward pass keeps of a block, and the residual stream before it; layers are numbered over all chunks of the
// stage. After the last block of the chunk it is the stream at its number + 1.
static LayerActivations* layer_acts(const Activations* a, int layer) { return &a->layers[layer - a->chunk->begin]; }

static floatX* residual_stream(const Activations* a, int layer) { return a->x[layer - a->chunk->begin]; }

static floatX* chunk_output(const Activations* a) { return a->x[a->chunk->layers]; }

// Where a partial sum of all rows is computed before reduce_from_tensor_region puts this rank's rows of the sum into mine.
static floatX* tp_partial_buffer(const Stage* s, const Activations* a, floatX* mine) { return a->split ? s->partial : mine; }

// All rows of mine.
static const floatX* tp_gather_input(const Stage* s, const Activations* a, const floatX* mine) {
    if (!a->split) return mine;
    gather_from_sequence_region(s->groups, true, s->gathered, mine, (int64_t)a->N * s->model.C);
    return s->gathered;
}

// out (N, OC) = x W^T + bias, state by state.
static void tp_linear_forward(const Stage* s, const Activations* a, floatX* out, const floatX* x, int layer, TensorKind w,
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
static void caat_reduce(const Stage* s, const Activations* a, floatX* z, const floatX* x, bool back) {
    const CaatConfig* sync = &s->layout.mesh.sync;
    const int states = s->layout.states, C = s->model.C, S = s->layout.shared;
    const float factor = (float)sync_factor(sync);
    const int64_t n = (int64_t)a->tokens * S;
    if (back && !sync->narrow) {
        caat_pack(s->shared, x, states, a->tokens, C, S);
        comm_all_reduce(&s->groups->tensor, s->shared, n, COMM_FLOAT, COMM_SUM);
        caat_unpack(z, s->shared, x, factor, states, a->tokens, C, S);
    } else {
        floatX* shared = (floatX*)s->shared;
        caat_pack(shared, x, states, a->tokens, C, S);
        comm_all_reduce(&s->groups->tensor, shared, n, COMM_FLOATX, COMM_SUM);
        caat_unpack(z, shared, x, factor, states, a->tokens, C, S);
    }
}

// While a step is repeated: looks at what this rank has made itself at a place of the computation (trainer/health.h), before it is added
// to what others have. layer: of this rank, if the place is in a block.
static void nan_probe(const Stage* s, const Activations* a, StepPlace place, int layer, const floatX* x, int64_t n) {
    if (!s->probe) return;
    probe_values(s->probe, place_on_way(s->probe, place, a->chunk->first_layer + layer - a->chunk->begin), x, n);
}

// What a row-parallel layer adds to the residual stream, from this rank's part of it: the sum over the ranks, or of what
// is shared. mine may be partial.
static void tp_reduce_output(const Stage* s, const Activations* a, floatX* mine, floatX* partial) {
    if (is_caat(s))
        caat_reduce(s, a, mine, partial, false);
    else
        reduce_from_tensor_region(s->groups, a->split, mine, partial, (int64_t)a->N * s->model.C);
}

// The gradient of a column-parallel layer's input, from this rank's part of it: the sum over the ranks; every state of a
// CAAT-Net has an input of its own.
static CommRequest tp_reduce_input_grad_start(const Stage* s, const Activations* a, floatX* mine, floatX* partial) {
    if (is_caat(s)) return no_request();
    return reduce_from_tensor_region_start(s->groups, a->split, mine, partial, (int64_t)a->N * s->model.C);
}

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

// Where a state's logits begin.
static floatX* logits_of(const Stage* s, const Activations* a, int state) {
    return a->head->logits + (int64_t)state * a->tokens * s->layout.V;
}

// logits = final norm W^T: this rank's share of the vocabulary; every state makes its own, from its own stream.
static void head_forward(const Stage* s, Activations* a) {
    const HeadActivations* h = a->head;
    tp_linear_forward(s, a, h->logits, tp_gather_input(s, a, h->final_norm), -1, lm_head_kind(s), NO_TENSOR, s->model.C, s->layout.V);
}

// Where one rank has the whole vocabulary in one piece and a gradient is wanted, the logits become it at once.
static bool uses_fused_classifier(const Stage* s, const Activations* a) {
    return mesh_tp_cuts(&s->layout.mesh) == 1 && a->scale != 0;
}

// Vocabulary parallel: three numbers a row go between the ranks, the logits never do. The states of a rank first put theirs
// together, in the memory of the first.
static void vocab_parallel_cross_entropy(const Stage* s, Activations* a) {
    const int N = a->tokens, V = s->layout.V;
    const Layout* layout = &s->layout;
    Comm* tensor = &s->groups->tensor;
    HeadActivations* h = a->head;
    if (uses_fused_classifier(s, a)) {
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
                         layout_vocab_offset(layout, i));
        if (i > 0) accumulate(h->row_sum, sum, 2 * (int64_t)N);
    }
    comm_all_reduce(tensor, h->row_sum, 2 * (int64_t)N, COMM_FLOAT, COMM_SUM);
    h->target_logit = h->row_sum + N;
    crossentropy_loss(h->losses, h->row_sum, h->target_logit, N);
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

// Buckets of gradients (parallel/exchange.h): begin before something is added, end when nothing more will be.
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

// The gradients of a linear layer, state by state: dx (N, C) = dout W.
static void tp_linear_backward_input(const Stage* s, const Activations* a, floatX* dx, const floatX* dout, int layer, TensorKind w,
                         int C, int OC) {
    for (int i = 0; i < s->layout.states; i++) {
        const int64_t row = (int64_t)i * a->tokens;
        linear_backward_input(dx + row * C, dout + row * OC, weight_of(s, layer, w, i), a->tokens, C, OC);
    }
}

// dW += dout^T x and, where there is a bias, db += sum of the rows of dout.
static void tp_linear_backward_weight(const Stage* s, const Activations* a, int layer, TensorKind w, TensorKind b,
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
static TensorKind caat_skip_bias(const Stage* s, TensorKind bias) { return is_caat(s) ? NO_TENSOR : bias; }

static void caat_bias_grad(const Stage* s, const Activations* a, int layer, TensorKind bias, const floatX* dx) {
    if (is_caat(s) && s->model.arch == ARCH_GPT2) linear_backward_bias(gradient(s, layer, bias), dx, a->N, s->model.C);
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

// CAAT-Net: all states began with the same numbers, so the gradient of these is the sum of theirs, of all channels and over
// all ranks: (tokens, C), in scratch memory.
static const floatX* caat_reduce_streams(const Stage* s, const Activations* a, const floatX* dx) {
    const int states = s->layout.states, C = s->model.C;
    const int64_t n = (int64_t)a->tokens * C;
    floatX* narrow = s->branch;
    if (s->layout.mesh.sync.narrow) {
        caat_pack(narrow, dx, states, a->tokens, C, C);
        comm_all_reduce(&s->groups->tensor, narrow, n, COMM_FLOATX, COMM_SUM);
    } else {
        caat_pack(s->shared, dx, states, a->tokens, C, C);
        comm_all_reduce(&s->groups->tensor, s->shared, n, COMM_FLOAT, COMM_SUM);
        caat_unpack(narrow, s->shared, narrow, 1.0f, 1, a->tokens, C, C);
    }
    return narrow;
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

// ----------------------------------------------------------------------------------------------------------------
// Update

// The part [*from, *to) of a slice that this rank updates: all of it, or with ZeRO what lies in its share of the bucket.
static void owned_range(const Stage* s, const Slice* slice, int64_t* from, int64_t* to) {
    const Layout* layout = &s->layout;
    *from = slice->offset, *to = slice->offset + slice_elements(slice);
    if (!layout->mesh.zero) return;
    const int64_t n = bucket_shard_size(layout, slice->bucket);
    const int64_t begin = layout->bucket[slice->bucket].offset + layout->mesh.data * n;
    *from = max_i64(*from, begin), *to = min_i64(*to, begin + n);
}

// Where element `at` of the parameters is found in gradients and moments: at the same place, or in a share.
static int64_t shard_offset(const Stage* s, const Slice* slice, int64_t at) {
    const Layout* layout = &s->layout;
    if (!layout->mesh.zero) return at;
    const int b = slice->bucket;
    return bucket_shard_offset(layout, b) + at -
           (layout->bucket[b].offset + layout->mesh.data * bucket_shard_size(layout, b));
}

// The weights that an update changes, in float32: parameter number `from`, which lies at `at` where shares do.
static float* fp32_weights(const Stage* s, int64_t from, int64_t at) {
    return HAS_MASTER_WEIGHTS ? s->master + at : (float*)s->params + from;
}

// The way from where a gradient was computed to where it is used: `to` minus `from`, of n parameters; to = NULL: none. Of
// dc-s3gd from a site's own weights to the common point, of a late gradient from the weights before the last update.
typedef struct {
    const float *from, *to;
} WeightDelta;

static WeightDelta weight_delta_of_gradient(const Stage* s, int64_t from, int64_t at) {
    WeightDelta way = {NULL, NULL};
    if (s->rounds.compensation == 0) return way;
    if (s->rounds.mode == DP_DC_S3GD) way.from = s->sites.own + from, way.to = s->sites.base + from;
    if (s->before) way.from = s->before + at, way.to = fp32_weights(s, from, at);
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
        owned_range(s, slice, &from, &to);
        if (!slice_is_owned(slice, &s->layout) || (!mesh->zero && mesh_rank_in_site(mesh) > 0) || from >= to) continue;
        const int64_t at = shard_offset(s, slice, from);
        const WeightDelta way = weight_delta_of_gradient(s, from, at);
        sum_of_squares(s->sums + slice->index, grads_for_update(&s->grads) + at, to - from);
        if (way.to)
            delay_squares(s->sums + s->layout.tensors + 1 + slice->index, grads_for_update(&s->grads) + at, way.to, way.from,
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
    const float* g = grads_for_update(&s->grads) + at;
    float* master = HAS_MASTER_WEIGHTS ? s->master + at : NULL;
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
static void chunk_optimizer_step(Stage* s, int chunk, const Settings* o, int64_t step, double lr, double grad_scale) {
    const Layout* layout = &s->layout;
    for (int i = 0; i < layout->n; i++) {
        const Slice* slice = &layout->slices[i];
        int64_t from, to;
        owned_range(s, slice, &from, &to);
        if (from >= to || layout->bucket[slice->bucket].chunk != chunk) continue;
        const int64_t at = shard_offset(s, slice, from), n = to - from;
        const WeightDelta way = weight_delta_of_gradient(s, from, at);
        const float lambda = s->lambda[slice->index];
        if (way.to && lambda > 0) delay_compensate(grads_for_update(&s->grads) + at, way.to, way.from, lambda, n);
        float* weights = fp32_weights(s, from, at);
        if (s->before) device_copy(s->before + at, weights, (size_t)n * sizeof(float));
        if (s->rounds.mode == DP_DC_S3GD) device_copy(weights, s->sites.base + from, (size_t)n * sizeof(float));
        optimizer_step(s, slice, from, at, n, o, step, lr, grad_scale);
    }
    if (layout->mesh.zero) all_gather_params(s->params, s->groups, layout, chunk);
    for (int b = 0; b < layout->buckets && s->rounds.mode == DP_DC_S3GD; b++) {
        if (layout->bucket[b].chunk == chunk) async_dp_send_change(&s->sites, b);
    }
}

// The rounded parameters that the update of this step left, again from their float32 values: so a run that is taken up
// again goes on with the same bits. changed (buckets): only where it is true; NULL: everywhere. values: float32 values that lie
// as s->master does.
static void cast_to_floatx(const Stage* s, const float* values, const Settings* o, int64_t step, const bool* changed) {
    for (int i = 0; i < s->layout.n && HAS_MASTER_WEIGHTS; i++) {
        const Slice* slice = &s->layout.slices[i];
        int64_t from, to;
        owned_range(s, slice, &from, &to);
        if (from >= to || (changed && !changed[slice->bucket])) continue;
        adamw_round(s->params + from, values + shard_offset(s, slice, from), to - from, step, rounding_key(slice, o),
                    (uint64_t)(from - slice->offset));
    }
}

static void recast_parameters(const Stage* s, const Settings* o, int64_t step) {
    if (step == 0) return; // no update has been yet
    cast_to_floatx(s, s->master, o, step, NULL);
    for (int chunk = -1; chunk < s->layout.mesh.v && HAS_MASTER_WEIGHTS && s->layout.mesh.zero; chunk++)
        all_gather_params(s->params, s->groups, &s->layout, chunk);
}

// At the begin of a step. Gradients that are used late are on their way: these are not touched.
static void stage_begin_gradients(Stage* s) {
    if (!s->grads.late) {
        device_zero(s->memory_grads.base, s->memory_grads.size);
        return;
    }
    swap_grad_buffers(&s->grads, &s->layout);
    device_zero(s->grads.all, (size_t)s->layout.elements * sizeof(float));
    if (s->grad_embedding)
        device_zero(s->grad_embedding, (size_t)(s->layout.states * s->layout.V) * (size_t)s->model.C * sizeof(float));
}

// ----------------------------------------------------------------------------------------------------------------
// Where sites have weights of their own: after an update, and what is common

// Merges and sends what is due after the update of a step.
static void async_dp_step_end(Stage* s, const Settings* o, int64_t step) {
    if (!async_schedule_are_local(&s->rounds)) return;
    bool* changed = (bool*)checked_calloc((size_t)s->layout.buckets, sizeof(bool), "a round");
    if (s->rounds.mode == DP_DILOCO) async_dp_round(&s->sites, step, changed);
    if (s->rounds.mode == DP_DC_S3GD && s->rounds.delay == 0) async_dp_meet(&s->sites, changed);
    cast_to_floatx(s, s->master, o, step, changed);
    free(changed);
}

// At the begin of a run, with its initial weights: they are common, and none were before.
static void async_dp_init(const Stage* s) {
    if (async_schedule_are_local(&s->rounds)) async_dp_begin(&s->sites);
    for (int i = 0; i < s->layout.n && s->before; i++) {
        const Slice* slice = &s->layout.slices[i];
        int64_t from, to;
        owned_range(s, slice, &from, &to);
        const int64_t at = shard_offset(s, slice, from);
        if (from < to) device_copy(s->before + at, fp32_weights(s, from, at), (size_t)(to - from) * sizeof(float));
    }
}

// Waits for all that is on its way between sites.
static void async_dp_drain(Stage* s) {
    GradientBuckets* grads = &s->grads;
    if (async_schedule_are_local(&s->rounds)) async_dp_settle(&s->sites);
    if (!grads->late) return;
    swap_grad_buffers(grads, &s->layout); // they are due in the next step, which begins with a turn: so turn back
    for (int chunk = -1; chunk < s->layout.mesh.v; chunk++) finish_inter_site_sync(grads, s->groups, &s->layout, chunk);
    swap_grad_buffers(grads, &s->layout);
}

// From here to async_dp_restore_local the parameters are those of the common point, for validation and samples. Own weights are
// kept where gradients are computed at other times.
static void async_dp_load_global(Stage* s, const Settings* o, int64_t step) {
    if (!async_schedule_are_local(&s->rounds)) return;
    const size_t bytes = (size_t)s->layout.elements * sizeof(float);
    async_dp_settle(&s->sites);
    if (!HAS_MASTER_WEIGHTS) device_copy(s->grads.all, s->sites.own, bytes);
    async_dp_common(&s->sites, HAS_MASTER_WEIGHTS ? s->grads.all : (float*)s->params);
    cast_to_floatx(s, s->grads.all, o, step, NULL);
}

static void async_dp_restore_local(Stage* s, const Settings* o, int64_t step) {
    if (!async_schedule_are_local(&s->rounds)) return;
    if (!HAS_MASTER_WEIGHTS) device_copy(s->sites.own, s->grads.all, (size_t)s->layout.elements * sizeof(float));
    cast_to_floatx(s, s->master, o, step, NULL);
}

// ================================================================================================================
// 2. The step

// The sequences that a run through a schedule works on: micro-batch k of data rank r has the sequences from
// first + (r m + k) B on (training), or every d-th group of B (validation), but none from `end` on. They are those of
// loader, or the rows of an evaluation.
typedef struct {
    const Schedule* schedule;
    const DataMix* loader;
    int64_t first, end;
    bool trains;
    const Evaluation* evaluation; // NULL: none
    float* losses;                // (m, B, T), on the device: of an evaluation's tokens, where the head is
} StepInput;

// A run through a schedule. What it adds up is in stage.sums.
typedef struct {
    double started, waited; // when it began; seconds spent waiting for other stages
    double grad_scale;      // of the update: clipping
} StepClock;

static int64_t microbatch_first(const Trainer* t, const StepInput* pass, int k) {
    const Mesh* mesh = &t->stage.layout.mesh;
    const int m = pass->schedule->plan.m;
    const int64_t number = pass->trains ? (int64_t)mesh->data * m + k : (int64_t)k * mesh->d + mesh->data;
    return pass->first + number * t->stage.B;
}

static int microbatch_sequences(const Trainer* t, const StepInput* pass, int k) {
    return (int)min_i64(t->stage.B, pass->end - microbatch_first(t, pass, k));
}

enum { BATCH_ARRAYS = 3 };

static size_t batch_bytes(int64_t tokens) { return BATCH_ARRAYS * (size_t)tokens * sizeof(int32_t); }

static void batch_reserve(TokenBatch* batch, int64_t tokens) {
    if (batch->tokens >= tokens) return;
    const size_t bytes = batch_bytes(tokens), before = batch_bytes(batch->tokens);
    if (!DEVICE_IS_HOST) free(batch->host);
    device_free(batch->device, before);
    batch->device = (int32_t*)device_malloc(bytes, "the tokens of a batch");
    batch->host = DEVICE_IS_HOST ? batch->device : (int32_t*)checked_malloc(bytes, "the tokens of a batch");
    batch->tokens = tokens;
}

static void batch_free(TokenBatch* batch) {
    if (!DEVICE_IS_HOST) free(batch->host);
    device_free(batch->device, batch_bytes(batch->tokens));
    memset(batch, 0, sizeof *batch);
}

// Loads the tokens of all micro-batches of a pass, where the stage has the embedding or the head; and where documents begin,
// which all stages have to know.
static void load_batch(Trainer* t, const StepInput* pass) {
    const Stage* s = &t->stage;
    const int64_t room = (int64_t)pass->schedule->plan.m * s->B * s->T;
    const Evaluation* e = pass->evaluation;
    const bool documents = t->settings.documents;
    Error error;
    if (!s->layout.first_stage && !s->layout.last_stage && !documents) return;
    batch_reserve(&t->batch, room);
    for (int k = 0; k < pass->schedule->plan.m; k++) {
        for (int b = 0; b < microbatch_sequences(t, pass, k); b++) {
            int32_t* inputs = t->batch.host + ((int64_t)k * s->B + b) * s->T;
            int32_t *targets = inputs + t->batch.tokens, *positions = targets + t->batch.tokens;
            const int64_t sequence = microbatch_first(t, pass, k) + b;
            if (!(e ? evaluation_row(inputs, targets, e, s->model.V, sequence, &error)
                    : mix_sequence(inputs, targets, pass->loader, (uint64_t)sequence, &error)))
                die("%s", error.text);
            if (documents && e) evaluation_positions(positions, inputs, e, sequence);
            if (documents && !e) mix_positions(positions, inputs, pass->loader, (uint64_t)sequence);
        }
    }
    for (int i = 0; i < (documents ? 3 : 2) && !DEVICE_IS_HOST; i++)
        device_from_host(t->batch.device + i * t->batch.tokens, t->batch.host + i * t->batch.tokens,
                         (size_t)room * sizeof(int32_t));
}

// The tokens over whose losses a step's loss, and its gradient, are the mean: all, or those of this site where sites go
// their own way.
static double step_tokens(const Trainer* t) {
    const double tokens = (double)t->settings.global_batch * t->stage.T;
    return async_schedule_are_local(&t->stage.rounds) ? tokens / t->stage.rounds.sites : tokens;
}

// A gradient in fp16 would vanish if it were that of the mean loss: there it is that of the sum, and the update divides.
static double gradient_factor(const Trainer* t) { return NEEDS_LOSS_SCALE ? step_tokens(t) : 1; }

// Shapes a for micro-batch k in a chunk.
static void bind_microbatch(const Trainer* t, Activations* a, const StepInput* pass, int chunk, int k) {
    const Stage* s = &t->stage;
    const int32_t* inputs = t->batch.device + (int64_t)k * s->B * s->T;
    activations_bind(a, s, chunk, k, microbatch_sequences(t, pass, k), s->T, -1);
    if (a->chunk->first || a->chunk->last) a->inputs = inputs, a->targets = inputs + t->batch.tokens;
    if (t->settings.documents) a->positions = inputs + 2 * t->batch.tokens;
    a->scale = pass->trains ? (float)(gradient_factor(t) / step_tokens(t)) : 0; // the gradient is that of the mean loss
}

// Messages of the pipeline. A message about micro-batch k has a tag that tells apart the boundaries between parts of the
// model, the directions, and enough micro-batches; MPI promises tags up to 32767.
enum { TAG_FORWARD = 0, TAG_BACKWARD = 1 };

static int message_tag(const Schedule* schedule, int chunk, int k, int direction) {
    return (k * schedule->plan.v + chunk) % 8192 * 2 + direction;
}

static int64_t message_elements(const Trainer* t, const StepInput* pass, int k) {
    const Stage* s = &t->stage;
    const int64_t B = microbatch_sequences(t, pass, k);
    return boundary_elements(&s->layout.mesh, s->layout.states * B * s->T * s->model.C);
}

// The two ends of a boundary count its messages by the chunk that receives them.
static void start_receive(Trainer* t, const StepInput* pass, Action action) {
    const int k = action.microbatch, i = k % PIPELINE_BUFFERS_PER_DIRECTION, forward = action.kind == RECEIVE_FORWARD;
    PipelineBuffers* x = &t->stage.boundary[action.chunk];
    *(forward ? &x->receive_forward[i] : &x->receive_backward[i]) =
        comm_receive_start(&t->groups.pipeline, forward ? x->input[i] : x->gradient[i], message_elements(t, pass, k),
                           COMM_FLOATX, schedule_peer(pass->schedule, action.kind, action.chunk),
                           message_tag(pass->schedule, action.chunk, k, forward ? TAG_FORWARD : TAG_BACKWARD));
}

static void start_send(Trainer* t, const StepInput* pass, Action action) {
    Stage* s = &t->stage;
    const int k = action.microbatch, i = k % PIPELINE_BUFFERS_PER_DIRECTION, forward = action.kind == SEND_FORWARD;
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
static void run_forward(Trainer* t, const StepInput* pass, Action action) {
    Stage* s = &t->stage;
    Activations* a = &s->activations[action.slot];
    const int k = action.microbatch, i = k % PIPELINE_BUFFERS_PER_DIRECTION;
    PipelineBuffers* x = &s->boundary[action.chunk];
    comm_wait(&s->send_forward[action.slot]); // of the micro-batch that used this slot before
    bind_microbatch(t, a, pass, action.chunk, k);
    comm_wait(&x->receive_forward[i]);
    if (s->probe) s->probe->microbatch = k, s->probe->backward = false;
    const double started = time_of_work(t);
    if (!a->chunk->first)
        boundary_unpack(&t->groups, &s->layout.mesh, a->x[0], x->input[i], (int64_t)a->N * s->model.C);
    chunk_forward(s, a);
    if (a->chunk->last) losses_add(s->sums + s->layout.tensors, a->head->losses, a->tokens);
    if (a->chunk->last && pass->losses)
        device_copy(pass->losses + (int64_t)k * s->B * s->T, a->head->losses, (size_t)a->tokens * sizeof(float));
    trace_action(t, action, started);
}

static void run_backward(Trainer* t, Action action) {
    Stage* s = &t->stage;
    Activations* a = &s->activations[action.slot];
    const int k = action.microbatch, i = k % PIPELINE_BUFFERS_PER_DIRECTION;
    Gradients* g = &s->gradients[action.chunk][k % s->pending[action.chunk]];
    PipelineBuffers* x = &s->boundary[action.chunk];
    const int64_t n = (int64_t)a->N * s->model.C;
    const bool input = action_makes_input_gradient(action.kind), weights = action_adds_weight_gradients(action.kind);
    if (input) comm_wait(&x->receive_backward[i]);
    if (input) comm_wait(&x->send_backward[i]); // of micro-batch k - PIPELINE_BUFFERS_PER_DIRECTION
    if (s->probe) s->probe->microbatch = k, s->probe->backward = true;
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
static bool defers_inter_site_sync(const Stage* s) { return s->grads.late && s->layout.mesh.zero > 0; }

// Completes the sums of a chunk's gradients over the data ranks (TIE: of the matrix that two stages hold, over these too)
// and squares them.
static void run_reduce(Trainer* t, Action action) {
    Stage* s = &t->stage;
    const Layout* layout = &s->layout;
    const double started = seconds_now();
    finish_grad_sync(&s->grads, layout, action.chunk);
    if (action.kind == TIE) all_reduce_tied_embedding_grad(&s->grads, &t->groups, layout);
    if (!defers_inter_site_sync(s)) start_inter_site_syncs(&s->grads, &t->groups, layout, action.chunk);
    finish_inter_site_sync(&s->grads, &t->groups, layout, action.chunk);
    for (int b = 0; b < layout->buckets && s->grads.due; b++) {
        if (layout->bucket[b].chunk != action.chunk) continue;
        if (s->rounds.mode == DP_DC_S3GD) async_dp_advance(&s->sites, b);
        gradient_squares(s, b);
    }
    trace_action(t, action, started);
}

// An error that the ranks of a site find alike, and other sites not at all: its first rank says it, before any of them ends
// the job.
static void die_as_site(Trainer* t, const char* text) {
    const Mesh* mesh = &t->stage.layout.mesh;
    double meet = 0;
    end_line();
    if (mesh_rank_in_site(mesh) == 0 && mesh->tensor == 0 && mesh->pipeline == 0)
        fprintf(stderr, "%s: site %d: %s\n", process.name, mesh_site(mesh), text);
    sum_over_site(&t->groups, &meet, 1);
    if (process.stop) process.stop(EXIT_RUN);
    exit(EXIT_RUN);
}

static void run_schedule(Trainer* t, const StepInput* pass);

// Where a number that is not finite came from: the step is computed again, summed over no replicas, and looked at. That can be
// where it changed no weights yet, and where its gradient is the one that is not finite.
static void rerun_to_find_nan(Trainer* t, const StepInput* pass, char* text, size_t size) {
    Stage* s = &t->stage;
    NanProbe probe = probe_begin(&s->model);
    Comm* list[GROUPS];
    int64_t counted[GROUPS];
    if (!t->schedule.plan.clip || s->grads.late) {
        snprintf(text, size,
                 s->grads.late ? "the rank cannot be found where gradients are late"
                               : "the rank can be found with a --clip, also a large one, or --on-nan skip");
        return;
    }
    groups_list(&t->groups, list);
    for (int i = 0; i < GROUPS; i++) counted[i] = list[i]->size_bytes; // what follows is no part of training
    s->probe = &probe;
    probe_weights(&probe, &s->layout, s->params);
    stage_begin_gradients(s);
    run_schedule(t, pass);
    comm_synchronize(&t->world);
    s->probe = NULL;
    for (int i = 0; i < GROUPS; i++) list[i]->size_bytes = counted[i];
    origin_text(text, size, &probe, &t->groups, &s->layout.mesh, &s->model, !async_schedule_are_late(&s->rounds));
}

// A loss or a gradient is not a number: ends the run, or leaves the update out, which all ranks decide alike.
static void handle_nonfinite_step(Trainer* t, const StepInput* pass, int not_finite) {
    const int tensors = t->stage.layout.tensors;
    const bool skips = t->settings.on_nan == ON_NAN_SKIP;
    Tensor* list = (Tensor*)checked_malloc((size_t)tensors * sizeof(Tensor), "the list of tensors");
    model_tensors(list, &t->stage.model);
    char origin[640], text[1024];
    rerun_to_find_nan(t, pass, origin, sizeof origin);
    snprintf(text, sizeof text, "step %lld: the loss is %g and the gradient of %s is not finite; ",
             (long long)t->step + 1, t->loss, not_finite >= 0 ? list[not_finite].name : "no tensor");
    append_text(text, sizeof text, "%s; %s",
                t->schedule.plan.clip ? "nothing was updated" : "checkpoints are from before it", origin);
    free(list);
    t->health.skipped = skips;
    t->health.skipped_in_row++;
    if (skips && t->health.skipped_in_row < SKIPPED_AT_MOST) {
        if (is_main(t)) end_line(), printf("skipped   %s\n", text);
        return;
    }
    if (skips) append_text(text, sizeof text, ". It is number %d in a row", SKIPPED_AT_MOST);
    append_text(text, sizeof text, ". Try a smaller --lr, a longer --warmup or a --clip");
    const bool alike = !async_schedule_are_late(&t->stage.rounds) || (t->stage.rounds.mode == DP_DELAYED && not_finite >= 0);
    if (alike) comm_abort_all(&t->world, EXIT_RUN, text);
    die_as_site(t, text);
}

// The factor of each tensor's delay compensation, from the squares of its gradient and of what it is multiplied by: such that
// the norm of the correction is `compensation` times that of the gradient (dc-s3gd.md of our reference calls this rule (17)).
static void set_delay_compensation(Stage* s, const double* squares, const double* corrections) {
    for (int i = 0; i < s->layout.tensors; i++) {
        const double lambda = s->rounds.compensation * sqrt(squares[i]) / sqrt(corrections[i]);
        s->lambda[i] = corrections[i] > 0 && lambda < FLT_MAX ? (float)lambda : 0;
    }
}

// Adds up what the ranks have found: squares (tensors), loss, corrections (tensors), seconds. Sites that do not wait for each
// other do not do so here: the loss is this site's, and squares are alike on all, or its own. Only ZeRO's shares lie on all.
static void reduce_step_stats(Trainer* t, double* sums) {
    const AsyncConfig* r = &t->stage.rounds;
    const int tensors = t->stage.layout.tensors;
    double* loss = sums + tensors;
    sum_over_site(&t->groups, sums, 2 * tensors + 2);
    if (t->stage.layout.mesh.zero) {
        sum_over(&t->groups.far, sums, tensors);
        sum_over(&t->groups.far, loss + 1, tensors);
    }
    if (!async_schedule_are_late(r)) sum_over(&t->groups.far, loss, 1);
}

// All ranks of a site meet: the loss, the norm of the gradient, that both are numbers, how to scale the gradient; and the time
// that they have worked.
static void run_grad_norm(Trainer* t, const StepInput* pass, Action action, StepClock* progress) {
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
    reduce_step_stats(t, sums);
    int not_finite;
    const double sites = async_schedule_are_late(&s->rounds) ? s->rounds.sites : 1; // that have a loss of their own
    t->loss = sums[tensors] / ((double)o->global_batch * s->T / sites);
    t->grad_norm = gradient_norm(sums, tensors, &not_finite) / gradient_factor(t);
    if (!s->grads.due) t->grad_norm = (double)NAN; // nothing has come yet
    set_delay_compensation(s, sums, sums + tensors + 1);
    const double ranks = mesh_size(&layout->mesh) / layout->mesh.sites;
    const double rank_seconds = (seconds_now() - progress->started) * ranks;
    t->bubble = layout->mesh.p == 1 ? 0
                : measures_time(t)  ? fmax(0, rank_seconds / sums[2 * tensors + 1] - 1)
                                    : (double)NAN;
    free(sums);
    t->health.skipped = false;
    if (not_finite >= 0 || !isfinite(t->loss))
        handle_nonfinite_step(t, pass, not_finite);
    else
        t->health.skipped_in_row = 0;
    progress->grad_scale = o->clip > 0 && t->grad_norm > o->clip ? o->clip / (t->grad_norm + 1e-6) : 1;
    progress->grad_scale /= gradient_factor(t);
    trace_action(t, action, started);
}

// Updates that have been made by the end of a step. The first gradient that is used late is used in the second.
static int64_t optimizer_steps_at(const Trainer* t, int64_t step) { return step - (t->stage.grads.late && step > 0); }

static void run_update(Trainer* t, Action action, double grad_scale) {
    const double started = seconds_now();
    if (t->health.skipped) return;
    if (t->stage.grads.due)
        chunk_optimizer_step(&t->stage, action.chunk, &t->settings, optimizer_steps_at(t, t->step + 1),
                     learning_rate(&t->settings, t->step), grad_scale);
    trace_action(t, action, started);
}

static void run_action(Trainer* t, const StepInput* pass, Action action, StepClock* progress) {
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
    case NORM: run_grad_norm(t, pass, action, progress); break;
    case UPDATE:
    case UPDATE_TIED: run_update(t, action, progress->grad_scale); break;
    case ACTION_KINDS: break;
    }
}

// Executes a schedule; where a step is looked at, its forward and backward passes. The sum of the losses that this rank has
// seen is the last of stage.sums.
static void run_schedule(Trainer* t, const StepInput* pass) {
    Stage* s = &t->stage;
    const Comm *pipeline = &t->groups.pipeline, *embedding = &t->groups.embedding;
    const double waited = pipeline->waited + embedding->waited;
    StepClock progress = {seconds_now(), 0, 1 / gradient_factor(t)}; // without clipping updates come before NORM
    device_zero(s->sums, (size_t)(2 * s->layout.tensors + 1) * sizeof(double));
    load_batch(t, pass);
    for (int i = 0; i < pass->schedule->n; i++) {
        const Action action = pass->schedule->actions[i];
        progress.waited = pipeline->waited + embedding->waited - waited;
        if (s->probe && action.kind >= REDUCE) continue;
        heartbeat_action(watchdog_row(&t->watch), action.kind, action.chunk, action.microbatch);
        run_action(t, pass, action, &progress);
        buckets_progress(&s->grads, &s->layout);
        if (async_schedule_are_local(&s->rounds)) async_dp_progress(&s->sites);
    }
    for (int i = 0; i < s->slots; i++) comm_wait(&s->send_forward[i]);
    for (int i = 0; i < s->layout.mesh.v * PIPELINE_BUFFERS_PER_DIRECTION; i++)
        comm_wait(&s->boundary[i / PIPELINE_BUFFERS_PER_DIRECTION].send_backward[i % PIPELINE_BUFFERS_PER_DIRECTION]);
}

// The bytes that this rank has sent so far.
static Bytes bytes_sent(const Trainer* t) {
    const ProcessGroups* g = &t->groups;
    const Bytes bytes = {comm_bytes(&g->tensor) + comm_bytes(&g->heads),
                         comm_bytes(&g->pipeline) + comm_bytes(&g->embedding),
                         comm_bytes(&g->data) + comm_bytes(&g->far), comm_bytes(&g->far)};
    return bytes;
}

// What all ranks have sent since `before`. Sites that do not wait for each other do not meet for that (meets = false): it is
// what this one has sent, as often as there are sites, which is exact where the plan between them is the same for all. too is
// summed as well.
static Bytes bytes_all_ranks(Trainer* t, Bytes before, bool meets, double too[2]) {
    const Bytes now = bytes_sent(t);
    const double sites = meets ? 1 : t->stage.rounds.sites;
    double sums[6] = {now.tensor - before.tensor,
                      now.pipeline - before.pipeline,
                      now.data - before.data,
                      now.far - before.far,
                      too[0],
                      too[1]};
    sum_over_site(&t->groups, sums, 6);
    if (meets) sum_over(&t->groups.far, sums, 6);
    too[0] = sums[4], too[1] = sums[5];
    const Bytes bytes = {sites * sums[0], sites * sums[1], sites * sums[2], sites * sums[3]};
    return bytes;
}

// Whether it is time for a checkpoint that nobody has asked for: on the main rank, whose clock counts.
static bool save_is_due(const Trainer* t) {
    const Settings* o = &t->settings;
    return is_main(t) && o->out && o->save_minutes > 0 && seconds_now() - t->saved_at >= 60 * o->save_minutes &&
           __atomic_load_n(&t->saver.end, __ATOMIC_ACQUIRE) != SAVE_RUNS;
}

// One update on the next global batch.
static void train_step(Trainer* t) {
    const int64_t batch = t->settings.global_batch;
    const StepInput pass = {&t->schedule, &t->train, t->sequences, t->sequences + batch, true, NULL, NULL};
    const Bytes before = bytes_sent(t);
    const double started = seconds_now();
    heartbeat_phase(watchdog_row(&t->watch), PHASE_TRAINING, t->step + 1);
    stage_begin_gradients(&t->stage);
    trace_span(t->tracing, "compute", "zero gradients", -1, started, seconds_now());
    run_schedule(t, &pass);
    for (int chunk = -1; chunk < t->stage.layout.mesh.v && defers_inter_site_sync(&t->stage); chunk++)
        start_inter_site_syncs(&t->stage.grads, &t->groups, &t->stage.layout, chunk);
    trace_span(t->tracing, "step", "step", (int)t->step + 1, started, seconds_now());
    t->step++;
    t->sequences += batch;
    t->stage.grads.due = true;
    if (t->health.skipped) recast_parameters(&t->stage, &t->settings, t->step);
    health_step(&t->health, t->loss, t->grad_norm);
    async_dp_step_end(&t->stage, &t->settings, t->step);
    double ranks[2] = {(double)stop_signals, (double)save_is_due(t)}; // that are asked to stop, to save
    t->bytes = bytes_all_ranks(t, before, !async_schedule_are_late(&t->stage.rounds), ranks);
    const Asked asked = {ranks[0] > 0, ranks[1] > 0};
    t->asked = stop_agreed(&t->stop, &t->groups.far, &t->stage.rounds, t->step, asked);
}

// ================================================================================================================
// 3. Around the step: validation, sampling, checkpoints

// Mean loss over the first sequences of the validation text, the same ones every time.
static double validate(Trainer* t) {
    Stage* s = &t->stage;
    const Mesh* mesh = &s->layout.mesh;
    const int64_t count = validation_sequences(t);
    Schedule forward = schedule_build_forward(&t->schedule, microbatches_in_turn(t, count));
    const StepInput pass = {&forward, &t->val, 0, count, false, NULL, NULL};
    double sum;
    heartbeat_phase(watchdog_row(&t->watch), PHASE_VALIDATING, t->step);
    run_schedule(t, &pass);
    schedule_free(&forward);
    comm_synchronize(&t->world);
    device_to_host(&sum, s->sums + s->layout.tensors, sizeof sum);
    if (!s->layout.last_stage || mesh->tensor > 0) sum = 0;
    sum_over_mesh(&t->groups, &sum, 1);
    return sum / ((double)count * s->T);
}

// The losses of a window's rows, added up, to the evaluation's sums.
static void add_up_rows(const Trainer* t, const StepInput* pass, float* losses, double* sums) {
    const int64_t row = (int64_t)t->stage.T, group = t->stage.B * row;
    device_to_host(losses, pass->losses, (size_t)(pass->schedule->plan.m * group) * sizeof(float));
    for (int k = 0; k < pass->schedule->plan.m; k++) {
        for (int b = 0; b < microbatch_sequences(t, pass, k); b++) {
            double* sum = sums + microbatch_first(t, pass, k) + b;
            for (int64_t i = 0; i < row; i++) *sum += losses[k * group + b * row + i];
        }
    }
}

// Fills the sums of an evaluation, on all ranks. Each row is one rank's, and zero is added to it: the sums do not depend on d.
static void evaluate(Trainer* t, Evaluation* e) {
    const Stage* s = &t->stage;
    const Mesh* mesh = &s->layout.mesh;
    const int64_t window = (int64_t)evaluation_window(t) * s->B * mesh->d;
    const bool head = s->layout.last_stage, mine = head && mesh->tensor == 0;
    const size_t bytes = (size_t)(window / mesh->d * s->T) * sizeof(float);
    float* losses = head ? (float*)device_malloc(bytes, "the losses of an evaluation") : NULL;
    float* host = mine ? (float*)checked_malloc(bytes, "the losses of an evaluation") : NULL;
    const double started = seconds_now();
    double told = started;
    heartbeat_phase(watchdog_row(&t->watch), PHASE_EVALUATING, t->step);
    memset(e->sums, 0, (size_t)e->rows * sizeof(double));
    for (int64_t first = 0; first < e->rows; first += window) {
        const int64_t end = min_i64(e->rows, first + window);
        Schedule forward = schedule_build_forward(&t->schedule, microbatches_in_turn(t, end - first));
        const StepInput pass = {&forward, NULL, first, end, false, e, losses};
        run_schedule(t, &pass);
        comm_synchronize(&t->world);
        if (mine) add_up_rows(t, &pass, host, e->sums);
        schedule_free(&forward);
        if (is_main(t)) told = print_progress(e, end, started, told);
    }
    sum_over_mesh(&t->groups, e->sums, e->rows);
    device_free(losses, head ? bytes : 0);
    free(host);
}

// What is needed to find the next token of a text.
typedef struct {
    Sampling how;
    SamplingMemory memory;
    float* logits; // (t V): of the whole vocabulary
    uint64_t seed, stream;
    double deadline;
} Sampler;

// A text: what it began with, and what the model has written behind it.
typedef struct {
    int32_t* tokens;
    int given, written, most; // tokens; room for so many to be written
    double reading, writing;  // seconds
} Generation;

// Hands n numbers on to the next part of the model, or takes them from the one before; a chunk of the same rank finds them
// where the other one left them.
static void pipeline_hand_over(Trainer* t, floatX* x, int64_t n, ActionKind kind, int chunk) {
    Comm* pipeline = &t->groups.pipeline;
    const int peer = schedule_peer(&t->schedule, kind, chunk);
    if (peer < 0 || peer == pipeline->rank) return;
    CommRequest message = kind == SEND_FORWARD ? comm_send_start(pipeline, x, n, COMM_FLOATX, peer, TAG_FORWARD)
                                               : comm_receive_start(pipeline, x, n, COMM_FLOATX, peer, TAG_FORWARD);
    comm_wait(&message);
}

// Feeds tokens through the whole model: one, at a position of the sequence, or (position < 0) the n with which a sequence begins,
// all at once. Their keys and values go into the cache. Of one, the head's logits, on the last stage, are those of
// the token after it. Where rows are divided over tensor ranks, tokens 0 are added until all have the same number: nothing
// before them sees them, and their places in the cache are written again before they are read.
static void feed(Trainer* t, const int32_t* tokens, int n, int position) {
    Stage* s = &t->stage;
    Activations* a = &s->activations[0];
    const bool one = position >= 0;
    const int T = one ? 1 : (int)round_up((size_t)n, splits_rows(s) ? (size_t)s->layout.mesh.t : 1);
    batch_reserve(&t->batch, T);
    device_zero(t->batch.device, (size_t)T * sizeof(int32_t));
    device_from_host(t->batch.device, tokens, (size_t)n * sizeof(int32_t));
    for (int c = 0; c < s->layout.mesh.v; c++) {
        const floatX* before = c > 0 ? chunk_output(a) : NULL;
        activations_bind(a, s, c, 0, 1, T, position);
        const int64_t values = (int64_t)a->R * s->model.C;
        a->inputs = t->batch.device, a->remembers = !one;
        if (before && schedule_peer(&t->schedule, RECEIVE_FORWARD, c) == s->layout.mesh.pipeline)
            device_copy(a->x[0], before, (size_t)values * sizeof(floatX));
        pipeline_hand_over(t, a->x[0], values, RECEIVE_FORWARD, c);
        if (a->chunk->first) embedding_forward_tp(s, a);
        layers_forward(s, a);
        if (a->chunk->last && one) head_forward(s, a);
        pipeline_hand_over(t, chunk_output(a), values, SEND_FORWARD, c);
    }
}

// The pipeline rank that has the head.
static int lm_head_rank(const Trainer* t) {
    return pipeline_holder(&t->schedule.plan, pipeline_last(&t->schedule.plan));
}

// Logits of the token after the one that was fed last, (t V) of the whole vocabulary, on the ranks of the last stage.
static void gather_logits(Trainer* t, float* logits) {
    const Stage* s = &t->stage;
    const int64_t n = (int64_t)s->layout.states * s->layout.V;
    float* mine = logits + s->layout.mesh.tensor * n;
    device_to_floats(mine, s->head[0].logits, n);
    comm_all_gather(&t->groups.tensor, logits, mine, n, COMM_FLOAT);
}

enum { TOKEN_LATE = -2 }; // in place of a token: the time is over. -1: the logits are no distribution

// Draws token number i on the last stage and tells it to all.
static int32_t next_token(Trainer* t, const Sampler* x, int i) {
    Stage* s = &t->stage;
    int32_t next = 0;
    heartbeat_move(watchdog_row(&t->watch));
    if (s->layout.last_stage) {
        gather_logits(t, x->logits);
        if (s->layout.mesh.tensor == 0) {
            const double coarse = (double)random_uniform(x->seed, x->stream, 2 * (uint64_t)i); // 24 bits each
            const double fine = (double)random_uniform(x->seed, x->stream, 2 * (uint64_t)i + 1);
            next = seconds_now() > x->deadline
                       ? (int32_t)TOKEN_LATE
                       : sample_token(&x->how, x->logits, s->model.V, coarse + 0x1p-24 * fine, &x->memory);
        }
        comm_broadcast(&t->groups.tensor, &next, 1, COMM_INT32, 0);
    }
    comm_broadcast(&t->groups.pipeline, &next, 1, COMM_INT32, lm_head_rank(t));
    return next;
}

// What a text begins with where none is given: the token that stands before a document, a new line, or, where the vocabulary is not
// known, what is most likely GPT-2's end of text.
static int32_t default_bos_token(const Trainer* t) {
    const Tokenizer* tokenizer = &t->tokenizer;
    const int V = t->stage.model.V;
    if (!tokenizer->vocab) return V > 50256 ? 50256 : 0;
    const int token = tokenizer->document >= 0 ? tokenizer->document : (int)tokenizer->byte_token['\n'];
    return token < V ? token : 0;
}

// Goes on with a text, until it is as long as there is room, or at its end: out (main rank; NULL on others) gets each character as
// soon as it is complete, or numbers where the vocabulary is not known. Of a text of more than T tokens, the context of the
// model, the last T / 2 + 1 are fed again as the beginning of a new sequence. Returns false if the logits were no distribution.
static bool generate_tokens(Trainer* t, Generation* x, const Sampler* sampler, FILE* out) {
    const Stage* s = &t->stage;
    const Tokenizer* tokenizer = &t->tokenizer;
    TextWriter writer = {out, "", 0, 0};
    int begin = 0, fed = 0; // the token at position 0; those that are in the cache end here
    int32_t next = 0;
    const double started = seconds_now();
    for (x->written = 0; x->written < x->most; x->written++) {
        const int n = x->given + x->written;
        if (n - begin > s->T) begin = fed = n - 1 - s->T / 2;
        if (n - fed > 1) feed(t, x->tokens + fed, n - 1 - fed, -1); // the beginning of a sequence
        fed = n;
        feed(t, x->tokens + n - 1, 1, n - 1 - begin);
        next = next_token(t, sampler, x->written);
        if (x->written == 0) x->reading = seconds_now() - started;
        if (next < 0 || tokenizer_ends(tokenizer, next)) break;
        x->tokens[n] = next;
        if (!out) continue;
        if (tokenizer->vocab > 0)
            text_writer_put_token(&writer, tokenizer, next);
        else
            fprintf(out, "%d ", next);
    }
    if (out) text_writer_end(&writer);
    x->writing = seconds_now() - started - x->reading;
    return next != -1;
}

// The tokens of the text that is to go on. In front of it stands the token that begins texts, if the vocabulary has one for that
// alone (Llama 3's, not GPT-2's). Of none, what a text of the model's own begins with.
static TokenList encode_prompt(const Trainer* t) {
    const Tokenizer* tokenizer = &t->tokenizer;
    TokenList list = {NULL, 0, 0};
    Encoder encoder;
    token_list_reserve(&list, 1);
    if (t->given_size == 0) {
        list.token[list.count++] = default_bos_token(t);
        return list;
    }
    if (tokenizer->document >= 0 && !tokenizer_ends(tokenizer, tokenizer->document))
        list.token[list.count++] = tokenizer->document;
    encoder_open(&encoder);
    tokenizer_encode(tokenizer, &encoder, &list, (const unsigned char*)t->given, (size_t)t->given_size, true);
    encoder_close(&encoder);
    for (size_t i = 0; i < list.count; i++) {
        if (list.token[i] >= t->stage.model.V)
            die_usage("--generate: token %d of the text is number %d, the model has %d: this is not its vocabulary",
                      (int)i, list.token[i], t->stage.model.V);
    }
    return list;
}

// Lets the model go on with these tokens, for `most` more, into out (NULL on ranks that do not write); they become part of the text.
static bool generate_from_prompt(Trainer* t, Generation* text, const TokenList* given, int most, double deadline, FILE* out) {
    const Settings* o = &t->settings;
    const int V = t->stage.model.V, all = t->stage.layout.V * mesh_tp_cuts(&t->stage.layout.mesh);
    const Generation begun = {(int32_t*)checked_malloc((given->count + (size_t)most) * sizeof(int32_t), "a text"),
                        (int)given->count,
                        0,
                        most,
                        0,
                        0};
    Sampler sampler = {{o->temperature, o->top_p, o->top_k},      sampling_open(V), NULL, (uint64_t)o->seed,
                       hash_string("sample") + (uint64_t)t->step, deadline};
    sampler.logits = (float*)checked_malloc((size_t)all * sizeof(float), "a text");
    *text = begun;
    memcpy(text->tokens, given->token, given->count * sizeof(int32_t));
    const bool ok = generate_tokens(t, text, &sampler, out);
    sampling_close(&sampler.memory);
    free(sampler.logits);
    return ok;
}

// A sample of `most` tokens in a training run. The first data replica writes, the others go on to where they wait for it. A large
// model is stopped after twenty seconds.
static void sample(Trainer* t, int most) {
    Generation text;
    heartbeat_phase(watchdog_row(&t->watch), PHASE_SAMPLING, t->step);
    if (t->stage.layout.mesh.data > 0) return;
    end_line();
    if (is_main(t)) printf("The model writes:\n\n");
    TokenList list = encode_prompt(t);
    if (is_main(t) && t->given) fwrite(t->given, 1, (size_t)t->given_size, stdout);
    const bool ok = generate_from_prompt(t, &text, &list, most, seconds_now() + 20, is_main(t) ? stdout : NULL);
    if (is_main(t)) {
        printf(ok ? "\n\n" : "\n(the logits are no distribution: NaN, or all -inf)\n\n");
        if (t->samples.path[0]) log_sample(t, text.tokens + text.given, text.written);
    }
    token_list_free(&list);
    free(text.tokens);
}

// --generate where nothing is trained: the text and what the model makes of it go to stdout, everything else to stderr.
static void generate(Trainer* t) {
    const Stage* s = &t->stage;
    const int64_t tokens = t->settings.tokens ? t->settings.tokens : 256;
    Generation text;
    heartbeat_phase(watchdog_row(&t->watch), PHASE_SAMPLING, t->step);
    TokenList list = encode_prompt(t);
    if (s->layout.mesh.data == 0) {
        if (is_main(t) && (int64_t)list.count > s->T)
            printf("text      of its %d tokens the last %d are read: the context is %d, see --seq\n", (int)list.count,
                   s->T / 2 + 1, s->T);
        if (is_main(t)) fflush(stdout), fwrite(t->given, 1, (size_t)t->given_size, t->text), fflush(t->text);
        const bool ok = generate_from_prompt(t, &text, &list, (int)tokens, INFINITY, is_main(t) ? t->text : NULL);
        if (is_main(t)) {
            fputc('\n', t->text);
            if (fflush(t->text) != 0) die("stdout: cannot write: %s", strerror(errno));
            printf("done      %d tokens read in %.2f s, %d written in %.2f s: %.1f tokens/s\n", text.given,
                   text.reading, text.written, text.writing,
                   text.writing > 0 ? (double)(text.written - 1) / text.writing : 0);
        }
        free(text.tokens);
        if (!ok) die("--generate: the logits are no distribution (NaN, or all -inf): the weights are not finite");
    }
    token_list_free(&list);
}

// Most memory that a rank ever held, in bytes; of this site, where sites do not wait for each other.
static int64_t peak_bytes(Trainer* t) {
    int64_t bytes = device_peak_bytes();
    Comm* axes[4] = {&t->groups.tensor, &t->groups.data, &t->groups.pipeline, &t->groups.far};
    for (int i = 0; i < (async_schedule_are_late(&t->stage.rounds) ? 3 : 4); i++) {
        const int64_t counted = axes[i]->size_bytes;
        comm_all_reduce(axes[i], &bytes, 1, COMM_INT64, COMM_MAX);
        axes[i]->size_bytes = counted;
    }
    return bytes;
}

// All of --evaluate, at the common point.
static void evaluate_all(Trainer* t) {
    for (int i = 0; i < t->evaluations.count; i++) evaluate(t, &t->evaluations.item[i]);
}

// ----------------------------------------------------------------------------------------------------------------
// Checkpoints: every rank writes its slices of the one logical model. Data ranks hold the same slices and take buckets in
// turn; with ZeRO they first put their shares of the moments together.

// Where the run stands, and what a resumed run has to have in common with it.
static CheckpointState checkpoint_state(const Trainer* t) {
    const Settings* o = &t->settings;
    CheckpointState state = {t->step,
                             t->sequences,
                             o->seed,
                             o->global_batch,
                             t->stage.T,
                             sources_tokens(&t->train_files),
                             sources_mix(&t->train_files),
                             "",
                             "",
                             "",
                             t->val_loss,
                             t->data_checksum,
                             t->held_out};
    async_schedule_text(state.rounds, sizeof state.rounds, &t->stage.rounds);
    snprintf(state.optimizer, sizeof state.optimizer, "%s", o->optimizer == OPTIMIZER_SGD ? "sgd" : "adamw");
    settings_tuning(state.tuning, sizeof state.tuning, o);
    for (int i = 0; i < t->train_files.count && o->documents; i++) {
        const size_t used = strlen(state.rounds);
        char text[64];
        documents_describe(text, sizeof text, &t->train_files.source[i].files);
        if (!strstr(state.rounds, text))
            snprintf(state.rounds + used, sizeof state.rounds - used, "%s%s", used ? ", " : "--dp-mode sync, ", text);
    }
    return state;
}

// A gradient that the next step uses is in the checkpoint, which has to be one that a run can go on from. False: it is not finite, and
// the save, which nobody has asked for at this very step (timed), is put off.
static bool check_late_gradient(Trainer* t, bool timed) {
    Stage* s = &t->stage;
    const GradientBuckets* grads = &s->grads;
    const int64_t n = s->layout.elements;
    double squares;
    char text[256];
    device_zero(s->sums, sizeof(double));
    sum_of_squares(s->sums, grads->shares ? grads->shares : grads->all, grads->shares ? n / s->layout.mesh.d : n);
    device_to_host(&squares, s->sums, sizeof squares);
    comm_all_reduce(&t->world, &squares, 1, COMM_DOUBLE, COMM_SUM);
    if (isfinite(squares) || timed) return isfinite(squares);
    snprintf(
        text, sizeof text,
        "step %lld: its gradient, which the next step would use, is not finite; it is not saved, checkpoints are from "
        "before it. Try a smaller --lr, a longer --warmup or a --clip",
        (long long)t->step);
    comm_abort_all(&t->world, EXIT_RUN, text);
    return false;
}

// Ends the run where ranks hold different bits of what ought to be the same (trainer/health.h): ranks of a site, or (meets), where sites
// have the same weights, of all.
static void check_replicas(Trainer* t, bool meets) {
    Stage* s = &t->stage;
    const bool far = meets && async_schedule_sum_gradients(&s->rounds);
    char what[1024], text[1536];
    if (!replicas_differ(what, sizeof what, &t->groups, &s->layout, &s->model, s->params, s->checksums, far)) return;
    snprintf(text, sizeof text,
             "step %lld: silent data corruption: %s. Go on from the last checkpoint with --resume; if it is the same "
             "rank again, leave its machine out",
             (long long)t->step, what);
    if (far) comm_abort_all(&t->world, EXIT_RUN, text);
    die_as_site(t, text);
}

// Tells people, once, when a save is on the disk.
static void log_save(Trainer* t, SaveEnd end) {
    Saver* x = &t->saver;
    if (!is_main(t) || x->told || end != SAVE_DONE) return;
    x->told = true;
    end_line();
    printf("saved     %s/step_%08lld: training stood still for %.1f ms, on the disk after %.1f ms\n", x->out,
           (long long)x->state.step, 1e3 * x->stall, 1e3 * x->seconds);
}

// Waits for the end of a save.
static void finish_save(Trainer* t) {
    const SaveEnd end = saver_meet(&t->saver, &t->world);
    if (end != SAVE_NONE) t->unsaved = end == SAVE_FAILED;
    log_save(t, end);
}

// Saves in the background, or (last) to the end; timed: as --save-minutes says. That a save failed is not the end of the run.
static void save_checkpoint(Trainer* t, bool last, bool timed) {
    const double started = seconds_now();
    Stage* s = &t->stage;
    heartbeat_phase(watchdog_row(&t->watch), PHASE_SAVING, t->step);
    finish_save(t);
    const CheckpointState state = checkpoint_state(t);
    async_dp_drain(s);
    if (t->settings.check_every) check_replicas(t, true);
    if (s->grads.late && !check_late_gradient(t, timed)) return;
    t->saved_at = started;
    Comm *data = &t->groups.data, *far = &t->groups.far;
    const int64_t counted[2] = {data->size_bytes, far->size_bytes}; // what follows is no part of training
    settle_values(s);
    Error error;
    t->saver.timed = timed;
    if (!saver_begin(&t->saver, &t->world, &state, !last && !t->saves_wait, started, &error)) {
        t->unsaved = true;
        if (is_main(t))
            fprintf(stderr, "%s: the checkpoint of step %lld was not saved: %s\n", process.name, (long long)t->step,
                    error.text);
    }
    data->size_bytes = counted[0], far->size_bytes = counted[1];
    if (last || t->saves_wait) finish_save(t);
}

// Whether the files of a list are what was written: each rank reads a part of them. ok: whether this rank has the list. The reason is
// that of the first rank that has one.
static bool files_are_sound(Trainer* t, bool ok, const CheckpointList* list, const char* folder, Error* error) {
    enum { FILES = CHECKPOINT_TENSOR_FILES + 1 };
    uint64_t sums[FILES] = {0};
    int64_t halves[2 * FILES]; // of 64 bits: their sums over ranks do not overflow
    const Comm* world = &t->world;
    ok = ok && checkpoint_add_up(sums, list, folder, world->rank, world->size, error);
    for (int i = 0; i < 2 * FILES; i++) halves[i] = (int64_t)(sums[i / 2] >> (i % 2 ? 32 : 0) & 0xffffffff);
    comm_all_reduce(&t->world, halves, 2 * FILES, COMM_INT64, COMM_SUM);
    for (int i = 0; i < FILES; i++) sums[i] = (uint64_t)halves[2 * i] + ((uint64_t)halves[2 * i + 1] << 32);
    ok = ok && checkpoint_compare(sums, list, folder, error);
    return first_failing_rank(t, ok ? 0 : EXIT_RUN, error) < 0;
}

// Whether a checkpoint is what was written, or (weights) what --init needs of it.
static bool checkpoint_verify_parallel(Trainer* t, const char* folder, int64_t step, bool weights, Error* error) {
    CheckpointList list;
    const bool loaded = weights ? checkpoint_load_weights_list(&list, folder, folder, error)
                                : checkpoint_load_list(&list, folder, error);
    const bool ok = loaded && checkpoint_check_step(&list, folder, step, error);
    return files_are_sound(t, ok, &list, folder, error);
}

// --init: weights of a checkpoint have to be what was written, and weights of any kind the same on all ranks.
static void check_initial_weights(Trainer* t, const char* path) {
    CheckpointList list;
    char folder[CHECKPOINT_PATH], text[128];
    Error error, why;
    int32_t ours = checkpoint_of_weights(folder, path);
    comm_all_reduce(&t->world, &ours, 1, COMM_INT32, COMM_MAX);
    if (ours && !files_are_sound(t, checkpoint_load_weights_list(&list, folder, path, &why), &list, folder, &why)) {
        fail(&error, "--init %.256s: %.600s; to start from it as it is, move its trainer.json away", path, why.text);
        comm_abort_all(&t->world, EXIT_RUN, error.text);
    }
    check_all_ranks(t, checkpoint_sample(text, sizeof text, path, &error), &error);
    comm_check_same(&t->world, "the weights of --init", text, "give all ranks the same files");
}

// Of n checkpoints, whose steps the main rank has, the first that is sound, or of which (weights) the weights are.
static bool first_sound(Trainer* t, char path[CHECKPOINT_PATH], const int64_t* steps, int n, bool weights) {
    for (int i = 0; i < n; i++) {
        Error error;
        int64_t step = is_main(t) ? steps[i] : 0;
        comm_broadcast(&t->world, &step, 1, COMM_INT64, 0);
        if (checkpoint_path(path, &error, "%s/step_%08lld", t->settings.out, (long long)step) &&
            checkpoint_verify_parallel(t, path, step, weights, &error))
            return true;
        if (is_main(t) && !weights) printf("resume    not from step %lld: %s\n", (long long)step, error.text);
    }
    return false;
}

// The newest sound checkpoint of --out; those that are not are told. False: there is none at all. If there are only unsound
// ones the run ends: a new one would take their place.
static bool latest_valid_checkpoint(Trainer* t, char path[CHECKPOINT_PATH]) {
    const char* out = t->settings.out;
    int64_t* steps = NULL;
    char text[3 * CHECKPOINT_PATH];
    if (is_main(t) && settings_is_training(&t->settings)) checkpoint_clean(out);
    int32_t n = is_main(t) ? checkpoint_steps(&steps, out) : 0;
    comm_broadcast(&t->world, &n, 1, COMM_INT32, 0);
    const bool found = first_sound(t, path, steps, n, false);
    if (!found && n > 0) {
        const bool weights = first_sound(t, path, steps, n, true);
        snprintf(text, sizeof text,
                 "--resume: none of the %d checkpoints in %s is sound; move them away to start anew%s%s", n, out,
                 weights ? ", or continue in another --out from weights that are whole, with --init " : "",
                 weights ? path : "");
        comm_abort_all(&t->world, EXIT_RUN, text);
    }
    free(steps);
    return found;
}

// The data of a resumed run: what was held out stays held out, also where this run validates on something else. Checkpoints that
// do not say it are of runs that held out the end of the text, which is one block.
static void resume_data(Trainer* t, const CheckpointState* state, const char* path) {
    const Settings* o = &t->settings;
    const int held_out = state->held_out >= 0 ? (int)state->held_out : t->held_out > 0;
    if (state->data_checksum && state->data_checksum != t->data_checksum && is_main(t))
        fprintf(
            stderr,
            "%s: warning: --data has as many tokens as when %s was made, but other content; training continues on it\n",
            process.name, path);
    if (held_out == 0 && t->held_out > 0)
        die_usage(
            "%s was trained on all of --data, so that nothing is left to validate on: give --val, or --eval-every 0",
            path);
    if (held_out == t->held_out) return;
    open_loaders(t, held_out);
    if (o->eval_every) prove_validation(t);
}

// Refuses to continue a run as another model. Its model was read from a checkpoint (resolve_model), so this differs only where that
// was not the one that is taken up.
static void check_same_model(Trainer* t, const char* folder) {
    ModelConfig then;
    bool told;
    Error error;
    check_all_ranks(t, checkpoint_model(&then, &told, folder, &error), &error);
    check_all_ranks_status(t, !told || config_compare(&t->stage.model, &then, folder, &error) ? 0 : EXIT_ARGUMENTS, &error);
}

// What a resumed run changes about its updates is reported: it may be what is wanted.
static void tell_tuning(const Trainer* t, const CheckpointState* now, const CheckpointState* then) {
    char changes[2 * CHECKPOINT_PLAN_TEXT];
    settings_tuning_changes(changes, sizeof changes, now->tuning, then->tuning);
    if (is_main(t) && changes[0]) printf("resume    with %s\n", changes);
}

// Takes up the newest sound checkpoint of --out; returns false if there is none.
static bool resume_checkpoint(Trainer* t) {
    const Settings* o = &t->settings;
    char path[CHECKPOINT_PATH] = "";
    if (!latest_valid_checkpoint(t, path)) {
        if (is_main(t)) printf("resume    no checkpoint in %s: a new run\n", o->out);
        return false;
    }
    CheckpointReader reader;
    const CheckpointState now = checkpoint_state(t);
    CheckpointState state = now;
    const CheckpointSites sites = site_values(&t->stage).list;
    Error error;
    check_same_model(t, path);
    check_all_ranks(t, checkpoint_check_sync(path, &t->stage.layout.mesh.sync, &error), &error);
    check_all_ranks(t, checkpoint_open(&reader, path, &state, &sites, &error), &error);
    if (strcmp(now.optimizer, state.optimizer) != 0)
        die_usage(
            "--optimizer %s, but %s is of a run with --optimizer %s: give --optimizer %s, or begin a new run with "
            "--init %s",
            now.optimizer, path, state.optimizer, state.optimizer, path);
    if (strcmp(now.rounds, state.rounds) != 0)
        die_usage(
            "%s is of a run with %s, this is one with %s: a resumed run needs the same (a new one can --init from it)",
            path, state.rounds[0] ? state.rounds : "--dp-mode sync", now.rounds[0] ? now.rounds : "--dp-mode sync");
    check_all_ranks(t, read_slices(&t->stage, &reader, watchdog_row(&t->watch), &error), &error);
    checkpoint_close(&reader);
    const struct {
        const char* what;
        int64_t now, then;
    } same[] = {{"--seed is", now.seed, state.seed},
                {"--global-batch is", now.global_batch, state.global_batch},
                {"--seq is", now.seq, state.seq},
                {"--data has as many tokens as", now.data_tokens, state.data_tokens}};
    if (now.data_mix != state.data_mix)
        die_usage(
            "--data names other sources, or gives them other weights, than the run that made %s: a resumed run needs "
            "the same (a new one can --init from it)",
            path);
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        if (same[i].now != same[i].then) {
            die_usage("%s %lld, but %s was made with %lld: a resumed run needs the same (a new one can --init from it)",
                      same[i].what, (long long)same[i].now, path, (long long)same[i].then);
        }
    }
    resume_data(t, &state, path);
    // No run has any other position; one far away would be other data, or beyond what a number can count.
    if (state.sequences / state.global_batch != state.step || state.sequences % state.global_batch != 0)
        die_usage("%s: trainer.json says step %lld, %lld sequences a step and %lld in all, which do not fit; move the "
                  "folder away, and an older checkpoint is taken",
                  path, (long long)state.step, (long long)state.global_batch, (long long)state.sequences);
    t->step = state.step, t->sequences = state.sequences;
    recast_parameters(&t->stage, o, optimizer_steps_at(t, t->step));
    t->stage.grads.due = true; // what is due in the next step was read
    if (is_main(t)) printf("resume    %s: step %lld\n", path, (long long)t->step);
    tell_tuning(t, &now, &state);
    // The run may have been killed when it was about to do this, after its last save.
    if (is_main(t) && !checkpoint_prune(o->out, o->keep, t->step, -1, &error))
        fprintf(stderr, "%s: --keep: %s\n", process.name, error.text);
    return true;
}

// Writes the weights alone, --export.
static void export_weights(Trainer* t) {
    Export* x = &t->export_to;
    const Stage* s = &t->stage;
    int64_t number = (int64_t)time(NULL) << 24 ^ getpid();
    Error error;
    heartbeat_phase(watchdog_row(&t->watch), PHASE_SAVING, t->step);
    settle_values(&t->stage);
    comm_broadcast(&t->world, &number, 1, COMM_INT64, 0);
    check_all_ranks(t, export_name(x, (uint64_t)number, &error), &error);
    check_all_ranks(t, !is_main(t) || export_begin(x, &s->model, &error), &error);
    const bool wrote = export_write(x, s, watchdog_row(&t->watch), &error);
    if (first_failing_rank(t, wrote ? 0 : EXIT_RUN, &error) >= 0) {
        if (is_main(t)) export_abandon(x);
        comm_abort_all(&t->world, EXIT_RUN, error.text);
    }
    check_all_ranks(t, !is_main(t) || export_publish(x, &s->model, &s->layout.mesh.sync, &t->hub_files, &error), &error);
    if (is_main(t)) printf("exported  %s\n", x->path);
}

// Writes what all ranks recorded to --trace.
static void write_trace(Trainer* t) {
    const char* path = t->settings.trace;
    FILE* out = is_main(t) ? fopen(path, "w") : NULL;
    Error error;
    check_all_ranks(t, out || !is_main(t) || fail(&error, "--trace %s: cannot write: %s", path, strerror(errno)), &error);
    const Pipeline* plan = &t->schedule.plan;
    const Mesh* mesh = &t->stage.layout.mesh;
    char about[256]; // what dev/plot needs to know
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
    process_groups_init(&t->groups, &t->world, &s->layout, &s->model);
    s->groups = s->sites.groups = &t->groups;
    Comm* list[GROUPS];
    groups_list(&t->groups, list);
    for (int i = 0; i < GROUPS; i++) watchdog_group(&t->watch, list[i], t->world.rank);
    if (async_schedule_are_late(&s->rounds)) comm_open_thread(&t->groups.far); // before its plans: it looks after them
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
    batch_reserve(&t->batch, max_tokens(s));
    device_zero(t->batch.device, batch_bytes(t->batch.tokens));
    for (int c = 0; c < s->layout.mesh.v; c++) {
        activations_bind(a, s, c, 0, s->B, s->T, -1);
        a->inputs = t->batch.device, a->targets = t->batch.device + t->batch.tokens;
        if (t->settings.documents) a->positions = t->batch.device + 2 * t->batch.tokens;
        a->scale = s->trains;
        chunk_forward(s, a);
        if (!s->trains) continue;
        const Backward w = {s, a, &s->gradients[c][0], BOTH_HALVES, false};
        chunk_backward(&w);
    }
    if (s->trains) device_zero(s->memory_grads.base, s->memory_grads.size);
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

static void random_init_weights(const Stage* s, int64_t seed) {
    float* weights = weights_begin(s);
    layout_initialize(weights, &s->layout, (uint64_t)seed);
    weights_end(s, weights);
}

// Weights from a file or folder, as --init has it.
static void load_weights(Trainer* t, const char* path) {
    const Stage* s = &t->stage;
    Error error;
    float* weights = weights_begin(s);
    check_all_ranks(t, checkpoint_check_sync(path, &s->layout.mesh.sync, &error), &error);
    check_all_ranks(t, checkpoint_init(path, &s->model, &s->layout, weights, &error), &error);
    weights_end(s, weights);
}

// Initial weights: from the newest checkpoint, from --init, or drawn. Returns true if a run is resumed. Where nothing is
// trained the weights are all that is read of a checkpoint.
static bool init_weights(Trainer* t) {
    const Settings* o = &t->settings;
    char path[CHECKPOINT_PATH];
    const bool trains = settings_is_training(o);
    if (o->resume && trains && resume_checkpoint(t)) return true;
    if (o->resume && !trains && latest_valid_checkpoint(t, path)) {
        load_weights(t, path);
        if (is_main(t)) printf("weights   %s\n", path);
        return false;
    }
    if (o->resume && !trains && !o->init) die_usage("--resume: there is no checkpoint in %s", o->out);
    if (o->init) {
        check_initial_weights(t, o->init);
        load_weights(t, o->init);
    } else {
        random_init_weights(&t->stage, o->seed);
    }
    if (is_main(t) && !trains) printf("weights   %s\n", o->init ? o->init : "random: there is no --init or --resume");
    return false;
}

// Returns the exit status: not 0 if the last checkpoint could not be saved, of which the reason was told, or if a signal has
// ended the run before its end.
static int train(Trainer* t, const Option* table, int n, double peak, double started) {
    const Settings* o = &t->settings;
    heartbeat_phase(watchdog_row(&t->watch), PHASE_LOADING, 0);
    warm_up(t);
    const bool resumed = init_weights(t);
    if (!resumed) async_dp_init(&t->stage);
    const bool ended = t->step >= o->steps; // resumed, with nothing to train: what comes at the end is done again
    const bool logs = o->out && is_main(t);
    if (logs) log_open(&t->log, o->out, "log.jsonl", resumed, t->step, &t->health);
    if (resumed) comm_broadcast(&t->world, &t->health.skipped_in_row, 1, COMM_INT32, 0);
    if (logs && o->sample_every)
        log_open(&t->samples, o->out, "samples.jsonl", resumed, ended ? t->step - 1 : t->step, NULL);
    if (logs && !ended) write_options(t, table, n);
    const double flops = model_flops_per_token(&t->stage.model, t->stage.T) * (double)o->global_batch * t->stage.T;
    comm_barrier(&t->world);
    if (o->trace) t->trace.zero = seconds_now();
    if (is_main(t)) printf("ready     %.2f s after the start\n", seconds_now() - started);
    const int64_t first = t->step;
    const Bytes sent = bytes_sent(t);
    const double loop_started = t->saved_at = seconds_now();
    while (t->step < o->steps) {
        const double before = seconds_now();
        train_step(t);
        const double seconds = seconds_now() - before, mfu = peak > 0 ? flops / seconds / peak : 0;
        const bool last = t->step == o->steps, stops = t->asked.stop && !last;
        if (is_due(t->step, o->check_every)) check_replicas(t, !async_schedule_are_late(&t->stage.rounds));
        const bool evaluates = o->eval_every && (last || is_due(t->step, o->eval_every));
        const bool samples = is_due(t->step, o->sample_every) && !last && !stops;
        t->evaluated = t->evaluations.count > 0 && (last || is_due(t->step, o->eval_every));
        if (evaluates || t->evaluated) async_dp_load_global(&t->stage, o, t->step);
        t->val_loss = evaluates ? validate(t) : (double)NAN;
        if (t->evaluated) evaluate_all(t);
        if (evaluates || t->evaluated) async_dp_restore_local(&t->stage, o, t->step);
        const double per_step = (seconds_now() - loop_started) / (double)(t->step - first);
        heartbeat_phase(watchdog_row(&t->watch), PHASE_REPORTING, t->step);
        if (is_main(t)) print_step(t, seconds, mfu, per_step * (double)(o->steps - t->step));
        if (is_main(t)) print_outliers(t);
        if (is_main(t) && t->evaluated) print_evaluations(t);
        if (o->out) {
            const int64_t most = peak_bytes(t);
            if (logs) log_step(t, seconds, mfu, most);
        }
        const bool asked = last || stops || is_due(t->step, o->save_every);
        if (o->out && (asked || t->asked.save)) save_checkpoint(t, last || stops, !asked);
        log_save(t, __atomic_load_n(&t->saver.end, __ATOMIC_ACQUIRE));
        if (samples) async_dp_load_global(&t->stage, o, t->step);
        if (samples) sample(t, o->tokens ? (int)o->tokens : 256);
        if (samples) async_dp_restore_local(&t->stage, o, t->step);
        if (stops) break;
    }
    char duration[32];
    write_duration(duration, sizeof duration, seconds_now() - loop_started);
    end_line();
    if (is_main(t) && !ended) printf("done      %lld steps in %s\n", (long long)(t->step - first), duration);
    if (is_main(t) && ended)
        printf("done      nothing to train: step %lld is reached, and --steps is %lld; more --steps continue the run\n",
               (long long)t->step, (long long)o->steps);
    const bool whole = t->step >= o->steps;
    if (is_main(t) && !whole)
        printf("stopped   after step %lld of %lld, as a signal has asked; %s\n", (long long)t->step,
               (long long)o->steps,
               !o->out      ? "without --out nothing is saved"
               : t->unsaved ? "not saved; the same command with --resume resumes from the checkpoint before"
                            : "saved: the same command with --resume goes on");
    async_dp_drain(&t->stage);
    stop_settle(&t->stop);
    double none[2] = {0, 0};
    const Bytes all = bytes_all_ranks(t, sent, true, none);
    if (is_main(t) && t->step > first) print_traffic(t, all, first);
    if (o->trace) write_trace(t);
    if (o->export_to && whole) export_weights(t);
    if (o->sample_every && whole) async_dp_load_global(&t->stage, o, t->step);
    if (o->sample_every && whole) sample(t, o->tokens ? (int)o->tokens : 512);
    const bool logged = log_close(&t->log), kept = log_close(&t->samples);
    return t->unsaved || !logged || !kept ? EXIT_RUN : whole ? 0 : EXIT_REQUEUE;
}

// Where nothing is trained: the weights are there, and are used. Returns the exit status.
static int run_inference(Trainer* t, double started) {
    heartbeat_phase(watchdog_row(&t->watch), PHASE_LOADING, 0);
    warm_up(t);
    init_weights(t);
    comm_barrier(&t->world);
    if (t->settings.trace) t->trace.zero = seconds_now();
    if (is_main(t)) printf("ready     %.2f s after the start\n", seconds_now() - started);
    end_line();
    evaluate_all(t);
    if (is_main(t) && t->evaluations.count) print_evaluations(t);
    if (t->settings.generate) generate(t);
    if (t->settings.trace) write_trace(t);
    if (t->settings.export_to) export_weights(t);
    return 0;
}

// From here on what this rank does and says is recorded. A file that cannot be written is refused now, not at the end.
static void start_tracing(Trainer* t) {
    const char* path = t->settings.trace;
    struct stat st;
    Error error;
    const bool new_file = is_main(t) && stat(path, &st) != 0;
    FILE* out = is_main(t) ? fopen(path, "a") : NULL;
    check_all_ranks(t, out || !is_main(t) || fail(&error, "--trace %s: cannot write: %s", path, strerror(errno)), &error);
    if (out) fclose(out);
    if (new_file) unlink(path);
    Comm* list[GROUPS];
    groups_list(&t->groups, list);
    trace_init(&t->trace, 1 << 20);
    t->tracing = t->world.trace = &t->trace;
    for (int i = 0; i < GROUPS; i++) list[i]->trace = &t->trace;
}

#ifndef TRAIN_GPT_NO_MAIN // test_gpt.c includes this file and has a main of its own

static const char* trained_action_name(int kind) { return action_name((ActionKind)kind); }

int main(int argc, char** argv) {
    open_standard_files();
    device_limit_thread_spin(argv);
    signal(SIGXFSZ, SIG_IGN); // a file that may not become larger is an error of write(), and not the end
    signal(SIGPIPE, SIG_IGN); // nor is the end of who reads what is printed
    device_trim_malloc();
    device_flush_denormals();
    const double started = seconds_now();
    process.name = "train_gpt";
#ifdef VERSION
    process.version = VERSION;
#endif
    static Trainer trainer;
    Trainer* t = &trainer;
    comm_open(&t->world);
    check_same_launch(t, argc, argv);
    comm_share_cores(&t->world, &t->place);
    device_set_threads(t->place.threads);

    t->settings = settings_default();
    Settings* o = &t->settings;
    Option table[MAX_OPTIONS];
    const int n = settings_table(table, o);
    Error error;
    if (!options_parse(table, n, argc, argv, &error)) die_usage("%s", error.text);
    if (print_help(t)) {
        comm_close(&t->world);
        return 0;
    }
    const bool only_use = settings_only_use(o, table, n);
    if (o->config)
        read_config(t, table, n, o->config, "--config ");
    else if (o->resume && o->out && !only_use)
        read_run_options(t, table, n);
    if (only_use) o->steps = 0;
    const bool trains = settings_is_training(o);
    if (o->generate && !trains && !o->dry_run) t->text = split_stdout();
    if (o->out && trains && !options_check_file(table, n, &error)) die_usage("%s", error.text);
    check_settings(o);
    if (o->init) find_init(t);
    if (!o->dry_run) {
        watchdog_open(&t->watch, &t->world, (double)o->watchdog, trained_action_name);
        if (trains) stop_listen(); // else there is nothing to save
        if (trains && is_main(t)) printing_begin(watchdog_row(&t->watch));
        device_open(t->place.rank_here);
        comm_open_device(&t->world);
    }
    if (trains)
        open_files(t), open_tokenizer(t);
    else
        open_vocabulary(t);
    find_documents(t);
    const ModelConfig model = resolve_model(t, table, n, vocabulary_size(t));
    settings_rates(o, &model);
    fallback_to_bytes(t, model.V);
    warn_of_bytes(t, model.V);
    if (!o->dry_run && (o->export_to || (o->out && trains))) gather_hub_files(t, &model);
    if (o->generate) read_prompt(t);
    DtypeInfo values = native_dtype();
    values.masters &= trains || o->export_to; // what only computes needs what it computes with
    const int T = o->seq ? (int)o->seq : model.T;
    if (o->mesh == MESH_AUTO) choose_mesh(t, &model, T, table, n);
    settings_schedule(o, option_given(table, n, "schedule") || o->mesh == MESH_AUTO);
    const Mesh mesh = settings_mesh(o, t->world.rank, t->world.size);
    const AsyncConfig rounds = settings_async(o, &mesh);
    settings_batch(o);
    if (!mesh_check(&mesh, &model, T, &error) || !async_schedule_fit(&rounds, model.L, &error) ||
        !plan_schedule(t, &model, &mesh, &rounds, &error) ||
        !stage_plan(&t->stage, &model, mesh, (int)o->micro_batch, T, &t->schedule, &rounds, values, &error) ||
        (trains && !build_allreduce_plans(t, &mesh, &error))) {
        die_usage("%s", error.text);
    }
    if (trains) open_loaders(t, held_out_blocks(o));
    open_evaluations(t);
    if (trains && o->eval_every) prove_validation(t);
    if (o->export_to)
        check_all_ranks(t, export_open(&t->export_to, o->export_to, o->export_dtype == 1, &model, &mesh.sync, &error), &error);
    prove_evaluations(t);
    double peak = 0;
    if (!o->dry_run && trains) {
        comm_barrier(&t->world);
        peak = device_peak_flops(t->place.cores_here, t->place.ranks_here);
        comm_all_reduce(&t->world, &peak, 1, COMM_DOUBLE, COMM_SUM);
    }
    int status = 0;
    if (is_main(t)) print_plan(t, peak);
    if (!o->dry_run) {
        if (o->out && trains) lock_out_dir(t);
        check_memory(t);
        stage_allocate(&t->stage);
        open_groups(t);
        if (o->trace) start_tracing(t);
        if (o->out && trains)
            saver_open(&t->saver, &t->stage, o->out, o->keep, t->world.rank, t->world.size, watchdog_row(&t->watch));
        t->saver.files = &t->hub_files;
        status = trains ? train(t, table, n, peak, started) : run_inference(t, started);
        saver_free(&t->saver);
        groups_close(&t->groups);
    }
    batch_free(&t->batch);
    stage_free(&t->stage);
    schedule_free(&t->schedule);
    for (int kind = 0; kind < PLAN_KINDS; kind++) plan_free(&t->sums[kind]), plan_free(&t->far_sums[kind]);
    trace_free(&t->trace);
    free(t->config);
    free(t->given);
    sources_close(&t->train_files);
    sources_close(&t->val_files);
    evaluations_close(&t->evaluations);
    tokenizer_free(&t->tokenizer);
    hub_files_free(&t->hub_files);
    watchdog_ending(&t->watch);
    const bool speaks = is_main(t);
    comm_close(&t->world);
    watchdog_close(&t->watch);
    printing_end();
    return status != EXIT_REQUEUE ? status : speaks ? stop_status() : 0;
}
#endif
