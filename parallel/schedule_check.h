/*
parallel/schedule_check.h: proves from the tables of all p stages alone that a step is complete and terminates.

    schedule_check    the proof

Theory:

    each table    every micro-batch goes through every chunk forward once and backward once, whole or as dgrad, then
                  wgrad; an action's inputs were computed or are being received; a slot holds one micro-batch from
                  forward to the end of backward; no buffer is overwritten before it was used; a chunk takes the
                  micro-batches in order; reduce flags; every chunk is reduced and updated once, after its dependencies,
                  and so is a tied embedding that is on two stages
    each pair     every send meets the receive of the same micro-batch at the same boundary
    all           no deadlock, even if no message is ever buffered and every send waits for its receiver

The first part ignores that actions wait. The last one shows that every wait ends: each stage's own order is fixed and
each message has one sender and one receiver, so the work that an action waits for does not depend on any stage's speed,
and one run to the end stands for all. Where sends wait less, or networks buffer messages, each action waits for a
subset. Since slots and buffers are checked, slots, PIPELINE_BUFFERS_PER_DIRECTION and, for a split backward pass,
schedule_in_flight bound the memory of a step.
*/
#pragma once

#include "schedule_time.h"

// ----------------------------------------------------------------------------------------------------------------
// Check, first part: every table by itself. A walk from top to bottom tracks the state of the stage's memory; every
// rule looks at one action and this state.

enum { INPUT_BUFFER, GRADIENT_BUFFER, SEND_BUFFER, BUFFER_KINDS, NO_BUFFER = -1 };

// The state of one chunk.
typedef struct {
    int forwards, inputs, weights;                            // done: forward passes, dgrads, wgrads
    unsigned whole;                                           // a bit for REDUCE and UPDATE, if done
    int buffer[BUFFER_KINDS][PIPELINE_BUFFERS_PER_DIRECTION]; // the micro-batch in it, or in flight into it; -1: none
} ChunkState;

typedef struct {
    const Schedule* schedule;
    bool training;     // there are backward passes and an update
    unsigned* done;    // (v, m) a bit for every kind of action done with the micro-batch
    int* kept;         // (slots) the item (action_item) whose activations are in the slot; -1: none
    int* output;       // (slots) the item whose output is in the slot; -1: none
    ChunkState* chunk; // (v)
    unsigned whole;    // a bit for TIE, NORM and UPDATE_TIED, if done
} StageState;

static inline bool schedule_refuse(const Schedule* schedule, int i, Error* error, const char* reason) {
    const Action action = schedule->actions[i];
    return fail(error, "schedule of stage %d, action %d, %s of micro-batch %d in chunk %d: %s", schedule->stage, i,
                action_name(action.kind), action.microbatch, action.chunk, reason);
}

static inline unsigned* item_done(const StageState* state, Action action) {
    return &state->done[action_item(state->schedule, action)];
}

// The results of a kind of action, and its inputs, for one micro-batch, as bits. A whole backward pass does both parts.
static inline unsigned action_effects(ActionKind kind) {
    return kind == BACKWARD ? 1u << BACKWARD_INPUT | 1u << BACKWARD_WEIGHT : 1u << kind;
}

static inline unsigned action_needs(const Schedule* schedule, Action action) {
    const ActionKind receive = action_receive(schedule, action);
    const unsigned received = receive == ACTION_KINDS ? 0 : 1u << receive;
    switch (action.kind) {
    case FORWARD: return received;
    case SEND_FORWARD: return 1u << FORWARD;
    case BACKWARD:
    case BACKWARD_INPUT: return 1u << FORWARD | received;
    case BACKWARD_WEIGHT:
    case SEND_BACKWARD: return 1u << BACKWARD_INPUT;
    default: return 0;
    }
}

// All results that every micro-batch needs in a chunk.
static inline unsigned chunk_complete(const Schedule* schedule, int chunk, bool training) {
    unsigned all = 1u << FORWARD;
    if (training) all |= 1u << BACKWARD_INPUT | 1u << BACKWARD_WEIGHT;
    for (int kind = RECEIVE_FORWARD; kind <= (training ? SEND_BACKWARD : SEND_FORWARD); kind++) {
        if (transfer_other_end(schedule, (ActionKind)kind, chunk) >= 0) all |= 1u << kind;
    }
    return all;
}

