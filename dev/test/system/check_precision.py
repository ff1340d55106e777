#!/usr/bin/env python3
"""
check_precision.py: does training in bf16 learn what training in float32 learns, and does it always learn the same?

    dev/test/system/check_precision.py [--build build/emulated] [--gpu] [--steps 200] [TEXT]
    dev/test/system/check_precision.py --seeds 1,2,3 --build build --fp32 ./train_gpt --steps 300 [TEXT]

A small GPT (2 layers, 128 channels) is trained for 200 steps on the same sequences of a text, from the same weights, in
float32 and in 16 bits. TEXT: a file or glob; the project's own sources if none is said. --build: where the trainers
are, in PRECISION/train_gpt: those of the emulated GPU, a minute or two each on one core, or (--gpu: longer sequences,
three seeds) of a real one. Then the first 16-bit run is made once more: losses, norms and the checkpoint have to be the
same bit for bit. (Products by cuBLASLt's first algorithm, MATMUL_TIMING=0: those that are chosen by time may differ
between two processes.)

How far may the curves be apart? Parameters of 16 bits are rounded at random from float32 masters, anew in every step:
the loss that a step finds is that of weights w + d, where d is as large as u |w|, u being half the distance of two
numbers beside 1 (2^-8 in bf16), and knows nothing of the gradient g. To first order the loss is off by g d, which has
mean 0 and, over all weights, the size

    noise = u w |g|       w = 0.02, the size of an initial weight; |g|, the norm of the gradient, is in the log

About as much comes from the rounding of what goes through the layers and from earlier steps; and weights grow. So over
windows of 20 steps, and in the first step, whose weights are the same but for their rounding,

    rms of (loss - loss in float32)       <= 8 noise (its rms over the window)
    mean of it over all steps             <= 2 noise

200 steps with a long warm-up, so that differences do not grow. But a batch may be ten times as sensitive as its
gradient's norm says: one takes a run to 8 noise, where nine others stay below 5. So --gpu takes three seeds together.
Numbers below 2^-14 that become 0 would be 13 noise, weights that are rounded down, not at random, 42.

--seeds: loss curves of the processor's trainer as users run it, 4 layers of 128 channels with a rate of 3e-3, at which
two runs part. Each seed, which draws weights and the order of the text, is trained in float32, in 16 bits, and, as a
control, in float32 from weights rounded to bf16. L is the mean loss of the last 50 steps. Precision may matter less
than the seed does, and so for the validation loss after the last step:

    |mean over seeds of L in 16 bits - L in float32|  <=  the standard deviation of L in float32 between seeds

If 16 bits were nothing but another draw of all that a seed draws, the mean of three differences would have
sqrt(2/3) = 0.8 standard deviations. But a pair has the same weights and text, so that only parted paths remain, and the
roundings' own cost: 30 roundings of u / sqrt(12) on the way to the logits are 1 % of logits of size 3, and half its
square, 5e-4, is what the loss gains.
"""
import argparse, array, glob, math, os, statistics, subprocess, tempfile

from checks import ROOT, check, finish, launch, read_log

NOISE, WINDOW, LAST = 2.0**-8 * 0.02, 20, 50
SMALL = ["--layers", 4, "--hidden", 128, "--heads", 4, "--seq", 128]


def program(args, precision):
    return args.fp32 if args.fp32 and precision == "fp32" else os.path.join(args.build, precision, "train_gpt")


def start(args, folder, precision, options, seed):
    """A trainer that has been started; its log goes to folder."""
    command = [program(args, precision), "--data", args.text, "--steps", args.steps, "--sample-every", 0, "--out",
               folder, *options, *(["--seed", seed] if seed else [])]
    environment = dict(os.environ, MATMUL_TIMING="0")
    if precision == "fp32":
        environment.pop("ATTENTION", None)  # it chooses between families of 16 bits
    if not args.gpu:
        environment.update(OMP_NUM_THREADS="1", CUDA_ON_CPU_THREADS="1")
    return subprocess.Popen([str(word) for word in command], env=environment, stdout=open(folder + ".txt", "w"),
                            stderr=subprocess.STDOUT)


def train(args, runs, at_once):
    """Trains runs {folder: (precision, options, seed)}, some at once; whether all have ended well."""
    names, failed = list(runs), []
    for i in range(0, len(names), at_once):
        started = [(name, start(args, name, *runs[name])) for name in names[i : i + at_once]]
        failed += [open(name + ".txt").read()[-2000:] for name, process in started if process.wait() != 0]
    return check(not failed, f"{len(runs)} runs: {len(failed)} failed {''.join(failed)}")


def rms(values):
    return math.sqrt(sum(v * v for v in values) / len(values))


