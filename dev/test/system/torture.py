#!/usr/bin/env python3
"""
torture.py: does a run survive? Ranks are killed at any moment, checkpoints are damaged, disks are full or gone; then
the run is resumed and has to end like an undisturbed one.

    python3 dev/test/system/torture.py [--kills 200] [--broken 500] [--minutes 15] [--seed N] [--short]
                                       [--only kills|broken|disks|calls]

    kills     Runs of random meshes (1, 2 and 4 ranks; every option that changes what is saved or which rank saves it),
              each beside an undisturbed run of the same command. SIGKILL for one rank, rank 0, all, or mpirun: during a
              save, while an old checkpoint is removed, before the first step, while a run is resumed, or at any time.
              After each: every checkpoint that has its name is bit-identical to the other run's (or, after a change of
              the mesh that changes bits, sound: check_checkpoint.py), and no process is left. Then --resume, until a
              run ends: log.jsonl (without times), every file, and the names of all files are those of the other run.
              Some runs are resumed on another mesh.
    broken    One of a run's checkpoints is damaged: bits, lengths, pages of zeros, files of other steps, runs and
              names. The resumed run reports the reason, and continues from the checkpoint before; it ends with the same
              files.
    disks     A disk is full, read-only, or gone in the middle of a run, and comes back.
    calls     Every system call by which a rank saves fails once, and then with all later ones (fail_calls.c): the run
              reports it, ends with status 1 if it was the last save, and leaves sound checkpoints and nothing else.

The short form is for make test-full. The order and the kind of all cases follow from the seed, the moments do not.
Nothing is left behind. Standard library only; the last line is "N passed, N failed".
"""
import argparse, concurrent.futures, glob, os, random, re, shutil, signal, subprocess, sys, tempfile, time

from torture_damage import Broken_runs
from torture_runs import (BESIDE, COUNT, MODEL, PROJECT, SECONDS, TRAIN, Run, difference, finished, kill, log, names,
                          ok, processes, published, same_folder, sound)

MPI = False  # set by main


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


def other_mesh(rng, case):
    """Another mesh for the same run, and whether all bits stay: those of the stages of a pipeline do not matter."""
    (t, p, d), ranks = case.sizes, case.ranks
    if "--dp-mode" in case.model:
        return None
    if t == d == 1 and rng.random() < 0.7:
        q = rng.choice([n for n in (1, 2, 4) if n != p])
        return q, f"--tp 1 {stages(rng, q, 4)}", True
    if "--caat-fraction" in case.model:
        return None
    zero = re.search(r"--zero \d", case.mesh)
    q = rng.choice([n for n in (1, 2, 4) if n != ranks])
    u = rng.choice([n for n in (1, 2, 4) if q % n == 0])
    return q, f"--tp {u} --pp {q // u}" if not zero or q == u else f"--tp {u} {zero[0]}", False


