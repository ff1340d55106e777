/*
test_planner_cluster.c: machines and their links (planner/cluster.h, comm_cost.h). Plans of collectives priced on the
group as a network, beside the formula for groups of any size; files of machines.
*/
#include "../../../planner/op_cost.h"
#include "planner_fixture.h"

// ---- Links ------------------------------------------------------------------------------------------------------

// A ring's plan, priced by plan_cost on the group as a network, and the formula for groups of any size: they differ by
// the latency of the steps that trees save, and by nothing else.
static void test_rings(void) {
    Error error;
    const Cluster c = cluster_named("selene");
    int n = 0, same = 0;
    double slope = 0, latency = 0;
    for (int ranks = 2; ranks <= LINKS_LARGEST; ranks += ranks < 16 ? 1 : 8) {
        for (int stride = 1; stride <= 64; stride *= 2) {
            for (int kind = 0; kind < PLAN_KINDS; kind++) {
                LinkCost plan;
                if (!link_plan_cost(&c, "ring", (PlanKind)kind, ranks, stride, &plan, &error)) die("%s", error.text);
                const LinkCost library = library_cost(&c, (PlanKind)kind, ranks, stride);
                const LinkGroup g = link_group(&c, ranks, stride);
                const double steps = g.nodes == 1 ? ranks - 1 : g.inside - 1 + fmin(g.nodes - 1, 2 * log2(g.nodes));
                const double saved = plan_passes((PlanKind)kind) * (ranks - 1 - steps) * g.step;
                slope = fmax(slope, relative(plan.per_byte, library.per_byte));
                latency = fmax(latency, fabs(plan.latency - library.latency - saved));
                n++, same += saved == 0;
            }
        }
    }
    check_error("rings: bytes by plan_cost and by the formula", slope, 1e-9);
    check_error("rings: latency by plan_cost, less what trees save", latency, 1e-12);
    check(same > n / 5, "%d groups, of which %d have the same price in all", n, same);
    Rates rates = rates_of(&c, software_find("megatron-core"), 1);
    static const double mib[] = {1, 16, 64, 256}, published[] = {22, 147, 204, 226};
    for (int i = 0; i < 4; i++) {
        const double bytes = mib[i] * 1048576,
                     bus = 1.75 * bytes / collective_seconds(&rates, PLAN_ALL_REDUCE, bytes, 8, 1);
        check(lround(bus / 1e9) == published[i], "all-reduce of %g MiB on 8 A100: bus %.1f GB/s", mib[i], bus / 1e9);
    }
}

