/*
network_sim.h: simulates a plan on a network, message by message. Formulas (plan_cost) add up steps; here messages share
links, and wait for each other and for the messages that they depend on.

    simulate    runs the plan for a vector of bytes; seconds, and how long each link was busy
    sim_use     mean fraction of the time that links were busy

Theory:

Links. A link carries bits at its bandwidth; they arrive its latency later. Parallel links are separate links. The
vertices between two ranks forward packets ("cut-through"): the second link of a message can start when the first packet
has arrived, and ends after the last one:

    start(next) >= start + packet / bandwidth + latency     and     end(next) >= end + packet / bandwidth + latency

so that M bytes over k equal links take M / B + (k - 1) packet / B + k latency, and over one link M / B + latency,
exactly. Messages on the same link take turns, a segment (some packets of one message) each, and so share it evenly.
Buffers between links are unlimited. `in_order`: segments leave in the order in which they came over a link, so that a
message whose next link is busy holds up later ones whose next link is free ("head-of-line blocking"). Routers with few
virtual channels, all of which one message may fill, come close to that; with a channel for every message it does not
occur. A message has one path; with a transport each of its packets chooses one (network_transport.h).

Limits. A link that is limited by a token bucket (as Linux's tc tbf) lets `burst` bytes through at once when it has been
idle; the bucket refills at its bandwidth.

Bytes. A message of M bytes are ceil(M / payload) packets. Head flits add bytes on the wire:

    none       M            message    M + flit            packet     M + flit ceil(M / payload)

Ranks. The times at which ranks send:

    lockstep   all ranks begin a step together, when the former step has arrived everywhere; the barrier is free
    free       a rank sends a row of the plan when all its arrivals of earlier steps, of the same chunks, are there and
               added; rows with the same first link go in the order of the plan, one after another
    steps      as free, but a rank works on one step at a time: it continues when all rows of the step are in flight
    estimate   as in MultiTree's network interface (Huang et al. 2021, section IV.A): a rank works on one step at a time
               and continues when all rows of the step have left it; in a step without rows it waits for the time of a
               message of the plan on a link, so that it does not run ahead of others. No barrier

Ports, if any, are network interfaces between a rank and its links, each as fast as the slowest link. A message leaves
by the first free port, and arrives by ports in turn among the rank's arrivals of the step. A port is free again when it
has taken the whole message, a packet in `port_fill` seconds; it holds `port_ahead` packets and takes more as it sends
them. So a message may have to wait for another one to another target. After links from and to ports there is a buffer
of `port_buffer` bytes (at least two segments), and a link that has filled it waits. With ports, a row is in flight when
a port has it, and has left when that port is free again.

A rank adds arriving messages one after another: `reduce` seconds a byte. Sending and receiving each cost the processor
`overhead` seconds a message, one after another. Both are 0 if not set. Other work of the processor is not modelled.

As long as no other message waits for a link, all segments of a message on it are one event; when another arrives, the
segment in flight is finished first, and the rest waits for its turn: the same result as segment by segment.
*/
#pragma once

#include "network_transport.h"

// ---- Links ------------------------------------------------------------------------------------------------------

static inline void sim_enqueue(Sim* s, int32_t passage) {
    SimLink* link = &s->link[s->passage[passage].link];
    s->passage[passage].next = -1;
    if (link->tail >= 0)
        s->passage[link->tail].next = passage;
    else
        link->head = passage;
    link->tail = passage;
}

static inline int32_t sim_dequeue(Sim* s, SimLink* link) {
    const int32_t passage = link->head;
    link->head = s->passage[passage].next;
    if (link->head < 0) link->tail = -1;
    return passage;
}

// The duration of segments [from, to) of a message on a link.
static inline double sim_duration(const Sim* s, int32_t message, int from, int to, int32_t l) {
    const int64_t bytes = s->message[message].bytes;
    const int segments = sim_segments(s, bytes);
    return (sim_wire(s, bytes, segments, to) - sim_wire(s, bytes, segments, from)) / s->wire[l].bandwidth;
}

// Bytes on the wire of a link's current segments.
static inline double sim_sending(const SimLink* link, const Link* wire) {
    return (link->until - link->start + link->saved) * wire->bandwidth;
}

