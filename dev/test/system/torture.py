#!/usr/bin/env python3
"""
torture.py: does a run survive? Ranks are killed at any moment, checkpoints are damaged, disks are full or gone; then
the run is resumed and has to end like an undisturbed one.

    python3 dev/test/system/torture.py [--kills 200] [--broken 500] [--minutes 15] [--seed N] [--short]
                                       [--only kills|broken|disks|calls]

    kills     Runs of random meshes (1, 2 and 4 ranks; every option that changes what is saved or which rank saves it),
              each beside an undisturbed run of the same command. SIGKILL for one rank, rank 0, all, or mpirun: during a
              save, while an old checkpoint is removed, before the first step, while a run is resumed, or at any time.
              After each: every checkpoint that has its name is bit-identical to the other run's, and no process is
              left. Then --resume, in a pipeline on another number of stages at times, until a run ends: log.jsonl
              (without times), every file, and the names of all files are those of the other run.
    broken    One of a run's checkpoints is damaged: bits, lengths, pages of zeros, files of other steps, runs and
              names. The resumed run reports the reason, and continues from the checkpoint before; it ends with the same
              files.
    disks     A disk is full, or gone in the middle of a run, and comes back.
    calls     Every system call by which a rank saves fails once, and then with all later ones (fail_calls.c): the run
              reports it, ends with status 1 if it was the last save, and leaves sound checkpoints and nothing else.

The short form is for make test-full. The order and the kind of all cases follow from the seed, the moments do not.
Nothing is left behind. Standard library only; the last line is "N passed, N failed".
"""
import argparse, concurrent.futures, glob, os, random, re, shutil, signal, subprocess, sys, tempfile, time

from check_checkpoint import Broken, check
from torture_runs import (BESIDE, COUNT, MODEL, PROJECT, TRAIN, Run, finished, kill, log, names, ok, processes,
                          published, reports, same_folder, same_log)

MPI = False  # set by main


def unsound(out):
    """What is wrong with one of a run's checkpoints, looked at for itself; or ""."""
    for name in names(out):
        try:
            check(os.path.join(out, name))
        except (Broken, OSError, ValueError, KeyError) as reason:
            return f"{name}: {reason}"
    return ""


# ---- Random meshes -----------------------------------------------------------------------------------------------

