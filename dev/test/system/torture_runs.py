"""
torture_runs.py: what torture.py runs and looks at: runs as processes, known by a mark in their environment, and what
they leave in their folders. Standard library only.
"""
import filecmp, itertools, json, os, re, signal, subprocess, time

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


def kill(process):
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Run:
    numbers = itertools.count(1)  # also for threads

    def __init__(self, ranks, options, out, before=""):
        """before: words for a shell in front of the program."""
        number = next(Run.numbers)
        self.mark = f"TORTURE={os.getpid()}.{number}.".encode()
        self.ranks, self.out = ranks, out
        usual, given = MODEL.split(), options.split()
        usual = [word for i in range(0, len(usual), 2) if usual[i] not in given for word in usual[i:i + 2]]
        command = [TRAIN, *usual, *given, "--out", out]
        if before:
            command = ["sh", "-c", before + ' exec "$@"', "sh", *command]
        if ranks > 1:
            command = [MPIRUN, "-np", str(ranks), *command]
        self.said = open(f"said.{number}", "wb+")
        self.errors = open(f"errors.{number}", "wb+")
        key, value = self.mark.decode().split("=")
        self.main = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.said, stderr=self.errors,
                                     env=dict(os.environ, **{key: value}))

    def text(self):
        return open(self.said.name, errors="replace").read()

    def complaints(self):
        return open(self.errors.name, errors="replace").read()

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
        self.main.kill()
        for process in processes(self.mark).values():
            kill(process)
        self.main.wait()
        return None

    def close(self):
        for file in (self.said, self.errors):
            file.close()
            os.unlink(file.name)


def finished(ranks, options, out, before=""):
    """A run that is left alone. Returns (exit status, stdout, stderr)."""
    run = Run(ranks, options, out, before)
    status = run.end()
    result = status, run.text(), run.complaints()
    run.close()
    return result


def reports(errors):
    """What the trainer itself has said on stderr; mpirun adds its own."""
    return [line for line in errors.splitlines() if line.startswith("train_gpt: ")]


# ---- What runs leave ---------------------------------------------------------------------------------------------

def names(out, pattern=r"step_\d{8}"):
    """Checkpoints in a folder, the oldest first; or what else matches."""
    return sorted(n for n in (os.listdir(out) if os.path.isdir(out) else ()) if re.fullmatch(pattern, n))


def same_folder(a, b):
    left, right = (sorted(os.listdir(folder)) if os.path.isdir(folder) else None for folder in (a, b))
    return left == right and all(filecmp.cmp(os.path.join(a, n), os.path.join(b, n), shallow=False) for n in left)


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


def published(out, whole):
    """The first thing that is wrong with the checkpoints of a run, beside another run's; "" if nothing is."""
    for name in names(out):
        if not same_folder(os.path.join(out, name), os.path.join(whole, name)):
            return f"{name} is not that of the run which was never killed"
    known = names(out, r"step_\d{8}(\.tmp|\.old)?|log\.jsonl|(best|options\.txt)(\.tmp)?")
    strangers = set(names(out, ".*")) - set(known)
    return f"there are {strangers}" if strangers else ""
