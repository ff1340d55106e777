/*
simulate.c: simulates plans on a network (network_sim.h) and prints a table of times.

    simulate --topology torus:8x8 --algorithm ring,2d-ring,multitree --bytes 1MiB,16MiB
    simulate --topology cluster.txt --algorithm ring,multitree --bytes 64MiB --overhead 20us
    simulate --topology fattree:8,2 --transport all --packet 4KB --seeds 100       network_transport.h

Columns: time; algorithm bandwidth, bytes / time; use, the mean fraction of the time that links were busy; speed-up over
the first algorithm; the lockstep formula (plan_cost) and the simulated time over it. With --transport: percentiles of
the times of messages, and of the whole over the seeds; time over the first transport; packets that were sent again, and
the most by which one was out of order.
*/
#include "../comm/collectives/collectives.h"
#include "../util/options.h"
#include "network_sim.h"
#include "../util/median.h"

enum { MOST = 16 }; // a list has these at most

typedef struct {
    const char *topology, *algorithm, *bytes, *bandwidth, *latency, *overhead, *burst;
    int kind;
    bool as_run, help;
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
    if (a->overhead) set.overhead = read_seconds("overhead", a->overhead);
    if (a->burst) set.burst = (double)read_bytes("burst", a->burst);
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

int main(int argc, char** argv) {
    Arguments a = {"torus:8x8", "ring,multitree", "1MiB,16MiB", NULL, NULL, NULL, NULL, 0, false, false};
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
        option_string("burst", &a.burst, "12KB", "that a link lets through at once after a pause"),
        option_string("overhead", &a.overhead, "20us", "of the processor, a message, at both ends"),
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
        option_flag("help", &a.help, "this list"),
    };
    const int n = (int)(sizeof table / sizeof table[0]);
    process.name = "simulate";
    options_of_program(table, n, argc, argv, &a.help,
                       "simulate: sends plans over a network and says how long that takes");
    compare(&a, &x);
    return 0;
}
