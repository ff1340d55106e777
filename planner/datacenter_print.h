/*
datacenter_print.h: prints a datacenter's plan (datacenter.h) as tables: quantity, value, mark, formula or source.

    datacenter_print           the plan, models side by side; their questions to ./plan; the largest model by days
    datacenter_print_inputs    its inputs

Each line is a row of a table below; a row names its Fact by its offset, and the Fact that limits it, if there is one.
*/
#pragma once

#include "datacenter.h"
#include "flags.h"

typedef enum { NO_LIMIT, AT_MOST, AT_LEAST } Limit;

// One line: the offsets of its Fact, and of the Fact that limits it, in a DatacenterPlan or a ModelPlan.
typedef struct {
    const char* what;
    size_t at;
    Quantity quantity;
    const char* source;
    Limit limit;
    size_t limit_at;
} Row;

#define AT(name) offsetof(DatacenterPlan, name)
static const Row datacenter_rows[] = {
    {"Money", 0, HEADING, "", NO_LIMIT, 0},
    {"for compute", AT(compute), MONEY, "budget x share", NO_LIMIT, 0},
    {"racks that buys", AT(affordable), NUMBER, "at the price of a rack", NO_LIMIT, 0},
    {"racks", AT(racks), NUMBER, "down to 3 digits; overview v2: 23,300", NO_LIMIT, 0},
    {"GPUs", AT(gpus), NUMBER, "racks x rack_gpus; overview v2: 1.67 million", NO_LIMIT, 0},
    {"GPUs at work", AT(working), NUMBER, "without spares", NO_LIMIT, 0},
    {"Power", 0, HEADING, "", NO_LIMIT, 0},
    {"IT power", AT(it_power), POWER, "overview v2: about 3.6 GW", NO_LIMIT, 0},
    {"  of a rack", AT(rack_power), POWER, "IT power / racks", NO_LIMIT, 0},
    {"  of a GPU", AT(gpu_power), POWER, "IT power / GPUs", NO_LIMIT, 0},
    {"  network, storage, other", AT(beside_racks), POWER, "- racks x rack_rating", NO_LIMIT, 0},
    {"power with cooling, least", AT(power_low), POWER, "x pue_low; overview v2: 4.16 GW", NO_LIMIT, 0},
    {"power with cooling, most", AT(power_high), POWER, "x pue_high; overview v2: 4.71 GW", NO_LIMIT, 0},
    {"Sites", 0, HEADING, "", NO_LIMIT, 0},
    {"one place supplies", AT(site_power), POWER, "plant_power x site_plants, or site_power", NO_LIMIT, 0},
    {"one site, least", AT(power_low), POWER, "power with cooling", AT_MOST, AT(site_power)},
    {"one site, most", AT(power_high), POWER, "power with cooling", AT_MOST, AT(site_power)},
    {"sites", AT(sites), NUMBER, "most power / supply; overview v2: 2 coasts", NO_LIMIT, 0},
    {"  GPUs of each", AT(site_gpus), NUMBER, "in equal parts", NO_LIMIT, 0},
    {"  IT power of each", AT(site_it), POWER, "in equal parts", NO_LIMIT, 0},
    {"  power of each, least", AT(site_low), POWER, "in equal parts", AT_MOST, AT(site_power)},
    {"  power of each, most", AT(site_high), POWER, "in equal parts", AT_MOST, AT(site_power)},
    {"racks in a mesh", AT(mesh_racks), NUMBER, "in each site 2^a 3^b 5^c of them", NO_LIMIT, 0},
    {"GPUs in a mesh", AT(mesh_gpus), NUMBER, "without spares", NO_LIMIT, 0},
    {"Failures", 0, HEADING, "", NO_LIMIT, 0},
    {"GPU-hours of a failure", AT(failure_hours), NUMBER, "Llama 3: failure_gpus x failure_days / failures", NO_LIMIT,
     0},
    {"time between failures", AT(mtbf), SECONDS, "/ GPUs", NO_LIMIT, 0},
};

// Rows for every stall.
static const Row stall_rows[] = {
    {"a checkpoint that stalls for", AT(stall), SECONDS, "input", NO_LIMIT, 0},
    {"  is best taken every", AT(interval), SECONDS, "Young 1974: sqrt(2 stall MTBF)", NO_LIMIT, 0},
    {"  and costs, with what is lost", AT(overhead), PERCENT, "stall/t + t/(2 MTBF) + restart/MTBF", NO_LIMIT, 0},
};
#undef AT

