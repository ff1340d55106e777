/*
test_datacenter.c: the datacenter planner. The published numbers; the worked example that was computed before there was
a planner, entry by entry to its last digit; whole plans beside files; marks that follow values, by changing every input
and looking at what moves; lines that are refused.
*/
#include "../../../planner/datacenter_print.h"
#include "golden.h"

#define SHIPPED "planner/clusters/next-generation.txt"

// A plan that has to work.
static DatacenterPlan plan_of(const Datacenter* d) {
    static DatacenterPlan p;
    Error error = {""};
    if (!datacenter_plan(&p, d, &error)) check(false, "%s", error.text);
    return p;
}

// ----------------------------------------------------------------------------------------------------------------
// The numbers that are known

// Section 5 of the notes on the paper, tests 1 to 5, and the figures of section 2.
static void test_published(void) {
    Datacenter d = datacenter_default();
    DatacenterPlan p = plan_of(&d);
    check(p.affordable.value == 23333 && p.racks.value == 23300,
          "$100B, 70 %%, $3.0M a rack: %.0f racks, reported %.0f", p.affordable.value, p.racks.value);
    check(p.gpus.value == 1677600, "23,300 x 72 = %.0f GPUs", p.gpus.value);
    check(fabs(p.power_low.value / 1e9 - 4.16) < 0.005 && fabs(p.power_high.value / 1e9 - 4.71) < 0.005,
          "3.62 GW x 1.15, 1.30 = %.3f, %.3f GW", p.power_low.value / 1e9, p.power_high.value / 1e9);
    check(p.sites.value == 2 && p.sites.mark == CONFIRMED, "two sites where nothing is said of them");
    check(p.site_gpus.value == 838800 && fabs(p.site_it.value / 1e9 - 1.8) < 0.05 &&
              fabs(p.site_low.value / 1e9 - 2.08) < 0.005 && fabs(p.site_high.value / 1e9 - 2.36) < 0.01,
          "of each: 838,800 GPUs, 1.8 GW, 2.08 to 2.36 GW");
    static const double caps[] = {5e9, 4.5e9, 2.4e9, 2.3e9}, sites[] = {1, 2, 2, 3}; // of 4.71 GW at most
    for (int i = 0; i < 4; i++) {
        d.site_power = fact(caps[i], ASSUMED);
        p = plan_of(&d);
        check(p.sites.value == sites[i] && p.sites.mark == ASSUMED, "sites of %.1f GW: %g", caps[i] / 1e9, sites[i]);
        check((sites[i] > 1) == (p.model[0].delay_step.value > 0), "  and a delay between them, if there are several");
    }
    d = datacenter_default();
    p = plan_of(&d);
    check(fabs(p.model[0].flops.value / 3.0e29 - 1) < 0.05 / 3 &&
              fabs(p.model[1].flops.value / 1.2e30 - 1) < 0.05 / 1.2,
          "20 tokens a parameter: %.2e and %.2e FLOP", p.model[0].flops.value, p.model[1].flops.value);
}

