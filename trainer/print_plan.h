/*
trainer/print_plan.h: the start-up report of a run, and its bytes at the end.

    print_plan       model, data, batch, optimizer, device, mesh, schedule, memory and bytes of every rank
    print_traffic    bytes that were sent, beside the formulas

Rank 0 calls them; nothing is exchanged, as every rank knows the plans of all.
*/
#pragma once

#include "../parallel/schedule_time.h"
#include "../parallel/traffic.h"
#include "batch.h"
#include "trainer.h"

// Bytes that a rank with this layout sends in a step of m micro-batches, by formula. With hierarchical gradient sums
// the ranks that share a tied embedding sum its gradient shard by shard.
static Traffic traffic_of_stage(const Stage* stage, const Layout* layout, int m) {
    Traffic traffic = traffic_of_step(layout, &stage->model, stage->B, stage->T, m, sizeof(floatX));
    if (stage->grads.hierarchical && traffic.tied > 0)
        traffic.tied = sizeof(float) * (double)bucket_shard_size(layout, layout_slice(layout, -1, WTE)->bucket);
    return traffic;
}

// Bytes that a rank with a layout sends to other replicas, divided into sites, in the steps first + 1 to last.
static SiteTraffic replica_traffic(const Stage* stage, const Layout* layout, int64_t first, int64_t last) {
    return stage->async ? async_schedule_traffic(&stage->async->config, layout, first, last)
                        : gradient_traffic(layout, (double)(last - first));
}

// What a rank sends in a step of m micro-batches; with asynchronous sites, the mean over an outer step.
static Bytes sends_of_rank(const Stage* stage, int m) {
    const int64_t period = stage->async ? stage->async->config.period : 1;
    const Traffic traffic = traffic_of_stage(stage, &stage->layout, m);
    const SiteTraffic round = replica_traffic(stage, &stage->layout, period, 2 * period); // not the first
    const bool sites = stage->layout.parallel.mesh.sites > 1 || stage->async;
    const Bytes sends = {traffic.layers + traffic.ends, traffic.pipeline + traffic.tied,
                         sites ? (round.intra_site + round.inter_site) / (double)period : traffic.data,
                         round.inter_site / (double)period};
    return sends;
}

// Prints a line of the table of ranks: bytes held, bytes sent in a step. last: the last rank with the same numbers.
static void print_rank(const Trainer* t, Stage* stage, int last, Bytes sends, ByteUnit held, ByteUnit sent,
                       bool arenas) {
    const ParallelConfig* parallel = &stage->layout.parallel;
    const Mesh* mesh = &parallel->mesh;
    const int rank = mesh_rank(mesh);
    char ranks[32];
    if (last > rank)
        snprintf(ranks, sizeof ranks, "%d..%d", rank, last);
    else
        snprintf(ranks, sizeof ranks, "%d", rank);
    printf("  %-11s %3d %3d %3d   ", ranks, mesh->tensor, mesh->pipeline, mesh->data);
    for (int c = 0; c < parallel->v; c++) { // of more than three chunks the first and the last
        const Chunk* chunk = &stage->layout.chunk[c];
        if (parallel->v <= 3 || c % (parallel->v - 1) == 0)
            printf("%4d..%-4d", chunk->first_layer, chunk->first_layer + chunk->layers - 1);
        else if (c == 1)
            printf("   ...    ");
    }
    for (int i = 0; i < (arenas ? ARENAS : 0); i++) printf(" %10.1f", arena_bytes(t, stage, i) / held.bytes);
    printf(" %10.1f%s%9.2f %9.2f %9.2f\n", rank_bytes(t, stage) / held.bytes, arenas ? "   " : "  ",
           sends.tensor / sent.bytes, sends.pipeline / sent.bytes, sends.data / sent.bytes);
}

// Plans the stage of any rank, which free_plan_of_rank frees, and returns what it sends.
static Bytes plan_rank(Stage* stage, const Trainer* t, int rank) {
    const Stage* mine = &t->stage;
    const ParallelConfig parallel = parallel_at(&mine->layout.parallel, rank);
    Error error;
    Schedule schedule = mine->trains ? schedule_build(&t->schedule.config, parallel.mesh.pipeline)
                                     : schedule_build_untrained(&t->schedule.config, parallel.mesh.pipeline);
    if (!stage_plan(stage, &mine->model, parallel, mine->B, mine->T, &schedule, mine->grads.scope, mine->type, &error))
        die("%s", error.text);
    if (mine->async) async_dp_plan(stage, &mine->async->config);
    schedule_free(&schedule);
    return sends_of_rank(stage, t->schedule.config.m);
}

