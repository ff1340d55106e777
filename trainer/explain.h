/*
trainer/explain.h: --explain, the plan of a run in words: who holds what, and who sends what to whom when. A paragraph
for each kind of parallelism that is on, with the chapter that derives it.

Rank 0 calls explain() instead of print_plan. Numbers are read from the tables that the run executes: layout, schedule,
all-reduce plans, traffic and arenas. Bytes are those of rank 0, or of the rank that is named.
*/
#pragma once

#include "print_plan.h"

enum { EXPLAIN_COLUMNS = 100 };

typedef struct {
    const Trainer* t;
    const Stage* stage; // rank 0's, as are the next four
    const Layout* layout;
    const Mesh* mesh;
    const ParallelConfig* parallel;
    const ModelConfig* model;
    double stream;           // bytes of a micro-batch of one residual stream
    bool full;               // recomputation
    Bytes sends, last_sends; // what rank 0 and the first rank of the last stage send in a step
    char text[8192];         // the paragraph's
} Explanation;

#define SAY(...) append_text(e->text, sizeof e->text, __VA_ARGS__)

// Prints the paragraph, if there is one, its lines after the first one indented, and begins a new one.
static void end_paragraph(Explanation* e) {
    hide_controls(e->text);
    if (e->text[0]) print_words(stdout, e->text, 0, 2, EXPLAIN_COLUMNS);
    e->text[0] = 0;
}

typedef struct {
    char text[64];
} Words;

static Words bytes_words(double bytes) {
    static const char* const units[] = {"bytes", "kB", "MB", "GB", "TB"};
    Words words;
    int i = 0;
    for (; bytes >= 1000 && i < 4; i++) bytes /= 1000;
    snprintf(words.text, sizeof words.text, "%.4g %s", bytes, units[i]);
    return words;
}

static Words ranks_words(int first, int step, int n) {
    Words words;
    if (n == 1)
        snprintf(words.text, sizeof words.text, "rank %d", first);
    else if (step == 1)
        snprintf(words.text, sizeof words.text, "ranks %d-%d", first, first + n - 1);
    else
        snprintf(words.text, sizeof words.text, "ranks %d, %d%s", first, first + step, n > 2 ? ", .." : "");
    return words;
}

static void explain_step(Explanation* e) {
    const ParallelConfig* parallel = e->parallel;
    const int64_t batch = e->t->settings.global_batch;
    const int n = mesh_size(e->mesh), summed = parallel->zero ? n : n / e->mesh->sites, m = e->t->schedule.config.m;
    SAY("Step (docs/step.md). ");
    if (n == 1) SAY("One rank holds the whole model");
    if (n > 1)
        SAY("%d ranks = tensor %d x data %d x pipeline %d train the model", n, e->mesh->t, e->mesh->d, e->mesh->p);
    SAY(" %s: %s, %d blocks, %lld parameters. A step takes %lld sequence%s of %d tokens", e->model->name,
        model_arch_name(e->model->arch), e->model->L, (long long)model_parameters(e->model), (long long)batch,
        plural(batch), e->stage->T);
    if (e->mesh->d > 1) SAY(", %lld on each of %d replicas", (long long)batch / e->mesh->d, e->mesh->d);
    SAY(", in %d micro-batch%s of %d%s, and updates the parameters once.", m, m == 1 ? "" : "es", e->stage->B,
        m == 1 ? "" : ", whose gradients are added up (gradient accumulation)");
    if (n == 1) SAY(" There is no other rank: no communication at all.");
    if (n > 1) SAY(" Rank = tensor + %d (data + %d pipeline).", e->mesh->t, e->mesh->d);
    if (summed > 1)
        SAY(" Once a step, before the update, all ranks%s add up the norm of the gradient.",
            summed < n ? " of a site" : "");
}

// The memory of the first rank of the stage that holds the most; fills in what ranks send.
static void explain_memory(Explanation* e) {
    static const char* const recompute[] = {
        "", " The backward pass computes norms and activation functions again (--recompute selective).",
        " Of a block its input alone is kept; the backward pass computes the block again (--recompute full)."};
    const int ranks = e->mesh->t * e->mesh->d;
    double most = 0;
    for (int stage = 0; stage < e->mesh->p; stage++) {
        Stage at;
        e->last_sends = plan_rank(&at, e->t, stage * ranks);
        if (stage == 0) e->sends = e->last_sends;
        if (rank_bytes(e->t, &at) > most) {
            most = rank_bytes(e->t, &at);
            e->text[0] = 0;
            SAY("Memory (docs/memory.md). Rank %d holds %s%s", stage * ranks, bytes_words(most).text,
                e->mesh->p > 1 ? ", the most of all stages" : "");
            for (int i = 0; i < ARENAS; i++)
                SAY("%s %s %s", i ? "," : ":", arena_names[i], bytes_words(arena_bytes(e->t, &at, i)).text);
            SAY(".%s", recompute[e->parallel->recompute]);
        }
        free_plan_of_rank(&at);
    }
}

