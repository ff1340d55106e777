/*
parallel/schedule.h: the order of a step's work, one table of actions for every pipeline stage. The trainer executes the
tables, --dry-run and dev/plot show them, the tests verify them. Everything is a pure function without MPI and CUDA.

    schedules                 the table of schedules; --schedule, help, planner and tests iterate it
    pipeline_config_check     refuses a configuration that a schedule cannot serve
    schedule_build            the table of one stage for a training step; schedules_build: of all stages
    schedule_build_forward    forward passes only, for validation; schedule_build_untrained: for a run without training
    schedule_check.h          a proof from the tables of all stages
    schedule_time.h           start and end of every action, at given seconds; the tables as text

Theory:

The model is cut into p v virtual stages, one after another. Each of the p pipeline ranks, the stages, holds v of them,
its chunks. A step sends m micro-batches through all virtual stages and back and then updates the weights once.

    placement    p = 4    in a loop, v = 2             in a V, v = 2: first and last part on one stage
                          stage 0: 0, 4                stage 0: 0, 7
                          stage 1: 1, 5                stage 1: 1, 6
                          stage 2: 2, 6                stage 2: 2, 5
                          stage 3: 3, 7                stage 3: 3, 4

Every stage executes its own table from top to bottom. c is a chunk, k a micro-batch:

    FORWARD c k           forward pass; its activations fill a slot
    BACKWARD c k          backward pass, both gradients; the slot is free afterwards
    BACKWARD_INPUT c k    only the input gradient (dgrad): the virtual stage before waits for it
    BACKWARD_WEIGHT c k   only the weight gradients (wgrad): no stage waits for them; the slot is free afterwards

    RECEIVE_FORWARD c k   starts to receive the chunk's input into receive buffer k mod 2 of the chunk.
                          FORWARD waits for it and empties the buffer.
    SEND_FORWARD c k      starts to send the chunk's output out of the slot itself, where it stays until the slot's next
                          FORWARD, which waits until the message has gone.
    RECEIVE_BACKWARD c k  starts to receive the gradient of the chunk's output into receive buffer k mod 2 of the chunk.
                          BACKWARD or BACKWARD_INPUT waits for it and empties the buffer.
    SEND_BACKWARD c k     starts to send the gradient of the chunk's input out of send buffer k mod 2 of the chunk.
                          The backward pass of k + 2, which fills the buffer again, waits until the message has gone.

    REDUCE c              waits for the data-parallel sums of the chunk's gradients
    TIE                   sums the two gradients of a tied embedding that is on two stages
    NORM                  all stages meet: loss and norm of the whole gradient
    UPDATE c              optimizer on the chunk's parameters, without the tied embedding of TIE
    UPDATE_TIED           optimizer on the tied embedding of TIE

A message between two chunks of one stage is a copy, after its receive. Two receive buffers a chunk and direction let a
stage post receives ahead of their use: a message arrives while its receiver computes. The tables give messages no tags:
the n-th message of a direction from one stage to another meets the n-th receive posted for it. Messages of different
pairs of stages or directions must not block each other; the executor of the table has to ensure that (MPI does; CUDA
needs a stream for each).

A forward pass takes f seconds a micro-batch and chunk, the input-gradient and weight-gradient parts of a backward pass
b and w. The bubble is the stages' idle time relative to their computing time, for equal stages:

    gpipe        all forwards, then all backwards (Huang et al. 2019, "GPipe"). bubble (p - 1) / m; m slots.
    1f1b         first p - r - 1 forwards on stage r, until the first gradient can be in flight; then one forward and
                 one backward in turn; then the remaining backwards (Narayanan et al. 2020 and 2021, "Efficient
                 large-scale language model training on GPU clusters using Megatron-LM", section 2.2, Figure 4).
                 bubble (p - 1) / m; min(p - r, m) slots.
    interleaved  1F1B over chunks in a loop (the same paper): groups of p micro-batches go through chunk 0, 1, ... in
                 turn; chunks are shorter, so is the wait for the first. bubble (p - 1) / (v m);
                 min(2 (p - r - 1) + (v - 1) p + 1, v m) slots, each of 1/v of the size;
                 (p v - 1) / (p - 1) times the messages.
    zb-h1        1F1B with a split backward pass (Qi et al. 2024, "Zero bubble pipeline parallelism"): weight gradients
                 wait until a slot is needed, or until there is nothing else to do. Where w <= f and w <= b (a longer
                 wgrad delays other stages) bubble ((p - 1) (f + b) - min(p - 1, m - 1) w) / (m (f + b + w));
                 min(p, m) slots.
    zb-v         a split backward pass, and two chunks in a V (Qi et al. 2024, section 6): the stage that ends a forward
                 pass is the one that began it and has the gradients at once. At f = b = w stage r starts r f later
                 than stage 0 and, with m >= 2 p - 1, is never idle from then to its end. Since all wait for each other
                 at NORM that is still a bubble of max((p - 1) / (6 m), (4 p - 2 - 2 m) / (6 m));
                 min(2 p, 2 m, m + r + 1) slots, each of half the size; twice the messages.
*/
#pragma once

