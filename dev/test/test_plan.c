/*
test_plan.c: the plans, which are data and can be proved. Parameter counts against published ones and against the
formula of Narayanan et al. 2021; layouts of many meshes against the definition (every element of every tensor held by
the right number of ranks); schedules with planted faults; the command line.
*/
#include "../../options.h"
#include "../../parallel.h"
#include "../../schedule.h"
#include "test.h"

static void test_presets(void) {
    static const struct {
        const char* name;
        int64_t parameters;
    } published[] = {{"gpt2-124M", 124439808},   {"gpt2-350M", 354823168},   {"gpt2-774M", 774030080},
                     {"gpt2-1558M", 1557611200}, {"llama-1.1B", 1100048384}, {"llama-7B", 6738415616}};
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        const int64_t n = model_parameters(model_find_preset(published[i].name));
        check(n == published[i].parameters, "%s has %lld parameters, published %lld", published[i].name, (long long)n,
              (long long)published[i].parameters);
    }
    // Narayanan et al. 2021, Table 1 and equation (2): P = 12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h)), in billions
    // to one digit; equation (2) leaves out the final norm's 2 h.
    static const double table1[] = {1.7, 3.6, 7.5, 18.4, 39.1, 76.1, 145.6, 310.1, 529.6, 1008.0};
    for (size_t i = 0; i < 10; i++) {
        char name[32];
        snprintf(name, sizeof name, table1[i] == 1008.0 ? "gpt3-%.0fB" : "gpt3-%.1fB", table1[i]);
        const ModelConfig* m = model_find_preset(name);
        if (!check(m != NULL, "%s is a preset", name)) continue;
        const double l = m->L, h = m->C;
        const double P = 12 * l * h * h * (1 + 13 / (12 * h) + (m->V + m->T) / (12 * l * h)) + 2 * h;
        const double n = (double)model_parameters(m);
        check(fabs(n - P) < 1 && fabs(n / 1e9 - table1[i]) <= 0.05,
              "%s has %.0f parameters, the formula %.0f, the paper %.1f B", name, n, P, table1[i]);
    }
    int count;
    const ModelConfig* presets = model_presets(&count);
    for (int i = 0; i < count; i++) {
        Error error = {""};
        if (!model_check(&presets[i], &error)) check(false, "%s: %s", presets[i].name, error.text);
    }
}

// The definition of a layout, by brute force: how often is every logical element held, over all ranks of a mesh?
static void test_layout(const ModelConfig* m, int t, int p, int d) {
    const int n = model_tensors(NULL, m);
    Tensor* list = (Tensor*)checked_malloc((size_t)n * sizeof(Tensor), "test");
    model_tensors(list, m);
    int** held = (int**)checked_calloc((size_t)n, sizeof(int*), "test");
    for (int i = 0; i < n; i++)
        held[i] = (int*)checked_calloc((size_t)(list[i].rows * list[i].cols), sizeof(int), "test");
    bool ok = true, disjoint = true;
    for (int rank = 0; rank < t * p * d; rank++) {
        const Mesh mesh = mesh_of_rank(rank, t, p, d);
        ok = ok && mesh_rank(&mesh) == rank;
        Layout layout;
        Error error;
        if (!layout_build(&layout, m, mesh, &error)) {
            check(false, "layout t=%d p=%d d=%d: %s", t, p, d, error.text);
            return;
        }
        int64_t end = 0;
        for (int i = 0; i < layout.n; i++) {
            const Slice* s = &layout.slices[i];
            disjoint = disjoint && s->offset == end;
            end += s->rows * s->cols;
            int which = 0;
            while (strcmp(list[which].name, s->tensor.name) != 0) which++;
            const int64_t col0 = slice_logical_col(s, &mesh);
            for (int64_t row = 0; row < s->rows; row++) {
                for (int64_t c = 0; c < s->cols; c++) {
                    held[which][slice_logical_row(s, &mesh, row) * list[which].cols + col0 + c]++;
                }
            }
        }
        disjoint = disjoint && end == layout.elements;
        layout_free(&layout);
    }
    for (int i = 0; i < n; i++) {
        int times = d * (list[i].parallel == REPLICATED ? t : 1);
        if (list[i].kind == WTE && m->tied && p > 1) times *= 2; // first and last stage
        for (int64_t e = 0; e < list[i].rows * list[i].cols; e++) ok = ok && held[i][e] == times;
        free(held[i]);
    }
    check(ok && disjoint, "layout of a %s model on t=%d p=%d d=%d: every element held as often as it should be",
          m->arch == ARCH_GPT2 ? "gpt2" : "llama", t, p, d);
    free(held);
    free(list);
}

