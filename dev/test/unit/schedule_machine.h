/*
schedule_machine.h: what the tests of schedules share. A machine that executes the tables of all stages: stages, buffers
and wires as they are, every message with its content, in random order, delivered as late or as early as possible, or
with sends that wait for their receivers.
*/
#pragma once

#include "../../../parallel/schedule_check.h"
#include "test.h"

enum { MOST_STAGES = 16, MOST_MICROBATCHES = 64, MOST_CHUNKS = 4, MOST_PARTS = MOST_STAGES * MOST_CHUNKS };

static uint64_t random_state = 1;
static inline int random_below(int n) { return (int)(random_uniform(3, 0, random_state++) * (float)n); }

static inline PipelineConfig plan_of(ScheduleKind kind, int p, int v, int m, int flags) {
    const PipelineConfig plan = {kind, p, v, m, (flags & 1) != 0, (flags & 2) != 0};
    return plan;
}

// All stages of one step: a training step, or forward passes only.
typedef struct {
    PipelineConfig config;
    bool training;
    Schedule stages[MOST_STAGES];
} Step;

static inline Step step_build(PipelineConfig plan) {
    Step step = {};
    step.config = plan;
    step.training = true;
    for (int r = 0; r < plan.p; r++) step.stages[r] = schedule_build(&plan, r);
    return step;
}

// Forward passes of m micro-batches, whatever number the plan has.
static inline Step step_forward(PipelineConfig plan, int m) {
    Step step = step_build(plan);
    step.config.m = m;
    step.training = false;
    for (int r = 0; r < plan.p; r++) {
        const Schedule forward = schedule_build_forward(&step.stages[r], m);
        schedule_free(&step.stages[r]);
        step.stages[r] = forward;
    }
    return step;
}

static inline void step_free(Step* step) {
    for (int r = 0; r < step->config.p; r++) schedule_free(&step->stages[r]);
}

// The bubble of a step whose forward passes, dgrads and wgrads take f, b and w seconds.
static inline double step_bubble(const Step* step, double f, double b, double w) {
    Costs costs = costs_equal(step->config.p * step->config.v, f, b, w, 0);
    Timeline timeline = schedule_times(step->stages, step->config.p, &costs, false);
    const double bubble = timeline_bubble(step->stages, &timeline);
    timeline_free(&timeline);
    costs_free(&costs);
    return bubble;
}

// The part of the model that a chunk is, from the picture of loop and V at the top of parallel/schedule.h.
static inline int part_of(const PipelineConfig* plan, int stage, int chunk) {
    if (schedules[plan->kind].folded && chunk % 2 == 1) return (chunk + 1) * plan->p - 1 - stage;
    return chunk * plan->p + stage;
}

static inline int stage_of_part(const PipelineConfig* plan, int part) {
    for (int r = 0; r < plan->p; r++) {
        for (int c = 0; c < plan->v; c++) {
            if (part_of(plan, r, c) == part) return r;
        }
    }
    return -1;
}

static inline int last_part(const PipelineConfig* plan) { return plan->p * plan->v - 1; }

// Embedding and head are one matrix on two stages, and this part has one of them.
static inline bool part_has_twin(const PipelineConfig* plan, int part) {
    return plan->tied && (part == 0 || part == last_part(plan)) &&
           stage_of_part(plan, 0) != stage_of_part(plan, last_part(plan));
}

static inline bool stage_has_twin(const PipelineConfig* plan, int stage) {
    return (stage == stage_of_part(plan, 0) && part_has_twin(plan, 0)) ||
           (stage == stage_of_part(plan, last_part(plan)) && part_has_twin(plan, last_part(plan)));
}

static inline bool computes(ActionKind kind) { return kind <= BACKWARD_WEIGHT; }
static inline bool makes_input(ActionKind kind) { return kind == BACKWARD || kind == BACKWARD_INPUT; }
static inline bool adds_weights(ActionKind kind) { return kind == BACKWARD || kind == BACKWARD_WEIGHT; }

// ---- The machine ------------------------------------------------------------------------------------------------

