/*
test_topology.c: networks. Names and random files against graphs built a second time, link by link in the order of
ports; routes against distances by relaxing; names, files and algorithms that have to be refused.

    build/test_topology [--short | --full]
*/
#include "collective_fixture.h"

static Graph graph;

// North, South, West, East: a step down and up in every dimension, around the ends of a torus.
static void graph_grid(Graph* g, const int side[3], bool wraps) {
    const int stride[3] = {side[1] * side[2], side[2], 1};
    graph_begin(g, side[0] * side[1] * side[2], 0, 1);
    for (int v = 0; v < g->ranks; v++) {
        for (int d = 0; d < 3; d++) {
            const int at = v / stride[d] % side[d];
            for (int to = at - 1; to <= at + 1; to += 2) {
                if (to >= 0 && to < side[d]) graph_add(g, v, v + (to - at) * stride[d], 160);
                if ((to < 0 || to == side[d]) && wraps && side[d] > 2)
                    graph_add(g, v, v + ((to + side[d]) % side[d] - at) * stride[d], 160);
            }
        }
    }
}

// Switches a and b of neighbouring levels are joined if their numbers, to base K, differ in digit `level` at most.
static void graph_fattree(Graph* g, int K, int levels) {
    const int per_level = (int)lround(pow(K, levels - 1)), ranks = K * per_level;
    graph_begin(g, ranks, levels * per_level, 2 * levels - 1);
    for (int v = 0; v < ranks; v++) graph_join(g, v, ranks + v / K, 160);
    for (int level = 0, place = 1; level + 1 < levels; level++, place *= K) {
        for (int a = 0; a < per_level; a++) {
            for (int b = 0; b < per_level; b++) {
                if (a % place != b % place || a / place / K != b / place / K) continue;
                graph_join(g, ranks + level * per_level + a, ranks + (level + 1) * per_level + b, 160);
            }
        }
    }
}

static void graph_bigraph(Graph* g, int per_switch, int switches) {
    const int ranks = per_switch * switches;
    graph_begin(g, ranks, switches, 2);
    for (int v = 0; v < ranks; v++) graph_join(g, v, ranks + v / per_switch, 160);
    for (int a = 0; a < switches / 2; a++) {
        for (int b = switches / 2; b < switches; b++) graph_join(g, ranks + a, ranks + b, 160);
    }
}

static void graph_full(Graph* g, int ranks) {
    graph_begin(g, ranks, 0, 1);
    for (int i = 0; i < ranks * ranks; i++) {
        if (i / ranks != i % ranks) graph_add(g, i / ranks, i % ranks, 160);
    }
}

static void graph_of_name(Graph* g, const char* name) {
    char kind[16];
    int n[3] = {1, 1, 1};
    sscanf(name, "%15[a-z]:%d%*[x,]%d%*[x,]%d", kind, &n[0], &n[1], &n[2]);
    switch (kind[0]) {
    case 'b': graph_bigraph(g, n[0], n[1]); break;
    case 'r':
    case 't': graph_grid(g, n, true); break;
    case 'm': graph_grid(g, n, false); break;
    default:
        if (strcmp(kind, "full") == 0)
            graph_full(g, n[0]);
        else
            graph_fattree(g, n[0], n[1]);
    }
}

// The links of a vertex: to ranks first, then to switches, each in the order in which they were added.
static bool network_is_graph(const Network* net, const Graph* g, double latency) {
    int l = 0;
    bool ok = net->ranks == g->ranks && net->vertices == g->ranks + g->switches && net->links == g->n;
    ok = ok && net->reach == g->reach;
    for (int v = 0; v < 2 * net->vertices && ok; v++) {
        if (v % 2 == 0) ok = net->first[v / 2] == l;
        for (int i = 0; i < g->n && ok; i++) {
            const Arc* arc = &g->arc[i];
            if (arc->from != v / 2 || (arc->to >= g->ranks) != v % 2) continue;
            const Link* link = &net->link[l++];
            ok = link->from == arc->from && link->to == arc->to && fabs(link->latency / latency - 1) < 1e-9 &&
                 fabs(link->bandwidth / (1e8 * arc->speed) - 1) < 1e-9;
        }
    }
    return ok && net->first[net->vertices] == l;
}

// Links from each vertex to `to` at least, by relaxing every link as long as that helps.
static void relax_distances(const Network* net, int to, int* distance) {
    for (int v = 0; v < net->vertices; v++) distance[v] = v == to ? 0 : 1 << 20;
    for (bool shorter = true; shorter;) {
        shorter = false;
        for (int i = 0; i < net->links; i++) {
            const Link* link = &net->link[i];
            if (distance[link->from] <= distance[link->to] + 1) continue;
            distance[link->from] = distance[link->to] + 1;
            shorter = true;
        }
    }
}

