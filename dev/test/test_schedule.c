/*
test_schedule.c: the order of a step's work.

    builders    against the order of Megatron-LM's loops, written down here a second time; slots against the number of
                micro-batches in flight; bubbles against the formula of Narayanan et al. 2021
    checker     against a machine that executes the tables: stages, buffers and wires as they are, every message with
                its content, in random order, and delivered as late or as early as can be. Every table that differs
                from a built one in one action (dropped, doubled, moved, exchanged, any field changed to any other
                value), and tables with several changes: the checker refuses it if and only if the machine comes to
                grief on it. And tables that were never built: orders that the machine itself found by chance.
    messages    planted faults, each refused for its own reason
    drawing     against pictures drawn by hand
*/
#include "../../schedule.h"
#include "test.h"

enum { MOST_STAGES = 16, MOST_MICROBATCHES = 64 };

static uint64_t random_state = 1;
static int random_below(int n) { return (int)(random_uniform(3, 0, random_state++) * (float)n); }

// All stages of one step: a training step, or forward passes only.
typedef struct {
    int p, m;
    bool training;
    Schedule stages[MOST_STAGES];
} Step;

static Step step_1f1b(int p, int m, bool split, bool reduce_every) {
    Step step;
    memset(&step, 0, sizeof step);
    step.p = p, step.m = m, step.training = true;
    for (int r = 0; r < p; r++) step.stages[r] = schedule_build_1f1b(r, p, m, split, reduce_every);
    return step;
}

static Step step_forward(int p, int m) {
    Step step;
    memset(&step, 0, sizeof step);
    step.p = p, step.m = m;
    for (int r = 0; r < p; r++) step.stages[r] = schedule_build_forward(r, p, m);
    return step;
}

static void step_free(Step* step) {
    for (int r = 0; r < step->p; r++) schedule_free(&step->stages[r]);
}

// ----------------------------------------------------------------------------------------------------------------
// The machine

enum { SLOTS_MAX = 24, BUFFERS = 2, EMPTY = -1, WIRE_MAX = 512 };
typedef enum { MOVED, BLOCKED, BROKEN } Outcome;

// A place for one tensor: what is in it, and how many messages about it are under way.
typedef struct {
    int content, pending;
} Place;

typedef struct {
    Place* place;
    int microbatch; // a tag: messages go over in order, with or without tags; with them, a wrong one is noticed
} Message;

typedef struct {
    Message send[WIRE_MAX], receive[WIRE_MAX];
    int sends, receives, delivered;
} Wire;

typedef struct {
    Place input[BUFFERS], gradient[BUFFERS], outgoing[BUFFERS]; // receive, receive, send
    Place output[SLOTS_MAX];                                    // of a slot
    int held[SLOTS_MAX]; // micro-batch that waits in a slot for its backward pass
    int forwards[MOST_MICROBATCHES], inputs[MOST_MICROBATCHES]; // how often it was done
    int sums, handed;                                           // weight gradients added; times handed to the reduction
    bool handed_last, at_reduce, reduced, updated;
} Worker;

typedef struct {
    int p, m;
    bool training;
    int slots[MOST_STAGES];
    Worker workers[MOST_STAGES];
    Wire down[MOST_STAGES], up[MOST_STAGES]; // down[r] from r to r + 1, up[r] from r + 1 to r
} Machine;

// What a tensor contains: which tensor it is.
static int output_of(int stage, int k) { return 1000 * (stage + 1) + k; }
static int gradient_of(int stage, int k) { return 1000000 + 1000 * (stage + 1) + k; } // of the stage's input

static void place_clear(Place* place, int n) {
    for (int i = 0; i < n; i++) place[i].content = EMPTY, place[i].pending = 0;
}

static void machine_begin(Machine* x, const Step* step) {
    x->p = step->p, x->m = step->m, x->training = step->training;
    for (int r = 0; r < x->p; r++) {
        Worker* w = &x->workers[r];
        memset(w, 0, sizeof *w);
        x->slots[r] = step->stages[r].slots;
        place_clear(w->input, BUFFERS), place_clear(w->gradient, BUFFERS), place_clear(w->outgoing, BUFFERS);
        place_clear(w->output, SLOTS_MAX);
        for (int i = 0; i < SLOTS_MAX; i++) w->held[i] = EMPTY;
        x->down[r].sends = x->down[r].receives = x->down[r].delivered = 0;
        x->up[r].sends = x->up[r].receives = x->up[r].delivered = 0;
    }
}

// One message goes over, the way memory goes over a wire: what is in the sender's buffer at this moment.
static Outcome wire_deliver(Wire* w) {
    if (w->delivered >= w->sends || w->delivered >= w->receives) return BLOCKED;
    const Message from = w->send[w->delivered], to = w->receive[w->delivered];
    if (from.microbatch != to.microbatch) return BROKEN;
    to.place->content = from.place->content;
    to.place->pending--, from.place->pending--, w->delivered++;
    return MOVED;
}

static Outcome wire_send(Wire* w, Place* place, int content, int k) {
    if (place->content != content) return BROKEN;
    const Message message = {place, k};
    place->pending++;
    w->send[w->sends++] = message;
    return MOVED;
}

static Outcome wire_receive(Wire* w, Place* place, int k) {
    if (place->pending > 0 || place->content != EMPTY) return BROKEN;
    const Message message = {place, k};
    place->pending++;
    w->receive[w->receives++] = message;
    return MOVED;
}

static Outcome worker_forward(Machine* x, int r, Action a) {
    Worker* w = &x->workers[r];
    Place *input = &w->input[a.microbatch % BUFFERS], *output = &w->output[a.slot];
    if (r > 0 && input->pending > 0) return BLOCKED;
    if (output->pending > 0) return BLOCKED;
    if (r > 0 && input->content != output_of(r - 1, a.microbatch)) return BROKEN;
    if (w->held[a.slot] != EMPTY || w->forwards[a.microbatch] > 0) return BROKEN;
    input->content = EMPTY, output->content = output_of(r, a.microbatch);
    if (x->training) w->held[a.slot] = a.microbatch;
    w->forwards[a.microbatch]++;
    return MOVED;
}

