/*
roofline.h: how fast one training step on one GPU can be at all, operation by operation: a lower bound for the time of
each, the time that we aim at, and what follows for the whole step.

    floor = the largest of  FLOP / product,  bytes / copy,  exponentials / exponentials a second

product, copy: what this GPU was measured to reach with a large matrix product and a large copy (bytes read and
written); bench_gpu measures both. The exponentials are the third limit of attention: 16 a clock and multiprocessor.
Operations run one after the other, so a step's floor is the sum. (Williams, Waterman and Patterson 2009: "Roofline".)

Which operations there are is not written here: ops.h has the trainer's, block by block, for the planner. Here they get
what a bound needs to the byte:

    product      2 m n k FLOP. Operands once, the result once; the gradient of a weight is float32 and is added to:
                 8 bytes an element. GELU in an epilogue is part of its product: one matrix of N F more, and N F
                 exponentials
    attention    FLOP of the lower triangle only, backward 2.5 times forward: five products instead of two (Dao 2023).
                 Bytes as the kernels of attention.cuh move them. Backward, these kernels make seven products
                 (`executed`), and every exponential twice: the price of sums in a fixed order
    memory       every array as often as the kernel reads or writes it (ops.h); here no row statistics, which are
                 8 bytes of a row of 2 C

No credit for what is still in L2, so an operation on small arrays may beat its floor.

Goals are those of an H200, as shares of its ceilings (790 TFLOP/s, 4.3 TB/s), so they scale with what is measured:
what public kernels reach there (FlashAttention-2 and -3, cuDNN, ThunderKittens, cuBLASLt), and for streaming kernels a
share of the copy. `stretch` is what the best of them reach.

    roofline_build()       the rows of a step
    roofline_totals()      sums, tokens/s, MFU
    roofline_memory()      bytes that the trainer takes, from its own plan; roofline_micro_batch() what fits
*/
#pragma once

#include "../../kernels/tensor_ranges.h"
#include "../../planner/memory.h"
#include "../../planner/op_cost.h"

// What a GPU reaches, a second.
typedef struct {
    double product, copy, exponentials; // FLOP, bytes, 2^x: measured
    double peak;                        // FLOP of its data sheet: what MFU is a share of
} Ceilings;

// An H200 (SXM, 700 W): products of 8192^3 in bf16 on random data 769 to 798 TFLOP/s, copy of large arrays; both
// measured. 132 multiprocessors x 16 a clock x 1.755 GHz: derived.
static inline Ceilings ceilings_h200(void) {
    const Ceilings c = {790e12, 4.3e12, 132 * 16 * 1.755e9, 989.4e12};
    return c;
}

// A model as it is measured: B sequences of T tokens a step.
typedef struct {
    const char* model;
    int B, T;
} RooflineCase;

static const RooflineCase roofline_cases[] = {{"gpt2-124M", 64, 1024},  {"gpt2-350M", 32, 1024},
                                              {"gpt2-774M", 32, 1024},  {"gpt2-1558M", 32, 1024},
                                              {"llama-1.1B", 16, 2048}, {"llama-7B", 8, 2048}};
enum { ROOFLINE_CASES = sizeof roofline_cases / sizeof roofline_cases[0] };

typedef struct {
    Op op; // shapes: see ops.h
    char name[64];
    int count;            // in a step
    int launches;         // of one of them
    bool gelu;            // in the product's epilogue
    double flops;         // of one: counted
    double executed;      // that the kernel makes for that
    double bytes, exps;   // moved; exponentials
    double goal, stretch; // shares of the ceiling: of `product` where there are FLOP, else of `copy`
} RooflineRow;

enum { ROOFLINE_ROWS = 64 };

typedef struct {
    ModelConfig model; // the vocabulary padded
    Software software;
    Recompute recompute;
    int B, T, micro_batches; // B: of a micro-batch
    int n;
    RooflineRow row[ROOFLINE_ROWS];
} Roofline;

static inline double roofline_tokens(const Roofline* r) { return (double)r->micro_batches * r->B * r->T; }

// ---- Goals ------------------------------------------------------------------------------------------------------

static inline void set_goals(RooflineRow* row, double goal, double stretch) {
    row->goal = goal;
    row->stretch = stretch;
}

// Of products by the number of channels: with sums of 768 the end of one tile is not hidden behind the next, and 1600
// are 12.5 tiles. TFLOP/s of an H200's 790.
static inline void goal_of_product(RooflineRow* row, int C) {
    static const double goals[] = {660, 690, 720}, stretches[] = {700, 720, 750};
    const int size = (C >= 1024) + (C >= 2048);
    set_goals(row, goals[size] / 790, stretches[size] / 790);
}

