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

enum { WIDTH = 900, LABEL = 190, NOTE = 110, PITCH = 26, TOP = 86, MAX_COLOURS = 8, MAX_PARTS = 64, MAX_BARS = 512 };
typedef enum { DRAW_TENSOR, DRAW_MEMORY, DRAW_BUCKETS, DRAW_FLOPS } LayoutPicture;

typedef struct {
    const char* model;
    int64_t tp, pp, dp, zero, B, m;
    int what, type;
    bool sequence_parallel, help;
} LayoutOptions;

typedef struct {
    char label[96], note[64];
    int parts, colour[MAX_PARTS];
    double size[MAX_PARTS];
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

// The largest bar is as wide as there is room; in percent: every bar is.
static void write_bars(FILE* out, const Bar* bars, int n, bool percent) {
    const double room = WIDTH - 2 * SVG_MARGIN - LABEL - NOTE;
    double most = 0;
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int k = 0; k < bars[i].parts; k++) sum += bars[i].size[k];
        most = fmax(most, sum);
    }
    for (int i = 0; i < n; i++) {
        double x = SVG_MARGIN + LABEL, sum = 0;
        const double y = TOP + i * PITCH;
        for (int k = 0; k < bars[i].parts; k++) sum += bars[i].size[k];
        svg_write_text(out, SVG_MARGIN, y + 15, "", bars[i].label);
        for (int k = 0; k < bars[i].parts; k++) {
            const double width = room * bars[i].size[k] / (percent ? sum : most);
            write_part(out, x, y, width, PITCH - 5, colour_of(bars[i].colour[k]));
            x += width;
        }
        write_note(out, x + 6, y + 15, "start", bars[i].note);
    }
}

static void bar_add(Bar* bar, double size, int colour) {
    bar->size[bar->parts] = size;
    bar->colour[bar->parts++] = colour;
}

static bool draw_bars(FILE* out, const char* title, const char* caption, const Bar* bars, int n, bool percent,
                      int colours, const char* rank, const char* const* names) {
    svg_write_begin(out, WIDTH, TOP + n * PITCH + SVG_MARGIN, SVG_MARGIN, title);
    write_note(out, SVG_MARGIN, SVG_MARGIN + 31, "start", caption);
    write_colours(out, colours, rank, names);
    write_bars(out, bars, n, percent);
    fputs("</svg>\n", out);
    return true;
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

static void write_block(FILE* out, const Layout* layouts, double scale) {
    const Layout* first = &layouts[0];
    const bool sp = first->mesh.sequence_parallel;
    const double y = TOP + 16, stream = fmax(24, 0.4 * scale * first->channels);
    double x = SVG_MARGIN;
    Parallel before = ROW_PARALLEL;
    for (int i = 0; i < first->n; i++) {
        const Tensor* tensor = &first->slices[i].tensor;
        const char* dot = strrchr(tensor->name, '.');
        if (tensor->layer != first->chunk[0].first_layer || tensor->vector) continue;
        if (tensor->parallel == COLUMN_PARALLEL && before == ROW_PARALLEL)
            x = write_operator(out, sp ? "g" : "f", write_stream(out, &first->mesh, x, y, stream), y);
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(dot - tensor->name), tensor->name);
        const char* part = strrchr(name, '.');
        write_note(out, x, y - 6, "start", part ? part + 1 : name);
        for (int rank = 0; rank < first->mesh.t; rank++) write_slice(out, &layouts[rank].slices[i], rank, x, y, scale);
        x += scale * (double)tensor->rows + 12;
        if (tensor->parallel == ROW_PARALLEL) x = write_operator(out, sp ? "g\xcc\x84" : "g", x - 12, y);
        before = tensor->parallel;
    }
    write_stream(out, &first->mesh, x, y, stream);
}

