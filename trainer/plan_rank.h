/*
trainer/plan_rank.h: what a rank will do, planned before the run begins, without its memory:

    the schedule    of training steps and of forward passes: built, and checked together with the other stages'
    sums            --allreduce on --topology: collectives as plans, checked too
    memory          whether there is room for the stage
*/
#pragma once

#include "../comm/collectives/collectives.h"
#include "../parallel/schedule_check.h"
#include "batch.h"
#include "print_plan.h"
#include "trainer.h"

// ---- The schedule -----------------------------------------------------------------------------------------------

static inline void check_schedule_or_die(const Schedule* stages, int p) {
    Error wrong;
    if (!schedule_check(stages, p, &wrong)) die("internal error: the schedule is wrong: %s", wrong.text);
}

// The schedules of all stages: of training steps, or without training of forward passes.
static inline Schedule* stages_build(const Trainer* t, const PipelineConfig* config) {
    if (settings_is_training(&t->settings)) return schedules_build(config);
    Schedule* stages = (Schedule*)checked_malloc((size_t)config->p * sizeof(Schedule), "the schedule");
    for (int i = 0; i < config->p; i++) stages[i] = schedule_build_untrained(config, i);
    return stages;
}

// Builds the schedule of this rank, checked together with the schedules of the other stages. Returns false if there is
// none for this number of micro-batches.
static inline bool plan_schedule(Trainer* t, const ModelConfig* model, const ParallelConfig* parallel, Error* error) {
    const Mesh* mesh = &parallel->mesh;
    const Settings* o = &t->settings;
    const int m = (int)(o->global_batch / mesh->d / o->micro_batch);
    const PipelineConfig config = {(ScheduleKind)o->schedule, mesh->p,    parallel->v, m,
                                   parallel->zero == 2,       model->tied};
    if (!pipeline_config_check(&config, parallel->recompute, error)) {
        const int group = schedule_group(config.kind, config.p);
        const Error why = *error;
        return m % group && fail(error, "%.800s; give --global-batch %lld", why.text,
                                 (long long)(m / group + 1) * group * o->micro_batch * mesh->d);
    }
    const Schedule none = {};
    Schedule* stages = stages_build(t, &config);
    check_schedule_or_die(stages, mesh->p);
    t->schedule = stages[mesh->pipeline];
    stages[mesh->pipeline] = none; // kept
    schedules_free(stages, mesh->p);
    return true;
}

// Checks the schedule of m forward passes, of a validation or an evaluation.
static inline void check_forward_schedule(const Trainer* t, int m) {
    const PipelineConfig* config = &t->schedule.config;
    if (m == 0) return;
    Schedule* stages = stages_build(t, config);
    for (int i = 0; i < config->p; i++) {
        const Schedule forward = schedule_build_forward(&stages[i], m);
        schedule_free(&stages[i]);
        stages[i] = forward;
    }
    check_schedule_or_die(stages, config->p);
    schedules_free(stages, config->p);
}

// Checks whole windows, and the last window of the validation and of each evaluation.
static inline void check_forward_schedules(const Trainer* t) {
    const int64_t window = window_sequences(t);
    const bool validates = settings_is_training(&t->settings) && t->settings.eval_every;
    const int64_t validated = validates ? validation_sequences(t) : 0;
    if (t->evaluations.count || validated >= window) check_forward_schedule(t, forward_window(t));
    check_forward_schedule(t, microbatches_in_turn(t, validated % window));
    for (int i = 0; i < t->evaluations.count; i++)
        check_forward_schedule(t, microbatches_in_turn(t, t->evaluations.item[i].rows % window));
}

// ---- Sums -------------------------------------------------------------------------------------------------------

// Builds the plans of the data group, or of the inter-site group, by an algorithm on a network: of an all-reduce, or of
// its halves, a reduce-scatter and an all-gather.
static inline bool build_allreduce(Trainer* t, bool inter_site, const char* algorithm, const char* topology,
                                   Error* error) {
    const Mesh* mesh = &t->stage.layout.parallel.mesh;
    const int replicas = inter_site ? mesh->sites : mesh_site_size(mesh);
    const bool halves = t->stage.layout.parallel.zero || (!inter_site && t->stage.grads.hierarchical);
    Plan* plans = inter_site ? t->inter_site_plans : t->data_plans;
    Network net;
    bool ok = true;
    if (!replicas_network(&net, topology, replicas, mesh->sites > 1 && !inter_site, error)) return false;
    for (int i = 0; i < PLAN_KINDS && ok; i++) {
        const PlanKind kind = (PlanKind)i;
        if ((kind == PLAN_ALL_REDUCE) == halves) continue;
        ok = collective_build(&plans[i], algorithm, kind, &net, error) && plan_check(&plans[i], &net, error);
    }
    network_free(&net);
    return ok;
}

