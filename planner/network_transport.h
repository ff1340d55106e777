/*
network_transport.h: how network interfaces spread the packets of a message over paths, for the simulator
(network_sim.h). Policies and closed forms: docs/transport.md.

Theory: all paths with the fewest links count, parallel links apart. An entry of a connection is one of them (spray,
random, adaptive), or one that a hash draws (subflows; ECMP is one subflow). Of a message `flight` packets at most are
in flight, each less than `window` packets after the first that is not acknowledged; so the receiver has none that is
`window` or more ahead of the first missing one. Acknowledgements come after the latency of the packet's path. A link
dies between two packets; those that it has not begun to send are lost, and sent again `timeout` after they were sent,
by a path without losses. Nothing else is sent twice: timeouts are assumed to be longer than queues. Every packet is a
message of its own on the links.
*/
#pragma once

#include "network_sim_state.h"

enum { TRANSPORT_PATHS = 4096, TRANSPORT_PACKETS = 1 << 23 }; // at most

static inline void sim_ready(Sim* s, int32_t passage, int32_t segments); // in network_sim.h

// A path by a hash, none of the dead ones.
static inline int transport_draw(const Sim* s, SimConnection* c) {
    for (;;) {
        const Random4 random = philox(s->set.seed, (uint64_t)(c - s->connection), c->draws++);
        const int path = (int)(random.word[0] % (uint32_t)c->paths);
        if (!c->dead || !c->dead[path]) return path;
    }
}

// Lists the paths that go on from v, after `depth` links in the next one's place. hops (vertices): to their end.
static inline void transport_walk(const Network* net, SimConnection* c, const int* hops, int v, int depth) {
    int* link = c->link + c->paths * c->hops;
    if (depth == c->hops) {
        memcpy(link + depth, link, (size_t)depth * sizeof(int));
        c->paths++;
        return;
    }
    for (int l = net->first[v]; l < net->first[v + 1]; l++) {
        if (hops[net->link[l].to] != hops[v] - 1 || c->paths > TRANSPORT_PATHS) continue;
        c->link[c->paths * c->hops + depth] = l;
        transport_walk(net, c, hops, net->link[l].to, depth + 1);
    }
}

static inline void transport_connect(const Sim* s, SimConnection* c, const Transfer* t) {
    const bool hashed = s->set.transport == SIM_SUBFLOWS;
    const int vertices = s->net->vertices;
    int* hops = (int*)checked_malloc(2 * (size_t)vertices * sizeof(int), "paths");
    network_hops(s->net, t->to, hops, hops + vertices);
    c->hops = hops[t->from];
    c->link = (int*)checked_malloc((TRANSPORT_PATHS + 2) * (size_t)c->hops * sizeof(int), "paths");
    transport_walk(s->net, c, hops, t->from, 0);
    free(hops);
    c->link = (int*)checked_realloc(c->link, (size_t)(c->paths * c->hops), sizeof(int), "paths");
    c->live = c->paths;
    c->entries = hashed ? s->set.subflows : c->paths;
    c->path = (int*)checked_calloc(2 * (size_t)c->entries, sizeof(int), "paths");
    c->inflight = c->path + c->entries;
    c->dead = (bool*)checked_calloc((size_t)c->paths, sizeof(bool), "paths");
    for (int e = 0; e < c->entries; e++) c->path[e] = hashed ? transport_draw(s, c) : e;
    c->turn = transport_draw(s, c) % c->entries;
}

static inline bool transport_prepare(Sim* s, Error* error) {
    const int64_t n = s->plan->n, ranks = s->plan->ranks;
    int64_t packets = 0;
    s->flow = (SimFlow*)checked_calloc((size_t)n, sizeof(SimFlow), "rows");
    s->connection = (SimConnection*)checked_calloc((size_t)(ranks * ranks), sizeof(SimConnection), "connections");
    for (int64_t i = 0; i < n; i++) {
        const Transfer* t = &s->plan->transfers[i];
        SimFlow* f = &s->flow[i];
        f->connection = (int32_t)(t->from * ranks + t->to);
        f->first = (int32_t)packets;
        SimConnection* c = &s->connection[f->connection];
        if (!c->link) transport_connect(s, c, t);
        s->sends_on[i] = c->link[0];
        s->path_room = (int32_t)max_i64(s->path_room, c->hops);
        packets += sim_packets(s, sim_bytes(s, i));
        if (packets > TRANSPORT_PACKETS || packets * s->path_room > INT32_MAX || c->paths > TRANSPORT_PATHS)
            return fail(error, "%s on %s: more than %d packets (take a larger --packet), or %d shortest paths",
                        s->plan->name, s->net->name, TRANSPORT_PACKETS, TRANSPORT_PATHS);
        f->packets = (int32_t)packets - f->first;
    }
    s->message = (SimMessage*)checked_calloc((size_t)packets, sizeof(SimMessage), "packets");
    s->passage = (SimPassage*)checked_malloc((size_t)(packets * s->path_room) * sizeof(SimPassage), "packets");
    return true;
}

