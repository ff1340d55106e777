/*
draw_roofline.c: the operations of a training step on one GPU, each with the time that its arithmetic and the time that
its bytes take at the peaks of an H200's data sheet (dev/bench/roofline.h); the longer one is its floor. An SVG picture.

    build/draw_roofline [MODEL]     gpt2-124M unless another of roofline_cases is named

A prediction: nothing here was measured on the models.
*/
#include "../bench/roofline.h"

static const double LEFT = 230, WIDTH = 560, ROW = 18;

static void bar(double y, double ms, double longest, const char* colour) {
    printf("<rect x=\"%g\" y=\"%g\" width=\"%.2f\" height=\"6\" fill=\"%s\"/>\n", LEFT, y, WIDTH * ms / longest,
           colour);
}

static void draw(const Roofline* r, const Ceilings* c) {
    const double height = 108 + ROW * r->n;
    double longest = 0;
    Bound bound;
    for (int i = 0; i < r->n; i++) longest = fmax(longest, 1e3 * r->row[i].count * row_floor(&r->row[i], c, &bound));
    printf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 900 %g\" width=\"900\" height=\"%g\" role=\"img\" "
           "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#1f2937\">\n",
           height, height);
    printf("<rect x=\"0.5\" y=\"0.5\" width=\"899\" height=\"%g\" rx=\"10\" fill=\"#fff\" stroke=\"#d0d7de\"/>\n",
           height - 1);
    printf("<text x=\"20\" y=\"28\" font-size=\"15\" font-weight=\"bold\">%s, a step of %.0f tokens, predicted: ms of "
           "arithmetic and of bytes</text>\n",
           r->model.name, roofline_tokens(r));
    for (int i = 0; i < r->n; i++) {
        const RooflineRow* row = &r->row[i];
        const double y = 46 + ROW * i, floor = 1e3 * row->count * row_floor(row, c, &bound);
        printf("<text x=\"%g\" y=\"%g\" text-anchor=\"end\">%d x %s</text>\n", LEFT - 8, y + 11, row->count, row->name);
        bar(y, 1e3 * row->count * row->flops / c->product, longest, "#2a66b8");
        bar(y + 7, 1e3 * row->count * row->bytes / c->copy, longest, "#e08a2c");
        printf("<text x=\"%.2f\" y=\"%g\">%.2f</text>\n", LEFT + WIDTH * floor / longest + 6, y + 11, floor);
    }
    const double y = height - 38;
    printf("<rect x=\"%g\" y=\"%g\" width=\"30\" height=\"6\" fill=\"#2a66b8\"/><text x=\"%g\" y=\"%g\">arithmetic at "
           "%.0f TFLOP/s</text>\n",
           LEFT, y - 7, LEFT + 36, y, c->product / 1e12);
    printf("<rect x=\"%g\" y=\"%g\" width=\"30\" height=\"6\" fill=\"#e08a2c\"/><text x=\"%g\" y=\"%g\">bytes at %.1f "
           "TB/s; the number is the floor, the longest of both and of the exponentials</text>\n</svg>\n",
           LEFT, y + 11, LEFT + 36, y + ROW, c->copy / 1e12);
}

int main(int argc, char** argv) {
    process.name = "draw_roofline";
    const char* name = argc > 1 ? argv[1] : "gpt2-124M";
    const Ceilings ceilings = {989.4e12, 4.8e12, ceilings_h200().exponentials, 989.4e12}; // of the data sheet
    static Roofline r;
    for (int i = 0; i < ROOFLINE_CASES; i++) {
        const RooflineCase* k = &roofline_cases[i];
        if (strcmp(k->model, name) != 0) continue;
        const ModelConfig* model = model_find_preset(name);
        const int B = roofline_micro_batch(model, k->B, k->T, RECOMPUTE_NONE, 139.0 * 1073741824);
        roofline_build(&r, model, B, k->T, k->B / B, 0, RECOMPUTE_NONE, false);
        draw(&r, &ceilings);
        return fflush(stdout) == 0 ? 0 : EXIT_RUN;
    }
    die_usage("%s is not a model of dev/bench/roofline.h", name);
}
