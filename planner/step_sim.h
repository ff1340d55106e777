/*
step_sim.h: the time of one training step on a mesh of a cluster, and its parts, by an event simulation of the tables of
parallel/schedule.h at the prices of step_prices.h.

    step_cost     seconds of a step and its parts; step_cost_with: with the tables and the timeline
    step_bound    a lower bound without tables, for search.h

Theory:

    events    every stage works through its real table (schedule_build). Its actions start by schedule_time.h's
              action_ready: when their message has arrived and their output buffer is free. A waiting stage is examined
              again when the other end of a transfer moves, so the simulation is O(actions)
    messages  run under computing; or (send_overlap false) a stage is blocked while its own leave
    sums      of gradients over the data group use a separate link, one bucket after another (parallel.h), each as soon
              as the last backward pass has made it; REDUCE waits for the unfinished ones. While a sum runs beside it,
              computing is slower by overlap_cost. ZeRO-1 and 2 scatter, and gather parameters after the update; ZeRO-2
              sums every micro-batch and has two buffers to wait for. If a software does not overlap sums, REDUCE takes
              as long as the whole sum
    end       TIE, NORM and UPDATE as in the tables
    sites     that wait sum their shards after the sums in the site. What late sites exchange is in flight beside
              computing (dc-s3gd), or all wait for it once in H steps (diloco): exchange_step

A step's seconds are divided into parts, means over the stages; per stage they add up to its seconds, as all work and
waiting of a stage is counted once:

    product, attention, memory    computing: matrix products; the attention core; other kernels
    tensor                        sums over the tensor group, as far as they are not hidden
    pipeline                      messages: blocked; waiting while the next message is in flight
    data                          waiting for sums of gradients; the slowdown of computing by concurrent sums; gathering
                                  parameters
    optimizer                     setting gradients to zero, their norm, the update
    bubble                        any other waiting, which is for other stages

On a machine with fewer cores than processes, speed[k] is the speed of each computing stage while k of the p compute.
*/
#pragma once

#include "formulas.h"
#include "step_prices.h"

// ---- Events -----------------------------------------------------------------------------------------------------

typedef enum {
    STEP_PRODUCT,
    STEP_ATTENTION,
    STEP_MEMORY,
    STEP_TENSOR,
    STEP_PIPELINE,
    STEP_DATA,
    STEP_OPTIMIZER,
    STEP_BUBBLE,
    STEP_PARTS
} StepPart;

static inline const char* step_part_name(int part) {
    static const char* const names[] = {"product",  "attention", "memory",    "tensor",
                                        "pipeline", "data",      "optimizer", "bubble"};
    return names[part];
}

// A stage while it works through its table.
typedef struct {
    int next;                 // action
    int waited;               // 1 + the action before which the stage waited for sums
    bool queued;              // to be examined
    double spent[STEP_PARTS]; // seconds; STEP_PRODUCT: all computing; STEP_TENSOR: sums of partial gradients
    double link_free;         // end of the started sums
    double buffer[2];         // ZeRO-2: the same for the last two buckets
    double* summed;           // (v) the same for each chunk's sums
    double tied_summed;
    bool running; // with shared cores: it computes; the remaining work, and since when
    double left, started;
} StageRun;

typedef struct {
    const Schedule* tables;
    const StepPrices* prices;
    const double* speed; // (p + 1) or NULL
    Simulation sim;      // as in parallel/schedule_time.h: messages, slots and meetings
    StageRun* stage;     // (p)
    int *queue, queued;  // stages to be examined
    Timeline* timeline;  // NULL: not kept
    double length;
} StepRun;

static inline void run_wake(StepRun* x, int r) {
    if (r < 0 || x->stage[r].queued) return;
    x->stage[r].queued = true;
    x->queue[x->queued++] = r;
}