// A link begins a transfer that takes `duration` without a burst: sets its end.
static inline void sim_begin(Sim* s, SimLink* link, double bandwidth, double duration) {
    const double credit = fmin(s->set.burst, link->credit + (s->now - link->until) * bandwidth);
    link->saved = fmin(duration, credit / bandwidth);
    link->credit = credit - link->saved * bandwidth;
    link->start = s->now;
    link->until = s->now + duration - link->saved;
}

// The time at which the segment just begun is ready for the next link.
static inline double sim_ready_next(const Sim* s, const SimLink* link, const Link* here, const Link* there) {
    const double wire = sim_sending(link, here), packet = sim_packet(s, wire);
    const double first = fmin(link->until, link->start + packet / here->bandwidth) + here->latency;
    const double last = link->until + here->latency + packet / there->bandwidth - wire / there->bandwidth;
    return fmax(first, last);
}

// Whether the buffer after a link has no room for the next segment of a passage. (Between links it always has: full
// buffers all around a ring would deadlock.)
static inline bool sim_is_full(const Sim* s, const SimLink* link, int32_t passage) {
    const SimPassage* p = &s->passage[passage];
    const int32_t first = s->message[p->message].first, last = first + s->message[p->message].hops - 1;
    if (s->set.ports == 0 || s->set.port_buffer == 0 || (passage != first && passage + 1 != last)) return false;
    const double wire = sim_duration(s, p->message, p->served, p->served + 1, p->link) * s->wire[p->link].bandwidth;
    return link->held + wire > fmax(s->set.port_buffer, 2 * wire) * (1 + 1e-9);
}

// A port begins to send: it has taken the whole message when the rest fits in.
static inline void sim_port_sends(Sim* s, int port, double wire) {
    const double most = s->set.port_ahead * (double)s->set.payload, before = s->port_holds[port], after = before - wire;
    const int32_t row = s->port_row[port];
    s->port_holds[port] = after;
    if (row < 0 || before <= most || after > most) return;
    const double fits = s->now + (before - most) / s->wire[s->net->links + port].bandwidth;
    sim_push(s, fmax(fits, s->port_filled[port]), SIM_PORT, port, row);
}

// A link begins with the first waiting message: with one segment, or with all if the message is alone and this is its
// last link.
static inline void sim_serve(Sim* s, int32_t l) {
    SimLink* link = &s->link[l];
    const int32_t i = sim_dequeue(s, link);
    const SimPassage* p = &s->passage[i];
    const int32_t first = s->message[p->message].first, last = first + s->message[p->message].hops - 1;
    link->busy = true;
    link->passage = i;
    link->segment = p->served;
    link->end = first == last && link->head < 0 ? p->ready : p->served + 1;
    sim_begin(s, link, s->wire[l].bandwidth, sim_duration(s, p->message, link->segment, link->end, l));
    sim_push(s, link->until, SIM_LINK_FREE, l, ++link->version);
    const double wire = sim_sending(link, &s->wire[l]);
    link->held += wire;
    if (s->set.ports > 0 && i == first) sim_port_sends(s, l - s->net->links, wire);
    if (i < last) sim_push(s, sim_ready_next(s, link, &s->wire[l], &s->wire[p[1].link]), SIM_READY, i + 1, 1);
}

static inline void sim_try_link(Sim* s, int32_t l) {
    SimLink* link = &s->link[l];
    const bool dead = (l == s->set.dead[0] || l == s->set.dead[1]) && s->now >= s->set.dead_at;
    while (dead && link->head >= 0) {
        const int32_t lost = s->passage[sim_dequeue(s, link)].message;
        sim_push(s, s->message[lost].sent + s->set.timeout, SIM_ACK, lost, false);
    }
    if (!link->busy && link->head >= 0 && !sim_is_full(s, link, link->head)) sim_serve(s, l);
}

// Another message arrives: only the segment in flight is finished.
static inline void sim_interrupt(Sim* s, int32_t l) {
    SimLink* link = &s->link[l];
    if (link->end == link->segment + 1) return;
    const int32_t message = s->passage[link->passage].message;
    int k = link->segment + 1;
    const double begun = link->start - link->saved;
    double until = begun + sim_duration(s, message, link->segment, k, l);
    while (k < link->end && until < s->now) until = begun + sim_duration(s, message, link->segment, ++k, l);
    if (k == link->end) return;
    link->end = k;
    link->until = until;
    sim_push(s, until, SIM_LINK_FREE, l, ++link->version);
}

