/*
trainer/loss_scale.h: the factor on the loss by which training in fp16 keeps gradients within fp16's range.

    loss_scale_update    after a step: growth, back-off, or a failure that no scale prevents

Theory (Micikevicius et al. 2018, Mixed Precision Training, section 3.2): fp16 has numbers from 2^-24 to 65504, and
most gradients of activations are near or below the lower end. The backward pass is linear in the gradient of the loss,
so the last stage multiplies that by a scale S and the update divides by it, in the factor of clipping. Gradients of
parameters and their sums are float32. A power of two moves exponents only: the numbers of two scales have the same
digits, except those below 2^-14 = 6.1e-5, which are rounded to multiples of 2^-24.

A dynamic scale follows PyTorch's GradScaler (scale 2^16 at first, factors 2 and 1/2, 2000 steps to a growth) and has
the smallest scale, 1, that Megatron-LM's DynamicGradScaler has as an option:

    gradient not finite            S = max(S / 2, 1); the update is skipped
    `window` finite ones in a row  S = 2 S

The norm of the whole gradient decides. All ranks have it, so all decide the same without a message of their own. As in
Megatron-LM a skipped step is a step of the run and consumes its data, while the optimizer's steps and the learning
rate's curve do not advance. A loss that is not finite, and a gradient at scale 1 or at a fixed scale, are failures
(--on-nan).
*/
#pragma once

#include "../util/base.h"

#include <float.h>

typedef struct {
    double scale;       // 1: none
    int64_t window;     // steps with a finite gradient after which it doubles; 0: it is fixed
    int64_t good_steps; // of them so far
    int64_t skipped;    // updates of the run
} LossScale;

// Follows a step. Returns true where its gradient has overflowed only because of the scale: its update is skipped.
static inline bool loss_scale_update(LossScale* s, bool finite_loss, bool finite_gradient) {
    if (s->window == 0) return false;
    s->good_steps = finite_loss && finite_gradient ? s->good_steps + 1 : 0;
    if (finite_loss && !finite_gradient && s->scale > 1) {
        s->scale = fmax(s->scale / 2, 1);
        s->skipped++;
        return true;
    }
    if (s->good_steps < s->window) return false;
    s->good_steps = 0;
    if (s->scale <= (double)FLT_MAX / 2) s->scale *= 2;
    return false;
}