static void explain_tensor(Explanation* e) {
    const Layout* layout = e->layout;
    const ModelConfig* model = e->model;
    const int k = layout->streams, cuts = tp_cuts(e->parallel);
    const double replicated = traffic_of_replicated(layout);
    if (e->mesh->t == 1) return;
    SAY("Tensor parallel (docs/tensor.md). Stage 0 of replica 0 is cut over %s: of each block a rank holds %d of %d "
        "%sheads, ",
        ranks_words(0, 1, e->mesh->t).text, k * layout->NH, model->NH, model->NKV < model->NH ? "query " : "");
    if (model->NKV < model->NH) SAY("%d of %d key/value heads, ", k * layout->NKV, model->NKV);
    if (cuts > model->NKV) SAY("which %d ranks share, ", cuts / model->NKV);
    SAY("%d of %d mlp channels; of embedding and head %d of %d rows of the vocabulary", k * layout->F, model->F,
        k * layout->V, cuts * layout->V);
    if (cuts * layout->V > model->V) SAY(" (%d and padding)", model->V);
    SAY("; norms whole.");
    if (!is_caat(e->stage) && !e->parallel->sequence_parallel)
        SAY(" Attention and mlp each leave every rank a partial sum of the whole output, and backward of the whole "
            "input gradient: %d all-reduces over %s a block and micro-batch (2 forward, 2 backward%s).%s Embedding and "
            "head add one each, the loss three numbers a token.",
            e->full ? 5 : 4, bytes_words(e->stream).text, e->full ? ", 1 to recompute" : "",
            e->stage->split_backward ? "" : " Those of the backward pass run while weight gradients are computed.");
    const char* each = e->parallel->zero == 2 ? "micro-batch" : e->parallel->canonical ? "leaf" : "step";
    if (replicated > 0)
        SAY(" Gradients of slices that several ranks hold are added up over these, once a %s: %s a rank.", each,
            bytes_words(replicated).text);
    SAY(" Rank 0 sends %s a step in its tensor group.", bytes_words(e->sends.tensor).text);
    if (e->mesh->p > 1)
        SAY(" Rank %d sends %s.", mesh_size(e->mesh) - e->mesh->t * e->mesh->d, bytes_words(e->last_sends.tensor).text);
    if (e->parallel->tp_overlap)
        SAY(" With --tp-comm-overlap a micro-batch is computed as two halves of %d sequence%s in turn: a block's sums "
            "are two of half the size, in flight while the other half or weight gradients are computed.",
            e->stage->B / HALVES, plural(e->stage->B / HALVES));
}

// The residual stream between the matrices, where not all ranks have the same values.
static void explain_streams(Explanation* e) {
    const CaatConfig* caat = &e->parallel->caat;
    const int rows = e->stage->B * e->stage->T, S = e->layout->shared, C = e->model->C;
    const double forward = e->stream * S / C;
    const double backward = caat->narrow ? forward : forward * sizeof(float) / sizeof(floatX);
    if (e->parallel->sequence_parallel)
        SAY("Sequence parallel (docs/sequence.md). Between the matrices (norms, residual stream) each rank holds %d "
            "of the %d rows of a micro-batch. Each pair of matrices begins with an all-gather of rows and ends with a "
            "reduce-scatter: %d collectives over %s a block and micro-batch (4 forward, 6 backward, of which 2 gather "
            "again what weight gradients need%s).",
            rows / e->mesh->t, rows, e->full ? 13 : 10, bytes_words(e->stream).text, e->full ? ", 3 to recompute" : "");
    if (is_caat(e->stage))
        SAY("CAAT-Net (docs/caat.md). The model has %d residual streams, %d on each tensor rank. Only the first %d of "
            "%d channels of an output are summed over them; each stream keeps the other %d for itself.",
            caat->ranks, e->layout->streams, S, C, C - S);
    if (is_caat(e->stage) && e->mesh->t > 1)
        SAY(" Sums of a block and micro-batch: forward 2 all-reduces of %s%s, backward 2 of %s; those of the embedding "
            "are whole, and the head has none.",
            bytes_words(forward).text, e->full ? " (1 more to recompute)" : "", bytes_words(backward).text);
}

