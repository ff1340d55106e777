/*
test_planner_modes.c: steps on two sites in every mode of data parallelism, CAAT-Nets, --tp-comm-overlap and
--allreduce, by closed forms; and the search of methods.
*/
#include "planner_fixture.h"

// Two sites of one replica each on slow and fast links. F: seconds of the exchange of all parameters. The step is c + F
// where it waits, max(c, F + tail) one step late, c + F/H for DiLoCo; c is that of a link that takes no time.
static void test_modes(void) {
    const ModelConfig m = gpt(8, 2048, 16);
    const struct {
        const char* name;
        DpMode mode;
        int period;
        double waits; // of F, a step
    } rows[] = {{"dc-s3gd", DP_DC_S3GD, 1, 0}, {"diloco", DP_DILOCO, 8, 1.0 / 8}, {"diloco", DP_DILOCO, 1, 1}};
    for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; i++) {
        const int row = (int)i / 2;
        const bool slow = i % 2;
        Cluster c = cluster_named("dgx-h100");
        StepMethods methods = step_methods_none();
        const ParallelConfig parallel = parallel_of_rank(0, 2, 2, 2);
        c.sites = 2;
        methods.async.mode = rows[row].mode;
        methods.async.period = rows[row].period;
        StepSetup s = step_setup(&m, &parallel, 1, 2048, 64, software_find("threefold"), &c);
        step_set_methods(&s, &methods, 2);
        c.site_delay = 0;
        c.site_rate = 1e30;
        const double alone = seconds_of(&s), launches = 9 * c.device.launch;
        StepPrices x = step_prices(&s);
        const double elements = sent_by_formula(&s, 8, 8 + rows[row].period) / 4,
                     tail = x.exchange.tail; // 2 (S-1)/S = 1
        step_prices_free(&x);
        // F is a third of what hides it, or three times that; four ranks of a site share its link.
        const double F = alone * rows[row].period * (slow ? 3 : 0.3);
        c.site_delay = 0.01 * F;
        c.site_rate = 4 * 4 * elements / (F - 2 * c.site_delay);
        double expected = alone + rows[row].waits * F;
        if (rows[row].waits == 0) expected = fmax(alone, F / rows[row].period + tail);
        StepCost cost = step_cost(&s);
        check(fabs(cost.seconds - expected) < 1e-9 * expected + launches && cost.exchange > 0.99 * F / rows[row].period,
              "%s, H = %d, %s: %.4f s, by formula %.4f", rows[row].name, rows[row].period, slow ? "slow" : "fast",
              cost.seconds, expected);
        check((cost.waits > 1e-9) == (slow || rows[row].waits > 0) && step_bound(&s) <= cost.seconds * (1 + 1e-12),
              "  of which it waits for %.4f; the bound is %.4f", cost.waits, step_bound(&s));
        step_cost_free(&cost);
    }
}

// Four replicas on two sites that wait: the exchange of half of the gradients follows the sums in the sites, and three
// small messages the rest. With ZeRO each replica has to be a site.
static void test_sync(void) {
    const ModelConfig m = gpt(8, 2048, 16);
    Cluster c = cluster_named("dgx-h100");
    const ParallelConfig parallel = parallel_of_rank(0, 2, 1, 4);
    Error error;
    c.sites = 2;
    StepSetup s = step_setup(&m, &parallel, 1, 2048, 64, software_find("threefold"), &c);
    s.parallel.mesh.sites = 2;
    c.site_rate = 1e30;
    c.site_delay = 0;
    const double alone = seconds_of(&s), elements = sent_by_formula(&s, 1, 2) / 4,
                 few = 8.0 * (model_tensors(NULL, &m) + 2);
    c.site_rate = 1e9;
    c.site_delay = 0.1;
    const double exchanged = 2 * c.site_delay + 4 * 4 * elements / c.site_rate; // four ranks of a site share its link
    const double expected = alone + exchanged + 2 * (2 * c.site_delay + 4 * few / c.site_rate);
    check_error("two sites of two replicas that wait", relative(seconds_of(&s), expected), 1e-6);
    s.parallel.zero = 1;
    check(!step_check(&s, &error) && strstr(error.text, "--zero 1"), "refused: %s", error.text);
    s.parallel.zero = 0;
    s.parallel.mesh.sites = 4;
    check(!step_check(&s, &error) && strstr(error.text, "--sites 4"), "refused: %s", error.text);
}