static void test_algorithms(void) {
    Error error;
    Cluster c = cluster_named("selene");
    LinkCost cost;
    static const char* const names[] = {"ring", "halving-doubling", "double-tree", "multitree"};
    const LinkCost ring = library_cost(&c, PLAN_ALL_REDUCE, 8, 1);
    for (int i = 0; i < 4; i++) {
        const bool ok = link_plan_cost(&c, names[i], PLAN_ALL_REDUCE, 8, 1, &cost, &error);
        check(ok && cost.per_byte > 0.99 * ring.per_byte && cost.per_byte < 9 * ring.per_byte,
              "%s on a node: %.3g s + %.3g s/GB", names[i], cost.latency, cost.per_byte * 1e9);
    }
    snprintf(c.algorithm, sizeof c.algorithm, "halving-doubling");
    LinkCosts known = {};
    const LinkCost twice[2] = {link_cost(&known, &c, PLAN_ALL_REDUCE, 8, 1),
                               link_cost(&known, &c, PLAN_ALL_REDUCE, 8, 1)};
    check(known.n == 1 && twice[0].per_byte == twice[1].per_byte && twice[0].latency < ring.latency,
          "a cluster's algorithm: halving and doubling has fewer steps; it is priced once");
    const LinkCost odd = link_cost(&known, &c, PLAN_ALL_GATHER, 6, 1), plain = library_cost(&c, PLAN_ALL_GATHER, 6, 1);
    check(odd.per_byte == plain.per_byte && odd.latency == plain.latency, "what an algorithm cannot do costs as usual");
    // A torus of nodes with one device each: 4 x 8.
    c = cluster_named("dgx-h100");
    c.node_gpus = 1;
    c.nics = 4;
    c.torus[0] = 1;
    c.torus[1] = 4;
    c.torus[2] = 8;
    c.nodes = 32;
    const LinkCost around = library_cost(&c, PLAN_ALL_REDUCE, 32, 1);
    LinkCost multitree, row, column;
    const bool ok = link_plan_cost(&c, "multitree", PLAN_ALL_REDUCE, 32, 1, &multitree, &error) &&
                    link_plan_cost(&c, "ring", PLAN_ALL_REDUCE, 8, 1, &row, &error) &&
                    link_plan_cost(&c, "ring", PLAN_ALL_REDUCE, 4, 8, &column, &error);
    check(ok && multitree.per_byte < 0.4 * around.per_byte,
          "multitree on a torus of 4 x 8 uses four links where a ring uses one: %.2f times as fast",
          around.per_byte / multitree.per_byte);
    check(ok && relative(row.per_byte, library_cost(&c, PLAN_ALL_REDUCE, 8, 1).per_byte) < 1e-9 &&
              relative(column.per_byte, library_cost(&c, PLAN_ALL_REDUCE, 4, 8).per_byte) < 1e-9,
          "rings in its rows and columns have the formula's price");
    int hops, worst;
    torus_shift(&c, 8 * 2 + 7, &hops, &worst);
    check(hops == 3 && worst == 2, "two rows down and one back: 3 links, 2 flows on each of a dimension");
    c = cluster_named("selene");
    const double before = message_cost(&c, 64, 0, 1).per_byte;
    c.oversubscription = 4;
    check(relative(message_cost(&c, 64, 0, 1).per_byte, 4 * before) < 1e-12,
          "a fat tree, 4 times narrower above its leaves");
    c.leaf_nodes = 20;
    check(relative(message_cost(&c, 64, 0, 1).per_byte, fmax(1, 4 * 8 / 20.0) * before) < 1e-12,
          "with 20 nodes a leaf, of neighbours 8 nodes apart 8 in 20 leave it");
    int wrong = 0; // by all pairs of ranks: over the network where one is of two nodes
    for (int stride = 1; stride <= 9; stride++) {
        for (int i = 0; i < 12 * 12; i++) {
            const int from = i / 12, to = i % 12;
            bool crosses = false;
            for (int k = 0; k < stride * stride; k++)
                crosses |= (from * stride + k / stride) / 8 != (to * stride + k % stride) / 8;
            wrong += from != to && (message_cost(&c, stride, from, to).per_byte > before / 10) != crosses;
        }
    }
    check(wrong == 0, "messages between stages of one node go over NVLink, others do not");
}

// ---- Files ------------------------------------------------------------------------------------------------------

static char path[256];

static bool read_text(Cluster* c, const char* text, Error* error) {
    return cluster_read(c, write_text(path, text), error);
}

#define SHEET                                                                                                          \
    "peak 989.4 TFLOP/s\nsms 132\nmemory 80 GB\nhbm 3.35 TB/s\nnode_gpus 8\nnvlink 450 GB/s\nnics 8\nnic 400 Gbit/s\n"

static void test_files(void) {
    Cluster c, known;
    Error error = {""};
    char names[400], *save = NULL;
    int n = 0;
    cluster_names(names, sizeof names);
    for (char* name = strtok_r(names, ", ", &save); name; name = strtok_r(NULL, ", ", &save), n++) {
        known = cluster_named(name);
        check(known.device.peak > 0 && known.nvlink > 0 && known.nic > 0 && known.device.gemm_fraction > 0.5,
              "%s: %.0f TFLOP/s, %d a node", known.name, known.device.peak / 1e12, known.node_gpus);
    }
    check(n >= 8 && !cluster_find(&c, "ampere") && !cluster_find(&c, "../clusters/selene"), "%d clusters by name", n);
    known = cluster_named("selene");
    check(known.device.peak == 312e12 && known.device.gemm_fraction == 0.87 && known.nodes == 560 && known.nic == 25e9,
          "selene is dgx-a100, which begins with ampere");
    known = cluster_named("dgx-h100");
    check(read_text(&c, SHEET, &error) && c.device.gemm_fraction == 0.80 && c.device.hbm == known.device.hbm &&
              c.device.attention[0][1] == known.device.attention[0][1] && c.nvlink_step == 5e-6,
          "a data sheet alone is enough, with the rest of an H100 %s", error.text);
    check(read_text(&c, "base ampere\n" SHEET, &error) && c.device.gemm_fraction == 0.87, "or of an A100");
    check(read_text(&c,
                    "base selene\nnodes 4 # few\nfabric torus:2x2\nalgorithm multitree\nsites 2\nsite_rate 10 Gbit/s\n",
                    &error) &&
              c.nodes == 4 && c.torus[0] == 1 && c.torus[1] == 2 && c.site_rate == 1.25e9 &&
              strcmp(c.algorithm, "multitree") == 0,
          "a torus of nodes, an algorithm, sites %s", error.text);
    check(read_text(&c, "cores 8\n", &error) && c.cores == 8 && c.node_gpus > 1000,
          "a machine of cores needs no data sheet");
    check(read_text(&c, "nodes 1\nnode_gpus 1\npeak 165 TFLOP/s\nsms 128\nmemory 24 GB\nhbm 1 TB/s\n", &error),
          "one device needs no links %s", error.text);
}

