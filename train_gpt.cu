/*
train_gpt.cu: trains a GPT. The file to read first, from top to bottom:

    1. settings      the command line, as one table
    2. a stage       the model's memory, its forward and backward pass, the update
    3. the step      the schedule's actions, executed
    4. around it     validation, sampling, the log, checkpoints
    5. main

A process holds one stage of one mesh (parallel.h says which slices of which tensors, schedule.h in which order to work).
In this build the mesh is 1 x 1 x 1: one stage with the whole model. The kernels are the C reference of kernels/ (*.h).

Notation: B sequences of T tokens in a micro-batch, N = B T rows; the rest as in model.h.
*/
#include "base.h"
#include "checkpoint.h"
#include "dataloader.h"
#include "json.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/crossentropy.h"
#include "kernels/device.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/layernorm.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/peak.h"
#include "kernels/residual.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "model.h"
#include "options.h"
#include "parallel.h"
#include "schedule.h"
#include "tokenizer.h"

#include <sys/resource.h>

// ================================================================================================================
// 1. Settings

typedef enum { DECAY_COSINE, DECAY_LINEAR, DECAY_WSD } Decay;

typedef struct {
    const char *model, *init, *data, *val, *out;
    int arch, decay; // choices
    int64_t layers, hidden, heads, kv_heads, ffn, seq, vocab;
    int64_t micro_batch, global_batch;
    double lr, min_lr, weight_decay, beta1, beta2, eps, clip;
    int64_t warmup, steps, eval_every, eval_sequences, sample_every, save_every, seed;
    bool resume, dry_run, help;
} Settings;

// What runs without any option: the model "tiny" on text that is always there, a minute or two on a laptop.
static Settings settings_default(void) {
    Settings s;
    memset(&s, 0, sizeof s);
    s.model = "tiny";
    s.micro_batch = 16, s.global_batch = 0;
    s.lr = 3e-3, s.min_lr = 3e-4, s.weight_decay = 0.1, s.beta1 = 0.9, s.beta2 = 0.95, s.eps = 1e-8, s.clip = 1;
    s.warmup = 50, s.steps = 1000, s.eval_every = 200, s.eval_sequences = 64, s.sample_every = 1000, s.seed = 42;
    return s;
}

enum { MAX_OPTIONS = 48 };

// Fills table (MAX_OPTIONS rows) with the command line of the trainer; the values go to *s. Returns the number of rows.
static int settings_table(Option* table, Settings* s) {
    const double big = 1e15, size = 1 << 30;
    const Option rows[] = {
        option_heading("model"),
        option_string("model", &s->model, "NAME",
                      "tiny, gpt2-124M, llama-1.1B, ...: a published size; a wrong name lists all"),
        option_choice("arch", &s->arch, "gpt2|llama",
                      "architecture; with the sizes below instead of --model, or to change it"),
        option_int("layers", &s->layers, 1, 10000, "blocks"),
        option_int("hidden", &s->hidden, 1, 1 << 20, "channels of the residual stream"),
        option_int("heads", &s->heads, 1, 1 << 16, "query heads"),
        option_int("kv-heads", &s->kv_heads, 1, 1 << 16, "key/value heads (llama)"),
        option_int("ffn", &s->ffn, 1, 1 << 22, "channels inside the mlp"),
        option_int("seq", &s->seq, 1, 1 << 24, "tokens in a training sequence"),
        option_int("vocab", &s->vocab, 2, size, "vocabulary; the data's own where not said"),
        option_string("init", &s->init, "PATH",
                      "start from these weights: safetensors with Hugging Face's names, file or folder"),
        option_heading("data"),
        option_string("data", &s->data, "GLOB",
                      "files to train on, comma-separated: llm.c shards, raw uint16, any text"),
        option_string("val", &s->val, "GLOB", "files to validate on; without it the last 5 % of --data are held out"),
        option_heading("batch, in sequences"),
        option_int("micro-batch", &s->micro_batch, 1, 1 << 20, "sequences in one forward pass"),
        option_int("global-batch", &s->global_batch, 1, size,
                   "sequences in one update, a multiple of --micro-batch [--micro-batch]"),
        option_heading("optimizer"),
        option_float("lr", &s->lr, 0, 1e3, "learning rate after the warm-up"),
        option_float("min-lr", &s->min_lr, 0, 1e3, "learning rate at the last step"),
        option_int("warmup", &s->warmup, 0, big, "steps of linear warm-up"),
        option_choice("decay", &s->decay, "cosine|linear|wsd",
                      "from --lr to --min-lr; wsd: constant, linear over the last fifth"),
        option_float("weight-decay", &s->weight_decay, 0, 1e3, "decoupled, on matrices only (not on norms and biases)"),
        option_float("beta1", &s->beta1, 0, 0.999999, "AdamW: decay of the first moment"),
        option_float("beta2", &s->beta2, 0, 0.999999999, "AdamW: decay of the second moment"),
        option_float("eps", &s->eps, 1e-30, 1, "AdamW: added to the root of the second moment"),
        option_float("clip", &s->clip, 0, 1e30, "largest norm of the gradient; 0 = never clip"),
        option_heading("run"),
        option_int("steps", &s->steps, 1, big, "updates"),
        option_int("eval-every", &s->eval_every, 0, big, "validate every N steps and at the end; 0 = never"),
        option_int("eval-sequences", &s->eval_sequences, 1, size, "how many sequences to validate on"),
        option_int("sample-every", &s->sample_every, 0, big,
                   "let the model write every N steps and at the end; 0 = never"),
        option_int("save-every", &s->save_every, 0, big,
                   "checkpoint every N steps and at the end (needs --out); 0 = at the end only"),
        option_string("out", &s->out, "DIR", "folder for log.jsonl and checkpoints; nothing is written without it"),
        option_flag("resume", &s->resume, "go on from the newest checkpoint in --out, if there is one"),
        option_int("seed", &s->seed, 0, 9e15, "of the initial weights, the order of the data and the samples"),
        option_flag("dry-run", &s->dry_run, "print the model, memory and schedule; run nothing"),
        option_flag("help", &s->help, "this list"),
    };
    const int n = (int)(sizeof rows / sizeof rows[0]);
    if (n > MAX_OPTIONS) die("internal error: %d options", n);
    memcpy(table, rows, sizeof rows);
    return n;
}

