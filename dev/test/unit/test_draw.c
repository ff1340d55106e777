/*
Tests of dev/plot/draw_schedule.c and trace_run.h. Pictures are compared with files that were looked at (golden.h).
Traces are made, by util/trace.h, from timelines at known costs: the tool has to find these costs again, to predict the
step that the trace was made from, and to refuse what does not fit together. (fuzz_readers damages traces.)
*/
#define DRAW_SCHEDULE_NO_MAIN
#include "../../plot/draw_schedule.c"
#include "golden.h"

typedef struct {
    char* text;
    size_t size;
} Text;

static FILE* text_open(Text* text) {
    text->text = NULL;
    text->size = 0;
    FILE* out = open_memstream(&text->text, &text->size);
    if (!out) die("test_draw: no memory for a file");
    return out;
}

static Text text_of_picture(const SvgPicture* picture) {
    Text text;
    FILE* out = text_open(&text);
    if (!svg_write(out, picture)) die("test_draw: writing to memory failed");
    fclose(out);
    return text;
}

// ---- Predicted pictures -----------------------------------------------------------------------------------------

// One of each schedule.
static void test_predicted(bool write) {
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        const PipelineConfig plan = {(ScheduleKind)kind, 2, schedule_usual_chunks((ScheduleKind)kind), 4, false, false};
        DrawOptions o = draw_options_default();
        char name[96], bubble[64];
        o.kind = kind;
        o.p = plan.p;
        o.v = plan.v;
        o.m = plan.m;
        o.input = 1.25;
        o.weight = 0.75;
        o.transfer = 0.25;
        SvgPicture picture = predicted_picture(&plan, &o);
        Text text = text_of_picture(&picture);
        Schedule* stages = schedules_build(&plan);
        Costs costs = costs_equal(plan.p * plan.v, 1, 1.25, 0.75, 0.25);
        Timeline timeline = schedule_times(stages, plan.p, &costs, false);
        snprintf(name, sizeof name, "golden_schedule_%s.svg", schedule_name(plan.kind));
        snprintf(bubble, sizeof bubble, "bubble %.4g %%", 100 * timeline_bubble(stages, &timeline));
        if (kind <= ZB_V) check_golden(name, text.text, 0.11, write); // the other ones' pictures are made the same way
        check(strstr(text.text, bubble) != NULL, "%s: says %s", name, bubble);
        free(text.text);
        timeline_free(&timeline);
        costs_free(&costs);
        schedules_free(stages, plan.p);
        svg_picture_free(&picture);
    }
}

// Any bytes as texts; boxes without length; a full disk; an axis of any length.
static void test_writer(void) {
    SvgPicture picture = svg_picture("a < b && \"c\" > d", "\xff\x01", 10, 3);
    SvgPanel* panel = svg_add_panel(&picture, "]]> </svg>", "\xef\xbf\xbf \xc3\xa9", 1);
    const SvgBox boxes[] = {{0, 0, 2, SVG_FORWARD, 2, 1234567}, {0, 3, 3, SVG_UPDATE, 0, -1}};
    svg_add_box(panel, boxes[0]);
    svg_add_box(panel, boxes[1]);
    Text text = text_of_picture(&picture);
    check(strstr(text.text, ">a &lt; b &amp;&amp; &quot;c&quot; &gt; d<") &&
              strstr(text.text, ">]]&gt; &lt;/svg&gt;<") && strstr(text.text, ">\?\?<") &&
              strstr(text.text, ">\? \xc3\xa9<"),
          "texts are escaped");
    check(!strstr(text.text, "update"), "a box without length is not drawn");
    FILE* full = fopen("/dev/full", "w");
    if (full) {
        setvbuf(full, NULL, _IONBF, 0);
        check(!svg_write(full, &picture), "a disk without room: false");
        fclose(full);
    }
    free(text.text);
    svg_picture_free(&picture);
    double low = INFINITY, high = 0;
    for (double length = 1e-7; length < 1e7; length *= 1.07) {
        low = fmin(low, length / svg_tick_step(length));
        high = fmax(high, length / svg_tick_step(length));
    }
    check(low >= 4 && high <= 10.001, "ticks on an axis: %.2f to %.2f", low, high);
}

