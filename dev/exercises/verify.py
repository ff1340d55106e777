#!/usr/bin/env python3
"""
verify.py: do the exercises hold what they promise? Of each one: the sources as they are pass what check runs, the
symptom shows in the faulty sources, these fail the tests of check, and so do they with each of the wrong fixes.

    make exercise_check [N="7 8"]       all, or some: builds and runs, half a minute each
    dev/exercises/verify.py --static    what takes no build: faults, texts, hints, chapters, the docs' tables
    dev/exercises/verify.py --table     the tables of docs/exercises.md
"""
import os, shutil, sys, time

from exercise import LEVELS, changed, check, copy_tree, enter, has_symptom, mpi_is_missing, read, replace, show, write

FIELDS = {"title", "level", "chapter", "ranks", "fault", "show", "symptom", "begin", "hint", "check", "solution",
          "wrong"}


def table(exercises):
    """The tables of docs/exercises.md, at most twelve rows each."""
    lines = []
    for level, name in LEVELS.items():
        rows = [f"| {number} | {x['title']} | {os.path.basename(x['chapter'])[:-3]} |"
                for number, x in exercises.items() if x["level"] == level]
        lines += [f"## {name}", ""]
        for first in range(0, len(rows), 12):
            lines += ["| N | symptom | chapter |", "|---|---|---|", *rows[first:first + 12], ""]
    return "\n".join(lines[:-1])


def static(exercises):
    failures = []

    def require(what, holds):
        if not holds:
            failures.append(what)

    for number, exercise in exercises.items():
        name = f"exercise {number} ({exercise['title']})"
        require(f"{name}: fields", set(exercise) == FIELDS)
        require(f"{name}: level", exercise["level"] in LEVELS)
        require(f"{name}: a title of more than 74 characters", len(exercise["title"]) <= 74)
        require(f"{name}: no {exercise['chapter']}", os.path.exists(exercise["chapter"]))
        require(f"{name}: two or three hints", 2 <= len(exercise["hint"]) <= 3)
        has_once = lambda source, lines: lines and ("\n" + source).count("\n" + lines) == 1
        path, lines, replacement = exercise["fault"]
        sound = read(path)
        require(f"{name}: {path} does not have the lines once", has_once(sound, lines))
        for file, wrong, _, _ in exercise["wrong"]:
            source = changed(sound, lines, replacement) if file == path else read(file)
            require(f"{name}: wrong fix: {file} does not have {wrong!r} once", has_once(source, wrong))
    require("docs/exercises.md does not have the tables of verify.py --table",
            table(exercises) in read("docs/exercises.md"))
    for failure in failures:
        print("FAIL ", failure)
    print(f"{len(exercises) - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


def verify(number, exercise, sound, tree):
    """Returns (passed, failed)."""
    results = []

    def record(what, holds):
        results.append(bool(holds))
        print(f"{'ok  ' if holds else 'FAIL'}  {number:>2}  {time.time() - start:4.0f} s  {what}", flush=True)

    start = time.time()
    print(f"{number:>10}  {exercise['title']}", flush=True)
    record("the sources as they are pass check", check(exercise, sound))
    shutil.rmtree(tree, ignore_errors=True)
    copy_tree(tree)
    replace(tree, *exercise["fault"])
    output = show(exercise, tree)
    record("the symptom shows", output is not None and has_symptom(exercise, output))
    if not results[-1]:
        print(output)
    record("the faulty sources do not pass the tests of check", check(dict(exercise, symptom="$^"), tree) is False)
    for path, text, replacement, why in exercise["wrong"]:
        faulty = read(os.path.join(tree, path))
        replace(tree, path, text, replacement)
        record(f"this fix does not pass: {why}", check(exercise, tree) is False)
        write(os.path.join(tree, path), faulty)
    shutil.rmtree(tree)
    return sum(results), len(results) - sum(results)


def verify_all(exercises, numbers):
    passed = failed = 0
    sound = os.path.abspath("build/exercise_check/sound")
    shutil.rmtree(sound, ignore_errors=True)
    copy_tree(sound)
    for number in numbers or exercises:
        if mpi_is_missing(exercises[number]):
            print(f"left out: {number}, there is no MPI")
            continue
        counts = verify(number, exercises[number], sound, os.path.abspath(f"build/exercise_check/{number:02}"))
        passed, failed = passed + counts[0], failed + counts[1]
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def main(words):
    exercises = enter()
    if words == ["--static"]:
        return static(exercises)
    if words == ["--table"]:
        return print(table(exercises))
    numbers = [int(word) for word in words]
    unknown = [number for number in numbers if number not in exercises]
    return f"N is 1 to {len(exercises)}" if unknown else verify_all(exercises, numbers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
