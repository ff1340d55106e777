#!/usr/bin/env python3
"""
torture.py: does a run survive? Ranks are killed at any moment, checkpoints are damaged, disks are full or gone; then
the run is resumed and has to end like an undisturbed one.

    python3 dev/test/system/torture.py [--kills 200] [--broken 500] [--minutes 15] [--seed N] [--short]
                                       [--only kills|broken|disks|calls]

    kills     Runs of random meshes (1, 2 and 4 ranks; every option that changes what is saved or which rank saves it),
              each beside an undisturbed run of the same command. SIGKILL for one rank, rank 0, all, or mpirun: during a
              save, while an old checkpoint is removed, before the first step, while a run is resumed, or at any time.
              After each every checkpoint that has its name is bit-identical to the other run's, and no process is left.
              In the end log.jsonl (without times), every file, and the names of all files are those of the other run.
    broken    Checkpoints of a run are damaged: bits, lengths, pages of zeros, files of other steps, runs and names. The
              resumed run reports the reason, continues from the checkpoint before, and ends with the same files.
    disks     A disk is full, or gone in the middle of a run, and comes back.
    calls     Every system call by which a rank saves fails once, and then with all later ones (fail_calls.c): the run
              reports it, ends with status 1 if it was the last save, and leaves sound checkpoints and nothing else.

The short form is for make test-full. The order and the kind of all cases follow from the seed, the moments do not.
Nothing is left behind. Standard library only; the last line is "N passed, N failed".
"""
import argparse, concurrent.futures, contextlib, filecmp, glob, itertools, json, os, random, re, shutil, signal
import subprocess, sys, tempfile, time
from pathlib import Path

from checks import ROOT, check, finish

SYSTEM, TRAIN, MPIRUN = f"{ROOT}/dev/test/system", f"{ROOT}/train_gpt", f"{ROOT}/scripts/mpirun.sh"
MODEL = "--layers 4 --hidden 16 --heads 4 --seq 16 --micro-batch 1 --global-batch 8 --warmup 2 --eval-every 2 " \
        "--eval-sequences 4 --sample-every 0 --data text.txt"
SECONDS = int(os.environ.get("TORTURE_PATIENCE", "90"))  # for a run: it takes a few
TIMES = ("step_ms", "tokens_per_s", "mfu", "bubble", "peak_mem_bytes")  # of log.jsonl; these differ from run to run
BESIDE = ("best", "log.jsonl", "options.txt")  # a run's other files
MPI = b"MPI_Init" in Path(TRAIN).read_bytes() and os.environ.get("MPIRUN", "mpirun") != ""

# ---- A run, as processes -----------------------------------------------------------------------------------------

def processes(mark):
    """The ranks of a run that are there: {rank: process}. They are known by a mark in their environment."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            about = open(f"/proc/{name}/environ", "rb").read()
            if b"TORTURE=" + mark.encode() in about and os.readlink(f"/proc/{name}/exe") == TRAIN:
                rank = re.search(rb"(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)", about)
                found[int(rank[1]) if rank else 0] = int(name)
        except OSError:
            pass  # it has just ended
    return found

def kill(process):
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)

class Run:
    numbers = itertools.count(1)  # also for threads

    def __init__(self, ranks, options, out, before=""):
        """before: words for a shell in front of the program."""
        number = next(Run.numbers)
        self.mark, self.ranks, self.out = f"{os.getpid()}.{number}.", ranks, out
        command = [TRAIN, *MODEL.split(), *options.split(), "--out", out]
        if before:
            command = ["sh", "-c", before + ' exec "$@"', "sh", *command]
        if ranks > 1:
            command = [MPIRUN, "-np", str(ranks), *command]
        self.files = f"said.{number}", f"errors.{number}"
        with open(self.files[0], "wb") as said, open(self.files[1], "wb") as errors:
            self.main = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=errors,
                                         env={**os.environ, "TORTURE": self.mark})

    def text(self):
        return open(self.files[0], errors="replace").read()

    def complaints(self):
        return open(self.files[1], errors="replace").read()

    def over(self):
        return self.main.poll() is not None

    def wait_until(self, condition, pause=0.0003):
        """Until something is so. False: the run was over before, or it took too long."""
        end = time.monotonic() + SECONDS
        while not condition():
            if self.over() or time.monotonic() > end:
                return condition()
            time.sleep(pause)
        return True

    def end(self, struck=False):
        """Waits for the end of mpirun and of all ranks. Returns the exit status, or None after too long. After a kill
        (struck) Open MPI's mpirun itself sometimes stays when all ranks are gone: no fault of ours."""
        limit = time.monotonic() + SECONDS
        alone = None  # since when mpirun has been
        while time.monotonic() < limit:
            ranks = processes(self.mark)
            if self.over() and not ranks:
                return self.main.returncode
            alone = None if ranks else alone or time.monotonic()
            if struck and alone and time.monotonic() > alone + 15:
                self.main.kill()
            time.sleep(0.04)
        for process in [self.main.pid, *processes(self.mark).values()]:
            kill(process)
        self.main.wait()
        return None