static void free_plan_of_rank(Stage* stage) {
    async_dp_free(stage);
    stage_free(stage);
}

// Prints the table of ranks: a line for every rank, or, of more than 16, for the first of each stage, or of the first
// and the last stages, in units that suit the largest numbers. In narrow terminals the parts of the memory have no
// room.
static void print_ranks(const Trainer* t) {
    enum { MOST = 64 };
    const Mesh* mesh = &t->stage.layout.parallel.mesh;
    const int n = mesh_size(mesh), step = n <= 16 ? 1 : mesh->t * mesh->d;
    double most_held = 0, most_sent = 0;
    Stage stage;
    for (int rank = 0; rank < n; rank += step) {
        const Bytes sends = plan_rank(&stage, t, rank);
        most_held = fmax(most_held, rank_bytes(t, &stage));
        most_sent = fmax(most_sent, fmax(sends.tensor, fmax(sends.pipeline, sends.data)));
        free_plan_of_rank(&stage);
    }
    const ByteUnit held = byte_unit(most_held, false), sent = byte_unit(most_sent, false);
    const int chunks = 10 * ((int)min_i64(t->stage.layout.parallel.v, 3) - 1);
    const bool arenas = terminal_columns() > 81 + 11 * ARENAS + chunks;
    printf("\n  rank          t   p   d    layers %*s   %s: %s%s%s: %stp        pp        dp\n", chunks, "", held.name,
           arenas ? "params      grads  optimizer activation    scratch   together   sends" : "memory  sends",
           sent.bytes != held.bytes ? ", " : "", sent.bytes != held.bytes ? sent.name : "", arenas ? " " : "");
    for (int rank = 0; rank < n; rank += step) {
        if (is_left_out(rank / step, n / step, MOST)) {
            if (!is_left_out(rank / step - 1, n / step, MOST)) printf("  ...\n");
            continue;
        }
        const Bytes sends = plan_rank(&stage, t, rank);
        print_rank(t, &stage, rank + step - 1, sends, held, sent, arenas);
        free_plan_of_rank(&stage);
    }
    printf("\n");
}

// Prints the micro-batches in flight by stage; of more than 16 stages the first and last four.
static void print_in_flight(const Schedule* stages, const ParallelConfig* parallel) {
    const Mesh* mesh = &parallel->mesh;
    char text[256] = "";
    for (int i = 0; i < mesh->p; i++) {
        if (!is_left_out(i, mesh->p, 16))
            append_text(text, sizeof text, "%d ", stages[i].slots);
        else if (!is_left_out(i - 1, mesh->p, 16))
            append_text(text, sizeof text, "... ");
    }
    print_line("inflight  %smicro-batches%s in memory at most, by stage", text, parallel->v > 1 ? " of a chunk" : "");
}

// The network of the all-reduces in a site, or between sites; see build_allreduces.
static const char* allreduce_network(const Trainer* t, bool inter_site) {
    const Mesh* mesh = &t->stage.layout.parallel.mesh;
    const bool named = inter_site == (mesh->sites > 1 && mesh_site_size(mesh) == 1);
    return named && t->settings.topology ? t->settings.topology : "full, all to all";
}

// Prints the all-reduce algorithms: of --allreduce, and between sites.
static void print_allreduce(const Trainer* t) {
    const Mesh* mesh = &t->stage.layout.parallel.mesh;
    for (int inter_site = 0; inter_site < 2; inter_site++) {
        const char* where = inter_site ? "between sites " : "in a site ";
        if (mesh->sites == 1) where = "";
        char text[4096 + 512] = "";
        for (int kind = 0; kind < PLAN_KINDS; kind++) {
            const Plan* plan = inter_site ? &t->inter_site_plans[kind] : &t->data_plans[kind];
            if (!plan->n) continue;
            const bool first = !text[0];
            if (first)
                append_text(text, sizeof text, "%sby %s on %s:", where, plan->name, allreduce_network(t, inter_site));
            append_text(text, sizeof text, "%s %s in %d step%s, in chunks of 1/%d", first ? "" : ",",
                        plan_kind_name(plan->kind), plan->steps, plural(plan->steps), plan->chunks);
        }
        if (text[0]) print_line("allreduce %s", text);
    }
}