// A fused q, k, v matrix cut over two ranks: rank 1 holds the second half of q, of k and of v.
static void test_fused_rows(void) {
    const ModelConfig m = {"", ARCH_GPT2, 1, 4, 2, 2, 16, 8, 10, true, 1e-5, 0};
    Layout layout;
    Error error;
    check(layout_build(&layout, &m, mesh_of_rank(1, 2, 1, 1), &error), "a tiny gpt2 on t=2");
    const int64_t expected[] = {2, 3, 6, 7, 10, 11};
    bool ok = false;
    for (int i = 0; i < layout.n; i++) {
        const Slice* s = &layout.slices[i];
        if (s->tensor.kind != QKV_W) continue;
        ok = s->rows == 6;
        for (int64_t r = 0; r < 6; r++) ok = ok && slice_logical_row(s, &layout.mesh, r) == expected[r];
    }
    check(ok, "rank 1 of 2 holds rows 2 3 | 6 7 | 10 11 of a fused q, k, v matrix with 12 rows");
    layout_free(&layout);
}

// Initial values do not depend on the mesh, have the right spread, and differ between tensors.
static void test_initial_values(void) {
    const ModelConfig m = {"", ARCH_LLAMA, 2, 32, 4, 4, 48, 16, 64, false, 1e-5, 10000};
    Layout whole, part;
    Error error;
    check(layout_build(&whole, &m, mesh_of_rank(0, 1, 1, 1), &error), "one rank");
    float* a = (float*)checked_malloc((size_t)whole.elements * sizeof(float), "test");
    layout_initialize(a, &whole, 7);
    bool same = true;
    for (int rank = 0; rank < 4; rank++) {
        check(layout_build(&part, &m, mesh_of_rank(rank, 2, 2, 1), &error), "rank %d of t=2 p=2", rank);
        float* b = (float*)checked_malloc((size_t)part.elements * sizeof(float), "test");
        layout_initialize(b, &part, 7);
        for (int i = 0; i < part.n; i++) {
            const Slice* s = &part.slices[i];
            const Slice* w = whole.slices;
            while (strcmp(w->tensor.name, s->tensor.name) != 0) w++;
            for (int64_t r = 0; r < s->rows; r++) {
                const float* from =
                    a + w->offset + slice_logical_row(s, &part.mesh, r) * w->cols + slice_logical_col(s, &part.mesh);
                same = same && memcmp(b + s->offset + r * s->cols, from, (size_t)s->cols * sizeof(float)) == 0;
            }
        }
        free(b);
        layout_free(&part);
    }
    bool spread = true; // for L = 2: 0.02, in the two matrices that write into the residual stream 0.02 / sqrt(4)
    for (int i = 0; i < whole.n; i++) {
        const Tensor* w = &whole.slices[i].tensor;
        const bool residual = w->kind == ATTN_PROJ_W || w->kind == MLP_PROJ_W;
        spread = spread && w->init_mean == (w->vector ? 1 : 0) &&
                 fabs(w->init_std - (w->vector  ? 0
                                     : residual ? 0.01
                                                : 0.02)) < 1e-15;
    }
    check(spread, "means and spreads of a llama's initial values are those of the papers");
    check(same, "initial values on t=2 p=2 are slices of those on one rank, bit for bit");
    // Of n normal numbers the mean has standard deviation std / sqrt(n), the variance var sqrt(2 / n): five of each.
    for (int i = 0; i < whole.n; i++) {
        const Slice* s = &whole.slices[i];
        if (s->tensor.init_std == 0) continue;
        const double n = (double)(s->rows * s->cols), std = s->tensor.init_std;
        double sum = 0, squares = 0;
        for (int64_t e = 0; e < s->rows * s->cols; e++)
            sum += a[s->offset + e], squares += (double)a[s->offset + e] * a[s->offset + e];
        if (s->tensor.layer > 0 && s->tensor.layer < m.L) continue;
        check_error(s->tensor.name, fabs(sum / n) / std, 5 / sqrt(n));
        check_error(s->tensor.name, fabs(squares / n / (std * std) - 1), 5 * sqrt(2 / n));
    }
    free(a);
    layout_free(&whole);
}

