/*
test_evaluate.c: are evaluations what dataloader/eval_loader.h says they are?

    rows        against lists that are cut in another way; every token once
    files       each thing that can be wrong with a file is refused, and named; one that is cut off anywhere is refused
    scores      answers, equal losses, losses that are not numbers
    passes      the trainer's own (this file includes train_gpt.cu) on every kind of mesh against PyTorch's float64
                numbers (make_eval.py): all losses, and so all answers; the same bits as one rank wherever t = 1

Bound of the passes: ten times what PyTorch's own float32 is off (another order of additions makes it a few times larger
at most), and not below ten times 2e-7. On a GPU's kernels in 16 bits: 16 units of rounding of the type.

ranks: 1 2 3 4
ranks sanitized: 1
*/
#define TRAIN_GPT_NO_MAIN
#pragma GCC diagnostic ignored "-Wunused-function" // of the trainer's functions this file uses most, not all
#include "../../../train_gpt.cu"

#include "test.h"

#define REFERENCE "dev/test/reference/"
#define CHOICES REFERENCE "evaluation.choices"
static const char* usual_line =
    "--layers 4 --hidden 16 --heads 4 --seq 8 --vocab 61 --steps 9 --micro-batch 3 --global-batch 12 --eval-every 1 "
    "--eval-sequences 1000 --data " REFERENCE "replicas.tokens";
#include "trainer_fixture.h"

static const double u16 = 0x1p-8, u = sizeof(floatX) == sizeof(float) ? 0x1p-24 : u16;

// ---- Files of multiple choice -----------------------------------------------------------------------------------

enum { MOST_NUMBERS = 4096, MOST_PARTS = 8 };

// A file in memory: its header, its numbers, and where each example begins.
typedef struct {
    int32_t header[256];
    uint16_t number[MOST_NUMBERS];
    int numbers, examples, begin[64];
} ChoiceFile;

static void put(ChoiceFile* f, int number) { f->number[f->numbers++] = (uint16_t)number; }

// Appends an example whose context and completions have these lengths; tokens count up from 1 over the whole file.
static void put_example(ChoiceFile* f, int label, const int* length, int parts) {
    const int begin = f->numbers;
    f->begin[f->examples] = begin;
    put(f, 65535), put(f, 0), put(f, f->examples), put(f, label), put(f, parts - 1);
    for (int p = 0; p < parts; p++) {
        put(f, length[p]);
        for (int i = 0; i < length[p]; i++) put(f, f->numbers % 5000 + 1);
    }
    f->number[begin + 1] = (uint16_t)(2 * (f->numbers - begin));
    f->examples++;
}

static void begin_file(ChoiceFile* f) {
    memset(f, 0, sizeof *f);
    f->header[0] = 20240522;
    f->header[1] = 1;
}

// Writes it but for its last `less` bytes.
static void write_choices(const char* path, ChoiceFile* f, int less) {
    unsigned char bytes[sizeof f->header + sizeof f->number];
    memcpy(bytes, f->header, sizeof f->header), memcpy(bytes + sizeof f->header, f->number, sizeof f->number);
    write_bytes(path, bytes, sizeof f->header + 2 * (size_t)f->numbers - (size_t)less);
}

static void usual_file(ChoiceFile* f) {
    static const int a[] = {5, 2, 3}, b[] = {9, 4, 1, 1, 7}, c[] = {1, 1};
    begin_file(f);
    put_example(f, 1, a, 3), put_example(f, 0, b, 5), put_example(f, 0, c, 2);
    f->header[2] = f->examples;
}

static bool opens(Evaluations* list, const char* names, Error* error) {
    memset(error, 0, sizeof *error);
    return evaluations_open(list, names, error);
}

static bool fits(Evaluation* e, int T, int V, Error* error) {
    memset(error, 0, sizeof *error);
    return evaluation_fit(e, T, V, error);
}

