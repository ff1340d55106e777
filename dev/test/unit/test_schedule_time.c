/*
test_schedule_time.c: timelines against times by hand, and, at random costs, against the equations that they have to
solve.
*/
#include "schedule_machine.h"

// ----------------------------------------------------------------------------------------------------------------
// Times

static double bubble_at(PipelineConfig plan, double f, double b, double w) {
    Step step = step_build(plan);
    const double bubble = step_bubble(&step, f, b, w);
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

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    test_unequal_times(brief ? 4 : 6);
    test_full_v(brief ? 6 : 16, brief ? 16 : 40);
    test_times();
    test_waiting_for_buffers();
    test_random_costs(brief ? 200 : 1000);
    return test_end();
}
