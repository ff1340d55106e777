/*
datacenter.h: a datacenter for one training run, from money to the largest model. Money becomes racks, power and sites;
a model of a size is then a question to search.h, whose mesh, memory and step over these sites are the answer.

    datacenter_read, datacenter_default    the inputs: from a file, or the paper's
    datacenter_plan                        racks, power, sites, failures, the cluster, the shapes of the models
    datacenter_question                    a model's question, as ./plan has it
    datacenter_search                      asks it for each model, and for sizes between which the largest one lies
    datacenter_largest                     the largest model of a number of days, by a scaling law

Theory: after Gherghescu et al. 2024, "I've got 99 problems but FLOPS ain't one" (HotNets; arXiv 2407.12819), whose
numbers are the defaults. Few are known: money, racks, GPUs, power, sizes of the models. All else is arithmetic with
inputs that have to be chosen, so every number has a mark (provenance.h). What the step simulation computes is
assumed, as nothing validates it on such machines.

    sites        one place supplies at most `site_plants` times the mean output of the largest US plant (in TWh)
    GPUs         in each site the largest number 2^a 3^b 5^c of racks, which a mesh can divide; a rack is a node
    shape        P = 12 L h^2; h a multiple of (head x GPUs of a rack) within a quarter of `aspect` L, L = 2^a 3^b 5^c;
                 the nearest to the size from below
    batch        a whole multiple or part of the racks: with a rack as tensor group the m = batch / (d B) micro-batches
                 are then a multiple of the p stages, as interleaved schedules need
    precision    of the products' rate only; values have 16 bits, sums and optimizer 32, as in the trainer
    failures     one in (hours of one GPU) / G; a checkpoint every sqrt(2 stall MTBF) (Young 1974) costs
                 stall / interval + interval / (2 MTBF) + restart / MTBF of the time, which days do not include
    laws         best tokens D = D0 (C/C0)^e for C = 6 P D FLOP; so C0 (6 P D0/C0)^(1/(1-e)) makes P the best. r tokens
                 a parameter: e = 1/2. Of a loss E + A/P^a + B/D^b (Hoffmann et al. 2022): e = a/(a+b), P = g
                 (C/6)^(b/(a+b)), g = (a A/(b B))^(1/(a+b)). Besiroglu et al. 2024 refute the fit of that loss, and fit
                 it again. Errors of e: 10 to 90 % of Hoffmann et al.'s approach 2; a standard error of Besiroglu et
                 al.; where none is published, the rounding of the constants
    largest      days = D / tokens a second, whose logarithm is interpolated between sizes that were searched

A file has one input a line, "name value [unit] [mark]"; # begins a comment; the default mark is assumed; missing inputs
are the paper's (clusters/next-generation.txt shows them all). "model" may occur several times; layers, hidden and batch
after one settle what the rules would choose. "stall" may occur several times, too.
*/
#pragma once

#include "methods_search.h"

// ---- Inputs -----------------------------------------------------------------------------------------------------

enum { DATACENTER_MODELS = 8, DATACENTER_STALLS = 4, DATACENTER_LAYERS = 10000 };

typedef struct {
    int line; // of a file
    Fact parameters;
    Fact layers, hidden, batch; // 0: by the rules above
} ModelWish;

