/*
trainer/derived.h: what follows from the settings: the model, the learning rates, the mesh, the batch; and which of the
options do not go together.

Every rank reads the same command line and derives the same values, so all ranks refuse a wrong one (die_usage).
*/
#pragma once

#include "../methods/async_schedule.h"
#include "settings.h"

#include <ctype.h>

// ---- The model --------------------------------------------------------------------------------------------------

// Refuses --model with the names that begin as it does, without case, if these are few; else with all.
static inline void unknown_model(const char* name) {
    enum { FEW = 4 };
    int count, longest = 3, n = 0; // shorter beginnings say nothing
    char like[FEW * 64] = "", all[1024] = "";
    const ModelConfig* presets = model_presets(&count);
    for (int i = 0; i < count; i++) {
        int same = 0;
        append_text(all, sizeof all, i ? " %s" : "%s", presets[i].name);
        while (name[same] && tolower((unsigned char)name[same]) == tolower((unsigned char)presets[i].name[same]))
            same++;
        if (same < longest) continue;
        if (same > longest) like[n = 0] = 0;
        longest = same;
        if (n < FEW) append_text(like, sizeof like, n ? ", %s" : "%s", presets[i].name);
        n++;
    }
    if (n > 0 && n <= FEW) die_usage("--model %s is not known; did you mean %s?", name, like);
    die_usage("--model %s is not known; there are %s", name, all);
}

// The model of the settings: a preset, changed by the sizes that were given. data_vocab: the vocabulary of the data.
static inline ModelConfig settings_model(const Settings* o, Option* table, int n, int data_vocab) {
    const ModelConfig* preset = model_find_preset(o->model);
    if (!preset) unknown_model(o->model);
    ModelConfig m = *preset;
    const bool named = option_given(table, n, "model");
    if (option_given(table, n, "arch") && o->arch != (int)m.arch) {
        model_set_arch(&m, (Arch)o->arch);
        m.F = model_usual_ffn(&m);
    }
    if (o->layers) m.L = (int)o->layers;
    if (o->hidden) {
        m.C = (int)o->hidden;
        m.F = model_usual_ffn(&m);
    }
    if (o->heads) m.NH = m.NKV = (int)o->heads;
    if (o->kv_heads) m.NKV = (int)o->kv_heads;
    if (o->ffn) m.F = (int)o->ffn;
    if (o->tie_embeddings >= 0) m.tied = o->tie_embeddings;
    if (o->seq > m.T || (o->seq && !named)) m.T = (int)o->seq;
    if (o->vocab)
        m.V = (int)o->vocab;
    else if (!named)
        m.V = data_vocab;
    if (!model_same(&m, preset)) m.name = "custom";
    Error error;
    if (!model_check(&m, &error)) die_usage("%s", error.text);
    return m;
}

// The model of the weights in path, where these name it: options that contradict it are refused, except fewer
// positions, and more where the model has no table of positions.
static inline ModelConfig settings_model_of(const Settings* o, Option* table, int n, const ModelConfig* stored,
                                            const char* path) {
    const bool learned = stored->position == POSITION_LEARNED, named = option_given(table, n, "model"),
               arch_given = option_given(table, n, "arch");
    const ModelConfig meant =
        named ? settings_model(o, table, n, 0) : *stored; // --model, changed by the sizes given beside it
    const struct {
        const char* name;
        int64_t given, meant, stored; // 0: not given
    } sizes[] = {{"layers", o->layers, meant.L, stored->L},
                 {"hidden", o->hidden, meant.C, stored->C},
                 {"heads", o->heads, meant.NH, stored->NH},
                 {"kv-heads", o->kv_heads, meant.NKV, stored->NKV},
                 {"ffn", o->ffn, meant.F, stored->F},
                 {"vocab", o->vocab, meant.V, stored->V},
                 {"seq", learned && o->seq > stored->T ? o->seq : 0, stored->T, stored->T}};
    if ((arch_given ? (Arch)o->arch : meant.arch) != stored->arch)
        die_usage("--%s %s, but %s is a %s: give --arch %s, or drop it", arch_given ? "arch" : "model",
                  arch_given ? model_arch_name((Arch)o->arch) : o->model, path, model_arch_name(stored->arch),
                  model_arch_name(stored->arch));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].given && sizes[i].given != sizes[i].stored)
            die_usage("--%s %lld, but %s has %lld: give --%s %lld, or drop it", sizes[i].name,
                      (long long)sizes[i].given, path, (long long)sizes[i].stored, sizes[i].name,
                      (long long)sizes[i].stored);
        if (!sizes[i].given && sizes[i].meant != sizes[i].stored)
            die_usage("--model %s has --%s %lld, but %s has %lld: drop --model, as the weights say what they are",
                      o->model, sizes[i].name, (long long)sizes[i].meant, path, (long long)sizes[i].stored);
    }
    if (o->tie_embeddings >= 0 && o->tie_embeddings != (int)stored->tied)
        die_usage("--tie-embeddings %s, but %s has %s: drop the option", o->tie_embeddings ? "yes" : "no", path,
                  stored->tied ? "one matrix for embedding and head" : "a matrix for each of embedding and head");
    ModelConfig m = *stored;
    if (o->seq > m.T) m.T = (int)o->seq;
    return m;
}

