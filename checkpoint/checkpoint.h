/*
checkpoint/checkpoint.h: a run on disk. A checkpoint is one logical model, whatever the mesh that wrote it: every tensor under
Hugging Face's name and in its shape, float32, in a folder that transformers loads as it is.

    OUT/step_00001000/
        model.safetensors       the weights
        config.json             the architecture, as Hugging Face writes it
        optimizer.safetensors   AdamW's moments: exp_avg.NAME and exp_avg_sq.NAME, in the weights' shapes (of SGD the
                                velocity is the first, and the second is 0)
        sites.safetensors       where sites do not wait for each other (methods/async_schedule.h): what each of them has beside the common
                                point, site.3.exp_avg.NAME and others, and what was on its way between them
        trainer.json            step, position in the data, what a resumed run must not change; and of all other files
                                the size and the checksum

It is complete or it does not exist: everything is written into OUT/step_00001000.tmp, flushed to the disk (files, then
the folder), and the folder is renamed. A run that is killed leaves at most the .tmp, which is never taken up; the next
save of that step removes it.

It is what was written or it is refused. Every file of tensors carries its step and its checksum (util/checksum.h; of all its
bytes, with zeros in place of the checksum) in its metadata, trainer.json those of all files and at its end its own. So a
flipped bit, a piece that is missing and a file that belongs elsewhere are found and told apart before anything is used.

Where a rank's slice lies in a file follows from the layout alone: as runs of consecutive elements. So all ranks write
into the same files at once, each its own slices, bucket by bucket, and nothing is gathered on one rank; nor is it for a
checksum, which is a sum over words:

    rank 0          checkpoint_begin        makes the .tmp, with the files of tensors at their final size
    every rank      checkpoint_join         opens them
                    checkpoint_write_bucket for the buckets, or the parts, that are this rank's to write
                    checkpoint_leave        flushes what this rank has written, and says what it adds up to
    rank 0          checkpoint_publish      gives the folder the sums of all ranks, then its name; or
                                            checkpoint_abandon, if any rank has failed

Between these the caller waits for all ranks and asks whether all have succeeded: no MPI here. Of data ranks, which hold
the same slices, one has to write each bucket; any one. Reading needs no order: each rank maps the files and copies
what its slices need; before that each adds up a part of the files (checkpoint_add_up). All ranks have to see one file
system.
*/
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "../util/base.h"
#include "../util/checksum.h"
#include "hf_config.h"
#include "../util/json.h"
#include "llmc_format.h"
#include "../parallel.h"
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
    int64_t data_mix;                             // of several sources: sources and weights; the same; else 0
    char rounds[CHECKPOINT_PLAN_TEXT];            // the plan of the sites, in words; the same; "" where all wait
    char optimizer[16];                           // as --optimizer names it; the same
    char tuning[CHECKPOINT_PLAN_TEXT]; // the learning rate's curve and more, as options; may change. "": not known
    double val_loss;                   // not finite if it was not validated at this step
    uint64_t data_checksum;            // of the content of --data (sources_checksum); 0: not known
    int64_t held_out;                  // blocks of every source to validate on (dataloader.h), 0: none; -1: not known
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

// The shape of the weights to start from: of a folder what its config.json says, of llm.c's weights what their header says. A
// file of safetensors, and a folder without config.json, do not say it (*told).
static inline bool checkpoint_model(ModelConfig* m, bool* told, const char* path, Error* error) {
    *told = true;
    if (llmc_is_file(path)) {
        SafeTensorsModel file;
        if (!llmc_open(&file, m, path, error)) return false;
        safetensors_model_close(&file);
        return true;
    }
    char* config = safe_join(path, "config.json");
    *told = access(config, F_OK) == 0;
    const bool ok = !*told || config_read(m, config, error);
    free(config);
    return ok;
}

// Opens weights to start from. *transposed: some matrices lie there as Hugging Face's GPT-2 has them.
static inline bool checkpoint_open_weights(SafeTensorsModel* file, bool* transposed, const char* path, Error* error) {
    ModelConfig m;
    memset(&m, 0, sizeof m);
    *transposed = !llmc_is_file(path);
    return *transposed ? safetensors_model_open(file, path, error) : llmc_open(file, &m, path, error);
}

// Whether a path has the form of a model's name on huggingface.co: NAME, or OWNER/NAME.
static inline bool checkpoint_is_hub_name(const char* path) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    static const char* const endings[] = {".safetensors", ".bin", ".json", ".gguf", ".pt", ".pth"};
    const size_t first = strspn(path, letters), n = strlen(path);
    const char* name = path[first] == '/' ? path + first + 1 : path;
    bool is = first > 0 && path[0] != '.' && *name && name[strspn(name, letters)] == 0;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        const size_t m = strlen(endings[i]);
        is = is && !(n > m && strcmp(path + n - m, endings[i]) == 0);
    }
    return is;
}

// Whether there are weights to start from at path; looks: also whether they can be opened. If not, what to do.
static inline bool checkpoint_find_weights(const char* path, bool looks, Error* error) {
    struct stat st;
    SafeTensorsModel file;
    bool transposed;
    const bool there = stat(path, &st) == 0;
    if (!there && errno == ENOENT && checkpoint_is_hub_name(path)) {
        const char *slash = strchr(path, '/'), *name = slash ? slash + 1 : path;
        return fail(error,
                    "--init %.300s: there is no such file or folder here. A model of this name on huggingface.co: "
                    "pip install huggingface_hub && hf download %.300s --local-dir %.300s, then --init %.300s",
                    path, path, name, name);
    }
    if (!there) return fail(error, "%s: cannot open: %s", path, strerror(errno));
    if (!looks) return true;
    if (!checkpoint_open_weights(&file, &transposed, path, error)) return false;
    safetensors_model_close(&file);
    return true;
}

