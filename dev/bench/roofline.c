/*
roofline.c: the floor of a training step on one GPU, and what we aim at (roofline.h says how). Runs anywhere.

    build/roofline                              the six models, a line each
    build/roofline --model gpt2-124M            one of them, operation by operation
    build/roofline --numbers                    the six models, for scripts: name, floor and goal (ms), FLOP a token by
                                                both counts of MFU (in 10^9), GiB, and what to run: sequences at once,
                                                of a step, their tokens, vocabulary
    build/roofline --help                       options, such as another batch, or another GPU

All of it is a prediction. Nothing here was measured on the models.
*/
#include "../../util/options.h"
#include "roofline.h"

static double gib(double bytes) { return bytes / 1073741824; }

static void print_rows(const Roofline* r, const Ceilings* c) {
    printf("%-30s %6s %10s %10s %10s %-8s %10s %9s %9s %9s   %s\n", "operation", "count", "GFLOP", "MB", "Mex2",
           "bound", "floor us", "sum ms", "goal ms", "stretch", "goal");
    for (int i = 0; i < r->n; i++) {
        const RooflineRow* row = &r->row[i];
        Bound bound;
        const double floor = row_floor(row, c, &bound), n = row->count;
        char goal[48];
        if (row->flops > 0)
            snprintf(goal, sizeof goal, "%.0f TFLOP/s", row->goal * c->product / 1e12);
        else
            snprintf(goal, sizeof goal, "%.0f %% of the copy", 100 * row->goal);
        printf("%-30s %6d %10.1f %10.1f %10.1f %-8s %10.1f %9.2f %9.2f %9.2f   %s\n", row->name, row->count,
               row->flops / 1e9, row->bytes / 1e6, row->exps / 1e6, bound_names[bound], 1e6 * floor, 1e3 * n * floor,
               1e3 * n * row_seconds(row, c, row->goal), 1e3 * n * row_seconds(row, c, row->stretch), goal);
    }
}

static void print_case(const Roofline* r, const RooflineTotals* t, const Ceilings* c, const char* name,
                       double seconds) {
    printf("%-34s %9.2f ms %9.0f tokens/s   MFU %5.1f %% causal, %5.1f %% full\n", name, 1e3 * seconds,
           roofline_tokens(r) / seconds, 100 * roofline_mfu(r, t, c, seconds, false),
           100 * roofline_mfu(r, t, c, seconds, true));
}

static void print_memory(const Roofline* r, double memory_bytes) {
    StageMemory m;
    Error error;
    if (!roofline_memory(&m, r, &error)) die("%s", error.text);
    printf("memory   ");
    for (int i = 0; i < ARENAS; i++) printf(" %s %.2f,", arena_names[i], gib(m.arena[i]));
    printf(" together %.2f GiB of %.0f; about %.1f beside that\n", gib(m.bytes), gib(memory_bytes),
           gib(ROOFLINE_BESIDE));
}

static void print_one(const Roofline* r, const Ceilings* c, double memory_bytes) {
    const RooflineTotals t = roofline_totals(r, c);
    printf("%s: %d x %d sequences of %d tokens, vocabulary %d, %.1f M parameters; %.0f TFLOP/s, %.2f TB/s, %.2f "
           "Tex2/s\n\n",
           r->model.name, r->micro_batches, r->B, r->T, r->model.V, (double)model_parameters(&r->model) / 1e6,
           c->product / 1e12, c->copy / 1e12, c->exponentials / 1e12);
    print_rows(r, c);
    printf("\nsum       %.1f TFLOP (%.1f executed), %.1f GB, %.0f launches; floor %.2f ms: products %.2f, attention "
           "%.2f, memory %.2f\n",
           t.flops / 1e12, t.executed / 1e12, t.bytes / 1e9, t.launches, 1e3 * t.floor, 1e3 * t.part[OP_PRODUCT],
           1e3 * t.part[OP_ATTENTION], 1e3 * t.part[OP_MEMORY]);
    printf("MFU of %.1f TFLOP/s: causal counts (6 N + 6 L C T) %.4f GFLOP a token, full (6 N + 12 L C T) %.4f\n",
           c->peak / 1e12, t.per_token / 1e9, t.per_token_full / 1e9);
    print_case(r, &t, c, "all copies under the products", t.overlap);
    print_case(r, &t, c, "floor, one after the other", t.floor);
    print_case(r, &t, c, "the same, seven products backward", t.floor + (t.executed - t.flops) / c->product);
    print_case(r, &t, c, "stretch", t.stretch);
    print_case(r, &t, c, "goal", t.goal);
    printf("launches  %.0f of 2.5 us would be %.1f %% of the step at its goal, if none ran ahead\n", t.launches,
           100 * t.launches * 2.5e-6 / t.goal);
    print_memory(r, memory_bytes);
}

typedef struct {
    const char* model;
    int64_t B, T, micro;
    int recompute; // Recompute
    bool separate, numbers, help;
    Ceilings ceilings;
    double memory;
} Wish;