// Rows against lists: the context and the completion behind each other, of which the last T + 1 are kept.
static void test_choice_rows(const char* path) {
    ChoiceFile f;
    Evaluations list;
    Error error;
    int wrong = 0, rows = 0, cut = 0;
    for (int T = 3; T < 14; T++) {
        begin_file(&f);
        for (int n = 0; n < 12; n++) {
            int length[MOST_PARTS];
            const int parts = 2 + (n * 7 + T) % (MOST_PARTS - 1);
            for (int p = 0; p < parts; p++)
                length[p] = 1 + (int)(philox(3, (uint64_t)(T * 100 + n), (uint64_t)p).word[0] % (p ? T : 2 * T));
            for (int p = 1; p < parts; p++) cut += length[0] + length[p] > T + 1;
            put_example(&f, n % (parts - 1), length, parts);
        }
        f.header[2] = f.examples;
        write_choices(path, &f, 0);
        if (!opens(&list, path, &error) || !fits(&list.item[0], T, 5001, &error)) die("%s", error.text);
        Evaluation* e = &list.item[0];
        cut -= (int)e->cut;
        for (int n = 0, row = 0; n < f.examples; n++) {
            const uint16_t *context = f.number + f.begin[n] + 5, *completion = context + 1 + context[0];
            for (int c = 0; c < f.number[f.begin[n] + 4]; c++, row++, completion += 1 + completion[0]) {
                int32_t all[64], inputs[16], targets[16];
                int size = 0;
                for (int i = 1; i <= context[0]; i++) all[size++] = context[i];
                for (int i = 1; i <= completion[0]; i++) all[size++] = completion[i];
                const int kept = size > T + 1 ? T + 1 : size;
                const int32_t* last = all + size - kept;
                evaluation_row(inputs, targets, e, row);
                for (int i = 0; i < T; i++) {
                    const bool inside = i + 1 < kept, counts = inside && i + 1 >= kept - completion[0];
                    wrong += inputs[i] != (inside ? last[i] : 0) || targets[i] != (counts ? last[i + 1] : -1);
                }
                rows++;
            }
            if (n + 1 == f.examples && row != e->rows) wrong++;
        }
        evaluations_close(&list);
    }
    check(wrong == 0, "multiple choice: %d rows of T = 3 to 13, %d wrong numbers", rows, wrong);
    check(cut == 0, "multiple choice: contexts that are cut are counted");
}

// Whether a file is refused, for this reason.
static void refused(const char* what, const char* path, const char* reason) {
    Evaluations list;
    Error error;
    const bool ok = opens(&list, path, &error);
    check(!ok && strstr(error.text, reason) && list.item == NULL, "refused: %s: %s", what, ok ? "OPENED" : error.text);
    if (ok) evaluations_close(&list);
}

static void test_damage(const char* path) {
    ChoiceFile f;
    Evaluations list;
    Error error;
    const struct {
        const char* what;
        int example, at, value; // example -1: word of the header
        const char* reason;
    } damages[] = {{"another version", -1, 1, 2, "version 1"},
                   {"another kind of file", -1, 0, 20240520, "no file of multiple choice"},
                   {"no examples", -1, 2, 0, "has 0 examples"},
                   {"a negative count", -1, 2, -3, "has -3 examples"},
                   {"far too many examples", -1, 2, INT32_MAX, "example 3"},
                   {"one example too many", -1, 2, 4, "example 3"},
                   {"one too few", -1, 2, 2, "has 2 examples"},
                   {"no delimiter", 1, 0, 65534, "example 1"},
                   {"an odd length", 1, 1, 65, "example 1"},
                   {"a length that is too short", 1, 1, 54, "example 1"},
                   {"a length that is too long", 0, 1, 100, "example 0"},
                   {"a length beyond the file", 2, 1, 65534, "example 2"},
                   {"a length without room for anything", 0, 1, 8, "example 0"},
                   {"another number", 2, 2, 1, "example 2"},
                   {"a label too large", 0, 3, 2, "example 0"},
                   {"no completions", 2, 4, 0, "example 2"},
                   {"a completion more than there are", 1, 4, 5, "example 1"},
                   {"a context beyond the example", 0, 5, 60000, "example 0"},
                   {"an empty context", 0, 5, 0, "example 0"},
                   {"an empty completion", 2, 7, 0, "example 2"}};
    usual_file(&f);
    write_choices(path, &f, 0);
    check(opens(&list, path, &error) && list.count == 1 && list.item[0].rows == 7 && list.item[0].examples == 3,
          "the file that is damaged next is right: %s", error.text);
    evaluations_close(&list);
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        usual_file(&f);
        if (damages[i].example < 0)
            f.header[damages[i].at] = damages[i].value;
        else
            f.number[f.begin[damages[i].example] + damages[i].at] = (uint16_t)damages[i].value;
        write_choices(path, &f, 0);
        refused(damages[i].what, path, damages[i].reason);
    }
    int opened = 0;
    usual_file(&f);
    const int size = 1024 + 2 * f.numbers;
    for (int less = 1; less <= size - 4; less++) {
        write_choices(path, &f, less);
        if (opens(&list, path, &error)) opened++, evaluations_close(&list);
    }
    check(opened == 0, "refused: all of %d files that are cut off somewhere", size - 4);
    usual_file(&f);
    put(&f, 7);
    write_choices(path, &f, 1);
    refused("half a number behind the last example", path, "has 3 examples");
    static const int empty[] = {1, 0};
    begin_file(&f);
    write_choices(path, &f, 0);
    refused("a header alone", path, "has 0 examples");
    put_example(&f, 0, empty, 2);
    f.header[2] = 1;
    write_choices(path, &f, 0);
    refused("a completion without tokens", path, "example 0");
    refused("an empty name", CHOICES ",", "an empty name");
    refused("a pattern of choices and others", REFERENCE "evaluation.*", "no file of multiple choice");
    refused("less than a header", "dev/test/reference/evaluation.json", "no file of multiple choice");
    check(opens(&list, CHOICES "," CHOICES, &error) && list.count == 2 && list.item[1].examples == 43, "a list: %s",
          error.text);
    evaluations_close(&list);
}

