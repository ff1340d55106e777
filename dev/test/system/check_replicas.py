#!/usr/bin/env python3
"""
check_replicas.py: the trainer's data parallelism, in every mode, against the numbers of make_async_dp.py.

    python3 dev/test/system/check_replicas.py [--short] [--mesh] [--train PATH] [WORD ...]

Runs train_gpt under scripts/mpirun.sh once for every case of reference/replicas.json whose name has all the words, and
compares losses, norms, validation losses and weights. --short: a few of them. --mesh: instead on t = 2 and on p = 2,
with twice as many ranks, up to 8: the cases listed below or, if there are words, those that have them. The current
folder is the project's, and train_gpt is built already. No torch.

Bounds. The numbers are exact (float64), so what is measured is rounding: ours, of float32, is that of the same rules
in float32 in another program, which make_async_dp.py has measured for every case ("float32"); sums in another order
make it a few times larger at most. So the bound is ten times that, and not below ten times the usual: 2e-7 of losses,
1e-6 of norms (small differences grow from step to step), 2e-5 of weights, relative to the root mean square of what
training changed in their tensor. Thirty wrong rules (a sign, a rate, a moment's step number, one norm for all tensors,
...) were tried in make_async_dp.py: each is off by more than 200 bounds in one case at least.
"""
import argparse, json, math, os, shutil, subprocess, tempfile

from checks import check, finish, launch, read_log, read_safetensors

REFERENCE = "dev/test/reference"
FLOORS = {"losses": 2e-7, "norms": 1e-6, "val": 2e-7, "weights": 2e-5}


def read_floats(path):
    """{name: sequence of float}"""
    tensors = read_safetensors(path)
    assert all(dtype == "F32" for dtype, _, _ in tensors.values()), f"{path}: not float32"
    return {name: data.cast("f") for name, (_, _, data) in tensors.items()}


def relative(ours, theirs):
    """Largest relative error; what has no number is an infinite error."""
    assert len(ours) == len(theirs), f"{len(ours)} numbers, {len(theirs)} expected"
    return max(math.inf if x is None or not math.isfinite(x) else abs(x - y) / abs(y) for x, y in zip(ours, theirs))


class Checker:
    def __init__(self, train, work):
        self.train, self.work = train, work
        self.reference = json.load(open(f"{REFERENCE}/replicas.json"))
        self.models = self.reference["models"]
        self.init = {name: read_floats(f"{REFERENCE}/{model['init']}") for name, model in self.models.items()}

    def run(self, case, mesh, ranks):
        """-> (lines of the log, folder)"""
        out = f"{self.work}/out"
        shutil.rmtree(out, ignore_errors=True)
        done = launch(self.train, "--init", f"{REFERENCE}/{self.models[case['model']]['init']}", "--data",
                      f"{REFERENCE}/{self.reference['tokens']}", "--out", out, *case["arguments"], *mesh, ranks=ranks,
                      OMPI_MCA_btl_vader_backing_directory=self.work)
        assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr[-600:]}"
        return read_log(out), out

    def weights(self, case, out, step):
        """[(error relative to its tensor's change, name, index)] of the probes, and the norm of each tensor's change"""
        model, init = self.models[case["model"]], self.init[case["model"]]
        ours = read_floats(f"{out}/step_{int(step):08d}/model.safetensors")
        assert set(ours) == set(init), "other tensors"
        size = {name: moved / math.sqrt(n) for (name, n), moved in zip(model["tensors"], case["moved"])}
        errors = [(abs(ours[name][i] - y) / size[name], name, i)
                  for (name, i), y in zip(model["probes"], case["weights"][step])]
        moved = [math.sqrt(sum((a - b) ** 2 for a, b in zip(ours[name], init[name]))) for name, _ in model["tensors"]]
        return errors, moved

    def compare(self, case, log, out):
        """-> {what: (error, bound)}, and where weights are beyond theirs"""
        remarks = []
        bound = {key: 10 * max(floor, own) for (key, floor), own in zip(FLOORS.items(), case["float32"])}
        assert [x["step"] for x in log] == list(range(1, len(case["losses"]) + 1)), "other steps"
        val = {str(x["step"]): x["val_loss"] for x in log if x["val_loss"] is not None}
        assert list(val) == list(case["val"]), f"validated after {list(val)}, not {list(case['val'])}"
        saved = sorted(int(name[5:]) for name in os.listdir(out) if name.startswith("step_"))
        assert saved == [int(step) for step in case["weights"]], f"saved {saved}, not {list(case['weights'])}"
        error = {"losses": relative([x["loss"] for x in log], case["losses"]),
                 "norms": relative([x["grad_norm"] for x in log], case["norms"]),
                 "val": relative(list(val.values()), list(case["val"].values())), "weights": 0}
        for step in case["weights"]:
            errors, moved = self.weights(case, out, step)
            worst, name, i = max(errors)
            error["weights"] = max(error["weights"], worst)
            if worst > bound["weights"]:
                remarks.append(f"step {step}, {name}[{i}], and {sum(e[0] > bound['weights'] for e in errors) - 1} more")
        error["moved"], bound["moved"] = relative(moved, case["moved"]), bound["weights"]
        return {key: (error[key], bound[key]) for key in error}, remarks

    def check(self, case, mesh=()):
        ranks = case["d"] * (2 if mesh else 1)
        try:
            found, remarks = self.compare(case, *self.run(case, mesh, ranks))
            ok = all(error <= bound for error, bound in found.values())
            text = ", ".join([f"{key} {off:.1e} (bound {bound:.0e})" for key, (off, bound) in found.items()] + remarks)
        except (AssertionError, OSError, KeyError, subprocess.TimeoutExpired) as error:
            ok, text = False, f"{type(error).__name__}: {error}"
        check(ok, f"{case['name']}, {case['model']}, {ranks} rank{'s' * (ranks > 1)} {' '.join(mesh)}: {text}")


SHORT = ("sync 2 sgd clip", "dc-s3gd 2", "dc-s3gd 2 sgd clip", "dc-s3gd 4 sites 2 clip", "diloco 2", "diloco 4 clip",
         "diloco 4 sites 2")
# With --mesh and no words: one of each kind, small enough for 8 ranks.
MESH = ("sync 2 clip", "sync 4 llama", "dc-s3gd 2", "dc-s3gd 4 clip", "dc-s3gd 2 llama clip", "dc-s3gd 2 sgd clip",
        "dc-s3gd 4 sites 2 clip", "diloco 2", "diloco 4 sites 2")


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip(), formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in "--mesh", "--short":
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--train", default="./train_gpt", metavar="PATH")
    parser.add_argument("words", nargs="*", metavar="WORD")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="replicas.") as work:
        checker = Checker(options.train, work)
        for case in checker.reference["cases"]:
            chosen = all(word in case["name"] + " " + case["model"] for word in options.words)
            if options.short or (options.mesh and not options.words):
                chosen = case["name"] in (SHORT if options.short else MESH)
            for mesh in ((("--tp", "2"), ("--pp", "2")) if options.mesh else ((),)) if chosen else ():
                checker.check(case, mesh)
    finish()


main()
