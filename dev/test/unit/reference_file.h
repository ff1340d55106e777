/*
reference_file.h: a safetensors file of what a step of a model has computed, tensor by tensor, for test_gpt.c to compare
another build with.
*/
#pragma once

#include "one_rank.h"

typedef struct {
    SafeTensor* tensor;
    void** data; // of each, freed at the end
    int n;
} ReferenceFile;

static void file_add(ReferenceFile* f, const char* prefix, const char* name, SafeDtype dtype, int ndim,
                     const int64_t* shape, void* data) {
    f->tensor = (SafeTensor*)checked_realloc(f->tensor, (size_t)f->n + 1, sizeof *f->tensor, "test");
    f->data = (void**)checked_realloc(f->data, (size_t)f->n + 1, sizeof *f->data, "test");
    char* whole = (char*)checked_malloc(strlen(prefix) + strlen(name) + 1, "test");
    strcat(strcpy(whole, prefix), name);
    SafeTensor* t = &f->tensor[f->n];
    memset(t, 0, sizeof *t);
    t->name = whole;
    t->dtype = dtype;
    t->ndim = ndim;
    memcpy(t->shape, shape, (size_t)ndim * sizeof *shape);
    f->data[f->n++] = data;
}

// All tensors of a buffer laid out like the parameters, as files have them.
static void file_add_all(ReferenceFile* f, const Stage* s, const char* prefix, const float* buffer) {
    for (int i = 0; i < s->layout.n; i++) {
        const Slice* slice = &s->layout.slices[i];
        int64_t shape[2];
        const int ndim = tensor_file_shape(shape, &slice->tensor);
        float* out = (float*)checked_malloc((size_t)(shape[0] * (ndim > 1 ? shape[1] : 1)) * sizeof(float), "test");
        for (int64_t k = 0; k < slice_runs(slice); k++) {
            const Run run = slice_run(slice, k);
            for (int64_t j = 0; j < run.count; j++)
                out[run.file + j] = buffer[slice->offset + run.local + j * run.stride];
        }
        file_add(f, prefix, slice->tensor.name, SAFE_F32, ndim, shape, out);
    }
}

// Writes the file, and frees its parts.
static void reference_file_write(ReferenceFile* f, const char* path, const SafeMetadata* metadata, int count) {
    SafeTensorsLayout plan;
    SafeTensorsFile file;
    Error error;
    if (!safetensors_layout(&plan, f->tensor, f->n, metadata, count, &error) ||
        !safetensors_create(&file, path, &plan, &error))
        die("%s", error.text);
    for (int i = 0; i < f->n; i++) {
        if (!safetensors_write_at(&file, f->tensor[i].offset, f->data[i], f->tensor[i].bytes, &error))
            die("%s", error.text);
        free((void*)f->tensor[i].name);
        free(f->data[i]);
    }
    if (!safetensors_finish(&file, &error)) die("%s", error.text);
    safetensors_layout_free(&plan);
    free(f->tensor);
    free(f->data);
}
