/*
test_collective.c: networks, and collectives as plans (comm/collectives/collectives.h).

    networks     names against graphs built here a second time, link by link in the order of ports; files; routes;
                 what malformed names, files and algorithms are refused for; random and damaged files
    MultiTree    published steps and trees, edge by edge; against a slow builder written from the paper's pseudo-code,
                 on random graphs with switches, parallel links, links of several speeds and one-way links
    numbers      a machine that carries out any plan on numbers: whole ones, whose sums are exact, and float32, of
                 which all ranks must get the same bits; every algorithm on every network, in many lengths
    proofs       plan_check, on plans with one thing changed, against a second proof that counts, and that machine
    properties   what ring.h, multitree.h and forest.h promise: bytes, steps, trees, links, costs

    ./test_collective [--short | --full]
*/
#include "../../../comm/collectives/collectives.h"
#include "test.h"

enum { BRIEF, NORMAL, FULL };
static int effort = NORMAL;
static int by_effort(int brief, int normal, int full) {
    return effort == BRIEF ? brief : effort == NORMAL ? normal : full;
}

static uint64_t random_state = 1;
static int random_below(int n) { return (int)(random_uniform(7, 0, random_state++) * (float)n); }
static bool chance(int percent) { return random_below(100) < percent; }

// Many cases that are one check; the first few that go wrong are shown.
typedef struct {
    int tried, right;
} Tally;

