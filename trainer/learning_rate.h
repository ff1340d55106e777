/*
trainer/learning_rate.h: how the learning rate decays, lr_curves, and its default by the model's size, usual_rate.
*/
#pragma once

#include "../util/options.h"

typedef struct {
    const char* name;
    double (*decay)(double progress); // the part of lr - min_lr that is left: 1 at progress 0, 0 at progress 1
} LrCurve;

static double lr_cosine(double progress) { return 0.5 * (1 + cos(3.141592653589793 * progress)); }
static double lr_linear(double progress) { return 1 - progress; }
// Warm-up, stable, decay: constant, then linear over the last fifth (Hu et al. 2024, MiniCPM).
static double lr_wsd(double progress) { return fmin(1, (1 - progress) / 0.2); }

// --decay, its help and the start-up report iterate it.
static const LrCurve lr_curves[] = {{"cosine", lr_cosine}, {"linear", lr_linear}, {"wsd", lr_wsd}};
enum { LR_CURVES = sizeof lr_curves / sizeof lr_curves[0] };

// "cosine|linear|...", for the table of options.
static inline const char* lr_curve_choices(void) {
    static char text[128];
    if (text[0]) return text;
    for (int i = 0; i < LR_CURVES; i++) append_choice(text, sizeof text, lr_curves[i].name);
    return text;
}

// x rounded to `digits` decimal digits: short to type, and independent of a machine's rounding in pow().
static inline double to_digits(double x, int digits) {
    char text[32];
    snprintf(text, sizeof text, "%.*e", digits - 1, x);
    return strtod(text, NULL);
}

// The default peak learning rate of AdamW for N parameters: table 2.1 of Brown et al. 2020 (GPT-3), with log lr linear
// in log N between its rows. Below its first row the rate falls as 1 / width (Yang et al. 2022, Tensor Programs V), N
// being about width^3, up to 3e-3, which suits the model tiny.
static inline double usual_rate(double parameters) {
    static const struct {
        double parameters, lr;
    } table[] = {{125e6, 6e-4},   {350e6, 3e-4},   {760e6, 2.5e-4}, {1.3e9, 2e-4},
                 {2.7e9, 1.6e-4}, {6.7e9, 1.2e-4}, {13e9, 1e-4},    {175e9, 0.6e-4}};
    const int rows = (int)(sizeof table / sizeof table[0]);
    double lr = table[rows - 1].lr;
    for (int i = rows - 2; i >= 0 && parameters < table[i + 1].parameters; i--) {
        const double share = log(parameters / table[i].parameters) / log(table[i + 1].parameters / table[i].parameters);
        lr = table[i].lr * pow(table[i + 1].lr / table[i].lr, share);
    }
    if (parameters < table[0].parameters) lr = fmin(3e-3, table[0].lr * cbrt(table[0].parameters / parameters));
    return to_digits(lr, 2);
}