// ---- Traces from timelines --------------------------------------------------------------------------------------

enum { STEPS = 6 };

typedef struct {
    PipelineConfig plan;
    double transfer, tie, norm, zero, after; // seconds
    double scale[STEPS];                     // of each step
    int64_t dropped;                         // spans that the last stage lacks at the end
} Origin;

static Origin origin_of(ScheduleKind kind, int p, int v, int m, bool tied) {
    const Origin o = {{kind, p, v, m, false, tied}, 2e-4, 3e-4, 1e-4, 4e-4, 5e-5, {10, 1, 1.5, 0.5, 0.7, 1.3}, 0};
    return o;
}

// Different on every virtual stage, in microseconds that have no digits behind the point.
static double origin_cost(const Origin* o, ActionKind kind, int stage) {
    switch (kind) {
    case FORWARD: return 1e-3 + 1e-4 * stage;
    case BACKWARD: return 2.2e-3 + 1.5e-4 * stage;
    case BACKWARD_INPUT: return 1.2e-3 + 1e-4 * stage;
    case BACKWARD_WEIGHT: return 0.9e-3 - 2e-5 * stage;
    case REDUCE: return 5e-5 + 1e-5 * stage;
    case UPDATE: return 3e-4 - 2e-5 * stage;
    case UPDATE_TIED: return 2e-4;
    case TIE: return o->tie;
    case NORM: return o->norm;
    default: return 0;
    }
}

static Costs origin_costs(const Origin* o) {
    const PipelineConfig* plan = &o->plan;
    Costs costs = costs_equal(plan->p * plan->v, 0, 0, 0, o->transfer);
    for (int i = 0; i < plan->p * plan->v; i++) {
        for (int kind = 0; kind < ACTION_KINDS; kind++) {
            if (!action_transfers((ActionKind)kind))
                *cost_of(&costs, (ActionKind)kind, i) = origin_cost(o, (ActionKind)kind, i);
        }
        if (i > 0 && pipeline_holder(plan, i) == pipeline_holder(plan, i - 1))
            *cost_of(&costs, SEND_FORWARD, i - 1) = *cost_of(&costs, SEND_BACKWARD, i) = 0;
    }
    return costs;
}

static void add_action(Trace* trace, const Schedule* s, Action a, double start, double end) {
    char name[64];
    if (s->config.v > 1 && a.chunk >= 0)
        snprintf(name, sizeof name, "chunk %d %s", a.chunk, action_name(a.kind));
    else
        snprintf(name, sizeof name, "%s", action_name(a.kind));
    trace_span(trace, "compute", name, a.microbatch, start, end);
}

// Stage r's spans of a step that begins at `begin`. A step ends a little after the stage's last action, or, in plans
// that are not tied, a little after the last one of all.
static void add_step(Trace* trace, const Origin* o, const Schedule* s, const Timeline* t, int number, double begin) {
    const double scale = o->scale[number - 1];
    const int r = s->stage;
    double before = begin + scale * o->zero; // the end of the action before
    trace_span(trace, "compute", "zero gradients", -1, begin, before);
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        const double start = begin + scale * (o->zero + t->start[r][i]), end = begin + scale * (o->zero + t->end[r][i]);
        if (action_transfers(a.kind)) {
            trace_span(trace, "pipeline", "send", a.microbatch, start, end + 1e-3);
            continue;
        }
        const bool meets = a.kind == TIE || a.kind == NORM; // there waiting is inside
        add_action(trace, s, a, meets ? before : start, end);
        before = end;
    }
    if (!o->plan.tied) before = begin + scale * (o->zero + t->length);
    trace_span(trace, "step", "step", number, begin, before + scale * o->after);
}