typedef struct {
    char name[256]; // of the file, for errors
    Fact budget, compute_share, rack_price, rack_gpus, spares;
    Fact it_power, rack_power, rack_rating, pue_low, pue_high; // it_power 0: racks x rack_power
    Fact plant_power, site_plants, site_power, sites; // site_power 0: of site_plants; sites 0: as many as needed
    Fact peak_bf16, peak_fp8, peak_fp4, precision, hbm, scale_up, nic;
    Fact wan_delay, fibre_pair, fibre_pairs;
    Fact tokens_per_parameter, vocabulary, sequence, micro_batch, head, aspect, batch_tokens, days_limit;
    Fact failures, failure_gpus, failure_days, restart;
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
    {IN(spares), NUMBER, true, 0, 1e5, {8, ASSUMED}, "GPUs of a rack that wait for another one to fail: 64 work"},
    {IN(it_power), POWER, false, 1, 1e15, {0, CONFIRMED}, "of all racks, network and storage; or rack_power"},
    {IN(rack_power), POWER, false, 1, 1e9, {3.62e9 / 23300, BACK_COMPUTED}, "3.62 GW / 23,300, see it_power"},
    {IN(rack_rating), POWER, false, 1, 1e9, {120e3, CONFIRMED}, "an NVL72's own, public figure"},
    {IN(pue_low), NUMBER, false, 1, 10, {1.15, BACK_COMPUTED}, "4.16 / 3.62 GW; power / IT power"},
    {IN(pue_high), NUMBER, false, 1, 10, {1.30, BACK_COMPUTED}, "4.71 / 3.62 GW"},
    {IN(plant_power), POWER, false, 1, 1e15, {3.646e9, BACK_COMPUTED}, "EIA: Palo Verde's 31.94 TWh in 2022 / 8,760 h"},
    {IN(site_plants), NUMBER, false, 1e-3, 1e6, {1, ASSUMED}, "such plants that one place can take whole"},
    {IN(site_power), POWER, false, 1, 1e15, {0, CONFIRMED}, "that a place can supply; or site_plants"},
    {IN(sites), NUMBER, true, 1, 1000, {0, CONFIRMED}, "overview v2: an east and a west coast"},
    {IN(peak_bf16), FLOPS, false, 1e9, 1e18, {2.5e15, ASSUMED}, "of a GPU, dense"},
    {IN(peak_fp8), FLOPS, false, 1e9, 1e18, {5e15, ASSUMED}, "of a GPU, dense; an NVL72's 720 P are sparse"},
    {IN(peak_fp4), FLOPS, false, 1e9, 1e18, {10e15, ASSUMED}, "of a GPU, dense"},
    {IN(precision), BITS, true, 4, 16, {8, ASSUMED}, "of the plan's products: 16, 8 or 4"},
    {IN(hbm), BYTES, false, 1e9, 1e15, {192e9, ASSUMED}, "memory of a GPU"},
    {IN(scale_up), BYTE_RATE, false, 1e6, 1e15, {900e9, ASSUMED}, "of a GPU within its rack, each way"},
    {IN(nic), BIT_RATE, false, 8e6, 1e15, {800e9, ASSUMED}, "of a GPU beyond its rack"},
    {IN(wan_delay), SECONDS, false, 1e-6, 10, {0.065, ASSUMED}, "round trip between coasts"},
    {IN(fibre_pair), BIT_RATE, false, 1e6, 1e15, {30e12, ASSUMED}, "what a pair carries each way"},
    {IN(fibre_pairs), NUMBER, true, 1, 1000, {8, ASSUMED}, "between two sites"},
    {IN(tokens_per_parameter), NUMBER, false, 1e-3, 1e6, {20, ASSUMED}, "Hoffmann et al. 2022; the paper's is unknown"},
    {IN(vocabulary), NUMBER, true, 2, 1 << 30, {131072, ASSUMED}, "tokens that there are"},
    {IN(sequence), NUMBER, true, 1, 1 << 24, {8192, ASSUMED}, "tokens"},
    {IN(micro_batch), NUMBER, true, 0, LARGEST_MICRO_BATCH, {1, ASSUMED}, "sequences; 0: searched, which takes longer"},
    {IN(head), NUMBER, true, 1, 1e5, {128, ASSUMED}, "channels of a head"},
    {IN(aspect), NUMBER, false, 1, 1e5, {512, ASSUMED}, "width / layers, about"},
    {IN(batch_tokens), NUMBER, false, 1, 1e15, {201326592, ASSUMED}, "tokens of a batch, at most"},
    {IN(days_limit), DAYS, false, 1e-3, 1e5, {1000, ASSUMED}, "for the training"},
    {IN(failures), NUMBER, true, 1, 1e9, {419, CONFIRMED}, "Llama 3's unexpected stops (datacenterdynamics)"},
    {IN(failure_gpus), NUMBER, true, 1, 1e9, {16384, CONFIRMED}, "on this number of H100"},
    {IN(failure_days), DAYS, false, 1e-3, 1e6, {54, CONFIRMED}, "in this number of days"},
    {IN(restart), SECONDS, false, 0, 1e6, {0, ASSUMED}, "of the training after a failure"},
};
#undef IN
enum { DATACENTER_INPUTS = sizeof datacenter_inputs / sizeof datacenter_inputs[0] };

