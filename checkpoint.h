/*
checkpoint.h: a run on disk. A checkpoint is one logical model, whatever the mesh that wrote it: every tensor under
Hugging Face's name and in its shape, float32, in a folder that transformers loads as it is.

    OUT/step_00001000/
        model.safetensors       the weights
        config.json             the architecture, as Hugging Face writes it
        optimizer.safetensors   AdamW's moments: exp_avg.NAME and exp_avg_sq.NAME, in the weights' shapes (of SGD the
                                velocity is the first, and the second is 0)
        trainer.json            step, position in the data, and what a resumed run must not change
        sites.safetensors       where sites do not wait for each other (rounds.h): what each of them has beside the common
                                point, site.3.exp_avg.NAME and others, and what was on its way between them

It is complete or it does not exist: everything is written into OUT/step_00001000.tmp, flushed to the disk (files, then
the folder), and the folder is renamed. A run that is killed leaves at most the .tmp, which is never taken up; the next
save of that step removes it.

Where a rank's slice lies in a file follows from the layout alone: as runs of consecutive elements. So all ranks write
into the same files at once, each its own slices, bucket by bucket, and nothing is gathered on one rank:

    rank 0          checkpoint_begin        makes the .tmp, with all files at their final size
    every rank      checkpoint_join         opens them
                    checkpoint_write_bucket for the buckets, or the parts, that are this rank's to write
                    checkpoint_leave        flushes what this rank has written
    rank 0          checkpoint_publish      gives the folder its name; or checkpoint_abandon, if any rank has failed

Between these the caller waits for all ranks and asks whether all have succeeded: no MPI here. Of data ranks, which hold
the same slices, one has to write each bucket; any one. Reading needs no order: each rank maps the files and copies
what its slices need. All ranks have to see one file system.
*/
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "base.h"
#include "json.h"
#include "parallel.h"
#include "safetensors.h"
#include <dirent.h>

enum { CHECKPOINT_PATH = 4096 }; // Linux's PATH_MAX

enum { CHECKPOINT_KINDS = 8, CHECKPOINT_PLAN_TEXT = 384 };

// What sites keep of every parameter: values of some kinds, each in some copies, as many as there are sites or one.
typedef struct {
    int kinds, copies; // 0: nothing, and there is no such file
    const char* kind[CHECKPOINT_KINDS];
} CheckpointSites;

typedef struct {
    int64_t step;                                 // updates done
    int64_t sequences;                            // consumed: the position in the data
    int64_t seed, global_batch, seq, data_tokens; // the same in a resumed run
    char rounds[CHECKPOINT_PLAN_TEXT];            // the plan of the sites, in words; the same; "" where all wait
} CheckpointState;

// ----------------------------------------------------------------------------------------------------------------
// A slice as runs of a file

// `count` elements: in the file's tensor from element `file` on; in the rank's slice every `stride` elements from
// element `local` on.
typedef struct {
    int64_t file, local, stride, count;
} Run;

// A tensor that files hold transposed has a run per local column and part, any other one per local row that is not
// padding: files hold the vocabulary as it is.
static inline int64_t slice_runs(const Slice* s) {
    return s->tensor.transposed ? s->cols * s->tensor.parts : s->rows_used;
}

static inline Run slice_run(const Slice* s, int64_t i) {
    const int64_t col0 = slice_logical_col(s);
    if (!s->tensor.transposed) {
        Run run = {slice_logical_row(s, i) * s->tensor.cols + col0, i * s->cols, 1, s->cols};
        return run;
    }
    const int64_t share = s->rows / s->tensor.parts, col = i / s->tensor.parts, row = i % s->tensor.parts * share;
    Run run = {(col0 + col) * s->tensor.rows + slice_logical_row(s, row), row * s->cols + col, s->cols, share};
    return run;
}

// The shape in files.
static inline int tensor_file_shape(int64_t shape[2], const Tensor* tensor) {
    shape[0] = tensor->transposed ? tensor->cols : tensor->rows;
    shape[1] = tensor->transposed ? tensor->rows : tensor->cols;
    return tensor->vector ? 1 : 2;
}

// ----------------------------------------------------------------------------------------------------------------
// Reading

