/*
test_datacenter.c: the datacenter planner. The published numbers; the worked example that was computed before there was
a planner, entry by entry to its last digit; each formula against what it stands for, done the long way: pipelines that
run, sums that go round a ring, a training of so many steps, every number of stages tried; what has to hold of any plan;
marks that follow values, by changing every input and looking at what moves; lines that are refused.
*/
#include "../../../model.h"
#include "../../../planner/datacenter_print.h"
#include "test.h"

#define SHIPPED "planner/clusters/next-generation.txt"

// A plan that has to work.
static DatacenterPlan plan_of(const Datacenter* d) {
    static DatacenterPlan p;
    Error error = {""};
    if (!datacenter_plan(&p, d, &error)) check(false, "%s", error.text);
    return p;
}

static double relative(double a, double b) { return fabs(a - b) / fmax(fabs(b), 1e-300); }

// ----------------------------------------------------------------------------------------------------------------
// The numbers that are known

// Section 5 of the notes on the paper, tests 1 to 5, and the figures of section 2.
static void test_published(void) {
    Datacenter d = datacenter_default();
    DatacenterPlan p = plan_of(&d);
    check(p.affordable.value == 23333 && p.racks.value == 23300,
          "$100B, 70 %%, $3.0M a rack: %.0f racks, reported %.0f", p.affordable.value, p.racks.value);
    check(p.compute.value == 70e9, "$70B for compute");
    check(p.gpus.value == 1677600, "23,300 x 72 = %.0f GPUs", p.gpus.value);
    check(fabs(p.power_low.value / 1e9 - 4.16) < 0.005 && fabs(p.power_high.value / 1e9 - 4.71) < 0.005,
          "3.62 GW x 1.15, 1.30 = %.3f, %.3f GW", p.power_low.value / 1e9, p.power_high.value / 1e9);
    check(p.sites.value == 2 && p.sites.mark == CONFIRMED, "two sites where nothing is said of them");
    check(p.site_gpus.value == 838800 && fabs(p.site_it.value / 1e9 - 1.8) < 0.05 &&
              fabs(p.site_low.value / 1e9 - 2.08) < 0.005 && fabs(p.site_high.value / 1e9 - 2.36) < 0.01,
          "of each: 838,800 GPUs, 1.8 GW, 2.08 to 2.36 GW");
    // From 3.62 GW; the notes' 154.5 kW and 2,146 W are those of 3.6 GW.
    check(fabs(p.rack_power.value - 154.5e3 * 3.62 / 3.6) < 100 && fabs(p.gpu_power.value - 2146 * 3.62 / 3.6) < 1,
          "a rack has %.1f kW, a GPU %.0f W", p.rack_power.value / 1e3, p.gpu_power.value);
    check(fabs(p.rack_power.value / d.rack_rating.value - 1.29) < 0.01 && fabs(p.beside_racks.value - 0.8e9) < 0.05e9,
          "1.29 of what an NVL72 draws; 0.8 GW for the rest");
    bool split = true;
    for (double cap = 0.1e9; cap < 4.16e9; cap += 0.01e9) {
        d.site_power = fact(cap, ASSUMED);
        p = plan_of(&d);
        const double sites = p.sites.value;
        split = split && sites >= 2 && p.site_high.value <= cap * (1 + 1e-12) && sites == floor(sites);
        split = split && p.power_high.value / (sites - 1) > cap && p.sites.mark == ASSUMED; // not one more than needed
    }
    check(split, "any site below 4.16 GW: two or more, no more than needed, each within its power");
    d.site_power = fact(5e9, ASSUMED);
    check(plan_of(&d).sites.value == 1, "a site of 5 GW is enough");
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
        {AT(heads), 1, {1024, 1280}, {1, 1}},
        {AT(tokens), 1e15, {1.0, 2.0}, {0.1, 0.1}},
        {AT(flops), 1e29, {3.0, 12}, {0.1, 1}},
        {AT(days_fp8), 1, {1033, 4141}, {1, 1}},
        {AT(days_bf16), 1, {2066, 8283}, {1, 1}},
        {AT(tensor), 1, {64, 64}, {1, 1}},
        {AT(pipeline), 1, {22, 62}, {1, 1}},
        {AT(data), 1, {1191, 422}, {1, 1}},
        {AT(chunks), 1, {11, 5}, {1, 1}},
        {AT(batch), 1, {24576, 49152}, {1, 1}},
        {AT(batch_tokens), 1e6, {201, 403}, {1, 1}},
        {AT(micro_batches), 1, {20.6, 116}, {0.1, 1}},
        {AT(bubble), 1, {0.09, 0.105}, {0.01, 0.001}},
        {AT(step), 1, {18.0, 72}, {0.1, 1}},
        {AT(state), 1e9, {142, 101}, {1, 1}},
        {AT(of_activations), 1e9, {8, 13}, {1, 1}},
        {AT(tp_bytes), 1e9, {186, 106}, {1, 1}},
        {AT(micro_step), 1, {0.87, 0.62}, {0.01, 0.01}},
        {AT(tp_rate), 1e9, {214, 171}, {1, 1}},
        {AT(pp_rate), 1e9, {6.8, 5.4}, {0.1, 0.1}},
        {AT(dp_bytes), 1e9, {142, 100}, {1, 1}},
        {AT(dp_rate), 1e9, {63, 11}, {1, 1}},
        {AT(dp_burst), 1, {1.42, 1.0}, {0.01, 0.1}},
        {AT(wan_bytes), 1e12, {100, 200}, {1, 1}},
        {AT(wan_rate), 1e12, {44, 22}, {1, 1}},
        {AT(checkpoint), 1e15, {0.70, 1.40}, {0.01, 0.01}},
        // what the notes say of the table
        {AT(wan_burst), 1e15, {0.8, 1.6}, {0.1, 0.1}},
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
    // The rules are not on a knife's edge: the same shapes and meshes for any memory and aspect nearby
    bool same = true;
    for (int i = 0; i <= 64; i++) {
        Datacenter near = datacenter_default();
        near.hbm.value = 151e9 + i * 1e9, near.aspect.value = 492 + i * 76 / 64;
        const DatacenterPlan q = plan_of(&near);
        for (int k = 0; k < 2; k++) {
            const ModelPlan *a = &q.model[k], *b = &p.model[k];
            same = same && a->layers.value == b->layers.value && a->hidden.value == b->hidden.value;
            same = same && a->pipeline.value == b->pipeline.value && a->chunks.value == b->chunks.value;
            same = same && a->batch.value == b->batch.value;
        }
    }
    check(same,
          "the same shapes, meshes and batches with 151 to 215 GB, and with widths of 492 to 568 times the layers");
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
// The formulas, the long way

// Bubble of an interleaved pipeline's forward passes, run: PP stages, v chunks each, m micro-batches in groups of PP.
static double run_pipeline(int stages, int chunks, int m) {
    double* done = (double*)checked_calloc((size_t)m * stages * chunks, sizeof(double), "a pipeline");
    double* at = (double*)checked_calloc((size_t)stages, sizeof(double), "a pipeline");
    for (int first = 0; first < m; first += stages) {
        for (int c = 0; c < chunks; c++) {
            for (int i = first; i < first + stages && i < m; i++) {
                for (int s = 0; s < stages; s++) {
                    const int part = c * stages + s;
                    const double input = part ? done[(size_t)(part - 1) * m + i] : 0;
                    at[s] = fmax(at[s], input) + 1;
                    done[(size_t)part * m + i] = at[s];
                }
            }
        }
    }
    double end = 0;
    for (int s = 0; s < stages; s++) end = fmax(end, at[s]);
    free(done), free(at);
    return (end - (double)m * chunks) / ((double)m * chunks);
}

// What a rank of a ring sends until all n have the sum of `bytes`: a part goes round twice, but for one step each time.
static double run_ring(int n, double bytes) {
    double sent = 0;
    for (int round = 0; round < 2; round++) {
        for (int step = 0; step < n - 1; step++) sent += bytes / n;
    }
    return sent;
}

// The interval at which checkpoints cost least, by trying.
static double best_interval(double stall, double mtbf) {
    double best = 0, least = INFINITY;
    for (double t = stall / 100; t < 100 * mtbf; t *= 1.0005) {
        const double cost = stall / t + t / 2 / mtbf;
        if (cost < least) least = cost, best = t;
    }
    return best;
}

// The fewest stages, of those that divide L, whose memory fits, by trying; the other numbers are the plan's.
static int fewest_stages(const Datacenter* d, const ModelPlan* m, double gpus) {
    const double s = d->sequence.value, h = m->hidden.value, t = m->tensor.value, L = m->layers.value;
    for (int stages = 1; stages <= (int)L; stages++) {
        if ((int)L % stages) continue;
        const double replicas = floor(gpus / t / stages), weights = 12 * L * h * h / t / stages;
        const double state = weights * (2 + d->gradient_bytes.value + 12 / replicas);
        const double kept = 2 * s * h / t * L + 34 * s * h / t;
        if (state + kept <= d->hbm.value) return stages;
    }
    return 0;
}

static void test_formulas(void) {
    const Datacenter d = datacenter_default();
    const DatacenterPlan p = plan_of(&d);
    for (int k = 0; k < 2; k++) {
        const ModelPlan* m = &p.model[k];
        const int T = 50 * (k + 1), L = (int)m->layers.value, PP = (int)m->pipeline.value, v = (int)m->chunks.value;
        const ModelConfig config = model_gpt2(L, (int)m->hidden.value, 1, 1, 1);
        check_error("parameters, tensor by tensor (model.h)",
                    relative((double)model_parameters(&config), m->parameters.value), 1e-5);
        check(m->hidden.value == 128 * m->heads.value && fmod(m->heads.value, 64) == 0,
              "%dT: every TP rank has whole heads", T);
        check(12 * (m->layers.value + 1) * m->hidden.value * m->hidden.value > m->asked.value &&
                  m->parameters.value <= m->asked.value,
              "%dT: one layer more would be too many", T);
        check(PP == fewest_stages(&d, m, p.gpus.value), "%dT: no fewer equal stages than %d fit", T, PP);
        check(PP * v == L, "%dT: every layer is a chunk", T);

        // A training, step by step; and its micro-batches
        const double steps = m->tokens.value / m->batch_tokens.value;
        check_error("days: steps x seconds", relative(steps * m->step.value / 86400, m->days.value), 1e-12);
        check_error("step: micro-batches x seconds",
                    relative(m->micro_batches.value * m->micro_step.value, m->step.value), 1e-12);
        check_error("days in FP4 and BF16",
                    fabs(m->days_fp4.value / m->days.value - 0.5) + fabs(m->days_bf16.value / m->days.value - 2),
                    1e-12);
        check(m->days.value == m->days_fp8.value, "%dT: the plan is in FP8", T);
        check(m->used.value == m->tensor.value * PP * m->data.value && m->used.value <= p.gpus.value &&
                  m->used.value + m->tensor.value * PP > p.gpus.value,
              "%dT: one replica more does not fit", T);
        check_error("step with the bubble",
                    relative(m->step_with_bubble.value, m->step.value + m->bubble.value * m->step.value), 1e-12);

        // The bubble; the wall, where it would be 10 % if PP - 1 were PP
        const int whole = PP * (int)ceil(m->micro_batches.value / PP);
        check_error("bubble: a pipeline that runs",
                    relative(run_pipeline(PP, v, whole), m->bubble.value * m->micro_batches.value / whole), 1e-9);
        const double near_wall = (PP - 1) / (0.1 * v) * m->data.value;
        check_error("wall: the batch at 10 %", relative(m->wall.value * (PP - 1) / PP, near_wall), 1e-12);
        double best = INFINITY, batch = 0;
        for (double b = 8192; b < 1e6; b += 8192) {
            if (fabs(b - m->wall.value) < best) best = fabs(b - m->wall.value), batch = b;
        }
        check(batch == m->batch.value, "%dT: no multiple of 64 Mi tokens is nearer to the wall", T);

        // Traffic: sums that go round rings, messages counted one by one
        const double rows = 8192 * m->hidden.value * 2;
        double tp = 0;
        for (int layer = 0; layer < L / PP; layer++) {
            for (int pass = 0; pass < 4; pass++) tp += run_ring((int)m->tensor.value, rows);
        }
        check_error("TP bytes: rings", relative(tp, m->tp_bytes.value), 1e-12);
        check_error("TP rate", relative(tp / m->micro_step.value, m->tp_rate.value), 1e-12);
        check_error("TP rate, recomputing", relative(6 * tp / 4 / m->micro_step.value, m->tp_rate_recomputed.value),
                    1e-12);
        check_error("TP time", relative(tp / 900e9 / m->micro_step.value, m->tp_share.value), 1e-12);
        double pp = 0; // the boundary behind every chunk: forwards, and the one before it: backwards
        for (int c = 0; c < v; c++) pp += 2 * rows / m->tensor.value;
        check_error("PP bytes", relative(pp, m->pp_bytes.value), 1e-12);
        check_error("PP rate", relative(pp * 8 / m->micro_step.value, m->pp_rate.value), 1e-12);
        const double stage = m->parameters.value / m->tensor.value / PP;
        check_error("DP bytes: a ring", relative(run_ring((int)m->data.value, 2 * stage), m->dp_bytes.value), 1e-12);
        check_error("DP rate", relative(m->dp_bytes.value / m->step.value * 8, m->dp_rate.value), 1e-12);
        check_error("DP burst", relative(m->dp_bytes.value / 100e9, m->dp_burst.value), 1e-12);
        check_error("WAN bytes: a ring of sites", relative(run_ring(2, 2 * m->parameters.value), m->wan_bytes.value),
                    1e-12);
        check_error("WAN rate", relative(m->wan_bytes.value * 8 / m->step.value, m->wan_rate.value), 1e-12);
        check_error("bytes on their way", relative(m->wan_bytes.value * 0.065 / m->step.value, m->in_flight.value),
                    1e-12);
        check((m->fibre_pairs.value - 1) * 30e12 < m->wan_rate.value &&
                  m->fibre_pairs.value * 30e12 >= m->wan_rate.value,
              "%dT: %.0f fibre pairs carry it, one less does not", T, m->fibre_pairs.value);
        check_error("round trips",
                    relative(m->delay_step.value * m->micro_batches.value, m->delay_micro.value) +
                        relative(m->delay_step.value * m->step.value, 0.065),
                    1e-12);

        // Memory, by what it is for
        check_error("parameters", relative(m->of_parameters.value, 2 * stage), 1e-12);
        check_error("gradients", relative(m->of_gradients.value, 2 * stage), 1e-12);
        check_error("optimizer: 12 bytes a parameter, over DP",
                    relative(m->of_optimizer.value * m->data.value, 12 * stage), 1e-12);
        check_error("activations: L inputs of layers", relative(m->of_activations.value, L * rows / m->tensor.value),
                    1e-12);
        check_error("of a layer", relative(m->of_recomputed.value, 17 * rows / m->tensor.value), 1e-12);
        check_error("together",
                    relative(m->memory.value, m->state.value + m->of_activations.value + m->of_recomputed.value),
                    1e-12);
        check_error("state",
                    relative(m->state.value, m->of_parameters.value + m->of_gradients.value + m->of_optimizer.value),
                    1e-12);
        check_error("checkpoint of a GPU", relative(m->checkpoint_gpu.value * m->used.value, 14 * m->parameters.value),
                    1e-12);

        // Days, tokens, precision: what each would have to be
        check_error("tokens in time", relative(m->tokens.value / m->tokens_in_time.value, m->days.value / 180), 1e-12);
        check_error("a parameter", relative(m->ratio_in_time.value * m->asked.value, m->tokens_in_time.value), 1e-12);
        check_error("peak", relative(m->flops.value / (m->used.value * m->peak_needed.value * 0.4 * 86400), 180),
                    1e-12);
        const double small = m->parameters_in_time.value;
        check_error("parameters in time", relative(120 * small * small / (m->used.value * 5e15 * 0.4 * 86400), 180),
                    1e-12);

        // Groups of 64 in racks of 72
        const double in_rack = floor(23300 * 64.0 / (64 * PP));
        check(m->rack_data.value == in_rack, "%dT: %.0f replicas of groups within racks", T, in_rack);
        check_error("days then", relative(m->rack_days.value * in_rack, m->days.value * m->data.value), 1e-12);

        // The law's least loss for these FLOP, by trying
        double least = INFINITY, at = 0;
        for (double P = 1e12; P < 1e15; P *= 1.0002) {
            const double tokens = m->flops.value / 6 / P,
                         loss = 1.69 + 406.4 * pow(P, -0.34) + 410.7 * pow(tokens, -0.28);
            if (loss < least) least = loss, at = P;
        }
        check_error("law: parameters", relative(m->law_parameters.value, at), 1e-3);
        check_error("law: loss", relative(m->law_loss.value, least), 1e-9);
        check_error("law: tokens", relative(m->law_ratio.value * 6 * at * at, m->flops.value), 2e-3);
        const double loss = 1.69 + 406.4 / pow(m->parameters.value, 0.34) + 410.7 / pow(m->tokens.value, 0.28);
        check_error("law: loss at 20 tokens a parameter", relative(m->loss.value, loss), 1e-12);
        check(m->loss.value > m->law_loss.value, "%dT: more than the least", T);
    }
    for (int i = 0; i < 3; i++) {
        const double stall = i == 0 ? 1 : i == 1 ? 5 : 30;
        check_error("Young's interval, by trying", relative(p.interval[i].value, best_interval(stall, p.mtbf.value)),
                    1e-3);
        const double t = p.interval[i].value, failures_an_hour = p.gpus.value / p.failure_hours.value;
        const double lost = 3600 / t * stall + failures_an_hour * t / 2; // seconds of an hour
        check_error("what checkpoints cost, of an hour", relative(p.overhead[i].value, lost / 3600), 1e-12);
    }
    Datacenter r = datacenter_default();
    r.restart = fact(20, ASSUMED);
    check_error("restarts", relative(plan_of(&r).overhead[0].value - p.overhead[0].value, 20 / p.mtbf.value), 1e-12);
}

// ----------------------------------------------------------------------------------------------------------------
// What has to hold of any plan

static void test_properties(void) {
    Datacenter d = datacenter_default();
    const DatacenterPlan p = plan_of(&d);

    // Sites
    double power = INFINITY, bytes = -1;
    bool falls = true, rises = true;
    for (int sites = 1; sites <= 12; sites++) {
        d.sites = fact(sites, ASSUMED);
        const DatacenterPlan q = plan_of(&d);
        falls = falls && q.site_high.value < power && q.site_low.value <= q.site_high.value;
        falls = falls && relative(q.site_high.value * sites, q.power_high.value) < 1e-12 &&
                q.site_gpus.value * sites == q.gpus.value;
        rises = rises && q.model[0].wan_bytes.value > bytes;
        rises = rises &&
                relative(q.model[0].wan_bytes.value + 1, run_ring(sites, 2 * q.model[0].parameters.value) + 1) < 1e-12;
        rises =
            rises && (sites > 1) == (q.model[0].wan_rate.value > 0) && (sites > 1) == (q.model[0].delay_step.value > 0);
        rises = rises && (sites > 1) == (q.model[0].fibre_pairs.value > 0) &&
                (sites > 1) == (q.model[0].delay_micro.value > 0);
        power = q.site_high.value, bytes = q.model[0].wan_bytes.value;
    }
    check(falls, "more sites: less power of each, the same together");
    check(rises, "more sites: more bytes between them; one: none, and no delay");

    // Twice the money: twice of what grows with it, half of the time
    d = datacenter_default();
    d.budget.value *= 2;
    const DatacenterPlan twice = plan_of(&d);
    check(twice.racks.value == 46600 && twice.gpus.value == 2 * p.gpus.value,
          "twice the money: twice the racks and GPUs");
    check_error("twice the money: power", relative(twice.it_power.value, 2 * p.it_power.value), 1e-12);
    check_error("twice the money: power with cooling", relative(twice.power_high.value, 2 * p.power_high.value), 1e-12);
    check_error("twice the money: time between failures", relative(twice.mtbf.value, p.mtbf.value / 2), 1e-12);
    check_error("twice the money: days", relative(twice.model[0].days.value, p.model[0].days.value / 2), 2e-3);
    check_error("twice the money: wall", relative(twice.model[0].wall.value, p.model[0].wall.value * 2), 2e-3);

    // The bubble at one batch: PP falls out
    d = datacenter_default();
    d.hbm.value = 1e15;
    d.models = 1;
    d.model[0].layers.value = 240, d.model[0].chunks.value = 2, d.model[0].batch.value = 24576;
    double least = INFINITY, most = 0;
    for (int stages = 4; stages <= 120; stages *= 2) {
        if (240 % (2 * stages)) continue;
        d.model[0].pipeline.value = stages;
        const DatacenterPlan q = plan_of(&d);
        const double scaled = q.model[0].bubble.value * stages / (stages - 1) * q.gpus.value / q.model[0].used.value;
        least = fmin(least, scaled), most = fmax(most, scaled);
    }
    check_error("bubble x PP / (PP - 1), the same for all PP", most / least - 1, 1e-12);
    check_error("and it is G / (v B TP)", relative(most, 1677600 / (2 * 24576 * 64.0)), 1e-12);
    d.model[0].pipeline.value = 1;
    const DatacenterPlan single = plan_of(&d);
    check(single.model[0].bubble.value == 0 && single.model[0].pp_bytes.value == 0 && single.model[0].wall.value == 0,
          "one stage: no bubble, no wall, no messages");
    d.model[0].batch.value = 0, d.micro_batch.value = 4;
    const ModelPlan four = plan_of(&d).model[0];
    check(fmod(four.batch.value, 8192) == 0 && four.micro_batches.value >= 1 &&
              four.micro_batches.value <= 1 + 8192 / 4 / four.data.value,
          "one stage: the least batch that has a micro-batch for everyone");

    // Micro-batches of two: half as many, twice as long; the wall doubles
    d = datacenter_default();
    d.micro_batch.value = 2;
    d.model[0].pipeline.value = 22, d.model[0].batch.value = 24576;
    const ModelPlan two = plan_of(&d).model[0], *one = &p.model[0];
    check_error("b = 2: wall, bubble, time and bytes of a micro-batch, activations: double",
                relative(two.wall.value, 2 * one->wall.value) + relative(two.bubble.value, 2 * one->bubble.value) +
                    relative(two.micro_step.value, 2 * one->micro_step.value) +
                    relative(two.tp_bytes.value, 2 * one->tp_bytes.value) +
                    relative(two.pp_bytes.value, 2 * one->pp_bytes.value) +
                    relative(two.of_activations.value, 2 * one->of_activations.value) +
                    relative(two.of_recomputed.value, 2 * one->of_recomputed.value),
                1e-12);
    check_error("b = 2: a step and its sums as before",
                relative(two.step.value, one->step.value) + relative(two.dp_bytes.value, one->dp_bytes.value), 1e-12);

    // Gradients in fp32
    d = datacenter_default();
    d.gradient_bytes.value = 4;
    const DatacenterPlan wide = plan_of(&d);
    const ModelPlan* fp32 = &wide.model[0];
    const double stage = fp32->parameters.value / fp32->tensor.value / fp32->pipeline.value;
    check_error("fp32 gradients: 4 bytes a parameter, between sites",
                relative(fp32->wan_bytes.value, 4 * fp32->parameters.value), 1e-12);
    check_error("fp32 gradients: 4 bytes, of a stage's",
                relative(fp32->dp_bytes.value, run_ring((int)fp32->data.value, 4 * stage)) +
                    relative(fp32->of_gradients.value, 4 * stage),
                1e-12);
    check(wide.model[0].pipeline.value > p.model[0].pipeline.value && wide.model[0].memory.value <= 192e9,
          "fp32 gradients: %.0f stages, not 22", wide.model[0].pipeline.value);

    // Spares, within a rack
    d = datacenter_default();
    d.spares.value = 8;
    const DatacenterPlan spare = plan_of(&d);
    check(spare.working.value == 23300 * 64 && spare.model[0].data.value == spare.model[0].rack_data.value &&
              spare.model[0].days.value == spare.model[0].rack_days.value &&
              spare.model[0].data.value == p.model[0].rack_data.value,
          "8 spares: the mesh is the one of whole groups in a rack");
    d.spares.value = 9;
    check(plan_of(&d).model[0].tensor.value == 32, "9 spares: TP 32");

    // Power that is said, and power by racks
    d = datacenter_default();
    d.it_power.value = 3e9, d.spares.value = 8;
    const DatacenterPlan said = plan_of(&d);
    check(said.it_power.value == 3e9 && said.rack_power.value == 3e9 / 23300 && said.gpu_power.value == 3e9 / 1677600 &&
              fabs(said.power_high.value - 3.9e9) < 1 && fabs(said.beside_racks.value - (3e9 - 23300 * 120e3)) < 1,
          "an IT power that is said is divided among all racks and GPUs, spares too");
    d.it_power.value = 0, d.rack_power.value = 100e3;
    check(plan_of(&d).it_power.value == 2.33e9, "power of a rack: times racks");

    // Precision
    for (int bits = 4; bits <= 16; bits *= 2) {
        d = datacenter_default();
        d.precision.value = bits;
        const ModelPlan m = plan_of(&d).model[0];
        const double days = bits == 4 ? m.days_fp4.value : bits == 8 ? m.days_fp8.value : m.days_bf16.value;
        check(m.days.value == days && m.peak.value == 2e16 * 2 / bits, "%d bit: %.0f days at %.1f PFLOP/s", bits, days,
              m.peak.value / 1e15);
    }

    // Limits at which what is violated is kept, one after the other
    const struct {
        size_t at;
        double value;
        const char* row;
    } cures[] = {{offsetof(Datacenter, days_limit), p.model[0].days.value, "days, if tokens, precision hold"},
                 {offsetof(Datacenter, tokens_per_parameter), p.model[0].ratio_in_time.value, "  a parameter"},
                 {offsetof(Datacenter, peak_fp8), p.model[0].peak_needed.value, "a GPU's peak, if days, tokens hold"}};
    for (int i = 0; i < 3; i++) {
        d = datacenter_default();
        const double value = cures[i].value;
        bool held[2];
        for (int k = 0; k < 2; k++) {
            const double wanted = (i == 1) == (k == 0) ? value * (1 + 1e-9) : value * (1 - 1e-9); // just not, just so
            fact_at(&d, cures[i].at)->value = wanted;
            const DatacenterPlan q = plan_of(&d);
            for (int r = 0; r < MODEL_ROWS; r++) {
                if (strcmp(model_rows[r].what, cures[i].row) == 0) held[k] = row_holds(&model_rows[r], &q.model[0]);
            }
        }
        check(!held[0] && held[1], "%s: violated up to %.4g, then kept", cures[i].row, value);
    }

    // Any number of parameters
    bool ok = true;
    int deep = 0, plans = 0;
    for (double P = 1e11; P < 2e15; P = floor(P * 1.07)) {
        d = datacenter_default();
        d.models = 1;
        d.model[0].parameters.value = P;
        const ModelPlan m = plan_of(&d).model[0];
        ok = ok && m.layers.value == m.pipeline.value * m.chunks.value && m.used.value <= 1677600 && m.data.value >= 1;
        ok = ok && fmod(m.hidden.value, 8192) == 0 && m.micro_batches.value >= 1 && fmod(m.batch.value, 8192) == 0;
        ok = ok && (P < 1e12 || (m.parameters.value <= P && m.parameters.value > 0.9 * P));
        ok = ok && (m.memory.value <= 192e9 || m.chunks.value == 1);
        ok = ok && (m.pipeline.value == 1 || m.wall.value < 8192 ||
                    fabs(m.bubble.value - 0.1) < 0.1 * 4096 / m.wall.value + 0.1 / m.pipeline.value + 1e-3 ||
                    m.micro_batches.value < 1 + 8192 / m.data.value);
        // One layer more a stage does not fit, or more than half as many as would are in one
        const double more = m.memory.value - m.of_activations.value - m.of_recomputed.value;
        ok = ok &&
             (m.pipeline.value == 1 || m.memory.value > 192e9 ||
              m.memory.value + 1.01 * more / m.chunks.value * (m.chunks.value + 1) > 192e9 - more / m.chunks.value);
        deep += m.chunks.value > 1, plans++;
        if (!ok) {
            check(false, "a model of %.4g parameters: L %.0f h %.0f PP %.0f v %.0f DP %.0f", P, m.layers.value,
                  m.hidden.value, m.pipeline.value, m.chunks.value, m.data.value);
            break;
        }
    }
    check(ok && deep > plans / 2, "%d models from 0.1T to 2000T: whole meshes that fit, batches near the wall", plans);
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
    plain = plan_of(d), marked = plan_of(&changed);
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

static void test_marks(void) {
    Datacenter d = datacenter_default();
    const DatacenterPlan p = plan_of(&d);
    const struct {
        const char* what;
        Mark is, expected;
    } known[] = {{"compute", p.compute.mark, BACK_COMPUTED},       {"racks", p.racks.mark, CONFIRMED},
                 {"affordable", p.affordable.mark, BACK_COMPUTED}, {"GPUs", p.gpus.mark, CONFIRMED},
                 {"IT power", p.it_power.mark, BACK_COMPUTED},     {"power, least", p.power_low.mark, CONFIRMED},
                 {"power, most", p.power_high.mark, CONFIRMED},    {"sites", p.sites.mark, CONFIRMED},
                 {"power of a site", p.site_low.mark, ASSUMED},    {"failures", p.mtbf.mark, BACK_COMPUTED},
                 {"overhead", p.overhead[0].mark, ASSUMED},        {"parameters", p.model[0].asked.mark, CONFIRMED},
                 {"shape", p.model[0].layers.mark, ASSUMED},       {"FLOP", p.model[0].flops.mark, ASSUMED},
                 {"mesh", p.model[0].pipeline.mark, ASSUMED},      {"WAN", p.model[0].wan_rate.mark, ASSUMED}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        check(known[i].is == known[i].expected, "%s: %s", known[i].what, mark_names[known[i].is]);
    int confirmed = 0, published = 0;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < MODEL_ROWS; i++)
            confirmed += model_rows[i].quantity != HEADING && row_mark(&model_rows[i], &p.model[k]) != ASSUMED;
    }
    for (int i = 0; i < DATACENTER_ROWS; i++)
        published += datacenter_rows[i].quantity != HEADING && row_mark(&datacenter_rows[i], &p) == CONFIRMED;
    check(confirmed == 2 && published == 5,
          "nothing of a model is more than assumed but its parameters; 5 rows above are confirmed");

    // A published number that comes from a guess is a guess; one that is missed is not published
    d.rack_price.mark = ASSUMED;
    const DatacenterPlan guess = plan_of(&d);
    check(guess.racks.value == 23300 && guess.racks.mark == ASSUMED && guess.gpus.mark == ASSUMED &&
              guess.mtbf.mark == ASSUMED,
          "racks by a guessed price are assumed, and GPUs with them");
    d = datacenter_default();
    d.rack_price.value = 2.9e6;
    const DatacenterPlan cheap = plan_of(&d);
    check(cheap.racks.mark == BACK_COMPUTED && cheap.gpus.mark == BACK_COMPUTED,
          "racks at another price are back-computed");
    d = datacenter_default();
    d.pue_low.value = 1.16;
    check(plan_of(&d).power_low.mark == BACK_COMPUTED && plan_of(&d).power_high.mark == CONFIRMED,
          "other power is not published");
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
        const Input* in = i < stalls   ? &datacenter_inputs[i]
                          : i < models ? &stall_input
                                       : &model_inputs[(i - models) % MODEL_INPUTS];
        size_t at = in->at;
        if (i >= stalls && i < models) at = offsetof(Datacenter, stall) + (size_t)(i - stalls) * sizeof(Fact);
        if (i >= models) at += offsetof(Datacenter, model) + (size_t)((i - models) / MODEL_INPUTS) * sizeof(ModelWish);
        if (fact_in(&d, at).value == 0 && in->low > 0) continue; // by rule
        const Follows f = follow(&d, at, in->whole);
        if (f.blind)
            check(false, "%s, %s: %d facts move with it, %d of them blindly", what, in->name, f.moved, f.blind);
        silent += f.moved == 0;
        all.moved += f.moved, all.blind += f.blind, all.better += f.better, all.changed += f.changed;
    }
    check(all.blind == 0, "%s: %d facts that move with an input are assumed if it is", what, all.moved);
    check(all.better == 0 && all.changed == 0, "%s: an assumed input makes no mark better, no value another", what);
    if (expected_silent >= 0) check(silent == expected_silent, "%s: %d inputs move nothing", what, silent);
}

