/*
model.h: a GPT as data: its shapes, its published sizes, its list of tensors. Nothing is computed here.

Two architectures, exactly as Hugging Face's transformers has them, so that weights can be exchanged:

                 gpt2 (Radford et al. 2019)                   llama (Touvron et al. 2023)
    position     learned table wpe (T, C)                     rotary (RoPE), no parameters
    norm         LayerNorm, weight and bias                   RMSNorm, weight
    attention    one matrix for q, k and v; biases            q, k, v matrices; fewer k/v heads allowed; no biases
    mlp          GELU(x W1 + b1) W2 + b2, F = 4C              (silu(x Wgate) * x Wup) Wdown
    head         the token embedding again (tied)             its own matrix (untied)

Names: V vocabulary, T positions, L layers, C channels, NH query heads, NKV key/value heads, HS = C / NH head size,
F channels inside the mlp. A linear layer's weight is (out, in), row-major, and computes x W^T.

The tensors are listed in memory order. q, k, v follow each other, and so do gate and up: together they are the one
matrix that a single matrix product uses, while a file holds each under its own name.
*/
#pragma once

#include "util/base.h"
#include "util/rope_table.h"

typedef enum { NORM_LAYERNORM, NORM_RMSNORM } NormKind;
typedef enum { POSITION_LEARNED, POSITION_ROPE } PositionKind;
typedef enum { HUB_GPT2, HUB_LLAMA } HubFormat; // Hugging Face's names of tensors and members of config.json

// The mlp's activation functions, whose kernels are in kernels/activations.h.
typedef enum { ACTIVATION_GELU, ACTIVATION_SWIGLU, ACTIVATION_KINDS } ActivationKind;
static const struct {
    const char *name, *hub_names; // hub_names: in a config.json, each between blanks; the first is written
    bool gated;                   // a gate and an up projection, side by side
} activation_kinds[ACTIVATION_KINDS] = {{"gelu", " gelu_new gelu_pytorch_tanh gelu_fast ", false},
                                        {"swiglu", " silu swish ", true}};

// An architecture is a set of features. Code asks for the feature.
typedef struct {
    const char *name, *model_type; // the value of --arch; in a config.json: Hugging Face's name, or else its own
    HubFormat hub;
    NormKind norm;
    PositionKind position;
    ActivationKind activation;
    bool biases; // linear layers have biases
    bool tied;   // the head is the token embedding by default
} Architecture;

typedef enum { ARCH_GPT2, ARCH_LLAMA, ARCHS } Arch;
static const Architecture architectures[ARCHS] = {
    {"gpt2", "gpt2", HUB_GPT2, NORM_LAYERNORM, POSITION_LEARNED, ACTIVATION_GELU, true, true},
    {"llama", "llama", HUB_LLAMA, NORM_RMSNORM, POSITION_ROPE, ACTIVATION_SWIGLU, false, false},
};

// Made by model_of, a row of model_presets, options or a config.json; fields are then set by name.
typedef struct {
    const char* name;
    Arch arch;
    HubFormat hub;
    NormKind norm;
    PositionKind position;
    ActivationKind activation;
    bool biases, tied;
    int L, C, NH, NKV, F, T, V;
    double eps, rope_theta;
    RopeScaling rope_scaling;
} ModelConfig;

// Whether the mlp has a gate: one product then makes gate and up side by side.
static inline bool model_is_gated(const ModelConfig* m) { return activation_kinds[m->activation].gated; }

// The default F. With a gate 8 C / 3, as many weights as 4 C has without one.
static inline int model_usual_ffn(const ModelConfig* m) {
    return model_is_gated(m) ? (int)round_up((size_t)m->C * 8 / 3, 64) : 4 * m->C;
}

// Sets the features of an architecture in m.
static inline void model_set_arch(ModelConfig* m, Arch arch) {
    const Architecture* from = &architectures[arch];
    m->arch = arch;
    m->hub = from->hub;
    m->norm = from->norm;
    m->position = from->position;
    m->activation = from->activation;
    m->biases = from->biases;
    m->tied = from->tied;
    m->eps = 1e-5;
    m->rope_theta = from->position == POSITION_ROPE ? 10000 : 0;
}

static inline const char* model_arch_name(Arch arch) { return architectures[arch].name; }

