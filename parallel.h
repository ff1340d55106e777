/*
parallel.h: who holds what. The mesh of ranks, and the layout plan: for every tensor of the model, which slice this rank
holds and where it lies in memory. Pure data: no MPI, no CUDA, and any rank's plan can be made and checked anywhere.

Mesh. n = t p d ranks: t tensor-parallel, d data-parallel, p pipeline-parallel, numbered as Megatron-LM does (Narayanan
et al. 2021): tensor fastest, then data, then pipeline:

    rank = tensor + t (data + d pipeline)

so that the t ranks that exchange the most sit side by side in one machine.

Layout. One walk over the list of model.h gives each held tensor its slice (rows x cols of the logical rows x cols) and
its offset in one parameter buffer. Gradients and the optimizer's moments use the same offsets in buffers of their own.
Everything that touches parameters goes through this table: initial values, gradient norm, update, checkpoints. So a
checkpoint knows logical tensors only, and initial values, drawn by (seed, tensor name, logical element), are the same on
every mesh.
*/
#ifndef PARALLEL_H
#define PARALLEL_H

#include "base.h"
#include "model.h"

typedef struct {
    int t, p, d;                // sizes: tensor, pipeline, data
    int tensor, pipeline, data; // this rank's coordinates
} Mesh;

static inline int mesh_size(const Mesh* mesh) { return mesh->t * mesh->p * mesh->d; }

static inline Mesh mesh_of_rank(int rank, int t, int p, int d) {
    Mesh mesh = {t, p, d, rank % t, rank / (t * d), rank / t % d};
    return mesh;
}

static inline int mesh_rank(const Mesh* mesh) {
    return mesh->tensor + mesh->t * (mesh->data + mesh->d * mesh->pipeline);
}

// ----------------------------------------------------------------------------------------------------------------
// Layout

typedef struct {
    Tensor tensor;      // the logical tensor
    int64_t rows, cols; // of this rank's slice
    int64_t offset;     // of the slice in the parameter buffer, in elements
} Slice;

typedef struct {
    Mesh mesh;
    int n;            // slices this rank holds
    Slice* slices;    // in memory order
    int64_t elements; // of the parameter buffer
    int first_layer, layers;
    bool first_stage, last_stage; // holds the embedding, holds the head
    int64_t* offsets; // (layers + 1, TENSOR_KINDS): offset by local layer and kind, -1 where there is none; the last
                      // row has the tensors outside the blocks
} Layout;

// The blocks of a stage: L / p each, the first L % p stages one more.
static inline int stage_first_layer(int L, int p, int stage) {
    return stage * (L / p) + (stage < L % p ? stage : L % p);
}

