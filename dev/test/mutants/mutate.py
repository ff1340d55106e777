"""
mutate.py: what the lists of planted faults share. Both of its drivers plant faults in copies of the sources, one at a time, and
run the test there that should see it: it has to fail, to crash, or to hang. Standard library only.

    main     lists whose tests are one C program each: planner.py, datacenter.py, ...
    drive    lists whose tests are commands, programs of several ranks among them, two faults at a time: async_dp.py,
             health.py, survival.py

The others take copy_sources and mutated.
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile

CC = os.environ.get("CC", "gcc")

def copy_sources(folder):
    """Copies the sources, not what was built of them."""
    for place, folders, names in os.walk("."):
        folders[:] = [name for name in folders if not name.startswith((".", "build", "docs"))]
        os.makedirs(os.path.join(folder, place), exist_ok=True)
        for name in names:
            if name.endswith((".h", ".c", ".cu", ".cuh", ".mk", ".sh", ".py", ".txt", ".html")) or name == "Makefile" or place.endswith("reference"):
                shutil.copy2(os.path.join(place, name), os.path.join(folder, place))
    os.makedirs(os.path.join(folder, "build"))


def mutated(path, text, replacement):
    """A source with its fault."""
    with open(path, encoding="utf-8") as f:
        source = f.read()
    if source.count(text) != 1:
        sys.exit(f"{path} has {source.count(text)} times, not once: {text!r}: the list of faults is out of date")
    return source.replace(text, replacement)


def verdict(folder, test):
    """What the test had to say, in one line; None if it saw nothing."""
    made = subprocess.run([CC, "-std=gnu11", "-O0", "-w", f"dev/test/unit/{test}.c", "-o", "build/test", "-lm", "-ldl"],
                          cwd=folder, capture_output=True, text=True)
    if made.returncode != 0:
        sys.exit(f"{test} does not compile:\n{made.stderr}")
    try:  # not Python's child: what the kernel counts as a process's peak begins with its parent's
        run = subprocess.run(["sh", "-c", "build/test --short; exit $?"], cwd=folder, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=120,
                             env=dict(os.environ, TMPDIR=folder))
    except subprocess.TimeoutExpired:
        return "hangs"
    if run.returncode == 0:
        return None
    lines = run.stdout.splitlines() or [""]
    return next((line[4:].strip() for line in lines if line.startswith("FAIL")), f"status {run.returncode}: {lines[-1]}")


def main(all_faults, tests):
    """all_faults: what is wrong; file, exact text, replacement. tests: which one sees the faults of a file. Plants those whose
    description has the command line's word, and returns the exit status."""
    faults = [fault for fault in all_faults if len(sys.argv) < 2 or sys.argv[1] in fault[0]]
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
    for fault in faults:
        mutated(*fault[1:])
    caught = 0
    with tempfile.TemporaryDirectory() as folder:
        copy_sources(folder)
        for test in sorted({tests[fault[1]] for fault in faults}):
            line = verdict(folder, test)
            if line:
                sys.exit(f"{test}: the sources as they are do not pass: {line}")
        for fault in faults:
            with open(os.path.join(folder, fault[1]), "w", encoding="utf-8") as f:
                f.write(mutated(*fault[1:]))
            line = verdict(folder, tests[fault[1]])
            shutil.copy2(fault[1], os.path.join(folder, fault[1]))
            caught += line is not None
            print(f"caught  {fault[0]}: {line[:120]}" if line else f"MISSED  {fault[0]}", flush=True)
    print(f"{caught} passed, {len(faults) - caught} failed")
    return 0 if caught == len(faults) and faults else 1


class Driver:
    """Tests that are commands. program_of(test): what make has to build for it. command_of(test): what runs it, in the folder
    of the sources. fast: make's FAST. env: more variables. died: an expression for the line of a program that ends by itself."""

    def __init__(self, program_of, command_of, seconds, fast, env=None, died=r"test_\w+: .*"):
        self.program_of, self.command_of, self.seconds, self.fast = program_of, command_of, seconds, fast
        self.env, self.died = env or {}, died

    def build(self, folder, program):
        made = subprocess.run(["make", "--no-print-directory", "BUILD=build", "DEVICE=cpu", self.fast, program], cwd=folder,
                              capture_output=True, text=True)
        if made.returncode != 0:
            sys.exit(f"{sys.argv[0]}: does not compile:\n{made.stderr}")

    def run(self, folder, test):
        """Exit status and output."""
        # --foreground: otherwise timeout signals mpirun twice, and Open MPI leaves its ranks behind.
        done = subprocess.run(["timeout", "--foreground", "-k", "5", str(self.seconds), *self.command_of(test)], cwd=folder,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", env=dict(os.environ, TMPDIR=folder, **self.env))
        return done.returncode, done.stdout

    def verdict(self, status, output):
        """What the test had to say, in one line; None if it saw nothing."""
        if status == 0:
            return None
        failed = re.search(r"^FAIL +(.*)$", output, re.MULTILINE)
        if failed:
            return " ".join(failed.group(1).split())
        if status in (124, 137):
            return f"did not end within {self.seconds} s"
        died = re.search(rf"^({self.died}|.*\*\*\* An error occurred.*|.*Signal: .*)$", output, re.MULTILINE)
        if not died and status > 0 and status < 128:
            sys.exit(f"{sys.argv[0]}: the test did not run, exit status {status}:\n{output}")
        return "crashed: " + (died.group(1) if died else f"status {status}")

    def prepare(self, sound, tests):
        """Builds the sources as they are, in the folder sound. They have to pass all tests."""
        copy_sources(sound)
        for program in sorted({self.program_of(test) for test in tests}):
            self.build(sound, program)
        for test in tests:
            status, output = self.run(sound, test)
            if status != 0 or not re.search(r"^[1-9]\d* passed, 0 failed$", output, re.MULTILINE):
                sys.exit(f"{sys.argv[0]}: the sources as they are do not pass '{test}':\n{output}")
        print(f"as they are the sources pass all {len(tests)} tests used here", flush=True)

    def try_fault(self, root, fault):
        """Plants a fault in a copy of the sources. Returns what the test said of it."""
        _, test, path, *change = fault
        with tempfile.TemporaryDirectory(dir=root) as folder:
            copy_sources(folder)
            with open(os.path.join(folder, path), "w", encoding="utf-8") as f:
                f.write(mutated(path, *change))
            self.build(folder, self.program_of(test))
            return self.verdict(*self.run(folder, test))


def drive(all_faults, driver):
    """all_faults: what is wrong; test; file, exact text, replacement. Plants those whose description has the command line's
    word, and returns the exit status."""
    faults = [fault for fault in all_faults if len(sys.argv) < 2 or sys.argv[1] in fault[0]]
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
    for fault in faults:
        mutated(*fault[2:])
    caught = 0
    with tempfile.TemporaryDirectory() as root, concurrent.futures.ThreadPoolExecutor(2) as pool:
        driver.prepare(os.path.join(root, "sound"), sorted({fault[1] for fault in faults}))
        for fault, line in zip(faults, pool.map(driver.try_fault, [root] * len(faults), faults)):
            caught += line is not None
            print(f"caught  {fault[0]}: {line[:150]}" if line else f"MISSED  {fault[0]} ({fault[1]})", flush=True)
    print(f"{caught} passed, {len(faults) - caught} failed")
    return 0 if caught == len(faults) and faults else 1