// The link from v on the way to `to`, by the first comment of topology.h; -1: none.
static int expected_link(const Network* net, const int* distance, int v, int to) {
    int nearest[64], n = 0, stride = 1, i = net->dimensions - 1;
    for (int l = 0; l < net->links; l++) {
        if (net->link[l].from == v && distance[net->link[l].to] == distance[v] - 1) nearest[n++] = l;
    }
    if (n == 0 || distance[v] >= 1 << 20) return -1;
    if (net->dimensions == 0) return nearest[to % n];
    for (; v / stride % net->sides[i] == to / stride % net->sides[i]; i--) stride *= net->sides[i];
    for (int k = n - 1; k >= 0; k--) { // along dimension i: the other coordinates stay
        const int next = net->link[nearest[k]].to, block = stride * net->sides[i];
        if (next % stride != v % stride || next / block != v / block) nearest[k] = nearest[--n];
    }
    if (n == 1) return nearest[0];
    const bool up = to / stride % net->sides[i] > v / stride % net->sides[i];
    const int direct = v + (up ? stride : -stride); // two ways are as short: the one that does not wrap around
    return net->link[nearest[0]].to == direct ? nearest[0] : nearest[1];
}

static bool routes_are_right(const Network* net) {
    Routes routes = network_routes(net);
    int* distance = (int*)checked_malloc((size_t)net->vertices * sizeof(int), "a test");
    bool ok = routes.ranks == net->ranks;
    for (int to = 0; to < net->ranks; to++) {
        relax_distances(net, to, distance);
        for (int v = 0; v < net->vertices; v++)
            ok = ok && routes_next(&routes, v, to) == expected_link(net, distance, v, to);
    }
    routes_free(&routes);
    free(distance);
    return ok;
}

static void test_networks(void) {
    static const char* const names[] = {"ring:1",      "ring:2",      "ring:9",      "mesh:1x1",    "mesh:4x4",
                                        "mesh:1x7",    "mesh:7x1",    "mesh:2x5",    "mesh:3x4x5",  "torus:4x4",
                                        "torus:2x2",   "torus:3x2",   "torus:5x5",   "torus:2x6",   "torus:3x1x4",
                                        "torus:2x3x4", "torus:1x1x1", "mesh:5x1x2",  "torus:3x4x5", "full:1",
                                        "full:2",      "full:9",      "fattree:5,1", "fattree:2,2", "fattree:4,2",
                                        "fattree:2,4", "fattree:3,3", "bigraph:1x2", "bigraph:3x4", "bigraph:4x8"};
    Tally links = {0, 0}, routes = {0, 0};
    const int n = (int)(sizeof names / sizeof *names);
    for (int i = 0; i < n + by_effort(300, 500, 3000); i++) {
        if (i < n)
            graph_of_name(&graph, names[i]);
        else
            graph_random(&graph, 1 + random_below(12), i & ALL_FLAGS);
        const char* text = i < n ? names[i] : graph.text;
        Network net = network_of(text);
        tally(&links, network_is_graph(&net, &graph, i < n ? 150e-9 : 1e-6), "%s", text);
        tally(&routes, routes_are_right(&net), "%s", text);
        network_free(&net);
    }
    tally_end(&links, "networks, link by link");
    tally_end(&routes, "routes: shortest, in their order, taking turns");
    static const char* const largest[] = {"ring:16384", "bigraph:127x128", "full:1024"};
    for (int i = 0; i < 3; i++) { // network_of dies if one is refused
        Network net = network_of(largest[i]);
        network_free(&net);
    }
}

// ---- Refusals ---------------------------------------------------------------------------------------------------

enum { NAME, LINES, LINES_AFTER_RANKS, ALGORITHM }; // what a text is

static bool is_refused(const Network* net, int what, const char* text) {
    char lines[1200];
    static Network none;
    static Plan plan;
    Error error = {""};
    bool built = false;
    snprintf(lines, sizeof lines, "%s%s", what == LINES_AFTER_RANKS ? "ranks 2\n" : "", text);
    if (what == ALGORITHM)
        built = collective_build(&plan, text, PLAN_ALL_REDUCE, net, &error);
    else
        built = what == NAME ? network_build(&none, text, &error) : network_of_text(&none, lines, &error);
    const bool refused = !built && error.text[0] && !plan.transfers && !none.link && !none.first;
    network_free(&none);
    return refused;
}

