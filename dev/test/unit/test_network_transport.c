/*
test_network_transport.c: transports of many paths in the network simulator (planner/network_transport.h) against closed
forms, against balls in bins by enumeration, and against plans in which every packet is a row of its own.
*/
#include "network_fixture.h"

enum { P = 4096, N = 240 }; // bytes of a packet, packets of a message: multiples of 2, 3, 4, 5
static const SimTransport transports[] = {SIM_SUBFLOWS, SIM_SPRAY, SIM_RANDOM, SIM_ADAPTIVE};

// window: packets in flight, and out of order.
static SimSettings transport_of(int transport, int subflows, int window, uint64_t seed) {
    SimSettings set = sim_settings_default();
    set.transport = (SimTransport)transport;
    set.subflows = subflows;
    set.flight = set.window = window;
    set.seed = seed;
    set.payload = P;
    return set;
}

// Two ranks, joined by K switches; the first path is s times as slow.
static void build_paths(Network* net, int K, double s) {
    memset(net, 0, sizeof *net);
    snprintf(net->name, sizeof net->name, "paths");
    net->ranks = 2;
    net->vertices = 2 + K;
    for (int i = 0; i < K; i++) {
        for (int end = 0; end < 2; end++) {
            network_add(net, end, 2 + i, i ? B : B / s, a);
            network_add(net, 2 + i, end, i ? B : B / s, a);
        }
    }
    network_sort(net);
}

// n messages of N packets over them, one after another. dead_at: of the last path; < 0: never.
static SimResult over_paths(int K, double s, int n, SimSettings set, double dead_at) {
    Network net;
    Plan plan;
    SimResult result;
    build_paths(&net, K, s);
    plan_init(&plan, "test", PLAN_ALL_REDUCE, 2, n);
    for (int i = 0; i < n; i++) plan_add(&plan, i, 0, 1, i, 1, true);
    if (dead_at >= 0) {
        set.dead[0] = network_link(&net, 0, 1 + K);
        set.dead[1] = network_link(&net, 1 + K, 0);
        set.dead_at = dead_at;
    }
    seconds_of(&plan, &net, n * (int64_t)N * P, &set, &result);
    end(&net, &plan);
    return result;
}

// One path: as a message; a window shorter than the round trip: it is sent again and again.
static void test_one_path(void) {
    double worst = 0;
    for (int t = 0; t < 4; t++) {
        for (int k = 1; k <= 4; k++) {
            const int rows[][4] = {{0, 0, k, 0}};
            for (int window = 1; window <= 300; window += window > 3 ? 296 : 1) {
                SimSettings set = transport_of(transports[t], 4, window, 1);
                set.payload = 256; // M is 800 of them
                const double packet = 256 / B, trip = k * packet + 2 * k * a;
                const double rounds = ceil(800.0 / window) - 1, left = 800 - rounds * window;
                const double expected = (window * packet < trip ? rounds * trip + left * packet : M / B);
                worst = fmax(worst, off(seconds_of_rows("ring:9", rows, 1, &set), expected + (k - 1) * packet + k * a));
            }
        }
    }
    check_error("one path: as a message; by a window, rounds (k packet / B + 2 k a)", worst, exact);
}

// K paths of two links, all packets at once: the slowest path decides.
static void test_paths(void) {
    double worst = 0, most = 0;
    bool same = true;
    for (int t = 0; t < 5; t++) {
        for (int K = 1; K <= 5; K++) {
            for (int slow = 1; slow <= 4; slow += 3) {
                const SimSettings set = transport_of(t < 4 ? transports[t] : SIM_SUBFLOWS, t < 4 ? 3 : 1, N, 2);
                SimResult r = over_paths(K, slow, 1, set, -1);
                double expected = 0, sum = 0;
                for (int l = 0; l < 2 * K; l++) { // links from the ranks come first: those of rank 0
                    const double s = l == 0 ? slow : 1;
                    if (l < K && r.busy[l] > 0) expected = fmax(expected, r.busy[l] + s * P / B + 2 * a);
                    if (l < K) sum += r.busy[l] / s;
                    same = same && (l < K || r.busy[l] == 0);
                }
                worst = fmax(worst, off(r.seconds, expected));
                worst = fmax(worst, off(sum, N * P / B));
                const bool even = t == 1 || t == 3;
                if (even) most = fmax(most, off(r.seconds, slow * (N / K + 1) * P / B + 2 * a));
                if (t == 4 && slow == 1) most = fmax(most, off(r.seconds, (N + 1) * P / B + 2 * a));
                same = same && r.delivered == (int64_t)N * P && r.again == 0 && r.reorder < N && r.flow[0] == r.seconds;
                sim_result_free(&r);
            }
        }
    }
    SimResult two =
        over_paths(1, 1, 2, transport_of(SIM_SPRAY, 1, N, 0), -1); // the second begins when the first has left
    most = fmax(most, off(two.flow[0], (N + 1) * P / B + 2 * a) + off(two.flow[1], (N + 1) * P / B + 2 * a));
    most = fmax(most, off(two.seconds, (2 * N + 1) * P / B + 2 * a));
    sim_result_free(&two);
    check(same, "over 1 to 5 paths: all bytes come once, in one direction");
    check_error("the time of the busiest path, and all of them carry the message", worst, exact);
    check_error("spray, adaptive: s (M / K + packet) / B + 2 a; ECMP: (M + packet) / B + 2 a", most, exact);
}