enum { MACHINE_STAGES = 4, SLOTS_MAX = 24, BUFFERS = 2, EMPTY = -1, WIRE_MAX = 512 };
typedef enum { MOVED, STARTED, BLOCKED, BROKEN } Outcome; // STARTED: something happened, the action is not done

// A place for one tensor: what is in it, and how many messages about it are under way.
typedef struct {
    int content, pending;
} Place;

typedef struct {
    Place* place;
    int part,
        microbatch; // a tag, the sender's part: messages go over in order, with or without tags; a wrong one shows
} Message;

typedef struct {
    Message send[WIRE_MAX], receive[WIRE_MAX];
    int sends, receives, delivered;
} Wire;

typedef struct {
    Place input[BUFFERS], gradient[BUFFERS], outgoing[BUFFERS]; // receive, receive, send
    int forwards, inputs, sums;                                 // micro-batches that went through, in order
    int handed;                                                 // times handed to the reduction
    bool handed_last, reduced, updated;
} ChunkWork;

typedef struct {
    Place output[SLOTS_MAX]; // of a slot
    int held[SLOTS_MAX];     // what waits in a slot for its backward pass: the name of an output
    ChunkWork chunk[MOST_CHUNKS];
    bool at_tie, tied, at_norm, normed;
    bool twin_updated; // the matrix that lies on two stages
    bool sending;      // a send that waits for its receiver
    int turn;          // number of its message on the wire
} Worker;

typedef struct {
    PipelineConfig config;
    bool training, blocking;
    int slots[MACHINE_STAGES];
    Worker workers[MACHINE_STAGES];
    Wire wires[2][MACHINE_STAGES][MACHINE_STAGES]; // forward and backward, from, to
} Machine;

// What a tensor contains: which tensor it is.
static inline int output_of(int part, int k) { return 1000 * (part + 1) + k; }
static inline int gradient_of(int part, int k) { return 1000000 + 1000 * (part + 1) + k; } // of the part's input

static inline void place_clear(Place* place, int n) {
    const Place empty = {EMPTY, 0};
    for (int i = 0; i < n; i++) place[i] = empty;
}

static inline void machine_begin(Machine* x, const Step* step, bool blocking) {
    x->config = step->config;
    x->training = step->training;
    x->blocking = blocking;
    for (int r = 0; r < x->config.p; r++) {
        Worker* w = &x->workers[r];
        memset(w, 0, sizeof *w);
        x->slots[r] = step->stages[r].slots;
        place_clear(w->output, SLOTS_MAX);
        for (int i = 0; i < SLOTS_MAX; i++) w->held[i] = EMPTY;
        for (int c = 0; c < x->config.v; c++) {
            ChunkWork* work = &w->chunk[c];
            place_clear(work->input, BUFFERS);
            place_clear(work->gradient, BUFFERS);
            place_clear(work->outgoing, BUFFERS);
        }
        for (int to = 0; to < x->config.p; to++) {
            for (int up = 0; up < 2; up++) {
                Wire* wire = &x->wires[up][r][to];
                wire->sends = wire->receives = wire->delivered = 0;
            }
        }
    }
}

// One message goes over, the way memory goes over a wire: what is in the sender's buffer at this moment.
static inline Outcome wire_deliver(Wire* w) {
    if (w->delivered >= w->sends || w->delivered >= w->receives) return BLOCKED;
    const Message from = w->send[w->delivered], to = w->receive[w->delivered];
    if (from.microbatch != to.microbatch || from.part != to.part) return BROKEN;
    to.place->content = from.place->content;
    to.place->pending--;
    from.place->pending--;
    w->delivered++;
    return MOVED;
}

static inline Outcome worker_send(Machine* x, int r, Wire* wire, Place* place, int content, int part, int k) {
    Worker* w = &x->workers[r];
    if (w->sending) {
        if (wire->delivered <= w->turn) return BLOCKED;
        w->sending = false;
        return MOVED;
    }
    if (place->content != content) return BROKEN;
    const Message message = {place, part, k};
    place->pending++;
    w->turn = wire->sends;
    w->sending = x->blocking;
    wire->send[wire->sends++] = message;
    return x->blocking ? STARTED : MOVED;
}

