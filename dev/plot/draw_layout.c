/*
draw_layout.c: what the ranks of a mesh hold, as SVG pictures, from the tables that the trainer executes.

    draw_layout --tp 2 --sequence-parallel --what tensor >tensor.svg
    draw_layout --dp 4 --zero 1 --what buckets >buckets.svg

    tensor    the matrices of a block: each rank's slices of them (parallel.h), and the operators f and g around them
    memory    bytes of the largest rank by kind (planner/memory.h), for ZeRO 0 to 2 and each recomputation
    buckets   the gradient buckets of a rank, in the order in which the backward pass sends them, and the owners
              of their shards
    flops     the FLOPs of a training step by operation, for three lengths of the sequence (model.h)
*/
#include "../../planner/memory.h"
#include "../../parallel/traffic.h"
#include "../../util/options.h"
#include "svg_timeline.h"

enum { WIDTH = 900, LABEL = 190, NOTE = 110, PITCH = 26, TOP = 86, MAX_COLOURS = 8, MAX_BARS = 512 };
enum { DRAW_TENSOR, DRAW_MEMORY, DRAW_BUCKETS, DRAW_FLOPS };

typedef struct {
    char label[96], note[64];
    int parts;
    double size[MAX_COLOURS]; // of each part, which has the colour of its number
} Bar;

static unsigned colour_of(int i) {
    static const unsigned colours[MAX_COLOURS] = {0x4e79a7, 0xf28e2b, 0x59a14f, 0xe15759,
                                                  0x76b7b2, 0xedc948, 0xb07aa1, 0x9c755f};
    return colours[i % MAX_COLOURS];
}

static void write_part(FILE* out, double x, double y, double width, double height, unsigned colour) {
    char attributes[64];
    snprintf(attributes, sizeof attributes, "class=\"part\" fill=\"#%06x\"", colour);
    svg_write_rect(out, x, y, width, height, attributes);
}

static void write_note(FILE* out, double x, double y, const char* anchor, const char* text) {
    char attributes[64];
    snprintf(attributes, sizeof attributes, "font-size=\"11\" text-anchor=\"%s\" fill=\"#57606a\"", anchor);
    svg_write_text(out, x, y, attributes, text);
}

// What the colours mean: rank 0, rank 1, .. (names = NULL) or names.
static void write_colours(FILE* out, int n, const char* rank, const char* const* names) {
    double x = SVG_MARGIN;
    for (int i = 0; i < n; i++) {
        char text[48];
        const unsigned colour = colour_of(i);
        snprintf(text, sizeof text, names ? "%s" : "%s %d", names ? names[i] : rank, i);
        x = svg_write_key(out, x, TOP - 18, &colour, 1, text) + 6;
    }
}

// A row for each bar, the longest as wide as there is room.
static void draw_bars(FILE* out, const char* title, const char* caption, const Bar* bars, int n, const char* rank,
                      const char* const* names) {
    double most = 0;
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int k = 0; k < bars[i].parts; k++) sum += bars[i].size[k];
        most = fmax(most, sum);
    }
    svg_write_begin(out, WIDTH, TOP + n * PITCH + SVG_MARGIN, SVG_MARGIN, title);
    write_note(out, SVG_MARGIN, SVG_MARGIN + 31, "start", caption);
    write_colours(out, bars[0].parts, rank, names);
    for (int i = 0; i < n; i++) {
        double x = SVG_MARGIN + LABEL;
        const double y = TOP + i * PITCH, scale = (WIDTH - 2 * SVG_MARGIN - LABEL - NOTE) / most;
        svg_write_text(out, SVG_MARGIN, y + 15, "", bars[i].label);
        for (int k = 0; k < bars[i].parts; k++) {
            write_part(out, x, y, scale * bars[i].size[k], PITCH - 5, colour_of(k));
            x += scale * bars[i].size[k];
        }
        write_note(out, x + 6, y + 15, "start", bars[i].note);
    }
    fputs("</svg>\n", out);
}

// ----------------------------------------------------------------------------------------------------------------
// The matrices of a block, drawn as in Shoeybi et al. 2019, Y = X A: inputs downwards, outputs to the right. In memory
// a matrix is A transposed, so a row of a slice is a column here.

