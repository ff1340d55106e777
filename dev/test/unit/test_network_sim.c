/*
test_network_sim.c: the network simulator (planner/network_sim.h) against closed forms, against plan_cost where that is
exact, and against a second simulator, slow and plain: one packet after another, no heap, no segments, every earlier row
of a plan looked at for each dependency.
*/
#include "../../../comm/collectives/collectives.h"
#include "../../../planner/network_sim.h"
#include "test.h"

static const double exact = 1e-12; // relative: some roundings

// ----------------------------------------------------------------------------------------------------------------
// Helpers

static void must(bool ok, const Error* error) {
    if (!ok) die("%s", error->text);
}

static double seconds_of(const Plan* plan, const Network* net, int64_t bytes, const SimSettings* set, SimResult* keep) {
    Error error = {""};
    SimResult result;
    Routes routes = network_routes(net);
    must(simulate(plan, net, &routes, bytes, set, &result, &error), &error);
    routes_free(&routes);
    const double seconds = result.seconds;
    if (keep)
        *keep = result;
    else
        sim_result_free(&result);
    return seconds;
}

static double off(double a, double b) { return fabs(a - b) / fabs(b); }

static void begin(Network* net, Plan* plan, const char* network, int chunks) {
    Error error = {""};
    must(network_build(net, network, &error), &error);
    plan_init(plan, "test", PLAN_ALL_REDUCE, net->ranks, chunks);
}

static void end(Network* net, Plan* plan) {
    network_free(net);
    plan_free(plan);
}

static double heads(const SimSettings* set, int64_t bytes) {
    const int64_t packets = (bytes + set->payload - 1) / set->payload;
    if (set->heads == SIM_HEADS_NONE) return 0;
    return set->heads == SIM_HEADS_MESSAGE ? set->flit : (double)packets * set->flit;
}

// ----------------------------------------------------------------------------------------------------------------
// Closed forms

static void test_ring(void) {
    static const int sizes[] = {2, 3, 8, 64};
    double worst = 0;
    for (int i = 0; i < 4; i++) {
        Network net;
        Plan plan;
        Error error = {""};
        char name[16];
        snprintf(name, sizeof name, "ring:%d", sizes[i]);
        must(network_build(&net, name, &error), &error);
        must(collective_build(&plan, "ring", PLAN_ALL_REDUCE, &net, &error), &error);
        for (int mode = 0; mode < 12; mode++) {
            SimSettings set = sim_settings_default();
            set.injection = (SimInjection)(mode % 4);
            set.heads = (SimHeads)(mode / 4);
            set.reduce = 1 / 128e9;
            set.overhead = 3e-6;
            const int64_t N = sizes[i], chunk = 12000, bytes = N * chunk;
            const double step =
                NETWORK_LATENCY + ((double)chunk + heads(&set, chunk)) / NETWORK_BANDWIDTH + 2 * set.overhead;
            const double expected = (double)(N - 1) * (2 * step + (double)chunk * set.reduce);
            worst = fmax(worst, off(seconds_of(&plan, &net, bytes, &set, NULL), expected));
        }
        end(&net, &plan);
    }
    check_error("ring: 2 (N - 1) (a + c / B + overheads) + (N - 1) c reduce, all modes", worst, exact);
}