static Outcome worker_input_half(Machine* x, int r, Action a) {
    Worker* w = &x->workers[r];
    Place *gradient = &w->gradient[a.microbatch % BUFFERS], *outgoing = &w->outgoing[a.microbatch % BUFFERS];
    if (r < x->p - 1 && gradient->pending > 0) return BLOCKED;
    if (outgoing->pending > 0) return BLOCKED;
    if (r < x->p - 1 && gradient->content != gradient_of(r + 1, a.microbatch)) return BROKEN;
    if (w->held[a.slot] != a.microbatch || w->inputs[a.microbatch] > 0) return BROKEN;
    gradient->content = EMPTY, outgoing->content = gradient_of(r, a.microbatch);
    w->inputs[a.microbatch]++;
    return MOVED;
}

static Outcome worker_weight_half(Machine* x, int r, Action a) {
    Worker* w = &x->workers[r];
    if (w->held[a.slot] != a.microbatch || w->inputs[a.microbatch] != 1 || w->sums != a.microbatch) return BROKEN;
    w->held[a.slot] = EMPTY;
    w->sums++, w->handed += a.reduce, w->handed_last = a.reduce;
    return MOVED;
}

static Outcome worker_backward(Machine* x, int r, Action a) {
    if (x->workers[r].sums != a.microbatch) return BROKEN; // so that a refused action leaves no trace
    const Outcome outcome = worker_input_half(x, r, a);
    return outcome == MOVED ? worker_weight_half(x, r, a) : outcome;
}

// All stages meet: the first and the last add their embeddings.
static Outcome worker_reduce(Machine* x, int r) {
    Worker* w = &x->workers[r];
    if (!x->training || w->reduced || w->sums != x->m || !w->handed_last) return BROKEN;
    if (w->handed != 1 && w->handed != x->m) return BROKEN;
    w->at_reduce = true;
    for (int i = 0; i < x->p; i++) {
        if (!x->workers[i].at_reduce) return BLOCKED;
    }
    w->reduced = true;
    return MOVED;
}

static Outcome worker_update(Machine* x, int r) {
    Worker* w = &x->workers[r];
    if (!w->reduced) return BROKEN;
    w->updated = true;
    return MOVED;
}

// Every field of an action says something or is -1 or false, by the definition in schedule.h.
static bool well_formed(const Machine* x, int r, Action a) {
    const bool micro = a.microbatch >= 0 && a.microbatch < x->m, slot = a.slot >= 0 && a.slot < x->slots[r];
    switch (a.kind) {
    case FORWARD:
    case BACKWARD_INPUT: return micro && slot && !a.reduce;
    case SEND_FORWARD: return micro && slot && !a.reduce && r < x->p - 1;
    case BACKWARD:
    case BACKWARD_WEIGHT: return micro && slot;
    case RECEIVE_FORWARD:
    case SEND_BACKWARD: return micro && a.slot == -1 && !a.reduce && r > 0;
    case RECEIVE_BACKWARD: return micro && a.slot == -1 && !a.reduce && r < x->p - 1;
    case REDUCE:
    case UPDATE: return a.microbatch == -1 && a.slot == -1 && !a.reduce;
    default: return false;
    }
}

static Outcome worker_act(Machine* x, int r, Action a) {
    Worker* w = &x->workers[r];
    if (!well_formed(x, r, a) || w->updated) return BROKEN;
    const int k = a.microbatch;
    switch (a.kind) {
    case FORWARD: return worker_forward(x, r, a);
    case BACKWARD: return worker_backward(x, r, a);
    case BACKWARD_INPUT: return worker_input_half(x, r, a);
    case BACKWARD_WEIGHT: return worker_weight_half(x, r, a);
    case RECEIVE_FORWARD: return wire_receive(&x->down[r - 1], &w->input[k % BUFFERS], k);
    case SEND_FORWARD: return wire_send(&x->down[r], &w->output[a.slot], output_of(r, k), k);
    case RECEIVE_BACKWARD: return wire_receive(&x->up[r], &w->gradient[k % BUFFERS], k);
    case SEND_BACKWARD: return wire_send(&x->up[r - 1], &w->outgoing[k % BUFFERS], gradient_of(r, k), k);
    case REDUCE: return worker_reduce(x, r);
    default: return worker_update(x, r);
    }
}

static bool machine_finished(const Machine* x) {
    for (int r = 0; r < x->p; r++) {
        const Worker* w = &x->workers[r];
        for (int k = 0; k < x->m; k++) {
            if (w->forwards[k] != 1) return false;
        }
        if (w->updated != x->training) return false;
        if (x->down[r].sends != x->down[r].delivered || x->down[r].receives != x->down[r].delivered) return false;
        if (x->up[r].sends != x->up[r].delivered || x->up[r].receives != x->up[r].delivered) return false;
    }
    return true;
}

// Messages are delivered before a stage takes its turn, after no stage can move, or as it happens.
typedef enum { EAGER, LAZY, BY_CHANCE } Delivery;

// One action or one message; BLOCKED if nothing can happen any more.
static Outcome machine_turn(Machine* x, const Step* step, int* next, Delivery delivery) {
    const int n = 3 * x->p, first = random_below(n); // turns: p stages, p wires down, p wires up
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n; i++) {
            const int turn = (first + i) % n, r = turn % x->p;
            const bool stage = turn < x->p;
            if (delivery != BY_CHANCE && stage != ((delivery == LAZY) == (pass == 0))) continue;
            Outcome outcome = BLOCKED;
            if (!stage)
                outcome = wire_deliver(turn < 2 * x->p ? &x->down[r] : &x->up[r]);
            else if (next[r] < step->stages[r].n)
                outcome = worker_act(x, r, step->stages[r].actions[next[r]]);
            if (stage && outcome == MOVED) next[r]++;
            if (outcome != BLOCKED) return outcome;
        }
    }
    return BLOCKED;
}

// Do the tables run to their ends, with everything done, in so many random orders?
static bool machine_accepts(const Step* step, int runs) {
    static Machine x;
    for (int run = 0; run < runs; run++) {
        int next[MOST_STAGES] = {0};
        Outcome outcome = MOVED;
        machine_begin(&x, step);
        while (outcome == MOVED) outcome = machine_turn(&x, step, next, (Delivery)(run % 3));
        for (int r = 0; r < step->p; r++) {
            if (next[r] < step->stages[r].n) return false;
        }
        if (outcome == BROKEN || !machine_finished(&x)) return false;
    }
    return true;
}

// ----------------------------------------------------------------------------------------------------------------
// The builders

