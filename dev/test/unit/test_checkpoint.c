/*
test_checkpoint.c: checkpoints of many ranks, which are simulated one after the other in this process. The values of a
parameter are a formula of (tensor name, value, logical element). What a rank holds of it is computed here, from the
definition of each kind of tensor, not by the code under test. Then: files that any mesh has written, in any order of
its ranks, hold the formula and are the same bytes; any other mesh reads its slices of them. What is stopped or fails,
at every single call that changes the disk, leaves what was there before; what lies is refused.
*/
#include "../../../checkpoint/checkpoint_dir.h"
#include "../../../checkpoint/pretrained.h"
#include "test.h"
#include <signal.h>
#include <stddef.h>
#include <sys/resource.h>
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
    bool all;      // and all later ones
    bool kill;     // it does not return
    bool plain;    // renameat2 is not there
    char log[512]; // what was flushed and renamed, in order
} calls = {0, -1, false, false, false, ""};

static bool call_fails(void) {
    const int call = calls.count++;
    if (calls.at < 0 || call < calls.at || (call > calls.at && !calls.all)) return false;
    if (calls.kill) _exit(9);
    errno = EIO;
    return true;
}

static void calls_log(const char* what) {
    const char* name = strrchr(what, '/') ? strrchr(what, '/') + 1 : what;
    const size_t n = strlen(calls.log);
    snprintf(calls.log + n, sizeof calls.log - n, "%s%s", n ? " " : "", name);
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

int renameat2(int a, const char* from, int b, const char* to, unsigned flags) NOTHROW {
    errno = EINVAL;
    return calls.plain ? -1 : (int)syscall(SYS_renameat2, a, from, b, to, flags);
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

__attribute__((format(printf, 1, 2))) static void run_command(const char* format, ...) {
    char command[256];
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(command, sizeof command, format, args);
    va_end(args);
    if (length >= (int)sizeof command || system(command) != 0) die("%s failed", command);
}

static void new_folder(const char* name) {
    if (mkdir(name, 0777) != 0) die("%s: cannot make the folder: %s", name, strerror(errno));
}

static void touch(const char* path) {
    FILE* f = fopen(path, "w");
    if (!f || fclose(f) != 0) die("%s: cannot create", path);
}

static int entries(const char* path) {
    DIR* names = opendir(path);
    int n = -2; // . and ..
    if (!names) die("%s: cannot read the folder", path);
    while (readdir(names)) n++;
    closedir(names);
    return n;
}

static int open_files(void) { return entries("/proc/self/fd"); }

// ----------------------------------------------------------------------------------------------------------------
// The formula

// Any finite bits, denormal numbers and both signs as well; never zero, which is what holes are filled with.
static float formula(const char* name, int what, int64_t element) {
    const uint32_t bits = philox(hash_string(name), (uint64_t)what, (uint64_t)element).word[0] & 0xbfffffffu;
    return float_of_bits(bits & 0x7fffffffu ? bits : 1);
}

static bool same_bits(float a, float b) { return bits_of_float(a) == bits_of_float(b); }

// Of a slice's element (row, col), on a tensor rank of t: the logical element, or -1 if it is padding. By definition:
// heads and channels are dealt out in order, t / NKV ranks share a key/value head, and a token belongs to rank
// token / ceil(V / t).
static int64_t logical_element(const Tensor* tensor, const ModelConfig* m, int t, int rank, int64_t row, int64_t col) {
    const int64_t HS = m->C / m->NH, F = m->F / t, channels = m->C / t, tokens = (m->V + t - 1) / t;
    switch (tensor->kind) {
    case WTE:
    case HEAD_W: row += rank * tokens; break;
    case QKV_W:
    case QKV_B:
        if (m->arch == ARCH_LLAMA)
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

// ----------------------------------------------------------------------------------------------------------------
// Ranks

enum { GARBAGE = 0x7fc0beef }; // a NaN: where nothing may be written from, and nothing may be left

typedef struct {
    int t, p, d, first_layers, last_layers;
} Sizes;

static Layout layout_of(const ModelConfig* m, const Sizes* z, int rank) {
    Mesh mesh = mesh_of_rank(rank, z->t, z->p, z->d);
    mesh.first_layers = z->first_layers, mesh.last_layers = z->last_layers;
    Layout layout;
    Error error;
    if (!layout_build(&layout, m, mesh, m->T, &error)) die("%s", error.text);
    return layout;
}

// What a bucket has to hold: the formula, and `rest` where there is no element of the model.
static float* bucket_expected(const Layout* layout, const ModelConfig* m, int bucket, int what, float rest) {
    const Bucket* b = &layout->bucket[bucket];
    float* values = (float*)checked_malloc((size_t)b->elements * sizeof(float), "test");
    for (int64_t i = 0; i < b->elements; i++) values[i] = rest;
    for (int i = b->first; i < b->first + b->slices; i++) {
        const Slice* s = &layout->slices[i];
        for (int64_t e = 0; e < s->rows * s->cols; e++) {
            const int64_t element =
                logical_element(&s->tensor, m, layout->mesh.t, layout->mesh.tensor, e / s->cols, e % s->cols);
            if (element >= 0) values[s->offset - b->offset + e] = formula(s->tensor.name, what, element);
        }
    }
    return values;
}

static bool write_bucket(CheckpointWriter* w, const Layout* layout, const ModelConfig* m, int bucket, Error* error) {
    float* values[3];
    for (int what = 0; what < 3; what++)
        values[what] = bucket_expected(layout, m, bucket, what, float_of_bits(GARBAGE));
    const bool ok = checkpoint_write_bucket(w, layout, bucket, values[0], values[1], values[2], error);
    for (int what = 0; what < 3; what++) free(values[what]);
    return ok;
}

// A permutation of 0 .. n - 1, to be freed.
static int* shuffled(int n, uint64_t seed) {
    int* order = (int*)checked_malloc((size_t)n * sizeof(int), "test");
    for (int i = 0; i < n; i++) {
        const int j = (int)(philox(seed, 1, (uint64_t)i).word[0] % (uint32_t)(i + 1));
        order[i] = order[j], order[j] = i;
    }
    return order;
}

// One rank's part: the data ranks take the buckets in turn.
static bool rank_writes(const char* out, int64_t step, const ModelConfig* m, const Layout* layout, uint64_t seed,
                        CheckpointSum* sum, Error* error) {
    CheckpointWriter w;
    if (!checkpoint_join(&w, out, step, m, NULL, error)) return false;
    bool ok = true;
    int* order = shuffled(layout->buckets, seed);
    for (int i = 0; i < layout->buckets && ok; i++) {
        if (order[i] % layout->mesh.d == layout->mesh.data) ok = write_bucket(&w, layout, m, order[i], error);
    }
    free(order);
    checkpoint_sum_add(sum, &w.sum);
    return checkpoint_leave(&w, ok, error) && ok;
}

static bool save_state(const char* out, const CheckpointState* state, const ModelConfig* m, const Sizes* z,
                       uint64_t seed, Error* error) {
    CheckpointSum sum = {0, {0}};
    if (!checkpoint_begin(out, state->step, m, NULL, error)) return false;
    const int ranks = z->t * z->p * z->d;
    int* order = shuffled(ranks, seed);
    bool ok = true;
    for (int i = 0; i < ranks && ok; i++) {
        Layout layout = layout_of(m, z, order[i]);
        ok = rank_writes(out, state->step, m, &layout, seed + (uint64_t)i, &sum, error);
        layout_free(&layout);
    }
    free(order);
    if (ok) return checkpoint_publish(out, state, m, NULL, NULL, &sum, NULL, error);
    checkpoint_abandon(out, state->step);
    return false;
}

static bool save(const char* out, int64_t step, const ModelConfig* m, const Sizes* z, uint64_t seed, Error* error) {
    const CheckpointState state = {step, 7 * step, 42, 8, 16, INT64_MAX, INT64_MAX, "", "adamw", "", 0.5, 0, 0};
    return save_state(out, &state, m, z, seed, error);
}

static ModelConfig gpt2_tied, gpt2_untied, llama_tied, llama_untied; // filled by make_models

// What publishing a checkpoint without any of its values needs: the sum of zeros, said to be complete.
static bool publish_empty(const char* out, int64_t step, Error* error) {
    const CheckpointState state = {step, 1, 2, 3, 4, 5, 0, "", "adamw", "", 0.5, 0, 0};
    const CheckpointSum sum = {3 * model_parameters(&gpt2_tied), {0}};
    return checkpoint_publish(out, &state, &gpt2_tied, NULL, NULL, &sum, NULL, error);
}

// Every rank of a mesh reads all of its buckets; true if all bits are as expected.
static bool read_all(const char* path, const ModelConfig* m, const Sizes* z, Error* error) {
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
static bool file_holds(const char* folder, const char* file, const ModelConfig* m, int first, int values,
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

static bool same_files(const char* a, const char* b, const char* name) {
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

// ----------------------------------------------------------------------------------------------------------------
// Models and meshes

static void make_models(void) {
    gpt2_tied = model_of(ARCH_GPT2, 5, 24, 4, 4, 40, 7, 21);
    gpt2_tied.name = "gpt2 tied";
    gpt2_untied = model_of(ARCH_GPT2, 3, 36, 6, 6, 30, 5, 50);
    gpt2_untied.name = "gpt2 untied";
    gpt2_untied.tied = false;
    llama_untied = model_llama(4, 32, 8, 2, 48, 8, 23);
    llama_untied.name = "llama untied";
    llama_tied = model_llama(5, 24, 6, 3, 12, 8, 19);
    llama_tied.name = "llama tied";
    llama_tied.tied = true;
}

typedef struct {
    const ModelConfig* model;
    Sizes meshes[10]; // up to the first with t = 0
} Case;

static const Case cases[] = {
    {&gpt2_tied,
     {{1, 1, 1, 0, 0},
      {2, 1, 1, 0, 0},
      {4, 1, 3, 0, 0}, // vocabulary 21 on 4 ranks: 6 6 6 3
      {1, 2, 1, 0, 0},
      {2, 3, 2, 0, 0}, // stages 2 2 1
      {1, 5, 3, 0, 0},
      {4, 2, 1, 4, 0},
      {2, 3, 1, 0, 3},
      {1, 2, 3, 1, 4}}},
    {&gpt2_untied, {{1, 1, 1, 0, 0}, {3, 1, 2, 0, 0}, {6, 2, 1, 0, 0}, {2, 3, 3, 0, 0}, {3, 2, 1, 0, 2}}},
    {&llama_untied,
     {{1, 1, 1, 0, 0},
      {2, 2, 1, 0, 0},
      {4, 1, 1, 0, 0}, // each key/value head on 2 ranks
      {8, 1, 2, 0, 0}, // and on 4; vocabulary 23 on 8 ranks: 3 3 3 3 3 3 3 2
      {8, 4, 1, 0, 0},
      {4, 3, 2, 1, 1}}},
    {&llama_tied, {{1, 1, 1, 0, 0}, {3, 2, 1, 0, 0}, {6, 3, 1, 1, 0}, {1, 4, 3, 0, 0}, {6, 1, 2, 0, 0}}},
};
enum { CASES = sizeof cases / sizeof *cases };

static void test_meshes(const Case* c) {
    const ModelConfig* m = c->model;
    char out[32], path[10][64], found[64];
    Error error;
    int n = 0;
    for (; n < 10 && c->meshes[n].t; n++) {
        const Sizes* z = &c->meshes[n];
        snprintf(out, sizeof out, "mesh_%d", n);
        snprintf(path[n], sizeof path[n], "mesh_%d/step_00000012", n);
        new_folder(out);
        error.text[0] = 0;
        const bool ok = save(out, 12, m, z, (uint64_t)n, &error) && checkpoint_newest(found, sizeof found, out) &&
                        strcmp(found, path[n]) == 0 && file_holds(path[n], "model.safetensors", m, 0, 1, &error) &&
                        file_holds(path[n], "optimizer.safetensors", m, 1, 2, &error);
        check(ok, "%s, written on t=%d p=%d d=%d stages %d..%d: every value stands in its place %s", m->name, z->t,
              z->p, z->d, z->first_layers, z->last_layers, error.text);
        if (!ok) return;
    }
    for (int i = 1; i < n; i++) {
        bool same = true;
        for (size_t k = 0; k < sizeof checkpoint_files / sizeof checkpoint_files[0]; k++)
            same = same && (k == 2 || same_files(path[0], path[i], checkpoint_files[k])); // 2: there are no sites
        check(same, "%s: all four files are the bytes that the first mesh wrote", path[i]);
    }
    for (int i = 0; i < n; i++) { // each mesh reads what the next one wrote; these are the same bytes
        const Sizes* z = &c->meshes[i];
        error.text[0] = 0;
        check(read_all(path[(i + 1) % n], m, z, &error), "%s, read on t=%d p=%d d=%d: bit for bit, padding is zero %s",
              m->name, z->t, z->p, z->d, error.text);
    }
    run_command("rm -r mesh_*");
}

// What sites have is found by names that say whose copy of what it is: no two values may share or change theirs.
static void test_names_of_sites(void) {
    const CheckpointSites sites = {3, 2, {"base", "momentum", "error"}};
    char name[128], expected[128];
    bool ok = checkpoint_values(&sites) == CHECKPOINT_VALUES + 6;
    for (int kind = 0; kind < sites.kinds; kind++)
        for (int copy = 0; copy < sites.copies; copy++) {
            const int value = checkpoint_value_of_site(&sites, kind, copy);
            checkpoint_name(name, sizeof name, &sites, value, "lm_head.weight");
            snprintf(expected, sizeof expected, "site.%d.%s.lm_head.weight", copy, sites.kind[kind]);
            ok = ok && strcmp(name, expected) == 0 && checkpoint_file_of(value) == 2;
        }
    check(ok, "what sites have is named site.COPY.KIND.TENSOR");
}

// Tensors larger than the writer's buffer, with rows that do not divide it.
static void test_large(void) {
    ModelConfig m = model_gpt2(2, 250, 2, 24, 4500);
    m.name = "gpt2, 2.7M";
    const Sizes one = {1, 1, 1, 0, 0}, two = {2, 1, 1, 0, 0};
    Error error = {""};
    new_folder("large");
    check(save("large", 1, &m, &one, 1, &error) && read_all("large/step_00000001", &m, &two, &error),
          "%lld parameters, %d in the writer's buffer: bit for bit %s", (long long)model_parameters(&m),
          RUN_WRITER_FLOATS, error.text);
}

// ----------------------------------------------------------------------------------------------------------------
// State, names, init

static void test_state(void) {
    char path[64], found[64], cut[64];
    Error error = {""};
    new_folder("state");
    check(!checkpoint_newest(found, sizeof found, "state"), "an empty folder has no newest checkpoint");
    check(!checkpoint_newest(found, sizeof found, "nowhere"), "a folder that is not there has none either");
    const Sizes one = {1, 1, 1, 0, 0};
    const CheckpointState states[] = {
        {0, 0, 0, 1, 1, 0, 0, "", "adamw", "", 0, 0, -1},
        {9, 90, 7, 8, 1024, 1, 123, "dc-s3gd of 4 sites", "sgd", "--lr 0.1 --eps 1e-08", (double)NAN, UINT64_MAX - 1,
         64},
        {1234567890123, INT64_MAX, 3, 2, 1, 5, INT64_MAX, "", "adamw", "", 1.0 / 3, 1, 0}};
    for (size_t i = 0; i < 3; i++) {
        CheckpointState state;
        CheckpointReader r;
        const bool made = save_state("state", &states[i], &llama_tied, &one, 1, &error);
        snprintf(path, sizeof path, "state/step_%08lld", (long long)states[i].step);
        check(made && checkpoint_newest(found, sizeof found, "state") && strcmp(found, path) == 0, "%s is the newest",
              path);
        memset(&state, 0xff, sizeof state);
        const bool opened = made && checkpoint_open(&r, path, &state, NULL, &error);
        const bool same = memcmp(&state, &states[i], offsetof(CheckpointState, val_loss)) == 0;
        check(opened && same && state.data_checksum == states[i].data_checksum &&
                  state.held_out == states[i].held_out &&
                  (isnan(state.val_loss) ? isnan(states[i].val_loss) : state.val_loss == states[i].val_loss),
              "its state comes back %s", error.text);
        if (opened) checkpoint_close(&r);
    }
    run_command("cd state && mkdir step_99999999999999.tmp step_99999999999999.old step_9999999999999x "
                "step_0099999999999999 step_-0000001");
    check(checkpoint_newest(path, sizeof path, "state") && strcmp(path, found) == 0,
          "names that are none are not taken up");
    check(!checkpoint_newest(cut, strlen(found), "state"), "nor is a name for which there is no room");
}

// config.json has every number of the model, under Hugging Face's names.
static void test_config(const ModelConfig* m) {
    static const char* names[2][8] = {
        {"n_layer", "n_embd", "n_head", "n_head", "n_inner", "n_positions", "vocab_size", "gpt2"},
        {"num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size",
         "max_position_embeddings", "vocab_size", "llama"}};
    const int numbers[] = {m->L, m->C, m->NH, m->NKV, m->F, m->T, m->V};
    const char** name = names[m->arch == ARCH_LLAMA];
    Error error = {""};
    Json json;
    bool ok = checkpoint_write_config("config.json", m, NULL, SAFE_F32, "", &error) &&
              json_open(&json, "config.json", &error);
    if (!check(ok, "%s: its config.json is JSON %s", m->name, error.text)) return;
    for (int i = 0; i < 7; i++) {
        int64_t value = -1;
        ok = ok && json_get_integer(&value, &json, json.nodes, name[i], 0, INT64_MAX, &error) && value == numbers[i];
    }
    const JsonNode *type = json_get(json.nodes, "model_type"), *tied = json_get(json.nodes, "tie_word_embeddings");
    check(ok && type && strcmp(type->value.string, name[7]) == 0 && tied && tied->type == JSON_BOOL &&
              tied->value.boolean == m->tied,
          "%s: and holds the sizes %s", m->name, error.text);
    json_free(&json);
}

// It also has what makes a CAAT-Net: every number comes back as it was, and other ones are refused.
static void test_config_sync(const ModelConfig* m) {
    static const double shares[] = {0, 1, 0.5, 0.1, 1 / 3.0, 0.7000000000000001};
    Error error = {""};
    bool same = true, refused = true;
    for (int i = 0; i < 18; i++) {
        const CaatConfig written = {i + 1, shares[i % 6], (SyncScale)(i % 3), i % 2 == 0};
        CaatConfig read, other[4] = {written, written, written, {0, 0, SYNC_RUNTIME, false}};
        bool told;
        const bool made = checkpoint_write_config("config.json", m, &written, SAFE_F32, "", &error);
        same = same && made && checkpoint_load_caat(&read, &told, ".", &error) && told && read.ranks == written.ranks &&
               read.share == written.share && read.scale == written.scale && checkpoint_check_caat(".", &read, &error);
        other[0].ranks++, other[1].share += 0.01, other[2].scale = (SyncScale)((i + 1) % 3);
        for (int k = 0; k < 4; k++)
            refused = refused && !checkpoint_check_caat(".", &other[k], &error) && strstr(error.text, "this run has") &&
                      strstr(error.text, "give --sync");
    }
    check(same, "%s: config.json has N, P and scale of a CAAT-Net to the bit", m->name);
    check(refused, "and a model with others is refused: %s", error.text);
    const CaatConfig none = {0, 0, SYNC_RUNTIME, false}, some = {2, 0.5, SYNC_RUNTIME, false};
    same = checkpoint_write_config("config.json", m, &none, SAFE_F32, "", &error) &&
           checkpoint_check_caat(".", &none, &error);
    check(same && !checkpoint_check_caat(".", &some, &error), "an ordinary model is none: %s", error.text);
    check(checkpoint_check_caat("nowhere", &some, &error), "a folder without config.json does not say what it is");
}

// --init on all ranks of a mesh.
static bool init_all(const char* path, const ModelConfig* m, const Sizes* z, Error* error) {
    bool ok = true;
    for (int rank = 0; rank < z->t * z->p * z->d && ok; rank++) {
        Layout layout = layout_of(m, z, rank);
        float* params = (float*)checked_calloc((size_t)layout.elements, sizeof(float), "test");
        ok = checkpoint_init(path, m, &layout, params, error);
        for (int b = 0; b < layout.buckets && ok; b++) {
            const size_t bytes = (size_t)layout.bucket[b].elements * sizeof(float);
            float* expected = bucket_expected(&layout, m, b, 0, 0);
            ok = memcmp(expected, params + layout.bucket[b].offset, bytes) == 0 || fail(error, "bucket %d differs", b);
            free(expected);
        }
        free(params);
        layout_free(&layout);
    }
    return ok;
}

// Any mesh starts from a checkpoint's weights; another model is refused.
static void test_init(void) {
    static const char* path[CASES] = {"init/step_00000000", "init/step_00000001", "init/step_00000002",
                                      "init/step_00000003"};
    new_folder("init");
    for (int c = 0; c < CASES; c++) {
        const ModelConfig* m = cases[c].model;
        const Sizes* z = &cases[c].meshes[2];
        Error error = {""};
        check(save("init", c, m, &cases[c].meshes[1], 3, &error) && init_all(path[c], m, z, &error),
              "%s: --init on t=%d p=%d d=%d, padding stays zero %s", m->name, z->t, z->p, z->d, error.text);
    }
    const Sizes one = {1, 1, 1, 0, 0};
    ModelConfig fewer = llama_tied;
    fewer.L--;
    Error error = {""};
    const char* last = path[CASES - 1];
    check(!init_all(last, &fewer, &one, &error) && strstr(error.text, last) &&
              strstr(error.text, "has model.layers.4.") && strstr(error.text, "which the model does not have"),
          "a layer too many: %s", error.text);
}

// ----------------------------------------------------------------------------------------------------------------
// Stopped

// Saves step 2, but does not come further than point `stop`; returns false once there is no such point.
static bool save_until(const char* out, const ModelConfig* m, const Sizes* z, int stop) {
    Error error;
    if (!checkpoint_begin(out, 2, m, NULL, &error)) die("%s", error.text);
    int point = 0;
    for (int rank = 0; rank < z->t * z->p && point < stop; rank++) { // d = 1
        Layout layout = layout_of(m, z, rank);
        CheckpointWriter w;
        if (!checkpoint_join(&w, out, 2, m, NULL, &error)) die("%s", error.text);
        point++;
        for (int b = 0; b < layout.buckets && point < stop; b++, point++) {
            if (!write_bucket(&w, &layout, m, b, &error)) die("%s", error.text);
        }
        const bool whole = point < stop; // what is killed closes its files, and flushes nothing
        if (checkpoint_leave(&w, whole, &error) != whole) die("%s", error.text);
        point++;
        layout_free(&layout);
    }
    return point >= stop;
}

static void test_stopped(void) {
    char found[64];
    const Sizes z = {2, 2, 1, 0, 0};
    Error error = {""};
    new_folder("stopped");
    if (!save("stopped", 1, &gpt2_tied, &z, 1, &error)) die("%s", error.text);
    int points = 0;
    bool ok = true;
    while (save_until("stopped", &gpt2_tied, &z, points)) {
        ok = ok && checkpoint_newest(found, sizeof found, "stopped") && strcmp(found, "stopped/step_00000001") == 0;
        points++;
    }
    check(ok && points > 20, "stopped at %d points before it is published: the checkpoint before is the newest",
          points);
    checkpoint_abandon("stopped", 2);
    check(entries("stopped") == 1, "checkpoint_abandon removes what there is");
    // Whatever a killed run may have left, whole or in part.
    static const char* left[] = {"mkdir step_00000002.tmp",
                                 "head -c 99 /dev/zero >step_00000002.tmp/model.safetensors",
                                 "touch step_00000002.tmp/optimizer.safetensors",
                                 "touch step_00000002.tmp/config.json",
                                 "touch step_00000002.tmp/trainer.json",
                                 "cp -r step_00000001 step_00000002.old"};
    for (int n = 0; n <= 6; n++) {
        for (int i = 0; i < n; i++) run_command("cd stopped && %s", left[i]);
        ok = checkpoint_newest(found, sizeof found, "stopped") && strcmp(found, "stopped/step_00000001") == 0;
        ok = ok && save("stopped", 2, &gpt2_tied, &z, 9, &error);
        check(ok && entries("stopped") == 2 && read_all("stopped/step_00000002", &gpt2_tied, &z, &error),
              "%d things left by a killed run: the next save clears them away %s", n, error.text);
        checkpoint_remove("stopped/step_00000002");
    }
}

// How a save of step 2 ended, seen from outside.
typedef enum { ABSENT, OLDER, NEWER, BROKEN, FOUNDS } Found;

static Found find_step(const ModelConfig* m, const Sizes* z) {
    CheckpointReader r;
    CheckpointState state;
    Error error;
    if (access("calls/step_00000002", F_OK) != 0) return ABSENT;
    if (entries("calls/step_00000002") != 4) return BROKEN;
    if (!checkpoint_open(&r, "calls/step_00000002", &state, NULL, &error)) return BROKEN;
    checkpoint_close(&r);
    if (!checkpoint_verify("calls/step_00000002", &error)) return BROKEN;
    if (!read_all("calls/step_00000002", m, z, &error)) return BROKEN;
    return state.sequences == 14 ? NEWER : OLDER; // save() writes 7 step
}

// Makes the folder hold nothing but an older run's step 2.
static void make_older(const ModelConfig* m, const Sizes* z) {
    const CheckpointState state = {2, 1000, 42, 8, 16, 3, 0, "", "adamw", "", 0.5, 0, 0};
    Error error;
    if (entries("calls") == 1 && find_step(m, z) == OLDER) return;
    run_command("rm -rf calls && mkdir calls");
    if (!save_state("calls", &state, m, z, 5, &error)) die("%s", error.text);
}

// Saves in a process of its own, whose call number `at` is its last; false if there is no such call.
static bool save_killed(const ModelConfig* m, const Sizes* z, int at) {
    fflush(stdout);
    const pid_t child = fork();
    if (child < 0) die("cannot fork: %s", strerror(errno));
    if (child == 0) {
        Error error;
        calls.count = 0, calls.at = at, calls.kill = true;
        _exit(save("calls", 2, m, z, 5, &error) ? 0 : 1);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) die("the process that saves has crashed");
    return WEXITSTATUS(status) != 0;
}

// Every call of a save that replaces a checkpoint is the last one of the process once, and fails once. No checkpoint is
// ever broken, and the next save succeeds. What fails, but lives, leaves the older checkpoint and nothing else; the one
// exception is the last flush, of the new name.
static void test_every_call(const ModelConfig* m, const Sizes* z) {
    enum { MANY = 1000 }; // calls; a save that never succeeds ends here
    Error error;
    int killed[FOUNDS] = {0, 0, 0, 0}, failed[FOUNDS] = {0, 0, 0, 0}, stuck = 0, unclean = 0, unsaid = 0, at = 0;
    run_command("rm -rf calls && mkdir calls");
    for (make_older(m, z); at < MANY && save_killed(m, z, at); at++) {
        const Found found = find_step(m, z);
        killed[found]++;
        if (found == ABSENT || at % 8 == 0) { // saving each time would take its time
            stuck += !save("calls", 2, m, z, 5, &error) || entries("calls") != 1 || find_step(m, z) != NEWER;
        }
        make_older(m, z);
    }
    check(killed[BROKEN] == 0 && killed[ABSENT] == 1 && killed[OLDER] > 100 && killed[NEWER] > 1 && stuck == 0,
          "%s, killed at each of %d calls: %d times the older one is there, %d times the newer, %d time (between two "
          "renames) none, %d times a broken one; the next save failed %d times",
          m->name, at, killed[OLDER], killed[NEWER], killed[ABSENT], killed[BROKEN], stuck);
    for (at = 0, make_older(m, z); at < MANY; at++, make_older(m, z)) {
        error.text[0] = 0;
        calls.count = 0, calls.at = at;
        const bool ok = save("calls", 2, m, z, 5, &error);
        calls.at = -1;
        if (ok && calls.count <= at) break; // there is no such call
        const Found found = find_step(m, z);
        failed[found]++;
        unclean += entries("calls") != 1;
        unsaid += !ok && (!strstr(error.text, "calls") || !strstr(error.text, strerror(EIO)));
    }
    check(failed[OLDER] == at - 1 && failed[NEWER] == 1 && unclean == 0 && unsaid == 0,
          "%s, each of %d calls fails: %d times the older one is there, %d time the newer, %d times something else as "
          "well; %d errors without path and reason",
          m->name, at, failed[OLDER], failed[NEWER], unclean, unsaid);
}

// What is flushed before what: files, then the folder, then it is renamed, then the folder around it.
static void test_order(void) {
    const Sizes z = {2, 1, 1, 0, 0};
    Error error = {""};
    new_folder("order");
    calls.log[0] = 0;
    const bool ok = save("order", 3, &gpt2_tied, &z, 1, &error);
    check(ok && strcmp(calls.log, "model.safetensors optimizer.safetensors model.safetensors optimizer.safetensors "
                                  "model.safetensors optimizer.safetensors config.json trainer.json "
                                  "step_00000003.tmp rename order") == 0,
          "flushed in this order: %s", calls.log);
}

// A folder that is moved aside comes back if its place stays empty. (The new one lies in the old one here, so that it
// goes with it.)
static void test_moved_back(void) {
    Error error = {""};
    run_command("mkdir -p back/old/new && touch back/old/notes back/old/new/notes");
    check(!checkpoint_rename("back/old/new", "back/old", "back/aside", &error) && strstr(error.text, "back/old/new") &&
              access("back/old/notes", F_OK) == 0 && entries("back") == 1,
          "moved aside, and back: %s", error.text);
}

// ----------------------------------------------------------------------------------------------------------------
// Refused

// A save of `step` that has to fail and to say why, and leaves `left` entries in the folder.
static void refuses(const char* what, int64_t step, const char* reason, int left) {
    const Sizes z = {2, 1, 1, 0, 0};
    Error error = {""};
    char name[64];
    snprintf(name, sizeof name, "taken/step_%08lld", (long long)step);
    const bool ok = save("taken", step, &gpt2_tied, &z, 1, &error);
    check(!ok && strstr(error.text, name) && strstr(error.text, reason) && entries("taken") == left, "%s: %s", what,
          error.text);
}

static void test_taken(void) {
    const Sizes z = {2, 1, 1, 0, 0};
    Error error = {""};
    new_folder("taken");
    if (!save("taken", 4, &gpt2_tied, &z, 1, &error)) die("%s", error.text);
    touch("taken/step_00000004/notes.txt");
    refuses("somebody's file", 4, "notes.txt", 1);
    check(entries("taken/step_00000004") == 5 && read_all("taken/step_00000004", &gpt2_tied, &z, &error),
          "and all is as it was before %s", error.text);
    // Put there after checkpoint_begin() has looked: kept, under another name.
    if (remove("taken/step_00000004/notes.txt") != 0) die("cannot remove a file");
    const bool begun = checkpoint_begin("taken", 4, &gpt2_tied, NULL, &error);
    touch("taken/step_00000004/notes.txt");
    check(begun && publish_empty("taken", 4, &error) && entries("taken/step_00000004") == 4 &&
              entries("taken/step_00000004.old") == 1,
          "put there while it was written: kept %s", error.text);
    refuses("now there is no name for the older one", 4, "cannot rename", 2);
    touch("taken/step_00000005");
    refuses("a file", 5, "is taken", 3);
    const bool started = checkpoint_begin("taken", 6, &gpt2_tied, NULL, &error);
    touch("taken/step_00000006");
    check(started && !publish_empty("taken", 6, &error) && strstr(error.text, "cannot rename") && entries("taken") == 4,
          "a file, in the last moment: %s", error.text);
    new_folder("taken/step_00000007.tmp");
    touch("taken/step_00000007.tmp/notes.txt");
    refuses("somebody's file in the .tmp", 7, "cannot make", 5);
    check(!save("nowhere", 8, &gpt2_tied, &z, 1, &error) &&
              strstr(error.text, "nowhere: No such file or directory; was it moved away"),
          "no folder: %s", error.text);
}

// A checkpoint with holes: as many values as the model has have to be written, no fewer and no more.
static void test_holes(void) {
    const CheckpointState state = {3, 1, 2, 3, 4, 5, 0, "", "adamw", "", 0.5, 0, 0};
    new_folder("holes");
    for (int off = -1; off <= 1; off += 2) {
        const CheckpointSum sum = {3 * model_parameters(&gpt2_tied) + off, {0}};
        Error error = {""};
        const bool begun = checkpoint_begin("holes", 3, &gpt2_tied, NULL, &error);
        check(begun && !checkpoint_publish("holes", &state, &gpt2_tied, NULL, NULL, &sum, NULL, &error) &&
                  strstr(error.text, "values were written") && entries("holes") == 0,
              "%+d value: %s", off, error.text);
    }
}

// Killed at each call while old checkpoints are removed: what still has its name is whole.
static void test_prune_killed(void) {
    const Sizes one = {1, 1, 1, 0, 0};
    Error error = {""};
    char path[64];
    int64_t* steps;
    int points = 0, broken = 0;
    bool killed = true;
    for (; killed && points < 100; points++) {
        run_command("rm -rf prune && mkdir prune");
        for (int step = 1; step <= 3; step++) {
            if (!save("prune", step, &gpt2_tied, &one, 1, &error)) die("%s", error.text);
        }
        fflush(stdout);
        const pid_t child = fork();
        int status;
        if (child < 0) die("cannot fork: %s", strerror(errno));
        if (child == 0) {
            calls.count = 0, calls.at = points, calls.kill = true;
            _exit(checkpoint_prune("prune", 1, 3, -1, &error) ? 0 : 1);
        }
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) die("the process that removes has crashed");
        killed = WEXITSTATUS(status) == 9;
        const int n = checkpoint_steps(&steps, "prune");
        for (int i = 0; i < n; i++) {
            snprintf(path, sizeof path, "prune/step_%08lld", (long long)steps[i]);
            broken += !checkpoint_verify(path, &error);
        }
        free(steps);
    }
    check(points > 8 && !killed && broken == 0,
          "killed at %d calls while two of three are removed: %d halves have a name", points - 1, broken);
}

// What nobody could go on from is not saved.
static void test_not_finite(void) {
    static const uint32_t wrong[] = {0x7f800000, 0xff800000, 0x7fc00000};
    const Sizes z = {2, 1, 1, 0, 0};
    new_folder("infinite");
    for (int i = 0; i < 3; i++) {
        Layout layout = layout_of(&gpt2_tied, &z, 1);
        CheckpointWriter w;
        Error error = {""};
        if (!checkpoint_begin("infinite", 1, &gpt2_tied, NULL, &error) ||
            !checkpoint_join(&w, "infinite", 1, &gpt2_tied, NULL, &error))
            die("%s", error.text);
        const Slice* s = &layout.slices[layout.bucket[2].first]; // the first that this rank writes
        while (!slice_is_owned(s, &layout)) s++;
        float* values = bucket_expected(&layout, &gpt2_tied, 2, i, 0);
        values[s->offset - layout.bucket[2].offset + 1] = float_of_bits(wrong[i]);
        const bool ok = checkpoint_write_value(&w, &layout, 2, i, values, &error);
        check(!ok && strstr(error.text, s->tensor.name) && strstr(error.text, "not finite"), "not saved: %s",
              error.text);
        checkpoint_leave(&w, false, &error);
        free(values);
        layout_free(&layout);
        checkpoint_abandon("infinite", 1);
    }
}

static void test_long_names(void) {
    static char name[5000];
    char path[CHECKPOINT_PATH];
    CheckpointWriter w;
    CheckpointReader r;
    CheckpointState read;
    Error error = {""};
    memset(name, 'a', sizeof name - 1);
    bool ok = !checkpoint_begin(name, 4, &gpt2_tied, NULL, &error) && strstr(error.text, "too long");
    check(ok, "%zu letters: %.20s...%s", strlen(name), error.text, strstr(error.text, ": "));
    ok = !checkpoint_join(&w, name, 4, &gpt2_tied, NULL, &error) && strstr(error.text, "too long");
    ok = ok && !publish_empty(name, 4, &error) && strstr(error.text, "too long");
    ok = ok && !checkpoint_open(&r, name, &read, NULL, &error) && strstr(error.text, "too long");
    checkpoint_abandon(name, 4);
    check(ok, "neither joined nor published nor opened");
    ok = !checkpoint_path(path, &error, "%.4096s", name);
    check(ok && checkpoint_path(path, &error, "%.4095s", name), "4095 letters fit, 4096 do not");
}

static void test_join(void) {
    CheckpointWriter w;
    Error error = {""};
    new_folder("join");
    const int before = open_files();
    check(!checkpoint_join(&w, "join", 4, &gpt2_tied, NULL, &error) && strstr(error.text, "cannot open"),
          "not begun: %s", error.text);
    calls.count = 0;
    check(!checkpoint_leave(&w, false, &error) && calls.count == 0, "leaving without having joined does nothing");
    if (!checkpoint_begin("join", 4, &gpt2_tied, NULL, &error)) die("%s", error.text);
    if (!checkpoint_join(&w, "join", 4, &gpt2_tied, NULL, &error)) die("%s", error.text);
    calls.count = 0, calls.at = 0, calls.all = true;
    check(!checkpoint_leave(&w, true, &error) && calls.count == 2 && strstr(error.text, "4.tmp/model.safetensors"),
          "both cannot be flushed, the first one is told: %s", error.text);
    calls.at = -1, calls.all = false;
    check(!checkpoint_join(&w, "join", 4, &llama_tied, NULL, &error) && strstr(error.text, "same file system"),
          "another model's: %s", error.text);
    if (remove("join/step_00000004.tmp/optimizer.safetensors") != 0) die("cannot remove a file");
    check(!checkpoint_join(&w, "join", 4, &gpt2_tied, NULL, &error) &&
              strstr(error.text, "4.tmp/optimizer.safetensors"),
          "half of it: %s", error.text);
    check(open_files() == before, "no file is left open");
    checkpoint_abandon("join", 4);
    check(entries("join") == 0, "nor there");
}

// Each rank writes what it owns, and nothing else.
static void test_shares(void) {
    const Sizes z = {4, 2, 1, 0, 0}; // the vocabulary is padded, the embedding on two stages
    int64_t sum = 0, twice = 0;
    Error error = {""};
    new_folder("shares");
    if (!checkpoint_begin("shares", 4, &gpt2_tied, NULL, &error)) die("%s", error.text);
    for (int rank = 0; rank < 8; rank++) {
        Layout layout = layout_of(&gpt2_tied, &z, rank);
        CheckpointWriter w;
        if (!checkpoint_join(&w, "shares", 4, &gpt2_tied, NULL, &error)) die("%s", error.text);
        for (int b = 0; b < layout.buckets; b++) {
            if (!write_bucket(&w, &layout, &gpt2_tied, b, &error)) die("%s", error.text);
        }
        sum += w.sum.elements;
        for (int i = 0; i < layout.n; i++) twice += 3 * layout.slices[i].rows * layout.slices[i].cols;
        if (!checkpoint_leave(&w, true, &error)) die("%s", error.text);
        layout_free(&layout);
    }
    checkpoint_abandon("shares", 4);
    check(sum == 3 * model_parameters(&gpt2_tied) && twice > sum, "%lld values held by all ranks, %lld written",
          (long long)twice, (long long)sum);
}

static void test_full(void) {
    const Sizes z = {1, 1, 1, 0, 0};
    Error error = {""}, late = {"nothing"}, second = {""};
    new_folder("full");
    const int before = open_files();
    if (system("mount -t tmpfs -o size=250k tmpfs full 2>/dev/null") == 0) { // room for the weights alone
        const bool saved = save("full", 4, &gpt2_tied, &z, 1, &error);
        const int left = entries("full");
        run_command("umount full");
        check(!saved && strstr(error.text, "optimizer") && strstr(error.text, "No space left") && left == 0,
              "a full disk: %s", error.text);
    }
    // A limit on the size of files, from some point on, stands in for a disk that is full later.
    Layout layout = layout_of(&gpt2_tied, &z, 0);
    CheckpointWriter w;
    struct rlimit limit, small;
    if (!checkpoint_begin("full", 4, &gpt2_tied, NULL, &error)) die("%s", error.text);
    if (!checkpoint_join(&w, "full", 4, &gpt2_tied, NULL, &error)) die("%s", error.text);
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0) die("getrlimit: %s", strerror(errno));
    small = limit, small.rlim_cur = 5000;
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &small) != 0) die("setrlimit: %s", strerror(errno));
    const bool written = write_bucket(&w, &layout, &gpt2_tied, 2, &error);
    const bool left = checkpoint_leave(&w, written, &late);
    const bool begun = checkpoint_begin("full", 5, &gpt2_tied, NULL, &second);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) die("setrlimit: %s", strerror(errno));
    check(!written && strstr(error.text, "4.tmp/model.safetensors: cannot write"), "no room while writing: %s",
          error.text);
    check(!left && strcmp(late.text, "nothing") == 0, "leaving then says nothing more, and stays a failure");
    check(!begun && strstr(second.text, "5.tmp/model.safetensors: cannot reserve"), "no room at the beginning: %s",
          second.text);
    checkpoint_abandon("full", 4);
    check(entries("full") == 0 && open_files() == before, "nothing is left, no file is open");
    layout_free(&layout);
}

// Exchanges n bytes of a file at `place` with those at `bytes`.
static void patch(const char* path, int64_t place, void* bytes, size_t n) {
    char before[8];
    const int fd = open(path, O_RDWR);
    if (fd < 0 || pread(fd, before, n, (off_t)place) != (ssize_t)n || pwrite(fd, bytes, n, (off_t)place) != (ssize_t)n)
        die("%s: cannot patch", path);
    memcpy(bytes, before, n);
    close(fd);
}

static bool reads(const char* path, const ModelConfig* m, Error* error) {
    const Sizes one = {1, 1, 1, 0, 0};
    error->text[0] = 0;
    return read_all(path, m, &one, error);
}

static void test_other_models(const char* path) {
    Error error;
    ModelConfig other = gpt2_tied;
    other.F = 44;
    check(!reads(path, &other, &error) && strstr(error.text, "model.safetensors: transformer.h.0.mlp.c_fc.weight has "
                                                             "shape (24, 40), the model needs (24, 44)"),
          "other sizes: %s", error.text);
    other = gpt2_tied, other.V = 22;
    check(!reads(path, &other, &error) && strstr(error.text, "transformer.wte.weight has shape (21, 24)"),
          "another vocabulary: %s", error.text);
    for (int L = 4; L <= 6; L += 2) {
        other = gpt2_tied, other.L = L;
        check(!reads(path, &other, &error) && strstr(error.text, "has 64 tensors, the model needs"), "%d layers: %s", L,
              error.text);
    }
    check(!reads(path, &llama_tied, &error) && strstr(error.text, path), "another architecture: %s", error.text);
}

// A name, or a value, of the files is changed, and changed back.
static void test_patched(const char* path) {
    static const struct {
        int file;
        const char* tensor;
        uint32_t bits; // for element 17
        const char* message;
    } values[] = {{0, "transformer.h.4.mlp.c_proj.bias", 0x7fc00000, "is nan"},
                  {0, "transformer.wte.weight", 0xff800000, "is -inf"},
                  {1, "exp_avg.transformer.wpe.weight", 0x7f800000, "is inf"},
                  {1, "exp_avg_sq.transformer.h.2.attn.c_attn.weight", 0xffc00000, "nan; weights must be finite"}};
    Error error;
    char file[128], expected[128], letter = 'L';
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        SafeTensors st;
        snprintf(file, sizeof file, "%s/%s", path, checkpoint_files[values[i].file]);
        if (!safetensors_open(&st, file, &error)) die("%s", error.text);
        const int64_t place = safetensors_find(&st, values[i].tensor)->offset + 4 * 17;
        safetensors_close(&st);
        uint32_t bits = values[i].bits;
        patch(file, place, &bits, sizeof bits);
        snprintf(expected, sizeof expected, "element 17 of %s is ", values[i].tensor);
        check(!reads(path, &gpt2_tied, &error) && strstr(error.text, file) && strstr(error.text, expected) &&
                  strstr(error.text, values[i].message),
              "not a finite number: %s", error.text);
        patch(file, place, &bits, sizeof bits);
    }
    MappedFile header;
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    if (!file_map(&header, file, &error)) die("%s", error.text);
    const void* name = memmem(header.data, header.size, "ln_f.bias", 9);
    const int64_t place = name ? (const unsigned char*)name - header.data : 0;
    file_unmap(&header);
    patch(file, place, &letter, 1);
    check(!reads(path, &gpt2_tied, &error) && strstr(error.text, file) &&
              strstr(error.text, "transformer.ln_f.bias is missing"),
          "another name: %s", error.text);
    patch(file, place, &letter, 1);
}

static void test_lies(void) {
    static const char path[] = "lies/step_00000001";
    static const char* broken[] = {"truncate -s -4 model.safetensors",
                                   "truncate -s -4 optimizer.safetensors",
                                   "rm optimizer.safetensors",
                                   "rm model.safetensors",
                                   "rm trainer.json",
                                   "truncate -s 20 trainer.json",
                                   "sed -i s/global_batch/batch/ trainer.json",
                                   "sed -i 's/: 7/: -7/' trainer.json",
                                   "rm trainer.json && mkfifo trainer.json"};
    const Sizes z = {2, 2, 1, 0, 0};
    Error error = {""};
    new_folder("lies");
    if (!save("lies", 1, &gpt2_tied, &z, 1, &error)) die("%s", error.text);
    const int before = open_files();
    test_other_models(path);
    test_patched(path);
    check(reads(path, &gpt2_tied, &error), "and the right one is read %s", error.text);
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        run_command("cp -r %s copy && cd copy && %s", path, broken[i]);
        check(!reads("copy", &gpt2_tied, &error) && strstr(error.text, "copy/"), "%s: %s", broken[i], error.text);
        run_command("rm -r copy");
    }
    check(open_files() == before, "no file is left open");
}

