/*
figures.h: figures 11 to 18 of Narayanan et al. 2021 (arXiv 2104.04473) by the planner, published points beside ours.

    figures            models, meshes and batches as in the authors' scripts (Megatron-LM, examples/sc21); their points
    figure_question    a point as a question of search.h that leaves nothing open
    figures_run        tables, and a picture (./plan --figures)

Theory: a point is the answer to a question with one choice, so ./plan gives the same for the options that its row
prints. Nothing is fitted to these points. The published ones were read off the plots by others, to about 5 %.
*/
#pragma once

#include "../dev/plot/schedule_svg.h"
#include "flags.h"
#include "published.h"

enum { FIGURE_LINES = 3, FIGURE_POINTS = 9, FIGURE_AXIS = -1 }; // FIGURE_AXIS: what the x axis says

typedef struct {
    const char* name; // NULL: no more lines
    int batch, v;
    Recompute recompute;
    bool whole;                      // messages between stages without scatter/gather
    double published[FIGURE_POINTS]; // 0: not read
} FigureLine;

static const FigureLine figure11[FIGURE_LINES] = {{"batch 128", 128, 1, RECOMPUTE_FULL, false, {178, 0, 0, 163}},
                                                  {"batch 8", 8, 1, RECOMPUTE_FULL, false, {165, 0, 0, 88}}};
static const FigureLine figure12[FIGURE_LINES] = {
    {"interleaved, v 4", FIGURE_AXIS, 4, RECOMPUTE_FULL, false, {119, 134, 141, 143, 146}},
    {"1f1b", FIGURE_AXIS, 1, RECOMPUTE_FULL, false, {82, 109, 122, 130, 135}}};
static const FigureLine figure13[FIGURE_LINES] = {{"batch 128", 128, 1, RECOMPUTE_FULL, false, {0, 0, 165}},
                                                  {"batch 32", 32, 1, RECOMPUTE_FULL, false, {0, 0, 142}}};
static const FigureLine figure14[FIGURE_LINES] = {{"batch 512", 512, 1, RECOMPUTE_FULL, false, {148, 0, 0, 0, 90}},
                                                  {"batch 32", 32, 1, RECOMPUTE_FULL, false, {62, 0, 0, 0, 42}}};
static const FigureLine figure15[FIGURE_LINES] = {{"batch 512", 512, 1, RECOMPUTE_FULL, false, {128, 0, 0, 0, 25}},
                                                  {"batch 128", 128, 1, RECOMPUTE_FULL, false, {0}},
                                                  {"batch 32", 32, 1, RECOMPUTE_FULL, false, {0}}};
static const FigureLine figure16[FIGURE_LINES] = {{"batch 512", 512, 1, RECOMPUTE_FULL, false, {163, 172, 160, 155}},
                                                  {"batch 128", 128, 1, RECOMPUTE_FULL, false, {155, 158, 140, 120}}};
static const FigureLine figure17[FIGURE_LINES] = {{"recomputed in full", FIGURE_AXIS, 1, RECOMPUTE_FULL, false, {0}},
                                                  {"nothing recomputed", FIGURE_AXIS, 1, RECOMPUTE_NONE, false, {0}}};
static const FigureLine figure18[FIGURE_LINES] = {
    {"scatter/gather", FIGURE_AXIS, 4, RECOMPUTE_FULL, false, {119, 134, 142, 144, 147}},
    {"without", FIGURE_AXIS, 4, RECOMPUTE_FULL, true, {107, 120, 127, 130, 131}}};

typedef struct {
    int number;
    const char *title, *axis;
    int L, C, NH, gpus, t, p, B; // L 0: 3 a stage; gpus 0: t p; t 0: gpus / p
    int n, x[FIGURE_POINTS];
    const FigureLine* line; // (FIGURE_LINES)
} Figure;

static const Figure figures[] = {
    {11, "3 layers a stage, t 8", "stages", 0, 20480, 128, 0, 8, FIGURE_AXIS, 1, 4, {1, 2, 4, 8}, figure11},
    {12, "175B, 96 GPUs, t 8, p 12", "batch", 96, 12288, 96, 96, 8, 12, 1, 5, {12, 24, 36, 48, 60}, figure12},
    {13, "162B, 64 GPUs", "p, t = 64/p", 32, 20480, 128, 64, 0, FIGURE_AXIS, 1, 5, {2, 4, 8, 16, 32}, figure13},
    {14, "5.9B, 64 GPUs, t 1", "p, d = 64/p", 32, 3840, 32, 64, 1, FIGURE_AXIS, 1, 5, {2, 4, 8, 16, 32}, figure14},
    {15, "5.9B, 64 GPUs, p 1", "t, d = 64/t", 32, 3840, 32, 64, FIGURE_AXIS, 1, 1, 5, {2, 4, 8, 16, 32}, figure15},
    {16, "91B, 64 GPUs, t 8, p 8", "micro-batch", 32, 15360, 128, 64, 8, 8, FIGURE_AXIS, 4, {1, 2, 4, 8}, figure16},
    {17, "145B, t 8, p 16", "batch", 80, 12288, 96, 128, 8, 16, 1, 9, {1, 2, 4, 8, 16, 32, 64, 128, 256}, figure17},
    {18, "175B, t 8, p 12, v 4", "batch", 96, 12288, 96, 96, 8, 12, 1, 5, {12, 24, 36, 48, 60}, figure18},
};
enum { FIGURES = sizeof figures / sizeof figures[0] };

