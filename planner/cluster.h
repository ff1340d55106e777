/*
cluster.h: describes the machines of a plan as numbers: a device, a node of devices joined by NVLink, nodes joined by a
fabric, and sites. op_cost.h and comm_cost.h compute times from them.

    cluster_find, cluster_names    clusters that are known by name
    cluster_read                   a cluster from a file

Theory: each number with its source.

    device    peak          FLOP/s of 16-bit products with float32 sums, dense. Data sheets often print twice that,
                            "with sparsity"
              peak_fp32     the same for float32 products, for software that computes in float32 (not in TF32)
              sms, hbm      multiprocessors, each of 1/sms of the peak; bytes/s of memory. Both from the data sheet
              memory_fraction the usable part of the memory: 0.95. The rest is for the driver's context, kernels' code,
                            and buffers of cuBLAS and NCCL; an estimate
              gemm_fraction the part of the peak that a long product of large matrices reaches in a burst. 0.87 on an
                            A100 (271 of 312 TFLOP/s), 0.80 on an H100 (794 of 989): the highest reported
              sustained     the part of that over a whole step, as clocks fall under the power limit. 0.92 on an A100: a
                            step is 5 to 8 % slower than bursts. 0.88 on Hopper: fitted, to the H100 rows of
                            published_runs.h that are for choosing; nanochat has 726 of 794 on one H100, 0.914. Nothing
                            published validates the fractions of B200 and GB200, which are Hopper's
              hbm_fraction  the part of the memory's rate that streaming kernels reach: 0.80, as LayerNorm in apex (81 %
                            forward, 75 % backward) and llm.c on an A100
              launch        seconds to start, fill and drain a kernel: 4 us; between 2 (queued) and 5
              tile_overhead seconds of a tile of a product outside its inner loop, to fill registers and write results:
                            2 us. It makes products with short sums slow: on an H100 600 TFLOP/s at K = 768 and 640
                            at 1600
              attention_*   the part of the peak that fused attention over long sequences reaches, by head size and
                            direction: on an H100 the best in the tables of FlashAttention-3 and cuDNN, on an A100 in
                            FlashAttention-2's charts
    node      nvlink        bytes/s of a device in one direction: half of the data sheets' figure. 0.78 of it is the bus
                            bandwidth of a ring (NCCL: 235 of 300 GB/s on a DGX A100, 367 of 450 on an H100)
              nvlink_step   seconds of one step of a ring: 5 us, the shape of nccl-tests' curves
              nic, nics     bytes/s of one adapter in one direction, and how many adapters a node has. 0.75 of it
                            remains when many nodes send at once: Narayanan et al. 2021 measured 892 GB/s over the cut
                            between two stages of the 1T model, 18.6 of 25 GB/s a pair of GPUs
              nic_step      10 us, as NCCL over InfiniBand usually has
              overlap_cost  a collective hidden under computing slows the latter down by this part of its own time: 0.2.
                            NCCL keeps 16 to 24 of 108 multiprocessors busy
    fabric    a fat tree: below a switch of the first level are leaf_nodes nodes, and its links upwards are
              oversubscription times narrower than those downwards. Or a torus of nodes, where `nic` is one link to one
              neighbour
    sites     in different places, each two joined by site_rate bytes/s in each direction; site_delay is one way

A file has one value a line, "name value [unit]"; # begins a comment. With "base NAME" as first line it has only the
differences from a known cluster (clusters/selene.txt shows all values). Otherwise data sheets are enough: values that
they do not have get the defaults above, of "generation ampere" or, by default, "generation hopper", and cluster.assumed
lists their names.
*/
#pragma once

#include "provenance.h"

#include <stddef.h>

typedef struct {
    double peak, peak_fp32, memory, hbm; // FLOP/s, bytes, bytes/s; peak_fp32 0: not known
    int sms;
    double memory_fraction, gemm_fraction, sustained, hbm_fraction, launch, tile_overhead;
    double attention[2][2]; // head size 64, 128; forward, backward
} Device;