// Reads a slice from the file's tensor called `name` (the slice's own name, maybe with something in front).
// Padding is left as it is.
static inline bool slice_read(float* local, const SafeTensorsModel* file, const char* name, const Slice* s,
                              Error* error) {
    const SafeTensors* st;
    const SafeTensor* tensor = safetensors_model_find(file, name, &st);
    if (!tensor)
        return fail(error, "%s: %s is missing; is it the model that --model and the sizes say?", file->path, name);
    int64_t shape[2];
    const int ndim = tensor_file_shape(shape, &s->tensor);
    if (tensor->ndim != ndim || tensor->shape[0] != shape[0] || (ndim == 2 && tensor->shape[1] != shape[1])) {
        char has[128];
        safetensors_shape_text(has, sizeof has, tensor);
        return fail(error,
                    ndim == 2 ? "%s: %s has shape %s, the model needs (%lld, %lld)"
                              : "%s: %s has shape %s, the model needs (%lld)",
                    file->path, name, has, (long long)shape[0], (long long)shape[1]);
    }
    const int64_t runs = slice_runs(s);
    float* buffer =
        (float*)checked_malloc((size_t)(s->tensor.transposed ? s->rows : s->cols) * sizeof(float), "reading");
    bool ok = true;
    for (int64_t i = 0; i < runs && ok; i++) {
        const Run run = slice_run(s, i);
        ok = safetensors_read_f32(buffer, st, tensor, run.file, run.count, error);
        for (int64_t j = 0; j < run.count && ok; j++) {
            if (!isfinite(buffer[j]))
                ok = fail(error, "%s: element %lld of %s is %g; weights must be finite", file->path,
                          (long long)(run.file + j), name, buffer[j]);
            local[run.local + j * run.stride] = buffer[j];
        }
    }
    free(buffer);
    return ok;
}

// True for what published files hold beside the weights of a model: constants, and the copy of a tied head.
static inline bool checkpoint_ignores(const char* name, const ModelConfig* m) {
    static const char* constants[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++) {
        const size_t length = strlen(name), n = strlen(constants[i]);
        if (length >= n && strcmp(name + length - n, constants[i]) == 0) return true;
    }
    return m->tied && strcmp(name, "lm_head.weight") == 0;
}

// The logical name of a file's tensor. Files of the hub leave out the first part: "wte.weight" is
// transformer.wte.weight.
static inline void checkpoint_logical_name(char* name, size_t size, const char* in_file, const char* prefix) {
    const bool complete = strncmp(in_file, prefix, strlen(prefix)) == 0 || strcmp(in_file, "lm_head.weight") == 0;
    snprintf(name, size, "%s%s", complete ? "" : prefix, in_file);
}

// Every tensor of a file has to be one of the model's: with one too many, the model is another one.
static inline bool checkpoint_check_names(const SafeTensorsModel* file, const ModelConfig* m, const char* prefix,
                                          Error* error) {
    const int n = model_tensors(NULL, m);
    Tensor* list = (Tensor*)checked_malloc((size_t)n * sizeof(Tensor), "the list of tensors");
    model_tensors(list, m);
    bool ok = true;
    for (int64_t t = 0; t < file->tensors && ok; t++) {
        char name[256];
        const char* in_file = safetensors_model_name(file, t);
        checkpoint_logical_name(name, sizeof name, in_file, prefix);
        int i = 0;
        while (i < n && strcmp(list[i].name, name) != 0) i++;
        if (i == n && !checkpoint_ignores(name, m)) {
            ok = fail(error,
                      "%.512s has %s, which the model does not have; is it the model that --model and the sizes say?",
                      file->path, in_file);
        }
    }
    free(list);
    return ok;
}