// One rank's slice. Rows that follow each other in the model are one rectangle.
static void write_slice(FILE* out, const Slice* slice, int rank, double x, double y, double scale) {
    const int64_t run = slice->tensor.parallel == COLUMN_PARALLEL ? slice->rows / slice->tensor.parts : slice->rows;
    const bool shared = slice->tensor.parallel == COLUMN_PARALLEL && slice->copies > 1; // a key/value head
    const double height = scale * (double)slice->cols / (shared ? slice->copies : 1);
    const double top = y + scale * (double)slice_logical_col(slice) + (shared ? rank % slice->copies * height : 0);
    for (int64_t row = 0; row < slice->rows; row += run)
        write_part(out, x + scale * (double)slice_logical_row(slice, row), top, scale * (double)run, height,
                   colour_of(rank));
}

// The residual stream: all rows on every rank, or a rank's 1/t of them.
static double write_stream(FILE* out, const Mesh* mesh, double x, double y, double width) {
    const int parts = mesh->sequence_parallel ? mesh->t : 1;
    const double height = 72;
    for (int i = 0; i < parts; i++)
        write_part(out, x, y + i * height / parts, width, height / parts,
                   mesh->sequence_parallel ? colour_of(i) : 0xc9d1d9u);
    write_note(out, x + width / 2, y - 6, "middle", "stream");
    write_note(out, x + width / 2, y + height + 14, "middle", parts > 1 ? "1/t of the" : "all rows,");
    write_note(out, x + width / 2, y + height + 27, "middle", parts > 1 ? "rows each" : "all ranks");
    return x + width;
}

// The operator before a pair (f) or after it (g); returns where the next thing begins.
static double write_operator(FILE* out, const char* name, double x, double y) {
    svg_write_text(out, x + 14, y + 40, "font-size=\"16\" font-style=\"italic\" text-anchor=\"middle\"", name);
    return x + 28;
}

// Whether slice i is of a matrix of the first block.
static bool is_drawn(const Layout* layout, int i) {
    const Tensor* tensor = &layout->slices[i].tensor;
    return tensor->layer == layout->chunk[0].first_layer && !tensor->vector;
}

static void write_block(FILE* out, const Layout* layouts, double scale) {
    const Layout* first = &layouts[0];
    const bool sp = first->mesh.sequence_parallel;
    const double y = TOP + 16, stream = fmax(24, 0.4 * scale * first->channels);
    double x = SVG_MARGIN;
    Parallel before = ROW_PARALLEL;
    for (int i = 0; i < first->n; i++) {
        const Tensor* tensor = &first->slices[i].tensor;
        if (!is_drawn(first, i)) continue;
        if (tensor->parallel == COLUMN_PARALLEL && before == ROW_PARALLEL)
            x = write_operator(out, sp ? "g" : "f", write_stream(out, &first->mesh, x, y, stream), y);
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(strrchr(tensor->name, '.') - tensor->name), tensor->name);
        write_note(out, x, y - 6, "start", strrchr(name, '.') + 1);
        for (int rank = 0; rank < first->mesh.t; rank++) write_slice(out, &layouts[rank].slices[i], rank, x, y, scale);
        x += scale * (double)tensor->rows + 12;
        if (tensor->parallel == ROW_PARALLEL) x = write_operator(out, sp ? "g\xcc\x84" : "g", x - 12, y);
        before = tensor->parallel;
    }
    write_stream(out, &first->mesh, x, y, stream);
}

