/*
test_network_sim.c: the network simulator (planner/network_sim.h) against closed forms, and against a second simulator,
slow and plain: one packet after another, no heap, no segments, every earlier row of a plan looked at for each
dependency.
*/
#include "network_fixture.h"

// ---- Closed forms -----------------------------------------------------------------------------------------------

static void test_ring(void) {
    static const int sizes[] = {2, 3, 8, 64};
    double worst = 0;
    for (int i = 0; i < 4; i++) {
        Network net;
        Plan plan;
        char name[16];
        snprintf(name, sizeof name, "ring:%d", sizes[i]);
        build(&net, &plan, name, "ring");
        SimSettings set = sim_settings_default();
        set.overhead = 3e-6;
        const int64_t N = sizes[i], chunk = 12000;
        const double step = a + (double)chunk / B + 2 * set.overhead;
        const double expected = (double)(N - 1) * 2 * step;
        worst = fmax(worst, off(seconds_of(&plan, &net, N * chunk, &set, NULL), expected));
        end(&net, &plan);
    }
    check_error("ring: 2 (N - 1) (a + c / B + overheads)", worst, exact);
}

// Messages over k links; k messages of one rank over one link.
static void test_messages(void) {
    const SimSettings set = sim_settings_default();
    double worst = 0;
    for (int k = 1; k <= 4; k++) {
        const int hops[][4] = {{0, 0, k, 0}}, same[][4] = {{0, 0, 1, 0}, {0, 0, 1, 1}, {0, 0, 1, 2}, {0, 0, 1, 3}};
        worst = fmax(worst, off(seconds_of_rows("ring:9", hops, 1, &set), M / B + (k - 1) * 256 / B + k * a));
        worst = fmax(worst, off(seconds_of_rows("ring:9", same, k, &set), k * M / B + a));
    }
    check_error("k links: M / B + (k - 1) packet / B + k a; k messages over one: k M / B + a", worst, exact);
}

// A plan with paths of its own: two messages on two parallel links.
static void test_parallel_links(void) {
    Network net;
    Plan plan;
    Error error = {""};
    must(network_build(&net, "ring:3", &error), &error);
    plan_init(&plan, "test", PLAN_ALL_REDUCE, net.ranks, 2);
    network_add(&net, 0, 1, B, a);
    free(net.first);
    network_sort(&net);
    plan.way = (int64_t*)checked_malloc(3 * sizeof(int64_t), "ways");
    plan.link = (int32_t*)checked_malloc(2 * sizeof(int32_t), "ways");
    for (int i = 0; i < 3; i++) plan.way[i] = i;
    for (int i = 0; i < 2; i++) plan_add(&plan, 0, 0, 1, i, 1, true);
    plan.link[0] = network_link(&net, 0, 1);
    plan.link[1] = plan.link[0] + 1;
    while (net.link[plan.link[1]].to != 1) plan.link[1]++;
    const SimSettings set = sim_settings_default();
    check_error("two messages on two parallel links: M / B + a",
                off(seconds_of(&plan, &net, 2 * (int64_t)M, &set, NULL), M / B + a), exact);
    end(&net, &plan);
}

// A link that lets `burst` bytes through at once after a pause: there, back and there again.
static void test_burst(void) {
    static const int rows[][4] = {{0, 0, 1, 0}, {1, 1, 0, 0}, {2, 0, 1, 0}};
    static const double bursts[] = {0, 0.25, 0.9, 1, 3};
    double worst = 0;
    for (int i = 0; i < 5; i++) {
        SimSettings set = sim_settings_default();
        set.burst = bursts[i] * M;
        const double first = fmax(0, M - set.burst) / B + a;                // each link has all of its burst
        const double left = fmax(0, set.burst - M), back = (first + a) * B; // of the burst; what refills it
        const double again = fmax(0, M - fmin(set.burst, left + back)) / B + a;
        worst = fmax(worst, off(seconds_of_rows("ring:9", rows, 3, &set), 2 * first + again));
    }
    check_error("bursts: (M - burst) / B + a, and what came back meanwhile", worst, exact);
}

// A vector shorter than the chunks: only what is there is sent.
static void test_empty_chunks(void) {
    const SimSettings set = sim_settings_default();
    Network net;
    Plan plan;
    SimResult result;
    build(&net, &plan, "torus:4x4", "multitree");
    const double nothing = seconds_of(&plan, &net, 0, &set, NULL), some = seconds_of(&plan, &net, 4, &set, &result);
    check(nothing == 0 && some > 0 && result.messages == 30, // one chunk of 16
          "a vector shorter than the chunks: only what is there is sent");
    sim_result_free(&result);
    end(&net, &plan);
}