static const Input stall_input = {"stall", 0,   SECONDS,      false,
                                  1e-6,    1e6, {1, ASSUMED}, "of the training, for a checkpoint"};

#define IN(name) #name, offsetof(ModelWish, name)
static const Input model_inputs[] = {
    {"model", offsetof(ModelWish, parameters), PARAMETERS, true, 1e9, 1e17, {50e12, CONFIRMED}, "abstract v1"},
    {IN(layers), NUMBER, true, 1, DATACENTER_LAYERS, {0, CONFIRMED}, "L"},
    {IN(hidden), NUMBER, true, 1, 1 << 20, {0, CONFIRMED}, "h"},
    {IN(batch), NUMBER, true, 1, 1 << 30, {0, CONFIRMED}, "sequences"},
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
    Datacenter d = {};
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

// ---- Read -------------------------------------------------------------------------------------------------------

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
        append_text(names, sizeof names, " %s", in->name);
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
    InputLines lines = {};
    *d = datacenter_empty(path);
    lines.d = d;
    if (!lines_read(path, datacenter_read_line, &lines, error)) return false;
    if (!datacenter_consistent(d, &lines, error)) return false;
    datacenter_complete(d);
    return true;
}

// ---- Scaling laws -----------------------------------------------------------------------------------------------

// The tokens that are best for C FLOP: tokens x (C / flops)^exponent. low, high: by the exponent's error.
typedef struct {
    const char *name, *source;
    double flops, tokens, exponent, low, high;
} Law;

enum { LAW_RATIO, LAW_HOFFMANN, LAW_BESIROGLU, LAW_LLAMA3, LAWS };

// The best tokens of a loss E + A/P^a + B/D^b.
static inline double loss_tokens(double A, double B, double a, double b, double C) {
    return pow(C / 6, a / (a + b)) / pow(a * A / (b * B), 1 / (a + b));
}

// The first three in terms of Chinchilla, 70B on 1.4T tokens; Llama 3's extrapolation was 402B on 16.55T.
static inline void laws_known(Law law[LAWS], double ratio) {
    const double C = 6 * 70e9 * 1.4e12, hoffmann = loss_tokens(406.4, 410.7, 0.34, 0.28, C),
                 refit = loss_tokens(482.01, 2085.43, 0.3478, 0.3658, C), llama = 16.55e12;
    const Law known[LAWS] = {
        {"tokens/parameter", "Hoffmann et al. 2022, table 2", C, sqrt(ratio * C / 6), 0.5, 0.466, 0.538},
        {"Hoffmann's loss", "Hoffmann et al. 2022, equation 10", C, hoffmann, 0.34 / 0.62, 0.542, 0.549},
        {"refit of that loss", "Besiroglu et al. 2024", C, refit, 0.3478 / 0.7136, 0.467, 0.507},
        {"Llama 3", "Dubey et al. 2024, section 3.2.1", 6 * 402e9 * llama, llama, 0.53, 0.525, 0.535}};
    memcpy(law, known, sizeof known);
}

static inline double law_tokens(const Law* law, double C) { return law->tokens * pow(C / law->flops, law->exponent); }

// The C at which P parameters are best.
static inline double law_flops(const Law* law, double P) {
    return law->flops * pow(6 * P * law->tokens / law->flops, 1 / (1 - law->exponent));
}

// ---- Outputs ----------------------------------------------------------------------------------------------------

typedef struct {
    // shape and work
    Fact asked, parameters, layers, hidden, heads, tokens, flops, batch;
    // by the search
    Fact tensor, pipeline, data, chunks, micro_batches, memory, room;
    Fact step, rate, mfu, bubble, tensor_share, data_share, mode_step[DP_MODES];
    Fact wan_bytes, wan_rate, wan_capacity;
    // time
    Fact days[LAWS], days_limit, mfu_needed, one, peak_needed, peak, ratio_in_time, ratio;
} ModelPlan;

enum { LADDER = 6, DATACENTER_SIZES = LADDER + DATACENTER_MODELS };

// A size that the search was asked for, and its tokens a second.
typedef struct {
    double parameters, rate;
} SizeSpeed;

