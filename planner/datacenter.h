/*
datacenter.h: a datacenter for one training run, from money to the largest model. Money becomes racks, power and sites;
a model of a size is then a question to search.h, whose mesh, memory and step over these sites are the answer.

    datacenter_read        the inputs, from a file
    datacenter_plan        racks, power, sites, failures, the cluster, the shapes of the models
    datacenter_question    a model's question, as ./plan has it
    datacenter_search      asks it for each model, and for sizes between which the largest one lies
    datacenter_largest     the largest model of a number of days, by a scaling law

Theory: after Gherghescu et al. 2024, "I've got 99 problems but FLOPS ain't one" (HotNets; arXiv 2407.12819), whose
numbers are in clusters/next-generation.txt. Few are known: money, racks, GPUs, power, sizes of the models. All else is
arithmetic with inputs that have to be chosen, and nothing validates the step simulation on such machines.

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

A file has one input a line (fields.h); those that it leaves out are as in clusters/next-generation.txt.
*/
#pragma once

#include "methods_search.h"

// ---- Inputs -----------------------------------------------------------------------------------------------------

enum { DATACENTER_MODELS = NUMBERS_MOST, DATACENTER_STALLS = NUMBERS_MOST, DATACENTER_LAYERS = 10000 };

typedef struct {
    char name[256]; // of the file, for errors
    double budget, compute_share, rack_price;
    int rack_gpus, spares;
    double it_power, rack_power, rack_rating, pue_low, pue_high; // it_power 0: racks x rack_power
    double plant_power, site_plants, site_power;                 // site_power 0: plant_power x site_plants
    int sites;                                                   // 0: as many as needed
    double peak_bf16, peak_fp8, peak_fp4;
    int precision;
    double hbm, scale_up, nic, wan_delay, fibre_pair;
    int fibre_pairs, vocabulary, sequence, micro_batch, head;
    double tokens_per_parameter, aspect, batch_tokens, days_limit, failures, failure_gpus, failure_days, restart;
    Numbers models, stalls; // parameters; seconds
} Datacenter;

#define IN(name) #name, offsetof(Datacenter, name)
static const Field datacenter_fields[] = {
    {IN(budget), MONEY, REAL, 1, 1e15},
    {IN(compute_share), PERCENT, REAL, 1e-6, 1},
    {IN(rack_price), MONEY, REAL, 1, 1e12},
    {IN(rack_gpus), NUMBER, INTEGER, 1, 1e5},
    {IN(spares), NUMBER, INTEGER, 0, 1e5},
    {IN(it_power), POWER, REAL, 1, 1e15},
    {IN(rack_power), POWER, REAL, 1, 1e9},
    {IN(rack_rating), POWER, REAL, 1, 1e9},
    {IN(pue_low), NUMBER, REAL, 1, 10},
    {IN(pue_high), NUMBER, REAL, 1, 10},
    {IN(plant_power), POWER, REAL, 1, 1e15},
    {IN(site_plants), NUMBER, REAL, 1e-3, 1e6},
    {IN(site_power), POWER, REAL, 1, 1e15},
    {IN(sites), NUMBER, INTEGER, 1, 1000},
    {IN(peak_bf16), FLOPS, REAL, 1e9, 1e18},
    {IN(peak_fp8), FLOPS, REAL, 1e9, 1e18},
    {IN(peak_fp4), FLOPS, REAL, 1e9, 1e18},
    {IN(precision), BITS, INTEGER, 4, 16},
    {IN(hbm), BYTES, REAL, 1e9, 1e15},
    {IN(scale_up), BYTE_RATE, REAL, 1e6, 1e15},
    {IN(nic), BIT_RATE, REAL, 8e6, 1e15},
    {IN(wan_delay), SECONDS, REAL, 1e-6, 10},
    {IN(fibre_pair), BIT_RATE, REAL, 1e6, 1e15},
    {IN(fibre_pairs), NUMBER, INTEGER, 1, 1000},
    {IN(tokens_per_parameter), NUMBER, REAL, 1e-3, 1e6},
    {IN(vocabulary), NUMBER, INTEGER, 2, 1 << 30},
    {IN(sequence), NUMBER, INTEGER, 1, 1 << 24},
    {IN(micro_batch), NUMBER, INTEGER, 0, LARGEST_MICRO_BATCH},
    {IN(head), NUMBER, INTEGER, 1, 1e5},
    {IN(aspect), NUMBER, REAL, 1, 1e5},
    {IN(batch_tokens), NUMBER, REAL, 1, 1e15},
    {IN(days_limit), DAYS, REAL, 1e-3, 1e5},
    {IN(failures), NUMBER, REAL, 1, 1e9},
    {IN(failure_gpus), NUMBER, REAL, 1, 1e9},
    {IN(failure_days), DAYS, REAL, 1e-3, 1e6},
    {IN(restart), SECONDS, REAL, 0, 1e6},
    {IN(stalls), SECONDS, LIST, 1e-6, 1e6},
    {IN(models), PARAMETERS, LIST, 1e9, 1e17},
};
#undef IN
enum { DATACENTER_FIELDS = sizeof datacenter_fields / sizeof datacenter_fields[0] };