def random_options(rng, ranks):
    """What a run is: the ranks of a replica's stages, the options of the model, those of the mesh."""
    t = rng.choice([n for n in (1, 2, 4) if ranks % n == 0])
    p = rng.choice([n for n in (1, 2, 4) if ranks // t % n == 0])
    d = ranks // t // p
    model = rng.choice(["", "--arch llama --kv-heads 2", "--arch llama"])
    if t > 1:
        model += rng.choice(["", "", " --caat-fraction 0.5"])
    mesh = f"--tp {t}" + (rng.choice(["", " --sequence-parallel"]) if t > 1 else "")
    mesh += rng.choice(["", "", " --recompute selective", " --recompute full"])
    if rng.random() < 0.15:
        model += " --optimizer sgd --lr 0.01 --min-lr 0.001"
    mode = "sync" if d == 1 else rng.choice(["sync", "sync", "sync", "dc-s3gd", "diloco"])
    if mode == "diloco":
        model += " --dp-mode diloco --local-steps 3"
    elif mode != "sync":
        model += f" --dp-mode {mode}"
    if mode != "sync" and d == 4:
        model += rng.choice(["", " --sites 2"])
    if d > 1 and mode == "sync":
        mesh += rng.choice(["", " --zero 1", " --zero 2"])
    return (t, p, d), model, f"{mesh} {stages(rng, p, 4)}"


def stages(rng, p, layers):
    """How a pipeline of p stages works."""
    if p == 1:
        return "--pp 1"
    schedules = ["gpipe", "1f1b", "zb-h1"] + (["interleaved", "zb-v"] if 2 * p <= layers else [])
    return f"--pp {p} --schedule {rng.choice(schedules)}"


class Case:
    """A command, and its undisturbed run."""

    def __init__(self, rng, ranks, number, given=None):
        for _ in range(1000):
            self.ranks = ranks
            (t, self.p, d), self.model, self.mesh = given or random_options(rng, ranks)
            self.movable = t == d == 1
            self.steps, self.every, self.keep = rng.randint(10, 24), rng.randint(1, 3), rng.randint(0, 3)
            self.keep = 1 if given else self.keep
            self.options = f"{self.model} --steps {self.steps} --save-every {self.every} --seed {number}"
            self.name = f"{ranks} ranks {self.mesh} {self.options} --keep-last {self.keep}"
            options = f"{MODEL} {self.options} {self.mesh} --dp {d} --out none --dry-run"
            dry = subprocess.run([TRAIN, *options.split()], stdin=subprocess.DEVNULL, capture_output=True)
            if dry.returncode == 0 or given:
                break  # else options that do not go together
        self.whole = f"whole{number}"
        started = time.monotonic()
        status, _, errors = finished(ranks, f"{self.options} {self.mesh} --keep-last 0", self.whole)
        self.seconds = time.monotonic() - started
        self.expected = [f"step_{s:08d}" for s in range(1, self.steps + 1) if s % self.every == 0 or s == self.steps]
        self.sound = ok(status == 0 and names(self.whole) == self.expected and not unsound(self.whole), self.name,
                        f"status {status}: {unsound(self.whole)} {errors[-300:]}")

    def resumed(self, mesh=None):
        """The options of a run that goes on."""
        return f"{self.options} {mesh or self.mesh} --keep-last {self.keep} --resume"

    def kept(self):
        """What is left of the checkpoints in the end: the last, and the best."""
        if self.keep == 0:
            return self.expected
        best = os.readlink(os.path.join(self.whole, "best"))
        return sorted(set(self.expected[-self.keep:]) | {best})


# ---- Kills -------------------------------------------------------------------------------------------------------

MOMENTS = ("save", "save", "save", "save", "prune", "early", "any", "any")
VICTIMS = ("rank", "rank", "main rank", "all", "mpirun")


def strike(rng, run, moment, victim, seconds):
    """Waits for the moment and kills. False: the run was over before it."""
    if moment == "early":
        time.sleep(rng.uniform(0, 0.5))
    elif not run.wait_until(lambda: len(processes(run.mark)) == run.ranks, 0.002):
        return False
    elif moment == "any":
        time.sleep(rng.uniform(0, 0.5 * seconds))
    else:
        skip, seen = rng.randint(0, 3), set()

        def so_far():
            now = set(names(run.out, r"step_\d{8}\." + {"save": "tmp", "prune": "old"}[moment]))
            found = now - seen if len(seen) >= skip else ()
            seen.update(now)
            return bool(found)
        if not run.wait_until(so_far):
            return False
        if moment == "save":
            time.sleep(rng.choice([0, rng.uniform(0, 0.002), rng.uniform(0, 0.008), rng.uniform(0, 0.03)]))
    if run.over():
        return False
    ranks = processes(run.mark)
    if victim == "mpirun" or not ranks:
        run.main.kill()
    elif victim == "all":
        for process in [*ranks.values(), run.main.pid]:
            kill(process)
    else:
        kill(ranks[min(ranks) if victim == "main rank" else rng.choice(sorted(ranks))])
    return True


def torture(rng, case, moments, out):
    """One case: a kill at each of the moments, then the end of the run. Returns how many kills came in time, and how
    many of them during a save."""
    kills = saving = 0
    for number, moment in enumerate(moments):
        mesh, ranks, victim = case.mesh, case.ranks, rng.choice(VICTIMS)
        if case.movable and rng.random() < 0.15:
            ranks = rng.choice([n for n in (1, 2, 4) if n != case.p] if MPI else [1])
            mesh = f"--tp 1 {stages(rng, ranks, 4)}"
        if moment == "prune" and case.keep == 0:
            moment = "save"
        run = Run(ranks, case.resumed(mesh), out)
        struck = strike(rng, run, moment, victim, case.seconds)
        what = f"{case.name}, kill {number} ({moment}, {victim})"
        if struck and victim == "mpirun" and ranks > 1 and rng.random() < 0.5:
            status, _, errors = finished(ranks, case.resumed(mesh), out)  # the ranks may still be there
            ok(status == 0, what, f"begun again at once: {errors[-600:]}")
        status = run.end(struck)
        ok(status is not None, what, f"ranks are left, or wait for ever: {run.text()[-200:]} {run.complaints()[-300:]}")
        ok(struck or status == 0, what, f"it ended before, with status {status}: {run.complaints()[-600:]}")
        ok("not from step" not in run.text(), what, run.text())
        wrong = published(out, case.whole)
        ok(not wrong, what, wrong)
        kills += struck
        saving += struck and bool(names(out, r"step_\d{8}\.tmp"))
        run.close()
    newest = (names(out) or ["no checkpoint"])[-1]
    said = ends_like_whole(case, out)
    taken = re.search(r"^resume +\S*?(step_\d+(?=: step)|no checkpoint)", said, re.MULTILINE)
    ok(taken and taken[1] == newest, case.name, f"resumed from {taken}, the newest was {newest}")
    return kills, saving


def ends_like_whole(case, out):
    """Resumes a run, and compares it with the one that was never killed. Returns what it has printed."""
    status, said, errors = finished(case.ranks, case.resumed(), out)
    ok(status == 0, case.name, f"status {status}: {errors[-600:]}")
    wrong = published(out, case.whole) or same_log(case.whole, out)
    ok(not wrong, case.name, wrong)
    expected = sorted([*case.kept(), *BESIDE])
    ok(names(out, ".*") == expected, case.name, f"there are {names(out, '.*')} and not {expected}")
    shutil.rmtree(out, ignore_errors=True)
    return said


def killed_at_the_end(case, out):
    """As a run leaves it that is killed between the name of its last checkpoint and the removal of the one before."""
    shutil.copytree(case.whole, out, symlinks=True)
    for name in names(out)[:-2]:
        shutil.rmtree(os.path.join(out, name))
    os.rename(os.path.join(out, names(out)[0]), os.path.join(out, names(out)[0] + ".old"))
    ends_like_whole(case, out)


def kills(rng, number, deadline):
    done = saving = case = 0
    while done < number and time.monotonic() < deadline:
        case += 1
        one = Case(rng, rng.choice([1, 2, 2, 4, 4]) if MPI else 1, case)
        if one.sound:
            found = torture(rng, one, rng.choices(MOMENTS, k=min(rng.randint(3, 8), number - done)), f"killed{case}")
            done, saving = done + found[0], saving + found[1]
        shutil.rmtree(one.whole, ignore_errors=True)
    print(f"{done} kills in {case} runs, {saving} of them while a save was going on")
    if number >= 100:
        ok(done >= number and saving >= 0.3 * done, "kills", "too few in the time given, or while a save was going on")


def short_kills(rng):
    """What make test-full has time for."""
    cases = [(1, ((1, 1, 1), "", "--tp 1 --pp 1"), ("save", "prune"))]
    if MPI:
        cases += [(4, ((2, 1, 2), "", "--tp 2 --zero 1 --sequence-parallel"), ("save", "early")),
                  (2, ((1, 1, 2), "--dp-mode diloco --local-steps 3", "--tp 1"), ("save",))]
    for number, (ranks, given, moments) in enumerate(cases):
        one = Case(rng, ranks, number, given)
        if one.sound:
            torture(rng, one, moments, f"killed{number}")
        if one.sound and ranks == 1:
            killed_at_the_end(one, "killed.end")


# ---- Damaged checkpoints -----------------------------------------------------------------------------------------

FILES = ("model.safetensors", "optimizer.safetensors", "config.json", "trainer.json")


def flip(rng, data):
    for _ in range(rng.choice([1, 1, 1, 2, 7])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def page(rng, data):
    at = rng.randrange((len(data) + 4095) // 4096) * 4096
    return slice(at, min(at + 4096, len(data)))


def zeros(rng, data):
    """A page, as file systems leave them after a crash."""
    at = page(rng, data)
    data[at] = bytes(at.stop - at.start)


def twice(rng, data):
    """A page where another one belongs."""
    data[page(rng, data)] = data[page(rng, data)]


def cut(rng, data):
    del data[rng.choice([len(data) - 1, len(data) - 4, len(data) // 2, rng.randrange(len(data)), 0]):]


def grow(rng, data):
    data += bytes(rng.choice([1, 4, 4096]))


def scrambled(rng, data):
    data[:] = rng.randbytes(len(data))


CONTENT = (flip, flip, flip, flip, cut, cut, grow, zeros, twice, scrambled)
INSTEAD = {"gone": lambda path: None, "folder": os.mkdir, "pipe": os.mkfifo,
           "dangling": lambda path: os.symlink("nowhere", path)}
OTHERS = ("of_step", "of_run", "exchange", "renamed")  # what is there is sound, and another checkpoint's


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def contents(folder):
    return {n: read(os.path.join(folder, n)) for n in os.listdir(folder) if os.path.isfile(os.path.join(folder, n))}


def damage(rng, folder, other_step, other_run):
    """Damages one checkpoint. Returns how, the file, and whether nothing has changed by it."""
    file, how, before = rng.choice(FILES), rng.choice([*CONTENT, *INSTEAD, *OTHERS]), contents(folder)
    path = os.path.join(folder, file)
    if how in CONTENT:
        data = bytearray(before[file])
        how(rng, data)
        write(path, data)
    elif how in INSTEAD:
        os.unlink(path)
        INSTEAD[how](path)
    elif how == "exchange":
        other = rng.choice([n for n in FILES if n != file])
        write(path, before[other])
        write(os.path.join(folder, other), before[file])
    elif how == "renamed":
        shutil.rmtree(folder)
        shutil.copytree(other_step, folder)
    else:
        shutil.copyfile(os.path.join(other_step if how == "of_step" else other_run, file), path)
    return getattr(how, "__name__", how), file, contents(folder) == before


class Broken_runs:
    """Runs of three steps, of which copies are damaged and resumed for a fourth."""

    def __init__(self, ranks, options):
        self.ranks, self.options = ranks, options
        self.base = {}
        for seed in (1, 2):
            out = self.base[seed] = f"base{ranks}.{seed}"
            status, _, errors = finished(ranks, f"{options} --seed {seed} --steps 4 --save-every 1", out)
            ok(status == 0, "broken", f"status {status}: {errors[-300:]}")

    def case(self, seed, number):
        """Returns what was damaged, what is wrong or "", and how many steps were refused."""
        rng = random.Random(seed * 1000003 + number)
        out = f"broken{number}"
        shutil.copytree(self.base[1], out, symlinks=True)
        # as a run that was killed leaves one
        shutil.move(os.path.join(out, "step_00000004"), os.path.join(out, "step_00000077.tmp"))
        damages = {}
        for step in rng.choice([[3], [3], [3], [3], [3, 2], [3, 2], [3, 2, 1]]):
            others = [os.path.join(self.base[b], f"step_{s:08d}") for b, s in ((1, step - 1 or 2), (2, step))]
            damages[step] = damage(rng, os.path.join(out, f"step_{step:08d}"), *others)
        status, said, errors = finished(self.ranks, f"{self.options} --seed 1 --steps 4 --save-every 1 --resume", out)
        refused = dict(re.findall(r"^resume +not from step (\d+): (.*)$", said, re.MULTILINE))
        wrong = self.judge(out, damages, status, {int(step): why for step, why in refused.items()}, errors)
        shutil.rmtree(out, ignore_errors=True)
        return f"case {number}: {damages}", wrong, len(refused)

    def judge(self, out, damages, status, refused, errors):
        """What is wrong, or ""."""
        steps = []  # that have to be refused
        for step, (how, file, harmless) in damages.items():
            if harmless:
                break  # this one is taken
            steps.append(step)
            named = "" if how in OTHERS else file
            if f"{out}/step_{step:08d}/{named}" not in refused.get(step, ""):
                return f"step {step} was not refused by name: {refused} {errors[-300:]}"
        if [*refused] != steps:
            return f"refused were {refused} and not {steps}"
        if len(steps) == 3:
            good = status == 1 and "none of the 3 checkpoints" in errors and len(errors.splitlines()) <= 20
            return "" if good else f"none was left, but it ended with status {status}: {errors[-300:]}"
        if status != 0:
            return f"status {status}: {errors[-300:]}"
        if os.path.exists(os.path.join(out, "step_00000077.tmp")):
            return "what a killed run has left is still there"
        # damaged, and older than the one that was taken
        untouched = {step for step in damages if step not in steps and not damages[step][2]}
        for step in {1, 2, 3, 4} - untouched:
            name = f"step_{step:08d}"
            if not same_folder(os.path.join(self.base[1], name), os.path.join(out, name)):
                return f"{name} is not that of the other run"
        return same_log(self.base[1], out)


def broken(seed, number, deadline, several):
    """`number` cases on one rank, two at a time; and `several` on several ranks."""
    done = refusals = 0
    groups = [(Broken_runs(1, "--keep-last 0"), number)]
    if MPI and several:
        groups.append((Broken_runs(2, "--keep-last 0 --tp 2"), several))
    for runs, n in groups:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for result in pool.map(lambda i: time.monotonic() < deadline and runs.case(seed, i), range(n)):
                if result:
                    what, wrong, refused = result
                    ok(not wrong, what, wrong)
                    done += 1
                    refusals += refused > 0
    print(f"{done} runs with damaged checkpoints: {refusals} refused, each with the reason; all others proved harmless")
    ok(done >= number, "broken", f"only {done} of {number} in the time given")


# ---- Disks -------------------------------------------------------------------------------------------------------

STEPS, EVERY = 300, 5
LONG = f"--steps {STEPS} --seed 3"
SAVING = f"{LONG} --save-every {EVERY} --keep-last 2"


def scenario(what, out, trouble, relief, reason, ranks=1, mesh="", fails=("was not saved",)):
    """trouble() after the second save, until each word of `fails` was said; one line a failed save with the reason;
    relief(): it saves again, and ends as if nothing had been. relief = None: it ends with status 1."""
    run = Run(ranks, f"{SAVING} {mesh}", out)
    saved = lambda: run.text().count("\nsaved ")
    ok(run.wait_until(lambda: saved() >= 2, 0.004), what, f"nothing is saved: {run.complaints()}")
    trouble()
    ok(run.wait_until(lambda: all(x in run.complaints() for x in fails), 0.004), what, "no word of it")
    if relief:
        relief()
        at = saved()
        ok(run.wait_until(lambda: saved() > at, 0.004), what, f"it does not save again: {run.complaints()[-500:]}")
    status = run.end()
    lines = reports(run.complaints())
    run.close()
    failed = [re.search(r"step (\d+)", line)[1] for line in lines if "was not saved" in line]
    of_log = [line for line in lines if "log.jsonl" in line]
    ok(len(lines) == len(failed) + len(of_log) and len(set(failed)) == len(failed) and len(of_log) <= 2, what,
       f"other lines, or twice: {lines[:4]}")
    ok(all(reason in line for line in lines), what, f"another reason: {lines[:2]}")
    ok(status == (0 if relief else 1), what, f"status {status}: {lines[-1:]}")
    if relief:
        ended(what, out)


def ended(what, out):
    """Its last checkpoint and its losses are those of the run on a good disk."""
    best = os.path.basename(os.path.realpath(os.path.join(out, "best")))
    expected = sorted({f"step_{STEPS - EVERY:08d}", f"step_{STEPS:08d}", best} | set(BESIDE))
    ok(names(out, ".*") == expected, what, f"there are {names(out, '.*')}")
    last = f"step_{STEPS:08d}"
    ok(same_folder(os.path.join(out, last), os.path.join("disk.whole", last)), what, "another end")
    ok([x["loss"] for x in log(out)] == [x["loss"] for x in log("disk.whole")], what, "another log.jsonl")


def fill():
    """With nothing left for it, not even a line of the log, once its last page is full."""
    with open("full/ballast", "wb", buffering=0) as f:
        try:
            while True:
                f.write(bytes(4096))
        except OSError:
            pass


def full(forever):
    what, out = f"a full disk{' to the end' * forever}", "full/run"
    os.makedirs("full", exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", "full"], capture_output=True).returncode:
        print(f"left out: {what}: no right to mount")
        return
    try:
        scenario(what, out, fill, None if forever else lambda: os.unlink("full/ballast"), "No space left on device",
                 fails=("was not saved", "log.jsonl"))
        if forever:
            ok(names(out) and not names(out, r"step_\d+\..*") and not unsound(out), what,
               f"there are {os.listdir(out)}, {unsound(out)}")
            os.unlink("full/ballast")
            status, _, errors = finished(1, f"{SAVING} --resume", out)
            ok(status == 0, what, f"resumed: status {status} {errors}")
            ended(what, out)
    finally:
        subprocess.run(["umount", "-l", "full"], capture_output=True)


def moved(ranks, mesh):
    out = f"moved{ranks}"
    scenario("a folder that is moved away", out, lambda: os.rename(out, "elsewhere"),
             lambda: os.rename("elsewhere", out), "No such file or directory", ranks, mesh)


def limited():
    """A limit on the size of files, whose signal would be the end of a program that does not look."""
    what = "files may not become larger than 60 KB"
    status, said, errors = finished(1, f"{LONG} --save-every 100", "limited", "ulimit -f 120;")
    ok(status == 1 and f"step   {STEPS}/{STEPS}" in said, what, f"status {status}: {said[-200:]} {errors[-300:]}")
    ok("File too large" in errors and not names("limited", r"step_.*"), what, errors[-300:])
    ok(sum("log.jsonl" in line for line in reports(errors)) in (0, 2), what, f"once, and at the end: {errors[-300:]}")


def disks(short):
    status, _, errors = finished(1, f"{LONG} --save-every 0", "disk.whole")
    ok(status == 0, "disks", errors)
    full(False)
    limited()
    moved(1, "")
    if not short:
        full(True)
        if MPI:
            moved(2, "--pp 2")


# ---- Calls that fail ---------------------------------------------------------------------------------------------

def failing(ranks, mesh, rank, at, everything, under):
    """A run that saves at steps 2 and 4 and exports; call number `at` of one rank fails, of those under a path. Returns
    (status, stderr, how many such calls the rank has made)."""
    for left in ("failing", "failing.weights", "failing.weights.tmp", "count"):
        shutil.rmtree(left) if os.path.isdir(left) else os.path.exists(left) and os.unlink(left)
    before = "export LD_PRELOAD=$PWD/fail_calls.so FAIL_COUNT=$PWD/count"
    before += f" FAIL_UNDER={under} FAIL_RANK={rank} FAIL_AT={at}{' FAIL_ALL=1' * everything};"
    status, _, errors = finished(ranks, f"--steps 4 --save-every 2 --keep-last 1 {mesh} --export failing.weights",
                                 "failing", before)
    return status, errors, int(open("count").read() or 0) if os.path.exists("count") else 0


def sweep(rng, ranks, mesh, most, under):
    """At most `most` calls, drawn at random, of each rank."""
    shutil.rmtree("failing.whole", ignore_errors=True)
    status, _, errors = finished(ranks, f"--steps 4 --save-every 2 --keep-last 0 {mesh}", "failing.whole")
    ok(status == 0, f"calls, {ranks} ranks {mesh}", errors)
    for rank in range(ranks):
        status, errors, count = failing(ranks, mesh, rank, 0, False, under)
        what = f"calls of rank {rank} of {ranks} {mesh}"
        if not ok(status == 0 and count > 3, what, f"status {status}, {count} calls: {errors[-300:]}"):
            continue
        for at in sorted(rng.sample(range(1, count + 1), min(most, count))):
            for everything in (False, True) if under == "failing" else (False,):
                status, errors, _ = failing(ranks, mesh, rank, at, everything, under)
                wrong = judge_failing(status, errors)
                ok(not wrong, f"{what}: number {at} of {count}{' and all later ones' * everything} fails",
                   f"{wrong}; {errors[-500:]}")


def judge_failing(status, errors):
    """What is wrong, or ""."""
    last = any("step 4 was not saved" in line for line in reports(errors))
    if status not in (0, 1) or (status == 1 and not reports(errors)):
        return f"status {status}"
    if (last and status != 1) or re.search(r"[Ss]egmentation|[Ss]ignal|Sanitizer", errors):
        return f"status {status} of a run that was not saved, or it has crashed"
    if status == 0 and ("step_00000004" not in names("failing") or not os.path.isdir("failing.weights")):
        return "status 0, and something is missing"
    for name in names("failing"):
        if not same_folder(os.path.join("failing", name), os.path.join("failing.whole", name)):
            return f"{name} is not sound"
    left = [name for name in names("failing", ".*") if "." in name and name not in BESIDE]
    if left or (glob.glob("failing.weights?*") and "the weights are in" not in errors):
        return f"{left} and {glob.glob('failing.weights?*')} are left"
    return ""


def calls(rng, short):
    source = os.path.join(PROJECT, "dev", "test", "system", "fail_calls.c")
    subprocess.run([*os.environ.get("CC", "cc").split(), "-shared", "-fPIC", "-O1", "-o", "fail_calls.so", source,
                    "-ldl"], check=True)
    under = "step_00000004.tmp/model" if short else "failing"
    sweep(rng, 1, "", 1000, under)
    if MPI:
        sweep(rng, 2, "--dp 2 --zero 1", 40, under)
    if MPI and not short:
        sweep(rng, 2, "--tp 2", 40, under)
        sweep(rng, 4, "--pp 2 --dp 2 --dp-mode diloco --local-steps 2", 20, under)


# ---- The command line --------------------------------------------------------------------------------------------

def main():
    global MPI
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--broken", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", choices=["kills", "broken", "disks", "calls"])
    o = parser.parse_args()
    rng = random.Random(o.seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left behind
    MPI = b"MPI_Init" in read(TRAIN) and os.environ.get("MPIRUN", "mpirun") != ""
    # The share of the time that is over when a part ends.
    deadline = lambda share: time.monotonic() + 60 * o.minutes if o.only else started + 60 * o.minutes * share
    started = time.monotonic()
    print(f"seed {o.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="torture") as work:
        os.chdir(work)
        # What killed jobs would leave for ever, sessions and shared memory of MPI, goes here.
        os.environ.update(OMP_NUM_THREADS="1", TMPDIR=work, OMPI_MCA_btl_vader_backing_directory=work,
                          OMPI_MCA_mpi_yield_when_idle="1")
        open("text.txt", "w").write(" ".join(map(str, range(12000))))
        parts = {"kills": lambda: short_kills(rng) if o.short else kills(rng, o.kills, deadline(0.7)),
                 "broken": lambda: broken(o.seed, 12 if o.short else o.broken, deadline(0.95),
                                          0 if o.short else o.broken // 25),
                 "disks": lambda: disks(o.short), "calls": lambda: calls(rng, o.short)}
        for part in [o.only] if o.only else parts:
            parts[part]()
        os.chdir("/")
    print(f"{COUNT['passed']} passed, {COUNT['failed']} failed")
    return 1 if COUNT["failed"] or not COUNT["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
