/*
simulate.c: simulates plans on a network (network_sim.h) and prints a table of times.

    simulate --topology torus:8x8 --algorithm ring,2d-ring,multitree --bytes 1MiB,16MiB
    simulate --topology cluster.txt --algorithm ring,multitree --bytes 64MiB --overhead 20us
    simulate --topology fattree:8,2 --transport all --packet 4KB --seeds 100       network_transport.h
    simulate --paper       MultiTree's authors' experiments (Huang et al. 2021), beside their figures

Columns: time; algorithm bandwidth, bytes / time; use, the mean fraction of the time that links were busy; speed-up over
the first algorithm; the lockstep formula (plan_cost) and the simulated time over it. With --transport: percentiles of
the times of messages, and of the whole over the seeds; time over the first transport; packets that were sent again, and
the most by which one was out of order.
*/
#include "../comm/collectives/collectives.h"
#include "../util/options.h"
#include "network_sim.h"
#include "median.h"

enum { MOST = 16 }; // of a list

typedef struct {
    const char *topology, *algorithm, *bytes, *bandwidth, *latency, *overhead, *reduce, *burst;
    int kind, flow, injection;
    int64_t segments, ports;
    bool as_run, paper, help;
} Arguments;

// Of transports.
typedef struct {
    const char *packet, *timeout, *dead;
    int kind; // 0: none
    int64_t subflows, flight, window, seeds, groups;
} Spread;

// ---- Parsing ----------------------------------------------------------------------------------------------------

static double read_quantity(const char* name, const char* text, const char* const* units, const double* factors,
                            int n) {
    double value;
    if (!network_quantity(text, units, factors, n, 0, &value)) {
        char all[128] = "";
        for (int i = 0; i < n; i++) append_text(all, sizeof all, i ? ", %s" : "%s", units[i]);
        die_usage("--%s %s: a number with one of these units: %s", name, text, all);
    }
    return value;
}

static int64_t read_bytes(const char* name, const char* text) {
    static const char* const units[] = {"B", "KiB", "MiB", "GiB", "KB", "MB", "GB"};
    static const double factors[] = {1, 1024, 1048576, 1073741824, 1e3, 1e6, 1e9};
    const double bytes = read_quantity(name, text, units, factors, 7);
    if (bytes > 1e13) die_usage("--%s %s: more than 10 TB", name, text);
    return (int64_t)bytes / 4 * 4;
}

static double read_bandwidth(const char* name, const char* text) {
    double value;
    if (!network_bandwidth(text, &value)) die_usage("--%s %s: write 16GB/s, 100Gbit/s", name, text);
    return value;
}

static double read_seconds(const char* name, const char* text) {
    double value;
    if (!network_latency(text, &value)) die_usage("--%s %s: write 150ns, 20us", name, text);
    return value;
}

// Splits at commas.
static int split(char* text, char** parts, const char* name) {
    int n = 0;
    for (char* at = text;; at++) {
        if (n == MOST) die_usage("--%s: more than %d of them", name, MOST);
        parts[n++] = at;
        at += strcspn(at, ",");
        if (!*at) return n;
        *at = 0;
    }
}

static void print_time(double seconds) {
    if (seconds < 1e-3)
        printf("%9.2f us", seconds * 1e6);
    else if (seconds < 1)
        printf("%9.3f ms", seconds * 1e3);
    else
        printf("%9.3f s ", seconds);
}

// ---- One network, some algorithms and sizes ---------------------------------------------------------------------

static SimResult run(const Plan* plan, const Network* net, const Routes* routes, int64_t bytes,
                     const SimSettings* set) {
    Error error = {""};
    SimResult result;
    if (!simulate(plan, net, routes, bytes, set, &result, &error)) die("%s", error.text);
    return result;
}

static void print_rows(const Network* net, const Routes* routes, Plan* plans, int n, int64_t bytes,
                       const SimSettings* set) {
    double first = 0;
    for (int i = 0; i < n; i++) {
        SimResult r = run(&plans[i], net, routes, bytes, set);
        const double cost = plan_cost(&plans[i], net, routes, (double)bytes);
        if (i == 0) first = r.seconds;
        printf("%10lld  %-18s %6d ", (long long)bytes, plans[i].name, plans[i].steps);
        print_time(r.seconds);
        printf(" %9.3f  %5.1f %%  %7.3f  ", r.seconds > 0 ? (double)bytes / r.seconds / 1e9 : 0,
               100 * sim_use(&r, net->links), r.seconds > 0 ? first / r.seconds : 1);
        print_time(cost);
        printf("  %6.3f\n", cost > 0 ? r.seconds / cost : 1);
        sim_result_free(&r);
    }
}

