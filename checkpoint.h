/*
checkpoint.h: a run on disk. A checkpoint is one logical model, whatever the mesh that wrote it: every tensor under
Hugging Face's name and in its shape, float32, in a folder that transformers loads as it is.

    OUT/step_00001000/
        model.safetensors       the weights
        config.json             the architecture, as Hugging Face writes it
        optimizer.safetensors   AdamW's moments: exp_avg.NAME and exp_avg_sq.NAME, in the weights' shapes
        trainer.json            step, position in the data, and what a resumed run must not change

It is complete or it does not exist: everything is written into OUT/step_00001000.tmp, flushed to the disk (files, then
the folder), and the folder is renamed.

Where a rank's slice lies in a file follows from the layout alone: as runs of consecutive elements. So any rank can write
and read its own slices of the one file.
*/
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "base.h"
#include "json.h"
#include "parallel.h"
#include "safetensors.h"
#include <dirent.h>

typedef struct {
    int64_t step;                                 // updates done
    int64_t sequences;                            // consumed: the position in the data
    int64_t seed, global_batch, seq, data_tokens; // the same in a resumed run
} CheckpointState;

// ----------------------------------------------------------------------------------------------------------------
// A slice as runs of a file

// `count` elements: in the file's tensor from element `file` on, in the rank's slice every `stride` elements from `local`.
typedef struct {
    int64_t file, local, stride, count;
} Run;

// A tensor that files hold transposed has a run per local column and part, any other one per local row.
static inline int64_t slice_runs(const Slice* s) { return s->tensor.transposed ? s->cols * s->tensor.parts : s->rows; }

static inline Run slice_run(const Slice* s, const Mesh* mesh, int64_t i) {
    const int64_t col0 = slice_logical_col(s, mesh);
    if (!s->tensor.transposed) {
        Run run = {slice_logical_row(s, mesh, i) * s->tensor.cols + col0, i * s->cols, 1, s->cols};
        return run;
    }
    const int64_t share = s->rows / s->tensor.parts, col = i / s->tensor.parts, row = i % s->tensor.parts * share;
    Run run = {(col0 + col) * s->tensor.rows + slice_logical_row(s, mesh, row), row * s->cols + col, s->cols, share};
    return run;
}

// The shape in files.
static inline int slice_file_shape(int64_t shape[2], const Slice* s) {
    shape[0] = s->tensor.transposed ? s->tensor.cols : s->tensor.rows;
    shape[1] = s->tensor.transposed ? s->tensor.rows : s->tensor.cols;
    return s->tensor.vector ? 1 : 2;
}

// ----------------------------------------------------------------------------------------------------------------
// Reading

