/*
checkpoint/checkpoint_dir.h: the folder of a run, --out, with its checkpoints (checkpoint/checkpoint.h) in it.

    checkpoint_clean    removes or restores the leftovers of killed runs
    checkpoint_prune    keeps the newest checkpoints and the best one, which OUT/best points to

It finds, verifies and reads the checkpoints that checkpoint.h writes:

    checkpoint_newest       the newest checkpoint of a folder; checkpoint_steps: all of them
    checkpoint_load_list    trainer.json: the state of the run, and the files with their sizes
    checkpoint_add_up       each rank checksums a part of the files; checkpoint_compare compares the sum over all ranks
    checkpoint_open         opens the files of tensors; checkpoint_read_bucket reads this rank's slices from them
*/
#pragma once

#include "checkpoint.h"

static inline int checkpoint_compare_steps(const void* a, const void* b) {
    const int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
    return (x < y) - (x > y);
}

// The steps of the checkpoints in `out`, the newest first, in an array for free(); returns how many.
static inline int checkpoint_steps(int64_t** steps, const char* out) {
    int n = 0, room = 0;
    long long step;
    *steps = NULL;
    DIR* folder = opendir(out);
    for (const struct dirent* entry = folder ? readdir(folder) : NULL; entry; entry = readdir(folder)) {
        char expected[64];
        if (sscanf(entry->d_name, "step_%lld", &step) != 1 || step < 0) continue;
        snprintf(expected, sizeof expected, "step_%08lld", step);
        if (strcmp(entry->d_name, expected) != 0) continue; // step_N.tmp
        if (n == room) *steps = (int64_t*)checked_grow(*steps, &room, 64, sizeof **steps, "checkpoints");
        (*steps)[n++] = step;
    }
    if (folder) closedir(folder);
    if (n > 0) qsort(*steps, (size_t)n, sizeof **steps, checkpoint_compare_steps);
    return n;
}

// Writes the folder of the newest checkpoint in `out` to path; false if there is none. It is not verified.
static inline bool checkpoint_newest(char* path, size_t size, const char* out) {
    int64_t* steps;
    const int n = checkpoint_steps(&steps, out);
    const long long newest = n > 0 ? (long long)steps[0] : -1;
    free(steps);
    if (n == 0) return false;
    return snprintf(path, size, "%s/step_%08lld", out, newest) < (int)size;
}

// Reads 16 hexadecimal digits.
static inline bool checkpoint_read_hex(uint64_t* checksum, const char* text) {
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) return false;
    *checksum = strtoull(text, NULL, 16);
    return true;
}

// Verifies the checksum at the end of trainer.json, which covers all bytes before it.
static inline bool checkpoint_check_own(const char* path, Error* error) {
    MappedFile file;
    if (!file_map(&file, path, error)) return false;
    char hex[17] = "";
    const int64_t covered = (int64_t)file.size - 20; // 16 digits, "\n}\n
    if (covered > 0) checkpoint_hex(hex, checksum_of(file.data, covered, 0));
    const bool ok =
        (covered > 0 && memcmp(file.data + covered, hex, 16) == 0) ||
        fail(error, "%s: does not end with its checksum: it was cut off, or changed after it was written", path);
    file_unmap(&file);
    return ok;
}

// Reads the list of files; only sites.safetensors may be missing.
static inline bool checkpoint_load_files(CheckpointList* list, const Json* json, Error* error) {
    const JsonNode* files = json_require(json, json->nodes, "files", JSON_OBJECT, error);
    for (int i = 0; i < CHECKPOINT_TENSOR_FILES + 1 && files; i++) {
        const char *name = checkpoint_files[i], *hex = "";
        CheckpointFile* entry = &list->file[list->files];
        if (i == CHECKPOINT_TENSOR_FILES - 1 && !json_get(files, name)) continue;
        const JsonNode* node = json_require(json, files, name, JSON_OBJECT, error);
        snprintf(entry->name, sizeof entry->name, "%s", name);
        if (!node || !json_get_integer(&entry->bytes, json, node, "bytes", 0, INT64_MAX, error) ||
            !json_get_string(&hex, json, node, "checksum", error))
            return false;
        if (!checkpoint_read_hex(&entry->checksum, hex))
            return json_fail(json, node, error, "a checksum has 16 hexadecimal digits");
        list->files++;
    }
    return files && ((int)files->count == list->files || json_fail(json, files, error, "a file too many"));
}

