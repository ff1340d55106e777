/*
util/options.h: the command line as one table. A program lists its options once (name, type, where the value goes,
range, help) and gets parsing, range checks, --help and files of options from the same rows.

    --name value   --name=value   --flag   --flag=no            given twice, the last one wins

A whole number may be written 10000 or 1e4.

A file of options has one option a line, written as above, empty lines, and comments that begin with #. The value is the
rest of the line, without blanks at its ends. The command line wins over the file.

The message about an unknown option knows other trainers' names of it: those of nanoGPT, Hugging Face (transformers'
TrainingArguments and config.json) and Megatron-LM. Underscores count as hyphens. An option that the program at hand
does not have is not suggested.
*/
#pragma once

#include "base.h"

#include <strings.h>

// OPTION_TEXT: a string that may be empty.
typedef enum {
    OPTION_INT,
    OPTION_FLOAT,
    OPTION_STRING,
    OPTION_TEXT,
    OPTION_CHOICE,
    OPTION_FLAG,
    OPTION_HEADING
} OptionType;

typedef struct {
    OptionType type;
    const char* name;    // without the dashes; the text of a heading
    void* value;         // int64_t*, double*, const char**, int* (index of the choice; -1: none), bool*
    double low, high;    // range of a number, both ends included
    const char* choices; // OPTION_CHOICE: "cosine|linear|wsd"; OPTION_STRING: its placeholder in the help
    const char* help;
    bool command; // an action, not a setting: on the command line only, not in a file
    bool given;   // set by options_parse and options_read
    int line;     // in the file that gave it; 0: none
} Option;

// Rows of a table.
static inline Option option_heading(const char* text) {
    const Option o = {OPTION_HEADING, text, NULL, 0, 0, NULL, NULL, false, false, 0};
    return o;
}
static inline Option option_int(const char* name, int64_t* value, double low, double high, const char* help) {
    const Option o = {OPTION_INT, name, value, low, high, NULL, help, false, false, 0};
    return o;
}
static inline Option option_float(const char* name, double* value, double low, double high, const char* help) {
    const Option o = {OPTION_FLOAT, name, value, low, high, NULL, help, false, false, 0};
    return o;
}
static inline Option option_string(const char* name, const char** value, const char* placeholder, const char* help) {
    const Option o = {OPTION_STRING, name, (void*)value, 0, 0, placeholder, help, false, false, 0};
    return o;
}
static inline Option option_any_text(const char* name, const char** value, const char* placeholder, const char* help) {
    const Option o = {OPTION_TEXT, name, (void*)value, 0, 0, placeholder, help, false, false, 0};
    return o;
}
static inline Option option_choice(const char* name, int* value, const char* choices, const char* help) {
    const Option o = {OPTION_CHOICE, name, value, 0, 0, choices, help, false, false, 0};
    return o;
}
static inline Option option_flag(const char* name, bool* value, const char* help) {
    const Option o = {OPTION_FLAG, name, value, 0, 0, NULL, help, false, false, 0};
    return o;
}
// A row of the command line only.
static inline Option option_command(Option o) {
    o.command = true;
    return o;
}

// A growing table, of at most `room` rows.
typedef struct {
    Option* row;
    int n, room;
} OptionTable;

static inline void options_add(OptionTable* table, const Option* rows, size_t count) {
    if (count > (size_t)(table->room - table->n)) die("internal error: more than %d options", table->room);
    memcpy(table->row + table->n, rows, count * sizeof *rows);
    table->n += (int)count;
}

// Index of word in "a|b|c", or -1.
static inline int choice_index(const char* choices, const char* word) {
    const size_t length = strlen(word);
    int index = 0;
    for (const char* at = choices;; index++) {
        const size_t n = strcspn(at, "|");
        if (n == length && strncmp(at, word, n) == 0) return index;
        if (at[n] == 0) return -1;
        at += n + 1;
    }
}