enum { FABRIC_DIMENSIONS = 3, CORES_RANKS = 4096 }; // CORES_RANKS: most ranks of a machine without GPUs

typedef struct {
    char name[64];
    Device device;
    int node_gpus, nics, nodes; // nodes 0: as many as needed
    double nvlink, nvlink_fraction, nvlink_step;
    double nic, nic_fraction, nic_step;
    double overlap_cost;
    int torus[FABRIC_DIMENSIONS]; // sides, the last one running fastest; 0: a fat tree
    int leaf_nodes;
    double oversubscription;
    int sites;
    double site_rate, site_delay;
    char algorithm[40]; // of collectives (comm/collectives/collectives.h); "": a library's choice (ops.h)
    char assumed[400];  // names of inputs that have default values
    int cores;          // of a machine without GPUs, all ranks together, each a device without sms; 0: of GPUs
} Cluster;

// ---- Known clusters ---------------------------------------------------------------------------------------------

typedef enum { GENERATION_AMPERE, GENERATION_HOPPER, GENERATIONS } ChipGeneration;
static const char* const generation_names[GENERATIONS] = {"ampere", "hopper"};

// The numbers that data sheets do not have.
static inline Device device_of_generation(ChipGeneration generation) {
    static const double gemm[GENERATIONS] = {0.87, 0.80}, sustained[GENERATIONS] = {0.92, 0.88};
    static const double attention[GENERATIONS][2][2] = {{{0.58, 0.52}, {0.66, 0.60}}, {{0.46, 0.48}, {0.66, 0.63}}};
    Device d = {};
    d.gemm_fraction = gemm[generation];
    d.sustained = sustained[generation];
    d.hbm_fraction = 0.80;
    d.launch = 4e-6;
    d.tile_overhead = 2e-6;
    d.memory_fraction = 0.95;
    memcpy(d.attention, attention[generation], sizeof d.attention);
    return d;
}

static inline Cluster cluster_empty(const char* name, ChipGeneration generation) {
    Cluster c = {};
    snprintf(c.name, sizeof c.name, "%.63s", name);
    c.device = device_of_generation(generation);
    c.nvlink_fraction = 0.78;
    c.nvlink_step = 5e-6;
    c.nic_fraction = 0.75;
    c.nic_step = 10e-6;
    c.overlap_cost = 0.2;
    c.leaf_nodes = 1;
    c.oversubscription = 1;
    c.sites = 1;
    c.site_rate = 10e9;
    c.site_delay = 0.03;
    return c;
}

typedef struct {
    const char* name;
    ChipGeneration generation;
    double peak, peak_fp32;
    int sms;
    double memory, hbm, nvlink, nic;
    int node_gpus, nics, nodes;
    const char* what;
} KnownCluster;

// By NVIDIA's data sheets. NVLink: half of the figure for both directions. gb200: 180 PFLOP/s, 13.4 TB and 576 TB/s of
// a rack of 72.
static const KnownCluster known_clusters[] = {
    {"selene", GENERATION_AMPERE, 312e12, 19.5e12, 108, 80e9, 2.039e12, 300e9, 25e9, 8, 8, 560,
     "NVIDIA's, of DGX A100 80 GB: the machine of Narayanan et al. 2021"},
    {"dgx-a100", GENERATION_AMPERE, 312e12, 19.5e12, 108, 80e9, 2.039e12, 300e9, 25e9, 8, 8, 0, "A100 80 GB, 8 a node"},
    {"dgx-a100-40", GENERATION_AMPERE, 312e12, 19.5e12, 108, 40e9, 1.555e12, 300e9, 25e9, 8, 8, 0,
     "A100 40 GB, 8 a node"},
    {"jean-zay", GENERATION_AMPERE, 312e12, 19.5e12, 108, 80e9, 2.039e12, 300e9, 12.5e9, 8, 4, 52,
     "IDRIS's, A100 80 GB, 8 a node, 4 adapters of 100 Gbit/s: the machine of BLOOM"},
    {"dgx-h100", GENERATION_HOPPER, 989.4e12, 67e12, 132, 80e9, 3.35e12, 450e9, 50e9, 8, 8, 0, "H100 SXM, 8 a node"},
    {"dgx-h200", GENERATION_HOPPER, 989.4e12, 67e12, 132, 141e9, 4.8e12, 450e9, 50e9, 8, 8, 0, "H200, 8 a node"},
    {"dgx-b200", GENERATION_HOPPER, 2250e12, 75e12, 148, 180e9, 8e12, 900e9, 50e9, 8, 8, 0,
     "B200, 8 a node; data sheet, Hopper's fractions of it"},
    {"gb200", GENERATION_HOPPER, 2500e12, 80e12, 148, 186e9, 8e12, 900e9, 50e9, 72, 72, 0,
     "NVL72 racks; data sheet, Hopper's fractions of it"},
};
enum { KNOWN_CLUSTERS = sizeof known_clusters / sizeof known_clusters[0] };