// The plans of the sums between replicas, and between sites (comm/collectives/collectives.h): --allreduce on --topology
// for the data group, or, where every replica is a site, for the inter-site group. Without it groups on processors have
// a plan too, and asynchronous sites anywhere: they would call MPI's non-blocking all-reduce in place, which in Open
// MPI is a tree, up and then down, whose root sends and receives log2(n) times the vector.
static inline bool build_allreduces(Trainer* t, const Mesh* mesh, Error* error) {
    enum { MOST_REPLICAS = 128 }; // the table of more is large, and only --dry-run has as many on processors
    const Settings* o = &t->settings;
    if (o->allreduce && mesh->d == 1)
        return fail(error, "--allreduce %s: there is one replica (--dp 1), and nothing to sum", o->allreduce);
    for (int inter_site = 0; inter_site < 2; inter_site++) {
        const int replicas = inter_site ? mesh->sites : mesh_site_size(mesh);
        const bool named = o->allreduce && inter_site == (mesh->sites > 1 && mesh_site_size(mesh) == 1);
        const bool planned = (DEVICE_IS_HOST && replicas <= MOST_REPLICAS) || (inter_site && t->stage.async);
        const char* algorithm = planned ? algorithm_usual(replicas) : NULL;
        if (t->stage.layout.parallel.canonical) algorithm = "halving-doubling";
        if (named) algorithm = is_native(o->allreduce) ? NULL : o->allreduce;
        if (replicas > 1 && algorithm && !build_allreduce(t, inter_site, algorithm, named ? o->topology : NULL, error))
            return false;
    }
    return true;
}

// Plans the schedule, the stage and the all-reduces of this rank.
static inline bool plan_this_rank(Trainer* t, const ModelConfig* model, const ParallelConfig* parallel, int T,
                                  DtypeInfo type, Error* error) {
    const Settings* o = &t->settings;
    AsyncConfig async;
    if (!settings_async(&async, o, parallel->mesh.sites, error) || !plan_schedule(t, model, parallel, error) ||
        !parallel_check(parallel, model, T, error) ||
        !canonical_check(parallel, t->schedule.config.m, async.mode == DP_SYNC, o->allreduce, error) ||
        !stage_plan(&t->stage, model, *parallel, (int)o->micro_batch, T, &t->schedule, async_schedule_scope(&async),
                    type, error))
        return false;
    async_dp_plan(&t->stage, &async);
    t->stats_scope = t->stage.async ? SCOPE_SITE : SCOPE_WORLD;
    return !settings_is_training(o) || build_allreduces(t, &parallel->mesh, error);
}

// Takes the memory of the stage.
static inline void allocate_this_rank(Trainer* t) {
    stage_allocate(&t->stage);
    if (t->stage.async) async_dp_allocate(&t->stage);
}

static inline void free_this_rank(Trainer* t) {
    free_plan_of_rank(&t->stage);
    schedule_free(&t->schedule);
}

// ---- Memory -------------------------------------------------------------------------------------------------------

// Refuses a run that does not fit into the machine's memory, before any is allocated. group_bytes: NCCL's, if any.
static inline void check_memory(Trainer* t, double group_bytes) {
    double most[2] = {rank_bytes(t, &t->stage), group_bytes};
    comm_all_reduce(&t->world, most, 2, COMM_DOUBLE, COMM_MAX);
    const double there = device_free_bytes(), needed = most[0] * t->sharing;
    const ByteUnit unit = byte_unit(needed, true), group_unit = byte_unit(most[1], most[1] >= 1e9);
    Error error;
    if (most[1] > 0 && is_main(t))
        print_line("groups    NCCL takes %.1f %s of a GPU's memory", most[1] / group_unit.bytes, group_unit.name);
    check_all_ranks(t,
                    needed <= there ||
                        fail(&error,
                             "the run needs %.1f %s of memory, there are %.1f GB%s; use a smaller --micro-batch, "
                             "--seq or model, --recompute, or more ranks on more machines",
                             needed / unit.bytes, unit.name, there / 1e9, DEVICE_IS_HOST ? "" : " free"),
                    &error);
}
