/*
trainer/settings.h: the command line as one table, and the values derived from it: the model, the mesh, the batch, the
learning rate, and the default text to train on.

Every rank reads the same command line and derives the same values, so all ranks refuse a wrong one (die_usage).
*/
#pragma once

#include "../util/base.h"
#include "../comm/collectives/collectives.h"
#include "../model.h"
#include "../util/options.h"
#include "../parallel/schedule.h"
#include "../methods/async_schedule.h"

#include <ctype.h>

// ---- The learning rate of every update, and its default by the model's size -------------------------------------

typedef struct {
    const char* name;
    double (*decay)(double progress); // the part of lr - min_lr that is left: 1 at progress 0, 0 at progress 1
} LrCurve;

static double lr_cosine(double progress) { return 0.5 * (1 + cos(3.141592653589793 * progress)); }
static double lr_linear(double progress) { return 1 - progress; }
// Warm-up, stable, decay: constant, then linear over the last fifth (Hu et al. 2024, MiniCPM).
static double lr_wsd(double progress) { return fmin(1, (1 - progress) / 0.2); }

// --decay, its help and the start-up report iterate it.
static const LrCurve lr_curves[] = {{"cosine", lr_cosine}, {"linear", lr_linear}, {"wsd", lr_wsd}};
enum { LR_CURVES = sizeof lr_curves / sizeof lr_curves[0] };

// The optimizers, in the order of kernels/optimizers.h: whether --beta2 and --eps apply; the default of --lr, 0: by the
// model's size.
static const struct {
    const char* name;
    bool beta2;
    double lr;
} optimizer_names[] = {{"adamw", true, 0}, {"sgd", false, 3e-3}};

// "cosine|linear|...", for the table of options.
static inline const char* lr_curve_choices(void) {
    static char text[128];
    if (text[0]) return text;
    for (int i = 0; i < LR_CURVES; i++) append_choice(text, sizeof text, lr_curves[i].name);
    return text;
}

// The learning rate of update number `step` (from 0): linear warm-up, then the decay to min_lr at the last step.
static inline double lr_at(const LrCurve* curve, double lr, double min_lr, int64_t warmup, int64_t steps,
                           int64_t step) {
    if (step < warmup) return lr * (double)(step + 1) / (double)warmup;
    const double span = (double)max_i64(1, steps - 1 - warmup);
    const double progress = fmin(1, (double)(step - warmup) / span);
    return min_lr + (lr - min_lr) * curve->decay(progress);
}

// x rounded to `digits` decimal digits: short to type, and independent of a machine's rounding in pow().
static inline double to_digits(double x, int digits) {
    char text[32];
    snprintf(text, sizeof text, "%.*e", digits - 1, x);
    return strtod(text, NULL);
}

// The default peak learning rate of AdamW for N parameters: table 2.1 of Brown et al. 2020 (GPT-3), with log lr linear
// in log N between its rows. Below its first row the rate falls as 1 / width (Yang et al. 2022, Tensor Programs V), N
// being about width^3, up to 3e-3, which suits the model tiny.
static inline double usual_rate(double parameters) {
    static const struct {
        double parameters, lr;
    } table[] = {{125e6, 6e-4},   {350e6, 3e-4},   {760e6, 2.5e-4}, {1.3e9, 2e-4},
                 {2.7e9, 1.6e-4}, {6.7e9, 1.2e-4}, {13e9, 1e-4},    {175e9, 0.6e-4}};
    const int rows = (int)(sizeof table / sizeof table[0]);
    double lr = table[rows - 1].lr;
    for (int i = rows - 2; i >= 0 && parameters < table[i + 1].parameters; i--) {
        const double share = log(parameters / table[i].parameters) / log(table[i + 1].parameters / table[i].parameters);
        lr = table[i].lr * pow(table[i + 1].lr / table[i].lr, share);
    }
    if (parameters < table[0].parameters) lr = fmin(3e-3, table[0].lr * cbrt(table[0].parameters / parameters));
    return to_digits(lr, 2);
}

typedef enum { ON_NAN_STOP, ON_NAN_SKIP } OnNan;

enum { MAX_SKIPPED_IN_ROW = 10 }; // skipped steps; the last of them ends the run

