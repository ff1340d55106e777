/*
trainer/logger.h: what a run says of itself.

    to people       the plan before the first step (print_plan), a line a step, what is unusual, the bytes at the end
    to programs     OUT/log.jsonl, an object a step; OUT/samples.jsonl, one a sample; OUT/options.txt, for --config

Nothing here changes the run, and none of it talks to other ranks: what it says of them follows from the plans. All but log_close is
the main rank's to call.
*/
#ifndef LOGGER_H
#define LOGGER_H

#include "../util/json.h"
#include "../parallel/schedule_draw.h"
#include "../parallel/traffic.h"
#include "trainer.h"

#include <sys/ioctl.h>

// ----------------------------------------------------------------------------------------------------------------
// The plan, for people

// What a rank sends in a step of m micro-batches, by formula; layout: that of the rank. Where gradients go between sites, ranks
// that share an embedding sum its gradient part by part.
static Traffic traffic_of_stage(const Stage* s, const Layout* layout, int m) {
    Traffic traffic = traffic_of_step(layout, &s->model, s->B, s->T, m, sizeof(floatX));
    if (s->grads.hierarchical && traffic.tied > 0)
        traffic.tied = sizeof(float) * (double)bucket_site_shard_size(layout, layout_slice(layout, -1, WTE)->bucket);
    return traffic;
}

// Bytes that a rank sends in a step, in the three groups; of sites, in the mean of a round.
typedef struct {
    double tensor, pipeline, data;
} Sends;

// Bytes that a rank with a layout sends to other replicas in the steps first + 1 to last, where they are divided into sites.
static SiteTraffic replica_traffic(const Stage* s, const Layout* layout, int64_t first, int64_t last) {
    const double steps = (double)(last - first);
    return s->async ? async_dp_traffic(s, layout, first, last)
                    : gradient_traffic(layout, sizeof(floatX), steps, steps);
}

static Sends sends_of_rank(const Stage* s, int m) {
    const int64_t period = s->async ? async_dp_period(s) : 1;
    const Traffic traffic = traffic_of_stage(s, &s->layout, m);
    const SiteTraffic round = replica_traffic(s, &s->layout, period, 2 * period); // not the first
    const bool sites = s->layout.mesh.sites > 1 || s->async;
    const Sends sends = {traffic.layers + traffic.ends, traffic.pipeline + traffic.tied,
                         sites ? (round.near + round.far) / (double)period : traffic.data};
    return sends;
}

// One line: what a rank holds and what it sends in a step.
static void print_rank(Stage* s, int last_alike, Sends sends, ByteUnit held, ByteUnit sent) {
    const Mesh* mesh = &s->layout.mesh;
    const int rank = mesh_rank(mesh);
    char ranks[32];
    if (last_alike > rank)
        snprintf(ranks, sizeof ranks, "%d..%d", rank, last_alike);
    else
        snprintf(ranks, sizeof ranks, "%d", rank);
    printf("  %-11s %3d %3d %3d   ", ranks, mesh->tensor, mesh->pipeline, mesh->data);
    for (int c = 0; c < mesh->v; c++) { // of many chunks the first and the last
        const Chunk* chunk = &s->layout.chunk[c];
        if (mesh->v <= 3 || c % (mesh->v - 1) == 0)
            printf("%4d..%-4d", chunk->first_layer, chunk->first_layer + chunk->layers - 1);
        else if (c == 1)
            printf("   ...    ");
    }
    Arena* arenas[ARENAS];
    stage_arenas(s, arenas);
    for (int i = 0; i < ARENAS; i++) printf(" %10.1f", (double)arenas[i]->used / held.bytes);
    printf(" %10.1f   %9.2f %9.2f %9.2f\n", stage_bytes(s) / held.bytes, sends.tensor / sent.bytes,
           sends.pipeline / sent.bytes, sends.data / sent.bytes);
}

// The plan of another rank's stage, for stage_free. m: its micro-batches.
static void plan_rank(Stage* s, const Trainer* t, int rank, int* m) {
    const Stage* mine = &t->stage;
    Mesh mesh = mine->layout.mesh;
    mesh.tensor = rank % mesh.t, mesh.data = rank / mesh.t % mesh.d, mesh.pipeline = rank / (mesh.t * mesh.d);
    Error error;
    Schedule schedule = mine->trains ? schedule_build(&t->schedule.config, mesh.pipeline)
                                     : schedule_build_untrained(&t->schedule.config, mesh.pipeline);
    if (!stage_plan(s, &mine->model, mesh, mine->B, mine->T, &schedule, mine->grads.scope, mine->type, &error))
        die("%s", error.text);
    async_dp_plan_as(s, mine);
    *m = schedule.config.m;
    schedule_free(&schedule);
}

