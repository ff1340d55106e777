/*
collective_fixture.h: what the tests of collectives share. Networks built a second time, as graphs, link by link in the
order of ports; shortest routes; the networks and algorithms that are tried; a machine that executes a plan on numbers.
*/
#ifndef COLLECTIVE_FIXTURE_H
#define COLLECTIVE_FIXTURE_H

#include "../../../comm/collectives/collectives.h"
#include "test.h"

enum { BRIEF, NORMAL, FULL };
static int effort = NORMAL;
static inline int by_effort(int brief, int normal, int full) {
    return effort == BRIEF ? brief : effort == NORMAL ? normal : full;
}

static uint64_t random_state = 1;
static inline int random_below(int n) { return (int)(random_uniform(7, 0, random_state++) * (float)n); }
static inline bool chance(int percent) { return random_below(100) < percent; }

// Many cases that are one check; the first few that go wrong are shown.
typedef struct {
    int tried, right;
} Tally;

__attribute__((format(printf, 3, 4))) static inline bool tally(Tally* t, bool ok, const char* format, ...) {
    t->tried++, t->right += ok;
    if (ok || t->tried - t->right > 5) return ok;
    printf("      wrong: ");
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    return ok;
}

static inline void tally_end(const Tally* t, const char* what) {
    check(t->right == t->tried && t->tried > 0, "%s: %d of %d are right", what, t->right, t->tried);
}

// ----------------------------------------------------------------------------------------------------------------
// Files

static char scratch[64]; // a file for networks

static inline void write_scratch(const char* bytes, size_t n) {
    FILE* file = fopen(scratch, "wb");
    if (!file || fwrite(bytes, 1, n, file) != n || fclose(file) != 0) die("%s: %s", scratch, strerror(errno));
}

static inline bool network_of_bytes(Network* net, const char* bytes, size_t n, Error* error) {
    write_scratch(bytes, n);
    return network_build(net, scratch, error);
}

// A network that has to be right: by its name, or, if it begins with "ranks", as the text of a file.
static inline Network network_of(const char* text) {
    Network net;
    Error error = {""};
    const bool file = strncmp(text, "ranks", 5) == 0;
    if (!(file ? network_of_bytes(&net, text, strlen(text), &error) : network_build(&net, text, &error)))
        die("%s: %s", text, error.text);
    return net;
}

// ----------------------------------------------------------------------------------------------------------------
// Graphs: networks, made here a second time

typedef struct {
    int from, to, speed; // speed: a multiple of some bandwidth
    int room;            // transfers a step
} Arc;

typedef struct {
    int ranks, vertices, reach, n, capacity;
    Arc* arc;   // by `from`, in the order of ports
    int* first; // (vertices + 1)
} Graph;

static inline Graph graph_new(int ranks, int switches, int reach) {
    const Graph g = {ranks, ranks + switches, reach, 0, 0, NULL, NULL};
    return g;
}

static inline void graph_free(Graph* g) {
    free(g->arc);
    free(g->first);
}

static inline void graph_arc(Graph* g, int from, int to, int speed) {
    if (g->n == g->capacity) g->arc = (Arc*)checked_grow(g->arc, &g->capacity, 64, sizeof(Arc), "a graph");
    const Arc arc = {from, to, speed, 0};
    g->arc[g->n++] = arc;
}

static inline void graph_join(Graph* g, int a, int b) {
    graph_arc(g, a, b, 1);
    graph_arc(g, b, a, 1);
}

// Whether arc a comes before b: by where they begin, then those to ranks; by their ends if `by_end`.
static inline bool arc_before(const Graph* g, const Arc* a, const Arc* b, bool by_end) {
    if (a->from != b->from) return a->from < b->from;
    if (by_end) return a->to < b->to;
    return a->to < g->ranks && b->to >= g->ranks;
}

