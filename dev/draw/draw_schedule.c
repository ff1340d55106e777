/*
draw_schedule.c: pipeline schedules as figures, from the same tables that the trainer executes.

    draw_schedule --schedule zb-v --pp 4 --vp 2 --microbatches 8 --out zb-v.svg
    draw_schedule --trace trace.json --out run.svg

The first draws the timeline of the tables at given costs. The second lays what a run did in one of its steps beside
what the tables predict at the costs that were measured, on one time scale, and prints the numbers.

    costs        what the trace says each kind of action took on each virtual stage, mean of a step. Waiting for messages
                 is not in it, but at TIE and NORM stages wait for each other: the one that comes last shows what the
                 meeting itself takes
    transfer     from the end of the action that makes a message to the begin of the one that uses it, where the
                 receiver had nothing else to do: mean of those messages. The other messages are hidden
    overhead     what a step takes outside of the table: from its begin on the stage that is at work first, and to its
                 end on the stage that is at work last
    prediction   schedule_times at these costs, and the overhead
    step time    of a step: the longest of its stages
    bubble       idle time / computing time over a whole step, as schedule.h has it: everything that is neither forward
                 nor backward pass is idle

Every step is predicted from its own costs; of a run the medians over all steps but the first are told (in that one
memory is touched, caches and branch predictors learn). So the error says what the tables and a step's mean times do not
know: how much times vary from one micro-batch to the next, cores and networks that stages share, starts and ends of
steps that are not the same for all stages.
*/
#include "../../json.h"
#include "../../options.h"
#include "../../schedule.h"
#include "../../trace.h"
#include "svg_timeline.h"

typedef struct {
    const char *trace, *out;
    int kind;
    int64_t p, v, m, step;
    double forward, input, weight, transfer;
    bool help;
} DrawOptions;

static inline DrawOptions draw_options_default(void) {
    DrawOptions o;
    memset(&o, 0, sizeof o);
    o.kind = ONE_F_ONE_B, o.p = 4, o.m = 8, o.step = -1;
    o.forward = o.input = o.weight = 1;
    return o;
}

enum { DRAW_OPTIONS = 16, DRAW_PREDICTED = 10 }; // rows of the table; the first ones belong to predicted pictures

static inline int draw_table(Option* table, DrawOptions* o) {
    const Option rows[] = {
        option_heading("a schedule at given costs"),
        option_choice("schedule", &o->kind, "gpipe|1f1b|interleaved|zb-h1|zb-v", ""),
        option_int("pp", &o->p, 1, 256, "stages"),
        option_int("vp", &o->v, 1, 32, "chunks of each stage [what the schedule needs]"),
        option_int("microbatches", &o->m, 1, 1024, "in a step"),
        option_float("forward", &o->forward, 1e-6, 1e6, "what a forward pass of a chunk takes"),
        option_float("input", &o->input, 0, 1e6, "what the input half of a backward pass takes"),
        option_float("weight", &o->weight, 0, 1e6, "what the weight half takes"),
        option_float("transfer", &o->transfer, 0, 1e6, "how long a message is on its way"),
        option_heading("a run, measured and predicted"),
        option_string("trace", &o->trace, "FILE", "that train_gpt --trace has written"),
        option_int("step", &o->step, 0, 1e15, "which one to draw [the one that is nearest to the median]"),
        option_heading("both"),
        option_string("out", &o->out, "FILE.svg", "the picture"),
        option_flag("help", &o->help, "this list"),
    };
    const int n = (int)(sizeof rows / sizeof rows[0]);
    memcpy(table, rows, sizeof rows);
    return n;
}

// ----------------------------------------------------------------------------------------------------------------
// From tables to pictures

static inline SvgKind picture_kind(ActionKind kind) {
    switch (kind) {
    case FORWARD: return SVG_FORWARD;
    case BACKWARD: return SVG_BACKWARD;
    case BACKWARD_INPUT: return SVG_INPUT;
    case BACKWARD_WEIGHT: return SVG_WEIGHT;
    case REDUCE:
    case TIE:
    case NORM: return SVG_REDUCE;
    case UPDATE:
    case UPDATE_TIED: return SVG_UPDATE;
    default: return SVG_OTHER;
    }
}

// The timeline of all stages as a panel. scale: units of the picture in a second.
static inline void draw_panel(SvgPicture* picture, const char* title, const char* caption, const Schedule* stages,
                              const Timeline* t, double scale) {
    SvgPanel* panel = svg_add_panel(picture, title, caption, t->p);
    for (int r = 0; r < t->p; r++) {
        snprintf(panel->labels[r].text, sizeof panel->labels[r].text, "stage %d", r);
        for (int i = 0; i < t->done[r]; i++) {
            const Action a = stages[r].actions[i];
            const SvgBox box = {r,
                                scale * t->start[r][i],
                                scale * t->end[r][i],
                                picture_kind(a.kind),
                                0,
                                action_computes(a.kind) ? a.microbatch : -1};
            if (action_transfers(a.kind)) continue;
            svg_add_box(panel, box);
            panel->boxes[panel->n - 1].chunk = (int)max_i64(a.chunk, 0);
        }
    }
}

// "zb-v: 4 stages of 2 chunks, 8 micro-batches"
static inline void plan_title(char* text, size_t size, const Pipeline* plan) {
    char chunks[32] = "";
    if (plan->v > 1) snprintf(chunks, sizeof chunks, " of %d chunks", plan->v);
    snprintf(text, size, "%s: %d stage%s%s, %d micro-batch%s", schedule_name(plan->kind), plan->p,
             plan->p == 1 ? "" : "s", chunks, plan->m, plan->m == 1 ? "" : "es");
}

