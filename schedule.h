/*
schedule.h: the order of a step's work as a table. The trainer executes the table, --dry-run draws it, the tests prove
it: one list of actions for all of them, built here by pure functions that know no MPI and no CUDA.

The model is cut into p stages, one after another. A step sends m micro-batches through all stages and back and then
updates once. Every stage has a table of its own and works through it from top to bottom:

    FORWARD k           forward pass of micro-batch k; its activations fill a slot
    BACKWARD k          backward pass, both halves; the slot is free afterwards
    BACKWARD_INPUT k    only the gradient of the input: what the previous stage waits for
    BACKWARD_WEIGHT k   only the gradients of the weights: nobody waits for them (Qi et al. 2024, "Zero bubble pipeline
                        parallelism"); the slot is free after this half

    RECEIVE_FORWARD k   start receiving the input of k from the previous stage into receive buffer k mod 2.
                        FORWARD k waits for it and empties the buffer.
    SEND_FORWARD k      start sending the output of k to the next stage, out of the slot itself, where it stays until
                        the slot's next FORWARD. That one waits until the message has gone.
    RECEIVE_BACKWARD k  start receiving the gradient of the output of k from the next stage into receive buffer k mod 2.
                        BACKWARD k or BACKWARD_INPUT k waits for it and empties the buffer; an input half leaves in the
                        slot what the weight half needs of it.
    SEND_BACKWARD k     start sending the gradient of the input of k to the previous stage out of send buffer k mod 2.
                        The backward pass of k + 2, which fills the buffer again, waits until the message has gone.

    REDUCE              wait for the data-parallel reductions; sum tied embeddings over the first and the last stage
    UPDATE              gradient norm over all stages, clipping, optimizer

No stage waits for a message that it sends, except to use the buffer again; the last ones of a step may still be on
their way when the next step begins. Two receive buffers a direction mean that receives are posted at least one
micro-batch ahead of their use: a message arrives while its receiver computes. Messages have no tags: the n-th send of a
stage to a neighbour meets the n-th receive that the neighbour has posted for that direction. The four kinds of
transfers do not hold each other up; whoever executes the table has to see to that (MPI does; streams need one a kind).

1F1B (Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM",
section 2.2 and Figure 4; first as PipeDream-Flush in Narayanan et al. 2020, "Memory-efficient pipeline-parallel DNN
training"): stage r first does min(p - r - 1, m) forwards, until the first gradient can be on its way; then one forward
and one backward in turn; then the backwards that are left. With equal stages that take f and b seconds a micro-batch,
a stage idles while the first micro-batch travels to the last stage and while the last gradient travels back:

    bubble = idle / ideal = (p - 1) (f + b) / (m (f + b)) = (p - 1) / m

the same as for all forwards first (GPipe), but at most min(p - r, m) micro-batches are in flight, instead of m. A slot
is the memory of one micro-batch in flight. The builder assigns slots, so the memory of a step is known before it runs.

    build    schedule_build_1f1b, schedule_build_forward: the table of one stage
    check    schedule_check: a proof from the tables of all stages, see there
    time     schedule_times, schedule_bubble: when every action starts and ends if stages take given seconds
    draw     schedule_draw: that timeline as a picture of characters
*/
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include "base.h"

enum { SCHEDULE_BUFFERS = 2 }; // receive buffers a direction; send buffers for gradients

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
    UPDATE,
    ACTION_KINDS // how many there are
} ActionKind;

typedef struct {
    ActionKind kind;
    int microbatch; // -1 for REDUCE and UPDATE
    int slot;       // of FORWARD, SEND_FORWARD and the backward kinds; -1 for the others
    bool reduce;    // of BACKWARD and BACKWARD_WEIGHT: hand gradients to the data-parallel reduction as they get ready
} Action;

typedef struct {
    int stage, p; // stage 0 .. p - 1 of p
    int m;        // micro-batches
    int slots;    // activation slots
    int n;        // actions
    Action* actions;
} Schedule;

