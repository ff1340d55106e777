/*
test_collective.c: plans of collectives. A machine executes every algorithm's plans on random numbers, on hundreds of
networks and in many lengths: sums are exact and all ranks have the same bits. plan_check beside this machine, on plans
with random changes. Steps and costs beside formulas and published numbers. MultiTree beside a slow builder that follows
the paper's pseudo-code.

    build/test_collective [--short | --full]
*/
#include "collective_fixture.h"

static Graph graph;

// ---- Networks and algorithms that are tried ---------------------------------------------------------------------

static const char* const files[] = {
    "ranks 1\n",
    "ranks 1\nswitches 1\nlink 0 1\n",
    "ranks 2\nlink 0 1\n",
    "ranks 5\nlink 0 1\nlink 1 2\nlink 2 3\nlink 3 4\nlink 4 0\n",
    "ranks 4\nswitches 1\nlink 0 4 10GB/s\nlink 1 4 10GB/s\nlink 2 4 30GB/s\nlink 3 4 20GB/s\n",
    "ranks 5\nswitches 3\nlink 0 5\nlink 1 5\nlink 2 6\nlink 3 6\nlink 4 7\nlink 5 6\nlink 6 7\nlink 7 5\n",
    "ranks 3\nlink 0 1\nlink 0 1\nlink 1 2\nlink 1 2 32GB/s\nlink 2 0\n",
    "ranks 5\nswitches 2\nlink 0 5\nlink 1 5\nlink 2 6\nlink 3 6\nlink 5 6\nlink 0 2\nlink 4 1\nlink 4 3 8GB/s\n",
    "ranks 4\nswitches 2\nlink 0 4\nlink 1 4\nlink 2 5\nlink 3 5\nlink 4 5\nlink 5 4\nlink 4 5 48GB/s\n",
    "ranks 4\nlink 0 1 8GB/s\nlink 1 2 16GB/s\nlink 2 3 24GB/s\nlink 3 0 28GB/s\n",
    "ranks 3\nlink 0 1 10GB/s\nlink 0 1 20GB/s\nlink 1 0 20GB/s\nlink 1 0 10GB/s\nlink 1 2 10GB/s\n",
    "ranks 7\nlink 0 1\nlink 1 2\nlink 1 3\nlink 3 4\nlink 3 5\nlink 5 6 1GB/s\nlink 6 5 1.5GB/s\nlink 6 0 2GB/s\n",
    "ranks 3\nswitches 4\nlink 0 3\nlink 3 4\nlink 4 5\nlink 5 6\nlink 6 1\nlink 2 4\n",
    "ranks 3\nlink 0 1 0.001KB/s\nlink 1 2 1e12GB/s\nlink 2 0 1e12GB/s\n"};

static const char* const names[] = {
    "mesh:1x1",    "mesh:1x2",    "mesh:2x1",    "mesh:1x5",    "mesh:6x1",    "mesh:2x2",    "mesh:2x3",
    "mesh:3x2",    "mesh:3x3",    "mesh:4x3",    "mesh:4x4",    "mesh:5x3",    "mesh:2x2x2",  "mesh:2x3x4",
    "mesh:3x3x3",  "mesh:1x4x3",  "mesh:4x1x3",  "mesh:3x2x1",  "mesh:1x1x3",  "torus:1x4",   "torus:2x2",
    "torus:3x3",   "torus:3x4",   "torus:5x5",   "torus:2x6",   "torus:2x2x2", "torus:3x3x3", "torus:2x3x4",
    "torus:4x4x2", "full:2",      "full:3",      "full:4",      "full:11",     "full:16",     "fattree:3,1",
    "fattree:2,3", "fattree:3,2", "fattree:4,2", "fattree:2,5", "bigraph:1x2", "bigraph:3x4", "bigraph:2x6",
    "ring:16"};
enum { NAMES = sizeof names / sizeof *names, FILES = sizeof files / sizeof *files };

// Network i: rings, names, files, random ones.
static Network tried_network(int i) {
    char ring[32];
    snprintf(ring, sizeof ring, "ring:%d", i < 17 ? 1 + i : 33);
    if (i < 18) return network_of(ring);
    if (i < 18 + NAMES) return network_of(names[i - 18]);
    if (i < 18 + NAMES + FILES) return network_of(files[i - 18 - NAMES]);
    graph_random(&graph, 2 + random_below(9), i & ALL_FLAGS);
    return network_of(graph.text);
}