class Case:
    """A command, and its undisturbed run."""

    def __init__(self, rng, ranks, number, given=None, keep=None):
        for _ in range(1000):
            self.ranks = ranks
            self.sizes, self.model, self.mesh = given or random_options(rng, ranks)
            self.steps, self.every, self.keep = rng.randint(10, 24), rng.randint(1, 3), rng.randint(0, 3)
            self.keep = self.keep if keep is None else keep
            self.options = f"{self.model} --steps {self.steps} --save-every {self.every} --seed {number}"
            self.name = (f"{ranks} ranks {self.mesh} {self.model} --steps {self.steps} --save-every {self.every} "
                         f"--keep-last {self.keep}")
            options = f"{MODEL} {self.options} {self.mesh} --dp {self.sizes[2]} --out none --dry-run"
            dry = subprocess.run([TRAIN, *options.split()], stdin=subprocess.DEVNULL, capture_output=True)
            if dry.returncode == 0 or given:
                break  # else options that do not go together
        self.whole = f"whole{number}"
        started = time.monotonic()
        status, _, errors = finished(ranks, f"{self.options} {self.mesh} --keep-last 0", self.whole)
        self.seconds = time.monotonic() - started
        self.expected = [f"step_{s:08d}" for s in range(1, self.steps + 1) if s % self.every == 0 or s == self.steps]
        self.sound = ok(status == 0 and names(self.whole) == self.expected, self.name,
                        f"status {status}: {errors[-300:]}") and sound(self.whole, self.name)

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
    ranks = run.wait_for_ranks() if moment != "early" else {}
    if moment == "early":
        time.sleep(rng.uniform(0, 0.5))
    elif moment == "any":
        time.sleep(rng.uniform(0, 0.5 * seconds))
    else:
        ending = ".tmp" if moment == "save" else ".old"
        skip, seen = rng.randint(0, 3), set()

        def so_far():
            now = set(names(run.out, r"step_\d{8}\." + ending[1:]))
            found = now - seen if len(seen) >= skip else ()
            seen.update(now)
            return bool(found)
        if not run.wait_until(so_far):
            return False
        if moment == "save":
            time.sleep(rng.choice([0, rng.uniform(0, 0.002), rng.uniform(0, 0.008), rng.uniform(0, 0.03)]))
    if run.over():
        return False
    ranks = ranks or processes(run.mark)
    if victim == "mpirun" or not ranks:
        run.main.kill()
    elif victim == "all":
        for process in [*ranks.values(), run.main.pid]:
            kill(process)
    else:
        kill(ranks[min(ranks) if victim == "main rank" else rng.choice(sorted(ranks))])
    return True


def torture(rng, case, kills, out, moments=MOMENTS):
    """One case: a number of kills, then the end of the run. Returns how many kills came in time, and how many of them
    during a save."""
    mesh, ranks, same_bits, other, checked, struck_at, saving = case.mesh, case.ranks, True, None, {}, 0, 0
    for number in range(kills):
        if rng.random() < 0.15 and (other := other_mesh(rng, case)):
            ranks, mesh = other[:2]
            same_bits = same_bits and other[2]
        moment, victim = rng.choice(moments), rng.choice(VICTIMS)
        if moment == "prune" and case.keep == 0:
            moment = "save"
        options = f"{case.options} {mesh} --keep-last {case.keep} --resume"
        run = Run(ranks, options, out)
        struck = strike(rng, run, moment, victim, case.seconds)
        what = f"{case.name}, kill {number} ({moment}, {victim})"
        if struck and victim == "mpirun" and ranks > 1 and rng.random() < 0.5:
            after = Run(ranks, options, out)  # as a supervisor does that does not look: the ranks may still be there
            ok(after.end() == 0, what, "begun again at once: " + after.complaints()[-600:])
            after.close()
        status = run.end(SECONDS, struck)
        ok(status is not None, what,
           f"ranks are left, or wait for ever: {run.left} {run.text()[-200:]} {run.complaints()[-300:]}")
        struck_at += struck
        saving += struck and bool(names(out, r"step_\d{8}\.tmp"))
        ok(struck or status == 0, what, f"it ended before, with status {status}: " + run.complaints()[-600:])
        ok("not from step" not in run.text(), what, run.text())
        wrong = published(out, case.whole, same_bits, checked)
        ok(not wrong, what, wrong)
        run.close()
    if same_bits:
        mesh, ranks = case.mesh, case.ranks
    newest = names(out)[-1:]
    status, said, errors = finished(ranks, f"{case.options} {mesh} --keep-last {case.keep} --resume", out)
    taken = re.findall(r"^resume +\S*?(step_\d+): step|^resume +(no checkpoint)", said, re.MULTILINE)
    ok(status == 0 and taken and (taken[0][0] or taken[0][1]) == (newest[0] if newest else "no checkpoint"), case.name,
       f"status {status} from {taken}, the newest was {newest}: {errors[-600:]}")
    compare(case, out, same_bits, checked)
    shutil.rmtree(out, ignore_errors=True)
    return struck_at, saving