// The buffer that an action fills, and the one that it empties.
static inline int action_fills(const Schedule* schedule, Action action) {
    if (action.kind == RECEIVE_FORWARD) return INPUT_BUFFER;
    if (action.kind == RECEIVE_BACKWARD) return GRADIENT_BUFFER;
    return action_makes_input_gradient(action.kind) && !chunk_is_first(schedule, action.chunk) ? SEND_BUFFER
                                                                                               : NO_BUFFER;
}

static inline int action_empties(ActionKind kind) {
    if (kind == FORWARD) return INPUT_BUFFER;
    if (action_makes_input_gradient(kind)) return GRADIENT_BUFFER;
    return kind == SEND_BACKWARD ? SEND_BUFFER : NO_BUFFER;
}

// The rules. Each looks at one action, before it is done, and at the state.

// Every field has a meaning or is -1 or false, by the definition at the top.
static inline bool rule_fields(const StageState* state, Action action) {
    const Schedule* schedule = state->schedule;
    const bool on_item = action.kind < REDUCE, on_chunk = on_item || action.kind == REDUCE || action.kind == UPDATE;
    const bool in_slot = action_computes(action.kind) || action.kind == SEND_FORWARD;
    if ((unsigned)action.kind >= ACTION_KINDS) return false;
    if (on_chunk ? action.chunk < 0 || action.chunk >= schedule->config.v : action.chunk != -1) return false;
    if (on_item ? action.microbatch < 0 || action.microbatch >= schedule->config.m : action.microbatch != -1)
        return false;
    if (in_slot ? action.slot < 0 || action.slot >= schedule->slots : action.slot != -1) return false;
    if (action_transfers(action.kind) && transfer_other_end(schedule, action.kind, action.chunk) < 0) return false;
    return !action.reduce || action_adds_weight_gradients(action.kind);
}

// Nothing is done twice.
static inline bool rule_once(const StageState* state, Action action) {
    unsigned done = state->whole;
    if (action.chunk >= 0) done = state->chunk[action.chunk].whole;
    if (action.microbatch >= 0) done = *item_done(state, action);
    return !(done & action_effects(action.kind));
}

// An action's inputs come before it: the posted receive, the forward pass, the input gradient.
static inline bool rule_order(const StageState* state, Action action) {
    return action.microbatch < 0 || !(action_needs(state->schedule, action) & ~*item_done(state, action));
}

// A slot holds one micro-batch from its forward pass to the end of its backward pass, and its output until it is sent.
static inline bool rule_slot(const StageState* state, Action action) {
    if (action.slot < 0) return true;
    const int holds = action.kind == SEND_FORWARD ? state->output[action.slot] : state->kept[action.slot];
    return holds == (action.kind == FORWARD ? -1 : action_item(state->schedule, action));
}

// No buffer is overwritten before its content was used.
static inline bool rule_buffers(const StageState* state, Action action) {
    if (action.microbatch < 0) return true;
    const int kind = action_fills(state->schedule, action), which = action.microbatch % PIPELINE_BUFFERS_PER_DIRECTION;
    return kind == NO_BUFFER || state->chunk[action.chunk].buffer[kind][which] < 0;
}

// A chunk takes the micro-batches in order, in each kind of work: losses are accumulated in the order of the forward
// passes, gradients of norms and of projections' biases in the order of the dgrads, all others in the order of the
// wgrads. So every schedule adds the same numbers in the same order, and results are the same bits.
static inline bool rule_sums(const StageState* state, Action action) {
    if (!action_computes(action.kind)) return true;
    const ChunkState* c = &state->chunk[action.chunk];
    if (action.kind == FORWARD) return action.microbatch == c->forwards;
    if (action_makes_input_gradient(action.kind) && action.microbatch != c->inputs) return false;
    return !action_adds_weight_gradients(action.kind) || action.microbatch == c->weights;
}

// Where one stage has both uses of a tied embedding, the embedding's last gradients, which complete the sum of both,
// come after the head's.
static inline bool rule_tied(const StageState* state, Action action) {
    const Schedule* schedule = state->schedule;
    const int last = schedule->config.v - 1;
    if (!schedule->config.tied || !action_adds_weight_gradients(action.kind)) return true;
    if (action.microbatch != schedule->config.m - 1 || action.chunk == last) return true;
    if (!chunk_is_first(schedule, action.chunk) || !chunk_is_last(schedule, last)) return true;
    return state->chunk[last].weights == schedule->config.m;
}

