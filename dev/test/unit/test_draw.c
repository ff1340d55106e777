/*
Tests of dev/draw. Pictures are written to memory and read back: as XML, and as boxes, whose places have to follow from
the tables' timeline. Traces are made, through util/trace.h, from timelines at known costs: the tool has to find these costs
again, to predict the step that it was made from, and to refuse whatever does not fit together.
*/
#define DRAW_SCHEDULE_NO_MAIN
#include "../../plot/draw_schedule.c"
#include "test.h"
#include <signal.h>
#include <sys/resource.h>

typedef struct {
    char* text;
    size_t size;
} Text;

static FILE* text_open(Text* text) {
    text->text = NULL, text->size = 0;
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

// ----------------------------------------------------------------------------------------------------------------
// XML

static const char* skip_space(const char* at) { return at + strspn(at, " \t\r\n"); }

static size_t name_length(const char* at) {
    return strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-:");
}

// Text up to `end`: no character that has a meaning, no control character; & only in one of the five entities.
static const char* xml_text(const char* at, char end) {
    static const char* entities[] = {"&lt;", "&gt;", "&amp;", "&quot;", "&apos;"};
    while (*at && *at != end) {
        if (*at == '<' || *at == '>' || ((unsigned char)*at < 32 && *at != '\n' && *at != '\t')) return NULL;
        const size_t bytes = json_utf8_bytes((const unsigned char*)at, strlen(at));
        bool known = *at != '&';
        for (int i = 0; i < 5; i++) known = known || strncmp(at, entities[i], strlen(entities[i])) == 0;
        if (!known || bytes == 0) return NULL;
        at += bytes;
    }
    return at;
}

// Attributes up to > or />: name="value", each name once.
static const char* xml_attributes(const char* at) {
    const char* seen[32];
    int n = 0;
    for (;;) {
        const char* next = skip_space(at);
        if (*next == '>' || *next == '/') return next;
        const size_t length = name_length(next);
        if (next == at || length == 0 || n == 32 || next[length] != '=' || next[length + 1] != '"') return NULL;
        for (int i = 0; i < n; i++) {
            if (strncmp(seen[i], next, length + 1) == 0) return NULL;
        }
        seen[n++] = next;
        at = xml_text(next + length + 2, '"');
        if (!at || *at != '"') return NULL;
        at++;
    }
}

// Whether text is one element with what belongs inside.
static bool xml_is_well_formed(const char* text) {
    const char* open[64];
    int depth = 0;
    bool began = false;
    for (const char* at = skip_space(text);; began = true) {
        if (depth == 0 && began) return *skip_space(at) == 0;
        at = depth > 0 ? xml_text(at, '<') : at;
        if (!at || *at++ != '<') return false;
        const bool closing = *at == '/';
        const char* name = at + closing;
        const size_t length = name_length(name);
        if (length == 0) return false;
        if (closing) {
            if (depth == 0 || strncmp(open[--depth], name, length) != 0 || name_length(open[depth]) != length ||
                name[length] != '>')
                return false;
            at = name + length + 1;
            continue;
        }
        at = xml_attributes(name + length);
        if (!at || depth == 64) return false;
        if (*at == '>')
            open[depth++] = name;
        else if (*++at != '>')
            return false;
        at++;
    }
}

static void test_xml(void) {
    const char* good[] = {"<a/>", "<a b=\"1\" c=\"&lt;\">x<b/>&amp;<c>y</c></a>\n"};
    const char* bad[] = {"",
                         "x",
                         "<a>",
                         "<a></b>",
                         "<a/><a/>",
                         "<a b=\"1\" b=\"2\"/>",
                         "<a>&</a>",
                         "<a>a > b</a>",
                         "<a b=c/>",
                         "<a b=\"<\"/>",
                         "<a>\x01</a>",
                         "<a>\xff</a>",
                         "<a></ab>",
                         "</a>"};
    int wrong = 0;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) wrong += !xml_is_well_formed(good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) wrong += xml_is_well_formed(bad[i]);
    check(wrong == 0, "the checker of XML tells good from bad");
}

// ----------------------------------------------------------------------------------------------------------------
// Boxes, as a reader of the file finds them

typedef struct {
    char group[32]; // "forward 0"
    double x, y, width, height;
} Drawn;

typedef struct {
    int n, texts;
    double width, height; // of the picture
    Drawn* rects;         // all in groups with a class; rows have the class "row"
} Read;

static double attribute(const char* tag, const char* name) {
    char key[32];
    snprintf(key, sizeof key, " %s=\"", name);
    const char *end = strchr(tag, '>'), *at = strstr(tag, key);
    return at && at < end ? strtod(at + strlen(key), NULL) : NAN;
}

