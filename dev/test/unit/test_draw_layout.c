/*
Tests of dev/plot/draw_layout.c, by the rectangles of its pictures: slices of tensor ranks do not overlap and have the
areas that the layout says; bars are in the proportions of the memory plan, of the buckets and of the FLOPs that are
printed as MFU; what does not fit is refused without a byte of output.
*/
#define DRAW_LAYOUT_NO_MAIN
#include "../../plot/draw_layout.c"
#include "golden.h"

enum { MOST = 512 };
typedef struct {
    double x, y, w, h;
    unsigned colour;
} Part;

static int layout_tool(int argc, char** argv, FILE* out, Error* error) { return !draw_layout(argc, argv, out, error); }

// The coloured rectangles of a picture; *notes: the numbers right of the bars.
static int parts_of(const char* line, Part* parts, double* notes) {
    Error error;
    int n = 0;
    int status;
    char* text = run_tool(layout_tool, line, &status, &error);
    check(status == 0, "%s %s", line, error.text);
    for (const char* at = text; n < MOST && (at = strstr(at, "<rect x=")); at++) {
        Part* p = &parts[n];
        n += sscanf(at, "<rect x=\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\" class=\"part\" fill=\"#%x", &p->x,
                    &p->y, &p->w, &p->h, &p->colour) == 5;
    }
    for (const char* at = text; notes && (at = strstr(at, "\"start\" fill=\"#57606a\">")); at++) {
        if (sscanf(at, "\"start\" fill=\"#57606a\">%lf", notes) == 1) notes++;
    }
    free(text);
    return n;
}

// Matrices of a block: each rank's area, and no two slices over each other.
static void test_tensor(const char* name, int t, bool sequence) {
    char line[128];
    Part parts[MOST];
    Error error;
    const ModelConfig* model = model_find_preset(name);
    snprintf(line, sizeof line, "--what tensor --model %s --tp %d%s", name, t, sequence ? " --sequence-parallel" : "");
    const int n = parts_of(line, parts, NULL);
    int overlaps = 0, gray = 0;
    for (int i = 0; i < n; i++) {
        gray += parts[i].colour == 0xc9d1d9;
        for (int k = 0; k < i; k++) {
            const double w = fmin(parts[i].x + parts[i].w, parts[k].x + parts[k].w) - fmax(parts[i].x, parts[k].x);
            const double h = fmin(parts[i].y + parts[i].h, parts[k].y + parts[k].h) - fmax(parts[i].y, parts[k].y);
            overlaps += w > 0.1 && h > 0.1; // numbers have four or five digits
        }
    }
    check(n > 0 && overlaps == 0, "    %d rectangles, %d over others", n, overlaps);
    check(gray == (sequence ? 0 : 3), "    %d streams that all ranks have", gray);
    for (int rank = 0; rank < t; rank++) {
        Layout layout;
        Mesh mesh = mesh_of_rank(rank, t, 1, 1);
        double held = 0, drawn = 0, rows = 0;
        mesh.sequence_parallel = sequence;
        if (!layout_build(&layout, model, mesh, model->T, &error)) die("test_draw_layout: %s", error.text);
        for (int i = 0; i < layout.n; i++) {
            const Slice* slice = &layout.slices[i];
            if (slice->tensor.layer != 0 || slice->tensor.vector) continue;
            const bool shared = slice->copies > 1 && slice->copies < t; // ranks with one key/value head divide its room
            rows += (double)slice->tensor.rows;
            held += (double)slice_elements(slice) / (shared ? slice->copies : 1);
        }
        const double scale = (WIDTH - 2 * SVG_MARGIN - 330.0) / rows;
        const double stream = fmax(24, 0.4 * scale * model->C) * 72 / t;
        for (int i = 0; i < n; i++) drawn += parts[i].colour == colour_of(rank) ? parts[i].w * parts[i].h : 0;
        held = held * scale * scale + (sequence ? 3 * stream : 0);
        check(fabs(drawn / held - 1) < 0.002, "    rank %d: an area of %.0f, %.0f by the layout", rank, drawn, held);
        layout_free(&layout);
    }
}

