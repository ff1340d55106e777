/*
checkpoint/async_save.h: saves the stages of all ranks as a checkpoint while training continues, and reads them back.

    saver_begin     starts a save: in a thread, or to its end where training is over
    saver_meet      waits for the last save; the result is the same on all ranks
    read_slices     reads this rank's part of a checkpoint
    stage_values    where weights and moments are on this rank; site_values: the further values of asynchronous sites

Theory. A save has two parts. The first one blocks training: it waits for messages in flight between ranks, rank 0 makes
the folder and its files, and every rank copies its part into a snapshot in host memory. In the second part
a thread of each rank writes the snapshot and flushes it, while the ranks train on. The thread makes no MPI calls, which
belong to the main threads. The ranks' threads meet in the folder itself:

    every rank      writes its slices, flushes them, and then writes rank_00003: the size of what it wrote, and its
                    checksum
    rank 0          waits for rank_00000, rank_00001, ..., adds them up, removes them, and publishes
                    (checkpoint/checkpoint.h)

    training  -- step -- step --|settle, copy|-- step -- step -- step -- step --|settle, copy|--
    thread                                   '--- write, flush, publish ---'                 '---

A rank that cannot write prints the reason on stderr and leaves no rank_N. Before the next save, and at the end, all
ranks meet (saver_meet): each waits for its own thread, they exchange whether it succeeded, and if one failed rank 0
abandons the save. So no rank waits for ever, a failed save does not end the run, and at most one save runs at a time.
No training runs beside the last save: it is written from the values themselves, without a copy.

A checkpoint holds weights in float32, both moments, and the values that each asynchronous site has of its own. Data
ranks hold the same slices and write buckets in turn; with ZeRO they first gather their shards of a bucket.
*/
#pragma once

#include "checkpoint_dir.h"
#include "../parallel/optimizer.h"
#include "../util/heartbeat.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>

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
    const ShardedBuffer values = {buffers[what], stage->layout.mesh.zero && (what > 0 || HAS_MASTER_WEIGHTS)};
    return values;
}

// The values of asynchronous sites beside weights and moments, and where they are.
typedef struct {
    CheckpointSites list;
    ShardedBuffer of[CHECKPOINT_KINDS];
} AsyncCheckpointState;

static AsyncCheckpointState site_values(const Stage* stage) {
    AsyncCheckpointState state = {};
    state.list.copies = stage->grads.scope == SCOPE_SITE ? stage->layout.mesh.sites : 1;
    state.list.moments = stage->type.moments;
    state.list.muon = stage->layout.mesh.muon;
    state.list.kinds = stage->kept_values;
    for (int i = 0; i < stage->kept_values; i++) {
        const ShardedBuffer values = {stage->kept[i].at, stage->kept[i].sharded};
        state.list.kind[i] = stage->kept[i].name;
        state.of[i] = values;
    }
    return state;
}

// Whether values are Muon's second moments, of which matrices of blocks have none.
static bool lacks_matrices(const Stage* stage, ShardedBuffer values) {
    return stage->layout.mesh.muon && values.at == stage->moment2;
}

// Copies this rank's second moments of a bucket between such memory and `whole`, the bucket's elements in host memory.
static void copy_second_moments(const Stage* stage, int b, float* whole, bool to_host) {
    const Layout* layout = &stage->layout;
    const Bucket* bucket = &layout->bucket[b];
    for (int i = bucket->first; i < bucket->first + bucket->slices; i++) {
        const TensorRange range = owned_range(stage, &layout->slices[i]);
        float* device = stage->moment2 + (range.at - layout_muon_elements(layout, i));
        float* host = whole + (range.from - bucket->offset);
        if (range.n == 0 || slice_is_of_muon(layout, &layout->slices[i])) continue;
        if (to_host)
            device_to_host(host, device, (size_t)range.n * sizeof(float));
        else
            device_from_host(device, host, (size_t)range.n * sizeof(float));
    }
}

