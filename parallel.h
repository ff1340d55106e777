/*
parallel.h: the slices of the model that each rank holds. Pure data without MPI and CUDA: the layout of any rank can be
built and checked anywhere.

    Mesh            sizes (t, p, d) and this rank's coordinates; mesh_of_rank
    ParallelConfig  a mesh, and the options that decide what a rank holds; parallel_check refuses what does not fit a
                    model
    Layout, Slice   for every tensor of the model the slice that this rank holds, and its place in the parameter buffer;
                    layout_build, layout_slice, layout_initialize
    Bucket          the unit in which the data group sums gradients
    boundary_*      the part of the residual stream that a rank sends to the next stage
    (the bytes that a step moves between ranks are in parallel/traffic.h)

Theory:

Mesh. n = t p d ranks: t tensor-parallel, p pipeline-parallel, d data-parallel; sizes are written (t, p, d). Ranks are
numbered as in Megatron-LM (Narayanan et al. 2021): tensor fastest, then data, then pipeline:

    rank = tensor + t (data + d pipeline)

so that the t ranks that exchange the most are neighbours in one machine. Ranks that differ in one coordinate only form
a group: the tensor group sums activations, the data group sums gradients, the pipeline group passes activations on.

Tensor parallelism (Shoeybi et al. 2019). Of a block's four matrices the first of each pair is cut by output channels
(column parallel), the second by input channels (row parallel):

    attention    qkv: a rank computes whole heads;       projection: a rank's heads give a partial sum of all channels
    mlp          fc: a rank computes F / t channels;     projection: likewise

so the pair needs one all-reduce of the partial sums (B T, C) at its end, and in the backward pass one all-reduce of the
gradient of its input. All ranks hold the biases of row-parallel layers and the norms. The embedding and the head are
cut along the vocabulary, which is padded to a multiple of t; padding is zero and stays zero. Where there are fewer
key/value heads than ranks, t / NKV consecutive ranks hold the same head.

Buckets. Gradients are summed over the data group in buckets: one for each block, and one each for the embeddings, the
final norm and the head, in memory order, padded to a multiple of 16 d elements. With ZeRO (Rajbhandari et al. 2020)
data rank r owns the r-th part of each bucket: it alone keeps the optimizer's moments of it and updates it.

CAAT-Net (Lamprecht et al. 2025). The model has M residual streams, one for each of M tensor-parallel ranks; only the
first S = floor(fraction C) channels of a row-parallel layer's output are summed (caat_channels). On t < M
ranks, a rank holds M / t streams, one after the other: every matrix is still cut in M, and a rank has M / t cuts of
it, a slice each. The work that each of M ranks would do alone is done once for each stream.

Layout. One walk over the list of model.h gives each held tensor its slice and its offset in one parameter buffer.
Initial values, reductions, gradient norm, update and checkpoints all use this table. So a checkpoint knows logical
tensors only, and initial values, drawn by (seed, tensor name, logical element), are the same on every mesh.
*/
#pragma once

#include "util/base.h"
#include "model.h"

// n = t p d ranks, and the one of them that this is.
typedef struct {
    int t, p, d;                // sizes: tensor, pipeline, data
    int tensor, pipeline, data; // this rank's coordinates
    int sites;                  // groups of consecutive replicas, slow links between them (parallel/sites.h)
} Mesh;

static inline int mesh_size(const Mesh* mesh) { return mesh->t * mesh->p * mesh->d; }

static inline int mesh_rank(const Mesh* mesh) {
    return mesh->tensor + mesh->t * (mesh->data + mesh->d * mesh->pipeline);
}

// The same mesh as another rank sees it.
static inline Mesh mesh_at(const Mesh* mesh, int rank) {
    Mesh at = *mesh;
    at.tensor = rank % mesh->t;
    at.data = rank / mesh->t % mesh->d;
    at.pipeline = rank / (mesh->t * mesh->d);
    return at;
}

static inline Mesh mesh_of_rank(int rank, int t, int p, int d) {
    const Mesh mesh = {t, p, d, 0, 0, 0, 1};
    return mesh_at(&mesh, rank);
}

// Replicas of a site; this rank's site; this rank's index among the replicas of the site.
static inline int mesh_site_size(const Mesh* mesh) { return mesh->d / mesh->sites; }
static inline int mesh_site(const Mesh* mesh) { return mesh->data / mesh_site_size(mesh); }
static inline int mesh_rank_in_site(const Mesh* mesh) { return mesh->data % mesh_site_size(mesh); }

