#!/usr/bin/env python3
"""
check_precision.py: does training in 16 bits learn what training in float32 learns, and does it always learn the same?

    dev/test/system/check_precision.py [--build build/emulated] [--gpu] [--types bf16] [--steps 200] [TEXT]
    dev/test/system/check_precision.py --seeds 1,2,3 --build build --fp32 ./train_gpt --types bf16 --steps 300 [TEXT]

A small GPT (2 layers, 128 channels) is trained for 200 steps on the same sequences of a text, from the same weights, in
float32 and in 16 bits. TEXT: a file or glob; the project's own sources if none is said. --build: where the trainers
are, in PRECISION/train_gpt: those of the emulated GPU, a minute or two each on one core, or (--gpu: longer sequences,
three seeds) of a real one. Then the first 16-bit run is made once more: losses, norms and the checkpoint have to be the
same bit for bit. (Products by cuBLASLt's first algorithm, MATMUL_TIMING=0: those that are chosen by time may differ
between two processes.)

How far may the curves be apart? Parameters of 16 bits are rounded at random from float32 masters, anew in every step:
the loss that a step finds is that of weights w + d, where d is as large as u |w|, u being half the distance of two
numbers beside 1 (2^-8 in bf16), and knows nothing of the gradient g. To first order the loss is off by g
d, which has mean 0 and, over all weights, the size

    noise = u w |g|       w = 0.02, the size of an initial weight; |g|, the norm of the gradient, is in the log

About as much comes from the rounding of what goes through the layers, on the way in and back, and from what earlier
steps have left in the weights; and weights grow. So over windows of 20 steps

    rms of (loss - loss in float32)       <= 8 noise (its rms over the window)
    mean of it over all steps             <= 2 noise

and in the first step, where the weights are the same but for their rounding, the difference is <= 8 noise as well.
A run of 200 steps is a short one with a warm-up, so that differences do not grow (with a rate of 1e-3 after 10 steps of
warm-up the gradient's norm has a peak of 87 in step 28, and any two runs part there). But a batch may be ten times as
sensitive as its gradient's norm says, in float32 from rounded weights, too: one took a run to 8.6 noise on an H100, to
7.9 on a processor, where nine others stayed below 5. So --gpu takes three seeds together, that run's and two more.

What it found, in the float16 of before: numbers below 2^-14 were 0 on the emulator in a trainer (rms 13 noise, and 4
without that). What it would find: weights that are rounded down, not at random (42 noise; the mean of all steps is 10
times its bound).

--seeds: loss curves of the processor's trainer as users run it, 4 layers of 128 channels with a rate of 3e-3, at which
two runs part. Each seed, which draws weights and the order of the text, is trained in float32, in 16 bits, and, as a
control, in float32 from weights rounded to bf16. L is the mean loss of the last 50 steps. Precision may matter less
than the seed does:

    |mean over seeds of L in 16 bits - L in float32|  <=  the standard deviation of L in float32 between seeds

and so for the validation loss after the last step. Why that much: if 16 bits were nothing but another draw of all that
a seed draws, a difference would have sqrt(2) standard deviations and the mean of three of them sqrt(2/3) = 0.8. But a
pair has the same weights and the same text, so that only parted paths remain (the control's differences), and the
roundings' own cost: some 30 roundings on the way to the logits, each of u / sqrt(12) relative or, of weights, twice
that, make an error of 1 % of logits of size 3, and half its square, 5e-4, is what the loss gains.
Exit status 0 only if all of it holds.
"""
import argparse, array, glob, json, math, os, shutil, statistics, subprocess, sys, tempfile

sys.dont_write_bytecode = True
from checks import check, finish

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
UNIT = {"bf16": 2.0**-8}
WEIGHT, WINDOW = 0.02, 20


def program(args, precision):
    return args.fp32 if args.fp32 and precision == "fp32" else os.path.join(args.build, precision, "train_gpt")


