/*
plan.c: the planner: the best mesh for a model on a cluster, its step time, its memory, and its bottleneck.

    plan --model gpt3-1008B --cluster selene --gpus 3072 --global-batch 3072
    plan --arch llama --layers 8 --hidden 256 --heads 8 --seq 256 --vocab 256 --cluster my-machine.txt --gpus 8
    plan --model llama-7B --cluster dgx-h100 --gpus 64 --global-batch 512 --timeline    what each stage does, and when
    ./train_gpt $(./plan --flags --model llama-7B --cluster dgx-h100 --gpus 64) ...    the trainer's options (flags.h)
    plan --model gpt3-1008B --gpus 3072 --wan 400 --search dp-mode      on two sites
    plan --runs planner/published.tsv                 the model of time beside published results (runs.h)

It plans with the trainer's own code: the layout of parallel.h, the schedules of parallel/schedule.h, the plans of
comm/collectives; step_sim.h computes times from them, memory.h bytes.
*/
#include "../util/options.h"
#include "../trainer/derived.h"
#include "flags.h"
#include "methods_search.h"
#include "runs.h"
#include "search.h"
#include "timeline.h"

typedef struct {
    Settings model; // the model's shape, read by settings_model
    const char *cluster, *software;
    int64_t gpus, batch, rows;
    double tokens;
    int64_t t, p, d, v, B;
    int schedule, zero, recompute, sequence_parallel; // choices; the first is "any"
    bool any_memory, json, flags, timeline, operations, clusters, version, help;
    double time_limit, margin; // margin -1: by the cluster
    int precision;             // choice; the first is that of the software
    const char *data, *search, *runs;
    double wan, wan_ms; // -1: as the cluster has it
    bool no_scatter_gather;
} PlanOptions;

enum { PLAN_OPTIONS = 80 };

