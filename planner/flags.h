/*
flags.h: --mesh auto. The trainer asks the planner which mesh it should take for the ranks that were started, and goes on as
if that had been said on the command line.

    scripts/mpirun.sh -np 8 ./train_gpt --mesh auto                            some cluster that the device's name fits, or these cores
    scripts/mpirun.sh -np 8 ./train_gpt --mesh auto --cluster machine.txt      a machine that build/calibrate has measured; more exact

What is said is kept: --tp 2 --mesh auto looks at meshes with t = 2 only. One rank searches, all take its choice.

Cores that nobody has measured get round numbers: each reaches 0.75 of the peak that the trainer measures, and 5 GB/s to memory
and between ranks. That tells how much work and traffic a mesh makes, which is what tells meshes apart; not how long a step takes.
*/
#ifndef FLAGS_H
#define FLAGS_H

#include "../trainer/settings.h"
#include "search.h"

// The machines, and what was measured of them; they have to stay where they are.
typedef struct {
    Cluster cluster;
    Measured measured;
} Machines;

// Known by name, or from a file, which may be one of a measured machine.
static inline bool machines_open(Machines* x, const char* what, Error* error) {
    char names[400];
    measured_init(&x->measured);
    if (cluster_find(&x->cluster, what)) return true;
    if (!strchr(what, '/') && access(what, F_OK) != 0)
        return fail(error, "--cluster %s is neither a file nor one of %s", what, cluster_names(names, sizeof names));
    return measured_read_cluster(&x->cluster, &x->measured, what, error);
}

// Cores that nobody has measured: so many on a machine, with so many FLOP/s and bytes of memory together, for n ranks there.
static inline void machines_of_cores(Machines* x, int cores, double peak, double memory, int ranks) {
    const double computing = fmin(cores, ranks), slow = 5e9;
    Cluster* c = &x->cluster;
    measured_init(&x->measured);
    *c = cluster_empty("these cores", GENERATION_AMPERE);
    c->cores = cores, c->node_gpus = ranks, c->nics = 1;
    c->device.peak = c->device.peak_fp32 = peak / computing, c->device.memory = memory, c->device.hbm = slow,
    c->device.sms = 1;
    c->device.gemm_fraction = 0.75, c->device.sustained = c->device.hbm_fraction = 1;
    c->device.launch = c->device.tile_overhead = 1e-6;
    c->nvlink = c->nic = slow, c->nvlink_fraction = c->nic_fraction = 1;
    c->nvlink_step = 20e-6, c->nic_step = 50e-6, c->overlap_cost = 1;
    for (int i = 0; i < 4; i++) c->device.attention[i / 2][i % 2] = 0.4;
}

// The cluster whose device has this name, such as "NVIDIA H100 80GB HBM3", with `ranks` on a machine.
static inline bool machines_of_device(Machines* x, const char* name, double memory, int ranks, Error* error) {
    static const char* const others[] = {"PCIe", "PCIE", "NVL", "Laptop"}; // slower ones of the same name
    static const char* const words[][2] = {
        {"H200", "dgx-h200"}, {"H100", "dgx-h100"}, {"GB200", "gb200"}, {"B200", "dgx-b200"}, {"A100", "dgx-a100"}};
    char names[400];
    bool other = false;
    measured_init(&x->measured);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) other = other || strstr(name, others[i]);
    for (size_t i = 0; i < sizeof words / sizeof words[0] && !other; i++) {
        if (!strstr(name, words[i][0])) continue;
        const bool small = strcmp(words[i][0], "A100") == 0 && memory < 60e9;
        if (!cluster_find(&x->cluster, small ? "dgx-a100-40" : words[i][1])) break;
        x->cluster.node_gpus = ranks, x->cluster.nics = (int)min_i64(x->cluster.nics, ranks);
        x->cluster.device.memory = memory;
        return true;
    }
    return fail(error,
                "--mesh auto does not know %s: say with --cluster what it is like, %s or a file of data-sheet figures",
                name, cluster_names(names, sizeof names));
}

