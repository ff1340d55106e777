/*
parallel/kv_cache.h: generation: keys and values of the text so far, (layers, streams, T, 2 NKV HS), on every rank those
of its heads.
*/
#pragma once

#include "stage.h"

// The cache of one stream of a layer.
static inline floatX* kv_cache(const Stage* stage, int layer, int stream) {
    return stage->cache + ((int64_t)layer * stage->layout.streams + stream) * kv_cache_layer_elements(stage);
}

// The beginning of a text, read at once: its keys and values go into the cache.
static inline void kv_cache_fill(const Pass* pass, int layer) {
    const Stage* stage = pass->stage;
    const Activations* acts = pass->acts;
    const int NH = stage->layout.NH, NKV = stage->layout.NKV, HS = model_head_size(&stage->model);
    for (int i = 0; i < stage->layout.streams; i++) {
        const floatX* qkv = layer_acts(acts, layer)->qkv + (int64_t)i * acts->tokens * qkv_size(stage);
        attention_fill_cache(kv_cache(stage, layer, i), qkv, acts->T, NH, NKV, HS);
    }
}

// Attention of one token, the one at position acts->first, to itself and to the tokens before it.
static inline void kv_cache_attend(const Pass* pass, int layer) {
    const Stage* stage = pass->stage;
    const int NH = stage->layout.NH, NKV = stage->layout.NKV, HS = model_head_size(&stage->model);
    const LayerActivations* y = layer_acts(pass->acts, layer);
    for (int i = 0; i < stage->layout.streams; i++) {
        const floatX* qkv = y->qkv + (int64_t)i * qkv_size(stage);
        attention_decode(y->attention + (int64_t)i * NH * HS, kv_cache(stage, layer, i), qkv, pass->acts->first, NH,
                         NKV, HS);
    }
}