// The values of --arch.
static inline const char* model_arch_choices(void) {
    static char text[256];
    text[0] = 0;
    for (int i = 0; i < ARCHS; i++) append_choice(text, sizeof text, architectures[i].name);
    return text;
}

static inline ModelConfig model_of(Arch arch, int L, int C, int NH, int NKV, int F, int T, int V) {
    ModelConfig m = {};
    m.name = "custom";
    m.L = L;
    m.C = C;
    m.NH = NH;
    m.NKV = NKV;
    m.F = F;
    m.T = T;
    m.V = V;
    model_set_arch(&m, arch);
    return m;
}

// Whether two models compute the same function, with weights of the same shapes.
static inline bool model_same(const ModelConfig* a, const ModelConfig* b) {
    return a->arch == b->arch && a->norm == b->norm && a->position == b->position && a->activation == b->activation &&
           a->biases == b->biases && a->tied == b->tied && a->L == b->L && a->C == b->C && a->NH == b->NH &&
           a->NKV == b->NKV && a->F == b->F && a->T == b->T && a->V == b->V && a->eps == b->eps &&
           a->rope_theta == b->rope_theta && memcmp(&a->rope_scaling, &b->rope_scaling, sizeof a->rope_scaling) == 0;
}

// The published sizes, by name. GPT-2: Radford et al. 2019. gpt3-*: the ten models of Table 1 of Narayanan et al. 2021
// (V = 51,200, T = 2048) and GPT-3 175B (Brown et al. 2020). Llama: 7B and 13B of Touvron et al. 2023, 70B of Llama 2
// (arXiv 2307.09288, T = 4096), 1.1B TinyLlama (Zhang et al. 2024), 130M the small model of CAAT-Net (Lamprecht et al.
// 2025). llama3-*: table 3 of the Llama 3 report (arXiv 2407.21783), whose RoPE has theta 500,000; V and T of their
// config.json at Hugging Face. tiny: our own, on bytes, learns in a minute.
static inline const ModelConfig* model_presets(int* count) {
    typedef struct { // it has a name, as nvcc writes out the type in sizeof
        const char* name;
        Arch arch;
        int L, C, NH, NKV, F, T, V;
    } Preset;
    static const Preset rows[] = {
        {"tiny", ARCH_GPT2, 4, 128, 4, 4, 512, 128, 256},
        {"gpt2-124M", ARCH_GPT2, 12, 768, 12, 12, 3072, 1024, 50257},
        {"gpt2-350M", ARCH_GPT2, 24, 1024, 16, 16, 4096, 1024, 50257},
        {"gpt2-774M", ARCH_GPT2, 36, 1280, 20, 20, 5120, 1024, 50257},
        {"gpt2-1558M", ARCH_GPT2, 48, 1600, 25, 25, 6400, 1024, 50257},
        {"gpt3-1.7B", ARCH_GPT2, 24, 2304, 24, 24, 9216, 2048, 51200},
        {"gpt3-3.6B", ARCH_GPT2, 30, 3072, 32, 32, 12288, 2048, 51200},
        {"gpt3-7.5B", ARCH_GPT2, 36, 4096, 32, 32, 16384, 2048, 51200},
        {"gpt3-18.4B", ARCH_GPT2, 40, 6144, 48, 48, 24576, 2048, 51200},
        {"gpt3-39.1B", ARCH_GPT2, 48, 8192, 64, 64, 32768, 2048, 51200},
        {"gpt3-76.1B", ARCH_GPT2, 60, 10240, 80, 80, 40960, 2048, 51200},
        {"gpt3-145.6B", ARCH_GPT2, 80, 12288, 96, 96, 49152, 2048, 51200},
        {"gpt3-175B", ARCH_GPT2, 96, 12288, 96, 96, 49152, 2048, 50257},
        {"gpt3-310.1B", ARCH_GPT2, 96, 16384, 128, 128, 65536, 2048, 51200},
        {"gpt3-529.6B", ARCH_GPT2, 105, 20480, 128, 128, 81920, 2048, 51200},
        {"gpt3-1008B", ARCH_GPT2, 128, 25600, 160, 160, 102400, 2048, 51200},
        {"llama-130M", ARCH_LLAMA, 12, 768, 16, 16, 2048, 1024, 32000},
        {"llama-1.1B", ARCH_LLAMA, 22, 2048, 32, 4, 5632, 2048, 32000},
        {"llama-7B", ARCH_LLAMA, 32, 4096, 32, 32, 11008, 2048, 32000},
        {"llama-13B", ARCH_LLAMA, 40, 5120, 40, 40, 13824, 2048, 32000},
        {"llama-70B", ARCH_LLAMA, 80, 8192, 64, 8, 28672, 4096, 32000},
        {"llama3-8B", ARCH_LLAMA, 32, 4096, 32, 8, 14336, 8192, 128256},
        {"llama3-70B", ARCH_LLAMA, 80, 8192, 64, 8, 28672, 8192, 128256},
        {"llama3-405B", ARCH_LLAMA, 126, 16384, 128, 8, 53248, 8192, 128256},
    };
    enum { PRESETS = sizeof rows / sizeof rows[0] };
    static ModelConfig presets[PRESETS];
    *count = PRESETS;
    for (int i = presets[0].name ? 0 : PRESETS; i > 0; i--) { // at the first call only; presets[0] is made last
        ModelConfig* m = &presets[i - 1];
        *m = model_of(rows[i - 1].arch, rows[i - 1].L, rows[i - 1].C, rows[i - 1].NH, rows[i - 1].NKV, rows[i - 1].F,
                      rows[i - 1].T, rows[i - 1].V);
        m->name = rows[i - 1].name;
        if (strncmp(m->name, "llama3-", 7) == 0) m->rope_theta = 500000;
    }
    return presets;
}