// Further segments of a message have arrived at a link.
static inline void sim_ready(Sim* s, int32_t passage, int32_t segments) {
    SimPassage* p = &s->passage[passage];
    const bool there = p->ready > p->served;
    p->ready += segments;
    if (there) return;
    sim_enqueue(s, passage);
    if (s->link[p->link].busy)
        sim_interrupt(s, p->link);
    else
        sim_try_link(s, p->link);
}

// A message starts on its first link.
static inline void sim_set_out(Sim* s, int32_t row) {
    s->result->flow[row] = -s->now;
    if (s->flow)
        transport_fill(s, row);
    else
        sim_ready(s, s->message[row].first, sim_segments(s, s->message[row].bytes));
}

// A segment has come over the previous link: it may continue, with in_order only if none is before it.
static inline void sim_come(Sim* s, int32_t passage) {
    SimLink* link = &s->link[s->passage[passage - 1].link];
    if (!s->set.in_order) {
        sim_ready(s, passage, 1);
        return;
    }
    int32_t c = s->came_free;
    if (c >= 0)
        s->came_free = s->came[c].next;
    else {
        if (s->came_n == s->came_capacity)
            s->came = (SimCame*)checked_grow(s->came, &s->came_capacity, 1024, sizeof(SimCame), "buffers");
        c = s->came_n++;
    }
    const SimCame came = {passage, -1};
    s->came[c] = came;
    if (link->came_tail >= 0)
        s->came[link->came_tail].next = c;
    else
        link->came_head = c;
    link->came_tail = c;
    if (link->came_head == c) sim_ready(s, passage, 1);
}

// A segment has left the buffer after the previous link: there is room, and with in_order the next segment may
// continue.
static inline void sim_gone(Sim* s, int32_t passage, double wire) {
    const int32_t l = s->passage[passage - 1].link;
    SimLink* link = &s->link[l];
    link->held -= wire;
    if (s->set.in_order) {
        const int32_t c = link->came_head;
        link->came_head = s->came[c].next;
        s->came[c].next = s->came_free;
        s->came_free = c;
        if (link->came_head < 0)
            link->came_tail = -1;
        else
            sim_ready(s, s->came[link->came_head].passage, 1);
    }
    sim_try_link(s, l);
}

static inline void sim_left(Sim* s, int32_t row);

static inline void sim_link_free(Sim* s, int32_t l, int32_t version) {
    SimLink* link = &s->link[l];
    if (version != link->version) return; // it was interrupted
    const int32_t i = link->passage;
    SimPassage* p = &s->passage[i];
    const SimMessage* m = &s->message[p->message];
    const bool first = i == m->first, last = i + 1 == m->first + m->hops;
    s->result->busy[l] += link->until - link->start + link->saved;
    p->served = link->end;
    const double wire = sim_sending(link, &s->wire[l]);
    if (!first) sim_gone(s, i, wire); // while the link still counts as busy
    if (last) link->held -= wire;     // it has arrived
    link->busy = false;
    if (p->served < p->ready && link->tail != i) sim_enqueue(s, i);
    if (p->served == sim_segments(s, m->bytes)) {
        if (last) sim_push(s, s->now + s->wire[l].latency, SIM_ARRIVE, p->message, 0);
        if (first && (!s->flow || transport_left(s, p->message))) sim_left(s, m->row);
    }
    sim_try_link(s, l);
}

// ---- Ranks ------------------------------------------------------------------------------------------------------

// The end of a rank's processor work for a message.
static inline double sim_host(Sim* s, int rank) {
    return s->host[rank] = fmax(s->host[rank], s->now) + s->set.overhead;
}

// A row of the rank's step is in flight (steps), has left (estimate), or has no bytes (both). The next step is an
// event, since this may be called while the step is being entered.
static inline void sim_step_less(Sim* s, int rank, SimInjection injection) {
    if (s->set.injection == injection && --s->rank_left[rank] == 0) sim_push(s, s->now, SIM_STEP, rank, 0);
}

// A message may enter its first link, or a port, after the earlier ones.
static inline void sim_append(Sim* s, int32_t row) {
    SimLink* link = &s->link[s->sends_on[row]];
    const int32_t last = link->send_tail;
    sim_step_less(s, s->plan->transfers[row].from, SIM_STEPS);
    s->send_next[row] = -1;
    link->send_tail = row;
    if (last >= 0) {
        s->send_next[last] = row;
    } else {
        link->send_head = row;
        sim_set_out(s, row);
    }
}

