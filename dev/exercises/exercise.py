#!/usr/bin/env python3
"""
exercise.py: exercises in finding faults (docs/exercises.md). Each plants one fault of level_*.txt in a copy of the
sources, and shows what a test or a training run makes of it. Standard library only.

    make exercise              lists them
    make exercise N=7          prepares build/exercise/07 and shows the symptom; again: shows it again
    make exercise N=7 hint     the next hint; check: the original tests; solution: the explanation, the change
verify.py verifies all of them.
"""
import difflib, importlib, os, re, shlex, shutil, signal, subprocess, sys, textwrap

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
HIDDEN = ("dev/test/mutants", "dev/exercises")
ORIGINAL = ("Makefile", "test_gpt.c", "dev/", "scripts/")  # what check takes from here, whatever the reader changed
LEVELS = {1: "Level 1: one function, ten minutes", 2: "Level 2: two files, twenty minutes",
          3: "Level 3: several files or ranks, forty minutes"}
PROGRAM = re.compile(r"(?:^|-np \d+ |&& |; )(?:\./)?(build/[\w/]+|train_gpt|plan)\b")
MODEL = "--data dev/test/reference/tokenizer_words.txt --layers 2 --hidden 32 --heads 2 --seq 32 --global-batch 8 " \
    "--micro-batch 4 --warmup 0 --log-every 1 --eval-every 0"
MODELS = {"MODEL": MODEL, "DEEP": MODEL.replace("layers 2", "layers 4").replace("batch 4", "batch 2"),
          "STEPS": "| grep '^step' | cut -d '|' -f 1-3"}  # without speeds
SECONDS = 120  # the limit of a command
LINES = 40  # a longer output is shortened


def load():
    """{number: exercise} of level_*.txt; the first of these explains them. hint, show and check are lists, fault is a
    change, (file, lines, lines in their place), and wrong are changes, each with why it is plausible."""
    exercises = {}
    for level in LEVELS:
        for line in read(f"dev/exercises/level_{level}.txt").splitlines():
            if line.startswith(("-", "+")):
                change[1 if line[0] == "-" else 2] += line[1:] + "\n"
            elif line.startswith("  "):
                into[-1] += line[1:]
            elif line and line[0] != "#":
                key, value = line.split(": ", 1)
                if key == "exercise":
                    exercise = exercises[len(exercises) + 1] = {"title": value, "level": level, "wrong": []}
                elif key == "fault":
                    change = exercise["fault"] = [value, "", ""]
                elif key == "file":
                    change = [value, "", "", why]
                    exercise["wrong"].append(change)
                else:
                    into = why = [] if key == "wrong" else exercise.setdefault(key, [])
                    into.append(value)
    for exercise in exercises.values():
        exercise.update({key: exercise[key][0] for key in ("chapter", "symptom", "begin", "solution")},
                        ranks=int(exercise.get("ranks", "1")[0]),
                        wrong=[(*change, why[0]) for *change, why in exercise["wrong"]])
        for name, words in MODELS.items():
            for key in ("show", "check"):
                exercise[key] = [command.replace(name, words) for command in exercise[key]]
    return exercises


def changed(source, lines, replacement):
    return ("\n" + source).replace("\n" + lines, "\n" + replacement)[1:]


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def replace(tree, path, lines, replacement):
    path = os.path.join(tree, path)
    write(path, changed(read(path), lines, replacement))


def copy_tree(tree):
    importlib.import_module("mutate").copy_sources(tree)
    for folder in HIDDEN:
        shutil.rmtree(os.path.join(tree, folder))


def restore_tests(tree):
    """Copies the original tests over the reader's, where they differ. Returns the files."""
    changed = []
    for folder, _, names in os.walk(tree):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), tree)
            if path.startswith(ORIGINAL) and os.path.exists(path):
                with open(path, "rb") as ours, open(os.path.join(tree, path), "rb") as theirs:
                    if ours.read() == theirs.read():
                        continue
                shutil.copyfile(path, os.path.join(tree, path))
                changed.append(path)
    return changed


