/*
util/options.h: files of options, and help. Whatever a table holds is written to a file and read back the same; files
that are wrong are refused with their line; the command line wins; every row is in the help. (What is wrong on a
command line: test_layout.c and test_cli.sh.)
*/
#include "../../../kernels/kernels.h"
#include "../../../util/options.h"
#include "../../../trainer/derived.h"
#include "test.h"

typedef struct {
    int64_t whole, small;
    double number, part;
    const char *text, *file, *folder;
    int choice, other;
    bool flag, second, now;
} TestValues;

enum { ROWS = 14 };

static TestValues values_default(void) {
    const TestValues v = {-1, 7, -1, 0.25, NULL, NULL, NULL, 0, -1, false, false, false};
    return v;
}

static int make_table(Option* table, TestValues* v) {
    const Option rows[ROWS] = {
        option_heading("first things"),
        option_int("whole", &v->whole, 0, 9e15, "a whole number"),
        option_int("small", &v->small, -10, 10, "a small one"),
        option_float("number", &v->number, 0, 1e300, "a number [of 5]: it's \"any\" \\ size"),
        option_float("part", &v->part, 0, 1, "a part"),
        option_heading("second things, and more"),
        option_string("text", &v->text, "NAME", "a text"),
        option_string("file", &v->file, "FILE", "a file"),
        option_string("folder", &v->folder, "DIR", "a folder"),
        option_choice("choice", &v->choice, "one|two|twenty-one", "one of three"),
        option_choice("other", &v->other, "red|green", "one of two, or none"),
        option_flag("flag", &v->flag, "yes or no"),
        option_flag("second", &v->second, "another one"),
        option_command(option_flag("now", &v->now, "do it now")),
    };
    memcpy(table, rows, sizeof rows);
    return ROWS;
}

// Reads words that are separated by '|'.
static bool parse(Option* table, int n, char* words, Error* error) {
    char* argv[32] = {(char*)"test"};
    int argc = 1;
    for (char* word = strtok(words, "|"); word; word = strtok(NULL, "|")) argv[argc++] = word;
    return options_parse(table, n, argc, argv, error);
}

static bool same_text(const char* a, const char* b) { return a == b || (a && b && strcmp(a, b) == 0); }

static bool same_values(const TestValues* a, const TestValues* b) {
    return a->whole == b->whole && a->small == b->small && memcmp(&a->number, &b->number, 2 * sizeof(double)) == 0 &&
           same_text(a->text, b->text) && same_text(a->file, b->file) && same_text(a->folder, b->folder) &&
           a->choice == b->choice && a->other == b->other && a->flag == b->flag && a->second == b->second;
}

// What options_write or options_help prints, for the caller to free.
static char* printed(void print(const Option*, int, FILE*), const Option* table, int n) {
    char* text = NULL;
    size_t size;
    FILE* out = open_memstream(&text, &size);
    print(table, n, out);
    fclose(out);
    return text;
}

static const char* random_text(char text[64], uint64_t i) {
    static const char letters[] = "abc XYZ=#-'\"\\\t$é*,:019./";
    const int n = 1 + (int)(24 * random_uniform(5, 1, i));
    text[n] = 0;
    for (int k = 0; k < n; k++)
        text[k] = letters[(int)((double)(sizeof letters - 1) * random_uniform(5, 2, i * 100 + (uint64_t)k))];
    if (strchr(" \t", text[0])) text[0] = 'x';
    if (strchr(" \t", text[n - 1])) text[n - 1] = 'x';
    return text;
}

