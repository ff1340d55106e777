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
Buffers between links are unlimited. A message has one path; with a transport each of its packets chooses one
(network_transport.h).

Limits. A link that is limited by a token bucket (as Linux's tc tbf) lets `burst` bytes through at once when it has been
idle; the bucket refills at its bandwidth.

Ranks. A rank sends a row of the plan when all its arrivals of earlier steps, of the same chunks, are there and added;
rows with the same first link go in the order of the plan, one after another. So there is no barrier between steps.

Sending and receiving each cost the processor `overhead` seconds a message, one after another; 0 if not set. Other work
of the processor, as adding, is not modelled.

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
    return (sim_part(s, bytes, segments, to) - sim_part(s, bytes, segments, from)) / s->net->link[l].bandwidth;
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
    const double wire = (link->until - link->start + link->saved) * here->bandwidth; // bytes of its segments
    const double packet = fmin(wire, s->set.payload);
    const double first = fmin(link->until, link->start + packet / here->bandwidth) + here->latency;
    const double last = link->until + here->latency + packet / there->bandwidth - wire / there->bandwidth;
    return fmax(first, last);
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
    sim_begin(s, link, s->net->link[l].bandwidth, sim_duration(s, p->message, link->segment, link->end, l));
    sim_push(s, link->until, SIM_LINK_FREE, l, ++link->version);
    if (i < last) sim_push(s, sim_ready_next(s, link, &s->net->link[l], &s->net->link[p[1].link]), SIM_READY, i + 1, 1);
}

static inline void sim_try_link(Sim* s, int32_t l) {
    SimLink* link = &s->link[l];
    const bool dead = (l == s->set.dead[0] || l == s->set.dead[1]) && s->now >= s->set.dead_at;
    while (dead && link->head >= 0) {
        const int32_t lost = s->passage[sim_dequeue(s, link)].message;
        sim_push(s, s->message[lost].sent + s->set.timeout, SIM_ACK, lost, false);
    }
    if (!link->busy && link->head >= 0) sim_serve(s, l);
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
    link->busy = false;
    if (p->served < p->ready && link->tail != i) sim_enqueue(s, i);
    if (p->served == sim_segments(s, m->bytes)) {
        if (last) sim_push(s, s->now + s->net->link[l].latency, SIM_ARRIVE, p->message, 0);
        if (first && (!s->flow || transport_left(s, p->message))) sim_left(s, m->row);
    }
    sim_try_link(s, l);
}

// ---- Ranks ------------------------------------------------------------------------------------------------------

// The end of a rank's processor work for a message.
static inline double sim_host(Sim* s, int rank) {
    return s->host[rank] = fmax(s->host[rank], s->now) + s->set.overhead;
}

// The processor has prepared a message, which may enter its first link after the earlier ones.
static inline void sim_release(Sim* s, int32_t row) {
    SimLink* link = &s->link[s->sends_on[row]];
    const int32_t last = link->send_tail;
    s->send_next[row] = -1;
    link->send_tail = row;
    if (last >= 0) {
        s->send_next[last] = row;
    } else {
        link->send_head = row;
        sim_set_out(s, row);
    }
}

// A row has nothing left to wait for.
static inline void sim_send(Sim* s, int32_t row) {
    if (sim_bytes(s, row) == 0) { // an empty chunk: the vector has fewer elements than chunks
        sim_push(s, s->now, SIM_DONE, row, 0);
        return;
    }
    s->result->messages++;
    if (s->set.overhead == 0)
        sim_release(s, row);
    else
        sim_push(s, sim_host(s, s->plan->transfers[row].from), SIM_RELEASE, row, 0);
}

// Sends the possible rows of a link, in order.
static inline void sim_try_line(Sim* s, int32_t l) {
    while (s->line_at[l] < s->line_first[l + 1] && s->missing[s->line[s->line_at[l]]] == 0)
        sim_send(s, s->line[s->line_at[l]++]);
}

// The last bit of a message has left its sender.
static inline void sim_left(Sim* s, int32_t row) {
    SimLink* link = &s->link[s->sends_on[row]];
    link->send_head = s->send_next[row];
    if (link->send_head < 0)
        link->send_tail = -1;
    else
        sim_set_out(s, link->send_head);
}

static inline void sim_complete(Sim* s, int32_t v) {
    while (v >= 0 && --s->version[v].left == 0) {
        for (int32_t e = s->version[v].waiting; e >= 0; e = s->entry_next[e]) {
            if (--s->missing[s->entry_row[e]] == 0) sim_try_line(s, s->sends_on[s->entry_row[e]]);
        }
        v = s->version[v].next;
    }
}

// A message has arrived: the processor takes it.
static inline void sim_arrive(Sim* s, int32_t row) {
    s->result->flow[row] += s->now;
    sim_push(s, s->set.overhead > 0 ? sim_host(s, s->plan->transfers[row].to) : s->now, SIM_DONE, row, 0);
}