static inline const char* action_name(ActionKind kind) {
    static const char* names[] = {"forward",         "backward",     "backward input half", "backward weight half",
                                  "receive forward", "send forward", "receive backward",    "send backward",
                                  "reduce",          "update"};
    return (unsigned)kind < ACTION_KINDS ? names[kind] : "unknown action";
}

static inline bool action_is_backward(ActionKind kind) {
    return kind == BACKWARD || kind == BACKWARD_INPUT || kind == BACKWARD_WEIGHT;
}

static inline bool action_computes(ActionKind kind) { return kind == FORWARD || action_is_backward(kind); }

// The two results of a backward pass.
static inline bool action_makes_input_gradient(ActionKind kind) { return kind == BACKWARD || kind == BACKWARD_INPUT; }
static inline bool action_adds_weight_gradients(ActionKind kind) { return kind == BACKWARD || kind == BACKWARD_WEIGHT; }

// The stage that a transfer of this kind goes to or comes from; -1 if there is none, or if it is no transfer.
static inline int schedule_peer(const Schedule* s, ActionKind kind) {
    if (kind == RECEIVE_FORWARD || kind == SEND_BACKWARD) return s->stage - 1;
    if (kind == SEND_FORWARD || kind == RECEIVE_BACKWARD) return s->stage + 1 < s->p ? s->stage + 1 : -1;
    return -1;
}

// ----------------------------------------------------------------------------------------------------------------
// Build

static inline Schedule schedule_new(int stage, int p, int m, int slots) {
    const int most = 7 * m + 2; // forward, two halves, four transfers; reduce and update
    Schedule s = {stage, p, m, slots, 0, NULL};
    s.actions = (Action*)checked_malloc((size_t)most * sizeof(Action), "the schedule");
    return s;
}

static inline void schedule_free(Schedule* s) {
    free(s->actions);
    memset(s, 0, sizeof *s);
}

static inline void schedule_add(Schedule* s, ActionKind kind, int microbatch, int slot, bool reduce) {
    const Action a = {kind, microbatch, slot, reduce};
    s->actions[s->n++] = a;
}

// A transfer, if there is such a neighbour and such a micro-batch.
static inline void schedule_add_transfer(Schedule* s, ActionKind kind, int microbatch, int slot) {
    if (schedule_peer(s, kind) >= 0 && microbatch < s->m) schedule_add(s, kind, microbatch, slot, false);
}

// Receives are posted as early as their buffers allow: the first ones before anything else, ...
static inline void schedule_add_first_receives(Schedule* s, ActionKind kind) {
    for (int k = 0; k < SCHEDULE_BUFFERS; k++) schedule_add_transfer(s, kind, k, -1);
}

// ... the others right after the action that has emptied their buffer.
static inline void schedule_add_forward(Schedule* s, int k) {
    schedule_add(s, FORWARD, k, k % s->slots, false);
    schedule_add_transfer(s, SEND_FORWARD, k, k % s->slots);
    schedule_add_transfer(s, RECEIVE_FORWARD, k + SCHEDULE_BUFFERS, -1);
}

// split: the previous stage gets its gradient before the weight half.
static inline void schedule_add_backward(Schedule* s, int k, bool split, bool reduce) {
    schedule_add(s, split ? BACKWARD_INPUT : BACKWARD, k, k % s->slots, !split && reduce);
    schedule_add_transfer(s, SEND_BACKWARD, k, -1);
    schedule_add_transfer(s, RECEIVE_BACKWARD, k + SCHEDULE_BUFFERS, -1);
    if (split) schedule_add(s, BACKWARD_WEIGHT, k, k % s->slots, reduce);
}