// The model that the settings describe: a preset, changed by the sizes that were given. data_vocab: of the data's tokens.
static ModelConfig settings_model(const Settings* s, Option* table, int n, int data_vocab) {
    const ModelConfig* preset = model_find_preset(s->model);
    if (!preset) {
        int count;
        const ModelConfig* presets = model_presets(&count);
        char names[1024] = "";
        for (int i = 0; i < count; i++) strcat(strcat(names, " "), presets[i].name);
        die_usage("--model %s is not known; there are%s", s->model, names);
    }
    ModelConfig m = *preset;
    const bool named = option_given(table, n, "model");
    if (option_given(table, n, "arch") && s->arch != (int)m.arch) {
        m.arch = (Arch)s->arch;
        m.tied = m.arch == ARCH_GPT2;
        m.rope_theta = 10000;
        m.F = m.arch == ARCH_GPT2 ? 4 * m.C : (int)round_up((size_t)m.C * 8 / 3, 64);
    }
    if (s->layers) m.L = (int)s->layers;
    if (s->hidden) {
        m.C = (int)s->hidden;
        m.F = m.arch == ARCH_GPT2 ? 4 * m.C : (int)round_up((size_t)m.C * 8 / 3, 64);
    }
    if (s->heads) m.NH = m.NKV = (int)s->heads;
    if (s->kv_heads) m.NKV = (int)s->kv_heads;
    if (s->ffn) m.F = (int)s->ffn;
    if (s->seq > m.T || (s->seq && !named)) m.T = (int)s->seq;
    if (s->vocab)
        m.V = (int)s->vocab;
    else if (!named)
        m.V = data_vocab;
    if (memcmp(&m, preset, sizeof m) != 0) m.name = "custom";
    Error error;
    if (!model_check(&m, &error)) die_usage("%s", error.text);
    return m;
}

// Learning rate of update number `step` (from 0): linear warm-up, then decay to min_lr at the last step.
static double learning_rate(const Settings* s, int64_t step) {
    if (step < s->warmup) return s->lr * (double)(step + 1) / (double)s->warmup;
    const double span = (double)max_i64(1, s->steps - 1 - s->warmup);
    const double progress = fmin(1, (double)(step - s->warmup) / span);
    if (s->decay == DECAY_COSINE)
        return s->min_lr + (s->lr - s->min_lr) * 0.5 * (1 + cos(3.141592653589793 * progress));
    const double left = s->decay == DECAY_LINEAR ? 1 - progress : fmin(1, (1 - progress) / 0.2);
    return s->min_lr + (s->lr - s->min_lr) * left;
}

// ================================================================================================================
// 2. A stage: the blocks that this process holds, and their memory

// What the forward pass of one micro-batch leaves for its backward pass. N = B T rows.
typedef struct {
    floatX *norm1, *mean1, *rstd1; // (N, C), (N), (N); RMSNorm has no mean
    floatX *qkv, *attention, *lse; // (N, (NH + 2 NKV) HS), (N, NH HS), (B, NH, T)
    floatX* middle;                // (N, C): the residual stream between attention and mlp
    floatX *norm2, *mean2, *rstd2;
    floatX *fc, *act; // (N, F or 2F), (N, F): before and after GELU or SwiGLU
} LayerActivations;

typedef struct {
    int B, T;
    int32_t *inputs, *targets; // (N)
    floatX** x;                // L + 1 of (N, C): the residual stream before each block and after the last
    LayerActivations* layers;
    floatX *final_norm, *final_mean, *final_rstd;
    floatX* logits;                                    // (N, V); the backward pass turns it into its own gradient
    floatX *row_max, *row_sum, *target_logit, *losses; // (N)
} Activations;

// What the input half of the backward pass leaves for the weight half: the gradient of every linear layer's output.
typedef struct {
    floatX *dqkv, *dmiddle; // dmiddle: of the attention's projection
    floatX *dfc, *dout;     // dout: of the mlp's projection
} LayerGradients;

typedef struct {
    floatX* dx; // (N, C): the gradient of the residual stream, on its way from the last block to the first
    LayerGradients* layers;
} Gradients;

typedef struct {
    ModelConfig model;
    Layout layout;
    int B, T, slots;
    bool split; // the two halves of the backward pass are separate actions, so each block keeps gradients of its own
    floatX *params, *grads; // layout.elements each
    float *moment1, *moment2;
    floatX* grad_embedding;        // (V, C), only where the embedding is tied to the head: see stage_add_tied_gradient
    floatX* rope;                  // (T, HS): cosines and sines
    Activations* activations;      // one per slot
    Gradients* gradients;          // likewise, or one in all if the halves are not split
    floatX *branch, *dact, *dnorm; // scratch of one block: (N, C), (N, F or NH HS), (N, C)
    Arena memory_params, memory_grads, memory_optimizer, memory_activations, memory_scratch;
} Stage;

static floatX* weight(const Stage* s, int layer, TensorKind kind) {
    const int64_t offset = layout_offset(&s->layout, layer, kind);
    return offset < 0 ? NULL : s->params + offset;
}

static floatX* gradient(const Stage* s, int layer, TensorKind kind) {
    const int64_t offset = layout_offset(&s->layout, layer, kind);
    return offset < 0 ? NULL : s->grads + offset;
}

static TensorKind head_kind(const Stage* s) { return s->model.tied ? WTE : HEAD_W; }

static void take_activations(Activations* a, const Stage* s, Arena* arena) {
    const ModelConfig* m = &s->model;
    const int64_t N = (int64_t)s->B * s->T, C = m->C, NHS = (int64_t)m->NH * model_head_size(m);
    a->inputs = (int32_t*)arena_take(arena, N * (int64_t)sizeof(int32_t));
    a->targets = (int32_t*)arena_take(arena, N * (int64_t)sizeof(int32_t));
    for (int l = 0; l <= s->layout.layers; l++) a->x[l] = arena_floats(arena, N * C);
    for (int l = 0; l < s->layout.layers; l++) {
        LayerActivations* y = &a->layers[l];
        y->norm1 = arena_floats(arena, N * C), y->mean1 = arena_floats(arena, N), y->rstd1 = arena_floats(arena, N);
        y->qkv = arena_floats(arena, N * model_qkv_size(m));
        y->attention = arena_floats(arena, N * NHS), y->lse = arena_floats(arena, N * m->NH);
        y->middle = arena_floats(arena, N * C);
        y->norm2 = arena_floats(arena, N * C), y->mean2 = arena_floats(arena, N), y->rstd2 = arena_floats(arena, N);
        y->fc = arena_floats(arena, N * model_fc_size(m)), y->act = arena_floats(arena, N * m->F);
    }
    a->final_norm = arena_floats(arena, N * C);
    a->final_mean = arena_floats(arena, N), a->final_rstd = arena_floats(arena, N);
    a->logits = arena_floats(arena, N * m->V);
    a->row_max = arena_floats(arena, N), a->row_sum = arena_floats(arena, N);
    a->target_logit = arena_floats(arena, N), a->losses = arena_floats(arena, N);
}

