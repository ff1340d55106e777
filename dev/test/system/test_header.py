#!/usr/bin/env python3
"""
test_header.py: the header of a run fits the terminal: whatever the mesh and the mode, no line is wider than the screen,
and the words are those that a file gets. (The lines of the steps: test_cli.sh.) It says which options have no effect,
and which texts are probably not meant.

    dev/test/system/test_header.py
"""
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios

sys.dont_write_bytecode = True
from checks import check, finish

TRAIN = os.path.abspath(os.environ.get("TRAIN", "./train_gpt"))
RUNS = ("", "--tp 2 --sequence-parallel", "--tp 2 --caat-fraction 0.5", "--pp 4", "--tp 2 --pp 2 --dp 2 --zero 1",
        "--pp 2 --vpp 2 --layers 8 --global-batch 64 --micro-batch 1 --recompute full",
        "--dp 8 --allreduce multitree --topology torus:4x2", "--dp 4 --dp-mode dc-s3gd",
        "--dp 4 --dp-mode diloco --sites 2 --local-steps 5", "--save-every 10 --out OUT",
        "--model gpt3-175B --tp 8 --pp 16 --dp 6", f"--data {'x' * 90}.txt --val {'y' * 30}.txt",
        "--pp 100 --layers 100")

TABLE = re.compile("  +(rank|[0-9.]+|F) ")  # of ranks has 80 columns, and 10 more for each chunk
PICTURE = re.compile("(stage [0-9]|  |outer |busy )")  # or what may change from run to run


def in_terminal(columns, arguments):
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    child = subprocess.Popen([TRAIN, *arguments], stdin=side, stdout=side, stderr=subprocess.DEVNULL)
    os.close(side)
    text = b""
    try:
        while more := os.read(main, 65536):
            text += more
    except OSError:
        pass
    return child.wait(), text.decode().replace("\r\n", "\n")


def dry_run(options):
    return subprocess.run([TRAIN, *options.split(), "--dry-run"], capture_output=True, text=True)


def test_terminal():
    for name in "x" * 90, "y" * 30:
        open(f"{name}.txt", "w").write("a text of one's own\n" * 1000)
    for run in RUNS:
        arguments = [*run.split(), "--dry-run"]
        plain = dry_run(run)
        check(plain.returncode == 0 and "model" in plain.stdout, f"{run or 'one rank'}: {plain.stderr.strip()}")
        for columns in (60, 80, 100, 140):
            status, text = in_terminal(columns, arguments)
            wide = [line for line in text.split("\n") if len(line) > columns and max(map(len, line.split())) < 50
                    and not (TABLE.match(line) and columns < 80 + 10 * ("vpp" in run))]
            check(status == 0 and not wide, f"    fits {columns} columns: {wide[:1]}")
            words, expected = ([line for line in t.split("\n") if not PICTURE.match(line)]
                               for t in (re.sub("\n {10}(?=[^ ])", " ", text),
                                         re.sub("\n {10}(?=[^ ])", " ", plain.stdout)))
            check(words == expected and len(words) > 8,
                  f"    and says what a file gets: {[x for x in words if x not in expected][:1]}")


# Options, and the one that has no effect then; or None.
WITHOUT_EFFECT = (("--zero 1", "zero"), ("--zero 1 --dp 2", None), ("--zero 0", None), ("--zero 2 --tp 2", "zero"),
                  ("--caat-fraction 0.5", "caat-fraction"), ("--caat-fraction 0.5 --tp 2", None),
                  ("--caat-fraction 0.5 --caat-ranks 2", None), ("--caat-fraction 1", None),
                  ("--no-scatter-gather --tp 2", "no-scatter-gather"), ("--no-scatter-gather --pp 2 --tp 2", None),
                  ("--eval-sequences 5 --eval-every 0", "eval-sequences"), ("--eval-sequences 5", None),
                  ("--zero 1 --evaluate page.html", None))
TEXTS = (("vocabulary.json", '{"version": "1.0", "added_tokens": []}', "a vocabulary, which is for --tokenizer"),
         ("a.svg", '<?xml version="1.0"?>\n<svg>', "an SVG picture"),
         ("page.html", "\n<!DOCTYPE html>\n<HTML>", "a web page"),
         ("lines.json", '{"text": "one"}\n', "JSON (JSON lines are in NAME.jsonl)"),
         ("lines.jsonl", '{"text": "1"}\n', None),
         ("a.tex", "{\\bf bold} <svg>", None), ("a.txt", "see <svg> and <html>", None), ("a.c", "x <html", None))


def test_told():
    for name, text, _ in TEXTS:
        open(name, "w").write(text + "\nmore of it" * 1000 if name != "lines.jsonl" else text * 1000)
    for options, name in WITHOUT_EFFECT:
        done = dry_run(options)
        told = re.findall("^options   --(.*) has no effect: .", done.stdout, re.M)
        check(done.returncode == 0 and told == ([name] if name else []),
              f"{options}: without effect {told} {done.stderr}")
    for name, _, what in TEXTS:
        for option in "--data", "--val":
            done = dry_run(f"{option} {name} --seq 16" + (" --data a.txt" if option == "--val" else ""))
            said = f"train_gpt: warning: {name} is {what}: read as text\n" if what else ""
            check(done.returncode == 0 and done.stderr == said, f"{option} {name}: {done.stderr.strip()}")
    check(dry_run("--data a.svg,page.html").stderr.count("warning") == 1, "of several files the first is named")


def main():
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        test_terminal()
        test_told()
    finish()


if __name__ == "__main__":
    main()
