/*
trainer/health.h: is the run well? A run of months meets what one of hours does not: a chip that computes wrong without a word, a bit
that flips in memory, a gradient that is no number. Three questions, each answered by pure functions of a few numbers of every
rank; train_gpt.cu brings the numbers.

Do copies agree? Ranks hold copies of parameters, which stay the same bits without ever being compared: all sums come to the same
bits on every rank, and each makes the same update of them. So bits that differ are wrong somewhere ("silent data
corruption": Dixit et al. 2021, "Silent data corruptions at scale"; Gemini's and Llama 3's authors met it in training).
Every --check-replicas-every steps, and before every checkpoint, each rank adds up a checksum of each slice that it holds (util/checksum.h), as it lies
in the device's memory, and tells the other ranks four numbers: the sums over the slices that are held

    by replicas               each cut of a matrix: by the data ranks of the same (t, p)
    in part                   a key/value head: also by the tensor ranks that share it
    by all tensor ranks       norms, positions, biases behind sums: by all data and tensor ranks of a stage
    at both ends              a matrix that is embedding and head: by the first and the last stage

All ranks then have all numbers, and come to the same end. If they differ, tensors are gone through one by one, and each that
differs is named, with the ranks that differ from most others; where no value has a majority, with all. Every
parameter is held by d ranks at least, so with d = 1 only norms and their like are watched. The optimizer's moments are not
compared: a wrong one makes a wrong update, and that is seen. Not so with ZeRO: one rank owns a weight and its moments, updates
for all, and the others take over what it has. What changes on the owner between two updates is in all copies after the
next one; what changes on another rank is overwritten then, after it was used for a step.

Where does a NaN come from? A gradient that is no number is found in the sum over all ranks (run_grad_norm), where nobody can tell
any more whose it was. But as long as nothing was updated the step can be computed again, to the same bits, and this time
looked at (Probe): weights; what each rank has computed itself, before it is added to what others have; its own gradients. Each rank
remembers the first place, in the order of the computation, where something was not finite: a NaN spreads, but only to later
places. The first place of each replica is told, with the ranks that had it there. If there is none, the numbers were
right the second time: then the machine is suspect, and not the mathematics.

What is unusual? See outliers, below.
*/
#ifndef HEALTH_H
#define HEALTH_H

#include "../parallel/process_groups.h"
#include "../kernels/kernels.h"
#include "../model.h"
#include "../parallel.h"

// The place of another rank in the same mesh.
static inline Mesh mesh_at(const Mesh* mesh, int rank) {
    Mesh at = *mesh;
    at.tensor = rank % mesh->t, at.data = rank / mesh->t % mesh->d, at.pipeline = rank / (mesh->t * mesh->d);
    return at;
}

// The mesh of this rank's site alone. Rank i of it is rank site_rank(mesh, i) of the whole.
static inline Mesh mesh_of_site(const Mesh* mesh) {
    Mesh site = *mesh;
    site.d = mesh_site_size(mesh), site.data = mesh_rank_in_site(mesh), site.sites = 1;
    return site;
}

static inline int site_rank(const Mesh* mesh, int i) {
    const Mesh site = mesh_of_site(mesh);
    Mesh at = mesh_at(&site, i);
    at.d = mesh->d, at.data += site.d * mesh_site(mesh);
    return mesh_rank(&at);
}

// "rank 5 (t 1, p 0, d 1)", "ranks 0 (...), 5 (...) and 3 more": those where `which` is true, of the ranks of the mesh, or
// (far = false) of this rank's site.
static inline void ranks_text(char* text, size_t size, const Mesh* mesh, bool far, const bool* which) {
    enum { TOLD = 4 };
    const Mesh site = mesh_of_site(mesh), *these = far ? mesh : &site;
    int n = 0, told = 0;
    for (int i = 0; i < mesh_size(these); i++) n += which[i];
    snprintf(text, size, n == 1 ? "rank" : "ranks");
    for (int i = 0; i < mesh_size(these) && told < TOLD; i++) {
        const int rank = far ? i : site_rank(mesh, i);
        const Mesh at = mesh_at(mesh, rank);
        if (!which[i]) continue;
        append_text(text, size, "%s %d (t %d, p %d, d %d)",
                    told == 0       ? ""
                    : told + 1 == n ? " and"
                                    : ",",
                    rank, at.tensor, at.pipeline, at.data);
        told++;
    }
    if (n > TOLD) append_text(text, size, " and %d more", n - TOLD);
}