__attribute__((format(printf, 3, 4))) static bool tally(Tally* t, bool ok, const char* format, ...) {
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

static void tally_end(const Tally* t, const char* what) {
    check(t->right == t->tried && t->tried > 0, "%s: %d of %d are right", what, t->right, t->tried);
}

// ----------------------------------------------------------------------------------------------------------------
// Files

static char scratch[64]; // a file for networks

static void write_scratch(const char* bytes, size_t n) {
    FILE* file = fopen(scratch, "wb");
    if (!file || fwrite(bytes, 1, n, file) != n || fclose(file) != 0) die("%s: %s", scratch, strerror(errno));
}

static bool network_of_bytes(Network* net, const char* bytes, size_t n, Error* error) {
    write_scratch(bytes, n);
    return network_build(net, scratch, error);
}

// A network that has to be right: by its name, or, if it begins with "ranks", as the text of a file.
static Network network_of(const char* text) {
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

static Graph graph_new(int ranks, int switches, int reach) {
    const Graph g = {ranks, ranks + switches, reach, 0, 0, NULL, NULL};
    return g;
}

static void graph_free(Graph* g) {
    free(g->arc);
    free(g->first);
}

static void graph_arc(Graph* g, int from, int to, int speed) {
    if (g->n == g->capacity) g->arc = (Arc*)checked_grow(g->arc, &g->capacity, 64, sizeof(Arc), "a graph");
    const Arc arc = {from, to, speed, 0};
    g->arc[g->n++] = arc;
}

static void graph_join(Graph* g, int a, int b) {
    graph_arc(g, a, b, 1);
    graph_arc(g, b, a, 1);
}

// Whether arc a comes before b: by where they begin, then those to ranks; by their ends if `by_end`.
static bool arc_before(const Graph* g, const Arc* a, const Arc* b, bool by_end) {
    if (a->from != b->from) return a->from < b->from;
    if (by_end) return a->to < b->to;
    return a->to < g->ranks && b->to >= g->ranks;
}

// Sorted by insertion, which keeps the order of equals; then the room of each.
static void graph_finish(Graph* g, bool by_end) {
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
static Graph graph_grid(int A, int B, int C, bool wraps) {
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

static Graph graph_full(int N) {
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
static Graph graph_fattree(int m, int levels) {
    Graph g = graph_new(levels == 2 ? m * m : m, levels == 2 ? 2 * m : 1, 2 * levels - 1);
    for (int v = 0; v < g.ranks; v++) graph_join(&g, v, g.ranks + v / m);
    for (int leaf = 0; leaf < m && levels == 2; leaf++) {
        for (int spine = 0; spine < m; spine++) graph_join(&g, g.ranks + leaf, g.ranks + m + spine);
    }
    graph_finish(&g, false);
    return g;
}

static Graph graph_bigraph(int m, int switches) {
    Graph g = graph_new(m * switches, switches, 2);
    for (int v = 0; v < g.ranks; v++) graph_join(&g, v, g.ranks + v / m);
    for (int a = 0; a < switches / 2; a++) {
        for (int b = switches / 2; b < switches; b++) graph_join(&g, g.ranks + a, g.ranks + b);
    }
    graph_finish(&g, false);
    return g;
}

static Graph graph_dgx(void) {
    Graph g = graph_new(16, 2, 2);
    for (int v = 0; v < 16; v++) graph_join(&g, v, 16 + v / 8);
    for (int i = 0; i < 8; i++) graph_join(&g, 16, 17);
    graph_finish(&g, false);
    return g;
}

// The arcs turned round; ports follow the vertices they lead to.
static Graph graph_reverse(const Graph* g) {
    Graph back = graph_new(g->ranks, g->vertices - g->ranks, g->reach);
    for (int i = 0; i < g->n; i++) graph_arc(&back, g->arc[i].to, g->arc[i].from, g->arc[i].speed);
    graph_finish(&back, true);
    return back;
}

// As many arcs lead back as forth, speed by speed.
static bool graph_is_symmetric(const Graph* g) {
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

static bool network_is_graph(const Network* net, const Graph* g, double bandwidth, double latency) {
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

static void append_log_add(AppendLog* l, bool both, int a, int b, int speed) {
    const char* word = both ? "link" : "oneway";
    l->length += snprintf(l->text + l->length, sizeof l->text - (size_t)l->length, "%s %d %d %dMB/s 1us\n", word, a, b,
                          100 * speed);
    graph_arc(&l->graph, a, b, speed);
    if (both) graph_arc(&l->graph, b, a, speed);
}

enum { ONE_WAY = 1, SPEEDS = 2, PARALLEL = 4, SWITCHES = 8, ALL_FLAGS = 15 };

static AppendLog random_lines(int ranks, int flags) {
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

static void test_networks(void) {
    static const struct {
        const char* name;
        int A, B, C;
        bool wraps;
    } grids[] = {{"ring:1", 1, 1, 1, true},      {"ring:2", 1, 1, 2, true},      {"ring:3", 1, 1, 3, true},
                 {"ring:9", 1, 1, 9, true},      {"mesh:1x1", 1, 1, 1, false},   {"mesh:4x4", 1, 4, 4, false},
                 {"mesh:1x7", 1, 1, 7, false},   {"mesh:7x1", 1, 7, 1, false},   {"mesh:2x5", 1, 2, 5, false},
                 {"mesh:3x4x5", 3, 4, 5, false}, {"torus:4x4", 1, 4, 4, true},   {"torus:2x2", 1, 2, 2, true},
                 {"torus:3x2", 1, 3, 2, true},   {"torus:3x1x4", 3, 1, 4, true}, {"torus:2x3x4", 2, 3, 4, true},
                 {"torus:8x8", 1, 8, 8, true},   {"torus:1x1x1", 1, 1, 1, true}, {"mesh:5x1x2", 5, 1, 2, false}};
    Tally t = {0, 0};
    for (size_t i = 0; i < sizeof grids / sizeof grids[0]; i++) {
        Network net = network_of(grids[i].name);
        Graph g = graph_grid(grids[i].A, grids[i].B, grids[i].C, grids[i].wraps);
        tally(&t, network_is_graph(&net, &g, 16e9, 150e-9), "%s", grids[i].name);
        network_free(&net);
        graph_free(&g);
    }
    for (int i = 0; i < 11; i++) {
        static const char* const names[] = {"full:1",      "full:2",      "full:9",      "fattree:5,1",
                                            "fattree:2,2", "fattree:4,2", "fattree:8,2", "bigraph:1x2",
                                            "bigraph:3x4", "bigraph:4x8", "dgx"};
        Network net = network_of(names[i]);
        const int a[] = {1, 2, 9, 5, 2, 4, 8, 1, 3, 4, 0}, b[] = {0, 0, 0, 1, 2, 2, 2, 2, 4, 8, 0};
        Graph g = i < 3    ? graph_full(a[i])
                  : i < 7  ? graph_fattree(a[i], b[i])
                  : i < 10 ? graph_bigraph(a[i], b[i])
                           : graph_dgx();
        tally(&t, network_is_graph(&net, &g, 16e9, 150e-9) && net.dimensions == 0, "%s", names[i]);
        network_free(&net);
        graph_free(&g);
    }
    for (int i = 0; i < 300; i++) {
        AppendLog l = random_lines(1 + random_below(12), i & ALL_FLAGS);
        Network net = network_of(l.text);
        tally(&t, network_is_graph(&net, &l.graph, 1e8, 1e-6), "%s", l.text);
        network_free(&net);
        graph_free(&l.graph);
    }
    tally_end(&t, "networks, link by link");
}

// Higher fat trees: K links up and down at every switch; two ranks are as far apart as the highest digit in which their
// switches differ.
static void test_fattrees(void) {
    static const int sizes[][2] = {{2, 1}, {2, 3}, {2, 4}, {3, 3}, {4, 2}, {2, 6}};
    Tally t = {0, 0};
    for (int i = 0; i < 6; i++) {
        const int K = sizes[i][0], L = sizes[i][1];
        char name[32];
        snprintf(name, sizeof name, "fattree:%d,%d", K, L);
        Network net = network_of(name);
        int* hops = (int*)checked_malloc((size_t)net.vertices * 2 * sizeof(int), "a test");
        int N = 1;
        for (int l = 0; l < L; l++) N *= K;
        bool ok = net.ranks == N && net.vertices - N == L * N / K && net.links == 2 * N * L && net.reach == 2 * L - 1;
        for (int v = N; v < net.vertices; v++)
            ok = ok && net.first[v + 1] - net.first[v] == (v >= net.vertices - N / K ? K : 2 * K);
        for (int a = 0; a < N; a++) {
            network_hops(&net, a, hops, hops + net.vertices);
            for (int b = 0; b < N; b++) {
                int level = 0;
                for (int x = a / K, y = b / K, digit = 1; x || y; x /= K, y /= K, digit++) {
                    if (x % K != y % K) level = digit;
                }
                ok = ok && hops[b] == (a == b ? 0 : 2 * (level + 1));
            }
        }
        tally(&t, ok, "%s", name);
        free(hops);
        network_free(&net);
    }
    tally_end(&t, "fat trees: links, distances");
}

// Words of a link's line: what they mean.
static void test_units(void) {
    static const struct {
        const char* words;
        double bandwidth, latency;
    } lines[] = {{"", 16e9, 150e-9},          {"16GB/s", 16e9, 150e-9},
                 {"2.5MB/s", 2.5e6, 150e-9},  {"3KB/s", 3e3, 150e-9},
                 {"8Gbit/s", 1e9, 150e-9},    {"200Mbit/s 20us", 25e6, 20e-6},
                 {"40kbit/s 1ms", 5e3, 1e-3}, {"1e3MB/s 0ns", 1e9, 0},
                 {"1GB/s 2s # slow", 1e9, 2}, {"8kbit/s 1.5ns", 1e3, 1.5e-9},
                 {"1GB/s 7us\r", 1e9, 7e-6},  {"0.001KB/s\t1us", 1, 1e-6}};
    Tally t = {0, 0};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        char text[128];
        snprintf(text, sizeof text, "ranks 2\n \t\nlink  0\t1 %s%s", lines[i].words, i % 2 ? "\n" : "");
        Network net = network_of(text);
        bool ok = net.links == 2;
        for (int k = 0; k < 2 && ok; k++) {
            ok = fabs(net.link[k].bandwidth - lines[i].bandwidth) < 1e-9 * lines[i].bandwidth &&
                 fabs(net.link[k].latency - lines[i].latency) <= 1e-9 * lines[i].latency && net.link[k].from == k;
        }
        tally(&t, ok, "%s", lines[i].words);
        network_free(&net);
    }
    tally_end(&t, "units of bandwidths and latencies");
}

// Links turned round twice are the same links; a network is as fast as its slowest link; setting them all.
static void test_reverse(void) {
    Tally t = {0, 0};
    for (int i = 0; i < 200; i++) {
        AppendLog l = random_lines(1 + random_below(10), i & ALL_FLAGS);
        Network net = network_of(l.text), back = network_reverse(&net), again = network_reverse(&back);
        Graph turned = graph_reverse(&l.graph), twice = graph_reverse(&turned);
        double slowest = l.graph.n ? 1e300 : 16e9;
        bool parallel = false;
        for (int a = 0; a < l.graph.n; a++) {
            const Arc* arc = &l.graph.arc[a];
            slowest = fmin(slowest, arc->speed * 1e8);
            for (int b = 0; b < a; b++) parallel |= arc->from == l.graph.arc[b].from && arc->to == l.graph.arc[b].to;
        }
        tally(&t, network_is_graph(&back, &turned, 1e8, 1e-6) && network_is_graph(&again, &twice, 1e8, 1e-6), "%s",
              l.text);
        tally(&t,
              fabs(network_slowest(&net) - slowest) < 1 && network_has_parallel_links(&net) == parallel &&
                  network_has_switches(&net) == (l.graph.vertices > l.graph.ranks),
              "%s", l.text);
        network_set_links(&net, 5, 7);
        bool set = true;
        for (int k = 0; k < net.links; k++) set = set && net.link[k].bandwidth == 5 && net.link[k].latency == 7;
        tally(&t, set && network_slowest(&net) == (net.links ? 5 : 16e9), "links set");
        network_free(&net);
        network_free(&back);
        network_free(&again);
        graph_free(&l.graph);
        graph_free(&turned);
        graph_free(&twice);
    }
    tally_end(&t, "networks turned round, slowest and parallel links");
}

// ----------------------------------------------------------------------------------------------------------------
// Routes

// Links between all pairs at least, by relaxing every link as long as that helps. -1: none.
static int* all_distances(const Network* net) {
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
static int expected_route(const Network* net, const int* d, int v, int to) {
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
static bool link_is_in_order(const Network* net, int v, int next, int to) {
    for (int i = net->dimensions - 1, a = v, b = to, c = next; i >= 0; i--) {
        const int side = net->sides[i], x = a % side, y = b % side, z = c % side;
        a /= side, b /= side, c /= side;
        if (x != y) return z != x && a == c;
        if (x != z) return false;
    }
    return false;
}

static bool routes_are_right(const Network* net) {
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

static void test_routes(void) {
    static const char* const names[] = {"ring:1",      "ring:2",      "ring:7",      "ring:8",      "mesh:3x4",
                                        "mesh:1x5",    "mesh:2x3x4",  "torus:4x4",   "torus:5x5",   "torus:2x6",
                                        "torus:3x4x5", "torus:1x4x2", "full:6",      "fattree:4,1", "fattree:3,2",
                                        "fattree:2,4", "bigraph:2x2", "bigraph:3x6", "dgx"};
    Tally t = {0, 0};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        Network net = network_of(names[i]);
        tally(&t, routes_are_right(&net), "%s", names[i]);
        network_free(&net);
    }
    for (int i = 0; i < by_effort(150, 400, 3000); i++) {
        AppendLog l = random_lines(1 + random_below(12), i & ALL_FLAGS);
        Network net = network_of(l.text);
        tally(&t, routes_are_right(&net), "%s", l.text);
        network_free(&net);
        graph_free(&l.graph);
    }
    tally_end(&t, "routes: shortest, in their order, taking turns");
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

static int make_networks(Network* nets) {
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

static const char* tried(size_t a) { return a < ALGORITHMS ? algorithms[a].name : variants[a - ALGORITHMS]; }

// Whether comm/collectives/collectives.h's table says that this is possible.
static bool is_served(const char* name, PlanKind kind, const Network* net) {
    const bool parts = kind != PLAN_ALL_REDUCE;
    if (strcmp(name, "2d-ring") == 0 || strcmp(name, "torus-ring") == 0) return net->dimensions > 1 && !parts;
    if (strncmp(name, "double-tree", 11) == 0) return !parts;
    if (strcmp(name, "halving-doubling") == 0) {
        int power = 1;
        while (power < net->ranks) power *= 2;
        return !parts || power == net->ranks;
    }
    return strncmp(name, "forest", 6) != 0 || (net->vertices == net->ranks && network_is_symmetric(net));
}

static Plan plan_of(const char* algorithm, PlanKind kind, const Network* net) {
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
static int chunk_begin(const Plan* plan, int n, int c) {
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

static bool owns(const Plan* plan, int rank, int chunk) { return chunk / (plan->chunks / plan->ranks) == rank; }

static Machine machine_new(const Plan* plan, int n) {
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

static void machine_free(Machine* m) {
    free(m->begin);
    free(m->have);
    free(m->start);
    free(m->sent);
}

// The numbers that a transfer is about, of one of its ends.
static Number* machine_at(const Machine* m, const Transfer* t, int rank, int* length) {
    *length = m->begin[t->chunk + t->chunks] - m->begin[t->chunk];
    return m->have + (size_t)rank * (size_t)m->n + m->begin[t->chunk];
}

// One step: everything is sent before anything is received. False: something is sent, or added to, that is not there.
static bool machine_step(Machine* m, const Transfer* rows, int64_t n) {
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
static int64_t machine_expects(const Machine* m, int chunk, int i) {
    uint64_t sum = 0;
    for (int r = 0; r < m->plan->ranks; r++) {
        if (m->plan->kind != PLAN_ALL_GATHER || owns(m->plan, r, chunk))
            sum += (uint64_t)m->start[(size_t)r * (size_t)m->n + (size_t)i].whole;
    }
    return (int64_t)sum;
}

static bool machine_is_right(const Machine* m) {
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
static bool machine_runs(const Plan* plan, int n) {
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
static bool lengths_are_right(const Plan* plan, int n) {
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

// ----------------------------------------------------------------------------------------------------------------
// A second proof, which counts

// Why a plan is wrong, first things first.
typedef enum { SOUND, ROWS, LINKS, ABSENT, TWICE, LOST, MISSING, BITS } Verdict;

static Verdict rows_verdict(const Plan* plan) {
    if (plan->kind != PLAN_ALL_REDUCE && plan->chunks % plan->ranks) return ROWS;
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer t = plan->transfers[i];
        if (t.from < 0 || t.to < 0 || t.from >= plan->ranks || t.to >= plan->ranks || t.from == t.to) return ROWS;
        if (t.step < 0 || t.step >= plan->steps || t.chunk < 0 || t.chunks < 1) return ROWS;
        if ((int64_t)t.chunk + t.chunks > plan->chunks || (i && t.step < plan->transfers[i - 1].step)) return ROWS;
    }
    return SOUND;
}

// Every link's transfers of every step are counted in a table. On the way each link begins where the last one ended.
static Verdict links_verdict(const Plan* plan, const Network* net) {
    const size_t links = (size_t)net->links + 1;
    int* used = (int*)checked_calloc((size_t)plan->steps * links, sizeof(int), "a test");
    Verdict verdict = SOUND;
    double slowest = 1e300;
    for (int l = 0; l < net->links; l++) slowest = fmin(slowest, net->link[l].bandwidth);
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer* t = &plan->transfers[i];
        int at = t->from, direct = -1;
        for (int l = net->links - 1; l >= 0; l--) {
            if (net->link[l].from == t->from && net->link[l].to == t->to) direct = l;
        }
        for (int64_t k = plan->way ? plan->way[i] : 0; k < (plan->way ? plan->way[i + 1] : 1); k++) {
            const int l = plan->way ? plan->link[k] : direct;
            if (l < 0 || l >= net->links || net->link[l].from != at) {
                verdict = LINKS;
                break;
            }
            at = net->link[l].to;
            used[(size_t)t->step * links + (size_t)l]++;
        }
        if (at != t->to) verdict = LINKS;
    }
    for (size_t i = 0; i < (size_t)plan->steps * links; i++) {
        if (i % links < (size_t)net->links && used[i] > net->link[i % links].bandwidth / slowest + 1e-6)
            verdict = LINKS;
    }
    free(used);
    return verdict;
}

// What a rank has of a chunk: how often every rank's vector is in it; and the sum's name. Sums have names: a rank's
// vector its number, a sum of two the place of the pair in a list, so that equal names are equal orders.
enum { COUNT_RANKS = 16, COUNT_NAMES = 4096 };
typedef struct {
    int count[COUNT_RANKS], name;
} Part;

typedef struct {
    int n, pair[COUNT_NAMES][2];
} Names;

static int name_of_sum(Names* names, int a, int b) {
    const int low = a < b ? a : b, high = a < b ? b : a;
    for (int i = 0; i < names->n; i++) {
        if (names->pair[i][0] == low && names->pair[i][1] == high) return COUNT_RANKS + i;
    }
    if (names->n == COUNT_NAMES) die("too many sums");
    names->pair[names->n][0] = low, names->pair[names->n][1] = high;
    return COUNT_RANKS + names->n++;
}

// One transfer arrives. The ways in which it can be wrong.
static Verdict part_receives(Part* to, const Part* came, bool add, Names* names) {
    bool empty = true, lost = false, twice = false;
    for (int i = 0; i < COUNT_RANKS; i++) {
        empty = empty && to->count[i] == 0;
        lost = lost || to->count[i] > came->count[i];
        twice = twice || to->count[i] + came->count[i] > 1;
    }
    if (!add && lost) return LOST;
    if (add && (empty || twice)) return empty ? ABSENT : TWICE;
    if (!add) {
        *to = *came;
        return SOUND;
    }
    for (int i = 0; i < COUNT_RANKS; i++) to->count[i] += came->count[i];
    to->name = name_of_sum(names, to->name, came->name);
    return SOUND;
}

static Verdict chunk_step(const Plan* plan, int chunk, int64_t from, int64_t to, Part* have, Names* names) {
    Part sent[512];
    int n = 0;
    Verdict verdict = SOUND;
    for (int pass = 0; pass < 2 && verdict == SOUND; pass++) {
        n = 0;
        for (int64_t i = from; i < to && verdict == SOUND; i++) {
            const Transfer* t = &plan->transfers[i];
            if (chunk < t->chunk || chunk >= t->chunk + t->chunks) continue;
            if (pass == 0) {
                int sum = 0;
                sent[n] = have[t->from];
                for (int k = 0; k < COUNT_RANKS; k++) sum += sent[n].count[k];
                if (sum == 0) verdict = ABSENT;
            } else {
                verdict = part_receives(&have[t->to], &sent[n], t->add, names);
            }
            n++;
        }
    }
    return verdict;
}

static Verdict chunk_verdict(const Plan* plan, int chunk) {
    static Names names;
    Part have[COUNT_RANKS];
    const bool gathers = plan->kind == PLAN_ALL_GATHER;
    names.n = 0;
    memset(have, 0, sizeof have);
    for (int r = 0; r < plan->ranks; r++) {
        have[r].name = gathers ? 0 : r;
        if (!gathers || owns(plan, r, chunk)) have[r].count[gathers ? 0 : r] = 1;
    }
    for (int64_t i = 0, end; i < plan->n; i = end) {
        for (end = i; end < plan->n && plan->transfers[end].step == plan->transfers[i].step;) end++;
        const Verdict verdict = chunk_step(plan, chunk, i, end, have, &names);
        if (verdict != SOUND) return verdict;
    }
    for (int r = 0; r < plan->ranks; r++) {
        if (plan->kind == PLAN_REDUCE_SCATTER && !owns(plan, r, chunk)) continue;
        for (int i = 0; i < (gathers ? 1 : plan->ranks); i++) {
            if (have[r].count[i] != 1) return MISSING;
        }
        if (plan->kind == PLAN_ALL_REDUCE && have[r].name != have[0].name) return BITS;
    }
    return SOUND;
}

static Verdict plan_verdict(const Plan* plan, const Network* net) {
    if (rows_verdict(plan) != SOUND) return ROWS;
    if (plan->exclusive && net && links_verdict(plan, net) != SOUND) return LINKS;
    for (int c = 0; c < plan->chunks; c++) {
        const Verdict verdict = chunk_verdict(plan, c);
        if (verdict != SOUND) return verdict;
    }
    return SOUND;
}

// ----------------------------------------------------------------------------------------------------------------
// Every algorithm on every network

// Lengths that divide into chunks, and that do not.
static int test_length(const Plan* plan, int which) {
    const int parts = plan->kind == PLAN_ALL_REDUCE ? 1 : plan->ranks, chunks = plan->chunks / parts;
    const int lengths[] = {0, 1, chunks - 1, chunks + 1, 2 * chunks, 3 * chunks - 1};
    return parts * lengths[which];
}

static void try_plan(const char* algorithm, PlanKind kind, const Network* net, Tally* sums, Tally* proofs) {
    Error error = {""};
    Plan plan = plan_of(algorithm, kind, net);
    const bool exclusive = strncmp(algorithm, "multitree", 9) == 0 || strncmp(algorithm, "forest", 6) == 0;
    bool ok = true;
    for (int i = 0; i < 6; i++) {
        const int n = test_length(&plan, i);
        if (effort == BRIEF && i % 2 && plan.n > 3000) continue;
        ok = ok && lengths_are_right(&plan, n) && machine_runs(&plan, n);
    }
    tally(sums, ok, "%s, %s on %s", algorithm, plan_kind_name(kind), net->name);
    ok = plan_check(&plan, net, &error) && plan.ranks == net->ranks && plan.kind == kind &&
         plan.exclusive == exclusive && strcmp(plan.name, algorithm) == 0 && rows_verdict(&plan) == SOUND;
    if (exclusive) ok = ok && links_verdict(&plan, net) == SOUND;
    for (int c = 0; c < plan.chunks && net->ranks <= 9 && plan.n < 600; c++)
        ok = ok && chunk_verdict(&plan, c) == SOUND;
    tally(proofs, ok, "%s, %s on %s: %s", algorithm, plan_kind_name(kind), net->name, error.text);
    plan_free(&plan);
}

static void test_numbers(const Network* nets, int n) {
    Tally sums = {0, 0}, proofs = {0, 0}, refusals = {0, 0};
    for (int i = 0; i < n; i++) {
        for (int a = 0; a < PLANS; a++) {
            for (int kind = 0; kind < PLAN_KINDS; kind++) {
                if (is_served(tried((size_t)a), (PlanKind)kind, &nets[i])) {
                    try_plan(tried((size_t)a), (PlanKind)kind, &nets[i], &sums, &proofs);
                    continue;
                }
                Plan plan;
                Error error = {""};
                tally(&refusals,
                      !collective_build(&plan, tried((size_t)a), (PlanKind)kind, &nets[i], &error) &&
                          strstr(error.text, tried((size_t)a)) && plan.transfers == NULL,
                      "%s on %s is not refused", tried((size_t)a), nets[i].name);
            }
        }
    }
    tally_end(&sums, "sums, bits and lengths of plans, by the machine");
    tally_end(&proofs, "the same plans, by plan_check; links, by counting");
    tally_end(&refusals, "what an algorithm cannot do, refused");
}

// ----------------------------------------------------------------------------------------------------------------
// plan_check against the machine

typedef struct {
    Transfer transfer;
    int way[16], length;
} Row;

typedef struct {
    Row* row;
    int n;
} Rows;

static Rows rows_of(const Plan* plan) {
    Rows rows = {(Row*)checked_calloc((size_t)plan->n + 1, sizeof(Row), "rows"), (int)plan->n};
    for (int i = 0; i < rows.n; i++) {
        rows.row[i].transfer = plan->transfers[i];
        if (!plan->way) continue;
        for (int64_t k = plan->way[i]; k < plan->way[i + 1]; k++) rows.row[i].way[rows.row[i].length++] = plan->link[k];
    }
    return rows;
}

// A plan like another one, with these rows.
static Plan plan_from_rows(const Plan* like, const Rows* rows) {
    Plan plan = *like;
    plan.n = plan.capacity = rows->n;
    plan.transfers = (Transfer*)checked_malloc((size_t)rows->n * sizeof(Transfer), "a plan");
    for (int i = 0; i < rows->n; i++) plan.transfers[i] = rows->row[i].transfer;
    if (!like->way) return plan;
    plan.way = (int64_t*)checked_calloc((size_t)rows->n + 1, sizeof(int64_t), "a plan");
    plan.link = (int32_t*)checked_malloc((size_t)rows->n * 16 * sizeof(int32_t), "a plan");
    for (int i = 0; i < rows->n; i++) {
        plan.way[i + 1] = plan.way[i] + rows->row[i].length;
        for (int k = 0; k < rows->row[i].length; k++) plan.link[plan.way[i] + k] = rows->row[i].way[k];
    }
    return plan;
}

// Moves a row to where its step is, before or behind the others of the step.
static void rows_settle(Rows* rows, int i) {
    const bool before = chance(50);
    for (; i > 0; i--) {
        const int a = rows->row[i - 1].transfer.step, b = rows->row[i].transfer.step;
        if (before ? a < b : a <= b) break;
        const Row row = rows->row[i];
        rows->row[i] = rows->row[i - 1], rows->row[i - 1] = row;
    }
    for (; i + 1 < rows->n; i++) {
        const int a = rows->row[i].transfer.step, b = rows->row[i + 1].transfer.step;
        if (before ? a <= b : a < b) break;
        const Row row = rows->row[i];
        rows->row[i] = rows->row[i + 1], rows->row[i + 1] = row;
    }
}

// A number near `x` that is another one, sometimes out of range.
static int near(int x, int most) {
    return chance(60) && most > 1 ? (x + 1 + random_below(most - 1)) % most : x - 1 + 2 * random_below(2);
}

static void rows_duplicate(Rows* rows, int i) {
    memmove(rows->row + i + 1, rows->row + i, (size_t)(rows->n++ - i) * sizeof(Row));
}

static void rows_drop(Rows* rows, int i) {
    memmove(rows->row + i, rows->row + i + 1, (size_t)(--rows->n - i) * sizeof(Row));
}

// One change of a row, or of two.
static void rows_change(Rows* rows, const Plan* plan, const Network* net) {
    const int i = random_below(rows->n), k = random_below(rows->n);
    Transfer* t = &rows->row[i].transfer;
    switch (random_below(14)) {
    case 0: rows_drop(rows, i); break;
    case 1: rows_duplicate(rows, i); break;
    case 2: t->chunk = near(t->chunk, plan->chunks); break;
    case 3: t->chunks = near(t->chunks, 3); break;
    case 4: t->from = (int16_t)near(t->from, plan->ranks); break;
    case 5: t->to = (int16_t)near(t->to, plan->ranks); break;
    case 6: t->step = near(t->step, plan->steps), rows_settle(rows, i); break;
    case 7: t->step = near(t->step, plan->steps); break; // and stays where it is
    case 8: t->add = !t->add; break;
    case 9: { // two exchange their steps
        const Row row = rows->row[i];
        rows->row[i] = rows->row[k], rows->row[k] = row;
        const int step = rows->row[i].transfer.step;
        rows->row[i].transfer.step = rows->row[k].transfer.step, rows->row[k].transfer.step = step;
        break;
    }
    case 10: { // two of a step exchange their places
        if (i + 1 == rows->n || rows->row[i + 1].transfer.step != t->step) break;
        const Row row = rows->row[i];
        rows->row[i] = rows->row[i + 1], rows->row[i + 1] = row;
        break;
    }
    case 11: // another way
        if (rows->row[i].length) rows->row[i].way[random_below(rows->row[i].length)] = random_below(net->links + 2) - 1;
        break;
    case 12: // a shorter or longer way
        rows->row[i].length = (int)max_i64(0, rows->row[i].length - 1 + 2 * random_below(2));
        break;
    default: { // a transfer and its twin exchange their ends
        const int16_t from = t->from;
        t->from = t->to, t->to = from;
    }
    }
}

// Rows in any order, with ways and without: in the order of steps, those of one step in their own.
static void test_sort(void) {
    Tally t = {0, 0};
    for (int i = 0; i < 200; i++) {
        const int n = random_below(40), steps = 1 + random_below(9);
        Plan like;
        plan_init(&like, "like", PLAN_ALL_REDUCE, 5, 1);
        for (int k = 0; k < n; k++) plan_add(&like, random_below(steps), k % 5, (k + 1) % 5, k, 1, true);
        Rows rows = rows_of(&like);
        int64_t ways = 1;
        if (i % 2) like.way = &ways; // there are some
        for (int k = 0; k < n; k++) {
            rows.row[k].length = i % 2 ? 1 + random_below(4) : 0;
            for (int m = 0; m < rows.row[k].length; m++) rows.row[k].way[m] = 100 * k + m;
        }
        Plan plan = plan_from_rows(&like, &rows);
        plan_sort(&plan);
        bool ok = plan.n == n;
        for (int a = 0; a < n && ok; a++) {
            const int k = plan.transfers[a].chunk; // the number of the row
            ok = plan.transfers[a].step == rows.row[k].transfer.step && plan.transfers[a].from == k % 5;
            if (a > 0)
                ok = ok && (plan.transfers[a - 1].step < plan.transfers[a].step ||
                            (plan.transfers[a - 1].step == plan.transfers[a].step && plan.transfers[a - 1].chunk < k));
            if (!plan.way) continue;
            ok = ok && plan.way[a + 1] - plan.way[a] == rows.row[k].length;
            for (int m = 0; m < rows.row[k].length && ok; m++) ok = plan.link[plan.way[a] + m] == 100 * k + m;
        }
        tally(&t, ok, "%d rows in %d steps", n, steps);
        like.way = NULL;
        plan_free(&like);
        plan_free(&plan);
        free(rows.row);
    }
    tally_end(&t, "rows in the order of steps");
}

typedef struct {
    int refused[BITS + 1], accepted, strict;
    Tally proof, machine;
} Changes;

static void try_change(const Plan* plan, const Network* net, int changes, Changes* found) {
    Error error = {""};
    Rows rows = rows_of(plan);
    rows.row = (Row*)realloc(rows.row, (size_t)(rows.n + changes + 1) * sizeof(Row));
    memset(rows.row + rows.n, 0, (size_t)(changes + 1) * sizeof(Row));
    for (int i = 0; i < changes && rows.n > 0; i++) rows_change(&rows, plan, net);
    Plan changed = plan_from_rows(plan, &rows);
    const bool accepts = plan_check(&changed, net, &error);
    const Verdict verdict = plan_verdict(&changed, net);
    found->refused[verdict]++, found->accepted += accepts;
    tally(&found->proof, accepts == (verdict == SOUND), "%s, %s on %s, changed: %s, but verdict %d", plan->name,
          plan_kind_name(plan->kind), net->name, accepts ? "accepted" : error.text, verdict);
    if (verdict != ROWS) {
        const int parts = plan->kind == PLAN_ALL_REDUCE ? 1 : plan->ranks, per = plan->chunks / parts;
        // To be told apart by their bits sums need some numbers.
        const bool right = machine_runs(&changed, parts * (per * (verdict == BITS ? 40 : 3) + 1));
        // Links are not the machine's business. It does not mind a sum that is spoilt where nobody needs it, either.
        tally(&found->machine, right || !accepts, "%s on %s, changed: accepted, but the sums are wrong", plan->name,
              net->name);
        if (verdict == MISSING || verdict == BITS || verdict == ABSENT)
            tally(&found->machine, !right, "%s on %s, changed: sums are right, but verdict %d", plan->name, net->name,
                  verdict);
        found->strict += right && !accepts && verdict != LINKS;
    }
    plan_free(&changed);
    free(rows.row);
}

// Ranks 0 and 1 each sum all vectors in the same order, and send the others the sum: only bits may tell of a change.
static Plan plan_of_two_sums(int ranks) {
    Plan plan;
    plan_init(&plan, "two sums", PLAN_ALL_REDUCE, ranks, 1);
    plan_add(&plan, 0, 0, 1, 0, 1, true);
    plan_add(&plan, 0, 1, 0, 0, 1, true);
    for (int r = 2; r < ranks; r++) {
        plan_add(&plan, r - 1, r, 0, 0, 1, true);
        plan_add(&plan, r - 1, r, 1, 0, 1, true);
    }
    for (int r = 2; r < ranks; r++) plan_add(&plan, ranks - 1, r % 2, r, 0, 1, false);
    return plan;
}

static void test_changes(void) {
    static const char* const names[] = {"ring:2",    "ring:3", "ring:5",      "mesh:2x3",
                                        "torus:3x3", "full:4", "fattree:2,2", "bigraph:2x2"};
    Changes found;
    memset(&found, 0, sizeof found);
    int plans = 0;
    for (int i = 0; i < 8 + FILES; i++) {
        Network net = network_of(i < 8 ? names[i] : files[i - 8]);
        for (int a = 0; a < PLANS; a++) {
            for (int kind = 0; kind < PLAN_KINDS; kind++) {
                if (!is_served(tried((size_t)a), (PlanKind)kind, &net) || strcmp(tried((size_t)a), "forest") == 0 ||
                    strcmp(tried((size_t)a), "forest:3") == 0)
                    continue;
                Plan plan = plan_of(tried((size_t)a), (PlanKind)kind, &net);
                for (int k = 0; k < by_effort(20, 100, 1000) && plan.n > 0 && plan.n < 400; k++)
                    try_change(&plan, &net, k % 10 == 0 ? 2 + k % 3 : 1, &found);
                plans++;
                plan_free(&plan);
            }
        }
        network_free(&net);
    }
    for (int ranks = 3; ranks <= 7; ranks++) {
        Network net = network_of("full:7");
        net.ranks = ranks;
        Plan plan = plan_of_two_sums(ranks);
        for (int k = 0; k < by_effort(200, 1000, 10000); k++) try_change(&plan, &net, 1 + k % 2, &found);
        plan_free(&plan);
        network_free(&net);
    }
    tally_end(&found.proof, "changed plans: plan_check says what counting says");
    tally_end(&found.machine, "changed plans: what it accepts is right, what misses something is wrong");
    const int* r = found.refused;
    check(
        r[SOUND] && r[ROWS] && r[LINKS] && r[ABSENT] && r[TWICE] && r[LOST] && r[MISSING] && r[BITS] && found.strict,
        "%d plans changed: %d sound, rows %d, links %d, absent %d, twice %d, lost %d, missing %d, bits %d; %d harmless",
        plans, r[SOUND], r[ROWS], r[LINKS], r[ABSENT], r[TWICE], r[LOST], r[MISSING], r[BITS], found.strict);
}

// A plan in a few rows: "0: 1>2 +3x4; ..." in step 0 rank 1 sends rank 2 chunks 3 to 6, which adds them; = puts them.
typedef struct {
    const char* what;
    PlanKind kind;
    int ranks, chunks;
    const char *rows, *says; // a part of the error; NULL: it is right
} SmallPlan;

static Plan small_plan(const SmallPlan* small) {
    Plan plan;
    plan_init(&plan, "small", small->kind, small->ranks, small->chunks);
    for (const char* row = small->rows; *row; row += strcspn(row, ";"), row += *row == ';') {
        int step, from, to, chunk, chunks = 1;
        char sign;
        if (sscanf(row, "%d: %d>%d %c%dx%d", &step, &from, &to, &sign, &chunk, &chunks) < 5) die("what is %s?", row);
        plan_add(&plan, step, from, to, chunk, chunks, sign == '+');
    }
    return plan;
}

static void test_small_plans(void) {
    const PlanKind sum = PLAN_ALL_REDUCE, part = PLAN_REDUCE_SCATTER, gather = PLAN_ALL_GATHER;
    const SmallPlan plans[] = {
        {"two ranks exchange", sum, 2, 1, "0: 0>1 +0; 0: 1>0 +0", NULL},
        {"nobody sends", sum, 2, 1, "", "ends without"},
        {"one rank alone", sum, 1, 1, "", NULL},
        {"one after the other", sum, 2, 1, "0: 0>1 +0; 1: 1>0 +0", "twice"},
        {"one after the other, in place", sum, 2, 1, "0: 0>1 +0; 1: 1>0 =0", NULL},
        {"in one step", sum, 2, 1, "0: 0>1 +0; 0: 1>0 =0", "lost"},
        {"in two orders", sum, 3, 1, "0: 1>0 +0; 0: 2>0 +0; 0: 0>1 +0; 0: 2>1 +0; 0: 1>2 +0; 0: 0>2 +0", "two orders"},
        {"in one order", sum, 3, 1, "0: 1>0 +0; 0: 2>0 +0; 1: 0>1 =0; 1: 0>2 =0", NULL},
        {"two chunks at once", sum, 2, 3, "0: 0>1 +0x2; 0: 1>0 +0x2; 1: 0>1 +2; 1: 1>0 +2", NULL},
        {"gathered by adding", gather, 2, 2, "0: 0>1 +0; 0: 1>0 +1", "nothing to add it to"},
        {"gathered", gather, 2, 2, "0: 0>1 =0; 0: 1>0 =1", NULL},
        {"gathered from one without", gather, 2, 2, "0: 1>0 =0; 0: 1>0 =1", "not there"},
        {"scattered", part, 2, 2, "0: 0>1 +1; 0: 1>0 +0", NULL},
        {"scattered to the others", part, 2, 2, "0: 0>1 +0; 0: 1>0 +1", "ends without"},
        {"parts of chunks", part, 2, 3, "0: 0>1 +1; 0: 1>0 +0", "3 chunks for 2 ranks"},
        {"backwards in time", sum, 2, 1, "1: 0>1 +0; 0: 1>0 +0", "out of order"},
        {"to itself", sum, 2, 1, "0: 1>1 +0", "no such"},
        {"a chunk too far", sum, 2, 1, "0: 0>1 +0x2", "no such"},
        {"a chunk before the first", sum, 2, 2, "0: 0>1 +-1x2", "no such"},
        {"chunks beyond numbers", sum, 2, 2, "0: 0>1 +1x2147483647", "no such"},
        {"before all steps", sum, 2, 1, "-1: 0>1 +0", "no such"},
        {"no chunks", sum, 2, 1, "0: 0>1 +0x0", "no such"},
        {"to a rank too far", sum, 2, 1, "0: 0>2 +0", "no such"},
        {"from a rank too far", sum, 2, 1, "0: 2>0 +0", "no such"},
        {"more ranks than there can be", sum, NETWORK_LARGEST + 1, 1, "", "ranks"},
        {"no ranks", sum, 0, 1, "", "0 ranks"},
        {"no chunks at all", sum, 2, 0, "", "0 chunks"}};
    Tally t = {0, 0};
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        Plan plan = small_plan(&plans[i]);
        Error error = {""};
        const bool ok = plan_check(&plan, NULL, &error);
        tally(&t, plans[i].says ? !ok && strstr(error.text, plans[i].says) : ok, "%s: %s", plans[i].what, error.text);
        plan_free(&plan);
    }
    Network net = network_of("ring:3");
    Plan plan = plan_of("ring", PLAN_ALL_REDUCE, &net);
    Network other = network_of("ring:4");
    Error error = {""};
    tally(&t, !plan_check(&plan, &other, &error) && strstr(error.text, "ring:4 has 4"), "%s", error.text);
    plan.steps--;
    tally(&t, !plan_check(&plan, &net, &error), "a step beyond the last");
    plan_free(&plan);
    network_free(&net);
    network_free(&other);
    tally_end(&t, "plans of a few rows, by hand");
}

// A plan without row `row` is refused.
static bool row_is_missed(const Plan* plan, int row) {
    Error error = {""};
    Rows rows = rows_of(plan);
    rows_drop(&rows, row);
    Plan less = plan_from_rows(plan, &rows);
    const bool refused = !plan_check(&less, NULL, &error);
    plan_free(&less);
    free(rows.row);
    return refused;
}

// More ranks than a word has bits. Without its first row a rank's vector alone is missed, and in one sum.
static void test_many_ranks(void) {
    static const int sizes[] = {63, 64, 65, 127, 128, 129};
    Tally t = {0, 0};
    for (int i = 0; i < 12; i++) {
        const int N = sizes[i / 2];
        char name[32];
        snprintf(name, sizeof name, "ring:%d", N);
        Network net = network_of(name);
        Plan plan = plan_of(i % 2 ? "double-tree:1" : "ring", PLAN_ALL_REDUCE, &net);
        Plan part = plan_of("ring", PLAN_REDUCE_SCATTER, &net);
        Error error = {""};
        tally(&t, plan_check(&plan, &net, &error) && machine_runs(&plan, plan.chunks), "%s: %s", name, error.text);
        for (int k = 0; k < 4; k++) tally(&t, row_is_missed(&plan, random_below((int)plan.n)), "%s: a row less", name);
        for (int row = i % 2; row < N; row += i % 2 ? 2 : 13)
            tally(&t, row_is_missed(&part, row), "%s: row %d", name, row);
        plan_free(&plan);
        plan_free(&part);
        network_free(&net);
    }
    tally_end(&t, "plans for 63 to 129 ranks");
}

// ----------------------------------------------------------------------------------------------------------------
// MultiTree, a second time: slowly, from the pseudo-code

typedef struct {
    int tree, child, parent, step, length, way[16];
} Edge;

typedef struct {
    const Graph* g;
    int trees, n, capacity, steps;
    Edge* edge;
    int *member, *count, *old; // (trees, ranks), (trees), (trees): in the order in which they joined
    bool* inside;              // (trees, ranks)
    int *left, *before, *depth, *stamp, *queue, search;
} Growth;

// The nearest rank outside the tree that `parent` reaches over free arcs and at most `limit` switches, or -1.
static int growth_search(Growth* x, int tree, int parent, int limit) {
    const Graph* g = x->g;
    int head = 0, tail = 0;
    x->stamp[parent] = ++x->search, x->depth[parent] = 0, x->queue[tail++] = parent;
    while (head < tail) {
        const int u = x->queue[head++];
        for (int i = g->first[u]; i < g->first[u + 1]; i++) {
            const int v = g->arc[i].to;
            if (x->stamp[v] == x->search || x->left[i] <= 0) continue;
            if (v < g->ranks && x->inside[(size_t)tree * (size_t)g->ranks + (size_t)v]) continue;
            if (v >= g->ranks && x->depth[u] + 1 > limit) continue;
            x->stamp[v] = x->search, x->before[v] = i, x->depth[v] = x->depth[u] + 1;
            if (v < g->ranks) return v;
            x->queue[tail++] = v;
        }
    }
    return -1;
}

static void growth_join(Growth* x, int tree, int parent, int child) {
    const Graph* g = x->g;
    if (x->n == x->capacity) x->edge = (Edge*)checked_grow(x->edge, &x->capacity, 64, sizeof(Edge), "edges");
    Edge* e = &x->edge[x->n++];
    memset(e, 0, sizeof *e);
    e->tree = tree, e->child = child, e->parent = parent, e->step = x->steps;
    for (int v = child; v != parent; v = g->arc[x->before[v]].from) e->length++;
    for (int v = child, k = e->length; v != parent; v = g->arc[x->before[v]].from) {
        e->way[--k] = x->before[v];
        x->left[x->before[v]]--;
    }
    x->member[tree * g->ranks + x->count[tree]++] = child;
    x->inside[tree * g->ranks + child] = true;
}

static bool growth_turn(Growth* x, int tree) {
    if (x->count[tree] == x->g->ranks) return false;
    for (int limit = 1; limit <= x->g->reach; limit++) {
        for (int i = 0; i < x->old[tree]; i++) {
            const int parent = x->member[tree * x->g->ranks + i], child = growth_search(x, tree, parent, limit);
            if (child < 0) continue;
            growth_join(x, tree, parent, child);
            return true;
        }
    }
    return false;
}

static Growth growth_new(const Graph* g, int per_rank) {
    Growth x;
    memset(&x, 0, sizeof x);
    x.g = g, x.trees = g->ranks * per_rank;
    const size_t trees = (size_t)x.trees, V = (size_t)g->vertices, N = (size_t)g->ranks;
    x.member = (int*)checked_calloc(trees * (N + 2) + 4 * V + (size_t)g->n, sizeof(int), "a growth");
    x.count = x.member + trees * N, x.old = x.count + trees, x.before = x.old + trees;
    x.depth = x.before + V, x.stamp = x.depth + V, x.queue = x.stamp + V, x.left = x.queue + V;
    x.inside = (bool*)checked_calloc(trees * N, sizeof(bool), "a growth");
    for (int tree = 0; tree < x.trees; tree++) {
        x.member[tree * g->ranks] = tree / per_rank, x.count[tree] = 1;
        x.inside[tree * g->ranks + tree / per_rank] = true;
    }
    return x;
}

static Growth growth_of(const Graph* g, int per_rank) {
    Growth x = growth_new(g, per_rank);
    while (x.n < x.trees * (g->ranks - 1)) {
        for (int i = 0; i < g->n; i++) x.left[i] = g->arc[i].room;
        for (int tree = 0; tree < x.trees; tree++) x.old[tree] = x.count[tree];
        for (bool progress = true; progress;) {
            progress = false;
            for (int tree = 0; tree < x.trees; tree++) progress |= growth_turn(&x, tree);
        }
        x.steps++;
    }
    return x;
}

static void growth_free(Growth* x) {
    free(x->edge);
    free(x->member);
    free(x->inside);
}

// Whether the links of row i of a plan lead where an edge's arcs do, as fast; the other way round if `turned`.
static bool way_is(const Plan* plan, const Network* net, int64_t i, const Graph* g, const Edge* e, bool turned) {
    if (!plan->way) return e->length == 1;
    if (plan->way[i + 1] - plan->way[i] != e->length) return false;
    for (int k = 0; k < e->length; k++) {
        const Arc* arc = &g->arc[e->way[turned ? e->length - 1 - k : k]];
        const Link* link = &net->link[plan->link[plan->way[i] + k]];
        if (link->from != (turned ? arc->to : arc->from) || link->to != (turned ? arc->from : arc->to)) return false;
        if (fabs(link->bandwidth / network_slowest(net) - (double)arc->room) >= 1) return false;
    }
    return true;
}

// Whether rows `at` and following of a plan are these edges, in their order; up: from children, in the reverse order.
static bool rows_are(const Plan* plan, const Network* net, int64_t at, int first_step, const Growth* x, bool up) {
    if (plan->n < at + x->n) return false;
    for (int i = 0; i < x->n; i++) {
        const Edge* e = &x->edge[up ? x->n - 1 - i : i];
        const Transfer* t = &plan->transfers[at + i];
        const int step = first_step + (up ? x->steps - 1 - e->step : e->step);
        if (t->step != step || t->chunk != e->tree || t->chunks != 1 || t->add != up) return false;
        if (t->from != (up ? e->child : e->parent) || t->to != (up ? e->parent : e->child)) return false;
        if (!way_is(plan, net, at + i, x->g, e, up)) return false;
    }
    return true;
}

// All three kinds, against the slow builder.
static bool multitree_is(const Network* net, const Graph* g, int per_rank) {
    char name[32];
    snprintf(name, sizeof name, "multitree:%d", per_rank);
    Graph back = graph_reverse(g);
    const bool symmetric = graph_is_symmetric(g);
    Growth down = growth_of(g, per_rank), up = growth_of(symmetric ? g : &back, per_rank);
    bool ok = true;
    for (int kind = 0; kind < PLAN_KINDS && ok; kind++) {
        Plan plan = plan_of(name, (PlanKind)kind, net);
        const int rising = kind == PLAN_ALL_GATHER ? 0 : up.n, rise = kind == PLAN_ALL_GATHER ? 0 : up.steps;
        ok = plan.n == rising + (kind == PLAN_REDUCE_SCATTER ? 0 : down.n) && plan.chunks == net->ranks * per_rank;
        ok = ok && plan.steps == rise + (kind == PLAN_REDUCE_SCATTER ? 0 : down.steps);
        if (kind != PLAN_ALL_GATHER) ok = ok && rows_are(&plan, net, 0, 0, &up, true);
        if (kind != PLAN_REDUCE_SCATTER) ok = ok && rows_are(&plan, net, rising, rise, &down, false);
        plan_free(&plan);
    }
    growth_free(&down);
    growth_free(&up);
    graph_free(&back);
    return ok;
}

static void test_multitree_again(void) {
    Tally t = {0, 0};
    for (int i = 0; i < by_effort(250, 1200, 10000); i++) {
        AppendLog l = random_lines(1 + random_below(i % 7 == 0 ? 24 : 12), i & ALL_FLAGS);
        Network net = network_of(l.text);
        tally(&t, multitree_is(&net, &l.graph, i % 5 == 0 ? 1 + i % 4 : 1), "%s", l.text);
        network_free(&net);
        graph_free(&l.graph);
    }
    tally_end(&t, "MultiTree on random graphs, row by row");
    static const struct {
        const char* name;
        int A, B, C;
    } grids[] = {{"mesh:5x5", 1, 5, 5},   {"torus:6x6", 1, 6, 6},     {"torus:2x3x4", 2, 3, 4},
                 {"mesh:3x2x3", 3, 2, 3}, {"ring:9", 1, 1, 9},        {"mesh:8x8", 1, 8, 8},
                 {"torus:8x8", 1, 8, 8},  {"torus:12x12", 1, 12, 12}, {"torus:16x16", 1, 16, 16}};
    Tally u = {0, 0};
    for (int i = 0; i < by_effort(7, 8, 9); i++) {
        Network net = network_of(grids[i].name);
        Graph g = graph_grid(grids[i].A, grids[i].B, grids[i].C, grids[i].name[0] != 'm');
        tally(&u, multitree_is(&net, &g, i < 4 ? 1 + i : 1), "%s", grids[i].name);
        network_free(&net);
        graph_free(&g);
    }
    for (int i = 0; i < by_effort(3, 4, 6); i++) {
        static const char* const names[] = {"fattree:4,2", "bigraph:2x4",  "dgx",
                                            "bigraph:4x8", "bigraph:4x16", "fattree:8,2"};
        Network net = network_of(names[i]);
        Graph g = i == 0   ? graph_fattree(4, 2)
                  : i == 1 ? graph_bigraph(2, 4)
                  : i == 2 ? graph_dgx()
                  : i < 5  ? graph_bigraph(4, i == 3 ? 8 : 16)
                           : graph_fattree(8, 2);
        tally(&u, multitree_is(&net, &g, 1), "%s", names[i]);
        network_free(&net);
        graph_free(&g);
    }
    tally_end(&u, "MultiTree on grids and switches, row by row");
}

// ----------------------------------------------------------------------------------------------------------------
// MultiTree: published numbers

// No less steps a phase are possible: the diameter; what a rank has to receive; all that all links have to carry.
static int lower_bound(const Network* net, int per_rank) {
    const int N = net->ranks;
    int *d = all_distances(net), most = 0;
    double rooms = 0;
    const double slowest = network_slowest(net);
    for (int r = 0; r < N; r++) {
        int in = 0;
        for (int l = 0; l < net->links; l++)
            in += net->link[l].to == r ? (int)(net->link[l].bandwidth / slowest + 1e-6) : 0;
        if (N > 1) most = (int)max_i64(most, ((int64_t)per_rank * (N - 1) + in - 1) / in);
        for (int to = 0; to < N && !network_has_switches(net); to++)
            most = (int)max_i64(most, d[r * net->vertices + to]);
    }
    for (int l = 0; l < net->links; l++) rooms += (int)(net->link[l].bandwidth / slowest + 1e-6);
    if (rooms > 0) most = (int)max_i64(most, (int64_t)ceil((double)per_rank * N * (N - 1) / rooms));
    free(d);
    return most;
}

static void test_published_steps(void) {
    static const struct {
        const char* name;
        int steps, ring, bound;
    } rows[] = {{"mesh:2x2", 2, 3, 2},        {"torus:4x4", 5, 15, 4},     {"torus:6x6", 10, 35, 9},
                {"torus:8x8", 17, 63, 16},    {"torus:10x10", 26, 99, 25}, {"torus:12x12", 37, 143, 36},
                {"torus:16x16", 64, 255, 64}, {"mesh:4x4", 8, 15, 8},      {"mesh:8x8", 32, 63, 32},
                {"mesh:5x5", 12, 24, 12},     {"mesh:6x6", 18, 35, 18},    {"mesh:7x7", 24, 48, 24},
                {"fattree:4,2", 15, 15, 15},  {"fattree:8,2", 63, 63, 63}, {"bigraph:4x8", 31, 31, 31},
                {"bigraph:4x16", 63, 63, 63}, {"dgx", 15, 15, 15},         {"fattree:2,4", 15, 15, 15}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Network net = network_of(rows[i].name);
        int steps[PLAN_KINDS], ring[PLAN_KINDS];
        for (int kind = 0; kind < PLAN_KINDS; kind++) {
            Plan plan = plan_of("multitree", (PlanKind)kind, &net), round = plan_of("ring", (PlanKind)kind, &net);
            steps[kind] = plan.steps, ring[kind] = round.steps;
            plan_free(&plan);
            plan_free(&round);
        }
        const int bound = lower_bound(&net, 1), T = steps[PLAN_ALL_GATHER], R = ring[PLAN_ALL_GATHER];
        check(T == rows[i].steps && steps[PLAN_REDUCE_SCATTER] == T && steps[PLAN_ALL_REDUCE] == 2 * T &&
                  R == rows[i].ring && ring[PLAN_ALL_REDUCE] == 2 * R && bound == rows[i].bound,
              "%s: %d steps a phase, a ring %d, bound %d; published %d, %d, %d", rows[i].name, T, R, bound,
              rows[i].steps, rows[i].ring, rows[i].bound);
        network_free(&net);
    }
}

// Tree `tree` of an all-gather as text: (child,parent,step) ...
static const char* tree_text(const Plan* plan, int tree) {
    static char text[1024];
    int n = 0;
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer* t = &plan->transfers[i];
        if (t->chunk == tree) n += snprintf(text + n, sizeof text - (size_t)n, "(%d,%d,%d) ", t->to, t->from, t->step);
    }
    return text;
}

static int edges_in_step(const Plan* plan, int step) {
    int n = 0;
    for (int64_t i = 0; i < plan->n; i++) n += plan->transfers[i].step == step;
    return n;
}

static void test_published_trees(void) {
    static const char* const square[] = {"(2,0,0) (1,0,0) (3,2,1) ", "(3,1,0) (0,1,0) (2,3,1) ",
                                         "(0,2,0) (3,2,0) (1,0,1) ", "(1,3,0) (2,3,0) (0,1,1) "};
    Network net = network_of("mesh:2x2");
    Plan plan = plan_of("multitree", PLAN_ALL_GATHER, &net);
    for (int tree = 0; tree < 4; tree++)
        check(strcmp(tree_text(&plan, tree), square[tree]) == 0, "mesh 2x2, tree %d: %s", tree, tree_text(&plan, tree));
    plan_free(&plan);
    network_free(&net);
    net = network_of("torus:4x4");
    plan = plan_of("multitree", PLAN_ALL_GATHER, &net);
    check(strcmp(tree_text(&plan, 0),
                 "(12,0,0) (4,0,0) (3,0,0) (1,0,0) (8,12,1) (15,12,1) (13,12,1) (7,3,1) (5,4,2) (2,3,2) (11,15,2) "
                 "(9,8,3) (14,15,3) (6,2,3) (10,11,4) ") == 0,
          "torus 4x4, tree 0: %s", tree_text(&plan, 0));
    static const int small[] = {64, 64, 48, 48, 16};
    bool ok = plan.steps == 5;
    for (int s = 0; s < 5; s++) ok = ok && edges_in_step(&plan, s) == small[s];
    check(ok, "torus 4x4: 64, 64, 48, 48, 16 edges a step");
    plan_free(&plan);
    network_free(&net);
    net = network_of("torus:8x8");
    plan = plan_of("multitree", PLAN_ALL_GATHER, &net);
    ok = plan.steps == 17;
    for (int s = 0; s < 17; s++) ok = ok && edges_in_step(&plan, s) == (s < 14 ? 256 : s < 16 ? 192 : 64);
    check(ok, "torus 8x8: 14 steps of 256 edges, then 192, 192, 64");
    plan_free(&plan);
    network_free(&net);
}

static void test_published_switches(void) {
    static const struct {
        const char* name;
        int same, all, longest;
    } rows[] = {{"fattree:8,2", 3584, 4032, 4}, {"bigraph:4x16", 3072, 4032, 3}};
    for (int i = 0; i < 2; i++) {
        Network net = network_of(rows[i].name);
        Plan plan = plan_of("multitree", PLAN_ALL_GATHER, &net);
        int same = 0, longest = 0;
        for (int64_t k = 0; k < plan.n; k++) {
            same += plan.way[k + 1] - plan.way[k] == 2;
            longest = (int)max_i64(longest, plan.way[k + 1] - plan.way[k]);
        }
        check(same == rows[i].same && plan.n == rows[i].all && longest <= rows[i].longest,
              "%s: %d of %d edges stay on a switch, ways of at most %d links", rows[i].name, same, (int)plan.n,
              longest);
        plan_free(&plan);
        network_free(&net);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Properties of trees

// Of every chunk, on the way down: everyone but the root gets it once, from one who had it before.
static bool chunk_spans(const Plan* plan, int chunk, int root, int* when) {
    int members = 1;
    for (int r = 0; r < plan->ranks; r++) when[r] = INT32_MAX;
    when[root] = -1;
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer* t = &plan->transfers[i];
        if (t->chunk != chunk || t->add) continue;
        if (when[t->to] != INT32_MAX || when[t->from] >= t->step) return false;
        when[t->to] = t->step;
        members++;
    }
    return members == plan->ranks;
}

// The bound is never beaten; ranks send (N - 1) / N of the vector a phase; trees span.
static void test_multitree_properties(const Network* nets, int n) {
    Tally t = {0, 0};
    for (int i = 0; i < n; i++) {
        for (int per_rank = 1; per_rank <= 3; per_rank += 2) {
            const int N = nets[i].ranks;
            Plan plan = plan_of(per_rank == 1 ? "multitree" : "multitree:3", PLAN_ALL_GATHER, &nets[i]);
            int* when = (int*)checked_malloc((size_t)N * sizeof(int), "a test");
            bool ok = plan.steps >= lower_bound(&nets[i], per_rank) && plan.n == (int64_t)N * (N - 1) * per_rank;
            for (int c = 0; c < plan.chunks; c++) ok = ok && chunk_spans(&plan, c, c / per_rank, when);
            tally(&t, ok, "%s, %d trees a rank", nets[i].name, per_rank);
            free(when);
            plan_free(&plan);
        }
    }
    tally_end(&t, "MultiTree: trees span, no bound is beaten");
}

static void test_bytes(const Network* nets, int n) {
    static const char* const names[] = {"ring", "ring-both", "multitree", "multitree:2"};
    Tally exact = {0, 0}, torus = {0, 0};
    for (int i = 0; i < n; i++) {
        const int N = nets[i].ranks;
        for (int a = 0; a < 4; a++) {
            for (int kind = 0; kind < PLAN_KINDS; kind++) {
                Plan plan = plan_of(names[a], (PlanKind)kind, &nets[i]);
                const int64_t phases = kind == PLAN_ALL_REDUCE ? 2 : 1, n_elements = 6 * (int64_t)plan.chunks;
                int64_t sum = 0;
                bool each = true;
                for (int r = 0; r < N; r++) {
                    const int64_t sent = plan_sent(&plan, r, n_elements);
                    sum += sent, each = each && sent == phases * n_elements / N * (N - 1);
                }
                // Of an all-gather inner ranks of trees send more, leaves less; what they get is equal.
                const bool ring = a < 2;
                tally(&exact,
                      sum == phases * n_elements * (N - 1) && (each || !ring) && (each || kind != PLAN_REDUCE_SCATTER),
                      "%s, %s on %s", names[a], plan_kind_name((PlanKind)kind), nets[i].name);
                plan_free(&plan);
            }
        }
        if (nets[i].dimensions < 2) continue;
        Plan around = plan_of("torus-ring", PLAN_ALL_REDUCE, &nets[i]),
             twice = plan_of("2d-ring", PLAN_ALL_REDUCE, &nets[i]);
        const int64_t elements = around.chunks * (int64_t)N;
        bool ok = true;
        for (int r = 0; r < N; r++) {
            int64_t more = 0;
            for (int d = 0; d < nets[i].dimensions; d++) more += 2 * (elements - elements / nets[i].sides[d]);
            ok = ok && plan_sent(&around, r, elements) == 2 * elements / N * (N - 1) &&
                 plan_sent(&twice, r, elements) == more;
        }
        tally(&torus, ok, "%s", nets[i].name);
        plan_free(&around);
        plan_free(&twice);
    }
    tally_end(&exact, "rings and MultiTree: (N - 1) / N of the vector from every rank a phase");
    tally_end(&torus, "torus-ring: as much as a ring; 2d-ring: each dimension all of it");
}

// Forests: every tree spans and comes back as it went; all pieces of a tree take the same links.
static bool forest_is_right(const Plan* plan, int trees, int* most_used, const Network* net) {
    const int N = plan->ranks, pieces = plan->chunks / trees;
    int* parent = (int*)checked_malloc((size_t)N * (size_t)plan->chunks * sizeof(int), "a test");
    int* when = (int*)checked_malloc((size_t)N * sizeof(int), "a test");
    int* used = (int*)checked_calloc((size_t)net->links + 1, sizeof(int), "a test");
    bool ok = plan->n == 2 * (int64_t)(N - 1) * plan->chunks;
    for (int i = 0; i < N * plan->chunks; i++) parent[i] = -1;
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer* t = &plan->transfers[i];
        if (t->add) ok = ok && parent[t->chunk * N + t->from] == -1, parent[t->chunk * N + t->from] = t->to;
    }
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer* t = &plan->transfers[i];
        if (!t->add) ok = ok && parent[t->chunk * N + t->to] == t->from;
    }
    for (int c = 0; c < plan->chunks && ok; c++) {
        int root = -1;
        for (int r = 0; r < N; r++) {
            if (parent[c * N + r] < 0) ok = ok && root < 0, root = r;
            ok = ok && parent[c * N + r] == parent[c / pieces * pieces * N + r];
        }
        ok = ok && root >= 0 && chunk_spans(plan, c, root, when);
    }
    for (int tree = 0; tree < trees; tree++) {
        for (int r = 0; r < N; r++) {
            const int up = parent[tree * pieces * N + r];
            if (up >= 0) used[network_link(net, r, up)]++, used[network_link(net, up, r)]++;
        }
    }
    *most_used = 0;
    for (int l = 0; l < net->links; l++) *most_used = (int)max_i64(*most_used, used[l]);
    free(parent);
    free(when);
    free(used);
    return ok && pieces * trees == plan->chunks;
}

static void test_forests(const Network* nets, int n) {
    Tally t = {0, 0};
    for (int i = 0; i < n; i++) {
        if (!is_served("forest", PLAN_ALL_REDUCE, &nets[i])) continue;
        double slowest = 1e300, links = 0;
        for (int l = 0; l < nets[i].links; l++) slowest = fmin(slowest, nets[i].link[l].bandwidth);
        for (int l = 0; l < nets[i].links; l++) links += floor(nets[i].link[l].bandwidth / slowest + 1e-6) / 2;
        for (int a = 0; a < 3; a++) {
            static const char* const names[] = {"forest:3,2", "forest:1,3", "forest"};
            static const int trees[] = {3, 1, 8}, pieces[] = {2, 3, 32};
            Plan plan = plan_of(names[a], PLAN_ALL_REDUCE, &nets[i]);
            int most_used = 0;
            const int N = nets[i].ranks;
            bool ok = forest_is_right(&plan, trees[a], &most_used, &nets[i]) && plan.chunks == trees[a] * pieces[a];
            // Nash-Williams: all links' rooms in all steps carry everything both ways.
            ok = ok && (double)plan.steps * links >= (double)plan.chunks * (N - 1) && (N == 1 || plan.steps > 1);
            tally(&t, ok, "%s on %s: %d steps", names[a], nets[i].name, plan.steps);
            plan_free(&plan);
        }
    }
    tally_end(&t, "forests: trees span, come back, and beat no bound");
}

static void test_forest_rates(void) {
    static const struct {
        const char *network, *name;
        int trees, used, steps; // steps: at most
    } rows[] = {{"mesh:8x8", "forest", 8, 5, 200},        {"torus:8x8", "forest", 8, 4, 160},
                {"mesh:8x8", "forest:32,8", 32, 19, 200}, {"torus:8x8", "forest:32,8", 32, 16, 160},
                {"mesh:4x4", "forest", 8, 6, 220},        {"ring:8", "forest", 8, 7, 280}};
    for (int i = 0; i < 6; i++) {
        Network net = network_of(rows[i].network);
        Plan plan = plan_of(rows[i].name, PLAN_ALL_REDUCE, &net), other = plan_of("multitree", PLAN_ALL_REDUCE, &net);
        int used = 0;
        const bool ok = forest_is_right(&plan, rows[i].trees, &used, &net);
        const double rate = (double)rows[i].trees / used, bound = (double)net.links / 2 / (net.ranks - 1);
        const double time = (double)plan.steps / plan.chunks, before = (double)other.steps / other.chunks;
        check(ok && used == rows[i].used && rate <= bound && plan.steps <= rows[i].steps &&
                  (time < before || strncmp(rows[i].network, "mesh", 4) != 0),
              "%s on %s: %.2f links' bandwidth of %.2f; %d steps, %.3f of a vector's time on a link, MultiTree %.3f",
              rows[i].name, rows[i].network, rate, bound, plan.steps, time, before);
        plan_free(&plan);
        plan_free(&other);
        network_free(&net);
    }
    // Three times as fast as the slowest link: three pieces a step, nine in three steps, and one to come back.
    Network net = network_of("ranks 2\nlink 0 1 30GB/s\nlink 0 1 10GB/s\n");
    Plan plan = plan_of("forest:1,9", PLAN_ALL_REDUCE, &net);
    check(plan.steps == 4, "forest over a link with room for three: %d steps", plan.steps);
    plan_free(&plan);
    network_free(&net);
}

// Double trees: who is inside the one is a leaf of the other (N even), and there are as few levels as there can be.
static void test_double_trees(void) {
    Tally t = {0, 0};
    for (int N = 1; N <= 40; N++) {
        char name[32];
        snprintf(name, sizeof name, "full:%d", N);
        Network net = network_of(name);
        int levels = 0, inside[2] = {0, 0}, most[2] = {0, 0};
        while (1 << levels < N) levels++;
        bool ok = true;
        for (int pieces = 1; pieces <= 5; pieces += 4) {
            Plan plan = plan_of(pieces == 1 ? "double-tree:1" : "double-tree:5", PLAN_ALL_REDUCE, &net);
            ok = ok && plan.steps == (N == 1 ? 0 : pieces - 1 + 2 * levels) && plan.chunks == 2 * pieces;
            for (int r = 0; r < N && pieces == 1; r++) {
                int children[2] = {0, 0};
                for (int64_t i = 0; i < plan.n; i++) {
                    if (plan.transfers[i].add && plan.transfers[i].to == r) children[plan.transfers[i].chunk]++;
                }
                for (int tree = 0; tree < 2; tree++)
                    inside[tree] += children[tree] > 0, most[tree] = (int)max_i64(most[tree], children[tree]);
                if (N % 2 == 0) ok = ok && (children[0] == 0 || children[1] == 0);
            }
            plan_free(&plan);
        }
        ok = ok && inside[0] == N / 2 + (N % 2 && N > 1) && most[0] <= 2 && most[1] <= 2;
        tally(&t, ok, "%d ranks", N);
        network_free(&net);
    }
    tally_end(&t, "double trees: levels, leaves");
}

// A ring visits every rank once, and on a grid with an even side goes from neighbour to neighbour, around all of it.
static void test_ring_orders(const Network* nets, int n) {
    Tally t = {0, 0};
    for (int i = 0; i < n; i++) {
        const int N = nets[i].ranks;
        int* order = (int*)checked_malloc((size_t)N * sizeof(int), "a test");
        bool* seen = (bool*)checked_calloc((size_t)N, sizeof(bool), "a test");
        int *d = all_distances(&nets[i]), steps = 0;
        ring_order(&nets[i], order);
        bool ok = true, even = false;
        for (int k = 0; k < N; k++) {
            ok = ok && order[k] >= 0 && order[k] < N && !seen[order[k]];
            if (ok) seen[order[k]] = true, steps += d[order[k] * nets[i].vertices + order[(k + 1) % N]];
        }
        for (int k = 0; k < nets[i].dimensions; k++) even |= nets[i].sides[k] % 2 == 0;
        const int last = nets[i].dimensions > 1 ? nets[i].sides[nets[i].dimensions - 1] : 0;
        if (last > 1 && N > last && even) ok = ok && steps == N;
        if (nets[i].dimensions == 1 && N > 1) ok = ok && steps == N;
        if (last && N > 1)
            ok = ok && steps <= N - 1 + d[order[N - 1] * nets[i].vertices + order[0]]; // all steps but one are short
        if (nets[i].dimensions == 0) { // the nearest rank that is left, the first of them
            memset(seen, 0, (size_t)N * sizeof(bool));
            for (int k = 0; k + 1 < N && ok; k++) {
                seen[order[k]] = true;
                int nearest = -1;
                for (int r = N - 1; r >= 0; r--) {
                    const int* row = d + order[k] * nets[i].vertices;
                    if (!seen[r] && (nearest < 0 || row[r] <= row[nearest])) nearest = r;
                }
                ok = order[k + 1] == nearest;
            }
        }
        tally(&t, ok, "%s", nets[i].name);
        free(order);
        free(seen);
        free(d);
    }
    tally_end(&t, "orders of rings");
}

// ----------------------------------------------------------------------------------------------------------------
// Costs

// plan_cost again: every step and every link in a table. route: as the words at the top of topology.h say.
static double slow_cost(const Plan* plan, const Network* net, double bytes) {
    const size_t links = (size_t)net->links + 1;
    double* busy = (double*)checked_calloc((size_t)(plan->steps + 1) * links, sizeof(double), "a test");
    double *longest = (double*)checked_calloc((size_t)plan->steps + 1, sizeof(double), "a test"), seconds = 0;
    Routes routes = network_routes(net);
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer* t = &plan->transfers[i];
        double latency = 0;
        int at = t->from;
        for (int64_t k = 0; at != t->to; k++) {
            int l = plan->way ? plan->link[plan->way[i] + k] : network_link(net, t->from, t->to);
            if (l < 0) l = routes_next(&routes, at, t->to);
            busy[(size_t)t->step * links + (size_t)l] += bytes * t->chunks / plan->chunks / net->link[l].bandwidth;
            latency += net->link[l].latency, at = net->link[l].to;
        }
        longest[t->step] = fmax(longest[t->step], latency);
    }
    for (int s = 0; s < plan->steps; s++) {
        double most = 0;
        for (int l = 0; l < net->links; l++) most = fmax(most, busy[(size_t)s * links + (size_t)l]);
        seconds += longest[s] + most;
    }
    routes_free(&routes);
    free(busy);
    free(longest);
    return seconds;
}

static double cost_of(const Plan* plan, const Network* net, double bytes) {
    Routes routes = network_routes(net);
    const double seconds = plan_cost(plan, net, &routes, bytes);
    routes_free(&routes);
    return seconds;
}

static void test_costs(const Network* nets, int n) {
    Tally t = {0, 0};
    for (int i = 0; i < n; i++) {
        for (int a = 0; a < PLANS; a++) {
            if (!is_served(tried((size_t)a), PLAN_ALL_REDUCE, &nets[i]) || (effort == BRIEF && (a + i) % 3)) continue;
            Plan plan = plan_of(tried((size_t)a), PLAN_ALL_REDUCE, &nets[i]);
            const double fast = cost_of(&plan, &nets[i], 1e6), slow = slow_cost(&plan, &nets[i], 1e6);
            tally(&t, fabs(fast - slow) <= 1e-9 * slow, "%s on %s: %g s, by hand %g s", tried((size_t)a), nets[i].name,
                  fast, slow);
            plan_free(&plan);
        }
    }
    tally_end(&t, "costs of plans, link by link");
}

// The formulas of ring.h and of the paper.
static double formula(const char* name, int N, int k, double a, double D, double B, int steps) {
    const double n = N, side = k;
    if (strcmp(name, "ring") == 0) return 2 * (n - 1) * (a + D / (n * B));
    if (strcmp(name, "ring-both") == 0) return 2 * (n - 1) * (a + D / (2 * n * B));
    if (strcmp(name, "2d-ring") == 0) return 4 * (side - 1) * (a + D / (4 * side * B));
    if (strcmp(name, "torus-ring") == 0) return 4 * (side - 1) * a + 2 * D * (side * side - 1) / (4 * side * side * B);
    if (strcmp(name, "halving-doubling") == 0) return 2 * log2(n) * a + 2 * D * (n - 1) / (n * B);
    return steps * (a + D / (n * B)); // MultiTree: 2 T
}

static void test_formulas(void) {
    static const struct {
        const char *network, *name;
        int side;
    } rows[] = {{"ring:2", "ring", 0},
                {"ring:9", "ring", 0},
                {"torus:4x4", "ring", 0},
                {"mesh:3x4", "ring", 0},
                {"ring:9", "ring-both", 0},
                {"torus:6x4", "ring-both", 0},
                {"torus:4x4", "2d-ring", 4},
                {"torus:6x6", "2d-ring", 6},
                {"torus:5x5", "2d-ring", 5},
                {"torus:4x4", "torus-ring", 4},
                {"torus:8x8", "torus-ring", 8},
                {"torus:3x3", "torus-ring", 3},
                {"full:8", "halving-doubling", 0},
                {"full:16", "halving-doubling", 0},
                {"torus:8x8", "multitree", 0},
                {"mesh:5x5", "multitree", 0},
                {"torus:4x4", "multitree", 0}};
    Tally t = {0, 0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Network net = network_of(rows[i].network);
        network_set_links(&net, 3e9, 2e-6);
        Plan plan = plan_of(rows[i].name, PLAN_ALL_REDUCE, &net);
        const double seconds = cost_of(&plan, &net, 5e6);
        const double right = formula(rows[i].name, net.ranks, rows[i].side, 2e-6, 5e6, 3e9, plan.steps);
        tally(&t, fabs(seconds - right) < 1e-9 * right, "%s on %s: %g s, formula %g s", rows[i].name, rows[i].network,
              seconds, right);
        plan_free(&plan);
        network_free(&net);
    }
    tally_end(&t, "costs, against the formulas");
}

// ----------------------------------------------------------------------------------------------------------------
// Bad input

static void test_bad_names(void) {
    static const char* const names[][2] = {{"", "neither"},
                                           {"ring", "ring:N"},
                                           {"ring:", "ring:N"},
                                           {"ring:0", "ring:N"},
                                           {"ring:-1", "ring:N"},
                                           {"ring:+4", "ring:N"},
                                           {"ring: 4", "ring:N"},
                                           {"ring:4 ", "ring:N"},
                                           {"ring:4x4", "ring:N"},
                                           {"ring:16385", "ring:N"},
                                           {"ring:4,", "ring:N"},
                                           {"ring:99999999999999999999", "ring:N"},
                                           {"mesh:4", "mesh:AxB"},
                                           {"mesh:0x3", "mesh:AxB"},
                                           {"mesh:3x0", "mesh:AxB"},
                                           {"mesh:3x", "mesh:AxB"},
                                           {"mesh:x3", "mesh:AxB"},
                                           {"mesh:3xx3", "mesh:AxB"},
                                           {"mesh:2x2x2x2", "mesh:AxB"},
                                           {"mesh:2x2x2x", "mesh:AxB"},
                                           {"mesh:3x3junk", "mesh:"},
                                           {"mesh:3X3", "mesh:AxB"},
                                           {"mesh:3,3", "mesh:AxB"},
                                           {"mesh:0x10x3", "mesh:AxB"},
                                           {"torus:99999x99999", "torus:AxB"},
                                           {"torus:16384x16384", "16384 of both"},
                                           {"torus:16384x16384x16384", "16384 of both"},
                                           {"torus:129x128", "16384 of both"},
                                           {"torus", "torus:AxB"},
                                           {"torus:4294967297x1", "torus:AxB"},
                                           {"full:", "full:N"},
                                           {"full:0", "full:N"},
                                           {"full:1025", "at most 1024"},
                                           {"full:3x3", "full:N"},
                                           {"fattree:4", "fattree:K,L"},
                                           {"fattree:4x2", "fattree:K,L"},
                                           {"fattree:1,3", "2 or more"},
                                           {"fattree:2,0", "fattree:K,L"},
                                           {"fattree:2,14", "16384 of both"},
                                           {"fattree:16384,16384", "16384 of both"},
                                           {"fattree:2,3,4", "fattree:K,L"},
                                           {"fattree:2,12", "16384 of both"},
                                           {"bigraph:4", "bigraph:MxN"},
                                           {"bigraph:4x3", "even number"},
                                           {"bigraph:4x1", "even number"},
                                           {"bigraph:128x128", "16384 of both"},
                                           {"bigraph:4x0", "bigraph:MxN"},
                                           {"bigraph:2x2x2", "bigraph:MxN"},
                                           {"dgx:2", "neither"},
                                           {"dgx2", "neither"},
                                           {"rings:4", "neither"},
                                           {"rin", "neither"},
                                           {"Ring:4", "neither"},
                                           {"/nowhere/at/all", "No such file"},
                                           {"/tmp", "cannot be read"},
                                           {"/dev/zero", "line 1"},
                                           {"/dev/null", "no line \"ranks N\""},
                                           {"%s%n%s", "neither"},
                                           {":", "neither"}};
    Tally t = {0, 0};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        Network net;
        Error error = {""};
        const bool built = network_build(&net, names[i][0], &error);
        tally(&t, !built && strstr(error.text, names[i][1]) && !net.link && !net.first, "\"%s\": \"%s\" without \"%s\"",
              names[i][0], error.text, names[i][1]);
        if (built) network_free(&net);
    }
    char* text = (char*)checked_malloc(100001, "a test");
    memset(text, '9', 100000);
    memcpy(text, "torus:", 6);
    text[100000] = 0;
    for (int i = 0; i < 2; i++, memset(text, 'x', 6)) {
        Network net;
        Error error = {""};
        tally(&t, !network_build(&net, text, &error) && error.text[0], "a very long name");
    }
    free(text);
    tally_end(&t, "names of no networks, refused for their reason");
    static const char* const largest[] = {"ring:16384",    "mesh:128x128",    "fattree:2,11",
                                          "torus:16384x1", "bigraph:127x128", "full:1024"};
    Tally u = {0, 0};
    for (int i = 0; i < by_effort(5, 6, 6); i++) {
        Network net = network_of(largest[i]);
        tally(&u, net.ranks > 1000 && net.links > 2000, "%s", largest[i]);
        network_free(&net);
    }
    tally_end(&u, "the largest networks there can be");
}

static void test_bad_files(void) {
    static const char* const cases[][2] = {{"", "no line \"ranks N\""},
                                           {"\n\n# nothing\n", "no line"},
                                           {"link 0 1\n", "has to come first"},
                                           {"switches 2\n", "comes first"},
                                           {"ranks\n", "comes first"},
                                           {"ranks 0\n", "comes first"},
                                           {"ranks -1\n", "comes first"},
                                           {"ranks 2 3\n", "comes first"},
                                           {"ranks two\n", "comes first"},
                                           {"ranks 2\nranks 2\n", "once"},
                                           {"ranks 16385\n", "comes first"},
                                           {"ranks 99999999999999999999\n", "comes first"},
                                           {"ranks 2x\n", "comes first"},
                                           {"ranks 2.5\n", "comes first"},
                                           {"ranks 0x2\n", "comes first"},
                                           {"ranks 2\nswitches -1\n", "may follow"},
                                           {"ranks 2\nlink 0 1\nswitches 1\n", "may follow"},
                                           {"ranks 2\nswitches 1\nswitches 2\n", "may follow"},
                                           {"ranks 2\nlink 0 1\nranks 3\n", "once"},
                                           {"ranks 2\nswitches 16383\n", "16384 of both"},
                                           {"ranks 2\nlinks 0 1\n", "\"links\" is none of"},
                                           {"ranks 2\nLINK 0 1\n", "none of"},
                                           {"rank 2\n", "none of"},
                                           {"\xef\xbb\xbfranks 2\n", "none of"},
                                           {"ranks 2\nlink\n", "two different numbers"},
                                           {"ranks 2\nlink 0\n", "two different"},
                                           {"ranks 2\nlink 0 0\n", "two different"},
                                           {"ranks 2\nlink 1 1\n", "two different"},
                                           {"ranks 2\nlink 0 2\n", "from 0 to 1"},
                                           {"ranks 2\nlink 2 0\n", "from 0 to 1"},
                                           {"ranks 2\nlink -1 0\n", "from 0 to 1"},
                                           {"ranks 2\nlink 0 -1\n", "from 0 to 1"},
                                           {"ranks 2\nlink 0 1x\n", "two different"},
                                           {"ranks 2\nlink 0 4294967297\n", "two different"},
                                           {"ranks 2\nlink 0 1 16GB/s 1us 3\n", "two different"},
                                           {"ranks 2\nlink 0 1 16GB/s 1us 3 4 5 6 7\n", "two different"},
                                           {"ranks 2\nlink 0 1 16\n", "\"16\" is no bandwidth"},
                                           {"ranks 2\nlink 0 1 GB/s\n", "no bandwidth"},
                                           {"ranks 2\nlink 0 1 -16GB/s\n", "no bandwidth"},
                                           {"ranks 2\nlink 0 1 0GB/s\n", "no bandwidth"},
                                           {"ranks 2\nlink 0 1 nanGB/s\n", "no bandwidth"},
                                           {"ranks 2\nlink 0 1 infGB/s\n", "no bandwidth"},
                                           {"ranks 2\nlink 0 1 1e999GB/s\n", "no bandwidth"},
                                           {"ranks 2\nlink 0 1 1e308GB/s\n", "no bandwidth"},
                                           {"ranks 2\nlink 0 1 1e-300GB/s\n", "no bandwidth"},
                                           {"ranks 2\nlink 0 1 16GB\n", "no bandwidth"},
                                           {"ranks 2\nlink 0 1 16gb/s\n", "no bandwidth"},
                                           {"ranks 2\nlink 0 1 16GB/sx\n", "no bandwidth"},
                                           {"ranks 2\nlink 0 1 16 GB/s\n", "no bandwidth"},
                                           {"ranks 2\nlink 0 1 16TB/s\n", "no bandwidth"},
                                           {"ranks 2\nlink 0 1 1us\n", "no bandwidth"},
                                           {"ranks 2\nlink 0 1 1GB/s 1\n", "\"1\" is no latency"},
                                           {"ranks 2\nlink 0 1 1GB/s -1ns\n", "no latency"},
                                           {"ranks 2\nlink 0 1 1GB/s nanus\n", "no latency"},
                                           {"ranks 2\nlink 0 1 1GB/s infs\n", "no latency"},
                                           {"ranks 2\nlink 0 1 1GB/s 1h\n", "no latency"},
                                           {"ranks 2\nlink 0 1 1GB/s 1e999s\n", "no latency"},
                                           {"ranks 2\n", "no way leads"},
                                           {"ranks 2\noneway 0 1\n", "from rank 1 to rank 0"},
                                           {"ranks 2\noneway 1 0\n", "from rank 0 to rank 1"},
                                           {"ranks 3\nlink 0 1\n", "no way leads"},
                                           {"ranks 3\nlink 0 1\noneway 1 2\n", "from rank 2 to rank 0"},
                                           {"ranks 3\nlink 0 1\noneway 2 1\n", "from rank 0 to rank 2"},
                                           {"ranks 2\nswitches 1\nlink 0 2\noneway 1 2\n", "from rank 0 to rank 1"},
                                           {"ranks 4\nlink 0 1\nlink 2 3\n", "no way leads"},
                                           {"ranks 2\nlink 0 1\nlink 0 5\n", "line 3"},
                                           {"ranks 2\n\n\n\nlink 0 5 # x\n", "line 5"}};
    Tally t = {0, 0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Network net;
        Error error = {""};
        const bool built = network_of_bytes(&net, cases[i][0], strlen(cases[i][0]), &error);
        tally(&t, !built && strstr(error.text, cases[i][1]) && !net.link && !net.first, "\"%s\": \"%s\" without \"%s\"",
              cases[i][0], error.text, cases[i][1]);
        if (built) network_free(&net);
    }
    // Lines of 510 characters are read, longer ones are not; a zero is no character of a line.
    for (int length = 505; length < 1030; length++) {
        char text[1100] = "ranks 2\nlink 0 1 #";
        const int begin = 8; // of the line
        for (int i = 18; i < begin + length; i++) text[i] = '.';
        for (int end = 0; end < 2; end++) {
            Network net;
            Error error = {""};
            memcpy(text + begin + length, end ? "\nlink 0 1\n" : "", end ? 11 : 1);
            const bool built = network_of_bytes(&net, text, strlen(text), &error);
            tally(&t,
                  length <= 510 ? built && net.links == 2 + 2 * end
                                : !built && strstr(error.text, "line 2: longer than 510"),
                  "a line of %d characters: %s", length, error.text);
            if (built) network_free(&net);
        }
    }
    Network net;
    Error error = {""};
    tally(&t, !network_of_bytes(&net, "ranks 2\nlink 0 1\0 junk\nlink 0 1\n", 32, &error), "a zero in a line");
    tally_end(&t, "files of no networks, refused for their reason");
}

static void test_bad_algorithms(void) {
    static const char* const names[][2] = {{"", "is no algorithm"},
                                           {"rings", "is no algorithm"},
                                           {"rin", "is no algorithm"},
                                           {"Ring", "is no algorithm"},
                                           {":", "is no algorithm"},
                                           {":2", "is no algorithm"},
                                           {" ring", "is no algorithm"},
                                           {"ring ", "is no algorithm"},
                                           {"ring:2", "takes no numbers"},
                                           {"ring:", "takes no numbers"},
                                           {"ring-both:1", "takes no numbers"},
                                           {"2d-ring:4", "takes no numbers"},
                                           {"torus-ring:x", "takes no numbers"},
                                           {"halving-doubling:2", "takes no numbers"},
                                           {"multitree:", "takes 1 whole number"},
                                           {"multitree:0", "takes 1"},
                                           {"multitree:-1", "takes 1"},
                                           {"multitree:1,2", "takes 1"},
                                           {"multitree:x", "takes 1"},
                                           {"multitree:2.5", "takes 1"},
                                           {"multitree: 2", "takes 1"},
                                           {"multitree:1025", "above 1024"},
                                           {"multitree:99999999999999999999", "takes 1"},
                                           {"double-tree:0", "takes 1"},
                                           {"double-tree:2,2", "takes 1"},
                                           {"double-tree:1025", "above 1024"},
                                           {"forest:1,2,3", "takes 2 whole numbers"},
                                           {"forest:1,2,3,4", "takes 2"},
                                           {"forest:,", "takes 2"},
                                           {"forest:1,", "takes 2"},
                                           {"forest:0,1", "takes 2"},
                                           {"forest:1,0", "takes 2"},
                                           {"forest:1x2", "takes 2"},
                                           {"forest:2000,1", "above 1024"},
                                           {"forest:1,1025", "above 1024"},
                                           {"%s%n", "is no algorithm"}};
    Tally t = {0, 0};
    Network net = network_of("torus:2x2");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        Plan plan;
        Error error = {""};
        tally(&t,
              !collective_build(&plan, names[i][0], PLAN_ALL_REDUCE, &net, &error) && strstr(error.text, names[i][1]) &&
                  !plan.transfers,
              "\"%s\": \"%s\" without \"%s\"", names[i][0], error.text, names[i][1]);
    }
    char text[5000];
    memset(text, 'r', sizeof text - 1);
    text[sizeof text - 1] = 0;
    for (int i = 0; i < 2; i++, memcpy(text, "multitree:", 10)) {
        Plan plan;
        Error error = {""};
        tally(&t, !collective_build(&plan, text, PLAN_ALL_REDUCE, &net, &error) && error.text[0], "a very long name");
    }
    tally_end(&t, "names of no algorithms, refused for their reason");
    static const struct {
        const char* text;
        int algorithm, a, b;
    } good[] = {{"ring", RING, 0, 0},
                {"ring-both", RING_BOTH, 0, 0},
                {"2d-ring", RING_2D, 0, 0},
                {"torus-ring", TORUS_RING, 0, 0},
                {"halving-doubling", HALVING_DOUBLING, 0, 0},
                {"double-tree", DOUBLE_TREE, 0, 0},
                {"double-tree:1024", DOUBLE_TREE, 1024, 0},
                {"multitree:007", MULTITREE, 7, 0},
                {"forest", FOREST, 0, 0},
                {"forest:5", FOREST, 5, 0},
                {"forest:5,6", FOREST, 5, 6}};
    Tally u = {0, 0};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        AlgorithmChoice choice;
        Error error = {""};
        tally(&u,
              algorithm_parse(good[i].text, &choice, &error) && (int)choice.algorithm == good[i].algorithm &&
                  choice.numbers[0] == good[i].a && choice.numbers[1] == good[i].b &&
                  strstr(algorithm_names(), algorithm_name(good[i].algorithm)),
              "%s", good[i].text);
    }
    Plan plan = plan_of("double-tree", PLAN_ALL_REDUCE, &net), forest = plan_of("forest:5", PLAN_ALL_REDUCE, &net);
    Plan scatter = plan_of("forest:5", PLAN_REDUCE_SCATTER, &net), tree = plan_of("multitree", PLAN_ALL_REDUCE, &net);
    tally(&u, plan.chunks == 16 && forest.chunks == 5 * 32 && scatter.chunks == 4 * 4 && tree.chunks == 4,
          "numbers that are not said");
    plan_free(&plan);
    plan_free(&forest);
    plan_free(&scatter);
    plan_free(&tree);
    network_free(&net);
    tally_end(&u, "names of algorithms, understood");
}

// Bandwidths as far apart as they can be written: a link's room is a number.
static void test_far_apart(void) {
    Tally t = {0, 0};
    static const char* const texts[] = {"ranks 3\nlink 0 1 0.001KB/s\nlink 1 2 1e12GB/s\nlink 2 0 1e12GB/s\n",
                                        "ranks 2\nswitches 1\nlink 0 2 8e-3kbit/s\nlink 1 2 400GB/s\n",
                                        "ranks 3\nlink 0 1 1e290GB/s\nlink 1 2 1KB/s\n"};
    for (int i = 0; i < 3; i++) {
        Network net = network_of(texts[i]);
        for (int a = 0; a < PLANS; a++) {
            if (!is_served(tried((size_t)a), PLAN_ALL_REDUCE, &net)) continue;
            Plan plan = plan_of(tried((size_t)a), PLAN_ALL_REDUCE, &net);
            Error error = {""};
            tally(&t, plan_check(&plan, &net, &error) && machine_runs(&plan, plan.chunks), "%s on %s: %s",
                  tried((size_t)a), texts[i], error.text);
            plan_free(&plan);
        }
        for (int l = 0; l < net.links; l++)
            tally(&t, plan_room(&net.link[l], network_slowest(&net)) >= 1, "%s", texts[i]);
        network_free(&net);
    }
    tally_end(&t, "links of very different speeds");
}

// ----------------------------------------------------------------------------------------------------------------
// Random input

// What survives is a network, and carries plans.
static void try_input(const char* bytes, size_t n, bool name, Tally* t, int* accepted) {
    Network net;
    Error error = {""};
    if (!(name ? network_build(&net, bytes, &error) : network_of_bytes(&net, bytes, n, &error))) {
        tally(t, error.text[0] != 0 && !net.link && !net.first, "refused without a word");
        return;
    }
    ++*accepted;
    bool ok = net.ranks >= 1 && net.vertices <= NETWORK_LARGEST && net.first[net.vertices] == net.links;
    for (int i = 0; i < net.links; i++) {
        const Link* l = &net.link[i];
        ok = ok && l->from >= 0 && l->from < net.vertices && l->to >= 0 && l->to < net.vertices && l->from != l->to;
        ok = ok && isfinite(l->bandwidth) && l->bandwidth >= 1 && isfinite(l->latency) && l->latency >= 0;
    }
    if (ok && net.vertices <= 40) {
        for (int a = 0; a < PLANS; a += 7) {
            if (!is_served(tried((size_t)a), PLAN_ALL_REDUCE, &net)) continue;
            Plan plan = plan_of(tried((size_t)a), PLAN_ALL_REDUCE, &net);
            ok = ok && plan_check(&plan, &net, &error);
            plan_free(&plan);
        }
        ok = ok && routes_are_right(&net);
    }
    tally(t, ok, "accepted: %s", bytes);
    network_free(&net);
}

// Bytes replaced, put in, taken out, doubled, or a word of those that mean something put in.
static size_t damage(char* bytes, size_t n, size_t most) {
    static const char* const words[] = {"link", "oneway", "ranks ",      "switches ", "\n",  "#", " 1", " 0",
                                        "GB/s", "-",      "99999999999", "1e999",     "nan", "x", ":",  ","};
    for (int times = 1 + random_below(3); times > 0; times--) {
        const size_t at = (size_t)random_below((int)n + 1);
        const char* word = words[random_below(16)];
        const size_t length = strlen(word);
        switch (random_below(5)) {
        case 0:
            if (at < n) bytes[at] = (char)random_below(256);
            break;
        case 1:
            if (at < n) memmove(bytes + at, bytes + at + 1, --n - at);
            break;
        case 2:
            if (at < n) bytes[at] = (char)('0' + random_below(10));
            break;
        default:
            if (n + length >= most) break;
            memmove(bytes + at + length, bytes + at, n - at);
            memcpy(bytes + at, word, length);
            n += length;
        }
    }
    return n;
}

static void test_random_input(int times) {
    static const char* const names[] = {"torus:4x4",   "mesh:2x3x2",  "ring:9", "full:5",
                                        "fattree:2,3", "bigraph:2x4", "dgx",    "mesh:1x1"};
    Tally t = {0, 0};
    int accepted = 0;
    for (int i = 0; i < times; i++) {
        char bytes[4200];
        size_t n = 0;
        if (i % 4 == 0) {
            n = (size_t)snprintf(bytes, sizeof bytes, "%s", names[random_below(8)]);
            n = damage(bytes, n, 100);
            bytes[n] = 0;
        } else if (i % 4 == 1 && chance(30)) {
            for (n = 0; n < (size_t)random_below(1500); n++) bytes[n] = (char)random_below(256);
        } else {
            AppendLog l = random_lines(1 + random_below(9), i / 4 & ALL_FLAGS);
            memcpy(bytes, l.text, n = (size_t)l.length);
            n = damage(bytes, n, 4096);
            graph_free(&l.graph);
        }
        bytes[n] = 0;
        if (i % 4 || strchr(bytes, '/') == NULL) try_input(bytes, n, i % 4 == 0, &t, &accepted);
    }
    tally_end(&t, "damaged names and files");
    check(accepted > times / 30 && accepted < times, "%d of %d of them are networks after all", accepted, times);
    Tally u = {0, 0};
    Network net = network_of("torus:2x3");
    for (int i = 0; i < times; i++) {
        char bytes[256];
        size_t n = (size_t)snprintf(bytes, sizeof bytes, "%s", tried((size_t)random_below(PLANS)));
        n = damage(bytes, n, 100);
        bytes[n] = 0;
        AlgorithmChoice choice;
        Error error = {""};
        const bool ok = algorithm_parse(bytes, &choice, &error);
        tally(&u,
              ok ? choice.numbers[0] <= 1024 && choice.numbers[1] <= 1024 && choice.numbers[0] >= 0
                 : error.text[0] != 0,
              "%s", bytes);
        if (!ok || (int64_t)max_i64(1, choice.numbers[0]) * max_i64(1, choice.numbers[1]) > 500) continue;
        Plan plan;
        if (!collective_build(&plan, bytes, (PlanKind)(i % PLAN_KINDS), &net, &error)) continue;
        tally(&u, plan_check(&plan, &net, &error), "%s: %s", bytes, error.text);
        plan_free(&plan);
    }
    network_free(&net);
    tally_end(&u, "damaged names of algorithms");
}

int main(int argc, char** argv) {
    static Network nets[MOST_NETWORKS];
    if (argc > 1) effort = strcmp(argv[1], "--short") == 0 ? BRIEF : strcmp(argv[1], "--full") == 0 ? FULL : NORMAL;
    snprintf(scratch, sizeof scratch, "/tmp/test_collective.XXXXXX");
    const int file = mkstemp(scratch);
    if (file < 0 || close(file) != 0) die("%s: %s", scratch, strerror(errno));
    const int n = make_networks(nets);
    test_networks(); // what is quick comes first: dev/test/mutants/plans.py waits for the first failure
    test_fattrees();
    test_units();
    test_reverse();
    test_routes();
    test_bad_names();
    test_bad_files();
    test_bad_algorithms();
    test_far_apart();
    test_small_plans();
    test_sort();
    test_formulas();
    test_published_trees();
    test_double_trees();
    test_ring_orders(nets, n);
    test_published_steps();
    test_published_switches();
    test_forest_rates();
    test_many_ranks();
    test_random_input(by_effort(1500, 6000, 100000));
    test_multitree_again();
    test_numbers(nets, n);
    test_changes();
    test_multitree_properties(nets, n);
    test_bytes(nets, n);
    test_forests(nets, n);
    test_costs(nets, n);
    for (int i = 0; i < n; i++) network_free(&nets[i]);
    unlink(scratch);
    return test_end();
}
