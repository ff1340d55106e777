/*
parallel/schedule.h: the order of a step's work as a table. The trainer executes the table, --dry-run and dev/plot draw it, the
tests prove it: one list of actions for all of them, built here by pure functions that know no MPI and no CUDA.

The model is cut into p v parts, the virtual stages, one after another. p processes, the stages, hold v of them each:
its chunks. A step sends m micro-batches through all virtual stages and back and then updates once.

    placement    p = 4    in a loop, v = 2             in a V, v = 2: first and last part on one stage
                          stage 0: 0, 4                stage 0: 0, 7
                          stage 1: 1, 5                stage 1: 1, 6
                          stage 2: 2, 6                stage 2: 2, 5
                          stage 3: 3, 7                stage 3: 3, 4

Every stage has a table of its own and works through it from top to bottom. c is a chunk, k a micro-batch:

    FORWARD c k           forward pass; its activations fill a slot
    BACKWARD c k          backward pass, both halves; the slot is free afterwards
    BACKWARD_INPUT c k    only the gradient of the input: what the virtual stage before waits for
    BACKWARD_WEIGHT c k   only the gradients of the weights: nobody waits for them; the slot is free after this half

    RECEIVE_FORWARD c k   start receiving the chunk's input into receive buffer k mod 2 of the chunk.
                          FORWARD waits for it and empties the buffer.
    SEND_FORWARD c k      start sending the chunk's output out of the slot itself, where it stays until the slot's next
                          FORWARD. That one waits until the message has gone.
    RECEIVE_BACKWARD c k  start receiving the gradient of the chunk's output into receive buffer k mod 2 of the chunk.
                          BACKWARD or BACKWARD_INPUT waits for it and empties the buffer.
    SEND_BACKWARD c k     start sending the gradient of the chunk's input out of send buffer k mod 2 of the chunk.
                          The backward pass of k + 2, which fills the buffer again, waits until the message has gone.

    REDUCE c              wait for the data-parallel sums of the chunk's gradients
    TIE                   where one matrix is embedding and head and lies on two stages: sum its two gradients
    NORM                  all stages meet: loss and norm of the whole gradient
    UPDATE c              optimizer on the chunk's parameters, without the matrix of TIE
    UPDATE_TIED           optimizer on that matrix

A message between two chunks of one stage is a message to itself. Two receive buffers a chunk and direction mean that
receives are posted ahead of their use: a message arrives while its receiver computes. Messages have no tags: the n-th
message of a direction from one stage to another meets the n-th receive posted for it. Messages of different pairs of
stages or directions do not hold each other up; whoever executes the table has to see to that (MPI does; streams need
one for each). (The trainer gives its messages tags all the same: a wrong order is then an error, not a wrong number.)

Schedules. A forward pass takes f seconds a micro-batch and chunk, the two halves of a backward pass b and w. The bubble
is the time that stages are idle, relative to the time that they work; at equal stages:

    gpipe        all forwards, then all backwards (Huang et al. 2019, "GPipe"). bubble (p - 1) / m; m slots.
    1f1b         first p - r - 1 forwards on stage r, until the first gradient can be on its way; then one forward and
                 one backward in turn; then the backwards that are left (Narayanan et al. 2020 and 2021, "Efficient
                 large-scale language model training on GPU clusters using Megatron-LM", section 2.2, Figure 4).
                 bubble (p - 1) / m; min(p - r, m) slots.
    interleaved  1F1B over chunks in a loop (the same paper): groups of p micro-batches go through chunk 0, 1, ... in
                 turn; chunks are shorter, so is the wait for the first. bubble (p - 1) / (v m);
                 min(2 (p - r - 1) + (v - 1) p + 1, v m) slots, each of 1/v of the size;
                 (p v - 1) / (p - 1) times the messages.
    zb-h1        1F1B with the backward pass in halves (Qi et al. 2024, "Zero bubble pipeline parallelism"): weight
                 halves wait until a slot is needed, or until there is nothing else to do. Where w <= f and w <= b (a
                 longer weight half holds others up) bubble ((p - 1) (f + b) - min(p - 1, m - 1) w) / (m (f + b + w));
                 min(p, m) slots.
    zb-v         halves, and two chunks in a V (Qi et al. 2024, section 6): the stage that ends a forward pass is the
                 one that began it and has the gradients at once. At f = b = w stage r starts r f later than stage 0
                 and, with m >= 2 p - 1, is never idle from then to its end. Since all wait for each other at NORM that
                 is still a bubble of max((p - 1) / (6 m), (4 p - 2 - 2 m) / (6 m)); min(2 p, 2 m, m + r + 1) slots,
                 each of half the size; twice the messages.

    build    pipeline_check, schedules_build, schedule_build_forward: the tables. A builder writes down the order of
             forwards and backwards; what follows from it (slots, messages, reductions) is the same code for all.
    check    schedule_check: a proof from the tables of all stages, see there
    cost     schedule_times, schedule_bubble: when every action starts and ends, at given seconds; schedule_in_flight: how
             many micro-batches are in memory at most
    draw     schedule_draw: that timeline as a picture of characters
*/
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include "../util/base.h"

enum { PIPELINE_BUFFERS_PER_DIRECTION = 2 };       // of a chunk: receive buffers a direction; send buffers for gradients
enum { SCHEDULE_LARGEST = 1 << 21 }; // p v m: some hundred megabytes of tables

typedef enum { GPIPE, ONE_F_ONE_B, INTERLEAVED, ZB_H1, ZB_V, SCHEDULE_KINDS } ScheduleKind;

static inline const char* schedule_name(ScheduleKind kind) {
    static const char* names[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};
    return (unsigned)kind < SCHEDULE_KINDS ? names[kind] : "unknown schedule";
}

// The same names in the same order, for a command line.
static inline const char* schedule_choices(void) { return "gpipe|1f1b|interleaved|zb-h1|zb-v"; }

// Chunks of a stage where nobody says how many.
static inline int schedule_usual_chunks(ScheduleKind kind) { return kind == INTERLEAVED || kind == ZB_V ? 2 : 1; }

// What a schedule is built from.
typedef struct {
    ScheduleKind kind;
    int p, v, m;       // stages; chunks of each; micro-batches
    bool reduce_every; // gradients are handed to the data-parallel reduction after every micro-batch (ZeRO-2 keeps only
                       // its own part of them), not once at the end
    bool tied;         // one matrix is both embedding (first virtual stage) and head (last one)
    bool clip;         // the update needs the norm of the whole gradient
} Pipeline;

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
    ACTION_KINDS // how many there are
} ActionKind;

typedef struct {
    ActionKind kind;
    int chunk;      // -1 for TIE, NORM and UPDATE_TIED
    int microbatch; // -1 for these, REDUCE and UPDATE
    int slot;       // of FORWARD, SEND_FORWARD and the backward kinds; -1 for the others
    bool reduce;    // of BACKWARD and BACKWARD_WEIGHT: hand gradients to the data-parallel reduction as they get ready
} Action;

typedef struct {
    Pipeline plan;
    int stage; // 0 .. p - 1
    int slots; // places for the activations of one micro-batch in one chunk
    int n;     // actions
    Action* actions;
} Schedule;