#define AT(name) offsetof(ModelPlan, name)
static const Row model_rows[] = {
    {"Model, by rule or as the file says", 0, HEADING, "", NO_LIMIT, 0},
    {"parameters asked for", AT(asked), PARAMETERS, "asked for; abstract v1: 50T or 100T", NO_LIMIT, 0},
    {"layers L", AT(layers), NUMBER, "asked / (12 h^2), or a little less", NO_LIMIT, 0},
    {"width h", AT(hidden), NUMBER, "multiple of head x GPUs of a rack", NO_LIMIT, 0},
    {"heads", AT(heads), NUMBER, "h / head", NO_LIMIT, 0},
    {"parameters P", AT(parameters), PARAMETERS, "12 L h^2, embeddings, biases", NO_LIMIT, 0},
    {"tokens", AT(tokens), LARGE, "tokens_per_parameter x asked: Hoffmann et al.", NO_LIMIT, 0},
    {"FLOP C", AT(flops), LARGE, "6 P tokens", NO_LIMIT, 0},
    {"batch, sequences", AT(batch), NUMBER, "racks, times or divided by a whole number", NO_LIMIT, 0},
    {"Mesh and step, as ./plan answers", 0, HEADING, "", NO_LIMIT, 0},
    {"tensor t", AT(tensor), NUMBER, "searched", NO_LIMIT, 0},
    {"pipeline p", AT(pipeline), NUMBER, "searched", NO_LIMIT, 0},
    {"data d", AT(data), NUMBER, "GPUs / (t p), over the sites", NO_LIMIT, 0},
    {"chunks v", AT(chunks), NUMBER, "searched", NO_LIMIT, 0},
    {"micro-batches m", AT(micro_batches), NUMBER, "batch / (d B), whole", NO_LIMIT, 0},
    {"memory of a GPU", AT(memory), BYTES, "largest rank; with no mesh, the smallest need", AT_MOST, AT(room)},
    {"step", AT(step), SECONDS, "simulated", NO_LIMIT, 0},
    {"tokens a second", AT(rate), LARGE, "batch / step", NO_LIMIT, 0},
    {"MFU", AT(mfu), PERCENT, "(6 N + 6 L C T) tokens/s / peak", NO_LIMIT, 0},
    {"bubble, of the step", AT(bubble), PERCENT, "waiting for other stages", NO_LIMIT, 0},
    {"tensor sums", AT(tensor_share), PERCENT, "not hidden", NO_LIMIT, 0},
    {"sums of gradients", AT(data_share), PERCENT, "not hidden", NO_LIMIT, 0},
    {"Between sites", 0, HEADING, "", NO_LIMIT, 0},
    {"step, sync", AT(mode_step[DP_SYNC]), SECONDS, "the best mesh; - : no room, or one site", NO_LIMIT, 0},
    {"  dc-s3gd", AT(mode_step[DP_DC_S3GD]), SECONDS, "--dp-mode, by its defaults", NO_LIMIT, 0},
    {"  diloco", AT(mode_step[DP_DILOCO]), SECONDS, "--dp-mode, by its defaults", NO_LIMIT, 0},
    {"bytes of a step, each way", AT(wan_bytes), BYTES, "of a site, simulated", NO_LIMIT, 0},
    {"  rate, over the whole step", AT(wan_rate), BIT_RATE, "if the step hides it", AT_MOST, AT(wan_capacity)},
    {"Time", 0, HEADING, "", NO_LIMIT, 0},
    {"days by tokens_per_parameter", AT(days[LAW_RATIO]), DAYS, "tokens / (tokens a second)", AT_MOST, AT(days_limit)},
    {"  by Hoffmann et al.'s loss", AT(days[LAW_HOFFMANN]), DAYS, "the law's tokens for P", AT_MOST, AT(days_limit)},
    {"  by Besiroglu et al.'s", AT(days[LAW_BESIROGLU]), DAYS, "the law's tokens for P", AT_MOST, AT(days_limit)},
    {"  by Llama 3's law", AT(days[LAW_LLAMA3]), DAYS, "the law's tokens for P", AT_MOST, AT(days_limit)},
    {"MFU, if tokens, precision hold", AT(mfu_needed), PERCENT, "MFU x days / days_limit", AT_MOST, AT(one)},
    {"peak, if tokens, MFU hold", AT(peak_needed), FLOPS, "peak x days / days_limit", AT_MOST, AT(peak)},
    {"tokens a parameter, if both hold", AT(ratio_in_time), NUMBER, "in days_limit", AT_LEAST, AT(ratio)},
};
#undef AT
enum {
    DATACENTER_ROWS = sizeof datacenter_rows / sizeof datacenter_rows[0],
    STALL_ROWS = sizeof stall_rows / sizeof stall_rows[0],
    MODEL_ROWS = sizeof model_rows / sizeof model_rows[0]
};

