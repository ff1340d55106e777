#!/usr/bin/env python3
"""The planner's step times beside measured ones, on this machine.

Measures the machine (build/calibrate) and corrects that by traces of other runs, three for each number of ranks
(./plan --calibrate; the median counts), then lets the trainer run twelve meshes of one to eight ranks and the planner
predict their steps (./plan), and then all meshes of one model on four ranks, to see whether the one that the planner
would choose is the fastest, or nearly. Meshes were chosen before the first comparison: every kind of parallelism alone
and mixed, all five schedules, both architectures, one to thirty million parameters.

    dev/bench/planner.py --data TEXT [--cluster FILE] [--keep FILE] [--rounds 3] [--steps 8] [--only NUMBERS]

Everything takes turns, because the machine's speed changes within minutes: a round is a calibration and a run of every
mesh; then medians are compared, of what the calibrations say and of all rounds' steps but the first two of each run.
What other programs disturb, using more than a twentieth of the processors meanwhile, is measured up to --tries times.
With --cluster an older calibration is used, and none is made.
"""
import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("BUILD", "build")

MODELS = {
    "gpt2 1M": "--arch gpt2 --layers 6 --hidden 128 --heads 4 --seq 128",
    "gpt2 6M": "--arch gpt2 --layers 8 --hidden 256 --heads 8 --seq 128",
    "llama 3M": "--arch llama --layers 4 --hidden 256 --heads 8 --kv-heads 4 --seq 256",
    "llama 26M": "--arch llama --layers 8 --hidden 512 --heads 8 --seq 128",
    "gpt2 25M": "--arch gpt2 --layers 8 --hidden 512 --heads 8 --seq 128",
}
MESHES = [  # ranks, model, mesh, batch
    (1, "gpt2 6M", "", "--micro-batch 4 --global-batch 8"),
    (2, "gpt2 1M", "--dp 2", "--micro-batch 4 --global-batch 16"),
    (2, "llama 26M", "--tp 2", "--micro-batch 2 --global-batch 4"),
    (2, "gpt2 6M", "--pp 2 --schedule 1f1b", "--micro-batch 2 --global-batch 16"),
    (4, "gpt2 6M", "--tp 2 --dp 2", "--micro-batch 2 --global-batch 8"),
    (4, "gpt2 25M", "--pp 4 --schedule gpipe", "--micro-batch 1 --global-batch 8"),
    (4, "llama 3M", "--pp 2 --dp 2 --schedule interleaved", "--micro-batch 2 --global-batch 16"),
    (4, "llama 3M", "--tp 2 --pp 2 --schedule zb-h1", "--micro-batch 2 --global-batch 16"),
    (4, "gpt2 6M", "--pp 4 --schedule zb-v", "--micro-batch 2 --global-batch 16"),
    (8, "gpt2 1M", "--dp 8 --zero 1", "--micro-batch 2 --global-batch 16"),
    (8, "llama 26M", "--tp 2 --pp 2 --dp 2 --schedule 1f1b", "--micro-batch 1 --global-batch 8"),
    (8, "gpt2 6M", "--tp 4 --pp 2 --schedule interleaved --sequence-parallel", "--micro-batch 2 --global-batch 8"),
]
# Runs whose traces correct what was measured, three for each number of ranks: none of those that are predicted.
TRACED = [
    (1, "llama 3M", "", "--micro-batch 4 --global-batch 8"),
    (1, "gpt2 1M", "", "--micro-batch 4 --global-batch 16"),
    (1, "gpt2 25M", "", "--micro-batch 2 --global-batch 4"),
    (2, "gpt2 1M", "--tp 2", "--micro-batch 4 --global-batch 8"),
    (2, "llama 3M", "--dp 2", "--micro-batch 2 --global-batch 8"),
    (2, "llama 3M", "--pp 2 --schedule zb-h1", "--micro-batch 2 --global-batch 8"),
    (4, "llama 3M", "--tp 2 --pp 2", "--micro-batch 1 --global-batch 8"),
    (4, "gpt2 1M", "--tp 4", "--micro-batch 4 --global-batch 8"),
    (4, "gpt2 1M", "--dp 4", "--micro-batch 4 --global-batch 16"),
    (8, "gpt2 1M", "--tp 2 --pp 2 --dp 2", "--micro-batch 2 --global-batch 16"),
    (8, "llama 3M", "--tp 4 --dp 2", "--micro-batch 1 --global-batch 8"),
    (8, "gpt2 1M", "--pp 4 --dp 2", "--micro-batch 2 --global-batch 16"),
]
# All meshes of four ranks, of which one is recommended; as many micro-batches as the batch has, for everyone.
CHOICE_MODEL = "gpt2 6M"
CHOICE = [(4, CHOICE_MODEL, mesh, "--micro-batch 2 --global-batch 16") for mesh in (
    "--dp 4", "--tp 2 --dp 2", "--tp 4", "--pp 2 --dp 2 --schedule 1f1b", "--pp 4 --schedule 1f1b",
    "--tp 2 --pp 2 --schedule 1f1b", "--dp 4 --zero 1", "--pp 4 --schedule zb-h1")]