static void take_gradients(Gradients* g, const Stage* s, Arena* arena) {
    const ModelConfig* m = &s->model;
    const int64_t N = (int64_t)s->B * s->T, C = m->C;
    g->dx = arena_floats(arena, N * C);
    for (int l = 0; l < s->layout.layers; l++) {
        LayerGradients* d = &g->layers[l];
        if (l > 0 && !s->split) { // used up before the next block needs them
            *d = g->layers[0];
            continue;
        }
        d->dqkv = arena_floats(arena, N * model_qkv_size(m)), d->dmiddle = arena_floats(arena, N * C);
        d->dfc = arena_floats(arena, N * model_fc_size(m)), d->dout = arena_floats(arena, N * C);
    }
}

// Run twice: while the arenas have no memory this only adds up the sizes.
static void stage_take_memory(Stage* s) {
    const ModelConfig* m = &s->model;
    const int64_t N = (int64_t)s->B * s->T, n = s->layout.elements;
    s->params = arena_floats(&s->memory_params, n);
    s->grads = arena_floats(&s->memory_grads, n);
    if (m->tied) s->grad_embedding = arena_floats(&s->memory_grads, (int64_t)m->V * m->C);
    s->moment1 = (float*)arena_take(&s->memory_optimizer, n * (int64_t)sizeof(float));
    s->moment2 = (float*)arena_take(&s->memory_optimizer, n * (int64_t)sizeof(float));
    for (int i = 0; i < s->slots; i++) take_activations(&s->activations[i], s, &s->memory_activations);
    for (int i = 0; i < s->slots; i++) {
        if (i == 0 || s->split) take_gradients(&s->gradients[i], s, &s->memory_scratch);
    }
    s->branch = arena_floats(&s->memory_scratch, N * m->C);
    s->dact = arena_floats(&s->memory_scratch, N * max_i64(m->F, (int64_t)m->NH * model_head_size(m)));
    s->dnorm = arena_floats(&s->memory_scratch, N * m->C);
    if (m->arch == ARCH_LLAMA) s->rope = arena_floats(&s->memory_scratch, (int64_t)m->T * model_head_size(m));
}

// Plans the stage of one rank: after this the sizes of its arenas are known and nothing is allocated.
static bool stage_plan(Stage* s, const ModelConfig* m, Mesh mesh, int B, int T, int slots, bool split, Error* error) {
    memset(s, 0, sizeof *s);
    s->model = *m, s->B = B, s->T = T, s->slots = slots, s->split = split;
    if (!layout_build(&s->layout, m, mesh, error)) return false;
    const size_t layers = (size_t)s->layout.layers;
    s->activations = (Activations*)checked_calloc((size_t)slots, sizeof(Activations), "the slots");
    s->gradients = (Gradients*)checked_calloc((size_t)slots, sizeof(Gradients), "the slots");
    for (int i = 0; i < slots; i++) {
        s->activations[i].x = (floatX**)checked_calloc(layers + 1, sizeof(floatX*), "the slots");
        s->activations[i].layers = (LayerActivations*)checked_calloc(layers, sizeof(LayerActivations), "the slots");
        s->gradients[i].layers = (LayerGradients*)checked_calloc(layers, sizeof(LayerGradients), "the slots");
    }
    s->memory_params.what = "parameters", s->memory_grads.what = "gradients", s->memory_optimizer.what = "optimizer";
    s->memory_activations.what = "activations", s->memory_scratch.what = "backward scratch";
    stage_take_memory(s);
    return true;
}

static int stage_arenas(Stage* s, Arena** arenas) {
    Arena* all[] = {&s->memory_params, &s->memory_grads, &s->memory_optimizer, &s->memory_activations,
                    &s->memory_scratch};
    const int n = (int)(sizeof all / sizeof all[0]);
    memcpy(arenas, all, sizeof all);
    return n;
}

// Bytes of all arenas, known before they are allocated.
static double stage_bytes(Stage* s) {
    Arena* arenas[8];
    const int n = stage_arenas(s, arenas);
    double total = 0;
    for (int i = 0; i < n; i++) total += (double)arenas[i]->used;
    return total;
}

static void stage_allocate(Stage* s) {
    Arena* arenas[8];
    const int n = stage_arenas(s, arenas);
    const double needed = stage_bytes(s), there = device_bytes();
    if (needed > there) {
        die("the run needs %.1f GB of memory, there are %.1f; use a smaller --micro-batch, --seq or model",
            needed / 1e9, there / 1e9);
    }
    for (int i = 0; i < n; i++) arena_allocate(arenas[i]);
    stage_take_memory(s);
    if (s->rope) rope_table(s->rope, s->model.T, model_head_size(&s->model), s->model.rope_theta);
}

static void stage_free(Stage* s) {
    Arena* arenas[8];
    const int n = stage_arenas(s, arenas);
    for (int i = 0; i < n; i++) arena_free(arenas[i]);
    for (int i = 0; i < s->slots; i++) {
        free(s->activations[i].x);
        free(s->activations[i].layers);
        free(s->gradients[i].layers);
    }
    free(s->activations);
    free(s->gradients);
    layout_free(&s->layout);
}

// ----------------------------------------------------------------------------------------------------------------
// Forward