typedef struct {
    const char *model, *init, *export_to, *data, *val, *tokenizer, *evaluate, *out, *trace, *config;
    const char* generate;          // NULL: not asked for
    int64_t max_new_tokens, top_k; // 0: the default; all
    double temperature, top_p;
    int arch, decay; // choices
    int64_t layers, hidden, heads, kv_heads, ffn, seq, vocab;
    int tie_embeddings; // choice; -1: as the architecture
    int64_t micro_batch, global_batch;
    int64_t tp, pp, dp, zero;
    int64_t vpp;             // 0: the schedule's default
    int recompute, schedule; // choices
    bool sequence_parallel, tp_comm_overlap, no_scatter_gather;
    int dp_mode; // choice
    int64_t sites, local_steps;
    double dc_lambda, outer_lr, outer_momentum; // -1: by the mode
    int optimizer;                              // choice
    const char *allreduce, *topology;
    double caat_fraction; // 1: an ordinary model
    int64_t caat_ranks;
    int caat_grad_dtype; // choice
    double lr, min_lr;   // -1: by settings_rates
    double weight_decay, beta1, beta2, eps, clip;
    int64_t warmup; // -1: by settings_rates
    int64_t steps, log_every, eval_every, eval_sequences, sample_every, save_every, keep_last, seed, watchdog,
        check_replicas_every;
    int on_nan; // OnNan
    bool resume, dry_run, explain, version, help;
} Settings;

// The defaults: the model "tiny" on default_data(), a minute or two on a laptop.
static inline Settings settings_default(void) {
    Settings s = {};
    s.model = "tiny";
    s.tp = 1;
    s.pp = 1;
    s.schedule = ONE_F_ONE_B;
    s.caat_fraction = 1;
    s.dc_lambda = -1;
    s.outer_lr = -1;
    s.outer_momentum = -1;
    s.lr = -1;
    s.min_lr = -1;
    s.weight_decay = 0.1;
    s.beta1 = 0.9;
    s.beta2 = 0.95;
    s.eps = 1e-8;
    s.clip = 1;
    s.warmup = -1;
    s.steps = 1000;
    s.log_every = 1;
    s.eval_every = 200;
    s.eval_sequences = 64;
    s.sample_every = 1000;
    s.seed = 42;
    s.temperature = 0.8;
    s.top_p = 1;
    s.watchdog = 600;
    s.check_replicas_every = 100;
    s.save_every = 1000;
    s.tie_embeddings = -1;
    return s;
}

enum { MAX_OPTIONS = 112 };