// Weights to start from, --init: a safetensors file, or a folder with one or with shards and their index. params
// (layout->elements) are zeroed by the caller, and their padding stays zero.
static inline bool checkpoint_init(const char* path, const ModelConfig* m, const Layout* layout, float* params,
                                   Error* error) {
    SafeTensorsModel file;
    if (!safetensors_model_open(&file, path, error)) return false;
    const char* prefix = m->arch == ARCH_GPT2 ? "transformer." : "model.";
    const SafeTensors* st;
    bool ok = checkpoint_check_names(&file, m, prefix, error);
    for (int i = 0; i < layout->n && ok; i++) {
        const Slice* s = &layout->slices[i];
        const char* name = s->tensor.name;
        const bool bare = !safetensors_model_find(&file, name, &st) && strncmp(name, prefix, strlen(prefix)) == 0;
        ok = slice_read(params + s->offset, &file, bare ? name + strlen(prefix) : name, s, error);
    }
    safetensors_model_close(&file);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------------
// Writing

// The values that a checkpoint has of every parameter: the weight (0) in the first file, AdamW's first (1) and second (2)
// moment in the second; then what sites have, kind by kind and copy by copy, in the third.
enum { CHECKPOINT_VALUES = 3, CHECKPOINT_TENSOR_FILES = 3 };
static const char* const checkpoint_prefix[CHECKPOINT_VALUES] = {"", "exp_avg.", "exp_avg_sq."};

static inline int checkpoint_values(const CheckpointSites* sites) {
    return CHECKPOINT_VALUES + sites->kinds * sites->copies;
}

// The number of a value of a site.
static inline int checkpoint_value_of_site(const CheckpointSites* sites, int kind, int copy) {
    return CHECKPOINT_VALUES + kind * sites->copies + copy;
}

// Of the files with tensors, the one that has a value; how many there are; and the values of one.
static inline int checkpoint_file_of(int value) { return value == 0 ? 0 : value < CHECKPOINT_VALUES ? 1 : 2; }
static inline int checkpoint_tensor_files(const CheckpointSites* sites) { return sites->kinds ? 3 : 2; }
static inline int checkpoint_values_of_file(const CheckpointSites* sites, int file) {
    return file == 0 ? 1 : file == 1 ? 2 : sites->kinds * sites->copies;
}

// A tensor's name in its file.
static inline void checkpoint_name(char* name, size_t size, const CheckpointSites* sites, int value,
                                   const char* tensor) {
    const int number = value - CHECKPOINT_VALUES;
    if (number < 0)
        snprintf(name, size, "%s%s", checkpoint_prefix[value], tensor);
    else
        snprintf(name, size, "site.%d.%s.%s", number % sites->copies, sites->kind[number / sites->copies], tensor);
}

// Where everything lies in the files; the same on every rank, as it follows from the model and the sites alone.
typedef struct {
    SafeTensorsPlan file[CHECKPOINT_TENSOR_FILES];
    int files;
    int tensors;     // of the model
    int64_t* offset; // (values, tensors): where each begins in its file, in bytes
} CheckpointPlan;

static inline void checkpoint_plan_free(CheckpointPlan* plan) {
    for (int i = 0; i < plan->files; i++) safetensors_plan_free(&plan->file[i]);
    free(plan->offset);
    memset(plan, 0, sizeof *plan);
}

// The tensors of all files, in the order of the model's list, once for each value; names has room for their names.
static inline void checkpoint_list(SafeTensor* list, char (*names)[128], const Tensor* model, int n,
                                   const CheckpointSites* sites) {
    for (int i = 0; i < checkpoint_values(sites) * n; i++) {
        const Tensor* tensor = &model[i % n];
        checkpoint_name(names[i], sizeof names[i], sites, i / n, tensor->name);
        memset(&list[i], 0, sizeof list[i]);
        list[i].name = names[i];
        list[i].dtype = SAFE_F32;
        list[i].ndim = tensor_file_shape(list[i].shape, tensor);
    }
}

// sites: NULL if there are none.
static inline bool checkpoint_plan(CheckpointPlan* plan, const ModelConfig* m, const CheckpointSites* sites,
                                   Error* error) {
    static const SafeMetadata format = {"format", "pt"}; // transformers wants to see it
    static const CheckpointSites none = {0, 0, {NULL}};
    if (!sites) sites = &none;
    memset(plan, 0, sizeof *plan);
    plan->files = checkpoint_tensor_files(sites);
    const int n = plan->tensors = model_tensors(NULL, m), all = checkpoint_values(sites) * n;
    Tensor* model = (Tensor*)checked_malloc((size_t)n * sizeof *model, "the list of tensors");
    SafeTensor* list = (SafeTensor*)checked_malloc((size_t)all * sizeof *list, "a checkpoint's tensors");
    char(*names)[128] = (char(*)[128])checked_malloc((size_t)all * sizeof *names, "a checkpoint's names");
    plan->offset = (int64_t*)checked_malloc((size_t)all * sizeof *plan->offset, "a checkpoint's plan");
    model_tensors(model, m);
    checkpoint_list(list, names, model, n, sites);
    bool ok = true;
    for (int file = 0, first = 0; file < plan->files && ok; file++) {
        const int count = n * checkpoint_values_of_file(sites, file);
        ok = safetensors_plan(&plan->file[file], list + first, count, &format, 1, error);
        first += count;
    }
    for (int i = 0; i < all; i++) plan->offset[i] = list[i].offset;
    free(names);
    free(list);
    free(model);
    if (!ok) checkpoint_plan_free(plan);
    return ok;
}

// Collects runs in a buffer and writes what is consecutive in one go.
typedef struct {
    const SafeTensorsFile* file;
    float* buffer;
    int64_t count, start; // floats in the buffer; where in the file the first one belongs, in bytes
} RunWriter;

enum { RUN_WRITER_FLOATS = 1 << 20 };

static inline bool run_writer_flush(RunWriter* w, Error* error) {
    const int64_t bytes = w->count * (int64_t)sizeof(float);
    w->count = 0;
    return safetensors_write_at(w->file, w->start, w->buffer, bytes, error);
}

// Writes a slice into the tensor that begins at byte `tensor` of the file.
static inline bool slice_write(RunWriter* w, int64_t tensor, const float* local, const Slice* s, Error* error) {
    for (int64_t i = 0; i < slice_runs(s); i++) {
        const Run run = slice_run(s, i);
        for (int64_t done = 0; done < run.count;) {
            const int64_t at = tensor + (run.file + done) * (int64_t)sizeof(float);
            if (w->count == RUN_WRITER_FLOATS || at != w->start + w->count * (int64_t)sizeof(float)) {
                if (!run_writer_flush(w, error)) return false;
                w->start = at;
            }
            const int64_t n = min_i64(run.count - done, RUN_WRITER_FLOATS - w->count);
            const float* from = local + run.local + done * run.stride;
            for (int64_t j = 0; j < n; j++) w->buffer[w->count + j] = from[j * run.stride];
            w->count += n, done += n;
        }
    }
    return true;
}

// Writes a small text file, flushed to the disk.
__attribute__((format(printf, 3, 4))) static inline bool checkpoint_write_text(const char* path, Error* error,
                                                                               const char* format, ...) {
    FILE* out = fopen(path, "w");
    if (!out) return fail(error, "%s: cannot create: %s", path, strerror(errno));
    va_list args;
    va_start(args, format);
    vfprintf(out, format, args);
    va_end(args);
    const int written = fflush(out) == 0 && fsync(fileno(out)) == 0 ? 0 : errno;
    const int closed = fclose(out) == 0 ? 0 : errno;
    return (!written && !closed) || fail(error, "%s: cannot write: %s", path, strerror(written ? written : closed));
}

// config.json: the architecture in the words of Hugging Face's GPT2Config and LlamaConfig; and those of a CAAT-Net, which
// they do not know. sync: NULL if it is none.
static inline bool checkpoint_write_config(const char* path, const ModelConfig* m, const Sync* sync, Error* error) {
    char caat[128] = "";
    if (sync && sync->ranks)
        snprintf(caat, sizeof caat, ",\n  \"sync_ranks\": %d,\n  \"sync\": %.17g,\n  \"sync_scale\": \"%s\"",
                 sync->ranks, sync->share, sync_scale_names[sync->scale]);
    if (m->arch == ARCH_GPT2) {
        return checkpoint_write_text(
            path, error,
            "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n  \"n_layer\": %d,\n"
            "  \"n_embd\": %d,\n  \"n_head\": %d,\n  \"n_inner\": %d,\n  \"n_positions\": %d,\n  \"vocab_size\": %d,\n"
            "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": %g,\n  \"tie_word_embeddings\": %s,\n"
            "  \"torch_dtype\": \"float32\"%s\n}\n",
            m->L, m->C, m->NH, m->F, m->T, m->V, m->eps, m->tied ? "true" : "false", caat);
    }
    return checkpoint_write_text(
        path, error,
        "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\",\n  \"num_hidden_layers\": %d,\n"
        "  \"hidden_size\": %d,\n  \"num_attention_heads\": %d,\n  \"num_key_value_heads\": %d,\n  "
        "\"intermediate_size\": %d,\n"
        "  \"max_position_embeddings\": %d,\n  \"vocab_size\": %d,\n  \"hidden_act\": \"silu\",\n  \"rms_norm_eps\": "
        "%g,\n"
        "  \"rope_theta\": %g,\n  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"float32\"%s\n}\n",
        m->L, m->C, m->NH, m->NKV, m->F, m->T, m->V, m->eps, m->rope_theta, m->tied ? "true" : "false", caat);
}

// What a folder's config.json says about partial sums: ranks = 0 if nothing. *told: there is such a file.
static inline bool checkpoint_load_sync(Sync* sync, bool* told, const char* folder, Error* error) {
    char path[CHECKPOINT_PATH];
    Json json;
    memset(sync, 0, sizeof *sync);
    *told = snprintf(path, sizeof path, "%s/config.json", folder) < (int)sizeof path && access(path, F_OK) == 0;
    if (!*told) return true;
    if (!json_open(&json, path, error)) return false;
    int64_t ranks = 0;
    const char* scale = "";
    bool ok = !json_get(json.nodes, "sync_ranks") ||
              (json_get_integer(&ranks, &json, json.nodes, "sync_ranks", 1, 1 << 16, error) &&
               json_get_number(&sync->share, &json, json.nodes, "sync", error) &&
               json_get_string(&scale, &json, json.nodes, "sync_scale", error));
    sync->ranks = (int)ranks;
    int i = 0;
    while (i < 3 && strcmp(scale, sync_scale_names[i]) != 0) i++;
    if (ok && ranks && i == 3)
        ok = fail(error, "%s: \"sync_scale\" is \"%.64s\"; it can be runtime, init or none", path, scale);
    sync->scale = (SyncScale)(i % 3);
    json_free(&json);
    return ok;
}

// Refuses to go on, as the model that `now` describes, from the weights in a folder that were trained as another one. A file,
// or a folder without config.json, does not say what it is.
static inline bool checkpoint_check_sync(const char* folder, const Sync* now, Error* error) {
    Sync then;
    bool told;
    if (!checkpoint_load_sync(&then, &told, folder, error)) return false;
    if (!told) return true;
    if (then.ranks == now->ranks && (then.ranks == 0 || (then.share == now->share && then.scale == now->scale)))
        return true;
    if (then.ranks == 0)
        return fail(error,
                    "%s is of a model without partial sums: leave --sync and --sync-ranks away; or --init from its "
                    ".safetensors file, to make a CAAT-Net of it",
                    folder);
    return fail(error, "%s is of a CAAT-Net: give --sync %g --sync-ranks %d --sync-scale %s", folder, then.share,
                then.ranks, sync_scale_names[then.scale]);
}

static const char* const checkpoint_files[] = {"model.safetensors", "optimizer.safetensors", "sites.safetensors",
                                               "config.json", "trainer.json"};

// Flushes a folder's list of names to the disk.
static inline bool folder_sync(const char* path, Error* error) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool ok = fd >= 0 && fsync(fd) == 0;
    if (!ok) fail(error, "%s: cannot flush to the disk: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return ok;
}

// Removes a checkpoint's folder that was not finished; what is not there is no harm.
static inline void checkpoint_remove(const char* folder) {
    char path[4096 + 32];
    for (size_t i = 0; i < sizeof checkpoint_files / sizeof checkpoint_files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, checkpoint_files[i]);
        unlink(path);
    }
    rmdir(folder);
}

