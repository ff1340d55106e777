/*
parallel/schedule_time.h: start and end of every action of a step, if all stages execute their tables and wait only for
messages and for buffers.

    schedule_times     the timeline of the tables of all stages, at the seconds of a Costs
    timeline_bubble    idle time / computing time of that timeline

Theory: a message is only ever in the buffers of its two ends: it departs when its send has been started and its receive
has been posted, whichever is later (a rendezvous). Times do not depend on the order in which stages are simulated: each
stage's own order is fixed and each message has one sender and one receiver.
*/
#pragma once

#include "schedule.h"

// Seconds of every kind of action on every virtual stage, (ACTION_KINDS, stages). A send's are its message's time in
// flight; starting it takes no time, and neither do receives. Actions without a chunk use the stage's chunk 0.
typedef struct {
    int stages; // virtual ones
    double* seconds;
} Costs;

static inline double* cost_of(const Costs* costs, ActionKind kind, int stage) {
    return &costs->seconds[kind * costs->stages + stage];
}

// All stages equal: seconds of a forward pass, of dgrad and of wgrad, of a message.
static inline Costs costs_equal(int stages, double forward, double input, double weight, double transfer) {
    Costs costs = {stages, NULL};
    costs.seconds = (double*)checked_calloc((size_t)ACTION_KINDS * (size_t)stages, sizeof(double), "the costs");
    for (int i = 0; i < stages; i++) {
        *cost_of(&costs, FORWARD, i) = forward;
        *cost_of(&costs, BACKWARD, i) = input + weight;
        *cost_of(&costs, BACKWARD_INPUT, i) = input;
        *cost_of(&costs, BACKWARD_WEIGHT, i) = weight;
        *cost_of(&costs, SEND_FORWARD, i) = *cost_of(&costs, SEND_BACKWARD, i) = transfer;
    }
    return costs;
}

static inline void costs_free(Costs* costs) {
    free(costs->seconds);
    memset(costs, 0, sizeof *costs);
}

typedef struct {
    int p;
    int* done;      // (p) actions done; fewer than in the table if the stage deadlocks
    double** start; // (p, n) when action i of stage r starts and ends, in seconds, for the actions done
    double** end;
    double length; // when the last one ends
} Timeline;

static inline void timeline_free(Timeline* timeline) {
    for (int r = 0; r < timeline->p; r++) {
        free(timeline->start[r]);
        free(timeline->end[r]);
    }
    free(timeline->start);
    free(timeline->end);
    free(timeline->done);
    memset(timeline, 0, sizeof *timeline);
}

static inline Timeline timeline_new(const Schedule* stages, int p) {
    Timeline timeline = {p, NULL, NULL, NULL, 0};
    timeline.done = (int*)checked_calloc((size_t)p, sizeof(int), "the timeline");
    timeline.start = (double**)checked_calloc((size_t)p, sizeof(double*), "the timeline");
    timeline.end = (double**)checked_calloc((size_t)p, sizeof(double*), "the timeline");
    for (int r = 0; r < p; r++) {
        timeline.start[r] = (double*)checked_calloc((size_t)stages[r].n, sizeof(double), "the timeline");
        timeline.end[r] = (double*)checked_calloc((size_t)stages[r].n, sizeof(double), "the timeline");
    }
    return timeline;
}

// A micro-batch in a chunk.
typedef struct {
    int chunk, microbatch; // -1: none
} Item;

static inline Item item_of(Action action) {
    const Item item = {action.chunk, action.microbatch};
    return item;
}

static inline Item no_item(void) {
    const Item none = {-1, -1};
    return none;
}

static inline bool same_item(Item action, Item b) {
    return action.chunk == b.chunk && action.microbatch == b.microbatch;
}

// The state that a stage's progress depends on.
typedef struct {
    double now;                   // when its last action ended
    double* started;              // (4 kinds, v, m) when a transfer was started; INFINITY: not yet
    Item* output;                 // (slots) whose output is in the slot
    Item* sending;                // (v, PIPELINE_BUFFERS_PER_DIRECTION) whose gradient is in the send buffer
    double arrived[ACTION_KINDS]; // when it reached TIE and NORM, where stages meet; INFINITY: not yet
} StageProgress;