typedef struct {
    Fact compute, affordable, racks, gpus, working;
    Fact it_power, rack_power, gpu_power, beside_racks, power_low, power_high;
    Fact site_power, sites, site_gpus, site_it, site_low, site_high, mesh_racks, mesh_gpus;
    Fact failure_hours, mtbf, stall[DATACENTER_STALLS], interval[DATACENTER_STALLS], overhead[DATACENTER_STALLS];
    Fact peak;
    ModelPlan model[DATACENTER_MODELS];
    int stalls, models;
    Cluster cluster;
    Law law[LAWS];
    Choice best[DATACENTER_MODELS]; // of each model; without a cost where no mesh has room
    SizeSpeed size[DATACENTER_SIZES];
    int sizes;      // ascending
    double seconds; // that each search may take; 0: any
    bool stopped;   // one was, by that
    FILE* progress; // as in Question
} DatacenterPlan;

// ---- From money to sites ----------------------------------------------------------------------------------------

// Rounds down, except where a quotient is below a whole number only by rounding.
static inline double whole_below(double x) { return floor(x * (1 + 1e-12)); }

// Rounds down to three digits, as the paper does: 23,333 to 23,300.
static inline double three_digits_below(double x) {
    double step = 1;
    while (x / step >= 1000) step *= 10;
    return floor(x / step) * step;
}

