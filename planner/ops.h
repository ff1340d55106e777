/*
ops.h: the work of a rank, as lists of operations; op_cost.h prices them.

    work_block, work_chunk, work_embedding, work_head, ...    the lists of a step's parts, forward and backward

Theory: an operation (Op) is a matrix product, a memory-bound kernel, attention, or a collective. The
operations of a part of the model depend on the software (step_setup.h): programs fuse, store and overlap differently.
*/
#pragma once

#include "step_setup.h"

// ---- Operations -------------------------------------------------------------------------------------------------

typedef enum { OP_PRODUCT, OP_MEMORY, OP_ATTENTION, OP_COLLECTIVE } OpKind;

typedef struct Op {
    const char* name;
    OpKind kind;
    double elements;               // of OP_MEMORY
    double bytes;                  // of OP_MEMORY: read and written; OP_COLLECTIVE: of the whole vector
    double m, n, k, batch;         // of OP_PRODUCT: (m x k) (k x n), batch times
    int transposed;                // of OP_PRODUCT: 0 forward, x W^T (m tokens, k in, n out); 1 gradient of the input
                                   // (m tokens, k out, n in); 2 gradient of the weight (m out, n in, k tokens)
    double flops;                  // of OP_ATTENTION: counted causally (half)
    bool backward;                 // of OP_ATTENTION
    double seq, head, batch_heads; // of OP_ATTENTION: T; HS; B x the rank's heads
    PlanKind collective;           // of OP_COLLECTIVE
    int ranks, stride;             // of OP_COLLECTIVE: the group's size, and the distance of its ranks
    bool weight;                   // belongs to the W pass
    bool core;                     // belongs to the attention core
    int under, under_last;         // of OP_COLLECTIVE: hidden under these operations of its list; -1: not
} Op;

typedef struct {
    int n, room;
    Op* op;
} Work;

static inline void work_free(Work* w) {
    free(w->op);
    memset(w, 0, sizeof *w);
}

static inline Op op_of(OpKind kind, const char* name) {
    Op op = {};
    op.kind = kind;
    op.name = name;
    op.under = op.under_last = -1;
    return op;
}

static inline Op op_memory(const char* name, double elements, double each) { // bytes an element
    Op op = op_of(OP_MEMORY, name);
    op.elements = elements;
    op.bytes = elements * each;
    return op;
}

static inline Op op_collective(const char* name, PlanKind kind, double bytes, int ranks, int stride) {
    Op op = op_of(OP_COLLECTIVE, name);
    op.collective = kind;
    op.bytes = bytes;
    op.ranks = ranks;
    op.stride = stride;
    return op;
}

static inline Op* work_add(Work* w, Op op) {
    if (w->n == w->room) w->op = (Op*)checked_grow(w->op, &w->room, 32, sizeof(Op), "a list of operations");
    w->op[w->n] = op;
    return &w->op[w->n++];
}

static inline Op* work_product(Work* w, const char* name, int transposed, double m, double n, double k, double batch) {
    Op* op = work_add(w, op_of(OP_PRODUCT, name));
    op->transposed = transposed;
    op->m = m;
    op->n = n;
    op->k = k;
    op->batch = batch;
    op->weight = transposed == 2;
    return op;
}

static inline Op* work_memory(Work* w, const char* name, double elements, double each) {
    return work_add(w, op_memory(name, elements, each));
}

static inline Op* work_collective(Work* w, const char* name, PlanKind kind, double bytes, int ranks, int stride) {
    return work_add(w, op_collective(name, kind, bytes, ranks, stride));
}

// ---- Lists: a rank's part of one micro-batch. -------------------------------------------------------------------

// Sizes that many lists need.
typedef struct {
    Work* w;
    const Software* s;
    double N, R, C;    // rows of a micro-batch, this rank's rows outside the split layers, channels
    double F, fc, qkv; // this rank's: channels inside the mlp; of its first matrix; of q, k and v
    double heads, HS;  // this rank's: B x heads; the size of one
    double T, e;       // tokens of a sequence; bytes of a value
    int NH, NKV, t, V; // this rank's
    bool layernorm, learned, biases, gated, fused; // features of the model; fused: the activation and its product
    bool rows;                                     // sequence parallel
    int parts;     // the micro-batch has these, computed in turn (--tp-comm-overlap); all sizes are one's
    double shared; // channels that a CAAT-Net sums; of other models all
    double back;   // bytes of a value in its sums of gradients; 0: another model
    bool host;     // on processors, where a sum is in flight beside another part only
    bool halves;   // backward passes split into B and W
    bool drop;     // dropout outside attention
    Recompute recompute;
} Lists;