#include "../parallel.h"

enum { PIPELINE_BUFFERS_PER_DIRECTION = 2 }; // a chunk has as many to receive in each direction, and to send gradients
enum { SCHEDULE_LARGEST = 1 << 21 };         // p v m: some hundred megabytes of tables

// Indices into `schedules`, in its order.
typedef enum { GPIPE, ONE_F_ONE_B, INTERLEAVED, ZB_H1, ZB_V, SCHEDULE_KINDS } ScheduleKind;

// The input of a schedule's builder.
typedef struct {
    ScheduleKind kind;
    int p, v, m;       // stages; chunks of each; micro-batches
    bool reduce_every; // gradients go to the data-parallel reduction after every micro-batch (ZeRO-2 keeps only its
                       // shard of them), not once at the end
    bool tied;         // tied embedding: both embedding (first virtual stage) and head (last one)
} PipelineConfig;

typedef enum {
    FORWARD,
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    RECEIVE_FORWARD,
    SEND_FORWARD,
    RECEIVE_BACKWARD,
    SEND_BACKWARD,
    REDUCE,
    TIE,
    NORM,
    UPDATE,
    UPDATE_TIED,
    ACTION_KINDS // their number
} ActionKind;

typedef struct {
    ActionKind kind;
    int chunk;      // -1 for TIE, NORM and UPDATE_TIED
    int microbatch; // -1 for these, REDUCE and UPDATE
    int slot;       // FORWARD, SEND_FORWARD and the backward kinds use it; -1 for the others
    bool reduce;    // BACKWARD and BACKWARD_WEIGHT start the sum of gradients over replicas, as these get ready
} Action;

typedef struct {
    PipelineConfig config;
    int stage; // 0 .. p - 1
    int slots; // places for the activations of one micro-batch in one chunk
    int n;     // actions
    Action* actions;
} Schedule;

static inline const char* action_name(ActionKind kind) {
    static const char* const names[] = {"forward",
                                        "backward",
                                        "backward input half",
                                        "backward weight half",
                                        "receive forward",
                                        "send forward",
                                        "receive backward",
                                        "send backward",
                                        "reduce",
                                        "tie",
                                        "norm",
                                        "update",
                                        "update tied"};
    return (unsigned)kind < ACTION_KINDS ? names[kind] : "unknown action";
}

static inline bool action_is_backward(ActionKind kind) {
    return kind == BACKWARD || kind == BACKWARD_INPUT || kind == BACKWARD_WEIGHT;
}

static inline bool action_computes(ActionKind kind) { return kind == FORWARD || action_is_backward(kind); }

static inline bool action_transfers(ActionKind kind) { return kind >= RECEIVE_FORWARD && kind <= SEND_BACKWARD; }