// Philox4x32-10 against the test vectors of Random123 (Salmon et al. 2011, file kat_vectors).
static void test_philox(void) {
    const Random4 zero = philox(0, 0, 0), ones = philox(~0ull, ~0ull, ~0ull);
    const Random4 pi = philox(0x299f31d0a4093822ull, 0x0370734413198a2eull, 0x85a308d3243f6a88ull);
    check(zero.word[0] == 0x6627e8d5u && zero.word[1] == 0xe169c58du && zero.word[2] == 0xbc57ac4cu &&
              zero.word[3] == 0x9b00dbd8u,
          "Philox4x32-10 of zeros");
    check(ones.word[0] == 0x408f276du && ones.word[1] == 0x41c83b0eu && ones.word[2] == 0xa20bc7c6u &&
              ones.word[3] == 0x6d5451fdu,
          "Philox4x32-10 of ones");
    check(pi.word[0] == 0xd16cfe09u && pi.word[1] == 0x94fdccebu && pi.word[2] == 0x5001e420u &&
              pi.word[3] == 0x24126ea1u,
          "Philox4x32-10 of digits of pi");
}

static void test_schedule(void) {
    Error error;
    for (int m = 1; m <= 5; m++) {
        for (int split = 0; split <= 1; split++) {
            Schedule s = schedule_build_one_stage(m, split);
            check(schedule_check(&s, &error), "schedule of %d micro-batches%s", m, split ? ", split halves" : "");
            // every action removed, and every pair of neighbours exchanged, breaks it
            int noticed = 0, faults = 0;
            for (int i = 0; i < s.n; i++) {
                Schedule broken = {m, s.slots, s.n - 1, (Action*)checked_malloc((size_t)s.n * sizeof(Action), "test")};
                memcpy(broken.actions, s.actions, (size_t)i * sizeof(Action));
                memcpy(broken.actions + i, s.actions + i + 1, (size_t)(s.n - i - 1) * sizeof(Action));
                faults++, noticed += !schedule_check(&broken, &error);
                memcpy(broken.actions, s.actions, (size_t)s.n * sizeof(Action));
                broken.n = s.n;
                if (i + 1 < s.n) {
                    broken.actions[i] = s.actions[i + 1], broken.actions[i + 1] = s.actions[i];
                    faults++, noticed += !schedule_check(&broken, &error);
                    broken.actions[i] = s.actions[i], broken.actions[i + 1] = s.actions[i + 1];
                }
                broken.actions[i].slot += 1;
                if (s.actions[i].kind != UPDATE) faults++, noticed += !schedule_check(&broken, &error);
                broken.actions[i] = s.actions[i], broken.actions[i].microbatch = m;
                if (s.actions[i].kind != UPDATE) faults++, noticed += !schedule_check(&broken, &error);
                schedule_free(&broken);
            }
            check(noticed == faults, "%d of %d planted faults noticed", noticed, faults);
            schedule_free(&s);
        }
    }
}

