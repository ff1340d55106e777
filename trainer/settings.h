/*
trainer/settings.h: the command line as one table, whose values go to a struct; what follows from them is in
trainer/derived.h.
*/
#pragma once

#include "../comm/collectives/collectives.h"
#include "../kernels/optimizers.h"
#include "../model.h"
#include "../parallel/schedule.h"
#include "../util/options.h"
#include "learning_rate.h"

// "adamw|sgd|...".
static inline const char* optimizer_choices(void) {
    static char text[128];
    text[0] = 0;
    for (int i = 0; i < OPTIMIZERS; i++) append_choice(text, sizeof text, optimizers[i].name);
    return text;
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
    int64_t tp, pp, dp, zero, canonical;
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
    Settings o = {};
    o.model = "tiny";
    o.tp = o.pp = 1;
    o.schedule = ONE_F_ONE_B;
    o.caat_fraction = 1;
    o.dc_lambda = o.outer_lr = o.outer_momentum = o.lr = o.min_lr = -1;
    o.warmup = o.tie_embeddings = -1;
    o.weight_decay = 0.1;
    o.beta1 = 0.9;
    o.beta2 = 0.95;
    o.eps = 1e-8;
    o.clip = 1;
    o.steps = 1000;
    o.log_every = 1;
    o.eval_every = 200;
    o.eval_sequences = 64;
    o.sample_every = 1000;
    o.seed = 42;
    o.temperature = 0.8;
    o.top_p = 1;
    o.watchdog = 600;
    o.check_replicas_every = 100;
    o.save_every = 1000;
    return o;
}

enum { MAX_OPTIONS = 112 };

