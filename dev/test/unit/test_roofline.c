/*
test_roofline.c: is the bound of dev/bench/roofline.h right?

    FLOP          of a step against what the trainer's MFU counts (model.h), and against products written out by hand
    bytes         of rows against counts by hand, for a model whose numbers are all different
    six models    against the tables of our notes on GPUs, which were made without this program: the floor differs by
                  what our kernels do otherwise, which is written out here, and by nothing else
    launches      of a step
    memory        the trainer's own plan, beside bytes a parameter and a token; what fits
    edges         no row twice; goals between floor and ever; micro-batches; recomputation; other ceilings
*/
#include "../../bench/roofline.h"
#include "test.h"

static Roofline* build(const ModelConfig* m, int B, int T, int micro_batches, Recompute recompute, bool separate) {
    Roofline* r = (Roofline*)checked_malloc(sizeof *r, "the rows of a step");
    roofline_build(r, m, B, T, micro_batches, 0, recompute, separate);
    return r;
}

static const RooflineRow* row_named(const Roofline* r, const char* name) {
    for (int i = 0; i < r->n; i++) {
        if (strcmp(r->row[i].name, name) == 0) return &r->row[i];
    }
    die("no row is called %s", name);
    return NULL;
}

static void check_number(const char* what, double got, double wanted) {
    check(fabs(got - wanted) <= 1e-12 * fabs(wanted), "%-58s %.10g (by hand %.10g)", what, got, wanted);
}

// ---- FLOP -------------------------------------------------------------------------------------------------------

// Parameters that a token is multiplied by.
static double multiplied(const ModelConfig* m) {
    const double attention = (double)m->C * model_qkv_size(m) + (double)m->C * m->C;
    return m->L * (attention + (double)m->C * model_fc_size(m) + (double)m->F * m->C) + (double)m->V * m->C;
}

// Of a step: what the trainer counts for MFU, less 6 FLOP a token for parameters that nothing is multiplied by (norms,
// biases, positions, an embedding that is not the head), more L C T for the scores that backward makes again.
static void test_flops(void) {
    for (int i = 0; i < ROOFLINE_CASES; i++) {
        const RooflineCase* k = &roofline_cases[i];
        Roofline* r = build(model_find_preset(k->model), k->B / 4, k->T, 4, RECOMPUTE_NONE, false);
        const Ceilings c = ceilings_h200();
        const RooflineTotals t = roofline_totals(r, &c);
        const ModelConfig* m = &r->model;
        const double tokens = (double)k->B * k->T, counted = model_flops_per_token(m, k->T) * tokens;
        const double not_multiplied = 6 * ((double)model_parameters(m) - multiplied(m)) * tokens;
        const double again = m->L * (double)m->C * k->T * tokens;
        check_number(k->model, t.flops, counted - not_multiplied + again);
        check(not_multiplied >= 0 && not_multiplied < 0.07 * counted, "%s: %.2f %% of it nothing is multiplied by",
              k->model, 100 * not_multiplied / counted);
        check_number("  executed: two products of the scores more", t.executed,
                     t.flops + 2 * m->L * (double)m->C * k->T * tokens);
        check_number("  full: the other half of attention", t.per_token_full - t.per_token,
                     6.0 * m->L * (double)m->C * k->T);
        free(r);
    }
}

// ---- Bytes ------------------------------------------------------------------------------------------------------

// L 3, C 10, 5 heads of 2, F 14 or 40, V 384, T 7; B 4: N 28 rows.
static ModelConfig odd_model(Arch arch) {
    const bool gpt2 = architectures[arch].hub == HUB_GPT2;
    const ModelConfig m = model_of(arch, 3, 10, 5, gpt2 ? 5 : 1, gpt2 ? 40 : 14, 7, 384);
    return m;
}

