/*
methods/async_dp.h: sites that go their own way (dc-s3gd and diloco of methods/async_schedule.h): what each keeps beside its own weights, what it sends
to the others, and how it merges what comes.

    own     this site's weights, float32: those that it computes with, or their masters
    base    the common point: where all sites would be if all that was sent had arrived. The same bits everywhere but in
            eager mode, below
    sum     what is on its way between sites: in, this site's change; out, the sum over all S sites

dc-s3gd, in each step, with the gradient g of its own sequences at its own weights:

    base += sum / S                      wait for what was sent in the step before: the mean of all changes
    D = base - own                       where the others have gone meanwhile: the mean change minus the own one
    g += lambda g g D                    delay compensation, in the trainer: lambda = lambda0 |g| / |g g D|
    own = update(base, g)                the optimizer's step, from the common point
    sum = own - base                     is sent

so from the first merging on the weights of two sites never differ by more than one update each, the sum over the sites of D is 0, and one site alone has
D = 0: the plain optimizer. Since base is added up from sums, which are the same bits everywhere, sites do not drift apart
by rounding.

diloco, for a fragment, H steps after the last time:

    sum = base - own                     is sent: the outer gradient
    v = b v + sum / S                    and merged, at once or some steps later: Nesterov's momentum
    base -= eta (sum / S + b v)
    own = mix own + (1 - mix) base

A whole round late it is merged when the next is sent, and own becomes base. eager: base and v are each site's own, and
differ a little: see eager_update in kernels/async_dp.h. What is common is their mean, which is formed where it is asked for.

Inside a site all ranks of a data group hold the same numbers. Each sends one part of them between sites, and gathers the
others' sums. With fewer bits every site sends its part to all others, quantised, and each adds them up in float32. Numbers
share a scale with others of their slice only: norms and biases, which tensor ranks hold alike, lie between slices of
matrices, which they do not, and would be rounded differently on each.
*/
#ifndef ASYNC_DP_H
#define ASYNC_DP_H

#include "../parallel/process_groups.h"
#include "async_schedule.h"

typedef struct {
    AsyncConfig rounds;
    const Layout* layout;
    ProcessGroups* groups;
    int* fragment;             // (buckets)
    float *own, *base;         // (layout.elements) each
    float* sum;                //
    float* velocity;           // diloco
    float* old;                // eager: what was sent last
    float* residue;            // where numbers are sent with fewer bits: what that has cost
    uint8_t *packed, *arrived; // one part of each bucket, quantised; those of all sites
    int64_t* packed_at;        // (buckets + 1): where a bucket's begins in packed, bytes
    CommRequest* request;      // (buckets)
    bool* flying;              // (buckets): sent, and not waited for
} AsyncDp;

// Run twice, as all that takes from an arena. own: the weights in float32, which are there already.
static inline void async_dp_take_memory(AsyncDp* s, Arena* arena, float* own) {
    const int64_t n = s->layout->elements;
    const bool diloco = s->rounds.mode == DP_DILOCO;
    s->own = own;
    s->base = arena_floats(arena, n), s->sum = arena_floats(arena, n);
    if (diloco) s->velocity = arena_floats(arena, n);
    if (s->rounds.eager) s->old = arena_floats(arena, n);
    if (s->rounds.bits == 32) return;
    const int64_t bytes = s->packed_at[s->layout->buckets];
    s->residue = arena_floats(arena, n);
    s->packed = (uint8_t*)arena_take(arena, bytes), s->arrived = (uint8_t*)arena_take(arena, s->rounds.sites * bytes);
}

static inline void async_dp_open(AsyncDp* s, const AsyncConfig* rounds, const Layout* layout, int L) {
    const size_t buckets = (size_t)layout->buckets;
    memset(s, 0, sizeof *s);
    s->rounds = *rounds, s->layout = layout;
    s->fragment = (int*)checked_calloc(buckets, sizeof(int), "the sites");
    s->request = (CommRequest*)checked_calloc(buckets, sizeof(CommRequest), "the sites");
    s->flying = (bool*)checked_calloc(buckets, sizeof(bool), "the sites");
    s->packed_at = (int64_t*)checked_calloc(buckets + 1, sizeof(int64_t), "the sites");
    for (int b = 0; b < layout->buckets; b++) {
        s->fragment[b] = async_schedule_fragment(rounds, &layout->slices[layout->bucket[b].first].tensor, L);
        s->packed_at[b + 1] = s->packed_at[b] + (rounds->bits < 32 ? (int64_t)quantized_bytes(rounds, layout, b) : 0);
    }
}

static inline void async_dp_close(AsyncDp* s) {
    free(s->fragment);
    free(s->request);
    free(s->flying);
    free(s->packed_at);
    memset(s, 0, sizeof *s);
}

