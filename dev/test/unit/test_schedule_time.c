/*
test_schedule_time.c: bubbles against their formulas, and timelines at random costs against the equations that they have
to solve.
*/
#include "schedule_machine.h"

// ---- Times ------------------------------------------------------------------------------------------------------

static double bubble_at(PipelineConfig plan, double f, double b, double w) {
    Step step = step_build(plan);
    const double bubble = step_bubble(&step, f, b, w);
    step_free(&step);
    return bubble;
}

// Stages equal, f, b and w not. All times are sums of small integers.
static void test_unequal_times(int most) {
    static const double seconds[] = {1, 2, 3, 5};
    double whole = 0, interleaved = 0, split = 0;
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
                if (w <= f && w <= b) split = fmax(split, fabs(h1 - by_formula));
                if ((w > f || w > b) && p > 1 && m > 1) { // a wgrad longer than what it makes room for delays others
                    formula++;
                    right += h1 > by_formula + 1e-9;
                }
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
    check_error("zb-h1, w <= f and w <= b: bubble by the formula", split, 1e-12);
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

static void test_random_costs(int steps) {
    TimeTally tally = {};
    for (int n = 0; n < steps; n++) {
        const PipelineConfig plan = random_plan(8);
        Step step = n % 5 == 0 ? step_forward(plan, 1 + random_below(8)) : step_build(plan);
        compare_times(&step, &tally);
        step_free(&step);
    }
    check_times("built tables", &tally);
    check(tally.waits > 0, "%d of their actions wait for buffers that are still being sent", tally.waits);
}

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    test_unequal_times(brief ? 4 : 6);
    test_full_v(brief ? 6 : 16, brief ? 16 : 40);
    test_random_costs(brief ? 200 : 1000);
    return test_end();
}