// Whether the table says that this is possible.
static bool is_served(const char* name, PlanKind kind, const Network* net) {
    Error error;
    const AlgorithmRow* row = algorithm_find(name, &error);
    if (!row) die("%s", error.text);
    return !algorithm_refuses(row, kind, net);
}

static Plan plan_of(const char* algorithm, PlanKind kind, const Network* net) {
    Plan plan;
    Error error = {""};
    if (!collective_build(&plan, algorithm, kind, net, &error)) die("%s", error.text);
    return plan;
}

// ---- The machine: executes a plan on numbers --------------------------------------------------------------------

typedef struct {
    uint64_t whole;
    float real;
    bool there; // else the rank has never had it
} Number;

// Where chunk c of a vector of n elements begins: the chunks of a part differ by one element, the longer ones first.
static int chunk_begin(const Plan* plan, int n, int c) {
    const int parts = plan->kind == PLAN_ALL_REDUCE ? 1 : plan->ranks, chunks = plan->chunks / parts, part = n / parts;
    return c / chunks * part + c % chunks * (part / chunks) + (int)min_i64(c % chunks, part % chunks);
}

static bool owns(const Plan* plan, int rank, int chunk) { return chunk / (plan->chunks / plan->ranks) == rank; }

// start (ranks, n): random numbers. An all-gather begins with each rank's own chunks only.
static void machine_begin(const Plan* plan, int n, Number* start) {
    for (int r = 0; r < plan->ranks; r++) {
        for (int c = 0; c < plan->chunks; c++) {
            const bool there = plan->kind != PLAN_ALL_GATHER || owns(plan, r, c);
            for (int i = chunk_begin(plan, n, c); i < chunk_begin(plan, n, c + 1); i++) {
                const Random4 x = philox(random_state++, 0, 0);
                const Number number = {x.word[0] | (uint64_t)x.word[1] << 32, (float)(int32_t)x.word[2], there};
                start[r * n + i] = number;
            }
        }
    }
}

// The transfers of one step. False: something is sent, or added to, that is not there.
static bool machine_step(const Plan* plan, int n, const Transfer* rows, int64_t count, Number* have, Number* sent) {
    bool ok = true;
    for (int64_t i = 0; i < count; i++) {
        const int begin = chunk_begin(plan, n, rows[i].chunk);
        const int length = chunk_begin(plan, n, rows[i].chunk + rows[i].chunks) - begin;
        memcpy(&sent[rows[i].from * n + begin], &have[rows[i].from * n + begin], (size_t)length * sizeof(Number));
    }
    for (int64_t i = 0; i < count; i++) {
        const int end = chunk_begin(plan, n, rows[i].chunk + rows[i].chunks);
        for (int k = chunk_begin(plan, n, rows[i].chunk); k < end; k++) {
            const Number came = sent[rows[i].from * n + k];
            Number* to = &have[rows[i].to * n + k];
            ok = ok && came.there && (to->there || !rows[i].add);
            if (rows[i].add) {
                to->whole += came.whole;
                to->real += came.real;
            } else {
                *to = came;
            }
        }
    }
    return ok;
}

// Whether all ranks have what they must end with.
static bool machine_is_right(const Plan* plan, int n, const Number* start, const Number* have) {
    for (int c = 0; c < plan->chunks; c++) {
        for (int i = chunk_begin(plan, n, c); i < chunk_begin(plan, n, c + 1); i++) {
            uint64_t sum = 0;
            for (int r = 0; r < plan->ranks; r++) sum += start[r * n + i].there ? start[r * n + i].whole : 0;
            for (int r = 0; r < plan->ranks; r++) {
                if (plan->kind == PLAN_REDUCE_SCATTER && !owns(plan, r, c)) continue;
                const Number* x = &have[r * n + i];
                if (!x->there || x->whole != sum) return false;
                if (plan->kind == PLAN_ALL_REDUCE && x->real != have[i].real) return false;
            }
        }
    }
    return true;
}

static int64_t step_end(const Plan* plan, int64_t i) {
    int64_t end = i;
    while (end < plan->n && plan->transfers[end].step == plan->transfers[i].step) end++;
    return end;
}