// At the begin of a run, with its initial weights.
static inline void async_dp_begin(const AsyncDp* s) {
    device_copy(s->base, s->own, (size_t)s->layout->elements * sizeof(float));
}

// Lets what is on its way go on, where no thread does it.
static inline void async_dp_progress(AsyncDp* s) { comm_progress(s->request, s->layout->buckets); }

// Quantises this rank's part of `sum` of a bucket, slice by slice.
static inline void async_dp_pack(AsyncDp* s, int b) {
    const int64_t end = bucket_part_offset(s->layout, b) + bucket_site_shard_size(s->layout, b);
    uint8_t* packed = s->packed + s->packed_at[b];
    for (int64_t at = bucket_part_offset(s->layout, b), next; at < end; at = next) {
        next = bucket_next_slice(s->layout, b, at, end);
        quantize(packed, s->residue + at, s->sum + at, next - at, s->rounds.bits);
        packed += quant_bytes(next - at, s->rounds.bits);
    }
}

// Adds up what all sites have sent of it.
static inline void async_dp_unpack(AsyncDp* s, int b) {
    const int64_t first = bucket_part_offset(s->layout, b), end = first + bucket_site_shard_size(s->layout, b);
    const uint8_t* arrived = s->arrived + s->rounds.sites * s->packed_at[b];
    device_zero(s->sum + first, (size_t)(end - first) * sizeof(float));
    for (int i = 0; i < s->rounds.sites; i++) {
        for (int64_t at = first, next; at < end; at = next) {
            next = bucket_next_slice(s->layout, b, at, end);
            dequantize_add(s->sum + at, arrived, next - at, s->rounds.bits);
            arrived += quant_bytes(next - at, s->rounds.bits);
        }
    }
}

// Starts the sum over the sites of `sum` of a bucket.
static inline void async_dp_send(AsyncDp* s, int b) {
    const int64_t n = bucket_site_shard_size(s->layout, b), at = bucket_part_offset(s->layout, b);
    Comm* far = &s->groups->far;
    s->flying[b] = true;
    if (s->rounds.bits == 32) {
        s->request[b] = comm_all_reduce_start(far, s->sum + at, n, COMM_FLOAT, COMM_SUM);
        return;
    }
    const int64_t bytes = s->packed_at[b + 1] - s->packed_at[b];
    uint8_t* packed = s->packed + s->packed_at[b];
    async_dp_pack(s, b);
    s->request[b] =
        comm_all_gather_start(far, s->arrived + s->rounds.sites * s->packed_at[b], packed, bytes, COMM_BYTE);
}

// Waits for it: afterwards all ranks have it.
static inline void async_dp_arrive(AsyncDp* s, int b) {
    const int64_t n = bucket_site_shard_size(s->layout, b), at = bucket_part_offset(s->layout, b);
    if (!s->flying[b]) return;
    s->flying[b] = false;
    comm_wait(&s->request[b]);
    if (s->rounds.bits < 32) async_dp_unpack(s, b);
    if (mesh_site_size(&s->layout->mesh) > 1)
        comm_all_gather(&s->groups->data, s->sum + s->layout->bucket[b].offset, s->sum + at, n, COMM_FLOAT);
}

// ----------------------------------------------------------------------------------------------------------------
// dc-s3gd

// The common point of a bucket takes in the mean of the changes that were sent in the step before.
static inline void async_dp_advance(AsyncDp* s, int b) {
    const Bucket* bucket = &s->layout->bucket[b];
    const int64_t at = bucket->offset;
    if (!s->flying[b]) return;
    async_dp_arrive(s, b);
    if (s->rounds.sites == 1) // base + (own - base) is not always own, and what differs would be compensated for
        device_copy(s->base + at, s->own + at, (size_t)bucket->elements * sizeof(float));
    else
        add_scaled(s->base + at, s->sum + at, 1.0f / (float)s->rounds.sites, bucket->elements);
}

// Sends the change of a bucket, whose own weights are new.
static inline void async_dp_send_change(AsyncDp* s, int b) {
    const Bucket* bucket = &s->layout->bucket[b];
    const int64_t at = bucket->offset;
    difference(s->sum + at, s->own + at, s->base + at, bucket->elements);
    async_dp_send(s, b);
}

// Without a delay: what was sent after this step's update is waited for at once, and all go on from the same point.
// changed (buckets) says where own weights are new: everywhere.
static inline void async_dp_meet(AsyncDp* s, bool* changed) {
    for (int b = 0; b < s->layout->buckets; b++) {
        const Bucket* bucket = &s->layout->bucket[b];
        async_dp_advance(s, b);
        mix(s->own + bucket->offset, s->base + bucket->offset, 0, bucket->elements);
        changed[b] = true;
    }
}