static inline void transport_free(Sim* s) {
    const int connections = s->connection ? s->plan->ranks * s->plan->ranks : 0;
    for (int i = 0; i < connections; i++)
        free(s->connection[i].link), free(s->connection[i].path), free(s->connection[i].dead);
    free(s->flow), free(s->connection);
}

// The entry of the next packet: at random, the next one, or the one with the fewest packets in flight.
static inline int transport_choose(const Sim* s, SimConnection* c) {
    int best = -1;
    if (s->set.transport == SIM_RANDOM) return transport_draw(s, c);
    for (int i = 0; i < c->entries; i++) {
        const int e = (c->turn + i) % c->entries;
        if (c->dead[c->path[e]] || (best >= 0 && s->set.transport == SIM_SPRAY)) continue;
        if (best < 0 || c->inflight[e] < c->inflight[best]) best = e;
    }
    c->turn = (best + 1) % c->entries;
    return best;
}

static inline void transport_send(Sim* s, int32_t row, int32_t packet) {
    const int32_t message = s->flow[row].first + packet;
    SimConnection* c = &s->connection[s->flow[row].connection];
    SimMessage* m = &s->message[message];
    m->row = row;
    m->bytes = min_i64(s->set.payload, sim_bytes(s, row) - (int64_t)packet * s->set.payload);
    m->first = message * s->path_room;
    m->hops = c->hops;
    m->entry = transport_choose(s, c);
    m->path = c->path[m->entry];
    m->sent = s->now;
    m->latency = 0;
    for (int k = 0; k < m->hops; k++) {
        const SimPassage p = {message, c->link[m->path * m->hops + k], 0, 0, -1};
        s->passage[m->first + k] = p;
        m->latency += s->net->link[p.link].latency;
    }
    c->inflight[m->entry]++;
    s->flow[row].flying++;
    sim_ready(s, m->first, 1);
}

// Sends as many packets of a row as may be in flight, and out of order.
static inline void transport_fill(Sim* s, int32_t row) {
    SimFlow* f = &s->flow[row];
    const int64_t end = min_i64(f->packets, (int64_t)f->base + s->set.window);
    while (f->next < end && f->flying < s->set.flight) transport_send(s, row, f->next++);
}

// A packet has left its sender. Returns whether it is the last one of its row, for the first time.
static inline bool transport_left(Sim* s, int32_t message) {
    SimFlow* f = &s->flow[s->message[message].row];
    return message + 1 == f->first + f->packets && f->left++ == 0;
}

// A packet arrives. Returns whether its row is complete now.
static inline bool transport_arrive(Sim* s, int32_t message) {
    SimMessage* m = &s->message[message];
    SimFlow* f = &s->flow[m->row];
    m->received = true;
    s->result->reorder = (int32_t)max_i64(s->result->reorder, message - f->first - f->expect);
    while (f->expect < f->packets && s->message[f->first + f->expect].received) f->expect++;
    s->result->delivered += m->bytes;
    sim_push(s, s->now + m->latency, SIM_ACK, message, true);
    return f->expect == f->packets;
}

// A sender learns that a packet has arrived, or that it is lost.
static inline void transport_report(Sim* s, int32_t message, bool arrived) {
    SimMessage* m = &s->message[message];
    SimFlow* f = &s->flow[m->row];
    SimConnection* c = &s->connection[f->connection];
    c->inflight[m->entry]--;
    f->flying--;
    m->acknowledged = arrived;
    while (f->base < f->packets && s->message[f->first + f->base].acknowledged) f->base++;
    if (arrived) {
        transport_fill(s, m->row);
        return;
    }
    c->live -= !c->dead[m->path];
    c->dead[m->path] = true;
    if (c->live == 0) s->cut = f->connection + 1;
    if (c->live == 0) return;
    for (int e = 0; e < c->entries; e++) {
        if (s->set.transport == SIM_SUBFLOWS && c->dead[c->path[e]]) c->path[e] = transport_draw(s, c);
    }
    s->result->again++;
    transport_send(s, m->row, message - f->first);
}