// Five bars of five arenas; ZeRO divides the optimizer, recomputation the activations.
static void test_memory(void) {
    Part parts[MOST];
    double notes[MOST], width[5] = {0};
    const int n = parts_of("--what memory --dp 4 --zero 1 --model gpt2-124M", parts, notes);
    check(n == 25, "    %d parts", n);
    if (n != 25) return;
    for (int i = 0; i < n; i++) width[i / 5] += parts[i].w;
    for (int i = 0; i < 5; i++)
        check(fabs(notes[i] / notes[0] - width[i] / width[0]) < 2e-3, "    bar %d: %.1f", i, notes[i]);
    check(fabs(4 * parts[7].w / parts[2].w - 1) < 1e-3, "    ZeRO-1 has 1/4 of the optimizer");
    check(parts[11].w < parts[6].w && parts[12].w == parts[7].w, "    ZeRO-2 has less gradients");
    check(parts[18].w < parts[8].w && parts[23].w < parts[18].w, "    recomputation keeps less");
    check(fabs(parts[0].w / width[0] * notes[0] * 1e6 / (4.0 * 124439808) - 1) < 2e-3, "    all parameters");
}

// Bars of four equal shards, in the order of the backward pass.
static void test_buckets(void) {
    static const double elements[] = {256, 198272, 198272, 198272, 198272, 16384, 32768};
    Part parts[MOST];
    double notes[MOST];
    const int n = parts_of("--what buckets --dp 4 --zero 1", parts, notes);
    bool same = n == 28, equal = n == 28;
    for (int i = 0; i < 7; i++) same = same && notes[i] == elements[i];
    for (int i = 0; i < n; i++) {
        equal = equal && fabs(parts[i].w / parts[4].w - elements[i / 4] / elements[1]) < 1e-2;
        equal = equal && parts[i].colour == colour_of(i % 4);
    }
    check(same, "    final norm, blocks, positions, embedding");
    check(equal, "    shards of equal size");
    check(parts_of("--what buckets --dp 4", parts, notes) == 7, "    without ZeRO every replica has all");
}

static void test_flops(void) {
    Part parts[MOST];
    double notes[MOST];
    const ModelConfig* model = model_find_preset("llama-130M");
    const int n = parts_of("--what flops --model llama-130M", parts, notes);
    check(n == 18, "    %d parts", n);
    if (n != 18) return;
    for (int i = 0; i < 3; i++) {
        const int T = 1024 << 2 * i;
        double width = 0, flops = model_flops_per_token(model, T);
        for (int k = 0; k < 6; k++) width += parts[6 * i + k].w;
        check(fabs(notes[i] - flops) < 1, "    T %d: %.0f FLOPs a token", T, flops);
        check(fabs(parts[6 * i + 1].w / width - 6.0 * model->L * model->C * T / flops) < 1e-4, "    attention");
        check(fabs(parts[6 * i + 3].w / width - 18.0 * model->L * model->C * model->F / flops) < 1e-4, "    mlp");
    }
}

static void test_refused(void) {
    static const char* const lines[][2] = {{"--model none", "none"},
                                           {"--tp 3", "--heads"},
                                           {"--sequence-parallel", "--tp 2"},
                                           {"--what memory --pp 8", "--pp 8"},
                                           {"--what colours", "colours"}};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        Error error;
        int status;
        char* text = run_tool(layout_tool, lines[i][0], &status, &error);
        check(status && !*text && strstr(error.text, lines[i][1]), "%s: %d %s", lines[i][0], status, error.text);
        free(text);
    }
}

int main(void) {
    process.name = "test_draw_layout";
    test_tensor("tiny", 2, false);
    test_tensor("gpt2-124M", 4, true);
    test_tensor("llama-1.1B", 8, false);
    test_memory();
    test_buckets();
    test_flops();
    test_refused();
    return test_end();
}