// "A,B,TIME": the link from A to B, and the one back, die.
static void read_dead(const Network* net, const char* text, SimSettings* set) {
    int ends[2], at = 0;
    if (sscanf(text, "%d,%d,%n", &ends[0], &ends[1], &at) != 2 || at == 0 ||
        !network_latency(text + at, &set->dead_at) || (unsigned)ends[0] >= (unsigned)net->vertices ||
        (unsigned)ends[1] >= (unsigned)net->vertices || network_link(net, ends[0], ends[1]) < 0)
        die_usage("--dead-link %s: write A,B,20us; A and B have to be joined in %s", text, net->name);
    for (int i = 0; i < 2; i++) set->dead[i] = network_link(net, ends[i], ends[1 - i]);
}

static double percentile(const double* sorted, int64_t n, double part) {
    return n > 0 ? sorted[min_i64(n - 1, (int64_t)(part * (double)n))] : 0;
}

static void print_transports(const Spread* x, const Network* net, const Routes* routes, const Plan* plan, int64_t bytes,
                             SimSettings set) {
    static const double parts[] = {0.5, 0.99, 0.999};
    static const char* const names[] = {"route", "ecmp", "subflows", "spray", "random", "adaptive"};
    double* flow = (double*)checked_malloc((size_t)(plan->n * x->seeds) * sizeof(double), "times");
    double *whole = (double*)checked_malloc((size_t)x->seeds * sizeof(double), "times"), first = 0;
    for (int k = 0; k < 6; k++) {
        if (x->kind < 7 ? x->kind != k + 1 : k == 0 && set.dead[0] >= 0) continue;
        int64_t flows = 0, again = 0, reorder = 0;
        set.transport = (SimTransport)(k > 1 ? k - 1 : k);
        set.subflows = k == 1 ? 1 : (int)x->subflows;
        for (int64_t seed = 0; seed < x->seeds; seed++) {
            set.seed = (uint64_t)seed;
            SimResult r = run(plan, net, routes, bytes, &set);
            for (int64_t i = 0; i < plan->n; i++) {
                if (r.flow[i] > 0) flow[flows++] = r.flow[i];
            }
            whole[seed] = r.seconds;
            again += r.again;
            reorder = max_i64(reorder, r.reorder);
            sim_result_free(&r);
        }
        qsort(flow, (size_t)flows, sizeof *flow, compare_doubles);
        qsort(whole, (size_t)x->seeds, sizeof *whole, compare_doubles);
        if (first == 0) first = percentile(whole, x->seeds, 0.5);
        printf("%10lld  %-16s  %-8s", (long long)bytes, plan->name, names[k]);
        for (int i = 0; i < 3; i++) print_time(percentile(flow, flows, parts[i]));
        for (int i = 0; i < 3; i++) print_time(percentile(whole, x->seeds, parts[i]));
        printf("  %7.3f  %8lld  %7lld\n", first > 0 ? percentile(whole, x->seeds, 0.5) / first : 1, (long long)again,
               (long long)reorder);
    }
    free(flow);
    free(whole);
}