// The file is there as a whole or not at all: a regular file gets its name when it is complete.
static inline bool write_picture(const SvgPicture* picture, const char* path, Error* error) {
    struct stat st;
    const bool special = stat(path, &st) == 0 && !S_ISREG(st.st_mode);
    const size_t size = strlen(path) + 8;
    char* name = (char*)checked_malloc(size, "a file's name");
    snprintf(name, size, "%s%s", path, special ? "" : ".part");
    FILE* out = fopen(name, "w");
    bool ok = out != NULL;
    if (!ok) fail(error, "%s: cannot write: %s", name, strerror(errno));
    if (out) {
        ok = svg_write(out, picture);
        ok = fclose(out) == 0 && ok;
        ok = ok && (special || rename(name, path) == 0);
        if (!ok) fail(error, "%s: writing failed: %s", path, strerror(errno));
        if (!ok && !special) unlink(name);
    }
    free(name);
    return ok;
}

static inline int most_slots(const Schedule* stages, int p) {
    int most = 0;
    for (int r = 0; r < p; r++) most = (int)max_i64(most, stages[r].slots);
    return most;
}

static inline SvgPicture predicted_picture(const Pipeline* plan, const DrawOptions* o) {
    char title[128], caption[320], backward[64], transfer[64] = "";
    Schedule* stages = schedules_build(plan);
    Costs costs = costs_equal(plan->p * plan->v, o->forward, o->input, o->weight, o->transfer);
    Timeline t = schedule_times(stages, plan->p, &costs, false);
    if (schedule_splits_backward(plan->kind))
        snprintf(backward, sizeof backward, "%g + %g", o->input, o->weight);
    else
        snprintf(backward, sizeof backward, "%g", o->input + o->weight);
    if (o->transfer > 0) snprintf(transfer, sizeof transfer, ", message %g", o->transfer);
    plan_title(title, sizeof title, plan);
    snprintf(caption, sizeof caption,
             "bubble %.4g %%: idle / computing time; step %.6g, forward pass%s %g, backward pass %s%s; "
             "activations of %g micro-batches",
             100 * timeline_bubble(stages, &t), t.length, plan->v > 1 ? " of a chunk" : "", o->forward, backward,
             transfer, (double)most_slots(stages, plan->p) / plan->v);
    SvgPicture picture = svg_picture(title, "time", t.length, plan->v);
    draw_panel(&picture, "", caption, stages, &t, 1);
    timeline_free(&t);
    costs_free(&costs);
    schedules_free(stages, plan->p);
    return picture;
}

static inline int draw_predicted(const DrawOptions* o, Error* error) {
    const int needs = o->kind == INTERLEAVED || o->kind == ZB_V ? 2 : 1;
    const Pipeline plan = {(ScheduleKind)o->kind, (int)o->p, o->v ? (int)o->v : needs, (int)o->m, false, false, false};
    if (!pipeline_check(&plan, error)) return EXIT_ARGUMENTS;
    if (!o->out) return fail(error, "--out FILE.svg is missing: where the picture goes"), EXIT_ARGUMENTS;
    SvgPicture picture = predicted_picture(&plan, o);
    const bool ok = write_picture(&picture, o->out, error);
    svg_picture_free(&picture);
    return ok ? 0 : EXIT_RUN;
}

// ----------------------------------------------------------------------------------------------------------------
// Reading a trace: names

enum { ZERO_GRADIENTS = ACTION_KINDS, TRACED_KINDS, NOT_TRACED = -1 }; // beside the kinds of actions

// An action in the trace.
typedef struct {
    int kind, chunk, microbatch; // as in Action; also ZERO_GRADIENTS; NOT_TRACED: something else
    double start, end;           // seconds
} Traced;

// A number of at most nine digits at *at; moves on behind it.
static inline bool read_digits(const char** at, int* value) {
    const size_t n = strspn(*at, "0123456789");
    if (n == 0 || n > 9) return false;
    *value = (int)strtol(*at, NULL, 10);
    *at += n;
    return true;
}

// "chunk 1 backward input half 7": kind, chunk and micro-batch.
static inline Traced traced_name(const char* name) {
    Traced x = {NOT_TRACED, 0, -1, 0, 0};
    const char* at = name;
    if (strncmp(at, "chunk ", 6) == 0) {
        at += 6;
        if (!read_digits(&at, &x.chunk) || *at++ != ' ') return x;
    }
    size_t n = strlen(at);
    const char* space = strrchr(at, ' ');
    if (space && space[1] >= '0' && space[1] <= '9') {
        const char* digits = space + 1;
        if (!read_digits(&digits, &x.microbatch) || *digits) return x;
        n = (size_t)(space - at);
    }
    for (int kind = 0; kind < TRACED_KINDS && x.kind == NOT_TRACED; kind++) {
        const char* word = kind == ZERO_GRADIENTS ? "zero gradients" : action_name((ActionKind)kind);
        const bool traced = !action_transfers((ActionKind)kind);
        if (traced && strlen(word) == n && memcmp(at, word, n) == 0) x.kind = kind;
    }
    return x;
}

// ----------------------------------------------------------------------------------------------------------------
// Reading a trace: the file

typedef struct {
    int64_t number;
    double start, end; // seconds
} TracedStep;

// What one stage did, in the order of time.
typedef struct {
    int64_t pid; // -1: not found
    int n, steps;
    Traced* actions;  // (n)
    TracedStep* step; // (steps)
} StageTrace;

typedef struct {
    const char* path;
    Pipeline plan;
    StageTrace* stage; // (p)
} RunTrace;

static inline void run_trace_free(RunTrace* run) {
    for (int r = 0; r < run->plan.p && run->stage; r++) free(run->stage[r].actions), free(run->stage[r].step);
    free(run->stage);
    run->stage = NULL;
}