static void test_bytes(void) {
    const ModelConfig gpt2 = odd_model(ARCH_GPT2), llama = odd_model(ARCH_LLAMA);
    const double N = 28, C = 10, F = 40, V = 384;
    Roofline* r = build(&gpt2, 4, 7, 2, RECOMPUTE_NONE, false);
    // 16-bit rows in, weights, 16-bit rows out; with GELU a second matrix of rows
    check_number("qkv", row_named(r, "qkv")->bytes, 2 * (N * C + 3 * C * C + N * 3 * C));
    check_number("fc with GELU: fc and act", row_named(r, "fc, GELU")->bytes, 2 * (N * C + C * F + 2 * N * F));
    check_number("projection backward with GELU's: reads fc", row_named(r, "mlp projection dX, dGELU")->bytes,
                 2 * (N * C + C * F + 2 * N * F));
    check_number("gradient of fc's weight: float32, read and written", row_named(r, "fc dW")->bytes,
                 2 * (N * C + N * F) + 8 * C * F);
    check_number("head's gradient of the weight", row_named(r, "head dW")->bytes, 2 * (N * C + N * V) + 8 * C * V);
    check_number("attention: q, k, v, out; lse", row_named(r, "attention")->bytes, 2 * N * 4 * C + 4 * N * 5);
    check_number("attention backward: qkv and dout twice, out, dqkv; lse and D",
                 row_named(r, "attention backward")->bytes, 2 * N * C * (3 + 3 + 2 + 1 + 3) + 4 * 4 * N * 5);
    check_number("residual and norm: stream, branch; stream, norm", row_named(r, "residual and norm")->bytes,
                 8 * N * C);
    check_number("norm backward: dout, x, dx; dx", row_named(r, "norm backward")->bytes, 8 * N * C);
    check_number("classifier: logits in, gradients out", row_named(r, "classifier")->bytes, 4 * N * V);
    check_number("embedding: a token's row; then read, position's row", row_named(r, "embedding")->bytes, 10 * N * C);
    check_number("embedding backward: twice dout; a float32 row, twice", row_named(r, "embedding backward")->bytes,
                 (2 * 2 + 8) * N * C);
    const double n = (double)model_parameters(&gpt2);
    check_number("optimizer: g, master, m, v in; master, m, v, p out", row_named(r, "optimizer")->bytes, 30 * n);
    check_number("squares of gradients", row_named(r, "squares of gradients")->bytes, 4 * n);
    check_number("zero gradients: also the embedding's second one", row_named(r, "zero gradients")->bytes,
                 4 * (n + V * C));
    check_number("the two gradients of the embedding", row_named(r, "add the two gradients")->bytes, 12 * V * C);
    check_number("exponentials of attention: half of the scores", row_named(r, "attention")->exps, N * 5 * 7 / 2);
    check_number("backward: in each of two kernels", row_named(r, "attention backward")->exps, N * 5 * 7);
    check_number("of the classifier: sum, gradient", row_named(r, "classifier")->exps, 2 * N * V);
    check_number("of GELU", row_named(r, "fc, GELU")->exps, N * F);
    check(row_named(r, "qkv")->count == 2 * 3 && row_named(r, "norm")->count == 2 &&
              row_named(r, "norm backward")->count == 2 * 7 && row_named(r, "head")->count == 2 &&
              row_named(r, "optimizer")->count == 1,
          "counts: of blocks L m, norms backward (2 L + 1) m, of the head m, of the optimizer 1");
    free(r);

    r = build(&gpt2, 4, 7, 1, RECOMPUTE_NONE, true);
    check_number("separate: GELU reads and writes", row_named(r, "activation")->bytes, 4 * N * F);
    check_number("separate: GELU backward", row_named(r, "activation backward")->bytes, 6 * N * F);
    check_number("separate: fc alone", row_named(r, "fc")->bytes, 2 * (N * C + C * F + N * F));
    int biases = 0;
    double bias_bytes = 0;
    for (int i = 0; i < r->n; i++) {
        if (r->row[i].op.kernel != KERNEL_BIAS || r->row[i].op.kind != OP_MEMORY) continue;
        biases += r->row[i].count;
        bias_bytes += r->row[i].count * r->row[i].bytes;
    }
    check(biases == 4 * 3 && bias_bytes == 3 * 2 * N * (3 * C + C + F + C),
          "separate: gradients of %d biases, %.0f bytes", biases, bias_bytes);
    free(r);

    r = build(&llama, 4, 7, 1, RECOMPUTE_NONE, false);
    check_number("llama: qkv of 5 heads and 1", row_named(r, "qkv")->bytes, 2 * (N * C + 14 * C + N * 14));
    check_number("llama: rope, q and k in place", row_named(r, "rope")->bytes, 4 * N * 12);
    check_number("llama: gate and up", row_named(r, "fc")->bytes, 2 * (N * C + 28 * C + N * 28));
    check_number("llama: SwiGLU", row_named(r, "activation")->bytes, 2 * N * 3 * 14);
    check_number("llama: SwiGLU backward", row_named(r, "activation backward")->bytes, 2 * N * 5 * 14);
    check_number("llama: attention", row_named(r, "attention")->bytes, 2 * N * (14 + C) + 4 * N * 5);
    check_number("llama: attention backward", row_named(r, "attention backward")->bytes,
                 2 * N * (14 * 3 + 3 * C) + 16 * N * 5);
    free(r);
}

