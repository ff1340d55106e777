/*
checkpoint/checkpoint_dir.h: the folder of a run, --out, with its checkpoints (checkpoint/checkpoint.h) in it.

    checkpoint_clean    removes or restores the leftovers of killed runs
    checkpoint_prune    keeps the newest checkpoints and the best one, which OUT/best points to
*/
#pragma once

#include "checkpoint_verify.h"

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
