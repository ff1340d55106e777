/*
test_schedule.c: the order of a step's work.

    builders    every schedule of many sizes: bubbles, slots and the orders of Megatron-LM's loops, all written down
                here a second time; where receives, reductions and updates stand
    checker     against a machine that executes the tables: stages, buffers and wires as they are, every message with
                its content, in random order, delivered as late or as early as can be, or with sends that wait for their
                receivers. Every table that differs from a built one in one action (dropped, doubled, moved, exchanged,
                any field changed to any other value), and tables with several changes: the checker refuses it if and
                only if the machine comes to grief on it. And tables that were never built: orders that the machine
                itself found by chance.
    messages    planted faults, each refused for its own reason; plans that no schedule serves; other orders of the
                endings, which are none
    timelines   against times by hand, and, at random costs, against the equations that they have to solve
    drawing     against pictures drawn by hand
*/
#include "../../../parallel/schedule_check.h"
#include "../../../parallel/schedule_draw.h"
#include "test.h"

enum { MOST_STAGES = 16, MOST_MICROBATCHES = 64, MOST_CHUNKS = 4, MOST_PARTS = MOST_STAGES * MOST_CHUNKS };

static uint64_t random_state = 1;
static int random_below(int n) { return (int)(random_uniform(3, 0, random_state++) * (float)n); }

static PipelineConfig plan_of(ScheduleKind kind, int p, int v, int m, int flags) {
    const PipelineConfig plan = {kind, p, v, m, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0};
    return plan;
}

// All stages of one step: a training step, or forward passes only.
typedef struct {
    PipelineConfig config;
    bool training;
    Schedule stages[MOST_STAGES];
} Step;

static Step step_build(PipelineConfig plan) {
    Step step;
    memset(&step, 0, sizeof step);
    step.config = plan, step.training = true;
    for (int r = 0; r < plan.p; r++) step.stages[r] = schedule_build(&plan, r);
    return step;
}

// Forward passes of m micro-batches, whatever number the plan has.
static Step step_forward(PipelineConfig plan, int m) {
    Step step = step_build(plan);
    step.config.m = m, step.training = false;
    for (int r = 0; r < plan.p; r++) {
        const Schedule forward = schedule_build_forward(&step.stages[r], m);
        schedule_free(&step.stages[r]);
        step.stages[r] = forward;
    }
    return step;
}

static void step_free(Step* step) {
    for (int r = 0; r < step->config.p; r++) schedule_free(&step->stages[r]);
}

// The part of the model that a chunk is, from the picture of loop and V at the top of parallel/schedule.h.
static int part_of(const PipelineConfig* plan, int stage, int chunk) {
    if (plan->kind == ZB_V && chunk % 2 == 1) return (chunk + 1) * plan->p - 1 - stage;
    return chunk * plan->p + stage;
}

static int stage_of_part(const PipelineConfig* plan, int part) {
    for (int r = 0; r < plan->p; r++) {
        for (int c = 0; c < plan->v; c++) {
            if (part_of(plan, r, c) == part) return r;
        }
    }
    return -1;
}

static int last_part(const PipelineConfig* plan) { return plan->p * plan->v - 1; }

// Embedding and head are one matrix on two stages, and this part has one of them.
static bool part_has_twin(const PipelineConfig* plan, int part) {
    return plan->tied && (part == 0 || part == last_part(plan)) &&
           stage_of_part(plan, 0) != stage_of_part(plan, last_part(plan));
}

static bool stage_has_twin(const PipelineConfig* plan, int stage) {
    return (stage == stage_of_part(plan, 0) && part_has_twin(plan, 0)) ||
           (stage == stage_of_part(plan, last_part(plan)) && part_has_twin(plan, last_part(plan)));
}

static bool computes(ActionKind kind) { return kind <= BACKWARD_WEIGHT; }
static bool makes_input(ActionKind kind) { return kind == BACKWARD || kind == BACKWARD_INPUT; }
static bool adds_weights(ActionKind kind) { return kind == BACKWARD || kind == BACKWARD_WEIGHT; }

// ----------------------------------------------------------------------------------------------------------------
// The machine

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
static int output_of(int part, int k) { return 1000 * (part + 1) + k; }
static int gradient_of(int part, int k) { return 1000000 + 1000 * (part + 1) + k; } // of the part's input

static void place_clear(Place* place, int n) {
    for (int i = 0; i < n; i++) place[i].content = EMPTY, place[i].pending = 0;
}

