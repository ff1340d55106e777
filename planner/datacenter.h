/*
datacenter.h: a first estimate of a datacenter for one training run. From a budget to racks, GPUs, power and sites; from
a scaling law to a model, its tokens and days; from memory and the pipeline's bubble to mesh and batch; from these the
load of every kind of link, within a rack, within a site and between sites, and the rate of failures.

    datacenter_read, datacenter_default    the inputs: from a file, or the paper's
    datacenter_plan                        the results; datacenter_print.h prints them

Theory: after Gherghescu et al. 2024, "I've got 99 problems but FLOPS ain't one" (HotNets; arXiv 2407.12819),
whose numbers are the defaults.

Only a few numbers are known from that paper: money, racks, GPUs, power, sizes of the models. All else is arithmetic
with inputs that have to be chosen. So every number has a mark:

    confirmed        published
    back-computed    follows from published numbers
    assumed          chosen, or follows from a chosen number

Marks are computed along with the results (provenance.h).

The formulas, for G GPUs of F FLOP/s at utilisation u; a model of L layers, width h, P parameters; sequences of s
tokens, B of them a batch; a mesh of TP x PP x DP, v chunks of the model a stage, micro-batches of b (Narayanan et al.
2021):

    parameters, work       P = 12 L h^2, C = 6 P tokens; 20 tokens a parameter, so C = 120 P^2 (Hoffmann et al. 2022)
    a step                 t = 6 P B s / (G F u); of a micro-batch on a stage: 6 P/(TP PP) b s / (F u)
    bubble                 (PP - 1) / (v m), m = B / (DP b). DP = G / (TP PP), so it is G b / (v B TP): PP cancels, and
                           only a large batch makes it small. At a million GPUs this is the first limit
    memory of a GPU        parameters and gradients 2 + g, Adam's 12 / DP (ZeRO-1) bytes each; 2 s b h / TP a layer and
                           micro-batch in flight, about L of them (full recomputation), 34 s b h / TP for the one being
                           computed
    tensor parallel        4 all-reduces a layer: 8 (TP - 1)/TP s b h x 2 bytes, on the critical path
    pipeline               s b h x 2 / TP bytes a boundary and direction, v of them a stage
    data parallel          2 (DP - 1)/DP of the stage's gradients; between S sites, after a sum within each,
                           2 (S - 1)/S P g bytes a site and direction
    failures               one in (hours of one GPU) / G; a checkpoint every sqrt(2 stall MTBF) (Young 1974) costs
                           stall / interval + interval / (2 MTBF) + restart / MTBF of the time

The planner's own rules, for values that a file does not fix:

    TP     the largest power of two within a rack
    h      the multiple of (head TP) nearest to `aspect` L, where P = 12 L h^2
    L      the most layers that stay within the requested parameters
    PP     the fewest stages, all equal, that fit into memory; v: every layer is a chunk. L is lowered until stages are
           more than half as deep as memory allows, which a prime number of layers would prevent
    B      the multiple of `batch_step` tokens nearest to the batch at which the bubble is `bubble_limit`

These give exactly the shapes, meshes and batches of the worked example in test_datacenter.c, for which the step of
batches is chosen. The nearest multiple may be too small: then the bubble is printed as above its limit.

A file has one input a line, "name value [unit] [mark]"; # begins a comment; the default mark is assumed; missing inputs
are the paper's (clusters/next-generation.txt shows them all). "model" may occur several times; layers, hidden, tensor,
pipeline, chunks and batch after one override the rules for it. "stall" may occur several times, too.
*/
#ifndef DATACENTER_H
#define DATACENTER_H

#include "provenance.h"

#include <stddef.h>

// ----------------------------------------------------------------------------------------------------------------
// Inputs

enum { DATACENTER_MODELS = 8, DATACENTER_STALLS = 4, DATACENTER_LAYERS = 20000 };

typedef struct {
    int line; // of a file
    Fact parameters;
    Fact layers, hidden, tensor, pipeline, chunks, batch; // 0: by the rules above
} ModelWish;

typedef struct {
    char name[256]; // of the file, for errors
    Fact budget, compute_share, rack_price, rack_gpus, spares;
    Fact it_power, rack_power, rack_rating, pue_low, pue_high; // it_power 0: racks x rack_power
    Fact sites, site_power;                                    // 0: from the other one; both 0: the paper's two coasts
    Fact peak_bf16, peak_fp8, peak_fp4, precision, utilisation, hbm, scale_up, nic;
    Fact wan_delay, fibre_pair;
    Fact sequence, micro_batch, head, aspect, tokens_per_parameter, gradient_bytes;
    Fact bubble_limit, batch_step, days_limit;
    Fact failures, failure_gpus, failure_days, checkpoint_bytes, restart;
    Fact stall[DATACENTER_STALLS];
    ModelWish model[DATACENTER_MODELS];
    int stalls, models;
} Datacenter;

typedef struct {
    const char* name;
    size_t at; // offset of the Fact in a Datacenter; for a model's, in a ModelWish
    Quantity quantity;
    bool whole;
    double low, high; // both ends included
    Fact fact;        // the default; 0: by rule, and its mark is ignored
    const char* source;
} Input;