static inline Lists lists_of(const StepSetup* setup, Work* w) {
    const ModelConfig* m = &setup->model;
    const ParallelConfig* parallel = &setup->parallel;
    const int t = parallel->mesh.t;
    Lists x = {};
    x.w = w;
    x.s = setup->software;
    x.t = t;
    x.rows = parallel->sequence_parallel && t > 1;
    x.halves = schedule_splits_backward(setup->schedule);
    x.layernorm = m->norm == NORM_LAYERNORM;
    x.learned = m->position == POSITION_LEARNED;
    x.biases = m->biases;
    x.gated = model_is_gated(m);
    x.fused = !x.gated && setup->software->epilogues;
    x.recompute = parallel->recompute;
    x.parts = parallel->tp_overlap && setup->B % 2 == 0 ? 2 : 1;
    x.shared = parallel->caat.ranks ? caat_channels(&parallel->caat, m->C) : m->C;
    if (parallel->caat.ranks) x.back = parallel->caat.narrow ? setup->software->value_bytes : (int)sizeof(float);
    x.host = setup->cluster && setup->cluster->cores;
    x.N = (double)setup->B * setup->T / x.parts;
    x.R = x.rows ? x.N / t : x.N;
    x.C = m->C;
    x.T = setup->T;
    x.e = setup->software->value_bytes;
    x.NH = m->NH / t > 0 ? m->NH / t : 1;
    x.NKV = m->NKV > t ? m->NKV / t : 1;
    x.HS = model_head_size(m);
    x.F = m->F / t;
    x.fc = (double)model_fc_size(m) / t;
    x.qkv = (x.NH + 2 * x.NKV) * x.HS;
    x.heads = (double)setup->B * x.NH / x.parts;
    x.V = (m->V + t - 1) / t;
    x.drop = setup->software->dropout && x.layernorm;
    return x;
}

// The tensor group's collectives: gathers of all ranks' rows (sequence parallel), and sums over the ranks.
static inline Op* list_gather(const Lists* x) {
    if (!x->rows) return NULL;
    return work_collective(x->w, "gather of rows", PLAN_ALL_GATHER, x->e * x->N * x->C, x->t, 1);
}

static inline Op* list_sum(const Lists* x) {
    if (x->t == 1) return NULL;
    return work_collective(x->w, "sum over tensor ranks", x->rows ? PLAN_REDUCE_SCATTER : PLAN_ALL_REDUCE,
                           x->e * x->N * x->C, x->t, 1);
}

// The sum that is operation `sum` (-1: none) runs under the operations from `first` on.
static inline void list_hide(const Lists* x, int sum, int first, int end) {
    if (sum < 0 || !x->s->tensor_overlap) return;
    x->w->op[sum].under = first;
    x->w->op[sum].under_last = end - 1;
}

static inline Op* list_memory(const Lists* x, const char* name, double elements, double each) {
    return work_memory(x->w, name, elements, each);
}

static inline void list_flash(const Lists* x, bool backward) {
    Op* op = work_add(x->w, op_of(OP_ATTENTION, backward ? "attention backward" : "attention"));
    op->backward = backward;
    op->core = true;
    op->seq = x->T;
    op->head = x->HS;
    op->batch_heads = x->heads;
    op->flops = 2 * x->heads * x->T * x->T * x->HS * (backward ? 2.5 : 1);
}

// ---- This trainer (train_gpt.cu). A norm is fused with the residual before it, so a chunk begins
// with a separate norm.

static inline void ours_activation(const Lists* x, bool alone) { // the product with GELU writes one matrix more
    const double kernel = x->gated ? 3 : 2, values = x->fused && !alone ? 1 : kernel;
    list_memory(x, "activation", x->N * x->F, values * x->e);
}