static inline Outcome wire_receive(Wire* w, Place* place, int part, int k) {
    if (place->pending > 0 || place->content != EMPTY) return BROKEN;
    const Message message = {place, part, k};
    place->pending++;
    w->receive[w->receives++] = message;
    return MOVED;
}

static inline Outcome worker_forward(Machine* x, int r, Action a) {
    Worker* w = &x->workers[r];
    ChunkWork* c = &w->chunk[a.chunk];
    const int part = part_of(&x->config, r, a.chunk);
    Place *input = &c->input[a.microbatch % BUFFERS], *output = &w->output[a.slot];
    if (part > 0 && input->pending > 0) return BLOCKED;
    if (output->pending > 0) return BLOCKED;
    if (part > 0 && input->content != output_of(part - 1, a.microbatch)) return BROKEN;
    if (w->held[a.slot] != EMPTY || c->forwards != a.microbatch) return BROKEN;
    input->content = EMPTY;
    output->content = output_of(part, a.microbatch);
    if (x->training) w->held[a.slot] = output_of(part, a.microbatch);
    c->forwards++;
    return MOVED;
}

static inline Outcome worker_dgrad(Machine* x, int r, Action a) {
    Worker* w = &x->workers[r];
    ChunkWork* c = &w->chunk[a.chunk];
    const int part = part_of(&x->config, r, a.chunk);
    Place *gradient = &c->gradient[a.microbatch % BUFFERS], *outgoing = &c->outgoing[a.microbatch % BUFFERS];
    if (part < last_part(&x->config) && gradient->pending > 0) return BLOCKED;
    if (outgoing->pending > 0) return BLOCKED;
    if (part < last_part(&x->config) && gradient->content != gradient_of(part + 1, a.microbatch)) return BROKEN;
    if (w->held[a.slot] != output_of(part, a.microbatch) || c->inputs != a.microbatch) return BROKEN;
    gradient->content = EMPTY;
    outgoing->content = gradient_of(part, a.microbatch);
    c->inputs++;
    return MOVED;
}

// One matrix that is embedding and head on one stage has one gradient: the embedding's last addend completes it.
static inline bool sum_comes_too_soon(const Machine* x, int r, Action a) {
    if (!x->config.tied || a.microbatch < x->config.m - 1 || part_of(&x->config, r, a.chunk) != 0) return false;
    for (int c = 0; c < x->config.v; c++) {
        const bool head = part_of(&x->config, r, c) == last_part(&x->config);
        if (head && c != a.chunk && x->workers[r].chunk[c].sums < x->config.m) return true;
    }
    return false;
}

static inline Outcome worker_wgrad(Machine* x, int r, Action a) {
    Worker* w = &x->workers[r];
    ChunkWork* c = &w->chunk[a.chunk];
    if (w->held[a.slot] != output_of(part_of(&x->config, r, a.chunk), a.microbatch)) return BROKEN;
    if (c->inputs <= a.microbatch || c->sums != a.microbatch || sum_comes_too_soon(x, r, a)) return BROKEN;
    w->held[a.slot] = EMPTY;
    c->sums++;
    c->handed += a.reduce;
    c->handed_last = a.reduce;
    return MOVED;
}

static inline Outcome worker_backward(Machine* x, int r, Action a) {
    // so that a refused action leaves no trace
    if (x->workers[r].chunk[a.chunk].sums != a.microbatch || sum_comes_too_soon(x, r, a)) return BROKEN;
    const Outcome outcome = worker_dgrad(x, r, a);
    return outcome == MOVED ? worker_wgrad(x, r, a) : outcome;
}

// All addends of a chunk's gradients are with the data-parallel reduction.
static inline bool sums_are_in_flight(const Machine* x, const ChunkWork* c) {
    return c->sums == x->config.m && c->handed_last && c->handed == (x->config.reduce_every ? x->config.m : 1);
}

static inline Outcome worker_reduce(Machine* x, int r, int chunk) {
    ChunkWork* c = &x->workers[r].chunk[chunk];
    if (!x->training || c->reduced || !sums_are_in_flight(x, c)) return BROKEN;
    c->reduced = true;
    return MOVED;
}