static inline Question figure_question(const Figure* f, const FigureLine* line, int x, const Cluster* cluster) {
    Question q = {};
    q.p = f->p == FIGURE_AXIS ? x : f->p;
    q.t = f->t == FIGURE_AXIS ? x : f->t;
    if (!q.t) q.t = f->gpus / q.p;
    q.ranks = f->gpus ? f->gpus : q.t * q.p;
    q.d = q.ranks / q.t / q.p;
    q.v = line->v;
    q.B = f->B == FIGURE_AXIS ? x : f->B;
    q.batch = line->batch == FIGURE_AXIS ? x : line->batch;
    q.T = 2048;
    q.model = model_of(ARCH_GPT2, f->L ? f->L : 3 * q.p, f->C, f->NH, f->NH, 4 * f->C, q.T, 51200);
    q.cluster = cluster;
    q.software = software_find("megatron-2021");
    q.any_memory = true;
    q.whole = line->whole;
    q.schedule = q.v > 1 ? INTERLEAVED : ONE_F_ONE_B;
    q.recompute = line->recompute;
    q.rows = 1;
    return q;
}

// Figure 17 has sequences a second of all GPUs; the others TFLOP/s by equation 3 of the paper.
static inline const char* figure_unit(const Figure* f) { return f->number == 17 ? "sequences/s" : "TFLOP/s a GPU"; }

static inline double figure_value(const Figure* f, const Question* q, StepSetup* setup) {
    Answer answer;
    Error error;
    if (!search(&answer, q, &error)) die("figures.h: %s", error.text);
    const StepCost cost = answer.row[0].cost;
    *setup = answer.row[0].setup;
    answer_free(&answer);
    return f->number == 17 ? (double)q->batch / cost.seconds : cost.flops / 1e12;
}

static inline void figure_print(FILE* out, const Figure* f, double ours[][FIGURE_POINTS], const Cluster* cluster) {
    PublishedErrors e = {0, 0, 0, 0};
    fprintf(out, "figure %d: %s, %s\n    %-18s %11s     ours  published     error  options\n", f->number, f->title,
            figure_unit(f), "", f->axis);
    for (int i = 0; i < FIGURE_LINES && f->line[i].name; i++) {
        const FigureLine* line = &f->line[i];
        for (int k = 0; k < f->n; k++) {
            const Question q = figure_question(f, line, f->x[k], cluster);
            StepSetup setup;
            const double value = figure_value(f, &q, &setup), error = value / line->published[k] - 1;
            ours[i][k] = value;
            fprintf(out, "    %-18s %11d %8.*f  ", line->name, f->x[k], value < 10 ? 3 : 1, value);
            fprintf(out, isfinite(error) ? "%9.0f  %+5.1f %%" : "        -         -", line->published[k], 100 * error);
            fprintf(out, "  --layers %d", q.model.L);
            flags_print_choice(out, &setup);
            fprintf(out, "\n");
            if (isfinite(error)) published_count(&e, error);
        }
    }
    if (e.n)
        fprintf(out, "    %d published points: error %.1f %%, signed %+.1f %%\n", e.n, 100 * e.mean,
                100 * e.signed_mean);
    fprintf(out,
            "    a row: ./plan --arch gpt2 --hidden %d --heads %d --seq 2048 --vocab 51200 --cluster selene "
            "--software megatron-2021 --zero 0 --any-memory OPTIONS\n\n",
            f->C, f->NH);
}

// ---- The picture: a chart for each figure, two in a row. Places on the x axis are equally far apart. ------------

typedef struct {
    const Figure* figure[FIGURES];
    int n;
    double ours[FIGURES][FIGURE_LINES][FIGURE_POINTS];
} FigurePicture;

enum { FIGURE_WIDTH = 440, FIGURE_HEIGHT = 236 };