// FLOPs of the products of a list; bytes of its collectives.
static void work_counts(const StepSetup* s, bool backward, double* flops, double* bytes) {
    Work w = {0, 0, NULL};
    work_block(&w, s, backward, false);
    *bytes = work_sent(&w);
    *flops = 0;
    for (int i = 0; i < w.n; i++) *flops += w.op[i].batch * w.op[i].m * w.op[i].n * w.op[i].k;
    work_free(&w);
}

// --tp-comm-overlap changes neither FLOPs nor bytes, and hides sums; a CAAT-Net sends P of them, and more backward in
// bf16, where its gradients are float32.
static void test_halves_and_caat(void) {
    const ModelConfig m = gpt(16, 4096, 32);
    Cluster c = cluster_named("dgx-h100");
    const ParallelConfig parallel = parallel_of_rank(0, 4, 1, 1);
    c.nvlink = 60e9;
    c.overlap_cost = 0;
    double seconds[2][3], flops[2][3][2], bytes[2][3][2]; // by overlap; ordinary, P = 0.5, the same in bf16
    for (int i = 0; i < 6; i++) {
        StepMethods methods = step_methods_none();
        const CaatConfig caat = {i % 3 > 0, 0.5, i % 3 == 2};
        StepSetup s = step_setup(&m, &parallel, 4, 2048, 16, software_find("threefold"), &c);
        methods.tp_overlap = i / 3;
        methods.caat = caat;
        step_set_methods(&s, &methods, 1);
        seconds[i / 3][i % 3] = seconds_of(&s);
        for (int back = 0; back < 2; back++)
            work_counts(&s, back, &flops[i / 3][i % 3][back], &bytes[i / 3][i % 3][back]);
    }
    bool same = true;
    for (int i = 0; i < 6; i++) {
        same = same && flops[0][i / 2][i % 2] == flops[1][i / 2][i % 2];
        same = same && flops[0][i / 2][i % 2] == flops[0][0][i % 2];
        same = same && bytes[0][i / 2][i % 2] == bytes[1][i / 2][i % 2];
    }
    check(same, "two halves have the FLOPs and bytes of one micro-batch, a CAAT-Net the FLOPs of an ordinary model");
    const double all = bytes[0][0][0];
    check(bytes[0][1][0] == all / 2 && bytes[0][1][1] == all && bytes[0][2][1] == all / 2 && bytes[0][0][1] == all,
          "P = 0.5 in bf16 sends %.2f of a block's bytes forward, %.2f backward, %.2f with bf16 gradients",
          bytes[0][1][0] / all, bytes[0][1][1] / all, bytes[0][2][1] / all);
    check(seconds[0][1] < seconds[0][0] && seconds[0][2] < seconds[0][1] && seconds[1][0] < 0.9 * seconds[0][0] &&
              seconds[1][2] < seconds[0][2],
          "a step on slow links: %.3f s, P = 0.5 %.3f, in bf16 %.3f; in two halves %.3f, %.3f, %.3f", seconds[0][0],
          seconds[0][1], seconds[0][2], seconds[1][0], seconds[1][1], seconds[1][2]);
}

