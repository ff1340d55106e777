#!/usr/bin/env python3
"""
test_terminal.py: what a run shows in a terminal. The header fits: whatever the mesh and the mode, no line is wider than
the screen, and the words are those that a file gets. It says which options have no effect, and which texts are probably
not meant. A step's line fits, too, and is written over, but for twenty steps and validations.

    dev/test/system/test_terminal.py
"""
import collections, fcntl, os, pty, re, struct, subprocess, tempfile, termios

from checks import TRAIN, check, finish, launch

RUNS = ("", "--tp 2 --sequence-parallel", "--tp 2 --caat-fraction 0.5", "--pp 4", "--tp 2 --pp 2 --dp 2 --zero 1",
        "--pp 2 --vpp 2 --layers 8 --global-batch 64 --micro-batch 1 --recompute full",
        "--dp 8 --allreduce multitree --topology torus:4x2", "--dp 4 --dp-mode dc-s3gd",
        "--dp 4 --dp-mode diloco --sites 2 --local-steps 5", "--save-every 10 --out OUT",
        "--model gpt3-175B --tp 8 --pp 16 --dp 6", f"--data {'x' * 90}.txt --val {'y' * 30}.txt",
        "--pp 100 --layers 100")

TABLE = re.compile("  +(rank|[0-9.]+|F) ")  # of ranks has 80 columns, and 10 more for each chunk
PICTURE = re.compile("(stage [0-9]|  |outer |busy )")  # or what may change from run to run


def in_terminal(columns, arguments):
    """The exit status, and all that was written to a terminal of this many columns."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    child = subprocess.Popen([TRAIN, *arguments], stdin=side, stdout=side, stderr=subprocess.DEVNULL,
                             env={**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"})
    os.close(side)
    text = b""
    try:
        while more := os.read(main, 65536):
            text += more
    except OSError:
        pass
    return child.wait(), text.decode().replace("\r\n", "\n")


def on_screen(line):
    """What is left of a line whose parts were written over each other."""
    screen = ""
    for part in line.split("\r"):
        screen = part + screen[len(part):]
    return screen.rstrip()


def lines_of(text):
    """Lines of a header as they were before they were broken, without pictures."""
    return [line for line in re.sub("\n {10}(?=[^ ])", " ", text).split("\n") if not PICTURE.match(line)]


def dry_run(options):
    return launch(TRAIN, *options.split(), "--dry-run")


def test_header():
    for name in "x" * 90, "y" * 30:
        open(f"{name}.txt", "w").write("a text of one's own\n" * 1000)
    for run in RUNS:
        plain, wide, other = dry_run(run), [], []
        expected = lines_of(plain.stdout)
        for columns in (60, 80, 100, 140):
            status, text = in_terminal(columns, [*run.split(), "--dry-run"])
            wide += [line for line in text.split("\n") if len(line) > columns and max(map(len, line.split())) < 50
                     and not (TABLE.match(line) and columns < 80 + 10 * ("vpp" in run))]
            other += [columns] if status or lines_of(text) != expected else []
        check(plain.returncode == 0 and len(expected) > 8 and not wide and not other,
              f"{run or 'one rank'}: fits 60 to 140 columns {wide[:1]}, and says what a file gets, but at {other}")
    words = " ".join(lines_of(dry_run("").stdout)).split()
    check(not collections.Counter(words) - collections.Counter(in_terminal(6, ["--dry-run"])[1].split()),
          "no word is lost in 6 columns")


def test_steps():
    with open("numbers", "w") as f:
        f.write(" ".join(str(i) for i in range(12000)))
    run = "--layers 2 --hidden 32 --heads 2 --seq 32 --micro-batch 2 --warmup 2 --data numbers --sample-every 0".split()
    for columns in 60, 80, 120:
        status, text = in_terminal(columns, [*run, "--steps", "60", "--eval-every", "25"])
        written = [x for line in text.split("\n") for x in line.split("\r") if re.match(" *step ", x)]
        screen = [x for x in map(on_screen, text.split("\n")) if x.startswith("step ")]
        check(status == 0 and "\033" not in text and
              [int(x.split()[1].split("/")[0]) for x in screen] == sorted({*range(3, 61, 3), 25, 50}),
              f"{columns} columns: the lines of twenty steps and of validations stay")
        check(len(written) == 60 and all(re.search("loss [0-9.]* .* tok/s .*[0-9s] left *$", x) for x in written) and
              max(map(len, [*written, *screen])) <= columns and all(x.endswith(" left") for x in screen) and
              ("norm" in written[0]) == (columns >= 80), "    a step's line fits, has all that there is room for")
    _, text = in_terminal(30, [*run, "--steps", "6"])
    cut = [x for x in re.split("[\r\n]", text) if "loss" in x]
    check(len(cut) >= 6 and max(len(x) for x in cut if x.startswith("loss") or x.startswith("step")) <= 30,
          "what does not fit at all is cut")


# Options, and the one that has no effect then; or None.
WITHOUT_EFFECT = (("--zero 1", "zero"), ("--zero 1 --dp 2", None), ("--zero 0", None), ("--zero 2 --tp 2", "zero"),
                  ("--caat-fraction 0.5", "caat-fraction"), ("--caat-fraction 0.5 --tp 2", None),
                  ("--caat-fraction 0.5 --caat-ranks 2", None), ("--caat-fraction 1", None),
                  ("--no-scatter-gather --tp 2", "no-scatter-gather"), ("--no-scatter-gather --pp 2 --tp 2", None),
                  ("--eval-sequences 5 --eval-every 0", "eval-sequences"), ("--eval-sequences 5", None))
TEXTS = (("vocabulary.json", '{"version": "1.0", "added_tokens": []}', "--tokenizer"),
         ("a.svg", '<?xml version="1.0"?>\n<svg>', "SVG"), ("page.html", "\n<!DOCTYPE html>\n<HTML>", "web page"),
         ("lines.json", '{"text": "one"}\n', "NAME.jsonl"), ("lines.jsonl", '{"text": "1"}\n', None),
         ("a.tex", "{\\bf bold} <svg>", None), ("a.txt", "see <svg> and <html>", None), ("a.c", "x <html", None))


def test_told():
    for options, name in WITHOUT_EFFECT:
        done = dry_run(options)
        told = re.findall("^options   --(.*) has no effect: .", done.stdout, re.M)
        check(done.returncode == 0 and told == ([name] if name else []), f"{options}: without effect {told}")
    for name, text, _ in TEXTS:
        open(name, "w").write(text + "\nmore of it" * 1000 if name != "lines.jsonl" else text * 1000)
    for name, _, word in TEXTS:
        for option in f"--data {name}", f"--val {name} --data a.txt":
            done = dry_run(f"{option} --seq 16")
            warned = done.stderr.startswith(f"train_gpt: warning: {name} ") and word in done.stderr if word else \
                done.stderr == ""
            check(done.returncode == 0 and warned, f"{option}: {done.stderr.strip()}")
    check(dry_run("--data a.svg,page.html").stderr.count("warning") == 1, "of several files the first is named")


def main():
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        test_header()
        test_steps()
        test_told()
    finish()


main()