// Writes choice number `index` of "a|b|c" into word.
static inline void choice_word(char* word, size_t size, const char* choices, int index) {
    for (; index > 0; index--) choices += strcspn(choices, "|") + 1;
    snprintf(word, size, "%.*s", (int)strcspn(choices, "|"), choices);
}

static inline Option* option_find(Option* table, int n, const char* name) {
    for (int i = 0; i < n; i++) {
        if (table[i].type != OPTION_HEADING && strcmp(table[i].name, name) == 0) return &table[i];
    }
    return NULL;
}

static inline bool option_given(Option* table, int n, const char* name) {
    const Option* o = option_find(table, n, name);
    return o && o->given;
}

// ---- Other trainers' names of options ---------------------------------------------------------------------------

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
     "a run's numbers are in log.jsonl of --out DIR; scripts/report.py makes a page of it; docs/usage.md: TensorBoard"},
    {"seed", "random-seed data-seed", NULL},
    {NULL, "dtype bf16 fp16 fp32 precision torch-dtype mixed-precision amp",
     "numbers are chosen when the program is built: make PRECISION=bf16 or fp32"},
    {NULL, "device no-cuda use-cpu backend", "the device is chosen when the program is built: make DEVICE=cpu or cuda"},
    {NULL, "compile torch-compile flash flash-attn use-flash-attn flash-attention attn-implementation",
     "kernels are compiled, and fused, already"},
    {NULL, "num-gpus nproc-per-node nodes nnodes num-nodes world-size",
     "the launcher starts the ranks: scripts/mpirun.sh -np N ./train_gpt; ./plan has --gpus"},
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

// The error about a name that the table does not have, with its name here if it is another trainer's.
static inline bool option_unknown(Option* table, int n, const char* name, Error* error) {
    const Alias* alias = alias_find(name);
    if (alias && !alias->here) return fail(error, "unknown option --%s; %s", name, alias->note);
    if (alias && option_find(table, n, alias->here))
        return fail(error, "unknown option --%s; here it is --%s%s%s", name, alias->here, alias->note ? ": " : "",
                    alias->note ? alias->note : "");
    return fail(error, "unknown option --%s; --help lists them all", name);
}

// Reads "10000", or "1e4", where the value is whole and exact in float64.
static inline bool whole_number(int64_t* x, const char* text) {
    char* end = NULL;
    errno = 0;
    *x = strtoll(text, &end, 10);
    if (end != text && *end == 0) return errno == 0;
    if (text[strspn(text, "0123456789+-.eE")]) return false;
    const double value = strtod(text, &end);
    if (end == text || *end || fabs(value) > 0x1p53 || value != floor(value)) return false;
    *x = (int64_t)value;
    return true;
}

static inline bool option_set(Option* o, const char* text, Error* error) {
    char* end = NULL;
    switch (o->type) {
    case OPTION_INT: {
        int64_t x;
        if (!whole_number(&x, text)) return fail(error, "--%s %s: not a whole number", o->name, text);
        if ((double)x < o->low || (double)x > o->high)
            return fail(error, "--%s %s: out of range, %.0f to %.0f", o->name, text, o->low, o->high);
        *(int64_t*)o->value = x;
        return true;
    }
    case OPTION_FLOAT: {
        const double x = strtod(text, &end);
        if (end == text || *end) return fail(error, "--%s %s: not a number", o->name, text);
        if (!(x >= o->low && x <= o->high))
            return fail(error, "--%s %s: out of range, %g to %g", o->name, text, o->low, o->high);
        *(double*)o->value = x;
        return true;
    }
    case OPTION_CHOICE: {
        const int index = choice_index(o->choices, text);
        if (index < 0) return fail(error, "--%s %s: has to be one of %s", o->name, text, o->choices);
        *(int*)o->value = index;
        return true;
    }
    default: // OPTION_STRING, OPTION_TEXT
        if (*text == 0 && o->type != OPTION_TEXT) return fail(error, "--%s: empty value", o->name);
        *(const char**)o->value = text;
        return true;
    }
}

