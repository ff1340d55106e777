/*
trace_run.h: reads a run's trace in the order of the tables that it executed, measures its actions, and predicts its
steps.

    run_trace_read    the trace; fails where it does not fit the tables
    measure           costs of a step from the trace; summarize: medians of the run

Theory:

    costs        seconds of each kind of action on each virtual stage, mean of a step, without waiting for messages. At
                 TIE and NORM stages wait for each other: the cost is that of the stage that comes last
    transfer     from the end of the action that makes a message to the start of the one that uses it, where the
                 receiver had nothing else to do: mean of those messages. The other messages are hidden
    overhead     time of a step outside the table: from its start on the stage that is at work first, and to its
                 end on the stage that is at work last
    prediction   schedule_times at these costs, and the overhead
    step time    of a step: the longest of its stages
    bubble       idle time / computing time over a whole step, as parallel/schedule.h has it: everything that is neither
                 forward nor backward pass is idle

Every step is predicted from its own costs; of a run the medians over all steps but the first are reported (in the first
memory is touched, caches and branch predictors learn). So the error shows what is not in the tables and in a step's
mean times: how much times vary from one micro-batch to the next, cores and networks that stages share, starts and ends
of steps that are not the same for all stages.
*/
#pragma once

#include "../../util/json.h"
#include "../../parallel/schedule_time.h"
#include "../../util/trace.h"
#include "../../planner/median.h"

// ---- Reading a trace: names -------------------------------------------------------------------------------------

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

// ---- Reading a trace: the file ----------------------------------------------------------------------------------

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
    PipelineConfig plan;
    int t, d;          // ranks of the tensor and the data groups
    StageTrace* stage; // (p)
} RunTrace;

static inline void run_trace_free(RunTrace* run) {
    if (!run->stage) return;
    for (int r = 0; r < run->plan.p; r++) {
        free(run->stage[r].actions);
        free(run->stage[r].step);
    }
    free(run->stage);
    run->stage = NULL;
}

// otherData, against the number of events in the file, so that nothing larger than the file is built from it.
static inline bool trace_plan(RunTrace* run, const Json* json, int64_t events, Error* error) {
    PipelineConfig* plan = &run->plan;
    const JsonNode* node = json_require(json, json->nodes, "otherData", JSON_OBJECT, error);
    const char* name = NULL;
    int64_t t = 0, d = 0, p = 0, v = 0, m = 0;
    int kind = 0;
    if (!node || !json_get_string(&name, json, node, "schedule", error) ||
        !json_get_integer(&t, json, node, "t", 1, 1 << 20, error) ||
        !json_get_integer(&d, json, node, "d", 1, 1 << 20, error) ||
        !json_get_integer(&p, json, node, "p", 1, 1 << 20, error) ||
        !json_get_integer(&v, json, node, "v", 1, 1 << 20, error) ||
        !json_get_integer(&m, json, node, "m", 1, 1 << 20, error) ||
        !json_get_bool(&plan->reduce_every, json, node, "reduce_every", error) ||
        !json_get_bool(&plan->tied, json, node, "tied", error))
        return false;
    while (kind < SCHEDULE_KINDS && strcmp(name, schedule_name((ScheduleKind)kind)) != 0) kind++;
    if (kind == SCHEDULE_KINDS) return json_fail(json, node, error, "unknown schedule %s", json_quoted(name).text);
    if (p * v * m > events)
        return json_fail(json, node, error,
                         "%lld stages of %lld chunks with %lld micro-batches, but only %lld events in the file",
                         (long long)p, (long long)v, (long long)m, (long long)events);
    plan->kind = (ScheduleKind)kind;
    run->t = (int)t;
    run->d = (int)d;
    plan->p = (int)p;
    plan->v = (int)v;
    plan->m = (int)m;
    Error why;
    return pipeline_config_check(plan, RECOMPUTE_NONE, &why) || json_fail(json, node, error, "%s", why.text);
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
        x.start = 1e-6 * ts;
        x.end = 1e-6 * (ts + dur);
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
    bool ok = events && trace_plan(run, &json, events->count, error);
    if (ok) {
        run->stage = (StageTrace*)checked_calloc((size_t)run->plan.p, sizeof(StageTrace), "the trace");
        for (int r = 0; r < run->plan.p; r++) run->stage[r].pid = -1;
        ok = trace_collect(run, &json, events, error);
    }
    json_free(&json);
    if (!ok) run_trace_free(run);
    return ok;
}