// A path, as printf writes it.
__attribute__((format(printf, 3, 4))) static inline bool checkpoint_path(char path[CHECKPOINT_PATH], Error* error,
                                                                         const char* format, ...) {
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(path, CHECKPOINT_PATH, format, args);
    va_end(args);
    return (length >= 0 && length < CHECKPOINT_PATH) || fail(error, "%.512s: the name is too long", path);
}

// A checkpoint of the same name, an older run's, is replaced; anything else is somebody's work and is not touched.
static inline bool checkpoint_is_replaceable(const char* folder, Error* error) {
    DIR* names = opendir(folder);
    if (!names) {
        return errno == ENOENT || fail(error, "%s: the checkpoint's name is taken: %s", folder, strerror(errno));
    }
    bool ok = true;
    for (const struct dirent* entry = readdir(names); entry && ok; entry = readdir(names)) {
        ok = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
        for (size_t i = 0; i < sizeof checkpoint_files / sizeof checkpoint_files[0] && !ok; i++)
            ok = strcmp(entry->d_name, checkpoint_files[i]) == 0;
        if (!ok) fail(error, "%s: the checkpoint's name is taken: %s is in it; move it away", folder, entry->d_name);
    }
    closedir(names);
    return ok;
}

static inline bool checkpoint_write_state(const char* path, const CheckpointState* state, Error* error) {
    return checkpoint_write_text(
        path, error,
        "{\n  \"step\": %lld,\n  \"sequences\": %lld,\n  \"seed\": %lld,\n  \"global_batch\": %lld,\n"
        "  \"seq\": %lld,\n  \"data_tokens\": %lld,\n  \"rounds\": \"%s\"\n}\n",
        (long long)state->step, (long long)state->sequences, (long long)state->seed, (long long)state->global_batch,
        (long long)state->seq, (long long)state->data_tokens, state->rounds);
}