static bool draw_tensor(FILE* out, const ModelConfig* model, Mesh mesh, int B, Error* error) {
    Layout layouts[MAX_COLOURS];
    char text[256];
    int64_t width = 0, height = 0;
    for (mesh.tensor = 0; mesh.tensor < mesh.t; mesh.tensor++) {
        if (!layout_build(&layouts[mesh.tensor], model, mesh, model->T, error)) return false;
    }
    for (int i = 0; i < layouts[0].n; i++) {
        if (!is_drawn(&layouts[0], i)) continue;
        width += layouts[0].slices[i].tensor.rows;
        height = max_i64(height, layouts[0].slices[i].tensor.cols);
    }
    const double scale = (WIDTH - 2 * SVG_MARGIN - 330.0) / (double)width;
    const double bottom = TOP + 16 + fmax(112, scale * (double)height) + 26;
    snprintf(text, sizeof text, "%s: the matrices of a block on %d tensor ranks%s", model->name, mesh.t,
             mesh.sequence_parallel ? ", sequence parallel" : "");
    svg_write_begin(out, WIDTH, bottom + SVG_MARGIN, SVG_MARGIN, text);
    write_note(out, SVG_MARGIN, SVG_MARGIN + 31, "start",
               mesh.sequence_parallel
                   ? "g: all-gather of rows forward, reduce-scatter backward; g\xcc\x84: reduce-scatter forward, "
                     "all-gather backward"
                   : "f: nothing forward, all-reduce backward; g: all-reduce forward, nothing backward");
    write_colours(out, mesh.t, "tensor rank", NULL);
    write_block(out, layouts, scale);
    const Traffic traffic = traffic_of_step(&layouts[0], model, B, model->T, 1, sizeof(float));
    snprintf(text, sizeof text, "a rank sends %.0f bytes a block and micro-batch (B %d, T %d, C %d: %.0f elements)",
             traffic.layers / layouts[0].layers, B, model->T, model->C, (double)B * model->T * model->C);
    write_note(out, SVG_MARGIN, bottom, "start", text);
    fputs("</svg>\n", out);
    for (int rank = 0; rank < mesh.t; rank++) layout_free(&layouts[rank]);
    return true;
}

// ---- Bars -------------------------------------------------------------------------------------------------------

static bool draw_memory(FILE* out, const ModelConfig* model, Mesh mesh, int B, Error* error) {
    static const char* const recompute[] = {"", ", recompute selective", ", recompute full"};
    const DtypeInfo type = {sizeof(float), false, 2};
    const int zero = mesh.zero;
    Bar bars[5];
    char title[200];
    for (int i = 0; i < 5; i++) { // ZeRO 0, 1, 2; then the recomputations with the ZeRO that was asked for
        StageMemory memory;
        mesh.zero = i < 3 ? i : zero;
        mesh.recompute = i < 3 ? RECOMPUTE_NONE : (Recompute)(i - 2);
        const PipelineConfig plan = {ONE_F_ONE_B, mesh.p, 1, 4, mesh.zero == 2, model->tied};
        if (!plan_memory(&memory, model, &mesh, B, model->T, &plan, type, error)) return false;
        bars[i].parts = ARENAS;
        for (int k = 0; k < ARENAS; k++) bars[i].size[k] = memory.arena[k];
        snprintf(bars[i].label, sizeof bars[i].label, "ZeRO %d%s", mesh.zero, recompute[mesh.recompute]);
        const ByteUnit unit = byte_unit(memory.bytes, false);
        snprintf(bars[i].note, sizeof bars[i].note, "%.1f %s", memory.bytes / unit.bytes, unit.name);
    }
    snprintf(title, sizeof title, "%s: memory of a rank, (t, p, d) = (%d, %d, %d)%s, fp32", model->name, mesh.t, mesh.p,
             mesh.d, mesh.sequence_parallel ? ", sequence parallel" : "");
    draw_bars(out, title, "of the ranks of the mesh, the one with the largest sum", bars, 5, NULL, arena_names);
    return true;
}

// The backward pass completes the buckets of a stage against their order in memory.
static bool draw_buckets(FILE* out, const ModelConfig* model, Mesh mesh, Error* error) {
    static Bar bars[MAX_BARS];
    Layout layout;
    char title[200];
    if (!layout_build(&layout, model, mesh, model->T, error)) return false;
    const int n = (int)min_i64(layout.buckets, MAX_BARS);
    for (int i = 0; i < n; i++) {
        Bar* bar = &bars[i];
        const int b = layout.buckets - 1 - i;
        const Tensor* tensor = &layout.slices[layout.bucket[b].first].tensor;
        snprintf(bar->label, sizeof bar->label, "%d: %s", i + 1, tensor->name);
        if (tensor->layer >= 0 && tensor->layer < model->L)
            snprintf(bar->label, sizeof bar->label, "%d: block %d", i + 1, tensor->layer);
        snprintf(bar->note, sizeof bar->note, "%lld", (long long)layout.bucket[b].elements);
        bar->parts = mesh.zero ? mesh.d : 1;
        for (int k = 0; k < bar->parts; k++) bar->size[k] = (double)layout.bucket[b].elements / bar->parts;
    }
    layout_free(&layout);
    snprintf(title, sizeof title, "%s: gradient buckets of rank 0 of (%d, %d, %d) with ZeRO %d", model->name, mesh.t,
             mesh.p, mesh.d, mesh.zero);
    draw_bars(out, title, "from top to bottom as they are sent; elements, and who owns which shard", bars, n,
              mesh.zero ? "data rank" : "every data rank; bucket", NULL);
    return true;
}

