/*
checkpoint_fixture.h: what test_checkpoint and test_checkpoint_dir share. Checkpoints of many ranks are simulated one
after the other in this process. The values of a parameter are a formula of (tensor name, value, logical element). What
a rank holds of it is computed here, from the definition of each kind of tensor, not by the code under test.
*/
#pragma once

#include "../../../checkpoint/checkpoint_dir.h"
#include "../../../checkpoint/pretrained.h"
#include "find_tensor.h"
#include "test.h"
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifdef __cplusplus
#define NOTHROW noexcept // as libc declares them
#else
#define NOTHROW
#endif

// ----------------------------------------------------------------------------------------------------------------
// The calls that change the disk, in place of libc's: they are counted, and one of them fails or is the last

static struct {
    int count, at; // calls so far; the one that fails (-1: none)
    bool kill;     // it does not return
    char log[512]; // what was flushed and renamed, in order
} calls = {0, -1, false, ""};

static inline bool call_fails(void) {
    const int call = calls.count++;
    if (call != calls.at) return false;
    if (calls.kill) _exit(9);
    errno = EIO;
    return true;
}

static inline void calls_log(const char* what) {
    const char* name = strrchr(what, '/') ? strrchr(what, '/') + 1 : what;
    const size_t n = strlen(calls.log);
    snprintf(calls.log + n, sizeof calls.log - n, "%s%.200s", n ? " " : "", name);
}

int fsync(int fd) { // nothing here outlives the machine: not flushed, only logged
    char link[64], path[1024] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0) calls_log(path);
    return call_fails() ? -1 : 0;
}