// The micro-batch that was asked for, or the largest that fits.
static int micro_batch(const Wish* w, const ModelConfig* m, int B, int T) {
    const int fits = w->micro ? 0 : roofline_micro_batch(m, B, T, (Recompute)w->recompute, w->memory);
    const int micro = w->micro ? (int)w->micro : fits;
    if (micro == 0) die("%s: no micro-batch fits into %.0f GiB; try --recompute full", m->name, gib(w->memory));
    if (B % micro != 0) die("--micro-batch %d does not divide --batch %d", micro, B);
    return micro;
}

static void print_summary(const Wish* w, Roofline* r) {
    if (!w->numbers)
        printf("%-12s %7s %12s %9s %9s %9s | %8s %6s %6s | %8s %6s %6s | %8s %6s | %8s\n", "model", "M par.", "batch",
               "floor ms", "goal ms", "stretch", "goal t/s", "causal", "full", "stretch", "causal", "full", "launches",
               "gaps", "GiB");
    for (int i = 0; i < ROOFLINE_CASES; i++) {
        const RooflineCase* k = &roofline_cases[i];
        const ModelConfig* m = model_find_preset(k->model);
        StageMemory memory;
        Error error;
        char batch[32];
        const int micro = micro_batch(w, m, k->B, k->T);
        roofline_build(r, m, micro, k->T, k->B / micro, 0, (Recompute)w->recompute, w->separate);
        const RooflineTotals t = roofline_totals(r, &w->ceilings);
        if (!roofline_memory(&memory, r, &error)) die("%s", error.text);
        if (w->numbers) {
            printf("%s %.3f %.3f %.6f %.6f %.2f %d %d %d %d\n", k->model, 1e3 * t.floor, 1e3 * t.goal,
                   t.per_token / 1e9, t.per_token_full / 1e9, gib(memory.bytes), micro, k->B, k->T, r->model.V);
            continue;
        }
        snprintf(batch, sizeof batch, "%dx%dx%d", k->B / micro, micro, k->T);
        printf(
            "%-12s %7.1f %12s %9.2f %9.2f %9.2f | %8.0f %4.1f %% %4.1f %% | %8.0f %4.1f %% %4.1f %% | %8.0f %4.1f %% | "
            "%8.2f\n",
            k->model, (double)model_parameters(&r->model) / 1e6, batch, 1e3 * t.floor, 1e3 * t.goal, 1e3 * t.stretch,
            roofline_tokens(r) / t.goal, 100 * roofline_mfu(r, &t, &w->ceilings, t.goal, false),
            100 * roofline_mfu(r, &t, &w->ceilings, t.goal, true), roofline_tokens(r) / t.stretch,
            100 * roofline_mfu(r, &t, &w->ceilings, t.stretch, false),
            100 * roofline_mfu(r, &t, &w->ceilings, t.stretch, true), t.launches, 100 * t.launches * 2.5e-6 / t.goal,
            gib(memory.bytes));
    }
}

static Wish read_wish(int argc, char** argv) {
    const Ceilings h200 = ceilings_h200();
    static Wish w;
    double product = h200.product / 1e12, copy = h200.copy / 1e12, peak = h200.peak / 1e12, memory = 139;
    Option table[] = {
        option_string("model", &w.model, "NAME", "operation by operation; else the six models, a line each"),
        option_int("batch", &w.B, 1, 1 << 24, "sequences of a step"),
        option_int("seq", &w.T, 1, 1 << 24, "their tokens"),
        option_int("micro-batch", &w.micro, 1, 1 << 24, "sequences that are worked on at once [what fits]"),
        option_choice("recompute", &w.recompute, "none|selective|full", "what the backward pass computes again"),
        option_flag("separate", &w.separate, "GELU by kernels of its own"),
        option_float("product", &product, 1e-3, 1e9, "TFLOP/s of a matrix product"),
        option_float("copy", &copy, 1e-6, 1e9, "TB/s of a copy"),
        option_float("peak", &peak, 1e-3, 1e9, "TFLOP/s of the data sheet"),
        option_float("memory", &memory, 0, 1e9, "GiB"),
        option_flag("numbers", &w.numbers, "of the six models, for scripts"),
        option_flag("help", &w.help, "this list"),
    };
    options_of_program(table, (int)(sizeof table / sizeof *table), argc, argv, &w.help,
                       "roofline predicts the least time of a training step on a GPU.");
    w.ceilings = (Ceilings){1e12 * product, 1e12 * copy, h200.exponentials, 1e12 * peak};
    w.memory = 1073741824.0 * memory;
    return w;
}

int main(int argc, char** argv) {
    process.name = "roofline";
    const Wish w = read_wish(argc, argv);
    static Roofline r;
    if (!w.model) {
        print_summary(&w, &r);
        return 0;
    }
    const ModelConfig* m = model_find_preset(w.model);
    if (!m) die_usage("--model %s is not known", w.model);
    int B = 32, T = m->T;
    for (int i = 0; i < ROOFLINE_CASES; i++) {
        if (strcmp(roofline_cases[i].model, w.model) != 0) continue;
        B = roofline_cases[i].B;
        T = roofline_cases[i].T;
    }
    if (w.B) B = (int)w.B;
    if (w.T) T = (int)w.T;
    const int micro = micro_batch(&w, m, B, T);
    roofline_build(&r, m, micro, T, B / micro, 0, (Recompute)w.recompute, w.separate);
    print_one(&r, &w.ceilings, w.memory);
    return 0;
}