// A limit of 0 means no limit.
static inline bool row_is_limited(const Row* row, const void* base) {
    return row->limit != NO_LIMIT && fact_in(base, row->limit_at).value != 0;
}

static inline bool row_holds(const Row* row, const void* base) {
    if (!row_is_limited(row, base)) return true;
    const double value = fact_in(base, row->at).value, limit = fact_in(base, row->limit_at).value;
    return row->limit == AT_MOST ? value <= limit : value >= limit;
}

// The mark of a row: the weaker one of its fact and its limit.
static inline Mark row_mark(const Row* row, const void* base) {
    Mark w = CONFIRMED;
    use(&w, fact_in(base, row->at));
    if (row_is_limited(row, base)) use(&w, fact_in(base, row->limit_at));
    return w;
}

// "; <= 192 GB: kept, VIOLATED", a verdict a column; one if they agree.
static inline void row_print_limit(const Row* row, const void* const* bases, int n, FILE* out) {
    char limit[64];
    bool all = true, any = false;
    for (int i = 0; i < n; i++) {
        all = all && row_holds(row, bases[i]);
        any = any || row_holds(row, bases[i]);
    }
    quantity_text(limit, sizeof limit, fact_in(bases[0], row->limit_at).value, row->quantity);
    fprintf(out, "; %s %s: ", row->limit == AT_MOST ? "<=" : ">=", limit);
    if (all || !any)
        fprintf(out, all ? "kept" : "VIOLATED");
    else
        for (int i = 0; i < n; i++) fprintf(out, "%s%s", i ? ", " : "", row_holds(row, bases[i]) ? "kept" : "VIOLATED");
}

// A row of n columns, one for each base. Its mark is the weakest of theirs, and is counted.
static inline void row_print(const Row* row, const void* const* bases, int n, int* marks, FILE* out) {
    if (row->quantity == HEADING) {
        fprintf(out, "\n%s\n", row->what);
        return;
    }
    Mark mark = CONFIRMED;
    fprintf(out, "  %-34s", row->what);
    for (int i = 0; i < n; i++) {
        char text[64];
        const Mark m = row_mark(row, bases[i]);
        if (m > mark) mark = m;
        quantity_text(text, sizeof text, fact_in(bases[i], row->at).value, row->quantity);
        fprintf(out, " %13s", text);
    }
    const bool limited = row_is_limited(row, bases[0]);
    fprintf(out, "  %-13s  %s", mark_names[mark], row->source);
    if (limited) row_print_limit(row, bases, n, out);
    fprintf(out, "\n");
    marks[mark]++;
}

// A question to ./plan, and the trainer's options that answer it.
static inline void question_print(const Question* q, const Choice* best, FILE* out) {
    const ModelConfig* m = &q->model;
    fprintf(out, "\n./plan --cluster cluster.txt --arch gpt2 --layers %d --hidden %d --heads %d --seq %d --vocab %d",
            m->L, m->C, m->NH, q->T, m->V);
    fprintf(out, " --gpus %d --global-batch %lld --rows 1", q->ranks, (long long)q->batch);
    if (q->B > 0) fprintf(out, " --micro-batch %d", q->B);
    fprintf(out, best->cost.seconds > 0 ? "\n   " : "\n    no mesh has room\n");
    if (best->cost.seconds > 0) flags_print(out, &best->setup, NULL, 0);
}