#define IN(name) #name, offsetof(Datacenter, name)
static const Input datacenter_inputs[] = {
    {IN(budget), MONEY, false, 1, 1e15, {100e9, CONFIRMED}, "abstract v1: plans for a $100B datacenter"},
    {IN(compute_share), PERCENT, false, 1e-6, 1, {0.7, CONFIRMED}, "overview v2: of the budget, for compute"},
    {IN(rack_price), MONEY, false, 1, 1e12, {3e6, BACK_COMPUTED}, "what 23,300 racks for $70B cost each"},
    {IN(rack_gpus), NUMBER, true, 1, 1e5, {72, CONFIRMED}, "an NVL72; one scale-up domain"},
    {IN(spares), NUMBER, true, 0, 1e5, {0, ASSUMED}, "GPUs of a rack that wait for another one to fail"},
    {IN(it_power), POWER, false, 1, 1e15, {0, CONFIRMED}, "of all racks, network and storage; or rack_power"},
    {IN(rack_power), POWER, false, 1, 1e9, {3.62e9 / 23300, BACK_COMPUTED}, "3.62 GW / 23,300, see it_power"},
    {IN(rack_rating), POWER, false, 1, 1e9, {120e3, CONFIRMED}, "an NVL72's own, public figure"},
    {IN(pue_low), NUMBER, false, 1, 10, {1.15, BACK_COMPUTED}, "4.16 / 3.62 GW; power / IT power"},
    {IN(pue_high), NUMBER, false, 1, 10, {1.30, BACK_COMPUTED}, "4.71 / 3.62 GW"},
    {IN(sites), NUMBER, true, 1, 1000, {0, CONFIRMED}, "overview v2: an east and a west coast"},
    {IN(site_power), POWER, false, 1, 1e15, {0, CONFIRMED}, "that a place can supply; none said"},
    {IN(peak_bf16), FLOPS, false, 1e9, 1e21, {2.5e15, ASSUMED}, "of a GPU, dense"},
    {IN(peak_fp8), FLOPS, false, 1e9, 1e21, {5e15, ASSUMED}, "of a GPU, dense; an NVL72's 720 P are sparse"},
    {IN(peak_fp4), FLOPS, false, 1e9, 1e21, {10e15, ASSUMED}, "of a GPU, dense"},
    {IN(precision), BITS, true, 4, 16, {8, ASSUMED}, "of the plan's products: 16, 8 or 4"},
    {IN(utilisation), PERCENT, false, 1e-6, 1, {0.4, ASSUMED}, "of the peak, by 6 P FLOP a token"},
    {IN(hbm), BYTES, false, 1e9, 1e15, {192e9, ASSUMED}, "memory of a GPU"},
    {IN(scale_up), BYTE_RATE, false, 1e6, 1e15, {900e9, ASSUMED}, "of a GPU within its rack, each way"},
    {IN(nic), BIT_RATE, false, 1e6, 1e15, {800e9, ASSUMED}, "of a GPU beyond its rack"},
    {IN(wan_delay), SECONDS, false, 1e-6, 10, {0.065, ASSUMED}, "round trip between coasts"},
    {IN(fibre_pair), BIT_RATE, false, 1e6, 1e18, {30e12, ASSUMED}, "what a pair carries each way"},
    {IN(sequence), NUMBER, true, 1, 1e8, {8192, ASSUMED}, "tokens"},
    {IN(micro_batch), NUMBER, true, 1, 1e6, {1, ASSUMED}, "sequences"},
    {IN(head), NUMBER, true, 1, 1e5, {128, ASSUMED}, "channels of a head"},
    {IN(aspect), NUMBER, false, 1, 1e5, {512, ASSUMED}, "width / layers, about"},
    {IN(tokens_per_parameter), NUMBER, false, 1e-3, 1e6, {20, ASSUMED}, "Hoffmann et al. 2022; the paper's is unknown"},
    {IN(gradient_bytes), BYTES, true, 1, 8, {2, ASSUMED}, "bf16; 4: fp32"},
    {IN(bubble_limit), PERCENT, false, 1e-6, 1, {0.1, ASSUMED}, "idle / work"},
    {IN(batch_step), NUMBER, true, 1, 1e12, {67108864, ASSUMED}, "tokens; batches are multiples of it"},
    {IN(days_limit), DAYS, false, 1e-3, 1e5, {180, ASSUMED}, "for the training"},
    {IN(failures), NUMBER, true, 1, 1e9, {419, CONFIRMED}, "Llama 3's unexpected stops (datacenterdynamics)"},
    {IN(failure_gpus), NUMBER, true, 1, 1e9, {16384, CONFIRMED}, "on this number of H100"},
    {IN(failure_days), DAYS, false, 1e-3, 1e6, {54, CONFIRMED}, "in this number of days"},
    {IN(checkpoint_bytes), BYTES, false, 1, 1e3, {14, ASSUMED}, "a parameter: bf16, and Adam's 12"},
    {IN(restart), SECONDS, false, 0, 1e6, {0, ASSUMED}, "of the training after a failure"},
};
#undef IN
enum { DATACENTER_INPUTS = sizeof datacenter_inputs / sizeof datacenter_inputs[0] };