def compare(narrow, wide):
    """narrow, wide: (loss, norm) of each step in bf16 and in float32, for each seed."""
    pairs = list(zip(narrow, wide))
    steps = len(wide[0])
    d = [[a[0] - b[0] for a, b in zip(*pair)] for pair in pairs]
    noise = [[NOISE * b[1] for b in run] for run in wide]
    of_all = lambda runs, first, end: rms([v for run in runs for v in run[first:end]])
    of_noise = lambda first: of_all(d, first, first + WINDOW) / of_all(noise, first, first + WINDOW)
    at = max(range(0, steps - WINDOW + 1, WINDOW), key=of_noise)
    mean, most = sum(map(sum, d)) / (len(d) * steps), of_all(noise, 0, steps)
    check(all(len(a) == len(b) and all(map(math.isfinite, run)) for (a, b), run in zip(pairs, d)),
          f"{len(d)} x {steps} losses, all finite")
    begin = max(abs(run[0]) / n[0] for run, n in zip(d, noise))
    check(begin <= 8, f"first step off by {begin:.2f} noise, bound 8")
    check(of_noise(at) <= 8, f"rms of a window at most {of_noise(at):.2f} noise (steps {at + 1} to "
          f"{at + WINDOW}: {of_all(d, at, at + WINDOW):.1e}), bound 8")
    check(abs(mean) <= 2 * most, f"mean of all steps {mean:+.1e}, bound {2 * most:.1e}")
    for a, b in pairs:
        check(b[-1][0] < b[0][0] - 1 and a[-1][0] < a[0][0] - 1,
              f"loss {b[0][0]:.3f} to {b[-1][0]:.4f} in float32, {a[-1][0]:.4f} in bf16")


def checkpoint(run):
    """{file: its bytes}"""
    paths = glob.glob(os.path.join(run, "step_*", "**"), recursive=True)
    return {os.path.relpath(path, run): open(path, "rb").read() for path in paths if os.path.isfile(path)}


def rounded_start(args, seed, path):
    """The initial weights of a seed, rounded to bf16."""
    launch(program(args, "fp32"), "--data", args.text, *SMALL, "--seed", seed, "--steps", 0, "--export", path)
    with open(os.path.join(path, "model.safetensors"), "r+b") as file:
        file.seek(8 + int.from_bytes(file.read(8), "little"))
        place, words = file.tell(), array.array("I", file.read())
        file.seek(place)
        file.write(array.array("I", (w + 0x7fff + (w >> 16 & 1) & 0xffff0000 for w in words)).tobytes())


def compare_seeds(args, work):
    """Losses of every seed in bf16, in float32 and, as a control, in float32 from rounded weights."""
    seeds, runs = args.seeds.split(","), {}
    folder = lambda run, seed: os.path.join(work, f"{run}-{seed}")
    options = [*SMALL, "--micro-batch", 16, "--global-batch", 16, "--warmup", args.steps // 20, "--lr", 3e-3,
               "--min-lr", 3e-4, "--eval-every", args.steps, "--eval-sequences", 400]
    for seed in seeds:
        rounded_start(args, seed, folder("weights", seed))
        runs.update({folder("fp32", seed): ("fp32", options, seed), folder("bf16", seed): ("bf16", options, seed),
                     folder("control", seed): ("fp32", [*options, "--init", folder("weights", seed)], seed)})
    if not train(args, runs, 2):
        return
    logs = {run: [read_log(folder(run, seed)) for seed in seeds] for run in ("fp32", "bf16", "control")}
    first = max(abs(a[0]["loss"] - b[0]["loss"]) for a, b in zip(logs["bf16"], logs["fp32"]))
    noise = min(NOISE * b[0]["grad_norm"] for b in logs["fp32"])
    check(first <= 8 * noise, f"first steps {first:.1e} apart, bound {8 * noise:.1e}")
    for name, number in (f"last {LAST} steps", lambda log: sum(row["loss"] for row in log[-LAST:]) / LAST), \
            ("validation", lambda log: log[-1]["val_loss"]):
        floats, narrow, control = ([number(log) for log in logs[run]] for run in ("fp32", "bf16", "control"))
        spread, apart, usual = statistics.stdev(floats), *(
            [a - b for a, b in zip(run, floats)] for run in (narrow, control))
        words = lambda numbers: " ".join(f"{x:+.4f}" for x in numbers)
        print(f"      {name}: float32 {words(floats)}; bf16 {words(apart)}; control {words(usual)}")
        check(abs(statistics.mean(apart)) <= spread, f"{name}: {statistics.mean(apart):+.4f} from float32, bound "
              f"{spread:.4f}; control {statistics.mean(usual):+.4f}")


def compare_steps(args, work):
    """The first steps of a run beside those in float32, and of a run beside itself."""
    seeds, T, B = ((None, 1, 2), 256, 8) if args.gpu else ((None,), 64, 4)
    options = ["--layers", 2, "--hidden", 128, "--heads", 2, "--seq", T, "--micro-batch", B, "--global-batch", B,
               "--warmup", 40, "--lr", 5e-4, "--min-lr", 5e-5, "--eval-every", 0]
    folder = lambda precision, seed: os.path.join(work, f"{precision}-{seed or 'default'}")
    runs = {folder(precision, seed): (precision, options, seed) for seed in seeds for precision in ("fp32", "bf16")}
    again = os.path.join(work, "again")
    if not train(args, {**runs, again: ("bf16", options, None)}, 1 if args.gpu else 2):
        return
    curves = {name: [(row["loss"], row["grad_norm"]) for row in read_log(name)] for name in (*runs, again)}
    compare(*([curves[folder(precision, seed)] for seed in seeds] for precision in ("bf16", "fp32")))
    once = folder("bf16", None)
    check(curves[once] == curves[again], f"two runs, {len(curves[again])} losses and norms: the same bits")
    a, b = checkpoint(once), checkpoint(again)
    different = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    check(a and not different, f"{len(a)} files of the checkpoint: {' '.join(different) or 'the same'}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=f"{ROOT}/build/emulated")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--seeds", help="loss curves of these")
    parser.add_argument("--fp32", help="the trainer in float32, if it is not in --build")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("text", nargs="?", default=f"{ROOT}/*.h")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="check_precision") as work:
        (compare_seeds if args.seeds else compare_steps)(args, work)
    finish()


main()
