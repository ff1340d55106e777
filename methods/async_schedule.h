/*
methods/async_schedule.h: the schedule of messages in asynchronous data parallelism, as a table. The d replicas are
divided into S sites (--sites): machines, rooms, coasts, with slow messages between them. Gradients are summed inside
each site in every step. The mode (--dp-mode) sets what sites exchange, and how late it is used:

    sync       the gradient; every step waits for it
    delayed    the gradient, used one step late: w(t+1) = w(t) - update(gradient at w(t-1)). All weights stay equal
    dc-s3gd    the change of the weights; the mean of all changes arrives while the next gradient is computed, which is
               compensated for that delay
    diloco     after H local steps, the distance from the global parameters; its mean is the gradient of an outer
               optimizer. In P fragments, each sent in its own step of the H, or eager, delayed by a whole period

The table has a row for every fragment: the steps in which it is sent and merged. It is drawn (async_schedule_draw),
priced (async_schedule_traffic) and executed (methods/async_dp.h) by the same functions, async_schedule_sends and
async_schedule_merges. With 1 <= P <= H and a delay of 0 to H steps, which settings_async ensures, every sum is merged
once, before the next one of its fragment is sent: at most one sum of a fragment is in flight.

    fragment 0   . . . s - - - m . . . s - - - m        H = 8, P = 2, merged 4 steps after it was sent
    fragment 1   . . . . . . . s - - - m . . . s

Theory: delayed is Pipe-SGD (Li et al. 2018) and the delayed parameter update of ZeRO-Offload (Ren et al. 2021). dc-s3gd
is Rigazzi 2019, arXiv 1911.02516; its structure here follows the abstract and texts of others. diloco is Douillard et
al. 2023, arXiv 2311.08105, with Nesterov's momentum; fragments are Streaming DiLoCo (Douillard et al. 2025, arXiv
2501.18512); eager is Kale et al. 2025, arXiv 2502.12996; top_k and error_decay are SparseLoCo (Sarfi et al. 2025, arXiv
2508.15706).
*/
#pragma once

#include "../kernels/outer_format.h"
#include "../parallel.h"
#include "../parallel/traffic.h"

typedef enum { DP_SYNC, DP_DELAYED, DP_DC_S3GD, DP_DILOCO, DP_MODES } DpMode;

static const char* const dp_mode_names[] = {"sync", "delayed", "dc-s3gd", "diloco"};

typedef struct {
    DpMode mode;
    int sites;
    int64_t period;      // H: the steps from one sending of a fragment to the next
    int64_t delay;       // a sum sent in step t is merged in step t + delay
    int fragments;       // P
    bool eager;          // merged when the next one is sent, completed by the site's local part
    int bits;            // of a number in a message: 32, 8, 4 or 2
    double compensation; // lambda0: the norm of the correction, in norms of the gradient; 0: none
    double outer_lr, outer_momentum;
    double mix;         // the weight of a site's local parameters in a merge
    int top_k;          // K: only the K largest of each 4096 numbers are sent; 0: all
    double error_decay; // the weight of what was not sent before, in what is sent
} AsyncConfig;

// The lambda of a tensor's compensation lambda g g D that is lambda0 times as long as the gradient g, from the sums of
// the squares of g and of g g D; 0 where there is nothing to correct.
static inline float compensation_lambda(double lambda0, double squares, double corrections) {
    const double lambda = lambda0 * sqrt(squares) / sqrt(corrections);
    return corrections > 0 && lambda < FLT_MAX ? (float)lambda : 0;
}

// Whether every site has local parameters, which differ from other sites' between outer steps.
static inline bool async_schedule_are_local(const AsyncConfig* config) {
    return config->mode == DP_DC_S3GD || config->mode == DP_DILOCO;
}

// Whether a site sends compressed numbers, to each of the others, and keeps the error.
static inline bool async_schedule_compresses(const AsyncConfig* config) {
    return config->bits < 32 || config->top_k > 0;
}

// The replicas whose gradients are summed.
static inline Scope async_schedule_scope(const AsyncConfig* config) {
    return async_schedule_are_local(config) ? SCOPE_SITE : SCOPE_WORLD;
}

// Whether communication of a step between sites may end in a later step.
static inline bool async_schedule_are_late(const AsyncConfig* config) { return config->mode != DP_SYNC; }

// The step of a period, 1 to H, in which fragment f is sent.
static inline int64_t async_schedule_place(const AsyncConfig* config, int f) {
    return (f + 1) * config->period / config->fragments;
}