int rename(const char* from, const char* to) NOTHROW {
    calls_log("rename");
    return call_fails() ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int mkdir(const char* path, mode_t mode) NOTHROW {
    return call_fails() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int unlink(const char* path) NOTHROW {
    if (calls.kill && call_fails()) return -1; // what cannot be removed stays: only a last call is of interest
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int fd, const char* path, int flags) NOTHROW {
    if (calls.kill && call_fails()) return -1;
    return (int)syscall(SYS_unlinkat, fd, path, flags);
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
    return call_fails() ? -1 : (ssize_t)syscall(SYS_pwrite64, fd, data, bytes, offset);
}

__attribute__((format(printf, 1, 2))) static inline void run_command(const char* format, ...) {
    char command[256];
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(command, sizeof command, format, args);
    va_end(args);
    if (length >= (int)sizeof command || system(command) != 0) die("%s failed", command);
}

static inline void new_folder(const char* name) {
    if (mkdir(name, 0777) != 0) die("%s: cannot make the folder: %s", name, strerror(errno));
}

static inline void touch(const char* path) {
    FILE* f = fopen(path, "w");
    if (!f || fclose(f) != 0) die("%s: cannot create", path);
}

static inline int entries(const char* path) {
    DIR* names = opendir(path);
    int n = -2; // . and ..
    if (!names) die("%s: cannot read the folder", path);
    while (readdir(names)) n++;
    closedir(names);
    return n;
}

static inline int open_files(void) { return entries("/proc/self/fd"); }

// ---- The formula ------------------------------------------------------------------------------------------------

// Any finite bits, denormal numbers and both signs as well, except second moments (what = 2), which are positive; never
// zero, which is what holes are filled with.
static inline float formula(const char* name, int what, int64_t element) {
    const uint32_t sign = what == 2 ? 0 : 0x80000000u;
    const uint32_t bits = philox(hash_string(name), (uint64_t)what, (uint64_t)element).word[0] & (0x3fffffffu | sign);
    return float_of_bits(bits & 0x7fffffffu ? bits : 1);
}

static inline bool same_bits(float a, float b) { return bits_of_float(a) == bits_of_float(b); }

// Of a slice's element (row, col), on a tensor rank of t: the logical element, or -1 if it is padding. By definition:
// heads and channels are dealt out in order, t / NKV ranks share a key/value head, and a token belongs to rank
// token / ceil(V / t).
static inline int64_t logical_element(const Tensor* tensor, const ModelConfig* m, int t, int rank, int64_t row,
                                      int64_t col) {
    const int64_t HS = m->C / m->NH, F = m->F / t, channels = m->C / t, tokens = (m->V + t - 1) / t;
    switch (tensor->kind) {
    case WTE:
    case HEAD_W: row += rank * tokens; break;
    case QKV_W:
    case QKV_B:
        if (m->hub == HUB_LLAMA)
            row += rank * channels;
        else
            row = row / channels * m->C + rank * channels + row % channels;
        break;
    case K_W:
    case V_W: row += (m->NKV >= t ? rank * (m->NKV / t) : rank / (t / m->NKV)) * HS; break;
    case FC_W:
    case UP_W:
    case FC_B: row += rank * F; break;
    case ATTN_PROJ_W: col += rank * channels; break;
    case MLP_PROJ_W: col += rank * F; break;
    default: break;
    }
    return row < tensor->rows ? row * tensor->cols + col : -1;
}

static ModelConfig gpt2_tied, gpt2_untied, llama_tied, llama_untied;

static inline void make_models(void) {
    gpt2_tied = model_of(ARCH_GPT2, 5, 24, 4, 4, 40, 7, 21);
    gpt2_tied.name = "gpt2 tied";
    gpt2_untied = model_of(ARCH_GPT2, 3, 36, 6, 6, 30, 5, 50);
    gpt2_untied.name = "gpt2 untied";
    gpt2_untied.tied = false;
    llama_untied = model_of(ARCH_LLAMA, 4, 32, 8, 2, 48, 8, 23);
    llama_untied.name = "llama untied";
    llama_tied = model_of(ARCH_LLAMA, 5, 24, 6, 3, 12, 8, 19);
    llama_tied.name = "llama tied";
    llama_tied.tied = true;
}

// ---- Ranks ------------------------------------------------------------------------------------------------------

enum { GARBAGE = 0x7fc0beef }; // a NaN: where nothing may be written from, and nothing may be left

typedef struct {
    int t, p, d;
} Sizes;

static inline Layout layout_of(const ModelConfig* m, const Sizes* z, int rank) {
    const ParallelConfig parallel = parallel_of_rank(rank, z->t, z->p, z->d);
    Layout layout;
    Error error;
    if (!layout_build(&layout, m, parallel, m->T, &error)) die("%s", error.text);
    return layout;
}

// What a bucket has to hold: the formula, and `rest` where there is no element of the model.
static inline float* bucket_expected(const Layout* layout, const ModelConfig* m, int bucket, int what, float rest) {
    const Bucket* b = &layout->bucket[bucket];
    float* values = (float*)checked_malloc((size_t)b->elements * sizeof(float), "test");
    for (int64_t i = 0; i < b->elements; i++) values[i] = rest;
    for (int i = b->first; i < b->first + b->slices; i++) {
        const Slice* s = &layout->slices[i];
        for (int64_t e = 0; e < s->rows * s->cols; e++) {
            const int64_t element = logical_element(&s->tensor, m, layout->parallel.mesh.t,
                                                    layout->parallel.mesh.tensor, e / s->cols, e % s->cols);
            if (element >= 0) values[s->offset - b->offset + e] = formula(s->tensor.name, what, element);
        }
    }
    return values;
}

static inline bool write_bucket(CheckpointWriter* w, const Layout* layout, const ModelConfig* m, int bucket,
                                Error* error) {
    bool ok = true;
    for (int what = 0; what < 3 && ok; what++) {
        float* values = bucket_expected(layout, m, bucket, what, float_of_bits(GARBAGE));
        ok = checkpoint_write_value(w, layout, bucket, what, values, error);
        free(values);
    }
    return ok;
}

// A permutation of 0 .. n - 1, to be freed.
static inline int* shuffled(int n, uint64_t seed) {
    int* order = (int*)checked_malloc((size_t)n * sizeof(int), "test");
    for (int i = 0; i < n; i++) {
        const int j = (int)(philox(seed, 1, (uint64_t)i).word[0] % (uint32_t)(i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

// One rank's part: the data ranks take the buckets in turn.
static inline bool rank_writes(const char* out, int64_t step, const ModelConfig* m, const Layout* layout, uint64_t seed,
                               CheckpointSum* sum, Error* error) {
    CheckpointWriter w;
    char folder[CHECKPOINT_PATH];
    if (!checkpoint_folder(folder, out, step, ".tmp", error) ||
        !checkpoint_join(&w, folder, m, &checkpoint_of_adamw, error))
        return false;
    bool ok = true;
    int* order = shuffled(layout->buckets, seed);
    for (int i = 0; i < layout->buckets && ok; i++) {
        if (order[i] % layout->parallel.mesh.d == layout->parallel.mesh.data)
            ok = write_bucket(&w, layout, m, order[i], error);
    }
    free(order);
    sum->elements += w.sum.elements;
    for (int i = 0; i < CHECKPOINT_TENSOR_FILES; i++) sum->checksum[i] += w.sum.checksum[i];
    return checkpoint_leave(&w, ok, error) && ok;
}

static inline bool publish(const char* out, const CheckpointState* state, const ModelConfig* m,
                           const CheckpointSum* sum, Error* error) {
    const CaatConfig ordinary = {0, 0, false};
    HubFiles none = {};
    return checkpoint_publish(out, state, m, &ordinary, &checkpoint_of_adamw, sum, &none, error);
}

static inline bool save_state(const char* out, const CheckpointState* state, const ModelConfig* m, const Sizes* z,
                              uint64_t seed, Error* error) {
    CheckpointSum sum = {0, {0}};
    if (!checkpoint_begin(out, state->step, m, &checkpoint_of_adamw, error)) return false;
    const int ranks = z->t * z->p * z->d;
    int* order = shuffled(ranks, seed);
    bool ok = true;
    for (int i = 0; i < ranks && ok; i++) {
        Layout layout = layout_of(m, z, order[i]);
        ok = rank_writes(out, state->step, m, &layout, seed + (uint64_t)i, &sum, error);
        layout_free(&layout);
    }
    free(order);
    if (ok) return publish(out, state, m, &sum, error);
    checkpoint_abandon(out, state->step);
    return false;
}

static inline bool save(const char* out, int64_t step, const ModelConfig* m, const Sizes* z, uint64_t seed,
                        Error* error) {
    const CheckpointState state = {step, 7 * step, 42, 8, 16, INT64_MAX, "", "adamw", 0.5, 0, 0};
    return save_state(out, &state, m, z, seed, error);
}

// What publishing a checkpoint without any of its values needs: the sum of zeros, said to be complete.
static inline bool publish_empty(const char* out, int64_t step, Error* error) {
    const CheckpointState state = {step, 1, 2, 3, 4, 5, "", "adamw", 0.5, 0, 0};
    const CheckpointSum sum = {3 * model_parameters(&gpt2_tied), {0}};
    return publish(out, &state, &gpt2_tied, &sum, error);
}

// Whether the files of a checkpoint are unchanged, as one process sees them.
static inline bool is_sound(const char* folder, Error* error) {
    CheckpointList list;
    uint64_t sums[CHECKPOINT_TENSOR_FILES + 1] = {0};
    return checkpoint_load_list(&list, folder, error) && checkpoint_add_up(sums, &list, folder, 0, 1, error) &&
           checkpoint_compare(sums, &list, folder, error);
}

// Every rank of a mesh reads all of its buckets; true if all bits are as expected.
static inline bool read_all(const char* path, const ModelConfig* m, const Sizes* z, Error* error) {
    bool ok = true;
    for (int rank = 0; rank < z->t * z->p * z->d && ok; rank++) {
        Layout layout = layout_of(m, z, rank);
        CheckpointReader r;
        CheckpointState state;
        const bool opened = ok = checkpoint_open(&r, path, &state, NULL, error);
        for (int i = 0; ok && i < 3 * layout.buckets; i++) {
            const int bucket = i / 3, what = i % 3;
            const size_t bytes = (size_t)layout.bucket[bucket].elements * sizeof(float);
            float *expected = bucket_expected(&layout, m, bucket, what, 0),
                  *values = (float*)checked_malloc(bytes, "test");
            memset(values, 0x7f, bytes);
            ok = checkpoint_read_bucket(&r, &layout, bucket, what, values, error);
            if (ok && memcmp(values, expected, bytes) != 0)
                ok = fail(error, "%s: bucket %d, value %d of rank %d differs", path, bucket, what, rank);
            free(values);
            free(expected);
        }
        if (opened) checkpoint_close(&r);
        layout_free(&layout);
    }
    return ok;
}

// The file alone, without the code under test: every tensor of the model under its name, in its shape, with the values.
static inline bool file_holds(const char* folder, const char* file, const ModelConfig* m, int first, int values,
                              Error* error) {
    static const char* prefixes[] = {"", "exp_avg.", "exp_avg_sq."};
    char path[128];
    SafeTensors st;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    if (!safetensors_open(&st, path, error)) return false;
    const int n = model_tensors(NULL, m);
    Tensor* list = (Tensor*)checked_malloc((size_t)n * sizeof(Tensor), "test");
    model_tensors(list, m);
    bool ok = st.count == (int64_t)n * values || fail(error, "%s: has %lld tensors", path, (long long)st.count);
    for (int i = 0; i < n * values && ok; i++) {
        const Tensor* t = &list[i % n];
        const int what = first + i / n;
        char name[128];
        snprintf(name, sizeof name, "%s%s", prefixes[what], t->name);
        const SafeTensor* in_file = safetensors_find(&st, name);
        const int64_t rows = t->transposed ? t->cols : t->rows, cols = t->transposed ? t->rows : t->cols;
        ok = in_file && in_file->dtype == SAFE_F32 && in_file->ndim == (t->vector ? 1 : 2) &&
             in_file->shape[0] == rows && (t->vector || in_file->shape[1] == cols);
        if (!ok) fail(error, "%s: %s is not there, or has another shape", path, name);
        for (int64_t e = 0; ok && e < rows * cols; e++) {
            float value;
            memcpy(&value, st.data + in_file->offset + 4 * e, sizeof value);
            const int64_t element = t->transposed ? e % cols * t->cols + e / cols : e;
            ok = same_bits(value, formula(t->name, what, element)) ||
                 fail(error, "%s: element %lld of %s differs", path, (long long)e, name);
        }
    }
    free(list);
    safetensors_close(&st);
    return ok;
}

static inline bool same_files(const char* a, const char* b, const char* name) {
    char path[2][128];
    MappedFile file[2];
    Error error;
    snprintf(path[0], sizeof path[0], "%s/%s", a, name);
    snprintf(path[1], sizeof path[1], "%s/%s", b, name);
    for (int i = 0; i < 2; i++)
        if (!file_map(&file[i], path[i], &error)) die("%s", error.text);
    const bool same = file[0].size == file[1].size && memcmp(file[0].data, file[1].data, file[0].size) == 0;
    for (int i = 0; i < 2; i++) file_unmap(&file[i]);
    return same;
}

static const Sizes one_rank = {1, 1, 1};

// A new folder with the checkpoints of steps `first` to `last`.
static inline void make_run(const char* name, int first, int last) {
    Error error;
    new_folder(name);
    for (int step = first; step <= last; step++) {
        if (!save(name, step, &gpt2_tied, &one_rank, 1, &error)) die("%s", error.text);
    }
}

static inline int64_t file_bytes(const char* path) {
    struct stat st;
    if (stat(path, &st) != 0) die("%s: cannot stat", path);
    return (int64_t)st.st_size;
}