static void test_follows(void) {
    Datacenter d = datacenter_default();
    follow_all(d, "by rule", 0);
    d.site_power.value = 1e9, d.spares.value = 3, d.restart.value = 7;
    follow_all(d, "sites by their power", 0);
    for (int said = 1; said < 1 << (MODEL_INPUTS - 1); said++) { // every choice of what a file fixes of a model
        const double fixed[] = {240, 16384 * 9, 32, 12, 4, 30000};
        char what[64] = "fixed:";
        d = datacenter_default();
        d.it_power.value = 3e9, d.sites.value = 3, d.models = 1, d.model[0].parameters.value = 60e12;
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

static char* printed(const DatacenterPlan* p) {
    char* text = NULL;
    size_t size = 0;
    FILE* out = open_memstream(&text, &size);
    if (!out) die("test_datacenter: no memory for a text");
    datacenter_print(p, out);
    fclose(out);
    return text;
}

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
    Datacenter d = datacenter_default();
    d.days_limit.value = 1100;
    datacenter_add_model(&d, fact(20e12, ASSUMED), 0);
    const DatacenterPlan p = plan_of(&d);
    char* text = printed(&p);
    int rows = 0, marked = 0, sourced = 0, wide = 0;
    for (const char* at = text; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        const int n = (int)strcspn(at, "\n");
        wide += n > 130;
        if (n == 0 || *at != ' ') continue; // headings
        char line[256];
        snprintf(line, sizeof line, "%.*s ", n, at);
        int marks = 0;
        for (int i = 0; i < MARKS; i++) {
            char word[32];
            snprintf(word, sizeof word, "  %s ", mark_names[i]);
            marks += strstr(line, word) != NULL;
        }
        rows++, marked += marks == 1;
        sourced += strlen(line) > 2 + 34 + 14 + 2 + 13 + 3;
    }
    int expected = 3 * p.stalls;
    for (int i = 0; i < DATACENTER_ROWS; i++) expected += datacenter_rows[i].quantity != HEADING;
    for (int i = 0; i < MODEL_ROWS; i++) expected += 2 * (model_rows[i].quantity != HEADING);
    check(rows == expected && marked == rows && sourced == rows, "%d rows, %d with one mark, %d with a source", rows,
          marked, sourced);
    for (int i = 0; i < MODEL_ROWS; i++) { // the longest that a line can become
        const Row* row = &model_rows[i];
        char limit[64];
        quantity_text(limit, sizeof limit, fact_in(&p.model[0], row->limit_at).value, row->quantity);
        const size_t verdict = row->limit == NO_LIMIT ? 0 : strlen(limit) + strlen("; <= : kept, VIOLATED");
        wide += strlen(row->source) + verdict > 130 - (2 + 34 + 14 + 14 + 2 + 13 + 2);
    }
    check(wide == 0, "no line is longer than 130");
    int tally[MARKS] = {0};
    const char* last = strrchr(text, '\n') - 2;
    while (*last != '\n') last--;
    sscanf(last, "%d lines are confirmed, %d back-computed, %d assumed.", &tally[0], &tally[1], &tally[2]);
    check(tally[0] == 6 && tally[1] == 8 && tally[0] + tally[1] + tally[2] == rows, "marks are counted:%.*s",
          (int)strlen(last) - 2, last + 1);
    check(strstr(text, " 5.00 s  assumed") && strstr(text, " 33.0 s  assumed") && strstr(text, " 74.3 %  assumed"),
          "each stall has its own lines");
    check(printed_has(text, "layers L", " 242           310  assumed"), "models stand side by side");
    check(printed_has(text, "racks", " 23,300  confirmed"), "racks 23,300 confirmed");
    check(printed_has(text, "GPUs", "1,677,600  confirmed"), "GPUs 1,677,600 confirmed");
    check(printed_has(text, "power with cooling, least", "4.16 GW  confirmed"), "4.16 GW confirmed");
    check(printed_has(text, "FLOP C", "2.99e29       1.20e30"), "FLOP 2.99e29 1.20e30");
    check(printed_has(text, "step", "18.0 s        72.0 s"), "step 18.0 s 72.0 s");
    check(printed_has(text, "  rate, over the whole step", "63.0 Gbit/s   11.2 Gbit/s"), "63.0 Gbit/s 11.2 Gbit/s");
    check(printed_has(text, "bubble", "9.25 %        10.5 %  assumed"), "bubble 9.25 %% 10.5 %%");
    check(printed_has(text, "bubble", "<= 10.0 %: kept, VIOLATED"), "bubble: kept, VIOLATED");
    check(printed_has(text, "days, if tokens, precision hold", "<= 1,100 d: kept, VIOLATED"), "days: kept, VIOLATED");
    check(printed_has(text, "  a parameter", ">= 20: kept, VIOLATED"), "tokens: kept, VIOLATED");
    check(printed_has(text, "a GPU's peak, if days, tokens hold", "<= 5.00 PFLOP/s: kept, VIOLATED"),
          "peak: kept, VIOLATED");
    check(printed_has(text, "together", "151 GB        115 GB  assumed        sum; <= 192 GB: kept"), "memory: kept");
    check(strstr(text, "  days, if tokens, precision hold            164 d  assumed        as the plan has it; <= "
                       "1,100 d: kept\n") != NULL,
          "a third model stands alone");
    free(text);

    // A row is as weak as its weakest column, and as its limit
    d = datacenter_default();
    d.model[1].parameters.mark = ASSUMED;
    DatacenterPlan q = plan_of(&d);
    text = printed(&q);
    check(printed_has(text, "parameters asked for", " assumed "), "confirmed beside assumed: assumed");
    free(text);
    d = datacenter_default();
    d.model[0].parameters.mark = ASSUMED;
    q = plan_of(&d);
    text = printed(&q);
    check(printed_has(text, "parameters asked for", " assumed "), "assumed beside confirmed: assumed");
    free(text);
    d = datacenter_default();
    d.model[1].parameters.mark = BACK_COMPUTED;
    q = plan_of(&d);
    text = printed(&q);
    check(printed_has(text, "parameters asked for", " back-computed "),
          "confirmed beside back-computed: back-computed");
    free(text);
    d = datacenter_default();
    all_confirmed(&d);
    d.nic.mark = ASSUMED;
    q = plan_of(&d);
    text = printed(&q);
    check(printed_has(text, "  rate", " assumed "), "beside an assumed limit: assumed");
    check(printed_has(text, "PP, bytes of a micro-batch", " back-computed "), "without it: back-computed");
    check(!printed_has(text, "  power of each, most", "<="), "no limit, no verdict");
    free(text);
    d.site_power = fact(1e9, CONFIRMED), d.sites = fact(2, CONFIRMED);
    q = plan_of(&d);
    text = printed(&q);
    check(printed_has(text, "  power of each, most", "<= 1.00 GW: VIOLATED"), "too few sites: VIOLATED");
    free(text);

    // Texts, read back
    static const struct {
        double value;
        Quantity quantity;
        const char* text;
    } texts[] = {{1677600, NUMBER, "1,677,600"},
                 {999, NUMBER, "999"},
                 {1000, NUMBER, "1,000"},
                 {20.635, NUMBER, "20.64"},
                 {0, NUMBER, "0"},
                 {1e15, LARGE, "1.00e15"},
                 {9.976e14, LARGE, "9.98e14"},
                 {9.98e14, LARGE, "9.98e14"},
                 {1.2e30, LARGE, "1.20e30"},
                 {0.0925, PERCENT, "9.25 %"},
                 {0.105, PERCENT, "10.5 %"},
                 {50e12, PARAMETERS, "50 T"},
                 {70e9, MONEY, "70.0 B$"},
                 {3e6, MONEY, "3.00 M$"},
                 {3.62e9, POWER, "3.62 GW"},
                 {154.5e3, POWER, "154 kW"},
                 {-8.2e8, POWER, "-820 MW"},
                 {999.7e6, POWER, "1.00 GW"},
                 {99.97e6, POWER, "100 MW"},
                 {5e15, FLOPS, "5.00 PFLOP/s"},
                 {142e9, BYTES, "142 GB"},
                 {214.2e9, BYTE_RATE, "214 GB/s"},
                 {44.4e12, BIT_RATE, "44.4 Tbit/s"},
                 {0.065, SECONDS, "65 ms"},
                 {0.87, SECONDS, "0.87 s"},
                 {3840, SECONDS, "3,840 s"},
                 {999.7, SECONDS, "999.7 s"},
                 {0.00017, PERCENT, "0.017 %"},
                 {0, PERCENT, "0 %"},
                 {108.8, SECONDS, "109 s"},
                 {0, SECONDS, "0.00 s"},
                 {1033.3, DAYS, "1,033 d"},
                 {8, BITS, "8 bit"}};
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
    char* texts[2];
    const DatacenterPlan p = plan_of(&d), q = plan_of(&def);
    texts[0] = printed(&p), texts[1] = printed(&q);
    check(strcmp(texts[0], texts[1]) == 0, "and its plan is theirs");
    free(texts[0]), free(texts[1]);

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
        {"it_power 3e3 W", AT(it_power), 3000, ASSUMED},
        {"it_power 3 kW assumed", AT(it_power), 3000, ASSUMED},
        {"it_power 3.5 MW", AT(it_power), 3.5e6, ASSUMED},
        {"it_power 3.62GW", AT(it_power), 3.62e9, ASSUMED},
        {"peak_fp8 989 TFLOP/s", AT(peak_fp8), 989e12, ASSUMED},
        {"peak_fp8 5PFLOP/s", AT(peak_fp8), 5e15, ASSUMED},
        {"precision 16 bit", AT(precision), 16, ASSUMED},
        {"hbm 80 GB", AT(hbm), 80e9, ASSUMED},
        {"hbm 1.5TB", AT(hbm), 1.5e12, ASSUMED},
        {"gradient_bytes 4 B", AT(gradient_bytes), 4, ASSUMED},
        {"scale_up 1.8 TB/s", AT(scale_up), 1.8e12, ASSUMED},
        {"scale_up 450 GB/s", AT(scale_up), 450e9, ASSUMED},
        {"nic 400 Gbit/s", AT(nic), 400e9, ASSUMED},
        {"fibre_pair 30 Tbit/s", AT(fibre_pair), 30e12, ASSUMED},
        {"wan_delay 900 us", AT(wan_delay), 0.0009, ASSUMED},
        {"wan_delay 65 ms", AT(wan_delay), 0.065, ASSUMED},
        {"wan_delay 0.5 s", AT(wan_delay), 0.5, ASSUMED},
        {"days_limit 90 d", AT(days_limit), 90, ASSUMED},
        {"restart 0 s", AT(restart), 0, ASSUMED},
        {"spares 0", AT(spares), 0, ASSUMED},
        {"sites 3", AT(sites), 3, ASSUMED},
        {"model 400 B", AT(model) + offsetof(ModelWish, parameters), 400e9, ASSUMED},
        {"model 2.5e13", AT(model) + offsetof(ModelWish, parameters), 2.5e13, ASSUMED},
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
    // What a file says is what is planned
    const char* fixed =
        "model 60 T\nlayers 240\nhidden 147456\ntensor 32\npipeline 12\nchunks 4\nbatch 30000\nsites 3\n";
    const bool ok = read_text(&d, fixed, strlen(fixed), &error);
    const ModelPlan m = plan_of(&d).model[0];
    check(ok && m.layers.value == 240 && m.hidden.value == 147456 && m.tensor.value == 32 && m.pipeline.value == 12 &&
              m.chunks.value == 4 && m.batch.value == 30000 && m.data.value == floor(1677600 / 384.0) &&
              m.wan_bytes.value == 4 * m.parameters.value * 2 / 3,
          "a mesh that is fixed is taken as it is");
    const char* deeper = "model 60 T\nchunks 3\n";
    const bool cut = read_text(&d, deeper, strlen(deeper), &error);
    const ModelPlan c = plan_of(&d).model[0];
    check(cut && c.chunks.value == 3 && fmod(c.layers.value / c.pipeline.value, 3) == 0 && c.memory.value <= 192e9 &&
              c.layers.value / c.pipeline.value > 3,
          "three chunks of %.0f layers each", c.layers.value / c.pipeline.value / 3);
}

static void test_refused(void) {
    static const struct {
        const char* text;
        int line; // that the message names; 0: the plan's, without a line
        const char* word;
    } bad[] = {
        {"budgett 100 B$", 1, "\"budgett\" is none of: stall model layers hidden"},
        {"budgett 100 B$", 1, "checkpoint_bytes restart"},
        {"\n\n100 B$", 3, "\"100\" is none of"},
        {"budget", 1, "budget: \"\" is not a number with one of the units $, M$, B$, perhaps with a mark"},
        {"budget 100", 1, "\"100\" is not a number"},
        {"budget B$", 1, "not a number"},
        {"budget 100 BB$", 1, "\"100 BB$\" is not a number"},
        {"budget 100 GW", 1, "not a number"},
        {"budget 100 b$", 1, "not a number"},
        {"# x\nbudget 1 00 B$", 2, "not a number"},
        {"budget 100 B$ certain", 1, "not a number"},
        {"budget 100 B$ confirmed confirmed", 1, "not a number"},
        {"budget confirmed", 1, "not a number"},
        {"budget 100 confirmed B$", 1, "not a number"},
        {"budget 100B$ 5", 1, "not a number"},
        {"budget -100 B$", 1, "out of range"},
        {"budget 0 B$", 1, "out of range, 0.00 M$ to 1000000.0 B$"},
        {"budget nan B$", 1, "not a number"},
        {"budget NAN", 1, "not a number"},
        {"budget inf B$", 1, "not a number"},
        {"budget infinity$", 1, "not a number"},
        {"budget 1e400 B$", 1, "not a number"},
        {"budget 1e308 B$", 1, "not a number"},
        {"budget 1e300 $", 1, "out of range"},
        {"budget 1e-400 B$", 1, "out of range"},
        {"budget 0x10 B$", 1, "not a number"},
        {"budget 1e B$", 1, "not a number"},
        {"budget 1,000 B$", 1, "not a number"},
        {"budget 1.2.3 B$", 1, "not a number"},
        {"budget 100 B$\nrack_price 3 M$\nbudget 90 B$", 3, "given in line 1 already"},
        {"compute_share 101 %", 1, "out of range"},
        {"compute_share 0.7", 1, "one of the units %"},
        {"compute_share 0 %", 1, "out of range"},
        {"rack_gpus 72.5", 1, "\"72.5\" is not a whole number"},
        {"rack_gpus 72 GPUs", 1, "not a number alone"},
        {"rack_gpus 72 GPUs or so", 1, "not a number alone"},
        {"rack_gpus 0", 1, "out of range"},
        {"rack_gpus 1e400", 1, "not a number"},
        {"rack_gpus nan", 1, "not a number"},
        {"spares -1", 1, "out of range"},
        {"spares 72", 1, "72 spares of 72 GPUs"},
        {"spares 8\nrack_gpus 8", 2, "8 spares of 8 GPUs"},
        {"rack_gpus 8\nspares 8", 2, "8 spares of 8 GPUs"},
        {"it_power 3 GW\nrack_power 150 kW", 2, "it_power and rack_power"},
        {"rack_power 150 kW\n\nit_power 3 GW", 3, "it_power and rack_power"},
        {"pue_low 1.5", 1, "pue_low 1.5 is above pue_high 1.3"},
        {"pue_low 1.2\npue_high 1.1", 2, "above pue_high"},
        {"pue_low 0.9", 1, "out of range"},
        {"precision 8", 1, "one of the units bit"},
        {"precision 12 bit", 1, "12 bit, where 16, 8 or 4"},
        {"precision 32 bit", 1, "out of range"},
        {"utilisation 150 %", 1, "out of range"},
        {"hbm 0 GB", 1, "out of range"},
        {"sequence 0", 1, "out of range"},
        {"sequence 1.5", 1, "not a whole number"},
        {"wan_delay 65", 1, "us, ms, s"},
        {"wan_delay 65 min", 1, "not a number"},
        {"wan_delay 0 ms", 1, "out of range"},
        {"restart -1 s", 1, "out of range"},
        {"sites 0", 1, "out of range"},
        {"sites 1.5", 1, "not a whole number"},
        {"site_power 0 GW", 1, "out of range"},
        {"stall 0 s", 1, "out of range"},
        {"stall 1 s\nstall 1 s\nstall 1 s\nstall 1 s\nstall 1 s", 5, "stall: there are 4 already"},
        {"model 1T\nmodel 1T\nmodel 1T\nmodel 1T\nmodel 1T\nmodel 1T\nmodel 1T\nmodel 1T\nmodel 1T", 9,
         "there are 8 already"},
        {"model 0 T", 1, "out of range, 1.00e9 to 1.00e17"},
        {"model -50 T", 1, "out of range"},
        {"model 50 t", 1, "not a number"},
        {"model 1e400 T", 1, "not a number"},
        {"layers 242", 1, "below a line \"model\""},
        {"budget 1 B$\nbatch 5", 2, "below a line \"model\""},
        {"model 50 T\nlayers 242\nlayers 243", 3, "given in line 2 already"},
        {"model 50 T\nlayers 0", 2, "out of range"},
        {"model 50 T\nlayers 1e6", 2, "out of range, 1 to 20,000"},
        {"model 50 T\nbatch 0.5", 2, "not a whole number"},
        // of files that can be read, but not planned
        {"\nmodel 50 T\nhidden 131073", 2, "hidden is not a multiple of head x tensor"},
        {"model 50 T\nmodel 50 T\nlayers 242\npipeline 23", 2, "cannot be divided"},
        {"model 50 T\nlayers 242\npipeline 22\nchunks 2", 1, "cannot be divided"},
        {"model 50 T\nlayers 242\npipeline 484", 1, "cannot be divided"},
        {"model 50 T\nlayers 242\npipeline 100", 1, "cannot be divided"},
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

// Files with random damage are read and planned, or refused; nothing else happens.
static void test_damage(int rounds) {
    static char text[16384];
    static DatacenterPlan p;
    FILE* in = fopen(SHIPPED, "r");
    if (!in) die("test_datacenter: %s is not there", SHIPPED);
    const size_t n = fread(text, 1, sizeof text, in);
    fclose(in);
    int planned = 0, refused = 0, wrong = 0;
    for (int round = 0; round < rounds; round++) {
        static char damaged[16384];
        memcpy(damaged, text, n);
        const uint64_t seed = (uint64_t)round;
        const int places = 1 + (int)(random_uniform(seed, 0, 0) * 4);
        for (int i = 0; i < places; i++) {
            static const char letters[] = "0123456789.-eE+#\n MGTB$%snadx";
            const size_t at = (size_t)(random_uniform(seed, 1, (uint64_t)i) * (float)n);
            damaged[at < n ? at : n - 1] =
                letters[(size_t)(random_uniform(seed, 2, (uint64_t)i) * (float)(sizeof letters - 1))];
        }
        Datacenter d;
        Error error;
        const bool ok = read_text(&d, damaged, n, &error) && datacenter_plan(&p, &d, &error);
        planned += ok, refused += !ok;
        if (!ok) wrong += strncmp(error.text, path, strlen(path)) != 0 || strchr(error.text, '\n') != NULL;
        for (int k = 0; ok && k < p.models; k++) {
            for (size_t i = 0; i < sizeof(ModelPlan) / sizeof(Fact); i++) {
                const double value = fact_in(&p.model[k], i * sizeof(Fact)).value;
                wrong += !(value >= 0) || (!isfinite(value) && i * sizeof(Fact) != offsetof(ModelPlan, rack_days));
            }
        }
    }
    check(wrong == 0 && planned > rounds / 5 && refused > rounds / 50,
          "%d damaged files: %d planned, %d refused by name", rounds, planned, refused);
}

int main(int argc, char** argv) {
    process.name = "test_datacenter";
    make_temporary(path, sizeof path, "test_datacenter");
    test_published();
    test_table();
    test_formulas();
    test_properties();
    test_facts();
    test_marks();
    test_follows();
    test_print();
    test_shipped();
    test_refused();
    test_damage(argc > 1 && strcmp(argv[1], "--short") == 0 ? 500 : 3000);
    unlink(path);
    return test_end();
}