static inline bool datacenter_read(Datacenter* d, const char* path, Error* error) {
    FieldReader r = {datacenter_fields, DATACENTER_FIELDS, d, NULL, "base", 0, 0, {0}};
    memset(d, 0, sizeof *d);
    snprintf(d->name, sizeof d->name, "%s", path);
    if (!fields_read_base(&r, "next-generation", error) || !fields_read(&r, path, error)) return false;
    if (d->pue_low > d->pue_high)
        return fail(error, "%s: pue_low %g is above pue_high %g", d->name, d->pue_low, d->pue_high);
    if (d->spares >= d->rack_gpus)
        return fail(error, "%s: %d spares of %d GPUs leave none to work", d->name, d->spares, d->rack_gpus);
    if (d->precision != 16 && d->precision != 8 && d->precision != 4)
        return fail(error, "%s: precision: %d bit, where 16, 8 or 4 are known", d->name, d->precision);
    return true;
}

// Replaces the models by those of a list such as "50T,100T".
static inline bool datacenter_set_models(Datacenter* d, const char* list, Error* error) {
    const Field* models = &datacenter_fields[DATACENTER_FIELDS - 1];
    char text[256], *words[DATACENTER_MODELS + 1], *save = NULL;
    int n = 0;
    snprintf(text, sizeof text, "%.255s", list);
    for (char* w = strtok_r(text, ",", &save); w && n <= DATACENTER_MODELS; w = strtok_r(NULL, ",", &save))
        words[n++] = w;
    return field_read(models, d, words, n, error);
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
    double asked, parameters, layers, hidden, heads, tokens, flops, batch;
    // by the search
    double tensor, pipeline, data, chunks, micro_batches, memory, room;
    double step, rate, mfu, bubble, tensor_share, data_share, mode_step[DP_MODES];
    double wan_bytes, wan_rate, wan_capacity;
    // time
    double days[LAWS], days_limit, mfu_needed, mfu_most, peak_needed, peak, ratio_in_time, ratio;
} ModelPlan;

enum { LADDER = 6, DATACENTER_SIZES = LADDER + DATACENTER_MODELS };

// A size that the search was asked for, and its tokens a second.
typedef struct {
    double parameters, rate;
} SizeSpeed;

typedef struct {
    double compute, affordable, racks, gpus, working;
    double it_power, rack_power, gpu_power, beside_racks, power_low, power_high;
    double site_power, sites, site_gpus, site_it, site_low, site_high, mesh_racks, mesh_gpus;
    double failure_hours, mtbf, stall[DATACENTER_STALLS], interval[DATACENTER_STALLS], overhead[DATACENTER_STALLS];
    double peak;
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
    p->compute = d->budget * d->compute_share;
    p->affordable = whole_below(p->compute / d->rack_price);
    p->racks = three_digits_below(p->affordable);
    p->gpus = p->racks * d->rack_gpus;
    p->working = p->racks * (d->rack_gpus - d->spares);
}

static inline void plan_power(DatacenterPlan* p, const Datacenter* d) {
    p->it_power = d->it_power > 0 ? d->it_power : p->racks * d->rack_power;
    p->rack_power = p->it_power / p->racks;
    p->gpu_power = p->it_power / p->gpus;
    p->beside_racks = p->it_power - p->racks * d->rack_rating;
    p->power_low = p->it_power * d->pue_low;
    p->power_high = p->it_power * d->pue_high;
}