// The same checkpoint with one thing wrong: refused, by a process alone, with the name of the file.
static void unsound(const char* what, const char* file) {
    Error error = {""};
    check(!checkpoint_verify("copy", &error) && strstr(error.text, "copy/") && strstr(error.text, file), "%s: %s", what,
          error.text);
    run_command("rm -rf copy");
}

static uint64_t random_below(uint64_t* state, uint64_t n) { return philox(11, 0, (*state)++).word[0] % n; }

// A byte of a file becomes another one.
static void damage(const char* path, int64_t place, int bit) {
    unsigned char byte;
    const int fd = open(path, O_RDWR);
    if (fd < 0 || pread(fd, &byte, 1, (off_t)place) != 1) die("%s: cannot read", path);
    byte ^= (unsigned char)(1 << bit);
    if (pwrite(fd, &byte, 1, (off_t)place) != 1 || close(fd) != 0) die("%s: cannot patch", path);
}

static int64_t file_bytes(const char* path) {
    struct stat st;
    if (stat(path, &st) != 0) die("%s: cannot stat", path);
    return (int64_t)st.st_size;
}

// Bits flipped, pieces cut off, files of another step, another run or another file in their places: 500 times and more, each is
// refused with the name of the file. Ranks that add up their parts find the same as one alone.
static void test_unsound(void) {
    static const char* names[] = {"model.safetensors", "optimizer.safetensors", "config.json", "trainer.json"};
    const Sizes z = {2, 2, 1, 0, 0};
    Error error = {""};
    char path[128];
    uint64_t r = 0;
    int refused = 0, tried = 0;
    new_folder("unsound"), new_folder("another");
    ModelConfig other = gpt2_tied;
    other.eps = 2e-5; // as large, but another model
    const CheckpointState same = {1, 7, 42, 8, 16, INT64_MAX, INT64_MAX, "", "adamw", "", 0.25, 0, 0};
    if (!save("unsound", 1, &gpt2_tied, &z, 1, &error) || !save("unsound", 2, &gpt2_tied, &z, 1, &error) ||
        !save_state("another", &same, &other, &z, 1, &error))
        die("%s", error.text);
    check(checkpoint_verify("unsound/step_00000001", &error), "as it was written %s", error.text);
    for (int i = 0; i < 400; i++) { // flipped bits, in every file, there and back
        const char* name = names[i % 4];
        snprintf(path, sizeof path, "unsound/step_00000001/%s", name);
        const int64_t place = (int64_t)random_below(&r, (uint64_t)file_bytes(path));
        const int bit = (int)random_below(&r, 8);
        damage(path, place, bit);
        tried++;
        error.text[0] = 0;
        const bool ok = checkpoint_verify("unsound/step_00000001", &error);
        if (!ok && strstr(error.text, name))
            refused++;
        else
            check(false, "%s: bit %d of byte %lld flipped: %s", name, bit, (long long)place, error.text);
        damage(path, place, bit);
    }
    for (int i = 0; i < 100; i++) { // cut off
        const char* name = names[i % 4];
        run_command("cp -r unsound/step_00000001 copy");
        snprintf(path, sizeof path, "copy/%s", name);
        const int64_t left = (int64_t)random_below(&r, (uint64_t)file_bytes(path));
        if (truncate(path, (off_t)left) != 0) die("%s: cannot cut", path);
        tried++;
        error.text[0] = 0;
        if (!checkpoint_verify("copy", &error) && strstr(error.text, name))
            refused++;
        else
            check(false, "%s: cut after %lld bytes: %s", name, (long long)left, error.text);
        run_command("rm -rf copy");
    }
    check(refused == tried, "%d flipped bits and cut files: %d refused with the name of the file", tried, refused);
    for (int i = 0; i < 4; i++) {
        run_command("cp -r unsound/step_00000001 copy && cp unsound/step_00000002/%s copy", names[i]);
        if (i < 2)
            unsound("a file of another step", names[i]);
        else
            run_command("rm -r copy"); // config.json is the same; trainer.json is asked below
        run_command("cp -r unsound/step_00000001 copy && rm copy/%s", names[i]);
        unsound("a file is missing", names[i]);
    }
    run_command("cp -r unsound/step_00000001 copy && cp unsound/step_00000002/trainer.json copy");
    unsound("trainer.json of another step", "model.safetensors");
    run_command("cp -r unsound/step_00000001 copy && cp another/step_00000001/config.json copy");
    unsound("config.json of another run", "config.json");
    run_command("cp -r unsound/step_00000001 copy && mv copy/optimizer.safetensors copy/model.safetensors");
    unsound("the optimizer in place of the weights", "");
    run_command("cp -r unsound/step_00000001 copy && rm copy/model.safetensors && mkdir copy/model.safetensors");
    unsound("a folder in place of a file", "not a regular file");
    CheckpointList list;
    bool ok = checkpoint_load_list(&list, "unsound/step_00000001", &error);
    for (int ranks = 1; ranks <= 7 && ok; ranks++) {
        uint64_t sums[CHECKPOINT_TENSOR_FILES + 1] = {0};
        for (int rank = 0; rank < ranks && ok; rank++)
            ok = checkpoint_add_up(sums, &list, "unsound/step_00000001", rank, ranks, &error);
        ok = ok && checkpoint_compare(sums, &list, "unsound/step_00000001", &error);
    }
    check(ok, "1 to 7 ranks that add up a part each agree %s", error.text);
}

