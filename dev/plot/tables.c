/*
tables.c: the tables that the trainer works from, as text: sums in a line that begins with #, a line of headings, rows;
tabs between columns. dev/plot/plot.py draws them.

    build/tables schedule --schedule zb-v --pp 4 --microbatches 8   what each stage does, and when
    build/tables collective --topology torus:4x4                    what crosses each link in each step
    build/tables links --topology mesh:2x2 --mbit 20                its links, and the next vertex on each way
    build/tables matrices --tp 2    which part of each matrix a rank has, in the shape that it has in model.safetensors
    build/tables buckets --dp 4     gradient buckets in the order of sending; with ZeRO every data rank's part
    build/tables tensors            the model's tensors
    build/tables rounding           the mean of bf16 weights under AdamW
*/
#define PRECISION_BF16 // of the weights of `rounding`
#include "../../checkpoint/checkpoint.h"
#include "../../comm/collectives/collectives.h"
#include "../../kernels/adamw.h"
#include "../../planner/timeline.h"
#include "../../parallel/traffic.h"
#include "../../planner/plan_cost.h"
#include "../../util/options.h"

typedef struct {
    int schedule, kind; // choices
    const char *forward, *input, *weight, *topology, *algorithm, *name;
    int64_t t, p, d, v, m, zero, B;
    double transfer, rate, mbit;
    bool sequence_parallel, help;
    const ModelConfig* model;
} Wish;

// ---- schedule ---------------------------------------------------------------------------------------------------

// Adds seconds to a kind on each virtual stage: a list "1,1.2,...", whose last number is also that of all others.
static void add_costs(const Costs* costs, ActionKind kind, const char* list) {
    const char* at = list;
    double seconds = 0;
    for (int i = 0; i < costs->stages; i++) {
        char* end = (char*)at;
        if (*at) seconds = strtod(at, &end);
        if (!(seconds >= 0) || (*at && end == at) || (*end && *end != ','))
            die_usage("times %s: give numbers that are not negative, with commas between them", list);
        at = *end ? end + 1 : end;
        *cost_of(costs, kind, i) += seconds;
    }
}

static void print_schedule(const Wish* w) {
    const ScheduleKind kind = (ScheduleKind)w->schedule;
    const int v = w->v ? (int)w->v : schedule_usual_chunks(kind);
    const PipelineConfig plan = {kind, (int)w->p, v, (int)w->m, false, false};
    Error error;
    int slots = 0;
    if (!pipeline_config_check(&plan, RECOMPUTE_NONE, &error)) die_usage("%s", error.text);
    Costs costs = costs_equal(plan.p * v, 0, 0, 0, w->transfer);
    add_costs(&costs, FORWARD, w->forward);
    add_costs(&costs, BACKWARD, w->input);
    add_costs(&costs, BACKWARD, w->weight);
    add_costs(&costs, BACKWARD_INPUT, w->input);
    add_costs(&costs, BACKWARD_WEIGHT, w->weight);
    Schedule* stages = schedules_build(&plan);
    Timeline t = schedule_times(stages, plan.p, &costs, false);
    for (int r = 0; r < plan.p; r++) slots = (int)max_i64(slots, stages[r].slots);
    printf("# bubble %.4g %% of the work, step %.6g, activations of %g micro-batches\n",
           100 * timeline_bubble(stages, &t), t.length, (double)slots / v);
    timeline_print(stages, &t, stdout);
    timeline_free(&t);
    schedules_free(stages, plan.p);
    costs_free(&costs);
}

// ---- collective -------------------------------------------------------------------------------------------------

// The rank that each chunk belongs to: that begins or ends with it; of an all-reduce the one that is never sent the
// sum, as it has the sum first. Freed by free.
static int* chunk_owners(const Plan* plan) {
    int* owner = (int*)checked_malloc((size_t)plan->chunks * sizeof(int), "the owners");
    bool* sent = (bool*)checked_calloc((size_t)plan->chunks * (size_t)plan->ranks, sizeof(bool), "the owners");
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer* t = &plan->transfers[i];
        if (t->add) continue;
        for (int c = t->chunk; c < t->chunk + t->chunks; c++) sent[c * plan->ranks + t->to] = true;
    }
    for (int c = 0; c < plan->chunks; c++) {
        owner[c] = (int)((int64_t)c * plan->ranks / plan->chunks);
        if (plan->kind != PLAN_ALL_REDUCE) continue;
        for (int r = plan->ranks - 1; r >= 0; r--) owner[c] = sent[c * plan->ranks + r] ? owner[c] : r;
    }
    free(sent);
    return owner;
}

