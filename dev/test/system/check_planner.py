#!/usr/bin/env python3
"""
check_planner.py PLAN: PLAN --runs for published.tsv and figures.tsv of planner/. A row's value is that of PLAN with
the row's options alone, by the formulas of its unit's source, written here once more. Then what planner/judge.py says:
the rows that no constant was chosen by, of Megatron's family, are within 7 % on average and 4 % signed; in nine of ten
sweeps the layout that is fastest here is within 5 % of the one that was; and the band that an answer prints. Last,
planner/calibrate.py: from the steps of a known machine it finds that machine.
"""
import collections, json, re, sys, tempfile

from checks import ROOT, check, finish, launch, near
import calibrate

PLAN, PLANNER = sys.argv[1], f"{ROOT}/planner"
GPUS = {"selene": "A100", "jean-zay": "A100", "dgx-a100": "A100", "dgx-a100-40": "A100", "dgx-h100": "H100",
        "gb200": "GB200"}
PEAK = {"A100": 312e12, "H100": 989.4e12, "GB200": 2500e12}
GPT3 = {"1.7B": (24, 2304), "3.6B": (30, 3072), "7.5B": (36, 4096), "18.4B": (40, 6144), "39.1B": (48, 8192),
        "76.1B": (60, 10240), "145.6B": (80, 12288), "310.1B": (96, 16384), "529.6B": (105, 20480),
        "1008B": (128, 25600)}
Shape = collections.namedtuple("Shape", "llama L C NH NKV F T V")


def plan(*options):
    done = launch(PLAN, *options)
    return done.stdout if done.returncode == 0 else check(False, f"{' '.join(options)}: {done.stderr}") or ""


def shape_of(option):
    name = option.get("--model")
    if name == "llama3-405B":
        return Shape(True, 126, 16384, 128, 8, 53248, 8192, 128256)
    if name:
        L, C = GPT3[name.removeprefix("gpt3-")]
        return Shape(False, L, C, 1, 1, 4 * C, 2048, 51200)
    heads = int(option["--heads"])
    return Shape(option["--arch"] == "llama", int(option["--layers"]), int(option["--hidden"]), heads,
                 int(option.get("--kv-heads", heads)), int(option.get("--ffn", 4 * int(option["--hidden"]))),
                 int(option["--seq"]), int(option["--vocab"]))


def value(unit, option, seconds):
    """In the unit of the source. Equation 3 of Narayanan et al. 2021 counts four passes; the others three, 6 FLOP a
    token and weight of the products, and 12 L C T for attention, or its causal half."""
    s, batch = shape_of(option), int(option["--global-batch"])
    rate = batch / seconds / int(option["--gpus"])
    weights = s.L * (2 * s.C ** 2 * (1 + s.NKV / s.NH) + (3 if s.llama else 2) * s.C * s.F) + s.V * s.C
    model = rate * s.T * (6 * weights + 12 * s.L * s.C * s.T)
    return {"s": seconds, "seq/s": rate, "k tok/s": rate * s.T / 1e3, "seq/s of all": batch / seconds,
            "% MFU": 100 * model / PEAK[GPUS[option["--cluster"]]], "TFLOP/s model": model / 1e12,
            "TFLOP/s causal": rate * s.T * (6 * weights + 6 * s.L * s.C * s.T) / 1e12,
            "TFLOP/s": rate * 96 * s.T * s.L * s.C ** 2 * (1 + s.T / (6 * s.C) + s.V / (16 * s.L * s.C)) / 1e12}[unit]


def check_file(name, every):
    """Checks each `every`th row; the uses of all rows, counted."""
    uses, wrong = collections.Counter(), []
    for i, line in enumerate(plan("--runs", f"{PLANNER}/{name}").splitlines()):
        _, use, run, unit, _, ours, memory, options = line.split("\t")
        uses[use] += 1
        if i % every:
            continue
        words = options.split()
        option = {words[i]: words[i + 1] for i in range(len(words) - 1) if words[i].startswith("--")}
        rows = json.loads(plan(*words, "--json") or "[]")
        if len(rows) != 1 or not near(value(unit, option, rows[0]["seconds"]), float(ours), 2e-5) or \
                not near(rows[0]["bytes"] / rows[0]["room"], float(memory), 1e-3):
            wrong.append(f"{run}: {ours} {unit}, {rows}")
    check(not wrong and uses, f"{name}: {sum(uses.values())} rows by their own commands and formulas {wrong[:2]}")
    return uses