// A line for every rank, or, of many, for the first of each stage; before them the units, by the largest numbers.
static void print_ranks(const Trainer* t) {
    const Mesh* mesh = &t->stage.layout.mesh;
    const int n = mesh_size(mesh), step = n <= 16 ? 1 : mesh->t * mesh->d;
    double most_held = 0, most_sent = 0;
    Stage s;
    int m;
    for (int rank = 0; rank < n; rank += step) {
        plan_rank(&s, t, rank, &m);
        const Sends sends = sends_of_rank(&s, m);
        most_held = fmax(most_held, stage_bytes(&s));
        most_sent = fmax(most_sent, fmax(sends.tensor, fmax(sends.pipeline, sends.data)));
        async_dp_free(&s);
        stage_free(&s);
    }
    const ByteUnit held = byte_unit(most_held, false), sent = byte_unit(most_sent, false);
    printf("\n  rank          t   p   d    layers %*s   %s: params      grads  optimizer activation    scratch   "
           "together   sends%s%s:  tp        pp        dp\n",
           10 * ((int)min_i64(mesh->v, 3) - 1), "", held.name, sent.bytes != held.bytes ? ", " : "",
           sent.bytes != held.bytes ? sent.name : "");
    for (int rank = 0; rank < n; rank += step) {
        plan_rank(&s, t, rank, &m);
        print_rank(&s, rank + step - 1, sends_of_rank(&s, m), held, sent);
        async_dp_free(&s);
        stage_free(&s);
    }
    printf("\n");
}

// How many micro-batches stages hold in memory at once; of many stages the first and the last.
static void print_slots(const Schedule* stages, const Mesh* mesh) {
    printf("inflight  ");
    for (int i = 0; i < mesh->p; i++) {
        if (mesh->p <= 16 || i < 4 || i >= mesh->p - 4) printf("%d ", stages[i].slots);
        if (mesh->p > 16 && i == 4) printf("... ");
    }
    printf("micro-batches%s in memory at most, by stage\n", mesh->v > 1 ? " of a chunk" : "");
}

static void print_sync(const Stage* s) {
    const CaatConfig* sync = &s->layout.mesh.sync;
    static const char* scale[] = {"times sqrt(states)", "with initial weights times sqrt(states)", "as they are"};
    if (!is_caat(s)) return;
    printf("caat      %d of %d channels shared by %d states, %d a rank; private ones %s; gradients summed in %s\n",
           s->layout.shared, s->model.C, sync->ranks, s->layout.states, scale[sync->scale],
           sync->narrow ? FLOATX_NAME : "fp32");
}

// The plans of sums: of --allreduce, and between sites.
static void print_sums(const Trainer* t) {
    const Settings* o = &t->settings;
    const Mesh* mesh = &t->stage.layout.mesh;
    for (int far = 0; far < 2; far++) {
        const bool named =
            o->topology && far == (mesh->sites > 1 && mesh_site_size(mesh) == 1); // see build_allreduce_plans
        int n = 0;
        for (int kind = 0; kind < PLAN_KINDS; kind++) {
            const Plan* plan = far ? &t->far_sums[kind] : &t->sums[kind];
            if (!plan->n) continue;
            if (n++ == 0)
                printf("allreduce %sby %s on %s:",
                       mesh->sites == 1 ? ""
                       : far            ? "between sites "
                                        : "in a site ",
                       plan->name, named ? o->topology : "full, all to all");
            printf("%s %s in %d step%s, in chunks of 1/%d", n == 1 ? "" : ",", plan_kind_name(plan->kind), plan->steps,
                   plan->steps == 1 ? "" : "s", plan->chunks);
        }
        if (n > 0) printf("\n");
    }
}

// The sites, and what goes between them.
static void print_sites(const Trainer* t) {
    const Mesh* mesh = &t->stage.layout.mesh;
    const int replicas = mesh_site_size(mesh);
    if (t->stage.async)
        async_dp_print(&t->stage, t->settings.steps);
    else if (mesh->sites > 1)
        printf("sites     sync, gradients summed over all in every step; %d sites of %d replica%s\n", mesh->sites,
               replicas, replicas == 1 ? "" : "s");
    if (t->stage.async && mesh->sites > 1 && DEVICE_IS_HOST && t->world.size > 1 && !comm_can_thread(&t->world))
        printf("          this MPI lets one thread in at a time: messages between sites move while a rank calls it "
               "only\n");
}

static void print_mesh(const Trainer* t) {
    const Stage* s = &t->stage;
    const Mesh* mesh = &s->layout.mesh;
    static const char* recompute[] = {"none", "norms and activation functions", "all but the blocks' inputs"};
    printf("mesh      %d rank%s: tensor %d%s, pipeline %d, data %d%s; recompute: %s\n", mesh_size(mesh),
           mesh_size(mesh) == 1 ? "" : "s", mesh->t, mesh->sequence_parallel ? " with sequence parallelism" : "",
           mesh->p, mesh->d,
           mesh->zero == 0   ? ""
           : mesh->zero == 1 ? " with ZeRO-1"
                             : " with ZeRO-2",
           s->trains ? recompute[mesh->recompute] : "none, as nothing is trained");
    print_sync(s);
    print_sites(t);
    print_sums(t);
    if (!s->trains) return;
    printf("schedule  ");
    const PipelineConfig* plan = &t->schedule.config;
    Schedule* stages = schedules_build(plan);
    if (mesh->p > 1) {
        printf("%s", schedule_name(plan->kind));
        if (mesh->v > 1) printf(" with %d chunks a stage", mesh->v);
        printf(", by formula a bubble of %.3f of the work at equal stages\n", pipeline_bubble(plan));
    }
    schedule_draw(stages, mesh->p, stdout);
    if (mesh->p > 1) print_slots(stages, mesh);
    schedules_free(stages, mesh->p);
}