static void compare(const Arguments* a, const Spread* x) {
    Error error = {""};
    Network net;
    if (!network_build(&net, a->topology, &error)) die_usage("%s", error.text);
    if (a->bandwidth || a->latency)
        network_set_links(&net, a->bandwidth ? read_bandwidth("bandwidth", a->bandwidth) : NETWORK_BANDWIDTH,
                          a->latency ? read_seconds("latency", a->latency) : NETWORK_LATENCY);
    SimSettings set = sim_settings_default();
    set.heads = (SimHeads)a->flow;
    set.injection = (SimInjection)a->injection;
    set.segments = (int)a->segments;
    set.ports = (int)a->ports;
    if (a->overhead) set.overhead = read_seconds("overhead", a->overhead);
    if (a->burst) set.burst = (double)read_bytes("burst", a->burst);
    if (a->reduce) set.reduce = 1 / read_bandwidth("reduce", a->reduce);
    if (x->packet) set.payload = (int)min_i64(1 << 30, read_bytes("packet", x->packet));
    if (x->timeout) set.timeout = read_seconds("timeout", x->timeout);
    if (x->dead) read_dead(&net, x->dead, &set);
    set.flight = (int)x->flight;
    set.window = (int)x->window;
    char *names[MOST], *sizes[MOST], *name_text = strdup(a->algorithm), *size_text = strdup(a->bytes);
    if (!name_text || !size_text) die("out of memory");
    const int n = split(name_text, names, "algorithm"), m = split(size_text, sizes, "bytes");
    int64_t bytes[MOST];
    for (int i = 0; i < m; i++) bytes[i] = read_bytes("bytes", sizes[i]);
    Network group = net; // that a plan is for
    char group_name[32];
    snprintf(group_name, sizeof group_name, "full:%d", net.ranks / (int)x->groups);
    if (x->groups > 1 && (a->kind || net.ranks % x->groups || !network_build(&group, group_name, &error)))
        die_usage("--groups %lld: for all-reduces, and a part of the %d ranks", (long long)x->groups, net.ranks);
    Routes routes = network_routes(&net);
    Plan plans[MOST];
    printf("%s, %s: %d ranks, %d links\n\n", net.name, plan_kind_name((PlanKind)a->kind), net.ranks, net.links);
    printf("     bytes  algorithm         ");
    if (x->kind)
        printf("transport   message p50          p99         p999     whole p50          p99         p999  p50/1st     "
               "again  reorder\n");
    else
        printf("  steps         time      GB/s      use  speed-up       formula  time/formula\n");
    for (int i = 0; i < m; i++) {
        for (int k = 0; k < n; k++) {
            if (!collective_build(&plans[k], names[k], (PlanKind)a->kind, &group, &error)) die_usage("%s", error.text);
            if (x->groups > 1) plan_groups(&plans[k], (int)x->groups);
            if (a->as_run) plan_cut(&plans[k], plan_slabs(plan_is_single(&plans[k]), bytes[i] / plans[k].chunks));
        }
        if (!x->kind) print_rows(&net, &routes, plans, n, bytes[i], &set);
        for (int k = 0; k < n; k++) {
            if (x->kind) print_transports(x, &net, &routes, &plans[k], bytes[i], set);
            plan_free(&plans[k]);
        }
    }
    routes_free(&routes);
    network_free(&net);
    if (x->groups > 1) network_free(&group);
    free(name_text);
    free(size_text);
}

// ---- The paper --------------------------------------------------------------------------------------------------
// Huang et al. 2021 simulated accelerators of 16 processing elements with links of 16 GB/s and 150 ns, packets of 256
// bytes and flits of 16. Their simulator's further mechanisms are in its source (GitHub farabimahmud/accelerator,
// commit b241ca1, src/hmc.py, src/npu.py, utils/run_torus_bandwidth.sh) and are set here:
//
//     reduction    32 additions a cycle at 1 GHz, that is 128 bytes/ns; one message after another, each when it has
//                  arrived completely
//     steps        an accelerator begins a step when all messages of its previous step are given to an interface;
//                  MultiTree's (there: strict-schedule, estimate-lockstep) when all interfaces have taken theirs
//                  completely, and it waits in steps without messages: "estimate"
//     interfaces   1, with MultiTree and 2D ring on torus and mesh 4. A message takes the free one of the lowest
//                  number, and the next one in turn at the other end. An interface buffers 58 packets (32 + 16 + 10)
//                  and takes one a cycle
//
//     buffers      4 virtual channels of 318 flits after each link. The packets of a message take any of them, so that
//                  later messages have to wait for it (in_order); a message of one packet takes only one, and others
//                  pass it
//
// Dependencies and contention in their routers are not modelled beyond that. Channels matter most: with 16 instead of 4
// their own simulator takes 50.9 us instead of 62.0 (torus:4x4, 1 MiB, packets). The tables show the unexplained rest.

typedef struct {
    const char *label, *algorithm;
    SimHeads heads;
    SimInjection injection;
    int ports, ports_switched;    // where links join ranks; where switches do
    bool grids, bigraphs, others; // the networks on which it runs
} Scheme;