// A path at 1/s of the rate: adaptive uses all of the rates, but for what is in flight at the end, unless the window is
// as short as the flight: then it waits for the slow path.
static void test_slow_path(void) {
    bool ok = true;
    double least_gain = INFINITY;
    for (int K = 2; K <= 5; K++) {
        for (int s = 2; s <= 16; s *= 2) {
            SimSettings set = transport_of(SIM_ADAPTIVE, 1, 8 * K, 3);
            SimResult narrow = over_paths(K, s, 4, set, -1);
            set.window = N;
            SimResult adaptive = over_paths(K, s, 4, set, -1);
            set.transport = SIM_SPRAY;
            SimResult spray = over_paths(K, s, 4, set, -1);
            const double least = N * P / B / (K - 1 + 1.0 / s), late = (8 + 2) * s * P / B + 4 * a;
            ok = ok && adaptive.seconds >= 4 * least && adaptive.seconds <= 4 * least + late;
            ok = ok && spray.seconds >= 4 * s * (N / K) * P / B &&
                 spray.seconds <= 4 * (s * (N / K + 2) * P / B + 4 * a);
            ok = ok && adaptive.reorder < N && narrow.reorder < 8 * K;
            least_gain = fmin(least_gain, narrow.seconds / adaptive.seconds);
            sim_result_free(&narrow);
            sim_result_free(&adaptive);
            sim_result_free(&spray);
        }
    }
    check(ok, "a slow path: adaptive M / (B (K - 1 + 1 / s)) and the last flight, spray s M / (K B)");
    check(least_gain > 1, "a window as short as the flight: %.2f times as long, or more", least_gain);
}

// A path dies, at once or while it sends: a timeout, and what is lost goes over the others.
static void test_dead_path(void) {
    double worst = 0;
    bool same = true;
    int hit = 0;
    for (int t = 0; t < 5; t++) {
        for (int i = 0; i < 60; i++) {
            SimSettings set = transport_of(t < 4 ? transports[t] : SIM_SUBFLOWS, t < 4 ? 3 : 1, N, (uint64_t)i);
            const int sent = i % 4 * 6, K = 4; // the link is cut while it sends packet number `sent`
            set.timeout = 1e-3;
            SimResult r = over_paths(K, 1, 1, set, sent ? (sent - 0.5) * P / B : 0);
            same = same && r.delivered == (int64_t)N * P && r.reorder < N && (r.again == 0) == (r.seconds < 1e-3);
            same = same && r.again <= N;
            if (t == 1 || t == 3) {
                same = same && r.again == N / K - sent;
                worst = fmax(worst, off(r.seconds, set.timeout + (r.again / (K - 1) + 1) * P / B + 2 * a));
            }
            if (t == 4) { // all of it is lost, or nothing
                same = same && (r.again == 0 || r.again == N - sent);
                const double again = r.again ? set.timeout - sent * P / B : 0;
                worst = fmax(worst, off(r.seconds, again + (N + 1) * P / B + 2 * a));
                hit += r.again > 0;
            }
            sim_result_free(&r);
        }
    }
    check(same && hit > 4 && hit < 26, "a dead path: what is lost comes again, once; ECMP lost its path %d of 60 times",
          hit);
    check_error("timeout + lost / ((K - 1) B) + packet / B + 2 a; ECMP timeout + lost / B", worst, exact);
    // 8 in flight: all of them are lost, one after another, and sent again.
    SimSettings few = transport_of(SIM_SPRAY, 1, N, 5);
    few.flight = 8;
    SimResult f = over_paths(4, 1, 1, few, 0);
    check(f.again == 8 && f.delivered == (int64_t)N * P, "a dead path and 8 in flight: %lld are lost",
          (long long)f.again);
    sim_result_free(&f);
    // By a window: it blocks at the first lost packet; a second message does not use the dead path.
    SimResult r = over_paths(4, 1, 2, transport_of(SIM_SPRAY, 1, 60, 5), 0);
    check(r.again == 15 && r.delivered == 2 * (int64_t)N * P && r.reorder == 59,
          "a dead path and a window of 60: %lld packets are lost; out of order by %d", (long long)r.again, r.reorder);
    check_error("timeout + (2 M - what came before) / ((K - 1) B), but for round trips",
                fabs(r.seconds - 1e-3 - (2 * N - 45) / 3 * P / B), 8 * P / B + 12 * a);
    sim_result_free(&r);
}