// ---- Steps: what was traced, in the order of the tables ---------------------------------------------------------

// One step of all stages, in seconds from the start of the first stage's.
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
} MeasuredRun;

static inline int* action_place(const MeasuredRun* x, int r, int kind, int chunk, int microbatch) {
    const PipelineConfig* plan = &x->stages[0].config;
    return &x->place[r][(kind * plan->v + (int)max_i64(chunk, 0)) * (plan->m + 1) + microbatch + 1];
}

static inline void measured_run_begin(MeasuredRun* x, const Schedule* stages) {
    const PipelineConfig* plan = &stages[0].config;
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

static inline void measured_run_free(MeasuredRun* x) {
    for (int i = 0; i < x->n; i++) timeline_free(&x->step[i].times), free(x->step[i].begin);
    for (int r = 0; r < x->stages[0].config.p; r++) free(x->place[r]);
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
static inline bool step_take(MeasuredStep* step, const MeasuredRun* x, const RunTrace* run, int r, const Traced* from,
                             const Traced* to, double zero, Error* error) {
    const PipelineConfig* plan = &run->plan;
    const Schedule* s = &x->stages[r];
    double *start = step->times.start[r], *end = step->times.end[r];
    char text[80];
    for (int i = 0; i < s->n; i++) start[i] = end[i] = NAN;
    for (const Traced* a = from; a < to; a++) {
        if (a->kind == ZERO_GRADIENTS) {
            step->zeroed[r] = a->start - zero;
            step->until[r] = a->end - zero;
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
        start[i] = a->start - zero;
        end[i] = a->end - zero;
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
static inline bool step_measure(MeasuredStep* step, const MeasuredRun* x, const RunTrace* run, int64_t number,
                                Error* error) {
    const int p = run->plan.p;
    double zero = INFINITY;
    step->number = number;
    step->times = timeline_new(x->stages, p);
    step->begin = (double*)checked_malloc(4 * (size_t)p * sizeof(double), "the trace");
    step->finish = step->begin + p;
    step->zeroed = step->begin + 2 * p;
    step->until = step->begin + 3 * p;
    for (int r = 0; r < p; r++) zero = fmin(zero, stage_find_step(&run->stage[r], number)->start);
    for (int r = 0; r < p; r++) {
        const StageTrace* s = &run->stage[r];
        const TracedStep* span = stage_find_step(s, number);
        step->begin[r] = step->zeroed[r] = step->until[r] = span->start - zero;
        step->finish[r] = span->end - zero;
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
static inline bool measure(MeasuredRun* x, const RunTrace* run, Error* error) {
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

// ---- Costs ------------------------------------------------------------------------------------------------------

typedef struct {
    int n, capacity;
    double* values;
} Sample;

static inline void sample_add(Sample* s, double value) {
    if (s->n == s->capacity)
        s->values = (double*)checked_grow(s->values, &s->capacity, 64, sizeof(double), "measured values");
    s->values[s->n++] = value;
}

// The median of the sample, which is empty afterwards; 0 if it was.
static inline double sample_take_median(Sample* s) {
    const double median = s->n ? median_of(s->values, s->n) : 0;
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
static inline double price_of(const MeasuredRun* x, Steps steps, Sample* sample, int r, ActionKind kind, int chunk) {
    const bool computes = action_computes(kind);
    for (int n = steps.first; n < steps.end; n++) {
        const Timeline* t = &x->step[n].times;
        for (int k = computes ? 0 : -1; k < (computes ? x->stages[r].config.m : 0); k++) {
            const int i = *action_place(x, r, kind, chunk, k);
            if (i >= 0) sample_add(sample, t->end[r][i] - t->start[r][i]);
        }
    }
    return sample_take_mean(sample);
}

// Of TIE or NORM: the shortest of the stages in a step.
static inline double price_of_meeting(const MeasuredRun* x, Steps steps, Sample* sample, ActionKind kind) {
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
static inline void add_transfers(Sample* sample, const MeasuredRun* x, const MeasuredStep* step, int r) {
    const Schedule* s = &x->stages[r];
    const Timeline* t = &step->times;
    double idle_since = step->until[r];
    for (int i = 0; i < s->n; i++) {
        const Action a = s->actions[i];
        if (action_transfers(a.kind)) continue;
        const ActionKind receive = action_receive(s, a);
        if (receive != ACTION_KINDS && schedule_peer(s, receive, a.chunk) != r) {
            const int other = transfer_other_end(s, receive, a.chunk), peer = schedule_peer(s, receive, a.chunk);
            const int maker = *action_place(x, peer, a.kind, other / s->config.p, a.microbatch);
            const double made = t->end[peer][maker];
            if (idle_since <= made) sample_add(sample, t->start[r][i] - made);
        }
        idle_since = t->end[r][i];
    }
}

// What a step takes before the first action of all and after the last one, on the stages that these are on.
static inline void step_overhead(const MeasuredRun* x, const MeasuredStep* step, double* before, double* after) {
    double first = INFINITY, last = -INFINITY;
    for (int r = 0; r < step->times.p; r++) {
        const int n = x->stages[r].n;
        int i = 0;
        while (action_transfers(x->stages[r].actions[i].kind)) i++;
        const double start = step->times.start[r][i], end = step->times.end[r][n - 1];
        if (start < first) {
            first = start;
            *before = start - step->begin[r];
        }
        if (end > last) {
            last = end;
            *after = step->finish[r] - end;
        }
    }
}

static inline Prices measured_prices(const MeasuredRun* x, Steps steps) {
    const PipelineConfig* plan = &x->stages[0].config;
    Sample sample = {0, 0, NULL}, after = {0, 0, NULL};
    Prices prices = {};
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
        *cost_of(&prices.costs, TIE, number) = prices.tie;
        *cost_of(&prices.costs, NORM, number) = prices.norm;
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
    prices.before = sample_take_mean(&sample);
    prices.after = sample_take_mean(&after);
    free(sample.values), free(after.values);
    return prices;
}

// The timeline of the tables at these prices, with the overhead before and after it.
static inline Timeline predicted_step(const Schedule* stages, const Prices* prices) {
    Timeline t = schedule_times(stages, stages[0].config.p, &prices->costs, false);
    for (int r = 0; r < t.p; r++) {
        for (int i = 0; i < t.done[r]; i++) {
            t.start[r][i] += prices->before;
            t.end[r][i] += prices->before;
        }
    }
    t.length += prices->before + prices->after;
    return t;
}

// The prediction of step number n from its own prices.
static inline Timeline predicted_from_itself(const MeasuredRun* x, int n) {
    const Steps one = {n, n + 1};
    Prices prices = measured_prices(x, one);
    const Timeline t = predicted_step(x->stages, &prices);
    costs_free(&prices.costs);
    return t;
}

// What a step would take with another schedule at these prices: the mean of the stages, cut evenly into chunks, and
// whole backward passes into halves.
static inline Timeline predicted_with(const MeasuredRun* x, const Prices* prices, const Schedule* others) {
    const PipelineConfig *was = &x->stages[0].config, *plan = &others[0].config;
    double sum[ACTION_KINDS] = {0};
    for (int kind = 0; kind < ACTION_KINDS; kind++) {
        for (int i = 0; i < was->p * was->v; i++) sum[kind] += *cost_of(&prices->costs, (ActionKind)kind, i);
        sum[kind] /= was->p * plan->v;
    }
    const double input = sum[BACKWARD] / 2 + sum[BACKWARD_INPUT], weight = sum[BACKWARD] / 2 + sum[BACKWARD_WEIGHT];
    Prices equal = *prices;
    equal.costs = costs_equal(plan->p * plan->v, sum[FORWARD], input, weight, prices->transfer);
    for (int i = 0; i < plan->p * plan->v; i++) {
        *cost_of(&equal.costs, REDUCE, i) = sum[REDUCE];
        *cost_of(&equal.costs, NORM, i) = prices->norm;
        *cost_of(&equal.costs, UPDATE, i) = sum[UPDATE] + sum[UPDATE_TIED];
        *cost_of(&equal.costs, TIE, i) = prices->tie;
    }
    const Timeline t = predicted_step(others, &equal);
    costs_free(&equal.costs);
    return t;
}

// Medians over all steps but the first: time of a step and bubble, measured and predicted.
typedef struct {
    double step, predicted, bubble, predicted_bubble;
} Summary;

static inline Summary summarize(const MeasuredRun* x) {
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