// ---- The notes' tables ------------------------------------------------------------------------------------------

// What the notes have: floors in ms of their own list of operations (one decimal; the first in two), and sizes.
typedef struct {
    const char* name;
    Arch arch;
    int L, C, NH, NKV, F, V;
    int T, rows;
    double floor_ms, half_unit;
} Noted;

static const Noted noted[] = {
    {"gpt2-124M", ARCH_GPT2, 12, 768, 12, 12, 3072, 50304, 1024, 65536, 77.90, 0.005},
    {"gpt2-350M", ARCH_GPT2, 24, 1024, 16, 16, 4096, 50304, 1024, 32768, 108.4, 0.05},
    {"gpt2-774M", ARCH_GPT2, 36, 1280, 20, 20, 5120, 50304, 1024, 32768, 229.9, 0.05},
    {"gpt2-1558M", ARCH_GPT2, 48, 1600, 25, 25, 6400, 50304, 1024, 32768, 450.6, 0.05},
    {"llama-1.5B", ARCH_LLAMA, 28, 2048, 16, 8, 5632, 32000, 2048, 32768, 430.85, 0.005},
    {"llama3-8B", ARCH_LLAMA, 32, 4096, 32, 8, 14336, 128256, 2048, 16384, 1083.1, 0.05},
};

static ModelConfig noted_model(const Noted* x) {
    ModelConfig m = model_of(x->arch, x->L, x->C, x->NH, x->NKV, x->F, x->T, x->V);
    m.name = x->name;
    return m;
}

// Bytes that our kernels move and the notes' do not, where nothing else sets the floor.
static double bytes_more(const ModelConfig* m, double N) {
    const bool gpt2 = m->position == POSITION_LEARNED;
    const double X = 2 * N * m->C, n = (double)model_parameters(m), wte = (double)m->V * m->C, L = m->L;
    double more = 0;
    more += X;                          // the stream's gradient is set to zero before the last norm adds to it
    more += (gpt2 ? 3 : 0) * X;         // positions are added by a kernel of their own
    more += (gpt2 ? X : 0) + 4 * X - X; // backward reads dout for positions; the table is float32, a row for each token
    more += 4 * (n + (m->tied ? wte : 0)) + (m->tied ? 12 * wte : 0); // float32 gradients are zeroed; two of a tied one
    more += (4 - 2) * n + (30 - 28) * n;                              // float32 gradients: their norm, the optimizer
    more -= L * (2 + 6) * X; // no gradient of q that is summed up in float32 by atomics, no pass for rowsum(O dO)
    more -= 8 * N * (1 + 4 * L + 1);                        // statistics of rows, which the notes count
    if (gpt2) more += L * (X * (3 + 1 + 1) + 2 * N * m->F); // biases' gradients read what the products read
    if (!gpt2) more += 2 * L * 4 * N * (m->NH + m->NKV) * model_head_size(m); // rotations by kernels of their own
    return more;
}

static void test_notes(void) {
    const Ceilings c = ceilings_h200();
    for (size_t i = 0; i < sizeof noted / sizeof *noted; i++) {
        const Noted* x = &noted[i];
        const ModelConfig m = noted_model(x);
        Roofline* r = build(&m, x->rows / x->T, x->T, 1, RECOMPUTE_NONE, false);
        const RooflineTotals t = roofline_totals(r, &c);
        const double more = 1e3 * bytes_more(&m, x->rows) / c.copy, here = 1e3 * t.floor;
        bool by_products = true;
        for (int k = 0; k < r->n; k++) {
            Bound bound;
            row_floor(&r->row[k], &c, &bound);
            by_products &= (bound == BOUND_PRODUCT) == (r->row[k].flops > 0);
        }
        check(by_products, "%s: products and attention are bound by FLOP, all else by bytes", x->name);
        check(fabs(here - more - x->floor_ms) <= x->half_unit + 1e-9,
              "%s: floor %.3f ms; the notes' %.2f %+.3f for what our kernels do otherwise", x->name, here, x->floor_ms,
              more);
        free(r);
    }
    // MFU of the notes: 0.8035 GFLOP a token of GPT-2 124M, 68.3 % at 77.90 ms
    const ModelConfig m = noted_model(&noted[0]);
    Roofline* r = build(&m, 64, 1024, 1, RECOMPUTE_NONE, false);
    const RooflineTotals t = roofline_totals(r, &c);
    check(fabs(t.per_token - 0.8035e9) < 0.00005e9, "GPT-2 124M: %.4f GFLOP a token", t.per_token / 1e9);
    check(fabs(roofline_mfu(r, &t, &c, 77.90e-3, false) - 0.683) < 0.0005, "its MFU at the notes' floor: %.2f %%",
          100 * roofline_mfu(r, &t, &c, 77.90e-3, false));
    free(r);
}

