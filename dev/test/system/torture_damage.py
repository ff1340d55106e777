"""
torture_damage.py: checkpoints that torture.py damages, and the runs that resume from them. Standard library only.
"""
import os, random, re, shutil

from torture_runs import finished, log, ok, same_folder

FILES = ("model.safetensors", "optimizer.safetensors", "config.json", "trainer.json")


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


class Damage:
    """What is done to one checkpoint. Each has a name, and the word that the reason has to have beside the file's."""

    def __init__(self, rng, folder, others):
        self.rng, self.folder = rng, folder
        self.other_step, self.other_run = others  # another step's folder, of this run; the same step's, of another
        self.file = rng.choice(FILES)
        before = self.contents()
        self.what = rng.choice([self.change] * 6 + [self.cut] * 2 + [self.take] * 3 + [self.gone, self.of_step,
                                                                                      self.of_run, self.renamed])
        self.file = self.what() or self.file
        self.name = f"{os.path.basename(folder)}: {self.what.__name__} {self.file}"
        self.harmless = self.contents() == before

    def contents(self):
        paths = {name: os.path.join(self.folder, name) for name in os.listdir(self.folder)}
        return {name: read(path) for name, path in paths.items() if os.path.isfile(path)}

    def path(self):
        return os.path.join(self.folder, self.file)

    def change(self):
        """Bits; a page of zeros, as file systems leave it after a crash; another page; all bytes."""
        data = bytearray(read(self.path()))
        kind, at, page = self.rng.randrange(5), *(self.rng.randrange(len(data)) // 4096 * 4096 for _ in range(2))
        size = len(data[at:at + 4096])
        if kind < 2:
            for _ in range(self.rng.choice([1, 1, 2, 7])):
                data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        else:
            data[at:at + size] = (bytes(size), data[page:page + size].ljust(size, b"\0"),
                                  self.rng.randbytes(size))[kind - 2]
        write(self.path(), data)

    def cut(self):
        """Shorter, empty, or longer."""
        size = os.path.getsize(self.path())
        os.truncate(self.path(), self.rng.choice([size - 1, size // 2, self.rng.randrange(size), 0, size + 1,
                                                  size + 4096]))

    def take(self):
        """Something that is no file has its place."""
        os.unlink(self.path())
        self.rng.choice([os.mkdir, os.mkfifo, lambda path: os.symlink("nowhere", path)])(self.path())

    def gone(self):
        os.unlink(self.path())

    def of_step(self):
        shutil.copyfile(os.path.join(self.other_step, self.file), self.path())

    def of_run(self):
        shutil.copyfile(os.path.join(self.other_run, self.file), self.path())

    def renamed(self):
        """The whole folder, sound, is another step's."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.other_step, self.folder)
        return "trainer.json"


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
        rng = random.Random(seed * 1000003 + number)
        out = f"broken{number}"
        shutil.copytree(self.base[1], out, symlinks=True)
        # as a run that was killed leaves one
        shutil.move(os.path.join(out, "step_00000004"), os.path.join(out, "step_00000077.tmp"))
        steps = rng.choice([[3], [3], [3], [3], [3, 2], [3, 2], [3, 2, 1]])
        damages = []
        for step in steps:
            others = [os.path.join(self.base[b], f"step_{s:08d}") for b, s in ((1, step - 1 or 2), (2, step))]
            damages.append(Damage(rng, os.path.join(out, f"step_{step:08d}"), others))
        status, said, errors = finished(self.ranks, f"{self.options} --seed 1 --steps 4 --save-every 1 --resume", out)
        refused = [int(s) for s in re.findall(r"^resume +not from step (\d+): ", said, re.MULTILINE)]
        wrong = self.judge(out, steps, damages, status, said, refused, errors)
        shutil.rmtree(out, ignore_errors=True)
        return f"case {number}: {', '.join(d.name for d in damages)}", wrong, len(refused), bool(refused)

    def judge(self, out, steps, damages, status, said, refused, errors):
        """What is wrong, or ""."""
        untouched = {s for s, d in zip(steps, damages)
                     if not d.harmless}  # damaged, and older than the one that was taken
        for step, damage in zip(steps, damages):
            if damage.harmless:
                steps = steps[:steps.index(step)]  # this one is taken
                break
            reason = re.search(rf"^resume +not from step {step}: (.*)$", said, re.MULTILINE)
            if not reason or f"{damage.folder}/" not in reason[1]:
                return f"step {step} was not refused by name: {said[-300:]} {errors[-300:]}"
            if damage.what.__name__ not in ("renamed", "of_step", "of_run") and damage.file not in reason[1]:
                return f"{damage.file} was not named: {reason[1]}"
        if refused != steps:
            return f"refused were {refused} and not {steps}"
        if len(steps) == 3:
            good = status == 1 and "none of the 3 checkpoints" in errors and len(errors.splitlines()) <= 20
            return "" if good else f"none was left, but it ended with status {status}: {errors[-300:]}"
        if status != 0:
            return f"status {status}: {errors[-300:]}"
        if os.path.exists(os.path.join(out, "step_00000077.tmp")):
            return "what a killed run has left is still there"
        for step in {1, 2, 3, 4} - (untouched - set(steps)):
            name = f"step_{step:08d}"
            if not same_folder(os.path.join(self.base[1], name), os.path.join(out, name)):
                return f"{name} is not that of the other run"
        a, b = log(self.base[1]), log(out)
        for x in a + b:
            x.pop("comm_bytes")
        return "" if a == b else "another log.jsonl"