// Makes the plan of the rank at mesh's coordinates; refuses, by name, what cannot be divided.
static inline bool layout_build(Layout* layout, const ModelConfig* m, Mesh mesh, Error* error) {
    memset(layout, 0, sizeof *layout);
    if (mesh.p > m->L) return fail(error, "%d pipeline stages for %d layers: a stage needs at least one", mesh.p, m->L);
    layout->mesh = mesh;
    layout->first_layer = stage_first_layer(m->L, mesh.p, mesh.pipeline);
    layout->layers = stage_first_layer(m->L, mesh.p, mesh.pipeline + 1) - layout->first_layer;
    layout->first_stage = mesh.pipeline == 0;
    layout->last_stage = mesh.pipeline == mesh.p - 1;

    const int n = model_tensors(NULL, m), rows_of_offsets = layout->layers + 1;
    Tensor* list = (Tensor*)checked_malloc((size_t)n * sizeof(Tensor), "the list of tensors");
    model_tensors(list, m);
    layout->slices = (Slice*)checked_calloc((size_t)n, sizeof(Slice), "the layout");
    layout->offsets =
        (int64_t*)checked_malloc((size_t)rows_of_offsets * TENSOR_KINDS * sizeof(int64_t), "the layout's offsets");
    for (int i = 0; i < rows_of_offsets * TENSOR_KINDS; i++) layout->offsets[i] = -1;

    bool ok = true;
    for (int i = 0; i < n && ok; i++) {
        const Tensor* tensor = &list[i];
        const bool block = tensor->layer >= 0 && tensor->layer < m->L;
        const int layer = block ? tensor->layer - layout->first_layer : layout->layers; // row of offsets
        // A tied head needs the token embedding on the last stage too.
        const bool held = block ? layer >= 0 && layer < layout->layers
                          : tensor->layer < 0
                              ? layout->first_stage || (tensor->kind == WTE && m->tied && layout->last_stage)
                              : layout->last_stage;
        if (!held) continue;
        Slice* slice = &layout->slices[layout->n];
        slice->tensor = *tensor, slice->rows = tensor->rows, slice->cols = tensor->cols;
        if (tensor->parallel == COLUMN_PARALLEL) {
            ok = tensor->rows % ((int64_t)tensor->parts * mesh.t) == 0;
            slice->rows /= mesh.t;
        } else if (tensor->parallel == ROW_PARALLEL) {
            ok = tensor->cols % mesh.t == 0;
            slice->cols /= mesh.t;
        }
        if (!ok) {
            fail(error, "%s (%lld x %lld) cannot be divided over %d tensor-parallel ranks", tensor->name,
                 (long long)tensor->rows, (long long)tensor->cols, mesh.t);
            break;
        }
        slice->offset = layout->elements;
        layout->offsets[layer * TENSOR_KINDS + tensor->kind] = slice->offset;
        layout->elements += slice->rows * slice->cols;
        layout->n++;
    }
    free(list);
    return ok;
}

static inline void layout_free(Layout* layout) {
    free(layout->slices);
    free(layout->offsets);
    memset(layout, 0, sizeof *layout);
}

// Logical row of a slice's row: the q, k and v parts of a fused matrix are cut one by one, so a rank's rows are
// [its share of q | its share of k | its share of v].
static inline int64_t slice_logical_row(const Slice* s, const Mesh* mesh, int64_t row) {
    if (s->tensor.parallel != COLUMN_PARALLEL) return row;
    const int64_t share = s->rows / s->tensor.parts, part = row / share;
    return part * (s->tensor.rows / s->tensor.parts) + mesh->tensor * share + row % share;
}

// Logical column of a slice's first column.
static inline int64_t slice_logical_col(const Slice* s, const Mesh* mesh) {
    return s->tensor.parallel == ROW_PARALLEL ? mesh->tensor * s->cols : 0;
}

// Offset of one tensor of a block (local layer number), or outside the blocks (layer = -1); -1 if it is not held.
static inline int64_t layout_offset(const Layout* layout, int layer, TensorKind kind) {
    return layout->offsets[(layer < 0 ? layout->layers : layer) * TENSOR_KINDS + kind];
}

// Writes the initial values of all slices into params (layout->elements floats, host memory).
static inline void layout_initialize(float* params, const Layout* layout, uint64_t seed) {
    for (int i = 0; i < layout->n; i++) {
        const Slice* s = &layout->slices[i];
        const uint64_t stream = hash_string(s->tensor.name);
        const int64_t col0 = slice_logical_col(s, &layout->mesh);
        const float mean = (float)s->tensor.init_mean, std = (float)s->tensor.init_std;
#pragma omp parallel for schedule(static)
        for (int64_t row = 0; row < s->rows; row++) {
            float* out = params + s->offset + row * s->cols;
            const int64_t first = slice_logical_row(s, &layout->mesh, row) * s->tensor.cols + col0;
            if (std != 0) random_normals(out, s->cols, seed, stream, (uint64_t)first);
            for (int64_t c = 0; c < s->cols; c++) out[c] = std == 0 ? mean : mean + std * out[c];
        }
    }
}

#endif
