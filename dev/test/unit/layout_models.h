// layout_models.h: the models and meshes that the tests of parallel.h share.
#pragma once

#include "../../../parallel.h"
#include "test.h"

enum { MODELS = 5 };

static inline void test_models(ModelConfig models[MODELS]) {
    static const char* const names[] = {"gpt2 tied", "gpt2 untied", "llama untied", "llama tied",
                                        "llama, one key/value head"};
    const ModelConfig made[MODELS] = {
        model_of(ARCH_GPT2, 5, 24, 12, 12, 48, 8, 21), model_of(ARCH_GPT2, 4, 32, 16, 16, 32, 8, 19),
        model_of(ARCH_LLAMA, 4, 32, 8, 2, 48, 8, 23), model_of(ARCH_LLAMA, 3, 24, 12, 4, 24, 8, 50),
        model_of(ARCH_LLAMA, 2, 30, 15, 1, 15, 8, 9)};
    for (int i = 0; i < MODELS; i++) {
        models[i] = made[i];
        models[i].name = names[i];
        models[i].tied = i != 1 && i != 2;
    }
}

// Makes it one of a CAAT-Net with N states.
static inline ParallelConfig with_states(ParallelConfig parallel, int N, double share) {
    parallel.caat.ranks = N;
    parallel.caat.fraction = share;
    return parallel;
}