// One message over k links of a ring; over links of different speeds; of the smallest size.
static void test_hops(void) {
    double worst = 0;
    for (int k = 1; k <= 4; k++) {
        for (int mode = 0; mode < 3; mode++) {
            Network net;
            Plan plan;
            begin(&net, &plan, "ring:9", 1);
            plan_add(&plan, 0, 0, k, 0, 1, true);
            SimSettings set = sim_settings_default();
            set.heads = (SimHeads)mode;
            const int64_t M = 256 * 1000;
            const double wire = (double)M + heads(&set, M), packet = 256 + (mode == SIM_HEADS_PACKET ? 16 : 0);
            const double expected = (wire + (k - 1) * packet) / NETWORK_BANDWIDTH + k * NETWORK_LATENCY;
            worst = fmax(worst, off(seconds_of(&plan, &net, M, &set, NULL), expected));
            const double small = k * ((4 + heads(&set, 4)) / NETWORK_BANDWIDTH + NETWORK_LATENCY);
            // With one head a message, a packet of the middle has none; one of four bytes is a packet of its own.
            if (mode != SIM_HEADS_MESSAGE) worst = fmax(worst, off(seconds_of(&plan, &net, 4, &set, NULL), small));
            end(&net, &plan);
        }
    }
    check_error("one message over k links: M / B + (k - 1) packet / B + k a", worst, exact);
    worst = 0;
    for (int fast = 0; fast < 2; fast++) { // the second link is 4 times as fast; as slow
        Network net;
        Plan plan;
        begin(&net, &plan, "ring:9", 1);
        plan_add(&plan, 0, 0, 2, 0, 1, true);
        const double B = NETWORK_BANDWIDTH, C = fast ? 4 * B : B / 4, M = 256 * 1000, a = NETWORK_LATENCY;
        net.link[network_link(&net, 1, 2)].bandwidth = C;
        SimSettings set = sim_settings_default();
        const double expected = 2 * a + (fast ? M / B + 256 / C : 256 / B + M / C);
        worst = fmax(worst, off(seconds_of(&plan, &net, (int64_t)M, &set, NULL), expected));
        end(&net, &plan);
    }
    check_error("a fast link waits for the slow one before it; a slow one is the bottleneck", worst, exact);
}

// Two messages for one link: from one rank, from two ranks; three; and on two parallel links.
static void test_sharing(void) {
    const double B = NETWORK_BANDWIDTH, a = NETWORK_LATENCY, M = 256 * 800;
    double worst = 0;
    for (int injection = 0; injection < 4; injection++) {
        SimSettings set = sim_settings_default();
        set.injection = (SimInjection)injection;
        for (int n = 1; n <= 3; n++) {
            Network net;
            Plan plan;
            begin(&net, &plan, "ring:9", 3);
            for (int i = 0; i < n; i++) plan_add(&plan, 0, 0, 1, i, 1, true);
            worst = fmax(worst, off(seconds_of(&plan, &net, 3 * (int64_t)M, &set, NULL), n * M / B + a));
            end(&net, &plan);
        }
    }
    check_error("n messages from one rank over one link: n M / B + a", worst, exact);
    Network net;
    Plan plan;
    SimResult result;
    begin(&net, &plan, "ring:9", 2);
    plan_add(&plan, 0, 0, 2, 0, 1, true); // over 0-1, 1-2
    plan_add(&plan, 0, 1, 2, 1, 1, true); // over 1-2
    SimSettings set = sim_settings_default();
    set.record = true;
    const double seconds = seconds_of(&plan, &net, 2 * (int64_t)M, &set, &result);
    // The link 1-2 is never idle from 0 on: the second message's segments fill what the first one's leave.
    check_error("two messages from two ranks over one link: 2 M / B + a", off(seconds, 2 * M / B + a), exact);
    const double segment = M / 16 / B;
    check(result.record[1].start <= a + 256 / B + segment && result.record[1].end > 2 * (M / B - segment) &&
              result.record[2].end > 2 * (M / B - 2 * segment),
          "they take turns: both end late, %.2f and %.2f M / B", result.record[1].end / (M / B),
          result.record[2].end / (M / B));
    sim_result_free(&result);
    end(&net, &plan);

    begin(&net, &plan, "ring:3", 2);
    network_add(&net, 0, 1, B, a);
    free(net.first);
    network_sort(&net);
    for (int i = 0; i < 2; i++) plan_add(&plan, 0, 0, 1, i, 1, true);
    plan.way = (int64_t*)checked_malloc(3 * sizeof(int64_t), "ways");
    plan.link = (int32_t*)checked_malloc(2 * sizeof(int32_t), "ways");
    const int first = network_link(&net, 0, 1);
    int second = first + 1;
    while (net.link[second].to != 1) second++;
    for (int i = 0; i < 3; i++) plan.way[i] = i;
    plan.link[0] = first;
    plan.link[1] = second;
    set = sim_settings_default();
    check_error("two messages on two parallel links: M / B + a",
                off(seconds_of(&plan, &net, 2 * (int64_t)M, &set, NULL), M / B + a), exact);
    end(&net, &plan);
}