// The state of the simulation of all tables.
typedef struct {
    const Schedule* stages;
    const Costs* costs;
    StageProgress* progress; // (p)
    bool blocking;           // a send ends when its message has arrived
    int at_norm;             // stages that have reached NORM, and when the last of them did
    double norm;
} Simulation;

static inline void stage_progress_begin(StageProgress* progress, const Schedule* schedule) {
    const size_t items = (size_t)schedule->config.v * (size_t)schedule->config.m,
                 buffers = (size_t)schedule->config.v * PIPELINE_BUFFERS_PER_DIRECTION;
    progress->now = 0;
    progress->started = (double*)checked_malloc(4 * items * sizeof(double), "the timeline");
    progress->output = (Item*)checked_malloc((size_t)schedule->slots * sizeof(Item), "the timeline");
    progress->sending = (Item*)checked_malloc(buffers * sizeof(Item), "the timeline");
    for (size_t i = 0; i < 4 * items; i++) progress->started[i] = INFINITY;
    for (int i = 0; i < schedule->slots; i++) progress->output[i] = no_item();
    for (size_t i = 0; i < buffers; i++) progress->sending[i] = no_item();
    for (int i = 0; i < ACTION_KINDS; i++) progress->arrived[i] = INFINITY;
}

static inline double* transfer_started(const Simulation* sim, ActionKind kind, int stage, int chunk, int k) {
    const PipelineConfig* config = &sim->stages[0].config;
    return &sim->progress[stage].started[((kind - RECEIVE_FORWARD) * config->v + chunk) * config->m + k];
}

// The arrival time of a message between a virtual stage and the next or the one before: INFINITY if it has not
// departed; 0 if there is no such message.
static inline double message_time(const Simulation* sim, int from, int to, int k) {
    const PipelineConfig* config = &sim->stages[0].config;
    const int last = pipeline_last(config);
    if (k < 0 || from < 0 || to < 0 || from > last || to > last) return 0;
    const ActionKind send = to > from ? SEND_FORWARD : SEND_BACKWARD;
    const ActionKind receive = to > from ? RECEIVE_FORWARD : RECEIVE_BACKWARD;
    const double sent = *transfer_started(sim, send, pipeline_holder(config, from), from / config->p, k);
    const double posted = *transfer_started(sim, receive, pipeline_holder(config, to), to / config->p, k);
    return fmax(sent, posted) + *cost_of(sim->costs, send, from);
}

static inline Item* send_buffer(const StageProgress* progress, Action action) {
    return &progress->sending[action.chunk * PIPELINE_BUFFERS_PER_DIRECTION +
                              action.microbatch % PIPELINE_BUFFERS_PER_DIRECTION];
}

// When the last of the stages that meet at this action arrives: INFINITY if not all have.
static inline double meeting_time(const Simulation* sim, ActionKind kind) {
    const PipelineConfig* config = &sim->stages[0].config;
    const int first = pipeline_holder(config, 0), last = pipeline_holder(config, pipeline_last(config));
    if (kind == TIE) return fmax(sim->progress[first].arrived[TIE], sim->progress[last].arrived[TIE]);
    return sim->at_norm < config->p ? INFINITY : sim->norm;
}