// The files of a checkpoint: complete, but for the values of the tensors, which are zero.
static inline bool checkpoint_create_files(const char* folder, const CheckpointState* state, const ModelConfig* m,
                                           const Sync* sync, const CheckpointSites* sites, Error* error) {
    CheckpointPlan plan;
    if (!checkpoint_plan(&plan, m, sites, error)) return false;
    char path[CHECKPOINT_PATH];
    bool ok = true;
    for (int i = 0; i < plan.files && ok; i++) {
        SafeTensorsFile file;
        ok = checkpoint_path(path, error, "%s/%s", folder, checkpoint_files[i]) &&
             safetensors_create(&file, path, &plan.file[i], error) && safetensors_finish(&file, error);
    }
    checkpoint_plan_free(&plan);
    return ok && checkpoint_path(path, error, "%s/config.json", folder) &&
           checkpoint_write_config(path, m, sync, error) && checkpoint_path(path, error, "%s/trainer.json", folder) &&
           checkpoint_write_state(path, state, error);
}

// Rank 0, first: makes OUT/step_N.tmp. The space is taken now, so that a full disk is told before the work. If it fails
// OUT is as before. sync: see checkpoint_write_config; sites: see checkpoint_plan.
static inline bool checkpoint_begin(const char* out, const CheckpointState* state, const ModelConfig* m,
                                    const Sync* sync, const CheckpointSites* sites, Error* error) {
    char folder[CHECKPOINT_PATH], temporary[CHECKPOINT_PATH], old[CHECKPOINT_PATH];
    const long long step = state->step;
    if (!checkpoint_path(folder, error, "%s/step_%08lld", out, step) ||
        !checkpoint_path(temporary, error, "%s/step_%08lld.tmp", out, step) ||
        !checkpoint_path(old, error, "%s/step_%08lld.old", out, step) || !checkpoint_is_replaceable(folder, error))
        return false;
    checkpoint_remove(temporary); // left by a run that was killed while it saved
    checkpoint_remove(old);       // or while it replaced
    if (mkdir(temporary, 0777) != 0) return fail(error, "%s: cannot make the folder: %s", temporary, strerror(errno));
    if (checkpoint_create_files(temporary, state, m, sync, sites, error)) return true;
    checkpoint_remove(temporary);
    return false;
}

