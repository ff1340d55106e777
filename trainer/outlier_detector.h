/*
trainer/outlier_detector.h: is a step's loss or gradient norm unusual?

    outlier_add, outlier_score    remember a value; by how many deviations a value is above the expected one
    health_step, health_logged    the scores of a step, from its numbers or from its line in log.jsonl

Theory: the last 100 values predict the next one. A line is fitted to these values y_0 .. y_99 with medians, which
tolerate up to a quarter of bad values; means would not, and a loss that falls fast would enlarge the deviation:

    slope     = median of (y_(i + 50) - y_i) / 50, i < 50                 pairs, so that a value is in one of them
    level     = median of (y_i - slope i)
    deviation = 1.4826 median of |y_i - slope i - level|                  as of a normal distribution
    z         = (x - level - 100 slope) / deviation

(Siegel 1982 and Theil 1950 take all pairs.) A gradient norm is compared by its logarithm, since it varies by factors.
Normal numbers give |z| > 6 twice in 3,000,000 steps. Before there are 100 values, the score is 0. Skipped steps do not
count.
*/
#pragma once

#include "../util/base.h"

enum { OUTLIER_WINDOW = 100 };

typedef struct {
    double value[OUTLIER_WINDOW];
    int n, next; // number of values; index of the next one
} OutlierDetector;

static inline void outlier_add(OutlierDetector* detector, double x) {
    if (!isfinite(x)) return;
    detector->value[detector->next] = x;
    detector->next = (detector->next + 1) % OUTLIER_WINDOW;
    detector->n += detector->n < OUTLIER_WINDOW;
}

// By how many deviations x is above *expected; 0 until there are 100 values. The deviation is at least a millionth of
// the level, the size of rounding errors of a loss.
static inline double outlier_score(const OutlierDetector* detector, double x, double* expected) {
    enum { HALF = OUTLIER_WINDOW / 2 };
    double y[OUTLIER_WINDOW], work[OUTLIER_WINDOW];
    *expected = x;
    if (detector->n < OUTLIER_WINDOW || !isfinite(x)) return 0;
    for (int i = 0; i < OUTLIER_WINDOW; i++) y[i] = detector->value[(detector->next + i) % OUTLIER_WINDOW];
    for (int i = 0; i < HALF; i++) work[i] = (y[i + HALF] - y[i]) / HALF;
    const double slope = median_of(work, HALF);
    for (int i = 0; i < OUTLIER_WINDOW; i++) work[i] = y[i] - slope * i;
    const double level = median_of(work, OUTLIER_WINDOW);
    for (int i = 0; i < OUTLIER_WINDOW; i++) work[i] = fabs(y[i] - slope * i - level);
    const double deviation = fmax(1.4826 * median_of(work, OUTLIER_WINDOW), 1e-6 * fabs(level) + 1e-30);
    *expected = level + slope * OUTLIER_WINDOW;
    return (x - *expected) / deviation;
}

enum { MAX_SKIPPED_IN_ROW = 10 }; // skipped steps; the last of them ends the run

typedef enum { ON_NAN_STOP, ON_NAN_SKIP } OnNan;

typedef struct {
    OutlierDetector loss, norm; // of the losses, and of the logarithms of the gradient norms
    int32_t skipped_in_row;     // steps
    bool skipped;               // the last step
    double loss_score, norm_score, loss_expected, norm_expected; // of the last step
} StepHealth;

// Sets the scores of a step, then remembers its values.
static inline void health_step(StepHealth* health, double loss, double norm) {
    const double log_norm = norm > 0 ? log(norm) : (double)NAN;
    health->loss_score = 0;
    health->norm_score = 0;
    if (health->skipped) return;
    health->loss_score = outlier_score(&health->loss, loss, &health->loss_expected);
    health->norm_score = outlier_score(&health->norm, log_norm, &health->norm_expected);
    health->norm_expected = exp(health->norm_expected);
    outlier_add(&health->loss, loss);
    outlier_add(&health->norm, log_norm);
}

// The number after a name in a line of log.jsonl; NaN where there is none.
static inline double logged_number(const char* line, const char* name) {
    const char* at = strstr(line, name);
    char* end;
    if (!at) return (double)NAN;
    const double x = strtod(at + strlen(name), &end);
    return end == at + strlen(name) ? (double)NAN : x;
}

// health_step of a line of the resumed run's log.
static inline void health_logged(StepHealth* health, const char* line) {
    health->skipped = strstr(line, "\"skipped\":true") != NULL;
    health->skipped_in_row = health->skipped ? health->skipped_in_row + 1 : 0;
    health_step(health, logged_number(line, "\"loss\":"), logged_number(line, "\"grad_norm\":"));
}