// "selene, dgx-a100, ...", for messages.
static inline const char* cluster_names(char* text, size_t size) {
    text[0] = 0;
    for (int i = 0; i < KNOWN_CLUSTERS; i++) append_text(text, size, i ? ", %s" : "%s", known_clusters[i].name);
    return text;
}

static inline bool cluster_find(Cluster* c, const char* name) {
    for (int i = 0; i < KNOWN_CLUSTERS; i++) {
        const KnownCluster* k = &known_clusters[i];
        if (strcmp(k->name, name) != 0) continue;
        *c = cluster_empty(name, k->generation);
        c->device.peak = k->peak;
        c->device.peak_fp32 = k->peak_fp32;
        c->device.sms = k->sms;
        c->device.memory = k->memory;
        c->device.hbm = k->hbm;
        c->nvlink = k->nvlink;
        c->nic = k->nic;
        c->node_gpus = k->node_gpus;
        c->nics = k->nics;
        c->nodes = k->nodes;
        return true;
    }
    return false;
}

// The generation of a known cluster; -1: not known by name.
static inline int cluster_generation(const char* name) {
    for (int i = 0; i < KNOWN_CLUSTERS; i++) {
        if (strcmp(known_clusters[i].name, name) == 0) return (int)known_clusters[i].generation;
    }
    return -1;
}

// GPUs of all nodes; 0: as many as needed.
static inline int64_t cluster_gpus(const Cluster* c) { return (int64_t)c->nodes * c->node_gpus; }

// The sites that `ranks` ranks are in: the fewest with enough nodes; all if the number of nodes is not known.
static inline int cluster_sites_of(const Cluster* c, int ranks) {
    const int64_t site = cluster_gpus(c) / c->sites;
    return site ? (int)min_i64(c->sites, (ranks + site - 1) / site) : c->sites;
}

// ---- Files ------------------------------------------------------------------------------------------------------

typedef enum { LINE_SHEET, LINE_DEFAULT, LINE_OPTION } LineKind; // from data sheets; has a default; optional

typedef struct {
    const char* name;
    size_t at; // in a Cluster: an int if whole, else a double
    Quantity quantity;
    bool whole;
    double low, high; // both ends included
    LineKind kind;
} ClusterLine;