// ----------------------------------------------------------------------------------------------------------------
// Do copies agree? Of the ranks of a mesh, whole or of one site.

typedef enum { HELD_BY_REPLICAS, HELD_IN_PART, HELD_BY_ALL_TENSOR, HELD_AT_BOTH_ENDS, HOLDERS } ReplicaGroup;

static inline ReplicaGroup tensor_holders(const Tensor* tensor, const Mesh* mesh, const ModelConfig* m) {
    if (tensor->kind == WTE && m->tied && mesh->p > 1 && !mesh->folded) return HELD_AT_BOTH_ENDS;
    if (tensor->parallel == REPLICATED) return HELD_BY_ALL_TENSOR;
    return is_key_or_value(tensor) && mesh_tp_cuts(mesh) > m->NKV ? HELD_IN_PART : HELD_BY_REPLICAS;
}

// A number below t p, the same on all ranks that hold the same slices of that kind. NKV: key/value heads of the model.
static inline int holders_color(ReplicaGroup holders, const Mesh* at, int NKV) {
    const int sharing = mesh_tp_cuts(at) > NKV ? mesh_tp_cuts(at) / NKV : 1;
    const int stage = holders == HELD_AT_BOTH_ENDS && at->pipeline == at->p - 1 ? 0 : at->pipeline;
    const int tensor = holders == HELD_BY_ALL_TENSOR ? 0 : holders == HELD_IN_PART ? at->tensor / sharing : at->tensor;
    return tensor + at->t * stage;
}

// Of n ranks that ought to have the same number (number[rank stride]): those that have another one than most of the others; all,
// where no number is that of more ranks than any other is.
static inline void differ_from_most(bool* wrong, const int64_t* number, int stride, const int* rank, int n) {
    int64_t most = 0;
    int votes = 0;
    bool alone = false; // nothing else has as many votes
    for (int i = 0; i < n; i++) {
        const int64_t mine = number[(int64_t)rank[i] * stride];
        int same = 0;
        for (int j = 0; j < n; j++) same += number[(int64_t)rank[j] * stride] == mine;
        if (same == votes && mine != most) alone = false;
        if (same > votes) most = mine, votes = same, alone = true;
    }
    for (int i = 0; i < n; i++) wrong[rank[i]] = !alone || number[(int64_t)rank[i] * stride] != most;
}

// number: `stride` of them for each rank, the first of slices of this kind. Whether some of them differ that ought to be the
// same; then wrong (ranks) says whose, of the first ranks where that is so, and *copies how many ought to be the same there.
static inline bool copies_differ(bool* wrong, int* copies, const int64_t* number, int stride, ReplicaGroup holders,
                                 const Mesh* mesh, int NKV) {
    const int ranks = mesh_size(mesh), colors = mesh->t * mesh->p;
    int* first = (int*)checked_malloc((size_t)(colors + ranks) * sizeof(int), "the ranks");
    int *same = first + colors, found = -1, n = 0;
    for (int i = 0; i < colors; i++) first[i] = -1;
    for (int rank = 0; rank < ranks && found < 0; rank++) {
        const Mesh at = mesh_at(mesh, rank);
        const int color = holders_color(holders, &at, NKV);
        if (first[color] < 0) first[color] = rank;
        if (number[(int64_t)rank * stride] != number[(int64_t)first[color] * stride]) found = color;
    }
    for (int rank = 0; rank < ranks && found >= 0; rank++) {
        const Mesh at = mesh_at(mesh, rank);
        wrong[rank] = false;
        if (holders_color(holders, &at, NKV) == found) same[n++] = rank;
    }
    if (found >= 0) differ_from_most(wrong, number, stride, same, n);
    *copies = n;
    free(first);
    return found >= 0;
}

