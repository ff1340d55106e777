/*
parallel/stage.h: a stage, the part of the model that one rank holds, as memory: its buffers, their sizes and their
offsets; what a pass does with a bucket, and generation with its cache. The model's computation is in gpt.h.

    stage_plan        the sizes, from the model, the rank's mesh coordinates (parallel.h) and its schedule
    stage_allocate    allocates the memory
    stage_free

Nothing here needs the rank to exist: the stage of any rank of any mesh, in any type of values, can be planned anywhere.

Theory: memory is in five arenas (kernels/device.h), each one block. With n parameters on this rank (padded), s slots, l
blocks in a chunk, and 2 or 4 bytes a value of parameters and activations (everything else is float32):

    parameters     n values
    gradients      n floats, ZeRO-1 n + n / d, ZeRO-2 n / d + two buckets and shards; a tied embedding's second; leaves
    optimizer      its moments, and master weights where values have 2 bytes: n floats each, with ZeRO n / d
    activations    s times l blocks and the streams between them; heads; messages to and from neighbours
    scratch        temporaries of one block: recomputed activations, partial sums, gradients; those that wait for WGRAD

A stage whose schedule has no backward passes trains nothing: it has neither gradients nor moments, and as no
backward pass needs activations, all blocks of a chunk share one set and two buffers for the stream between them.

Scratch buffers, who writes them, who reads them last; each is free afterwards:

    branch     row_parallel_forward                                      await_branch's caller
               CAAT-Net: the embedding; caat_reduce_streams              the embedding; its backward pass
    dact       the backward product of a row-parallel matrix             the activation's or attention's backward pass
    dnorm      column_parallel_backward_input                            await_sum_and_norm_backward
    partial    a product whose rows are reduce-scattered                 that reduce-scatter (backward: until comm_wait)
    gathered   tp_gather_input                                       the product that follows it
    shared     caat_reduce_start (until caat_reduce_finish),             caat_reduce_finish, and the same call
               and caat_reduce_streams

With --tp-comm-overlap a micro-batch is computed as two halves of its sequences in turn (halves.h). Scratch that is in
flight between ranks is divided as well: branch, dnorm and shared of Activations, not of Stage.

stage_take_memory takes every buffer. It runs twice: as long as arenas have no memory it adds up sizes, then it hands
out pointers. So the planned and the allocated memory cannot differ.

Notation: B sequences of T tokens in a micro-batch, N = B T rows, over all streams of a CAAT-Net; R rows of the
residual stream: N, or N / t with --sequence-parallel. C, F, NH, NKV, HS, V as in model.h; NH, NKV, F and V of a
layout are those of each stream on this rank.
*/
#pragma once

#include "sites.h"
#include "../kernels/kernels.h"
#include "../model.h"
#include "../parallel.h"
#include "schedule.h"

// The types of this program.
static inline DtypeInfo native_dtype(void) {
    const DtypeInfo type = {sizeof(floatX), HAS_MASTER_WEIGHTS, optimizers[OPTIMIZER_ADAMW].moments};
    return type;
}

// ---- Buffers of a stage -----------------------------------------------------------------------------------------

// The activations of a block that the forward pass of one micro-batch keeps for its backward pass.
typedef struct {
    floatX *norm1, *norm2;                // (R, C)
    float *mean1, *rstd1, *mean2, *rstd2; // (R); RMSNorm leaves the mean unused
    floatX *qkv, *attention;              // (N, (NH + 2 NKV) HS), (N, NH HS)
    float* lse;                           // (B, NH, T)
    floatX* middle;                       // (R, C): the residual stream between attention and mlp
    floatX *fc, *act;                     // (N, F or 2F), (N, F): before and after GELU or SwiGLU
} LayerActivations;

// The same for the head.
typedef struct {
    floatX* final_norm;                // (R, C)
    float *final_mean, *final_rstd;    // (R)
    floatX* logits;                    // (N, V); overwritten by their gradient
    float *row_max, *row_sum, *losses; // (streams, tokens), (streams, 2, tokens): sums, target logits; (tokens)
} HeadActivations;

// The next residual stream, out = x + (branch + bias), not added yet: the tensor ranks may still sum the branch.
typedef struct {
    floatX* out;                     // (R, C); NULL: no sum is pending
    const floatX *x, *branch, *bias; // (R, C), (R, C), (C)
} ResidualSum;