static inline const char* action_name(ActionKind kind) {
    static const char* names[] = {"forward",
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

// The two results of a backward pass.
static inline bool action_makes_input_gradient(ActionKind kind) { return kind == BACKWARD || kind == BACKWARD_INPUT; }
static inline bool action_adds_weight_gradients(ActionKind kind) { return kind == BACKWARD || kind == BACKWARD_WEIGHT; }

// ----------------------------------------------------------------------------------------------------------------
// Virtual stages

// Of a chunk: in a loop, or (folded) up and down, so that two chunks make a V.
static inline int virtual_stage(int p, bool folded, int stage, int chunk) {
    return chunk * p + (folded && chunk % 2 ? p - 1 - stage : stage);
}

// The stage that holds it; its chunk there is its number / p.
static inline int virtual_stage_holder(int p, bool folded, int number) {
    return folded && number / p % 2 ? p - 1 - number % p : number % p;
}

static inline bool schedule_is_folded(ScheduleKind kind) { return kind == ZB_V; }

static inline bool schedule_splits_backward(ScheduleKind kind) { return kind == ZB_H1 || kind == ZB_V; }

static inline int pipeline_holder(const Pipeline* plan, int number) {
    return virtual_stage_holder(plan->p, schedule_is_folded(plan->kind), number);
}

// The number of the last virtual stage.
static inline int pipeline_last(const Pipeline* plan) { return plan->p * plan->v - 1; }

static inline int schedule_virtual_stage(const Schedule* s, int chunk) {
    return virtual_stage(s->plan.p, schedule_is_folded(s->plan.kind), s->stage, chunk);
}

static inline bool chunk_is_first(const Schedule* s, int chunk) { return schedule_virtual_stage(s, chunk) == 0; }

static inline bool chunk_is_last(const Schedule* s, int chunk) {
    return schedule_virtual_stage(s, chunk) == pipeline_last(&s->plan);
}

// The virtual stage at the other end of a chunk's transfer; -1 if there is none, or if it is no transfer.
static inline int transfer_other_end(const Schedule* s, ActionKind kind, int chunk) {
    const int number = schedule_virtual_stage(s, chunk), last = pipeline_last(&s->plan);
    if (kind == RECEIVE_FORWARD || kind == SEND_BACKWARD) return number - 1;
    if (kind == SEND_FORWARD || kind == RECEIVE_BACKWARD) return number < last ? number + 1 : -1;
    return -1;
}

// The stage that it goes to or comes from.
static inline int schedule_peer(const Schedule* s, ActionKind kind, int chunk) {
    const int other = transfer_other_end(s, kind, chunk);
    return other < 0 ? -1 : pipeline_holder(&s->plan, other);
}

// Whether this chunk has one of two gradients of the same matrix, and another stage the other one.
static inline bool chunk_is_tied(const Schedule* s, int chunk) {
    const Pipeline* plan = &s->plan;
    return plan->tied && pipeline_holder(plan, 0) != pipeline_holder(plan, pipeline_last(plan)) &&
           (chunk_is_first(s, chunk) || chunk_is_last(s, chunk));
}

static inline bool schedule_has_tie(const Schedule* s) {
    bool tied = false;
    for (int c = 0; c < s->plan.v; c++) tied = tied || chunk_is_tied(s, c);
    return tied;
}

// ----------------------------------------------------------------------------------------------------------------
// Build: the order of the work

// "4 or 8": the numbers of micro-batches nearest to m that interleaved can serve, each times `times`.
static inline const char* pipeline_nearest(char text[64], const Pipeline* x, int64_t times) {
    const int64_t below = x->m / x->p * x->p, above = below + x->p;
    if (below > 0)
        snprintf(text, 64, "%lld or %lld", (long long)(times * below), (long long)(times * above));
    else
        snprintf(text, 64, "%lld", (long long)(times * above));
    return text;
}

// Refuses, by the options' names, what a schedule cannot serve, and says what it can.
static inline bool pipeline_check(const Pipeline* x, Error* error) {
    const char* name = schedule_name(x->kind);
    if ((unsigned)x->kind >= SCHEDULE_KINDS) return fail(error, "schedule %d is none of the known ones", (int)x->kind);
    if (x->p < 1 || x->v < 1 || x->m < 1)
        return fail(error, "a schedule needs at least one stage, chunk and micro-batch, not %d, %d and %d", x->p, x->v,
                    x->m);
    if ((int64_t)x->p * x->v > SCHEDULE_LARGEST || (int64_t)x->p * x->v * x->m > SCHEDULE_LARGEST)
        return fail(error,
                    "%d stages of %d chunks and %d micro-batches make tables of more than %d passes; use a larger "
                    "--micro-batch",
                    x->p, x->v, x->m, SCHEDULE_LARGEST);
    if (x->kind == ZB_V && x->v != 2) return fail(error, "--schedule zb-v has --vp 2 chunks a stage, not %d", x->v);
    if (x->kind == INTERLEAVED && x->v < 2)
        return fail(error, "--schedule interleaved needs --vp 2 or more; with one chunk a stage it is --schedule 1f1b");
    if (x->kind != ZB_V && x->kind != INTERLEAVED && x->v != 1)
        return fail(error, "--schedule %s has one chunk a stage; --vp %d needs --schedule interleaved", name, x->v);
    if (x->kind == INTERLEAVED && x->m % x->p != 0) {
        char nearest[64];
        return fail(error,
                    "--schedule interleaved takes micro-batches (--global-batch / --dp / --micro-batch) in groups of "
                    "--pp %d, and %d is not a multiple of it; the nearest that work: %s",
                    x->p, x->m, pipeline_nearest(nearest, x, 1));
    }
    return true;
}

static inline void schedule_add(Schedule* s, ActionKind kind, int chunk, int microbatch) {
    const Action a = {kind, chunk, microbatch, -1, false};
    s->actions[s->n++] = a;
}

// Work on a micro-batch that exists.
static inline void schedule_add_work(Schedule* s, ActionKind kind, int chunk, int microbatch) {
    if (microbatch < s->plan.m) schedule_add(s, kind, chunk, microbatch);
}

static inline void order_gpipe(Schedule* s) {
    for (int k = 0; k < s->plan.m; k++) schedule_add(s, FORWARD, 0, k);
    for (int k = 0; k < s->plan.m; k++) schedule_add(s, BACKWARD, 0, k);
}

// A backward pass comes `warm` forwards after its own forward pass.
static inline void order_1f1b(Schedule* s) {
    const int m = s->plan.m, warm = s->plan.p - s->stage - 1;
    for (int n = 0; n < m + warm; n++) {
        if (n < m) schedule_add(s, FORWARD, 0, n);
        if (n >= warm) schedule_add(s, BACKWARD, 0, n - warm);
    }
}

// Number n of the work in the order of the groups: p micro-batches through chunk 0, the same through chunk 1, ...; the
// next p. The last group may be smaller. Backward, chunks come in the opposite order.
static inline void order_grouped(Schedule* s, ActionKind kind, int n) {
    const int p = s->plan.p, v = s->plan.v, group = n / (p * v), first = group * p;
    const int size = (int)min_i64(p, s->plan.m - first), within = n - group * p * v;
    const int chunk = within / size;
    schedule_add(s, kind, kind == FORWARD ? chunk : v - 1 - chunk, first + within % size);
}

// Narayanan et al. 2021, section 2.2: the first gradient comes back to stage r after its p - r - 1 followers have each
// done one forward more and one backward, and after all chunks but the last of the first group: so many forwards first.
static inline void order_interleaved(Schedule* s) {
    const int p = s->plan.p, v = s->plan.v, all = s->plan.m * v;
    const int warm = (int)min_i64(2 * (p - s->stage - 1) + (v - 1) * p, all);
    for (int n = 0; n < all + warm; n++) {
        if (n < all) order_grouped(s, FORWARD, n);
        if (n >= warm) order_grouped(s, BACKWARD, n - warm);
    }
}

// The order of 1F1B; a weight half comes when p slots are in use and the next forward pass needs one. After the last
// forward pass weight halves go on in the same rhythm, as the time that it took is theirs.
static inline void order_zb_h1(Schedule* s) {
    const int p = s->plan.p, m = s->plan.m, warm = p - s->stage - 1;
    int weights = 0; // halves done
    for (int n = 0; n < m + warm; n++) {
        if (n - weights == p) schedule_add(s, BACKWARD_WEIGHT, 0, weights++);
        if (n < m) schedule_add(s, FORWARD, 0, n);
        if (n >= warm) schedule_add(s, BACKWARD_INPUT, 0, n - warm);
    }
    while (weights < m) schedule_add(s, BACKWARD_WEIGHT, 0, weights++);
}

// Both halves, one after the other.
static inline void order_both_halves(Schedule* s, int chunk, int k) {
    schedule_add_work(s, BACKWARD_INPUT, chunk, k);
    schedule_add_work(s, BACKWARD_WEIGHT, chunk, k);
}

// Qi et al. 2024. Written for f = b = w; with other times it stays right and is no longer the best: schedule_times tells
// the bubble (Qi et al. search an order for measured times). Also written for as many micro-batches as fill the pipeline;
// work on those that do not exist is left out.
static inline void order_zb_v(Schedule* s) {
    const int p = s->plan.p, r = s->stage, m = (int)max_i64(s->plan.m, 2 * p - 1);
    int forward[2] = {0, 0}, input[2] = {0, 0}, weight[2]; // of each chunk: done
    // Down to the tip of the V and up again: so many forwards before the first micro-batch is back in chunk 1.
    while (forward[0] < 2 * (p - r) - 1) schedule_add_work(s, FORWARD, 0, forward[0]++);
    // The r stages above have to see it in chunk 1 before a gradient comes: meanwhile a forward of each chunk in turn.
    for (int i = 0; i < r; i++) {
        schedule_add_work(s, FORWARD, 1, forward[1]++);
        schedule_add_work(s, FORWARD, 0, forward[0]++);
    }
    // The first gradients, of chunk 1, go down to the tip and up again to chunk 0.
    for (int i = r; i < p; i++) {
        schedule_add_work(s, FORWARD, 1, forward[1]++);
        order_both_halves(s, 1, input[1]++);
    }
    // One of everything in turn.
    while (forward[1] < m) {
        if (forward[0] < m) schedule_add_work(s, FORWARD, 0, forward[0]++);
        order_both_halves(s, 0, input[0]++);
        schedule_add_work(s, FORWARD, 1, forward[1]++);
        order_both_halves(s, 1, input[1]++);
    }
    // The end: input halves first, as others wait for them; the weight halves that they leave fill the time afterwards.
    memcpy(weight, input, sizeof weight);
    for (int i = 0; i < r; i++) {
        schedule_add_work(s, BACKWARD_INPUT, 0, input[0]++);
        schedule_add_work(s, BACKWARD_INPUT, 1, input[1]++);
    }
    for (int i = r; i < p; i++) {
        schedule_add_work(s, BACKWARD_INPUT, 0, input[0]++);
        schedule_add_work(s, BACKWARD_WEIGHT, 0, weight[0]++);
    }
    while (weight[1] < m) schedule_add_work(s, BACKWARD_WEIGHT, 1, weight[1]++);
    while (weight[0] < m) schedule_add_work(s, BACKWARD_WEIGHT, 0, weight[0]++);
}

// Forward passes only. In a V a stage takes its two chunks in turn once the first micro-batch has come back.
static inline void order_forward(Schedule* s) {
    const int p = s->plan.p, v = s->plan.v, m = s->plan.m;
    if (!schedule_is_folded(s->plan.kind)) {
        for (int n = 0; n < m * v; n++) order_grouped(s, FORWARD, n);
        return;
    }
    const int ahead = 2 * (p - s->stage) - 1;
    for (int n = 0; n < m + ahead; n++) {
        if (n >= ahead) schedule_add(s, FORWARD, 1, n - ahead);
        schedule_add_work(s, FORWARD, 0, n);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Build: what follows from the order

static inline void schedule_free(Schedule* s) {
    free(s->actions);
    memset(s, 0, sizeof *s);
}

static inline Schedule schedule_new(const Pipeline* plan, int stage) {
    const size_t most = 7 * (size_t)plan->m * (size_t)plan->v + 2 * (size_t)plan->v + 3; // see action kinds
    Schedule s = {*plan, stage, 0, 0, NULL};
    s.actions = (Action*)checked_malloc(most * sizeof(Action), "the schedule");
    return s;
}

// Most micro-batches of a chunk (-1: of all chunks together) that are between two kinds of work: from the forward pass, or
// from the input half of the backward pass, to the end of the backward pass.
static inline int schedule_in_flight(const Schedule* s, int chunk, ActionKind from) {
    int live = 0, peak = 0;
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        if (!action_computes(a.kind) || (chunk >= 0 && a.chunk != chunk)) continue;
        live += from == FORWARD ? a.kind == FORWARD : action_makes_input_gradient(a.kind);
        peak = (int)max_i64(peak, live);
        live -= action_adds_weight_gradients(a.kind);
    }
    return peak;
}

// Gives every micro-batch a slot from its forward pass to the end of its backward pass: the one that was freed last.
static inline void order_assign_slots(Schedule* order) {
    const int m = order->plan.m;
    order->slots = schedule_in_flight(order, -1, FORWARD);
    int* unused = (int*)checked_malloc((size_t)order->slots * sizeof(int), "the schedule's slots"); // a stack
    int* slot_of = (int*)checked_malloc((size_t)order->plan.v * (size_t)m * sizeof(int), "the schedule's slots");
    int n = 0;
    while (n < order->slots) unused[n] = order->slots - 1 - n, n++;
    for (int i = 0; i < order->n; i++) {
        Action* a = &order->actions[i];
        int* slot = &slot_of[a->chunk * m + a->microbatch];
        if (a->kind == FORWARD) *slot = unused[--n];
        if (action_adds_weight_gradients(a->kind)) unused[n++] = *slot;
        a->slot = *slot;
    }
    free(slot_of), free(unused);
}

// Forward passes alone need no memory: they take turns on at most two of the slots that training has.
static inline void order_borrow_slots(Schedule* order, int slots) {
    order->slots = slots;
    for (int i = 0; i < order->n; i++) order->actions[i].slot = i % (int)min_i64(slots, 2);
}

// The action that starts receiving what a computing action waits for; ACTION_KINDS if it waits for nothing.
static inline ActionKind action_receive(const Schedule* s, Action a) {
    const ActionKind kind = a.kind == FORWARD                     ? RECEIVE_FORWARD
                            : action_makes_input_gradient(a.kind) ? RECEIVE_BACKWARD
                                                                  : ACTION_KINDS;
    return transfer_other_end(s, kind, a.chunk) >= 0 ? kind : ACTION_KINDS;
}

// Messages from one stage in one direction are received in the order in which they are used. Two are on their way at
// most: the first two receives of every such channel come before everything else, ...
static inline void schedule_add_first_receives(Schedule* s, const Schedule* order) {
    int* seen = (int*)checked_calloc(2 * (size_t)s->plan.p, sizeof(int), "the schedule");
    for (int i = 0; i < order->n; i++) {
        const Action a = order->actions[i];
        const ActionKind kind = action_receive(s, a);
        if (kind == ACTION_KINDS) continue;
        int* channel = &seen[(kind == RECEIVE_FORWARD ? 0 : s->plan.p) + schedule_peer(s, kind, a.chunk)];
        if ((*channel)++ < PIPELINE_BUFFERS_PER_DIRECTION) schedule_add(s, kind, a.chunk, a.microbatch);
    }
    free(seen);
}

// ... every other one right after the action that has used the last but one before it.
static inline void schedule_add_next_receive(Schedule* s, const Schedule* order, int i) {
    const ActionKind kind = action_receive(s, order->actions[i]);
    if (kind == ACTION_KINDS) return;
    const int peer = schedule_peer(s, kind, order->actions[i].chunk);
    for (int j = i + 1, ahead = 0; j < order->n; j++) {
        const Action a = order->actions[j];
        if (action_receive(s, a) != kind || schedule_peer(s, kind, a.chunk) != peer) continue;
        if (++ahead < PIPELINE_BUFFERS_PER_DIRECTION) continue;
        schedule_add(s, kind, a.chunk, a.microbatch);
        return;
    }
}

// A computing action with what belongs to it: what it made goes on its way, a buffer that it emptied is filled again.
static inline void schedule_add_computing(Schedule* s, const Schedule* order, int i) {
    Action a = order->actions[i];
    const bool last = a.microbatch == s->plan.m - 1;
    a.reduce = action_adds_weight_gradients(a.kind) && (last || s->plan.reduce_every);
    s->actions[s->n++] = a;
    if (a.kind == FORWARD && schedule_peer(s, SEND_FORWARD, a.chunk) >= 0) {
        schedule_add(s, SEND_FORWARD, a.chunk, a.microbatch);
        s->actions[s->n - 1].slot = a.slot;
    }
    if (action_makes_input_gradient(a.kind) && schedule_peer(s, SEND_BACKWARD, a.chunk) >= 0)
        schedule_add(s, SEND_BACKWARD, a.chunk, a.microbatch);
    schedule_add_next_receive(s, order, i);
}

// Where the last gradients of a chunk are added, their sums over the data ranks set out. With clipping nobody needs these
// before NORM: they go on during the cool-down and are waited for at its end.
static inline void schedule_add_ending_clipped(Schedule* s) {
    for (int c = 0; c < s->plan.v; c++) schedule_add(s, REDUCE, c, -1);
    if (schedule_has_tie(s)) schedule_add(s, TIE, -1, -1);
    schedule_add(s, NORM, -1, -1);
    for (int c = 0; c < s->plan.v; c++) schedule_add(s, UPDATE, c, -1);
    if (schedule_has_tie(s)) schedule_add(s, UPDATE_TIED, -1, -1);
}

// Without, a chunk is updated inside the cool-down, one computing action after its last gradients: so long its sums have
// been on their way.
static inline void schedule_add_early_update(Schedule* s, const Schedule* order, int i) {
    const Action a = order->actions[i];
    if (!action_adds_weight_gradients(a.kind) || a.microbatch < s->plan.m - 1) return;
    schedule_add(s, REDUCE, a.chunk, -1);
    schedule_add(s, UPDATE, a.chunk, -1);
}

static inline void schedule_add_ending_unclipped(Schedule* s) {
    if (schedule_has_tie(s)) schedule_add(s, TIE, -1, -1), schedule_add(s, UPDATE_TIED, -1, -1);
    schedule_add(s, NORM, -1, -1);
}

static inline Schedule schedule_from_order(const Schedule* order, bool training) {
    Schedule s = schedule_new(&order->plan, order->stage);
    s.slots = order->slots;
    schedule_add_first_receives(&s, order);
    for (int i = 0; i < order->n; i++) {
        schedule_add_computing(&s, order, i);
        if (training && !s.plan.clip && i > 0) schedule_add_early_update(&s, order, i - 1);
    }
    if (training && s.plan.clip) schedule_add_ending_clipped(&s);
    if (training && !s.plan.clip) schedule_add_early_update(&s, order, order->n - 1), schedule_add_ending_unclipped(&s);
    return s;
}

// The table of one stage for a training step. The plan has passed pipeline_check.
static inline Schedule schedule_build(const Pipeline* plan, int stage) {
    Schedule order = schedule_new(plan, stage);
    switch (plan->kind) {
    case GPIPE: order_gpipe(&order); break;
    case ONE_F_ONE_B: order_1f1b(&order); break;
    case INTERLEAVED: order_interleaved(&order); break;
    case ZB_H1: order_zb_h1(&order); break;
    case ZB_V: order_zb_v(&order); break;
    case SCHEDULE_KINDS: break;
    }
    order_assign_slots(&order);
    const Schedule s = schedule_from_order(&order, true);
    schedule_free(&order);
    return s;
}

// Forward passes of m micro-batches, for validation, through the stages and in the slots of a training schedule.
static inline Schedule schedule_build_forward(const Schedule* training, int m) {
    Pipeline plan = training->plan;
    plan.m = m;
    Schedule order = schedule_new(&plan, training->stage);
    order_forward(&order);
    order_borrow_slots(&order, training->slots);
    const Schedule s = schedule_from_order(&order, false);
    schedule_free(&order);
    return s;
}

// The table of a stage that trains nothing: forward passes alone.
static inline Schedule schedule_build_untrained(const Pipeline* plan, int stage) {
    const Schedule none = {*plan, stage, 2, 0, NULL};
    return schedule_build_forward(&none, plan->m);
}

// Whether it is a table of a training step.
static inline bool schedule_trains(const Schedule* s) { return schedule_in_flight(s, -1, BACKWARD_INPUT) > 0; }

// The tables of all p stages.
static inline Schedule* schedules_build(const Pipeline* plan) {
    Schedule* stages = (Schedule*)checked_malloc((size_t)plan->p * sizeof(Schedule), "the schedule");
    for (int i = 0; i < plan->p; i++) stages[i] = schedule_build(plan, i);
    return stages;
}

static inline void schedules_free(Schedule* stages, int p) {
    for (int i = 0; i < p; i++) schedule_free(&stages[i]);
    free(stages);
}

// ----------------------------------------------------------------------------------------------------------------
// Cost: what happens when all stages work through their tables, each waiting only for messages and for buffers.
// A message has no other place to be than the buffers of its two ends: it sets out at the moment when its send has been
// started and its receive has been posted, whichever is later (a rendezvous).

// Seconds of every kind of action on every virtual stage, (ACTION_KINDS, stages). Of a send: how long its message is on
// its way; starting it takes no time, and so do receives. Of what has no chunk: as of a stage's chunk 0.
typedef struct {
    int stages; // virtual ones
    double* seconds;
} Costs;

static inline double* cost_of(const Costs* costs, ActionKind kind, int stage) {
    return &costs->seconds[kind * costs->stages + stage];
}

// All stages equal: seconds of a forward pass, of the two halves of a backward pass, of a message.
static inline Costs costs_equal(int stages, double forward, double input, double weight, double transfer) {
    Costs costs = {stages, NULL};
    costs.seconds = (double*)checked_calloc((size_t)ACTION_KINDS * (size_t)stages, sizeof(double), "the costs");
    for (int i = 0; i < stages; i++) {
        *cost_of(&costs, FORWARD, i) = forward, *cost_of(&costs, BACKWARD, i) = input + weight;
        *cost_of(&costs, BACKWARD_INPUT, i) = input, *cost_of(&costs, BACKWARD_WEIGHT, i) = weight;
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
    int* done;      // (p) actions done; fewer than the table has if the stage waits for ever
    double** start; // (p, n) when action i of stage r starts and ends, in seconds, for the actions done
    double** end;
    double length; // when the last one ends
} Timeline;

static inline void timeline_free(Timeline* t) {
    for (int r = 0; r < t->p; r++) free(t->start[r]), free(t->end[r]);
    free(t->start), free(t->end), free(t->done);
    memset(t, 0, sizeof *t);
}

static inline Timeline timeline_new(const Schedule* stages, int p) {
    Timeline t = {p, NULL, NULL, NULL, 0};
    t.done = (int*)checked_calloc((size_t)p, sizeof(int), "the timeline");
    t.start = (double**)checked_calloc((size_t)p, sizeof(double*), "the timeline");
    t.end = (double**)checked_calloc((size_t)p, sizeof(double*), "the timeline");
    for (int r = 0; r < p; r++) {
        t.start[r] = (double*)checked_calloc((size_t)stages[r].n, sizeof(double), "the timeline");
        t.end[r] = (double*)checked_calloc((size_t)stages[r].n, sizeof(double), "the timeline");
    }
    return t;
}

// A micro-batch in a chunk.
typedef struct {
    int chunk, microbatch; // -1: none
} Item;

static inline Item item_of(Action a) {
    const Item item = {a.chunk, a.microbatch};
    return item;
}

static inline Item no_item(void) {
    const Item none = {-1, -1};
    return none;
}

static inline bool same_item(Item a, Item b) { return a.chunk == b.chunk && a.microbatch == b.microbatch; }

// What a stage's progress depends on.
typedef struct {
    double now;                   // when its last action ended
    double* started;              // (4 kinds, v, m) when a transfer was started; INFINITY: not yet
    Item* output;                 // (slots) whose output is in the slot
    Item* sending;                // (v, PIPELINE_BUFFERS_PER_DIRECTION) whose gradient is in the send buffer
    double arrived[ACTION_KINDS]; // when it came to TIE and to NORM, where stages meet; INFINITY: not yet
} StageProgress;

// What the run of all tables depends on.
typedef struct {
    const Schedule* stages;
    const Costs* costs;
    StageProgress* progress; // (p)
    bool blocking;           // a send ends when its message has arrived
} Simulation;

static inline void stage_progress_begin(StageProgress* g, const Schedule* s) {
    const size_t items = (size_t)s->plan.v * (size_t)s->plan.m, buffers = (size_t)s->plan.v * PIPELINE_BUFFERS_PER_DIRECTION;
    g->now = 0;
    g->started = (double*)checked_malloc(4 * items * sizeof(double), "the timeline");
    g->output = (Item*)checked_malloc((size_t)s->slots * sizeof(Item), "the timeline");
    g->sending = (Item*)checked_malloc(buffers * sizeof(Item), "the timeline");
    for (size_t i = 0; i < 4 * items; i++) g->started[i] = INFINITY;
    for (int i = 0; i < s->slots; i++) g->output[i] = no_item();
    for (size_t i = 0; i < buffers; i++) g->sending[i] = no_item();
    for (int i = 0; i < ACTION_KINDS; i++) g->arrived[i] = INFINITY;
}

static inline double* transfer_started(const Simulation* x, ActionKind kind, int stage, int chunk, int k) {
    const Pipeline* plan = &x->stages[0].plan;
    return &x->progress[stage].started[((kind - RECEIVE_FORWARD) * plan->v + chunk) * plan->m + k];
}

// When the message of one virtual stage to the next or to the one before arrived: INFINITY if it has not set out; 0 if
// there is none such.
static inline double message_time(const Simulation* x, int from, int to, int k) {
    const Pipeline* plan = &x->stages[0].plan;
    const int last = pipeline_last(plan);
    if (k < 0 || from < 0 || to < 0 || from > last || to > last) return 0;
    const ActionKind send = to > from ? SEND_FORWARD : SEND_BACKWARD;
    const ActionKind receive = to > from ? RECEIVE_FORWARD : RECEIVE_BACKWARD;
    const double sent = *transfer_started(x, send, pipeline_holder(plan, from), from / plan->p, k);
    const double posted = *transfer_started(x, receive, pipeline_holder(plan, to), to / plan->p, k);
    return fmax(sent, posted) + *cost_of(x->costs, send, from);
}

static inline Item* send_buffer(const StageProgress* g, Action a) {
    return &g->sending[a.chunk * PIPELINE_BUFFERS_PER_DIRECTION + a.microbatch % PIPELINE_BUFFERS_PER_DIRECTION];
}

// When the last of the stages that meet at this action has come: INFINITY if not all have.
static inline double meeting_time(const Simulation* x, ActionKind kind) {
    const Pipeline* plan = &x->stages[0].plan;
    const int first = pipeline_holder(plan, 0), last = pipeline_holder(plan, pipeline_last(plan));
    if (kind == TIE) return fmax(x->progress[first].arrived[TIE], x->progress[last].arrived[TIE]);
    double all = 0;
    for (int r = 0; r < plan->p; r++) all = fmax(all, x->progress[r].arrived[NORM]);
    return all;
}

// When action a of stage r can start: its message is there and what it is going to fill is free. INFINITY: not yet.
static inline double action_ready(const Simulation* x, int r, Action a) {
    StageProgress* g = &x->progress[r];
    const Schedule* s = &x->stages[r];
    if (a.kind == TIE || a.kind == NORM) {
        g->arrived[a.kind] = g->now;
        return meeting_time(x, a.kind);
    }
    double arrived = 0, free_again = 0;
    if (a.kind == FORWARD) {
        const int here = schedule_virtual_stage(s, a.chunk);
        const Item before = g->output[a.slot];
        const int there = before.chunk < 0 ? -1 : schedule_virtual_stage(s, before.chunk);
        arrived = message_time(x, here - 1, here, a.microbatch);
        free_again = message_time(x, there, there + 1, before.microbatch);
    } else if (action_makes_input_gradient(a.kind)) {
        const int here = schedule_virtual_stage(s, a.chunk);
        arrived = message_time(x, here + 1, here, a.microbatch);
        free_again = message_time(x, here, here - 1, send_buffer(g, a)->microbatch);
    }
    return fmax(g->now, fmax(arrived, free_again));
}

// When action a of stage r, which starts at `start`, ends: INFINITY, not yet.
static inline double action_ends(const Simulation* x, int r, Action a, double start) {
    const int here = schedule_virtual_stage(&x->stages[r], (int)max_i64(a.chunk, 0));
    if (!action_transfers(a.kind)) return start + *cost_of(x->costs, a.kind, here);
    *transfer_started(x, a.kind, r, a.chunk, a.microbatch) = start;
    if (!x->blocking || (a.kind != SEND_FORWARD && a.kind != SEND_BACKWARD)) return start;
    return message_time(x, here, a.kind == SEND_FORWARD ? here + 1 : here - 1, a.microbatch);
}

static inline void action_done(StageProgress* g, Action a, double end) {
    g->now = end;
    if (a.kind == FORWARD) g->output[a.slot] = item_of(a);
    if (action_makes_input_gradient(a.kind)) *send_buffer(g, a) = item_of(a);
}

// Stage r goes on as far as it can; returns whether it did anything.
static inline bool stage_advance(const Simulation* x, int r, Timeline* t) {
    const Schedule* s = &x->stages[r];
    const int before = t->done[r];
    for (int i = before; i < s->n; i = ++t->done[r]) {
        const double start = action_ready(x, r, s->actions[i]);
        const double end = start == INFINITY ? start : action_ends(x, r, s->actions[i], start);
        if (end == INFINITY) break;
        t->start[r][i] = start, t->end[r][i] = end;
        action_done(&x->progress[r], s->actions[i], end);
    }
    t->length = fmax(t->length, x->progress[r].now);
    return t->done[r] > before;
}

// The timeline of the tables of all p stages. blocking: as if every send waited for its message to arrive.
static inline Timeline schedule_times(const Schedule* stages, int p, const Costs* costs, bool blocking) {
    Timeline t = timeline_new(stages, p);
    Simulation x = {stages, costs, NULL, blocking};
    x.progress = (StageProgress*)checked_calloc((size_t)p, sizeof(StageProgress), "the timeline");
    for (int r = 0; r < p; r++) stage_progress_begin(&x.progress[r], &stages[r]);
    for (bool moved = true; moved;) { // times do not depend on the order in which stages get their turns
        moved = false;
        for (int r = 0; r < p; r++) moved = stage_advance(&x, r, &t) || moved;
    }
    for (int r = 0; r < p; r++) free(x.progress[r].started), free(x.progress[r].output), free(x.progress[r].sending);
    free(x.progress);
    return t;
}

// Idle time / computing time, over all stages and the whole step.
static inline double timeline_bubble(const Schedule* stages, const Timeline* t) {
    double computing = 0;
    for (int r = 0; r < t->p; r++) {
        for (int i = 0; i < t->done[r]; i++) {
            if (action_computes(stages[r].actions[i].kind)) computing += t->end[r][i] - t->start[r][i];
        }
    }
    return (t->p * t->length - computing) / computing;
}

static inline double schedule_bubble(const Schedule* stages, int p, const Costs* costs) {
    Timeline t = schedule_times(stages, p, costs, false);
    const double bubble = timeline_bubble(stages, &t);
    timeline_free(&t);
    return bubble;
}

// The same by formula, for equal stages and f = b = w; see the top of this file.
static inline double pipeline_bubble(const Pipeline* plan) {
    const double p = plan->p, v = plan->v, m = plan->m;
    switch (plan->kind) {
    case GPIPE:
    case ONE_F_ONE_B: return (p - 1) / m;
    case INTERLEAVED: return (p - 1) / (v * m);
    case ZB_H1: return (2 * (p - 1) - fmin(p - 1, m - 1)) / (3 * m);
    case ZB_V: return fmax(p - 1, 4 * p - 2 - 2 * m) / (6 * m);
    default: return NAN;
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Check, first part: every table for itself. It is walked from top to bottom with a picture of the stage's memory;
// every rule looks at one action and this picture.

enum { INPUT_BUFFER, GRADIENT_BUFFER, SEND_BUFFER, BUFFER_KINDS, NO_BUFFER = -1 };

// What is known of one chunk.
typedef struct {
    int forwards, inputs, weights;              // done: forward passes, input halves, weight halves
    unsigned whole;                             // a bit for REDUCE and UPDATE, if done
    int buffer[BUFFER_KINDS][PIPELINE_BUFFERS_PER_DIRECTION]; // the micro-batch in the buffer, or on its way into it; -1: none
} ChunkState;

typedef struct {
    const Schedule* s;
    bool training;     // there are backward passes and an update
    unsigned* done;    // (v, m) a bit for every kind of action done with the micro-batch
    Item* kept;        // (slots) what the slot is kept for
    Item* output;      // (slots) whose output is in the slot
    ChunkState* chunk; // (v)
    unsigned whole;    // a bit for TIE, NORM and UPDATE_TIED, if done
} StageState;

__attribute__((format(printf, 4, 5))) static inline bool schedule_refuse(const Schedule* s, int i, Error* error,
                                                                         const char* format, ...) {
    char reason[512], which[32] = "", where[32] = "";
    const Action a = s->actions[i];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    if (a.microbatch != -1) snprintf(which, sizeof which, " %d", a.microbatch);
    if (s->plan.v > 1 && a.chunk != -1) snprintf(where, sizeof where, " in chunk %d", a.chunk);
    return fail(error, "schedule of stage %d, action %d, %s%s%s: %s", s->stage, i, action_name(a.kind), which, where,
                reason);
}

static inline unsigned* item_done(const StageState* st, Action a) {
    return &st->done[a.chunk * st->s->plan.m + a.microbatch];
}

// What a kind of action does, and what it needs, for one micro-batch: as bits. A whole backward pass does both halves.
static inline unsigned action_effects(ActionKind kind) {
    return kind == BACKWARD ? 1u << BACKWARD_INPUT | 1u << BACKWARD_WEIGHT : 1u << kind;
}

static inline unsigned action_needs(const Schedule* s, Action a) {
    const ActionKind receive = action_receive(s, a);
    const unsigned received = receive == ACTION_KINDS ? 0 : 1u << receive;
    switch (a.kind) {
    case FORWARD: return received;
    case SEND_FORWARD: return 1u << FORWARD;
    case BACKWARD:
    case BACKWARD_INPUT: return 1u << FORWARD | received;
    case BACKWARD_WEIGHT:
    case SEND_BACKWARD: return 1u << BACKWARD_INPUT;
    default: return 0;
    }
}

// All that has to be done with every micro-batch in a chunk.
static inline unsigned chunk_complete(const Schedule* s, int chunk, bool training) {
    unsigned all = 1u << FORWARD;
    if (training) all |= 1u << BACKWARD_INPUT | 1u << BACKWARD_WEIGHT;
    for (int kind = RECEIVE_FORWARD; kind <= (training ? SEND_BACKWARD : SEND_FORWARD); kind++) {
        if (transfer_other_end(s, (ActionKind)kind, chunk) >= 0) all |= 1u << kind;
    }
    return all;
}

static inline const char* first_action_of(unsigned bits) {
    int kind = 0;
    while (kind < ACTION_KINDS && !(bits >> kind & 1)) kind++;
    return action_name((ActionKind)kind);
}

// Which buffer an action fills, and which one it empties.
static inline int action_fills(const Schedule* s, Action a) {
    if (a.kind == RECEIVE_FORWARD) return INPUT_BUFFER;
    if (a.kind == RECEIVE_BACKWARD) return GRADIENT_BUFFER;
    return action_makes_input_gradient(a.kind) && !chunk_is_first(s, a.chunk) ? SEND_BUFFER : NO_BUFFER;
}

static inline int action_empties(ActionKind kind) {
    if (kind == FORWARD) return INPUT_BUFFER;
    if (action_makes_input_gradient(kind)) return GRADIENT_BUFFER;
    return kind == SEND_BACKWARD ? SEND_BUFFER : NO_BUFFER;
}

// Every field says something or is -1 or false, by the definition at the top.
static inline bool rule_fields(const StageState* st, int i, Error* error) {
    const Schedule* s = st->s;
    const Action a = s->actions[i];
    if ((unsigned)a.kind >= ACTION_KINDS) return schedule_refuse(s, i, error, "kind %d", (int)a.kind);
    const bool on_item = a.kind < REDUCE, on_chunk = on_item || a.kind == REDUCE || a.kind == UPDATE;
    const bool in_slot = action_computes(a.kind) || a.kind == SEND_FORWARD;
    if (on_chunk ? a.chunk < 0 || a.chunk >= s->plan.v : a.chunk != -1)
        return schedule_refuse(s, i, error, "no chunk %d of %d for it", a.chunk, s->plan.v);
    if (on_item ? a.microbatch < 0 || a.microbatch >= s->plan.m : a.microbatch != -1)
        return schedule_refuse(s, i, error, "no micro-batch %d of %d for it", a.microbatch, s->plan.m);
    if (in_slot ? a.slot < 0 || a.slot >= s->slots : a.slot != -1)
        return schedule_refuse(s, i, error, "no slot %d of %d for it", a.slot, s->slots);
    if (action_transfers(a.kind) && transfer_other_end(s, a.kind, a.chunk) < 0)
        return schedule_refuse(s, i, error, "there is no such neighbour");
    if (a.reduce && !action_adds_weight_gradients(a.kind))
        return schedule_refuse(s, i, error, "has the reduce flag and no weight gradients");
    return true;
}

// Nothing is done twice.
static inline bool rule_once(const StageState* st, int i, Error* error) {
    const Action a = st->s->actions[i];
    const unsigned done = a.microbatch >= 0 ? *item_done(st, a) : a.chunk >= 0 ? st->chunk[a.chunk].whole : st->whole;
    if (!(done & action_effects(a.kind))) return true;
    return schedule_refuse(st->s, i, error, "has been done before");
}

// What an action needs comes before it: the posted receive, the forward pass, the input half.
static inline bool rule_order(const StageState* st, int i, Error* error) {
    const Action a = st->s->actions[i];
    if (a.microbatch < 0) return true;
    const unsigned missing = action_needs(st->s, a) & ~*item_done(st, a);
    if (!missing) return true;
    return schedule_refuse(st->s, i, error, "needs %s %d before it", first_action_of(missing), a.microbatch);
}

// A slot holds one micro-batch from its forward pass to the end of its backward pass, and its output until it is sent.
static inline bool rule_slot(const StageState* st, int i, Error* error) {
    const Action a = st->s->actions[i];
    if (a.slot < 0) return true;
    const Item holds = a.kind == SEND_FORWARD ? st->output[a.slot] : st->kept[a.slot];
    if (same_item(holds, a.kind == FORWARD ? no_item() : item_of(a))) return true;
    if (holds.chunk < 0) return schedule_refuse(st->s, i, error, "slot %d is empty", a.slot);
    return schedule_refuse(st->s, i, error, "slot %d holds micro-batch %d of chunk %d", a.slot, holds.microbatch,
                           holds.chunk);
}

// No buffer is overwritten before its content was used.
static inline bool rule_buffers(const StageState* st, int i, Error* error) {
    static const char* names[BUFFER_KINDS] = {"receive buffer for inputs", "receive buffer for gradients",
                                              "send buffer"};
    const Action a = st->s->actions[i];
    if (a.microbatch < 0) return true;
    const int kind = action_fills(st->s, a);
    if (kind == NO_BUFFER) return true;
    const int which = a.microbatch % PIPELINE_BUFFERS_PER_DIRECTION, holds = st->chunk[a.chunk].buffer[kind][which];
    if (holds < 0) return true;
    return schedule_refuse(st->s, i, error, "overwrites micro-batch %d in %s %d", holds, names[kind], which);
}

// A chunk takes the micro-batches in order, in each kind of work: losses add up in the order of the forward passes,
// gradients of norms in the order of the input halves, all others in the order of the weight halves. So every schedule
// adds the same numbers in the same order, and results are the same bits.
static inline bool rule_sums(const StageState* st, int i, Error* error) {
    const Action a = st->s->actions[i];
    if (!action_computes(a.kind)) return true;
    const ChunkState* c = &st->chunk[a.chunk];
    if (a.kind == FORWARD && a.microbatch != c->forwards)
        return schedule_refuse(st->s, i, error, "the forward pass of micro-batch %d has to come next", c->forwards);
    if (action_makes_input_gradient(a.kind) && a.microbatch != c->inputs)
        return schedule_refuse(st->s, i, error, "the input gradient of micro-batch %d has to come next", c->inputs);
    if (action_adds_weight_gradients(a.kind) && a.microbatch != c->weights)
        return schedule_refuse(st->s, i, error, "weight gradients of micro-batch %d have to be added next", c->weights);
    return true;
}

// Where one stage holds a matrix that is embedding and head, the embedding's last gradients, which complete the sum of
// both, come after the head's.
static inline bool rule_tied(const StageState* st, int i, Error* error) {
    const Schedule* s = st->s;
    const Action a = s->actions[i];
    const int last = s->plan.v - 1;
    if (!s->plan.tied || !action_adds_weight_gradients(a.kind) || a.microbatch != s->plan.m - 1) return true;
    if (a.chunk == last || !chunk_is_first(s, a.chunk) || !chunk_is_last(s, last)) return true;
    if (st->chunk[last].weights == s->plan.m) return true;
    return schedule_refuse(s, i, error, "the head's gradients of the same matrix have to be added before");
}

// Gradients go to the data-parallel reduction when the last ones have been added, or after every micro-batch.
static inline bool rule_reduce_flag(const StageState* st, int i, Error* error) {
    const Action a = st->s->actions[i];
    if (!action_adds_weight_gradients(a.kind)) return true;
    const bool last = a.microbatch == st->s->plan.m - 1;
    if (a.reduce == (last || st->s->plan.reduce_every)) return true;
    return schedule_refuse(st->s, i, error, a.reduce ? "has a reduce flag too many" : "lacks the reduce flag");
}

// Sums before the norm, and what the plan says the update depends on before the update.
static inline bool rule_ending(const StageState* st, int i, Error* error) {
    const Schedule* s = st->s;
    const Action a = s->actions[i];
    const bool tied = st->whole >> TIE & 1, normed = st->whole >> NORM & 1;
    if ((a.kind == TIE || a.kind == UPDATE_TIED) && !schedule_has_tie(s))
        return schedule_refuse(s, i, error, "there is nothing to tie");
    for (int c = 0; c < s->plan.v; c++) {
        const bool sums = a.kind == REDUCE ? c == a.chunk : a.kind == TIE && chunk_is_tied(s, c);
        if (sums && st->chunk[c].weights < s->plan.m)
            return schedule_refuse(s, i, error, "weight gradients of micro-batch %d are missing", st->chunk[c].weights);
        const bool reduced = st->chunk[c].whole >> REDUCE & 1;
        if (!reduced && (a.kind == NORM || (a.kind == UPDATE && c == a.chunk)))
            return schedule_refuse(s, i, error, "chunk %d has not been reduced", c);
    }
    if (!tied && schedule_has_tie(s) && (a.kind == NORM || a.kind == UPDATE_TIED))
        return schedule_refuse(s, i, error, "needs tie before it");
    if (!normed && s->plan.clip && (a.kind == UPDATE || a.kind == UPDATE_TIED))
        return schedule_refuse(s, i, error, "needs norm before it");
    return true;
}

// What action a changes in the picture.
static inline void stage_state_apply(StageState* st, Action a) {
    if (a.microbatch < 0) {
        *(a.chunk >= 0 ? &st->chunk[a.chunk].whole : &st->whole) |= 1u << a.kind;
        return;
    }
    ChunkState* c = &st->chunk[a.chunk];
    const int k = a.microbatch, which = k % PIPELINE_BUFFERS_PER_DIRECTION;
    const int empties = action_empties(a.kind), fills = action_fills(st->s, a);
    *item_done(st, a) |= action_effects(a.kind);
    if (empties != NO_BUFFER) c->buffer[empties][which] = -1;
    if (fills != NO_BUFFER) c->buffer[fills][which] = k;
    if (a.kind == FORWARD) {
        c->forwards++;
        st->output[a.slot] = item_of(a), st->kept[a.slot] = st->training ? item_of(a) : no_item();
    }
    c->inputs += action_makes_input_gradient(a.kind);
    if (action_adds_weight_gradients(a.kind)) c->weights++, st->kept[a.slot] = no_item();
}

// After the last action: nothing is missing.
static inline bool schedule_check_complete(const StageState* st, Error* error) {
    const Schedule* s = st->s;
    for (int i = 0; i < s->plan.v * s->plan.m; i++) {
        const int c = i / s->plan.m, k = i % s->plan.m;
        const unsigned all = chunk_complete(s, c, st->training);
        if (st->done[i] != all)
            return fail(error, "schedule of stage %d: %s %d of chunk %d is missing", s->stage,
                        first_action_of(all & ~st->done[i]), k, c);
    }
    const unsigned of_chunk = st->training ? 1u << REDUCE | 1u << UPDATE : 0;
    for (int c = 0; c < s->plan.v; c++) {
        if (st->chunk[c].whole != of_chunk)
            return fail(error, "schedule of stage %d: %s of chunk %d is missing", s->stage,
                        first_action_of(of_chunk & ~st->chunk[c].whole), c);
    }
    const unsigned of_tie = schedule_has_tie(s) ? 1u << TIE | 1u << UPDATE_TIED : 0;
    const unsigned whole = st->training ? 1u << NORM | of_tie : 0;
    if (st->whole == whole) return true;
    return fail(error, "schedule of stage %d: %s is missing", s->stage, first_action_of(whole & ~st->whole));
}

static inline bool schedule_check_actions(StageState* st, Error* error) {
    for (int i = 0; i < st->s->n; i++) {
        if (!rule_fields(st, i, error) || !rule_once(st, i, error) || !rule_order(st, i, error) ||
            !rule_slot(st, i, error) || !rule_buffers(st, i, error) || !rule_sums(st, i, error) ||
            !rule_tied(st, i, error) || !rule_reduce_flag(st, i, error) || !rule_ending(st, i, error))
            return false;
        stage_state_apply(st, st->s->actions[i]);
    }
    return schedule_check_complete(st, error);
}

static inline bool schedule_check_stage(const Schedule* s, bool training, Error* error) {
    const size_t v = (size_t)s->plan.v, slots = (size_t)s->slots;
    StageState st;
    memset(&st, 0, sizeof st);
    st.s = s, st.training = training;
    st.done = (unsigned*)checked_calloc(v * (size_t)s->plan.m, sizeof(unsigned), "checking the schedule");
    st.kept = (Item*)checked_malloc(slots * sizeof(Item), "checking the schedule");
    st.output = (Item*)checked_malloc(slots * sizeof(Item), "checking the schedule");
    st.chunk = (ChunkState*)checked_calloc(v, sizeof(ChunkState), "checking the schedule");
    for (size_t i = 0; i < slots; i++) st.kept[i] = st.output[i] = no_item();
    for (size_t c = 0; c < v; c++) memset(st.chunk[c].buffer, -1, sizeof st.chunk[c].buffer);
    const bool ok = schedule_check_actions(&st, error);
    free(st.done), free(st.kept), free(st.output), free(st.chunk);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------------
// Check, second part: the tables together

static inline bool same_plan(const Pipeline* a, const Pipeline* b) {
    return a->kind == b->kind && a->p == b->p && a->v == b->v && a->m == b->m && a->reduce_every == b->reduce_every &&
           a->tied == b->tied && a->clip == b->clip;
}

// Table r is that of stage r; all are of the same plan, whatever order it names.
static inline bool schedule_check_headers(const Schedule* stages, int p, Error* error) {
    for (int r = 0; r < p; r++) {
        const Schedule* s = &stages[r];
        if (s->stage != r || s->plan.p != p)
            return fail(error, "schedule %d is for stage %d of %d", r, s->stage, s->plan.p);
        if (s->plan.m < 1 || s->plan.v < 1)
            return fail(error, "schedule of stage %d: %d micro-batches, %d chunks", r, s->plan.m, s->plan.v);
        if (!same_plan(&s->plan, &stages[0].plan)) return fail(error, "schedule of stage %d: another plan", r);
        if (s->slots < 1) return fail(error, "schedule of stage %d: %d slots", r, s->slots);
    }
    return true;
}

// A step with anything but forward passes and their transfers is a training step, on every stage.
static inline bool schedule_is_training(const Schedule* stages, int p) {
    for (int r = 0; r < p; r++) {
        for (int i = 0; i < stages[r].n; i++) {
            const ActionKind kind = stages[r].actions[i].kind;
            if (kind != FORWARD && kind != RECEIVE_FORWARD && kind != SEND_FORWARD) return true;
        }
    }
    return false;
}

// The next action of this kind with this stage at its other end, at or after i; s->n if there is none.
static inline int schedule_next(const Schedule* s, int i, ActionKind kind, int peer) {
    while (i < s->n && (s->actions[i].kind != kind || schedule_peer(s, kind, s->actions[i].chunk) != peer)) i++;
    return i;
}

// Messages have no tags: the n-th send and the n-th receive of a channel have to be about the same micro-batch and the
// same boundary between virtual stages. Both tables are complete, so there are as many sends as receives.
static inline bool schedule_check_messages(const Schedule* from, ActionKind send, const Schedule* to,
                                           ActionKind receive, Error* error) {
    int i = schedule_next(from, 0, send, to->stage), j = schedule_next(to, 0, receive, from->stage);
    while (i < from->n && j < to->n) {
        const Action sent = from->actions[i], expected = to->actions[j];
        if (sent.microbatch != expected.microbatch ||
            transfer_other_end(from, send, sent.chunk) != schedule_virtual_stage(to, expected.chunk))
            return schedule_refuse(to, j, error, "stage %d sends micro-batch %d of its chunk %d then", from->stage,
                                   sent.microbatch, sent.chunk);
        i = schedule_next(from, i + 1, send, to->stage), j = schedule_next(to, j + 1, receive, from->stage);
    }
    return true;
}

// The tables run to their ends, even when every send waits for its message and none is ever kept on its way.
static inline bool schedule_check_progress(const Schedule* stages, int p, Error* error) {
    Costs costs = costs_equal(p * stages[0].plan.v, 1, 1, 1, 0);
    Timeline t = schedule_times(stages, p, &costs, true);
    bool ok = true;
    for (int r = 0; r < p && ok; r++) {
        if (t.done[r] < stages[r].n) ok = schedule_refuse(&stages[r], t.done[r], error, "waits for ever: a deadlock");
    }
    timeline_free(&t);
    costs_free(&costs);
    return ok;
}

/*
Proves from the tables of all p stages alone:

    each table    every micro-batch goes through every chunk forward once and backward once, as a whole or as two halves
                  in order; what an action needs was computed or is being received; a slot holds one micro-batch from
                  forward to the end of backward; no buffer is overwritten before it was used; a chunk takes the
                  micro-batches in order; reduce flags; every chunk is reduced and updated once, after what that needs,
                  and so is a matrix that lies on two stages
    each pair     every send meets the receive of the same micro-batch at the same boundary
    all           no deadlock, even if no message is ever kept on its way and every send waits for its receiver

The first part leaves out that actions wait. The last one shows that every wait ends: each stage's own order is fixed
and each message has one sender and one receiver, so what an action waits for depends on nobody's speed, and one run to
the end stands for all. Where sends wait less, or networks keep messages, each action waits for a part of the same
things. Since slots and buffers are checked, slots, PIPELINE_BUFFERS_PER_DIRECTION and, of a backward pass in halves, schedule_in_flight
bound the memory of a step.
*/
static inline bool schedule_check(const Schedule* stages, int p, Error* error) {
    if (!schedule_check_headers(stages, p, error)) return false;
    const bool training = schedule_is_training(stages, p);
    for (int r = 0; r < p; r++) {
        if (!schedule_check_stage(&stages[r], training, error)) return false;
    }
    const int pairs = (int)min_i64(p * stages[0].plan.v - 1, 2 * p); // then the channels repeat
    for (int number = 0; number < pairs; number++) {
        const Schedule* a = &stages[pipeline_holder(&stages[0].plan, number)];
        const Schedule* b = &stages[pipeline_holder(&stages[0].plan, number + 1)];
        if (!schedule_check_messages(a, SEND_FORWARD, b, RECEIVE_FORWARD, error)) return false;
        if (!schedule_check_messages(b, SEND_BACKWARD, a, RECEIVE_BACKWARD, error)) return false;
    }
    return schedule_check_progress(stages, p, error);
}

// ----------------------------------------------------------------------------------------------------------------
// Draw

static inline char action_letter(ActionKind kind) {
    return kind == FORWARD ? 'F' : kind == BACKWARD_WEIGHT ? 'W' : 'B';
}

// F5, or F5a, F5b where there are several chunks; F5.0, F5.1 where there are more than letters.
static inline int action_label(char* text, size_t size, const Schedule* s, Action a) {
    if (s->plan.v > 26) return snprintf(text, size, "%c%d.%d", action_letter(a.kind), a.microbatch, a.chunk);
    const char chunk[2] = {s->plan.v > 1 ? (char)('a' + a.chunk) : '\0', '\0'};
    return snprintf(text, size, "%c%d%s", action_letter(a.kind), a.microbatch, chunk);
}

// One stage: F0 B0 F1 B1 ... update; long tables are cut in the middle.
static inline void schedule_draw_list(const Schedule* s, FILE* out) {
    const int ends = 8;
    int shown = 0, all = 0;
    for (int i = 0; i < s->n; i++) all += action_computes(s->actions[i].kind);
    for (int i = 0; i < s->n; i++) {
        char text[32];
        const Action a = s->actions[i];
        if (a.kind == UPDATE) fprintf(out, "update ");
        if (!action_computes(a.kind)) continue;
        action_label(text, sizeof text, s, a);
        shown++;
        if (all <= 2 * ends + 1 || shown <= ends || shown > all - ends)
            fprintf(out, "%s ", text);
        else if (shown == ends + 1)
            fprintf(out, "... ");
    }
    fprintf(out, "\n");
}

// One action into a line of `cell` characters a unit of time: F5, B5---.
static inline void schedule_draw_action(char* line, int cell, const Schedule* s, Action a, int start, int end) {
    char text[32];
    memset(line + start * cell, end - start > 1 ? '-' : ' ', (size_t)((end - start) * cell - 1));
    line[end * cell - 1] = ' ';
    const int n = action_label(text, sizeof text, s, a);
    memcpy(line + start * cell, text, (size_t)n);
}

// All stages over time, as in Narayanan et al. 2021, Figure 4: a line a stage, a forward pass 1 unit of time, a
// backward pass 2 units, half of one 1 unit. No line is wider than 110 characters: a longer step is cut in the middle.
static inline void schedule_draw_stages(const Schedule* stages, int p, FILE* out) {
    const bool chunks = stages[0].plan.v > 1;
    const int width = 110, label = snprintf(NULL, 0, "stage %d  ", p - 1);
    const Action widest = {FORWARD, stages[0].plan.v - 1, stages[0].plan.m - 1, 0, false};
    const int cell = action_label(NULL, 0, &stages[0], widest) + 1;
    Costs costs = costs_equal(p * stages[0].plan.v, 1, 1, 1, 0);
    Timeline t = schedule_times(stages, p, &costs, false);
    const int units = (int)t.length, half = (width - label - 5) / cell / 2; // 5: "... " and "|"
    const bool cut = label + units * cell + 1 > width;
    char* line = (char*)checked_malloc((size_t)(units * cell) + 1, "drawing the schedule");
    for (int r = 0; r < p; r++) {
        const Schedule* s = &stages[r];
        for (int i = 0; i < units * cell; i++) line[i] = i % cell == 0 ? '.' : ' ';
        for (int i = 0; i < t.done[r]; i++) {
            if (action_computes(s->actions[i].kind))
                schedule_draw_action(line, cell, s, s->actions[i], (int)t.start[r][i], (int)t.end[r][i]);
        }
        fprintf(out, "stage %-*d", label - 6, r);
        if (cut) fprintf(out, "%.*s... ", half * cell, line);
        fprintf(out, "%.*s|\n", (cut ? half : units) * cell, cut ? line + (units - half) * cell : line);
    }
    fprintf(out, "%*sF forward  B backward  W its weight half  %s. idle  | end: bubble %.1f %% of the work\n", label,
            "", chunks ? "a b chunks  " : "", 100 * timeline_bubble(stages, &t));
    free(line);
    timeline_free(&t);
    costs_free(&costs);
}

// For a terminal; of tables that pass schedule_check.
static inline void schedule_draw(const Schedule* stages, int p, FILE* out) {
    if (p == 1)
        schedule_draw_list(stages, out);
    else
        schedule_draw_stages(stages, p, out);
}

#endif