// otherData, against the number of events in the file, so that nothing larger than the file is built from it.
static inline bool trace_plan(Pipeline* plan, const Json* json, int64_t events, Error* error) {
    const JsonNode* node = json_require(json, json->nodes, "otherData", JSON_OBJECT, error);
    const char* name = NULL;
    int64_t p = 0, v = 0, m = 0;
    int kind = 0;
    if (!node || !json_get_string(&name, json, node, "schedule", error) ||
        !json_get_integer(&p, json, node, "p", 1, 1 << 20, error) ||
        !json_get_integer(&v, json, node, "v", 1, 1 << 20, error) ||
        !json_get_integer(&m, json, node, "m", 1, 1 << 20, error) ||
        !json_get_bool(&plan->reduce_every, json, node, "reduce_every", error) ||
        !json_get_bool(&plan->tied, json, node, "tied", error) ||
        !json_get_bool(&plan->clip, json, node, "clip", error))
        return false;
    while (kind < SCHEDULE_KINDS && strcmp(name, schedule_name((ScheduleKind)kind)) != 0) kind++;
    if (kind == SCHEDULE_KINDS) return json_fail(json, node, error, "unknown schedule %s", json_quoted(name).text);
    if (p * v * m > events)
        return json_fail(json, node, error,
                         "%lld stages of %lld chunks with %lld micro-batches, but only %lld events in the file",
                         (long long)p, (long long)v, (long long)m, (long long)events);
    plan->kind = (ScheduleKind)kind, plan->p = (int)p, plan->v = (int)v, plan->m = (int)m;
    Error why;
    return pipeline_check(plan, &why) || json_fail(json, node, error, "%s", why.text);
}

// The string at object.args.name, "" where there is none.
static inline const char* metadata_name(const JsonNode* event) {
    const JsonNode* args = json_get(event, "args");
    const JsonNode* name = args ? json_get(args, "name") : NULL;
    return name && json_is_plain_string(name) ? name->value.string : "";
}

static inline bool member_is(const JsonNode* event, const char* key, const char* value) {
    const JsonNode* node = json_get(event, key);
    return node && json_is_plain_string(node) && strcmp(node->value.string, value) == 0;
}

// Processes by name, "rank 3: t 1 p 0 d 1": those with t = d = 0 are the stages.
static inline bool trace_find_stages(RunTrace* run, const Json* json, const JsonNode* events, Error* error) {
    for (const JsonNode* e = json_first(events); e; e = json_next(e)) {
        int rank, t, p, d;
        int64_t pid = 0;
        if (!member_is(e, "ph", "M") || !member_is(e, "name", "process_name")) continue;
        if (!json_get_integer(&pid, json, e, "pid", 0, INT32_MAX, error)) return false;
        if (sscanf(metadata_name(e), "rank %9d: t %9d p %9d d %9d", &rank, &t, &p, &d) != 4) continue;
        if (t != 0 || d != 0) continue;
        if (p < 0 || p >= run->plan.p)
            return json_fail(json, e, error, "%s is stage %d, but \"otherData\" has p = %d stages",
                             json_quoted(metadata_name(e)).text, p, run->plan.p);
        if (run->stage[p].pid >= 0)
            return json_fail(json, e, error, "%s is stage %d, and so is process %lld",
                             json_quoted(metadata_name(e)).text, p, (long long)run->stage[p].pid);
        run->stage[p].pid = pid;
    }
    for (int r = 0; r < run->plan.p; r++) {
        if (run->stage[r].pid < 0)
            return fail(error, "%s: stage %d is missing: no process \"rank N: t 0 p %d d 0\"", run->path, r, r);
    }
    return true;
}

typedef struct {
    int64_t pid, tid;
    int stage;
    bool step; // its spans are steps, not actions
} Thread;

static inline int compare_threads(const void* left, const void* right) {
    const Thread *a = (const Thread*)left, *b = (const Thread*)right;
    if (a->pid != b->pid) return a->pid < b->pid ? -1 : 1;
    return a->tid < b->tid ? -1 : a->tid > b->tid;
}

// "compute", "compute 2", ...
static inline bool is_track(const char* name, const char* track) {
    const size_t n = strlen(track);
    return strncmp(name, track, n) == 0 &&
           (name[n] == 0 || (name[n] == ' ' && name[n + 1] > '0' && name[n + 1] <= '9'));
}

// The threads of the stages with actions and with steps, sorted. Returns NULL and an error, or an array for free().
static inline Thread* trace_find_threads(int* n, const RunTrace* run, const Json* json, const JsonNode* events,
                                         Error* error) {
    Thread* threads = (Thread*)checked_malloc(events->count * sizeof(Thread), "the trace");
    *n = 0;
    for (const JsonNode* e = json_first(events); e; e = json_next(e)) {
        Thread x = {0, 0, 0, false};
        if (!member_is(e, "ph", "M") || !member_is(e, "name", "thread_name")) continue;
        if (!json_get_integer(&x.pid, json, e, "pid", 0, INT32_MAX, error) ||
            !json_get_integer(&x.tid, json, e, "tid", 0, INT32_MAX, error)) {
            free(threads);
            return NULL;
        }
        while (x.stage < run->plan.p && run->stage[x.stage].pid != x.pid) x.stage++;
        x.step = is_track(metadata_name(e), "step");
        if (x.stage < run->plan.p && (x.step || is_track(metadata_name(e), "compute"))) threads[(*n)++] = x;
    }
    qsort(threads, (size_t)*n, sizeof *threads, compare_threads);
    for (int i = 1; i < *n; i++) {
        if (compare_threads(&threads[i - 1], &threads[i]) != 0) continue;
        fail(error, "%s: thread %lld of process %lld has two names", run->path, (long long)threads[i].tid,
             (long long)threads[i].pid);
        free(threads);
        return NULL;
    }
    return threads;
}

