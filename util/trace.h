/*
util/trace.h: a timeline of all ranks, for chrome://tracing or https://ui.perfetto.dev. It shows pipeline bubbles, and
communication that is, or is not, hidden by computation.

    trace_init, trace_span, trace_free                     a rank records its spans, a name and a track with two times,
                                                           in an array; when it is full, further ones are dropped
    trace_begin_file, trace_write_rank, trace_end_file     rank 0 writes the spans of all ranks, which it gets as bytes

The file is JSON in the Trace Event Format (Google, "Trace Event Format", 2016): a rank is a process, a track is a
thread of it, a span is a complete event, times are in microseconds:

    {"name":"forward 3","ph":"X","pid":1,"tid":0,"ts":1250.125,"dur":830.500}

Events of one thread must not overlap, unless one contains the other. So a track whose spans overlap (several messages
in flight) gets more threads, "tensor", "tensor 2", ...: each span goes, in the order of begins, to the first thread
that is free. Times are rounded to nanoseconds before they are compared, which keeps their order. Each rank has its own
zero, taken when all ranks leave one barrier, as clocks of machines differ.
*/
#pragma once

#include "base.h"
#include "json.h"

enum { TRACE_TRACK_BYTES = 16, TRACE_NAME_BYTES = 36 }; // with their NUL; longer strings are cut

// Plain bytes without padding.
typedef struct {
    char track[TRACE_TRACK_BYTES], name[TRACE_NAME_BYTES];
    int32_t number;    // shown after the name; -1: none
    double start, end; // in seconds_now(), start <= end
} TraceSpan;

typedef struct Trace {
    int64_t n, capacity, dropped; // spans recorded, room for them, spans that found no room: the file tells how many
    double zero;                  // seconds_now() at time 0 of the file; at first the time of trace_init
    TraceSpan* spans;             // (capacity), in the order of the calls
} Trace;

// ---- Recording --------------------------------------------------------------------------------------------------

static inline void trace_init(Trace* trace, int64_t capacity) {
    trace->n = trace->dropped = 0;
    trace->capacity = capacity;
    trace->zero = seconds_now();
    trace->spans = (TraceSpan*)checked_malloc((size_t)capacity * sizeof(TraceSpan), "the trace");
}

static inline void trace_free(Trace* trace) {
    free(trace->spans);
    memset(trace, 0, sizeof *trace);
}

// Records that this rank did `name` from start to end (seconds_now()) on a track. number: of the micro-batch, of the
// layer ..., or -1. Called by one thread of a rank at a time. trace may be NULL.
static inline void trace_span(Trace* trace, const char* track, const char* name, int number, double start, double end) {
    if (!trace) return;
    if (trace->n == trace->capacity) {
        trace->dropped++;
        return;
    }
    TraceSpan* span = &trace->spans[trace->n++];
    memset(span, 0, sizeof *span);
    memcpy(span->track, track, (size_t)min_i64((int64_t)strlen(track), sizeof span->track - 1));
    memcpy(span->name, name, (size_t)min_i64((int64_t)strlen(name), sizeof span->name - 1));
    span->number = number;
    span->start = start;
    span->end = end;
}

// ---- Threads ----------------------------------------------------------------------------------------------------

typedef struct {
    const TraceSpan* span;
    int64_t start, end; // nanoseconds from zero
} TraceEvent;

// Orders events by the name of their track, "compute" first, then by begin, then by end; of two equal ones the one
// recorded first.
static inline int trace_compare(const void* left, const void* right) {
    const TraceEvent *a = (const TraceEvent*)left, *b = (const TraceEvent*)right;
    const int compute_a = strcmp(a->span->track, "compute") == 0, compute_b = strcmp(b->span->track, "compute") == 0;
    const int tracks = strcmp(a->span->track, b->span->track);
    if (compute_a != compute_b) return compute_b - compute_a;
    if (tracks != 0) return tracks;
    if (a->start != b->start) return a->start < b->start ? -1 : 1;
    if (a->end != b->end) return a->end < b->end ? -1 : 1;
    return a->span < b->span ? -1 : a->span > b->span;
}

