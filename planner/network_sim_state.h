/*
network_sim_state.h: the data of the network simulator (network_sim.h): settings, results, and its state: links,
messages on them, dependencies, and the queue of events.

Events are in a binary heap by time, and at equal times by the order of insertion, so results are deterministic.
*/
#pragma once

#include "plan_cost.h"

typedef enum { SIM_ROUTE, SIM_SUBFLOWS, SIM_SPRAY, SIM_RANDOM, SIM_ADAPTIVE } SimTransport;

typedef struct {
    int element_size; // bytes; messages are whole elements
    int payload;      // bytes of a packet
    int segments;     // a message has these at most (fewer where packets are fewer)
    double overhead;  // s a message, at the sender and at the receiver
    double burst;     // bytes that a link lets through at once after a pause
    // network_transport.h
    SimTransport transport;
    int subflows;       // 1: ECMP
    int flight, window; // packets of a message: in flight, and how far out of order
    uint64_t seed;      // the hashes'
    double timeout;     // s
    int dead[2];        // links that die, there and back, -1: none,
    double dead_at;     // at this time
} SimSettings;

static inline SimSettings sim_settings_default(void) {
    const SimSettings s = {4, 256, 16, 0, 0, SIM_ROUTE, 4, 64, 256, 0, 1e-3, {-1, -1}, 0};
    return s;
}

typedef struct {
    double seconds;
    double* busy; // (links): seconds for which each was busy
    double* flow; // (rows): seconds from a message's start to its arrival; 0: it has no bytes
    int64_t messages;
    int64_t delivered, again; // transports: bytes that arrived; packets that were sent again
    int32_t reorder;          // how far one was ahead of the first missing one, at most
} SimResult;

static inline void sim_result_free(SimResult* result) {
    free(result->busy);
    free(result->flow);
    memset(result, 0, sizeof *result);
}

// ---- State ------------------------------------------------------------------------------------------------------

typedef enum { SIM_RELEASE, SIM_READY, SIM_LINK_FREE, SIM_ARRIVE, SIM_DONE, SIM_ACK } SimEventKind;

typedef struct {
    double time;
    int64_t order;
    int32_t kind, a, b;
} SimEvent;

typedef struct {
    int32_t head, tail; // passages that wait
    bool busy;          // with segments [segment, end) of a passage:
    int32_t passage, segment, end, version;
    double start, until;
    double credit, saved;         // bytes that may pass at once when it begins; seconds that this message saves by that
    int32_t send_head, send_tail; // rows that its first vertex has to send over it, one after another
} SimLink;

// What links carry as one: the message of a row; with a transport a packet of it.
typedef struct {
    int64_t bytes;
    int32_t row, first, hops;    // its passages: first, first + 1, ...
    int32_t entry, path;         // transports: of its connection
    bool received, acknowledged; // transports
    double sent, latency;        // transports: when, and of the path
} SimMessage;

// A message on one link of its path: `ready` segments have arrived, `served` of them have left. It waits, or is being
// served, while served < ready.
typedef struct {
    int32_t message, link, ready, served, next; // next: of the link's queue
} SimPassage;

// Transports: from a rank to another. Packets choose among entries.
typedef struct {
    int hops, paths, live, entries, turn; // live: paths without losses; turn: the entry after the last one
    uint64_t draws;
    int *link, *path, *inflight; // (paths, hops); (entries): its path; packets sent and not acknowledged
    bool* dead;                  // (paths)
} SimConnection;

// Transports: a row's packets, s->message[first] and so on.
typedef struct {
    int32_t connection, first, packets;
    int32_t next, base, expect; // the first not sent, not acknowledged, not received
    int32_t flying;             // sent, and neither acknowledged nor known to be lost
    int32_t left;               // how often the last one has left its sender
} SimFlow;

// A rank's data of a chunk from some step on. left: missing arrivals, and 1 for the previous version.
typedef struct {
    int32_t left, next, waiting; // next: version; waiting: list of entries
} SimVersion;

typedef struct {
    const Plan* plan;
    const Network* net;
    SimSettings set;
    int64_t elements;
    SimResult* result;
    double now;
    int64_t done; // rows
    // rows
    SimMessage* message; // (n), or packets
    SimPassage* passage;
    int32_t* sends_on;  // (n): the first link. Rows are sent on it one after another
    int32_t* missing;   // versions that a row waits for
    int32_t* send_next; // (n): list of SimLink
    // the order in which a link's first vertex sends: rows line[line_first[l]] ...; line_at: the next one
    int64_t *line_first, *line_at;
    int32_t* line;
    // dependencies: one entry for every chunk of every row
    int64_t* entry;                                  // (n + 1)
    int32_t *entry_row, *entry_next, *entry_version; // list of a version; the version that an arrival completes
    SimVersion* version;
    int64_t versions, version_capacity;
    // ranks
    double* host; // the time at which each is free
    // transports
    SimFlow* flow;             // (n), or NULL
    SimConnection* connection; // (ranks, ranks)
    int32_t path_room, cut;    // cut: a connection without a live path, + 1
    // links, events
    SimLink* link;
    SimEvent* heap;
    int64_t heap_n, heap_capacity, order;
} Sim;

static inline int64_t sim_bytes(const Sim* s, int64_t row) {
    return transfer_elements(s->plan, &s->plan->transfers[row], s->elements) * s->set.element_size;
}

static inline int64_t sim_packets(const Sim* s, int64_t bytes) { return (bytes + s->set.payload - 1) / s->set.payload; }

static inline int sim_segments(const Sim* s, int64_t bytes) {
    return (int)min_i64(s->set.segments, sim_packets(s, bytes));
}

// Bytes of the first k segments of a message.
static inline double sim_part(const Sim* s, int64_t bytes, int segments, int k) {
    return (double)min_i64(bytes, sim_packets(s, bytes) * k / segments * s->set.payload);
}

// ---- Events -----------------------------------------------------------------------------------------------------

static inline bool sim_before(const SimEvent* a, const SimEvent* b) {
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static inline void sim_push(Sim* s, double time, SimEventKind kind, int32_t a, int32_t b) {
    s->heap = (SimEvent*)checked_reserve(s->heap, &s->heap_capacity, s->heap_n + 1, sizeof(SimEvent), "events");
    const SimEvent e = {fmax(time, s->now), s->order++, (int32_t)kind, a, b};
    int64_t i = s->heap_n++;
    for (; i > 0 && sim_before(&e, &s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = e;
}

static inline SimEvent sim_pop(Sim* s) {
    const SimEvent first = s->heap[0], e = s->heap[--s->heap_n];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < s->heap_n; i = child) {
        if (child + 1 < s->heap_n && sim_before(&s->heap[child + 1], &s->heap[child])) child++;
        if (!sim_before(&s->heap[child], &e)) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = e;
    return first;
}