// The model's shape; the planner asks for it in the same words.
static inline void add_shape_options(OptionTable* table, Settings* o) {
    const Option rows[] = {
        option_heading("model"),
        option_string("model", &o->model, "NAME",
                      "tiny, gpt2-124M, llama-1.1B, ...: a published size; a wrong name lists all"),
        option_choice("arch", &o->arch, model_arch_choices(),
                      "architecture; with the sizes below instead of --model, or to change it"),
        option_int("layers", &o->layers, 1, 10000, "blocks"),
        option_int("hidden", &o->hidden, 1, 1 << 20, "channels of the residual stream"),
        option_int("heads", &o->heads, 1, 1 << 16, "query heads"),
        option_int("kv-heads", &o->kv_heads, 1, 1 << 16, "key/value heads (llama)"),
        option_int("ffn", &o->ffn, 1, 1 << 22, "channels inside the mlp"),
        option_int("seq", &o->seq, 1, 1 << 24, "tokens in a training sequence"),
        option_int("vocab", &o->vocab, 2, 1 << 30, "vocabulary [the data's; without data the model's]"),
        option_choice("tie-embeddings", &o->tie_embeddings, "no|yes",
                      "the head is the token embedding [gpt2: yes, llama: no]"),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

// The weights and the data.
static inline void add_data_options(OptionTable* table, Settings* o) {
    const Option rows[] = {
        option_string("init", &o->init, "PATH",
                      "start from these weights: a folder of Hugging Face's, which says its model's sizes, or a "
                      ".safetensors file"),
        option_command(option_string("export", &o->export_to, "PATH",
                                     "at the end write the weights alone: a folder as Hugging Face has it")),
        option_heading("data"),
        option_string("data", &o->data, "GLOB",
                      "files to train on, comma-separated: llm.c shards, Megatron's .bin/.idx, any text, .jsonl (its "
                      "field \"text\"), one after the other"),
        option_string("val", &o->val, "GLOB",
                      "files to validate on; without it 5 % of the data, in blocks spread over them, are held out"),
        option_string("tokenizer", &o->tokenizer, "PATH",
                      "vocabulary of texts and .jsonl, and of shards, to show samples as text [the one beside the "
                      "weights, the first shard or .jsonl; else texts are bytes]"),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

static inline void add_mesh_options(OptionTable* table, Settings* o) {
    const double size = 1 << 30;
    const Option rows[] = {
        option_heading("batch, in sequences"),
        option_int("micro-batch", &o->micro_batch, 1, 1 << 20,
                   "sequences in one forward pass [what fits the rest, at most 16]"),
        option_int("global-batch", &o->global_batch, 1, size,
                   "sequences in one update, over all ranks [16, or what --micro-batch, --dp and --pp need]"),
        option_heading("mesh: ranks = tp x pp x dp"),
        option_int("tp", &o->tp, 1, 1 << 16, "tensor-parallel ranks: each has a share of every matrix"),
        option_int("pp", &o->pp, 1, 1 << 16, "pipeline stages: each has a part of the layers"),
        option_choice("schedule", &o->schedule, schedule_choices(),
                      "order of a pipeline's work; interleaved and zb-v cut it finer, zb-* backward passes in halves"),
        option_int("vpp", &o->vpp, 1, 1000, "chunks of the model on each stage [2 for interleaved and zb-v, else 1]"),
        option_int("dp", &o->dp, 1, 1 << 20, "data-parallel replicas: each has a part of the batch [the ranks left]"),
        option_flag("sequence-parallel", &o->sequence_parallel,
                    "norms and residual stream on 1/tp of the positions each"),
        option_flag("tp-comm-overlap", &o->tp_comm_overlap,
                    "compute a micro-batch as two halves in turn; tensor sums of one are in flight meanwhile"),
        option_int("zero", &o->zero, 0, 2, "1: optimizer state divided over dp, 2: gradients too"),
        option_int("canonical", &o->canonical, 0, 1 << 10,
                   "gradients add up in a tree of N leaves, a power of two: the same bits for every --dp and --pp, if "
                   "--micro-batch stays"),
        option_choice("recompute", &o->recompute, "none|selective|full",
                      "what the backward pass computes again to save memory: norms and activation function, or all"),
        option_flag("no-scatter-gather", &o->no_scatter_gather,
                    "every tensor rank sends the whole stage output to the next stage, not 1/tp of it"),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

static inline void add_async_options(OptionTable* table, Settings* o) {
    static char allreduce_help[320];
    snprintf(
        allreduce_help, sizeof allreduce_help,
        "by a plan of comm/collectives/collectives.h: %s; or native, MPI's or NCCL's own [halving-doubling between "
        "2, 4, 8, ... processes, else ring; on GPUs native]",
        algorithm_names());
    const Option rows[] = {
        option_heading("asynchronous data parallelism"),
        option_choice("dp-mode", &o->dp_mode, "sync|dc-s3gd|diloco",
                      "what sites send each other: gradients; weight changes, used one step late with delay "
                      "compensation; the weight change of many steps"),
        option_int("sites", &o->sites, 1, 1 << 20,
                   "groups of replicas; those of one site sum their gradients in every step [sync: 1, "
                   "else every replica is one]"),
        option_float("dc-lambda", &o->dc_lambda, 0, 1e3,
                     "dc-s3gd: norm of the delay compensation, in norms of the gradient; 0 = none [0.2]"),
        option_int("local-steps", &o->local_steps, 1, 1 << 16, "diloco: steps of a round [32]"),
        option_float("outer-lr", &o->outer_lr, 0, 1e3, "diloco: learning rate of the outer optimizer [0.7]"),
        option_float("outer-momentum", &o->outer_momentum, 0, 0.999999, "diloco: its momentum [0.9]"),
        option_heading("all-reduce algorithm"),
        option_string("allreduce", &o->allreduce, "NAME", allreduce_help),
        option_string("topology", &o->topology, "NAME",
                      "network that joins the replicas: torus:4x4, mesh:2x3, ring:8, fattree:4,2, ... or a file of "
                      "links [full:N, all to all]"),
        option_heading("CAAT-Net (partial tensor-parallel all-reduce)"),
        option_float("caat-fraction", &o->caat_fraction, 0, 1, "channels that are summed; 1 = all, an ordinary model"),
        option_int("caat-ranks", &o->caat_ranks, 1, 1 << 16,
                   "tensor ranks the model is made for, a multiple of --tp [--tp]; with fewer it is the same model"),
        option_choice("caat-grad-dtype", &o->caat_grad_dtype, "fp32|same",
                      "in which numbers gradients are summed over ranks; same: in those of the activations"),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

static inline void add_optimizer_options(OptionTable* table, Settings* o) {
    const double big = 1e15;
    const Option rows[] = {
        option_heading("optimizer"),
        option_choice("optimizer", &o->optimizer, optimizer_choices(),
                      "sgd: momentum --beta1, weight decay in the gradient"),
        option_float(
            "lr", &o->lr, 0, 1e3,
            "learning rate after the warm-up [by the model's size, as GPT-3's: 3e-3 for tiny, 6e-4 for 125M, 2e-4 for "
            "1.3B parameters; with --init a tenth of that; sgd: 3e-3]"),
        option_float("min-lr", &o->min_lr, 0, 1e3, "learning rate at the last step [a tenth of --lr]"),
        option_int("warmup", &o->warmup, 0, big, "steps of linear warm-up [a twentieth of --steps, at most 2000]"),
        option_choice("decay", &o->decay, lr_curve_choices(),
                      "from --lr to --min-lr; wsd: constant, linear over the last fifth"),
        option_float("weight-decay", &o->weight_decay, 0, 1e3,
                     "on matrices only (not on norms and biases); adamw: decoupled"),
        option_float("beta1", &o->beta1, 0, 0.999999, "decay of AdamW's first moment; momentum of sgd"),
        option_float("beta2", &o->beta2, 0, 0.999999, "AdamW: decay of the second moment"),
        option_float("eps", &o->eps, 1e-30, 1, "AdamW: added to the root of the second moment"),
        option_float("clip", &o->clip, 0, 1e30, "largest norm of the gradient; 0 = never clip"),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

static inline void add_run_options(OptionTable* table, Settings* o) {
    const double big = 1e15, size = 1 << 30;
    const Option rows[] = {
        option_heading("run"),
        option_int("steps", &o->steps, 0, big,
                   "updates; 0 = nothing is trained or written to --out [0 with --generate, --evaluate or --export]"),
        option_int("log-every", &o->log_every, 1, big, "print the line of every N-th step; log.jsonl in --out has all"),
        option_int("eval-every", &o->eval_every, 0, big, "validate every N steps and at the end; 0 = never"),
        option_int("eval-sequences", &o->eval_sequences, 1, size, "how many sequences to validate on"),
        option_string("evaluate", &o->evaluate, "GLOB",
                      "llm.c's files of multiple choice (HellaSwag, MMLU), comma-separated, which the model answers at "
                      "every validation and at the end; without --steps only that is done, with the model of --init or "
                      "--resume"),
        option_int("sample-every", &o->sample_every, 0, big,
                   "let the model write every N steps and at the end; 0 = never"),
        option_int("save-every", &o->save_every, 0, big,
                   "with --out: checkpoint every N steps and at the end; 0 = at the end only"),
        option_int("keep-last", &o->keep_last, 0, big,
                   "checkpoints that are kept: the last N, and the best by validation; 0 = all"),
        option_string("out", &o->out, "DIR",
                      "folder for log.jsonl, options.txt and checkpoints; nothing is written without it"),
        option_command(
            option_flag("resume", &o->resume, "continue from the newest checkpoint in --out, if there is one")),
        option_command(option_any_text("generate", &o->generate, "TEXT",
                                       "let the model of --init or --resume continue this text, on stdout; \"\": write "
                                       "one of its own")),
        option_int("check-replicas-every", &o->check_replicas_every, 0, big,
                   "compare the replicas of parameters every N steps, and before a checkpoint; 0 = never"),
        option_choice("on-nan", &o->on_nan, "stop|skip",
                      "a loss or gradient that is not finite: end the run, or leave out up to ten updates in a row"),
        option_int("watchdog", &o->watchdog, 0, 1e9,
                   "seconds in which no rank moves, after which the run ends and names the one to blame; 0 = never"),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

static inline void add_generation_options(OptionTable* table, Settings* o) {
    const Option rows[] = {
        option_heading("generation: --generate, and samples of a training run"),
        option_int("max-new-tokens", &o->max_new_tokens, 1, 1 << 30,
                   "how many at most [256; the last sample of a training run: 512]"),
        option_float("temperature", &o->temperature, 0, 1e6,
                     "divides the logits before a token is drawn: below 1 likely ones become likelier; 0 = always the "
                     "likeliest"),
        option_int("top-k", &o->top_k, 0, 1 << 30, "draw from the K likeliest tokens only; 0 = all"),
        option_float("top-p", &o->top_p, 0, 1,
                     "draw from the likeliest tokens whose probabilities add up to this; 1 = all"),
        option_heading("debugging and misc"),
        option_string("trace", &o->trace, "FILE", "what every rank did and when, for chrome://tracing or Perfetto"),
        option_int("seed", &o->seed, 0, 9e15, "of the initial weights, the order of the data and the samples"),
        option_command(
            option_string("config", &o->config, "FILE",
                          "read options from it, one --name value a line, as DIR/options.txt of a run has them; "
                          "the command line wins")),
        option_command(option_flag(
            "dry-run", &o->dry_run,
            "print the plan (also of a mesh that is not here): ranks, memory, traffic, schedule; run nothing")),
        option_command(option_flag("explain", &o->explain,
                                   "print in words who holds what and who talks to whom when, with the chapters that "
                                   "derive it; run nothing")),
        option_command(option_flag("version", &o->version, "the version of this program")),
        option_command(option_flag("help", &o->help, "these lines")),
    };
    options_add(table, rows, sizeof rows / sizeof rows[0]);
}

// Fills table (MAX_OPTIONS rows) with the command line of the trainer; the values go to *o. Returns the number of rows.
static inline int settings_table(Option* table, Settings* o) {
    OptionTable all = {table, 0, MAX_OPTIONS};
    add_shape_options(&all, o);
    add_data_options(&all, o);
    add_mesh_options(&all, o);
    add_async_options(&all, o);
    add_optimizer_options(&all, o);
    add_run_options(&all, o);
    add_generation_options(&all, o);
    return all.n;
}

// Whether the run trains. Else it has weights, forward passes and text, but no gradients, moments or checkpoints.
static inline bool settings_is_training(const Settings* o) { return o->steps > 0; }
