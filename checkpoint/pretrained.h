/*
checkpoint/pretrained.h: weights to start from (--init): a safetensors file, or a folder with one or with shards and
their index. Names and shapes are Hugging Face's.

    checkpoint_find_weights   whether there are weights; the error names a remedy
    checkpoint_model          the shape of the model, from config.json
    checkpoint_init           reads this rank's slices
    checkpoint_sample         a fingerprint of the weights, for ranks to compare
*/
#pragma once

#include "checkpoint.h"

// Whether a tensor of published files is not a weight of the model: a constant, or the copy of a tied embedding.
static inline bool checkpoint_ignores(const char* name, const ModelConfig* model) {
    static const char* constants[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++) {
        if (name_ends_with(name, constants[i])) return true;
    }
    return model->tied && strcmp(name, "lm_head.weight") == 0;
}

// The logical name of a file's tensor. Some files of the hub omit the first part: "wte.weight" is
// transformer.wte.weight.
static inline void checkpoint_logical_name(char* name, size_t size, const char* in_file, const char* prefix) {
    const bool complete = strncmp(in_file, prefix, strlen(prefix)) == 0 || strcmp(in_file, "lm_head.weight") == 0;
    snprintf(name, size, "%s%s", complete ? "" : prefix, in_file);
}

// Every tensor of a file has to be one of the model's; otherwise the file belongs to another model.
static inline bool checkpoint_check_names(const SafeTensorsModel* file, const ModelConfig* model, const char* prefix,
                                          Error* error) {
    const int n = model_tensors(NULL, model);
    Tensor* list = (Tensor*)checked_malloc((size_t)n * sizeof(Tensor), "the list of tensors");
    model_tensors(list, model);
    bool ok = true;
    for (int64_t t = 0; t < file->tensors && ok; t++) {
        char name[256];
        const char* in_file = safetensors_model_name(file, t);
        checkpoint_logical_name(name, sizeof name, in_file, prefix);
        int i = 0;
        while (i < n && strcmp(list[i].name, name) != 0) i++;
        if (i == n && !checkpoint_ignores(name, model)) {
            ok = fail(error,
                      "%.512s has %s, which the model does not have; is it the model that --model and the sizes say?",
                      file->path, in_file);
        }
    }
    free(list);
    return ok;
}

// The shape of the weights to start from, by a folder's config.json. A safetensors file, and a folder without
// config.json, do not have it (*known).
static inline bool checkpoint_model(ModelConfig* model, bool* known, const char* path, Error* error) {
    char* config = safe_join(path, "config.json");
    *known = access(config, F_OK) == 0;
    const bool ok = !*known || config_read(model, config, error);
    free(config);
    return ok;
}

// Whether there are weights to start from at path (looks: and they can be opened). If not, the error has the remedy.
static inline bool checkpoint_find_weights(const char* path, bool looks, Error* error) {
    SafeTensorsModel file;
    if (access(path, F_OK) != 0)
        return fail(error,
                    "--init %.300s: cannot open: %s; models of huggingface.co are fetched by: pip install "
                    "huggingface_hub && hf download OWNER/NAME --local-dir NAME",
                    path, strerror(errno));
    if (!looks) return true;
    if (!safetensors_model_open(&file, path, error)) return false;
    safetensors_model_close(&file);
    return true;
}

// Writes a fingerprint of the weights, for ranks to compare: a checksum of the first values of every tensor. (Names and
// shapes are compared with the model's.) It reads little, so that every rank can read all files.
static inline bool checkpoint_sample(char* text, size_t size, const char* path, Error* error) {
    enum { SAMPLE_BYTES = 4096 };
    SafeTensorsModel file;
    if (!safetensors_model_open(&file, path, error)) return false;
    uint64_t sum = 0;
    for (int64_t i = 0; i < file.tensors; i++) {
        const SafeTensor* tensor = file.entries[i].tensor;
        const int64_t n = min_i64(SAMPLE_BYTES, tensor->bytes);
        sum += checksum_of(file.entries[i].file->data + tensor->offset, n, i * SAMPLE_BYTES);
    }
    snprintf(text, size, "%lld tensors, checksum %016llx", (long long)file.tensors, (unsigned long long)sum);
    safetensors_model_close(&file);
    return true;
}

// Reads this rank's slices of the weights to start from. params (layout->elements) are zeroed by the caller; padding
// stays zero.
static inline bool checkpoint_init(const char* path, const ModelConfig* model, const Layout* layout, float* params,
                                   Error* error) {
    SafeTensorsModel file;
    if (!safetensors_model_open(&file, path, error)) return false;
    const char* prefix = model->hub == HUB_GPT2 ? "transformer." : "model.";
    const SafeTensors* st;
    bool ok = checkpoint_check_names(&file, model, prefix, error);
    for (int i = 0; i < layout->n && ok; i++) {
        const Slice* slice = &layout->slices[i];
        const char* name = slice->tensor.name;
        const bool bare = !safetensors_model_find(&file, name, &st) && strncmp(name, prefix, strlen(prefix)) == 0;
        ok = slice_read(params + slice->offset, &file, bare ? name + strlen(prefix) : name, slice, error);
    }
    safetensors_model_close(&file);
    return ok;
}