// One rank's hands on the files. It must not be copied: the files refer to their paths.
typedef struct {
    CheckpointPlan plan;
    char path[CHECKPOINT_TENSOR_FILES][CHECKPOINT_PATH];
    SafeTensorsFile file[CHECKPOINT_TENSOR_FILES];
    float* buffer;
    int64_t elements; // written so far; over all ranks it has to become checkpoint_values() model_parameters()
} CheckpointWriter;

// Every rank, last: flushes what it has written to the disk, if all went well (ok), and closes. Does nothing after a
// checkpoint_join() that failed.
static inline bool checkpoint_leave(CheckpointWriter* w, bool ok, Error* error) {
    for (int i = 0; i < CHECKPOINT_TENSOR_FILES; i++) {
        if (w->file[i].fd < 0) continue;
        Error late; // what went wrong first is what is told
        if (ok)
            ok = safetensors_finish(&w->file[i], error);
        else
            safetensors_finish(&w->file[i], &late);
    }
    checkpoint_plan_free(&w->plan);
    free(w->buffer);
    w->buffer = NULL;
    return ok;
}

// Every rank, once rank 0 has begun: opens the files, to write at places.
static inline bool checkpoint_join(CheckpointWriter* w, const char* out, int64_t step, const ModelConfig* m,
                                   const CheckpointSites* sites, Error* error) {
    memset(w, 0, sizeof *w);
    for (int i = 0; i < CHECKPOINT_TENSOR_FILES; i++) w->file[i].fd = -1;
    if (!checkpoint_plan(&w->plan, m, sites, error)) return false;
    bool ok = true;
    for (int i = 0; i < w->plan.files && ok; i++) {
        ok = checkpoint_path(w->path[i], error, "%s/step_%08lld.tmp/%s", out, (long long)step, checkpoint_files[i]) &&
             safetensors_join(&w->file[i], w->path[i], &w->plan.file[i], error);
    }
    w->buffer = (float*)checked_malloc(RUN_WRITER_FLOATS * sizeof(float), "writing a checkpoint");
    Error late;
    if (!ok) checkpoint_leave(w, false, &late);
    return ok;
}

