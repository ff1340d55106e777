"""Faults of evaluations: their files, rows, scores, and the trainer's passes.

Tests: "evaluate N TEXT": the cases of test_evaluate with TEXT in their command line, on N ranks ("pure": without a
trainer). "use": test_evaluations.py."""
import mutate

EVALUATE, TRAINER, TELL, SETTINGS = "dataloader/eval_loader.h", "train_gpt.cu", "trainer/logger.h", "trainer/settings.h"
PURE, ONE, PIPE, DATA, DATA3, USE = ("evaluate 1 pure", "evaluate 1 --micro-batch 1 --global-batch 4", "evaluate 2 --pp 2 --vpp 2", "evaluate 2 --dp 2",
                                     "evaluate 3 --dp 3 --micro-batch 4", "use")

# What is wrong; the test that has to see it; file, exact text, replacement.
FAULTS = [
    ("row: T tokens are kept", PURE, EVALUATE, "max_i64(0, all - (T + 1))", "max_i64(0, all - T)"),
    ("row: the end is cut", PURE, EVALUATE, "const int64_t skipped = max_i64(0, all - (T + 1));", "const int64_t skipped = 0; if (all > T + 1) { targets[0] = -1; return; }"),
    ("row: the first token of a completion does not count", PURE, EVALUATE, "if (i >= before) targets", "if (i > before) targets"),
    ("row: the last of the context counts", PURE, EVALUATE, "if (i >= before) targets", "if (i >= before - (before - skipped > 1)) targets"),
    ("row: targets are inputs", PURE, EVALUATE, "targets[i - skipped - 1] = token", "targets[i - skipped - (before - skipped > 1)] = token"),
    ("row: what is behind the end stays", PURE, EVALUATE, "for (int64_t i = 0; i < T; i++) {\n        inputs[i] = 0;\n        targets[i] = -1;\n    }\n    for (int64_t i = skipped;",
     "for (int64_t i = 0; i < T; i++) inputs[i] = 0;\n    for (int64_t i = skipped;"),
    ("row: always the first completion", PURE, EVALUATE, "(int)(row - example->first)", "0"),
    ("row: the example before", PURE, EVALUATE, "if (eval->example[middle].first <= row)", "if (eval->example[middle].first < row)"),
    ("file: any version", PURE, EVALUATE, "if (version != CHOICE_VERSION)", "if (version < CHOICE_VERSION)"),
    ("file: any number of examples", PURE, EVALUATE, "if (count < 1 || count > numbers / 8)", "if (count < 1 || count > 1 << 20)"),
    ("file: none at all", PURE, EVALUATE, "if (count < 1 || count", "if (count"),
    ("file: odd lengths", PURE, EVALUATE, "if (at[1] % 2 || length < 6", "if (length < 6"),
    ("file: lengths beyond the end", PURE, EVALUATE, "|| length > size) return 0;", ") return 0;"),
    ("file: any number of an example", PURE, EVALUATE, "if (at[2] != (uint16_t)number) return 0;", ""),
    ("file: any label", PURE, EVALUATE, "if (example->label >= example->completions) return 0;", "if (example->completions == 0) return 0;"),
    ("file: parts without tokens", PURE, EVALUATE, "if (at[i] == 0) return 0;", "if (at[i] == 0 && part == 0) return 0;"),
    ("file: more behind the completions of an example", PURE, EVALUATE, "return i == length ? length : 0;", "return length;"),
    ("file: more behind the last example", PURE, EVALUATE, "if (at != end || size % 2)", "if (0)"),
    ("file: half a number behind it", PURE, EVALUATE, "if (at != end || size % 2)", "if (at != end)"),
    ("fit: the context may have any token", PURE, EVALUATE, "if (part[i] >= V)", "if (part[i] >= V && c >= 0)"),
    ("fit: a vocabulary that is one short", PURE, EVALUATE, "if (part[i] >= V)", "if (part[i] > V)"),
    ("fit: completions of any length", PURE, EVALUATE, "if (longest > eval->T)", "if (longest > eval->T + 1)"),
    ("fit: no place for the longest", PURE, EVALUATE, "if (longest > eval->T)", "if (longest >= eval->T)"),
    ("fit: cuts are counted one too early", PURE, EVALUATE, "longest > eval->T + 1;", "longest > eval->T;"),
    ("stream: the last row is left away", PURE, EVALUATE, "(eval->stream.tokens - 1 + T - 1) / T", "(eval->stream.tokens - 1) / T"),
    ("stream: a row of nothing", PURE, EVALUATE, "(eval->stream.tokens - 1 + T - 1) / T", "(eval->stream.tokens - 1 + T) / T"),
    ("stream: rows overlap", PURE, EVALUATE, "begin = row * eval->T;\n    for", "begin = row * max_i64(1, eval->T - 1);\n    for"),
    ("stream: what is behind the end counts", PURE, EVALUATE, "for (int64_t i = n; i < eval->T; i++) {\n        inputs[i] = 0;\n        targets[i] = -1;\n    }",
     "for (int64_t i = n; i < eval->T; i++) inputs[i] = targets[i] = 0;"),
    ("stream: one token will do", PURE, EVALUATE, "if (ok && eval->stream.tokens < 2)", "if (0)"),
    ("stream: special tokens have bytes", PURE, EVALUATE, "if (tokenizer->added[i].special) bytes", "if (0) bytes"),
    ("stream: the first token's bytes", PURE, EVALUATE, "for (int64_t i = f == 0; i < file->count", "for (int64_t i = 0; i < file->count"),
    ("stream: all bytes of a text", PURE, EVALUATE, "return stream->tokens - 1;\n", "return stream->tokens;\n"),
    ("list: a pattern may mix", PURE, EVALUATE, "if (ok && choices > 0 && !is)", "if (0)"),
    ("score: the last of equal ones", PURE, EVALUATE, "loss < least) {", "loss <= least) {"),
    ("score: a NaN is passed over", PURE, EVALUATE, "if (isnan(loss)) return -1;", "if (isnan(loss)) continue;"),
    ("score: the largest", PURE, EVALUATE, "loss < least) {", "loss > least) {"),
    ("score: sum and mean change places", PURE, EVALUATE, "(mean ? completion[0] : 1)", "(mean ? 1 : completion[0])"),
    ("score: tokens, the first one too", PURE, EVALUATE, "scores.n = eval->stream.tokens - 1;", "scores.n = eval->stream.tokens;"),
    ("score: bits are nats", PURE, EVALUATE, "sum / 0.69314718055994531 /", "sum /"),
    ("score: 2 to the loss", PURE, EVALUATE, "scores.perplexity = exp(scores.loss)", "scores.perplexity = exp2(scores.loss)"),
    ("passes: sums go on from those before", USE, TRAINER, "    memset(e->sums, 0, (size_t)e->rows * sizeof(double));\n", ""),
    ("passes: losses of the micro-batch before", ONE, TRAINER, "pass->losses + (int64_t)k * stage->B * stage->T, acts->head", "pass->losses + (int64_t)(k ? k - 1 : 0) * stage->B * stage->T, acts->head"),
    ("passes: the first window only", ONE, TRAINER, "for (int64_t first = 0; first < e->rows; first += window) {", "for (int64_t first = 0; first < e->rows; first += e->rows) {"),
    ("passes: windows overlap", ONE, TRAINER, "first < e->rows; first += window)", "first < e->rows; first += window - 1)"),
    ("passes: a row has the losses of a micro-batch", "evaluate 1 --micro-batch 5 --global-batch 5 --recompute full", TRAINER, "*sum += losses[k * group + b * row + i];", "*sum += losses[k * group + i];"),
    ("passes: all tensor ranks add", "evaluate 2 --tp 2", TRAINER, "mine = head && mesh->tensor == 0;", "mine = head;"),
    ("passes: all stages add", PIPE, TRAINER, "    sum_over_mesh(&t->groups, e->sums, e->rows);\n", "    if (mesh->p == 1) sum_over_mesh(&t->groups, e->sums, e->rows);\n"),
    ("passes: replicas do not tell each other", DATA, TRAINER, "    sum_over_mesh(&t->groups, e->sums, e->rows);\n", "    if (mesh->d == 1) sum_over_mesh(&t->groups, e->sums, e->rows);\n"),
    ("passes: replicas have rows of one more than there are", DATA3, TRAINER, "microbatches_in_turn(t, end - first)", "microbatches_in_turn(t, window)"),
    ("passes: replicas all have the first rows", DATA, "trainer/batch.h", "(int64_t)k * mesh->d + mesh->data;", "(int64_t)k * mesh->d;"),
    ("use: sites evaluate their own weights", USE, TRAINER, "    load_global_weights(t);\n    if (due)", "    if (!evaluates) load_global_weights(t);\n    if (due)"),
    ("use: the common weights stay", USE, TRAINER, "evaluate_all(t);\n    restore_local_weights(", "evaluate_all(t);\n    if (!evaluates) restore_local_weights("),
    ("use: in every step", USE, TRAINER, "t->evaluations.count > 0 && (is_last_step(t) ||", "t->evaluations.count > 0 && (true || is_last_step(t) ||"),
    ("use: not at the end", USE, TRAINER, "t->evaluations.count > 0 && (is_last_step(t) ||", "t->evaluations.count > 0 && ("),
    ("use: alone it trains", USE, SETTINGS, 'o->generate || option_given(table, n, "evaluate")', "o->generate"),
    ("use: a text for tokens", USE, EVALUATE, "eval->stream.format == TOKENS_TEXT && !bytes)", "false && !bytes)"),
    ("use: other tokens than those learned from", USE, EVALUATE, "if (!formats_agree(files->format, eval->stream.format))", "if (0)"),
    ("use: the log has acc twice", USE, TELL, '{"acc_norm", scores.acc_norm, is_choice(evaluation)}', '{"acc_norm", scores.perplexity, is_choice(evaluation)}'),
    ("use: the table has the wrong column", USE, TELL, 'print_score("%.4f", 7, scores.acc), print_score("%.4f", 9, scores.acc_norm)', 'print_score("%.4f", 9, scores.acc_norm), print_score("%.4f", 7, scores.acc)'),
]


def run(test, _planted):
    if test == USE:
        return "train_gpt", ["python3", "dev/test/system/test_evaluations.py"]
    _, n, only = test.split(" ", 2)
    return "build/test_evaluate", [*mutate.ranks(n), "build/test_evaluate", "--only", only]