// What a stage computes in Megatron-LM (forward_backward_pipelining_without_interleaving), in its order: warm-up,
// steady state and cool-down, with a queue of the micro-batches whose backward pass is still to come.
static int megatron_order(Action* out, int stage, int p, int m, bool split) {
    const int warm = p - stage - 1 < m ? p - stage - 1 : m, rest = m - warm;
    int n = 0, forward = 0, queue = 0; // the queue's oldest micro-batch
    for (int i = 0; i < warm + 2 * rest + warm; i++) {
        const bool steady = i >= warm && i < warm + 2 * rest;
        const bool is_forward = i < warm || (steady && (i - warm) % 2 == 0);
        const Action f = {FORWARD, forward, 0, false}, b = {split ? BACKWARD_INPUT : BACKWARD, queue, 0, false};
        const Action w = {BACKWARD_WEIGHT, queue, 0, false};
        if (is_forward)
            out[n++] = f, forward++;
        else
            out[n++] = b, queue++;
        if (!is_forward && split) out[n++] = w;
    }
    return n;
}

static bool same_order(const Schedule* s, bool split) {
    Action expected[3 * MOST_MICROBATCHES];
    const int n = megatron_order(expected, s->stage, s->p, s->m, split);
    int found = 0;
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        if (a.kind > BACKWARD_WEIGHT) continue;
        if (found >= n || a.kind != expected[found].kind || a.microbatch != expected[found].microbatch) return false;
        found++;
    }
    return found == n;
}

static int index_of(const Schedule* s, ActionKind kind, int k) {
    for (int i = 0; i < s->n; i++) {
        if (s->actions[i].kind == kind && s->actions[i].microbatch == k) return i;
    }
    return -1;
}

// Is there an action that computes in the table between positions i and j?
static bool computes_between(const Schedule* s, int i, int j) {
    for (i++; i < j; i++) {
        if (s->actions[i].kind <= BACKWARD_WEIGHT) return true;
    }
    return false;
}

// Sends directly follow what makes them; receives directly follow what empties their buffer, or come first of all.
static bool transfers_are_early(const Schedule* s, ActionKind makes, ActionKind send, ActionKind receive) {
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        int after = i;
        if (a.kind == send) after = index_of(s, makes, a.microbatch);
        if (a.kind == receive) after = a.microbatch < 2 ? -1 : index_of(s, makes, a.microbatch - 2);
        if (after > i || computes_between(s, after, i)) return false;
    }
    return true;
}

// The most micro-batches between their forward pass and the end of their backward pass.
static int peak_live(const Schedule* s) {
    int live = 0, peak = 0;
    for (int i = 0; i < s->n; i++) {
        live += s->actions[i].kind == FORWARD;
        if (live > peak) peak = live;
        live -= s->actions[i].kind == BACKWARD || s->actions[i].kind == BACKWARD_WEIGHT;
    }
    return peak;
}

static bool reduce_flags_right(const Schedule* s, bool reduce_every) {
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        const bool adds = a.kind == BACKWARD || a.kind == BACKWARD_WEIGHT;
        if (a.reduce != (adds && (reduce_every || a.microbatch == s->m - 1))) return false;
    }
    return true;
}

static void test_1f1b(void) {
    Error error = {""};
    int tables = 0, order = 0, early = 0, peak = 0, flags = 0, length = 0, proved = 0, steps = 0;
    for (int p = 1; p <= 16; p++) {
        for (int m = 1; m <= 20; m++) {
            for (int split = 0; split <= 1; split++) {
                const bool every = (p + m + split) % 2; // each combination with half of the sizes
                Step step = step_1f1b(p, m, split, every);
                for (int r = 0; r < p; r++, tables++) {
                    const Schedule* s = &step.stages[r];
                    const ActionKind backward = split ? BACKWARD_INPUT : BACKWARD;
                    const int bound = p - r < m ? p - r : m, neighbours = (r > 0) + (r < p - 1);
                    order += same_order(s, split);
                    early += transfers_are_early(s, FORWARD, SEND_FORWARD, RECEIVE_FORWARD) &&
                             transfers_are_early(s, backward, SEND_BACKWARD, RECEIVE_BACKWARD);
                    peak += peak_live(s) == bound && s->slots == bound;
                    flags += reduce_flags_right(s, every);
                    length += s->n == m * (2 + split + 2 * neighbours) + 2;
                }
                steps++, proved += schedule_check(step.stages, p, &error);
                step_free(&step);
            }
        }
    }
    check(order == tables, "1F1B: %d of %d tables (p <= 16, m <= 20) in Megatron-LM's order", order, tables);
    check(early == tables, "1F1B: %d of %d tables send at once and receive as early as two buffers allow", early,
          tables);
    check(peak == tables, "1F1B: %d of %d tables have min(p - stage, m) slots and as many live micro-batches", peak,
          tables);
    check(flags == tables, "1F1B: %d of %d tables reduce after the last micro-batch, or after every one", flags,
          tables);
    check(length == tables, "1F1B: %d of %d tables have as many actions as the step needs", length, tables);
    check(proved == steps, "1F1B: %d of %d steps pass the checker %s", proved, steps, error.text);
}

static void test_forward_only(void) {
    Error error = {""};
    int steps = 0, right = 0;
    for (int p = 1; p <= 16; p++) {
        for (int m = 1; m <= 20; m++, steps++) {
            Step step = step_forward(p, m);
            bool ok = schedule_check(step.stages, p, &error);
            for (int r = 0; r < p; r++) {
                const Schedule* s = &step.stages[r];
                ok = ok && s->slots == 1 && s->n == m * (1 + (r > 0) + (r < p - 1));
                ok = ok && transfers_are_early(s, FORWARD, SEND_FORWARD, RECEIVE_FORWARD);
            }
            right += ok;
            step_free(&step);
        }
    }
    check(right == steps, "forward only: %d of %d steps pass the checker and use one slot %s", right, steps,
          error.text);
}