// Whether a plan is right for vectors of n elements.
static bool machine_runs(const Plan* plan, int n) {
    const size_t all = (size_t)plan->ranks * (size_t)n * sizeof(Number);
    Number *start = (Number*)checked_malloc(3 * all, "a test"), *have = start + plan->ranks * n;
    machine_begin(plan, n, start);
    memcpy(have, start, all);
    bool ok = true;
    for (int64_t i = 0; i < plan->n && ok; i = step_end(plan, i))
        ok = machine_step(plan, n, plan->transfers + i, step_end(plan, i) - i, have, have + plan->ranks * n);
    ok = ok && machine_is_right(plan, n, start, have);
    free(start);
    return ok;
}

static bool rows_fit(const Plan* plan, const Network* net) {
    if (plan->ranks != net->ranks || plan->chunks < 1 || plan->ranks < 1) return false;
    if (plan->kind != PLAN_ALL_REDUCE && plan->chunks % plan->ranks) return false;
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer t = plan->transfers[i];
        if (t.from < 0 || t.to < 0 || t.from >= plan->ranks || t.to >= plan->ranks || t.from == t.to) return false;
        if (t.step < 0 || t.step >= plan->steps || t.chunk < 0 || t.chunks < 1) return false;
        if ((int64_t)t.chunk + t.chunks > plan->chunks || (i && t.step < plan->transfers[i - 1].step)) return false;
    }
    return true;
}

static double slowest_link(const Network* net) {
    double slowest = 1e300;
    for (int l = 0; l < net->links; l++) slowest = fmin(slowest, net->link[l].bandwidth);
    return slowest;
}

// Every link's transfers in every step are counted. Each link of a way begins where the last one ended.
static bool links_fit(const Plan* plan, const Network* net) {
    const double slowest = slowest_link(net);
    int* used = (int*)checked_calloc((size_t)plan->steps * (size_t)net->links + 1, sizeof(int), "a test");
    bool ok = true;
    for (int64_t i = 0; i < plan->n && ok; i++) {
        const Transfer* t = &plan->transfers[i];
        int at = t->from, direct = 0;
        while (direct < net->links && (net->link[direct].from != t->from || net->link[direct].to != t->to)) direct++;
        for (int64_t k = plan->way ? plan->way[i] : 0; k < (plan->way ? plan->way[i + 1] : 1) && ok; k++) {
            const int l = plan->way ? plan->link[k] : direct;
            ok = l >= 0 && l < net->links && net->link[l].from == at;
            if (!ok) break;
            at = net->link[l].to;
            ok = ++used[t->step * net->links + l] <= net->link[l].bandwidth / slowest + 1e-6;
        }
        ok = ok && at == t->to;
    }
    free(used);
    return ok;
}

// NCCL's messages of a step are in flight together: no rank sends a chunk and stores another value in its place.
static bool steps_fly(const Plan* plan) {
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer *in = &plan->transfers[i], *end = plan->transfers + plan->n, *out = in;
        if (in->add) continue;
        while (out > plan->transfers && out[-1].step == in->step) out--;
        for (; out < end && out->step == in->step; out++) {
            const bool apart = out->chunk >= in->chunk + in->chunks || in->chunk >= out->chunk + out->chunks;
            if (out->from == in->to && !apart) return false;
        }
    }
    return true;
}

// ---- Every algorithm on every network ---------------------------------------------------------------------------

static void try_plan(const char* algorithm, PlanKind kind, const Network* net, Tally* t) {
    Error error = {""};
    Plan plan = plan_of(algorithm, kind, net);
    const bool multitree = strncmp(algorithm, "multitree", 9) == 0;
    const int parts = kind == PLAN_ALL_REDUCE ? 1 : plan.ranks, chunks = plan.chunks / parts;
    const int lengths[] = {0, chunks + 1, 2 * chunks, 1, chunks - 1, 3 * chunks - 1}; // of a part
    bool ok = plan_check(&plan, net, &error) && rows_fit(&plan, net) && plan.kind == kind && steps_fly(&plan);
    ok = ok && plan.exclusive == multitree && (!plan.exclusive || links_fit(&plan, net));
    for (int i = 0; i < (effort == BRIEF && plan.n > 1000 ? 3 : 6); i++) {
        const int n = parts * lengths[i];
        for (int c = 0; c <= plan.chunks; c++) ok = ok && plan_chunk_start(&plan, n, c) == chunk_begin(&plan, n, c);
        ok = ok && machine_runs(&plan, n);
    }
    tally(t, ok, "%s, %s on %s: %s", algorithm, plan_kind_name(kind), net->name, error.text);
    plan_free(&plan);
}