// The two stages with one matrix meet. Each waits for its sum of this matrix; the rest of the chunk may come later.
static inline Outcome worker_tie(Machine* x, int r) {
    Worker* w = &x->workers[r];
    if (!x->training || !stage_has_twin(&x->config, r) || w->tied) return BROKEN;
    for (int c = 0; c < x->config.v; c++) {
        if (part_has_twin(&x->config, part_of(&x->config, r, c)) && !sums_are_in_flight(x, &w->chunk[c])) return BROKEN;
    }
    w->at_tie = true;
    for (int i = 0; i < x->config.p; i++) {
        if (stage_has_twin(&x->config, i) && !x->workers[i].at_tie) return BLOCKED;
    }
    w->tied = true;
    return MOVED;
}

// All stages meet. The norm is that of the final gradients.
static inline Outcome worker_norm(Machine* x, int r) {
    Worker* w = &x->workers[r];
    if (!x->training || w->normed) return BROKEN;
    for (int c = 0; c < x->config.v; c++) {
        if (!w->chunk[c].reduced) return BROKEN;
    }
    if (stage_has_twin(&x->config, r) && !w->tied) return BROKEN;
    w->at_norm = true;
    for (int i = 0; i < x->config.p; i++) {
        if (!x->workers[i].at_norm) return BLOCKED;
    }
    w->normed = true;
    return MOVED;
}

static inline Outcome worker_update(Machine* x, int r, int chunk) {
    Worker* w = &x->workers[r];
    if (!w->chunk[chunk].reduced || w->chunk[chunk].updated || !w->normed) return BROKEN;
    w->chunk[chunk].updated = true;
    return MOVED;
}

// The matrix of two stages: with the sum of both gradients.
static inline Outcome worker_update_tied(Machine* x, int r) {
    Worker* w = &x->workers[r];
    if (!w->tied || w->twin_updated || !w->normed) return BROKEN;
    w->twin_updated = true;
    return MOVED;
}

// Every field of an action says something or is -1 or false, by the definition in parallel/schedule.h.
static inline bool well_formed(const Machine* x, int r, Action a) {
    const bool micro = a.microbatch >= 0 && a.microbatch < x->config.m, slot = a.slot >= 0 && a.slot < x->slots[r];
    const bool chunk = a.chunk >= 0 && a.chunk < x->config.v;
    const int part = chunk ? part_of(&x->config, r, a.chunk) : -1;
    const bool before = part > 0, after = chunk && part < last_part(&x->config);
    switch (a.kind) {
    case FORWARD:
    case BACKWARD_INPUT: return chunk && micro && slot && !a.reduce;
    case SEND_FORWARD: return micro && slot && !a.reduce && after;
    case BACKWARD:
    case BACKWARD_WEIGHT: return chunk && micro && slot;
    case RECEIVE_FORWARD:
    case SEND_BACKWARD: return micro && a.slot == -1 && !a.reduce && before;
    case RECEIVE_BACKWARD: return micro && a.slot == -1 && !a.reduce && after;
    case REDUCE:
    case UPDATE: return chunk && a.microbatch == -1 && a.slot == -1 && !a.reduce;
    case TIE:
    case NORM:
    case UPDATE_TIED: return a.chunk == -1 && a.microbatch == -1 && a.slot == -1 && !a.reduce;
    default: return false;
    }
}

