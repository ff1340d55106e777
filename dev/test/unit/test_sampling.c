/*
trainer/sampler.h against its own words, written down slowly: the order by qsort, sums in long double. What stays is
found by drawing at many u; where a sum meets a border within 1e-12 rounding may decide, and nothing is said (such cases
are counted, and few).

How often tokens are drawn is compared with their probabilities by chi-square: the sum over tokens of (count -
expected)^2 / expected has the mean df, the number of tokens less one, and the variance 2 df. The seeds are fixed; a
right sampler is below df + 5 sqrt(2 df) for all but one of some 100,000 seeds. And extreme logits, by hand.
*/
#include "../../../trainer/sampler.h"
#include "test.h"

// ---- The definition, slowly -------------------------------------------------------------------------------------

typedef struct {
    float logit;
    int32_t token;
    long double weight;
} SlowCandidate;

static int slow_compare_likelihood(const void* a, const void* b) {
    const SlowCandidate *x = (const SlowCandidate*)a, *y = (const SlowCandidate*)b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static int slow_compare_number(const void* a, const void* b) {
    return ((const SlowCandidate*)a)->token < ((const SlowCandidate*)b)->token ? -1 : 1;
}

// What stays, ordered by number, in list; how many. *near: a sum is that near to the border, relative to all.
static int stays(SlowCandidate* list, const Sampling* how, const float* logits, int V, long double* near) {
    long double sum = 0, head = 0;
    for (int i = 0; i < V; i++) {
        list[i].logit = logits[i];
        list[i].token = i;
    }
    qsort(list, (size_t)V, sizeof *list, slow_compare_likelihood);
    for (int i = 0; i < V; i++)
        list[i].weight =
            expl(((long double)list[i].logit - (long double)list[0].logit) / (long double)how->temperature);
    int n = how->top_k > 0 && how->top_k < V ? (int)how->top_k : V;
    for (int i = 0; i < n; i++) sum += list[i].weight;
    *near = 1;
    if (how->top_p < 1) {
        int fewest = 0;
        while (fewest == 0 || (fewest < n && head < (long double)how->top_p * sum)) {
            head += list[fewest++].weight;
            *near = fminl(*near, fabsl(head / sum - (long double)how->top_p));
        }
        n = fewest;
    }
    qsort(list, (size_t)n, sizeof *list, slow_compare_number);
    return n;
}

static int32_t draw_slowly(const SlowCandidate* list, int n, double u, long double* near) {
    long double sum = 0, running = 0;
    for (int i = 0; i < n; i++) sum += list[i].weight;
    for (int i = 0; i < n; i++) {
        running += list[i].weight;
        *near = fminl(*near, fabsl(running / sum - (long double)u));
        if (running > (long double)u * sum) return list[i].token;
    }
    return -1;
}

// Logits of one of several kinds: spread, almost flat, many equal, some impossible.
static void make_logits(float* logits, int V, int kind, uint64_t stream) {
    random_normals(logits, V, 11, stream, 0);
    for (int i = 0; i < V; i++) {
        if (kind == 0) logits[i] *= 3;
        if (kind == 1) logits[i] *= 0.01f;
        if (kind == 2) logits[i] = floorf(2 * logits[i]);
        if (kind == 3 && random_uniform(12, stream, (uint64_t)i) < 0.5f) logits[i] = -INFINITY;
    }
    if (kind == 3) logits[V / 2] = 1;
}

static void test_definition(void) {
    enum { CASES = 6000, DRAWS = 8, MOST = 300 };
    static const double temperatures[] = {0.8, 1, 0.1, 3}, parts[] = {1, 0.9, 0.5, 0.999, 0, 0.1};
    float logits[MOST];
    SlowCandidate list[MOST];
    Candidate memory[MOST];
    int64_t wrong = 0, unclear = 0, drawn = 0, restricted = 0;
    for (int c = 0; c < CASES; c++) {
        const int V = 1 + (int)(random_uniform(13, 0, (uint64_t)c) * (MOST - 1));
        const Sampling how = {temperatures[c % 4], parts[c / 4 % 6], (int64_t)(c % 5 == 0 ? 0 : c % 7 * V / 5)};
        long double border;
        make_logits(logits, V, c % 4, (uint64_t)c);
        const int n = stays(list, &how, logits, V, &border);
        restricted += n < V;
        for (int i = 0; i < DRAWS; i++) {
            double u = (double)random_uniform(14, (uint64_t)c, (uint64_t)i);
            if (i < 2) u = i == 0 ? 0 : 1 - 0x1p-30;
            long double near = 1;
            const int32_t want = draw_slowly(list, n, u, &near);
            const int32_t token = sample_token(&how, logits, V, u, memory);
            const bool clear = border > 1e-12L && (near > 1e-12L || u == 0);
            drawn++;
            unclear += !clear;
            wrong += clear && token != want;
        }
    }
    check(wrong == 0, "%lld of %lld draws differ from the definition (%lld of %d distributions restricted)",
          (long long)wrong, (long long)drawn, (long long)restricted, CASES);
    check(unclear < drawn / 20, "%lld draws were at a border, and not looked at", (long long)unclear);
}

// ---- How often --------------------------------------------------------------------------------------------------

static void test_frequencies(Sampling how, int kind) {
    enum { V = 40, DRAWS = 200000 };
    float logits[V];
    SlowCandidate list[V];
    Candidate memory[V];
    int64_t count[V] = {0};
    long double near, sum = 0;
    double chi = 0;
    make_logits(logits, V, kind, 5);
    for (int i = 0; i < V; i++) logits[i] *= 0.5f; // none that is never expected
    for (int i = 0; i < DRAWS; i++)
        count[sample_token(&how, logits, V, (double)random_uniform(42, 6, (uint64_t)i), memory)]++;
    const int n = stays(list, &how, logits, V, &near);
    int64_t among = 0;
    for (int i = 0; i < n; i++) sum += list[i].weight;
    for (int i = 0; i < n; i++) {
        const double expected = (double)(list[i].weight / sum) * DRAWS, off = (double)count[list[i].token] - expected;
        if (expected > 0) chi += off * off / expected;
        among += count[list[i].token];
    }
    char what[128];
    snprintf(what, sizeof what, "chi-square of %d tokens, temperature %g, top-k %lld, top-p %g", n, how.temperature,
             (long long)how.top_k, how.top_p);
    check_error(what, chi, n - 1 + 5 * sqrt(2.0 * (n - 1)) + 1e-9);
    check(among == DRAWS, "and none of the others was drawn");
}

// ---- Extremes ---------------------------------------------------------------------------------------------------

static int32_t draw(const Sampling* how, const float* logits, int V, double u) {
    Candidate list[64];
    return sample_token(how, logits, V, u, list);
}

// Draws at many u; the lowest and the highest token that come. False: some draw had none.
static bool range_of_draws(const Sampling* how, const float* logits, int V, int32_t* low, int32_t* high) {
    *low = V;
    *high = -1;
    for (int i = 0; i <= 1000; i++) {
        const int32_t token = draw(how, logits, V, i == 1000 ? 1 - 0x1p-53 : i / 1000.0);
        if (token < 0) return false;
        *low = token < *low ? token : *low;
        *high = token > *high ? token : *high;
    }
    return true;
}

static void test_extremes(void) {
    const Sampling greedy = {0, 1, 0}, plain = {0.8, 1, 0}, three = {1, 1, 3}, half = {1, 0.5, 0},
                   cold = {1e-300, 1, 0};
    const Sampling none = {1, 0, 0}, both = {1, 0.5, 4}, many = {1, 1, 1000};
    const float same[6] = {2, 2, 2, 2, 2, 2}, two[6] = {1, 5, -3, 5, 4, -INFINITY};
    const float huge[6] = {-3e38f, 3e38f, 0, 3e38f, -3e38f, 1e38f}, never[3] = {-INFINITY, -INFINITY, -INFINITY};
    const float sure[4] = {0, INFINITY, 3e38f, INFINITY}, bad[4] = {1, 2, NAN, 0}, first_bad[2] = {NAN, 1};
    const float tiny[4] = {0, -800, -800, -800};
    int32_t low, high;
    check(draw(&greedy, two, 6, 0.99) == 1, "greedy: of equal ones the lowest number");
    check(draw(&greedy, same, 6, 0.99) == 0, "greedy: all equal: token 0");
    check(draw(&none, two, 6, 0.99) == 1, "top-p 0 leaves one token");
    check(range_of_draws(&cold, two, 6, &low, &high) && low == 1 && high == 3,
          "next to no temperature: the largest two");
    check(range_of_draws(&three, same, 6, &low, &high) && low == 0 && high == 2,
          "top-k 3 of equal ones: the first three");
    check(range_of_draws(&half, same, 6, &low, &high) && low == 0 && high == 2, "top-p 0.5 of six equal ones: three");
    check(range_of_draws(&both, same, 6, &low, &high) && low == 0 && high == 1,
          "top-p 0.5 of what top-k 4 leaves: two");
    check(range_of_draws(&many, same, 6, &low, &high) && low == 0 && high == 5, "top-k above V: all");
    check(range_of_draws(&plain, two, 6, &low, &high) && high == 4, "-inf never comes, also not as the last");
    check(range_of_draws(&plain, huge, 6, &low, &high) && low == 1 && high == 3, "logits of 3e38: the largest two");
    check(range_of_draws(&plain, sure, 4, &low, &high) && low == 1 && high == 3, "+inf: only these");
    check(range_of_draws(&three, tiny, 4, &low, &high) && high == 0, "weights that are 0 in float64 never come");
    check(draw(&plain, never, 3, 0.5) == -1 && draw(&greedy, never, 3, 0.5) == -1, "all -inf: none");
    check(draw(&plain, bad, 4, 0.5) == -1 && draw(&greedy, bad, 4, 0) == -1 && draw(&three, first_bad, 2, 0) == -1,
          "a NaN: none");
    check(draw(&plain, same, 1, 0.99) == 0 && draw(&half, same, 1, 0) == 0 && draw(&three, same, 1, 0) == 0,
          "a vocabulary of one");
}

int main(void) {
    const Sampling all = {0.8, 1, 0}, k = {1, 1, 7}, p = {1, 0.8, 0}, both = {1.5, 0.9, 20};
    test_definition();
    test_frequencies(all, 0);
    test_frequencies(k, 0);
    test_frequencies(p, 2);
    test_frequencies(both, 1);
    test_extremes();
    return test_end();
}