static const Input stall_input = {"stall", 0,   SECONDS,      false,
                                  1e-6,    1e6, {1, ASSUMED}, "of the training, for a checkpoint"};

#define IN(name) #name, offsetof(ModelWish, name)
static const Input model_inputs[] = {
    {"model",
     offsetof(ModelWish, parameters),
     PARAMETERS,
     true,
     1e9,
     1e17,
     {50e12, CONFIRMED},
     "abstract v1: 50T, 100T"},
    {IN(layers), NUMBER, true, 1, DATACENTER_LAYERS, {0, CONFIRMED}, "L"},
    {IN(hidden), NUMBER, true, 1, 1e8, {0, CONFIRMED}, "h"},
    {IN(tensor), NUMBER, true, 1, 1e5, {0, CONFIRMED}, "TP"},
    {IN(pipeline), NUMBER, true, 1, DATACENTER_LAYERS, {0, CONFIRMED}, "PP"},
    {IN(chunks), NUMBER, true, 1, DATACENTER_LAYERS, {0, CONFIRMED}, "v"},
    {IN(batch), NUMBER, true, 1, 1e12, {0, CONFIRMED}, "B, sequences"},
};
#undef IN
enum { MODEL_INPUTS = sizeof model_inputs / sizeof model_inputs[0] };

static inline Fact* fact_at(void* base, size_t at) { return (Fact*)(void*)((char*)base + at); }
static inline Fact fact_in(const void* base, size_t at) { return *(const Fact*)(const void*)((const char*)base + at); }

static inline void datacenter_add_model(Datacenter* d, Fact parameters, int line) {
    ModelWish* m = &d->model[d->models++];
    memset(m, 0, sizeof *m);
    for (int i = 0; i < MODEL_INPUTS; i++) *fact_at(m, model_inputs[i].at) = model_inputs[i].fact;
    m->parameters = parameters;
    m->line = line;
}

// The default inputs, without models and stalls.
static inline Datacenter datacenter_empty(const char* name) {
    Datacenter d;
    memset(&d, 0, sizeof d);
    snprintf(d.name, sizeof d.name, "%s", name);
    for (int i = 0; i < DATACENTER_INPUTS; i++) *fact_at(&d, datacenter_inputs[i].at) = datacenter_inputs[i].fact;
    return d;
}

// Adds default models and stalls if there are none: the paper's two models, and stalls of 1, 5 and 30 seconds.
static inline void datacenter_complete(Datacenter* d) {
    if (d->models == 0) {
        datacenter_add_model(d, fact(50e12, CONFIRMED), 0);
        datacenter_add_model(d, fact(100e12, CONFIRMED), 0);
    }
    if (d->stalls == 0) {
        d->stall[0] = fact(1, ASSUMED);
        d->stall[1] = fact(5, ASSUMED);
        d->stall[2] = fact(30, ASSUMED);
        d->stalls = 3;
    }
}

static inline Datacenter datacenter_default(void) {
    Datacenter d = datacenter_empty("the paper's datacenter");
    datacenter_complete(&d);
    return d;
}

// ----------------------------------------------------------------------------------------------------------------
// Read

static inline const Input* input_find(const Input* inputs, int n, const char* name) {
    for (int i = 0; i < n; i++) {
        if (strcmp(inputs[i].name, name) == 0) return &inputs[i];
    }
    return NULL;
}

static inline bool input_unknown(const char* name, Error* error) {
    char names[900] = "stall";
    for (int i = 0; i < MODEL_INPUTS + DATACENTER_INPUTS; i++) {
        const Input* in = i < MODEL_INPUTS ? &model_inputs[i] : &datacenter_inputs[i - MODEL_INPUTS];
        snprintf(names + strlen(names), sizeof names - strlen(names), " %s", in->name);
    }
    return fail(error, "\"%.40s\" is none of: %s", name, names);
}

// The words after a name: a value, optionally a unit and a mark.
static inline bool input_value(const Input* in, char** words, int n, Fact* f, Error* error) {
    f->mark = ASSUMED;
    for (int i = 0; i < MARKS; i++) {
        if (n > 1 && strcmp(words[n - 1], mark_names[i]) == 0) {
            f->mark = (Mark)i;
            n--;
            break;
        }
    }
    return value_read(in->name, words, n, in->quantity, in->whole, in->low, in->high, &f->value, error);
}

// A datacenter that is being read, and the line in which each input was given; 0: none yet.
typedef struct {
    Datacenter* d;
    int inputs[DATACENTER_INPUTS];
    int model[MODEL_INPUTS]; // of the current model
} InputLines;

static inline int input_line(const InputLines* lines, const char* name) {
    return lines->inputs[input_find(datacenter_inputs, DATACENTER_INPUTS, name) - datacenter_inputs];
}

