/*
test_schedule_check.c: the proof of schedules against the machine of schedule_machine.h. Every table that differs from a
built one in one action (dropped, doubled, moved, exchanged, any field changed to any other value), and tables with
several changes: the proof refuses it if and only if the machine fails on it. And tables that no builder made: orders
that the machine itself found by chance.
*/
#include "schedule_machine.h"

// ---- Tables that differ from a built one ------------------------------------------------------------------------

static Schedule schedule_copy(const Schedule* s, int spare) {
    Schedule copy = *s;
    copy.actions = (Action*)checked_malloc((size_t)(s->n + spare) * sizeof(Action), "test");
    memcpy(copy.actions, s->actions, (size_t)s->n * sizeof(Action));
    return copy;
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
    case MOVE:
        remove_at(s, i);
        insert_at(s, way, before);
        return way != i;
    case EXCHANGE:
        *a = s->actions[way];
        s->actions[way] = before;
        return way > i;
    case SLOT: a->slot = way - 1; return a->slot != before.slot;
    case MICROBATCH: a->microbatch = way - 1; return a->microbatch != before.microbatch;
    case CHUNK: a->chunk = way - 1; return a->chunk != before.chunk;
    case FLAG: a->reduce = !a->reduce; return true;
    default: a->kind = (ActionKind)way; return a->kind != before.kind;
    }
}

typedef struct {
    int tables, valid, differ;
} Tally;

// Checker and machine on one step; returns what both say.
static bool compare(const Step* step, Tally* tally) {
    Error error = {""};
    const bool proved = schedule_check(step->stages, step->config.p, &error);
    const bool runs = machine_accepts(step);
    tally->tables++, tally->valid += runs;
    if (proved != runs && tally->differ++ < 3)
        printf("      differ, %s: the machine %s, the checker says: %s\n", schedule_name(step->config.kind),
               runs ? "accepts" : "refuses", proved ? "proved" : error.text);
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
    Tally sum[CHANGES];
    memset(sum, 0, sizeof sum);
    for (int n = 0; n < SIZES * 4; n++) {
        const int* size = sizes[n % SIZES];
        static const int flags[] = {2, 3, 0}; // tied; reduce_every and tied; none; forward passes only
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
    }
}

// Two to four changes at once, anywhere, most of them small moves, which often leave a step that works.
static void test_many_changes(int steps) {
    Tally tally = {};
    TimeTally times = {};
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

// ---- Tables that no builder made: the machine does what it can do, by chance, and writes down what it did -------

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
    memset(step, 0, sizeof *step);
    memset(begun, 0, sizeof begun);
    memset(slot_of, 0, sizeof slot_of);
    step->config = plan;
    step->training = true;
    for (int r = 0; r < plan.p; r++) {
        step->stages[r] = schedule_new(&plan, r);
        step->stages[r].slots = plan.m * plan.v;
    }
    machine_begin(&x, step, false);
    for (int attempt = 0; attempt < 400 * plan.p * plan.m * plan.v; attempt++) {
        const int r = random_below(plan.p);
        wire_deliver(&x.wires[random_below(2)][r][random_below(plan.p)]);
        const Action a = waits[r] ? meets[r] : random_action(&x, r, slot_of[r], begun[r]);
        const Outcome outcome = worker_act(&x, r, a);
        waits[r] = outcome == BLOCKED && (a.kind == TIE || a.kind == NORM);
        meets[r] = a;
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
    Tally tally = {};
    TimeTally times = {};
    int halves = 0, chunks = 0, early = 0, amid = 0; // ties before the reduction, before other chunks' work
    for (int n = 0; n < steps; n++) {
        Step step;
        const bool finished = random_step(&step, random_plan(4));
        if (finished && compare(&step, &tally)) compare_times(&step, &times);
        for (int r = 0; r < (finished ? step.config.p : 0); r++) {
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

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    test_single_changes(brief);
    test_many_changes(brief ? 6000 : 60000);
    test_random_steps(brief ? 1000 : 8000);
    return test_end();
}