// A text that differs where weights do, for ranks to compare: every tensor's name, shape and place, and values from four places of
// each. It reads little, so that any rank can look at all files, also at what others read.
static inline bool checkpoint_sample(char* text, size_t size, const char* path, Error* error) {
    enum { PLACES = 4, PROBE_BYTES = 1024 };
    SafeTensorsModel file;
    bool transposed;
    if (!checkpoint_open_weights(&file, &transposed, path, error)) return false;
    uint64_t sum = 0;
    int64_t bytes = 0, word = 0;
    for (int64_t i = 0; i < file.tensors; i++) {
        const SafeTensor* tensor = file.entries[i].tensor;
        const unsigned char* data = file.entries[i].file->file.data + tensor->offset;
        char about[512], shape[128];
        safetensors_shape_text(shape, sizeof shape, tensor);
        snprintf(about, sizeof about, "%.256s %d %s %lld", tensor->name, (int)tensor->dtype, shape,
                 (long long)tensor->offset);
        sum += checksum_of(about, (int64_t)strlen(about), word);
        word += sizeof about;
        const int64_t n = min_i64(PROBE_BYTES, tensor->bytes);
        for (int64_t k = 0; k < PLACES; k++, word += PROBE_BYTES)
            sum += checksum_of(data + (tensor->bytes - n) / (PLACES - 1) * k, n, word);
        bytes += tensor->bytes;
    }
    snprintf(text, size, "%lld tensors, %lld bytes, checksum %016llx", (long long)file.tensors, (long long)bytes,
             (unsigned long long)sum);
    safetensors_model_close(&file);
    return true;
}