// ---- Launches, memory -------------------------------------------------------------------------------------------

// By hand, GPT-2 with epilogues, one micro-batch.
static void test_launches(void) {
    const Ceilings c = ceilings_h200();
    const ModelConfig* m = model_find_preset("gpt2-124M");
    for (int separate = 0; separate < 2; separate++) {
        Roofline* r = build(m, 64, 1024, 1, RECOMPUTE_NONE, separate);
        const int lists = 5; // of 32 tensors, for 2 + 12 x 12 + 2
        // forward: 4 products, attention, 2 norms; backward: 4 x (dX, dW, and 2 for db), attention's 2, 2 x 2 of norms
        const int block = (4 + 1 + 2) + (4 * 4 + 2 + 4) + (separate ? 2 : 0); // GELU's two
        const int ends = 1 + 2 + 1 + 1 + 2 + 1 + 1 + 1 + 2 + 8 + 1;
        const double wanted = 12 * block + ends + 3 * lists;
        const double got = roofline_totals(r, &c).launches;
        check(got == wanted, "launches of a step of GPT-2 124M, %s: %.0f (by hand %.0f)",
              separate ? "separate" : "epilogues", got, wanted);
        free(r);
    }
}

static void test_planner_memory(void) {
    const double card = 139 * 1073741824.0;
    for (int i = 0; i < ROOFLINE_CASES; i++) {
        const RooflineCase* k = &roofline_cases[i];
        const ModelConfig* m = model_find_preset(k->model);
        const int micro = roofline_micro_batch(m, k->B, k->T, RECOMPUTE_NONE, card);
        if (!check(micro > 0 && k->B % micro == 0, "%s: micro-batches of %d of %d sequences", k->model, micro, k->B))
            continue;
        Roofline* r = build(m, micro, k->T, k->B / micro, RECOMPUTE_NONE, false);
        StageMemory memory;
        Error error;
        if (!check(roofline_memory(&memory, r, &error), "%s: planned", k->model)) continue;
        const double n = (double)model_parameters(&r->model),
                     tied = r->model.tied ? (double)r->model.V * r->model.C : 0;
        const double states = memory.arena[0] + memory.arena[1] + memory.arena[2], wanted = 18 * n + 4 * tied;
        check(states >= wanted && states <= wanted * 1.001, "%s: 18 bytes a parameter: %.3f GB, planned %.3f", k->model,
              wanted / 1e9, states / 1e9);
        check(memory.bytes + ROOFLINE_BESIDE <= card, "%s: %.1f GB, and %.1f beside it, of %.1f", k->model,
              memory.bytes / 1e9, ROOFLINE_BESIDE / 1e9, card / 1e9);
        free(r);
        if (micro == k->B) continue;
        r = build(m, 2 * micro, k->T, k->B / micro / 2, RECOMPUTE_NONE, false);
        roofline_memory(&memory, r, &error);
        check(memory.bytes + ROOFLINE_BESIDE > card, "%s: twice as many would not fit: %.1f GB", k->model,
              memory.bytes / 1e9);
        free(r);
    }
    const ModelConfig* small = model_find_preset("gpt2-124M");
    check(roofline_micro_batch(small, 64, 1024, RECOMPUTE_NONE, 25e9) == 32 &&
              roofline_micro_batch(small, 64, 1024, RECOMPUTE_NONE, 13e9) == 16,
          "124M: micro-batches of 32 in 25 GB, of 16 in 13 GB");
    check(roofline_micro_batch(model_find_preset("llama-7B"), 8, 2048, RECOMPUTE_NONE, 1e11) == 0,
          "into 100 GB 7B does not fit at all");
}

// ---- Edges ------------------------------------------------------------------------------------------------------

static void test_rows(void) {
    const Ceilings c = ceilings_h200();
    for (int i = 0; i < ROOFLINE_CASES; i++) {
        for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++) {
            Roofline* r = build(model_find_preset(roofline_cases[i].model), 2, roofline_cases[i].T, 1,
                                (Recompute)recompute, false);
            bool ordered = true, apart = true;
            for (int k = 0; k < r->n; k++) {
                const RooflineRow* row = &r->row[k];
                const double floor = row_floor(row, &c, NULL), goal = row_seconds(row, &c, row->goal),
                             stretch = row_seconds(row, &c, row->stretch);
                ordered &= floor > 0 && floor <= stretch && stretch <= goal && row->goal > 0 && row->stretch <= 1 &&
                           row->launches > 0 && row->count > 0;
                for (int j = 0; j < k; j++)
                    apart &= strcmp(r->row[j].name, row->name) != 0 || r->row[j].bytes != row->bytes;
            }
            check(ordered && apart, "%s, recompute %d: %d rows, each once; 0 < floor <= stretch <= goal",
                  roofline_cases[i].model, recompute, r->n);
            free(r);
        }
    }
}