static void print_mesh(const Trainer* t) {
    const Stage* stage = &t->stage;
    const ParallelConfig* parallel = &stage->layout.parallel;
    const Mesh* mesh = &parallel->mesh;
    static const char* recompute[] = {"none", "norms and activation functions", "all but the blocks' inputs"};
    static const char* zero[] = {"", " with ZeRO-1", " with ZeRO-2"};
    print_line("mesh      %d rank%s: tensor %d%s, pipeline %d, data %d%s; recompute: %s", mesh_size(mesh),
               plural(mesh_size(mesh)), mesh->t, parallel->sequence_parallel ? " with sequence parallelism" : "",
               mesh->p, mesh->d, zero[parallel->zero],
               stage->trains ? recompute[parallel->recompute] : "none, as nothing is trained");
    if (is_caat(stage))
        print_line("caat      %d of %d channels shared by %d streams, %d a rank; gradients summed in %s",
                   stage->layout.shared, stage->model.C, parallel->caat.ranks, stage->layout.streams,
                   parallel->caat.narrow ? FLOATX_NAME : "fp32");
    if (parallel->tp_overlap)
        print_line(
            "overlap   micro-batches are computed as two halves of %d sequence%s in turn; tensor sums of one are in "
            "flight meanwhile",
            stage->B / HALVES, plural(stage->B / HALVES));
    if (parallel->canonical) print_line("canonical gradients of %d leaves are added in one tree", parallel->canonical);
    if (stage->async)
        async_dp_print(stage, t->settings.steps);
    else if (mesh->sites > 1)
        print_line("sites     sync, gradients summed over all replicas in every step; %d sites of %d replica%s",
                   mesh->sites, mesh_site_size(mesh), plural(mesh_site_size(mesh)));
    if ((parallel->tp_overlap || stage->async) && DEVICE_IS_HOST && t->world.size > 1 && !comm_can_thread(&t->world))
        print_line("          this MPI allows one thread at a time: messages move only while a rank calls it");
    print_allreduce(t);
    if (!stage->trains || mesh->p == 1) return;
    const PipelineConfig* config = &t->schedule.config;
    Schedule* stages = schedules_build(config);
    char chunks[64] = "";
    if (parallel->v > 1) snprintf(chunks, sizeof chunks, " with %d chunks a stage", parallel->v);
    print_line("schedule  %s%s, by formula a bubble of %.3f of the work at equal stages", schedule_name(config->kind),
               chunks, pipeline_bubble(config));
    schedule_draw(stages, mesh->p, terminal_columns(), stdout);
    print_in_flight(stages, parallel);
    schedules_free(stages, mesh->p);
}

// Prints the data, how many epochs of it the run is, and what it is validated on.
static void print_data(const Trainer* t) {
    const double sequences = (double)t->settings.steps * (double)t->settings.global_batch;
    char text[512];
    tokens_describe(text, sizeof text, &t->train_files);
    print_line("data      %s; %.3g epochs", text, sequences / (double)t->train.count);
    if (t->held_out && t->settings.eval_every)
        print_line("val       %lld sequences of it, in %lld block%s", (long long)t->val.count, (long long)t->val.blocks,
                   plural(t->val.blocks));
    if (!t->val_files.files) return;
    tokens_describe(text, sizeof text, &t->val_files);
    print_line("val       %s", text);
}

// Prints the optimizer and the learning rate.
static void print_optimizer(const Settings* settings) {
    const Optimizer* optimizer = &optimizers[settings->optimizer];
    char second[64] = "", clip[32] = "no clip";
    if (optimizer->beta2) snprintf(second, sizeof second, ", beta2 %g, eps %g", settings->beta2, settings->eps);
    if (settings->clip > 0) snprintf(clip, sizeof clip, "clip %g", settings->clip);
    print_line("optimizer %s: beta1 %g%s, weight decay %g, %s", optimizer->name, settings->beta1, second,
               settings->weight_decay, clip);
    if (settings->warmup >= settings->steps)
        print_line("lr        up to %g: the run ends within its warm-up of %lld step%s to %g",
                   learning_rate(settings, settings->steps - 1), (long long)settings->warmup, plural(settings->warmup),
                   settings->lr);
    else
        print_line("lr        %g after a warm-up of %lld step%s; %s to %g at step %lld", settings->lr,
                   (long long)settings->warmup, plural(settings->warmup), lr_curves[settings->decay].name,
                   settings->min_lr, (long long)settings->steps);
}