def start(args, precision, folder, *more, seed=None):
    """A trainer that has been started; its log goes to folder. more: its options with --seeds."""
    T, B = (256, 8) if args.gpu else (64, 4)
    command = [program(args, precision), "--data", args.text, "--steps", args.steps, "--sample-every", 0, "--out",
               folder]
    command += more or ["--layers", 2, "--hidden", 128, "--heads", 2, "--seq", T, "--micro-batch", B, "--global-batch",
                        B, "--warmup", 40, "--lr", 5e-4, "--min-lr", 5e-5, "--eval-every", 0]
    command += ["--seed", seed] if seed else []
    environment = dict(os.environ, MATMUL_TIMING="0")
    if precision == "fp32":
        environment.pop("ATTENTION", None)  # it chooses between families of 16 bits
    if not args.gpu:
        environment.update(OMP_NUM_THREADS="1", CUDA_ON_CPU_THREADS="1")
    out = open(folder + ".txt", "w")
    return subprocess.Popen([str(word) for word in command], env=environment, stdout=out, stderr=subprocess.STDOUT)


def curve(folder, process):
    """Losses and norms of a run that has ended; None if it failed."""
    if process.wait() != 0:
        print(open(folder + ".txt").read()[-2000:])
        return None
    rows = [json.loads(line) for line in open(os.path.join(folder, "log.jsonl"))]
    return [(row["loss"], row["grad_norm"]) for row in rows]


def rms(values):
    return math.sqrt(sum(v * v for v in values) / len(values))


def compare(precision, narrow, wide):
    """narrow, wide: (loss, norm) of each step in 16 bits and in float32, for each seed."""
    pairs = list(zip(narrow, wide))
    steps = len(wide[0])
    d = [[a[0] - b[0] for a, b in zip(*pair)] for pair in pairs]
    noise = [[UNIT[precision] * WEIGHT * b[1] for b in run] for run in wide]
    of_all = lambda runs, first, end: rms([v for run in runs for v in run[first:end]])
    of_noise = lambda first: of_all(d, first, first + WINDOW) / of_all(noise, first, first + WINDOW)
    at = max(range(0, steps - WINDOW + 1, WINDOW), key=of_noise)
    mean, most = sum(map(sum, d)) / (len(d) * steps), of_all(noise, 0, steps)
    finite = all(len(a) == len(b) and all(map(math.isfinite, run)) for (a, b), run in zip(pairs, d))
    check(finite, f"{precision}: {len(d)} x {steps} losses, all finite")
    begin = max(abs(run[0]) / n[0] for run, n in zip(d, noise))
    check(begin <= 8, f"{precision}: first step off by {begin:.2f} noise, bound 8")
    check(of_noise(at) <= 8, f"{precision}: rms of a window at most {of_noise(at):.2f} noise (steps {at + 1} to "
          f"{at + WINDOW}: {of_all(d, at, at + WINDOW):.1e}), bound 8")
    check(abs(mean) <= 2 * most, f"{precision}: mean of all steps {mean:+.1e}, bound {2 * most:.1e}")
    for a, b in pairs:
        check(b[-1][0] < b[0][0] - 1 and a[-1][0] < a[0][0] - 1,
              f"{precision}: loss {b[0][0]:.3f} to {b[-1][0]:.4f} in float32, {a[-1][0]:.4f} in {precision}")


def checkpoint(run):
    """{file: its bytes}"""
    paths = glob.glob(os.path.join(run, "step_*", "**"), recursive=True)
    return {os.path.relpath(path, run): open(path, "rb").read() for path in paths if os.path.isfile(path)}


def repeats(precision, once, again, a, b):
    check(once == again, f"{precision}: two runs, {len(once)} losses and norms: the same bits")
    different = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    check(a and not different, f"{precision}: {len(a)} files of the checkpoint: {' '.join(different) or 'the same'}")


SMALL = ["--layers", 4, "--hidden", 128, "--heads", 4, "--seq", 128]
LAST = 50


def rounded_start(args, seed, path):
    """The initial weights of a seed, rounded to bf16."""
    command = [program(args, "fp32"), "--data", args.text, *SMALL, "--seed", seed, "--steps", 0, "--export", path]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(path, "model.safetensors"), "r+b") as file:
        file.seek(8 + int.from_bytes(file.read(8), "little"))
        place, words = file.tell(), array.array("I", file.read())
        file.seek(place)
        file.write(array.array("I", (w + 0x7fff + (w >> 16 & 1) & 0xffff0000 for w in words)).tobytes())