// The option of "--name" or "--name=value"; *value: the text after the "=", or NULL.
static inline Option* option_named(Option* table, int n, const char* word, const char** value, Error* error) {
    char name[64];
    if (strncmp(word, "--", 2) != 0 || word[2] == 0) {
        fail(error, "%s: options are written --name value, patterns in quotes: '*.txt'; --help lists them", word);
        return NULL;
    }
    const size_t length = strcspn(word + 2, "=");
    snprintf(name, sizeof name, "%.*s", (int)length, word + 2);
    *value = word[2 + length] == '=' ? word + 2 + length + 1 : NULL;
    Option* o = option_find(table, n, name);
    if (!o) option_unknown(table, n, name, error);
    return o;
}

// Sets an option; value NULL: there is none.
static inline bool option_take(Option* o, const char* value, Error* error) {
    o->given = true;
    if (o->type == OPTION_FLAG) {
        const bool off = value && strcmp(value, "no") == 0;
        if (value && !off) return fail(error, "--%s takes no value, but --%s=no switches it off", o->name, o->name);
        *(bool*)o->value = !off;
        return true;
    }
    return value ? option_set(o, value, error) : fail(error, "--%s: the value is missing", o->name);
}

// Reads argv into the values of the table. Strings point into argv. -h is --help. A word that begins with -- is an
// option's name, and a value only of --NAME=VALUE, or where the value is a text.
static inline bool options_parse(Option* table, int n, int argc, char** argv, Error* error) {
    for (int i = 1; i < argc; i++) {
        const char* value;
        Option* o = option_named(table, n, strcmp(argv[i], "-h") == 0 ? "--help" : argv[i], &value, error);
        if (!o) return false;
        const bool is_value = i + 1 < argc && (o->type == OPTION_TEXT || strncmp(argv[i + 1], "--", 2) != 0);
        if (!value && o->type != OPTION_FLAG && is_value) value = argv[++i];
        if (!option_take(o, value, error)) return false;
    }
    return true;
}

// ---- Files of options -------------------------------------------------------------------------------------------

// Cuts blanks off both ends of a line or of a part of it.
static inline char* option_trim(char* text) {
    while (*text == ' ' || *text == '\t') text++;
    for (size_t n = strlen(text); n > 0 && strchr(" \t\r", text[n - 1]); n--) text[n - 1] = 0;
    return text;
}

// Reads one line, without its end, into the table.
static inline bool option_read_line(Option* table, int n, char* text, int line, Error* error) {
    const char* value;
    text = option_trim(text);
    if (*text == 0 || *text == '#') return true;
    char* blank = text + strcspn(text, " \t=");
    char* rest = *blank && *blank != '=' ? option_trim(blank + 1) : NULL;
    if (rest) *blank = 0;
    Option* o = option_named(table, n, text, &value, error);
    if (!o) return false;
    if (o->line) return fail(error, "--%s is given twice, in line %d too", o->name, o->line);
    if (o->command) return fail(error, "--%s belongs on the command line, not into a file", o->name);
    o->line = line;
    return o->given || option_take(o, value ? value : rest, error); // the command line wins
}

// Reads the text of a file of options into the options that the command line, parsed before, has not given. Values of
// strings point into text, which is changed, and must stay. path: for messages.
static inline bool options_read(Option* table, int n, char* text, const char* path, Error* error) {
    Error why;
    for (int line = 1; text; line++) {
        char* end = strchr(text, '\n');
        if (end) *end = 0;
        if (!option_read_line(table, n, text, line, &why)) return fail(error, "%s:%d: %.900s", path, line, why.text);
        text = end ? end + 1 : NULL;
    }
    return true;
}

