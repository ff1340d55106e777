/*
cluster.h: describes the machines of a plan as numbers: a device, a node of devices joined by NVLink, nodes joined by a
fabric, and sites. op_cost.h and comm_cost.h compute times from them.

    cluster_open    a known cluster, the file clusters/NAME.txt, or one from another file
    planner_path    the path of a file of this folder

Theory: what the numbers are. Their values, each with its source, are in clusters/.

    device    peak          FLOP/s of 16-bit products with float32 sums, dense. Data sheets often print twice that,
                            "with sparsity"
              peak_fp32     the same for float32 products, for software that computes in float32 (not in TF32)
              sms, hbm      multiprocessors, each of 1/sms of the peak; bytes/s of memory
              memory_fraction the usable part of the memory. The rest is for the driver's context, kernels' code, and
                            buffers of cuBLAS and NCCL
              gemm_fraction the part of the peak that a long product of large matrices reaches in a burst
              sustained     the part of that over a whole step, as clocks fall under the power limit
              hbm_fraction  the part of the memory's rate that streaming kernels reach
              launch        seconds to start, fill and drain a kernel
              tile_overhead seconds of a tile of a product outside its inner loop, to fill registers and write results.
                            It makes products with short sums slow: on an H100 600 TFLOP/s at K = 768 and 640 at 1600
              attention_*   the part of the peak that fused attention over long sequences reaches, by head size and
                            direction
    node      nvlink        bytes/s of a device in one direction: half of the data sheets' figure; nvlink_fraction of it
                            is the bus bandwidth of a ring, and nvlink_step are the seconds of one of its steps
              host_gpus     GPUs of a host, which Slurm calls a node, where a node of NVLink has several (NVL72)
              nic, nics     bytes/s of one adapter in one direction, and how many adapters a node has; nic_fraction of
                            it remains when many nodes send at once
              overlap_cost  a collective hidden under computing slows the latter down by this part of its own time
    fabric    a fat tree: below a switch of the first level are leaf_nodes nodes, and its links upwards are
              oversubscription times narrower than those downwards. Or a torus of nodes, where `nic` is one link to one
              neighbour
    sites     in different places, each two joined by site_rate bytes/s in each direction; site_delay is one way

A line of a file is "name value [unit]"; # begins a comment, which says where the number comes from, or "assumed". With
"base NAME" as first line a file has only the differences from clusters/NAME.txt. Otherwise the figures of a data sheet
are enough, peak to nic below: the others begin with those of an H100, clusters/hopper.txt.
*/
#pragma once

#include "../util/base.h"

#include <glob.h>
#include <limits.h>
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
    int host_gpus;              // a host has these, what Slurm calls a node; 0: node_gpus
    double nvlink, nvlink_fraction, nvlink_step;
    double nic, nic_fraction, nic_step;
    double overlap_cost;
    int torus[FABRIC_DIMENSIONS]; // sides, the last one running fastest; 0: a fat tree
    int leaf_nodes;
    double oversubscription;
    int sites;
    double site_rate, site_delay;
    char algorithm[40]; // for collectives (comm/collectives/collectives.h); "": a library's choice (ops.h)
    int cores;          // a machine without GPUs has these, each a device without sms; 0: GPUs
} Cluster;

// GPUs of all nodes; 0: as many as needed.
static inline int64_t cluster_gpus(const Cluster* c) { return (int64_t)c->nodes * c->node_gpus; }

static inline int cluster_host(const Cluster* c) { return c->host_gpus ? c->host_gpus : c->node_gpus; }

// The sites that `ranks` ranks are in: the fewest with enough nodes; all if the number of nodes is not known.
static inline int cluster_sites_of(const Cluster* c, int ranks) {
    const int64_t site = cluster_gpus(c) / c->sites;
    return site ? (int)min_i64(c->sites, (ranks + site - 1) / site) : c->sites;
}

// ---- Numbers with units -----------------------------------------------------------------------------------------