// A row for each link on the way of each message. owner -1: chunks of several ranks; add 0: it takes the place of what
// the receiver has.
static void print_collective(const Wish* w) {
    Error error;
    Network net;
    Plan plan;
    if (!network_build(&net, w->topology, &error)) die_usage("%s", error.text);
    if (net.ranks < 2) die_usage("network %s: one rank has nothing to send", net.name);
    if (!collective_build(&plan, w->algorithm, (PlanKind)w->kind, &net, &error)) die_usage("%s", error.text);
    Routes routes = network_routes(&net);
    int *owners = chunk_owners(&plan), *way = (int*)checked_malloc((size_t)net.vertices * sizeof(int), "a way");
    int* used = (int*)checked_calloc((size_t)net.links + 1, sizeof(int), "the links"); // the last step of each
    double busy = 0;
    printf("step\tsource\tto\towner\tadd\n");
    for (int64_t i = 0; i < plan.n; i++) {
        const Transfer* t = &plan.transfers[i];
        const int links = plan_way(&plan, &net, &routes, i, way), step = t->step + 1;
        int owner = owners[t->chunk];
        for (int c = 1; c < t->chunks; c++) owner = owners[t->chunk + c] == owners[t->chunk] ? owner : -1;
        for (int k = 0; k < links; k++) {
            printf("%d\t%d\t%d\t%d\t%d\n", step, net.link[way[k]].from, net.link[way[k]].to, owner, t->add);
            busy += used[way[k]] != step;
            used[way[k]] = step;
        }
    }
    printf("# %s on %s, %s: %d links, mean use %.3f, a link is busy in %.4g of %d steps\n", plan.name, net.name,
           plan_kind_name(plan.kind), net.links, busy / net.links / plan.steps, busy / net.links, plan.steps);
    routes_free(&routes);
    free(owners);
    free(way);
    free(used);
    plan_free(&plan);
    network_free(&net);
}

// For dev/experiments/net.py, which builds the same network in Linux: "nodes N"; each link, which has to go both ways
// at one speed: "A B MBIT MICROSECONDS"; each pair: "route FROM TO NEXT".
static void print_links(const Wish* w) {
    Error error;
    Network net;
    if (!network_build(&net, w->topology, &error)) die_usage("%s", error.text);
    if (network_has_parallel_links(&net)) die_usage("network %s: two nodes are joined by one link at most", net.name);
    printf("nodes %d\n", net.vertices);
    for (int i = 0; i < net.links; i++) {
        const Link* l = &net.link[i];
        const bool own = l->bandwidth != NETWORK_BANDWIDTH || l->latency != NETWORK_LATENCY;
        const double mbit = own ? l->bandwidth * 8e-6 : w->mbit, delay = own ? l->latency * 1e6 : 0;
        if (l->from < l->to) printf("%d %d %g %g\n", l->from, l->to, mbit, delay);
    }
    Routes routes = network_routes(&net);
    for (int i = 0; i < net.vertices * net.ranks; i++) {
        const int link = routes_next(&routes, i / net.ranks, i % net.ranks);
        if (link >= 0) printf("route %d %d %d\n", i / net.ranks, i % net.ranks, net.link[link].to);
    }
    routes_free(&routes);
    network_free(&net);
}

// ---- what ranks hold --------------------------------------------------------------------------------------------

static Layout layout_of_wish(const Wish* w, int rank) {
    Layout layout;
    Error error;
    ParallelConfig parallel = parallel_of_rank(rank, (int)w->t, (int)w->p, (int)w->d);
    parallel.zero = (int)w->zero;
    parallel.sequence_parallel = w->sequence_parallel;
    if (!layout_build(&layout, w->model, parallel, w->model->T, &error)) die_usage("%s", error.text);
    return layout;
}