// Equal stages, a forward pass f, a backward pass b, m micro-batches.
static void test_bubble(void) {
    double whole = 0, halves = 0, forwards = 0;
    for (int p = 1; p <= 16; p++) {
        for (int m = 1; m <= MOST_MICROBATCHES; m++) {
            Step step = step_1f1b(p, m, false, false), split = step_1f1b(p, m, true, false),
                 forward = step_forward(p, m);
            static const double costs[][2] = {{1, 2}, {1, 1}, {3, 2}, {1, 5}}; // exact in binary, and so are their sums
            for (int i = 0; i < 4; i++) {
                const double f = costs[i][0], b = costs[i][1];
                whole = fmax(whole, fabs(schedule_bubble(step.stages, p, f, b) - (double)(p - 1) / m));
                halves =
                    fmax(halves, fabs(schedule_bubble(split.stages, p, f, b) - (p - 1) * (f + b / 2) / (m * (f + b))));
                forwards = fmax(forwards, fabs(schedule_bubble(forward.stages, p, f, b) - (double)(p - 1) / m));
            }
            step_free(&step), step_free(&split), step_free(&forward);
        }
    }
    // Times are exact; a subtraction and two divisions round, and the bubble is at most 15.
    const double bound = 15 * 3 * 0x1p-53;
    check_error("bubble of 1F1B is (p - 1) / m, p <= 16, m <= 64", whole, bound);
    check_error("bubble with halves is (p - 1) (f + b / 2) / (m (f + b))", halves, bound);
    check_error("bubble of forwards only is (p - 1) / m", forwards, bound);
}

// Two stages, two micro-batches, a forward 1 s, a backward 4 s, by hand:
//     stage 0   F0 F1 . . . B0 B0 B0 B0 . B1 B1 B1 B1     stage 1   . F0 B0 B0 B0 B0 F1 B1 B1 B1 B1
static void test_times(void) {
    static const struct {
        int stage;
        ActionKind kind;
        int k;
        double start, end;
    } expected[] = {{0, FORWARD, 0, 0, 1},         {0, SEND_FORWARD, 0, 1, 1}, {0, FORWARD, 1, 1, 2},
                    {0, BACKWARD, 0, 6, 10},       {0, BACKWARD, 1, 11, 15},   {0, REDUCE, -1, 15, 15},
                    {1, RECEIVE_FORWARD, 1, 0, 0}, {1, FORWARD, 0, 1, 2},      {1, BACKWARD, 0, 2, 6},
                    {1, SEND_BACKWARD, 0, 6, 6},   {1, FORWARD, 1, 6, 7},      {1, BACKWARD, 1, 7, 11}};
    Step step = step_1f1b(2, 2, false, false);
    Timeline t = schedule_times(step.stages, 2, 1, 4);
    bool ok = t.length == 15 && t.done[0] == step.stages[0].n && t.done[1] == step.stages[1].n;
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const int r = expected[i].stage, at = index_of(&step.stages[r], expected[i].kind, expected[i].k);
        ok = ok && at >= 0 && t.start[r][at] == expected[i].start && t.end[r][at] == expected[i].end;
    }
    check(ok, "start and end of twelve actions of two stages are those found by hand");
    timeline_free(&t);
    step_free(&step);
}

static Schedule schedule_of(int stage, int p, int m, int slots, const Action* actions, int n) {
    Schedule s = {stage, p, m, slots, n, NULL};
    s.actions = (Action*)checked_malloc((size_t)n * sizeof(Action), "test");
    memcpy(s.actions, actions, (size_t)n * sizeof(Action));
    return s;
}

// A send buffer is free again when the message has been received, not when it was sent.
static void test_waiting_for_buffers(void) {
    // Stage 0 does six forwards before it posts its first receive, at 60 s. Stage 1 could do backward 2, which fills
    // the send buffer of backward 0 again, at 42 s: F0 at 10, B0 at 20, F1 at 21, B1 at 31, F2 at 32.
    const int m = 6;
    Step step = step_1f1b(2, m, false, false);
    schedule_free(&step.stages[0]);
    Schedule* late = &step.stages[0];
    *late = schedule_new(0, 2, m, m);
    for (int k = 0; k < m; k++) schedule_add_forward(late, k);
    schedule_add_first_receives(late, RECEIVE_BACKWARD);
    for (int k = 0; k < m; k++) schedule_add_backward(late, k, false, k == m - 1);
    schedule_add(late, REDUCE, -1, -1, false), schedule_add(late, UPDATE, -1, -1, false);
    Error error = {""};
    const bool proved = schedule_check(step.stages, 2, &error);
    check(proved && machine_accepts(&step, 6), "all forwards first on one stage, one by one on the other %s",
          error.text);
    Timeline t = schedule_times(step.stages, 2, 10, 1);
    const double start = t.start[1][index_of(&step.stages[1], BACKWARD, 2)];
    check(start == 60, "a backward pass waits for its send buffer until 60 s: %g s", start);
    timeline_free(&t);
    step_free(&step);
    // Outputs are sent out of their slots. Stage 1 is late (it begins with something that takes 1 s; no table that the
    // checker would let pass) and posts its receive at 1 s; stage 0 has one slot and could do its second forward at
    // 0.25 s.
    const Action sender[] = {{FORWARD, 0, 0, false}, {SEND_FORWARD, 0, 0, false}, {FORWARD, 1, 0, false}};
    const Action receiver[] = {{BACKWARD, 0, 0, false}, {RECEIVE_FORWARD, 0, -1, false}};
    Schedule two[2] = {schedule_of(0, 2, 2, 1, sender, 3), schedule_of(1, 2, 2, 1, receiver, 2)};
    t = schedule_times(two, 2, 0.25, 1);
    check(t.done[0] == 3 && t.start[0][2] == 1, "a forward pass waits for its slot's output until 1 s: %g s",
          t.start[0][2]);
    timeline_free(&t);
    schedule_free(&two[0]), schedule_free(&two[1]);
}