// ---- What the ranks of a mesh do ---------------------------------------------------------------------------------

typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } Recompute;

// CAAT-Net's partial sums. They belong to the model: with another M or fraction the same weights are another function.
typedef struct {
    int ranks;       // M, the streams of the model; 0: not a CAAT-Net
    double fraction; // the part of the channels that is shared
    bool narrow;     // gradients of shared channels are summed in floatX, not in float32
} CaatConfig;

// A mesh, and the options that decide what a rank of it holds and sends.
typedef struct {
    Mesh mesh;
    int v;                  // chunks, virtual stages, that each pipeline rank holds (parallel/schedule.h)
    bool folded;            // chunk 1 of stage r is virtual stage 2 p - 1 - r: a V, not a loop (parallel/schedule.h)
    bool light_ends;        // only of other trainers' plans: the first and last virtual stage have a block less
    bool sequence_parallel; // norms and residual stream on 1/t of the rows each
    bool scatter;           // each tensor rank sends 1/t of the stage's output; the next stage gathers
    int zero;               // divided over the d replicas: 0 nothing, 1 the optimizer's state, 2 gradients too
    Recompute recompute;
    bool tp_overlap; // a micro-batch is computed as two halves in turn, whose tensor sums are in flight meanwhile
    int canonical;   // leaves of the tree in which gradients are added (parallel/canonical.h); 0: none
    CaatConfig caat;
} ParallelConfig;

// Without options: one chunk, scatter-gather.
static inline ParallelConfig parallel_of_rank(int rank, int t, int p, int d) {
    ParallelConfig parallel = {};
    parallel.mesh = mesh_of_rank(rank, t, p, d);
    parallel.v = 1;
    parallel.scatter = true;
    return parallel;
}

static inline ParallelConfig parallel_at(const ParallelConfig* parallel, int rank) {
    ParallelConfig at = *parallel;
    at.mesh = mesh_at(&parallel->mesh, rank);
    return at;
}

// The ranks over which a number is summed or compared: all, or those of this rank's site.
typedef enum { SCOPE_WORLD, SCOPE_SITE } Scope;

// A stage's memory, by kind (parallel/stage.h).
enum { ARENA_PARAMETERS, ARENA_GRADIENTS, ARENA_OPTIMIZER, ARENA_ACTIVATIONS, ARENA_SCRATCH, ARENAS };
static const char* const arena_names[ARENAS] = {"parameters", "gradients", "optimizer", "activations", "scratch"};

// The storage of parameters and activations, and of the optimizer.
typedef struct {
    int bytes;    // one value takes these
    bool masters; // there are float32 master weights
    int moments;  // float32 arrays of the optimizer
} DtypeInfo;

// The optimizer of a run.
typedef struct {
    int kind; // OptimizerKind (kernels/optimizers.h)
    double beta1, beta2, eps, weight_decay;
    int64_t seed; // the rounding's
} OptimizerConfig;

// CAAT-Net's streams on each rank, 1 for other models. tp_cuts: the cuts of a matrix over all tensor ranks.
static inline int streams_per_rank(const ParallelConfig* parallel) {
    return parallel->caat.ranks ? parallel->caat.ranks / parallel->mesh.t : 1;
}
static inline int tp_cuts(const ParallelConfig* parallel) { return parallel->mesh.t * streams_per_rank(parallel); }

// S of C channels, rounded down as in the authors' code.
static inline int caat_channels(const CaatConfig* caat, int C) { return (int)((double)C * caat->fraction); }

// The virtual stage that is a chunk of a pipeline rank: a loop, or (folded) up and down: two chunks make a V.
static inline int virtual_stage(int p, bool folded, int stage, int chunk) {
    return chunk * p + (folded && chunk % 2 ? p - 1 - stage : stage);
}

static inline int virtual_stages(const ParallelConfig* parallel) { return parallel->mesh.p * parallel->v; }

// The first block of virtual stage `number`. Each has blocks / stages of them, the first blocks % stages one more.
static inline int stage_first_layer(const ParallelConfig* parallel, int L, int number) {
    const int stages = virtual_stages(parallel), blocks = L + 2 * parallel->light_ends;
    if (number == 0) return 0;
    if (number == stages) return L;
    return number * (blocks / stages) + (int)min_i64(number, blocks % stages) - parallel->light_ends;
}