static inline void ours_residual(const Lists* x, bool norm) {
    if (norm)
        list_memory(x, "residual and norm", x->R * x->C, 4 * x->e);
    else
        list_memory(x, "residual", x->R * x->C, 3 * x->e);
}

// The sum of a row-parallel matrix's output or (back) of the gradients before it: its number, -1: none. A CAAT-Net
// packs the channels that it sums, and unpacks them where they are used (parallel/caat.h).
static inline int ours_sum(const Lists* x, bool back) {
    const double bytes = back ? x->back : x->e;
    if (x->back == 0) return list_sum(x) ? x->w->n - 1 : -1;
    list_memory(x, "pack", x->N * x->shared, x->e + bytes);
    if (x->t == 1) return -1;
    work_collective(x->w, "sum over tensor ranks", PLAN_ALL_REDUCE, bytes * x->N * x->shared, x->t, 1);
    return x->w->n - 1;
}

static inline void ours_unpack(const Lists* x) {
    if (x->back != 0) list_memory(x, "unpack", x->N * x->C, 2 * x->e);
}

// A block up to the activation of the mlp, or (whole) up to its last sum, part by part: the sum of one part runs under
// the operations of the next one.
static inline void ours_forward_inner(const Lists* x, bool whole) {
    int first[5], end[4], sum[4]; // of attention in both parts, of the mlp in both
    for (int i = 0; i < 2 * x->parts; i++) {
        const bool mlp = i >= x->parts;
        first[i] = x->w->n;
        if (mlp) {
            ours_unpack(x);
            ours_residual(x, true);
        }
        list_gather(x);
        if (mlp) {
            work_product(x->w, "fc", 0, x->N, x->fc, x->C, 1);
            ours_activation(x, false);
            if (whole) work_product(x->w, "mlp projection", 0, x->N, x->C, x->F, 1);
        } else {
            work_product(x->w, "qkv", 0, x->N, x->qkv, x->C, 1);
            if (!x->learned) list_memory(x, "rope", x->N * (x->NH + x->NKV) * x->HS, 2 * x->e);
            list_flash(x, false);
            work_product(x->w, "projection", 0, x->N, x->C, x->NH * x->HS, 1);
        }
        end[i] = x->w->n;
        sum[i] = mlp && !whole ? -1 : ours_sum(x, false);
    }
    if (x->parts == 1) return;
    for (int i = 0; i < 4; i++) list_hide(x, sum[i], first[(i + 1) % 4], end[(i + 1) % 4]);
}

static inline void ours_forward(const Lists* x, bool next_norm) {
    ours_forward_inner(x, true);
    for (int i = 0; i < x->parts; i++) {
        ours_unpack(x);
        ours_residual(x, next_norm);
    }
}

// dW and db of a layer with `in` inputs and `out` outputs. A row-parallel one's db comes from the norm before it.
static inline void ours_weight(const Lists* x, const char* name, double in, double out, bool row) {
    work_product(x->w, name, 2, out, in, x->N, 1);
    if (x->biases && !row) list_memory(x, "bias gradient", x->N * out, x->e)->weight = true;
}

typedef enum { OURS_MLP, OURS_ATTENTION, OURS_HEAD } OursBranch;

// The input's gradient of a branch or the head.
static inline void ours_input(const Lists* x, OursBranch branch) {
    const double values = x->gated ? 5 : 3;
    if (branch == OURS_HEAD) {
        if (x->t > 1) list_memory(x, "classifier", x->N * x->V / 2, x->e * 4);
        work_product(x->w, "head dX", 1, x->N, x->C, x->V, 1);
        return;
    }
    ours_unpack(x);
    if (x->back == 0 && !list_gather(x) && x->halves) // else it is the residual stream's own
        list_memory(x, "gradient of a branch", x->N * x->C, 2 * x->e);
    if (branch == OURS_MLP) {
        work_product(x->w, "mlp projection dX", 1, x->N, x->F, x->C, 1);
        list_memory(x, "activation backward", x->N * x->F, x->e * (x->fused ? 1 : values));
        work_product(x->w, "fc dX", 1, x->N, x->C, x->fc, 1);
        return;
    }
    work_product(x->w, "projection dX", 1, x->N, x->NH * x->HS, x->C, 1);
    list_flash(x, true);
    if (!x->learned) list_memory(x, "rope backward", x->N * (x->NH + x->NKV) * x->HS, 2 * x->e);
    work_product(x->w, "qkv dX", 1, x->N, x->C, x->qkv, 1);
}