// Random paths: the packets of a path are binomial.
static void test_random(int seeds) {
    const double mean = N / 4.0, variance = mean * 3 / 4;
    double sum = 0, squares = 0;
    for (int seed = 0; seed < seeds; seed++) {
        SimResult r = over_paths(4, 1, 1, transport_of(SIM_RANDOM, 1, N, (uint64_t)seed), -1);
        const double packets = r.busy[1] * B / P - mean;
        sum += packets;
        squares += packets * packets;
        sim_result_free(&r);
    }
    check_error("random: packets of a path, binomial mean, in standard deviations", fabs(sum) / sqrt(variance * seeds),
                4);
    check_error("random: binomial variance, in standard deviations of it",
                fabs(squares / seeds / variance - 1) / sqrt(2.0 / seeds), 4);
}

// How often each load of the busiest of `bins` occurs among all ways to throw `balls`.
static void count_loads(int balls, int bins, int* load, double* ways) {
    int most = 0;
    for (int i = 0; i < bins; i++) {
        most = load[i] > most ? load[i] : most;
        if (balls == 0) continue;
        load[i]++;
        count_loads(balls - 1, bins, load, ways);
        load[i]--;
    }
    if (balls == 0) ways[most]++;
}

// Flows of a leaf, each to another leaf, over as many switches: ECMP are balls in bins.
static void test_hashes(int seeds) {
    for (int k = 3; k <= 7; k += 2) {
        Network net;
        Plan plan;
        Error error = {""};
        char name[40];
        int load[8] = {0}, seen[8] = {0};
        double ways[8] = {0}, all = pow(k, k - 1), worst = 0, unlike = 0, sprayed = 0;
        snprintf(name, sizeof name, "fattree:%d,2", k);
        must(network_build(&net, name, &error), &error);
        plan_init(&plan, "test", PLAN_ALL_REDUCE, net.ranks, k - 1);
        for (int i = 0; i < k - 1; i++) plan_add(&plan, 0, i, k * (i + 1), i, 1, true);
        count_loads(k - 1, k, load, ways);
        for (int seed = 0; seed < seeds; seed++) {
            const SimSettings ecmp = transport_of(SIM_SUBFLOWS, 1, N, (uint64_t)seed),
                              spray = transport_of(SIM_SPRAY, 1, N, (uint64_t)seed);
            const double least = (N + 3) * P / B + 4 * a, message = N * P / B;
            const double more = (seconds_of(&plan, &net, (k - 1) * (int64_t)N * P, &ecmp, NULL) - least) / message;
            worst = fmax(worst, fabs(more - nearbyint(more)));
            seen[(int)nearbyint(more) + 1]++;
            const double late = seconds_of(&plan, &net, (k - 1) * (int64_t)N * P, &spray, NULL) - least;
            sprayed = fmax(sprayed, fabs(late - (k - 2) / 2.0 * P / B) / (k / 2.0 * P / B));
        }
        for (int m = 1; m < k; m++) {
            const double p = ways[m] / all;
            unlike = fmax(unlike, fabs(seen[m] - p * seeds) / sqrt(p * (1 - p) * seeds + 1e-9));
        }
        check_error("ECMP: max load M / B + 3 packet / B + 4 a", worst, 1e-9);
        snprintf(name, sizeof name, "%d of %d", k - 1, k);
        check(unlike < 4, "its distribution, %s: balls in bins, %.1f standard deviations away", name, unlike);
        check(sprayed <= 1, "sprayed: M / B, and less than %d packets", k - 1);
        end(&net, &plan);
    }
}

