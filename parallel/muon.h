/*
parallel/muon.h: Muon's update of the matrices of blocks (kernels/muon.h), on a mesh. All other tensors are AdamW's.

    muon_step       updates this rank's part of the matrices of a chunk
    muon_warm_up    runs the products once, which on a GPU loads them

Theory: a matrix can be orthogonalised only as a whole, so (Liu et al. 2025, arXiv 2502.16982, algorithm 1) of a bucket

    1. a rank computes the momentum U of the elements that it updates
    2. ZeRO: the data ranks gather U of the bucket, float32, in the memory of its gradients, which are used up
    3. the tensor ranks gather the pieces of t matrices, float32, and each orthogonalises one of the t in floatX
    4. its owner broadcasts each result, floatX, and every tensor rank updates its own part

With ZeRO a rank does 3 and 4 only for matrices that its shard overlaps; a matrix that lies in several shards is
computed by each of their ranks, and without ZeRO by all data ranks, as AdamW's update is. U is gathered in float32: it
is the same bits on every mesh that sums the same gradients. q, k and v are matrices of their own also where one tensor
holds them, as GPT-2's c_attn: they are three maps, and as one the largest would set the scale of all.

The five steps take 5 (4 r^2 c + 2 r^3) operations, r <= c rows and columns: 300 C^3 for a GPT-2 block, which trains on
a token with 72 C^2. So they add 4 C / N of the work of a step with N tokens a replica, t ranks sharing both.
*/
#pragma once

#include "stage.h"

enum { MUON_STEPS = 5 };

// A part of a slice that is one matrix, whose elements [begin, begin + range.n) this rank updates; the piece of this
// rank begins at `at` in the parameters.
typedef struct {
    CutMatrix matrix;
    int piece;
    int64_t at, begin;
    TensorRange range;
} MuonPart;

static inline int64_t muon_elements(const CutMatrix* m) { return m->rows * m->cols; }

// Orthogonalises the matrix in x[0]; returns which of x has the result.
static inline floatX* newton_schulz(const MuonBuffers* buffers, CutMatrix matrix) {
    const int r = (int)min_i64(matrix.rows, matrix.cols), c = (int)max_i64(matrix.rows, matrix.cols);
    floatX *x = buffers->x[0], *next = buffers->x[1];
    linear_no_autotune(true); // data ranks need the same bits
    for (int i = 0; i < MUON_STEPS; i++) {
        linear_forward(buffers->gram, x, x, NULL, r, c, r);
        linear_forward(buffers->square, buffers->gram, buffers->gram, NULL, r, r, r);
        muon_polynomial(buffers->square, buffers->gram, r);
        linear_backward_input(next, buffers->square, x, r, c, r);
        floatX* const result = next;
        next = x;
        x = result;
    }
    linear_no_autotune(false);
    return x;
}

// The matrices of a slice that this rank updates a part of; owned: its range.
static inline int muon_parts_of_slice(MuonPart* list, const Layout* layout, const Slice* slice, TensorRange owned) {
    const int64_t size = slice_elements(slice) / slice->tensor.parts, first = (int64_t)owned.first;
    int n = 0;
    for (int i = 0; i < slice->tensor.parts; i++) {
        const int64_t begin = max_i64(first, i * size), end = min_i64(first + owned.n, (i + 1) * size);
        if (begin >= end) continue;
        const MuonPart part = {slice_part_matrix(layout, slice), slice->cut, slice->offset + i * size, begin - i * size,
                               owned};
        list[n] = part;
        TensorRange* range = &list[n++].range;
        range->from += begin - first;
        range->at += begin - first;
        range->first = (uint64_t)begin;
        range->n = end - begin;
    }
    return n;
}

// The momentum of a bucket, all of it, gathered where its gradients were computed.
static inline float* muon_gather_bucket(Stage* stage, int b) {
    const Layout* layout = &stage->layout;
    GradientBuckets* grads = &stage->grads;
    const int64_t n = bucket_shard_size(layout, b);
    if (!layout->mesh.zero) return grads->update + layout->bucket[b].offset;
    float* whole = grads->bucket[buckets_share_memory(layout) ? 0 : b].gradient;
    comm_all_gather(&stage->groups->data, whole, grads->update + bucket_shard_offset(layout, b), n, COMM_FLOAT);
    return whole;
}

