/*
formulas.h: FLOPs and memory of a training run by published formulas, for comparison with papers and
with other trainers. This trainer's own counts are exact: FLOPs in model.h, bytes in memory.h.

Theory: two conventions for a rate.
    TFLOP/s of a device   Narayanan et al. 2021, equation 3: the hardware's work in four passes (full recomputation)
                          with attention in full: 96 B T L C^2 (1 + T/(6C) + V/(16 L C)), used also for runs without
                          recomputation
    MFU                   the model's work, 6 N + 6 L C T FLOP a token (model.h), relative to the peak; other papers
                          count attention in full, 12 L C T (flops_of_model)
*/
#pragma once

#include "../model.h"
#include "../parallel/schedule.h"

// Narayanan et al. 2021, equation 3: four passes, attention in full.
static inline double flops_hardware(const ModelConfig* m, int T, double batch) {
    const double L = m->L, C = m->C;
    return 96.0 * batch * T * L * C * C * (1 + T / (6 * C) + m->V / (16 * L * C));
}

// Three passes: 6 FLOP a token and weight of the products, and attention in full or its causal half.
static inline double flops_of_model(const ModelConfig* m, int T, double batch, bool causal) {
    const double attention = (double)m->C * (2.0 * m->C + 2.0 * m->NKV * model_head_size(m));
    const double mlp = (double)m->C * (model_fc_size(m) + m->F),
                 weights = m->L * (attention + mlp) + (double)m->V * m->C;
    return batch * T * (6 * weights + (causal ? 6.0 : 12.0) * m->L * m->C * T);
}

// Korthikanti et al. 2022, table 2: bytes that one block keeps of a micro-batch, 16-bit values and one byte a mask of
// dropout, scores in memory (no FlashAttention). full: full recomputation keeps only the input, which sequence
// parallelism alone does not divide.
static inline double formula_block_bytes(const ModelConfig* m, int B, int T, int t, bool sequence_parallel,
                                         Recompute recompute) {
    const double x = (double)T * B * m->C, scores = recompute == RECOMPUTE_NONE ? 5.0 * m->NH * T / m->C : 0;
    if (recompute == RECOMPUTE_FULL) return 2 * x;
    return sequence_parallel ? x * (34 + scores) / t : x * (10 + (24 + scores) / t);
}

// The same with fused attention and without dropout, by the model's shapes: the inputs of both norms, q, k and v,
// attention's output, the first matrix's output. Norms and the activation function are computed again.
static inline double formula_fused_bytes(const ModelConfig* m, int B, int T, const ParallelConfig* parallel) {
    const double rows = 2.0 * B * T, qkv = m->C + 2.0 * m->NKV * model_head_size(m);
    if (parallel->recompute == RECOMPUTE_FULL) return rows * m->C;
    return rows * (2.0 * m->C / (parallel->sequence_parallel ? parallel->mesh.t : 1) +
                   (qkv + m->C + model_fc_size(m)) / parallel->mesh.t);
}

// The most chunks of micro-batches that a stage keeps at once (parallel/schedule.h).
static inline double formula_slots(const PipelineConfig* plan) {
    const double p = plan->p, v = plan->v, m = plan->m;
    switch (plan->kind) {
    case GPIPE: return m;
    case INTERLEAVED: return fmin(2 * (p - 1) + (v - 1) * p + 1, v * m);
    case ZB_V: return fmin(2 * p, 2 * m);
    case ONE_F_ONE_B:
    case ZB_H1: return fmin(p, m);
    case SCHEDULE_KINDS: break;
    }
    return m;
}

// A stage's. fused: the software has fused attention and no dropout.
static inline double formula_activation_bytes(const ModelConfig* m, int B, int T, const ParallelConfig* parallel,
                                              const PipelineConfig* plan, bool fused) {
    const double block =
        fused ? formula_fused_bytes(m, B, T, parallel)
              : formula_block_bytes(m, B, T, parallel->mesh.t, parallel->sequence_parallel, parallel->recompute);
    return formula_slots(plan) * m->L / plan->p / plan->v * block;
}