static void machine_begin(Machine* x, const Step* step, bool blocking) {
    x->config = step->config, x->training = step->training, x->blocking = blocking;
    for (int r = 0; r < x->config.p; r++) {
        Worker* w = &x->workers[r];
        memset(w, 0, sizeof *w);
        x->slots[r] = step->stages[r].slots;
        place_clear(w->output, SLOTS_MAX);
        for (int i = 0; i < SLOTS_MAX; i++) w->held[i] = EMPTY;
        for (int c = 0; c < x->config.v; c++) {
            ChunkWork* work = &w->chunk[c];
            place_clear(work->input, BUFFERS), place_clear(work->gradient, BUFFERS);
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
static Outcome wire_deliver(Wire* w) {
    if (w->delivered >= w->sends || w->delivered >= w->receives) return BLOCKED;
    const Message from = w->send[w->delivered], to = w->receive[w->delivered];
    if (from.microbatch != to.microbatch || from.part != to.part) return BROKEN;
    to.place->content = from.place->content;
    to.place->pending--, from.place->pending--, w->delivered++;
    return MOVED;
}

static Outcome worker_send(Machine* x, int r, Wire* wire, Place* place, int content, int part, int k) {
    Worker* w = &x->workers[r];
    if (w->sending) {
        if (wire->delivered <= w->turn) return BLOCKED;
        w->sending = false;
        return MOVED;
    }
    if (place->content != content) return BROKEN;
    const Message message = {place, part, k};
    place->pending++;
    w->turn = wire->sends, w->sending = x->blocking;
    wire->send[wire->sends++] = message;
    return x->blocking ? STARTED : MOVED;
}

static Outcome wire_receive(Wire* w, Place* place, int part, int k) {
    if (place->pending > 0 || place->content != EMPTY) return BROKEN;
    const Message message = {place, part, k};
    place->pending++;
    w->receive[w->receives++] = message;
    return MOVED;
}

static Outcome worker_forward(Machine* x, int r, Action a) {
    Worker* w = &x->workers[r];
    ChunkWork* c = &w->chunk[a.chunk];
    const int part = part_of(&x->config, r, a.chunk);
    Place *input = &c->input[a.microbatch % BUFFERS], *output = &w->output[a.slot];
    if (part > 0 && input->pending > 0) return BLOCKED;
    if (output->pending > 0) return BLOCKED;
    if (part > 0 && input->content != output_of(part - 1, a.microbatch)) return BROKEN;
    if (w->held[a.slot] != EMPTY || c->forwards != a.microbatch) return BROKEN;
    input->content = EMPTY, output->content = output_of(part, a.microbatch);
    if (x->training) w->held[a.slot] = output_of(part, a.microbatch);
    c->forwards++;
    return MOVED;
}

static Outcome worker_input_half(Machine* x, int r, Action a) {
    Worker* w = &x->workers[r];
    ChunkWork* c = &w->chunk[a.chunk];
    const int part = part_of(&x->config, r, a.chunk);
    Place *gradient = &c->gradient[a.microbatch % BUFFERS], *outgoing = &c->outgoing[a.microbatch % BUFFERS];
    if (part < last_part(&x->config) && gradient->pending > 0) return BLOCKED;
    if (outgoing->pending > 0) return BLOCKED;
    if (part < last_part(&x->config) && gradient->content != gradient_of(part + 1, a.microbatch)) return BROKEN;
    if (w->held[a.slot] != output_of(part, a.microbatch) || c->inputs != a.microbatch) return BROKEN;
    gradient->content = EMPTY, outgoing->content = gradient_of(part, a.microbatch);
    c->inputs++;
    return MOVED;
}

// One matrix that is embedding and head on one stage has one gradient: the embedding's last addend completes it.
static bool sum_comes_too_soon(const Machine* x, int r, Action a) {
    if (!x->config.tied || a.microbatch < x->config.m - 1 || part_of(&x->config, r, a.chunk) != 0) return false;
    for (int c = 0; c < x->config.v; c++) {
        const bool head = part_of(&x->config, r, c) == last_part(&x->config);
        if (head && c != a.chunk && x->workers[r].chunk[c].sums < x->config.m) return true;
    }
    return false;
}

static Outcome worker_weight_half(Machine* x, int r, Action a) {
    Worker* w = &x->workers[r];
    ChunkWork* c = &w->chunk[a.chunk];
    if (w->held[a.slot] != output_of(part_of(&x->config, r, a.chunk), a.microbatch)) return BROKEN;
    if (c->inputs <= a.microbatch || c->sums != a.microbatch || sum_comes_too_soon(x, r, a)) return BROKEN;
    w->held[a.slot] = EMPTY;
    c->sums++, c->handed += a.reduce, c->handed_last = a.reduce;
    return MOVED;
}

static Outcome worker_backward(Machine* x, int r, Action a) {
    // so that a refused action leaves no trace
    if (x->workers[r].chunk[a.chunk].sums != a.microbatch || sum_comes_too_soon(x, r, a)) return BROKEN;
    const Outcome outcome = worker_input_half(x, r, a);
    return outcome == MOVED ? worker_weight_half(x, r, a) : outcome;
}

// All addends of a chunk's gradients are with the data-parallel reduction: whoever waits for the sums gets them.
static bool sums_on_their_way(const Machine* x, const ChunkWork* c) {
    return c->sums == x->config.m && c->handed_last && c->handed == (x->config.reduce_every ? x->config.m : 1);
}

static Outcome worker_reduce(Machine* x, int r, int chunk) {
    ChunkWork* c = &x->workers[r].chunk[chunk];
    if (!x->training || c->reduced || !sums_on_their_way(x, c)) return BROKEN;
    c->reduced = true;
    return MOVED;
}

// The two stages with one matrix meet. Each waits for its sum of this matrix; the rest of the chunk may come later.
static Outcome worker_tie(Machine* x, int r) {
    Worker* w = &x->workers[r];
    if (!x->training || !stage_has_twin(&x->config, r) || w->tied) return BROKEN;
    for (int c = 0; c < x->config.v; c++) {
        if (part_has_twin(&x->config, part_of(&x->config, r, c)) && !sums_on_their_way(x, &w->chunk[c])) return BROKEN;
    }
    w->at_tie = true;
    for (int i = 0; i < x->config.p; i++) {
        if (stage_has_twin(&x->config, i) && !x->workers[i].at_tie) return BLOCKED;
    }
    w->tied = true;
    return MOVED;
}

// All stages meet. The norm is that of the final gradients.
static Outcome worker_norm(Machine* x, int r) {
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

static Outcome worker_update(Machine* x, int r, int chunk) {
    Worker* w = &x->workers[r];
    if (!w->chunk[chunk].reduced || w->chunk[chunk].updated || (x->config.clip && !w->normed)) return BROKEN;
    w->chunk[chunk].updated = true;
    return MOVED;
}

// The matrix of two stages: with the sum of both gradients, clipped if the others are.
static Outcome worker_update_tied(Machine* x, int r) {
    Worker* w = &x->workers[r];
    if (!w->tied || w->twin_updated || (x->config.clip && !w->normed)) return BROKEN;
    w->twin_updated = true;
    return MOVED;
}

// Every field of an action says something or is -1 or false, by the definition in parallel/schedule.h.
static bool well_formed(const Machine* x, int r, Action a) {
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

static Outcome worker_act(Machine* x, int r, Action a) {
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
    case BACKWARD_INPUT: return worker_input_half(x, r, a);
    case BACKWARD_WEIGHT: return worker_weight_half(x, r, a);
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

static bool machine_finished(const Machine* x) {
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
static Outcome machine_turn(Machine* x, const Step* step, int* next, Delivery delivery) {
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

static bool machine_runs(const Step* step, Delivery delivery) {
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
static bool machine_accepts(const Step* step) {
    bool ok = true;
    for (int delivery = 0; delivery < DELIVERIES && ok; delivery++) ok = machine_runs(step, (Delivery)delivery);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------------
// The builders

typedef struct {
    Action actions[3 * MOST_MICROBATCHES * MOST_CHUNKS];
    int n;
} Order;

static void order_put(Order* o, ActionKind kind, int chunk, int k) {
    const Action a = {kind, chunk, k, -1, false};
    o->actions[o->n++] = a;
}

// What a stage computes in Megatron-LM (forward_backward_pipelining_without_interleaving), in its order: warm-up,
// steady state and cool-down, with a queue of the micro-batches whose backward pass is still to come.
static void megatron_1f1b(Order* o, int stage, int p, int m) {
    const int warm = p - stage - 1 < m ? p - stage - 1 : m, rest = m - warm;
    int forward = 0, queue = 0; // the queue's oldest micro-batch
    for (int i = 0; i < warm; i++) order_put(o, FORWARD, 0, forward++);
    for (int i = 0; i < rest; i++) order_put(o, FORWARD, 0, forward++), order_put(o, BACKWARD, 0, queue++);
    for (int i = 0; i < warm; i++) order_put(o, BACKWARD, 0, queue++);
}

// The same with interleaving: get_schedule_table lists (micro-batch, chunk) of all virtual micro-batches; backwards
// take their chunks from the other end.
static void megatron_interleaved(Order* o, int stage, int p, int v, int m) {
    int microbatch[MOST_MICROBATCHES * MOST_CHUNKS], chunk[MOST_MICROBATCHES * MOST_CHUNKS], all = 0;
    for (int first = 0; first < m; first += p) {
        for (int c = 0; c < v; c++) {
            for (int k = first; k < first + p && k < m; k++) microbatch[all] = k, chunk[all++] = c;
        }
    }
    int warm = (p - stage - 1) * 2 + (v - 1) * p;
    if (warm > all) warm = all;
    for (int i = 0; i < warm; i++) order_put(o, FORWARD, chunk[i], microbatch[i]);
    for (int i = 0; i < all - warm; i++) {
        order_put(o, FORWARD, chunk[warm + i], microbatch[warm + i]);
        order_put(o, BACKWARD, v - 1 - chunk[i], microbatch[i]);
    }
    for (int i = all - warm; i < all; i++) order_put(o, BACKWARD, v - 1 - chunk[i], microbatch[i]);
}

// The orders that are known from elsewhere; the others have to show by what they do.
static bool same_order(const Schedule* s) {
    static Order o;
    const PipelineConfig* plan = &s->config;
    o.n = 0;
    for (int i = 0; i < 2 * plan->m && plan->kind == GPIPE; i++)
        order_put(&o, i < plan->m ? FORWARD : BACKWARD, 0, i % plan->m);
    if (plan->kind == ONE_F_ONE_B) megatron_1f1b(&o, s->stage, plan->p, plan->m);
    if (plan->kind == INTERLEAVED) megatron_interleaved(&o, s->stage, plan->p, plan->v, plan->m);
    if (o.n == 0) return true;
    int found = 0;
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        if (!computes(a.kind)) continue;
        if (found >= o.n) return false;
        const Action b = o.actions[found++];
        if (a.kind != b.kind || a.microbatch != b.microbatch || a.chunk != b.chunk) return false;
    }
    return found == o.n;
}

static int index_of(const Schedule* s, ActionKind kind, int chunk, int k) {
    for (int i = 0; i < s->n; i++) {
        if (s->actions[i].kind == kind && s->actions[i].chunk == chunk && s->actions[i].microbatch == k) return i;
    }
    return -1;
}

// How many actions that compute are in the table between positions i and j?
static int computing_between(const Schedule* s, int i, int j) {
    int n = 0;
    for (i++; i < j; i++) n += computes(s->actions[i].kind);
    return n;
}

// Sends directly follow what makes them.
static bool sends_are_early(const Schedule* s) {
    int last = -1; // computing action
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        if (computes(a.kind)) last = i;
        if (a.kind != SEND_FORWARD && a.kind != SEND_BACKWARD) continue;
        if (last < 0 || s->actions[last].chunk != a.chunk || s->actions[last].microbatch != a.microbatch) return false;
        if (a.kind == SEND_FORWARD ? s->actions[last].kind != FORWARD : !makes_input(s->actions[last].kind))
            return false;
    }
    return true;
}

// Of the messages from one stage in one direction, two have been asked for before anything is computed, and then every
// time one has been used, the next but one of those that will be used.
static bool receives_are_early(const Schedule* s, bool forward, int from) {
    static int used[MOST_MICROBATCHES * MOST_CHUNKS];
    int uses = 0, posts = 0;
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        if (forward ? a.kind != FORWARD : !makes_input(a.kind)) continue;
        const int other = part_of(&s->config, s->stage, a.chunk) + (forward ? -1 : 1);
        if (other >= 0 && other <= last_part(&s->config) && stage_of_part(&s->config, other) == from) used[uses++] = i;
    }
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        if (a.kind != (forward ? RECEIVE_FORWARD : RECEIVE_BACKWARD)) continue;
        const int other = part_of(&s->config, s->stage, a.chunk) + (forward ? -1 : 1);
        if (stage_of_part(&s->config, other) != from) continue;
        if (posts >= uses) return false;
        const Action use = s->actions[used[posts]];
        const int after = posts < 2 ? -1 : used[posts - 2];
        if (use.chunk != a.chunk || use.microbatch != a.microbatch) return false;
        if (after > i || computing_between(s, after, i) > 0) return false;
        posts++;
    }
    return posts == uses;
}

static bool transfers_are_early(const Schedule* s) {
    bool ok = sends_are_early(s);
    for (int r = 0; r < s->config.p && ok; r++) ok = receives_are_early(s, true, r) && receives_are_early(s, false, r);
    return ok;
}

// The most micro-batches between their forward pass and the end of their backward pass.
static int peak_live(const Schedule* s) {
    int live = 0, peak = 0;
    for (int i = 0; i < s->n; i++) {
        live += s->actions[i].kind == FORWARD;
        if (live > peak) peak = live;
        live -= adds_weights(s->actions[i].kind);
    }
    return peak;
}

static int least(int a, int b) { return a < b ? a : b; }

static int slots_by_formula(const PipelineConfig* x, int r) { return schedules[x->kind].slots(x->p, x->v, x->m, r); }

static bool reduce_flags_right(const Schedule* s) {
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        if (a.reduce != (adds_weights(a.kind) && (s->config.reduce_every || a.microbatch == s->config.m - 1)))
            return false;
    }
    return true;
}

// What a stage's table ends with. The matrix of two stages is updated when both have summed it; if gradients are clipped,
// sums are waited for at the end, and the matrix and the chunks are updated when all stages have met.
static int ending_by_hand(const Schedule* s, Action* ending) {
    const PipelineConfig* x = &s->config;
    const bool twin = stage_has_twin(x, s->stage);
    const ActionKind clipped[] = {REDUCE, TIE, NORM, UPDATE, UPDATE_TIED}, unclipped[] = {TIE, UPDATE_TIED, NORM};
    int n = 0;
    for (int i = 0; i < (x->clip ? 5 : 3); i++) {
        const ActionKind kind = x->clip ? clipped[i] : unclipped[i];
        const bool of_chunks = kind == REDUCE || kind == UPDATE;
        for (int c = 0; c < (of_chunks ? x->v : 1); c++) {
            const Action a = {kind, of_chunks ? c : -1, -1, -1, false};
            if (of_chunks || kind == NORM || twin) ending[n++] = a;
        }
    }
    return n;
}

static bool same_action(Action a, Action b) {
    return a.kind == b.kind && a.chunk == b.chunk && a.microbatch == b.microbatch && a.slot == b.slot &&
           a.reduce == b.reduce;
}

// Unclipped, a chunk's reduction leaves its last gradients one computing action's time, and its update follows at once,
// even where one matrix of the chunk has to wait for another stage.
static bool ending_right(const Schedule* s) {
    const PipelineConfig* x = &s->config;
    const bool split = x->kind == ZB_H1 || x->kind == ZB_V;
    Action ending[2 * MOST_CHUNKS + 3];
    const int first = s->n - ending_by_hand(s, ending);
    for (int i = first; i < s->n; i++) {
        if (i < 0 || !same_action(s->actions[i], ending[i - first])) return false;
    }
    for (int c = 0; c < x->v && !x->clip; c++) {
        const int sum = index_of(s, split ? BACKWARD_WEIGHT : BACKWARD, c, x->m - 1);
        const int reduce = index_of(s, REDUCE, c, -1), update = index_of(s, UPDATE, c, -1);
        if (sum < 0 || reduce < sum || reduce >= first || update != reduce + 1) return false;
        if (computing_between(s, sum, reduce) != least(1, computing_between(s, sum, s->n))) return false;
    }
    return true;
}

static int length_by_formula(const Schedule* s, bool training) {
    const PipelineConfig* x = &s->config;
    int n = training ? 2 * x->v + 1 + 2 * stage_has_twin(x, s->stage) : 0;
    for (int c = 0; c < x->v; c++) {
        const int part = part_of(x, s->stage, c), neighbours = (part > 0) + (part < last_part(x));
        const bool split = x->kind == ZB_H1 || x->kind == ZB_V;
        n += x->m * (training ? 2 + split + 2 * neighbours : 1 + neighbours);
    }
    return n;
}

typedef struct {
    int steps, tables, proved, order, early, slots, flags, endings, length;
    double bubble;
    Error error;
} BuildTally;

static void test_build(PipelineConfig plan, BuildTally* t) {
    Step step = step_build(plan);
    Costs costs = costs_equal(plan.p * plan.v, 1, 1, 1, 0);
    for (int r = 0; r < plan.p; r++, t->tables++) {
        const Schedule* s = &step.stages[r];
        const int slots = slots_by_formula(&plan, r);
        t->order += same_order(s), t->early += transfers_are_early(s);
        t->slots += peak_live(s) == slots && s->slots == slots;
        t->flags += reduce_flags_right(s), t->endings += ending_right(s);
        t->length += s->n == length_by_formula(s, true);
    }
    t->steps++, t->proved += schedule_check(step.stages, plan.p, &t->error);
    t->bubble = fmax(t->bubble, fabs(schedule_bubble(step.stages, plan.p, &costs) - pipeline_bubble(&plan)));
    costs_free(&costs);
    step_free(&step);
}

// All flags on small steps; on the others each in turn.
static void test_builders(int most_p, int most_m) {
    Error error = {""};
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        BuildTally t;
        memset(&t, 0, sizeof t);
        for (int size = 0; size < most_p * most_m * MOST_CHUNKS; size++) {
            const int v = 1 + size % MOST_CHUNKS, m = 1 + size / MOST_CHUNKS % most_m;
            const int p = 1 + size / MOST_CHUNKS / most_m;
            const PipelineConfig plan = plan_of((ScheduleKind)kind, p, v, m, 0);
            if (!pipeline_config_check(&plan, RECOMPUTE_NONE, &error)) continue;
            const bool small = p <= 4 && m <= 8;
            for (int flags = small ? 0 : (p + 3 * m + v) % 8, i = 0; i < (small ? 8 : 1); i++, flags++)
                test_build(plan_of((ScheduleKind)kind, p, v, m, flags), &t);
        }
        const int n = t.tables;
        const char* name = schedule_name((ScheduleKind)kind);
        check(t.proved == t.steps && t.steps >= most_m, "%-11s %d of %d steps (p <= %d, m <= %d) pass the checker %s",
              name, t.proved, t.steps, most_p, most_m, t.error.text);
        check(t.order == n && t.flags == n && t.length == n,
              "%-11s of %d tables %d are in the known order, %d have the right flags, %d the right length", name, n,
              t.order, t.flags, t.length);
        check(t.early == n, "%-11s %d of %d tables send at once and receive as early as two buffers allow", name,
              t.early, n);
        check(t.endings == n, "%-11s %d of %d tables end as they should", name, t.endings, n);
        check(t.slots == n, "%-11s %d of %d tables have as many slots as the formula and as live micro-batches", name,
              t.slots, n);
        check(t.bubble <= 1e-12, "%-11s bubble at f = b = w against the formula: %.1e", name, t.bubble);
    }
}

// What is built are all plans that should be: interleaved with whole groups, the V with two chunks, else one chunk.
static void test_plans_served(void) {
    Error error = {""};
    int wrong = 0;
    for (int n = 0; n < SCHEDULE_KINDS * 16 * 64 * 5; n++) {
        const int v = n % 5, m = n / 5 % 64, p = n / 320 % 16, kind = n / 5120;
        const PipelineConfig plan = plan_of((ScheduleKind)kind, p, v, m, 0);
        const bool chunks = kind == INTERLEAVED ? v >= 2 : kind == ZB_V ? v == 2 : v == 1;
        const bool served = p >= 1 && m >= 1 && chunks && (kind != INTERLEAVED || m % p == 0) && (p > 1 || v == 1);
        wrong += pipeline_config_check(&plan, RECOMPUTE_NONE, &error) != served;
    }
    check(wrong == 0, "plans that are served, p < 16, v < 5, m < 64: %d are not the right ones", wrong);
}

// Chunks and virtual stages are numbered as in the pictures, and one numbering undoes the other.
static void test_placement(void) {
    int wrong = 0;
    for (int n = 0; n < 2 * 16 * 16 * 5; n++) {
        const bool folded = n % 2;
        const int p = 1 + n / 2 % 16, stage = n / 32 % 16, chunk = n / 512;
        if (stage >= p) continue;
        const int up = chunk * p + stage, down = (chunk + 1) * p - 1 - stage;
        const int number = virtual_stage(p, folded, stage, chunk);
        wrong += number != (folded && chunk % 2 ? down : up) || virtual_stage_holder(p, folded, number) != stage;
    }
    static const int v4[4][2] = {{0, 7}, {1, 6}, {2, 5}, {3, 4}}, loop[4][2] = {{0, 4}, {1, 5}, {2, 6}, {3, 7}};
    for (int i = 0; i < 8; i++) {
        wrong += virtual_stage(4, true, i / 2, i % 2) != v4[i / 2][i % 2];
        wrong += virtual_stage(4, false, i / 2, i % 2) != loop[i / 2][i % 2];
    }
    check(wrong == 0, "numbers of virtual stages in loop and V: %d wrong", wrong);
}

// When all forwards of equal parts have been done, 1 s each.
static int forward_length(const PipelineConfig* x, int m) {
    if (x->kind == ZB_V) return 2 * m + 2 * (x->p - 1);
    const int last_group = (m - 1) % x->p + 1; // a group that is not full waits for itself
    return x->v * m + x->p - 1 + (x->v - 1) * (x->p - last_group);
}

static void test_forward_only(int most_p, int most_m) {
    Error error = {""};
    int steps = 0, right = 0, lengths = 0, empty = 0, plans = 0;
    for (int n = 0; n < SCHEDULE_KINDS * most_p * MOST_CHUNKS; n++) {
        const int kind = n % SCHEDULE_KINDS, p = 1 + n / SCHEDULE_KINDS % most_p, v = 1 + n / SCHEDULE_KINDS / most_p;
        const PipelineConfig plan = plan_of((ScheduleKind)kind, p, v, 2 * p, n % 8 & 6);
        if (!pipeline_config_check(&plan, RECOMPUTE_NONE, &error)) continue;
        Costs costs = costs_equal(p * v, 1, 1, 1, 0);
        for (int m = 0; m <= most_m; m++) {
            Step step = step_forward(plan, m);
            if (m == 0) plans++, empty += step.stages[0].n == 0 && step.stages[p - 1].n == 0;
            bool ok = m == 0 || schedule_check(step.stages, p, &error);
            for (int r = 0; r < p; r++) {
                const Schedule* s = &step.stages[r];
                ok = ok && s->slots == slots_by_formula(&plan, r) && s->n == length_by_formula(s, false);
                ok = ok && transfers_are_early(s);
                for (int i = 0, last = -1; i < s->n; i++) { // two slots in turn, so that sending is no hindrance
                    if (s->actions[i].kind != FORWARD) continue;
                    ok = ok && (s->actions[i].slot != last || s->slots == 1) && s->actions[i].slot < 2;
                    last = s->actions[i].slot;
                }
            }
            Timeline t = schedule_times(step.stages, p, &costs, false);
            lengths += t.length == (m > 0 ? forward_length(&plan, m) : 0);
            steps++, right += ok;
            timeline_free(&t);
            step_free(&step);
        }
        costs_free(&costs);
    }
    check(right == steps && empty == plans, "forward only: %d of %d steps are right, %d of %d without micro-batches %s",
          right, steps, empty, plans, error.text);
    check(lengths == steps, "forward only: %d of %d steps take as long as the formula", lengths, steps);
}

// ----------------------------------------------------------------------------------------------------------------
// Times

static double bubble_at(PipelineConfig plan, double f, double b, double w) {
    Step step = step_build(plan);
    Costs costs = costs_equal(plan.p * plan.v, f, b, w, 0);
    const double bubble = schedule_bubble(step.stages, plan.p, &costs);
    costs_free(&costs);
    step_free(&step);
    return bubble;
}

// Stages equal, f, b and w not. All times are sums of small integers.
static void test_unequal_times(int most) {
    static const double seconds[] = {1, 2, 3, 5};
    double whole = 0, interleaved = 0, halves = 0;
    int right = 0, formula = 0;
    for (int n = 0; n < 64; n++) {
        const double f = seconds[n % 4], b = seconds[n / 4 % 4], w = seconds[n / 16];
        for (int p = 1; p <= most; p++) {
            for (int m = 1; m <= 3 * most; m += 1 + m / 6) {
                const double usual = (double)(p - 1) / m;
                whole = fmax(whole, fabs(bubble_at(plan_of(GPIPE, p, 1, m, 0), f, b, w) - usual));
                whole = fmax(whole, fabs(bubble_at(plan_of(ONE_F_ONE_B, p, 1, m, 0), f, b, w) - usual));
                const double h1 = bubble_at(plan_of(ZB_H1, p, 1, m, 0), f, b, w);
                const double by_formula = ((p - 1) * (f + b) - least(p - 1, m - 1) * w) / (m * (f + b + w));
                if (w <= f && w <= b)
                    halves = fmax(halves, fabs(h1 - by_formula));
                else if (p > 1 && m > 1) // a weight half that is longer than what it makes room for holds others up
                    formula++, right += h1 > by_formula + 1e-9;
                if (m % p || w > 1) continue;
                for (int v = 2; v <= 3; v++) {
                    const double bubble = bubble_at(plan_of(INTERLEAVED, p, v, m, 0), f, b, w);
                    interleaved = fmax(interleaved, fabs(bubble - usual / v));
                }
            }
        }
    }
    check_error("gpipe and 1f1b, any f and b + w: bubble (p - 1) / m", whole, 1e-12);
    check_error("interleaved, any f and b + w: bubble (p - 1) / (v m)", interleaved, 1e-12);
    check_error("zb-h1, w <= f and w <= b: bubble by the formula", halves, 1e-12);
    check(right == formula && formula > 0, "zb-h1, w > f or w > b: %d of %d bubbles are larger than the formula", right,
          formula);
}

// The V is full: stage r starts r forwards later than stage 0 and is never idle from then to its end.
static void test_full_v(int most_p, int most_m) {
    int stages = 0, right = 0;
    for (int p = 1; p <= most_p; p++) {
        for (int m = 2 * p - 1; m <= most_m; m++) {
            Step step = step_build(plan_of(ZB_V, p, 2, m, 0));
            Costs costs = costs_equal(2 * p, 1, 1, 1, 0);
            Timeline t = schedule_times(step.stages, p, &costs, false);
            for (int r = 0; r < p; r++, stages++) {
                const Schedule* s = &step.stages[r];
                double now = r;
                bool ok = true;
                for (int i = 0; i < s->n; i++) {
                    if (!computes(s->actions[i].kind)) continue;
                    ok = ok && t.start[r][i] == now && t.end[r][i] == now + 1;
                    now++;
                }
                right += ok && now == r + 6 * m;
            }
            timeline_free(&t);
            costs_free(&costs);
            step_free(&step);
        }
    }
    check(right == stages, "zb-v, m >= 2 p - 1: %d of %d stages start at r f and are never idle", right, stages);
}

typedef struct {
    int stage;
    ActionKind kind;
    int chunk, k;
    double start, end;
} Moment;

static void test_moments(const char* what, PipelineConfig plan, const double* seconds, bool blocking,
                         const Moment* moments, int n, double length) {
    Step step = step_build(plan);
    Costs costs = costs_equal(plan.p * plan.v, seconds[0], seconds[1], seconds[2], seconds[3]);
    for (int i = 0; i < (ACTION_KINDS - REDUCE) * plan.p * plan.v; i++) { // one more for every part, from the second on
        const int kind = REDUCE + i / (plan.p * plan.v), part = i % (plan.p * plan.v);
        if (seconds[4 + kind - REDUCE] > 0)
            *cost_of(&costs, (ActionKind)kind, part) = seconds[4 + kind - REDUCE] + part;
    }
    Timeline t = schedule_times(step.stages, plan.p, &costs, blocking);
    int right = 0;
    for (int i = 0; i < n; i++) {
        const Moment x = moments[i];
        const int at = index_of(&step.stages[x.stage], x.kind, x.chunk, x.k);
        const bool ok = at >= 0 && t.start[x.stage][at] == x.start && t.end[x.stage][at] == x.end;
        right += ok;
        if (!ok) printf("      %s %d %d of stage %d\n", action_name(x.kind), x.chunk, x.k, x.stage);
    }
    bool done = true;
    for (int r = 0; r < plan.p; r++) done = done && t.done[r] == step.stages[r].n;
    check(done && right == n && t.length == length, "times of %s: %d of %d as found by hand, length %g", what, right, n,
          t.length);
    timeline_free(&t);
    costs_free(&costs);
    step_free(&step);
}

static void test_times(void) {
    // f = 1, b + w = 4, a message 0.5
    static const double slow[9] = {1, 1, 3, 0.5}, equal[9] = {1, 1, 1, 0.5};
    static const Moment two[] = {
        {0, FORWARD, 0, 0, 0, 1},           {0, SEND_FORWARD, 0, 0, 1, 1},  {0, FORWARD, 0, 1, 1, 2},
        {1, RECEIVE_FORWARD, 0, 1, 0, 0},   {1, FORWARD, 0, 0, 1.5, 2.5},   {1, BACKWARD, 0, 0, 2.5, 6.5},
        {1, SEND_BACKWARD, 0, 0, 6.5, 6.5}, {1, FORWARD, 0, 1, 6.5, 7.5},   {1, BACKWARD, 0, 1, 7.5, 11.5},
        {0, BACKWARD, 0, 0, 7, 11},         {0, BACKWARD, 0, 1, 12, 16},    {0, REDUCE, 0, -1, 16, 16},
        {1, REDUCE, 0, -1, 11.5, 11.5},     {1, UPDATE, 0, -1, 11.5, 11.5}, {1, NORM, -1, -1, 16, 16}};
    test_moments("1f1b", plan_of(ONE_F_ONE_B, 2, 1, 2, 0), slow, false, two, 15, 16);
    // Sends wait: stage 0 is held up 0.5 by each of its two, stage 1 by its two as well.
    static const Moment waiting[] = {
        {0, SEND_FORWARD, 0, 0, 1, 1.5},    {0, FORWARD, 0, 1, 1.5, 2.5},     {0, SEND_FORWARD, 0, 1, 2.5, 3},
        {1, BACKWARD, 0, 0, 2.5, 6.5},      {1, SEND_BACKWARD, 0, 0, 6.5, 7}, {1, FORWARD, 0, 1, 7, 8},
        {1, SEND_BACKWARD, 0, 1, 12, 12.5}, {0, BACKWARD, 0, 1, 12.5, 16.5},  {1, UPDATE, 0, -1, 12.5, 12.5}};
    test_moments("1f1b with sends that wait", plan_of(ONE_F_ONE_B, 2, 1, 2, 0), slow, true, waiting, 9, 16.5);
    // One stage, the tip of the V: messages to itself
    static const Moment tip[] = {{0, FORWARD, 0, 0, 0, 1},
                                 {0, SEND_FORWARD, 0, 0, 1, 1},
                                 {0, FORWARD, 1, 0, 1.5, 2.5},
                                 {0, BACKWARD_INPUT, 1, 0, 2.5, 3.5},
                                 {0, BACKWARD_WEIGHT, 1, 0, 3.5, 4.5},
                                 {0, BACKWARD_INPUT, 0, 0, 4.5, 5.5},
                                 {0, BACKWARD_WEIGHT, 0, 0, 5.5, 6.5},
                                 {0, NORM, -1, -1, 6.5, 6.5}};
    test_moments("zb-v on one stage", plan_of(ZB_V, 1, 2, 1, 0), equal, false, tip, 8, 6.5);
    // Two stages in a V: three messages forward (1.5 apart), three back.
    static const Moment fold[] = {
        {0, FORWARD, 0, 0, 0, 1},         {1, FORWARD, 0, 0, 1.5, 2.5},        {1, FORWARD, 1, 0, 3, 4},
        {0, FORWARD, 1, 0, 4.5, 5.5},     {0, BACKWARD_INPUT, 1, 0, 5.5, 6.5}, {1, BACKWARD_INPUT, 1, 0, 7, 8},
        {1, BACKWARD_WEIGHT, 1, 0, 8, 9}, {1, BACKWARD_INPUT, 0, 0, 9, 10},    {0, BACKWARD_INPUT, 0, 0, 10.5, 11.5},
        {1, REDUCE, 1, -1, 10, 10},       {0, REDUCE, 0, -1, 12.5, 12.5},      {1, NORM, -1, -1, 12.5, 12.5}};
    test_moments("zb-v on two stages", plan_of(ZB_V, 2, 2, 1, 0), equal, false, fold, 12, 12.5);
    // One matrix on two stages. A reduction takes 1 s on stage 0 and 2 s on stage 1, a tie 10 and 11, a norm 20 and 21,
    // an update 3 and 4, that of the matrix 5 and 6.
    static const double ending[9] = {1, 1, 1, 0, 1, 10, 20, 3, 5};
    static const Moment tied[] = {
        {0, BACKWARD, 0, 0, 4, 6}, {0, REDUCE, 0, -1, 6, 7},         {0, UPDATE, 0, -1, 7, 10},
        {0, TIE, -1, -1, 10, 20},  {0, UPDATE_TIED, -1, -1, 20, 25}, {0, NORM, -1, -1, 27, 47},
        {1, BACKWARD, 0, 0, 2, 4}, {1, REDUCE, 0, -1, 4, 6},         {1, UPDATE, 0, -1, 6, 10},
        {1, TIE, -1, -1, 10, 21},  {1, UPDATE_TIED, -1, -1, 21, 27}, {1, NORM, -1, -1, 27, 48}};
    test_moments("one matrix on two stages", plan_of(ONE_F_ONE_B, 2, 1, 1, 2), ending, false, tied, 12, 48);
    static const Moment clipped[] = {{0, REDUCE, 0, -1, 6, 7},         {0, TIE, -1, -1, 7, 17},
                                     {0, NORM, -1, -1, 18, 38},        {0, UPDATE, 0, -1, 38, 41},
                                     {0, UPDATE_TIED, -1, -1, 41, 46}, {1, REDUCE, 0, -1, 4, 6},
                                     {1, TIE, -1, -1, 7, 18},          {1, NORM, -1, -1, 18, 39},
                                     {1, UPDATE, 0, -1, 39, 43},       {1, UPDATE_TIED, -1, -1, 43, 49}};
    test_moments("the same, clipped", plan_of(ONE_F_ONE_B, 2, 1, 1, 6), ending, false, clipped, 10, 49);
}

// The equations that a timeline solves: an action starts when the one above it has ended, its message has arrived, what
// it overwrites has been sent, and whom it meets has come. The least solution, found by raising times until all hold.
enum { MOST_ACTIONS = 512 };
typedef struct {
    const Step* step;
    const Costs* costs;
    bool blocking;
    double start[MACHINE_STAGES][MOST_ACTIONS], end[MACHINE_STAGES][MOST_ACTIONS];
} Solution;

static double seconds_of(const Solution* x, ActionKind kind, int part) {
    return x->costs->seconds[kind * x->step->config.p * x->step->config.v + part];
}

// When the message of a part arrives at the next part, or (up) at the part before.
static double arrival(const Solution* x, int part, int k, bool up) {
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
static double overwritten(const Solution* x, int r, int i) {
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

static double earliest(const Solution* x, int r, int i) {
    const Schedule* s = &x->step->stages[r];
    const Action a = s->actions[i];
    double start = i > 0 ? x->end[r][i - 1] : 0;
    if (a.kind == FORWARD || makes_input(a.kind)) {
        const int part = part_of(&s->config, r, a.chunk);
        start = fmax(start, a.kind == FORWARD ? arrival(x, part - 1, a.microbatch, false)
                                              : arrival(x, part + 1, a.microbatch, true));
        start = fmax(start, overwritten(x, r, i));
    }
    for (int q = 0; q < s->config.p && (a.kind == TIE || a.kind == NORM); q++) {
        const int there = index_of(&x->step->stages[q], a.kind, -1, -1);
        if (there > 0) start = fmax(start, x->end[q][there - 1]);
    }
    return start;
}

static void solve(Solution* x) {
    memset(x->start, 0, sizeof x->start), memset(x->end, 0, sizeof x->end);
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

// What follows from the work alone: nothing before what it needs, one thing at a time on a stage, and the whole no
// shorter than any micro-batch's way through all parts and back, or than any stage's work.
static bool timeline_possible(const Step* step, const Costs* costs, const Timeline* t) {
    const PipelineConfig* plan = &step->config;
    const int parts = plan->p * plan->v;
    bool ok = true;
    for (int k = 0; k < plan->m; k++) {
        double way = 0, ended = 0;
        for (int n = 0; n < (step->training ? 2 : 1) * parts; n++) { // down and up
            const bool up = n >= parts;
            const int part = up ? 2 * parts - 1 - n : n, r = stage_of_part(plan, part), chunk = part / plan->p;
            const Schedule* s = &step->stages[r];
            int at = index_of(s, up ? BACKWARD_INPUT : FORWARD, chunk, k);
            if (at < 0) at = index_of(s, BACKWARD, chunk, k);
            const Action a = s->actions[at];
            const double seconds = costs->seconds[a.kind * parts + part];
            const double message = n == parts || n == 0 ? 0
                                   : up                 ? costs->seconds[SEND_BACKWARD * parts + part + 1]
                                                        : costs->seconds[SEND_FORWARD * parts + part - 1];
            ok = ok && t->start[r][at] >= ended + message && t->end[r][at] == t->start[r][at] + seconds;
            ended = t->end[r][at], way += message + seconds;
            const int weights = up ? index_of(s, BACKWARD_WEIGHT, chunk, k) : -1;
            if (weights >= 0) ok = ok && t->start[r][weights] >= ended && t->length >= t->end[r][weights];
            ok = ok && t->length >= way * (1 - 1e-12);
        }
    }
    for (int r = 0; r < plan->p; r++) {
        double work = 0;
        for (int i = 0; i < step->stages[r].n; i++) {
            ok = ok && t->end[r][i] >= t->start[r][i] && (i == 0 || t->start[r][i] >= t->end[r][i - 1]);
            work += t->end[r][i] - t->start[r][i];
        }
        ok = ok && t->length >= work * (1 - 1e-12);
    }
    return ok;
}

typedef struct {
    int timelines, solved, possible, bubbles, waits;
} TimeTally;

// One step at random costs: its timeline, with sends that wait and with such that do not.
static void compare_times(const Step* step, TimeTally* tally) {
    static Solution x;
    const PipelineConfig* plan = &step->config;
    Costs costs = costs_equal(plan->p * plan->v, 1, 1, 1, 0);
    for (int i = 0; i < ACTION_KINDS * plan->p * plan->v; i++) costs.seconds[i] = 0.1 + random_below(1000) / 300.0;
    for (int blocking = 0; blocking < 2; blocking++) {
        Timeline t = schedule_times(step->stages, plan->p, &costs, blocking);
        x.step = step, x.costs = &costs, x.blocking = blocking;
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
        tally->possible += timeline_possible(step, &costs, &t);
        tally->bubbles += fabs(bubble - expected) <= 1e-12 * (1 + expected);
        timeline_free(&t);
    }
    costs_free(&costs);
}

// A plan of any kind that the machine has room for.
static PipelineConfig random_plan(int most_m) {
    const ScheduleKind kind = (ScheduleKind)random_below(SCHEDULE_KINDS);
    const int p = 1 + random_below(kind == INTERLEAVED ? 3 : 4), m = 1 + random_below(most_m);
    const int v = kind == ZB_V ? 2 : kind == INTERLEAVED ? 2 + random_below(2) : 1;
    const int groups = 1 + random_below(most_m / p < 1 ? 1 : most_m / p);
    return plan_of(kind, p, v, kind == INTERLEAVED ? p * groups : m, random_below(8));
}

static void check_times(const char* what, const TimeTally* t) {
    check(t->solved == t->timelines && t->possible == t->timelines && t->bubbles == t->timelines && t->timelines > 0,
          "random costs, %s: %d timelines, %d solve the equations, %d are possible, %d have the bubble; %d waits for "
          "buffers",
          what, t->timelines, t->solved, t->possible, t->bubbles, t->waits);
}

static void test_random_costs(int steps) {
    TimeTally tally;
    memset(&tally, 0, sizeof tally);
    for (int n = 0; n < steps; n++) {
        const PipelineConfig plan = random_plan(8);
        Step step = n % 5 == 0 ? step_forward(plan, 1 + random_below(8)) : step_build(plan);
        compare_times(&step, &tally);
        step_free(&step);
    }
    check_times("built tables", &tally);
    check(tally.waits > 0, "%d of their actions wait for buffers that are still being sent", tally.waits);
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

typedef enum { DROP, DOUBLE, MOVE, EXCHANGE, SLOT, MICROBATCH, CHUNK, FLAG, KIND, CHANGES } Change;
static const char* change_names[] = {"dropped",     "doubled", "moved",  "exchanged", "slot",
                                     "micro-batch", "chunk",   "reduce", "kind"};

// How many ways there are to change action i in this way.
static int change_ways(const Schedule* s, Change change) {
    const int ways[] = {1, s->n + 1, s->n, s->n, s->slots + 2, s->config.m + 2, s->config.v + 2, 1, ACTION_KINDS};
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
    case CHUNK: a->chunk = way - 1; return a->chunk != before.chunk;
    case FLAG: a->reduce = !a->reduce; return true;
    default: a->kind = (ActionKind)way; return a->kind != before.kind;
    }
}

// Reasons to refuse; every one has to occur.
static const char* reasons[] = {"no chunk",
                                "no micro-batch",
                                "no slot",
                                "no such neighbour",
                                "no weight gradients",
                                "done before",
                                "norm: needs tie before it",
                                "update tied: needs tie before it",
                                "update tied: needs norm before it",
                                "needs norm before it",
                                "before it",
                                "is empty",
                                "holds micro-batch",
                                "overwrites",
                                "the forward pass of",
                                "the input gradient of",
                                "be added next",
                                "of the same matrix",
                                "lacks the reduce flag",
                                "a reduce flag too many",
                                "tie: weight gradients of micro-batch",
                                "weight gradients of micro-batch",
                                "update tied: there is nothing to tie",
                                "tie: there is nothing to tie",
                                "norm: chunk 0 has not been reduced",
                                "has not been reduced",
                                "norm is missing",
                                "update tied is missing",
                                "of chunk",
                                "then",
                                "waits for ever"};
enum { REASONS = sizeof reasons / sizeof reasons[0] };

typedef struct {
    int tables, valid, differ;
    int by_reason[REASONS];
} Tally;

// Checker and machine on one step; returns what both say.
static bool compare(const Step* step, Tally* tally) {
    Error error = {""};
    const bool proved = schedule_check(step->stages, step->config.p, &error);
    const bool runs = machine_accepts(step);
    tally->tables++, tally->valid += runs;
    if (proved != runs && tally->differ++ < 3) {
        printf("      differ, %s: the machine %s, the checker says: %s\n", schedule_name(step->config.kind),
               runs ? "accepts" : "refuses", proved ? "proved" : error.text);
        for (int r = 0; r < step->config.p; r++) {
            for (int i = 0; i < step->stages[r].n; i++) {
                const Action a = step->stages[r].actions[i];
                printf("%s%s %d.%d/%d%s", i ? ", " : "      ", action_name(a.kind), a.chunk, a.microbatch, a.slot,
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
    return proved && runs;
}

// Every single change of every action of every stage.
static void compare_changes(const Step* step, Change change, Tally* tally) {
    Step changed = *step;
    for (int r = 0; r < step->config.p; r++) {
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

static void test_single_changes(bool brief) {
    static const int sizes[][4] = {
        {GPIPE, 1, 1, 2},       {GPIPE, 2, 1, 3},       {GPIPE, 3, 1, 2},       {ONE_F_ONE_B, 1, 1, 1},
        {ONE_F_ONE_B, 2, 1, 2}, {ONE_F_ONE_B, 3, 1, 3}, {ONE_F_ONE_B, 2, 1, 4}, {INTERLEAVED, 1, 2, 2},
        {INTERLEAVED, 2, 2, 2}, {INTERLEAVED, 1, 3, 1}, {INTERLEAVED, 2, 2, 4}, {INTERLEAVED, 2, 3, 2},
        {ZB_H1, 1, 1, 2},       {ZB_H1, 2, 1, 3},       {ZB_H1, 3, 1, 3},       {ZB_V, 1, 2, 2},
        {ZB_V, 2, 2, 1},        {ZB_V, 2, 2, 3},        {ZB_V, 3, 2, 2}};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    Tally sum[CHANGES], all;
    memset(sum, 0, sizeof sum), memset(&all, 0, sizeof all);
    for (int n = 0; n < SIZES * 4; n++) {
        const int* size = sizes[n % SIZES];
        static const int flags[] = {6, 3, 0}; // tied and clip; reduce_every and tied; none; forward passes only
        const PipelineConfig plan =
            plan_of((ScheduleKind)size[0], size[1], size[2], size[3], n / SIZES < 3 ? flags[n / SIZES] : 0);
        const int work = size[1] * size[2] * size[3];
        if (brief && (n / SIZES != n % 4 || work > 9)) continue;
        Step step = n / SIZES < 3 ? step_build(plan) : step_forward(plan, size[3]);
        for (int change = 0; change < CHANGES; change++) compare_changes(&step, (Change)change, &sum[change]);
        step_free(&step);
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

// Two to four changes at once, anywhere, most of them small moves, which often leave a step that works.
static void test_many_changes(int steps) {
    Tally tally;
    TimeTally times;
    memset(&tally, 0, sizeof tally), memset(&times, 0, sizeof times);
    for (int n = 0; n < steps; n++) {
        const PipelineConfig plan = random_plan(5);
        Step step = n % 5 == 0 ? step_forward(plan, 1 + random_below(5)) : step_build(plan);
        for (int r = 0; r < plan.p; r++) {
            Schedule copy = schedule_copy(&step.stages[r], 4);
            schedule_free(&step.stages[r]);
            step.stages[r] = copy;
        }
        for (int changes = 2 + random_below(3); changes > 0; changes--) {
            Schedule* s = &step.stages[random_below(plan.p)];
            if (s->n == 0) continue;
            const int i = random_below(s->n);
            const Change change = random_below(4) ? MOVE : (Change)random_below(CHANGES);
            int way = random_below(change_ways(s, change));
            if (change == MOVE && random_below(4)) way = i < s->n - 1 ? i + 1 : i;
            change_apply(s, change, i, way);
        }
        if (compare(&step, &tally) && n % 16 == 0) compare_times(&step, &times);
        step_free(&step);
    }
    check(tally.differ == 0 && tally.valid > steps / 100 && tally.valid < steps,
          "2-4 changes %6d tables, %5d still right: checker and machine differ on %d", tally.tables, tally.valid,
          tally.differ);
    check_times("changed tables", &times);
}

// ----------------------------------------------------------------------------------------------------------------
// Tables that nobody built: the machine does what it can do, by chance, and writes down what it did

// Ways to a dead end: a transfer whose other end is there already and is about another message; most receives ahead of
// their sends, where messages of several chunks go one way.
static bool meets_another(const Machine* x, int r, Action a) {
    const bool send = a.kind == SEND_FORWARD || a.kind == SEND_BACKWARD;
    const bool up = a.kind == RECEIVE_BACKWARD || a.kind == SEND_BACKWARD;
    const int here = part_of(&x->config, r, a.chunk), there = send == up ? here - 1 : here + 1;
    if (!action_transfers(a.kind) || there < 0 || there > last_part(&x->config)) return false;
    const int peer = stage_of_part(&x->config, there);
    const Wire* wire = send ? &x->wires[up][r][peer] : &x->wires[up][peer][r];
    const int n = send ? wire->sends : wire->receives;
    if (n >= (send ? wire->receives : wire->sends)) return !send && x->config.kind == INTERLEAVED && random_below(400);
    const Message other = send ? wire->receive[n] : wire->send[n];
    return other.part != (send ? here : there) || other.microbatch != a.microbatch;
}

// The next action of a stage, by chance: nothing that the stage has begun before.
static Action random_action(const Machine* x, int r, int (*slot_of)[MOST_MICROBATCHES],
                            unsigned (*begun)[MOST_MICROBATCHES]) {
    Action a = {(ActionKind)random_below(ACTION_KINDS), random_below(x->config.v), random_below(x->config.m), -1,
                false};
    if (a.kind >= REDUCE) {
        a.microbatch = -1;
        if (a.kind != REDUCE && a.kind != UPDATE) a.chunk = -1;
        // a stage that waits for others while they need work of it is a dead end
        bool needed = false;
        for (int c = 0; c < x->config.v; c++) {
            const bool first = part_of(&x->config, r, c) == 0;
            needed = needed || !(begun[c][x->config.m - 1] >> (first ? FORWARD : SEND_BACKWARD) & 1);
        }
        if ((a.kind == TIE || a.kind == NORM) && needed) a.kind = ACTION_KINDS;
        return a;
    }
    const unsigned* done = begun[a.chunk];
    while (a.microbatch > 0 && !(done[a.microbatch - 1] >> a.kind & 1)) a.microbatch--;
    const bool again = done[a.microbatch] >> a.kind & 1;
    const bool other_half = a.kind == BACKWARD && done[a.microbatch] >> BACKWARD_INPUT & 1;
    if (again || other_half || meets_another(x, r, a)) a.kind = ACTION_KINDS; // the machine refuses it
    if (a.kind == FORWARD) a.slot = random_below(x->slots[0]);
    if (a.kind == SEND_FORWARD || action_is_backward(a.kind)) a.slot = slot_of[a.chunk][a.microbatch];
    a.reduce = adds_weights(a.kind) && (x->config.reduce_every || a.microbatch == x->config.m - 1);
    return a;
}

// A step with a slot for every micro-batch and chunk; false if it came to a dead end.
static bool random_step(Step* step, PipelineConfig plan) {
    static Machine x;
    static int slot_of[MACHINE_STAGES][MOST_CHUNKS][MOST_MICROBATCHES];
    static unsigned begun[MACHINE_STAGES][MOST_CHUNKS][MOST_MICROBATCHES];
    Action meets[MACHINE_STAGES]; // a stage that has come to TIE or NORM does nothing else until the others have
    bool waits[MACHINE_STAGES] = {false};
    memset(step, 0, sizeof *step), memset(begun, 0, sizeof begun), memset(slot_of, 0, sizeof slot_of);
    step->config = plan, step->training = true;
    for (int r = 0; r < plan.p; r++) step->stages[r] = schedule_new(&plan, r), step->stages[r].slots = plan.m * plan.v;
    machine_begin(&x, step, false);
    for (int attempt = 0; attempt < 400 * plan.p * plan.m * plan.v; attempt++) {
        const int r = random_below(plan.p);
        wire_deliver(&x.wires[random_below(2)][r][random_below(plan.p)]);
        const Action a = waits[r] ? meets[r] : random_action(&x, r, slot_of[r], begun[r]);
        const Outcome outcome = worker_act(&x, r, a);
        waits[r] = outcome == BLOCKED && (a.kind == TIE || a.kind == NORM), meets[r] = a;
        if (outcome != MOVED) continue;
        step->stages[r].actions[step->stages[r].n++] = a;
        if (a.kind >= NORM && machine_finished(&x)) return true;
        if (a.microbatch < 0) continue;
        begun[r][a.chunk][a.microbatch] |= 1u << a.kind;
        if (a.kind == FORWARD) slot_of[r][a.chunk][a.microbatch] = a.slot;
    }
    return false;
}

static void test_random_steps(int steps) {
    Tally tally;
    TimeTally times;
    memset(&tally, 0, sizeof tally), memset(&times, 0, sizeof times);
    int halves = 0, chunks = 0, early = 0, amid = 0; // ties before the reduction, before other chunks' work
    for (int n = 0; n < steps; n++) {
        Step step;
        const bool finished = random_step(&step, random_plan(4));
        if (finished && compare(&step, &tally)) compare_times(&step, &times);
        for (int r = 0; r < step.config.p && finished; r++) {
            halves += index_of(&step.stages[r], BACKWARD_WEIGHT, 0, 0) >= 0;
            chunks += step.config.p > 1 && step.config.v > 1;
            const Schedule* s = &step.stages[r];
            const int tie = index_of(s, TIE, -1, -1), tied = r == 0 ? 0 : step.config.v - 1; // chunk
            early += tie >= 0 && tie < index_of(s, REDUCE, tied, -1);
            amid += tie >= 0 && computing_between(s, tie, s->n) > 0;
        }
        step_free(&step);
    }
    check(tally.differ == 0 && tally.tables > steps / 20 && halves > 0 && chunks > 0 && tally.valid > steps / 40,
          "by chance   %6d steps found by the machine, %d run with sends that wait (%d stages with halves, %d with "
          "chunks); checker and machine differ on %d",
          tally.tables, tally.valid, halves, chunks, tally.differ);
    check(tally.valid < tally.tables, "by chance   %6d of them need sends that do not wait",
          tally.tables - tally.valid);
    check(early > 0 && (amid > 0 || steps <= 1000),
          "by chance   %6d stages tie before they reduce, %d before their last gradients", early, amid);
    check_times("tables by chance", &times);
}

// ----------------------------------------------------------------------------------------------------------------
// Tables that are sound one by one and wait for each other

static void exchange(Schedule* s, int i, int j) {
    const Action a = s->actions[i];
    s->actions[i] = s->actions[j], s->actions[j] = a;
}

static Action whole(ActionKind kind, int chunk) {
    const Action a = {kind, chunk, -1, -1, false};
    return a;
}

static void test_deadlocks(void) {
    Error error = {""};
    Step step = step_build(plan_of(ONE_F_ONE_B, 2, 1, 1, 0)); // stage 0 waits for the gradient of what it has not sent
    Schedule* s = &step.stages[0];
    exchange(s, index_of(s, SEND_FORWARD, 0, 0), index_of(s, BACKWARD, 0, 0));
    bool refused = !schedule_check(step.stages, 2, &error) && !machine_accepts(&step);
    check(refused && strstr(error.text, "stage 0, action 2, backward 0: waits for ever"), "deadlock: %s", error.text);
    step_free(&step);
    step = step_build(plan_of(ZB_H1, 2, 1, 2, 0)); // stage 0: F0 B0 F1 B1; stage 1: F0 F1 B0 B1; no receive too late
    s = &step.stages[0];
    const Action forward = s->actions[index_of(s, FORWARD, 0, 1)], send = s->actions[index_of(s, SEND_FORWARD, 0, 1)];
    remove_at(s, index_of(s, FORWARD, 0, 1)), remove_at(s, index_of(s, SEND_FORWARD, 0, 1));
    const int after = index_of(s, BACKWARD_INPUT, 0, 0);
    insert_at(s, after + 1, forward), insert_at(s, after + 2, send);
    s = &step.stages[1];
    const int first = index_of(s, BACKWARD_INPUT, 0, 0);
    const Action later = s->actions[index_of(s, FORWARD, 0, 1)];
    remove_at(s, index_of(s, FORWARD, 0, 1)), insert_at(s, first, later);
    refused = !schedule_check(step.stages, 2, &error) && !machine_accepts(&step);
    check(refused && strstr(error.text, "stage 0, action 4, backward input half 0: waits for ever"), "deadlock: %s",
          error.text);
    step_free(&step);
    // The head's stage waits in the middle of its work for the embedding's, which waits for gradients from it.
    step = step_build(plan_of(INTERLEAVED, 2, 2, 2, 2));
    s = &step.stages[1];
    const int last_sum = index_of(s, BACKWARD, 1, 1);
    const int late_tie = index_of(s, TIE, -1, -1);
    if (late_tie >= 0) remove_at(s, late_tie), insert_at(s, last_sum + 1, whole(TIE, -1));
    refused = late_tie >= 0 && !schedule_check(step.stages, 2, &error) && !machine_accepts(&step);
    check(refused && strstr(error.text, "backward 1 in chunk 1: waits for ever"), "deadlock: %s", error.text);
    step_free(&step);
    // A stage that sends to itself and asks for the message afterwards: all is well unless sends wait.
    step = step_build(plan_of(ZB_V, 1, 2, 1, 0));
    s = &step.stages[0];
    const Action receive = s->actions[index_of(s, RECEIVE_FORWARD, 1, 0)];
    remove_at(s, index_of(s, RECEIVE_FORWARD, 1, 0)), insert_at(s, index_of(s, FORWARD, 1, 0), receive);
    refused = !schedule_check(step.stages, 1, &error) && !machine_runs(&step, BLOCKING);
    const bool runs = machine_runs(&step, EAGER) && machine_runs(&step, LAZY) && machine_runs(&step, BY_CHANCE);
    check(refused && runs && strstr(error.text, "send forward 0 in chunk 0: waits for ever"), "deadlock: %s",
          error.text);
    Costs costs = costs_equal(2, 1, 1, 1, 0);
    Timeline t = schedule_times(step.stages, 1, &costs, false), waiting = schedule_times(step.stages, 1, &costs, true);
    check(t.done[0] == step.stages[0].n && t.length == 6 && waiting.done[0] == index_of(s, SEND_FORWARD, 0, 0),
          "its timeline has an end; if sends wait it ends after %d actions", waiting.done[0]);
    timeline_free(&t), timeline_free(&waiting);
    costs_free(&costs);
    step_free(&step);
}

// A send buffer and a slot are free again when the message has been received, not when it was sent.
static void test_waiting_for_buffers(void) {
    // Stage 0 posts its first receive after all six forwards, 10 s each. Stage 1 could do backward 2, which fills the
    // send buffer of backward 0 again, at 42 s: F0 at 10, B0 at 20 (1 s), F1 at 21, B1 at 31, F2 at 32.
    const int m = 6;
    Step step = step_build(plan_of(GPIPE, 2, 1, m, 0));
    Schedule* s = &step.stages[0];
    for (int k = 0; k < 2; k++) {
        const Action receive = s->actions[index_of(s, RECEIVE_BACKWARD, 0, k)];
        remove_at(s, index_of(s, RECEIVE_BACKWARD, 0, k));
        insert_at(s, index_of(s, BACKWARD, 0, 0), receive);
    }
    // the later one was put before the first backward last, so they are in order
    const PipelineConfig other = plan_of(ONE_F_ONE_B, 2, 1, m, 0);
    schedule_free(&step.stages[1]);
    step.stages[1] = schedule_build(&other, 1);
    step.stages[1].config.kind = GPIPE;
    Error error = {""};
    const bool refused = !schedule_check(step.stages, 2, &error) && !machine_runs(&step, BLOCKING);
    const bool runs = machine_runs(&step, EAGER) && machine_runs(&step, LAZY) && machine_runs(&step, BY_CHANCE);
    check(refused && runs && strstr(error.text, "waits for ever"),
          "all forwards first on one stage, one by one on the other: no way if sends wait: %s", error.text);
    Costs costs = costs_equal(2, 10, 1, 0, 0);
    Timeline t = schedule_times(step.stages, 2, &costs, false);
    const double start = t.start[1][index_of(&step.stages[1], BACKWARD, 0, 2)];
    check(start == 60, "a backward pass waits for its send buffer until 60 s: %g s", start);
    timeline_free(&t);
    costs_free(&costs);
    step_free(&step);
    // Forwards only, two slots, messages of 5 s: the third forward (at 2 s, if it could) waits for the first output.
    step = step_forward(plan_of(ONE_F_ONE_B, 2, 1, 3, 0), 3);
    costs = costs_equal(2, 1, 1, 1, 5);
    t = schedule_times(step.stages, 2, &costs, false);
    const double third = t.start[0][index_of(&step.stages[0], FORWARD, 0, 2)];
    check(third == 6, "a forward pass waits for its slot's output until 6 s: %g s", third);
    timeline_free(&t);
    costs_free(&costs);
    step_free(&step);
}

// Checker and machine have to accept what is another order of the same step.
static bool both_accept(const Step* step, const char* what) {
    Error error = {"proved"};
    const bool proved = schedule_check(step->stages, step->config.p, &error), runs = machine_accepts(step);
    if (!proved || !runs) printf("      %s: %s; the machine %s\n", what, error.text, runs ? "accepts" : "refuses");
    return proved && runs;
}

// What the rules of the endings leave to the builder: an action put right before or right after another one.
static void test_endings_allowed(void) {
    enum { BEFORE, AFTER };
    static const struct {
        const char* what;
        ScheduleKind kind;
        int v, flags, stage;
        ActionKind kind_moved;
        int chunk_moved, where;
        ActionKind kind_there;
        int chunk_there;
    } moves[] = {
        {"a tie before the reduction", ONE_F_ONE_B, 1, 2, 0, TIE, -1, BEFORE, REDUCE, 0},
        {"the same on the other stage", ONE_F_ONE_B, 1, 2, 1, TIE, -1, BEFORE, REDUCE, 0},
        {"a tie before the update", ONE_F_ONE_B, 1, 2, 0, TIE, -1, BEFORE, UPDATE, 0},
        {"the same on the other stage", ONE_F_ONE_B, 1, 2, 1, TIE, -1, BEFORE, UPDATE, 0},
        {"a tie before the reduction, clipped", ONE_F_ONE_B, 1, 6, 0, TIE, -1, BEFORE, REDUCE, 0},
        {"a tie before the reduction, halves", ZB_H1, 1, 6, 1, TIE, -1, BEFORE, REDUCE, 0},
        {"a tie before the reduction of its chunk", INTERLEAVED, 2, 6, 0, TIE, -1, BEFORE, REDUCE, 0},
        {"a tie before the reduction of another chunk", INTERLEAVED, 2, 2, 1, TIE, -1, BEFORE, REDUCE, 0},
        {"a chunk's update last", ONE_F_ONE_B, 1, 2, 0, UPDATE, 0, AFTER, NORM, -1},
        {"a chunk's update after the matrix's", INTERLEAVED, 2, 2, 1, UPDATE, 1, AFTER, UPDATE_TIED, -1},
        {"the matrix's update last", ONE_F_ONE_B, 1, 2, 0, UPDATE_TIED, -1, AFTER, NORM, -1},
        {"the matrix's update first, clipped", INTERLEAVED, 2, 6, 1, UPDATE_TIED, -1, AFTER, NORM, -1},
        {"the matrix's update between, clipped", INTERLEAVED, 2, 6, 0, UPDATE_TIED, -1, AFTER, UPDATE, 0},
        {"updates in another order", ZB_V, 2, 6, 0, UPDATE, 0, AFTER, UPDATE, 1},
        {"a chunk's update last, nothing tied", INTERLEAVED, 2, 0, 1, UPDATE, 1, AFTER, NORM, -1},
    };
    enum { MOVES = sizeof moves / sizeof moves[0] };
    int right = 0;
    for (int i = 0; i < MOVES; i++) {
        Step step = step_build(plan_of(moves[i].kind, 2, moves[i].v, 2, moves[i].flags));
        Schedule* s = &step.stages[moves[i].stage];
        const int from = index_of(s, moves[i].kind_moved, moves[i].chunk_moved, -1);
        const int to = index_of(s, moves[i].kind_there, moves[i].chunk_there, -1) + (moves[i].where == AFTER);
        if (from >= 0 && to >= 0) {
            const Action a = s->actions[from];
            remove_at(s, from), insert_at(s, to > from ? to - 1 : to, a);
            right += both_accept(&step, moves[i].what);
        }
        step_free(&step);
    }
    check(right == MOVES, "endings in another order: %d of %d are accepted", right, MOVES);
    // All about the matrix before anything about its chunk: TIE, UPDATE_TIED, REDUCE, UPDATE, NORM.
    Step step = step_build(plan_of(ONE_F_ONE_B, 2, 1, 2, 2));
    for (int r = 0; r < 2; r++) {
        const Action ending[] = {whole(TIE, -1), whole(UPDATE_TIED, -1), whole(REDUCE, 0), whole(UPDATE, 0),
                                 whole(NORM, -1)};
        memcpy(&step.stages[r].actions[step.stages[r].n - 5], ending, sizeof ending);
    }
    check(both_accept(&step, "the matrix first"), "all about the tied matrix before anything about its chunk");
    step_free(&step);
    // The head's stage may tie when nobody waits any more for its other chunk, whose last weight half is still to come.
    step = step_build(plan_of(INTERLEAVED, 2, 2, 2, 2));
    Schedule* s = &step.stages[1];
    const int last = index_of(s, BACKWARD, 0, 1), tie = index_of(s, TIE, -1, -1);
    if (!check(last >= 0 && tie >= 0, "a last backward pass and a tie in a loop")) {
        step_free(&step);
        return;
    }
    Action half = s->actions[last];
    half.kind = BACKWARD_WEIGHT, s->actions[last].kind = BACKWARD_INPUT, s->actions[last].reduce = false;
    remove_at(s, tie), insert_at(s, index_of(s, SEND_BACKWARD, 0, 1) + 1, whole(TIE, -1));
    Schedule longer = schedule_copy(s, 1);
    schedule_free(s);
    *s = longer;
    insert_at(s, index_of(s, TIE, -1, -1) + 1, half);
    check(both_accept(&step, "a tie before another chunk's weight half"), "a tie before another chunk's weight half");
    step_free(&step);
}

// ----------------------------------------------------------------------------------------------------------------
// Planted faults, each with the message it has to give

enum { WHOLE, HALVES, LOOP, VEE, CLIPPED, TIED, BETWEEN, TIED_LOOP, EVERY, ALONE, FORWARDS, BASES };

static Step fault_base(int base) {
    switch (base) {
    case WHOLE: return step_build(plan_of(ONE_F_ONE_B, 3, 1, 4, 0));
    case HALVES: return step_build(plan_of(ZB_H1, 3, 1, 4, 0));
    case LOOP: return step_build(plan_of(INTERLEAVED, 2, 2, 2, 0));
    case VEE: return step_build(plan_of(ZB_V, 2, 2, 3, 6));
    case CLIPPED: return step_build(plan_of(ONE_F_ONE_B, 2, 1, 2, 6));
    case TIED: return step_build(plan_of(ONE_F_ONE_B, 2, 1, 2, 2));
    case BETWEEN: return step_build(plan_of(ZB_H1, 3, 1, 4, 2));
    case TIED_LOOP: return step_build(plan_of(INTERLEAVED, 2, 2, 2, 2));
    case EVERY: return step_build(plan_of(ONE_F_ONE_B, 2, 1, 2, 1));
    case ALONE: return step_build(plan_of(INTERLEAVED, 1, 3, 1, 0));
    default: return step_forward(plan_of(ONE_F_ONE_B, 3, 1, 4, 0), 4);
    }
}

typedef enum {
    LEAVE_OUT,
    LEAVE_OUT_BOTH,
    CUT,
    REPEAT,
    SWAP,
    SET_KIND,
    SET_CHUNK,
    SET_MICROBATCH,
    SET_SLOT,
    SET_REDUCE,
    STAGE,
    P,
    M,
    V,
    SLOTS,
    PLAN_KIND,
    PLAN_EVERY,
    PLAN_TIED,
    PLAN_CLIP,
    ONLY_FORWARD
} Fault;

static const struct {
    const char* what;
    int base;
    Fault fault;
    int stage;
    ActionKind kind; // the action that is changed, ...
    int chunk, k;
    ActionKind other; // ... exchanged with another, ...
    int other_chunk, other_k;
    int value; // ... or given a value
    const char* message;
} faults[] = {
    {"a forward left out", WHOLE, LEAVE_OUT, 1, FORWARD, 0, 2, FORWARD, 0, 0, 0,
     "stage 1, action 13, send forward 2: needs forward 2 before it"},
    {"a receive left out", WHOLE, LEAVE_OUT, 1, RECEIVE_FORWARD, 0, 3, FORWARD, 0, 0, 0,
     "forward 3: needs receive forward 3 before it"},
    {"a send left out", WHOLE, LEAVE_OUT, 0, SEND_FORWARD, 0, 3, FORWARD, 0, 0, 0,
     "stage 0: send forward 3 of chunk 0 is missing"},
    {"a gradient never sent", WHOLE, LEAVE_OUT, 2, SEND_BACKWARD, 0, 3, FORWARD, 0, 0, 0,
     "stage 2: send backward 3 of chunk 0 is missing"},
    {"a gradient overwritten", WHOLE, LEAVE_OUT, 2, SEND_BACKWARD, 0, 0, FORWARD, 0, 0, 0,
     "backward 2: overwrites micro-batch 0 in send buffer 0"},
    {"a gradient not received", WHOLE, LEAVE_OUT, 0, RECEIVE_BACKWARD, 0, 0, FORWARD, 0, 0, 0,
     "backward 0: needs receive backward 0 before it"},
    {"a backward left out", WHOLE, LEAVE_OUT, 0, BACKWARD, 0, 3, FORWARD, 0, 0, 0,
     "reduce: weight gradients of micro-batch 3 are missing"},
    {"a weight half left out", HALVES, LEAVE_OUT, 2, BACKWARD_WEIGHT, 0, 3, FORWARD, 0, 0, 0,
     "reduce: weight gradients of micro-batch 3 are missing"},
    {"an input half left out", HALVES, LEAVE_OUT, 2, BACKWARD_INPUT, 0, 3, FORWARD, 0, 0, 0,
     "send backward 3: needs backward input half 3 before it"},
    {"no reduction", WHOLE, LEAVE_OUT, 1, REDUCE, 0, -1, FORWARD, 0, 0, 0, "update: chunk 0 has not been reduced"},
    {"no reduction of a chunk", LOOP, LEAVE_OUT, 1, REDUCE, 1, -1, FORWARD, 0, 0, 0,
     "update in chunk 1: chunk 1 has not been reduced"},
    {"no update", WHOLE, LEAVE_OUT, 1, UPDATE, 0, -1, FORWARD, 0, 0, 0, "stage 1: update of chunk 0 is missing"},
    {"no update of a chunk", LOOP, LEAVE_OUT, 0, UPDATE, 1, -1, FORWARD, 0, 0, 0,
     "stage 0: update of chunk 1 is missing"},
    {"no norm", WHOLE, LEAVE_OUT, 1, NORM, -1, -1, FORWARD, 0, 0, 0, "stage 1: norm is missing"},
    {"no tie", CLIPPED, LEAVE_OUT, 0, TIE, -1, -1, FORWARD, 0, 0, 0, "norm: needs tie before it"},
    {"an update before the norm", CLIPPED, SWAP, 0, UPDATE, 0, -1, NORM, -1, -1, 0, "update: needs norm before it"},
    {"a norm before the tie", CLIPPED, SWAP, 1, NORM, -1, -1, TIE, -1, -1, 0, "norm: needs tie before it"},
    {"nothing after the updates", TIED, CUT, 1, TIE, -1, -1, FORWARD, 0, 0, 0, "stage 1: tie is missing"},
    {"no norm after the tie", TIED, LEAVE_OUT, 1, NORM, -1, -1, FORWARD, 0, 0, 0, "stage 1: norm is missing"},
    {"no tie, no clipping", TIED, LEAVE_OUT, 1, TIE, -1, -1, FORWARD, 0, 0, 0, "update tied: needs tie before it"},
    {"no update of the matrix", TIED, LEAVE_OUT, 1, UPDATE_TIED, -1, -1, FORWARD, 0, 0, 0,
     "stage 1: update tied is missing"},
    {"no update of the clipped matrix", CLIPPED, LEAVE_OUT, 0, UPDATE_TIED, -1, -1, FORWARD, 0, 0, 0,
     "stage 0: update tied is missing"},
    {"an update of the matrix before the tie", TIED, SWAP, 1, UPDATE_TIED, -1, -1, TIE, -1, -1, 0,
     "update tied: needs tie before it"},
    {"an update of the clipped matrix before the tie", CLIPPED, SWAP, 0, UPDATE_TIED, -1, -1, TIE, -1, -1, 0,
     "update tied: needs tie before it"},
    {"an update of the matrix before the norm", CLIPPED, SWAP, 1, UPDATE_TIED, -1, -1, NORM, -1, -1, 0,
     "update tied: needs norm before it"},
    {"an update of the matrix twice", TIED, REPEAT, 0, UPDATE_TIED, -1, -1, FORWARD, 0, 0, 0,
     "update tied: has been done before"},
    {"an update of the clipped matrix twice", CLIPPED, REPEAT, 1, UPDATE_TIED, -1, -1, FORWARD, 0, 0, 0,
     "update tied: has been done before"},
    {"an update of a matrix, not tied", WHOLE, SET_KIND, 2, NORM, -1, -1, FORWARD, 0, 0, UPDATE_TIED,
     "stage 2, action 18, update tied: there is nothing to tie"},
    {"an update of a matrix that others have", BETWEEN, SET_KIND, 1, NORM, -1, -1, FORWARD, 0, 0, UPDATE_TIED,
     "update tied: there is nothing to tie"},
    {"an update of a matrix that one stage has", VEE, SET_KIND, 0, NORM, -1, -1, FORWARD, 0, 0, UPDATE_TIED,
     "update tied: there is nothing to tie"},
    {"an update of the matrix of a chunk", TIED_LOOP, SET_CHUNK, 1, UPDATE_TIED, -1, -1, FORWARD, 0, 0, 1,
     "update tied in chunk 1: no chunk 1 of 2 for it"},
    {"an update of the matrix of a micro-batch", TIED, SET_MICROBATCH, 0, UPDATE_TIED, -1, -1, FORWARD, 0, 0, 1,
     "update tied 1: no micro-batch 1 of 2 for it"},
    {"an update of the matrix in a slot", TIED, SET_SLOT, 0, UPDATE_TIED, -1, -1, FORWARD, 0, 0, 0,
     "update tied: no slot 0 of 2 for it"},
    {"an update of the matrix with a flag", TIED, SET_REDUCE, 0, UPDATE_TIED, -1, -1, FORWARD, 0, 0, 1,
     "update tied: has the reduce flag and no weight gradients"},
    {"an update of the chunk for that of the matrix", TIED, SET_KIND, 0, UPDATE_TIED, -1, -1, FORWARD, 0, 0, UPDATE,
     "update: no chunk -1 of 1 for it"},
    {"a tie of a chunk", TIED, SET_CHUNK, 0, TIE, -1, -1, FORWARD, 0, 0, 0, "tie: no chunk 0 of 1 for it"},
    {"a tie twice", TIED, REPEAT, 0, TIE, -1, -1, FORWARD, 0, 0, 0, "tie: has been done before"},
    {"a norm before the sums", CLIPPED, SWAP, 0, REDUCE, 0, -1, NORM, -1, -1, 0, "norm: chunk 0 has not been reduced"},
    {"a norm before a chunk's sums", VEE, LEAVE_OUT, 1, REDUCE, 1, -1, FORWARD, 0, 0, 0,
     "norm: chunk 1 has not been reduced"},
    {"a tie before the embedding's last gradients", TIED, SWAP, 0, BACKWARD, 0, 1, TIE, -1, -1, 0,
     "tie: weight gradients of micro-batch 1 are missing"},
    {"a tie before the head's last gradients", CLIPPED, SWAP, 1, BACKWARD, 0, 1, TIE, -1, -1, 0,
     "tie: weight gradients of micro-batch 1 are missing"},
    {"a tie before the last weight half", BETWEEN, SWAP, 2, BACKWARD_WEIGHT, 0, 3, TIE, -1, -1, 0,
     "tie: weight gradients of micro-batch 3 are missing"},
    {"a tie before the first weight half", BETWEEN, SWAP, 0, BACKWARD_WEIGHT, 0, 0, TIE, -1, -1, 0,
     "tie: weight gradients of micro-batch 0 are missing"},
    {"a tie before the last gradients of the head's chunk", TIED_LOOP, SWAP, 1, BACKWARD, 1, 1, TIE, -1, -1, 0,
     "tie: weight gradients of micro-batch 1 are missing"},
    {"a tie before the last gradients of the embedding's chunk", TIED_LOOP, SWAP, 0, BACKWARD, 0, 1, TIE, -1, -1, 0,
     "tie: weight gradients of micro-batch 1 are missing"},
    {"a tie between two ties", BETWEEN, SET_KIND, 1, NORM, -1, -1, FORWARD, 0, 0, TIE, "tie: there is nothing to tie"},
    {"a tie of nothing", WHOLE, SET_KIND, 1, NORM, -1, -1, FORWARD, 0, 0, TIE, "tie: there is nothing to tie"},
    {"a tie of one stage with itself", VEE, SET_KIND, 0, NORM, -1, -1, FORWARD, 0, 0, TIE,
     "tie: there is nothing to tie"},
    {"the head not before the embedding", VEE, LEAVE_OUT_BOTH, 0, BACKWARD_WEIGHT, 1, 2, REDUCE, 1, -1, 0,
     "backward weight half 2 in chunk 0: the head's gradients of the same matrix have to be added before"},
    {"a backward before its forward", WHOLE, SWAP, 2, FORWARD, 0, 1, BACKWARD, 0, 1, 0,
     "backward 1: needs forward 1 before it"},
    {"a forward twice", WHOLE, REPEAT, 0, FORWARD, 0, 1, FORWARD, 0, 0, 0, "forward 1: has been done before"},
    {"a backward twice", WHOLE, REPEAT, 0, BACKWARD, 0, 1, FORWARD, 0, 0, 0, "backward 1: has been done before"},
    {"a reduction twice", LOOP, REPEAT, 0, REDUCE, 1, -1, FORWARD, 0, 0, 0, "reduce in chunk 1: has been done before"},
    {"an update twice", WHOLE, REPEAT, 0, UPDATE, 0, -1, FORWARD, 0, 0, 0, "update: has been done before"},
    {"a norm twice", WHOLE, REPEAT, 0, NORM, -1, -1, FORWARD, 0, 0, 0, "norm: has been done before"},
    {"halves exchanged", HALVES, SWAP, 2, BACKWARD_INPUT, 0, 1, BACKWARD_WEIGHT, 0, 1, 0,
     "backward weight half 1: needs backward input half 1 before it"},
    {"a half of a whole", WHOLE, SET_KIND, 2, BACKWARD, 0, 3, FORWARD, 0, 0, BACKWARD_WEIGHT,
     "backward weight half 3: needs backward input half 3 before it"},
    {"receives exchanged", WHOLE, SWAP, 1, RECEIVE_FORWARD, 0, 0, RECEIVE_FORWARD, 0, 1, 0,
     "receive forward 1: stage 0 sends micro-batch 0 of its chunk 0 then"},
    {"gradients' receives exchanged", WHOLE, SWAP, 1, RECEIVE_BACKWARD, 0, 0, RECEIVE_BACKWARD, 0, 1, 0,
     "receive backward 1: stage 2 sends micro-batch 0 of its chunk 0 then"},
    {"receives of two chunks exchanged", LOOP, SWAP, 1, RECEIVE_FORWARD, 0, 1, RECEIVE_FORWARD, 1, 0, 0,
     "receive forward 0 in chunk 1: stage 0 sends micro-batch 1 of its chunk 0 then"},
    {"receives of one micro-batch exchanged", ALONE, SWAP, 0, RECEIVE_FORWARD, 1, 0, RECEIVE_FORWARD, 2, 0, 0,
     "receive forward 0 in chunk 2: stage 0 sends micro-batch 0 of its chunk 0 then"},
    {"a receive too early", WHOLE, SWAP, 2, RECEIVE_FORWARD, 0, 2, FORWARD, 0, 0, 0,
     "receive forward 2: overwrites micro-batch 0 in receive buffer for inputs 0"},
    {"a gradient's receive too early", WHOLE, SWAP, 0, RECEIVE_BACKWARD, 0, 3, BACKWARD, 0, 1, 0,
     "receive backward 3: overwrites micro-batch 1 in receive buffer for gradients 1"},
    {"forwards out of order", WHOLE, SWAP, 0, FORWARD, 0, 0, FORWARD, 0, 1, 0,
     "forward 1: the forward pass of micro-batch 0 has to come next"},
    {"backwards out of order", WHOLE, SWAP, 0, BACKWARD, 0, 0, BACKWARD, 0, 1, 0,
     "backward 1: the input gradient of micro-batch 0 has to come next"},
    {"weight halves out of order", HALVES, SWAP, 2, BACKWARD_WEIGHT, 0, 1, BACKWARD_WEIGHT, 0, 2, 0,
     "backward weight half 2: weight gradients of micro-batch 1 have to be added next"},
    {"a slot that is in use", WHOLE, SET_SLOT, 0, FORWARD, 0, 1, FORWARD, 0, 0, 0,
     "forward 1: slot 0 holds micro-batch 0 of chunk 0"},
    {"a slot that another chunk uses", LOOP, SET_SLOT, 0, FORWARD, 1, 0, FORWARD, 0, 0, 1,
     "forward 0 in chunk 1: slot 1 holds micro-batch 1 of chunk 0"},
    {"a send from another slot", WHOLE, SET_SLOT, 0, SEND_FORWARD, 0, 1, FORWARD, 0, 0, 0,
     "send forward 1: slot 0 holds micro-batch 0 of chunk 0"},
    {"a send from an empty slot", WHOLE, SET_SLOT, 0, SEND_FORWARD, 0, 0, FORWARD, 0, 0, 2,
     "send forward 0: slot 2 is empty"},
    {"a backward on another slot", WHOLE, SET_SLOT, 0, BACKWARD, 0, 1, FORWARD, 0, 0, 2,
     "backward 1: slot 2 holds micro-batch 2 of chunk 0"},
    {"a backward on another chunk's slot", LOOP, SET_SLOT, 0, BACKWARD, 1, 0, FORWARD, 0, 0, 0,
     "backward 0 in chunk 1: slot 0 holds micro-batch 0 of chunk 0"},
    {"a slot that is not there", WHOLE, SET_SLOT, 2, FORWARD, 0, 1, FORWARD, 0, 0, 1,
     "forward 1: no slot 1 of 1 for it"},
    {"a negative slot", WHOLE, SET_SLOT, 2, FORWARD, 0, 1, FORWARD, 0, 0, -1, "forward 1: no slot -1 of 1 for it"},
    {"an action with no slot has one", WHOLE, SET_SLOT, 1, SEND_BACKWARD, 0, 0, FORWARD, 0, 0, 0,
     "send backward 0: no slot 0 of 2 for it"},
    {"a micro-batch that is not there", WHOLE, SET_MICROBATCH, 1, FORWARD, 0, 0, FORWARD, 0, 0, 4,
     "forward 4: no micro-batch 4 of 4 for it"},
    {"a forward of none", WHOLE, SET_MICROBATCH, 1, FORWARD, 0, 0, FORWARD, 0, 0, -1,
     "forward: no micro-batch -1 of 4 for it"},
    {"an update of a micro-batch", WHOLE, SET_MICROBATCH, 1, UPDATE, 0, -1, FORWARD, 0, 0, 0,
     "update 0: no micro-batch 0 of 4 for it"},
    {"a chunk that is not there", WHOLE, SET_CHUNK, 1, FORWARD, 0, 0, FORWARD, 0, 0, 1,
     "forward 0: no chunk 1 of 1 for it"},
    {"a chunk below 0", LOOP, SET_CHUNK, 1, REDUCE, 1, -1, FORWARD, 0, 0, -1, "reduce: no chunk -1 of 2 for it"},
    {"the norm of a chunk", LOOP, SET_CHUNK, 1, NORM, -1, -1, FORWARD, 0, 0, 1,
     "norm in chunk 1: no chunk 1 of 2 for it"},
    {"a receive on the first stage", WHOLE, SET_KIND, 0, RECEIVE_BACKWARD, 0, 0, FORWARD, 0, 0, RECEIVE_FORWARD,
     "receive forward 0: there is no such neighbour"},
    {"a receive of the first chunk", LOOP, SET_CHUNK, 0, RECEIVE_FORWARD, 1, 0, FORWARD, 0, 0, 0,
     "receive forward 0 in chunk 0: there is no such neighbour"},
    {"a send on the last stage", WHOLE, SET_KIND, 2, FORWARD, 0, 0, FORWARD, 0, 0, SEND_FORWARD,
     "send forward 0: there is no such neighbour"},
    {"a kind that is not there", WHOLE, SET_KIND, 2, FORWARD, 0, 0, FORWARD, 0, 0, ACTION_KINDS,
     "unknown action 0: kind 13"},
    {"a negative kind", WHOLE, SET_KIND, 2, FORWARD, 0, 0, FORWARD, 0, 0, -1, "unknown action 0: kind -1"},
    {"the last flag missing", WHOLE, SET_REDUCE, 1, BACKWARD, 0, 3, FORWARD, 0, 0, 0,
     "backward 3: lacks the reduce flag"},
    {"the first flag missing", EVERY, SET_REDUCE, 1, BACKWARD, 0, 0, FORWARD, 0, 0, 0,
     "backward 0: lacks the reduce flag"},
    {"one flag too many", WHOLE, SET_REDUCE, 1, BACKWARD, 0, 1, FORWARD, 0, 0, 1,
     "backward 1: has a reduce flag too many"},
    {"the flag on an input half", HALVES, SET_REDUCE, 1, BACKWARD_INPUT, 0, 3, FORWARD, 0, 0, 1,
     "backward input half 3: has the reduce flag and no weight gradients"},
    {"a backward among forwards", FORWARDS, SET_KIND, 2, FORWARD, 0, 3, FORWARD, 0, 0, BACKWARD,
     "stage 0, action 4, forward 2: slot 0 holds micro-batch 0 of chunk 0"},
    {"a forward left out of forwards", FORWARDS, LEAVE_OUT, 2, FORWARD, 0, 3, FORWARD, 0, 0, 0,
     "stage 2: forward 3 of chunk 0 is missing"},
    {"a stage that goes forward only", CLIPPED, ONLY_FORWARD, 0, FORWARD, 0, 0, FORWARD, 0, 0, 0,
     "stage 0: backward input half 0 of chunk 0 is missing"},
    {"the wrong stage", WHOLE, STAGE, 1, FORWARD, 0, 0, FORWARD, 0, 0, 2, "schedule 1 is for stage 2 of 3"},
    {"the wrong number of stages", WHOLE, P, 1, FORWARD, 0, 0, FORWARD, 0, 0, 4, "schedule 1 is for stage 1 of 4"},
    {"another number of micro-batches", WHOLE, M, 2, FORWARD, 0, 0, FORWARD, 0, 0, 5,
     "schedule of stage 2: another configuration"},
    {"another number of chunks", WHOLE, V, 2, FORWARD, 0, 0, FORWARD, 0, 0, 2, "schedule of stage 2: another configuration"},
    {"another schedule", WHOLE, PLAN_KIND, 2, FORWARD, 0, 0, FORWARD, 0, 0, ZB_V, "schedule of stage 2: another configuration"},
    {"other reductions", WHOLE, PLAN_EVERY, 1, FORWARD, 0, 0, FORWARD, 0, 0, 1, "schedule of stage 1: another configuration"},
    {"tied on one stage", WHOLE, PLAN_TIED, 1, FORWARD, 0, 0, FORWARD, 0, 0, 1, "schedule of stage 1: another configuration"},
    {"clipped on one stage", WHOLE, PLAN_CLIP, 1, FORWARD, 0, 0, FORWARD, 0, 0, 1, "schedule of stage 1: another configuration"},
    {"no micro-batches", WHOLE, M, 0, FORWARD, 0, 0, FORWARD, 0, 0, 0,
     "schedule of stage 0: 0 micro-batches, 1 chunks"},
    {"no chunks", WHOLE, V, 0, FORWARD, 0, 0, FORWARD, 0, 0, 0, "schedule of stage 0: 4 micro-batches, 0 chunks"},
    {"no slots", WHOLE, SLOTS, 1, FORWARD, 0, 0, FORWARD, 0, 0, 0, "schedule of stage 1: 0 slots"},
};

// False if the builder has not made what is to be changed.
static bool fault_plant(Schedule* s, size_t i) {
    const int at = index_of(s, faults[i].kind, faults[i].chunk, faults[i].k), value = faults[i].value;
    const int other = index_of(s, faults[i].other, faults[i].other_chunk, faults[i].other_k);
    const bool both = faults[i].fault == SWAP || faults[i].fault == LEAVE_OUT_BOTH;
    if (at < 0 || (both && other < 0)) return false;
    Action* a = &s->actions[at];
    switch (faults[i].fault) {
    case LEAVE_OUT: remove_at(s, at); break;
    case LEAVE_OUT_BOTH: remove_at(s, at > other ? at : other), remove_at(s, at > other ? other : at); break;
    case CUT: s->n = at; break;
    case REPEAT: insert_at(s, at, *a); break;
    case SWAP: exchange(s, at, other); break;
    case SET_KIND: a->kind = (ActionKind)value; break;
    case SET_CHUNK: a->chunk = value; break;
    case SET_MICROBATCH: a->microbatch = value; break;
    case SET_SLOT: a->slot = value; break;
    case SET_REDUCE: a->reduce = value; break;
    case STAGE: s->stage = value; break;
    case P: s->config.p = value; break;
    case M: s->config.m = value; break;
    case V: s->config.v = value; break;
    case SLOTS: s->slots = value; break;
    case PLAN_KIND: s->config.kind = (ScheduleKind)value; break;
    case PLAN_EVERY: s->config.reduce_every = value; break;
    case PLAN_TIED: s->config.tied = value; break;
    case PLAN_CLIP: s->config.clip = value; break;
    case ONLY_FORWARD: {
        const Schedule forward = schedule_build_forward(s, s->config.m);
        schedule_free(s);
        *s = forward;
    }
    }
    return true;
}

static void test_planted_faults(void) {
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        Step step = fault_base(faults[i].base);
        Schedule changed = schedule_copy(&step.stages[faults[i].stage], 1);
        schedule_free(&step.stages[faults[i].stage]);
        const bool planted = fault_plant(&changed, i);
        step.stages[faults[i].stage] = changed;
        Error error = {"accepted"};
        const bool refused = planted && !schedule_check(step.stages, step.config.p, &error);
        check(refused && strstr(error.text, faults[i].message), "%s: %s", faults[i].what,
              planted ? error.text : "there is no such action to change");
        step_free(&step);
    }
}

static void test_plans_refused(void) {
    static const struct {
        int kind, p, v, m;
        const char* message;
    } plans[] = {
        // the ends of the messages
        {ZB_V, 2, 1, 4, "--schedule zb-v has --vpp 2 chunks a stage, not 1"},
        {ZB_V, 2, 3, 4, "--schedule zb-v has --vpp 2 chunks a stage, not 3"},
        {INTERLEAVED, 2, 1, 4,
         "--schedule interleaved needs --vpp 2 or more; with one chunk a stage it is --schedule 1f1b"},
        {GPIPE, 2, 2, 4, "--schedule gpipe has one chunk a stage; --vpp 2 needs --schedule interleaved"},
        {ONE_F_ONE_B, 2, 3, 4, "--schedule 1f1b has one chunk a stage; --vpp 3 needs --schedule interleaved"},
        {ZB_H1, 2, 2, 4, "--schedule zb-h1 has one chunk a stage; --vpp 2 needs --schedule interleaved"},
        {INTERLEAVED, 4, 2, 6, "in groups of --pp 4, and 6 is not a multiple of it; the nearest that work: 4 or 8"},
        {INTERLEAVED, 4, 2, 11, "in groups of --pp 4, and 11 is not a multiple of it; the nearest that work: 8 or 12"},
        {INTERLEAVED, 4, 3, 3, "in groups of --pp 4, and 3 is not a multiple of it; the nearest that work: 4"},
        {SCHEDULE_KINDS, 2, 1, 4, "schedule 5 is none of the known ones"},
        {-1, 2, 1, 4, "schedule -1 is none of the known ones"},
        {GPIPE, 0, 1, 1, "a schedule needs at least one stage, chunk and micro-batch, not 0, 1 and 1"},
        {INTERLEAVED, 2, 0, 1, "a schedule needs at least one stage, chunk and micro-batch, not 2, 0 and 1"},
        {ZB_V, 2, 2, -3, "a schedule needs at least one stage, chunk and micro-batch, not 2, 2 and -3"},
        {GPIPE, 2, 1, 1 << 21,
         "2 stages of 1 chunks and 2097152 micro-batches make tables of more than 2097152 passes; use a larger "
         "--micro-batch"},
        {INTERLEAVED, 2147483647, 2147483647, 2147483647,
         "2147483647 stages of 2147483647 chunks and 2147483647 micro-batches make tables of more than 2097152 passes; "
         "use a larger --micro-batch"},
    };
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        const PipelineConfig plan = plan_of((ScheduleKind)plans[i].kind, plans[i].p, plans[i].v, plans[i].m, 0);
        Error error = {"served"};
        const bool refused = !pipeline_config_check(&plan, RECOMPUTE_NONE, &error);
        const char* found = strstr(error.text, plans[i].message);
        check(refused && found && strlen(found) == strlen(plans[i].message), "%s", error.text); // ends with it
    }
    check(strcmp(schedule_name((ScheduleKind)7), "unknown schedule") == 0, "names of schedules");
    check(strcmp("gpipe|1f1b|interleaved|zb-h1|zb-v", schedule_choices()) == 0, "the command line offers %s",
          schedule_choices());
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        const PipelineConfig usual = plan_of((ScheduleKind)kind, 2, schedule_usual_chunks((ScheduleKind)kind), 4, 0);
        Error error = {""};
        check(pipeline_config_check(&usual, RECOMPUTE_NONE, &error), "%s has %d chunks where nobody says how many %s",
              schedule_name(usual.kind), usual.v, error.text);
    }
}

// What a schedule has to do with the rest of a run.
static void test_refused_runs(void) {
    static const struct {
        ScheduleKind kind;
        int p, v;
        bool reduce_every;
        Recompute recompute;
        const char* message; // NULL: it fits
    } cases[] = {
        {INTERLEAVED, 2, 3, true, RECOMPUTE_FULL, NULL},
        {INTERLEAVED, 1, 2, false, RECOMPUTE_NONE, "--schedule interleaved with --vpp 2 needs a pipeline"},
        {ZB_V, 1, 2, false, RECOMPUTE_NONE, "--schedule zb-v with --vpp 2 needs a pipeline"},
        {ZB_V, 3, 2, false, RECOMPUTE_SELECTIVE, NULL},
        {ZB_V, 3, 2, true, RECOMPUTE_NONE, "--schedule zb-v leaves weight gradients for later, which --zero 2"},
        {ZB_H1, 3, 1, true, RECOMPUTE_NONE, "--schedule zb-h1 leaves weight gradients for later, which --zero 2"},
        {ZB_H1, 3, 1, false, RECOMPUTE_FULL,
         "--schedule zb-h1 would run every block's forward pass again for each half"},
        {ZB_H1, 1, 1, false, RECOMPUTE_NONE, NULL},
        {GPIPE, 3, 1, true, RECOMPUTE_FULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const PipelineConfig config = plan_of(cases[i].kind, cases[i].p, cases[i].v, 6, cases[i].reduce_every);
        Error error = {""};
        const bool ok = pipeline_config_check(&config, cases[i].recompute, &error);
        check(cases[i].message ? !ok && strstr(error.text, cases[i].message) : ok, "p=%d v=%d: %s", cases[i].p,
              cases[i].v, ok ? "accepted" : error.text);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Drawing

static char* drawn(const Step* step) {
    char* text = NULL;
    size_t size = 0;
    FILE* out = open_memstream(&text, &size);
    if (!out) die("no memory for a drawing");
    schedule_draw(step->stages, step->config.p, out);
    fclose(out);
    return text;
}

static void test_drawing(Step step, const char* what, const char* expected) {
    char* text = drawn(&step);
    if (!check(strcmp(text, expected) == 0, "drawing of %s", what)) printf("%s--- expected\n%s", text, expected);
    free(text);
    step_free(&step);
}

// The lines of the stages, and a legend with the bubble.
static void test_drawing_stages(Step step, const char* what, const char* lines, const char* bubble) {
    char* text = drawn(&step);
    const size_t n = strlen(lines);
    const bool same = strncmp(text, lines, n) == 0;
    char percent[32];
    snprintf(percent, sizeof percent, " %s %% ", bubble);
    const char* legend = same ? text + n : "";
    const bool explained = strstr(legend, "         F forward") == legend && strstr(legend, percent) &&
                           (strstr(legend, "a b chunk") != NULL) == (step.config.v > 1);
    if (!check(same && explained, "drawing of %s", what)) printf("%s--- expected\n%s%s\n", text, lines, percent);
    free(text);
    step_free(&step);
}

static void test_drawings(void) {
    test_drawing(step_build(plan_of(ONE_F_ONE_B, 1, 1, 3, 0)), "one stage", "F0 B0 F1 B1 F2 B2 update \n");
    test_drawing(step_build(plan_of(ZB_H1, 1, 1, 2, 0)), "one stage, halves", "F0 B0 W0 F1 B1 W1 update \n");
    test_drawing(step_build(plan_of(ZB_V, 1, 2, 1, 0)), "one stage, chunks",
                 "F0a F0b B0b W0b B0a update W0a update \n");
    test_drawing(step_build(plan_of(ONE_F_ONE_B, 1, 1, 8, 0)), "one stage, just short enough",
                 "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 update \n");
    test_drawing(step_build(plan_of(ONE_F_ONE_B, 1, 1, 20, 0)), "one stage, cut",
                 "F0 B0 F1 B1 F2 B2 F3 B3 ... F16 B16 F17 B17 F18 B18 F19 B19 update \n");
    const PipelineConfig one = plan_of(ONE_F_ONE_B, 1, 1, 2, 0), two = plan_of(ONE_F_ONE_B, 2, 1, 2, 0);
    test_drawing(step_forward(one, 17), "one stage, the longest that is not cut",
                 "F0 F1 F2 F3 F4 F5 F6 F7 F8 F9 F10 F11 F12 F13 F14 F15 F16 \n");
    test_drawing(step_forward(one, 18), "one stage, the shortest that is cut",
                 "F0 F1 F2 F3 F4 F5 F6 F7 ... F10 F11 F12 F13 F14 F15 F16 F17 \n");
    test_drawing(step_forward(one, 0), "one stage, nothing", "\n");
    test_drawing_stages(step_forward(two, 2), "two stages, forwards", "stage 0  F0 F1 .  |\nstage 1  .  F0 F1 |\n",
                        "50.0");
    test_drawing_stages(step_forward(two, 10), "numbers of one digit",
                        "stage 0  F0 F1 F2 F3 F4 F5 F6 F7 F8 F9 .  |\n"
                        "stage 1  .  F0 F1 F2 F3 F4 F5 F6 F7 F8 F9 |\n",
                        "10.0");
    test_drawing_stages(step_forward(two, 11), "numbers of two digits",
                        "stage 0  F0  F1  F2  F3  F4  F5  F6  F7  F8  F9  F10 .   |\n"
                        "stage 1  .   F0  F1  F2  F3  F4  F5  F6  F7  F8  F9  F10 |\n",
                        "9.1");
    test_drawing_stages(step_build(plan_of(GPIPE, 2, 1, 2, 0)), "gpipe",
                        "stage 0  F0 F1 .  .  .  B0--- B1--- |\n"
                        "stage 1  .  F0 F1 B0--- B1--- .  .  |\n",
                        "50.0");
    test_drawing_stages(step_build(plan_of(ONE_F_ONE_B, 2, 1, 3, 0)), "1f1b",
                        "stage 0  F0 F1 .  .  B0--- F2 B1--- .  B2--- |\n"
                        "stage 1  .  F0 B0--- F1 B1--- F2 B2--- .  .  |\n",
                        "33.3");
    test_drawing_stages(step_build(plan_of(ZB_H1, 2, 1, 2, 0)), "zb-h1",
                        "stage 0  F0 F1 .  B0 W0 B1 W1 |\n"
                        "stage 1  .  F0 B0 F1 B1 W0 W1 |\n",
                        "16.7");
    test_drawing_stages(step_build(plan_of(INTERLEAVED, 2, 2, 2, 0)), "interleaved",
                        "stage 0  F0a F1a F0b F1b .   .   B0b---- .   B1b---- B0a---- B1a---- |\n"
                        "stage 1  .   F0a F1a F0b B0b---- F1b B1b---- B0a---- B1a---- .   .   |\n",
                        "25.0");
    test_drawing_stages(step_build(plan_of(ZB_V, 2, 2, 3, 0)), "zb-v",
                        "stage 0  F0a F1a F2a F0b B0b W0b F1b B1b W1b B0a W0a F2b B2b W2b B1a W1a B2a W2a .   |\n"
                        "stage 1  .   F0a F0b F1a F1b B0b W0b F2a B0a W0a F2b B1b W1b B1a B2b B2a W1a W2b W2a |\n",
                        "5.6");
    test_drawing_stages(step_forward(plan_of(ZB_V, 2, 2, 1, 0), 3), "zb-v, forwards",
                        "stage 0  F0a F1a F2a F0b .   F1b .   F2b |\n"
                        "stage 1  .   F0a F0b F1a F1b F2a F2b .   |\n",
                        "33.3");
    // 25 units of 4 characters, a label of 9 and the bar: 110. With one micro-batch more: 12 units of each end.
    test_drawing_stages(step_forward(two, 24), "two stages, the longest that is not cut",
                        "stage 0  F0  F1  F2  F3  F4  F5  F6  F7  F8  F9  F10 F11 F12 F13 F14 F15 F16 F17 F18 F19 F20 "
                        "F21 F22 F23 .   |\n"
                        "stage 1  .   F0  F1  F2  F3  F4  F5  F6  F7  F8  F9  F10 F11 F12 F13 F14 F15 F16 F17 F18 F19 "
                        "F20 F21 F22 F23 |\n",
                        "4.2");
    test_drawing_stages(step_forward(two, 25), "two stages, the shortest that is cut",
                        "stage 0  F0  F1  F2  F3  F4  F5  F6  F7  F8  F9  F10 F11 ... F14 F15 F16 F17 F18 F19 F20 F21 "
                        "F22 F23 F24 .   |\n"
                        "stage 1  .   F0  F1  F2  F3  F4  F5  F6  F7  F8  F9  F10 ... F13 F14 F15 F16 F17 F18 F19 F20 "
                        "F21 F22 F23 F24 |\n",
                        "4.0");
}

// At most 110 characters a line, all lines of stages equally long, the step's first action and its end in them.
static void test_drawing_width(int most_sizes) {
    Step longest = step_forward(plan_of(ONE_F_ONE_B, 11, 1, 2, 0), 15); // 25 units of 4, a label of 10, the bar: 111
    char* picture = drawn(&longest);
    check(strchr(picture, '\n') - picture <= 110 && strstr(picture, "... "), "a picture of 111 characters is cut");
    free(picture);
    step_free(&longest);
    int pictures = 0, right = 0, cut = 0, widest = 0; // the widest legend
    Error error = {""};
    for (int n = 0; n < SCHEDULE_KINDS * 15 * most_sizes; n++) {
        static const int sizes[] = {1, 2, 3, 12, 48, 120};
        const int kind = n % SCHEDULE_KINDS, p = 2 + n / SCHEDULE_KINDS % 15, size = sizes[n / SCHEDULE_KINDS / 15];
        const int v = kind == INTERLEAVED ? 3 : kind == ZB_V ? 2 : 1, m = kind == INTERLEAVED ? p * size : size;
        const PipelineConfig plan = plan_of((ScheduleKind)kind, p, v, m, 0);
        if (!pipeline_config_check(&plan, RECOMPUTE_NONE, &error)) continue;
        Step step = step_build(plan);
        char* text = drawn(&step);
        int lines = 0, width = 0, first = 0;
        bool ok = true;
        for (const char* c = text; *c; c++) {
            if (*c != '\n') {
                width++;
                continue;
            }
            lines++;
            if (lines == 1) first = width;
            if (lines <= p) ok = ok && width == first && c[-1] == '|';
            if (lines > p && width > widest) widest = width;
            width = 0;
        }
        cut += strstr(text, "... ") != NULL;
        ok = ok && lines == p + 1 && strstr(text, "F0") && (first <= 110);
        if (!ok) printf("%s", text);
        pictures++, right += ok;
        free(text);
        step_free(&step);
    }
    check(right == pictures && cut > 0 && cut < pictures, "%d of %d pictures are right and at most 110 wide, %d cut",
          right, pictures, cut);
    check(widest > 0 && widest <= 110, "the widest legend has %d characters, at most 110", widest);
}

// Letters tell chunks apart as long as there are enough of them.
static void test_labels(void) {
    const Action last = {BACKWARD_WEIGHT, 25, 3, -1, false}, beyond = {FORWARD, 26, 12, -1, false};
    Schedule s;
    memset(&s, 0, sizeof s);
    char text[2][32];
    s.config.v = 26, action_label(text[0], sizeof text[0], &s, last);
    s.config.v = 27, action_label(text[1], sizeof text[1], &s, beyond);
    check(strcmp(text[0], "W3z") == 0 && strcmp(text[1], "F12.26") == 0, "26 chunks have letters, 27 numbers: %s %s",
          text[0], text[1]);
}

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    test_plans_served();
    test_plans_refused();
    test_refused_runs();
    test_placement();
    test_builders(brief ? 8 : 16, brief ? 24 : 64);
    test_forward_only(brief ? 5 : 16, brief ? 12 : 20);
    test_unequal_times(brief ? 4 : 6);
    test_full_v(brief ? 6 : 16, brief ? 16 : 40);
    test_times();
    test_waiting_for_buffers();
    test_random_costs(brief ? 200 : 1000);
    test_deadlocks();
    test_endings_allowed();
    test_planted_faults();
    test_single_changes(brief);
    test_many_changes(brief ? 6000 : 60000);
    test_random_steps(brief ? 1000 : 8000);
    test_drawings();
    test_labels();
    test_drawing_width(brief ? 5 : 6);
    return test_end();
}
