/*
test_multitree.c: published steps and trees, edge by edge; MultiTree against a slow builder written from the paper's
pseudo-code, on random graphs with switches, parallel links, links of several speeds and one-way links; what ring.h,
multitree.h and forest.h promise: bytes, steps, trees, links.

    build/test_multitree [--short | --full]
*/
#include "collective_fixture.h"

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

int main(int argc, char** argv) {
    fixture_begin(argc, argv);
    test_published_trees();
    test_double_trees();
    test_ring_orders(tried_networks, tried_count);
    test_published_steps();
    test_published_switches();
    test_forest_rates();
    test_multitree_again();
    test_multitree_properties(tried_networks, tried_count);
    test_bytes(tried_networks, tried_count);
    test_forests(tried_networks, tried_count);
    return fixture_end();
}