// Section 4: the worked table, each entry within half of its last digit.
static void test_table(void) {
    static const struct {
        const char* what;
        size_t at;
        double unit, value[2], digit[2]; // digit: 1 of the last one that the table has
    } table[] = {
#define AT(name) #name, offsetof(ModelPlan, name)
        {AT(layers), 1, {242, 310}, {1, 1}},
        {AT(hidden), 1, {131072, 163840}, {1, 1}},
        {AT(tokens), 1e15, {1.0, 2.0}, {0.1, 0.1}},
        {AT(flops), 1e29, {3.0, 12}, {0.1, 1}},
        {AT(days_fp8), 1, {1033, 4141}, {1, 1}},
        {AT(tensor), 1, {64, 64}, {1, 1}},
        {AT(pipeline), 1, {22, 62}, {1, 1}},
        {AT(data), 1, {1191, 422}, {1, 1}},
        {AT(chunks), 1, {11, 5}, {1, 1}},
        {AT(batch), 1, {24576, 49152}, {1, 1}},
        {AT(micro_batches), 1, {20.6, 116}, {0.1, 1}},
        {AT(bubble), 1, {0.09, 0.105}, {0.01, 0.001}},
        {AT(step), 1, {18.0, 72}, {0.1, 1}},
        {AT(state), 1e9, {142, 101}, {1, 1}},
        {AT(tp_bytes), 1e9, {186, 106}, {1, 1}},
        {AT(micro_step), 1, {0.87, 0.62}, {0.01, 0.01}},
        {AT(tp_rate), 1e9, {214, 171}, {1, 1}},
        {AT(pp_rate), 1e9, {6.8, 5.4}, {0.1, 0.1}},
        {AT(dp_bytes), 1e9, {142, 100}, {1, 1}},
        {AT(dp_rate), 1e9, {63, 11}, {1, 1}},
        {AT(wan_bytes), 1e12, {100, 200}, {1, 1}},
        {AT(wan_rate), 1e12, {44, 22}, {1, 1}},
        {AT(checkpoint), 1e15, {0.70, 1.40}, {0.01, 0.01}},
        // what the notes say of the table
        {AT(law_ratio), 1, {330, 380}, {10, 10}},
#undef AT
    };
    const Datacenter d = datacenter_default();
    const DatacenterPlan p = plan_of(&d);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        for (int k = 0; k < 2; k++) {
            const double x = fact_in(&p.model[k], table[i].at).value / table[i].unit, value = table[i].value[k];
            check(fabs(x - value) <= table[i].digit[k] / 2, "table, %dT: %s %.6g, worked %.6g", 50 * (k + 1),
                  table[i].what, x, value);
        }
    }
    // 180 days at 2.5 PFLOP/s: 8.7e13 tokens for 50T, 4.35e13 for 100T
    const double tokens = p.model[0].tokens_in_time.value / 2, half = p.model[1].tokens_in_time.value / 2;
    check(fabs(tokens / 8.7e13 - 1) < 0.05 / 8.7 && fabs(half / 4.35e13 - 1) < 0.005,
          "tokens of 180 days per 2.5 PFLOP/s: %.2e, %.2e", tokens, half);
    check(fabs(p.failure_hours.value - 50700) < 50 && fabs(p.mtbf.value - 109) < 0.5,
          "%.0f GPU-hours a failure, one in %.1f s", p.failure_hours.value, p.mtbf.value);
    check(fabs(p.interval[0].value - 15) < 0.5 && fabs(p.overhead[0].value - 0.14) < 0.005 &&
              fabs(p.overhead[1].value - 0.30) < 0.005,
          "checkpoints of 1 s every %.1f s cost %.3f, of 5 s %.3f", p.interval[0].value, p.overhead[0].value,
          p.overhead[1].value);
}

// ----------------------------------------------------------------------------------------------------------------
// Whole plans, as they were when each of their numbers was derived a second way

static char* printed(const DatacenterPlan* p, const Datacenter* inputs) {
    char* text = NULL;
    size_t size = 0;
    FILE* out = open_memstream(&text, &size);
    if (!out) die("test_datacenter: no memory for a text");
    if (inputs) datacenter_print_inputs(inputs, out);
    datacenter_print(p, out);
    fclose(out);
    return text;
}

// The paper's plan; another one in which all that can be is different; and one that a file has fixed.
static void test_golden(bool write) {
    for (int i = 0; i < 3; i++) {
        Datacenter d = datacenter_default();
        char name[48];
        if (i == 1) {
            d.hbm.value = 100e9;
            d.spares.value = 8;
            d.sites.value = 3;
            d.gradient_bytes.value = 4;
            d.micro_batch.value = 2;
            d.restart.value = 20;
            d.precision.value = 16;
            d.it_power.value = 3e9;
            d.nic.mark = CONFIRMED;
            d.days_limit.value = 11000;
            datacenter_add_model(&d, fact(20e12, ASSUMED), 0);
        }
        if (i == 2) {
            const double fixed[] = {240, 16384 * 9, 32, 12, 4, 30000};
            for (int k = 1; k < MODEL_INPUTS; k++) fact_at(&d.model[0], model_inputs[k].at)->value = fixed[k - 1];
            d.model[0].parameters.value = 60e12;
            d.precision.value = 4;
            d.site_power.value = 1e9;
        }
        const DatacenterPlan p = plan_of(&d);
        char* text = printed(&p, &d);
        snprintf(name, sizeof name, "golden_datacenter_%d.txt", i);
        check_golden(name, text, 0, write);
        free(text);
    }
}