#define CLUSTER_AT(field) offsetof(Cluster, field)
static const ClusterLine cluster_lines[] = {
    {"peak", CLUSTER_AT(device.peak), FLOPS, false, 1e9, 1e18, LINE_SHEET},
    {"peak_fp32", CLUSTER_AT(device.peak_fp32), FLOPS, false, 1e9, 1e18, LINE_OPTION},
    {"sms", CLUSTER_AT(device.sms), NUMBER, true, 1, 1e5, LINE_SHEET},
    {"memory", CLUSTER_AT(device.memory), BYTES, false, 1e6, 1e15, LINE_SHEET},
    {"hbm", CLUSTER_AT(device.hbm), BYTE_RATE, false, 1e8, 1e16, LINE_SHEET},
    {"node_gpus", CLUSTER_AT(node_gpus), NUMBER, true, 1, 1e5, LINE_SHEET},
    {"nvlink", CLUSTER_AT(nvlink), BYTE_RATE, false, 1e6, 1e15, LINE_SHEET},
    {"nics", CLUSTER_AT(nics), NUMBER, true, 1, 1e5, LINE_SHEET},
    {"nic", CLUSTER_AT(nic), BYTE_RATE, false, 1e6, 1e15, LINE_SHEET},
    {"memory_fraction", CLUSTER_AT(device.memory_fraction), NUMBER, false, 0.1, 1, LINE_DEFAULT},
    {"gemm_fraction", CLUSTER_AT(device.gemm_fraction), NUMBER, false, 0.01, 1, LINE_DEFAULT},
    {"sustained", CLUSTER_AT(device.sustained), NUMBER, false, 0.01, 1, LINE_DEFAULT},
    {"hbm_fraction", CLUSTER_AT(device.hbm_fraction), NUMBER, false, 0.01, 1, LINE_DEFAULT},
    {"launch", CLUSTER_AT(device.launch), SECONDS, false, 0, 1, LINE_DEFAULT},
    {"tile_overhead", CLUSTER_AT(device.tile_overhead), SECONDS, false, 0, 1, LINE_DEFAULT},
    {"attention_64_forward", CLUSTER_AT(device.attention[0][0]), NUMBER, false, 0.001, 1, LINE_DEFAULT},
    {"attention_64_backward", CLUSTER_AT(device.attention[0][1]), NUMBER, false, 0.001, 1, LINE_DEFAULT},
    {"attention_128_forward", CLUSTER_AT(device.attention[1][0]), NUMBER, false, 0.001, 1, LINE_DEFAULT},
    {"attention_128_backward", CLUSTER_AT(device.attention[1][1]), NUMBER, false, 0.001, 1, LINE_DEFAULT},
    {"nvlink_fraction", CLUSTER_AT(nvlink_fraction), NUMBER, false, 0.01, 1, LINE_DEFAULT},
    {"nvlink_step", CLUSTER_AT(nvlink_step), SECONDS, false, 0, 1, LINE_DEFAULT},
    {"nic_fraction", CLUSTER_AT(nic_fraction), NUMBER, false, 0.01, 1, LINE_DEFAULT},
    {"nic_step", CLUSTER_AT(nic_step), SECONDS, false, 0, 1, LINE_DEFAULT},
    {"overlap_cost", CLUSTER_AT(overlap_cost), NUMBER, false, 0, 1, LINE_DEFAULT},
    {"nodes", CLUSTER_AT(nodes), NUMBER, true, 1, 1e7, LINE_OPTION},
    {"oversubscription", CLUSTER_AT(oversubscription), NUMBER, false, 1, 1000, LINE_OPTION},
    {"leaf_nodes", CLUSTER_AT(leaf_nodes), NUMBER, true, 1, 1e6, LINE_OPTION},
    {"sites", CLUSTER_AT(sites), NUMBER, true, 1, 1000, LINE_OPTION},
    {"site_rate", CLUSTER_AT(site_rate), BYTE_RATE, false, 1e3, 1e15, LINE_OPTION},
    {"site_delay", CLUSTER_AT(site_delay), SECONDS, false, 0, 10, LINE_OPTION},
    {"cores", CLUSTER_AT(cores), NUMBER, true, 1, 1e5, LINE_OPTION},
};
enum { CLUSTER_LINES = sizeof cluster_lines / sizeof cluster_lines[0] };
#undef CLUSTER_AT

// Lines with a word in place of a number.
static const char* const cluster_words[] = {"base", "name", "generation", "fabric", "algorithm"};
enum { WORD_BASE, WORD_NAME, WORD_GENERATION, WORD_FABRIC, WORD_ALGORITHM, CLUSTER_WORDS };

typedef struct {
    Cluster* cluster;
    const char* path;
    int number;                                    // of the current line
    int given[CLUSTER_LINES], word[CLUSTER_WORDS]; // the line that has it; 0: none yet
    ChipGeneration generation;
} ClusterReader;