static void test_algorithms(void) {
    Tally plans = {0, 0}, refusals = {0, 0};
    for (int i = 0; i < 18 + NAMES + FILES + by_effort(16, 32, 128); i++) {
        Network net = tried_network(i);
        for (int k = 0; k < ALGORITHMS * PLAN_KINDS; k++) {
            const PlanKind kind = (PlanKind)(k % PLAN_KINDS);
            const char* algorithm = algorithms[k / PLAN_KINDS].name;
            if (is_served(algorithm, kind, &net)) {
                try_plan(algorithm, kind, &net, &plans);
                continue;
            }
            Plan plan;
            Error error = {""};
            tally(&refusals, !collective_build(&plan, algorithm, kind, &net, &error) && !plan.transfers,
                  "%s on %s is not refused", algorithm, net.name);
        }
        network_free(&net);
    }
    tally_end(&plans, "plans: plan_check, links, sums and bits");
    tally_end(&refusals, "algorithms on networks that they cannot serve, refused");
}

// ---- plan_check against the machine -----------------------------------------------------------------------------

typedef struct {
    Transfer transfer;
    int way[16], length;
} Row;

typedef struct {
    Row row[1024];
    int n;
} Rows;

static void rows_of(Rows* rows, const Plan* plan) {
    memset(rows, 0, sizeof *rows);
    rows->n = (int)plan->n;
    for (int i = 0; i < rows->n; i++) {
        Row* row = &rows->row[i];
        row->transfer = plan->transfers[i];
        for (int64_t k = plan->way ? plan->way[i] : 0; k < (plan->way ? plan->way[i + 1] : 0); k++)
            row->way[row->length++] = plan->link[k];
    }
}

// A plan like another one, with these rows.
static Plan plan_from_rows(const Plan* like, const Rows* rows) {
    Plan plan = *like;
    plan.n = plan.capacity = rows->n;
    plan.transfers = (Transfer*)checked_calloc((size_t)rows->n + 1, sizeof(Transfer), "a plan");
    plan.way = like->way ? (int64_t*)checked_calloc((size_t)rows->n + 1, sizeof(int64_t), "a plan") : NULL;
    plan.link = like->way ? (int32_t*)checked_calloc((size_t)rows->n + 1, 16 * sizeof(int32_t), "a plan") : NULL;
    for (int i = 0; i < rows->n; i++) {
        plan.transfers[i] = rows->row[i].transfer;
        if (!like->way) continue;
        plan.way[i + 1] = plan.way[i] + rows->row[i].length;
        for (int k = 0; k < rows->row[i].length; k++) plan.link[plan.way[i] + k] = rows->row[i].way[k];
    }
    return plan;
}

static void rows_exchange(Rows* rows, int i, int k) {
    const Row row = rows->row[i];
    rows->row[i] = rows->row[k];
    rows->row[k] = row;
}

// Puts row i among those of its step, before or after the others.
static void rows_settle(Rows* rows, int i) {
    const int before = chance(50);
    for (; i > 0 && rows->row[i - 1].transfer.step >= rows->row[i].transfer.step + !before; i--)
        rows_exchange(rows, i, i - 1);
    for (; i + 1 < rows->n && rows->row[i].transfer.step >= rows->row[i + 1].transfer.step + before; i++)
        rows_exchange(rows, i, i + 1);
}

// A number near `x` that is another one, sometimes out of range.
static int near(int x, int most) {
    return chance(60) && most > 1 ? (x + 1 + random_below(most - 1)) % most : x - 1 + 2 * random_below(2);
}