// The checksums of this rank's slices (layout.n). Words are numbered such that no two slices have one in common: so that sums
// of checksums see slices that have changed places. device: as many numbers in device memory.
static inline void slice_checksums(uint64_t* sums, uint64_t* device, const Layout* layout, const floatX* params) {
    const size_t bytes = (size_t)layout->n * sizeof *sums;
    device_zero(device, bytes);
    for (int i = 0; i < layout->n; i++) {
        const Slice* s = &layout->slices[i];
        const int64_t first = ((int64_t)s->index * layout->states + s->state) << 36; // slices have less than 2^36 words
        checksum_add(device + i, params + s->offset, slice_elements(s) * (int64_t)sizeof(floatX), first);
    }
    device_to_host(sums, device, bytes);
}

// What a rank tells: the sum over its slices of each kind of holders.
static inline void copies_numbers(int64_t number[HOLDERS], const uint64_t* sums, const Layout* layout,
                                  const ModelConfig* m) {
    uint64_t sum[HOLDERS] = {0};
    for (int i = 0; i < layout->n; i++) sum[tensor_holders(&layout->slices[i].tensor, &layout->mesh, m)] += sums[i];
    for (int i = 0; i < HOLDERS; i++) number[i] = (int64_t)sum[i];
}

// The same of one tensor of the model.
static inline int64_t copies_number(const uint64_t* sums, const Layout* layout, int index) {
    uint64_t sum = 0;
    for (int i = 0; i < layout->n; i++) sum += layout->slices[i].index == index ? sums[i] : 0;
    return (int64_t)sum;
}

// Says which tensor differs, the first of the model's order, and on which ranks.
static inline void copies_text(char* text, size_t size, const Tensor* tensor, const bool* wrong, int copies, int others,
                               const Mesh* mesh, bool far) {
    const Mesh site = mesh_of_site(mesh), *these = far ? mesh : &site;
    char ranks[256];
    int n = 0;
    for (int i = 0; i < mesh_size(these); i++) n += wrong[i];
    ranks_text(ranks, sizeof ranks, mesh, far, wrong);
    snprintf(text, size, "%s %s other bits of %s than ", ranks, n == 1 ? "has" : "have", tensor->name);
    if (n < copies)
        append_text(text, size, "%d other%s that hold%s the same", copies - n, copies - n == 1 ? "" : "s",
                    copies - n == 1 ? "s" : "");
    else
        append_text(text, size, "each other, and no majority says whose are right");
    if (others > 0)
        append_text(text, size, "; %d more tensor%s differ%s", others, others == 1 ? "" : "s", others == 1 ? "s" : "");
}

// Whether ranks of this one's site, or (far) of all, hold different bits of what ought to be the same; text says what, and where.
// All these ranks call it, and all get the same text. Without a difference they exchange four numbers each.
static inline bool replicas_differ(char* text, size_t size, ProcessGroups* g, const Layout* layout,
                                   const ModelConfig* m, const floatX* params, uint64_t* device, bool far) {
    const Mesh site = mesh_of_site(&layout->mesh), *mesh = far ? &layout->mesh : &site;
    const size_t ranks = (size_t)mesh_size(mesh);
    uint64_t* sums = (uint64_t*)checked_malloc((size_t)layout->n * sizeof *sums, "the checksums");
    int64_t* all = (int64_t*)checked_malloc(ranks * HOLDERS * sizeof *all, "the checksums of all ranks");
    Tensor* list = (Tensor*)checked_malloc((size_t)layout->tensors * sizeof(Tensor), "the list of tensors");
    bool *wrong = (bool*)checked_malloc(ranks * sizeof *wrong, "the ranks"), differ = false;
    int copies, found = 0, first = -1;
    int64_t mine[HOLDERS];
    slice_checksums(sums, device, layout, params);
    copies_numbers(mine, sums, layout, m);
    gather_over_mesh(g, all, mine, HOLDERS, far);
    for (int i = 0; i < HOLDERS; i++)
        differ = copies_differ(wrong, &copies, all + i, HOLDERS, (ReplicaGroup)i, mesh, m->NKV) || differ;
    model_tensors(list, m);
    for (int i = layout->tensors - 1; i >= 0 && differ; i--) { // the first one last, for its ranks
        mine[0] = copies_number(sums, layout, i);
        gather_over_mesh(g, all, mine, 1, far);
        if (!copies_differ(wrong, &copies, all, 1, tensor_holders(&list[i], mesh, m), mesh, m->NKV)) continue;
        first = i, found++;
        copies_text(text, size, &list[i], wrong, copies, found - 1, &layout->mesh, far);
    }
    if (differ && first < 0) die("internal error: checksums differ, and those of no tensor do");
    free(sums), free(all), free(list), free(wrong);
    return differ;
}