static void test_edges(void) {
    const ModelConfig* m = model_find_preset("gpt2-124M");
    const Ceilings c = ceilings_h200();
    Roofline *whole = build(m, 64, 1024, 1, RECOMPUTE_NONE, false),
             *parts = build(m, 16, 1024, 4, RECOMPUTE_NONE, false);
    const RooflineTotals a = roofline_totals(whole, &c), b = roofline_totals(parts, &c);
    check_number("four micro-batches: the same FLOP", b.flops, a.flops);
    // each micro-batch reads the weights three times and adds to their gradients, 3 x 2 + 8 bytes
    check_number("and the weights three times more", b.bytes - a.bytes,
                 3 * (3 * 2 + 8 - 2) * multiplied(&whole->model));
    free(parts);
    parts = build(m, 64, 1024, 1, RECOMPUTE_FULL, false);
    const RooflineTotals full = roofline_totals(parts, &c);
    const double N = 65536, C = 768;
    check_number("recomputed: 9 of 12 C^2 of a block and its attention once more", full.flops - a.flops,
                 12 * (2 * N * 8 * C * C + 2 * N * 1024 * C));
    free(parts);
    Ceilings slow = c;
    slow.product /= 2;
    slow.copy /= 2;
    slow.exponentials /= 2;
    const RooflineTotals twice = roofline_totals(whole, &slow);
    check_error("half as fast: twice the floor", fabs(twice.floor / a.floor - 2), 1e-12);
    check_error("and twice the goal: it is a share", fabs(twice.goal / a.goal - 2), 1e-12);
    slow = c;
    slow.exponentials = 1e11;
    Bound bound;
    row_floor(row_named(whole, "attention"), &slow, &bound);
    check(bound == BOUND_EXPONENTIALS, "few exponentials a second: they bound attention");
    check(a.overlap < a.floor && a.floor < a.stretch && a.stretch < a.goal, "overlap < floor < stretch < goal");
    // goals: the rule at its corners (TFLOP/s), and between two lengths
    const struct {
        double T, HS;
        bool backward;
        double goal, stretch;
    } attention[] = {{512, 64, false, 245, 290}, {1024, 64, true, 180, 210},  {2048, 128, false, 440, 521},
                     {8192, 64, true, 248, 390}, {1024, 128, true, 208, 230}, {1024 * sqrt(2), 64, false, 280, 330.5}};
    for (size_t i = 0; i < sizeof attention / sizeof *attention; i++) {
        RooflineRow row;
        goal_of_attention(&row, attention[i].T, attention[i].HS, attention[i].backward);
        check(fabs(790 * row.goal - attention[i].goal) < 1e-9 && fabs(790 * row.stretch - attention[i].stretch) < 1e-9,
              "attention%s, heads of %.0f, %.0f tokens: goal %.1f, stretch %.1f TFLOP/s",
              attention[i].backward ? " backward" : "", attention[i].HS, attention[i].T, 790 * row.goal,
              790 * row.stretch);
    }
    const struct {
        int C;
        double goal, stretch;
    } products[] = {{768, 660, 700}, {1024, 690, 720}, {1600, 690, 720}, {2048, 720, 750}, {4096, 720, 750}};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        RooflineRow row;
        goal_of_product(&row, products[i].C);
        check(fabs(790 * row.goal - products[i].goal) < 1e-9 && fabs(790 * row.stretch - products[i].stretch) < 1e-9,
              "products of %d channels: goal %.0f, stretch %.0f TFLOP/s", products[i].C, 790 * row.goal,
              790 * row.stretch);
    }
    ModelConfig odd = odd_model(ARCH_GPT2);
    odd.V = 300;
    parts = build(&odd, 1, 7, 1, RECOMPUTE_NONE, false);
    check(parts->model.V == 384, "a vocabulary of 300 is computed as %d", parts->model.V);
    free(parts);
    free(whole);
}

int main(void) {
    process.name = "test_roofline";
    test_flops();
    test_bytes();
    test_notes();
    test_launches();
    test_planner_memory();
    test_rows();
    test_edges();
    return test_end();
}