// A micro-batch in one chunk of the stage, or one half of it.
typedef struct {
    const Chunk* chunk;
    int B, T, N, R;           // B: streams times sequences; N = B T rows, R of them in the residual stream
    int tokens;               // the micro-batch has these: the rows of one stream
    bool split;               // rows are split over the tensor ranks: R = N / t
    bool keeps_kv, decodes;   // generation: a text's beginning, read at once; one token, at position `first`
    int first;                // position of the first token: 0 unless it decodes
    const int32_t* inputs;    // (tokens)
    Targets targets;          // (tokens); their scale is 0 without a backward pass
    floatX** x;               // layers + 1 of (R, C): the residual stream before each block and after the last
    LayerActivations* layers; // the chunk's blocks
    HeadActivations* head;    // NULL where the chunk does not end with the head
    floatX *branch, *dnorm;   // (R, C): the stage's scratch, ...
    float* shared;            // ... (tokens, C); see Stage
    int parts;                // the micro-batch is computed as 2 parts in turn (this may be one of them), or as 1
    CommRequest sum;          // the message that sums this part over the tensor ranks: in flight, or complete
    ResidualSum pending;      // announced, and not computed yet
    bool grad_started;        // row_parallel_output_grad_start was called, and not yet ..._finish
} Activations;

// The gradient of every linear layer's output, which DGRAD of a backward pass leaves for WGRAD.
typedef struct {
    floatX *dqkv, *dmiddle; // dmiddle (N, C): for the attention's projection
    floatX *dfc, *dout;     // dout (N, C): for the mlp's projection
} LayerGradients;

typedef struct {
    floatX* dx; // (R, C): the gradient of the residual stream, of the block that the backward pass is at
    LayerGradients* layers;
    float* vectors; // (slices, C), only with --canonical: what DGRAD adds to norms and biases, see vector_gradient
} ActivationGrads;

// A backward pass computes two gradients, which a schedule may order separately (Qi et al. 2024): the input gradient
// (B, dgrad) goes through the stage, block by block, and to the stage before; the weight gradients (W, wgrad) need only
// what the first one leaves in ActivationGrads, and are accumulated over micro-batches. Of x + branch(norm(x)) DGRAD is
// two steps, the branch's gradient and the norm's (also of its parameters and, in norm2, of the projections' biases),
// between which a sum over the tensor ranks is in flight.
enum { DGRAD_BRANCH = 1, DGRAD_NORM = 2, WGRAD = 4, DGRAD = DGRAD_BRANCH | DGRAD_NORM, BOTH_GRADS = DGRAD | WGRAD };

// A micro-batch's messages from and to a chunk's neighbours, and whether they are in flight (parallel/schedule.h).
typedef struct {
    floatX *input, *gradient, *gradient_out;
    CommRequest receive_forward, receive_backward, send_backward;
} PipelineBuffers;

// A method's values of all parameters that checkpoints hold beside the weights.
typedef struct {
    const char* name;
    float* at; // (layout.elements)
} MethodValues;

enum { METHOD_VALUES = 4, HALVES = 2 };

typedef struct {
    ModelConfig model;
    Layout layout;
    ProcessGroups* groups;
    DtypeInfo type;
    int B, T;
    bool trains;           // its schedule has backward passes
    int slots, head_slots; // activations of a micro-batch in a chunk; of the head's, micro-batch k has k mod head_slots
    int* gradient_slots; // (v + 1): micro-batches of a chunk between DGRAD and WGRAD, k in number k mod gradient_slots
    bool split_backward; // DGRAD and WGRAD are separate actions, so each block keeps its own gradients
    floatX* params;      // layout.elements
    GradientBuckets grads;
    float *moment1, *moment2, *master; // layout.elements, with ZeRO shards; master: NULL without master weights
    struct AsyncDp* async;             // asynchronous data parallelism; NULL: synchronous
    float* checkpoint_weights;         // (layout.elements): weights for checkpoints; NULL: the updated ones
    MethodValues kept[METHOD_VALUES];
    int kept_values;
    float* grad_embedding; // (streams V, C), only of a tied embedding: see vocab_parallel_embedding_backward
    float* rope;           // (model.T, HS): cosines and sines
    double* sums;          // (sums_of_step): squares of each tensor's gradient; the loss
    uint64_t* checksums;   // (layout.n): of the slices, while copies are compared
    // activations[slots + i], head[head_slots + i] and act_grads[v][i] are views of half i (parallel/halves.h).
    Activations* activations;      // (slots + HALVES)
    HeadActivations* head;         // (head_slots + HALVES)
    LayerActivations recomputed;   // the activations that blocks recompute
    ActivationGrads** act_grads;   // (v + 1, gradient_slots); one shared buffer unless split_backward
    floatX *branch, *dact, *dnorm; // scratch of one block: (R, C), (N, F or NH HS), (R, C)
    floatX *partial, *gathered;    // (N, C) each, only with sequence parallelism
    float* shared; // (tokens, C), only of a CAAT-Net: the channels that all streams share, while they are summed
    floatX* cache; // (layers, streams, T, 2 NKV HS): keys and values in generation
    PipelineBuffers* boundary; // (v, PIPELINE_BUFFERS_PER_DIRECTION): see boundary_of
    CommRequest* send_forward; // (slots)
    Arena memory[ARENAS];
} Stage;