// Refuses sites that the replicas cannot be divided into. sync: all sites use one gradient in every step.
static inline bool parallel_check_sites(const ParallelConfig* parallel, bool sync, Error* error) {
    const Mesh* mesh = &parallel->mesh;
    if (mesh->d % mesh->sites != 0)
        return fail(error,
                    "--sites %d, given or of the run that is resumed, does not divide %d replica%s: give another --dp",
                    mesh->sites, mesh->d, plural(mesh->d));
    if (parallel->zero && (mesh->sites > 1 || !sync))
        return fail(error, "--zero %d divides one optimizer's state over all replicas, which does not go with %s",
                    parallel->zero,
                    sync ? "--sites; drop one of the two" : "--dp-mode: each site has its own; drop --zero");
    return true;
}

// Refuses a micro-batch of B sequences that --tp-comm-overlap, where it is on, cannot halve.
static inline bool parallel_check_halves(bool overlap, int64_t B, Error* error) {
    if (!overlap || B % 2 == 0) return true;
    return fail(error,
                "--tp-comm-overlap computes a micro-batch as two halves, and --micro-batch %lld is odd; give an even "
                "one",
                (long long)B);
}

// Refuses a mesh that does not fit the model (sequences of T tokens); the error names the option.
static inline bool parallel_check(const ParallelConfig* parallel, const ModelConfig* model, int T, Error* error) {
    const Mesh* mesh = &parallel->mesh;
    if (parallel->caat.ranks % mesh->t != 0)
        return fail(error, "--tp %d does not divide --caat-ranks %d: a rank holds whole streams of a CAAT-Net", mesh->t,
                    parallel->caat.ranks);
    if (parallel->caat.ranks && parallel->sequence_parallel)
        return fail(
            error,
            "--sequence-parallel keeps one residual stream for all tensor ranks, and --caat-fraction one for each: "
            "drop one of them");
    const int cuts = tp_cuts(parallel), stages = virtual_stages(parallel);
    const char* tp = cuts > mesh->t ? "caat-ranks" : "tp";
    if (model->NH % cuts != 0)
        return fail(error, "--%s %d does not divide --heads %d: a rank computes whole heads", tp, cuts, model->NH);
    if (model->NKV % cuts != 0 && cuts % model->NKV != 0) {
        return fail(error, "--%s %d and --kv-heads %d: one has to be a multiple of the other", tp, cuts, model->NKV);
    }
    if (cuts > mesh->t && cuts > model->NKV) {
        return fail(
            error,
            "--caat-ranks %d on --tp %d needs at least as many --kv-heads, not %d: streams of one rank share no "
            "key/value head",
            cuts, mesh->t, model->NKV);
    }
    if (model->F % cuts != 0) return fail(error, "--%s %d does not divide --ffn %d", tp, cuts, model->F);
    if (model->V < cuts)
        return fail(error, "--%s %d is more than --vocab %d: a rank needs at least one token", tp, cuts, model->V);
    if (parallel->sequence_parallel && cuts == 1) return fail(error, "--sequence-parallel needs --tp 2 or more");
    if (parallel->tp_overlap && cuts == 1)
        return fail(error, "--tp-comm-overlap needs --tp 2 or more: one rank sends nothing");
    if (parallel->tp_overlap && parallel->sequence_parallel)
        return fail(error, "--tp-comm-overlap is incompatible with --sequence-parallel; drop one of the two");
    if (parallel->sequence_parallel && T % cuts != 0)
        return fail(error, "--tp %d does not divide --seq %d, which --sequence-parallel needs", cuts, T);
    if (model->L + 2 * parallel->light_ends >= stages) return true;
    char chunks[32] = "";
    if (parallel->v > 1) snprintf(chunks, sizeof chunks, " x --vpp %d", parallel->v);
    return fail(error, "--pp %d%s stages for --layers %d: a stage needs at least one; use --layers %d or fewer stages",
                mesh->p, chunks, model->L, stages);
}

// ---- Layout -----------------------------------------------------------------------------------------------------

typedef struct {
    Tensor tensor;      // the logical tensor
    int index;          // its number in the model's list, the same on every rank
    int64_t rows, cols; // this rank's slice has these
    int64_t rows_used;  // the rest is padding of the vocabulary
    int cut, copies;    // the number of the cut, and how many consecutive tensor ranks hold it
    int stream;         // the rank's stream that uses this slice; 0 where all share it
    int64_t offset;     // where the slice begins in the parameter buffer, in elements
    int bucket;
} Slice;

