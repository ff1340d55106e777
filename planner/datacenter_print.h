/*
datacenter_print.h: prints a datacenter's plan (datacenter.h) as tables: quantity, value, formula or source.

    datacenter_print           the plan, models side by side; their questions to ./plan; the largest model by days
    datacenter_print_inputs    its inputs
*/
#pragma once

#include "datacenter.h"
#include "flags.h"

// One line: the offset of its value in a DatacenterPlan or a ModelPlan, and that of what it may be at most (NUMBER: at
// least), 0 if it may be anything. Without a source it is a heading.
typedef struct {
    const char* what;
    size_t at;
    Quantity quantity;
    const char* source;
    size_t limit;
} Row;

#define AT(name) offsetof(DatacenterPlan, name)
static const Row datacenter_rows[] = {
    {"Money", 0, NUMBER, NULL, 0},
    {"for compute", AT(compute), MONEY, "budget x share", 0},
    {"racks that buys", AT(affordable), NUMBER, "at the price of a rack", 0},
    {"racks", AT(racks), NUMBER, "down to 3 digits; overview v2: 23,300", 0},
    {"GPUs", AT(gpus), NUMBER, "racks x rack_gpus; overview v2: 1.67 million", 0},
    {"GPUs at work", AT(working), NUMBER, "without spares", 0},
    {"Power", 0, NUMBER, NULL, 0},
    {"IT power", AT(it_power), POWER, "overview v2: about 3.6 GW", 0},
    {"  of a rack", AT(rack_power), POWER, "IT power / racks", 0},
    {"  of a GPU", AT(gpu_power), POWER, "IT power / GPUs", 0},
    {"  network, storage, other", AT(beside_racks), POWER, "- racks x rack_rating", 0},
    {"power with cooling, least", AT(power_low), POWER, "x pue_low; overview v2: 4.16 GW", 0},
    {"power with cooling, most", AT(power_high), POWER, "x pue_high; overview v2: 4.71 GW", 0},
    {"Sites", 0, NUMBER, NULL, 0},
    {"one place supplies", AT(site_power), POWER, "plant_power x site_plants, or site_power", 0},
    {"one site, least", AT(power_low), POWER, "power with cooling", AT(site_power)},
    {"one site, most", AT(power_high), POWER, "power with cooling", AT(site_power)},
    {"sites", AT(sites), NUMBER, "most power / supply; overview v2: 2 coasts", 0},
    {"  GPUs of each", AT(site_gpus), NUMBER, "in equal parts", 0},
    {"  IT power of each", AT(site_it), POWER, "in equal parts", 0},
    {"  power of each, least", AT(site_low), POWER, "in equal parts", AT(site_power)},
    {"  power of each, most", AT(site_high), POWER, "in equal parts", AT(site_power)},
    {"racks in a mesh", AT(mesh_racks), NUMBER, "in each site 2^a 3^b 5^c of them", 0},
    {"GPUs in a mesh", AT(mesh_gpus), NUMBER, "without spares", 0},
    {"Failures", 0, NUMBER, NULL, 0},
    {"GPU-hours of a failure", AT(failure_hours), NUMBER, "Llama 3: failure_gpus x failure_days / failures", 0},
    {"time between failures", AT(mtbf), SECONDS, "/ GPUs", 0},
};

// Rows for every stall.
static const Row stall_rows[] = {
    {"a checkpoint that stalls for", AT(stall), SECONDS, "input", 0},
    {"  is best taken every", AT(interval), SECONDS, "Young 1974: sqrt(2 stall MTBF)", 0},
    {"  and costs, with what is lost", AT(overhead), PERCENT, "stall/t + t/(2 MTBF) + restart/MTBF", 0},
};
#undef AT