// ----------------------------------------------------------------------------------------------------------------
// Where does a NaN come from? The places of a step, in the order in which it is computed: weights; then, of each micro-batch,
// the way through the model and back; gradients.

typedef enum { PROBE_EMBEDDING, PROBE_ATTENTION, PROBE_MLP, PROBE_STREAM, PROBE_LOGITS, PROBE_LOSS } StepPlace;

typedef struct {
    int L, tensors; // of the model
    int microbatch; // that is looked at now
    bool backward;  // on its way back
    int64_t first;  // the first place where something was not finite; NO_PLACE: none
} NanProbe;

static const int64_t NO_PLACE = INT64_MAX, PROBE_GRADIENTS = (int64_t)1 << 60;

static inline NanProbe probe_begin(const ModelConfig* m) {
    const NanProbe probe = {m->L, model_tensors(NULL, m), 0, false, NO_PLACE};
    return probe;
}

// On the way through the model: the embedding; attention, the mlp, and the residual stream behind them, of each block; logits; losses.
static inline int64_t places_of_way(int L) { return 3 * (int64_t)L + 3; }

static inline int64_t place_of_weight(int tensor) { return tensor; }
static inline int64_t place_of_gradient(int tensor) { return PROBE_GRADIENTS + tensor; }

static inline int64_t place_on_way(const NanProbe* probe, StepPlace place, int layer) {
    const int64_t n = places_of_way(probe->L), ways = 2 * (int64_t)probe->microbatch + probe->backward;
    const int64_t at = place == PROBE_EMBEDDING ? 0
                       : place >= PROBE_LOGITS  ? 3 * (int64_t)probe->L + (place - PROBE_STREAM)
                                                : 3 * (int64_t)layer + place;
    return probe->tensors + ways * n + (probe->backward ? n - 1 - at : at);
}

static inline void probe_floats(NanProbe* probe, int64_t place, const float* x, int64_t n) {
    bool finite = true;
    for (int64_t i = 0; i < n; i++) finite = finite && isfinite(x[i]);
    if (!finite) probe->first = min_i64(probe->first, place);
}

// The same of n numbers of device memory, of either type.
static inline void probe_device_floats(NanProbe* probe, int64_t place, const float* x, int64_t n) {
    float* host = (float*)checked_malloc((size_t)n * sizeof(float), "a copy of what is looked at");
    device_to_host(host, x, (size_t)n * sizeof(float));
    probe_floats(probe, place, host, n);
    free(host);
}

static inline void probe_values(NanProbe* probe, int64_t place, const floatX* x, int64_t n) {
    float* host = (float*)checked_malloc((size_t)n * sizeof(float), "a copy of what is looked at");
    device_to_floats(host, x, n);
    probe_floats(probe, place, host, n);
    free(host);
}

static inline void probe_weights(NanProbe* probe, const Layout* layout, const floatX* params) {
    for (int i = 0; i < layout->n; i++) {
        const Slice* s = &layout->slices[i];
        probe_values(probe, place_of_weight(s->index), params + s->offset, slice_elements(s));
    }
}

// The gradients of a bucket that lie at `at`: this rank's own, before they are added to those of others.
static inline void probe_bucket(NanProbe* probe, const Layout* layout, int bucket, const float* at) {
    const Bucket* b = &layout->bucket[bucket];
    for (int i = b->first; i < b->first + b->slices; i++) {
        const Slice* s = &layout->slices[i];
        probe_device_floats(probe, place_of_gradient(s->index), at + (s->offset - b->offset), slice_elements(s));
    }
}