static inline bool checkpoint_load_text(char* text, size_t size, const Json* json, const char* key, Error* error) {
    const char* value = "";
    memset(text, 0, size);
    if (!json_get_string(&value, json, json->nodes, key, error)) return false;
    snprintf(text, size, "%s", value);
    return true;
}

static inline bool checkpoint_load_state(CheckpointState* state, const Json* json, Error* error) {
    const struct {
        const char* name;
        int64_t *value, most;
    } fields[] = {{"step", &state->step, INT64_MAX},
                  {"sequences", &state->sequences, INT64_MAX},
                  {"seed", &state->seed, INT64_MAX},
                  {"global_batch", &state->global_batch, INT64_MAX},
                  {"seq", &state->seq, INT64_MAX},
                  {"data_tokens", &state->data_tokens, INT64_MAX},
                  {"held_out_blocks", &state->held_out, 1 << 20}};
    const char* hex = "";
    bool ok = true;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0] && ok; i++)
        ok = json_get_integer(fields[i].value, json, json->nodes, fields[i].name, 0, fields[i].most, error);
    ok = ok && checkpoint_load_text(state->async_plan, sizeof state->async_plan, json, "rounds", error) &&
         checkpoint_load_text(state->optimizer, sizeof state->optimizer, json, "optimizer", error) &&
         json_get_string(&hex, json, json->nodes, "data_checksum", error) &&
         (checkpoint_read_hex(&state->data_checksum, hex) ||
          json_fail(json, json->nodes, error, "\"data_checksum\" has 16 hexadecimal digits"));
    state->val_loss = (double)NAN;
    if (ok && json_get(json->nodes, "val_loss"))
        ok = json_get_number(&state->val_loss, json, json->nodes, "val_loss", error);
    return ok;
}

// Reads trainer.json of a checkpoint's folder; false if it was changed or damaged.
static inline bool checkpoint_read_list(CheckpointList* list, const char* folder, Error* error) {
    char path[CHECKPOINT_PATH];
    Json json;
    memset(list, 0, sizeof *list);
    if (!checkpoint_path(path, error, "%s/trainer.json", folder) || !checkpoint_check_own(path, error) ||
        !json_open(&json, path, error))
        return false;
    const bool ok = checkpoint_load_state(&list->state, &json, error) && checkpoint_load_files(list, &json, error);
    json_free(&json);
    return ok;
}

// Whether the files of a list exist and have their sizes.
static inline bool checkpoint_check_sizes(const CheckpointList* list, const char* folder, Error* error) {
    char path[CHECKPOINT_PATH];
    struct stat st;
    bool ok = true;
    for (int i = 0; i < list->files && ok; i++) {
        const CheckpointFile* file = &list->file[i];
        if (!checkpoint_path(path, error, "%s/%s", folder, file->name)) return false;
        ok = (stat(path, &st) == 0 && S_ISREG(st.st_mode) && (int64_t)st.st_size == file->bytes) ||
             fail(error, "%s: is not there, or has not the %lld bytes that it had when it was written", path,
                  (long long)file->bytes);
    }
    return ok;
}

// Reads trainer.json, and checks that all files exist and have their sizes.
static inline bool checkpoint_load_list(CheckpointList* list, const char* folder, Error* error) {
    return checkpoint_read_list(list, folder, error) && checkpoint_check_sizes(list, folder, error);
}

// The same for the weights and config.json alone: a run that only starts from them needs no other file.
static inline bool checkpoint_load_weights_list(CheckpointList* list, const char* folder, Error* error) {
    if (!checkpoint_read_list(list, folder, error)) return false;
    list->file[1] = list->file[list->files - 1]; // the weights come first, config.json last
    list->files = 2;
    return checkpoint_check_sizes(list, folder, error);
}

// Whether a checkpoint's config.json is unchanged.
static inline bool checkpoint_config_is_sound(const char* folder) {
    char path[CHECKPOINT_PATH];
    CheckpointList list;
    CheckpointFile now;
    Error error;
    return checkpoint_load_weights_list(&list, folder, &error) &&
           checkpoint_path(path, &error, "%s/config.json", folder) && checkpoint_sum_file(&now, path, &error) &&
           now.checksum == list.file[1].checksum;
}