// The fewest sites that can supply the peak power, in equal parts.
static inline void plan_sites(DatacenterPlan* p, const Datacenter* d) {
    p->site_power = d->site_power > 0 ? d->site_power : d->plant_power * d->site_plants;
    p->sites = d->sites > 0 ? d->sites : ceil(p->power_high / p->site_power);
    p->site_gpus = p->gpus / p->sites;
    p->site_it = p->it_power / p->sites;
    p->site_low = p->power_low / p->sites;
    p->site_high = p->power_high / p->sites;
    p->mesh_racks = p->racks >= p->sites ? p->sites * smooth_below(floor(p->racks / p->sites)) : 0;
    p->mesh_gpus = p->mesh_racks * (d->rack_gpus - d->spares);
}

// The first-order formula; valid while the interval is well below the time between failures.
static inline void plan_failures(DatacenterPlan* p, const Datacenter* d) {
    p->failure_hours = d->failure_gpus * d->failure_days * 24 / d->failures;
    p->mtbf = p->failure_hours * 3600 / p->gpus;
    p->stalls = d->stalls.n;
    for (int i = 0; i < p->stalls; i++) {
        const double stall = d->stalls.x[i], interval = sqrt(2 * stall * p->mtbf);
        p->stall[i] = stall;
        p->interval[i] = interval;
        p->overhead[i] = stall / interval + interval / (2 * p->mtbf) + d->restart / p->mtbf;
    }
}

// The machines as ./plan knows them: a rack of GPUs is a node.
static inline bool plan_cluster(DatacenterPlan* p, const Datacenter* d, Error* error) {
    Cluster* c = &p->cluster;
    const double low = d->precision == 8 ? d->peak_fp8 : d->peak_fp4;
    p->peak = d->precision == 16 ? d->peak_bf16 : low;
    if (!cluster_find(c, "gb200")) return fail(error, "%s: there is no cluster gb200 to begin from", d->name);
    c->device.peak = p->peak;
    c->device.memory = d->hbm;
    c->nvlink = d->scale_up;
    c->nic = d->nic / 8;
    c->node_gpus = c->nics = d->rack_gpus - d->spares;
    c->nodes = (int)p->mesh_racks;
    c->sites = (int)p->sites;
    c->site_rate = d->fibre_pairs * d->fibre_pair / 8;
    c->site_delay = d->wan_delay / 2;
    return true;
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

static inline bool model_fail(const Datacenter* d, double asked, Error* error, const char* what) {
    return fail(error, "%s: model of %g T: %.700s", d->name, asked / 1e12, what);
}

// h and L by the rules at the top.
static inline bool plan_shape(ModelPlan* m, const Datacenter* d, double asked, Error* error) {
    const double unit = d->head * (d->rack_gpus - d->spares), usual = cbrt(d->aspect * asked / 12);
    const double near = fmax(1, floor(usual / unit + 0.5)), reach = fmin(floor(near / 4), 64);
    m->asked = asked;
    for (double k = near - reach; k <= near + reach; k++) {
        const double h = k * unit, L = smooth_below(fmax(1, asked / (12 * h * h)));
        if (L * h * h <= m->layers * m->hidden * m->hidden) continue;
        m->layers = L;
        m->hidden = h;
    }
    m->heads = m->hidden / d->head;
    if (m->layers > DATACENTER_LAYERS) return model_fail(d, asked, error, "more than 10,000 layers: a larger aspect");
    if (m->hidden > 1 << 20) return model_fail(d, asked, error, "wider than 2^20: a smaller head, or aspect");
    return true;
}

static inline ModelConfig datacenter_model(const Datacenter* d, const ModelPlan* m) {
    return model_gpt2((int)m->layers, (int)m->hidden, (int)m->heads, d->sequence, d->vocabulary);
}

// The batch, and what follows from shape and batch alone.
static inline void plan_work(ModelPlan* m, const Datacenter* d, const DatacenterPlan* p) {
    const ModelConfig model = datacenter_model(d, m);
    const double racks = p->mesh_racks, most = fmin(d->batch_tokens / d->sequence, 1 << 30);
    int part[DIVISORS];
    const int parts = divisors((int)racks, part);
    m->parameters = (double)model_parameters(&model);
    m->tokens = d->tokens_per_parameter * m->asked;
    m->flops = 6 * m->parameters * m->tokens;
    m->batch = fmax(1, floor(most / racks) * racks);
    for (int i = 0; i < parts; i++) {
        if (part[i] <= most) m->batch = fmax(m->batch, part[i]);
    }
}

// A model's question: all of the mesh is open, and the micro-batch if it is 0.
static inline Question datacenter_question(const Datacenter* d, const DatacenterPlan* p, const ModelPlan* m) {
    Question q = {};
    q.model = datacenter_model(d, m);
    q.T = d->sequence;
    q.batch = (int64_t)m->batch;
    q.ranks = (int)p->mesh_gpus;
    q.cluster = &p->cluster;
    q.software = software_find("threefold");
    q.B = d->micro_batch;
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
    if (p->working < 1) return fail(error, "%s: the money does not buy one rack that works", d->name);
    if (p->gpus > 1 << 30) return fail(error, "%s: the money buys more than 2^30 GPUs", d->name);
    plan_power(p, d);
    plan_sites(p, d);
    if (p->mesh_racks < 1) return fail(error, "%s: %.0f sites, but %.0f racks", d->name, p->sites, p->racks);
    plan_failures(p, d);
    if (!plan_cluster(p, d, error)) return false;
    laws_known(p->law, d->tokens_per_parameter);
    p->models = d->models.n;
    for (int i = 0; i < p->models; i++) {
        if (!plan_shape(&p->model[i], d, d->models.x[i], error)) return false;
        plan_work(&p->model[i], d, p);
    }
    return true;
}

// ---- By the search ----------------------------------------------------------------------------------------------

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
    m->tensor = s->mesh.t;
    m->pipeline = s->mesh.p;
    m->data = s->mesh.d;
    m->chunks = s->mesh.v;
    m->micro_batches = s->B ? (double)step_microbatches(s) : 0;
    m->memory = best->memory.bytes;
    m->room = k->device.memory * k->device.memory_fraction;
    m->step = seconds;
    m->rate = c->tokens_per_second;
    m->mfu = c->mfu;
    m->bubble = c->parts[STEP_BUBBLE] / seconds;
    m->tensor_share = c->parts[STEP_TENSOR] / seconds;
    m->data_share = c->parts[STEP_DATA] / seconds;
    m->wan_bytes = c->sent * p->mesh_gpus / sites;
    m->wan_capacity = 8 * k->site_rate * (sites - 1);
    m->wan_rate = 8 * m->wan_bytes / seconds;
}