// A port takes a message. It is free again when it holds the whole message: at once, if there is room, or while it
// sends.
static inline void sim_take_port(Sim* s, int port, int32_t row) {
    const int64_t bytes = sim_bytes(s, row);
    s->port_row[port] = row;
    s->port_filled[port] = s->now + (double)sim_packets(s, bytes) * s->set.port_fill;
    s->port_holds[port] += sim_wire(s, bytes, 1, 1);
    if (s->port_holds[port] <= s->set.port_ahead * (double)s->set.payload)
        sim_push(s, s->port_filled[port], SIM_PORT, port, row);
    s->passage[s->message[row].first].link = s->sends_on[row] = s->net->links + port;
    sim_append(s, row);
}

// The processor has prepared a message, which may leave.
static inline void sim_release(Sim* s, int32_t row) {
    const int rank = s->plan->transfers[row].from;
    if (s->set.ports == 0) {
        if (s->set.injection == SIM_LOCKSTEP)
            sim_set_out(s, row);
        else
            sim_append(s, row);
        return;
    }
    for (int port = rank * s->set.ports; port < (rank + 1) * s->set.ports; port++) {
        if (s->port_row[port] >= 0 || s->port_head[rank] >= 0) continue;
        sim_take_port(s, port, row);
        return;
    }
    s->send_next[row] = -1;
    if (s->port_head[rank] >= 0)
        s->send_next[s->port_tail[rank]] = row;
    else
        s->port_head[rank] = row;
    s->port_tail[rank] = row;
}

// A row has nothing left to wait for.
static inline void sim_send(Sim* s, int32_t row) {
    if (sim_bytes(s, row) == 0) { // an empty chunk: the vector has fewer elements than chunks
        sim_push(s, s->now, SIM_DONE, row, 0);
        if (s->set.injection >= SIM_STEPS) sim_step_less(s, s->plan->transfers[row].from, s->set.injection);
        return;
    }
    s->result->messages++;
    if (s->set.overhead == 0)
        sim_release(s, row);
    else
        sim_push(s, sim_host(s, s->plan->transfers[row].from), SIM_RELEASE, row, 0);
}

// free: sends the possible rows of a link, in order.
static inline void sim_try_line(Sim* s, int32_t l) {
    while (s->line_at[l] < s->line_first[l + 1] && s->missing[s->line[s->line_at[l]]] == 0)
        sim_send(s, s->line[s->line_at[l]++]);
}

// steps, estimate: a rank enters its next step, which may have rows, none for a while, or be the end.
static inline void sim_enter_step(Sim* s, int rank) {
    int64_t* at = &s->rank_at[rank];
    *at = s->rank_end[rank];
    const int32_t step = ++s->rank_step[rank];
    if (*at == s->rank_first[rank + 1]) return;
    const int32_t next = s->plan->transfers[s->rank_row[*at]].step;
    if (s->set.injection == SIM_STEPS)
        s->rank_step[rank] = next;
    else if (next != step) {
        sim_push(s, s->now + s->estimate, SIM_STEP, rank, 0);
        return;
    }
    int64_t end = *at;
    while (end < s->rank_first[rank + 1] && s->plan->transfers[s->rank_row[end]].step == next) end++;
    s->rank_end[rank] = end;
    s->rank_left[rank] = (int32_t)(end - *at);
    for (int64_t i = *at; i < end; i++) {
        if (s->missing[s->rank_row[i]] == 0) sim_send(s, (int32_t)s->rank_row[i]);
    }
}

// The last bit of a message has left its sender.
static inline void sim_left(Sim* s, int32_t row) {
    if (s->set.injection == SIM_LOCKSTEP && s->set.ports == 0) return;
    SimLink* link = &s->link[s->sends_on[row]];
    link->send_head = s->send_next[row];
    if (link->send_head < 0)
        link->send_tail = -1;
    else
        sim_set_out(s, link->send_head);
    if (s->set.ports == 0) sim_step_less(s, s->plan->transfers[row].from, SIM_ESTIMATE);
}

// A port is free again.
static inline void sim_port(Sim* s, int port, int32_t row) {
    const int rank = s->plan->transfers[row].from;
    const int32_t next = s->port_head[rank];
    s->port_row[port] = -1;
    if (next >= 0) {
        s->port_head[rank] = s->send_next[next];
        sim_take_port(s, port, next);
    }
    sim_step_less(s, rank, SIM_ESTIMATE);
}