// What a stage holds, its blocks and the ends of the model, and its forward passes before the first backward pass.
static void say_stage(Explanation* e, const Schedule* schedule) {
    const ParallelConfig* parallel = e->parallel;
    const int ranks = e->mesh->t * e->mesh->d, last = virtual_stages(parallel) - 1;
    int warm = 0;
    for (const Action* a = schedule->actions; !action_is_backward(a->kind); a++) warm += a->kind == FORWARD;
    SAY(" stage %d (%s)", schedule->stage, ranks_words(schedule->stage * ranks, 1, ranks).text);
    for (int c = 0; c < parallel->v; c++) {
        const int number = virtual_stage(e->mesh->p, parallel->folded, schedule->stage, c);
        const int first = stage_first_layer(parallel, e->model->L, number);
        const int end = stage_first_layer(parallel, e->model->L, number + 1);
        if (number == 0) SAY(" the embedding,");
        if (c == 2 && c < parallel->v - 1) SAY(" ..,");
        if (c >= 2 && c < parallel->v - 1) continue; // of many chunks the first two and the last
        SAY(end - first == 1 ? " block %d," : " blocks %d-%d,", first, end - 1);
        if (number == last) SAY(" the final norm and the head,");
    }
    SAY(" %d forward pass%s first;", warm, warm == 1 ? "" : "es");
}

static void explain_pipeline(Explanation* e) {
    const ParallelConfig* parallel = e->parallel;
    const PipelineConfig* config = &e->t->schedule.config;
    const int64_t n = (int64_t)e->stage->B * e->stage->T * e->layout->streams * e->model->C;
    const int64_t sent = boundary_elements(parallel, n);
    const int next = e->mesh->t * e->mesh->d * schedule_peer(&e->t->schedule, SEND_FORWARD, 0), last = e->mesh->p - 1;
    if (e->mesh->p == 1) return;
    Schedule* stages = schedules_build(config);
    SAY("Pipeline parallel (docs/schedules.md). Schedule %s; the stages, what they hold, and how many forward passes "
        "they make before the first backward pass:",
        schedule_name(config->kind));
    for (int i = 0; i < e->mesh->p; i++) {
        if (i < 3 || i == last) say_stage(e, &stages[i]);
        if (i == 3 && i < last) SAY(" ..;");
    }
    SAY(" at most %d micro-batch%s of activations are kept on stage 0, %d on stage %d.", stages[0].slots,
        stages[0].slots == 1 ? "" : "es", stages[last].slots, last);
    if (parallel->v > 1)
        SAY(" (A stage has %d chunks, in a %s, and keeps activations by chunk.)", parallel->v,
            parallel->folded ? "V" : "loop");
    if (e->stage->split_backward)
        SAY(" A backward pass has two halves: the input gradient, for which another stage waits, and the weight "
            "gradients, which fill gaps.");
    SAY(" By formula the stages stand idle for %.3f of their working time (the bubble).", pipeline_bubble(config));
    SAY(" After a forward pass rank 0 sends %s, ", bytes_words((double)sent * sizeof(floatX)).text);
    if (sent < n) SAY("its 1/%d of ", e->mesh->t);
    SAY("the output, to rank %d%s; after its backward pass rank %d sends as much of the gradient back.", next,
        sent < n && !parallel->sequence_parallel ? ", whose tensor group gathers the parts" : "", next);
    if (embedding_is_split(e->layout, e->model))
        SAY(" Embedding and head are one matrix (tied): stages 0 and %d add up its two gradients, %s a rank, once a "
            "step.",
            last, bytes_words(traffic_of_stage(e->stage, e->layout, 1).tied).text);
    SAY(" Rank 0 sends %s a step to other stages.", bytes_words(e->sends.pipeline).text);
    schedules_free(stages, e->mesh->p);
}

static void say_zero(Explanation* e) {
    const long long n = (long long)e->layout->elements;
    if (e->parallel->zero == 0) return;
    SAY(" ZeRO-%d: a replica gets the sum of its 1/%d of every bucket, %lld of rank 0's %lld padded parameters; it "
        "alone has their optimizer state and updates them; then all get the new ones by an all-gather.",
        e->parallel->zero, e->mesh->d, n / e->mesh->d, n);
    if (e->parallel->zero == 2) SAY(" Of gradients it keeps this part, and one or two whole buckets at a time.");
}