// When action a of stage r can start: its message has arrived and its output buffer is free. INFINITY: not yet.
static inline double action_ready(Simulation* sim, int r, Action action) {
    StageProgress* progress = &sim->progress[r];
    const Schedule* schedule = &sim->stages[r];
    if (action.kind == TIE || action.kind == NORM) {
        if (action.kind == NORM) {
            sim->at_norm += progress->arrived[NORM] == INFINITY;
            sim->norm = fmax(sim->norm, progress->now);
        }
        progress->arrived[action.kind] = progress->now;
        return meeting_time(sim, action.kind);
    }
    double arrived = 0, free_again = 0;
    if (action.kind == FORWARD) {
        const int here = schedule_virtual_stage(schedule, action.chunk);
        const Item before = progress->output[action.slot];
        const int there = before.chunk < 0 ? -1 : schedule_virtual_stage(schedule, before.chunk);
        arrived = message_time(sim, here - 1, here, action.microbatch);
        free_again = message_time(sim, there, there + 1, before.microbatch);
    } else if (action_makes_input_gradient(action.kind)) {
        const int here = schedule_virtual_stage(schedule, action.chunk);
        arrived = message_time(sim, here + 1, here, action.microbatch);
        free_again = message_time(sim, here, here - 1, send_buffer(progress, action)->microbatch);
    }
    return fmax(progress->now, fmax(arrived, free_again));
}

// When action a of stage r, which starts at `start`, ends; INFINITY: not yet.
static inline double action_ends(const Simulation* sim, int r, Action action, double start) {
    const int here = schedule_virtual_stage(&sim->stages[r], (int)max_i64(action.chunk, 0));
    if (!action_transfers(action.kind)) return start + *cost_of(sim->costs, action.kind, here);
    *transfer_started(sim, action.kind, r, action.chunk, action.microbatch) = start;
    if (!sim->blocking || (action.kind != SEND_FORWARD && action.kind != SEND_BACKWARD)) return start;
    return message_time(sim, here, action.kind == SEND_FORWARD ? here + 1 : here - 1, action.microbatch);
}

static inline void action_done(StageProgress* progress, Action action, double end) {
    progress->now = end;
    if (action.kind == FORWARD) progress->output[action.slot] = item_of(action);
    if (action_makes_input_gradient(action.kind)) *send_buffer(progress, action) = item_of(action);
}

// Advances stage r as far as possible; returns whether it did anything.
static inline bool stage_advance(Simulation* sim, int r, Timeline* timeline) {
    const Schedule* schedule = &sim->stages[r];
    const int before = timeline->done[r];
    for (int i = before; i < schedule->n; i = ++timeline->done[r]) {
        const double start = action_ready(sim, r, schedule->actions[i]);
        const double end = start == INFINITY ? start : action_ends(sim, r, schedule->actions[i], start);
        if (end == INFINITY) break;
        timeline->start[r][i] = start;
        timeline->end[r][i] = end;
        action_done(&sim->progress[r], schedule->actions[i], end);
    }
    timeline->length = fmax(timeline->length, sim->progress[r].now);
    return timeline->done[r] > before;
}

// The timeline of the tables of all p stages. blocking: every send waits for its message to arrive.
static inline Timeline schedule_times(const Schedule* stages, int p, const Costs* costs, bool blocking) {
    Timeline timeline = timeline_new(stages, p);
    Simulation sim = {stages, costs, NULL, blocking, 0, 0};
    sim.progress = (StageProgress*)checked_calloc((size_t)p, sizeof(StageProgress), "the timeline");
    for (int r = 0; r < p; r++) stage_progress_begin(&sim.progress[r], &stages[r]);
    // Times do not depend on the order of the stages: up as forward passes hand over, then down as backward ones.
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < p; r++) moved = stage_advance(&sim, r, &timeline) || moved;
        for (int r = p - 1; r >= 0; r--) moved = stage_advance(&sim, r, &timeline) || moved;
    }
    for (int r = 0; r < p; r++) {
        free(sim.progress[r].started);
        free(sim.progress[r].output);
        free(sim.progress[r].sending);
    }
    free(sim.progress);
    return timeline;
}

// Idle time / computing time, over all stages and the whole step.
static inline double timeline_bubble(const Schedule* stages, const Timeline* timeline) {
    double computing = 0;
    for (int r = 0; r < timeline->p; r++) {
        for (int i = 0; i < timeline->done[r]; i++) {
            if (action_computes(stages[r].actions[i].kind)) computing += timeline->end[r][i] - timeline->start[r][i];
        }
    }
    return (timeline->p * timeline->length - computing) / computing;
}