static void add_other_modes(OptionTable* table, PlanOptions* o) {
    const Option rows[] = {
        option_heading("instead"),
        option_flag("clusters", &o->clusters, "list the clusters that have a name"),
        option_string("runs", &o->runs, "FILE", "our value of each published run; files: planner/*.tsv"),
        option_flag("version", &o->version, "the version of this program"),
        option_flag("help", &o->help, "this list"),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

static int plan_table(Option* list, PlanOptions* o) {
    OptionTable table = {list, 0, PLAN_OPTIONS};
    static char any_schedule[160];
    snprintf(any_schedule, sizeof any_schedule, "any|%s", schedule_choices());
    const Option rows[] = {
        option_heading("what it is trained on"),
        option_string("cluster", &o->cluster, "NAME|FILE", "--clusters lists the names; files: planner/clusters/"),
        option_int("gpus", &o->gpus, 1, 1 << 30, "ranks: GPUs, or processes on cores"),
        option_int("global-batch", &o->batch, 1, 1 << 30, "sequences in one update"),
        option_float("tokens", &o->tokens, 1, 1e18, "to train on: how many days that takes"),
        option_string("software", &o->software, "NAME", "whose kernels: threefold, megatron-2021, ... [threefold]"),
        option_choice("precision", &o->precision, "any|bf16|fp32", "of its values, where threefold is the software"),
        option_float("margin", &o->margin, 0, 1e6, "GB of the memory that stay free [5 % of it]"),
        option_heading("what is settled already [searched]"),
        option_int("tp", &o->t, 1, 1 << 16, "tensor-parallel ranks"),
        option_int("pp", &o->p, 1, 1 << 16, "pipeline stages"),
        option_int("dp", &o->d, 1, 1 << 30, "data-parallel replicas"),
        option_int("vpp", &o->v, 1, 1000, "chunks of a stage"),
        option_int("micro-batch", &o->B, 1, 1 << 20, "sequences in one forward pass"),
        option_choice("schedule", &o->schedule, any_schedule, "order of a pipeline's work"),
        option_choice("zero", &o->zero, "any|0|1|2", "what is divided over the replicas"),
        option_choice("recompute", &o->recompute, "any|none|selective|full", "what the backward pass computes again"),
        option_choice("sequence-parallel", &o->sequence_parallel, "any|no|yes", "norms on 1/tp of the positions each"),
        option_flag("no-scatter-gather", &o->no_scatter_gather,
                    "every tensor rank sends the whole output of a stage, not 1/tp of it"),
        option_flag("any-memory", &o->any_memory, "also what does not fit, to ask for runs that others have published"),
        option_heading("the trainer's methods [as it has them; searched where --search names them]"),
        option_string("search", &o->search, "A,B,...",
                      "of the options below, those whose value is chosen: dp-mode,..."),
        option_float("wan", &o->wan, 1e-3, 1e9, "Gbit/s between two sites; the GPUs are then on --sites [2] of them"),
        option_float("wan-ms", &o->wan_ms, 0, 1e4, "milliseconds from one site to another [30]"),
    };
    const Option rest[] = {
        option_heading("what is printed"),
        option_int("rows", &o->rows, 1, 1000, "of the table"),
        option_flag("json", &o->json, "all of it for programs"),
        option_flag("flags", &o->flags, "only the trainer's options: ./train_gpt $(./plan --flags ...)"),
        option_flag("timeline", &o->timeline, "only what each stage does and when: a table with tabs between columns"),
        option_flag("operations", &o->operations, "only the operations of a step on one stage (--pp 1), such a table"),
        option_string("data", &o->data, "GLOB", "what is trained on, for the command"),
        option_float("time-limit", &o->time_limit, 0.1, 1e9, "seconds; then the best found so far is the answer"),
    };
    add_shape_options(&table, &o->model);
    options_add(&table, rows, sizeof rows / sizeof rows[0]);
    methods_table(&table, &o->model);
    options_add(&table, rest, sizeof rest / sizeof rest[0]);
    add_other_modes(&table, o);
    return table.n;
}

static PlanOptions plan_options_default(void) {
    PlanOptions o = {};
    o.model = settings_default();
    o.model.model = "gpt2-124M";
    o.cluster = "dgx-h100";
    o.gpus = 8;
    o.rows = 10;
    o.time_limit = 20;
    o.margin = -1;
    o.wan = -1;
    o.wan_ms = -1;
    return o;
}

// ---- The question -----------------------------------------------------------------------------------------------

static const char* const precision_names[] = {"any", "bf16", "fp32"};

static const Software* read_software(const PlanOptions* o, const Cluster* cluster) {
    static const char* const own[2][2] = {{"threefold", "threefold-fp32"}, {"threefold-cpu-bf16", "threefold-cpu"}};
    const bool cores = cluster->cores > 0, single = o->precision == 0 ? cores : o->precision == 2;
    const Software* s = software_find(o->software ? o->software : own[cores][single]);
    char names[256] = "";
    for (int i = 0; i < SOFTWARES; i++) strcat(strcat(names, " "), softwares[i].name);
    if (!s) die_usage("--software %s is not known; there are%s", o->software, names);
    if (o->precision && single != (s->value_bytes == 4))
        die_usage("--precision %s, but --software %s computes in %s: drop one of them", precision_names[o->precision],
                  s->name, single ? "16 bits" : "float32");
    return s;
}

// --margin: of a GPU's memory, or of a machine's.
static void set_margin(Cluster* c, double margin) {
    if (margin < 0) return;
    if (margin >= c->device.memory)
        die_usage("--margin %g GB leaves nothing of the %g GB of %s", margin / 1e9, c->device.memory / 1e9, c->name);
    if (c->cores) c->device.memory -= margin;
    if (!c->cores) c->device.memory_fraction = 1 - margin / c->device.memory;
}

// --wan, --wan-ms: a link between the sites of the GPUs, which fill as many nodes in each.
static void set_sites(Cluster* c, const PlanOptions* o) {
    const int gpus = (int)o->gpus, sites = o->model.sites ? (int)o->model.sites : 2;
    const int64_t all = cluster_gpus(c);
    if (o->wan_ms >= 0 && o->wan < 0 && c->sites == 1) die_usage("--wan-ms needs --wan GBIT, a link between sites");
    if (o->wan_ms >= 0) c->site_delay = 1e-3 * o->wan_ms;
    if (o->wan < 0) return;
    if (c->cores) die_usage("--wan joins sites of GPUs, and cluster %s is of cores", c->name);
    if (gpus % sites || (all && gpus > all) || (gpus / sites > c->node_gpus && gpus / sites % c->node_gpus))
        die_usage("--wan %g: --gpus %d of cluster %s cannot be divided over --sites %d, in whole nodes of %d", o->wan,
                  gpus, c->name, sites, c->node_gpus);
    c->sites = sites;
    c->node_gpus = (int)min_i64(c->node_gpus, gpus / sites);
    c->nodes = gpus / c->node_gpus;
    c->site_rate = 1e9 / 8 * o->wan;
}

// Without any shape option the model is the default preset, with its vocabulary. Without a preset the whole shape is
// asked for, as the trainer's default sizes are of a model for tests.
static void read_usual_model(PlanOptions* o, Option* table, int n) {
    static const char* const shape[] = {"model", "arch",     "layers", "hidden",
                                        "heads", "kv-heads", "ffn",    "tie-embeddings"};
    static const char* const needed[] = {"layers", "hidden", "heads", "seq", "vocab"};
    bool given = false;
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) given = given || option_given(table, n, shape[i]);
    if (!given) option_find(table, n, "model")->given = true;
    if (option_given(table, n, "model")) return;
    o->model.model = settings_default().model;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        if (!option_given(table, n, needed[i])) die_usage("a model without --model also needs --%s", needed[i]);
    }
}

