#!/usr/bin/env python3
"""planner/calibrate.py --out FILE [--check]: the rates of this machine's cores, for ./plan --cluster FILE.

    planner/calibrate.py --out machine.txt             eight short runs of ./train_gpt, two or three minutes
    planner/calibrate.py --out machine.txt --check     then twelve other meshes, predicted and measured

A core needs six numbers: seconds of a FLOP in products and in attention, of a byte in other kernels, of starting a
kernel, of a byte and of a step of messages between ranks. A step is nearly linear in them: what it takes with a number
doubled, less what it took, is what the number adds. So the numbers are those with which ./plan comes nearest to the
measured steps, by least squares of relative errors, none below zero. Runs have one rank, as many ranks as two cores
have, and more ranks than cores, which share them; all of them in turn in each of --rounds, as the machine's speed
changes, and medians count. The trainer has to be one of make PRECISION=fp32.
"""
import argparse, json, os, shutil, statistics, subprocess, sys, tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
MODELS = {"gpt2 1M": "--arch gpt2 --layers 6 --hidden 128 --heads 4 --seq 128",
          "gpt2 6M": "--arch gpt2 --layers 8 --hidden 256 --heads 8 --seq 128",
          "gpt2 25M": "--arch gpt2 --layers 8 --hidden 512 --heads 8 --seq 128",
          "llama 3M": "--arch llama --layers 4 --hidden 256 --heads 8 --kv-heads 4 --seq 256",
          "llama 26M": "--arch llama --layers 8 --hidden 512 --heads 8 --seq 128"}
RUNS = [  # ranks, model, options of ./plan and ./train_gpt: small and large, every kind of parallelism
    (1, "gpt2 25M", "--micro-batch 2 --global-batch 4"), (1, "llama 26M", "--micro-batch 2 --global-batch 4"),
    (2, "gpt2 25M", "--tp 2 --micro-batch 2 --global-batch 4"),
    (2, "llama 3M", "--dp 2 --micro-batch 2 --global-batch 8"),
    (2, "gpt2 1M", "--pp 2 --schedule zb-h1 --micro-batch 4 --global-batch 16"),
    (4, "gpt2 6M", "--tp 4 --micro-batch 4 --global-batch 8"),
    (4, "gpt2 6M", "--dp 4 --micro-batch 2 --global-batch 8"),
    (8, "llama 26M", "--tp 4 --dp 2 --micro-batch 1 --global-batch 4")]
CHECKS = [
    (1, "gpt2 6M", "--micro-batch 4 --global-batch 8"), (2, "gpt2 1M", "--dp 2 --micro-batch 4 --global-batch 16"),
    (2, "llama 26M", "--tp 2 --micro-batch 2 --global-batch 4"),
    (2, "gpt2 6M", "--pp 2 --schedule 1f1b --micro-batch 2 --global-batch 16"),
    (4, "gpt2 6M", "--tp 2 --dp 2 --micro-batch 2 --global-batch 8"),
    (4, "gpt2 25M", "--pp 4 --schedule gpipe --micro-batch 1 --global-batch 8"),
    (4, "llama 3M", "--pp 2 --dp 2 --schedule interleaved --vpp 2 --micro-batch 2 --global-batch 16"),
    (4, "llama 3M", "--tp 2 --pp 2 --schedule zb-h1 --micro-batch 2 --global-batch 16"),
    (4, "gpt2 6M", "--pp 4 --schedule zb-v --micro-batch 2 --global-batch 16"),
    (8, "gpt2 1M", "--dp 8 --zero 1 --micro-batch 2 --global-batch 16"),
    (8, "llama 26M", "--tp 2 --pp 2 --dp 2 --schedule 1f1b --micro-batch 1 --global-batch 8"),
    (8, "gpt2 6M", "--tp 4 --pp 2 --schedule interleaved --vpp 2 --sequence-parallel --micro-batch 2 --global-batch 8")]
# seconds: of a FLOP, of an attention's FLOP, of a byte, of a launch, of a byte between ranks, of a step between them
FIRST = [2e-11, 4e-11, 2e-10, 1e-5, 5e-10, 1e-5]


def machine(x):
    """The text of a cluster of these numbers."""
    flop, attention, byte, launch, link_byte, step = (max(v, 2e-15 if i in (2, 4) else 1e-18) for i, v in enumerate(x))
    lines = [("cores", os.cpu_count()), ("peak", 1e-12 / flop, "TFLOP/s"), ("gemm_fraction", 1), ("sustained", 1),
             ("memory", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, "GB"),
             ("hbm", 1e-9 / byte, "GB/s"), ("hbm_fraction", 1), ("launch", launch, "s"),
             ("nvlink", 1e-9 / link_byte, "GB/s"), ("nvlink_fraction", 1), ("nvlink_step", step, "s"),
             ("overlap_cost", 1)]
    lines += [(f"attention_{size}_{way}", min(1, max(0.001, flop / attention))) for size in (64, 128)
              for way in ("forward", "backward")]
    return "".join(f"{name} {value:.6g} {' '.join(unit)}".rstrip() + "\n" for name, value, *unit in lines)