static Read read_picture(const char* text) {
    Read read = {0, 0, attribute(text, "width"), attribute(text, "height"), NULL};
    char group[32] = "";
    int capacity = 0;
    for (const char* at = text; (at = strchr(at, '<')) != NULL; at++) {
        read.texts += strncmp(at, "<text", 5) == 0;
        if (strncmp(at, "</g>", 4) == 0) group[0] = 0;
        if (strncmp(at, "<g class=\"", 10) == 0)
            snprintf(group, sizeof group, "%.*s", (int)strcspn(at + 10, "\""), at + 10);
        if (strncmp(at, "<rect", 5) != 0 || !group[0]) continue;
        if (read.n == capacity) {
            capacity = capacity ? 2 * capacity : 256;
            read.rects = (Drawn*)realloc(read.rects, (size_t)capacity * sizeof(Drawn));
            if (!read.rects) die("test_draw: no memory");
        }
        Drawn* d = &read.rects[read.n++];
        memcpy(d->group, group, sizeof group);
        d->x = attribute(at, "x"), d->y = attribute(at, "y");
        d->width = attribute(at, "width"), d->height = attribute(at, "height");
    }
    return read;
}

static int count_group(const Read* read, const char* group) {
    int n = 0;
    for (int i = 0; i < read->n; i++) n += strcmp(read->rects[i].group, group) == 0;
    return n;
}

// Row number `row` of all panels together.
static const Drawn* find_row(const Read* read, int row) {
    for (int i = 0; i < read->n; i++) {
        if (strcmp(read->rects[i].group, "row") == 0 && row-- == 0) return &read->rects[i];
    }
    return NULL;
}

static bool is_inside(const Drawn* a, const Drawn* b, double margin) {
    return a->x >= b->x - margin && a->x + a->width <= b->x + b->width + margin && a->y >= b->y - margin &&
           a->y + a->height <= b->y + b->height + margin;
}

static bool do_overlap(const Drawn* a, const Drawn* b) {
    const double rounding = 0.011;
    return a->x + a->width > b->x + rounding && b->x + b->width > a->x + rounding && a->y + a->height > b->y &&
           b->y + b->height > a->y;
}

// Every box lies in a row, rows in the frame, and no two boxes on each other. Numbers outside NaN are part of it.
static bool check_places(const char* what, const Read* read) {
    const Drawn frame = {"", 0, 0, read->width, read->height};
    int outside = 0, overlaps = 0;
    for (int i = 0; i < read->n; i++) {
        const Drawn* d = &read->rects[i];
        bool inside = strcmp(d->group, "row") == 0 && is_inside(d, &frame, 0);
        for (int row = 0; find_row(read, row) && !inside; row++)
            inside = strcmp(d->group, "row") != 0 && is_inside(d, find_row(read, row), 0.06);
        outside += !inside || !(d->width > 0) || !(d->height > 0);
        for (int j = 0; j < i; j++) {
            const bool rows = strcmp(d->group, "row") == 0 || strcmp(read->rects[j].group, "row") == 0;
            overlaps += !rows && do_overlap(d, &read->rects[j]);
        }
    }
    return check(outside == 0 && overlaps == 0, "%s: %d boxes in their rows, %d outside, %d overlaps", what, read->n,
                 outside, overlaps);
}

// The largest distance, in pixels, of a box of stage r from where the timeline has it; INFINITY if one is missing. The
// panel's rows begin at row `first`; the axis is `length` long.
static double distance_from(const Read* read, int first, int r, const Schedule* s, const Timeline* t, double length) {
    const Drawn* row = find_row(read, first + r);
    const double scale = row->width / length;
    double worst = 0;
    for (int i = 0; i < t->done[r]; i++) {
        const Action a = s->actions[i];
        double nearest = INFINITY;
        char group[32];
        if (!action_computes(a.kind)) continue;
        const char* names[] = {"forward", "backward", "input", "weight"};
        snprintf(group, sizeof group, "%s %d", names[a.kind], a.chunk);
        const double left = row->x + scale * t->start[r][i], right = row->x + scale * t->end[r][i];
        for (int j = 0; j < read->n; j++) {
            const Drawn* d = &read->rects[j];
            if (strcmp(d->group, group) != 0 || d->y < row->y - 0.01 || d->y > row->y + row->height) continue;
            nearest = fmin(nearest, fmax(fabs(d->x - left), fabs(d->x + d->width - right)));
        }
        worst = fmax(worst, nearest);
    }
    return worst;
}

// ----------------------------------------------------------------------------------------------------------------
// Predicted pictures

static DrawOptions options_of(ScheduleKind kind, int p, int v, int m) {
    DrawOptions o = draw_options_default();
    o.kind = (int)kind, o.p = p, o.v = v, o.m = m;
    return o;
}

