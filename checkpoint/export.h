/*
checkpoint/export.h: writes the weights alone for other programs: at the end of a run, which may train nothing and only
convert files.

    --export FOLDER     config.json and model.safetensors, as transformers loads them, and the files beside them
                        (checkpoint/hub_files.h)

    rank 0        export_begin      makes PATH.tmp, with the file at its final size
    every rank    export_write      writes and flushes its slices
    rank 0        export_publish    writes config.json, and renames PATH.tmp to PATH

Theory. Weights are float32. As for a checkpoint, nothing is gathered on one rank: all write their
slices into one file, and data ranks write buckets in turn. Between these calls the caller waits for all ranks and asks
whether all have succeeded. An existing PATH is never replaced, and no other file is touched that this run has not made.
*/
#pragma once

#include "save.h"

typedef struct {
    const char* path;
    char temporary[CHECKPOINT_PATH];
    CheckpointSites weights;
} Export;

// The folder that path is in.
static bool export_parent(char folder[CHECKPOINT_PATH], const char* path, Error* error) {
    const char* slash = strrchr(path, '/');
    if (!slash) return checkpoint_path(folder, error, ".");
    return checkpoint_path(folder, error, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

// All ranks: whether a model can be written to path, which must not exist.
static bool export_open(Export* job, const char* path, Error* error) {
    char parent[CHECKPOINT_PATH];
    struct stat st;
    memset(job, 0, sizeof *job);
    job->path = path;
    if (path[strlen(path) - 1] == '/') return fail(error, "--export %s: drop the last /", path);
    if (!checkpoint_path(job->temporary, error, "%s.tmp", path)) return false;
    if (lstat(path, &st) == 0 || lstat(job->temporary, &st) == 0)
        return fail(error, "--export %s: it, or %s.tmp, is there already, and would not be replaced", path, path);
    if (!export_parent(parent, path, error)) return false;
    if (access(parent, W_OK | X_OK) != 0)
        return fail(error, "--export %.512s: cannot write in %.400s: %s", path, parent, strerror(errno));
    return true;
}

// Rank 0, if a rank has failed after export_begin: removes the temporary files.
static void export_abandon(const Export* job) { checkpoint_remove(job->temporary); }

// Rank 0, first: makes the temporary files. If it fails, nothing is left behind.
static bool export_begin(const Export* job, const ModelConfig* model, Error* error) {
    if (mkdir(job->temporary, 0777) != 0)
        return fail(error, "--export: cannot make %s: %s", job->temporary, strerror(errno));
    if (checkpoint_create_files(job->temporary, model, &job->weights, error)) return true;
    export_abandon(job);
    return false;
}

// Every rank, after export_begin and once nothing is in flight between ranks: writes its slices.
static bool export_write(const Export* job, const Stage* stage, HeartbeatRow* row, Error* error) {
    CheckpointSum sum;
    return write_slices(stage, row, job->temporary, &job->weights, &sum, error);
}

// Rank 0, when all ranks have written. files: written beside the model.
static bool export_publish(const Export* job, const ModelConfig* model, const CaatConfig* caat, const HubFiles* files,
                           Error* error) {
    char path[CHECKPOINT_PATH];
    bool ok = checkpoint_path(path, error, "%s/config.json", job->temporary) &&
              checkpoint_write_config(path, model, caat, files->config, error) &&
              checkpoint_write_hub_files(job->temporary, files, error) && folder_sync(job->temporary, error);
    if (!ok) export_abandon(job);
    ok = ok && (rename(job->temporary, job->path) == 0 ||
                fail(error, "--export %.480s: cannot be given its name: %s; the weights are in %.480s", job->path,
                     strerror(errno), job->temporary));
    return ok && export_parent(path, job->path, error) && folder_sync(path, error);
}
