/*
methods/async_schedule.h: the schedule of messages in asynchronous data parallelism. The d replicas are divided into S
sites (--sites): machines, rooms, coasts, with slow messages between them. Gradients are summed inside each site in
every step. The mode (--dp-mode) sets what sites exchange, and how late it is used:

    sync       the gradient; every step waits for it
    dc-s3gd    the change of the weights; the mean of all changes arrives while the next gradient is computed, which is
               compensated for that delay
    diloco     after H local steps, the distance from the global parameters; its mean is the gradient of an outer
               optimizer, for which all sites wait

The schedule is priced (async_schedule_traffic) and executed (methods/async_dp.h) by the same functions:

    dc-s3gd           s x x x x x x x        s sends, m merges, x merges what was sent a step before and sends
    diloco, H = 4     . . . x . . . x        x sends and merges at once

Theory: dc-s3gd is Rigazzi 2019, arXiv 1911.02516; its structure here follows the abstract and texts of others. diloco
is Douillard et al. 2023, arXiv 2311.08105, with Nesterov's momentum.
*/
#pragma once

#include "../parallel.h"
#include "../parallel/traffic.h"

typedef enum { DP_SYNC, DP_DC_S3GD, DP_DILOCO, DP_MODES } DpMode;

static const char* const dp_mode_names[] = {"sync", "dc-s3gd", "diloco"};

typedef struct {
    DpMode mode;
    int sites;
    int64_t period;      // H: the steps from one sending to the next
    double compensation; // lambda0: the norm of the correction, in norms of the gradient; 0: none
    double outer_lr, outer_momentum;
} AsyncConfig;

// The lambda of a tensor's compensation lambda g g D that is lambda0 times as long as the gradient g, from the sums of
// the squares of g and of g g D; 0 where there is nothing to correct.
static inline float compensation_lambda(double lambda0, double squares, double corrections) {
    const double lambda = lambda0 * sqrt(squares) / sqrt(corrections);
    return corrections > 0 && lambda < FLT_MAX ? (float)lambda : 0;
}

// Whether every site has local parameters, which differ from other sites'.
static inline bool async_schedule_is_local(const AsyncConfig* config) { return config->mode != DP_SYNC; }

// The replicas whose gradients are summed.
static inline Scope async_schedule_scope(const AsyncConfig* config) {
    return async_schedule_is_local(config) ? SCOPE_SITE : SCOPE_WORLD;
}

// A sum sent in step t is merged in step t + delay.
static inline int64_t async_schedule_delay(const AsyncConfig* config) { return config->mode == DP_DC_S3GD; }

// Whether sites send at the end of step t (from 1).
static inline bool async_schedule_sends(const AsyncConfig* config, int64_t t) {
    return t > 0 && t % config->period == 0;
}

// The last of `last` steps whose work the global parameters have. Later local steps are lost to a run that ends here.
static inline int64_t async_schedule_learned(const AsyncConfig* config, int64_t last) {
    return last - last % config->period;
}

// Bytes that a rank sends each time that sites exchange its n float32 numbers: an all-reduce between sites, whose sum
// then goes to all k members of the site.
static inline SiteTraffic async_schedule_sending(const Mesh* mesh, double n) {
    const double S = mesh->sites, k = mesh_site_size(mesh), bytes = sizeof(float) * n;
    const SiteTraffic traffic = {(k - 1) / k * bytes, 2 * (S - 1) / S * bytes / k};
    return traffic;
}

// Bytes that this rank sends in the steps first + 1 to last, by formula, as parallel.h counts: gradients as
// gradient_traffic says, with local parameters in the site alone, and the messages between sites.
static inline SiteTraffic async_schedule_traffic(const AsyncConfig* config, const Layout* layout, int64_t first,
                                                 int64_t last) {
    SiteTraffic traffic = gradient_traffic(layout, (double)(last - first));
    if (!async_schedule_is_local(config)) return traffic;
    const SiteTraffic once = async_schedule_sending(&layout->parallel.mesh, (double)layout->elements);
    const double times = (double)(last / config->period - first / config->period);
    traffic.intra_site += times * once.intra_site;
    traffic.inter_site = times * once.inter_site;
    return traffic;
}

// The mode and its schedule as text; "" for synchronous training.
static inline void async_schedule_text(char* text, size_t size, const AsyncConfig* config) {
    text[0] = 0;
    if (config->mode == DP_DC_S3GD)
        snprintf(text, size, "dc-s3gd of %d site%s, merged 1 step later", config->sites, plural(config->sites));
    if (config->mode == DP_DC_S3GD && config->compensation > 0)
        append_text(text, size, ", compensation %g", config->compensation);
    if (config->mode == DP_DILOCO)
        snprintf(text, size, "diloco of %d site%s every %lld steps, outer rate %g, momentum %g", config->sites,
                 plural(config->sites), (long long)config->period, config->outer_lr, config->outer_momentum);
}
