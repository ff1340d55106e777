/*
test_planner_measured.c: planner/measured_device.h and calibrate.h, without measuring anything: rates between the
points, files, and traces that are made up here.
*/
#include "../../../planner/calibrate.h"
#include "planner_fixture.h"

static void test_points(void) {
    Measured m;
    Error error;
    make_machine(&m, 1e10);
    check(measured_complete(&m, &error), "the machine is complete");
    int exact = 0, tables[MEASURED_TABLES] = {0};
    for (int i = 0; i < m.points; i++) {
        const MeasuredPoint* p = &m.point[i];
        exact += p->table == MEASURED_SPEED
                     ? measured_speed(&m, p->at[0], p->at[1]) == p->value
                     : measured_between(measured_find(&m, p->table, p->first, p->second), p->at) == p->value;
        tables[p->table]++;
    }
    check(exact == m.points, "at %d of %d points the value is the point's, to the bit", exact, m.points);
    const double at[3] = {64, 200, 300}, inside = measured_between(measured_find(&m, MEASURED_PRODUCT, 0, 0), at);
    check_error("a power law is met between the points", fabs(inside / (1e10 * pow(64 * 200 * 300, 0.1)) - 1), 1e-12);
    const double far[3] = {1e6, 1e6, 1e6}, last[3] = {512, 512, 512}, little[3] = {1, 1, 1}, first[3] = {32, 32, 32};
    const MeasuredGrid* g = measured_find(&m, MEASURED_PRODUCT, 0, 0);
    check(measured_between(g, far) == measured_between(g, last) &&
              measured_between(g, little) == measured_between(g, first),
          "beyond the ends the rate stays");
    measured_free(&m);
}

// Times, which are sizes over rates.
static void test_times(void) {
    Measured m;
    Error error;
    make_machine(&m, 1e10);
    if (!check(measured_complete(&m, &error), "the machine is complete")) return;
    const double one = measured_product(&m, 1, 0, 128, 512, 512);
    check_error("49 columns take as long as two tiles",
                fabs(measured_product(&m, 1, 0, 8, 49, 32) * pow(32 * 49 * 32, 0.1) /
                         (measured_product(&m, 1, 0, 8, 96, 32) * pow(32 * 96 * 32, 0.1)) -
                     1),
                1e-12);
    check_error("two threads of two cores: the rate of all",
                fabs(measured_product(&m, 2, 0, 96, 480, 512) / measured_product(&m, 1, 0, 96, 480, 512) - 0.5), 1e-12);
    check(measured_threads(&m, 1) == THREADS_ONE && measured_threads(&m, 2) == THREADS_ALL, "threads: one and all");
    check(one > 0 && measured_collective(&m, COLLECTIVE_WAITED, PLAN_ALL_REDUCE, 1, 1e6) == 0,
          "a collective of one rank takes no time");
    const double eight[3] = {8, 65536, 0};
    const double alone = measured_between(measured_find(&m, MEASURED_COLLECTIVE, COLLECTIVE_WAITED, 0), eight);
    check_error("a collective of 8 ranks on 2 cores is shared by 4",
                fabs(alone / measured_collective(&m, COLLECTIVE_WAITED, 0, 8, 65536) - 4), 1e-12);
    check(measured_speed(&m, 3, 3) == measured_speed(&m, 4, 3), "3 ranks: as of 4 that were measured");
    check_error("16 ranks compute half as fast as 8", fabs(measured_speed(&m, 16, 16) / measured_speed(&m, 8, 8) - 0.5),
                1e-12);
    measured_free(&m);
}

static void test_operations(void) {
    Measured m;
    Error error;
    Work w = {0, 0, NULL};
    make_machine(&m, 1e10);
    if (!check(measured_complete(&m, &error), "the machine is complete")) return;
    const Op product = *work_product(&w, "product", 1, 128, 512, 32, 1);
    check(measured_seconds(&m, &product, 1, 1) == measured_product(&m, 1, 1, 128, 512, 32), "a product");
    const Op gelu = *work_memory(&w, "gelu", KERNEL_ACTIVATION, 65536, 8);
    Op swiglu = *work_memory(&w, "swiglu", KERNEL_ACTIVATION, 65536, 12);
    swiglu.gated = true;
    check(measured_kernel(&gelu) == KERNEL_ACTIVATION && measured_kernel(&swiglu) == KERNEL_SWIGLU, "two activations");
    check(measured_seconds(&m, &swiglu, 1, 1) == measured_memory(&m, 1, KERNEL_SWIGLU, 65536), "a kernel");
    Op sum = *work_collective(&w, "sum", PLAN_ALL_REDUCE, 65536, 2, 1);
    const double waited = measured_seconds(&m, &sum, 1, 2);
    sum.under = 0;
    check(measured_seconds(&m, &sum, 1, 2) > waited, "a sum that was only started is another one");
    work_free(&w);
    measured_free(&m);
    measured_init(&m);
    check(measured_seconds(&m, &product, 1, 1) < 0, "of no machine nothing is known");
    measured_free(&m);
}

