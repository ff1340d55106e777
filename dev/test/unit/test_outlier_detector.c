/*
test_outlier_detector.c: scores of trainer/outlier_detector.h against medians found by counting, with a trend, noise and
outliers among the last 100 values; and what a resumed run reads from log.jsonl.
*/
#include "../../../trainer/outlier_detector.h"
#include "test.h"

static double normal_number(uint64_t i) {
    float x;
    random_normals(&x, 1, 5, 77, i);
    return (double)x;
}

// The middle of n numbers is the mean of the two that have n / 2 - 1 and n / 2 below them.
static double counted_median(const double* x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        int below = 0;
        for (int j = 0; j < n; j++) below += x[j] < x[i] || (x[j] == x[i] && j < i);
        if (below == n / 2 || below == n / 2 - 1) sum += x[i];
    }
    return sum / 2;
}

static double counted_score(const double* y, double x) { // y: the last 100, the oldest first
    double slopes[50], flat[100], away[100];
    for (int i = 0; i < 50; i++) slopes[i] = (y[50 + i] - y[i]) / 50;
    const double slope = counted_median(slopes, 50);
    for (int i = 0; i < 100; i++) flat[i] = y[i] - slope * i;
    const double level = counted_median(flat, 100);
    for (int i = 0; i < 100; i++) away[i] = fabs(flat[i] - level);
    return (x - level - 100 * slope) / (1.4826 * counted_median(away, 100));
}

static void test_scores(void) {
    double y[400], expected, worst = 0;
    OutlierDetector detector = {};
    int early = 0;
    for (int i = 0; i < 400; i++) {
        y[i] = 3 - 0.001 * i + 0.1 * normal_number((uint64_t)i) + (i % 17 == 0 ? 4 : 0); // every 17th is an outlier
        const double score = outlier_score(&detector, y[i], &expected);
        early += i < 100 && score != 0;
        if (i >= 100) worst = fmax(worst, fabs(score - counted_score(y + i - 100, y[i])));
        outlier_add(&detector, y[i]);
    }
    check(early == 0, "scores before there are 100 values: %d", early);
    check_error("scores against counted medians", worst, 1e-9);
    outlier_add(&detector, (double)NAN);
    outlier_add(&detector, (double)INFINITY);
    check(fabs(outlier_score(&detector, 3, &expected) - counted_score(y + 300, 3)) < 1e-9,
          "numbers that are not finite are not remembered");
    check(outlier_score(&detector, (double)NAN, &expected) == 0, "and have no score");
    memset(&detector, 0, sizeof detector);
    for (int i = 0; i < 100; i++) outlier_add(&detector, 2.5);
    check(outlier_score(&detector, 2.5, &expected) == 0 && expected == 2.5 &&
              outlier_score(&detector, 2.6, &expected) > 100,
          "equal values: the next has score 0, another one a large score");
}

static void test_logged(void) {
    StepHealth h = {};
    health_logged(&h, "{\"step\":1,\"loss\":5.5,\"val_loss\":6.25,\"grad_norm\":2,\"lr\":0.1,\"peak_mem_bytes\":3}\n");
    check(h.loss.n == 1 && h.loss.value[0] == 5.5 && h.norm.value[0] == log(2) && h.skipped_in_row == 0,
          "a logged step");
    health_logged(&h, "{\"step\":2,\"loss\":null,\"val_loss\":1,\"grad_norm\":null,\"skipped\":true}\n");
    health_logged(&h, "{\"step\":3,\"loss\":4,\"val_loss\":1,\"grad_norm\":null,\"skipped\":true}\n");
    check(h.loss.n == 1 && h.norm.n == 1 && h.skipped_in_row == 2, "skipped steps are counted and have no scores");
    health_logged(&h, "{\"step\":4,\"loss\":5.25,\"val_loss\":null,\"grad_norm\":null}\n");
    check(h.loss.n == 2 && h.norm.n == 1 && h.skipped_in_row == 0, "a step without a norm");
    health_logged(&h, "nothing\n");
    health_logged(&h, "{\"step\":4,\"loss\":");
    check(h.loss.n == 2 && h.norm.n == 1, "lines that are no steps");
}

int main(void) {
    test_scores();
    test_logged();
    return test_end();
}