// Days by each law, and what would have to be true for days_limit at a fixed number of tokens a parameter.
static inline void plan_time(ModelPlan* m, const Datacenter* d, const DatacenterPlan* p) {
    for (int i = 0; i < LAWS; i++)
        m->days[i] = law_tokens(&p->law[i], law_flops(&p->law[i], m->asked)) / m->rate / 86400;
    m->days_limit = d->days_limit;
    m->mfu_needed = m->mfu * m->days[LAW_RATIO] / d->days_limit;
    m->mfu_most = 1;
    m->peak = p->peak;
    m->peak_needed = m->peak * m->days[LAW_RATIO] / d->days_limit;
    m->ratio = d->tokens_per_parameter;
    m->ratio_in_time = m->rate * d->days_limit * 86400 / m->asked;
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
    const double day = p->mesh_gpus * p->peak * 86400, C[2] = {0.1 * 90 * day, 0.5 * 1000 * day};
    double least = INFINITY, most = 0;
    for (int i = 0; i < LAWS; i++) {
        least = fmin(least, C[0] / 6 / law_tokens(&p->law[i], C[0]));
        most = fmax(most, C[1] / 6 / law_tokens(&p->law[i], C[1]));
    }
    for (int i = 0; i < LADDER; i++) {
        ModelPlan m = {};
        Choice best;
        Error error;
        if (!plan_shape(&m, d, fmax(1e9, least * pow(most / least, (double)i / (LADDER - 1))), &error)) continue;
        plan_work(&m, d, p);
        const Question q = datacenter_question(d, p, &m);
        if (datacenter_ask(p, &q, &best, &error)) plan_size(p, m.asked, best.cost.tokens_per_second);
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
        if (!datacenter_ask(p, &q, best, &why)) return model_fail(d, m->asked, error, why.text);
        plan_answer(m, best, p);
        plan_time(m, d, p);
        plan_size(p, m->asked, m->rate);
        for (int k = 0; k < DP_MODES; k++) m->mode_step[k] = p->cluster.sites > 1 ? mode_seconds(p, q, (DpMode)k) : NAN;
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
