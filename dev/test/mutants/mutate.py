#!/usr/bin/env python3
"""
mutate.py: are the tests able to fail? Plants faults in copies of the sources, one at a time, and runs the test that has
to see each: it has to fail, to crash, or to hang.

    python3 dev/test/mutants/mutate.py SUITE... [--only WORD]    make mutate SUITE=health ONLY=word

SUITE: a list of faults, dev/test/mutants/SUITE.py, or all. --only: faults with WORD in their description, test or file.
Two faults are tried at a time. First the tests run on the sources as they are, where they have to pass. One line a
fault, as it is tried: "caught" or "MISSED", the test, the fault, what the test printed. At the end a table: suite,
test, faults, caught; then "N passed, N failed": N faults caught, N not. A fault that does not compile counts as
missed. Standard library only.

A list is a Python file with
    FAULTS   tuples: description, test, file, exact text, replacement. The text has to occur once in the file.
             Four entries, without the test, where TESTS has it by the file.
    TESTS    {file: test}
    run      run(test, planted) -> (what to build, command). What to build: a target of make, a command, or None.
             planted: whether there is a fault. Without run, tests are unit tests, compiled with -O0.
    FAST, ENV, SECONDS    make's optimisation; more environment variables; limit of a run (120)
Its functions can use ranks(n): the words that start a command on n ranks.
"""
import argparse
import concurrent.futures
import glob
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
CC = os.environ.get("CC", "gcc")
SOURCES = (".h", ".c", ".cu", ".cuh", ".mk", ".sh", ".py", ".txt", ".html", ".md", ".svg", ".png", "Makefile",
           "LICENSE")
# What a failing test prints, besides "FAIL": the last words of our programs, of MPI, Python and the sanitizers.
FAILED = re.compile(r"FAIL|ERROR: AddressSanitizer|runtime error|WARNING: ThreadSanitizer|"
                    r"\*\*\* An error occurred|Signal: |^Traceback|^(threefold|test_\w+|cuda_\w+|fake\w*): |\.cuh:")


def ranks(n):
    return ["scripts/mpirun.sh", "-np", str(n)] if int(n) > 1 else []


def unit_test(test, _planted=True):
    program = f"build/{test}"
    source = f"dev/test/unit/{test}.c"
    return [CC, "-std=gnu11", "-O0", "-w", source, "-o", program, "-lm", "-ldl"], [program, "--short"]


def copy_sources(folder):
    """Copies the sources, not what was built of them."""
    for place, folders, names in os.walk("."):
        folders[:] = [name for name in folders if not name.startswith((".", "build"))]
        os.makedirs(os.path.join(folder, place), exist_ok=True)
        for name in names:
            if name.endswith(SOURCES) or place.endswith("reference"):
                shutil.copy2(os.path.join(place, name), os.path.join(folder, place))
    os.makedirs(os.path.join(folder, "build"))