static const char bad_names[] = // separated by |
    "|ring|ring:|ring:0|ring:-1|ring:+4|ring: 4|ring:4 |ring:4x4|ring:16385|ring:4,|mesh:4|mesh:0x3|mesh:3x|"
    "mesh:x3|mesh:3xx3|mesh:2x2x2x2|mesh:2x2x2x|mesh:3X3|mesh:3,3|torus|full:|full:0|full:1025|full:3x3|"
    "torus:129x128|fattree:4|fattree:4x2|fattree:1,3|fattree:2,0|fattree:2,12|fattree:2,3,4|bigraph:4|"
    "bigraph:4x3|bigraph:4x1|bigraph:4x0|bigraph:128x128|bigraph:2x2x2|dgx|rings:4|rin|Ring:4|/nowhere|"
    "/dev/zero|/dev/null|%s%n%s|:|ring:99999999999999999999|torus:16384x16384x16384|torus:4294967297x1|"
    "fattree:16384,16384";
static const char bad_lines[] =
    "|# nothing\n|link 0 1\n|switches 2\nranks 2\nlink 0 2\nlink 1 2\n|ranks\n|ranks 0\n|ranks -1\n|"
    "ranks 1 1\n|ranks two\n|ranks 16385\n|ranks 99999999999999999999\n|ranks 1x\n|ranks 1.5\n|rank 1\n|"
    "\xef\xbb\xbfranks 1\n";
static const char bad_lines_after_ranks[] =
    "|ranks 2\nlink 0 1\n|switches -1\nlink 0 1\n|link 0 1\nswitches 1\n|switches 1\nswitches 2\nlink 0 1\n|"
    "link 0 1\nranks 3\n|switches 16383\nlink 0 1\n|links 0 1\n|LINK 0 1\n|link\n|link 0\n|"
    "link 0 1\nlink 0 0\n|link 0 1\nlink 1 1\n|link 0 1\nlink 0 2\n|link 0 1\nlink 2 0\n|link -1 0\n|"
    "link 0 -1\n|link 0 1x\n|link 0 4294967297\n|link 0 1 16GB/s 1us 3\n|link 0 1 16GB/s 1us 3 4 5 6 7\n|"
    "link 0 1 16\n|link 0 1 GB/s\n|link 0 1 -16GB/s\n|link 0 1 0GB/s\n|link 0 1 nanGB/s\n|link 0 1 infGB/s\n|"
    "link 0 1 1e999GB/s\n|link 0 1 1e308GB/s\n|link 0 1 1e-300GB/s\n|link 0 1 16GB\n|link 0 1 16gb/s\n|"
    "link 0 1 16GB/sx\n|link 0 1 16 GB/s\n|link 0 1 1us\n|link 0 1 1GB/s 1\n|link 0 1 1GB/s -1ns\n|"
    "link 0 1 1GB/s nanus\n|link 0 1 1GB/s infs\n|link 0 1 1GB/s 1h\n|oneway 0 1\n|"
    "switches 1\nlink 0 2\n";
static const char bad_algorithms[] = "|rings|rin|Ring|:| ring|ring |ring:2|ring:|multitree:1|double-tree:8|forest|%s%n";

static void test_refusals(void) {
    static const char* const lists[] = {bad_names, bad_lines, bad_lines_after_ranks, bad_algorithms};
    Tally t = {0, 0};
    Network net = network_of("torus:2x2");
    for (int what = NAME; what <= ALGORITHM; what++) {
        for (const char* at = lists[what]; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
            char text[256];
            snprintf(text, sizeof text, "%.*s", (int)strcspn(at, "|"), at);
            tally(&t, is_refused(&net, what, text), "list %d: \"%s\"", what, text);
        }
    }
    network_free(&net);
    net = network_of("ring:4");
    tally(&t, is_refused(&net, ALGORITHM, "2d-ring"), "rings of rows and columns on a ring");
    network_free(&net);
    Error error;
    tally(&t, !network_build(&net, "/tmp", &error) && strstr(error.text, strerror(EISDIR)), "a folder");
    for (int i = 0; i < 6; i++) { // lines of 510 characters are read, longer ones are not
        const int length = 510 + i / 2;
        char text[600];
        snprintf(text, sizeof text, "link 0 1 #%0*d%s", length - 10, 0, i % 2 ? "" : "\nlink 0 1\n");
        tally(&t, is_refused(NULL, LINES_AFTER_RANKS, text) == (length > 510), "a line of %d characters", length);
    }
    tally_end(&t, "names and files of no network, names of no algorithm: refused");
}

int main(int argc, char** argv) {
    fixture_begin(argc, argv);
    test_networks();
    test_refusals();
    return fixture_end();
}