static inline Outcome worker_act(Machine* x, int r, Action a) {
    if (!well_formed(x, r, a)) return BROKEN;
    Worker* w = &x->workers[r];
    const int k = a.microbatch, part = a.chunk >= 0 ? part_of(&x->config, r, a.chunk) : -1;
    ChunkWork* c = &w->chunk[a.chunk >= 0 ? a.chunk : 0];
    const int before = stage_of_part(&x->config, part - 1), after = stage_of_part(&x->config, part + 1);
    if (computes(a.kind) && c->updated) return BROKEN;
    if (computes(a.kind) && w->twin_updated && part_has_twin(&x->config, part)) return BROKEN;
    if (!x->training && action_is_backward(a.kind)) return BROKEN;
    switch (a.kind) {
    case FORWARD: return worker_forward(x, r, a);
    case BACKWARD: return worker_backward(x, r, a);
    case BACKWARD_INPUT: return worker_dgrad(x, r, a);
    case BACKWARD_WEIGHT: return worker_wgrad(x, r, a);
    case RECEIVE_FORWARD: return wire_receive(&x->wires[0][before][r], &c->input[k % BUFFERS], part - 1, k);
    case SEND_FORWARD:
        return worker_send(x, r, &x->wires[0][r][after], &w->output[a.slot], output_of(part, k), part, k);
    case RECEIVE_BACKWARD: return wire_receive(&x->wires[1][after][r], &c->gradient[k % BUFFERS], part + 1, k);
    case SEND_BACKWARD:
        return worker_send(x, r, &x->wires[1][r][before], &c->outgoing[k % BUFFERS], gradient_of(part, k), part, k);
    case REDUCE: return worker_reduce(x, r, a.chunk);
    case TIE: return worker_tie(x, r);
    case NORM: return worker_norm(x, r);
    case UPDATE: return worker_update(x, r, a.chunk);
    case UPDATE_TIED: return worker_update_tied(x, r);
    default: return BROKEN;
    }
}

static inline bool machine_finished(const Machine* x) {
    for (int r = 0; r < x->config.p; r++) {
        const Worker* w = &x->workers[r];
        for (int c = 0; c < x->config.v; c++) {
            if (w->chunk[c].forwards != x->config.m || w->chunk[c].updated != x->training) return false;
        }
        if (w->normed != x->training || w->sending) return false;
        if (w->twin_updated != (x->training && stage_has_twin(&x->config, r))) return false;
        for (int i = 0; i < 2 * x->config.p; i++) {
            const Wire* wire = &x->wires[i % 2][r][i / 2];
            if (wire->sends != wire->delivered || wire->receives != wire->delivered) return false;
        }
    }
    return true;
}

// Messages are delivered before a stage takes its turn; after no stage can move; as it happens; as it happens, and
// every send waits for its delivery.
typedef enum { EAGER, LAZY, BY_CHANCE, BLOCKING, DELIVERIES } Delivery;

// One action or one message; BLOCKED if nothing can happen any more.
static inline Outcome machine_turn(Machine* x, const Step* step, int* next, Delivery delivery) {
    const int p = x->config.p, n = p + 2 * p * p, first = random_below(n); // turns: stages and wires
    const bool ordered = delivery == EAGER || delivery == LAZY;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n; i++) {
            const int turn = (first + i) % n, wire = turn - p;
            const bool stage = turn < p;
            if (ordered && stage != ((delivery == LAZY) == (pass == 0))) continue;
            Outcome outcome = BLOCKED;
            if (!stage)
                outcome = wire_deliver(&x->wires[wire % 2][wire / 2 / p][wire / 2 % p]);
            else if (next[turn] < step->stages[turn].n)
                outcome = worker_act(x, turn, step->stages[turn].actions[next[turn]]);
            if (stage && outcome == MOVED) next[turn]++;
            if (outcome != BLOCKED) return outcome;
        }
    }
    return BLOCKED;
}

static inline bool machine_runs(const Step* step, Delivery delivery) {
    static Machine x;
    int next[MACHINE_STAGES] = {0};
    Outcome outcome = MOVED;
    machine_begin(&x, step, delivery == BLOCKING);
    while (outcome == MOVED || outcome == STARTED) outcome = machine_turn(&x, step, next, delivery);
    for (int r = 0; r < step->config.p; r++) {
        if (next[r] < step->stages[r].n) return false;
    }
    return outcome != BROKEN && machine_finished(&x);
}

// Do the tables run to their ends, with everything done, in every way of delivery?
static inline bool machine_accepts(const Step* step) {
    bool ok = true;
    for (int delivery = 0; delivery < DELIVERIES && ok; delivery++) ok = machine_runs(step, (Delivery)delivery);
    return ok;
}

static inline int least(int a, int b) { return a < b ? a : b; }