// LayerNorm or RMSNorm of the rows of x, with the weights of one of the model's norms.
static void norm_forward(const Stage* s, floatX* out, floatX* mean, floatX* rstd, const floatX* x, int layer,
                         TensorKind w, TensorKind b, int N) {
    const int C = s->model.C;
    const float eps = (float)s->model.eps;
    if (s->model.arch == ARCH_GPT2) {
        layernorm_forward(out, mean, rstd, x, weight(s, layer, w), weight(s, layer, b), N, C, eps);
    } else {
        rmsnorm_forward(out, rstd, x, weight(s, layer, w), N, C, eps);
    }
}

// x[layer + 1] = middle + mlp(norm2(middle)), middle = x[layer] + attention(norm1(x[layer]))
static void block_forward(const Stage* s, Activations* a, int layer) {
    const ModelConfig* m = &s->model;
    const int C = m->C, F = m->F, HS = model_head_size(m), QKV = model_qkv_size(m), N = a->B * a->T;
    LayerActivations* y = &a->layers[layer];
    const floatX* x = a->x[layer];

    norm_forward(s, y->norm1, y->mean1, y->rstd1, x, layer, NORM1_W, NORM1_B, N);
    linear_forward(y->qkv, y->norm1, weight(s, layer, QKV_W), weight(s, layer, QKV_B), N, C, QKV);
    if (s->rope) rope_forward(y->qkv, s->rope, a->B, a->T, m->NH + m->NKV, HS, QKV);
    attention_forward(y->attention, y->lse, y->qkv, a->B, a->T, m->NH, m->NKV, HS);
    linear_forward(s->branch, y->attention, weight(s, layer, ATTN_PROJ_W), NULL, N, m->NH * HS, C);
    residual_forward(y->middle, x, s->branch, weight(s, layer, ATTN_PROJ_B), N, C);

    norm_forward(s, y->norm2, y->mean2, y->rstd2, y->middle, layer, NORM2_W, NORM2_B, N);
    linear_forward(y->fc, y->norm2, weight(s, layer, FC_W), weight(s, layer, FC_B), N, C, model_fc_size(m));
    if (m->arch == ARCH_GPT2)
        gelu_forward(y->act, y->fc, (int64_t)N * F);
    else
        swiglu_forward(y->act, y->fc, N, F);
    linear_forward(s->branch, y->act, weight(s, layer, MLP_PROJ_W), NULL, N, F, C);
    residual_forward(a->x[layer + 1], y->middle, s->branch, weight(s, layer, MLP_PROJ_B), N, C);
}

static void embed(const Stage* s, Activations* a) {
    const int C = s->model.C, N = a->B * a->T;
    embedding_forward(a->x[0], a->inputs, weight(s, -1, WTE), N, C, 0, s->model.V);
    if (s->model.arch == ARCH_GPT2) position_forward(a->x[0], weight(s, -1, WPE), a->B, a->T, C);
}

// logits = final norm(x) W^T for n rows of the residual stream after the last block
static void head_forward(const Stage* s, Activations* a, const floatX* x, int n) {
    norm_forward(s, a->final_norm, a->final_mean, a->final_rstd, x, -1, FINAL_NORM_W, FINAL_NORM_B, n);
    linear_forward(a->logits, a->final_norm, weight(s, -1, head_kind(s)), NULL, n, s->model.C, s->model.V);
}

// The forward pass of the micro-batch in a (B, T, inputs and targets are set): afterwards a->losses has -log p(target).
static void stage_forward(const Stage* s, Activations* a) {
    const int N = a->B * a->T, V = s->model.V;
    embed(s, a);
    for (int l = 0; l < s->layout.layers; l++) block_forward(s, a, l);
    head_forward(s, a, a->x[s->layout.layers], N);
    crossentropy_max(a->row_max, a->logits, N, V, V);
    crossentropy_sum(a->row_sum, a->target_logit, a->logits, a->row_max, a->targets, N, V, V, 0);
    crossentropy_loss(a->losses, a->row_sum, a->target_logit, N);
}

// ----------------------------------------------------------------------------------------------------------------
// Backward. The input half carries the gradient through the stage, block by block; the weight half turns the gradients
// of the linear layers' outputs, kept in g, into gradients of their weights, which add up over micro-batches.

static void norm_backward(const Stage* s, floatX* dx, const floatX* dout, const floatX* x, const floatX* mean,
                          const floatX* rstd, int layer, TensorKind w, TensorKind b, int N) {
    const int C = s->model.C;
    if (s->model.arch == ARCH_GPT2) {
        layernorm_backward(dx, gradient(s, layer, w), gradient(s, layer, b), dout, x, weight(s, layer, w), mean, rstd,
                           N, C);
    } else {
        rmsnorm_backward(dx, gradient(s, layer, w), dout, x, weight(s, layer, w), rstd, N, C);
    }
}

static void block_backward_input(const Stage* s, const Activations* a, Gradients* g, int layer) {
    const ModelConfig* m = &s->model;
    const int C = m->C, F = m->F, HS = model_head_size(m), QKV = model_qkv_size(m), N = a->B * a->T;
    const LayerActivations* y = &a->layers[layer];
    LayerGradients* d = &g->layers[layer];

    device_copy(d->dout, g->dx, (size_t)N * C * sizeof(floatX));
    linear_backward_input(s->dact, d->dout, weight(s, layer, MLP_PROJ_W), N, F, C);
    if (m->arch == ARCH_GPT2)
        gelu_backward(d->dfc, s->dact, y->fc, (int64_t)N * F);
    else
        swiglu_backward(d->dfc, s->dact, y->fc, N, F);
    linear_backward_input(s->dnorm, d->dfc, weight(s, layer, FC_W), N, C, model_fc_size(m));
    norm_backward(s, g->dx, s->dnorm, y->middle, y->mean2, y->rstd2, layer, NORM2_W, NORM2_B, N);

    device_copy(d->dmiddle, g->dx, (size_t)N * C * sizeof(floatX));
    linear_backward_input(s->dact, d->dmiddle, weight(s, layer, ATTN_PROJ_W), N, m->NH * HS, C);
    attention_backward(d->dqkv, s->dact, y->qkv, y->attention, y->lse, a->B, a->T, m->NH, m->NKV, HS);
    if (s->rope) rope_backward(d->dqkv, s->rope, a->B, a->T, m->NH + m->NKV, HS, QKV);
    linear_backward_input(s->dnorm, d->dqkv, weight(s, layer, QKV_W), N, C, QKV);
    norm_backward(s, g->dx, s->dnorm, a->x[layer], y->mean1, y->rstd1, layer, NORM1_W, NORM1_B, N);
}