// A rank without anything to do in a step waits as long as a message takes; in "free" it does not.
static void test_estimate(void) {
    Network net;
    Plan plan;
    begin(&net, &plan, "ring:9", 2);
    plan_add(&plan, 0, 0, 1, 0, 1, true);
    plan_add(&plan, 3, 4, 5, 1, 1, true); // rank 4 has nothing to do in steps 0, 1, 2
    SimSettings set = sim_settings_default();
    const double M = 256 * 800, B = NETWORK_BANDWIDTH, a = NETWORK_LATENCY;
    const double free_running = seconds_of(&plan, &net, 2 * (int64_t)M, &set, NULL);
    set.injection = SIM_ESTIMATE;
    const double estimated = seconds_of(&plan, &net, 2 * (int64_t)M, &set, NULL);
    check_error("free: nothing waits without a reason", off(free_running, M / B + a), exact);
    check_error("estimate: three empty steps take as long as three messages", off(estimated, 4 * M / B + a), exact);
    end(&net, &plan);
}

// Ports: one more packet's time before and behind the links; two messages for two neighbours, which have to share a
// port or do not; a third one, for which no port is free; and two that come to a rank by one port.
static void test_ports(void) {
    const double M = 256 * 800, B = NETWORK_BANDWIDTH, a = NETWORK_LATENCY, packet = 256 / B;
    double worst = 0;
    for (int injection = 0; injection < 4; injection++) {
        for (int ports = 1; ports <= 2; ports++) {
            Network net;
            Plan plan;
            SimSettings set = sim_settings_default();
            set.injection = (SimInjection)injection;
            set.ports = ports;
            begin(&net, &plan, "torus:4x4", 3);
            plan_add(&plan, 0, 0, 1, 0, 1, true);
            const double alone = M / B + 2 * packet + a;
            worst = fmax(worst, off(seconds_of(&plan, &net, 3 * (int64_t)M, &set, NULL), alone));
            plan_add(&plan, 0, 0, 4, 1, 1, true);
            const double both = ports == 1 ? alone + M / B : alone;
            worst = fmax(worst, off(seconds_of(&plan, &net, 3 * (int64_t)M, &set, NULL), both));
            plan_add(&plan, 0, 0, 3, 2, 1, true);
            const double three = ports == 1 ? alone + 2 * M / B : alone + M / B;
            worst = fmax(worst, off(seconds_of(&plan, &net, 3 * (int64_t)M, &set, NULL), three));
            end(&net, &plan);
            begin(&net, &plan, "torus:4x4", 3);
            plan_add(&plan, 0, 1, 0, 0, 1, true);
            plan_add(&plan, 0, 4, 0, 1, 1, true);
            worst = fmax(worst, off(seconds_of(&plan, &net, 3 * (int64_t)M, &set, NULL), both));
            end(&net, &plan);
        }
    }
    check_error("ports: messages wait for a port, and for the port at the other end", worst, exact);
}

// C keeps the second link of A's way half of the time, so A needs 2 M / B. B comes to the same vertex behind A and has
// its next link for itself: in order it can begin when A is through.
static void test_in_order(void) {
    const double M = 256 * 800, B = NETWORK_BANDWIDTH, bound = 3 * M / 16 / B + 3 * NETWORK_LATENCY;
    Network net;
    Plan plan;
    begin(&net, &plan, "torus:4x4", 3);
    plan_add(&plan, 0, 0, 2, 0, 1, true); // A: 0, 1, 2
    plan_add(&plan, 0, 0, 5, 1, 1, true); // B: 0, 1, 5
    plan_add(&plan, 0, 1, 2, 2, 1, true); // C: 1, 2
    for (int order = 0; order < 2; order++) {
        SimSettings set = sim_settings_default();
        set.in_order = order;
        const double seconds = seconds_of(&plan, &net, 3 * (int64_t)M, &set, NULL);
        check_error(order ? "in order: B comes after A" : "not in order: B does not wait for A",
                    fabs(seconds - (2 + order) * M / B), bound);
    }
    end(&net, &plan);
}