// ---- Rates and options that go together ---------------------------------------------------------------------------

// Sets the learning rates and the warm-up that were not given. With trained weights (--init) lr is a tenth, the rate at
// which a run with these defaults ends; the 5e-5 usual for fine-tuning GPT-2 is close to that.
static inline void settings_rates(Settings* o, const ModelConfig* m) {
    const double own = optimizers[o->optimizer].lr, usual = own > 0 ? own : usual_rate((double)model_parameters(m));
    if (o->lr < 0) o->lr = o->init ? to_digits(usual / 10, 2) : usual;
    if (o->min_lr < 0) o->min_lr = to_digits(o->lr / 10, 6);
    if (o->warmup < 0) o->warmup = min_i64(2000, o->steps / 20);
    if (o->min_lr > o->lr) die_usage("--min-lr %g is above --lr %g", o->min_lr, o->lr);
}

// The learning rate of update number `step` (from 0): linear warm-up, then the decay to min_lr at the last step.
static inline double learning_rate(const Settings* o, int64_t step) {
    if (step < o->warmup) return o->lr * (double)(step + 1) / (double)o->warmup;
    const double span = (double)max_i64(1, o->steps - 1 - o->warmup);
    const double progress = fmin(1, (double)(step - o->warmup) / span);
    return o->min_lr + (o->lr - o->min_lr) * lr_curves[o->decay].decay(progress);
}

// Whether the command line asks only for work other than training. Call it before a file of options is read, which is
// of a run that has trained.
static inline bool settings_only_use(const Settings* o, Option* table, int n) {
    const bool asks = o->generate || option_given(table, n, "evaluate") || option_given(table, n, "export");
    return option_given(table, n, "steps") ? o->steps == 0 : asks;
}

static inline OptimizerConfig settings_optimizer(const Settings* o) {
    const OptimizerConfig config = {(int)o->optimizer, o->beta1, o->beta2, o->eps, o->weight_decay, o->seed};
    return config;
}

// Refuses options of another mode of data parallelism, which would have no effect.
static inline bool mode_options_check(const Settings* o, Error* error) {
    const struct {
        const char* name;
        bool given;
        DpMode mode;
    } options[] = {{"dc-lambda", o->dc_lambda >= 0, DP_DC_S3GD},
                   {"local-steps", o->local_steps > 0, DP_DILOCO},
                   {"outer-lr", o->outer_lr >= 0, DP_DILOCO},
                   {"outer-momentum", o->outer_momentum >= 0, DP_DILOCO}};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (options[i].given && options[i].mode != (DpMode)o->dp_mode)
            return fail(error, "--%s has no effect with --dp-mode %s; it belongs to %s", options[i].name,
                        dp_mode_names[o->dp_mode], dp_mode_names[options[i].mode]);
    }
    if (o->on_nan && o->dp_mode != DP_SYNC)
        return fail(error, "--on-nan skip needs all ranks in every step, which --dp-mode %s does not; drop one",
                    dp_mode_names[o->dp_mode]);
    return true;
}

static inline double given_or(double value, double usual) { return value < 0 ? usual : value; }

