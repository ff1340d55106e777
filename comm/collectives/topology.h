/*
topology.h: the network of the ranks of a collective: ranks, switches, and links with a bandwidth and a latency. It is
data, made from a name or read from a file; plans (multitree.h, ...) are built on it, and the simulator (planner/)
sends messages over it.

    ring:N        N ranks, each joined to its two neighbours
    mesh:AxB      A rows of B ranks, each joined to those around it; mesh:AxBxC in three dimensions
    torus:AxB     a mesh whose first and last rows and columns are joined too (a side of 2 has one link, not two)
    full:N        every rank joined to every other
    fattree:K,L   K-ary tree of L levels of switches: K^L ranks, L K^(L-1) switches, the same bandwidth at all levels
                  (Leiserson 1985; in this form Petrini, Vanneschi 1997, "k-ary n-trees"). L = 1: one switch
    bigraph:MxN   N switches of M ranks each; every one of the first N/2 switches is joined to every one of the others
                  (Dong et al. 2020, "EFLOPS: algorithm and system co-design for a high performance distributed training
                  platform", HPCA)
    FILE          anything else. Lines of words; # begins a comment:
                      ranks 4
                      switches 1                        these are numbered after the ranks: 4, 5, ...
                      link A B [bandwidth [latency]]    A and B are joined
                  Bandwidths are written 16GB/s, 200Mbit/s (GB, MB, KB, Gbit, Mbit, kbit), latencies 150ns, 20us, 1ms.
                  Two lines with the same ends are two links.

All links are directed: "joined" means two of them, one each way. The links out of a vertex have an order, its ports;
plans depend on it. On a grid it is the one of the authors of MultiTree: North, South, West, East (the first dimension
down and up, then the next); elsewhere ranks come before switches, then the order of lines.
*/
#pragma once

#include "../../util/base.h"

// The links of named networks, and the defaults in files: the paper's (Huang et al. 2021).
#define NETWORK_BANDWIDTH 16e9 // bytes/s
#define NETWORK_LATENCY 150e-9 // s
enum { NETWORK_LARGEST = 1 << 14, NETWORK_DIMENSIONS = 3 };

typedef struct {
    int from, to;
    double bandwidth, latency; // bytes/s; s from a bit's departure to its arrival
} Link;

typedef struct {
    char name[80];
    int ranks, vertices; // ranks 0 .. ranks - 1, then switches
    int links;
    Link* link;                    // (links), by `from`, then in the order of ports
    int* first;                    // (vertices + 1): link[first[v]] is v's first port
    int dimensions;                // a ring, mesh or torus has these; 0: something else
    int sides[NETWORK_DIMENSIONS]; // ranks along each, the last one running fastest
    bool wraps;                    // torus
    int reach;                     // switches on the way of a tree's edge, at most
    int capacity;                  // `link` has room for these
} Network;

static inline void network_free(Network* net) {
    free(net->link);
    free(net->first);
    memset(net, 0, sizeof *net);
}

static inline bool network_has_switches(const Network* net) { return net->vertices > net->ranks; }

// The first link from a to b, or -1.
static inline int network_link(const Network* net, int a, int b) {
    for (int i = net->first[a]; i < net->first[a + 1]; i++) {
        if (net->link[i].to == b) return i;
    }
    return -1;
}

// Whether any two vertices are joined twice.
static inline bool network_has_parallel_links(const Network* net) {
    for (int i = 0; i < net->links; i++) {
        if (network_link(net, net->link[i].from, net->link[i].to) != i) return true;
    }
    return false;
}

// The coordinate of rank r along a dimension.
static inline int network_coordinate(const Network* net, int r, int dimension) {
    for (int i = net->dimensions - 1; i > dimension; i--) r /= net->sides[i];
    return r % net->sides[dimension];
}

// The rank that is `by` places (negative: before) further along a dimension, wrapping around.
static inline int network_along(const Network* net, int r, int dimension, int by) {
    int stride = 1;
    for (int i = net->dimensions - 1; i > dimension; i--) stride *= net->sides[i];
    const int side = net->sides[dimension], at = network_coordinate(net, r, dimension);
    return r + stride * (((at + by) % side + side) % side - at);
}

// ---- Build ------------------------------------------------------------------------------------------------------

static inline void network_add(Network* net, int from, int to, double bandwidth, double latency) {
    if (net->links == net->capacity)
        net->link = (Link*)checked_grow(net->link, &net->capacity, 64, sizeof(Link), "the links of a network");
    const Link link = {from, to, bandwidth, latency};
    net->link[net->links++] = link;
}