// One change of a row, or of two, or of the plan's numbers.
static void change(Rows* rows, Plan* plan, const Network* net) {
    const int i = random_below(rows->n), k = random_below(rows->n);
    Row* row = &rows->row[i];
    Transfer* t = &row->transfer;
    const Transfer before = *t;
    switch (random_below(15)) {
    case 0: memmove(row, row + 1, (size_t)(--rows->n - i) * sizeof(Row)); break;
    case 1: memmove(row + 1, row, (size_t)(rows->n++ - i) * sizeof(Row)); break;
    case 2: t->chunk = near(t->chunk, plan->chunks); break;
    case 3: t->chunks = chance(20) ? INT32_MAX : near(t->chunks, 3); break;
    case 4: t->from = (int16_t)near(t->from, plan->ranks); break;
    case 5: t->to = (int16_t)near(t->to, plan->ranks); break;
    case 6:
        t->step = near(t->step, plan->steps);
        rows_settle(rows, i);
        break;
    case 7: t->step = near(t->step, plan->steps); break; // and stays where it is
    case 8: t->add = !t->add; break;
    case 9: // two exchange their steps
        t->step = rows->row[k].transfer.step;
        rows->row[k].transfer.step = before.step;
        rows_exchange(rows, i, k);
        break;
    case 10: // two of a step exchange their places
        if (i + 1 < rows->n && row[1].transfer.step == t->step) rows_exchange(rows, i, i + 1);
        break;
    case 11:
        if (row->length) row->way[random_below(row->length)] = random_below(net->links + 2) - 1;
        break;
    case 12: row->length = (int)max_i64(0, row->length - 1 + 2 * random_below(2)); break;
    case 13:
        t->from = before.to;
        t->to = before.from;
        break;
    default: {
        int* const numbers[] = {&plan->ranks, &plan->steps, &plan->chunks};
        *numbers[random_below(3)] += chance(50) ? 1 : -1;
    }
    }
}

typedef struct {
    int rows, links, sums, harmless, accepted; // why plans are refused
    Tally tally;
} Changes;

// plan_check accepts only what is right. It also refuses a sum that is spoilt where no rank needs it.
static void try_change(const Plan* plan, const Network* net, int changes, Changes* found) {
    static Rows rows;
    Error error = {""};
    Plan like = *plan;
    rows_of(&rows, plan);
    for (int i = 0; i < changes && rows.n > 0; i++) change(&rows, &like, net);
    Plan changed = plan_from_rows(&like, &rows);
    const bool accepts = plan_check(&changed, net, &error);
    if (!rows_fit(&changed, net)) {
        tally(&found->tally, !accepts, "%s on %s, changed: accepted with a wrong row", plan->name, net->name);
        found->rows++;
    } else {
        const int parts = plan->kind == PLAN_ALL_REDUCE ? 1 : changed.ranks, per = changed.chunks / parts;
        const bool links = !changed.exclusive || links_fit(&changed, net);
        const bool sums = machine_runs(&changed, parts * (per * (per < 3 ? 40 : 3) + 1)); // bits need some numbers
        tally(&found->tally, !accepts || (links && sums), "%s on %s, changed: accepted, but links %d, sums %d",
              plan->name, net->name, links, sums);
        found->links += !links;
        found->sums += !sums;
        found->harmless += links && sums && !accepts;
        found->accepted += accepts;
    }
    plan_free(&changed);
}

// Plans whose sums are right, and which must be refused for another reason.
static void test_refused_plans(void) {
    static const char* const whats[] = {"a message to oneself", "a transfer of no chunks", "another network",
                                        "parts that are no whole number of chunks"};
    Network net = network_of("ring:3"), other = network_of("ring:4");
    for (int i = 0; i < 4; i++) {
        Error error;
        Plan plan = plan_of("ring", PLAN_ALL_REDUCE, &net);
        if (i == 0) plan_add(&plan, plan.steps - 1, 1, 1, 0, 1, false);
        if (i == 1) plan_add(&plan, plan.steps - 1, 0, 1, 0, 0, false);
        if (i == 3) {
            plan_free(&plan);
            plan_init(&plan, "parts", PLAN_REDUCE_SCATTER, 2, 3);
            plan_add(&plan, 0, 1, 0, 0, 2, true);
            plan_add(&plan, 0, 0, 1, 2, 1, true);
        }
        check(!plan_check(&plan, i == 2 ? &other : NULL, &error), "refused: %s", whats[i]);
        plan_free(&plan);
    }
    network_free(&net);
    network_free(&other);
}