static void explain_data(Explanation* e) {
    const ParallelConfig* parallel = e->parallel;
    const int k = mesh_site_size(e->mesh), block = layout_slice(e->layout, 0, NORM1_W)->bucket;
    const double sent = (e->sends.data - e->sends.inter_site) * sums_factor(&e->t->data_plans[PLAN_ALL_REDUCE]);
    if (k == 1) return;
    SAY("Data parallel (docs/data_parallel.md). The %s hold the same slices%s and compute gradients of different "
        "sequences. As soon as the backward pass of a block is over%s, %s of its gradients, %s, starts, while the "
        "block before it computes.",
        ranks_words(0, e->mesh->t, k).text, e->mesh->sites > 1 ? " in a site" : "",
        parallel->zero < 2 && e->t->schedule.config.m > 1 ? " in the last micro-batch" : "",
        parallel->zero || e->stage->grads.hierarchical ? "a reduce-scatter" : "an all-reduce",
        bytes_words((double)e->layout->bucket[block].elements * sizeof(float)).text);
    say_zero(e);
    SAY(" Rank 0 sends %s a step in its data group.", bytes_words(sent).text);
}

static void explain_sites(Explanation* e) {
    static const char* const modes[] = {
        "every step waits for the sum of the gradients over the sites",
        "each site updates weights of its own, sends their change, and merges the mean of all changes",
        "each site trains alone, then sends its distance from the global weights; an outer optimizer applies the mean"};
    char mode[256] = "sync";
    const Mesh* mesh = e->mesh;
    const int k = mesh_site_size(mesh);
    const double sent = e->sends.inter_site * sums_factor(&e->t->inter_site_plans[PLAN_ALL_REDUCE]);
    if (mesh->sites == 1 && !e->stage->async) return;
    if (e->stage->async) async_schedule_text(mode, sizeof mode, &e->stage->async->config);
    SAY("Sites (docs/async_dp.md). %d site%s of %d replica%s: stage 0 of site 0 is %s. %s: %s.", mesh->sites,
        plural(mesh->sites), k, plural(k), ranks_words(0, 1, mesh->t * k).text, mode,
        mesh->sites == 1 ? "there is no other site" : modes[e->t->settings.dp_mode]);
    if (mesh->sites == 1) return;
    if (k > 1) SAY(" A member of a site exchanges 1/%d with other sites, then the site gathers the parts.", k);
    SAY(" Rank 0 sends %s a step to other sites, on average.", bytes_words(sent).text);
}

// The plans of sums between replicas, in a site and between sites: steps and first message.
static void explain_collectives(Explanation* e) {
    for (int i = 0; i < 2 * PLAN_KINDS; i++) {
        const bool inter_site = i >= PLAN_KINDS;
        const Plan* plan = inter_site ? &e->t->inter_site_plans[i - PLAN_KINDS] : &e->t->data_plans[i];
        const int k = mesh_site_size(e->mesh), step = e->mesh->t * (inter_site ? k : 1);
        if (!plan->n) continue;
        if (!e->text[0]) SAY("All-reduce algorithm (docs/collectives.md); bytes above are the mean of its ranks.");
        SAY(" By %s (%s) the %s%s takes %d step%s with 1/%d parts of a %s; first rank %d sends %d of them to rank %d.",
            plan->name, allreduce_network(e->t, inter_site), plan_kind_name(plan->kind),
            inter_site ? " between sites" : "", plan->steps, plural(plan->steps), plan->chunks,
            inter_site && k > 1 ? "rank's share of a bucket" : "bucket", plan->transfers[0].from * step,
            plan->transfers[0].chunks, plan->transfers[0].to * step);
    }
}

static void explain(const Trainer* t) {
    static void (*const paragraphs[])(Explanation*) = {explain_step,    explain_memory,     explain_tensor,
                                                       explain_streams, explain_pipeline,   explain_data,
                                                       explain_sites,   explain_collectives};
    const Stage* stage = &t->stage;
    const Layout* layout = &stage->layout;
    const double stream = (double)stage->B * stage->T * stage->model.C * sizeof(floatX);
    const bool full = layout->parallel.recompute == RECOMPUTE_FULL;
    Explanation e = {t,  stage, layout, &layout->parallel.mesh, &layout->parallel, &stage->model, stream, full,
                     {}, {},    ""};
    for (size_t i = 0; i < sizeof paragraphs / sizeof paragraphs[0]; i++) {
        paragraphs[i](&e);
        end_paragraph(&e);
    }
}
