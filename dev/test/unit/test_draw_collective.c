/*
Tests of dev/plot/draw_collective.c: four pictures as they were looked at (golden.h), as many arrows and cells as the
plan has messages on links, on every kind of network; and what cannot be drawn is refused without a byte of output.
*/
#define DRAW_COLLECTIVE_NO_MAIN
#include "../../plot/draw_collective.c"
#include "golden.h"

static void test_golden(bool write) {
    static const char* const pictures[][2] = {
        {"golden_trees.svg", "--topology torus:3x3 --algorithm multitree --what trees --tree 4"},
        {"golden_switches.svg", "--topology fattree:2,2 --algorithm multitree --kind reduce-scatter --what trees"},
        {"golden_steps.svg", "--topology mesh:2x3 --algorithm multitree --what steps"},
        {"golden_links.svg", "--topology torus:2x4 --algorithm halving-doubling --what links"},
    };
    for (size_t i = 0; i < sizeof pictures / sizeof pictures[0]; i++) {
        Error error;
        int status;
        char* text = run_tool(draw_collective, pictures[i][1], &status, &error);
        check(status == 0, "%s %s", pictures[i][1], error.text);
        check_golden(pictures[i][0], text, 0.11, write);
        free(text);
    }
}

// How often `what` occurs between `from` and the next "\"/>".
static int count_in_paths(const char* text, const char* from, char what) {
    int n = 0;
    for (const char* at = text; (at = strstr(at, from)) != NULL;) {
        for (; strncmp(at, "\"/>", 3) != 0; at++) n += *at == what;
    }
    return n;
}

static int count_text(const char* text, const char* word) {
    int n = 0;
    for (const char* at = text; (at = strstr(at, word)) != NULL; at++) n++;
    return n;
}

// Arrows of the trees, arrows of the steps, cells of the links: as many as the plan uses links.
static void test_counts(const char* topology, const char* algorithm, PlanKind kind, bool trees) {
    static const char* const kinds[] = {"all-reduce", "reduce-scatter", "all-gather"};
    Error error;
    Network net;
    Plan plan;
    if (!network_build(&net, topology, &error) || !collective_build(&plan, algorithm, kind, &net, &error))
        die("test_draw_collective: %s", error.text);
    Source s = source_new(&net, &plan);
    Use* uses = link_uses(&s);
    int busy = 0, expected = 0, status;
    int64_t messages = 0;
    for (int64_t i = 0; i < (int64_t)plan.steps * net.links; i++) {
        busy += uses[i].transfers > 0;
        messages += uses[i].transfers;
    }
    for (int64_t i = 0; i < plan.n; i++) expected += plan_way(&plan, &net, &s.routes, i, s.way);
    check(messages == expected, "%s on %s: %lld messages on links", algorithm, topology, (long long)messages);
    for (int what = 0; what < 3; what++) {
        static const char* const names[] = {"trees", "steps", "links"};
        char line[256];
        TreeList list;
        snprintf(line, sizeof line, "--topology %s --algorithm %s --kind %s --what %s", topology, algorithm,
                 kinds[kind], names[what]);
        char* text = run_tool(draw_collective, line, &status, &error);
        int want = busy, got = count_text(text, "stroke=\"none\"");
        if (what == DRAW_TREES && trees && tree_list(&s, &list, &error)) {
            want = 0;
            for (int i = 0; i < list.n; i++) {
                for (int r = 0; r < plan.ranks; r++) {
                    if (list.tree[i].row[r] >= 0) want += plan_way(&plan, &net, &s.routes, list.tree[i].row[r], s.way);
                }
            }
            tree_list_free(&list);
        }
        if (what == DRAW_LINKS) got = count_in_paths(text, "class=\"cells\"", 'M');
        const bool refused = what == DRAW_TREES && !trees;
        check(refused ? status == EXIT_ARGUMENTS && !*text : status == 0 && got == want,
              "%s: status %d, %d of %d arrows or cells", line, status, got, want);
        check(!strstr(text, "nan") && !strstr(text, "inf"), "  with numbers only");
        free(text);
    }
    free(uses);
    source_free(&s);
    plan_free(&plan);
    network_free(&net);
}