// The folder of a run: the newest stay, and the best; what killed runs have left goes, or comes back.
static void test_folder(void) {
    static const double losses[] = {3, 1, 2, (double)NAN, 1.5, 1};
    const Sizes one = {1, 1, 1, 0, 0};
    Error error = {""};
    char target[64] = "";
    int64_t* steps;
    new_folder("run");
    for (int i = 0; i < 6; i++) {
        const CheckpointState state = {i + 1, 1, 2, 3, 4, 5, 0, "", "adamw", "", losses[i], 0, 0};
        if (!save_state("run", &state, &gpt2_tied, &one, 1, &error)) die("%s", error.text);
        const bool pruned = checkpoint_prune("run", i < 5 ? 2 : 1, i + 1, -1, &error);
        const int n = checkpoint_steps(&steps, "run");
        const int64_t expected[6][3] = {{1}, {2, 1}, {3, 2}, {4, 3, 2}, {5, 4, 2}, {6}};
        bool ok = pruned && n == (i == 3 || i == 4 ? 3 : i == 5 || i == 0 ? 1 : 2);
        for (int k = 0; k < n && ok; k++) ok = steps[k] == expected[i][k];
        const ssize_t length = readlink("run/best", target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        const int best = i == 0 ? 1 : i == 5 ? 6 : 2;
        ok = ok && atoi(target + 5) == best;
        check(ok, "losses 3, 1, 2, none, 1.5, 1; after step %d: the last %d and the best, %s %s", i + 1, i < 5 ? 2 : 1,
              target, error.text);
        free(steps);
    }
    if (!save("run", 8, &gpt2_tied, &one, 1, &error) || !save("run", 9, &gpt2_tied, &one, 1, &error))
        die("%s", error.text);
    check(checkpoint_prune("run", 0, 9, -1, &error) && checkpoint_steps(&steps, "run") == 3, "--keep 0: all stay");
    free(steps);
    check(checkpoint_prune("run", 0, 9, 8, &error) && access("run/step_00000008", F_OK) != 0 &&
              checkpoint_prune("run", 0, 9, 9, &error) && access("run/step_00000009", F_OK) == 0,
          "but one that nobody has asked for gives way to the next %s", error.text);
    run_command("rm -r run/step_00000009");
    touch("run/step_00000006/notes.txt");
    if (!save("run", 7, &gpt2_tied, &one, 1, &error)) die("%s", error.text);
    check(checkpoint_prune("run", 1, 7, -1, &error) && access("run/step_00000006/notes.txt", F_OK) == 0,
          "one with somebody's file in it stays");
    run_command("rm -rf run/best && touch run/best run/step_00000006/notes.txt");
    check(checkpoint_prune("run", 1, 7, -1, &error) && file_bytes("run/best") == 0,
          "somebody's file called best stays");
    run_command(
        "cd run && rm -r best step_00000006 && cp -r step_00000007 step_00000008.tmp && touch "
        "step_00000008.tmp/rank_00003 && mv step_00000007 step_00000007.old && mkdir step_00000009.old step_x.tmp");
    checkpoint_clean("run");
    check(entries("run") == 2 && access("run/step_x.tmp", F_OK) == 0 && checkpoint_verify("run/step_00000007", &error),
          "what killed runs have left is cleared away, and a checkpoint that had lost its name has it again %s",
          error.text);
}

// Links in the folder of a run, to a checkpoint that is somebody's: only the links go.
static void test_links(void) {
    const Sizes one = {1, 1, 1, 0, 0};
    Error error = {""};
    new_folder("links"), new_folder("theirs");
    if (!save("theirs", 1, &gpt2_tied, &one, 1, &error) || !save("links", 3, &gpt2_tied, &one, 1, &error))
        die("%s", error.text);
    run_command("ln -s ../theirs/step_00000001 links/step_00000001");
    check(checkpoint_prune("links", 1, 3, -1, &error) && access("links/step_00000001", F_OK) != 0 &&
              entries("theirs/step_00000001") == 4,
          "--keep removes a link to a checkpoint, and not the checkpoint %s", error.text);
    run_command("for name in step_00000004 step_00000004.tmp step_00000004.old; do ln -s ../theirs/step_00000001 "
                "links/$name; done");
    check(save("links", 4, &gpt2_tied, &one, 1, &error) && entries("theirs/step_00000001") == 4 &&
              entries("links") == 3 && checkpoint_verify("links/step_00000004", &error),
          "a save under a name that three links have %s", error.text);
    run_command("ln -s ../theirs/step_00000001 links/step_00000005.tmp; ln -s ../theirs/step_00000001 "
                "links/step_00000004.old");
    checkpoint_clean("links");
    check(entries("links") == 3 && entries("theirs/step_00000001") == 4, "what killed runs have left, as links");
    run_command("echo mine >links/best.tmp && ln -s ../theirs/step_00000001/config.json links/options.txt.tmp");
    checkpoint_prune("links", 2, 4, -1, &error);
    check(file_bytes("links/best.tmp") == 5, "a file called best.tmp stays");
    FILE* f = folder_create("links/options.txt.tmp");
    check(f && fclose(f) == 0 && checkpoint_verify("theirs/step_00000001", &error),
          "a file that is written anew is not what a link leads to %s", error.text);
}

// A name that nothing may have, also on a file system that knows no such renaming.
static void test_rename_new(void) {
    for (int plain = 0; plain < 2; plain++) {
        calls.plain = plain > 0;
        run_command("rm -rf new && mkdir new && cd new && mkdir a b && echo x >b/x && echo 1 >c && echo 22 >d");
        bool refused = !rename_new("new/a", "new/b") && errno == EEXIST && !rename_new("new/c", "new/d") &&
                       errno == EEXIST && !rename_new("new/a", "new/d") && !rename_new("new/c", "new/b");
        run_command("ln -s nowhere new/e");
        refused = refused && !rename_new("new/c", "new/e") && !rename_new("new/a", "new/e");
        check(refused && entries("new/b") == 1 && file_bytes("new/c") == 2 && file_bytes("new/d") == 3 &&
                  access("new/a", F_OK) == 0,
              "what is there is not replaced%s", plain ? ", nor where the file system does not help" : "");
        check(rename_new("new/a", "new/f") && rename_new("new/c", "new/g") && entries("new") == 5 &&
                  file_bytes("new/g") == 2,
              "a name that is free is given");
    }
    calls.plain = false;
}

// The checkpoint that the folder of a run stands for: the best by validation, else the newest.
static void test_of_run(void) {
    const Sizes one = {1, 1, 1, 0, 0};
    Error error = {""};
    char path[CHECKPOINT_PATH];
    const char* kind = "";
    new_folder("of");
    check(!checkpoint_of_run(path, &kind, "of") && !checkpoint_of_run(path, &kind, "nowhere") && path[0] == 0,
          "an empty folder stands for none");
    if (!save("of", 1, &gpt2_tied, &one, 1, &error) || !save("of", 2, &gpt2_tied, &one, 1, &error))
        die("%s", error.text);
    check(checkpoint_of_run(path, &kind, "of") && strcmp(path, "of/step_00000002") == 0 && strcmp(kind, "newest") == 0,
          "without a best one it is the newest: %s", path);
    run_command("ln -s step_00000001 of/best");
    check(checkpoint_of_run(path, &kind, "of") && strcmp(path, "of/step_00000001") == 0 && strcmp(kind, "best") == 0,
          "then the best: %s", path);
    run_command("ln -sfn step_00000003 of/best");
    check(checkpoint_of_run(path, &kind, "of") && strcmp(path, "of/step_00000002") == 0, "not one that is gone: %s",
          path);
    run_command("mkdir elsewhere && ln -sfn ../elsewhere of/best");
    check(checkpoint_of_run(path, &kind, "of") && strcmp(path, "of/step_00000002") == 0, "nor another folder: %s",
          path);
    check(!checkpoint_of_run(path, &kind, "of/step_00000002"), "a checkpoint is taken as it is");
}

// Writes trainer.json of an older program: without "optimizer", with these "rounds".
static void older_trainer(const char* path, const char* rounds) {
    MappedFile file;
    Error error;
    if (!file_map(&file, path, &error)) die("%s", error.text);
    char text[4096], hex[17];
    const char* begin = (const char*)file.data;
    const char *from = strstr(begin, "  \"rounds\""), *to = strstr(begin, "  \"files\"");
    const char* last = strstr(to, "\n  \"checksum\"");
    snprintf(text, sizeof text, "%.*s  \"rounds\": \"%s\",\n%.*s\n  %s", (int)(from - begin), begin, rounds,
             (int)(last - to), to, checkpoint_last_key);
    file_unmap(&file);
    checkpoint_hex(hex, checksum_of(text, (int64_t)strlen(text), 0));
    if (!checkpoint_write_text(path, &error, "%s%s\"\n}\n", text, hex)) die("%s", error.text);
}

// Checkpoints from before the optimizer had a field of its own.
static void test_older(void) {
    static const char* const cases[][3] = {
        {"", "", "adamw"},
        {"--dp-mode sync, sgd", "", "sgd"},
        {"diloco of 2 sites, merged later, sgd", "diloco of 2 sites, merged later", "sgd"},
        {"--dp-mode sync, every file is a document", "--dp-mode sync, every file is a document", "adamw"},
        {"--dp-mode sync, sgd, every file is a document", "--dp-mode sync, every file is a document", "sgd"}};
    const Sizes one = {1, 1, 1, 0, 0};
    Error error = {""};
    CheckpointList list;
    new_folder("older");
    if (!save("older", 1, &gpt2_tied, &one, 1, &error)) die("%s", error.text);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        older_trainer("older/step_00000001/trainer.json", cases[i][0]);
        const bool ok = checkpoint_load_list(&list, "older/step_00000001", &error);
        check(ok && strcmp(list.state.rounds, cases[i][1]) == 0 && strcmp(list.state.optimizer, cases[i][2]) == 0 &&
                  list.state.tuning[0] == 0,
              "an older trainer.json, \"%s\": %s", cases[i][0], ok ? list.state.optimizer : error.text);
    }
}