static void test_predicted_picture(ScheduleKind kind, int p, int v, int m, double transfer) {
    const PipelineConfig plan = {kind, p, v, m, false, false, false};
    DrawOptions o = options_of(kind, p, v, m);
    o.input = 1.25, o.weight = 0.75, o.transfer = transfer;
    char what[128];
    plan_title(what, sizeof what, &plan);
    SvgPicture picture = predicted_picture(&plan, &o);
    Text text = text_of_picture(&picture);
    check(xml_is_well_formed(text.text), "%s: well-formed, %zu bytes", what, text.size);
    Read read = read_picture(text.text);
    check_places(what, &read);
    check(count_group(&read, "row") == p, "%s: a row for each stage", what);

    Schedule* stages = schedules_build(&plan);
    Costs costs = costs_equal(p * v, 1, 1.25, 0.75, transfer);
    Timeline t = schedule_times(stages, p, &costs, false);
    int wrong = 0;
    for (int c = 0; c < v; c++) {
        const char* names[] = {"forward", "backward", "input", "weight"};
        const bool halves = kind == ZB_H1 || kind == ZB_V;
        for (int i = 0; i < 4; i++) {
            char group[32];
            snprintf(group, sizeof group, "%s %d", names[i], c);
            const bool occurs = i == FORWARD || (i == BACKWARD) != halves;
            wrong += count_group(&read, group) != (occurs ? p * m : 0);
        }
    }
    check(wrong == 0 && read.n == p + p * v * m * (kind == ZB_H1 || kind == ZB_V ? 3 : 2),
          "%s: as many boxes of each kind and chunk as actions", what);
    double worst = 0;
    for (int r = 0; r < p; r++) worst = fmax(worst, distance_from(&read, 0, r, &stages[r], &t, t.length));
    check_error(what, worst, 0.52); // half a gap, and rounding
    char bubble[64];
    snprintf(bubble, sizeof bubble, "bubble %.4g %%", 100 * schedule_bubble(stages, p, &costs));
    check(strstr(text.text, bubble) != NULL, "%s: says %s", what, bubble);
    free(read.rects), free(text.text);
    timeline_free(&t), costs_free(&costs), schedules_free(stages, p);
    svg_picture_free(&picture);
}

static void test_predicted(void) {
    test_predicted_picture(GPIPE, 4, 1, 8, 0);
    test_predicted_picture(ONE_F_ONE_B, 4, 1, 8, 0);
    test_predicted_picture(INTERLEAVED, 4, 2, 8, 0);
    test_predicted_picture(ZB_H1, 4, 1, 8, 0);
    test_predicted_picture(ZB_V, 4, 2, 8, 0);
    test_predicted_picture(ZB_V, 3, 2, 2, 0.3);
    test_predicted_picture(INTERLEAVED, 3, 5, 6, 0.5);
    test_predicted_picture(ONE_F_ONE_B, 1, 1, 1, 0);
    test_predicted_picture(ONE_F_ONE_B, 12, 1, 40, 0.1);
}

// In the pictures that come with the project every box has its number.
static void test_numbers(void) {
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        const int v = kind == INTERLEAVED || kind == ZB_V ? 2 : 1;
        const PipelineConfig plan = {(ScheduleKind)kind, 4, v, 8, false, false, false};
        const DrawOptions o = options_of(plan.kind, 4, v, 8);
        SvgPicture picture = predicted_picture(&plan, &o);
        Text text = text_of_picture(&picture);
        SvgPicture empty = picture; // the same without numbers
        for (int i = 0; i < picture.panel[0].n; i++) picture.panel[0].boxes[i].number = -1;
        Text bare = text_of_picture(&empty);
        Read with = read_picture(text.text), without = read_picture(bare.text);
        check(with.texts - without.texts == with.n - 4, "%s: %d boxes, %d numbers", schedule_name(plan.kind),
              with.n - 4, with.texts - without.texts);
        check(text.size < 60000, "%s: %zu bytes", schedule_name(plan.kind), text.size);
        free(with.rects), free(without.rects), free(text.text), free(bare.text);
        svg_picture_free(&picture);
    }
}

// Where boxes are narrow the numbers are smaller, not left out.
static void test_small_numbers(void) {
    const DrawOptions o = options_of(ONE_F_ONE_B, 4, 1, 20);
    const PipelineConfig plan = {ONE_F_ONE_B, 4, 1, 20, false, false, false};
    SvgPicture picture = predicted_picture(&plan, &o);
    const SvgLayout layout = svg_layout(&picture);
    Text text = text_of_picture(&picture);
    Read read = read_picture(text.text);
    check(read.texts >= 0.9 * 160, "%d texts in a picture of 160 boxes, font size %g", read.texts, layout.number);
    check(layout.number < 12 && layout.number >= 7, "their font is smaller");
    free(read.rects), free(text.text);
    svg_picture_free(&picture);
}

