/*
host_memory.h: the peak memory of a process on a CPU (process_peak, ProcessMemory): the touched part of its stage's
arenas (memory.h), and more.

Theory:

    arenas       their touched part: all but the cache of keys and values, in whole pages. Large memory is on huge pages
                 (device_malloc), so a part of the cache may be included
    tokens       inputs and targets of all micro-batches, where the stage has the embedding or the head
    products     packed matrices, two huge pages for each thread, in bf16 three (matmul.h)
    attention    a thread's blocks of keys and queries, which are larger in the backward pass (attention.h)
    messages     a sum in flight over the tensor ranks takes memory of MPI's as large as its vector, one at a time; one
                 of gradients, at most two at a time (parallel/data.h), its plan's buffers (comm_planned.h), and a
                 reduce-scatter a copy of its vector
    text         pages of the token files that are read
    program      code, libraries and MPI, which are measured; and the trainer's own code and tables

Weights of float32 are drawn in place. Those of 16 bits are rounded from a float32 copy, which is freed before the first
step takes more than that. A checkpoint needs a bucket more while it is written,
which is not counted here; nor are traces (--trace: 64 MB, of which a span touches 64 B).
*/
#pragma once

#include "../kernels/attention.h"
#include "memory.h"

// The conditions of a rank.
typedef struct {
    double
        base; // bytes of a rank after a first exchange by MPI (measured_device.h: resident); for a process without MPI
              // the constant ALONE_BYTES is used
    double text;      // bytes of the token files
    double sequences; // of these that a rank reads in the run
    int threads;      // that a rank computes with
    bool writes;      // it writes text, so keys and values are touched
} ProcessSetup;

typedef struct {
    StageMemory stage; // of the largest rank
    double arenas, tokens, products, attention, messages, text, program;
    double bytes; // together
} ProcessMemory;

enum {
    PAGE = 4096,
    HUGE_PAGE = 2 << 20,
    FILE_PAGES = 1 << 16,           // bytes of a group of a file's pages
    CHECKED_PIECES = 64,            // of a token file that are read at the start (tokens_checksum)
    ALONE_BYTES = 5 * 1000 * 1000,  // libraries, without MPI
    PROGRAM_BYTES = 2 * 1000 * 1000 // the trainer's code, schedule, layout and lists
};

static inline double in_pages(double bytes, double page) { return ceil(bytes / page) * page; }

// The touched bytes of an arena whose last `unused` bytes are not used.
static inline double touched_bytes(double bytes, double unused) {
    const double whole = in_pages(bytes, PAGE);
    return fmin(whole, in_pages(bytes - unused, bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE));
}

static inline double touched_arenas(const StageMemory* stage, bool writes) {
    double bytes = 0;
    for (int i = 0; i < ARENAS; i++)
        bytes += touched_bytes(stage->arena[i], i == ARENAS - 1 && !writes ? stage->unused : 0);
    return bytes;
}

// Memory of MPI and of plans for sums.
static inline double message_bytes(const Stage* s) {
    const Layout* layout = &s->layout;
    const Mesh* mesh = &layout->mesh;
    const double rows = (double)(max_tokens(s) * s->model.C * s->type.bytes), single = sizeof(float);
    const double bucket = single * (double)largest_bucket(layout), buckets = single * (double)layout->elements;
    const int at_once = MAX_INFLIGHT_REDUCTIONS;
    const double copies = mesh->zero ? fmin(buckets, at_once * bucket) : 0;
    const double sums = copies + at_once * fmin(bucket, PLAN_BUFFERED);
    const bool tied = embedding_is_split(layout, &s->model); // its sum starts when all others are complete
    const int shares = mesh->zero ? mesh->d : 1;
    const double tie = tied ? single * (double)layout->V * s->model.C / shares : 0;
    const double gradients = fmax(mesh->d > 1 ? sums : 0, tie);
    return mesh->t > 1 ? rows + gradients : gradients;
}

// A thread's scratch for attention.
static inline double attention_bytes(const Stage* s) {
    const AttShape shape =
        attention_shape(s->layout.streams * s->B, s->T, s->layout.NH, s->layout.NKV, model_head_size(&s->model));
    BackwardScratch blocks;
    return (double)(backward_scratch(&blocks, NULL, &shape, shape.blocks) * sizeof(float));
}

// A process with a planned stage, whose schedule has micro_batches micro-batches.
static inline ProcessMemory process_of_stage(Stage* s, int micro_batches, const ProcessSetup* setup) {
    const bool reads = s->layout.first_stage || s->layout.last_stage;
    const double tokens = (double)micro_batches * s->B * s->T;
    ProcessMemory x = {};
    x.stage = memory_of_stage(s);
    x.arenas = touched_arenas(&x.stage, setup->writes);
    x.tokens = reads ? in_pages(2 * tokens * sizeof(int32_t), PAGE) : 0;
    x.products = (s->type.bytes < (int)sizeof(float) ? 3.0 : 2.0) * HUGE_PAGE * setup->threads;
    x.attention = setup->threads * attention_bytes(s);
    x.text = fmin(setup->text, (CHECKED_PIECES + (reads ? setup->sequences : 0)) * FILE_PAGES);
    x.program = (mesh_size(&s->layout.mesh) > 1 ? setup->base : (double)ALONE_BYTES) + PROGRAM_BYTES;
    x.messages = message_bytes(s);
    x.bytes = x.arenas + x.tokens + x.products + x.attention + x.messages + x.text + x.program;
    return x;
}

// The largest process of a mesh, as plan_memory; compares with peak_mem_bytes of log.jsonl.
static inline bool process_peak(ProcessMemory* largest, const ModelConfig* m, const Mesh* mesh, int B, int T,
                                const PipelineConfig* plan, const AsyncConfig* async, DtypeInfo type,
                                const ProcessSetup* setup, Error* error) {
    Mesh at = *mesh;
    memset(largest, 0, sizeof *largest);
    at.tensor = at.data = at.pipeline = 0;
    if (!pipeline_config_check(plan, mesh->recompute, error)) return false;
    for (; at.pipeline < plan->p; at.pipeline = next_distinct_stage(plan, at.pipeline)) {
        Stage s;
        if (!plan_stage(&s, m, &at, B, T, plan, async, type, error)) return false;
        const ProcessMemory x = process_of_stage(&s, plan->m, setup);
        if (x.bytes > largest->bytes) *largest = x;
        plan_stage_free(&s);
    }
    return true;
}