// Reads a slice from the file's tensor called `name` (the slice's own name, maybe with something in front).
static inline bool slice_read(float* local, const SafeTensorsModel* file, const char* name, const Slice* s,
                              const Mesh* mesh, Error* error) {
    const SafeTensors* st;
    const SafeTensor* tensor = safetensors_model_find(file, name, &st);
    if (!tensor)
        return fail(error, "%s: %s is missing; is it the model that --model and the sizes say?", file->path, name);
    int64_t shape[2];
    const int ndim = slice_file_shape(shape, s);
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
        const Run run = slice_run(s, mesh, i);
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

// Reads the slices of all tensors called PREFIX + name.
static inline bool slices_read(float* local, const SafeTensorsModel* file, const char* prefix, const Layout* layout,
                               Error* error) {
    for (int i = 0; i < layout->n; i++) {
        const Slice* s = &layout->slices[i];
        char name[128];
        snprintf(name, sizeof name, "%s%s", prefix, s->tensor.name);
        if (!slice_read(local + s->offset, file, name, s, &layout->mesh, error)) return false;
    }
    return true;
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

// The logical name of a file's tensor. Files of the hub leave out the first part: "wte.weight" is transformer.wte.weight.
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

// Weights to start from, --init: a safetensors file, or a folder with one or with shards and their index.
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
        ok = slice_read(params + s->offset, &file, bare ? name + strlen(prefix) : name, s, &layout->mesh, error);
    }
    safetensors_model_close(&file);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------------
// Writing

// Collects runs in a buffer and writes what is consecutive in one go.
typedef struct {
    SafeTensorsFile file;
    float* buffer;
    int64_t count, start; // floats in the buffer; where in the file the first one belongs, in bytes
} RunWriter;

enum { RUN_WRITER_FLOATS = 1 << 20 };

static inline bool run_writer_flush(RunWriter* w, Error* error) {
    const int64_t bytes = w->count * (int64_t)sizeof(float);
    w->count = 0;
    return safetensors_write_at(&w->file, w->start, w->buffer, bytes, error);
}

// Writes a slice into the tensor that begins at byte `tensor` of the file.
static inline bool slice_write(RunWriter* w, int64_t tensor, const float* local, const Slice* s, const Mesh* mesh,
                               Error* error) {
    for (int64_t i = 0; i < slice_runs(s); i++) {
        const Run run = slice_run(s, mesh, i);
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

// A buffer that is laid out like the parameters, and what stands before the names of its tensors in files.
typedef struct {
    const char* prefix;
    const float* values;
} CheckpointGroup;

// The tensors of a file with all groups; names (n) has room for their names.
static inline void checkpoint_list(SafeTensor* list, char (*names)[128], const CheckpointGroup* groups, int n,
                                   const Layout* layout) {
    for (int i = 0; i < n; i++) {
        const Slice* s = &layout->slices[i % layout->n];
        snprintf(names[i], sizeof names[i], "%s%s", groups[i / layout->n].prefix, s->tensor.name);
        memset(&list[i], 0, sizeof list[i]);
        list[i].name = names[i];
        list[i].dtype = SAFE_F32;
        list[i].ndim = slice_file_shape(list[i].shape, s);
    }
}

// Writes one file with all tensors of `count` groups, to the disk.
static inline bool checkpoint_write_tensors(const char* path, const CheckpointGroup* groups, int count,
                                            const Layout* layout, Error* error) {
    static const SafeMetadata format = {"format", "pt"}; // transformers wants to see it
    const int n = count * layout->n;
    SafeTensor* list = (SafeTensor*)checked_malloc((size_t)n * sizeof *list, "a checkpoint's tensors");
    char(*names)[128] = (char(*)[128])checked_malloc((size_t)n * sizeof *names, "a checkpoint's names");
    checkpoint_list(list, names, groups, n, layout);
    SafeTensorsPlan plan;
    RunWriter writer;
    memset(&writer, 0, sizeof writer);
    bool ok = safetensors_plan(&plan, list, n, &format, 1, error);
    if (ok && safetensors_create(&writer.file, path, &plan, error)) {
        writer.buffer = (float*)checked_malloc(RUN_WRITER_FLOATS * sizeof(float), "writing a checkpoint");
        for (int i = 0; i < n && ok; i++) {
            const Slice* s = &layout->slices[i % layout->n];
            ok =
                slice_write(&writer, list[i].offset, groups[i / layout->n].values + s->offset, s, &layout->mesh, error);
        }
        ok = ok && run_writer_flush(&writer, error);
        Error late; // what went wrong first is what is told
        const bool finished = safetensors_finish(&writer.file, ok ? error : &late);
        ok = ok && finished;
    } else {
        ok = false;
    }
    safetensors_plan_free(&plan);
    free(writer.buffer);
    free(names);
    free(list);
    return ok;
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
    const bool written = fflush(out) == 0 && fsync(fileno(out)) == 0;
    if (!written) fail(error, "%s: cannot write: %s", path, strerror(errno));
    return fclose(out) == 0 && written;
}

// config.json: the architecture in the words of Hugging Face's GPT2Config and LlamaConfig.
static inline bool checkpoint_write_config(const char* path, const ModelConfig* m, Error* error) {
    if (m->arch == ARCH_GPT2) {
        return checkpoint_write_text(
            path, error,
            "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n  \"n_layer\": %d,\n"
            "  \"n_embd\": %d,\n  \"n_head\": %d,\n  \"n_inner\": %d,\n  \"n_positions\": %d,\n  \"vocab_size\": %d,\n"
            "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": %g,\n  \"tie_word_embeddings\": %s,\n"
            "  \"torch_dtype\": \"float32\"\n}\n",
            m->L, m->C, m->NH, m->F, m->T, m->V, m->eps, m->tied ? "true" : "false");
    }
    return checkpoint_write_text(
        path, error,
        "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\",\n  \"num_hidden_layers\": %d,\n"
        "  \"hidden_size\": %d,\n  \"num_attention_heads\": %d,\n  \"num_key_value_heads\": %d,\n  "
        "\"intermediate_size\": %d,\n"
        "  \"max_position_embeddings\": %d,\n  \"vocab_size\": %d,\n  \"hidden_act\": \"silu\",\n  \"rms_norm_eps\": "
        "%g,\n"
        "  \"rope_theta\": %g,\n  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"float32\"\n}\n",
        m->L, m->C, m->NH, m->NKV, m->F, m->T, m->V, m->eps, m->rope_theta, m->tied ? "true" : "false");
}

static const char* const checkpoint_files[] = {"model.safetensors", "optimizer.safetensors", "config.json",
                                               "trainer.json"};

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

static inline bool checkpoint_write(const char* folder, const CheckpointState* state, const ModelConfig* m,
                                    const Layout* layout, const float* params, const float* moment1,
                                    const float* moment2, Error* error) {
    const CheckpointGroup weights = {"", params}, moments[2] = {{"exp_avg.", moment1}, {"exp_avg_sq.", moment2}};
    char path[4][4096 + 32];
    for (int i = 0; i < 4; i++) snprintf(path[i], sizeof path[i], "%s/%s", folder, checkpoint_files[i]);
    return checkpoint_write_tensors(path[0], &weights, 1, layout, error) &&
           checkpoint_write_tensors(path[1], moments, 2, layout, error) && checkpoint_write_config(path[2], m, error) &&
           checkpoint_write_text(
               path[3], error,
               "{\n  \"step\": %lld,\n  \"sequences\": %lld,\n  \"seed\": %lld,\n  \"global_batch\": %lld,\n"
               "  \"seq\": %lld,\n  \"data_tokens\": %lld\n}\n",
               (long long)state->step, (long long)state->sequences, (long long)state->seed,
               (long long)state->global_batch, (long long)state->seq, (long long)state->data_tokens) &&
           folder_sync(folder, error);
}

// Saves a checkpoint as OUT/step_N. params, moment1, moment2: layout->elements each, in host memory. If it fails, OUT is
// as it was before, and *error says why.
static inline bool checkpoint_save(const char* out, const CheckpointState* state, const ModelConfig* m,
                                   const Layout* layout, const float* params, const float* moment1,
                                   const float* moment2, Error* error) {
    char folder[4096], temporary[4096];
    if (snprintf(folder, sizeof folder, "%s/step_%08lld", out, (long long)state->step) >= (int)sizeof folder - 8)
        return fail(error, "%s: the name is too long", out);
    snprintf(temporary, sizeof temporary, "%.4080s.tmp", folder);
    checkpoint_remove(temporary); // left by a run that was killed while it saved
    if (mkdir(temporary, 0777) != 0) return fail(error, "%s: cannot make the folder: %s", temporary, strerror(errno));
    bool ok = checkpoint_write(temporary, state, m, layout, params, moment1, moment2, error);
    if (ok) checkpoint_remove(folder); // an older run's of the same step
    if (ok && rename(temporary, folder) != 0)
        ok = fail(error, "%s: cannot rename to %s: %s", temporary, folder, strerror(errno));
    if (!ok) {
        checkpoint_remove(temporary);
        return false;
    }
    return folder_sync(out, error);
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
    snprintf(path, size, "%s/step_%08lld", out, newest);
    return true;
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
    json_free(&json);
    return ok;
}

// Loads the checkpoint in `folder`: state, and this rank's slices of the weights and both moments.
static inline bool checkpoint_load(const char* folder, CheckpointState* state, const Layout* layout, float* params,
                                   float* moment1, float* moment2, Error* error) {
    char path[4096 + 32];
    SafeTensorsModel file;
    snprintf(path, sizeof path, "%s/trainer.json", folder);
    if (!checkpoint_load_state(state, path, error)) return false;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (!safetensors_model_open(&file, path, error)) return false;
    bool ok = slices_read(params, &file, "", layout, error);
    safetensors_model_close(&file);
    snprintf(path, sizeof path, "%s/optimizer.safetensors", folder);
    if (!ok || !safetensors_model_open(&file, path, error)) return false;
    ok = slices_read(moment1, &file, "exp_avg.", layout, error) &&
         slices_read(moment2, &file, "exp_avg_sq.", layout, error);
    safetensors_model_close(&file);
    return ok;
}

#endif