// One forward, one backward: a training step. split: backward passes in two halves. reduce_every: gradients are handed
// to the data-parallel reduction after every micro-batch (ZeRO-2 keeps only its own part of them), not once at the end.
static inline Schedule schedule_build_1f1b(int stage, int p, int m, bool split, bool reduce_every) {
    Schedule s = schedule_new(stage, p, m, (int)min_i64(p - stage, m));
    const int warm = (int)min_i64(p - stage - 1, m);
    schedule_add_first_receives(&s, RECEIVE_FORWARD);
    schedule_add_first_receives(&s, RECEIVE_BACKWARD);
    for (int k = 0; k < m + warm; k++) { // a backward pass comes `warm` forwards after its own forward pass
        if (k < m) schedule_add_forward(&s, k);
        if (k >= warm) schedule_add_backward(&s, k - warm, split, reduce_every || k - warm == m - 1);
    }
    schedule_add(&s, REDUCE, -1, -1, false);
    schedule_add(&s, UPDATE, -1, -1, false);
    return s;
}

// Forward passes only, for validation. Nothing comes back for a micro-batch, so one slot does.
static inline Schedule schedule_build_forward(int stage, int p, int m) {
    Schedule s = schedule_new(stage, p, m, 1);
    schedule_add_first_receives(&s, RECEIVE_FORWARD);
    for (int k = 0; k < m; k++) schedule_add_forward(&s, k);
    return s;
}

// ----------------------------------------------------------------------------------------------------------------
// Time: what happens when all stages work through their tables, each waiting only for messages and for buffers.
// A message needs no time and has no other place to be than the buffers of its two ends: it goes over at the moment
// when its send has been started and its receive has been posted, whichever is later (a rendezvous).

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

// What a stage's progress depends on.
typedef struct {
    double now;                    // when its last action ended
    double* started;               // (ACTION_KINDS, m) when a transfer was started; INFINITY: not yet
    int* output;                   // (slots) the micro-batch whose output is in the slot; -1: none
    int sending[SCHEDULE_BUFFERS]; // the micro-batch whose gradient is in the send buffer; -1: none
} StageProgress;

static inline void stage_progress_begin(StageProgress* g, const Schedule* s) {
    const size_t transfers = (size_t)ACTION_KINDS * (size_t)s->m;
    g->now = 0;
    g->started = (double*)checked_malloc(transfers * sizeof(double), "the timeline");
    g->output = (int*)checked_malloc((size_t)s->slots * sizeof(int), "the timeline");
    for (size_t i = 0; i < transfers; i++) g->started[i] = INFINITY;
    for (int i = 0; i < s->slots; i++) g->output[i] = -1;
    for (int i = 0; i < SCHEDULE_BUFFERS; i++) g->sending[i] = -1;
}

// When the message about micro-batch k went from one stage to another: INFINITY if not yet; 0 if there is none such.
static inline double message_time(const Schedule* stages, const StageProgress* progress, int from, int to, int k) {
    const int p = stages[0].p, m = stages[0].m;
    if (k < 0 || from < 0 || to < 0 || from >= p || to >= p) return 0;
    const double sent = progress[from].started[(to > from ? SEND_FORWARD : SEND_BACKWARD) * m + k];
    const double posted = progress[to].started[(to > from ? RECEIVE_FORWARD : RECEIVE_BACKWARD) * m + k];
    return fmax(sent, posted);
}

// When action a of stage r can start: its message is there and what it is going to fill is free. INFINITY: not yet.
static inline double action_ready(const Schedule* stages, const StageProgress* progress, int r, Action a) {
    const StageProgress* g = &progress[r];
    double arrived = 0, free_again = 0;
    if (a.kind == FORWARD) {
        arrived = message_time(stages, progress, r - 1, r, a.microbatch);
        free_again = message_time(stages, progress, r, r + 1, g->output[a.slot]);
    } else if (action_makes_input_gradient(a.kind)) {
        arrived = message_time(stages, progress, r + 1, r, a.microbatch);
        free_again = message_time(stages, progress, r, r - 1, g->sending[a.microbatch % SCHEDULE_BUFFERS]);
    }
    return fmax(g->now, fmax(arrived, free_again));
}

static inline void action_done(StageProgress* g, int m, Action a, double start, double end) {
    g->now = end;
    if (a.kind == FORWARD)
        g->output[a.slot] = a.microbatch;
    else if (action_makes_input_gradient(a.kind))
        g->sending[a.microbatch % SCHEDULE_BUFFERS] = a.microbatch;
    else if (a.microbatch >= 0)
        g->started[a.kind * m + a.microbatch] = start;
}