def judge(what):
    return launch(f"{PLANNER}/judge.py", what, PLAN=PLAN).stdout


def check_bands():
    """Errors of the judging rows of Megatron's family by GPU, and the band that an answer prints."""
    errors, counted = {"A100": [], "H100": [], "GB200": []}, 0  # of speed
    for line in plan("--runs", f"{PLANNER}/published.tsv").splitlines():
        _, use, _, unit, published, ours, _, options = line.split("\t")
        if use == "judging" and "--software megatron" in options:
            error = float(published) / float(ours) if unit == "s" else float(ours) / float(published)
            errors[GPUS[re.search(r"--cluster (\S+)", options)[1]]].append(100 * error - 100)
            counted += "dgx-h100" in options and "--software megatron-core " in options
    for gpu, cluster in (("A100", "dgx-a100"), ("H100", "dgx-h200"), ("GB200", "gb200")):
        x, n = sorted(errors[gpu]), len(errors[gpu])
        mean, signed = sum(map(abs, x)) / n, sum(x) / n
        check(mean <= 6 and abs(signed) <= 3, f"{gpu}: {n} rows, error {mean:.1f} %, signed {signed:+.1f} %")
        band = f"{n} published runs of Megatron's family judge it on GPUs of this peak" + (
            f": 9 of 10 speeds predicted {x[n // 20]:+.0f} to {x[-1 - n // 20]:+.0f} %" if n >= 8 else
            ", and a band needs 8: not known how far off")
        check(band in plan("--cluster", cluster), band)
    check(f"; {counted} published runs of megatron-core judge it" in
          plan("--cluster", "dgx-h100", "--software", "megatron-core"), f"a band is of that software alone: {counted}")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("peak 165 TFLOP/s\nsms 128\nmemory 24 GB\nhbm 1008 GB/s\nnode_gpus 8\nnodes 1\nnvlink 25 GB/s\n")
        file.flush()
        check("; 0 published runs" in plan("--cluster", file.name), "of a data sheet's GPU nothing is known")
    slurm = "sbatch --nodes=32 --ntasks-per-node=4 --gpus-per-node=4 "
    check(slurm in plan("--cluster", "gb200", "--gpus", "128"), f"a tray has four GPUs: {slurm}")
    lacks = launch(PLAN, "--software", "megatron-core", "--pp", 2, "--schedule", "zb-v")
    check(lacks.returncode == 2 and "halves" in lacks.stderr, f"zb-v: {lacks.stderr.strip()}")


def check_calibration():
    with tempfile.TemporaryDirectory() as folder:
        known = [1.3e-11, 2.9e-11, 1.1e-10, 1.7e-5, 3e-10, 2.2e-5]
        seconds_by = lambda x: [calibrate.predicted(run, x, folder) for run in calibrate.RUNS]
        found = calibrate.fit(calibrate.RUNS, seconds_by(known), folder)
        check(all(near(x, y, 1e-3) for x, y in zip(found, known)), f"calibrate.py: {found} for {known}")
        idle = seconds_by([*known[:4], 0, 0])  # links that cost nothing
        found = calibrate.fit(calibrate.RUNS, idle, folder)
        check(all(near(a, b, 1e-2) for a, b in zip(seconds_by(found), idle)), f"without links: {found}")


def main():
    uses = check_file("published.tsv", 5)
    check([uses[use] for use in ("calibration", "choosing", "judging", "outside")] == [10, 101, 123, 26],
          "the halves are those that were drawn before constants were changed; of the rows of 2025 two are chosen by")
    check_file("figures.tsv", 3)
    said = judge("published")
    error = re.search(r"    megatron +judging +(\d+) runs, error +([\d.]+) %, signed +([+-][\d.]+) %", said)
    check(int(error[1]) > 50 and float(error[2]) <= 6 and abs(float(error[3])) <= 3 and
          "\n0 of 256 runs would be refused for lack of memory" in said, f"{error[0].strip()}; memory for each")
    losses = [float(x) for x in re.findall(r"picked .*: \+([\d.]+) % beside", said)]
    check(len(losses) == 10 and sum(x <= 5 for x in losses) >= 9, f"sweeps: {losses}")
    points = re.findall(r"(\d+) published points: error ([\d.]+) %", judge("figures"))
    mean = sum(int(n) * float(error) for n, error in points) / 40
    check(sum(int(n) for n, _ in points) == 40 and mean < 3, f"figures: 40 points, error {mean:.2f} %")
    check_bands()
    check_calibration()
    finish()


main()