// What the planner does not know about is settled by hand.
static inline bool choose_check(const Settings* o, Error* error) {
    const char* what = o->dp_mode != DP_SYNC          ? "dp-mode"
                       : o->sites > 1                 ? "sites"
                       : o->first_layers              ? "first-layers"
                       : o->last_layers               ? "last-layers"
                       : o->whole_boundary            ? "whole-boundary"
                       : o->allreduce                 ? "allreduce"
                       : o->sync < 1 || o->sync_ranks ? "sync"
                                                      : NULL;
    return !what ||
           fail(error, "--mesh auto does not know --%s: say --tp, --pp, --dp and what belongs to them yourself", what);
}

// Where no batch was said: 16 sequences or more, so many that every rank can have a micro-batch.
static inline int64_t choose_batch(const Settings* o, int ranks) {
    return (int64_t)round_up(16, (size_t)(ranks * max_i64(1, o->micro_batch)));
}

// What was said on the command line is settled.
static inline Question choose_question(const Settings* o, Option* table, int n, const ModelConfig* model, int T,
                                       int ranks, const Cluster* cluster, const Software* software) {
    Question q;
    memset(&q, 0, sizeof q);
    q.model = *model, q.T = T, q.ranks = ranks, q.cluster = cluster, q.software = software;
    q.batch = o->global_batch ? o->global_batch : choose_batch(o, ranks);
    q.clip = o->clip > 0 || o->on_nan == ON_NAN_SKIP, q.rows = 2;
    q.t = option_given(table, n, "tp") ? (int)o->tp : 0, q.p = option_given(table, n, "pp") ? (int)o->pp : 0;
    q.d = (int)o->dp, q.v = (int)o->vp, q.B = (int)o->micro_batch;
    q.schedule = option_given(table, n, "schedule") ? o->schedule : o->vp > 1 ? (int)INTERLEAVED : ANY;
    q.zero = option_given(table, n, "zero") ? (int)o->zero : ANY;
    q.recompute = option_given(table, n, "recompute") ? o->recompute : ANY;
    q.sequence_parallel = o->sequence_parallel ? 1 : ANY;
    return q;
}

// What is chosen: what a rank tells the others.
typedef struct {
    Mesh mesh;
    int B;
    int64_t batch;
} Chosen;

static inline Chosen choose_take(const Choice* choice) {
    const Chosen chosen = {choice->setup.mesh, choice->setup.B, choice->setup.batch};
    return chosen;
}

// As if it had been said.
static inline void choose_settle(Settings* o, const Chosen* c) {
    const Mesh* m = &c->mesh;
    o->tp = m->t, o->pp = m->p, o->dp = m->d, o->vp = m->v, o->schedule = (int)m->schedule;
    o->zero = m->zero, o->recompute = (int)m->recompute, o->sequence_parallel = m->sequence_parallel;
    o->micro_batch = c->B, o->global_batch = c->batch;
    if (m->sites > 1) o->sites = m->sites;
}

// "t = 2, p = 1, d = 4, ..., micro-batches of 2"
static inline void choose_text(char* text, size_t size, const Chosen* c) {
    static const char* const recompute[] = {"", ", selective recomputation", ", full recomputation"};
    const Mesh* m = &c->mesh;
    char schedule[48] = "", zero[16] = "";
    if (m->p > 1 && m->v > 1) snprintf(schedule, sizeof schedule, ", %s, v = %d", schedule_name(m->schedule), m->v);
    if (m->p > 1 && m->v == 1) snprintf(schedule, sizeof schedule, ", %s", schedule_name(m->schedule));
    if (m->zero) snprintf(zero, sizeof zero, ", ZeRO-%d", m->zero);
    snprintf(text, size, "t = %d, p = %d, d = %d%s, micro-batches of %d%s%s%s", m->t, m->p, m->d, schedule, c->B,
             m->sequence_parallel ? ", sequence parallel" : "", zero, recompute[m->recompute]);
}

#endif