static Question read_question(PlanOptions* o, Option* table, int n, const Cluster* cluster, Methods* methods) {
    Question q = {};
    Error error;
    if (!methods_read(methods, &o->model, table, n, o->search, &error)) die_usage("%s", error.text);
    q.methods = methods->list;
    q.methods_count = methods->n;
    q.sites = (int)o->model.sites;
    read_usual_model(o, table, n);
    q.model = settings_model(&o->model, table, n, 256);
    q.T = o->model.seq ? (int)o->model.seq : q.model.T;
    q.batch = o->batch ? o->batch : 8 * o->gpus;
    q.ranks = (int)o->gpus;
    q.cluster = cluster;
    q.software = read_software(o, cluster);
    q.any_memory = o->any_memory;
    q.whole = o->no_scatter_gather;
    q.t = (int)o->t;
    q.p = (int)o->p;
    q.d = (int)o->d;
    q.v = (int)o->v;
    q.B = (int)o->B;
    q.schedule = o->schedule - 1;
    q.zero = o->zero - 1;
    q.recompute = o->recompute - 1;
    q.sequence_parallel = o->sequence_parallel - 1;
    q.rows = (int)o->rows;
    q.seconds = o->time_limit;
    q.progress = isatty(STDERR_FILENO) ? stderr : NULL;
    return q;
}

// ---- Output -----------------------------------------------------------------------------------------------------

static void print_question(const Question* q) {
    const ModelConfig* m = &q->model;
    const Cluster* c = q->cluster;
    printf("model     %s: %s, %d layers, %d channels, %d heads, vocabulary %d; %.4g B parameters\n", m->name,
           model_arch_name(m->arch), m->L, m->C, m->NH, m->V, (double)model_parameters(m) / 1e9);
    printf("batch     %lld sequences of %d tokens\n", (long long)q->batch, q->T);
    if (c->cores)
        printf("cluster   %s: %d cores; %d ranks\n", c->name, c->cores, q->ranks);
    else
        printf("cluster   %s: %d GPUs of %.0f TFLOP/s, %.0f GB, %d a node\n", c->name, q->ranks, c->device.peak / 1e12,
               c->device.memory / 1e9, c->node_gpus);
    if (question_sites(q) > 1)
        printf("          %d sites, each two joined by %.4g GB/s, %.4g ms away; replicas are divided over them\n",
               question_sites(q), c->site_rate / 1e9, 1e3 * c->site_delay);
    printf("software  %s\n", q->software->name);
}