typedef enum { NUMBER, INTEGER, FLOPS, BYTES, BYTE_RATE, SECONDS } Quantity;

static const struct {
    Quantity quantity;
    const char* name;
    double times, over; // value = number * times / over, which is exact where one factor would not be
} units_known[] = {
    {NUMBER, "", 1, 1},
    {INTEGER, "", 1, 1},
    {FLOPS, "TFLOP/s", 1e12, 1},
    {FLOPS, "PFLOP/s", 1e15, 1},
    {BYTES, "B", 1, 1},
    {BYTES, "GB", 1e9, 1},
    {BYTES, "GiB", 1 << 30, 1},
    {BYTES, "TB", 1e12, 1},
    {BYTE_RATE, "GB/s", 1e9, 1},
    {BYTE_RATE, "TB/s", 1e12, 1},
    {SECONDS, "s", 1, 1},
    {BYTE_RATE, "Gbit/s", 1e9, 8},
    {BYTE_RATE, "Tbit/s", 1e12, 8},
    {SECONDS, "ms", 1, 1e3},
    {SECONDS, "us", 1, 1e6},
};

// Reads "312TFLOP/s", or "312" with the unit as a separate word. Decimal digits only: no hexadecimal, inf or nan.
// units: those that it may have, for messages.
static inline bool quantity_read(const char* word, const char* unit, Quantity quantity, double* value, char units[64]) {
    char* end;
    const double x = strtod(word, &end);
    const size_t number = (size_t)(end - word);
    bool known = false;
    units[0] = 0;
    for (size_t i = 0; i < sizeof units_known / sizeof *units_known; i++) {
        const char* name = units_known[i].name;
        if (units_known[i].quantity != quantity) continue;
        if (*name) append_text(units, 64, *units ? ", %s" : " with one of the units %s", name);
        if (strcmp(name, unit ? unit : end) != 0) continue;
        *value = x * units_known[i].times / units_known[i].over;
        known = isfinite(*value);
    }
    return known && number > 0 && strspn(word, "0123456789.eE+-") >= number && !(unit && *end);
}

// ---- Files ------------------------------------------------------------------------------------------------------

typedef struct {
    const char* name;
    size_t at;         // in a Cluster: a double, or an int
    Quantity quantity; // INTEGER: of an int
    double low, high;  // both included
} Field;

// The first fields are those of data sheets, which have to be given; links only where there is something to join.
enum { SHEET_NVLINK = 5, SHEET_NICS, CLUSTER_SHEET = 8 };

#define AT(field) #field, offsetof(Cluster, field)
#define OF(field) #field, offsetof(Cluster, device.field)
#define ATTENTION(size, direction) offsetof(Cluster, device.attention[size][direction])
static const Field cluster_fields[] = {
    {OF(peak), FLOPS, 1e9, 1e18},
    {OF(sms), INTEGER, 1, 1e5},
    {OF(memory), BYTES, 1e6, 1e15},
    {OF(hbm), BYTE_RATE, 1e8, 1e16},
    {AT(node_gpus), INTEGER, 1, 1e5},
    {AT(nvlink), BYTE_RATE, 1e6, 1e15},
    {AT(nics), INTEGER, 1, 1e5},
    {AT(nic), BYTE_RATE, 1e6, 1e15},
    {OF(peak_fp32), FLOPS, 1e9, 1e18},
    {OF(memory_fraction), NUMBER, 0.1, 1},
    {OF(gemm_fraction), NUMBER, 0.01, 1},
    {OF(sustained), NUMBER, 0.01, 1},
    {OF(hbm_fraction), NUMBER, 0.01, 1},
    {OF(launch), SECONDS, 0, 1},
    {OF(tile_overhead), SECONDS, 0, 1},
    {"attention_64_forward", ATTENTION(0, 0), NUMBER, 0.001, 1},
    {"attention_64_backward", ATTENTION(0, 1), NUMBER, 0.001, 1},
    {"attention_128_forward", ATTENTION(1, 0), NUMBER, 0.001, 1},
    {"attention_128_backward", ATTENTION(1, 1), NUMBER, 0.001, 1},
    {AT(nvlink_fraction), NUMBER, 0.01, 1},
    {AT(nvlink_step), SECONDS, 0, 1},
    {AT(nic_fraction), NUMBER, 0.01, 1},
    {AT(nic_step), SECONDS, 0, 1},
    {AT(overlap_cost), NUMBER, 0, 1},
    {AT(nodes), INTEGER, 1, 1e7},
    {AT(oversubscription), NUMBER, 1, 1000},
    {AT(leaf_nodes), INTEGER, 1, 1e6},
    {AT(sites), INTEGER, 1, 1000},
    {AT(site_rate), BYTE_RATE, 1e3, 1e15},
    {AT(site_delay), SECONDS, 0, 10},
    {AT(cores), INTEGER, 1, 1e5},
    {AT(host_gpus), INTEGER, 1, 1e5},
};
enum { CLUSTER_FIELDS = sizeof cluster_fields / sizeof cluster_fields[0], LINE_WORDS = 16 };
#undef AT
#undef OF
#undef ATTENTION