// Any rank: adds part `rank` of `ranks` of the checksum of file i to sums[i].
static inline bool checkpoint_add_up(uint64_t sums[CHECKPOINT_TENSOR_FILES + 1], const CheckpointList* list,
                                     const char* folder, int rank, int ranks, Error* error) {
    char path[CHECKPOINT_PATH];
    for (int i = 0; i < list->files; i++) {
        const CheckpointFile* entry = &list->file[i];
        const int64_t words = (entry->bytes + 3) / 4, part = (words + ranks - 1) / ranks;
        const int64_t from = min_i64(words, rank * part), to = min_i64(words, from + part);
        MappedFile file;
        if (!checkpoint_path(path, error, "%s/%s", folder, entry->name) || !file_map(&file, path, error)) return false;
        const bool same = (int64_t)file.size == entry->bytes;
        if (same && from < to)
            sums[i] += checksum_of(file.data + 4 * from, min_i64(4 * to, entry->bytes) - 4 * from, from);
        file_unmap(&file);
        if (!same) return fail(error, "%s: its size has just changed", path);
    }
    return true;
}

// Whether a checkpoint's step is the one in its folder's name.
static inline bool checkpoint_check_step(const CheckpointList* list, const char* folder, int64_t step, Error* error) {
    return list->state.step == step ||
           fail(error, "%s/trainer.json: is of step %lld", folder, (long long)list->state.step);
}

// Compares the checksums, summed over all ranks, with the list; the error names the file that differs.
static inline bool checkpoint_compare(const uint64_t sums[CHECKPOINT_TENSOR_FILES + 1], const CheckpointList* list,
                                      const char* folder, Error* error) {
    for (int i = 0; i < list->files; i++) {
        const CheckpointFile* file = &list->file[i];
        if (sums[i] != file->checksum)
            return fail(error,
                        "%s/%s: its checksum is %016llx, and was %016llx when it was written: bits have changed, or it "
                        "is another checkpoint's",
                        folder, file->name, (unsigned long long)sums[i], (unsigned long long)file->checksum);
    }
    return true;
}

typedef struct {
    CheckpointSites sites;
    SafeTensorsModel file[CHECKPOINT_TENSOR_FILES];
} CheckpointReader;

static inline void checkpoint_close(CheckpointReader* reader) {
    for (int i = 0; i < checkpoint_tensor_files(&reader->sites); i++) safetensors_model_close(&reader->file[i]);
}

// Any rank: opens the checkpoint in `folder`. The values of asynchronous sites (NULL: none) are opened if
// state->async_plan is the same as in the file; *state becomes the file's. On failure nothing has to be closed.
static inline bool checkpoint_open(CheckpointReader* reader, const char* folder, CheckpointState* state,
                                   const CheckpointSites* sites, Error* error) {
    memset(reader, 0, sizeof *reader);
    char path[CHECKPOINT_PATH], now[CHECKPOINT_OPTIONS_TEXT] = "";
    CheckpointList list;
    if (sites) memcpy(now, state->async_plan, sizeof now);
    bool ok = checkpoint_load_list(&list, folder, error);
    *state = list.state;
    reader->sites = checkpoint_of_adamw;
    if (sites) reader->sites.moments = sites->moments;
    if (ok && sites && strcmp(now, state->async_plan) == 0) reader->sites = *sites;
    for (int i = 0; i < checkpoint_tensor_files(&reader->sites) && ok; i++) {
        ok = checkpoint_path(path, error, "%s/%s", folder, checkpoint_files[i]) &&
             safetensors_model_open(&reader->file[i], path, error);
    }
    if (!ok) checkpoint_close(reader);
    return ok;
}

// Reads one value of a bucket: weights (0), first (1) or second (2) moments, or a site's. Padding, and elements of the
// bucket that belong to no slice, become 0.
static inline bool checkpoint_read_bucket(const CheckpointReader* reader, const Layout* layout, int bucket, int value,
                                          float* values, Error* error) {
    const int number = checkpoint_file_of(reader->sites.moments, value);
    const SafeTensorsModel* file = &reader->file[number];
    const int expected = checkpoint_values_of_file(&reader->sites, number) * layout->tensors;
    // Further tensors, as of a model with more layers, would be ignored silently.
    if (file->tensors != expected)
        return fail(error, "%s: has %lld tensors, the model needs %d; is it the model that --model and the sizes say?",
                    file->path, (long long)file->tensors, expected);
    const Bucket* b = &layout->bucket[bucket];
    memset(values, 0, (size_t)b->elements * sizeof *values);
    for (int i = b->first; i < b->first + b->slices; i++) {
        const Slice* slice = &layout->slices[i];
        char name[128];
        checkpoint_name(name, sizeof name, &reader->sites, value, slice->tensor.name);
        if (!slice_read(values + (slice->offset - b->offset), file, name, slice, error)) return false;
    }
    return true;
}