// Random values, some of them given: written, read, the same; and nothing that was not given is taken from the file.
static void test_round_trip(void) {
    int wrong = 0, taken = 0, again = 0;
    for (uint64_t i = 0; i < 4000; i++) {
        TestValues v = values_default(), read = values_default();
        Option table[ROWS], back[ROWS];
        Error error;
        char text[3][64];
        const int n = make_table(table, &v);
        make_table(back, &read);
        for (int k = 0; k < n; k++) {
            Option* o = &table[k];
            const uint64_t draw = i * ROWS + (uint64_t)k;
            const double u = random_uniform(9, 1, draw);
            if (o->type == OPTION_HEADING || random_uniform(9, 2, draw) < 0.5) continue;
            o->given = true;
            if (o->type == OPTION_INT) *(int64_t*)o->value = (int64_t)(o->low + u * (o->high - o->low));
            if (o->type == OPTION_FLOAT) *(double*)o->value = o->high > 1 ? pow(10, 600 * u - 300) : u;
            if (o->type == OPTION_STRING) *(const char**)o->value = random_text(text[k - 6], draw);
            if (o->type == OPTION_CHOICE) *(int*)o->value = (int)(u * (k == 9 ? 3 : 2));
            if (o->type == OPTION_FLAG) *(bool*)o->value = u < 0.5;
        }
        char* file = printed(options_write, table, n);
        char* second;
        wrong += !options_check_file(table, n, &error) || !options_read(back, n, file, "file", &error) ||
                 !same_values(&v, &read);
        for (int k = 0; k < n; k++) taken += back[k].given != (table[k].given && !table[k].command);
        for (int k = 0; k < n; k++) table[k].given = back[k].given;
        second = printed(options_write, back, n);
        free(file);
        file = printed(options_write, table, n);
        again += strcmp(file, second) != 0;
        free(file);
        free(second);
    }
    check(wrong == 0, "4000 tables are read as they were written: %d are not", wrong);
    check(taken == 0, "what was given, and no more, is given again: %d are not", taken);
    check(again == 0, "and is written as before: %d are not", again);
}

// file: its text; arguments: the command line, parsed before, separated by '|'; place: how the refusal begins (line,
// option), or NULL.
static void test_case(const char* file, const char* arguments, const char* place, const TestValues* expected) {
    TestValues v = values_default();
    Option table[ROWS];
    Error error;
    char text[256], words[256], shown[256];
    const int n = make_table(table, &v);
    snprintf(text, sizeof text, "%s", file);
    snprintf(words, sizeof words, "%s", arguments);
    error.text[0] = 0;
    bool ok = parse(table, n, words, &error);
    ok = ok && options_read(table, n, text, "a.txt", &error);
    for (char* c = strcpy(shown, file); *c; c++) {
        if (*c == '\n' || *c == '\r' || *c == '\t') *c = '/';
    }
    if (place)
        check(!ok && strncmp(error.text, place, strlen(place)) == 0, "\"%s\" %s: %s", shown, arguments, error.text);
    else
        check(ok && same_values(&v, expected), "\"%s\" %s: read %s", shown, arguments, error.text);
}

static void test_files(void) {
    TestValues v = values_default();
    test_case("", "", NULL, &v);
    test_case("\n\n# --small 3\n   # x\n\t\n#", "", NULL, &v);
    v.small = 3;
    v.flag = true;
    test_case("--small 3\n--flag", "", NULL, &v);
    test_case("\t --small \t 3 \r\n--flag\r\n", "", NULL, &v);
    test_case("--small=3\n  --flag  \n", "", NULL, &v);
    test_case("--small 5\n", "--small|3|--flag", NULL, &v);
    test_case("--small 3\n--flag no\n", "--flag", NULL, &v);
    test_case("--small -5\n--flag\n", "--flag|--small=3", NULL, &v);
    v.flag = false;
    test_case("--small 3\n--flag no\n", "", NULL, &v);
    test_case("--small 3\n--flag\n", "--flag=no", NULL, &v);
    v = values_default();
    v.text = "a b  c=d # e";
    v.file = "=x";
    v.choice = 2;
    v.whole = 9000000000000000;
    test_case("--text a b  c=d # e\n--file =x\n--choice twenty-one\n--whole 9000000000000000", "", NULL, &v);
    v = values_default();
    v.text = "b";
    test_case("--text a\n", "--text|b", NULL, &v);
    // Given twice on the command line, the last one wins; in a file it is a slip.
    v.small = 4;
    v.flag = true;
    v.choice = 1;
    test_case("", "--small|3|--small|4|--flag|--flag|--choice|one|--text|a|--text=b|--choice|two", NULL, &v);
    test_case("--small 9\n", "--small|3|--small|4|--flag|--choice|two|--text|b", NULL, &v);
    test_case("", "--small|x|--small|4", "--small", NULL);
    test_case("--small 11\n", "", "a.txt:1: --small", NULL);
    test_case("\n\n--small x\n", "", "a.txt:3: --small", NULL);
    test_case("--small x\n", "--text|b", "a.txt:1: --small", NULL);
    test_case("--small 1\n#\n--small 1\n", "", "a.txt:3: --small", NULL);
    test_case("--small 1\n--small=2\n", "--small|3", "a.txt:2: --small", NULL);
    test_case("--smal 1\n", "", "a.txt:1: ", NULL);
    test_case("--xxxxxxxxxxxx 1\n", "", "a.txt:1: ", NULL);
    test_case("small 1\n", "", "a.txt:1: small", NULL);
    test_case("-- 1\n", "", "a.txt:1: --", NULL);
    test_case("--small\n", "", "a.txt:1: --small", NULL);
    test_case("--small   \n", "", "a.txt:1: --small", NULL);
    test_case("--small=\n", "", "a.txt:1: --small", NULL);
    test_case("--text=\n", "", "a.txt:1: --text", NULL);
    test_case("--flag yes\n", "", "a.txt:1: --flag", NULL);
    test_case("\n--now\n", "", "a.txt:2: --now", NULL);
}