// Reads a field from the words after its name.
static inline bool field_read(const Field* f, Cluster* c, char** words, int n, Error* error) {
    void* at = (char*)c + f->at;
    char units[64];
    double value = 0;
    if (n > 2) return fail(error, "%s: \"%.40s\" is more than it takes", f->name, words[2]);
    if (n < 1 || !quantity_read(words[0], n > 1 ? words[1] : NULL, f->quantity, &value, units))
        return fail(error, "%s: \"%.40s%s%.40s\" is not a number%s", f->name, n < 1 ? "" : words[0], n < 2 ? "" : " ",
                    n < 2 ? "" : words[1], n > 0 && *units ? units : " alone");
    if (f->quantity == INTEGER && value != floor(value))
        return fail(error, "%s: \"%.40s\" is not a whole number", f->name, words[0]);
    if (value < f->low || value > f->high)
        return fail(error, "%s: %g is out of range, %g to %g", f->name, value, f->low, f->high);
    if (f->quantity == INTEGER)
        *(int*)at = (int)value;
    else
        *(double*)at = value;
    return true;
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

// The path of a file of this folder, as clusters/selene.txt: beside the program or above it, in share/ of where it is
// installed, or where this folder was when it was compiled. False: there is none.
static inline bool planner_path(char path[PATH_MAX], const char* name) {
    static const char* const places[] = {"planner", "share/threefold"};
    char folder[PATH_MAX - 300];
    const ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[n > 0 ? n : 0] = 0;
    for (char* slash = strrchr(folder, '/'); slash; slash = strrchr(folder, '/')) {
        *slash = 0;
        for (int i = 0; i < 2; i++) {
            snprintf(path, PATH_MAX, "%s/%s/%.200s", folder, places[i], name);
            if (access(path, R_OK) == 0) return true;
        }
    }
    snprintf(path, PATH_MAX, "%.*s%.200s", (int)(strrchr(__FILE__, '/') + 1 - __FILE__), __FILE__, name);
    return access(path, R_OK) == 0;
}

// The path of clusters/NAME.txt. False: there is none.
static inline bool cluster_path(char path[PATH_MAX], const char* name) {
    char file[100];
    snprintf(file, sizeof file, "clusters/%.80s.txt", name);
    return !strchr(name, '/') && planner_path(path, file);
}

// A file that is read.
typedef struct {
    Cluster* c;
    int depth, lines;          // bases above this file; its lines with words so far
    int given[CLUSTER_FIELDS]; // the line that has a field; 0: none yet
} ClusterFile;

static inline bool cluster_read_base(Cluster* c, const char* name, int depth, Error* error);

static inline bool cluster_read_words(ClusterFile* file, char** words, int n, int line, Error* error) {
    const bool base = strcmp(words[0], "base") == 0, fabric = strcmp(words[0], "fabric") == 0;
    char all[900] = "base, fabric, algorithm";
    file->lines++;
    if (base && n == 2 && file->lines == 1) return cluster_read_base(file->c, words[1], file->depth + 1, error);
    if (base) return fail(error, "base: has to be the first line, with one name");
    if (fabric || strcmp(words[0], "algorithm") == 0) {
        if (n != 2) return fail(error, "%s: takes one word", words[0]);
        if (!fabric) snprintf(file->c->algorithm, sizeof file->c->algorithm, "%.39s", words[1]);
        return !fabric || fabric_read(file->c, words[1]) ||
               fail(error, "fabric: \"%.40s\" is neither fat-tree nor, like torus:8x8, a torus", words[1]);
    }
    for (int i = 0; i < CLUSTER_FIELDS; i++) {
        append_text(all, sizeof all, ", %s", cluster_fields[i].name);
        if (strcmp(words[0], cluster_fields[i].name) != 0) continue;
        if (file->given[i]) return fail(error, "%s: given in line %d already", words[0], file->given[i]);
        file->given[i] = line;
        return field_read(&cluster_fields[i], file->c, words + 1, n - 1, error);
    }
    return fail(error, "\"%.40s\" is not known; there are %s", words[0], all);
}

static inline bool cluster_read_line(ClusterFile* file, char* text, bool whole, int line, Error* error) {
    char *words[LINE_WORDS], *save = NULL;
    int n = 0;
    if (!whole) return fail(error, "longer than %zu characters, or with a zero byte", strlen(text) - 1);
    text[strcspn(text, "#")] = 0;
    for (char* w = strtok_r(text, " \t\r\n", &save); w; w = strtok_r(NULL, " \t\r\n", &save)) {
        if (n == LINE_WORDS) return fail(error, "more than %d words", LINE_WORDS);
        words[n++] = w;
    }
    return n == 0 || cluster_read_words(file, words, n, line, error);
}

static inline bool cluster_read_lines(Cluster* c, const char* path, int depth, Error* error) {
    ClusterFile lines = {c, depth, 0, {0}};
    FILE* file = fopen(path, "r");
    if (!file) return fail(error, "%s: cannot open: %s", path, strerror(errno));
    char text[512];
    Error why;
    bool ok = true;
    for (int line = 1; ok && fgets(text, sizeof text, file); line++) {
        ok = cluster_read_line(&lines, text, strchr(text, '\n') || feof(file), line, &why);
        if (!ok) fail(error, "%s:%d: %.900s", path, line, why.text);
    }
    if (ok && ferror(file)) ok = fail(error, "%s: cannot be read: %s", path, strerror(errno));
    fclose(file);
    return ok;
}

static inline bool cluster_read_base(Cluster* c, const char* name, int depth, Error* error) {
    char path[PATH_MAX];
    if (depth > 4 || !cluster_path(path, name))
        return fail(error, "base: \"%.40s\" is not known; what there is, is in planner/clusters", name);
    return cluster_read_lines(c, path, depth, error);
}

static inline bool is_missing(const Cluster* c, int field) {
    const void* at = (const char*)c + cluster_fields[field].at;
    return cluster_fields[field].quantity == INTEGER ? *(const int*)at == 0 : *(const double*)at == 0;
}

// Checks that nothing is missing. A machine without GPUs has no data sheet.
static inline bool cluster_complete(Cluster* c, const char* path, Error* error) {
    char missing[200] = "";
    const int needed = c->cores ? 0 : CLUSTER_SHEET;
    for (int i = 0; i < needed; i++) {
        const bool unused = i >= SHEET_NICS ? c->nodes == 1 : i == SHEET_NVLINK && c->node_gpus == 1;
        if (is_missing(c, i) && !unused)
            append_text(missing, sizeof missing, *missing ? ", %s" : "%s", cluster_fields[i].name);
    }
    if (*missing)
        return fail(error,
                    "%s: these lines are missing: %s; \"base NAME\" of ./plan --clusters has them, and \"nodes 1\" "
                    "needs no nic",
                    path, missing);
    if (c->torus[0] && (c->oversubscription != 1 || c->leaf_nodes != 1))
        return fail(error, "%s: oversubscription and leaf_nodes belong to a fat tree, and a torus has none", path);
    if (c->cores && c->device.peak_fp32 <= 0) c->device.peak_fp32 = c->device.peak; // if they have one peak
    if (c->cores) c->node_gpus = CORES_RANKS;                                       // all ranks are on the machine
    if (c->nics == 0) c->nics = 1;                                                  // unused
    if (c->nic <= 0) c->nic = c->nvlink > 0 ? c->nvlink : 1e9;
    if (c->nvlink <= 0) c->nvlink = c->nic;
    int64_t places = 1;
    for (int i = 0; i < FABRIC_DIMENSIONS && c->torus[0]; i++) places *= c->torus[i];
    if (c->torus[0] && c->nodes && places != c->nodes)
        return fail(error, "%s: nodes %d, but the torus has places for %lld", path, c->nodes, (long long)places);
    if (places > 10000000) return fail(error, "%s: a torus of %lld places", path, (long long)places);
    if (c->torus[0]) c->nodes = (int)places;
    if (c->sites > 1 && c->nodes % c->sites != 0)
        return fail(error, "%s: nodes %d are not divided evenly into sites %d", path, c->nodes, c->sites);
    return true;
}

// Reads a file, whose name is the cluster's.
static inline bool cluster_read(Cluster* c, const char* path, Error* error) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *end = strstr(name, ".txt");
    memset(c, 0, sizeof *c);
    snprintf(c->name, sizeof c->name, "%.*s", (int)(end ? min_i64(63, end - name) : 63), name);
    return cluster_read_base(c, "hopper", 1, error) && cluster_read_lines(c, path, 0, error) &&
           cluster_complete(c, path, error);
}