// Tables that are sound one by one and wait for each other.
static void test_deadlocks(void) {
    Error error = {""};
    Step step = step_1f1b(2, 1, false, false); // stage 0 waits for the gradient of an output that it has not sent
    Schedule* s = &step.stages[0];
    const int send = index_of(s, SEND_FORWARD, 0), backward = index_of(s, BACKWARD, 0);
    const Action a = s->actions[send];
    s->actions[send] = s->actions[backward], s->actions[backward] = a;
    bool refused = !schedule_check(step.stages, 2, &error) && !machine_accepts(&step, 6);
    check(refused && strstr(error.text, "stage 0, action 2, backward 0: waits for ever"), "deadlock: %s", error.text);
    step_free(&step);
    step = step_1f1b(2, 2, false, false); // stage 0: F0 B0 F1 B1; stage 1: F0 F1 B0 B1
    schedule_free(&step.stages[0]), schedule_free(&step.stages[1]);
    for (int r = 0; r < 2; r++) {
        s = &step.stages[r];
        *s = schedule_new(r, 2, 2, 2);
        schedule_add_first_receives(s, RECEIVE_FORWARD), schedule_add_first_receives(s, RECEIVE_BACKWARD);
        schedule_add_forward(s, 0);
        if (r == 0)
            schedule_add_backward(s, 0, false, false), schedule_add_forward(s, 1);
        else
            schedule_add_forward(s, 1), schedule_add_backward(s, 0, false, false);
        schedule_add_backward(s, 1, false, true);
        schedule_add(s, REDUCE, -1, -1, false), schedule_add(s, UPDATE, -1, -1, false);
    }
    refused = !schedule_check(step.stages, 2, &error) && !machine_accepts(&step, 6);
    check(refused && strstr(error.text, "stage 0, action 4, backward 0: waits for ever"), "deadlock: %s", error.text);
    step_free(&step);
}

// ----------------------------------------------------------------------------------------------------------------
// Tables that differ from a built one

static Schedule schedule_copy(const Schedule* s, int spare) {
    Schedule copy = *s;
    copy.actions = (Action*)checked_malloc((size_t)(s->n + spare) * sizeof(Action), "test");
    memcpy(copy.actions, s->actions, (size_t)s->n * sizeof(Action));
    return copy;
}

static void remove_at(Schedule* s, int i) {
    memmove(s->actions + i, s->actions + i + 1, (size_t)(s->n - i - 1) * sizeof(Action));
    s->n--;
}

static void insert_at(Schedule* s, int i, Action a) {
    memmove(s->actions + i + 1, s->actions + i, (size_t)(s->n - i) * sizeof(Action));
    s->actions[i] = a;
    s->n++;
}

typedef enum { DROP, DOUBLE, MOVE, EXCHANGE, SLOT, MICROBATCH, FLAG, KIND, CHANGES } Change;
static const char* change_names[] = {"dropped", "doubled",     "moved",  "exchanged",
                                     "slot",    "micro-batch", "reduce", "kind"};

// How many ways there are to change action i in this way.
static int change_ways(const Schedule* s, Change change) {
    const int ways[] = {1, s->n + 1, s->n, s->n, s->slots + 2, s->m + 2, 1, ACTION_KINDS};
    return ways[change];
}

// Changes action i in way number `way`; false if that leaves the table as it was.
static bool change_apply(Schedule* s, Change change, int i, int way) {
    Action* a = &s->actions[i];
    const Action before = *a;
    switch (change) {
    case DROP: remove_at(s, i); return true;
    case DOUBLE: insert_at(s, way, before); return true;
    case MOVE: remove_at(s, i), insert_at(s, way, before); return way != i;
    case EXCHANGE: *a = s->actions[way], s->actions[way] = before; return way > i;
    case SLOT: a->slot = way - 1; return a->slot != before.slot;
    case MICROBATCH: a->microbatch = way - 1; return a->microbatch != before.microbatch;
    case FLAG: a->reduce = !a->reduce; return true;
    default: a->kind = (ActionKind)way; return a->kind != before.kind;
    }
}

// Reasons to refuse; every one has to occur.
static const char* reasons[] = {"no micro-batch",
                                "no slot",
                                "no such neighbour",
                                "no weight gradients",
                                "done before",
                                "before it",
                                "is empty",
                                "holds micro-batch",
                                "overwrites",
                                "be added next",
                                "lack the reduce flag",
                                "on the last alone",
                                "belongs here",
                                "more actions",
                                "is missing",
                                "then",
                                "waits for ever"};
enum { REASONS = sizeof reasons / sizeof reasons[0] };

typedef struct {
    int tables, valid, differ;
    int by_reason[REASONS];
} Tally;

// Checker and machine on one step.
static void compare(const Step* step, Tally* tally) {
    Error error = {""};
    const bool proved = schedule_check(step->stages, step->p, &error);
    const bool runs = machine_accepts(step, 6);
    tally->tables++, tally->valid += runs;
    if (proved != runs && tally->differ++ < 5) {
        printf("      differ: the machine %s, the checker says: %s\n", runs ? "accepts" : "refuses",
               proved ? "proved" : error.text);
        for (int r = 0; r < step->p; r++) {
            for (int i = 0; i < step->stages[r].n; i++) {
                const Action a = step->stages[r].actions[i];
                printf("%s%s %d/%d%s", i ? ", " : "      ", action_name(a.kind), a.microbatch, a.slot,
                       a.reduce ? "r" : "");
            }
            printf("\n");
        }
    }
    for (int i = 0; i < REASONS && !proved; i++) {
        if (strstr(error.text, reasons[i])) {
            tally->by_reason[i]++;
            break;
        }
    }
}

// Every single change of every action of every stage.
static void compare_changes(const Step* step, Change change, Tally* tally) {
    Step changed = *step;
    for (int r = 0; r < step->p; r++) {
        for (int i = 0; i < step->stages[r].n; i++) {
            for (int way = 0; way < change_ways(&step->stages[r], change); way++) {
                changed.stages[r] = schedule_copy(&step->stages[r], 1);
                if (change_apply(&changed.stages[r], change, i, way)) compare(&changed, tally);
                schedule_free(&changed.stages[r]);
            }
        }
        changed.stages[r] = step->stages[r];
    }
}

static void test_single_changes(int sizes) {
    Tally sum[CHANGES], all;
    memset(sum, 0, sizeof sum), memset(&all, 0, sizeof all);
    for (int p = 1; p <= sizes; p++) {
        for (int m = 1; m <= sizes; m++) {
            for (int variant = 0; variant < 5; variant++) {
                Step step = variant == 4 ? step_forward(p, m) : step_1f1b(p, m, variant & 1, variant & 2);
                for (int change = 0; change < CHANGES; change++) compare_changes(&step, (Change)change, &sum[change]);
                step_free(&step);
            }
        }
    }
    for (int change = 0; change < CHANGES; change++) {
        const Tally* t = &sum[change];
        check(t->differ == 0 && t->tables > 0, "%-11s %6d tables, %5d still right: checker and machine differ on %d",
              change_names[change], t->tables, t->valid, t->differ);
        for (int i = 0; i < REASONS; i++) all.by_reason[i] += t->by_reason[i];
    }
    for (int i = 0; i < REASONS; i++)
        check(all.by_reason[i] > 0, "%6d tables refused because: \"%s\"", all.by_reason[i], reasons[i]);
}