// Whole numbers as people write them.
static void test_whole_numbers(void) {
    static const char* const texts[] = {"0",    "10000", "1e4", "1E+4", "1.5e3", "8999999999999999", // then refused
                                        "10k",  "1.5",   "",    "1e4 ", "1e-1",  "99999999999999999999",
                                        "1e",   "e4",    "inf", "nan",  "0x10",  "9007199254740993e0",
                                        "-1e3", "1e400"};
    static const int64_t values[] = {0, 10000, 10000, 10000, 1500, 8999999999999999};
    for (int i = 0; i < (int)(sizeof texts / sizeof *texts); i++) {
        int64_t x = 7;
        Option o = option_int("n", &x, 0, 9e15, "");
        Error error;
        const bool ok = option_set(&o, texts[i], &error);
        check(ok == (i < 6) && x == (ok ? values[i] : 7), "--n %s: %lld", texts[i], (long long)x);
    }
}

// Names that other trainers have lead to the option here; which of them this table has matters.
static void test_aliases(void) {
    static const char* const cases[][2] = {
        {"learning_rate", "--lr"}, {"gradient_accumulation_steps", "--global-batch"}, {"dropout", "no dropout"}};
    Settings settings = settings_default();
    Option table[MAX_OPTIONS], few[ROWS];
    TestValues v = values_default();
    Error error;
    const int n = settings_table(table, &settings), m = make_table(few, &v);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        option_unknown(table, n, cases[i][0], &error);
        check(strstr(error.text, cases[i][1]) != NULL, "%s", error.text);
    }
    option_unknown(few, m, "learning-rate", &error);
    check(!strstr(error.text, "--lr"), "a table without it: %s", error.text);
    option_unknown(table, n, "layer", &error);
    check(strstr(error.text, "--layer;") && strstr(error.text, "--help"), "a slip: %s", error.text);
    int wrong = 0;
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
        char words[512];
        const Alias* a = &aliases[i];
        if (a->here ? !option_find(table, n, a->here) : !a->note) wrong++;
        snprintf(words, sizeof words, "%s", a->theirs);
        for (char* word = strtok(words, " "); word; word = strtok(NULL, " "))
            wrong += option_find(table, n, word) != NULL || alias_find(word) != a;
    }
    check(wrong == 0, "every alias leads to an option that is there, is none itself, and is there once: %d do not",
          wrong);
}

// Values that a line cannot hold are refused before they are written.
static void test_refused(void) {
    static const char* const texts[] = {" a", "a ", "\ta", "a\t", "a\nb", "a\rb", "a\n"};
    char text[5000], longest[5000];
    Error error;
    memset(longest, 'x', sizeof longest);
    longest[4095] = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts + 2; i++) {
        TestValues v = values_default();
        Option table[ROWS];
        const int n = make_table(table, &v);
        const bool fits = i == sizeof texts / sizeof *texts;
        v.file = i < sizeof texts / sizeof *texts ? texts[i] : longest;
        if (i > sizeof texts / sizeof *texts) strcpy(longest + 4095, "x");
        Option* file = option_find(table, n, "file");
        check(options_check_file(table, n, &error), "what was not given is not looked at");
        file->given = true;
        check(options_check_file(table, n, &error) == fits && option_text(text, 4096, file) == fits &&
                  (fits || strstr(error.text, "--file")),
              "a value of %zu bytes is %s", strlen(v.file), fits ? "taken" : "refused, and has no text");
    }
}

