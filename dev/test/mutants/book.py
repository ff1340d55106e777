"""Faults in the docs and in what they name: check_docs.py has to see them. A test: its arguments, or "built": with a
trainer that is built again."""

DOC, MATH = "docs/schedules.md", "--static docs/schedules.md"
RUNS, TREE = "--quick docs/schedules.md", "--static"
SECONDS = 300


def run(test, planted):
    """The programs are those of the sources as they are, but for the test "built"."""
    check = "dev/test/system/check_docs.py " + (MATH if test == "built" else test)
    if not planted:
        return "book", ["sh", "-c", check.replace("../sound/", "")]
    link = "ln -s ../sound/plan . && ln -sf ../../sound/build/* build/ && "
    if test == "built":
        return "train_gpt", ["sh", "-c", link + check]
    return None, ["sh", "-c", "ln -s ../sound/train_gpt . && " + link + check]


FAULTS = [
    ("a link to no file", MATH, DOC, "[gpipe](images/gpipe.svg)", "[gpipe](images/gpipes.svg)"),
    ("a link to no heading", "--static README.md", "docs/benchmarks.md", "## Loss curve", "## Losses"),
    ("a function has another name", MATH, "parallel/schedule.h", "static inline void order_zb_v(",
     "static inline void order_zb_vee("),
    ("a function remains in a comment only", MATH, "parallel/schedule.h", "static inline void order_1f1b(",
     "// order_1f1b()\nstatic inline void order_one(", ),
    ("a type has another name", MATH, "parallel/schedule.h", "} ActionKind;", "} ActionSort;"),
    ("the table names the wrong file", MATH, DOC, "`parallel/schedule_time.h` `schedule_times()`",
     "`parallel/schedule.h` `schedule_times()`"),
    ("a path of no file", MATH, DOC, "`parallel/schedule_check.h`", "`parallel/schedule_proof.h`"),
    ("a chapter without a heading", MATH, DOC, "## In the code", "## Code"),
    ("headings in another order", MATH, DOC, "## The picture", "## Problems"),
    ("a chapter without its question", MATH, DOC, "**Question.** ", ""),
    ("a chapter without a picture", "--static docs/planner.md", "docs/planner.md", "![plan](images/plan.svg)", ""),
    ("an option that the trainer does not have", MATH, DOC, "with `--zero 2`", "with `--zeros 2`"),
    ("an option of the command", MATH, DOC, "--model gpt2-124M --pp 4 --schedule $s", "--model gpt2-124M --stages 4"),
    ("the trainer loses an option", "built", "trainer/settings.h", 'option_int("pp",', 'option_int("stages",'),
    ("a target of make is gone", "--static docs/testing.md", "dev/dev.mk", "torture: report train_gpt",
     "tortured: report train_gpt"),
    ("a picture that no document shows", TREE, "docs/usage.md", "](images/report.png)", "](images/plan.svg)"),
    ("a chapter is gone", TREE, "dev/test/system/check_docs.py", 'gpu_kernels precision"', 'gpu_kernels precise"'),
    ("too many lines", TREE, "dev/test/system/check_docs.py", "PROBLEMS = 6000,", "PROBLEMS = 600,"),
    ("a decimal number in an output", RUNS, DOC, "gpipe 3946.5", "gpipe 4046.5"),
    ("an integer in an output", RUNS, DOC, "gpipe bubble 37.5 % of the work, step 33",
     "gpipe bubble 37.5 % of the work, step 34"),
    ("a word in an output", RUNS, DOC, "stage 3  .  .  .  F0 B0---", "stage 3  .  .  F0 .  B0---"),
    ("a line too few", RUNS, DOC, "zb-h1 2813.9\nzb-v 2313.2", "zb-h1 2813.9"),
    ("a line too many", RUNS, DOC, "zb-v 2313.2\n", "zb-v 2313.2\nzb-w 1.0\n"),
    ("a command that fails", RUNS, DOC, "--global-batch 6 --dry-run | sed", "--global-batch 6 --dry-run | sod"),
    ("a command that writes elsewhere", RUNS, DOC, "/^  [0-9]/ && $(NF-3) > most {",
     '/^  [0-9]/ && $(NF-3) > most { print s > "elsewhere";'),
    ("the bubble of 1F1B", RUNS, DOC, "by formula a bubble of 0.500", "by formula a bubble of 0.375"),
]