typedef struct {
    int64_t offset, elements; // in the parameter buffer; elements is a multiple of 16 d, and of 16 canonical
    int first, slices;
    int chunk; // that its gradients come from; -1: another rank has a part of them too (embedding_is_split)
} Bucket;

// One of the virtual stages (parallel/schedule.h) that a rank holds: consecutive blocks.
typedef struct {
    int first_layer, layers; // its blocks, numbered over the model
    int begin;               // its first block among those of this rank
    bool first, last;        // it begins with the embedding; it ends with the head
} Chunk;

typedef struct {
    ParallelConfig parallel;
    Chunk* chunk;  // (v)
    int layers;    // blocks of all chunks
    int n;         // slices this rank holds
    Slice* slices; // in memory order
    int tensors;   // the whole model has these
    int buckets;
    Bucket* bucket;
    int64_t elements;             // the parameter buffer has these
    bool first_stage, last_stage; // holds the embedding, holds the head
    int streams;                  // residual streams of this rank
    int NH, NKV, F, V;            // each stream's heads, mlp channels, rows of the vocabulary
    int vocabulary, shared;       // the model's vocabulary; channels that a CAAT-Net's streams share
    int embedding_bucket;         // a tied embedding's second, for its use as embedding (canonical sums); else -1
    int* slice_of; // (layers + 1, TENSOR_KINDS, streams): slice by local layer and kind, -1: none; the last row has the
                   // tensors outside the blocks
} Layout;

static inline bool is_key_or_value(const Tensor* tensor) { return tensor->kind == K_W || tensor->kind == V_W; }

// The local number of a block of the model, -1 if this rank does not hold it.
static inline int layout_local_layer(const Layout* layout, int layer) {
    for (int c = 0; c < layout->parallel.v; c++) {
        const Chunk* chunk = &layout->chunk[c];
        if (layer >= chunk->first_layer && layer < chunk->first_layer + chunk->layers)
            return chunk->begin + layer - chunk->first_layer;
    }
    return -1;
}

// A tied head needs the token embedding on the last stage too.
static inline bool layout_holds(const Layout* layout, const ModelConfig* model, const Tensor* tensor) {
    if (tensor->layer == model->L) return layout->last_stage;
    if (tensor->layer < 0) return layout->first_stage || (tensor->kind == WTE && model->tied && layout->last_stage);
    return layout_local_layer(layout, tensor->layer) >= 0;
}

// Whether another rank holds the other use of a tied embedding, and so another part of its gradient. Where one rank has
// both uses they share one slice.
static inline bool embedding_is_split(const Layout* layout, const ModelConfig* model) {
    return model->tied && layout->first_stage != layout->last_stage;
}

// The chunk of this rank that a tensor belongs to: they are in the model's order, the embedding in the first, the head
// in the last. A tied embedding with both uses on this rank belongs to the first one, which has its last gradients.
static inline int tensor_chunk(const Layout* layout, const Tensor* tensor) {
    int c = 0;
    while (c < layout->parallel.v - 1 && tensor->layer >= layout->chunk[c].first_layer + layout->chunk[c].layers) c++;
    return c;
}

// This rank's cut of a tensor, for one of its streams; parallel_check ensures that all divisions are exact.
static inline void slice_cut(Slice* slice, const ParallelConfig* parallel, const ModelConfig* model) {
    const Tensor* tensor = &slice->tensor;
    const int cuts = tp_cuts(parallel);
    slice->rows = slice->rows_used = tensor->rows;
    slice->cols = tensor->cols;
    slice->cut = 0;
    slice->copies = parallel->mesh.t;
    if (tensor->parallel == REPLICATED) return;
    slice->copies = is_key_or_value(tensor) && cuts > model->NKV ? cuts / model->NKV : 1;
    slice->cut = (parallel->mesh.tensor * streams_per_rank(parallel) + slice->stream) / slice->copies;
    const int held = cuts / slice->copies; // different cuts of the tensor, over all ranks
    if (tensor->parallel == ROW_PARALLEL) slice->cols = tensor->cols / held;
    if (tensor->parallel == COLUMN_PARALLEL) slice->rows = slice->rows_used = (tensor->rows + held - 1) / held;
    if (tensor->kind == WTE || tensor->kind == HEAD_W)
        slice->rows_used = max_i64(0, min_i64(slice->rows, tensor->rows - slice->cut * slice->rows));
}