// ----------------------------------------------------------------------------------------------------------------
// diloco

// Merges what has come of a bucket.
static inline void async_dp_merge(AsyncDp* s, int b) {
    const AsyncConfig* r = &s->rounds;
    const int64_t at = s->layout->bucket[b].offset, n = s->layout->bucket[b].elements;
    async_dp_arrive(s, b);
    outer_update(s->base + at, s->velocity + at, s->sum + at, 1.0f / (float)r->sites, (float)r->outer_lr,
                 (float)r->outer_momentum, n);
    mix(s->own + at, s->base + at, (float)r->mix, n);
}

// Sends how far the site has gone.
static inline void async_dp_send_way(AsyncDp* s, int b) {
    const int64_t at = s->layout->bucket[b].offset, n = s->layout->bucket[b].elements;
    difference(s->sum + at, s->base + at, s->own + at, n);
    async_dp_send(s, b);
}

// What was sent is what others add up: with fewer bits it is not what was meant to be sent.
static inline void async_dp_keep_sent(AsyncDp* s, int b) {
    const int64_t n = bucket_site_shard_size(s->layout, b), at = bucket_part_offset(s->layout, b);
    device_copy(s->old + at, s->sum + at, (size_t)n * sizeof(float));
    if (mesh_site_size(&s->layout->mesh) > 1)
        comm_all_gather(&s->groups->data, s->old + s->layout->bucket[b].offset, s->old + at, n, COMM_FLOAT);
}

// Both at once, where what is merged is a round old: the sum of the last round, or eagerly the others' part of that and the
// own part of this one. Own weights, which are about to become base, hold the fresh difference meanwhile.
static inline void async_dp_merge_last_round(AsyncDp* s, int b) {
    const AsyncConfig* r = &s->rounds;
    const int64_t at = s->layout->bucket[b].offset, n = s->layout->bucket[b].elements;
    const size_t bytes = (size_t)n * sizeof(float);
    float *fresh = s->own + at, *base = s->base + at;
    async_dp_arrive(s, b);
    difference(fresh, base, fresh, n);
    const float factor = 1.0f / (float)r->sites, lr = (float)r->outer_lr, momentum = (float)r->outer_momentum;
    if (r->eager)
        eager_update(base, s->velocity + at, s->sum + at, s->old + at, fresh, factor, lr, momentum, n);
    else
        outer_update(base, s->velocity + at, s->sum + at, factor, lr, momentum, n);
    device_copy(s->sum + at, fresh, bytes);
    if (r->eager) device_copy(s->old + at, fresh, bytes);
    async_dp_send(s, b);
    if (r->eager && r->bits < 32) async_dp_keep_sent(s, b);
    device_copy(fresh, base, bytes);
}

// What there is to do after the update of step t (from 1). changed (buckets) says where own weights are new.
static inline void async_dp_round(AsyncDp* s, int64_t t, bool* changed) {
    const AsyncConfig* r = &s->rounds;
    const int buckets = s->layout->buckets;
    for (int b = 0; b < buckets; b++) {
        const bool merges = async_schedule_merges(r, s->fragment[b], t), sends = async_schedule_sends(r, s->fragment[b], t);
        const bool late = r->delay == r->period; // a round
        changed[b] = merges || (late && sends);
        if (late && sends) async_dp_merge_last_round(s, b);
        if (late) continue;
        if (merges && r->delay > 0) async_dp_merge(s, b);
        if (sends) async_dp_send_way(s, b);
    }
    for (int b = 0; b < buckets && r->delay == 0; b++) {
        if (changed[b]) async_dp_merge(s, b);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// The common point

// Waits for all that is on its way. What is merged in a later step, is; only dc-s3gd's common point is complete now.
static inline void async_dp_settle(AsyncDp* s) {
    for (int b = 0; b < s->layout->buckets; b++) {
        if (s->rounds.mode == DP_DC_S3GD)
            async_dp_advance(s, b);
        else
            async_dp_arrive(s, b);
    }
}

// The common point into `point` (layout.elements). All ranks call it; nothing is on its way.
static inline void async_dp_common(const AsyncDp* s, float* point) {
    const int64_t n = s->layout->elements;
    device_copy(point, s->base, (size_t)n * sizeof(float));
    if (!s->rounds.eager || s->rounds.sites == 1) return;
    const int64_t counted = s->groups->far.size_bytes; // no part of training
    comm_all_reduce(&s->groups->far, point, n, COMM_FLOAT, COMM_SUM);
    s->groups->far.size_bytes = counted;
    scale_by(point, 1.0f / (float)s->rounds.sites, n);
}

#endif