// Any bytes as texts, and boxes without length.
static void test_writer(void) {
    const char* texts[] = {"a < b && \"c\" > d", "\x01\x02\n\x7f", "\xff\xc3", "\xef\xbf\xbf \xe2\x80\x94 \xc3\xa9",
                           "]]> --> </svg>"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        SvgPicture picture = svg_picture(texts[i], texts[i], 10, 3);
        SvgPanel* panel = svg_add_panel(&picture, texts[i], texts[i], 1);
        snprintf(panel->labels[0].text, sizeof panel->labels[0].text, "%s", texts[i]);
        const SvgBox boxes[] = {{0, 0, 2, SVG_FORWARD, 2, 1234567}, {0, 3, 3, SVG_UPDATE, 0, -1}};
        svg_add_box(panel, boxes[0]), svg_add_box(panel, boxes[1]);
        Text text = text_of_picture(&picture);
        Read read = read_picture(text.text);
        check(xml_is_well_formed(text.text), "text %zu: well-formed", i);
        if (i == 2) check(strstr(text.text, ">\?\?<") != NULL, "what is not UTF-8 becomes question marks");
        check(read.n == 2 && !strstr(text.text, "update"), "text %zu: a box without length is not drawn", i);
        free(read.rects), free(text.text);
        svg_picture_free(&picture);
    }
    const SvgPicture picture = svg_picture("full", "t", 1, 1);
    FILE* full = fopen("/dev/full", "w");
    if (full) {
        setvbuf(full, NULL, _IONBF, 0);
        check(!svg_write(full, &picture), "a disk without room: false");
        fclose(full);
    }
}

static void test_ticks(void) {
    double low = INFINITY, high = 0;
    for (double length = 1e-7; length < 1e7; length *= 1.07) {
        const double ticks = length / svg_tick_step(length);
        low = fmin(low, ticks), high = fmax(high, ticks);
    }
    check(low >= 4 && high <= 10.001, "ticks on an axis: %.2f to %.2f", low, high);
}

// ----------------------------------------------------------------------------------------------------------------
// Traces from timelines

enum { STEPS = 6 };

typedef struct {
    PipelineConfig plan;
    double transfer, tie, norm, zero, after; // seconds
    double scale[STEPS];                     // of each step
    int64_t dropped;                         // spans that the last stage lacks at the end
} Origin;

static Origin origin_of(ScheduleKind kind, int p, int v, int m, bool tied, bool clip) {
    const Origin o = {{kind, p, v, m, false, tied, clip}, 2e-4, 3e-4, 1e-4, 4e-4, 5e-5, {10, 1, 1.5, 0.5, 0.7, 1.3}, 0};
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
             "\"reduce_every\":%s,\"tied\":%s,\"clip\":%s}",
             schedule_name(o->plan.kind), p, o->plan.v, o->plan.m, o->plan.reduce_every ? "true" : "false",
             o->plan.tied ? "true" : "false", o->plan.clip ? "true" : "false");
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
        check(o->plan.p == 1 ? prices.messages == 0
              : single       ? prices.messages == 2 * (STEPS - 1)
                             : prices.messages > 0,
              "    %d messages that were waited for", prices.messages);
        costs_free(&prices.costs), costs_free(&expected);
    }
    measured_run_free(&x), schedules_free(stages, run.plan.p), run_trace_free(&run);
}

// The last line that was printed.
static bool read_last_line(const char* text, double values[4]) {
    const char* at = strstr(text, "step_ms ");
    return at && sscanf(at, "step_ms measured %lf predicted %lf bubble measured %lf predicted %lf", &values[0],
                        &values[1], &values[2], &values[3]) == 4;
}