// Normalises a whole matrix into x[0] from the pieces of all tensor ranks.
static inline void muon_load(const MuonBuffers* buffers, const float* gathered, CutMatrix matrix) {
    TensorRange range = whole_range(muon_elements(&matrix) / matrix.pieces);
    device_zero(buffers->squares, sizeof(double));
    for (int i = 0; i < matrix.pieces; i++) {
        range.at = i * matrix.copies * range.n;
        sum_of_squares(buffers->squares, gathered, &range, 1);
    }
    muon_normalize(buffers->x[0], gathered, buffers->squares, matrix);
}

// Updates this rank's part of up to t matrices, of which tensor rank i orthogonalises number i. momentum: of the
// bucket, that begins at `offset` in the parameters.
static inline void muon_update_together(const Stage* stage, const float* momentum, int64_t offset, const MuonPart* list,
                                        int count, const OptimizerStep* s) {
    const MuonBuffers* buffers = &stage->muon;
    Comm* tensor = &stage->groups->tensor;
    floatX* own = NULL;
    for (int i = 0; i < count; i++) {
        const CutMatrix m = list[i].matrix;
        const float* gathered = momentum + (list[i].at - offset);
        if (tensor->size > 1) {
            comm_all_gather(tensor, buffers->gathered, gathered, muon_elements(&m) / m.pieces, COMM_FLOAT);
            gathered = buffers->gathered;
        }
        if (i == tensor->rank) muon_load(buffers, gathered, m);
    }
    if (tensor->rank < count) own = newton_schulz(buffers, list[tensor->rank].matrix);
    floatX* const arriving = own == buffers->x[0] ? buffers->x[1] : buffers->x[0];
    for (int i = 0; i < count; i++) {
        floatX* result = i == tensor->rank ? own : arriving;
        comm_broadcast(tensor, result, muon_elements(&list[i].matrix), COMM_FLOATX, i);
        muon_update(stage->params, stage->master, result, list[i].matrix, list[i].piece, list[i].begin, &list[i].range,
                    s);
    }
}

// The matrices of a bucket that this rank updates a part of; *ranges: those of its slices and after, *count.
static inline int muon_parts_of_bucket(MuonPart* list, const Layout* layout, int b, const TensorRange** ranges,
                                       int* count) {
    const Bucket* bucket = &layout->bucket[b];
    int n = 0;
    for (int i = bucket->first; i < bucket->first + bucket->slices; i++) {
        const Slice* slice = &layout->slices[i];
        if (*count == 0 || (*ranges)->index != slice->index) continue;
        n += muon_parts_of_slice(list + n, layout, slice, *(*ranges)++);
        (*count)--;
    }
    return n;
}

// ranges: of the chunk's matrices, in the layout's order.
static inline void muon_step(Stage* stage, int chunk, const TensorRange* ranges, int count, float beta,
                             const OptimizerStep* s) {
    const Layout* layout = &stage->layout;
    const int t = layout->mesh.t;
    muon_momentum(stage->grads.update, stage->moment1, ranges, count, beta, s->grad_scale);
    for (int b = 0; b < layout->buckets; b++) {
        MuonPart list[MODEL_LAYER_TENSORS];
        if (layout->bucket[b].chunk != chunk || !bucket_has_muon(layout, b)) continue;
        const float* momentum = muon_gather_bucket(stage, b);
        const int n = muon_parts_of_bucket(list, layout, b, &ranges, &count);
        for (int i = 0; i < n; i += t)
            muon_update_together(stage, momentum, layout->bucket[b].offset, list + i, (int)min_i64(t, n - i), s);
    }
}

// The products of all shapes, of zeros.
static inline void muon_warm_up(const Stage* stage) {
    for (int i = 0; i < stage->layout.n; i++) {
        const Slice* slice = &stage->layout.slices[i];
        if (slice_is_of_muon(&stage->layout, slice))
            newton_schulz(&stage->muon, slice_part_matrix(&stage->layout, slice));
    }
}