// The gradients of its weights, which hide the sum of the input's gradient. With sequence parallelism an operand of the
// second one has to be gathered, after the sum in the group's order: only the first one hides the sum.
static inline void ours_weights(const Lists* x, OursBranch branch, int sum, int first) {
    if (branch == OURS_HEAD) {
        if (x->rows) list_gather(x)->weight = true;
        work_product(x->w, "head dW", 2, x->V, x->C, x->N, 1);
        if (!x->rows) list_hide(x, sum, first, x->w->n);
        return;
    }
    const bool mlp = branch == OURS_MLP;
    ours_weight(x, mlp ? "mlp projection dW" : "projection dW", mlp ? x->F : x->NH * x->HS, x->C, true);
    if (x->rows) {
        list_hide(x, sum, first, x->w->n);
        list_gather(x)->weight = true;
    }
    ours_weight(x, mlp ? "fc dW" : "qkv dW", x->C, mlp ? x->fc : x->qkv, false);
    if (!x->rows) list_hide(x, sum, first, x->w->n);
}

// Backward of a branch or the head. The sum of the first of two parts also runs under the second one's input gradient.
// A CAAT-Net sums in a branch what the norm has made of it, and nothing in the head.
static inline void ours_branch(const Lists* x, OursBranch branch) {
    const bool head = branch == OURS_HEAD, norm_first = x->back > 0 && !head, sums = !head || x->back == 0;
    const double biases = x->biases && !x->s->epilogues && branch == OURS_MLP ? 2 : 0; // reads of dx, for biases
    int sum = -1, first = x->w->n;
    for (int i = 0; i < x->parts; i++) {
        ours_input(x, branch);
        if (norm_first) list_memory(x, "norm backward", x->R * x->C, (4 + biases) * x->e);
        if (i > 0) break;
        if (sums) sum = ours_sum(x, true);
        first = x->w->n;
    }
    ours_weights(x, branch, norm_first && x->host && x->parts == 1 ? -1 : sum, first);
    if (x->parts > 1) {
        sum = sums ? ours_sum(x, true) : -1;
        ours_weights(x, branch, sum, x->w->n);
    }
    for (int i = 0; i < x->parts; i++) {
        if (head) list_memory(x, "zero", x->R * x->C, x->e);
        if (!norm_first) list_memory(x, "norm backward", x->R * x->C, (4 + biases) * x->e);
    }
}

static inline void ours_recompute(const Lists* x) {
    if (x->recompute == RECOMPUTE_NONE) return;
    const int first = x->w->n;
    for (int i = 0; i < x->parts; i++) {
        list_memory(x, "norm again", x->R * x->C, 2 * x->e);
        if (x->recompute == RECOMPUTE_FULL) continue;
        list_memory(x, "norm again", x->R * x->C, 2 * x->e);
        ours_activation(x, true);
    }
    if (x->recompute == RECOMPUTE_FULL) {
        ours_forward_inner(x, false);
        return;
    }
    for (int i = first; i < x->w->n; i++) x->w->op[i].weight = true; // inputs of the matrices
}

static inline void ours_backward(const Lists* x) {
    ours_recompute(x);
    ours_branch(x, OURS_MLP);
    ours_branch(x, OURS_ATTENTION);
}

// ---- Published systems. Bytes by values read and written; a mask of dropout is one byte.

// A weight of `in` x `out` applied to all rows.
static inline void other_linear(const Lists* x, const char* name, double in, double out, bool backward) {
    if (!backward) {
        work_product(x->w, name, 0, x->N, out, in, 1);
        return;
    }
    work_product(x->w, name, 1, x->N, in, out, 1);
    work_product(x->w, name, 2, out, in, x->N, 1);
    if (!x->s->weights_fused) // buffer += gradient
        list_memory(x, "add gradient", in * out, x->e + 2 * x->s->gradient_bytes)->weight = true;
}