// Whether fragment f is sent in step t (from 1): at its end, or, for a gradient, when it is complete.
static inline bool async_schedule_sends(const AsyncConfig* config, int f, int64_t t) {
    return t > 0 && t % config->period == async_schedule_place(config, f) % config->period;
}

// Whether the sum sent `delay` steps before is merged in step t, before anything is sent.
static inline bool async_schedule_merges(const AsyncConfig* config, int f, int64_t t) {
    return async_schedule_sends(config, f, t - config->delay);
}

// How often fragment f is sent in steps first + 1 to last.
static inline int64_t async_schedule_sendings(const AsyncConfig* config, int f, int64_t first, int64_t last) {
    const int64_t H = config->period, before = H - async_schedule_place(config, f);
    return (max_i64(0, last) + before) / H - (max_i64(0, first) + before) / H;
}

// Whether a sum of fragment f is in flight, or arrived and not merged, after step t.
static inline bool async_schedule_flies(const AsyncConfig* config, int f, int64_t t) {
    return async_schedule_sendings(config, f, t - config->delay, t) > 0;
}

// The last of `last` steps whose work the global parameters have, of all fragments. Later work, or work in flight, is
// lost to a run that ends here; an eager merge has a site's local part at once.
static inline int64_t async_schedule_learned(const AsyncConfig* config, int64_t last) {
    int64_t learned = last;
    for (int f = 0; f < config->fragments; f++) {
        const int64_t until = last - (config->eager ? 0 : config->delay), place = async_schedule_place(config, f);
        learned = min_i64(learned, until < place ? 0 : until - (until - place) % config->period);
    }
    return learned;
}

// The fragment of a tensor: blocks are dealt out, so each fragment has some of the lower and some of the upper ones;
// tensors before the blocks are in the first one, tensors after them in the last.
static inline int async_schedule_fragment(const AsyncConfig* config, const Tensor* tensor, int L) {
    if (tensor->layer < 0) return 0;
    return tensor->layer >= L ? config->fragments - 1 : tensor->layer % config->fragments;
}

// Refuses a stage of ZeRO that a mode does not go with.
static inline bool async_schedule_check_zero(DpMode mode, int zero, Error* error) {
    if (!zero || mode == DP_SYNC || (mode == DP_DELAYED && zero == 1)) return true;
    return fail(error, "--zero %d is incompatible with --dp-mode %s; %s", zero, dp_mode_names[mode],
                mode == DP_DELAYED ? "use --zero 1" : "drop --zero");
}

// Whether a model of L blocks has a block for every fragment.
static inline bool async_schedule_fit(const AsyncConfig* config, int L, Error* error) {
    if (config->fragments <= L) return true;
    return fail(error, "--fragments %d: the model has %d block%s to deal out; use fewer", config->fragments, L,
                L == 1 ? "" : "s");
}

// ----------------------------------------------------------------------------------------------------------------
// Bytes that this rank sends in the steps first + 1 to last, by formula, as parallel.h counts: k replicas in each of S
// sites.

// How many of the numbers from `at` to `next`, which belong to one slice of a bucket, are not padding. That stays 0.
static inline int64_t async_schedule_numbers(const Layout* layout, int bucket, int64_t at, int64_t next) {
    int i = layout->bucket[bucket].first + layout->bucket[bucket].slices - 1;
    while (layout->slices[i].offset > at) i--;
    const Slice* slice = &layout->slices[i];
    return max_i64(0, min_i64(next, slice->offset + slice->rows_used * slice->cols) - at);
}

// Bytes of this rank's site shard of a bucket, compressed. Every slice begins a new block or chunk (methods/async_dp.h
// says why).
static inline double compressed_bytes(const AsyncConfig* config, const Layout* layout, int bucket) {
    const int64_t end = bucket_site_shard_begin(layout, bucket) + bucket_site_shard_size(layout, bucket);
    int64_t bytes = 0;
    for (int64_t at = bucket_site_shard_begin(layout, bucket), next; at < end; at = next) {
        next = bucket_next_slice(layout, bucket, at, end);
        bytes += packed_bytes(async_schedule_numbers(layout, bucket, at, next), config->bits, config->top_k);
    }
    return (double)bytes;
}

// Bytes of a bucket each time that its fragment is sent. Gradients: see gradient_traffic. Weights: in float32 by an
// all-reduce, or compressed to every other site; then their sum goes to all members of the site.
static inline SiteTraffic async_schedule_sending(const AsyncConfig* config, const Layout* layout, int bucket) {
    const double S = config->sites, k = mesh_site_size(&layout->mesh), single = sizeof(float);
    const double n = (double)layout->bucket[bucket].elements;
    if (!async_schedule_are_local(config)) return gradient_traffic_of(&layout->mesh, n, 0, 1, 0);
    const bool compresses = async_schedule_compresses(config);
    const double sums = config->eager && compresses ? 2 : 1; // eager: also the rounded sum that was sent
    SiteTraffic traffic = {sums * (k - 1) / k * single * n, 2 * (S - 1) / S * single * n / k};
    if (compresses) traffic.inter_site = (S - 1) * compressed_bytes(config, layout, bucket);
    return traffic;
}