// A complete event of one of these threads: onto its stage's list.
static inline bool trace_add_event(RunTrace* run, const Json* json, const JsonNode* e, const Thread* threads, int n,
                                   Error* error) {
    const double most = 1e15; // microseconds, 30 years
    Thread key = {0, 0, 0, false};
    const char* name = NULL;
    double ts = 0, dur = 0;
    if (!json_get_integer(&key.pid, json, e, "pid", INT32_MIN, INT32_MAX, error) ||
        !json_get_integer(&key.tid, json, e, "tid", INT32_MIN, INT32_MAX, error))
        return false;
    const Thread* thread = (const Thread*)bsearch(&key, threads, (size_t)n, sizeof key, compare_threads);
    if (!thread) return true;
    if (!json_get_string(&name, json, e, "name", error) || !json_get_number(&ts, json, e, "ts", error) ||
        !json_get_number(&dur, json, e, "dur", error))
        return false;
    if (!(fabs(ts) <= most && dur >= 0 && dur <= most))
        return json_fail(json, e, error, "an event at %g that takes %g microseconds", ts, dur);
    StageTrace* stage = &run->stage[thread->stage];
    if (thread->step) {
        const char* digits = name + (strncmp(name, "step ", 5) == 0 ? 5 : 0);
        int number;
        if (digits == name || !read_digits(&digits, &number) || *digits) return true;
        const TracedStep step = {number, 1e-6 * ts, 1e-6 * (ts + dur)};
        stage->step[stage->steps++] = step;
    } else {
        Traced x = traced_name(name);
        x.start = 1e-6 * ts, x.end = 1e-6 * (ts + dur);
        if (x.kind != NOT_TRACED) stage->actions[stage->n++] = x;
    }
    return true;
}

static inline int compare_traced(const void* left, const void* right) {
    const Traced *a = (const Traced*)left, *b = (const Traced*)right;
    if (a->start != b->start) return a->start < b->start ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end;
}

static inline int compare_steps(const void* left, const void* right) {
    const TracedStep *a = (const TracedStep*)left, *b = (const TracedStep*)right;
    return a->start < b->start ? -1 : a->start > b->start;
}

// Room for a stage's events: as many as its process has.
static inline void trace_make_room(RunTrace* run, const JsonNode* events) {
    for (int r = 0; r < run->plan.p; r++) {
        size_t n = 0;
        for (const JsonNode* e = json_first(events); e; e = json_next(e)) {
            const JsonNode* pid = json_get(e, "pid");
            n += pid && pid->type == JSON_INTEGER && pid->value.integer == run->stage[r].pid;
        }
        run->stage[r].actions = (Traced*)checked_malloc(n * sizeof(Traced), "the trace");
        run->stage[r].step = (TracedStep*)checked_malloc(n * sizeof(TracedStep), "the trace");
    }
}

static inline bool trace_collect(RunTrace* run, const Json* json, const JsonNode* events, Error* error) {
    int n = 0;
    if (!trace_find_stages(run, json, events, error)) return false;
    trace_make_room(run, events);
    Thread* threads = trace_find_threads(&n, run, json, events, error);
    bool ok = threads != NULL;
    for (const JsonNode* e = json_first(events); e && ok; e = json_next(e))
        ok = !member_is(e, "ph", "X") || trace_add_event(run, json, e, threads, n, error);
    free(threads);
    for (int r = 0; r < run->plan.p && ok; r++) {
        StageTrace* s = &run->stage[r];
        qsort(s->actions, (size_t)s->n, sizeof *s->actions, compare_traced);
        qsort(s->step, (size_t)s->steps, sizeof *s->step, compare_steps);
        for (int i = 1; i < s->steps && ok; i++) {
            if (s->step[i].number <= s->step[i - 1].number || s->step[i].start < s->step[i - 1].end - 1e-8)
                ok = fail(error, "%s: stage %d: step %lld does not follow step %lld", run->path, r,
                          (long long)s->step[i].number, (long long)s->step[i - 1].number);
        }
    }
    return ok;
}