// LineReader of provenance.h; context: InputLines.
static inline bool datacenter_read_line(void* context, int line, char** words, int n, Error* error) {
    InputLines* lines = (InputLines*)context;
    Datacenter* d = lines->d;
    const Input* in = input_find(datacenter_inputs, DATACENTER_INPUTS, words[0]);
    const Input* of_model = input_find(model_inputs, MODEL_INPUTS, words[0]);
    const bool stall = strcmp(words[0], stall_input.name) == 0, model = of_model == model_inputs;
    if (!in && !of_model && !stall) return input_unknown(words[0], error);
    Fact f;
    const Input* what = of_model ? of_model : &stall_input;
    if (!input_value(in ? in : what, words + 1, n - 1, &f, error)) return false;
    if (stall || model) {
        const int most = stall ? DATACENTER_STALLS : DATACENTER_MODELS;
        if ((stall ? d->stalls : d->models) == most)
            return fail(error, "%s: there are %d already, and no room for more", words[0], most);
        if (stall) {
            d->stall[d->stalls++] = f;
        } else {
            datacenter_add_model(d, f, line);
            memset(lines->model, 0, sizeof lines->model);
        }
        return true;
    }
    if (of_model && d->models == 0)
        return fail(error, "%s: belongs to a model, and has to come below a line \"model\"", words[0]);
    int* given = in ? &lines->inputs[in - datacenter_inputs] : &lines->model[of_model - model_inputs];
    if (*given) return fail(error, "%s: given in line %d already", words[0], *given);
    *given = line;
    if (in)
        *fact_at(d, in->at) = f;
    else
        *fact_at(&d->model[d->models - 1], of_model->at) = f;
    return true;
}

// Refuses contradictions. Of two lines the error names the later one.
static inline bool datacenter_consistent(const Datacenter* d, const InputLines* lines, Error* error) {
    const int it = input_line(lines, "it_power"), rack = input_line(lines, "rack_power");
    if (it && rack)
        return fail(error, "%s:%d: it_power and rack_power follow from each other; drop one", d->name,
                    it > rack ? it : rack);
    const int low = input_line(lines, "pue_low"), high = input_line(lines, "pue_high");
    if (d->pue_low.value > d->pue_high.value)
        return fail(error, "%s:%d: pue_low %g is above pue_high %g", d->name, low > high ? low : high, d->pue_low.value,
                    d->pue_high.value);
    const int spares = input_line(lines, "spares"), gpus = input_line(lines, "rack_gpus");
    if (d->spares.value >= d->rack_gpus.value)
        return fail(error, "%s:%d: %g spares of %g GPUs leave none to work", d->name, spares > gpus ? spares : gpus,
                    d->spares.value, d->rack_gpus.value);
    const double bits = d->precision.value;
    if (bits != 16 && bits != 8 && bits != 4)
        return fail(error, "%s:%d: precision: %g bit, where 16, 8 or 4 are known", d->name,
                    input_line(lines, "precision"), bits);
    return true;
}

static inline bool datacenter_read(Datacenter* d, const char* path, Error* error) {
    InputLines lines;
    *d = datacenter_empty(path);
    memset(&lines, 0, sizeof lines);
    lines.d = d;
    if (!lines_read(path, datacenter_read_line, &lines, error)) return false;
    if (!datacenter_consistent(d, &lines, error)) return false;
    datacenter_complete(d);
    return true;
}

// ----------------------------------------------------------------------------------------------------------------
// Outputs

typedef struct {
    // shape and work
    Fact asked, parameters, layers, hidden, heads, tokens, flops, loss, law_parameters, law_ratio, law_loss;
    // time
    Fact days_fp4, days_fp8, days_bf16, days, days_limit, tokens_in_time, ratio_in_time, ratio, peak_needed, peak;
    Fact parameters_in_time;
    // mesh and batch
    Fact tensor, pipeline, chunks, data, used, rack_data, rack_days;
    Fact wall, batch, batch_tokens, micro_batches, one, bubble, bubble_limit, step, step_with_bubble;
    // memory of a GPU
    Fact of_parameters, of_gradients, of_optimizer, state, of_activations, of_recomputed, memory, hbm;
    // links
    Fact micro_step, tp_bytes, tp_rate, tp_rate_recomputed, tp_share, scale_up, pp_bytes, pp_rate, nic, dp_bytes,
        dp_rate, dp_burst;
    Fact wan_bytes, wan_rate, wan_burst, fibre_pairs, in_flight, delay_step, delay_micro;
    // checkpoints
    Fact checkpoint, checkpoint_gpu;
} ModelPlan;

typedef struct {
    Fact compute, affordable, racks, gpus, working;
    Fact it_power, rack_power, gpu_power, beside_racks, power_low, power_high;
    Fact sites, site_gpus, site_it, site_low, site_high, site_power;
    Fact failure_hours, mtbf, stall[DATACENTER_STALLS], interval[DATACENTER_STALLS], overhead[DATACENTER_STALLS];
    ModelPlan model[DATACENTER_MODELS];
    int stalls, models;
} DatacenterPlan;

// ----------------------------------------------------------------------------------------------------------------
// From money to sites

// Rounds down, except where a quotient is below a whole number only by rounding.
static inline double whole_below(double x) { return floor(x * (1 + 1e-12)); }

// Rounds down to three digits, as the paper does: 23,333 to 23,300.
static inline double three_digits_below(double x) {
    double step = 1;
    while (x / step >= 1000) step *= 10;
    return floor(x / step) * step;
}