// Returns NULL if no preset has that name.
static inline const ModelConfig* model_find_preset(const char* name) {
    int n;
    const ModelConfig* presets = model_presets(&n);
    for (int i = 0; i < n; i++) {
        if (strcmp(presets[i].name, name) == 0) return &presets[i];
    }
    return NULL;
}

// Refuses invalid sizes; the error names them.
static inline bool model_check(const ModelConfig* m, Error* error) {
    if (m->C % m->NH != 0) return fail(error, "--hidden %d cannot be divided into --heads %d equal heads", m->C, m->NH);
    if (m->NH % m->NKV != 0)
        return fail(error, "--heads %d cannot be divided into --kv-heads %d equal groups", m->NH, m->NKV);
    if (m->position == POSITION_ROPE && m->C / m->NH % 2 != 0)
        return fail(error, "--hidden %d / --heads %d = %d: rotary positions need an even head size", m->C, m->NH,
                    m->C / m->NH);
    return true;
}

// Refuses a model that only ./plan accepts: gpt2 with fewer key/value heads.
static inline bool model_check_trained(const ModelConfig* m, Error* error) {
    return m->hub != HUB_GPT2 || m->NKV == m->NH ||
           fail(error, "--kv-heads %d: gpt2 has as many as --heads %d here; use --arch llama", m->NKV, m->NH);
}

static inline int model_head_size(const ModelConfig* m) { return m->C / m->NH; }

// Channels of one token's q, k and v together.
static inline int model_qkv_size(const ModelConfig* m) { return (m->NH + 2 * m->NKV) * model_head_size(m); }

// Output channels of the first matrix of the mlp: gate and up are side by side in llama.
static inline int model_fc_size(const ModelConfig* m) { return model_is_gated(m) ? 2 * m->F : m->F; }

// ---- The tensors ------------------------------------------------------------------------------------------------

typedef enum {
    WTE,
    WPE,
    NORM1_W,
    NORM1_B,
    QKV_W,
    K_W,
    V_W,
    QKV_B,
    ATTN_PROJ_W,
    ATTN_PROJ_B,
    NORM2_W,
    NORM2_B,
    FC_W,
    UP_W,
    FC_B,
    MLP_PROJ_W,
    MLP_PROJ_B,
    FINAL_NORM_W,
    FINAL_NORM_B,
    HEAD_W,
    TENSOR_KINDS,
    NO_TENSOR = TENSOR_KINDS
} TensorKind; // llama: QKV_W is q alone, FC_W the gate; K_W, V_W and UP_W follow them in memory

// How tensor-parallel ranks share a tensor. A column-parallel layer's weight, (out, in) here, is cut along its rows:
// the name is Megatron's, which writes the weight as (in, out). A row-parallel one is cut along its columns.
typedef enum { REPLICATED, COLUMN_PARALLEL, ROW_PARALLEL } Parallel;