// dW += dout^T x and, where there is a bias, db += sum of the rows of dout
static void linear_backward_weight_and_bias(const Stage* s, int layer, TensorKind w, TensorKind b, const floatX* dout,
                                            const floatX* x, int N, int C, int OC) {
    linear_backward_weight(gradient(s, layer, w), dout, x, N, C, OC);
    if (s->model.arch == ARCH_GPT2) linear_backward_bias(gradient(s, layer, b), dout, N, OC);
}

static void block_backward_weight(const Stage* s, const Activations* a, const Gradients* g, int layer) {
    const ModelConfig* m = &s->model;
    const int C = m->C, NHS = m->NH * model_head_size(m), N = a->B * a->T;
    const LayerActivations* y = &a->layers[layer];
    const LayerGradients* d = &g->layers[layer];
    linear_backward_weight_and_bias(s, layer, MLP_PROJ_W, MLP_PROJ_B, d->dout, y->act, N, m->F, C);
    linear_backward_weight_and_bias(s, layer, FC_W, FC_B, d->dfc, y->norm2, N, C, model_fc_size(m));
    linear_backward_weight_and_bias(s, layer, ATTN_PROJ_W, ATTN_PROJ_B, d->dmiddle, y->attention, N, NHS, C);
    linear_backward_weight_and_bias(s, layer, QKV_W, QKV_B, d->dqkv, y->norm1, N, C, model_qkv_size(m));
}

// Starts the gradient: logits become d(sum of losses * scale) / d(logits), dx the gradient of the last block's output.
static void head_backward_input(const Stage* s, Activations* a, Gradients* g, float scale) {
    const int C = s->model.C, V = s->model.V, N = a->B * a->T;
    crossentropy_backward(a->logits, a->row_max, a->row_sum, a->targets, scale, N, V, V, 0);
    linear_backward_input(s->dnorm, a->logits, weight(s, -1, head_kind(s)), N, C, V);
    device_zero(g->dx, (size_t)N * C * sizeof(floatX));
    norm_backward(s, g->dx, s->dnorm, a->x[s->layout.layers], a->final_mean, a->final_rstd, -1, FINAL_NORM_W,
                  FINAL_NORM_B, N);
}

static void head_backward_weight(const Stage* s, const Activations* a) {
    linear_backward_weight(gradient(s, -1, head_kind(s)), a->logits, a->final_norm, a->B * a->T, s->model.C,
                           s->model.V);
}

static void embed_backward(const Stage* s, const Activations* a, const Gradients* g) {
    const int C = s->model.C, N = a->B * a->T;
    floatX* dwte = s->model.tied ? s->grad_embedding : gradient(s, -1, WTE);
    embedding_backward(dwte, g->dx, a->inputs, N, C, 0, s->model.V);
    if (s->model.arch == ARCH_GPT2) position_backward(gradient(s, -1, WPE), g->dx, a->B, a->T, C);
}

static void stage_backward_input(const Stage* s, Activations* a, Gradients* g, float scale) {
    head_backward_input(s, a, g, scale);
    for (int l = s->layout.layers - 1; l >= 0; l--) block_backward_input(s, a, g, l);
}

static void stage_backward_weight(const Stage* s, const Activations* a, const Gradients* g) {
    head_backward_weight(s, a);
    for (int l = s->layout.layers - 1; l >= 0; l--) block_backward_weight(s, a, g, l);
    embed_backward(s, a, g);
}

// Both halves, block by block: the blocks share the memory of their gradients.
static void stage_backward(const Stage* s, Activations* a, Gradients* g, float scale) {
    head_backward_input(s, a, g, scale);
    head_backward_weight(s, a);
    for (int l = s->layout.layers - 1; l >= 0; l--) {
        block_backward_input(s, a, g, l);
        block_backward_weight(s, a, g, l);
    }
    embed_backward(s, a, g);
}

// ----------------------------------------------------------------------------------------------------------------
// Update

// A tied embedding is used twice. Both uses add up their gradients over the micro-batches in buffers of their own, and
// the two sums are added here: what two ends of a pipeline do, so that every mesh adds in the same order.
static void stage_add_tied_gradient(const Stage* s) {
    if (!s->model.tied) return;
    const int64_t rows = s->model.V, C = s->model.C;
    residual_forward(gradient(s, -1, WTE), gradient(s, -1, WTE), s->grad_embedding, NULL, (int)rows, (int)C);
}

// Euclidean norm of the whole gradient: one sum a tensor, added in the order of the layout. A tensor whose gradient is
// not finite is reported by name (NULL if all are).
static double stage_gradient_norm(const Stage* s, const char** not_finite) {
    double total = 0;
    *not_finite = NULL;
    for (int i = 0; i < s->layout.n; i++) {
        const Slice* slice = &s->layout.slices[i];
        const double sum = sum_of_squares(s->grads + slice->offset, slice->rows * slice->cols);
        if (!isfinite(sum) && !*not_finite) *not_finite = slice->tensor.name;
        total += sum;
    }
    return sqrt(total);
}

// AdamW (Loshchilov and Hutter 2019) on every slice; step counts from 1; grad_scale multiplies the gradient.
static void stage_update(const Stage* s, const Settings* o, int64_t step, double lr, double grad_scale) {
    for (int i = 0; i < s->layout.n; i++) {
        const Slice* slice = &s->layout.slices[i];
        const int64_t at = slice->offset;
        const double decay = slice->tensor.vector ? 0 : o->weight_decay;
        adamw_update(s->params + at, s->grads + at, s->moment1 + at, s->moment2 + at, slice->rows * slice->cols,
                     (float)lr, (float)o->beta1, (float)o->beta2, (float)o->eps, (float)decay, step, (float)grad_scale);
    }
}

static void stage_zero_gradients(const Stage* s) { device_zero(s->memory_grads.base, s->memory_grads.size); }

// ================================================================================================================
// 3. The step

typedef struct {
    Settings settings;
    Stage stage;
    Schedule schedule;
    TokenFiles train_files, val_files;
    DataLoader train, val;
    int64_t step;                     // updates done
    int64_t sequences;                // consumed: the position in the data
    double loss, grad_norm, val_loss; // of the last step; val_loss is NaN unless the step was validated
} Trainer;