def finished(ranks, options, out, before=""):
    """A run that is left alone. Returns (exit status, stdout, stderr)."""
    run = Run(ranks, options, out, before)
    return run.end(), run.text(), run.complaints()

def completed(what, ranks, options, out):
    """A run that is left alone and has to end well. Returns whether it has, and what it has printed."""
    status, said, errors = finished(ranks, options, out)
    return check(status == 0, f"{what}: status {status} {errors[-600:]}"), said

def reports(errors):
    """What the trainer itself has said on stderr; mpirun adds its own."""
    return [line for line in errors.splitlines() if line.startswith("train_gpt: ")]

# ---- What runs leave ---------------------------------------------------------------------------------------------

def names(out, pattern=r"step_\d{8}"):
    """Checkpoints in a folder, the oldest first; or what else matches."""
    return sorted(n for n in (os.listdir(out) if os.path.isdir(out) else ()) if re.fullmatch(pattern, n))

def same_folder(a, b):
    left, right = (sorted(os.listdir(folder)) if os.path.isdir(folder) else None for folder in (a, b))
    return bool(left) and left == right and all(filecmp.cmp(f"{a}/{n}", f"{b}/{n}", shallow=False) for n in left)

def log(out):
    """Without times; and without bytes, since a save that waits for messages in flight moves them to another step."""
    lines = open(os.path.join(out, "log.jsonl")).read()
    if lines and not lines.endswith("\n"):
        raise ValueError("half a line")
    return [{k: v for k, v in json.loads(line).items() if k not in (*TIMES, "comm_bytes")}
            for line in lines.splitlines()]

def same_log(a, b):
    """The first difference of two logs; "" if there is none."""
    try:
        a, b = log(a), log(b)
    except (OSError, ValueError) as reason:
        return f"log.jsonl: {reason}"
    return "" if a == b else f"log.jsonl: {[(x, y) for x, y in zip(a, b) if x != y][:1] or (len(a), len(b))}"

def other_than(out, whole):
    """The first of a run's checkpoints that is not another run's, or file that no run has; "" if there is none."""
    for name in names(out):
        if not same_folder(os.path.join(out, name), os.path.join(whole, name)):
            return f"{name} is not that of the run which was never killed"
    known = names(out, r"step_\d{8}(\.tmp|\.old)?|log\.jsonl|(best|options\.txt)(\.tmp)?")
    strangers = set(names(out, ".*")) - set(known)
    return f"there are {strangers}" if strangers else ""

# ---- Random meshes -----------------------------------------------------------------------------------------------