class Suite:
    """A list of faults, and how its tests run."""

    def __init__(self, name):
        data = importlib.import_module(name)
        self.name = name
        self.faults = [f if len(f) == 5 else (f[0], data.TESTS[f[1]], *f[1:]) for f in data.FAULTS]
        self.run = getattr(data, "run", unit_test)
        self.fast = getattr(data, "FAST", "-O0")
        self.seconds = getattr(data, "SECONDS", 120)
        # Ranks that share two cores wait for each other without using them.
        self.env = {"OMPI_MCA_mpi_yield_when_idle": "1", **getattr(data, "ENV", {})}
        for what, _, path, text, _ in self.faults:
            with open(path, encoding="utf-8") as f:
                count = f.read().count(text)
            if count != 1:
                sys.exit(f"{name}: {what}: {path} has {count} times, not once: {text!r}")

    def build(self, folder, program):
        """Returns what the compiler said, None if it succeeded."""
        if program is None:
            return None
        if isinstance(program, str):
            fast = f"FAST={self.fast} $(ARCH_FLAG) -fno-math-errno -fno-trapping-math"
            program = ["make", "--no-print-directory", "BUILD=build", "DEVICE=cpu", "PRECISION=fp32", fast, program]
        made = subprocess.run(program, cwd=folder, capture_output=True, text=True)
        return made.stderr or "does not build" if made.returncode != 0 else None

    def verdict(self, folder, command):
        """Returns one line of what the test printed, None if it passed, and its whole output."""
        early = command[0].startswith(("build/", "sh"))  # no MPI: its first failure is enough
        # timeout --foreground: otherwise mpirun is signalled twice, and Open MPI leaves its ranks behind. As timeout's
        # child a test does not inherit Python's peak of memory.
        start = ["timeout", *([] if early else ["--foreground"]), "-k", "5", str(self.seconds), *command]
        output = []
        with subprocess.Popen(start, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=early,
                              env=dict(os.environ, TMPDIR=folder, **self.env)) as test:
            for line in test.stdout:
                output.append(line)
                if early and line.startswith("FAIL"):
                    os.killpg(test.pid, signal.SIGKILL)
                    break
            status = test.wait()
        text = "".join(output)
        if status == 0:
            return ("no test was run" if re.search("^0 passed, 0 failed$", text, re.MULTILINE) else None), text
        if status in (126, 127):
            sys.exit(f"{self.name}: cannot run {command}:\n{text}")
        seen = next((line for line in output if FAILED.search(line)), output[-1] if output else "")
        if status in (124, 137) and not seen.startswith("FAIL"):
            seen = f"did not end within {self.seconds} s"
        return " ".join(seen.split()) or f"status {status}", text

    def check_sound(self, sound, tests, pool):
        """Builds the sources as they are in the folder sound, and runs the tests, which have to pass."""
        copy_sources(sound)
        programs = {str(p): p for p, _ in (self.run(test, False) for test in tests)}
        for said in pool.map(self.build, [sound] * len(programs), programs.values()):
            if said:
                sys.exit(f"{self.name}: the sources as they are do not compile:\n{said}")
        for test in tests:
            line, output = self.verdict(sound, self.run(test, False)[1])
            if line:
                sys.exit(f"{self.name}: the sources as they are do not pass '{test}':\n{output}")
        print(f"{self.name}: the sources as they are pass all {len(tests)} tests used here", flush=True)

    def try_fault(self, root, fault):
        """Returns whether the fault was caught, and one line."""
        _, test, path, text, replacement = fault
        program, command = self.run(test, True)
        with tempfile.TemporaryDirectory(dir=root) as folder:
            copy_sources(folder)
            for reference in glob.glob(f"{root}/sound/build/*.ref"):  # of test_equivalence
                os.symlink(reference, os.path.join(folder, "build", os.path.basename(reference)))
            with open(path, encoding="utf-8") as f:
                source = f.read()
            with open(os.path.join(folder, path), "w", encoding="utf-8") as f:
                f.write(source.replace(text, replacement))
            said = self.build(folder, program)
            if said:
                return False, "does not compile: " + " ".join(said.split())
            line = self.verdict(folder, command)[0]
            return line is not None, line or "the test passes"


def run_suite(suite, word):
    """Tries the faults with the word. Returns rows (test, caught) and the descriptions of those that were missed."""
    faults = [f for f in suite.faults if word in f[0] or word in f[1] or word in f[2]]
    rows, missed = [], []
    if not faults:
        return rows, missed
    with tempfile.TemporaryDirectory() as root, concurrent.futures.ThreadPoolExecutor(2) as pool:
        suite.check_sound(os.path.join(root, "sound"), sorted({f[1] for f in faults}), pool)
        for fault, (caught, line) in zip(faults, pool.map(suite.try_fault, [root] * len(faults), faults)):
            print(f"{'caught' if caught else 'MISSED'}  [{fault[1]}] {fault[0]}: {line[:120]}", flush=True)
            rows.append((fault[1], caught))
            if not caught:
                missed.append(f"{suite.name}: {fault[0]} ({fault[1]}: {line[:60]})")
    return rows, missed


def main():
    parser = argparse.ArgumentParser(description="plant faults, each of which a test has to see")
    parser.add_argument("suites", nargs="+", metavar="SUITE", help="a file of dev/test/mutants, or all")
    parser.add_argument("--only", default="", metavar="WORD", help="faults with WORD in description, test or file")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    known = sorted({os.path.basename(path)[:-3] for path in glob.glob("dev/test/mutants/*.py")} - {"mutate"})
    names = known if options.suites == ["all"] else options.suites
    for name in names:
        if name not in known:
            sys.exit(f"SUITE={name} is not known: all, {', '.join(known)}")
    suites = [Suite(name) for name in names]
    table, missed = [], []
    for suite in suites:
        rows, more = run_suite(suite, options.only)
        missed += more
        for test in sorted({row[0] for row in rows}):
            table.append((suite.name, test, sum(t == test for t, _ in rows), sum(t == test and c for t, c in rows)))
    print(f"\n{'suite':<12} {'faults':>6} {'caught':>6}  test")
    for name, test, faults, caught in table:
        print(f"{name:<12} {faults:>6} {caught:>6}  {test}")
    for line in missed:
        print("MISSED", line)
    total = sum(row[2] for row in table)
    print(f"{total - len(missed)} passed, {len(missed)} failed")
    return 0 if total and not missed else 1


if __name__ == "__main__":
    sys.modules["mutate"] = sys.modules["__main__"]
    sys.exit(main())
