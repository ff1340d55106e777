/*
checkpoint/checkpoint.h: writes a checkpoint. It holds one logical model, whatever mesh wrote it: every tensor has
Hugging Face's name and shape, in float32, in a folder that transformers loads as it is.

    rank 0          checkpoint_begin        makes OUT/step_N.tmp, with the files of tensors at their final size
    every rank      checkpoint_join         opens them
                    checkpoint_write_value  writes the buckets' values that this rank has to write
                    checkpoint_leave        flushes this rank's writes; writer.sum is their checksum
    rank 0          checkpoint_publish      adds checksums and config.json, and gives the folder its name; or
                                            checkpoint_abandon, if any rank has failed
There is no MPI here: between these calls the caller waits for all ranks and asks whether all have succeeded.

Theory:
    OUT/step_00001000/
        model.safetensors       the weights
        config.json             the architecture, as Hugging Face writes it
        optimizer.safetensors   AdamW's moments: exp_avg.NAME and exp_avg_sq.NAME, in the weights' shapes (SGD's
                                velocity is the first, and there is no second)
        sites.safetensors       for asynchronous sites (methods/async_schedule.h) only: the values of each site beside
                                the global parameters, site.3.exp_avg.NAME and others
        trainer.json            step, position in the data, options that a resumed run must not change; size and
                                checksum of all other files
A checkpoint is complete or it does not exist: everything is written into OUT/step_00001000.tmp, flushed to the disk
(files, then the folder), and the folder is renamed. A run that is killed leaves at most the .tmp, which no run resumes
from; the next save of that step removes it.

trainer.json has the checksums of all files (util/base.h) and, at its end, its own. So checkpoint_dir.h finds a
flipped bit, a truncated file and a file of another checkpoint before anything is used.

The place of a rank's slice in a file follows from the layout alone, as runs of consecutive elements. So all ranks write
into the same files at once, each its own slices, bucket by bucket. Nothing is gathered on one rank, not even for a
checksum, which is a sum over words. Data ranks hold the same slices; any one of them writes a bucket. Reading needs no
order: each rank maps the files and copies its slices. All ranks have to see one file system.
*/
#pragma once

#include "../util/base.h"
#include "../util/json.h"
#include "../parallel.h"
#include "hf_config.h"
#include "safetensors.h"
#include <dirent.h>

enum { CHECKPOINT_PATH = 4096 }; // Linux's PATH_MAX

enum { CHECKPOINT_KINDS = 8, CHECKPOINT_OPTIONS_TEXT = 384 };

// The values that asynchronous sites keep for every parameter: some kinds, each in one copy per site, or in one.
typedef struct {
    int kinds, copies; // 0: nothing, and there is no sites.safetensors
    const char* kind[CHECKPOINT_KINDS];
    int moments; // the optimizer's; 0: the weights alone, for other programs (checkpoint/export.h)
} CheckpointSites;
static const CheckpointSites checkpoint_of_adamw = {0, 0, {NULL}, 2}; // without sites

typedef struct {
    int64_t step;                                 // optimizer steps done
    int64_t sequences;                            // consumed: the position in the data
    int64_t seed, global_batch, seq, data_tokens; // unchanged in a resumed run
    char async_plan[CHECKPOINT_OPTIONS_TEXT];     // the options of asynchronous sites, unchanged; "": synchronous
    char optimizer[16];                           // the value of --optimizer; unchanged
    double val_loss;                              // not finite if there was no validation at this step
    uint64_t data_checksum;                       // what --data contains has this (tokens_checksum)
    int64_t held_out;                             // blocks of the data to validate on (dataloader.h), 0: none
} CheckpointState;

// ---- A slice as runs of consecutive elements of a file ----------------------------------------------------------

// `count` elements: in the file's tensor from element `file` on; in the rank's slice every `stride` elements from
// element `local` on.
typedef struct {
    int64_t file, local, stride, count;
} Run;