// The largest 2^a 3^b 5^c that is not above x >= 1.
static inline double smooth_below(double x) {
    double best = 1;
    for (double five = 1; five <= x; five *= 5) {
        for (double three = five; three <= x; three *= 3) {
            double two = three;
            while (2 * two <= x) two *= 2;
            best = fmax(best, two);
        }
    }
    return best;
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
    if (d->site_power.value == 0) p->site_power = result(&w, use(&w, d->plant_power) * use(&w, d->site_plants));
    p->sites = d->sites;
    if (d->sites.value == 0) p->sites = result(&w, ceil(use(&w, p->power_high) / use(&w, p->site_power)));
    p->site_gpus = result(&w, use(&w, equal) * use(&w, p->gpus) / use(&w, p->sites));
    p->site_it = result(&w, use(&w, equal) * use(&w, p->it_power) / use(&w, p->sites));
    p->site_low = result(&w, use(&w, equal) * use(&w, p->power_low) / use(&w, p->sites));
    p->site_high = result(&w, use(&w, equal) * use(&w, p->power_high) / use(&w, p->sites));
    const double sites = use(&w, equal) * use(&w, p->sites), racks = use(&w, p->racks);
    p->mesh_racks = result(&w, racks >= sites ? sites * smooth_below(floor(racks / sites)) : 0);
    p->mesh_gpus = result(&w, use(&w, p->mesh_racks) * (use(&w, d->rack_gpus) - use(&w, d->spares)));
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

// The machines as ./plan knows them: a rack of GPUs is a node.
static inline void plan_cluster(DatacenterPlan* p, const Datacenter* d) {
    Mark w = BACK_COMPUTED;
    Cluster* c = &p->cluster;
    const double bits = use(&w, d->precision), sites = p->sites.value;
    const Fact low = bits == 8 ? d->peak_fp8 : d->peak_fp4;
    p->peak = result(&w, use(&w, bits == 16 ? d->peak_bf16 : low));
    cluster_find(c, "gb200");
    c->device.peak = p->peak.value;
    c->device.memory = d->hbm.value;
    c->nvlink = d->scale_up.value;
    c->nic = d->nic.value / 8;
    c->node_gpus = c->nics = (int)(d->rack_gpus.value - d->spares.value);
    c->nodes = (int)p->mesh_racks.value;
    c->sites = (int)sites;
    c->site_rate = d->fibre_pairs.value * d->fibre_pair.value / 8;
    c->site_delay = d->wan_delay.value / 2;
}

// The lines of a file for ./plan --cluster.
static inline void datacenter_print_cluster(const Cluster* c, const char* before, FILE* out) {
    fprintf(out, "%sbase gb200\n%snodes %d\n%snode_gpus %d\n%snics %d\n%ssites %d\n", before, before, c->nodes, before,
            c->node_gpus, before, c->nics, before, c->sites);
    fprintf(out, "%speak %.15g TFLOP/s\n%smemory %.15g GB\n%snvlink %.15g GB/s\n%snic %.15g GB/s\n", before,
            c->device.peak / 1e12, before, c->device.memory / 1e9, before, c->nvlink / 1e9, before, c->nic / 1e9);
    fprintf(out, "%ssite_rate %.15g GB/s\n%ssite_delay %.15g ms\n", before, c->site_rate / 1e9, before,
            c->site_delay * 1e3);
}

// ---- A model: shape and question --------------------------------------------------------------------------------

static inline bool model_fail(const Datacenter* d, const ModelWish* wish, Error* error, const char* what) {
    char line[16] = "";
    if (wish->line) snprintf(line, sizeof line, "%d: ", wish->line);
    return fail(error, "%s:%s%smodel of %g T: %.700s", d->name, *line ? "" : " ", line, wish->parameters.value / 1e12,
                what);
}

// h and L by the rules at the top.
static inline bool plan_shape(ModelPlan* m, const Datacenter* d, const ModelWish* wish, Error* error) {
    Mark w = BACK_COMPUTED;
    m->asked = wish->parameters;
    const double unit = use(&w, d->head) * (use(&w, d->rack_gpus) - use(&w, d->spares)), asked = use(&w, m->asked);
    const double given = use(&w, wish->layers), wide = use(&w, wish->hidden);
    const double usual = given > 0 ? sqrt(asked / (12 * given)) : cbrt(use(&w, d->aspect) * asked / 12);
    const double near = fmax(1, floor(usual / unit + 0.5)), reach = given > 0 ? 0 : fmin(floor(near / 4), 64);
    double layers = 0, hidden = 0;
    for (double k = near - reach; k <= near + reach; k++) {
        const double h = wide > 0 ? wide : k * unit,
                     L = given > 0 ? given : smooth_below(fmax(1, asked / (12 * h * h)));
        if (L * h * h <= layers * hidden * hidden) continue;
        layers = L;
        hidden = h;
    }
    const Mark all = w;
    m->layers = given > 0 ? wish->layers : fact(layers, all);
    m->hidden = wide > 0 ? wish->hidden : fact(hidden, all);
    if (fmod(hidden, unit) != 0) return model_fail(d, wish, error, "hidden is not a multiple of head x GPUs of a rack");
    if (layers > DATACENTER_LAYERS) return model_fail(d, wish, error, "it has more than 10,000 layers: say hidden");
    if (hidden > 1 << 20) return model_fail(d, wish, error, "it is wider than 2^20: say layers, or another head");
    m->heads = result(&w, use(&w, m->hidden) / use(&w, d->head));
    return true;
}

static inline ModelConfig datacenter_model(const Datacenter* d, const ModelPlan* m) {
    return model_gpt2((int)m->layers.value, (int)m->hidden.value, (int)m->heads.value, (int)d->sequence.value,
                      (int)d->vocabulary.value);
}

// The batch, and what follows from shape and batch alone.
static inline void plan_work(ModelPlan* m, const Datacenter* d, const DatacenterPlan* p, const ModelWish* wish) {
    Mark w = BACK_COMPUTED;
    const ModelConfig model = datacenter_model(d, m);
    use(&w, m->layers), use(&w, m->hidden), use(&w, m->heads), use(&w, d->sequence), use(&w, d->vocabulary);
    m->parameters = result(&w, (double)model_parameters(&model));
    m->tokens = result(&w, use(&w, d->tokens_per_parameter) * use(&w, m->asked));
    m->flops = result(&w, 6 * use(&w, m->parameters) * use(&w, m->tokens));
    const double racks = use(&w, p->mesh_racks), tokens = use(&w, d->batch_tokens) / use(&w, d->sequence);
    const double most = fmin(tokens, 1 << 30);
    double batch = fmax(1, floor(most / racks) * racks);
    int part[DIVISORS];
    const int parts = divisors((int)racks, part);
    for (int i = 0; i < parts; i++) {
        if (part[i] <= most) batch = fmax(batch, part[i]);
    }
    m->batch = result(&w, batch);
    if (wish->batch.value > 0) m->batch = wish->batch;
}

// A model's question: all of the mesh is open, and the micro-batch if it is 0.
static inline Question datacenter_question(const Datacenter* d, const DatacenterPlan* p, const ModelPlan* m) {
    Question q = {};
    q.model = datacenter_model(d, m);
    q.T = (int)d->sequence.value;
    q.batch = (int64_t)m->batch.value;
    q.ranks = (int)p->mesh_gpus.value;
    q.cluster = &p->cluster;
    q.software = software_find("threefold");
    q.B = (int)d->micro_batch.value;
    q.schedule = q.zero = q.recompute = q.sequence_parallel = ANY;
    q.rows = 1;
    q.seconds = p->seconds;
    q.progress = p->progress;
    return q;
}

// Everything that needs no search. False where a shape is impossible, or no rack is affordable.
static inline bool datacenter_plan(DatacenterPlan* p, const Datacenter* d, Error* error) {
    memset(p, 0, sizeof *p);
    plan_racks(p, d);
    if (p->working.value < 1) return fail(error, "%s: the money does not buy one rack that works", d->name);
    if (p->gpus.value > 1 << 30) return fail(error, "%s: the money buys more than 2^30 GPUs", d->name);
    plan_power(p, d);
    plan_sites(p, d);
    if (p->mesh_racks.value < 1)
        return fail(error, "%s: %.0f sites, but %.0f racks", d->name, p->sites.value, p->racks.value);
    plan_failures(p, d);
    plan_cluster(p, d);
    laws_known(p->law, d->tokens_per_parameter.value);
    p->models = d->models;
    for (int i = 0; i < d->models; i++) {
        if (!plan_shape(&p->model[i], d, &d->model[i], error)) return false;
        plan_work(&p->model[i], d, p, &d->model[i]);
    }
    return true;
}

// ---- By the search ----------------------------------------------------------------------------------------------

// All that the step simulation computes: nothing validates it on such machines.
static inline Fact simulated(double x) { return fact(x, ASSUMED); }

// The best choice; without a cost where no mesh has room: then it has the memory that the smallest one would need.
static inline bool datacenter_ask(DatacenterPlan* p, const Question* q, Choice* best, Error* error) {
    Answer answer;
    memset(best, 0, sizeof *best);
    if (!search(&answer, q, error)) return false;
    best->memory.bytes = answer.least_memory;
    if (answer.n > 0) *best = answer.row[0];
    p->stopped = p->stopped || answer.stopped;
    answer_free(&answer);
    return true;
}

// Seconds of the best step in a mode of data parallelism, by the trainer's defaults; NAN: no mesh has room.
static inline double mode_seconds(DatacenterPlan* p, Question q, DpMode mode) {
    Settings usual = settings_default();
    StepMethods methods;
    Choice best;
    Error error;
    usual.dp_mode = (int)mode;
    usual.steps = INT64_MAX / 4; // any run
    q.methods = &methods;
    q.methods_count = 1;
    if (!methods_of(&methods, &usual, &error)) return NAN;
    return datacenter_ask(p, &q, &best, &error) && best.cost.seconds > 0 ? best.cost.seconds : NAN;
}

static inline void plan_answer(ModelPlan* m, const Choice* best, const DatacenterPlan* p) {
    const StepSetup* s = &best->setup;
    const StepCost* c = &best->cost;
    const Cluster* k = &p->cluster;
    const double seconds = c->seconds > 0 ? c->seconds : INFINITY, sites = k->sites;
    m->tensor = simulated(s->mesh.t);
    m->pipeline = simulated(s->mesh.p);
    m->data = simulated(s->mesh.d);
    m->chunks = simulated(s->mesh.v);
    m->micro_batches = simulated(s->B ? (double)step_microbatches(s) : 0);
    m->memory = simulated(best->memory.bytes);
    m->room = simulated(k->device.memory * k->device.memory_fraction);
    m->step = simulated(seconds);
    m->rate = simulated(c->tokens_per_second);
    m->mfu = simulated(c->mfu);
    m->bubble = simulated(c->parts[STEP_BUBBLE] / seconds);
    m->tensor_share = simulated(c->parts[STEP_TENSOR] / seconds);
    m->data_share = simulated(c->parts[STEP_DATA] / seconds);
    m->wan_bytes = simulated(c->sent * p->mesh_gpus.value / sites);
    m->wan_capacity = simulated(8 * k->site_rate * (sites - 1));
    m->wan_rate = simulated(8 * m->wan_bytes.value / seconds);
}

// Days by each law, and what would have to be true for days_limit at a fixed number of tokens a parameter.
static inline void plan_time(ModelPlan* m, const Datacenter* d, const DatacenterPlan* p) {
    const double P = m->asked.value, limit = d->days_limit.value;
    for (int i = 0; i < LAWS; i++)
        m->days[i] = simulated(law_tokens(&p->law[i], law_flops(&p->law[i], P)) / m->rate.value / 86400);
    m->days_limit = d->days_limit;
    m->one = fact(1, CONFIRMED);
    m->mfu_needed = simulated(m->mfu.value * m->days[LAW_RATIO].value / limit);
    m->peak = p->peak;
    m->peak_needed = simulated(m->peak.value * m->days[LAW_RATIO].value / limit);
    m->ratio = d->tokens_per_parameter;
    m->ratio_in_time = simulated(m->rate.value * limit * 86400 / P);
}

// Keeps the speed of a size, in ascending order.
static inline void plan_size(DatacenterPlan* p, double parameters, double rate) {
    const SizeSpeed size = {parameters, rate};
    int i = p->sizes;
    if (rate <= 0) return;
    for (; i > 0 && p->size[i - 1].parameters > parameters; i--) p->size[i] = p->size[i - 1];
    p->size[i] = size;
    p->sizes++;
}

// Sizes around those that the laws make of a tenth of the peak in 90 days, and of half of it in 1,000. Those without a
// mesh are left out.
static inline void search_ladder(DatacenterPlan* p, const Datacenter* d) {
    const double day = p->mesh_gpus.value * p->peak.value * 86400, C[2] = {0.1 * 90 * day, 0.5 * 1000 * day};
    double least = INFINITY, most = 0;
    for (int i = 0; i < LAWS; i++) {
        least = fmin(least, C[0] / 6 / law_tokens(&p->law[i], C[0]));
        most = fmax(most, C[1] / 6 / law_tokens(&p->law[i], C[1]));
    }
    for (int i = 0; i < LADDER; i++) {
        ModelPlan m = {};
        ModelWish wish = {};
        Choice best;
        Error error;
        wish.parameters = simulated(fmax(1e9, least * pow(most / least, (double)i / (LADDER - 1))));
        if (!plan_shape(&m, d, &wish, &error)) continue;
        plan_work(&m, d, p, &wish);
        const Question q = datacenter_question(d, p, &m);
        if (datacenter_ask(p, &q, &best, &error)) plan_size(p, m.asked.value, best.cost.tokens_per_second);
    }
}

// Asks search.h for all models and the ladder. False where a rule of the trainer refuses all meshes of a model.
static inline bool datacenter_search(DatacenterPlan* p, const Datacenter* d, Error* error) {
    Error why;
    p->sizes = 0;
    for (int i = 0; i < p->models; i++) {
        ModelPlan* m = &p->model[i];
        Choice* best = &p->best[i];
        const Question q = datacenter_question(d, p, m);
        if (!datacenter_ask(p, &q, best, &why)) return model_fail(d, &d->model[i], error, why.text);
        plan_answer(m, best, p);
        plan_time(m, d, p);
        plan_size(p, m->asked.value, m->rate.value);
        for (int k = 0; k < DP_MODES; k++)
            m->mode_step[k] = simulated(p->cluster.sites > 1 ? mode_seconds(p, q, (DpMode)k) : NAN);
    }
    search_ladder(p, d);
    return true;
}

// Tokens a second of a model of P parameters: on the line through the two nearest sizes, of logarithms.
static inline double datacenter_rate(const DatacenterPlan* p, double P) {
    int i = p->sizes > 1;
    while (i < p->sizes - 1 && p->size[i].parameters < P) i++;
    const SizeSpeed *b = &p->size[i], *a = i > 0 ? b - 1 : b;
    const double apart = log(b->parameters / a->parameters);
    return a->rate * pow(P / a->parameters, apart > 0 ? log(b->rate / a->rate) / apart : -1);
}

// The largest model that `days` are enough for, by a law; NAN: no size has a mesh.
static inline double datacenter_largest(const DatacenterPlan* p, const Law* law, double days) {
    double low = 1e6, high = 1e20;
    if (p->sizes == 0) return NAN;
    while (high / low > 1 + 1e-12) {
        const double P = sqrt(low * high), tokens = law_tokens(law, law_flops(law, P));
        if (tokens <= days * 86400 * datacenter_rate(p, P))
            low = P;
        else
            high = P;
    }
    return low;
}