// --allreduce: between two sites a ring's plan takes what site_cost says, on four replicas of a node what the library's
// ring takes; what the trainer has no plan for is refused, and so are more replicas than are priced.
static void test_allreduce(void) {
    const ModelConfig m = gpt(8, 2048, 16);
    const struct {
        const char *allreduce, *topology;
        int d, zero;
        const char* refused;
    } rows[] = {{"ring", NULL, 4, 0, NULL},
                {"ring", NULL, 4, 1, NULL},
                {"native", NULL, 4, 0, NULL},
                {"halving-doubling", NULL, 8, 1, NULL},
                {"2d-ring", "torus:2x2", 4, 0, NULL},
                {"2d-ring", "torus:2x2", 4, 1, "scatter"},
                {"2d-ring", NULL, 4, 0, "needs a mesh"},
                {"ring", "ring:3", 4, 0, "--topology ring:3 joins 3 ranks, but there are 4 replicas (--dp)"},
                {"halving-doubling", NULL, 6, 1, "2, 4, 8, ... ranks"},
                {"ring", NULL, 1, 0, "one replica"},
                {"ring", NULL, 128, 0, "more than 64 replicas"},
                {"rings", NULL, 4, 0, "no algorithm"}};
    const Cluster c = cluster_named("dgx-h100");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const ParallelConfig parallel = parallel_of_rank(0, 1, 1, rows[i].d);
        StepMethods methods = step_methods_none();
        StepSetup s = step_setup(&m, &parallel, 1, 2048, 2 * rows[i].d, software_find("threefold"), &c);
        Error error = {""};
        s.parallel.zero = rows[i].zero;
        const double library = seconds_of(&s);
        methods.allreduce = rows[i].allreduce;
        methods.topology = rows[i].topology;
        step_set_methods(&s, &methods, 0);
        const bool taken = step_check(&s, &error);
        if (rows[i].refused) {
            check(!taken && strstr(error.text, rows[i].refused), "--allreduce %s, d = %d, is refused: %s",
                  rows[i].allreduce, rows[i].d, error.text);
            continue;
        }
        const double seconds = taken ? seconds_of(&s) : 0;
        check(i < 3 ? relative(seconds, library) < 1e-9 : seconds > 0.9 * library && seconds != library,
              "--allreduce %s, d = %d, ZeRO %d: %.4f s, the library %.4f %s", rows[i].allreduce, rows[i].d,
              rows[i].zero, seconds, library, error.text);
    }
    Cluster two = c;
    LinkCost ring = {0, 0};
    Error error;
    two.site_rate = 3e9;
    const LinkCost direct = site_cost(&two, PLAN_ALL_REDUCE, 2, 12);
    const bool planned = replicas_plan_cost(&two, "ring", NULL, PLAN_ALL_REDUCE, 2, 1, 12, &ring, &error);
    check(planned && relative(direct.latency, ring.latency) < 1e-12 &&
              relative(direct.per_byte, ring.per_byte) < 1e-9 && relative(direct.per_byte, 12 / 3e9) < 1e-12,
          "two sites, 12 ranks a link: a ring takes %.3g s and %.3g ns a byte, the two halves of a vector each way",
          ring.latency, 1e9 * ring.per_byte);
    const LinkCost three = site_cost(&two, PLAN_ALL_GATHER, 3, 12);
    check(relative(three.per_byte, 12 / 3e9 / 3) < 1e-12 && relative(three.latency, two.site_delay + 4e-6) < 1e-12,
          "three sites: a third of a vector over each link, %.3g ns a byte", 1e9 * three.per_byte);
}

// --search: every combination of the named options that the trainer accepts, once; options of another mode are dropped.
static void test_search(void) {
    const struct {
        const char *line, *search;
        int n;
        const char* has; // one of them, or the refusal
    } rows[] = {
        {"", NULL, 1, ""},
        {"--dp-mode diloco --local-steps 64", NULL, 1, " --dp-mode diloco --sites 1 --local-steps 64"},
        {"--local-steps 64", "dp-mode", 3, " --dp-mode dc-s3gd --sites 1"},
        {"", "dp-mode,local-steps", 6, " --dp-mode diloco --sites 1 --local-steps 512"},
        {"", "caat-fraction,caat-grad-dtype", 7, " --caat-fraction 0.25 --caat-grad-dtype same"},
        {"", "allreduce,tp-comm-overlap", 10, " --allreduce multitree --tp-comm-overlap"},
        {"", "sites", -1, "--search sites"},
        {"", "dp-mode,nothing", -1, "--search nothing"},
        {"--local-steps 2", NULL, -1, "--local-steps has no effect with --dp-mode sync"},
        {"--dp-mode diloco --local-steps 4", "local-steps,dp-modes", -1, "--search dp-modes"},
        {"--caat-grad-dtype same", NULL, -1, "--caat-fraction"},
        {"--topology ring:4", NULL, -1, "--topology needs --allreduce"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Methods m;
        Error error = {""};
        const bool taken = methods_of_line(&m, rows[i].line, rows[i].search, &error);
        bool has = !taken && strstr(error.text, rows[i].has), twice = false;
        for (int k = 0; k < (taken ? m.n : 0); k++) {
            char text[400], other[400];
            methods_options(text, sizeof text, &m.list[k], 1);
            has = has || strcmp(text, rows[i].has) == 0;
            for (int j = 0; j < k; j++) {
                methods_options(other, sizeof other, &m.list[j], 1);
                twice = twice || strcmp(text, other) == 0;
            }
        }
        check(taken == (rows[i].n > 0) && (!taken || m.n == rows[i].n) && has && !twice,
              "\"%s\", --search %s: %d choices, \"%s\" %s", rows[i].line, rows[i].search ? rows[i].search : "nothing",
              taken ? m.n : 0, rows[i].has, error.text);
        free(m.list);
    }
}

int main(void) {
    process.name = "test_planner_modes";
    test_modes();
    test_sync();
    test_halves_and_caat();
    test_allreduce();
    test_search();
    return test_end();
}
