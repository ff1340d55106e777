/*
checkpoint/save.h: saves the stages of all ranks as a checkpoint, and reads them back.

    stage_save      saves; the result is the same on all ranks
    read_slices     reads this rank's part of a checkpoint
    stage_values    where weights and moments are on this rank; site_values: the further values of asynchronous sites

Theory. Rank 0 makes the folder and its files (checkpoint/checkpoint.h). Every rank writes its slices and flushes them.
All ranks add up the sizes and checksums of what they wrote, and whether they could; then rank 0 publishes the
checkpoint, or abandons it. A rank that cannot write prints the reason; a failed save does not end the run.

A checkpoint holds weights in float32, both moments, and the values that each asynchronous site has of its own. Data
ranks hold the same slices and write buckets in turn; with ZeRO they first gather their shards of a bucket.
*/
#pragma once

#include "checkpoint_dir.h"
#include "../parallel/optimizer.h"
#include "../util/heartbeat.h"

// ---- The values of a stage that a checkpoint holds, and where they are ------------------------------------------

// A value of each parameter on this rank: layout.elements floats or, with ZeRO, a shard of each bucket.
typedef struct {
    float* at;
    bool share;
} ShardedBuffer;

// Weights (what = 0), first (1) and second (2) moments. With ZeRO moments are shards, and so are float32 master
// weights. The weights of asynchronous sites are the global parameters.
static ShardedBuffer stage_values(const Stage* stage, int what) {
    float* weights = HAS_MASTER_WEIGHTS ? stage->master : (float*)stage->params;
    if (stage->checkpoint_weights) weights = stage->checkpoint_weights;
    float* const buffers[CHECKPOINT_VALUES] = {weights, stage->moment1, stage->moment2};
    const ShardedBuffer values = {buffers[what], stage->layout.parallel.zero && (what > 0 || HAS_MASTER_WEIGHTS)};
    return values;
}

// The values of asynchronous sites beside weights and moments, and where they are.
typedef struct {
    CheckpointSites list;
    ShardedBuffer of[CHECKPOINT_KINDS];
} AsyncCheckpointState;

static AsyncCheckpointState site_values(const Stage* stage) {
    AsyncCheckpointState state = {};
    state.list.copies = stage->grads.scope == SCOPE_SITE ? stage->layout.parallel.mesh.sites : 1;
    state.list.moments = stage->type.moments;
    state.list.kinds = stage->kept_values;
    for (int i = 0; i < stage->kept_values; i++) {
        const ShardedBuffer values = {stage->kept[i].at, false};
        state.list.kind[i] = stage->kept[i].name;
        state.of[i] = values;
    }
    return state;
}

// All values of a bucket in host memory: in place, or gathered in copy (largest_bucket() floats).
static const float* whole_values(const Stage* stage, int b, ShardedBuffer values, float* copy) {
    const Layout* layout = &stage->layout;
    const int64_t n = bucket_shard_size(layout, b);
    if (values.share) {
        float* mine = copy + layout->parallel.mesh.data * n;
        device_to_host(mine, values.at + bucket_shard_offset(layout, b), (size_t)n * sizeof(float));
        comm_all_gather(&stage->groups->data, copy, mine, n, COMM_FLOAT);
        return copy;
    }
    if (DEVICE_IS_HOST) return values.at + layout->bucket[b].offset;
    device_to_host(copy, values.at + layout->bucket[b].offset, (size_t)layout->bucket[b].elements * sizeof(float));
    return copy;
}

// Sets values of a bucket from `whole` (the bucket's elements, host memory).
static void set_values(const Stage* stage, int b, ShardedBuffer values, const float* whole) {
    const Layout* layout = &stage->layout;
    const int64_t at = layout->bucket[b].offset, n = layout->bucket[b].elements, share = bucket_shard_size(layout, b);
    if (values.share)
        device_from_host(values.at + bucket_shard_offset(layout, b), whole + layout->parallel.mesh.data * share,
                         (size_t)share * sizeof(float));
    else
        device_from_host(values.at + at, whole, (size_t)n * sizeof(float));
}

// Sets the weights that the model computes with, and the float32 master weights where there are any.
static void set_bucket_weights(const Stage* stage, int b, const float* whole) {
    const ShardedBuffer masters = {stage->master, stage->layout.parallel.zero > 0};
    device_from_floats(stage->params + stage->layout.bucket[b].offset, whole, stage->layout.bucket[b].elements);
    if (stage->master) set_values(stage, b, masters, whole);
}

// Reads this rank's part. For asynchronous sites the weights are the global parameters; the site's own values follow.
static bool read_slices(const Stage* stage, const CheckpointReader* reader, HeartbeatRow* row, Error* error) {
    const Layout* layout = &stage->layout;
    const AsyncCheckpointState sites = site_values(stage);
    const bool local = stage->grads.scope == SCOPE_SITE;
    const int copy = local ? mesh_site(&layout->parallel.mesh) : 0;
    float* whole = (float*)checked_malloc((size_t)largest_bucket(layout) * sizeof(float), "the values of a bucket");
    bool ok = true;
    for (int b = 0; b < layout->buckets && ok; b++) {
        heartbeat_move(row);
        for (int what = 0; what <= sites.list.moments && ok; what++) {
            ok = checkpoint_read_bucket(reader, layout, b, what, whole, error);
            if (ok && what == 0) set_bucket_weights(stage, b, whole);
            if (ok && (what > 0 || local)) set_values(stage, b, stage_values(stage, what), whole);
        }
        for (int kind = 0; kind < sites.list.kinds && ok; kind++) {
            ok = checkpoint_read_bucket(reader, layout, b, checkpoint_value_of_site(&sites.list, kind, copy), whole,
                                        error);
            if (ok) set_values(stage, b, sites.of[kind], whole);
        }
    }
    free(whole);
    return ok;
}

