/*
checkpoint/safetensors.h: reads and writes safetensors, the file format of weights on the Hugging Face hub. It handles
tensors, not models.

    SafeTensors         one file, mapped. safetensors_read_f32 reads any range of a tensor as float32.
    SafeTensorsModel    a file, a folder with model.safetensors, or a folder with model.safetensors.index.json, whose
                        "weight_map" names the files (shards).
    SafeTensorsLayout   writing: the place of every tensor, computed before the file exists. So any number of processes
                        compute the same layout, one creates the file, and each writes its slices in their places.

Theory. The format:

    8 bytes     n, the length of the header, little-endian
    n bytes     JSON: {"wte.weight": {"dtype": "F32", "shape": [50257, 768], "data_offsets": [0, 154389504]}, ...,
                       "__metadata__": {"format": "pt"}}
    the rest    the tensors, row-major; data_offsets count from here

Files are untrusted input. Before anything is read, the whole header is checked with the rules of Hugging Face's own
reader (github.com/huggingface/safetensors, src/tensor.rs): n is at most 100 MB and fits the file; a tensor takes
exactly the bytes that its shape and type need; the tensors are end to end, without holes and without overlaps, from the
first byte of the data to the last. So a truncated file is found when it is opened. Stricter than theirs: no name of a
model occurs twice, no name contains a NUL, and tensors have at most 8 dimensions.

A file must not shrink while it is mapped: that kills the process with SIGBUS, as in every program that maps files.
*/
#pragma once

#include "../util/base.h"
#include "../util/json.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors files are little-endian, and are used as they lie in memory"
#endif

// ---- A tensor ---------------------------------------------------------------------------------------------------

// clang-format off
typedef enum {
    SAFE_C64, SAFE_F64, SAFE_I64, SAFE_U64, SAFE_F32, SAFE_I32, SAFE_U32, SAFE_F16, SAFE_BF16, SAFE_I16, SAFE_U16,
    SAFE_I8, SAFE_U8, SAFE_BOOL, SAFE_F8_E4M3, SAFE_F8_E5M2, SAFE_F8_E8M0, SAFE_F8_E4M3FNUZ, SAFE_F8_E5M2FNUZ,
    SAFE_F6_E2M3, SAFE_F6_E3M2, SAFE_F4, SAFE_DTYPES
} SafeDtype;

typedef struct {
    const char* name;
    int bits; // an element has these
} SafeDtypeFacts;