static inline void network_join(Network* net, int a, int b) {
    network_add(net, a, b, NETWORK_BANDWIDTH, NETWORK_LATENCY);
    network_add(net, b, a, NETWORK_BANDWIDTH, NETWORK_LATENCY);
}

// Sorts the links into the order of ports: by `from`, links to ranks first, else as they were added.
static inline void network_sort(Network* net) {
    Link* sorted = (Link*)checked_malloc((size_t)net->links * sizeof(Link), "the links of a network");
    int* next = (int*)checked_calloc((size_t)net->vertices * 2 + 1, sizeof(int), "the links of a network");
    net->first = (int*)checked_calloc((size_t)net->vertices + 1, sizeof(int), "the links of a network");
    for (int i = 0; i < net->links; i++) next[2 * net->link[i].from + (net->link[i].to >= net->ranks) + 1]++;
    for (int i = 0; i < 2 * net->vertices; i++) next[i + 1] += next[i];
    for (int v = 0; v <= net->vertices; v++) net->first[v] = next[2 * v];
    for (int i = 0; i < net->links; i++)
        sorted[next[2 * net->link[i].from + (net->link[i].to >= net->ranks)]++] = net->link[i];
    free(net->link);
    free(next);
    net->link = sorted;
    net->capacity = net->links;
}

static inline bool network_size(Network* net, int64_t ranks, int64_t switches, Error* error) {
    if (ranks < 1 || ranks + switches > NETWORK_LARGEST)
        return fail(error,
                    "network %s: %lld ranks and %lld switches; at least 1 rank and at most %d of both are possible",
                    net->name, (long long)ranks, (long long)switches, NETWORK_LARGEST);
    net->ranks = (int)ranks;
    net->vertices = (int)(ranks + switches);
    net->reach = (int)max_i64(1, switches);
    return true;
}

// Builders. n: the numbers of the name; those that are not given are 1.
static inline bool network_build_grid(Network* net, const int n[3], Error* error) {
    if (!network_size(net, (int64_t)n[0] * n[1] * n[2], 0, error)) return false;
    memcpy(net->sides, n, sizeof net->sides);
    for (int r = 0; r < net->ranks; r++) {
        for (int i = 0; i < net->dimensions; i++) {
            for (int by = -1; by <= 1; by += 2) {
                const int at = network_coordinate(net, r, i) + by, side = net->sides[i];
                const bool around = at < 0 || at >= side;
                if (side == 1 || (around && (!net->wraps || side == 2))) continue;
                network_add(net, r, network_along(net, r, i, by), NETWORK_BANDWIDTH, NETWORK_LATENCY);
            }
        }
    }
    return true;
}

static inline bool network_build_full(Network* net, const int n[3], Error* error) {
    if (n[0] > 1024) return fail(error, "network %s: at most 1024 ranks can be joined to all others", net->name);
    if (!network_size(net, n[0], 0, error)) return false;
    for (int a = 0; a < net->ranks; a++) {
        for (int b = 0; b < net->ranks; b++) {
            if (a != b) network_add(net, a, b, NETWORK_BANDWIDTH, NETWORK_LATENCY);
        }
    }
    return true;
}

// Every switch has a number of L - 1 digits to base K. One of level l is joined to the switches of level l + 1 whose
// numbers differ at most in digit l. Ranks are joined to level 0.
static inline bool network_build_fattree(Network* net, const int n[3], Error* error) {
    const int k = n[0], levels = n[1];
    int64_t ranks = 1;
    if (k < 2) return fail(error, "network %s: K is 2 or more", net->name);
    for (int l = 0; l < levels && ranks <= NETWORK_LARGEST; l++) ranks *= k;
    if (!network_size(net, ranks, ranks / k * levels, error)) return false;
    const int per_level = net->ranks / k;
    for (int r = 0; r < net->ranks; r++) network_join(net, r, net->ranks + r / k);
    int stride = 1;
    for (int l = 0; l + 1 < levels; l++, stride *= k) {
        for (int w = 0; w < per_level; w++) {
            const int without = w - w / stride % k * stride, below = net->ranks + l * per_level + w;
            for (int digit = 0; digit < k; digit++)
                network_join(net, below, net->ranks + (l + 1) * per_level + without + digit * stride);
        }
    }
    net->reach = 2 * levels - 1;
    return true;
}

static inline bool network_build_bigraph(Network* net, const int n[3], Error* error) {
    const int per_switch = n[0], switches = n[1];
    if (switches % 2 != 0)
        return fail(error, "network %s: one half of the switches is joined to the other: their number is even",
                    net->name);
    if (!network_size(net, (int64_t)per_switch * switches, switches, error)) return false;
    for (int r = 0; r < net->ranks; r++) network_join(net, r, net->ranks + r / per_switch);
    for (int a = 0; a < switches / 2; a++) {
        for (int b = switches / 2; b < switches; b++) network_join(net, net->ranks + a, net->ranks + b);
    }
    net->reach = 2;
    return true;
}