// What a place is called.
static inline void place_text(char* text, size_t size, int64_t place, const ModelConfig* m) {
    static const char* const way[2][6] = {
        {"the embedding", "the output of attention in block %d", "the output of the mlp in block %d",
         "the residual stream behind block %d", "the logits", "the losses"},
        {"the gradient of the embedding's output", "the gradient of attention's input in block %d",
         "the gradient of the mlp's input in block %d", "the gradient of the residual stream behind block %d",
         "the gradient of the head's input", "the gradient of the losses"}};
    const int tensors = model_tensors(NULL, m);
    if (place < tensors || place >= PROBE_GRADIENTS) {
        const bool weight = place < tensors;
        Tensor* list = (Tensor*)checked_malloc((size_t)tensors * sizeof(Tensor), "the list of tensors");
        model_tensors(list, m);
        snprintf(text, size, weight ? "the weight %s" : "its own gradient of %s",
                 list[weight ? place : place - PROBE_GRADIENTS].name);
        free(list);
        return;
    }
    const int64_t n = places_of_way(m->L), number = place - tensors, microbatch = number / n / 2;
    const int64_t at = number / n % 2 ? n - 1 - number % n : number % n;
    const int layer = (int)((at - 1) / 3);
    const int kind = at == 0                  ? 0
                     : at > 3 * (int64_t)m->L ? (int)(at - 3 * (int64_t)m->L) + PROBE_STREAM
                                              : (int)((at - 1) % 3) + 1;
    char what[96];
    snprintf(what, sizeof what, way[number / n % 2][kind], layer);
    snprintf(text, size, "%s, micro-batch %lld", what, (long long)microbatch);
}

// What all ranks of the mesh have seen: seen (ranks), each rank's first place. Returns the first place of all, and marks the ranks of the
// first replica that has it there; *replicas: how many have seen something.
static inline int64_t first_place(bool* from, int* replicas, const int64_t* seen, const Mesh* mesh) {
    int64_t first = NO_PLACE;
    int replica = -1;
    *replicas = 0;
    for (int d = 0; d < mesh->d; d++) {
        int64_t here = NO_PLACE;
        for (int rank = 0; rank < mesh_size(mesh); rank++) {
            if (mesh_at(mesh, rank).data == d) here = min_i64(here, seen[rank]);
        }
        *replicas += here < NO_PLACE;
        if (here < first) first = here, replica = d;
    }
    for (int rank = 0; rank < mesh_size(mesh); rank++)
        from[rank] = mesh_at(mesh, rank).data == replica && seen[rank] == first && first < NO_PLACE;
    return first;
}

// Says it. All ranks of this one's site, or (far) of all, call it with what each has seen, and get the same text.
static inline void origin_text(char* text, size_t size, const NanProbe* probe, ProcessGroups* g, const Mesh* whole,
                               const ModelConfig* m, bool far) {
    const Mesh site = mesh_of_site(whole), *mesh = far ? whole : &site;
    int64_t* seen = (int64_t*)checked_malloc((size_t)mesh_size(mesh) * sizeof *seen, "the ranks");
    bool* from = (bool*)checked_malloc((size_t)mesh_size(mesh) * sizeof *from, "the ranks");
    char ranks[256], place[160];
    int replicas;
    gather_over_mesh(g, seen, &probe->first, 1, far);
    const int64_t first = first_place(from, &replicas, seen, mesh);
    if (first == NO_PLACE) {
        snprintf(text, size, "not seen again when the step was repeated: suspect the hardware");
    } else {
        place_text(place, sizeof place, first, m);
        ranks_text(ranks, sizeof ranks, whole, far, from);
        snprintf(text, size, "it begins with %s on %s", place, ranks);
        if (mesh->d > 1) append_text(text, size, "; %d of %d replicas have such numbers", replicas, mesh->d);
    }
    free(seen), free(from);
}

// ----------------------------------------------------------------------------------------------------------------
// What is unusual?