static const SafeDtypeFacts safe_dtypes[SAFE_DTYPES] = {
    {"C64", 64}, {"F64", 64}, {"I64", 64}, {"U64", 64}, {"F32", 32}, {"I32", 32}, {"U32", 32}, {"F16", 16},
    {"BF16", 16}, {"I16", 16}, {"U16", 16}, {"I8", 8}, {"U8", 8}, {"BOOL", 8}, {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
};
// clang-format on

enum { SAFE_MAX_DIMS = 8, SAFE_MAX_HEADER = 100 * 1000 * 1000 };

// A reader gets all fields. A writer fills the first four, and safetensors_layout sets the others.
typedef struct {
    const char* name;
    SafeDtype dtype;
    int ndim;                     // 0: a scalar, one element
    int64_t shape[SAFE_MAX_DIMS]; // a zero in it: no elements
    int64_t elements, bytes;
    int64_t offset; // from the beginning of the file, in bytes
} SafeTensor;

// The shape as Python writes it, but for (5,): "(50257, 768)", "(5)", "()". Returns text.
static inline const char* safetensors_shape_text(char* text, size_t size, const SafeTensor* tensor) {
    size_t n = (size_t)snprintf(text, size, "(");
    for (int i = 0; i < tensor->ndim && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%lld", i ? ", " : "", (long long)tensor->shape[i]);
    if (n < size) snprintf(text + n, size - n, ")");
    return text;
}

// Sets elements and bytes from shape and dtype. False if they do not fit int64, or do not fill whole bytes.
static inline bool safetensors_size(SafeTensor* tensor) {
    int64_t bits;
    tensor->elements = 1;
    for (int i = 0; i < tensor->ndim; i++)
        if (__builtin_mul_overflow(tensor->elements, tensor->shape[i], &tensor->elements)) return false;
    if (__builtin_mul_overflow(tensor->elements, safe_dtypes[tensor->dtype].bits, &bits)) return false;
    tensor->bytes = bits / 8;
    return bits % 8 == 0;
}

// ---- Reading one file -------------------------------------------------------------------------------------------

typedef struct {
    const char* path;
    const unsigned char* data; // the whole file
    MappedFile file;           // where it is mapped; empty if the caller owns the bytes
    Json header;
    SafeTensor* tensors; // in the order of their places
    int64_t count;
} SafeTensors;

static inline void safetensors_close(SafeTensors* st) {
    free(st->tensors);
    json_free(&st->header);
    file_unmap(&st->file);
    memset(st, 0, sizeof *st);
}

static inline int safe_compare_offsets(const void* a, const void* b) {
    const SafeTensor *x = (const SafeTensor*)a, *y = (const SafeTensor*)b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1; // empty ones before the tensor at the same offset
    return strcmp(x->name, y->name);
}

// "shape": an array of integers that are not negative.
static inline bool safe_parse_shape(SafeTensor* tensor, const JsonNode* shape, const Json* json, Error* error) {
    if (shape->count > SAFE_MAX_DIMS)
        return json_fail(json, shape, error, "tensor %s has %u dimensions; %d are the limit",
                         json_quoted(tensor->name).text, shape->count, SAFE_MAX_DIMS);
    for (const JsonNode* node = json_first(shape); node; node = json_next(node)) {
        if (node->type != JSON_INTEGER || node->value.integer < 0)
            return json_fail(json, node, error, "tensor %s: a dimension has to be an integer and not negative",
                             json_quoted(tensor->name).text);
        tensor->shape[tensor->ndim++] = node->value.integer;
    }
    return true;
}

// "data_offsets": [begin, end] inside the data, as many bytes as the tensor has.
static inline bool safe_parse_offsets(SafeTensor* tensor, const JsonNode* offsets, int64_t data_bytes, const Json* json,
                                      Error* error) {
    const JsonQuoted name = json_quoted(tensor->name);
    const JsonNode *first = json_first(offsets), *second = first ? json_next(first) : NULL;
    if (offsets->count != 2 || first->type != JSON_INTEGER || second->type != JSON_INTEGER)
        return json_fail(json, offsets, error, "tensor %s: data_offsets have to be two integers", name.text);
    const int64_t begin = first->value.integer, end = second->value.integer;
    if (begin < 0 || end < begin || end > data_bytes)
        return json_fail(json, offsets, error,
                         "tensor %s has bytes %lld to %lld of the data, but the file has %lld bytes of data; "
                         "download or write it again",
                         name.text, (long long)begin, (long long)end, (long long)data_bytes);
    if (end - begin != tensor->bytes) {
        char shape[256];
        return json_fail(json, offsets, error, "tensor %s has data_offsets for %lld bytes, but %s %s is %lld bytes",
                         name.text, (long long)(end - begin), safe_dtypes[tensor->dtype].name,
                         safetensors_shape_text(shape, sizeof shape, tensor), (long long)tensor->bytes);
    }
    tensor->offset = begin;
    return true;
}

// One member of the header. It sets an offset that counts from the beginning of the data.
static inline bool safe_parse_tensor(SafeTensor* tensor, const JsonNode* node, int64_t data_bytes, const Json* json,
                                     Error* error) {
    memset(tensor, 0, sizeof *tensor);
    tensor->name = node->name;
    const JsonQuoted name = json_quoted(node->name);
    if (strlen(node->name) != node->name_bytes)
        return json_fail(json, node, error, "tensor %s: a name must not contain a NUL character", name.text);
    const char* dtype = "";
    const JsonNode *shape = json_require(json, node, "shape", JSON_ARRAY, error), *offsets = NULL;
    if (shape) offsets = json_require(json, node, "data_offsets", JSON_ARRAY, error);
    if (!offsets || !json_get_string(&dtype, json, node, "dtype", error)) return false;
    int type = 0;
    while (type < SAFE_DTYPES && strcmp(safe_dtypes[type].name, dtype) != 0) type++;
    if (type == SAFE_DTYPES)
        return json_fail(json, node, error, "tensor %s: the dtype %s is not known", name.text, json_quoted(dtype).text);
    tensor->dtype = (SafeDtype)type;
    if (!safe_parse_shape(tensor, shape, json, error)) return false;
    if (!safetensors_size(tensor)) {
        char text[256];
        return json_fail(json, shape, error, "tensor %s: %s %s does not fit 2^63 bits, or is no number of whole bytes",
                         name.text, dtype, safetensors_shape_text(text, sizeof text, tensor));
    }
    return safe_parse_offsets(tensor, offsets, data_bytes, json, error);
}

// Checks that the tensors, sorted by place, fill the data end to end from the first byte to the last.
static inline bool safe_check_cover(const SafeTensors* st, int64_t data_bytes, Error* error) {
    int64_t end = 0;
    for (int64_t i = 0; i < st->count; i++) {
        const SafeTensor* tensor = &st->tensors[i];
        const JsonQuoted name = json_quoted(tensor->name);
        if (tensor->offset != end)
            return fail(error, "%s: tensor %s begins at byte %lld of the data, and what is before it ends at %lld",
                        st->path, name.text, (long long)tensor->offset, (long long)end);
        end += tensor->bytes;
    }
    if (end == data_bytes) return true;
    return fail(error, "%s: the last tensor ends at byte %lld of the data, but the file has %lld bytes of data",
                st->path, (long long)end, (long long)data_bytes);
}

// Reads and checks a file that is in memory, which has to stay there. On failure nothing has to be closed.
static inline bool safetensors_parse(SafeTensors* st, const char* path, const unsigned char* data, size_t size,
                                     Error* error) {
    memset(st, 0, sizeof *st);
    uint64_t n = 0;
    if (size > sizeof n) memcpy(&n, data, sizeof n);
    if (n == 0 || n > size - sizeof n || n > SAFE_MAX_HEADER || data[sizeof n] != '{')
        return fail(error,
                    "%s: not a safetensors file, or only the beginning of one; transformers' save_pretrained('FOLDER') "
                    "writes such files",
                    path);
    if (!json_parse(&st->header, path, data + sizeof n, (size_t)n, error)) return false;
    const Json* json = &st->header;
    const int64_t header_bytes = (int64_t)(sizeof n + n), data_bytes = (int64_t)size - header_bytes;
    st->path = json->path;
    st->tensors = (SafeTensor*)checked_malloc((json->nodes->count + 1) * sizeof *st->tensors, "a list of tensors");
    bool ok = true;
    for (const JsonNode* node = json_first(json->nodes); node && ok; node = json_next(node)) {
        if (!json_is_named(node, "__metadata__"))
            ok = safe_parse_tensor(&st->tensors[st->count++], node, data_bytes, json, error);
    }
    if (ok) qsort(st->tensors, (size_t)st->count, sizeof *st->tensors, safe_compare_offsets);
    if (!ok || !safe_check_cover(st, data_bytes, error)) {
        safetensors_close(st);
        return false;
    }
    for (int64_t i = 0; i < st->count; i++) st->tensors[i].offset += header_bytes;
    st->data = data;
    return true;
}

// Maps and checks a file. On failure nothing has to be closed.
static inline bool safetensors_open(SafeTensors* st, const char* path, Error* error) {
    memset(st, 0, sizeof *st);
    MappedFile file;
    if (!file_map(&file, path, error)) return false;
    const bool ok = safetensors_parse(st, path, file.data, file.size, error);
    if (ok)
        st->file = file;
    else
        file_unmap(&file);
    return ok;
}

// dst[0, count) = elements [first, first + count) of a tensor, as float32. Types other than F32, F16 and BF16 are an
// error.
static inline bool safetensors_read_f32(float* dst, const SafeTensors* st, const SafeTensor* tensor, int64_t first,
                                        int64_t count, Error* error) {
    if (first < 0 || count < 0 || first > tensor->elements || count > tensor->elements - first)
        return fail(error, "%s: elements %lld + %lld of tensor %s, which has %lld", st->path, (long long)first,
                    (long long)count, json_quoted(tensor->name).text, (long long)tensor->elements);
    const unsigned char* src = st->data + tensor->offset + first * (safe_dtypes[tensor->dtype].bits / 8);
    uint16_t half; // memcpy, as a foreign file's elements may be unaligned
    switch (tensor->dtype) {
    case SAFE_F32:
        if (count > 0) memcpy(dst, src, (size_t)count * sizeof *dst);
        return true;
    case SAFE_F16:
        for (int64_t i = 0; i < count; i++) memcpy(&half, src + 2 * i, 2), dst[i] = f16_to_f32(half);
        return true;
    case SAFE_BF16:
        for (int64_t i = 0; i < count; i++) memcpy(&half, src + 2 * i, 2), dst[i] = bf16_to_f32(half);
        return true;
    default:
        return fail(error, "%s: tensor %s is %s; only F32, F16 and BF16 are read", st->path,
                    json_quoted(tensor->name).text, safe_dtypes[tensor->dtype].name);
    }
}

// ---- Reading a model: one file, or several ----------------------------------------------------------------------

typedef struct {
    const SafeTensor* tensor;
    const SafeTensors* file;
} SafeTensorsEntry;

typedef struct {
    char* path; // as the caller named it
    SafeTensors* files;
    int64_t file_count;
    SafeTensorsEntry* entries; // sorted by name
    int64_t tensors;           // entries
} SafeTensorsModel;

static inline void safetensors_model_close(SafeTensorsModel* model) {
    for (int64_t i = 0; i < model->file_count; i++) safetensors_close(&model->files[i]);
    free(model->files);
    free(model->entries);
    free(model->path);
    memset(model, 0, sizeof *model);
}

// FOLDER/NAME, to be freed.
static inline char* safe_join(const char* folder, const char* name) {
    const size_t size = strlen(folder) + strlen(name) + 2;
    char* path = (char*)checked_malloc(size, "a path");
    snprintf(path, size, "%s/%s", folder, name);
    return path;
}

static inline int safe_compare_entries(const void* a, const void* b) {
    return strcmp(((const SafeTensorsEntry*)a)->tensor->name, ((const SafeTensorsEntry*)b)->tensor->name);
}

static inline bool safe_model_add_file(SafeTensorsModel* model, const char* path, Error* error) {
    const size_t n = (size_t)model->file_count;
    model->files = (SafeTensors*)checked_realloc(model->files, n + 1, sizeof *model->files, "safetensors files");
    if (!safetensors_open(&model->files[n], path, error)) return false;
    model->file_count++;
    return true;
}

// Lists the tensors of all files, which must not have two of the same name.
static inline bool safe_model_list(SafeTensorsModel* model, Error* error) {
    int64_t n = 0;
    for (int64_t i = 0; i < model->file_count; i++) n += model->files[i].count;
    model->entries = (SafeTensorsEntry*)checked_calloc((size_t)n, sizeof *model->entries, "names of tensors");
    for (int64_t i = 0; i < model->file_count; i++) {
        for (int64_t j = 0; j < model->files[i].count; j++) {
            SafeTensorsEntry* entry = &model->entries[model->tensors++];
            entry->tensor = &model->files[i].tensors[j];
            entry->file = &model->files[i];
        }
    }
    qsort(model->entries, (size_t)n, sizeof *model->entries, safe_compare_entries);
    for (int64_t i = 1; i < n; i++) {
        const SafeTensorsEntry *a = &model->entries[i - 1], *b = &model->entries[i];
        if (safe_compare_entries(a, b) == 0)
            return fail(error, "%.400s has tensor %s, and so has %.400s", a->file->path,
                        json_quoted(a->tensor->name).text, b->file->path);
    }
    return true;
}

// Opens the file that a member of "weight_map" names, in the same folder, unless it is open.
static inline bool safe_model_add_shard(SafeTensorsModel* model, const JsonNode* node, const Json* json, Error* error) {
    const char* name = json_is_plain_string(node) ? node->value.string : "";
    if (!*name || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return json_fail(json, node, error, "tensor %s: this has to be the name of a file in the same folder",
                         json_quoted(node->name).text);
    char* path = safe_join(model->path, name);
    bool ok = false;
    for (int64_t i = 0; i < model->file_count && !ok; i++) ok = strcmp(model->files[i].path, path) == 0;
    ok = ok || safe_model_add_file(model, path, error);
    free(path);
    return ok;
}

static inline bool safe_model_open_index(SafeTensorsModel* model, const char* path, Error* error) {
    Json json;
    if (!json_open(&json, path, error)) return false;
    const JsonNode* map = json_require(&json, json.nodes, "weight_map", JSON_OBJECT, error);
    bool ok = map && (map->count > 0 || json_fail(&json, map, error, "\"weight_map\" is empty"));
    for (const JsonNode* member = ok ? json_first(map) : NULL; member && ok; member = json_next(member))
        ok = safe_model_add_shard(model, member, &json, error);
    json_free(&json);
    return ok;
}

// Opens a folder with one file, or with an index and the files that it names.
static inline bool safe_model_open_folder(SafeTensorsModel* model, const char* folder, Error* error) {
    char *single = safe_join(folder, "model.safetensors"), *index = safe_join(folder, "model.safetensors.index.json");
    bool ok;
    if (access(single, F_OK) == 0)
        ok = safe_model_add_file(model, single, error);
    else if (access(index, F_OK) == 0)
        ok = safe_model_open_index(model, index, error);
    else
        ok = fail(error,
                  "%s: neither model.safetensors nor model.safetensors.index.json is in this folder; transformers' "
                  "save_pretrained('FOLDER') writes them, and OUT/best is a run's",
                  folder);
    free(single);
    free(index);
    return ok;
}

// Opens the file, or the folder, at path, and every file that belongs to it. On failure nothing has to be closed.
static inline bool safetensors_model_open(SafeTensorsModel* model, const char* path, Error* error) {
    memset(model, 0, sizeof *model);
    struct stat st;
    if (stat(path, &st) != 0) return fail(error, "%s: cannot open: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode)) return fail(error, "%s: neither a file nor a folder", path);
    model->path = checked_strdup(path, "a path");
    const bool folder = S_ISDIR(st.st_mode);
    if ((folder ? safe_model_open_folder(model, path, error) : safe_model_add_file(model, path, error)) &&
        safe_model_list(model, error))
        return true;
    safetensors_model_close(model);
    return false;
}

// The name of tensor i of model->tensors, in the order of strcmp.
static inline const char* safetensors_model_name(const SafeTensorsModel* model, int64_t i) {
    return model->entries[i].tensor->name;
}

// The tensor of this name, and in *file the file that it is in, for safetensors_read_f32; or NULL.
static inline const SafeTensor* safetensors_model_find(const SafeTensorsModel* model, const char* name,
                                                       const SafeTensors** file) {
    SafeTensor tensor;
    tensor.name = name;
    SafeTensorsEntry key = {&tensor, NULL};
    const SafeTensorsEntry* entry = (const SafeTensorsEntry*)bsearch(&key, model->entries, (size_t)model->tensors,
                                                                     sizeof key, safe_compare_entries);
    *file = entry ? entry->file : NULL;
    return entry ? entry->tensor : NULL;
}

// ---- Writing: the layout ----------------------------------------------------------------------------------------

typedef struct {
    const char *key, *value;
} SafeMetadata;

typedef struct {
    char* header;         // the file's first bytes: length and JSON
    int64_t header_bytes; // a multiple of 8: data begins here
    int64_t file_bytes;
} SafeTensorsLayout;

static inline void safetensors_layout_free(SafeTensorsLayout* file_layout) {
    free(file_layout->header);
    memset(file_layout, 0, sizeof *file_layout);
}

static inline void safe_write_tensor(FILE* out, const SafeTensor* tensor) {
    json_write_string(out, tensor->name);
    fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", safe_dtypes[tensor->dtype].name);
    for (int i = 0; i < tensor->ndim; i++) fprintf(out, "%s%lld", i ? "," : "", (long long)tensor->shape[i]);
    fprintf(out, "],\"data_offsets\":[%lld,%lld]}", (long long)tensor->offset,
            (long long)(tensor->offset + tensor->bytes));
}

// Writes the header: its length, JSON, and spaces up to a multiple of 8.
static inline bool safe_write_header(SafeTensorsLayout* file_layout, const SafeTensor* tensors, int64_t n,
                                     const SafeMetadata* metadata, int64_t metadata_count, Error* error) {
    size_t size = 0;
    uint64_t json_bytes = 0;
    FILE* out = open_memstream(&file_layout->header, &size);
    if (!out) return fail(error, "out of memory for a safetensors header");
    fwrite(&json_bytes, sizeof json_bytes, 1, out); // a placeholder
    fputc('{', out);
    if (metadata_count > 0) fputs("\"__metadata__\":{", out);
    for (int64_t i = 0; i < metadata_count; i++) {
        if (i > 0) fputc(',', out);
        json_write_string(out, metadata[i].key);
        fputc(':', out);
        json_write_string(out, metadata[i].value);
    }
    if (metadata_count > 0) fputs(n > 0 ? "}," : "}", out);
    for (int64_t i = 0; i < n; i++) {
        if (i > 0) fputc(',', out);
        safe_write_tensor(out, &tensors[i]);
    }
    fputc('}', out);
    for (long at = ftell(out); at % 8 != 0; at++) fputc(' ', out);
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) return fail(error, "out of memory for a safetensors header");
    json_bytes = size - sizeof json_bytes;
    memcpy(file_layout->header, &json_bytes, sizeof json_bytes);
    file_layout->header_bytes = (int64_t)size;
    return true;
}

// Computes the layout of a file with these n tensors, whose name (UTF-8, each once), dtype, ndim and shape are given,
// and sets their elements, bytes and offset. The same arguments give the same layout everywhere. Refuses sizes beyond
// int64 and a header beyond 100 MB. On failure nothing has to be freed.
static inline bool safetensors_layout(SafeTensorsLayout* file_layout, SafeTensor* tensors, int64_t n,
                                      const SafeMetadata* metadata, int64_t metadata_count, Error* error) {
    memset(file_layout, 0, sizeof *file_layout);
    for (int64_t i = 0; i < n; i++) {
        if (!safetensors_size(&tensors[i]))
            return fail(error, "tensor %s cannot be written: its size is not possible", tensors[i].name);
    }
    int64_t end = 0;
    // Wide elements first, as in Hugging Face's writer: then each is at a multiple of its size without padding.
    for (int bits = 64; bits > 0; bits--)
        for (int64_t i = 0; i < n; i++) {
            if (safe_dtypes[tensors[i].dtype].bits != bits) continue;
            tensors[i].offset = end;
            if (__builtin_add_overflow(end, tensors[i].bytes, &end))
                return fail(error, "tensor %s: the file becomes larger than 2^63 bytes", tensors[i].name);
        }
    bool ok = safe_write_header(file_layout, tensors, n, metadata, metadata_count, error);
    if (ok && __builtin_add_overflow(end, file_layout->header_bytes, &file_layout->file_bytes))
        ok = fail(error, "the file becomes larger than 2^63 bytes");
    for (int64_t i = 0; i < n; i++) tensors[i].offset += file_layout->header_bytes;
    if (ok && file_layout->header_bytes - 8 > SAFE_MAX_HEADER)
        ok = fail(error, "a safetensors header of %lld bytes; the format allows %d",
                  (long long)file_layout->header_bytes, SAFE_MAX_HEADER);
    if (!ok) safetensors_layout_free(file_layout);
    return ok;
}

// ---- Writing: the bytes -----------------------------------------------------------------------------------------

typedef struct {
    int fd;
    const char* path; // the caller's
    int64_t bytes;
} SafeTensorsFile;

// Fails with the reason and a remedy.
static inline bool safe_write_failed(const SafeTensorsFile* file, const char* what, int code, Error* error) {
    char advice[128] = "";
    if (code == ENOSPC || code == EDQUOT)
        snprintf(advice, sizeof advice, "; the whole file has %lld bytes: free some, or write elsewhere",
                 (long long)file->bytes);
    return fail(error, "%s: cannot %s: %s%s", file->path, what, strerror(code), advice);
}

// Reserves the space of the whole file now, so that a full disk is reported before the work and not during it.
static inline bool safe_reserve(const SafeTensorsFile* file, Error* error) {
    int result = -1;
#ifdef __linux__
    do result = fallocate(file->fd, 0, 0, (off_t)file->bytes);
    while (result != 0 && errno == EINTR);
#else
    errno = EOPNOTSUPP;
#endif
    // Not every file system can reserve space. There the file only gets its size, and a full disk is found later.
    // (posix_fallocate would write to every block instead, which on a network file system is the whole file.)
    if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) result = ftruncate(file->fd, (off_t)file->bytes);
    return result == 0 || safe_write_failed(file, "reserve space", errno, error);
}

// Writes bytes at an offset in the file.
static inline bool safetensors_write_at(const SafeTensorsFile* file, int64_t offset, const void* data, int64_t bytes,
                                        Error* error) {
    if (offset < 0 || bytes < 0 || offset > file->bytes || bytes > file->bytes - offset)
        return fail(error, "%s: %lld bytes at %lld are outside the file's %lld", file->path, (long long)bytes,
                    (long long)offset, (long long)file->bytes);
    for (const char* from = (const char*)data; bytes > 0;) {
        const ssize_t n = pwrite(file->fd, from, (size_t)bytes, (off_t)offset); // Linux writes at most 2 GB at once
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return safe_write_failed(file, "write", n < 0 ? errno : ENOSPC, error);
        from += n;
        offset += n;
        bytes -= n;
    }
    return true;
}

// Creates the file, or empties it, with its header and its final size. Of the processes that write one file, one does
// this, before the others join. On failure the file is removed.
static inline bool safetensors_create(SafeTensorsFile* file, const char* path, const SafeTensorsLayout* file_layout,
                                      Error* error) {
    file->path = path;
    file->bytes = file_layout->file_bytes;
    file->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file->fd < 0) return safe_write_failed(file, "create", errno, error);
    if (safe_reserve(file, error) &&
        safetensors_write_at(file, 0, file_layout->header, file_layout->header_bytes, error))
        return true;
    close(file->fd);
    unlink(path);
    file->fd = -1;
    return false;
}

// Opens a file that another process has created from the same layout.
static inline bool safetensors_join(SafeTensorsFile* file, const char* path, const SafeTensorsLayout* file_layout,
                                    Error* error) {
    struct stat st = {};
    file->path = path;
    file->bytes = file_layout->file_bytes;
    file->fd = open(path, O_WRONLY | O_CLOEXEC);
    if (file->fd < 0) return safe_write_failed(file, "open", errno, error);
    if (fstat(file->fd, &st) == 0 && (int64_t)st.st_size == file->bytes) return true;
    close(file->fd);
    file->fd = -1;
    return fail(error, "%s: has %lld bytes and should have %lld; do all ranks see the same file system?", path,
                (long long)st.st_size, (long long)file->bytes);
}

// Flushes the file to the disk and closes it; it is closed on failure, too.
static inline bool safetensors_finish(SafeTensorsFile* file, Error* error) {
    const int failed = fsync(file->fd) == 0 ? 0 : errno;
    close(file->fd);
    file->fd = -1;
    return !failed || safe_write_failed(file, "flush to the disk", failed, error);
}