// What the model has to do with a file: its vocabulary and its T.
static void test_fit(const char* path) {
    ChoiceFile f;
    Evaluations list;
    Error error;
    usual_file(&f);
    const int largest = f.numbers - 1 + 1; // tokens are one more than their place
    write_choices(path, &f, 0);
    if (!opens(&list, path, &error)) die("%s", error.text);
    Evaluation* e = &list.item[0];
    check(fits(e, 8, largest + 1, &error), "a vocabulary with all tokens: %s", error.text);
    check(!fits(e, 8, largest, &error) && strstr(error.text, "completion 6"), "one without the last: %s", error.text);
    check(!fits(e, 8, 7, &error) && strstr(error.text, "completion 0"), "one without the seventh: %s", error.text);
    check(fits(e, 7, 5001, &error) && e->cut == 4, "a completion of T tokens has room behind one of the context");
    check(!fits(e, 6, 5001, &error) && strstr(error.text, "has 7 tokens"), "a longer one has none: %s", error.text);
    evaluations_close(&list);
    f.number[f.begin[2] + 6] = 5000;
    write_choices(path, &f, 0);
    if (!opens(&list, path, &error)) die("%s", error.text);
    check(!fits(&list.item[0], 8, 5000, &error), "a context with a token too large: %s", error.text);
    evaluations_close(&list);
}

// ---- Scores -----------------------------------------------------------------------------------------------------

static void test_scores(const char* path) {
    static const int a[] = {2, 1, 2, 4}, b[] = {2, 3, 3};
    const double nan = (double)NAN, inf = (double)INFINITY;
    const struct {
        double sums[5];
        int answer[2], answer_norm[2];
    } cases[] = {{{3, 4, 8, 1, 2}, {0, 0}, {1, 0}},       // sums 3 4 8; means 3 2 2: of equal ones the first
                 {{3, 3, 3, 5, 5}, {0, 0}, {2, 0}},       //
                 {{inf, 5, 4, 2, 1}, {2, 1}, {2, 1}},     // an infinite loss is one
                 {{inf, inf, inf, 9, 8}, {0, 1}, {0, 1}}, //
                 {{nan, 5, 4, 1, nan}, {-1, -1}, {-1, -1}}, {{1, 2, nan, 0, -0.0}, {-1, 0}, {-1, 0}}};
    ChoiceFile f;
    Evaluations list;
    Error error;
    for (int labels = 0; labels < 6; labels++) {
        begin_file(&f);
        const int label[2] = {labels % 3, labels / 3};
        put_example(&f, label[0], a, 4), put_example(&f, label[1], b, 3);
        f.header[2] = 2;
        write_choices(path, &f, 0);
        if (!opens(&list, path, &error) || !fits(&list.item[0], 8, 5001, &error)) die("%s", error.text);
        int wrong = 0;
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            Evaluation* e = &list.item[0];
            memcpy(e->sums, cases[i].sums, sizeof cases[i].sums);
            int right = 0, right_norm = 0;
            for (int n = 0; n < 2; n++) {
                right += cases[i].answer[n] == label[n];
                right_norm += cases[i].answer_norm[n] == label[n];
            }
            wrong += evaluation_score(e, false) != right / 2.0 || evaluation_score(e, true) != right_norm / 2.0;
        }
        check(wrong == 0, "answers and their part that is right, labels %d and %d: %d wrong", label[0], label[1],
              wrong);
        evaluations_close(&list);
    }
}

