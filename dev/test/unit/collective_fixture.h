/*
collective_fixture.h: what the tests of collectives share: random numbers, tallies, networks from a text, and random
networks as the lines of a file beside the links that they mean.
*/
#pragma once

#include "../../../comm/collectives/collectives.h"
#include "../../../planner/plan_cost.h"
#include "test.h"

static enum { BRIEF, NORMAL, FULL } effort = NORMAL;
static inline int by_effort(int brief, int normal, int full) {
    if (effort == BRIEF) return brief;
    return effort == NORMAL ? normal : full;
}

static uint64_t random_state = 1;
static inline int random_below(int n) { return (int)(random_uniform(7, 0, random_state++) * (float)n); }
static inline bool chance(int percent) { return random_below(100) < percent; }

// Many cases that are one check; the first few wrong ones are shown.
typedef struct {
    int tried, right;
} Tally;

__attribute__((format(printf, 3, 4))) static inline void tally(Tally* t, bool ok, const char* format, ...) {
    t->tried++;
    t->right += ok;
    if (ok || t->tried - t->right > 5) return;
    printf("      wrong: ");
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}

static inline void tally_end(const Tally* t, const char* what) {
    check(t->right == t->tried && t->tried > 0, "%s: %d of %d are right", what, t->right, t->tried);
}

static char scratch[64]; // a file for networks

static inline bool network_of_text(Network* net, const char* text, Error* error) {
    return network_build(net, write_text(scratch, text), error);
}

// A network that has to be right: by its name, or, if it begins with "ranks", as the text of a file.
static inline Network network_of(const char* text) {
    Network net;
    Error error = {""};
    const bool file = strncmp(text, "ranks", 5) == 0;
    if (!(file ? network_of_text(&net, text, &error) : network_build(&net, text, &error)))
        die("%s: %s", text, error.text);
    return net;
}

// A network that the tests make a second time. Its arcs are in the order in which they are added.
typedef struct {
    int from, to, speed; // speed: a multiple of 100 MB/s
} Arc;

typedef struct {
    int ranks, switches, reach, n;
    Arc arc[1024];
    char text[8192]; // the lines of its file
} Graph;

static inline void graph_begin(Graph* g, int ranks, int switches, int reach) {
    g->ranks = ranks;
    g->switches = switches;
    g->reach = reach;
    g->n = 0;
    snprintf(g->text, sizeof g->text, "ranks %d # these\n\n# and\n \tswitches  %d\r\n", ranks, switches);
}

static inline void graph_add(Graph* g, int from, int to, int speed) {
    const Arc arc = {from, to, speed};
    if (g->n == 1024) die("a test: too many arcs");
    g->arc[g->n++] = arc;
}

static inline void graph_join(Graph* g, int a, int b, int speed) {
    graph_add(g, a, b, speed);
    graph_add(g, b, a, speed);
}

// A line of the file and its arcs. The bandwidth and the latency, 1 us, are in random units.
static inline void graph_line(Graph* g, int a, int b, int speed) {
    static const char* const units[] = {"MB/s", "GB/s", "KB/s", "Gbit/s", "Mbit/s", "kbit/s"};
    static const double in_unit[] = {100, 0.1, 1e5, 0.8, 800, 8e5};
    static const char* const latencies[] = {"1us", "1000ns", "0.001ms", "1e-6s"};
    const int unit = random_below(6);
    append_text(g->text, sizeof g->text, "link %d\t%d %.10g%s %s%s\n", a, b, speed * in_unit[unit], units[unit],
                latencies[random_below(4)], chance(10) ? "# slow" : "");
    graph_join(g, a, b, speed);
}

enum { LOOPS = 1, SPEEDS = 2, PARALLEL = 4, SWITCHES = 8, ALL_FLAGS = 15 };

static inline bool graph_joins(const Graph* g, int a, int b) {
    for (int i = 0; i < g->n; i++) {
        if ((g->arc[i].from == a && g->arc[i].to == b) || (g->arc[i].from == b && g->arc[i].to == a)) return true;
    }
    return false;
}

// A loop or a tree of links joins all ranks and switches; more links are added.
static inline void graph_random(Graph* g, int ranks, int flags) {
    const int switches = flags & SWITCHES ? 1 + random_below(4) : 0, n = ranks + switches, more = random_below(2 * n);
    const bool loop = (flags & LOOPS) && n > 2 && chance(50);
    const int turned = random_below(n), speeds = flags & SPEEDS ? 4 : 1;
    graph_begin(g, ranks, switches, switches > 1 ? switches : 1);
    for (int v = loop ? 0 : 1; v < n; v++) {
        const int to = loop ? v + 1 : random_below(v);
        graph_line(g, (v + turned) % n, (to + turned) % n, 1 + random_below(speeds));
    }
    for (int i = 0; i < more; i++) {
        const int a = random_below(n), b = random_below(n);
        if (a == b || (!(flags & PARALLEL) && graph_joins(g, a, b))) continue;
        graph_line(g, a, b, 1 + random_below(speeds));
    }
}

static inline void fixture_begin(int argc, char** argv) {
    if (argc > 1) effort = strcmp(argv[1], "--short") == 0 ? BRIEF : FULL;
    snprintf(scratch, sizeof scratch, "/tmp/test_collective.XXXXXX");
    const int file = mkstemp(scratch);
    if (file < 0 || close(file) != 0) die("%s: %s", scratch, strerror(errno));
}

static inline int fixture_end(void) {
    unlink(scratch);
    return test_end();
}