// The configuration of --dp-mode and its options, for a number of sites.
static inline bool settings_async(AsyncConfig* config, const Settings* o, int sites, Error* error) {
    AsyncConfig r = {settings_is_training(o) ? (DpMode)o->dp_mode : DP_SYNC, sites, 1, 0, 0, 0};
    if (r.mode == DP_DC_S3GD) r.compensation = given_or(o->dc_lambda, 0.2);
    if (r.mode == DP_DILOCO) {
        r.period = o->local_steps ? o->local_steps : 32;
        r.outer_lr = given_or(o->outer_lr, 0.7);
        r.outer_momentum = given_or(o->outer_momentum, 0.9);
    }
    *config = r;
    if (r.mode != DP_DILOCO || o->steps >= r.period) return true;
    return fail(
        error,
        "--steps %lld ends before the first outer step (--local-steps %lld); use more --steps, or fewer --local-steps",
        (long long)o->steps, (long long)r.period);
}

// Whether the sums of --allreduce are MPI's or NCCL's own.
static inline bool is_native(const char* allreduce) { return allreduce && strcmp(allreduce, "native") == 0; }

// Refuses options of sums, over tensor ranks or replicas, that miss another one.
static inline bool sum_options_check(const Settings* o, Error* error) {
    if (o->caat_fraction == 1 && !o->caat_ranks && o->caat_grad_dtype)
        return fail(error, "--caat-grad-dtype needs --caat-fraction P or --caat-ranks N");
    if (o->topology && (!o->allreduce || is_native(o->allreduce)))
        return fail(error, "--topology needs --allreduce NAME, an algorithm that is planned for it");
    return true;
}

static inline void check_settings(Settings* o) {
    if (!settings_is_training(o) && o->out && !o->resume)
        die_usage(
            "--out %s: where nothing is trained nothing is written there; add --resume to use its newest checkpoint",
            o->out);
    const char* needs_out = NULL;
    if (o->keep_last) needs_out = "keep-last";
    if (o->save_every && o->save_every != settings_default().save_every) needs_out = "save-every";
    if (o->resume) needs_out = "resume";
    if (needs_out && !o->out) die_usage("--%s needs --out DIR", needs_out);
    if (o->explain && !settings_is_training(o)) die_usage("--explain explains a training step; add --steps 1 or more");
    Error error;
    if (!sum_options_check(o, &error) || !mode_options_check(o, &error)) die_usage("%s", error.text);
    if (o->generate && settings_is_training(o) && !o->sample_every)
        die_usage("--generate with --steps %lld: samples begin with the text, and --sample-every 0 has none",
                  (long long)o->steps);
    if (o->temperature == 0 && (o->top_k > 0 || o->top_p < 1))
        die_usage("--%s has no meaning with --temperature 0, which takes the likeliest token",
                  o->top_k > 0 ? "top-k" : "top-p");
    const Settings usual = settings_default();
    const bool adamw = optimizers[o->optimizer].beta2;
    const char* foreign = !adamw && o->eps != usual.eps ? "eps" : NULL;
    if (!adamw && o->beta2 != usual.beta2) foreign = "beta2";
    if (foreign) die_usage("--%s has no meaning with --optimizer %s", foreign, optimizers[o->optimizer].name);
}

// ---- The mesh and the batch ---------------------------------------------------------------------------------------

// --vpp alone means an interleaved schedule; a schedule alone has its usual number of chunks.
static inline void settings_schedule(Settings* o, bool schedule_given) {
    if (o->vpp > 1 && !schedule_given) o->schedule = INTERLEAVED;
    if (!o->vpp) o->vpp = schedule_usual_chunks((ScheduleKind)o->schedule);
    if (o->pp > 1 || (o->schedule == ONE_F_ONE_B && o->vpp == 1)) return;
    die_usage("--%s needs a pipeline, --pp 2 or more",
              schedule_given && o->schedule != ONE_F_ONE_B ? "schedule" : "vpp");
}

// The CAAT-Net of the settings on t tensor ranks; all zeros: an ordinary model.
static inline CaatConfig settings_caat(const Settings* o, int t) {
    const CaatConfig none = {0, 0, false};
    const CaatConfig caat = {o->caat_ranks ? (int)o->caat_ranks : t, o->caat_fraction, o->caat_grad_dtype == 1};
    return o->caat_fraction < 1 || o->caat_ranks ? caat : none;
}

