/*
draw_caat.c: the partial all-reduce of a CAAT-Net (methods/caat.h) as an SVG picture on stdout: for each tensor rank the
channels of a row-parallel layer's output before and after it, from the rank's layout. Four ranks, 32 channels, P = 0.5.
*/
#include "../../parallel.h"
#include "svg_timeline.h"

enum { RANKS = 4, CHANNELS = 32, CELL = 9, ROW = 34, TOP = 104, LABEL = 52, AFTER = 490 };

static const unsigned rank_colors[RANKS] = {0x2a66b8, 0x238b4d, 0xb3541e, 0x8457bd};

// Channels [first, end) of a stream, a box each.
static void draw_channels(double left, double top, int first, int end, unsigned color) {
    for (int c = first; c < end; c++) svg_write_fill(stdout, left + c * CELL, top, CELL - 1, ROW - 12, color);
}

static void draw_rank(const Layout* layout) {
    const int rank = layout->mesh.tensor, S = layout->shared, C = layout->channels;
    const double top = TOP + rank * ROW;
    char text[64];
    snprintf(text, sizeof text, "rank %d", rank);
    svg_write_text(stdout, SVG_MARGIN, top + 15, "", text);
    draw_channels(SVG_MARGIN + LABEL, top, 0, C, rank_colors[rank]);
    draw_channels(AFTER, top, 0, S, 0x57606a);
    draw_channels(AFTER, top, S, C, rank_colors[rank]);
    snprintf(text, sizeof text, caat_factor(&layout->mesh.caat) == 1 ? "private" : "private, x sqrt(%d)", RANKS);
    svg_write_text(stdout, AFTER + C * CELL + 8, top + 15, "font-size=\"11\"", text);
}

int main(void) {
    const ModelConfig model = model_gpt2(1, CHANNELS, 4, 16, 16);
    const CaatConfig caat = {RANKS, 0.5, false};
    char text[128];
    svg_write_begin(stdout, 900, TOP + RANKS * ROW + 44, SVG_MARGIN,
                    "CAAT-Net: channels of one token before and after a partial all-reduce");
    svg_write_text(stdout, SVG_MARGIN + LABEL, TOP - 14, "", "o: partial product of each rank");
    svg_write_text(stdout, AFTER, TOP - 14, "", "z: added to each rank's own residual stream");
    for (int rank = 0; rank < RANKS; rank++) {
        Layout layout;
        Error error;
        Mesh mesh = mesh_of_rank(rank, RANKS, 1, 1);
        mesh.caat = caat;
        if (!layout_build(&layout, &model, mesh, 16, &error)) die("%s", error.text);
        draw_rank(&layout);
        snprintf(text, sizeof text, "all-reduce of the first %d of %d channels; gray: the sum, the same on all ranks",
                 layout.shared, layout.channels);
        layout_free(&layout);
    }
    svg_write_text(stdout, SVG_MARGIN + LABEL, TOP + RANKS * ROW + 18, "", text);
    svg_write_text(stdout, AFTER - 62, TOP + RANKS * ROW / 2.0, "font-size=\"22\"", "\xe2\x86\x92");
    fputs("</svg>\n", stdout);
    return fflush(stdout) == 0 ? 0 : EXIT_RUN;
}