// The whole trace: two replicas, the second one nonsense; after every step a validation. Everything ends, for all
// stages, before the next step begins.
static Text origin_trace(const Origin* o) {
    const int p = o->plan.p;
    Text text;
    FILE* out = text_open(&text);
    bool ok = trace_begin_file(out);
    Schedule* stages = schedules_build(&o->plan);
    Costs costs = origin_costs(o);
    Timeline t = schedule_times(stages, p, &costs, false);
    for (int r = 0; r < p; r++) {
        Trace trace;
        char label[64];
        double begin = 12.5;
        trace_init(&trace, 100000);
        for (int number = 1; number <= STEPS; number++) {
            add_step(&trace, o, &stages[r], &t, number, begin);
            begin += 2 * o->scale[number - 1] * (o->zero + t.length + o->after);
            trace_span(&trace, "compute", "forward", 0, begin - 1e-3, begin - 5e-4);
            trace_span(&trace, "compute", "sample", 0, begin - 4e-4, begin - 3e-4);
        }
        if (r == p - 1) trace.n -= o->dropped;
        snprintf(label, sizeof label, "rank %d: t 0 p %d d 0", 2 * r, r);
        ok = trace_write_rank(out, 2 * r, label, trace.spans, trace.n, r == p - 1 ? o->dropped : 0, 12) && ok;
        snprintf(label, sizeof label, "rank %d: t 0 p %d d 1", 2 * r + 1, r);
        ok = trace_write_rank(out, 2 * r + 1, label, trace.spans, trace.n / 2, 0, 13) && ok;
        trace_free(&trace);
    }
    char about[256];
    snprintf(about, sizeof about,
             "{\"schedule\":\"%s\",\"t\":1,\"p\":%d,\"d\":2,\"v\":%d,\"m\":%d,"
             "\"reduce_every\":%s,\"tied\":%s}",
             schedule_name(o->plan.kind), p, o->plan.v, o->plan.m, o->plan.reduce_every ? "true" : "false",
             o->plan.tied ? "true" : "false");
    ok = trace_end_file(out, about) && ok;
    if (fclose(out) != 0 || !ok) die("test_draw: writing to memory failed");
    timeline_free(&t), costs_free(&costs), schedules_free(stages, p);
    return text;
}

// The costs that the tool finds, beside those that the trace was made from.
static void check_prices(const char* what, const Origin* o, const Text* text) {
    RunTrace run;
    MeasuredRun x;
    Error error;
    if (!run_trace_read(&run, "trace", text->text, text->size, &error)) {
        check(false, "%s: %s", what, error.text);
        return;
    }
    Schedule* stages = schedules_build(&run.plan);
    measured_run_begin(&x, stages);
    if (check(measure(&x, &run, &error), "%s: the steps are read %s", what, x.n ? "" : error.text)) {
        const Steps all = {1, x.n};
        Prices prices = measured_prices(&x, all);
        Costs expected = origin_costs(o);
        double worst = 0;
        for (int i = 0; i < o->plan.p * o->plan.v; i++) {
            for (int kind = 0; kind < ACTION_KINDS; kind++) {
                bool occurs = kind <= FORWARD || (kind == BACKWARD) != schedule_splits_backward(o->plan.kind);
                if (kind == TIE) occurs = schedule_has_tie(&stages[0]);
                if (action_transfers((ActionKind)kind)) occurs = o->plan.p > 1 && kind % 2 == SEND_FORWARD % 2;
                if (kind == REDUCE || kind == NORM || kind == UPDATE) occurs = true;
                if (kind == UPDATE_TIED)
                    occurs = i < o->plan.p && schedule_has_tie(&stages[pipeline_holder(&o->plan, i)]);
                const double found = *cost_of(&prices.costs, (ActionKind)kind, i);
                const double true_cost = occurs ? *cost_of(&expected, (ActionKind)kind, i) : 0;
                worst = fmax(worst, fabs(found - true_cost));
            }
        }
        check_error(what, worst, 2.1e-9); // two roundings to nanoseconds
        check_error("    overhead", fabs(prices.before + prices.after - o->zero - o->after), 4.1e-9);
        // Through two stages a single micro-batch is waited for twice; on one stage there are no messages.
        const bool single = o->plan.p == 2 && o->plan.v == 1 && o->plan.m == 1;
        const bool several = single ? prices.messages == 2 * (STEPS - 1) : prices.messages > 0;
        check(o->plan.p == 1 ? prices.messages == 0 : several, "    %d messages that were waited for", prices.messages);
        costs_free(&prices.costs), costs_free(&expected);
    }
    measured_run_free(&x), schedules_free(stages, run.plan.p), run_trace_free(&run);
}

