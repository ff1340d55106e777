/*
test_loss_scale.c: trainer/loss_scale.h against the scales of PyTorch's GradScaler for a sequence of finite and other
gradients, and where it differs from that: the smallest scale, failures, fixed scales. check_loss_scale.py has trainers.
*/
#include "../../../trainer/loss_scale.h"
#include "test.h"

// The golden numbers are of torch._amp_update_scale_ (ATen/native/cuda/AmpKernels.cu), computed in Python with growth
// 2, back-off 0.5 and interval 4: log2 of the scale, and the growth tracker, after each step. x: not finite.
static void test_golden(void) {
    static const char steps[] = ".........x...xxx........xx.x..x...x....x.............";
    static const int scale[] = {16, 16, 16, 17, 17, 17, 17, 18, 18, 17, 17, 17, 17, 16, 15, 14, 14, 14,
                                14, 15, 15, 15, 15, 16, 15, 14, 14, 13, 13, 13, 12, 12, 12, 12, 11, 11,
                                11, 11, 12, 11, 11, 11, 11, 12, 12, 12, 12, 13, 13, 13, 13, 14, 14};
    static const char tracker[] = "12301230101230001230123000101201230123001230123012301";
    const int n = (int)strlen(steps);
    LossScale s = {65536, 4, 0, 0};
    int wrong = 0, skipped = 0;
    for (int i = 0; i < n; i++) {
        const bool finite = steps[i] == '.', skips = loss_scale_update(&s, true, finite);
        skipped += !finite;
        wrong += skips == finite || s.scale != ldexp(1, scale[i]) || s.good_steps != tracker[i] - '0' ||
                 s.skipped != skipped;
    }
    check(wrong == 0, "%d steps as PyTorch's GradScaler has them: %d wrong", n, wrong);
}

static void test_limits(void) {
    LossScale s = {3, 2, 1, 0};
    bool skips = loss_scale_update(&s, true, false);
    check(skips && s.scale == 1.5 && s.good_steps == 0, "3 backs off to 1.5");
    skips = loss_scale_update(&s, true, false);
    check(skips && s.scale == 1 && s.skipped == 2, "1.5 backs off to 1, the smallest");
    s.good_steps = 1;
    skips = loss_scale_update(&s, true, false);
    check(!skips && s.scale == 1 && s.skipped == 2 && s.good_steps == 0, "at 1 a gradient that is not finite fails");
    LossScale loss = {65536, 2, 1, 0};
    skips = loss_scale_update(&loss, false, false) || loss_scale_update(&loss, false, true);
    check(!skips && loss.scale == 65536 && loss.skipped == 0 && loss.good_steps == 0, "so does a loss, at any scale");
    LossScale fixed = {1024, 0, 0, 0};
    skips = loss_scale_update(&fixed, true, false) || loss_scale_update(&fixed, true, true);
    check(!skips && fixed.scale == 1024 && fixed.skipped == 0, "a fixed scale does not change");
    LossScale large = {(double)FLT_MAX, 1, 0, 0};
    skips = loss_scale_update(&large, true, true);
    check(!skips && large.scale == (double)FLT_MAX, "the largest scale is a float");
}

int main(void) {
    test_golden();
    test_limits();
    return test_end();
}