// Pads the buffer to a multiple of 16 d elements, and of 16 canonical, which d divides; the next bucket begins there.
static inline void layout_close_bucket(Layout* layout) {
    const int64_t shards = max_i64(layout->parallel.mesh.d, layout->parallel.canonical);
    layout->elements = (int64_t)round_up((size_t)layout->elements, (size_t)(16 * shards));
    if (layout->buckets == 0) return;
    Bucket* last = &layout->bucket[layout->buckets - 1];
    last->elements = layout->elements - last->offset;
    last->slices = layout->n - last->first;
}

// Tensors of one block share a bucket; WTE, WPE and HEAD_W have one each, and the two of the final norm share one.
static inline bool same_bucket(const Tensor* a, const Tensor* b, const ModelConfig* model) {
    const bool block = a->layer >= 0 && a->layer < model->L;
    const bool same = a->kind == b->kind; // cuts of two streams
    return a->layer == b->layer && (block || same || (a->kind == FINAL_NORM_W && b->kind == FINAL_NORM_B));
}

static inline void layout_append(Layout* layout, const ModelConfig* model, const Tensor* tensor, int index,
                                 int stream) {
    const Slice* before = layout->n ? &layout->slices[layout->n - 1] : NULL;
    if (!before || !same_bucket(&before->tensor, tensor, model)) {
        layout_close_bucket(layout);
        const bool tied = tensor->kind == WTE && embedding_is_split(layout, model);
        const Bucket bucket = {layout->elements, 0, layout->n, 0, tied ? -1 : tensor_chunk(layout, tensor)};
        layout->bucket[layout->buckets++] = bucket;
    }
    Slice* slice = &layout->slices[layout->n];
    slice->tensor = *tensor;
    slice->index = index;
    slice->bucket = layout->buckets - 1;
    slice->offset = layout->elements;
    slice->stream = stream;
    slice_cut(slice, &layout->parallel, model);
    const bool block = tensor->layer >= 0 && tensor->layer < model->L;
    const int row = block ? layout_local_layer(layout, tensor->layer) : layout->layers;
    layout->slice_of[(row * TENSOR_KINDS + tensor->kind) * layout->streams + stream] = layout->n++;
    layout->elements += slice->rows * slice->cols;
}

// Appends the slices of a block of this rank, or of the layers before or after the blocks. Matrices that one product
// uses (q, k and v; gate and up) are contiguous: [first, end), stream by stream.
static inline void layout_append_layer(Layout* layout, const ModelConfig* model, int layer) {
    Tensor list[MODEL_LAYER_TENSORS];
    const int n = model_layer_tensors(list, model, layer), index = layout->tensors;
    layout->tensors += n;
    for (int first = 0, end = 0; first < n; first = end) {
        for (end = first + 1; end < n && (is_key_or_value(&list[end]) || list[end].kind == UP_W);) end++;
        const int streams = list[first].parallel == REPLICATED ? 1 : layout->streams;
        if (!layout_holds(layout, model, &list[first])) continue;
        for (int stream = 0; stream < streams; stream++) {
            for (int i = first; i < end; i++) layout_append(layout, model, &list[i], index + i, stream);
        }
    }
}

static inline void layout_chunks(Layout* layout, const ModelConfig* model) {
    const ParallelConfig* parallel = &layout->parallel;
    layout->chunk = (Chunk*)checked_calloc((size_t)parallel->v, sizeof(Chunk), "the layout's chunks");
    for (int c = 0; c < parallel->v; c++) {
        Chunk* chunk = &layout->chunk[c];
        const int number = virtual_stage(parallel->mesh.p, parallel->folded, parallel->mesh.pipeline, c);
        chunk->first_layer = stage_first_layer(parallel, model->L, number);
        chunk->layers = stage_first_layer(parallel, model->L, number + 1) - chunk->first_layer;
        chunk->begin = layout->layers;
        chunk->first = number == 0;
        chunk->last = number == virtual_stages(parallel) - 1;
        layout->layers += chunk->layers;
        layout->first_stage = layout->first_stage || chunk->first;
        layout->last_stage = layout->last_stage || chunk->last;
    }
}

