/*
schedule.h: the order of a step's work as a table. The trainer executes the table, --dry-run draws it, the tests prove it:
one list of actions for all of them, built here by pure functions that know no MPI and no CUDA.

A step trains on m micro-batches and then updates once. An action is one of

    F k        forward pass of micro-batch k; its activations stay in a slot until its backward pass has used them
    B k        backward pass, both halves: gradient of the input, then gradients of the weights
    Bx k       only the input half: what an earlier pipeline stage waits for
    Bw k       only the weight half: nobody waits for it, so it can fill idle time (Qi et al. 2023, "Zero bubble")
    update     gradient norm, clipping, optimizer

A slot is the memory of one micro-batch in flight. The builder assigns slots, so the memory of a step is known before it
runs: slots x bytes of one micro-batch.
*/
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include "base.h"

typedef enum { FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, UPDATE } ActionKind;

typedef struct {
    ActionKind kind;
    int microbatch; // -1 for UPDATE
    int slot;       // -1 for UPDATE
} Action;

typedef struct {
    int m;     // micro-batches
    int slots; // activation slots
    int n;     // actions
    Action* actions;
} Schedule;

// One stage, nobody to wait for: forward and backward in turn, one slot. split = true does the two halves of the
// backward pass as two actions.
static inline Schedule schedule_build_one_stage(int m, bool split) {
    Schedule s = {m, 1, 0, NULL};
    s.actions = (Action*)checked_malloc((size_t)(3 * m + 1) * sizeof(Action), "the schedule");
    for (int k = 0; k < m; k++) {
        const Action forward = {FORWARD, k, 0}, both = {BACKWARD, k, 0};
        const Action input = {BACKWARD_INPUT, k, 0}, weight = {BACKWARD_WEIGHT, k, 0};
        s.actions[s.n++] = forward;
        if (split)
            s.actions[s.n++] = input, s.actions[s.n++] = weight;
        else
            s.actions[s.n++] = both;
    }
    const Action update = {UPDATE, -1, -1};
    s.actions[s.n++] = update;
    return s;
}

static inline void schedule_free(Schedule* s) {
    free(s->actions);
    memset(s, 0, sizeof *s);
}

static inline const char* action_name(ActionKind kind) {
    static const char* names[] = {"F", "B", "Bx", "Bw", "update"};
    return names[kind];
}

// Proves from the table alone: every micro-batch goes forward once and backward once (as a whole, or as two halves in
// order); a slot holds one micro-batch from its forward pass to the end of its backward pass; weight gradients are added
// in the order of the micro-batches, which keeps sums bit-identical for every schedule; the update comes last, once.
static inline bool schedule_check(const Schedule* s, Error* error) {
    enum { NOTHING, FORWARDED, INPUT_DONE, ALL_DONE };
    int* state = (int*)checked_calloc((size_t)s->m + 1, sizeof(int), "checking the schedule");
    int* holder = (int*)checked_malloc((size_t)(s->slots + 1) * sizeof(int), "checking the schedule");
    for (int i = 0; i < s->slots; i++) holder[i] = -1;
    int weights_done = 0;
    bool updated = false, ok = true;
    for (int i = 0; i < s->n && ok; i++) {
        const Action a = s->actions[i];
        if (updated)
            ok = fail(error, "action %d comes after the update", i);
        else if (a.kind == UPDATE) {
            updated = true;
            if (weights_done != s->m) ok = fail(error, "update after %d of %d micro-batches", weights_done, s->m);
        } else if (a.microbatch < 0 || a.microbatch >= s->m)
            ok = fail(error, "action %d: no micro-batch %d", i, a.microbatch);
        else if (a.slot < 0 || a.slot >= s->slots)
            ok = fail(error, "action %d: no slot %d", i, a.slot);
        else {
            const int k = a.microbatch, before = state[k];
            const int needed = a.kind == FORWARD ? NOTHING : a.kind == BACKWARD_WEIGHT ? INPUT_DONE : FORWARDED;
            const int holds = a.kind == FORWARD ? -1 : k; // what the slot has to hold before
            if (before != needed)
                ok = fail(error, "action %d: %s %d out of order", i, action_name(a.kind), k);
            else if (holder[a.slot] != holds)
                ok = fail(error, "action %d: %s %d in slot %d, which holds %d", i, action_name(a.kind), k, a.slot,
                          holder[a.slot]);
            else {
                state[k] = a.kind == FORWARD ? FORWARDED : a.kind == BACKWARD_INPUT ? INPUT_DONE : ALL_DONE;
                holder[a.slot] = state[k] == ALL_DONE ? -1 : k;
                if (state[k] == ALL_DONE && k != weights_done++)
                    ok = fail(error, "action %d: weight gradient of %d out of order", i, k);
            }
        }
    }
    if (ok && !updated) ok = fail(error, "no update");
    free(state);
    free(holder);
    return ok;
}

// One line: F0 B0 F1 B1 ... update; long tables are cut in the middle.
static inline void schedule_draw(const Schedule* s, FILE* out) {
    const int ends = 8;
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        if (s->n > 2 * ends + 1 && i == ends) {
            fprintf(out, "... ");
            i = s->n - ends - 1;
        } else if (a.kind == UPDATE)
            fprintf(out, "%s", action_name(a.kind));
        else
            fprintf(out, "%s%d ", action_name(a.kind), a.microbatch);
    }
    fprintf(out, "\n");
}

#endif