// Sorted by insertion, which keeps the order of equals; then the room of each.
static inline void graph_finish(Graph* g, bool by_end) {
    int slowest = 1 << 20;
    for (int i = 1; i < g->n; i++) {
        const Arc arc = g->arc[i];
        int k = i;
        for (; k > 0 && arc_before(g, &arc, &g->arc[k - 1], by_end); k--) g->arc[k] = g->arc[k - 1];
        g->arc[k] = arc;
    }
    for (int i = 0; i < g->n; i++) slowest = (int)min_i64(slowest, g->arc[i].speed);
    g->first = (int*)checked_calloc((size_t)g->vertices + 1, sizeof(int), "a graph");
    for (int i = 0; i < g->n; i++) {
        g->arc[i].room = g->arc[i].speed / slowest;
        for (int v = g->arc[i].from + 1; v <= g->vertices; v++) g->first[v]++;
    }
}

// North, South, West, East, as words: a step down and up in every dimension, around the ends of a torus.
static inline Graph graph_grid(int A, int B, int C, bool wraps) {
    Graph g = graph_new(A * B * C, 0, 1);
    const int side[3] = {A, B, C}, stride[3] = {B * C, C, 1};
    for (int v = 0; v < g.ranks; v++) {
        const int at[3] = {v / (B * C), v / C % B, v % C};
        for (int d = 0; d < 3; d++) {
            if (at[d] > 0)
                graph_arc(&g, v, v - stride[d], 1);
            else if (wraps && side[d] > 2)
                graph_arc(&g, v, v + (side[d] - 1) * stride[d], 1);
            if (at[d] < side[d] - 1)
                graph_arc(&g, v, v + stride[d], 1);
            else if (wraps && side[d] > 2)
                graph_arc(&g, v, v - (side[d] - 1) * stride[d], 1);
        }
    }
    graph_finish(&g, false);
    return g;
}

static inline Graph graph_full(int N) {
    Graph g = graph_new(N, 0, 1);
    for (int a = 0; a < N; a++) {
        for (int b = 0; b < N; b++) {
            if (a != b) graph_arc(&g, a, b, 1);
        }
    }
    graph_finish(&g, false);
    return g;
}

// Two levels: m leaf switches and m spines. One level: one switch.
static inline Graph graph_fattree(int m, int levels) {
    Graph g = graph_new(levels == 2 ? m * m : m, levels == 2 ? 2 * m : 1, 2 * levels - 1);
    for (int v = 0; v < g.ranks; v++) graph_join(&g, v, g.ranks + v / m);
    for (int leaf = 0; leaf < m && levels == 2; leaf++) {
        for (int spine = 0; spine < m; spine++) graph_join(&g, g.ranks + leaf, g.ranks + m + spine);
    }
    graph_finish(&g, false);
    return g;
}

static inline Graph graph_bigraph(int m, int switches) {
    Graph g = graph_new(m * switches, switches, 2);
    for (int v = 0; v < g.ranks; v++) graph_join(&g, v, g.ranks + v / m);
    for (int a = 0; a < switches / 2; a++) {
        for (int b = switches / 2; b < switches; b++) graph_join(&g, g.ranks + a, g.ranks + b);
    }
    graph_finish(&g, false);
    return g;
}

static inline Graph graph_dgx(void) {
    Graph g = graph_new(16, 2, 2);
    for (int v = 0; v < 16; v++) graph_join(&g, v, 16 + v / 8);
    for (int i = 0; i < 8; i++) graph_join(&g, 16, 17);
    graph_finish(&g, false);
    return g;
}

// The arcs turned round; ports follow the vertices they lead to.
static inline Graph graph_reverse(const Graph* g) {
    Graph back = graph_new(g->ranks, g->vertices - g->ranks, g->reach);
    for (int i = 0; i < g->n; i++) graph_arc(&back, g->arc[i].to, g->arc[i].from, g->arc[i].speed);
    graph_finish(&back, true);
    return back;
}