// Weights to start from, --init: a safetensors file, a folder with one or with shards and their index, or llm.c's weights. params
// (layout->elements) are zeroed by the caller, and their padding stays zero.
static inline bool checkpoint_init(const char* path, const ModelConfig* m, const Layout* layout, float* params,
                                   Error* error) {
    SafeTensorsModel file;
    bool transposed;
    if (!checkpoint_open_weights(&file, &transposed, path, error)) return false;
    const char* prefix = m->arch == ARCH_GPT2 ? "transformer." : "model.";
    const SafeTensors* st;
    bool ok = checkpoint_check_names(&file, m, prefix, error);
    for (int i = 0; i < layout->n && ok; i++) {
        Slice s = layout->slices[i];
        const char* name = s.tensor.name;
        const bool bare = !safetensors_model_find(&file, name, &st) && strncmp(name, prefix, strlen(prefix)) == 0;
        s.tensor.transposed &= transposed;
        ok = slice_read(params + s.offset, &file, bare ? name + strlen(prefix) : name, &s, error);
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
                                   int64_t step, Error* error) {
    static const CheckpointSites none = {0, 0, {NULL}};
    char number[32];
    const SafeMetadata about[] = {
        {"format", "pt"}, {"step", number}, {"checksum", "0000000000000000"}}; // transformers wants to see the first
    if (!sites) sites = &none;
    memset(plan, 0, sizeof *plan);
    snprintf(number, sizeof number, "%lld", (long long)step);
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
        ok = safetensors_plan(&plan->file[file], list + first, count, about, 3, error);
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
    int64_t count, start; // values in the buffer; where in the file the first one belongs, in bytes
    uint64_t checksum;    // of what was written, if that is float32
    const char* what;     // these values are, for people
    SafeDtype dtype;      // in the file: SAFE_F32 or SAFE_BF16
} RunWriter;

enum { RUN_WRITER_FLOATS = 1 << 20 };

static inline int64_t run_writer_width(const RunWriter* w) { return safe_dtypes[w->dtype].bits / 8; }

static inline bool run_writer_flush(RunWriter* w, Error* error) {
    const int64_t bytes = w->count * run_writer_width(w);
    w->count = 0;
    if (w->dtype == SAFE_F32) w->checksum += checksum_of(w->buffer, bytes, w->start / 4);
    return safetensors_write_at(w->file, w->start, w->buffer, bytes, error);
}

// Puts n values, every `stride` elements from `from`, behind those in the buffer. False: one is not finite, or would not be in the
// file.
static inline bool run_writer_put(RunWriter* w, const float* from, int64_t stride, int64_t n) {
    const uint32_t exponent = 0x7f800000;
    uint16_t* narrow = (uint16_t*)w->buffer + w->count;
    float* wide = w->buffer + w->count;
    uint32_t infinite = 0;
    for (int64_t j = 0; j < n && w->dtype == SAFE_F32; j++) {
        wide[j] = from[j * stride];
        infinite |= (bits_of_float(wide[j]) & exponent) == exponent;
    }
    for (int64_t j = 0; j < n && w->dtype == SAFE_BF16; j++) {
        narrow[j] = f32_to_bf16(from[j * stride]);
        infinite |= ((uint32_t)narrow[j] << 16 & exponent) == exponent;
    }
    w->count += n;
    return !infinite;
}

// Writes a slice into the tensor that begins at byte `tensor` of the file.
static inline bool slice_write(RunWriter* w, int64_t tensor, const float* local, const Slice* s, Error* error) {
    for (int64_t i = 0; i < slice_runs(s); i++) {
        const Run run = slice_run(s, i);
        for (int64_t done = 0; done < run.count;) {
            const int64_t at = tensor + (run.file + done) * run_writer_width(w);
            if (w->count == RUN_WRITER_FLOATS || at != w->start + w->count * run_writer_width(w)) {
                if (!run_writer_flush(w, error)) return false;
                w->start = at;
            }
            const int64_t n = min_i64(run.count - done, RUN_WRITER_FLOATS - w->count);
            if (!run_writer_put(w, local + run.local + done * run.stride, run.stride, n)) // it could not be read again
                return fail(error, "%s of %s has a value that is not finite", w->what, s->tensor.name);
            done += n;
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

// config.json of weights of a type; of a CAAT-Net with what describes it, which transformers does not know. sync: NULL if it is
// none. roles: further members, see config_roles_text.
static inline bool checkpoint_write_config(const char* path, const ModelConfig* m, const CaatConfig* sync, SafeDtype dtype,
                                           const char* roles, Error* error) {
    char text[CONFIG_TEXT];
    char more[CONFIG_ROLES_TEXT + 128], caat[128] = "";
    if (sync && sync->ranks)
        snprintf(caat, sizeof caat, ",\n  \"sync_ranks\": %d,\n  \"sync\": %.17g,\n  \"sync_scale\": \"%s\"",
                 sync->ranks, sync->share, sync_scale_names[sync->scale]);
    snprintf(more, sizeof more, "%s%s", roles, caat);
    config_write(text, m, dtype == SAFE_F32 ? "float32" : "bfloat16", more);
    return checkpoint_write_text(path, error, "%s", text);
}

// What a folder's config.json says about partial sums: ranks = 0 if nothing. *told: there is such a file.
static inline bool checkpoint_load_sync(CaatConfig* sync, bool* told, const char* folder, Error* error) {
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
static inline bool checkpoint_check_sync(const char* folder, const CaatConfig* now, Error* error) {
    CaatConfig then;
    bool told;
    if (!checkpoint_load_sync(&then, &told, folder, error)) return false;
    if (!told) return true;
    if (then.ranks == now->ranks && (then.ranks == 0 || (then.share == now->share && then.scale == now->scale)))
        return true;
    char here[128] = "an ordinary model";
    if (now->ranks > 0)
        snprintf(here, sizeof here, "--sync %g --sync-ranks %d --sync-scale %s", now->share, now->ranks,
                 sync_scale_names[now->scale]);
    if (then.ranks == 0)
        return fail(error,
                    "%s is an ordinary model, this run has %s: drop these options; or --init from its .safetensors "
                    "file, to make a CAAT-Net of it",
                    folder, here);
    return fail(error, "%s is a CAAT-Net, this run has %s: give --sync %g --sync-ranks %d --sync-scale %s", folder,
                here, then.share, then.ranks, sync_scale_names[then.scale]);
}

static const char* const checkpoint_files[] = {"model.safetensors", "optimizer.safetensors", "sites.safetensors",
                                               "config.json", "trainer.json"};

// What a folder of Hugging Face's holds beside the model, see checkpoint/hub_files.h. No part of a run: neither checked nor needed to resume.
static const char* const checkpoint_hub_files[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",     "vocab.json",
    "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "generation_config.json"};
enum { CHECKPOINT_HUB_FILES = sizeof checkpoint_hub_files / sizeof checkpoint_hub_files[0] };

typedef struct {
    char config[CONFIG_ROLES_TEXT];   // further members of config.json
    char* text[CHECKPOINT_HUB_FILES]; // NULL: there is no such file
    size_t size[CHECKPOINT_HUB_FILES];
} HubFiles;

// Flushes a folder's list of names to the disk.
static inline bool folder_sync(const char* path, Error* error) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool ok = fd >= 0 && fsync(fd) == 0;
    if (!ok) fail(error, "%s: cannot flush to the disk: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return ok;
}

// Whether a name is one of the files that a checkpoint is made of, or that ranks leave in its .tmp while they write (checkpoint/async_save.h).
static inline bool checkpoint_is_file(const char* name) {
    for (size_t i = 0; i < sizeof checkpoint_files / sizeof checkpoint_files[0]; i++) {
        if (strcmp(name, checkpoint_files[i]) == 0) return true;
    }
    for (int i = 0; i < CHECKPOINT_HUB_FILES; i++) {
        if (strcmp(name, checkpoint_hub_files[i]) == 0) return true;
    }
    return strncmp(name, "rank_", 5) == 0 && name[5] && strspn(name + 5, "0123456789") == strlen(name + 5);
}

// Removes a checkpoint's folder and its files; what is not there is no harm, what is not its own stays, and the folder with it. Of a
// link only the link goes: what it leads to is somebody's.
static inline void checkpoint_remove(const char* folder) {
    struct stat st;
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && lstat(folder, &st) == 0 && S_ISLNK(st.st_mode)) unlink(folder);
    DIR* names = fd >= 0 ? fdopendir(fd) : NULL;
    if (fd >= 0 && !names) close(fd);
    for (const struct dirent* entry = names ? readdir(names) : NULL; entry; entry = readdir(names)) {
        if (checkpoint_is_file(entry->d_name)) unlinkat(dirfd(names), entry->d_name, 0);
    }
    if (names) closedir(names);
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

// Writes the files beside the model into a folder, flushed to the disk.
static inline bool checkpoint_write_hub_files(const char* folder, const HubFiles* files, Error* error) {
    char path[CHECKPOINT_PATH];
    bool ok = true;
    for (int i = 0; i < CHECKPOINT_HUB_FILES && ok; i++) {
        if (!files->text[i]) continue;
        if (!checkpoint_path(path, error, "%s/%s", folder, checkpoint_hub_files[i])) return false;
        FILE* out = fopen(path, "w");
        ok = out && fwrite(files->text[i], 1, files->size[i], out) == files->size[i] && fflush(out) == 0 &&
             fsync(fileno(out)) == 0;
        const int code = errno;
        if (out) ok = fclose(out) == 0 && ok;
        if (!ok) fail(error, "%s: cannot write: %s", path, strerror(code));
    }
    return ok;
}

// A checkpoint of the same name, an older run's, is replaced; anything else is somebody's work and is not touched.
static inline bool checkpoint_is_replaceable(const char* folder, Error* error) {
    DIR* names = opendir(folder);
    if (!names) {
        return errno == ENOENT || fail(error, "%s: the checkpoint's name is taken: %s", folder, strerror(errno));
    }
    bool ok = true;
    for (const struct dirent* entry = readdir(names); entry && ok; entry = readdir(names)) {
        ok = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 || checkpoint_is_file(entry->d_name);
        if (!ok) fail(error, "%s: the checkpoint's name is taken: %s is in it; move it away", folder, entry->d_name);
    }
    closedir(names);
    return ok;
}

// The files of a checkpoint with tensors: complete, but for the values, which are zero, and their checksums.
static inline bool checkpoint_create_files(const char* folder, int64_t step, const ModelConfig* m,
                                           const CheckpointSites* sites, Error* error) {
    CheckpointPlan plan;
    if (!checkpoint_plan(&plan, m, sites, step, error)) return false;
    char path[CHECKPOINT_PATH];
    bool ok = true;
    for (int i = 0; i < plan.files && ok; i++) {
        SafeTensorsFile file;
        ok = checkpoint_path(path, error, "%s/%s", folder, checkpoint_files[i]) &&
             safetensors_create(&file, path, &plan.file[i], error);
        if (ok) close(file.fd); // flushed later, with what ranks will have written
    }
    checkpoint_plan_free(&plan);
    return ok;
}

// Whether a run's folder is still there: said as what it is, not as what it makes of a file's name.
static inline bool checkpoint_is_there(const char* out, Error* error) {
    struct stat st;
    if (stat(out, &st) != 0)
        return fail(error, "%s: %s; was it moved away, or its disk unmounted?", out, strerror(errno));
    return S_ISDIR(st.st_mode) || fail(error, "%s: is not a folder any more", out);
}

// Rank 0, first: makes OUT/step_N.tmp. The space is taken now, so that a full disk is told before the work. If it fails
// OUT is as before. sites: see checkpoint_plan.
static inline bool checkpoint_begin(const char* out, int64_t step, const ModelConfig* m, const CheckpointSites* sites,
                                    Error* error) {
    char folder[CHECKPOINT_PATH], temporary[CHECKPOINT_PATH], old[CHECKPOINT_PATH];
    if (!checkpoint_path(folder, error, "%s/step_%08lld", out, (long long)step) ||
        !checkpoint_path(temporary, error, "%s/step_%08lld.tmp", out, (long long)step) ||
        !checkpoint_path(old, error, "%s/step_%08lld.old", out, (long long)step) || !checkpoint_is_there(out, error) ||
        !checkpoint_is_replaceable(folder, error))
        return false;
    checkpoint_remove(temporary); // left by a run that was killed while it saved
    checkpoint_remove(old);       // or while it replaced
    if (mkdir(temporary, 0777) != 0) return fail(error, "%s: cannot make the folder: %s", temporary, strerror(errno));
    if (checkpoint_create_files(temporary, step, m, sites, error)) return true;
    checkpoint_remove(temporary);
    return false;
}

// What a rank has written, or, added up, all have.
typedef struct {
    int64_t elements; // over all ranks it has to become checkpoint_values() model_parameters()
    uint64_t checksum[CHECKPOINT_TENSOR_FILES];
} CheckpointSum;

static inline void checkpoint_sum_add(CheckpointSum* sum, const CheckpointSum* more) {
    sum->elements += more->elements;
    for (int i = 0; i < CHECKPOINT_TENSOR_FILES; i++) sum->checksum[i] += more->checksum[i];
}

// One rank's hands on the files. It must not be copied: the files refer to their paths.
typedef struct {
    CheckpointPlan plan;
    char path[CHECKPOINT_TENSOR_FILES][CHECKPOINT_PATH];
    SafeTensorsFile file[CHECKPOINT_TENSOR_FILES];
    float* buffer;
    CheckpointSum sum; // written so far
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
    if (!checkpoint_plan(&w->plan, m, sites, step, error)) return false;
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
    const int file = checkpoint_file_of(value);
    static const char* const names[CHECKPOINT_VALUES] = {"the weight", "the first moment", "the second moment"};
    RunWriter runs = {&w->file[file], w->buffer, 0, 0, 0, value < CHECKPOINT_VALUES ? names[value] : "a site's value",
                      SAFE_F32};
    for (int i = b->first; i < b->first + b->slices; i++) {
        const Slice* s = &layout->slices[i];
        if (!slice_is_owned(s, layout)) continue;
        const int64_t tensor = w->plan.offset[value * w->plan.tensors + s->index];
        if (!slice_write(&runs, tensor, values + (s->offset - b->offset), s, error)) return false;
        w->sum.elements += s->rows_used * s->cols;
    }
    const bool ok = run_writer_flush(&runs, error);
    w->sum.checksum[file] += runs.checksum;
    return ok;
}

// The same of weights and moments.
static inline bool checkpoint_write_bucket(CheckpointWriter* w, const Layout* layout, int bucket, const float* params,
                                           const float* moment1, const float* moment2, Error* error) {
    return checkpoint_write_value(w, layout, bucket, 0, params, error) &&
           checkpoint_write_value(w, layout, bucket, 1, moment1, error) &&
           checkpoint_write_value(w, layout, bucket, 2, moment2, error);
}

// Gives a file or folder a name that nothing may have: errno is EEXIST then. A file system that cannot do this in one moment may replace
// an empty folder that has just appeared, but nothing else.
static inline bool rename_new(const char* from, const char* to) {
    struct stat st;
#ifdef RENAME_NOREPLACE
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return true;
    if (errno != EINVAL && errno != ENOSYS) return false;
#endif
    if (link(from, to) == 0) return unlink(from) == 0; // a file
    if (errno == EEXIST) return false;
    if (lstat(to, &st) != 0) return rename(from, to) == 0;
    errno = EEXIST;
    return false;
}

// Renames temporary to folder. A checkpoint that has the name, or a link, is moved to `old`, and comes back if that fails. (Killed
// between the two renames, a run has neither; the checkpoint before is the newest then.)
static inline bool checkpoint_rename(const char* temporary, const char* folder, const char* old, Error* error) {
    if (rename(temporary, folder) == 0) return true; // the name was free
    struct stat st;
    const bool taken = errno == ENOTEMPTY || errno == EEXIST;
    const bool linked = errno == ENOTDIR && lstat(folder, &st) == 0 && S_ISLNK(st.st_mode);
    if (!taken && !linked) return fail(error, "%s: cannot rename to %s: %s", temporary, folder, strerror(errno));
    const bool moved = rename(folder, old) == 0;
    if (moved && rename(temporary, folder) == 0) return true;
    fail(error, "%s: cannot rename to %s: %s", temporary, folder, strerror(errno));
    if (moved && rename(old, folder) != 0)
        fail(error, "%s: cannot rename to %s, where it was: %s", old, folder, strerror(errno));
    return false;
}

// A file as trainer.json has it.
typedef struct {
    char name[32];
    int64_t bytes;
    uint64_t checksum;
} CheckpointFile;

// What trainer.json says.
typedef struct {
    CheckpointState state;
    int files;
    CheckpointFile file[CHECKPOINT_TENSOR_FILES + 1];
} CheckpointList;

static inline void checkpoint_hex(char text[17], uint64_t checksum) {
    snprintf(text, 17, "%016llx", (unsigned long long)checksum);
}

static const char checkpoint_last_key[] =
    "\"checksum\": \""; // of trainer.json; it covers all that stands before its value

static inline bool checkpoint_write_list(const char* path, const CheckpointList* list, Error* error) {
    const CheckpointState* s = &list->state;
    char text[4096], hex[17];
    size_t n = 0;
    const size_t size = sizeof text;
    n += (size_t)snprintf(text, size,
                          "{\n  \"step\": %lld,\n  \"sequences\": %lld,\n  \"seed\": %lld,\n  \"global_batch\": %lld,\n"
                          "  \"seq\": %lld,\n  \"data_tokens\": %lld,\n  \"rounds\": \"%s\",\n",
                          (long long)s->step, (long long)s->sequences, (long long)s->seed, (long long)s->global_batch,
                          (long long)s->seq, (long long)s->data_tokens, s->rounds);
    n += (size_t)snprintf(text + n, size - n, "  \"optimizer\": \"%s\",\n", s->optimizer);
    if (s->tuning[0]) n += (size_t)snprintf(text + n, size - n, "  \"tuning\": \"%s\",\n", s->tuning);
    if (s->data_mix) n += (size_t)snprintf(text + n, size - n, "  \"data_mix\": %lld,\n", (long long)s->data_mix);
    if (isfinite(s->val_loss)) n += (size_t)snprintf(text + n, size - n, "  \"val_loss\": %.17g,\n", s->val_loss);
    checkpoint_hex(hex, s->data_checksum);
    if (s->data_checksum) n += (size_t)snprintf(text + n, size - n, "  \"data_checksum\": \"%s\",\n", hex);
    if (s->held_out >= 0)
        n += (size_t)snprintf(text + n, size - n, "  \"held_out_blocks\": %lld,\n", (long long)s->held_out);
    n += (size_t)snprintf(text + n, size - n, "  \"files\": {");
    for (int i = 0; i < list->files; i++) {
        const CheckpointFile* f = &list->file[i];
        checkpoint_hex(hex, f->checksum);
        n += (size_t)snprintf(text + n, size - n, "%s\n    \"%s\": {\"bytes\": %lld, \"checksum\": \"%s\"}",
                              i ? "," : "", f->name, (long long)f->bytes, hex);
    }
    n += (size_t)snprintf(text + n, size - n, "\n  },\n  %s", checkpoint_last_key);
    if (n >= size) return fail(error, "%s: internal error: too long", path);
    checkpoint_hex(hex, checksum_of(text, (int64_t)n, 0));
    return checkpoint_write_text(path, error, "%s%s\"\n}\n", text, hex);
}

// Where in a header of checkpoint_plan its checksum has its 16 digits.
static inline int64_t checkpoint_digits(const void* header, int64_t bytes) {
    static const char key[] = "\"checksum\":\"";
    const char* at = (const char*)memmem(header, (size_t)bytes, key, sizeof key - 1);
    const int64_t place = at ? at - (const char*)header + (int64_t)sizeof key - 1 : -1;
    return place >= 0 && place + 16 <= bytes ? place : -1;
}

// Gives a file of tensors its checksum: that of the header, and `values`, what all ranks have written behind it.
static inline bool checkpoint_seal(CheckpointFile* entry, const char* path, const SafeTensorsPlan* plan,
                                   uint64_t values, Error* error) {
    SafeTensorsFile file;
    char digits[17];
    entry->bytes = plan->file_bytes;
    entry->checksum = values + checksum_of(plan->header, plan->header_bytes, 0);
    checkpoint_hex(digits, entry->checksum);
    if (!safetensors_join(&file, path, plan, error)) return false;
    const bool ok = safetensors_write_at(&file, checkpoint_digits(plan->header, plan->header_bytes), digits, 16, error);
    Error late;
    return safetensors_finish(&file, ok ? error : &late) && ok;
}

// The same of a file as it lies there.
static inline bool checkpoint_sum_file(CheckpointFile* entry, const char* path, Error* error) {
    MappedFile file;
    if (!file_map(&file, path, error)) return false;
    entry->bytes = (int64_t)file.size;
    entry->checksum = checksum_of(file.data, entry->bytes, 0);
    file_unmap(&file);
    return true;
}

// What is still missing in the .tmp when all ranks have left it: checksums, config.json and what stands beside it, trainer.json.
static inline bool checkpoint_complete(const char* folder, const CheckpointState* state, const ModelConfig* m,
                                       const CaatConfig* sync, const CheckpointSites* sites, const CheckpointSum* sum,
                                       const HubFiles* files, Error* error) {
    CheckpointPlan plan;
    CheckpointList list;
    char path[CHECKPOINT_PATH];
    if (!checkpoint_plan(&plan, m, sites, state->step, error)) return false;
    memset(&list, 0, sizeof list);
    list.state = *state;
    bool ok = true;
    for (int i = 0; i < plan.files && ok; i++) {
        CheckpointFile* entry = &list.file[list.files++];
        snprintf(entry->name, sizeof entry->name, "%s", checkpoint_files[i]);
        ok = checkpoint_path(path, error, "%s/%s", folder, entry->name) &&
             checkpoint_seal(entry, path, &plan.file[i], sum->checksum[i], error);
    }
    checkpoint_plan_free(&plan);
    CheckpointFile* config = &list.file[list.files++];
    snprintf(config->name, sizeof config->name, "config.json");
    return ok && checkpoint_path(path, error, "%s/config.json", folder) &&
           checkpoint_write_config(path, m, sync, SAFE_F32, files ? files->config : "", error) &&
           checkpoint_sum_file(config, path, error) && (!files || checkpoint_write_hub_files(folder, files, error)) &&
           checkpoint_path(path, error, "%s/trainer.json", folder) && checkpoint_write_list(path, &list, error);
}

// Rank 0, when all ranks have left with success: step_N.tmp becomes step_N. sum: that of all ranks. sync: see
// checkpoint_write_config. files: what stands beside the model, or NULL. If it fails OUT is as before.
static inline bool checkpoint_publish(const char* out, const CheckpointState* state, const ModelConfig* m,
                                      const CaatConfig* sync, const CheckpointSites* sites, const CheckpointSum* sum,
                                      const HubFiles* files, Error* error) {
    char folder[CHECKPOINT_PATH], temporary[CHECKPOINT_PATH], old[CHECKPOINT_PATH];
    const long long step = state->step, values = sites ? checkpoint_values(sites) : CHECKPOINT_VALUES;
    if (!checkpoint_path(folder, error, "%s/step_%08lld", out, step) ||
        !checkpoint_path(temporary, error, "%s/step_%08lld.tmp", out, step) ||
        !checkpoint_path(old, error, "%s/step_%08lld.old", out, step))
        return false;
    bool ok = sum->elements == values * model_parameters(m) ||
              fail(error, "%s: internal error: %lld of %lld values were written", temporary, (long long)sum->elements,
                   values * (long long)model_parameters(m));
    ok = ok && checkpoint_complete(temporary, state, m, sync, sites, sum, files, error) &&
         folder_sync(temporary, error) && checkpoint_rename(temporary, folder, old, error);
    if (!ok) {
        checkpoint_remove(temporary);
        return false;
    }
    ok = folder_sync(out, error); // the new name is on the disk before the old files go
    checkpoint_remove(old);
    return ok;
}

// Rank 0, when a rank has failed: removes step_N.tmp. False: it may still be there, where nobody can look now.
static inline bool checkpoint_abandon(const char* out, int64_t step) {
    char temporary[CHECKPOINT_PATH];
    struct stat st;
    Error error;
    if (!checkpoint_path(temporary, &error, "%s/step_%08lld.tmp", out, (long long)step)) return true;
    checkpoint_remove(temporary);
    return stat(out, &st) == 0 && stat(temporary, &st) != 0 && errno == ENOENT;
}

// ----------------------------------------------------------------------------------------------------------------
// Taking a run up again

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

// Writes the folder of the newest checkpoint in `out` into path; false if there is none. Whether it is sound is not asked.
static inline bool checkpoint_newest(char* path, size_t size, const char* out) {
    int64_t* steps;
    const int n = checkpoint_steps(&steps, out);
    const long long newest = n > 0 ? (long long)steps[0] : -1;
    free(steps);
    if (n == 0) return false;
    return snprintf(path, size, "%s/step_%08lld", out, newest) < (int)size;
}

// 16 hexadecimal digits.
static inline bool checkpoint_read_hex(uint64_t* checksum, const char* text) {
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) return false;
    *checksum = strtoull(text, NULL, 16);
    return true;
}

// trainer.json ends with its own checksum, that of all that stands before it.
static inline bool checkpoint_check_own(const char* path, Error* error) {
    MappedFile file;
    if (!file_map(&file, path, error)) return false;
    const size_t tail = 16 + 4, key = sizeof checkpoint_last_key - 1; // 16 digits, "\n}\n
    const char *text = (const char*)file.data, *end = text + file.size;
    char hex[17], digits[17] = "";
    bool ok = file.size > tail + key && memcmp(end - 4, "\"\n}\n", 4) == 0 &&
              memcmp(end - tail - key, checkpoint_last_key, key) == 0;
    if (!ok) {
        fail(error, "%s: does not end with its checksum: cut off, or not written by this program", path);
    } else {
        memcpy(digits, end - tail, 16);
        checkpoint_hex(hex, checksum_of(text, (int64_t)(file.size - tail), 0));
        ok = memcmp(hex, digits, 16) == 0 ||
             fail(error, "%s: its checksum is %s, but it says %s: it was changed after it was written", path, hex,
                  json_quoted(digits).text);
    }
    file_unmap(&file);
    return ok;
}

// The files of a checkpoint in the order of their list; of them only sites.safetensors may be missing.
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

// A text that may be missing: "" then. It is shown to people, so it has to be printable.
static inline bool checkpoint_load_text(char* text, size_t size, const Json* json, const char* key, Error* error) {
    const char* value = "";
    memset(text, 0, size);
    if (json_get(json->nodes, key) && !json_get_string(&value, json, json->nodes, key, error)) return false;
    for (const char* c = value; *c; c++) {
        if (*c < 32 || *c > 126 || c - value >= (int64_t)size - 1)
            return fail(error, "%s: \"%s\" is %s, which no run has", json->path, key, json_quoted(value).text);
    }
    snprintf(text, size, "%s", value);
    return true;
}

// Older checkpoints have no "optimizer": sgd was one of the words of "rounds", and AdamW went without saying.
static inline void checkpoint_split_rounds(CheckpointState* state) {
    static const char word[] = ", sgd";
    char* at = strstr(state->rounds, word);
    snprintf(state->optimizer, sizeof state->optimizer, "%s", at ? "sgd" : "adamw");
    if (!at) return;
    memmove(at, at + sizeof word - 1, strlen(at + sizeof word - 1) + 1);
    if (strcmp(state->rounds, "--dp-mode sync") == 0) state->rounds[0] = 0;
}

static inline bool checkpoint_load_state(CheckpointState* state, const Json* json, Error* error) {
    const struct {
        const char* name;
        int64_t* value;
    } fields[] = {{"step", &state->step}, {"sequences", &state->sequences},
                  {"seed", &state->seed}, {"global_batch", &state->global_batch},
                  {"seq", &state->seq},   {"data_tokens", &state->data_tokens}};
    bool ok = true;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0] && ok; i++)
        ok = json_get_integer(fields[i].value, json, json->nodes, fields[i].name, 0, INT64_MAX, error);
    state->data_mix = 0;
    if (ok && json_get(json->nodes, "data_mix"))
        ok = json_get_integer(&state->data_mix, json, json->nodes, "data_mix", 0, INT64_MAX, error);
    ok = ok && json_require(json, json->nodes, "rounds", JSON_STRING, error) &&
         checkpoint_load_text(state->rounds, sizeof state->rounds, json, "rounds", error) &&
         checkpoint_load_text(state->optimizer, sizeof state->optimizer, json, "optimizer", error) &&
         checkpoint_load_text(state->tuning, sizeof state->tuning, json, "tuning", error);
    if (ok && !state->optimizer[0]) checkpoint_split_rounds(state);
    state->val_loss = (double)NAN;
    if (ok && json_get(json->nodes, "val_loss"))
        ok = json_get_number(&state->val_loss, json, json->nodes, "val_loss", error);
    const char* hex = "";
    state->data_checksum = 0, state->held_out = -1;
    if (ok && json_get(json->nodes, "data_checksum"))
        ok = json_get_string(&hex, json, json->nodes, "data_checksum", error) &&
             (checkpoint_read_hex(&state->data_checksum, hex) ||
              json_fail(json, json->nodes, error, "\"data_checksum\" has 16 hexadecimal digits"));
    if (ok && json_get(json->nodes, "held_out_blocks"))
        ok = json_get_integer(&state->held_out, json, json->nodes, "held_out_blocks", 0, 1 << 20, error);
    return ok;
}

// trainer.json of a checkpoint's folder, as it was written.
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

// Whether the files of a list are there, in their sizes.
static inline bool checkpoint_check_sizes(const CheckpointList* list, const char* folder, Error* error) {
    char path[CHECKPOINT_PATH];
    struct stat st;
    bool ok = true;
    for (int i = 0; i < list->files && ok; i++) {
        const CheckpointFile* f = &list->file[i];
        if (!checkpoint_path(path, error, "%s/%s", folder, f->name)) return false;
        if (stat(path, &st) != 0)
            ok = fail(error, "%s: %s", path, errno == ENOENT ? "is missing" : strerror(errno));
        else if (!S_ISREG(st.st_mode))
            ok = fail(error, "%s: not a regular file", path);
        else if ((int64_t)st.st_size != f->bytes)
            ok = fail(error, "%s: has %lld bytes, and had %lld when it was written", path, (long long)st.st_size,
                      (long long)f->bytes);
    }
    return ok;
}

// trainer.json of a checkpoint's folder: as it was written, and of files that are there in their sizes.
static inline bool checkpoint_load_list(CheckpointList* list, const char* folder, Error* error) {
    return checkpoint_read_list(list, folder, error) && checkpoint_check_sizes(list, folder, error);
}

// The folder of the checkpoint that weights to start from belong to: path itself, or the folder that the file lies in. False: they
// belong to none, as no trainer.json is there.
static inline bool checkpoint_of_weights(char folder[CHECKPOINT_PATH], const char* path) {
    struct stat st;
    Error error;
    char list[CHECKPOINT_PATH];
    const char* slash = strrchr(path, '/');
    const bool is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    const int length = is_folder ? (int)strlen(path) : slash ? (int)(slash - path) : 0;
    return checkpoint_path(folder, &error, "%s%.*s", is_folder || slash ? "" : ".", length, path) &&
           checkpoint_path(list, &error, "%s/trainer.json", folder) && access(list, F_OK) == 0;
}

// The same of the weights alone, in `path`, which is the folder or a file in it: a run that only starts from them needs no other file.
static inline bool checkpoint_load_weights_list(CheckpointList* list, const char* folder, const char* path,
                                                Error* error) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct stat st;
    const bool is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    if (!checkpoint_read_list(list, folder, error)) return false;
    int kept = 0;
    for (int i = 0; i < list->files; i++) {
        const CheckpointFile* f = &list->file[i];
        const bool weights = strcmp(f->name, "model.safetensors") == 0 || strcmp(f->name, "config.json") == 0;
        if (is_folder ? weights : strcmp(f->name, name) == 0) list->file[kept++] = *f;
    }
    list->files = kept;
    return checkpoint_check_sizes(list, folder, error);
}

// Whether a checkpoint's config.json is what was written.
static inline bool checkpoint_config_is_sound(const char* folder) {
    char path[CHECKPOINT_PATH];
    CheckpointList list;
    CheckpointFile now;
    Error error;
    return checkpoint_load_weights_list(&list, folder, folder, &error) &&
           checkpoint_path(path, &error, "%s/config.json", folder) && checkpoint_sum_file(&now, path, &error) &&
           now.checksum == list.file[list.files - 1].checksum; // config.json comes last
}

// What words [from, to) of a file add to its checksum; of a file of tensors, whose checksum is in it, with zeros in its place.
static inline uint64_t checkpoint_sum_words(const unsigned char* data, int64_t bytes, int64_t digits, int64_t from,
                                            int64_t to) {
    unsigned char copy[24];
    uint64_t sum = checksum_of(data + 4 * from, min_i64(4 * to, bytes) - 4 * from, from);
    for (int64_t word = digits / 4; digits >= 0 && 4 * word < digits + 16; word++) {
        if (word < from || word >= to) continue;
        memcpy(copy, data + 4 * word, 4);
        for (int64_t i = 0; i < 4; i++) {
            if (4 * word + i >= digits && 4 * word + i < digits + 16) copy[i] = '0';
        }
        sum += checksum_of(copy, 4, word) - checksum_of(data + 4 * word, 4, word);
    }
    return sum;
}

// Whether the checksum in the head of a file of tensors is the one that the list has.
static inline bool checkpoint_check_digits(const char* path, const MappedFile* file, int64_t digits,
                                           const CheckpointFile* f, Error* error) {
    char hex[17], said[17] = "";
    checkpoint_hex(hex, f->checksum);
    if (digits >= 0) memcpy(said, file->data + digits, 16);
    if (digits < 0) return fail(error, "%s: has no checksum in its head: it was changed", path);
    return memcmp(said, hex, 16) == 0 || fail(error,
                                              "%s: says that its checksum is %s, and trainer.json that it was %s: it "
                                              "was changed, or is another checkpoint's",
                                              path, json_quoted(said).text, hex);
}

// Any rank: adds to sums[i] what part `rank` of `ranks` of file i adds to its checksum.
static inline bool checkpoint_add_up(uint64_t sums[CHECKPOINT_TENSOR_FILES + 1], const CheckpointList* list,
                                     const char* folder, int rank, int ranks, Error* error) {
    char path[CHECKPOINT_PATH];
    for (int i = 0; i < list->files; i++) {
        const CheckpointFile* f = &list->file[i];
        const int64_t words = (f->bytes + 3) / 4, part = (words + ranks - 1) / ranks;
        const int64_t from = min_i64(words, rank * part), to = min_i64(words, from + part);
        MappedFile file;
        if (!checkpoint_path(path, error, "%s/%s", folder, f->name) || !file_map(&file, path, error)) return false;
        const bool tensors = strstr(f->name, ".safetensors") != NULL, same = (int64_t)file.size == f->bytes;
        const int64_t header = min_i64(f->bytes, 4096), digits = tensors ? checkpoint_digits(file.data, header) : -1;
        bool ok = same || fail(error, "%s: its size has just changed", path);
        ok = ok && (!tensors || checkpoint_check_digits(path, &file, digits, f, error));
        if (ok && from < to) sums[i] += checkpoint_sum_words(file.data, f->bytes, digits, from, to);
        file_unmap(&file);
        if (!ok) return false;
    }
    return true;
}

// Whether a checkpoint is that of the step that its folder is called after.
static inline bool checkpoint_check_step(const CheckpointList* list, const char* folder, int64_t step, Error* error) {
    return list->state.step == step ||
           fail(error, "%s/trainer.json: is of step %lld", folder, (long long)list->state.step);
}

// sums: those of all ranks. Says which file is not what was written.
static inline bool checkpoint_compare(const uint64_t sums[CHECKPOINT_TENSOR_FILES + 1], const CheckpointList* list,
                                      const char* folder, Error* error) {
    for (int i = 0; i < list->files; i++) {
        const CheckpointFile* f = &list->file[i];
        if (sums[i] != f->checksum)
            return fail(error,
                        "%s/%s: its checksum is %016llx, and was %016llx when it was written: bits have changed, or it "
                        "is another checkpoint's",
                        folder, f->name, (unsigned long long)sums[i], (unsigned long long)f->checksum);
    }
    return true;
}

// Whether the files of a checkpoint are what was written, asked by one process alone.
static inline bool checkpoint_verify(const char* folder, Error* error) {
    CheckpointList list;
    uint64_t sums[CHECKPOINT_TENSOR_FILES + 1] = {0};
    return checkpoint_load_list(&list, folder, error) && checkpoint_add_up(sums, &list, folder, 0, 1, error) &&
           checkpoint_compare(sums, &list, folder, error);
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
    CheckpointList list;
    if (sites) memcpy(now, state->rounds, sizeof now);
    bool ok = checkpoint_load_list(&list, folder, error);
    *state = list.state;
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
