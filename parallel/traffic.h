/*
parallel/traffic.h: the bytes that a rank sends in one step, by formula: traffic_of_step; for gradients between sites
gradient_traffic.

Theory: a collective counts as the bytes of a bandwidth-optimal algorithm. With x bytes in the whole vector and s ranks
an all-reduce sends 2 x (s - 1) / s, a reduce-scatter or an all-gather x (s - 1) / s, a message x. comm.h counts the
same way at run time, and the two agree to the byte. A block sends 8 N C (t - 1) / t elements a micro-batch
(Narayanan et al. 2021, section 3.2).
*/
#pragma once

#include "../parallel.h"

typedef struct {
    double layers;   // tensor group: sums in the blocks; more with recomputation and sequence parallelism
    double ends;     // tensor group: embedding, head, cross-entropy; gathering a received boundary; partial gradients
    double pipeline; // messages: N C, or N C / t with scatter-gather, per micro-batch and direction
    double tied;     // the embedding's gradient, first and last stage
    double data;     // gradients, 2 (d - 1) / d of them; with ZeRO a reduce-scatter, and an all-gather of parameters
} Traffic;

// The tensor group's bytes per element of the residual stream (N, C) and micro-batch.
typedef struct {
    double block, embedding, head;
} StreamCost;

// Without sequence parallelism a block has two sums forward and two backward; the recomputed block needs only the
// first one. With it: 2 gathers and 2 scatters forward; backward 2 and 2, and 2 more gathers, because the matrices'
// inputs are kept as 1/t; the recomputed block needs 2 gathers and 1 scatter. CAAT-Net has the same four sums, of the
// shared channels, in float32 backward unless they are narrow; the whole stream at the embedding, in both directions,
// and nothing at the head.
static inline StreamCost traffic_of_stream(const Layout* layout, const ModelConfig* m, double element) {
    const ParallelConfig* parallel = &layout->parallel;
    const bool full = parallel->recompute == RECOMPUTE_FULL;
    const double t = parallel->mesh.t, sum = 2 * (t - 1) / t * element, half = sum / 2; // all-reduce; scatter or gather
    StreamCost cost = {(4 + (full ? 1 : 0)) * sum, sum, sum};
    if (parallel->sequence_parallel) {
        cost.block = (10 + (full ? 3 : 0)) * half;
        cost.embedding = 2 * half;
        cost.head = 3 * half;
    }
    if (parallel->caat.ranks > 0) {
        const double back = parallel->caat.narrow ? sum : sum * sizeof(float) / element;
        cost.block = (double)layout->shared / m->C * ((2 + (full ? 1 : 0)) * sum + 2 * back);
        cost.embedding = sum + back;
        cost.head = 0;
    }
    return cost;
}

// Bytes of gradients that the tensor group sums.
static inline double traffic_of_replicated(const Layout* layout) {
    double bytes = 0;
    for (int i = 0; i < layout->n; i++) {
        const Slice* slice = &layout->slices[i];
        const double copies = slice->copies;
        if (!needs_tp_grad_reduce(slice, &layout->parallel)) continue;
        bytes += 2 * (copies - 1) / copies * sizeof(float) * (double)slice_elements(slice);
    }
    return bytes;
}

// micro_batches of B sequences of T tokens. element: bytes of an activation or a parameter; gradients and statistics of
// rows are float32.
static inline Traffic traffic_of_step(const Layout* layout, const ModelConfig* m, int B, int T, int micro_batches,
                                      size_t element) {
    const ParallelConfig* parallel = &layout->parallel;
    const double value = (double)element, single = sizeof(float), t = parallel->mesh.t, d = parallel->mesh.d,
                 k = micro_batches;
    const double N = (double)B * T, x = N * m->C, first = layout->first_stage, last = layout->last_stage;
    const double reductions = parallel->zero == 2 ? k : 1; // a gradient is summed as often
    const StreamCost stream = traffic_of_stream(layout, m, value);
    // A chunk has a boundary on both sides, except at the model's ends. The tip of a V is inside the last rank.
    const bool tip = parallel->folded && parallel->mesh.pipeline == parallel->mesh.p - 1;
    const double boundaries = 2 * parallel->v - first - last, to_other_ranks = boundaries - 2 * tip;
    Traffic traffic = {k * layout->layers * stream.block * x, 0, 0, 0, 0};

    traffic.ends = k * x * (first * stream.embedding + last * stream.head);
    traffic.ends += k * last * 3 * N * 2 * (t - 1) / t * single; // cross-entropy: maximum; sum and target
    if (!parallel->sequence_parallel && parallel->scatter) traffic.ends += k * boundaries * (t - 1) / t * value * x;
    traffic.ends += (parallel->canonical ? parallel->canonical / d : reductions) * traffic_of_replicated(layout);

    const double parts = parallel->sequence_parallel || parallel->scatter ? t : 1;
    traffic.pipeline = k * to_other_ranks * x * layout->streams * value / parts;

    const Slice* wte = layout_slice(layout, -1, WTE);
    const double embedding = wte ? (double)layout->bucket[wte->bucket].elements : 0;
    if (embedding_is_split(layout, m)) traffic.tied = single * embedding / (parallel->zero ? d : 1);

    // Gradients are scattered; then they or parameters are gathered. With ZeRO-2 both uses of an embedding are reduced.
    traffic.data = (d - 1) / d * (single * reductions + (parallel->zero ? value : single)) * (double)layout->elements;
    if (m->tied && first && last && parallel->zero == 2 && !parallel->canonical)
        traffic.data += (d - 1) / d * single * k * embedding;
    return traffic;
}

// Bytes between replicas: in the site, and to other sites.
typedef struct {
    double intra_site, inter_site;
} SiteTraffic;

// Bytes that a rank sends in some steps for gradients that are summed over all replicas, k in each of S sites: a
// reduce-scatter and an all-gather in the site, an all-reduce of 1/k of them between sites.
static inline SiteTraffic gradient_traffic(const Layout* layout, double steps) {
    const double S = layout->parallel.mesh.sites, k = mesh_site_size(&layout->parallel.mesh);
    const double bytes = sizeof(float) * (double)layout->elements * steps;
    const SiteTraffic traffic = {2 * (k - 1) / k * bytes, 2 * (S - 1) / S * bytes / k};
    return traffic;
}