// Gradients go to the data-parallel reduction after their last contribution, or after every micro-batch.
static inline bool rule_reduce_flag(const StageState* state, Action action) {
    const PipelineConfig* config = &state->schedule->config;
    if (!action_adds_weight_gradients(action.kind)) return true;
    return action.reduce == (action.microbatch == config->m - 1 || config->reduce_every);
}

// Sums come before the norm, and the norm before every update.
static inline bool rule_ending(const StageState* state, Action action) {
    const Schedule* schedule = state->schedule;
    const bool has_tie = schedule_has_tie(schedule);
    const bool tied = state->whole >> TIE & 1, normed = state->whole >> NORM & 1;
    if ((action.kind == TIE || action.kind == UPDATE_TIED) && !has_tie) return false;
    for (int c = 0; c < schedule->config.v; c++) {
        const bool sums = action.kind == REDUCE ? c == action.chunk : action.kind == TIE && chunk_is_tied(schedule, c);
        if (sums && state->chunk[c].weights < schedule->config.m) return false;
        if (action.kind == NORM && !(state->chunk[c].whole >> REDUCE & 1)) return false;
    }
    if (action.kind == NORM) return tied || !has_tie;
    return normed || (action.kind != UPDATE && action.kind != UPDATE_TIED);
}

// The rules in their order: later ones rely on earlier ones.
static const struct {
    const char* broken;
    bool (*holds)(const StageState* state, Action action);
} schedule_rules[] = {
    {"a field has no meaning", rule_fields},
    {"it is done twice", rule_once},
    {"its inputs do not come before it", rule_order},
    {"its slot holds another micro-batch", rule_slot},
    {"it overwrites a buffer in use", rule_buffers},
    {"another micro-batch comes next", rule_sums},
    {"the head's gradients of the same matrix do not come before it", rule_tied},
    {"wrong reduce flag", rule_reduce_flag},
    {"sums that it needs do not come before it", rule_ending},
};

// Updates the state by action a.
static inline void stage_state_apply(StageState* state, Action action) {
    if (action.microbatch < 0) {
        *(action.chunk >= 0 ? &state->chunk[action.chunk].whole : &state->whole) |= 1u << action.kind;
        return;
    }
    ChunkState* c = &state->chunk[action.chunk];
    const int k = action.microbatch, which = k % PIPELINE_BUFFERS_PER_DIRECTION;
    const int empties = action_empties(action.kind), fills = action_fills(state->schedule, action);
    *item_done(state, action) |= action_effects(action.kind);
    if (empties != NO_BUFFER) c->buffer[empties][which] = -1;
    if (fills != NO_BUFFER) c->buffer[fills][which] = k;
    if (action.kind == FORWARD) {
        c->forwards++;
        state->output[action.slot] = action_item(state->schedule, action);
        state->kept[action.slot] = state->training ? state->output[action.slot] : -1;
    }
    c->inputs += action_makes_input_gradient(action.kind);
    if (action_adds_weight_gradients(action.kind)) {
        c->weights++;
        state->kept[action.slot] = -1;
    }
}

// Whether nothing is missing, after the last action.
static inline bool schedule_is_complete(const StageState* state) {
    const Schedule* schedule = state->schedule;
    const unsigned of_chunk = state->training ? 1u << REDUCE | 1u << UPDATE : 0;
    for (int c = 0; c < schedule->config.v; c++) {
        const unsigned all = chunk_complete(schedule, c, state->training);
        if (state->chunk[c].whole != of_chunk) return false;
        for (int k = 0; k < schedule->config.m; k++) {
            if (state->done[c * schedule->config.m + k] != all) return false;
        }
    }
    const unsigned of_tie = schedule_has_tie(schedule) ? 1u << TIE | 1u << UPDATE_TIED : 0;
    return state->whole == (state->training ? 1u << NORM | of_tie : 0);
}

static inline bool schedule_check_actions(StageState* state, Error* error) {
    const Schedule* schedule = state->schedule;
    for (int i = 0; i < schedule->n; i++) {
        for (size_t rule = 0; rule < sizeof schedule_rules / sizeof schedule_rules[0]; rule++) {
            if (!schedule_rules[rule].holds(state, schedule->actions[i]))
                return schedule_refuse(schedule, i, error, schedule_rules[rule].broken);
        }
        stage_state_apply(state, schedule->actions[i]);
    }
    return schedule_is_complete(state) || fail(error, "schedule of stage %d: actions are missing", schedule->stage);
}