// All dependencies of this row are complete.
static inline void sim_possible(Sim* s, int32_t row) {
    const Transfer* t = &s->plan->transfers[row];
    if (s->set.injection == SIM_FREE)
        sim_try_line(s, s->sends_on[row]);
    else if (t->step == s->rank_step[t->from])
        sim_send(s, row);
}

static inline void sim_complete(Sim* s, int32_t v) {
    while (v >= 0 && --s->version[v].left == 0) {
        for (int32_t e = s->version[v].waiting; e >= 0; e = s->entry_next[e]) {
            if (--s->missing[s->entry_row[e]] == 0) sim_possible(s, s->entry_row[e]);
        }
        v = s->version[v].next;
    }
}

static inline void sim_start_step(Sim* s) {
    const int64_t from = s->step_at;
    if (from == s->plan->n) return;
    int64_t end = from;
    while (end < s->plan->n && s->plan->transfers[end].step == s->plan->transfers[from].step) end++;
    s->step_at = end;
    s->step_left = end - from;
    for (int64_t i = from; i < end; i++) sim_send(s, (int32_t)i);
}

// A message has arrived: the processor takes it and adds it.
static inline void sim_arrive(Sim* s, int32_t row) {
    const Transfer* t = &s->plan->transfers[row];
    s->result->flow[row] += s->now;
    double ready = s->set.overhead > 0 ? sim_host(s, t->to) : s->now;
    if (t->add && s->set.reduce > 0)
        ready = s->adder[t->to] = fmax(s->adder[t->to], ready) + (double)sim_bytes(s, row) * s->set.reduce;
    sim_push(s, ready, SIM_DONE, row, 0);
}

static inline void sim_done(Sim* s, int32_t row) {
    s->result->seconds = s->now;
    s->done++;
    if (s->set.injection == SIM_LOCKSTEP) {
        if (--s->step_left == 0) sim_start_step(s);
        return;
    }
    for (int64_t e = s->entry[row]; e < s->entry[row + 1]; e++) sim_complete(s, s->entry_version[e]);
}

// ---- Prepare ----------------------------------------------------------------------------------------------------

static inline bool sim_find_ways(Sim* s, const Routes* routes, Error* error) {
    const int64_t n = s->plan->n;
    const int ports = s->set.ports, into = s->net->links + s->net->ranks * ports;
    int* links = (int*)checked_malloc(((size_t)s->net->vertices + 2) * sizeof(int), "ways");
    int* turn = (int*)checked_calloc((size_t)s->net->ranks, sizeof(int), "ways"); // messages received in this step
    int64_t passages = 0;
    for (int64_t i = 0; i < n; i++) passages += plan_way(s->plan, s->net, routes, i, links) + (ports > 0 ? 2 : 0);
    const bool ok = passages <= INT32_MAX;
    if (ok)
        s->passage = (SimPassage*)checked_malloc((size_t)passages * sizeof(SimPassage), "ways");
    else
        fail(error, "%s: its messages go over %lld links, more than this can follow", s->plan->name,
             (long long)passages);
    s->message = (SimMessage*)checked_calloc((size_t)n, sizeof(SimMessage), "ways");
    const int64_t rows = ok ? n : 0;
    int32_t at = 0;
    for (int64_t i = 0; i < rows; i++) {
        const Transfer* t = &s->plan->transfers[i];
        const int hops = plan_way(s->plan, s->net, routes, i, links + (ports > 0)) + (ports > 0 ? 2 : 0);
        if (i > 0 && t->step != t[-1].step) memset(turn, 0, (size_t)s->net->ranks * sizeof(int));
        if (ports > 0) {
            links[0] = -1;
            links[hops - 1] = into + t->to * ports + turn[t->to]++ % ports;
        }
        const SimMessage m = {sim_bytes(s, i), (int32_t)i, at, hops, 0, 0, false, false, 0, 0};
        s->message[i] = m;
        s->sends_on[i] = links[ports > 0];
        for (int k = 0; k < hops; k++) {
            const SimPassage p = {(int32_t)i, links[k], 0, 0, -1};
            s->passage[at++] = p;
        }
    }
    free(links);
    free(turn);
    return ok;
}