static inline void plan_racks(DatacenterPlan* p, const Datacenter* d) {
    Mark w = BACK_COMPUTED;
    p->compute = result(&w, use(&w, d->budget) * use(&w, d->compute_share));
    p->affordable = result(&w, whole_below(use(&w, p->compute) / use(&w, d->rack_price)));
    p->racks = fact_published(result(&w, three_digits_below(use(&w, p->affordable))), 23300, 0);
    p->gpus = fact_published(result(&w, use(&w, p->racks) * use(&w, d->rack_gpus)), 1.67e6, 1e4);
    p->working = result(&w, use(&w, p->racks) * (use(&w, d->rack_gpus) - use(&w, d->spares)));
}

static inline void plan_power(DatacenterPlan* p, const Datacenter* d) {
    Mark w = BACK_COMPUTED;
    p->it_power = d->it_power;
    if (d->it_power.value == 0) p->it_power = result(&w, use(&w, p->racks) * use(&w, d->rack_power));
    p->rack_power = result(&w, use(&w, p->it_power) / use(&w, p->racks));
    p->gpu_power = result(&w, use(&w, p->it_power) / use(&w, p->gpus));
    p->beside_racks = result(&w, use(&w, p->it_power) - use(&w, p->racks) * use(&w, d->rack_rating));
    p->power_low = fact_published(result(&w, use(&w, p->it_power) * use(&w, d->pue_low)), 4.16e9, 0.005e9);
    p->power_high = fact_published(result(&w, use(&w, p->it_power) * use(&w, d->pue_high)), 4.71e9, 0.005e9);
}

// The fewest sites that can supply the peak power. Equal parts are our assumption, whatever the inputs are.
static inline void plan_sites(DatacenterPlan* p, const Datacenter* d) {
    Mark w = BACK_COMPUTED;
    const Fact equal = fact(1, ASSUMED);
    p->site_power = d->site_power;
    p->sites = d->sites.value > 0 ? d->sites : fact(2, CONFIRMED);
    if (d->sites.value == 0 && d->site_power.value > 0)
        p->sites = result(&w, ceil(use(&w, p->power_high) / use(&w, d->site_power)));
    p->site_gpus = result(&w, use(&w, equal) * use(&w, p->gpus) / use(&w, p->sites));
    p->site_it = result(&w, use(&w, equal) * use(&w, p->it_power) / use(&w, p->sites));
    p->site_low = result(&w, use(&w, equal) * use(&w, p->power_low) / use(&w, p->sites));
    p->site_high = result(&w, use(&w, equal) * use(&w, p->power_high) / use(&w, p->sites));
}