// Without a pipeline.
static void test_single_stage(void) {
    Datacenter d = datacenter_default();
    d.hbm.value = 1e15;
    d.models = 1;
    d.model[0].pipeline.value = 1;
    d.model[0].batch.value = 24576;
    const ModelPlan single = plan_of(&d).model[0];
    check(single.bubble.value == 0 && single.pp_bytes.value == 0 && single.wall.value == 0,
          "one stage: no bubble, no wall, no messages");
    d.model[0].batch.value = 0;
    d.micro_batch.value = 4;
    const ModelPlan four = plan_of(&d).model[0];
    check(fmod(four.batch.value, 8192) == 0 && four.micro_batches.value >= 1 &&
              four.micro_batches.value <= 1 + 8192 / 4 / four.data.value,
          "one stage: the least batch that has a micro-batch for everyone");
}

// ----------------------------------------------------------------------------------------------------------------
// Marks

// All facts of a plan lie behind each other, in it and in its models.
static int fact_count(void) { return (int)(offsetof(DatacenterPlan, model) / sizeof(Fact)); }

static void all_confirmed(Datacenter* d) {
    for (int i = 0; i < DATACENTER_INPUTS; i++) fact_at(d, datacenter_inputs[i].at)->mark = CONFIRMED;
    for (int i = 0; i < DATACENTER_STALLS; i++) d->stall[i].mark = CONFIRMED;
    for (int k = 0; k < d->models; k++) {
        for (int i = 0; i < MODEL_INPUTS; i++) fact_at(&d->model[k], model_inputs[i].at)->mark = CONFIRMED;
    }
}

typedef struct {
    int moved, blind, better, changed; // facts that follow the value; of these, with a mark that does not; ...
} Follows;

static void compare_facts(const void* plain, const void* marked, const void* moved, int n, bool move, Follows* f) {
    for (int i = 0; i < n; i++) {
        const Fact a = fact_in(plain, (size_t)i * sizeof(Fact)), b = fact_in(marked, (size_t)i * sizeof(Fact));
        f->better += b.mark < a.mark;
        f->changed += b.value != a.value;
        if (!move || fact_in(moved, (size_t)i * sizeof(Fact)).value == a.value) continue;
        f->moved++;
        f->blind += b.mark != ASSUMED;
    }
}

// Everything whose value an input can change has at best that input's mark. The fact of d at `at` is changed in
// several ways, so that what is rounded moves, too.
static Follows follow(const Datacenter* d, size_t at, bool whole) {
    static const double factors[] = {1.02, 2, 0.5, 0.98, 11, 0.05, 1.3, 1e-9};
    Follows f = {0, 0, 0, 0};
    static DatacenterPlan plain, marked, moved;
    Error error = {""};
    Datacenter changed = *d;
    fact_at(&changed, at)->mark = ASSUMED;
    plain = plan_of(d);
    marked = plan_of(&changed);
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        const double value = fact_in(d, at).value > 0 ? fact_in(d, at).value * factors[i] : factors[i];
        changed = *d;
        fact_at(&changed, at)->value = whole ? fmax(1, floor(value)) : value;
        const bool move = datacenter_plan(&moved, &changed, &error);
        compare_facts(&plain, &marked, &moved, fact_count(), move, &f);
        for (int k = 0; k < d->models; k++)
            compare_facts(&plain.model[k], &marked.model[k], &moved.model[k], (int)(sizeof(ModelPlan) / sizeof(Fact)),
                          move, &f);
    }
    return f;
}

// use() and result() by themselves: the weakest of what was read, back-computed at best, and nothing of it later.
static void test_facts(void) {
    for (int a = 0; a < MARKS; a++) {
        for (int b = 0; b < MARKS; b++) {
            Mark w = BACK_COMPUTED;
            const Fact f = result(&w, use(&w, fact(3, (Mark)a)) - use(&w, fact(2, (Mark)b)));
            const Fact next = result(&w, use(&w, fact(5, CONFIRMED)));
            const Mark weakest = a == ASSUMED || b == ASSUMED ? ASSUMED : BACK_COMPUTED;
            check(f.value == 1 && f.mark == weakest && next.value == 5 && next.mark == BACK_COMPUTED,
                  "from %s and %s: %s", mark_names[a], mark_names[b], mark_names[f.mark]);
        }
        const Fact hit = fact_published(fact(2.04, (Mark)a), 2, 0.05),
                   missed = fact_published(fact(2.06, (Mark)a), 2, 0.05);
        check(hit.mark == (a == ASSUMED ? ASSUMED : CONFIRMED) && missed.mark == (Mark)a && hit.value == 2.04,
              "%s, and published: %s", mark_names[a], mark_names[hit.mark]);
    }
}