def arguments(mesh, data):
    ranks, model, shape, batch = mesh
    return (f"--data {data} " + MODELS[model] + " " + shape + " " + batch).split()


def run(mesh, data, steps, folder, extra=()):
    """Seconds of each step but the first two, and the largest peak of a rank."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [os.path.join(ROOT, "scripts/mpirun.sh"), "-np", str(mesh[0])] if mesh[0] > 1 else []
    command += [os.path.join(ROOT, "train_gpt")] + arguments(mesh, data)
    command += ["--steps", str(steps), "--eval-every", "0", "--sample-every", "0", "--out", folder, *extra]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    with open(os.path.join(folder, "log.jsonl")) as log:
        lines = [json.loads(line) for line in log]
    return [line["step_ms"] / 1e3 for line in lines[2:]], max(line["peak_mem_bytes"] for line in lines)


def processor_seconds():
    """Of all programs, and of this one's."""
    with open("/proc/stat") as f:
        words = [int(w) for w in f.readline().split()[1:8]]
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (sum(words) - words[3] - words[4]) / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime


def quietly(job, tries):
    """What job() returns, of the try in which other programs had the smallest part of the processors; and that part."""
    best = None
    for _ in range(tries):
        for _ in range(40):  # wait for a quiet moment
            before = processor_seconds()[0]
            time.sleep(0.4)
            if processor_seconds()[0] - before < 0.1 * os.cpu_count():
                break
        (all_before, own_before), started = processor_seconds(), time.time()
        result = job()
        all_after, own_after = processor_seconds()
        others = (all_after - all_before - own_after + own_before) / (time.time() - started) / os.cpu_count()
        if best is None or others < best[1]:
            best = (result, others)
        if others < 0.05:
            break
    return best


def calibrate(path):
    subprocess.run([os.path.join(ROOT, "scripts/mpirun.sh"), "-np", "8", os.path.join(ROOT, BUILD, "calibrate"),
                    "--rounds", "1", "--out", path], check=True, stdout=subprocess.DEVNULL)
    with open(path) as f:
        return f.read()


def medians(calibrations, path):
    """Of each line's value: the number before its unit, if it has one."""
    values = {}
    for text in calibrations:
        for line in text.splitlines():
            words = line.split()
            if words[0] in ("cores", "tile"):
                values.setdefault(line, ([], None))
                continue
            at = len(words) - (2 if words[-1] in ("s", "B", "FLOP/s", "TFLOP/s", "GB") else 1)
            values.setdefault(" ".join(words[:at]), ([], words[at + 1:]))[0].append(float(words[at]))
    with open(path, "w") as f:
        for line, (numbers, unit) in values.items():
            f.write(" ".join([line] + ([f"{statistics.median(numbers):.4g}"] + unit if numbers else [])) + "\n")