def killed_at_the_end(case, out):
    """As a run leaves it that is killed between the name of its last checkpoint and the removal of the one before."""
    shutil.copytree(case.whole, out, symlinks=True)
    for name in names(out)[:-2]:
        shutil.rmtree(os.path.join(out, name))
    os.rename(os.path.join(out, names(out)[0]), os.path.join(out, names(out)[0] + ".old"))
    status, _, errors = finished(case.ranks, f"{case.options} {case.mesh} --keep-last {case.keep} --resume", out)
    ok(status == 0, case.name, errors)
    compare(case, out, True, {})
    shutil.rmtree(out, ignore_errors=True)


def compare(case, out, same_bits, checked):
    """With the run that was never killed."""
    wrong = published(out, case.whole, same_bits, checked)
    ok(not wrong, case.name, wrong)
    try:
        a, b = log(case.whole), log(out)
    except (OSError, ValueError) as reason:
        ok(False, case.name, f"log.jsonl: {reason}")
        return
    if same_bits:
        # bytes of a step depend on its mesh; a save that waits for messages in flight moves their bytes
        for x in a + b:
            x.pop("comm_bytes")
        ok(a == b, case.name, f"log.jsonl differs: {[(x, y) for x, y in zip(a, b) if x != y][:1] or (len(a), len(b))}")
        expected = sorted([*case.kept(), *BESIDE])
        ok(sorted(os.listdir(out)) == expected, case.name, f"there are {sorted(os.listdir(out))} and not {expected}")
    else:
        ok(difference(a, b) <= 1e-5, case.name, f"on another mesh losses or norms are {difference(a, b):.1e} apart")
        rest = set(os.listdir(out)) - set(names(out)) - set(BESIDE)
        ok(not rest and case.expected[-1] in names(out), case.name, f"there are {sorted(os.listdir(out))}")


def kills(rng, number, deadline):
    done = saving = case = 0
    while done < number and time.monotonic() < deadline:
        case += 1
        one = Case(rng, rng.choice([1, 2, 2, 4, 4]) if MPI else 1, case)
        if one.sound:
            found = torture(rng, one, min(rng.randint(3, 8), number - done), f"killed{case}")
            done, saving = done + found[0], saving + found[1]
        shutil.rmtree(one.whole, ignore_errors=True)
    print(f"{done} kills in {case} runs, {saving} of them while a save was going on")
    if number >= 100:
        ok(done >= number, "kills", f"only {done} of {number} in the time given")
        ok(saving >= 0.3 * done, "kills", f"only {saving} of {done} while a save was going on")


# ---- Damaged checkpoints -----------------------------------------------------------------------------------------

def broken(seed, number, deadline, several):
    """`number` cases on one rank, two at a time; and `several` on several ranks."""
    done = refusals = 0
    groups = [(Broken_runs(1, "--keep-last 0"), number)]
    if MPI and several:
        groups.append((Broken_runs(2, "--keep-last 0 --tp 2"), several))
    for runs, n in groups:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for what, wrong, refused, _ in pool.map(lambda i: runs.case(seed, i) if time.monotonic() < deadline
                                                    else (None,) * 4, range(n)):
                if what is None:
                    continue
                ok(not wrong, what, wrong)
                done += 1
                refusals += refused
    print(f"{done} runs with damaged checkpoints: {refusals} refused, each with the reason; all others proved harmless")
    ok(done >= number, "broken", f"only {done} of {number} in the time given")


# ---- Disks -------------------------------------------------------------------------------------------------------

STEPS, EVERY = 300, 5