// Sets up the links of the network, and ports, without latency.
static inline void sim_find_links(Sim* s) {
    const size_t ports = (size_t)s->net->ranks * (size_t)s->set.ports, links = (size_t)s->net->links + 2 * ports;
    const Link port = {0, 0, network_slowest(s->net), 0};
    s->came_free = -1;
    s->wire = (Link*)checked_malloc(links * sizeof(Link), "links");
    s->link = (SimLink*)checked_calloc(links, sizeof(SimLink), "links");
    for (size_t l = 0; l < links; l++) {
        s->link[l].credit = s->set.burst;
        s->wire[l] = l < (size_t)s->net->links ? s->net->link[l] : port;
        s->link[l].head = s->link[l].tail = s->link[l].send_head = s->link[l].send_tail = -1;
        s->link[l].came_head = s->link[l].came_tail = -1;
    }
    s->result->busy = (double*)checked_calloc(links, sizeof(double), "links");
    s->port_holds = (double*)checked_calloc(2 * ports, sizeof(double), "ports");
    s->port_filled = s->port_holds + ports;
    s->port_row = (int32_t*)checked_malloc(ports * sizeof(int32_t), "ports");
    for (size_t i = 0; i < ports; i++) s->port_row[i] = -1;
    s->port_head = (int32_t*)checked_malloc(2 * (size_t)s->net->ranks * sizeof(int32_t), "ports");
    s->port_tail = s->port_head + s->net->ranks;
    for (int r = 0; r < s->net->ranks; r++) s->port_head[r] = -1;
}

// free: lists the rows of every link, in order.
static inline void sim_find_lines(Sim* s) {
    const size_t links = (size_t)s->net->links;
    s->line_first = (int64_t*)checked_calloc(links + 2, sizeof(int64_t), "rows");
    s->line_at = (int64_t*)checked_malloc((links + 1) * sizeof(int64_t), "rows");
    s->line = (int32_t*)checked_malloc((size_t)s->plan->n * sizeof(int32_t), "rows");
    for (int64_t i = 0; i < s->plan->n; i++) s->line_first[s->sends_on[i] + 2]++;
    for (size_t l = 2; l < links + 2; l++) s->line_first[l] += s->line_first[l - 1];
    for (int64_t i = 0; i < s->plan->n; i++) s->line[s->line_first[s->sends_on[i] + 1]++] = (int32_t)i;
    memcpy(s->line_at, s->line_first, links * sizeof(int64_t));
}

// steps, estimate: lists the rows of every rank, by step; and the estimated duration of a step: the largest message on
// the slowest link.
static inline void sim_find_steps(Sim* s) {
    const size_t ranks = (size_t)s->plan->ranks;
    s->rank_first = (int64_t*)checked_calloc(ranks + 2, sizeof(int64_t), "rows");
    s->rank_at = (int64_t*)checked_malloc(2 * ranks * sizeof(int64_t), "rows");
    s->rank_end = s->rank_at + ranks;
    s->rank_row = (int64_t*)checked_malloc((size_t)s->plan->n * sizeof(int64_t), "rows");
    s->rank_step = (int32_t*)checked_malloc(2 * ranks * sizeof(int32_t), "rows");
    s->rank_left = s->rank_step + ranks;
    const double slowest = network_slowest(s->net);
    for (int64_t i = 0; i < s->plan->n; i++) {
        const int64_t bytes = sim_bytes(s, i);
        if (bytes > 0) s->estimate = fmax(s->estimate, sim_wire(s, bytes, 1, 1) / slowest);
        s->rank_first[s->plan->transfers[i].from + 2]++;
    }
    for (size_t r = 2; r < ranks + 2; r++) s->rank_first[r] += s->rank_first[r - 1];
    for (int64_t i = 0; i < s->plan->n; i++) s->rank_row[s->rank_first[s->plan->transfers[i].from + 1]++] = i;
    for (size_t r = 0; r < ranks; r++) {
        s->rank_step[r] = -1;
        s->rank_end[r] = s->rank_at[r] = s->rank_first[r];
    }
}

static inline int32_t sim_new_version(Sim* s, int32_t before) {
    s->version =
        (SimVersion*)checked_reserve(s->version, &s->version_capacity, s->versions + 1, sizeof(SimVersion), "versions");
    const SimVersion v = {before >= 0, -1, -1};
    if (before >= 0) s->version[before].next = (int32_t)s->versions;
    s->version[s->versions] = v;
    return (int32_t)s->versions++;
}