// Computing from `start` to `end` beside sums; starts the sums of buckets that it completes. Returns its end.
static inline double run_beside_sums(StepRun* x, int r, Action a, double start, double end) {
    const StepPrices* p = x->prices;
    StageRun* g = &x->stage[r];
    const bool splits = p->segment && a.reduce && !p->whole_sum[0];
    if (!splits && g->link_free <= start) return end;
    const int here = schedule_virtual_stage(&x->tables[r], a.chunk);
    const Segment whole = {{1, 1}, 0, 0, 0, false};
    const Segment* list = splits ? p->segment + p->chunk[here].first : &whole;
    const int n = splits ? p->chunk[here].segments : 1, half = a.kind == BACKWARD_WEIGHT;
    if (n == 0) return end; // a chunk without blocks
    // Ranks that share cores add at their current speed. The last sums occur when all stages still have sums.
    const double slow = x->speed ? x->speed[p->plan.p] : 1;
    double at = start, rest = 1;
    for (int i = 0; i < n; i++) { // work of no segment (copies of stage buffers) belongs to the last one
        const double share = i == n - 1 ? rest : list[i].share[half], seconds = share * (end - start);
        rest -= share;
        if (p->plan.reduce_every && list[i].elements > 0 && g->buffer[0] > at) { // both buffers are in flight
            g->spent[STEP_DATA] += g->buffer[0] - at;
            at = g->buffer[0];
        }
        const double lost = p->overlap_cost * fmax(0, fmin(g->link_free, at + seconds) - at);
        g->spent[STEP_DATA] += lost;
        at += seconds + lost;
        if (list[i].elements <= 0) continue;
        g->spent[STEP_TENSOR] += list[i].partial;
        at += list[i].partial;
        g->link_free = fmax(g->link_free, at) + list[i].sum / slow;
        g->buffer[0] = g->buffer[1];
        g->buffer[1] = g->link_free;
        if (list[i].tied)
            g->tied_summed = g->link_free;
        else
            g->summed[a.chunk] = g->link_free;
    }
    return at;
}

// Attributes the waiting from `now` to `start` to a part.
static inline void run_count_wait(StepRun* x, int r, Action a, double wait) {
    const Schedule* s = &x->tables[r];
    double message = 0;
    if (wait <= 0) return;
    if (action_computes(a.kind) && action_receive(s, a) != ACTION_KINDS) {
        const ActionKind send = a.kind == FORWARD ? SEND_FORWARD : SEND_BACKWARD;
        const int from = schedule_virtual_stage(s, a.chunk) + (a.kind == FORWARD ? -1 : 1);
        message = fmin(wait, *cost_of(x->sim.costs, send, from));
    }
    x->stage[r].spent[STEP_PIPELINE] += message;
    x->stage[r].spent[STEP_BUBBLE] += wait - message;
}

// Moves the gathering of parameters, counted as part of the update, to the data part.
static inline void run_count_gather(StepRun* x, int r, Action a) {
    const StepPrices* p = x->prices;
    if (!p->gather || (a.kind != UPDATE && a.kind != UPDATE_TIED)) return;
    const int at = a.kind == UPDATE ? schedule_virtual_stage(&x->tables[r], a.chunk) : p->costs.stages + r;
    x->stage[r].spent[STEP_OPTIMIZER] -= p->gather[at];
    x->stage[r].spent[STEP_DATA] += p->gather[at];
}

// The end of an action without computing that begins at `start`; counts its time.
static inline double run_ends(StepRun* x, int r, Action a, double start) {
    StageRun* g = &x->stage[r];
    const Schedule* s = &x->tables[r];
    const int here = schedule_virtual_stage(s, (int)max_i64(a.chunk, 0));
    const double cost = *cost_of(x->sim.costs, a.kind, here);
    if (action_transfers(a.kind)) {
        const bool send = a.kind == SEND_FORWARD || a.kind == SEND_BACKWARD;
        const double end = action_ends(&x->sim, r, a, start) + (send && x->prices->standing ? cost : 0);
        run_wake(x, schedule_peer(s, a.kind, a.chunk));
        g->spent[STEP_PIPELINE] += end - start;
        return end;
    }
    const double product = a.kind == REDUCE && here == pipeline_last(&x->prices->plan) ? x->prices->deferred : 0;
    g->spent[a.kind == TIE ? STEP_DATA : STEP_OPTIMIZER] += cost - product;
    g->spent[STEP_PRODUCT] += product;
    run_count_gather(x, r, a);
    return start + cost;
}

