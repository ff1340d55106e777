/*
Tests of util/trace.h. Files are written to memory and read back with util/json.h. What has to hold of every file is
checked by brute force over all pairs of its events, beside the spans that were recorded: every span is there once, at
its time, on the first thread of its track that is free then.
*/
#include "test.h"
#include "../../../util/trace.h"

// One rank's part of a file.
typedef struct {
    int rank;
    const char* label;
    const TraceSpan* spans;
    int64_t n, dropped;
    double zero;
} Part;

// ---- A file, read back ------------------------------------------------------------------------------------------

typedef struct {
    char name[64];
    int64_t rank, thread;
    int64_t start, end; // nanoseconds; as they stand in the file: multiples of a nanosecond
    double ts;          // microseconds
} Event;

enum { MAX_EVENTS = 4096 };
typedef struct {
    int ranks, threads, events;
    Event rank[16], thread[MAX_EVENTS], event[MAX_EVENTS]; // in the order of the file
    bool sort_indices;                                     // each is the rank's, or the thread's, number
} Read;

static double number(const Json* json, const JsonNode* object, const char* key) {
    double value = NAN;
    Error error;
    if (!json_get_number(&value, json, object, key, &error)) die("test_trace: %s", error.text);
    return value;
}

static const char* string(const Json* json, const JsonNode* object, const char* key) {
    const char* value = NULL;
    Error error;
    if (!json_get_string(&value, json, object, key, &error)) die("test_trace: %s", error.text);
    return value;
}

static void read_metadata(Read* read, const Json* json, const JsonNode* node, Event event) {
    const char* kind = string(json, node, "name");
    const JsonNode* args = json_get(node, "args");
    const bool thread = strncmp(kind, "thread_", 7) == 0;
    if (strcmp(kind, thread ? "thread_sort_index" : "process_sort_index") == 0) {
        const double index = number(json, args, "sort_index");
        read->sort_indices &= index == (double)(thread ? event.thread : event.rank);
        return;
    }
    if (strcmp(kind, thread ? "thread_name" : "process_name") != 0) die("test_trace: unknown metadata %s", kind);
    snprintf(event.name, sizeof event.name, "%s", string(json, args, "name"));
    if (thread)
        read->thread[read->threads++] = event;
    else
        read->rank[read->ranks++] = event;
}

// The ranks' parts as a file in memory, read back; to be freed.
static Read* read_parts(const Part* parts, int count) {
    Read* read = (Read*)checked_calloc(1, sizeof(Read), "a test");
    char* text = NULL;
    size_t size = 0;
    Json json;
    Error error;
    FILE* out = open_memstream(&text, &size);
    if (!out) die("test_trace: no memory for a file");
    trace_begin_file(out);
    for (int i = 0; i < count; i++) {
        const Part* p = &parts[i];
        trace_write_rank(out, p->rank, p->label, p->spans, p->n, p->dropped, p->zero);
    }
    const bool ok = trace_end_file(out, "{}");
    if (fclose(out) != 0 || !ok) die("test_trace: writing to memory failed");
    if (!json_parse(&json, "the trace", text, size, &error)) die("test_trace: %s", error.text);
    free(text);
    read->sort_indices = true;
    const JsonNode* events = json_get(&json.nodes[0], "traceEvents");
    if (!events || events->type != JSON_ARRAY) die("test_trace: there is no array traceEvents");
    for (const JsonNode* node = json_first(events); node; node = json_next(node)) {
        Event event = {"", (int64_t)number(&json, node, "pid"), (int64_t)number(&json, node, "tid"), 0, 0, 0};
        const char* phase = string(&json, node, "ph");
        if (strcmp(phase, "M") == 0) {
            read_metadata(read, &json, node, event);
            continue;
        }
        if (strcmp(phase, "X") != 0) die("test_trace: unknown phase %s", phase);
        if (read->events == MAX_EVENTS) die("test_trace: more than %d events", MAX_EVENTS);
        event.ts = number(&json, node, "ts");
        event.start = llround(event.ts * 1e3);
        event.end = event.start + llround(number(&json, node, "dur") * 1e3);
        snprintf(event.name, sizeof event.name, "%s", string(&json, node, "name"));
        read->event[read->events++] = event;
    }
    json_free(&json);
    return read;
}