// The first-order formula; valid while the interval is well below the time between failures.
static inline void plan_failures(DatacenterPlan* p, const Datacenter* d) {
    Mark w = BACK_COMPUTED;
    p->failure_hours = result(&w, use(&w, d->failure_gpus) * use(&w, d->failure_days) * 24 / use(&w, d->failures));
    p->mtbf = result(&w, use(&w, p->failure_hours) * 3600 / use(&w, p->gpus));
    p->stalls = d->stalls;
    for (int i = 0; i < d->stalls; i++) {
        p->stall[i] = d->stall[i];
        p->interval[i] = result(&w, sqrt(2 * use(&w, d->stall[i]) * use(&w, p->mtbf)));
        const double interval = use(&w, p->interval[i]), mtbf = use(&w, p->mtbf);
        p->overhead[i] =
            result(&w, use(&w, d->stall[i]) / interval + interval / (2 * mtbf) + use(&w, d->restart) / mtbf);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// A model: shape and mesh

// The quantities that limit the layers of a stage.
typedef struct {
    double hidden, tensor, gpus, hbm, sequence, micro_batch, gradient_bytes;
} Room;

typedef struct {
    double parameters, gradients, optimizer, activations, recomputed; // bytes of a GPU
} Memory;

// A stage of `deep` layers of the model's L.
static inline Memory room_memory(const Room* r, double L, double deep) {
    const double data = floor(r->gpus / (r->tensor * ceil(L / deep)));
    const double n = 12 * r->hidden * r->hidden * deep / r->tensor;
    const double rows = r->sequence * r->micro_batch * r->hidden / r->tensor;
    const Memory m = {2 * n, r->gradient_bytes * n, 12 * n / data, 2 * rows * L, 34 * rows};
    return m;
}

static inline double memory_sum(const Memory* m) {
    return m->parameters + m->gradients + m->optimizer + m->activations + m->recomputed;
}

static inline bool room_fits(const Room* r, double L, double deep) {
    const Memory m = room_memory(r, L, deep);
    return r->gpus >= r->tensor * ceil(L / deep) && memory_sum(&m) <= r->hbm;
}

// The deepest stage that fits, with equal stages of `chunks` chunks (0: a chunk per layer); 0: none does.
static inline int room_deepest(const Room* r, int L, int chunks, bool equal) {
    for (int deep = L; deep > 0; deep--) {
        if (equal && (L % deep || (chunks && deep % chunks))) continue;
        if (room_fits(r, L, deep)) return deep;
    }
    return 0;
}

// Layers of the model and of a stage, by the rules at the top. 0 layers of a stage: nothing fits.
static inline int room_layers(const Room* r, int L, bool fixed, int chunks, int* deep) {
    for (int layers = L; layers > 0; layers--) {
        const int all = room_deepest(r, layers, chunks, false);
        *deep = room_deepest(r, layers, chunks, true);
        if (fixed || all == 0 || chunks > all || 2 * *deep > all) return layers;
    }
    *deep = 0;
    return L;
}

static inline double power_of_two_below(double x) {
    double power = 1;
    while (2 * power <= x) power *= 2;
    return power;
}

static inline bool model_fail(const Datacenter* d, const ModelWish* wish, Error* error, const char* what) {
    char line[16] = "";
    if (wish->line) snprintf(line, sizeof line, "%d: ", wish->line);
    return fail(error, "%s:%s%smodel of %g T: %s", d->name, *line ? "" : " ", line, wish->parameters.value / 1e12,
                what);
}

// TP, h, heads.
static inline bool plan_width(ModelPlan* m, const Datacenter* d, const ModelWish* wish, Error* error) {
    Mark w = BACK_COMPUTED;
    m->asked = wish->parameters;
    m->tensor = wish->tensor;
    if (wish->tensor.value == 0) m->tensor = result(&w, power_of_two_below(use(&w, d->rack_gpus) - use(&w, d->spares)));
    const double unit = use(&w, d->head) * use(&w, m->tensor), h = cbrt(use(&w, d->aspect) * use(&w, m->asked) / 12);
    m->hidden = result(&w, fmax(1, floor(h / unit + 0.5)) * unit);
    if (wish->hidden.value > 0) m->hidden = wish->hidden;
    if (fmod(m->hidden.value, unit) != 0)
        return model_fail(d, wish, error, "hidden is not a multiple of head x tensor");
    m->heads = result(&w, use(&w, m->hidden) / use(&w, d->head));
    return true;
}

static inline Room room_of(Mark* w, const ModelPlan* m, const Datacenter* d, const DatacenterPlan* p) {
    const Room r = {use(w, m->hidden),   use(w, m->tensor),      use(w, p->working),       use(w, d->hbm),
                    use(w, d->sequence), use(w, d->micro_batch), use(w, d->gradient_bytes)};
    return r;
}

// L, PP, v. Values not given follow from memory, so their marks follow all inputs of the memory.
static inline bool plan_depth(ModelPlan* m, const Datacenter* d, const DatacenterPlan* p, const ModelWish* wish,
                              Error* error) {
    Mark w = BACK_COMPUTED;
    const Room room = room_of(&w, m, d, p);
    const double by_size = floor(use(&w, m->asked) / (12 * room.hidden * room.hidden)), said = use(&w, wish->layers);
    const double most = said > 0 ? said : fmax(1, by_size);
    if (most > DATACENTER_LAYERS) return model_fail(d, wish, error, "it has more than 20,000 layers: say hidden");
    int L = (int)most, deep = 0;
    const int chunks = (int)use(&w, wish->chunks), stages = (int)use(&w, wish->pipeline);
    if (stages > 0)
        deep = L % stages == 0 ? L / stages : 0;
    else
        L = room_layers(&room, L, said > 0, chunks, &deep);
    if (stages == 0 && deep == 0) deep = chunks ? chunks : 1; // too large: still planned, and reported
    if (deep == 0 || L % deep || (chunks && deep % chunks))
        return model_fail(d, wish, error, "its layers cannot be divided into pipeline x chunks equal parts");
    const Fact layers = fact(L, w), pipeline = fact(L / deep, w), cut = fact(deep, w);
    m->layers = said > 0 ? wish->layers : layers;
    m->pipeline = stages ? wish->pipeline : pipeline;
    m->chunks = chunks ? wish->chunks : cut;
    return true;
}

static inline bool plan_mesh(ModelPlan* m, const Datacenter* d, const DatacenterPlan* p, const ModelWish* wish,
                             Error* error) {
    Mark w = BACK_COMPUTED;
    const double tensor = m->tensor.value, in_rack = floor((d->rack_gpus.value - d->spares.value) / tensor) * tensor;
    m->data = result(&w, floor(use(&w, p->working) / (use(&w, m->tensor) * use(&w, m->pipeline))));
    if (m->data.value < 1) return model_fail(d, wish, error, "tensor x pipeline needs more GPUs than there are");
    m->used = result(&w, use(&w, m->data) * use(&w, m->tensor) * use(&w, m->pipeline));
    use(&w, d->rack_gpus), use(&w, d->spares);
    m->rack_data = result(&w, floor(use(&w, p->racks) * in_rack / (use(&w, m->tensor) * use(&w, m->pipeline))));
    m->parameters = result(&w, 12 * use(&w, m->layers) * use(&w, m->hidden) * use(&w, m->hidden));
    return true;
}

// ----------------------------------------------------------------------------------------------------------------
// A model: work and time

// Hoffmann et al. 2022, equation (10): loss = 1.69 + 406.4 / P^0.34 + 410.7 / D^0.28. Least, for 6 P D = C, at
// P = g (C/6)^(0.28/0.62), g = (0.34 x 406.4 / (0.28 x 410.7))^(1/0.62).
static inline double law_loss(double P, double D) { return 1.69 + 406.4 / pow(P, 0.34) + 410.7 / pow(D, 0.28); }
static inline double law_best_parameters(double C) {
    const double g = pow(0.34 * 406.4 / (0.28 * 410.7), 1 / 0.62);
    return g * pow(C / 6, 0.28 / 0.62);
}

static inline void plan_work(ModelPlan* m, const Datacenter* d) {
    Mark w = BACK_COMPUTED;
    m->tokens = result(&w, use(&w, d->tokens_per_parameter) * use(&w, m->asked));
    m->flops = result(&w, 6 * use(&w, m->parameters) * use(&w, m->tokens));
    m->loss = result(&w, law_loss(use(&w, m->parameters), use(&w, m->tokens)));
    m->law_parameters = result(&w, law_best_parameters(use(&w, m->flops)));
    const double best = use(&w, m->law_parameters), tokens = use(&w, m->flops) / (6 * best);
    const Mark all = w;
    m->law_ratio = fact(tokens / best, all);
    m->law_loss = fact(law_loss(best, tokens), all);
}

// FLOP per day of all working GPUs.
static inline double flops_of_day(Mark* w, Fact gpus, Fact peak, Fact utilisation) {
    return use(w, gpus) * use(w, peak) * use(w, utilisation) * 86400;
}

// Days, tokens and precision: any two determine the third. Each result is stored with its limit.
static inline void plan_time(ModelPlan* m, const Datacenter* d) {
    Mark w = BACK_COMPUTED;
    const double bits = use(&w, d->precision);
    const Fact low = bits == 8 ? d->peak_fp8 : d->peak_fp4;
    m->peak = result(&w, use(&w, bits == 16 ? d->peak_bf16 : low));
    m->days_fp4 = result(&w, use(&w, m->flops) / flops_of_day(&w, m->used, d->peak_fp4, d->utilisation));
    m->days_fp8 = result(&w, use(&w, m->flops) / flops_of_day(&w, m->used, d->peak_fp8, d->utilisation));
    m->days_bf16 = result(&w, use(&w, m->flops) / flops_of_day(&w, m->used, d->peak_bf16, d->utilisation));
    m->days = result(&w, use(&w, m->flops) / flops_of_day(&w, m->used, m->peak, d->utilisation));
    m->days_limit = d->days_limit;
    m->ratio = d->tokens_per_parameter;
    const double in_time = use(&w, d->days_limit) * flops_of_day(&w, m->used, m->peak, d->utilisation);
    const Mark all = w;
    m->parameters_in_time = result(&w, sqrt(in_time / (6 * use(&w, d->tokens_per_parameter))));
    w = all;
    m->tokens_in_time = result(&w, in_time / (6 * use(&w, m->parameters)));
    m->ratio_in_time = result(&w, use(&w, m->tokens_in_time) / use(&w, m->asked));
    m->peak_needed = result(&w, use(&w, m->peak) * use(&w, m->days) / use(&w, d->days_limit));
    const Fact in_racks = fact(m->rack_data.value * m->tensor.value * m->pipeline.value, m->rack_data.mark);
    m->rack_days = result(&w, use(&w, m->flops) / flops_of_day(&w, in_racks, m->peak, d->utilisation));
    if (in_racks.value == 0) m->rack_days.value = INFINITY;
}

// ----------------------------------------------------------------------------------------------------------------
// A model: batch, memory, links

static inline void plan_batch(ModelPlan* m, const Datacenter* d, const ModelWish* wish) {
    Mark w = BACK_COMPUTED;
    const double idle = use(&w, m->pipeline) > 1; // no pipeline, no bubble
    m->wall = result(&w, idle * use(&w, m->used) * use(&w, d->micro_batch) /
                             (use(&w, d->bubble_limit) * use(&w, m->chunks) * use(&w, m->tensor)));
    const double step = fmax(1, floor(use(&w, d->batch_step) / use(&w, d->sequence)));
    const double least = use(&w, m->data) * use(&w, d->micro_batch); // one micro-batch per replica
    const double near = floor(use(&w, m->wall) / step + 0.5) * step;
    m->batch = result(&w, near >= least ? near : ceil(least / step) * step);
    if (wish->batch.value > 0) m->batch = wish->batch;
    m->batch_tokens = result(&w, use(&w, m->batch) * use(&w, d->sequence));
    m->micro_batches = result(&w, use(&w, m->batch) / (use(&w, m->data) * use(&w, d->micro_batch)));
    m->one = fact(1, CONFIRMED);
    m->bubble = result(&w, (use(&w, m->pipeline) - 1) / (use(&w, m->chunks) * use(&w, m->micro_batches)));
    m->bubble_limit = d->bubble_limit;
    m->step = result(&w, 6 * use(&w, m->parameters) * use(&w, m->batch_tokens) /
                             (use(&w, m->used) * use(&w, m->peak) * use(&w, d->utilisation)));
    m->step_with_bubble = result(&w, use(&w, m->step) * (1 + use(&w, m->bubble)));
}

static inline void plan_model_memory(ModelPlan* m, const Datacenter* d, const DatacenterPlan* p) {
    Mark w = BACK_COMPUTED;
    const Room room = room_of(&w, m, d, p);
    const double L = use(&w, m->layers);
    const Memory memory = room_memory(&room, L, L / use(&w, m->pipeline));
    const Mark all = w;
    m->of_parameters = fact(memory.parameters, all);
    m->of_gradients = fact(memory.gradients, all);
    m->of_optimizer = fact(memory.optimizer, all);
    m->state = fact(memory.parameters + memory.gradients + memory.optimizer, all);
    m->of_activations = fact(memory.activations, all);
    m->of_recomputed = fact(memory.recomputed, all);
    m->memory = fact(memory_sum(&memory), all);
    m->hbm = d->hbm;
}

// 2 (n - 1)/n: the part of the vector that each of n ranks sends in an all-reduce.
static inline double all_reduce_share(double n) { return 2 * (n - 1) / n; }

static inline void plan_links(ModelPlan* m, const Datacenter* d) {
    Mark w = BACK_COMPUTED;
    const Fact rows = result(&w, use(&w, d->sequence) * use(&w, d->micro_batch) * use(&w, m->hidden) * 2); // s b h x 2
    const Fact stage = result(&w, use(&w, m->parameters) / (use(&w, m->tensor) * use(&w, m->pipeline)));
    const Fact deep = result(&w, use(&w, m->layers) / use(&w, m->pipeline));
    m->micro_step = result(&w, 6 * use(&w, stage) * use(&w, d->sequence) * use(&w, d->micro_batch) /
                                   (use(&w, m->peak) * use(&w, d->utilisation)));
    m->tp_bytes = result(&w, 4 * all_reduce_share(use(&w, m->tensor)) * use(&w, rows) * use(&w, deep));
    m->tp_rate = result(&w, use(&w, m->tp_bytes) / use(&w, m->micro_step));
    m->tp_rate_recomputed = result(&w, 1.5 * use(&w, m->tp_rate)); // 6 all-reduces
    m->tp_share = result(&w, use(&w, m->tp_rate) / use(&w, d->scale_up));
    m->scale_up = d->scale_up;
    const double boundaries = use(&w, m->pipeline) > 1 ? use(&w, m->chunks) : 0;
    m->pp_bytes = result(&w, 2 * boundaries * use(&w, rows) / use(&w, m->tensor));
    m->pp_rate = result(&w, use(&w, m->pp_bytes) * 8 / use(&w, m->micro_step));
    m->nic = d->nic;
    m->dp_bytes = result(&w, all_reduce_share(use(&w, m->data)) * use(&w, stage) * use(&w, d->gradient_bytes));
    m->dp_rate = result(&w, use(&w, m->dp_bytes) * 8 / use(&w, m->step));
    m->dp_burst = result(&w, use(&w, m->dp_bytes) * 8 / use(&w, d->nic));
}

static inline void plan_wan(ModelPlan* m, const Datacenter* d, const DatacenterPlan* p) {
    Mark w = BACK_COMPUTED;
    m->wan_bytes =
        result(&w, all_reduce_share(use(&w, p->sites)) * use(&w, m->parameters) * use(&w, d->gradient_bytes));
    m->wan_rate = result(&w, use(&w, m->wan_bytes) * 8 / use(&w, m->step));
    m->wan_burst = result(&w, use(&w, m->wan_bytes) * 8);
    m->fibre_pairs = result(&w, ceil(use(&w, m->wan_rate) / use(&w, d->fibre_pair)));
    m->in_flight = result(&w, use(&w, m->wan_rate) * use(&w, d->wan_delay) / 8);
    const double apart = use(&w, p->sites) > 1;
    m->delay_step = result(&w, apart * use(&w, d->wan_delay) / use(&w, m->step));
    use(&w, p->sites);
    m->delay_micro = result(&w, apart * use(&w, d->wan_delay) / use(&w, m->micro_step));
    m->checkpoint = result(&w, use(&w, d->checkpoint_bytes) * use(&w, m->parameters));
    m->checkpoint_gpu = result(&w, use(&w, m->checkpoint) / use(&w, m->used));
}

// Computes everything above. False where a model and a mesh are incompatible, or no rack is affordable.
static inline bool datacenter_plan(DatacenterPlan* p, const Datacenter* d, Error* error) {
    memset(p, 0, sizeof *p);
    plan_racks(p, d);
    if (p->racks.value < 1) return fail(error, "%s: the money does not buy one rack", d->name);
    if (p->gpus.value > 1e12) return fail(error, "%s: the money buys more than 10^12 GPUs", d->name);
    plan_power(p, d);
    plan_sites(p, d);
    plan_failures(p, d);
    p->models = d->models;
    for (int i = 0; i < d->models; i++) {
        ModelPlan* m = &p->model[i];
        const ModelWish* wish = &d->model[i];
        if (!plan_width(m, d, wish, error) || !plan_depth(m, d, p, wish, error) || !plan_mesh(m, d, p, wish, error))
            return false;
        plan_work(m, d);
        plan_time(m, d);
        plan_batch(m, d, &d->model[i]);
        plan_model_memory(m, d, p);
        plan_links(m, d);
        plan_wan(m, d, p);
    }
    return true;
}

#endif
