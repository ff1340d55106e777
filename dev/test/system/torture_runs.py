"""
torture_runs.py: what torture.py runs and looks at: runs as processes, known by a mark in their environment, and what
they leave in their folders. Standard library only.
"""
import filecmp, itertools, json, os, re, signal, subprocess, time

from check_checkpoint import Broken, check

PROJECT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
TRAIN, MPIRUN = os.path.join(PROJECT, "train_gpt"), os.path.join(PROJECT, "scripts", "mpirun.sh")
MODEL = "--layers 4 --hidden 16 --heads 4 --seq 16 --micro-batch 1 --global-batch 8 --warmup 2 --eval-every 2 " \
        "--eval-sequences 4 --sample-every 0 --data text.txt"
SECONDS = int(os.environ.get("TORTURE_PATIENCE", "90"))  # for a run: it takes a few
TIMES = ("step_ms", "tokens_per_s", "mfu", "bubble", "peak_mem_bytes")  # of log.jsonl; these differ from run to run
BESIDE = ("best", "log.jsonl", "options.txt")  # a run's other files
COUNT = {"passed": 0, "failed": 0}


def ok(condition, what, why=""):
    COUNT["passed" if condition else "failed"] += 1
    if not condition:
        print(f"FAIL  {what}: {why}", flush=True)
    return condition


# ---- A run, as processes -----------------------------------------------------------------------------------------

def processes(mark):
    """The ranks of a run that are there: {rank: process}. They are known by a mark in their environment."""
    found = {}
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and mark in (about := open(f"/proc/{name}/environ", "rb").read()):
                if os.readlink(f"/proc/{name}/exe") == TRAIN:
                    rank = re.search(rb"(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)", about)
                    found[int(rank[1]) if rank else 0] = int(name)
        except OSError:
            pass  # it has just ended
    return found


class Run:
    numbers = itertools.count(1)  # also for threads

    def __init__(self, ranks, options, out, before=""):
        """before: words for a shell in front of the program."""
        number = next(Run.numbers)
        self.mark = f"TORTURE={os.getpid()}.{number}.".encode()
        self.ranks, self.out, self.left, self.stuck = ranks, out, "", False
        usual, given = MODEL.split(), options.split()
        usual = [word for i in range(0, len(usual), 2) if usual[i] not in given for word in usual[i:i + 2]]
        self.command = [TRAIN, *usual, *given, "--out", out]
        if before:
            self.command = ["sh", "-c", before + ' exec "$@"', "sh", *self.command]
        if ranks > 1:
            self.command = [MPIRUN, "-np", str(ranks), *self.command]
        self.said = open(f"said.{number}", "wb+")
        self.errors = open(f"errors.{number}", "wb+")
        key, value = self.mark.decode().split("=")
        self.main = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.said, stderr=self.errors,
                                     env=dict(os.environ, **{key: value}))
        self.started = time.monotonic()

    def text(self):
        return open(self.said.name, errors="replace").read()

    def complaints(self):
        return open(self.errors.name, errors="replace").read()

    def lines(self):
        """What the trainer itself has said on stderr; mpirun adds its own."""
        return [line for line in self.complaints().splitlines() if line.startswith("train_gpt: ")]

    def over(self):
        return self.main.poll() is not None

    def wait_for_ranks(self):
        """Until all of them are there. {}: the run was over before."""
        while not self.over():
            found = processes(self.mark)
            if len(found) == self.ranks:
                return found
            time.sleep(0.002)
        return {}

    def wait_until(self, condition, pause=0.0003, seconds=SECONDS):
        """Until something is so. False: the run was over before, or it took too long."""
        end = time.monotonic() + seconds
        while not condition():
            if self.over() or time.monotonic() > end:
                return condition()
            time.sleep(pause)
        return True

    def end(self, seconds=SECONDS, struck=False):
        """Waits for the end of mpirun and of all ranks. Returns the exit status, or None after too long. After a kill
        (struck) Open MPI's mpirun itself sometimes stays when all ranks are gone, which is counted."""
        limit = time.monotonic() + seconds
        alone = None  # since when mpirun has been
        while time.monotonic() < limit:
            ranks = processes(self.mark)
            if self.over() and not ranks:
                break
            alone = None if ranks else alone or time.monotonic()
            if struck and alone and time.monotonic() > alone + 15:
                self.stuck = True
                self.main.kill()
            time.sleep(0.04)
        left = processes(self.mark)
        if left or not self.over():
            self.left = f"{'mpirun is over' if self.over() else 'mpirun is there'}, and ranks {sorted(left)}: " + \
                "; ".join(stack(process) for process in left.values())
            self.main.kill()
            for process in left.values():
                kill(process)
            self.main.wait()
            return None
        return self.main.returncode

    def close(self):
        for file in (self.said, self.errors):
            file.close()
            os.unlink(file.name)


def stack(process):
    """Where in the system a process stands."""
    try:
        return open(f"/proc/{process}/wchan").read() + " " + open(f"/proc/{process}/stat").read().split()[2]
    except OSError:
        return "?"


def kill(process):
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        pass


def finished(ranks, options, out, before=""):
    """A run that is left alone. Returns (exit status, stdout, stderr)."""
    run = Run(ranks, options, out, before)
    status = run.end()
    result = status, run.text(), run.complaints()
    run.close()
    return result


# ---- What runs leave ---------------------------------------------------------------------------------------------

def names(out, pattern=r"step_\d{8}"):
    """Checkpoints in a folder, the oldest first; or what else matches."""
    return sorted(n for n in (os.listdir(out) if os.path.isdir(out) else ()) if re.fullmatch(pattern, n))


def same_folder(a, b):
    left, right = sorted(os.listdir(a)), sorted(os.listdir(b))
    return left == right and all(filecmp.cmp(os.path.join(a, n), os.path.join(b, n), shallow=False) for n in left)


def log(out):
    lines = open(os.path.join(out, "log.jsonl")).read()
    if lines and not lines.endswith("\n"):
        raise ValueError("half a line")
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines.splitlines()]


def published(out, whole, same_bits, checked):
    """The first thing that is wrong with the checkpoints of a run; "" if nothing is."""
    for name in names(out):
        folder = os.path.join(out, name)
        try:
            if same_bits:
                if not same_folder(folder, os.path.join(whole, name)):
                    return f"{name} is not that of the run which was never killed"
            else:
                key = tuple(os.stat(os.path.join(folder, n)).st_mtime_ns for n in sorted(os.listdir(folder)))
                if checked.get(folder) != key:
                    check(folder)
                checked[folder] = key
        except (Broken, OSError, ValueError, KeyError) as reason:
            return f"{name}: {reason}"
    if not os.path.isdir(out):
        return ""
    known = names(out, r"step_\d{8}(\.tmp|\.old)?|log\.jsonl|(best|options\.txt)(\.tmp)?")
    strangers = set(os.listdir(out)) - set(known)
    return f"there are {strangers}" if strangers else ""


def sound(out, what):
    """Whether all checkpoints of a run are."""
    for name in names(out):
        try:
            check(os.path.join(out, name))
        except (Broken, OSError, ValueError, KeyError) as reason:
            return ok(False, what, f"{name}: {reason}")
    return True


def difference(a, b):
    """Of two logs, the largest relative one of losses and norms."""
    worst = 0
    for x, y in zip(a, b):
        for key in ("loss", "val_loss", "grad_norm"):
            if (x[key] is None) != (y[key] is None):
                return float("inf")
            if x[key]:
                worst = max(worst, abs(x[key] - y[key]) / abs(x[key]))
    return worst if len(a) == len(b) else float("inf")