static const char* thread_name(const Read* read, int64_t rank, int64_t thread) {
    for (int i = 0; i < read->threads; i++)
        if (read->thread[i].rank == rank && read->thread[i].thread == thread) return read->thread[i].name;
    return "";
}

// The event is on a thread of this track: "tensor", "tensor 2", ...
static bool on_track(const Read* read, const Event* event, const char* track) {
    const char* name = thread_name(read, event->rank, event->thread);
    const size_t n = strlen(track);
    return strncmp(name, track, n) == 0 && (name[n] == 0 || name[n] == ' ');
}

static bool same_place(const Event* a, const Event* b) { return a->rank == b->rank && a->thread == b->thread; }

static bool overlap(const Event* a, const Event* b) { return a->start < b->end && b->start < a->end; }

// ---- What holds of every file -----------------------------------------------------------------------------------

// On each thread one after the other, also in the file: some viewers need it.
static bool events_are_in_order(const Read* read) {
    for (int i = 0; i < read->events; i++) {
        for (int j = 0; j < i; j++) {
            const Event *a = &read->event[j], *b = &read->event[i];
            if (same_place(a, b) && (overlap(a, b) || a->start > b->start)) return false;
        }
    }
    return true;
}

// Every event that is not on its track's first thread overlaps, on each thread of the track below its own, one that
// comes before it in the file.
static bool threads_are_needed(const Read* read) {
    for (int i = 0; i < read->events; i++) {
        const Event* b = &read->event[i];
        const char *name = thread_name(read, b->rank, b->thread), *space = strchr(name, ' ');
        const int64_t below = space ? atoi(space + 1) - 1 : 0;
        for (int64_t thread = b->thread - below; thread < b->thread; thread++) {
            bool busy = false;
            for (int j = 0; j < i; j++) {
                const Event* a = &read->event[j];
                busy |= a->rank == b->rank && a->thread == thread && overlap(a, b);
            }
            if (!busy) return false;
        }
    }
    return true;
}

// A rank's threads are numbered from 0 in the order of the file, with "compute" first, each track's together and named
// "tensor", "tensor 2", ..., and each has an event.
static bool threads_are_named(const Read* read) {
    int64_t next[16] = {0};
    char expected[64] = "";
    for (int i = 0; i < read->threads; i++) {
        const Event* thread = &read->thread[i];
        bool used = false, known = false;
        for (int j = 0; j < read->events; j++) used |= same_place(&read->event[j], thread);
        for (int j = 0; j < i; j++)
            known |= read->thread[j].rank == thread->rank && !strcmp(read->thread[j].name, thread->name);
        if (!used || known || thread->thread != next[thread->rank]++) return false;
        if (strcmp(thread->name, "compute") == 0 && thread->thread != 0) return false;
        if (strchr(thread->name, ' ') && strcmp(thread->name, expected) != 0) return false;
        const char* space = strchr(thread->name, ' ');
        const int length = space ? (int)(space - thread->name) : (int)strlen(thread->name);
        snprintf(expected, sizeof expected, "%.*s %d", length, thread->name, space ? atoi(space + 1) + 1 : 2);
    }
    return true;
}