// The measured and the predicted step of a trace, which are equal.
static void test_measured(ScheduleKind kind, int p, int v, int m, bool tied, const char* golden, bool write) {
    const Origin o = origin_of(kind, p, v, m, tied);
    char what[160];
    plan_title(what, sizeof what, &o.plan);
    Text text = origin_trace(&o), printed;
    Schedule* stages = schedules_build(&o.plan);
    Costs costs = origin_costs(&o);
    Timeline t = schedule_times(stages, p, &costs, false);
    SvgPicture picture;
    Error error = {""};
    double got[4] = {NAN, NAN, NAN, NAN};
    check_prices(what, &o, &text);
    FILE* out = text_open(&printed);
    const bool ok = draw_trace("trace", text.text, text.size, 3, &picture, out, &error);
    fclose(out);
    const double length = o.zero + t.length + o.after;
    const char* at = strstr(printed.text, "step_ms ");
    t.length = length;
    if (at)
        sscanf(at, "step_ms measured %lf predicted %lf bubble measured %lf predicted %lf", &got[0], &got[1], &got[2],
               &got[3]);
    check(ok && fabs(got[0] / (1e3 * length) - 1) < 1e-6 && fabs(got[1] / (1e3 * length) - 1) < 2e-6,
          "    a step of %g ms, predicted %g %s", got[0], got[1], error.text);
    check_error("    bubble", fmax(fabs(got[2] - timeline_bubble(stages, &t)), fabs(got[3] - got[2])), 1e-5);
    if (ok && golden) {
        Text svg = text_of_picture(&picture);
        check_golden(golden, svg.text, 0.11, write);
        free(svg.text);
    }
    if (ok) svg_picture_free(&picture);
    timeline_free(&t);
    costs_free(&costs);
    schedules_free(stages, p);
    free(text.text);
    free(printed.text);
}

// A run with 1F1B, passes of 1 and 2 s: predicted for the schedules that cut these evenly, against their formulas.
static void test_other_schedules(void) {
    const int p = 4, m = 8;
    const PipelineConfig was = {ONE_F_ONE_B, p, 1, m, false, false};
    Schedule* stages = schedules_build(&was);
    MeasuredRun x = {};
    x.stages = stages;
    Prices prices = {};
    prices.costs = costs_equal(p, 1, 1, 1, 0);
    prices.before = 0.25;
    prices.after = 0.5;
    for (int i = 0; i < p; i++) {
        *cost_of(&prices.costs, BACKWARD_INPUT, i) = *cost_of(&prices.costs, BACKWARD_WEIGHT, i) = 0;
        *cost_of(&prices.costs, UPDATE, i) = 0.125;
    }
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        const PipelineConfig plan = {(ScheduleKind)kind, p, schedule_usual_chunks((ScheduleKind)kind), m, false, false};
        Schedule* others = schedules_build(&plan);
        Timeline t = predicted_with(&x, &prices, others);
        const double expected = 3 * m * (1 + pipeline_bubble(&plan)) + 0.75 + 0.125;
        check_error(schedule_name(plan.kind), fabs(t.length - expected), 1e-12);
        timeline_free(&t), schedules_free(others, p);
    }
    costs_free(&prices.costs), schedules_free(stages, p);
}