// A pass of one micro-batch, or of one half of it, through one chunk, forward or backward.
typedef struct {
    Stage* stage;
    Activations* acts;
    ActivationGrads* g; // NULL in a forward pass
    int computes;       // backward: DGRAD, WGRAD or both; 0: forward
    bool reduce;        // a bucket that this pass completes is summed: after the last pass, each leaf's; ZeRO 2: always
    bool accumulates;   // WGRAD's products add to the matrices' gradients; the first ones of a step overwrite them
} Pass;

// The heads of this rank in a micro-batch; the streams of a CAAT-Net are sequences of it.
static inline Heads heads_of(const Pass* pass) {
    const Layout* layout = &pass->stage->layout;
    const Heads h = {pass->acts->B, pass->acts->T, layout->NH, layout->NKV, model_head_size(&pass->stage->model)};
    return h;
}

// A tensor of one stream; for tensors that are cut.
static inline floatX* weight_of(const Stage* stage, int layer, TensorKind kind, int stream) {
    const Slice* slice = layout_slice_of_stream(&stage->layout, layer, kind, stream);
    return slice ? stage->params + slice->offset : NULL;
}

static inline float* gradient_of(const Stage* stage, int layer, TensorKind kind, int stream) {
    const Slice* slice = layout_slice_of_stream(&stage->layout, layer, kind, stream);
    if (!slice) return NULL;
    const BucketMemory* bucket = grad_bucket(&stage->grads, &stage->layout, slice->bucket);
    return bucket->gradient + (slice->offset - stage->layout.bucket[slice->bucket].offset);
}

// A tensor that all streams share; of the embedding and the head, the rows of all streams, which are contiguous.
static inline floatX* weight(const Stage* stage, int layer, TensorKind kind) {
    return weight_of(stage, layer, kind, 0);
}
static inline float* gradient(const Stage* stage, int layer, TensorKind kind) {
    return gradient_of(stage, layer, kind, 0);
}

static inline TensorKind lm_head_kind(const Stage* stage) { return stage->model.tied ? WTE : HEAD_W; }

// The most blocks of a chunk.
static inline int max_layers(const Stage* stage) {
    int most = 0;
    for (int c = 0; c < stage->layout.parallel.v; c++) most = (int)max_i64(most, stage->layout.chunk[c].layers);
    return most;
}

static inline bool splits_rows(const Stage* stage) { return stage->layout.parallel.sequence_parallel; }
static inline bool is_caat(const Stage* stage) { return stage->layout.parallel.caat.ranks > 0; }

// N and R of a whole micro-batch, for which memory is allocated.
static inline int64_t max_tokens(const Stage* stage) { return (int64_t)stage->layout.streams * stage->B * stage->T; }
static inline int64_t max_rows(const Stage* stage) {
    return max_tokens(stage) / (splits_rows(stage) ? stage->layout.parallel.mesh.t : 1);
}

// This rank's channels, per stream: of q, k and v together, and of the first matrix of the mlp.
static inline int qkv_size(const Stage* stage) {
    return (stage->layout.NH + 2 * stage->layout.NKV) * model_head_size(&stage->model);
}
static inline int fc_size(const Stage* stage) {
    return model_is_gated(&stage->model) ? 2 * stage->layout.F : stage->layout.F;
}
static inline int64_t kv_cache_layer_elements(const Stage* stage) {
    return (int64_t)stage->T * 2 * stage->layout.NKV * model_head_size(&stage->model);
}
static inline int64_t kv_cache_elements(const Stage* stage) {
    if (stage->layout.parallel.mesh.data > 0) return 0; // the first replica writes all texts
    return stage->layout.layers * stage->layout.streams * kv_cache_layer_elements(stage);
}
static inline int attn_out_size(const Stage* stage) { return stage->layout.NH * model_head_size(&stage->model); }