// Loads sequences [first, first + B) of a loader into a.
static void load_microbatch(Activations* a, const DataLoader* loader, int64_t first, int B, int T) {
    a->B = B, a->T = T;
    Error error;
    for (int b = 0; b < B; b++) {
        if (!dataloader_sequence(a->inputs + b * T, a->targets + b * T, loader, (uint64_t)(first + b), &error)) {
            die("%s", error.text);
        }
    }
}

// Sum of the losses of a micro-batch, token by token in order, onto sum.
static double add_losses(double sum, const Activations* a) {
    for (int i = 0; i < a->B * a->T; i++) sum += (double)a->losses[i];
    return sum;
}

// Executes the schedule: one update on the next global batch. Every gradient is that of the mean loss over the batch.
static void train_step(Trainer* t) {
    const Settings* o = &t->settings;
    Stage* s = &t->stage;
    const double tokens = (double)o->global_batch * s->T;
    const float scale = (float)(1 / tokens);
    double loss = 0;
    stage_zero_gradients(s);
    for (int i = 0; i < t->schedule.n; i++) {
        const Action action = t->schedule.actions[i];
        Activations* a = action.slot < 0 ? NULL : &s->activations[action.slot];
        Gradients* g = action.slot < 0 ? NULL : &s->gradients[s->split ? action.slot : 0];
        switch (action.kind) {
        case FORWARD:
            load_microbatch(a, &t->train, t->sequences + (int64_t)action.microbatch * s->B, s->B, s->T);
            stage_forward(s, a);
            loss = add_losses(loss, a);
            break;
        case BACKWARD: stage_backward(s, a, g, scale); break;
        case BACKWARD_INPUT: stage_backward_input(s, a, g, scale); break;
        case BACKWARD_WEIGHT: stage_backward_weight(s, a, g); break;
        case UPDATE: {
            stage_add_tied_gradient(s);
            const char* not_finite;
            t->loss = loss / tokens;
            t->grad_norm = stage_gradient_norm(s, &not_finite);
            if (not_finite || !isfinite(t->loss)) {
                die("step %lld: the loss is %g and the gradient of %s is not finite; nothing was updated. Try a "
                    "smaller "
                    "--lr, a longer --warmup or a --clip",
                    (long long)t->step + 1, t->loss, not_finite ? not_finite : "no tensor");
            }
            const double clip = o->clip > 0 && t->grad_norm > o->clip ? o->clip / (t->grad_norm + 1e-6) : 1;
            stage_update(s, o, t->step + 1, learning_rate(o, t->step), clip);
            break;
        }
        }
    }
    t->step++;
    t->sequences += o->global_batch;
}

// ================================================================================================================
// 4. Around the step: validation, sampling, what people and programs read, checkpoints

// Mean loss over the first `count` sequences of the validation text, the same ones every time.
static double validate(Trainer* t) {
    Stage* s = &t->stage;
    Activations* a = &s->activations[0];
    const int64_t count = min_i64(t->settings.eval_sequences, t->val.count);
    double sum = 0;
    for (int64_t first = 0; first < count; first += s->B) {
        load_microbatch(a, &t->val, first, (int)min_i64(s->B, count - first), s->T);
        stage_forward(s, a);
        sum = add_losses(sum, a);
    }
    return sum / ((double)count * s->T);
}

// Draws from softmax(logits / temperature): the first index where the running sum passes u in [0, 1).
static int sample_softmax(const floatX* logits, int V, double temperature, double u) {
    double top = logits[0], sum = 0, running = 0;
    for (int i = 1; i < V; i++) top = fmax(top, (double)logits[i]);
    for (int i = 0; i < V; i++) sum += exp(((double)logits[i] - top) / temperature);
    for (int i = 0; i < V; i++) {
        running += exp(((double)logits[i] - top) / temperature);
        if (running > u * sum) return i;
    }
    return V - 1;
}

// Writes `count` tokens of the model's own: as text where tokens are bytes, as numbers otherwise. The context is
// the last T tokens; every token is a forward pass over it, so a large model is stopped after twenty seconds.
static void sample(Trainer* t, int count) {
    Stage* s = &t->stage;
    Activations* a = &s->activations[0];
    const int C = s->model.C, V = s->model.V;
    const bool text = t->train_files.format == TOKENS_TEXT;
    const uint64_t stream = hash_string("sample") + (uint64_t)t->step;
    const double temperature = 0.8;
    printf("The model writes:\n\n");
    int32_t* tokens = (int32_t*)checked_malloc((size_t)(count + 1) * sizeof(int32_t), "a sample");
    floatX* logits = (floatX*)checked_malloc((size_t)V * sizeof(floatX), "a sample");
    tokens[0] = text ? '\n' : V > 50256 ? 50256 : 0; // a new line, or GPT-2's end of text
    TextWriter writer = {stdout, "", 0, 0};
    const double started = seconds_now();
    for (int i = 0; i < count && seconds_now() - started < 20; i++) {
        a->B = 1, a->T = (int)min_i64(i + 1, s->T);
        memcpy(a->inputs, tokens + i + 1 - a->T, (size_t)a->T * sizeof(int32_t));
        embed(s, a);
        for (int l = 0; l < s->layout.layers; l++) block_forward(s, a, l);
        head_forward(s, a, a->x[s->layout.layers] + (int64_t)(a->T - 1) * C, 1);
        device_to_host(logits, a->logits, (size_t)V * sizeof(floatX));
        const int next =
            sample_softmax(logits, V, temperature, random_uniform((uint64_t)t->settings.seed, stream, (uint64_t)i));
        tokens[i + 1] = next;
        if (text)
            text_writer_put(&writer, next);
        else
            printf("%d ", next);
    }
    text_writer_end(&writer);
    printf("\n\n");
    free(tokens);
    free(logits);
}