static inline void add_model_options(OptionTable* table, Settings* s) {
    const double size = 1 << 30;
    const Option rows[] = {
        option_heading("model"),
        option_string("model", &s->model, "NAME",
                      "tiny, gpt2-124M, llama-1.1B, ...: a published size; a wrong name lists all"),
        option_choice("arch", &s->arch, model_arch_choices(),
                      "architecture; with the sizes below instead of --model, or to change it"),
        option_int("layers", &s->layers, 1, 10000, "blocks"),
        option_int("hidden", &s->hidden, 1, 1 << 20, "channels of the residual stream"),
        option_int("heads", &s->heads, 1, 1 << 16, "query heads"),
        option_int("kv-heads", &s->kv_heads, 1, 1 << 16, "key/value heads (llama)"),
        option_int("ffn", &s->ffn, 1, 1 << 22, "channels inside the mlp"),
        option_int("seq", &s->seq, 1, 1 << 24, "tokens in a training sequence"),
        option_int("vocab", &s->vocab, 2, size, "vocabulary [the data's]"),
        option_choice("tie-embeddings", &s->tie_embeddings, "no|yes",
                      "the head is the token embedding [gpt2: yes, llama: no]"),
        option_string("init", &s->init, "PATH",
                      "start from these weights: a folder of Hugging Face's, which says its model's sizes, or a "
                      ".safetensors file"),
        option_command(option_string("export", &s->export_to, "PATH",
                                     "at the end write the weights alone: a folder as Hugging Face has it")),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

static inline void add_data_options(OptionTable* table, Settings* s) {
    const Option rows[] = {
        option_heading("data"),
        option_string("data", &s->data, "GLOB",
                      "files to train on, comma-separated: llm.c shards, Megatron's .bin/.idx, any text, .jsonl (its "
                      "field \"text\"), one after the other"),
        option_string("val", &s->val, "GLOB",
                      "files to validate on; without it 5 % of the data, in blocks spread over them, are held out"),
        option_string("tokenizer", &s->tokenizer, "PATH",
                      "vocabulary of texts and .jsonl, and of shards, to show samples as text [the one beside the "
                      "weights, the first shard or .jsonl; else texts are bytes]"),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

static inline void add_mesh_options(OptionTable* table, Settings* s) {
    const double size = 1 << 30;
    const Option rows[] = {
        option_heading("batch, in sequences"),
        option_int("micro-batch", &s->micro_batch, 1, 1 << 20,
                   "sequences in one forward pass [what fits the rest, at most 16]"),
        option_int("global-batch", &s->global_batch, 1, size,
                   "sequences in one update, over all ranks [16, or what --micro-batch, --dp and --pp need]"),
        option_heading("mesh: ranks = tp x pp x dp"),
        option_int("tp", &s->tp, 1, 1 << 16, "tensor-parallel ranks: each has a share of every matrix"),
        option_int("pp", &s->pp, 1, 1 << 16, "pipeline stages: each has a part of the layers"),
        option_choice("schedule", &s->schedule, schedule_choices(),
                      "order of a pipeline's work; interleaved and zb-v cut it finer, zb-* backward passes in halves"),
        option_int("vpp", &s->vpp, 1, 1000, "chunks of the model on each stage [2 for interleaved and zb-v, else 1]"),
        option_int("dp", &s->dp, 1, 1 << 20, "data-parallel replicas: each has a part of the batch [the ranks left]"),
        option_flag("sequence-parallel", &s->sequence_parallel,
                    "norms and residual stream on 1/tp of the positions each"),
        option_flag("tp-comm-overlap", &s->tp_comm_overlap,
                    "compute a micro-batch as two halves in turn; tensor sums of one are in flight meanwhile"),
        option_int("zero", &s->zero, 0, 2, "1: optimizer state divided over dp, 2: gradients too"),
        option_choice("recompute", &s->recompute, "none|selective|full",
                      "what the backward pass computes again to save memory: norms and activation function, or all"),
        option_flag("no-scatter-gather", &s->no_scatter_gather,
                    "every tensor rank sends the whole stage output to the next stage, not 1/tp of it"),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

static inline void add_async_options(OptionTable* table, Settings* s) {
    static char allreduce_help[320];
    snprintf(
        allreduce_help, sizeof allreduce_help,
        "by a plan of comm/collectives/collectives.h: %s; or native, MPI's or NCCL's own [halving-doubling between "
        "2, 4, 8, ... processes, else ring; on GPUs native]",
        algorithm_names());
    const Option rows[] = {
        option_heading("asynchronous data parallelism"),
        option_choice("dp-mode", &s->dp_mode, "sync|dc-s3gd|diloco",
                      "what sites send each other: gradients; weight changes, used one step late with delay "
                      "compensation; the weight change of many steps"),
        option_int("sites", &s->sites, 1, 1 << 20,
                   "groups of replicas; those of one site sum their gradients in every step [sync: 1, "
                   "else every replica is one]"),
        option_float("dc-lambda", &s->dc_lambda, 0, 1e3,
                     "dc-s3gd: norm of the delay compensation, in norms of the gradient; 0 = none [0.2]"),
        option_int("local-steps", &s->local_steps, 1, 1 << 16, "diloco: steps of a round [32]"),
        option_float("outer-lr", &s->outer_lr, 0, 1e3, "diloco: learning rate of the outer optimizer [0.7]"),
        option_float("outer-momentum", &s->outer_momentum, 0, 0.999999, "diloco: its momentum [0.9]"),
        option_heading("all-reduce algorithm"),
        option_string("allreduce", &s->allreduce, "NAME", allreduce_help),
        option_string(
            "topology", &s->topology, "NAME",
            "of the network that joins the replicas: torus:4x4, mesh:2x3, ring:8, fattree:4,2, ... or a file of links "
            "[full:N, all to all]"),
        option_heading("CAAT-Net (partial tensor-parallel all-reduce)"),
        option_float("caat-fraction", &s->caat_fraction, 0, 1, "channels that are summed; 1 = all, an ordinary model"),
        option_int(
            "caat-ranks", &s->caat_ranks, 1, 1 << 16,
            "tensor ranks that the model is made for, a multiple of --tp [--tp]; with fewer it is the same model"),
        option_choice("caat-grad-dtype", &s->caat_grad_dtype, "fp32|same",
                      "in which numbers gradients are summed over ranks; same: in those of the activations"),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

static inline void add_optimizer_options(OptionTable* table, Settings* s) {
    const double big = 1e15;
    const Option rows[] = {
        option_heading("optimizer"),
        option_choice("optimizer", &s->optimizer, "adamw|sgd", "sgd: momentum --beta1, weight decay in the gradient"),
        option_float(
            "lr", &s->lr, 0, 1e3,
            "learning rate after the warm-up [by the model's size, as GPT-3's: 3e-3 for tiny, 6e-4 for 125M, 2e-4 for "
            "1.3B parameters; with --init a tenth of that; sgd: 3e-3]"),
        option_float("min-lr", &s->min_lr, 0, 1e3, "learning rate at the last step [a tenth of --lr]"),
        option_int("warmup", &s->warmup, 0, big, "steps of linear warm-up [a twentieth of --steps, at most 2000]"),
        option_choice("decay", &s->decay, lr_curve_choices(),
                      "from --lr to --min-lr; wsd: constant, linear over the last fifth"),
        option_float("weight-decay", &s->weight_decay, 0, 1e3,
                     "on matrices only (not on norms and biases); adamw: decoupled"),
        option_float("beta1", &s->beta1, 0, 0.999999, "decay of AdamW's first moment; momentum of sgd"),
        option_float("beta2", &s->beta2, 0, 0.999999, "AdamW: decay of the second moment"),
        option_float("eps", &s->eps, 1e-30, 1, "AdamW: added to the root of the second moment"),
        option_float("clip", &s->clip, 0, 1e30, "largest norm of the gradient; 0 = never clip"),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

static inline void add_run_options(OptionTable* table, Settings* s) {
    const double big = 1e15, size = 1 << 30;
    const Option rows[] = {
        option_heading("run"),
        option_int("steps", &s->steps, 0, big,
                   "updates; 0 = nothing is trained or written to --out [0 with --generate, --evaluate or --export]"),
        option_int("log-every", &s->log_every, 1, big, "print the line of every N-th step; log.jsonl in --out has all"),
        option_int("eval-every", &s->eval_every, 0, big, "validate every N steps and at the end; 0 = never"),
        option_int("eval-sequences", &s->eval_sequences, 1, size, "how many sequences to validate on"),
        option_string("evaluate", &s->evaluate, "GLOB",
                      "llm.c's files of multiple choice (HellaSwag, MMLU), comma-separated, which the model answers at "
                      "every validation and at the end; without --steps only that is done, with the model of --init or "
                      "--resume"),
        option_int("sample-every", &s->sample_every, 0, big,
                   "let the model write every N steps and at the end; 0 = never"),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

static inline void add_checkpoint_options(OptionTable* table, Settings* s) {
    const double big = 1e15;
    const Option rows[] = {
        option_int("save-every", &s->save_every, 0, big,
                   "with --out: checkpoint every N steps and at the end; 0 = at the end only"),
        option_int("keep-last", &s->keep_last, 0, big,
                   "checkpoints that are kept: the last N, and the best by validation; 0 = all"),
        option_string("out", &s->out, "DIR",
                      "folder for log.jsonl, options.txt and checkpoints; nothing is written without it"),
        option_command(
            option_flag("resume", &s->resume, "continue from the newest checkpoint in --out, if there is one")),
        option_command(option_any_text("generate", &s->generate, "TEXT",
                                       "let the model of --init or --resume continue this text, on stdout; \"\": write "
                                       "one of its own")),
        option_int("check-replicas-every", &s->check_replicas_every, 0, big,
                   "compare the replicas of parameters every N steps, and before a checkpoint; 0 = never"),
        option_choice("on-nan", &s->on_nan, "stop|skip",
                      "a loss or gradient that is not finite ends the run, or its update is left out, up to ten in a "
                      "row"),
        option_int("watchdog", &s->watchdog, 0, 1e9,
                   "seconds in which no rank moves, after which the run ends and names the one to blame; 0 = never"),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

static inline void add_generation_options(OptionTable* table, Settings* s) {
    const Option rows[] = {
        option_heading("generation: --generate, and samples of a training run"),
        option_int("max-new-tokens", &s->max_new_tokens, 1, 1 << 30,
                   "how many at most [256; the last sample of a training run: 512]"),
        option_float("temperature", &s->temperature, 0, 1e6,
                     "divides the logits before a token is drawn: below 1 likely ones become likelier; 0 = always the "
                     "likeliest"),
        option_int("top-k", &s->top_k, 0, 1 << 30, "draw from the K likeliest tokens only; 0 = all"),
        option_float("top-p", &s->top_p, 0, 1,
                     "draw from the likeliest tokens whose probabilities add up to this; 1 = all"),
        option_heading("debugging and misc"),
        option_string("trace", &s->trace, "FILE", "what every rank did and when, for chrome://tracing or Perfetto"),
        option_int("seed", &s->seed, 0, 9e15, "of the initial weights, the order of the data and the samples"),
        option_command(
            option_string("config", &s->config, "FILE",
                          "read options from it, one --name value a line, as DIR/options.txt of a run has them; "
                          "the command line wins")),
        option_command(option_flag(
            "dry-run", &s->dry_run,
            "print the plan (also of a mesh that is not here): ranks, memory, traffic, schedule; run nothing")),
        option_command(option_flag("explain", &s->explain,
                                   "print in words who holds what and who talks to whom when, with the chapters that "
                                   "derive it; run nothing")),
        option_command(option_flag("version", &s->version, "the version of this program")),
        option_command(option_flag("help", &s->help, "these lines")),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

// Fills table (MAX_OPTIONS rows) with the command line of the trainer; the values go to *s. Returns the number of rows.
static inline int settings_table(Option* table, Settings* s) {
    OptionTable all = {table, 0, MAX_OPTIONS};
    add_model_options(&all, s);
    add_data_options(&all, s);
    add_mesh_options(&all, s);
    add_async_options(&all, s);
    add_optimizer_options(&all, s);
    add_run_options(&all, s);
    add_checkpoint_options(&all, s);
    add_generation_options(&all, s);
    return all.n;
}

// The names of all presets, separated by blanks.
static inline void settings_model_names(char text[1024]) {
    int count;
    const ModelConfig* presets = model_presets(&count);
    text[0] = 0;
    for (int i = 0; i < count; i++) strcat(strcat(text, i ? " " : ""), presets[i].name);
}

// Refuses --model with the names that begin as it does, without case, if these are few; else with all.
static inline void unknown_model(const char* name) {
    enum { FEW = 4 };
    int count, longest = 3, n = 0; // shorter beginnings say nothing
    char like[FEW * 64] = "", names[1024];
    const ModelConfig* presets = model_presets(&count);
    for (int i = 0; i < count; i++) {
        int same = 0;
        while (name[same] && tolower((unsigned char)name[same]) == tolower((unsigned char)presets[i].name[same]))
            same++;
        if (same < longest) continue;
        if (same > longest) like[n = 0] = 0;
        longest = same;
        if (n < FEW) append_text(like, sizeof like, n ? ", %s" : "%s", presets[i].name);
        n++;
    }
    settings_model_names(names);
    if (n > 0 && n <= FEW) die_usage("--model %s is not known; did you mean %s?", name, like);
    die_usage("--model %s is not known; there are %s", name, names);
}

// The model of the settings: a preset, changed by the sizes that were given. data_vocab: the vocabulary of the data.
static inline ModelConfig settings_model(const Settings* s, Option* table, int n, int data_vocab) {
    const ModelConfig* preset = model_find_preset(s->model);
    if (!preset) unknown_model(s->model);
    ModelConfig m = *preset;
    const bool named = option_given(table, n, "model");
    if (option_given(table, n, "arch") && s->arch != (int)m.arch) {
        model_set_arch(&m, (Arch)s->arch);
        m.F = model_usual_ffn(&m);
    }
    if (s->layers) m.L = (int)s->layers;
    if (s->hidden) {
        m.C = (int)s->hidden;
        m.F = model_usual_ffn(&m);
    }
    if (s->heads) m.NH = m.NKV = (int)s->heads;
    if (s->kv_heads) m.NKV = (int)s->kv_heads;
    if (s->ffn) m.F = (int)s->ffn;
    if (s->tie_embeddings >= 0) m.tied = s->tie_embeddings;
    if (s->seq > m.T || (s->seq && !named)) m.T = (int)s->seq;
    if (s->vocab)
        m.V = (int)s->vocab;
    else if (!named)
        m.V = data_vocab;
    if (!model_same(&m, preset)) m.name = "custom";
    Error error;
    if (!model_check(&m, &error)) die_usage("%s", error.text);
    return m;
}

// The model of the weights in path, where these name it: options that contradict it are refused, except fewer
// positions, and more where the model has no table of positions.
static inline ModelConfig settings_model_of(const Settings* s, Option* table, int n, const ModelConfig* stored,
                                            const char* path) {
    const bool learned = stored->position == POSITION_LEARNED, named = option_given(table, n, "model"),
               arch_given = option_given(table, n, "arch");
    const ModelConfig meant =
        named ? settings_model(s, table, n, 0) : *stored; // --model, changed by the sizes given beside it
    const struct {
        const char* name;
        int64_t given, meant, stored; // 0: not given
    } sizes[] = {{"layers", s->layers, meant.L, stored->L},
                 {"hidden", s->hidden, meant.C, stored->C},
                 {"heads", s->heads, meant.NH, stored->NH},
                 {"kv-heads", s->kv_heads, meant.NKV, stored->NKV},
                 {"ffn", s->ffn, meant.F, stored->F},
                 {"vocab", s->vocab, meant.V, stored->V},
                 {"seq", learned && s->seq > stored->T ? s->seq : 0, stored->T, stored->T}};
    if ((arch_given ? (Arch)s->arch : meant.arch) != stored->arch)
        die_usage("--%s %s, but %s is a %s: give --arch %s, or drop it", arch_given ? "arch" : "model",
                  arch_given ? model_arch_name((Arch)s->arch) : s->model, path, model_arch_name(stored->arch),
                  model_arch_name(stored->arch));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].given && sizes[i].given != sizes[i].stored)
            die_usage("--%s %lld, but %s has %lld: give --%s %lld, or drop it", sizes[i].name,
                      (long long)sizes[i].given, path, (long long)sizes[i].stored, sizes[i].name,
                      (long long)sizes[i].stored);
        if (!sizes[i].given && sizes[i].meant != sizes[i].stored)
            die_usage("--model %s has --%s %lld, but %s has %lld: drop --model, as the weights say what they are",
                      s->model, sizes[i].name, (long long)sizes[i].meant, path, (long long)sizes[i].stored);
    }
    if (s->tie_embeddings >= 0 && s->tie_embeddings != (int)stored->tied)
        die_usage("--tie-embeddings %s, but %s has %s: drop the option", s->tie_embeddings ? "yes" : "no", path,
                  stored->tied ? "one matrix for embedding and head" : "a matrix for each of embedding and head");
    ModelConfig m = *stored;
    if (s->seq > m.T) m.T = (int)s->seq;
    return m;
}

// Sets the learning rates and the warm-up that were not given. With trained weights (--init) lr is a tenth, the rate at
// which a run with these defaults ends; the 5e-5 usual for fine-tuning GPT-2 is close to that.
static inline void settings_rates(Settings* o, const ModelConfig* m) {
    const double own = optimizer_names[o->optimizer].lr,
                 usual = own > 0 ? own : usual_rate((double)model_parameters(m));
    if (o->lr < 0) o->lr = o->init ? to_digits(usual / 10, 2) : usual;
    if (o->min_lr < 0) o->min_lr = to_digits(o->lr / 10, 6);
    if (o->warmup < 0) o->warmup = min_i64(2000, o->steps / 20);
    if (o->min_lr > o->lr) die_usage("--min-lr %g is above --lr %g", o->min_lr, o->lr);
}

// Learning rate of update number `step` (from 0).
static inline double learning_rate(const Settings* s, int64_t step) {
    return lr_at(&lr_curves[s->decay], s->lr, s->min_lr, s->warmup, s->steps, step);
}

// ---- Derived values ---------------------------------------------------------------------------------------------

// Whether the run trains. Else it has weights, forward passes and text, but no gradients, moments or checkpoints.
static inline bool settings_is_training(const Settings* o) { return o->steps > 0; }

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
static inline bool settings_async_config(AsyncConfig* config, const Settings* o, int sites, Error* error) {
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

static inline AsyncConfig settings_async(const Settings* o, const Mesh* mesh) {
    AsyncConfig config;
    Error error;
    if (!settings_async_config(&config, o, mesh->sites, &error)) die_usage("%s", error.text);
    return config;
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
    const bool adamw = optimizer_names[o->optimizer].beta2;
    const char* foreign = !adamw && o->eps != usual.eps ? "eps" : NULL;
    if (!adamw && o->beta2 != usual.beta2) foreign = "beta2";
    if (foreign) die_usage("--%s has no meaning with --optimizer %s", foreign, optimizer_names[o->optimizer].name);
}

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
static inline Mesh settings_mesh(Settings* o, int rank, int64_t there) {
    const int64_t model_ranks = o->tp * o->pp;
    const bool imagined = o->dry_run && there == 1;
    char start[64] = "";
    if (there == 1)
        snprintf(start, sizeof start, "; start them with scripts/mpirun.sh -np %lld",
                 (long long)(model_ranks * max_i64(1, o->dp)));
    if (!imagined && there % model_ranks != 0) {
        die_usage("--tp %lld x --pp %lld = %lld does not divide the %lld rank%s that were started%s", (long long)o->tp,
                  (long long)o->pp, (long long)model_ranks, (long long)there, there == 1 ? "" : "s", start);
    }
    if (!o->dp) o->dp = imagined ? 1 : there / model_ranks;
    if (!imagined && o->dp * model_ranks != there) {
        die_usage("--tp %lld x --pp %lld x --dp %lld = %lld ranks, but %lld were started%s", (long long)o->tp,
                  (long long)o->pp, (long long)o->dp, (long long)(o->dp * model_ranks), (long long)there, start);
    }
    if (o->dp * model_ranks > INT32_MAX) die_usage("--tp x --pp x --dp is more than 2^31 ranks");
    Mesh mesh = mesh_of_rank(imagined ? 0 : rank, (int)o->tp, (int)o->pp, (int)o->dp);
    mesh_set_schedule(&mesh, (ScheduleKind)o->schedule, (int)o->vpp);
    mesh.sequence_parallel = o->sequence_parallel;
    mesh.tp_overlap = o->tp_comm_overlap && settings_is_training(o);
    mesh.scatter = !o->no_scatter_gather;
    mesh.zero = mesh.d > 1 && settings_is_training(o) ? (int)o->zero : 0; // one replica has nothing to shard
    mesh.recompute = settings_is_training(o) ? (Recompute)o->recompute : RECOMPUTE_NONE;
    if (!settings_is_training(o)) o->sites = 1;
    const bool sync = o->dp_mode == DP_SYNC;
    if (!o->sites) o->sites = sync ? 1 : mesh.d;
    mesh.sites = (int)o->sites;
    Error error;
    if (!mesh_check_sites(&mesh, sync, &error)) die_usage("%s", error.text);
    mesh.caat = settings_caat(o, mesh.t);
    return mesh;
}

// Sets the batch sizes that were not given: 16 sequences, in micro-batches of at most 16, small enough that a pipeline
// has four times as many of them as stages if possible.
static inline void settings_batch(Settings* o) {
    const int64_t many = o->pp > 1 ? 4 * o->pp : 1;
    const int64_t groups = schedule_group((ScheduleKind)o->schedule, (int)o->pp); // divides a replica's micro-batches
    if (!settings_is_training(o) && !o->micro_batch && !o->global_batch) o->micro_batch = o->evaluate ? 4 : 1;
    if (!o->global_batch) {
        o->global_batch =
            o->micro_batch ? o->micro_batch * o->dp * many : (int64_t)round_up(16, (size_t)(o->dp * groups));
    }
    if (o->global_batch % o->dp != 0) {
        die_usage("--global-batch %lld is not a multiple of --dp %lld", (long long)o->global_batch, (long long)o->dp);
    }
    const int64_t replica = o->global_batch / o->dp;
    const bool halves = o->tp_comm_overlap && settings_is_training(o);
    if (!o->micro_batch) {
        o->micro_batch = max_i64(1, min_i64(16, replica / many));
        while (o->micro_batch > 1 && (replica % o->micro_batch != 0 || replica / o->micro_batch % groups != 0))
            o->micro_batch--;
    }
    if (replica % o->micro_batch != 0) {
        die_usage("--global-batch %lld / --dp %lld is not a multiple of --micro-batch %lld", (long long)o->global_batch,
                  (long long)o->dp, (long long)o->micro_batch);
    }
    Error error;
    if (!mesh_check_halves(halves, o->micro_batch, &error)) die_usage("%s", error.text);
    if (replica / o->micro_batch > 1 << 24) die_usage("--global-batch %lld is too large", (long long)o->global_batch);
}