// Gradients: see gradient_traffic. Weights: gradients in the site as usual, and each fragment as often as it is sent.
// L: blocks of the model.
static inline SiteTraffic async_schedule_traffic(const AsyncConfig* config, const Layout* layout, int L, size_t element,
                                                 int64_t first, int64_t last) {
    const double steps = (double)(last - first), updates = steps - (config->mode == DP_DELAYED && first == 0);
    SiteTraffic traffic = gradient_traffic(layout, element, steps, updates);
    if (!async_schedule_are_local(config)) return traffic;
    traffic.inter_site = 0;
    for (int b = 0; b < layout->buckets; b++) {
        const Bucket* bucket = &layout->bucket[b];
        const int f = async_schedule_fragment(config, &layout->slices[bucket->first].tensor, L);
        const double times = (double)async_schedule_sendings(config, f, first, last);
        const SiteTraffic once = async_schedule_sending(config, layout, b);
        traffic.inter_site += times * once.inter_site;
        traffic.intra_site += times * once.intra_site;
    }
    return traffic;
}

// The mode and its schedule as text; "" for synchronous training.
static inline void async_schedule_text(char* text, size_t size, const AsyncConfig* config) {
    char of[32] = "", every[80] = "", bits[80] = "", compensated[48] = "", outer[96] = "";
    size_t used = 0;
    text[0] = 0;
    if (!async_schedule_are_late(config)) return;
    if (config->mode == DP_DILOCO) {
        snprintf(every, sizeof every, " in %d fragment%s every %lld steps", config->fragments,
                 config->fragments == 1 ? "" : "s", (long long)config->period);
        snprintf(outer, sizeof outer, ", outer rate %g, momentum %g, mix %g", config->outer_lr, config->outer_momentum,
                 config->mix);
    }
    if (config->top_k)
        used = (size_t)snprintf(bits, sizeof bits, ", the %d largest of %d", config->top_k, SPARSE_CHUNK);
    if (config->bits < 32)
        used += (size_t)snprintf(bits + used, sizeof bits - used, ", %d bits a number", config->bits);
    if (used && config->error_decay < 1)
        snprintf(bits + used, sizeof bits - used, ", error decay %g", config->error_decay);
    if (config->compensation > 0) snprintf(compensated, sizeof compensated, ", compensation %g", config->compensation);
    // A delayed gradient is the same on all sites, for any number of them.
    if (async_schedule_are_local(config))
        snprintf(of, sizeof of, " of %d site%s", config->sites, config->sites == 1 ? "" : "s");
    snprintf(text, size, "%s%s%s, merged %s%lld step%s later%s%s%s", dp_mode_names[config->mode], of, every,
             config->eager ? "eagerly " : "", (long long)config->delay, config->delay == 1 ? "" : "s", compensated,
             outer, bits);
}

// The table as text: s sends, m merges, x sends and merges at once, - in flight. Up to 64 steps of it; if two periods
// are longer, from the end of the first one on.
static inline void async_schedule_draw(const AsyncConfig* config, FILE* out) {
    const int64_t steps = min_i64(64, max_i64(8, 2 * config->period));
    const int64_t before = 2 * config->period > 64 ? max_i64(0, config->period - 32) : 0;
    for (int f = 0; f < config->fragments && f < 8; f++) {
        fprintf(out, f == 0 ? "outer     " : "          ");
        for (int64_t t = before + 1; t <= before + steps; t++) {
            const bool sends = async_schedule_sends(config, f, t), merges = async_schedule_merges(config, f, t);
            char letter = async_schedule_flies(config, f, t) ? '-' : '.';
            if (merges) letter = 'm';
            if (sends) letter = merges ? 'x' : 's';
            fputc(letter, out);
        }
        if (f == 0 && before) fprintf(out, "  steps %lld to %lld:", (long long)before + 1, (long long)(before + steps));
        if (f == 0)
            fprintf(out, "  s sends, m merges%s",
                    config->delay == 0 || config->delay == config->period ? ", x both" : "");
        fputc('\n', out);
    }
    if (config->fragments > 8) fprintf(out, "          ... %d fragments\n", config->fragments);
}