// The dependencies of every row. A rank's chunk has versions: the arrivals between two of its sends make a new one,
// which needs the previous one. So each row has one entry per chunk that it sends, and each arrival completes one
// version.
static inline void sim_find_dependencies(Sim* s) {
    const Plan* plan = s->plan;
    const size_t cells = (size_t)plan->ranks * (size_t)plan->chunks;
    int32_t* current = (int32_t*)checked_malloc(cells * sizeof(int32_t), "versions of chunks");
    memset(current, -1, cells * sizeof(int32_t));
    s->entry = (int64_t*)checked_malloc((size_t)(plan->n + 1) * sizeof(int64_t), "dependencies");
    s->entry[0] = 0;
    for (int64_t i = 0; i < plan->n; i++) s->entry[i + 1] = s->entry[i] + plan->transfers[i].chunks;
    const size_t n = (size_t)s->entry[plan->n];
    s->entry_row = (int32_t*)checked_malloc(3 * n * sizeof(int32_t), "dependencies");
    s->entry_next = s->entry_row + n;
    s->entry_version = s->entry_next + n;
    for (int64_t from = 0, end; from < plan->n; from = end) {
        for (end = from; end < plan->n && plan->transfers[end].step == plan->transfers[from].step; end++) {
            const Transfer* t = &plan->transfers[end];
            for (int c = 0; c < t->chunks; c++) {
                const int64_t e = s->entry[end] + c;
                const int32_t v = current[(size_t)t->from * (size_t)plan->chunks + (size_t)(t->chunk + c)];
                s->entry_row[e] = (int32_t)end;
                if (v < 0) continue;
                s->missing[end]++;
                s->entry_next[e] = s->version[v].waiting;
                s->version[v].waiting = (int32_t)e;
            }
        }
        for (int64_t i = from; i < end; i++) {
            const Transfer* t = &plan->transfers[i];
            for (int c = 0; c < t->chunks; c++) {
                int32_t* v = &current[(size_t)t->to * (size_t)plan->chunks + (size_t)(t->chunk + c)];
                if (*v < 0 || s->version[*v].waiting >= 0) *v = sim_new_version(s, *v);
                s->version[*v].left++;
                s->entry_version[s->entry[i] + c] = *v;
            }
        }
    }
    free(current);
}

static inline bool sim_check(const Plan* plan, const Network* net, int64_t bytes, const SimSettings* set,
                             Error* error) {
    if (plan->ranks != net->ranks)
        return fail(error, "%s is a plan for %d ranks, network %s has %d", plan->name, plan->ranks, net->name,
                    net->ranks);
    if (bytes < 0 || set->element_size < 1 || bytes % set->element_size != 0)
        return fail(error, "%lld bytes are not whole elements of %d", (long long)bytes, set->element_size);
    if (set->payload < 1 || set->flit < 0 || set->segments < 1 || set->segments > 4096)
        return fail(error, "packets of %d bytes, heads of %d, %d segments: at least 1, 0 and 1 (and at most 4096)",
                    set->payload, set->flit, set->segments);
    if (!(set->burst >= 0) || !isfinite(set->burst)) return fail(error, "a burst of %g bytes", set->burst);
    if (!(set->reduce >= 0 && set->overhead >= 0) || !isfinite(set->reduce) || !isfinite(set->overhead))
        return fail(error, "%g s a byte added, %g s a message: they have to be 0 or more", set->reduce, set->overhead);
    if (set->ports < 0 || set->ports > 64 || set->port_buffer < 0 || set->port_ahead < 0 || !(set->port_fill >= 0) ||
        !isfinite(set->port_fill))
        return fail(error, "%d ports, %d packets ahead, %g s a packet: at most 64 ports, and nothing below 0",
                    set->ports, set->port_ahead, set->port_fill);
    if (set->window < 1 || set->flight < 1 || set->subflows < 1 || !(set->timeout > 0 && set->timeout < INFINITY) ||
        !(set->dead_at >= 0) || (set->transport ? set->ports > 0 || set->in_order : set->dead[0] >= 0))
        return fail(error,
                    "--timeout, --flight, --window, --subflows are above 0, --ports 0; --dead-link needs --transport");
    for (int i = 0; i < net->links; i++) {
        if (!(net->link[i].bandwidth > 0 && net->link[i].latency >= 0))
            return fail(error, "network %s: a link of %g bytes/s, %g s", net->name, net->link[i].bandwidth,
                        net->link[i].latency);
    }
    int64_t entries = 0;
    for (int64_t i = 0; i < plan->n; i++) entries += plan->transfers[i].chunks;
    if (entries > INT32_MAX)
        return fail(error, "%s: %lld chunks on the way, more than this can follow", plan->name, (long long)entries);
    return plan_check_rows(plan, error);
}