// Plays the table: a row may send only what its Children (a reduce) or its Parent (a gather) have sent before. In the
// end every flow has come to its root once from every rank, and from there to every rank.
static void test_table(const char* topology, int ranks) {
    enum { MOST = 64 };
    static int sent[2][MOST][MOST], heard[MOST][MOST]; // step + 1 of a flow's reduce and arrival at a rank
    int rows = 0, wrong = 0, status, r, flow, step, used;
    char line[128], op[8], parent[16], children[256];
    Error error;
    memset(sent, 0, sizeof sent);
    memset(heard, 0, sizeof heard);
    snprintf(line, sizeof line, "--topology %s --what table", topology);
    char* text = run_tool(draw_collective, line, &status, &error);
    for (int now = 0; now < 4 * MOST; now++) { // in the order of steps
        for (const char* at = strchr(text, '\n'); at && at[1]; at = strchr(at + 1, '\n')) {
            const int n = sscanf(at, "%d %7s %d %15s %255s %d", &r, op, &flow, parent, children, &step);
            if (n != 6 || strcmp(op, "NOP") == 0) continue;
            if (step != now) continue;
            const bool add = strcmp(op, "Reduce") == 0;
            rows++;
            wrong += add ? sent[0][flow][r] : (r == flow) != (strcmp(parent, "nil") == 0);
            wrong += !add && r != flow && (heard[flow][r] == 0 || heard[flow][r] > step);
            if (add) sent[0][flow][r] = step + 1;
            for (const char* c = children; isdigit(*c); c += used + (c[used] == ',')) {
                int child = 0;
                sscanf(c, "%d%n", &child, &used);
                wrong += add ? sent[0][flow][child] == 0 || sent[0][flow][child] > step : heard[flow][child]++ > 0;
                if (!add) heard[flow][child] = step + 1;
            }
        }
    }
    for (int i = 0; i < ranks * ranks; i++)
        wrong += i / ranks != i % ranks && (!sent[0][i / ranks][i % ranks] || !heard[i / ranks][i % ranks]);
    check(status == 0 && wrong == 0 && rows > ranks, "%s: %d rows, %d of them wrong %s", line, rows, wrong, error.text);
    free(text);
}

// Rank 0 of a mesh of four, whose table the paper's figure 5 shows.
static void test_table_of_paper(void) {
    Error error;
    int status;
    char* text = run_tool(draw_collective, "--topology mesh:2x2 --what table", &status, &error);
    char* end = strstr(text, "\n   1 ");
    if (end) *end = 0;
    check(status == 0 && end && count_text(text, "Reduce") == 3 && count_text(text, "Gather") == 2 &&
              strstr(text, "Gather      0    nil"),
          "rank 0 of mesh:2x2 has 3 rows to reduce and 2 to gather:\n%s", text);
    free(text);
}

static void test_refused(void) {
    static const char* const lines[][2] = {
        {"--what steps", "--topology"},
        {"--topology torus:4x4 --what steps --tree 1", "--tree"},
        {"--topology torus:4x4 --tree 99", "--tree 99"},
        {"--topology torus:4x4 --algorithm best", "best"},
        {"--topology /nowhere/net.txt", "/nowhere/net.txt"},
        {"--topology torus:64x64", "4096 ranks"},
        {"--topology full:1", "one rank"},
        {"--topology ring:4 --colour red", "--colour"},
        {"--topology ring:256 --algorithm ring --what steps", "more than can be seen"},
        {"--topology torus:4x4 --algorithm 2d-ring", "no tree"},
        {"--topology torus:4x4 --algorithm halving-doubling --what table", "several flows"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        Error error;
        int status;
        char* text = run_tool(draw_collective, lines[i][0], &status, &error);
        check(status == EXIT_ARGUMENTS && !*text && strstr(error.text, lines[i][1]), "%s: %d %s", lines[i][0], status,
              error.text);
        free(text);
    }
    FILE* full = fopen("/dev/full", "w");
    if (!full) return;
    char name[] = "draw_collective", option[] = "--topology", value[] = "ring:4";
    char* argv[] = {name, option, value};
    Error error;
    check(draw_collective(3, argv, full, &error) == EXIT_RUN, "a disk without room: %s", error.text);
    fclose(full);
}

int main(int argc, char** argv) {
    process.name = "test_draw_collective";
    test_golden(argc > 1 && strcmp(argv[1], "--write") == 0);
    test_counts("torus:4x4", "multitree", PLAN_ALL_REDUCE, true);
    test_counts("mesh:2x3", "multitree", PLAN_REDUCE_SCATTER, true);
    test_counts("torus:2x2x3", "multitree", PLAN_ALL_GATHER, true);
    test_counts("fattree:2,3", "multitree", PLAN_REDUCE_SCATTER, true);
    test_counts("ring:8", "ring", PLAN_ALL_GATHER, true);
    test_counts("bigraph:8x2", "ring", PLAN_ALL_GATHER, true);
    test_counts("bigraph:2x4", "halving-doubling", PLAN_ALL_GATHER, true);
    test_counts("torus:4x4", "halving-doubling", PLAN_ALL_REDUCE, true);
    test_counts("torus:4x4", "2d-ring", PLAN_ALL_REDUCE, false);
    test_counts("full:5", "double-tree", PLAN_ALL_REDUCE, true);
    test_table("mesh:2x2", 4);
    test_table("torus:4x4", 16);
    test_table("fattree:2,4", 16);
    test_table("mesh:4x4", 16);
    test_table_of_paper();
    test_refused();
    return test_end();
}
