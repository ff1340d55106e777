/*
util/option_aliases.h: other names of the options, for the message about an unknown one: the names of nanoGPT, Hugging
Face (transformers' TrainingArguments and config.json) and Megatron-LM. Underscores count as hyphens. An option that the
program at hand does not have is not suggested.

    alias_find(name)        the row of `aliases` with this name
*/
#pragma once

#include "base.h"

typedef struct {
    const char* here;   // the option; NULL: there is none, and the note names the alternative
    const char* theirs; // separated by blanks
    const char* note;   // or NULL
} Alias;

static const Alias aliases[] = {
    {"layers", "n-layer n-layers num-layers num-hidden-layers", NULL},
    {"hidden", "n-embd hidden-size d-model dim", NULL},
    {"heads", "n-head n-heads num-attention-heads num-heads", NULL},
    {"kv-heads", "n-kv-head num-query-groups num-key-value-heads group-query-attention", NULL},
    {"ffn", "ffn-hidden-size intermediate-size n-inner", NULL},
    {"seq", "block-size seq-length seq-len sequence-length max-seq-length max-position-embeddings n-positions n-ctx",
     NULL},
    {"vocab", "vocab-size padded-vocab-size", NULL},
    {"tie-embeddings", "untie-embeddings-and-output-weights tie-word-embeddings", NULL},
    {"arch", "model-type swiglu normalization position-embedding-type",
     "gpt2 has LayerNorm, GELU and learned positions, llama RMSNorm, SwiGLU and rotary ones"},
    {NULL, "dropout attention-dropout hidden-dropout", "there is no dropout here"},
    {"init", "init-from model-name-or-path load checkpoint pretrained pretrained-checkpoint finetune",
     "the weights alone; --out DIR --resume continues a run"},
    {"resume", "resume-from-checkpoint", "from the newest checkpoint in --out DIR"},
    {"data", "dataset dataset-name data-path data-dir train-data train-data-path train-file", NULL},
    {"val", "valid-data-path validation-file split", "without it a part of --data is held out"},
    {"tokenizer", "tokenizer-name tokenizer-name-or-path tokenizer-model tokenizer-type vocab-file merge-file", NULL},
    {"micro-batch", "batch-size micro-batch-size train-batch-size per-device-train-batch-size",
     "sequences in one forward pass; --global-batch: in an update, over all ranks"},
    {"global-batch", "global-batch-size gradient-accumulation-steps total-batch-size",
     "gradients accumulate over as many micro-batches as fill it"},
    {"tp", "tensor-model-parallel-size tensor-parallel-size tp-size", NULL},
    {"pp", "pipeline-model-parallel-size pipeline-parallel-size pp-size", NULL},
    {"dp", "data-parallel-size dp-size", NULL},
    {"schedule", "pp-engine pipeline-schedule", "gpipe is what picotron calls afab"},
    {"vpp", "num-layers-per-virtual-pipeline-stage virtual-pipeline-model-parallel-size",
     "the number of chunks on a stage"},
    {NULL, "context-parallel-size cp-size expert-model-parallel-size ep-size num-experts",
     "there are no context or expert parallelism here; --tp, --pp and --dp divide the work"},
    {NULL, "mesh cluster", "the planner chooses a mesh: ./train_gpt $(./plan --flags --gpus N --cluster NAME)"},
    {"zero", "use-distributed-optimizer zero-stage fsdp deepspeed sharded-ddp", "1 or 2"},
    {"recompute",
     "recompute-granularity recompute-activations recompute-method gradient-checkpointing "
     "checkpoint-activations activation-checkpointing",
     "selective or full"},
    {"optimizer", "optim", NULL},
    {"lr", "learning-rate max-lr", NULL},
    {"min-lr", "lr-min learning-rate-min final-learning-rate", NULL},
    {"warmup", "warmup-iters warmup-steps warmup-ratio lr-warmup-iters lr-warmup-fraction lr-warmup-samples",
     "counted in updates"},
    {"decay", "lr-decay-style lr-scheduler-type lr-scheduler decay-lr", NULL},
    {NULL, "lr-decay-iters lr-decay-steps", "the learning rate decays until the last of --steps"},
    {"weight-decay", "wd", NULL},
    {"beta1", "adam-beta1", NULL},
    {"beta2", "adam-beta2", NULL},
    {"eps", "adam-eps adam-epsilon", NULL},
    {"clip", "grad-clip clip-grad max-grad-norm gradient-clipping", NULL},
    {"steps",
     "max-iters max-steps train-iters num-steps iterations num-iterations epochs num-epochs num-train-epochs "
     "train-samples",
     "counted in updates; the first lines of a run say how many epochs they are"},
    {"eval-every", "eval-interval eval-steps eval-freq val-loss-every", NULL},
    {"eval-sequences", "eval-iters eval-batches", NULL},
    {"evaluate", "eval-only do-eval", NULL},
    {"save-every", "save-interval save-steps checkpoint-every", NULL},
    {"keep-last", "save-total-limit", NULL},
    {"out", "out-dir output-dir save save-dir checkpoint-dir", NULL},
    {"log-every", "log-interval logging-steps log-freq", NULL},
    {NULL, "wandb use-wandb wandb-log wandb-project wandb-run-name report-to tensorboard-dir logging-dir",
     "a run's numbers are in log.jsonl of --out DIR; scripts/report.py makes a page or TensorBoard's files of it"},
    {"seed", "random-seed data-seed", NULL},
    {NULL, "dtype bf16 fp16 fp32 precision torch-dtype mixed-precision amp",
     "numbers are chosen when the program is built: make PRECISION=bf16 or fp32"},
    {NULL, "device no-cuda use-cpu backend", "the device is chosen when the program is built: make DEVICE=cpu or cuda"},
    {NULL, "compile torch-compile flash flash-attn use-flash-attn flash-attention attn-implementation",
     "kernels are compiled, and fused, already"},
    {NULL, "num-gpus nproc-per-node nodes nnodes num-nodes world-size",
     "the launcher starts the ranks: scripts/mpirun.sh -np N ./train_gpt; ./plan has --gpus"},
    {NULL,
     "completion document-mask document-token-id documents document-token loss-scale initial-loss-scale "
     "loss-scale-window eager fragments outer-delay outer-alpha outer-bits "
      "outer-top-k outer-error-decay muon-momentum outlier outlier-z save-minutes export-dtype first-stage-layers "
      "last-stage-layers caat-scale",
     "removed; commit 09d0042 has it"},
    {"generate", "prompt start", NULL},
    {NULL, "num-samples", "--generate writes one text; another --seed, another text"},
    {"max-new-tokens", "max-length", NULL},
};

// Whether the blank-separated words have this one. Both are compared with hyphens for underscores.
static inline bool has_word(const char* words, const char* word) {
    const size_t length = strlen(word);
    for (const char* at = words; *at;) {
        const size_t n = strcspn(at, " ");
        size_t same = 0;
        while (same < n && same < length && at[same] == (word[same] == '_' ? '-' : word[same])) same++;
        if (same == n && n == length) return true;
        at += n + strspn(at + n, " ");
    }
    return false;
}

// The row that has this name; NULL: none.
static inline const Alias* alias_find(const char* name) {
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
        if (has_word(aliases[i].theirs, name)) return &aliases[i];
    }
    return NULL;
}
