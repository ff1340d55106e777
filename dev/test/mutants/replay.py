#!/usr/bin/env python3
"""
replay.py: would a test of this project have seen other people's silent bugs? replay.txt has, of each, the same mistake
as a change of these sources, and the test that sees it. In one copy of the sources the tests first have to pass; then
one change at a time is made, its test is built and run, and has to fail with the line that is written there.

    dev/test/mutants/replay.py [--only REGEX]     all, or those whose title contains it: some 20 seconds each
    dev/test/mutants/replay.py --static           only: the lines that are changed stand in their file once

`seen: mesh T P D: CASE -> LINE` is test_equivalence on T P D ranks with that case; any other `seen: COMMAND -> LINE` is
run as it is. LINE: regular expression, searched in the lines that begin with FAIL. Standard library only.
"""
import argparse, os, re, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "..", "exercises"))
sys.dont_write_bytecode = True
from exercise import ROOT, build, changed, read, run, write  # noqa: E402
from mutate import copy_sources  # noqa: E402

FIELDS = ["bug", "source", "wrong", "curve", "seen", "fault"]
MESH = re.compile(r"mesh (\d) (\d) (\d): (.*)")


def command_of(test):
    mesh = MESH.fullmatch(test)
    if not mesh:
        return test
    t, p, d, case = mesh.groups()
    return f"scripts/mpirun.sh -np {int(t) * int(p) * int(d)} build/test_equivalence --mesh {t} {p} {d} " \
        f"--only 't={t} p={p} d={d} {case}'"


def load():
    """The bugs of replay.txt in their order: fields by name; fault is [file, lines, lines in their place]."""
    bugs, last = [], ""
    for line in read("dev/test/mutants/replay.txt").splitlines():
        if line[:1] in ("-", "+"):
            bugs[-1]["fault"]["-+".index(line[0]) + 1] += line[1:] + "\n"
        elif line.startswith("  "):
            bugs[-1][last] += line[1:]
        elif line and line[0] != "#":
            last, value = line.split(": ", 1)
            if last == "bug":
                bugs.append({})
            bugs[-1][last] = [value, "", ""] if last == "fault" else value
    for bug in bugs:
        bug["test"], bug["line"] = bug["seen"].split(" -> ")
        bug["command"] = command_of(bug["test"])
    return bugs


def static(bugs):
    """Says which bugs cannot be planted; returns how many."""
    failed = 0
    for bug in bugs:
        path, lines, _ = bug["fault"]
        if list(bug)[:len(FIELDS)] != FIELDS or not lines or ("\n" + read(path)).count("\n" + lines) != 1:
            print(f"FAIL  {bug['bug']}: a field is missing, or the lines do not stand once in {path}")
            failed += 1
    return failed


def passes_before(tree, bugs):
    commands = list(dict.fromkeys(bug["command"] for bug in bugs))
    said = build(tree, commands)
    for command in [] if said else commands:
        status, output = run(tree, command)
        if status != 0 or re.search(r"^0 passed", output, re.M):
            said = f"{said or ''}{command}\n{output}"
    print(f"the sources as they are do not pass:\n{said}" if said else f"{len(commands)} tests pass", flush=True)
    return not said


def seen(tree, bug):
    """The line that the test prints once the bug is there; None if it prints no such line."""
    path, lines, replacement = bug["fault"]
    sound = read(os.path.join(tree, path))
    write(os.path.join(tree, path), changed(sound, lines, replacement))
    output = build(tree, [bug["command"]]) or run(tree, bug["command"])[1]
    write(os.path.join(tree, path), sound)
    found = [line for line in output.splitlines() if line.startswith("FAIL") and re.search(bug["line"], line)]
    return found[0] if found else print(output[-2000:])


def main():
    parser = argparse.ArgumentParser(description="other people's silent bugs, planted here")
    parser.add_argument("--only", default="", help="regular expression, searched in titles")
    parser.add_argument("--static", action="store_true")
    options = parser.parse_args()
    os.chdir(ROOT)
    bugs = [bug for bug in load() if re.search(options.only, bug["bug"])]
    failed = static(bugs)
    with tempfile.TemporaryDirectory() as tree:
        if not options.static and not failed:
            os.nice(10)
            copy_sources(tree)
            if not passes_before(tree, bugs):
                return 1
            for bug in bugs:
                line = seen(tree, bug)
                failed += not line
                print(f"ok    {bug['bug']}: seen by {bug['test']}\n      {line}" if line else
                      f"FAIL  {bug['bug']}: not seen", flush=True)
    print(f"{len(bugs) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