// Without --step: the one nearest to the median, never the first. A rank that lacks the last spans: fewer steps.
static void test_steps(void) {
    Origin o = origin_of(ONE_F_ONE_B, 2, 1, 2, false);
    const double scales[STEPS] = {1.01, 3, 0.5, 0.4, 1.01, 1.4}; // median of the last five: 1.01
    memcpy(o.scale, scales, sizeof scales);
    for (int i = 0; i < 2; i++) {
        Text text = origin_trace(&o), printed;
        FILE* out = text_open(&printed);
        SvgPicture picture;
        Error error = {""};
        const bool ok = draw_trace("trace", text.text, text.size, -1, &picture, out, &error);
        fclose(out);
        const char* last = i == 0 ? "steps 2 to 6" : "steps 2 to 5";
        check(ok && strstr(printed.text, last), "%s%s", last, error.text);
        // Of 3, 0.5, 0.4 and 1.01 the median is 0.755, and 0.5 and 1.01 are equally far: steps 3 or 5.
        check(ok && (strstr(picture.title, "step 5") || (i == 1 && strstr(picture.title, "step 3"))),
              "the step nearest to the median: %s", ok ? picture.title : "none");
        if (ok) svg_picture_free(&picture);
        free(text.text), free(printed.text);
        o.dropped = 4;
    }
}

// ---- Refusals ---------------------------------------------------------------------------------------------------

static Text replaced(const Text* text, const char* from, int n, const char* to) {
    Text out = {NULL, 0};
    const char* at = strstr(text->text, from);
    while (at && n-- > 0) at = strstr(at + 1, from);
    if (!at) return out;
    FILE* file = text_open(&out);
    fprintf(file, "%.*s%s%s", (int)(at - text->text), text->text, to, at + strlen(from));
    fclose(file);
    return out;
}

static bool is_refused(const Text* text, int64_t step, const char* reason, Error* error) {
    FILE* none = fopen("/dev/null", "w");
    SvgPicture picture;
    snprintf(error->text, sizeof error->text, "accepted");
    const bool ok = draw_trace("some.json", text->text, text->size, step, &picture, none, error);
    if (ok) svg_picture_free(&picture);
    fclose(none);
    return !ok && strncmp(error->text, "some.json", 9) == 0 && strstr(error->text, reason);
}

typedef struct {
    const char* from;
    int n;
    const char *to, *reason;
} Refused;

static void test_refused(void) {
    const Origin o = origin_of(ZB_V, 2, 2, 4, true);
    const Refused cases[] = {
        {"otherData", 0, "otherDato", "\"otherData\" is missing"},
        {"traceEvents", 0, "events", "\"traceEvents\" is missing"},
        {"zb-v", 0, "zb-w", "unknown schedule \"zb-w\""},
        {"zb-v", 0, "1f1b", "has one chunk a stage"},
        {"\"v\":2", 0, "\"v\":3", "has --vpp 2 chunks"},
        {"\"p\":2", 0, "\"p\":3", "stage 2 is missing"},
        {"\"p\":2", 0, "\"p\":\"2\"", "has to be an integer"},
        {"\"m\":4", 0, "\"m\":3", "does not occur in zb-v"},
        {"\"m\":4", 0, "\"m\":1000000", "but only"},
        {"\"tied\":true", 0, "\"tied\":1", "has to be a boolean"},
        {"rank 2: t 0 p 1 d 0", 0, "rank 2: t 0 p 0 d 0", "and so is process 0"},
        {"chunk 0 forward 3", 2, "chunk 0 forward 2", "step 3 of stage 0: forward 2 of chunk 0 is there twice"},
        {"chunk 0 forward 3", 2, "chunk 0 sideways 3", "step 3 of stage 0: forward 3 of chunk 0 is missing"},
        {"\"name\":\"norm\"", 2, "\"name\":\"nor\"", "step 3 of stage 0: norm is missing"},
        {"\"name\":\"chunk 1 update\"", 10, "\"name\":\"x\"", "stage 1: update of chunk 1 is missing"},
        {"\"name\":\"step 4\"", 0, "\"name\":\"step 2\"", "step 2 does not follow step 3"},
        {"\"dur\":", 3, "\"dur\":-", "that takes -"},
        {"\"dur\":", 3, "\"dur\":1e300,\"was\":", "microseconds"},
        {"\"tid\":0", 5, "\"tid\":0.5", "\"tid\" has to be"},
    };
    Text text = origin_trace(&o);
    Error error;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const Refused* x = &cases[i];
        Text changed = replaced(&text, x->from, x->n, x->to);
        if (!check(changed.text != NULL, "%s is in the trace", x->from)) continue;
        check(is_refused(&changed, -1, x->reason, &error), "%s -> %s: %s", x->from, x->to, error.text);
        free(changed.text);
    }
    check(is_refused(&text, 7, "--step 7 is not there; it has steps 1 to 6", &error), "%s", error.text);
    const char* no_objects =
        "{\"traceEvents\":[1,null,[]],\"otherData\":{\"schedule\":\"1f1b\",\"t\":1,\"d\":1,\"p\":1,\"v\":1,\"m\":1,"
        "\"reduce_every\":false,\"tied\":true}}";
    const char* others[] = {"",        "{}", "[]", "{\"traceEvents\":[]}", "{\"traceEvents\":{},\"otherData\":{}}",
                            no_objects};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        Text other = {strdup(others[i]), strlen(others[i])};
        check(is_refused(&other, -1, "", &error), "%.40s: %s", others[i], error.text);
        free(other.text);
    }
    free(text.text);
}

