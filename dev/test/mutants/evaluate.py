"""Faults of evaluations: their files, rows, scores, and the trainer's passes.

Tests: "evaluate N TEXT": the cases of test_evaluate with TEXT in their command line, on N ranks ("pure": without a
trainer). "use": test_evaluations.py. "fuzz": fuzz_evaluate."""
import mutate

EVALUATE, TRAINER, TELL, SETTINGS = "dataloader/eval_loader.h", "train_gpt.cu", "trainer/logger.h", "trainer/settings.h"
PURE, ONE, PIPE, DATA, DATA3, USE = ("evaluate 1 pure", "evaluate 1 --micro-batch 1 --global-batch 4",
                                     "evaluate 2 --pp 2 --vpp 2", "evaluate 2 --dp 2",
                                     "evaluate 3 --dp 3 --micro-batch 4", "use")
FUZZ = "fuzz"

# What is wrong; the test that has to see it; file, exact text, replacement.
FAULTS = [
    ("row: T tokens are kept", PURE, EVALUATE, "max_i64(0, all - (eval->T + 1))", "max_i64(0, all - eval->T)"),
    ("row: the end is cut", PURE, EVALUATE, "skipped = max_i64(0, all - (eval->T + 1));",
     "skipped = 0; if (all > eval->T + 1) return;"),
    ("row: the first token of a completion does not count", PURE, EVALUATE, "if (i >= before) targets",
     "if (i > before) targets"),
    ("row: the last of the context counts", PURE, EVALUATE, "if (i >= before) targets",
     "if (i >= before - (before - skipped > 1)) targets"),
    ("row: targets are inputs", PURE, EVALUATE, "targets[i - skipped - 1] = token",
     "targets[i - skipped - (before - skipped > 1)] = token"),
    ("row: what is behind the end stays", PURE, EVALUATE, "        inputs[i] = 0;\n        targets[i] = -1;\n",
     "        inputs[i] = 0;\n"),
    ("row: what is behind the end counts", PURE, EVALUATE, "        targets[i] = -1;\n", "        targets[i] = 0;\n"),
    ("file: any version", PURE, EVALUATE, "shard_header_word(data, 1) != 1)", "shard_header_word(data, 1) < 1)"),
    ("file: none at all", PURE, EVALUATE, "return (count > 0 && at == end", "return (at == end"),
    ("file: odd lengths", PURE, EVALUATE, "head[1] % 2 || ", ""),
    ("file: lengths beyond the end", FUZZ, EVALUATE, " || head[1] / 2 > end - head)", ")"),
    ("file: any number of an example", PURE, EVALUATE, "head[2] != (uint16_t)eval->examples || ", ""),
    ("file: any label", PURE, EVALUATE, " || label >= completions)", " || completions == 0)"),
    ("file: parts without tokens", PURE, EVALUATE, "*part == 0 || ", "(*part == 0 && i < 0) || "),
    ("file: more behind the completions of an example", PURE, EVALUATE, "return part == *at;", "return true;"),
    ("file: more behind the last example", PURE, EVALUATE, "(count > 0 && at == end && eval->map.size % 2 == 0)",
     "(count > 0)"),
    ("file: half a number behind it", PURE, EVALUATE, "at == end && eval->map.size % 2 == 0)", "at == end)"),
    ("fit: the context may have any token", PURE, EVALUATE, "!are_below(context, V) || ", ""),
    ("fit: a vocabulary that is one short", PURE, EVALUATE, "if (part[i] >= V) return false;",
     "if (part[i] > V) return false;"),
    ("fit: completions of any length", PURE, EVALUATE, "if (completion[0] > T)", "if (completion[0] > T + 1)"),
    ("fit: no place for the longest", PURE, EVALUATE, "if (completion[0] > T)", "if (completion[0] >= T)"),
    ("fit: cuts are counted one too early", PURE, EVALUATE, "completion[0] > T + 1;", "completion[0] > T;"),
    ("score: the last of equal ones", PURE, EVALUATE, "c > 0 && loss >= least)", "c > 0 && loss > least)"),
    ("score: a NaN is passed over", PURE, EVALUATE, "if (isnan(loss)) return false;", "if (isnan(loss)) continue;"),
    ("score: the largest", PURE, EVALUATE, "c > 0 && loss >= least)", "c > 0 && loss <= least)"),
    ("score: sum and mean change places", PURE, EVALUATE, "(mean ? choice[c].completion[0] : 1)",
     "(mean ? 1 : choice[c].completion[0])"),
    ("passes: sums go on from those before", USE, TRAINER,
     "    memset(e->sums, 0, (size_t)e->rows * sizeof(double));\n", ""),
    ("passes: losses of the micro-batch before", ONE, TRAINER,
     "input->losses + (int64_t)k * stage->B * stage->T, acts->head",
     "input->losses + (int64_t)(k ? k - 1 : 0) * stage->B * stage->T, acts->head"),
    ("passes: the first window only", ONE, TRAINER, "for (int64_t first = 0; first < e->rows; first += window) {",
     "for (int64_t first = 0; first < e->rows; first += e->rows) {"),
    ("passes: windows overlap", ONE, TRAINER, "first < e->rows; first += window)",
     "first < e->rows; first += window - 1)"),
    ("passes: a row has the losses of a micro-batch", "evaluate 1 --micro-batch 5 --global-batch 5 --recompute full",
     TRAINER, "*sum += losses[k * group + b * row + i];", "*sum += losses[k * group + i];"),
    ("passes: all tensor ranks add", "evaluate 2 --tp 2", TRAINER, "mine = counts_losses(stage);", "mine = head;"),
    ("passes: all stages add", PIPE, TRAINER, "    sum_over_mesh(&t->groups, e->sums, e->rows);\n",
     "    if (mesh->p == 1) sum_over_mesh(&t->groups, e->sums, e->rows);\n"),
    ("passes: replicas do not tell each other", DATA, TRAINER, "    sum_over_mesh(&t->groups, e->sums, e->rows);\n",
     "    if (mesh->d == 1) sum_over_mesh(&t->groups, e->sums, e->rows);\n"),
    ("passes: replicas have rows of one more than there are", DATA3, TRAINER, 
     "microbatches_in_turn(t, input.end - input.first)", "microbatches_in_turn(t, window_sequences(t))"),
    ("passes: replicas all have the first rows", DATA, "trainer/batch.h", "(int64_t)k * mesh->d + mesh->data;",
     "(int64_t)k * mesh->d;"),
    ("use: sites evaluate their own weights", USE, TRAINER, "    load_global_weights(t);\n    if (due)",
     "    if (!t->evaluated) load_global_weights(t);\n    if (due)"),
    ("use: the common weights stay", USE, TRAINER, "evaluate_all(t);\n    restore_local_weights(",
     "evaluate_all(t);\n    if (!t->evaluated) restore_local_weights("),
    ("use: in every step", USE, TRAINER, "t->evaluated = now && ", "t->evaluated = "),
    ("use: not at the end", USE, TRAINER, "t->evaluated = now && ",
     "t->evaluated = is_due(t->step, o->eval_every) && "),
    ("use: alone it trains", USE, SETTINGS, 'o->generate || option_given(table, n, "evaluate")', "o->generate"),
    ("use: the log has acc twice", USE, TELL, "\n                evaluation_score(e, true))",
     "\n                evaluation_score(e, false))"),
    ("use: the table has acc twice", USE, TELL, "\n                   evaluation_score(e, true))",
     "\n                   evaluation_score(e, false))"),
]


def run(test, _planted):
    if test == USE:
        return "train_gpt", ["python3", "dev/test/system/test_evaluations.py"]
    if test == FUZZ:
        return "build/sanitized/fuzz_evaluate", ["build/sanitized/fuzz_evaluate", "3", "1"]
    _, n, only = test.split(" ", 2)
    return "build/test_evaluate", [*mutate.ranks(n), "build/test_evaluate", "--only", only]