// ---- Files ------------------------------------------------------------------------------------------------------

static const char* path = "build/test_planner_measured.tmp";

static void test_files(void) {
    Measured m, again;
    Cluster c;
    Error error;
    make_machine(&m, 1e10 / 3);
    m.correction[2] = 1.1;
    if (!write_machine(path, &m, 0)) die("%s: cannot write", path);
    if (!check(measured_read_cluster(&c, &again, path, &error), "a file is read again")) return;
    bool same = c.measured == &again && c.cores == 2 && again.points == m.points && again.cores == m.cores &&
                again.tile_rows == m.tile_rows && again.tile_columns == m.tile_columns && again.resident == m.resident;
    for (int i = 0; i < m.points && same; i++) {
        const MeasuredPoint *p = &m.point[i], *q = &again.point[i];
        same = p->table == q->table && p->first == q->first && p->second == q->second && p->value == q->value &&
               memcmp(p->at, q->at, sizeof p->at) == 0;
    }
    same = same && memcmp(m.correction, again.correction, sizeof m.correction) == 0;
    check(same, "and is the same to the bit");
    measured_free(&m), measured_free(&again);
}

static void test_refused(void) {
    static const char* const refused[][2] = {
        // lines below "cores 2" and "tile 8 48"; what the error names
        {"kernel one norm 1024 1e-9 s\nkernel one norm 1024 2e-9 s", "norm 1024"},
        {"message 2 1024 1 s\nmessage 2 4096 1 s\nmessage 4 1024 1 s", "message 4 4096"},
        {"kernel one norm 1024 1e-9", ":3: kernel"},
        {"kernel one norm 1024 1e-9 FLOP/s", ":3: kernel"},
        {"kernel one norm 1024 0 s", "not 0"},
        {"kernel one norm -5 1 s", "not -5"},
        {"kernel one norm 1024 nan s", "not nan"},
        {"product one forward 32 32 32 1e-308 FLOP/s", "not 1e-308"}, // a step that never ends
        {"product one forward 1e30 32 32 1e9 FLOP/s", "not 1e30"},
        {"kernel one norm 0x10 1 s", "not 0x10"},
        {"kernel one norms 1024 1 s", "norms"},
        {"kernel two norm 1024 1 s", "one|all"},
        {"kernel one norm", "elements"},
        {"kernel one norm 1024 1 s s", ":3: kernel"},
        {"speed 2 3 1", ":3: speed"},
        {"tile 8", ":3: tile"},
        {"resident 5", ":3: resident"},
        {"correct forward 2 1", ":3: correct"},
        {"correct 2 0", ":3: correct"},
        {"\033[2Jspeed\177 2 1 1", "?[2Jspeed?"}, // nothing that a terminal obeys
        {"product one input 32 32 32 1e9 FLOP/s\nproduct one input 64 32 64 1e9 FLOP/s", "product one input 32 32 64"},
        {"product one forward 1 1 1 1 FLOP/s\nproduct one forward 2 2 2 1 FLOP/s\n"
         "product one forward 3 3 3 1 FLOP/s",
         "product"},
    };
    Error error;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        char text[1024];
        static Machines x;
        snprintf(text, sizeof text, "cores 2\ntile 8 48\n%s\n", refused[i][0]);
        write_text(path, text);
        const bool ok = machines_open(&x, path, &error);
        check(!ok && strstr(error.text, refused[i][1]), "refused: %s", ok ? refused[i][0] : error.text);
        measured_free(&x.measured);
    }
    unlink(path);
}

// ---- Traces -----------------------------------------------------------------------------------------------------

// Writes the trace of a run with one chunk a stage whose steps took `times` as long as the prediction. Returns false if
// that failed.
static bool write_trace(const StepCost* cost, const char* about, double times) {
    FILE* out = fopen(path, "w");
    if (!out || !trace_begin_file(out)) return false;
    for (int r = 0; r < cost->p; r++) {
        const Schedule* s = &cost->tables[r];
        char label[64];
        Trace t;
        trace_init(&t, 4 * (s->n + 2));
        t.zero = 0;
        for (int step = 0; step < 3; step++) {
            const double from = step * 2 * times * cost->timeline.length;
            for (int i = 0; i < s->n; i++) {
                const Action a = s->actions[i];
                const double begin = from + times * cost->timeline.start[r][i],
                             end = from + times * cost->timeline.end[r][i];
                if (!action_transfers(a.kind)) trace_span(&t, "compute", action_name(a.kind), a.microbatch, begin, end);
            }
            trace_span(&t, "step", "step", step + 1, from, from + times * cost->timeline.length);
        }
        snprintf(label, sizeof label, "rank %d: t 0 p %d d 0", r, r);
        if (!trace_write_rank(out, r, label, t.spans, t.n, 0, 0)) return false;
        trace_free(&t);
    }
    return trace_end_file(out, about) && fclose(out) == 0;
}