// Reads the trace; `path` is what errors call it. On failure nothing has to be freed.
static inline bool run_trace_read(RunTrace* run, const char* path, const void* text, size_t size, Error* error) {
    Json json;
    memset(run, 0, sizeof *run);
    run->path = path;
    if (!json_parse(&json, path, text, size, error)) return false;
    const JsonNode* events = json_require(&json, json.nodes, "traceEvents", JSON_ARRAY, error);
    bool ok = events && trace_plan(&run->plan, &json, events->count, error);
    if (ok) {
        run->stage = (StageTrace*)checked_calloc((size_t)run->plan.p, sizeof(StageTrace), "the trace");
        for (int r = 0; r < run->plan.p; r++) run->stage[r].pid = -1;
        ok = trace_collect(run, &json, events, error);
    }
    json_free(&json);
    if (!ok) run_trace_free(run);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------------
// Steps: what was traced, in the order of the tables

// One step of all stages, in seconds from the begin of the first stage's.
typedef struct {
    int64_t number;
    Timeline times;         // length: of the longest of the stages
    double *begin, *finish; // (p) of the step
    double *zeroed, *until; // (p) "zero gradients": when it began and ended
} MeasuredStep;

typedef struct {
    const Schedule* stages;
    int** place; // (p, kinds, v, m) where an action stands in its table; -1: nowhere
    int n;
    MeasuredStep* step; // (n) all that every stage has
} Measured;

static inline int* action_place(const Measured* x, int r, int kind, int chunk, int microbatch) {
    const Pipeline* plan = &x->stages[0].plan;
    return &x->place[r][(kind * plan->v + (int)max_i64(chunk, 0)) * (plan->m + 1) + microbatch + 1];
}

static inline void measured_begin(Measured* x, const Schedule* stages) {
    const Pipeline* plan = &stages[0].plan;
    const size_t size = (size_t)ACTION_KINDS * (size_t)plan->v * ((size_t)plan->m + 1);
    memset(x, 0, sizeof *x);
    x->stages = stages;
    x->place = (int**)checked_malloc((size_t)plan->p * sizeof(int*), "the trace");
    for (int r = 0; r < plan->p; r++) {
        x->place[r] = (int*)checked_malloc(size * sizeof(int), "the trace");
        for (size_t i = 0; i < size; i++) x->place[r][i] = -1;
        for (int i = 0; i < stages[r].n; i++) {
            const Action a = stages[r].actions[i];
            *action_place(x, r, a.kind, a.chunk, a.microbatch) = i;
        }
    }
}

static inline void measured_free(Measured* x) {
    for (int i = 0; i < x->n; i++) timeline_free(&x->step[i].times), free(x->step[i].begin);
    for (int r = 0; r < x->stages[0].plan.p; r++) free(x->place[r]);
    free(x->step), free(x->place);
    memset(x, 0, sizeof *x);
}

__attribute__((format(printf, 5, 6))) static inline bool step_refuse(const RunTrace* run, int64_t step, int r,
                                                                     Error* error, const char* format, ...) {
    char reason[512];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return fail(error, "%s: step %lld of stage %d: %s", run->path, (long long)step, r, reason);
}

// "forward 3 of chunk 1"
static inline const char* traced_label(char text[80], int kind, int chunk, int microbatch) {
    char number[16] = "", of[24] = "";
    if (microbatch >= 0) snprintf(number, sizeof number, " %d", microbatch);
    if (chunk >= 0) snprintf(of, sizeof of, " of chunk %d", chunk);
    snprintf(text, 80, "%s%s%s", action_name((ActionKind)kind), number, of);
    return text;
}

// Fills in what stage r did in one of its steps, a span [from, to) of its actions.
static inline bool step_take(MeasuredStep* step, const Measured* x, const RunTrace* run, int r, const Traced* from,
                             const Traced* to, double zero, Error* error) {
    const Pipeline* plan = &run->plan;
    const Schedule* s = &x->stages[r];
    double *start = step->times.start[r], *end = step->times.end[r];
    char text[80];
    for (int i = 0; i < s->n; i++) start[i] = end[i] = NAN;
    for (const Traced* a = from; a < to; a++) {
        if (a->kind == ZERO_GRADIENTS) {
            step->zeroed[r] = a->start - zero, step->until[r] = a->end - zero;
            continue;
        }
        const bool inside = a->chunk < plan->v && a->microbatch < plan->m;
        const int i = inside ? *action_place(x, r, a->kind, a->chunk, a->microbatch) : -1;
        if (i < 0)
            return step_refuse(run, step->number, r, error, "%s does not occur in %s with %d chunks, %d micro-batches",
                               traced_label(text, a->kind, a->chunk, a->microbatch), schedule_name(plan->kind), plan->v,
                               plan->m);
        if (!isnan(start[i]))
            return step_refuse(run, step->number, r, error, "%s is there twice",
                               traced_label(text, a->kind, a->chunk, a->microbatch));
        start[i] = a->start - zero, end[i] = a->end - zero;
    }
    double now = step->until[r];
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        if (action_transfers(a.kind)) start[i] = end[i] = now;
        if (isnan(start[i]))
            return step_refuse(run, step->number, r, error, "%s is missing",
                               traced_label(text, a.kind, a.chunk, a.microbatch));
        if (start[i] < now - 1e-8)
            return step_refuse(run, step->number, r, error, "%s begins before what precedes it in the table has ended",
                               traced_label(text, a.kind, a.chunk, a.microbatch));
        now = end[i];
    }
    step->times.done[r] = s->n;
    return true;
}