#define AT(name) offsetof(ModelPlan, name)
static const Row model_rows[] = {
    {"Model, by rule or as the file says", 0, NUMBER, NULL, 0},
    {"parameters asked for", AT(asked), PARAMETERS, "asked for; abstract v1: 50T or 100T", 0},
    {"layers L", AT(layers), NUMBER, "asked / (12 h^2), or a little less", 0},
    {"width h", AT(hidden), NUMBER, "multiple of head x GPUs of a rack", 0},
    {"heads", AT(heads), NUMBER, "h / head", 0},
    {"parameters P", AT(parameters), PARAMETERS, "12 L h^2, embeddings, biases", 0},
    {"tokens", AT(tokens), LARGE, "tokens_per_parameter x asked: Hoffmann et al.", 0},
    {"FLOP C", AT(flops), LARGE, "6 P tokens", 0},
    {"batch, sequences", AT(batch), NUMBER, "racks, times or divided by a whole number", 0},
    {"Mesh and step, as ./plan answers", 0, NUMBER, NULL, 0},
    {"tensor t", AT(tensor), NUMBER, "searched", 0},
    {"pipeline p", AT(pipeline), NUMBER, "searched", 0},
    {"data d", AT(data), NUMBER, "GPUs / (t p), over the sites", 0},
    {"chunks v", AT(chunks), NUMBER, "searched", 0},
    {"micro-batches m", AT(micro_batches), NUMBER, "batch / (d B), whole", 0},
    {"memory of a GPU", AT(memory), BYTES, "largest rank; with no mesh, the smallest need", AT(room)},
    {"step", AT(step), SECONDS, "simulated", 0},
    {"tokens a second", AT(rate), LARGE, "batch / step", 0},
    {"MFU", AT(mfu), PERCENT, "(6 N + 6 L C T) tokens/s / peak", 0},
    {"bubble, of the step", AT(bubble), PERCENT, "waiting for other stages", 0},
    {"tensor sums", AT(tensor_share), PERCENT, "not hidden", 0},
    {"sums of gradients", AT(data_share), PERCENT, "not hidden", 0},
    {"Between sites", 0, NUMBER, NULL, 0},
    {"step, sync", AT(mode_step[DP_SYNC]), SECONDS, "the best mesh; - : no room, or one site", 0},
    {"  dc-s3gd", AT(mode_step[DP_DC_S3GD]), SECONDS, "--dp-mode, by its defaults", 0},
    {"  diloco", AT(mode_step[DP_DILOCO]), SECONDS, "--dp-mode, by its defaults", 0},
    {"bytes of a step, each way", AT(wan_bytes), BYTES, "of a site, simulated", 0},
    {"  rate, over the whole step", AT(wan_rate), BIT_RATE, "if the step hides it", AT(wan_capacity)},
    {"Time", 0, NUMBER, NULL, 0},
    {"days by tokens_per_parameter", AT(days[LAW_RATIO]), DAYS, "tokens / (tokens a second)", AT(days_limit)},
    {"  by Hoffmann et al.'s loss", AT(days[LAW_HOFFMANN]), DAYS, "the law's tokens for P", AT(days_limit)},
    {"  by Besiroglu et al.'s", AT(days[LAW_BESIROGLU]), DAYS, "the law's tokens for P", AT(days_limit)},
    {"  by Llama 3's law", AT(days[LAW_LLAMA3]), DAYS, "the law's tokens for P", AT(days_limit)},
    {"MFU, if tokens, precision hold", AT(mfu_needed), PERCENT, "MFU x days / days_limit", AT(mfu_most)},
    {"peak, if tokens, MFU hold", AT(peak_needed), FLOPS, "peak x days / days_limit", AT(peak)},
    {"tokens a parameter, if both hold", AT(ratio_in_time), NUMBER, "in days_limit", AT(ratio)},
};
#undef AT
enum {
    DATACENTER_ROWS = sizeof datacenter_rows / sizeof datacenter_rows[0],
    STALL_ROWS = sizeof stall_rows / sizeof stall_rows[0],
    MODEL_ROWS = sizeof model_rows / sizeof model_rows[0]
};

static inline double value_at(const void* base, size_t at) {
    return *(const double*)(const void*)((const char*)base + at);
}

static inline bool row_holds(const Row* row, const void* base) {
    const double value = value_at(base, row->at), limit = value_at(base, row->limit);
    return row->quantity == NUMBER ? value >= limit : value <= limit;
}