static bool parses(const char* a, const char* b, const char* c, Error* error) {
    int64_t number = 3;
    double real = 0.5;
    const char* text = NULL;
    int choice = 0;
    bool flag = false;
    Option table[] = {option_heading("things"),
                      option_int("number", &number, 1, 10, ""),
                      option_float("real", &real, 0, 1, ""),
                      option_string("text", &text, "TEXT", ""),
                      option_choice("choice", &choice, "one|two|three", ""),
                      option_flag("flag", &flag, "")};
    char words[4][64] = {"program"};
    char* argv[4] = {words[0], words[1], words[2], words[3]};
    int argc = 1;
    const char* given[] = {a, b, c};
    for (int i = 0; i < 3 && given[i]; i++) snprintf(words[argc++], sizeof words[0], "%s", given[i]);
    error->text[0] = 0;
    const bool ok = options_parse(table, 6, argc, argv, error);
    return ok && (a == NULL || number != 3 || real != 0.5 || text || choice || flag);
}

static void test_options(void) {
    static const struct {
        const char *a, *b, *c, *message; // NULL: accepted
    } cases[] = {
        {NULL, NULL, NULL, NULL},
        {"--number", "7", NULL, NULL},
        {"--number=10", NULL, NULL, NULL},
        {"--choice", "three", "--flag", NULL},
        {"--real=1e-3", "--text", "--flag", NULL},
        {"--nubmer", "7", NULL, "did you mean --number?"},
        {"--xyzzyxyzzy", NULL, NULL, "unknown option --xyzzyxyzzy"},
        {"--number", NULL, NULL, "the value is missing"},
        {"--number", "7x", NULL, "not a whole number"},
        {"--number", "", NULL, "not a whole number"},
        {"--number", "11", NULL, "out of range, 1 to 10"},
        {"--number", "99999999999999999999", NULL, "not a whole number"},
        {"--number=1", "--number=1", NULL, "given twice"},
        {"--real", "nan", NULL, "out of range"},
        {"--real", "2", NULL, "out of range, 0 to 1"},
        {"--choice", "tw", NULL, "has to be one of one|two|three"},
        {"--flag=1", NULL, NULL, "takes no value"},
        {"--text=", NULL, NULL, "empty value"},
        {"number", "7", NULL, "options are written --name value"},
        {"--", NULL, NULL, "options are written --name value"},
        {"--things", NULL, NULL, "unknown option --things"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Error error;
        const bool ok = parses(cases[i].a, cases[i].b, cases[i].c, &error);
        const bool right = cases[i].message ? !ok && strstr(error.text, cases[i].message) : ok;
        check(right, "options %s %s: %s", cases[i].a ? cases[i].a : "(none)", cases[i].b ? cases[i].b : "",
              ok ? "accepted" : error.text);
    }
}

int main(void) {
    test_presets();
    const ModelConfig gpt2 = {"", ARCH_GPT2, 5, 24, 4, 4, 40, 8, 20, true, 1e-5, 0};
    const ModelConfig llama = {"", ARCH_LLAMA, 4, 32, 8, 4, 48, 8, 24, false, 1e-5, 10000};
    for (int t = 1; t <= 4; t *= 2) {
        for (int p = 1; p <= 4; p++) test_layout(&gpt2, t, p, 1 + p % 2), test_layout(&llama, t, p, 2);
    }
    test_fused_rows();
    Layout layout;
    Error error;
    check(!layout_build(&layout, &gpt2, mesh_of_rank(0, 1, 6, 1), &error), "six stages for five layers: %s",
          error.text);
    layout_free(&layout);
    check(!layout_build(&layout, &gpt2, mesh_of_rank(0, 3, 1, 1), &error), "three ranks for 20 tokens: %s", error.text);
    layout_free(&layout);
    test_initial_values();
    test_philox();
    test_schedule();
    test_options();
    return test_end();
}
