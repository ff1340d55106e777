// find_tensor.h: finds a tensor of one safetensors file by its name.
#pragma once

#include "../../../checkpoint/safetensors.h"

// The tensor of this name, or NULL.
static inline const SafeTensor* safetensors_find(const SafeTensors* st, const char* name) {
    for (int64_t i = 0; i < st->count; i++)
        if (strcmp(st->tensors[i].name, name) == 0) return &st->tensors[i];
    return NULL;
}