// Which of the two gradients a backward action computes.
static inline bool action_makes_input_gradient(ActionKind kind) { return kind == BACKWARD || kind == BACKWARD_INPUT; }
static inline bool action_adds_weight_gradients(ActionKind kind) { return kind == BACKWARD || kind == BACKWARD_WEIGHT; }

// An action's micro-batch in its chunk, as a number.
static inline int action_item(const Schedule* schedule, Action action) {
    return action.chunk * schedule->config.m + action.microbatch;
}

// ----------------------------------------------------------------------------------------------------------------
// The schedules: the order of each one's forward and backward passes. Slots, messages and reductions follow from the
// order by the same code for all.

static inline void schedule_add(Schedule* schedule, ActionKind kind, int chunk, int microbatch) {
    const Action action = {kind, chunk, microbatch, -1, false};
    schedule->actions[schedule->n++] = action;
}

// Adds an action, or nothing for a micro-batch after the last one.
static inline void schedule_add_work(Schedule* schedule, ActionKind kind, int chunk, int microbatch) {
    if (microbatch < schedule->config.m) schedule_add(schedule, kind, chunk, microbatch);
}

static inline void order_gpipe(Schedule* schedule) {
    for (int k = 0; k < schedule->config.m; k++) schedule_add(schedule, FORWARD, 0, k);
    for (int k = 0; k < schedule->config.m; k++) schedule_add(schedule, BACKWARD, 0, k);
}

// A backward pass comes `warm` forwards after its own forward pass.
static inline void order_1f1b(Schedule* schedule) {
    const int m = schedule->config.m, warm = schedule->config.p - schedule->stage - 1;
    for (int n = 0; n < m + warm; n++) {
        if (n < m) schedule_add(schedule, FORWARD, 0, n);
        if (n >= warm) schedule_add(schedule, BACKWARD, 0, n - warm);
    }
}

// Item n of the work in groups: p micro-batches through chunk 0, the same through chunk 1, ...; then the next p. The
// last group may be smaller. In the backward pass chunks come in the opposite order.
static inline void order_grouped(Schedule* schedule, ActionKind kind, int n) {
    const int p = schedule->config.p, v = schedule->config.v, group = n / (p * v), first = group * p;
    const int size = (int)min_i64(p, schedule->config.m - first), within = n - group * p * v;
    const int chunk = within / size;
    schedule_add(schedule, kind, kind == FORWARD ? chunk : v - 1 - chunk, first + within % size);
}

// Narayanan et al. 2021, section 2.2: the first gradient arrives at stage r after p forwards of each chunk but the
// last, and two passes, a forward and a backward, of each of its p - r - 1 successors: so many forwards come first.
static inline void order_interleaved(Schedule* schedule) {
    const int p = schedule->config.p, v = schedule->config.v, all = schedule->config.m * v;
    const int warm = (int)min_i64(2 * (p - schedule->stage - 1) + (v - 1) * p, all);
    for (int n = 0; n < all + warm; n++) {
        if (n < all) order_grouped(schedule, FORWARD, n);
        if (n >= warm) order_grouped(schedule, BACKWARD, n - warm);
    }
}

// The order of 1F1B; a wgrad is scheduled when p slots are in use and the next forward pass needs one. After the last
// forward pass wgrads continue in the same rhythm and fill its place.
static inline void order_zb_h1(Schedule* schedule) {
    const int p = schedule->config.p, m = schedule->config.m, warm = p - schedule->stage - 1;
    int weights = 0; // weight gradients done
    for (int n = 0; n < m + warm; n++) {
        if (n - weights == p) schedule_add(schedule, BACKWARD_WEIGHT, 0, weights++);
        if (n < m) schedule_add(schedule, FORWARD, 0, n);
        if (n >= warm) schedule_add(schedule, BACKWARD_INPUT, 0, n - warm);
    }
    while (weights < m) schedule_add(schedule, BACKWARD_WEIGHT, 0, weights++);
}

