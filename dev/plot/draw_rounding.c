/*
draw_rounding.c: what becomes of small updates when weights are kept in bf16. Our AdamW (kernels/adamw.h) minimises the
mean of (w - 0.9)^2 / 2 over 4096 weights that begin at 0.6, where bf16 numbers are 2^-8 apart; the gradient is computed
at the bf16 weights. Three ways to keep them:

    master        float32 master weights, rounded at random to bf16 after each update: what the trainer does
    random        the same without a master copy: what rounding has taken is gone
    nearest       no master copy, and rounded to the nearest bf16 number

    build/draw_rounding             an SVG picture of the weights' mean, with a learning rate of 0.001
    build/draw_rounding RATE        a table, with another one
*/
#define PRECISION_BF16
#include "../../kernels/adamw.h"

enum { MASTER, RANDOM, NEAREST, WAYS, N = 4096, STEPS = 400, EVERY = 40 };
static const char *const ways[] = {"master", "random", "nearest"}, *const colours[] = {"#2a66b8", "#e08a2c", "#b8322a"};
static const float START = 0.6f, TARGET = 0.9f;

// curve[step] = the mean of the bf16 weights after `step` updates
static void train(int way, float rate, double* curve) {
    static floatX p[N];
    static float w[N], g[N], m[N], v[N];
    const TensorRange range = whole_range(N);
    for (int i = 0; i < N; i++) {
        w[i] = START;
        p[i] = to_floatX(START);
        m[i] = v[i] = 0;
    }
    for (int step = 0; step <= STEPS; step++) {
        double sum = 0;
        for (int i = 0; i < N; i++) sum += to_float(p[i]);
        curve[step] = sum / N;
        for (int i = 0; i < N; i++) {
            g[i] = to_float(p[i]) - TARGET;
            if (way != MASTER) w[i] = to_float(p[i]);
        }
        const OptimizerStep s = {rate, 0.9f, 0.95f, 1e-8f, 0, step + 1, 1};
        adamw_update(p, w, g, m, v, &range, 1, &s);
        if (way == NEAREST) {
            for (int i = 0; i < N; i++) p[i] = to_floatX(w[i]);
        }
    }
}

static void draw(double curve[WAYS][STEPS + 1], float rate) {
    printf(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 900 370\" width=\"900\" height=\"370\" role=\"img\" "
        "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#1f2937\">\n"
        "<rect x=\"0.5\" y=\"0.5\" width=\"899\" height=\"369\" rx=\"10\" fill=\"#fff\" stroke=\"#d0d7de\"/>\n"
        "<text x=\"60\" y=\"28\" font-size=\"15\" font-weight=\"bold\">the mean of 4096 bf16 weights under AdamW, "
        "learning rate %g, bf16 numbers 2^-8 apart</text>\n",
        (double)rate);
    for (int k = 6; k <= 9; k++)
        printf(
            "<line x1=\"60\" x2=\"780\" y1=\"%d\" y2=\"%d\" stroke=\"#e9edf2\"/><text x=\"36\" y=\"%d\">0.%d</text>\n",
            870 - 90 * k, 870 - 90 * k, 874 - 90 * k, k);
    for (int way = 0; way < WAYS; way++) {
        printf("<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colours[way]);
        for (int i = 0; i <= STEPS; i += 4) printf("%g,%.1f ", 60 + 1.8 * i, 870 - 900 * curve[way][i]);
        printf("\"/>\n<text x=\"790\" y=\"%.1f\" fill=\"%s\">%s</text>\n",
               874 - 900 * curve[way][STEPS] + 14 * (way == 1), colours[way], ways[way]);
    }
    printf("<text x=\"60\" y=\"356\">0</text><text x=\"400\" y=\"356\">steps</text><text x=\"765\" "
           "y=\"356\">%d</text>\n</svg>\n",
           STEPS);
}

int main(int argc, char** argv) {
    static double curve[WAYS][STEPS + 1];
    const float rate = argc > 1 ? (float)atof(argv[1]) : 1e-3f;
#ifdef _OPENMP
    omp_set_num_threads(1); // threads would wait for each other 1200 times
#endif
    for (int way = 0; way < WAYS; way++) train(way, rate, curve[way]);
    if (argc < 2) {
        draw(curve, rate);
        return fflush(stdout) == 0 ? 0 : EXIT_RUN;
    }
    printf("step   master   random  nearest\n");
    for (int i = 0; i <= STEPS; i += EVERY)
        printf("%4d %8.4f %8.4f %8.4f\n", i, curve[MASTER][i], curve[RANDOM][i], curve[NEAREST][i]);
    return fflush(stdout) == 0 ? 0 : EXIT_RUN;
}