// Binds activations to micro-batch k in a chunk: B sequences of T tokens. decode: one token, whose row every tensor
// rank holds.
static inline void activations_bind(Activations* acts, const Stage* stage, int chunk, int k, int B, int T,
                                    bool decode) {
    acts->chunk = &stage->layout.chunk[chunk];
    acts->head = acts->chunk->last ? &stage->head[k % stage->head_slots] : NULL;
    acts->B = stage->layout.streams * B;
    acts->T = T;
    acts->N = acts->B * T;
    acts->tokens = B * T;
    acts->split = splits_rows(stage) && !decode;
    acts->R = acts->split ? acts->N / stage->layout.parallel.mesh.t : acts->N;
    acts->keeps_kv = false;
    acts->decodes = decode;
    acts->first = 0;
    acts->branch = stage->branch;
    acts->dnorm = stage->dnorm;
    acts->shared = stage->shared;
    acts->parts = stage->layout.parallel.tp_overlap && B % HALVES == 0 ? HALVES : 1; // a generated text's B is 1
}

// The activations that the forward pass keeps of a block, and the residual stream before it. Layers are numbered over
// all chunks of the stage; the number after the chunk's last block gives the stream after it.
static inline LayerActivations* layer_acts(const Activations* acts, int layer) {
    return &acts->layers[layer - acts->chunk->begin];
}

static inline floatX* residual_stream(const Activations* acts, int layer) {
    return acts->x[layer - acts->chunk->begin];
}

static inline floatX* chunk_output(const Activations* acts) { return acts->x[acts->chunk->layers]; }

// The messages of micro-batch k from and to a chunk.
static inline PipelineBuffers* boundary_of(const Stage* stage, int chunk, int k) {
    return &stage->boundary[chunk * PIPELINE_BUFFERS_PER_DIRECTION + k % PIPELINE_BUFFERS_PER_DIRECTION];
}

// The gradients that a block's DGRAD leaves for its WGRAD.
static inline LayerGradients* layer_grads(const Pass* pass, int layer) {
    return &pass->g->layers[layer - pass->acts->chunk->begin];
}

// Where DGRAD adds the gradient of a norm, or of a projection's bias. DGRAD may be ahead of WGRAD: with --canonical the
// gradient waits there for the same micro-batch's WGRAD, so that each leaf has its own. NULL: no such tensor.
static inline float* vector_gradient(const Pass* pass, int layer, TensorKind kind) {
    const Layout* layout = &pass->stage->layout;
    const Slice* slice = layout_slice(layout, layer, kind);
    if (!slice || !pass->g->vectors) return gradient(pass->stage, layer, kind);
    return pass->g->vectors + (slice - layout->slices) * pass->stage->model.C;
}

// WGRAD: adds what waits there to bucket b.
static inline void add_vector_gradients(const Pass* pass, int b) {
    const int C = pass->stage->model.C;
    const Bucket* bucket = &pass->stage->layout.bucket[b];
    if (!pass->g->vectors || !(pass->computes & WGRAD)) return;
    for (int i = bucket->first; i < bucket->first + bucket->slices; i++) {
        const Slice* slice = &pass->stage->layout.slices[i];
        float* vector = pass->g->vectors + (int64_t)i * C;
        if (!slice->tensor.vector || slice_elements(slice) != C)
            continue; // a bias of C numbers that WGRAD makes passes, too: nothing waits for it
        accumulate(grad_bucket(&pass->stage->grads, &pass->stage->layout, b)->gradient + slice->offset - bucket->offset,
                   vector, C);
        device_zero(vector, (size_t)C * sizeof(float));
    }
}

// A gradient bucket (parallel/data.h) is reset before its first contribution and ready after its last one.
static inline void bucket_ready(const Pass* pass, int b) {
    Stage* stage = pass->stage;
    const Layout* layout = &stage->layout;
    add_vector_gradients(pass, b);
    if (!pass->reduce) return;
    start_grad_sync(&stage->grads, stage->groups, layout, b);
    if (stage->grads.hierarchical) start_inter_site_sync_early(&stage->grads, stage->groups, layout, b);
    buckets_progress(stage->grads.bucket, grad_buckets(layout));
}

static inline void grad_bucket_begin(const Pass* pass, int layer, TensorKind kind) {
    const Layout* layout = &pass->stage->layout;
    grad_bucket_reset(&pass->stage->grads, layout, layout_slice(layout, layer, kind)->bucket);
}
static inline void grad_bucket_ready(const Pass* pass, int layer, TensorKind kind) {
    bucket_ready(pass, layout_slice(&pass->stage->layout, layer, kind)->bucket);
}