static bool draw_tensor(FILE* out, const ModelConfig* model, Mesh mesh, const LayoutOptions* o, Error* error) {
    Layout layouts[MAX_COLOURS];
    char title[160], text[256];
    int64_t width = 0, height = 0;
    for (mesh.tensor = 0; mesh.tensor < mesh.t; mesh.tensor++) {
        if (!layout_build(&layouts[mesh.tensor], model, mesh, model->T, error)) return false;
    }
    for (int i = 0; i < layouts[0].n; i++) {
        const Tensor* tensor = &layouts[0].slices[i].tensor;
        if (tensor->layer != layouts[0].chunk[0].first_layer || tensor->vector) continue;
        width += tensor->rows;
        height = max_i64(height, tensor->cols);
    }
    const double scale = (WIDTH - 2 * SVG_MARGIN - 330.0) / (double)width;
    snprintf(title, sizeof title, "%s: the matrices of a block on %d tensor ranks%s", model->name, mesh.t,
             mesh.sequence_parallel ? ", sequence parallel" : "");
    svg_write_begin(out, WIDTH, TOP + 16 + fmax(112, scale * (double)height) + 26 + SVG_MARGIN, SVG_MARGIN, title);
    write_note(out, SVG_MARGIN, SVG_MARGIN + 31, "start",
               mesh.sequence_parallel
                   ? "g: all-gather of rows forward, reduce-scatter backward; g\xcc\x84: reduce-scatter forward, "
                     "all-gather backward"
                   : "f: nothing forward, all-reduce backward; g: all-reduce forward, nothing backward");
    write_colours(out, mesh.t, "tensor rank", NULL);
    write_block(out, layouts, scale);
    const double x = (double)o->B * model->T * model->C;
    const Traffic traffic = traffic_of_step(&layouts[0], model, (int)o->B, model->T, 1, o->type ? 2 : sizeof(float));
    snprintf(text, sizeof text, "a rank sends %.0f bytes a block and micro-batch (B %d, T %d, C %d: %.0f elements)",
             traffic.layers / layouts[0].layers, (int)o->B, model->T, model->C, x);
    write_note(out, SVG_MARGIN, TOP + 16 + fmax(112, scale * (double)height) + 26, "start", text);
    fputs("</svg>\n", out);
    for (int rank = 0; rank < mesh.t; rank++) layout_free(&layouts[rank]);
    return true;
}

// ----------------------------------------------------------------------------------------------------------------
// Bars

static bool draw_memory(FILE* out, const ModelConfig* model, Mesh mesh, const LayoutOptions* o, Error* error) {
    static const char* const names[] = {"none", "selective", "full"};
    const DtypeInfo type = {o->type ? 2 : 4, o->type == 1, 2};
    Bar bars[5];
    char title[200];
    memset(bars, 0, sizeof bars);
    for (int i = 0; i < 5; i++) { // ZeRO 0, 1, 2; then the recomputations with the ZeRO that was asked for
        StageMemory memory;
        mesh.zero = i < 3 ? i : (int)o->zero;
        mesh.recompute = i < 3 ? RECOMPUTE_NONE : (Recompute)(i - 2);
        const PipelineConfig plan = {ONE_F_ONE_B, mesh.p, 1, (int)o->m, mesh.zero == 2, model->tied, true};
        if (!plan_memory(&memory, model, &mesh, (int)o->B, model->T, &plan, type, error)) return false;
        for (int k = 0; k < ARENAS; k++) bar_add(&bars[i], memory.arena[k], k);
        if (mesh.recompute == RECOMPUTE_NONE)
            snprintf(bars[i].label, sizeof bars[i].label, "ZeRO %d", mesh.zero);
        else
            snprintf(bars[i].label, sizeof bars[i].label, "ZeRO %d, recompute %s", mesh.zero, names[mesh.recompute]);
        const ByteUnit unit = byte_unit(memory.bytes, false);
        snprintf(bars[i].note, sizeof bars[i].note, "%.1f %s", memory.bytes / unit.bytes, unit.name);
    }
    snprintf(title, sizeof title, "%s: memory of a rank, (t, p, d) = (%d, %d, %d)%s, %s", model->name, mesh.t, mesh.p,
             mesh.d, mesh.sequence_parallel ? ", sequence parallel" : "", o->type ? "bf16" : "fp32");
    return draw_bars(out, title, "of the ranks of the mesh, the one with the largest sum", bars, 5, false, ARENAS, NULL,
                     arena_names);
}

// The backward pass completes the buckets of a stage against their order in memory.
static bool draw_buckets(FILE* out, const ModelConfig* model, Mesh mesh, Error* error) {
    Layout layout;
    Bar* bars = (Bar*)checked_calloc(MAX_BARS, sizeof(Bar), "the bars");
    char title[200];
    if (!layout_build(&layout, model, mesh, model->T, error)) return free(bars), false;
    const int n = (int)min_i64(layout.buckets, MAX_BARS);
    for (int i = 0; i < n; i++) {
        const int b = layout.buckets - 1 - i;
        const Tensor* tensor = &layout.slices[layout.bucket[b].first].tensor;
        const bool block = tensor->layer >= 0 && tensor->layer < model->L;
        if (block)
            snprintf(bars[i].label, sizeof bars[i].label, "%d: block %d", i + 1, tensor->layer);
        else
            snprintf(bars[i].label, sizeof bars[i].label, "%d: %s", i + 1, tensor->name);
        snprintf(bars[i].note, sizeof bars[i].note, "%lld", (long long)layout.bucket[b].elements);
        const int shards = mesh.zero ? mesh.d : 1;
        for (int k = 0; k < shards; k++) bar_add(&bars[i], (double)layout.bucket[b].elements / shards, k);
    }
    snprintf(title, sizeof title, "%s: gradient buckets of rank 0 of (%d, %d, %d) with ZeRO %d", model->name, mesh.t,
             mesh.p, mesh.d, mesh.zero);
    const bool ok =
        draw_bars(out, title, "from top to bottom as they are sent; elements, and who owns which shard", bars, n, false,
                  mesh.zero ? mesh.d : 1, mesh.zero ? "data rank" : "every data rank; bucket", NULL);
    layout_free(&layout);
    free(bars);
    return ok;
}

