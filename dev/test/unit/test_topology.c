/*
test_topology.c: networks and names. Names against graphs built a second time; files; routes; what malformed names,
files and algorithms are refused for; random and damaged files.

    build/test_topology [--short | --full]
*/
#include "collective_fixture.h"

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
    fixture_begin(argc, argv);
    test_networks();
    test_fattrees();
    test_units();
    test_reverse();
    test_routes();
    test_bad_names();
    test_bad_files();
    test_bad_algorithms();
    test_far_apart();
    test_random_input(by_effort(1500, 6000, 100000));
    return fixture_end();
}