def plan(mesh, cluster, *options):
    """What ./plan prints of this one mesh: every choice is settled."""
    ranks, model, shape, batch = mesh
    words = shape.split()
    said = {w[2:]: (words[i + 1:] + ["--"])[0] for i, w in enumerate(words) if w.startswith("--")}
    tp, pp = int(said.get("tp", 1)), int(said.get("pp", 1))
    schedule = said.get("schedule", "1f1b")
    settled = {"tp": tp, "pp": pp, "dp": ranks // (tp * pp), "vpp": 2 if schedule in ("interleaved", "zb-v") else 1,
               "schedule": schedule, "zero": said.get("zero", 0), "recompute": "none",
               "sequence-parallel": "yes" if "sequence-parallel" in said else "no",
               "gpus": ranks, "cluster": cluster, "vocab": 256}
    command = [os.path.join(ROOT, "plan"), *options] + MODELS[model].split() + batch.split()
    command += [word for name, value in settled.items() for word in ("--" + name, str(value))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def predict(mesh, data, cluster):
    (answer,) = json.loads(plan(mesh, cluster, "--json", "--text", str(os.path.getsize(data))))
    return answer


def correct(cluster, traces):
    """Adds to a cluster's file what the traces of TRACED say of each number of ranks: the median of the meshes', each
    the median of its rounds'."""
    factors = {}
    for i, mesh in enumerate(TRACED):
        of_rounds = []
        for path in traces[i]:
            (line,) = plan(mesh, cluster, "--calibrate", path).splitlines()
            of_rounds.append(float(line.split()[2]))
        factors.setdefault(mesh[0], []).append(statistics.median(of_rounds))
    with open(cluster, "a") as f:
        for ranks, values in factors.items():
            f.write(f"correct {ranks} {statistics.median(values):.4g}\n")
            print(f"correct {ranks} {statistics.median(values):.3f}, of {', '.join(f'{v:.2f}' for v in values)}")


def measure(meshes, o, temporary, calibrations, traces):
    """Seconds of steps, and peaks, of every mesh; texts of calibrations are added to the list, where one is given, and
    paths of traces."""
    seconds, peak = [[] for _ in meshes], [0] * len(meshes)
    out = os.path.join(temporary, "run")
    for r in range(o.rounds):
        said = f"round {r + 1} of {o.rounds}: "
        if calibrations is not None:
            text, others = quietly(lambda: calibrate(os.path.join(temporary, "machine.txt")), o.tries)
            calibrations.append(text)
            print(f"{said}calibration, others {100 * others:.0f} %", file=sys.stderr, flush=True)
            for i, mesh in enumerate(TRACED):
                path = os.path.join(temporary, f"trace{i}-{r}.json")
                quietly(lambda: run(mesh, o.data, o.steps, out, ("--trace", path)), o.tries)
                traces[i].append(path)
        for i, mesh in enumerate(meshes):
            (times, bytes_of_it), others = quietly(lambda: run(mesh, o.data, o.steps, out), o.tries)
            seconds[i] += times
            peak[i] = max(peak[i], bytes_of_it)
            print(f"{said}mesh {i + 1}, {1e3 * statistics.median(times):.1f} ms, others {100 * others:.0f} %",
                  file=sys.stderr, flush=True)
    return seconds, peak


def table(meshes, seconds, peak, o, cluster):
    print(f"{'':2} {'ranks':>5} {'model':10} {'mesh':58} {'predicted':>10} {'measured':>10} {'error':>7}"
          f" {'peak MB: predicted, measured':>30}")
    rows = []
    for i, mesh in enumerate(meshes):
        said, median = predict(mesh, o.data, cluster), statistics.median(seconds[i])
        error, memory = said["seconds"] / median - 1, said["process_bytes"]
        rows.append((said["seconds"], median, error))
        line = (f"{i + 1:2} {mesh[0]:5} {mesh[1]:10} {mesh[2] or 'one rank':58} {1e3 * said['seconds']:7.1f} ms"
                f" {1e3 * median:7.1f} ms {100 * error:+6.1f}%")
        if memory:
            line += f"   {memory / 1e6:6.1f} {peak[i] / 1e6:6.1f} {100 * (memory / peak[i] - 1):+6.1f}%"
        print(line)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cluster", help="lines of a calibration")
    parser.add_argument("--keep", help="where the calibrations' medians go")
    parser.add_argument("--data", required=True, help="a text to train on")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only", default="")
    parser.add_argument("--tries", type=int, default=4)
    parser.add_argument("--no-choice", action="store_true", help="leave out the recommendation")
    o = parser.parse_args()
    meshes = [MESHES[int(i) - 1] for i in o.only.split(",")] if o.only else MESHES
    choice = [] if o.no_choice else CHOICE
    with tempfile.TemporaryDirectory() as temporary:
        calibrations = None if o.cluster else []
        traces = [[] for _ in TRACED]
        seconds, peak = measure(meshes + choice, o, temporary, calibrations, traces)
        cluster = o.cluster or o.keep or os.path.join(temporary, "medians.txt")
        if not o.cluster:
            medians(calibrations, cluster)
            correct(cluster, traces)
        n = len(meshes)
        rows = table(meshes, seconds[:n], peak[:n], o, cluster)
        errors = [abs(e) for _, _, e in rows]
        print(f"error: mean {100 * sum(errors) / len(errors):.1f} %, worst {100 * max(errors):.1f} %, "
              f"{sum(e <= 0.1 for e in errors)} of {len(errors)} within 10 %")
        if not choice:
            return
        print(f"\nmeshes of four ranks for {CHOICE_MODEL}")
        rows = table(choice, seconds[n:], peak[n:], o, cluster)
        best = min(range(len(rows)), key=lambda i: rows[i][0])
        fastest = min(range(len(rows)), key=lambda i: rows[i][1])
        slower = rows[best][1] / rows[fastest][1] - 1
        print(f"recommended: {CHOICE[best][2]}, {100 * slower:.1f} % slower than the fastest, {CHOICE[fastest][2]}")


if __name__ == "__main__":
    main()