static inline int embedding_use_bucket(const Layout* layout) {
    return layout->embedding_bucket >= 0 ? layout->embedding_bucket : layout_slice(layout, -1, WTE)->bucket;
}

// ---- Sizes ------------------------------------------------------------------------------------------------------

static inline floatX* take_values(const Stage* stage, Arena* arena, int64_t n) {
    return (floatX*)arena_take(arena, n * stage->type.bytes);
}

// The buffers of a block, of the head and of a block's gradients as tables, from which memory is taken, and halves of a
// micro-batch are made (halves.h). A buffer is one row after the other, of `bytes` each.
typedef struct {
    size_t field; // where the struct has the pointer to it
    int64_t rows, bytes;
    bool cheap; // --recompute selective computes it again
} RowBuffer;

typedef struct {
    int n;
    RowBuffer buffer[12];
} RowBuffers;

static inline RowBuffers layer_buffers(const Stage* stage) {
    const int64_t N = max_tokens(stage), R = max_rows(stage), value = stage->type.bytes, real = sizeof(float);
    const RowBuffers all = {12,
                            {{offsetof(LayerActivations, mean1), R, real, false},
                             {offsetof(LayerActivations, rstd1), R, real, false},
                             {offsetof(LayerActivations, mean2), R, real, false},
                             {offsetof(LayerActivations, rstd2), R, real, false},
                             {offsetof(LayerActivations, qkv), N, value * qkv_size(stage), false},
                             {offsetof(LayerActivations, attention), N, value * attn_out_size(stage), false},
                             {offsetof(LayerActivations, lse), N, real * stage->layout.NH, false},
                             {offsetof(LayerActivations, middle), R, value * stage->model.C, false},
                             {offsetof(LayerActivations, fc), N, value * fc_size(stage), false},
                             {offsetof(LayerActivations, norm1), R, value * stage->model.C, true},
                             {offsetof(LayerActivations, norm2), R, value * stage->model.C, true},
                             {offsetof(LayerActivations, act), N, value * stage->layout.F, true}}};
    return all;
}

static inline RowBuffers head_buffers(const Stage* stage) {
    const int64_t N = max_tokens(stage), R = max_rows(stage), value = stage->type.bytes, real = sizeof(float);
    const RowBuffers all = {7,
                            {{offsetof(HeadActivations, final_norm), R, value * stage->model.C, false},
                             {offsetof(HeadActivations, final_mean), R, real, false},
                             {offsetof(HeadActivations, final_rstd), R, real, false},
                             {offsetof(HeadActivations, logits), N, value * stage->layout.V, false},
                             {offsetof(HeadActivations, row_max), N, real, false},
                             {offsetof(HeadActivations, row_sum), N, 2 * real, false},
                             {offsetof(HeadActivations, losses), N, real, false}}};
    return all;
}

static inline RowBuffers gradient_buffers(const Stage* stage) {
    const int64_t N = max_tokens(stage), value = stage->type.bytes;
    const RowBuffers all = {4,
                            {{offsetof(LayerGradients, dqkv), N, value * qkv_size(stage), false},
                             {offsetof(LayerGradients, dmiddle), N, value * stage->model.C, false},
                             {offsetof(LayerGradients, dfc), N, value * fc_size(stage), false},
                             {offsetof(LayerGradients, dout), N, value * stage->model.C, false}}};
    return all;
}

static inline char* row_buffer(const void* of, RowBuffer buffer) {
    char* pointer;
    memcpy(&pointer, (const char*)of + buffer.field, sizeof pointer);
    return pointer;
}

static inline void set_row_buffer(void* of, RowBuffer buffer, char* pointer) {
    memcpy((char*)of + buffer.field, &pointer, sizeof pointer);
}

// shared: cheap buffers are those of this struct; NULL: they get their own.
static inline void take_rows(void* of, RowBuffers list, const void* shared, Arena* arena) {
    for (int i = 0; i < list.n; i++) {
        const RowBuffer b = list.buffer[i];
        const bool takes = !shared || !b.cheap;
        set_row_buffer(of, b, takes ? (char*)arena_take(arena, b.rows * b.bytes) : row_buffer(shared, b));
    }
}