// A line for each source: its share, if there are several, what it holds, and how often the run goes through it.
static void print_sources(const Trainer* t) {
    const uint64_t n = (uint64_t)t->settings.steps * (uint64_t)t->settings.global_batch;
    char text[512];
    for (int i = 0; i < t->train_files.count; i++) {
        const Source* source = &t->train_files.source[i];
        tokens_describe(text, sizeof text, &source->files);
        printf(i ? "          " : "data      ");
        if (t->train_files.count > 1) printf("%6.4g %%  ", 100 * source->fraction);
        printf("%s; %.3g epochs", text, mix_epochs(&t->train, i, n));
        if (t->settings.document_mask) documents_describe(text, sizeof text, &source->files);
        printf(t->settings.document_mask ? "; %s\n" : "\n", text);
    }
    if (t->held_out && t->settings.eval_every)
        printf("val       %lld sequences of it, in %lld blocks\n", (long long)t->val.count,
               (long long)t->val.loader[0].blocks);
    for (int i = 0; i < t->val_files.count; i++) {
        tokens_describe(text, sizeof text, &t->val_files.source[i].files);
        printf(i ? "          " : "val       ");
        if (t->val_files.count > 1) printf("%6.4g %%  ", 100 * t->val_files.source[i].fraction);
        printf("%s\n", text);
    }
}

// Bytes of the copy that a rank writes from while it trains on.
static double snapshot_bytes(const Trainer* t) {
    return settings_saves(&t->settings) ? (double)snapshot_floats(&t->stage) * sizeof(float) : 0;
}

// When checkpoints are written.
static void print_saves(const Trainer* t) {
    const Settings* o = &t->settings;
    if (!o->out || !t->stage.trains) return;
    printf("saves     ");
    if (o->save_every > 0 && o->save_every < o->steps) printf("every %lld steps, ", (long long)o->save_every);
    if (o->save_minutes > 0) printf("when none was for %g minutes, ", o->save_minutes);
    printf("at the end, and when a signal asks for it");
    if (settings_saves(o))
        printf("; from a snapshot in the host's memory, %.1f MB%s", snapshot_bytes(t) / 1e6,
               t->world.size > 1 ? " on rank 0" : "");
    printf("\n");
}

// What an update does, and how large it is.
static void print_optimizer(const Settings* o) {
    const Optimizer* optimizer = &optimizers[o->optimizer];
    printf("optimizer %s: beta1 %g", optimizer->name, o->beta1);
    if (optimizer->beta2) printf(", beta2 %g", o->beta2);
    if (optimizer->eps) printf(", eps %g", o->eps);
    printf(", weight decay %g, ", o->weight_decay);
    if (o->clip > 0)
        printf("clip %g\n", o->clip);
    else
        printf("no clip\n");
    printf("lr        %g after a warm-up of %lld step%s; %s to %g at step %lld\n", o->lr, (long long)o->warmup,
           o->warmup == 1 ? "" : "s", lr_curves[o->decay].name, o->min_lr, (long long)o->steps);
}

// The sequences of an update, and how its gradient adds up.
static void print_batch(const Trainer* t) {
    const Settings* o = &t->settings;
    const Stage* s = &t->stage;
    const int d = s->layout.mesh.d, m = t->schedule.config.m;
    printf("batch     %lld sequences of %d tokens: gradient accumulation over %d micro-batch%s of %d",
           (long long)o->global_batch, s->T, m, m == 1 ? "" : "es", s->B);
    printf(d > 1 ? " on each of %d replicas\n" : "\n", d);
}

