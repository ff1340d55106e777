/*
checkpoint/llmc_format.h: reads and writes llm.c's weights (gpt2_124M.bin and others) as files of tensors with Hugging
Face's names.

    llmc_open           opens a file as safetensors_model_open opens a folder
    llmc_file_layout    the layout of a file to write, as safetensors_layout

Theory. The format (llm.c, train_gpt2.py, write_model):

    1024 bytes   256 int32: 20240326; version, 3 = float32 or 5 = bf16; positions, V, L, NH, C, V with padding; zeros
    the rest     the 16 kinds of tensors of a GPT-2, one kind after the other, each for all layers: wte (Vp, C), wpe (T,
                 C), then ln_1 w and b (L, C), qkv w (L, 3C, C) and b (L, 3C), attn.c_proj w (L, C, C) and b, ln_2, c_fc
                 w (L, 4C, C) and b (L, 4C), mlp.c_proj w (L, C, 4C) and b; ln_f w and b (C)

This is the order of TensorKind in model.h. Every matrix is (out, in), as in memory, while Hugging Face's GPT-2 files
have (in, out): the caller marks the slices' tensors as not transposed. The rows that pad the vocabulary are written as
zeros and not read.

Files are untrusted input: the sizes in the header have to make a model, and the file has to have exactly their bytes.
*/
#pragma once

#include "hf_config.h"
#include "safetensors.h"

enum { LLMC_MAGIC = 20240326, LLMC_FLOAT32 = 3, LLMC_BF16 = 5, LLMC_HEADER_BYTES = 1024, LLMC_PADDED_TO = 128 };

// Whether the file at path begins with llm.c's magic number.
static inline bool llmc_is_file(const char* path) {
    int32_t magic = 0;
    struct stat st;
    const bool regular = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    FILE* in = regular ? fopen(path, "rb") : NULL;
    const bool is = in && fread(&magic, sizeof magic, 1, in) == 1 && magic == LLMC_MAGIC;
    if (in) fclose(in);
    return is;
}

// Sets the offsets in bytes of n tensors (list[i] of tensors[i]) in a file; returns where the last one ends.
static inline int64_t llmc_place(SafeTensor* list, const Tensor* tensors, int n, int padded_V, SafeDtype dtype) {
    int64_t end = LLMC_HEADER_BYTES;
    for (int kind = 0; kind < TENSOR_KINDS; kind++)
        for (int i = 0; i < n; i++) {
            if ((int)tensors[i].kind != kind) continue;
            SafeTensor* tensor = &list[i];
            tensor->name = tensors[i].name;
            tensor->dtype = dtype;
            tensor->ndim = tensors[i].vector ? 1 : 2;
            tensor->shape[0] = tensors[i].rows;
            tensor->shape[1] = tensors[i].cols;
            safetensors_size(tensor);
            tensor->offset = end;
            end += kind == WTE ? tensor->bytes / tensors[i].rows * padded_V : tensor->bytes;
        }
    return end;
}

// Reads the shape that a header describes.
static inline bool llmc_read_header(ModelConfig* model, int* padded_V, SafeDtype* dtype, const char* path,
                                    const MappedFile* file, Error* error) {
    int32_t word[8] = {0};
    if (file->size < LLMC_HEADER_BYTES)
        return fail(error, "%s: has %zu bytes, llm.c's weights have a header of %d", path, file->size,
                    LLMC_HEADER_BYTES);
    memcpy(word, file->data, sizeof word);
    if (word[0] != LLMC_MAGIC)
        return fail(error, "%s: begins with %d, and llm.c's weights with %d", path, word[0], LLMC_MAGIC);
    if (word[1] != LLMC_FLOAT32 && word[1] != LLMC_BF16)
        return fail(error, "%s: is of llm.c's version %d; 3 (float32) and 5 (bf16) are read", path, word[1]);
    *dtype = word[1] == LLMC_FLOAT32 ? SAFE_F32 : SAFE_BF16;
    const struct {
        const char* name;
        int value, most;
    } sizes[] = {{"positions", word[2], 1 << 24}, {"tokens in the vocabulary", word[3], 1 << 30},
                 {"layers", word[4], 10000},      {"heads", word[5], 1 << 16},
                 {"channels", word[6], 1 << 20},  {"tokens in the padded vocabulary", word[7], 1 << 30}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].most)
            return fail(error, "%s: its header says %d %s; it can be 1 to %d", path, sizes[i].value, sizes[i].name,
                        sizes[i].most);
    }
    if (word[7] < word[3])
        return fail(error, "%s: its header says %d tokens in the vocabulary, padded to %d", path, word[3], word[7]);
    *model = model_gpt2(word[4], word[6], word[5], word[2], word[3]);
    model->name = config_known_name(model);
    *padded_V = word[7];
    Error why;
    return model_check(model, &why) || fail(error, "%s: %.512s", path, why.text);
}