// Two to four changes at once, anywhere, half of them small moves, which often leave a step that works.
static void test_many_changes(int steps) {
    Tally tally;
    memset(&tally, 0, sizeof tally);
    for (int n = 0; n < steps; n++) {
        const int p = 1 + random_below(4), m = 3 + random_below(4);
        Step step = n % 5 == 0 ? step_forward(p, m) : step_1f1b(p, m, n & 1, n & 2);
        for (int r = 0; r < p; r++) {
            Schedule copy = schedule_copy(&step.stages[r], 4);
            schedule_free(&step.stages[r]);
            step.stages[r] = copy;
        }
        for (int changes = 2 + random_below(3); changes > 0; changes--) {
            Schedule* s = &step.stages[random_below(p)];
            const int i = random_below(s->n);
            const Change change = random_below(4) ? MOVE : (Change)random_below(CHANGES);
            int way = random_below(change_ways(s, change));
            if (change == MOVE && random_below(4)) way = i < s->n - 1 ? i + 1 : i;
            change_apply(s, change, i, way);
        }
        compare(&step, &tally);
        step_free(&step);
    }
    check(tally.differ == 0 && tally.valid > steps / 100 && tally.valid < steps,
          "2-4 changes %6d tables, %5d still right: checker and machine differ on %d", tally.tables, tally.valid,
          tally.differ);
}

// ----------------------------------------------------------------------------------------------------------------
// Tables that nobody built: the machine does what it can do, by chance, and writes down what it did

// The next action of stage r, by chance: nothing that the stage has begun before.
static Action random_action(const Machine* x, const int* slot_of, const unsigned* begun) {
    Action a = {(ActionKind)random_below(REDUCE), random_below(x->m), -1, false};
    while (a.microbatch > 0 && !(begun[a.microbatch - 1] >> a.kind & 1) && random_below(4)) a.microbatch--;
    const bool again = begun[a.microbatch] >> a.kind & 1;
    const bool other_half = a.kind == BACKWARD && begun[a.microbatch] >> BACKWARD_INPUT & 1;
    if (again || other_half) a.kind = ACTION_KINDS; // the machine refuses it
    if (a.kind == FORWARD) a.slot = random_below(x->slots[0]);
    if (a.kind == SEND_FORWARD || (a.kind >= BACKWARD && a.kind <= BACKWARD_WEIGHT)) a.slot = slot_of[a.microbatch];
    a.reduce = (a.kind == BACKWARD || a.kind == BACKWARD_WEIGHT) && a.microbatch == x->m - 1;
    return a;
}

static void random_step_finish(Machine* x, Step* step) {
    for (int kind = REDUCE; kind <= UPDATE; kind++) {
        const Action a = {(ActionKind)kind, -1, -1, false};
        for (int turn = 0; turn < 2; turn++) { // at REDUCE stages wait for each other
            for (int r = 0; r < x->p; r++) {
                Schedule* s = &step->stages[r];
                const bool there = s->n > 0 && s->actions[s->n - 1].kind == a.kind;
                if (!there && worker_act(x, r, a) == MOVED) s->actions[s->n++] = a;
            }
        }
    }
}

// A step of p stages and m micro-batches with m slots each; false if it came to a dead end.
static bool random_step(Step* step, int p, int m) {
    static Machine x;
    int slot_of[MOST_STAGES][MOST_MICROBATCHES];
    unsigned begun[MOST_STAGES][MOST_MICROBATCHES];
    memset(step, 0, sizeof *step), memset(begun, 0, sizeof begun), memset(slot_of, 0, sizeof slot_of);
    step->p = p, step->m = m, step->training = true;
    for (int r = 0; r < p; r++) step->stages[r] = schedule_new(r, p, m, m);
    machine_begin(&x, step);
    for (int attempt = 0; attempt < 400 * p * m; attempt++) {
        const int r = random_below(p);
        if (random_below(3) == 0) wire_deliver(random_below(2) ? &x.down[r] : &x.up[r]);
        const Action a = random_action(&x, slot_of[r], begun[r]);
        if (worker_act(&x, r, a) != MOVED) continue;
        step->stages[r].actions[step->stages[r].n++] = a;
        begun[r][a.microbatch] |= 1u << a.kind;
        if (a.kind == FORWARD) slot_of[r][a.microbatch] = a.slot;
    }
    random_step_finish(&x, step);
    return machine_finished(&x);
}

static void test_random_steps(int steps) {
    Tally tally;
    memset(&tally, 0, sizeof tally);
    int reordered = 0, halves = 0;
    for (int n = 0; n < steps; n++) {
        Step step;
        const bool finished = random_step(&step, 1 + n % 4, 2 + n / 4 % 3);
        if (finished) compare(&step, &tally);
        for (int r = 0; r < step.p && finished; r++) {
            reordered += index_of(&step.stages[r], FORWARD, 1) < index_of(&step.stages[r], FORWARD, 0);
            halves += index_of(&step.stages[r], BACKWARD_WEIGHT, 0) >= 0;
        }
        step_free(&step);
    }
    check(tally.differ == 0 && tally.valid == tally.tables && tally.tables > steps / 20 && reordered > 0 && halves > 0,
          "by chance   %6d steps found by the machine (%d stages out of order, %d with halves), the checker refuses %d",
          tally.tables, reordered, halves, tally.differ);
}

// ----------------------------------------------------------------------------------------------------------------
// Planted faults, each with the message it has to give. Three stages, four micro-batches.

typedef enum { LEAVE_OUT, REPEAT, SWAP, SET_KIND, SET_MICROBATCH, SET_SLOT, SET_REDUCE, STAGE, P, M, SLOTS } Fault;