// Removes the leftovers of killed runs in `out`, before a rank saves there: .tmp, and .old unless its run was killed
// before the new checkpoint had the name; then it gets its name back. Best effort: leftovers that cannot be removed do
// no harm.
static inline void checkpoint_clean(const char* out) {
    char name[CHECKPOINT_PATH], path[CHECKPOINT_PATH];
    Error error;
    DIR* folder = opendir(out);
    for (const struct dirent* entry = folder ? readdir(folder) : NULL; entry; entry = readdir(folder)) {
        const char* dot = strchr(entry->d_name, '.');
        if (strncmp(entry->d_name, "step_", 5) != 0 || !dot) continue;
        if (strspn(entry->d_name + 5, "0123456789") != (size_t)(dot - entry->d_name - 5)) continue;
        const bool old = strcmp(dot, ".old") == 0;
        if (!checkpoint_path(path, &error, "%s/%s", out, entry->d_name)) continue;
        if (!checkpoint_path(name, &error, "%s/%.*s", out, (int)(dot - entry->d_name), entry->d_name)) continue;
        CheckpointList list;
        if (old && access(name, F_OK) != 0 && checkpoint_load_list(&list, path, &error) && rename(path, name) == 0)
            continue;
        if (old || strcmp(dot, ".tmp") == 0) checkpoint_remove(path);
    }
    if (folder) closedir(folder);
}

// The step of the checkpoint with the lowest validation loss (of n), the newest of equals; -1: none was validated.
static inline int64_t checkpoint_best(const char* out, const int64_t* steps, int n) {
    char path[CHECKPOINT_PATH];
    double lowest = INFINITY;
    int64_t best = -1;
    CheckpointList list;
    Error error;
    for (int i = 0; i < n; i++) {
        if (!checkpoint_folder(path, out, steps[i], "", &error) || !checkpoint_load_list(&list, path, &error)) continue;
        if (!(list.state.val_loss < lowest)) continue; // NaN: not validated
        lowest = list.state.val_loss;
        best = steps[i];
    }
    return best;
}

// Links OUT/best to step_N atomically. A file of that name that is not a link is not touched.
static inline bool checkpoint_link_best(const char* out, int64_t best, Error* error) {
    char link[CHECKPOINT_PATH], fresh[CHECKPOINT_PATH], target[64];
    struct stat st;
    if (!checkpoint_path(link, error, "%s/best", out) || !checkpoint_path(fresh, error, "%s/best.tmp", out))
        return false;
    if (lstat(link, &st) == 0 && !S_ISLNK(st.st_mode)) return true;
    snprintf(target, sizeof target, "step_%08lld", (long long)best);
    if (lstat(fresh, &st) == 0 && S_ISLNK(st.st_mode)) unlink(fresh); // left by a run that was killed
    const bool made = symlink(target, fresh) == 0;
    if (made && rename(fresh, link) == 0) return true;
    const int code = errno;
    if (made) unlink(fresh);
    // Some file systems have no links; the checkpoint is complete without OUT/best.
    return code == EPERM || code == ENOSYS || code == EOPNOTSUPP ||
           fail(error, "%s: cannot link to %s: %s", link, target, strerror(code));
}

// Rank 0, when the checkpoint of step `last` was published: removes older ones except the newest `keep` (0: all)
// and the best one, which OUT/best points to. Later checkpoints, from which the run could not resume, are not counted
// and stay until the run reaches their step. A checkpoint loses its name before its files are removed, so none is ever
// incomplete.
static inline bool checkpoint_prune(const char* out, int64_t keep, int64_t last, Error* error) {
    char path[CHECKPOINT_PATH], old[CHECKPOINT_PATH];
    int64_t* steps;
    const int n = checkpoint_steps(&steps, out);
    int first = 0;
    while (first < n && steps[first] > last) first++;
    const int64_t best = checkpoint_best(out, steps + first, n - first);
    const bool linked = best < 0 || checkpoint_link_best(out, best, error); // a failure does not stop the removal
    Error why, *reason = linked ? error : &why;
    bool ok = true;
    for (int64_t i = keep ? first + keep : n; i < n && ok; i++) {
        if (steps[i] == best) continue;
        ok =
            checkpoint_folder(path, out, steps[i], "", reason) && checkpoint_folder(old, out, steps[i], ".old", reason);
        if (!ok) continue;
        checkpoint_remove(old);
        if (rename(path, old) != 0) ok = fail(reason, "%s: cannot remove: %s", path, strerror(errno));
        checkpoint_remove(old);
    }
    free(steps);
    return ok && linked;
}