static void check_measured_picture(const char* what, const Origin* o, const Text* text, const Timeline* t,
                                   const Schedule* stages) {
    Text printed;
    FILE* out = text_open(&printed);
    SvgPicture picture;
    Error error;
    const int step = 3;
    const double length = o->zero + t->length + o->after, scale = o->scale[step - 1];
    bool ok = draw_trace("trace", text->text, text->size, step, &picture, out, &error);
    fclose(out);
    if (check(ok, "%s: %s", what, ok ? "drawn" : error.text)) {
        double got[4] = {NAN, NAN, NAN, NAN};
        Timeline whole = *t;
        whole.length = length;
        const double bubble = timeline_bubble(stages, &whole);
        read_last_line(printed.text, got);
        check_error("    measured step", fabs(got[0] / (1e3 * length) - 1), 1e-6);
        check_error("    predicted step", fabs(got[1] / (1e3 * length) - 1), 2e-6);
        check_error("    measured bubble", fabs(got[2] - bubble), 1e-5);
        check_error("    predicted bubble", fabs(got[3] - bubble), 1e-5);

        Text svg = text_of_picture(&picture);
        Read read = read_picture(svg.text);
        check(xml_is_well_formed(svg.text), "%s: well-formed", what);
        check_places(what, &read);
        check(strstr(svg.text, "; step 3<") != NULL, "%s: names the step", what);
        const int m = o->plan.m, p = o->plan.p;
        check(count_group(&read, "forward 0") == 2 * p * m, "%s: forwards in both panels", what);
        check(count_group(&read, "other 0") == p, "%s: zero gradients, where it was measured", what);
        double widest = 0; // of reductions and meetings: waiting is not drawn
        for (int i = 0; i < read.n; i++) {
            if (strcmp(read.rects[i].group, "reduce 0") == 0) widest = fmax(widest, read.rects[i].width);
        }
        check_error("    meetings, in pixels", widest, find_row(&read, 0)->width * o->tie / length);
        Timeline moved = timeline_new(stages, p); // as it was measured, with the scale of its step
        double worst = 0;
        for (int r = 0; r < p; r++) {
            moved.done[r] = t->done[r];
            for (int i = 0; i < t->done[r]; i++) {
                moved.start[r][i] = scale * (o->zero + t->start[r][i]);
                moved.end[r][i] = scale * (o->zero + t->end[r][i]);
            }
            worst = fmax(worst, distance_from(&read, 0, r, &stages[r], &moved, scale * length));
        }
        check_error("    measured boxes, in pixels", worst, 0.52);
        for (int r = 0; r < p; r++) // from this step's own times
            worst = fmax(worst, distance_from(&read, p, r, &stages[r], &moved, scale * length));
        check_error("    predicted boxes, which are the same", worst, 0.52);
        timeline_free(&moved), free(read.rects), free(svg.text);
        svg_picture_free(&picture);
    }
    free(printed.text);
}

static void test_measured_plan(ScheduleKind kind, int p, int v, int m, bool tied, bool clip) {
    const Origin o = origin_of(kind, p, v, m, tied, clip);
    char what[160];
    plan_title(what, sizeof what, &o.plan);
    Text text = origin_trace(&o);
    Schedule* stages = schedules_build(&o.plan);
    Costs costs = origin_costs(&o);
    Timeline t = schedule_times(stages, p, &costs, false);
    check_prices(what, &o, &text);
    check_measured_picture(what, &o, &text, &t, stages);
    timeline_free(&t), costs_free(&costs), schedules_free(stages, p), free(text.text);
}

static void test_planner_measured(void) {
    test_measured_plan(GPIPE, 3, 1, 5, true, true);
    test_measured_plan(ONE_F_ONE_B, 4, 1, 8, true, true);
    test_measured_plan(ONE_F_ONE_B, 2, 1, 4, true, false);
    test_measured_plan(INTERLEAVED, 2, 3, 4, false, true);
    test_measured_plan(ZB_H1, 4, 1, 6, false, false);
    test_measured_plan(ZB_V, 4, 2, 8, true, true);
    test_measured_plan(ZB_V, 2, 2, 1, true, true);
    test_measured_plan(ONE_F_ONE_B, 1, 1, 2, true, true);
    test_measured_plan(ONE_F_ONE_B, 2, 1, 1, true, true);
    test_measured_plan(ZB_H1, 1, 1, 3, true, true);
}