static inline void sim_done(Sim* s, int32_t row) {
    s->result->seconds = s->now;
    s->done++;
    for (int64_t e = s->entry[row]; e < s->entry[row + 1]; e++) sim_complete(s, s->entry_version[e]);
}

// ---- Prepare ----------------------------------------------------------------------------------------------------

static inline bool sim_find_ways(Sim* s, const Routes* routes, Error* error) {
    const int64_t n = s->plan->n;
    int* links = (int*)checked_malloc(((size_t)s->net->vertices + 1) * sizeof(int), "ways");
    int64_t passages = 0;
    int32_t at = 0;
    for (int64_t i = 0; i < n; i++) passages += plan_way(s->plan, s->net, routes, i, links);
    if (passages > INT32_MAX) {
        free(links);
        return fail(error, "%s: its messages go over %lld links, more than this can follow", s->plan->name,
                    (long long)passages);
    }
    s->message = (SimMessage*)checked_calloc((size_t)n, sizeof(SimMessage), "ways");
    s->passage = (SimPassage*)checked_malloc((size_t)passages * sizeof(SimPassage), "ways");
    for (int64_t i = 0; i < n; i++) {
        SimMessage* m = &s->message[i];
        m->bytes = sim_bytes(s, i);
        m->row = (int32_t)i;
        m->first = at;
        m->hops = plan_way(s->plan, s->net, routes, i, links);
        s->sends_on[i] = links[0];
        for (int k = 0; k < m->hops; k++) {
            const SimPassage p = {(int32_t)i, links[k], 0, 0, -1};
            s->passage[at++] = p;
        }
    }
    free(links);
    return true;
}

static inline void sim_find_links(Sim* s) {
    const size_t links = (size_t)s->net->links;
    s->link = (SimLink*)checked_calloc(links, sizeof(SimLink), "links");
    s->result->busy = (double*)checked_calloc(links, sizeof(double), "links");
    for (size_t l = 0; l < links; l++) {
        s->link[l].credit = s->set.burst;
        s->link[l].head = s->link[l].tail = s->link[l].send_head = s->link[l].send_tail = -1;
    }
}

// Lists the rows of every link, in order.
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
    if (set->payload < 1 || set->segments < 1 || set->segments > 4096)
        return fail(error, "packets of %d bytes, %d segments: at least 1, and at most 4096 segments", set->payload,
                    set->segments);
    if (!(set->burst >= 0) || !isfinite(set->burst)) return fail(error, "a burst of %g bytes", set->burst);
    if (!(set->overhead >= 0) || !isfinite(set->overhead)) return fail(error, "an overhead of %g s", set->overhead);
    if (set->window < 1 || set->flight < 1 || set->subflows < 1 || !(set->timeout > 0 && set->timeout < INFINITY))
        return fail(error, "--timeout, --flight, --window, --subflows have to be above 0");
    if (!(set->dead_at >= 0) || (!set->transport && set->dead[0] >= 0))
        return fail(error, "--dead-link has a time of 0 or more, and needs --transport");
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
    free(s->message), free(s->passage), free(s->sends_on), free(s->missing), free(s->line_first), free(s->line_at);
    free(s->line), free(s->entry), free(s->entry_row), free(s->version), free(s->host), free(s->link), free(s->heap);
}

static inline bool sim_prepare(Sim* s, const Routes* routes, Error* error) {
    const size_t n = (size_t)s->plan->n, ranks = (size_t)s->plan->ranks;
    s->host = (double*)checked_calloc(ranks, sizeof(double), "ranks");
    s->missing = (int32_t*)checked_calloc(2 * n, sizeof(int32_t), "rows");
    s->send_next = s->missing + n;
    s->sends_on = (int32_t*)checked_malloc(n * sizeof(int32_t), "rows");
    s->result->flow = (double*)checked_calloc(n, sizeof(double), "rows");
    sim_find_links(s);
    if (!(s->set.transport ? transport_prepare(s, error) : sim_find_ways(s, routes, error))) return false;
    sim_find_dependencies(s);
    sim_find_lines(s);
    return true;
}

// ---- Run --------------------------------------------------------------------------------------------------------

static inline void sim_run(Sim* s) {
    for (int l = 0; l < s->net->links; l++) sim_try_line(s, l);
    while (s->heap_n > 0) {
        const SimEvent e = sim_pop(s);
        s->now = e.time;
        switch (e.kind) {
        case SIM_RELEASE: sim_release(s, e.a); break;
        case SIM_READY: sim_ready(s, e.a, 1); break;
        case SIM_LINK_FREE: sim_link_free(s, e.a, e.b); break;
        case SIM_ARRIVE:
            if (!s->flow || transport_arrive(s, e.a)) sim_arrive(s, s->message[e.a].row);
            break;
        case SIM_ACK: transport_report(s, e.a, e.b); break;
        default: sim_done(s, e.a); break;
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