// Before REDUCE and TIE: the sums have to be done.
static inline void run_wait_sums(StepRun* x, int r, Action a) {
    StageRun* g = &x->stage[r];
    double* now = &x->sim.progress[r].now;
    if ((a.kind != REDUCE && a.kind != TIE) || g->waited > g->next) return;
    g->waited = g->next + 1;
    double done = a.kind == REDUCE ? g->summed[a.chunk] : g->tied_summed;
    if (a.kind == REDUCE && x->prices->whole_sum)
        done = fmax(done, *now + x->prices->whole_sum[schedule_virtual_stage(&x->tables[r], a.chunk)]);
    if (a.kind == REDUCE && x->prices->after)
        done = fmax(done, *now) + x->prices->after[schedule_virtual_stage(&x->tables[r], a.chunk)];
    if (done > *now) {
        g->spent[STEP_DATA] += done - *now;
        *now = done;
    }
}

static inline void run_done(StepRun* x, int r, Action a, double start, double end) {
    StageRun* g = &x->stage[r];
    if (x->timeline) {
        x->timeline->start[r][g->next] = start;
        x->timeline->end[r][g->next] = end;
        x->timeline->done[r] = g->next + 1;
    }
    action_done(&x->sim, r, a, end);
    x->length = fmax(x->length, end);
    g->next++;
    for (int k = 0; (a.kind == TIE || a.kind == NORM) && k < x->prices->plan.p; k++) run_wake(x, k);
}

// Shared cores: stages run concurrently, each at speed[number of computing stages].
static inline bool action_takes_core(ActionKind kind) {
    return action_computes(kind) || kind == REDUCE || kind == UPDATE || kind == UPDATE_TIED;
}

// Runs stage r until it has to wait; with shared cores up to the next action that takes a core, or that can start only
// after `now`: *wake is then its time, if that is earlier.
static inline void run_stage(StepRun* x, int r, double now, double* wake) {
    StageRun* g = &x->stage[r];
    const Schedule* s = &x->tables[r];
    while (g->next < s->n && !g->running) {
        const Action a = s->actions[g->next];
        run_wait_sums(x, r, a);
        const double start = action_ready(&x->sim, r, a);
        if (start == INFINITY) return; // not before another stage has moved
        if (start > now) {
            *wake = fmin(*wake, start);
            return;
        }
        run_count_wait(x, r, a, start - x->sim.progress[r].now);
        const double cost = *cost_of(x->sim.costs, a.kind, schedule_virtual_stage(s, (int)max_i64(a.chunk, 0)));
        if (x->speed && action_takes_core(a.kind)) {
            g->running = true;
            g->started = start;
            g->left = cost;
        } else if (action_computes(a.kind)) {
            g->spent[STEP_PRODUCT] += cost;
            run_done(x, r, a, start, run_beside_sums(x, r, a, start, start + cost));
        } else {
            run_done(x, r, a, start, run_ends(x, r, a, start));
        }
    }
}

static inline void run_finish_shared(StepRun* x, int r, double now) {
    StageRun* g = &x->stage[r];
    const Action a = x->tables[r].actions[g->next];
    double end = now;
    g->running = false;
    g->spent[action_computes(a.kind) ? STEP_PRODUCT : STEP_OPTIMIZER] += now - g->started;
    if (action_computes(a.kind)) end = run_beside_sums(x, r, a, g->started, now);
    run_count_gather(x, r, a);
    run_done(x, r, a, g->started, end);
}