// Runs of elements that lie below each other in the file are one rectangle. writes: whether this rank writes it.
static void print_slice(const Slice* slice, int rank, bool writes) {
    int64_t shape[2];
    tensor_file_shape(shape, &slice->tensor);
    const int64_t parts = slice->tensor.transposed ? slice->tensor.parts : 1, runs = slice_runs(slice);
    for (int64_t part = 0; part < parts; part++) {
        const Run run = slice_run(slice, part);
        printf("%s\t%d\t%d\t%d\t%d\t%d\t%d\n", slice->tensor.name, rank, (int)(run.file % shape[1]),
               (int)(run.file / shape[1]), (int)run.count, (int)(runs / parts), writes);
    }
}

static void print_matrices(const Wish* w) {
    for (int rank = 0; rank < w->t * w->p * w->d; rank++) {
        Layout layout = layout_of_wish(w, rank);
        const Traffic traffic = traffic_of_step(&layout, w->model, (int)w->B, w->model->T, 1, sizeof(float));
        if (rank == 0)
            printf("# a rank sends %.0f bytes a block and micro-batch to its tensor group\n"
                   "matrix\trank\tx\ty\twidth\theight\twrites\n",
                   traffic.layers / layout.layers);
        for (int i = 0; i < layout.n; i++) {
            const Slice* slice = &layout.slices[i];
            const bool turn =
                slice->bucket % layout.parallel.mesh.d == layout.parallel.mesh.data; // data ranks write buckets in turn
            if (!slice->tensor.vector) print_slice(slice, rank, turn && slice_is_owned(slice, &layout));
        }
        layout_free(&layout);
    }
}

// Of rank 0. The backward pass completes buckets against their order in memory.
static void print_buckets(const Wish* w) {
    Layout layout = layout_of_wish(w, 0);
    const int parts = w->zero ? (int)w->d : 1;
    printf("tensor\tlayer\trank\telements\n");
    for (int b = layout.buckets - 1; b >= 0; b--) {
        const Tensor* tensor = &layout.slices[layout.bucket[b].first].tensor;
        for (int k = 0; k < parts; k++)
            printf("%s\t%d\t%d\t%lld\n", tensor->name, tensor->layer, k, (long long)layout.bucket[b].elements / parts);
    }
    layout_free(&layout);
}

static void print_tensors(const Wish* w) {
    Tensor* list = (Tensor*)checked_malloc((size_t)model_tensors(NULL, w->model) * sizeof(Tensor), "the tensors");
    const int n = model_tensors(list, w->model);
    printf("# %lld parameters, %.0f FLOPs a token of a training step with sequences of %d\ntensor\telements\n",
           (long long)model_parameters(w->model), model_flops_per_token(w->model, w->model->T), w->model->T);
    for (int i = 0; i < n; i++) printf("%s\t%lld\n", list[i].name, (long long)list[i].rows * list[i].cols);
    free(list);
}

// ---- rounding ---------------------------------------------------------------------------------------------------

enum { MASTER, RANDOM, NEAREST, WAYS, WEIGHTS = 4096, STEPS = 400, EVERY = 10 };