// All values of a bucket in host memory: in place, or gathered in copy (largest_bucket() floats).
static const float* whole_values(const Stage* stage, int b, ShardedBuffer values, float* copy) {
    const Layout* layout = &stage->layout;
    const int64_t n = bucket_shard_size(layout, b);
    if (lacks_matrices(stage, values)) {
        memset(copy, 0, (size_t)layout->bucket[b].elements * sizeof(float));
        copy_second_moments(stage, b, copy, true);
        if (values.share) comm_all_gather(zero_group(stage->groups), copy, copy + layout->mesh.data * n, n, COMM_FLOAT);
        return copy;
    }
    if (values.share) {
        float* mine = copy + layout->mesh.data * n;
        device_to_host(mine, values.at + bucket_shard_offset(layout, b), (size_t)n * sizeof(float));
        comm_all_gather(zero_group(stage->groups), copy, mine, n, COMM_FLOAT);
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
    if (lacks_matrices(stage, values))
        copy_second_moments(stage, b, (float*)whole, false);
    else if (values.share)
        device_from_host(values.at + bucket_shard_offset(layout, b), whole + layout->mesh.data * share,
                         (size_t)share * sizeof(float));
    else
        device_from_host(values.at + at, whole, (size_t)n * sizeof(float));
}

// Sets the weights that the model computes with, and the float32 master weights where there are any.
static void set_bucket_weights(const Stage* stage, int b, const float* whole) {
    const ShardedBuffer masters = {stage->master, stage->layout.mesh.zero > 0};
    device_from_floats(stage->params + stage->layout.bucket[b].offset, whole, stage->layout.bucket[b].elements);
    if (stage->master) set_values(stage, b, masters, whole);
}

// Reads this rank's part. For asynchronous sites the weights are the global parameters; the site's own values follow.
static bool read_slices(const Stage* stage, const CheckpointReader* reader, HeartbeatRow* row, Error* error) {
    const Layout* layout = &stage->layout;
    const AsyncCheckpointState sites = site_values(stage);
    const bool local = stage->grads.scope == SCOPE_SITE;
    const int copy = local ? mesh_site(&layout->mesh) : 0;
    float* whole = (float*)checked_malloc((size_t)largest_bucket(layout) * sizeof(float), "the values of a bucket");
    bool ok = true;
    for (int b = 0; b < layout->buckets && ok; b++) {
        heartbeat_background(row);
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

typedef enum { SAVE_NONE, SAVE_RUNS, SAVE_DONE, SAVE_FAILED } SaveEnd;

// One value of one bucket in the snapshot.
typedef struct {
    int bucket, value;
    int64_t at;
} SavedValue;

// The data that a rank needs to save. It must not be copied, as the writer points to its own paths.
typedef struct {
    const Stage* stage;
    const char* out;
    int rank, ranks;
    int64_t keep;          // checkpoints; 0: all
    const HubFiles* files; // written beside the model
    bool mounted;          // out is a mount point
    HeartbeatRow* row;     // for the watchdog, or NULL
    // The save that is running, or the last one.
    CheckpointState state;
    CheckpointSites sites;
    CheckpointWriter writer;
    SavedValue* list; // in the snapshot
    int n, room;
    float* snapshot;
    int64_t floats, used;
    bool timed;      // --save-minutes asks for this save; set before saver_begin
    int64_t passing; // the step of the last such save, on rank 0; -1: none
    int64_t left;    // the step of a failed save whose .tmp may remain on a disk that was gone; -1: none
    int64_t attempt; // identifies this save; ranks of a killed run that still write have another number
    pthread_t thread;
    bool begun, threaded; // a save has to be ended, a thread to be joined
    // By __atomic: this rank's part is over, successfully (wrote) or not; all parts are over; rank 0 must not publish.
    bool written, all_written, give_up;
    bool wrote;
    SaveEnd end;   // by __atomic; rank 0's decides
    bool reported; // on stdout and in the log
    Error error;   // of the first failure
    double started, stall, seconds;
} Saver;

// Value v of this rank: its number in checkpoint/checkpoint.h, where it is, and its site (-1: the same on all sites).
typedef struct {
    ShardedBuffer values;
    int number, site;
} SavedPart;

static SavedPart saved_part(const Stage* stage, const AsyncCheckpointState* sites, int v) {
    const bool local = stage->grads.scope == SCOPE_SITE;
    const int own = local ? mesh_site(&stage->layout.mesh) : 0, kind = v - 1 - sites->list.moments;
    if (kind < 0) { // where moments differ between sites, site 0's are saved
        const SavedPart part = {stage_values(stage, v), v, local && v > 0 ? 0 : -1};
        return part;
    }
    const SavedPart part = {sites->of[kind], checkpoint_value_of_site(&sites->list, kind, own), local ? own : -1};
    return part;
}

// Floats of the snapshot.
static int64_t snapshot_floats(const Stage* stage) {
    const AsyncCheckpointState sites = site_values(stage);
    const int values = 1 + sites.list.moments + sites.list.kinds;
    int64_t n = 0;
    for (int i = 0; i < stage->layout.buckets * values; i++) {
        const int b = i % stage->layout.buckets, v = i / stage->layout.buckets;
        if (writes_bucket(&stage->layout.mesh, b, saved_part(stage, &sites, v).site))
            n += stage->layout.bucket[b].elements;
    }
    return n;
}

// Whether a folder is a mount point.
static bool folder_is_mount(const char* path) {
    char above[CHECKPOINT_PATH];
    struct stat here, there;
    Error error;
    return checkpoint_path(above, &error, "%s/..", path) && stat(path, &here) == 0 && stat(above, &there) == 0 &&
           here.st_dev != there.st_dev;
}

// Whether the disk is mounted: without it the folder still takes files, on another disk, where they would be lost.
static bool saver_disk_is_there(const Saver* saver, Error* error) {
    return !saver->mounted || folder_is_mount(saver->out) ||
           fail(error, "%s: its disk is not mounted any more", saver->out);
}

static void saver_open(Saver* saver, const Stage* stage, const char* out, int64_t keep, const HubFiles* files, int rank,
                       int ranks, HeartbeatRow* row) {
    memset(saver, 0, sizeof *saver);
    saver->stage = stage;
    saver->out = out;
    saver->keep = keep;
    saver->files = files;
    saver->rank = rank;
    saver->ranks = ranks;
    saver->row = row;
    saver->mounted = folder_is_mount(out);
    saver->left = -1;
    saver->passing = -1;
}

static void saver_free(Saver* saver) {
    free(saver->snapshot), free(saver->list);
    memset(saver, 0, sizeof *saver);
}

// Passes all values that this rank writes to `take` (NULL: to nothing), in the same order on all ranks, as with ZeRO
// they gather each bucket. After a failure it continues to gather, as the other ranks wait for it.
static bool walk_values(Saver* saver, bool (*take)(Saver*, SavedValue, const float*, Error*), Error* error) {
    const Stage* stage = saver->stage;
    const AsyncCheckpointState sites = site_values(stage);
    const int values = 1 + sites.list.moments + sites.list.kinds;
    float* copy =
        (float*)checked_malloc((size_t)largest_bucket(&stage->layout) * sizeof(float), "the values of a bucket");
    bool ok = true;
    for (int i = 0; i < stage->layout.buckets * values; i++) {
        const int b = i / values, v = i % values;
        const SavedPart part = saved_part(stage, &sites, v);
        const float* whole = whole_values(stage, b, part.values, copy);
        const SavedValue value = {b, part.number, saver->used};
        if (ok && take && writes_bucket(&stage->layout.mesh, b, part.site)) ok = take(saver, value, whole, error);
        heartbeat_background(saver->row);
    }
    free(copy);
    return ok;
}

static bool take_to_disk(Saver* saver, SavedValue value, const float* whole, Error* error) {
    return checkpoint_write_value(&saver->writer, &saver->stage->layout, value.bucket, value.value, whole, error);
}

static bool take_to_snapshot(Saver* saver, SavedValue value, const float* whole, Error* error) {
    const int64_t n = saver->stage->layout.bucket[value.bucket].elements;
    (void)error;
    if (saver->n == saver->room)
        saver->list = (SavedValue*)checked_grow(saver->list, &saver->room, 64, sizeof *saver->list, "a snapshot");
    saver->list[saver->n++] = value;
    memcpy(saver->snapshot + value.at, whole, (size_t)n * sizeof(float));
    saver->used += n;
    return true;
}

// ---- Meeting in the folder --------------------------------------------------------------------------------------

static bool rank_file(char path[CHECKPOINT_PATH], const Saver* saver, int rank, Error* error) {
    return checkpoint_path(path, error, "%s/step_%08lld.tmp/rank_%05d", saver->out, (long long)saver->state.step, rank);
}

// Writes rank_N, which reports that this rank has written its part, and its checksums. The file is complete if it ends
// with a line feed. It is not flushed to the disk: rank 0 may have read it by the time a flush fails.
static bool rank_reports(const Saver* saver, Error* error) {
    char path[CHECKPOINT_PATH];
    const CheckpointSum* sum = &saver->writer.sum;
    if (!rank_file(path, saver, saver->rank, error)) return false;
    FILE* out = fopen(path, "w");
    const bool ok = out && fprintf(out, "%lld %lld %llx %llx %llx\n", (long long)saver->attempt,
                                   (long long)sum->elements, (unsigned long long)sum->checksum[0],
                                   (unsigned long long)sum->checksum[1], (unsigned long long)sum->checksum[2]) > 0;
    return (out && fclose(out) == 0 && ok) || fail(error, "%s: cannot write: %s", path, strerror(errno));
}

// Adds a rank's report. False: it has not reported yet, or its file cannot be read (*code: errno).
static bool rank_collect(CheckpointSum* sum, const char* path, int64_t attempt, int* code) {
    long long number, elements;
    unsigned long long c[3];
    char end = 0;
    FILE* in = fopen(path, "r");
    *code = in || errno == ENOENT || errno == ESTALE ? 0 : errno;
    if (!in) return false;
    const int read = fscanf(in, "%lld %lld %llx %llx %llx%c", &number, &elements, &c[0], &c[1], &c[2], &end);
    fclose(in);
    if (read != 6 || end != '\n' || number != attempt) return false;
    const CheckpointSum one = {elements, {c[0], c[1], c[2]}};
    checkpoint_sum_add(sum, &one);
    return true;
}

enum { REPORTS_WAIT = 120 }; // seconds until a network file system shows files that other machines have written

// Rank 0 waits for the reports of all ranks. False if another rank has failed, or the folder is gone.
static bool ranks_collect(Saver* x, CheckpointSum* sum, Error* error) {
    char path[CHECKPOINT_PATH], folder[CHECKPOINT_PATH];
    useconds_t pause = 500;
    double all_since = INFINITY; // when all had written
    int code;
    if (!checkpoint_folder(folder, x->out, x->state.step, ".tmp", error)) return false;
    memset(sum, 0, sizeof *sum);
    for (int rank = 0; rank < x->ranks;) {
        if (!rank_file(path, x, rank, error)) return false;
        if (rank_collect(sum, path, x->attempt, &code)) {
            heartbeat_background(x->row);
            rank++;
        } else if (__atomic_load_n(&x->give_up, __ATOMIC_ACQUIRE)) {
            return fail(error, "%s/step_%08lld: another rank could not write its part", x->out,
                        (long long)x->state.step);
        } else if (!checkpoint_is_there(folder, error)) {
            return false;
        } else if (code) {
            return fail(error, "%s: cannot read: %s", path, strerror(code));
        } else if (seconds_now() > all_since + REPORTS_WAIT) {
            return fail(error,
                        "%s: is not there, though rank %d has written it; do all ranks see the same file system?", path,
                        rank);
        } else {
            if (isinf(all_since) && __atomic_load_n(&x->all_written, __ATOMIC_ACQUIRE)) all_since = seconds_now();
            usleep(pause);
            if (pause < 100000) pause *= 2;
        }
    }
    for (int rank = 0; rank < x->ranks; rank++) {
        if (rank_file(path, x, rank, error)) unlink(path);
    }
    return true;
}

// ---- Writing ----------------------------------------------------------------------------------------------------

// Writes this rank's part: from the snapshot, or from the values themselves.
static bool write_part(Saver* saver, bool from_snapshot, Error* error) {
    const Stage* stage = saver->stage;
    Error late;
    bool ok = checkpoint_join(&saver->writer, saver->out, saver->state.step, &stage->model, &saver->sites, error);
    if (!ok) { // no file is open, but the other ranks still wait for the gathers
        if (!from_snapshot) walk_values(saver, NULL, &late);
        return false;
    }
    const int snapshots = from_snapshot ? saver->n : 0;
    for (int i = 0; i < snapshots && ok; i++) {
        const SavedValue* value = &saver->list[i];
        ok = checkpoint_write_value(&saver->writer, &stage->layout, value->bucket, value->value,
                                    saver->snapshot + value->at, error);
        heartbeat_background(saver->row);
    }
    if (!from_snapshot) ok = walk_values(saver, take_to_disk, error);
    return checkpoint_leave(&saver->writer, ok, ok ? error : &late) && ok && rank_reports(saver, error);
}

// Rank 0, after all parts: publishes the checkpoint and removes old ones.
static bool publish_part(Saver* saver, Error* error) {
    CheckpointSum sum;
    const Stage* stage = saver->stage;
    if (!ranks_collect(saver, &sum, error)) return false;
    if (!checkpoint_publish(saver->out, &saver->state, &stage->model, &stage->layout.mesh.caat, &saver->sites, &sum,
                            saver->files, error))
        return false;
    Error why;
    if (!checkpoint_prune(saver->out, saver->keep, saver->state.step, saver->passing, &why))
        fprintf(stderr, "%s: --keep-last: %s\n", process.name, why.text);
    saver->passing = saver->timed ? saver->state.step : -1;
    return true;
}

static void say_not_saved(const Saver* saver) {
    end_line();
    fprintf(stderr, "%s: rank %d: the checkpoint of step %lld was not saved: %s\n", process.name, saver->rank,
            (long long)saver->state.step, saver->error.text);
}

static void save_ends(Saver* saver, bool ok) {
    saver->seconds = seconds_now() - saver->started;
    __atomic_store_n(&saver->end, ok ? SAVE_DONE : SAVE_FAILED, __ATOMIC_RELEASE);
}

// The second part of a save.
static void save_write(Saver* saver, bool from_snapshot) {
    Error gone;
    char folder[CHECKPOINT_PATH];
    const bool named = checkpoint_folder(folder, saver->out, saver->state.step, ".tmp", &gone);
    saver->wrote = write_part(saver, from_snapshot, &saver->error);
    const bool is_gone = !saver->wrote && named && !checkpoint_is_there(folder, &gone);
    if (is_gone) saver->error = gone;
    if (!saver->wrote && (!is_gone || saver->rank == 0)) // only rank 0 reports a folder that is gone
        say_not_saved(saver);
    if (saver->rank > 0) save_ends(saver, saver->wrote);
    __atomic_store_n(&saver->written, true, __ATOMIC_RELEASE);
}

// Rank 0 publishes the save, or reports that it failed.
static void save_publish(Saver* saver) {
    const bool ok = saver->wrote && publish_part(saver, &saver->error);
    if (saver->wrote && !ok && !__atomic_load_n(&saver->give_up, __ATOMIC_ACQUIRE))
        say_not_saved(saver); // else another rank has reported it
    save_ends(saver, ok);
}

static void* save_thread(void* context) {
    Saver* saver = (Saver*)context;
    // Training has priority where it shares a core with this thread.
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 5);
    save_write(saver, true);
    if (saver->rank == 0) save_publish(saver);
    return NULL;
}

// All ranks: waits for the last save. SAVE_NONE (there is none), SAVE_DONE or SAVE_FAILED, the same on all ranks.
static SaveEnd saver_meet(Saver* saver, Comm* world) {
    if (!saver->begun) return SAVE_NONE;
    while (!__atomic_load_n(&saver->written, __ATOMIC_ACQUIRE)) usleep(500);
    int32_t ok = saver->wrote;
    comm_all_reduce(world, &ok, 1, COMM_INT32, COMM_MIN);
    __atomic_store_n(ok ? &saver->all_written : &saver->give_up, true, __ATOMIC_RELEASE);
    if (saver->threaded) pthread_join(saver->thread, NULL);
    if (!saver->threaded && saver->rank == 0) save_publish(saver);
    ok = saver->end == SAVE_DONE;
    comm_broadcast(world, &ok, 1, COMM_INT32, 0);
    // Not before the broadcast, as other ranks were still writing there.
    if (!ok && saver->rank == 0 && !checkpoint_abandon(saver->out, saver->state.step)) saver->left = saver->state.step;
    saver->threaded = saver->begun = false;
    return ok ? SAVE_DONE : SAVE_FAILED;
}

// All ranks, once nothing is in flight: saves the stage, in a thread (background) or before it returns; saver_meet
// returns the result. False on all ranks, with the reason on rank 0, if the save could not begin. started: the time at
// which training stopped for it.
static bool saver_begin(Saver* saver, Comm* world, const CheckpointState* state, bool background, double started,
                        Error* error) {
    const Stage* stage = saver->stage;
    if (saver->rank == 0 && saver->left >= 0 && checkpoint_abandon(saver->out, saver->left)) saver->left = -1;
    saver->state = *state;
    saver->sites = site_values(stage).list;
    saver->n = 0;
    saver->used = 0;
    saver->written = saver->all_written = saver->give_up = saver->reported = false;
    saver->started = started;
    saver->attempt = (int64_t)time(NULL) << 24 ^ getpid();
    if (saver->rank == 0 && !(saver_disk_is_there(saver, error) &&
                              checkpoint_begin(saver->out, state->step, &stage->model, &saver->sites, error)))
        saver->attempt = 0;
    comm_broadcast(world, &saver->attempt, 1, COMM_INT64, 0);
    if (!saver->attempt) return false;
    saver->begun = true;
    saver->end = SAVE_RUNS;
    if (background) {
        const int64_t floats = snapshot_floats(stage);
        if (!saver->snapshot || floats != saver->floats) {
            free(saver->snapshot);
            saver->snapshot = (float*)checked_malloc((size_t)floats * sizeof(float), "a snapshot for checkpoints");
            saver->floats = floats;
        }
        walk_values(saver, take_to_snapshot, error);
        saver->threaded = pthread_create(&saver->thread, NULL, save_thread, saver) == 0;
    }
    if (!saver->threaded) save_write(saver, background);
    saver->stall = seconds_now() - started;
    return true;
}