// TFLOP/s, counted causally, at 1024, 2048 and 4096 tokens; between them by the logarithm. Heads of 64: forward
// FlashAttention-2 and -3, backward FlashAttention-2 and an estimate, as no better one is published.
static inline void goal_of_attention(RooflineRow* row, double T, double HS, bool backward) {
    static const double goals[2][2][3] = {{{245, 315, 355}, {180, 222, 248}}, {{350, 440, 490}, {208, 290, 390}}};
    static const double stretches[2][2][3] = {{{290, 371, 420}, {210, 295, 390}}, {{423, 521, 579}, {230, 347, 468}}};
    const double at = fmin(2, fmax(0, log2(T / 1024)));
    const int wide = HS > 64, i = at < 1 ? 0 : 1;
    const double *goal = goals[wide][backward], *stretch = stretches[wide][backward];
    set_goals(row, (goal[i] + (at - i) * (goal[i + 1] - goal[i])) / 790,
              (stretch[i] + (at - i) * (stretch[i + 1] - stretch[i])) / 790);
}

static inline void goal_of_memory(RooflineRow* row) {
    switch (row->op.kernel) {
    case KERNEL_NORM_BACKWARD: // sums over rows besides
    case KERNEL_BIAS:
    case KERNEL_EMBEDDING_BACKWARD: set_goals(row, 0.88, 0.93); break;
    case KERNEL_CLASSIFIER: set_goals(row, 0.93, 0.975); break; // 13.2 GB in 3.3 and 3.15 ms
    default: set_goals(row, 0.92, 0.96); break;
    }
}

// ---- Rows -------------------------------------------------------------------------------------------------------

// Kernels, copies and settings to zero that one call starts. A product may be one more where cuBLASLt divides its sums.
static inline int memory_launches(const Roofline* r, Kernel kernel, int tensors) {
    const bool gpt2 = r->model.position == POSITION_LEARNED;
    const int lists = (tensors + RANGES_PER_LAUNCH - 1) / RANGES_PER_LAUNCH;
    switch (kernel) {
    case KERNEL_NORM_BACKWARD: return 2;             // and the blocks' sums
    case KERNEL_BIAS: return 2;                      // the same
    case KERNEL_EMBEDDING: return gpt2 ? 2 : 1;      // positions
    case KERNEL_EMBEDDING_BACKWARD: return 7 + gpt2; // six kernels for the order of the sums, and zeros
    case KERNEL_CLASSIFIER: return 2;                // and the sum of the losses
    case KERNEL_SQUARES: return 2 * lists;           // and the blocks' sums
    case KERNEL_OPTIMIZER: return lists;
    default: return 1;
    }
}

static inline void row_of_product(const Roofline* r, RooflineRow* row) {
    const Op* op = &row->op;
    const double e = r->software.value_bytes, result = op->transposed == 2 ? 8 : e;
    row->flops = row->executed = 2 * op->m * op->n * op->k * op->batch;
    row->bytes = op->batch * (e * (op->m * op->k + op->k * op->n) + result * op->m * op->n);
    row->launches = 1;
    goal_of_product(row, r->model.C);
}

static inline void row_of_attention(const Roofline* r, RooflineRow* row) {
    const Op* op = &row->op;
    const double e = r->software.value_bytes, rows = op->batch_heads * op->seq;
    const double out = e * rows * op->head, qkv = out * (1 + 2.0 * r->model.NKV / r->model.NH);
    row->flops = op->flops;
    row->executed = op->backward ? op->flops / 5 * 7 : op->flops;
    row->bytes = op->backward ? 2 * qkv + 2 * out + out + qkv + 4 * 4 * rows : qkv + out + 4 * rows; // lse; D
    row->exps = rows * op->seq / 2 * (op->backward ? 2 : 1);
    row->launches = op->backward ? 2 : 1;
    goal_of_attention(row, op->seq, op->head, op->backward);
}

static inline void row_of_memory(const Roofline* r, RooflineRow* row, int tensors) {
    const Op* op = &row->op;
    row->bytes = op->bytes;
    if (op->kernel == KERNEL_ACTIVATION || op->kernel == KERNEL_ACTIVATION_BACKWARD) row->exps = op->elements;
    if (op->kernel == KERNEL_CLASSIFIER) row->exps = 2 * op->elements; // for the sum, and for the gradient
    row->launches = memory_launches(r, op->kernel, tensors);
    goal_of_memory(row);
}