// Ranks 0 and 1 each sum all vectors in the same order, and send the others the sum: some changes show in bits only.
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
    static const char* const few[] = {"ring:2",    "ring:3", "ring:5",      "mesh:2x3",
                                      "torus:3x3", "full:4", "fattree:2,2", "bigraph:2x2"};
    Changes found = {};
    for (int i = 0; i < 8 + FILES; i++) {
        Network net = network_of(i < 8 ? few[i] : files[i - 8]);
        for (int k = 0; k < ALGORITHMS * PLAN_KINDS; k++) {
            const PlanKind kind = (PlanKind)(k % PLAN_KINDS);
            if (!is_served(algorithms[k / PLAN_KINDS].name, kind, &net)) continue;
            Plan plan = plan_of(algorithms[k / PLAN_KINDS].name, kind, &net);
            for (int m = 0; m < by_effort(20, 100, 1000) && plan.n < 400; m++)
                try_change(&plan, &net, m % 10 ? 1 : 2 + m % 3, &found);
            plan_free(&plan);
        }
        network_free(&net);
    }
    for (int ranks = 3; ranks <= 7; ranks++) {
        char name[32];
        snprintf(name, sizeof name, "full:%d", ranks);
        Network net = network_of(name);
        Plan plan = plan_of_two_sums(ranks);
        for (int k = 0; k < by_effort(200, 1000, 10000); k++) try_change(&plan, &net, 1 + k % 2, &found);
        plan_free(&plan);
        network_free(&net);
    }
    Network net = network_of("ring:129"); // more ranks than a word has bits, one of whose vectors is never sent
    for (int row = 0; row < 129; row += 16) {
        Error error;
        Plan plan = plan_of("ring", PLAN_REDUCE_SCATTER, &net);
        memmove(plan.transfers + row, plan.transfers + row + 1, (size_t)(--plan.n - row) * sizeof(Transfer));
        tally(&found.tally, !plan_check(&plan, &net, &error), "a ring of 129 ranks without row %d: accepted", row);
        plan_free(&plan);
    }
    network_free(&net);
    tally_end(&found.tally, "changed plans: what plan_check accepts is right");
    check(found.rows && found.links && found.sums && found.harmless < found.accepted / 20,
          "changed plans: %d accepted; refused: rows %d, links %d, sums %d; %d of them harmless", found.accepted,
          found.rows, found.links, found.sums, found.harmless);
}

// ---- Steps and costs --------------------------------------------------------------------------------------------

// Steps of an all-reduce, and the load of the busiest links over all steps in whole vectors: formulas of ring.h; steps
// published for MultiTree. load 0: not known. hops: links of a transfer.
static void test_costs(void) {
    static const struct {
        const char *network, *algorithm;
        int steps;
        double load;
        int hops;
    } rows[] = {
        {"ring:2", "ring", 2, 1, 1},
        {"ring:9", "ring", 16, 16 / 9.0, 1},
        {"torus:4x4", "ring", 30, 30 / 16.0, 1},
        {"mesh:3x4", "ring", 22, 22 / 12.0, 1},
        {"mesh:4x5", "ring", 38, 38 / 20.0, 1},
        {"mesh:2x3x4", "ring", 46, 46 / 24.0, 1},
        {"fattree:16,1", "ring", 30, 30 / 16.0, 2},
        {"torus:4x4", "2d-ring", 12, 12 / 16.0, 1},
        {"torus:5x5", "2d-ring", 16, 16 / 20.0, 1},
        {"torus:4x4", "torus-ring", 12, 30 / 64.0, 1},
        {"torus:3x3", "torus-ring", 8, 16 / 36.0, 1},
        {"torus:8x8", "torus-ring", 28, 126 / 256.0, 1},
        {"full:16", "halving-doubling", 8, 30 / 16.0, 1},
        {"full:6", "halving-doubling", 6, 3.5, 1},
        {"full:16", "double-tree", 15, 16 / 16.0, 1},
        {"mesh:2x2", "multitree", 4, 4 / 4.0, 1},
        {"mesh:4x4", "multitree", 16, 16 / 16.0, 1},
        {"mesh:5x5", "multitree", 24, 24 / 25.0, 1},
        {"mesh:6x6", "multitree", 36, 36 / 36.0, 1},
        {"mesh:7x7", "multitree", 48, 48 / 49.0, 1},
        {"mesh:8x8", "multitree", 64, 64 / 64.0, 1},
        {"torus:4x4", "multitree", 10, 10 / 16.0, 1},
        {"torus:6x6", "multitree", 20, 20 / 36.0, 1},
        {"torus:8x8", "multitree", 34, 34 / 64.0, 1},
        {"torus:10x10", "multitree", 52, 52 / 100.0, 1},
        {"torus:12x12", "multitree", 74, 74 / 144.0, 1},
        {"fattree:4,2", "multitree", 30, 0, 1},
        {"fattree:8,2", "multitree", 126, 0, 1},
        {"bigraph:4x8", "multitree", 62, 0, 1},
        {"bigraph:4x16", "multitree", 126, 0, 1},
    };
    Tally t = {0, 0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Network net = network_of(rows[i].network);
        Plan plan = plan_of(rows[i].algorithm, PLAN_ALL_REDUCE, &net);
        Routes routes = network_routes(&net);
        network_set_links(&net, 3e9, 2e-6);
        const double seconds = plan_cost(&plan, &net, &routes, 5e6);
        const double right = rows[i].steps * rows[i].hops * 2e-6 + rows[i].load * 5e6 / 3e9;
        tally(&t, plan.steps == rows[i].steps && (rows[i].load == 0 || fabs(seconds / right - 1) < 1e-9),
              "%s on %s: %d steps, %g s instead of %g s", rows[i].algorithm, rows[i].network, plan.steps, seconds,
              right);
        routes_free(&routes);
        plan_free(&plan);
        network_free(&net);
    }
    tally_end(&t, "steps and costs, beside formulas and published numbers");
}

