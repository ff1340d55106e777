/*
checkpoint/export.h: writes the weights alone for other programs: at the end of a run, which may train nothing and only
convert files.

    --export FOLDER     config.json and model.safetensors, as transformers loads them, and the files beside them
                        (checkpoint/hub_files.h)

    every rank    export_name       the temporary name, PATH.tmp-NUMBER; rank 0 has chosen the number
    rank 0        export_begin      makes it, with the file at its final size
    every rank    export_write      writes and flushes its slices
    rank 0        export_publish    writes config.json, and renames PATH.tmp-NUMBER to PATH

Theory. Weights are float32, or rounded to bf16. As for a checkpoint, nothing is gathered on one rank: all write their
slices into one file, and data ranks write buckets in turn. Between these calls the caller waits for all ranks and asks
whether all have succeeded. An existing PATH is never replaced, and no other file is touched that this run has not made.
*/
#pragma once

#include "save.h"

typedef struct {
    const char* path;
    char temporary[CHECKPOINT_PATH], file[CHECKPOINT_PATH]; // file is in the folder temporary
    SafeDtype dtype;
} Export;

// The folder that path is in.
static bool export_parent(char folder[CHECKPOINT_PATH], const char* path, Error* error) {
    const char* slash = strrchr(path, '/');
    if (!slash) return checkpoint_path(folder, error, ".");
    return checkpoint_path(folder, error, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

// All ranks: sets the temporary names.
static bool export_name(Export* job, uint64_t number, Error* error) {
    return checkpoint_path(job->temporary, error, "%s.tmp-%llx", job->path, (unsigned long long)number) &&
           checkpoint_path(job->file, error, "%s/model.safetensors", job->temporary);
}

// Refuses formats that cannot be written, by the ending of the file's name.
static bool export_check_ending(const char* path, Error* error) {
    static const struct {
        const char *ending, *what;
    } others[] = {{".safetensors", "a folder is written, with model.safetensors in it"},
                  {".bin", "a folder is written, with model.safetensors in it"},
                  {".gguf", "a folder is written, of which llama.cpp's convert_hf_to_gguf.py makes such a file"},
                  {".ggml", "a folder is written, of which llama.cpp's convert_hf_to_gguf.py makes a .gguf"},
                  {".onnx", "a folder is written, of which optimum-cli export onnx makes such a file"},
                  {".pt", "a folder is written, with safetensors that torch loads through transformers"},
                  {".pth", "a folder is written, with safetensors that torch loads through transformers"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (name_ends_with(path, others[i].ending))
            return fail(error, "--export %.512s: %s; name the folder", path, others[i].what);
    }
    return true;
}

// All ranks: whether a model can be written to path, which must not exist.
static bool export_open(Export* job, const char* path, bool bf16, Error* error) {
    struct stat st;
    memset(job, 0, sizeof *job);
    job->path = path;
    job->dtype = bf16 ? SAFE_BF16 : SAFE_F32;
    if (!export_check_ending(path, error)) return false;
    if (path[strlen(path) - 1] == '/') return fail(error, "--export %s: drop the last /", path);
    if (lstat(path, &st) == 0) return fail(error, "--export %s: is there already, and would not be replaced", path);
    if (!export_parent(job->file, path, error)) return false;
    if (access(job->file, W_OK | X_OK) != 0)
        return fail(error, "--export %.512s: cannot write in %.400s: %s", path, job->file, strerror(errno));
    return export_name(job, UINT64_MAX, error);
}

// Computes the layout of the file. offset (model_tensors(NULL, model)): the offsets of the model's tensors in bytes. On
// failure nothing has to be freed.
static bool export_file_layout(SafeTensorsLayout* file_layout, int64_t* offset, const Export* job,
                               const ModelConfig* model, Error* error) {
    const SafeMetadata about = {"format", "pt"}; // transformers requires it
    const int n = model_tensors(NULL, model);
    Tensor* tensors = (Tensor*)checked_malloc((size_t)n * sizeof *tensors, "the list of tensors");
    model_tensors(tensors, model);
    SafeTensor* list = (SafeTensor*)checked_calloc((size_t)n, sizeof *list, "the list of tensors");
    for (int i = 0; i < n; i++) {
        list[i].name = tensors[i].name;
        list[i].dtype = job->dtype;
        list[i].ndim = tensor_file_shape(list[i].shape, &tensors[i]);
    }
    const bool ok = safetensors_layout(file_layout, list, n, &about, 1, error);
    for (int i = 0; i < n; i++) offset[i] = list[i].offset;
    free(list);
    free(tensors);
    return ok;
}

// Rank 0, if a rank has failed after export_begin: removes the temporary files.
static void export_abandon(const Export* job) { checkpoint_remove(job->temporary); }

// Rank 0, first: makes the temporary files. If it fails, nothing is left behind.
static bool export_begin(const Export* job, const ModelConfig* model, Error* error) {
    SafeTensorsLayout file_layout;
    SafeTensorsFile file;
    int64_t* offset =
        (int64_t*)checked_malloc((size_t)model_tensors(NULL, model) * sizeof *offset, "where tensors are written");
    bool ok = export_file_layout(&file_layout, offset, job, model, error);
    free(offset);
    if (!ok) return false;
    ok = mkdir(job->temporary, 0777) == 0 || fail(error, "%s: cannot make it: %s", job->temporary, strerror(errno));
    if (ok && !safetensors_create(&file, job->file, &file_layout, error)) {
        export_abandon(job);
        ok = false;
    }
    if (ok) close(file.fd); // flushed later, by all
    safetensors_layout_free(&file_layout);
    return ok;
}

// Writes the slices of a bucket that this rank owns. values: the bucket's elements.
static bool export_bucket(RunWriter* runs, const Layout* layout, int bucket, const int64_t* offset, const float* values,
                          Error* error) {
    const Bucket* b = &layout->bucket[bucket];
    for (int i = b->first; i < b->first + b->slices; i++) {
        const Slice* slice = &layout->slices[i];
        if (slice_is_owned(slice, layout) &&
            !slice_write(runs, offset[slice->index], values + (slice->offset - b->offset), slice, error))
            return false;
    }
    return run_writer_flush(runs, error);
}

// Every rank, after export_begin and once nothing is in flight between ranks: writes its slices. With ZeRO the ranks
// gather each bucket; after a failure this one continues to gather, as the others wait for it.
static bool export_write(const Export* job, const Stage* stage, HeartbeatRow* row, Error* error) {
    const Layout* layout = &stage->layout;
    SafeTensorsLayout file_layout = {NULL, 0, 0};
    SafeTensorsFile file = {-1, NULL, 0};
    int64_t* offset = (int64_t*)checked_malloc((size_t)layout->tensors * sizeof *offset, "where tensors are written");
    float* copy = (float*)checked_malloc((size_t)largest_bucket(layout) * sizeof(float), "the values of a bucket");
    float* buffer = (float*)checked_malloc(RUN_WRITER_FLOATS * sizeof(float), "writing weights");
    bool ok = export_file_layout(&file_layout, offset, job, &stage->model, error) &&
              safetensors_join(&file, job->file, &file_layout, error);
    RunWriter runs = {&file, buffer, 0, 0, 0, "the weight", job->dtype};
    for (int b = 0; b < layout->buckets; b++) {
        const float* whole = whole_values(stage, b, stage_values(stage, 0), copy);
        if (ok && writes_bucket(&layout->mesh, b, -1)) ok = export_bucket(&runs, layout, b, offset, whole, error);
        heartbeat_background(row);
    }
    Error late; // the first error is the one that is reported
    if (file.fd >= 0) ok = safetensors_finish(&file, ok ? error : &late) && ok;
    safetensors_layout_free(&file_layout);
    free(offset), free(copy), free(buffer);
    return ok;
}

// Rank 0, when all ranks have written. files: written beside the model.
static bool export_publish(const Export* job, const ModelConfig* model, const CaatConfig* caat, const HubFiles* files,
                           Error* error) {
    char path[CHECKPOINT_PATH];
    bool ok = checkpoint_path(path, error, "%s/config.json", job->temporary) &&
              checkpoint_write_config(path, model, caat, job->dtype, files->config, error) &&
              checkpoint_write_hub_files(job->temporary, files, error) && folder_sync(job->temporary, error);
    if (!ok) export_abandon(job);
    ok = ok && (rename_new(job->temporary, job->path) ||
                fail(error, "--export %.480s: cannot be given its name: %s; the weights are in %.480s", job->path,
                     strerror(errno), job->temporary));
    return ok && export_parent(path, job->path, error) && folder_sync(path, error);
}