// softmax(Q K^T) V of the rank's heads.
static inline void other_attention(const Lists* x, bool backward) {
    const double S = x->heads * x->T * x->T, T = x->T, e = x->e;
    const int first = x->w->n;
    if (x->s->flash) {
        list_flash(x, backward);
        return;
    }
    if (!backward) {
        work_product(x->w, "QK", 0, T, T, x->HS, x->heads);
        if (!x->s->fused) list_memory(x, "scale and mask", S, (e + 4) + 8 + 9);
        list_memory(x, "softmax", S, x->s->fused ? 1.5 * e : 8 + (4 + e)); // fused: reads the lower triangle only
        if (x->s->dropout) list_memory(x, "attention dropout", S, 2 * e + 1);
        work_product(x->w, "PV", 0, T, x->HS, T, x->heads);
    } else {
        work_product(x->w, "PV dP", 1, T, T, x->HS, x->heads);
        work_product(x->w, "PV dV", 1, T, x->HS, T, x->heads);
        if (x->s->dropout) list_memory(x, "attention dropout back", S, 2 * e + 1);
        list_memory(x, "softmax back", S, x->s->fused ? 2 * e : (e + 4) + 12);
        if (!x->s->fused) list_memory(x, "scale and mask back", S, 9 + 8 + (4 + e));
        work_product(x->w, "QK dQ", 1, T, x->HS, T, x->heads);
        work_product(x->w, "QK dK", 1, T, x->HS, T, x->heads);
    }
    for (int i = first; i < x->w->n; i++) x->w->op[i].core = true;
}

static inline void other_residual(const Lists* x) {
    const double e = x->e, fused = 3 * e + (x->drop ? 1 : 0);
    const double apart = 3 * e + (x->biases ? 2 * e : 0) + (x->drop ? 2 * e + 1 : 0);
    list_memory(x, "residual", x->R * x->C, x->s->fused ? fused : apart);
}

static inline void other_forward(const Lists* x) {
    const double e = x->e;
    list_memory(x, "norm 1", x->R * x->C, 2 * e);
    list_gather(x);
    other_linear(x, "qkv", x->C, x->qkv, false);
    if (x->biases && !x->s->epilogues) list_memory(x, "qkv bias", x->N * x->qkv, 2 * e);
    if (!x->learned) list_memory(x, "rope", x->N * x->qkv, 2 * e);
    other_attention(x, false);
    if (!x->s->flash) list_memory(x, "merge heads", x->N * x->C / x->t, 2 * e);
    other_linear(x, "projection", x->C / x->t, x->C, false);
    list_sum(x);
    other_residual(x);
    list_memory(x, "norm 2", x->R * x->C, 2 * e);
    list_gather(x);
    other_linear(x, "fc", x->C, x->fc, false);
    if (x->gated) {
        list_memory(x, "swiglu", x->N * x->F, 3 * e);
    } else if (x->s->fused) {
        list_memory(x, "bias and gelu", x->N * x->F, 2 * e);
    } else {
        list_memory(x, "bias", x->N * x->F, 2 * e);
        list_memory(x, "gelu", x->N * x->F, 2 * e);
    }
    other_linear(x, "mlp projection", x->F, x->C, false);
    list_sum(x);
    other_residual(x);
}

// A column-parallel layer: its input is gathered again for the weight gradient, which hides the sum of the input
// gradient.
static inline void other_column_backward(const Lists* x, const char* name, double out) {
    Op* gather = list_gather(x);
    const int first = x->w->n; // dX, then dW
    if (gather && x->s->tensor_overlap) gather->under = gather->under_last = first;
    other_linear(x, name, x->C, out, true);
    Op* sum = list_sum(x);
    if (sum && x->s->tensor_overlap) sum->under = sum->under_last = first + 1;
}

static inline void other_branch_backward(const Lists* x) {
    const double each = (x->drop ? 2 * x->e + 1 : 0) + (x->biases ? x->e : 0); // and the bias gradient's read
    if (each > 0) list_memory(x, "residual back", x->R * x->C, each);
    list_gather(x);
}

static inline void other_norm_backward(const Lists* x) {
    list_memory(x, "norm back", x->R * x->C, 4 * x->e); // input twice, gradient, result
    if (!x->s->epilogues) list_memory(x, "add residual's gradient", x->R * x->C, 3 * x->e);
}