static void test_refused(void) {
    enum { CASES = 10 };
    int refused = 0;
    for (int i = 0; i < CASES; i++) {
        Network net;
        Plan plan;
        SimResult result;
        Error error = {""};
        SimSettings set = sim_settings_default();
        build(&net, &plan, "torus:4x4", "multitree");
        Routes routes = network_routes(&net);
        if (i == 0) set.payload = 0;
        if (i == 1) set.segments = 0;
        if (i == 2) set.element_size = 0;
        if (i == 3) set.overhead = INFINITY;
        if (i == 4) set.overhead = NAN;
        if (i == 5) set.burst = INFINITY;
        if (i == 6) net.link[5].bandwidth = 0;
        if (i == 7) plan.ranks = 15;
        if (i == 8) plan.transfers[0].to = 16;
        const int64_t bytes = i == 9 ? 6 : 64; // 6: not whole elements
        refused += !simulate(&plan, &net, &routes, bytes, &set, &result, &error) && error.text[0];
        plan.ranks = 16;
        routes_free(&routes);
        end(&net, &plan);
    }
    check(refused == CASES, "settings, plans, networks and sizes that are wrong: %d of %d refused", refused, CASES);
}

// ---- The second simulator ---------------------------------------------------------------------------------------

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
static double plain_start(const Plan* plan, const PlainRow* rows, int64_t i) {
    const Transfer* t = &plan->transfers[i];
    double start = 0;
    for (int64_t j = 0; j < plan->n; j++) {
        const Transfer* u = &plan->transfers[j];
        if (u->step >= t->step) continue;
        const bool overlap = u->chunk < t->chunk + t->chunks && t->chunk < u->chunk + u->chunks;
        if (u->to != t->from || !overlap) continue;
        if (rows[j].arrived < 0) return -1;
        start = fmax(start, rows[j].arrived);
    }
    return start;
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
            double start = plain_start(plan, rows, i);
            bool wait = r->sent || start < 0;
            for (int64_t j = 0; j < i; j++) {
                if (rows[j].way[0] != r->way[0]) continue;
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
        const int64_t packet = min_i64(set->payload, m - (int64_t)k * set->payload);
        r->turn[hop] = link_free[l] = best + (double)packet / net->link[l].bandwidth;
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
    double worst = 0, low = INFINITY, high = 0;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        Network net;
        Plan plan;
        random_network(&net, seed);
        random_plan(&plan, &net, seed);
        Routes routes = network_routes(&net);
        const int64_t bytes = 4 * (int64_t)(plan.chunks * (100 + (int)draw(seed, 202, 200)));
        int* links = (int*)checked_malloc(((size_t)net.vertices + 1) * sizeof(int), "a way");
        SimSettings set = sim_settings_default();
        set.segments = 4096; // every packet is one
        const double plain = plain_simulate(&plan, &net, &routes, bytes, &set);
        worst = fmax(worst, off(seconds_of(&plan, &net, bytes, &set, NULL), plain));
        // In coarser segments: not faster than its busiest link or longest message, not slower than one after
        // another.
        set.segments = 2;
        SimResult result;
        const double coarse = seconds_of(&plan, &net, bytes, &set, &result);
        double most = 0, all = 0, *busy = (double*)checked_calloc((size_t)net.links, sizeof(double), "links");
        for (int64_t i = 0; i < plan.n; i++) {
            const int64_t m = 4 * transfer_elements(&plan, &plan.transfers[i], bytes / 4);
            for (int k = plan_way(&plan, &net, &routes, i, links) - 1; k >= 0; k--) {
                const double seconds = (double)m / net.link[links[k]].bandwidth;
                busy[links[k]] += seconds;
                all += seconds + net.link[links[k]].latency;
            }
        }
        for (int l = 0; l < net.links; l++) {
            most = fmax(most, result.busy[l]);
            worst = fmax(worst, fabs(result.busy[l] - busy[l]) / coarse);
        }
        free(busy);
        low = fmin(low, coarse / most);
        high = fmax(high, coarse / all);
        sim_result_free(&result);
        free(links);
        routes_free(&routes);
        end(&net, &plan);
    }
    char what[80];
    snprintf(what, sizeof what, "%d random plans on random networks, as the plain simulator", (int)seeds);
    check_error(what, worst, exact);
    check(low >= 1 && high <= 1 + exact,
          "in two segments a message: %.3f of the busiest link or more, %.3f of all in a row or less", low, high);
}

// A plan that is cut into slabs is the same plan on finer chunks.
static void test_cut(void) {
    static const char* const cases[][2] = {
        {"torus:4x4", "ring"}, {"fattree:4,2", "multitree"}, {"mesh:2x3", "multitree"}};
    const SimSettings set = sim_settings_default();
    for (int i = 0; i < 3; i++) {
        Network net;
        Plan plan;
        Error error = {""};
        build(&net, &plan, cases[i][0], cases[i][1]);
        const int64_t rows = plan.n;
        const double whole = seconds_of(&plan, &net, plan.chunks * 30000, &set, NULL);
        plan_cut(&plan, 3);
        plan.exclusive = false; // a link carries the slabs of a step one after the other
        check(plan.n == 3 * rows && plan_check(&plan, &net, &error) &&
                  seconds_of(&plan, &net, (int64_t)plan.chunks * 10000, &set, NULL) <= whole * (1 + exact),
              "%s on %s cut into slabs: right, not slower", cases[i][1], cases[i][0]);
        end(&net, &plan);
    }
}

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    test_ring();
    test_messages();
    test_parallel_links();
    test_empty_chunks();
    test_refused();
    test_burst();
    test_cut();
    test_plain(brief ? 100 : 400);
    return test_end();
}