static const char about_run[] = "{\"schedule\":\"1f1b\",\"t\":1,\"p\":2,\"d\":1,\"v\":1,\"m\":4,"
                                "\"reduce_every\":false,\"tied\":true}";

static void refuse_trace(const StepSetup* s, const StepCost* cost, const char* from, const char* to,
                         const char* reason) {
    char about[256];
    Measured m;
    Error error = {""};
    measured_init(&m);
    const char* at = strstr(about_run, from);
    snprintf(about, sizeof about, "%.*s%s%s", (int)(at - about_run), about_run, to, at + strlen(from));
    if (!write_trace(cost, about, 1)) die("%s: cannot write", path);
    const bool ok = calibrate_by_trace(&m, s, path, &error);
    check(!ok && strstr(error.text, reason), "refused: %s", ok ? to : error.text);
}

static void test_traces(void) {
    const ModelConfig model = model_gpt2(4, 64, 4, 64, 256);
    Mesh mesh = mesh_of_rank(0, 1, 2, 1);
    Measured m;
    Cluster c;
    Error error;
    make_machine(&m, 1e10);
    for (int i = 0; i < m.points; i++) { // rates that do not depend on sizes, so that times are proportional
        if (m.point[i].table == MEASURED_SPEED) m.point[i].value = 1;
    }
    if (!write_machine(path, &m, 0)) die("%s: cannot write", path);
    measured_free(&m);
    if (!check(measured_read_cluster(&c, &m, path, &error), "a measured cluster")) return;
    StepSetup s = step_setup(&model, &mesh, 2, 64, 8, software_find("threefold-cpu"), &c);
    if (!check(step_check(&s, &error), "a setup")) return;
    StepCost cost = step_cost_with(&s, true);
    if (!write_trace(&cost, about_run, 1.25)) die("%s: cannot write", path);
    const bool ok = calibrate_by_trace(&m, &s, path, &error);
    check(ok, "a trace is read%s%s", ok ? "" : ": ", ok ? "" : error.text);
    check_error("everything took 1.25 times as long", fabs(m.correction[1] - 1.25), 1e-3);
    check(measured_corrected(&m, 1) == m.correction[1] && measured_corrected(&m, 64) == m.correction[1],
          "and that is said of all other numbers of ranks, too");
    m.correction[3] = 3;
    check(measured_corrected(&m, 5) == 3 && measured_corrected(&m, 16) == 3 &&
              measured_corrected(&m, 2) == m.correction[1],
          "or, of those near to another one, what was seen there");
    m.correction[3] = 0;
    s.busy = 2;
    StepCost again = step_cost_with(&s, true);
    check_error("with the correction the prediction is right", fabs(again.seconds / cost.seconds / 1.25 - 1), 1e-3);
    step_cost_free(&again);
    check(calibrate_by_trace(&m, &s, path, &error), "the same trace, of the corrected prediction");
    check_error("finds nothing missing", fabs(m.correction[1] - 1.25), 2e-3);
    refuse_trace(&s, &cost, "1f1b", "gpipe", "a run of gpipe");
    refuse_trace(&s, &cost, "\"m\":4", "\"m\":2", "2 micro-batches; the options say");
    refuse_trace(&s, &cost, "\"d\":1", "\"d\":2", "--tp 1 --dp 2, but the options say 1 and 1");
    refuse_trace(&s, &cost, "true}", "false}", "another --zero");
    refuse_trace(&s, &cost, "\"t\":1,", "", "\"t\" is missing");
    write_text(path, "{}");
    check(!calibrate_by_trace(&m, &s, path, &error), "refused: %s", error.text);
    write_text(path, "nothing");
    check(!calibrate_by_trace(&m, &s, path, &error), "refused: %s", error.text);
    step_cost_free(&cost);
    measured_free(&m);
    unlink(path);
}

static void test_machines(void) {
    Machines x;
    Error error = {""};
    check(machines_open(&x, "selene", &error) && x.cluster.nodes == 560, "a cluster by its name");
    check(!machines_open(&x, "nowhere", &error) && strstr(error.text, "--cluster nowhere"), "refused: %s", error.text);
    check(!machines_open(&x, "no/where", &error) && strstr(error.text, "no/where"), "refused: %s", error.text);
    check(machines_open(&x, "planner/clusters/selene.txt", &error) && x.cluster.node_gpus == 8, "and from a file");
}

int main(void) {
    test_traces();
    test_points();
    test_times();
    test_operations();
    test_files();
    test_refused();
    test_machines();
    return test_end();
}