def random_options(rng, ranks):
    """What a run is: its replicas, the options of the model, those of the mesh."""
    some = lambda *options: rng.choice(("", *options))
    t = rng.choice([n for n in (1, 2, 4) if ranks % n == 0])
    p = rng.choice([n for n in (1, 2, 4) if ranks // t % n == 0])
    d = ranks // t // p
    model = some("--arch llama --kv-heads 2", "--arch llama") + (some("", " --caat-fraction 0.5") if t > 1 else "")
    model += some("", "", "", "", " --optimizer sgd --lr 0.01 --min-lr 0.001")
    mode = some("", "", " --dp-mode dc-s3gd", " --dp-mode diloco --local-steps 3") if d > 1 else ""
    mesh = f"--tp {t}" + (some(" --sequence-parallel") if t > 1 else "")
    mesh += some("", " --recompute selective", " --recompute full")
    mesh += some(" --zero 1", " --zero 2") if d > 1 and not mode else ""
    schedules = ["gpipe", "1f1b", "zb-h1"] + ["interleaved", "zb-v"] * (p == 2)  # there are four layers
    mesh += f" --schedule {rng.choice(schedules)}" if p > 1 else ""
    mode += some(" --sites 2") if mode and d == 4 else ""
    return d, model + mode, f"{mesh} --pp {p}"

class Case:
    """A command, and its undisturbed run."""

    def __init__(self, rng, ranks, number, given=None):
        self.ranks, self.whole = ranks, f"whole{number}"
        for _ in range(1000):
            d, model, self.mesh = given or random_options(rng, ranks)
            steps, every, self.keep = rng.randint(10, 24), rng.randint(1, 3), 1 if given else rng.randint(0, 3)
            self.options = f"{model} --steps {steps} --save-every {every} --seed {number}"
            options = f"{MODEL} {self.options} {self.mesh} --dp {d} --out none --dry-run"
            dry = subprocess.run([TRAIN, *options.split()], stdin=subprocess.DEVNULL, capture_output=True)
            if dry.returncode == 0 or given:
                break  # else options that do not go together
        self.name = f"{ranks} ranks {self.mesh} {self.options} --keep-last {self.keep}"
        started = time.monotonic()
        done, _ = completed(self.name, ranks, f"{self.options} {self.mesh} --keep-last 0", self.whole)
        self.seconds = time.monotonic() - started
        self.resumed = f"{self.options} {self.mesh} --keep-last {self.keep} --resume"
        self.saved = [f"step_{s:08d}" for s in range(1, steps + 1) if s % every == 0 or s == steps]
        looked = subprocess.run([sys.executable, f"{SYSTEM}/check_checkpoint.py",
                                 *(f"{self.whole}/{name}" for name in self.saved)], capture_output=True, text=True)
        self.sound = check(done and names(self.whole) == self.saved and looked.returncode == 0,
                           f"{self.name}: {len(self.saved)} checkpoints {looked.stdout if looked.returncode else ''}")

    def kept(self):
        """What is left of the checkpoints in the end: the last, and the best; or all."""
        return sorted({*self.saved[-self.keep:], os.readlink(f"{self.whole}/best")})

# ---- Kills -------------------------------------------------------------------------------------------------------

MOMENTS = ("save", "save", "save", "save", "prune", "early", "any", "any")
VICTIMS = ("rank", "rank", "main rank", "all", "mpirun")

def moment_comes(rng, run, moment, seconds):
    """Waits for the moment. False: the run was over before it."""
    if moment == "early":
        time.sleep(rng.uniform(0, 0.5))
    elif not run.wait_until(lambda: len(processes(run.mark)) == run.ranks, 0.002):
        return False
    elif moment == "any":
        time.sleep(rng.uniform(0, 0.5 * seconds))
    else:
        skip, seen = rng.randint(0, 3), set()

        def comes():
            now = set(names(run.out, r"step_\d{8}\." + {"save": "tmp", "prune": "old"}[moment]))
            found = now - seen if len(seen) >= skip else ()
            seen.update(now)
            return bool(found)
        if not run.wait_until(comes):
            return False
        if moment == "save":
            time.sleep(rng.choice([0, rng.uniform(0, 0.002), rng.uniform(0, 0.008), rng.uniform(0, 0.03)]))
    return not run.over()

def strike(rng, run, victim):
    ranks, main = processes(run.mark), run.main.pid
    victims = {"mpirun": [main], "all": [*ranks.values(), main], "main rank": [ranks[min(ranks)] if ranks else main],
               "rank": [ranks[rng.choice(sorted(ranks))] if ranks else main]}
    for process in victims[victim]:
        kill(process)

def torture(rng, case, moments, out):
    """One case: a kill at each of the moments, then the end of the run. Returns how many kills came in time, and how
    many of them during a save."""
    kills = saving = 0
    for number, moment in enumerate(moments):
        victim, moment = rng.choice(VICTIMS), "save" if moment == "prune" and case.keep == 0 else moment
        what = f"{case.name}, kill {number} ({moment}, {victim})"
        run = Run(case.ranks, case.resumed, out)
        struck = moment_comes(rng, run, moment, case.seconds)
        if struck:
            strike(rng, run, victim)
        if struck and victim == "mpirun" and case.ranks > 1 and rng.random() < 0.5:
            completed(f"{what}: begun again at once, the ranks may still be there", case.ranks, case.resumed, out)
        status = run.end(struck)
        if not check(status is not None and (struck or status == 0), f"{what}: status {status}, no rank is left"):
            print(run.text()[-200:], run.complaints()[-600:])
        wrong = other_than(out, case.whole)
        check(not wrong and "not from step" not in run.text(), f"{what}: all is sound {wrong}")
        kills += struck
        saving += struck and bool(names(out, r"step_\d{8}\.tmp"))
    newest = (names(out) or ["no checkpoint"])[-1]
    _, said = completed(case.name, case.ranks, case.resumed, out)
    taken = re.search(r"^resume +\S*?(step_\d+(?=: step)|no checkpoint)", said, re.MULTILINE)
    check(taken and taken[1] == newest, f"{case.name}: resumed from {taken and taken[1]}, the newest was {newest}")
    wrong = other_than(out, case.whole) or same_log(case.whole, out)
    left, expected = names(out, ".*"), sorted([*case.kept(), *BESIDE])
    check(not wrong and left == expected, f"{case.name}: ends as the other {wrong}, leaves {left} of {expected}")
    shutil.rmtree(out, ignore_errors=True)
    return kills, saving

def kills(rng, number, deadline):
    done = saving = case = 0
    while done < number and time.monotonic() < deadline:
        case += 1
        one = Case(rng, rng.choice([1, 2, 2, 4, 4]) if MPI else 1, case)
        if one.sound:
            found = torture(rng, one, rng.choices(MOMENTS, k=min(rng.randint(3, 8), number - done)), f"killed{case}")
            done, saving = done + found[0], saving + found[1]
        shutil.rmtree(one.whole, ignore_errors=True)
    check(number < 100 or (done >= number and saving >= 0.3 * done),
          f"{done} kills in {case} runs, {saving} of them while a save was going on, {number} wanted")

def short_kills(rng):
    """What make test-full has time for."""
    cases = [(1, (1, "", "--tp 1 --pp 1"), ("save", "prune"))]
    if MPI:
        cases += [(4, (2, "", "--tp 2 --zero 1 --sequence-parallel"), ("save", "early")),
                  (2, (2, "--dp-mode diloco --local-steps 3", "--tp 1"), ("save",))]
    for number, (ranks, given, moments) in enumerate(cases):
        one = Case(rng, ranks, number, given)
        if one.sound:
            torture(rng, one, moments, f"killed{number}")

# ---- Damaged checkpoints -----------------------------------------------------------------------------------------

FILES = ("model.safetensors", "optimizer.safetensors", "config.json", "trainer.json")
CONTENT = ("flip", "flip", "flip", "flip", "cut", "cut", "grow", "zeros", "twice", "scrambled")
INSTEAD = {"gone": lambda path: None, "folder": os.mkdir, "pipe": os.mkfifo,
           "dangling": lambda path: os.symlink("nowhere", path)}
OTHERS = ("of_step", "of_run", "exchange", "renamed")  # what is there is sound, and another checkpoint's

def damaged(how, rng, data):
    """A file's bytes, but for a few bits, or the end, or a page: zeros, as file systems leave them after a crash, or
    what belongs elsewhere; or nothing like it."""
    size, pages = len(data), range(0, len(data), 4096)
    page, other = rng.choice(pages), rng.choice(pages)
    if how == "flip":
        for _ in range(rng.choice([1, 1, 1, 2, 7])):
            at = rng.randrange(size)
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1:]
        return data
    return {"cut": data[:rng.choice([size - 1, size - 4, size // 2, rng.randrange(size), 0])],
            "grow": data + bytes(rng.choice([1, 4, 4096])),
            "zeros": data[:page] + bytes(len(data[page:page + 4096])) + data[page + 4096:],
            "twice": data[:page] + data[other:other + 4096] + data[page + 4096:],
            "scrambled": rng.randbytes(size)}[how]

def damage(rng, folder, other_step, other_run):
    """Damages one checkpoint. Returns how, the file, and whether nothing has changed by it."""
    contents = lambda: {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    file, how, before = rng.choice(FILES), rng.choice([*CONTENT, *INSTEAD, *OTHERS]), contents()
    path = folder / file
    if how in CONTENT:
        path.write_bytes(damaged(how, rng, before[file]))
    elif how in INSTEAD:
        path.unlink()
        INSTEAD[how](path)
    elif how == "exchange":
        other = rng.choice([n for n in FILES if n != file])
        path.write_bytes(before[other])
        (folder / other).write_bytes(before[file])
    elif how == "renamed":
        shutil.rmtree(folder)
        shutil.copytree(other_step, folder)
    else:
        shutil.copyfile((other_step if how == "of_step" else other_run) / file, path)
    return how, file, contents() == before

class Broken_runs:
    """Runs of three steps, of which copies are damaged and resumed for a fourth."""

    def __init__(self, ranks, options):
        self.ranks, self.options = ranks, f"{options} --keep-last 0 --steps 4 --save-every 1"
        self.base = {seed: f"base{ranks}.{seed}" for seed in (1, 2)}
        for seed, out in self.base.items():
            completed("broken", ranks, f"{self.options} --seed {seed}", out)

    def case(self, seed, number):
        """Returns what was damaged, what is wrong or "", and how many steps were refused."""
        rng = random.Random(seed * 1000003 + number)
        out = f"broken{number}"
        shutil.copytree(self.base[1], out, symlinks=True)
        # as a run that was killed leaves one
        shutil.move(f"{out}/step_00000004", f"{out}/step_00000077.tmp")
        damages = {}
        for step in rng.choice([[3], [3], [3], [3], [3, 2], [3, 2], [3, 2, 1]]):
            folders = [Path(run, f"step_{s:08d}") for run, s in
                       ((out, step), (self.base[1], step - 1 or 2), (self.base[2], step))]
            damages[step] = damage(rng, *folders)
        status, said, errors = finished(self.ranks, f"{self.options} --seed 1 --resume", out)
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
        if status != 0 or os.path.exists(f"{out}/step_00000077.tmp"):
            return f"status {status}, or what a killed run has left is still there: {errors[-300:]}"
        # damaged, and older than the one that was taken
        untouched = {step for step in damages if step not in steps and not damages[step][2]}
        for step in {1, 2, 3, 4} - untouched:
            if not same_folder(f"{self.base[1]}/step_{step:08d}", f"{out}/step_{step:08d}"):
                return f"step {step} is not that of the other run"
        return same_log(self.base[1], out)

def broken(seed, number, deadline, several):
    """`number` cases on one rank, two at a time; and `several` on several ranks."""
    done = refusals = 0
    for runs, n in [(Broken_runs(1, ""), number)] + ([(Broken_runs(2, "--tp 2"), several)] if MPI and several else []):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for result in pool.map(lambda i: time.monotonic() < deadline and runs.case(seed, i), range(n)):
                if result:
                    what, wrong, refused = result
                    check(not wrong, f"{what} {wrong}")
                    done += 1
                    refusals += refused > 0
    check(done >= number, f"{done} runs of {number} with damaged checkpoints: {refusals} refused some, with the reason")

# ---- Disks -------------------------------------------------------------------------------------------------------

STEPS, EVERY = 300, 5
LONG = f"--steps {STEPS} --seed 3"

def scenario(what, out, trouble, relief, reason, ranks=1, mesh="", fails=("was not saved",)):
    """trouble() after the second save, until each word of `fails` was said; one line a failed save with the reason;
    relief(): it saves again, and ends as the run on a good disk."""
    run = Run(ranks, f"{LONG} --save-every {EVERY} --keep-last 2 {mesh}", out)
    saved = lambda: run.text().count("\nsaved ")
    check(run.wait_until(lambda: saved() >= 2, 0.004), f"{what}: two saves {run.complaints()}")
    trouble()
    check(run.wait_until(lambda: all(x in run.complaints() for x in fails), 0.004), f"{what}: it says so")
    relief()
    at = saved()
    check(run.wait_until(lambda: saved() > at, 0.004), f"{what}: it saves again {run.complaints()[-500:]}")
    status, lines = run.end(), reports(run.complaints())
    failed = [re.search(r"step (\d+)", line)[1] for line in lines if "was not saved" in line]
    of_log = [line for line in lines if "log.jsonl" in line]
    check(status == 0 and len(lines) == len(failed) + len(of_log) and len(set(failed)) == len(failed)
          and len(of_log) <= 2 and all(reason in line for line in lines),
          f"{what}: status {status}, lines with the reason, no other, and none twice: {lines[:4]}")
    left, last, best = names(out, ".*"), f"step_{STEPS:08d}", os.path.basename(os.path.realpath(f"{out}/best"))
    check(left == sorted({f"step_{STEPS - EVERY:08d}", last, best, *BESIDE}), f"{what}: it leaves {left}")
    check(same_folder(f"{out}/{last}", f"disk.whole/{last}"), f"{what}: the same end")
    check([x["loss"] for x in log(out)] == [x["loss"] for x in log("disk.whole")], f"{what}: the same log.jsonl")

def fill():
    """With nothing left for it, not even a line of the log, once its last page is full."""
    with open("full/ballast", "wb", buffering=0) as f, contextlib.suppress(OSError):
        while True:
            f.write(bytes(4096))

def full():
    os.makedirs("full", exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", "full"], capture_output=True).returncode:
        print("left out: a full disk: no right to mount")
        return
    try:
        scenario("a full disk", "full/run", fill, lambda: os.unlink("full/ballast"), "No space left on device",
                 fails=("was not saved", "log.jsonl"))
    finally:
        subprocess.run(["umount", "-l", "full"], capture_output=True)

def moved(ranks, mesh):
    out = f"moved{ranks}"
    scenario("a folder that is moved away", out, lambda: os.rename(out, "elsewhere"),
             lambda: os.rename("elsewhere", out), "No such file or directory", ranks, mesh)

def disks(short):
    completed("a good disk", 1, f"{LONG} --save-every 0", "disk.whole")
    full()
    moved(1, "")
    if MPI and not short:
        moved(2, "--pp 2")

# ---- Calls that fail ---------------------------------------------------------------------------------------------

def failing(ranks, mesh, rank, at, everything, under):
    """A run that saves at steps 2 and 4 and exports; call number `at` of one rank fails, of those under a path. Returns
    (status, stderr, how many such calls the rank has made)."""
    for left in ("failing", "failing.weights", "failing.weights.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    Path("count").write_text("0")
    before = "export LD_PRELOAD=$PWD/fail_calls.so FAIL_COUNT=$PWD/count"
    before += f" FAIL_UNDER={under} FAIL_RANK={rank} FAIL_AT={at}{' FAIL_ALL=1' * everything};"
    status, _, errors = finished(ranks, f"--steps 4 --save-every 2 --keep-last 1 {mesh} --export failing.weights",
                                 "failing", before)
    return status, errors, int(Path("count").read_text())

def sweep(rng, ranks, mesh, most, under):
    """At most `most` calls, drawn at random, of each rank."""
    shutil.rmtree("failing.whole", ignore_errors=True)
    completed(f"calls, {ranks} ranks {mesh}", ranks, f"--steps 4 --save-every 2 --keep-last 0 {mesh}", "failing.whole")
    for rank in range(ranks):
        status, errors, count = failing(ranks, mesh, rank, 0, False, under)
        what = f"calls of rank {rank} of {ranks} {mesh}"
        if not check(status == 0 and count > 3, f"{what}: status {status}, {count} calls: {errors[-300:]}"):
            continue
        for at in sorted(rng.sample(range(1, count + 1), min(most, count))):
            for everything in (False, True) if under == "failing" else (False,):
                status, errors, _ = failing(ranks, mesh, rank, at, everything, under)
                wrong = judge_failing(status, errors)
                check(not wrong, f"{what}: number {at} of {count}{' and all later ones' * everything} fails "
                                 f"{wrong} {errors[-500:] if wrong else ''}")

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
        if not same_folder(f"failing/{name}", f"failing.whole/{name}"):
            return f"{name} is not sound"
    left = [name for name in names("failing", ".*") if "." in name and name not in BESIDE]
    left += [] if "the weights are in" in errors else glob.glob("failing.weights?*")
    return f"{left} are left" if left else ""

def calls(rng, short):
    subprocess.run([*os.environ.get("CC", "cc").split(), "-shared", "-fPIC", "-O1", "-o", "fail_calls.so",
                    os.path.join(SYSTEM, "fail_calls.c"), "-ldl"], check=True)
    under = "step_00000004.tmp/model" if short else "failing"
    sweep(rng, 1, "", 1000, under)
    if MPI:
        sweep(rng, 2, "--dp 2 --zero 1", 40, under)
    if MPI and not short:
        sweep(rng, 2, "--tp 2", 40, under)
        sweep(rng, 4, "--pp 2 --dp 2 --dp-mode diloco --local-steps 2", 20, under)

# ---- The command line --------------------------------------------------------------------------------------------

def main():
    parser = argparse.ArgumentParser()
    for name, usual in (("--kills", 200), ("--broken", 500), ("--minutes", 15), ("--seed", int(time.time()))):
        parser.add_argument(name, type=int, default=usual)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", choices=["kills", "broken", "disks", "calls"])
    o = parser.parse_args()
    rng = random.Random(o.seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left behind
    started = time.monotonic()
    deadline = lambda share: started + 60 * o.minutes * (1 if o.only else share)  # of the time, when a part ends
    print(f"seed {o.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="torture") as work:
        os.chdir(work)
        # What killed jobs would leave for ever, sessions and shared memory of MPI, goes here.
        os.environ.update(OMP_NUM_THREADS="1", TMPDIR=work, OMPI_MCA_btl_vader_backing_directory=work,
                          OMPI_MCA_mpi_yield_when_idle="1")
        Path("text.txt").write_text(" ".join(map(str, range(12000))))
        parts = {"kills": lambda: short_kills(rng) if o.short else kills(rng, o.kills, deadline(0.7)),
                 "broken": lambda: broken(o.seed, 12 if o.short else o.broken, deadline(0.95),
                                          0 if o.short else o.broken // 25),
                 "disks": lambda: disks(o.short), "calls": lambda: calls(rng, o.short)}
        for part in [o.only] if o.only else parts:
            parts[part]()
        os.chdir("/")
    finish()

if __name__ == "__main__":
    main()