static void die_without_room(const Question* q, const Answer* a) {
    const ByteUnit unit = byte_unit(a->least_memory, !q->cluster->cores);
    if (a->stopped)
        die("no mesh of %d ranks was found in --time-limit %g: raise it, or settle --tp, --pp or --schedule", q->ranks,
            q->seconds);
    die("no mesh of %d ranks has room for this model: the smallest that was looked at needs %.1f %s a rank; use more "
        "ranks%s",
        q->ranks, a->least_memory / unit.bytes, unit.name,
        is_prime(q->ranks) && q->ranks > 7 ? ", and not a prime number of them, which only replicas divide" : "");
}

// Formats 1677600 as 1,677,600.
static void text_of_count(char* text, size_t size, double value) {
    char digits[64];
    snprintf(digits, sizeof digits, "%.0f", value);
    const size_t n = strlen(digits);
    size_t at = 0;
    for (size_t i = 0; i < n && at + 2 < size; i++) {
        if (i > 0 && (n - i) % 3 == 0) text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = 0;
}

static void print_search(const Answer* a, double seconds) {
    char counts[4][32];
    const double numbers[4] = {(double)a->considered, (double)a->refused, (double)a->too_large, (double)a->simulated};
    for (int i = 0; i < 4; i++) text_of_count(counts[i], sizeof counts[i], numbers[i]);
    printf("search    %s choices in %.1f s: %s against a rule, %s that do not fit into memory, %s simulated\n",
           counts[0], seconds, counts[1], counts[2], counts[3]);
    if (a->stopped) printf("          --time-limit ended it: the best found so far; other meshes may be faster\n");
}

// Percent of a step.
static double share(const StepCost* cost, int part) { return 100 * cost->parts[part] / cost->seconds; }

static void print_time(double seconds) {
    printf(seconds < 1 ? "%7.1f ms" : "%7.2f s ", seconds < 1 ? 1e3 * seconds : seconds);
}

static void print_rows(const Answer* a) {
    const Choice* best = answer_recommended(a);
    const ByteUnit unit = byte_unit(best->memory.bytes, !best->setup.cluster->cores);
    printf("\n    t   p    d  v schedule      B     m sequence zero recompute |      step  tokens/s   MFU | %% of it: "
           "bubble tensor pipeline  data | %s a rank\n",
           unit.name);
    for (int i = 0; i < a->n; i++) {
        const StepSetup* s = &a->row[i].setup;
        const StepCost* c = &a->row[i].cost;
        const ParallelConfig* m = &s->parallel;
        char methods[400];
        printf("%c%4d %3d %4d %2d %-11s %3d %5lld %-8s %4d %-9s | ", &a->row[i] == best ? '*' : ' ', m->mesh.t,
               m->mesh.p, m->mesh.d, m->v, schedule_name(s->schedule), s->B, (long long)step_microbatches(s),
               m->sequence_parallel ? "yes" : "no", m->zero, recompute_names[m->recompute]);
        print_time(c->seconds);
        methods_options(methods, sizeof methods, &s->methods, m->mesh.sites);
        printf(" %9.4g %4.1f%% | %14.1f %6.1f %8.1f %5.1f | %8.2f%s\n", c->tokens_per_second, 100 * c->mfu,
               share(c, STEP_BUBBLE), share(c, STEP_TENSOR), share(c, STEP_PIPELINE), share(c, STEP_DATA),
               a->row[i].memory.bytes / unit.bytes, methods);
    }
}

static void print_parts(const StepCost* c) {
    printf("step      ");
    print_time(c->seconds);
    printf(":");
    for (int i = 0; i < STEP_PARTS; i++) printf("%s %s %.1f%%", i ? "," : "", step_part_name(i), share(c, i));
    printf("\n");
}

// The largest part besides products and attention, and what reduces it.
static void print_limit(const StepSetup* s, const StepCost* c) {
    static const char* const cures[STEP_PARTS] = {
        "",
        "",
        "kernels bound by memory; a smaller --tp, or more channels, helps",
        "sums over the tensor group; a smaller --tp, or faster links in a node, helps",
        "messages between stages; a smaller --vpp, or fewer stages, helps",
        "sums of gradients; a larger --global-batch helps",
        "the update; --zero 1, or a larger --global-batch, helps",
        "waiting for other stages; a larger --global-batch, or fewer stages, helps"};
    const ParallelConfig* m = &s->parallel;
    int most = STEP_MEMORY;
    for (int i = STEP_MEMORY; i < STEP_PARTS; i++) {
        if (c->parts[i] > c->parts[most]) most = i;
    }
    const char* cure = cures[most];
    if (most == STEP_MEMORY && m->mesh.t == 1)
        cure = "kernels bound by memory; more channels, or a larger --micro-batch, helps";
    if (most == STEP_PIPELINE && m->v == 1) cure = "messages between stages; fewer stages help";
    if (most == STEP_OPTIMIZER && (m->mesh.d == 1 || m->zero)) cure = "the update; a larger --global-batch helps";
    printf("limit     %.1f%% of it: %s\n", share(c, most), cure);
}

// Exact memory, and beside it by papers' formulas, the only numbers for other software.
static void print_memory(const Choice* best) {
    const StepSetup* s = &best->setup;
    const ParallelConfig* m = &s->parallel;
    const Software* software = s->software;
    const ByteUnit unit = byte_unit(fmax(best->memory.bytes, setup_formula_activations(s)), !s->cluster->cores);
    if (s->software->ours) {
        printf("memory    %.2f %s on the largest rank, stage %d:", best->memory.bytes / unit.bytes, unit.name,
               best->memory.pipeline);
        for (int i = 0; i < ARENAS; i++) {
            if (best->memory.arena[i] > 0) printf(" %s %.2f,", arena_names[i], best->memory.arena[i] / unit.bytes);
        }
    } else {
        printf("memory    %.2f %s on a rank of the first stage,", best->memory.bytes / unit.bytes, unit.name);
    }
    printf(" of %.0f %s%s by formulas:", setup_room(s) / unit.bytes, unit.name,
           s->software->ours ? "\n         " : ",");
    printf(" parameters, gradients and optimizer %.2f %s (%d bytes a parameter",
           setup_formula_state(s, (double)model_parameters(&s->model)) / unit.bytes, unit.name,
           software->kept + software->divided);
    if (m->zero) printf(", of which %d divided over d", software->divided);
    printf("); activations %.2f\n", setup_formula_activations(s) / unit.bytes);
}

// The two usual counts of attention, and that of Narayanan et al. 2021: GPT's shapes, with full recomputation.
static void print_rate(const Choice* best) {
    const StepSetup* s = &best->setup;
    const double tokens = best->cost.tokens_per_second / mesh_size(&s->parallel.mesh);
    const double half = 6.0 * s->model.L * s->model.C * s->T * tokens / s->cluster->device.peak;
    printf("rate      MFU %.1f %% = (6 N + 6 L C T) tokens/s / peak; %.1f %% with attention in full, 12 L C T",
           100 * best->cost.mfu, 100 * (best->cost.mfu + half));
    if (s->model.position == POSITION_LEARNED && s->parallel.recompute == RECOMPUTE_FULL)
        printf("; %.1f TFLOP/s a GPU by equation 3 of Narayanan et al. 2021: four passes", best->cost.flops / 1e12);
    printf("\n");
}

static void print_traffic(const StepSetup* s) {
    Traffic sum = {0, 0, 0, 0, 0}, one;
    Error error;
    for (int r = 0; r < s->parallel.mesh.p; r++) {
        if (!step_traffic(s, r, &one, &error)) die("%s", error.text);
        sum.layers = fmax(sum.layers, one.layers + one.ends);
        sum.pipeline = fmax(sum.pipeline, one.pipeline + one.tied);
        sum.data = fmax(sum.data, one.data);
    }
    const ByteUnit unit = byte_unit(fmax(sum.layers, fmax(sum.pipeline, sum.data)), !s->cluster->cores);
    printf("traffic   what a rank sends in a step, at most: tensor group %.3f %s, pipeline %.3f, data group %.3f\n",
           sum.layers / unit.bytes, unit.name, sum.pipeline / unit.bytes, sum.data / unit.bytes);
}

static void print_training(const StepSetup* s, const StepCost* c, double tokens) {
    const double steps = ceil(tokens / ((double)s->batch * s->T));
    printf("training  %.4g tokens: %.0f steps, %.1f days\n", tokens, steps, steps * c->seconds / 86400);
}

static void print_json_choice(const Choice* c, Option* table, int n) {
    const StepSetup* s = &c->setup;
    const ParallelConfig* m = &s->parallel;
    printf("{\"tp\":%d,\"pp\":%d,\"dp\":%d,\"vp\":%d,\"schedule\":\"%s\",\"micro_batch\":%d,\"sequence_parallel\":%s,"
           "\"zero\":%d,\"recompute\":\"%s\",\"seconds\":%.9g",
           m->mesh.t, m->mesh.p, m->mesh.d, m->v, schedule_name(s->schedule), s->B,
           m->sequence_parallel ? "true" : "false", m->zero, recompute_names[m->recompute], c->cost.seconds);
    for (int i = 0; i < STEP_PARTS; i++) printf(",\"%s\":%.9g", step_part_name(i), c->cost.parts[i]);
    char methods[400];
    methods_options(methods, sizeof methods, &s->methods, m->mesh.sites);
    printf(",\"mfu\":%.6g,\"bytes\":%.0f,\"room\":%.0f,\"exchange\":%.6g,\"sent\":%.6g,\"methods\":\"%s\"", c->cost.mfu,
           c->memory.bytes, setup_room(s), c->cost.exchange, c->cost.sent, methods + (*methods == ' '));
    printf(",\"flags\":\"");
    if (s->software->ours) flags_print(stdout, s, table, n);
    printf("\"}");
}

static void print_json(const Answer* a, Option* table, int n) {
    printf("[");
    for (int i = 0; i < a->n; i++) {
        printf(i ? ",\n " : "");
        print_json_choice(&a->row[i], table, n);
    }
    printf("]\n");
}

static void print_timeline(const StepSetup* s) {
    StepCost c = setup_cost(*s, true);
    const Mesh* m = &s->parallel.mesh;
    printf("# %s on %d ranks of %s: t = %d, p = %d, d = %d; %s, %lld micro-batches of %d, bubble %.1f %%\n",
           s->model.name, mesh_size(m), s->cluster->name, m->t, m->p, m->d, schedule_name(s->schedule),
           (long long)step_microbatches(s), s->B, share(&c, STEP_BUBBLE));
    timeline_print(c.tables, &c.timeline, stdout);
    step_cost_free(&c);
}

// A line for each operation of a list, which occurs `times` times in a step.
static void print_list(const char* part, int times, Rates* rates, Work* w) {
    static const char *const kinds[] = {"product", "memory", "attention", "collective"}, *const passes[] = {"", " dX",
                                                                                                            " dW"};
    for (int i = 0; i < w->n; i++) {
        const Op* op = &w->op[i];
        double m = op->m, n = op->n, k = op->k, batch = op->batch, flops = 2 * m * n * k * batch;
        if (op->kind == OP_MEMORY) m = op->elements;
        if (op->kind == OP_ATTENTION) {
            m = n = op->seq;
            k = op->head;
            batch = op->batch_heads;
            flops = op->flops;
        }
        printf("%s\t%d\t%s\t%s%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.15g\t%.15g\t%.9g\n", part, times, op->name, kinds[op->kind],
               passes[op->transposed], m, n, k, batch, flops, op->bytes, op_seconds(rates, op));
    }
    work_free(w);
}

// The operations of a step of one stage: tokens in, gradients out, as many micro-batches as there are; the update.
static void print_operations(const StepSetup* s) {
    static const char* const parts[2][3] = {{"embedding forward", "block forward", "head forward"},
                                            {"embedding backward", "block backward", "head backward"}};
    const int m = (int)step_microbatches(s), blocks = m * s->model.L;
    Rates rates = rates_of(s->cluster, s->software, s->threads);
    const Held held = held_by_rank(&s->model, &s->parallel, &rates);
    const double elements = s->model.L * held.elements[HELD_BLOCK] + held.elements[HELD_WTE] + held.elements[HELD_WPE] +
                            held.elements[HELD_NORM] + held.elements[HELD_HEAD];
    const double second = s->model.tied && s->software->ours && s->parallel.zero < 2 ? held.elements[HELD_WTE] : 0;
    Work w = {};
    if (s->parallel.mesh.p > 1) die_usage("--operations lists those of one stage: --pp 1");
    printf("part\ttimes\toperation\tkind\tm\tn\tk\tbatch\tFLOP\tbytes\tseconds\n");
    work_zero(&w, s, step_zeroed(s, &held, elements, true));
    print_list("step", 1, &rates, &w);
    for (int backward = 0; backward < 2; backward++) {
        for (int i = 0; i < 3; i++) { // backward from the head on
            const int part = backward ? 2 - i : i;
            if (part == 0) work_embedding(&w, s, backward);
            if (part == 0 && !backward) work_chunk(&w, s, false, false, false);
            if (part == 1) work_block(&w, s, backward, false);
            if (part == 2) work_head(&w, s, backward);
            print_list(parts[backward][part], part == 1 ? blocks : m, &rates, &w);
        }
    }
    if (second > 0) work_memory(&w, "add the two gradients", second, 12);
    work_squares(&w, s, elements);
    work_optimizer(&w, s, elements);
    print_list("step", 1, &rates, &w);
}

// What the sites exchange.
static void print_sites(const StepSetup* s, const StepCost* c) {
    if (s->parallel.mesh.sites == 1 || !s->software->ours) return;
    const ByteUnit unit = byte_unit(c->sent, c->sent >= 1e9);
    printf("sites     a rank sends %.3f %s a step to other sites, in flight for %.3g s; ", c->sent / unit.bytes,
           unit.name, c->exchange);
    if (async_schedule_is_local(&s->methods.async))
        printf("a step waits for %.3g s of that\n", c->waits);
    else
        printf("a step waits for that\n");
}

// The command: on one node by mpirun; on several as a Slurm job, each with as many ranks a node.
static void print_run(const PlanOptions* o, const Choice* best, Option* table, int n) {
    const StepSetup* s = &best->setup;
    const int ranks = mesh_size(&s->parallel.mesh), most = s->cluster->cores ? ranks : cluster_host(s->cluster);
    int nodes = (ranks + most - 1) / most;
    while (ranks % nodes) nodes++;
    if (nodes > 1)
        printf("run       sbatch --nodes=%d --ntasks-per-node=%d --gpus-per-node=%d scripts/run_slurm.sh", nodes,
               ranks / nodes, ranks / nodes);
    else
        printf("run       scripts/mpirun.sh -np %d ./train_gpt", ranks);
    if (o->data || nodes > 1) printf(" --data '%s'", o->data ? o->data : "/shared/tokens.bin");
    flags_print(stdout, s, table, n);
    printf("\n");
    if (o->precision)
        printf("          by a trainer that make PRECISION=%s has built\n", precision_names[o->precision]);
}

// The run of a file of runs: what its options leave is one choice.
static Choice price_options(char* options) {
    static Cluster cluster; // the setup's
    static char name[] = "plan";
    PlanOptions o = plan_options_default();
    Option table[PLAN_OPTIONS];
    Methods methods;
    Answer answer;
    Error error;
    char* argv[PLAN_OPTIONS] = {name};
    int argc = 1;
    for (char* word = strtok(options, " "); word && argc < PLAN_OPTIONS; word = strtok(NULL, " ")) argv[argc++] = word;
    const int n = plan_table(table, &o);
    if (!options_parse(table, n, argc, argv, &error) || !cluster_open(&cluster, o.cluster, &error))
        die("%s", error.text);
    const Question q = read_question(&o, table, n, &cluster, &methods);
    if (!search(&answer, &q, &error)) die("%s", error.text);
    if (answer.n != 1) die("--runs: the options leave %d choices, and not 1", answer.n);
    const Choice run = answer.row[0];
    answer_free(&answer);
    free(methods.list);
    return run;
}

// How far a prediction can be trusted. No published run is of this trainer: those of Megatron's family stand for it.
static void print_band(const StepSetup* s) {
    enum { LEAST = 8 }; // runs of a band
    char path[PATH_MAX];
    planner_path(path, "published.tsv");
    const RunsBand band = runs_band(path, s->cluster, s->software, price_options);
    printf("          by data sheets; %d published runs of %s judge it on GPUs of this peak", band.n,
           s->software->ours ? "Megatron's family" : s->software->name);
    if (band.n < LEAST)
        printf(", and a band needs %d: not known how far off\n", (int)LEAST);
    else
        printf(": 9 of 10 speeds predicted %+.0f to %+.0f %%\n", 100 * band.low, 100 * band.high);
}

static void print_answer(const PlanOptions* o, const Answer* a, Option* table, int n) {
    const Choice* best = answer_recommended(a);
    print_rows(a);
    printf("\n");
    print_parts(&best->cost);
    print_limit(&best->setup, &best->cost);
    if (!best->setup.cluster->cores) print_band(&best->setup);
    if (!best->setup.cluster->cores) print_rate(best);
    print_memory(best);
    print_sites(&best->setup, &best->cost);
    if (best->setup.software->ours) print_traffic(&best->setup); // only this trainer's traffic is known
    if (o->tokens > 0) print_training(&best->setup, &best->cost, o->tokens);
    if (best->setup.software->ours) print_run(o, best, table, n);
}

int main(int argc, char** argv) {
    Cluster cluster;
    Methods methods;
    PlanOptions o = plan_options_default();
    Option table[PLAN_OPTIONS];
    Error error;
    process.name = "plan";
#ifdef VERSION
    process.version = VERSION;
#endif
    const int n = plan_table(table, &o);
    options_of_program(table, n, argc, argv, &o.help,
                       "plan: which mesh for this model on these machines, and what a step takes");
    if (o.version) {
        printf("plan %s\n", process.version);
        return 0;
    }
    if (o.clusters) clusters_print(stdout);
    if (o.runs) runs_print(stdout, o.runs, price_options);
    if (o.clusters || o.runs) return 0;
    if (!cluster_open(&cluster, o.cluster, &error)) die_usage("%s", error.text);
    set_margin(&cluster, 1e9 * o.margin);
    set_sites(&cluster, &o);
    const Question q = read_question(&o, table, n, &cluster, &methods);
    if (o.flags && !q.software->ours)
        die_usage("--flags prints options of this trainer; drop --software %s", q.software->name);
    Answer answer;
    const bool tables = !o.json && !o.flags && !o.timeline && !o.operations;
    if (tables) print_question(&q);
    const double begun = seconds_now();
    if (!search(&answer, &q, &error)) die_usage("%s", error.text);
    if (tables) print_search(&answer, seconds_now() - begun);
    if (!tables && answer.stopped) fprintf(stderr, "plan: --time-limit ended the search: the best found so far\n");
    if (answer.n == 0) die_without_room(&q, &answer);
    if (tables) print_answer(&o, &answer, table, n);
    if (o.json) print_json(&answer, table, n);
    if (o.timeline) print_timeline(&answer_recommended(&answer)->setup);
    if (o.operations) print_operations(&answer_recommended(&answer)->setup);
    if (o.flags) flags_print(stdout, &answer_recommended(&answer)->setup, table, n), printf("\n");
    answer_free(&answer);
    free(methods.list);
    return 0;
}