// Input gradient, then weight gradients.
static inline void order_dgrad_wgrad(Schedule* schedule, int chunk, int k) {
    schedule_add_work(schedule, BACKWARD_INPUT, chunk, k);
    schedule_add_work(schedule, BACKWARD_WEIGHT, chunk, k);
}

// Qi et al. 2024. The order is optimal for f = b = w; with other times it stays correct, and schedule_times gives its
// bubble (Qi et al. search an order for measured times). It assumes enough micro-batches to fill the pipeline; work on
// those that do not exist is omitted. docs/schedules.md draws it.
static inline void order_zb_v(Schedule* schedule) {
    const int p = schedule->config.p, r = schedule->stage, m = (int)max_i64(schedule->config.m, 2 * p - 1);
    int forward[2] = {0, 0}, input[2] = {0, 0}, weight[2]; // done, by chunk
    // Down to the tip of the V and up again: the forwards before the first micro-batch returns to chunk 1.
    while (forward[0] < 2 * (p - r) - 1) schedule_add_work(schedule, FORWARD, 0, forward[0]++);
    // Micro-batch 0 has r stages to go in chunk 1 until its gradient begins: meanwhile a forward of each chunk in turn.
    for (int i = 0; i < r; i++) {
        schedule_add_work(schedule, FORWARD, 1, forward[1]++);
        schedule_add_work(schedule, FORWARD, 0, forward[0]++);
    }
    // The first gradients, of chunk 1, go down to the tip and up again to chunk 0.
    for (int i = r; i < p; i++) {
        schedule_add_work(schedule, FORWARD, 1, forward[1]++);
        order_dgrad_wgrad(schedule, 1, input[1]++);
    }
    // One of everything in turn.
    while (forward[1] < m) {
        if (forward[0] < m) schedule_add_work(schedule, FORWARD, 0, forward[0]++);
        order_dgrad_wgrad(schedule, 0, input[0]++);
        schedule_add_work(schedule, FORWARD, 1, forward[1]++);
        order_dgrad_wgrad(schedule, 1, input[1]++);
    }
    // The end: input gradients first, as other stages wait for them; weight gradients fill the time afterwards.
    memcpy(weight, input, sizeof weight);
    for (int i = 0; i < r; i++) {
        schedule_add_work(schedule, BACKWARD_INPUT, 0, input[0]++);
        schedule_add_work(schedule, BACKWARD_INPUT, 1, input[1]++);
    }
    for (int i = r; i < p; i++) {
        schedule_add_work(schedule, BACKWARD_INPUT, 0, input[0]++);
        schedule_add_work(schedule, BACKWARD_WEIGHT, 0, weight[0]++);
    }
    while (weight[1] < m) schedule_add_work(schedule, BACKWARD_WEIGHT, 1, weight[1]++);
    while (weight[0] < m) schedule_add_work(schedule, BACKWARD_WEIGHT, 0, weight[0]++);
}

// Bubbles for equal stages and f = b = w; the formulas are at the top of this file.
static inline double bubble_1f1b(double p, double v, double m) { return (p - 1) / (v * m); }
static inline double bubble_zb_h1(double p, double v, double m) {
    return (2 * (p - 1) - fmin(p - 1, m - 1)) / (3 * v * m);
}
static inline double bubble_zb_v(double p, double v, double m) { return fmax(p - 1, 4 * p - 2 - 2 * m) / (3 * v * m); }

// One row a schedule. A new one is a constant of ScheduleKind, an order function and a row here.
typedef struct {
    const char* name;
    void (*order)(Schedule*); // appends one stage's forward and backward passes
    bool folded;              // chunks are placed in a V, not in a loop
    bool splits_backward;     // the backward pass is split into BACKWARD_INPUT and BACKWARD_WEIGHT
    int chunks;               // a stage has as many by default (--vpp)
    bool grouped;             // supports more chunks, too, and takes micro-batches in groups of p
    double (*bubble)(double p, double v, double m);
} ScheduleRow;