// Writes one value of those slices of a bucket that this rank owns. values: the bucket's elements.
static inline bool checkpoint_write_value(CheckpointWriter* w, const Layout* layout, int bucket, int value,
                                          const float* values, Error* error) {
    const Bucket* b = &layout->bucket[bucket];
    RunWriter runs = {&w->file[checkpoint_file_of(value)], w->buffer, 0, 0};
    for (int i = b->first; i < b->first + b->slices; i++) {
        const Slice* s = &layout->slices[i];
        if (!slice_is_owned(s, layout)) continue;
        const int64_t tensor = w->plan.offset[value * w->plan.tensors + s->index];
        if (!slice_write(&runs, tensor, values + (s->offset - b->offset), s, error)) return false;
        w->elements += s->rows_used * s->cols;
    }
    return run_writer_flush(&runs, error);
}

// The same of weights and moments.
static inline bool checkpoint_write_bucket(CheckpointWriter* w, const Layout* layout, int bucket, const float* params,
                                           const float* moment1, const float* moment2, Error* error) {
    return checkpoint_write_value(w, layout, bucket, 0, params, error) &&
           checkpoint_write_value(w, layout, bucket, 1, moment1, error) &&
           checkpoint_write_value(w, layout, bucket, 2, moment2, error);
}

// Renames temporary to folder. A checkpoint that has the name is moved to `old`, and comes back if that fails. (Killed
// between the two renames, a run has neither; the checkpoint before is the newest then.)
static inline bool checkpoint_rename(const char* temporary, const char* folder, const char* old, Error* error) {
    if (rename(temporary, folder) == 0) return true; // the name was free
    const bool moved = (errno == ENOTEMPTY || errno == EEXIST) && rename(folder, old) == 0;
    if (moved && rename(temporary, folder) == 0) return true;
    fail(error, "%s: cannot rename to %s: %s", temporary, folder, strerror(errno));
    if (moved && rename(old, folder) != 0)
        fail(error, "%s: cannot rename to %s, where it was: %s", old, folder, strerror(errno));
    return false;
}

// Rank 0, when all ranks have left with success: step_N.tmp becomes step_N. If it fails OUT is as before.
static inline bool checkpoint_publish(const char* out, int64_t step, Error* error) {
    char folder[CHECKPOINT_PATH], temporary[CHECKPOINT_PATH], old[CHECKPOINT_PATH];
    if (!checkpoint_path(folder, error, "%s/step_%08lld", out, (long long)step) ||
        !checkpoint_path(temporary, error, "%s/step_%08lld.tmp", out, (long long)step) ||
        !checkpoint_path(old, error, "%s/step_%08lld.old", out, (long long)step))
        return false;
    if (!folder_sync(temporary, error) || !checkpoint_rename(temporary, folder, old, error)) {
        checkpoint_remove(temporary);
        return false;
    }
    const bool ok = folder_sync(out, error); // the new name is on the disk before the old files go
    checkpoint_remove(old);
    return ok;
}

// Rank 0, when a rank has failed: removes step_N.tmp.
static inline void checkpoint_abandon(const char* out, int64_t step) {
    char temporary[CHECKPOINT_PATH];
    Error error;
    if (checkpoint_path(temporary, &error, "%s/step_%08lld.tmp", out, (long long)step)) checkpoint_remove(temporary);
}

// ----------------------------------------------------------------------------------------------------------------
// Taking a run up again

