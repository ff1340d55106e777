/*
targets.h: what the cross entropy compares logits with, on every device.
*/
#pragma once

#include <stdint.h>

// The token that each of N rows should predict; -1: the row is ignored, its loss and gradient are 0.
typedef struct {
    const int32_t* token; // (N)
    float scale;          // the factor on the gradient of the losses; 0: none is made
} Targets;

// The slice of the vocabulary that logits (N, stride) are of: a row is `stride` numbers, of which the first `used` are
// the logits of tokens first, first + 1, ...; the rest is padding.
typedef struct {
    int first, used, stride;
} VocabSlice;