// With every input confirmed, what is computed is back-computed; then each input is followed by itself.
static void follow_all(Datacenter d, const char* what, int expected_silent) {
    all_confirmed(&d);
    const DatacenterPlan q = plan_of(&d);
    int weak = 0, silent = 0;
    for (int i = 0; i < fact_count(); i++) weak += fact_in(&q, (size_t)i * sizeof(Fact)).mark == ASSUMED;
    for (int k = 0; k < q.models; k++) {
        for (size_t i = 0; i < sizeof(ModelPlan) / sizeof(Fact); i++)
            weak += fact_in(&q.model[k], i * sizeof(Fact)).mark == ASSUMED;
    }
    check(weak == 4 && q.model[0].days.mark == BACK_COMPUTED && q.model[0].wall.mark == BACK_COMPUTED,
          "%s, all confirmed: what is computed is back-computed, equal parts of sites are assumed", what);
    Follows all = {0, 0, 0, 0};
    const int stalls = DATACENTER_INPUTS, models = stalls + d.stalls;
    for (int i = 0; i < models + d.models * MODEL_INPUTS; i++) {
        const Input* in = i < models ? &stall_input : &model_inputs[(i - models) % MODEL_INPUTS];
        if (i < stalls) in = &datacenter_inputs[i];
        size_t at = in->at;
        if (i >= stalls && i < models) at = offsetof(Datacenter, stall) + (size_t)(i - stalls) * sizeof(Fact);
        if (i >= models) at += offsetof(Datacenter, model) + (size_t)((i - models) / MODEL_INPUTS) * sizeof(ModelWish);
        if (fact_in(&d, at).value == 0 && in->low > 0) continue; // by rule
        const Follows f = follow(&d, at, in->whole);
        if (f.blind)
            check(false, "%s, %s: %d facts move with it, %d of them blindly", what, in->name, f.moved, f.blind);
        silent += f.moved == 0;
        all.moved += f.moved;
        all.blind += f.blind;
        all.better += f.better;
        all.changed += f.changed;
    }
    check(all.blind == 0, "%s: %d facts that move with an input are assumed if it is", what, all.moved);
    check(all.better == 0 && all.changed == 0, "%s: an assumed input makes no mark better, no value another", what);
    if (expected_silent >= 0) check(silent == expected_silent, "%s: %d inputs move nothing", what, silent);
}