static inline int index_of(const Schedule* s, ActionKind kind, int chunk, int k) {
    for (int i = 0; i < s->n; i++) {
        if (s->actions[i].kind == kind && s->actions[i].chunk == chunk && s->actions[i].microbatch == k) return i;
    }
    return -1;
}

static inline void remove_at(Schedule* s, int i) {
    memmove(s->actions + i, s->actions + i + 1, (size_t)(s->n - i - 1) * sizeof(Action));
    s->n--;
}

static inline void insert_at(Schedule* s, int i, Action a) {
    memmove(s->actions + i + 1, s->actions + i, (size_t)(s->n - i) * sizeof(Action));
    s->actions[i] = a;
    s->n++;
}

// ----------------------------------------------------------------------------------------------------------------
// The equations that a timeline solves: an action starts when the one above it has ended, its message has arrived, what
// it overwrites has been sent, and whom it meets has come. The least solution, found by raising times until all hold.
enum { MOST_ACTIONS = 512 };
typedef struct {
    const Step* step;
    const Costs* costs;
    bool blocking;
    double start[MACHINE_STAGES][MOST_ACTIONS], end[MACHINE_STAGES][MOST_ACTIONS];
} Solution;

static inline double seconds_of(const Solution* x, ActionKind kind, int part) {
    return x->costs->seconds[kind * x->step->config.p * x->step->config.v + part];
}

// When the message of a part arrives at the next part, or (up) at the part before.
static inline double arrival(const Solution* x, int part, int k, bool up) {
    const PipelineConfig* plan = &x->step->config;
    const int to = up ? part - 1 : part + 1;
    if (part < 0 || to < 0 || part > last_part(plan) || to > last_part(plan)) return 0;
    const int sender = stage_of_part(plan, part), receiver = stage_of_part(plan, to);
    const Schedule *a = &x->step->stages[sender], *b = &x->step->stages[receiver];
    const int send = index_of(a, up ? SEND_BACKWARD : SEND_FORWARD, part / plan->p, k);
    const int receive = index_of(b, up ? RECEIVE_BACKWARD : RECEIVE_FORWARD, to / plan->p, k);
    return fmax(x->start[sender][send], x->start[receiver][receive]) +
           seconds_of(x, up ? SEND_BACKWARD : SEND_FORWARD, part);
}

// When what action i of stage r overwrites has been sent: the output in its slot, the gradient in its send buffer.
static inline double overwritten(const Solution* x, int r, int i) {
    const Schedule* s = &x->step->stages[r];
    const Action a = s->actions[i];
    for (int j = i - 1; j >= 0; j--) {
        const Action b = s->actions[j];
        const bool slot = a.kind == FORWARD && b.kind == FORWARD && a.slot == b.slot;
        const bool buffer = makes_input(a.kind) && makes_input(b.kind) && a.chunk == b.chunk &&
                            a.microbatch % BUFFERS == b.microbatch % BUFFERS;
        if (slot || buffer) return arrival(x, part_of(&s->config, r, b.chunk), b.microbatch, buffer);
    }
    return 0;
}

static inline double earliest(const Solution* x, int r, int i) {
    const Schedule* s = &x->step->stages[r];
    const Action a = s->actions[i];
    double start = i > 0 ? x->end[r][i - 1] : 0;
    if (a.kind == FORWARD || makes_input(a.kind)) {
        const int part = part_of(&s->config, r, a.chunk);
        start = fmax(start, a.kind == FORWARD ? arrival(x, part - 1, a.microbatch, false)
                                              : arrival(x, part + 1, a.microbatch, true));
        start = fmax(start, overwritten(x, r, i));
    }
    const bool meets = a.kind == TIE || a.kind == NORM;
    for (int q = 0; q < (meets ? s->config.p : 0); q++) {
        const int there = index_of(&x->step->stages[q], a.kind, -1, -1);
        if (there > 0) start = fmax(start, x->end[q][there - 1]);
    }
    return start;
}