// One block's activations. The recomputed ones are those of `shared`, which all blocks use; with shared = NULL each
// gets its own. Recomputation (Chen et al. 2016): full keeps only the block's input. Selective (Korthikanti et al.
// 2022) keeps expensive results: the paper drops the attention scores, which this attention never stores, so the large
// and cheap results left to drop are the outputs of the norms and of the activation function.
static inline void take_layer(LayerActivations* y, const Stage* stage, const LayerActivations* shared, Arena* arena) {
    const Recompute recompute = stage->trains ? stage->layout.parallel.recompute : RECOMPUTE_FULL; // nothing is kept
    if (shared && recompute == RECOMPUTE_FULL)
        *y = *shared;
    else
        take_rows(y, layer_buffers(stage), recompute == RECOMPUTE_SELECTIVE ? shared : NULL, arena);
}

static inline void take_activations(Activations* acts, const Stage* stage, Arena* arena) {
    const int64_t R = max_rows(stage), C = stage->model.C;
    // Any chunk may use any slot, so each is large enough for the longest one.
    for (int l = 0; l <= max_layers(stage); l++)
        acts->x[l] = stage->trains || l < 2 ? take_values(stage, arena, R * C) : acts->x[1];
    for (int l = 0; l < max_layers(stage); l++) take_layer(&acts->layers[l], stage, &stage->recomputed, arena);
}

// The gradients between DGRAD and WGRAD. A whole backward pass consumes the gradients of a block before the next block
// needs any: one block's memory is enough for all.
static inline void take_gradients(Stage* stage, Arena* arena) {
    const int64_t R = max_rows(stage), C = stage->model.C;
    LayerGradients shared = {};
    if (!stage->split_backward) take_rows(&shared, gradient_buffers(stage), NULL, arena);
    floatX* dx = stage->split_backward ? NULL : take_values(stage, arena, R * C);
    for (int c = 0; c < stage->layout.parallel.v; c++) {
        for (int i = 0; i < stage->gradient_slots[c]; i++) {
            ActivationGrads* g = &stage->act_grads[c][i];
            g->dx = stage->split_backward ? take_values(stage, arena, R * C) : dx;
            if (stage->layout.parallel.canonical) g->vectors = arena_floats(arena, stage->layout.n * C);
            for (int l = 0; l < stage->layout.chunk[c].layers; l++) {
                g->layers[l] = shared;
                if (stage->split_backward) take_rows(&g->layers[l], gradient_buffers(stage), NULL, arena);
            }
        }
    }
}

static inline void take_boundary(Stage* stage, Arena* arena) {
    const int64_t n = boundary_elements(&stage->layout.parallel, max_tokens(stage) * stage->model.C);
    for (int i = 0; i < stage->layout.parallel.v * PIPELINE_BUFFERS_PER_DIRECTION; i++) {
        const Chunk* chunk = &stage->layout.chunk[i / PIPELINE_BUFFERS_PER_DIRECTION];
        if (!chunk->first) stage->boundary[i].input = take_values(stage, arena, n);
        if (!chunk->first && stage->trains) stage->boundary[i].gradient_out = take_values(stage, arena, n);
        if (!chunk->last && stage->trains) stage->boundary[i].gradient = take_values(stage, arena, n);
    }
}

// Whether a tied embedding has both uses here and a gradient buffer for each. ZeRO 2 has one; canonical: a bucket.
static inline bool has_two_embedding_grads(const Stage* stage) {
    return stage->model.tied && stage->layout.first_stage && stage->layout.last_stage &&
           stage->layout.parallel.zero < 2 && !stage->layout.parallel.canonical;
}

static inline void take_parameters(Stage* stage) {
    const Layout* layout = &stage->layout;
    const int64_t n = layout->elements, share = layout->parallel.zero ? n / layout->parallel.mesh.d : n;
    stage->params = take_values(stage, &stage->memory[ARENA_PARAMETERS], n);
    if (stage->type.masters) stage->master = arena_floats(&stage->memory[ARENA_OPTIMIZER], share);
    if (!stage->trains) return;
    grad_buckets_take(&stage->grads, layout, &stage->memory[ARENA_GRADIENTS]);
    if (has_two_embedding_grads(stage))
        stage->grad_embedding =
            arena_floats(&stage->memory[ARENA_GRADIENTS], (int64_t)layout_embedding_rows(layout) * stage->model.C);
    stage->moment1 = arena_floats(&stage->memory[ARENA_OPTIMIZER], share);
    if (stage->type.moments > 1) stage->moment2 = arena_floats(&stage->memory[ARENA_OPTIMIZER], share);
}