// GELU that is part of the product before it.
static inline bool is_epilogue(const Roofline* r, const Op* op) {
    const bool activation = op->kernel == KERNEL_ACTIVATION || op->kernel == KERNEL_ACTIVATION_BACKWARD;
    return op->kind == OP_MEMORY && activation && activations[r->model.activation].linear_forward &&
           r->software.epilogues && r->n > 0 && r->row[r->n - 1].op.kind == OP_PRODUCT;
}

// Adds a list of operations, each `count` times in a step; those that are there already are counted together.
static inline void roofline_add(Roofline* r, const Work* w, int count, int tensors) {
    for (int i = 0; i < w->n; i++) {
        if (is_epilogue(r, &w->op[i])) {
            RooflineRow* product = &r->row[r->n - 1];
            product->gelu = true;
            product->bytes += w->op[i].bytes;
            product->exps += w->op[i].elements;
            append_text(product->name, sizeof product->name, ", %s", product->op.transposed ? "dGELU" : "GELU");
            continue;
        }
        if (r->n == ROOFLINE_ROWS) die("internal error: a step of more than %d operations", ROOFLINE_ROWS);
        RooflineRow* row = &r->row[r->n];
        memset(row, 0, sizeof *row);
        row->op = w->op[i];
        row->count = count;
        snprintf(row->name, sizeof row->name, "%s", w->op[i].name);
        if (row->op.kind == OP_PRODUCT) row_of_product(r, row);
        if (row->op.kind == OP_ATTENTION) row_of_attention(r, row);
        if (row->op.kind == OP_MEMORY) row_of_memory(r, row, tensors);
        r->n++;
    }
}

// Equal operations that follow from different places of a block become one row.
static inline void roofline_join(Roofline* r) {
    int n = 0;
    for (int i = 0; i < r->n; i++) {
        int k = 0;
        while (k < n && (strcmp(r->row[k].name, r->row[i].name) != 0 || r->row[k].bytes != r->row[i].bytes)) k++;
        if (k < n)
            r->row[k].count += r->row[i].count;
        else
            r->row[n++] = r->row[i];
    }
    r->n = n;
}

// The steps of a model with B sequences of T tokens in each of micro_batches. vocabulary: as it is computed with, 0:
// the model's, rounded up to a multiple of 128. separate: no epilogue but the bias (MATMUL_EPILOGUE=0).
static inline void roofline_build(Roofline* r, const ModelConfig* model, int B, int T, int micro_batches,
                                  int vocabulary, Recompute recompute, bool separate) {
    memset(r, 0, sizeof *r);
    r->model = *model;
    r->B = B;
    r->T = T;
    r->micro_batches = micro_batches;
    r->recompute = recompute;
    r->model.V = vocabulary ? vocabulary : (int)round_up((size_t)model->V, 128);
    if (T > r->model.T) r->model.T = T;
    r->software = *software_find("threefold");
    r->software.epilogues = !separate;
    Mesh mesh = mesh_of_rank(0, 1, 1, 1);
    mesh.recompute = recompute;
    const StepSetup setup = step_setup(&r->model, &mesh, B, T, B, &r->software, NULL);
    const double parameters = (double)model_parameters(&r->model), wte = (double)r->model.V * r->model.C;
    const int tensors = model_tensors(NULL, &r->model), m = micro_batches, blocks = m * r->model.L;
    Work w[10];
    memset(w, 0, sizeof w);
    work_zero(&w[0], &setup, parameters + (r->model.tied ? wte : 0)); // the embedding's other gradient
    work_chunk(&w[2], &setup, false, false, false);
    for (int backward = 0; backward < 2; backward++) {
        work_embedding(&w[backward ? 7 : 1], &setup, backward);
        work_block(&w[backward ? 6 : 3], &setup, backward, false);
        work_head(&w[backward ? 5 : 4], &setup, backward);
    }
    if (r->model.tied) work_memory(&w[8], "add the two gradients", KERNEL_ADD, wte, 12);
    work_squares(&w[9], &setup, parameters);
    work_optimizer(&w[9], &setup, parameters);
    const int counts[10] = {1, m, m, blocks, m, m, blocks, m, 1, 1};
    for (int i = 0; i < 10; i++) {
        roofline_add(r, &w[i], counts[i], tensors);
        work_free(&w[i]);
    }
    roofline_join(r);
}

// ---- Times ------------------------------------------------------------------------------------------------------