static const struct {
    const char* what;
    Fault fault;
    bool split;
    int stage;
    ActionKind kind; // the action that is changed, ...
    int k;
    ActionKind other; // ... exchanged with another, ...
    int other_k;
    int value; // ... or given a value
    const char* message;
} faults[] = {
    {"a forward left out", LEAVE_OUT, false, 1, FORWARD, 2, FORWARD, 0, 0, "send forward 2: needs forward 2 before it"},
    {"a receive left out", LEAVE_OUT, false, 1, RECEIVE_FORWARD, 3, FORWARD, 0, 0,
     "forward 3: needs receive forward 3"},
    {"a send left out", LEAVE_OUT, false, 0, SEND_FORWARD, 3, FORWARD, 0, 0, "stage 0: send forward 3 is missing"},
    {"a gradient never sent", LEAVE_OUT, false, 2, SEND_BACKWARD, 3, FORWARD, 0, 0,
     "stage 2: send backward 3 is missing"},
    {"a gradient overwritten", LEAVE_OUT, false, 2, SEND_BACKWARD, 0, FORWARD, 0, 0,
     "backward 2: overwrites micro-batch 0 in send buffer 0"},
    {"a gradient not received", LEAVE_OUT, false, 0, RECEIVE_BACKWARD, 0, FORWARD, 0, 0,
     "backward 0: needs receive backward 0"},
    {"a weight half left out", LEAVE_OUT, true, 2, BACKWARD_WEIGHT, 3, FORWARD, 0, 0,
     "stage 2: backward weight half 3 is missing"},
    {"an input half left out", LEAVE_OUT, true, 2, BACKWARD_INPUT, 3, FORWARD, 0, 0,
     "send backward 3: needs backward input half 3"},
    {"no reduction", LEAVE_OUT, false, 1, REDUCE, -1, FORWARD, 0, 0, "send backward 3: reduce belongs here"},
    {"no update", LEAVE_OUT, false, 1, UPDATE, -1, FORWARD, 0, 0, "send backward 3: reduce belongs here"},
    {"a backward before its forward", SWAP, false, 2, FORWARD, 1, BACKWARD, 1, 0,
     "backward 1: needs forward 1 before it"},
    {"a forward twice", REPEAT, false, 0, FORWARD, 1, FORWARD, 0, 0, "forward 1: has been done before"},
    {"a backward twice", REPEAT, false, 0, BACKWARD, 1, FORWARD, 0, 0, "backward 1: has been done before"},
    {"an update twice", REPEAT, false, 0, UPDATE, -1, FORWARD, 0, 0, "reduce: 2 more actions come after it"},
    {"halves exchanged", SWAP, true, 2, BACKWARD_INPUT, 1, BACKWARD_WEIGHT, 1, 0,
     "needs backward input half 1 before it"},
    {"a half after the whole", SET_KIND, false, 2, FORWARD, 3, FORWARD, 0, BACKWARD_WEIGHT,
     "needs backward input half 3"},
    {"receives exchanged", SWAP, false, 1, RECEIVE_FORWARD, 0, RECEIVE_FORWARD, 1, 0,
     "receive forward 1: stage 0 sends micro-batch 0 then"},
    {"gradients' receives exchanged", SWAP, false, 1, RECEIVE_BACKWARD, 0, RECEIVE_BACKWARD, 1, 0,
     "receive backward 1: stage 2 sends micro-batch 0 then"},
    {"a receive too early", SWAP, false, 2, RECEIVE_FORWARD, 2, FORWARD, 0, 0,
     "receive forward 2: overwrites micro-batch 0 in receive buffer for inputs 0"},
    {"a gradient's receive too early", SWAP, false, 0, RECEIVE_BACKWARD, 2, BACKWARD, 0, 0,
     "receive backward 2: overwrites micro-batch 0 in receive buffer for gradients 0"},
    {"a sum out of order", SWAP, false, 0, BACKWARD, 0, BACKWARD, 1, 0,
     "backward 1: weight gradients of micro-batch 0 have to be added next"},
    {"a slot that is in use", SET_SLOT, false, 0, FORWARD, 1, FORWARD, 0, 0, "forward 1: slot 0 holds micro-batch 0"},
    {"a send from another slot", SET_SLOT, false, 0, SEND_FORWARD, 1, FORWARD, 0, 0, "slot 0 holds micro-batch 0"},
    {"a send from an empty slot", SET_SLOT, false, 0, SEND_FORWARD, 0, FORWARD, 0, 2, "slot 2 is empty"},
    {"a backward on another slot", SET_SLOT, false, 0, BACKWARD, 1, FORWARD, 0, 2, "slot 2 holds micro-batch 2"},
    {"a slot that is not there", SET_SLOT, false, 2, FORWARD, 1, FORWARD, 0, 1, "no slot 1 of 1 for it"},
    {"an action with no slot has one", SET_SLOT, false, 1, SEND_BACKWARD, 0, FORWARD, 0, 0, "no slot 0 of 2 for it"},
    {"a micro-batch that is not there", SET_MICROBATCH, false, 1, FORWARD, 0, FORWARD, 0, 4, "no micro-batch 4 of 4"},
    {"an update of a micro-batch", SET_MICROBATCH, false, 1, UPDATE, -1, FORWARD, 0, 0, "no micro-batch 0 of 4 for it"},
    {"a receive on the first stage", SET_KIND, false, 0, RECEIVE_BACKWARD, 0, FORWARD, 0, RECEIVE_FORWARD,
     "there is no such neighbour of stage 0 of 3"},
    {"a send on the last stage", SET_KIND, false, 2, FORWARD, 0, FORWARD, 0, SEND_FORWARD,
     "there is no such neighbour of stage 2 of 3"},
    {"a kind that is not there", SET_KIND, false, 2, FORWARD, 0, FORWARD, 0, ACTION_KINDS, "unknown action 0: kind 10"},
    {"a negative kind", SET_KIND, false, 2, FORWARD, 0, FORWARD, 0, -1, "unknown action 0: kind -1"},
    {"the last flag missing", SET_REDUCE, false, 1, BACKWARD, 3, FORWARD, 0, 0, "lack the reduce flag"},
    {"one flag too many", SET_REDUCE, false, 1, BACKWARD, 1, FORWARD, 0, 1, "on all weight gradients, or on the last"},
    {"the flag on an input half", SET_REDUCE, true, 1, BACKWARD_INPUT, 3, FORWARD, 0, 1, "has the reduce flag and no"},
    {"the wrong stage", STAGE, false, 1, FORWARD, 0, FORWARD, 0, 2, "schedule 1 is for stage 2 of 3"},
    {"the wrong number of stages", P, false, 1, FORWARD, 0, FORWARD, 0, 4, "schedule 1 is for stage 1 of 4"},
    {"another number of micro-batches", M, false, 2, FORWARD, 0, FORWARD, 0, 5, "schedule of stage 2: 5 micro-batches"},
    {"no micro-batches", M, false, 0, FORWARD, 0, FORWARD, 0, 0, "schedule of stage 0: 0 micro-batches"},
    {"no slots", SLOTS, false, 1, FORWARD, 0, FORWARD, 0, 0, "schedule of stage 1: 0 slots"},
};