// Runs twice: first it only adds up sizes, as the arenas have no memory yet; then it hands out pointers.
static inline void stage_take_memory(Stage* stage) {
    const int64_t N = max_tokens(stage), R = max_rows(stage), C = stage->model.C;
    Arena *scratch = &stage->memory[ARENA_SCRATCH], *activations = &stage->memory[ARENA_ACTIVATIONS];
    take_parameters(stage);
    if (!stage->trains || stage->layout.parallel.recompute != RECOMPUTE_NONE)
        take_layer(&stage->recomputed, stage, NULL, scratch);
    for (int i = 0; i < stage->slots; i++) take_activations(&stage->activations[i], stage, activations);
    for (int i = 0; i < stage->head_slots; i++) take_rows(&stage->head[i], head_buffers(stage), NULL, activations);
    if (stage->trains) take_gradients(stage, scratch);
    take_boundary(stage, activations);
    stage->branch = take_values(stage, scratch, R * C);
    if (stage->trains) stage->dact = take_values(stage, scratch, N * max_i64(stage->layout.F, attn_out_size(stage)));
    if (stage->trains) stage->dnorm = take_values(stage, scratch, R * C);
    if (splits_rows(stage)) {
        stage->partial = take_values(stage, scratch, N * C);
        stage->gathered = take_values(stage, scratch, N * C);
    }
    if (is_caat(stage)) stage->shared = arena_floats(scratch, N / stage->layout.streams * C);
    if (stage->model.position == POSITION_ROPE)
        stage->rope = arena_floats(scratch, (int64_t)stage->model.T * model_head_size(&stage->model));
    stage->sums = (double*)arena_take(scratch, sums_of_step(&stage->layout) * (int64_t)sizeof(double));
    stage->checksums = (uint64_t*)arena_take(scratch, stage->layout.n * (int64_t)sizeof(uint64_t));
    // The last, as on CPUs its pages are not touched where nothing is generated; a GPU has them.
    stage->cache = take_values(stage, scratch, kv_cache_elements(stage));
}

// ---- Plan, allocate, free ---------------------------------------------------------------------------------------

// Allocates the pointer arrays: everything of the stage that is not in an arena.
static inline void stage_take_lists(Stage* stage) {
    const size_t layers = (size_t)max_layers(stage), v = (size_t)stage->layout.parallel.v, slots = (size_t)stage->slots,
                 heads = (size_t)stage->head_slots;
    stage->activations = (Activations*)checked_calloc(slots + HALVES, sizeof(Activations), "the slots");
    stage->head = (HeadActivations*)checked_calloc(heads + HALVES, sizeof(HeadActivations), "the slots");
    stage->send_forward = (CommRequest*)checked_calloc(slots, sizeof(CommRequest), "the slots");
    for (size_t i = 0; i < slots + HALVES; i++) {
        stage->activations[i].x = (floatX**)checked_calloc(layers + 1, sizeof(floatX*), "the slots");
        stage->activations[i].layers = (LayerActivations*)checked_calloc(layers, sizeof(LayerActivations), "the slots");
    }
    stage->boundary =
        (PipelineBuffers*)checked_calloc(v * PIPELINE_BUFFERS_PER_DIRECTION, sizeof(PipelineBuffers), "the chunks");
    stage->act_grads = (ActivationGrads**)checked_calloc(v + 1, sizeof(ActivationGrads*), "the chunks");
    for (size_t c = 0; c <= v; c++) {
        const int n = stage->gradient_slots[c];
        stage->act_grads[c] = (ActivationGrads*)checked_calloc((size_t)n, sizeof(ActivationGrads), "the chunks");
        for (int i = 0; i < n; i++)
            stage->act_grads[c][i].layers =
                (LayerGradients*)checked_calloc(layers, sizeof(LayerGradients), "the chunks");
    }
    stage->grads.bucket =
        (BucketMemory*)checked_calloc((size_t)grad_buckets(&stage->layout), sizeof(BucketMemory), "the buckets");
    stage->grads.tree.added = (int*)checked_calloc((size_t)stage->layout.buckets, sizeof(int), "the buckets");
    for (int i = 0; i < MAX_INFLIGHT_REDUCTIONS; i++) stage->grads.in_flight[i] = -1;
}