typedef struct {
    const char *name, *form; // form: with its numbers, for messages
    char separator;
    int least, most; // how many numbers
    int grid;        // 1: a grid; 2: a grid that wraps around
    bool (*build)(Network*, const int n[3], Error*);
} NetworkKind;

static const NetworkKind network_kinds[] = {
    {"ring", "ring:N", 'x', 1, 1, 2, network_build_grid},
    {"mesh", "mesh:AxB or mesh:AxBxC", 'x', 2, 3, 1, network_build_grid},
    {"torus", "torus:AxB or torus:AxBxC", 'x', 2, 3, 2, network_build_grid},
    {"full", "full:N", 'x', 1, 1, 0, network_build_full},
    {"fattree", "fattree:K,L", ',', 2, 2, 0, network_build_fattree},
    {"bigraph", "bigraph:MxN", 'x', 2, 2, 0, network_build_bigraph},
};

// Reads up to three numbers of at least 1 between separators; returns their number, or 0 if the text is not of this
// form.
static inline int network_numbers(const char* text, char separator, int* numbers) {
    for (int n = 0; n < 3;) {
        char* end;
        const long x = strtol(text, &end, 10);
        if (end == text || x < 1 || x > NETWORK_LARGEST || *text < '0' || *text > '9') return 0;
        numbers[n++] = (int)x;
        if (*end == 0) return n;
        if (*end != separator) return 0;
        text = end + 1;
    }
    return 0;
}

// NULL: the name of a file.
static inline const NetworkKind* network_kind(const char* name) {
    const size_t length = strcspn(name, ":");
    for (size_t i = 0; i < sizeof network_kinds / sizeof *network_kinds; i++) {
        const NetworkKind* kind = &network_kinds[i];
        if (strlen(kind->name) == length && memcmp(kind->name, name, length) == 0) return kind;
    }
    return NULL;
}

static inline bool network_from_name(Network* net, const NetworkKind* kind, const char* name, Error* error) {
    int n[3] = {1, 1, 1};
    const char* colon = strchr(name, ':');
    const int numbers = colon ? network_numbers(colon + 1, kind->separator, n) : 0;
    if (numbers < kind->least || numbers > kind->most || (colon && numbers == 0))
        return fail(error, "network %s: write %s, numbers from 1 to %d", name, kind->form, NETWORK_LARGEST);
    net->dimensions = kind->grid ? numbers : 0;
    net->wraps = kind->grid == 2;
    if (!kind->build(net, n, error)) return false;
    network_sort(net);
    return true;
}

// ---- Read -------------------------------------------------------------------------------------------------------

// A number with one of the units; false if the text is something else, or not above `least`.
static inline bool network_quantity(const char* text, const char* const* units, const double* factors, int n,
                                    double least, double* value) {
    char* end;
    const double x = strtod(text, &end);
    for (int i = 0; i < n; i++) {
        if (end > text && strcmp(end, units[i]) == 0 && isfinite(x * factors[i]) && x * factors[i] >= least) {
            *value = x * factors[i];
            return true;
        }
    }
    return false;
}

// "16GB/s" in bytes/s, "150ns" in s.
static inline bool network_bandwidth(const char* text, double* bandwidth) {
    static const char* const units[] = {"GB/s", "MB/s", "KB/s", "Gbit/s", "Mbit/s", "kbit/s"};
    static const double factors[] = {1e9, 1e6, 1e3, 1e9 / 8, 1e6 / 8, 1e3 / 8};
    return network_quantity(text, units, factors, 6, 1, bandwidth);
}
static inline bool network_latency(const char* text, double* latency) {
    static const char* const units[] = {"ns", "us", "ms", "s"};
    static const double factors[] = {1e-9, 1e-6, 1e-3, 1};
    return network_quantity(text, units, factors, 4, 0, latency);
}

static inline bool network_word_number(const char* word, int least, int most, int* number) {
    char* end;
    const long x = word ? strtol(word, &end, 10) : 0;
    if (!word || end == word || *end || x < least || x > most) return false;
    *number = (int)x;
    return true;
}

