/*
trainer/sampler.h: draws the next token from its logits (sampling_open, sample_token, sampling_close).

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

Time: only the head of the order is needed, so nothing is sorted: a heap of all V takes O(V) to build and O(log V) for
each kept token. Without 3 and 4 there is no heap, and one exp a token.
*/
#pragma once

#include "../util/base.h"

typedef struct {
    double temperature, top_p; // 0: greedy; 1: all
    int64_t top_k;             // 0: all
} Sampling;

// Working memory: V weights, and V token numbers.
typedef struct {
    double* weight;
    int32_t* heap;
} SamplingMemory;

static inline SamplingMemory sampling_open(int V) {
    SamplingMemory m;
    m.weight = (double*)checked_malloc((size_t)V * sizeof(double), "the next token");
    m.heap = (int32_t*)checked_malloc((size_t)V * sizeof(int32_t), "the next token");
    return m;
}

static inline void sampling_close(SamplingMemory* m) { free(m->weight), free(m->heap); }

// Whether token a is before b in the order of likelihood.
static inline bool more_likely(const float* logits, int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
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

// Sinks the token at place i of a heap of n until none below it is more likely.
static inline void heap_sink(int32_t* heap, int n, int i, const float* logits) {
    const int32_t token = heap[i];
    for (int child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && more_likely(logits, heap[child + 1], heap[child])) child++;
        if (more_likely(logits, token, heap[child])) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = token;
}

// Moves the most likely of n tokens to the end, after the n - 1 that are left.
static inline int32_t heap_take(int32_t* heap, int n, const float* logits) {
    const int32_t token = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = token;
    heap_sink(heap, n - 1, 0, logits);
    return token;
}

// The least likely token that top-k and top-p keep; all more likely ones are kept too.
static inline int32_t last_that_stays(const Sampling* how, const float* logits, int V, const SamplingMemory* m) {
    const int most = how->top_k > 0 && how->top_k < V ? (int)how->top_k : V;
    double sum = 0, head = 0;
    for (int i = 0; i < V; i++) m->heap[i] = i;
    for (int i = V / 2 - 1; i >= 0; i--) heap_sink(m->heap, V, i, logits);
    if (most == V) {
        for (int i = 0; i < V; i++) sum += m->weight[i];
    } else { // the tokens taken off are at the end of the array, the last first
        for (int n = V; n > V - most; n--) sum += m->weight[heap_take(m->heap, n, logits)];
        if (how->top_p >= 1) return m->heap[V - most];
    }
    int32_t token = 0;
    for (int taken = 0; taken < most && (taken == 0 || head < how->top_p * sum); taken++) {
        token = most == V ? heap_take(m->heap, V - taken, logits) : m->heap[V - 1 - taken];
        head += m->weight[token];
    }
    return token;
}

// Draws with u in [0, 1). -1: the logits are no distribution.
static inline int32_t sample_token(const Sampling* how, const float* logits, int V, double u, const SamplingMemory* m) {
    const int32_t best = likeliest_token(logits, V);
    if (best < 0 || how->temperature == 0) return best;
    const bool all = (how->top_k == 0 || how->top_k >= V) && how->top_p >= 1;
    const double largest = (double)logits[best];
    double sum = 0, running = 0;
    for (int i = 0; i < V; i++) // inf - inf would be no number
        m->weight[i] = logits[i] == logits[best] ? 1 : exp(((double)logits[i] - largest) / how->temperature);
    const int32_t last = all ? -1 : last_that_stays(how, logits, V, m);
    for (int i = 0; i < V; i++) {
        if (!all && i != last && !more_likely(logits, i, last)) m->weight[i] = 0;
        sum += m->weight[i];
    }
    for (int i = 0; i < V; i++) {
        running += m->weight[i];
        if (running > u * sum) return i;
    }
    return best; // u sum was rounded up to sum
}