// The event of this span: of those not taken yet the nearest, *error nanoseconds away at begin or end; -1: none.
static int event_of_span(const Read* read, const bool* taken, const Part* part, const TraceSpan* span, double* error) {
    char name[64];
    snprintf(name, sizeof name, span->number < 0 ? "%s" : "%s %d", span->name, span->number);
    const long double start = ((long double)span->start - part->zero) * 1e9L;
    const long double end = ((long double)span->end - part->zero) * 1e9L;
    int nearest = -1;
    *error = INFINITY;
    for (int j = 0; j < read->events; j++) {
        const Event* e = &read->event[j];
        const long double at_start = fabsl((long double)e->ts * 1e3L - start),
                          at_end = fabsl((long double)e->end - end);
        const double away = (double)fmaxl(at_start, at_end);
        if (away < *error && !taken[j] && e->rank == part->rank && strcmp(e->name, name) == 0 &&
            on_track(read, e, span->track)) {
            nearest = j;
            *error = away;
        }
    }
    return nearest;
}

// Every span is there as one event, and there are no other events. *worst: the largest error of a begin or an end, in
// nanoseconds.
static bool spans_are_there(const Read* read, const Part* parts, int count, double* worst) {
    bool taken[MAX_EVENTS] = {false}, all = true;
    int64_t total = 0;
    for (int p = 0; p < count; p++) {
        total += parts[p].n;
        for (int64_t i = 0; i < parts[p].n; i++) {
            double error;
            const int j = event_of_span(read, taken, &parts[p], &parts[p].spans[i], &error);
            if (j >= 0) taken[j] = true;
            all = all && j >= 0;
            *worst = fmax(*worst, error);
        }
    }
    return all && total == read->events;
}

// The file, read back; to be freed.
static Read* check_file(const char* what, const Part* parts, int count) {
    Read* read = read_parts(parts, count);
    double worst = 0;
    check(spans_are_there(read, parts, count, &worst), "%s: every span once, %d events", what, read->events);
    // Half a nanosecond for rounding; with times to 1e3 s from zero the differences of float64, the product with 1e9
    // and the number in the file are off by 2^-53 * 1e12 ns each.
    check(worst <= 0.5 + 3 * 0x1p-53 * 1e12, "%s: times, error %.6f ns  bound %.6f ns", what, worst,
          0.5 + 3 * 0x1p-53 * 1e12);
    check(events_are_in_order(read), "%s: events are apart, and in order", what);
    check(threads_are_needed(read), "%s: each on the first thread that is free, %d threads", what, read->threads);
    check(threads_are_named(read) && read->sort_indices, "%s: threads are named and numbered", what);
    bool labels = read->ranks == count;
    for (int p = 0; p < count && labels; p++)
        labels = read->rank[p].rank == parts[p].rank &&
                 strncmp(read->rank[p].name, parts[p].label, strlen(parts[p].label)) == 0;
    check(labels, "%s: each rank has its label", what);
    return read;
}

// ---- Files ------------------------------------------------------------------------------------------------------

// n spans of four tracks within `length` ns; whole nanoseconds if `whole`, so that many begins and ends are equal.
static Trace random_trace(int n, uint64_t stream, double zero, double length, bool whole) {
    const char *tracks[] = {"tensor", "compute", "pipeline", "comp"}, *names[] = {"forward", "backward", "send"};
    Trace trace;
    trace_init(&trace, n);
    trace.zero = zero;
    for (int i = 0; i < n; i++) {
        const Random4 r = philox(5, stream, (uint64_t)i);
        double start = length * random_uniform(6, stream, (uint64_t)(2 * i)) - length / 8;
        double span = random_uniform(6, stream, (uint64_t)(2 * i + 1));
        span = length * span * span * span * span;
        start = whole ? floor(start) : start;
        span = whole ? floor(span) : span;
        trace_span(&trace, tracks[r.word[0] % 4], names[r.word[1] % 3], (int)(r.word[2] % 5) - 1, zero + 1e-9 * start,
                   zero + 1e-9 * (start + span));
    }
    return trace;
}