// Every row is in the help, options in a line of their own, which fits; what is not set has no default.
static void test_help(void) {
    Settings settings = settings_default();
    Option table[MAX_OPTIONS];
    const int n = settings_table(table, &settings);
    char* all = printed(options_help, table, n);
    int missing = 0, lines = 0;
    size_t longest = 0;
    for (int i = 0; i < n; i++) {
        char form[64];
        const bool heading = table[i].type == OPTION_HEADING;
        snprintf(form, sizeof form, "\n%s%s", heading ? "" : "  --", table[i].name);
        missing += !strstr(all, form);
        lines -= !heading;
    }
    check(missing == 0, "every row is in --help: %d are not", missing);
    check(strstr(all, "[0.9]") && !strstr(all, "[-1]"), "and its default, if it has one");
    for (char* line = strtok(all, "\n"); line; line = strtok(NULL, "\n")) {
        lines += strncmp(line, "  --", 4) == 0;
        longest = strlen(line) > longest ? strlen(line) : longest;
    }
    check(lines == 0 && longest <= HELP_WIDTH, "a line for each option, none longer than %d: %zu", HELP_WIDTH, longest);
    free(all);
}

// What the learning rates and the warm-up are where they were not said.
static void test_rates(void) {
    static const struct {
        double parameters, lr;
    } cases[] = {{1, 3e-3},       {842496, 3e-3}, {1e6, 3e-3},     {10e6, 1.4e-3}, {124439808, 6e-4}, {125e6, 6e-4},
                 {200e6, 4.4e-4}, {350e6, 3e-4},  {760e6, 2.5e-4}, {1e9, 2.2e-4},  {1.3e9, 2e-4},     {2.7e9, 1.6e-4},
                 {6.7e9, 1.2e-4}, {13e9, 1e-4},   {50e9, 7.7e-5},  {175e9, 6e-5},  {1e15, 6e-5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double lr = usual_rate(cases[i].parameters);
        check(lr == cases[i].lr, "%g parameters: lr %g", cases[i].parameters, lr);
    }
    static const struct {
        const char* init;
        int64_t steps, warmup, expected_warmup; // warmup -1, and rates -1: not said
        double lr, min_lr, expected_lr, expected_min;
    } said[] = {{NULL, 1000, -1, 50, -1, -1, 3e-4, 3e-5},
                {"weights", 15, -1, 0, -1, -1, 3e-5, 3e-6},
                {NULL, 1000000, -1, 2000, 0.5, -1, 0.5, 0.05},
                {"weights", 1000, 0, 0, 0.5, 0, 0.5, 0}};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        Settings o = settings_default();
        o.init = said[i].init;
        o.steps = said[i].steps;
        if (said[i].warmup >= 0) o.warmup = said[i].warmup;
        if (said[i].lr >= 0) o.lr = said[i].lr;
        if (said[i].min_lr >= 0) o.min_lr = said[i].min_lr;
        settings_rates(&o, model_find_preset("gpt2-350M"));
        check(o.lr == said[i].expected_lr && o.min_lr == said[i].expected_min && o.warmup == said[i].expected_warmup,
              "350M, %lld steps, case %zu: %g, %g, %lld", (long long)o.steps, i, o.lr, o.min_lr, (long long)o.warmup);
    }
}

// The largest momenta that are taken are below 1 in float32 too, in which the optimizer counts: an update is finite.
// (Larger ones are refused: test_cli.sh.)
static void test_momenta(void) {
    Settings o = settings_default();
    Option table[MAX_OPTIONS];
    const int n = settings_table(table, &o);
    float weight = 1, gradient = 0.5f, m = 0, v = 0;
    o.beta1 = option_find(table, n, "beta1")->high;
    o.beta2 = option_find(table, n, "beta2")->high;
    const TensorRange whole = whole_range(1);
    for (int step = 1; step <= 3; step++) {
        const OptimizerStep s = {0.01f, (float)o.beta1, (float)o.beta2, 1e-8f, 0, step, 1};
        adamw_update(&weight, NULL, &gradient, &m, &v, &whole, 1, &s);
    }
    check(fabsf(weight - 0.97f) < 1e-4f, "--beta1 %g --beta2 %g: three updates of 0.01 lead from 1 to %g", o.beta1,
          o.beta2, (double)weight);
}

int main(void) {
    test_round_trip();
    test_files();
    test_whole_numbers();
    test_aliases();
    test_refused();
    test_help();
    test_rates();
    test_momenta();
    return test_end();
}
