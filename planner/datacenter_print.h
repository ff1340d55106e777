/*
datacenter_print.h: prints a datacenter's plan (datacenter.h) as tables: quantity, value, mark, formula or source.

    datacenter_print           the plan, models side by side
    datacenter_print_inputs    its inputs

Each line is a row of a table below; a row names its Fact by its offset, and the Fact that limits it, if there is one.
*/
#ifndef DATACENTER_PRINT_H
#define DATACENTER_PRINT_H

#include "datacenter.h"

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
    {"sites", AT(sites), NUMBER, "most power / site_power; overview v2: 2 coasts", NO_LIMIT, 0},
    {"  GPUs of each", AT(site_gpus), NUMBER, "in equal parts", NO_LIMIT, 0},
    {"  IT power of each", AT(site_it), POWER, "in equal parts", NO_LIMIT, 0},
    {"  power of each, least", AT(site_low), POWER, "in equal parts", AT_MOST, AT(site_power)},
    {"  power of each, most", AT(site_high), POWER, "in equal parts", AT_MOST, AT(site_power)},
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
    {"width h", AT(hidden), NUMBER, "multiple of head TP nearest to aspect L", NO_LIMIT, 0},
    {"heads", AT(heads), NUMBER, "h / head", NO_LIMIT, 0},
    {"parameters P", AT(parameters), PARAMETERS, "12 L h^2", NO_LIMIT, 0},
    {"tokens", AT(tokens), LARGE, "tokens_per_parameter x asked: Hoffmann et al.", NO_LIMIT, 0},
    {"FLOP C", AT(flops), LARGE, "6 P tokens", NO_LIMIT, 0},
    {"loss, nats", AT(loss), NUMBER, "Hoffmann et al.'s law, far outside its data", NO_LIMIT, 0},
    {"  least for C FLOP", AT(law_loss), NUMBER, "that law's optimum, which is", NO_LIMIT, 0},
    {"  with parameters", AT(law_parameters), PARAMETERS, "smaller, and sees", NO_LIMIT, 0},
    {"  and tokens a parameter", AT(law_ratio), NUMBER, "not 20: two rules that differ here", NO_LIMIT, 0},
    {"Time: days, tokens, precision", 0, HEADING, "", NO_LIMIT, 0},
    {"days in FP4", AT(days_fp4), DAYS, "C / (GPUs peak utilisation)", NO_LIMIT, 0},
    {"days in FP8", AT(days_fp8), DAYS, "C / (GPUs peak utilisation)", NO_LIMIT, 0},
    {"days in BF16", AT(days_bf16), DAYS, "C / (GPUs peak utilisation)", NO_LIMIT, 0},
    {"days, if tokens, precision hold", AT(days), DAYS, "as the plan has it", AT_MOST, AT(days_limit)},
    {"tokens, if days, precision hold", AT(tokens_in_time), LARGE, "days_limit x FLOP/s / (6 P)", NO_LIMIT, 0},
    {"  a parameter", AT(ratio_in_time), NUMBER, "tokens / asked", AT_LEAST, AT(ratio)},
    {"a GPU's peak, if days, tokens hold", AT(peak_needed), FLOPS, "needed", AT_MOST, AT(peak)},
    {"parameters, if all three hold", AT(parameters_in_time), PARAMETERS, "sqrt(C / (6 tokens_per_parameter))",
     NO_LIMIT, 0},
    {"Mesh, by rule or as the file says", 0, HEADING, "", NO_LIMIT, 0},
    {"tensor TP", AT(tensor), NUMBER, "largest power of 2 within a rack", NO_LIMIT, 0},
    {"pipeline PP", AT(pipeline), NUMBER, "fewest equal stages that fit into memory", NO_LIMIT, 0},
    {"chunks v", AT(chunks), NUMBER, "layers of a stage: one each", NO_LIMIT, 0},
    {"data DP", AT(data), NUMBER, "GPUs / (TP PP)", NO_LIMIT, 0},
    {"GPUs in the mesh", AT(used), NUMBER, "TP PP DP", NO_LIMIT, 0},
    {"DP, no TP group across racks", AT(rack_data), NUMBER, "what is left over in a rack does not work", NO_LIMIT, 0},
    {"  and days", AT(rack_days), DAYS, "days DP / this DP", AT_MOST, AT(days_limit)},
    {"Batch, by rule or as the file says", 0, HEADING, "", NO_LIMIT, 0},
    {"bubble wall, sequences", AT(wall), NUMBER, "GPUs b / (v TP limit), whatever PP is", NO_LIMIT, 0},
    {"sequences B", AT(batch), NUMBER, "nearest multiple of batch_step", NO_LIMIT, 0},
    {"tokens", AT(batch_tokens), LARGE, "B s", NO_LIMIT, 0},
    {"micro-batches m", AT(micro_batches), NUMBER, "B / (DP b)", AT_LEAST, AT(one)},
    {"bubble", AT(bubble), PERCENT, "(PP - 1) / (v m)", AT_MOST, AT(bubble_limit)},
    {"step", AT(step), SECONDS, "6 P B s / (GPUs peak utilisation)", NO_LIMIT, 0},
    {"  with the bubble", AT(step_with_bubble), SECONDS, "if utilisation does not count it", NO_LIMIT, 0},
    {"Memory of a GPU", 0, HEADING, "", NO_LIMIT, 0},
    {"parameters", AT(of_parameters), BYTES, "2 n, n = P / (TP PP)", NO_LIMIT, 0},
    {"gradients", AT(of_gradients), BYTES, "g n", NO_LIMIT, 0},
    {"optimizer", AT(of_optimizer), BYTES, "12 n / DP: ZeRO-1", NO_LIMIT, 0},
    {"  state, these three", AT(state), BYTES, "sum", NO_LIMIT, 0},
    {"activations", AT(of_activations), BYTES, "2 s b h L / TP: all recomputed", NO_LIMIT, 0},
    {"  the layer at work", AT(of_recomputed), BYTES, "34 s b h / TP", NO_LIMIT, 0},
    {"together", AT(memory), BYTES, "sum", AT_MOST, AT(hbm)},
    {"Links", 0, HEADING, "", NO_LIMIT, 0},
    {"compute of a micro-batch", AT(micro_step), SECONDS, "6 n s b / (peak utilisation)", NO_LIMIT, 0},
    {"TP, bytes meanwhile", AT(tp_bytes), BYTES, "8 (TP - 1)/TP s b h x 2 L/PP", NO_LIMIT, 0},
    {"  rate, to take as long", AT(tp_rate), BYTE_RATE, "bytes / compute", AT_MOST, AT(scale_up)},
    {"  with recomputation's sums", AT(tp_rate_recomputed), BYTE_RATE, "6 all-reduces, not 4", AT_MOST, AT(scale_up)},
    {"  time at scale_up, of compute", AT(tp_share), PERCENT, "on the critical path", NO_LIMIT, 0},
    {"PP, bytes of a micro-batch", AT(pp_bytes), BYTES, "2 v s b h x 2 / TP", NO_LIMIT, 0},
    {"  rate", AT(pp_rate), BIT_RATE, "8 bytes / compute", AT_MOST, AT(nic)},
    {"DP, bytes of a step", AT(dp_bytes), BYTES, "2 (DP - 1)/DP n g", NO_LIMIT, 0},
    {"  rate, over the whole step", AT(dp_rate), BIT_RATE, "8 bytes / step", AT_MOST, AT(nic)},
    {"  time, on every NIC at once", AT(dp_burst), SECONDS, "at line rate", NO_LIMIT, 0},
    {"Between sites", 0, HEADING, "", NO_LIMIT, 0},
    {"bytes of a step, each way", AT(wan_bytes), BYTES, "2 (S - 1)/S P g, of a site", NO_LIMIT, 0},
    {"  rate, over the whole step", AT(wan_rate), BIT_RATE, "hidden behind the next step", NO_LIMIT, 0},
    {"  fibre pairs", AT(fibre_pairs), NUMBER, "/ fibre_pair", NO_LIMIT, 0},
    {"  rate, within 1 s", AT(wan_burst), BIT_RATE, "if nothing hides it", NO_LIMIT, 0},
    {"  bytes in flight", AT(in_flight), BYTES, "rate x round trip", NO_LIMIT, 0},
    {"a round trip, of a step", AT(delay_step), PERCENT, "DP between sites: once a step", NO_LIMIT, 0},
    {"  of a micro-batch", AT(delay_micro), PERCENT, "PP between sites: at every one of them", NO_LIMIT, 0},
    {"Checkpoint", 0, HEADING, "", NO_LIMIT, 0},
    {"bytes", AT(checkpoint), BYTES, "checkpoint_bytes P", NO_LIMIT, 0},
    {"  of a GPU", AT(checkpoint_gpu), BYTES, "/ GPUs in the mesh", NO_LIMIT, 0},
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

// The whole plan: quantity, value, mark, and origin. Models side by side, in pairs.
static inline void datacenter_print(const DatacenterPlan* p, FILE* out) {
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

#endif