// A run is not continued as another model: every field that config.json has and that changes what is computed.
static void test_same_model(void) {
    ModelConfig base = model_llama(4, 64, 8, 4, 128, 32, 100);
    base.rope_scaling.factor = 8;
    base.rope_scaling.low = 1;
    base.rope_scaling.high = 4;
    base.rope_scaling.original = 8192;
    ModelConfig other[14];
    static const char* const names[14] = {"--layers 4",
                                          "--hidden 64",
                                          "--heads 8",
                                          "--kv-heads 4",
                                          "--ffn 128",
                                          "--seq 32",
                                          "--vocab 100",
                                          "tied",
                                          "epsilon",
                                          "rope_theta 10000.0",
                                          "factor of rope_scaling 8.0",
                                          "low_freq_factor of rope_scaling 1.0",
                                          "high_freq_factor of rope_scaling 4.0",
                                          "original positions of rope_scaling 8192.0"};
    Error error = {""};
    for (int i = 0; i < 14; i++) other[i] = base;
    other[0].L = 5, other[1].C = 128, other[2].NH = 16, other[3].NKV = 8, other[4].F = 64, other[5].T = 64;
    other[6].V = 101, other[7].tied = true, other[8].eps = 1e-6, other[9].rope_theta = 500;
    other[10].rope_scaling.factor = 2, other[11].rope_scaling.low = 2, other[12].rope_scaling.high = 5;
    other[13].rope_scaling.original = 4096;
    check(config_compare(&base, &base, "x", &error), "a model is the same as itself");
    for (int i = 0; i < 14; i++)
        check(!config_compare(&other[i], &base, "x", &error) && strstr(error.text, names[i]), "another %s: %s",
              names[i], error.text);
    other[0] = base, other[0].arch = ARCH_GPT2;
    check(!config_compare(&other[0], &base, "x", &error) && strstr(error.text, "--arch llama"), "%s", error.text);
}