// The number of runs: one per local column and part where files hold the tensor transposed, else one per local row that
// is not padding, as files hold the vocabulary without padding.
static inline int64_t slice_runs(const Slice* slice) {
    return slice->tensor.transposed ? slice->cols * slice->tensor.parts : slice->rows_used;
}

static inline Run slice_run(const Slice* slice, int64_t i) {
    const int64_t col0 = slice_logical_col(slice);
    if (!slice->tensor.transposed) {
        Run run = {slice_logical_row(slice, i) * slice->tensor.cols + col0, i * slice->cols, 1, slice->cols};
        return run;
    }
    const int64_t share = slice->rows / slice->tensor.parts, col = i / slice->tensor.parts,
                  row = i % slice->tensor.parts * share;
    Run run = {(col0 + col) * slice->tensor.rows + slice_logical_row(slice, row), row * slice->cols + col, slice->cols,
               share};
    return run;
}

// Sets the tensor's shape in files; returns the number of dimensions.
static inline int tensor_file_shape(int64_t shape[2], const Tensor* tensor) {
    shape[0] = tensor->transposed ? tensor->cols : tensor->rows;
    shape[1] = tensor->transposed ? tensor->rows : tensor->cols;
    return tensor->vector ? 1 : 2;
}
// Reads a slice from the file's tensor called `name` (the slice's own name, perhaps with a prefix). Padding stays as it
// is.
static inline bool slice_read(float* local, const SafeTensorsModel* file, const char* name, const Slice* slice,
                              Error* error) {
    const SafeTensors* st;
    const SafeTensor* tensor = safetensors_model_find(file, name, &st);
    if (!tensor)
        return fail(error, "%s: %s is missing; is it the model that --model and the sizes say?", file->path, name);
    SafeTensor needed = {};
    needed.ndim = tensor_file_shape(needed.shape, &slice->tensor);
    if (tensor->ndim != needed.ndim ||
        memcmp(tensor->shape, needed.shape, (size_t)needed.ndim * sizeof(int64_t)) != 0) {
        char has[128], needs[128];
        return fail(error, "%s: %s has shape %s, the model needs %s", file->path, name,
                    safetensors_shape_text(has, sizeof has, tensor),
                    safetensors_shape_text(needs, sizeof needs, &needed));
    }
    const int64_t runs = slice_runs(slice);
    float* buffer = (float*)checked_malloc(
        (size_t)(slice->tensor.transposed ? slice->rows : slice->cols) * sizeof(float), "reading");
    bool ok = true;
    for (int64_t i = 0; i < runs && ok; i++) {
        const Run run = slice_run(slice, i);
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

// ---- Writing ----------------------------------------------------------------------------------------------------

// The values that a checkpoint has of every parameter: the weight (0) in the first file, the optimizer's first (1) and
// perhaps second (2) moment in the second; then the values of asynchronous sites, kind by kind and copy by copy, in the
// third.
enum { CHECKPOINT_VALUES = 3, CHECKPOINT_TENSOR_FILES = 3 };
static const char* const checkpoint_prefix[CHECKPOINT_VALUES] = {"", "exp_avg.", "exp_avg_sq."};

static inline int checkpoint_values(const CheckpointSites* sites) {
    return 1 + sites->moments + sites->kinds * sites->copies;
}

// The number of a site's value.
static inline int checkpoint_value_of_site(const CheckpointSites* sites, int kind, int copy) {
    return 1 + sites->moments + kind * sites->copies + copy;
}

// The tensor file that holds a value; the number of these files; the number of values in one.
static inline int checkpoint_file_of(int moments, int value) {
    if (value == 0) return 0;
    return value <= moments ? 1 : 2;
}
static inline int checkpoint_tensor_files(const CheckpointSites* sites) {
    return 1 + (sites->moments > 0) + (sites->kinds > 0);
}
static inline int checkpoint_values_of_file(const CheckpointSites* sites, int file) {
    const int values[CHECKPOINT_TENSOR_FILES] = {1, sites->moments, sites->kinds * sites->copies};
    return values[file];
}

// A tensor's name in its file.
static inline void checkpoint_name(char* name, size_t size, const CheckpointSites* sites, int value,
                                   const char* tensor) {
    const int number = value - 1 - sites->moments;
    if (number < 0)
        snprintf(name, size, "%s%s", checkpoint_prefix[value], tensor);
    else
        snprintf(name, size, "site.%d.%s.%s", number % sites->copies, sites->kind[number / sites->copies], tensor);
}

// The place of every value in the files; the same on every rank, as it follows from the model and the sites alone.
typedef struct {
    SafeTensorsLayout file[CHECKPOINT_TENSOR_FILES];
    int files;
    int tensors;     // the model has these
    int moments;     // the optimizer has these
    int64_t* offset; // (values, tensors): where each begins in its file, in bytes
} CheckpointFileLayouts;

static inline void checkpoint_file_layouts_free(CheckpointFileLayouts* layouts) {
    for (int i = 0; i < layouts->files; i++) safetensors_layout_free(&layouts->file[i]);
    free(layouts->offset);
    memset(layouts, 0, sizeof *layouts);
}

// Lists the tensors of the values [first, end), in the order of the model's list, once for each value. names: room for
// their names.
static inline void checkpoint_list(SafeTensor* list, char (*names)[128], const Tensor* tensors, int n, int first,
                                   int end, const CheckpointSites* sites) {
    memset(list, 0, (size_t)((end - first) * n) * sizeof *list);
    for (int i = 0; i < (end - first) * n; i++) {
        const Tensor* tensor = &tensors[i % n];
        checkpoint_name(names[i], sizeof names[i], sites, first + i / n, tensor->name);
        list[i].name = names[i];
        list[i].dtype = SAFE_F32;
        list[i].ndim = tensor_file_shape(list[i].shape, tensor);
    }
}

// Computes the layouts of all files. On failure nothing has to be freed.
static inline bool checkpoint_file_layouts(CheckpointFileLayouts* layouts, const ModelConfig* model,
                                           const CheckpointSites* sites, Error* error) {
    const SafeMetadata about = {"format", "pt"}; // transformers requires it
    memset(layouts, 0, sizeof *layouts);
    layouts->files = checkpoint_tensor_files(sites);
    layouts->moments = sites->moments;
    const int n = layouts->tensors = model_tensors(NULL, model), all = checkpoint_values(sites) * n;
    Tensor* tensors = (Tensor*)checked_malloc((size_t)n * sizeof *tensors, "the list of tensors");
    SafeTensor* list = (SafeTensor*)checked_malloc((size_t)all * sizeof *list, "a checkpoint's tensors");
    char(*names)[128] = (char(*)[128])checked_malloc((size_t)all * sizeof *names, "a checkpoint's names");
    layouts->offset = (int64_t*)checked_malloc((size_t)all * sizeof *layouts->offset, "a checkpoint's layout");
    model_tensors(tensors, model);
    bool ok = true;
    for (int file = 0, first = 0; file < layouts->files && ok; file++) {
        const int end = first + checkpoint_values_of_file(sites, file);
        checkpoint_list(list, names, tensors, n, first, end, sites);
        ok = safetensors_layout(&layouts->file[file], list, (end - first) * n, &about, 1, error);
        for (int i = first * n; i < end * n; i++) layouts->offset[i] = list[i - first * n].offset;
        first = end;
    }
    free(names);
    free(list);
    free(tensors);
    if (!ok) checkpoint_file_layouts_free(layouts);
    return ok;
}

// Collects runs in a buffer and writes consecutive ones at once.
typedef struct {
    const SafeTensorsFile* file;
    float* buffer;
    int64_t count, start; // values in the buffer; where in the file the first one belongs, in bytes
    uint64_t checksum;    // the written values'
} RunWriter;

enum { RUN_WRITER_FLOATS = 1 << 20 };

static inline bool run_writer_flush(RunWriter* writer, Error* error) {
    const int64_t bytes = writer->count * (int64_t)sizeof(float);
    writer->count = 0;
    writer->checksum += checksum_of(writer->buffer, bytes, writer->start / 4);
    return safetensors_write_at(writer->file, writer->start, writer->buffer, bytes, error);
}

// Appends n values, every `stride` elements from `from`, to the buffer. False: one is not finite.
static inline bool run_writer_put(RunWriter* writer, const float* from, int64_t stride, int64_t n) {
    const uint32_t exponent = 0x7f800000;
    float* to = writer->buffer + writer->count;
    uint32_t infinite = 0;
    for (int64_t j = 0; j < n; j++) {
        to[j] = from[j * stride];
        infinite |= (bits_of_float(to[j]) & exponent) == exponent;
    }
    writer->count += n;
    return !infinite;
}

// Writes a slice into the tensor that begins at byte `tensor` of the file.
static inline bool slice_write(RunWriter* writer, int64_t tensor, const float* local, const Slice* slice,
                               Error* error) {
    for (int64_t i = 0; i < slice_runs(slice); i++) {
        const Run run = slice_run(slice, i);
        for (int64_t done = 0; done < run.count;) {
            const int64_t at = tensor + 4 * (run.file + done);
            if (writer->count == RUN_WRITER_FLOATS || at != writer->start + 4 * writer->count) {
                if (!run_writer_flush(writer, error)) return false;
                writer->start = at;
            }
            const int64_t n = min_i64(run.count - done, RUN_WRITER_FLOATS - writer->count);
            if (!run_writer_put(writer, local + run.local + done * run.stride, run.stride, n)) // it could not be read
                return fail(error, "%s: %s has a value that is not finite", writer->file->path, slice->tensor.name);
            done += n;
        }
    }
    return true;
}

// Writes a small file, flushed to the disk.
static inline bool checkpoint_write_file(const char* path, const char* text, size_t size, Error* error) {
    FILE* out = fopen(path, "w");
    if (!out) return fail(error, "%s: cannot create: %s", path, strerror(errno));
    const bool taken = fwrite(text, 1, size, out) == size;
    const int written = taken && fflush(out) == 0 && fsync(fileno(out)) == 0 ? 0 : errno;
    const int closed = fclose(out) == 0 ? 0 : errno;
    return (!written && !closed) || fail(error, "%s: cannot write: %s", path, strerror(written ? written : closed));
}

// Formats a path. False: it is too long.
__attribute__((format(printf, 3, 4))) static inline bool checkpoint_path(char path[CHECKPOINT_PATH], Error* error,
                                                                         const char* format, ...) {
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(path, CHECKPOINT_PATH, format, args);
    va_end(args);
    return (length >= 0 && length < CHECKPOINT_PATH) || fail(error, "%.512s: the name is too long", path);
}

// What makes a CAAT-Net, as options; "": an ordinary model. config.json has it as "caat", which transformers ignores.
static inline void checkpoint_caat_text(char text[128], const CaatConfig* caat) {
    char fraction[32];
    text[0] = 0;
    if (caat->ranks)
        snprintf(text, 128, "--caat-fraction %s --caat-ranks %d", config_decimal(fraction, caat->fraction),
                 caat->ranks);
}

// Writes config.json. ends: further members, see config_read_ends.
static inline bool checkpoint_write_config(const char* path, const ModelConfig* model, const CaatConfig* caat,
                                           const char* ends, Error* error) {
    char text[CONFIG_TEXT], more[CONFIG_ENDS_TEXT + 256], options[128];
    checkpoint_caat_text(options, caat);
    snprintf(more, sizeof more, options[0] ? "%s,\n  \"caat\": \"%s\"" : "%s", ends, options);
    config_write(text, model, more);
    return checkpoint_write_file(path, text, strlen(text), error);
}

// Refuses to continue, with the CAAT-Net configuration `now`, from the weights of a folder that were trained with
// another one. A file, or a folder without config.json, has no configuration to compare.
static inline bool checkpoint_check_caat(const char* folder, const CaatConfig* now, Error* error) {
    char path[CHECKPOINT_PATH], ours[128];
    const char* theirs = "";
    Json json;
    if (!checkpoint_path(path, error, "%s/config.json", folder)) return false;
    if (access(path, F_OK) != 0) return true;
    if (!json_open(&json, path, error)) return false;
    checkpoint_caat_text(ours, now);
    const bool ok =
        (!json_get(json.nodes, "caat") || json_get_string(&theirs, &json, json.nodes, "caat", error)) &&
        (strcmp(ours, theirs) == 0 ||
         fail(error,
              "%.400s is %s%.128s, this run is %s%s: give the same options, or --init its .safetensors "
              "file to make of it what this run is",
              folder, theirs[0] ? "" : "an ordinary model", theirs, ours[0] ? "" : "of an ordinary model", ours));
    json_free(&json);
    return ok;
}

static const char* const checkpoint_files[] = {"model.safetensors", "optimizer.safetensors", "sites.safetensors",
                                               "config.json", "trainer.json"};

// The files of a Hugging Face folder beside the model, see checkpoint/export.h. They are neither checked nor needed
// to resume.
static const char* const checkpoint_hub_files[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",     "vocab.json",
    "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "generation_config.json"};
enum { CHECKPOINT_HUB_FILES = sizeof checkpoint_hub_files / sizeof checkpoint_hub_files[0] };

typedef struct {
    char config[CONFIG_ENDS_TEXT];    // further members of config.json
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

// Whether a name is that of a checkpoint's file.
static inline bool checkpoint_is_file(const char* name) {
    for (size_t i = 0; i < sizeof checkpoint_files / sizeof checkpoint_files[0]; i++) {
        if (strcmp(name, checkpoint_files[i]) == 0) return true;
    }
    for (int i = 0; i < CHECKPOINT_HUB_FILES; i++) {
        if (strcmp(name, checkpoint_hub_files[i]) == 0) return true;
    }
    return false;
}

// Removes a checkpoint's folder and its files. Other files stay, and the folder with them. If it is a link, only the
// link is removed, not its target.
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

// The folder of a checkpoint: OUT/step_N; ending: ".tmp" while it is written, ".old" while it is replaced.
static inline bool checkpoint_folder(char path[CHECKPOINT_PATH], const char* out, int64_t step, const char* ending,
                                     Error* error) {
    return checkpoint_path(path, error, "%s/step_%08lld%s", out, (long long)step, ending);
}

// Writes the files beside the model to a folder, flushed to the disk.
static inline bool checkpoint_write_hub_files(const char* folder, const HubFiles* files, Error* error) {
    char path[CHECKPOINT_PATH];
    for (int i = 0; i < CHECKPOINT_HUB_FILES; i++) {
        if (files->text[i] && !(checkpoint_path(path, error, "%s/%s", folder, checkpoint_hub_files[i]) &&
                                checkpoint_write_file(path, files->text[i], files->size[i], error)))
            return false;
    }
    return true;
}

// Creates the files of tensors: complete but for the values, which are zero.
static inline bool checkpoint_create_files(const char* folder, const ModelConfig* model, const CheckpointSites* sites,
                                           Error* error) {
    CheckpointFileLayouts layouts;
    if (!checkpoint_file_layouts(&layouts, model, sites, error)) return false;
    char path[CHECKPOINT_PATH];
    bool ok = true;
    for (int i = 0; i < layouts.files && ok; i++) {
        SafeTensorsFile file;
        ok = checkpoint_path(path, error, "%s/%s", folder, checkpoint_files[i]) &&
             safetensors_create(&file, path, &layouts.file[i], error);
        if (ok) close(file.fd); // flushed later, when the ranks have written
    }
    checkpoint_file_layouts_free(&layouts);
    return ok;
}

// Rank 0, first: makes OUT/step_N.tmp and reserves its space, so that a full disk is reported before the work. If it
// fails OUT is as before.
static inline bool checkpoint_begin(const char* out, int64_t step, const ModelConfig* model,
                                    const CheckpointSites* sites, Error* error) {
    char temporary[CHECKPOINT_PATH], old[CHECKPOINT_PATH];
    if (!checkpoint_folder(temporary, out, step, ".tmp", error) || !checkpoint_folder(old, out, step, ".old", error))
        return false;
    checkpoint_remove(temporary); // left by a run that was killed while it saved
    checkpoint_remove(old);       // or while it replaced a checkpoint
    if (mkdir(temporary, 0777) != 0) return fail(error, "%s: cannot make the folder: %s", temporary, strerror(errno));
    if (checkpoint_create_files(temporary, model, sites, error)) return true;
    checkpoint_remove(temporary);
    return false;
}

// The number of elements that a rank has written, and their checksums; or the sum over all ranks.
typedef struct {
    int64_t elements; // the sum over all ranks has to be that of all values
    uint64_t checksum[CHECKPOINT_TENSOR_FILES];
} CheckpointSum;

// The files that one rank has open. It must not be copied, as the files point to its paths.
typedef struct {
    CheckpointFileLayouts layouts;
    char path[CHECKPOINT_TENSOR_FILES][CHECKPOINT_PATH];
    SafeTensorsFile file[CHECKPOINT_TENSOR_FILES];
    float* buffer;
    CheckpointSum sum; // written so far
} CheckpointWriter;

// Every rank, last: flushes its writes to the disk if all succeeded (ok), and closes the files. Does nothing
// after a checkpoint_join() that failed.
static inline bool checkpoint_leave(CheckpointWriter* writer, bool ok, Error* error) {
    for (int i = 0; i < CHECKPOINT_TENSOR_FILES; i++) {
        if (writer->file[i].fd < 0) continue;
        Error late; // the first error is the one that is reported
        if (ok)
            ok = safetensors_finish(&writer->file[i], error);
        else
            safetensors_finish(&writer->file[i], &late);
    }
    checkpoint_file_layouts_free(&writer->layouts);
    free(writer->buffer);
    writer->buffer = NULL;
    return ok;
}

// Every rank, after checkpoint_begin: opens the files in folder, which is OUT/step_N.tmp.
static inline bool checkpoint_join(CheckpointWriter* writer, const char* folder, const ModelConfig* model,
                                   const CheckpointSites* sites, Error* error) {
    memset(writer, 0, sizeof *writer);
    for (int i = 0; i < CHECKPOINT_TENSOR_FILES; i++) writer->file[i].fd = -1;
    if (!checkpoint_file_layouts(&writer->layouts, model, sites, error)) return false;
    bool ok = true;
    for (int i = 0; i < writer->layouts.files && ok; i++) {
        ok = checkpoint_path(writer->path[i], error, "%s/%s", folder, checkpoint_files[i]) &&
             safetensors_join(&writer->file[i], writer->path[i], &writer->layouts.file[i], error);
    }
    writer->buffer = (float*)checked_malloc(RUN_WRITER_FLOATS * sizeof(float), "writing a checkpoint");
    Error late;
    if (!ok) checkpoint_leave(writer, false, &late);
    return ok;
}

// Writes one value of the slices of a bucket that this rank owns. values: the bucket's elements.
static inline bool checkpoint_write_value(CheckpointWriter* writer, const Layout* layout, int bucket, int value,
                                          const float* values, Error* error) {
    const Bucket* b = &layout->bucket[bucket];
    const int file = checkpoint_file_of(writer->layouts.moments, value);
    RunWriter runs = {&writer->file[file], writer->buffer, 0, 0, 0};
    for (int i = b->first; i < b->first + b->slices; i++) {
        const Slice* slice = &layout->slices[i];
        if (!slice_is_owned(slice, layout)) continue;
        const int64_t tensor = writer->layouts.offset[value * writer->layouts.tensors + slice->index];
        if (!slice_write(&runs, tensor, values + (slice->offset - b->offset), slice, error)) return false;
        writer->sum.elements += slice->rows_used * slice->cols;
    }
    const bool ok = run_writer_flush(&runs, error);
    writer->sum.checksum[file] += runs.checksum;
    return ok;
}

// Renames temporary to folder. A checkpoint that has the name, or a link, is moved to `old`, and moved back if the
// second rename fails. (A run that is killed between the two renames has neither; the checkpoint before is the newest
// then.)
static inline bool checkpoint_rename(const char* temporary, const char* folder, const char* old, Error* error) {
    if (rename(temporary, folder) == 0) return true; // the name was free
    int reason = errno;
    const bool taken = reason == ENOTEMPTY || reason == EEXIST;
    struct stat st;
    const bool linked = reason == ENOTDIR && lstat(folder, &st) == 0 && S_ISLNK(st.st_mode);
    if (taken || linked) {
        const bool moved = rename(folder, old) == 0;
        if (moved && rename(temporary, folder) == 0) return true;
        reason = errno;
        if (moved && rename(old, folder) != 0)
            return fail(error, "%s: cannot get its name back: %s", old, strerror(errno));
    }
    return fail(error, "%s: cannot rename to %s: %s", temporary, folder, strerror(reason));
}

// A file as trainer.json lists it.
typedef struct {
    char name[32];
    int64_t bytes;
    uint64_t checksum;
} CheckpointFile;

// The content of trainer.json.
typedef struct {
    CheckpointState state;
    int files;
    CheckpointFile file[CHECKPOINT_TENSOR_FILES + 1];
} CheckpointList;

static inline void checkpoint_hex(char text[17], uint64_t checksum) {
    snprintf(text, 17, "%016llx", (unsigned long long)checksum);
}

static const char checkpoint_last_key[] = "\"checksum\": \""; // in trainer.json; its value covers all bytes before it

static inline bool checkpoint_write_list(const char* path, const CheckpointList* list, Error* error) {
    const CheckpointState* state = &list->state;
    char text[4096] = "", hex[17]; // far more than the longest list
    const size_t size = sizeof text;
    append_text(text, size,
                "{\n  \"step\": %lld,\n  \"sequences\": %lld,\n  \"seed\": %lld,\n  \"global_batch\": %lld,\n"
                "  \"seq\": %lld,\n  \"data_tokens\": %lld,\n  \"rounds\": \"%s\",\n  \"optimizer\": \"%s\",\n",
                (long long)state->step, (long long)state->sequences, (long long)state->seed,
                (long long)state->global_batch, (long long)state->seq, (long long)state->data_tokens, state->async_plan,
                state->optimizer);
    if (isfinite(state->val_loss)) append_text(text, size, "  \"val_loss\": %.17g,\n", state->val_loss);
    checkpoint_hex(hex, state->data_checksum);
    append_text(text, size, "  \"data_checksum\": \"%s\",\n  \"held_out_blocks\": %lld,\n", hex,
                (long long)state->held_out);
    append_text(text, size, "  \"files\": {");
    for (int i = 0; i < list->files; i++) {
        const CheckpointFile* file = &list->file[i];
        checkpoint_hex(hex, file->checksum);
        append_text(text, size, "%s\n    \"%s\": {\"bytes\": %lld, \"checksum\": \"%s\"}", i ? "," : "", file->name,
                    (long long)file->bytes, hex);
    }
    append_text(text, size, "\n  },\n  %s", checkpoint_last_key);
    checkpoint_hex(hex, checksum_of(text, (int64_t)strlen(text), 0));
    append_text(text, size, "%s\"\n}\n", hex);
    return checkpoint_write_file(path, text, strlen(text), error);
}

// Sets size and checksum of a file on the disk.
static inline bool checkpoint_sum_file(CheckpointFile* entry, const char* path, Error* error) {
    MappedFile file;
    if (!file_map(&file, path, error)) return false;
    entry->bytes = (int64_t)file.size;
    entry->checksum = checksum_of(file.data, entry->bytes, 0);
    file_unmap(&file);
    return true;
}

// Completes the .tmp once all ranks have left it: checksums, config.json and the files beside it, trainer.json.
static inline bool checkpoint_complete(const char* folder, const CheckpointState* state, const ModelConfig* model,
                                       const CaatConfig* caat, const CheckpointSites* sites, const CheckpointSum* sum,
                                       const HubFiles* files, Error* error) {
    CheckpointFileLayouts layouts;
    CheckpointList list = {};
    char path[CHECKPOINT_PATH];
    if (!checkpoint_file_layouts(&layouts, model, sites, error)) return false;
    list.state = *state;
    for (int i = 0; i < layouts.files; i++) {
        CheckpointFile* entry = &list.file[list.files++];
        snprintf(entry->name, sizeof entry->name, "%s", checkpoint_files[i]);
        entry->bytes = layouts.file[i].file_bytes;
        entry->checksum = sum->checksum[i] + checksum_of(layouts.file[i].header, layouts.file[i].header_bytes, 0);
    }
    checkpoint_file_layouts_free(&layouts);
    CheckpointFile* config = &list.file[list.files++];
    snprintf(config->name, sizeof config->name, "config.json");
    return checkpoint_path(path, error, "%s/config.json", folder) &&
           checkpoint_write_config(path, model, caat, files->config, error) &&
           checkpoint_sum_file(config, path, error) && checkpoint_write_hub_files(folder, files, error) &&
           checkpoint_path(path, error, "%s/trainer.json", folder) && checkpoint_write_list(path, &list, error);
}

// Rank 0, when all ranks have left with success: renames step_N.tmp to step_N. sum: over all ranks. files: written
// beside the model. If it fails OUT is as before.
static inline bool checkpoint_publish(const char* out, const CheckpointState* state, const ModelConfig* model,
                                      const CaatConfig* caat, const CheckpointSites* sites, const CheckpointSum* sum,
                                      const HubFiles* files, Error* error) {
    char folder[CHECKPOINT_PATH], temporary[CHECKPOINT_PATH], old[CHECKPOINT_PATH];
    const int64_t step = state->step;
    const int64_t values = checkpoint_values(sites) * model_parameters(model);
    if (!checkpoint_folder(folder, out, step, "", error) || !checkpoint_folder(temporary, out, step, ".tmp", error) ||
        !checkpoint_folder(old, out, step, ".old", error))
        return false;
    bool ok = sum->elements == values || fail(error, "%s: internal error: %lld of %lld values were written", temporary,
                                              (long long)sum->elements, (long long)values);
    ok = ok && checkpoint_complete(temporary, state, model, caat, sites, sum, files, error) &&
         folder_sync(temporary, error) && checkpoint_rename(temporary, folder, old, error);
    if (!ok) {
        checkpoint_remove(temporary);
        return false;
    }
    ok = folder_sync(out, error); // the new name is on the disk before the old files go
    checkpoint_remove(old);
    return ok;
}

// Rank 0, when a rank has failed: removes step_N.tmp.
static inline void checkpoint_abandon(const char* out, int64_t step) {
    char temporary[CHECKPOINT_PATH];
    Error error;
    if (checkpoint_folder(temporary, out, step, ".tmp", &error)) checkpoint_remove(temporary);
}