// A plan whose rows are the packets, each with its way, is the same as a spray, for one beginning of each flow's turns.
static void test_exploded(void) {
    static const int ends[3][2] = {{0, 2}, {1, 3}, {3, 0}};
    enum { PACKETS = 9 };
    double worst = 0;
    for (uint64_t seed = 0; seed < 6; seed++) {
        Network net;
        Plan plan, packets;
        Error error = {""};
        must(network_build(&net, "fattree:2,2", &error), &error);
        for (int l = 0; l < net.links; l++) net.link[l].bandwidth *= 1 + random_uniform(9, seed, (uint64_t)l);
        plan_init(&plan, "test", PLAN_ALL_REDUCE, 4, 3);
        for (int i = 0; i < 3; i++) plan_add(&plan, 0, ends[i][0], ends[i][1], i, 1, true);
        const SimSettings spray = transport_of(SIM_SPRAY, 1, N, seed);
        SimSettings route = spray;
        route.transport = SIM_ROUTE;
        const double seconds = seconds_of(&plan, &net, 3 * PACKETS * (int64_t)P, &spray, NULL);
        double best = INFINITY;
        for (int begin = 0; begin < 8; begin++) {
            plan_init(&packets, "packets", PLAN_ALL_REDUCE, 4, 3 * PACKETS);
            packets.way = (int64_t*)checked_malloc((3 * PACKETS + 1) * sizeof(int64_t), "ways");
            packets.link = (int32_t*)checked_malloc(3 * PACKETS * 4 * sizeof(int32_t), "ways");
            for (int i = 0; i < 3 * PACKETS; i++) {
                const int f = i / PACKETS, from = ends[f][0], to = ends[f][1];
                const int spine = net.ranks + 2 + (begin >> f & 1 ? i % PACKETS + 1 : i % PACKETS) % 2;
                const int stops[5] = {from, net.ranks + from / 2, spine, net.ranks + to / 2, to};
                packets.way[i] = 4 * i;
                for (int k = 0; k < 4; k++) packets.link[4 * i + k] = network_link(&net, stops[k], stops[k + 1]);
                plan_add(&packets, 0, from, to, i, 1, true);
            }
            packets.way[3 * PACKETS] = 12 * PACKETS;
            best = fmin(best, off(seconds_of(&packets, &net, 3 * PACKETS * (int64_t)P, &route, NULL), seconds));
            plan_free(&packets);
        }
        worst = fmax(worst, best);
        end(&net, &plan);
    }
    check_error("a spray is a plan whose rows are its packets", worst, exact);
}

// Whole collectives: every byte comes once, over as many links as paths have; also with a dead link.
static void test_transport_plans(void) {
    static const char* const cases[][2] = {{"fattree:4,2", "halving-doubling"},
                                           {"fattree:2,3", "ring"},
                                           {"fattree:2,4", "double-tree"},
                                           {"bigraph:2x4", "multitree"},
                                           {"torus:4x4", "halving-doubling"}};
    for (int i = 0; i < 5; i++) {
        Network net;
        Plan plan;
        bool same = true;
        int64_t again = 0;
        double worst = 0;
        build(&net, &plan, cases[i][0], cases[i][1]);
        const int64_t bytes = plan.chunks * (int64_t)(3 * P + 400);
        for (int run = 0; run < 16; run++) {
            SimSettings set = transport_of(transports[run % 4], 3, 5, (uint64_t)run);
            SimResult r, twice;
            if (run % 8 >= 4 && i < 3) { // where there are other paths: the last links are those between switches
                set.dead[0] = net.links - 1;
                set.dead_at = 20e-6 * (run % 3);
            }
            seconds_of(&plan, &net, bytes, &set, &r);
            seconds_of(&plan, &net, bytes, &set, &twice);
            int64_t sum = 0;
            double busy = 0, carried = 0, longest = 0;
            for (int64_t row = 0; row < plan.n; row++) {
                const Transfer* t = &plan.transfers[row];
                const int64_t m = 4 * transfer_elements(&plan, t, bytes / 4);
                int hops[64], queue[64];
                network_hops(&net, t->from, hops, queue); // links are symmetric
                sum += m;
                carried += (double)m * hops[t->to] / B;
                longest = fmax(longest, r.flow[row]);
                same = same && r.flow[row] >= m / (B * net.links) + hops[t->to] * a;
            }
            for (int l = 0; l < net.links; l++) busy += r.busy[l];
            same = same && r.delivered == sum && r.messages == plan.n && r.reorder < 5 && longest <= r.seconds;
            same = same && r.seconds == twice.seconds;
            if (set.dead[0] < 0) worst = fmax(worst, off(busy, carried));
            again += r.again;
            sim_result_free(&r);
            sim_result_free(&twice);
        }
        check(same && (again > 0) == (i < 3), "%s on %s, all transports: all bytes come once, %lld packets lost",
              cases[i][1], cases[i][0], (long long)again);
        check_error("links carry the bytes times the links of a path", worst, 1e-9);
        end(&net, &plan);
    }
}