// Writes the value of an option as options_read takes it; "" for a flag that is on, and for an unset value (a string
// that is NULL, a number below its range). False: the value cannot be in a file.
static inline bool option_text(char* text, size_t size, const Option* o) {
    const char* string;
    text[0] = 0;
    switch (o->type) {
    case OPTION_FLAG:
        if (o->given && !*(bool*)o->value) snprintf(text, size, "no");
        return true;
    case OPTION_INT:
        if ((double)*(int64_t*)o->value >= o->low) snprintf(text, size, "%lld", (long long)*(int64_t*)o->value);
        return true;
    case OPTION_FLOAT:
        if (*(double*)o->value < o->low) return true;
        snprintf(text, size, "%g", *(double*)o->value);
        if (strtod(text, NULL) != *(double*)o->value) snprintf(text, size, "%.17g", *(double*)o->value);
        return true;
    case OPTION_CHOICE:
        if (*(int*)o->value >= 0) choice_word(text, size, o->choices, *(int*)o->value);
        return true;
    case OPTION_STRING:
    case OPTION_TEXT:
        string = *(const char**)o->value;
        if (!string) return true;
        if (strlen(string) >= size || strpbrk(string, "\n\r") || strchr(" \t", string[0]) ||
            strchr(" \t", string[strlen(string) - 1]))
            return false;
        strcpy(text, string);
        return true;
    default: return true;
    }
}

// Whether all given values can be in a file; the error names one that cannot.
static inline bool options_check_file(const Option* table, int n, Error* error) {
    char text[4096];
    for (int i = 0; i < n; i++) {
        if (table[i].given && !table[i].command && !option_text(text, sizeof text, &table[i]))
            return fail(error,
                        "--%s: a value with a line break, with blanks at its ends or of more than %zu bytes has "
                        "no place in a file of options; choose another name",
                        table[i].name, sizeof text - 1);
    }
    return true;
}

// Writes the table as a file: the given options, and as comments the others.
static inline void options_write(const Option* table, int n, FILE* out) {
    char text[4096];
    for (int i = 0; i < n; i++) {
        const Option* o = &table[i];
        if (o->type == OPTION_HEADING) {
            fprintf(out, "\n# %s\n", o->name);
            continue;
        }
        if (o->command || !option_text(text, sizeof text, o) || (!text[0] && !o->given)) continue;
        fprintf(out, "%s--%s%s%s\n", o->given ? "" : "# ", o->name, text[0] ? " " : "", text);
    }
}

// ---- Help -------------------------------------------------------------------------------------------------------

enum { HELP_WIDTH = 110, HELP_COLUMN = 35 };

// Prints the help of one row, "--name N    words", with its present value as the default.
static inline void option_help(const Option* o, FILE* out) {
    const char* placeholder = o->choices ? o->choices : "";
    char value[4096], text[8192];
    if (o->type == OPTION_INT) placeholder = "N";
    if (o->type == OPTION_FLOAT) placeholder = "X";
    option_text(value, sizeof value, o);
    snprintf(text, sizeof text, "%s%s%s%s", o->help, value[0] ? " [" : "", value, value[0] ? "]" : "");
    int column = fprintf(out, "  --%s%s%s", o->name, *placeholder ? " " : "", placeholder);
    if (column >= HELP_COLUMN) column = fprintf(out, "\n") - 1;
    fprintf(out, "%*s", HELP_COLUMN - column, "");
    print_words(out, text, HELP_COLUMN, HELP_COLUMN, HELP_WIDTH);
}

// Prints the help of the whole table.
static inline void options_help(const Option* table, int n, FILE* out) {
    for (int i = 0; i < n; i++) {
        if (table[i].type == OPTION_HEADING)
            fprintf(out, "\n%s\n", table[i].name);
        else
            option_help(&table[i], out);
    }
}

// Reads a program's command line. Prints its help, and ends, if the flag *help is given.
static inline void options_of_program(Option* table, int n, int argc, char** argv, const bool* help,
                                      const char* about) {
    Error error;
    if (!options_parse(table, n, argc, argv, &error)) die_usage("%s", error.text);
    if (!*help) return;
    printf("%s\n", about);
    options_help(table, n, stdout);
    exit(0);
}
