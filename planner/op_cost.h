/*
op_cost.h: seconds of an operation, and of a list of operations (ops.h), on a device of a cluster (cluster.h).

    rates_of        a cluster and a software, on which all prices depend
    op_seconds      one operation; all prices come through it
    work_price      a list, by WorkPart: as a whole, and divided into the B and W passes

Theory: prices without measurements; products n x m with sums of k, on a device of S multiprocessors (SMs):

    product      in tiles, of one of six sizes, in waves over the SMs, w = ceil(tiles / S), the last of which may be
                 nearly empty; a tile of r x c takes 2 r c k / (rate of an SM) + tile_overhead. At least the time of
                 reading and writing all three matrices; plus a launch. The fastest of all tiles, and of k cut into 1,
                 2, 4, 8 parts where tiles are few. 8192^3 runs at 247 TFLOP/s on an A100 and 661 on an H100
    memory       launch + bytes / (hbm x hbm_fraction x kernels)
    attention    a fraction of the peak by head size, times T / (T + start): tiles on the diagonal, and prologues, cost
                 a constant time, that of 500 tokens forward and 1200 backward on an H100
    collective   comm_cost.h

A core of a machine without GPUs has no multiprocessors (sms 0), so neither tiles nor waves: a product takes a launch
and its FLOPs. A rank has the rates of as many cores as it has threads. calibrate.py finds such a machine's rates.
*/
#pragma once

#include "ops.h"

// ---- Prices: seconds of one operation ---------------------------------------------------------------------------

// Libraries' tiles for products, and their speed relative to the largest: a small one loads more per FLOP.
// Estimates, after the pattern of NVIDIA's guide to matrix products.
typedef struct {
    int rows, columns;
    double speed;
} ProductTile;
static const ProductTile product_tiles[] = {{256, 128, 1.00}, {128, 256, 1.00}, {128, 128, 0.95},
                                            {256, 64, 0.88},  {128, 64, 0.80},  {64, 64, 0.60}};
enum { PRODUCT_TILES = sizeof product_tiles / sizeof product_tiles[0] };

// The peak for a software's values: 16 bits, or float32.
static inline double device_peak(const Device* d, int value_bytes) { return value_bytes < 4 ? d->peak : d->peak_fp32; }

// batch products (m x k) (k x n) of values of value_bytes bytes.
static inline double product_seconds(const Device* d, int value_bytes, double m, double n, double k, double batch) {
    const double operands = value_bytes * batch * (m * k + k * n + m * n), memory = d->hbm * d->hbm_fraction;
    const double peak = device_peak(d, value_bytes);
    double best = d->sms ? INFINITY : 2 * batch * m * n * k / (peak * d->gemm_fraction * d->sustained);
    for (int i = 0; i < (d->sms ? PRODUCT_TILES : 0); i++) {
        const ProductTile* t = &product_tiles[i];
        const double tiles = batch * ceil(m / t->rows) * ceil(n / t->columns);
        const double rate = peak / d->sms * d->gemm_fraction * d->sustained * t->speed; // one SM's
        for (int split = 1; split <= 8; split *= 2) {
            if (split > 1 && (tiles >= 4.0 * d->sms || k < 1024.0 * split)) break;
            const double waves = ceil(tiles * split / d->sms), sum = ceil(k / split / 32) * 32;
            const double compute = waves * (2.0 * t->rows * t->columns * sum / rate + d->tile_overhead);
            const double bytes = operands + (split > 1 ? 8 * batch * m * n * split : 0); // partial sums in float32
            best = fmin(best, fmax(compute, bytes / memory));
        }
    }
    return d->launch + best;
}

// Fused attention. The start-up cost is a time, so a slower SM loses less; linear between head sizes. A head's
// rows are worked on 128 at a time, an SM each: where they are few, some SMs are idle in the last wave.
static inline double attention_seconds(const Device* d, int value_bytes, double flops, double seq, double head,
                                       double heads, bool backward) {
    static const double start_tokens[2] = {500, 1200}; // length at which half the rate is reached, on an H100
    const double low = d->attention[0][backward], high = d->attention[1][backward];
    const double fraction = low + (high - low) * fmin(1, fmax(0, (head - 64) / 64));
    const double peak = device_peak(d, value_bytes);
    if (!d->sms) return d->launch + flops / (peak * fraction * d->sustained);
    const double start = start_tokens[backward] * (peak / d->sms) / (989.4e12 / 132);
    const double waves = heads * ceil(seq / 128) / d->sms, uneven = fmax(1, ceil(waves) / waves);
    return d->launch + uneven * flops / (peak * fraction * d->sustained * seq / (seq + start));
}