static inline bool cluster_unknown(const char* name, Error* error) {
    char all[800] = "";
    for (int i = 0; i < CLUSTER_WORDS + CLUSTER_LINES; i++)
        append_text(all, sizeof all, i ? ", %s" : "%s",
                    i < CLUSTER_WORDS ? cluster_words[i] : cluster_lines[i - CLUSTER_WORDS].name);
    return fail(error, "\"%.40s\" is not known; there are %s", name, all);
}

// "torus:4x8", or "torus:4x4x4"; "fat-tree".
static inline bool fabric_read(Cluster* c, const char* word) {
    int sides[FABRIC_DIMENSIONS] = {0}, n = 0;
    memset(c->torus, 0, sizeof c->torus);
    if (strcmp(word, "fat-tree") == 0) return true;
    if (strncmp(word, "torus:", 6) != 0) return false;
    const char* at = word + 6;
    for (; n < FABRIC_DIMENSIONS; n++) {
        char* end;
        const long side = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : 0;
        if (side < 1 || side > 4096) return false;
        sides[n] = (int)side;
        at = end + 1;
        if (*end == 0) break;
        if (*end != 'x') return false;
    }
    if (n == FABRIC_DIMENSIONS) return false;
    for (int i = 0; i < FABRIC_DIMENSIONS; i++) { // sides fill the last places; 1 before them
        const int from = i - (FABRIC_DIMENSIONS - 1 - n);
        c->torus[i] = from < 0 ? 1 : sides[from];
    }
    return true;
}

static inline bool cluster_read_word(ClusterReader* r, int which, char** words, int n, Error* error) {
    Cluster* c = r->cluster;
    const char* name = cluster_words[which];
    char all[400];
    if (n != 2) return fail(error, "%s: takes one word", name);
    if (r->word[which]) return fail(error, "%s: given in line %d already", name, r->word[which]);
    const bool first = which == WORD_BASE || which == WORD_GENERATION;
    for (int i = 0; i < CLUSTER_LINES; i++) {
        if (first && r->given[i])
            return fail(error, "%s: has to come before %s, which it would change", name, cluster_lines[i].name);
    }
    for (int i = 0; i < CLUSTER_WORDS; i++) {
        if (which == WORD_BASE && r->word[i])
            return fail(error, "%s: has to come before %s, which it would change", name, cluster_words[i]);
    }
    r->word[which] = r->number;
    switch (which) {
    case WORD_BASE:
        if (!cluster_find(c, words[1]))
            return fail(error, "base: \"%.40s\" is not known; there are %s", words[1], cluster_names(all, sizeof all));
        return true;
    case WORD_GENERATION:
        if (r->word[WORD_BASE]) return fail(error, "base and generation are both given; drop one");
        for (int g = 0; g < GENERATIONS; g++) {
            if (strcmp(words[1], generation_names[g]) != 0) continue;
            c->device = device_of_generation((ChipGeneration)g);
            return true;
        }
        return fail(error, "generation: \"%.40s\" is not known; there are ampere, hopper (and later)", words[1]);
    case WORD_FABRIC:
        if (fabric_read(c, words[1])) return true;
        return fail(error, "fabric: \"%.40s\" is neither fat-tree nor, like torus:8x8, a torus", words[1]);
    case WORD_ALGORITHM: snprintf(c->algorithm, sizeof c->algorithm, "%s", words[1]); return true;
    default: snprintf(c->name, sizeof c->name, "%s", words[1]); return true;
    }
}

static inline bool cluster_read_number(ClusterReader* r, int which, char** words, int n, Error* error) {
    const ClusterLine* l = &cluster_lines[which];
    double value = 0;
    if (!value_read(l->name, words + 1, n - 1, l->quantity, l->whole, l->low, l->high, &value, error)) return false;
    if (r->given[which]) return fail(error, "%s: given in line %d already", l->name, r->given[which]);
    r->given[which] = r->number;
    if (l->whole)
        *(int*)((char*)r->cluster + l->at) = (int)value;
    else
        *(double*)((char*)r->cluster + l->at) = value;
    return true;
}