// A tied embedding with both uses on this rank has a gradient for each where sums are canonical: the second in a bucket
// as long as the table's, without slices.
static inline void layout_add_embedding_bucket(Layout* layout, const ModelConfig* model) {
    layout->embedding_bucket = -1;
    if (!layout->parallel.canonical || !model->tied || !layout->first_stage || !layout->last_stage) return;
    const int row = layout->layers * TENSOR_KINDS + WTE;
    const Bucket* table = &layout->bucket[layout->slices[layout->slice_of[row * layout->streams]].bucket];
    const Bucket bucket = {layout->elements, table->elements, layout->n, 0, table->chunk};
    layout->elements += bucket.elements;
    layout->embedding_bucket = layout->buckets;
    layout->bucket[layout->buckets++] = bucket;
}

// Builds the layout of the rank of `parallel`, for sequences of T tokens; refuses a mesh that does not fit.
static inline bool layout_build(Layout* layout, const ModelConfig* model, ParallelConfig parallel, int T,
                                Error* error) {
    memset(layout, 0, sizeof *layout);
    if (!parallel_check(&parallel, model, T, error)) return false;
    layout->parallel = parallel;
    if (parallel.caat.ranks) layout->parallel.scatter = false; // tensor ranks hold different streams
    layout_chunks(layout, model);
    const int cuts = tp_cuts(&parallel), streams = layout->streams = streams_per_rank(&parallel);
    layout->NH = model->NH / cuts;
    layout->NKV = model->NKV > cuts ? model->NKV / cuts : 1;
    layout->F = model->F / cuts;
    layout->V = (model->V + cuts - 1) / cuts;
    layout->vocabulary = model->V;
    layout->shared = caat_channels(&parallel.caat, model->C);

    const int rows = layout->layers + 1, entries = rows * TENSOR_KINDS * streams;
    const size_t most = (size_t)(rows + 1) * MODEL_LAYER_TENSORS; // tensors of, before and after this rank's blocks
    layout->slices = (Slice*)checked_calloc(most * (size_t)streams, sizeof(Slice), "the layout");
    layout->bucket = (Bucket*)checked_calloc(most, sizeof(Bucket), "the layout's buckets");
    layout->slice_of = (int*)checked_malloc((size_t)entries * sizeof(int), "the layout's table");
    for (int i = 0; i < entries; i++) layout->slice_of[i] = -1;
    Tensor list[MODEL_LAYER_TENSORS];
    const int block = model_layer_tensors(list, model, 0);
    for (int layer = -1; layer <= model->L; layer++) {
        if (layer >= 0 && layer < model->L && layout_local_layer(layout, layer) < 0)
            layout->tensors += block; // another rank's: only counted, as a rank of a large model holds few
        else
            layout_append_layer(layout, model, layer);
    }
    layout_close_bucket(layout);
    layout_add_embedding_bucket(layout, model);
    return true;
}

static inline void layout_free(Layout* layout) {
    free(layout->chunk);
    free(layout->slices);
    free(layout->bucket);
    free(layout->slice_of);
    memset(layout, 0, sizeof *layout);
}

// Logical row of a slice's row: the q, k and v parts of a fused matrix are cut one by one, so a rank's rows are
// [its part of q | its part of k | its part of v].
static inline int64_t slice_logical_row(const Slice* slice, int64_t row) {
    if (slice->tensor.parallel != COLUMN_PARALLEL) return row;
    const int64_t share = slice->rows / slice->tensor.parts, part = row / share;
    return part * (slice->tensor.rows / slice->tensor.parts) + slice->cut * share + row % share;
}

// Logical column of a slice's first column.
static inline int64_t slice_logical_col(const Slice* slice) {
    return slice->tensor.parallel == ROW_PARALLEL ? slice->cut * slice->cols : 0;
}

static inline int64_t slice_elements(const Slice* slice) { return slice->rows * slice->cols; }

// Elements of a bucket's shard, and where it begins: the part that one data rank owns with ZeRO, or, of several sites,
// that one replica of a site exchanges with other sites.
static inline int64_t bucket_shard_size(const Layout* layout, int bucket) {
    return layout->bucket[bucket].elements / mesh_site_size(&layout->parallel.mesh);
}
static inline int64_t bucket_shard_begin(const Layout* layout, int bucket) {
    return layout->bucket[bucket].offset +
           mesh_rank_in_site(&layout->parallel.mesh) * bucket_shard_size(layout, bucket);
}