enum { P_RING, P_2D_RING, P_TREE, P_HDRM, P_MULTITREE, P_MESSAGE, SCHEMES };
static const Scheme schemes[SCHEMES] = {
    {"RING", "ring", SIM_HEADS_PACKET, SIM_STEPS, 1, 1, true, true, true},
    {"2D-RING", "2d-ring", SIM_HEADS_PACKET, SIM_STEPS, 4, 1, true, false, false},
    {"DBTREE", "double-tree", SIM_HEADS_PACKET, SIM_STEPS, 1, 1, true, true, true},
    {"HDRM", "halving-doubling", SIM_HEADS_PACKET, SIM_STEPS, 1, 1, false, true, false},
    {"MULTITREE", "multitree", SIM_HEADS_PACKET, SIM_ESTIMATE, 4, 1, true, true, true},
    {"MT-MSG", "multitree", SIM_HEADS_MESSAGE, SIM_ESTIMATE, 4, 1, true, true, true},
};

// Mechanisms, added one after another.
enum { L_LOCKSTEP, L_FREE, L_HEADS, L_REDUCE, L_STEPS, L_PORTS, L_BUFFERS, LEVELS };
static const char* const level_names[LEVELS] = {"links alone, lockstep", "links alone, free",    "+ head flits",
                                                "+ reduction",           "+ one step at a time", "+ network interfaces",
                                                "+ buffers are queues"};

static SimSettings paper_settings(const Scheme* scheme, bool switched, int level) {
    SimSettings set = sim_settings_default();
    set.injection = level < L_STEPS ? SIM_FREE : scheme->injection;
    if (level == L_LOCKSTEP) set.injection = SIM_LOCKSTEP;
    if (level >= L_HEADS) set.heads = scheme->heads;
    if (level >= L_REDUCE) set.reduce = 1 / 128e9;
    if (level >= L_PORTS) set.ports = switched ? scheme->ports_switched : scheme->ports;
    if (level >= L_BUFFERS) {
        set.port_buffer = 4 * 318 * 16;
        set.in_order = scheme->heads == SIM_HEADS_PACKET;
    }
    return set;
}

typedef struct {
    Network net;
    Routes routes;
    Plan plan[SCHEMES]; // ranks = 0: not run here
} Place;

static Place place_new(const char* name) {
    Error error = {""};
    Place p = {};
    if (!network_build(&p.net, name, &error)) die("%s", error.text);
    p.routes = network_routes(&p.net);
    const bool bigraph = strncmp(name, "bigraph", 7) == 0;
    for (int i = 0; i < SCHEMES; i++) {
        const bool switched = bigraph ? schemes[i].bigraphs : schemes[i].others;
        if (!(p.net.dimensions ? schemes[i].grids : switched)) continue;
        if (!collective_build(&p.plan[i], schemes[i].algorithm, PLAN_ALL_REDUCE, &p.net, &error)) die("%s", error.text);
    }
    return p;
}

static void place_free(Place* p) {
    for (int i = 0; i < SCHEMES; i++) plan_free(&p->plan[i]);
    routes_free(&p->routes);
    network_free(&p->net);
}

static double place_seconds(const Place* p, int scheme, int64_t bytes, int level) {
    const SimSettings set = paper_settings(&schemes[scheme], network_has_switches(&p->net), level);
    SimResult r = run(&p->plan[scheme], &p->net, &p->routes, bytes, &set);
    const double seconds = r.seconds;
    sim_result_free(&r);
    return seconds;
}

// Parameters: from the layer tables of the authors' simulator (src/SCALE-Sim/topologies; weights of convolutions and
// matrix products, summed as one vector in fp32). Cycles: for one sample, forward and backward, on one processing
// element, counted as three matrix products a layer (outputs, gradients of inputs, but of the first layer, and of
// weights) on a 32 x 32 output-stationary array: ceil(m / 32) ceil(n / 32) (k + 62) each. The authors' traces count
// more finely.
typedef struct {
    const char* name;
    double parameters, cycles;
} Dnn;
enum { DNNS = 7 };
static const Dnn dnns[DNNS] = {{"AlexNet", 3745824, 77873708},     {"AlphaGoZero", 1573620, 1346138},
                               {"FasterRCNN", 13258944, 14127084}, {"GoogLeNet", 6854208, 5332499},
                               {"NCF", 11042704, 2752968},         {"ResNet50", 25502912, 15215894},
                               {"Transformer", 77418328, 14572776}};