class Disks:
    """Each scenario is a run, something that happens to its folder after it has saved, and mostly its end."""

    def __init__(self):
        self.whole = "disk.whole"
        self.mounts = []
        status, _, errors = finished(1, f"{self.long()} --save-every 0", self.whole)
        ok(status == 0, "disks", errors)

    def long(self):
        return f"--steps {STEPS} --seed 3"

    def mount(self, where, *options):
        os.makedirs(where, exist_ok=True)
        done = subprocess.run(["mount", *options, where], capture_output=True)
        if done.returncode == 0:
            self.mounts.append(where)
        return done.returncode == 0

    def close(self):
        for where in reversed(self.mounts):
            subprocess.run(["umount", "-l", where], capture_output=True)

    def scenario(self, what, out, trouble, relief, reasons, ranks=1, mesh="", fails=("was not saved",)):
        """trouble() after the first save, until each word of `fails` was said; one line a failed save with one of the
        reasons; relief(): it saves again, and ends as if nothing had been. relief = None: it ends with status 1 and the
        checkpoints that there were."""
        run = Run(ranks, f"{self.long()} --save-every {EVERY} --keep-last 2 {mesh}", out)
        saved = lambda: run.text().count("\nsaved ")
        if not ok(run.wait_until(lambda: saved() >= 2, 0.004), what, "nothing is saved: " + run.complaints()):
            return run.end()
        trouble()
        ok(run.wait_until(lambda: all(x in run.complaints() for x in fails), 0.004), what, "no word of it")
        if relief:
            relief()
            at = saved()
            ok(run.wait_until(lambda: saved() > at, 0.004), what, "it does not save again: " + run.complaints()[-500:])
        status = run.end()
        lines = run.lines()
        run.close()
        failed = [line for line in lines if "was not saved" in line]
        of_log = [line for line in lines if "log.jsonl" in line]
        ok(set(lines) == set(failed + of_log) and len(set(failed)) == len(failed) and len(of_log) <= 2, what,
           f"other lines, or twice: {lines[:4]}")
        ok(len({re.search(r"step (\d+)", line)[1] for line in failed}) == len(failed), what,
           f"reported in more than one line: {failed[:3]}")
        ok(all(any(r in line for r in reasons) for line in lines), what, f"another reason: {lines[:2]}")
        ok(status == (0 if relief else 1), what, f"status {status}: {lines[-1:]}")
        if relief:
            self.compare(what, out)

    def compare(self, what, out):
        best = os.path.basename(os.path.realpath(os.path.join(out, "best")))
        expected = sorted({f"step_{s:08d}" for s in (STEPS - EVERY, STEPS)} | {best})
        found = sorted(os.listdir(out))
        ok(found == sorted([*expected, *BESIDE]), what, f"there are {found}")
        ok(expected[-1] in found and same_folder(os.path.join(out, expected[-1]),
                                                 os.path.join(self.whole, expected[-1])), what, "another end")
        try:
            ok([x["loss"] for x in log(out)] == [x["loss"] for x in log(self.whole)], what,
               "another log.jsonl, or lines are missing")
        except (ValueError, OSError) as reason:
            ok(False, what, f"log.jsonl: {reason}")

    def full(self, forever=False):
        what = "a full disk" + (" to the end" if forever else "")
        if not self.mount("full", "-t", "tmpfs", "-o", "size=2m", "tmpfs"):
            return print(f"left out: {what}: no right to mount")

        def fill():
            with open("full/ballast", "wb", buffering=0) as f:
                try:
                    while True:
                        f.write(bytes(4096))
                except OSError:
                    pass
        # With nothing left for it, not even a line of the log, once its last page is full.
        self.scenario(what, "full/run", fill, None if forever else lambda: os.unlink("full/ballast"),
                      ["No space left on device"], fails=("was not saved", "log.jsonl"))
        if forever:
            found = os.listdir("full/run")
            ok(names("full/run") and not names("full/run", r"step_\d+\..*"), what, f"there are {found}")
            sound("full/run", what)
            os.unlink("full/ballast")
            status, _, errors = finished(1, f"{self.long()} --save-every {EVERY} --keep-last 2 --resume", "full/run")
            ok(status == 0, what, f"resumed: status {status} {errors}")
            self.compare(what, "full/run")
        self.close()

    def moved(self, ranks=1, mesh=""):
        out = f"moved{ranks}"

        def trouble():  # and a file is in its place
            os.rename(out, "elsewhere")
            open(out, "w").close()

        def relief():
            os.unlink(out)
            os.rename("elsewhere", out)
        self.scenario("a folder that becomes a file", out, trouble, relief,
                      ["No such file or directory", "Not a directory"], ranks, mesh)

    def limited(self):
        """A limit on the size of files, whose signal would be the end of a program that does not look."""
        what = "files may not become larger than 60 KB"
        status, said, errors = finished(1, f"{self.long()} --save-every 100", "limited", "ulimit -f 120;")
        lines = [line for line in errors.splitlines() if line.startswith("train_gpt: ")]
        ok(status == 1 and f"step   {STEPS}/{STEPS}" in said, what, f"status {status}: {said[-200:]} {errors[-300:]}")
        ok("File too large" in errors and not names("limited", r"step_.*"), what, f"{lines} {os.listdir('limited')}")
        ok(sum("log.jsonl" in line for line in lines) in (0, 2), what, f"once, and at the end: {lines[:3]}")


    def limited_rank(self):
        """The disk of one rank takes no more, while the main rank waits for it."""
        what = "rank 1 may not write beyond 10 MB of a file of 15 MB"  # less would be less than MPI's own memory
        status, said, errors = finished(2, "--hidden 192 --steps 12 --save-every 4 --pp 2", "limited2",
                                        'case ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}} in 1) ulimit -f 20000 ;; esac;')
        lines = [line for line in errors.splitlines() if line.startswith("train_gpt: ")]
        ok(status != 0 and "step    12/12" in said and not names("limited2", r"step_.*"), what,
           f"status {status}: {errors[-300:]}")
        ok(len(lines) == 3 and all("rank 1: the checkpoint of step" in line and "File too large" in line
                                   for line in lines), what, lines)


