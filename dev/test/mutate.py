"""
mutate.py: what the lists of planted faults share. main plants faults in copies of the sources, one at a time, builds the test
that should see each there, and runs it: it has to fail, to crash, or to hang; for lists whose tests are one C program each,
mutate_planner.py and mutate_datacenter.py. The others take copy_sources and mutated. Standard library only.
"""
import os
import shutil
import subprocess
import sys
import tempfile

CC = os.environ.get("CC", "gcc")
FOLDERS = ("", "collective", "comm", "dev/draw", "dev/plan", "dev/plan/clusters", "dev/test", "dev/test/reference", "kernels",
           "scripts")


def copy_sources(folder):
    for place in FOLDERS:
        os.makedirs(os.path.join(folder, place), exist_ok=True)
        for name in os.listdir(place or "."):
            if name.endswith((".h", ".c", ".cu", ".sh", ".py", ".txt")) or name == "Makefile" or place.endswith("reference"):
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
    made = subprocess.run([CC, "-std=gnu11", "-O0", "-w", f"dev/test/{test}.c", "-o", "build/test", "-lm", "-ldl"],
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
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
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