static void print_plan(Trainer* t, double peak) {
    Stage* s = &t->stage;
    const ModelConfig* m = &s->model;
    const Settings* o = &t->settings;
    char device[256], text[128];
    device_name(device, sizeof device);
    const double parameters = (double)model_parameters(m);
    printf("model     %s: %s, %d layers, %d channels, %d heads, vocabulary %d; %.0f parameters\n", m->name,
           model_arch_name(m->arch), m->L, m->C, m->NH, m->V, parameters);
    if (s->trains) print_sources(t);
    for (int i = 0; i < t->evaluations.count; i++) {
        char evaluation[512];
        evaluation_describe(evaluation, sizeof evaluation, &t->evaluations.item[i]);
        printf("%s%s\n", i ? "          " : "evaluate  ", evaluation);
    }
    if (s->trains) print_batch(t), print_optimizer(o);
    printf("device    %s", device);
    if (t->world.size > 1) {
        printf(" a rank, %d rank%s here, %d machine%s", t->place.ranks_here, t->place.ranks_here == 1 ? "" : "s",
               t->place.machines, t->place.machines == 1 ? "" : "s");
        const char* carrier = comm_device_text(&t->world);
        if (carrier[0]) printf(", %s", carrier);
    }
    if (!DEVICE_IS_HOST) printf(", %s", FLOATX_NAME);
    if (peak > 0)
        printf("; %s. mfu = (6 parameters + 6 L C T) tokens/s / peak%s", device_peak_text(text, sizeof text, peak),
               o->document_mask ? ", as if a sequence were one document" : "");
    printf("\n");
    print_mesh(t);
    if (mesh_size(&s->layout.mesh) > 1) {
        print_ranks(t);
    } else {
        Arena* arenas[ARENAS];
        stage_arenas(s, arenas);
        const ByteUnit unit = byte_unit(stage_bytes(s), false);
        printf("memory   ");
        for (int i = 0; i < ARENAS; i++)
            printf(" %s %.1f %s,", arenas[i]->what, (double)arenas[i]->used / unit.bytes, unit.name);
        printf(" together %.1f %s\n", stage_bytes(s) / unit.bytes, unit.name);
    }
    print_saves(t);
    fflush(stdout);
}

// What all ranks send in a step, by formula; and in the steps after `first`, as replicas. sites may be NULL.
static Traffic traffic_of_mesh(const Trainer* t, SiteTraffic* sites, int64_t first) {
    const Stage* mine = &t->stage;
    Traffic sum = {0, 0, 0, 0, 0};
    if (sites) sites->near = sites->far = 0;
    for (int rank = 0; rank < mesh_size(&mine->layout.mesh); rank++) {
        Mesh mesh = mine->layout.mesh;
        mesh.tensor = rank % mesh.t, mesh.data = rank / mesh.t % mesh.d, mesh.pipeline = rank / (mesh.t * mesh.d);
        Layout layout;
        Error error;
        if (!layout_build(&layout, &mine->model, mesh, mine->T, &error)) die("%s", error.text);
        const Traffic one = traffic_of_stage(mine, &layout, t->schedule.config.m);
        sum.layers += one.layers, sum.ends += one.ends, sum.pipeline += one.pipeline;
        sum.tied += one.tied, sum.data += one.data;
        if (sites) {
            const SiteTraffic of = replica_traffic(mine, &layout, first, t->step);
            sites->near += of.near, sites->far += of.far;
        }
        layout_free(&layout);
    }
    return sum;
}

// How much more than the least an algorithm sends in all (2d-ring does).
static double sums_factor(const Plan* plan) {
    double vectors = 0;
    for (int64_t i = 0; i < plan->n; i++) vectors += (double)plan->transfers[i].chunks / plan->chunks;
    return plan->n ? vectors / (2 * (plan->ranks - 1)) : 1;
}

static void print_traffic_row(const char* group, const char* what, const char* counted, double formula) {
    printf("  %-9s %-36s %12s %12.3f\n", group, what, counted, formula / 1e6);
}

// What replicas have sent since step `first`, in the mean of a step.
static void print_site_traffic(const Trainer* t, Bytes all, SiteTraffic formula, int64_t first) {
    const double steps = (double)(t->step - first);
    const double near = sums_factor(&t->sums[PLAN_ALL_REDUCE]), far = sums_factor(&t->far_sums[PLAN_ALL_REDUCE]);
    char counted[2][32];
    snprintf(counted[0], sizeof counted[0], "%.3f", (all.data - all.far) / steps / 1e6);
    snprintf(counted[1], sizeof counted[1], "%.3f", all.far / steps / 1e6);
    print_traffic_row("data", "inside of sites, mean of all steps", counted[0], near * formula.near / steps);
    print_traffic_row("", "between sites, mean of all steps", counted[1], far * formula.far / steps);
}

// Counted bytes of the last step beside the formulas; all: those since step `first`.
static void print_traffic(const Trainer* t, Bytes all, int64_t first) {
    const Mesh* mesh = &t->stage.layout.mesh;
    if (mesh_size(mesh) == 1) return;
    SiteTraffic sites;
    const Traffic sum = traffic_of_mesh(t, &sites, first);
    const bool more = mesh->sequence_parallel || mesh->recompute == RECOMPUTE_FULL; // see traffic_of_step
    const bool divided = mesh->t > 1 && (mesh->scatter || mesh->sequence_parallel);
    char counted[3][32];
    const double bytes[3] = {t->bytes.tensor, t->bytes.pipeline, t->bytes.data};
    for (int i = 0; i < 3; i++) snprintf(counted[i], sizeof counted[i], "%.3f", bytes[i] / 1e6);
    printf("traffic of a step, MB, all ranks together              counted      formula\n");
    print_traffic_row("tensor",
                      is_caat(&t->stage) ? "8 b s h (t-1)/t a layer, shared"
                      : more             ? "8 b s h (t-1)/t a layer, and more"
                                         : "8 b s h (t-1)/t a layer",
                      "", sum.layers);
    print_traffic_row("", "embedding, head, norms, boundary", "", sum.ends);
    print_traffic_row("", "together", counted[0], sum.layers + sum.ends);
    print_traffic_row("pipeline", divided ? "b s h / t a boundary and direction" : "b s h a boundary and direction",
                      counted[1], sum.pipeline + sum.tied);
    const double factor = sums_factor(&t->sums[PLAN_ALL_REDUCE]);
    if (mesh->sites > 1 || t->stage.async)
        print_site_traffic(t, all, sites, first);
    else
        print_traffic_row("data", factor > 1 ? "2 (d-1)/d of the parameters, and more" : "2 (d-1)/d of the parameters",
                          counted[2], factor * sum.data);
}