// Everything at once: nothing is lost, nothing waits for ever, links carry what they have to, room is enough or costs
// time.
static void test_everything(void) {
    static const char* const cases[][2] = {{"torus:4x4", "multitree"},
                                           {"torus:4x4", "double-tree:4"},
                                           {"mesh:4x4", "2d-ring"},
                                           {"fattree:4,2", "multitree"},
                                           {"bigraph:4x8", "halving-doubling"}};
    for (int i = 0; i < 5; i++) {
        Network net;
        Plan plan;
        Error error = {""};
        must(network_build(&net, cases[i][0], &error), &error);
        must(collective_build(&plan, cases[i][1], PLAN_ALL_REDUCE, &net, &error), &error);
        double busy[2] = {0, 0}, seconds[2] = {0, 0};
        bool same = true;
        for (int injection = 0; injection < 4; injection++) {
            for (int k = 0; k < 2; k++) {
                SimSettings set = sim_settings_default();
                SimResult result;
                set.injection = (SimInjection)injection;
                set.heads = SIM_HEADS_PACKET;
                set.overhead = 1e-6;
                set.reduce = 1e-11;
                if (k) {
                    set.ports = 2;
                    set.in_order = true;
                    set.port_buffer = 4 * 318 * 16;
                }
                seconds[k] = seconds_of(&plan, &net, (int64_t)plan.chunks * 40000, &set, &result);
                busy[k] = 0;
                for (int l = 0; l < net.links; l++) busy[k] += result.busy[l];
                same = same && result.messages == plan.n;
                sim_result_free(&result);
            }
            same = same && off(busy[0], busy[1]) < 1e-9;
        }
        check(same, "%s on %s with ports, queues and little room: all arrives, %.2f times as long", cases[i][1],
              cases[i][0], seconds[1] / seconds[0]);
        end(&net, &plan);
    }
}

// Rows without bytes, plans without rows, networks with one rank; what is refused.
static void test_edges(void) {
    Network net;
    Plan plan;
    Error error = {""};
    SimResult result;
    must(network_build(&net, "torus:4x4", &error), &error);
    must(collective_build(&plan, "multitree", PLAN_ALL_REDUCE, &net, &error), &error);
    bool ok = true;
    for (int injection = 0; injection < 4; injection++) {
        SimSettings set = sim_settings_default();
        set.injection = (SimInjection)injection;
        ok = ok && seconds_of(&plan, &net, 0, &set, NULL) == 0;
        const double t = seconds_of(&plan, &net, 4, &set, &result); // one chunk of 16 has an element
        ok = ok && t > 0 && result.messages == 30;
        sim_result_free(&result);
    }
    check(ok, "a vector shorter than the chunks: only what is there is sent");
    Routes routes = network_routes(&net);
    SimSettings bad[7];
    for (int i = 0; i < 7; i++) bad[i] = sim_settings_default();
    bad[0].payload = 0;
    bad[1].segments = 0;
    bad[2].element_size = 0;
    bad[3].reduce = -1;
    bad[4].overhead = NAN;
    bad[5].flit = -1;
    int refused = 0;
    for (int i = 0; i < 7; i++) {
        error.text[0] = 0;
        refused += !simulate(&plan, &net, &routes, i == 6 ? 6 : 64, &bad[i], &result, &error) && error.text[0];
    }
    check(refused == 7, "wrong settings and sizes are refused: %d of 7", refused);
    SimSettings set = sim_settings_default();
    net.link[5].bandwidth = 0;
    check(!simulate(&plan, &net, &routes, 64, &set, &result, &error), "a link without bandwidth: %s", error.text);
    net.link[5].bandwidth = NETWORK_BANDWIDTH;
    plan.ranks = 15;
    check(!simulate(&plan, &net, &routes, 64, &set, &result, &error), "a plan for others: %s", error.text);
    plan.ranks = 16;
    plan.transfers[0].to = 16;
    check(!simulate(&plan, &net, &routes, 64, &set, &result, &error), "a rank that is not there: %s", error.text);
    routes_free(&routes);
    end(&net, &plan);
}

// ----------------------------------------------------------------------------------------------------------------
// Plans