static inline void run_shared(StepRun* x) {
    const int p = x->prices->plan.p;
    double now = 0;
    for (;;) {
        double wake = INFINITY, next = INFINITY;
        int busy = 0;
        for (bool moved = true; moved;) { // one stage's action may let another one continue at the same time
            x->queued = 0;
            moved = false;
            for (int r = 0; r < p; r++) x->stage[r].queued = false;
            for (int r = 0; r < p; r++) {
                const int before = x->stage[r].next;
                run_stage(x, r, now, &wake);
                moved = moved || x->stage[r].next > before;
            }
        }
        for (int r = 0; r < p; r++) busy += x->stage[r].running;
        const double speed = busy ? x->speed[busy] : 1;
        for (int r = 0; r < p; r++) {
            if (x->stage[r].running) next = fmin(next, now + x->stage[r].left / speed);
        }
        next = fmin(next, wake);
        if (next == INFINITY) return;
        for (int r = 0; r < p; r++) {
            StageRun* g = &x->stage[r];
            if (!g->running) continue;
            const bool ends = now + g->left / speed <= next;
            g->left -= (next - now) * speed;
            if (ends) run_finish_shared(x, r, next);
        }
        now = next;
    }
}

static inline void run_begin(StepRun* x, const Schedule* tables, const StepPrices* prices, Timeline* timeline) {
    const int p = prices->plan.p;
    memset(x, 0, sizeof *x);
    x->tables = tables;
    x->prices = prices;
    x->timeline = timeline;
    x->stage = (StageRun*)checked_calloc((size_t)p, sizeof(StageRun), "a step");
    x->queue = (int*)checked_calloc((size_t)p, sizeof(int), "a step");
    x->sim.stages = tables;
    x->sim.costs = &prices->costs;
    x->sim.progress = (StageProgress*)checked_calloc((size_t)p, sizeof(StageProgress), "a step");
    for (int r = 0; r < p; r++) {
        StageRun* g = &x->stage[r];
        stage_progress_begin(&x->sim.progress[r], &tables[r]);
        g->summed = (double*)checked_calloc((size_t)prices->plan.v, sizeof(double), "a step");
        x->sim.progress[r].now = g->spent[STEP_OPTIMIZER] = prices->zero ? prices->zero[r] : 0;
    }
}

static inline void run_free(StepRun* x) {
    for (int r = 0; r < x->prices->plan.p; r++) {
        StageProgress* g = &x->sim.progress[r];
        free(g->started), free(g->output), free(g->sending), free(x->stage[r].summed);
    }
    free(x->sim.progress), free(x->stage), free(x->queue);
}

// Runs the tables of all stages to their ends; x->length and x->stage[].spent are the results.
static inline void run_step(StepRun* x) {
    const int p = x->prices->plan.p;
    if (x->speed) {
        run_shared(x);
    } else {
        double never = INFINITY;
        for (int r = p - 1; r >= 0; r--) run_wake(x, r);
        while (x->queued > 0) {
            const int r = x->queue[--x->queued];
            x->stage[r].queued = false;
            run_stage(x, r, INFINITY, &never);
        }
    }
    for (int r = 0; r < p; r++) {
        if (x->stage[r].next < x->tables[r].n) die("the schedule of stage %d waits for ever: a deadlock", r);
        x->stage[r].spent[STEP_BUBBLE] += x->length - x->sim.progress[r].now;
        if (x->timeline) x->timeline->length = x->length;
    }
}

// ---- The step ---------------------------------------------------------------------------------------------------

typedef struct {
    double seconds, parts[STEP_PARTS]; // means over the stages; they add up to seconds
    double bubble;                     // waiting for messages and other stages, relative to computing
    double flops;                      // per GPU or core, by equation 3
    double mfu;                        // the share of the peak, by model.h's count; 0 if the peak is not known
    double tokens_per_second;
    // Between sites: bytes of a rank, of the mean stage, and seconds in flight, a step; the waits of late sites for it.
    double sent, exchange, waits;
    // On request (step_cost_with), for drawings.
    Schedule* tables;
    Timeline timeline;
    int p;
} StepCost;

static inline void step_cost_free(StepCost* c) {
    if (c->tables) schedules_free(c->tables, c->p), timeline_free(&c->timeline);
    memset(c, 0, sizeof *c);
}

// Seconds of a micro-batch in a chunk by kind, for the table's passes (B and W, or whole).
static inline void chunk_parts(const StepPrices* x, int i, double parts[WORK_PARTS]) {
    const ChunkPrice* c = &x->chunk[i];
    const bool split = schedule_splits_backward(x->plan.kind) && x->plan.p > 0;
    parts_add(parts, c->forward.whole, 1);
    if (split) {
        parts_add(parts, c->backward.half[0], 1);
        parts_add(parts, c->backward.half[1], 1);
    } else {
        parts_add(parts, c->backward.whole, 1);
    }
}