static inline bool schedule_check_stage(const Schedule* schedule, bool training, Error* error) {
    const size_t v = (size_t)schedule->config.v, slots = (size_t)schedule->slots;
    StageState state = {};
    state.schedule = schedule;
    state.training = training;
    state.done = (unsigned*)checked_calloc(v * (size_t)schedule->config.m, sizeof(unsigned), "checking the schedule");
    state.kept = (int*)checked_malloc(slots * sizeof(int), "checking the schedule");
    state.output = (int*)checked_malloc(slots * sizeof(int), "checking the schedule");
    state.chunk = (ChunkState*)checked_calloc(v, sizeof(ChunkState), "checking the schedule");
    for (size_t i = 0; i < slots; i++) state.kept[i] = state.output[i] = -1;
    for (size_t c = 0; c < v; c++) memset(state.chunk[c].buffer, -1, sizeof state.chunk[c].buffer);
    const bool ok = schedule_check_actions(&state, error);
    free(state.done);
    free(state.kept);
    free(state.output);
    free(state.chunk);
    return ok;
}

// ---- Check, second part: the tables together --------------------------------------------------------------------

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

// The next action of this kind with stage `peer` at its other end, from i on; schedule->n if there is none.
static inline int schedule_next(const Schedule* schedule, int i, ActionKind kind, int peer) {
    while (i < schedule->n &&
           (schedule->actions[i].kind != kind || schedule_peer(schedule, kind, schedule->actions[i].chunk) != peer))
        i++;
    return i;
}

// Messages have no tags: the n-th send and the n-th receive of a channel must be about the same micro-batch and the
// same boundary between virtual stages. Both tables are complete, so there are as many sends as receives.
static inline bool schedule_check_messages(const Schedule* from, ActionKind send, const Schedule* to,
                                           ActionKind receive, Error* error) {
    int i = schedule_next(from, 0, send, to->stage), j = schedule_next(to, 0, receive, from->stage);
    while (i < from->n && j < to->n) {
        const Action sent = from->actions[i], expected = to->actions[j];
        if (sent.microbatch != expected.microbatch ||
            transfer_other_end(from, send, sent.chunk) != schedule_virtual_stage(to, expected.chunk))
            return schedule_refuse(to, j, error, "its sender sends another message");
        i = schedule_next(from, i + 1, send, to->stage);
        j = schedule_next(to, j + 1, receive, from->stage);
    }
    return true;
}

// The tables run to their ends, even when every send waits for its message and none is ever buffered.
static inline bool schedule_check_progress(const Schedule* stages, int p, Error* error) {
    Costs costs = costs_equal(p * stages[0].config.v, 1, 1, 1, 0);
    Timeline timeline = schedule_times(stages, p, &costs, true);
    bool ok = true;
    for (int r = 0; r < p && ok; r++) {
        if (timeline.done[r] < stages[r].n)
            ok = schedule_refuse(&stages[r], timeline.done[r], error, "it waits for ever: a deadlock");
    }
    timeline_free(&timeline);
    costs_free(&costs);
    return ok;
}

// Returns whether the tables of all p stages, which have one configuration, pass; if not, the error names the action
// and the rule that it breaks.
static inline bool schedule_check(const Schedule* stages, int p, Error* error) {
    const bool training = schedule_is_training(stages, p);
    for (int r = 0; r < p; r++) {
        if (!schedule_check_stage(&stages[r], training, error)) return false;
    }
    const int pairs = (int)min_i64(p * stages[0].config.v - 1, 2 * p); // then the channels repeat
    for (int number = 0; number < pairs; number++) {
        const Schedule* before = &stages[pipeline_holder(&stages[0].config, number)];
        const Schedule* after = &stages[pipeline_holder(&stages[0].config, number + 1)];
        if (!schedule_check_messages(before, SEND_FORWARD, after, RECEIVE_FORWARD, error)) return false;
        if (!schedule_check_messages(after, SEND_BACKWARD, before, RECEIVE_BACKWARD, error)) return false;
    }
    return schedule_check_progress(stages, p, error);
}
