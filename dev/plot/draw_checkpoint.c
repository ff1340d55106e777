/*
draw_checkpoint.c: which rank writes which part of model.safetensors, as an SVG picture on stdout: the matrices of a
small GPT-2 (4 blocks of 64 channels) in the shapes that they have in the file, each run of elements
(checkpoint/checkpoint.h, slice_run) in the colour of the rank that writes it. The mesh is t 2, p 2, d 2.
*/
#include "../../checkpoint/checkpoint.h"
#include "svg_timeline.h"

enum { WIDTH = 690, RANKS = 8, GAP = 22, FIRST_ROW = 96, ROW = 64 + 30 }; // four elements are a point high

static const unsigned rank_colors[RANKS] = {0x2a66b8, 0xa9cdf4, 0x238b4d, 0xa3dcb6,
                                            0xb3541e, 0xf0bf9b, 0x8457bd, 0xc9b3e6};

// Where a matrix begins: a row of matrices for the embeddings, and one for each block, in the file's order.
static void matrix_place(const Tensor* tensors, int index, double* x, double* y) {
    int64_t shape[2];
    *x = SVG_MARGIN;
    *y = FIRST_ROW;
    for (int layer = 0; layer <= tensors[index].layer; layer++) *y += ROW;
    for (int i = 0; i < index; i++) {
        const bool before = tensors[i].layer == tensors[index].layer && !tensors[i].vector;
        if (before && tensor_file_shape(shape, &tensors[i]) == 2) *x += (double)shape[1] + GAP;
    }
}

// Draws a slice part by part: runs that lie below each other are one rectangle.
static void draw_slice(const Slice* slice, double x, double y, unsigned color) {
    int64_t shape[2];
    tensor_file_shape(shape, &slice->tensor);
    const int64_t parts = slice->tensor.transposed ? slice->tensor.parts : 1, runs = slice_runs(slice);
    for (int64_t part = 0; part < parts; part++) {
        const Run run = slice_run(slice, part);
        svg_write_fill(stdout, x + (double)(run.file % shape[1]), y + (double)(run.file / shape[1]) / 4,
                       (double)run.count, (double)(runs / parts) / 4, color);
    }
}

int main(void) {
    Error error;
    const ModelConfig model = model_gpt2(4, 64, 4, 64, 256);
    Tensor tensors[64];
    model_tensors(tensors, &model);
    svg_write_begin(stdout, WIDTH, FIRST_ROW + 5 * ROW, SVG_MARGIN,
                    "model.safetensors: the rank that writes each part");
    for (int rank = 0; rank < RANKS; rank++) {
        Layout layout;
        char text[64];
        const Mesh mesh = mesh_of_rank(rank, 2, 2, 2);
        if (!layout_build(&layout, &model, mesh, 64, &error)) die("%s", error.text);
        snprintf(text, sizeof text, "rank %d (t %d, p %d, d %d)", rank, mesh.tensor, mesh.pipeline, mesh.data);
        svg_write_key(stdout, SVG_MARGIN + rank % 4 * 165.0, 52 + rank / 4 * 18, &rank_colors[rank], 1, text);
        for (int i = 0; i < layout.n; i++) {
            const Slice* slice = &layout.slices[i];
            double x, y;
            const bool writes = slice->bucket % mesh.d == mesh.data && slice_is_owned(slice, &layout);
            if (slice->tensor.vector || !writes) continue;
            matrix_place(tensors, slice->index, &x, &y);
            draw_slice(slice, x, y, rank_colors[rank]);
            if (mesh.tensor > 0) continue;
            const char* name = strchr(slice->tensor.name, '.') + 1; // of transformer.NAME.weight
            snprintf(text, sizeof text, "%.*s", (int)(strrchr(name, '.') - name), name);
            svg_write_text(stdout, x, y - 5, "font-size=\"10\"", text);
        }
        layout_free(&layout);
    }
    fputs("</svg>\n", stdout);
    return fflush(stdout) == 0 ? 0 : EXIT_RUN;
}