static void test_planted_faults(void) {
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        Step step = step_1f1b(3, 4, faults[i].split, false);
        Schedule changed = schedule_copy(&step.stages[faults[i].stage], 1);
        schedule_free(&step.stages[faults[i].stage]);
        const int at = index_of(&changed, faults[i].kind, faults[i].k);
        const int other = index_of(&changed, faults[i].other, faults[i].other_k);
        const Action a = changed.actions[at];
        switch (faults[i].fault) {
        case LEAVE_OUT: remove_at(&changed, at); break;
        case REPEAT: insert_at(&changed, at, a); break;
        case SWAP: changed.actions[at] = changed.actions[other], changed.actions[other] = a; break;
        case SET_KIND: changed.actions[at].kind = (ActionKind)faults[i].value; break;
        case SET_MICROBATCH: changed.actions[at].microbatch = faults[i].value; break;
        case SET_SLOT: changed.actions[at].slot = faults[i].value; break;
        case SET_REDUCE: changed.actions[at].reduce = faults[i].value; break;
        case STAGE: changed.stage = faults[i].value; break;
        case P: changed.p = faults[i].value; break;
        case M: changed.m = faults[i].value; break;
        case SLOTS: changed.slots = faults[i].value; break;
        }
        step.stages[faults[i].stage] = changed;
        Error error = {"accepted"};
        const bool refused = !schedule_check(step.stages, 3, &error);
        check(refused && strstr(error.text, faults[i].message), "%s: %s", faults[i].what, error.text);
        step_free(&step);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Drawing

static char* drawn(const Step* step) {
    char* text = NULL;
    size_t size = 0;
    FILE* out = open_memstream(&text, &size);
    if (!out) die("no memory for a drawing");
    schedule_draw(step->stages, step->p, out);
    fclose(out);
    return text;
}

static void test_drawing(Step step, const char* what, const char* expected) {
    char* text = drawn(&step);
    if (!check(strcmp(text, expected) == 0, "drawing of %s", what)) printf("%s", text);
    free(text);
    step_free(&step);
}

static void test_drawings(void) {
    const char* legend = "         F forward  B backward  W its weight half  . idle  | end: the bubble is";
    char text[1024];
    test_drawing(step_1f1b(1, 3, false, false), "one stage", "F0 B0 F1 B1 F2 B2 update\n");
    test_drawing(step_1f1b(1, 2, true, false), "one stage, halves", "F0 B0 W0 F1 B1 W1 update\n");
    test_drawing(step_1f1b(1, 8, false, false), "one stage, just short enough",
                 "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 update\n");
    test_drawing(step_1f1b(1, 20, false, false), "one stage, cut",
                 "F0 B0 F1 B1 F2 B2 F3 B3 ... F16 B16 F17 B17 F18 B18 F19 B19 update\n");
    test_drawing(step_forward(1, 17), "one stage, the longest that is not cut",
                 "F0 F1 F2 F3 F4 F5 F6 F7 F8 F9 F10 F11 F12 F13 F14 F15 F16 \n");
    test_drawing(step_forward(1, 18), "one stage, the shortest that is cut",
                 "F0 F1 F2 F3 F4 F5 F6 F7 ... F10 F11 F12 F13 F14 F15 F16 F17 \n");
    snprintf(text, sizeof text, "%s%s%s 9.1 %% of the ideal time\n",
             "stage 0  F0  F1  F2  F3  F4  F5  F6  F7  F8  F9  F10 .   |\n",
             "stage 1  .   F0  F1  F2  F3  F4  F5  F6  F7  F8  F9  F10 |\n", legend);
    test_drawing(step_forward(2, 11), "numbers of two digits", text);
    snprintf(text, sizeof text, "%s%s%s 33.3 %% of the ideal time\n", //
             "stage 0  F0 F1 .  .  B0--- F2 B1--- .  B2--- |\n",      //
             "stage 1  .  F0 B0--- F1 B1--- F2 B2--- .  .  |\n", legend);
    test_drawing(step_1f1b(2, 3, false, false), "two stages", text);
    test_drawing(
        step_forward(2, 2), "two stages, forwards",
        "stage 0  F0 F1 .  |\nstage 1  .  F0 F1 |\n"
        "         F forward  B backward  W its weight half  . idle  | end: the bubble is 50.0 % of the ideal time\n");
    snprintf(text, sizeof text, "%s%s%s 33.3 %% of the ideal time\n", //
             "stage 0  F0 F1 .  B0 W0 .  B1 W1 |\n",                  //
             "stage 1  .  F0 B0 W0 F1 B1 W1 .  |\n", legend);
    test_drawing(step_1f1b(2, 2, true, false), "two stages, halves", text);
}

// The widest lines: at most 110 characters, and a longer step is cut.
static void test_drawing_width(void) {
    static const int sizes[][2] = {{2, 2}, {4, 8}, {4, 9}, {8, 64}, {12, 12}, {16, 64}, {2, 64}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        Step step = step_1f1b(sizes[i][0], sizes[i][1], false, false);
        char* text = drawn(&step);
        int lines = 0, widest = 0, width = 0;
        for (const char* c = text; *c; c++) {
            width = *c == '\n' ? 0 : width + 1;
            if (width > widest) widest = width;
            lines += *c == '\n';
        }
        const bool cut = strstr(text, "... ") != NULL, ends = strstr(text, "F0") && strstr(text, "-- |");
        check(widest <= 110 && lines == step.p + 1 && ends && cut == (i > 1),
              "drawing of p = %d, m = %d: %d lines, %d wide%s", step.p, step.m, lines, widest, cut ? ", cut" : "");
        free(text);
        step_free(&step);
    }
}

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    test_1f1b();
    test_forward_only();
    test_bubble();
    test_times();
    test_waiting_for_buffers();
    test_deadlocks();
    test_planted_faults();
    test_single_changes(brief ? 3 : 4);
    test_many_changes(brief ? 5000 : 50000);
    test_random_steps(brief ? 500 : 5000);
    test_drawings();
    test_drawing_width();
    return test_end();
}