static inline void other_backward(const Lists* x) {
    const double e = x->e;
    if (x->recompute == RECOMPUTE_FULL) other_forward(x);
    other_branch_backward(x);
    other_linear(x, "mlp projection", x->F, x->C, true);
    list_memory(x, x->gated ? "swiglu back" : "bias and gelu back", x->N * x->F, (x->gated ? 5 : 4) * e);
    other_column_backward(x, "fc", x->fc);
    other_norm_backward(x);

    other_branch_backward(x);
    other_linear(x, "projection", x->C / x->t, x->C, true);
    if (!x->s->flash) list_memory(x, "merge heads back", x->N * x->C / x->t, 2 * e);
    if (x->recompute == RECOMPUTE_SELECTIVE && !x->s->flash) other_attention(x, false);
    other_attention(x, true);
    const double bias = x->s->epilogues ? e : 3 * e;
    list_memory(x, x->learned ? "qkv join and bias back" : "rope back", x->N * x->qkv, x->learned ? bias : 2 * e);
    other_column_backward(x, "qkv", x->qkv);
    other_norm_backward(x);
}

// ---- For both

// One block. last: of its chunk, where that does not end with the head. Backward: including recomputation.
static inline void work_block(Work* w, const StepSetup* setup, bool backward, bool last) {
    const Lists x = lists_of(setup, w);
    if (!x.s->ours)
        backward ? other_backward(&x) : other_forward(&x);
    else
        backward ? ours_backward(&x) : ours_forward(&x, !last);
}

// A chunk's work besides its blocks: it unpacks the received input (from another chunk), makes its first norm, and, in
// the backward pass, sends its input gradient.
static inline void work_chunk(Work* w, const StepSetup* setup, bool backward, bool receives, bool sends) {
    const Lists x = lists_of(setup, w);
    const double rows = x.R * x.parts;
    const bool scatters = parallel_scatters(&setup->parallel);
    if (!x.s->ours) return;
    if (receives && scatters)
        work_collective(w, "gather of a boundary", PLAN_ALL_GATHER, x.e * rows * x.C, x.t, 1);
    else if (receives)
        list_memory(&x, "boundary", rows * x.C, 2 * x.e);
    if (backward && sends) list_memory(&x, "boundary", rows * x.C / (scatters ? x.t : 1), 2 * x.e);
    if (backward) return;
    for (int i = 0; i < x.parts; i++) list_memory(&x, "norm", x.R * x.C, 2 * x.e);
}

// A part's embedding. A CAAT-Net's streams begin as one, whose gradient is the sum of theirs.
static inline void ours_embedding(const Lists* part, bool backward) {
    Lists x = *part;
    x.shared = x.C;
    if (!backward) { // tokens, the sum over the parts of the vocabulary, positions
        list_memory(&x, "embedding", x.N * x.C, x.e * (x.learned ? 5 : 2));
        list_sum(&x);
        return;
    }
    const int first = x.w->n;
    if (x.back > 0) {
        ours_sum(&x, true);
        list_memory(&x, "unpack", x.N * x.C, x.back + x.e);
    }
    list_gather(&x); // read; a row of the float32 table, read and written
    list_memory(&x, "embedding backward", x.N * x.C, x.e * (x.learned ? 2 : 1) + 8);
    for (int i = first; i < x.w->n; i++) x.w->op[i].weight = true;
}

static inline void work_embedding(Work* w, const StepSetup* setup, bool backward) {
    const Lists x = lists_of(setup, w);
    if (!x.s->ours && !backward) {
        list_memory(&x, "embedding", x.N * x.C, 4 * x.e + (x.s->dropout ? 2 * x.e + 1 : 0));
        list_sum(&x);
    } else if (!x.s->ours) {
        list_memory(&x, "embedding back", x.N * x.C, 6 * x.e);
    } else {
        for (int i = 0; i < x.parts; i++) ours_embedding(&x, backward);
    }
}