def predicted(run, x, folder):
    """Seconds of a step by ./plan."""
    ranks, model, options = run
    path = os.path.join(folder, "machine")
    with open(path, "w") as f:
        f.write(machine(x))
    fixed = {"--tp": "1", "--pp": "1", "--dp": "1", "--zero": "0", "--schedule": "1f1b", "--sequence-parallel": "no"}
    words = options.replace("--sequence-parallel", "--sequence-parallel yes").split()
    fixed.update(zip(words[::2], words[1::2]))
    command = [os.path.join(ROOT, "plan"), "--json", "--cluster", path, "--gpus", str(ranks), "--vocab", "256",
               "--precision", "fp32", "--recompute", "none", "--any-memory", *MODELS[model].split(),
               *(word for pair in fixed.items() for word in pair)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)[0]["seconds"]


def measured(run, steps, folder):
    """Seconds of each step but the first two, by ./train_gpt."""
    ranks, model, options = run
    out = os.path.join(folder, "run")
    shutil.rmtree(out, ignore_errors=True)
    command = [os.path.join(ROOT, "scripts", "mpirun.sh"), "-np", str(ranks)] if ranks > 1 else []
    command += [os.path.join(ROOT, "train_gpt"), "--data", os.path.join(ROOT, "train_gpt.cu"), *MODELS[model].split(),
                *options.split(), "--steps", str(steps + 2), "--eval-every", "0", "--sample-every", "0", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    with open(os.path.join(out, "log.jsonl")) as log:
        return [json.loads(line)["step_ms"] / 1e3 for line in log][2:]


def medians(runs, rounds, steps, folder):
    seconds = [[] for _ in runs]
    for i in range(rounds * len(runs)):
        ranks, model, options = runs[i % len(runs)]
        print(f"{i + 1} of {rounds * len(runs)}: {model} on {ranks}: {options}", file=sys.stderr)
        seconds[i % len(runs)] += measured(runs[i % len(runs)], steps, folder)
    return [statistics.median(times) for times in seconds]


def solve(A, b):
    """x for A x = b, by Gaussian elimination."""
    rows = [[*row, y] for row, y in zip(A, b)]
    for i in range(len(rows)):
        rows[i:] = sorted(rows[i:], key=lambda row: -abs(row[i]))
        rows[i] = [v / rows[i][i] for v in rows[i]]
        for k in (k for k in range(len(rows)) if k != i):
            rows[k] = [v - rows[k][i] * w for v, w in zip(rows[k], rows[i])]
    return [row[-1] for row in rows]


def least_squares(A, b):
    """x >= 0 with the least squares of A x - b: a number that would be below zero is zero, the worst one first."""
    used = list(range(len(A[0])))
    while used:
        normal = [[sum(row[i] * row[k] for row in A) * (1 + 1e-9 * (i == k)) for k in used] for i in used]
        x = solve(normal, [sum(row[i] * y for row, y in zip(A, b)) for i in used])
        if min(x) >= 0:
            return [x[used.index(i)] if i in used else 0 for i in range(len(A[0]))]
        used.pop(x.index(min(x)))
    return [0] * len(A[0])


def fit(runs, seconds, folder, x=FIRST):
    """The numbers of a core. They are scaled, in turns, as a step is linear in them only nearby; to a tenth at most."""
    for _ in range(4):
        now = [predicted(run, x, folder) for run in runs]
        adds = [[predicted(run, [2 * v if k == i else v for k, v in enumerate(x)], folder) - s for i in range(len(x))]
                for run, s in zip(runs, now)]
        scale = least_squares([[v / t for v in row] for row, t in zip(adds, seconds)],
                              [1 - (s - sum(row)) / t for s, row, t in zip(now, adds, seconds)])
        x = [v * max(0.1, s) for v, s in zip(x, scale)]
        x[1] = max(x[:2])  # attention is no faster than a product
    return x


def main():
    parser = argparse.ArgumentParser(prog="calibrate.py", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", metavar="FILE", required=True)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="of a run [6]")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        x = fit(RUNS, medians(RUNS, o.rounds, o.steps, folder), folder)
        with open(o.out + ".part", "w") as f:
            f.write(machine(x))
        os.replace(o.out + ".part", o.out)
        if not o.check:
            return
        errors = []
        for run, seconds in zip(CHECKS, medians(CHECKS, o.rounds, o.steps, folder)):
            errors.append(100 * (predicted(run, x, folder) / seconds - 1))
            print(f"| {run[0]} | {run[1]} | {run[2]} | {10 * (errors[-1] + 100) * seconds:.1f} | {1e3 * seconds:.1f} | "
                  f"{errors[-1]:+.1f} |")
        print(f"mean error {statistics.mean(map(abs, errors)):.1f} %, largest {max(map(abs, errors)):.1f} %")


if __name__ == "__main__":
    main()