// What sets the floor.
typedef enum { BOUND_PRODUCT, BOUND_COPY, BOUND_EXPONENTIALS, BOUNDS } Bound;
static const char* const bound_names[BOUNDS] = {"product", "copy", "ex2"};

// Seconds of one.
static inline double row_floor(const RooflineRow* row, const Ceilings* c, Bound* bound) {
    const double times[BOUNDS] = {row->flops / c->product, row->bytes / c->copy, row->exps / c->exponentials};
    int most = 0;
    for (int i = 1; i < BOUNDS; i++) most = times[i] > times[most] ? i : most;
    if (bound) *bound = (Bound)most;
    return times[most];
}

// Seconds of one at a share of its ceiling, never below the floor.
static inline double row_seconds(const RooflineRow* row, const Ceilings* c, double share) {
    const double streaming = 0.92; // of a product's own arrays
    const double most = row->flops > 0 ? fmax(row->flops / (c->product * share), row->bytes / (c->copy * streaming))
                                       : row->bytes / (c->copy * share);
    return fmax(most, row_floor(row, c, NULL));
}

typedef struct {
    double flops, executed, bytes, exps;  // of a step
    double floor, goal, stretch, overlap; // seconds; overlap: if all products ran under all copies
    double part[OP_MESSAGE + 1];          // of the floor: by kind of operation
    double launches;                      // of a step
    double per_token, per_token_full;     // FLOP that MFU counts: attention's half, or all of it
} RooflineTotals;

static inline RooflineTotals roofline_totals(const Roofline* r, const Ceilings* c) {
    RooflineTotals t = {};
    for (int i = 0; i < r->n; i++) {
        const RooflineRow* row = &r->row[i];
        const double n = row->count, floor = n * row_floor(row, c, NULL);
        t.flops += n * row->flops;
        t.executed += n * row->executed;
        t.bytes += n * row->bytes;
        t.exps += n * row->exps;
        t.floor += floor;
        t.part[row->op.kind] += floor;
        t.launches += n * row->launches;
        t.goal += n * row_seconds(row, c, row->goal);
        t.stretch += n * row_seconds(row, c, row->stretch);
    }
    t.overlap = fmax(fmax(t.flops / c->product, t.bytes / c->copy), t.exps / c->exponentials);
    t.per_token = model_flops_per_token(&r->model, r->T);
    t.per_token_full = t.per_token + 6.0 * r->model.L * (double)r->model.C * r->T;
    return t;
}

// The share of the peak, of a step that takes so long. full: attention as if it were not causal, as PaLM counts it.
static inline double roofline_mfu(const Roofline* r, const RooflineTotals* t, const Ceilings* c, double seconds,
                                  bool full) {
    return (full ? t->per_token_full : t->per_token) * roofline_tokens(r) / seconds / c->peak;
}

// ---- Memory -----------------------------------------------------------------------------------------------------

// What the trainer's plan takes; on top of it come the driver's context, kernels' code, cuBLASLt's workspace and
// scratch memory of kernels.
static inline bool roofline_memory(StageMemory* memory, const Roofline* r, Error* error) {
    Mesh mesh = mesh_of_rank(0, 1, 1, 1);
    mesh.recompute = r->recompute;
    const PipelineConfig plan = {ONE_F_ONE_B, 1, 1, r->micro_batches, false, r->model.tied};
    const DtypeInfo type = {r->software.value_bytes, r->software.value_bytes < 4, 2};
    return plan_memory(memory, &r->model, &mesh, r->B, r->T, &plan, type, error);
}

// Memory beside the plan: an estimate. A context with all kernels is some 0.6 GB; matrix products try algorithms on a
// borrowed copy of their result; the embedding's backward pass sorts in scratch memory.
static const double ROOFLINE_BESIDE = 3e9;

// The largest micro-batch of a power of two, up to B sequences, with which a step of B fits into `bytes`; 0: none.
static inline int roofline_micro_batch(const ModelConfig* m, int B, int T, Recompute recompute, double bytes) {
    StageMemory memory;
    Error error;
    Roofline* r = (Roofline*)checked_malloc(sizeof *r, "the rows of a step");
    int micro = B;
    for (; micro > 0; micro = micro % 2 ? 0 : micro / 2) {
        roofline_build(r, m, micro, T, B / micro, 0, recompute, false);
        if (!roofline_memory(&memory, r, &error)) die("%s", error.text);
        if (memory.bytes + ROOFLINE_BESIDE <= bytes) break;
    }
    free(r);
    return micro;
}