// A run with 1F1B, passes of 1 and 2 s: foretold for the schedules that cut these evenly, against their formulas.
static void test_other_schedules(void) {
    const int p = 4, m = 8;
    const PipelineConfig was = {ONE_F_ONE_B, p, 1, m, false, false, true};
    Schedule* stages = schedules_build(&was);
    MeasuredRun x;
    memset(&x, 0, sizeof x);
    x.stages = stages;
    Prices prices;
    memset(&prices, 0, sizeof prices);
    prices.costs = costs_equal(p, 1, 1, 1, 0), prices.before = 0.25, prices.after = 0.5;
    for (int i = 0; i < p; i++) {
        *cost_of(&prices.costs, BACKWARD_INPUT, i) = *cost_of(&prices.costs, BACKWARD_WEIGHT, i) = 0;
        *cost_of(&prices.costs, UPDATE, i) = 0.125;
    }
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        const PipelineConfig plan = {
            (ScheduleKind)kind, p, kind == INTERLEAVED || kind == ZB_V ? 2 : 1, m, false, false, true};
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
    Origin o = origin_of(ONE_F_ONE_B, 2, 1, 2, false, true);
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

// ----------------------------------------------------------------------------------------------------------------
// What is refused

// The text with the n-th `from` (from 0) replaced by `to`; NULL if there is none.
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
    const Origin o = origin_of(ZB_V, 2, 2, 4, true, true);
    const Refused cases[] = {
        {"otherData", 0, "otherDato", "\"otherData\" is missing"},
        {"traceEvents", 0, "events", "\"traceEvents\" is missing"},
        {"zb-v", 0, "zb-w", "unknown schedule \"zb-w\""},
        {"zb-v", 0, "1f1b", "has one chunk a stage"},
        {"\"v\":2", 0, "\"v\":3", "has --vp 2 chunks"},
        {"\"v\":2,", 0, "", "\"v\" is missing"},
        {"\"p\":2", 0, "\"p\":3", "stage 2 is missing"},
        {"\"p\":2", 0, "\"p\":1", "needs a pipeline"},
        {"\"p\":2", 0, "\"p\":0", "it has to be from 1"},
        {"\"p\":2", 0, "\"p\":\"2\"", "has to be an integer"},
        {"\"m\":4", 0, "\"m\":5", "is missing"},
        {"\"m\":4", 0, "\"m\":3", "does not occur in zb-v"},
        {"\"m\":4", 0, "\"m\":1000000", "but only"},
        {"\"m\":4", 0, "\"m\":1000000000000", "it has to be from 1"},
        {"\"tied\":true", 0, "\"tied\":1", "has to be a boolean"},
        {"\"clip\":true", 0, "\"clip\":false", "begins before"},
        {"rank 2: t 0 p 1 d 0", 0, "rank 2: t 0 p 0 d 0", "and so is process 0"},
        {"rank 2: t 0 p 1 d 0", 0, "rank 2", "stage 1 is missing"},
        {"chunk 0 forward 3", 2, "chunk 0 forward 2", "step 3 of stage 0: forward 2 of chunk 0 is there twice"},
        {"chunk 0 forward 3", 2, "chunk 0 sideways 3", "step 3 of stage 0: forward 3 of chunk 0 is missing"},
        {"chunk 0 forward 3", 2, "chunk 2 forward 3", "forward 3 of chunk 2 does not occur"},
        {"chunk 0 forward 3", 2, "backward 3", "backward 3 of chunk 0 does not occur"},
        {"\"name\":\"norm\"", 2, "\"name\":\"nor\"", "step 3 of stage 0: norm is missing"},
        {"\"name\":\"chunk 1 update\"", 10, "\"name\":\"x\"", "stage 1: update of chunk 1 is missing"},
        {"\"name\":\"step 4\"", 0, "\"name\":\"step 2\"", "step 2 does not follow step 3"},
        {"\"name\":\"compute\"", 0, "\"name\":\"comput\"", "is missing"},
        {"\"dur\":", 3, "\"dur\":-", "that takes -"},
        {"\"dur\":", 3, "\"dur\":1e300,\"was\":", "microseconds"},
        {"\"dur\":", 3, "\"dur\":null,\"was\":", "\"dur\" has to be"},
        {"\"ts\":", 3, "\"ts\":-9", "is missing"},
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
    int accepted = 0;
    for (size_t size = 0; size + 2 < text.size; size += 1 + size / 50) {
        const Text part = {text.text, size};
        accepted += !is_refused(&part, -1, "", &error);
    }
    check(accepted == 0, "no truncated trace is accepted: %s", error.text);
    const char* no_objects =
        "{\"traceEvents\":[1,null,[]],\"otherData\":{\"schedule\":\"1f1b\",\"p\":1,\"v\":1,\"m\":1,"
        "\"reduce_every\":false,\"tied\":true,\"clip\":true}}";
    const char* others[] = {"",        "{}", "[]", "{\"traceEvents\":[]}", "{\"traceEvents\":{},\"otherData\":{}}",
                            no_objects};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        Text other = {strdup(others[i]), strlen(others[i])};
        check(is_refused(&other, -1, "", &error), "%.40s: %s", others[i], error.text);
        free(other.text);
    }
    free(text.text);
}

// Overlapping spans lie on further threads of a track.
static void test_threads(void) {
    const Origin o = origin_of(ONE_F_ONE_B, 2, 1, 2, true, true);
    const char* names[] = {"compute", "compute 2", "compute 13", "compute 0", "compute x", "computer", "compute2"};
    Text text = origin_trace(&o);
    for (int i = 0; i < 7; i++) {
        char name[32];
        Error error;
        snprintf(name, sizeof name, "\"%s\"", names[i]);
        Text changed = replaced(&text, "\"compute\"", 0, name);
        const bool refused = is_refused(&changed, -1, "forward 0 of chunk 0 is missing", &error);
        check(refused == (i >= 3), "a thread \"%s\" is %s", names[i], refused ? "not read" : "read");
        free(changed.text);
    }
    free(text.text);
}

