/*
checkpoint/export.h: the weights of a run alone, for others: at its end, or of a run that trains nothing, to turn one kind of file
into another.

    --export FOLDER     config.json and model.safetensors, as transformers loads them; and what stands beside them (checkpoint/hub_files.h)
    --export FILE.bin   llm.c's (checkpoint/llmc_format.h)

in float32, or rounded to bf16. As for a checkpoint nothing is gathered on one rank: all write into one file, each its slices,
data ranks their buckets in turn.

    every rank    export_name       PATH.tmp-NUMBER, of a number that rank 0 has chosen
    rank 0        export_begin      makes that with the file at its final size
    every rank    export_write      its slices, flushed
    rank 0        export_publish    config.json; then PATH.tmp-NUMBER becomes PATH

Between these the caller waits for all ranks and asks whether all have succeeded. What is at PATH already is never replaced, nor is
anything else touched that this run has not made.
*/
#ifndef EXPORT_H
#define EXPORT_H

#include "async_save.h"
#include "llmc_format.h"

typedef struct {
    const char* path;
    char temporary[CHECKPOINT_PATH], file[CHECKPOINT_PATH]; // the second is, or is in, the first
    bool llmc;
    SafeDtype dtype;
} Export;

static inline bool export_ends_with(const char* path, const char* end) {
    const size_t n = strlen(path), m = strlen(end);
    return n > m && strcmp(path + n - m, end) == 0;
}

