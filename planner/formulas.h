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
#include "../parallel/traffic.h"

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

// The same for the first stage: with p micro-batches in flight it holds as much as all L blocks of one, for any p; (1 +
// (p - 1) / (p v)) times that where chunks are interleaved.
static inline double formula_activation_bytes(const ModelConfig* m, int B, int T, const Mesh* mesh) {
    const double more = mesh->v > 1 ? 1 + (mesh->p - 1) / ((double)mesh->p * mesh->v) : 1;
    return m->L * more * formula_block_bytes(m, B, T, mesh->t, mesh->sequence_parallel, mesh->recompute);
}

// Parameter, gradient, float32 copy and two moments of Adam: 18 bytes where gradients are float32 or are summed in 16
// bits, 20 where both exist. ZeRO-1 (Megatron's distributed optimizer) divides the last 12 (or, with both, 16 of the
// 20).
static inline double formula_optimizer_bytes(double parameters, bool both_gradients, bool zero, int d) {
    const double divided = both_gradients ? 16 : 12, kept = both_gradients ? 4 : 6;
    return parameters * (kept + divided / (zero ? d : 1));
}