// Writes the folder of the newest checkpoint in `out` into path; false if there is none.
static inline bool checkpoint_newest(char* path, size_t size, const char* out) {
    long long newest = -1, step;
    DIR* folder = opendir(out);
    for (const struct dirent* entry = folder ? readdir(folder) : NULL; entry; entry = readdir(folder)) {
        char expected[64];
        if (sscanf(entry->d_name, "step_%lld", &step) != 1) continue;
        snprintf(expected, sizeof expected, "step_%08lld", step);
        if (strcmp(entry->d_name, expected) == 0 && step > newest) newest = step; // not step_N.tmp
    }
    if (folder) closedir(folder);
    if (newest < 0) return false;
    return snprintf(path, size, "%s/step_%08lld", out, newest) < (int)size;
}

static inline bool checkpoint_load_state(CheckpointState* state, const char* path, Error* error) {
    Json json;
    if (!json_open(&json, path, error)) return false;
    bool ok = true;
    const struct {
        const char* name;
        int64_t* value;
    } fields[] = {{"step", &state->step}, {"sequences", &state->sequences},
                  {"seed", &state->seed}, {"global_batch", &state->global_batch},
                  {"seq", &state->seq},   {"data_tokens", &state->data_tokens}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0] && ok; i++)
        ok = json_get_integer(fields[i].value, &json, json.nodes, fields[i].name, 0, INT64_MAX, error);
    const char* rounds = ""; // older files do not say
    ok = ok && (!json_get(json.nodes, "rounds") || json_get_string(&rounds, &json, json.nodes, "rounds", error));
    memset(state->rounds, 0, sizeof state->rounds);
    snprintf(state->rounds, sizeof state->rounds, "%s", ok ? rounds : "");
    json_free(&json);
    return ok;
}

typedef struct {
    CheckpointSites sites;
    SafeTensorsModel file[CHECKPOINT_TENSOR_FILES];
} CheckpointReader;

static inline void checkpoint_close(CheckpointReader* r) {
    for (int i = 0; i < checkpoint_tensor_files(&r->sites); i++) safetensors_model_close(&r->file[i]);
}

// Any rank: opens the checkpoint in `folder`, of sites as they are now (NULL: none), if state->rounds says what the file
// says; else of none, and state->rounds becomes what it says. On failure nothing has to be closed.
static inline bool checkpoint_open(CheckpointReader* r, const char* folder, CheckpointState* state,
                                   const CheckpointSites* sites, Error* error) {
    memset(r, 0, sizeof *r);
    char path[CHECKPOINT_PATH], now[CHECKPOINT_PLAN_TEXT] = "";
    if (sites) memcpy(now, state->rounds, sizeof now);
    bool ok = checkpoint_path(path, error, "%s/trainer.json", folder) && checkpoint_load_state(state, path, error);
    if (ok && sites && strcmp(now, state->rounds) == 0) r->sites = *sites;
    for (int i = 0; i < checkpoint_tensor_files(&r->sites) && ok; i++) {
        ok = checkpoint_path(path, error, "%s/%s", folder, checkpoint_files[i]) &&
             safetensors_model_open(&r->file[i], path, error);
    }
    if (!ok) checkpoint_close(r);
    return ok;
}

// Reads one value of a bucket: weights (0), first (1) or second (2) moments, or a site's. Elements of the bucket that are no
// slice's, and padding, become 0.
static inline bool checkpoint_read_bucket(const CheckpointReader* r, const Layout* layout, int bucket, int value,
                                          float* values, Error* error) {
    const int number = checkpoint_file_of(value);
    const SafeTensorsModel* file = &r->file[number];
    const int expected = checkpoint_values_of_file(&r->sites, number) * layout->tensors;
    if (file->tensors != expected) // more would be left out without a word: a model with fewer layers, for one
        return fail(error, "%s: has %lld tensors, the model needs %d; is it the model that --model and the sizes say?",
                    file->path, (long long)file->tensors, expected);
    const Bucket* b = &layout->bucket[bucket];
    memset(values, 0, (size_t)b->elements * sizeof *values);
    for (int i = b->first; i < b->first + b->slices; i++) {
        const Slice* s = &layout->slices[i];
        char name[128];
        checkpoint_name(name, sizeof name, &r->sites, value, s->tensor.name);
        if (!slice_read(values + (s->offset - b->offset), file, name, s, error)) return false;
    }
    return true;
}

#endif