// Geometric mean over the networks of the speed-up of a scheme over another, as in the authors' scripts.
static double mean_speedup(const double seconds[SCHEMES][DNNS], int scheme, int over) {
    double sum = 0;
    for (int i = 0; i < DNNS; i++) sum += log(seconds[over][i] / seconds[scheme][i]);
    return exp(sum / DNNS);
}

static void dnn_seconds(const Place* p, int level, double seconds[SCHEMES][DNNS]) {
    for (int s = 0; s < SCHEMES; s++) {
        if (!p->plan[s].ranks || s == P_TREE) continue;
        for (int i = 0; i < DNNS; i++) seconds[s][i] = place_seconds(p, s, 4 * (int64_t)dnns[i].parameters, level);
    }
}

// Means over the DNNs, on one network or several.
static void paper_mechanisms(const char* title, const char* const* topologies, int n, const double* published) {
    double speedup[LEVELS][4];
    for (int level = 0; level < LEVELS; level++) {
        for (int k = 0; k < 4; k++) speedup[level][k] = 1;
    }
    for (int t = 0; t < n; t++) {
        Place p = place_new(topologies[t]);
        for (int level = 0; level < LEVELS; level++) {
            double seconds[SCHEMES][DNNS];
            dnn_seconds(&p, level, seconds);
            for (int k = 0; k < 4; k++)
                speedup[level][k] *=
                    pow(mean_speedup(seconds, k < 2 ? P_MULTITREE : P_MESSAGE, k % 2 ? P_2D_RING : P_RING), 1.0 / n);
        }
        place_free(&p);
    }
    printf("\n%s: all-reduce of the DNNs' gradients, geometric mean of how much faster MultiTree is\n\n", title);
    printf("                          packets: over RING  over 2D-RING      messages: over RING  over 2D-RING\n");
    for (int level = 0; level <= LEVELS; level++) {
        const double* row = level < LEVELS ? speedup[level] : published;
        if (row)
            printf("  %-24s %18.2f %13.2f %24.2f %13.2f\n", level < LEVELS ? level_names[level] : "the paper says",
                   row[0], row[1], row[2], row[3]);
    }
    fflush(stdout);
}

// Speed-ups of training: time of all-reduce and computation, one after the other, as in the paper's main experiment.
static void paper_training(void) {
    Place p = place_new("torus:8x8");
    double seconds[SCHEMES][DNNS];
    dnn_seconds(&p, LEVELS - 1, seconds);
    printf("\ntorus:8x8, training: computation + all-reduce (MT-MSG). Gain: time / MultiTree's time - 1\n\n");
    printf("                  MB  all-reduce GB/s: RING  2D-RING  MULTITREE  MT-MSG   share with RING   over RING: "
           "time  gain"
           "   over 2D-RING: time  gain\n");
    for (int i = 0; i < DNNS; i++) {
        const double mb = dnns[i].parameters * 4 / 1e6, compute = dnns[i].cycles / 1e9;
        const double ring = compute + seconds[P_RING][i], two = compute + seconds[P_2D_RING][i],
                     tree = compute + seconds[P_MESSAGE][i];
        printf("  %-12s %6.1f %21.2f %8.2f %10.2f %7.2f %14.0f %% %15.0f %% %4.0f %% %18.0f %% %4.0f %%\n",
               dnns[i].name, mb, mb / 1e3 / seconds[P_RING][i], mb / 1e3 / seconds[P_2D_RING][i],
               mb / 1e3 / seconds[P_MULTITREE][i], mb / 1e3 / seconds[P_MESSAGE][i], 100 * seconds[P_RING][i] / ring,
               100 * (tree / ring - 1), 100 * (ring / tree - 1), 100 * (tree / two - 1), 100 * (two / tree - 1));
    }
    printf("  the paper says: share 30 to 88 %%; time down to -34 %% / -15 %% (CNNs), -81 %% / -30 %% (NCF, "
           "Transformer).\n"
           "  With an all-reduce that is 2.3 times as fast, time cannot fall by more than 1 - 1 / 2.3 = 57 %%: these "
           "are gains.\n");
    place_free(&p);
}