static const ScheduleRow schedules[SCHEDULE_KINDS] = {
    // name, order, folded, splits_backward, chunks, grouped, bubble
    {"gpipe", order_gpipe, false, false, 1, false, bubble_1f1b},
    {"1f1b", order_1f1b, false, false, 1, false, bubble_1f1b},
    {"interleaved", order_interleaved, false, false, 2, true, bubble_1f1b},
    {"zb-h1", order_zb_h1, false, true, 1, false, bubble_zb_h1},
    {"zb-v", order_zb_v, true, true, 2, false, bubble_zb_v},
};

static inline const char* schedule_name(ScheduleKind kind) { return schedules[kind].name; }

// Returns "gpipe|1f1b|...", for a command line.
static inline const char* schedule_choices(void) {
    static char text[128];
    if (text[0]) return text;
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) append_choice(text, sizeof text, schedules[kind].name);
    return text;
}

static inline int schedule_usual_chunks(ScheduleKind kind) { return schedules[kind].chunks; }
static inline bool schedule_is_folded(ScheduleKind kind) { return schedules[kind].folded; }
static inline bool schedule_splits_backward(ScheduleKind kind) { return schedules[kind].splits_backward; }

// The number of micro-batches has to be a multiple of this.
static inline int schedule_group(ScheduleKind kind, int p) { return schedules[kind].grouped ? p : 1; }

// Idle time / computing time by formula, for equal stages and f = b = w.
static inline double pipeline_bubble(const PipelineConfig* config) {
    return schedules[config->kind].bubble(config->p, config->v, config->m);
}

// ---- Check of a configuration -----------------------------------------------------------------------------------

// Refuses a configuration that a schedule cannot serve; the error names the option.
static inline bool pipeline_config_check(const PipelineConfig* config, Recompute recompute, Error* error) {
    const int p = config->p, v = config->v, m = config->m;
    const ScheduleRow* row = &schedules[config->kind];
    if (p < 1 || v < 1 || m < 1)
        return fail(error, "a schedule needs at least one stage, chunk and micro-batch, not %d, %d and %d", p, v, m);
    if ((int64_t)p * v > SCHEDULE_LARGEST || (int64_t)p * v * m > SCHEDULE_LARGEST)
        return fail(error,
                    "%d stages of %d chunks and %d micro-batches make tables of more than %d passes; use a larger "
                    "--micro-batch",
                    p, v, m, SCHEDULE_LARGEST);
    if (row->grouped && v < row->chunks)
        return fail(error, "--schedule %s needs --vpp %d or more; with one chunk a stage it is --schedule 1f1b",
                    row->name, row->chunks);
    if (!row->grouped && row->chunks > 1 && v != row->chunks)
        return fail(error, "--schedule %s has --vpp %d chunks a stage, not %d", row->name, row->chunks, v);
    if (!row->grouped && v != row->chunks)
        return fail(error, "--schedule %s has one chunk a stage; --vpp %d needs --schedule interleaved", row->name, v);
    if (p == 1 && v > 1)
        return fail(error, "--schedule %s with --vpp %d needs a pipeline, --pp 2 or more", row->name, v);
    if (m % schedule_group(config->kind, p) != 0)
        return fail(error,
                    "--schedule %s takes micro-batches (--global-batch / --dp / --micro-batch) in groups of --pp %d, "
                    "and %d is not a multiple of it",
                    row->name, p, m);
    if (row->splits_backward && config->reduce_every)
        return fail(
            error,
            "--schedule %s leaves weight gradients for later, which --zero 2 has no memory for; use --zero 1 or "
            "--schedule 1f1b",
            row->name);
    if (row->splits_backward && recompute == RECOMPUTE_FULL)
        return fail(error,
                    "--schedule %s would run every block's forward pass again for each half of the backward pass with "
                    "--recompute full; use --recompute selective or --schedule 1f1b",
                    row->name);
    return true;
}