// Plans the stage of one rank, which executes a schedule and sums its gradients over the replicas of `scope`: after
// this the sizes of its arenas are known and nothing large is allocated.
static inline bool stage_plan(Stage* stage, const ModelConfig* m, ParallelConfig parallel, int B, int T,
                              const Schedule* schedule, Scope scope, DtypeInfo type, Error* error) {
    memset(stage, 0, sizeof *stage);
    if ((int64_t)B * T * streams_per_rank(&parallel) > INT32_MAX)
        return fail(error, "--micro-batch %d of %d tokens is more than 2^31 tokens at once", B, T);
    stage->grads.scope = scope;
    stage->grads.hierarchical = scope == SCOPE_WORLD && parallel.mesh.sites > 1;
    stage->model = *m;
    stage->type = type;
    stage->B = B;
    stage->T = T;
    stage->slots = schedule->slots;
    stage->trains = schedule_in_flight(schedule, -1, BACKWARD_INPUT) > 0;
    stage->split_backward = schedule_splits_backward(schedule->config.kind);
    if (!layout_build(&stage->layout, m, parallel, T, error)) return false;
    if (stage->layout.last_stage)
        stage->head_slots = stage->trains ? schedule_in_flight(schedule, parallel.v - 1, FORWARD) : 1;
    stage->gradient_slots = (int*)checked_malloc(((size_t)parallel.v + 1) * sizeof(int), "the chunks");
    for (int c = 0; c < parallel.v; c++) stage->gradient_slots[c] = schedule_in_flight(schedule, c, BACKWARD_INPUT);
    stage->gradient_slots[parallel.v] = HALVES;
    stage_take_lists(stage);
    for (int i = 0; i < ARENAS; i++) stage->memory[i].what = arena_names[i];
    stage_take_memory(stage);
    return true;
}

// Bytes of all arenas, known before they are allocated.
static inline double stage_bytes(const Stage* stage) {
    double total = 0;
    for (int i = 0; i < ARENAS; i++) total += (double)stage->memory[i].used;
    return total;
}

static inline void stage_allocate(Stage* stage) {
    for (int i = 0; i < ARENAS; i++) arena_allocate(&stage->memory[i]);
    stage_take_memory(stage);
    if (stage->rope)
        rope_table(stage->rope, stage->model.T, model_head_size(&stage->model), stage->model.rope_theta,
                   &stage->model.rope_scaling);
}

static inline void stage_free(Stage* stage) {
    for (int i = 0; i < ARENAS; i++) arena_free(&stage->memory[i]);
    for (int i = 0; i < stage->slots + HALVES; i++) {
        free(stage->activations[i].x);
        free(stage->activations[i].layers);
    }
    for (int c = 0; c <= stage->layout.parallel.v; c++) {
        for (int i = 0; i < stage->gradient_slots[c]; i++) free(stage->act_grads[c][i].layers);
        free(stage->act_grads[c]);
    }
    free(stage->act_grads);
    free(stage->activations);
    free(stage->head);
    free(stage->boundary);
    free(stage->gradient_slots);
    free(stage->send_forward);
    free(stage->grads.bucket);
    free(stage->grads.tree.added);
    layout_free(&stage->layout);
}

// ----------------------------------------------------------------------------------------------------------------
/*
Generation keeps keys and values of the text so far, (layers, streams, T, 2 NKV HS): every rank those of its heads.
*/

// The cache of one stream of a layer.
static inline floatX* kv_cache(const Stage* stage, int layer, int stream) {
    return stage->cache + ((int64_t)layer * stage->layout.streams + stream) * kv_cache_layer_elements(stage);
}

// The beginning of a text, read at once: its keys and values go into the cache.
static inline void kv_cache_fill(const Pass* pass, int layer) {
    const Stage* stage = pass->stage;
    const Activations* acts = pass->acts;
    for (int i = 0; i < stage->layout.streams; i++) {
        const floatX* qkv = layer_acts(acts, layer)->qkv + (int64_t)i * acts->tokens * qkv_size(stage);
        attention_fill_cache(kv_cache(stage, layer, i), qkv, heads_of(pass));
    }
}

// Attention of one token, the one at position acts->first, to itself and to the tokens before it.
static inline void kv_cache_attend(const Pass* pass, int layer) {
    const Stage* stage = pass->stage;
    const LayerActivations* y = layer_acts(pass->acts, layer);
    for (int i = 0; i < stage->layout.streams; i++) {
        floatX* out = y->attention + (int64_t)i * attn_out_size(stage);
        const floatX* qkv = y->qkv + (int64_t)i * qkv_size(stage);
        attention_decode(out, kv_cache(stage, layer, i), qkv, pass->acts->first, heads_of(pass));
    }
}