// As many arcs lead back as forth, speed by speed.
static inline bool graph_is_symmetric(const Graph* g) {
    for (int i = 0; i < g->n; i++) {
        int balance = 0;
        for (int k = 0; k < g->n; k++) {
            const Arc *a = &g->arc[i], *b = &g->arc[k];
            if (a->speed != b->speed) continue;
            balance += (a->from == b->from && a->to == b->to) - (a->from == b->to && a->to == b->from);
        }
        if (balance != 0) return false;
    }
    return true;
}

static inline bool network_is_graph(const Network* net, const Graph* g, double bandwidth, double latency) {
    bool ok = net->ranks == g->ranks && net->vertices == g->vertices && net->links == g->n;
    for (int i = 0; i < g->n && ok; i++) {
        const Link* link = &net->link[i];
        ok = link->from == g->arc[i].from && link->to == g->arc[i].to && link->latency == latency &&
             fabs(link->bandwidth - bandwidth * g->arc[i].speed) < 1e-6 * bandwidth;
    }
    for (int v = 0; v <= g->vertices && ok; v++) ok = net->first[v] == g->first[v];
    return ok && net->reach == g->reach && network_is_symmetric(net) == graph_is_symmetric(g);
}

// Lines of a file at random, and the graph they mean. Loops of one-way links or trees of links join all ranks and
// switches; then there is some more.
typedef struct {
    char text[4096];
    int length;
    Graph graph;
} AppendLog;

static inline void append_log_add(AppendLog* l, bool both, int a, int b, int speed) {
    const char* word = both ? "link" : "oneway";
    l->length += snprintf(l->text + l->length, sizeof l->text - (size_t)l->length, "%s %d %d %dMB/s 1us\n", word, a, b,
                          100 * speed);
    graph_arc(&l->graph, a, b, speed);
    if (both) graph_arc(&l->graph, b, a, speed);
}

enum { ONE_WAY = 1, SPEEDS = 2, PARALLEL = 4, SWITCHES = 8, ALL_FLAGS = 15 };

static inline AppendLog random_lines(int ranks, int flags) {
    AppendLog l;
    const int switches = flags & SWITCHES ? 1 + random_below(4) : 0, n = ranks + switches, more = random_below(2 * n);
    const bool loop = (flags & ONE_WAY) && n > 1 && chance(50);
    l.graph = graph_new(ranks, switches, switches > 1 ? switches : 1);
    l.length = snprintf(l.text, sizeof l.text, "ranks %d # these\n\n# and\nswitches %d\n", ranks, switches);
    const int turned = random_below(n);
#define SPEED ((flags & SPEEDS) ? 1 + random_below(4) : 2)
    for (int v = loop ? 0 : 1; v < n; v++) {
        if (loop)
            append_log_add(&l, false, (v + turned) % n, (v + 1 + turned) % n, SPEED);
        else
            append_log_add(&l, true, (v + turned) % n, (random_below(v) + turned) % n, SPEED);
    }
    for (int i = 0; i < more; i++) {
        const int a = random_below(n), b = random_below(n);
        bool joined = a == b;
        for (int k = 0; k < l.graph.n && !(flags & PARALLEL); k++) {
            const Arc* arc = &l.graph.arc[k];
            joined |= (arc->from == a && arc->to == b) || (arc->from == b && arc->to == a);
        }
        if (!joined) append_log_add(&l, !((flags & ONE_WAY) && chance(50)), a, b, SPEED);
    }
#undef SPEED
    graph_finish(&l.graph, false);
    return l;
}

// ----------------------------------------------------------------------------------------------------------------
// Routes

// Links between all pairs at least, by relaxing every link as long as that helps. -1: none.
static inline int* all_distances(const Network* net) {
    const size_t V = (size_t)net->vertices;
    int* d = (int*)checked_malloc(V * V * sizeof(int), "a test");
    for (size_t i = 0; i < V * V; i++) d[i] = i / V == i % V ? 0 : -1;
    for (bool shorter = true; shorter;) {
        shorter = false;
        for (int i = 0; i < net->links; i++) {
            const size_t a = (size_t)net->link[i].from * V, b = (size_t)net->link[i].to * V;
            for (size_t to = 0; to < V; to++) {
                if (d[b + to] < 0 || (d[a + to] >= 0 && d[a + to] <= d[b + to] + 1)) continue;
                d[a + to] = d[b + to] + 1;
                shorter = true;
            }
        }
    }
    return d;
}