// The mesh of the settings, at rank `rank` of the `there` that were started. A dry run on one rank may have any mesh.
static inline ParallelConfig settings_parallel(Settings* o, int rank, int64_t there) {
    const int64_t model_ranks = o->tp * o->pp;
    const bool trains = settings_is_training(o), sync = o->dp_mode == DP_SYNC;
    const bool imagined = o->dry_run && there == 1;
    char start[64] = "";
    if (there == 1)
        snprintf(start, sizeof start, "; start them with scripts/mpirun.sh -np %lld",
                 (long long)(model_ranks * max_i64(1, o->dp)));
    if (!imagined && there % model_ranks != 0) {
        die_usage("--tp %lld x --pp %lld = %lld does not divide the %lld rank%s that were started%s", (long long)o->tp,
                  (long long)o->pp, (long long)model_ranks, (long long)there, plural(there), start);
    }
    if (!o->dp) o->dp = imagined ? 1 : there / model_ranks;
    if (!imagined && o->dp * model_ranks != there) {
        die_usage("--tp %lld x --pp %lld x --dp %lld = %lld ranks, but %lld were started%s", (long long)o->tp,
                  (long long)o->pp, (long long)o->dp, (long long)(o->dp * model_ranks), (long long)there, start);
    }
    if (o->dp * model_ranks > INT32_MAX) die_usage("--tp x --pp x --dp is more than 2^31 ranks");
    ParallelConfig parallel = parallel_of_rank(imagined ? 0 : rank, (int)o->tp, (int)o->pp, (int)o->dp);
    parallel_set_schedule(&parallel, (ScheduleKind)o->schedule, (int)o->vpp);
    parallel.sequence_parallel = o->sequence_parallel;
    parallel.tp_overlap = o->tp_comm_overlap && trains;
    parallel.scatter = !o->no_scatter_gather;
    parallel.zero = parallel.mesh.d > 1 && trains ? (int)o->zero : 0; // one replica has nothing to shard
    parallel.canonical = trains ? (int)o->canonical : 0;
    parallel.recompute = trains ? (Recompute)o->recompute : RECOMPUTE_NONE;
    if (!trains) o->sites = 1;
    if (!o->sites) o->sites = sync ? 1 : parallel.mesh.d;
    parallel.mesh.sites = (int)o->sites;
    Error error;
    if (!parallel_check_sites(&parallel, sync, &error)) die_usage("%s", error.text);
    parallel.caat = settings_caat(o, parallel.mesh.t);
    return parallel;
}

// Sets the batch sizes that were not given: 16 sequences, in micro-batches of at most 16, small enough that a pipeline
// has four times as many of them as stages if possible; with --canonical a leaf each, on every mesh.
static inline void settings_batch(Settings* o) {
    const int64_t many = o->pp > 1 ? 4 * o->pp : 1;
    const int64_t groups = schedule_group((ScheduleKind)o->schedule, (int)o->pp); // divides a replica's micro-batches
    const bool trains = settings_is_training(o);
    if (!trains && !o->micro_batch && !o->global_batch) o->micro_batch = o->evaluate ? 4 : 1;
    if (!o->global_batch) {
        o->global_batch =
            o->micro_batch ? o->micro_batch * o->dp * many : (int64_t)round_up(16, (size_t)(o->dp * groups));
    }
    if (o->global_batch % o->dp != 0) {
        die_usage("--global-batch %lld is not a multiple of --dp %lld", (long long)o->global_batch, (long long)o->dp);
    }
    const int64_t replica = o->global_batch / o->dp;
    if (!o->micro_batch) {
        const int64_t leaf = trains && o->canonical ? o->global_batch / o->canonical : replica / many;
        o->micro_batch = max_i64(1, min_i64(16, leaf));
        while (o->micro_batch > 1 && (replica % o->micro_batch != 0 || replica / o->micro_batch % groups != 0))
            o->micro_batch--;
    }
    if (replica % o->micro_batch != 0) {
        die_usage("--global-batch %lld / --dp %lld is not a multiple of --micro-batch %lld", (long long)o->global_batch,
                  (long long)o->dp, (long long)o->micro_batch);
    }
    Error error;
    if (!parallel_check_halves(o->tp_comm_overlap && trains, o->micro_batch, &error)) die_usage("%s", error.text);
    if (replica / o->micro_batch > 1 << 24) die_usage("--global-batch %lld is too large", (long long)o->global_batch);
}