// Prints the global batch, and its gradient accumulation.
static void print_batch(const Trainer* t) {
    const Settings* settings = &t->settings;
    const Stage* stage = &t->stage;
    const int d = stage->layout.parallel.mesh.d, m = t->schedule.config.m;
    char replicas[64] = "";
    if (d > 1) snprintf(replicas, sizeof replicas, " on each of %d replicas", d);
    print_line("batch     %lld sequences of %d tokens: gradient accumulation over %d micro-batch%s of %d%s",
               (long long)settings->global_batch, stage->T, m, m == 1 ? "" : "es", stage->B, replicas);
}

// Says how many threads of other programs are in the way, if any are.
static void print_busy(const RankPlacement* place) {
    const int others = cores_contended(place), fewer = (int)max_i64(1, place->threads - others);
    char advice[64] = "";
    if (others == 0) return;
    if (place->threads > 1) snprintf(advice, sizeof advice, "; OMP_NUM_THREADS=%d may be faster", fewer);
    print_line("busy      %d thread%s of other programs run%s on its cores%s", others, plural(others),
               others == 1 ? "s" : "", advice);
}

static void print_plan(Trainer* t) {
    Stage* stage = &t->stage;
    const ModelConfig* model = &stage->model;
    const Settings* settings = &t->settings;
    char text[1024], peak_text[128];
    const double parameters = (double)model_parameters(model);
    print_line("model     %s: %s, %d layers, %d channels, %d heads, vocabulary %d; %.0f parameters", model->name,
               model_arch_name(model->arch), model->L, model->C, model->NH, model->V, parameters);
    if (stage->trains) print_data(t);
    for (int i = 0; i < t->evaluations.count; i++) {
        const Evaluation* e = &t->evaluations.item[i];
        print_line("%-9s %s: %d examples with %lld completions; the context of %lld is cut to --seq",
                   i ? "" : "evaluate", e->path, e->examples, (long long)e->rows, (long long)e->cut);
    }
    if (stage->trains) print_batch(t), print_optimizer(settings);
    device_name(text, sizeof text);
    if (t->world.size > 1) {
        append_text(text, sizeof text, " a rank, %d rank%s here, %d machine%s", t->place.ranks_here,
                    plural(t->place.ranks_here), t->place.machines, plural(t->place.machines));
        const char* backend = comm_device_text(&t->world);
        if (backend[0]) append_text(text, sizeof text, ", %s", backend);
    }
    append_text(text, sizeof text, ", %s", FLOATX_NAME);
    if (t->peak_flops > 0)
        append_text(text, sizeof text, "; %s. mfu = (6 parameters + 6 L C T) tokens/s / peak",
                    device_peak_text(peak_text, sizeof peak_text, t->peak_flops));
    print_line("device    %s", text);
    if (DEVICE_IS_HOST) print_busy(&t->place);
    print_mesh(t);
    if (mesh_size(&stage->layout.parallel.mesh) > 1) {
        print_ranks(t);
    } else {
        const ByteUnit unit = byte_unit(rank_bytes(t, stage), false);
        text[0] = 0;
        for (int i = 0; i < ARENAS; i++)
            append_text(text, sizeof text, "%s %.1f %s, ", arena_names[i], arena_bytes(t, stage, i) / unit.bytes,
                        unit.name);
        print_line("memory    %stogether %.1f %s", text, rank_bytes(t, stage) / unit.bytes, unit.name);
    }
}