// The spans as events in the order of trace_compare.
static inline TraceEvent* trace_sorted(const TraceSpan* spans, int64_t n, double zero) {
    TraceEvent* events = (TraceEvent*)checked_malloc((size_t)n * sizeof(TraceEvent), "writing the trace");
    for (int64_t i = 0; i < n; i++) {
        events[i].span = &spans[i];
        events[i].start = llround((spans[i].start - zero) * 1e9);
        events[i].end = llround((spans[i].end - zero) * 1e9);
    }
    qsort(events, (size_t)n, sizeof *events, trace_compare);
    return events;
}

// ---- The file ---------------------------------------------------------------------------------------------------

static inline void trace_begin_file(FILE* out) {
    // Rank 0's position is here, so that every other event can begin with a comma.
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
          "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":0,\"tid\":0,\"args\":{\"sort_index\":0}}",
          out);
}

// A name and a number; number < 0: the name alone.
static inline void trace_name(char* text, size_t size, const char* name, int64_t number) {
    snprintf(text, size, number < 0 ? "%s" : "%s %lld", name, (long long)number);
}

// Writes the metadata of a "process" or a "thread" of it: its name, and its position from above.
static inline void trace_write_place(FILE* out, const char* what, int rank, int64_t thread, const char* name,
                                     int64_t place) {
    const long long tid = (long long)thread;
    fprintf(out, ",\n{\"name\":\"%s_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%lld,\"args\":{\"name\":", what, rank, tid);
    json_write_string(out, name);
    fprintf(out,
            "}},\n{\"name\":\"%s_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%lld,\"args\":{\"sort_index\":%lld}}",
            what, rank, tid, (long long)place);
}

// Writes the name of thread k, from 0, of a track: "tensor", "tensor 2", ...
static inline void trace_write_thread(FILE* out, int rank, int64_t thread, const char* track, int64_t k) {
    char name[TRACE_TRACK_BYTES + 24];
    trace_name(name, sizeof name, track, k > 0 ? k + 1 : -1);
    trace_write_place(out, "thread", rank, thread, name, thread);
}

static inline void trace_write_event(FILE* out, int rank, int64_t thread, const TraceEvent* event) {
    const TraceSpan* span = event->span;
    char name[TRACE_NAME_BYTES + 16];
    trace_name(name, sizeof name, span->name, span->number);
    fputs(",\n{\"name\":", out);
    json_write_string(out, name);
    fprintf(out, ",\"ph\":\"X\",\"pid\":%d,\"tid\":%lld,\"ts\":%.3f,\"dur\":%.3f}", rank, (long long)thread,
            (double)event->start / 1e3, (double)(event->end - event->start) / 1e3);
}

// Writes the n spans of one rank, and how many it dropped. label: "rank 3: t 1 p 0 d 1". zero: the rank's. Each rank is
// written once, in any order. Ends the program when out of memory.
static inline void trace_write_rank(FILE* out, int rank, const char* label, const TraceSpan* spans, int64_t n,
                                    int64_t dropped, double zero) {
    char name[256];
    if (dropped == 0)
        snprintf(name, sizeof name, "%s", label);
    else
        snprintf(name, sizeof name, "%.180s (full: the last %lld spans are missing)", label, (long long)dropped);
    trace_write_place(out, "process", rank, 0, name, rank);

    TraceEvent* events = trace_sorted(spans, n, zero);
    int64_t* end = (int64_t*)checked_malloc((size_t)n * sizeof(int64_t), "writing the trace"); // of each thread
    int64_t first = 0, threads = 0;                                                            // of this track
    for (int64_t i = 0; i < n; i++) {
        const char* track = events[i].span->track;
        if (i > 0 && strcmp(track, events[i - 1].span->track) != 0) {
            first += threads;
            threads = 0;
        }
        int64_t k = 0;
        while (k < threads && end[k] > events[i].start) k++;
        end[k] = events[i].end;
        if (k == threads) trace_write_thread(out, rank, first + threads++, track, k);
        trace_write_event(out, rank, first + k, &events[i]);
    }
    free(end);
    free(events);
}

// Ends and flushes the file, which the caller closes. False if this or earlier writing has failed. about: a JSON object
// that describes the run.
static inline bool trace_end_file(FILE* out, const char* about) {
    fprintf(out, "\n],\n\"otherData\":%s}\n", about);
    return fflush(out) == 0 && !ferror(out);
}