// Most memory the process ever held, in bytes.
static int64_t peak_bytes(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
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
    char left[32], val[32] = "", utilization[32] = "";
    write_duration(left, sizeof left, seconds_left);
    if (!isnan(t->val_loss)) snprintf(val, sizeof val, " | val %.4f", t->val_loss);
    if (mfu > 0) snprintf(utilization, sizeof utilization, " | mfu %2.0f %%", 100 * mfu);
    const double tokens = (double)t->settings.global_batch * t->stage.T;
    printf("step %5lld/%lld | loss %.4f%s | norm %.3f | lr %.2e | %7.1f ms | %8.0f tok/s%s | %s left\n",
           (long long)t->step, (long long)t->settings.steps, t->loss, val, t->grad_norm,
           learning_rate(&t->settings, t->step - 1), 1e3 * seconds, tokens / seconds, utilization, left);
    fflush(stdout);
}

// One JSON object for programs.
static void log_step(FILE* log, const Trainer* t, double seconds, double mfu) {
    const double tokens = (double)t->settings.global_batch * t->stage.T;
    fprintf(log, "{\"step\":%lld,\"loss\":%.9g,\"val_loss\":", (long long)t->step, t->loss);
    if (isnan(t->val_loss))
        fprintf(log, "null");
    else
        fprintf(log, "%.9g", t->val_loss);
    fprintf(log,
            ",\"grad_norm\":%.9g,\"lr\":%.9g,\"tokens\":%.0f,\"ms\":%.3f,\"tokens_per_s\":%.1f,\"mfu\":", t->grad_norm,
            learning_rate(&t->settings, t->step - 1), tokens, 1e3 * seconds, tokens / seconds);
    if (mfu > 0)
        fprintf(log, "%.4f", mfu);
    else
        fprintf(log, "null");
    fprintf(log, ",\"bytes\":{\"tp\":0,\"pp\":0,\"dp\":0},\"bubble\":0.0,\"peak_bytes\":%lld}\n",
            (long long)peak_bytes());
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

// Appends the files that match folder/pattern to the list and returns their size in bytes; no match is no error.
static int64_t add_files(PathList* list, const char* folder, const char* pattern) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, pattern);
    int64_t bytes = 0;
    glob_t found;
    if (glob(path, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            struct stat st;
            if (stat(found.gl_pathv[i], &st) != 0 || !S_ISREG(st.st_mode)) continue;
            path_list_append(list, found.gl_pathv[i]);
            bytes += st.st_size;
        }
    }
    globfree(&found);
    return bytes;
}

// The text that is always there: this project's own sources, found beside the executable, behind as many of the
// system's C headers as make two megabytes.
static PathList default_data(void) {
    static const char* headers[] = {"*.h", "linux/*.h", "*/bits/*.h", NULL};
    static const char* sources[] = {"*.h",         "*.cu",         "*.c",          "README.md",
                                    "kernels/*.h", "dev/*/*.[ch]", "scripts/*.sh", NULL};
    char folder[4096];
    const ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[length > 0 ? length : 0] = 0;
    char* slash = strrchr(folder, '/');
    if (slash) *slash = 0;
    PathList list = {NULL, 0};
    int64_t bytes = 0;
    for (int i = 0; headers[i] && bytes < 2000000; i++) bytes += add_files(&list, "/usr/include", headers[i]);
    for (int i = 0; sources[i]; i++) add_files(&list, folder, sources[i]);
    return list;
}

// Opens the texts to train and to validate on: --data and --val, or the default.
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
    if (!ok) die("%s", error.text);
}

// Without --val the last 5 % of the training text are held out.
static void open_loaders(Trainer* t) {
    const Settings* o = &t->settings;
    const int T = t->stage.T, V = t->stage.model.V;
    const int64_t total = t->train_files.tokens, end = o->val || !o->eval_every ? total : total - total / 20;
    const TokenFiles* val = o->val ? &t->val_files : &t->train_files;
    Error error;
    if (!dataloader_init(&t->train, &t->train_files, 0, end, T, V, (uint64_t)o->seed, true, &error))
        die("%s", error.text);
    if (o->eval_every && !dataloader_init(&t->val, val, o->val ? 0 : end, val->tokens, T, V, 0, false, &error)) {
        die("validation: %s; or give --val, or --eval-every 0", error.text);
    }
}

static void print_plan(Trainer* t, double peak) {
    Stage* s = &t->stage;
    const ModelConfig* m = &s->model;
    const Settings* o = &t->settings;
    char device[256], data[512];
    device_name(device, sizeof device);
    tokens_describe(data, sizeof data, &t->train_files);
    const double parameters = (double)model_parameters(m);
    printf("model     %s: %s, %d layers, %d channels, %d heads, vocabulary %d; %.0f parameters\n", m->name,
           m->arch == ARCH_GPT2 ? "gpt2" : "llama", m->L, m->C, m->NH, m->V, parameters);
    printf("data      %s\n", data);
    printf("batch     %lld sequences of %d tokens in %d micro-batch%s of %d\n", (long long)o->global_batch, s->T,
           t->schedule.m, t->schedule.m == 1 ? "" : "es", s->B);
    printf("device    %s", device);
    if (peak > 0) printf("; measured peak %.0f GFLOP/s. mfu = (6 parameters + 6 L C T) tokens/s / peak", peak / 1e9);
    printf("\nmesh      1 process: tensor 1, pipeline 1, data 1\nschedule  ");
    schedule_draw(&t->schedule, stdout);
    Arena* arenas[8];
    const int n = stage_arenas(s, arenas);
    printf("memory   ");
    for (int i = 0; i < n; i++) printf(" %s %.1f MB,", arenas[i]->what, (double)arenas[i]->used / 1e6);
    printf(" together %.1f MB\n", stage_bytes(s) / 1e6);
    fflush(stdout);
}

// Where the run stands, and what a resumed run has to have in common with it.
static CheckpointState checkpoint_state(const Trainer* t) {
    const Settings* o = &t->settings;
    const CheckpointState state = {t->step, t->sequences, o->seed, o->global_batch, t->stage.T, t->train_files.tokens};
    return state;
}

static void save_checkpoint(const Trainer* t) {
    const Stage* s = &t->stage;
    const CheckpointState state = checkpoint_state(t);
    Error error;
    if (!checkpoint_save(t->settings.out, &state, &s->model, &s->layout, s->params, s->moment1, s->moment2, &error)) {
        die("%s", error.text);
    }
}