// Bytes that all ranks send in a step, by formula; *sites: bytes between replicas in the steps after `first`.
static Traffic traffic_of_mesh(const Trainer* t, SiteTraffic* sites, int64_t first) {
    const Stage* mine = &t->stage;
    Traffic sum = {0, 0, 0, 0, 0};
    memset(sites, 0, sizeof *sites);
    for (int rank = 0; rank < mesh_size(&mine->layout.parallel.mesh); rank++) {
        const ParallelConfig parallel = parallel_at(&mine->layout.parallel, rank);
        Layout layout;
        Error error;
        if (!layout_build(&layout, &mine->model, parallel, mine->T, &error)) die("%s", error.text);
        const Traffic one = traffic_of_stage(mine, &layout, t->schedule.config.m);
        sum.layers += one.layers;
        sum.ends += one.ends;
        sum.pipeline += one.pipeline;
        sum.tied += one.tied;
        sum.data += one.data;
        const SiteTraffic of = replica_traffic(mine, &layout, first, t->step);
        sites->intra_site += of.intra_site;
        sites->inter_site += of.inter_site;
        layout_free(&layout);
    }
    return sum;
}

// The bytes of an all-reduce algorithm divided by the least possible bytes (2d-ring sends more).
static double sums_factor(const Plan* plan) {
    double vectors = 0;
    for (int64_t i = 0; i < plan->n; i++) vectors += (double)plan->transfers[i].chunks / plan->chunks;
    return plan->n ? vectors / (2 * (plan->ranks - 1)) : 1;
}

// A row of the table of bytes; counted: NaN where they are counted in another row.
static void print_traffic_row(const char* group, const char* what, double counted, double formula) {
    char text[32] = "";
    if (!isnan(counted)) snprintf(text, sizeof text, "%.3f", counted / 1e6);
    printf("  %-9s %-36s %12s %12.3f\n", group, what, text, formula / 1e6);
}

// Prints the bytes that replicas have sent in all steps, as the mean of a step.
static void print_site_traffic(const Trainer* t, Bytes all, SiteTraffic formula) {
    const double steps = (double)(t->step - t->first_step);
    const double intra_site = sums_factor(&t->data_plans[PLAN_ALL_REDUCE]),
                 inter_site = sums_factor(&t->inter_site_plans[PLAN_ALL_REDUCE]);
    print_traffic_row("data", "inside sites, mean of all steps", (all.data - all.inter_site) / steps,
                      intra_site * formula.intra_site / steps);
    print_traffic_row("", "between sites, mean of all steps", all.inter_site / steps,
                      inter_site * formula.inter_site / steps);
}

// Prints the counted bytes of the last step beside the formulas; all: the bytes of all steps.
static void print_traffic(const Trainer* t, Bytes all) {
    const ParallelConfig* parallel = &t->stage.layout.parallel;
    if (mesh_size(&parallel->mesh) == 1) return;
    SiteTraffic sites;
    const Traffic sum = traffic_of_mesh(t, &sites, t->first_step);
    const bool more = parallel->sequence_parallel || parallel->recompute == RECOMPUTE_FULL; // see traffic_of_step
    const bool divided = parallel->mesh.t > 1 && (parallel->scatter || parallel->sequence_parallel);
    printf("traffic of a step, MB, all ranks together              counted      formula\n");
    const char* layer = more ? "8 b s h (t-1)/t a layer, and more" : "8 b s h (t-1)/t a layer";
    if (parallel->mesh.t > 1) {
        print_traffic_row("tensor", is_caat(&t->stage) ? "8 b s h (t-1)/t a layer, shared" : layer, (double)NAN,
                          sum.layers);
        print_traffic_row("", "embedding, head, norms, boundary", (double)NAN, sum.ends);
        print_traffic_row("", "together", t->bytes.tensor, sum.layers + sum.ends);
    }
    if (parallel->mesh.p > 1)
        print_traffic_row("pipeline", divided ? "b s h / t a boundary and direction" : "b s h a boundary and direction",
                          t->bytes.pipeline, sum.pipeline + sum.tied);
    const double factor = sums_factor(&t->data_plans[PLAN_ALL_REDUCE]);
    if (parallel->mesh.sites > 1 || t->stage.async)
        print_site_traffic(t, all, sites);
    else if (parallel->mesh.d > 1)
        print_traffic_row("data", factor > 1 ? "2 (d-1)/d of the parameters, and more" : "2 (d-1)/d of the parameters",
                          t->bytes.data, factor * sum.data);
}