// The inputs of prices besides the operation.
typedef struct {
    const Cluster* cluster;
    const Software* software;
    Device device; // a rank's: the cluster's, or as many cores as the rank has threads
    LinkCosts links;
} Rates;

static inline Rates rates_of(const Cluster* cluster, const Software* software, int threads) {
    Rates r = {};
    r.cluster = cluster;
    r.software = software;
    r.device = cluster->device;
    r.device.peak *= threads;
    r.device.peak_fp32 *= threads;
    r.device.hbm *= threads;
    return r;
}

// Seconds of an operation; every operation is priced here.
static inline double op_seconds(Rates* r, const Op* op) {
    const Cluster* c = r->cluster;
    const Device* d = &r->device;
    const int value_bytes = r->software->value_bytes;
    switch (op->kind) {
    case OP_PRODUCT: return product_seconds(d, value_bytes, op->m, op->n, op->k, op->batch);
    case OP_MEMORY: return d->launch + op->bytes / r->software->kernels / (d->hbm * d->hbm_fraction);
    case OP_ATTENTION:
        return attention_seconds(d, value_bytes, op->flops, op->seq, op->head, op->batch_heads, op->backward);
    case OP_COLLECTIVE: return link_seconds(link_cost(&r->links, c, op->collective, op->ranks, op->stride), op->bytes);
    }
    return NAN;
}

// The price of a collective outside lists.
static inline double collective_seconds(Rates* r, PlanKind kind, double bytes, int ranks, int stride) {
    const Op op = op_collective("collective", kind, bytes, ranks, stride);
    return ranks == 1 || bytes <= 0 ? 0 : op_seconds(r, &op);
}

// ---- Prices of lists --------------------------------------------------------------------------------------------

typedef enum { WORK_PRODUCT, WORK_ATTENTION, WORK_MEMORY, WORK_TENSOR, WORK_PARTS } WorkPart;

// Seconds of the B and W passes (a forward pass has only the first), by kind. whole: both as one pass, where
// collectives of one are hidden under the other's work.
typedef struct {
    double half[2][WORK_PARTS], whole[WORK_PARTS];
} WorkPrice;

static inline double parts_sum(const double parts[WORK_PARTS]) {
    double sum = 0;
    for (int i = 0; i < WORK_PARTS; i++) sum += parts[i];
    return sum;
}

static inline WorkPart op_part(const Op* op) {
    if (op->core) return WORK_ATTENTION;
    if (op->kind == OP_PRODUCT) return WORK_PRODUCT;
    return op->kind == OP_COLLECTIVE ? WORK_TENSOR : WORK_MEMORY;
}

// One after another. A hidden collective costs overlap_cost of the hidden time; the rest of it is exposed.
static inline WorkPrice work_price(Rates* r, const Work* w) {
    WorkPrice price = {};
    for (int i = 0; i < w->n; i++) {
        const Op* op = &w->op[i];
        const double seconds = op_seconds(r, op);
        double over = 0;
        for (int k = op->under; k >= 0 && k <= op->under_last; k++) over += op_seconds(r, &w->op[k]);
        price.half[op->weight][op_part(op)] += seconds;
        price.whole[op_part(op)] += seconds - (1 - r->cluster->overlap_cost) * fmin(seconds, over);
    }
    return price;
}

static inline void parts_add(double to[WORK_PARTS], const double from[WORK_PARTS], double times) {
    for (int i = 0; i < WORK_PARTS; i++) to[i] += times * from[i];
}

static inline void price_add(WorkPrice* to, const WorkPrice* from, double times) {
    for (int h = 0; h < 2; h++) parts_add(to->half[h], from->half[h], times);
    parts_add(to->whole, from->whole, times);
}