static inline void solve(Solution* x) {
    memset(x->start, 0, sizeof x->start);
    memset(x->end, 0, sizeof x->end);
    for (bool changed = true; changed;) {
        changed = false;
        for (int r = 0; r < x->step->config.p; r++) {
            for (int i = 0; i < x->step->stages[r].n; i++) {
                const Action a = x->step->stages[r].actions[i];
                const int part = part_of(&x->step->config, r, a.chunk < 0 ? 0 : a.chunk);
                const bool send = a.kind == SEND_FORWARD || a.kind == SEND_BACKWARD;
                const bool receive = a.kind == RECEIVE_FORWARD || a.kind == RECEIVE_BACKWARD;
                const double start = earliest(x, r, i), before = x->end[r][i];
                x->start[r][i] = start;
                x->end[r][i] = send || receive ? start : start + seconds_of(x, a.kind, part);
                if (send && x->blocking) x->end[r][i] = arrival(x, part, a.microbatch, a.kind == SEND_BACKWARD);
                changed = changed || x->end[r][i] != before;
            }
        }
    }
}

typedef struct {
    int timelines, solved, bubbles, waits;
} TimeTally;

// One step at random costs: its timeline, with sends that wait and with such that do not.
static inline void compare_times(const Step* step, TimeTally* tally) {
    static Solution x;
    const PipelineConfig* plan = &step->config;
    Costs costs = costs_equal(plan->p * plan->v, 1, 1, 1, 0);
    for (int i = 0; i < ACTION_KINDS * plan->p * plan->v; i++) costs.seconds[i] = 0.1 + random_below(1000) / 300.0;
    for (int blocking = 0; blocking < 2; blocking++) {
        Timeline t = schedule_times(step->stages, plan->p, &costs, blocking);
        x.step = step;
        x.costs = &costs;
        x.blocking = blocking;
        bool same = true;
        for (int r = 0; r < plan->p; r++) same = same && t.done[r] == step->stages[r].n;
        tally->timelines++;
        if (!same) { // the equations have no solution either
            timeline_free(&t);
            continue;
        }
        solve(&x);
        double length = 0, computing = 0;
        for (int r = 0; r < plan->p; r++) {
            const Schedule* s = &step->stages[r];
            for (int i = 0; i < s->n; i++) {
                same = same && t.start[r][i] == x.start[r][i] && t.end[r][i] == x.end[r][i];
                length = fmax(length, x.end[r][i]);
                if (computes(s->actions[i].kind)) computing += x.end[r][i] - x.start[r][i];
                const double above = i > 0 ? x.end[r][i - 1] : 0;
                tally->waits +=
                    computes(s->actions[i].kind) && x.start[r][i] > above && x.start[r][i] == overwritten(&x, r, i);
            }
        }
        const double bubble = timeline_bubble(step->stages, &t), expected = plan->p * length / computing - 1;
        tally->solved += same && t.length == length;
        tally->bubbles += fabs(bubble - expected) <= 1e-12 * (1 + expected);
        timeline_free(&t);
    }
    costs_free(&costs);
}

// A plan of any kind that the machine has room for.
static inline PipelineConfig random_plan(int most_m) {
    const ScheduleKind kind = (ScheduleKind)random_below(SCHEDULE_KINDS);
    const bool grouped = schedules[kind].grouped;
    const int p = 1 + random_below(grouped ? 3 : 4), m = 1 + random_below(most_m);
    const int v = grouped ? 2 + random_below(2) : schedules[kind].chunks;
    const int groups = 1 + random_below(most_m / p < 1 ? 1 : most_m / p);
    return plan_of(kind, p, v, grouped ? p * groups : m, random_below(4));
}

static inline void check_times(const char* what, const TimeTally* t) {
    check(t->solved == t->timelines && t->bubbles == t->timelines && t->timelines > 0,
          "random costs, %s: %d timelines, %d solve the equations, %d have the bubble; %d waits for "
          "buffers",
          what, t->timelines, t->solved, t->bubbles, t->waits);
}

// How many actions that compute are in the table between positions i and j?
static inline int computing_between(const Schedule* s, int i, int j) {
    int n = 0;
    for (i++; i < j; i++) n += computes(s->actions[i].kind);
    return n;
}