// A run that was taken up from before checkpoints that are not sound: those are later, and do not take the place of its own.
static void test_prune_later(void) {
    const Sizes one = {1, 1, 1, 0, 0};
    Error error = {""};
    new_folder("later");
    for (int step = 1; step <= 4; step++) {
        if (!save("later", step, &gpt2_tied, &one, 1, &error)) die("%s", error.text);
    }
    damage("later/step_00000004/model.safetensors", 5000, 3);
    check(checkpoint_prune("later", 1, 3, -1, &error) && access("later/step_00000003", F_OK) == 0 &&
              access("later/step_00000004", F_OK) == 0 && access("later/step_00000002", F_OK) != 0,
          "the last that was saved stays, and a later one %s", error.text);
    char target[64] = "";
    check(readlink("later/best", target, sizeof target - 1) > 0 && strcmp(target, "step_00000003") == 0,
          "the best is not one that was not taken: %s", target);
    run_command("mkdir later/best.tmp && touch later/best.tmp/x"); // no link can be made
    if (!save("later", 5, &gpt2_tied, &one, 1, &error)) die("%s", error.text);
    error.text[0] = 0;
    check(!checkpoint_prune("later", 1, 5, -1, &error) && strstr(error.text, "later/best: cannot link") &&
              access("later/step_00000003", F_OK) != 0 && access("later/step_00000005", F_OK) == 0,
          "without a link to the best room is made all the same: %s", error.text);
}