static void test_refused(void) {
    Cluster c;
    Error error = {""};
    static const struct {
        const char *text, *word; // word: that the error names
        int line;
    } wrong[] = {
        {"peek 3 TFLOP/s\n", "peek", 1},
        {"\n# comment\npeak\n", "peak", 3},
        {"peak 312\n", "TFLOP/s", 1},
        {"peak 312 TFLOPS\n", "312 TFLOPS", 1},
        {"peak NAN TFLOP/s\n", "NAN TFLOP/s", 1},
        {"peak 0x10 TFLOP/s\n", "0x10 TFLOP/s", 1},
        {"peak 1e400 TFLOP/s\n", "1e400", 1},
        {"peak -1 TFLOP/s\n", "out of range", 1},
        {"sms 8 GB\n", "GB", 1},
        {"sms 8 9 10\n", "more than", 1},
        {"sms 1.5\n", "whole", 1},
        {"gemm_fraction 1.2\n", "1.2", 1},
        {"sms 108\nsms 108\n", "line 1", 2},
        {"fabric\n", "fabric", 1},
        {"base nothing\n", "nothing", 1},
        {"base ../x\n", "../x", 1},
        {"sms 108\nbase selene\n", "base", 2},
        {"fabric mesh:2x2\n", "mesh:2x2", 1},
        {"base selene\nfabric torus:3x3\n", "nodes 560", 0},
        {"base dgx-a100\nfabric torus:3x3\nleaf_nodes 2\n", "fat tree", 0},
        {"base selene\nsites 3\n", "sites 3", 0},
        {"peak 312 TFLOP/s\n", "sms, memory, hbm", 0},
        {"a b c d e f g h i j k l m n o p q\n", "16 words", 1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char where[300];
        snprintf(where, sizeof where, "%s:%d: ", path, wrong[i].line);
        const bool ok = read_text(&c, wrong[i].text, &error);
        check(!ok && strstr(error.text, wrong[i].word) &&
                  (!wrong[i].line || strncmp(error.text, where, strlen(where)) == 0),
              "refused: %.200s", ok ? "it was not" : error.text);
    }
    const bool ok = read_text(&c, "bad\n", &error);
    int listed = 0;
    for (int i = 0; i < CLUSTER_FIELDS; i++) listed += strstr(error.text, cluster_fields[i].name) != NULL;
    check(!ok && listed == CLUSTER_FIELDS, "an unknown name: all %d are listed", listed);
    char longest[700];
    memset(longest, ' ', sizeof longest);
    write_bytes(path, longest, sizeof longest);
    check(!cluster_read(&c, path, &error) && strstr(error.text, ":1: longer"), "a line of 700 characters");
    write_bytes(path, "sms 1\0 1\nsms 2\n", 15);
    check(!cluster_read(&c, path, &error) && strstr(error.text, ":1: "), "a zero byte");
    check(!cluster_read(&c, "/no/such/file", &error) && strstr(error.text, "cannot open"), "no file");
    check(!cluster_read(&c, "dev", &error) && strstr(error.text, "cannot be read"), "a folder");
}

static void test_units(void) {
    static const char* const texts[] = {"5PFLOP/s", "312TFLOP/s", "1.5TB", "30Gbit/s", "1Tbit/s",
                                        "900us",    "65ms",       "2s",    "0.7"};
    static const Quantity quantities[] = {FLOPS, FLOPS, BYTES, BYTE_RATE, BYTE_RATE, SECONDS, SECONDS, SECONDS, NUMBER};
    static const double values[] = {5e15, 312e12, 1.5e12, 3.75e9, 1.25e11, 9e-4, 0.065, 2, 0.7};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char units[64];
        double value = 0;
        check(quantity_read(texts[i], NULL, quantities[i], &value, units) && value == values[i], "%s is %g", texts[i],
              value);
    }
}

int main(void) {
    process.name = "test_planner_cluster";
    make_temporary(path, sizeof path, "test_planner_cluster");
    test_rings();
    test_algorithms();
    test_files();
    test_refused();
    test_units();
    unlink(path);
    return test_end();
}