// Which of draw_flops' parts a matrix or vector is in
static int flops_part(const Tensor* tensor) {
    const TensorKind kind = tensor->kind;
    if (kind == QKV_W || kind == K_W || kind == V_W) return 0;
    if (kind == ATTN_PROJ_W) return 2;
    if (kind == FC_W || kind == UP_W || kind == MLP_PROJ_W) return 3;
    return is_vocabulary(tensor) ? 4 : 5;
}

static void draw_flops(FILE* out, const ModelConfig* model) {
    static const char* const names[] = {"qkv", "attention",          "attention's projection",
                                        "mlp", "embedding and head", "vectors, positions"};
    Bar bars[3];
    Tensor* list = (Tensor*)checked_malloc((size_t)model_tensors(NULL, model) * sizeof(Tensor), "the tensors");
    const int n = model_tensors(list, model);
    char title[128];
    memset(bars, 0, sizeof bars);
    for (int i = 0; i < 3; i++) {
        const int T = model->T << 2 * i;
        const double flops = model_flops_per_token(model, T);
        bars[i].parts = 6;
        bars[i].size[1] = 6.0 * model->L * model->C * T / flops;
        for (int k = 0; k < n; k++)
            bars[i].size[flops_part(&list[k])] += 6.0 * (double)(list[k].rows * list[k].cols) / flops;
        snprintf(bars[i].label, sizeof bars[i].label, "sequences of %d", T);
        snprintf(bars[i].note, sizeof bars[i].note, "%.0f", flops);
    }
    free(list);
    snprintf(title, sizeof title, "%s: FLOPs of a training step for each token", model->name);
    draw_bars(out, title, "by operation: 6 N + 6 L C T; every bar is 100 %, its number the sum", bars, 3, NULL, names);
}

// Prints a picture to out. Returns false if there is none.
static bool draw_layout(int argc, char** argv, FILE* out, Error* error) {
    const char* name = "tiny";
    int64_t tp = 1, pp = 1, dp = 1, zero = 0, B = 4;
    int what = DRAW_TENSOR;
    bool sequence_parallel = false, help = false;
    Option table[] = {
        option_choice("what", &what, "tensor|memory|buckets|flops", "the picture"),
        option_string("model", &name, "NAME", "a published size"),
        option_int("tp", &tp, 1, MAX_COLOURS, "tensor ranks"),
        option_int("pp", &pp, 1, 256, "stages"),
        option_int("dp", &dp, 1, MAX_COLOURS, "replicas"),
        option_int("zero", &zero, 0, 2, "ZeRO's stage"),
        option_flag("sequence-parallel", &sequence_parallel, "splits the rows of the residual stream over tp"),
        option_int("micro-batch", &B, 1, 1024, "sequences of a micro-batch"),
        option_flag("help", &help, "this list"),
    };
    const int options = (int)(sizeof table / sizeof table[0]);
    if (!options_parse(table, options, argc, argv, error)) return false;
    if (help) {
        fprintf(out, "draw_layout draws what the ranks of a mesh hold, as SVG.\n\n");
        options_help(table, options, out);
        return true;
    }
    const ModelConfig* model = model_find_preset(name);
    if (!model) return fail(error, "--model %s: there is no such model", name);
    Mesh mesh = mesh_of_rank(0, (int)tp, (int)pp, (int)dp);
    mesh.zero = (int)zero;
    mesh.sequence_parallel = sequence_parallel;
    if (what == DRAW_TENSOR) return draw_tensor(out, model, mesh, (int)B, error);
    if (what == DRAW_MEMORY) return draw_memory(out, model, mesh, (int)B, error);
    if (what == DRAW_BUCKETS) return draw_buckets(out, model, mesh, error);
    draw_flops(out, model);
    return true;
}

#ifndef DRAW_LAYOUT_NO_MAIN
int main(int argc, char** argv) {
    process.name = "draw_layout";
    Error error;
    if (!draw_layout(argc, argv, stdout, &error)) die_usage("%s", error.text);
    return fflush(stdout) == 0 ? 0 : EXIT_RUN;
}
#endif