// Takes up the newest checkpoint of --out; returns false if there is none.
static bool resume_checkpoint(Trainer* t) {
    Stage* s = &t->stage;
    const Settings* o = &t->settings;
    char path[4096];
    CheckpointState state;
    Error error;
    if (!checkpoint_newest(path, sizeof path, o->out)) {
        printf("resume    no checkpoint in %s: a new run\n", o->out);
        return false;
    }
    if (!checkpoint_load(path, &state, &s->layout, s->params, s->moment1, s->moment2, &error)) die("%s", error.text);
    const CheckpointState now = checkpoint_state(t);
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
    printf("resume    %s: step %lld\n", path, (long long)t->step);
    return true;
}

// ================================================================================================================
// 5. main

static bool is_due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

// Initial weights: from the newest checkpoint, from --init, or drawn. Returns true if a run is resumed.
static bool set_weights(Trainer* t) {
    Stage* s = &t->stage;
    const Settings* o = &t->settings;
    Error error;
    if (o->resume && resume_checkpoint(t)) return true;
    if (o->init) {
        if (!checkpoint_init(o->init, &s->model, &s->layout, s->params, &error)) die("%s", error.text);
    } else {
        layout_initialize(s->params, &s->layout, (uint64_t)o->seed);
    }
    return false;
}

// Refuses a folder that cannot be written, or that holds another run.
static void prepare_out(const Settings* o) {
    char path[4096];
    struct stat st;
    if (mkdir(o->out, 0777) != 0 && errno != EEXIST)
        die("--out %s: cannot make the folder: %s", o->out, strerror(errno));
    if (stat(o->out, &st) != 0 || !S_ISDIR(st.st_mode)) die("--out %s is not a folder", o->out);
    if (access(o->out, W_OK | X_OK) != 0) die("--out %s: cannot write there: %s", o->out, strerror(errno));
    snprintf(path, sizeof path, "%s/log.jsonl", o->out);
    if (!o->resume && stat(path, &st) == 0)
        die_usage("--out %s holds a run already; add --resume to go on with it, or choose another folder", o->out);
}

static void train(Trainer* t, double peak, double started) {
    const Settings* o = &t->settings;
    const bool resumed = set_weights(t);
    FILE* log = o->out ? log_open(o->out, resumed, t->step) : NULL;
    const double flops = model_flops_per_token(&t->stage.model, t->stage.T) * (double)o->global_batch * t->stage.T;
    printf("ready     %.2f s after the start\n", seconds_now() - started);
    const int64_t first = t->step;
    const double loop_started = seconds_now();
    while (t->step < o->steps) {
        const double before = seconds_now();
        train_step(t);
        const double seconds = seconds_now() - before, mfu = peak > 0 ? flops / seconds / peak : 0;
        const bool last = t->step == o->steps;
        t->val_loss = o->eval_every && (last || is_due(t->step, o->eval_every)) ? validate(t) : (double)NAN;
        const double per_step = (seconds_now() - loop_started) / (double)(t->step - first);
        print_step(t, seconds, mfu, per_step * (double)(o->steps - t->step));
        if (log) log_step(log, t, seconds, mfu);
        if (o->out && (last || is_due(t->step, o->save_every))) save_checkpoint(t);
        if (is_due(t->step, o->sample_every) && !last) sample(t, 256);
    }
    if (log && fclose(log) != 0) die("%s/log.jsonl: cannot write: %s", o->out, strerror(errno));
    char duration[32];
    write_duration(duration, sizeof duration, seconds_now() - loop_started);
    printf("done      %lld steps in %s\n", (long long)(t->step - first), duration);
    if (o->sample_every) sample(t, 512);
}

#ifndef TRAIN_GPT_NO_MAIN // test_gpt.c includes this file and has a main of its own
int main(int argc, char** argv) {
    device_tame_threads(argv);
    const double started = seconds_now();
    process.name = "train_gpt";
    static Trainer trainer;
    Trainer* t = &trainer;
    t->settings = settings_default();
    Settings* o = &t->settings;
    Option table[MAX_OPTIONS];
    const int n = settings_table(table, o);
    Error error;
    if (!options_parse(table, n, argc, argv, &error)) die_usage("%s", error.text);
    if (o->help) {
        Settings defaults = settings_default();
        Option rows[MAX_OPTIONS];
        printf("train_gpt trains a GPT; without options a small one, on text that is always there.\n");
        options_help(rows, settings_table(rows, &defaults), stdout);
        return 0;
    }
    if ((o->resume || o->save_every) && !o->out) die_usage("--%s needs --out DIR", o->resume ? "resume" : "save-every");
    if (!o->global_batch) o->global_batch = o->micro_batch;
    if (o->global_batch % o->micro_batch != 0) {
        die_usage("--global-batch %lld is not a multiple of --micro-batch %lld", (long long)o->global_batch,
                  (long long)o->micro_batch);
    }
    if (o->min_lr > o->lr) die_usage("--min-lr %g is above --lr %g", o->min_lr, o->lr);

    open_files(t);
    const int data_vocab = token_formats[t->train_files.format].vocab;
    if (!data_vocab && !o->vocab && !option_given(table, n, "model")) {
        die_usage("%s holds raw uint16 tokens, which do not say of which vocabulary: give --vocab", o->data);
    }
    const ModelConfig model = settings_model(o, table, n, data_vocab);
    t->schedule = schedule_build_one_stage((int)(o->global_batch / o->micro_batch), false);
    if (!schedule_check(&t->schedule, &error)) die("internal error: the schedule is wrong: %s", error.text);
    const int T = o->seq ? (int)o->seq : model.T;
    if (o->micro_batch * T > INT32_MAX) {
        die_usage("--micro-batch %lld of %d tokens is more than 2^31 tokens at once", (long long)o->micro_batch, T);
    }
    if (!stage_plan(&t->stage, &model, mesh_of_rank(0, 1, 1, 1), (int)o->micro_batch, T, t->schedule.slots, false,
                    &error)) {
        die_usage("%s", error.text);
    }
    open_loaders(t);
    const double peak = o->dry_run ? 0 : fma_peak_flops(device_threads(), 0.05);
    print_plan(t, peak);
    if (!o->dry_run) {
        if (o->out) prepare_out(o);
        stage_allocate(&t->stage);
        train(t, peak, started);
    }
    stage_free(&t->stage);
    schedule_free(&t->schedule);
    tokens_close(&t->train_files);
    tokens_close(&t->val_files);
    return 0;
}
#endif