// ---- Passes -----------------------------------------------------------------------------------------------------

typedef struct {
    Json json;
    double* sums[2];     // [gpt2, llama]
    double error[2];     // of PyTorch in float32
    int64_t right[2][2]; // by sum, by mean
    int64_t rows;
} Reference;

static const char* const model_names[2] = {"gpt2", "llama"};
static const char* const model_lines[2] = {"--arch gpt2 --ffn 40", "--arch llama --ffn 24 --kv-heads 2"};

static const JsonNode* need(const Reference* r, const JsonNode* object, const char* key, JsonType type) {
    Error error;
    const JsonNode* node = json_require(&r->json, object, key, type, &error);
    if (!node) die("%s", error.text);
    return node;
}

static void reference_open(Reference* r) {
    Error error;
    memset(r, 0, sizeof *r);
    if (!json_open(&r->json, REFERENCE "evaluation.json", &error)) die("%s", error.text);
    const JsonNode* models = need(r, r->json.nodes, "models", JSON_OBJECT);
    for (int m = 0; m < 2; m++) {
        const JsonNode* model = need(r, models, model_names[m], JSON_OBJECT);
        const JsonNode* list = need(r, model, "choices", JSON_ARRAY);
        r->rows = list->count;
        r->sums[m] = (double*)checked_calloc(list->count, sizeof(double), "test");
        int n = 0;
        for (const JsonNode* x = json_first(list); x; x = json_next(x)) r->sums[m][n++] = json_number(x);
        r->error[m] = json_number(need(r, model, "float32", JSON_REAL));
        const JsonNode* right = json_first(need(r, model, "right", JSON_ARRAY));
        r->right[m][0] = right->value.integer;
        r->right[m][1] = json_next(right)->value.integer;
    }
}

// A trainer of this mesh with the reference's weights and the evaluation.
static void open_mesh(Trainer* t, const Comm* world, int model, const char* mesh, const char* init) {
    char line[1024];
    snprintf(line, sizeof line, "%s %s %s", model_lines[model], mesh, init);
    trainer_open(t, world, line, NULL, false);
    t->settings.evaluate = CHOICES;
    open_evaluations(t);
    check_forward_schedules(t);
}

static void close_mesh(Trainer* t) {
    evaluations_close(&t->evaluations);
    trainer_close(t);
}

static void evaluate_common(Trainer* t) {
    load_global_weights(t);
    evaluate_all(t);
    restore_local_weights(t);
}

static double worst_error(const double* ours, const double* theirs, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        const double error = fabs(ours[i] / theirs[i] - 1);
        if (!(error <= worst)) worst = isnan(error) ? INFINITY : error;
    }
    return worst;
}

static const struct {
    int ranks;
    const char* line;
    bool exact; // the same bits as one rank, on the CPU
} meshes[] = {{1, "--micro-batch 1 --global-batch 4", true},
              {1, "--micro-batch 5 --global-batch 5 --recompute full", true},
              {1, "--caat-fraction 0.5 --caat-ranks 2", false}, // a CAAT-Net: an own model
              {2, "--tp 2", false},
              {2, "--tp 2 --sequence-parallel --micro-batch 6", false},
              {2, "--pp 2", true},
              {2, "--pp 2 --vpp 2", true},
              {2, "--pp 2 --schedule zb-v --micro-batch 2", true},
              {2, "--dp 2", true},
              {2, "--dp 2 --zero 2 --micro-batch 1", true},
              {2, "--dp 2 --dp-mode dc-s3gd", true},
              {2, "--tp 2 --caat-fraction 0.5", false},
              {3, "--dp 3 --micro-batch 4", true},
              {3, "--pp 3 --dp 1", true},
              {3, "--dp 3 --micro-batch 1 --dp-mode diloco --local-steps 2", true},
              {4, "--tp 2 --pp 2", false},
              {4, "--tp 2 --dp 2 --micro-batch 2 --sequence-parallel", false},
              {4, "--pp 2 --dp 2 --schedule zb-h1", true},
              {4, "--pp 2 --vpp 2 --dp 2 --micro-batch 2 --global-batch 16", true}};