static inline double action_seconds(ActionKind kind, double forward, double backward) {
    if (kind == FORWARD) return forward;
    if (kind == BACKWARD) return backward;
    return action_is_backward(kind) ? backward / 2 : 0;
}

// The timeline of tables that pass schedule_check, on p equal stages: a forward and a backward pass of one micro-batch
// take the given seconds, each half of a backward pass half of them, everything else nothing.
static inline Timeline schedule_times(const Schedule* stages, int p, double forward, double backward) {
    Timeline t = timeline_new(stages, p);
    StageProgress* progress =
        (StageProgress*)checked_calloc((size_t)stages[0].p, sizeof(StageProgress), "the timeline");
    for (int r = 0; r < p; r++) stage_progress_begin(&progress[r], &stages[r]);
    for (bool moved = true; moved;) { // times do not depend on the order in which stages get their turns
        moved = false;
        for (int r = 0; r < p; r++) {
            for (; t.done[r] < stages[r].n; t.done[r]++, moved = true) {
                const Action a = stages[r].actions[t.done[r]];
                const double start = action_ready(stages, progress, r, a);
                if (start == INFINITY) break;
                t.start[r][t.done[r]] = start;
                t.end[r][t.done[r]] = start + action_seconds(a.kind, forward, backward);
                action_done(&progress[r], stages[r].m, a, start, t.end[r][t.done[r]]);
            }
            t.length = fmax(t.length, progress[r].now);
        }
    }
    for (int r = 0; r < p; r++) free(progress[r].started), free(progress[r].output);
    free(progress);
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

static inline double schedule_bubble(const Schedule* stages, int p, double forward, double backward) {
    Timeline t = schedule_times(stages, p, forward, backward);
    const double bubble = timeline_bubble(stages, &t);
    timeline_free(&t);
    return bubble;
}

// ----------------------------------------------------------------------------------------------------------------
// Check, first part: every table for itself. It is walked from top to bottom with a picture of the stage's memory;
// every rule looks at one action and this picture.

enum { INPUT_BUFFER, GRADIENT_BUFFER, SEND_BUFFER, BUFFER_KINDS, NO_BUFFER = -1 };

typedef struct {
    const Schedule* s;
    bool training;                              // there are backward passes and an update
    unsigned* done;                             // (m) a bit for every kind of action done with the micro-batch
    int* kept;                                  // (slots) the micro-batch that the slot is kept for; -1: none
    int* output;                                // (slots) the micro-batch whose output is in the slot; -1: none
    int buffer[BUFFER_KINDS][SCHEDULE_BUFFERS]; // the micro-batch in the buffer, or on its way into it; -1: none
    int summed;                                 // micro-batches whose weight gradients have been added up
    bool reduced;                               // the last of them were handed to the reduction
} StageState;

__attribute__((format(printf, 4, 5))) static inline bool schedule_refuse(const Schedule* s, int i, Error* error,
                                                                         const char* format, ...) {
    char reason[512], which[16] = "";
    const Action a = s->actions[i];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    if (a.microbatch != -1) snprintf(which, sizeof which, " %d", a.microbatch);
    return fail(error, "schedule of stage %d, action %d, %s%s: %s", s->stage, i, action_name(a.kind), which, reason);
}

// What a kind of action does, and what it needs, for one micro-batch: as bits. A whole backward pass does both halves.
static inline unsigned action_effects(ActionKind kind) {
    return kind == BACKWARD ? 1u << BACKWARD_INPUT | 1u << BACKWARD_WEIGHT : 1u << kind;
}

static inline unsigned action_needs(const Schedule* s, ActionKind kind) {
    switch (kind) {
    case FORWARD: return schedule_peer(s, RECEIVE_FORWARD) >= 0 ? 1u << RECEIVE_FORWARD : 0;
    case SEND_FORWARD: return 1u << FORWARD;
    case BACKWARD:
    case BACKWARD_INPUT: return 1u << FORWARD | (schedule_peer(s, RECEIVE_BACKWARD) >= 0 ? 1u << RECEIVE_BACKWARD : 0);
    case BACKWARD_WEIGHT:
    case SEND_BACKWARD: return 1u << BACKWARD_INPUT;
    default: return 0;
    }
}

// All that has to be done with every micro-batch.
static inline unsigned schedule_complete(const Schedule* s, bool training) {
    unsigned all = 1u << FORWARD;
    if (training) all |= 1u << BACKWARD_INPUT | 1u << BACKWARD_WEIGHT;
    for (int kind = RECEIVE_FORWARD; kind <= (training ? SEND_BACKWARD : SEND_FORWARD); kind++) {
        if (schedule_peer(s, (ActionKind)kind) >= 0) all |= 1u << kind;
    }
    return all;
}

static inline const char* first_action_of(unsigned bits) {
    int kind = 0;
    while (!(bits >> kind & 1)) kind++;
    return action_name((ActionKind)kind);
}

// Which buffer an action fills, and which one it empties.
static inline int action_fills(const Schedule* s, ActionKind kind) {
    if (kind == RECEIVE_FORWARD) return INPUT_BUFFER;
    if (kind == RECEIVE_BACKWARD) return GRADIENT_BUFFER;
    return action_makes_input_gradient(kind) && s->stage > 0 ? SEND_BUFFER : NO_BUFFER;
}

static inline int action_empties(ActionKind kind) {
    if (kind == FORWARD) return INPUT_BUFFER;
    if (action_makes_input_gradient(kind)) return GRADIENT_BUFFER;
    return kind == SEND_BACKWARD ? SEND_BUFFER : NO_BUFFER;
}

static inline bool rule_fields(const StageState* st, int i, Error* error) {
    const Schedule* s = st->s;
    const Action a = s->actions[i];
    if ((unsigned)a.kind >= ACTION_KINDS) return schedule_refuse(s, i, error, "kind %d", (int)a.kind);
    const bool whole_step = a.kind == REDUCE || a.kind == UPDATE;
    const bool transfer = a.kind >= RECEIVE_FORWARD && a.kind <= SEND_BACKWARD;
    const bool in_slot = action_computes(a.kind) || a.kind == SEND_FORWARD;
    if (whole_step ? a.microbatch != -1 : a.microbatch < 0 || a.microbatch >= s->m)
        return schedule_refuse(s, i, error, "no micro-batch %d of %d for it", a.microbatch, s->m);
    if (in_slot ? a.slot < 0 || a.slot >= s->slots : a.slot != -1)
        return schedule_refuse(s, i, error, "no slot %d of %d for it", a.slot, s->slots);
    if (transfer && schedule_peer(s, a.kind) < 0)
        return schedule_refuse(s, i, error, "there is no such neighbour of stage %d of %d", s->stage, s->p);
    if (a.reduce && !action_adds_weight_gradients(a.kind))
        return schedule_refuse(s, i, error, "has the reduce flag and no weight gradients");
    return true;
}

// Nothing is done twice.
static inline bool rule_once(const StageState* st, int i, Error* error) {
    const Action a = st->s->actions[i];
    if (a.microbatch < 0 || !(st->done[a.microbatch] & action_effects(a.kind))) return true;
    return schedule_refuse(st->s, i, error, "has been done before");
}

// What an action needs comes before it: the posted receive, the forward pass, the input half.
static inline bool rule_order(const StageState* st, int i, Error* error) {
    const Action a = st->s->actions[i];
    if (a.microbatch < 0) return true;
    const unsigned missing = action_needs(st->s, a.kind) & ~st->done[a.microbatch];
    if (!missing) return true;
    return schedule_refuse(st->s, i, error, "needs %s %d before it", first_action_of(missing), a.microbatch);
}

// A slot holds one micro-batch from its forward pass to the end of its backward pass, and its output until it is sent.
static inline bool rule_slot(const StageState* st, int i, Error* error) {
    const Action a = st->s->actions[i];
    if (a.slot < 0) return true;
    const int holds = a.kind == SEND_FORWARD ? st->output[a.slot] : st->kept[a.slot];
    if (holds == (a.kind == FORWARD ? -1 : a.microbatch)) return true;
    if (holds < 0) return schedule_refuse(st->s, i, error, "slot %d is empty", a.slot);
    return schedule_refuse(st->s, i, error, "slot %d holds micro-batch %d", a.slot, holds);
}

// No buffer is overwritten before its content was used.
static inline bool rule_buffers(const StageState* st, int i, Error* error) {
    static const char* names[BUFFER_KINDS] = {"receive buffer for inputs", "receive buffer for gradients",
                                              "send buffer"};
    const Action a = st->s->actions[i];
    const int kind = action_fills(st->s, a.kind);
    if (kind == NO_BUFFER) return true;
    const int which = a.microbatch % SCHEDULE_BUFFERS, holds = st->buffer[kind][which];
    if (holds < 0) return true;
    return schedule_refuse(st->s, i, error, "overwrites micro-batch %d in %s %d", holds, names[kind], which);
}

// Weight gradients are added in the order of the micro-batches: sums are bit-identical for every schedule.
static inline bool rule_sums(const StageState* st, int i, Error* error) {
    const Action a = st->s->actions[i];
    if (!action_adds_weight_gradients(a.kind) || a.microbatch == st->summed) return true;
    return schedule_refuse(st->s, i, error, "weight gradients of micro-batch %d have to be added next", st->summed);
}

// Gradients go to the data-parallel reduction when the last ones have been added, or after every micro-batch.
static inline bool rule_reduce_flag(const StageState* st, int i, Error* error) {
    const Action a = st->s->actions[i];
    if (!action_adds_weight_gradients(a.kind)) return true;
    const bool last = st->summed == st->s->m - 1;
    if (last && !a.reduce) return schedule_refuse(st->s, i, error, "the last weight gradients lack the reduce flag");
    if (last || st->summed == 0 || a.reduce == st->reduced) return true;
    return schedule_refuse(st->s, i, error, "the reduce flag has to be on all weight gradients, or on the last alone");
}

// REDUCE and UPDATE are where all stages meet: the two last actions of a training step.
static inline bool rule_ending(const StageState* st, int i, Error* error) {
    const Action a = st->s->actions[i];
    const int left = st->s->n - 1 - i;
    const ActionKind wanted = left == 0 ? UPDATE : REDUCE;
    if (st->training && left <= 1 && a.kind != wanted)
        return schedule_refuse(st->s, i, error, "%s belongs here", action_name(wanted));
    if (left <= 1 || (a.kind != REDUCE && a.kind != UPDATE)) return true;
    return schedule_refuse(st->s, i, error, "%d more actions come after it", left);
}

// What action a changes in the picture.
static inline void stage_state_apply(StageState* st, Action a) {
    if (a.microbatch < 0) return;
    const int k = a.microbatch, which = k % SCHEDULE_BUFFERS;
    const int empties = action_empties(a.kind), fills = action_fills(st->s, a.kind);
    st->done[k] |= action_effects(a.kind);
    if (empties != NO_BUFFER) st->buffer[empties][which] = -1;
    if (fills != NO_BUFFER) st->buffer[fills][which] = k;
    if (a.kind == FORWARD) st->output[a.slot] = k, st->kept[a.slot] = st->training ? k : -1;
    if (action_adds_weight_gradients(a.kind)) {
        st->summed++, st->reduced = a.reduce;
        st->kept[a.slot] = -1;
    }
}

static inline bool schedule_check_actions(StageState* st, Error* error) {
    for (int i = 0; i < st->s->n; i++) {
        if (!rule_fields(st, i, error) || !rule_once(st, i, error) || !rule_order(st, i, error) ||
            !rule_slot(st, i, error) || !rule_buffers(st, i, error) || !rule_sums(st, i, error) ||
            !rule_reduce_flag(st, i, error) || !rule_ending(st, i, error))
            return false;
        stage_state_apply(st, st->s->actions[i]);
    }
    const unsigned all = schedule_complete(st->s, st->training);
    for (int k = 0; k < st->s->m; k++) {
        if (st->done[k] != all)
            return fail(error, "schedule of stage %d: %s %d is missing", st->s->stage,
                        first_action_of(all & ~st->done[k]), k);
    }
    return true;
}

static inline bool schedule_check_stage(const Schedule* s, bool training, Error* error) {
    StageState st;
    memset(&st, 0, sizeof st);
    st.s = s, st.training = training;
    st.done = (unsigned*)checked_calloc((size_t)s->m, sizeof(unsigned), "checking the schedule");
    st.kept = (int*)checked_malloc((size_t)s->slots * sizeof(int), "checking the schedule");
    st.output = (int*)checked_malloc((size_t)s->slots * sizeof(int), "checking the schedule");
    for (int i = 0; i < s->slots; i++) st.kept[i] = st.output[i] = -1;
    for (int i = 0; i < BUFFER_KINDS * SCHEDULE_BUFFERS; i++)
        st.buffer[i / SCHEDULE_BUFFERS][i % SCHEDULE_BUFFERS] = -1;
    const bool ok = schedule_check_actions(&st, error);
    free(st.done), free(st.kept), free(st.output);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------------
// Check, second part: the tables together

// Table r is that of stage r; all are for the same step.
static inline bool schedule_check_headers(const Schedule* stages, int p, Error* error) {
    for (int r = 0; r < p; r++) {
        const Schedule* s = &stages[r];
        if (s->stage != r || s->p != p) return fail(error, "schedule %d is for stage %d of %d", r, s->stage, s->p);
        if (s->m < 1 || s->m != stages[0].m) return fail(error, "schedule of stage %d: %d micro-batches", r, s->m);
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

// The next action of this kind at or after i; s->n if there is none.
static inline int schedule_next(const Schedule* s, int i, ActionKind kind) {
    while (i < s->n && s->actions[i].kind != kind) i++;
    return i;
}

// Messages have no tags: the n-th send and the n-th receive have to be about the same micro-batch. Both tables are
// complete, so there are as many sends as receives.
static inline bool schedule_check_messages(const Schedule* from, ActionKind send, const Schedule* to,
                                           ActionKind receive, Error* error) {
    int i = schedule_next(from, 0, send), j = schedule_next(to, 0, receive);
    while (i < from->n && j < to->n) {
        const int sent = from->actions[i].microbatch, expected = to->actions[j].microbatch;
        if (sent != expected)
            return schedule_refuse(to, j, error, "stage %d sends micro-batch %d then", from->stage, sent);
        i = schedule_next(from, i + 1, send), j = schedule_next(to, j + 1, receive);
    }
    return true;
}

// The tables run to their ends, even when no message is ever kept anywhere on its way.
static inline bool schedule_check_progress(const Schedule* stages, int p, Error* error) {
    Timeline t = schedule_times(stages, p, 1, 2);
    bool ok = true;
    for (int r = 0; r < p && ok; r++) {
        if (t.done[r] < stages[r].n) ok = schedule_refuse(&stages[r], t.done[r], error, "waits for ever: a deadlock");
    }
    timeline_free(&t);
    return ok;
}

/*
Proves from the tables of all p stages alone:

    each table    every micro-batch goes forward once and backward once, as a whole or as two halves in order; what an
                  action needs was computed or is being received; a slot holds one micro-batch from forward to the end
                  of backward; no buffer is overwritten before it was used; weight gradients are added in the order of
                  the micro-batches; reduce flags; REDUCE and UPDATE come last, or never if there are only forwards
    neighbours    every send meets the receive of the same micro-batch
    all           no deadlock

The first part leaves out that actions wait. The last one shows that every wait ends: each stage's own order is fixed
and each message has one sender and one receiver, so what an action waits for depends on nobody's speed, and one run to
the end stands for all. Since slots and buffers are checked, s->slots and SCHEDULE_BUFFERS bound the memory of a step.
*/
static inline bool schedule_check(const Schedule* stages, int p, Error* error) {
    if (!schedule_check_headers(stages, p, error)) return false;
    const bool training = schedule_is_training(stages, p);
    for (int r = 0; r < p; r++) {
        if (!schedule_check_stage(&stages[r], training, error)) return false;
    }
    for (int r = 0; r + 1 < p; r++) {
        if (!schedule_check_messages(&stages[r], SEND_FORWARD, &stages[r + 1], RECEIVE_FORWARD, error)) return false;
        if (!schedule_check_messages(&stages[r + 1], SEND_BACKWARD, &stages[r], RECEIVE_BACKWARD, error)) return false;
    }
    return schedule_check_progress(stages, p, error);
}

// ----------------------------------------------------------------------------------------------------------------
// Draw

static inline char action_letter(ActionKind kind) {
    return kind == FORWARD ? 'F' : kind == BACKWARD_WEIGHT ? 'W' : 'B';
}

// One stage: F0 B0 F1 B1 ... update; long tables are cut in the middle.
static inline void schedule_draw_list(const Schedule* s, FILE* out) {
    const int ends = 8;
    int shown = 0, all = 0;
    for (int i = 0; i < s->n; i++) all += action_computes(s->actions[i].kind);
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        if (a.kind == UPDATE) fprintf(out, "update");
        if (!action_computes(a.kind)) continue;
        shown++;
        if (all <= 2 * ends + 1 || shown <= ends || shown > all - ends)
            fprintf(out, "%c%d ", action_letter(a.kind), a.microbatch);
        else if (shown == ends + 1)
            fprintf(out, "... ");
    }
    fprintf(out, "\n");
}

// One action into a line of `cell` characters a unit of time: F5, B5---.
static inline void schedule_draw_action(char* line, int cell, Action a, int start, int end) {
    char text[16];
    memset(line + start * cell, end - start > 1 ? '-' : ' ', (size_t)((end - start) * cell - 1));
    line[end * cell - 1] = ' ';
    const int n = snprintf(text, sizeof text, "%c%d", action_letter(a.kind), a.microbatch);
    memcpy(line + start * cell, text, (size_t)n);
}

// All stages over time, as in Narayanan et al. 2021, Figure 4: a line a stage, a forward pass 1 unit of time, a
// backward pass 2 units, half of one 1 unit. No line is wider than 110 characters: a longer step is cut in the middle.
static inline void schedule_draw_stages(const Schedule* stages, int p, FILE* out) {
    const int width = 110, label = snprintf(NULL, 0, "stage %d  ", p - 1);
    const int cell = snprintf(NULL, 0, "F%d ", stages[0].m - 1);
    Timeline t = schedule_times(stages, p, 1, 2);
    const int units = (int)t.length, half = (width - label - 5) / cell / 2; // 5: "... " and "|"
    const bool cut = label + units * cell + 1 > width;
    char* line = (char*)checked_malloc((size_t)(units * cell) + 1, "drawing the schedule");
    for (int r = 0; r < p; r++) {
        const Schedule* s = &stages[r];
        for (int i = 0; i < units * cell; i++) line[i] = i % cell == 0 ? '.' : ' ';
        for (int i = 0; i < t.done[r]; i++) {
            if (action_computes(s->actions[i].kind))
                schedule_draw_action(line, cell, s->actions[i], (int)t.start[r][i], (int)t.end[r][i]);
        }
        fprintf(out, "stage %-*d", label - 6, r);
        if (cut) fprintf(out, "%.*s... ", half * cell, line);
        fprintf(out, "%.*s|\n", (cut ? half : units) * cell, cut ? line + (units - half) * cell : line);
    }
    fprintf(out,
            "%*sF forward  B backward  W its weight half  . idle  | end: the bubble is %.1f %% of the ideal time\n",
            label, "", 100 * timeline_bubble(stages, &t));
    free(line);
    timeline_free(&t);
}

// For a terminal; of tables that pass schedule_check.
static inline void schedule_draw(const Schedule* stages, int p, FILE* out) {
    if (p == 1)
        schedule_draw_list(stages, out);
    else
        schedule_draw_stages(stages, p, out);
}

#endif