static void paper_sizes(const char* topology) {
    Place p = place_new(topology);
    printf("\n%s: algorithm bandwidth, GB/s\n\n      KiB", topology);
    for (int s = 0; s < SCHEMES; s++) {
        if (p.plan[s].ranks) printf("  %9s", schemes[s].label);
    }
    printf("   MT-MSG over RING%s\n", p.net.dimensions ? "  over 2D-RING" : "");
    for (int64_t bytes = 32 << 10; bytes <= 64 << 20; bytes *= 2) {
        double seconds[SCHEMES] = {0};
        printf("  %7lld", (long long)bytes >> 10);
        for (int s = 0; s < SCHEMES; s++) {
            if (!p.plan[s].ranks) continue;
            seconds[s] = place_seconds(&p, s, bytes, LEVELS - 1);
            printf("  %9.2f", (double)bytes / seconds[s] / 1e9);
        }
        printf("   %16.2f", seconds[P_RING] / seconds[P_MESSAGE]);
        if (p.net.dimensions) printf("  %12.2f", seconds[P_2D_RING] / seconds[P_MESSAGE]);
        printf("\n");
        fflush(stdout);
    }
    place_free(&p);
}

static void paper_weak_scaling(void) {
    static const int pairs[4][2] = {
        {P_MULTITREE, P_RING}, {P_MULTITREE, P_2D_RING}, {P_MESSAGE, P_RING}, {P_MESSAGE, P_2D_RING}};
    printf("\nweak scaling on tori, 375 KiB a rank: how much faster MultiTree is\n\n");
    printf("           links alone: over    all mechanisms, packets: over            messages: over\n");
    printf("    ranks      RING  2D-RING                    RING  2D-RING            RING  2D-RING   GB/s\n");
    for (int side = 4; side <= 16; side += 2) {
        char name[32];
        double seconds[SCHEMES][2];
        memset(seconds, 0, sizeof seconds);
        snprintf(name, sizeof name, "torus:%dx%d", side, side);
        Place p = place_new(name);
        const int64_t bytes = (int64_t)side * side * (375 << 10);
        for (int s = 0; s < SCHEMES; s++) {
            if (s == P_TREE || s == P_HDRM) continue;
            for (int k = 0; k < 2; k++) seconds[s][k] = place_seconds(&p, s, bytes, k ? LEVELS - 1 : L_LOCKSTEP);
        }
        double ratio[4];
        for (int k = 0; k < 4; k++) ratio[k] = seconds[pairs[k][1]][1] / seconds[pairs[k][0]][1];
        printf("  %7d  %8.2f %8.2f %23.2f %8.2f %15.2f %8.2f %6.2f\n", side * side,
               seconds[P_RING][0] / seconds[P_MULTITREE][0], seconds[P_2D_RING][0] / seconds[P_MULTITREE][0], ratio[0],
               ratio[1], ratio[2], ratio[3], (double)bytes / seconds[P_MESSAGE][1] / 1e9);
        fflush(stdout);
        place_free(&p);
    }
    printf("  the paper says: about 3 over RING, 1.4 over 2D-RING at 256\n");
}

// Cycles (of 1 ns) by the authors' own simulator, at sizes for which it is fast enough.
static void paper_beside(void) {
    static const struct {
        const char* topology;
        int kib;
        double cycles[SCHEMES]; // 0: not run
    } runs[] = {{"torus:4x4", 128, {22304, 16916, 0, 0, 11102, 9501}},
                {"torus:4x4", 1024, {143264, 72178, 0, 0, 61984, 45906}},
                {"torus:8x8", 512, {93200, 69786, 0, 0, 40339, 31422}},
                {"torus:8x8", 2048, {0, 235448, 0, 0, 143326, 0}}};
    printf("\nbeside the authors' simulator (b241ca1, run at these sizes): us, theirs / ours\n\n");
    printf(
        "                   KiB                 RING              2D-RING            MULTITREE               MT-MSG\n");
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        Place p = place_new(runs[i].topology);
        printf("  %-12s %7d", runs[i].topology, runs[i].kib);
        for (int s = 0; s < SCHEMES; s++) {
            if (s == P_TREE || s == P_HDRM) continue;
            const double ours = place_seconds(&p, s, (int64_t)runs[i].kib << 10, LEVELS - 1) * 1e6,
                         theirs = runs[i].cycles[s] / 1e3;
            if (theirs > 0)
                printf("  %6.1f %6.1f %+4.0f %%", theirs, ours, 100 * (ours / theirs - 1));
            else
                printf("  %6s %6.1f %6s", "-", ours, "");
        }
        printf("\n");
        place_free(&p);
    }
    printf("  so MULTITREE is faster than 2D-RING, there, by 1.52, 1.16, 1.73 and 1.64, and than RING by 2.01, 2.31 "
           "and 2.31\n");
}