// The CAAT-Net's rows as two ranks find them, beside one rank with two states: nothing is known of it from PyTorch
// here.
static bool is_caat_line(const char* line) { return strstr(line, "--caat-fraction") != NULL; }

// What a pass found, the worst of all ranks; rank 0 tells.
static void test_pass(Comm* world, const Evaluation* mine, const Evaluation* single, const Reference* r, int model,
                      const char* line, bool exact) {
    const size_t bytes = (size_t)mine->rows * sizeof(double);
    const bool caat = is_caat_line(line);
    const double bound = 10 * fmax(fmax(2e-7, r->error[model]), u > 0x1p-24 ? 1.6 * u : 0);
    const double* expected = caat ? single->sums : r->sums[model];
    if (mine->rows != r->rows) die("%lld rows", (long long)mine->rows);
    double worst[2] = {worst_error(mine->sums, expected, mine->rows),
                       (double)(memcmp(mine->sums, single->sums, bytes) != 0)};
    comm_all_reduce(world, worst, 2, COMM_DOUBLE, COMM_MAX);
    if (world->rank > 0) return;
    char text[160];
    snprintf(text, sizeof text, "%s %s", model_names[model], line);
    check_error(text, worst[0], bound);
    // The global parameters of asynchronous replicas are rounded by the step's random numbers, also before the first.
    const bool rounded_anew = HAS_MASTER_WEIGHTS && strstr(line, "--dp-mode");
    if (exact && DEVICE_IS_HOST && !rounded_anew) check(worst[1] == 0, "  the bits of one rank");
    const int64_t* right = r->right[model];
    if (!caat && DEVICE_IS_HOST)
        check(llround(evaluation_score(mine, false) * 43) == right[0] &&
                  llround(evaluation_score(mine, true) * 43) == right[1] && mine->examples == 43,
              "  %lld and %lld of 43 are right", (long long)right[0], (long long)right[1]);
}

static void test_mesh(const Comm* world, const Comm* alone, const Reference* r, int model, const char* line,
                      bool exact) {
    Trainer one, t;
    char init[128];
    const bool caat = is_caat_line(line);
    snprintf(init, sizeof init, caat ? "--seed 3" : "--init " REFERENCE "replicas_%s.safetensors", model_names[model]);
    open_mesh(&one, alone, model, caat ? "--caat-fraction 0.5 --caat-ranks 2" : "", init);
    evaluate_common(&one);
    open_mesh(&t, world, model, line, init);
    evaluate_common(&t);
    test_pass(&t.world, &t.evaluations.item[0], &one.evaluations.item[0], r, model, line, exact);
    close_mesh(&t), close_mesh(&one);
}

int main(int argc, char** argv) {
    const bool few = argc > 1 && strcmp(argv[1], "--short") == 0; // every third mesh, with one model
    Comm world = world_open("test_evaluate");
    Reference reference;
    reference_open(&reference);
    if (world.size == 1) {
        char path[300];
        make_temporary(path, sizeof path, "test_evaluate");
        test_choice_rows(path);
        test_damage(path);
        test_fit(path);
        test_scores(path);
        unlink(path);
    }
    Comm alone = comm_split(&world, world.rank, 0, "alone", COMM_WIDE);
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        if (meshes[i].ranks != world.size || (few && i % 3 != 0)) continue;
        for (int model = 0; model < (few ? 1 : 2); model++)
            test_mesh(&world, &alone, &reference, model, meshes[i].line, meshes[i].exact);
    }
    comm_free(&alone);
    free(reference.sums[0]), free(reference.sums[1]);
    json_free(&reference.json);
    return world_close(&world);
}