// A set. Tensor ranks with the same values of a tensor sum its gradient where each sees only the terms of
// its rows (with sequence parallelism), of its streams (in a CAAT-Net: parallel.h), or of its heads (always).
enum { GRAD_WHOLE = 0, GRAD_OF_ROWS = 1, GRAD_OF_STREAMS = 2, GRAD_OF_HEADS = 4 };

typedef struct {
    TensorKind kind;
    int layer;          // 0 .. L-1; -1 before the first block, L after the last
    char name[64];      // Hugging Face's
    int64_t rows, cols; // in memory: (out, in); a vector has cols = 1
    bool vector;        // one dimension in files; no weight decay
    bool transposed;    // files hold (in, out): GPT-2's Conv1D
    Parallel parallel;
    int grad;  // GRAD_WHOLE, ...
    int parts; // matrices in one tensor (q, k, v: 3), each cut by itself; else 1
    double init_mean, init_std;
} Tensor;

enum { MODEL_LAYER_TENSORS = 12 }; // a block has these at most; before and after the blocks are fewer
enum { TENSOR_ROWS = 21 };

// A row of the table of tensors, with its names in Hugging Face's two formats.
typedef struct {
    int place; // -1: before the blocks, 0: in every block, 1: after them
    TensorKind kind;
    bool exists;
    const char *gpt2_name, *llama_name;
    int64_t rows, cols; // cols = 0: a vector
    Parallel parallel;
    int grad, parts;
    double mean, std; // the initial values'
} TensorRow;

// The table, in memory order. Initial values: normal(0, 0.02), and 0.02 / sqrt(2 L) for the two matrices of a block
// that write into the residual stream (Radford et al. 2019, section 2.3); norms' weights 1, biases 0. WPE is not
// STREAMS, as positions come before the copy to streams.
static inline void tensor_rows(TensorRow table[TENSOR_ROWS], const ModelConfig* m) {
    const bool gpt2 = m->hub == HUB_GPT2, layernorm = m->norm == NORM_LAYERNORM;
    const int V = m->V, C = m->C, F = m->F, NHS = m->NH * model_head_size(m), QKV = model_qkv_size(m),
              KVHS = m->NKV * model_head_size(m);
    const double std = 0.02, out = 0.02 / sqrt(2.0 * m->L);
    enum { WHOLE = GRAD_WHOLE, ROWS = GRAD_OF_ROWS, BOTH = GRAD_OF_ROWS | GRAD_OF_STREAMS, HEADS = GRAD_OF_HEADS };
    const TensorRow rows[TENSOR_ROWS] = {
        {-1, WTE, true, "transformer.wte.weight", "model.embed_tokens.weight", V, C, COLUMN_PARALLEL, WHOLE, 1, 0, std},
        {-1, WPE, m->position == POSITION_LEARNED, "transformer.wpe.weight", "", m->T, C, REPLICATED, ROWS, 1, 0, std},
        {0, NORM1_W, true, "ln_1.weight", "input_layernorm.weight", C, 0, REPLICATED, BOTH, 1, 1, 0},
        {0, NORM1_B, layernorm, "ln_1.bias", "", C, 0, REPLICATED, BOTH, 1, 0, 0},
        {0, QKV_W, gpt2, "attn.c_attn.weight", "", QKV, C, COLUMN_PARALLEL, WHOLE, 3, 0, std},
        {0, QKV_W, !gpt2, "", "self_attn.q_proj.weight", NHS, C, COLUMN_PARALLEL, WHOLE, 1, 0, std},
        {0, K_W, !gpt2, "", "self_attn.k_proj.weight", KVHS, C, COLUMN_PARALLEL, HEADS, 1, 0, std},
        {0, V_W, !gpt2, "", "self_attn.v_proj.weight", KVHS, C, COLUMN_PARALLEL, HEADS, 1, 0, std},
        {0, QKV_B, m->biases, "attn.c_attn.bias", "", QKV, 0, COLUMN_PARALLEL, WHOLE, 3, 0, 0},
        {0, ATTN_PROJ_W, true, "attn.c_proj.weight", "self_attn.o_proj.weight", C, NHS, ROW_PARALLEL, WHOLE, 1, 0, out},
        {0, ATTN_PROJ_B, m->biases, "attn.c_proj.bias", "", C, 0, REPLICATED, BOTH, 1, 0, 0},
        {0, NORM2_W, true, "ln_2.weight", "post_attention_layernorm.weight", C, 0, REPLICATED, BOTH, 1, 1, 0},
        {0, NORM2_B, layernorm, "ln_2.bias", "", C, 0, REPLICATED, BOTH, 1, 0, 0},
        {0, FC_W, true, "mlp.c_fc.weight", "mlp.gate_proj.weight", F, C, COLUMN_PARALLEL, WHOLE, 1, 0, std},
        {0, UP_W, model_is_gated(m), "", "mlp.up_proj.weight", F, C, COLUMN_PARALLEL, WHOLE, 1, 0, std},
        {0, FC_B, m->biases, "mlp.c_fc.bias", "", F, 0, COLUMN_PARALLEL, WHOLE, 1, 0, 0},
        {0, MLP_PROJ_W, true, "mlp.c_proj.weight", "mlp.down_proj.weight", C, F, ROW_PARALLEL, WHOLE, 1, 0, out},
        {0, MLP_PROJ_B, m->biases, "mlp.c_proj.bias", "", C, 0, REPLICATED, BOTH, 1, 0, 0},
        {1, FINAL_NORM_W, true, "transformer.ln_f.weight", "model.norm.weight", C, 0, REPLICATED, BOTH, 1, 1, 0},
        {1, FINAL_NORM_B, layernorm, "transformer.ln_f.bias", "", C, 0, REPLICATED, BOTH, 1, 0, 0},
        {1, HEAD_W, !m->tied, "lm_head.weight", "lm_head.weight", V, C, COLUMN_PARALLEL, WHOLE, 1, 0, std},
    };
    memcpy(table, rows, sizeof rows);
}