// LineReader of provenance.h; context: ClusterReader.
static inline bool cluster_read_line(void* context, int line, char** words, int n, Error* error) {
    ClusterReader* r = (ClusterReader*)context;
    r->number = line;
    for (int i = 0; i < CLUSTER_WORDS; i++) {
        if (strcmp(words[0], cluster_words[i]) == 0) return cluster_read_word(r, i, words, n, error);
    }
    for (int i = 0; i < CLUSTER_LINES; i++) {
        if (strcmp(words[0], cluster_lines[i].name) == 0) return cluster_read_number(r, i, words, n, error);
    }
    return cluster_unknown(words[0], error);
}

// Checks that nothing is missing, and names defaulted values in c->assumed. A machine without GPUs has no data sheet.
static inline bool cluster_complete(const ClusterReader* r, Error* error) {
    Cluster* c = r->cluster;
    char missing[200] = "";
    const int needed = r->word[WORD_BASE] || c->cores ? 0 : CLUSTER_LINES;
    for (int i = 0; i < needed; i++) {
        const ClusterLine* l = &cluster_lines[i];
        const bool network = strcmp(l->name, "nic") == 0 || strcmp(l->name, "nics") == 0;
        const bool link = strcmp(l->name, "nvlink") == 0;
        if (r->given[i] || l->kind == LINE_OPTION) continue;
        if (l->kind == LINE_SHEET && ((network && c->nodes == 1) || (link && c->node_gpus == 1))) continue;
        char* list = l->kind == LINE_SHEET ? missing : c->assumed;
        const size_t size = l->kind == LINE_SHEET ? sizeof missing : sizeof c->assumed, used = strlen(list);
        snprintf(list + used, size - used, "%s%s", used ? ", " : "", l->name);
    }
    for (int i = 0; i < CLUSTER_LINES && c->torus[0]; i++) {
        const char* name = cluster_lines[i].name;
        if (r->given[i] && (strcmp(name, "oversubscription") == 0 || strcmp(name, "leaf_nodes") == 0))
            return fail(error, "%s:%d: %s belongs to a fat tree, and a torus has none", r->path, r->given[i], name);
    }
    if (*missing) return fail(error, "%s: without \"base NAME\" these lines are needed too: %s", r->path, missing);
    if (c->cores && c->device.peak_fp32 <= 0) c->device.peak_fp32 = c->device.peak; // if they have one peak
    if (c->cores) c->node_gpus = CORES_RANKS;                                       // all ranks are on the machine
    if (c->nics == 0) c->nics = 1;                                                  // unused
    if (c->nic <= 0) c->nic = c->nvlink > 0 ? c->nvlink : 1e9;
    if (c->nvlink <= 0) c->nvlink = c->nic;
    int64_t places = 1;
    for (int i = 0; i < FABRIC_DIMENSIONS && c->torus[0]; i++) places *= c->torus[i];
    if (c->torus[0] && c->nodes && places != c->nodes)
        return fail(error, "%s: nodes %d, but the torus has places for %lld", r->path, c->nodes, (long long)places);
    if (places > 10000000) return fail(error, "%s: a torus of %lld places", r->path, (long long)places);
    if (c->torus[0]) c->nodes = (int)places;
    if (c->sites > 1 && c->nodes % c->sites != 0)
        return fail(error, "%s: nodes %d are not divided evenly into sites %d", r->path, c->nodes, c->sites);
    return true;
}

static inline bool cluster_read(Cluster* c, const char* path, Error* error) {
    ClusterReader r = {};
    r.cluster = c;
    r.path = path;
    const char* slash = strrchr(path, '/');
    *c = cluster_empty(slash ? slash + 1 : path, GENERATION_HOPPER);
    return lines_read(path, cluster_read_line, &r, error) && cluster_complete(&r, error);
}

// A cluster by its name, or from a file.
static inline bool cluster_open(Cluster* c, const char* what, Error* error) {
    char names[400];
    if (cluster_find(c, what)) return true;
    if (!strchr(what, '/') && access(what, F_OK) != 0)
        return fail(error, "--cluster %s is neither a file nor one of %s", what, cluster_names(names, sizeof names));
    return cluster_read(c, what, error);
}