// The link that a message at v takes, by the words at the top of topology.h.
static inline int expected_route(const Network* net, const int* d, int v, int to) {
    const size_t V = (size_t)net->vertices;
    int nearest[64], n = 0;
    for (int i = 0; i < net->links; i++) {
        const Link* link = &net->link[i];
        if (link->from != v || d[(size_t)v * V + (size_t)to] < 0 || v == to) continue;
        if (d[(size_t)link->to * V + (size_t)to] == d[(size_t)v * V + (size_t)to] - 1) nearest[n++] = i;
    }
    return n ? nearest[to % n] : -1;
}

// On a grid: whether a link goes along the last dimension in which v is not yet where `to` is.
static inline bool link_is_in_order(const Network* net, int v, int next, int to) {
    for (int i = net->dimensions - 1, a = v, b = to, c = next; i >= 0; i--) {
        const int side = net->sides[i], x = a % side, y = b % side, z = c % side;
        a /= side, b /= side, c /= side;
        if (x != y) return z != x && a == c;
        if (x != z) return false;
    }
    return false;
}

static inline bool routes_are_right(const Network* net) {
    Routes routes = network_routes(net);
    int *d = all_distances(net), *hops = (int*)checked_malloc((size_t)net->vertices * 2 * sizeof(int), "a test");
    Network back = network_reverse(net);
    const size_t V = (size_t)net->vertices;
    bool ok = routes.ranks == net->ranks;
    for (int to = 0; to < net->ranks && ok; to++) {
        network_hops(&back, to, hops, hops + net->vertices);
        for (int v = 0; v < net->vertices && ok; v++) {
            const int link = routes_next(&routes, v, to), far = d[(size_t)v * V + (size_t)to];
            ok = hops[v] == far && (link < 0) == (far <= 0);
            if (!ok || link < 0) continue;
            const int next = net->link[link].to;
            ok = net->link[link].from == v && d[(size_t)next * V + (size_t)to] == far - 1;
            if (net->dimensions)
                ok = ok && link_is_in_order(net, v, next, to);
            else
                ok = ok && link == expected_route(net, d, v, to);
        }
    }
    network_free(&back);
    routes_free(&routes);
    free(d);
    free(hops);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------------
// Networks on which algorithms are tried

static const char* const files[] = {
    "ranks 1\n",
    "ranks 1\nswitches 1\nlink 0 1\n",
    "ranks 2\nlink 0 1\n",
    "ranks 5\noneway 0 1\noneway 1 2\noneway 2 3\noneway 3 4\noneway 4 0\n",
    "ranks 4\nswitches 1\nlink 0 4 10GB/s\nlink 1 4 10GB/s\nlink 2 4 30GB/s\nlink 3 4 20GB/s\n",
    "ranks 5\nswitches 3\nlink 0 5\nlink 1 5\nlink 2 6\nlink 3 6\nlink 4 7\noneway 5 6\noneway 6 7\noneway 7 5\n",
    "ranks 3\nlink 0 1\nlink 0 1\nlink 1 2\nlink 1 2 32GB/s\nlink 2 0\n",
    "ranks 5\nswitches 2\nlink 0 5\nlink 1 5\nlink 2 6\nlink 3 6\nlink 5 6\nlink 0 2\nlink 4 1\nlink 4 3 8GB/s\n",
    "ranks 4\nswitches 2\nlink 0 4\nlink 1 4\nlink 2 5\nlink 3 5\nlink 4 5\noneway 4 5\nlink 4 5 48GB/s\n",
    "ranks 4\nlink 0 1 8GB/s\nlink 1 2 16GB/s\nlink 2 3 24GB/s\nlink 3 0 28GB/s\n",
    "ranks 3\noneway 0 1 10GB/s\noneway 0 1 20GB/s\noneway 1 0 20GB/s\noneway 1 0 10GB/s\nlink 1 2 10GB/s\n",
    "ranks 7\nlink 0 1\nlink 1 2\nlink 1 3\nlink 3 4\nlink 3 5\noneway 5 6 1GB/s\noneway 6 5 1.5GB/s\nlink 6 0 2GB/s\n",
    "ranks 3\nswitches 4\nlink 0 3\nlink 3 4\nlink 4 5\nlink 5 6\nlink 6 1\nlink 2 4\n",
    "ranks 3\nlink 0 1 400GB/s\nlink 1 2 100GB/s\nlink 0 2 1GB/s\n"};

enum { MOST_NETWORKS = 256, FILES = sizeof files / sizeof files[0] };

static inline int make_networks(Network* nets) {
    static const char* const names[] = {
        "mesh:1x1",    "mesh:1x2",    "mesh:2x1",    "mesh:1x5",    "mesh:6x1",    "mesh:2x2",    "mesh:2x3",
        "mesh:3x2",    "mesh:3x3",    "mesh:3x4",    "mesh:4x3",    "mesh:4x4",    "mesh:5x3",    "mesh:2x2x2",
        "mesh:2x3x4",  "mesh:3x3x3",  "mesh:1x4x3",  "mesh:4x1x3",  "mesh:3x2x1",  "mesh:1x1x3",  "mesh:3x3x2",
        "torus:1x1",   "torus:1x4",   "torus:2x2",   "torus:2x3",   "torus:3x3",   "torus:3x4",   "torus:4x4",
        "torus:5x5",   "torus:2x6",   "torus:6x4",   "torus:2x2x2", "torus:3x3x3", "torus:2x3x4", "torus:1x3x4",
        "torus:4x4x2", "full:2",      "full:3",      "full:4",      "full:8",      "full:11",     "full:16",
        "fattree:3,1", "fattree:2,2", "fattree:2,3", "fattree:3,2", "fattree:4,2", "fattree:2,5", "bigraph:1x2",
        "bigraph:2x2", "bigraph:3x4", "bigraph:2x6", "bigraph:1x8", "dgx"};
    int n = 0;
    char ring[32];
    for (int N = 1; N <= 33; N++) {
        if (effort == BRIEF && N > 9 && N % 5 != 2 && N != 16) continue;
        snprintf(ring, sizeof ring, "ring:%d", N);
        nets[n++] = network_of(ring);
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) nets[n++] = network_of(names[i]);
    for (int i = 0; i < FILES; i++) nets[n++] = network_of(files[i]);
    for (int i = 0; i < by_effort(16, 32, 128); i++) {
        AppendLog l = random_lines(2 + random_below(9), i & ALL_FLAGS);
        nets[n++] = network_of(l.text);
        graph_free(&l.graph);
    }
    return n;
}

// All rows of the table, and some with other numbers.
static const char* const variants[] = {"double-tree:1", "multitree:2", "multitree:3", "double-tree:3",
                                       "forest:2,5",    "forest:1,1",  "forest:3"};
enum { PLANS = ALGORITHMS + sizeof variants / sizeof variants[0] };

static inline const char* tried(size_t a) { return a < ALGORITHMS ? algorithms[a].name : variants[a - ALGORITHMS]; }

// Whether comm/collectives/collectives.h's table says that this is possible.
static inline bool is_served(const char* name, PlanKind kind, const Network* net) {
    AlgorithmChoice choice;
    Error error;
    if (!algorithm_parse(name, &choice, &error)) die("%s", error.text);
    return !algorithm_refuses(&algorithms[choice.algorithm], kind, net);
}

static inline Plan plan_of(const char* algorithm, PlanKind kind, const Network* net) {
    Plan plan;
    Error error = {""};
    if (!collective_build(&plan, algorithm, kind, net, &error)) die("%s", error.text);
    return plan;
}

// ----------------------------------------------------------------------------------------------------------------
// The machine: a plan, carried out on numbers

typedef struct {
    int64_t whole;
    float real;
    bool there; // else the rank has never had it
} Number;

// Where chunk c of a vector of n begins: chunks of a part, or of the whole vector, as long as each other up to one, the
// longer ones first.
static inline int chunk_begin(const Plan* plan, int n, int c) {
    const int parts = plan->kind == PLAN_ALL_REDUCE ? 1 : plan->ranks, chunks = plan->chunks / parts, part = n / parts;
    int begin = c / chunks * part;
    for (int i = 0; i < c % chunks; i++) begin += part / chunks + (i < part % chunks);
    return begin;
}

typedef struct {
    const Plan* plan;
    int n;
    int* begin;           // (chunks + 1)
    Number *have, *start; // (ranks, n)
    Number* sent;         // of a step
} Machine;

static inline bool owns(const Plan* plan, int rank, int chunk) { return chunk / (plan->chunks / plan->ranks) == rank; }

static inline Machine machine_new(const Plan* plan, int n) {
    const size_t all = (size_t)plan->ranks * (size_t)n;
    Machine m = {plan,
                 n,
                 (int*)checked_malloc(((size_t)plan->chunks + 1) * sizeof(int), "a machine"),
                 (Number*)checked_malloc(all * sizeof(Number), "a machine"),
                 (Number*)checked_malloc(all * sizeof(Number), "a machine"),
                 NULL};
    for (int c = 0; c < plan->chunks; c++) m.begin[c] = chunk_begin(plan, n, c);
    m.begin[plan->chunks] = n;
    for (int r = 0; r < plan->ranks; r++) {
        for (int c = 0; c < plan->chunks; c++) {
            for (int i = m.begin[c]; i < m.begin[c + 1]; i++) {
                const Random4 x = philox(random_state++, 0, 0);
                const Number number = {(int64_t)(x.word[0] | (uint64_t)x.word[1] << 32),
                                       (float)(int32_t)x.word[2] * 0x1p-31f,
                                       plan->kind != PLAN_ALL_GATHER || owns(plan, r, c)};
                m.have[(size_t)r * (size_t)n + (size_t)i] = number;
            }
        }
    }
    if (all) memcpy(m.start, m.have, all * sizeof(Number));
    return m;
}

static inline void machine_free(Machine* m) {
    free(m->begin);
    free(m->have);
    free(m->start);
    free(m->sent);
}

// The numbers that a transfer is about, of one of its ends.
static inline Number* machine_at(const Machine* m, const Transfer* t, int rank, int* length) {
    *length = m->begin[t->chunk + t->chunks] - m->begin[t->chunk];
    return m->have + (size_t)rank * (size_t)m->n + m->begin[t->chunk];
}

// One step: everything is sent before anything is received. False: something is sent, or added to, that is not there.
static inline bool machine_step(Machine* m, const Transfer* rows, int64_t n) {
    size_t room = 0, used = 0;
    int length;
    bool ok = true;
    for (int64_t i = 0; i < n; i++) machine_at(m, &rows[i], 0, &length), room += (size_t)length;
    m->sent = (Number*)checked_malloc(room * sizeof(Number), "a machine");
    for (int64_t i = 0; i < n; i++) {
        const Number* from = machine_at(m, &rows[i], rows[i].from, &length);
        for (int k = 0; k < length; k++) ok = ok && from[k].there, m->sent[used++] = from[k];
    }
    used = 0;
    for (int64_t i = 0; i < n; i++) {
        Number* to = machine_at(m, &rows[i], rows[i].to, &length);
        for (int k = 0; k < length; k++) {
            const Number came = m->sent[used++];
            if (!rows[i].add) {
                to[k] = came;
                continue;
            }
            ok = ok && to[k].there;
            to[k].whole = (int64_t)((uint64_t)to[k].whole + (uint64_t)came.whole);
            to[k].real += came.real;
        }
    }
    free(m->sent);
    m->sent = NULL;
    return ok;
}

// What a rank must end with: element i of chunk c.
static inline int64_t machine_expects(const Machine* m, int chunk, int i) {
    uint64_t sum = 0;
    for (int r = 0; r < m->plan->ranks; r++) {
        if (m->plan->kind != PLAN_ALL_GATHER || owns(m->plan, r, chunk))
            sum += (uint64_t)m->start[(size_t)r * (size_t)m->n + (size_t)i].whole;
    }
    return (int64_t)sum;
}

static inline bool machine_is_right(const Machine* m) {
    const Plan* plan = m->plan;
    for (int c = 0; c < plan->chunks; c++) {
        for (int i = m->begin[c]; i < m->begin[c + 1]; i++) {
            const int64_t sum = machine_expects(m, c, i);
            for (int r = 0; r < plan->ranks; r++) {
                const Number* have = &m->have[(size_t)r * (size_t)m->n + (size_t)i];
                if (plan->kind == PLAN_REDUCE_SCATTER && !owns(plan, r, c)) continue;
                if (have->whole != sum || !have->there) return false;
                if (plan->kind != PLAN_REDUCE_SCATTER && bits_of_float(have->real) != bits_of_float(m->have[i].real))
                    return false;
            }
        }
    }
    return true;
}

// Whether a plan is right for vectors of n elements.
static inline bool machine_runs(const Plan* plan, int n) {
    Machine m = machine_new(plan, n);
    bool ok = true;
    for (int64_t i = 0, end; i < plan->n && ok; i = end) {
        for (end = i; end < plan->n && plan->transfers[end].step == plan->transfers[i].step;) end++;
        ok = machine_step(&m, plan->transfers + i, end - i);
    }
    ok = ok && machine_is_right(&m);
    machine_free(&m);
    return ok;
}

// Chunks of a plan begin where they should; a transfer has as many elements; ranks send as much.
static inline bool lengths_are_right(const Plan* plan, int n) {
    int64_t* sent = (int64_t*)checked_calloc((size_t)plan->ranks, sizeof(int64_t), "a test");
    int* begin = (int*)checked_malloc(((size_t)plan->chunks + 1) * sizeof(int), "a test");
    bool ok = true;
    for (int c = 0; c < plan->chunks; c++) begin[c] = chunk_begin(plan, n, c);
    begin[plan->chunks] = n;
    for (int c = 0; c <= plan->chunks; c++) ok = ok && plan_chunk_start(plan, n, c) == begin[c];
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer* t = &plan->transfers[i];
        const int64_t elements = begin[t->chunk + t->chunks] - begin[t->chunk];
        ok = ok && transfer_elements(plan, t, n) == elements;
        sent[t->from] += elements;
    }
    for (int r = 0; r < plan->ranks; r += 1 + plan->ranks / 5) ok = ok && plan_sent(plan, r, n) == sent[r];
    free(sent);
    free(begin);
    return ok;
}

static Network tried_networks[MOST_NETWORKS];
static int tried_count;

static inline void fixture_begin(int argc, char** argv) {
    if (argc > 1) effort = strcmp(argv[1], "--short") == 0 ? BRIEF : strcmp(argv[1], "--full") == 0 ? FULL : NORMAL;
    snprintf(scratch, sizeof scratch, "/tmp/test_collective.XXXXXX");
    const int file = mkstemp(scratch);
    if (file < 0 || close(file) != 0) die("%s: %s", scratch, strerror(errno));
    tried_count = make_networks(tried_networks);
}

static inline int fixture_end(void) {
    for (int i = 0; i < tried_count; i++) network_free(&tried_networks[i]);
    unlink(scratch);
    return test_end();
}

#endif