// Means over the stages. Computing is divided in proportion to its prices.
static inline void step_parts(StepCost* cost, const StepRun* run) {
    const StepPrices* x = run->prices;
    const int p = x->plan.p;
    for (int r = 0; r < p; r++) {
        const double* spent = run->stage[r].spent;
        double parts[WORK_PARTS] = {0};
        for (int c = 0; c < x->plan.v; c++)
            chunk_parts(x, virtual_stage(p, schedule_is_folded(x->plan.kind), r, c), parts);
        const double computing = parts_sum(parts), scale = computing > 0 ? spent[STEP_PRODUCT] / computing : 0;
        for (int k = 0; k < WORK_PARTS; k++) cost->parts[k] += parts[k] * scale / p;
        cost->parts[STEP_TENSOR] += spent[STEP_TENSOR] / p;
        for (int k = WORK_PARTS; k < STEP_PARTS; k++) cost->parts[k] += spent[k] / p;
    }
}

static inline void step_rates(StepCost* cost, const StepSetup* s) {
    const double ranks = mesh_size(&s->parallel.mesh), tokens = (double)s->batch * s->T;
    const double devices = s->cluster->cores ? s->cluster->cores : ranks;
    const double computing = parts_sum(cost->parts);
    cost->bubble = computing > 0 ? (cost->parts[STEP_BUBBLE] + cost->parts[STEP_PIPELINE]) / computing : 0;
    cost->flops = flops_hardware(&s->model, s->T, (double)s->batch) / cost->seconds / devices;
    const double peak = device_peak(&s->cluster->device, s->software->value_bytes);
    cost->mfu = peak <= 0 ? 0 : tokens * model_flops_per_token(&s->model, s->T) / cost->seconds / devices / peak;
    cost->tokens_per_second = tokens / cost->seconds;
}

// The mean seconds of a step that takes `length` without the exchange between sites. dc-s3gd: the exchange goes on
// beside the next step, which waits for it at its norm. diloco: all wait for it, once in H steps.
static inline double exchange_step(const Exchange* x, double length) {
    if (x->config.mode == DP_DC_S3GD) return fmax(length, x->seconds + x->tail);
    if (x->config.mode == DP_DILOCO) return length + (x->seconds + x->merge) / (double)x->config.period;
    return length;
}

// keep: also the tables and the timeline. The setup has passed step_check, or at least pipeline_config_check.
static inline StepCost step_cost_with(const StepSetup* s, bool keep) {
    StepCost cost = {};
    StepPrices prices = step_prices(s);
    StepRun run;
    cost.p = prices.plan.p;
    Schedule* tables = schedules_build(&prices.plan);
    if (keep) cost.timeline = timeline_new(tables, cost.p);
    run_begin(&run, tables, &prices, keep ? &cost.timeline : NULL);
    run.speed = s->speed;
    run_step(&run);
    cost.waits = exchange_step(&prices.exchange, run.length) - run.length;
    if (cost.waits < 1e-9 * run.length) cost.waits = 0; // rounding
    cost.seconds = run.length + cost.waits;
    cost.exchange = prices.exchange.seconds / (double)prices.exchange.config.period;
    cost.sent = prices.exchange.bytes / (double)prices.exchange.config.period;
    step_parts(&cost, &run);
    cost.parts[STEP_DATA] += cost.waits;
    step_rates(&cost, s);
    run_free(&run);
    if (keep)
        cost.tables = tables;
    else
        schedules_free(tables, cost.p);
    step_prices_free(&prices);
    return cost;
}

static inline StepCost step_cost(const StepSetup* s) { return step_cost_with(s, false); }

// ---- A lower bound, without tables ------------------------------------------------------------------------------