// Ranks at the same distance are visited in their order; transfers of one step keep theirs.
static void test_orders(void) {
    Network net = network_of("fattree:3,2");
    int order[9];
    bool ok = true;
    ring_order(&net, order);
    for (int i = 0; i < 9; i++) ok = ok && order[i] == i;
    network_free(&net);
    check(ok, "a ring visits the nearest rank next, the first of them");
    Plan plan;
    plan_init(&plan, "sorted", PLAN_ALL_REDUCE, 2, 100);
    for (int i = 0; i < 100; i++) plan_add(&plan, random_below(9), 0, 1, i, 1, true);
    plan_sort(&plan);
    for (int i = 1; i < 100; i++) {
        const Transfer *a = &plan.transfers[i - 1], *b = &plan.transfers[i];
        ok = ok && (a->step < b->step || (a->step == b->step && a->chunk < b->chunk));
    }
    plan_free(&plan);
    check(ok, "transfers are sorted by step, stably");
}

// ---- MultiTree again, slowly: every turn searches from every member of the tree ---------------------------------

typedef struct {
    int tree, child, parent, step, length, way[16];
} Edge;

typedef struct {
    const Network* net;
    int trees, n, steps;
    Edge* edge;                // (trees, ranks - 1)
    int *member, *count, *old; // (trees, ranks), (trees), (trees): in the order in which they joined; of earlier steps
    int* left;                 // (links): free in this step
} Growth;

static bool growth_has(const Growth* x, int tree, int rank) {
    for (int i = 0; i < x->count[tree]; i++) {
        if (x->member[tree * x->net->ranks + i] == rank) return true;
    }
    return false;
}

// Adds the nearest rank outside the tree that `parent` reaches over free links and at most `limit` switches.
static bool growth_search(Growth* x, int tree, int parent, int limit) {
    const Network* net = x->net;
    int depth[64], by[64], queue[64], head = 0, tail = 0;
    for (int v = 0; v < net->vertices; v++) depth[v] = -1;
    depth[parent] = 0;
    queue[tail++] = parent;
    while (head < tail) {
        const int u = queue[head++];
        for (int l = net->first[u]; l < net->first[u + 1]; l++) {
            const int v = net->link[l].to, is_rank = v < net->ranks;
            if (depth[v] >= 0 || x->left[l] == 0) continue;
            if (is_rank ? growth_has(x, tree, v) : depth[u] == limit) continue;
            depth[v] = depth[u] + 1;
            by[v] = l;
            queue[tail++] = v;
            if (!is_rank) continue;
            Edge* e = &x->edge[x->n++];
            const Edge edge = {tree, v, parent, x->steps, depth[v], {0}};
            *e = edge;
            for (int at = v, k = depth[v]; at != parent; at = net->link[by[at]].from) {
                e->way[--k] = by[at];
                x->left[by[at]]--;
            }
            x->member[tree * net->ranks + x->count[tree]++] = v;
            return true;
        }
    }
    return false;
}

static bool growth_turn(Growth* x, int tree) {
    if (x->count[tree] == x->net->ranks) return false;
    for (int limit = 1; limit <= x->net->reach; limit++) {
        for (int i = 0; i < x->old[tree]; i++) {
            if (growth_search(x, tree, x->member[tree * x->net->ranks + i], limit)) return true;
        }
    }
    return false;
}

