/*
parallel/nan_probe.h: finds where a NaN or an infinity comes from.

    nan_probe_init      an empty probe
    probe_*             check numbers at one place of the step, and remember the first place with one that is not finite
    nan_origin_text     all ranks: the first place over all of them, in words

Theory: a gradient that is not finite is found in its sum over all ranks (run_grad_norm), which does not identify the
rank. As long as nothing was updated, the step can be computed again, to the same bits, with a probe: of the weights, of
each rank's own results before they are added to those of other ranks, and of the rank's own gradients. A NaN spreads
only to later places of the computation, so the first place of each replica is its origin. If no place is found, the
numbers were finite the second time: then the hardware is suspect, not the mathematics.
*/
#pragma once

#include "process_groups.h"
#include "../kernels/kernels.h"
#include "../model.h"
#include "../parallel.h"

typedef enum { PROBE_EMBEDDING, PROBE_ATTENTION, PROBE_MLP, PROBE_STREAM, PROBE_LOGITS, PROBE_LOSS } StepPlace;

typedef struct {
    int L, tensors; // of the model
    int microbatch; // of the current pass
    bool backward;  // whether it is a backward pass
    int64_t first;  // the first place with a number that is not finite; NO_PLACE: none
} NanProbe;

static const int64_t NO_PLACE = INT64_MAX, PROBE_GRADIENTS = (int64_t)1 << 60;

static inline NanProbe nan_probe_init(const ModelConfig* m) {
    const NanProbe probe = {m->L, model_tensors(NULL, m), 0, false, NO_PLACE};
    return probe;
}

// The places of a forward or backward pass: the embedding; of each block attention, the mlp and the residual stream
// after them; the logits; the losses.
static inline int64_t places_of_pass(int L) { return 3 * (int64_t)L + 3; }

static inline int64_t place_of_weight(int tensor) { return tensor; }
static inline int64_t place_of_gradient(int tensor) { return PROBE_GRADIENTS + tensor; }

static inline int64_t place_of_pass(const NanProbe* probe, StepPlace place, int layer) {
    const int64_t n = places_of_pass(probe->L), passes = 2 * (int64_t)probe->microbatch + probe->backward;
    int64_t at = 3 * (int64_t)layer + place;
    if (place == PROBE_EMBEDDING) at = 0;
    if (place >= PROBE_LOGITS) at = 3 * (int64_t)probe->L + (place - PROBE_STREAM);
    return probe->tensors + passes * n + (probe->backward ? n - 1 - at : at);
}

// At the beginning of a forward or backward pass. NULL: there is no probe.
static inline void nan_probe_begin_pass(NanProbe* probe, int microbatch, bool backward) {
    if (!probe) return;
    probe->microbatch = microbatch;
    probe->backward = backward;
}

static inline void probe_floats(NanProbe* probe, int64_t place, const float* x, int64_t n) {
    bool finite = true;
    for (int64_t i = 0; i < n; i++) finite = finite && isfinite(x[i]);
    if (!finite) probe->first = min_i64(probe->first, place);
}

// Probes n numbers in device memory, of either type.
static inline void probe_device_floats(NanProbe* probe, int64_t place, const float* x, int64_t n) {
    float* host = (float*)checked_malloc((size_t)n * sizeof(float), "a copy for the NaN probe");
    device_to_host(host, x, (size_t)n * sizeof(float));
    probe_floats(probe, place, host, n);
    free(host);
}

static inline void probe_values(NanProbe* probe, int64_t place, const floatX* x, int64_t n) {
    float* host = (float*)checked_malloc((size_t)n * sizeof(float), "a copy for the NaN probe");
    device_to_floats(host, x, n);
    probe_floats(probe, place, host, n);
    free(host);
}

static inline void probe_weights(NanProbe* probe, const Layout* layout, const floatX* params) {
    for (int i = 0; i < layout->n; i++) {
        const Slice* slice = &layout->slices[i];
        probe_values(probe, place_of_weight(slice->index), params + slice->offset, slice_elements(slice));
    }
}

// The gradients of a bucket, stored at `at`: this rank's own, before they are added to those of other ranks.
static inline void probe_bucket(NanProbe* probe, const Layout* layout, int bucket, const float* at) {
    const Bucket* range = &layout->bucket[bucket];
    for (int i = range->first; i < range->first + range->slices; i++) {
        const Slice* slice = &layout->slices[i];
        probe_device_floats(probe, place_of_gradient(slice->index), at + (slice->offset - range->offset),
                            slice_elements(slice));
    }
}

// The name of a place, for messages.
static inline void place_text(char* text, size_t size, int64_t place, const ModelConfig* m) {
    static const char* const names[2][6] = {
        {"the embedding", "the output of attention in block %d", "the output of the mlp in block %d",
         "the residual stream after block %d", "the logits", "the losses"},
        {"the gradient of the embedding's output", "the gradient of attention's input in block %d",
         "the gradient of the mlp's input in block %d", "the gradient of the residual stream after block %d",
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
    const int64_t n = places_of_pass(m->L), number = place - tensors, microbatch = number / n / 2;
    const int64_t at = number / n % 2 ? n - 1 - number % n : number % n;
    const int layer = (int)((at - 1) / 3);
    int kind = at == 0 ? 0 : (int)((at - 1) % 3) + 1;
    if (at > 3 * (int64_t)m->L) kind = (int)(at - 3 * (int64_t)m->L) + PROBE_STREAM;
    char what[96];
    snprintf(what, sizeof what, names[number / n % 2][kind], layer);
    snprintf(text, size, "%s, micro-batch %lld", what, (long long)microbatch);
}

// The first place over all ranks, from seen (ranks), each rank's first place. Marks the ranks of the first replica that
// has it; *replicas is the number of replicas with a place.
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
        if (here < first) {
            first = here;
            replica = d;
        }
    }
    for (int rank = 0; rank < mesh_size(mesh); rank++)
        from[rank] = mesh_at(mesh, rank).data == replica && seen[rank] == first && first < NO_PLACE;
    return first;
}

// Writes the origin as text. All ranks of this rank's site, or of all sites, call it with their probes; same text.
static inline void nan_origin_text(char* text, size_t size, const NanProbe* probe, ProcessGroups* groups,
                                   const Mesh* whole, const ModelConfig* m, bool all_sites) {
    const Mesh site = mesh_of_site(whole);
    const Mesh* mesh = all_sites ? whole : &site;
    int64_t* seen = (int64_t*)checked_malloc((size_t)mesh_size(mesh) * sizeof *seen, "the ranks");
    bool* from = (bool*)checked_malloc((size_t)mesh_size(mesh) * sizeof *from, "the ranks");
    char ranks[256], place[160];
    int replicas;
    gather_over_mesh(groups, seen, &probe->first, 1, all_sites);
    const int64_t first = first_place(from, &replicas, seen, mesh);
    if (first == NO_PLACE) {
        snprintf(text, size, "not seen again when the step was repeated: suspect the hardware");
    } else {
        place_text(place, sizeof place, first, m);
        ranks_text(ranks, sizeof ranks, whole, all_sites, from);
        snprintf(text, size, "it begins with %s on %s", place, ranks);
        if (mesh->d > 1) append_text(text, size, "; %d of %d replicas have such numbers", replicas, mesh->d);
    }
    free(seen);
    free(from);
}