// For one stage: its first work starts when its first chunk's input has passed all earlier stages; then all its work
// has to be done; then its last gradient has to pass the same stages back, except with split passes, where W passes may
// come last.
static inline double stage_bound(const StepPrices* x, int r) {
    const PipelineConfig* plan = &x->plan;
    const bool folded = schedule_is_folded(plan->kind), split = schedule_splits_backward(plan->kind);
    double fill = x->zero[0], drain = 0, work = 0, weights = 0, squares = 0, sums = 0;
    for (int i = 0; i < r; i++) {
        fill += *cost_of(&x->costs, FORWARD, i) + *cost_of(&x->costs, SEND_FORWARD, i);
        drain += *cost_of(&x->costs, SEND_BACKWARD, i + 1);
        drain += *cost_of(&x->costs, split ? BACKWARD_INPUT : BACKWARD, i);
    }
    for (int c = 0; c < plan->v; c++) {
        const int i = virtual_stage(plan->p, folded, r, c);
        const double both = *cost_of(&x->costs, BACKWARD_INPUT, i) + *cost_of(&x->costs, BACKWARD_WEIGHT, i);
        const double sends = *cost_of(&x->costs, SEND_FORWARD, i) + *cost_of(&x->costs, SEND_BACKWARD, i);
        work += plan->m * (*cost_of(&x->costs, FORWARD, i) + (split ? both : *cost_of(&x->costs, BACKWARD, i)));
        if (x->standing) work += (plan->m - 1) * sends; // the last send of a kind may be in fill or drain
        weights += split ? plan->m * *cost_of(&x->costs, BACKWARD_WEIGHT, i) : 0;
        squares += *cost_of(&x->costs, REDUCE, i);
        sums += x->whole_sum[i] + x->after[i];
    }
    // The last computation is the end of the first chunk's backward pass, whose bucket is not hidden before NORM.
    const ChunkPrice* c = &x->chunk[r];
    if (!x->whole_sum[r] && c->segments > 0)
        sums = fmax(sums, x->segment[c->first + c->segments - 1].sum + x->after[r]);
    const double alone = fmax(fill, x->zero[r]) + work;
    return fmax(alone + squares + sums, alone - weights + drain);
}

// Never above the seconds of step_cost (test_planner_step.c), for a search that skips choices that cannot be the best.
// (Shared cores only make stages slower, so the bound holds.)
static inline double step_bound(const StepSetup* s) {
    StepPrices x = step_prices(s);
    double longest = 0, update = 0;
    for (int r = 0; r < x.plan.p; r++) {
        double own = 0;
        longest = fmax(longest, stage_bound(&x, r));
        for (int c = 0; c < x.plan.v; c++)
            own += *cost_of(&x.costs, UPDATE, virtual_stage(x.plan.p, schedule_is_folded(x.plan.kind), r, c));
        update = fmax(update, own);
    }
    longest += *cost_of(&x.costs, NORM, 0) + update;
    for (int i = 0; i < ACTION_KINDS * x.costs.stages; i++) { // as fmax ignores NaNs
        if (!isfinite(x.costs.seconds[i])) longest = INFINITY;
    }
    longest = exchange_step(&x.exchange, longest);
    step_prices_free(&x);
    return longest;
}

// The bytes that a rank of a stage sends in a step, exactly (parallel.h). False, with the reason, if the mesh is
// invalid.
static inline bool step_traffic(const StepSetup* s, int stage, Traffic* traffic, Error* error) {
    ParallelConfig parallel = s->parallel;
    Layout layout;
    parallel.mesh.pipeline = stage;
    parallel.mesh.tensor = parallel.mesh.data = 0;
    memset(traffic, 0, sizeof *traffic);
    if (!layout_build(&layout, &s->model, parallel, s->T, error)) return false;
    *traffic =
        traffic_of_step(&layout, &s->model, s->B, s->T, (int)step_microbatches(s), (size_t)s->software->value_bytes);
    const AsyncConfig* async = &s->methods.async;
    if (parallel.mesh.sites > 1 || async_schedule_is_local(async)) { // the mean of a period
        const int64_t H = async->period;
        const SiteTraffic sites = async_schedule_traffic(async, &layout, H, 2 * H);
        traffic->data = (sites.intra_site + sites.inter_site) / (double)H;
    }
    layout_free(&layout);
    return true;
}