// ---- Known clusters ---------------------------------------------------------------------------------------------

// "dgx-a100, dgx-a100-40, ...", for messages: all files but those that others begin with, and those of datacenters.
static inline const char* cluster_names(char* text, size_t size) {
    char pattern[PATH_MAX + 8];
    glob_t files = {};
    Cluster c;
    Error error;
    text[0] = 0;
    planner_path(pattern, "clusters");
    strcat(pattern, "/*.txt");
    glob(pattern, 0, NULL, &files);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        if (cluster_read(&c, files.gl_pathv[i], &error)) append_text(text, size, *text ? ", %s" : "%s", c.name);
    }
    globfree(&files);
    if (!*text) append_text(text, size, "those in planner/clusters, which is not beside this program");
    return text;
}

// Each with the first line of its file.
static inline void clusters_print(FILE* out) {
    char names[2000], path[PATH_MAX], line[200], *save = NULL;
    cluster_names(names, sizeof names);
    for (char* name = strtok_r(names, ", ", &save); name; name = strtok_r(NULL, ", ", &save)) {
        FILE* file = cluster_path(path, name) ? fopen(path, "r") : NULL;
        if (file && fgets(line, sizeof line, file)) fprintf(out, "%-12s %s", name, line + strspn(line, "# "));
        if (file) fclose(file);
    }
}

// A cluster by its name, or from a file.
static inline bool cluster_open(Cluster* c, const char* what, Error* error) {
    char names[400], path[PATH_MAX];
    if (cluster_path(path, what)) return cluster_read(c, path, error);
    if (!strchr(what, '/') && access(what, F_OK) != 0)
        return fail(error, "--cluster %s is neither a file nor one of %s", what, cluster_names(names, sizeof names));
    return cluster_read(c, what, error);
}