static void paper(void) {
    static const char* const topologies[] = {"torus:4x4",   "torus:8x8",   "mesh:4x4",    "mesh:8x8",
                                             "fattree:4,2", "fattree:8,2", "bigraph:4x8", "bigraph:4x16"};
    static const double published[4] = {2.2, 1.51, 2.3, 1.56};
    paper_mechanisms("torus:8x8", topologies + 1, 1, published);
    paper_mechanisms("torus:4x4", topologies, 1, NULL);
    paper_mechanisms("mesh:8x8", topologies + 3, 1, NULL);
    paper_mechanisms("both tori and both meshes", topologies, 4, NULL);
    paper_beside();
    paper_training();
    paper_weak_scaling();
    for (int i = 0; i < 8; i++) paper_sizes(topologies[i]);
}

int main(int argc, char** argv) {
    Arguments a = {"torus:8x8", "ring,multitree", "1MiB,16MiB", NULL, NULL, NULL,  NULL,  NULL,
                   0,           SIM_HEADS_NONE,   SIM_FREE,     16,   0,    false, false, false};
    Spread x = {NULL, NULL, NULL, 0, 4, 64, 256, 1, 1};
    Option table[] = {
        option_heading("What"),
        option_string("topology", &a.topology, "NAME|FILE", "network, see comm/collectives/topology.h"),
        option_string("algorithm", &a.algorithm, "A,B,...",
                      "see comm/collectives/collectives.h; speed-ups are over the first"),
        option_string("bytes", &a.bytes, "1MiB,...", "of the whole vector"),
        option_int("groups", &x.groups, 1, 1024,
                   "of every N-th rank each, that sum parts of the vector at the same time"),
        option_choice("kind", &a.kind, "all-reduce|reduce-scatter|all-gather", "what is done"),
        option_heading("How"),
        option_string("bandwidth", &a.bandwidth, "16GB/s", "of all links"),
        option_string("latency", &a.latency, "150ns", "of all links"),
        option_choice("flow", &a.flow, "none|message|packet", "what has a head flit of 16 bytes"),
        option_choice("injection", &a.injection, "lockstep|free|steps|estimate",
                      "who sends when, see planner/network_sim.h"),
        option_string("burst", &a.burst, "12KB", "that a link lets through at once after a pause"),
        option_string("overhead", &a.overhead, "20us", "of the processor, a message, at both ends"),
        option_string("reduce", &a.reduce, "128GB/s", "how fast a rank adds"),
        option_int("ports", &a.ports, 0, 64, "network interfaces of a rank; 0: its links"),
        option_int("segments", &a.segments, 1, 4096, "that a message is cut into, at most"),
        option_flag("as-run", &a.as_run, "chunks are cut as comm/comm_planned.h does"),
        option_heading("Transports of many paths (docs/transport.md)"),
        option_choice("transport", &x.kind, "none|route|ecmp|subflows|spray|random|adaptive|all",
                      "how packets choose among the shortest paths; route: all take the same"),
        option_int("subflows", &x.subflows, 1, 64, "paths drawn by hash, of subflows"),
        option_int("seeds", &x.seeds, 1, 10000, "runs, with different hashes"),
        option_string("packet", &x.packet, "4KB", "size of a packet; 256 bytes if not given"),
        option_int("flight", &x.flight, 1, 1 << 20, "packets of a message that are in flight, at most"),
        option_int("window", &x.window, 1, 1 << 20, "how far they are out of order, is less than this"),
        option_string("timeout", &x.timeout, "1ms", "after which a lost packet is sent again"),
        option_string("dead-link", &x.dead, "A,B,20us", "that dies at a time, between two vertices"),
        option_heading("Else"),
        option_flag("paper", &a.paper, "the experiments of MultiTree's authors; takes minutes"),
        option_flag("help", &a.help, "this list"),
    };
    const int n = (int)(sizeof table / sizeof table[0]);
    process.name = "simulate";
    options_of_program(table, n, argc, argv, &a.help,
                       "simulate: sends plans over a network and says how long that takes");
    if (a.paper)
        paper();
    else
        compare(&a, &x);
    return 0;
}
