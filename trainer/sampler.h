/*
trainer/sampler.h: draws the next token from its logits (sample_token).

Theory: with V logits z, a temperature D, top-k K and top-p P, in the order of Hugging Face's library:

    1. D = 0: the token with the largest logit, of equal ones the one with the lowest number; no further steps.
    2. Weights w_i = exp((z_i - max z) / D): softmax(z / D) without the division by its sum.
    3. top-k    keeps the K tokens with the largest logits. K = 0: all.
    4. top-p    keeps the fewest of the most likely of these whose weights add up to P of their sum, at least one
                ("nucleus sampling", Holtzman et al. 2020, section 3.1). P = 1: all.
    5. A number u in [0, 1) draws the first token, in the order of their numbers, at which the running sum of the kept
       weights exceeds u times their sum.

Of equal logits the lower number counts as the more likely. So 3 and 4 keep the head of one order, however many are
equal (the library keeps all that equal the K-th). The token is a pure function of logits and u: every rank with the
same logits draws the same. Weights and sums are float64.

A token with logit -inf is never drawn. If one is +inf only such are. A NaN, or nothing but -inf, is no distribution:
the result is -1.

Time: one exp a token, and with 3 or 4 a sort of all V.
*/
#pragma once

#include "../util/base.h"

typedef struct {
    double temperature, top_p; // 0: greedy; 1: all
    int64_t top_k;             // 0: all
} Sampling;

// A token as 3 and 4 order them.
typedef struct {
    double weight;
    float logit;
    int32_t token;
} Candidate;

// For qsort: the more likely one first; the lower number first.
static inline int compare_likelihood(const void* a, const void* b) {
    const Candidate *x = (const Candidate*)a, *y = (const Candidate*)b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}
static inline int compare_number(const void* a, const void* b) {
    return ((const Candidate*)a)->token < ((const Candidate*)b)->token ? -1 : 1;
}

// The most likely token; -1: there is no distribution.
static inline int32_t likeliest_token(const float* logits, int V) {
    int32_t best = 0;
    bool is_number = true;
    for (int32_t i = 0; i < V; i++) {
        is_number = is_number && !isnan(logits[i]);
        if (logits[i] > logits[best]) best = i;
    }
    return is_number && logits[best] > -INFINITY ? best : -1;
}

// Moves the tokens that top-k and top-p keep to the front of the list of all V, ordered by number; returns how many.
static inline int keep_likely(Candidate* list, const Sampling* how, int V) {
    const int most = how->top_k > 0 && how->top_k < V ? (int)how->top_k : V;
    double sum = 0, head = 0;
    int n = 0;
    qsort(list, (size_t)V, sizeof *list, compare_likelihood);
    for (int i = 0; i < most; i++) sum += list[i].weight;
    while (n < most && (how->top_p >= 1 || head < how->top_p * sum)) head += list[n++].weight;
    qsort(list, (size_t)n, sizeof *list, compare_number);
    return n;
}

// Draws with u in [0, 1). list: memory for V candidates. -1: the logits are no distribution.
static inline int32_t sample_token(const Sampling* how, const float* logits, int V, double u, Candidate* list) {
    const int32_t best = likeliest_token(logits, V);
    if (best < 0 || how->temperature == 0) return best;
    const bool all = (how->top_k == 0 || how->top_k >= V) && how->top_p >= 1;
    double sum = 0, running = 0;
    for (int i = 0; i < V; i++) { // inf - inf would be no number
        const double below = logits[i] == logits[best] ? 0 : (double)logits[i] - (double)logits[best];
        const Candidate candidate = {exp(below / how->temperature), logits[i], i};
        list[i] = candidate;
    }
    const int n = all ? V : keep_likely(list, how, V);
    for (int i = 0; i < n; i++) sum += list[i].weight;
    for (int i = 0; i < n; i++) {
        running += list[i].weight;
        if (running > u * sum) return list[i].token;
    }
    return best; // top-p 0, or u sum was rounded up to sum
}