// What says of itself that it is another: of another step than its folder's, or of other files than the list's.
static void test_says(void) {
    const Sizes one = {1, 1, 1, 0, 0};
    Error error = {""};
    CheckpointList list;
    SafeTensors st;
    new_folder("says");
    if (!save("says", 1, &gpt2_tied, &one, 1, &error)) die("%s", error.text);
    check(checkpoint_load_list(&list, "says/step_00000001", &error) &&
              checkpoint_check_step(&list, "says/step_00000001", 1, &error) &&
              !checkpoint_check_step(&list, "says/step_00000001", 2, &error) &&
              strstr(error.text, "trainer.json: is of step 1"),
          "a folder with another step's name: %s", error.text);
    if (!safetensors_open(&st, "says/step_00000001/model.safetensors", &error)) die("%s", error.text);
    const int64_t digits = checkpoint_digits(st.file.data, 4096);
    safetensors_close(&st);
    for (int i = 0; i < 16; i += 5) {
        damage("says/step_00000001/model.safetensors", digits + i, i % 3);
        check(!checkpoint_verify("says/step_00000001", &error) &&
                  strstr(error.text, "model.safetensors: says that its checksum"),
              "digit %d of the checksum in the head: %s", i, error.text);
        damage("says/step_00000001/model.safetensors", digits + i, i % 3);
    }
    check(checkpoint_verify("says/step_00000001", &error), "and changed back it is sound");
}