static void test_names(void) {
    const struct {
        const char* name;
        int kind, chunk, microbatch;
    } cases[] = {{"forward 12", FORWARD, 0, 12},
                 {"chunk 3 forward 0", FORWARD, 3, 0},
                 {"backward 7", BACKWARD, 0, 7},
                 {"backward input half 7", BACKWARD_INPUT, 0, 7},
                 {"chunk 1 backward weight half 10", BACKWARD_WEIGHT, 1, 10},
                 {"chunk 1 backward input half 999999999", BACKWARD_INPUT, 1, 999999999},
                 {"chunk 12 update", UPDATE, 12, -1},
                 {"tie", TIE, 0, -1},
                 {"zero gradients", ZERO_GRADIENTS, 0, -1},
                 {"backwards 7", NOT_TRACED, 0, 7},
                 {"forward 1234567890", NOT_TRACED, 0, -1},
                 {"chunk forward 1", NOT_TRACED, 0, -1},
                 {"for 1", NOT_TRACED, 0, 1},
                 {"", NOT_TRACED, 0, -1},
                 {"chunk 1 ", NOT_TRACED, 1, -1},
                 {" 3", NOT_TRACED, 0, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const Traced x = traced_name(cases[i].name);
        const bool same = x.kind == cases[i].kind &&
                          (x.kind == NOT_TRACED || (x.chunk == cases[i].chunk && x.microbatch == cases[i].microbatch));
        check(same, "\"%s\": kind %d, chunk %d, micro-batch %d", cases[i].name, x.kind, x.chunk, x.microbatch);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// The command line

static int run_tool(const char* line, Error* error) {
    char words[1024], name[] = "draw_schedule";
    char* argv[32] = {name};
    int argc = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char* word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    FILE* none = fopen("/dev/null", "w");
    error->text[0] = 0;
    const int status = draw_schedule(argc, argv, none, error);
    fclose(none);
    return status;
}

static void test_command_line(void) {
    const char* tmp = getenv("TMPDIR");
    char folder[200], path[256], line[1024];
    snprintf(folder, sizeof folder, "%.150s/test_draw_XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) die("cannot make a folder %s", folder);
    snprintf(path, sizeof path, "%s/x.svg", folder);
    const struct {
        const char* line;
        int status;
        const char* reason;
    } cases[] = {{"--schedule zb-v --vp 3 --out %s", 2, "--schedule zb-v has --vp 2 chunks a stage, not 3"},
                 {"--schedule interleaved --pp 4 --microbatches 7 --out %s", 2, "the nearest that work: 4 or 8"},
                 {"--schedule 1f1b --vp 2 --out %s", 2, "has one chunk a stage"},
                 {"--schedule best --out %s", 2, "best"},
                 {"--pp 0 --out %s", 2, "--pp 0: out of range"},
                 {"--forward 0 --out %s", 2, "--forward 0: out of range"},
                 {"--forward nan --out %s", 2, "out of range"},
                 {"--schedule zb-v", 2, "--out FILE.svg is missing"},
                 {"--step 3 --out %s", 2, "--step needs --trace"},
                 {"--trace x --pp 2 --out %s", 2, "--pp: the trace says that"},
                 {"--trace /nowhere/trace.json --out %s", 1, "/nowhere/trace.json: cannot open"},
                 {"--schedule zb-v --out /nowhere/x.svg", 1, "/nowhere/x.svg.part: cannot write"},
                 {"--out /dev/full", 1, "/dev/full: writing failed"},
                 {"--schedule zb-h1 --pp 1 --microbatches 1 --transfer 2.5 --out %s", 0, ""},
                 {"--schedule interleaved --pp 256 --vp 3 --microbatches 256 --forward 1e-6 --out %s", 0, ""},
                 {"--help", 0, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Error error;
        snprintf(line, sizeof line, cases[i].line, path);
        unlink(path);
        const int status = run_tool(line, &error);
        const bool there = access(path, F_OK) == 0, wanted = cases[i].status == 0 && strstr(line, path);
        check(status == cases[i].status && strstr(error.text, cases[i].reason) && there == wanted, "%s: %d %s", line,
              status, error.text);
    }
    unlink(path);
    struct rlimit before, small = {1000, RLIM_INFINITY};
    if (getrlimit(RLIMIT_FSIZE, &before) == 0) { // what is written beyond 1000 bytes fails
        small.rlim_max = before.rlim_max;
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &small);
        Error error;
        snprintf(line, sizeof line, "--out %s", path);
        const int status = run_tool(line, &error);
        setrlimit(RLIMIT_FSIZE, &before);
        char part[300];
        snprintf(part, sizeof part, "%s.part", path);
        check(status == 1 && strstr(error.text, "writing failed"), "a file that cannot grow: %s", error.text);
        check(access(path, F_OK) != 0 && access(part, F_OK) != 0, "no half file is left");
    }
    const Origin o = origin_of(ZB_V, 2, 2, 4, true, true);
    Text text = origin_trace(&o);
    char trace[256];
    Error error;
    snprintf(trace, sizeof trace, "%s/trace.json", folder);
    FILE* out = fopen(trace, "w");
    check(out && fwrite(text.text, 1, text.size, out) == text.size && fclose(out) == 0, "a trace in a file");
    snprintf(line, sizeof line, "--trace %s --step 2 --out %s", trace, path);
    check(run_tool(line, &error) == 0 && access(path, F_OK) == 0, "drawn from the file %s", error.text);
    unlink(path);
    snprintf(line, sizeof line, "--trace %s --step 9 --out %s", trace, path);
    check(run_tool(line, &error) == 1 && access(path, F_OK) != 0, "%s", error.text);
    snprintf(line, sizeof line, "--trace %s", trace);
    check(run_tool(line, &error) == 0, "a table without a picture");
    unlink(trace), free(text.text);
    check(rmdir(folder) == 0, "nothing else was left in the folder");
}

// ----------------------------------------------------------------------------------------------------------------
// Mutations: accepted with a sound picture, or refused with a reason. Under the sanitizers this finds what reads or
// computes out of bounds.

static uint64_t draw_random(uint64_t round, uint64_t* index, uint64_t below) {
    return philox(7, round, (*index)++).word[0] % below;
}

// A copy of a trace with one to three changes.
static Text mutated(const Text* text, uint64_t round) {
    static const char* numbers[] = {"0",          "1",   "-1",   "2",    "1e300", "1e-300", "999999999",
                                    "4294967296", "0.5", "null", "true", "\"x\"", "[]",     "{}"};
    Text out = {(char*)checked_malloc(2 * text->size + 256, "a mutation"), text->size};
    uint64_t index = 0;
    memcpy(out.text, text->text, text->size + 1);
    for (uint64_t changes = 1 + draw_random(round, &index, 3); changes > 0 && out.size > 0; changes--) {
        char* at = out.text + draw_random(round, &index, out.size);
        if (draw_random(round, &index, 8) == 0)
            at = out.text + out.size - 1 - draw_random(round, &index, 140) % out.size;
        char* line_end = strchr(at, '\n');
        const uint64_t how = draw_random(round, &index, 6);
        if (how == 0) *at = (char)(32 + draw_random(round, &index, 95));
        if (how == 1 && (at = strpbrk(at, "0123456789"))) *at = (char)('0' + draw_random(round, &index, 10));
        if (how == 2 && line_end && strchr(line_end + 1, '\n')) { // a line less
            const char* next = strchr(line_end + 1, '\n');
            memmove(line_end, next, strlen(next) + 1);
        }
        if (how == 3 && line_end && strchr(line_end + 1, '\n') && out.size < 2 * text->size - 256) { // a line twice
            const char* next = strchr(line_end + 1, '\n');
            const size_t n = (size_t)(next - line_end);
            memmove(line_end + n, line_end, strlen(line_end) + 1);
        }
        if (how == 4 && (at = strchr(at, ':'))) { // another value
            const char* value = numbers[draw_random(round, &index, sizeof numbers / sizeof numbers[0])];
            const size_t old = strcspn(at + 1, ",}"), n = strlen(value);
            memmove(at + 1 + n, at + 1 + old, strlen(at + 1 + old) + 1);
            memcpy(at + 1, value, n);
        }
        if (how == 5 && draw_random(round, &index, 8) == 0) *at = 0;
        out.size = strlen(out.text);
    }
    return out;
}

static void test_mutations(void) {
    int accepted = 0, refused = 0, wrong = 0;
    const Origin origins[] = {origin_of(ONE_F_ONE_B, 2, 1, 2, true, true), origin_of(ZB_H1, 1, 1, 2, false, false)};
    Text texts[] = {origin_trace(&origins[0]), origin_trace(&origins[1])};
    for (uint64_t round = 0; round < 3000; round++) {
        Text text = mutated(&texts[round % 2], round), printed;
        FILE* out = text_open(&printed);
        SvgPicture picture;
        Error error = {""};
        const bool ok = draw_trace("some.json", text.text, text.size, -1, &picture, out, &error);
        fclose(out);
        if (ok) {
            Text svg = text_of_picture(&picture);
            double values[4];
            const bool sound = xml_is_well_formed(svg.text) && !strstr(svg.text, "nan") && !strstr(svg.text, "inf") &&
                               read_last_line(printed.text, values) && isfinite(values[0] + values[1]) &&
                               isfinite(values[2] + values[3]);
            if (!sound && wrong++ == 0) printf("round %d: an unsound picture\n", (int)round);
            free(svg.text);
            svg_picture_free(&picture);
        } else if (strncmp(error.text, "some.json", 9) != 0 && wrong++ == 0) {
            printf("round %d: %s\n", (int)round, error.text);
        }
        accepted += ok, refused += !ok;
        free(text.text), free(printed.text);
    }
    check(wrong == 0 && accepted > 100 && refused > 1000, "mutated traces: %d accepted, %d refused, %d wrong", accepted,
          refused, wrong);
    free(texts[0].text), free(texts[1].text);
}

int main(void) {
    process.name = "test_draw";
    test_xml();
    test_ticks();
    test_writer();
    test_predicted();
    test_numbers();
    test_small_numbers();
    test_threads();
    test_names();
    test_planner_measured();
    test_steps();
    test_other_schedules();
    test_refused();
    test_command_line();
    test_mutations();
    return test_end();
}