// One of the ranks that hold the same slice counts it in norms and writes it to checkpoints: the first of its copies
// over the tensor group and, for a tied embedding, the first stage.
static inline bool slice_is_owned(const Slice* slice, const Layout* layout) {
    return layout->parallel.mesh.tensor % slice->copies == 0 && (slice->tensor.kind != WTE || layout->first_stage);
}

// Whether tensor ranks hold the same slice and each sees only a part of its gradient, which has to be summed over them.
static inline bool needs_tp_grad_reduce(const Slice* slice, const ParallelConfig* parallel) {
    const int divided = GRAD_OF_HEADS | (parallel->sequence_parallel ? GRAD_OF_ROWS : 0) |
                        (parallel->caat.ranks > 0 ? GRAD_OF_STREAMS : 0);
    return slice->copies > 1 && (slice->tensor.grad & divided);
}

// The slice of a tensor of a block (local layer number) or outside the blocks (layer = -1), for one of the streams;
// NULL if this rank does not hold it.
static inline const Slice* layout_slice_of_stream(const Layout* layout, int layer, TensorKind kind, int stream) {
    const int row = layer < 0 ? layout->layers : layer;
    const int i = layout->slice_of[(row * TENSOR_KINDS + kind) * layout->streams + stream];
    return i < 0 ? NULL : &layout->slices[i];
}

// The same for the first stream, or for all where they share the slice.
static inline const Slice* layout_slice(const Layout* layout, int layer, TensorKind kind) {
    return layout_slice_of_stream(layout, layer, kind, 0);
}

// Rows of the embedding on this rank, of all its streams.
static inline int layout_embedding_rows(const Layout* layout) { return layout->streams * layout->V; }

// The first token of a stream's rows of the vocabulary; the number of the rows that are not padding.
static inline int layout_vocab_offset(const Layout* layout, int stream) {
    return (layout->parallel.mesh.tensor * layout->streams + stream) * layout->V;
}
static inline int layout_vocab_used(const Layout* layout, int stream) {
    return (int)max_i64(0, min_i64(layout->V, layout->vocabulary - layout_vocab_offset(layout, stream)));
}

static inline int64_t largest_bucket(const Layout* layout) {
    int64_t largest = 0;
    for (int b = 0; b < layout->buckets; b++) largest = max_i64(largest, layout->bucket[b].elements);
    return largest;
}

// Where the shard of a bucket begins in a buffer that holds this rank's shards of all buckets, one after the other.
static inline int64_t bucket_shard_offset(const Layout* layout, int bucket) {
    return layout->bucket[bucket].offset / mesh_site_size(&layout->parallel.mesh);
}

// Writes the initial values of all slices into params (layout->elements floats, host memory, zeroed).
static inline void layout_initialize(float* params, const Layout* layout, uint64_t seed) {
    for (int i = 0; i < layout->n; i++) {
        const Slice* slice = &layout->slices[i];
        const uint64_t stream = hash_string(slice->tensor.name);
        const int64_t col0 = slice_logical_col(slice);
        const float mean = (float)slice->tensor.init_mean, std = (float)slice->tensor.init_std;
#pragma omp parallel for schedule(static)
        for (int64_t row = 0; row < slice->rows_used; row++) {
            float* out = params + slice->offset + row * slice->cols;
            const int64_t first = slice_logical_row(slice, row) * slice->tensor.cols + col0;
            if (std != 0) random_normals(out, slice->cols, seed, stream, (uint64_t)first);
            for (int64_t c = 0; c < slice->cols; c++) out[c] = std == 0 ? mean : mean + std * out[c];
        }
    }
}

// ---- Stage boundaries -------------------------------------------------------------------------------------------

// Elements that one rank sends across a boundary of n elements: all n, identical on all tensor ranks, or n / t, with
// sequence parallelism or scatter-gather.
static inline int64_t boundary_elements(const ParallelConfig* parallel, int64_t n) {
    return parallel->sequence_parallel || parallel->scatter ? n / parallel->mesh.t : n;
}

// Where this rank's message begins in x: at its 1/t of the n elements, which all tensor ranks hold, or at 0 where x has
// only this rank's rows (sequence parallelism) or all n are sent.
static inline int64_t boundary_offset(const ParallelConfig* parallel, int64_t n) {
    return parallel->sequence_parallel || !parallel->scatter ? 0 : parallel->mesh.tensor * (n / parallel->mesh.t);
}