// Whether this data rank writes a value of a bucket. site: the value belongs to this site; -1: it is the same on all
// sites.
static bool writes_bucket(const Mesh* mesh, int b, int site) {
    if (site < 0) return b % mesh->d == mesh->data;
    return site == mesh_site(mesh) && b % mesh_site_size(mesh) == mesh_rank_in_site(mesh);
}

// ---- A save -----------------------------------------------------------------------------------------------------

// What a rank needs for its saves.
typedef struct {
    const Stage* stage;
    const char* out;
    int rank;
    int64_t keep;          // checkpoints; 0: all
    const HubFiles* files; // written beside the model
    HeartbeatRow* row;     // for the watchdog, or NULL
} Saver;

// Value v of this rank: its number in checkpoint/checkpoint.h, where it is, and its site (-1: the same on all sites).
typedef struct {
    ShardedBuffer values;
    int number, site;
} SavedPart;

static SavedPart saved_part(const Stage* stage, const AsyncCheckpointState* sites, int v) {
    const bool local = stage->grads.scope == SCOPE_SITE;
    const int own = local ? mesh_site(&stage->layout.parallel.mesh) : 0, kind = v - 1 - sites->list.moments;
    if (kind < 0) { // where moments differ between sites, site 0's are saved
        const SavedPart part = {stage_values(stage, v), v, local && v > 0 ? 0 : -1};
        return part;
    }
    const SavedPart part = {sites->of[kind], checkpoint_value_of_site(&sites->list, kind, own), local ? own : -1};
    return part;
}

// Says every ten seconds how far this rank's part of a save is.
static void print_saving(const char* folder, int done, int all, double started, double* said) {
    const double now = seconds_now();
    if (now - *said < 10) return;
    *said = now;
    end_line();
    print_line("saving    %s: %d %%, %.0f s left", folder, 100 * done / all, (now - started) / done * (all - done));
}

// Every rank, between checkpoint_begin and checkpoint_publish: writes its slices of the listed values into the files in
// folder, and sets *sum. After a failure it continues to gather buckets, as with ZeRO other ranks wait for it.
static bool write_slices(const Stage* stage, HeartbeatRow* row, const char* folder, const CheckpointSites* list,
                         CheckpointSum* sum, Error* error) {
    const Layout* layout = &stage->layout;
    const int values = 1 + list->moments + list->kinds;
    const AsyncCheckpointState sites = site_values(stage);
    CheckpointWriter writer;
    double started = seconds_now(), said = started;
    float* copy = (float*)checked_malloc((size_t)largest_bucket(layout) * sizeof(float), "the values of a bucket");
    const bool joined = checkpoint_join(&writer, folder, &stage->model, list, error);
    bool ok = joined;
    for (int i = 0; i < layout->buckets * values; i++) {
        const int b = i / values;
        const SavedPart part = saved_part(stage, &sites, i % values);
        const float* whole = whole_values(stage, b, part.values, copy);
        if (ok && writes_bucket(&layout->parallel.mesh, b, part.site))
            ok = checkpoint_write_value(&writer, layout, b, part.number, whole, error);
        heartbeat_move(row);
        if (process.rank <= 0) print_saving(folder, i + 1, layout->buckets * values, started, &said);
    }
    free(copy);
    *sum = writer.sum;
    Error late; // the first error is the one that is reported
    return joined && checkpoint_leave(&writer, ok, ok ? error : &late) && ok;
}

static void say_not_saved(int rank, int64_t step, const Error* error) {
    print_message("rank %d: the checkpoint of step %lld was not saved: %s", rank, (long long)step, error->text);
}

// Rank 0, after all parts: publishes the checkpoint and removes old ones.
static bool publish(Saver* saver, const CheckpointState* state, const CheckpointSites* sites, const CheckpointSum* sum,
                    Error* error) {
    const Stage* stage = saver->stage;
    Error why;
    if (!checkpoint_publish(saver->out, state, &stage->model, &stage->layout.parallel.caat, sites, sum, saver->files,
                            error))
        return false;
    if (!checkpoint_prune(saver->out, saver->keep, state->step, &why)) print_message("--keep-last: %s", why.text);
    return true;
}

// All ranks, once nothing is in flight: saves the stage. The result is the same on all ranks.
static bool stage_save(Saver* saver, Comm* world, const CheckpointState* state) {
    const Stage* stage = saver->stage;
    const CheckpointSites sites = site_values(stage).list;
    char folder[CHECKPOINT_PATH];
    CheckpointSum sum;
    Error error;
    int32_t ok = saver->rank > 0 || checkpoint_begin(saver->out, state->step, &stage->model, &sites, &error);
    if (!ok) say_not_saved(saver->rank, state->step, &error);
    comm_broadcast(world, &ok, 1, COMM_INT32, 0);
    if (!ok) return false;
    checkpoint_folder(folder, saver->out, state->step, ".tmp", &error); // rank 0 has made it
    ok = write_slices(stage, saver->row, folder, &sites, &sum, &error);
    if (!ok) say_not_saved(saver->rank, state->step, &error);
    comm_all_reduce(world, &ok, 1, COMM_INT32, COMM_MIN);
    comm_all_reduce(world, &sum, (int64_t)(sizeof sum / 8), COMM_INT64, COMM_SUM); // it wraps around in every order
    if (ok && saver->rank == 0 && !publish(saver, state, &sites, &sum, &error)) {
        ok = false;
        say_not_saved(0, state->step, &error);
    }
    comm_broadcast(world, &ok, 1, COMM_INT32, 0);
    if (!ok && saver->rank == 0) checkpoint_abandon(saver->out, state->step);
    return ok;
}