def seed_curves(args, seed, types, work):
    """The curves of a seed: {name: [(loss, norm) of each step], validation loss}, two runs at a time."""
    options = [*SMALL, "--micro-batch", 16, "--global-batch", 16, "--warmup", args.steps // 20, "--lr", 3e-3,
               "--min-lr", 3e-4, "--eval-every", args.steps, "--eval-sequences", 400, "--seed", seed]
    weights = os.path.join(work, f"weights{seed}")
    rounded_start(args, seed, weights)
    runs = {"fp32": [], "control": ["--init", weights], **{t: [] for t in types}}
    folders = {run: os.path.join(work, f"{run}{seed}") for run in runs}
    curves, names = {}, list(runs)
    for i in range(0, len(names), 2):
        started = [(r, start(args, "fp32" if r == "control" else r, folders[r], *options, *runs[r]))
                   for r in names[i : i + 2]]
        for r, process in started:
            losses = curve(folders[r], process)
            validation = [json.loads(line)["val_loss"] for line in open(os.path.join(folders[r], "log.jsonl"))]
            curves[r] = losses, validation[-1]
    return curves


def compare_seeds(precision, curves):
    """curves: of each seed, as by seed_curves."""
    wide = [c["fp32"] for c in curves]
    of_rows = lambda run: sum(loss for loss, _ in run[0][-LAST:]) / LAST
    first = [abs(c[precision][0][0][0] - w[0][0][0]) for c, w in zip(curves, wide)]
    noise = min(UNIT[precision] * WEIGHT * w[0][0][1] for w in wide)
    check(max(first) <= 8 * noise, f"{precision}: first steps {max(first):.1e} apart, bound {8 * noise:.1e}")
    for name, number in (f"last {LAST} steps", of_rows), ("validation", lambda run: run[1]):
        floats, spread = [number(w) for w in wide], statistics.stdev(number(w) for w in wide)
        control = [number(c["control"]) - f for c, f in zip(curves, floats)]
        apart = [number(c[precision]) - f for c, f in zip(curves, floats)]
        mean = sum(apart) / len(apart)
        print(f"      {name}: float32 {' '.join(f'{f:.4f}' for f in floats)}; {precision} "
              f"{' '.join(f'{x:+.4f}' for x in apart)}; control {' '.join(f'{x:+.4f}' for x in control)}")
        check(abs(mean) <= spread, f"{precision}, {name}: {mean:+.4f} from float32, bound {spread:.4f}; control "
              f"{sum(control) / len(control):+.4f}")


def compare_curves(args, types):
    for precision in ["fp32"] + types:
        said = subprocess.run([program(args, precision), "--version"], capture_output=True, text=True).stdout
        check(f", {precision}" in said, f"{program(args, precision)}: {said.strip()}")
    work = tempfile.mkdtemp(prefix="check_precision")
    try:
        curves = [seed_curves(args, seed, types, work) for seed in args.seeds.split(",")]
    finally:
        shutil.rmtree(work)
    for t in types:
        compare_seeds(t, curves)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=os.path.join(root, "build/emulated"))
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--types", default="bf16")
    parser.add_argument("--seeds", help="loss curves of these")
    parser.add_argument("--fp32", help="the trainer in float32, if it is not in --build")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("text", nargs="?", default=os.path.join(root, "*.h"))
    args = parser.parse_args()
    types = args.types.split(",")
    if args.steps < WINDOW or any(t not in UNIT for t in types):
        parser.error(f"--steps has to be {WINDOW} or more, --types some of {' '.join(UNIT)}")
    if args.seeds:
        compare_curves(args, types)
        finish()
    work = tempfile.mkdtemp(prefix="check_precision")
    seeds, at_once = ((None, 1, 2), 1) if args.gpu else ((None,), 2)
    name = lambda precision, seed: f"{precision}-{seed or 'default'}"
    once, again = name(types[0], seeds[0]), types[0] + "-again"
    runs = [(name(t, s), t, s) for s in seeds for t in ["fp32"] + types] + [(again, types[0], seeds[0])]
    folder = lambda run: os.path.join(work, run)
    curves = {}
    try:
        for i in range(0, len(runs), at_once):
            started = [(r, start(args, t, folder(r), seed=s)) for r, t, s in runs[i : i + at_once]]
            for r, process in started:
                curves[r] = curve(folder(r), process)
                check(curves[r], f"{r}: trained")
        if all(curves.values()):
            for t in types:
                compare(t, *([curves[name(of, s)] for s in seeds] for of in (t, "fp32")))
            repeats(types[0], curves[once], curves[again], checkpoint(folder(once)), checkpoint(folder(again)))
    finally:
        shutil.rmtree(work)
    finish()


sys.exit(main())
