#!/usr/bin/env python3
"""
test_terminal.py: what a run shows in a terminal. The pictures of its schedule fit, whatever the mesh; the other lines
of the header are those that a file gets. It says which options have no effect.

    dev/test/system/test_terminal.py
"""
import fcntl, os, pty, re, struct, subprocess, sys, tempfile, termios

sys.dont_write_bytecode = True
from checks import check, finish

TRAIN = os.path.abspath(os.environ.get("TRAIN", "./train_gpt"))
RUNS = ("", "--tp 2 --sequence-parallel", "--tp 2 --caat-fraction 0.5", "--pp 4", "--tp 2 --pp 2 --dp 2 --zero 1",
        "--pp 2 --vpp 2 --layers 8 --global-batch 64 --micro-batch 1 --recompute full",
        "--dp 8 --allreduce multitree --topology torus:4x2", "--dp 4 --dp-mode dc-s3gd",
        "--dp 4 --dp-mode diloco --sites 2 --local-steps 5", "--save-every 10 --out OUT",
        "--model gpt3-175B --tp 8 --pp 16 --dp 6", f"--data {'x' * 90}.txt --val {'y' * 30}.txt",
        "--pp 100 --layers 100")

PICTURE = re.compile("(stage [0-9]|  |outer |schedule )")


def in_terminal(columns, arguments):
    """The exit status, and all that was written to a terminal of this many columns."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    child = subprocess.Popen([TRAIN, *arguments], stdin=side, stdout=side, stderr=subprocess.DEVNULL,
                             env={**os.environ, "TERM": "xterm"})
    os.close(side)
    text = b""
    try:
        while more := os.read(main, 65536):
            text += more
    except OSError:
        pass
    return child.wait(), text.decode().replace("\r\n", "\n")


def lines_of(text):
    """Lines of a header without pictures."""
    return [line for line in text.split("\n") if not PICTURE.match(line)]


def dry_run(options):
    return subprocess.run([TRAIN, *options.split(), "--dry-run"], capture_output=True, text=True)


def test_header():
    for name in "x" * 90, "y" * 30:
        open(f"{name}.txt", "w").write("a text of one's own\n" * 1000)
    for run in RUNS:
        arguments = [*run.split(), "--dry-run"]
        plain = dry_run(run)
        check(plain.returncode == 0 and "model" in plain.stdout, f"{run or 'one rank'}: {plain.stderr.strip()}")
        for columns in (60, 80, 100, 140):
            status, text = in_terminal(columns, arguments)
            wide = [line for line in text.split("\n") if re.match("stage [0-9]", line) and len(line) > columns]
            check(status == 0 and not wide, f"    fits {columns} columns: {wide[:1]}")
            lines, expected = lines_of(text), lines_of(plain.stdout)
            check(lines == expected and len(lines) > 8,
                  f"    and says what a file gets: {[x for x in lines if x not in expected][:1]}")


# Options, and the one that has no effect then; or None.
WITHOUT_EFFECT = (("--zero 1", "zero"), ("--zero 1 --dp 2", None), ("--zero 0", None), ("--zero 2 --tp 2", "zero"),
                  ("--caat-fraction 0.5", "caat-fraction"), ("--caat-fraction 0.5 --tp 2", None),
                  ("--caat-fraction 0.5 --caat-ranks 2", None), ("--caat-fraction 1", None),
                  ("--no-scatter-gather --tp 2", "no-scatter-gather"), ("--no-scatter-gather --pp 2 --tp 2", None),
                  ("--eval-sequences 5 --eval-every 0", "eval-sequences"), ("--eval-sequences 5", None))


def test_told():
    for options, name in WITHOUT_EFFECT:
        done = dry_run(options)
        told = re.findall("^options   --(.*) has no effect: .", done.stdout, re.M)
        check(done.returncode == 0 and told == ([name] if name else []),
              f"{options}: without effect {told} {done.stderr}")


def main():
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        test_header()
        test_told()
    finish()


if __name__ == "__main__":
    main()