static bool draw_flops(FILE* out, const ModelConfig* model) {
    static const char* const names[] = {"qkv", "attention",          "attention's projection",
                                        "mlp", "embedding and head", "vectors, positions"};
    Bar bars[3];
    Tensor* list = (Tensor*)checked_malloc((size_t)model_tensors(NULL, model) * sizeof(Tensor), "the tensors");
    const int n = model_tensors(list, model);
    char title[128];
    memset(bars, 0, sizeof bars);
    for (int i = 0; i < 3; i++) {
        const int T = model->T << 2 * i;
        double flops[6] = {0, 6.0 * model->L * model->C * T, 0, 0, 0, 0};
        for (int k = 0; k < n; k++) {
            int what = 5;
            const TensorKind kind = list[k].kind;
            if (kind == QKV_W || kind == K_W || kind == V_W) what = 0;
            if (kind == ATTN_PROJ_W) what = 2;
            if (kind == FC_W || kind == UP_W || kind == MLP_PROJ_W) what = 3;
            if (is_vocabulary(&list[k])) what = 4;
            flops[what] += 6.0 * (double)(list[k].rows * list[k].cols);
        }
        for (int k = 0; k < 6; k++) bar_add(&bars[i], flops[k], k);
        snprintf(bars[i].label, sizeof bars[i].label, "sequences of %d", T);
        snprintf(bars[i].note, sizeof bars[i].note, "%.0f", model_flops_per_token(model, T));
    }
    snprintf(title, sizeof title, "%s: FLOPs of a training step for each token", model->name);
    free(list);
    return draw_bars(out, title, "by operation: 6 N + 6 L C T; every bar is 100 %, its number the sum", bars, 3, true,
                     6, NULL, names);
}

// ----------------------------------------------------------------------------------------------------------------

// Prints to out. Returns the exit status, with an error if it is not 0.
static int draw_layout(int argc, char** argv, FILE* out, Error* error) {
    LayoutOptions o = {"tiny", 1, 1, 1, 0, 4, 4, DRAW_TENSOR, 0, false, false};
    Option table[] = {
        option_choice("what", &o.what, "tensor|memory|buckets|flops", "the picture"),
        option_string("model", &o.model, "NAME", "a published size"),
        option_int("tp", &o.tp, 1, MAX_COLOURS, "tensor ranks"),
        option_int("pp", &o.pp, 1, 256, "stages"),
        option_int("dp", &o.dp, 1, MAX_COLOURS, "replicas"),
        option_int("zero", &o.zero, 0, 2, "ZeRO's stage"),
        option_flag("sequence-parallel", &o.sequence_parallel, "splits the rows of the residual stream over tp"),
        option_int("micro-batch", &o.B, 1, 1024, "sequences of a micro-batch"),
        option_int("microbatches", &o.m, 1, 1024, "of a step"),
        option_choice("values", &o.type, "fp32|bf16", "parameters and activations"),
        option_flag("help", &o.help, "this list"),
    };
    if (!options_parse(table, (int)(sizeof table / sizeof table[0]), argc, argv, error)) return EXIT_ARGUMENTS;
    if (o.help) {
        fprintf(out, "draw_layout draws what the ranks of a mesh hold, as SVG.\n\n");
        options_help(table, (int)(sizeof table / sizeof table[0]), out);
        return 0;
    }
    const ModelConfig* model = model_find_preset(o.model);
    if (!model) return fail(error, "--model %s: there is no such model", o.model), EXIT_ARGUMENTS;
    Mesh mesh = mesh_of_rank(0, (int)o.tp, (int)o.pp, (int)o.dp);
    mesh.zero = (int)o.zero;
    mesh.sequence_parallel = o.sequence_parallel;
    bool ok = false;
    switch ((LayoutPicture)o.what) {
    case DRAW_TENSOR: ok = draw_tensor(out, model, mesh, &o, error); break;
    case DRAW_MEMORY: ok = draw_memory(out, model, mesh, &o, error); break;
    case DRAW_BUCKETS: ok = draw_buckets(out, model, mesh, error); break;
    case DRAW_FLOPS: ok = draw_flops(out, model); break;
    }
    if (!ok) return EXIT_ARGUMENTS;
    if (fflush(out) == 0 && !ferror(out)) return 0;
    fail(error, "writing failed: %s", strerror(errno));
    return EXIT_RUN;
}

#ifndef DRAW_LAYOUT_NO_MAIN
int main(int argc, char** argv) {
    process.name = "draw_layout";
    Error error;
    const int status = draw_layout(argc, argv, stdout, &error);
    if (status == EXIT_ARGUMENTS) die_usage("%s", error.text);
    if (status != 0) die("%s", error.text);
    return 0;
}
#endif