static inline void sim_free(Sim* s) {
    transport_free(s);
    free(s->message), free(s->passage), free(s->sends_on), free(s->missing), free(s->line_first), free(s->line_at),
        free(s->line);
    free(s->entry), free(s->entry_row), free(s->version), free(s->host), free(s->rank_step), free(s->rank_first);
    free(s->rank_row), free(s->rank_at), free(s->link), free(s->wire), free(s->port_holds), free(s->port_row),
        free(s->port_head), free(s->came), free(s->heap);
}

static inline bool sim_prepare(Sim* s, const Routes* routes, Error* error) {
    const size_t n = (size_t)s->plan->n, ranks = (size_t)s->plan->ranks;
    s->host = (double*)checked_calloc(2 * ranks, sizeof(double), "ranks");
    s->adder = s->host + ranks;
    s->missing = (int32_t*)checked_calloc(2 * n, sizeof(int32_t), "rows");
    s->send_next = s->missing + n;
    s->sends_on = (int32_t*)checked_malloc(n * sizeof(int32_t), "rows");
    s->result->flow = (double*)checked_calloc(n, sizeof(double), "rows");
    sim_find_links(s);
    if (!(s->set.transport ? transport_prepare(s, error) : sim_find_ways(s, routes, error))) return false;
    if (s->set.injection != SIM_LOCKSTEP) sim_find_dependencies(s);
    if (s->set.injection == SIM_FREE) sim_find_lines(s);
    if (s->set.injection >= SIM_STEPS) sim_find_steps(s);
    return true;
}

// ---- Run --------------------------------------------------------------------------------------------------------

static inline void sim_start(Sim* s) {
    if (s->set.injection == SIM_LOCKSTEP) sim_start_step(s);
    if (s->set.injection == SIM_FREE) {
        for (int l = 0; l < s->net->links; l++) sim_try_line(s, l);
    }
    if (s->set.injection >= SIM_STEPS) {
        for (int r = 0; r < s->plan->ranks; r++) sim_enter_step(s, r);
    }
}

static inline void sim_run(Sim* s) {
    while (s->heap_n > 0) {
        const SimEvent e = sim_pop(s);
        s->now = e.time;
        switch (e.kind) {
        case SIM_PORT: sim_port(s, e.a, e.b); break;
        case SIM_RELEASE: sim_release(s, e.a); break;
        case SIM_READY: sim_come(s, e.a); break;
        case SIM_LINK_FREE: sim_link_free(s, e.a, e.b); break;
        case SIM_ARRIVE:
            if (!s->flow || transport_arrive(s, e.a)) sim_arrive(s, s->message[e.a].row);
            break;
        case SIM_ACK: transport_report(s, e.a, e.b); break;
        case SIM_DONE: sim_done(s, e.a); break;
        default: sim_enter_step(s, e.a); break;
        }
    }
}

// Runs the plan for a vector of `bytes` over the network. False: invalid settings, see *error. The result is to be
// freed.
static inline bool simulate(const Plan* plan, const Network* net, const Routes* routes, int64_t bytes,
                            const SimSettings* settings, SimResult* result, Error* error) {
    Sim s = {};
    memset(result, 0, sizeof *result);
    if (!sim_check(plan, net, bytes, settings, error)) return false;
    s.plan = plan;
    s.net = net;
    s.set = *settings;
    s.result = result;
    s.elements = bytes / settings->element_size;
    bool ok = sim_prepare(&s, routes, error);
    if (ok) {
        sim_start(&s);
        sim_run(&s);
        if (s.cut)
            ok = fail(error, "%s on %s: the dead link is on all paths from rank %d to rank %d", plan->name, net->name,
                      (s.cut - 1) / plan->ranks, (s.cut - 1) % plan->ranks);
        else if (s.done < plan->n)
            ok = fail(error, "%s on %s: %lld of %lld messages wait for each other", plan->name, net->name,
                      (long long)(plan->n - s.done), (long long)plan->n);
    }
    sim_free(&s);
    if (!ok) sim_result_free(result);
    return ok;
}

// Mean fraction of the time that links were busy.
static inline double sim_use(const SimResult* result, int links) {
    double busy = 0;
    for (int l = 0; l < links; l++) busy += result->busy[l];
    return result->seconds > 0 && links > 0 ? busy / (result->seconds * links) : 0;
}