static inline void figure_draw(FILE* out, const Figure* f, const double ours[][FIGURE_POINTS], double left,
                               double top) {
    static const char* const colours[FIGURE_LINES] = {"2a66b8", "e08a2c", "4a9b5e"};
    const double x0 = left + 46, x1 = left + FIGURE_WIDTH - 16, y0 = top + FIGURE_HEIGHT - 48, pitch = (x1 - x0) / f->n;
    double most = 0, key = x0;
    char text[96];
    for (int i = 0; i < FIGURE_LINES * f->n; i++)
        most = fmax(most, fmax(ours[i / f->n][i % f->n], f->line[i / f->n].published[i % f->n]));
    const double step = svg_tick_step(2 * most), scale = (y0 - top - 44) / (step * ceil(most / step));
    snprintf(text, sizeof text, "Figure %d: %s", f->number, f->title);
    svg_write_text(out, x0, top + 14, "font-weight=\"bold\"", text);
    svg_write_text(out, x1, top + 14, "fill=\"#57606a\" text-anchor=\"end\"", figure_unit(f));
    svg_write_text(out, x1, y0 + 32, "fill=\"#57606a\" text-anchor=\"end\"", f->axis);
    for (double y = 0; y < most + step; y += step) {
        fprintf(out, "<path d=\"M%.5g %.5gH%.5g\" stroke=\"#%s\"/>\n", x0, y0 - y * scale, x1,
                y > 0 ? "e9edf2" : "8c959f");
        snprintf(text, sizeof text, "%.10g", y);
        svg_write_text(out, x0 - 6, y0 - y * scale + 4, "fill=\"#57606a\" font-size=\"11\" text-anchor=\"end\"", text);
    }
    for (int k = 0; k < f->n; k++) {
        snprintf(text, sizeof text, "%d", f->x[k]);
        svg_write_text(out, x0 + (k + 0.5) * pitch, y0 + 16, "fill=\"#57606a\" font-size=\"11\" text-anchor=\"middle\"",
                       text);
    }
    for (int i = 0; i < FIGURE_LINES && f->line[i].name; i++) {
        const double* published = f->line[i].published;
        fprintf(out, "<g fill=\"none\" stroke=\"#%s\" stroke-width=\"2\">\n<path d=\"M%.5g %.5gh18", colours[i], key,
                top + 28);
        for (int k = 0; k < f->n; k++)
            fprintf(out, "%c%.5g %.5g", k ? 'L' : 'M', x0 + (k + 0.5) * pitch, y0 - ours[i][k] * scale);
        fprintf(out, "\"/>\n");
        for (int k = 0; k < f->n; k++) {
            if (published[k] > 0)
                fprintf(out, "<circle cx=\"%.5g\" cy=\"%.5g\" r=\"4\" fill=\"#fff\"/>\n", x0 + (k + 0.5) * pitch,
                        y0 - published[k] * scale);
        }
        fprintf(out, "</g>\n");
        svg_write_text(out, key + 23, top + 32, "", f->line[i].name);
        key += 37 + svg_text_width(f->line[i].name, SVG_FONT);
    }
}

static inline bool figures_write(FILE* out, const void* data) {
    const FigurePicture* x = (const FigurePicture*)data;
    const int columns = x->n > 1 ? 2 : 1, rows = (x->n + columns - 1) / columns;
    const double head = SVG_MARGIN + 44;
    svg_write_begin(out, columns * FIGURE_WIDTH + 20, head + rows * FIGURE_HEIGHT, SVG_MARGIN,
                    "Narayanan et al. 2021, by ./plan");
    svg_write_text(out, SVG_MARGIN, SVG_MARGIN + 31, "fill=\"#57606a\"",
                   "lines: predicted; circles: published, read off the plots");
    for (int i = 0; i < x->n; i++)
        figure_draw(out, x->figure[i], x->ours[i], 10 + i % columns * FIGURE_WIDTH, head + i / columns * FIGURE_HEIGHT);
    fputs("</svg>\n", out);
    return !ferror(out);
}

// which: "all" or a figure's number. svg: the picture's file; NULL: none.
static inline void figures_run(FILE* out, const char* which, const char* svg) {
    static FigurePicture picture;
    Cluster cluster;
    Error error;
    cluster_find(&cluster, "selene");
    for (int i = 0; i < FIGURES; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", figures[i].number);
        if (strcmp(which, "all") != 0 && strcmp(which, number) != 0) continue;
        picture.figure[picture.n] = &figures[i];
        figure_print(out, &figures[i], picture.ours[picture.n++], &cluster);
    }
    if (!picture.n) die_usage("--figures %s is not one of them: give 11 to 18, or all", which);
    if (svg && !write_picture(figures_write, &picture, svg, &error)) die("%s", error.text);
    if (svg) fprintf(out, "picture   %s\n", svg);
}