// A process holds a lock, alone or not; what another one gets then. Returns that it was given back at the end of the holder.
static bool lock_beside(bool alone, bool mine_alone, int* got) {
    int ready[2];
    char byte;
    if (pipe(ready) != 0) die("pipe: %s", strerror(errno));
    const pid_t child = fork();
    if (child == 0) {
        const int lock = folder_lock("locked", alone, 0);
        if (write(ready[1], lock >= 0 ? "1" : "0", 1) == 1) pause();
        _exit(0);
    }
    if (child < 0 || read(ready[0], &byte, 1) != 1 || byte != '1') die("a child has no lock");
    *got = folder_lock("locked", mine_alone, 0.05);
    if (*got >= 0) close(*got);
    kill(child, SIGKILL);
    const int after = folder_lock("locked", true, 10);
    waitpid(child, NULL, 0);
    close(ready[0]), close(ready[1]);
    if (after >= 0) close(after);
    return after >= 0;
}

static void test_lock(void) {
    int got;
    new_folder("locked");
    check(lock_beside(true, false, &got) && got == FOLDER_TAKEN,
          "a folder of which a run has just begun is not shared");
    check(lock_beside(false, true, &got) && got == FOLDER_TAKEN,
          "one whose run goes on is not another's, until it is killed");
    check(lock_beside(false, false, &got) && got >= 0, "the ranks of a run share it");
    const int mine = folder_lock("locked", true, 0);
    folder_share(mine);
    const int other = folder_lock("locked", false, 0);
    check(mine >= 0 && other >= 0, "the main rank is alone first, and shares then");
    close(mine), close(other);
    check(folder_lock("nowhere", true, 0) == FOLDER_UNLOCKED, "no folder, no lock");
}

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    make_models();
    const char* tmp = getenv("TMPDIR");
    char folder[512];
    snprintf(folder, sizeof folder, "%s/test_checkpoint_XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(folder) || chdir(folder) != 0) die("cannot make a folder %s", folder);
    for (int c = 0; c < CASES; c++) test_meshes(&cases[c]);
    test_large();
    test_names_of_sites();
    test_state();
    for (int c = 0; c < CASES; c++) test_config(cases[c].model);
    for (int c = 0; c < CASES; c++) test_config_sync(cases[c].model);
    test_init();
    test_shares();
    test_stopped();
    const ModelConfig gpt2 = model_of(ARCH_GPT2, 1, 4, 2, 2, 2, 2, 3), llama = model_llama(2, 4, 2, 1, 2, 2, 3);
    const Sizes two = {2, 1, 1, 0, 0}, four = {2, 2, 1, 0, 0};
    test_every_call(&gpt2, &two);
    if (!brief) test_every_call(&llama, &four);
    test_order();
    test_moved_back();
    test_taken();
    test_holes();
    test_prune_killed();
    test_not_finite();
    test_long_names();
    test_join();
    test_full();
    test_lies();
    test_unsound();
    test_folder();
    test_links();
    test_rename_new();
    test_of_run();
    test_older();
    test_same_model();
    test_prune_later();
    test_says();
    test_lock();
    if (chdir("/") != 0) die("cannot leave %s", folder);
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) die("cannot remove %s", folder);
    return test_end();
}