// ---- The command line -------------------------------------------------------------------------------------------

static void test_command_line(void) {
    const struct {
        const char* line;
        int status;
        const char* reason;
    } cases[] = {{"--schedule zb-v --vpp 3 --out x.svg", 2, "--vpp"},
                 {"--schedule interleaved --pp 4 --microbatches 7 --out x.svg", 2, "not a multiple"},
                 {"--schedule best --out x.svg", 2, "best"},
                 {"--forward nan --out x.svg", 2, "--forward"},
                 {"--schedule zb-v", 2, "--out"},
                 {"--step 3 --out x.svg", 2, "--trace"},
                 {"--trace x --pp 2 --out x.svg", 2, "--pp"},
                 {"--trace /nowhere/trace.json --out x.svg", 1, "/nowhere/trace.json"},
                 {"--schedule zb-v --out /nowhere/x.svg", 1, "/nowhere/x.svg"},
                 {"--out /dev/full", 1, "/dev/full"},
                 {"--schedule interleaved --pp 256 --vpp 3 --microbatches 256 --forward 1e-6 --out /dev/null", 0, ""},
                 {"--help", 0, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char words[1024], name[] = "draw_schedule", *argv[32] = {name};
        int argc = 1;
        Error error = {""};
        FILE* none = fopen("/dev/null", "w");
        snprintf(words, sizeof words, "%s", cases[i].line);
        for (char* word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
        const int status = draw_schedule(argc, argv, none, &error);
        fclose(none);
        check(status == cases[i].status && strstr(error.text, cases[i].reason) && access("x.svg", F_OK) != 0,
              "%s: %d %s", cases[i].line, status, error.text);
    }
}

int main(int argc, char** argv) {
    const bool write = argc > 1 && strcmp(argv[1], "--write") == 0;
    process.name = "test_draw";
    test_predicted(write);
    test_writer();
    test_measured(GPIPE, 3, 1, 5, true, NULL, write);
    test_measured(ONE_F_ONE_B, 4, 1, 8, true, NULL, write);
    test_measured(INTERLEAVED, 2, 3, 4, false, NULL, write);
    test_measured(ZB_H1, 4, 1, 6, false, NULL, write);
    test_measured(ZB_V, 2, 2, 4, true, "golden_measured.svg", write);
    test_measured(ZB_V, 2, 2, 1, true, NULL, write);
    test_measured(ONE_F_ONE_B, 1, 1, 2, true, NULL, write);
    test_measured(ONE_F_ONE_B, 2, 1, 1, true, NULL, write);
    test_other_schedules();
    test_steps();
    test_refused();
    test_command_line();
    return test_end();
}