def run(tree, command, limit=SECONDS):
    """Returns its status (None: it did not end) and its output, both streams."""
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    env.update(OMPI_MCA_mpi_yield_when_idle="1", OMP_WAIT_POLICY="passive")
    if isinstance(command, str):
        command = ["bash", "-c", command]
    with subprocess.Popen(command, cwd=tree, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", start_new_session=True, env=env) as job:
        try:
            output = job.communicate(timeout=limit)[0]
            return job.returncode, output
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as reason:
            os.killpg(job.pid, signal.SIGTERM)
            try:
                output = job.communicate(timeout=10)[0]
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                output = job.communicate()[0]
            if isinstance(reason, KeyboardInterrupt):
                sys.exit(130)
            return None, output + f"(stopped after {limit} s)\n"


def build(tree, commands):
    """Builds what the commands start. Returns what the compiler said, None if it succeeded."""
    programs = sorted({program for command in commands for program in PROGRAM.findall(command)})
    given = shlex.split(os.environ.get("MAKEFLAGS", "").partition("-- ")[2])  # CC=clang, MPI=no
    given = [word for word in given if not word.startswith("N=")]
    fast = "FAST=-O1 $(ARCH_FLAG) -fno-math-errno -fno-trapping-math"
    status, output = run(tree, ["make", "-s", "--no-print-directory", *given, "BUILD=build", "DEVICE=cpu",
                                "PRECISION=fp32", fast, *programs], 600)
    return f"{output}{tree} does not build" if status != 0 else None


def show(exercise, tree, prints=False):
    """Runs what shows the symptom; returns the output, None if it does not build."""
    said = build(tree, exercise["show"])
    if said:
        print(said)
        return None
    outputs = []
    for command in exercise["show"]:
        output = run(tree, command)[1]
        outputs.append(output)
        lines = output.splitlines()
        if len(lines) > LINES:
            seen = [line for line in lines if line.startswith("FAIL") or "ERROR" in line]
            lines = (seen or lines)[:LINES // 2] + ["..."] + lines[-1:]
        if prints:
            print(f"$ {command}", *lines, "", sep="\n", flush=True)
    return "".join(outputs)


def has_symptom(exercise, output):
    return re.search(exercise["symptom"], output, re.DOTALL) is not None


def check(exercise, tree, prints=False):
    """Whether the tree passes: the commands of check, then no symptom. None: it does not build."""
    said = build(tree, exercise["check"] + exercise["show"])
    if said:
        print(said)
        return None
    passes = True
    for command in exercise["check"]:
        status, output = run(tree, command)
        if prints:
            print("FAIL " if status != 0 else "ok   ", command, flush=True)
            if status != 0:
                lines = output.splitlines()
                lines = [line for line in lines if line.startswith("FAIL")] or lines
                print(*["      " + line for line in lines[-5:]], sep="\n")
        passes &= status == 0
        if not passes and not prints:
            return False
    shows = has_symptom(exercise, show(exercise, tree))
    if prints:
        gone = "ok    the symptom is gone" if passes else "      the symptom is another, or gone"
        print("FAIL  the symptom still shows" if shows else gone)
    return passes and not shows


def mpi_is_missing(exercise):
    return exercise["ranks"] > 1 and not shutil.which(os.environ.get("MPIRUN", "mpirun") or "no MPI")


def paragraph(text):
    print(textwrap.fill(" ".join(text.split()), 100) + "\n")


def list_all(exercises):
    for number, exercise in exercises.items():
        if exercise is next(x for x in exercises.values() if x["level"] == exercise["level"]):
            print(f"\n{LEVELS[exercise['level']]}")
        print(f"{number:>3}  {exercise['title']}" + (" (MPI)" if exercise["ranks"] > 1 else ""))
    print("\nmake exercise N=7 begins one; docs/exercises.md")


def begin(number, exercise, tree):
    name = f"build/exercise/{number:02}"
    if not os.path.exists(tree):
        copy_tree(tree)
        path = exercise["fault"][0]
        replace(tree, *exercise["fault"])
        shutil.copystat(path, os.path.join(tree, path))  # its time would show the file
        print(f"{name} is a copy of the sources with one fault.")
    else:
        print(f"{name} is as you left it (to start again, remove it).")
    print(f"\nExercise {number}, level {exercise['level']}: {exercise['title']}\nChapter: {exercise['chapter']}\n")
    if show(exercise, tree, prints=True) is None:
        return 1
    paragraph("Where to begin: " + exercise["begin"])
    print(f"Work in {name}. Then: make exercise N={number} check (or hint, or solution)")
    return 0


def hint(number, exercise, tree):
    hints, counter = exercise["hint"], f"{tree}.hints"
    shown = min(int(read(counter)) if os.path.exists(counter) else 0, len(hints) - 1)
    os.makedirs(os.path.dirname(tree), exist_ok=True)
    write(counter, str(shown + 1))
    paragraph(f"Hint {shown + 1} of {len(hints)}: {hints[shown]}")
    if shown + 1 == len(hints):
        print(f"This is the last one. make exercise N={number} solution explains the fault.")
    return 0


def check_reader(number, exercise, tree):
    if not os.path.exists(tree):
        sys.exit(f"make exercise N={number} begins the exercise")
    for path in restore_tests(tree):
        print(f"      {path} is the original again")
    solved = check(exercise, tree, prints=True)
    print(f"\nSolved. make exercise N={number} solution explains the fault." if solved else "\nNot solved yet.")
    return 0 if solved else 1


def solution(exercise):
    path, lines, replacement = exercise["fault"]
    sound = read(path)
    paragraph(exercise["solution"])
    faulty = changed(sound, lines, replacement)
    sys.stdout.writelines(difflib.unified_diff(faulty.splitlines(True), sound.splitlines(True), f"faulty/{path}", path))
    return 0


def enter():
    """Goes to the root of the sources; returns the exercises."""
    os.chdir(ROOT)
    sys.path[:0] = ["dev/test/mutants", "dev/exercises"]
    sys.dont_write_bytecode = True
    return load()


def main(words):
    exercises = enter()
    if not words:
        return list_all(exercises)
    number = int(words[0]) if words[0].isdigit() else 0
    if number not in exercises:
        sys.exit(f"N is 1 to {len(exercises)}; make exercise lists them")
    exercise = exercises[number]
    tree = os.path.abspath(f"build/exercise/{number:02}")
    if mpi_is_missing(exercise):
        sys.exit(f"exercise {number} needs MPI for {exercise['ranks']} ranks (scripts/quickstart.sh installs it)")
    if "hint" in words:
        return hint(number, exercise, tree)
    if "check" in words:
        return check_reader(number, exercise, tree)
    return solution(exercise) if "solution" in words else begin(number, exercise, tree)


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)