// ----------------------------------------------------------------------------------------------------------------
// A line a step, for people

// Whether somebody watches. mpirun gives its ranks a terminal for stdout even where its own goes to a file, but none for
// stdin.
static bool is_watched(void) {
    const char* terminal = getenv("TERM");
    return isatty(STDOUT_FILENO) && isatty(STDIN_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
}

// "1:02:03", "4:05", "12 s"
static void write_duration(char* text, size_t size, double seconds) {
    const long total = (long)(seconds + 0.5);
    if (total >= 3600)
        snprintf(text, size, "%ld:%02ld:%02ld", total / 3600, total / 60 % 60, total % 60);
    else if (total >= 60)
        snprintf(text, size, "%ld:%02ld", total / 60, total % 60);
    else
        snprintf(text, size, "%ld s", total);
}

static bool is_outlier(const Settings* o, double score) { return o->outlier_z > 0 && fabs(score) > o->outlier_z; }

// Columns of the terminal that stdout is; a large number where it is none, or does not say.
static int terminal_columns(void) {
    struct winsize window;
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
    return known ? window.ws_col : INT32_MAX;
}

// A part of a line; those of the largest ranks are dropped first.
typedef struct {
    int rank;
    char text[48];
} LinePart;

// Joins the parts up to a rank by " | "; tight: without the blanks that keep numbers of successive lines below each other.
static void join_parts(char* line, size_t size, const LinePart* parts, int n, int rank, bool tight) {
    line[0] = 0;
    for (int i = 0; i < n; i++) {
        const char* text = parts[i].text + (tight ? strspn(parts[i].text, " ") : 0);
        if (*text && parts[i].rank <= rank) append_text(line, size, "%s%s", line[0] ? " | " : "", text);
    }
}

// The line of a step, without its end, in at most `columns` columns: loss, speed and time left are the last to go.
static void step_text(char* line, size_t size, const Trainer* t, double seconds, double mfu, double seconds_left,
                      int columns) {
    enum { STEP, LOSS, VAL, NORM, RATE, TIME, SPEED, MFU, LEFT, PARTS };
    LinePart part[PARTS] = {{1, ""}, {0, ""}, {2, ""}, {4, ""}, {5, ""}, {6, ""}, {0, ""}, {3, ""}, {0, ""}};
    const double tokens = (double)t->settings.global_batch * t->stage.T;
    const size_t room = sizeof part[0].text;
    char left[32];
    write_duration(left, sizeof left, seconds_left);
    snprintf(part[STEP].text, room, "step %5lld/%lld", (long long)t->step, (long long)t->settings.steps);
    snprintf(part[LOSS].text, room, "loss %.4f", t->loss);
    if (!isnan(t->val_loss)) snprintf(part[VAL].text, room, "val %.4f", t->val_loss);
    snprintf(part[NORM].text, room, isnan(t->grad_norm) ? "norm    - " : "norm %.3f", t->grad_norm);
    snprintf(part[RATE].text, room, "lr %.2e", learning_rate(&t->settings, t->step - 1));
    snprintf(part[TIME].text, room, "%7.1f ms", 1e3 * seconds);
    snprintf(part[SPEED].text, room, "%8.0f tok/s", tokens / seconds);
    if (mfu > 0) snprintf(part[MFU].text, room, "mfu %2.0f %%", 100 * mfu);
    snprintf(part[LEFT].text, room, "%s left", left);
    join_parts(line, size, part, PARTS, PARTS, false);
    for (int rank = PARTS; rank >= 0 && strlen(line) > (size_t)columns; rank--)
        join_parts(line, size, part, PARTS, rank, true);
    if (strlen(line) > (size_t)columns) line[columns] = 0;
}

// One line for people, for every --log-every'th step, the last, and those with a validation. In a terminal it fits and is written
// over by the next, with blanks where that is shorter, as there are terminals without escape sequences; those with a validation
// stay there, and twenty others, so that the screen holds the run. In a file, a pipe or from mpirun all stay.
static void print_step(const Trainer* t, double seconds, double mfu, double seconds_left) {
    const int64_t steps = t->settings.steps;
    const bool watched = is_watched(), marks = !isnan(t->val_loss) || t->step == steps;
    const bool stays = !watched || marks || t->step % max_i64(1, steps / 20) == 0;
    if (!marks && t->step % t->settings.log_every != 0) return;
    const int columns = terminal_columns();
    char line[512];
    step_text(line, sizeof line, t, seconds, mfu, seconds_left, columns);
    const int length = (int)strlen(line), before = process.within_line < columns ? process.within_line : columns;
    printf("%s%s%*s%s", process.within_line ? "\r" : "", line, before > length ? before - length : 0, "",
           stays ? "\n" : "");
    process.within_line = stays ? 0 : length;
    fflush(stdout);
}

// One more line where the loss or the norm is not what the steps before it lead to expect.
static void print_outliers(const Trainer* t) {
    const StepHealth* h = &t->health;
    const struct {
        const char* what;
        double is, expected, score;
    } values[] = {{"loss", t->loss, h->loss_expected, h->loss_score},
                  {"norm", t->grad_norm, h->norm_expected, h->norm_score}};
    for (int i = 0; i < 2; i++) {
        if (!is_outlier(&t->settings, values[i].score)) continue;
        end_line();
        printf("outlier   step %lld: the %s %.4g is %.1f deviations %s the %.4g that %d steps lead to expect\n",
               (long long)t->step, values[i].what, values[i].is, fabs(values[i].score),
               values[i].score > 0 ? "above" : "below", values[i].expected, OUTLIER_WINDOW);
    }
}

// How far an evaluation is, every ten seconds: `done` of its rows. told: when it was said last. Returns when it was said now.
static double print_progress(const Evaluation* e, int64_t done, double started, double told) {
    enum { EVERY = 10 }; // seconds
    const double now = seconds_now(), rows = (double)e->rows;
    char left[32];
    if (now - told < EVERY || done == e->rows) return told;
    write_duration(left, sizeof left, (now - started) / (double)done * (rows - (double)done));
    end_line();
    printf("evaluate  %s: %.0f %%, %s left\n", e->path, 100 * (double)done / rows, left);
    fflush(stdout);
    return now;
}

// A column of the table; a score that does not apply is a dash.
static void print_score(const char* format, int width, double x) {
    char text[32] = "-";
    if (!isnan(x)) snprintf(text, sizeof text, format, x);
    printf(" %*s", width, text);
}

// The table of --evaluate.
static void print_evaluations(const Trainer* t) {
    char heading[48];
    int width = snprintf(heading, sizeof heading, t->stage.trains ? "evaluated after step %lld" : "evaluated",
                         (long long)t->step);
    for (int i = 0; i < t->evaluations.count; i++)
        width = (int)max_i64(width, 2 + (int64_t)strlen(t->evaluations.item[i].path));
    end_line();
    printf("%-*s          of     acc  acc_norm     loss  perplexity  bits/byte\n", width, heading);
    for (int i = 0; i < t->evaluations.count; i++) {
        const Evaluation* e = &t->evaluations.item[i];
        const Scores s = evaluation_scores(e);
        printf("  %-*s %11lld", width - 2, e->path, (long long)s.n);
        print_score("%.4f", 7, s.acc), print_score("%.4f", 9, s.acc_norm);
        print_score("%.4f", 8, s.loss), print_score("%.5g", 11, s.perplexity), print_score("%.4f", 10, s.byte_bits);
        printf("\n");
    }
    fflush(stdout);
}

// ----------------------------------------------------------------------------------------------------------------
// For programs

// One line for programs, which is written where it is appended (line_end): an object of JSON.
typedef struct {
    char* text;
    size_t size;
    FILE* out;
} JsonLine;

static FILE* line_begin(JsonLine* line) {
    line->out = open_memstream(&line->text, &line->size);
    if (!line->out) die("out of memory: a line of a log");
    return line->out;
}

// Where the disk takes none it waits in memory; people are told when that begins and when it ends.
static void line_end(JsonLine* line, AppendLog* log) {
    const int64_t waited = log->lines;
    Error error;
    if (fclose(line->out) != 0) die("out of memory: a line of %s", log->path);
    append_log_add(log, line->text, line->size);
    free(line->text);
    const bool written = append_log_write(log, &error);
    if (written == (waited == 0)) return;
    end_line();
    if (written)
        printf("log       %s: written again, with %lld lines that waited\n", log->path, (long long)waited);
    else
        fprintf(stderr, "%s: %s; training goes on, its lines wait in memory\n", process.name, error.text);
}

// The text as a terminal shows it.
static void log_sample(Trainer* t, const int32_t* tokens, int n) {
    JsonLine shown, line;
    TextWriter writer = {line_begin(&shown), "", 0, 0};
    for (int i = 0; i < n; i++) {
        if (t->tokenizer.vocab)
            text_writer_put_token(&writer, &t->tokenizer, tokens[i]);
        else
            fprintf(writer.out, i ? " %d" : "%d", tokens[i]);
    }
    text_writer_end(&writer);
    if (fclose(writer.out) != 0) die("out of memory: a sample");
    FILE* log = line_begin(&line);
    fprintf(log, "{\"step\":%lld,\"text\":", (long long)t->step);
    json_write_string(log, shown.text);
    fprintf(log, "}\n");
    free(shown.text);
    line_end(&line, &t->samples);
}

// JSON has no word for what is not finite.
static void log_number(FILE* log, double x) {
    if (isfinite(x))
        fprintf(log, "%.9g", x);
    else
        fprintf(log, "null");
}

// What --evaluate has found, as a member of the step's object. A stream's loss is "mean_loss", as "loss" is the step's.
static void log_evaluations(FILE* log, const Trainer* t) {
    fprintf(log, ",\"evaluations\":[");
    for (int i = 0; i < t->evaluations.count; i++) {
        const Evaluation* e = &t->evaluations.item[i];
        const Scores s = evaluation_scores(e);
        const struct {
            const char* name;
            double value;
            bool fits;
        } scores[] = {{"acc", s.acc, is_choice(e)},
                      {"acc_norm", s.acc_norm, is_choice(e)},
                      {"mean_loss", s.loss, !is_choice(e)},
                      {"perplexity", s.perplexity, !is_choice(e)},
                      {"bits_per_byte", s.byte_bits, !is_choice(e) && e->bytes > 0}};
        fprintf(log, "%s{\"file\":", i ? "," : "");
        json_write_string(log, e->path);
        fprintf(log, ",\"%s\":%lld", is_choice(e) ? "examples" : "tokens", (long long)s.n);
        for (size_t k = 0; k < sizeof scores / sizeof scores[0]; k++) {
            if (!scores[k].fits) continue;
            fprintf(log, ",\"%s\":", scores[k].name);
            log_number(log, scores[k].value);
        }
        fprintf(log, "}");
    }
    fprintf(log, "]");
}

// One JSON object for programs.
static void log_step(Trainer* t, double seconds, double mfu, int64_t peak) {
    JsonLine text;
    FILE* log = line_begin(&text);
    const double tokens = (double)t->settings.global_batch * t->stage.T;
    fprintf(log, "{\"step\":%lld,\"loss\":", (long long)t->step);
    log_number(log, t->loss);
    fprintf(log, ",\"val_loss\":");
    log_number(log, t->val_loss);
    fprintf(log, ",\"grad_norm\":");
    log_number(log, t->grad_norm);
    fprintf(log, ",\"lr\":%.9g,\"tokens\":%.0f,\"step_ms\":%.3f,\"tokens_per_s\":%.1f,\"mfu\":",
            learning_rate(&t->settings, t->step - 1), tokens, 1e3 * seconds, tokens / seconds);
    if (mfu > 0)
        fprintf(log, "%.4f", mfu);
    else
        fprintf(log, "null");
    fprintf(log, ",\"comm_bytes\":{\"tp\":%.0f,\"pp\":%.0f,\"dp\":%.0f", t->bytes.tensor, t->bytes.pipeline,
            t->bytes.data);
    if (t->stage.layout.mesh.sites > 1) fprintf(log, ",\"dp_inter_site\":%.0f", t->bytes.far);
    fprintf(log, "},\"bubble\":");
    if (isnan(t->bubble))
        fprintf(log, "null");
    else
        fprintf(log, "%.4f", t->bubble);
    fprintf(log, ",\"peak_mem_bytes\":%lld", (long long)peak);
    const StepHealth* h = &t->health;
    if (h->skipped) fprintf(log, ",\"skipped\":true");
    if (is_outlier(&t->settings, h->loss_score)) fprintf(log, ",\"loss_z\":%.2f", h->loss_score);
    if (is_outlier(&t->settings, h->norm_score)) fprintf(log, ",\"grad_norm_z\":%.2f", h->norm_score);
    if (t->evaluated) log_evaluations(log, t);
    if (!t->logged) fprintf(log, ",\"version\":\"%s\"", process.version);
    t->logged = true;
    fprintf(log, "}\n");
    line_end(&text, &t->log);
}

// Whether a line of a log is whole, and of which step.
static bool log_line_step(const char* line, size_t size, int64_t* step) {
    Json json;
    Error error;
    if (line[size - 1] != '\n' || !json_parse(&json, "", line, size, &error)) return false;
    const bool ok = json_get_integer(step, &json, json.nodes, "step", 0, INT64_MAX, &error);
    json_free(&json);
    return ok;
}

// What a log of earlier runs holds: of its whole lines those up to a step stay.
typedef struct {
    int64_t lines, damaged, first_damaged; // the last two do not count an end without a line's end, which a kill leaves
    int64_t kept;                          // bytes of the lines that stay
    bool gaps;                             // between them are others
} LoggedLines;

// Reads a log; health (or NULL) remembers the lines that stay, and copy (or NULL) gets them. from is at its begin.
static bool log_read(LoggedLines* found, FILE* from, int64_t step, StepHealth* health, FILE* copy) {
    char* line = NULL;
    size_t room = 0;
    int64_t at = 0, logged;
    memset(found, 0, sizeof *found);
    for (ssize_t n = getline(&line, &room, from); n > 0; at += n, n = getline(&line, &room, from)) {
        found->lines++;
        const bool whole = log_line_step(line, (size_t)n, &logged);
        if (!whole && line[n - 1] == '\n' && found->damaged++ == 0) found->first_damaged = found->lines;
        if (!whole || logged > step) continue;
        found->gaps = found->gaps || at > found->kept;
        found->kept += n;
        if (health) health_logged(health, line);
        if (copy) fwrite(line, 1, (size_t)n, copy);
    }
    free(line);
    return !ferror(from) && (!copy || !ferror(copy));
}

// Replaces a log by the lines that stay: it is there whole, or as it was.
static void log_close_gaps(const char* path, FILE* old, int64_t step) {
    char temporary[CHECKPOINT_PATH];
    LoggedLines found;
    Error error;
    if (!checkpoint_path(temporary, &error, "%s.tmp", path)) die("%s", error.text);
    FILE* copy = fopen(temporary, "w");
    rewind(old);
    bool ok = copy && log_read(&found, old, step, NULL, copy);
    if (copy) ok = fclose(copy) == 0 && ok;
    if (ok && rename(temporary, path) == 0) return;
    const int why = errno;
    unlink(temporary);
    die("%s: cannot write: %s", temporary, strerror(why));
}

// Opens OUT/log.jsonl or OUT/samples.jsonl. A new run starts an empty one; a resumed one drops the lines after the
// checkpoint's step, which are about to be written again, and remembers the others (health, or NULL). What cannot be read is dropped
// and reported.
static void log_open(AppendLog* log, const char* out, const char* name, bool resumed, int64_t step,
                     StepHealth* health) {
    char path[CHECKPOINT_PATH];
    LoggedLines found = {0, 0, 0, 0, false};
    Error error;
    if (!checkpoint_path(path, &error, "%s/%s", out, name)) die("%s", error.text);
    FILE* old = resumed ? fopen(path, "r") : NULL;
    if (resumed && !old && errno != ENOENT) die("%s: cannot read: %s", path, strerror(errno));
    if (old && !log_read(&found, old, step, health, NULL)) die("%s: cannot read: %s", path, strerror(errno));
    if (found.gaps) log_close_gaps(path, old, step);
    if (old) fclose(old);
    if (found.damaged)
        printf("log       %s: %lld of %lld lines cannot be read and are dropped, the first is line %lld\n", path,
               (long long)found.damaged, (long long)found.lines, (long long)found.first_damaged);
    if (!append_log_open(log, path, found.kept, &error)) die("%s", error.text);
}

// False, with the reason told, if not all lines could be written. Nothing was opened: nothing to do.
static bool log_close(AppendLog* log) {
    Error error;
    if (!log->path[0]) return true;
    const bool ok = append_log_write(log, &error) && log->lost == 0;
    const int64_t missing = log->lines + log->lost;
    if (log->lines == 0) fail(&error, "%.900s: there was no memory for all lines", log->path);
    if (!ok) fprintf(stderr, "%s: %s; %lld lines are missing\n", process.name, error.text, (long long)missing);
    append_log_close(log);
    return ok;
}

// Leaves DIR/options.txt, for --config and for who looks at the run: it is there whole, or as it was.
static void write_options(const Trainer* t, const Option* table, int n) {
    const ModelConfig* m = &t->stage.model;
    const char* out = t->settings.out;
    char path[4096], temporary[4096], device[256], when[64];
    const time_t now = time(NULL);
    struct tm utc;
    device_name(device, sizeof device);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &utc));
    snprintf(path, sizeof path, "%s/options.txt", out);
    snprintf(temporary, sizeof temporary, "%s/options.txt.tmp", out);
    FILE* f = folder_create(temporary);
    if (!f) die("%s: cannot write: %s", temporary, strerror(errno));
    fprintf(f, "# The options of this run. train_gpt --config FILE reads them; what the command line says wins.\n"
               "# Lines that begin with # are what follows from them, and the usual values of the others.\n\n");
    fprintf(f, "# version: %s\n# started: %s\n# ranks: %d on %d machine%s\n# device: %s, %s\n", process.version, when,
            t->world.size, t->place.machines, t->place.machines == 1 ? "" : "s", device, FLOATX_NAME);
    fprintf(f, "# model: %s: %s, %d layers, %d channels, %d heads, vocabulary %d; %.0f parameters\n", m->name,
            model_arch_name(m->arch), m->L, m->C, m->NH, m->V, (double)model_parameters(m));
    options_write(table, n, f);
    const bool ok = !ferror(f);
    if (fclose(f) == 0 && ok && rename(temporary, path) == 0) return;
    const int why = errno;
    unlink(temporary);
    die("%s: cannot write: %s", path, strerror(why));
}

#endif