static Growth growth_of(const Network* net) {
    const int trees = net->ranks;
    const double slowest = slowest_link(net);
    Growth x = {net, trees, 0, 0, NULL, NULL, NULL, NULL, NULL};
    x.edge = (Edge*)checked_calloc((size_t)trees * (size_t)net->ranks, sizeof(Edge), "a growth");
    x.member = (int*)checked_calloc((size_t)(trees * (net->ranks + 2) + net->links), sizeof(int), "a growth");
    x.count = x.member + trees * net->ranks;
    x.old = x.count + trees;
    x.left = x.old + trees;
    for (int tree = 0; tree < trees; tree++) {
        x.member[tree * net->ranks] = tree;
        x.count[tree] = 1;
    }
    for (; x.n < trees * (net->ranks - 1); x.steps++) {
        for (int l = 0; l < net->links; l++) x.left[l] = (int)(net->link[l].bandwidth / slowest + 1e-6);
        memcpy(x.old, x.count, (size_t)trees * sizeof(int));
        for (bool progress = true; progress;) {
            progress = false;
            for (int tree = 0; tree < trees; tree++) progress |= growth_turn(&x, tree);
        }
    }
    return x;
}

static void growth_free(Growth* x) {
    free(x->edge);
    free(x->member);
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
        if (plan->way ? plan->way[at + i + 1] - plan->way[at + i] != e->length : e->length != 1) return false;
        if (!plan->way) continue;
        for (int k = 0; k < e->length; k++) {
            const Link* link = &net->link[plan->link[plan->way[at + i] + k]];
            const Link* grown = &x->net->link[e->way[up ? e->length - 1 - k : k]];
            if (link->from != (up ? grown->to : grown->from) || link->to != (up ? grown->from : grown->to))
                return false;
            if (link->bandwidth != grown->bandwidth) return false;
        }
    }
    return true;
}

static bool multitree_is_right(const Network* net) {
    Growth x = growth_of(net);
    Plan plan = plan_of("multitree", PLAN_ALL_REDUCE, net);
    const bool ok = plan.n == 2 * x.n && plan.steps == 2 * x.steps && rows_are(&plan, net, 0, 0, &x, true) &&
                    rows_are(&plan, net, x.n, x.steps, &x, false);
    plan_free(&plan);
    growth_free(&x);
    return ok;
}

static void test_multitree(void) {
    static const char* const grown[] = {"mesh:5x5",    "torus:6x6",   "torus:2x3x4", "mesh:3x2x3",  "ring:9",
                                        "fattree:4,2", "bigraph:2x4", "ring:16",     "bigraph:4x8", "fattree:3,3"};
    Tally t = {0, 0};
    for (int i = 0; i < 10 + by_effort(250, 1200, 10000); i++) {
        if (i >= 10) graph_random(&graph, 1 + random_below(i % 7 == 0 ? 24 : 12), i & ALL_FLAGS);
        Network net = network_of(i < 10 ? grown[i] : graph.text);
        tally(&t, multitree_is_right(&net), "%s", i < 10 ? grown[i] : graph.text);
        network_free(&net);
    }
    tally_end(&t, "MultiTree, row by row");
    // Tree 0 of a torus of 4 x 4, as published: (child, parent, step).
    static const char published[] = "(12,0,0) (4,0,0) (3,0,0) (1,0,0) (8,12,1) (15,12,1) (13,12,1) (7,3,1) (5,4,2) "
                                    "(2,3,2) (11,15,2) (9,8,3) (14,15,3) (6,2,3) (10,11,4) ";
    char text[512] = "";
    Network net = network_of("torus:4x4");
    Plan plan = plan_of("multitree", PLAN_ALL_GATHER, &net);
    for (int64_t i = 0; i < plan.n; i++) {
        const Transfer* r = &plan.transfers[i];
        if (r->chunk == 0) append_text(text, sizeof text, "(%d,%d,%d) ", r->to, r->from, r->step);
    }
    check(strcmp(text, published) == 0, "MultiTree on a torus of 4 x 4: %s", text);
    plan_free(&plan);
    network_free(&net);
}

int main(int argc, char** argv) {
    fixture_begin(argc, argv);
    test_orders();
    test_costs();
    test_multitree();
    test_refused_plans();
    test_changes();
    test_algorithms();
    return fixture_end();
}