static void test_random(int n, double length, bool whole) {
    enum { RANKS = 3 };
    const char* labels[RANKS] = {"rank 2: t 0 p 1 d 0", "rank 0: t 0 p 0 d 0", "rank 11: t 1 p 1 d 2"};
    const int numbers[RANKS] = {2, 0, 11};
    Trace traces[RANKS];
    Part parts[RANKS];
    for (int r = 0; r < RANKS; r++) {
        traces[r] = random_trace(n * r, (uint64_t)(n + r), r * 12345.678, length, whole); // the first rank has none
        const Part part = {numbers[r], labels[r], traces[r].spans, traces[r].n, 0, traces[r].zero};
        parts[r] = part;
    }
    char what[64];
    snprintf(what, sizeof what, "%d random spans within %g ns%s", 3 * n, length, whole ? ", whole ns" : "");
    free(check_file(what, parts, RANKS));
    for (int r = 0; r < RANKS; r++) trace_free(&traces[r]);
}

// Threads of 20 spans of milliseconds on one track.
static void test_threads(void) {
    static const struct {
        const char* what;
        double start, start_step, end, end_step; // span i is [start + i start_step, end + i end_step)
        int threads;
    } cases[] = {{"one after the other", 0, 1, 0.9, 1, 1},
                 {"end to end", 0.1, 0.1, 0.2, 0.1, 1},
                 {"one in the other", 0, 1, 50, -1, 20},
                 {"begins shared", 0, 0, 1, 1, 20},
                 {"all equal", 1, 0, 2, 0, 20},
                 {"empty spans", 1, 0.5, 1, 0.5, 1},
                 {"each overlaps all others", 0, 1, 30, 1, 20},
                 {"three on the way at any time", 0, 1, 2.9, 1, 3}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Trace trace;
        trace_init(&trace, 20);
        trace.zero = 77;
        for (int i = 0; i < 20; i++)
            trace_span(&trace, "wait", "recv", i, 77 + 1e-3 * (cases[k].start + i * cases[k].start_step),
                       77 + 1e-3 * (cases[k].end + i * cases[k].end_step));
        const Part part = {0, "rank 0", trace.spans, trace.n, 0, trace.zero};
        Read* read = check_file(cases[k].what, &part, 1);
        bool ordered = true; // of spans that begin together the one recorded first comes first
        for (int i = 0; i < 20 && cases[k].start_step == 0; i++)
            ordered = ordered && atoi(read->event[i].name + strlen("recv ")) == i;
        check(read->threads == cases[k].threads && ordered, "%s: %d threads", cases[k].what, cases[k].threads);
        free(read);
        trace_free(&trace);
    }
}

// ---- Recording --------------------------------------------------------------------------------------------------

static void test_strings(void) {
    Trace trace;
    trace_init(&trace, 3);
    trace_span(&trace, "a track of many bytes", "a name of many more bytes than there is room for", 2147483647, 1, 2);
    trace_span(&trace, "quote\" slash\\", "line\nname \xff", 0, 1, 2);
    trace_span(&trace, "", "", -1, 1, 2);
    check(strcmp(trace.spans[0].track, "a track of many") == 0 &&
              strcmp(trace.spans[0].name, "a name of many more bytes than ther") == 0,
          "long names are cut");
    const Part part = {0, "\"rank\" 0\\", trace.spans, trace.n, 0, trace.zero};
    Read* read = read_parts(&part, 1);
    check(read->events == 3 && strcmp(read->rank[0].name, "\"rank\" 0\\") == 0 &&
              strcmp(read->thread[0].name, "") == 0 && strcmp(read->event[0].name, "") == 0 &&
              strcmp(read->thread[1].name, "a track of many") == 0 &&
              strcmp(read->event[1].name, "a name of many more bytes than ther 2147483647") == 0 &&
              strcmp(read->thread[2].name, "quote\" slash\\") == 0 &&
              strcmp(read->event[2].name, "line\nname \xEF\xBF\xBD 0") == 0,
          "strings with quotes, controls and bytes that are not UTF-8");
    free(read);
    trace_free(&trace);
}