static void test_follows(void) {
    Datacenter d = datacenter_default();
    follow_all(d, "by rule", 0);
    d.site_power.value = 1e9;
    d.spares.value = 3;
    d.restart.value = 7;
    follow_all(d, "sites by their power", 0);
    for (int said = 1; said < 1 << (MODEL_INPUTS - 1); said++) { // every choice of what a file fixes of a model
        const double fixed[] = {240, 16384 * 9, 32, 12, 4, 30000};
        char what[64] = "fixed:";
        d = datacenter_default();
        d.it_power.value = 3e9;
        d.sites.value = 3;
        d.models = 1;
        d.model[0].parameters.value = 60e12;
        for (int i = 1; i < MODEL_INPUTS; i++) {
            if (!(said >> (i - 1) & 1)) continue;
            fact_at(&d.model[0], model_inputs[i].at)->value = fixed[i - 1];
            snprintf(what + strlen(what), sizeof what - strlen(what), " %s", model_inputs[i].name);
        }
        Error error = {""};
        static DatacenterPlan q;
        if (!datacenter_plan(&q, &d, &error)) continue; // a pipeline that does not divide the layers of a rule
        follow_all(d, what, said == (1 << (MODEL_INPUTS - 1)) - 1 ? 3 : -1); // rack_power, aspect, batch_step
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Print

// The first line of a text that begins with two spaces and `what`; false: there is none.
static bool find_line(const char* text, const char* what, char* line, size_t size) {
    const size_t n = strlen(what);
    for (const char* at = text; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        if (strncmp(at, "  ", 2) != 0 || strncmp(at + 2, what, n) != 0 || strncmp(at + 2 + n, "  ", 2) != 0) continue;
        snprintf(line, size, "%.*s", (int)strcspn(at, "\n"), at);
        return true;
    }
    return false;
}

static bool printed_has(const char* text, const char* what, const char* values) {
    char line[256] = "";
    return find_line(text, what, line, sizeof line) && strstr(line, values) != NULL;
}

static void test_print(void) {
    // A row is as weak as its weakest column, and as its limit.
    static const struct {
        Mark models[2], nic; // of the parameters, of the rate of adapters
        const char *row, *mark;
    } rows[] = {{{CONFIRMED, ASSUMED}, CONFIRMED, "parameters asked for", " assumed "},
                {{ASSUMED, CONFIRMED}, CONFIRMED, "parameters asked for", " assumed "},
                {{CONFIRMED, BACK_COMPUTED}, CONFIRMED, "parameters asked for", " back-computed "},
                {{CONFIRMED, CONFIRMED}, ASSUMED, "  rate", " assumed "},
                {{CONFIRMED, CONFIRMED}, ASSUMED, "PP, bytes of a micro-batch", " back-computed "}};
    Datacenter d = datacenter_default();
    all_confirmed(&d);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int k = 0; k < 2; k++) d.model[k].parameters.mark = rows[i].models[k];
        d.nic.mark = rows[i].nic;
        const DatacenterPlan q = plan_of(&d);
        char* text = printed(&q, NULL);
        check(printed_has(text, rows[i].row, rows[i].mark) && !printed_has(text, "  power of each, most", "<="),
              "%s: %s, and where there is no limit, no verdict", rows[i].row, rows[i].mark);
        free(text);
    }
    d.site_power = fact(1e9, CONFIRMED);
    d.sites = fact(2, CONFIRMED);
    const DatacenterPlan q = plan_of(&d);
    char* text = printed(&q, NULL);
    check(printed_has(text, "  power of each, most", "<= 1.00 GW: VIOLATED"), "too few sites: VIOLATED");
    free(text);

    // Texts, read back
    static const struct {
        double value;
        Quantity quantity;
        const char* text;
    } texts[] = {{1677600, NUMBER, "1,677,600"},
                 {1000, NUMBER, "1,000"},
                 {20.635, NUMBER, "20.64"},
                 {0, NUMBER, "0"},
                 {9.976e14, LARGE, "9.98e14"},
                 {1.2e30, LARGE, "1.20e30"},
                 {0.0925, PERCENT, "9.25 %"},
                 {50e12, PARAMETERS, "50 T"},
                 {3e6, MONEY, "3.00 M$"},
                 {3.62e9, POWER, "3.62 GW"},
                 {-8.2e8, POWER, "-820 MW"},
                 {999.7e6, POWER, "1.00 GW"},
                 {44.4e12, BIT_RATE, "44.4 Tbit/s"},
                 {0.065, SECONDS, "65 ms"},
                 {3840, SECONDS, "3,840 s"},
                 {999.7, SECONDS, "999.7 s"},
                 {0.00017, PERCENT, "0.017 %"},
                 {0, PERCENT, "0 %"},
                 {0, SECONDS, "0.00 s"},
                 {1033.3, DAYS, "1,033 d"}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char word[64];
        quantity_text(word, sizeof word, texts[i].value, texts[i].quantity);
        check(strcmp(word, texts[i].text) == 0, "%g is printed as %s", texts[i].value, word);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Files

static char path[256];

static bool read_text(Datacenter* d, const char* text, size_t n, Error* error) {
    FILE* out = fopen(path, "w");
    if (!out || fwrite(text, 1, n, out) != n || fclose(out) != 0) die("test_datacenter: cannot write %s", path);
    error->text[0] = 0;
    return datacenter_read(d, path, error);
}

static void test_shipped(void) {
    Datacenter d, def = datacenter_default();
    Error error = {""};
    if (!check(datacenter_read(&d, SHIPPED, &error), "%s is read %s", SHIPPED, error.text)) return;
    int other = 0;
    for (int i = 0; i < DATACENTER_INPUTS; i++) {
        const size_t at = datacenter_inputs[i].at;
        const Fact a = fact_in(&d, at), b = fact_in(&def, at);
        const bool said =
            strcmp(datacenter_inputs[i].name, "it_power") == 0 || strcmp(datacenter_inputs[i].name, "sites") == 0;
        if (!said && (a.value != b.value || a.mark != b.mark))
            other++, printf("      %s: %.17g, %.17g\n", datacenter_inputs[i].name, a.value, b.value);
    }
    check(other == 0 && d.models == 2 && d.stalls == 3, "its inputs are the defaults, values and marks");
    // All the units; values of lines that say everything
    static const struct {
        const char* line;
        size_t at;
        double value;
        Mark mark;
    } lines[] = {
#define AT(name) offsetof(Datacenter, name)
        {"budget 5000000$", AT(budget), 5e6, ASSUMED},
        {"budget 50 M$ confirmed", AT(budget), 50e6, CONFIRMED},
        {"budget 1.5B$ back-computed", AT(budget), 1.5e9, BACK_COMPUTED},
        {"\tcompute_share 70% # of it", AT(compute_share), 0.7, ASSUMED},
        {"it_power 3.5 MW", AT(it_power), 3.5e6, ASSUMED},
        {"it_power 3.62GW", AT(it_power), 3.62e9, ASSUMED},
        {"peak_fp8 5PFLOP/s", AT(peak_fp8), 5e15, ASSUMED},
        {"precision 16 bit", AT(precision), 16, ASSUMED},
        {"hbm 1.5TB", AT(hbm), 1.5e12, ASSUMED},
        {"gradient_bytes 4 B", AT(gradient_bytes), 4, ASSUMED},
        {"scale_up 1.8 TB/s", AT(scale_up), 1.8e12, ASSUMED},
        {"nic 400 Gbit/s", AT(nic), 400e9, ASSUMED},
        {"fibre_pair 30 Tbit/s", AT(fibre_pair), 30e12, ASSUMED},
        {"wan_delay 900 us", AT(wan_delay), 0.0009, ASSUMED},
        {"wan_delay 65 ms", AT(wan_delay), 0.065, ASSUMED},
        {"days_limit 90 d", AT(days_limit), 90, ASSUMED},
        {"restart 0 s", AT(restart), 0, ASSUMED},
        {"model 400 B", AT(model) + offsetof(ModelWish, parameters), 400e9, ASSUMED},
        {"model 20T confirmed", AT(model) + offsetof(ModelWish, parameters), 20e12, CONFIRMED},
        {"stall 20 ms", AT(stall), 0.02, ASSUMED},
        {"model 20T\nlayers 120", AT(model) + offsetof(ModelWish, layers), 120, ASSUMED},
        {"model 1T\nmodel 20T\r\nbatch 999 confirmed", AT(model) + sizeof(ModelWish) + offsetof(ModelWish, batch), 999,
         CONFIRMED},
        {"model 20T\nbatch 1\nmodel 1T\nbatch 2", AT(model) + sizeof(ModelWish) + offsetof(ModelWish, batch), 2,
         ASSUMED},
        {"# nothing\n\n   \n", AT(budget), 100e9, CONFIRMED},
#undef AT
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        const bool ok = read_text(&d, lines[i].line, strlen(lines[i].line), &error);
        const Fact f = ok ? fact_in(&d, lines[i].at) : fact(NAN, ASSUMED);
        check(ok && f.value == lines[i].value && f.mark == lines[i].mark, "\"%.*s\": %.17g, %s %s",
              (int)strcspn(lines[i].line, "\n"), lines[i].line, f.value, mark_names[f.mark], error.text);
    }
}

static void test_refused(void) {
    static const struct {
        const char* text;
        int line; // that the message names; 0: the plan's, without a line
        const char* word;
    } bad[] = {
        {"budgett 100 B$", 1, "budgett"},
        {"\n\n100 B$", 3, "100"},
        {"budget", 1, "$, M$, B$"},
        {"sites 2 3 4", 1, "sites"},
        {"budget 100 BB$", 1, "\"100 BB$\" is not a number"},
        {"# x\nbudget 1 00 B$", 2, "not a number"},
        {"budget 100 B$ certain", 1, "not a number"},
        {"budget -100 B$", 1, "out of range"},
        {"budget NAN", 1, "not a number"},
        {"budget inf B$", 1, "not a number"},
        {"budget 1e400 B$", 1, "not a number"},
        {"budget 1e-400 B$", 1, "out of range"},
        {"budget 0x10 B$", 1, "not a number"},
        {"budget 1,000 B$", 1, "not a number"},
        {"budget 100 B$\nrack_price 3 M$\nbudget 90 B$", 3, "line 1"},
        {"compute_share 0.7", 1, "%"},
        {"rack_gpus 72.5", 1, "\"72.5\" is not a whole number"},
        {"spares -1", 1, "out of range"},
        {"spares 72", 1, "72 spares"},
        {"spares 8\nrack_gpus 8", 2, "8 spares of 8 GPUs"},
        {"rack_gpus 8\nspares 8", 2, "8 spares of 8 GPUs"},
        {"it_power 3 GW\nrack_power 150 kW", 2, "it_power and rack_power"},
        {"rack_power 150 kW\n\nit_power 3 GW", 3, "it_power and rack_power"},
        {"pue_low 1.5", 1, "pue_high 1.3"},
        {"precision 12 bit", 1, "12 bit"},
        {"wan_delay 65", 1, "us, ms, s"},
        {"stall 1 s\nstall 1 s\nstall 1 s\nstall 1 s\nstall 1 s", 5, "stall: there are 4 already"},
        {"model 1T\nmodel 1T\nmodel 1T\nmodel 1T\nmodel 1T\nmodel 1T\nmodel 1T\nmodel 1T\nmodel 1T", 9,
         "there are 8 already"},
        {"model -50 T", 1, "out of range"},
        {"layers 242", 1, "below a line \"model\""},
        {"budget 1 B$\nbatch 5", 2, "below a line \"model\""},
        {"model 50 T\nlayers 242\nlayers 243", 3, "line 2"},
        {"model 50 T\nlayers 1e6", 2, "out of range, 1 to 20,000"},
        // of files that can be read, but not planned
        {"\nmodel 50 T\nhidden 131073", 2, "hidden is not a multiple of head x tensor"},
        {"model 50 T\nmodel 50 T\nlayers 242\npipeline 23", 2, "cannot be divided"},
        {"model 50 T\nlayers 242\npipeline 22\nchunks 2", 1, "cannot be divided"},
        {"model 50 T\nlayers 10\nhidden 8192\npipeline 4", 1, "cannot be divided"}, // 10 is a multiple of 10 / 4
        {"model 50 T\nhidden 8192", 1, "more than 20,000 layers"},
        {"budget 10 M$\nmodel 50 T\nlayers 242\npipeline 242", 2, "needs more GPUs than there are"},
        {"budget 3 M$", 0, "does not buy one rack"},
        {"rack_price 1 $\nrack_gpus 100000\nbudget 1e15$", 0, "more than 10^12 GPUs"},
    };
    static DatacenterPlan p;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Datacenter d;
        Error error;
        char start[288];
        const bool ok = read_text(&d, bad[i].text, strlen(bad[i].text), &error) && datacenter_plan(&p, &d, &error);
        snprintf(start, sizeof start, bad[i].line ? "%s:%d: " : "%s: ", path, bad[i].line);
        check(!ok && strncmp(error.text, start, strlen(start)) == 0 && strstr(error.text, bad[i].word) != NULL &&
                  !strchr(error.text, '\n') && strlen(error.text) < sizeof error.text - 1,
              "refused: %.110s", ok ? bad[i].text : error.text + strlen(path));
    }
}

static void test_unreadable(void) {
    Datacenter d;
    Error error = {""};
    check(!datacenter_read(&d, "/no/such/file", &error) && strstr(error.text, "/no/such/file: cannot open: "), "%s",
          error.text);
    check(!datacenter_read(&d, "dev", &error) && strstr(error.text, "dev: cannot be read: "), "%s", error.text);
    char longest[700];
    memset(longest, ' ', sizeof longest);
    memcpy(longest, "budget", 6);
    check(!read_text(&d, longest, sizeof longest, &error) && strstr(error.text, ":1: longer than 510 characters"),
          "a line of 700 characters");
    check(!read_text(&d, "budget 1\0 B$\nsites 2\n", 21, &error) && strstr(error.text, ":1: "), "a zero byte");
    // The names that a message lists are those that are known
    read_text(&d, "x 1", 3, &error);
    int named = 0;
    for (int i = 0; i < DATACENTER_INPUTS; i++) named += strstr(error.text, datacenter_inputs[i].name) != NULL;
    for (int i = 0; i < MODEL_INPUTS; i++) named += strstr(error.text, model_inputs[i].name) != NULL;
    check(named == DATACENTER_INPUTS + MODEL_INPUTS, "an unknown name: all %d are listed", named);
}

int main(int argc, char** argv) {
    process.name = "test_datacenter";
    make_temporary(path, sizeof path, "test_datacenter");
    test_published();
    test_table();
    test_golden(argc > 1 && strcmp(argv[1], "--write") == 0);
    test_single_stage();
    test_facts();
    test_follows();
    test_print();
    test_shipped();
    test_refused();
    test_unreadable();
    unlink(path);
    return test_end();
}