static inline Tensor tensor_of_row(const TensorRow* row, const ModelConfig* m, int layer) {
    const bool gpt2 = m->hub == HUB_GPT2, block = row->place == 0;
    const char* name = gpt2 ? row->gpt2_name : row->llama_name;
    Tensor tensor = {row->kind, layer,         "",        row->rows,  row->cols, row->cols == 0,
                     false,     row->parallel, row->grad, row->parts, row->mean, row->std};
    if (tensor.vector) tensor.cols = 1;
    tensor.transposed = gpt2 && block && !tensor.vector;
    if (block)
        snprintf(tensor.name, sizeof tensor.name, gpt2 ? "transformer.h.%d.%s" : "model.layers.%d.%s", layer, name);
    else
        snprintf(tensor.name, sizeof tensor.name, "%s", name);
    return tensor;
}

// Fills list with the tensors of one block, or of the layers before (layer = -1) or after the blocks (layer = L), in
// memory order, and returns their number; list = NULL only counts.
static inline int model_layer_tensors(Tensor* list, const ModelConfig* m, int layer) {
    const int place = (layer == m->L) - (layer < 0); // 1, -1 or 0
    TensorRow table[TENSOR_ROWS];
    int n = 0;
    tensor_rows(table, m);
    for (int i = 0; i < TENSOR_ROWS; i++) {
        if (table[i].place != place || !table[i].exists) continue;
        if (list) list[n] = tensor_of_row(&table[i], m, layer);
        n++;
    }
    return n;
}

// The same for the whole model. All blocks have as many.
static inline int model_tensors(Tensor* list, const ModelConfig* m) {
    int n = 0;
    if (!list)
        return model_layer_tensors(NULL, m, -1) + m->L * model_layer_tensors(NULL, m, 0) +
               model_layer_tensors(NULL, m, m->L);
    for (int layer = -1; layer <= m->L; layer++) n += model_layer_tensors(list + n, m, layer);
    return n;
}

static inline int64_t model_parameters(const ModelConfig* m) {
    Tensor list[MODEL_LAYER_TENSORS];
    const int places[] = {-1, 0, m->L}; // before the blocks, one block, after them
    int64_t total = 0;
    for (int k = 0; k < 3; k++) {
        const int n = model_layer_tensors(list, m, places[k]);
        for (int i = 0; i < n; i++) total += list[i].rows * list[i].cols * (places[k] == 0 ? m->L : 1);
    }
    return total;
}

// Floating-point operations to train on one token of a sequence of T tokens: a multiplication and an addition per
// parameter in the forward pass and twice as many in the backward pass, 6 N; and the two products of causal attention,
// half of 12 L C T. N counts all parameters, as llm.c does, so MFU figures are comparable.
static inline double model_flops_per_token(const ModelConfig* m, int T) {
    return 6.0 * (double)model_parameters(m) + 6.0 * m->L * (double)m->C * T;
}