// Reads one line of a file, without its comment.
static inline bool network_read_line(Network* net, char* line, int number, Error* error) {
    char *words[6] = {NULL}, *save = NULL;
    int n = 0;
    for (char* w = strtok_r(line, " \t\r\n", &save); w && n < 6; w = strtok_r(NULL, " \t\r\n", &save)) words[n++] = w;
    if (n == 0) return true;
    int a, b;
    if (strcmp(words[0], "ranks") == 0 || strcmp(words[0], "switches") == 0) {
        const bool ranks = words[0][0] == 'r';
        if (n != 2 || !network_word_number(words[1], ranks, NETWORK_LARGEST, &a) || net->links ||
            (ranks ? net->ranks > 0 : network_has_switches(net)))
            return fail(error, "%s, line %d: \"ranks N\" comes first and once, \"switches N\" may follow", net->name,
                        number);
        return ranks ? network_size(net, a, 0, error) : network_size(net, net->ranks, a, error);
    }
    if (strcmp(words[0], "link") != 0)
        return fail(error, "%s, line %d: \"%.40s\" is none of ranks, switches, link", net->name, number, words[0]);
    if (net->ranks == 0) return fail(error, "%s, line %d: \"ranks N\" has to come first", net->name, number);
    double bandwidth = NETWORK_BANDWIDTH, latency = NETWORK_LATENCY;
    if (n < 3 || n > 5 || !network_word_number(words[1], 0, net->vertices - 1, &a) ||
        !network_word_number(words[2], 0, net->vertices - 1, &b) || a == b ||
        (words[3] && !network_bandwidth(words[3], &bandwidth)) || (words[4] && !network_latency(words[4], &latency)))
        return fail(error,
                    "%s, line %d: write \"link A B [bandwidth [latency]]\", such as link 0 1 16GB/s 150ns; A and B are "
                    "two different numbers from 0 to %d",
                    net->name, number, net->vertices - 1);
    network_add(net, a, b, bandwidth, latency);
    network_add(net, b, a, bandwidth, latency);
    return net->links < (1 << 24) || fail(error, "%s: more than 2^24 links", net->name);
}

static inline bool network_from_file(Network* net, const char* path, Error* error) {
    FILE* file = fopen(path, "r");
    if (!file)
        return fail(error,
                    "network %s: neither a name (ring:N, mesh:AxB, torus:AxB, full:N, fattree:K,L, bigraph:MxN) nor a "
                    "file that can be read: %s",
                    path, strerror(errno));
    char line[512];
    bool ok = true;
    for (int number = 1; ok && fgets(line, sizeof line, file); number++) {
        if (!strchr(line, '\n') && !feof(file))
            ok = fail(error, "%s, line %d: longer than %zu characters", path, number, sizeof line - 2);
        line[strcspn(line, "#")] = 0;
        ok = ok && network_read_line(net, line, number, error);
    }
    if (ok && ferror(file)) ok = fail(error, "%s: cannot be read: %s", path, strerror(errno));
    fclose(file);
    if (ok && net->ranks == 0) ok = fail(error, "%s: no line \"ranks N\"", path);
    if (ok) network_sort(net);
    return ok;
}

// ---- Check ----------------------------------------------------------------------------------------------

// hops (vertices): the fewest links of a message between each vertex and vertex `to`; -1: there is no way. queue
// (vertices): scratch.
static inline void network_hops(const Network* net, int to, int* hops, int* queue) {
    int head = 0, tail = 0;
    for (int v = 0; v < net->vertices; v++) hops[v] = -1;
    hops[to] = 0;
    queue[tail++] = to;
    while (head < tail) {
        const int v = queue[head++];
        for (int i = net->first[v]; i < net->first[v + 1]; i++) {
            const int u = net->link[i].to;
            if (hops[u] >= 0) continue;
            hops[u] = hops[v] + 1;
            queue[tail++] = u;
        }
    }
}

// Whether every rank can send to every other one.
static inline bool network_check(const Network* net, Error* error) {
    int* hops = (int*)checked_malloc((size_t)net->vertices * 2 * sizeof(int), "a search in a network");
    bool ok = true;
    network_hops(net, 0, hops, hops + net->vertices);
    for (int r = 0; r < net->ranks && ok; r++) {
        if (hops[r] < 0) ok = fail(error, "network %s: no way leads from rank 0 to rank %d", net->name, r);
    }
    free(hops);
    return ok;
}

// A network from a name or a file (above), checked.
static inline bool network_build(Network* net, const char* name, Error* error) {
    memset(net, 0, sizeof *net);
    snprintf(net->name, sizeof net->name, "%.79s", name);
    const NetworkKind* kind = network_kind(name);
    const bool ok = kind ? network_from_name(net, kind, name, error) : network_from_file(net, name, error);
    if (ok && network_check(net, error)) return true;
    network_free(net);
    return false;
}

static inline double network_slowest(const Network* net) {
    double slowest = net->links ? net->link[0].bandwidth : NETWORK_BANDWIDTH;
    for (int i = 1; i < net->links; i++) slowest = fmin(slowest, net->link[i].bandwidth);
    return slowest;
}