// On plans of which no link carries two messages in a step, all over one link: lockstep is the formula, free is not
// slower.
static void test_plans(void) {
    static const struct {
        const char *network, *algorithm;
        bool alone; // on its links, which are one a message
    } cases[] = {{"torus:4x4", "ring", true},
                 {"torus:4x4", "multitree", true},
                 {"torus:8x8", "multitree", true},
                 {"torus:8x8", "2d-ring", true},
                 {"mesh:8x8", "multitree", true},
                 {"mesh:4x4", "multitree:3", true},
                 {"torus:5x3x4", "multitree", true},
                 {"full:7", "multitree", true},
                 {"mesh:4x4", "2d-ring", false},
                 {"torus:8x8", "double-tree", false},
                 {"torus:4x4", "forest", false},
                 {"bigraph:4x8", "halving-doubling", false},
                 {"fattree:4,2", "multitree", false},
                 {"bigraph:4x8", "multitree", false},
                 {"dgx", "ring", false},
                 {"dgx", "halving-doubling", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Network net;
        Plan plan;
        Error error = {""};
        must(network_build(&net, cases[i].network, &error), &error);
        must(collective_build(&plan, cases[i].algorithm, PLAN_ALL_REDUCE, &net, &error), &error);
        Routes routes = network_routes(&net);
        int* links = (int*)checked_malloc(((size_t)net.vertices + 1) * sizeof(int), "a way");
        const int64_t bytes = (int64_t)plan.chunks * 4 * 5000;
        double time[4], again = 0, busy_error = 0, cost = plan_cost(&plan, &net, &routes, (double)bytes);
        bool same = true;
        for (int injection = 0; injection < 4; injection++) {
            for (int h = 0; h < 3; h++) {
                SimSettings set = sim_settings_default();
                SimResult result, second;
                set.injection = (SimInjection)injection;
                set.heads = (SimHeads)h;
                const double t = seconds_of(&plan, &net, bytes, &set, &result);
                again = seconds_of(&plan, &net, bytes, &set, &second);
                same = same && t == again && memcmp(result.busy, second.busy, (size_t)net.links * sizeof(double)) == 0;
                if (h == 0) time[injection] = t;
                double* expected = (double*)checked_calloc((size_t)net.links, sizeof(double), "links");
                for (int64_t r = 0; r < plan.n; r++) {
                    const int64_t m = 4 * transfer_elements(&plan, &plan.transfers[r], bytes / 4);
                    for (int k = plan_way(&plan, &net, &routes, r, links) - 1; k >= 0; k--)
                        expected[links[k]] += ((double)m + heads(&set, m)) / net.link[links[k]].bandwidth;
                }
                for (int l = 0; l < net.links; l++)
                    busy_error = fmax(busy_error, fabs(result.busy[l] - expected[l]) / t);
                free(expected);
                sim_result_free(&result);
                sim_result_free(&second);
            }
        }
        char what[128];
        snprintf(what, sizeof what, "%s on %s", cases[i].algorithm, cases[i].network);
        check(same && busy_error < 1e-9, "%s: twice the same; links are busy for their bytes, error %.1e", what,
              busy_error);
        if (cases[i].alone) {
            check(off(time[0], cost) < exact, "%s: lockstep is the formula, %.4f us", what, time[0] * 1e6);
            check(time[1] <= time[0] * (1 + exact), "%s: free is not slower: %.4f us", what, time[1] * 1e6);
        }
        free(links);
        routes_free(&routes);
        end(&net, &plan);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// The second simulator

enum { PLAIN_PACKETS = 12, PLAIN_ROWS = 60, PLAIN_HOPS = 12 };

// A packet of a row: on which link of its way it is to go next, and when it is there.
typedef struct {
    int at;
    double ready;
} PlainPacket;

typedef struct {
    int hops, packets, way[PLAIN_HOPS];
    bool sent;
    double left, arrived;    // its first link, its end; < 0: not yet
    double turn[PLAIN_HOPS]; // when its last packet left each link
    PlainPacket packet[PLAIN_PACKETS];
} PlainRow;

// Everything that row i has to wait for: looks at all rows. Negative: not yet known.
static double plain_start(const Plan* plan, const PlainRow* rows, int64_t i, bool lockstep) {
    const Transfer* t = &plan->transfers[i];
    double start = 0;
    for (int64_t j = 0; j < plan->n; j++) {
        const Transfer* u = &plan->transfers[j];
        if (u->step >= t->step) continue;
        const bool overlap = u->chunk < t->chunk + t->chunks && t->chunk < u->chunk + u->chunks;
        if (!lockstep && (u->to != t->from || !overlap)) continue;
        if (rows[j].arrived < 0) return -1;
        start = fmax(start, rows[j].arrived);
    }
    return start;
}

static double plain_wire(const SimSettings* set, int64_t bytes, int packet) {
    return (double)min_i64(set->payload, bytes - (int64_t)packet * set->payload) +
           (set->heads == SIM_HEADS_PACKET ? set->flit : 0);
}

// The packet of a row that is the next to go over a link of its way, if it is there; else -1.
static int plain_next(const PlainRow* r, int hop) {
    if (!r->sent) return -1;
    for (int k = 0; k < r->packets; k++) {
        if (r->packet[k].at == hop) return k;
        if (r->packet[k].at < hop) return -1;
    }
    return -1;
}

// Again and again: of all packets that could go, the one that can go first. Messages take turns on a link: its next
// packet stands in line since it came, or since the packet before it left. Those of one time: rows before others.
static double plain_simulate(const Plan* plan, const Network* net, const Routes* routes, int64_t bytes,
                             const SimSettings* set) {
    const bool lockstep = set->injection == SIM_LOCKSTEP;
    static PlainRow rows[PLAIN_ROWS];
    double* link_free = (double*)checked_calloc((size_t)net->links, sizeof(double), "links");
    int* links = (int*)checked_malloc(((size_t)net->vertices + 1) * sizeof(int), "a way");
    double seconds = 0;
    for (int64_t i = 0; i < plan->n; i++) {
        PlainRow* r = &rows[i];
        memset(r, 0, sizeof *r);
        const int64_t m = set->element_size * transfer_elements(plan, &plan->transfers[i], bytes / set->element_size);
        r->hops = plan_way(plan, net, routes, i, links);
        r->packets = (int)((m + set->payload - 1) / set->payload);
        r->left = r->arrived = -1;
        if (r->hops > PLAIN_HOPS || r->packets > PLAIN_PACKETS) die("too long a way or message");
        memcpy(r->way, links, (size_t)r->hops * sizeof(int));
    }
    for (;;) {
        for (int64_t i = 0; i < plan->n; i++) { // rows that may begin
            PlainRow* r = &rows[i];
            double start = plain_start(plan, rows, i, lockstep);
            bool wait = r->sent || start < 0;
            for (int64_t j = 0; j < i; j++) {
                if (lockstep || rows[j].way[0] != r->way[0]) continue;
                wait = wait || rows[j].left < 0;
                start = fmax(start, rows[j].left);
            }
            if (wait) continue;
            r->sent = true;
            for (int k = 0; k < r->packets; k++) r->packet[k].ready = start;
        }
        int64_t row = -1;
        int hop = -1;
        double best = INFINITY, since = INFINITY;
        for (int64_t i = 0; i < plan->n; i++) {
            for (int h = 0; h < rows[i].hops; h++) {
                const int k = plain_next(&rows[i], h);
                if (k < 0) continue;
                const double stands = fmax(rows[i].packet[k].ready, rows[i].turn[h]),
                             at = fmax(stands, link_free[rows[i].way[h]]);
                if (at < best || (at == best && stands < since)) {
                    row = i;
                    hop = h;
                    best = at;
                    since = stands;
                }
            }
        }
        if (row < 0) break;
        PlainRow* r = &rows[row];
        const int l = r->way[hop], k = plain_next(r, hop);
        const int64_t m = set->element_size * transfer_elements(plan, &plan->transfers[row], bytes / set->element_size);
        r->turn[hop] = link_free[l] = best + plain_wire(set, m, k) / net->link[l].bandwidth;
        r->packet[k].ready = link_free[l] + net->link[l].latency;
        r->packet[k].at++;
        if (k + 1 == r->packets && hop == 0) r->left = link_free[l];
        if (k + 1 == r->packets && hop + 1 == r->hops) {
            r->arrived = r->packet[k].ready;
            seconds = fmax(seconds, r->arrived);
        }
    }
    for (int64_t i = 0; i < plan->n; i++) {
        if (rows[i].arrived < 0) die("a row of the plan was never sent");
    }
    free(links);
    free(link_free);
    return seconds;
}

static uint64_t draw(uint64_t stream, uint64_t index, uint64_t n) {
    return (uint64_t)(random_uniform(7, stream, index) * (float)n) % n;
}

// A network of some ranks and switches, in a ring, with some links across; no two speeds or latencies equal, so that no
// two packets come at one time (but those of the beginning of a step, which have an order).
static void random_network(Network* net, uint64_t seed) {
    memset(net, 0, sizeof *net);
    snprintf(net->name, sizeof net->name, "random");
    net->ranks = 3 + (int)draw(seed, 0, 4);
    net->vertices = net->ranks + (int)draw(seed, 1, 3);
    net->reach = net->vertices;
    const int across = (int)draw(seed, 2, 6);
    for (int i = 0; i < net->vertices + across; i++) {
        const int a = i < net->vertices ? i : (int)draw(seed, (uint64_t)(3 + 2 * i), (uint64_t)net->vertices);
        const int b = i < net->vertices ? (i + 1) % net->vertices
                                        : (int)draw(seed, (uint64_t)(4 + 2 * i), (uint64_t)net->vertices);
        if (a == b) continue;
        for (int way = 0; way < 2; way++) {
            const uint64_t at = (uint64_t)(100 + 4 * i + 2 * way);
            network_add(net, way ? b : a, way ? a : b, 1e9 * (1 + random_uniform(7, seed, at)),
                        1e-6 * random_uniform(7, seed, at + 1));
        }
    }
    network_sort(net);
}

static void random_plan(Plan* plan, const Network* net, uint64_t seed) {
    plan_init(plan, "random", PLAN_ALL_REDUCE, net->ranks, 1 + (int)draw(seed, 200, 5));
    const int rows = 1 + (int)draw(seed, 201, PLAIN_ROWS);
    for (int i = 0, step = 0; i < rows; i++) {
        const uint64_t at = (uint64_t)(300 + 8 * i);
        const int from = (int)draw(seed, at, (uint64_t)net->ranks),
                  by = 1 + (int)draw(seed, at + 1, (uint64_t)net->ranks - 1);
        const int chunk = (int)draw(seed, at + 2, (uint64_t)plan->chunks);
        const int chunks = 1 + (int)draw(seed, at + 3, (uint64_t)min_i64(2, plan->chunks - chunk));
        step += (int)draw(seed, at + 4, 4) == 0;
        plan_add(plan, step, from, (from + by) % net->ranks, chunk, chunks, true);
    }
}

static void test_plain(uint64_t seeds) {
    double worst = 0, low = INFINITY, high = 0, least = 0;
    int runs = 0;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        Network net;
        Plan plan;
        random_network(&net, seed);
        random_plan(&plan, &net, seed);
        Routes routes = network_routes(&net);
        const int64_t bytes = 4 * (int64_t)(plan.chunks * (100 + (int)draw(seed, 202, 200)));
        int* links = (int*)checked_malloc(((size_t)net.vertices + 1) * sizeof(int), "a way");
        for (int mode = 0; mode < 4; mode++) {
            SimSettings set = sim_settings_default();
            set.injection = (SimInjection)(mode % 2);
            set.heads = mode / 2 ? SIM_HEADS_PACKET : SIM_HEADS_NONE;
            set.segments = 4096; // every packet is one
            const double plain = plain_simulate(&plan, &net, &routes, bytes, &set);
            worst = fmax(worst, off(seconds_of(&plan, &net, bytes, &set, NULL), plain));
            // In coarser segments: not faster than its busiest link or longest message, not slower than one after
            // another.
            set.segments = 2;
            SimResult result;
            const double coarse = seconds_of(&plan, &net, bytes, &set, &result);
            double most = 0, all = 0;
            for (int l = 0; l < net.links; l++) most = fmax(most, result.busy[l]);
            for (int64_t i = 0; i < plan.n; i++) {
                double alone = 0;
                const int64_t m = 4 * transfer_elements(&plan, &plan.transfers[i], bytes / 4);
                for (int k = plan_way(&plan, &net, &routes, i, links) - 1; k >= 0; k--)
                    alone += ((double)m + heads(&set, m)) / net.link[links[k]].bandwidth + net.link[links[k]].latency;
                all += alone;
            }
            low = fmin(low, coarse / most);
            high = fmax(high, coarse / all);
            least = fmax(least, fabs(coarse - plain) / plain);
            sim_result_free(&result);
            runs++;
        }
        free(links);
        routes_free(&routes);
        end(&net, &plan);
    }
    char what[80];
    snprintf(what, sizeof what, "%d random plans on random networks, as the plain simulator", runs);
    check_error(what, worst, exact);
    check(low >= 1 && high <= 1 + exact,
          "in two segments a message: %.3f of the busiest link or more, %.3f of all in a row or less", low, high);
    printf("      (messages of up to 10 packets in 2 segments: off by %.0f %% at most)\n", least * 100);
}

// ----------------------------------------------------------------------------------------------------------------
// Speed

// A link that lets `burst` bytes through at once after a pause: there, back and there again.
static void test_burst(void) {
    const double B = NETWORK_BANDWIDTH, a = NETWORK_LATENCY, M = 256 * 800;
    const double bursts[] = {0, 0.25, 0.9, 1, 3};
    double worst = 0;
    for (int i = 0; i < 5; i++) {
        for (int injection = 0; injection < 3; injection++) {
            Network net;
            Plan plan;
            SimResult result;
            SimSettings set = sim_settings_default();
            set.injection = (SimInjection)injection;
            set.burst = bursts[i] * M;
            begin(&net, &plan, "ring:9", 1);
            for (int step = 0; step < 3; step++) plan_add(&plan, step, step % 2, 1 - step % 2, 0, 1, true);
            const double first = fmax(0, M - set.burst) / B + a; // each link has all of its burst
            const double left = fmax(0, set.burst - M), back = (first - a + 2 * a) * B;
            const double again = fmax(0, M - fmin(set.burst, left + back)) / B + a;
            worst = fmax(worst, off(seconds_of(&plan, &net, (int64_t)M, &set, &result), 2 * first + again));
            worst = fmax(worst, off(result.busy[network_link(&net, 0, 1)], 2 * M / B));
            sim_result_free(&result);
            end(&net, &plan);
        }
    }
    check_error("bursts: (M - burst) / B + a, and what came back meanwhile", worst, exact);
}

// A plan that is cut into slabs is the same plan on finer chunks.
static void test_cut(void) {
    static const char* const networks[] = {"torus:4x4", "fattree:4,2", "mesh:2x3"};
    static const char* const algorithms[] = {"ring", "multitree", "double-tree:4", "forest:2,2"};
    bool right = true;
    int n = 0;
    for (int i = 0; i < 12; i++) {
        Network net;
        Plan plan;
        Error error = {""};
        must(network_build(&net, networks[i / 4], &error), &error);
        if (!collective_build(&plan, algorithms[i % 4], PLAN_ALL_REDUCE, &net, &error)) {
            network_free(&net);
            continue;
        }
        const int64_t sent = plan_sent(&plan, 1, 11520), rows = plan.n;
        SimSettings set = sim_settings_default();
        const double whole = seconds_of(&plan, &net, plan.chunks * 30000, &set, NULL);
        plan_cut(&plan, 3);
        plan.exclusive = false; // a link carries the slabs of a step one after the other
        right = right && plan.n == 3 * rows && plan_check(&plan, &net, &error) && plan_sent(&plan, 1, 11520) == sent;
        if (i % 4 != 2) // which crowds on links
            right = right && seconds_of(&plan, &net, (int64_t)plan.chunks * 10000, &set, NULL) <= whole * (1 + exact);
        n++;
        end(&net, &plan);
    }
    check(right && n == 11, "%d plans cut into slabs: right, as many bytes, not slower", n);
}

static void test_speed(void) {
    Network net;
    Plan plan;
    Error error = {""};
    SimResult result;
    must(network_build(&net, "torus:16x16", &error), &error);
    must(collective_build(&plan, "multitree", PLAN_ALL_REDUCE, &net, &error), &error);
    SimSettings set = sim_settings_default();
    const double start = seconds_now();
    seconds_of(&plan, &net, 1 << 24, &set, &result);
    const double seconds = seconds_now() - start;
    check(result.messages == 2 * 255 * 256, "multitree on torus:16x16: %lld messages, %.1f million a second",
          (long long)result.messages, (double)result.messages / seconds / 1e6);
    sim_result_free(&result);
    end(&net, &plan);
}

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    test_ring();
    test_hops();
    test_sharing();
    test_estimate();
    test_ports();
    test_in_order();
    test_everything();
    test_edges();
    test_plans();
    test_burst();
    test_cut();
    test_plain(brief ? 60 : 400);
    test_speed();
    return test_end();
}