def disks(short):
    d = Disks()
    try:
        d.full()
        d.limited()
        if MPI:
            d.limited_rank()
        if not short:
            d.full(forever=True)
            d.moved()
            if MPI:
                d.moved(2, "--pp 2")
    finally:
        d.close()


# ---- Calls that fail ---------------------------------------------------------------------------------------------

class Calls:
    """Runs that save at steps 2 and 4; the second one exports, too. One call of one
    rank fails."""

    def __init__(self):
        source = os.path.join(PROJECT, "dev", "test", "system", "fail_calls.c")
        subprocess.run([*os.environ.get("CC", "cc").split(), "-shared", "-fPIC", "-O1", "-o", "fail_calls.so", source,
                        "-ldl"], check=True)
        self.runs = 0

    def run(self, ranks, mesh, rank, at, everything=False, under="failing"):
        """One of the calls under a path. Returns (status, stderr, how many of them the rank has made)."""
        for left in ("failing", "failing.weights", "failing.weights.tmp", "count"):
            shutil.rmtree(left) if os.path.isdir(left) else os.path.exists(left) and os.unlink(left)
        before = "export LD_PRELOAD=$PWD/fail_calls.so FAIL_COUNT=$PWD/count"
        before += f" FAIL_UNDER={under} FAIL_RANK={rank} FAIL_AT={at}{' FAIL_ALL=1' * everything};"
        status, _, errors = finished(ranks, f"--steps 4 --save-every 2 --keep-last 1 {mesh} --export failing.weights",
                                     "failing", before)
        self.runs += 1
        return status, errors, int(open("count").read() or 0) if os.path.exists("count") else 0

    def sweep(self, rng, ranks, mesh, most=1000, under="failing"):
        """At most `most` calls, drawn at random, of each rank."""
        shutil.rmtree("failing.whole", ignore_errors=True)
        status, _, errors = finished(ranks, f"--steps 4 --save-every 2 --keep-last 0 {mesh}", "failing.whole")
        ok(status == 0, f"calls, {ranks} ranks {mesh}", errors)
        for rank in range(ranks):
            status, errors, count = self.run(ranks, mesh, rank, 0, under=under)
            what = f"calls of rank {rank} of {ranks} {mesh}"
            if not ok(status == 0 and count > 3, what, f"status {status}, {count} calls: {errors[-300:]}"):
                continue
            for at in sorted(rng.sample(range(1, count + 1), min(most, count))):
                for everything in (False, True) if under == "failing" else (False,):
                    status, errors, _ = self.run(ranks, mesh, rank, at, everything, under)
                    wrong = self.judge(status, errors)
                    ok(not wrong, f"{what}: number {at} of {count}{' and all later ones' if everything else ''} fails",
                       f"{wrong}; {errors[-500:]}")

    @staticmethod
    def judge(status, errors):
        """What is wrong, or ""."""
        lines = [line for line in errors.splitlines() if line.startswith("train_gpt: ")]
        last = any("step 4 was not saved" in line for line in lines)
        if status not in (0, 1) or (status == 1 and not lines):
            return f"status {status}"
        if (last and status != 1) or re.search(r"[Ss]egmentation|[Ss]ignal|Sanitizer", errors):
            return f"status {status} of a run that was not saved, or it has crashed"
        if status == 0 and ("step_00000004" not in names("failing") or not os.path.isdir("failing.weights")):
            return "status 0, and something is missing"
        for name in names("failing"):
            if not same_folder(os.path.join("failing", name), os.path.join("failing.whole", name)):
                return f"{name} is not sound"
        left = sorted(set(os.listdir("failing") if os.path.isdir("failing") else ()) - set(BESIDE))
        if any("." in name for name in left) or (glob.glob("failing.weights?*") and "the weights are in" not in errors):
            return f"{left} and {glob.glob('failing.weights?*')} are left"
        return ""