// A row of n columns, one for each base; "; <= 192 GB: kept, VIOLATED" is a verdict a column, or one if they agree.
static inline void row_print(const Row* row, const void* const* bases, int n, FILE* out) {
    char text[64];
    if (!row->source) {
        fprintf(out, "\n%s\n", row->what);
        return;
    }
    fprintf(out, "  %-34s", row->what);
    for (int i = 0; i < n; i++) {
        quantity_text(text, sizeof text, value_at(bases[i], row->at), row->quantity);
        fprintf(out, " %13s", text);
    }
    fprintf(out, "  # %s", row->source);
    if (row->limit) {
        const bool first = row_holds(row, bases[0]), last = row_holds(row, bases[n - 1]);
        quantity_text(text, sizeof text, value_at(bases[0], row->limit), row->quantity);
        fprintf(out, "; %s %s: %s", row->quantity == NUMBER ? ">=" : "<=", text, first ? "kept" : "VIOLATED");
        if (first != last) fprintf(out, ", %s", last ? "kept" : "VIOLATED");
    }
    fprintf(out, "\n");
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
static inline void largest_print(const Datacenter* d, const DatacenterPlan* p, FILE* out) {
    static const double days[] = {90, 180, 365, 545, 730, 1000};
    fprintf(out,
            "\nThe largest model, 10^12 parameters, and its range by the law's error; %d bit; from %d sizes\n  days",
            d->precision, p->sizes);
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
        fprintf(out, "\n");
    }
    for (int k = 0; k < LAWS; k++) fprintf(out, "  %-20s %s; far outside its data\n", p->law[k].name, p->law[k].source);
}

// The models that no law finds in time.
static inline void verdict_print(const DatacenterPlan* p, FILE* out) {
    int said = 0;
    for (int i = 0; i < p->models; i++) {
        const ModelPlan* m = &p->model[i];
        double least = INFINITY;
        for (int k = 0; k < LAWS; k++) least = fmin(least, m->days[k]);
        if (least <= m->days_limit || isinf(least)) continue;
        fprintf(out, said++ ? "," : "Not in days_limit by any of these laws:");
        fprintf(out, " %g T takes %.0f days or more", m->asked / 1e12, least);
    }
    if (said) fprintf(out, "\n");
}

// The whole plan. Models side by side, in pairs.
static inline void datacenter_print(const Datacenter* d, const DatacenterPlan* p, FILE* out) {
    const void* base = p;
    for (int i = 0; i < DATACENTER_ROWS; i++) row_print(&datacenter_rows[i], &base, 1, out);
    for (int i = 0; i < p->stalls * STALL_ROWS; i++) {
        Row row = stall_rows[i % STALL_ROWS];
        row.at += (size_t)(i / STALL_ROWS) * sizeof(double);
        row_print(&row, &base, 1, out);
    }
    for (int first = 0; first < p->models; first += 2) {
        const int n = first + 1 < p->models ? 2 : 1;
        const void* bases[2] = {&p->model[first], &p->model[first + n - 1]};
        for (int i = 0; i < MODEL_ROWS; i++) row_print(&model_rows[i], bases, n, out);
    }
    largest_print(d, p, out);
    verdict_print(p, out);
    fprintf(out, "\nThe same questions to ./plan, and the trainer's options that answer them; cluster.txt:\n");
    datacenter_print_cluster(&p->cluster, "    ", out);
    for (int i = 0; i < p->models; i++) {
        const Question q = datacenter_question(d, p, &p->model[i]);
        question_print(&q, &p->best[i], out);
    }
    if (p->stopped) fprintf(out, "\n--time-limit ended a search: the best found so far; other meshes may be faster\n");
}

// The plan's inputs, as lines of a file.
static inline void datacenter_print_inputs(const Datacenter* d, FILE* out) {
    fprintf(out, "Inputs: %s\n", d->name);
    for (int i = 0; i < DATACENTER_FIELDS; i++) {
        const Field* f = &datacenter_fields[i];
        const Numbers* list = (const Numbers*)(const void*)((const char*)d + f->at);
        const int n = f->kind == LIST ? list->n : 1;
        fprintf(out, "  %-20s", f->name);
        for (int k = 0; k < n; k++) {
            const double value = f->kind == LIST ? list->x[k] : field_value(f, d);
            char text[64] = "by rule";
            if (value > 0 || f->low == 0) quantity_text(text, sizeof text, value, f->quantity);
            fprintf(out, " %s", text);
        }
        fprintf(out, "\n");
    }
}