// Logits and losses, forward and backward. The classifier's passes: one where a rank has the whole vocabulary; else two
// forward and two backward, and ranks exchange three numbers a row.
static inline void ours_head(const Lists* x, bool backward) {
    const double logits = x->N * x->V;
    if (backward) {
        ours_branch(x, OURS_HEAD);
        return;
    }
    for (int i = 0; i < x->parts; i++) {
        list_gather(x);
        work_product(x->w, "head", 0, x->N, x->V, x->C, 1);
        list_memory(x, "classifier", x->t == 1 ? logits : logits / 2, x->e * (x->t == 1 ? 2 : 4));
        if (x->t == 1) continue;
        work_collective(x->w, "largest logits", PLAN_ALL_REDUCE, 4 * x->N, x->t, 1);
        work_collective(x->w, "sums of exponentials", PLAN_ALL_REDUCE, 8 * x->N, x->t, 1);
    }
}

// Last norm, logits, cross entropy: in float32 in several passes, or in one.
static inline void other_head(const Lists* x, bool backward) {
    const double logits = x->N * x->V, e = x->e;
    if (!backward) {
        list_memory(x, "last norm", x->R * x->C, 2 * e);
        list_gather(x);
        other_linear(x, "head", x->C, x->V, false);
        // to float32, maximum, subtract, exponential, sum, divide
        list_memory(x, "cross entropy", logits, x->s->one_pass_loss ? 2 * e : (e + 4) + 4 + 8 + 8 + 4 + 8);
        if (x->t == 1) return;
        for (int i = 0; i < 3; i++) work_collective(x->w, "cross entropy sum", PLAN_ALL_REDUCE, 4 * x->N, x->t, 1);
        return;
    }
    if (!x->s->one_pass_loss) list_memory(x, "cross entropy back", logits, 12 + e);
    const int first = x->w->n;
    other_linear(x, "head", x->C, x->V, true);
    Op* sum = list_sum(x);
    if (sum && x->s->tensor_overlap) sum->under = sum->under_last = first + 1;
    list_memory(x, "last norm back", x->R * x->C, 4 * e);
}

static inline void work_head(Work* w, const StepSetup* setup, bool backward) {
    const Lists x = lists_of(setup, w);
    x.s->ours ? ours_head(&x, backward) : other_head(&x, backward);
}

// Once a step, for `elements` parameters of a rank, of which it updates `updated` (ZeRO: a shard of each bucket). These
// kernels were tuned in all systems (apex's for lists of tensors): their bytes are not divided by Software.kernels.
// Sets gradients to zero.
static inline void work_zero(Work* w, const StepSetup* setup, double elements) {
    const Software* s = setup->software;
    if (elements > 0) work_memory(w, "zero gradients", elements, s->gradient_bytes * s->kernels);
}

// The gradients' norm. Other software squares them in the passes of work_optimizer.
static inline void work_squares(Work* w, const StepSetup* setup, double updated) {
    if (setup->software->ours && updated > 0) work_memory(w, "squares of gradients", updated, 4);
}

// AdamW: reads gradient, weight and two moments in float32, writes three of them, and the 16-bit weight. Other software
// in 2021: gradients to float32, unscaled, squared, clipped; Adam; to 16 bits.
static inline void work_optimizer(Work* w, const StepSetup* setup, double updated) {
    const Software* s = setup->software;
    if (updated <= 0) return;
    if (s->ours)
        work_memory(w, "optimizer", updated, 28 + (s->value_bytes < 4 ? s->value_bytes : 0));
    else
        work_memory(w, "optimizer", updated, s->kernels * ((s->gradient_bytes + 4) + 8 + 4 + 8 + 28 + (4 + 2)));
}

// What a mode computes beside the update (methods/async_dp.h), on average: float32 values, read or written. The
// compensation: the squares of a correction, the correction. dc-s3gd: global += mean; weights = global; the change.
// diloco, once in H steps: the distance, the outer step, a copy.
static inline void work_merge(Work* w, const StepSetup* setup, double updated) {
    const AsyncConfig* config = &setup->methods.async;
    double values = config->compensation > 0 ? 3 + 4 : 0;
    if (config->mode == DP_DC_S3GD) values += 3 + 2 + 3;
    if (config->mode == DP_DILOCO) values += (3 + 5 + 2) / (double)config->period;
    if (values > 0 && updated > 0) work_memory(w, "merge", updated, values * sizeof(float));
}
