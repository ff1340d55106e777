#!/usr/bin/env python3
"""
mutate.py: would a test notice? In copies of the sources one thing of a file is changed at a time, and the tests that
include the file are run: one of them has to fail, to crash, or to hang. Printed are the changes that none notices.

    make mutate FILE=parallel/schedule.h [SAMPLE=100] [SEED=1] [TESTS="test_schedule test_equivalence"]

    relation    < and <=, > and >=, == and !=, && and || change places
    sign        + and -, += and -= change places; * becomes +
    constant    a whole number becomes one more
    left out    a statement, if it is an assignment or a call

SAMPLE: as many, drawn by SEED; 0: all. TESTS: without it three of dev/test/unit that include the file (changed.py), and
for what ranks run together test_equivalence on four ranks, two cases of it before all. Two changes are tried at a time.
A survivor is a change that does nothing, such as a larger buffer, or a test that is missing. Standard library only.
"""
import argparse, concurrent.futures, os, queue, random, re, shutil, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, ".."))
from changed import tests_including  # noqa: E402

ROOT = os.path.join(HERE, "..", "..", "..")
SOURCES = tuple(".h .c .cu .cuh .mk .sh .py .txt .html .md .svg .png Makefile LICENSE".split())
MESHES = re.compile(r"parallel/|comm|methods/|gpt\.h|parallel\.h|train_gpt\.cu|trainer/")
CASES = (("2 2 1", "gpt2 tied zero 0 B="), ("1 2 2", "interleaved/2 gpt2 tied zero 1 B="))  # of test_equivalence
SECONDS = 200  # the limit of a test
BLANK = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|^[ \t]*#.*?(?<!\\)$", re.S | re.M)
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-",
         "-": "+", "+=": "-=", "-=": "+=", "*": "+"}
OPERATOR = re.compile(r"(?<= )([<>]=?|[=!]=|&&|\|\||[-+]=?|\*)(?= )")
NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
STATEMENT = re.compile(r"^ +((?:\*?[\w.\[\]]|->)+ [-+*/|&^]?= [^{};]*;|(?!return|if|for|while)\w+\([^{};]*\);)$", re.M)


def copy_sources(folder):
    """Copies the sources, not what was built of them."""
    for place, folders, names in os.walk("."):
        folders[:] = [name for name in folders if not name.startswith((".", "build"))]
        os.makedirs(os.path.join(folder, place), exist_ok=True)
        for name in names:
            if name.endswith(SOURCES) or place.endswith("reference"):
                shutil.copy2(os.path.join(place, name), os.path.join(folder, place))
    os.makedirs(os.path.join(folder, "build"))


def changes_of(source):
    """All changes, as (begin, end, text in its place)."""
    code = BLANK.sub(lambda match: re.sub(r"[^\n]", "\0", match[0]), source)
    found = [(m.start(), m.end(), SWAPS[m[1]]) for m in OPERATOR.finditer(code)]
    found += [(m.start(), m.end(), str(int(m[0], 0 if m[0] == "0" or m[0][0] != "0" else 8) + 1))
              for m in NUMBER.finditer(code)]
    return sorted(found + [(m.start(1), m.end(1), ";") for m in STATEMENT.finditer(code)])


def tests_of(path):
    tests = sorted(name[:-2] for name in os.listdir("dev/test/unit") if re.fullmatch(r"test_\w+\.c", name))
    found = [test for test in tests_including(path, tests) if test != "test_equivalence"]
    return found[:3] + ["test_equivalence"] * bool(MESHES.match(path))


class Tree:
    """A copy of the sources in which changes are tried."""

    def __init__(self, folder, path, tests):
        self.folder, self.path, self.tests = folder, os.path.join(folder, path), tests
        copy_sources(folder)
        with open(path, encoding="utf-8") as file:
            self.source = file.read()

    def build(self, test):
        fast = "FAST=-O1 $(ARCH_FLAG) -fno-math-errno -fno-trapping-math"
        command = ["make", "-s", "--no-print-directory", "BUILD=build", "DEVICE=cpu", "PRECISION=fp32", fast, "DEBUG=",
                   f"build/{test}"]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)

    def passes(self, test, first):
        """Whether it does. first: the sources are as they are, and write references for test_equivalence."""
        commands = [[f"build/{test}", "--short"]]
        if test == "test_equivalence":
            commands = [["scripts/mpirun.sh", "-np", "4", f"build/{test}", "--mesh", *mesh.split(), "--only", case,
                         *([] if first else ["kept"])] for mesh, case in CASES]
            commands.append(["scripts/mpirun.sh", "-np", "4", f"build/{test}"])
        for command in commands:
            done = subprocess.run(["timeout", "--foreground", "-k", "5", str(SECONDS), "env",
                                   "OMPI_MCA_mpi_yield_when_idle=1", *command], cwd=self.folder, check=False,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode or re.search(rb"^0 passed, 0 failed$", done.stdout, re.M):
                return False
        return True

    def begin(self):
        for test in self.tests:
            made = self.build(test)
            if made.returncode or not self.passes(test, True):
                sys.exit(f"mutate.py: the sources as they are do not pass {test}\n{made.stderr}")

    def noticed(self, change):
        """Whether a test notices the change; None: it does not compile."""
        begin, end, text = change
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(self.source[:begin] + text + self.source[end:])
        for test in self.tests:
            if self.build(test).returncode:
                return None
            if not self.passes(test, False):
                return True
        return False


def mutate(path, changes, tests):
    """Tries changes in two trees; the outcomes in their order."""
    trees = queue.Queue()

    def attempt(change):
        tree = trees.get()
        outcome = tree.noticed(change)
        trees.put(tree)
        if outcome is False:
            begin, end, text = change
            line, column = tree.source.count("\n", 0, begin) + 1, begin - tree.source.rfind("\n", 0, begin)
            whole = " ".join(tree.source.split("\n")[line - 1].split())
            print(f"{path}:{line}:{column}: {' '.join(tree.source[begin:end].split())} -> {text}    in {whole}",
                  flush=True)
        return outcome

    with tempfile.TemporaryDirectory() as root, concurrent.futures.ThreadPoolExecutor(2) as pool:
        both = [Tree(os.path.join(root, str(i)), path, tests) for i in range(2)]
        list(pool.map(Tree.begin, both))
        for tree in both:
            trees.put(tree)
        return list(pool.map(attempt, changes))


def main():
    parser = argparse.ArgumentParser(description="changes of a file that no test notices")
    parser.add_argument("file")
    parser.add_argument("--sample", type=int, default=100, help="as many changes; 0: all [100]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", default="", help="names of unit tests [those that include the file]")
    options = parser.parse_args()
    os.chdir(ROOT)
    path = os.path.normpath(options.file)
    with open(path, encoding="utf-8") as file:
        changes = changes_of(file.read())
    if 0 < options.sample < len(changes):
        changes = sorted(random.Random(options.seed).sample(changes, options.sample))
    tests = options.tests.split() or tests_of(path)
    if not changes or not tests:
        sys.exit(f"mutate.py: {path}: nothing to change, or no unit test includes it: name TESTS")
    print(f"{path}: {len(changes)} changes; {', '.join(tests)}", flush=True)
    outcomes = mutate(path, changes, tests)
    print(f"{outcomes.count(True)} noticed, {outcomes.count(False)} survive, {outcomes.count(None)} do not compile")


if __name__ == "__main__":
    main()