// What the file says about itself.
static void test_about(void) {
    char* text = NULL;
    size_t size = 0;
    FILE* out = open_memstream(&text, &size);
    if (!out) die("test_trace: no memory for a file");
    trace_begin_file(out);
    const bool ok = trace_end_file(out, "{\"p\":2}") && fclose(out) == 0;
    Json json;
    Error error;
    int64_t p = 0;
    const bool parsed = ok && json_parse(&json, "the trace", text, size, &error);
    const JsonNode* about = parsed ? json_get(&json.nodes[0], "otherData") : NULL;
    check(about && json_get_integer(&p, &json, about, "p", 1, 9, &error) && p == 2 &&
              json_get(&json.nodes[0], "traceEvents"),
          "the file says what was traced");
    if (parsed) json_free(&json);
    free(text);
}

// Spans go from rank to rank as bytes.
static void test_bytes(void) {
    check(sizeof(TraceSpan) == sizeof(char[16]) + sizeof(char[36]) + sizeof(int32_t) + 2 * sizeof(double),
          "a span has %zu bytes, none of them padding", sizeof(TraceSpan));
    TraceSpan spans[2];
    memset(&spans[0], 1, sizeof spans[0]);
    memset(&spans[1], 2, sizeof spans[1]);
    for (int i = 0; i < 2; i++) {
        Trace trace = {0, 1, 0, 0, &spans[i]};
        trace_span(&trace, "wait", "recv", 7, 1, 2);
    }
    check(memcmp(&spans[0], &spans[1], sizeof spans[0]) == 0, "every byte of a span is written");
}

static void test_full(int64_t capacity) {
    Trace trace;
    trace_init(&trace, capacity);
    for (int i = 0; i < capacity + 6; i++) trace_span(&trace, "compute", "forward", i, i, i + 1);
    bool kept = trace.n == capacity && trace.dropped == 6;
    for (int64_t i = 0; i < trace.n; i++) kept = kept && trace.spans[i].number == i;
    check(kept, "the first ones are kept, the others counted");
    const Part part = {4, "rank 4: t 0", trace.spans, trace.n, trace.dropped, 0};
    Read* read = check_file("a full trace", &part, 1);
    check(strstr(read->rank[0].name, " 6 "), "the file says how many are missing: %s", read->rank[0].name);
    free(read);
    trace_free(&trace);
}

// A disk without room: reported at the end of the file, whichever call meets it.
static void test_failure(void) {
    const TraceSpan span = {"compute", "forward", -1, 1, 2};
    const int ways = access("/dev/full", W_OK) == 0 ? 2 : 0;
    if (!ways) printf("skipped: there is no /dev/full\n");
    for (int buffered = 0; buffered < ways; buffered++) {
        FILE* full = fopen("/dev/full", "w");
        if (!buffered) setvbuf(full, NULL, _IONBF, 0);
        trace_begin_file(full);
        trace_write_rank(full, 0, "rank 0", &span, 1, 0, 0);
        check(!trace_end_file(full, "{}"), "a full disk, reported at the end, where %s",
              buffered ? "all was in the buffer" : "nothing is left to be flushed");
        fclose(full);
    }
}

int main(void) {
    trace_span(NULL, "compute", "forward", 0, 1, 2); // must not crash
    test_threads();
    const int sizes[] = {1, 10, 100, 400};
    for (int i = 0; i < 4; i++) {
        test_random(sizes[i], 20, true); // nearly everything shares a begin or an end
        test_random(sizes[i], 300, true);
        test_random(sizes[i], 10, false); // differences below the rounding
        test_random(sizes[i], 1e9, false);
        test_random(sizes[i], 1e12, false);
    }
    test_strings();
    test_about();
    test_bytes();
    test_full(4);
    test_full(0);
    test_failure();
    return test_end();
}