// ---- Virtual stages ---------------------------------------------------------------------------------------------

// Gives a mesh v chunks a stage, placed as a schedule needs them.
static inline void parallel_set_schedule(ParallelConfig* parallel, ScheduleKind kind, int v) {
    parallel->v = v;
    parallel->folded = schedule_is_folded(kind);
}

// The pipeline rank that holds virtual stage `number`, as its chunk number / p.
static inline int pipeline_holder(const PipelineConfig* config, int number) {
    const int p = config->p;
    return schedule_is_folded(config->kind) && number / p % 2 ? p - 1 - number % p : number % p;
}

// The number of the last virtual stage.
static inline int pipeline_last(const PipelineConfig* config) { return config->p * config->v - 1; }

static inline int schedule_virtual_stage(const Schedule* schedule, int chunk) {
    return virtual_stage(schedule->config.p, schedule_is_folded(schedule->config.kind), schedule->stage, chunk);
}

static inline bool chunk_is_first(const Schedule* schedule, int chunk) {
    return schedule_virtual_stage(schedule, chunk) == 0;
}

static inline bool chunk_is_last(const Schedule* schedule, int chunk) {
    return schedule_virtual_stage(schedule, chunk) == pipeline_last(&schedule->config);
}

// The virtual stage at the other end of a chunk's transfer; -1 if there is none, or if it is no transfer.
static inline int transfer_other_end(const Schedule* schedule, ActionKind kind, int chunk) {
    const int number = schedule_virtual_stage(schedule, chunk), last = pipeline_last(&schedule->config);
    if (kind == RECEIVE_FORWARD || kind == SEND_BACKWARD) return number - 1;
    if (kind == SEND_FORWARD || kind == RECEIVE_BACKWARD) return number < last ? number + 1 : -1;
    return -1;
}

// The stage at the other end of a chunk's transfer.
static inline int schedule_peer(const Schedule* schedule, ActionKind kind, int chunk) {
    const int other = transfer_other_end(schedule, kind, chunk);
    return other < 0 ? -1 : pipeline_holder(&schedule->config, other);
}

// Whether this chunk has one of the two gradients of a tied embedding, and another stage the other one.
static inline bool chunk_is_tied(const Schedule* schedule, int chunk) {
    const PipelineConfig* config = &schedule->config;
    return config->tied && pipeline_holder(config, 0) != pipeline_holder(config, pipeline_last(config)) &&
           (chunk_is_first(schedule, chunk) || chunk_is_last(schedule, chunk));
}

static inline bool schedule_has_tie(const Schedule* schedule) {
    return chunk_is_tied(schedule, 0) || chunk_is_tied(schedule, schedule->config.v - 1);
}

// Forward passes only. In a V a stage alternates between its two chunks once the first micro-batch has come back.
static inline void order_forward(Schedule* schedule) {
    const int p = schedule->config.p, v = schedule->config.v, m = schedule->config.m;
    if (!schedule_is_folded(schedule->config.kind)) {
        for (int n = 0; n < m * v; n++) order_grouped(schedule, FORWARD, n);
        return;
    }
    const int ahead = 2 * (p - schedule->stage) - 1;
    for (int n = 0; n < m + ahead; n++) {
        if (n >= ahead) schedule_add(schedule, FORWARD, 1, n - ahead);
        schedule_add_work(schedule, FORWARD, 0, n);
    }
}

// ---- Build: slots, messages and reductions of an order ----------------------------------------------------------

static inline void schedule_free(Schedule* schedule) {
    free(schedule->actions);
    memset(schedule, 0, sizeof *schedule);
}

static inline Schedule schedule_new(const PipelineConfig* config, int stage) {
    const size_t most = 7 * (size_t)config->m * (size_t)config->v + 2 * (size_t)config->v + 3; // 7 kinds c k; the end
    Schedule schedule = {*config, stage, 0, 0, NULL};
    schedule.actions = (Action*)checked_malloc(most * sizeof(Action), "the schedule");
    return schedule;
}

