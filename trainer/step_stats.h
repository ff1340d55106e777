/*
trainer/step_stats.h: what a step leaves for its report, agreed on by all ranks: the loss, the bubble, bytes, the peak
of memory, spans of a trace, and what is done about a loss or gradient that is not finite.
*/
#pragma once

#include "batch.h"
#include "logger.h"

// Whether the host's clock measures the work. The host runs ahead of a GPU and waits for it only where a trace is
// wanted, as that costs time.
static inline bool measures_time(const Trainer* t) { return DEVICE_IS_HOST || t->world.trace; }

// The time at which all work that was started is done.
static inline double time_of_work(const Trainer* t) {
    if (measures_time(t)) device_synchronize();
    return seconds_now();
}

// Records an action, from the arrival of its message on. Waiting inside the action (for the tensor and data groups, for
// other stages at TIE and NORM) is part of it.
static inline void trace_action(Trainer* t, Action action, double started) {
    char name[TRACE_NAME_BYTES];
    if (!t->world.trace) return;
    device_synchronize();
    if (action.chunk >= 0 && t->schedule.config.v > 1)
        snprintf(name, sizeof name, "chunk %d %s", action.chunk, action_name(action.kind));
    else
        snprintf(name, sizeof name, "%s", action_name(action.kind));
    trace_span(t->world.trace, "compute", name, action.microbatch, started, seconds_now());
}

// Whether this rank counts the losses of its replica: one rank does.
static inline bool counts_losses(const Stage* s) { return s->layout.last_stage && s->layout.parallel.mesh.tensor == 0; }

// Sums the statistics of a step over a site, sums_of_step and then seconds; then the loss over the sites, where
// stats_scope is all ranks. They become squares (tensors), loss; the seconds stay last.
static inline void reduce_step_stats(Trainer* t, double* sums) {
    const Layout* layout = &t->stage.layout;
    sum_over_site(&t->groups, sums, sums_of_step(layout) + 1);
    if (t->stats_scope == SCOPE_WORLD) sum_over(&t->groups.inter_site, sums + first_loss(layout), 1);
    canonical_sums(sums, layout);
}

// Idle time / computing time of a site's ranks in this step; NaN where the host's clock does not measure the work.
// computed: the seconds in which they computed, of all together.
static inline double step_bubble(const Trainer* t, double started, double computed) {
    const Mesh* mesh = &t->stage.layout.parallel.mesh;
    if (mesh->p == 1) return 0;
    if (!measures_time(t)) return (double)NAN;
    const double ranks = mesh_size(mesh) / mesh->sites;
    return fmax(0, (seconds_now() - started) * ranks / computed - 1);
}

// A loss or the gradient of a tensor (not_finite; -1: none) is not finite: ends the run, or skips the update. All ranks
// decide the same.
static inline void handle_nonfinite_step(Trainer* t, int not_finite) {
    const int tensors = t->stage.layout.tensors;
    const bool skips = t->settings.on_nan == ON_NAN_SKIP;
    Tensor* list = (Tensor*)checked_malloc((size_t)tensors * sizeof(Tensor), "the list of tensors");
    model_tensors(list, &t->stage.model);
    char text[1024];
    snprintf(text, sizeof text, "step %lld: the loss is %g, ", (long long)t->step + 1, t->loss);
    if (not_finite >= 0)
        append_text(text, sizeof text, "the gradient of %s is not finite; nothing was updated", list[not_finite].name);
    else
        append_text(text, sizeof text, "all gradients are finite; nothing was updated");
    free(list);
    t->skipped_in_row++;
    if (skips && t->skipped_in_row < MAX_SKIPPED_IN_ROW) {
        if (!is_main(t)) return;
        end_line();
        printf("skipped   %s\n", text);
        return;
    }
    if (skips) append_text(text, sizeof text, ". It is number %d in a row", MAX_SKIPPED_IN_ROW);
    append_text(text, sizeof text, ". Try a smaller --lr, a longer --warmup or a --clip");
    die_together(t, not_finite >= 0 ? t->stage.grads.scope : t->stats_scope, text);
}

// The bytes that this rank has sent so far.
static inline Bytes bytes_sent(const Trainer* t) {
    const ProcessGroups* g = &t->groups;
    const Bytes bytes = {comm_bytes(&g->tensor) + comm_bytes(&g->kv_heads),
                         comm_bytes(&g->pipeline) + comm_bytes(&g->embedding),
                         comm_bytes(&g->data) + comm_bytes(&g->inter_site), comm_bytes(&g->inter_site)};
    return bytes;
}

// The bytes that the ranks of the scope have sent since `before`, and, in place, the sum of their flags to stop: one
// exchange for both. In the scope of a site the bytes are this site's times the sites, which is exact where all sites
// have the same plan.
static inline Bytes bytes_all_ranks(Trainer* t, Bytes before, Scope scope, double* stop) {
    const Bytes now = bytes_sent(t);
    const double sites = scope == SCOPE_WORLD ? 1 : t->stage.layout.parallel.mesh.sites;
    double sums[5] = {now.tensor - before.tensor, now.pipeline - before.pipeline, now.data - before.data,
                      now.inter_site - before.inter_site, *stop};
    sum_over_site(&t->groups, sums, 5);
    if (scope == SCOPE_WORLD) sum_over(&t->groups.inter_site, sums, 5);
    *stop = sums[4];
    const Bytes bytes = {sites * sums[0], sites * sums[1], sites * sums[2], sites * sums[3]};
    return bytes;
}

// The largest device_peak_bytes of the ranks in stats_scope.
static inline int64_t peak_bytes(Trainer* t) {
    int64_t bytes = device_peak_bytes();
    Comm* axes[4] = {&t->groups.tensor, &t->groups.data, &t->groups.pipeline, &t->groups.inter_site};
    for (int i = 0; i < (t->stats_scope == SCOPE_SITE ? 3 : 4); i++) {
        const int64_t counted = axes[i]->size_bytes;
        comm_all_reduce(axes[i], &bytes, 1, COMM_INT64, COMM_MAX);
        axes[i]->size_bytes = counted;
    }
    return bytes;
}