// Groups at the same time on links of their own are as fast as one; rows are each group's.
static void test_groups(void) {
    Network one, four;
    Plan plan, all;
    Error error = {""};
    build(&one, &plan, "full:4", "halving-doubling");
    must(network_build(&four, "full:12", &error), &error);
    must(collective_build(&all, "halving-doubling", PLAN_ALL_REDUCE, &one, &error), &error);
    plan_groups(&all, 3);
    const SimSettings set = sim_settings_default();
    bool same = all.n == 3 * plan.n && all.ranks == 12 && all.chunks == 3 * plan.chunks && all.steps == plan.steps;
    for (int64_t i = 0; i < all.n; i++) {
        const Transfer *t = &all.transfers[i], *of = &plan.transfers[i / 3];
        const int g = (int)(i % 3);
        same = same && t->from == 3 * of->from + g && t->to == 3 * of->to + g && t->step == of->step;
        same = same && t->chunk == of->chunk + g * plan.chunks && t->chunks == of->chunks && t->add == of->add;
    }
    check(same, "three groups: every row of each");
    check_error("three groups on links of their own: as fast as one",
                off(seconds_of(&all, &four, 3 * 4000000, &set, NULL), seconds_of(&plan, &one, 4000000, &set, NULL)),
                exact);
    network_free(&four);
    plan_free(&all);
    end(&one, &plan);
}

// What a transport refuses; the last one is a dead link that is on all paths.
static void test_transport_refused(void) {
    enum { CASES = 9 };
    int refused = 0;
    for (int i = 0; i < CASES; i++) {
        Network net;
        Plan plan;
        SimResult result;
        Error error = {""};
        SimSettings set = transport_of(SIM_SPRAY, 4, 64, 0);
        build(&net, &plan, i == 6 ? "torus:16x16" : "fattree:2,2", "halving-doubling");
        Routes routes = network_routes(&net);
        if (i == 0) set.window = 0;
        if (i == 1) set.subflows = 0;
        if (i == 2) set.timeout = 0;
        if (i == 3) set.timeout = INFINITY;
        if (i == 4) set.dead_at = NAN;
        if (i == 5) set.transport = SIM_ROUTE;
        if (i == 6) plan.transfers[0].to = 8 * 17; // half around, in both directions: 4 * 12870 paths
        if (i == 5 || i == 7) set.dead[0] = network_link(&net, 1, 4);
        if (i == 8) set.flight = 0;
        const char* said = i == 7 ? "all paths from rank 1 to rank 0" : "";
        const int64_t bytes = i == 6 ? 256 * 64 : 64;
        refused +=
            !simulate(&plan, &net, &routes, bytes, &set, &result, &error) && strstr(error.text, said) && error.text[0];
        routes_free(&routes);
        end(&net, &plan);
    }
    check(refused == CASES, "transports: %d of %d wrong settings refused", refused, CASES);
}

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    test_one_path();
    test_paths();
    test_slow_path();
    test_dead_path();
    test_random(brief ? 100 : 400);
    test_hashes(brief ? 100 : 400);
    test_exploded();
    test_transport_plans();
    test_groups();
    test_transport_refused();
    return test_end();
}