// The most micro-batches of a chunk (-1: of all chunks) in flight, from the action `from`, FORWARD or BACKWARD_INPUT,
// to the end of the backward pass.
static inline int schedule_in_flight(const Schedule* schedule, int chunk, ActionKind from) {
    int live = 0, peak = 0;
    for (int i = 0; i < schedule->n; i++) {
        const Action action = schedule->actions[i];
        if (!action_computes(action.kind) || (chunk >= 0 && action.chunk != chunk)) continue;
        live += from == FORWARD ? action.kind == FORWARD : action_makes_input_gradient(action.kind);
        peak = (int)max_i64(peak, live);
        live -= action_adds_weight_gradients(action.kind);
    }
    return peak;
}

// Gives every micro-batch a slot from its forward pass to the end of its backward pass: the last one that was freed.
static inline void order_assign_slots(Schedule* order) {
    const size_t items = (size_t)order->config.v * (size_t)order->config.m;
    order->slots = schedule_in_flight(order, -1, FORWARD);
    int* unused = (int*)checked_malloc((size_t)order->slots * sizeof(int), "the schedule's slots"); // a stack
    int* slot_of = (int*)checked_malloc(items * sizeof(int), "the schedule's slots");
    int n = 0;
    while (n < order->slots) unused[n] = order->slots - 1 - n, n++;
    for (int i = 0; i < order->n; i++) {
        Action* action = &order->actions[i];
        int* slot = &slot_of[action_item(order, *action)];
        if (action->kind == FORWARD) *slot = unused[--n];
        if (action_adds_weight_gradients(action->kind)) unused[n++] = *slot;
        action->slot = *slot;
    }
    free(slot_of);
    free(unused);
}

// The action that starts to receive the input of a computing action; ACTION_KINDS if it receives none.
static inline ActionKind action_receive(const Schedule* schedule, Action action) {
    ActionKind kind = ACTION_KINDS;
    if (action.kind == FORWARD) kind = RECEIVE_FORWARD;
    if (action_makes_input_gradient(action.kind)) kind = RECEIVE_BACKWARD;
    return transfer_other_end(schedule, kind, action.chunk) >= 0 ? kind : ACTION_KINDS;
}

// Messages from one stage in one direction are received in the order of their use. At most two are in flight: the first
// two receives of every such channel come before everything else; schedule_add_next_receive adds the others.
static inline void schedule_add_first_receives(Schedule* schedule, const Schedule* order) {
    int* seen = (int*)checked_calloc(2 * (size_t)schedule->config.p, sizeof(int), "the schedule");
    for (int i = 0; i < order->n; i++) {
        const Action action = order->actions[i];
        const ActionKind kind = action_receive(schedule, action);
        if (kind == ACTION_KINDS) continue;
        int* channel =
            &seen[(kind == RECEIVE_FORWARD ? 0 : schedule->config.p) + schedule_peer(schedule, kind, action.chunk)];
        if ((*channel)++ < PIPELINE_BUFFERS_PER_DIRECTION)
            schedule_add(schedule, kind, action.chunk, action.microbatch);
    }
    free(seen);
}

// Action i has taken a message of a channel: adds the receive of the channel's message after the next one.
static inline void schedule_add_next_receive(Schedule* schedule, const Schedule* order, int i) {
    const ActionKind kind = action_receive(schedule, order->actions[i]);
    if (kind == ACTION_KINDS) return;
    const int peer = schedule_peer(schedule, kind, order->actions[i].chunk);
    for (int j = i + 1, ahead = 0; j < order->n; j++) {
        const Action action = order->actions[j];
        if (action_receive(schedule, action) != kind || schedule_peer(schedule, kind, action.chunk) != peer) continue;
        if (++ahead < PIPELINE_BUFFERS_PER_DIRECTION) continue;
        schedule_add(schedule, kind, action.chunk, action.microbatch);
        return;
    }
}

