/*
test_schedule.c: the order of a step's work.

    builders    every schedule of many sizes: bubbles, slots and the orders of Megatron-LM's loops, all written down
                here a second time; where receives, reductions and updates stand
    served      exactly the configurations of a second definition
    drawing     against pictures drawn by hand
*/
#include "../../../parallel/schedule_time.h"
#include "schedule_machine.h"

// ---- The builders -----------------------------------------------------------------------------------------------

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
    for (int i = 0; i < rest; i++) {
        order_put(o, FORWARD, 0, forward++);
        order_put(o, BACKWARD, 0, queue++);
    }
    for (int i = 0; i < warm; i++) order_put(o, BACKWARD, 0, queue++);
}

// The same with interleaving: get_schedule_table lists (micro-batch, chunk) of all virtual micro-batches; backwards
// take their chunks from the other end.
static void megatron_interleaved(Order* o, int stage, int p, int v, int m) {
    int microbatch[MOST_MICROBATCHES * MOST_CHUNKS], chunk[MOST_MICROBATCHES * MOST_CHUNKS], all = 0;
    for (int first = 0; first < m; first += p) {
        for (int c = 0; c < v; c++) {
            for (int k = first; k < first + p && k < m; k++) {
                microbatch[all] = k;
                chunk[all++] = c;
            }
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
    for (int i = 0; i < (plan->kind == GPIPE ? 2 * plan->m : 0); i++)
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

// The slots of stage r by the formulas at the top of parallel/schedule.h.
static int slots_by_formula(const PipelineConfig* x, int r) {
    const int p = x->p, v = x->v, m = x->m;
    switch (x->kind) {
    case GPIPE: return m;
    case ONE_F_ONE_B: return least(p - r, m);
    case INTERLEAVED: return least(2 * (p - r - 1) + (v - 1) * p + 1, v * m);
    case ZB_H1: return least(p, m);
    case ZB_V: return least(2 * p, least(2 * m, m + r + 1));
    default: return -1;
    }
}

static bool reduce_flags_right(const Schedule* s) {
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        if (a.reduce != (adds_weights(a.kind) && (s->config.reduce_every || a.microbatch == s->config.m - 1)))
            return false;
    }
    return true;
}

// What a stage's table ends with: sums are waited for, and the chunks and the matrix of two stages are updated when all
// stages have met.
static int ending_by_hand(const Schedule* s, Action* ending) {
    const PipelineConfig* x = &s->config;
    const bool twin = stage_has_twin(x, s->stage);
    const ActionKind kinds[] = {REDUCE, TIE, NORM, UPDATE, UPDATE_TIED};
    int n = 0;
    for (int i = 0; i < 5; i++) {
        const ActionKind kind = kinds[i];
        const bool of_chunks = kind == REDUCE || kind == UPDATE;
        for (int c = 0; c < (of_chunks ? x->v : 1); c++) {
            const Action a = {kind, of_chunks ? c : -1, -1, -1, false};
            if (of_chunks || kind == NORM || twin) ending[n++] = a;
        }
    }
    return n;
}

static bool ending_right(const Schedule* s) {
    Action ending[2 * MOST_CHUNKS + 3];
    const int first = s->n - ending_by_hand(s, ending);
    for (int i = first; i < s->n; i++) {
        if (i < 0) return false;
        const Action a = s->actions[i], b = ending[i - first];
        if (a.kind != b.kind || a.chunk != b.chunk || a.microbatch != b.microbatch) return false;
        if (a.slot != b.slot || a.reduce != b.reduce) return false;
    }
    return true;
}

static int length_by_formula(const Schedule* s, bool training) {
    const PipelineConfig* x = &s->config;
    int n = training ? 2 * x->v + 1 + 2 * stage_has_twin(x, s->stage) : 0;
    for (int c = 0; c < x->v; c++) {
        const int part = part_of(x, s->stage, c), neighbours = (part > 0) + (part < last_part(x));
        const bool split = schedules[x->kind].splits_backward;
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
    for (int r = 0; r < plan.p; r++, t->tables++) {
        const Schedule* s = &step.stages[r];
        const int slots = slots_by_formula(&plan, r); // -1: of another schedule
        t->order += same_order(s);
        t->early += transfers_are_early(s);
        t->slots += peak_live(s) == s->slots && (slots < 0 || s->slots == slots);
        t->flags += reduce_flags_right(s);
        t->endings += ending_right(s);
        t->length += s->n == length_by_formula(s, true);
    }
    t->steps++;
    t->proved += schedule_check(step.stages, plan.p, &t->error);
    t->bubble = fmax(t->bubble, fabs(step_bubble(&step, 1, 1, 1) - pipeline_bubble(&plan)));
    step_free(&step);
}

// All flags on small steps; on the others each in turn.
static void test_builders(int most_p, int most_m) {
    Error error = {""};
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        BuildTally t = {};
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

// Exactly these configurations are served: grouped schedules with whole groups, else with their number of chunks;
// several chunks only on several stages; a split backward pass neither with ZeRO-2 nor with full recomputation.
static void test_served(void) {
    Error error = {""};
    int wrong = 0;
    for (int n = 0; n < SCHEDULE_KINDS * 16 * 64 * 5 * 6; n++) {
        const int v = n % 5, m = n / 5 % 64, p = n / 320 % 16, kind = n / 5120 % SCHEDULE_KINDS;
        const int more = n / 5120 / SCHEDULE_KINDS;
        const bool reduce_every = more % 2 == 1, grouped = schedules[kind].grouped;
        const bool split = schedules[kind].splits_backward, chunks = v == schedules[kind].chunks;
        const Recompute recompute = (Recompute)(more / 2);
        const PipelineConfig plan = plan_of((ScheduleKind)kind, p, v, m, reduce_every);
        const bool served = p >= 1 && m >= 1 && (grouped ? v >= 2 && m % p == 0 : chunks) && (p > 1 || v == 1) &&
                            !(split && (reduce_every || recompute == RECOMPUTE_FULL));
        wrong += pipeline_config_check(&plan, recompute, &error) != served;
    }
    check(wrong == 0, "configurations that are served, p < 16, v < 5, m < 64: %d wrong", wrong);
    static const int refused[][4] = {
        {ZB_V, 2, 2, -3}, {GPIPE, 2, 1, 1 << 21}, {INTERLEAVED, INT32_MAX, INT32_MAX, INT32_MAX}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const int* x = refused[i];
        const PipelineConfig plan = plan_of((ScheduleKind)x[0], x[1], x[2], x[3], 0);
        check(!pipeline_config_check(&plan, RECOMPUTE_NONE, &error), "refused: %s", error.text);
    }
}

// When all forwards of equal parts have been done, 1 s each.
static int forward_length(const PipelineConfig* x, int m) {
    if (schedules[x->kind].folded) return 2 * m + 2 * (x->p - 1);
    const int last_group = (m - 1) % x->p + 1; // a group that is not full waits for itself
    return x->v * m + x->p - 1 + (x->v - 1) * (x->p - last_group);
}

static void test_forward_only(int most_p, int most_m) {
    Error error = {""};
    int steps = 0, right = 0, lengths = 0, empty = 0, plans = 0;
    for (int n = 0; n < SCHEDULE_KINDS * most_p * MOST_CHUNKS; n++) {
        const int kind = n % SCHEDULE_KINDS, p = 1 + n / SCHEDULE_KINDS % most_p, v = 1 + n / SCHEDULE_KINDS / most_p;
        const PipelineConfig plan = plan_of((ScheduleKind)kind, p, v, 2 * p, n % 4 & 2);
        if (!pipeline_config_check(&plan, RECOMPUTE_NONE, &error)) continue;
        Costs costs = costs_equal(p * v, 1, 1, 1, 0);
        for (int m = 0; m <= most_m; m++) {
            Step step = step_forward(plan, m);
            plans += m == 0;
            empty += m == 0 && step.stages[0].n == 0 && step.stages[p - 1].n == 0;
            bool ok = m == 0 || schedule_check(step.stages, p, &error);
            for (int r = 0; r < p; r++) {
                const Schedule* s = &step.stages[r];
                const int slots = slots_by_formula(&plan, r);
                ok = ok && (slots < 0 || s->slots == slots) && s->n == length_by_formula(s, false);
                ok = ok && transfers_are_early(s);
                for (int i = 0, last = -1; i < s->n; i++) { // two slots in turn, so that sending is no hindrance
                    if (s->actions[i].kind != FORWARD) continue;
                    ok = ok && (s->actions[i].slot != last || s->slots == 1) && s->actions[i].slot < 2;
                    last = s->actions[i].slot;
                }
            }
            Timeline t = schedule_times(step.stages, p, &costs, false);
            lengths += t.length == (m > 0 ? forward_length(&plan, m) : 0);
            steps++;
            right += ok;
            timeline_free(&t);
            step_free(&step);
        }
        costs_free(&costs);
    }
    check(right == steps && empty == plans, "forward only: %d of %d steps are right, %d of %d without micro-batches %s",
          right, steps, empty, plans, error.text);
    check(lengths == steps, "forward only: %d of %d steps take as long as the formula", lengths, steps);
}

// ---- Drawing ----------------------------------------------------------------------------------------------------

static char* drawn(const Step* step) {
    char* text = NULL;
    size_t size = 0;
    FILE* out = open_memstream(&text, &size);
    if (!out) die("no memory for a drawing");
    schedule_draw(step->stages, step->config.p, INT32_MAX, out);
    fclose(out);
    return text;
}

// The lines of the stages; the bubble in the legend.
static void test_drawing_stages(Step step, const char* what, const char* lines, const char* bubble) {
    char* text = drawn(&step);
    const size_t n = strlen(lines);
    const bool same = strncmp(text, lines, n) == 0;
    char percent[32];
    snprintf(percent, sizeof percent, " %s %% ", bubble);
    const bool bubble_given = same && strstr(text + n, percent);
    if (!check(bubble_given, "drawing of %s", what)) printf("%s--- expected\n%s%s\n", text, lines, percent);
    free(text);
    step_free(&step);
}

static void test_drawings(void) {
    test_drawing_stages(step_build(plan_of(ONE_F_ONE_B, 2, 1, 3, 0)), "1f1b",
                        "stage 0  F0 F1 .  .  B0--- F2 B1--- .  B2--- |\n"
                        "stage 1  .  F0 B0--- F1 B1--- F2 B2--- .  .  |\n",
                        "33.3");
    test_drawing_stages(step_build(plan_of(ZB_V, 2, 2, 3, 0)), "zb-v",
                        "stage 0  F0a F1a F2a F0b B0b W0b F1b B1b W1b B0a W0a F2b B2b W2b B1a W1a B2a W2a .   |\n"
                        "stage 1  .   F0a F0b F1a F1b B0b W0b F2a B0a W0a F2b B1b W1b B1a B2b B2a W1a W2b W2a |\n",
                        "5.6");
    // 24 units of 4 characters at each end, a label of 9, "... " and the bar.
    test_drawing_stages(step_forward(plan_of(ONE_F_ONE_B, 2, 1, 2, 0), 25), "two stages, the shortest that is cut",
                        "stage 0  F0  F1  F2  F3  F4  F5  F6  F7  F8  F9  F10 F11 ... F14 F15 F16 F17 F18 F19 F20 F21 "
                        "F22 F23 F24 .   |\n"
                        "stage 1  .   F0  F1  F2  F3  F4  F5  F6  F7  F8  F9  F10 ... F13 F14 F15 F16 F17 F18 F19 F20 "
                        "F21 F22 F23 F24 |\n",
                        "4.0");
}

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    test_served();
    test_builders(brief ? 8 : 16, brief ? 24 : 64);
    test_forward_only(brief ? 5 : 16, brief ? 12 : 20);
    test_drawings();
    return test_end();
}