// The list of a model's tensors, to be freed; *n: how many.
static inline Tensor* llmc_tensors(const ModelConfig* model, int* n) {
    *n = model_tensors(NULL, model);
    Tensor* list = (Tensor*)checked_malloc((size_t)*n * sizeof *list, "the list of tensors");
    model_tensors(list, model);
    return list;
}

// The tensors of a file whose header was read, sorted by name; their names are file->header's.
static inline bool llmc_list(SafeTensors* file, const ModelConfig* model, int padded_V, SafeDtype dtype, Error* error) {
    int n;
    Tensor* tensors = llmc_tensors(model, &n);
    const size_t room = sizeof tensors->name;
    file->tensors = (SafeTensor*)checked_calloc((size_t)n, sizeof *file->tensors, "the list of tensors");
    file->header.strings = (char*)checked_calloc((size_t)n, room, "names of tensors");
    const int64_t bytes = llmc_place(file->tensors, tensors, n, padded_V, dtype);
    for (int i = 0; i < n; i++) {
        char* name = file->header.strings + (size_t)i * room;
        memcpy(name, tensors[i].name, room);
        file->tensors[i].name = name;
    }
    free(tensors);
    file->count = n;
    qsort(file->tensors, (size_t)n, sizeof *file->tensors, safe_compare_names);
    return bytes == (int64_t)file->file.size ||
           fail(error, "%s: has %zu bytes, and a model of its sizes %lld: cut off, or not written by llm.c", file->path,
                file->file.size, (long long)bytes);
}

// Opens llm.c's weights; *m: their shape. On failure nothing has to be closed.
static inline bool llmc_open(SafeTensorsModel* model, ModelConfig* config, const char* path, Error* error) {
    int padded_V = 0;
    SafeDtype dtype = SAFE_F32;
    memset(model, 0, sizeof *model);
    model->files = (SafeTensors*)checked_calloc(1, sizeof *model->files, "a file of weights");
    model->path = checked_strdup(path, "a path");
    SafeTensors* file = model->files;
    model->file_count = 1;
    file->path = model->path;
    bool ok = file_map(&file->file, path, error);
    file->data = file->file.data;
    ok = ok && llmc_read_header(config, &padded_V, &dtype, path, &file->file, error) &&
         llmc_list(file, config, padded_V, dtype, error);
    if (ok)
        safe_model_list(model);
    else
        safetensors_model_close(model);
    return ok;
}

// Refuses a model that llm.c's format cannot hold.
static inline bool llmc_check(const ModelConfig* model, Error* error) {
    if (strcmp(architectures[model->arch].model_type, "gpt2") != 0 || model->activation != ACTIVATION_GELU)
        return fail(error, "llm.c's files hold a gpt2, and this is a %s", model_arch_name(model->arch));
    if (!model->tied) return fail(error, "llm.c's models have one matrix for embedding and head, and this one has two");
    if (model->F != 4 * model->C)
        return fail(error, "llm.c's models have 4 x %d channels inside the mlp, and this one has %d", model->C,
                    model->F);
    return model->eps == 1e-5 || fail(error, "llm.c's norms add 1e-5 to the variance, and this model's %g", model->eps);
}

// Computes the layout of a file, as float32 or bf16: its header, its size, and in list (model_tensors(NULL, model))
// where the tensors are, in the model's order. On failure nothing has to be freed.
static inline bool llmc_file_layout(SafeTensorsLayout* file_layout, SafeTensor* list, const ModelConfig* model,
                                    SafeDtype dtype, Error* error) {
    if (!llmc_check(model, error)) return false;
    const int padded_V = (int)round_up((size_t)model->V, LLMC_PADDED_TO);
    const int32_t word[8] = {
        LLMC_MAGIC, dtype == SAFE_F32 ? LLMC_FLOAT32 : LLMC_BF16, model->T, model->V, model->L, model->NH, model->C,
        padded_V};
    int n;
    Tensor* tensors = llmc_tensors(model, &n);
    file_layout->header_bytes = LLMC_HEADER_BYTES;
    file_layout->header = (char*)checked_calloc(1, LLMC_HEADER_BYTES, "a header");
    memcpy(file_layout->header, word, sizeof word);
    file_layout->file_bytes = llmc_place(list, tensors, n, padded_V, dtype);
    for (int i = 0; i < n; i++) list[i].name = NULL; // the names belong to the model's list
    free(tensors);
    return true;
}
