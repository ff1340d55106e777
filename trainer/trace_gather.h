/*
trainer/trace_gather.h: --trace. Every rank records spans of its work (util/trace.h); at the end rank 0 collects them
and writes one file in Chrome's trace format, which Perfetto opens.
*/
#pragma once

#include "trainer.h"

// Sends this rank's spans to rank 0.
static inline void trace_send(Comm* world, const Trace* trace) {
    CommRequest sends[2];
    sends[0] = comm_send_start(world, trace, sizeof *trace, COMM_BYTE, 0, 0);
    sends[1] = comm_send_start(world, trace->spans, trace->n * (int64_t)sizeof(TraceSpan), COMM_BYTE, 0, 1);
    for (int i = 0; i < 2; i++) comm_wait(&sends[i]);
}

// Receives the spans of a rank; the caller frees the trace.
static inline Trace trace_receive(Comm* world, int rank) {
    Trace trace;
    CommRequest request = comm_receive_start(world, &trace, sizeof trace, COMM_BYTE, rank, 0);
    comm_wait(&request);
    const int64_t bytes = trace.n * (int64_t)sizeof(TraceSpan);
    trace.spans = (TraceSpan*)checked_malloc((size_t)bytes, "the trace"); // its pointer was the other rank's
    request = comm_receive_start(world, trace.spans, bytes, COMM_BYTE, rank, 1);
    comm_wait(&request);
    return trace;
}

// Writes the spans of all ranks to a file of rank 0; every rank calls it. about: see trace_end_file. Returns false, on
// rank 0, if that failed.
static inline bool trace_gather(FILE* out, Comm* world, const Mesh* mesh, const char* about, Trace* trace) {
    Trace* recording = world->trace;
    world->trace = NULL; // the gather is not traced
    bool ok = world->rank > 0 || trace_begin_file(out);
    if (world->rank > 0) trace_send(world, trace);
    for (int rank = 0; rank < world->size && world->rank == 0; rank++) {
        const Mesh at = mesh_of_rank(rank, mesh->t, mesh->p, mesh->d);
        Trace theirs = rank > 0 ? trace_receive(world, rank) : *trace;
        char label[64];
        snprintf(label, sizeof label, "rank %d: t %d p %d d %d", rank, at.tensor, at.pipeline, at.data);
        ok = ok && trace_write_rank(out, rank, label, theirs.spans, theirs.n, theirs.dropped, theirs.zero);
        if (rank > 0) trace_free(&theirs);
    }
    world->trace = recording;
    return ok && (world->rank > 0 || trace_end_file(out, about));
}

// Opens --trace on rank 0; NULL on the others.
static inline FILE* open_trace(Trainer* t, const char* mode) {
    const char* path = t->settings.trace;
    FILE* out = is_main(t) ? fopen(path, mode) : NULL;
    Error error;
    check_all_ranks(t, out || !is_main(t) || fail(&error, "--trace %s: cannot write: %s", path, strerror(errno)),
                    &error);
    return out;
}

// Starts to record the work and messages of this rank. A file that cannot be written is refused now, not at the end.
static inline void start_tracing(Trainer* t) {
    const char* path = t->settings.trace;
    const bool new_file = is_main(t) && access(path, F_OK) != 0;
    FILE* out = open_trace(t, "a");
    if (out) fclose(out);
    if (new_file) unlink(path);
    Comm* list[GROUPS];
    groups_list(&t->groups, list);
    trace_init(&t->trace, 1 << 20);
    t->tracing = t->world.trace = &t->trace;
    for (int i = 0; i < GROUPS; i++) list[i]->trace = &t->trace;
}

// Writes the spans of all ranks to --trace.
static inline void write_trace(Trainer* t) {
    const char* path = t->settings.trace;
    FILE* out = open_trace(t, "w");
    const PipelineConfig* plan = &t->schedule.config;
    const Mesh* mesh = &t->stage.layout.mesh;
    char about[256]; // for dev/plot
    snprintf(about, sizeof about,
             "{\"schedule\":\"%s\",\"t\":%d,\"p\":%d,\"d\":%d,\"v\":%d,\"m\":%d,\"reduce_every\":%s,\"tied\":%s}",
             schedule_name(plan->kind), mesh->t, mesh->p, mesh->d, mesh->v, plan->m,
             plan->reduce_every ? "true" : "false", plan->tied ? "true" : "false");
    const bool ok = trace_gather(out, &t->world, mesh, about, &t->trace);
    if (!is_main(t)) return;
    if (fclose(out) != 0 || !ok) die("--trace %s: cannot write: %s", path, strerror(errno));
    print_line("trace     %s: open it in chrome://tracing or https://ui.perfetto.dev", path);
}