// The folder that path is in.
static bool export_parent(char folder[CHECKPOINT_PATH], const char* path, Error* error) {
    const char* slash = strrchr(path, '/');
    if (!slash) return checkpoint_path(folder, error, ".");
    return checkpoint_path(folder, error, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

// All ranks: where it is written at first.
static bool export_name(Export* x, uint64_t number, Error* error) {
    return checkpoint_path(x->temporary, error, "%s.tmp-%llx", x->path, (unsigned long long)number) &&
           checkpoint_path(x->file, error, x->llmc ? "%s" : "%s/model.safetensors", x->temporary);
}

// Formats that are not written, by the ending of their files.
static bool export_check_ending(const char* path, Error* error) {
    static const struct {
        const char *ending, *what;
    } others[] = {{".safetensors", "a folder is written, with model.safetensors in it"},
                  {".gguf", "a folder is written, of which llama.cpp's convert_hf_to_gguf.py makes such a file"},
                  {".ggml", "a folder is written, of which llama.cpp's convert_hf_to_gguf.py makes a .gguf"},
                  {".onnx", "a folder is written, of which optimum-cli export onnx makes such a file"},
                  {".pt", "a folder is written, with safetensors that torch loads through transformers"},
                  {".pth", "a folder is written, with safetensors that torch loads through transformers"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (export_ends_with(path, others[i].ending))
            return fail(error, "--export %.512s: %s; name the folder, or a file of llm.c's .bin", path, others[i].what);
    }
    return true;
}

// All ranks: whether a model can be written to path, which nothing may be at.
static bool export_open(Export* x, const char* path, bool bf16, const ModelConfig* m, const CaatConfig* sync,
                        Error* error) {
    struct stat st;
    Error why;
    memset(x, 0, sizeof *x);
    x->path = path, x->dtype = bf16 ? SAFE_BF16 : SAFE_F32, x->llmc = export_ends_with(path, ".bin");
    if (!export_check_ending(path, error)) return false;
    if (x->llmc && !llmc_check(m, &why)) return fail(error, "--export %.512s: %.400s", path, why.text);
    if (x->llmc && sync->ranks) return fail(error, "--export %s: llm.c's models have no partial sums (--sync)", path);
    if (path[strlen(path) - 1] == '/') return fail(error, "--export %s: leave the last / away", path);
    if (lstat(path, &st) == 0) return fail(error, "--export %s: is there already, and would not be replaced", path);
    if (!export_parent(x->file, path, error)) return false;
    if (access(x->file, W_OK | X_OK) != 0)
        return fail(error, "--export %.512s: cannot write in %.400s: %s", path, x->file, strerror(errno));
    return export_name(x, UINT64_MAX, error);
}

// Where everything lies; offset (model_tensors(NULL, m)): of the model's tensors, in bytes. On failure nothing has to be freed.
static bool export_plan(SafeTensorsPlan* plan, int64_t* offset, const Export* x, const ModelConfig* m, Error* error) {
    const SafeMetadata about = {"format", "pt"}; // transformers wants to see it
    int n;
    Tensor* model = llmc_tensors(m, &n);
    SafeTensor* list = (SafeTensor*)checked_calloc((size_t)n, sizeof *list, "the list of tensors");
    for (int i = 0; i < n; i++) {
        list[i].name = model[i].name, list[i].dtype = x->dtype;
        list[i].ndim = tensor_file_shape(list[i].shape, &model[i]);
    }
    const bool ok =
        x->llmc ? llmc_plan(plan, list, m, x->dtype, error) : safetensors_plan(plan, list, n, &about, 1, error);
    for (int i = 0; i < n; i++) offset[i] = list[i].offset;
    free(list);
    free(model);
    return ok;
}

// Rank 0, if what follows has failed somewhere.
static void export_abandon(const Export* x) {
    if (x->llmc)
        unlink(x->temporary);
    else
        checkpoint_remove(x->temporary);
}

// Rank 0, first. If it fails nothing was made.
static bool export_begin(const Export* x, const ModelConfig* m, Error* error) {
    SafeTensorsPlan plan;
    SafeTensorsFile file;
    int64_t* offset =
        (int64_t*)checked_malloc((size_t)model_tensors(NULL, m) * sizeof *offset, "where tensors are written");
    bool ok = export_plan(&plan, offset, x, m, error);
    free(offset);
    if (!ok) return false;
    const int fd = x->llmc ? open(x->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;
    ok = fd >= 0 || (!x->llmc && mkdir(x->temporary, 0777) == 0) ||
         fail(error, "%s: cannot make it: %s", x->temporary, strerror(errno));
    if (fd >= 0) close(fd);
    if (ok && !safetensors_create(&file, x->file, &plan, error)) {
        export_abandon(x);
        ok = false;
    }
    if (ok) close(file.fd); // flushed later, by all
    safetensors_plan_free(&plan);
    return ok;
}

// Those slices of a bucket that this rank owns. values: the bucket's elements.
static bool export_bucket(RunWriter* runs, const Export* x, const Layout* layout, int bucket, const int64_t* offset,
                          const float* values, Error* error) {
    const Bucket* b = &layout->bucket[bucket];
    for (int i = b->first; i < b->first + b->slices; i++) {
        Slice s = layout->slices[i];
        s.tensor.transposed &= !x->llmc;
        if (slice_is_owned(&s, layout) &&
            !slice_write(runs, offset[s.index], values + (s.offset - b->offset), &s, error))
            return false;
    }
    return run_writer_flush(runs, error);
}

// Every rank, once rank 0 has begun and nothing is on its way between ranks. With ZeRO they put each bucket together: after
// a failure this one goes on with what the others wait for.
static bool export_write(const Export* x, const Stage* s, HeartbeatRow* row, Error* error) {
    const Layout* layout = &s->layout;
    SafeTensorsPlan plan = {NULL, 0, 0};
    SafeTensorsFile file = {-1, NULL, 0};
    int64_t* offset = (int64_t*)checked_malloc((size_t)layout->tensors * sizeof *offset, "where tensors are written");
    float* copy = (float*)checked_malloc((size_t)largest_bucket(layout) * sizeof(float), "the values of a bucket");
    float* buffer = (float*)checked_malloc(RUN_WRITER_FLOATS * sizeof(float), "writing weights");
    bool ok = export_plan(&plan, offset, x, &s->model, error) && safetensors_join(&file, x->file, &plan, error);
    RunWriter runs = {&file, buffer, 0, 0, 0, "the weight", x->dtype};
    for (int b = 0; b < layout->buckets; b++) {
        const float* whole = whole_values(s, b, stage_values(s, 0), copy);
        if (ok && writes_bucket(&layout->mesh, b, -1)) ok = export_bucket(&runs, x, layout, b, offset, whole, error);
        heartbeat_background(row);
    }
    Error late; // what went wrong first is what is told
    if (file.fd >= 0) ok = safetensors_finish(&file, ok ? error : &late) && ok;
    safetensors_plan_free(&plan);
    free(offset), free(copy), free(buffer);
    return ok;
}

// Rank 0, when all have written. files: what stands beside the model.
static bool export_publish(const Export* x, const ModelConfig* m, const CaatConfig* sync, const HubFiles* files,
                           Error* error) {
    char path[CHECKPOINT_PATH];
    bool ok = x->llmc || (checkpoint_path(path, error, "%s/config.json", x->temporary) &&
                          checkpoint_write_config(path, m, sync, x->dtype, files->config, error) &&
                          checkpoint_write_hub_files(x->temporary, files, error) && folder_sync(x->temporary, error));
    if (!ok) export_abandon(x);
    ok = ok && (rename_new(x->temporary, x->path) ||
                fail(error, "--export %.480s: cannot be given its name: %s; the weights are in %.480s", x->path,
                     strerror(errno), x->temporary));
    return ok && export_parent(path, x->path, error) && folder_sync(path, error);
}

#endif