// The step of this number on a stage, or NULL.
static inline const TracedStep* stage_find_step(const StageTrace* s, int64_t number) {
    for (int low = 0, high = s->steps; low < high;) {
        const int middle = low + (high - low) / 2;
        if (s->step[middle].number == number) return &s->step[middle];
        if (s->step[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

// The first action of a stage that begins at this time or later.
static inline const Traced* stage_find_action(const StageTrace* s, double time) {
    int low = 0, high = s->n;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (s->actions[middle].start < time)
            low = middle + 1;
        else
            high = middle;
    }
    return s->actions + low;
}

// Step `number`, which all stages have.
static inline bool step_measure(MeasuredStep* step, const Measured* x, const RunTrace* run, int64_t number,
                                Error* error) {
    const int p = run->plan.p;
    double zero = INFINITY;
    step->number = number;
    step->times = timeline_new(x->stages, p);
    step->begin = (double*)checked_malloc(4 * (size_t)p * sizeof(double), "the trace");
    step->finish = step->begin + p, step->zeroed = step->begin + 2 * p, step->until = step->begin + 3 * p;
    for (int r = 0; r < p; r++) zero = fmin(zero, stage_find_step(&run->stage[r], number)->start);
    for (int r = 0; r < p; r++) {
        const StageTrace* s = &run->stage[r];
        const TracedStep* span = stage_find_step(s, number);
        step->begin[r] = step->zeroed[r] = step->until[r] = span->start - zero, step->finish[r] = span->end - zero;
        step->times.length = fmax(step->times.length, span->end - span->start);
        // Times in the file are rounded: an action may seem to begin a little before its step.
        const Traced *from = stage_find_action(s, span->start - 2e-9), *to = stage_find_action(s, span->end);
        if (!step_take(step, x, run, r, from, to, zero, error)) return false;
        const double last = step->times.end[r][x->stages[r].n - 1];
        if (last > step->finish[r] + 1e-8) return step_refuse(run, number, r, error, "ends before its last action");
        step->finish[r] = fmax(step->finish[r], last);
    }
    const double bubble = timeline_bubble(x->stages, &step->times);
    if (!(step->times.length >= 1e-9) || !isfinite(bubble))
        return fail(error, "%s: step %lld takes no time", run->path, (long long)number);
    return true;
}

// All steps that every stage has (a rank whose trace was full lacks the last ones).
static inline bool measure(Measured* x, const RunTrace* run, Error* error) {
    const StageTrace* first = &run->stage[0];
    x->step = (MeasuredStep*)checked_calloc((size_t)first->steps, sizeof(MeasuredStep), "the trace");
    for (int i = 0; i < first->steps; i++) {
        const int64_t number = first->step[i].number;
        bool all = true;
        for (int r = 0; r < run->plan.p && all; r++) all = stage_find_step(&run->stage[r], number) != NULL;
        if (all && !step_measure(&x->step[x->n++], x, run, number, error)) return false;
    }
    if (x->n < 2)
        return fail(error, "%s: %d steps that all stages have; at least two are needed, since the first is not counted",
                    run->path, x->n);
    return true;
}

// ----------------------------------------------------------------------------------------------------------------
// Costs

typedef struct {
    int n, capacity;
    double* values;
} Sample;

static inline void sample_add(Sample* s, double value) {
    if (s->n == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 64;
        double* more = (double*)realloc(s->values, (size_t)s->capacity * sizeof(double));
        if (!more) die("out of memory: %d measured values", s->capacity);
        s->values = more;
    }
    s->values[s->n++] = value;
}

static inline int compare_doubles(const void* left, const void* right) {
    const double a = *(const double*)left, b = *(const double*)right;
    return a < b ? -1 : a > b;
}

// The median of the sample, which is empty afterwards; 0 if it was.
static inline double sample_take_median(Sample* s) {
    if (s->n == 0) return 0;
    qsort(s->values, (size_t)s->n, sizeof(double), compare_doubles);
    const double median = (s->values[(s->n - 1) / 2] + s->values[s->n / 2]) / 2;
    s->n = 0;
    return median;
}

// The mean, likewise.
static inline double sample_take_mean(Sample* s) {
    double sum = 0;
    for (int i = 0; i < s->n; i++) sum += s->values[i];
    const double mean = s->n ? sum / s->n : 0;
    s->n = 0;
    return mean;
}

// Some of the measured steps.
typedef struct {
    int first, end;
} Steps;

// What the tables are priced with, in seconds: means of some steps.
typedef struct {
    Costs costs;
    double transfer, tie, norm;
    int messages;         // from which the transfer time comes
    double before, after; // overhead of a step
} Prices;

// Of one kind on one virtual stage, over all micro-batches.
static inline double price_of(const Measured* x, Steps steps, Sample* sample, int r, ActionKind kind, int chunk) {
    const bool computes = action_computes(kind);
    for (int n = steps.first; n < steps.end; n++) {
        const Timeline* t = &x->step[n].times;
        for (int k = computes ? 0 : -1; k < (computes ? x->stages[r].plan.m : 0); k++) {
            const int i = *action_place(x, r, kind, chunk, k);
            if (i >= 0) sample_add(sample, t->end[r][i] - t->start[r][i]);
        }
    }
    return sample_take_mean(sample);
}

// Of TIE or NORM: the shortest of the stages in a step.
static inline double price_of_meeting(const Measured* x, Steps steps, Sample* sample, ActionKind kind) {
    for (int n = steps.first; n < steps.end; n++) {
        const Timeline* t = &x->step[n].times;
        double shortest = INFINITY;
        for (int r = 0; r < t->p; r++) {
            const int i = *action_place(x, r, kind, -1, -1);
            if (i >= 0) shortest = fmin(shortest, t->end[r][i] - t->start[r][i]);
        }
        if (shortest < INFINITY) sample_add(sample, shortest);
    }
    return sample_take_mean(sample);
}

// The messages that stage r waited for in one step: how long each one took.
static inline void add_transfers(Sample* sample, const Measured* x, const MeasuredStep* step, int r) {
    const Schedule* s = &x->stages[r];
    const Timeline* t = &step->times;
    double idle_since = step->until[r];
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        if (action_transfers(a.kind)) continue;
        const ActionKind receive = action_receive(s, a);
        if (receive != ACTION_KINDS && schedule_peer(s, receive, a.chunk) != r) {
            const int other = transfer_other_end(s, receive, a.chunk), peer = schedule_peer(s, receive, a.chunk);
            const int maker = *action_place(x, peer, a.kind, other / s->plan.p, a.microbatch);
            const double made = t->end[peer][maker];
            if (idle_since <= made) sample_add(sample, t->start[r][i] - made);
        }
        idle_since = t->end[r][i];
    }
}

// What a step takes before the first action of all and after the last one, on the stages that these are on.
static inline void step_overhead(const Measured* x, const MeasuredStep* step, double* before, double* after) {
    double first = INFINITY, last = -INFINITY;
    for (int r = 0; r < step->times.p; r++) {
        const int n = x->stages[r].n;
        int i = 0;
        while (action_transfers(x->stages[r].actions[i].kind)) i++;
        const double start = step->times.start[r][i], end = step->times.end[r][n - 1];
        if (start < first) first = start, *before = start - step->begin[r];
        if (end > last) last = end, *after = step->finish[r] - end;
    }
}

static inline Prices measured_prices(const Measured* x, Steps steps) {
    const Pipeline* plan = &x->stages[0].plan;
    Sample sample = {0, 0, NULL}, after = {0, 0, NULL};
    Prices prices;
    memset(&prices, 0, sizeof prices);
    prices.costs = costs_equal(plan->p * plan->v, 0, 0, 0, 0);
    prices.tie = price_of_meeting(x, steps, &sample, TIE);
    prices.norm = price_of_meeting(x, steps, &sample, NORM);
    for (int n = steps.first; n < steps.end; n++) {
        for (int r = 0; r < plan->p; r++) add_transfers(&sample, x, &x->step[n], r);
    }
    prices.messages = sample.n;
    prices.transfer = fmax(0, sample_take_mean(&sample));
    for (int number = 0; number < plan->p * plan->v; number++) {
        const int r = pipeline_holder(plan, number), chunk = number / plan->p;
        const ActionKind own[] = {FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, REDUCE, UPDATE, UPDATE_TIED};
        for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
            *cost_of(&prices.costs, own[i], number) = price_of(x, steps, &sample, r, own[i], chunk);
        *cost_of(&prices.costs, TIE, number) = prices.tie, *cost_of(&prices.costs, NORM, number) = prices.norm;
        const bool to_itself_forward = number + 1 < plan->p * plan->v && pipeline_holder(plan, number + 1) == r;
        const bool to_itself_backward = number > 0 && pipeline_holder(plan, number - 1) == r;
        *cost_of(&prices.costs, SEND_FORWARD, number) = to_itself_forward ? 0 : prices.transfer;
        *cost_of(&prices.costs, SEND_BACKWARD, number) = to_itself_backward ? 0 : prices.transfer;
    }
    for (int n = steps.first; n < steps.end; n++) {
        double begins = 0, ends = 0;
        step_overhead(x, &x->step[n], &begins, &ends);
        sample_add(&sample, begins), sample_add(&after, ends);
    }
    prices.before = sample_take_mean(&sample), prices.after = sample_take_mean(&after);
    free(sample.values), free(after.values);
    return prices;
}

// The timeline of the tables at these prices, with the overhead before and after it.
static inline Timeline predicted_step(const Schedule* stages, const Prices* prices) {
    Timeline t = schedule_times(stages, stages[0].plan.p, &prices->costs, false);
    for (int r = 0; r < t.p; r++) {
        for (int i = 0; i < t.done[r]; i++) t.start[r][i] += prices->before, t.end[r][i] += prices->before;
    }
    t.length += prices->before + prices->after;
    return t;
}

// The prediction of step number n from its own prices.
static inline Timeline predicted_from_itself(const Measured* x, int n) {
    const Steps one = {n, n + 1};
    Prices prices = measured_prices(x, one);
    const Timeline t = predicted_step(x->stages, &prices);
    costs_free(&prices.costs);
    return t;
}

// Medians over all steps but the first: time of a step and bubble, measured and predicted.
typedef struct {
    double step, predicted, bubble, predicted_bubble;
} Summary;

static inline Summary summarize(const Measured* x) {
    Sample sample[4];
    memset(sample, 0, sizeof sample);
    for (int n = 1; n < x->n; n++) {
        Timeline predicted = predicted_from_itself(x, n);
        sample_add(&sample[0], x->step[n].times.length), sample_add(&sample[1], predicted.length);
        sample_add(&sample[2], timeline_bubble(x->stages, &x->step[n].times));
        sample_add(&sample[3], timeline_bubble(x->stages, &predicted));
        timeline_free(&predicted);
    }
    const Summary summary = {sample_take_median(&sample[0]), sample_take_median(&sample[1]),
                             sample_take_median(&sample[2]), sample_take_median(&sample[3])};
    for (int i = 0; i < 4; i++) free(sample[i].values);
    return summary;
}

// ----------------------------------------------------------------------------------------------------------------
// What is printed and drawn

static inline void print_cost(FILE* out, double seconds) {
    if (seconds > 0)
        fprintf(out, " %12.3f", 1e3 * seconds);
    else
        fprintf(out, " %12s", "-");
}

static inline void print_measured(FILE* out, const Measured* x, const Prices* prices, const Summary* run) {
    const Pipeline* plan = &x->stages[0].plan;
    const ActionKind kinds[] = {FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, REDUCE, UPDATE};
    char title[128];
    plan_title(title, sizeof title, plan);
    fprintf(out, "%s; means of steps %lld to %lld in ms\n\n", title, (long long)x->step[1].number,
            (long long)x->step[x->n - 1].number);
    fprintf(out, "stage chunk      forward     backward   input half  weight half       reduce       update\n");
    for (int r = 0; r < plan->p; r++) {
        for (int c = 0; c < plan->v; c++) {
            const int number = schedule_virtual_stage(&x->stages[r], c);
            fprintf(out, "%5d %5d", r, c);
            for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
                print_cost(out, *cost_of(&prices->costs, kinds[i], number));
            fprintf(out, "\n");
        }
    }
    fprintf(out,
            "\ntransfer %.3f (%d messages that were waited for)   tie %.3f   norm %.3f   outside of the table %.3f\n",
            1e3 * prices->transfer, prices->messages, 1e3 * prices->tie, 1e3 * prices->norm,
            1e3 * (prices->before + prices->after));
    fprintf(out, "step     measured %9.3f   predicted %9.3f   error %+.2f %%   medians\n", 1e3 * run->step,
            1e3 * run->predicted, 100 * (run->predicted / run->step - 1));
    fprintf(out, "bubble   measured %7.2f %%   predicted %7.2f %%   idle / computing time\n", 100 * run->bubble,
            100 * run->predicted_bubble);
    fprintf(out, "step_ms measured %.6f predicted %.6f bubble measured %.6f predicted %.6f\n", 1e3 * run->step,
            1e3 * run->predicted, run->bubble, run->predicted_bubble);
}

// The times of a step as they are drawn. What a stage waits for at TIE and NORM is idle: the actions begin when the last
// stage has come.
static inline void step_without_meetings(const Measured* x, MeasuredStep* step) {
    const ActionKind kinds[] = {TIE, NORM};
    for (int i = 0; i < 2; i++) {
        double last = 0;
        for (int r = 0; r < step->times.p; r++) {
            const int at = *action_place(x, r, kinds[i], -1, -1);
            if (at >= 0) last = fmax(last, step->times.start[r][at]);
        }
        for (int r = 0; r < step->times.p; r++) {
            const int at = *action_place(x, r, kinds[i], -1, -1);
            if (at >= 0) step->times.start[r][at] = fmin(last, step->times.end[r][at]);
        }
    }
}

static inline SvgPicture measured_picture(const Measured* x, MeasuredStep* step, const Timeline* predicted) {
    char title[160], caption[320], plan[128];
    double length = predicted->length;
    plan_title(plan, sizeof plan, &x->stages[0].plan);
    snprintf(title, sizeof title, "%s; step %lld", plan, (long long)step->number);
    for (int r = 0; r < step->times.p; r++) length = fmax(length, step->finish[r]);
    SvgPicture picture = svg_picture(title, "time (ms)", 1e3 * length, x->stages[0].plan.v);
    snprintf(caption, sizeof caption, "step %.4g ms, bubble %.1f %%: idle / computing time", 1e3 * step->times.length,
             100 * timeline_bubble(x->stages, &step->times));
    step_without_meetings(x, step);
    draw_panel(&picture, "measured", caption, x->stages, &step->times, 1e3);
    for (int r = 0; r < step->times.p; r++) {
        const SvgBox zero = {r, 1e3 * step->zeroed[r], 1e3 * step->until[r], SVG_OTHER, 0, -1};
        svg_add_box(&picture.panel[0], zero);
    }
    snprintf(caption, sizeof caption, "step %.4g ms, bubble %.1f %%", 1e3 * predicted->length,
             100 * timeline_bubble(x->stages, predicted));
    draw_panel(&picture, "predicted by the tables, from the mean times of this step", caption, x->stages, predicted,
               1e3);
    return picture;
}

// Which step was asked for, or is the nearest to the median; -1: it is not there.
static inline int choose_step(const Measured* x, int64_t number, double median) {
    int best = number < 0 ? 1 : -1;
    for (int i = 0; i < x->n; i++) {
        if (x->step[i].number == number) return i;
        const double off = fabs(x->step[i].times.length - median);
        if (number < 0 && i > 0 && off < fabs(x->step[best].times.length - median)) best = i;
    }
    return best;
}

// Prints the table of a run and, where picture is not NULL, puts one of its steps into *picture.
static inline bool draw_run(const RunTrace* run, Measured* x, int64_t number, SvgPicture* picture, FILE* out,
                            Error* error) {
    if (!measure(x, run, error)) return false;
    const Summary summary = summarize(x);
    const int n = choose_step(x, number, summary.step);
    if (n < 0)
        return fail(error, "%s: --step %lld is not there; it has steps %lld to %lld", run->path, (long long)number,
                    (long long)x->step[0].number, (long long)x->step[x->n - 1].number);
    const Steps all = {1, x->n};
    Prices prices = measured_prices(x, all);
    print_measured(out, x, &prices, &summary);
    costs_free(&prices.costs);
    if (!picture) return true;
    Timeline predicted = predicted_from_itself(x, n);
    *picture = measured_picture(x, &x->step[n], &predicted);
    timeline_free(&predicted);
    return true;
}

// The same from the text of a trace, which errors call `path`. *picture is for svg_picture_free where that went well.
static inline bool draw_trace(const char* path, const void* text, size_t size, int64_t step, SvgPicture* picture,
                              FILE* out, Error* error) {
    RunTrace run;
    if (!run_trace_read(&run, path, text, size, error)) return false;
    Schedule* stages = schedules_build(&run.plan);
    Measured measured;
    measured_begin(&measured, stages);
    const bool ok = draw_run(&run, &measured, step, picture, out, error);
    measured_free(&measured);
    schedules_free(stages, run.plan.p);
    run_trace_free(&run);
    return ok;
}

static inline int draw_measured(const DrawOptions* o, FILE* out, Error* error) {
    MappedFile file;
    SvgPicture picture;
    if (!file_map(&file, o->trace, error)) return EXIT_RUN;
    bool ok = draw_trace(o->trace, file.data, file.size, o->step, o->out ? &picture : NULL, out, error);
    file_unmap(&file);
    if (ok && o->out) {
        ok = write_picture(&picture, o->out, error);
        svg_picture_free(&picture);
    }
    if (ok && (fflush(out) != 0 || ferror(out))) ok = fail(error, "writing the table failed: %s", strerror(errno));
    return ok ? 0 : EXIT_RUN;
}

// ----------------------------------------------------------------------------------------------------------------

// The program: prints to out and returns its exit status, with an error if that is not 0.
static inline int draw_schedule(int argc, char** argv, FILE* out, Error* error) {
    DrawOptions o = draw_options_default();
    Option table[DRAW_OPTIONS];
    const int n = draw_table(table, &o);
    if (!options_parse(table, n, argc, argv, error)) return EXIT_ARGUMENTS;
    if (o.help) {
        fprintf(out, "draw_schedule draws pipeline schedules, and runs of them, as SVG.\n");
        options_help(table, n, out);
        return 0;
    }
    for (int i = 0; i < DRAW_PREDICTED && o.trace; i++) {
        if (table[i].given) return fail(error, "--%s: the trace says that itself", table[i].name), EXIT_ARGUMENTS;
    }
    if (o.step >= 0 && !o.trace) return fail(error, "--step needs --trace FILE"), EXIT_ARGUMENTS;
    return o.trace ? draw_measured(&o, out, error) : draw_predicted(&o, error);
}

#ifndef DRAW_SCHEDULE_NO_MAIN
int main(int argc, char** argv) {
    process.name = "draw_schedule";
    Error error;
    const int status = draw_schedule(argc, argv, stdout, &error);
    if (status == EXIT_ARGUMENTS) die_usage("%s", error.text);
    if (status != 0) die("%s", error.text);
    return 0;
}
#endif
