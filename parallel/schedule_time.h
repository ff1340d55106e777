/*
parallel/schedule_time.h: start and end of every action of a step, if all stages execute their tables and wait only for
messages and for buffers.

    schedule_times     the timeline of the tables of all stages, at the seconds of a Costs
    timeline_bubble    idle time / computing time of that timeline
    schedule_draw      the tables as text for a terminal

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

// The state that a stage's progress depends on.
typedef struct {
    double now;       // when its last action ended
    double* started;  // (4 kinds, v, m) when a transfer was started; INFINITY: not yet
    int* output;      // (slots) the item (action_item) whose output is in the slot; -1: none
    int* sending;     // (v, PIPELINE_BUFFERS_PER_DIRECTION) the micro-batch whose gradient is in the send buffer; -1
    double tie, norm; // when it reached TIE and NORM, where stages meet; INFINITY: not yet
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
    progress->output = (int*)checked_malloc((size_t)schedule->slots * sizeof(int), "the timeline");
    progress->sending = (int*)checked_malloc(buffers * sizeof(int), "the timeline");
    for (size_t i = 0; i < 4 * items; i++) progress->started[i] = INFINITY;
    memset(progress->output, -1, (size_t)schedule->slots * sizeof(int));
    memset(progress->sending, -1, buffers * sizeof(int));
    progress->tie = progress->norm = INFINITY;
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

static inline int* send_buffer(const StageProgress* progress, Action action) {
    return &progress->sending[action.chunk * PIPELINE_BUFFERS_PER_DIRECTION +
                              action.microbatch % PIPELINE_BUFFERS_PER_DIRECTION];
}

// When action a of stage r can start: its message has arrived and its output buffer is free, or all stages that meet at
// it have arrived. INFINITY: not yet.
static inline double action_ready(Simulation* sim, int r, Action action) {
    StageProgress* progress = &sim->progress[r];
    const Schedule* schedule = &sim->stages[r];
    const PipelineConfig* config = &schedule->config;
    double arrived = 0, free_again = 0;
    if (action.kind == TIE) {
        const int first = pipeline_holder(config, 0), last = pipeline_holder(config, pipeline_last(config));
        progress->tie = progress->now;
        return fmax(sim->progress[first].tie, sim->progress[last].tie);
    }
    if (action.kind == NORM) {
        sim->at_norm += progress->norm == INFINITY;
        progress->norm = progress->now;
        sim->norm = fmax(sim->norm, progress->now);
        return sim->at_norm < config->p ? INFINITY : sim->norm;
    }
    if (action.kind == FORWARD) {
        const int here = schedule_virtual_stage(schedule, action.chunk), before = progress->output[action.slot];
        const int there = before < 0 ? -1 : schedule_virtual_stage(schedule, before / config->m);
        arrived = message_time(sim, here - 1, here, action.microbatch);
        free_again = message_time(sim, there, there + 1, before % config->m);
    } else if (action_makes_input_gradient(action.kind)) {
        const int here = schedule_virtual_stage(schedule, action.chunk);
        arrived = message_time(sim, here + 1, here, action.microbatch);
        free_again = message_time(sim, here, here - 1, *send_buffer(progress, action));
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

static inline void action_done(const Simulation* sim, int r, Action action, double end) {
    StageProgress* progress = &sim->progress[r];
    progress->now = end;
    if (action.kind == FORWARD) progress->output[action.slot] = action_item(&sim->stages[r], action);
    if (action_makes_input_gradient(action.kind)) *send_buffer(progress, action) = action.microbatch;
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
        action_done(sim, r, schedule->actions[i], end);
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

// ---- The tables of a schedule as text for a terminal ---------------------------------------------------------------

static inline char action_letter(ActionKind kind) {
    if (kind == FORWARD) return 'F';
    return kind == BACKWARD_WEIGHT ? 'W' : 'B';
}

// Whether line i of n is left out: of more than `most` lines the first and last quarter of that are shown.
static inline bool is_left_out(int i, int n, int most) { return n > most && i >= most / 4 && i < n - most / 4; }

// F5; with several chunks F5a, F5b; with more chunks than letters F5.0, F5.1.
static inline int action_label(char* text, size_t size, const Schedule* schedule, Action action) {
    if (schedule->config.v > 26)
        return snprintf(text, size, "%c%d.%d", action_letter(action.kind), action.microbatch, action.chunk);
    const char chunk[2] = {schedule->config.v > 1 ? (char)('a' + action.chunk) : '\0', '\0'};
    return snprintf(text, size, "%c%d%s", action_letter(action.kind), action.microbatch, chunk);
}

// Writes one action into a line of `cell` characters per unit of time: F5, B5---.
static inline void schedule_draw_action(char* line, int cell, const Schedule* schedule, Action action, int start,
                                        int end) {
    char text[32];
    memset(line + start * cell, end - start > 1 ? '-' : ' ', (size_t)((end - start) * cell - 1));
    line[end * cell - 1] = ' ';
    const int n = action_label(text, sizeof text, schedule, action);
    memcpy(line + start * cell, text, (size_t)n);
}

// Draws tables that pass schedule_check over time, as in Narayanan et al. 2021, Figure 4: a line per stage, a forward
// pass 1 unit of time, a whole backward pass 2 units, dgrad or wgrad 1 unit. Lines have at most `columns` characters,
// and at most 110: a longer step is cut in the middle, and so are more than 64 stages.
static inline void schedule_draw(const Schedule* stages, int p, int columns, FILE* out) {
    enum { MOST = 64 };
    const bool chunks = stages[0].config.v > 1;
    const int width = columns < 110 ? columns : 110, label = snprintf(NULL, 0, "stage %d  ", p - 1);
    const Action widest = {FORWARD, stages[0].config.v - 1, stages[0].config.m - 1, 0, false};
    const int cell = action_label(NULL, 0, &stages[0], widest) + 1;
    Costs costs = costs_equal(p * stages[0].config.v, 1, 1, 1, 0);
    Timeline timeline = schedule_times(stages, p, &costs, false);
    const int units = (int)timeline.length,
              half = width < label + 5 + 2 * cell ? 1 : (width - label - 5) / cell / 2; // 5: "... " and "|"
    const bool cut = label + units * cell + 1 > width;
    char* line = (char*)checked_malloc((size_t)(units * cell) + 1, "drawing the schedule");
    for (int r = 0; r < p; r++) {
        const Schedule* schedule = &stages[r];
        if (is_left_out(r, p, MOST)) {
            if (!is_left_out(r - 1, p, MOST)) fprintf(out, "...\n");
            continue;
        }
        for (int i = 0; i < units * cell; i++) line[i] = i % cell == 0 ? '.' : ' ';
        for (int i = 0; i < timeline.done[r]; i++) {
            if (action_computes(schedule->actions[i].kind))
                schedule_draw_action(line, cell, schedule, schedule->actions[i], (int)timeline.start[r][i],
                                     (int)timeline.end[r][i]);
        }
        fprintf(out, "stage %-*d", label - 6, r);
        if (cut) fprintf(out, "%.*s... ", half * cell, line);
        fprintf(out, "%.*s|\n", (cut ? half : units) * cell, cut ? line + (units - half) * cell : line);
    }
    fprintf(out, "%*sF forward  B backward  W its weight half  %s. idle", label, "", chunks ? "a b chunks  " : "");
    if (width < 110) fprintf(out, "\n%*s", label - 2, "");
    fprintf(out, "  %send: bubble %.1f %% of the work\n", width < 110 ? "" : "| ",
            100 * timeline_bubble(stages, &timeline));
    free(line);
    timeline_free(&timeline);
    costs_free(&costs);
}
