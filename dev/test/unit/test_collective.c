/*
test_collective.c: every algorithm on every network, in many lengths: the machine sums whole numbers exactly, and in
float32 all ranks get the same bits. plan_check, on plans with one thing changed, against a second proof that counts,
and that machine. Costs.

    build/test_collective [--short | --full]
*/
#include "collective_fixture.h"

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

int main(int argc, char** argv) {
    fixture_begin(argc, argv);
    test_small_plans();
    test_sort();
    test_formulas();
    test_many_ranks();
    test_numbers(tried_networks, tried_count);
    test_changes();
    test_costs(tried_networks, tried_count);
    return fixture_end();
}