/*
A loss is compared with what the last 100 lead to expect. Two things stand in the way of the usual z = (x - mean) / deviation:
one outlier makes the deviation so large that the next one passes; and while a run learns fast, most of the deviation is the way
down. So the last 100 values y_0 .. y_99 are laid along a line, and all of it is done by medians, which a quarter of bad values does not
carry away:

    slope     = median of (y_(i + 50) - y_i) / 50, i < 50                 pairs, so that a value is in one of them
    level     = median of (y_i - slope i)
    deviation = 1.4826 median of |y_i - slope i - level|                  that of a normal distribution
    z         = (x - level - 100 slope) / deviation

(Siegel 1982 and Theil 1950 take all pairs; half as many steps apart is where a pair says most.) Of a gradient's norm it is the logarithm
that is compared: it varies by factors. Normal numbers give
|z| > 6 twice in 3,000,000 steps (counted), more often than a known deviation would, as 100 values say it to 12 % only. Before there are 100, nothing is said. A step that was skipped counts for nothing.
*/
enum { HISTORY = 100 };

typedef struct {
    double value[HISTORY];
    int n, next; // how many there are; where the next one goes
} OutlierDetector;

static inline void history_add(OutlierDetector* h, double x) {
    if (!isfinite(x)) return;
    h->value[h->next] = x;
    h->next = (h->next + 1) % HISTORY;
    h->n += h->n < HISTORY;
}

static inline int order_doubles(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// Of n values, an even number. They are sorted.
static inline double median_of(double* x, int n) {
    qsort(x, (size_t)n, sizeof *x, order_doubles);
    return 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

// How many deviations x is above what is expected, and what that is; 0 while the history is short. Values that hardly differ are taken
// to differ by a millionth, which is what rounding makes of a loss.
static inline double history_score(const OutlierDetector* h, double x, double* expected) {
    enum { HALF = HISTORY / 2 };
    double y[HISTORY], work[HISTORY];
    *expected = x;
    if (h->n < HISTORY || !isfinite(x)) return 0;
    for (int i = 0; i < HISTORY; i++) y[i] = h->value[(h->next + i) % HISTORY];
    for (int i = 0; i < HALF; i++) work[i] = (y[i + HALF] - y[i]) / HALF;
    const double slope = median_of(work, HALF);
    for (int i = 0; i < HISTORY; i++) work[i] = y[i] - slope * i;
    const double level = median_of(work, HISTORY);
    for (int i = 0; i < HISTORY; i++) work[i] = fabs(y[i] - slope * i - level);
    const double deviation = fmax(1.4826 * median_of(work, HISTORY), 1e-6 * fabs(level) + 1e-30);
    *expected = level + slope * HISTORY;
    return (x - *expected) / deviation;
}

// ----------------------------------------------------------------------------------------------------------------
// What a run remembers of it

enum { SKIPPED_AT_MOST = 10 }; // steps in a row: the run ends with the last of them

typedef enum { ON_NAN_STOP, ON_NAN_SKIP } OnNan;

typedef struct {
    OutlierDetector loss, norm; // of the losses, and of the logarithms of the gradient's norm
    int32_t skipped_in_row;     // steps
    bool skipped;               // the last step
    double loss_score, norm_score, loss_expected, norm_expected; // of the last step
} StepHealth;

// Takes in a step: its scores, then its values.
static inline void health_step(StepHealth* h, double loss, double norm) {
    const double log_norm = norm > 0 ? log(norm) : (double)NAN;
    h->loss_score = h->norm_score = 0;
    if (h->skipped) return;
    h->loss_score = history_score(&h->loss, loss, &h->loss_expected);
    h->norm_score = history_score(&h->norm, log_norm, &h->norm_expected);
    h->norm_expected = exp(h->norm_expected);
    history_add(&h->loss, loss);
    history_add(&h->norm, log_norm);
}

// The number behind a name in a line of log.jsonl; NaN where there is none.
static inline double logged_number(const char* line, const char* name) {
    const char* at = strstr(line, name);
    char* end;
    if (!at) return (double)NAN;
    const double x = strtod(at + strlen(name), &end);
    return end == at + strlen(name) ? (double)NAN : x;
}

// A step that is in the log of the run that is taken up.
static inline void health_logged(StepHealth* h, const char* line) {
    h->skipped = strstr(line, "\"skipped\":true") != NULL;
    h->skipped_in_row = h->skipped ? h->skipped_in_row + 1 : 0;
    health_step(h, logged_number(line, "\"loss\":"), logged_number(line, "\"grad_norm\":"));
}

#endif