def calls(rng, short):
    c = Calls()
    under = "step_00000004.tmp/model" if short else "failing"
    c.sweep(rng, 1, "", under=under)
    if MPI:
        c.sweep(rng, 2, "--dp 2 --zero 1", 40, under)
    if MPI and not short:
        c.sweep(rng, 2, "--tp 2", 40)
        c.sweep(rng, 4, "--pp 2 --dp 2 --dp-mode diloco --local-steps 2", 20)
    print(f"{c.runs} runs in which a call fails")


# ---- The command line --------------------------------------------------------------------------------------------

def mpi_is_there():
    return b"MPI_Init" in open(TRAIN, "rb").read() and os.environ.get("MPIRUN", "mpirun") != ""


def short_kills(rng):
    """What make test-full has time for."""
    cases = [(1, ((1, 1, 1), "", "--tp 1 --pp 1"), ("save", "prune"))]
    if MPI:
        cases += [(4, ((2, 2, 1), "", "--tp 2 --pp 2 --sequence-parallel"), ("save", "early")),
                  (2, ((1, 1, 2), "--dp-mode diloco --local-steps 3", "--tp 1"), ("save",))]
    for number, (ranks, given, moments) in enumerate(cases):
        one = Case(rng, ranks, number, given, 1)
        if one.sound:
            torture(rng, one, 2, f"killed{number}", moments)
        if one.sound and ranks == 1:
            killed_at_the_end(one, "killed.end")


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
    MPI = mpi_is_there()
    started = time.monotonic()
    print(f"seed {o.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="torture") as work:
        os.chdir(work)
        # What killed jobs would leave for ever, sessions and shared memory of MPI, goes here.
        os.environ.update(OMP_NUM_THREADS="1", TMPDIR=work, OMPI_MCA_btl_vader_backing_directory=work,
                          OMPI_MCA_mpi_yield_when_idle="1")
        open("text.txt", "w").write(" ".join(map(str, range(12000))))
        if o.only in (None, "kills"):
            if o.short:
                short_kills(rng)
            else:
                kills(rng, o.kills, started + 60 * o.minutes * (1 if o.only else 0.7))
        if o.only in (None, "broken"):
            broken(o.seed, 12 if o.short else o.broken, started + 60 * o.minutes * (1 if o.only else 0.95), 0
                   if o.short else o.broken // 25)
        if o.only in (None, "disks"):
            disks(o.short)
        if o.only in (None, "calls"):
            calls(rng, o.short)
        os.chdir("/")
    print(f"{COUNT['passed']} passed, {COUNT['failed']} failed")
    return 1 if COUNT["failed"] or not COUNT["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