// Days and laws, with the range by the error of a law's exponent.
static inline void largest_print(const Datacenter* d, const DatacenterPlan* p, int* marks, FILE* out) {
    static const double days[] = {90, 180, 365, 545, 730, 1000};
    fprintf(out,
            "\nThe largest model, 10^12 parameters, and its range by the law's error; %d bit; from %d sizes\n  days",
            (int)d->precision.value, p->sizes);
    for (int k = 0; k < LAWS; k++) fprintf(out, "  %20s", p->law[k].name);
    fprintf(out, "\n");
    for (size_t i = 0; i < sizeof days / sizeof days[0]; i++) {
        fprintf(out, "  %4.0f", days[i]);
        for (int k = 0; k < LAWS; k++) {
            char text[48];
            Law low = p->law[k], high = p->law[k];
            low.exponent = p->law[k].high; // more tokens, fewer parameters
            high.exponent = p->law[k].low;
            snprintf(text, sizeof text, "%.3g (%.3g to %.3g)", datacenter_largest(p, &p->law[k], days[i]) / 1e12,
                     datacenter_largest(p, &low, days[i]) / 1e12, datacenter_largest(p, &high, days[i]) / 1e12);
            fprintf(out, "  %20s", text);
        }
        fprintf(out, "  %s\n", mark_names[ASSUMED]);
        marks[ASSUMED]++;
    }
    for (int k = 0; k < LAWS; k++) fprintf(out, "  %-20s %s; far outside its data\n", p->law[k].name, p->law[k].source);
}

// In one line what becomes of the models that the paper's abstract calls possible.
static inline void verdict_print(const DatacenterPlan* p, FILE* out) {
    int said = 0;
    for (int i = 0; i < p->models; i++) {
        const ModelPlan* m = &p->model[i];
        double least = INFINITY;
        for (int k = 0; k < LAWS; k++) least = fmin(least, m->days[k].value);
        if (m->asked.mark != CONFIRMED || least <= m->days_limit.value) continue;
        fprintf(out, said++ ? "," : "Contradicts abstract v1, \"technically possible\": by each of these laws");
        fprintf(out, " %g T takes %.0f days or more", m->asked.value / 1e12, least);
    }
    if (said) fprintf(out, "\n");
}

// The whole plan: quantity, value, mark, and origin. Models side by side, in pairs.
static inline void datacenter_print(const Datacenter* d, const DatacenterPlan* p, FILE* out) {
    const void* base = p;
    int marks[MARKS] = {0};
    fprintf(out, "confirmed: published. back-computed: follows from what is published. assumed: chosen, or follows "
                 "from a choice.\n");
    for (int i = 0; i < DATACENTER_ROWS; i++) row_print(&datacenter_rows[i], &base, 1, marks, out);
    for (int k = 0; k < p->stalls; k++) {
        for (int i = 0; i < STALL_ROWS; i++) {
            Row row = stall_rows[i];
            row.at += (size_t)k * sizeof(Fact);
            row_print(&row, &base, 1, marks, out);
        }
    }
    for (int first = 0; first < p->models; first += 2) {
        const int n = first + 1 < p->models ? 2 : 1;
        const void* bases[2] = {&p->model[first], &p->model[first + n - 1]};
        for (int i = 0; i < MODEL_ROWS; i++) row_print(&model_rows[i], bases, n, marks, out);
    }
    largest_print(d, p, marks, out);
    verdict_print(p, out);
    fprintf(out, "\nThe same questions to ./plan, and the trainer's options that answer them; cluster.txt:\n");
    datacenter_print_cluster(&p->cluster, "    ", out);
    for (int i = 0; i < p->models; i++) {
        const Question q = datacenter_question(d, p, &p->model[i]);
        question_print(&q, &p->best[i], out);
    }
    if (p->stopped) fprintf(out, "\n--time-limit ended a search: the best found so far; other meshes may be faster\n");
    fprintf(out, "\n%d lines are confirmed, %d back-computed, %d assumed.\n", marks[CONFIRMED], marks[BACK_COMPUTED],
            marks[ASSUMED]);
}

static inline void input_print(const Input* in, Fact f, FILE* out) {
    char text[64] = "by rule";
    const bool given = f.value > 0 || in->low == 0;
    if (given) quantity_text(text, sizeof text, f.value, in->quantity);
    fprintf(out, "  %-24s %16s  %-13s  %s\n", in->name, text, given ? mark_names[f.mark] : "-", in->source);
}

// The plan's inputs.
static inline void datacenter_print_inputs(const Datacenter* d, FILE* out) {
    fprintf(out, "Inputs: %s\n", d->name);
    for (int i = 0; i < DATACENTER_INPUTS; i++)
        input_print(&datacenter_inputs[i], fact_in(d, datacenter_inputs[i].at), out);
    for (int i = 0; i < d->stalls; i++) input_print(&stall_input, d->stall[i], out);
    for (int k = 0; k < d->models; k++) {
        for (int i = 0; i < MODEL_INPUTS; i++) {
            const Fact f = fact_in(&d->model[k], model_inputs[i].at);
            if (i == 0 || f.value > 0) input_print(&model_inputs[i], f, out);
        }
    }
}