// A computing action with its messages: its output is sent, and its channel gets another receive.
static inline void schedule_add_computing(Schedule* schedule, const Schedule* order, int i) {
    Action action = order->actions[i];
    const bool last = action.microbatch == schedule->config.m - 1;
    action.reduce = action_adds_weight_gradients(action.kind) && (last || schedule->config.reduce_every);
    schedule->actions[schedule->n++] = action;
    if (action.kind == FORWARD && schedule_peer(schedule, SEND_FORWARD, action.chunk) >= 0) {
        schedule_add(schedule, SEND_FORWARD, action.chunk, action.microbatch);
        schedule->actions[schedule->n - 1].slot = action.slot;
    }
    if (action_makes_input_gradient(action.kind) && schedule_peer(schedule, SEND_BACKWARD, action.chunk) >= 0)
        schedule_add(schedule, SEND_BACKWARD, action.chunk, action.microbatch);
    schedule_add_next_receive(schedule, order, i);
}

// The sums of a chunk's gradients over the data ranks start with its last gradients. No rank needs these before NORM,
// which every update waits for: they stay in flight during the cool-down and are waited for at its end.
static inline void schedule_add_ending(Schedule* schedule) {
    for (int c = 0; c < schedule->config.v; c++) schedule_add(schedule, REDUCE, c, -1);
    if (schedule_has_tie(schedule)) schedule_add(schedule, TIE, -1, -1);
    schedule_add(schedule, NORM, -1, -1);
    for (int c = 0; c < schedule->config.v; c++) schedule_add(schedule, UPDATE, c, -1);
    if (schedule_has_tie(schedule)) schedule_add(schedule, UPDATE_TIED, -1, -1);
}

static inline Schedule schedule_from_order(const Schedule* order, bool training) {
    Schedule schedule = schedule_new(&order->config, order->stage);
    schedule.slots = order->slots;
    schedule_add_first_receives(&schedule, order);
    for (int i = 0; i < order->n; i++) schedule_add_computing(&schedule, order, i);
    if (training) schedule_add_ending(&schedule);
    return schedule;
}

// The table of one stage for a training step. The configuration has passed pipeline_config_check.
static inline Schedule schedule_build(const PipelineConfig* config, int stage) {
    Schedule order = schedule_new(config, stage);
    schedules[config->kind].order(&order);
    order_assign_slots(&order);
    const Schedule schedule = schedule_from_order(&order, true);
    schedule_free(&order);
    return schedule;
}

// Forward passes of m micro-batches, for validation, through the stages and in the slots of a training schedule. Alone
// they keep nothing: they take turns on at most two slots, one of which may still be sent from.
static inline Schedule schedule_build_forward(const Schedule* training, int m) {
    PipelineConfig config = training->config;
    config.m = m;
    Schedule order = schedule_new(&config, training->stage);
    order_forward(&order);
    order.slots = training->slots;
    for (int i = 0; i < order.n; i++) order.actions[i].slot = i % (int)min_i64(order.slots, 2);
    const Schedule schedule = schedule_from_order(&order, false);
    schedule_free(&order);
    return schedule;
}

// The table of a stage that does not train: forward passes only.
static inline Schedule schedule_build_untrained(const PipelineConfig* config, int stage) {
    const Schedule none = {*config, stage, 2, 0, NULL};
    return schedule_build_forward(&none, config->m);
}

// The tables of all p stages.
static inline Schedule* schedules_build(const PipelineConfig* config) {
    Schedule* stages = (Schedule*)checked_malloc((size_t)config->p * sizeof(Schedule), "the schedule");
    for (int i = 0; i < config->p; i++) stages[i] = schedule_build(config, i);
    return stages;
}

static inline void schedules_free(Schedule* stages, int p) {
    for (int i = 0; i < p; i++) schedule_free(&stages[i]);
    free(stages);
}