// AdamW minimises the mean of (w - 0.9)^2 / 2 over weights that begin at 0.6, where bf16 numbers are 2^-8 apart, with
// the gradient of the bf16 weights. MASTER: float32 master weights, rounded at random after each update, as in the
// trainer; RANDOM: none, what rounding takes is gone; NEAREST: none, and rounded to the nearest number.
static void print_rounding(const Wish* wish) {
    static floatX p[WAYS][WEIGHTS];
    static float w[WAYS][WEIGHTS], m[WAYS][WEIGHTS], v[WAYS][WEIGHTS], g[WEIGHTS];
    const TensorRange range = whole_range(WEIGHTS);
#ifdef _OPENMP
    omp_set_num_threads(1); // threads would wait for each other 1200 times
#endif
    for (int i = 0; i < WAYS * WEIGHTS; i++)
        p[i / WEIGHTS][i % WEIGHTS] = to_floatX(w[i / WEIGHTS][i % WEIGHTS] = 0.6f);
    printf("step\tmaster\trandom\tnearest\n");
    for (int step = 0; step <= STEPS; step++) {
        const OptimizerStep s = {(float)wish->rate, 0.9f, 0.95f, 1e-8f, 0, step + 1, 1};
        if (step % EVERY == 0) printf("%d", step);
        for (int way = 0; way < WAYS; way++) {
            double sum = 0;
            for (int i = 0; i < WEIGHTS; i++) {
                sum += to_float(p[way][i]);
                g[i] = to_float(p[way][i]) - 0.9f;
                if (way != MASTER) w[way][i] = to_float(p[way][i]);
            }
            if (step % EVERY == 0) printf(way < WAYS - 1 ? "\t%.4f" : "\t%.4f\n", sum / WEIGHTS);
            adamw_update(p[way], w[way], g, m[way], v[way], &range, 1, &s);
            if (way != NEAREST) continue;
            for (int i = 0; i < WEIGHTS; i++) p[way][i] = to_floatX(w[way][i]);
        }
    }
}

int main(int argc, char** argv) {
    static void (*const print[])(const Wish*) = {print_schedule, print_collective, print_links,   print_matrices,
                                                 print_buckets,  print_tensors,    print_rounding};
    const char* names = "schedule|collective|links|matrices|buckets|tensors|rounding";
    Wish w = {ONE_F_ONE_B, 0, "1", "1", "1", "torus:4x4", "multitree", "tiny", 1,     1,   1,
              0,           8, 0,   4,   0,   1e-3,        20,          false,  false, NULL};
    Option table[] = {
        option_choice("schedule", &w.schedule, schedule_choices(), ""),
        option_int("microbatches", &w.m, 1, 1024, "in a step"),
        option_int("vpp", &w.v, 1, 32, "chunks of each stage [what the schedule needs]"),
        option_string("forward", &w.forward, "S,...", "what a forward pass takes on each virtual stage [1]"),
        option_string("input", &w.input, "S,...", "what the input half of a backward pass takes [1]"),
        option_string("weight", &w.weight, "S,...", "what the weight half takes [1]"),
        option_float("transfer", &w.transfer, 0, 1e6, "what a message takes"),
        option_string("topology", &w.topology, "NAME", "mesh:3x3, fattree:4,2, ..., or a file of links [torus:4x4]"),
        option_string("algorithm", &w.algorithm, "NAME", "ring, ... (comm/collectives/collectives.h) [multitree]"),
        option_choice("kind", &w.kind, "all-reduce|reduce-scatter|all-gather", "of collective"),
        option_string("model", &w.name, "NAME", "a published size [tiny]"),
        option_int("tp", &w.t, 1, 64, "tensor ranks"),
        option_int("pp", &w.p, 1, 256, "stages"),
        option_int("dp", &w.d, 1, 1024, "replicas"),
        option_int("zero", &w.zero, 0, 2, "ZeRO's stage"),
        option_flag("sequence-parallel", &w.sequence_parallel, "splits the rows of the residual stream over tp"),
        option_int("micro-batch", &w.B, 1, 1024, "sequences of a micro-batch"),
        option_float("mbit", &w.mbit, 1e-6, 1e9, "of links, Mbit/s, where the network says none"),
        option_float("rate", &w.rate, 0, 1, "learning rate of rounding"),
        option_flag("help", &w.help, "this list"),
    };
    const int i = argc > 1 ? choice_index(names, argv[1]) : -1;
    process.name = "tables";
    options_of_program(table, sizeof table / sizeof *table, argc - (i >= 0), argv + (i >= 0), &w.help,
                       "tables WHICH: tables of the trainer as text (dev/plot/tables.c)");
    if (i < 0) die_usage("which table? %s", names);
    w.model = model_find_preset(w.name);
    if (!w.model) die_usage("--model %s: there is no such model", w.name);
    print[i](&w);
    return fflush(stdout) == 0 ? 0 : EXIT_RUN;
}
